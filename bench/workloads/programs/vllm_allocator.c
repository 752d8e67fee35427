/* vllm_allocator: memory as vLLM takes it. ROUNDS decoding steps.
 *
 * Weights in an expandable segment: one range of addresses that grows by handles of 20 MiB (CUDACachingAllocator's
 * ExpandableSegment: cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemSetAccess). The KV cache is one block that fills
 * what is missing to 90 % of the total that cuMemGetInfo shows (gpu_memory_utilization). Graphs are captured for several
 * batch sizes. Sleep mode (vllm/device_allocator/cumem.py, csrc/cumem_allocator.cpp): the weights are copied to the host,
 * all handles unmapped and released, and the addresses kept; waking maps new handles at the same addresses. */
#include "program.h"

enum { SEGMENTS = 12, SIZES = 6 };
static const size_t segment_bytes = 20 * MIB;
typedef struct { CUdeviceptr at; size_t bytes; CUphysical handle; } mapping_t;
static CUfunction mix;
static mapping_t weight[SEGMENTS], cache;
static CUdeviceptr range, plain;
static void some_work(void) { launch_mix(mix, NULL, 20000, plain, 1); }

static int map(mapping_t *m) {
    const alloc_prop_t property = {.type = ALLOCATION_PINNED, .location = {LOCATION_DEVICE, 0}};
    const struct { location_t location; int flags; } access = {{LOCATION_DEVICE, 0}, 3};
    return CALL(cuMemCreate, &m->handle, m->bytes, &property, 0ull) || CALL(cuMemMap, m->at, m->bytes, (size_t)0, m->handle,
        0ull) || CALL(cuMemSetAccess, m->at, m->bytes, &access, (size_t)1);
}
static void unmap(mapping_t *m) {
    CALL(cuMemUnmap, m->at, m->bytes);
    CALL(cuMemRelease, m->handle);
}

static void decode(CUexec *graph, CUstream stream, long from, long until) {
    for (long step = from; step < until; step++) {
        CALL(cuGraphLaunch, graph[step % SIZES], stream);
        __atomic_add_fetch(&gpu_ns, 8 * (20000 + 15000 * (uint64_t)(step % SIZES)), __ATOMIC_SEQ_CST);
        if (step % 4 == 3) CALL(cuStreamSynchronize, stream); /* the sampled tokens */
    }
    CALL(cuStreamSynchronize, stream);
}

int main(int count, char **words) {
    CUexec executable[SIZES];
    CUstream stream;
    size_t available = 0, total = 0, used, unit = 0, held, reserved;
    uint64_t *saved = NULL, result[SEGMENTS + 2], ended;
    const alloc_prop_t property = {.type = ALLOCATION_PINNED, .location = {LOCATION_DEVICE, 0}};
    mix = begin(count, words);
    phase = "init";
    CALL(cuMemGetAllocationGranularity, &unit, &property, 0);
    CALL(cuMemAlloc, &plain, 2 * MIB);
    CALL(cuMemsetD8, plain, 0, 2 * MIB);
    CALL(cuStreamCreate, &stream, 1u);
    CALL(cuMemHostAlloc, (void **)&saved, SEGMENTS * segment_bytes, 0u);
    CALL(cuMemGetInfo, &available, &total);
    reserved = total / (2 * MIB) * (2 * MIB);
    CALL(cuMemAddressReserve, &range, reserved, (size_t)0, (CUdeviceptr)0, 0ull);
    for (int i = 0; i < SEGMENTS; i++) {
        weight[i] = (mapping_t){range + (size_t)i * segment_bytes, segment_bytes, 0};
        map(&weight[i]);
        CALL(cuMemsetD8, weight[i].at, (unsigned char)(i + 1), segment_bytes);
    }
    /* a run that shows how much the activations need */
    for (int i = 0; i < 40; i++) launch_mix(mix, stream, 30000, weight[i % SEGMENTS].at, 1);
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemGetInfo, &available, &total);
    used = total - available;
    if (total > asked.limit) total = asked.limit; /* without Kerf the program sees all of the device, and takes as much */
    cache.bytes = (total / 10 * 9 - used) / unit * unit;
    CALL(cuMemAddressReserve, &cache.at, cache.bytes, (size_t)0, (CUdeviceptr)0, 0ull);
    map(&cache);
    CALL(cuMemsetD8, cache.at, 0, cache.bytes);
    held = 2 * MIB + SEGMENTS * segment_bytes + cache.bytes;
    checkpoint("allocated", held);
    phase = "capture";
    counts_time = 0;
    for (int i = 0; i < SIZES; i++) {
        CUgraph graph;
        CALL(cuStreamBeginCapture, stream, 0);
        for (int kernel = 0; kernel < 8; kernel++)
            launch_mix(mix, stream, 20000 + 15000 * (uint64_t)i, kernel == 7 ? cache.at : weight[kernel].at, (uint64_t)i);
        CALL(cuStreamEndCapture, stream, &graph);
        CALL(cuGraphInstantiate, &executable[i], graph, 0ull);
        CALL(cuGraphDestroy, graph);
    }
    counts_time = 1;
    phase = "decoding";
    begin_timed();
    decode(executable, stream, 0, asked.rounds / 2);
    ended = now_ns() - timed_ns;
    phase = "asleep";
    for (int i = 0; i < SEGMENTS; i++)
        CALL(cuMemcpyDtoH, (char *)saved + (size_t)i * segment_bytes, weight[i].at, segment_bytes);
    CALL(cuMemcpyDtoH, &result[SEGMENTS], cache.at, sizeof *result);
    for (int i = 0; i < SEGMENTS; i++) unmap(&weight[i]);
    unmap(&cache);
    checkpoint("asleep", 2 * MIB);
    phase = "awake";
    for (int i = 0; i < SEGMENTS; i++) {
        map(&weight[i]);
        CALL(cuMemcpyHtoD, weight[i].at, (char *)saved + (size_t)i * segment_bytes, segment_bytes);
    }
    map(&cache);
    CALL(cuMemsetD8, cache.at, 0, cache.bytes);
    checkpoint("awake", held);
    phase = "decoding again";
    timed_ns = now_ns() - ended;
    decode(executable, stream, asked.rounds / 2, asked.rounds);
    end_timed();
    phase = "results";
    for (int i = 0; i < SEGMENTS; i++) CALL(cuMemcpyDtoH, &result[i], weight[i].at, sizeof *result);
    CALL(cuMemcpyDtoH, &result[SEGMENTS + 1], cache.at, sizeof *result);
    go_beyond(some_work);
    phase = "freeing";
    for (int i = 0; i < SIZES; i++) CALL(cuGraphExecDestroy, executable[i]);
    for (int i = 0; i < SEGMENTS; i++) unmap(&weight[i]);
    unmap(&cache);
    CALL(cuMemAddressFree, range, reserved);
    CALL(cuMemAddressFree, cache.at, cache.bytes);
    CALL(cuMemFree, plain);
    CALL(cuMemFreeHost, saved);
    CALL(cuStreamDestroy, stream);
    return finish(result, SEGMENTS + 2, "");
}
