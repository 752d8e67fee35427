/* Charges the device memory that this process's memory pools reserve, as the driver reports it, and reserves memory for
 * all other allocations, if necessary at the expense of what pools and graphs do not use.
 *
 * A pool takes memory in chunks, keeps freed memory (up to its release threshold, until the program waits for the
 * GPU), and uses it for the next allocation. So neither an allocation nor a free shows how much device memory is
 * taken; the pool's reserved memory does. The charge is never below it: the maximum growth of the pool is reserved
 * before the driver is called, and what the pool did not grow is released afterwards.
 *
 * The driver does not report the size of a chunk. The canary measures it (`pool_chunk_bytes`). If a pool grows by
 * more than was reserved, it is charged nevertheless, even beyond the limit; the new chunk size is learned, and the
 * allocation is undone. */
#include "kerf.h"
#include <string.h>

#define FULL CUDA_ERROR_OUT_OF_MEMORY
typedef CUresult (*attribute_t)(CUpool, int, void *);
typedef CUresult (*trim_t)(CUpool, size_t);
typedef CUresult (*destroy_t)(CUpool);
typedef CUresult (*count_t)(int *);
typedef CUresult (*pool_of_t)(CUpool *, CUdevice);
typedef CUresult (*choose_t)(CUdevice, CUpool);

/* held while the driver takes memory, so that only one pool grows */
pthread_mutex_t pools_guard = PTHREAD_MUTEX_INITIALIZER;
int pools_pending;
static __thread int within; /* this thread holds the guard, and may reserve memory */
static int busy;            /* some thread does; to try a lock is not in all versions of the C library */
static int cancellable;     /* its previous cancellation state */
enum { POOLS = 128 };
static struct { CUpool pool; int gpu, destroyed; uint64_t charged; } known_pools[POOLS];
static uint64_t learned[KERF_MAX_GPUS]; /* a chunk that is larger than pool_chunk_bytes */
static uint64_t asked, before;          /* of the current allocation, protected by the guard */
static uint64_t settled_ns;             /* when all pools were settled last */
enum { QUERIES_SETTLE_NS = 1000000 };   /* programs query thousands of times per second */

/* 0: this thread holds the guard already, in a callback that the driver makes within an allocation (as profilers
 * do). */
static int lock_pools_if(int busy_too) {
    int before;
    if (within || (!busy_too && __atomic_load_n(&busy, __ATOMIC_RELAXED))) return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&pools_guard);
    __atomic_store_n(&busy, 1, __ATOMIC_RELAXED);
    cancellable = before;
    return within = 1;
}
static int lock_pools(void) { return lock_pools_if(1); }
static void unlock_pools(void) {
    const int before = cancellable;
    within = 0;
    __atomic_store_n(&busy, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&pools_guard);
    pthread_setcancelstate(before, NULL);
}

static uint64_t attribute_of(int i, int attribute, uint64_t otherwise) {
    attribute_t real = REAL(attribute_t, "cuMemPoolGetAttribute");
    uint64_t value = 0;
    return real && !real(known_pools[i].pool, attribute, &value) ? value : otherwise;
}

static uint64_t chunk_of(int gpu) {
    const uint64_t granule = granule_bytes();
    const uint64_t told = orders->pool_chunk_bytes > granule ? orders->pool_chunk_bytes : granule;
    return told > learned[gpu] ? told : learned[gpu];
}

static int place_of(CUpool pool) {
    for (int i = 0; i < POOLS; i++)
        if (known_pools[i].pool == pool) return i;
    return -1;
}

static void charge(int i, uint64_t bytes) {
    if (bytes < known_pools[i].charged) release(known_pools[i].gpu, known_pools[i].charged - bytes);
    else if (bytes > known_pools[i].charged) overdraw(known_pools[i].gpu, bytes - known_pools[i].charged);
    known_pools[i].charged = bytes;
}

/* Updates a pool's charge. A pool that the program has destroyed while its memory is in use is destroyed only when
 * all of it has been freed, because until then the driver must report its size. */
static void settle(int i) {
    if (!known_pools[i].pool || known_pools[i].gpu < 0) return;
    charge(i, attribute_of(i, POOL_RESERVED_CURRENT, known_pools[i].charged));
    if (!known_pools[i].destroyed || known_pools[i].charged) return;
    REAL(destroy_t, "cuMemPoolDestroy")(known_pools[i].pool);
    known_pools[i].pool = NULL, known_pools[i].destroyed = 0;
}

/* Whether the pool may return memory when the program waits. */
static int may_return_memory(int i) {
    const uint64_t reserved = known_pools[i].charged;
    return known_pools[i].pool && known_pools[i].gpu >= 0 && reserved > attribute_of(i, POOL_USED_CURRENT, 0)
        && reserved > attribute_of(i, POOL_RELEASE_THRESHOLD, 0);
}

/* What another thread frees meanwhile leaves `pools_pending` set. */
static void settle_all(void) {
    int pending;
    __atomic_store_n(&pools_pending, 0, __ATOMIC_SEQ_CST);
    pending = graph_memory_settle();
    for (int i = 0; i < POOLS; i++)
        if (known_pools[i].pool) settle(i), pending |= may_return_memory(i);
    if (pending) __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&settled_ns, now_ns(), __ATOMIC_RELAXED);
}

void pools_update(void) {
    if (!lock_pools()) return;
    settle_all();
    unlock_pools();
}

void pools_settle_after(enum after call) {
    if (call == AFTER_QUERY && now_ns() - __atomic_load_n(&settled_ns, __ATOMIC_RELAXED) < QUERIES_SETTLE_NS) return;
    if (!lock_pools_if(0)) {
        __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);
        return;
    }
    settle_all();
    unlock_pools();
}

static void trim_pools(int gpu) {
    for (int i = 0; i < POOLS; i++) {
        if (!known_pools[i].pool || known_pools[i].gpu != gpu) continue;
        REAL(trim_t, "cuMemPoolTrimTo")(known_pools[i].pool, 0);
        settle(i);
    }
}

/* Trims the pools on a GPU, as the driver does before it reports that there is no memory. */
static void trim_if_unlocked(int gpu) {
    if (!lock_pools()) return; /* called within a pool's allocation */
    trim_pools(gpu);
    unlock_pools();
}

/* If there is no room, dead processes and pools may hold memory that can be freed. A refusal is not counted. */
static int reserve_uncounted(int gpu, uint64_t bytes) {
    if (try_reserve(gpu, bytes)) return 1;
    reclaim();
    trim_if_unlocked(gpu);
    graph_memory_trim(gpu);
    return try_reserve(gpu, bytes);
}

/* While the container's memory is on the host, or on its way there, its limit is 0. A program would take a refusal for
 * the end of the memory, and might not survive it: the call waits, as launches do. */
int reserve(int gpu, uint64_t bytes) {
    enum { AWAY_NS = 2000000 };
    int away;
    do {
        while_away(); /* what follows may call the driver */
        away = is_away(gpu); /* before and after: the limit may have been raised or lowered meanwhile */
        if (reserve_uncounted(gpu, bytes)) return 1;
        away |= is_away(gpu);
        if (away) sleep_until(now_ns() + AWAY_NS); /* without an agent, too: the limit is what it is */
    } while (away);
    __atomic_add_fetch(&counters->gpu[gpu].refused, 1, __ATOMIC_RELAXED);
    return 0;
}

/* Returns the pool's index; -1: too many pools. `gpu` -1: not a GPU's memory, or a GPU that the container does not
 * have. */
int pool_register(CUpool pool, int gpu) {
    int i;
    if (!lock_pools()) return -1;
    i = place_of(pool);
    if (i < 0 && (i = place_of(NULL)) >= 0) known_pools[i].pool = pool, known_pools[i].gpu = gpu,
        known_pools[i].destroyed = 0, known_pools[i].charged = 0;
    unlock_pools();
    return i;
}

int pool_gpu(CUpool pool, int otherwise) {
    const int first = lock_pools(), i = place_of(pool);
    if (i >= 0) otherwise = known_pools[i].gpu;
    if (first) unlock_pools();
    return otherwise;
}

/* If it returns an index, it leaves the guard locked. */
int pool_begin(CUpool pool, int gpu, uint64_t bytes) {
    const int i = pool_register(pool, gpu);
    const uint64_t most = up_to(bytes, chunk_of(gpu));
    if (i < 0) return -1;
    lock_pools();
    settle(i);
    before = known_pools[i].charged, asked = most;
    if (reserve_uncounted(gpu, most)) return i;
    asked = 0;
    /* the memory that it keeps is enough */
    if (before >= attribute_of(i, POOL_USED_CURRENT, before) + charge_of(bytes)) return i;
    trim_pools(gpu);
    before = known_pools[i].charged, asked = most;
    if (reserve(gpu, most)) return i;
    unlock_pools();
    return -1;
}

/* Returns 0 if the pool grew beyond the limit: the allocation must be undone. */
int pool_end(int i, uint64_t bytes, CUresult result) {
    const int gpu = known_pools[i].gpu;
    /* a pool that the driver knows no more has not grown */
    const uint64_t now = attribute_of(i, POOL_RESERVED_CURRENT, result ? before : before + asked);
    const uint64_t grown = now > before ? now - before : 0;
    uint64_t chunk = chunk_of(gpu);
    int fits = grown <= asked || reserve(gpu, grown - asked);
    if (asked && grown > asked) {
        while (up_to(bytes, chunk) < grown) chunk *= 2;
        learned[gpu] = chunk;
    }
    known_pools[i].charged = before + (fits && grown > asked ? grown : asked);
    charge(i, now);
    __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);
    unlock_pools();
    return fits;
}

/* Selects the default pool again, as the driver does when the device's current pool is destroyed. */
static void choose_another(CUpool pool) {
    int devices = 0;
    CUpool chosen;
    REAL(count_t, "cuDeviceGetCount")(&devices);
    for (CUdevice d = 0; d < devices; d++) {
        if (REAL(pool_of_t, "cuDeviceGetMemPool")(&chosen, d) || chosen != pool) continue;
        if (!REAL(pool_of_t, "cuDeviceGetDefaultMemPool")(&chosen, d)) REAL(choose_t, "cuDeviceSetMemPool")(d, chosen);
    }
}

CUresult pool_destroy(CUpool pool) {
    CUresult result = CUDA_SUCCESS;
    int i;
    if (!lock_pools()) return CUDA_ERROR_NOT_PERMITTED;
    i = place_of(pool);
    if (i >= 0 && known_pools[i].gpu >= 0) {
        REAL(trim_t, "cuMemPoolTrimTo")(pool, 0);
        settle(i);
    }
    if (i >= 0 && known_pools[i].charged) {
        uint64_t none = 0;
        REAL(attribute_t, "cuMemPoolSetAttribute")(pool, POOL_RELEASE_THRESHOLD, &none);
        choose_another(pool);
        known_pools[i].destroyed = 1;
        __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);
    } else {
        result = REAL(destroy_t, "cuMemPoolDestroy")(pool);
        if (i >= 0 && !result) known_pools[i].pool = NULL;
    }
    unlock_pools();
    return result;
}

/* Called in a child: the pools belong to the parent. */
void pools_forget(void) {
    within = busy = 0;
    for (int i = 0; i < POOLS; i++) known_pools[i].pool = NULL, known_pools[i].charged = 0,
        known_pools[i].destroyed = 0;
    pools_pending = 0;
}
