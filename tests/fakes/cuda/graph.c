/* Graphs: one piece of work with the sum of its nodes' times. As the driver's documentation describes it, memory of
 * allocation nodes is taken when the executable graph is first launched, and kept in a pool of the device: a destroyed
 * executable leaves it there for others, and a trim returns what no running graph uses, so that the next launch takes
 * it again. */
#include "world.h"
#include <stdlib.h>

typedef struct { graph_t *source; uint64_t bytes[DEVICES]; unsigned trims[DEVICES]; } exec_t; /* trims 0: no memory */
static uint64_t reserved[DEVICES], attached[DEVICES];
static unsigned trims[DEVICES] = {1, 1, 1, 1, 1, 1, 1, 1};

node_t *graph_add(graph_t *graph, node_t node) {
    node_t *added = malloc(sizeof *added);
    if (graph->count % 16 == 0) graph->nodes = realloc(graph->nodes, (graph->count + 16) * sizeof *graph->nodes);
    *added = node;
    return graph->nodes[graph->count++] = added;
}
void graph_mixes(graph_t *graph, uint64_t to, uint64_t value) {
    if (graph->mixes % 16 == 0) graph->mix = realloc(graph->mix, (graph->mixes + 16) * sizeof *graph->mix);
    graph->mix[graph->mixes++] = (mix_t){to, value};
}
static void compute(const graph_t *graph) {
    for (size_t i = 0; i < graph->mixes; i++) {
        uint64_t *word = word_at(graph->mix[i].to);
        if (word) *word = *word * MIX + graph->mix[i].value;
    }
}
static uint64_t time_of(const graph_t *graph) {
    uint64_t ns = graph->ns;
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->type == NODE_GRAPH) ns += time_of(graph->nodes[i]->child);
    return ns;
}
static void memory_of(const graph_t *graph, uint64_t *bytes) {
    for (size_t i = 0; i < graph->count; i++) {
        const node_t *node = graph->nodes[i];
        if (node->type == NODE_GRAPH) memory_of(node->child, bytes);
        if (node->type == NODE_MEM_ALLOC) bytes[node->memory.pool.location.id] += rounded(node->memory.bytes);
    }
}

CUresult cuGraphCreate(CUgraph *to, unsigned flags) {
    (void)flags;
    return *to = calloc(1, sizeof(graph_t)), ready();
}
CUresult cuGraphDestroy(CUgraph graph) { return (void)graph, CUDA_SUCCESS; } /* its executables still use it */
CUresult cuGraphGetNodes(CUgraph which, CUnode *nodes, size_t *count) {
    const graph_t *graph = which;
    for (size_t i = 0; nodes && i < *count && i < graph->count; i++) nodes[i] = graph->nodes[i];
    return *count = graph->count, CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUnode node, int *type) { return *type = ((node_t *)node)->type, CUDA_SUCCESS; }
CUresult cuGraphMemAllocNodeGetParams(CUnode node, alloc_node_t *to) {
    return *to = ((node_t *)node)->memory, CUDA_SUCCESS;
}
CUresult cuGraphChildGraphNodeGetGraph(CUnode node, CUgraph *to) {
    return *to = ((node_t *)node)->child, CUDA_SUCCESS;
}
CUresult cuGraphAddChildGraphNode(CUnode *node, CUgraph graph, const CUnode *after, size_t count, CUgraph child) {
    (void)after;
    (void)count;
    return *node = graph_add(graph, (node_t){.type = NODE_GRAPH, .child = child}), CUDA_SUCCESS;
}
CUresult cuGraphAddKernelNode_v2(CUnode *node, CUgraph graph, const CUnode *after, size_t count,
    const kernel_node_t *kernel) {
    const function_t *function = kernel->function;
    (void)after;
    (void)count;
    ((graph_t *)graph)->ns += function->declared ? function->ns : *(uint64_t *)kernel->params[0];
    return *node = graph_add(graph, (node_t){.type = NODE_KERNEL}), CUDA_SUCCESS;
}
CUresult cuGraphAddMemAllocNode(CUnode *node, CUgraph graph, const CUnode *after, size_t count, alloc_node_t *memory) {
    (void)after;
    (void)count;
    memory->pointer = memory_of_graph(memory->pool.location.id);
    return *node = graph_add(graph, (node_t){.type = NODE_MEM_ALLOC, .memory = *memory}), CUDA_SUCCESS;
}
CUresult cuGraphAddMemFreeNode(CUnode *node, CUgraph graph, const CUnode *after, size_t count, CUdeviceptr pointer) {
    (void)after;
    (void)count;
    (void)pointer;
    return *node = graph_add(graph, (node_t){.type = NODE_MEM_FREE}), CUDA_SUCCESS;
}
CUresult cuGraphAddNode(CUnode *node, CUgraph graph, const CUnode *after, size_t count, graph_node_t *what) {
    if (what->type == NODE_MEM_ALLOC) return cuGraphAddMemAllocNode(node, graph, after, count, &what->alloc);
    if (what->type == NODE_KERNEL) return cuGraphAddKernelNode_v2(node, graph, after, count, &what->kernel);
    return *node = graph_add(graph, (node_t){.type = what->type}), CUDA_SUCCESS;
}
CUresult cuGraphAddNode_v2(CUnode *node, CUgraph graph, const CUnode *after, const void *edges, size_t count,
    graph_node_t *what) {
    (void)edges;
    return cuGraphAddNode(node, graph, after, count, what);
}
CUresult cuGraphAddNode_v3(CUnode *node, CUgraph graph, const CUnode *after, const void *edges, size_t count,
    graph_node_t *what) {
    return cuGraphAddNode_v2(node, graph, after, edges, count, what);
}
CUresult cuGraphInstantiateWithFlags(CUexec *to, CUgraph graph, unsigned long long flags) {
    exec_t *executable = calloc(1, sizeof *executable);
    (void)flags;
    executable->source = graph;
    memory_of(graph, executable->bytes);
    return *to = executable, CUDA_SUCCESS;
}
CUresult cuGraphInstantiate_v2(CUexec *to, CUgraph graph, CUnode *node, char *log, size_t room) {
    (void)node;
    (void)log;
    (void)room;
    return cuGraphInstantiateWithFlags(to, graph, 0);
}
CUresult cuGraphInstantiate(CUexec *to, CUgraph graph, CUnode *node, char *log, size_t room) {
    return cuGraphInstantiate_v2(to, graph, node, log, room);
}
CUresult cuGraphInstantiateWithParams(CUexec *to, CUgraph graph, void *parameters) {
    (void)parameters;
    return cuGraphInstantiateWithFlags(to, graph, 0);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUexec *to, CUgraph graph, void *parameters) {
    return cuGraphInstantiateWithParams(to, graph, parameters);
}
CUresult cuGraphExecDestroy(CUexec which) {
    const exec_t *executable = which;
    for (int d = 0; d < DEVICES; d++)
        if (executable->trims[d] == trims[d]) attached[d] -= executable->bytes[d];
    return free(which), CUDA_SUCCESS;
}
static CUresult attach(exec_t *executable) {
    for (int d = 0; d < DEVICES; d++) {
        const uint64_t bytes = executable->bytes[d], idle = reserved[d] - attached[d];
        if (!bytes || executable->trims[d] == trims[d]) continue;
        if (bytes > idle) {
            CUresult result = take(d, bytes - idle);
            if (result) return result;
            reserved[d] += bytes - idle;
        }
        attached[d] += bytes;
        executable->trims[d] = trims[d];
    }
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUexec executable, CUstream stream) {
    const uint64_t ns = time_of(((exec_t *)executable)->source);
    stream_t *s = stream_of(stream);
    CUresult result;
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    result = attach(executable);
    if (result) return result;
    if (s->capture) return s->capture->ns += ns, CUDA_SUCCESS;
    enter();
    if (world()->launch_ns) spend(world()->launch_ns);
    compute(((exec_t *)executable)->source);
    submit(s->context->device, ns, -1, 0);
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch_ptsz(CUexec executable, CUstream stream) {
    return count_call("cuGraphLaunch"), cuGraphLaunch(executable, stream);
}
CUresult cuDeviceGraphMemTrim(CUdevice device) {
    give(device, reserved[device]);
    trims[device]++;
    return reserved[device] = attached[device] = 0, CUDA_SUCCESS;
}
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    count_call("cuDeviceGetGraphMemAttribute");
    return *(uint64_t *)value = attribute == GRAPH_RESERVED_CURRENT ? reserved[device] : 0, CUDA_SUCCESS;
}
