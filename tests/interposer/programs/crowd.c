/* crowd PROCESSES ROUNDS LIMIT: PROCESSES processes allocate and free at random. Each checks after every allocation
 * whether the device's used memory exceeds the limit. Prints the maximum excess, the number of refusals, and the
 * rest. With KERF_TEST_POOLS=1, all memory comes from each process's memory pool, with an occasional wait for the
 * GPU. crowd victim: allocates and frees without end, to be killed. crowd look: the device's bytes. */
#include "api.h"
#include <sys/wait.h>

static uint64_t drawn;
static uint64_t draw(uint64_t below) {
    drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
    return drawn % below;
}

typedef struct { uint64_t over, refused; } seen_t;

static CUresult get(uint64_t *to, size_t bytes) {
    return getenv("KERF_TEST_POOLS") ? CALL(cuMemAllocAsync, , 11020)(to, bytes, NULL)
        : CALL(cuMemAlloc, _v2, 3020)(to, bytes);
}
static void drop(uint64_t what) {
    if (getenv("KERF_TEST_POOLS")) NEED(CALL(cuMemFreeAsync, , 11020)(what, NULL));
    else NEED(CALL(cuMemFree, _v2, 3020)(what));
}
static void await(void) {
    NEED(CALL(cuCtxSynchronize, , 2000)());
    FIGURE(void (*)(void), "kerf_virtual_leave")();
}

static void churn(int rounds, uint64_t limit, int report) {
    uint64_t held[16] = {0}, used;
    seen_t seen = {0, 0};
    use_device(0);
    for (int i = 0; i < rounds || rounds < 0; i++) {
        uint64_t *place = &held[draw(16)];
        if (*place) {
            drop(*place);
            *place = 0;
            continue;
        }
        if (getenv("KERF_TEST_POOLS") && !draw(8)) await();
        if (get(place, (size_t)1 + draw(64 << 20))) *place = 0, seen.refused++;
        used = device_used(0);
        if (used > limit && used - limit > seen.over) seen.over = used - limit;
    }
    for (int i = 0; i < 16; i++)
        if (held[i]) drop(held[i]);
    if (getenv("KERF_TEST_POOLS")) await();
    if (write(report, &seen, sizeof seen) != sizeof seen) exit(4);
}

int main(int argc, char **argv) {
    uint64_t most = 0, refused = 0;
    int pipes[2], processes, failed = 0, status;
    seen_t seen;
    if (argc < 2) return 2;
    drawn = (uint64_t)getpid() * 2654435761u + 1;
    open_driver();
    if (!strcmp(argv[1], "look")) return printf("%lu\n", device_used(0)), 0;
    if (!strcmp(argv[1], "victim")) return churn(-1, UINT64_MAX, 1), 0;
    if (argc < 4 || pipe(pipes)) return 2;
    processes = atoi(argv[1]);
    for (int i = 0; i < processes; i++) {
        if (fork()) continue;
        drawn = (uint64_t)getpid() * 2654435761u + 1;
        churn(atoi(argv[2]), strtoull(argv[3], NULL, 10), pipes[1]);
        _exit(0);
    }
    close(pipes[1]);
    while (read(pipes[0], &seen, sizeof seen) == sizeof seen) {
        if (seen.over > most) most = seen.over;
        refused += seen.refused;
    }
    while (wait(&status) > 0) failed += status != 0;
    printf("%lu %lu %lu %d\n", most, refused, device_used(0), failed);
    return 0;
}
