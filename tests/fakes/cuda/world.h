/* A libcuda.so.1 without a GPU, for tests: several processes share its devices and one virtual clock, in a file.
 *
 *   KERF_FAKE_CUDA            the file; the first process creates it. Unset: a private world of this process
 *   KERF_FAKE_CUDA_DEVICES    number of devices, 1, at most 8; CUDA_VISIBLE_DEVICES hides the others, by index or UUID
 *   KERF_FAKE_CUDA_MIB        memory of each device in MiB, 16384
 *   KERF_FAKE_CUDA_CONTEXT_MIB  memory of a context in MiB, 0
 *   KERF_FAKE_CUDA_POOL_KIB   chunk size of memory pools, 2048
 *   KERF_FAKE_CUDA_SLICE_US   the driver's time slice between processes that have work, 2000
 *   KERF_FAKE_CUDA_LAUNCH_NS  CPU time of a launch, 2000
 *   KERF_FAKE_CUDA_EVENT_NS   how long the record of an event keeps its stream from the next kernel, 0
 *   KERF_FAKE_CUDA_SWITCH_NS  how long a device is idle when it changes to another process's context, 0
 *   KERF_FAKE_CUDA_LATE_NS    how late a thread wakes that slept for a time, 0
 *   KERF_FAKE_CUDA_COPY_MIB   speed of a checkpoint in MiB per second; 0: it takes no time
 *   KERF_FAKE_CUDA_BACK_MIB   speed of a restore; without it that of a checkpoint
 *   KERF_FAKE_CUDA_CHECKPOINT_US  what each checkpoint and each restore of a process takes beside its copy, 0
 *   KERF_FAKE_CUDA_VERSION    of the driver, 13000; below that a restore takes no map of GPUs
 *   KERF_FAKE_CUDA_MODELS     a letter for each GPU, AAAAAAAA: a restore moves memory among those of the same letter alone
 *   KERF_FAKE_CUDA_HOST_MB_S   speed of copies to and from each device in MB/s, as 25000:24000,12000:11000; 0: they take no time
 *   KERF_FAKE_CUDA_JIT        1: modules load only while libnvidia-ptxjitcompiler.so.1 can be opened
 *   KERF_FAKE_CUDA_LAZY       1: a function's first launch loads its code, and waits for the device's work before
 *   KERF_FAKE_CUDA_CONTAINER  the process's container, 0 to 31: the memory of each is known, with its maximum
 *   KERF_FAKE_CUDA_SMS        multiprocessors of each device, 1; a client of MPS sees its percentage of them
 *   KERF_FAKE_CUDA_PAGEABLE   set: kernels could read the memory of processes (attribute 88), as on some machines
 *   KERF_FAKE_LIMITS          the memory limits of cgroups that the fake NVML keeps there; unset: there are none
 *   KERF_FAKE_LIMITS_MANAGED  1: they bound managed memory, too; by default it passes them, as NVIDIA's pages say
 *   KERF_FAKE_CUDA_CLIENTS    number of clients (below) that must exist before the clock starts, 0
 *   KERF_FAKE_CUDA_CLIENT     this process's index among them: the lower runs first if several could
 *
 * The clock. A thread that launches, waits or queries whether work is done is a client. One client runs at a time,
 * and only its calls take time. When it waits (for a time, or for work), the next client whose wait is over runs; if
 * there is none, the clock jumps to the next end of work or of a wait. So the figures do not depend on the number of
 * cores or their load. A client that waits for anything else (a pipe, another process) must leave first:
 * kerf_virtual_leave().
 *
 * The device. Each process has one queue per device, whose work runs in order of submission; processes with work are
 * time-sliced, as the driver does between contexts. Work declares its GPU time: a function named "ns_250000" takes
 * 250000 ns, the function "work" takes the time in its first parameter, a uint64_t. "awaits_3" runs until the
 * process has launched three more kernels on any stream (it spins on a word that they, or the program after them,
 * set), or ends after an hour. "mix" takes the time in its first parameter too, and computes: the first word of the
 * memory at its second parameter becomes MIX * word + its third parameter. "meet" has the same parameters and is part of
 * a collective: it counts at the address, and ends its time after the count has reached the third parameter.
 * "rally" is part of a collective of several processes: its second parameter is the number of a place that all of them
 * share.
 *
 * Memory has one word of data, its first, at the address that an allocation or a mapping returned.
 *
 * A locked process begins no work, and neither allocates nor frees memory. Calls wait that launch work, that make,
 * change or end what is on the GPU, or that wait for it (README of NVIDIA/cuda-checkpoint: calls that "launch work,
 * manage resources, or otherwise impact GPU state"). The memory of a checkpointed process is free for others; a restore fails if the memory is not available. Shared memory cannot be checkpointed. A restore with
 * a map of GPUs moves the process's devices: each keeps its number and its memory, and is another GPU from then on.
 *
 * A client of MPS (mps.c) has its server's limits. The function "fault" is a fatal fault: its process's, and under MPS
 * that of all clients of its server. What the percentage does to the time of work, and that clients run at once, is
 * not imitated: they are time-sliced like others.
 *
 * Allocations of 2 MiB and more use multiples of 2 MiB, smaller ones multiples of 512 bytes. The memory and the work
 * of a killed process disappear with it. */
#ifndef KERF_FAKE_WORLD_H
#define KERF_FAKE_WORLD_H
#include "../../../native/interposer/driver.h"
#include <pthread.h>
#include <stdint.h>

/* Functions beside the driver's interface, for tests; the interposer uses the clock's functions if the driver has
 * them. */
uint64_t kerf_virtual_now(void);                /* ns; never 0 */
void kerf_virtual_sleep_until(uint64_t ns);     /* the calling thread becomes a client */
void kerf_virtual_leave(void);
void kerf_virtual_expect(int clients);          /* the clock stands still until so many clients exist */
uint64_t kerf_fake_gpu_ns(int device, int pid); /* GPU time that a process (0: this one) has really used */
uint64_t kerf_fake_used_bytes(int device);      /* used memory of the device, of all processes */
/* of this process's container, now and at most so far, also of memory that it shares */
uint64_t kerf_fake_container_bytes(int device), kerf_fake_container_peak_bytes(int device);
uint64_t kerf_fake_calls(const char *name);     /* how often this process has called a per-thread-stream variant, a
    * query of an attribute of the memory of graphs (cuDeviceGetGraphMemAttribute), or
    * "overlap lost": launched a kernel that may overlap the previous one right after the record of an event */
void kerf_fake_at_take(void (*function)(void));  /* called within each allocation from a pool */
/* from now on every event and launch of this process fails, as after a fault */
void kerf_fake_break(void);
/* The next call that is no launch and puts work into a stream (a copy, a memset, a host function, a wait) takes that
 * long. It is not counted as GPU time. */
void kerf_fake_next_takes(uint64_t ns);
void kerf_fake_at_launch(void (*function)(void)); /* called within each launch of the calling thread, as profilers do */

enum { DEVICES = 8, PROCESSES = 128, CLIENTS = 256, DEPTH = 1024, EVENTS = 8192, SHARES = 256, MEETINGS = 16,
    RALLIES = 64, CONTAINERS = 32 };
#define MIX UINT64_C(6364136223846793005)
enum waits { NOTHING = 0, TIME, WORK, ROOM, UNLOCKED, DRAINED };
#define NEVER UINT64_MAX

/* awaits: launches of its process; 0: none */
/* other: no kernel, its time is not counted */
/* place: 1 + the meeting's index, or 1 + MEETINGS + that of a place that processes share; meets: the count that it
 * waits for */
typedef struct { uint64_t left_ns, awaits, meets; int32_t event; uint32_t recording; int other, place, came; } item_t;
typedef struct { uint64_t submitted, completed, launched, gpu_ns; item_t item[DEPTH]; } queue_t;
typedef struct { uint64_t done_ns; uint32_t recording, used; } event_t; /* done_ns 0: not done */
typedef struct {
    int used, pid, locked; /* locked: CUprocessState, 2 is checkpointed */
    /* which GPU each of its devices is, and which of its devices each GPU is: a restore may move them. All that a
     * process has is by its own devices. */
    int gpu[DEVICES], device_on[DEVICES];
    int restricted;                         /* CUDA_VISIBLE_DEVICES was set at cuInit */
    uint64_t bytes[DEVICES], host[DEVICES]; /* host: bytes that a checkpoint has moved to the host */
    uint64_t unlimited[DEVICES];            /* of its bytes: those that no limit of a cgroup bounds */
    queue_t queue[DEVICES];
    event_t event[EVENTS];
    int container;
    struct { uint64_t address, count; } meeting[MEETINGS];
} process_t;
typedef struct { int used, process, device; uint32_t word, kind; uint64_t until_ns, seq; } client_t;
/* holder: reference count of each process */
typedef struct { uint64_t bytes, word; int device; uint32_t holder[PROCESSES]; } share_t;
/* resident: the process whose context the device has, + 1; it is the last that ran */
typedef struct { uint64_t at_ns, slice_used_ns, switch_left_ns; int running, resident; } device_t;
typedef struct {
    uint32_t ready;
    int devices, expected;
    uint64_t memory_bytes, context_bytes, pool_chunk_bytes, out_per_s, back_per_s, checkpoint_ns, slice_ns, launch_ns, event_ns, switch_ns, late_ns, now_ns;
    char model[DEVICES];
    int version;
    uint64_t host_bytes_per_s[DEVICES][2]; /* of copies to the device and from it; 0: they take no time */
    pthread_mutex_t lock;
    int baton; /* the client that runs; -1: none */
    device_t device[DEVICES];
    client_t client[CLIENTS];
    share_t share[SHARES];
    uint64_t peak[CONTAINERS][DEVICES];
    uint64_t meetings; /* all that have ever begun */
    uint64_t rally[RALLIES];
    process_t process[PROCESSES];
} world_t;

world_t *world(void);     /* the shared world, mapped at the first call; exits the program on failure */
int me(void);             /* this process's index in it */
void lock(void);
void unlock(void);
int alive(int process);
void bury(void);          /* frees the memory of dead processes; the caller holds the lock */

/* All of these make the caller a client. */
void enter(void);
void while_locked(void); /* waits as long as this process is locked */
void wait_for(enum waits kind, int device, uint64_t seq, uint64_t until_ns); /* DRAINED: seq is the process */
/* returns the work's index in its queue. awaits: number of launches after it */
uint64_t submit(int device, uint64_t ns, int event, uint64_t awaits);
void submit_meeting(int device, uint64_t ns, uint64_t address, uint64_t count);
void submit_rally(int device, uint64_t ns, uint64_t number, uint64_t count);
void submit_other(int device, uint64_t ns);
extern _Thread_local uint64_t last_of_thread; /* the index of the last launch of this thread */
void spend(uint64_t ns);
void settle(int gpu);     /* finishes work that takes no time; the caller holds the lock */

/* Of the calling thread. */
typedef struct graph graph_t;
typedef struct { int device, primary; uint64_t limit[LIMIT_HEAP + 1], taken; } context_t; /* taken: by settings */
typedef struct stream {
    context_t *context;
    graph_t *capture;
    struct stream *joined; /* the one whose capture this one has joined by an event, */
    graph_t *joined_for;   /* and which capture that was */
    int after_event;       /* the last that was submitted to it is the record of an event */
    int gone;              /* a program that still uses it is ended: a real driver may crash */
} stream_t;
typedef struct { int type; alloc_node_t memory; graph_t *child; } node_t;
typedef struct { uint64_t to, value; } mix_t;
struct graph { uint64_t ns; size_t count, mixes; node_t **nodes; mix_t *mix; };
void graph_mixes(graph_t *graph, uint64_t to, uint64_t value);
node_t *graph_add(graph_t *graph, node_t node);
typedef struct { uint64_t ns, awaits; int declared, mixes, meets, rallies, loaded, faults; } function_t;
context_t *current(void);
int ready(void);                             /* CUDA_SUCCESS after cuInit, in the process that called it */
stream_t *stream_of(CUstream stream);        /* NULL, 1 and 2 are the context's default streams */
CUresult take(int device, uint64_t bytes);   /* physical memory */
void give(int device, uint64_t bytes);
int limit_allows(int device, uint64_t bytes); /* the limit of this process's cgroup; the caller holds the lock */
int limits_managed(void);
CUresult mps_join(void);
CUresult mps_failed(void);
void mps_fault(void);
int mps_devices(int devices[DEVICES]);        /* how many the server has; -1: this process is no client */
uint64_t mps_limit(int device);              /* bytes that this process may have; NEVER: any */
int mps_processors(int all);
uint64_t rounded(uint64_t bytes);
int gpu_of(int device);                      /* the GPU that a device of this process is */
uint64_t used(int gpu);                      /* the caller holds the lock */
uint64_t *word_at(CUdeviceptr pointer);      /* NULL: no memory of this driver */
CUdeviceptr memory_of_graph(int device);
void note_peak(int device);                  /* the caller holds the lock */
CUresult pool_take(void *pool, uint64_t bytes);
void pool_give(void *pool, uint64_t bytes, int in_order); /* in_order: in stream order */
void pools_waited_for(void);
CUresult allocate_from(CUdeviceptr *to, uint64_t bytes, int device, CUpool pool);
CUresult allocate(CUdeviceptr *to, uint64_t bytes, int device);
void count_call(const char *name);
#endif
