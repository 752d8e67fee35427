/* kinds arrays|pool|several: calls that are charged by what they are given.
 *   arrays   makes an array of each of four formats and a layered one with all levels. Prints for each what the account
 *            shows less of free memory, and what the device has more, in MiB
 *   pool     allocates from no pool, five times. Prints the result, and what the account shows less
 *   several  launches on two GPUs in one call. Prints the result */
#include "api.h"

static uint64_t left(void) {
    size_t unused, bytes;
    NEED(CALL(cuMemGetInfo, _v2, 3020)(&bytes, &unused));
    return bytes;
}

static void told(uint64_t left_before, uint64_t used_before) {
    printf("%lu %lu ", (left_before - left()) >> 20, (device_used(0) - used_before) >> 20);
}

static void arrays(void) {
    const unsigned formats[] = {0x02, 0xc5, 0x01, 0xc8}; /* 16 bits, and 8 */
    const array3d_desc_t layered = {16384, 0, 2048, 0x20, 4, 1};
    uint64_t before, used;
    CUmipmap levels;
    CUarray array;
    for (int i = 0; i < 4; i++) {
        array_desc_t flat = {4096, 4096, formats[i], 4};
        before = left(), used = device_used(0);
        NEED(CALL(cuArrayCreate, _v2, 3020)(&array, &flat));
        told(before, used);
    }
    before = left(), used = device_used(0);
    NEED(CALL(cuMipmappedArrayCreate, , 5000)(&levels, &layered, 14u));
    told(before, used);
    puts("");
}

static void pool(void) {
    const uint64_t before = left();
    CUdeviceptr pointer;
    CUpool another;
    const pool_prop_t here = {.type = 1, .location = {LOCATION_DEVICE, 0}};
    int result = 0;
    for (int i = 0; i < 5; i++)
        result = CALL(cuMemAllocFromPoolAsync, , 11020)(&pointer, (size_t)10 << 20, NULL, NULL);
    NEED(CALL(cuMemPoolCreate, , 11020)(&another, &here));
    printf("%d %lu\n", result, (before - left()) >> 20);
}

static void several(void) {
    CUcontext first = use_device(0);
    CUfunction here = kernel("ns_1000"), there;
    CUstream on_first = stream_here(), on_second;
    launch_params_t both[2] = {{here, {1, 1, 1}, {1, 1, 1}, 0, on_first, NULL}};
    use_device(1);
    there = kernel("ns_1000000"), on_second = stream_here();
    both[1] = (launch_params_t){there, {1, 1, 1}, {1, 1, 1}, 0, on_second, NULL};
    NEED(CALL(cuCtxSetCurrent, , 4000)(first));
    printf("%d\n", (int)CALL(cuLaunchCooperativeKernelMultiDevice, , 9000)(both, 2u, 0u));
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    use_device(0);
    if (!strcmp(argv[1], "arrays")) arrays();
    if (!strcmp(argv[1], "pool")) pool();
    if (!strcmp(argv[1], "several")) several();
    return 0;
}
