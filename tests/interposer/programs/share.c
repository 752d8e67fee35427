/* share saturate KERNEL_NS SECONDS [PROCESSES]: launches without end; prints its GPU time in each second. share
 * requests KERNEL_NS KERNELS PERIOD_NS SECONDS: a request of KERNELS kernels each period (0: at random intervals,
 *   twice its length on average) and a wait for it; prints the number of requests and the latencies' p50 and p99 in ns.
 * With "graph" as the last word, each launch is a launch of a graph. */
#include "api.h"

static CUexec graph_of(CUfunction f) {
    kernel_node_t node = {.function = f, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    CUgraph graph;
    CUexec executable;
    CUnode added;
    NEED(CALL(cuGraphCreate, , 10000)(&graph, 0u));
    NEED(CALL(cuGraphAddKernelNode, _v2, 12000)(&added, graph, NULL, (size_t)0, &node));
    NEED(CALL(cuGraphInstantiate, WithFlags, 12000)(&executable, graph, 0ull));
    return executable;
}
static CUexec graph;
static void start(CUfunction f) {
    if (graph) NEED(CALL(cuGraphLaunch, , 10000)(graph, NULL));
    else NEED(launch(f, NULL));
}

static void saturate(CUfunction f, int seconds) {
    const uint64_t begin = virtual_now();
    uint64_t before = 0;
    for (int second = 1; second <= seconds; second++) {
        while (virtual_now() < begin + (uint64_t)second * 1000000000) start(f);
        printf("%lu ", gpu_ns(0) - before);
        before = gpu_ns(0);
    }
    printf("\n");
}

static int by_size(const void *a, const void *b) { return *(const uint64_t *)a < *(const uint64_t *)b ? -1 : 1; }
static void requests(CUfunction f, int kernels, uint64_t length_ns, uint64_t period_ns, int seconds) {
    static uint64_t latency[1 << 16];
    const uint64_t begin = virtual_now(), end = begin + (uint64_t)seconds * 1000000000;
    uint64_t due = begin, drawn = 88172645463325252u;
    int served = 0;
    while (due < end) {
        sleep_to(due);
        for (int i = 0; i < kernels; i++) start(f);
        NEED(CALL(cuCtxSynchronize, , 2000)());
        latency[served++] = virtual_now() - due;
        drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
        due += period_ns ? period_ns : length_ns / 2 + drawn % (3 * length_ns / 2 + 1);
    }
    qsort(latency, (size_t)served, sizeof *latency, by_size);
    printf("%d %lu %lu %lu\n", served, latency[served / 2], latency[served * 99 / 100], gpu_ns(0));
}

int main(int argc, char **argv) {
    char name[64];
    CUfunction f;
    if (argc < 4) return 2;
    open_driver();
    use_device(0);
    snprintf(name, sizeof name, "ns_%s", argv[2]);
    f = kernel(name);
    if (!strcmp(argv[argc - 1], "graph")) graph = graph_of(f);
    if (!strcmp(argv[1], "saturate")) saturate(f, atoi(argv[3]));
    else requests(f, atoi(argv[3]), strtoull(argv[2], NULL, 10) * strtoull(argv[3], NULL, 10),
        strtoull(argv[4], NULL, 10), atoi(argv[5]));
    return 0;
}
