/* surge ROUNDS SHORT_US LONG_US: launches of one function that take SHORT_US, in bursts, until that is what a launch of it
 * is expected to take; then ROUNDS launches of it that take LONG_US, each followed by a short one. The program waits for
 * each without a driver call that is hooked. Prints the GPU time and the elapsed time of the rounds in ns. */
#include "api.h"

int main(int argc, char **argv) {
    const uint64_t short_ns = argc < 4 ? 0 : 1000 * strtoull(argv[2], NULL, 10);
    const uint64_t long_ns = argc < 4 ? 0 : 1000 * strtoull(argv[3], NULL, 10);
    uint64_t begun, used;
    CUfunction f;
    if (argc < 4) return 2;
    open_driver();
    use_device(0);
    f = kernel("work");
    for (int i = 0; i < 50; i++) {
        NEED(launch_for(f, NULL, short_ns));
        NEED(CALL(cuCtxSynchronize, , 2000)());
    }
    begun = virtual_now();
    used = gpu_ns(0);
    for (int r = 0; r < atoi(argv[1]); r++) {
        NEED(launch_for(f, NULL, long_ns));
        sleep_to(virtual_now() + long_ns + 1000000);
        NEED(launch_for(f, NULL, short_ns));
        sleep_to(virtual_now() + short_ns + 1000000);
    }
    printf("%lu %lu\n", gpu_ns(0) - used, virtual_now() - begun);
    return 0;
}
