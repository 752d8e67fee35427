/* Hooks of green contexts. A green context is a part of the GPU's multiprocessors with the memory of the primary
 * context, which it retains (documentation of cuGreenCtxCreate). So the primary context is charged, once. The CUcontext
 * that represents a green context (cuCtxFromGreenCtx), which is also that of its streams (cuStreamGetCtx), has a
 * timeline of its own. */
#include "kerf.h"

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY
typedef CUresult (*green_create_t)(CUgreen *, void *, CUdevice, unsigned);
typedef CUresult (*green_destroy_t)(CUgreen);
typedef CUresult (*from_green_t)(CUcontext *, CUgreen);
typedef CUresult (*retain_t)(CUcontext *, CUdevice);
typedef CUresult (*device_t)(CUdevice);

/* The primary context of a device on which a context exists. */
static CUcontext primary_of(CUdevice device) {
    CUcontext context = NULL;
    if (REAL(retain_t, "cuDevicePrimaryCtxRetain")(&context, device)) return NULL;
    REAL(device_t, "cuDevicePrimaryCtxRelease_v2")(device);
    return context;
}

/* Its CUcontext, which its entry in the table has in place of bytes; 0: none. */
static uint64_t context_of(CUgreen green) {
    CUcontext context;
    return REAL(from_green_t, "cuCtxFromGreenCtx")(&context, green) ? 0 : (uint64_t)(uintptr_t)context;
}

EXPORT CUresult cuGreenCtxCreate(CUgreen *to, void *resources, CUdevice device, unsigned flags) {
    uint64_t paid = 0;
    CUcontext primary;
    CUresult result;
    int gpu;
    if (!present()) return REFUSED;
    gpu = gpu_of_device(device);
    if (is_hidden(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (gpu >= 0 && !context_reserve(gpu, 1, &paid)) return CUDA_ERROR_OUT_OF_MEMORY;
    result = REAL(green_create_t, "cuGreenCtxCreate")(to, resources, device, flags);
    if (gpu < 0) return result;
    primary = result ? NULL : primary_of(device);
    if (!primary || !context_record(primary, gpu, 1, paid)) release(gpu, paid);
    if (primary) table_put(GREEN, (uint64_t)(uintptr_t)*to, gpu, context_of(*to), (uint64_t)(uintptr_t)primary, 1);
    return result;
}

/* Memory that was allocated while the green context was current belongs to the primary context from now on. */
EXPORT CUresult cuGreenCtxDestroy(CUgreen green) {
    unfinished_t left = {0, 0, 0, 0}, left_primary = {0, 0, 0, 0};
    CUcontext context = NULL, primary;
    CUresult result;
    entry_t entry;
    int known;
    if (!present()) return REFUSED;
    known = table_remove(GREEN, (uint64_t)(uintptr_t)green, &entry);
    if (known) context = (CUcontext)(uintptr_t)entry.bytes;
    primary = known ? context_primary(entry.gpu, 0) : NULL; /* it ends with this green context */
    if (context) left = timing_context_ending(context);
    if (primary) left_primary = timing_context_ending(primary);
    result = REAL(green_destroy_t, "cuGreenCtxDestroy")(green);
    timing_context_ended(left);
    timing_context_ended(left_primary);
    if (!known) return result;
    if (result) return table_put(GREEN, entry.key, entry.gpu, entry.bytes, entry.context, 1), result;
    if (context) table_move_context((uint64_t)(uintptr_t)context, entry.context);
    context_released(entry.gpu, 0);
    return result;
}
