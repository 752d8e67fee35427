/* imports WAY BYTES: imports or binds memory, in blocks of BYTES, until it is refused; then frees or unbinds it. Prints how
 * many it got, the maximum of the device's used bytes, the account then, and the account afterwards.
 *   external  cuImportExternalMemory
 *   reset     the same, and resets the primary context instead of freeing it
 *   pool      allocations of another process's pool, which their owner has freed: two processes
 *   bind      memory that a multicast object binds, and whose handle is released
 *   bind_v2   the same by the form of CUDA 13
 *   endpoint  the same by a logical endpoint, which is not unbound here
 * imports again BYTES: opens memory of another process three times. Prints the account after each opening, and after
 * each closing. */
#include "api.h"
#include "../../../native/interposer/control_block.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MOST = 64 };
static struct kerf_counters *counters;
static uint64_t bytes, held[MOST];
static CUphysical object;
static int up[2], down[2];

static uint64_t account(void) { return counters->gpu[0].account & KERF_ACCOUNT_BYTES; }

/* Allocates, hands over, frees. */
static void owner(void) {
    ipc_t handle;
    uint64_t pointer;
    char token;
    close(up[0]), close(down[1]);
    use_device(0);
    while (read(down[0], &token, 1) == 1 && !CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)bytes)) {
        NEED(CALL(cuMemPoolExportPointer, , 11020)(&handle, pointer));
        if (write(up[1], &handle, sizeof handle) != sizeof handle || read(down[0], &token, 1) != 1) break;
        NEED(CALL(cuMemFree, _v2, 3020)(pointer));
    }
    close(up[1]);
    _exit(0);
}
static CUresult import(uint64_t *to) {
    static CUpool pool;
    ipc_t handle;
    CUresult result;
    if (!pool) NEED(CALL(cuMemPoolImportFromShareableHandle, , 11020)(&pool, NULL, 1, 0ull));
    if (write(down[1], "x", 1) != 1 || read(up[0], &handle, sizeof handle) != sizeof handle) return -1;
    result = CALL(cuMemPoolImportPointer, , 11020)(to, pool, &handle);
    if (!result && write(down[1], "x", 1) != 1) return -1;
    return result;
}

static void again(void) {
    enum { TIMES = 3 };
    ipc_t handle;
    uint64_t pointer, first = 0;
    char token;
    if (!fork()) {
        use_device(0);
        NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)bytes));
        NEED(CALL(cuIpcGetMemHandle, , 4010)(&handle, pointer));
        if (write(up[1], &handle, sizeof handle) == sizeof handle && read(down[0], &token, 1) == 1) _exit(0);
        _exit(6);
    }
    use_device(0);
    if (read(up[0], &handle, sizeof handle) != sizeof handle) exit(6);
    const uint64_t before = account();
    for (int i = 0; i < TIMES; i++) {
        NEED(CALL(cuIpcOpenMemHandle, _v2, 11000)(&pointer, handle, 1u));
        if (first && pointer != first) exit(7);
        first = pointer;
        printf("%lu ", account() - before);
    }
    for (int i = 0; i < TIMES; i++) {
        NEED(CALL(cuIpcCloseMemHandle, , 4010)(pointer));
        printf("%lu ", account() - before);
    }
    printf("\n");
    if (write(down[1], "x", 1) == 1) wait(NULL);
}

static CUresult take(const char *way, int i) {
    const external_desc_t external = {.type = 1, .size = bytes};
    const alloc_prop_t physical = {.type = 1, .location = {LOCATION_DEVICE, 0}};
    CUphysical memory;
    CUresult result;
    if (!strcmp(way, "external") || !strcmp(way, "reset"))
        return CALL(cuImportExternalMemory, , 10000)(&held[i], &external);
    if (!strcmp(way, "pool")) return import(&held[i]);
    result = CALL(cuMemCreate, , 10020)(&memory, (size_t)bytes, &physical, 0ull);
    if (result) return result;
    if (!strcmp(way, "bind"))
        NEED(CALL(cuMulticastBindMem, , 12010)(object, (size_t)i * bytes, memory, (size_t)0, (size_t)bytes, 0ull));
    if (!strcmp(way, "bind_v2"))
        NEED(CALL(cuMulticastBindMem, _v2, 13010)(object, 0, (size_t)i * bytes, memory, (size_t)0, (size_t)bytes, 0ull));
    if (!strcmp(way, "endpoint"))
        NEED(CALL(cuLogicalEndpointBindMem, , 13030)((uint64_t)1, 0, (uint64_t)i * bytes, memory, (uint64_t)0, bytes,
            0ull));
    return CALL(cuMemRelease, , 10020)(memory);
}
static void drop(const char *way, int i) {
    if (!strcmp(way, "external")) NEED(CALL(cuDestroyExternalMemory, , 10000)(held[i]));
    if (!strcmp(way, "pool") && i % 2) NEED(CALL(cuMemFree, _v2, 3020)(held[i]));
    if (!strcmp(way, "pool") && !(i % 2)) NEED(CALL(cuMemFreeAsync, , 11020)(held[i], NULL));
    if (!strncmp(way, "bind", 4))
        NEED(CALL(cuMulticastUnbind, , 12010)(object, 0, (size_t)i * bytes, (size_t)bytes));
}

int main(int argc, char **argv) {
    char path[512];
    int count = 0;
    uint64_t most, then;
    if (argc < 3) return 2;
    bytes = strtoull(argv[2], NULL, 10);
    open_driver();
    if (!strcmp(argv[1], "pool")) {
        if (pipe(up) || pipe(down)) return 4;
        if (!fork()) owner();
        close(up[1]), close(down[0]);
    }
    snprintf(path, sizeof path, "%s/counters", getenv("KERF_DIRECTORY"));
    counters = mmap(NULL, sizeof *counters, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
    if (counters == MAP_FAILED) return 4;
    if (!strcmp(argv[1], "again")) return pipe(up) || pipe(down) ? 4 : (again(), 0);
    use_device(0);
    if (!strncmp(argv[1], "bind", 4)) NEED(CALL(cuMulticastCreate, , 12010)(&object, NULL));
    while (count < MOST && !take(argv[1], count)) count++;
    most = device_used(0), then = account();
    if (!strcmp(argv[1], "pool")) close(down[1]), wait(NULL);
    for (int i = 0; i < count; i++) drop(argv[1], i);
    if (!strcmp(argv[1], "reset")) {
        NEED(CALL(cuDevicePrimaryCtxReset, , 11000)(0));
        use_device(0);
    }
    NEED(CALL(cuCtxSynchronize, , 2000)());
    CALL(cuMemGetInfo, _v2, 3020)(&(size_t){0}, &(size_t){0}); /* reclaims what the other process has left */
    printf("%d %lu %lu %lu\n", count, most, then, account());
    return 0;
}
