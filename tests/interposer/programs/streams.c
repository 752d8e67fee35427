/* streams WAY: uses streams and contexts while short launches are still being collected into one batch.
 * Prints the process's GPU time in ns.
 *   destroy    launches on a stream and destroys it without waiting, many times
 *   contexts   launches on the default streams of two contexts alternately
 *   own        two threads with per-thread default streams: one launches, one waits repeatedly
 *   capture    makes the estimate of a kernel short, launches a long one like it, and captures on the stream meanwhile
 *   joined     the same; the stream joins the capture of another by an event
 *   elsewhere  launches on a stream of a context that is not current, for three seconds
 *   gone       launches in a new context each time, and destroys it while its kernel runs
 *   callback   launches, waits and allocates in callbacks that the driver makes within a launch, as profilers do
 *   sparse     launches 200 us of work every 800 us and never waits; also prints the duration
 *   broken     its context breaks with a launch in flight and another in an open batch; continues until its input ends
 *   pools      allocates from a pool; waits and allocates in a callback of the driver; prints the device's used bytes
 *   retain     threads retain and release the primary context and create their own concurrently; prints used bytes
 *   leaves     launches once and does something else for three seconds
 *   cancel     cancels threads while they launch; prints how often others could launch afterwards
 *   events     uses up all events, then launches in a context that has none */
#include "api.h"
#include <pthread.h>

static CUcontext context;
static CUfunction brief, declared;
static volatile int over;
static uint64_t took;

static CUcontext another(void) {
    CUcontext made;
    NEED(CALL(cuCtxCreate, _v2, 3020)(&made, 0u, 0));
    return made;
}
static CUresult work(CUstream stream, uint64_t ns) { return launch_for(declared, stream, ns); }

static void destroy(void) {
    for (int i = 0; i < 50; i++) {
        CUstream stream = stream_here();
        NEED(launch(brief, stream));
        NEED(CALL(cuStreamDestroy, _v2, 4000)(stream));
    }
    wait_for_all();
}

static void two_contexts(void) {
    CUcontext second = another();
    for (int i = 0; i < 200; i++) {
        NEED(CALL(cuCtxSetCurrent, , 4000)(i % 2 ? second : context));
        NEED(launch(brief, NULL));
    }
    wait_for_all();
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    wait_for_all();
}

static void *waiting(void *unused) {
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    while (!over) {
        NEED(CALL(cuStreamSynchronize, , 2000)(NULL));
        sleep_to(virtual_now() + 20000);
    }
    return unused;
}
static void own(void) {
    pthread_t other;
    pthread_create(&other, NULL, waiting, NULL);
    for (int i = 0; i < 1000; i++) {
        NEED(launch(brief, NULL));
        sleep_to(virtual_now() + 500000);
    }
    wait_for_all();
    over = 1;
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    pthread_join(other, NULL);
}

static void captured(int joined) {
    CUstream stream = stream_here(), first = stream_here();
    CUevent event;
    CUgraph graph;
    NEED(CALL(cuEventCreate, , 2000)(&event, 0u));
    for (int i = 0; i < 100; i++) {
        NEED(work(stream, 10000));
        wait_for_all();
    }
    for (int i = 0; i < 20; i++) {
        NEED(work(stream, 10000000));
        NEED(CALL(cuStreamBeginCapture, _v2, 10010)(joined ? first : stream, 2));
        if (joined) {
            NEED(CALL(cuEventRecord, , 2000)(event, first));
            NEED(CALL(cuStreamWaitEvent, , 3020)(stream, event, 0u));
        }
        sleep_to(virtual_now() + 1000000);
        CALL(cuStreamQuery, , 2000)(first);
        NEED(CALL(cuStreamEndCapture, , 10000)(joined ? first : stream, &graph));
        wait_for_all();
    }
}

static void elsewhere(void) {
    CUstream stream = stream_here();
    const uint64_t end = virtual_now() + UINT64_C(3000000000);
    NEED(CALL(cuCtxSetCurrent, , 4000)(NULL));
    while (virtual_now() < end) NEED(launch(brief, stream));
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    wait_for_all();
}

static void gone(void) {
    const uint64_t end = virtual_now() + UINT64_C(5000000000);
    for (int i = 0; virtual_now() < end; i++) {
        CUcontext made = another();
        NEED(work(NULL, 100000000));
        if (i % 2) sleep_to(virtual_now() + 100000000); /* it waits for its result without calling the driver */
        NEED(CALL(cuCtxDestroy, _v2, 4000)(made));
        NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    }
    wait_for_all();
}

static void within(void) {
    uint64_t pointer;
    wait_for_all();
    NEED(launch(brief, NULL));
    NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)4096));
    NEED(CALL(cuMemFree, _v2, 3020)(pointer));
    wait_for_all();
}
static void callback(void) {
    FIGURE(void (*)(void (*)(void)), "kerf_fake_at_launch")(within);
    for (int i = 0; i < 100; i++) NEED(launch(brief, NULL));
    wait_for_all();
}

static void sparse(uint64_t every_ns) {
    const uint64_t begun = virtual_now();
    for (int i = 0; i < 2000; i++) {
        if (virtual_now() < begun + i * every_ns) sleep_to(begun + i * every_ns);
        NEED(launch(brief, NULL));
    }
    took = virtual_now() - begun;
    wait_for_all();
}

static void broken(void) {
    CUstream second = stream_here();
    for (int i = 0; i < 3; i++) {
        NEED(launch(brief, NULL));
        NEED(launch(brief, second));
    }
    FIGURE(void (*)(void), "kerf_fake_break")();
    for (int i = 0; i < 3; i++) {
        CALL(cuCtxSynchronize, , 2000)();
        CALL(cuStreamQuery, , 2000)(NULL);
    }
}

static void taking(void) {
    uint64_t pointer;
    wait_for_all();
    NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)4096));
    NEED(CALL(cuMemFree, _v2, 3020)(pointer));
    wait_for_all();
}
static void pools(void) {
    uint64_t pointer;
    FIGURE(void (*)(void (*)(void)), "kerf_fake_at_take")(taking);
    for (int i = 0; i < 20; i++) {
        NEED(CALL(cuMemAllocAsync, , 11020)(&pointer, (size_t)4 << 20, NULL));
        NEED(CALL(cuMemFreeAsync, , 11020)(pointer, NULL));
    }
    wait_for_all();
}

static any_t retain, let_go, make, destroy_it, current_is, take, give_back;
static void *retaining(void *unused) {
    for (int i = 0; i < 2000; i++) {
        CUcontext there;
        uint64_t pointer;
        NEED(i % 4 ? retain(&there, 0) : make(&there, 0u, 0));
        NEED(current_is(there));
        NEED(take(&pointer, (size_t)4096));
        NEED(give_back(pointer));
        NEED(current_is(NULL));
        NEED(i % 4 ? let_go(0) : destroy_it(there));
    }
    return unused;
}
static void retained(void) {
    pthread_t threads[4];
    retain = CALL(cuDevicePrimaryCtxRetain, , 7000), let_go = CALL(cuDevicePrimaryCtxRelease, _v2, 11000),
        make = CALL(cuCtxCreate, _v2, 3020);
    destroy_it = CALL(cuCtxDestroy, _v2, 4000), current_is = CALL(cuCtxSetCurrent, , 4000);
    take = CALL(cuMemAlloc, _v2, 3020), give_back = CALL(cuMemFree, _v2, 3020);
    NEED(let_go(0));
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, retaining, NULL);
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

static void *launching(void *unused) {
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    for (;;) {
        NEED(launch(brief, NULL));
        pthread_testcancel();
    }
    return unused;
}
static int cancelled(void) {
    int went_on = 0;
    for (int i = 0; i < 20; i++) {
        pthread_t other;
        pthread_create(&other, NULL, launching, NULL);
        sleep_to(virtual_now() + 3000000);
        pthread_cancel(other);
        FIGURE(void (*)(void), "kerf_virtual_leave")();
        pthread_join(other, NULL);
        NEED(launch(brief, NULL));
        wait_for_all();
        went_on++;
    }
    return went_on;
}

static void without_events(void) {
    const uint64_t end = virtual_now() + UINT64_C(3000000000);
    CUevent event;
    while (!CALL(cuEventCreate, , 2000)(&event, 0u)) {}
    another();
    while (virtual_now() < end && !work(NULL, 20000000)) wait_for_all();
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    open_driver();
    context = use_device(0);
    brief = kernel("ns_200000"), declared = kernel("work");
    if (strcmp(argv[1], "events"))
        for (int i = 0; i < 10; i++) { /* its duration is known then */
            NEED(launch(brief, NULL));
            wait_for_all();
        }
    if (!strcmp(argv[1], "destroy")) destroy();
    else if (!strcmp(argv[1], "contexts")) two_contexts();
    else if (!strcmp(argv[1], "own")) own();
    else if (!strcmp(argv[1], "capture")) captured(0);
    else if (!strcmp(argv[1], "joined")) captured(1);
    else if (!strcmp(argv[1], "elsewhere")) elsewhere();
    else if (!strcmp(argv[1], "gone")) gone();
    else if (!strcmp(argv[1], "callback")) callback();
    else if (!strcmp(argv[1], "sparse")) return sparse(800000), printf("%lu %lu\n", gpu_ns(0), took), 0;
    else if (!strcmp(argv[1], "leaves")) {
        NEED(launch(brief, NULL));
        sleep_to(virtual_now() + UINT64_C(3000000000));
    } else if (!strcmp(argv[1], "pools")) return pools(), printf("%lu\n", device_used(0)), 0;
    else if (!strcmp(argv[1], "retain")) return retained(), printf("%lu\n", device_used(0)), 0;
    else if (!strcmp(argv[1], "broken")) {
        broken();
        while (read(0, argv[1], 1) > 0) {} /* the test reads its control block meanwhile */
        return 0;
    } else if (!strcmp(argv[1], "cancel")) return printf("%d\n", cancelled()), 0;
    else if (!strcmp(argv[1], "events")) without_events();
    else return 2;
    printf("%lu\n", gpu_ns(0));
    return 0;
}
