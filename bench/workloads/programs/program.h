/* What every workload's program shares: how it finds the driver (as the CUDA runtime: cuGetProcAddress only), the record
 * of its calls, its phases, and its kernels, in PTX for a GPU. The fake driver of the tests knows the kernels by name.
 *
 *   PROGRAM LIMIT_MIB BEYOND_MIB ROUNDS DEVICES TOGETHER
 *       LIMIT_MIB   memory that the program may take, on each device
 *       BEYOND_MIB  memory that no allocation may get
 *       ROUNDS      how much it does
 *       DEVICES     how many devices it uses
 *       TOGETHER    how many programs begin their timed parts at the same time
 *
 * It prints JSON lines. At each line with "at" it waits for a line on its input, so that the harness can read the account
 * and the driver's figures at that point: "start" (a context and a module, nothing else) and "end" (all of it freed). At
 * "timed" the line says when the timed part begins, in ns of CLOCK_MONOTONIC (0: at once). The last line has the results, the times and all calls by thread, phase, name and result.
 *
 * Times are the driver's virtual times if it has them (the fake driver), otherwise CLOCK_MONOTONIC. */
#ifndef PROGRAM_H
#define PROGRAM_H
#define _GNU_SOURCE
#include "../../../native/interposer/driver.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define MAX_DEVICES 8
#define MIX_BY UINT64_C(6364136223846793005) /* of the kernel mix */
#define OK CUDA_SUCCESS
typedef CUresult (*driver_t)();

static void *driver_library;
static uint64_t (*virtual_now)(void), (*container_bytes)(int), (*container_peak)(int);
static void (*virtual_sleep)(uint64_t), (*virtual_leave)(void), (*virtual_expect)(int);

static struct { size_t limit, beyond; long rounds; int devices, together; } asked;
static const char *phase = "begin";
static _Thread_local const char *thread_name = "main";
static int unexpected; /* calls that failed and should not have */

/* --- the record of calls ---------------------------------------------------------------------------------------- */

enum { RECORDS = 4096 };
static struct { const char *thread, *phase, *name; CUresult result; uint64_t count; } record[RECORDS];
static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;

static void note_call(const char *name, CUresult result) {
    uint64_t at = ((uintptr_t)thread_name * 31 + (uintptr_t)phase * 17 + (uintptr_t)name * 7 + (unsigned)result)
        * UINT64_C(0x9e3779b97f4a7c15) >> 52;
    pthread_mutex_lock(&recording);
    for (;; at = (at + 1) % RECORDS) {
        if (!record[at].name) record[at].thread = thread_name, record[at].phase = phase, record[at].name = name,
            record[at].result = result;
        if (record[at].name == name && record[at].thread == thread_name && record[at].phase == phase
            && record[at].result == result)
            break;
    }
    record[at].count++;
    pthread_mutex_unlock(&recording);
}

static driver_t find_call(const char *name) {
    static CUresult (*get)(const char *, void **, int, uint64_t, int *);
    void *found = NULL;
    int status = 0;
    if (!get) *(void **)&get = dlsym(driver_library, "cuGetProcAddress_v2");
    if (!get) fprintf(stderr, "the driver has no cuGetProcAddress_v2: it is older than CUDA 12\n"), exit(3);
    if (get(name, &found, 12000, (uint64_t)0, &status) || !found)
        fprintf(stderr, "the driver has no %s\n", name), exit(3);
    return (driver_t)found;
}

/* TRY(cuMemAlloc, &pointer, bytes): a call of the driver by its plain name, recorded with its result. */
#define TRY(name, ...)                                               \
    ({                                                               \
        static driver_t call_;                                       \
        CUresult result_;                                            \
        if (!call_) call_ = find_call(#name);                        \
        result_ = call_(__VA_ARGS__);                                \
        note_call(#name, result_);                                   \
        result_;                                                     \
    })
/* The same of a call that must succeed. It is told, and the program goes on, so that all that fails is told. */
#define CALL(name, ...)                                                                                       \
    ({                                                                                                        \
        CUresult needed_ = TRY(name, ##__VA_ARGS__);                                                          \
        if (needed_) {                                                                                        \
            fprintf(stderr, "%s:%d: %s in phase %s: %d\n", __FILE__, __LINE__, #name, phase, needed_);        \
            if (__atomic_add_fetch(&unexpected, 1, __ATOMIC_SEQ_CST) > 20) exit(4);                           \
        }                                                                                                     \
        needed_;                                                                                              \
    })

/* --- time ------------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void) {
    struct timespec t;
    if (virtual_now) return virtual_now();
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static void sleep_until(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    if (virtual_sleep) virtual_sleep(ns);
    else while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) continue;
}
static void sleep_us(uint64_t us) { sleep_until(now_ns() + us * 1000); }
static void leave(void) { if (virtual_leave) virtual_leave(); }

static uint64_t timed_ns, gpu_ns; /* of the timed part; gpu_ns: what its kernels take on the first device */
static _Thread_local int counts_time = 1;
static uint64_t wait_for_line(void) {
    char line[32];
    fflush(stdout);
    leave();
    if (!fgets(line, sizeof line, stdin)) fprintf(stderr, "the harness has gone\n"), exit(5);
    return strtoull(line, NULL, 10);
}
static void begin_timed(void) {
    uint64_t at;
    printf("{\"at\": \"timed\"}\n");
    at = wait_for_line();
    if (virtual_expect && asked.together > 1) virtual_expect(asked.together);
    sleep_until(at > now_ns() ? at : now_ns());
    timed_ns = now_ns();
    gpu_ns = 0;
}
static void end_timed(void) { timed_ns = now_ns() - timed_ns; }

/* --- kernels ---------------------------------------------------------------------------------------------------- */

/* mix(steps, to, value): spins, then *to = *to * MIX_BY + value by one thread; to 0: only spins.
 * meet(steps, counter, count): adds one to the counter in the host's memory, spins until it is `count`, then as above. */
static const char ptx[] = ".version 6.4\n.target sm_70\n.address_size 64\n"
    ".visible .entry mix(.param .u64 n, .param .u64 to, .param .u64 value)\n{\n"
    ".reg .u64 %r<8>;\n.reg .u32 %u<5>;\n.reg .f32 %f<3>;\n.reg .pred %p<6>;\n"
    "ld.param.u64 %r1, [n];\nld.param.u64 %r3, [to];\nld.param.u64 %r4, [value];\n"
    "mov.u64 %r2, 0;\nmov.f32 %f1, 0f3F800000;\nmov.f32 %f2, 0f3F800001;\n"
    "again:\nfma.rn.f32 %f1, %f1, %f2, %f2;\nfma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "fma.rn.f32 %f1, %f1, %f2, %f2;\nfma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "add.u64 %r2, %r2, 1;\nsetp.lt.u64 %p1, %r2, %r1;\n@%p1 bra again;\n"
    "setp.eq.f32 %p2, %f1, 0f00000000;\n@%p2 trap;\n"
    "mov.u32 %u1, %ctaid.x;\nmov.u32 %u2, %tid.x;\nor.b32 %u3, %u1, %u2;\nsetp.ne.u32 %p3, %u3, 0;\n@%p3 bra done;\n"
    "setp.eq.u64 %p4, %r3, 0;\n@%p4 bra done;\n"
    "cvta.to.global.u64 %r5, %r3;\nld.global.u64 %r6, [%r5];\n"
    "mad.lo.u64 %r6, %r6, 6364136223846793005, %r4;\nst.global.u64 [%r5], %r6;\n"
    "done:\nret;\n}\n"
    ".visible .entry meet(.param .u64 n, .param .u64 counter, .param .u64 count)\n{\n"
    ".reg .u64 %r<8>;\n.reg .u32 %u<5>;\n.reg .pred %p<6>;\n"
    "ld.param.u64 %r1, [n];\nld.param.u64 %r3, [counter];\nld.param.u64 %r4, [count];\n"
    "mov.u32 %u1, %ctaid.x;\nmov.u32 %u2, %tid.x;\nor.b32 %u3, %u1, %u2;\nsetp.ne.u32 %p3, %u3, 0;\n@%p3 bra out;\n"
    "cvta.to.global.u64 %r5, %r3;\natom.sys.global.add.u64 %r6, [%r5], 1;\n"
    "spin:\nld.volatile.global.u64 %r6, [%r5];\nsetp.lt.u64 %p1, %r6, %r4;\n@%p1 bra spin;\n"
    "out:\nret;\n}\n";

static double steps_per_ns = 1;
static unsigned blocks = 1;

static CUresult launch_mix(CUfunction mix, CUstream stream, uint64_t ns, CUdeviceptr to, uint64_t value) {
    uint64_t steps = (uint64_t)((double)ns * steps_per_ns);
    void *parameters[] = {&steps, &to, &value};
    if (counts_time) __atomic_add_fetch(&gpu_ns, ns, __ATOMIC_SEQ_CST);
    return CALL(cuLaunchKernel, mix, blocks, 1u, 1u, 64u, 1u, 1u, 0u, stream, parameters, (void **)NULL);
}
/* The same as a launch that may begin before the previous one has ended (programmatic dependent launch). */
static CUresult launch_dependent(CUfunction mix, CUstream stream, uint64_t ns, CUdeviceptr to, uint64_t value) {
    uint64_t steps = (uint64_t)((double)ns * steps_per_ns);
    void *parameters[] = {&steps, &to, &value};
    const launch_attribute_t allowed = {.id = LAUNCH_PROGRAMMATIC_SERIALIZATION, .value = {.allowed = 1}};
    const launch_config_t config = {{blocks, 1, 1}, {64, 1, 1}, 0, stream, &allowed, 1};
    if (counts_time) __atomic_add_fetch(&gpu_ns, ns, __ATOMIC_SEQ_CST);
    return CALL(cuLaunchKernelEx, &config, mix, parameters, (void **)NULL);
}
static CUfunction load_mix(CUmodule *module) {
    CUfunction mix = NULL;
    if (!CALL(cuModuleLoadData, module, ptx)) CALL(cuModuleGetFunction, &mix, *module, "mix");
    return mix;
}

/* As the probe of the canary: the best of several launches; the harness measures it once, on an idle GPU. */
static void calibrate(CUfunction mix) {
    const char *known = getenv("KERF_PROBE_STEPS_PER_NS");
    if (known) steps_per_ns = strtod(known, NULL);
    else if (!virtual_now) {
        uint64_t best = UINT64_MAX;
        for (int i = 0; i < 12; i++) {
            uint64_t begun;
            launch_mix(mix, NULL, 1000000, 0, 0);
            begun = now_ns();
            CALL(cuCtxSynchronize);
            if (now_ns() - begun < best) best = now_ns() - begun;
        }
        steps_per_ns = 1000000 / (double)best;
    }
}

/* --- phases ----------------------------------------------------------------------------------------------------- */

static void say_memory(void) {
    size_t available = 0, total = 0;
    CALL(cuMemGetInfo, &available, &total);
    printf("\"shown_free\": %zu, \"shown_total\": %zu, \"device_bytes\": [", available, total);
    for (int d = 0; container_bytes && d < asked.devices; d++) printf(d ? ", %lu" : "%lu", container_bytes(d));
    printf("]");
}
/* Stops here until the harness has read what it needs. `held`: memory that the program has allocated now, on the first
 * device, without contexts; UNKNOWN: the driver decides how much it keeps. */
#define UNKNOWN SIZE_MAX
static int processes = 1; /* of this program that have a context */
static size_t imported; /* of `held`, what is other processes' memory: it is charged twice */
static void checkpoint(const char *name, size_t held) {
    phase = name;
    printf("{\"at\": \"%s\", \"processes\": %d, \"imported\": %zu, ", name, processes, imported);
    if (held != UNKNOWN) printf("\"held\": %zu, ", held);
    say_memory();
    printf("}\n");
    wait_for_line();
}

/* Asks for more than the slice has, once and in pieces: every refusal must be that of a full GPU, no more than the slice
 * may be had, and all else must work afterwards. `use` is a function that does a little of the workload. */
static size_t got_bytes;
static CUresult beyond_result, refusal;
static void go_beyond(void (*use)(void)) {
    enum { PIECES = 65536 };
    static CUdeviceptr held[PIECES];
    const size_t piece = asked.beyond / 256 < 2 * MIB ? 2 * MIB : asked.beyond / 256 / (2 * MIB) * (2 * MIB);
    CUdeviceptr pointer = 0;
    int count = 0;
    phase = "beyond";
    beyond_result = TRY(cuMemAlloc, &pointer, asked.beyond);
    if (!beyond_result) TRY(cuMemFree, pointer);
    phase = "fill";
    while (count < PIECES && (size_t)count * piece <= asked.beyond && !(refusal = TRY(cuMemAlloc, &held[count], piece)))
        count++;
    got_bytes = (size_t)count * piece;
    while (count--) CALL(cuMemFree, held[count]);
    phase = "after the refusal";
    use();
    CALL(cuCtxSynchronize);
}

static CUcontext use_device(int device) {
    CUcontext context = NULL;
    CUdevice handle = 0;
    CALL(cuDeviceGet, &handle, device);
    CALL(cuDevicePrimaryCtxRetain, &context, handle);
    CALL(cuCtxSetCurrent, context);
    return context;
}

static CUmodule first_module;
static CUfunction begin(int count, char **words) {
    CUfunction mix;
    int processors = 1;
    if (count != 6) fprintf(stderr, "usage: %s LIMIT_MIB BEYOND_MIB ROUNDS DEVICES TOGETHER\n", words[0]), exit(2);
    asked.limit = strtoull(words[1], NULL, 10) * MIB, asked.beyond = strtoull(words[2], NULL, 10) * MIB;
    asked.rounds = atol(words[3]), asked.devices = atoi(words[4]), asked.together = atoi(words[5]);
    driver_library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver_library) fprintf(stderr, "%s\n", dlerror()), exit(3);
    *(void **)&virtual_now = dlsym(driver_library, "kerf_virtual_now");
    *(void **)&virtual_sleep = dlsym(driver_library, "kerf_virtual_sleep_until");
    *(void **)&virtual_leave = dlsym(driver_library, "kerf_virtual_leave");
    *(void **)&virtual_expect = dlsym(driver_library, "kerf_virtual_expect");
    *(void **)&container_bytes = dlsym(driver_library, "kerf_fake_container_bytes");
    *(void **)&container_peak = dlsym(driver_library, "kerf_fake_container_peak_bytes");
    CALL(cuInit, 0u);
    use_device(0);
    if (!virtual_now) CALL(cuDeviceGetAttribute, &processors, ATTRIBUTE_PROCESSORS, 0);
    blocks = virtual_now ? 1 : 4 * (unsigned)processors;
    mix = load_mix(&first_module);
    calibrate(mix);
    launch_mix(mix, NULL, 1000, 0, 0);
    CALL(cuCtxSynchronize);
    checkpoint("start", 0);
    return mix;
}

/* --- the end ---------------------------------------------------------------------------------------------------- */

static void print_calls(const char *process) {
    int first = 1;
    printf("\"calls\": [");
    for (int i = 0; i < RECORDS; i++)
        if (record[i].name) {
            printf("%s[\"%s, %s\", \"%s\", \"%s\", %d, %lu]", first ? "" : ", ", process, record[i].thread,
                record[i].phase, record[i].name, record[i].result, record[i].count);
            first = 0;
        }
    printf("]");
}
/* `results`: numbers that the program has computed on the GPU. `more`: JSON fields of this workload, or "". */
static int finish(const uint64_t *results, int count, const char *more) {
    checkpoint("end", 0);
    printf("{\"results\": [");
    for (int i = 0; i < count; i++) printf(i ? ", \"%lx\"" : "\"%lx\"", results[i]);
    printf("], \"timed_ns\": %lu, \"gpu_ns\": %lu, \"beyond_result\": %d, \"refusal\": %d, \"got_bytes\": %zu, ", timed_ns,
        gpu_ns, beyond_result, refusal, got_bytes);
    printf("\"unexpected\": %d, \"peak_bytes\": [", unexpected);
    for (int d = 0; container_peak && d < asked.devices; d++) printf(d ? ", %lu" : "%lu", container_peak(d));
    printf("], %s", more);
    print_calls("program");
    printf("}\n");
    fflush(stdout);
    leave();
    return 0;
}

static int by_size(const void *a, const void *b) {
    return (*(const uint64_t *)a > *(const uint64_t *)b) - (*(const uint64_t *)a < *(const uint64_t *)b);
}
static uint64_t percentile(uint64_t *values, long count, int percent) {
    qsort(values, (size_t)count, sizeof *values, by_size);
    return count ? values[count * percent / 100] : 0;
}
#endif
