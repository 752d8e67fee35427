/* Measures GPU time with events around batches of launches, by the driver's own clock.
 *
 * Each context has a timeline. A batch is a number of launches on one stream between two events. Short launches
 * share a batch, so that timing costs at most two events per quarter of a millisecond of continuous work. If GPU
 * time is charged against a share, a launch that finds nothing in flight is a batch of its own; otherwise the pause
 * until the next launch would be charged, too. A batch is closed before its stream may be destroyed or begin a
 * capture, because an event that is recorded afterwards measures nothing, or ends the program. On a thread's own
 * default stream no other thread can record an event, so each launch there is a batch. */
#include "timelines.h"
#include <string.h>

typedef CUresult (*create_t)(CUevent *, unsigned);
typedef CUresult (*record_t)(CUevent, CUstream);
typedef CUresult (*event_t)(CUevent);
typedef CUresult (*elapsed_t)(float *, CUevent, CUevent);
typedef CUresult (*capturing_t)(CUstream, int *);

enum { REBASE_NS = 1000000000, DRIFT_NS = 1000000, HELD_UP_NS = 5000000, UNKNOWN_NS = 100000000 };

timeline_t timeline[MAX_TIMELINES];
int timeline_count;

timeline_t *current_timeline(void) {
    const uint64_t context = current_context();
    timeline_t *l = NULL;
    int gpu;
    if (!context) return NULL;
    for (int i = 0; i < timeline_count; i++)
        if ((uint64_t)(uintptr_t)timeline[i].context == context) return &timeline[i];
    for (int i = 0; i < MAX_TIMELINES && !l; i++)
        if (!timeline[i].context) l = &timeline[i];
    gpu = current_gpu();
    if (!l || gpu < 0) return NULL;
    memset(l, 0, sizeof *l);
    l->context = (CUcontext)(uintptr_t)context;
    l->gpu = gpu;
    if (l - timeline >= timeline_count) timeline_count = (int)(l - timeline) + 1;
    return l;
}

static uint64_t between(CUevent from, CUevent to) {
    float ms = 0;
    if (REAL(elapsed_t, "cuEventElapsedTime")(&ms, from, to) || ms < 0) return 0;
    return (uint64_t)((double)ms * 1e6 + 0.5);
}

int pending(const timeline_t *l) { return l->context && (l->next != l->oldest || l->open); }

/* Publishes the work in flight of all contexts of this process on a GPU. */
void publish_in_flight(int gpu) {
    uint64_t sum = 0;
    for (int i = 0; i < timeline_count; i++)
        if (timeline[i].context && timeline[i].gpu == gpu) sum += timeline[i].pending_ns;
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

/* Publishes until when this container is at work on the GPU. Too late is better than too early: a program that waits
 * for its work corrects the time when the work is done, but a program that other work delays cannot announce that it
 * needs longer. */
void publish(timeline_t *l, int done) {
    const uint64_t busy_until_ns = done ? l->due_ns : l->due_ns + l->pending_ns / 2 + HELD_UP_NS
        + (l->unknown ? UNKNOWN_NS : 0);
    publish_in_flight(l->gpu);
    if (!signals || l->gpu >= (int)signals->gpu_count) return;
    publish_time(&signals->gpu[l->gpu].busy_until_ns, &l->published_ns, busy_until_ns);
    publish_time(&signals->gpu[l->gpu].due_ns, &l->published_due_ns, l->due_ns);
}

static void remove_pending(timeline_t *l, const batch_t *b) {
    l->pending_ns -= b->estimated_ns < l->pending_ns ? b->estimated_ns : l->pending_ns;
    l->unknown -= b->unknown < l->unknown ? b->unknown : l->unknown;
}

/* Records the end of a batch. The default stream's handle means the default stream of the current context. */
static int recorded(const timeline_t *l, const batch_t *b) {
    int capturing = 0, entered = !b->stream && context_enter(l->context);
    CUresult result = REAL(capturing_t, "cuStreamIsCapturing")(b->stream, &capturing);
    if (!result && !capturing) result = REAL(record_t, "cuEventRecord")(b->end, b->stream);
    if (entered) context_leave();
    return !result && !capturing;
}

void close_batch(timeline_t *l) {
    batch_t *b = &l->batch[l->next % DEPTH];
    if (!l->open) return;
    l->open = 0;
    if (!recorded(l, b)) { /* the context is broken: the estimate stays charged */
        remove_pending(l, b);
        publish_in_flight(l->gpu);
        counters->gpu[l->gpu].untimed += (uint64_t)b->count;
        return;
    }
    l->next++;
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
    if (orders->tier != KERF_TIER_LOW || b->queued || b->unknown || took <= b->estimated_ns) return took;
    return b->estimated_ns > took / 4 ? b->estimated_ns : took / 4;
}

static void settle(timeline_t *l, uint64_t now) {
    batch_t *b = &l->batch[l->oldest % DEPTH];
    const uint64_t took = between(b->begin, b->end), from_base = between(l->base, b->end);
    const uint64_t end_ns = aligned(l, l->base_ns + from_base, now);
    gate_settle(l->gpu, b->estimated_ns, end_ns - own_time(b, took), end_ns);
    if (b->queued || b->unknown || took < b->estimated_ns) learn(b->keys, b->count, b->estimated_ns, took);
    if (from_base > REBASE_NS) { /* keeps a float of milliseconds exact to a fraction of a microsecond */
        CUevent old = l->base;
        l->base = b->end;
        l->base_ns += from_base;
        b->end = old;
    }
    l->oldest++;
    l->head_ns = now;
    remove_pending(l, b);
    work_ended(l->gpu, end_ns);
    l->due_ns = pending(l) ? (end_ns + l->pending_ns > now ? end_ns + l->pending_ns : now) : end_ns;
    publish(l, !pending(l));
}

void harvest(timeline_t *l) {
    while (l->context && l->oldest != l->next) {
        CUresult result = REAL(event_t, "cuEventQuery")(l->batch[l->oldest % DEPTH].end);
        if (result == CUDA_ERROR_NOT_READY) return;
        if (result) { /* the context is broken: none of its work can be timed any more */
            l->pending_ns = 0;
            l->unknown = l->open = 0;
            l->oldest = l->next;
            publish_in_flight(l->gpu);
            return;
        }
        settle(l, now_ns());
    }
}

static CUresult make(CUevent *event) {
    return *event ? CUDA_SUCCESS : REAL(create_t, "cuEventCreate")(event, EVENT_BLOCKING_SYNC);
}

/* If the program has used up all events, the launch is refused. Other failures mean that the context is broken. */
enum opened open_batch(timeline_t *l, CUstream stream) {
    batch_t *b = &l->batch[l->next % DEPTH];
    record_t record = REAL(record_t, "cuEventRecord");
    CUresult made = make(&b->begin);
    if (!made) made = make(&b->end);
    if (!made) made = make(&l->base);
    if (made) return made == CUDA_ERROR_OUT_OF_MEMORY ? NO_EVENTS : NOT_OPENED;
    if (!l->based) {
        if (record(l->base, stream)) return NOT_OPENED;
        l->based = 1;
        l->base_ns = l->lag_since_ns = now_ns();
        l->lag_ns = UINT64_MAX;
    }
    b->queued = l->next != l->oldest;
    if (!b->queued) l->head_ns = now_ns();
    if (record(b->begin, stream)) return NOT_OPENED;
    b->stream = stream;
    b->estimated_ns = 0;
    b->count = b->unknown = 0;
    l->open = 1;
    return OPENED;
}

void timelines_forked(void) {
    memset(timeline, 0, sizeof timeline);
    timeline_count = 0;
}
