/* two_gpus: a launch on GPU 0 that the driver does not finish until another thread has launched on GPU 1, as where a
 * module is loaded lazily behind a collective. Prints 1 if the other launch came within ten virtual seconds, else 0. */
#include "api.h"
#include <pthread.h>
static volatile int in_driver, other_launched;
static void stuck(void) {
    const uint64_t end = virtual_now() + UINT64_C(10000000000);
    in_driver = 1;
    while (!other_launched && virtual_now() < end) sleep_to(virtual_now() + 1000000);
}
static void *other(void *unused) {
    CUfunction f;
    use_device(1);
    f = kernel("ns_1000");
    while (!in_driver) sleep_to(virtual_now() + 100000);
    NEED(launch(f, NULL));
    other_launched = 1;
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    return unused;
}
int main(void) {
    pthread_t t;
    CUfunction f;
    open_driver();
    use_device(0);
    f = kernel("ns_1000");
    NEED(launch(f, NULL));
    NEED(CALL(cuCtxSynchronize, , 2000)());
    pthread_create(&t, NULL, other, NULL);
    FIGURE(void (*)(void (*)(void)), "kerf_fake_at_launch")(stuck);
    NEED(launch(f, NULL));
    printf("%d\n", other_launched);
    return 0;
}
