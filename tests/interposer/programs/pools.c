/* pools WAY PIECE: allocates through memory pools, in blocks of PIECE bytes. After each step it compares the
 * device's used bytes with the limit and with the container's account. Prints the maximum of the used bytes, by how
 * much the account was below them at worst, the number of blocks, and the used bytes after everything was freed and
 * waited for.
 *   keep     a pool that keeps all memory is filled and freed without a wait; then the same amount is allocated plainly
 *   waited   the same with a wait in between: the memory that the pool keeps must be available
 *   small    allocates until it is refused
 *   destroy  a pool is filled and destroyed while its memory is in use; then the same amount is allocated plainly
 *   trim     filled, freed, waited for and trimmed; then filled again from another pool
 *   heap     cuCtxSetLimit for heap, printf and stack, each as much as possible; then plain allocations */
#include "api.h"
#include "../../../native/interposer/control_block.h"
#include <fcntl.h>
#include <sys/mman.h>

enum { MOST = 4096 };
static struct kerf_counters *counters;
static uint64_t most, hidden, piece;
static int got;

static void look(void) {
    const uint64_t used = device_used(0), account = counters->gpu[0].account & KERF_ACCOUNT_BYTES;
    if (used > most) most = used;
    if (used > account && used - account > hidden) hidden = used - account;
}
static int fill(uint64_t *held, CUpool pool) {
    int count = 0;
    while (count < MOST) {
        const CUresult result = pool ? CALL(cuMemAllocFromPoolAsync, , 11020)(&held[count], (size_t)piece, pool, NULL)
                                     : CALL(cuMemAlloc, _v2, 3020)(&held[count], (size_t)piece);
        look();
        if (result) break;
        count++;
    }
    got += count;
    return count;
}
static void empty(const uint64_t *held, int count, int waits) {
    for (int i = 0; i < count; i++) {
        NEED(CALL(cuMemFreeAsync, , 11020)(held[i], NULL));
        look();
    }
    if (waits) NEED(CALL(cuCtxSynchronize, , 2000)());
    look();
}

int main(int argc, char **argv) {
    static uint64_t first[MOST], second[MOST];
    const pool_prop_t property = {.type = 1, .location = {LOCATION_DEVICE, 0}};
    uint64_t all = UINT64_MAX;
    char path[512];
    CUpool pool;
    int a, b;
    if (argc < 3) return 2;
    piece = strtoull(argv[2], NULL, 10);
    open_driver();
    use_device(0);
    snprintf(path, sizeof path, "%s/counters", getenv("KERF_DIRECTORY"));
    counters = mmap(NULL, sizeof *counters, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
    if (counters == MAP_FAILED) return 4;
    NEED(CALL(cuMemPoolCreate, , 11020)(&pool, &property));
    if (strcmp(argv[1], "small") && strcmp(argv[1], "destroy"))
        NEED(CALL(cuMemPoolSetAttribute, , 11020)(pool, 4, &all));
    if (!strcmp(argv[1], "heap")) {
        static const size_t units[] = {1 << 10, 1 << 20, 1 << 20};
        for (int limit = 2; limit >= 0; limit--)
            for (size_t n = 12; !CALL(cuCtxSetLimit, , 2000)(limit, n * units[limit]) && n < 44; n += 8) look();
        look();
        b = fill(second, NULL);
        empty(second, b, 1);
        NEED(CALL(cuDevicePrimaryCtxReset, _v2, 11000)(0));
        use_device(0);
        return printf("%lu %lu %d %lu\n", most, hidden, got, device_used(0)), 0;
    }
    a = fill(first, pool);
    if (!strcmp(argv[1], "small")) return empty(first, a, 1),
        printf("%lu %lu %d %lu\n", most, hidden, got, device_used(0)), 0;
    if (!strcmp(argv[1], "destroy")) NEED(CALL(cuMemPoolDestroy, , 11020)(pool));
    else empty(first, a, strcmp(argv[1], "keep"));
    look();
    if (!strcmp(argv[1], "trim")) {
        NEED(CALL(cuMemPoolTrimTo, , 11020)(pool, (size_t)0));
        look();
        NEED(CALL(cuMemPoolDestroy, , 11020)(pool));
        NEED(CALL(cuDeviceGetDefaultMemPool, , 11020)(&pool, 0));
        b = fill(second, pool);
    } else b = fill(second, NULL);
    if (!strcmp(argv[1], "destroy")) empty(first, a, 0);
    empty(second, b, 1);
    if (!strcmp(argv[1], "keep") || !strcmp(argv[1], "waited")) NEED(CALL(cuMemPoolDestroy, , 11020)(pool));
    look();
    printf("%lu %lu %d %lu\n", most, hidden, got, device_used(0));
    return 0;
}
