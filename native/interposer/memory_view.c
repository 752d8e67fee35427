/* Makes CUDA and NVML report the slice's memory instead of the GPU's memory. */
#define _GNU_SOURCE
#include "kerf.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef CUresult (*info_t)(size_t *, size_t *);
typedef CUresult (*total_t)(size_t *, CUdevice);

static uint64_t less(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t left(int gpu, uint64_t limit) {
    const uint64_t taken = held(gpu);
    return taken < limit ? limit - taken : 0;
}

/* The size that the container sees. Where its limit changes with what others use, it is what it may have at most. */
static uint64_t shown(int gpu) {
    const uint64_t bytes = orders->gpu[gpu].shown_bytes, limit = orders->gpu[gpu].memory_limit_bytes;
    return bytes && limit != KERF_NO_LIMIT ? bytes : limit;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    CUresult result;
    int gpu;
    if (!present()) return CUDA_ERROR_SYSTEM_NOT_READY;
    pools_after(AFTER_WAIT);
    result = REAL(info_t, "cuMemGetInfo_v2")(available, total);
    gpu = result ? -1 : current_gpu();
    if (gpu < 0 || orders->gpu[gpu].memory_limit_bytes == KERF_NO_LIMIT) return result;
    reclaim(); /* what dead processes held is free: one lock query for each process that uses the GPU */
    if (available) *available = less(*available, left(gpu, orders->gpu[gpu].memory_limit_bytes));
    if (total) *total = less(*total, shown(gpu));
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice device) {
    CUresult result;
    int gpu;
    if (!attached()) return CUDA_ERROR_SYSTEM_NOT_READY;
    result = REAL(total_t, "cuDeviceTotalMem_v2")(total, device);
    gpu = result ? -1 : gpu_of_device(device);
    if (gpu >= 0) *total = less(*total, shown(gpu));
    return result;
}

/* The two documented forms of NVML's structure. */
typedef struct { unsigned long long total, available, used; } nvml_memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, available, used; } nvml_memory_v2_t;
typedef int (*nvml_memory_fn)(void *, nvml_memory_t *);
typedef int (*nvml_memory_v2_fn)(void *, nvml_memory_v2_t *);
typedef int (*nvml_uuid_fn)(void *, char *, unsigned);
typedef void *(*dlopen_t)(const char *, int);
enum { NVML_UNINITIALISED = 1 };

static void *nvml(const char *name) {
    static void *library;
    if (!library) library = ((dlopen_t)libc_function("dlopen"))("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return library ? real_dlsym()(library, name) : NULL;
}

/* Returns the GPU of an NVML handle. The hex digits of GPU-xxxxxxxx-xxxx-... or MIG-... are the bytes of CUDA's
 * UUID. */
static int gpu_of_handle(void *handle) {
    nvml_uuid_fn uuid_of = (nvml_uuid_fn)nvml("nvmlDeviceGetUUID");
    char text[96] = "", pair[3] = "";
    unsigned char uuid[16];
    int digits = 0;
    if (!uuid_of || uuid_of(handle, text, sizeof text)) return -1;
    for (const char *c = strchr(text, '-'); c && *c && digits < 32; c++) {
        if (*c == '-') continue;
        pair[digits % 2] = *c;
        if (digits++ % 2) uuid[digits / 2 - 1] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return digits == 32 ? gpu_of_uuid(uuid) : -1;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *handle, nvml_memory_t *memory) {
    nvml_memory_fn real = (nvml_memory_fn)nvml("nvmlDeviceGetMemoryInfo");
    int error = real ? real(handle, memory) : NVML_UNINITIALISED;
    int gpu = error || !attached() ? -1 : gpu_of_handle(handle);
    if (gpu < 0 || orders->gpu[gpu].memory_limit_bytes == KERF_NO_LIMIT) return error;
    reclaim();
    memory->total = less(memory->total, shown(gpu));
    memory->used = less(held(gpu), memory->total);
    memory->available = less(memory->total - memory->used, left(gpu, orders->gpu[gpu].memory_limit_bytes));
    return error;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, nvml_memory_v2_t *memory) {
    nvml_memory_v2_fn real = (nvml_memory_v2_fn)nvml("nvmlDeviceGetMemoryInfo_v2");
    int error = real ? real(handle, memory) : NVML_UNINITIALISED;
    int gpu = error || !attached() ? -1 : gpu_of_handle(handle);
    if (gpu < 0 || orders->gpu[gpu].memory_limit_bytes == KERF_NO_LIMIT) return error;
    reclaim();
    memory->total = less(memory->total, shown(gpu));
    memory->used = less(held(gpu), memory->total);
    memory->available = less(memory->total - memory->used, left(gpu, orders->gpu[gpu].memory_limit_bytes));
    memory->reserved = memory->total - memory->used - memory->available; /* of what it may have, not to be had now */
    return error;
}
