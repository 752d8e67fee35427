/* capture: while one stream captures in the global mode, another stream works. Prints the other stream's GPU time in
 * ns, the result of the end of the capture, and the GPU time of the captured graph after its launch. */
#include "api.h"

int main(void) {
    CUstream capturing, working;
    CUgraph graph;
    CUexec executable;
    uint64_t before;
    int said;
    CUfunction f;
    open_driver();
    use_device(0);
    f = kernel("ns_1000000");
    NEED(CALL(cuStreamCreate, , 2000)(&capturing, 1u));
    NEED(CALL(cuStreamCreate, , 2000)(&working, 1u));
    for (int i = 0; i < 3; i++) NEED(launch(f, working));
    NEED(CALL(cuStreamBeginCapture, _v2, 10010)(capturing, 0));
    for (int i = 0; i < 50; i++) {
        NEED(launch(f, capturing));
        NEED(launch(f, working));
    }
    said = CALL(cuStreamEndCapture, , 10000)(capturing, &graph);
    NEED(CALL(cuCtxSynchronize, , 2000)());
    before = gpu_ns(0);
    NEED(CALL(cuGraphInstantiate, WithFlags, 12000)(&executable, graph, 0ull));
    NEED(CALL(cuGraphLaunch, , 10000)(executable, working));
    NEED(CALL(cuCtxSynchronize, , 2000)());
    printf("%lu %d %lu\n", before, said, gpu_ns(0) - before);
    return 0;
}
