/* Memory that is had in stream order, from pools, and by graphs. */
#include "kerf.h"

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY
#define FULL CUDA_ERROR_OUT_OF_MEMORY
typedef CUresult (*async_t)(CUdeviceptr *, size_t, CUstream);
typedef CUresult (*pool_async_t)(CUdeviceptr *, size_t, CUpool, CUstream);
typedef CUresult (*free_async_t)(CUdeviceptr, CUstream);
typedef CUresult (*pool_create_t)(CUpool *, const pool_prop_t *);
typedef CUresult (*pool_destroy_t)(CUpool);
typedef CUresult (*pool_of_t)(CUpool *, CUdevice);
typedef CUresult (*capturing_t)(CUstream, int *);
typedef CUresult (*alloc_node_fn)(CUnode *, CUgraph, const CUnode *, size_t, alloc_node_t *);
typedef CUresult (*add_node_t)(CUnode *, CUgraph, const CUnode *, size_t, graph_node_t *);
typedef CUresult (*add_node_v2_t)(CUnode *, CUgraph, const CUnode *, const void *, size_t, graph_node_t *);

static int captures(CUstream stream) {
    int status = 0;
    return !REAL(capturing_t, "cuStreamIsCapturing")(stream, &status) && status;
}

/* An allocation that a graph captures is had when the graph runs, and kept by the driver's graph pool: it stays charged until
 * the process ends, for the graph may run again after any trim. */
static CUresult kept(CUresult result, const CUdeviceptr *to, CUstream stream, int gpu, uint64_t charge) {
    if (result) release(gpu, charge);
    else if (!captures(stream)) table_put(POINTER, *to, gpu, charge, context_here(), 1);
    return result;
}

#define OWN(stream) ((stream) ? (stream) : (CUstream)2)
#define ASYNC(name, stream_)                                                                        \
    EXPORT CUresult name(CUdeviceptr *to, size_t bytes, CUstream stream) {                          \
        uint64_t charge;                                                                            \
        int gpu;                                                                                    \
        if (!attached()) return REFUSED;                                                            \
        gpu = gpu_of_stream(stream);                                                                \
        if (gpu < 0) return context_here() ? FULL : REAL(async_t, #name)(to, bytes, stream);        \
        charge = charge_of(bytes);                                                                  \
        if (!reserve(gpu, charge)) return FULL;                                                     \
        return kept(REAL(async_t, #name)(to, bytes, stream), to, stream_, gpu, charge);            \
    }
ASYNC(cuMemAllocAsync, stream)
ASYNC(cuMemAllocAsync_ptsz, OWN(stream))

/* A pool that we have not seen made is taken for one of the stream's GPU. */
static int gpu_of_pool(CUpool pool, CUstream stream) {
    entry_t entry;
    return table_find(POOL, (uint64_t)(uintptr_t)pool, &entry) ? entry.gpu : gpu_of_stream(stream);
}

#define FROM_POOL(name, stream_)                                                                    \
    EXPORT CUresult name(CUdeviceptr *to, size_t bytes, CUpool pool, CUstream stream) {             \
        pool_async_t real = REAL(pool_async_t, #name);                                              \
        uint64_t charge;                                                                            \
        int gpu;                                                                                    \
        if (!attached()) return REFUSED;                                                            \
        gpu = gpu_of_pool(pool, stream);                                                            \
        if (gpu < 0) return context_here() ? FULL : real(to, bytes, pool, stream);                  \
        charge = charge_of(bytes);                                                                  \
        if (!reserve(gpu, charge)) return FULL;                                                     \
        return kept(real(to, bytes, pool, stream), to, stream_, gpu, charge);                      \
    }
FROM_POOL(cuMemAllocFromPoolAsync, stream)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, OWN(stream))

#define FREES(name)                                                                                 \
    EXPORT CUresult name(CUdeviceptr pointer, CUstream stream) {                                    \
        free_async_t real = REAL(free_async_t, #name);                                              \
        entry_t entry;                                                                              \
        CUresult result;                                                                            \
        int known;                                                                                  \
        if (!attached()) return REFUSED;                                                            \
        known = table_take(POINTER, pointer, &entry);                                               \
        result = real(pointer, stream);                                                             \
        if (known && !result) release(entry.gpu, entry.bytes);                                      \
        else if (known) table_put(POINTER, pointer, entry.gpu, entry.bytes, entry.context, 1);      \
        return result;                                                                              \
    }
FREES(cuMemFreeAsync)
FREES(cuMemFreeAsync_ptsz)

static CUresult noted(CUresult result, const CUpool *pool, int gpu) {
    if (!result) table_put(POOL, (uint64_t)(uintptr_t)*pool, gpu, 0, 0, 1);
    return result;
}
EXPORT CUresult cuMemPoolCreate(CUpool *to, const pool_prop_t *property) {
    if (!attached()) return REFUSED;
    return noted(REAL(pool_create_t, "cuMemPoolCreate")(to, property), to, property->location.type == LOCATION_DEVICE ? gpu_of_device(property->location.id) : -1);
}
EXPORT CUresult cuDeviceGetDefaultMemPool(CUpool *to, CUdevice device) {
    if (!attached()) return REFUSED;
    return noted(REAL(pool_of_t, "cuDeviceGetDefaultMemPool")(to, device), to, gpu_of_device(device));
}
EXPORT CUresult cuDeviceGetMemPool(CUpool *to, CUdevice device) {
    if (!attached()) return REFUSED;
    return noted(REAL(pool_of_t, "cuDeviceGetMemPool")(to, device), to, gpu_of_device(device));
}
EXPORT CUresult cuMemPoolDestroy(CUpool pool) {
    entry_t entry;
    if (!attached()) return REFUSED;
    table_take(POOL, (uint64_t)(uintptr_t)pool, &entry);
    return REAL(pool_destroy_t, "cuMemPoolDestroy")(pool);
}

/* A graph's memory nodes: charged when they are made, and from then on. */
static CUresult node(const alloc_node_t *memory, int *gpu, uint64_t *charge) {
    if (!attached()) return REFUSED;
    *gpu = memory->pool.location.type == LOCATION_DEVICE ? gpu_of_device(memory->pool.location.id) : gpu_here();
    *charge = charge_of(memory->bytes);
    return *gpu < 0 || !reserve(*gpu, *charge) ? FULL : CUDA_SUCCESS;
}
#define NODE(call, memory)                                                                          \
    do {                                                                                            \
        uint64_t charge_;                                                                           \
        int gpu_;                                                                                   \
        CUresult result_ = node(memory, &gpu_, &charge_);                                           \
        if (result_) return result_;                                                                \
        result_ = (call);                                                                           \
        if (result_) release(gpu_, charge_);                                                        \
        return result_;                                                                             \
    } while (0)
EXPORT CUresult cuGraphAddMemAllocNode(CUnode *to, CUgraph graph, const CUnode *after, size_t count, alloc_node_t *memory) {
    alloc_node_fn real = REAL(alloc_node_fn, "cuGraphAddMemAllocNode");
    NODE(real(to, graph, after, count, memory), memory);
}
EXPORT CUresult cuGraphAddNode(CUnode *to, CUgraph graph, const CUnode *after, size_t count, graph_node_t *what) {
    add_node_t real = REAL(add_node_t, "cuGraphAddNode");
    if (what->type != NODE_MEM_ALLOC) return real(to, graph, after, count, what);
    NODE(real(to, graph, after, count, what), &what->alloc);
}
EXPORT CUresult cuGraphAddNode_v2(CUnode *to, CUgraph graph, const CUnode *after, const void *edges, size_t count, graph_node_t *what) {
    add_node_v2_t real = REAL(add_node_v2_t, "cuGraphAddNode_v2");
    if (what->type != NODE_MEM_ALLOC) return real(to, graph, after, edges, count, what);
    NODE(real(to, graph, after, edges, count, what), &what->alloc);
}
