/* The part of a launch before the driver's launch: the wait at the gate, and the batch that measures the launch.
 *
 * A thread owns its context's timeline from the wait at the gate until its launch is done, so launches of one context
 * come one after the other. It waits for a timeline that another thread owns for 0.1 s at most; then its launch is
 * charged by estimate. So no launch waits without end for another one, which may wait in the driver for what this
 * thread launches (a module that is loaded behind a collective, for example). A thread that waits at the gate owns
 * nothing and polls whether work is done; it never waits in the driver. A thread that owns a timeline cannot be
 * cancelled. If the driver calls back meanwhile (as profilers do), launches and waits in the callback pass and are
 * charged by estimate.
 *
 * A kernel may wait for work that its program launches later. So the wait of a launch for work in flight, and for a
 * debt while work is in flight, is limited: to 0.1 s beyond the known duration of that work (of which half a second
 * counts at most). Then the launch passes, and its time is a debt, for which the next launch waits when nothing is
 * in flight. Each further launch that passes in this way waits twice as long, 1.6 s at most. So the queue drains,
 * and the debt is paid. */
#include "timelines.h"
#include <string.h>

typedef CUresult (*capturing_t)(CUstream, int *);
typedef CUresult (*mode_t_)(int *);

enum { PATIENCE_NS = 100000000, KNOWN_NS = 500000000, DOUBLINGS = 4, ASK_NS = 2000, MAX_ASK_NS = 1000000, RELAXED = 2,
    ASKS = 5, MOST_NS = 4 * BATCH_NS, SPINS_NS = 30000 };

static unsigned passed;             /* consecutive launches that passed after the maximum wait */
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int owner[MAX_TIMELINES];   /* 1: a thread owns it */
static __thread timeline_t *mine;   /* the timeline that this thread owns */
static __thread int cancellable;    /* its cancellation state before */
static __thread timeline_t *usual;  /* the timeline of this thread's last launch */
static __thread int overlaps;       /* its next launch may overlap the launch before it */

static void hold_guard(void) { lock_by_clock(&guard); }
static void drop_guard(void) { pthread_mutex_unlock(&guard); }

/* 0: another thread has owned it for so long. */
static int own(timeline_t *l, uint64_t wait_ns) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    if (!take_within(&owner[l - timeline], wait_ns)) {
        pthread_setcancelstate(before, NULL);
        return 0;
    }
    mine = l;
    cancellable = before;
    return 1;
}
static void disown(void) {
    give(&owner[mine - timeline]);
    mine = NULL;
    pthread_setcancelstate(cancellable, NULL);
}

/* A launch is no point of cancellation, and a thread that was cancelled here would seem to wait for ever. */
static void sleep_uncancelled(uint64_t until_ns) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    sleep_until(until_ns);
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
    const uint64_t end_ns = l->head_ns + l->batch[l->oldest % SLOTS].estimated_ns;
    const uint64_t later_ns = now < end_ns ? end_ns - now : (now - end_ns) / 8 + ASK_NS;
    return now + (later_ns > MAX_ASK_NS ? MAX_ASK_NS : later_ns);
}

/* Whether there is no batch for a launch, which closes the open one unless it joins it; or no command. */
static int is_full(const timeline_t *l, int joining) {
    return l->commands + 3 > COMMANDS || (!joining && l->next + (uint32_t)l->open - l->oldest >= DEPTH);
}

/* Whether a launch queries what has ended: at the estimated end of the oldest batch, and after a pause, because the
 * batch that was open before it must not contain it. */
static int is_to_query(const timeline_t *l, uint64_t now) {
    if (l->beyond.since_ns) return 1;
    return pending(l) && (now >= l->ask_ns || now >= l->launched_ns + PAUSE_NS || is_full(l, 0));
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

/* Settles the ended work of all timelines; one that another thread owns is left to that thread. */
static void harvest_all(void) {
    timeline_t *before = mine;
    for (int i = 0; i < timeline_count; i++) {
        timeline_t *l = &timeline[i];
        if (!l->context) continue;
        if (l != before && !take_within(&owner[i], 0)) continue;
        no_sample_if_busy(l, now_ns());
        end_late(l, &guard);
        harvest(l, &guard);
        if (l != before) give(&owner[i]);
    }
}

/* Owns the timeline of the current context. NULL: there is none, or another thread owns it for too long (`busy`). */
static timeline_t *own_current(int *busy) {
    const uint64_t context = current_context();
    timeline_t *l = usual;
    *busy = 0;
    while (context) {
        if (!l || (uint64_t)(uintptr_t)l->context != context) {
            int gpu;
            hold_guard();
            l = find_timeline(context);
            drop_guard();
            gpu = l ? l->gpu : current_gpu();
            if (gpu < 0) return NULL;
            hold_guard();
            if (!l) l = find_timeline(context);
            if (!l) l = make_timeline(context, gpu);
            drop_guard();
            if (!l) return NULL;
        }
        if (!own(l, PATIENCE_NS)) return *busy = 1, NULL;
        if ((uint64_t)(uintptr_t)l->context == context) return usual = l;
        disown(); /* the context has ended, and another one has its place */
        l = NULL;
    }
    return NULL;
}

/* When a kernel on another GPU of this process counts as one that spins: it runs longer than expected, or for MOST_NS of
 * other kernels; those of collectives are expected to spin. 0: none is in flight. */
static uint64_t other_spins_at(int gpu) {
    uint64_t at_ns = 0;
    for (int i = 0; i < timeline_count && orders->gpu_count > 1; i++) {
        const timeline_t *l = &timeline[i];
        const uint64_t expected_ns = l->batch[l->oldest % SLOTS].estimated_ns;
        const uint64_t spins_ns = l->head_ns + (expected_ns < BATCH_NS ? expected_ns : BATCH_NS) + SPINS_NS;
        if (pending(l) && l->gpu != gpu && (!at_ns || spins_ns < at_ns)) at_ns = spins_ns;
    }
    return at_ns;
}

/* A launch without events: its estimate is charged and never corrected. The caller holds the guard. */
static void charge_unmeasured(timeline_t *l, uint64_t estimated_ns, uint64_t now, int lent) {
    __atomic_add_fetch(&counters->gpu[l->gpu].untimed, 1, __ATOMIC_RELAXED);
    if (!estimated_ns) estimated_ns = NEW_NS;
    gate_spend(l->gpu, estimated_ns, now, lent);
    l->due_ns = (l->due_ns > now ? l->due_ns : now) + estimated_ns;
    l->unbroken = 0;
    l->batch[l->next % SLOTS].crossed = 1;
    publish(l, 0);
}

/* Another number for each stream: a thread's own default stream has the same handle as those of all threads. */
static uint64_t key_of_stream(CUstream stream) {
    static uint64_t threads;
    static __thread uint64_t own_key;
    if (stream != PER_THREAD) return (uint64_t)(uintptr_t)stream + 1;
    if (!own_key) own_key = UINT64_MAX - __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
    return own_key;
}

/* The launch is one of those beyond all batches. 0: they are on too many streams. The caller holds the guard. */
static int goes_beyond(timeline_t *l, CUstream stream, uint64_t estimated_ns, uint64_t now) {
    beyond_t *b = &l->beyond;
    const uint64_t key = key_of_stream(stream);
    int at = 0;
    if (!estimated_ns) estimated_ns = NEW_NS;
    if (!b->since_ns) b->count = 0, b->estimated_ns = b->charged_ns = 0;
    while (at < b->count && b->stream[at] != key) at++;
    if (at == STREAMS) return 0;
    if (at == b->count) b->stream[b->count++] = key;
    if (!b->since_ns) b->since_ns = now;
    b->estimated_ns += b->launching_ns = estimated_ns;
    b->launching = 1 + at;
    charge_unmeasured(l, estimated_ns, now, 0);
    return 1;
}

/* Without a context the driver returns an error. On a stream that has a context, an unmeasured launch is not
 * allowed. A launch within a launch, or beside one that does not return, is charged by estimate. */
static int without_timeline(CUstream stream, uint64_t key) {
    const uint64_t context = current_context();
    timeline_t *l;
    hold_guard();
    l = context ? find_timeline(context) : NULL;
    if (l) charge_unmeasured(l, estimate(key), now_ns(), 0);
    drop_guard();
    return l || (!context && (uintptr_t)stream <= 2) ? UNTIMED : NO_TIMELINE;
}

/* What a launch that may begin is part of. */
enum part { TOO_MANY_STREAMS, OF_NO_BATCH, OF_OPEN_BATCH, OF_NEW_BATCH };

/* Whether another context of this process is on the same GPU. */
static int has_company(const timeline_t *l) {
    for (int i = 0; i < timeline_count; i++)
        if (&timeline[i] != l && timeline[i].context && timeline[i].gpu == l->gpu) return 1;
    return 0;
}

/* Whether the launch may be part of the open batch. One that overlaps its predecessor joins a longer one, too: an event
 * between them would end the overlap. */
static int joins(const timeline_t *l, const batch_t *b, CUstream stream, uint64_t key, uint64_t estimated_ns) {
    const uint64_t most_ns = overlaps ? MOST_NS : BATCH_NS;
    if (l->dependent && !overlaps && b->estimated_ns >= BATCH_NS / 2) return 0;
    return b->stream == stream && b->lent == gate_lends(l->gpu) && stream != PER_THREAD
        && b->count < KEYS
        && b->estimated_ns + estimated_ns <= most_ns
        && (overlaps || (!is_unmeasured(key) && !b->unmeasured));
}

static int joins_open(const timeline_t *l, CUstream stream, uint64_t key) {
    int joining;
    hold_guard();
    joining = joins(l, &l->batch[l->next % SLOTS], stream, key, estimate(key));
    drop_guard();
    return joining;
}

/* Records the missing end of the open batch, if a pause or another batch follows. 1: it did. */
static int end_before(timeline_t *l, CUstream stream, uint64_t key, uint64_t now) {
    no_sample_if_busy(l, now);
    if (l->batch[l->next % SLOTS].sampled) { /* a pause: without the sample its end would be late */
        hold_guard();
        close_batch(l);
        drop_guard();
        return 0;
    }
    if (!lacks_end(l)) return 0;
    if ((overlaps ? !has_paused(l, now) : now <= l->launched_ns + PAUSE_NS) && joins_open(l, stream, key)) return 0;
    end_late(l, &guard);
    return 1;
}

/* Drawn when a launch is done, so that no program knows before. One that times its launches may know afterwards, and
 * wait for none but these; NVML tells of it (docs/attacks.md, 38). Whoever draws owns a timeline; two that draw at once
 * do no harm. */
static int is_sampled(void) {
    static uint32_t state;
    state = (state ^ (uint32_t)now_ns()) * 2654435761u + 1;
    return state >> 16 < 65536 / SAMPLES;
}

/* Whether the end of a launch is recorded right after it. */
static int ends_at_once(timeline_t *l, batch_t *b) {
    if (b->count == KEYS || b->stream == PER_THREAD) return 1;
    if (l->dependent) return 0;
    if (has_company(l)) return 1; /* a later end would have that context's work before it */
    if (b->unmeasured || b->estimated_ns >= BATCH_NS || l->due_ns < l->launched_ns + DEEP_NS) return 1;
    if (l->exact) return l->exact--, 1;
    return b->sampled = is_sampled();
}

/* The launch begins now: it is charged, and is part of a batch if there is one for it. The caller holds the guard. */
static enum part admit(timeline_t *l, CUstream stream, uint64_t key, uint64_t estimated_ns, uint64_t now) {
    const batch_t *b = &l->batch[l->next % SLOTS];
    enum part part;
    if (!due_time_on(l->gpu, now)) work_begins(l->gpu, now);
    if (l->open && !joins(l, b, stream, key, estimated_ns)) close_batch(l);
    if (overlaps) l->dependent = 1;
    if (is_full(l, l->open)) return goes_beyond(l, stream, estimated_ns, now) ? OF_NO_BATCH : TOO_MANY_STREAMS;
    part = append(l, stream, key, estimated_ns, now) ? OF_NEW_BATCH : OF_OPEN_BATCH;
    if (l->oldest == l->next || l->ask_ns < l->head_ns)
        l->ask_ns = l->head_ns + l->batch[l->oldest % SLOTS].estimated_ns;
    gate_spend(l->gpu, estimated_ns ? estimated_ns : NEW_NS, now, gate_lends(l->gpu));
    publish(l, 0);
    return part;
}

/* Waits until the launch may begin, and admits it. The caller owns the timeline on entry; it does not while it waits.
 * NULL: the context is gone, or another thread owns its timeline for too long (`busy`). */
static timeline_t *pass_gate(timeline_t *l, CUstream stream, uint64_t key, enum part *part, int *busy) {
    uint64_t begun = 0, free_since_ns = 0, others_since_ns = 0, until, now;
    const int gpu = l->gpu;
    while (l) {
        int joining;
        moment_t m = {.peers_owed_since_ns = UINT64_MAX};
        enum verdict verdict;
        m.now_ns = now_ns();
        if (l->open && end_before(l, stream, key, m.now_ns)) m.now_ns = now_ns();
        if (begun || is_to_query(l, m.now_ns)) {
            if (begun) harvest_all(); /* the awaited work may be in any context */
            else harvest(l, &guard);
            m.now_ns = now_ns();
        }
        hold_guard();
        if (pending(l) && l->ask_ns <= m.now_ns) l->ask_ns = ask_at(l, m.now_ns);
        m.estimate_ns = estimate(key);
        m.due_ns = due_time_on(l->gpu, m.now_ns);
        m.others_ns = others_in_flight(l->gpu, m.now_ns);
        if (watches_peers(l->gpu, &m)) read_peer_signals(l->gpu, &m);
        verdict = gate(l->gpu, &m, &until);
        if (verdict == WAIT_WORK && !m.due_ns) verdict = GO; /* the estimate was wrong: all work is done */
        if (verdict == GO && one_at_a_time(l->gpu) && m.due_ns) verdict = WAIT_WORK, until = m.now_ns + ASK_NS;
        /* to be measured */
        joining = l->open && joins(l, &l->batch[l->next % SLOTS], stream, key, m.estimate_ns);
        if (verdict == GO && is_full(l, joining) && m.now_ns - l->head_ns < PATIENCE_NS + l->pending_ns)
            verdict = WAIT_WORK;
        /* while it waited, the launch that it overlaps would end: the next launch pays for both */
        if (overlaps && verdict != HELD_BY_AGENT && joining) verdict = GO;
        if (verdict == WAIT_TIME && gate_may_follow(l->gpu)) {
            const uint64_t spins_ns = other_spins_at(l->gpu);
            if (begun && spins_ns && spins_ns <= m.now_ns) verdict = GO;
            else if (spins_ns && spins_ns <= m.now_ns) until = 0; /* look whether it has ended meanwhile */
            else if (spins_ns && spins_ns < until) until = spins_ns;
            else if (orders->gpu_count > 1 && until > m.now_ns + BATCH_NS / 2) until = m.now_ns + BATCH_NS / 2;
        }
        if (verdict == GO) passed = 0;
        else {
            if (!begun) {
                begun = m.now_ns;
                __atomic_add_fetch(&self()->waiting, 1, __ATOMIC_RELAXED);
            }
            if (verdict == HELD_BY_AGENT || !free_since_ns) free_since_ns = m.now_ns;
            if (verdict != WAIT_OTHERS) others_since_ns = 0;
            else if (!others_since_ns) others_since_ns = m.now_ns;
            if (verdict != HELD_BY_AGENT && (has_waited_too_long(free_since_ns, m.now_ns)
                || (others_since_ns && m.now_ns - others_since_ns >= PATIENCE_NS))) {
                passed++;
                __atomic_add_fetch(&counters->gpu[l->gpu].overdue, 1, __ATOMIC_RELAXED);
                verdict = GO;
            }
        }
        if (verdict == GO && lacks_end(l) && !joining) {
            drop_guard(); /* the time is lent now, or not any more: another batch begins */
            end_late(l, &guard);
            continue;
        }
        if (verdict == GO) {
            *part = admit(l, stream, key, m.estimate_ns, m.now_ns);
            drop_guard();
            break;
        }
        if (verdict == WAIT_WORK && pending(l) && ask_at(l, m.now_ns) < until) until = ask_at(l, m.now_ns);
        if (verdict == HELD_BY_AGENT) until = m.now_ns + held_poll_ns(m.now_ns - begun);
        drop_guard();
        disown();
        if (until) sleep_uncancelled(until);
        l = own_current(busy); /* contexts may have been created or destroyed meanwhile */
    }
    if (!begun) return l;
    now = now_ns();
    __atomic_add_fetch(&self()->waiting, -1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->gpu[gpu].waits, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->gpu[gpu].waited_ns, now - begun, __ATOMIC_RELAXED);
    return l;
}

/* After UNTIMED and NO_TIMELINE no batch is open for the launch, and the thread owns nothing. */
static int begun(CUstream stream, uint64_t key) {
    enum part part;
    int busy, error = 0;
    timeline_t *l = own_current(&busy);
    if (!l && !busy) return current_context() || (uintptr_t)stream > 2 ? NO_TIMELINE : UNTIMED;
    if (l) l = pass_gate(l, stream, key, &part, &busy);
    if (!l) return busy ? without_timeline(stream, key) : UNTIMED; /* the driver returns an error */
    if (part == OF_OPEN_BATCH || part == OF_NO_BATCH) return (int)(l - timeline);
    if (part == OF_NEW_BATCH) l->batch[l->next % SLOTS].follows = !has_company(l) && follows_closely(l);
    if (part == OF_NEW_BATCH && !(error = record_begin(l))) return (int)(l - timeline);
    if (part == OF_NEW_BATCH) {
        hold_guard();
        l->launching = 0;
        drop_batch(l);
        drop_guard();
    }
    disown();
    /* If the program has used up all events, the launch is refused. Otherwise the context is broken. */
    return part == TOO_MANY_STREAMS || error == CUDA_ERROR_OUT_OF_MEMORY ? NO_TIMELINE : UNTIMED;
}

/* UNTIMED: a capture, or no context (the driver returns an error). NO_TIMELINE: too many contexts or events.
 * Otherwise the thread owns the timeline until launch_end. A kernel that belongs to no context runs in its stream's
 * context, not in the current one. */
int launch_begin(CUstream stream, uint64_t key) {
    const int mode = exchange_capture_mode(RELAXED), entered = stream_enter(stream);
    int capturing = 1, token = UNTIMED;
    devices_follow();
    if (!REAL(capturing_t, "cuStreamIsCapturing")(stream, &capturing) && !capturing)
        token = mine ? without_timeline(stream, key) : begun(stream, key);
    overlaps = 0;
    if (entered) context_leave();
    exchange_capture_mode(mode);
    return token;
}

void timing_overlaps(void) { overlaps = 1; }

void launch_end(int token, int failed, CUstream stream) {
    timeline_t *l = &timeline[token];
    batch_t *b = &l->batch[l->next % SLOTS];
    const int mode = exchange_capture_mode(RELAXED), beyond = l->beyond.launching;
    const int ends = !beyond && ends_at_once(l, b), error = ends && record_end(l);
    (void)failed; /* its events exist and measure it */
    if (beyond) {
        const int unmeasured = record_on(l, &l->beyond.end[beyond - 1], stream);
        hold_guard();
        if (unmeasured) l->beyond.estimated_ns -= l->beyond.launching_ns; /* it stays charged */
        l->beyond.launching = 0;
        drop_guard();
        disown();
        exchange_capture_mode(mode);
        return;
    }
    hold_guard();
    l->launching = 0;
    b->ended = ends && !error;
    if (error) drop_batch(l);
    else if (ends && (b->estimated_ns >= BATCH_NS || b->unmeasured)) close_batch(l);
    drop_guard();
    disown();
    exchange_capture_mode(mode);
}

/* The legacy default stream and the others wait for each other. */
static int are_ordered(CUstream a, CUstream b) { return a == b || (uintptr_t)a <= 1 || (uintptr_t)b <= 1; }

static int concerns(const timeline_t *l, CUstream stream) {
    return l->open && are_ordered(l->batch[l->next % SLOTS].stream, stream);
}

static void end_of(timeline_t *l) {
    if (!own(l, PATIENCE_NS)) return;
    end_late(l, &guard);
    disown();
}

void timing_before_event(CUstream stream) {
    for (int i = 0; i < timeline_count && !mine; i++)
        if (lacks_end(&timeline[i]) && concerns(&timeline[i], stream)) end_of(&timeline[i]);
    hold_guard();
    for (int i = 0; i < timeline_count; i++)
        if (concerns(&timeline[i], stream) && !lacks_end(&timeline[i])) { /* a launch may have come since */
            no_sample_if_busy(&timeline[i], now_ns());
            close_batch(&timeline[i]);
        }
    drop_guard();
}

void timing_flush_stream(CUstream stream) {
    timing_before_event(stream);
    hold_guard();
    for (int i = 0; i < timeline_count; i++) {
        timeline_t *l = &timeline[i];
        if (are_ordered(l->batch[(l->next - 1) % SLOTS].stream, stream)) l->unbroken = 0;
        if (concerns(l, stream)) l->batch[l->next % SLOTS].crossed = 1;
    }
    drop_guard();
}

void timing_stream_ends(CUstream stream) {
    timing_flush_stream(stream);
    hold_guard();
    for (int i = 0; i < timeline_count; i++)
        for (int s = 0; s < timeline[i].beyond.count; s++)
            if (timeline[i].beyond.stream[s] == (uint64_t)(uintptr_t)stream + 1) timeline[i].beyond.stream[s] = 0;
    drop_guard();
}

/* So the ends are exact, and known as soon as the work is done. */
void timing_waits(void) {
    for (int i = 0; i < timeline_count && !mine; i++)
        if (lacks_end(&timeline[i])) end_of(&timeline[i]);
        else if (timeline[i].open) no_sample_if_busy(&timeline[i], now_ns());
}

void timing_harvest(void) {
    const int mode = exchange_capture_mode(RELAXED);
    int before;
    if (!mine) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
        harvest_all();
        pthread_setcancelstate(before, NULL);
    }
    exchange_capture_mode(mode);
}

/* Measures the work that has ended, which takes some microseconds to observe. Other work ends with the context,
 * whether the driver waits for it or not; it is charged for the time until then. */
unfinished_t timing_context_ending(CUcontext context) {
    unfinished_t left = {0, 0, 0, 0};
    timeline_t *l;
    int mode;
    if (mine) return left;
    mode = exchange_capture_mode(RELAXED);
    hold_guard();
    l = find_timeline((uint64_t)(uintptr_t)context);
    drop_guard();
    if (l && !own(l, PATIENCE_NS)) { /* a launch of another thread does not return: its place may be used again */
        hold_guard();
        if (l->context == context) l->context = NULL;
        drop_guard();
    } else if (l) {
        for (int again = 0; again < ASKS; again++) {
            end_late(l, &guard);
            harvest(l, &guard);
            if (!pending(l)) break;
            sleep_until(now_ns() + (ASK_NS << again));
        }
        hold_guard();
        if (l->context == context) {
            const uint64_t since_ns = l->beyond.since_ns;
            left = (unfinished_t){l->gpu, left_ns(l), l->head_ns,
                l->pending_ns && l->batch[l->oldest % SLOTS].lent};
            if (since_ns && (!l->pending_ns || since_ns < left.since_ns)) left.since_ns = since_ns;
            l->context = NULL;
            publish_in_flight(l->gpu);
        }
        drop_guard();
        disown();
    }
    exchange_capture_mode(mode);
    return left;
}

void timing_context_ended(unfinished_t left) {
    if (!left.pending_ns || mine) return;
    hold_guard();
    gate_settle(left.gpu, left.pending_ns, left.since_ns, now_ns(), left.lent);
    drop_guard();
}

void timing_forget(void) {
    hold_guard();
    timelines_forked();
    drop_guard();
}

static void forked(void) {
    pthread_mutex_init(&guard, NULL);
    memset(owner, 0, sizeof owner);
    mine = usual = NULL;
    timelines_forked();
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, forked); }
