/* awaits COUNT LAUNCHES SECONDS: repeats rounds of a kernel that runs until LAUNCHES more are launched on another
 * stream, of those launches, and of a wait for all: COUNT rounds, or for SECONDS. Prints the longest round in ns,
 * the GPU time, and the number of rounds. awaits late: launches the awaited work two seconds later. Prints the GPU
 * time. awaits thread: one thread launches the kernel, another the awaited work. Prints the duration in ns. */
#include "api.h"
#include <pthread.h>

static CUcontext context;
static CUstream first, second;
static CUfunction spins, works;
static volatile int here; /* the other thread is a client of the clock */

static void *later(void *unused) {
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    sleep_to(virtual_now() + 1000000);
    here = 1;
    sleep_to(virtual_now() + 10000000);
    NEED(launch(works, second));
    return unused;
}

static int by_threads(void) {
    uint64_t begun;
    pthread_t other;
    sleep_to(virtual_now() + 1000); /* a client from now on: the clock does not go on without this thread */
    pthread_create(&other, NULL, later, NULL);
    while (!here) sleep_to(virtual_now() + 1000000);
    begun = virtual_now();
    NEED(launch(spins, first));
    for (int i = 1; i < 40; i++) NEED(launch(works, first));
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    pthread_join(other, NULL);
    NEED(CALL(cuCtxSynchronize, , 2000)());
    return printf("%lu\n", virtual_now() - begun), 0;
}

int main(int argc, char **argv) {
    uint64_t begun, round, longest = 0;
    char name[32];
    int rounds = 0;
    if (argc < 2) return 2;
    open_driver();
    context = use_device(0);
    snprintf(name, sizeof name, "awaits_%s", argc > 2 ? argv[2] : "40");
    spins = kernel(name), works = kernel("ns_300000");
    NEED(CALL(cuStreamCreate, , 2000)(&first, 1u));
    NEED(CALL(cuStreamCreate, , 2000)(&second, 1u));
    if (!strcmp(argv[1], "thread")) return by_threads();
    if (!strcmp(argv[1], "late")) {
        NEED(launch(spins, first));
        sleep_to(virtual_now() + UINT64_C(2000000000));
        for (int i = 0; i < 40; i++) NEED(launch(works, second));
        NEED(CALL(cuCtxSynchronize, , 2000)());
        return printf("%lu\n", gpu_ns(0)), 0;
    }
    if (argc != 4) return 2;
    begun = virtual_now();
    while (rounds < atoi(argv[1]) && virtual_now() < begun + strtoull(argv[3], NULL, 10) * 1000000000) {
        round = virtual_now();
        NEED(launch(spins, first));
        /* if it waited before it began, no kernel waits for it */
        round = virtual_now() - round > 1000000 ? virtual_now() : round;
        for (int i = 0; i < atoi(argv[2]); i++) NEED(launch(works, second));
        NEED(CALL(cuCtxSynchronize, , 2000)());
        if (virtual_now() - round > longest) longest = virtual_now() - round;
        rounds++;
    }
    printf("%lu %lu %d\n", longest, gpu_ns(0), rounds);
    return 0;
}
