/* Hooks by which a program finds devices, for a container that could open GPUs which are not its own: it sees its own
 * alone, in the order of the orders. So a program that starts after a move sees the same devices as before it. Numbers of
 * devices are the driver's: a program that makes them up gets no context on a hidden one (context.c). */
#include "kerf.h"

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY
typedef CUresult (*count_t)(int *);
typedef CUresult (*get_t)(CUdevice *, int);
typedef CUresult (*by_bus_t)(CUdevice *, const char *);
typedef CUresult (*uuid_of_t)(void *, CUdevice);

EXPORT CUresult cuDeviceGetCount(int *count) {
    CUresult result;
    if (!attached()) return REFUSED;
    result = REAL(count_t, "cuDeviceGetCount")(count);
    if (!result && hides_others()) {
        const int all = *count;
        *count = 0;
        for (int ordinal = 0; ordinal < all; ordinal++) {
            CUdevice device;
            *count += !REAL(get_t, "cuDeviceGet")(&device, ordinal) && !is_hidden(device);
        }
    }
    return result;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    get_t get = REAL(get_t, "cuDeviceGet");
    int all;
    CUresult result;
    if (!attached()) return REFUSED;
    if (!hides_others()) return get(device, ordinal);
    result = REAL(count_t, "cuDeviceGetCount")(&all);
    if (result) return result;
    /* Those of the orders that the driver has, in the order of the orders. */
    for (int gpu = 0; ordinal >= 0 && gpu < KERF_MAX_GPUS; gpu++) {
        for (int other = 0; other < all; other++) {
            CUdevice found;
            if (get(&found, other) || gpu_of_device(found) != gpu) continue;
            if (!ordinal--) return *device = found, CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *name) {
    CUdevice found;
    CUresult result;
    if (!attached()) return REFUSED;
    result = REAL(by_bus_t, "cuDeviceGetByPCIBusId")(&found, name);
    if (!result && is_hidden(found)) return CUDA_ERROR_INVALID_DEVICE;
    if (!result) *device = found;
    return result;
}

#define UUID_OF(name)                                                             \
    EXPORT CUresult name(void *uuid, CUdevice device) {                           \
        if (!attached()) return REFUSED;                                          \
        return is_hidden(device) ? CUDA_ERROR_INVALID_DEVICE : REAL(uuid_of_t, #name)(uuid, device); \
    }
UUID_OF(cuDeviceGetUuid)
UUID_OF(cuDeviceGetUuid_v2)
