/* Events around batches of launches: what the GPU's time went to, by the driver's own clock.
 *
 * Each context is a lane. A batch is launches on one stream between two events; short ones share a batch, so that timing costs
 * two events per quarter of a millisecond of work at most. Nothing is recorded while a stream captures. Only one thread of a
 * process is between begin and end of a launch; whoever waits at the gate holds no lock, and asks again and again whether work
 * is done: it never waits in the driver.
 *
 * A kernel may wait for work that its program launches later, so a launch waits for work in flight, and for a debt while there
 * is any, only so long: 0.1 s beyond what is known of that work (half a second of that at most). Then it passes, and what it
 * takes is a debt, which the next one waits for when nothing is in flight. Each further pass of that kind in a row waits twice
 * as long, 1.6 s at most: so the queue runs dry, and the debt is paid. */
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
enum { PATIENCE_NS = 100000000, KNOWN_NS = 500000000, DOUBLINGS = 4, ASK_NS = 2000, ASK_MOST_NS = 1000000 };
typedef struct { CUevent begin, end; CUstream stream; uint64_t keys[KEYS], estimated_ns; int count, unknown, queued; } batch_t;
typedef struct {
    CUcontext context;              /* NULL: free. A lane never moves: threads wait beside it */
    int gpu, open, unknown;         /* unknown: batches in flight whose length nobody knows.
                                     * open: the batch at `next` has begun */
    uint32_t oldest, next;          /* closed batches stand between */
    batch_t batch[DEPTH];
    CUevent base;                   /* times are told from here */
    int based;
    uint64_t base_ns, due_ns, told_ns, told_due_ns, pending_ns, lag_ns, lag_since_ns;
    uint64_t head_ns;               /* since when `oldest` is the one that is waited for */
} lane_t;

static lane_t lane[LANES];
static int lanes;                   /* so many have been in use at once; free ones among them */
static unsigned passed;             /* launches in a row that passed for want of patience */
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
    lane_t *l = NULL;
    int gpu;
    if (!context) return NULL;
    for (int i = 0; i < lanes; i++)
        if ((uint64_t)(uintptr_t)lane[i].context == context) return &lane[i];
    for (int i = 0; i < LANES && !l; i++)
        if (!lane[i].context) l = &lane[i];
    gpu = gpu_here();
    if (!l || gpu < 0) return NULL;
    memset(l, 0, sizeof *l);
    l->context = (CUcontext)(uintptr_t)context;
    l->gpu = gpu;
    if (l - lane >= lanes) lanes = (int)(l - lane) + 1;
    return l;
}

static uint64_t between(CUevent from, CUevent to) {
    float ms = 0;
    if (REAL(elapsed_t, "cuEventElapsedTime")(&ms, from, to) || ms < 0) return 0;
    return (uint64_t)((double)ms * 1e6 + 0.5);
}

static int pending(const lane_t *l) { return l->context && (l->next != l->oldest || l->open); }

/* Of all contexts of this process on a GPU. */
static void say_in_flight(int gpu) {
    uint64_t sum = 0;
    for (int i = 0; i < lanes; i++)
        if (lane[i].context && lane[i].gpu == gpu) sum += lane[i].pending_ns;
    self()->in_flight_ns[gpu] = sum;
}
/* When all of it will be done; 0: nothing is in flight. What is overdue will last as long again as it has lasted. */
static uint64_t due_on(int gpu, uint64_t now) {
    uint64_t due_ns = 0;
    for (int i = 0; i < lanes; i++) {
        const lane_t *l = &lane[i];
        const uint64_t due = l->due_ns > now ? l->due_ns : now + (now > l->head_ns ? now - l->head_ns : 0) + 1;
        if (pending(l) && l->gpu == gpu && due > due_ns) due_ns = due;
    }
    return due_ns;
}

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
    say_in_flight(l->gpu);
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
    l->head_ns = now;
    l->unknown -= b->unknown;
    work_ended(l->gpu, end_ns);
    l->due_ns = pending(l) ? (end_ns + l->pending_ns > now ? end_ns + l->pending_ns : now) : end_ns;
    tell(l, !pending(l));
}

static void harvest(lane_t *l) {
    while (l->context && l->oldest != l->next) {
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
    if (!b->queued) l->head_ns = now_ns();
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
            foresee(peer, g, m);
        }
    }
}

/* When to ask again whether the oldest batch is done: when it should be, then ever more rarely. */
static uint64_t ask_at(const lane_t *l, uint64_t now) {
    const uint64_t end_ns = l->head_ns + l->batch[l->oldest % DEPTH].estimated_ns;
    const uint64_t later_ns = now < end_ns ? end_ns - now : (now - end_ns) / 8 + ASK_NS;
    return now + (later_ns > ASK_MOST_NS ? ASK_MOST_NS : later_ns);
}

/* Whether this process has work in flight that has not moved for as long as a launch waits for it. */
static int out_of_patience(uint64_t waits_since_ns, uint64_t now) {
    for (int i = 0; i < lanes; i++) {
        const lane_t *l = &lane[i];
        const uint64_t since_ns = l->head_ns > waits_since_ns ? l->head_ns : waits_since_ns;
        const uint64_t known_ns = l->pending_ns < KNOWN_NS ? l->pending_ns : KNOWN_NS;
        if (pending(l) && now > since_ns && now - since_ns >= (PATIENCE_NS + known_ns) << (passed < DOUBLINGS ? passed : DOUBLINGS)) return 1;
    }
    return 0;
}

static int no_room(const lane_t *l) { return l->next - l->oldest >= DEPTH; }

static void harvest_all(void) {
    for (int i = 0; i < lanes; i++) harvest(&lane[i]);
}

/* Waits until the launch may begin. Holds the lock on entry and on exit, not while it waits. NULL: its context is gone. */
static lane_t *pass_gate(lane_t *l, uint64_t estimated_ns) {
    uint64_t begun = 0, others_since_ns = 0, until, waited_ns;
    const int gpu = l->gpu;
    while (l) {
        moment_t m = {.estimate_ns = estimated_ns};
        enum verdict verdict;
        if (begun) harvest_all(); /* what it waits for may be any context's */
        else harvest(l);
        m.now_ns = now_ns();
        m.due_ns = due_on(l->gpu, m.now_ns);
        m.others_ns = others_in_flight(l->gpu);
        look_at_peers(l->gpu, &m);
        verdict = gate(l->gpu, &m, &until);
        if (verdict == WAIT_WORK && !m.due_ns) verdict = GO; /* the estimate was wrong: it is all done */
        if (verdict == GO && no_room(l) && m.now_ns - l->head_ns < PATIENCE_NS + l->pending_ns) verdict = WAIT_WORK; /* to be measured */
        if (verdict == GO) {
            passed = 0;
            break;
        }
        if (!begun) {
            begun = m.now_ns;
            __atomic_add_fetch(&self()->waiting, 1, __ATOMIC_RELAXED);
        }
        if (verdict != WAIT_OTHERS) others_since_ns = 0;
        else if (!others_since_ns) others_since_ns = m.now_ns;
        if (verdict != HELD && (out_of_patience(begun, m.now_ns) || (others_since_ns && m.now_ns - others_since_ns >= PATIENCE_NS))) {
            passed++;
            __atomic_add_fetch(&counters->gpu[l->gpu].overdue, 1, __ATOMIC_RELAXED);
            break;
        }
        close_batch(l);
        if (verdict == WAIT_WORK && l->oldest != l->next) until = ask_at(l, m.now_ns);
        pthread_mutex_unlock(&guard);
        sleep_until(until);
        lock_by_clock(&guard);
        l = lane_here(); /* contexts come and go meanwhile */
    }
    if (!begun) return l;
    waited_ns = now_ns() - begun;
    __atomic_add_fetch(&self()->waiting, -1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->gpu[gpu].waits, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->gpu[gpu].waited_ns, waited_ns, __ATOMIC_RELAXED);
    return l;
}

/* A launch that no events stand around: charged as estimated, for good. */
static int unmeasured(lane_t *l, uint64_t estimated_ns) {
    const uint64_t now = now_ns();
    __atomic_add_fetch(&counters->gpu[l->gpu].untimed, 1, __ATOMIC_RELAXED);
    if (!estimated_ns) estimated_ns = NEW_NS;
    gate_spend(l->gpu, estimated_ns, now);
    l->due_ns = (l->due_ns > now ? l->due_ns : now) + estimated_ns;
    tell(l, 0);
    pthread_mutex_unlock(&guard);
    return UNTIMED;
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
    l = pass_gate(l, estimated);
    if (!l) {
        pthread_mutex_unlock(&guard);
        return UNTIMED; /* the driver will say that its context is gone */
    }
    now = now_ns();
    if (!due_on(l->gpu, now)) work_begins(l->gpu, now);
    b = &l->batch[l->next % DEPTH];
    if (l->open && (b->stream != stream || b->count == KEYS || b->estimated_ns + estimated > BATCH_NS || !estimated || b->unknown)) close_batch(l);
    if (no_room(l) || (!l->open && !open_batch(l, stream))) return unmeasured(l, estimated);
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
    for (int i = 0; i < lanes; i++)
        if (lane[i].context) close_batch(&lane[i]);
    pthread_mutex_unlock(&guard);
    relaxed(mode);
}

void timing_harvest(void) {
    const int mode = relaxed(RELAXED);
    lock_by_clock(&guard);
    harvest_all();
    pthread_mutex_unlock(&guard);
    relaxed(mode);
}

void timing_forget(CUcontext context) {
    lock_by_clock(&guard);
    if (!context) {
        memset(lane, 0, sizeof lane);
        lanes = 0;
    }
    for (int i = 0; i < lanes; i++) {
        if (lane[i].context != context) continue;
        lane[i].context = NULL;
        say_in_flight(lane[i].gpu);
    }
    pthread_mutex_unlock(&guard);
}

static void forked(void) {
    pthread_mutex_init(&guard, NULL);
    memset(lane, 0, sizeof lane);
    lanes = 0;
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, forked); }
