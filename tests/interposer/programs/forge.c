/* forge FIELD KERNEL_NS SECONDS: launches without end, and before each launch overwrites a counter of GPU time:
 *   tokens   the maximum
 *   future   the last refill is in the future
 *   past     the last refill was long ago
 *   busy     all time is already accounted
 *   reach    its window has no end
 *   all      all of these
 * Prints its GPU time in each second. */
#include "api.h"
#include "../../../native/interposer/control_block.h"
#include <fcntl.h>
#include <sys/mman.h>

static void forge(struct kerf_gpu_counters *c, const char *field) {
    const int all = !strcmp(field, "all");
    if (all || !strcmp(field, "tokens")) c->tokens_ns = INT64_C(1) << 60;
    if (all || !strcmp(field, "future")) c->refilled_ns = UINT64_C(1) << 62;
    if (!strcmp(field, "past")) c->refilled_ns = 1;
    if (all || !strcmp(field, "busy")) c->busy_from_ns = 0, c->busy_until_ns = UINT64_C(1) << 62;
    if (all || !strcmp(field, "reach")) c->reach_ns = UINT64_C(1) << 60;
}

int main(int argc, char **argv) {
    char name[64], path[512];
    struct kerf_counters *counters;
    uint64_t begin, before = 0;
    CUfunction f;
    if (argc != 4) return 2;
    open_driver();
    use_device(0);
    snprintf(name, sizeof name, "ns_%s", argv[2]);
    f = kernel(name);
    snprintf(path, sizeof path, "%s/counters", getenv("KERF_DIRECTORY"));
    counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, open(path, O_RDWR), 0);
    if (counters == MAP_FAILED) return 4;
    begin = virtual_now();
    for (int second = 1; second <= atoi(argv[3]); second++) {
        while (virtual_now() < begin + (uint64_t)second * 1000000000) {
            forge(&counters->gpu[0], argv[1]);
            NEED(launch(f, NULL));
        }
        printf("%lu ", gpu_ns(0) - before);
        before = gpu_ns(0);
    }
    printf("\n");
    return 0;
}
