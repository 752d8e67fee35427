/* What the driver trusts its caller with: handles, which are addresses of its memory, and the parameters of kernels. A
 * client is another machine's program: it has only the handles that it was given, and the driver says what a kernel
 * reads. */
#define _GNU_SOURCE
#include "handles.h"
#include "image.h"
#include "server.h"
#include <dlfcn.h>
#include <elf.h>
#include <string.h>

typedef CUresult (*parameter_info_t)(uint64_t function, size_t index, size_t *offset, size_t *bytes);
static parameter_info_t parameter_info;
static CUresult (*current_context)(uint64_t *);
static CUresult (*primary_state)(int device, unsigned *flags, int *active);
static CUresult (*is_capturing[2])(CUstream, int *);
enum { PRIMARIES = 64, CUDA_ERROR_INVALID_IMAGE = 200, PAGEABLE_MEMORY_ACCESS = 88 };
enum { LOCATION_AT = 8, POINTER_AT = 16 }; /* in CUmemAllocationProp and CUmemPoolProps alike */
static _Atomic uint64_t primary[PRIMARIES];

int find_checks(void *driver) {
    *(void **)&parameter_info = dlsym(driver, "cuFuncGetParamInfo");
    *(void **)&current_context = dlsym(driver, "cuCtxGetCurrent");
    *(void **)&primary_state = dlsym(driver, "cuDevicePrimaryCtxGetState");
    *(void **)&is_capturing[0] = dlsym(driver, "cuStreamIsCapturing");
    *(void **)&is_capturing[1] = dlsym(driver, "cuStreamIsCapturing_ptsz");
    return current_context ? 0 : -1;
}

/* Whether kernels could read the memory of this process: CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS. */
int shares_memory(void *driver) {
    CUresult (*count_of)(int *), (*attribute_of)(int *, int, CUdevice);
    int count = 0, shares = 0;
    *(void **)&count_of = dlsym(driver, "cuDeviceGetCount");
    *(void **)&attribute_of = dlsym(driver, "cuDeviceGetAttribute");
    if (!count_of || !attribute_of || count_of(&count)) return 0; /* it has no device to serve */
    for (int i = 0; i < count && !shares; i++)
        if (attribute_of(&shares, PAGEABLE_MEMORY_ACCESS, i)) shares = 0; /* a driver that has no such thing */
    return shares;
}

static CUresult layout_of(uint64_t function, layout_t *to) {
    size_t offset, bytes;
    if (!layout_known(function, to)) return CUDA_SUCCESS;
    to->count = 0, to->bytes = 0;
    for (CUresult result;; to->count++) {
        result = parameter_info(function, (size_t)to->count, &offset, &bytes);
        if (result == CUDA_ERROR_INVALID_VALUE) break; /* there are no more */
        if (result) return result;
        if (to->count == MAX_PARAMETERS || offset + bytes > 65536) return CUDA_ERROR_NOT_SUPPORTED;
        to->parameter[to->count] = (parameter_t){(uint32_t)offset, (uint32_t)bytes};
        if (offset + bytes > to->bytes) to->bytes = (uint32_t)(offset + bytes);
    }
    layout_found(function, to);
    return CUDA_SUCCESS;
}

static CUresult check_launch(const made_call_t *made, int at, int packed_at) {
    static _Thread_local layout_t layout;
    if (!parameter_info) return made->words[at] ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    const CUresult result = layout_of(made->words[0], &layout);
    if (result) return result;
    if (!made->words[at]) {
        const int packed = packed_at >= 0 && made->words[packed_at];
        return (packed ? made->packed : 0) < layout.bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    if (made->parameter_count != (uint32_t)layout.count || made->parameter_bytes < layout.bytes) return (CUresult)MALFORMED;
    for (int i = 0; i < layout.count; i++)
        if (made->offset[i] != layout.parameter[i].offset) return (CUresult)MALFORMED;
    return CUDA_SUCCESS;
}

/* An image says how long it is, and the driver believes it. Text ends with the 0 that the reader puts behind a frame. */
static int image_is_whole(const char *image, uint64_t sent) {
    uint32_t magic = 0;
    fat_binary_t fat;
    Elf64_Ehdr elf;
    if (sent >= sizeof magic) memcpy(&magic, image, sizeof magic);
    if (magic == WRAPPER) return 0; /* it points to memory of this process */
    if (magic == FAT_BINARY) {
        if (sent < sizeof fat) return 0;
        memcpy(&fat, image, sizeof fat);
        return fat.header_bytes >= sizeof fat && fat.header_bytes <= sent && fat.bytes <= sent - fat.header_bytes;
    }
    if (sent < SELFMAG || memcmp(image, ELFMAG, SELFMAG)) return 1;
    if (sent < sizeof elf) return 0;
    memcpy(&elf, image, sizeof elf);
    if (elf.e_shoff > sent || (uint64_t)elf.e_shnum * elf.e_shentsize > sent - elf.e_shoff) return 0;
    if (elf.e_phoff > sent || (uint64_t)elf.e_phnum * elf.e_phentsize > sent - elf.e_phoff) return 0;
    if (elf.e_shnum && elf.e_shentsize < sizeof(Elf64_Shdr)) return 0;
    for (int i = 0; i < elf.e_shnum; i++) {
        Elf64_Shdr one;
        memcpy(&one, image + elf.e_shoff + (uint64_t)i * elf.e_shentsize, sizeof one);
        if (one.sh_type != SHT_NOBITS && (one.sh_offset > sent || one.sh_size > sent - one.sh_offset)) return 0;
    }
    return 1;
}

/* Memory of the host is no part of a slice. The pointer in the properties is for another system. */
static CUresult check_location(char *properties) {
    uint32_t type;
    if (!properties) return CUDA_SUCCESS;
    memcpy(&type, properties + LOCATION_AT, sizeof type);
    memset(properties + POINTER_AT, 0, sizeof(void *));
    return type == LOCATION_DEVICE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* A captured copy would read or write the server's buffer when the graph runs. */
static CUresult check_capture(int call, const made_call_t *made, int count) {
    int status = 0;
    CUresult (*ask)(CUstream, int *) = is_capturing[calls[call].per_thread];
    if (!ask) return CUDA_SUCCESS; /* a driver without graphs */
    const CUresult result = ask((CUstream)(uintptr_t)made->words[count - 1], &status);
    return result ? result : status ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static CUresult check_one(int call, made_call_t *made, int count, argument_t argument, int i) {
    char *at = (char *)(uintptr_t)made->words[i]; /* NOLINT: words are pointers here */
    const int async = calls[call].how == SENT || calls[call].how == FINISHED;
    switch (argument.kind) {
    case 'm': return !at || image_is_whole(at, made->sent[i]) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
    case 'i': return strcmp(calls[call].plain, "cuMemGetAllocationGranularity") ? check_location(at) : CUDA_SUCCESS;
    case 'b': case 'B': return async ? check_capture(call, made, count) : CUDA_SUCCESS;
    case 'k': return check_launch(made, i, i + 1 < count ? i + 1 : -1);
    default: return CUDA_SUCCESS;
    }
}

CUresult before_call(int call, made_call_t *made, int count, const argument_t *arguments) {
    for (int i = 0; i < count; i++)
        if ((arguments[i].kind == 'h' || arguments[i].kind == 'd') && !handle_known(arguments[i].bytes, made->words[i]))
            return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < count; i++) {
        const CUresult result = check_one(call, made, count, arguments[i], i);
        if (result) return result;
    }
    for (int i = 0; i < count; i++) /* gone before the driver may give its value to another */
        if (arguments[i].kind == 'd') handle_ends(arguments[i].bytes, made->words[i]);
    return CUDA_SUCCESS;
}

static uint64_t current(void) {
    uint64_t found = 0;
    return current_context(&found) ? 0 : found;
}

/* Contexts have streams, events and modules; modules functions; libraries kernels, and these functions. */
static int returned(int kind, uint64_t handle, const made_call_t *made, const argument_t *arguments) {
    switch (kind) {
    case A_STREAM: case AN_EVENT: case A_MODULE: return handle_returned(kind, handle, A_CONTEXT, current());
    case A_FUNCTION: case A_KERNEL: return handle_returned(kind, handle, arguments[1].bytes, made->words[1]);
    default: return handle_returned(kind, handle, 0, 0);
    }
}

int after_call(int call, const made_call_t *made, int count, const argument_t *arguments, CUresult result) {
    for (int i = 0; i < count; i++) {
        uint64_t handle;
        if (arguments[i].kind == 'd' && result && made->words[i])
            handle_returned(arguments[i].bytes, made->words[i], 0, 0); /* it has not ended */
        if (arguments[i].kind != 'H' || result || !made->output[i].data) continue;
        memcpy(&handle, made->output[i].data, sizeof handle);
        if (returned(arguments[i].bytes, handle, made, arguments)) return -1;
        if (!strcmp(calls[call].plain, "cuDevicePrimaryCtxRetain") && made->words[1] < PRIMARIES)
            primary[made->words[1]] = handle;
    }
    const int reset = !strcmp(calls[call].plain, "cuDevicePrimaryCtxReset");
    if (!result && (reset || !strcmp(calls[call].plain, "cuDevicePrimaryCtxRelease")) && made->words[0] < PRIMARIES) {
        unsigned flags;
        int active = 0;
        if (reset || !primary_state || primary_state((int)made->words[0], &flags, &active) || !active)
            children_end(A_CONTEXT, primary[made->words[0]]);
    }
    return 0;
}
