/* Declarations that the interposer's source files share. */
#ifndef KERF_H
#define KERF_H
#include "driver.h"
#include "control_block.h"
#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))
/* With per-thread default streams, stream 0 is the thread's own stream; the handle 2 means that stream in all calls. */
#define PER_THREAD ((CUstream)2)
#define OWN(stream) ((stream) ? (stream) : PER_THREAD)
#define LIKELY(x) __builtin_expect(!!(x), 1)

/* The files below stand in layers, the lowest first, in the order of SOURCES in the Makefile: each uses only those
 * before it. */

/* linker.c */
typedef void *(*dlsym_t)(void *, const char *);
typedef void *(*dlvsym_t)(void *, const char *, const char *);
void *libc_function(const char *name);     /* the C library's own function, even if it is overridden */
dlsym_t real_dlsym(void);
dlvsym_t real_dlvsym(void);

/* control_block_files.c: the files of the control block, before the process is attached to it. */
const char *kerf_directory(void);
/* Maps a file; NULL: it is missing, too short or of another version. `keep`: where its descriptor goes, or NULL. */
void *control_block_map(const char *name, size_t size, uint32_t magic, int writable, int *keep);
/* Copies the driver's path (KERF_PATH_BYTES). 0: no orders, or no path in them. */
int control_block_driver_path(char *to);

/* real_driver.c */
extern pthread_mutex_t finding_guard;
int is_finding(void);                      /* whether this thread is loading the driver and holds finding_guard */
void *real_symbol(const char *exact);      /* a symbol of libcuda.so.1; NULL if it has none */
/* the real driver's handle in place of this library's own; any other handle as it is */
void *real_driver_behind(void *handle);
/* The driver's function of that name and type. The lookup happens once. */
#define REAL(type, name)                                                                \
    ({                                                                                  \
        static void *found_;                                                            \
        void *now_ = __atomic_load_n(&found_, __ATOMIC_RELAXED);                        \
        if (!now_) now_ = real_symbol(name), __atomic_store_n(&found_, now_, __ATOMIC_RELAXED); \
        (type)now_;                                                                     \
    })

/* clock.c: the only functions that read the clock. */
uint64_t now_ns(void);
void sleep_until(uint64_t ns);
void lock_by_clock(pthread_mutex_t *lock);
/* Sets a flag that is 0, within a time. 0: another thread has had it all the time. No lock of the C library is taken:
 * the functions that try one or wait for one for a time are not in all versions of it. */
int take_within(int *flag, uint64_t ns);
void give(int *flag);

/* allocation_table.c: the allocations of this process, by handle. */
extern pthread_mutex_t table_guard;
enum kind { POINTER = 1, PHYSICAL, MAPPING, ARRAY, IMPORT, EXECUTABLE, GREEN, EXTERNAL, BOUND };
typedef struct { uint64_t key, bytes, context; int32_t gpu, references; uint32_t kind; } entry_t;
void table_put(enum kind kind, uint64_t key, int gpu, uint64_t bytes, uint64_t context, int references);
int table_remove(enum kind kind, uint64_t key, entry_t *taken); /* 0: not found */
/* Changes the reference count by `by`, and removes the entry at 0. Returns 0 if there is no such entry. */
int table_add_reference(enum kind kind, uint64_t key, int by, entry_t *entry);
void table_restore_reference(const entry_t *ended); /* undoes the end of a reference, by what was returned then */
int table_find(enum kind kind, uint64_t key, entry_t *found);
int table_remove_any(int (*wanted)(const entry_t *, const void *), const void *what, entry_t *taken);
/* Adds the removed bytes to `bytes_by_gpu`, which has KERF_MAX_GPUS elements. */
void table_remove_all(int (*wanted)(const entry_t *, const void *), const void *what, uint64_t *bytes_by_gpu);
void table_move_context(uint64_t from, uint64_t to); /* its allocations belong to the other context from now on */
void table_clear(void);

/* estimates.c: learns how long a function runs on the GPU. */
uint64_t estimate(uint64_t key);            /* ns; 0: unknown */
int is_unmeasured(uint64_t key);
void learn(const uint64_t *keys, int count, uint64_t estimated_ns, uint64_t used_ns);

/* control_block.c: the control block, once attach.c has mapped it, and this process's slot in it. */
extern const struct kerf_orders *orders;   /* NULL until attached */
extern struct kerf_counters *counters;
extern struct kerf_signal *signals;        /* NULL: there is no signal file */
extern int slot;
struct kerf_process *self(void);
int process_alive(int index);              /* whether the slot's lock is held; this process's own slot counts as held */
const struct kerf_signal *peer_signal(unsigned peer); /* NULL where it cannot be read */
/* Remembers the counters file, which process_alive queries. 0: it cannot be identified. */
int control_block_identify(int file);
int control_block_take_slot(int file);     /* the slot's index; -1: none is free */

/* device.c: the index in the orders of the GPU of a device, context or stream; -1: a GPU that the container does not
 * have. */
int gpu_of_device(CUdevice device);
int current_gpu(void);
CUdevice device_of_stream(CUstream stream);
/* 0: it is current already, or gone. Otherwise call context_leave afterwards */
int context_enter(CUcontext context);
int stream_enter(CUstream stream);         /* the same for the stream's context */
void context_leave(void);
uint64_t current_context(void);
int gpu_of_uuid(const unsigned char *uuid);
int hides_others(void);                    /* whether the container sees its own GPUs alone, of those that it could open */
int is_hidden(CUdevice device);
void devices_follow(void);                 /* its GPUs may have become others */

/* away.c: what waits while the container's memory is on the host. */
int agent_is_alive(uint64_t now_ns);       /* whether its last heartbeat is fresh: pauses hold as long as it is */
int is_away(int gpu);
void wait_while_away(void);                /* while the agent is alive */
int asks_while_away(void);                 /* 1: after a moment, the memory is still away */
/* How long a call that the agent holds waits before it looks again: a hundredth of what it has waited already, so that
 * a program that is suspended for hours costs next to nothing, and continues at once after a short pause. */
uint64_t held_poll_ns(uint64_t waited_ns);
static inline int may_be_away(void) { return orders && __atomic_load_n(&orders->paused, __ATOMIC_RELAXED); }
/* Before a call of the driver that needs the memory, or waits for the GPU; in an attached process. */
static inline void while_away(void) {
    if (!LIKELY(!may_be_away())) wait_while_away();
}

/* account.c: the container's memory. Bytes are reserved before the driver is asked for them. */
extern pthread_mutex_t account_guard;
int try_reserve(int gpu, uint64_t bytes);  /* 0: beyond the limit as things are; the refusal is not counted */
void overdraw(int gpu, uint64_t bytes);    /* charges memory that is already taken, even beyond the limit */
void release(int gpu, uint64_t bytes);
void reclaim(void);                        /* frees the charges of dead processes */
uint64_t charged(int gpu);
uint64_t held(int gpu);                    /* charged, and the agent's surcharge for what is on the device uncounted */
uint64_t granule_bytes(void);              /* the driver takes memory for large allocations in multiples of it */
uint64_t up_to(uint64_t bytes, uint64_t unit); /* the next multiple, at most KERF_ACCOUNT_BYTES */
uint64_t charge_of(uint64_t bytes);        /* the bytes that an allocation is charged */

/* graph_memory.c: the memory of graphs, and its charge. */
extern pthread_mutex_t graphs_guard;
/* The executable graphs may take so much more, which is reserved; or less. */
void graph_memory_promised(int gpu, CUdevice device, uint64_t bytes);
void graph_memory_withdrawn(int gpu, uint64_t bytes);
void graph_memory_abandoned(int gpu, uint64_t bytes); /* the same: the context of executable graphs has ended */
int graph_memory_settle(void);             /* sets the charges; 1: launches may still take memory */
void graph_memory_trim(int gpu);           /* returns what the driver keeps for graphs to the GPU */
void graph_memory_forget(void);

/* pool_accounting.c: the memory that memory pools reserve, and its charge. */
extern pthread_mutex_t pools_guard;
/* Reserves memory for any allocation. 0: beyond the limit, even after the memory of dead processes and what pools do
 * not use are freed. */
int reserve(int gpu, uint64_t bytes);
extern int pools_pending;                  /* a pool may have returned memory */
void pools_update(void);                   /* sets the charges to the pools' reserved memory */
/* The same after a call that waits for the GPU, or only asks it, except while another thread holds the guard, which it
 * does during the driver's calls; after a question at most once per millisecond. What is skipped is done later. */
enum after { AFTER_WAIT, AFTER_QUERY };
void pools_settle_after(enum after call);
static inline void pools_after(enum after call) {
    if (!LIKELY(!__atomic_load_n(&pools_pending, __ATOMIC_RELAXED))) pools_settle_after(call);
}
int pool_register(CUpool pool, int gpu);
int pool_gpu(CUpool pool, int otherwise);
/* before an allocation; -1: no room. Otherwise call pool_end afterwards */
int pool_begin(CUpool pool, int gpu, uint64_t bytes);
int pool_end(int place, uint64_t bytes, CUresult result);
CUresult pool_destroy(CUpool pool);
void pools_forget(void);

/* context_accounting.c: the memory of this process's contexts. */
enum { MAX_CONTEXTS = 64 };
extern pthread_mutex_t contexts_guard;
/* Charges a context. `paid`: the charge, 0 for a primary context that exists. Returns 0 if there is no memory for it,
 * or too many contexts: one that is not known could not be timed. */
int context_reserve(int gpu, int primary, uint64_t *paid);
int context_record(CUcontext context, int gpu, int primary, uint64_t paid); /* 0: it is known already */
/* The primary context that ends if it is released now; `always`: or reset. */
CUcontext context_primary(int gpu, int always);
void context_released(int gpu, int always); /* the primary context was released; `always`: or reset */
void context_destroyed(CUcontext context);
/* Charges a context of a GPU for a setting (cuCtxSetLimit). Returns 0 if there is no room. `now`: the current value of the
 * setting; `value`: the new one; `each`: bytes per unit. `more`: the additional charge. */
int context_charge(uint64_t context, int gpu, int setting, uint64_t now, uint64_t value, uint64_t each, uint64_t *more);
void context_refund(uint64_t context, int gpu, int setting, uint64_t more);
void contexts_forget(void);

/* gate.c: decides when a launch may begin, from the control block alone; no driver, no clock. */
enum verdict {
    GO,
    WAIT_TIME,    /* for tokens, for its window, or for peers to be idle */
    WAIT_WORK,    /* for this process's work in flight */
    WAIT_OTHERS,  /* for the work of the container's other processes */
    HELD_BY_AGENT /* paused, or the gate is closed */
};
typedef struct {
    uint64_t now_ns, due_ns;     /* due_ns: when the submitted work will be done, by estimate */
    uint64_t estimate_ns;        /* duration of the launch; 0: never seen */
    uint64_t others_ns;          /* work in flight of the container's other processes */
    uint64_t peers_busy_until_ns, peers_due_ns; /* end of the peers' work by their signals, with and without a margin */
    uint64_t peers_long_until_ns; /* until then a peer's launches count as long; 0: no peer's */
    uint64_t peers_owed_since_ns; /* the earliest of the peers that wait for their turn; UINT64_MAX: none waits */
    uint64_t peers_request_ns;   /* length of the shortest of the peers' requests; 0: unknown */
    uint64_t quiet_until_ns;     /* no peer is expected to begin work before this time */
    uint64_t away_from_ns;       /* after this time the peers count as idle for long */
} moment_t;
int is_limited(int gpu);         /* whether GPU time is charged against a share */
/* Whether the orders require that launches pass the gate and are timed: never, always, or while the agent is gone. */
enum timing { NEVER_TIMED, ALWAYS_TIMED, TIMED_WITHOUT_AGENT };
enum timing must_time(void);
void note_peers_turns(int gpu, uint64_t until_ns); /* until when the peers' launches are long */
/* Whether the verdict at this moment depends on the peers' signals. */
int watches_peers(int gpu, const moment_t *m);
enum verdict gate(int gpu, const moment_t *m, uint64_t *until_ns);
int one_at_a_time(int gpu);      /* whether a launch waits until those before it are done */
int gate_may_follow(int gpu);    /* whether a launch may begin because a kernel on another GPU waits for it */
int gate_lends(int gpu);         /* whether the last verdict was GO in time that is lent */
void gate_spend(int gpu, uint64_t estimate_ns, uint64_t now_ns, int lent);
void gate_charge(int gpu, uint64_t ns, int lent); /* GPU time beyond what was measured */
/* Replaces the estimate by what was measured; overlapping work counts once. */
uint64_t gate_settle(int gpu, uint64_t estimate_ns, uint64_t begin_ns, uint64_t end_ns, int lent); /* what it charges */
void gate_correct(int gpu, uint64_t estimate_ns, uint64_t used_ns); /* an estimate that was charged, by what was used */

/* idle_prediction.c: when work comes, in this container and at its peers. */
void work_begins(int gpu, uint64_t now);          /* at a launch when nothing is in flight */
void work_ended(int gpu, uint64_t end_ns);
uint64_t others_in_flight(int gpu, uint64_t now); /* work of the container's other processes */
void read_peer_signals(int gpu, moment_t *m);

/* timing.c: the wait at the gate, and events around batches of launches (timelines.c). */
enum { UNTIMED = -1, NO_TIMELINE = -2 };
/* a context's unfinished work; pending_ns 0: none */
typedef struct { int gpu; uint64_t pending_ns, since_ns; int lent; } unfinished_t;
/* How long a GPU is idle when it changes to another process's context: two programs that time-slicing changed every
 * 2 ms lost 9 % on an H100. */
enum { SWITCH_NS = 200000 };
/* Waits at the gate and opens a batch. Returns UNTIMED, NO_TIMELINE, or the token for launch_end. */
int launch_begin(CUstream stream, uint64_t key);
void timing_overlaps(void); /* this thread's next launch may begin before the end of the one before it */
void launch_end(int token, int failed, CUstream stream);
/* Before other work of the stream: the next launch is not in the batch of the last one. */
void timing_flush_stream(CUstream stream);
/* Before an event of the program, which is no work: the next batch may begin with the end of the last one. */
void timing_before_event(CUstream stream);
void timing_stream_ends(CUstream stream);   /* before it is destroyed */
void timing_waits(void);                   /* before the program waits for work */
void timing_harvest(void);                 /* accounts finished work */
void timing_forget(void);                  /* called in a child: the driver's objects belong to the parent */
unfinished_t timing_context_ending(CUcontext context); /* before the context is destroyed */
void timing_context_ended(unfinished_t left);          /* afterwards: all its work has ended */

/* attach.c */
/* attaches if necessary; 0: no control block, so every driver call is refused */
int attached(void);
/* The same, and waits while the container's memory is away. A hook asks before it takes a lock: a fork takes all locks,
 * and programs fork while their memory is on the host. */
static inline int present(void) {
    if (!attached()) return 0;
    while_away();
    return 1;
}

/* The body of a function that frees, or drops one of several references. The entry ends before the call: another thread
 * may get the same address or handle as soon as the driver is done. Where the driver refuses, it is put back. */
#define END_REFERENCE(kind, handle, call)                                                           \
    do {                                                                                            \
        entry_t entry_;                                                                             \
        CUresult result_;                                                                           \
        int known_;                                                                                 \
        if (!present()) return REFUSED;                                                             \
        known_ = table_add_reference(kind, (uint64_t)(uintptr_t)(handle), -1, &entry_);             \
        result_ = (call);                                                                           \
        if (known_ && result_) table_restore_reference(&entry_);                                    \
        else if (known_ && entry_.references <= 0) release(entry_.gpu, entry_.bytes);               \
        return result_;                                                                             \
    } while (0)
/* For hooks that go on to the driver without a control block, too. */
static inline void await_memory(void) {
    if (!LIKELY(!may_be_away()) && attached()) wait_while_away();
}
/* Before a call that asks whether work is complete. 1: nobody can tell yet. */
static inline int cannot_ask(void) {
    return !LIKELY(!may_be_away()) && attached() && asks_while_away();
}
#endif
