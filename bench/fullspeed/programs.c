/* Programs on the fake driver, in its virtual time.
 *
 *   programs LIBCUDA low MIB KERNEL_US STEP
 *       Allocates memory, prints a line, and launches without end, STEP kernels at a time. After SIGTERM it finishes
 *       its step.
 *   programs LIBCUDA high MIB KERNEL_US MS
 *       Waits for a line on its input; then allocates memory, runs one kernel after another for MS, and prints the end
 *       time of each, in ns.
 *   programs LIBCUDA pace STEP_US
 *       Keeps virtual time from running faster than real time. While it waits for the real clock, virtual time stands
 *       still, because it is this client's turn. On a machine that is too slow, virtual time falls behind, and catches
 *       up by 5 ms at most.
 *
 * They end with their parent, however that ends. */
#define _GNU_SOURCE
#include "../../native/interposer/driver.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { BEHIND_NS = 5000000 }; /* a late wake-up on a busy machine is made up for */

typedef CUresult (*call_t)();
static void *library;
static volatile sig_atomic_t ending;

static call_t driver(const char *name) {
    call_t found = (call_t)dlsym(library, name);
    if (!found) fprintf(stderr, "the driver has no %s\n", name), exit(3);
    return found;
}
#define MUST(name, ...)                                                                  \
    do {                                                                                 \
        CUresult result_ = driver(name)(__VA_ARGS__);                                    \
        if (result_) fprintf(stderr, "%s: %d\n", name, result_), exit(3);                \
    } while (0)
static uint64_t now(void) { return ((uint64_t(*)(void))driver("kerf_virtual_now"))(); }
static void sleep_until(uint64_t ns) { ((void (*)(uint64_t))driver("kerf_virtual_sleep_until"))(ns); }

static CUfunction work(const char *mib, const char *kernel_us) {
    char name[64];
    CUcontext context;
    CUmodule module;
    CUfunction found;
    CUdeviceptr memory;
    MUST("cuInit", 0u);
    MUST("cuDevicePrimaryCtxRetain", &context, 0);
    MUST("cuCtxSetCurrent", context);
    MUST("cuMemAlloc_v2", &memory, (size_t)strtoull(mib, NULL, 10) << 20);
    MUST("cuModuleLoadData", &module, "");
    snprintf(name, sizeof name, "ns_%llu", strtoull(kernel_us, NULL, 10) * 1000);
    MUST("cuModuleGetFunction", &found, module, name);
    return found;
}
static void run(CUfunction f, int kernels) {
    for (int i = 0; i < kernels; i++) MUST("cuLaunchKernel", f, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)0, (void **)NULL,
        (void **)NULL);
    MUST("cuCtxSynchronize");
}

static void end(int number) { ending = number; }
static void low(CUfunction f, int step) {
    signal(SIGTERM, end);
    puts("begun");
    fflush(stdout);
    while (!ending) run(f, step);
    _Exit(0);
}

static void high(CUfunction f, uint64_t ns) {
    const uint64_t until = now() + ns;
    static uint64_t done[1 << 20];
    size_t count = 0;
    while (now() < until && count < sizeof done / sizeof *done) run(f, 1), done[count++] = now();
    for (size_t i = 0; i < count; i++) printf("%lu\n", done[i]);
}

static uint64_t real_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
static void pace(uint64_t step_ns) {
    uint64_t due = now(), real = real_ns();
    for (;;) {
        struct timespec until;
        sleep_until(due += step_ns);
        real += step_ns;
        if (real_ns() > real + BEHIND_NS) real = real_ns();
        until = (struct timespec){(time_t)(real / 1000000000), (long)(real % 1000000000)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

int main(int argc, char **argv) {
    char line[8];
    if (argc < 4) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!strcmp(argv[2], "high") && !fgets(line, sizeof line, stdin)) return 0;
    library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
    if (!strcmp(argv[2], "pace")) pace(strtoull(argv[3], NULL, 10) * 1000);
    if (argc < 6) return 2;
    if (!strcmp(argv[2], "high")) high(work(argv[3], argv[4]), strtoull(argv[5], NULL, 10) * 1000000);
    else low(work(argv[3], argv[4]), atoi(argv[5]));
    return 0;
}
