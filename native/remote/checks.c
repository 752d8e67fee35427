/* What the driver trusts its caller with: handles, which are addresses of its memory, and the parameters of kernels. A
 * client is another machine's program: it has only the handles that it was given, and the driver says what a kernel
 * reads. */
#define _GNU_SOURCE
#include "handles.h"
#include "server.h"
#include <dlfcn.h>
#include <string.h>

typedef CUresult (*parameter_info_t)(uint64_t function, size_t index, size_t *offset, size_t *bytes);
static parameter_info_t parameter_info;
static CUresult (*current_context)(uint64_t *);
static CUresult (*primary_state)(int device, unsigned *flags, int *active);
static CUresult (*is_capturing[2])(CUstream, int *);
enum { PRIMARIES = 64 };
static _Atomic uint64_t primary[PRIMARIES];

int find_checks(void *driver) {
    *(void **)&parameter_info = dlsym(driver, "cuFuncGetParamInfo");
    *(void **)&current_context = dlsym(driver, "cuCtxGetCurrent");
    *(void **)&primary_state = dlsym(driver, "cuDevicePrimaryCtxGetState");
    *(void **)&is_capturing[0] = dlsym(driver, "cuStreamIsCapturing");
    *(void **)&is_capturing[1] = dlsym(driver, "cuStreamIsCapturing_ptsz");
    return current_context ? 0 : -1;
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

CUresult before_call(int call, made_call_t *made, int count, const argument_t *arguments) {
    for (int i = 0; i < count; i++)
        if ((arguments[i].kind == 'h' || arguments[i].kind == 'd') && !handle_known(arguments[i].bytes, made->words[i]))
            return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < count; i++)
        if (arguments[i].kind == 'k') {
            const CUresult result = check_launch(made, i, i + 1 < count ? i + 1 : -1);
            if (result) return result;
        }
    for (int i = 0; i < count; i++) /* gone before the driver may give its value to another */
        if (arguments[i].kind == 'd') handle_ends(arguments[i].bytes, made->words[i]);
    (void)call, (void)is_capturing;
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
