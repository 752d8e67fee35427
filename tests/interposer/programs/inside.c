/* A library that attack opens in a linker namespace of its own, with its own C library and dlsym. It allocates
 * blocks of 8 MiB until one is refused, 64 at most, and returns the device's used bytes. */
#include "api.h"

uint64_t inside(void);
uint64_t inside(void) {
    uint64_t pointer;
    setenv("KERF_TEST_WAY", "path", 1);
    open_driver();
    use_device(0);
    for (int i = 0; i < 64 && !CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)8 << 20); i++) {}
    return device_used(0);
}
