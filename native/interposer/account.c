/* The account of the container's memory. A reservation is one compare-and-swap on a word that holds the sum and a
 * change counter. In addition each process records its own part of the sum. A crash between the two steps can leave
 * the sum only too high, never too low: it is raised first and lowered last. The repair adds up the parts of the
 * living processes at a moment when no process is between the two steps (their intents are 0), and stores the result
 * only if the sum has not changed since. */
#include "kerf.h"

#define BYTES(word) ((word) & KERF_ACCOUNT_BYTES)
#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), v, __ATOMIC_SEQ_CST)

pthread_mutex_t account_guard = PTHREAD_MUTEX_INITIALIZER; /* one thread of this process changes its part at a time */

static uint64_t with_next_change(uint64_t word, uint64_t bytes) {
    return ((word & ~KERF_ACCOUNT_BYTES) + KERF_ACCOUNT_BYTES + 1) | bytes;
}

uint64_t charged(int gpu) { return BYTES(LOAD(counters->gpu[gpu].account)); }

/* NVML may see more of the container's memory than the account has: what no call reports, or an account that the
 * container forges. The agent writes the difference, and it lowers the limit: who forges the account has less left. */
uint64_t held(int gpu) { return charged(gpu) + LOAD(orders->gpu[gpu].surcharge_bytes); }

static uint64_t limit_now(int gpu) {
    const uint64_t limit = LOAD(orders->gpu[gpu].memory_limit_bytes), less = LOAD(orders->gpu[gpu].surcharge_bytes);
    return limit == KERF_NO_LIMIT ? limit : less < limit ? limit - less : 0;
}

uint64_t granule_bytes(void) { return orders->granularity_bytes ? orders->granularity_bytes : 2 << 20; }
uint64_t up_to(uint64_t bytes, uint64_t unit) {
    return bytes > KERF_ACCOUNT_BYTES - unit ? KERF_ACCOUNT_BYTES : (bytes + unit - 1) / unit * unit;
}
uint64_t charge_of(uint64_t bytes) { return up_to(bytes, bytes >= granule_bytes() ? granule_bytes() : 512); }

static int raise_to(int gpu, uint64_t bytes, uint64_t limit) {
    struct kerf_gpu_counters *g = &counters->gpu[gpu];
    uint64_t word = LOAD(g->account), sum, peak;
    do {
        sum = BYTES(word) + bytes;
        if (bytes > limit || sum > limit || sum > KERF_ACCOUNT_BYTES) return 0;
    } while (!__atomic_compare_exchange_n(&g->account, &word, with_next_change(word, sum), 0, __ATOMIC_SEQ_CST,
        __ATOMIC_SEQ_CST));
    peak = LOAD(g->peak_bytes);
    while (peak < sum && !__atomic_compare_exchange_n(&g->peak_bytes, &peak, sum, 0, __ATOMIC_SEQ_CST,
        __ATOMIC_SEQ_CST)) {}
    return 1;
}

static void lower(int gpu, uint64_t bytes) {
    struct kerf_gpu_counters *g = &counters->gpu[gpu];
    uint64_t word = LOAD(g->account);
    while (!__atomic_compare_exchange_n(&g->account, &word, with_next_change(word, BYTES(word) - bytes), 0,
        __ATOMIC_SEQ_CST,
        __ATOMIC_SEQ_CST)) {}
}

static int beyond_now(int gpu, uint64_t limit) {
    const uint64_t now = limit_now(gpu);
    return now < limit && charged(gpu) > now;
}

static int change(int gpu, uint64_t bytes, uint64_t limit) {
    struct kerf_process *p = self();
    int won;
    pthread_mutex_lock(&account_guard);
    STORE(p->intent_bytes[gpu], bytes);
    won = raise_to(gpu, bytes, limit);
    /* the limit was lowered meanwhile, before the agent read the sum */
    if (won && limit != KERF_ACCOUNT_BYTES && beyond_now(gpu, limit)) {
        lower(gpu, bytes);
        won = 0;
    }
    if (won) STORE(p->charged_bytes[gpu], p->charged_bytes[gpu] + bytes);
    STORE(p->intent_bytes[gpu], 0);
    pthread_mutex_unlock(&account_guard);
    return won;
}

int try_reserve(int gpu, uint64_t bytes) {
    return !bytes || change(gpu, bytes, limit_now(gpu));
}

void overdraw(int gpu, uint64_t bytes) {
    if (bytes) change(gpu, bytes, KERF_ACCOUNT_BYTES);
}

void release(int gpu, uint64_t bytes) {
    struct kerf_process *p = self();
    if (!bytes) return;
    pthread_mutex_lock(&account_guard);
    STORE(p->intent_bytes[gpu], bytes);
    STORE(p->charged_bytes[gpu], p->charged_bytes[gpu] - bytes);
    lower(gpu, bytes);
    STORE(p->intent_bytes[gpu], 0);
    pthread_mutex_unlock(&account_guard);
}

static int no_change_in_progress(int gpu, const unsigned char *dead) {
    for (int i = 0; i < KERF_MAX_PROCESSES; i++)
        if (!dead[i] && LOAD(counters->process[i].state) & 1 && LOAD(counters->process[i].intent_bytes[gpu])) return 0;
    return 1;
}

/* Whether no dead process's slot was reclaimed, and perhaps taken by a new process, meanwhile. */
static int slots_unchanged(const unsigned char *dead, const uint64_t *state) {
    for (int i = 0; i < KERF_MAX_PROCESSES; i++)
        if (dead[i] && LOAD(counters->process[i].state) != state[i]) return 0;
    return 1;
}

/* Repairs the sum of one GPU. Returns 0 if a process was in the middle of a change, -1 if the dead processes must be
 * determined again. The slots are read after the word: a slot that is taken later changes the word before it holds
 * memory, and the exchange fails. */
static int recount(int gpu, const unsigned char *dead, const uint64_t *state) {
    struct kerf_gpu_counters *g = &counters->gpu[gpu];
    uint64_t word = LOAD(g->account), sum = 0;
    if (!slots_unchanged(dead, state)) return -1;
    if (!no_change_in_progress(gpu, dead)) return 0;
    for (int i = 0; i < KERF_MAX_PROCESSES; i++)
        if (!dead[i] && LOAD(counters->process[i].state) & 1) sum += LOAD(counters->process[i].charged_bytes[gpu]);
    if (!no_change_in_progress(gpu, dead)) return 0;
    return __atomic_compare_exchange_n(&g->account, &word, with_next_change(word, sum), 0, __ATOMIC_SEQ_CST,
        __ATOMIC_SEQ_CST);
}

static int reclaim_once(void) {
    enum { ATTEMPTS = 3000 };
    unsigned char dead[KERF_MAX_PROCESSES] = {0};
    uint64_t state[KERF_MAX_PROCESSES];
    int found = 0, repaired = 1;
    for (int i = 0; i < KERF_MAX_PROCESSES; i++) {
        state[i] = LOAD(counters->process[i].state);
        dead[i] = (unsigned char)((state[i] & 1) && !process_alive(i));
        found |= dead[i];
    }
    if (!found) return 1;
    for (int gpu = 0; gpu < (int)orders->gpu_count && gpu < KERF_MAX_GPUS; gpu++) {
        int done = 0;
        for (int attempt = 0; attempt < ATTEMPTS && !done; attempt++) done = recount(gpu, dead, state);
        repaired &= done > 0;
    }
    /* a process is always in the middle of a change, has just died there, or reclaims at the same time */
    if (!repaired) return 0;
    for (int i = 0; i < KERF_MAX_PROCESSES; i++)
        if (dead[i] && __atomic_compare_exchange_n(&counters->process[i].state, &state[i], state[i] + 1, 0,
            __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            __atomic_add_fetch(&counters->reclaimed, 1, __ATOMIC_RELAXED);
    return 1;
}

/* What is not repaired now is repaired later: dead processes keep their slots until then. */
void reclaim(void) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); /* it opens a file, and callers hold locks */
    for (int round = 0; round < 5 && !reclaim_once(); round++) {}
    pthread_setcancelstate(before, NULL);
}
