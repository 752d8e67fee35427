/* Streams, events, launches. */
#include "world.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { char name[40]; uint64_t calls; } per_thread[32];

void count_call(const char *name) {
    for (int i = 0; i < 32; i++) {
        if (!per_thread[i].name[0]) strncpy(per_thread[i].name, name, sizeof per_thread[i].name - 1);
        if (strcmp(per_thread[i].name, name)) continue;
        per_thread[i].calls++;
        return;
    }
}
uint64_t kerf_fake_calls(const char *name) {
    for (int i = 0; i < 32; i++)
        if (!strcmp(per_thread[i].name, name)) return per_thread[i].calls;
    return 0;
}
uint64_t kerf_fake_gpu_ns(int gpu, int pid) {
    uint64_t sum = 0;
    lock();
    if (!pid) sum = world()->process[me()].queue[world()->process[me()].device_on[gpu]].gpu_ns;
    else
        for (int p = 0; p < PROCESSES; p++)
            if (world()->process[p].used && world()->process[p].pid == pid)
                sum = world()->process[p].queue[world()->process[p].device_on[gpu]].gpu_ns;
    unlock();
    return sum;
}

static stream_t *still_joined(stream_t *s) {
    if (s->joined && s->joined->capture != s->joined_for) s->joined = NULL, s->capture = NULL;
    return s;
}
stream_t *stream_of(CUstream stream) {
    static _Thread_local stream_t otherwise;
    if ((uintptr_t)stream > 2 && ((stream_t *)stream)->gone)
        fprintf(stderr, "a stream is used that has been destroyed\n"), abort();
    if ((uintptr_t)stream > 2) return still_joined(stream);
    if (!current() || ready()) return NULL;
    otherwise.context = current();
    return &otherwise;
}

CUresult cuStreamCreate(CUstream *to, unsigned flags) {
    stream_t *stream = calloc(1, sizeof *stream);
    while_locked();
    (void)flags;
    stream->context = current();
    if (!current() || ready()) return free(stream), CUDA_ERROR_INVALID_CONTEXT;
    return *to = stream, CUDA_SUCCESS;
}
CUresult cuStreamCreateWithPriority(CUstream *to, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(to, flags);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
    while_locked();
    return stream_of(stream)->gone = 1, CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

static int broken; /* after a fault */
void kerf_fake_break(void) { broken = 1; }

static stream_t *event_captured[EVENTS]; /* the stream whose capture recorded it last */

static CUresult work_done(int device, uint64_t seq) {
    enter();
    while_locked();
    wait_for(WORK, device, seq, NEVER);
    pools_waited_for();
    return broken ? CUDA_ERROR_ILLEGAL_ADDRESS : mps_failed();
}
static uint64_t submitted(int device) { return world()->process[me()].queue[device].submitted; }
CUresult cuStreamSynchronize(CUstream stream) {
    stream_t *s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return work_done(s->context->device, submitted(s->context->device));
}
CUresult cuCtxSynchronize(void) {
    return current() ? work_done(current()->device, submitted(current()->device)) : CUDA_ERROR_INVALID_CONTEXT;
}
/* The answer "not ready" costs a microsecond, so that time passes for a client that polls. */
static CUresult asked(int device, uint64_t seq) {
    enter();
    while_locked();
    if (world()->process[me()].queue[device].completed >= seq) return CUDA_SUCCESS;
    spend(1000);
    return CUDA_ERROR_NOT_READY;
}
CUresult cuStreamQuery(CUstream stream) {
    stream_t *s = stream_of(stream);
    return s ? asked(s->context->device, submitted(s->context->device)) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    stream_t *s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    return *context = s->context, CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    stream_t *s = stream_of(stream), *from = event_captured[(uintptr_t)event - 1];
    (void)flags;
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    if (from && !s->capture) s->joined = from, s->capture = s->joined_for = from->capture;
    return CUDA_SUCCESS; /* a process's work runs in order anyway */
}
CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    enter(); /* before a launch: what the interposer decides then is in the order of the clock */
    stream_t *s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    return *status = s->capture != NULL, CUDA_SUCCESS;
}
/* An event query of any thread invalidates a capture in the global mode (0), unless that thread is in the relaxed
 * mode (2). */
static int globally, spoilt;
static _Thread_local int own_mode;
CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    const int before = own_mode;
    own_mode = *mode;
    return *mode = before, CUDA_SUCCESS;
}
static int spoils(void) { return globally && own_mode != 2 && (spoilt = 1); }
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    stream_t *s = stream_of(stream);
    if ((uintptr_t)stream <= 2 || s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    globally += mode == 0;
    spoilt = 0;
    return s->capture = calloc(1, sizeof(graph_t)), CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    stream_t *s = stream_of(stream);
    *graph = s->capture;
    s->capture = NULL;
    globally = 0;
    if (spoilt) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

/* An event's handle is its index plus 1; its device is that of its last record. It belongs to the context of its
 * creation. */
static uint8_t event_device[EVENTS];
static context_t *event_context[EVENTS];
static event_t *event_at(CUevent event) { return &world()->process[me()].event[(uintptr_t)event - 1]; }
CUresult cuEventCreate(CUevent *to, unsigned flags) {
    event_t *events = world()->process[me()].event;
    while_locked();
    (void)flags;
    for (uintptr_t i = 0; i < EVENTS; i++) {
        if (__atomic_exchange_n(&events[i].used, 1, __ATOMIC_SEQ_CST)) continue;
        events[i].done_ns = 1;
        event_context[i] = current();
        event_captured[i] = NULL;
        return *to = (CUevent)(i + 1), ready();
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuEventDestroy_v2(CUevent event) {
    while_locked();
    event_at(event)->recording++;
    return event_at(event)->used = 0, CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
    stream_t *s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    while_locked();
    if (broken) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (s->context != event_context[(uintptr_t)event - 1]) return CUDA_ERROR_INVALID_HANDLE;
    count_call("cuEventRecord");
    event_captured[(uintptr_t)event - 1] = s->capture ? s->joined ? s->joined : s : NULL;
    if (s->capture) return CUDA_SUCCESS;
    s->after_event = 1;
    event_at(event)->done_ns = 0;
    event_at(event)->recording++;
    if ((uintptr_t)stream == 2 && last_of_thread <= world()->process[me()].queue[s->context->device].completed)
        return event_at(event)->done_ns = world()->now_ns, CUDA_SUCCESS;
    event_device[(uintptr_t)event - 1] = (uint8_t)s->context->device;
    submit(s->context->device, world()->event_ns, (int)((uintptr_t)event - 1), 0);
    return CUDA_SUCCESS;
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    (void)flags;
    return cuEventRecord(event, stream);
}
CUresult cuEventQuery(CUevent event) {
    if (spoils()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (broken) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (event_captured[(uintptr_t)event - 1]) return CUDA_ERROR_CAPTURED_EVENT;
    enter();
    while_locked();
    if (event_at(event)->done_ns) return CUDA_SUCCESS;
    spend(1000);
    return CUDA_ERROR_NOT_READY;
}
CUresult cuEventSynchronize(CUevent event) {
    if (spoils()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    enter();
    while (!event_at(event)->done_ns) {
        int device = event_device[(uintptr_t)event - 1];
        wait_for(WORK, device, world()->process[me()].queue[device].completed + 1, NEVER);
    }
    pools_waited_for();
    return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
    if (!event_at(from)->done_ns || !event_at(to)->done_ns) return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(int64_t)(event_at(to)->done_ns - event_at(from)->done_ns) / 1e6);
    return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to) { return cuEventElapsedTime(ms, from, to); }

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    (void)image;
    while_locked();
    if (getenv("KERF_FAKE_CUDA_JIT") && !dlopen("libnvidia-ptxjitcompiler.so.1", RTLD_LAZY))
        return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    return *module = calloc(1, 8), ready();
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    (void)count;
    (void)options;
    (void)values;
    return cuModuleLoadData(module, image);
}
CUresult cuModuleUnload(CUmodule module) { return free(module), CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *to, CUmodule module, const char *name) {
    function_t *function = calloc(1, sizeof *function);
    (void)module;
    function->mixes = !strcmp(name, "mix"), function->meets = !strcmp(name, "meet");
    function->rallies = !strcmp(name, "rally");
    function->loaded = !getenv("KERF_FAKE_CUDA_LAZY");
    function->declared = !strncmp(name, "ns_", 3) || !strncmp(name, "awaits_", 7);
    if (!strncmp(name, "awaits_", 7)) function->awaits = strtoull(name + 7, NULL, 10),
        function->ns = 3600 * UINT64_C(1000000000);
    else if (function->declared) function->ns = strtoull(name + 3, NULL, 10);
    else if (!strcmp(name, "fault")) function->faults = function->declared = 1;
    else if (strcmp(name, "work") && !function->mixes && !function->meets && !function->rallies) return free(function), CUDA_ERROR_NOT_FOUND;
    return *to = function, CUDA_SUCCESS;
}
/* "work" has one parameter, "mix", "meet" and "rally" have three, all words. */
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
    const function_t *of = function;
    const size_t count = of->declared || of->faults ? 0 : of->mixes || of->meets || of->rallies ? 3 : 1;
    if (index >= count) return CUDA_ERROR_INVALID_VALUE;
    *offset = index * 8;
    if (bytes) *bytes = 8;
    return CUDA_SUCCESS;
}

/* Libraries, which belong to no context. A kernel of one becomes a function of the current context. */
CUresult cuLibraryLoadData(void **library, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options,
    void **values, unsigned count) {
    (void)code, (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return *library = calloc(1, 8), ready();
}
CUresult cuLibraryUnload(void *library) { return free(library), CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    return cuModuleGetFunction(kernel, library, name);
}
CUresult cuKernelGetFunction(CUfunction *function, void *kernel) {
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    return *function = kernel, CUDA_SUCCESS;
}

/* Loading code waits for the work of the device, as the driver may (CUDA's guide, "Lazy Loading", on concurrency). */
static void load(function_t *function, int device) {
    if (__atomic_load_n(&function->loaded, __ATOMIC_ACQUIRE)) return;
    enter();
    wait_for(WORK, device, world()->process[me()].queue[device].submitted, NEVER);
    __atomic_store_n(&function->loaded, 1, __ATOMIC_RELEASE);
}

static uint64_t time_of(const function_t *function, void **params) {
    return function->declared ? function->ns : *(uint64_t *)params[0];
}
static _Thread_local void (*at_launch)(void);
void kerf_fake_at_launch(void (*function)(void)) { at_launch = function; }
static CUresult start(function_t *function, CUstream stream, void **params) {
    stream_t *s = stream_of(stream);
    void (*call)(void) = at_launch;
    at_launch = NULL;
    if (call) call();
    at_launch = call;
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    if (mps_failed()) return mps_failed();
    if (function->faults) return mps_fault(), broken = 1, CUDA_SUCCESS; /* the next call that waits tells */
    if (s->capture && function->mixes) graph_mixes(s->capture, *(uint64_t *)params[1], *(uint64_t *)params[2]);
    if (s->capture) return s->capture->ns += time_of(function, params), CUDA_SUCCESS;
    load(function, s->context->device);
    s->after_event = 0;
    enter();
    if (world()->launch_ns) spend(world()->launch_ns);
    if (function->mixes) {
        uint64_t *word = word_at(*(uint64_t *)params[1]);
        if (word) *word = *word * MIX + *(uint64_t *)params[2];
    }
    if (function->meets) {
        submit_meeting(s->context->device, *(uint64_t *)params[0], *(uint64_t *)params[1], *(uint64_t *)params[2]);
        return CUDA_SUCCESS;
    }
    if (function->rallies) {
        submit_rally(s->context->device, *(uint64_t *)params[0], *(uint64_t *)params[1], *(uint64_t *)params[2]);
        return CUDA_SUCCESS;
    }
    submit(s->context->device, time_of(function, params), -1, function->awaits);
    return CUDA_SUCCESS;
}
#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define UNUSED (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared
CUresult cuLaunchKernel(CUfunction f, GRID, CUstream stream, void **params, void **extra) {
    UNUSED, (void)extra;
    return start(f, stream, params);
}
CUresult cuLaunchKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params, void **extra) {
    UNUSED, (void)extra, count_call("cuLaunchKernel");
    return start(f, stream, params);
}
CUresult cuLaunchCooperativeKernel(CUfunction f, GRID, CUstream stream, void **params) {
    return UNUSED, start(f, stream, params);
}
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, GRID, CUstream stream, void **params) {
    UNUSED, count_call("cuLaunchCooperativeKernel");
    return start(f, stream, params);
}
CUresult cuLaunchKernelEx(const launch_config_t *config, CUfunction f, void **params, void **extra) {
    const stream_t *s = stream_of(config->stream);
    (void)extra;
    for (unsigned i = 0; i < config->attr_count; i++)
        if (config->attrs[i].id == LAUNCH_PROGRAMMATIC_SERIALIZATION && config->attrs[i].value.allowed && s
            && s->after_event)
            count_call("overlap lost");
    return start(f, config->stream, params);
}
CUresult cuLaunchKernelEx_ptsz(const launch_config_t *config, CUfunction f, void **params, void **extra) {
    count_call("cuLaunchKernelEx");
    return cuLaunchKernelEx(config, f, params, extra);
}
CUresult cuLaunchCooperativeKernelMultiDevice(launch_params_t *list, unsigned count, unsigned flags) {
    (void)flags;
    for (unsigned i = 0; i < count; i++) start(list[i].function, list[i].stream, list[i].params);
    return CUDA_SUCCESS;
}
CUresult cuLaunch(CUfunction f) { return start(f, NULL, NULL); }
CUresult cuLaunchGrid(CUfunction f, int width, int height) { return (void)width, (void)height, start(f, NULL, NULL); }
CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    return (void)width, (void)height, start(f, stream, NULL);
}
static _Thread_local uint64_t next_takes_ns;
void kerf_fake_next_takes(uint64_t ns) { next_takes_ns = ns; }
static CUresult other_work(CUstream stream) {
    const uint64_t ns = next_takes_ns;
    stream_t *s = stream_of(stream);
    next_takes_ns = 0;
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    if (ns && !s->capture) submit_other(s->context->device, ns);
    return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
    function(data);
    return other_work(stream);
}
static void put_word(CUdeviceptr to, const void *from, size_t bytes) {
    uint64_t *word = word_at(to);
    if (word) memcpy(word, from, bytes < sizeof *word ? bytes : sizeof *word);
}
static void get_word(void *to, CUdeviceptr from, size_t bytes) {
    const uint64_t *word = word_at(from);
    if (word) memcpy(to, word, bytes < sizeof *word ? bytes : sizeof *word);
}
static void set_word(CUdeviceptr to, unsigned char value, size_t count) {
    uint64_t *word = word_at(to);
    if (word) memset(word, value, count < sizeof *word ? count : sizeof *word);
}
/* A copy takes the time that the device's bandwidth says, beside what kerf_fake_next_takes says. */
static CUresult copy_work(CUstream stream, size_t bytes, int from_device) {
    const uint64_t per_s = current() ? world()->host_bytes_per_s[current()->device][from_device] : 0;
    if (per_s) next_takes_ns += (uint64_t)((__uint128_t)bytes * 1000000000 / per_s);
    return other_work(stream);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return put_word(to, from, bytes), copy_work(stream, bytes, 0);
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return get_word(to, from, bytes), copy_work(stream, bytes, 1);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    const uint64_t *word = word_at(from);
    if (word) put_word(to, word, bytes);
    return other_work(stream);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes,
    CUstream stream) {
    return (void)there, (void)here, cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return set_word(to, value, count), other_work(stream);
}
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return set_word(to, value, count), other_work(NULL);
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags) {
    return (void)at, (void)value, (void)flags, other_work(stream);
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, void *operations, unsigned flags) {
    return (void)count, (void)operations, (void)flags, other_work(stream);
}
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return get_word(to, from, bytes), cuCtxSynchronize();
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return put_word(to, from, bytes), cuCtxSynchronize();
}

#define TWIN(name, parameters, arguments) CUresult name##_ptsz parameters { return count_call(#name), name arguments; }
TWIN(cuStreamSynchronize, (CUstream stream), (stream))
TWIN(cuStreamQuery, (CUstream stream), (stream))
TWIN(cuStreamGetCtx, (CUstream stream, CUcontext *context), (stream, context))
TWIN(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), (stream, event, flags))
TWIN(cuStreamIsCapturing, (CUstream stream, int *status), (stream, status))
TWIN(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode))
TWIN(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))
TWIN(cuEventRecord, (CUevent event, CUstream stream), (event, stream))
TWIN(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), (event, stream, flags))
CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) { return cuMemcpyDtoH_v2(to, from, bytes); }
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes) {
    return cuMemcpyHtoD_v2(to, from, bytes);
}
