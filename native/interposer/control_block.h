/* The control block of a container: the shared memory of the node agent and the interposer, three files per
 * container.
 *
 *   /run/kerf/orders    struct kerf_orders    only the agent writes it; mounted read-only, so that limits hold
 *   /run/kerf/counters  struct kerf_counters  the container's processes write it, the agent reads it
 *   /run/kerf/signal    struct kerf_signal    the container's processes write it; other containers see only this
 *   /run/kerf/peers/                          signal files of the GPUs' other containers, read-only; for the low tier
 *
 * Before the container starts, the agent creates each file with its full size and zeroed; it sets magic, version and
 * size last, and never truncates the file. If a file is missing, too short or of another version, the interposer
 * fails closed: it refuses every CUDA call (CUDA_ERROR_SYSTEM_NOT_READY).
 *
 * All fields are little-endian and naturally aligned, without padding by the compiler. 64-bit fields are read and
 * written in one access. Times are nanoseconds of CLOCK_MONOTONIC, which is the same on the whole node (on the fake
 * driver: of its virtual clock).
 *
 * The container can write its own counters, so they can be forged. The agent compares them with NVML. The container
 * cannot write the limits.
 *
 * A dead or frozen agent blocks no container: `paused` and `gate` apply only while its heartbeat is fresh. Limits,
 * rates and windows are data, not commands: they apply as they were last set.
 */
#ifndef KERF_CONTROL_BLOCK_H
#define KERF_CONTROL_BLOCK_H
#include <stdint.h>

#define KERF_ORDERS_MAGIC 0x4f46524bu   /* "KRFO" */
#define KERF_COUNTERS_MAGIC 0x4346524bu /* "KRFC" */
#define KERF_SIGNAL_MAGIC 0x5346524bu   /* "KRFS" */
enum { KERF_VERSION = 1, KERF_MAX_GPUS = 16, KERF_MAX_PROCESSES = 256, KERF_MAX_PEERS = 32, KERF_NAME_BYTES = 64,
    KERF_PATH_BYTES = 256 };
enum { KERF_TIER_HIGH = 0, KERF_TIER_NORMAL = 1, KERF_TIER_LOW = 2 };
enum { KERF_GATE_OPEN = 0, KERF_GATE_CLOSED = 1 };
enum { KERF_ONE_AT_A_TIME = 1 };
#define KERF_NO_LIMIT UINT64_MAX

/* 128 bytes. What the container may do on one GPU. */
struct kerf_gpu_orders {
    uint8_t uuid[16];            /* as cuDeviceGetUuid returns it (the hex digits of NVML's GPU-... or MIG-...).
                                  * On a GPU that is not listed, the container gets no memory */
    uint64_t memory_limit_bytes; /* of all processes of the container.
                                  * KERF_NO_LIMIT: none, and CUDA reports the device's memory */
    uint64_t context_bytes;      /* charged for each context on this GPU, in addition to allocations */
    uint32_t compute_milli;      /* share of the GPU's time, 1 to 1000.
                                  * 0 or 1000: not limited, and launches are not timed */
    uint32_t in_flight_us;       /* maximum GPU time that is submitted and not finished.
                                  * 0: not bounded (4000 with a compute limit or in the low tier).
                                  * KERF_ONE_AT_A_TIME: a launch waits until those before it are done */
    uint32_t gate;               /* KERF_GATE_CLOSED: launches wait, while the heartbeat is fresh */
    uint32_t private_milli;      /* rate at which each process's private token bucket fills, because the container
                                  * forges its shared one in several processes; 0: compute_milli */
    /* The timetable: launches begin only in [start, start + length) of every period, so that slices do not overlap.
     * period_ns 0: at any time. All slices of one GPU have the same period. compute_milli applies in addition, by
     * tokens. */
    uint64_t period_ns;
    uint64_t window_start_ns; /* from the period's beginning; periods begin at multiples of period_ns on the clock */
    uint64_t window_ns;       /* may be period_ns: always open */
    uint64_t surcharge_bytes; /* memory that NVML sees and the account does not have: lowers the limit for new
                               * allocations */
    uint64_t shown_bytes; /* the device's memory as CUDA and NVML report it, while memory_limit_bytes is what the
                           * container may use now; 0: memory_limit_bytes */
    uint64_t lent_milli; /* GPU time beyond compute_milli, at any moment at which no peer has been busy for
                          * idle_for_ns; 0: none */
    uint64_t reserved[4];
};

/* 4096 bytes of header and peers, then the GPUs. */
struct kerf_orders {
    uint32_t magic, version, size_bytes, gpu_count;
    /* the agent increments it after each change, except of the heartbeat; readers compare it */
    uint64_t generation;
    uint64_t heartbeat_ns;   /* the agent's last heartbeat */
    uint64_t stale_after_ns; /* older than this: `paused` and `gate` count as off. 0: 2 seconds */
    uint32_t tier;           /* KERF_TIER_LOW: launches only while no peer is busy; work in flight is bounded, and
                              * compute_milli is not applied. Otherwise, if peer_count is above 0: launches are timed
                              * and the signal is maintained, because peers read it */
    uint32_t paused;         /* 1: launches on all GPUs wait, while the heartbeat is fresh */
    uint64_t granularity_bytes; /* allocations of this size and more are charged in multiples of it, smaller ones in
                                 * multiples of 512; 0: 2 MiB */
    uint64_t idle_for_ns;    /* low tier, and lent GPU time: how long peers must have been idle (hysteresis) */
    uint64_t low_floor_milli; /* low tier: minimum share of each GPU, even while peers are busy; 0: none */
    /* the real libcuda.so.1 inside the container; empty: where the linker finds it */
    char driver_path[KERF_PATH_BYTES];
    /* Other containers on these GPUs. KERF_TIER_LOW: those to which this one yields. Otherwise: those with a window,
     * and those that yield to this one; a window begins when the peers' work in flight is done, or after 5 ms or a
     * tenth of the period. */
    uint32_t peer_count;
    uint32_t peers_held;     /* 1: the agent holds all peers, as it does with those that wait for their turn. While its
                              * heartbeat is fresh, launches are neither timed nor bounded for the peers' sake */
    char peer[KERF_MAX_PEERS][KERF_NAME_BYTES]; /* names under /run/kerf/peers/, 0-terminated */
    uint64_t pool_chunk_bytes; /* a memory pool takes device memory in multiples of it; 0: not measured */
    uint32_t hides_others;   /* 1: the container has device nodes of GPUs that are not its own, so that its memory can
                              * come back to one of those. Its programs see those of `gpu` alone, in that order */
    uint32_t moves;          /* how often a GPU of `gpu` has become another one, with all that was on it */
    uint8_t reserved[4096 - 352 - KERF_MAX_PEERS * KERF_NAME_BYTES];
    struct kerf_gpu_orders gpu[KERF_MAX_GPUS]; /* the first gpu_count are valid, in the order of kerf_gpu_counters */
};

/* 256 bytes. The container's use of one GPU. */
struct kerf_gpu_counters {
    /* low 48 bits: bytes charged to the container; high 16: change counter for the lock-free repair */
    uint64_t account;
    uint64_t peak_bytes;   /* maximum of the bytes charged */
    uint64_t refused;      /* allocations that failed at the limit */
    uint64_t launches;     /* launches that passed, without captured ones; not counted while launches are not limited */
    uint64_t used_ns;      /* GPU time, measured by driver events; concurrent work counts once */
    uint64_t granted_ns;   /* GPU time of the launches that passed, as estimated at the launch */
    uint64_t waited_ns;    /* time that launches have waited, summed over threads */
    uint64_t waits;        /* launches that had to wait */
    int64_t tokens_ns;     /* the token bucket: GPU time that may begin now; negative: a debt */
    uint64_t refilled_ns;  /* when tokens were last added */
    uint64_t busy_until_ns; /* end of the last accounted work */
    uint64_t reach_ns;     /* how much of the window is used: additive increase, multiplicative decrease */
    uint64_t overran_ns;   /* GPU time used after the end of the window */
    uint64_t untimed;      /* launches that no event could time (a stream of another context, an error) */
    uint64_t busy_from_ns; /* begin of the last stretch of accounted work; busy_until_ns is its end */
    uint64_t adapted_period; /* the period in which reach_ns was last adapted */
    uint64_t overdue;      /* launches that passed after the maximum wait, because the awaited work did not end */
    int64_t lent_tokens_ns; /* the token bucket of lent_milli, and when tokens were last added to it */
    uint64_t lent_refilled_ns;
    uint64_t reserved[13];
};

/* 512 bytes. The slot of one process. The process is alive as long as it holds the exclusive lock (fcntl
 * F_OFD_SETLK) on byte KERF_LOCK_AT + slot index of the counters file. The mapping of the file holds the lock, so
 * the kernel releases it together with the process's memory, however the process dies, and not before. A slot that
 * is used and not locked belongs to a dead process, and its charges are void. */
struct kerf_process {
    uint64_t state;        /* generation << 1 | used */
    int32_t pid;           /* in its own PID namespace */
    uint32_t waiting;      /* number of threads that wait at the gate */
    uint64_t attached_ns;
    uint64_t heard_ns;     /* time of the last accounted launch or allocation */
    uint64_t charged_bytes[KERF_MAX_GPUS];
    uint64_t intent_bytes[KERF_MAX_GPUS]; /* a change of charged_bytes that may or may not be in `account` yet */
    uint64_t in_flight_ns[KERF_MAX_GPUS]; /* estimated GPU time that is submitted and not known to be finished */
    uint64_t reserved[12];
};

#define KERF_LOCK_AT 0x40000000 /* beyond the file's end: locks need no bytes */

struct kerf_counters {
    uint32_t magic, version, size_bytes, reserved0;
    uint64_t attaches;     /* number of processes that have attached */
    uint64_t reclaimed;    /* number of dead processes whose slots were freed */
    uint64_t full;         /* number of processes that found no free slot */
    uint8_t reserved[4096 - 40];
    struct kerf_gpu_counters gpu[KERF_MAX_GPUS];
    struct kerf_process process[KERF_MAX_PROCESSES];
};

/* 4096 bytes. Whether a container is at work, by GPU. The low tier reads it. It expires by itself. */
struct kerf_signal {
    uint32_t magic, version, size_bytes, gpu_count;
    struct {
        uint8_t uuid[16];
        uint64_t busy_until_ns; /* end of its work, with a margin; in the past: idle since then. The low tier uses it */
        uint64_t due_ns;        /* the same without a margin; the next window uses it */
        /* The pattern of its recent work. The low tier uses it to end its own work in time. 0: unknown. All values are
         * learned, none is guaranteed. */
        uint64_t request_ns;    /* length of a stretch of work without a pause */
        uint64_t pause_ns;      /* length of the shortest pauses between such stretches */
        uint64_t mean_pause_ns;
        uint64_t reserved;
    } gpu[KERF_MAX_GPUS];
    /* Which slice goes next where launches are too long for the timetable. In the order of `gpu`. */
    struct {
        uint64_t long_until_ns;    /* until then it counts as one whose launches are long */
        uint64_t waiting_until_ns; /* until then it counts as one that waits for its turn */
        uint64_t owed_since_ns;    /* since when its share has been owed to it; in the future: it has had more */
        uint64_t reserved;
    } turn[KERF_MAX_GPUS];
    uint8_t reserved[4096 - 16 - KERF_MAX_GPUS * (64 + 32)];
};

#define KERF_ACCOUNT_BYTES ((UINT64_C(1) << 48) - 1)

_Static_assert(sizeof(struct kerf_gpu_orders) == 128, "the contract with Python");
_Static_assert(sizeof(struct kerf_orders) == 4096 + 16 * 128, "the contract with Python");
_Static_assert(sizeof(struct kerf_gpu_counters) == 256, "the contract with Python");
_Static_assert(sizeof(struct kerf_process) == 512, "the contract with Python");
_Static_assert(sizeof(struct kerf_counters) == 4096 + 16 * 256 + 256 * 512, "the contract with Python");
_Static_assert(sizeof(struct kerf_signal) == 4096, "the contract with Python");
#endif
