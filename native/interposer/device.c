/* Finds the GPU (index in the orders) of a device, a stream or the calling thread's context. -1: not a GPU of this
 * container. */
#include "kerf.h"
#include <string.h>

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), v, __ATOMIC_SEQ_CST)

typedef CUresult (*uuid_t_)(void *, CUdevice);
typedef CUresult (*get_device_t)(CUdevice *);
typedef CUresult (*get_context_t)(CUcontext *);
typedef CUresult (*push_t)(CUcontext);
typedef CUresult (*stream_context_t)(CUstream, CUcontext *);
enum { DEVICES = 64 };
static int known[DEVICES];       /* index in the orders plus 3; 0: not looked up yet */
static uint32_t moved;           /* how often the orders have named other GPUs, when `known` was begun */

int gpu_of_uuid(const unsigned char *uuid) {
    for (int i = 0; i < (int)orders->gpu_count && i < KERF_MAX_GPUS; i++)
        if (!memcmp(orders->gpu[i].uuid, uuid, 16)) return i;
    return -1;
}

int hides_others(void) { return orders && LOAD(orders->hides_others); }

/* A restore has moved what this process has on one GPU to another one. The device's number and the index in the orders
 * are as they were; both name the other GPU now. A process that was not moved with its container has none of its GPUs any
 * more. While the container is paused its GPUs are on their way: what is known stays. */
void devices_follow(void) {
    if (!hides_others() || LOAD(orders->paused) || LOAD(orders->moves) == LOAD(moved)) return;
    STORE(moved, LOAD(orders->moves));
    for (int d = 0; d < DEVICES; d++) STORE(known[d], 0);
    for (unsigned i = 0; signals && i < signals->gpu_count && i < KERF_MAX_GPUS; i++)
        memcpy(signals->gpu[i].uuid, orders->gpu[i].uuid, 16);
}

/* MIG instances have UUIDs of their own, which only the second version of the call returns. */
int gpu_of_device(CUdevice device) {
    unsigned char uuid[16];
    uuid_t_ second = REAL(uuid_t_, "cuDeviceGetUuid_v2"), first = REAL(uuid_t_, "cuDeviceGetUuid");
    if (device < 0 || device >= DEVICES) return -1;
    devices_follow();
    if (known[device]) return known[device] - 3;
    if (!second && !first) return -1;
    if ((second ? second : first)(uuid, device)) return -1;
    known[device] = gpu_of_uuid(uuid) + 3;
    return known[device] - 3;
}

int is_hidden(CUdevice device) { return hides_others() && gpu_of_device(device) < 0; }

static CUdevice device_here(void) {
    CUdevice device;
    return REAL(get_device_t, "cuCtxGetDevice")(&device) ? -1 : device;
}

int current_gpu(void) { return gpu_of_device(device_here()); }

uint64_t current_context(void) {
    CUcontext context;
    return REAL(get_context_t, "cuCtxGetCurrent")(&context) ? 0 : (uint64_t)(uintptr_t)context;
}

int context_enter(CUcontext context) {
    if ((uint64_t)(uintptr_t)context == current_context()) return 0;
    return !REAL(push_t, "cuCtxPushCurrent_v2")(context);
}
void context_leave(void) {
    CUcontext popped;
    REAL(get_context_t, "cuCtxPopCurrent_v2")(&popped);
}

/* The default streams belong to the current context. Another stream may belong to a context of another GPU. */
int stream_enter(CUstream stream) {
    CUcontext context;
    if ((uintptr_t)stream <= 2 || REAL(stream_context_t, "cuStreamGetCtx")(stream, &context)) return 0;
    return context_enter(context);
}
CUdevice device_of_stream(CUstream stream) {
    const int entered = stream_enter(stream);
    const CUdevice device = device_here();
    if (entered) context_leave();
    return device;
}
