/* Uses a GPU as the CUDA runtime does, and prints the results as JSON lines. The canary and the benchmarks run it.
 * It does not depend on the interposer, which may be preloaded or not.
 *
 *   probe LIBCUDA memory CHUNK_KIB MOST_MIB
 *       Allocates with every kind of call until it is refused, frees, and repeats. It never allocates more than
 *       MOST_MIB, and nothing if the GPU reports more memory than that: then other processes use it.
 *   probe LIBCUDA limit CHUNK_KIB MOST_MIB
 *       The same whatever the GPU reports, for limits that are not the interposer's. First prints whether this process
 *       has loaded the interposer.
 *   probe LIBCUDA context COUNT
 *       Measures COUNT times how much GPU memory a context takes: another process creates one, launches a kernel, and
 *       asks NVML for its own memory (0: NVML does not know it), while this process reads the GPU's free memory. Also
 *       measures how much a memory pool takes at a time.
 *   probe LIBCUDA loop AT_NS MS KERNEL_US PERIOD_US DEPTH
 *       Starts at AT_NS (0: now) and runs for MS: every PERIOD_US (0: without a pause) a request of DEPTH kernels of
 *       KERNEL_US each, and a wait for them. Prints the requests' latencies.
 *       AT_NS "ready": prints a line, and starts after a line on its input.
 *   probe LIBCUDA saturate AT_NS MS KERNEL_US DEPTH
 *       Starts at AT_NS (0: now) and runs for MS: kernels without end, DEPTH of them queued. Prints the GPU time by
 *       second.
 *   probe LIBCUDA burst LAUNCHES KERNEL_US PAUSE_US ROUNDS
 *       ROUNDS bursts of LAUNCHES kernels, each followed by a pause in which it calls nothing. Prints the GPU time.
 *   probe LIBCUDA calibrate STEPS
 *       Measures how many steps of its kernel run in a nanosecond. Other probes, which may share the GPU when they
 *       start, take the value from KERF_PROBE_STEPS_PER_NS.
 *   probe LIBCUDA launch COUNT
 *       Measures the caller's CPU time per launch.
 *   probe LIBCUDA copy MIB MS CPUS
 *       Measures how fast pinned memory of MIB is copied to the device and from it: the best of the copies that begin
 *       within MS, two at least, in each direction. On CPUS (a list such as 0-3,8; -: wherever it runs), so that the
 *       memory is beside the device. Prints MB/s (0: too fast to tell), and whether it ran on CPUS.
 *   probe LIBCUDA processors MIB
 *       Prints the GPU's multiprocessors as this process sees them, and the result of an allocation of MIB.
 *   probe LIBCUDA use MIB
 *       Allocates MIB. Then prints a line, and another one for each line of its input: the result of the allocation, or
 *       of a kernel. The line "fault" stands for a kernel that writes where it may not.
 *   probe LIBCUDA hold MIB
 *       Allocates MIB, prints the result, and holds the memory until its input ends.
 *
 * Times are the driver's virtual times if it has them (the fake driver of the tests), otherwise CLOCK_MONOTONIC. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef CUresult (*call_t)();
static void *library;
static const char *library_path;
static uint64_t (*virtual_now)(void);
static void (*virtual_sleep)(uint64_t), (*virtual_leave)(void), (*virtual_expect)(int);
static uint64_t (*used_bytes)(int); /* the device's used memory, of the fake driver only */
static CUdevice device; /* the first that the process sees */
static CUfunction work;
static CUmodule module;
static double steps_per_ns = 1;

/* 64 threads of every block add until n steps are done: the kernel runs for a time that grows with n and cannot be
 * optimised away. */
static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry work(.param .u64 n)\n{\n.reg .u64 %r<4>;\n.reg .f32 %f<3>;\n.reg .pred %p<3>;\n"
    "ld.param.u64 %r1, [n];\nmov.u64 %r2, 0;\nmov.f32 %f1, 0f3F800000;\nmov.f32 %f2, 0f3F800001;\n"
    "again:\nfma.rn.f32 %f1, %f1, %f2, %f2;\nfma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "fma.rn.f32 %f1, %f1, %f2, %f2;\nfma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "add.u64 %r2, %r2, 1;\nsetp.lt.u64 %p1, %r2, %r1;\n@%p1 bra again;\n"
    "setp.eq.f32 %p2, %f1, 0f00000000;\n@%p2 trap;\nret;\n}\n"
    ".visible .entry fault()\n{\n.reg .u64 %r<2>;\n.reg .u32 %v<2>;\nmov.u64 %r1, 8;\nmov.u32 %v1, 1;\n"
    "st.global.u32 [%r1], %v1;\nret;\n}\n";

static call_t driver(const char *name) {
    call_t found = (call_t)dlsym(library, name);
    if (!found) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(3);
    }
    return found;
}
#define CALL(name, ...) driver(name)(__VA_ARGS__)
static void must(CUresult result, const char *what) {
    if (!result) return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(3);
}
#define MUST(name, ...) must(driver(name)(__VA_ARGS__), name)

static uint64_t real_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static uint64_t now(void) { return virtual_now ? virtual_now() : real_now(); }
static void sleep_until(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    if (virtual_sleep) virtual_sleep(ns);
    else while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) continue;
}

static int multiprocessors(void) {
    int count = 1;
    if (dlsym(library, "cuDeviceGetAttribute") && CALL("cuDeviceGetAttribute", &count, 16, device)) count = 1;
    return count;
}
static void launch(uint64_t ns) {
    static call_t go;
    static unsigned blocks;
    uint64_t steps = (uint64_t)((double)ns * steps_per_ns);
    void *parameters[] = {&steps};
    if (!go) go = driver("cuLaunchKernel"), blocks = 4 * (unsigned)multiprocessors();
    must(go(work, blocks, 1u, 1u, 64u, 1u, 1u, 0u, (CUstream)0, parameters, (void **)NULL), "cuLaunchKernel");
}

/* Measures the kernel's steps per nanosecond: the best of several launches. Time counts from the return of the
 * launch, because the launch may have waited at a gate. */
static void calibrate(uint64_t steps) {
    const char *known = getenv("KERF_PROBE_STEPS_PER_NS");
    uint64_t best = UINT64_MAX;
    if (known) steps_per_ns = strtod(known, NULL);
    if (virtual_now || known) return;
    for (int i = 0; i < 12; i++) {
        uint64_t begun, took;
        launch(steps);
        begun = now();
        MUST("cuCtxSynchronize");
        took = now() - begun;
        if (took < best) best = took;
    }
    steps_per_ns = (double)steps / (double)best;
}

/* Loads another library of the driver from the folder of libcuda, where it has the same version in its name, or from
 * where the linker finds it. */
static void *sibling(const char *name) {
    const char *file = strrchr(library_path, '/');
    const char *version = strstr(file ? file : library_path, ".so");
    char path[4096];
    void *found;
    snprintf(path, sizeof path, "%.*s%s%s", (int)(file ? file + 1 - library_path : 0), library_path, name,
        version ? version : ".so.1");
    found = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    snprintf(path, sizeof path, "%s.so.1", name);
    return found ? found : dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

/* The driver compiles the kernel with a library that it opens by name. In an agent that sees the host's files under
 * another path, the linker finds it only because it is loaded already. */
static void load(CUmodule *to) {
    CUresult result;
    sibling("libnvidia-ptxjitcompiler");
    result = CALL("cuModuleLoadData", to, ptx);
    if (result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND) {
        fprintf(stderr, "the driver's compiler libnvidia-ptxjitcompiler.so.1 is missing: it is neither beside %s nor "
            "where the linker looks (cuModuleLoadData: %d)\n", library_path, result);
        exit(3);
    }
    must(result, "cuModuleLoadData");
}

static void begin(const char *path) {
    CUcontext context;
    library_path = path;
    library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    *(void **)&virtual_now = dlsym(library, "kerf_virtual_now");
    *(void **)&virtual_sleep = dlsym(library, "kerf_virtual_sleep_until");
    *(void **)&virtual_leave = dlsym(library, "kerf_virtual_leave");
    *(void **)&virtual_expect = dlsym(library, "kerf_virtual_expect");
    *(void **)&used_bytes = dlsym(library, "kerf_fake_used_bytes");
    MUST("cuInit", 0u);
    MUST("cuDeviceGet", &device, 0);
    MUST("cuDevicePrimaryCtxRetain", &context, device);
    MUST("cuCtxSetCurrent", context);
    load(&module);
    MUST("cuModuleGetFunction", &work, module, "work");
}

/* Waits for a line on the input, so that probes under several control blocks start together. */
static void wait_for_start(void) {
    char line[8];
    if (virtual_expect) virtual_expect(2);
    printf("{\"ready\": true}\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) must(-1, "the line that starts the loop");
}

/* --- memory ----------------------------------------------------------------------------------------------------- */

typedef union { CUdeviceptr pointer; CUphysical physical; CUarray array; CUmipmap mipmap; } block_t;
static CUresult take_plain(block_t *b, size_t n) { return CALL("cuMemAlloc_v2", &b->pointer, n); }
static CUresult give_plain(block_t b) { return CALL("cuMemFree_v2", b.pointer); }
static CUresult take_managed(block_t *b, size_t n) { return CALL("cuMemAllocManaged", &b->pointer, n, 1u); }
static CUresult take_pitch(block_t *b, size_t n) {
    size_t pitch;
    return CALL("cuMemAllocPitch_v2", &b->pointer, &pitch, (size_t)4096, n / 4096, 4u);
}
static CUresult take_virtual(block_t *b, size_t n) {
    alloc_prop_t p = {.type = 1, .location = {LOCATION_DEVICE, device}};
    return CALL("cuMemCreate", &b->physical, n, &p, 0ull);
}
static CUresult give_virtual(block_t b) { return CALL("cuMemRelease", b.physical); }
static CUresult take_async(block_t *b, size_t n) { return CALL("cuMemAllocAsync", &b->pointer, n, (CUstream)0); }
static CUresult give_async(block_t b) {
    CUresult result = CALL("cuMemFreeAsync", b.pointer, (CUstream)0);
    return result ? result : CALL("cuCtxSynchronize");
}
static CUresult take_pool(block_t *b, size_t n) {
    CUpool pool;
    CUresult result = CALL("cuDeviceGetDefaultMemPool", &pool, device);
    return result ? result : CALL("cuMemAllocFromPoolAsync", &b->pointer, n, pool, (CUstream)0);
}
static CUresult take_array(block_t *b, size_t n) {
    array_desc_t d = {.width = 4096, .height = n / 4096 / 4, .format = 0x20, .channels = 1};
    return CALL("cuArrayCreate_v2", &b->array, &d);
}
static CUresult take_array3d(block_t *b, size_t n) {
    array3d_desc_t d = {.width = 1024, .height = 256, .depth = n / 1024 / 256 / 4, .format = 0x20, .channels = 1};
    return CALL("cuArray3DCreate_v2", &b->array, &d);
}
static CUresult give_array(block_t b) { return CALL("cuArrayDestroy", b.array); }
static CUresult take_mipmap(block_t *b, size_t n) {
    array3d_desc_t d = {.width = 4096, .height = n / 4096 / 4, .format = 0x20, .channels = 1};
    return CALL("cuMipmappedArrayCreate", &b->mipmap, &d, 1u);
}
static CUresult give_mipmap(block_t b) { return CALL("cuMipmappedArrayDestroy", b.mipmap); }

static const struct { const char *name, *needs; CUresult (*take)(block_t *, size_t), (*give)(block_t); } paths[] = {
    {"cuMemAlloc", "cuMemAlloc_v2", take_plain, give_plain},
    {"cuMemAllocManaged", "cuMemAllocManaged", take_managed, give_plain},
    {"cuMemAllocPitch", "cuMemAllocPitch_v2", take_pitch, give_plain},
    {"cuMemCreate", "cuMemCreate", take_virtual, give_virtual},
    {"cuMemAllocAsync", "cuMemAllocAsync", take_async, give_async},
    {"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", take_pool, give_async},
    {"cuArrayCreate", "cuArrayCreate_v2", take_array, give_array},
    {"cuArray3DCreate", "cuArray3DCreate_v2", take_array3d, give_array},
    {"cuMipmappedArrayCreate", "cuMipmappedArrayCreate", take_mipmap, give_mipmap},
};

static int has_interposer(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int found = 0;
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, "libkerf") != NULL;
    if (!maps) return 1;
    fclose(maps);
    return found;
}

static void memory(size_t chunk, size_t most, int whatever_is_shown) {
    enum { BLOCKS = 65536 };
    static block_t held[BLOCKS];
    size_t shown_free = 0, shown_total = 0;
    MUST("cuMemGetInfo_v2", &shown_free, &shown_total);
    printf("{\"shown_total\": %zu, \"shown_free\": %zu}\n", shown_total, shown_free);
    for (size_t p = 0; (whatever_is_shown || shown_total <= most) && p < sizeof paths / sizeof *paths; p++) {
        size_t got[2] = {0, 0}, used = 0;
        CUresult error = 0, freed = 0;
        if (!dlsym(library, paths[p].needs)) continue;
        for (int round = 0; round < 2; round++) {
            int n = 0;
            while (n < BLOCKS && (size_t)n * chunk < most && !(error = paths[p].take(&held[n], chunk))) n++;
            got[round] = (size_t)n * chunk;
            if (used_bytes && used_bytes(device) > used) used = used_bytes(device);
            while (n--) freed |= paths[p].give(held[n]);
        }
        printf("{\"path\": \"%s\", \"bytes\": %zu, \"again\": %zu, \"error\": %d, \"freed\": %d", paths[p].name, got[0],
            got[1], error, freed);
        printf(used_bytes ? ", \"device_bytes\": %zu}\n" : "}\n", used);
        fflush(stdout);
    }
}

/* --- time ------------------------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    return (*(const uint64_t *)a > *(const uint64_t *)b) - (*(const uint64_t *)a < *(const uint64_t *)b);
}

enum { WINDOWS = 3600, MOST_DEPTH = 64 };
static uint64_t done_ns[WINDOWS]; /* GPU time by second */

/* A kernel that ran across the end of a second counts in both. */
static void count_done(uint64_t begun, uint64_t from, uint64_t until) {
    while (from < until) {
        const uint64_t second = from < begun ? WINDOWS : (from - begun) / 1000000000u;
        const uint64_t edge = from < begun ? begun : begun + (second + 1) * 1000000000u;
        const uint64_t to = until < edge ? until : edge;
        if (second < WINDOWS) done_ns[second] += to - from;
        from = to;
    }
}

/* Kernels without end, `depth` of them queued at any time, as a program that does not wait for each. Prints the GPU
 * time in each second, by the driver's events: the program itself learns late of an end. */
static void saturate(uint64_t at, uint64_t ms, uint64_t kernel_us, int depth) {
    CUevent event[MOST_DEPTH], first;
    const uint64_t kernel_ns = kernel_us * 1000;
    uint64_t begun, end, origin, launched = 0, done = 0;
    if (depth > MOST_DEPTH) depth = MOST_DEPTH;
    calibrate(1000000);
    for (int i = 0; i < depth; i++) MUST("cuEventCreate", &event[i], 0u);
    if (at) sleep_until(at);
    MUST("cuEventCreate", &first, 0u);
    MUST("cuEventRecord", first, (CUstream)0);
    MUST("cuEventSynchronize", first);
    origin = now();
    begun = at ? at : origin;
    end = begun + ms * 1000000;
    while (now() < end || done < launched) {
        uint64_t ended;
        float after_ms;
        while (now() < end && launched - done < (uint64_t)depth) {
            launch(kernel_ns);
            MUST("cuEventRecord", event[launched++ % (uint64_t)depth], (CUstream)0);
        }
        if (done == launched) break;
        MUST("cuEventSynchronize", event[done % (uint64_t)depth]);
        MUST("cuEventElapsedTime", &after_ms, first, event[done++ % (uint64_t)depth]);
        ended = origin + (uint64_t)((double)after_ms * 1e6);
        count_done(begun, ended - kernel_ns, ended);
    }
    if (virtual_leave) virtual_leave();
    printf("{\"launches\": %lu, \"steps_per_ns\": %.6f, \"done_ns\": [", launched, steps_per_ns);
    for (uint64_t w = 0; w * 1000 < ms; w++) printf(w ? ", %lu" : "%lu", done_ns[w]);
    printf("]}\n");
}

static void burst(int launches, uint64_t kernel_us, uint64_t pause_us, int rounds) {
    const uint64_t begun = now();
    calibrate(1000000);
    for (int r = 0; r < rounds; r++) {
        for (int i = 0; i < launches; i++) launch(kernel_us * 1000);
        sleep_until(now() + pause_us * 1000);
    }
    MUST("cuCtxSynchronize");
    if (virtual_leave) virtual_leave();
    printf("{\"gpu_ns\": %lu, \"elapsed_ns\": %lu}\n", (uint64_t)launches * (uint64_t)rounds * kernel_us * 1000,
        now() - begun);
}

static void loop(uint64_t at, uint64_t ms, uint64_t kernel_us, uint64_t period_us, int depth) {
    enum { MOST = 4000000 };
    uint64_t *latency = malloc(MOST * sizeof *latency), count = 0, end, begun, next, idle = kernel_us * 1000;
    calibrate(1000000);
    if (at) sleep_until(at);
    begun = next = at ? at : now();
    end = begun + ms * 1000000;
    while (now() < end && count < MOST) {
        uint64_t asked = period_us ? next : now();
        if (period_us) {
            if (now() < asked) sleep_until(asked);
            next += period_us * 1000;
        }
        for (int i = 0; i < depth; i++) launch(idle);
        MUST("cuCtxSynchronize");
        latency[count++] = now() - asked;
        if ((now() - begun) / 1000000000u < WINDOWS) done_ns[(now() - begun) / 1000000000u] += idle * (uint64_t)depth;
    }
    if (virtual_leave) virtual_leave();
    qsort(latency, count, sizeof *latency, by_size);
    printf("{\"requests\": %lu, \"p50_ns\": %lu, \"p99_ns\": %lu, ", count, count ? latency[count / 2] : 0,
           count ? latency[count * 99 / 100] : 0);
    printf("\"max_ns\": %lu, \"steps_per_ns\": %.6f, \"done_ns\": [", count ? latency[count - 1] : 0, steps_per_ns);
    for (uint64_t w = 0; w * 1000 < ms; w++) printf(w ? ", %lu" : "%lu", done_ns[w]);
    printf("]}\n");
}

/* Measures the caller's time only, on the real clock. */
/* CPU time: a launch that waits at the gate costs nothing meanwhile. */
static uint64_t cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void cost(long count) {
    double best = 1e18;
    for (int round = 0; round < 5; round++) {
        uint64_t begun = cpu_now();
        double took;
        for (long i = 0; i < count; i++) launch(0);
        took = (double)(cpu_now() - begun) / (double)count;
        MUST("cuCtxSynchronize");
        if (took < best) best = took;
    }
    printf("{\"ns_per_launch\": %.2f}\n", best);
}

/* Keeps this process on some CPUs; 0 if it may not run on any of them. */
static int run_on(const char *list) {
    cpu_set_t set;
    CPU_ZERO(&set);
    while (*list) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (end == list) return 0;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        for (; first <= last && first < CPU_SETSIZE; first++) CPU_SET(first, &set);
        list = *end == ',' ? end + 1 : end;
    }
    return !sched_setaffinity(0, sizeof set, &set);
}

static uint64_t copied_mb_s(CUdeviceptr there, void *here, size_t bytes, uint64_t ms, int to_device) {
    enum { MOST = 1000 }; /* on a clock that stands still */
    const uint64_t begun = now();
    uint64_t best = UINT64_MAX;
    for (int n = 0; n < 2 || (n < MOST && now() - begun < ms * 1000000); n++) {
        const uint64_t from = now();
        uint64_t took;
        if (to_device) MUST("cuMemcpyHtoDAsync_v2", there, here, bytes, (CUstream)0);
        else MUST("cuMemcpyDtoHAsync_v2", here, there, bytes, (CUstream)0);
        MUST("cuCtxSynchronize");
        took = now() - from;
        if (took && took < best) best = took;
    }
    return best == UINT64_MAX ? 0 : (uint64_t)((double)bytes * 1e3 / (double)best);
}

static void copy(size_t bytes, uint64_t ms, int near) {
    CUdeviceptr there;
    void *here;
    uint64_t to, from;
    MUST("cuMemHostAlloc", &here, bytes, 0u);
    MUST("cuMemAlloc_v2", &there, bytes);
    memset(here, 1, bytes);
    to = copied_mb_s(there, here, bytes, ms, 1);
    from = copied_mb_s(there, here, bytes, ms, 0);
    if (virtual_leave) virtual_leave();
    printf("{\"to_device_mb_s\": %lu, \"from_device_mb_s\": %lu, \"near\": %s}\n", to, from, near ? "true" : "false");
}

static void hold(size_t bytes) {
    CUdeviceptr pointer;
    char word;
    CUresult result = CALL("cuMemAlloc_v2", &pointer, bytes);
    printf("{\"result\": %d}\n", result);
    fflush(stdout);
    if (virtual_leave) virtual_leave();
    while (read(0, &word, 1) > 0) continue;
}

static void processors(size_t bytes) {
    CUdeviceptr pointer;
    CUresult result = CALL("cuMemAlloc_v2", &pointer, bytes);
    printf("{\"processors\": %d, \"result\": %d}\n", multiprocessors(), result);
}

static CUresult run_once(CUfunction kernel) {
    uint64_t steps = 1000;
    void *parameters[] = {&steps};
    CUresult result = CALL("cuLaunchKernel", kernel, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)0, parameters, (void **)NULL);
    return result ? result : CALL("cuCtxSynchronize");
}

static void use(size_t bytes) {
    CUdeviceptr pointer;
    CUfunction fault;
    char line[16];
    CUresult result = CALL("cuMemAlloc_v2", &pointer, bytes);
    MUST("cuModuleGetFunction", &fault, module, "fault");
    do {
        if (virtual_leave) virtual_leave();
        printf("{\"result\": %d}\n", result);
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return;
        result = run_once(strncmp(line, "fault", 5) ? work : fault);
    } while (1);
}

static void use_once(const char *path) {
    begin(path);
    launch(0);
    MUST("cuCtxSynchronize");
    if (virtual_leave) virtual_leave();
}

/* The memory of this process on the GPU as NVML reports it, with its context; 0: not reported. It is listed by its ID
 * in the PID namespace of the host. */
static uint64_t own_bytes(void) {
    enum { MOST = 1024 };
    static struct { unsigned pid; unsigned long long used; unsigned instances[2]; } list[MOST];
    unsigned char id[16];
    unsigned count = MOST;
    char uuid[48];
    void *nvml = sibling("libnvidia-ml"), *handle;
    int (*start)(void), (*find)(const char *, void **), (*processes)(void *, unsigned *, void *);
    if (!nvml || CALL(dlsym(library, "cuDeviceGetUuid_v2") ? "cuDeviceGetUuid_v2" : "cuDeviceGetUuid", id, device))
        return 0;
    *(void **)&start = dlsym(nvml, "nvmlInit_v2");
    *(void **)&find = dlsym(nvml, "nvmlDeviceGetHandleByUUID");
    *(void **)&processes = dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    strcpy(uuid, "GPU-");
    for (int i = 0, at = 4; i < 16; i++)
        at += snprintf(uuid + at, sizeof uuid - (size_t)at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
            id[i]);
    if (!start || !find || !processes || start() || find(uuid, &handle) || processes(handle, &count, list)) return 0;
    for (unsigned i = 0; i < count && i < MOST; i++)
        if (list[i].pid == (unsigned)getpid() && list[i].used != ~0ull) return list[i].used; /* ~0: not available */
    return 0;
}

static size_t free_bytes(void) {
    size_t available, total;
    MUST("cuMemGetInfo_v2", &available, &total);
    return available;
}

static uint64_t pool_chunk(void) {
    uint64_t reserved = 0;
    CUdeviceptr pointer;
    CUpool pool;
    if (!dlsym(library, "cuMemPoolGetAttribute") || CALL("cuMemAllocAsync", &pointer, (size_t)512, (CUstream)0))
        return 0;
    MUST("cuDeviceGetMemPool", &pool, device);
    MUST("cuMemPoolGetAttribute", pool, POOL_RESERVED_CURRENT, &reserved);
    MUST("cuMemFreeAsync", pointer, (CUstream)0);
    return reserved;
}

/* Forks the other processes before it uses the driver: a child of a process that uses the driver cannot use it. */
static void contexts(const char *path, int count) {
    enum { MOST = 16 };
    int go[MOST][2], done[MOST][2];
    uint64_t own[MOST];
    char word = 0;
    if (count > MOST) count = MOST;
    for (int i = 0; i < count; i++) {
        if (pipe(go[i]) || pipe(done[i])) must(-1, "pipe");
        switch (fork()) {
        case -1: must(-1, "fork"); break;
        case 0:
            for (int other = 0; other <= i; other++) close(go[other][1]);
            if (read(go[i][0], &word, 1) != 1) _exit(0);
            use_once(path);
            own[i] = own_bytes();
            if (write(done[i][1], &own[i], sizeof own[i]) != sizeof own[i] || read(go[i][0], &word, 1) < 0) _exit(4);
            _exit(0);
        default: close(go[i][0]), close(done[i][1]);
        }
    }
    use_once(path);
    printf("{\"context_bytes\": [");
    for (int i = 0; i < count; i++) {
        const size_t before = free_bytes();
        size_t after;
        if (write(go[i][1], &word, 1) != 1 || read(done[i][0], &own[i], sizeof own[i]) != sizeof own[i])
            must(-1, "the process that makes a context");
        after = free_bytes();
        printf(i ? ", %ld" : "%ld", (long)before - (long)after);
        close(go[i][1]);
        if (wait(NULL) < 0) must(-1, "wait");
    }
    printf("], \"own_bytes\": [");
    for (int i = 0; i < count; i++) printf(i ? ", %lu" : "%lu", own[i]);
    printf("], \"pool_chunk_bytes\": %lu}\n", pool_chunk());
}

int main(int count, char **words) {
    const char *what = count > 3 ? words[2] : "";
    int near = 0;
    if (count < 4) return 2;
    if (!strcmp(what, "context")) return contexts(words[1], atoi(words[3])), 0;
    if (!strcmp(what, "copy") && count == 6) near = !strcmp(words[5], "-") || run_on(words[5]);
    begin(words[1]);
    if (!strcmp(words[3], "ready")) wait_for_start();
    if (!strcmp(what, "memory") && count == 5) memory(strtoull(words[3], NULL, 10) << 10,
        strtoull(words[4], NULL, 10) << 20, 0);
    else if (!strcmp(what, "limit") && count == 5) {
        printf("{\"preloaded\": %s}\n", has_interposer() ? "true" : "false");
        memory(strtoull(words[3], NULL, 10) << 10, strtoull(words[4], NULL, 10) << 20, 1);
    } else if (!strcmp(what, "loop") && count == 8)
        loop(strtoull(words[3], NULL, 10), strtoull(words[4], NULL, 10), strtoull(words[5], NULL, 10),
            strtoull(words[6], NULL, 10), atoi(words[7]));
    else if (!strcmp(what, "saturate") && count == 7)
        saturate(strtoull(words[3], NULL, 10), strtoull(words[4], NULL, 10), strtoull(words[5], NULL, 10),
            atoi(words[6]));
    else if (!strcmp(what, "burst") && count == 7)
        burst(atoi(words[3]), strtoull(words[4], NULL, 10), strtoull(words[5], NULL, 10), atoi(words[6]));
    else if (!strcmp(what, "calibrate")) {
        calibrate(strtoull(words[3], NULL, 10));
        printf("{\"steps_per_ns\": %.9f}\n", steps_per_ns);
    } else if (!strcmp(what, "launch")) cost(atol(words[3]));
    else if (!strcmp(what, "copy") && count == 6)
        copy(strtoull(words[3], NULL, 10) << 20, strtoull(words[4], NULL, 10), near);
    else if (!strcmp(what, "processors")) processors(strtoull(words[3], NULL, 10) << 20);
    else if (!strcmp(what, "use")) use(strtoull(words[3], NULL, 10) << 20);
    else if (!strcmp(what, "hold")) hold(strtoull(words[3], NULL, 10) << 20);
    else return 2;
    return 0;
}
