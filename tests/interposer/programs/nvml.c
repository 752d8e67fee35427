/* nvml: allocates 64 MiB and prints NVML's figures: total, used, free. */
#include "api.h"

int main(void) {
    unsigned long long memory[3];
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *handle;
    uint64_t pointer;
    if (!nvml) return fprintf(stderr, "%s\n", dlerror()), 2;
    open_driver();
    use_device(0);
    NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)64 << 20));
    if (((int (*)(void))dlsym(nvml, "nvmlInit_v2"))()) return 3;
    if (((int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &handle)) return 3;
    if (((int (*)(void *, void *))dlsym(nvml, "nvmlDeviceGetMemoryInfo"))(handle, memory)) return 3;
    return printf("%llu %llu %llu\n", memory[0], memory[2], memory[1]), 0;
}
