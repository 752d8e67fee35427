/* The functions that need no server: beginning, memory of the host, and finding functions. */
#define _GNU_SOURCE
#include "client.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { PAGE = 4096, REGISTER_DEVICE_MAP = 2, HOST_DEVICE_MAP = 2 };

/* The server has initialised its driver when it says welcome. */
EXPORT CUresult cuInit(unsigned flags);
CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : ready(); }

/* Memory of the host is not pinned here: the server's copies are what is fast. None of it is mapped for the device. */
EXPORT CUresult cuMemHostAlloc(void **to, size_t bytes, unsigned flags);
CUresult cuMemHostAlloc(void **to, size_t bytes, unsigned flags) {
    if (!to || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (flags & HOST_DEVICE_MAP) return CUDA_ERROR_NOT_SUPPORTED;
    return posix_memalign(to, PAGE, bytes) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
EXPORT CUresult cuMemAllocHost_v2(void **to, size_t bytes);
CUresult cuMemAllocHost_v2(void **to, size_t bytes) { return cuMemHostAlloc(to, bytes, 0); }
EXPORT CUresult cuMemFreeHost(void *pointer);
CUresult cuMemFreeHost(void *pointer) { return free(pointer), CUDA_SUCCESS; }
EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags);
CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    if (!pointer || !bytes) return CUDA_ERROR_INVALID_VALUE;
    return flags & REGISTER_DEVICE_MAP ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostUnregister(void *pointer);
CUresult cuMemHostUnregister(void *pointer) { return pointer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

/* Private tables of the runtime, which are not documented. */
EXPORT CUresult cuGetExportTable(const void **to, const void *table);
CUresult cuGetExportTable(const void **to, const void *table) {
    (void)table;
    if (to) *to = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **to, int version, uint64_t flags, int *status);
EXPORT CUresult cuGetProcAddress(const char *name, void **to, int version, uint64_t flags);

static const struct { const char *plain; int since; void *function; } own[] = {
    {"cuInit", 2000, cuInit},
    {"cuMemHostAlloc", 2020, cuMemHostAlloc},
    {"cuMemAllocHost", 3020, cuMemAllocHost_v2},
    {"cuMemFreeHost", 2000, cuMemFreeHost},
    {"cuMemHostRegister", 6050, cuMemHostRegister_v2},
    {"cuMemHostUnregister", 4000, cuMemHostUnregister},
    {"cuGetExportTable", 3000, cuGetExportTable},
    {"cuGetProcAddress", 12000, cuGetProcAddress_v2},
    {"cuGetProcAddress", 11030, cuGetProcAddress},
};

static void *find(const char *name, int version, int per_thread, int *newer) {
    static void *self;
    const call_t *best = NULL;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (strcmp(own[i].plain, name)) continue;
        if (own[i].since <= version) return own[i].function;
        *newer = 1;
    }
    for (int i = 0; i < call_count; i++) {
        const call_t *one = &calls[i];
        if (strcmp(one->plain, name) || !is_available(i)) continue;
        if (one->since > version) *newer = 1;
        else if (!one->per_thread || per_thread)
            if (!best || one->since > best->since || (one->since == best->since && one->per_thread)) best = one;
    }
    if (!best) return NULL;
    if (!self) {
        Dl_info info;
        if (dladdr((void *)cuInit, &info)) self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    return self ? dlsym(self, best->exact) : NULL;
}

CUresult cuGetProcAddress_v2(const char *name, void **to, int version, uint64_t flags, int *status) {
    int newer = 0;
    if (!name || !to) return CUDA_ERROR_INVALID_VALUE;
    (void)ready(); /* so that it is known what the driver there has; without a server the calls themselves say why */
    *to = find(name, version, (flags & PROC_PER_THREAD) != 0, &newer);
    if (status) *status = *to ? PROC_FOUND : newer ? PROC_VERSION_TOO_LOW : PROC_NOT_FOUND;
    return *to ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetProcAddress(const char *name, void **to, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, to, version, flags, NULL);
}
