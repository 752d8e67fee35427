/* The timelines of contexts: timelines.c maintains them, timing.c uses them. */
#ifndef KERF_TIMELINES_H
#define KERF_TIMELINES_H
#include "kerf.h"

enum { MAX_TIMELINES = MAX_CONTEXTS, SLOTS = 128, STREAMS = 64, KEYS = 24, BATCH_NS = 250000, NEW_NS = 100000,
    PAUSE_NS = 50000, DEEP_NS = 2 * PAUSE_NS, SAMPLES = 16 };
/* A driver queues 1024 commands before a launch blocks in it: launches, and their events. A launch adds three at most.
 * The events of the batch before the oldest one in flight are still needed. */
enum { COMMANDS = 1000, DEPTH = SLOTS - 2 };
_Static_assert((SLOTS & (SLOTS - 1)) == 0, "the numbers of batches overflow");
typedef struct {
    CUevent begin, end; CUstream stream; uint64_t keys[KEYS], estimated_ns;
    int count, commands, unknown, unmeasured, queued, sampled;
    int crossed;                    /* its stream had other work while a launch of it was under way */
    int follows;                    /* it begins with the end of the batch before it, and `begin` is not recorded */
    int lent;                       /* its launches began in time that is lent */
    int ended, late;                /* the end is recorded; it may contain a pause. sampled: it was recorded after a
                                     * launch where others leave it out.
                                     * unmeasured: it has a function that was never measured; unknown: and nothing tells
                                     * how long that may be */
} batch_t;
/* Launches that passed though all batches were in flight. They count together, from the first one's begin until the
 * last of each stream is done, whatever else runs meanwhile. */
typedef struct {
    uint64_t since_ns, estimated_ns; /* since 0: there are none */
    uint64_t charged_ns;            /* what batches were charged meanwhile */
    uint64_t launching_ns;          /* the estimate of a launch that has begun */
    int count, launching;           /* launching: 1 + its stream */
    uint64_t stream[STREAMS];       /* its handle + 1; of a thread's own default stream another number; 0: destroyed */
    CUevent end[STREAMS];
} beyond_t;
typedef struct {
    /* NULL: free. A timeline never moves in memory, because threads hold pointers to it */
    CUcontext context;
    int dependent;                  /* its program launches kernels that overlap their predecessor */
    unsigned exact;                 /* so many launches have their end, however much work is in flight */
    int gpu, open, launching, unknown; /* unknown: number of batches in flight of unknown length.
                                        * open: the batch at `next` has begun.
                                        * launching: a launch of it has begun, and its end is not recorded yet */
    int commands;                   /* in flight: launches and events */
    uint32_t oldest, next;          /* the closed batches are [oldest, next) */
    batch_t batch[SLOTS];
    CUevent base;                   /* the origin of event times */
    int based;
    int unbroken;                   /* its streams have no other work since the end of the last batch */
    /* of the orders: at the last launch, and at the last one before the open batch */
    uint64_t generation, generation_before;
    CUevent settled_end;            /* the end of the last settled batch */
    beyond_t beyond;
    uint64_t base_ns, due_ns, published_ns, published_due_ns, pending_ns, lag_ns, lag_since_ns;
    uint64_t changing_ns;           /* what the GPU may still need to change to this context, beside `due_ns` */
    uint64_t head_ns;               /* since when `oldest` is the batch that runs */
    uint64_t launched_ns, ask_ns;   /* the last launch; when to query the oldest batch again */
} timeline_t;

/* Two kinds of locks. A timeline's owner alone calls the driver for it, and adds and settles its batches; it owns it
 * during a launch, too. `guard` protects what other threads read: all fields but the events, and all of gate.c,
 * estimates.c and idle_prediction.c. No thread calls the driver while it holds `guard`, and none waits for long for a
 * timeline: a driver call may wait for what another thread of the program has still to do. */
extern timeline_t timeline[MAX_TIMELINES];
extern int timeline_count;          /* the maximum that have been in use at once; some may be free */

/* The caller holds the guard. */
timeline_t *find_timeline(uint64_t context);          /* NULL: it has none yet */
timeline_t *make_timeline(uint64_t context, int gpu); /* NULL: there are MAX_TIMELINES already */
int pending(const timeline_t *l);
uint64_t left_ns(const timeline_t *l);                /* the estimate of all that is in flight */
uint64_t due_time_on(int gpu, uint64_t now);
void publish(timeline_t *l, int done);
void publish_in_flight(int gpu);
/* Appends a launch to the open batch, or to a new one (returned 1: its begin has to be recorded). */
int append(timeline_t *l, CUstream stream, uint64_t key, uint64_t estimated_ns, uint64_t now);
void close_batch(timeline_t *l);    /* if no launch of it is under way; without an end it is dropped */
void drop_batch(timeline_t *l);     /* the open batch cannot be measured: the estimate stays charged */

/* The caller owns the timeline, has set the relaxed capture mode, and does not hold the guard. */
/* Whether nothing is between the end of the last batch and the open one, which is on the same stream. */
int follows_closely(const timeline_t *l);
int record_begin(timeline_t *l);    /* 0: recorded, if it does not follow; otherwise the driver's error */
int record_end(timeline_t *l);
int record_on(timeline_t *l, CUevent *event, CUstream stream);
int lacks_end(const timeline_t *l); /* whether a batch is open whose end is not recorded */
int has_paused(const timeline_t *l, uint64_t now); /* whether the GPU may have been idle since the last launch */
void no_sample_if_busy(timeline_t *l, uint64_t now); /* a sample tells only of batches before a pause */
/* Ends and closes the open batch if its end is still missing. */
void end_late(timeline_t *l, pthread_mutex_t *guard);
void harvest(timeline_t *l, pthread_mutex_t *guard);  /* settles what has ended */
void timelines_forked(void);

/* The hook of a call before which a batch is closed, also while launches are not timed: it may be open from before. */
#define AFTER(name, parameters, arguments, flush)                                        \
    EXPORT CUresult name parameters {                                                    \
        CUresult(*real) parameters = REAL(CUresult(*) parameters, #name);                \
        await_memory();                                                                  \
        if (!LIKELY(!__atomic_load_n(&timeline_count, __ATOMIC_RELAXED))) flush;         \
        return real arguments;                                                           \
    }
#endif
