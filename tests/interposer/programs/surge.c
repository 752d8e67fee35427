/* surge ROUNDS SHORT_US LONG_US: launches of one function that take SHORT_US, in bursts, until that is what a launch of it
 * is expected to take; then ROUNDS launches of it that take LONG_US, each followed by a short one. The program waits for
 * each without a driver call that is hooked. Prints the GPU time and the elapsed time of the rounds in ns. */
#include "api.h"

static CUfunction f;
static void work(uint64_t us) {
    uint64_t ns = us * 1000;
    void *parameters[] = {&ns};
    NEED(CALL(cuLaunchKernel, , 7000)(f, 1u, 1u, 1u, 1u, 1u, 1u, 0u, NULL, parameters, NULL));
}
int main(int argc, char **argv) {
    const uint64_t short_us = argc < 4 ? 0 : strtoull(argv[2], NULL, 10), long_us = argc < 4 ? 0 : strtoull(argv[3], NULL, 10);
    uint64_t begun, used;
    if (argc < 4) return 2;
    open_driver();
    use_device(0);
    f = kernel("work");
    for (int i = 0; i < 50; i++) {
        work(short_us);
        NEED(CALL(cuCtxSynchronize, , 2000)());
    }
    begun = virtual_now();
    used = gpu_ns(0);
    for (int r = 0; r < atoi(argv[1]); r++) {
        work(long_us);
        sleep_to(virtual_now() + 1000 * long_us + 1000000);
        work(short_us);
        sleep_to(virtual_now() + 1000 * short_us + 1000000);
    }
    printf("%lu %lu\n", gpu_ns(0) - used, virtual_now() - begun);
    return 0;
}
