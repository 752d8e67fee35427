/* Hooks of cuInit and of contexts. context_accounting.c charges the memory that contexts take. */
#include "kerf.h"

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY
typedef CUresult (*init_t)(unsigned);
typedef CUresult (*retain_t)(CUcontext *, CUdevice);
typedef CUresult (*device_t)(CUdevice);
typedef CUresult (*create_v2_t)(CUcontext *, unsigned, CUdevice);
typedef CUresult (*create_v3_t)(CUcontext *, void *, int, unsigned, CUdevice);
typedef CUresult (*create_v4_t)(CUcontext *, void *, unsigned, CUdevice);
typedef CUresult (*destroy_t)(CUcontext);

EXPORT CUresult cuInit(unsigned flags) {
    if (!attached()) return REFUSED;
    return REAL(init_t, "cuInit")(flags);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    uint64_t paid = 0;
    CUresult result;
    int gpu;
    if (!present()) return REFUSED;
    gpu = gpu_of_device(device);
    if (is_hidden(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (gpu >= 0 && !context_reserve(gpu, 1, &paid)) return CUDA_ERROR_OUT_OF_MEMORY;
    result = REAL(retain_t, "cuDevicePrimaryCtxRetain")(context, device);
    if (gpu >= 0 && (result || !context_record(*context, gpu, 1, paid))) release(gpu, paid);
    return result;
}

#define RELEASES(name, always)                                                                  \
    EXPORT CUresult name(CUdevice device) {                                                     \
        CUresult result;                                                                        \
        CUcontext ending;                                                                       \
        unfinished_t left = {0, 0, 0, 0};                                                          \
        if (!present()) return REFUSED;                                                        \
        ending = context_primary(gpu_of_device(device), always);                                \
        if (ending) left = timing_context_ending(ending);                                       \
        result = REAL(device_t, #name)(device);                                                 \
        timing_context_ended(left);                                                             \
        if (!result) context_released(gpu_of_device(device), always);                           \
        return result;                                                                          \
    }
RELEASES(cuDevicePrimaryCtxRelease, 0)
RELEASES(cuDevicePrimaryCtxRelease_v2, 0)
RELEASES(cuDevicePrimaryCtxReset, 1)
RELEASES(cuDevicePrimaryCtxReset_v2, 1)

#define CREATES(name, type, parameters, arguments)                                              \
    EXPORT CUresult name parameters {                                                           \
        uint64_t paid = 0;                                                                      \
        CUresult result;                                                                        \
        int gpu;                                                                                \
        if (!present()) return REFUSED;                                                        \
        gpu = gpu_of_device(device);                                                            \
        if (is_hidden(device)) return CUDA_ERROR_INVALID_DEVICE;                                \
        if (gpu >= 0 && !context_reserve(gpu, 0, &paid)) return CUDA_ERROR_OUT_OF_MEMORY;       \
        result = REAL(type, #name) arguments;                                                   \
        if (gpu >= 0 && (result || !context_record(*context, gpu, 0, paid))) release(gpu, paid);\
        return result;                                                                          \
    }
CREATES(cuCtxCreate, create_v2_t, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATES(cuCtxCreate_v2, create_v2_t, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATES(cuCtxCreate_v3, create_v3_t, (CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device),
    (context, affinity, count, flags, device))
CREATES(cuCtxCreate_v4, create_v4_t, (CUcontext *context, void *parameters, unsigned flags, CUdevice device),
    (context, parameters, flags, device))

#define DESTROYS(name)                                                                          \
    EXPORT CUresult name(CUcontext context) {                                                   \
        CUresult result;                                                                        \
        unfinished_t left = {0, 0, 0, 0};                                                          \
        if (!present()) return REFUSED;                                                        \
        if (context) left = timing_context_ending(context);                                     \
        result = REAL(destroy_t, #name)(context);                                               \
        timing_context_ended(left);                                                             \
        if (!result && context) context_destroyed(context);                                     \
        return result;                                                                          \
    }
DESTROYS(cuCtxDestroy)
DESTROYS(cuCtxDestroy_v2)
