/* What the node agent and the interposer tell each other: three files per container, mapped as shared memory.
 *
 *   /run/kerf/orders     struct kerf_orders    written by the agent only; mounted read-only, so no container raises its own limit
 *   /run/kerf/counters   struct kerf_counters  written by the container's processes; the agent reads
 *   /run/kerf/signal     struct kerf_signal    written by the container's processes; others may see it, and nothing else of it
 *   /run/kerf/peers/     the signal files of the GPUs' other containers, read-only; for the low tier
 *
 * The agent makes each file of its full size, zeroed, with magic, version and size set last, before the container starts,
 * and never truncates it. A file that is missing, short or of another version: the interposer refuses every CUDA call
 * (CUDA_ERROR_SYSTEM_NOT_READY): closed, never open.
 *
 * All fields are little-endian, naturally aligned, without padding by the compiler; 64-bit ones are read and written as one.
 * Times are nanoseconds of CLOCK_MONOTONIC, which is one for the whole node (on the fake driver: of its virtual clock).
 *
 * The counters are writable by whoever they count: they can lie. What they say is compared with what NVML sees; the
 * limits themselves cannot be written from inside.
 *
 * A dead or frozen agent locks nobody: `paused` and `gate` hold only while its heartbeat is fresh. Limits, rates and
 * windows are data, not commands: they go on as they were last set.
 */
#ifndef KERF_CONTROL_BLOCK_H
#define KERF_CONTROL_BLOCK_H
#include <stdint.h>

#define KERF_ORDERS_MAGIC 0x4f46524bu   /* "KRFO" */
#define KERF_COUNTERS_MAGIC 0x4346524bu /* "KRFC" */
#define KERF_SIGNAL_MAGIC 0x5346524bu   /* "KRFS" */
enum { KERF_VERSION = 1, KERF_MAX_GPUS = 16, KERF_MAX_PROCESSES = 256, KERF_MAX_PEERS = 32, KERF_NAME_BYTES = 64, KERF_PATH_BYTES = 256 };
enum { KERF_TIER_HIGH = 0, KERF_TIER_NORMAL = 1, KERF_TIER_LOW = 2 };
enum { KERF_GATE_OPEN = 0, KERF_GATE_CLOSED = 1 };
#define KERF_NO_LIMIT UINT64_MAX

/* 128 bytes. What the container may do on one GPU. */
struct kerf_gpu_orders {
    uint8_t uuid[16];            /* as cuDeviceGetUuid gives it (the hex digits of NVML's GPU-... or MIG-...). GPUs not listed: no memory */
    uint64_t memory_limit_bytes; /* of all the container's processes together; KERF_NO_LIMIT: none, and the view is the device's own */
    uint64_t context_bytes;      /* charged for each context on this GPU, beside what is allocated */
    uint32_t compute_milli;      /* share of the GPU's time, 1 to 1000; 0 or 1000: not limited, and launches are not timed */
    uint32_t in_flight_us;       /* GPU time that may be submitted and not finished; 0: not bounded (with a limit or in the low tier: 4000) */
    uint32_t gate;               /* KERF_GATE_CLOSED: launches wait, while the heartbeat is fresh */
    uint32_t reserved0;
    /* The timetable: launches begin only in [start, start + length) of every period, so that slices do not run into each other.
     * period_ns 0: at any time. All slices of one GPU have the same period; compute_milli counts beside it, by tokens. */
    uint64_t period_ns;
    uint64_t window_start_ns; /* from the period's beginning; periods begin at multiples of period_ns on the clock */
    uint64_t window_ns;       /* may be period_ns: always open */
    uint64_t reserved[7];
};

/* 4096 bytes of head and peers, then the GPUs. */
struct kerf_orders {
    uint32_t magic, version, size_bytes, gpu_count;
    uint64_t generation;     /* moved by the agent after each change of what stands below, heartbeat excepted: else it goes unseen */
    uint64_t heartbeat_ns;   /* the agent's last sign of life */
    uint64_t stale_after_ns; /* older than this: `paused` and `gate` count as off. 0: 2 seconds */
    uint32_t tier;           /* KERF_TIER_LOW: launches only while no peer is busy, in-flight work bounded; compute_milli is not applied.
                              * Else, with a peer_count above 0: launches are timed and the signal is kept, for others look at it */
    uint32_t paused;         /* 1: launches on all GPUs wait, while the heartbeat is fresh */
    uint64_t granularity_bytes; /* allocations of this size and more are charged in multiples of it, smaller ones in 512; 0: 2 MiB */
    uint64_t idle_for_ns;    /* low tier: peers must have been idle for so long (hysteresis) */
    uint64_t low_floor_milli; /* low tier: so much of each GPU even while peers are busy; 0: none */
    char driver_path[KERF_PATH_BYTES]; /* the real libcuda.so.1 inside the container; empty: where the system's linker finds it */
    /* The others on these GPUs. KERF_TIER_LOW: those it gives way to. Else: all with a window, and who gives way to this one; a
     * window begins when their work in flight is done, or after 5 ms or a tenth of the period. */
    uint32_t peer_count, reserved0;
    char peer[KERF_MAX_PEERS][KERF_NAME_BYTES]; /* names under /run/kerf/peers/, ended by 0 */
    uint64_t pool_chunk_bytes; /* a memory pool takes of the device in multiples of it; 0: not measured */
    uint8_t reserved[4096 - 344 - KERF_MAX_PEERS * KERF_NAME_BYTES];
    struct kerf_gpu_orders gpu[KERF_MAX_GPUS]; /* the first gpu_count count; their order is that of kerf_gpu_counters */
};

/* 256 bytes. What the container does on one GPU. */
struct kerf_gpu_counters {
    uint64_t account;      /* low 48 bits: bytes charged to the container; high 16: moved by every change (lock-free repair) */
    uint64_t peak_bytes;   /* the most that it ever held */
    uint64_t refused;      /* allocations that failed at the limit */
    uint64_t launches;     /* let through, captured ones not counted; 0 while launches are not limited (they cost nothing then) */
    uint64_t used_ns;      /* GPU time, by driver events; concurrent work counts once */
    uint64_t granted_ns;   /* GPU time let through, as estimated at the launch */
    uint64_t waited_ns;    /* time that launches have waited, summed over threads */
    uint64_t waits;        /* launches that had to wait */
    int64_t tokens_ns;     /* GPU time that may begin now; negative: a debt */
    uint64_t refilled_ns;  /* when tokens were last added */
    uint64_t busy_until_ns; /* end of the last work that is accounted */
    uint64_t reach_ns;     /* how much of the window is used: additive increase, multiplicative decrease */
    uint64_t overran_ns;   /* GPU time that was spent past the window's end */
    uint64_t untimed;      /* launches whose time no event could tell (a stream of another context, an error) */
    uint64_t busy_from_ns; /* begin of the last stretch of accounted work; busy_until_ns is its end */
    uint64_t adapted_period; /* the period in which reach_ns was last adapted */
    uint64_t overdue;      /* launches that passed because what they waited for did not end */
    uint64_t reserved[15];
};

/* 512 bytes. One process; alive as long as it holds the lock (fcntl F_OFD_SETLK, exclusive) on byte KERF_LOCK_AT + its index
 * of the counters file. Its mapping of the file holds it, so the kernel drops it with the process's memory, whatever the death,
 * and not before. A slot that is used and not locked is dead, and its charges are void. */
struct kerf_process {
    uint64_t state;        /* generation << 1 | used */
    int32_t pid;           /* in its own PID namespace */
    uint32_t waiting;      /* threads that wait at the gate */
    uint64_t attached_ns;
    uint64_t heard_ns;     /* its last launch or allocation that was accounted */
    uint64_t charged_bytes[KERF_MAX_GPUS];
    uint64_t intent_bytes[KERF_MAX_GPUS]; /* a change of charged_bytes that may or may not stand in `account` yet */
    uint64_t in_flight_ns[KERF_MAX_GPUS]; /* estimated GPU time that is submitted and not known to be finished */
    uint64_t reserved[12];
};

#define KERF_LOCK_AT 0x40000000 /* beyond the file's end: locks need no bytes */

struct kerf_counters {
    uint32_t magic, version, size_bytes, reserved0;
    uint64_t attaches;     /* processes that ever attached */
    uint64_t reclaimed;    /* slots of dead processes that were given back */
    uint64_t full;         /* processes that found no slot */
    uint8_t reserved[4096 - 40];
    struct kerf_gpu_counters gpu[KERF_MAX_GPUS];
    struct kerf_process process[KERF_MAX_PROCESSES];
};

/* 4096 bytes. Whether a container is at work, by GPU: what the low tier looks at. It expires by itself. */
struct kerf_signal {
    uint32_t magic, version, size_bytes, gpu_count;
    struct {
        uint8_t uuid[16];
        uint64_t busy_until_ns; /* its work will surely be done by then; in the past: idle since then. What the low tier goes by */
        uint64_t due_ns;        /* the same without a margin: what the next window goes by */
        /* How its work has come lately, for a low tier that wants to be out of the way in time; 0: not known. All learned, none promised. */
        uint64_t request_ns;    /* a stretch of work without a pause */
        uint64_t pause_ns;      /* the shortest pauses between such stretches */
        uint64_t mean_pause_ns;
        uint64_t reserved;
    } gpu[KERF_MAX_GPUS];
    uint8_t reserved[4096 - 16 - KERF_MAX_GPUS * 64];
};

#define KERF_ACCOUNT_BYTES ((UINT64_C(1) << 48) - 1)

_Static_assert(sizeof(struct kerf_gpu_orders) == 128, "the contract with Python");
_Static_assert(sizeof(struct kerf_orders) == 4096 + 16 * 128, "the contract with Python");
_Static_assert(sizeof(struct kerf_gpu_counters) == 256, "the contract with Python");
_Static_assert(sizeof(struct kerf_process) == 512, "the contract with Python");
_Static_assert(sizeof(struct kerf_counters) == 4096 + 16 * 256 + 256 * 512, "the contract with Python");
_Static_assert(sizeof(struct kerf_signal) == 4096, "the contract with Python");
#endif
