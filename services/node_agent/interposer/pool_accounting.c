/* What this process's memory pools hold of the device, by the driver's word, and the charge that follows it.
 *
 * A pool takes memory in chunks, keeps what is freed into it (as much as its release threshold says, until somebody waits for
 * the GPU), and gives it to the next allocation. So neither an allocation nor a free says what the device has less or more of:
 * the pool's reserved memory does. A charge is at least that at any time: the most by which the pool can grow is reserved before
 * the driver is asked, and what it did not grow is given back afterwards.
 *
 * How large a chunk is the driver does not say. The canary measures it (`pool_chunk_bytes`); a pool that grew by more than was
 * reserved is charged all the same, even beyond the limit, teaches what a chunk is, and the allocation is undone. */
#include "kerf.h"

#define FULL CUDA_ERROR_OUT_OF_MEMORY
typedef CUresult (*attribute_t)(CUpool, int, void *);
typedef CUresult (*trim_t)(CUpool, size_t);
typedef CUresult (*destroy_t)(CUpool);
typedef CUresult (*count_t)(int *);
typedef CUresult (*pool_of_t)(CUpool *, CUdevice);
typedef CUresult (*choose_t)(CUdevice, CUpool);

pthread_mutex_t pools_guard = PTHREAD_MUTEX_INITIALIZER; /* held while the driver takes memory: nobody else's growth is measured */
int pools_pending;
static __thread int within; /* this thread has the guard, and may ask for room */
static int cancellable;     /* what it was before */
enum { POOLS = 128 };
static struct { CUpool pool; int gpu, doomed; uint64_t charged; } known_pools[POOLS];
static uint64_t learned[KERF_MAX_GPUS]; /* a chunk that was larger than the page says */
static uint64_t asked, before;          /* of the allocation that is under way, under the guard */

/* 0: this thread has it already: a callback that the driver makes within an allocation, as profilers have. */
static int hold(void) {
    int before;
    if (within) return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&pools_guard);
    cancellable = before;
    return within = 1;
}
static void let_go(void) {
    const int before = cancellable;
    within = 0;
    pthread_mutex_unlock(&pools_guard);
    pthread_setcancelstate(before, NULL);
}

static uint64_t figure(int i, int attribute, uint64_t otherwise) {
    attribute_t real = REAL(attribute_t, "cuMemPoolGetAttribute");
    uint64_t value = 0;
    return real && !real(known_pools[i].pool, attribute, &value) ? value : otherwise;
}

static uint64_t up_to(uint64_t bytes, uint64_t unit) { return bytes > KERF_ACCOUNT_BYTES - unit ? KERF_ACCOUNT_BYTES : (bytes + unit - 1) / unit * unit; }

static uint64_t chunk_of(int gpu) {
    const uint64_t granule = orders->granularity_bytes ? orders->granularity_bytes : 2 << 20;
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

/* A destroyed pool of which something is still out is destroyed when it has come back: until then we can still ask about it. */
static void settle(int i) {
    if (!known_pools[i].pool || known_pools[i].gpu < 0) return;
    charge(i, figure(i, POOL_RESERVED_CURRENT, known_pools[i].charged));
    if (!known_pools[i].doomed || known_pools[i].charged) return;
    REAL(destroy_t, "cuMemPoolDestroy")(known_pools[i].pool);
    known_pools[i].pool = NULL, known_pools[i].doomed = 0;
}

/* Whether anything may come back when somebody waits. */
static int keeps(int i) {
    const uint64_t reserved = known_pools[i].charged;
    return known_pools[i].pool && known_pools[i].gpu >= 0 && reserved > figure(i, POOL_USED_CURRENT, 0) && reserved > figure(i, POOL_RELEASE_THRESHOLD, 0);
}

void pools_update(void) {
    int pending = 0;
    if (!hold()) return;
    for (int i = 0; i < POOLS; i++)
        if (known_pools[i].pool) settle(i), pending |= keeps(i);
    __atomic_store_n(&pools_pending, pending, __ATOMIC_RELAXED);
    let_go();
}

static void squeeze(int gpu) {
    for (int i = 0; i < POOLS; i++) {
        if (!known_pools[i].pool || known_pools[i].gpu != gpu) continue;
        REAL(trim_t, "cuMemPoolTrimTo")(known_pools[i].pool, 0);
        settle(i);
    }
}

/* As the driver does before it says that there is no memory: what pools keep for later is given back. */
void pools_trim(int gpu) {
    if (!hold()) return; /* it is a pool that asks */
    squeeze(gpu);
    let_go();
}

/* -1: more pools than anybody needs. `gpu` -1: memory that is not a GPU's, or not a GPU of ours. */
int pool_register(CUpool pool, int gpu) {
    int i;
    if (!hold()) return -1;
    i = place_of(pool);
    if (i < 0 && (i = place_of(NULL)) >= 0) known_pools[i].pool = pool, known_pools[i].gpu = gpu, known_pools[i].doomed = 0, known_pools[i].charged = 0;
    let_go();
    return i;
}

int pool_gpu(CUpool pool, int otherwise) {
    const int first = hold(), i = place_of(pool);
    if (i >= 0) otherwise = known_pools[i].gpu;
    if (first) let_go();
    return otherwise;
}

/* Leaves the guard locked where it returns a place. */
int pool_begin(CUpool pool, int gpu, uint64_t bytes) {
    const int i = pool_register(pool, gpu);
    const uint64_t most = up_to(bytes, chunk_of(gpu));
    if (i < 0) return -1;
    hold();
    settle(i);
    before = known_pools[i].charged, asked = most;
    if (reserve_uncounted(gpu, most)) return i;
    asked = 0;
    if (before >= figure(i, POOL_USED_CURRENT, before) + charge_of(bytes)) return i; /* what it keeps will do */
    squeeze(gpu);
    before = known_pools[i].charged, asked = most;
    if (reserve(gpu, most)) return i;
    let_go();
    return -1;
}

/* 0: the pool grew by more than there is: the allocation is to be undone. */
int pool_end(int i, uint64_t bytes) {
    const int gpu = known_pools[i].gpu;
    const uint64_t now = figure(i, POOL_RESERVED_CURRENT, before + asked), grown = now > before ? now - before : 0;
    uint64_t chunk = chunk_of(gpu);
    int fits = grown <= asked || reserve(gpu, grown - asked);
    if (asked && grown > asked) {
        while (up_to(bytes, chunk) < grown) chunk *= 2;
        learned[gpu] = chunk;
    }
    known_pools[i].charged = before + (fits && grown > asked ? grown : asked);
    charge(i, now);
    __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);
    let_go();
    return fits;
}

/* As the driver does when it destroys the pool that a device allocates from. */
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
    if (!hold()) return CUDA_ERROR_NOT_PERMITTED;
    i = place_of(pool);
    if (i >= 0 && known_pools[i].gpu >= 0) {
        REAL(trim_t, "cuMemPoolTrimTo")(pool, 0);
        settle(i);
    }
    if (i >= 0 && known_pools[i].charged) {
        uint64_t none = 0;
        REAL(attribute_t, "cuMemPoolSetAttribute")(pool, POOL_RELEASE_THRESHOLD, &none);
        choose_another(pool);
        known_pools[i].doomed = 1;
        __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);
    } else {
        result = REAL(destroy_t, "cuMemPoolDestroy")(pool);
        if (i >= 0 && !result) known_pools[i].pool = NULL;
    }
    let_go();
    return result;
}

/* In a child: they are the parent's. */
void pools_forget(void) {
    within = 0;
    for (int i = 0; i < POOLS; i++) known_pools[i].pool = NULL, known_pools[i].charged = 0, known_pools[i].doomed = 0;
    pools_pending = 0;
}
