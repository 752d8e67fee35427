/* view: prints what a process sees of its slice: total and free by cuMemGetInfo, total by cuDeviceTotalMem, before
 * and after an allocation of 64 MiB; and whether dlsym still finds other symbols. */
#include "api.h"

int main(void) {
    size_t available, total, device;
    uint64_t pointer;
    open_driver();
    use_device(0);
    NEED(CALL(cuMemGetInfo, _v2, 3020)(&available, &total));
    NEED(CALL(cuDeviceTotalMem, _v2, 3020)(&device, 0));
    printf("%zu %zu %zu ", total, available, device);
    NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)64 << 20));
    NEED(CALL(cuMemGetInfo, _v2, 3020)(&available, &total));
    printf("%zu ", available);
    printf("%d %d %d\n", dlsym(RTLD_DEFAULT, "getpid") == (void *)getpid, dlsym(RTLD_NEXT, "getpid") == (void *)getpid,
        dlsym(library, "cuNoSuchThing") == NULL);
    return 0;
}
