/* Hooks of executable graphs. An allocation in a graph takes memory when the executable graph is uploaded or launched,
 * however it came into the graph (a node, a capture, a child graph), so it is charged when the graph is instantiated,
 * and the graph is refused if it does not fit. The driver allows one executable graph at a time of a graph with
 * allocations, and neither its clone nor its update with other allocations. Bodies of conditional nodes cannot
 * allocate. */
#include "kerf.h"
#include <stdlib.h>

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY
#define FULL CUDA_ERROR_OUT_OF_MEMORY
typedef CUresult (*nodes_t)(CUgraph, CUnode *, size_t *);
typedef CUresult (*type_t)(CUnode, int *);
typedef CUresult (*alloc_params_t)(CUnode, alloc_node_t *);
typedef CUresult (*child_t)(CUnode, CUgraph *);
typedef CUresult (*instantiate_t)(CUexec *, CUgraph, CUnode *, char *, size_t);
typedef CUresult (*with_flags_t)(CUexec *, CUgraph, unsigned long long);
typedef CUresult (*with_params_t)(CUexec *, CUgraph, void *);
typedef CUresult (*exec_t)(CUexec);
typedef CUresult (*device_t)(CUdevice);
typedef struct { uint64_t bytes[KERF_MAX_GPUS]; CUdevice device[KERF_MAX_GPUS]; } need_t;

static int add_graph(CUgraph graph, need_t *need);

/* Returns 0 if the node needs memory of a GPU that the container does not have. */
static int add_node(CUnode node, need_t *need) {
    alloc_node_t memory = {0};
    CUgraph child;
    int type, gpu;
    if (REAL(type_t, "cuGraphNodeGetType")(node, &type)) return 1;
    if (type == NODE_GRAPH)
        return REAL(child_t, "cuGraphChildGraphNodeGetGraph")(node, &child) || add_graph(child, need);
    if (type != NODE_MEM_ALLOC || REAL(alloc_params_t, "cuGraphMemAllocNodeGetParams")(node, &memory)) return 1;
    gpu = gpu_of_device(memory.pool.location.id);
    if (memory.pool.location.type != LOCATION_DEVICE || gpu < 0) return 0;
    need->bytes[gpu] = charge_of(need->bytes[gpu] + charge_of(memory.bytes));
    need->device[gpu] = memory.pool.location.id;
    return 1;
}

static int add_graph(CUgraph graph, need_t *need) {
    nodes_t real = REAL(nodes_t, "cuGraphGetNodes");
    size_t count = 0;
    CUnode *nodes;
    int ours = 1;
    if (!real || real(graph, NULL, &count) || !count) return 1; /* the driver itself reports what is wrong with it */
    nodes = malloc(count * sizeof *nodes);
    if (!nodes) return 0;
    if (!real(graph, nodes, &count))
        for (size_t i = 0; i < count && ours; i++) ours = add_node(nodes[i], need);
    free(nodes);
    return ours;
}

static void withdraw(const need_t *need, int count) {
    for (int gpu = 0; gpu < count; gpu++)
        if (need->bytes[gpu]) graph_memory_withdrawn(gpu, need->bytes[gpu]);
}

/* The driver takes memory in whole granules. */
static int promise(need_t *need) {
    const uint64_t granule = granule_bytes();
    for (int gpu = 0; gpu < KERF_MAX_GPUS; gpu++) {
        if (!need->bytes[gpu]) continue;
        need->bytes[gpu] = charge_of(need->bytes[gpu] > granule ? need->bytes[gpu] : granule);
        if (!reserve(gpu, need->bytes[gpu])) return withdraw(need, gpu), 0;
        graph_memory_promised(gpu, need->device[gpu], need->bytes[gpu]);
        __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);
    }
    return 1;
}

/* The handles of executable graphs are addresses of the driver's objects: the GPU is added to make one key for each. */
static uint64_t key_of(CUexec exec, int gpu) { return (uint64_t)(uintptr_t)exec + (uint64_t)gpu; }

#define INSTANTIATES(name, type, parameters, arguments)                                             \
    EXPORT CUresult name parameters {                                                               \
        need_t need = {{0}, {0}};                                                                   \
        CUresult result;                                                                            \
        if (!present()) return REFUSED;                                                            \
        if (!add_graph(graph, &need) || !promise(&need)) return FULL;                               \
        result = REAL(type, #name) arguments;                                                       \
        if (result) withdraw(&need, KERF_MAX_GPUS);                                                 \
        for (int gpu = 0; !result && gpu < KERF_MAX_GPUS; gpu++)                                    \
            if (need.bytes[gpu])                          \
                table_put(EXECUTABLE, key_of(*to, gpu), gpu, need.bytes[gpu], current_context(), 1); \
        return result;                                                                              \
    }
INSTANTIATES(cuGraphInstantiate, instantiate_t, (CUexec *to, CUgraph graph, CUnode *node, char *log, size_t room),
    (to, graph, node, log, room))
INSTANTIATES(cuGraphInstantiate_v2, instantiate_t, (CUexec *to, CUgraph graph, CUnode *node, char *log, size_t room),
    (to, graph, node, log, room))
INSTANTIATES(cuGraphInstantiateWithFlags, with_flags_t, (CUexec *to, CUgraph graph, unsigned long long flags),
    (to, graph, flags))
INSTANTIATES(cuGraphInstantiateWithParams, with_params_t, (CUexec *to, CUgraph graph, void *parameters),
    (to, graph, parameters))
INSTANTIATES(cuGraphInstantiateWithParams_ptsz, with_params_t, (CUexec *to, CUgraph graph, void *parameters),
    (to, graph, parameters))

/* The driver keeps the memory for other graphs, until a trim: it stays charged as far as the driver reports it. */
EXPORT CUresult cuGraphExecDestroy(CUexec exec) {
    need_t was = {{0}, {0}};
    uint64_t context = 0;
    CUresult result;
    entry_t entry;
    if (!present()) return REFUSED;
    for (int gpu = 0; gpu < (int)orders->gpu_count && gpu < KERF_MAX_GPUS; gpu++)
        if (table_remove(EXECUTABLE, key_of(exec, gpu), &entry)) was.bytes[gpu] = entry.bytes, context = entry.context;
    result = REAL(exec_t, "cuGraphExecDestroy")(exec);
    for (int gpu = 0; result && gpu < KERF_MAX_GPUS; gpu++)
        if (was.bytes[gpu]) table_put(EXECUTABLE, key_of(exec, gpu), gpu, was.bytes[gpu], context, 1);
    if (!result) withdraw(&was, KERF_MAX_GPUS);
    return result;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result;
    if (!present()) return REFUSED;
    result = REAL(device_t, "cuDeviceGraphMemTrim")(device);
    graph_memory_settle();
    return result;
}
