/* Hooks of stream-ordered allocations and memory pools. */
#include "kerf.h"

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY
#define FULL CUDA_ERROR_OUT_OF_MEMORY
typedef CUresult (*async_t)(CUdeviceptr *, size_t, CUstream);
typedef CUresult (*pool_async_t)(CUdeviceptr *, size_t, CUpool, CUstream);
typedef CUresult (*free_async_t)(CUdeviceptr, CUstream);
typedef CUresult (*pool_create_t)(CUpool *, const pool_prop_t *);
typedef CUresult (*pool_destroy_t)(CUpool);
typedef CUresult (*trim_t)(CUpool, size_t);
typedef CUresult (*pool_attribute_t)(CUpool, int, void *);
typedef CUresult (*count_t)(int *);
enum { OF_THE_HOST = -2, UNSEEN = -3 };
typedef CUresult (*pool_of_t)(CUpool *, CUdevice);
typedef CUresult (*capturing_t)(CUstream, int *);

static int is_capturing(CUstream stream) {
    int status = 0;
    return !REAL(capturing_t, "cuStreamIsCapturing")(stream, &status) && status;
}

/* A captured allocation is made when the graph runs, and charged when the graph is instantiated (graphs.c). Any other
 * allocation belongs to a pool, whose growth is charged. */
#define TAKE(gpu, pool, stream, bytes, call)                                                        \
    do {                                                                                            \
        CUresult result_;                                                                           \
        int place_;                                                                                 \
        if (is_capturing(stream)) return (call);                                                    \
        place_ = pool_begin(pool, gpu, bytes);                                                      \
        if (place_ < 0) return FULL;                                                                \
        result_ = (call);                                                                           \
        return pool_end(place_, bytes, result_) || result_ ? result_ : undo_allocation(*to, stream, pool);            \
    } while (0)

static CUresult undo_allocation(CUdeviceptr pointer, CUstream stream, CUpool pool) {
    REAL(free_async_t, "cuMemFreeAsync")(pointer, stream);
    REAL(trim_t, "cuMemPoolTrimTo")(pool, 0);
    pools_update();
    return FULL;
}

#define ASYNC(name, stream_)                                                                        \
    EXPORT CUresult name(CUdeviceptr *to, size_t bytes, CUstream stream) {                          \
        async_t real = REAL(async_t, #name);                                                        \
        CUpool pool;                                                                                \
        CUdevice device;                                                                            \
        int gpu;                                                                                    \
        if (!present()) return REFUSED;                                                            \
        device = device_of_stream(stream);                                                          \
        gpu = gpu_of_device(device);                                                                \
        if (gpu < 0) return current_context() ? FULL : real(to, bytes, stream);                        \
        if (REAL(pool_of_t, "cuDeviceGetMemPool")(&pool, device)) return FULL;                      \
        gpu = pool_gpu(pool, gpu);                                                                  \
        if (gpu < 0) return FULL; /* a device's pool must be in its own memory */                      \
        TAKE(gpu, pool, stream_, bytes, real(to, bytes, stream));                                   \
    }
ASYNC(cuMemAllocAsync, stream)
ASYNC(cuMemAllocAsync_ptsz, OWN(stream))

/* Returns the GPU of a pool whose creation was not seen: the GPU of which it is the default or current pool,
 * whatever the stream's GPU is. Any other pool (an imported one, for example) counts as a pool of the stream's GPU. */
static int owner_of(CUpool pool, CUstream stream) {
    static const char *const ways[] = {"cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool"};
    int devices = 0;
    CUpool theirs;
    REAL(count_t, "cuDeviceGetCount")(&devices);
    for (CUdevice d = 0; d < devices; d++)
        for (int i = 0; i < 2; i++)
            if (!((pool_of_t)real_symbol(ways[i]))(&theirs, d) && theirs == pool) return gpu_of_device(d);
    return gpu_of_device(device_of_stream(stream));
}
#define FROM_POOL(name, stream_)                                                                    \
    EXPORT CUresult name(CUdeviceptr *to, size_t bytes, CUpool pool, CUstream stream) {             \
        pool_async_t real = REAL(pool_async_t, #name);                                              \
        int gpu;                                                                                    \
        if (!present()) return REFUSED;                                                            \
        if (!pool) return CUDA_ERROR_INVALID_VALUE;                                                 \
        gpu = pool_gpu(pool, UNSEEN);                                                               \
        if (gpu == OF_THE_HOST) return real(to, bytes, pool, stream);                               \
        if (gpu == UNSEEN) gpu = owner_of(pool, stream);                                            \
        if (gpu < 0) return current_context() ? FULL : real(to, bytes, pool, stream);                  \
        TAKE(gpu, pool, stream_, bytes, real(to, bytes, pool, stream));                             \
    }
FROM_POOL(cuMemAllocFromPoolAsync, stream)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, OWN(stream))

/* Memory of a pool is released when the pool shrinks; other memory is released at once. */
#define FREES(name)                                                                                 \
    EXPORT CUresult name(CUdeviceptr pointer, CUstream stream) {                                    \
        free_async_t real = REAL(free_async_t, #name);                                              \
        entry_t entry;                                                                              \
        CUresult result;                                                                            \
        int known;                                                                                  \
        if (!present()) return REFUSED;                                                            \
        known = table_remove(POINTER, pointer, &entry);                                               \
        result = real(pointer, stream);                                                             \
        if (known && !result) release(entry.gpu, entry.bytes);                                      \
        else if (known) table_put(POINTER, pointer, entry.gpu, entry.bytes, entry.context, 1);      \
        else __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);                                 \
        return result;                                                                              \
    }
FREES(cuMemFreeAsync)
FREES(cuMemFreeAsync_ptsz)

/* Managed memory (another type than pinned) may be on a GPU, wherever its location is said to be. */
EXPORT CUresult cuMemPoolCreate(CUpool *to, const pool_prop_t *property) {
    const int on_host = property && property->type == ALLOCATION_PINNED && property->location.type > LOCATION_DEVICE;
    CUresult result;
    int gpu;
    if (!present()) return REFUSED;
    result = REAL(pool_create_t, "cuMemPoolCreate")(to, property);
    if (result) return result;
    gpu = on_host ? OF_THE_HOST : property->location.type == LOCATION_DEVICE ? gpu_of_device(property->location.id)
        : current_gpu();
    if (pool_register(*to, gpu) >= 0) return CUDA_SUCCESS;
    REAL(pool_destroy_t, "cuMemPoolDestroy")(*to);
    return FULL;
}
EXPORT CUresult cuMemPoolDestroy(CUpool pool) { return present() ? pool_destroy(pool) : REFUSED; }
EXPORT CUresult cuMemPoolTrimTo(CUpool pool, size_t keep) {
    CUresult result;
    if (!present()) return REFUSED;
    result = REAL(trim_t, "cuMemPoolTrimTo")(pool, keep);
    pools_update();
    return result;
}
EXPORT CUresult cuMemPoolSetAttribute(CUpool pool, int attribute, void *value) {
    CUresult result;
    if (!present()) return REFUSED;
    result = REAL(pool_attribute_t, "cuMemPoolSetAttribute")(pool, attribute, value);
    pools_update();
    return result;
}
