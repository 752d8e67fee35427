/* forks fork|clone before|after: a process and its child, created by fork (with the handlers of pthread_atfork) or
 * by the system call (without). before: both use the GPU afterwards. after: the parent has allocated; the child only
 * ends. Prints the device's used bytes while both hold 32 MiB (before), or after the child's end (after). forks busy
 * COUNT: threads allocate and free without end while COUNT children are created, which do the same. Prints how many
 * ended well. */
#include "api.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int over;
static void *churn(void *context) {
    uint64_t held[64];
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        for (int i = 0; i < 64; i++) NEED(CALL(cuMemAlloc, _v2, 3020)(&held[i], (size_t)512));
        for (int i = 0; i < 64; i++) NEED(CALL(cuMemFree, _v2, 3020)(held[i]));
    }
    return NULL;
}
static void busy(int count) {
    enum { THREADS = 3 };
    CUcontext context = use_device(0);
    pthread_t thread[THREADS];
    int well = 0, status;
    uint64_t pointer;
    for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, churn, context);
    for (int i = 0; i < count; i++) {
        const int child = i % 2 ? fork() : (int)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        if (!child && prctl(PR_SET_PDEATHSIG, SIGKILL)) _exit(4);
        /* the driver works in no child */
        if (!child) _exit(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)512) == CUDA_SUCCESS);
        well += waitpid(child, &status, 0) == child && status == 0;
    }
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    printf("%d %lu\n", well, device_used(0));
}

int main(int argc, char **argv) {
    uint64_t pointer;
    int to_parent[2], to_child[2], child;
    char token;
    if (argc < 3 || pipe(to_parent) || pipe(to_child)) return 2;
    open_driver();
    if (!strcmp(argv[1], "busy")) return busy(atoi(argv[2])), 0;
    if (!strcmp(argv[2], "after")) {
        use_device(0);
        NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)32 << 20));
    } else if (CALL(cuInit, , 2000) == NULL) return 2;
    child = !strcmp(argv[1], "fork") ? fork() : (int)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (!child && !strcmp(argv[2], "after")) {
        /* a forked child cannot use the driver; its attempt must not change the account */
        if (!CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)32 << 20)) _exit(5);
        _exit(0);
    }
    if (!strcmp(argv[2], "before")) {
        use_device(0);
        NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)32 << 20));
    }
    if (!child) {
        if (write(to_parent[1], "x", 1) != 1 || read(to_child[0], &token, 1) != 1) _exit(6);
        _exit(0);
    }
    if (!strcmp(argv[2], "before")) {
        if (read(to_parent[0], &token, 1) != 1) return 6;
        printf("%lu ", device_used(0));
        if (write(to_child[1], "x", 1) != 1) return 6;
    }
    waitpid(child, &child, 0);
    printf("%lu %d ", device_used(0), child);
    fflush(stdout);
    if (getenv("KERF_TEST_HOLD") && read(0, &token, 1) < 0) return 6; /* the test reads the counters now */
    NEED(CALL(cuMemFree, _v2, 3020)(pointer));
    printf("%lu\n", device_used(0));
    return 0;
}
