/* green memory|reset|settings|time|ends: green contexts.
 *   memory  creates two green contexts without a primary context of its own, allocates 8 MiB in one until it is
 *           refused, destroys both. Prints the number of allocations, the maximum of the device's used bytes, the account
 *           then, and the used bytes and the account at the end, when the primary context has ended with them
 *   reset   the same, but resets the primary context first, and destroys two others
 *   settings  asks for a heap of 1 GiB while the primary context is current, and while a green one is, and for 32 MiB.
 *           Prints the results and the device's used MiB
 *   time    launches 40 kernels of 1 ms on a green context's stream while the primary context is current, and waits
 *   ends    the same without the wait: the green context is destroyed while they run. Both print the GPU time */
#include "api.h"
#include "../../../native/interposer/control_block.h"
#include <fcntl.h>
#include <sys/mman.h>

static CUgreen green(void) {
    char resource[256] = "";
    CUgreen made;
    void *description;
    NEED(CALL(cuDeviceGetDevResource, , 12040)(0, resource, 1));
    NEED(CALL(cuDevResourceGenerateDesc, , 12040)(&description, resource, 1u));
    NEED(CALL(cuGreenCtxCreate, , 12040)(&made, description, 0, 1u));
    return made;
}

static int memory(int reset) {
    struct kerf_counters *counters;
    uint64_t pointer, most, then;
    CUgreen first, second;
    CUcontext context;
    char path[512];
    int count = 0;
    NEED(CALL(cuInit, , 2000)(0));
    first = green(), second = green();
    snprintf(path, sizeof path, "%s/counters", getenv("KERF_DIRECTORY"));
    counters = mmap(NULL, sizeof *counters, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
    if (counters == MAP_FAILED) return 4;
    NEED(CALL(cuCtxFromGreenCtx, , 12040)(&context, first));
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    while (!CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)8 << 20)) count++;
    most = device_used(0), then = counters->gpu[0].account & KERF_ACCOUNT_BYTES;
    if (reset) {
        NEED(CALL(cuDevicePrimaryCtxReset, , 11000)(0));
        first = green(), second = green();
    }
    NEED(CALL(cuGreenCtxDestroy, , 12040)(first));
    NEED(CALL(cuGreenCtxDestroy, , 12040)(second));
    printf("%d %lu %lu %lu\n", count, most, then, (uint64_t)(counters->gpu[0].account & KERF_ACCOUNT_BYTES));
    return 0;
}

static int settings(void) {
    CUcontext context;
    CUgreen one;
    int plain, in_green, fits;
    use_device(0);
    one = green();
    plain = CALL(cuCtxSetLimit, , 3010)(2, (size_t)1 << 30);
    NEED(CALL(cuCtxFromGreenCtx, , 12040)(&context, one));
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    in_green = CALL(cuCtxSetLimit, , 3010)(2, (size_t)1 << 30);
    fits = CALL(cuCtxSetLimit, , 3010)(2, (size_t)32 << 20);
    printf("%d %d %d %lu\n", plain, in_green, fits, device_used(0) >> 20);
    return 0;
}

int main(int argc, char **argv) {
    CUstream stream;
    CUfunction f;
    CUgreen one;
    if (argc < 2) return 2;
    open_driver();
    if (!strcmp(argv[1], "memory") || !strcmp(argv[1], "reset")) return memory(!strcmp(argv[1], "reset"));
    if (!strcmp(argv[1], "settings")) return settings();
    use_device(0);
    one = green();
    NEED(CALL(cuGreenCtxStreamCreate, , 12050)(&stream, one, 1u, 0));
    f = kernel("ns_1000000");
    for (int i = 0; i < 40; i++) NEED(launch(f, stream));
    if (!strcmp(argv[1], "time")) NEED(CALL(cuStreamSynchronize, , 2000)(stream));
    NEED(CALL(cuGreenCtxDestroy, , 12040)(one));
    NEED(CALL(cuCtxSynchronize, , 2000)());
    printf("%lu\n", gpu_ns(0));
    return 0;
}
