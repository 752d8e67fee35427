/* between CALL ROUNDS: rounds of a kernel of 20 us, of CALL, whose work takes 2 ms on its stream, and of another such
 * kernel, on one stream. Prints the GPU time in ns. */
#include "api.h"

static void nothing(void *unused) { (void)unused; }

int main(int argc, char **argv) {
    CUfunction f;
    CUstream stream = NULL;
    if (argc < 3) return 2;
    open_driver();
    use_device(0);
    f = kernel("ns_20000");
    if (strcmp(argv[1], "default")) NEED(CALL(cuStreamCreate, , 2000)(&stream, 0u));
    for (int i = 0; i < atoi(argv[2]); i++) {
        NEED(launch(f, stream));
        FIGURE(void (*)(uint64_t), "kerf_fake_next_takes")(2000000);
        if (!strcmp(argv[1], "copy")) NEED(CALL(cuMemcpyHtoDAsync, _v2, 3020)((CUdeviceptr)1, "", (size_t)1, stream));
        if (!strcmp(argv[1], "memset")) NEED(CALL(cuMemsetD8Async, , 3020)((CUdeviceptr)1, 0, (size_t)1, stream));
        if (!strcmp(argv[1], "default")) NEED(CALL(cuMemsetD8, _v2, 3020)((CUdeviceptr)1, 0, (size_t)1));
        if (!strcmp(argv[1], "host")) NEED(CALL(cuLaunchHostFunc, , 10000)(stream, nothing, NULL));
        if (!strcmp(argv[1], "value"))
            NEED(CALL(cuStreamWaitValue32, _v2, 11070)(stream, (CUdeviceptr)1, (uint32_t)0, 0u));
        if (!strcmp(argv[1], "batch")) NEED(CALL(cuStreamBatchMemOp, _v2, 11070)(stream, 1u, (void *)"", 0u));
        NEED(launch(f, stream));
        sleep_to(virtual_now() + 10000000);
    }
    printf("%lu\n", gpu_ns(0));
    return 0;
}
