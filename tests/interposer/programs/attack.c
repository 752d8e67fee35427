/* attack WAY: tries to get more device memory than the slice's limit, in blocks of 8 MiB. Prints the device's used
 * bytes.
 *   environment  starts itself again without LD_PRELOAD in its environment
 *   versioned    uses dlvsym instead of dlsym
 *   namespace    loads the driver into a linker namespace of its own
 *   inside       runs code in such a namespace, which looks the driver up there
 *   orders       tries to make the mapped orders writable: prints errno instead
 *   scribble     writes zeros over its account
 *   unlock       closes a second descriptor of the counters, which releases locks that belong to a process
 *   daemon       closes all descriptors and lets other files take their numbers: tests whether it is counted, and which
 *                processes it takes for dead
 *   first        the original forms of old calls, by name and by low versions of cuGetProcAddress: prints how many work
 *   later        forms of calls that are newer than the library: prints how many it got; and a wait of CUDA 13
 *   remap        maps something else over the counters: its slot looks dead, and a second process frees its charges
 *   import       exports its memory, frees it, and imports it again
 *   unmapped     the same, and maps nothing of it: no other process can use the memory
 *   partly       the same, maps a small part of it first, and then all
 *   sparse       releases a handle that a sparse array still maps
 *   pool         allocates from the pool of one GPU on a stream of another: prints that GPU's bytes
 *   ipc          the same through cuIpc, in two processes
 *   contexts     creates contexts without end: prints how many it got
 *   retain       releases a handle that it still maps */
#include "api.h"
#include "../../../native/interposer/control_block.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PIECE = 8 << 20, MOST = 64 };
static const alloc_prop_t physical = {.type = 1, .location = {LOCATION_DEVICE, 0}};

static int fill(any_t alloc) {
    uint64_t pointer;
    int count = 0;
    while (count < MOST && !alloc(&pointer, (size_t)PIECE)) count++;
    return count;
}

static char *map_file(const char *name, char *path, int *file) {
    snprintf(path, 512, "%s/%s", getenv("KERF_DIRECTORY"), name);
    *file = open(path, O_RDWR);
    return *file < 0 ? NULL : mmap(NULL, sizeof(struct kerf_counters), PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
}

/* Returns where the interposer itself has mapped a file. */
static void *mapped(const char *name) {
    char line[600];
    void *at = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !at && fgets(line, sizeof line, maps))
        if (strstr(line, name)) at = (void *)strtoul(line, NULL, 16);
    if (maps) fclose(maps);
    return at;
}

static void exported(void) {
    CUphysical handle, imported;
    uint64_t place;
    int fd, count = 0;
    while (count < MOST && !CALL(cuMemCreate, , 10020)(&handle, (size_t)PIECE, &physical, 0ull)) {
        NEED(CALL(cuMemExportToShareableHandle, , 10020)(&fd, handle, 1, 0ull));
        if (CALL(cuMemImportFromShareableHandle, , 10020)(&imported, (void *)(uintptr_t)fd, 1)) break;
        NEED(CALL(cuMemRelease, , 10020)(handle));
        NEED(CALL(cuMemAddressReserve, , 10020)(&place, (size_t)PIECE, (size_t)0, (uint64_t)0, 0ull));
        if (CALL(cuMemMap, , 10020)(place, (size_t)PIECE, (size_t)0, imported, 0ull)) {
            NEED(CALL(cuMemRelease, , 10020)(imported));
            break;
        }
        count++;
    }
}

static uint64_t place_for(size_t bytes) {
    uint64_t place;
    NEED(CALL(cuMemAddressReserve, , 10020)(&place, bytes, (size_t)0, (uint64_t)0, 0ull));
    return place;
}
static void lent(int maps) {
    CUphysical handle, imported;
    int fd, granule = 2 << 20;
    for (int count = 0; count < MOST && !CALL(cuMemCreate, , 10020)(&handle, (size_t)PIECE, &physical, 0ull); count++) {
        NEED(CALL(cuMemExportToShareableHandle, , 10020)(&fd, handle, 1, 0ull));
        if (CALL(cuMemImportFromShareableHandle, , 10020)(&imported, (void *)(uintptr_t)fd, 1)) imported = 0;
        NEED(CALL(cuMemRelease, , 10020)(handle));
        if (!imported) break;
        if (!maps) continue;
        if (CALL(cuMemMap, , 10020)(place_for((size_t)granule), (size_t)granule, (size_t)0, imported, 0ull) ||
            CALL(cuMemMap, , 10020)(place_for(PIECE), (size_t)PIECE, (size_t)0, imported, 0ull))
            NEED(CALL(cuMemRelease, , 10020)(imported));
    }
}
static void sparse(void) {
    CUphysical handle;
    for (int count = 0; count < MOST && !CALL(cuMemCreate, , 10020)(&handle, (size_t)PIECE, &physical, 0ull); count++) {
        const map_info_t map = {.operation = 1, .handle = handle};
        NEED(CALL(cuMemMapArrayAsync, , 11010)(&map, 1u, NULL));
        NEED(CALL(cuMemRelease, , 10020)(handle));
    }
}
static void anothers_pool(void) {
    CUpool pool;
    uint64_t pointer;
    NEED(CALL(cuDeviceGetDefaultMemPool, , 11020)(&pool, 1));
    for (int i = 0; i < MOST && !CALL(cuMemAllocFromPoolAsync, , 11020)(&pointer, (size_t)PIECE, pool, NULL); i++) {}
}

static void by_ipc(void) {
    ipc_t handle;
    uint64_t pointer, opened;
    int up[2], down[2], count = 0;
    char token = 1;
    if (pipe(up) || pipe(down)) exit(4);
    if (!fork()) { /* the owner: allocates, hands over, frees */
        close(up[0]), close(down[1]);
        use_device(0);
        while (read(down[0], &token, 1) == 1 && !CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)PIECE)) {
            NEED(CALL(cuIpcGetMemHandle, , 4010)(&handle, pointer));
            if (write(up[1], &handle, sizeof handle) != sizeof handle || read(down[0], &token, 1) != 1) break;
            NEED(CALL(cuMemFree, _v2, 3020)(pointer));
        }
        close(up[1]);
        _exit(0);
    }
    close(up[1]), close(down[0]);
    use_device(0);
    while (count < MOST && write(down[1], &token, 1) == 1 && read(up[0], &handle, sizeof handle) == sizeof handle) {
        if (CALL(cuIpcOpenMemHandle, _v2, 11000)(&opened, handle, 0u)) break;
        count++;
        if (write(down[1], &token, 1) != 1) break;
    }
    close(down[1]);
    wait(NULL);
}

/* A child holds 64 MiB of 100. The parent closes all descriptors, as daemons do, and allocates what it gets. Then
 * the child does the same. */
static void daemonised(void) {
    int up[2], down[2];
    uint64_t pointer;
    char token;
    if (pipe(up) || pipe(down)) exit(4);
    if (!fork()) {
        use_device(0);
        NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)64 << 20));
        if (write(up[1], "x", 1) != 1 || read(down[0], &token, 1) != 1) _exit(4);
        fill(CALL(cuMemAlloc, _v2, 3020));
        printf("%lu\n", device_used(0));
        fflush(stdout);
        _exit(0);
    }
    if (read(up[0], &token, 1) != 1) exit(4);
    use_device(0);
    NEED(CALL(cuMemAlloc, _v2, 3020)(&pointer, (size_t)PIECE));
    for (int file = 3; file < 65536; file++)
        if (file != down[1]) close(file);
    for (int file = 0; file < 300; file++)
        if (open("/dev/zero", O_RDWR) < 0) exit(4);
    fill(CALL(cuMemAlloc, _v2, 3020));
    if (write(down[1], "x", 1) != 1) exit(4);
    wait(NULL);
}

/* On the fake driver these allocate memory like their newer forms. */
static int later_forms(void) {
    CUcontext context = NULL;
    Dl_info info;
    void *by_version = NULL, *waits = NULL;
    int status, working = dlsym(library, "cuMemAlloc_v3") != NULL;
    working += get_v2("cuMemAlloc", &by_version, 14000, (uint64_t)0, &status) != CUDA_ERROR_NOT_FOUND || by_version;
    NEED(CALL(cuCtxGetCurrent, , 4000)(&context));
    NEED(get_v2("cuCtxSynchronize", &waits, 13000, (uint64_t)0, &status));
    NEED(((any_t)waits)(context));
    return working + (!dladdr(waits, &info) || strstr(info.dli_fname, "libkerf") == NULL); /* it accounts the work */
}
static int first_names(void) {
    static const char *const names[] = {"cuMemAlloc", "cuMemAllocPitch", "cuMemFree", "cuMemGetInfo", "cuArrayCreate",
        "cuArray3DCreate", "cuDeviceTotalMem"};
    uint64_t room[4], bytes;
    int working = 0, status;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        any_t by_name = (any_t)dlsym(library, names[i]);
        void *v1 = NULL, *v2 = NULL;
        working += !by_name || by_name(room, &bytes, 4096, 4096, 4) != CUDA_ERROR_NOT_SUPPORTED;
        working += get_v1(names[i], &v1, 2000, (uint64_t)0) != CUDA_ERROR_NOT_FOUND || v1;
        working += get_v2(names[i], &v2, 3010, (uint64_t)0, &status) != CUDA_ERROR_NOT_FOUND || v2 || status != 2;
    }
    return working;
}

static void retained(void) {
    CUphysical handle;
    uint64_t place;
    int count = 0;
    while (count < MOST && !CALL(cuMemCreate, , 10020)(&handle, (size_t)PIECE, &physical, 0ull)) {
        NEED(CALL(cuMemAddressReserve, , 10020)(&place, (size_t)PIECE, (size_t)0, (uint64_t)0, 0ull));
        NEED(CALL(cuMemMap, , 10020)(place, (size_t)PIECE, (size_t)0, handle, 0ull));
        NEED(CALL(cuMemRelease, , 10020)(handle));
        count++;
    }
}

int main(int argc, char **argv) {
    char path[512];
    int file, go[2], count = 0;
    any_t alloc;
    if (argc < 2) return 2;
    if (!strcmp(argv[1], "environment") && getenv("LD_PRELOAD")) {
        unsetenv("LD_PRELOAD");
        execv("/proc/self/exe", argv);
    }
    if (!strcmp(argv[1], "inside")) {
        void *own = (snprintf(path, sizeof path, "%s/inside.so", getenv("KERF_TEST_PROGRAMS")),
            dlmopen(LM_ID_NEWLM, path, RTLD_NOW));
        if (!own) return fprintf(stderr, "%s\n", dlerror()), 2;
        return printf("%lu\n", ((uint64_t(*)(void))dlsym(own, "inside"))()), 0;
    }
    if (!strcmp(argv[1], "namespace")) {
        void *own = dlmopen(LM_ID_NEWLM, getenv("KERF_TEST_DRIVER"), RTLD_NOW);
        if (!own) return fprintf(stderr, "%s\n", dlerror()), 2;
        open_driver();
        use_device(0);
        fill((any_t)dlsym(own, "cuMemAlloc_v2"));
        return printf("%lu\n", device_used(0)), 0;
    }
    open_driver();
    if (!strcmp(argv[1], "daemon")) return daemonised(), 0;
    if ((!strcmp(argv[1], "unlock") || !strcmp(argv[1], "remap")) && !pipe(go) && !fork()) {
        close(go[1]);
        if (read(go[0], path, 1)) return 4;
        use_device(0);
        fill(CALL(cuMemAlloc, _v2, 3020));
        return printf("%lu\n", device_used(0)), 0;
    }
    if (!strcmp(argv[1], "ipc")) return by_ipc(), printf("%lu\n", device_used(0)), 0;
    use_device(0);
    alloc = CALL(cuMemAlloc, _v2, 3020);
    if (!strcmp(argv[1], "versioned")) alloc = (any_t)dlvsym(library, "cuMemAlloc_v2", "KERF_ANY");
    if (!alloc) return printf("0\n"), 0; /* dlvsym has no such version */
    if (!strcmp(argv[1], "import")) return exported(), printf("%lu\n", device_used(0)), 0;
    if (!strcmp(argv[1], "unmapped") || !strcmp(argv[1], "partly"))
        return lent(argv[1][3] == 't'), printf("%lu\n", device_used(0)), 0;
    if (!strcmp(argv[1], "sparse")) return sparse(), printf("%lu\n", device_used(0)), 0;
    if (!strcmp(argv[1], "pool")) return anothers_pool(), printf("%lu\n", device_used(1)), 0;
    if (!strcmp(argv[1], "later")) return printf("%d %lu\n", later_forms(), device_used(0)), 0;
    if (!strcmp(argv[1], "first")) return printf("%d %lu\n", first_names(), device_used(0)), 0;
    if (!strcmp(argv[1], "retain")) return retained(), printf("%lu\n", device_used(0)), 0;
    if (!strcmp(argv[1], "orders")) {
        void *at = mapped("/orders");
        return printf("%d\n", !at ? -1 : mprotect(at, 4096, PROT_READ | PROT_WRITE) ? errno : 0), 0;
    }
    if (!strcmp(argv[1], "contexts")) {
        CUcontext context;
        while (count < 4096 && !CALL(cuCtxCreate, _v2, 3020)(&context, 0u, 0)) {
            NEED(CALL(cuCtxPopCurrent, _v2, 4000)(&context));
            count++;
        }
        return printf("%d\n", count), 0;
    }
    fill(alloc);
    if (!strcmp(argv[1], "scribble")) {
        struct kerf_counters *counters = (void *)map_file("counters", path, &file);
        counters->gpu[0].account = 0;
        fill(alloc);
    } else if (!strcmp(argv[1], "unlock") || !strcmp(argv[1], "remap")) {
        void *theirs = mapped("/counters"), *other = map_file("counters", path, &file);
        const size_t size = sizeof(struct kerf_counters);
        if (!strcmp(argv[1], "remap") && mremap(other, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, theirs) == MAP_FAILED)
            return 4;
        close(file);
        close(go[1]);
        wait(NULL); /* for the second process, which prints the device's bytes */
        return 0;
    }
    printf("%lu\n", device_used(0));
    return 0;
}
