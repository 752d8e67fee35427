/* A context is destroyed while a thread waits at the gate in another. Prints the GPU time in ns. */
#include "api.h"
#include <pthread.h>

static void *work(void *context) {
    NEED(CALL(cuCtxSetCurrent, , 4000)((CUcontext)context));
    NEED(launch(kernel("ns_30000000"), NULL)); /* a debt of 0.3 s at a tenth of the GPU */
    NEED(CALL(cuCtxSynchronize, , 2000)());
    NEED(launch(kernel("ns_50000000"), NULL));
    NEED(CALL(cuCtxSynchronize, , 2000)());
    return NULL;
}

int main(void) {
    CUcontext first, second, popped;
    pthread_t thread;
    open_driver();
    NEED(CALL(cuInit, , 2000)(0));
    NEED(CALL(cuCtxCreate, _v2, 3020)(&second, 0u, 0));
    NEED(CALL(cuCtxPopCurrent, _v2, 4000)(&popped));
    NEED(CALL(cuCtxCreate, _v2, 3020)(&first, 0u, 0));
    NEED(launch(kernel("ns_1000000"), NULL));
    NEED(CALL(cuCtxSynchronize, , 2000)());
    pthread_create(&thread, NULL, work, second);
    while (gpu_ns(0) < 31000000) sleep_to(virtual_now() + 1000000);
    sleep_to(virtual_now() + 50000000); /* the thread waits now */
    NEED(CALL(cuCtxDestroy, _v2, 4000)(first));
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    pthread_join(thread, NULL);
    printf("%lu\n", gpu_ns(0));
    return 0;
}
