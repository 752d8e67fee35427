/* Hooks of cuInit and of contexts. A context takes memory that no allocation shows. It is charged as the agent
 * measured it for this driver, and released with the context, together with the allocations of the context. */
#include "kerf.h"
#include <string.h>

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY
typedef CUresult (*init_t)(unsigned);
typedef CUresult (*retain_t)(CUcontext *, CUdevice);
typedef CUresult (*device_t)(CUdevice);
typedef CUresult (*create_v2_t)(CUcontext *, unsigned, CUdevice);
typedef CUresult (*create_v3_t)(CUcontext *, void *, int, unsigned, CUdevice);
typedef CUresult (*create_v4_t)(CUcontext *, void *, unsigned, CUdevice);
typedef CUresult (*destroy_t)(CUcontext);

pthread_mutex_t contexts_guard = PTHREAD_MUTEX_INITIALIZER;
typedef struct { int set; uint64_t first, charged; } setting_t; /* first: the context's initial value */
typedef struct {
    CUcontext context; int gpu, primary, retained; uint64_t paid; setting_t setting[LIMIT_HEAP + 1];
} known_t;
static known_t known[MAX_CONTEXTS];

EXPORT CUresult cuInit(unsigned flags) {
    if (!attached()) return REFUSED;
    return REAL(init_t, "cuInit")(flags);
}

static int place_of(CUcontext context) {
    for (int i = 0; i < MAX_CONTEXTS; i++)
        if (known[i].context == context) return i;
    return -1;
}
static int place_of_primary(int gpu) {
    for (int i = 0; i < MAX_CONTEXTS; i++)
        if (known[i].context && known[i].primary && known[i].gpu == gpu) return i;
    return -1;
}
/* Charges a context. Returns 0 if there is no memory for it, or too many contexts: one that is not known could not
 * be timed. */
static int charge_context(int gpu, int primary, uint64_t *paid) {
    int fits, again;
    pthread_mutex_lock(&contexts_guard);
    again = primary && place_of_primary(gpu) >= 0;
    *paid = again ? 0 : orders->gpu[gpu].context_bytes;
    fits = again || (place_of(NULL) >= 0 && reserve(gpu, *paid));
    pthread_mutex_unlock(&contexts_guard);
    return fits;
}

/* Records a context. Returns 0 if it is known already. */
static int record_context(CUcontext context, int gpu, int primary, uint64_t paid) {
    int i, kept = 0;
    pthread_mutex_lock(&contexts_guard);
    if ((i = place_of(context)) >= 0) known[i].retained++;
    else if ((i = place_of(NULL)) >= 0) {
        known[i].context = context, known[i].gpu = gpu, known[i].primary = primary, known[i].retained = 1,
            known[i].paid = paid;
        if (primary && !paid) { /* it existed when it was charged, and another thread has ended it since */
            known[i].paid = orders->gpu[gpu].context_bytes;
            overdraw(gpu, known[i].paid);
        }
        kept = 1;
    }
    pthread_mutex_unlock(&contexts_guard);
    return kept;
}

/* `now`: the current value of the setting; `value`: the new one; `each`: bytes per unit. `more`: the additional
 * charge. */
int context_charge(uint64_t context, int setting, uint64_t now, uint64_t value, uint64_t each, uint64_t *more) {
    __uint128_t wanted;
    setting_t *s;
    int i, fits = 1;
    *more = 0;
    pthread_mutex_lock(&contexts_guard);
    i = place_of((CUcontext)(uintptr_t)context);
    if (i >= 0) {
        s = &known[i].setting[setting];
        if (!s->set) s->set = 1, s->first = now;
        wanted = value > s->first ? (__uint128_t)(value - s->first) * each : 0;
        wanted = charge_of(wanted > KERF_ACCOUNT_BYTES ? KERF_ACCOUNT_BYTES : (uint64_t)wanted);
        *more = wanted > s->charged ? (uint64_t)wanted - s->charged : 0;
        fits = reserve(known[i].gpu, *more);
        if (fits) s->charged += *more;
    }
    pthread_mutex_unlock(&contexts_guard);
    return fits;
}
void context_refund(uint64_t context, int setting, uint64_t more) {
    int i;
    pthread_mutex_lock(&contexts_guard);
    i = place_of((CUcontext)(uintptr_t)context);
    if (i >= 0 && more) {
        known[i].setting[setting].charged -= more;
        release(known[i].gpu, more);
    }
    pthread_mutex_unlock(&contexts_guard);
}

static int of_context(const entry_t *entry, const void *context) {
    return (entry->kind == POINTER || entry->kind == ARRAY) && entry->context == (uint64_t)(uintptr_t)context;
}
/* Removes a context. Its place is freed first, so that a thread that creates a context meanwhile finds it free. */
static void remove_context(int i) {
    const known_t was = known[i];
    uint64_t bytes[KERF_MAX_GPUS] = {0};
    memset(&known[i], 0, sizeof known[i]);
    pthread_mutex_unlock(&contexts_guard);
    for (int s = 0; s <= LIMIT_HEAP; s++) release(was.gpu, was.setting[s].charged);
    table_remove_all(of_context, was.context, bytes);
    for (int gpu = 0; gpu < KERF_MAX_GPUS; gpu++) release(gpu, bytes[gpu]);
    __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);
    release(was.gpu, was.paid);
    pthread_mutex_lock(&contexts_guard);
}
static CUcontext primary_of(int gpu, int always) {
    CUcontext context = NULL;
    int i;
    pthread_mutex_lock(&contexts_guard);
    i = place_of_primary(gpu);
    if (i >= 0 && (known[i].retained <= 1 || always)) context = known[i].context;
    pthread_mutex_unlock(&contexts_guard);
    return context;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    uint64_t paid = 0;
    CUresult result;
    int gpu;
    if (!attached()) return REFUSED;
    gpu = gpu_of_device(device);
    if (gpu >= 0 && !charge_context(gpu, 1, &paid)) return CUDA_ERROR_OUT_OF_MEMORY;
    result = REAL(retain_t, "cuDevicePrimaryCtxRetain")(context, device);
    if (gpu >= 0 && (result || !record_context(*context, gpu, 1, paid))) release(gpu, paid);
    return result;
}

#define RELEASES(name, always)                                                  \
    EXPORT CUresult name(CUdevice device) {                                     \
        CUresult result;                                                        \
        CUcontext ending;                                                       \
        unfinished_t left = {0, 0, 0};                                                \
        int i;                                                                  \
        if (!attached()) return REFUSED;                                        \
        ending = primary_of(gpu_of_device(device), always);                     \
        if (ending) left = timing_context_ending(ending);                                \
        result = REAL(device_t, #name)(device);                                 \
        timing_context_ended(left);                                                      \
        pthread_mutex_lock(&contexts_guard);                                    \
        i = place_of_primary(gpu_of_device(device));                            \
        if (!result && i >= 0 && (--known[i].retained <= 0 || (always))) remove_context(i); \
        pthread_mutex_unlock(&contexts_guard);                                  \
        return result;                                                          \
    }
RELEASES(cuDevicePrimaryCtxRelease, 0)
RELEASES(cuDevicePrimaryCtxRelease_v2, 0)
RELEASES(cuDevicePrimaryCtxReset, 1)
RELEASES(cuDevicePrimaryCtxReset_v2, 1)

#define CREATES(name, type, parameters, arguments)                              \
    EXPORT CUresult name parameters {                                           \
        uint64_t paid = 0;                                                      \
        CUresult result;                                                        \
        int gpu;                                                                \
        if (!attached()) return REFUSED;                                        \
        gpu = gpu_of_device(device);                                            \
        if (gpu >= 0 && !charge_context(gpu, 0, &paid)) return CUDA_ERROR_OUT_OF_MEMORY;   \
        result = REAL(type, #name) arguments;                                   \
        if (gpu >= 0 && (result || !record_context(*context, gpu, 0, paid))) release(gpu, paid); \
        return result;                                                          \
    }
CREATES(cuCtxCreate, create_v2_t, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATES(cuCtxCreate_v2, create_v2_t, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATES(cuCtxCreate_v3, create_v3_t, (CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device),
    (context, affinity, count, flags, device))
CREATES(cuCtxCreate_v4, create_v4_t, (CUcontext *context, void *parameters, unsigned flags, CUdevice device),
    (context, parameters, flags, device))

#define DESTROYS(name)                                                          \
    EXPORT CUresult name(CUcontext context) {                                   \
        CUresult result;                                                        \
        unfinished_t left = {0, 0, 0};                                                \
        int i;                                                                  \
        if (!attached()) return REFUSED;                                        \
        if (context) left = timing_context_ending(context);                              \
        result = REAL(destroy_t, #name)(context);                               \
        timing_context_ended(left);                                                      \
        pthread_mutex_lock(&contexts_guard);                                    \
        i = context ? place_of(context) : -1;                                   \
        if (!result && i >= 0) remove_context(i);                                         \
        pthread_mutex_unlock(&contexts_guard);                                  \
        return result;                                                          \
    }
DESTROYS(cuCtxDestroy)
DESTROYS(cuCtxDestroy_v2)

/* Called in a child: the contexts belong to the parent, and no driver lets a child use them. */
void contexts_forget(void) {
    memset(known, 0, sizeof known);
}
