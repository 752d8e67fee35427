/* peers: a second process, which works on GPU 0, opens the 40 MiB that this one has on GPU 1. Prints what each GPU of the
 * container has left then, in MiB. */
#include "api.h"
#include <sys/wait.h>

int main(int argc, char **argv) {
    CUdeviceptr pointer;
    ipc_t share;
    if (argc > 1) {
        size_t left[2], unused;
        for (size_t i = 0; i < sizeof share; i++) sscanf(argv[1] + 2 * i, "%2hhx", (unsigned char *)&share + i);
        use_device(0);
        NEED(CALL(cuIpcOpenMemHandle, _v2, 11000)(&pointer, share, 1u));
        for (int gpu = 0; gpu < 2; gpu++) {
            use_device(gpu);
            NEED(CALL(cuMemGetInfo, _v2, 3020)(&left[gpu], &unused));
        }
        printf("%lu %lu\n", left[0] >> 20, left[1] >> 20);
        return 0;
    }
    use_device(1);
    NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)40 << 20));
    NEED(CALL(cuIpcGetMemHandle, , 4010)(&share, pointer));
    char text[2 * sizeof share + 1];
    for (size_t i = 0; i < sizeof share; i++) sprintf(text + 2 * i, "%02hhx", ((unsigned char *)&share)[i]);
    if (!fork()) {
        execl("/proc/self/exe", argv[0], text, NULL);
        _exit(1);
    }
    return wait(NULL) < 0;
}
