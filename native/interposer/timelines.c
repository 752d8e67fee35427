/* Measures GPU time with events around batches of launches, by the driver's own clock.
 *
 * Each context has a timeline. A batch is a number of launches on one stream between two events; while the GPU is busy
 * with it, the next batch of that stream begins with its end, and has one event less. Short launches share a batch. A
 * pause before the next launch, of which no call may tell, must not be in it. So its end is recorded
 * anew after each launch while little work is in flight. But an event keeps the GPU from the next kernel for some 4 us
 * (measured on an H100). So while more than DEEP_NS of work is in flight most launches leave it out: the next launch, or
 * a call that waits, is expected before that work is done, and records it. If there was a pause nevertheless, the batch
 * counts at most with its estimate. What that leaves out is charged by samples: one launch in SAMPLES has its end, drawn
 * by lot after the launch, and if its batch took longer than estimated and a pause followed, the excess is charged
 * SAMPLES times. So in the mean a program is charged what it used beyond its estimates, if it does not treat the samples
 * otherwise (docs/attacks.md, 38). The first EXACT launches all have their end, and so do the next ones after such an
 * excess. Kernels that may overlap their predecessor (programmatic dependent launch) would lose that to an event in
 * between; in such a context the end is recorded before the next launch that does not overlap, or when the program
 * waits, and counts at most with the estimate if there was a pause. Other work of the stream between two launches
 * closes the batch (stream_work.c). On a thread's own default stream no other thread can record an event, so each launch
 * there is a batch. */
#include "timelines.h"
#include <string.h>

typedef CUresult (*create_t)(CUevent *, unsigned);
typedef CUresult (*record_t)(CUevent, CUstream);
typedef CUresult (*event_t)(CUevent);
typedef CUresult (*elapsed_t)(float *, CUevent, CUevent);
typedef CUresult (*capturing_t)(CUstream, int *);

/* START_NS: from the first event of a batch on an idle stream to its first launch. */
enum { START_NS = 20000, EXACT = 64, REBASE_NS = 1000000000, DRIFT_NS = 1000000, HELD_UP_NS = 5000000,
    UNKNOWN_NS = 100000000 };

timeline_t timeline[MAX_TIMELINES];
int timeline_count;

timeline_t *find_timeline(uint64_t context) {
    for (int i = 0; i < timeline_count; i++)
        if ((uint64_t)(uintptr_t)timeline[i].context == context) return &timeline[i];
    return NULL;
}

timeline_t *make_timeline(uint64_t context, int gpu) {
    for (int i = 0; i < MAX_TIMELINES; i++) {
        if (timeline[i].context) continue;
        memset(&timeline[i], 0, sizeof timeline[i]);
        timeline[i].context = (CUcontext)(uintptr_t)context;
        timeline[i].gpu = gpu;
        timeline[i].exact = EXACT;
        if (i >= timeline_count) timeline_count = i + 1;
        return &timeline[i];
    }
    return NULL;
}

/* 0: the driver does not say. */
static int between(CUevent from, CUevent to, uint64_t *ns) {
    float ms = 0;
    if (REAL(elapsed_t, "cuEventElapsedTime")(&ms, from, to)) return 0;
    *ns = ms > 0 ? (uint64_t)((double)ms * 1e6 + 0.5) : 0;
    return 1;
}

static int has_batches(const timeline_t *l) { return l->next != l->oldest || l->open; }
int pending(const timeline_t *l) { return l->context && (has_batches(l) || l->beyond.since_ns); }
uint64_t left_ns(const timeline_t *l) { return l->pending_ns + (l->beyond.since_ns ? l->beyond.estimated_ns : 0); }

/* Publishes the work in flight of all contexts of this process on a GPU. */
void publish_in_flight(int gpu) {
    uint64_t sum = 0;
    for (int i = 0; i < timeline_count; i++)
        if (timeline[i].context && timeline[i].gpu == gpu) sum += left_ns(&timeline[i]);
    self()->in_flight_ns[gpu] = sum;
}
/* Returns when all work on the GPU will be done; 0: nothing is in flight. Overdue work is expected to take as long
 * again. */
uint64_t due_time_on(int gpu, uint64_t now) {
    uint64_t due_ns = 0;
    for (int i = 0; i < timeline_count; i++) {
        const timeline_t *l = &timeline[i];
        const uint64_t due = l->due_ns > now ? l->due_ns : now + (now > l->head_ns ? now - l->head_ns : 0) + 1;
        if (pending(l) && l->gpu == gpu && due > due_ns) due_ns = due;
    }
    return due_ns;
}

/* Writes a time into the signal. A later time always replaces the current one. An earlier time replaces it only if
 * no other process has written since. */
static void publish_time(uint64_t *place, uint64_t *told, uint64_t ns) {
    uint64_t there = *told;
    if (ns < there) {
        if (__atomic_compare_exchange_n(place, &there, ns, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) *told = ns;
        return;
    }
    there = __atomic_load_n(place, __ATOMIC_SEQ_CST);
    while (there < ns && !__atomic_compare_exchange_n(place, &there, ns, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    *told = ns;
}

/* Whether there is work in flight, and all of it began in time that is lent. */
static int all_lent(const timeline_t *l) {
    for (uint32_t i = l->oldest; i != l->next + (uint32_t)l->open; i++)
        if (!l->batch[i % SLOTS].lent) return 0;
    return has_batches(l) && !l->beyond.since_ns;
}

/* Publishes until when this container is at work on the GPU. Too late is better than too early: a program that waits
 * for its work corrects the time when the work is done, but a program that other work delays cannot announce that it
 * needs longer. */
void publish(timeline_t *l, int done) {
    const uint64_t busy_until_ns = done ? l->due_ns : l->due_ns + l->pending_ns / 2 + HELD_UP_NS
        + (l->unknown ? UNKNOWN_NS : 0);
    publish_in_flight(l->gpu);
    if (!signals || l->gpu >= (int)signals->gpu_count) return;
    publish_time(&signals->gpu[l->gpu].busy_until_ns, &l->published_ns, busy_until_ns);
    if (all_lent(l)) return; /* no window waits for work in time that is lent: more of it would begin meanwhile */
    /* beside a peer's work its length could not be measured */
    publish_time(&signals->gpu[l->gpu].due_ns, &l->published_due_ns,
        l->due_ns + l->changing_ns + (l->unknown ? UNKNOWN_NS : 0));
}

static void remove_pending(timeline_t *l, const batch_t *b) {
    l->commands -= b->commands;
    l->pending_ns -= b->estimated_ns < l->pending_ns ? b->estimated_ns : l->pending_ns;
    l->unknown -= b->unknown < l->unknown ? b->unknown : l->unknown;
}

static void count_command(timeline_t *l, batch_t *b) { b->commands++, l->commands++; }

int append(timeline_t *l, CUstream stream, uint64_t key, uint64_t estimated_ns, uint64_t now) {
    batch_t *b = &l->batch[l->next % SLOTS];
    const int begins = !l->open;
    if (begins) {
        b->stream = stream;
        b->estimated_ns = 0;
        b->count = b->commands = b->unknown = b->unmeasured = 0;
        b->ended = b->late = b->sampled = b->follows = b->crossed = 0;
        b->queued = l->next != l->oldest;
        b->lent = gate_lends(l->gpu);
        if (!b->queued) l->head_ns = now, l->changing_ns = orders->peer_count ? SWITCH_NS : 0;
        l->open = 1;
        l->generation_before = l->generation;
    }
    l->generation = __atomic_load_n(&orders->generation, __ATOMIC_ACQUIRE);
    l->launching = 1;
    l->launched_ns = now;
    if (!estimated_ns && !b->unknown) b->unknown = 1, l->unknown++;
    b->unmeasured |= is_unmeasured(key);
    if (!estimated_ns) estimated_ns = NEW_NS;
    b->keys[b->count++] = key;
    count_command(l, b);
    b->estimated_ns += estimated_ns;
    l->pending_ns += estimated_ns;
    l->due_ns = (l->due_ns > now ? l->due_ns : now) + estimated_ns;
    return begins;
}

void drop_batch(timeline_t *l) {
    const batch_t *b = &l->batch[l->next % SLOTS];
    l->open = l->unbroken = 0;
    remove_pending(l, b);
    publish_in_flight(l->gpu);
    counters->gpu[l->gpu].untimed += (uint64_t)b->count;
}

void close_batch(timeline_t *l) {
    if (!l->open || l->launching) return;
    if (!l->batch[l->next % SLOTS].ended) {
        drop_batch(l);
        return;
    }
    l->open = 0;
    l->unbroken = !l->batch[l->next % SLOTS].crossed;
    l->next++;
}

/* Launches that are not timed may be between them: the orders were others meanwhile, or the agent was alive. */
int follows_closely(const timeline_t *l) {
    const batch_t *b = &l->batch[l->next % SLOTS], *before = &l->batch[(l->next - 1) % SLOTS];
    return l->unbroken && b->queued && b->stream == before->stream && b->stream != PER_THREAD
        && l->generation == l->generation_before && must_time() == ALWAYS_TIMED
        && REAL(event_t, "cuEventQuery")(before->end) == CUDA_ERROR_NOT_READY; /* otherwise there may be a pause */
}

/* Aligns the GPU's clock with the CPU's: an end cannot be in the future, and the minimum lag of a second shows
 * drift. */
static uint64_t aligned(timeline_t *l, uint64_t end_ns, uint64_t now) {
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

/* Returns the GPU time of a batch. If peers are busy, a batch on an idle stream waits for their time slice between
 * its first event and its first launch. In the low tier, where this is normal, the batch counts with its estimate,
 * which comes from queued batches; but with a quarter of the measured time at least, because a program could run a
 * function long only on an idle stream. */
static uint64_t own_time(const batch_t *b, uint64_t took) {
    if (orders->tier != KERF_TIER_LOW || b->queued || b->unmeasured || took <= b->estimated_ns) return took;
    return b->estimated_ns > took / 4 ? b->estimated_ns : took / 4;
}

/* What a batch was charged while launches were beyond all batches: their time contains it. */
static void count_beside_beyond(timeline_t *l, uint64_t charged_ns, uint64_t begin_ns, uint64_t end_ns) {
    const uint64_t from_ns = begin_ns > l->beyond.since_ns ? begin_ns : l->beyond.since_ns;
    const uint64_t within_ns = end_ns > from_ns ? end_ns - from_ns : 0;
    if (l->beyond.since_ns) l->beyond.charged_ns += charged_ns < within_ns ? charged_ns : within_ns;
}

/* The caller holds the guard. `took`, `from_base`: measured by the driver. */
static void settle(timeline_t *l, uint64_t took, uint64_t from_base, uint64_t now) {
    batch_t *b = &l->batch[l->oldest % SLOTS];
    const uint64_t end_ns = aligned(l, l->base_ns + from_base, now);
    const uint64_t used_ns = b->late && !b->unmeasured && took > b->estimated_ns ? b->estimated_ns : own_time(b, took);
    const uint64_t charged_ns = gate_settle(l->gpu, b->estimated_ns, end_ns - used_ns, end_ns, b->lent);
    count_beside_beyond(l, charged_ns, end_ns - used_ns, end_ns);
    if (b->sampled && used_ns > b->estimated_ns + START_NS) {
        gate_charge(l->gpu, (used_ns - b->estimated_ns - START_NS) * (SAMPLES - 1), b->lent);
        l->exact = EXACT;
    }
    if (b->queued || b->unmeasured || b->sampled || used_ns < b->estimated_ns)
        learn(b->keys, b->count, b->estimated_ns, used_ns);
    l->settled_end = b->end;
    if (from_base > REBASE_NS) { /* keeps a float of milliseconds exact to a fraction of a microsecond */
        CUevent old = l->base;
        l->base = b->end;
        l->base_ns += from_base;
        b->end = old;
    }
    l->oldest++;
    l->head_ns = now;
    l->changing_ns = 0;
    remove_pending(l, b);
    work_ended(l->gpu, end_ns);
    l->due_ns = pending(l) ? (end_ns + left_ns(l) > now ? end_ns + left_ns(l) : now) : end_ns;
    publish(l, !pending(l));
}

/* The context is broken: none of its work can be timed any more. */
static void give_up(timeline_t *l) {
    l->pending_ns = 0;
    l->commands = 0;
    l->unknown = l->open = 0;
    l->oldest = l->next;
    publish_in_flight(l->gpu);
}

/* Whether the GPU may have been idle since the last launch. */
int has_paused(const timeline_t *l, uint64_t now) { return now > l->launched_ns + PAUSE_NS && l->due_ns <= now; }

int lacks_end(const timeline_t *l) { return l->open && !l->launching && !l->batch[l->next % SLOTS].ended; }

void no_sample_if_busy(timeline_t *l, uint64_t now) {
    if (!has_paused(l, now)) l->batch[l->next % SLOTS].sampled = 0;
}

void end_late(timeline_t *l, pthread_mutex_t *guard) {
    batch_t *b = &l->batch[l->next % SLOTS];
    int error;
    if (!l->open || l->launching || b->ended) return;
    error = record_end(l);
    lock_by_clock(guard);
    if (l->open && !l->launching && !b->ended) { /* otherwise another thread has dropped it meanwhile */
        b->ended = !error;
        b->late = has_paused(l, now_ns());
        close_batch(l);
    }
    pthread_mutex_unlock(guard);
}

/* Charges the launches beyond all batches once all of them are done. Destroyed streams that are done make room. */
static void harvest_beyond(timeline_t *l, pthread_mutex_t *guard) {
    beyond_t *b = &l->beyond;
    uint64_t running = 0, now;
    if (!b->since_ns || b->launching) return;
    for (int i = 0; i < b->count; i++)
        if (b->end[i] && REAL(event_t, "cuEventQuery")(b->end[i]) == CUDA_ERROR_NOT_READY) running |= UINT64_C(1) << i;
    now = now_ns();
    lock_by_clock(guard);
    for (int i = b->count; running && i-- > 0;)
        if (!b->stream[i] && !(running >> i & 1)) {
            CUevent unused = b->end[i];
            b->stream[i] = b->stream[--b->count];
            b->end[i] = b->end[b->count];
            b->end[b->count] = unused;
        }
    if (!running) {
        const uint64_t span_ns = now - b->since_ns;
        gate_correct(l->gpu, b->estimated_ns, span_ns > b->charged_ns ? span_ns - b->charged_ns : 0);
        b->since_ns = 0;
        if (!has_batches(l)) l->due_ns = now;
        work_ended(l->gpu, now);
        publish(l, !pending(l));
    }
    pthread_mutex_unlock(guard);
}

/* An open batch between two launches has its end, and counts as closed once that is reached. */
static void harvest_batches(timeline_t *l, pthread_mutex_t *guard) {
    while (l->context && has_batches(l)) {
        const batch_t *b = &l->batch[l->oldest % SLOTS];
        uint64_t took = 0, from_base = 0, now;
        CUresult result;
        int measured;
        if (l->oldest == l->next && (l->launching || !b->ended)) return;
        result = REAL(event_t, "cuEventQuery")(b->end);
        if (result == CUDA_ERROR_NOT_READY) return;
        measured = !result && between(b->follows ? l->settled_end : b->begin, b->end, &took)
            && between(l->base, b->end, &from_base);
        now = now_ns();
        lock_by_clock(guard);
        if (result) give_up(l);
        else {
            if (!measured) {
                took = b->estimated_ns, from_base = now > l->base_ns ? now - l->base_ns : 0;
                counters->gpu[l->gpu].untimed += (uint64_t)b->count;
            }
            if (l->oldest == l->next) close_batch(l);
            settle(l, took, from_base, now);
        }
        pthread_mutex_unlock(guard);
    }
}

void harvest(timeline_t *l, pthread_mutex_t *guard) {
    harvest_batches(l, guard);
    if (l->context) harvest_beyond(l, guard);
}

static CUresult make(CUevent *event) {
    return *event ? CUDA_SUCCESS : REAL(create_t, "cuEventCreate")(event, EVENT_BLOCKING_SYNC);
}

int record_begin(timeline_t *l) {
    batch_t *b = &l->batch[l->next % SLOTS];
    record_t record = REAL(record_t, "cuEventRecord");
    CUresult result = b->follows ? CUDA_SUCCESS : make(&b->begin);
    if (!result) result = make(&b->end);
    if (!result) result = make(&l->base);
    if (!result && !l->based) {
        result = record(l->base, b->stream);
        if (result) return (int)result;
        l->based = 1;
        l->base_ns = l->lag_since_ns = now_ns();
        l->lag_ns = UINT64_MAX;
    }
    if (result || b->follows) return (int)result;
    count_command(l, b);
    return (int)record(b->begin, b->stream);
}

/* The default stream's handle means the default stream of the current context. */
int record_on(timeline_t *l, CUevent *event, CUstream stream) {
    int capturing = 0, entered = (uintptr_t)stream <= 1 && context_enter(l->context);
    CUresult result = REAL(capturing_t, "cuStreamIsCapturing")(stream, &capturing);
    if (!result && capturing) result = CUDA_ERROR_NOT_READY;
    if (!result) result = make(event);
    if (!result) result = REAL(record_t, "cuEventRecord")(*event, stream);
    if (entered) context_leave();
    return (int)result;
}

int record_end(timeline_t *l) {
    batch_t *b = &l->batch[l->next % SLOTS];
    count_command(l, b);
    return record_on(l, &b->end, b->stream);
}

void timelines_forked(void) {
    memset(timeline, 0, (size_t)timeline_count * sizeof *timeline);
    timeline_count = 0;
}
