/* What timelines.c keeps and timing.c goes by; see there. */
#ifndef KERF_TIMELINES_H
#define KERF_TIMELINES_H
#include "kerf.h"

/* DEPTH x KEYS launches and their events: fewer than a driver queues (1024) before a launch blocks in it, with the lock held. */
enum { MAX_TIMELINES = MAX_CONTEXTS, DEPTH = 32, KEYS = 24, BATCH_NS = 250000, NEW_NS = 100000 };
enum opened { NOT_OPENED, OPENED, NO_EVENTS };
typedef struct { CUevent begin, end; CUstream stream; uint64_t keys[KEYS], estimated_ns; int count, unknown, queued; } batch_t;
typedef struct {
    CUcontext context;              /* NULL: free. A timeline never moves: threads wait beside it */
    int gpu, open, unknown;         /* unknown: batches in flight whose length nobody knows.
                                     * open: the batch at `next` has begun */
    uint32_t oldest, next;          /* closed batches stand between */
    batch_t batch[DEPTH];
    CUevent base;                   /* times are told from here */
    int based;
    uint64_t base_ns, due_ns, told_ns, told_due_ns, pending_ns, lag_ns, lag_since_ns;
    uint64_t head_ns;               /* since when `oldest` is the one that is waited for */
} timeline_t;

extern timeline_t timeline[MAX_TIMELINES];
extern int timeline_count;                   /* so many have been in use at once; free ones among them */

/* All of these under timing.c's lock, in the relaxed mode of capturing. */
timeline_t *current_timeline(void);            /* of the current context; NULL: no context, or more of them than anybody needs */
int pending(const timeline_t *l);
uint64_t due_on(int gpu, uint64_t now);
void tell(timeline_t *l, int done);
enum opened open_batch(timeline_t *l, CUstream stream);
void close_batch(timeline_t *l);
void harvest(timeline_t *l);
void timelines_forked(void);
void publish_in_flight(int gpu);
#endif
