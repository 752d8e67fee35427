/* ends WAY: while much work is in flight most launches have no event of their own. Programs that could be harmed by
 * that, or gain by it.
 *   destroyed   launches on a stream, and destroys it after a line of input; launches elsewhere after another one.
 *               Prints "ready" before each, and "alive"
 *   legacy      launches on the legacy stream by its handle, and asks while no context is current: GPU time
 *   query       asks long after the work is done: how often it was told that it is not
 *   own         bursts of twenty kernels of 20 us and pauses of 1.5 ms, waits by an event of its own: GPU and elapsed time
 *   slow        needs 60 us for each launch of 100 us, of which each second one may overlap the one before: how often that
 *               was lost
 *   asks        long launches of a function that is known as a short one; asks once when it should be done: GPU and elapsed
 *               time
 *   queue NS    queues 3,000 kernels of NS: how many events were recorded, and GPU time
 *   untimed NS  a launch of NS, one of 50 ms while launches are not timed, one of 300 us; in steps
 *   adds        the same, and launches another short one instead
 *   waits       the same, and waits for the work instead, after that time */
#include "api.h"

static CUcontext context;
static CUfunction f;
static void teach(CUstream stream) { /* beyond the first launches, which all have their event */
    for (int i = 0; i < 80; i++) {
        NEED(launch(f, stream));
        wait_for_all();
    }
}
static void step(void) {
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) exit(4);
}

static void destroyed(void) {
    CUstream stream = stream_here();
    f = kernel("ns_30000");
    teach(stream);
    for (int i = 0; i < 203; i++) NEED(launch(f, stream));
    step();
    NEED(CALL(cuStreamSynchronize, , 2000)(stream));
    NEED(CALL(cuStreamDestroy, _v2, 4000)(stream));
    step();
    NEED(launch(f, NULL));
    puts("alive");
}

static void legacy(void) {
    CUstream stream = (CUstream)(uintptr_t)1;
    f = kernel("ns_30000");
    teach(stream);
    for (int r = 0; r < 100; r++) {
        for (int i = 0; i < 10; i++) NEED(launch(f, stream));
        NEED(CALL(cuCtxSetCurrent, , 4000)(NULL));
        CALL(cuStreamQuery, , 2000)(stream);
        NEED(CALL(cuCtxSetCurrent, , 4000)(context));
        wait_for_all();
    }
    printf("%lu\n", gpu_ns(0));
}

static void query(void) {
    int not = 0;
    f = kernel("ns_20000");
    teach(NULL);
    for (int r = 0; r < 200; r++) {
        for (int i = 0; i < 20; i++) NEED(launch(f, NULL));
        sleep_to(virtual_now() + 20000000);
        not += CALL(cuStreamQuery, , 2000)(NULL) != 0;
    }
    printf("%d\n", not);
}

static void own(void) {
    CUevent event;
    uint64_t begun;
    f = kernel("ns_20000");
    NEED(CALL(cuEventCreate, , 2000)(&event, 0u));
    begun = virtual_now();
    for (int r = 0; r < 1500; r++) {
        for (int i = 0; i < 20; i++) NEED(launch(f, NULL));
        NEED(CALL(cuEventRecord, , 2000)(event, NULL));
        NEED(CALL(cuEventSynchronize, , 2000)(event));
        sleep_to(virtual_now() + 1500000);
    }
    printf("%lu %lu\n", gpu_ns(0), virtual_now() - begun);
}

static void slow(void) {
    const launch_attribute_t allowed = {.id = LAUNCH_PROGRAMMATIC_SERIALIZATION, .value = {.allowed = 1}};
    launch_config_t config = {{1, 1, 1}, {1, 1, 1}, 0, stream_here(), &allowed, 1};
    f = kernel("ns_100000");
    for (int i = 0; i < 100; i++) {
        NEED(launch(f, config.stream));
        sleep_to(virtual_now() + 60000);
        NEED(CALL(cuLaunchKernelEx, , 11060)(&config, f, (void **)NULL, (void **)NULL));
        sleep_to(virtual_now() + 60000);
    }
    NEED(CALL(cuStreamSynchronize, , 2000)(config.stream));
    printf("%lu\n", FIGURE(uint64_t(*)(const char *), "kerf_fake_calls")("overlap lost"));
}

static void queue(const char *ns) {
    uint64_t (*calls)(const char *) = FIGURE(uint64_t(*)(const char *), "kerf_fake_calls"), before, used;
    char name[32];
    snprintf(name, sizeof name, "ns_%s", ns);
    f = kernel(name);
    teach(NULL);
    before = calls("cuEventRecord");
    used = gpu_ns(0);
    for (int i = 0; i < 3000; i++) NEED(launch(f, NULL));
    wait_for_all();
    printf("%lu %lu\n", calls("cuEventRecord") - before, gpu_ns(0) - used);
}

static void untimed(const char *first) {
    CUfunction g = f = kernel("ns_300000");
    char name[32];
    teach(NULL);
    snprintf(name, sizeof name, "ns_%s", first);
    f = kernel(name);
    teach(NULL);
    NEED(launch(f, NULL));
    step();
    NEED(launch(kernel("ns_50000000"), NULL));
    step();
    NEED(launch(g, NULL));
    wait_for_all();
    puts("done");
}

enum way { ASKS, ADDS, WAITS };
static void cheats(enum way way) {
    const uint64_t long_ns = 100000000, short_ns = 120000;
    CUfunction variable = kernel("work");
    uint64_t begun, used;
    f = kernel("ns_110000");
    teach(NULL);
    for (int i = 0; i < 80; i++) {
        NEED(launch_for(variable, NULL, short_ns));
        wait_for_all();
    }
    begun = virtual_now();
    used = gpu_ns(0);
    for (int r = 0; r < 300; r++) {
        NEED(launch_for(variable, NULL, long_ns));
        sleep_to(virtual_now() + short_ns + 100000);
        if (way == ASKS) CALL(cuStreamQuery, , 2000)(NULL);
        if (way == ADDS) NEED(launch(f, NULL));
        if (way == WAITS) wait_for_all();
        else sleep_to(virtual_now() + long_ns + 1000000);
        if (way == ASKS) CALL(cuStreamQuery, , 2000)(NULL);
    }
    printf("%lu %lu\n", gpu_ns(0) - used, virtual_now() - begun);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    open_driver();
    context = use_device(0);
    if (!strcmp(argv[1], "destroyed")) destroyed();
    else if (!strcmp(argv[1], "legacy")) legacy();
    else if (!strcmp(argv[1], "query")) query();
    else if (!strcmp(argv[1], "own")) own();
    else if (!strcmp(argv[1], "slow")) slow();
    else if (!strcmp(argv[1], "queue") && argc > 2) queue(argv[2]);
    else if (!strcmp(argv[1], "untimed") && argc > 2) untimed(argv[2]);
    else if (!strcmp(argv[1], "asks")) cheats(ASKS);
    else if (!strcmp(argv[1], "adds")) cheats(ADDS);
    else if (!strcmp(argv[1], "waits")) cheats(WAITS);
    else return 2;
    return 0;
}
