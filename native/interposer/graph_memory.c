/* Charges the device memory of this process's graphs. The driver keeps it in one pool for each GPU: it takes memory
 * when a graph with allocations is first uploaded or launched, keeps it for the next launch and for other graphs, and
 * returns it only at cuDeviceGraphMemTrim, also of graphs that have been destroyed. So the charge is the larger of two
 * figures: what the pool has reserved now, as the driver reports it, and what the executable graphs that exist may take
 * when they run (`promised`: the sum of their allocations). A launch takes no more than was promised, so launches need
 * no check. The sum is an upper bound: graphs that never run at the same time may share memory. */
#include "kerf.h"

typedef CUresult (*graph_attribute_t)(CUdevice, int, void *);
typedef CUresult (*trim_t)(CUdevice);

pthread_mutex_t graphs_guard = PTHREAD_MUTEX_INITIALIZER;
static struct { int used; CUdevice device; uint64_t promised, charged; } known[KERF_MAX_GPUS];

static uint64_t reserved(int gpu) {
    graph_attribute_t real = REAL(graph_attribute_t, "cuDeviceGetGraphMemAttribute");
    uint64_t bytes = 0;
    return real && !real(known[gpu].device, GRAPH_RESERVED_CURRENT, &bytes) ? bytes : known[gpu].charged;
}

static void settle(int gpu) {
    const uint64_t now = reserved(gpu), bytes = now > known[gpu].promised ? now : known[gpu].promised;
    if (bytes < known[gpu].charged) release(gpu, known[gpu].charged - bytes);
    else if (bytes > known[gpu].charged) overdraw(gpu, bytes - known[gpu].charged);
    known[gpu].charged = bytes;
}

void graph_memory_promised(int gpu, CUdevice device, uint64_t bytes) {
    pthread_mutex_lock(&graphs_guard);
    known[gpu].used = 1, known[gpu].device = device;
    known[gpu].promised += bytes;
    known[gpu].charged += bytes;
    settle(gpu);
    pthread_mutex_unlock(&graphs_guard);
}

void graph_memory_withdrawn(int gpu, uint64_t bytes) {
    pthread_mutex_lock(&graphs_guard);
    known[gpu].promised -= bytes;
    settle(gpu);
    pthread_mutex_unlock(&graphs_guard);
}

int graph_memory_settle(void) {
    int promised = 0;
    pthread_mutex_lock(&graphs_guard);
    for (int gpu = 0; gpu < KERF_MAX_GPUS; gpu++)
        if (known[gpu].used) settle(gpu), promised |= known[gpu].promised > 0;
    pthread_mutex_unlock(&graphs_guard);
    return promised;
}

void graph_memory_trim(int gpu) {
    pthread_mutex_lock(&graphs_guard);
    if (known[gpu].used && known[gpu].charged > known[gpu].promised) {
        REAL(trim_t, "cuDeviceGraphMemTrim")(known[gpu].device);
        settle(gpu);
    }
    pthread_mutex_unlock(&graphs_guard);
}

/* Called in a child: the graphs belong to the parent. */
void graph_memory_forget(void) {
    for (int gpu = 0; gpu < KERF_MAX_GPUS; gpu++) known[gpu].used = 0, known[gpu].promised = known[gpu].charged = 0;
}
