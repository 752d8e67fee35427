/* burst LAUNCHES KERNEL_NS PAUSE_US ROUNDS WAITS: bursts of short kernels on one stream. The program learns of their
 * end without any driver call that is hooked (a host callback, a polled word), or by cuCtxSynchronize (WAITS 1). Prints the
 * GPU time and the elapsed time in ns. */
#include "api.h"
int main(int argc, char **argv) {
    char name[64];
    uint64_t begun;
    CUfunction f;
    if (argc < 6) return 2;
    open_driver();
    use_device(0);
    snprintf(name, sizeof name, "ns_%s", argv[2]);
    f = kernel(name);
    begun = virtual_now();
    for (int r = 0; r < atoi(argv[4]); r++) {
        for (int i = 0; i < atoi(argv[1]); i++) NEED(launch(f, NULL));
        if (atoi(argv[5])) NEED(CALL(cuCtxSynchronize, , 2000)());
        sleep_to(virtual_now() + strtoull(argv[3], NULL, 10) * 1000);
    }
    printf("%lu %lu\n", gpu_ns(0), virtual_now() - begun);
    return 0;
}
