/* Charges the device memory of this process's graphs. The driver keeps it in one pool for each GPU: it takes memory
 * when a graph with allocations is first uploaded or launched, keeps it for the next launch and for other graphs, and
 * returns it only at cuDeviceGraphMemTrim, also of graphs that have been destroyed. So the charge is the larger of two
 * figures: what the pool has reserved now, as the driver reports it, and what the executable graphs that exist may take
 * when they run (`promised`: the sum of their allocations). A launch takes no more than was promised, so launches need
 * no check. The sum is an upper bound: graphs that never run at the same time may share memory.
 *
 * Executable graphs end with the context in which they were instantiated, and their promise with them. Should the
 * driver still run one, what it takes is charged at the next wait or query (`abandoned`). */
#include "kerf.h"

typedef CUresult (*graph_attribute_t)(CUdevice, int, void *);
typedef CUresult (*trim_t)(CUdevice);

pthread_mutex_t graphs_guard = PTHREAD_MUTEX_INITIALIZER;
/* changes: counts what was promised, withdrawn and charged */
static struct { int used, abandoned; CUdevice device; uint64_t promised, charged, changes; } known[KERF_MAX_GPUS];

/* Sets the charge, unless something has changed since `changes` was read: then the driver's report is of no use. */
static int charge(int gpu, uint64_t changes, int reported, uint64_t now) {
    uint64_t bytes;
    int current;
    pthread_mutex_lock(&graphs_guard);
    current = changes == known[gpu].changes;
    if (!reported) now = known[gpu].charged;
    bytes = now > known[gpu].promised ? now : known[gpu].promised;
    if (current && bytes != known[gpu].charged) {
        if (bytes < known[gpu].charged) release(gpu, known[gpu].charged - bytes);
        else overdraw(gpu, bytes - known[gpu].charged);
        known[gpu].charged = bytes;
        known[gpu].changes++;
    }
    pthread_mutex_unlock(&graphs_guard);
    return current;
}

static uint64_t changes_of(int gpu) {
    uint64_t changes;
    pthread_mutex_lock(&graphs_guard);
    changes = known[gpu].changes;
    pthread_mutex_unlock(&graphs_guard);
    return changes;
}

/* The driver is called without the guard, because its call may take long. */
static void settle(int gpu) {
    graph_attribute_t real = REAL(graph_attribute_t, "cuDeviceGetGraphMemAttribute");
    uint64_t changes, now = 0;
    int reported;
    do {
        changes = changes_of(gpu);
        reported = real && !real(known[gpu].device, GRAPH_RESERVED_CURRENT, &now);
    } while (!charge(gpu, changes, reported, now));
}

void graph_memory_promised(int gpu, CUdevice device, uint64_t bytes) {
    pthread_mutex_lock(&graphs_guard);
    known[gpu].device = device;
    __atomic_store_n(&known[gpu].used, 1, __ATOMIC_RELEASE);
    known[gpu].promised += bytes;
    known[gpu].charged += bytes;
    known[gpu].changes++;
    pthread_mutex_unlock(&graphs_guard);
    settle(gpu);
}

void graph_memory_withdrawn(int gpu, uint64_t bytes) {
    pthread_mutex_lock(&graphs_guard);
    known[gpu].promised -= bytes;
    known[gpu].changes++;
    pthread_mutex_unlock(&graphs_guard);
    settle(gpu);
}

void graph_memory_abandoned(int gpu, uint64_t bytes) {
    __atomic_store_n(&known[gpu].abandoned, 1, __ATOMIC_RELAXED);
    graph_memory_withdrawn(gpu, bytes);
}

int graph_memory_settle(void) {
    int takes = 0;
    for (int gpu = 0; gpu < KERF_MAX_GPUS; gpu++) {
        if (!__atomic_load_n(&known[gpu].used, __ATOMIC_ACQUIRE)) continue;
        settle(gpu);
        takes |= __atomic_load_n(&known[gpu].promised, __ATOMIC_RELAXED) > 0;
        takes |= __atomic_load_n(&known[gpu].abandoned, __ATOMIC_RELAXED);
    }
    return takes;
}

void graph_memory_trim(int gpu) {
    int keeps;
    pthread_mutex_lock(&graphs_guard);
    keeps = known[gpu].used && known[gpu].charged > known[gpu].promised;
    pthread_mutex_unlock(&graphs_guard);
    if (!keeps) return;
    REAL(trim_t, "cuDeviceGraphMemTrim")(known[gpu].device);
    settle(gpu);
}

/* Called in a child: the graphs belong to the parent. */
void graph_memory_forget(void) {
    for (int gpu = 0; gpu < KERF_MAX_GPUS; gpu++) known[gpu].used = known[gpu].abandoned = 0,
        known[gpu].promised = known[gpu].charged = 0;
}
