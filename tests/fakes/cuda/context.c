/* Initialisation, devices, contexts, names of errors. */
#include "world.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

CUresult cuDeviceGraphMemTrim(CUdevice device);

#define DEFAULTS 1024, 1 << 20, 8 << 20 /* stack, printf buffer, heap; part of a context's memory */
static pid_t initialised;
static context_t primary[DEVICES];
static int retained[DEVICES];
static _Thread_local context_t *stack[16];
static _Thread_local int depth;

int ready(void) { return initialised == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
context_t *current(void) { return depth ? stack[depth - 1] : NULL; }

CUresult cuInit(unsigned flags) {
    (void)flags;
    /* a forked child cannot use the driver */
    if (initialised && initialised != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    me();
    CUresult joined = mps_join();
    if (joined) return joined;
    initialised = getpid();
    world()->process[me()].restricted = getenv("CUDA_VISIBLE_DEVICES") != NULL;
    return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int *version) { return *version = world()->version, CUDA_SUCCESS; }
/* Writes the devices that CUDA_VISIBLE_DEVICES names by index, all if it is unset, and returns how many they are.
 * As with the real driver, the first that does not exist ends the list. */
static int visible(int devices[DEVICES]) {
    const char *named = getenv("CUDA_VISIBLE_DEVICES");
    int all[DEVICES], of_server = mps_devices(all), count = 0;
    if (of_server < 0)
        for (of_server = 0; of_server < world()->devices; of_server++) all[of_server] = of_server;
    if (!named)
        while (count < of_server) devices[count] = all[count], count++;
    while (named && *named && count < DEVICES) {
        char *end;
        /* By index, or by UUID, of which only the last digits differ here. */
        const size_t length = strcspn(named, ",");
        const int by_uuid = length > 12 && !strncmp(named, "GPU-", 4);
        long device = by_uuid ? strtol(named + length - 12, &end, 16) - 1 : strtol(named, &end, 10);
        if (end == named || device < 0 || device >= of_server) break;
        devices[count++] = all[device];
        named = *end == ',' ? end + 1 : "";
    }
    return count;
}
CUresult cuDeviceGetCount(int *count) {
    int devices[DEVICES];
    return *count = visible(devices), ready();
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    int devices[DEVICES];
    if (ordinal < 0 || ordinal >= visible(devices)) return CUDA_ERROR_INVALID_DEVICE;
    return *device = devices[ordinal], ready();
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    return snprintf(name, (size_t)length, "Fake GPU %d", device), CUDA_SUCCESS;
}
/* GPU-00000000-0000-0000-0000-0000000000NN, where NN is the index plus 1. */
CUresult cuDeviceGetUuid(void *uuid, CUdevice device) {
    memset(uuid, 0, 16);
    ((unsigned char *)uuid)[15] = (unsigned char)(gpu_of(device) + 1);
    return CUDA_SUCCESS;
}
/* Of the GPU that the device was at first: as a real one it stays so after a restore to another GPU
 * (NVIDIA/cuda-checkpoint, issue 48). */
CUresult cuDeviceGetPCIBusId(char *to, int length, CUdevice device) {
    return snprintf(to, (size_t)length, "00000000:%02X:00.0", (unsigned)device + 1), CUDA_SUCCESS;
}
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *name) {
    unsigned bus;
    if (sscanf(name, "%*x:%x", &bus) != 1 || !bus || (int)bus > world()->devices) return CUDA_ERROR_INVALID_VALUE;
    return *device = (int)bus - 1, CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }
enum { ATTRIBUTE_PAGEABLE = 88 };
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)device;
    const char *processors = getenv("KERF_FAKE_CUDA_SMS");
    if (attribute == ATTRIBUTE_PROCESSORS) return *value = mps_processors(processors ? atoi(processors) : 1), CUDA_SUCCESS;
    if (attribute == ATTRIBUTE_PAGEABLE) return *value = getenv("KERF_FAKE_CUDA_PAGEABLE") != NULL, CUDA_SUCCESS;
    return *value = attribute == ATTRIBUTE_THREADS ? 1024 : 1, CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    (void)device;
    return *bytes = world()->memory_bytes, CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    (void)device;
    return *bytes = world()->memory_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)world()->memory_bytes, CUDA_SUCCESS;
}

static CUresult opened(int device) { return take(device, world()->context_bytes); }
static void closed(int device, context_t *context) {
    give(device, context->taken + world()->context_bytes);
    context->taken = 0;
}

static pthread_mutex_t retaining = PTHREAD_MUTEX_INITIALIZER;
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = ready();
    pthread_mutex_lock(&retaining);
    if (!result && !retained[device]) result = opened(device);
    if (!result && ++retained[device] == 1) primary[device] = (context_t){device, 1, {DEFAULTS}, 0};
    pthread_mutex_unlock(&retaining);
    return *context = &primary[device], result;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&retaining);
    if (!retained[device]) result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--retained[device] == 0) closed(device, &primary[device]);
    pthread_mutex_unlock(&retaining);
    return result;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    if (retained[device]) closed(device, &primary[device]);
    cuDeviceGraphMemTrim(device);
    return retained[device] = 0, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    return *flags = 0, *active = retained[device] > 0, CUDA_SUCCESS;
}
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    CUresult result = ready();
    context_t *made;
    (void)flags;
    if (!result) result = opened(device);
    if (result) return result;
    made = calloc(1, sizeof *made);
    *made = (context_t){device, 0, {DEFAULTS}, 0};
    stack[depth++] = made;
    return *context = made, CUDA_SUCCESS;
}
CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}
CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    (void)affinity;
    (void)count;
    return cuCtxCreate_v2(context, flags, device);
}
CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    (void)parameters;
    return cuCtxCreate_v2(context, flags, device);
}
CUresult cuCtxDestroy_v2(CUcontext context) {
    context_t *gone = context;
    enter();
    /* work in flight is finished */
    wait_for(WORK, gone->device, world()->process[me()].queue[gone->device].submitted, NEVER);
    closed(gone->device, gone);
    if (current() == gone) depth--;
    free(gone);
    return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }
static uint64_t of_setting(int limit, uint64_t value) {
    const uint64_t first[] = {DEFAULTS};
    int processors, each;
    cuDeviceGetAttribute(&processors, ATTRIBUTE_PROCESSORS, 0);
    cuDeviceGetAttribute(&each, ATTRIBUTE_THREADS, 0);
    return value <= first[limit] ? 0 : rounded((value - first[limit]) * (limit == LIMIT_STACK
        ? (uint64_t)processors * (uint64_t)each : 1));
}
CUresult cuCtxSetLimit(int limit, size_t value) {
    context_t *c = current();
    uint64_t before, then;
    CUresult result = CUDA_SUCCESS;
    if (!c) return CUDA_ERROR_INVALID_CONTEXT;
    if (limit < 0 || limit > LIMIT_HEAP) return CUDA_SUCCESS;
    before = of_setting(limit, c->limit[limit]), then = of_setting(limit, value);
    if (then > before) result = take(c->device, then - before);
    else give(c->device, before - then);
    if (result) return result;
    c->taken += then - before;
    return c->limit[limit] = value, CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(size_t *value, int limit) {
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    return *value = limit < 0 || limit > LIMIT_HEAP ? 0 : current()->limit[limit], CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    stack[depth++] = context;
    return ready();
}
CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context) *context = stack[depth];
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    if (depth) depth--;
    if (context) stack[depth++] = context;
    return ready();
}
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = current(), ready(); }
CUresult cuCtxGetDevice(CUdevice *device) {
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    return *device = current()->device, ready();
}
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    return *can = device != peer && device < world()->devices && peer < world()->devices, ready();
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    (void)flags;
    return !peer || !current() || peer == current() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult cuCtxDisablePeerAccess(CUcontext peer) { return cuCtxEnablePeerAccess(peer, 0); }
CUresult cuGetErrorString(CUresult error, const char **text) {
    return *text = error ? "an error" : "no error", CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) {
    return *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error ? "CUDA_ERROR"
        : "CUDA_SUCCESS", CUDA_SUCCESS;
}

/* Green contexts, as the documentation of CUDA 13 describes them: each retains the primary context of its device, and
 * has the primary context's memory. Its streams belong to the context that represents it. */
typedef struct { context_t context; } green_t;
CUresult cuDeviceGetDevResource(CUdevice device, void *resource, int type) {
    (void)device;
    (void)type;
    return memset(resource, 0, 16), CUDA_SUCCESS;
}
CUresult cuDevResourceGenerateDesc(void **to, void *resources, unsigned count) {
    (void)resources;
    (void)count;
    return *to = NULL, CUDA_SUCCESS;
}
CUresult cuGreenCtxCreate(CUgreen *to, void *resources, CUdevice device, unsigned flags) {
    green_t *green = calloc(1, sizeof *green);
    CUcontext context;
    CUresult result = cuDevicePrimaryCtxRetain(&context, device);
    (void)resources;
    (void)flags;
    green->context = (context_t){device, 0, {DEFAULTS}, 0};
    return *to = green, result;
}
CUresult cuCtxFromGreenCtx(CUcontext *to, CUgreen green) { return *to = &((green_t *)green)->context, CUDA_SUCCESS; }
CUresult cuGreenCtxDestroy(CUgreen which) {
    green_t *green = which;
    const int device = green->context.device;
    enter();
    wait_for(WORK, device, world()->process[me()].queue[device].submitted, NEVER);
    if (current() == &green->context) depth--;
    return cuDevicePrimaryCtxRelease_v2(device); /* its streams may still point to the green context */
}
CUresult cuGreenCtxStreamCreate(CUstream *to, CUgreen green, unsigned flags, int priority) {
    stream_t *stream = calloc(1, sizeof *stream);
    (void)flags;
    (void)priority;
    stream->context = &((green_t *)green)->context;
    return *to = stream, ready();
}
