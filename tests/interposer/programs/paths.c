/* paths NAME BYTES: allocates with one call until it is refused, frees all, and prints: the number of allocations,
 * the maximum of the device's used bytes, the used bytes then and after freeing, and the error of the refusal. paths
 * list: the names. */
#include "api.h"

enum { MOST = 1 << 16 };
static uint64_t held[MOST];
static CUpool pool;

static CUresult get(const char *name, uint64_t bytes, uint64_t *to) {
    const alloc_prop_t physical = {.type = 1, .location = {LOCATION_DEVICE, 0}};
    const array_desc_t flat = {bytes / 4, 0, 0x20, 1};
    const array3d_desc_t cube = {256, bytes / 4 / 256 / 16, 16, 0x20, 1, 0};
    size_t pitch;
    if (!strcmp(name, "cuMemAlloc")) return CALL(cuMemAlloc, _v2, 3020)(to, bytes);
    if (!strcmp(name, "cuMemAllocManaged")) return CALL(cuMemAllocManaged, , 6000)(to, bytes, 1u);
    if (!strcmp(name, "cuMemAllocPitch")) return CALL(cuMemAllocPitch, _v2, 3020)(to, &pitch, (size_t)5000,
        bytes / 5120, 4u);
    if (!strcmp(name, "cuMemAllocAsync")) return CALL(cuMemAllocAsync, , 11020)(to, bytes, NULL);
    if (!strcmp(name, "cuMemAllocFromPoolAsync")) return CALL(cuMemAllocFromPoolAsync, , 11020)(to, bytes, pool, NULL);
    if (!strcmp(name, "cuMemCreate")) return CALL(cuMemCreate, , 10020)(to, bytes, &physical, 0ull);
    if (!strcmp(name, "cuArrayCreate")) return CALL(cuArrayCreate, _v2, 3020)(to, &flat);
    if (!strcmp(name, "cuArray3DCreate")) return CALL(cuArray3DCreate, _v2, 3020)(to, &cube);
    if (!strcmp(name, "cuMipmappedArrayCreate")) return CALL(cuMipmappedArrayCreate, , 5000)(to, &cube, 3u);
    fprintf(stderr, "no path %s\n", name), exit(2);
}
static CUresult drop(const char *name, uint64_t what) {
    if (!strcmp(name, "cuMemAllocAsync") || !strcmp(name, "cuMemAllocFromPoolAsync"))
        return CALL(cuMemFreeAsync, , 11020)(what, NULL);
    if (!strcmp(name, "cuMemCreate")) return CALL(cuMemRelease, , 10020)(what);
    if (!strcmp(name, "cuMipmappedArrayCreate")) return CALL(cuMipmappedArrayDestroy, , 5000)(what);
    if (!strncmp(name, "cuArray", 7)) return CALL(cuArrayDestroy, , 2000)(what);
    return CALL(cuMemFree, _v2, 3020)(what);
}

int main(int argc, char **argv) {
    const pool_prop_t property = {.type = 1, .location = {LOCATION_DEVICE, 0}};
    CUresult result = CUDA_SUCCESS;
    uint64_t most, bytes;
    int count = 0;
    if (argc < 3) return 2;
    bytes = strtoull(argv[2], NULL, 10);
    open_driver();
    use_device(0);
    NEED(CALL(cuMemPoolCreate, , 11020)(&pool, &property));
    while (count < MOST && !(result = get(argv[1], bytes, &held[count]))) count++;
    most = device_used(0);
    for (int i = 0; i < count; i++) NEED(drop(argv[1], held[i]));
    NEED(CALL(cuCtxSynchronize, , 2000)()); /* pools release memory then */
    printf("%d %lu %lu %d\n", count, most, device_used(0), result);
    return 0;
}
