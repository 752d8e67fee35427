/* stays ORDINAL MIB STEPS: computes on the memory of its device, and says "begun". At each line that it reads it computes
 * on, allocates one MiB more, and prints the last byte of the device's UUID, the result so far, and 1 if it got the MiB. */
#include "api.h"

int main(int argc, char **argv) {
    CUdeviceptr memory, more;
    CUdevice device;
    CUcontext context;
    CUfunction mix;
    uint64_t word = 7, ns = 100000, number = 0;
    char line[16];
    if (argc < 4) return 2;
    NEED(CALL(cuInit, , 2000)(0));
    NEED(CALL(cuDeviceGet, , 2000)(&device, atoi(argv[1])));
    NEED(CALL(cuDevicePrimaryCtxRetain, , 7000)(&context, device));
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    mix = kernel("mix");
    NEED(CALL(cuMemAlloc, _v2, 3020)(&memory, (size_t)atol(argv[2]) << 20));
    NEED(CALL(cuMemcpyHtoD, _v2, 3020)(memory, &word, sizeof word));
    puts("begun"), fflush(stdout);
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    while (fgets(line, sizeof line, stdin)) {
        unsigned char uuid[16];
        int got;
        for (long step = atol(argv[3]); step > 0; step--, number++) {
            void *computing[] = {&ns, &memory, &number};
            NEED(CALL(cuLaunchKernel, , 7000)(mix, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)0, computing, (void **)NULL));
        }
        NEED(CALL(cuCtxSynchronize, , 2000)());
        NEED(CALL(cuMemcpyDtoH, _v2, 3020)(&word, memory, sizeof word));
        NEED(CALL(cuDeviceGetUuid, _v2, 11040)(uuid, device));
        got = !CALL(cuMemAlloc, _v2, 3020)(&more, (size_t)1 << 20);
        printf("%d %lu %d\n", uuid[15], word, got), fflush(stdout);
        FIGURE(void (*)(void), "kerf_virtual_leave")();
    }
    return 0;
}
