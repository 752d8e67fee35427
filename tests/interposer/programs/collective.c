/* collective ROUNDS LATE_US: threads on two GPUs; each round is six kernels of 40 us on each, and a kernel that spins until
 * that of the other GPU has come. The second thread comes LATE_US later. Prints the elapsed time in us from then on. */
#include "api.h"
#include <pthread.h>

static long rounds, late_us;
static _Atomic int ready;
static uint64_t counter, begun;
typedef struct { int index; CUfunction work, meet; } rank_t;

static void *run(void *which) {
    const rank_t *r = which;
    uint64_t ns = 30000, count;
    void *parameters[] = {&ns, &(uint64_t *){&counter}, &count};
    CUcontext context;
    CUstream stream;
    NEED(CALL(cuDevicePrimaryCtxRetain, , 7000)(&context, r->index));
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    NEED(CALL(cuStreamCreate, , 2000)(&stream, 1u));
    sleep_to(virtual_now() + 1000);
    ready++;
    while (ready < 2) sleep_to(virtual_now() + 20000);
    if (r->index) {
        sleep_to(virtual_now() + (uint64_t)late_us * 1000);
        begun = virtual_now();
    }
    for (long round = 0; round < rounds; round++) {
        count = (uint64_t)(round + 1) * 2;
        for (int i = 0; i < 6; i++) NEED(launch(r->work, stream));
        NEED(CALL(cuLaunchKernel, , 7000)(r->meet, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, parameters, (void **)NULL));
        if (round % 8 == 7) NEED(CALL(cuStreamSynchronize, , 7000)(stream));
    }
    NEED(CALL(cuStreamSynchronize, , 7000)(stream));
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread[2];
    rank_t rank[2];
    if (argc < 3) return 2;
    rounds = atol(argv[1]), late_us = atol(argv[2]);
    open_driver();
    for (int i = 0; i < 2; i++) {
        use_device(i);
        rank[i] = (rank_t){i, kernel("ns_40000"), kernel("meet")};
    }
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, run, &rank[i]);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    printf("%lu\n", (virtual_now() - begun) / 1000);
    return 0;
}
