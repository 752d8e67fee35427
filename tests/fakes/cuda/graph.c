/* Graphs: one piece of work with the sum of its nodes' times. The memory of memory nodes is allocated at the first
 * launch and kept until a trim. */
#include "world.h"
#include <stdlib.h>

static uint64_t reserved[DEVICES];

CUresult cuGraphCreate(CUgraph *to, unsigned flags) {
    (void)flags;
    return *to = calloc(1, sizeof(graph_t)), ready();
}
CUresult cuGraphDestroy(CUgraph graph) { return (void)graph, CUDA_SUCCESS; } /* its executables still use it */
CUresult cuGraphAddKernelNode_v2(CUnode *node, CUgraph graph, const CUnode *after, size_t count,
    const kernel_node_t *kernel) {
    const function_t *function = kernel->function;
    (void)after;
    (void)count;
    ((graph_t *)graph)->ns += function->declared ? function->ns : *(uint64_t *)kernel->params[0];
    return *node = graph, CUDA_SUCCESS;
}
CUresult cuGraphAddMemAllocNode(CUnode *node, CUgraph graph, const CUnode *after, size_t count, alloc_node_t *memory) {
    (void)after;
    (void)count;
    ((graph_t *)graph)->bytes += rounded(memory->bytes);
    ((graph_t *)graph)->device = memory->pool.location.id;
    memory->pointer = (CUdeviceptr)(uintptr_t)calloc(1, 64);
    return *node = graph, CUDA_SUCCESS;
}
CUresult cuGraphAddMemFreeNode(CUnode *node, CUgraph graph, const CUnode *after, size_t count, CUdeviceptr pointer) {
    (void)after;
    (void)count;
    (void)pointer;
    return *node = graph, CUDA_SUCCESS;
}
CUresult cuGraphAddNode(CUnode *node, CUgraph graph, const CUnode *after, size_t count, graph_node_t *what) {
    if (what->type == NODE_MEM_ALLOC) return cuGraphAddMemAllocNode(node, graph, after, count, &what->alloc);
    if (what->type == NODE_KERNEL) return cuGraphAddKernelNode_v2(node, graph, after, count, &what->kernel);
    return *node = graph, CUDA_SUCCESS;
}
CUresult cuGraphAddNode_v2(CUnode *node, CUgraph graph, const CUnode *after, const void *edges, size_t count,
    graph_node_t *what) {
    (void)edges;
    return cuGraphAddNode(node, graph, after, count, what);
}
CUresult cuGraphInstantiateWithFlags(CUexec *to, CUgraph graph, unsigned long long flags) {
    graph_t *executable = calloc(1, sizeof *executable);
    (void)flags;
    executable->source = graph;
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
CUresult cuGraphExecDestroy(CUexec executable) { return free(executable), CUDA_SUCCESS; }
CUresult cuGraphLaunch(CUexec executable, CUstream stream) {
    graph_t *graph = executable;
    stream_t *s = stream_of(stream);
    CUresult result = CUDA_SUCCESS;
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    if (!graph->memory && graph->source->bytes) {
        result = take(graph->source->device, graph->source->bytes);
        if (result) return result;
        reserved[graph->source->device] += graph->source->bytes;
        graph->memory = 1;
    }
    if (s->capture) return s->capture->ns += graph->source->ns, CUDA_SUCCESS;
    enter();
    if (world()->launch_ns) spend(world()->launch_ns);
    submit(s->context->device, graph->source->ns, -1, 0);
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch_ptsz(CUexec executable, CUstream stream) {
    return count_call("cuGraphLaunch"), cuGraphLaunch(executable, stream);
}
CUresult cuDeviceGraphMemTrim(CUdevice device) {
    give(device, reserved[device]);
    return reserved[device] = 0, CUDA_SUCCESS;
}
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    return *(uint64_t *)value = attribute == GRAPH_RESERVED_CURRENT ? reserved[device] : 0, CUDA_SUCCESS;
}
