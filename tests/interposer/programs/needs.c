/* needs: allocates memory, and says "begun". For each line that it reads it makes the call of that name, and prints the
 * call's result. "beside CALL": another thread makes the call, and prints its result when it has it. "fork": begins a
 * child, which ends at once, and prints how. */
#include "api.h"
#include <pthread.h>
#include <sys/wait.h>

static CUcontext context;
static CUdeviceptr memory, more, asynchronous;
static CUmodule module;
static CUfunction mix;
static CUevent event;
static CUstream stream;
static CUpool pool;

static CUresult call(const char *what) {
    uint64_t word = 7, ns = 1000, number = 0;
    void *computing[] = {&ns, &memory, &number};
    if (!strcmp(what, "launch"))
        return CALL(cuLaunchKernel, , 7000)(mix, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)0, computing, (void **)NULL);
    if (!strcmp(what, "to")) return CALL(cuMemcpyHtoD, _v2, 3020)(memory, &word, sizeof word);
    if (!strcmp(what, "from")) return CALL(cuMemcpyDtoH, _v2, 3020)(&word, memory, sizeof word);
    if (!strcmp(what, "async")) return CALL(cuMemcpyHtoDAsync, _v2, 3020)(memory, &word, sizeof word, (CUstream)0);
    if (!strcmp(what, "allocate")) return CALL(cuMemAlloc, _v2, 3020)(&more, (size_t)1 << 20);
    if (!strcmp(what, "free")) return CALL(cuMemFree, _v2, 3020)(memory);
    if (!strcmp(what, "wait")) return CALL(cuCtxSynchronize, , 2000)();
    if (!strcmp(what, "ask")) return CALL(cuEventQuery, , 2000)(event);
    if (!strcmp(what, "record")) return CALL(cuEventRecord, , 2000)(event, (CUstream)0);
    if (!strcmp(what, "event")) return CALL(cuEventCreate, , 2000)(&event, 0u);
    if (!strcmp(what, "stream")) return CALL(cuStreamCreate, , 2000)(&stream, 0u);
    if (!strcmp(what, "end-stream")) return CALL(cuStreamDestroy, _v2, 4000)(stream);
    if (!strcmp(what, "capturing")) return CALL(cuStreamIsCapturing, , 10000)(stream, (int *)&number);
    if (!strcmp(what, "module")) return CALL(cuModuleLoadData, , 2000)(&module, "");
    if (!strcmp(what, "function")) return CALL(cuModuleGetFunction, , 2000)(&mix, module, "mix");
    if (!strcmp(what, "pinned")) return CALL(cuMemHostAlloc, , 2020)((void **)&number, (size_t)4096, 0u);
    if (!strcmp(what, "info")) return CALL(cuMemGetInfo, _v2, 3020)((size_t *)&number, (size_t *)&word);
    if (!strcmp(what, "context")) return CALL(cuDevicePrimaryCtxRetain, , 7000)(&context, 0);
    if (!strcmp(what, "from-pool"))
        return CALL(cuMemAllocFromPoolAsync, , 11020)(&more, (size_t)1 << 20, pool, (CUstream)0);
    if (!strcmp(what, "free-async")) return CALL(cuMemFreeAsync, , 11020)(asynchronous, (CUstream)0);
    if (!strcmp(what, "reserve-stack")) return CALL(cuCtxSetLimit, , 3010)(0, (size_t)2048);
    return -1;
}

static void *beside(void *what) {
    CUresult result;
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    result = call(what);
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    printf("beside %d\n", result), fflush(stdout);
    return NULL;
}

static int forked(void) {
    int status = -1;
    const pid_t child = fork();
    if (!child) _exit(0);
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

int main(void) {
    char line[32];
    pthread_t thread;
    context = use_device(0);
    NEED(CALL(cuModuleLoadData, , 2000)(&module, ""));
    NEED(call("function"));
    NEED(call("stream"));
    NEED(CALL(cuDeviceGetDefaultMemPool, , 11020)(&pool, 0));
    NEED(CALL(cuMemAllocAsync, , 11020)(&asynchronous, (size_t)1 << 20, (CUstream)0));
    NEED(CALL(cuMemAlloc, _v2, 3020)(&memory, (size_t)1 << 20));
    NEED(CALL(cuEventCreate, , 2000)(&event, 0u));
    puts("begun"), fflush(stdout);
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "beside ", 7)) {
            pthread_create(&thread, NULL, beside, strdup(line + 7));
            continue;
        }
        printf("%d\n", strcmp(line, "fork") ? call(line) : forked()), fflush(stdout);
        FIGURE(void (*)(void), "kerf_virtual_leave")();
    }
    return 0;
}
