/* loads COUNT: launches COUNT kernels of 50 us, each of them a function of its own, and waits for them. Prints the elapsed
 * time in us. */
#include "api.h"

int main(int argc, char **argv) {
    const long count = argc > 1 ? atol(argv[1]) : 0;
    uint64_t begun;
    open_driver();
    use_device(0);
    begun = virtual_now();
    for (long i = 0; i < count; i++) NEED(launch(kernel("ns_50000"), NULL));
    NEED(CALL(cuCtxSynchronize, , 2000)());
    printf("%lu\n", (virtual_now() - begun) / 1000);
    return 0;
}
