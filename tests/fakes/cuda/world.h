/* A libcuda.so.1 without a GPU, for tests: several processes share its devices and one virtual clock, in a file.
 *
 *   KERF_FAKE_CUDA            the file; made by whoever comes first. Unset: a world of this process alone
 *   KERF_FAKE_CUDA_DEVICES    1
 *   KERF_FAKE_CUDA_MIB        memory of each, 16384
 *   KERF_FAKE_CUDA_CONTEXT_MIB  what each context takes on its device, 0
 *   KERF_FAKE_CUDA_POOL_KIB   what a memory pool takes at once, 2048
 *   KERF_FAKE_CUDA_SLICE_US   the driver's time slice between processes that both have work, 2000
 *   KERF_FAKE_CUDA_LAUNCH_NS  what a launch costs the CPU, 2000
 *   KERF_FAKE_CUDA_COPY_MIB   MiB in a second that a checkpoint or a restore moves, 0: it takes no time
 *   KERF_FAKE_CUDA_CLIENTS    so many clients (below) must have come before the clock starts, 0
 *   KERF_FAKE_CUDA_CLIENT     this process's place among them: who goes first where several could
 *
 * The clock. A thread that launches, waits or asks whether work is done is a client. One client runs at a time, and while it
 * runs no time passes but what its calls cost. When it waits (for a time, or for work), the next runs whose wait is over; when
 * nobody's is, the clock jumps to the next moment at which something ends. So figures come out the same on any number of busy
 * cores. A client that waits for anything else (a pipe, another process) must leave first: kerf_virtual_leave().
 *
 * The device. Each process has one queue per device, whose work runs in order of submission; processes that have work take
 * turns by time slices, as the driver does between contexts. Work is launched with its GPU time declared: a function named
 * "ns_250000" takes that, the function "work" takes what its first parameter, a uint64_t, says. "awaits_3" runs until the process
 * has launched three more, wherever (it spins on a word that they, or the program after them, set), or gives up after an hour.
 *
 * A locked process begins nothing, and takes and gives no memory. Checkpointed, its memory is free for others; a restore fails
 * where it is not there. Memory that is shared cannot be checkpointed.
 *
 * Memory of 2 MiB and more is taken in multiples of 2 MiB, less in multiples of 512. A killed process's memory and work go
 * with it. */
#ifndef KERF_FAKE_WORLD_H
#define KERF_FAKE_WORLD_H
#include "../../../services/node_agent/interposer/driver.h"
#include <pthread.h>
#include <stdint.h>

/* What tests, and the interposer where the driver has it, may call beside the driver's interface. */
uint64_t kerf_virtual_now(void);                /* ns; never 0 */
void kerf_virtual_sleep_until(uint64_t ns);     /* the calling thread becomes a client */
void kerf_virtual_leave(void);
uint64_t kerf_fake_gpu_ns(int device, int pid); /* GPU time that a process (0: this one) has really had */
uint64_t kerf_fake_used_bytes(int device);      /* memory that is taken on the device, by anyone */
uint64_t kerf_fake_calls(const char *name);     /* how often this process has called a per-thread-stream variant */
void kerf_fake_at_take(void (*function)(void));  /* the same within each allocation from a pool */
void kerf_fake_break(void);                      /* from now on every event and launch of this process fails, as after a fault */
void kerf_fake_at_launch(void (*function)(void)); /* called within each launch of the thread that said so, as profilers are */

enum { DEVICES = 4, PROCESSES = 128, CLIENTS = 256, DEPTH = 1024, EVENTS = 8192, SHARES = 256 };
enum waits { NOTHING = 0, TIME, WORK, ROOM, UNLOCKED, DRAINED };
#define NEVER UINT64_MAX

typedef struct { uint64_t left_ns, awaits; int32_t event; uint32_t recording; } item_t; /* awaits: launches of its process; 0: none */
typedef struct { uint64_t submitted, completed, launched, gpu_ns; item_t item[DEPTH]; } queue_t;
typedef struct { uint64_t done_ns; uint32_t recording, used; } event_t; /* done_ns 0: not yet */
typedef struct {
    int used, pid, locked; /* locked: CUprocessState, 2 is checkpointed */
    uint64_t bytes[DEVICES], host[DEVICES]; /* host: what a checkpoint has moved there */
    queue_t queue[DEVICES];
    event_t event[EVENTS];
} process_t;
typedef struct { int used, process, device; uint32_t word, kind; uint64_t until_ns, seq; } client_t;
typedef struct { uint64_t bytes; int device; uint32_t holder[PROCESSES]; } share_t; /* how often each process holds it */
typedef struct { uint64_t at_ns, slice_used_ns; int running; } device_t;
typedef struct {
    uint32_t ready;
    int devices, expected;
    uint64_t memory_bytes, context_bytes, pool_chunk_bytes, copied_per_s, slice_ns, launch_ns, now_ns;
    pthread_mutex_t lock;
    int baton; /* the client that runs; -1: nobody */
    device_t device[DEVICES];
    client_t client[CLIENTS];
    share_t share[SHARES];
    process_t process[PROCESSES];
} world_t;

world_t *world(void);     /* the shared one, mapped at the first call; ends the program where it cannot be */
int me(void);             /* this process's place in it */
void lock(void);
void unlock(void);
int alive(int process);
void bury(void);          /* what dead processes held is free again; under the lock */

/* All of these make the caller a client. */
void enter(void);
void wait_for(enum waits kind, int device, uint64_t seq, uint64_t until_ns); /* DRAINED: seq is the process */
uint64_t submit(int device, uint64_t ns, int event, uint64_t awaits); /* the place of the work in its queue. awaits: so many launches after it */
extern _Thread_local uint64_t last_of_thread; /* the place of the last launch of this thread */
void spend(uint64_t ns);
void settle(int device);  /* what takes no time is done now; under the lock */

/* Of the calling thread. */
typedef struct graph graph_t;
typedef struct { int device, primary; uint64_t limit[LIMIT_HEAP + 1], taken; } context_t; /* taken: by settings */
typedef struct stream {
    context_t *context;
    graph_t *capture;
    struct stream *joined; /* the one whose capture this one has joined by an event, */
    graph_t *joined_for;   /* and which capture that was */
    int gone;              /* who uses it any more is ended: a real driver would crash, or not */
} stream_t;
struct graph { uint64_t ns, bytes; graph_t *source; int device; CUdeviceptr memory; };
typedef struct { uint64_t ns, awaits; int declared; } function_t;
context_t *current(void);
int ready(void);                             /* CUDA_SUCCESS after cuInit, in the process that called it */
stream_t *stream_of(CUstream stream);        /* NULL, 1 and 2 are the context's default streams */
CUresult take(int device, uint64_t bytes);   /* physical memory */
void give(int device, uint64_t bytes);
uint64_t rounded(uint64_t bytes);
uint64_t used(int device);                   /* under the lock */
CUresult pool_take(void *pool, uint64_t bytes);
void pool_give(void *pool, uint64_t bytes, int in_order); /* in_order: at its place in a stream */
void pools_waited_for(void);
CUresult allocate_from(CUdeviceptr *to, uint64_t bytes, int device, CUpool pool);
CUresult allocate(CUdeviceptr *to, uint64_t bytes, int device);
void count_call(const char *name);
#endif
