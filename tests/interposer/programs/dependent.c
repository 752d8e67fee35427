/* dependent: 20 times a kernel of 20 us and one that may begin before its end (programmatic dependent launch), then a
 * wait. Prints how many of the second kind lost the overlap to the record of an event, and the GPU time. */
#include "api.h"

int main(void) {
    const launch_attribute_t allowed = {.id = LAUNCH_PROGRAMMATIC_SERIALIZATION, .value = {.allowed = 1}};
    launch_config_t config = {{1, 1, 1}, {1, 1, 1}, 0, NULL, &allowed, 1};
    CUfunction f;
    open_driver();
    use_device(0);
    NEED(CALL(cuStreamCreate, , 2000)(&config.stream, 1u));
    f = kernel("ns_20000");
    for (int i = 0; i < 20; i++) {
        NEED(launch(f, config.stream));
        NEED(CALL(cuLaunchKernelEx, , 11060)(&config, f, (void **)NULL, (void **)NULL));
    }
    NEED(CALL(cuStreamSynchronize, , 2000)(config.stream));
    printf("%lu %lu\n", FIGURE(uint64_t(*)(const char *), "kerf_fake_calls")("overlap lost"), gpu_ns(0));
    return 0;
}
