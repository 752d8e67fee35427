/* Hooks of every call that starts work on the GPU. If launches are not timed, a hook is one read of the orders and a
 * jump. */
#include "timelines.h"

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY

/* The generation of the orders that were read, and what they say: in one word, so that no thread has one without the
 * other. */
enum { TIMING_BITS = 2 };
static uint64_t seen = UINT64_MAX;

static __attribute__((noinline)) int decide_timed(void) {
    uint64_t generation;
    int decided;
    if (!attached()) return ALWAYS_TIMED;
    generation = __atomic_load_n(&orders->generation, __ATOMIC_ACQUIRE);
    decided = must_time();
    __atomic_store_n(&seen, generation << TIMING_BITS | (uint64_t)decided, __ATOMIC_RELEASE);
    return decided;
}

/* Whether launches are timed. The orders are read again after the agent has changed their generation. */
static inline int is_timed(void) {
    const uint64_t word = __atomic_load_n(&seen, __ATOMIC_ACQUIRE);
    const int decided = LIKELY(orders && __atomic_load_n(&orders->generation, __ATOMIC_ACQUIRE) == word >> TIMING_BITS)
        ? (int)(word & ((1 << TIMING_BITS) - 1)) : decide_timed();
    return LIKELY(decided != TIMED_WITHOUT_AGENT) ? decided : !agent_is_alive(now_ns());
}

/* The key of an estimate: the function and the size of the launch. */
static inline uint64_t key_of(const void *function, uint64_t blocks) {
    return (uint64_t)(uintptr_t)function ^ blocks << 48;
}

#define TIMED(stream, key, call)                      \
    do {                                              \
        CUresult result_;                             \
        int token_;                                   \
        if (!attached()) return REFUSED;              \
        while_away();                                 \
        token_ = launch_begin(stream, key);           \
        if (token_ == NO_TIMELINE) return REFUSED;        \
        result_ = call;                               \
        if (token_ >= 0) launch_end(token_, result_, stream); \
        return result_;                               \
    } while (0)

#define SIZES unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define GIVEN gx, gy, gz, bx, by, bz, shared
#define BLOCKS ((uint64_t)gx * gy * gz)

typedef CUresult (*kernel_t)(CUfunction, SIZES, CUstream, void **, void **);
typedef CUresult (*kernel_ex_t)(const launch_config_t *, CUfunction, void **, void **);
typedef CUresult (*cooperative_t)(CUfunction, SIZES, CUstream, void **);
typedef CUresult (*graph_t)(CUexec, CUstream);

#define KERNEL(name, stream_)                                                                        \
    EXPORT CUresult name(CUfunction f, SIZES, CUstream stream, void **params, void **extra) {        \
        kernel_t real = REAL(kernel_t, #name);                                                       \
        if (LIKELY(!is_timed())) return real(f, GIVEN, stream, params, extra);                       \
        TIMED(stream_, key_of(f, BLOCKS), real(f, GIVEN, stream, params, extra));                    \
    }
KERNEL(cuLaunchKernel, stream)
KERNEL(cuLaunchKernel_ptsz, OWN(stream))

/* Whether the kernel may begin before the previous one on its stream has ended (programmatic dependent launch). Work
 * between the two, such as the record of an event, would make it wait for the end. */
static inline int overlaps_previous(const launch_config_t *config) {
    for (unsigned i = 0; config->attrs && i < config->attr_count; i++)
        if (config->attrs[i].id == LAUNCH_PROGRAMMATIC_SERIALIZATION && config->attrs[i].value.allowed) return 1;
    return 0;
}

#define KERNEL_EX(name, stream_)                                                                     \
    EXPORT CUresult name(const launch_config_t *config, CUfunction f, void **params, void **extra) { \
        kernel_ex_t real = REAL(kernel_ex_t, #name);                                                 \
        const unsigned *grid = config->grid;                                                         \
        if (LIKELY(!is_timed())) return real(config, f, params, extra);                              \
        if (overlaps_previous(config)) timing_overlaps();                                            \
        TIMED(stream_, key_of(f, (uint64_t)grid[0] * grid[1] * grid[2]), real(config, f, params, extra)); \
    }
KERNEL_EX(cuLaunchKernelEx, config->stream)
KERNEL_EX(cuLaunchKernelEx_ptsz, OWN(config->stream))

#define COOPERATIVE(name, stream_)                                                                   \
    EXPORT CUresult name(CUfunction f, SIZES, CUstream stream, void **params) {                      \
        cooperative_t real = REAL(cooperative_t, #name);                                             \
        if (LIKELY(!is_timed())) return real(f, GIVEN, stream, params);                              \
        TIMED(stream_, key_of(f, BLOCKS), real(f, GIVEN, stream, params));                           \
    }
COOPERATIVE(cuLaunchCooperativeKernel, stream)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, OWN(stream))

#define GRAPH(name, stream_)                                                                         \
    EXPORT CUresult name(CUexec graph, CUstream stream) {                                            \
        graph_t real = REAL(graph_t, #name);                                                         \
        if (LIKELY(!is_timed())) return real(graph, stream);                                         \
        TIMED(stream_, key_of(graph, 0), real(graph, stream));                                       \
    }
GRAPH(cuGraphLaunch, stream)
GRAPH(cuGraphLaunch_ptsz, OWN(stream))

/* Removed in CUDA 13. A launch on several GPUs would have to pass the gates of all of them at once. */
typedef CUresult (*multi_t)(launch_params_t *, unsigned, unsigned);
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(launch_params_t *list, unsigned count, unsigned flags) {
    multi_t real = REAL(multi_t, "cuLaunchCooperativeKernelMultiDevice");
    if (LIKELY(!is_timed()) || !count) return real(list, count, flags);
    if (count > 1) return CUDA_ERROR_NOT_SUPPORTED;
    TIMED(list[0].stream, key_of(list[0].function, list[0].grid[0]), real(list, count, flags));
}

typedef CUresult (*legacy_t)(CUfunction);
typedef CUresult (*legacy_grid_t)(CUfunction, int, int);
typedef CUresult (*legacy_async_t)(CUfunction, int, int, CUstream);
EXPORT CUresult cuLaunch(CUfunction f) {
    legacy_t real = REAL(legacy_t, "cuLaunch");
    if (LIKELY(!is_timed())) return real(f);
    TIMED(NULL, key_of(f, 1), real(f));
}
EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height) {
    legacy_grid_t real = REAL(legacy_grid_t, "cuLaunchGrid");
    if (LIKELY(!is_timed())) return real(f, width, height);
    TIMED(NULL, key_of(f, (uint64_t)width * (uint64_t)height), real(f, width, height));
}
EXPORT CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    legacy_async_t real = REAL(legacy_async_t, "cuLaunchGridAsync");
    if (LIKELY(!is_timed())) return real(f, width, height, stream);
    TIMED(stream, key_of(f, (uint64_t)width * (uint64_t)height), real(f, width, height, stream));
}

/* When the program waits for the GPU, the ends that are missing are recorded before, and the finished work is accounted
 * at once. When it asks, they are recorded afterwards: the answer must not be about them. */
#define ACCOUNTS(name, parameters, arguments, type, waits, before, after)              \
    EXPORT CUresult name parameters {                                                  \
        type real = REAL(type, #name);                                                 \
        CUresult result;                                                               \
        before;                                                                        \
        if (waits && !LIKELY(!is_timed()) && attached()) timing_waits();               \
        result = real arguments;                                                       \
        if (!LIKELY(!is_timed()) && attached()) timing_harvest();                      \
        pools_after(after);                                                            \
        return result;                                                                 \
    }
#define WAITS(name, parameters, arguments, type) \
    ACCOUNTS(name, parameters, arguments, type, 1, await_memory(), AFTER_WAIT)
#define ASKS(name, parameters, arguments, type) \
    ACCOUNTS(name, parameters, arguments, type, 0, if (cannot_ask()) return CUDA_ERROR_NOT_READY, AFTER_QUERY)
typedef CUresult (*wait_t)(void *);
typedef CUresult (*wait_all_t)(void);
typedef CUresult (*copy_t)(void *, CUdeviceptr, size_t);
WAITS(cuStreamSynchronize, (CUstream stream), (stream), wait_t)
WAITS(cuStreamSynchronize_ptsz, (CUstream stream), (stream), wait_t)
ASKS(cuStreamQuery, (CUstream stream), (stream), wait_t)
ASKS(cuStreamQuery_ptsz, (CUstream stream), (stream), wait_t)
WAITS(cuEventSynchronize, (CUevent event), (event), wait_t)
ASKS(cuEventQuery, (CUevent event), (event), wait_t)
WAITS(cuCtxSynchronize, (void), (), wait_all_t)
WAITS(cuCtxSynchronize_v2, (CUcontext context), (context), wait_t)
WAITS(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes), copy_t)
WAITS(cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes), copy_t)

/* Before a stream is destroyed or begins a capture (also by an event of a capturing stream). */
AFTER(cuStreamDestroy, (CUstream stream), (stream), timing_stream_ends(stream))
AFTER(cuStreamDestroy_v2, (CUstream stream), (stream), timing_stream_ends(stream))
AFTER(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), (stream, event, flags),
    timing_flush_stream(stream))
AFTER(cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned flags), (stream, event, flags),
    timing_flush_stream(stream))
AFTER(cuStreamBeginCapture, (CUstream stream), (stream), timing_flush_stream(NULL))
AFTER(cuStreamBeginCapture_ptsz, (CUstream stream), (stream), timing_flush_stream(NULL))
AFTER(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode), timing_flush_stream(NULL))
AFTER(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), (stream, mode), timing_flush_stream(NULL))
#define TO_GRAPHS(name) \
    AFTER(name, (CUstream stream, CUgraph graph, const CUnode *after, const void *edges, size_t count, int mode), \
        (stream, graph, after, edges, count, mode), timing_flush_stream(NULL))
TO_GRAPHS(cuStreamBeginCaptureToGraph)
TO_GRAPHS(cuStreamBeginCaptureToGraph_ptsz)
/* New in CUDA 13. A capture for a graphics queue's commands, and a capture that checks a graph against itself. */
#define TO_CIG(name) \
    AFTER(name, (CUstream stream, void *parameters), (stream, parameters), timing_flush_stream(NULL))
TO_CIG(cuStreamBeginCaptureToCig)
TO_CIG(cuStreamBeginCaptureToCig_ptsz)
#define RECAPTURES(name) \
    AFTER(name, (CUstream stream, int mode, CUgraph graph, void *callback, void *data), \
        (stream, mode, graph, callback, data), timing_flush_stream(NULL))
RECAPTURES(cuStreamBeginRecaptureToGraph)
RECAPTURES(cuStreamBeginRecaptureToGraph_ptsz)
