/* needs: allocates memory, and says "begun". For each line that it reads it makes the call of that name, and prints the
 * call's result. */
#include "api.h"

static CUdeviceptr memory, more;
static CUfunction mix;
static CUevent event;

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
    return -1;
}

int main(void) {
    char line[16];
    use_device(0);
    mix = kernel("mix");
    NEED(CALL(cuMemAlloc, _v2, 3020)(&memory, (size_t)1 << 20));
    NEED(CALL(cuEventCreate, , 2000)(&event, 0u));
    puts("begun"), fflush(stdout);
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        printf("%d\n", call(line)), fflush(stdout);
        FIGURE(void (*)(void), "kerf_virtual_leave")();
    }
    return 0;
}
