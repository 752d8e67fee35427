/* cuda_graphs: one graph with memory of its own, captured from stream-ordered allocations, and one without. ROUNDS
 * replays, with a wait after every 50.
 *
 * As torch.cuda.graphs and the CUDA guide ("Graph Memory Nodes"): cuMemAllocAsync and cuMemFreeAsync during a capture
 * become nodes; the driver takes their memory at the first launch and keeps it until cuDeviceGraphMemTrim. */
#include "program.h"

enum { KERNELS = 24 };
static CUfunction mix;
static CUdeviceptr state[2];
static void some_work(void) { launch_mix(mix, NULL, 20000, state[0], 1); }

static CUexec capture(CUstream stream, int which, size_t scratch) {
    CUgraph graph = NULL;
    CUexec executable = NULL;
    CUdeviceptr pointer = 0;
    CALL(cuStreamBeginCapture, stream, which ? 2 : 0);
    if (scratch) CALL(cuMemAllocAsync, &pointer, scratch, stream);
    for (int kernel = 0; kernel < KERNELS; kernel++)
        launch_mix(mix, stream, 15000, state[which], (uint64_t)kernel);
    if (scratch) CALL(cuMemFreeAsync, pointer, stream);
    CALL(cuStreamEndCapture, stream, &graph);
    CALL(cuGraphInstantiate, &executable, graph, 0ull);
    CALL(cuGraphDestroy, graph);
    return executable;
}

int main(int count, char **words) {
    CUexec with, without;
    CUstream stream;
    uint64_t result[2];
    mix = begin(count, words);
    phase = "init";
    for (int i = 0; i < 2; i++) {
        CALL(cuMemAlloc, &state[i], 20 * MIB);
        CALL(cuMemsetD8, state[i], 0, 20 * MIB);
    }
    CALL(cuStreamCreate, &stream, 1u);
    checkpoint("allocated", 40 * MIB);
    phase = "capture";
    counts_time = 0;
    with = capture(stream, 0, asked.limit / 4 / (2 * MIB) * (2 * MIB));
    without = capture(stream, 1, 0);
    counts_time = 1;
    phase = "replaying";
    begin_timed();
    for (long replay = 0; replay < asked.rounds; replay++) {
        CALL(cuGraphLaunch, replay % 2 ? with : without, stream);
        gpu_ns += KERNELS * 15000;
        if (replay % 50 == 49) CALL(cuStreamSynchronize, stream);
    }
    CALL(cuStreamSynchronize, stream);
    end_timed();
    phase = "results";
    for (int i = 0; i < 2; i++) CALL(cuMemcpyDtoH, &result[i], state[i], sizeof *result);
    checkpoint("replayed", UNKNOWN);
    phase = "destroying";
    CALL(cuGraphExecDestroy, with);
    CALL(cuGraphExecDestroy, without);
    CALL(cuDeviceGraphMemTrim, 0);
    checkpoint("destroyed", 40 * MIB);
    go_beyond(some_work);
    phase = "freeing";
    for (int i = 0; i < 2; i++) CALL(cuMemFree, state[i]);
    CALL(cuStreamDestroy, stream);
    return finish(result, 2, "");
}
