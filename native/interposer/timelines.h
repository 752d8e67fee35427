/* The timelines of contexts: timelines.c maintains them, timing.c uses them. */
#ifndef KERF_TIMELINES_H
#define KERF_TIMELINES_H
#include "kerf.h"

/* DEPTH x KEYS launches and their events must be fewer than a driver queues (1024) before a launch blocks in it,
 * because the lock is held during a launch. */
enum { MAX_TIMELINES = MAX_CONTEXTS, DEPTH = 32, KEYS = 24, BATCH_NS = 250000, NEW_NS = 100000 };
enum opened { NOT_OPENED, OPENED, NO_EVENTS };
typedef struct {
    CUevent begin, end; CUstream stream; uint64_t keys[KEYS], estimated_ns; int count, unknown, queued;
} batch_t;
typedef struct {
    /* NULL: free. A timeline never moves in memory, because threads hold pointers to it */
    CUcontext context;
    int gpu, open, unknown;         /* unknown: number of batches in flight of unknown length.
                                     * open: the batch at `next` has begun */
    uint32_t oldest, next;          /* the closed batches are [oldest, next) */
    batch_t batch[DEPTH];
    CUevent base;                   /* the origin of event times */
    int based;
    uint64_t base_ns, due_ns, published_ns, published_due_ns, pending_ns, lag_ns, lag_since_ns;
    uint64_t head_ns;               /* since when `oldest` is the batch that runs */
} timeline_t;

extern timeline_t timeline[MAX_TIMELINES];
extern int timeline_count;          /* the maximum that have been in use at once; some may be free */

/* The caller holds timing.c's lock and has set the relaxed capture mode. */
timeline_t *current_timeline(void); /* of the current context; NULL: no context, or more than MAX_TIMELINES */
int pending(const timeline_t *l);
uint64_t due_time_on(int gpu, uint64_t now);
void publish(timeline_t *l, int done);
enum opened open_batch(timeline_t *l, CUstream stream);
void close_batch(timeline_t *l);
void harvest(timeline_t *l);
void timelines_forked(void);
void publish_in_flight(int gpu);
#endif
