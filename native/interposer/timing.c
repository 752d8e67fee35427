/* The part of a launch before the driver's launch: the wait at the gate, and the batch that measures the launch.
 *
 * Only one thread of a process is between the begin and the end of a launch. A thread that waits at the gate holds
 * no lock and polls whether work is done; it never waits in the driver. A thread that holds the lock cannot be
 * cancelled. If the driver calls back meanwhile (as profilers do), launches and waits in the callback pass and are
 * charged by estimate.
 *
 * A kernel may wait for work that its program launches later. So the wait of a launch for work in flight, and for a
 * debt while work is in flight, is limited: to 0.1 s beyond the known duration of that work (of which half a second
 * counts at most). Then the launch passes, and its time is a debt, for which the next launch waits when nothing is
 * in flight. Each further launch that passes in this way waits twice as long, 1.6 s at most. So the queue drains,
 * and the debt is paid. */
#include "timelines.h"

typedef CUresult (*capturing_t)(CUstream, int *);
typedef CUresult (*mode_t_)(int *);

enum { PATIENCE_NS = 100000000, KNOWN_NS = 500000000, DOUBLINGS = 4, ASK_NS = 2000, MAX_ASK_NS = 1000000, RELAXED = 2,
    ASKS = 5 };
#define PER_THREAD ((CUstream)2)

static unsigned passed;             /* consecutive launches that passed after the maximum wait */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int cancellable;             /* the previous cancellation state of the thread that holds the lock */
static __thread int inside;         /* this thread holds the lock */

static void lock_timing(void) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    lock_by_clock(&guard);
    cancellable = before;
    inside = 1;
}
static void unlock_timing(void) {
    const int before = cancellable;
    inside = 0;
    pthread_mutex_unlock(&guard);
    pthread_setcancelstate(before, NULL);
}

/* Exchanges the thread's capture mode. While any thread captures in the global mode, an event query of another thread
 * invalidates the capture, unless that thread is in the relaxed mode. */
static int exchange_capture_mode(int mode) {
    mode_t_ exchange = REAL(mode_t_, "cuThreadExchangeStreamCaptureMode");
    if (exchange) exchange(&mode);
    return mode;
}

/* Returns when to query the oldest batch again: at its estimated end, then at growing intervals. */
static uint64_t ask_at(const timeline_t *l, uint64_t now) {
    const uint64_t end_ns = l->head_ns + l->batch[l->oldest % DEPTH].estimated_ns;
    const uint64_t later_ns = now < end_ns ? end_ns - now : (now - end_ns) / 8 + ASK_NS;
    return now + (later_ns > MAX_ASK_NS ? MAX_ASK_NS : later_ns);
}

/* Whether this process has work in flight that has made no progress for the maximum wait of a launch. */
static int has_waited_too_long(uint64_t waits_since_ns, uint64_t now) {
    for (int i = 0; i < timeline_count; i++) {
        const timeline_t *l = &timeline[i];
        const uint64_t since_ns = l->head_ns > waits_since_ns ? l->head_ns : waits_since_ns;
        const uint64_t known_ns = l->pending_ns < KNOWN_NS ? l->pending_ns : KNOWN_NS;
        if (pending(l) && now > since_ns && now - since_ns >= (PATIENCE_NS + known_ns) << (passed < DOUBLINGS ? passed
            : DOUBLINGS)) return 1;
    }
    return 0;
}

static int no_room(const timeline_t *l) { return l->next - l->oldest >= DEPTH; }

static void harvest_all(void) {
    for (int i = 0; i < timeline_count; i++) harvest(&timeline[i]);
}

/* Open batches count as in flight, and only the end of a closed batch can be observed. */
static void close_all(void) {
    for (int i = 0; i < timeline_count; i++)
        if (timeline[i].context) close_batch(&timeline[i]);
}

/* Waits until the launch may begin. Holds the lock on entry and on exit, but not while it waits. NULL: the context
 * is gone. */
static timeline_t *pass_gate(timeline_t *l, uint64_t estimated_ns) {
    uint64_t begun = 0, others_since_ns = 0, until, waited_ns;
    const int gpu = l->gpu;
    int before;
    while (l) {
        moment_t m = {.estimate_ns = estimated_ns};
        enum verdict verdict;
        if (begun) harvest_all(); /* the awaited work may be in any context */
        else harvest(l);
        m.now_ns = now_ns();
        m.due_ns = due_time_on(l->gpu, m.now_ns);
        m.others_ns = others_in_flight(l->gpu, m.now_ns);
        read_peer_signals(l->gpu, &m);
        verdict = gate(l->gpu, &m, &until);
        if (verdict == WAIT_WORK && !m.due_ns) verdict = GO; /* the estimate was wrong: all work is done */
        /* to be measured */
        if (verdict == GO && no_room(l) && m.now_ns - l->head_ns < PATIENCE_NS + l->pending_ns) verdict = WAIT_WORK;
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
        if (verdict != HELD_BY_AGENT && (has_waited_too_long(begun, m.now_ns)
            || (others_since_ns && m.now_ns - others_since_ns >= PATIENCE_NS))) {
            passed++;
            __atomic_add_fetch(&counters->gpu[l->gpu].overdue, 1, __ATOMIC_RELAXED);
            break;
        }
        close_all();
        if (verdict == WAIT_WORK && l->oldest != l->next) until = ask_at(l, m.now_ns);
        before = cancellable, inside = 0;
        pthread_mutex_unlock(&guard);
        sleep_until(until);
        lock_by_clock(&guard);
        cancellable = before, inside = 1;
        l = current_timeline(); /* contexts may have been created or destroyed meanwhile */
    }
    if (!begun) return l;
    waited_ns = now_ns() - begun;
    __atomic_add_fetch(&self()->waiting, -1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->gpu[gpu].waits, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->gpu[gpu].waited_ns, waited_ns, __ATOMIC_RELAXED);
    return l;
}

/* A launch without events: its estimate is charged and never corrected. */
static int charge_unmeasured(timeline_t *l, uint64_t key) {
    uint64_t estimated_ns = estimate(key);
    const uint64_t now = now_ns();
    __atomic_add_fetch(&counters->gpu[l->gpu].untimed, 1, __ATOMIC_RELAXED);
    if (!estimated_ns) estimated_ns = NEW_NS;
    gate_spend(l->gpu, estimated_ns, now);
    l->due_ns = (l->due_ns > now ? l->due_ns : now) + estimated_ns;
    publish(l, 0);
    return UNTIMED;
}

/* Without a context the driver returns an error. On a stream that has a context, an unmeasured launch is not
 * allowed. */
static int result_without_timeline(CUstream stream) {
    return current_context() || (uintptr_t)stream > 2 ? NO_TIMELINE : UNTIMED;
}

/* The caller holds the lock. After UNTIMED and NO_TIMELINE no batch is open. */
static int begun(CUstream stream, uint64_t key) {
    uint64_t estimated, now;
    enum opened opened = OPENED;
    timeline_t *l = current_timeline();
    batch_t *b;
    if (!l) return result_without_timeline(stream);
    estimated = estimate(key);
    l = pass_gate(l, estimated);
    if (!l) return UNTIMED; /* the driver returns an error: the context is gone */
    now = now_ns();
    if (!due_time_on(l->gpu, now)) work_begins(l->gpu, now);
    b = &l->batch[l->next % DEPTH];
    if (l->open && (b->stream != stream || b->count == KEYS || b->estimated_ns + estimated > BATCH_NS || !estimated
        || b->unknown)) close_batch(l);
    if (no_room(l)) return charge_unmeasured(l, key);
    if (!l->open) opened = open_batch(l, stream);
    if (opened == NO_EVENTS) return NO_TIMELINE;
    if (opened == NOT_OPENED) return charge_unmeasured(l, key);
    b = &l->batch[l->next % DEPTH];
    if (!estimated && !b->unknown) b->unknown = 1, l->unknown++;
    if (!estimated) estimated = NEW_NS;
    b->keys[b->count++] = key;
    b->estimated_ns += estimated;
    l->pending_ns += estimated;
    now = now_ns();
    l->due_ns = (l->due_ns > now ? l->due_ns : now) + estimated;
    gate_spend(l->gpu, estimated, now);
    publish(l, 0);
    return (int)(l - timeline);
}

/* A launch within a launch, in a callback of the driver. */
static int begin_nested(CUstream stream, uint64_t key) {
    timeline_t *l = current_timeline();
    return l ? charge_unmeasured(l, key) : result_without_timeline(stream);
}

/* UNTIMED: a capture, or no context (the driver returns an error). NO_TIMELINE: too many contexts or events.
 * Otherwise the lock is held until launch_end. A kernel that belongs to no context runs in its stream's context, not
 * in the current one. */
int launch_begin(CUstream stream, uint64_t key) {
    const int mode = exchange_capture_mode(RELAXED), entered = stream_enter(stream);
    int capturing = 1, token = UNTIMED;
    if (!REAL(capturing_t, "cuStreamIsCapturing")(stream, &capturing) && !capturing) {
        if (inside) token = begin_nested(stream, key);
        else {
            lock_timing();
            token = begun(stream, key);
            if (token < 0) unlock_timing();
        }
    }
    if (entered) context_leave();
    exchange_capture_mode(mode);
    return token;
}

void launch_end(int token, int failed) {
    timeline_t *l = &timeline[token];
    const batch_t *b = &l->batch[l->next % DEPTH];
    const int mode = exchange_capture_mode(RELAXED);
    (void)failed; /* its events exist and measure it */
    if (b->estimated_ns >= BATCH_NS || b->unknown || b->stream == PER_THREAD || (!b->queued && is_limited(l->gpu)))
        close_batch(l);
    unlock_timing();
    exchange_capture_mode(mode);
}

void timing_flush(void) {
    const int mode = exchange_capture_mode(RELAXED);
    if (!inside) {
        lock_timing();
        close_all();
        unlock_timing();
    }
    exchange_capture_mode(mode);
}

void timing_flush_stream(CUstream stream) {
    const int mode = exchange_capture_mode(RELAXED);
    if (!inside) {
        lock_timing();
        for (int i = 0; i < timeline_count; i++)
            if (timeline[i].open && timeline[i].batch[timeline[i].next % DEPTH].stream == stream)
                close_batch(&timeline[i]);
        unlock_timing();
    }
    exchange_capture_mode(mode);
}

void timing_harvest(void) {
    const int mode = exchange_capture_mode(RELAXED);
    if (!inside) {
        lock_timing();
        harvest_all();
        unlock_timing();
    }
    exchange_capture_mode(mode);
}

static timeline_t *timeline_of(CUcontext context) {
    for (int i = 0; i < timeline_count; i++)
        if (timeline[i].context == context) return &timeline[i];
    return NULL;
}

/* Measures the work that has ended, which takes some microseconds to observe. Other work ends with the context,
 * whether the driver waits for it or not; it is charged for the time until then. */
unfinished_t timing_context_ending(CUcontext context) {
    const int mode = exchange_capture_mode(RELAXED);
    unfinished_t left = {0, 0, 0};
    timeline_t *l;
    if (inside) return left;
    lock_timing();
    l = timeline_of(context);
    for (int again = 0; l && again < ASKS; again++) {
        close_batch(l);
        harvest(l);
        if (!pending(l)) break;
        unlock_timing();
        sleep_until(now_ns() + (ASK_NS << again));
        lock_timing();
        l = timeline_of(context);
    }
    if (l) {
        left = (unfinished_t){l->gpu, pending(l) ? l->pending_ns : 0, l->head_ns};
        l->context = NULL;
        publish_in_flight(l->gpu);
    }
    unlock_timing();
    exchange_capture_mode(mode);
    return left;
}

void timing_context_ended(unfinished_t left) {
    if (!left.pending_ns || inside) return;
    lock_timing();
    gate_settle(left.gpu, left.pending_ns, left.since_ns, now_ns());
    unlock_timing();
}

void timing_forget(void) {
    lock_timing();
    timelines_forked();
    unlock_timing();
}

static void forked(void) {
    pthread_mutex_init(&guard, NULL);
    inside = 0;
    timelines_forked();
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, forked); }
