/* threads COUNT SECONDS: COUNT threads of one process launch without end, each on a stream of its own. Prints the
 * process's GPU time in ns. */
#include "api.h"
#include <pthread.h>

static CUcontext context;
static CUfunction f;
static any_t start, current_is, make;
static uint64_t end;

static void *work(void *unused) {
    CUstream stream;
    NEED(current_is(context));
    NEED(make(&stream, 1u));
    while (virtual_now() < end) NEED(start(f, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, (void **)NULL, (void **)NULL));
    return unused;
}

int main(int argc, char **argv) {
    pthread_t threads[16];
    int count = argc > 2 ? atoi(argv[1]) : 0;
    if (!count || count > 16) return 2;
    open_driver();
    context = use_device(0);
    f = kernel("ns_400000");
    start = CALL(cuLaunchKernel, , 7000), current_is = CALL(cuCtxSetCurrent, , 4000),
        make = CALL(cuStreamCreate, , 2000);
    end = virtual_now() + strtoull(argv[2], NULL, 10) * 1000000000;
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    printf("%lu\n", gpu_ns(0));
    return 0;
}
