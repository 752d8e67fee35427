/* Memory pools, as the driver's documentation describes them. A pool takes memory in chunks
 * (KERF_FAKE_CUDA_POOL_KIB, 2048). Freed memory can be allocated again at once; it is returned to the device, except
 * for the release threshold, when a process waits for the GPU. Memory that is freed in stream order counts as
 * outstanding until then, so that a trim keeps it. A destroyed pool is gone when none of its memory is outstanding
 * any more. */
#include "world.h"
#include <stdlib.h>

typedef struct pool {
    int device, destroyed; uint64_t threshold, reserved, used, outstanding; struct pool *next;
} pool_t;
static pool_t *pools, *default_pool[DEVICES], *chosen_pool[DEVICES];
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static uint64_t chunks(uint64_t bytes) {
    const uint64_t chunk = world()->pool_chunk_bytes;
    return (bytes + chunk - 1) / chunk * chunk;
}

static void shrink(pool_t *pool, uint64_t keep) {
    const uint64_t least = chunks(pool->used + pool->outstanding), wanted = chunks(keep) > least ? chunks(keep) : least;
    if (pool->reserved <= wanted) return;
    give(pool->device, pool->reserved - wanted);
    pool->reserved = wanted;
}

CUresult pool_take(void *which, uint64_t bytes) {
    pool_t *pool = which;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&guard);
    if (pool->used + bytes > pool->reserved) {
        const uint64_t more = chunks(pool->used + bytes - pool->reserved);
        result = take(pool->device, more);
        if (!result) pool->reserved += more;
    }
    if (!result) {
        pool->used += bytes;
        /* allocated again */
        if (pool->used + pool->outstanding > pool->reserved) pool->outstanding = pool->reserved - pool->used;
    }
    pthread_mutex_unlock(&guard);
    return result;
}

void pool_give(void *which, uint64_t bytes, int in_order) {
    pool_t *pool = which;
    pthread_mutex_lock(&guard);
    pool->used -= bytes;
    if (in_order) pool->outstanding += bytes;
    pthread_mutex_unlock(&guard);
}

/* Called after a wait for the GPU. */
void pools_waited_for(void) {
    pthread_mutex_lock(&guard);
    for (pool_t **at = &pools; *at;) {
        pool_t *pool = *at;
        pool->outstanding = 0;
        shrink(pool, pool->destroyed ? 0 : pool->threshold < pool->reserved ? pool->threshold : pool->reserved);
        if (pool->destroyed && !pool->reserved) *at = pool->next, free(pool);
        else at = &pool->next;
    }
    pthread_mutex_unlock(&guard);
}

static pool_t *made(int device) {
    pool_t *pool = calloc(1, sizeof *pool);
    pthread_mutex_lock(&guard);
    pool->device = device;
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&guard);
    return pool;
}

CUresult cuMemPoolCreate(CUpool *to, const pool_prop_t *property) { return *to = made(property->location.id), ready(); }
CUresult cuMemPoolDestroy(CUpool which) {
    pool_t *pool = which;
    if (pool == default_pool[pool->device]) return CUDA_ERROR_INVALID_VALUE;
    if (chosen_pool[pool->device] == pool) chosen_pool[pool->device] = NULL;
    pool->destroyed = 1;
    shrink(pool, 0);
    if (!pool->reserved) pools_waited_for();
    return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUpool pool, size_t keep) {
    pthread_mutex_lock(&guard);
    shrink(pool, keep);
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAttribute(CUpool pool, int attribute, void *value) {
    if (attribute == POOL_RELEASE_THRESHOLD) ((pool_t *)pool)->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(CUpool which, int attribute, void *value) {
    const pool_t *pool = which;
    const uint64_t of[] = {[POOL_RELEASE_THRESHOLD] = pool->threshold, [POOL_RESERVED_CURRENT] = pool->reserved,
        [POOL_USED_CURRENT] = pool->used};
    if (attribute < POOL_RELEASE_THRESHOLD || attribute > POOL_USED_CURRENT) return CUDA_ERROR_INVALID_VALUE;
    return *(uint64_t *)value = of[attribute], CUDA_SUCCESS;
}
CUresult cuDeviceGetDefaultMemPool(CUpool *to, CUdevice device) {
    if (!default_pool[device]) default_pool[device] = made(device);
    return *to = default_pool[device], ready();
}
CUresult cuDeviceGetMemPool(CUpool *to, CUdevice device) {
    return chosen_pool[device] ? (*to = chosen_pool[device], CUDA_SUCCESS) : cuDeviceGetDefaultMemPool(to, device);
}
CUresult cuDeviceSetMemPool(CUdevice device, CUpool pool) { return chosen_pool[device] = pool, ready(); }

static _Thread_local void (*at_take)(void);
void kerf_fake_at_take(void (*function)(void)) { at_take = function; }
static CUresult from_pool(CUdeviceptr *to, size_t bytes, CUpool pool, CUstream stream) {
    const int device = ((pool_t *)pool)->device;
    stream_t *s = stream_of(stream);
    void (*call)(void) = at_take;
    at_take = NULL;
    if (call) call();
    at_take = call;
    if (!s) return CUDA_ERROR_INVALID_CONTEXT;
    if (!s->capture) return allocate_from(to, bytes, device, pool);
    graph_add(s->capture, (node_t){NODE_MEM_ALLOC, {.pool.location = {LOCATION_DEVICE, device}, .bytes = bytes}, NULL});
    return *to = memory_of_graph(device), CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr *to, size_t bytes, CUstream stream) {
    stream_t *s = stream_of(stream);
    CUpool pool;
    if (!s || cuDeviceGetMemPool(&pool, s->context->device)) return CUDA_ERROR_INVALID_CONTEXT;
    return from_pool(to, bytes, pool, stream);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *to, size_t bytes, CUpool pool, CUstream stream) {
    return from_pool(to, bytes, pool, stream);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *to, size_t bytes, CUstream stream) {
    return count_call("cuMemAllocAsync"), cuMemAllocAsync(to, bytes, stream);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *to, size_t bytes, CUpool pool, CUstream stream) {
    return count_call("cuMemAllocFromPoolAsync"), cuMemAllocFromPoolAsync(to, bytes, pool, stream);
}
