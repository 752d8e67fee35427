/* cuCtxSetLimit: charges the memory that a context takes for a setting. The driver allocates the stack for every
 * thread that the GPU can hold, and the heap and the printf buffer with the given size. The initial settings are
 * part of the context's own charge. If a setting is lowered, it stays charged until the context ends, because the
 * driver may keep the memory. */
#include "kerf.h"

typedef CUresult (*set_t)(int, size_t);
typedef CUresult (*get_t)(size_t *, int);
typedef CUresult (*device_attribute_t)(int *, int, CUdevice);
enum { MAX_THREADS = 1 << 19 }; /* more than any GPU has */

static uint64_t threads_of(CUdevice device) {
    device_attribute_t real = REAL(device_attribute_t, "cuDeviceGetAttribute");
    int processors, each;
    if (real(&processors, ATTRIBUTE_PROCESSORS, device) || real(&each, ATTRIBUTE_THREADS, device)) return MAX_THREADS;
    return (uint64_t)processors * (uint64_t)each;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    set_t real = REAL(set_t, "cuCtxSetLimit");
    uint64_t context, units, more;
    size_t now;
    CUresult result;
    int gpu;
    if (!present()) return CUDA_ERROR_SYSTEM_NOT_READY;
    gpu = current_gpu();
    if (limit < LIMIT_STACK || limit > LIMIT_HEAP || gpu < 0) return real(limit, value);
    result = REAL(get_t, "cuCtxGetLimit")(&now, limit);
    if (result) return result;
    context = current_context();
    units = limit == LIMIT_STACK ? threads_of(device_of_stream(NULL)) : 1;
    if (!context_charge(context, gpu, limit, now, value, units, &more)) return CUDA_ERROR_OUT_OF_MEMORY;
    result = real(limit, value);
    if (result) context_refund(context, gpu, limit, more);
    return result;
}
