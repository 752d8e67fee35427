/* What the interposer's files have in common. */
#ifndef KERF_H
#define KERF_H
#include "driver.h"
#include "control_block.h"
#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)

/* control_block.c: the three files, and this process's slot. */
extern const struct kerf_orders *orders;   /* NULL until attached */
extern struct kerf_counters *counters;
extern struct kerf_signal *signals;        /* NULL: nobody asked for one */
extern int slot;
int attached(void);                        /* 0 where there is no page: every call of the driver is refused then */
int process_alive(int index);              /* whether the slot's lock is held; its own counts as held */
const struct kerf_signal *peer_signal(unsigned peer); /* NULL where it cannot be read */
struct kerf_process *self(void);
const char *kerf_directory(void);
int control_block_driver_path(char *to);            /* KERF_PATH_BYTES; readable before anything is attached. 0: no orders, or none in them */

void control_block_forked(void);                    /* in a child: it is not attached */

/* account.c: bytes of the container, reserved before they are asked of the driver. */
int reserve(int gpu, uint64_t bytes);      /* 0: beyond the limit */
int reserve_uncounted(int gpu, uint64_t bytes); /* the same, and no refusal is counted */
void overdraw(int gpu, uint64_t bytes);    /* what the device has less of already, whatever the limit says */
void release(int gpu, uint64_t bytes);
void reclaim(void);                        /* what dead processes held */
uint64_t charged(int gpu);
uint64_t charge_of(uint64_t bytes);        /* what an allocation is charged */

/* allocation_table.c: what this process has allocated, by handle. */
enum kind { POINTER = 1, PHYSICAL, MAPPING, ARRAY, IMPORT };
typedef struct { uint64_t key, bytes, context; int32_t gpu, references; uint32_t kind; } entry_t;
void table_put(enum kind kind, uint64_t key, int gpu, uint64_t bytes, uint64_t context, int references);
int table_remove(enum kind kind, uint64_t key, entry_t *taken); /* 0: not there */
int table_add_reference(enum kind kind, uint64_t key, int by, entry_t *entry); /* 0: not there; taken out at 0 references */
int table_find(enum kind kind, uint64_t key, entry_t *found);
int table_remove_any(int (*wanted)(const entry_t *, const void *), const void *what, entry_t *taken);
void table_remove_all(int (*wanted)(const entry_t *, const void *), const void *what, uint64_t *bytes_by_gpu); /* of KERF_MAX_GPUS */
void table_clear(void);

/* pool_accounting.c: what memory pools hold, and its charge. */
extern int pools_pending;                  /* something may have come back from one */
void pools_update(void);                     /* charges are what the driver says */
void pools_trim(int gpu);               /* what pools keep for later is given back, where it can be had without waiting */
static inline void pools_after_wait(void) {    /* the program has waited for the GPU */
    if (!LIKELY(!__atomic_load_n(&pools_pending, __ATOMIC_RELAXED))) pools_update();
}
int pool_register(CUpool pool, int gpu);
int pool_gpu(CUpool pool, int otherwise);
int pool_begin(CUpool pool, int gpu, uint64_t bytes); /* before an allocation from it; -1: no room. Else pool_end must follow */
int pool_end(int place, uint64_t bytes);
CUresult pool_destroy(CUpool pool);
void pools_forget(void);

/* context.c */
void contexts_forget(void);
int context_charge(uint64_t context, int setting, uint64_t now, uint64_t value, uint64_t each, uint64_t *more); /* 0: no room */
void context_refund(uint64_t context, int setting, uint64_t more);

/* fork.c: all locks but timing.c's, in the order in which they may be taken inside each other. */
extern pthread_mutex_t attach_guard, contexts_guard, pools_guard, table_guard, account_guard, finding_guard;
void locks_reinit(void);                     /* in a child whose parent's threads may have held some */

/* symbol_lookup.c: the real driver. */
int is_finding(void);                      /* whether this thread looks for it just now, and holds finding_guard */
void *real_symbol(const char *exact);      /* of libcuda.so.1; NULL where it has none */
void *(*real_dlsym(void))(void *, const char *);
void *libc_function(const char *name);   /* linker.c; past what stands in front of it */
/* The driver's function of that name and type, looked up once. */
#define REAL(type, name) ({ static void *found_; void *now_ = __atomic_load_n(&found_, __ATOMIC_RELAXED); if (!now_) now_ = real_symbol(name), __atomic_store_n(&found_, now_, __ATOMIC_RELAXED); (type)now_; })

/* device.c: which GPU of the page a device, context or stream belongs to; -1: none that we were given. */
int gpu_of_device(CUdevice device);
int current_gpu(void);
CUdevice device_of_stream(CUstream stream);
int context_enter(CUcontext context);      /* 0: it is current already, or gone. Else context_leave must follow */
int stream_enter(CUstream stream);         /* the same with its context */
void context_leave(void);
uint64_t current_context(void);
int gpu_of_uuid(const unsigned char *uuid);

/* clock.c: the one function that tells time. */
uint64_t now_ns(void);
void sleep_until(uint64_t ns);
void lock_by_clock(pthread_mutex_t *lock);

/* gate.c: arithmetic over the page; no driver, no clock. */
enum verdict { GO, WAIT_TIME, WAIT_WORK, WAIT_OTHERS, HELD_BY_AGENT }; /* OTHERS: work of the container's other processes. HELD_BY_AGENT: by the agent */
typedef struct {
    uint64_t now_ns, due_ns;     /* due: when what is submitted will be done, by estimate */
    uint64_t estimate_ns;        /* of the launch that asks; 0: never seen */
    uint64_t others_ns;          /* in flight of the container's other processes */
    uint64_t peers_busy_until_ns, peers_due_ns; /* by their signals, with and without a margin */
    uint64_t peers_request_ns;   /* how long their requests are, the shortest; 0: nobody knows */
    uint64_t quiet_until_ns, away_from_ns; /* until when none of them will be back, surely; from when on they have gone for long */
} moment_t;
int is_limited(int gpu);                    /* whether its GPU time is charged against a share */
int must_time(void);                        /* whether launches pass the gate and are timed at all, by the orders */
enum verdict gate(int gpu, const moment_t *m, uint64_t *until_ns);
void gate_spend(int gpu, uint64_t estimate_ns, uint64_t now_ns);
void gate_settle(int gpu, uint64_t estimate_ns, uint64_t begin_ns, uint64_t end_ns); /* measured; what overlaps counts once */

/* idle_prediction.c: how work comes, here and at the peers. */
void work_begins(int gpu, uint64_t now);     /* a launch that finds nothing in flight */
void work_ended(int gpu, uint64_t end_ns);
uint64_t others_in_flight(int gpu, uint64_t now); /* of the container's other processes */
void read_peer_signals(int gpu, moment_t *m);    /* by their signals */

/* estimates.c: what a function takes on the GPU, learned. */
uint64_t estimate(uint64_t key);            /* ns; 0: never seen */
void learn(const uint64_t *keys, int count, uint64_t estimated_ns, uint64_t used_ns);

enum { UNTIMED = -1, NO_TIMELINE = -2, MAX_CONTEXTS = 64 };
typedef struct { int gpu; uint64_t pending_ns, since_ns; } unfinished_t; /* of a context: work that had not ended; 0: none */
/* timing.c: the wait at the gate, and events around batches of launches (timelines.c). */
int launch_begin(CUstream stream, uint64_t key); /* waits at the gate, opens a batch. UNTIMED, NO_TIMELINE, or what launch_end wants */
void launch_end(int token, int failed);
void timing_flush(void);                    /* someone will wait: the open batches are closed */
void timing_flush_stream(CUstream stream);  /* it may be gone soon, or capture */
void timing_harvest(void);                  /* what has finished is accounted */
void timing_forget(void);                   /* the driver's objects are the parent's */
unfinished_t timing_context_ending(CUcontext context);     /* before it is destroyed */
void timing_context_ended(unfinished_t left);              /* afterwards: its work has ended by now */
extern uint64_t seen_generation;
extern int timed;
int decide_timed(void);
/* Whether launches are timed; the orders are looked at anew when the agent has moved their generation. */
static inline int is_timed(void) {
    const uint64_t seen = __atomic_load_n(&seen_generation, __ATOMIC_ACQUIRE);
    return LIKELY(orders && __atomic_load_n(&orders->generation, __ATOMIC_ACQUIRE) == seen) ? __atomic_load_n(&timed, __ATOMIC_RELAXED) : decide_timed();
}
#endif
