/* beyond WAY: more launches behind a stall than the library has batches for.
 *   destroys    a context with one of 10 s that is known as a short one, 125 short ones, one more after 9.5 s; it is
 *               destroyed then. Four times: GPU and elapsed time
 *   kernel      125 short ones behind one of 150 ms that is known as a short one, and then one of 10 s that is, too. Five
 *               times: GPU and elapsed time
 *   value       the same behind a wait for a value, which takes 30 s, and then four of 10 s, once
 *   gaps        127 of 20 ms behind a wait for a value of 0.7 s, with a wait of 0.2 ms before each: GPU time before, and
 *               then GPU and elapsed time
 *   seen        600 of 1 ms behind a wait for a value of 0.5 s: elapsed time, and GPU time */
#include "api.h"

static CUfunction f;
static void teach(CUfunction function, uint64_t ns) {
    for (int i = 0; i < 80; i++) {
        NEED(ns ? launch_for(function, NULL, ns) : launch(function, NULL));
        wait_for_all();
    }
}
static void stall(CUstream stream, uint64_t ns) {
    FIGURE(void (*)(uint64_t), "kerf_fake_next_takes")(ns);
    NEED(CALL(cuStreamWaitValue32, _v2, 11070)(stream, (CUdeviceptr)1, 1u, 0u));
}
static void ask_until_done(CUstream stream, uint64_t every_ns) {
    while (CALL(cuStreamQuery, , 2000)(stream)) sleep_to(virtual_now() + every_ns);
}

static void destroys(void) {
    uint64_t begun = 0, used = 0;
    for (int r = 0; r < 4; r++) {
        CUcontext made;
        CUstream streams[3];
        CUfunction variable;
        NEED(CALL(cuCtxCreate, _v2, 3020)(&made, 0u, 0));
        for (int i = 0; i < 3; i++) streams[i] = stream_here();
        variable = kernel("work");
        f = kernel("ns_30000");
        teach(f, 0);
        teach(variable, 120000);
        if (!r) begun = virtual_now(), used = gpu_ns(0);
        sleep_to(virtual_now() + 500000000);
        NEED(launch_for(variable, streams[2], 10000000000));
        for (int i = 0; i < 125; i++) NEED(launch(f, streams[i & 1]));
        sleep_to(virtual_now() + 9500000000);
        NEED(launch(f, streams[0]));
        NEED(CALL(cuCtxDestroy, _v2, 4000)(made));
    }
    printf("%lu %lu\n", gpu_ns(0) - used, virtual_now() - begun);
}

static void stalls(int by_value) {
    CUstream streams[3] = {stream_here(), stream_here(), stream_here()};
    CUfunction variable = kernel("work");
    uint64_t begun, used;
    f = kernel("ns_30000");
    teach(f, 0);
    begun = virtual_now();
    used = gpu_ns(0);
    for (int r = 0; r < (by_value ? 1 : 5); r++) {
        teach(variable, 120000);
        sleep_to(virtual_now() + 1000000000); /* until all is saved that may be */
        if (by_value) {
            stall(streams[2], 30000000000);
            NEED(launch(f, streams[2]));
        } else NEED(launch_for(variable, streams[2], 150000000));
        for (int i = 0; i < 125; i++) NEED(launch(f, streams[i & 1]));
        for (int i = 0; i < (by_value ? 4 : 1); i++) NEED(launch_for(variable, streams[2], 10000000000));
        wait_for_all();
    }
    NEED(launch(f, NULL));
    wait_for_all();
    printf("%lu %lu\n", gpu_ns(0) - used, virtual_now() - begun);
}

static void gaps(void) {
    CUstream stream = stream_here();
    uint64_t begun, used;
    f = kernel("ns_20000000");
    teach(f, 0);
    begun = virtual_now();
    used = gpu_ns(0);
    stall(stream, 700000000);
    for (int i = 0; i < 127; i++) {
        stall(stream, 200000);
        NEED(launch(f, stream));
    }
    ask_until_done(stream, 5000000);
    wait_for_all();
    NEED(launch(f, stream));
    wait_for_all();
    printf("%lu %lu %lu\n", used, gpu_ns(0) - used, virtual_now() - begun);
}

static void seen(void) {
    CUstream stream = stream_here();
    uint64_t begun;
    f = kernel("ns_1000000");
    teach(f, 0);
    begun = virtual_now();
    stall(stream, 500000000);
    for (int i = 0; i < 600; i++) NEED(launch(f, stream));
    ask_until_done(stream, 1000000);
    printf("%lu %lu\n", virtual_now() - begun, gpu_ns(0));
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    open_driver();
    use_device(0);
    if (!strcmp(argv[1], "destroys")) destroys();
    else if (!strcmp(argv[1], "kernel")) stalls(0);
    else if (!strcmp(argv[1], "value")) stalls(1);
    else if (!strcmp(argv[1], "gaps")) gaps();
    else if (!strcmp(argv[1], "seen")) seen();
    else return 2;
    return 0;
}
