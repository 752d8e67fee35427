/* Events around batches of launches: what the GPU's time went to, by the driver's own clock.
 *
 * Each context is a lane. A batch is launches on one stream between two events; short ones share a batch, so that timing costs
 * two events per quarter of a millisecond of work at most. Nothing is recorded while a stream captures. Only one thread of a
 * process is between begin and end of a launch; whoever waits at the gate holds no lock. */
#include "kerf.h"
#include <string.h>

typedef CUresult (*create_t)(CUevent *, unsigned);
typedef CUresult (*record_t)(CUevent, CUstream);
typedef CUresult (*event_t)(CUevent);
typedef CUresult (*elapsed_t)(float *, CUevent, CUevent);
typedef CUresult (*capturing_t)(CUstream, int *);
typedef CUresult (*mode_t_)(int *);

enum { LANES = MAX_CONTEXTS, DEPTH = 32, KEYS = 32, BATCH_NS = 250000, NEW_NS = 100000, REBASE_NS = 1000000000, DRIFT_NS = 1000000 };
enum { HELD_UP_NS = 5000000, UNKNOWN_NS = 100000000, RELAXED = 2 };
typedef struct { CUevent begin, end; CUstream stream; uint64_t keys[KEYS], estimated_ns; int count, unknown, queued; } batch_t;
typedef struct {
    CUcontext context;
    int gpu, open, unknown;         /* unknown: batches in flight whose length nobody knows.
                                     * open: the batch at `next` has begun */
    uint32_t oldest, next;          /* closed batches stand between */
    batch_t batch[DEPTH];
    CUevent base;                   /* times are told from here */
    int based;
    uint64_t base_ns, due_ns, told_ns, told_due_ns, pending_ns, lag_ns, lag_since_ns;
} lane_t;

static lane_t lane[LANES];
static int lanes;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
uint64_t seen_generation = UINT64_MAX;
int timed = 1;

/* While any thread captures in the global mode, a query of an event from any other thread would spoil its capture; unless that
 * thread says that it knows what it does. */
static int relaxed(int mode) {
    mode_t_ exchange = REAL(mode_t_, "cuThreadExchangeStreamCaptureMode");
    if (exchange) exchange(&mode);
    return mode;
}

int decide_timed(void) {
    if (!attached()) return 1;
    seen_generation = __atomic_load_n(&orders->generation, __ATOMIC_ACQUIRE);
    return timed = must_time();
}

static lane_t *lane_here(void) {
    const uint64_t context = context_here();
    lane_t *l = lane;
    while (l < lane + lanes && (uint64_t)(uintptr_t)l->context != context) l++;
    if (l < lane + lanes || lanes == LANES || !context) return l < lane + lanes ? l : NULL;
    memset(l, 0, sizeof *l);
    l->context = (CUcontext)(uintptr_t)context;
    l->gpu = gpu_here();
    if (l->gpu < 0) return NULL;
    lanes++;
    return l;
}

static uint64_t between(CUevent from, CUevent to) {
    float ms = 0;
    if (REAL(elapsed_t, "cuEventElapsedTime")(&ms, from, to) || ms < 0) return 0;
    return (uint64_t)((double)ms * 1e6 + 0.5);
}

static int pending(const lane_t *l) { return l->next != l->oldest || l->open; }

/* Later than what stands there: always. Earlier: only if nobody but this process has said more since. */
static void say(uint64_t *place, uint64_t *told, uint64_t ns) {
    uint64_t there = *told;
    if (ns < there) {
        if (__atomic_compare_exchange_n(place, &there, ns, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) *told = ns;
        return;
    }
    there = __atomic_load_n(place, __ATOMIC_SEQ_CST);
    while (there < ns && !__atomic_compare_exchange_n(place, &there, ns, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    *told = ns;
}

/* What others may see: until when this container is at work on the GPU. Rather too long than too short: a program that waits
 * for its work says here when it is done, and one that was held up by others' work cannot say that it needs longer. */
static void tell(lane_t *l, int done) {
    const uint64_t busy_until_ns = done ? l->due_ns : l->due_ns + l->pending_ns / 2 + HELD_UP_NS + (l->unknown ? UNKNOWN_NS : 0);
    self()->in_flight_ns[l->gpu] = l->pending_ns;
    if (!signals || l->gpu >= (int)signals->gpu_count) return;
    say(&signals->gpu[l->gpu].busy_until_ns, &l->told_ns, busy_until_ns);
    say(&signals->gpu[l->gpu].due_ns, &l->told_due_ns, l->due_ns);
}

static void close_batch(lane_t *l) {
    batch_t *b = &l->batch[l->next % DEPTH];
    if (!l->open) return;
    l->open = 0;
    if (REAL(record_t, "cuEventRecord")(b->end, b->stream)) { /* a stream that is gone or captures now: charged as estimated */
        l->pending_ns -= b->estimated_ns;
        l->unknown -= b->unknown;
        counters->gpu[l->gpu].untimed += (uint64_t)b->count;
        return;
    }
    l->next++;
}

/* The GPU's clock against ours: an end cannot lie in the future, and the least lag of a second shows drift. */
static uint64_t aligned(lane_t *l, uint64_t end_ns, uint64_t now) {
    if (end_ns > now) {
        l->base_ns -= end_ns - now;
        l->lag_ns = 0;
        return now;
    }
    if (now - end_ns < l->lag_ns) l->lag_ns = now - end_ns;
    if (now - l->lag_since_ns > REBASE_NS) {
        l->base_ns += l->lag_ns < DRIFT_NS ? l->lag_ns : DRIFT_NS;
        l->lag_ns = UINT64_MAX;
        l->lag_since_ns = now;
    }
    return end_ns;
}

/* Beside busy peers, a batch that found its stream idle has waited for their time slice between its first event and its first
 * launch. In the low tier, where that is the rule, it is taken to have been as long as its like in a queue; but no less than a
 * quarter of what was measured, for a function may run long only when that pays. */
static uint64_t own_part(const batch_t *b, uint64_t took) {
    if (orders->tier != KERF_TIER_LOW || b->queued || b->unknown || took <= b->estimated_ns) return took;
    return b->estimated_ns > took / 4 ? b->estimated_ns : took / 4;
}

static void settle(lane_t *l, uint64_t now) {
    batch_t *b = &l->batch[l->oldest % DEPTH];
    const uint64_t took = between(b->begin, b->end), from_base = between(l->base, b->end);
    const uint64_t end_ns = aligned(l, l->base_ns + from_base, now);
    gate_settle(l->gpu, b->estimated_ns, end_ns - own_part(b, took), end_ns);
    if (b->queued || b->unknown || took < b->estimated_ns) learn(b->keys, b->count, b->estimated_ns, took);
    l->pending_ns -= b->estimated_ns < l->pending_ns ? b->estimated_ns : l->pending_ns;
    if (from_base > REBASE_NS) { /* a float of milliseconds stays exact to a fraction of a microsecond */
        CUevent old = l->base;
        l->base = b->end;
        l->base_ns += from_base;
        b->end = old;
    }
    l->oldest++;
    l->unknown -= b->unknown;
    l->due_ns = pending(l) ? (end_ns + l->pending_ns > now ? end_ns + l->pending_ns : now) : end_ns;
    tell(l, !pending(l));
}

static void harvest(lane_t *l) {
    while (l->oldest != l->next) {
        CUresult result = REAL(event_t, "cuEventQuery")(l->batch[l->oldest % DEPTH].end);
        if (result == CUDA_ERROR_NOT_READY) return;
        if (result) { /* the context is broken: nothing of it can be timed any more */
            l->pending_ns = 0;
            l->unknown = 0;
            l->oldest = l->next;
            return;
        }
        settle(l, now_ns());
    }
}

static int make_events(batch_t *b) {
    create_t create = REAL(create_t, "cuEventCreate");
    return b->end || (!create(&b->begin, EVENT_BLOCKING_SYNC) && !create(&b->end, EVENT_BLOCKING_SYNC));
}

static int open_batch(lane_t *l, CUstream stream) {
    batch_t *b = &l->batch[l->next % DEPTH];
    record_t record = REAL(record_t, "cuEventRecord");
    if (!make_events(b)) return 0;
    if (!l->based) {
        if (REAL(create_t, "cuEventCreate")(&l->base, EVENT_BLOCKING_SYNC) || record(l->base, stream)) return 0;
        l->based = 1;
        l->base_ns = l->lag_since_ns = now_ns();
        l->lag_ns = UINT64_MAX;
    }
    b->queued = l->next != l->oldest;
    if (record(b->begin, stream)) return 0;
    b->stream = stream;
    b->estimated_ns = 0;
    b->count = b->unknown = 0;
    return l->open = 1;
}

static uint64_t others_in_flight(int gpu) {
    uint64_t sum = 0;
    for (int i = 0; i < KERF_MAX_PROCESSES; i++)
        if (i != slot && counters->process[i].in_flight_ns[gpu] && counters->process[i].state & 1 && process_alive(i))
            sum += counters->process[i].in_flight_ns[gpu];
    return sum;
}

static void look_at_peers(int gpu, moment_t *m) {
    for (unsigned i = 0; i < orders->peer_count && i < KERF_MAX_PEERS; i++) {
        const struct kerf_signal *peer = peer_signal(i);
        for (unsigned g = 0; peer && g < peer->gpu_count && g < KERF_MAX_GPUS; g++) {
            if (memcmp(peer->gpu[g].uuid, orders->gpu[gpu].uuid, 16)) continue;
            if (peer->gpu[g].busy_until_ns > m->peers_busy_until_ns) m->peers_busy_until_ns = peer->gpu[g].busy_until_ns;
            if (peer->gpu[g].due_ns > m->peers_due_ns) m->peers_due_ns = peer->gpu[g].due_ns;
        }
    }
}

/* Waits until the launch may begin. Holds the lock on entry and on exit, not while it waits. */
static void pass_gate(lane_t *l, uint64_t estimated_ns) {
    uint64_t begun = 0, until;
    for (;;) {
        moment_t m = {.estimate_ns = estimated_ns};
        enum verdict verdict;
        CUevent oldest;
        harvest(l);
        m.now_ns = now_ns();
        m.due_ns = pending(l) ? l->due_ns : 0;
        m.others_ns = others_in_flight(l->gpu);
        look_at_peers(l->gpu, &m);
        verdict = gate(l->gpu, &m, &until);
        if (verdict == WAIT_WORK && l->oldest == l->next && !l->open) verdict = GO; /* the estimate was wrong: it is all done */
        if (verdict == GO) break;
        if (!begun) {
            begun = m.now_ns;
            __atomic_add_fetch(&self()->waiting, 1, __ATOMIC_RELAXED);
        }
        close_batch(l);
        oldest = verdict == WAIT_WORK && l->oldest != l->next ? l->batch[l->oldest % DEPTH].end : NULL;
        pthread_mutex_unlock(&guard);
        if (oldest) REAL(event_t, "cuEventSynchronize")(oldest);
        else sleep_until(until);
        lock_by_clock(&guard);
    }
    if (!begun) return;
    __atomic_add_fetch(&self()->waiting, -1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->gpu[l->gpu].waits, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->gpu[l->gpu].waited_ns, now_ns() - begun, __ATOMIC_RELAXED);
}

/* UNTIMED: a capture, or no context: the driver will say. NO_LANE: more contexts than anybody needs. Else the lock is held until
 * launch_end. */
static int begun(CUstream stream, uint64_t key) {
    uint64_t estimated, now;
    int capturing = 1;
    lane_t *l;
    batch_t *b;
    if (REAL(capturing_t, "cuStreamIsCapturing")(stream, &capturing) || capturing) return UNTIMED;
    lock_by_clock(&guard);
    l = lane_here();
    if (!l) {
        pthread_mutex_unlock(&guard);
        return context_here() ? NO_LANE : UNTIMED;
    }
    estimated = estimate(key);
    pass_gate(l, estimated);
    b = &l->batch[l->next % DEPTH];
    if (l->open && (b->stream != stream || b->count == KEYS || b->estimated_ns + estimated > BATCH_NS || !estimated || b->unknown)) close_batch(l);
    while (l->next - l->oldest >= DEPTH) { /* the driver answers in order, so this ends */
        REAL(event_t, "cuEventSynchronize")(l->batch[l->oldest % DEPTH].end);
        harvest(l);
    }
    if (!l->open && !open_batch(l, stream)) {
        __atomic_add_fetch(&counters->gpu[l->gpu].untimed, 1, __ATOMIC_RELAXED);
        gate_spend(l->gpu, estimated ? estimated : NEW_NS, now_ns());
        pthread_mutex_unlock(&guard);
        return UNTIMED;
    }
    b = &l->batch[l->next % DEPTH];
    if (!estimated && !b->unknown) b->unknown = 1, l->unknown++;
    if (!estimated) estimated = NEW_NS;
    b->keys[b->count++] = key;
    b->estimated_ns += estimated;
    l->pending_ns += estimated;
    now = now_ns();
    l->due_ns = (l->due_ns > now ? l->due_ns : now) + estimated;
    gate_spend(l->gpu, estimated, now);
    tell(l, 0);
    return (int)(l - lane);
}

int launch_begin(CUstream stream, uint64_t key) {
    const int mode = relaxed(RELAXED), token = begun(stream, key);
    relaxed(mode);
    return token;
}

void launch_end(int token, int failed) {
    lane_t *l = &lane[token];
    const int mode = relaxed(RELAXED);
    (void)failed; /* its events are there and measure what it was */
    if (l->batch[l->next % DEPTH].estimated_ns >= BATCH_NS || l->batch[l->next % DEPTH].unknown) close_batch(l);
    pthread_mutex_unlock(&guard);
    relaxed(mode);
}

void timing_flush(void) {
    const int mode = relaxed(RELAXED);
    lock_by_clock(&guard);
    for (int i = 0; i < lanes; i++) close_batch(&lane[i]);
    pthread_mutex_unlock(&guard);
    relaxed(mode);
}

void timing_harvest(void) {
    const int mode = relaxed(RELAXED);
    lock_by_clock(&guard);
    for (int i = 0; i < lanes; i++) harvest(&lane[i]);
    pthread_mutex_unlock(&guard);
    relaxed(mode);
}

void timing_forget(CUcontext context) {
    lock_by_clock(&guard);
    if (!context) lanes = 0;
    for (int i = 0; i < lanes; i++) {
        if (lane[i].context != context) continue;
        lane[i].pending_ns = 0;
        self()->in_flight_ns[lane[i].gpu] = 0;
        if (i != --lanes) lane[i] = lane[lanes];
        break;
    }
    pthread_mutex_unlock(&guard);
}

static void forked(void) {
    pthread_mutex_init(&guard, NULL);
    lanes = 0;
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, forked); }
