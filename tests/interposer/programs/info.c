/* info MIB: allocates MIB and prints the free bytes that the driver shows, and NVML's if it is there; again for each line
 * on its input. */
#include "api.h"

int main(int argc, char **argv) {
    unsigned long long memory[3] = {0, 0, 0};
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *handle = NULL;
    size_t available, total, mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t pointer;
    char line[8];
    open_driver();
    use_device(0);
    if (nvml && ((int (*)(void))dlsym(nvml, "nvmlInit_v2"))()) return 3;
    if (nvml && ((int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &handle)) return 3;
    if (mib) NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, mib << 20));
    do {
        if (nvml && ((int (*)(void *, void *))dlsym(nvml, "nvmlDeviceGetMemoryInfo"))(handle, memory)) return 3;
        NEED(CALL(cuMemGetInfo, _v2, 3020)(&available, &total));
        printf(nvml ? "%zu %llu\n" : "%zu\n", available, memory[1]);
        fflush(stdout);
        FIGURE(void (*)(void), "kerf_virtual_leave")();
    } while (fgets(line, sizeof line, stdin));
    return 0;
}
