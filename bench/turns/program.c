/* A program that computes on the fake driver, one kernel after another.
 *
 *   program LIBCUDA SEED MIB KERNEL_US KERNELS [LOG]
 *
 * It allocates memory, and each kernel computes on its first word from the word and the kernel's number. Prints the
 * number of kernels and the word after the last one. With LOG it writes the end time of each kernel there, in ns of the
 * virtual clock, 8 bytes each; a SIGTERM ends it after the kernel that runs. It allocates and frees some memory every
 * 32 kernels, as frameworks do. It ends with its parent, however that ends. */
#define _GNU_SOURCE
#include "../../native/interposer/driver.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef CUresult (*call_t)();
static void *library;
static volatile sig_atomic_t ending;

static call_t driver(const char *name) {
    call_t found = (call_t)dlsym(library, name);
    if (!found) fprintf(stderr, "the driver has no %s\n", name), exit(3);
    return found;
}
#define MUST(name, ...)                                                                  \
    do {                                                                                 \
        CUresult result_ = driver(name)(__VA_ARGS__);                                    \
        if (result_) fprintf(stderr, "%s: %d\n", name, result_), exit(3);                \
    } while (0)
static void end(int number) { ending = number; }

int main(int argc, char **argv) {
    CUcontext context;
    CUdevice device;
    CUmodule module;
    CUfunction mix;
    CUdeviceptr memory, more;
    uint64_t word, ns, number = 0, kernels;
    int log = -1;
    if (argc < 6) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    word = strtoull(argv[2], NULL, 10), ns = strtoull(argv[4], NULL, 10) * 1000, kernels = strtoull(argv[5], NULL, 10);
    if (argc > 6 && (log = open(argv[6], O_WRONLY | O_CREAT | O_APPEND, 0600)) < 0) return perror(argv[6]), 3;
    library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
    signal(SIGTERM, end);
    MUST("cuInit", 0u);
    MUST("cuDeviceGet", &device, 0);
    MUST("cuDevicePrimaryCtxRetain", &context, device);
    MUST("cuCtxSetCurrent", context);
    MUST("cuMemAlloc_v2", &memory, (size_t)strtoull(argv[3], NULL, 10) << 20);
    MUST("cuMemcpyHtoD_v2", memory, &word, sizeof word);
    MUST("cuModuleLoadData", &module, "");
    MUST("cuModuleGetFunction", &mix, module, "mix");
    for (; number < kernels && !ending; number++) {
        void *parameters[] = {&ns, &memory, &number};
        MUST("cuLaunchKernel", mix, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)0, parameters, (void **)NULL);
        MUST("cuCtxSynchronize");
        if (number % 32 == 31) {
            MUST("cuMemAlloc_v2", &more, (size_t)16 << 20);
            MUST("cuMemFree_v2", more);
        }
        if (log >= 0) {
            const uint64_t now = ((uint64_t(*)(void))driver("kerf_virtual_now"))();
            if (write(log, &now, sizeof now) != sizeof now) return perror("log"), 3;
        }
    }
    MUST("cuMemcpyDtoH_v2", &word, memory, sizeof word);
    printf("%lu %lu\n", number, word);
    return 0;
}
