/* Charges the memory of this process's contexts. A context takes memory that no allocation shows. It is charged as the
 * agent measured it for this driver, and released with the context, together with the allocations of the context. */
#include "kerf.h"
#include <string.h>

pthread_mutex_t contexts_guard = PTHREAD_MUTEX_INITIALIZER;
typedef struct { int set; uint64_t first, charged; } setting_t; /* first: the context's initial value */
typedef struct {
    CUcontext context; int gpu, primary, retained; uint64_t paid; setting_t setting[LIMIT_HEAP + 1];
} known_t;
static known_t known[MAX_CONTEXTS];

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
int context_reserve(int gpu, int primary, uint64_t *paid) {
    int fits, again;
    pthread_mutex_lock(&contexts_guard);
    again = primary && place_of_primary(gpu) >= 0;
    *paid = again ? 0 : orders->gpu[gpu].context_bytes;
    fits = again || (place_of(NULL) >= 0 && reserve(gpu, *paid));
    pthread_mutex_unlock(&contexts_guard);
    return fits;
}

int context_record(CUcontext context, int gpu, int primary, uint64_t paid) {
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

/* A green context is its GPU's primary context with fewer multiprocessors, and has its settings. */
static int place_with_settings(uint64_t context, int gpu) {
    const int i = place_of((CUcontext)(uintptr_t)context);
    return i >= 0 ? i : place_of_primary(gpu);
}
int context_charge(uint64_t context, int gpu, int setting, uint64_t now, uint64_t value, uint64_t each, uint64_t *more) {
    __uint128_t wanted;
    setting_t *s;
    int i, fits = 0;
    *more = 0;
    pthread_mutex_lock(&contexts_guard);
    i = place_with_settings(context, gpu);
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
void context_refund(uint64_t context, int gpu, int setting, uint64_t more) {
    int i;
    pthread_mutex_lock(&contexts_guard);
    i = place_with_settings(context, gpu);
    if (i >= 0 && more) {
        known[i].setting[setting].charged -= more;
        release(known[i].gpu, more);
    }
    pthread_mutex_unlock(&contexts_guard);
}

static int of_context(const entry_t *entry, const void *context) {
    return (entry->kind == POINTER || entry->kind == ARRAY || entry->kind == EXTERNAL || entry->kind == IMPORT)
        && entry->context == (uint64_t)(uintptr_t)context;
}
static int graph_of(const entry_t *entry, const void *context) {
    return entry->kind == EXECUTABLE && entry->context == (uint64_t)(uintptr_t)context;
}
static int green_of(const entry_t *entry, const void *context) {
    return entry->kind == GREEN && entry->context == (uint64_t)(uintptr_t)context;
}
/* The green contexts of a primary context end with it. What was allocated while one was current belongs to the primary
 * context from now on. */
static void remove_green(CUcontext primary) {
    entry_t entry;
    while (table_remove_any(green_of, primary, &entry))
        if (entry.bytes) table_move_context(entry.bytes, (uint64_t)(uintptr_t)primary);
}
/* Removes a context. Its place is freed first, so that a thread that creates a context meanwhile finds it free. */
static void remove_context(int i) {
    const known_t was = known[i];
    uint64_t bytes[KERF_MAX_GPUS] = {0}, promised[KERF_MAX_GPUS] = {0};
    memset(&known[i], 0, sizeof known[i]);
    pthread_mutex_unlock(&contexts_guard);
    for (int s = 0; s <= LIMIT_HEAP; s++) release(was.gpu, was.setting[s].charged);
    remove_green(was.context);
    table_remove_all(of_context, was.context, bytes);
    table_remove_all(graph_of, was.context, promised);
    for (int gpu = 0; gpu < KERF_MAX_GPUS; gpu++) {
        release(gpu, bytes[gpu]);
        if (promised[gpu]) graph_memory_abandoned(gpu, promised[gpu]);
    }
    __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED);
    release(was.gpu, was.paid);
    pthread_mutex_lock(&contexts_guard);
}
CUcontext context_primary(int gpu, int always) {
    CUcontext context = NULL;
    int i;
    pthread_mutex_lock(&contexts_guard);
    i = place_of_primary(gpu);
    if (i >= 0 && (known[i].retained <= 1 || always)) context = known[i].context;
    pthread_mutex_unlock(&contexts_guard);
    return context;
}

void context_released(int gpu, int always) {
    int i;
    pthread_mutex_lock(&contexts_guard);
    i = place_of_primary(gpu);
    if (i >= 0 && (--known[i].retained <= 0 || always)) remove_context(i);
    pthread_mutex_unlock(&contexts_guard);
}

void context_destroyed(CUcontext context) {
    int i;
    pthread_mutex_lock(&contexts_guard);
    i = place_of(context);
    if (i >= 0) remove_context(i);
    pthread_mutex_unlock(&contexts_guard);
}

/* Called in a child: the contexts belong to the parent, and no driver lets a child use them. */
void contexts_forget(void) {
    memset(known, 0, sizeof known);
}
