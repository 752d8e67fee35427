/* cuCheckpointProcess*: new work of a locked process waits; submitted work is finished before the lock takes effect. */
#include "world.h"

typedef struct { unsigned char from[16], to[16]; } pair_t;
typedef struct { const pair_t *pairs; unsigned pair_count; unsigned char reserved[52]; } restore_args_t;
_Static_assert(sizeof(restore_args_t) == 64, "CUcheckpointRestoreArgs of cuda.h");

enum state { RUNNING, LOCKED, CHECKPOINTED };

static int find(int pid) {
    for (int p = 0; p < PROCESSES; p++)
        if (world()->process[p].used && world()->process[p].pid == pid && alive(p)) return p;
    return -1;
}

CUresult cuCheckpointProcessLock(int pid, const lock_args_t *args) {
    int process = find(pid);
    uint64_t limit = args && args->timeout_ms ? world()->now_ns + (uint64_t)args->timeout_ms * 1000000 : NEVER;
    if (process < 0) return CUDA_ERROR_INVALID_VALUE;
    if (world()->process[process].locked) return CUDA_ERROR_ILLEGAL_STATE;
    enter();
    world()->process[process].locked = 1;
    wait_for(DRAINED, 0, (uint64_t)process, limit);
    kerf_virtual_leave(); /* a controller has no work: the clock must not wait for it */
    for (int d = 0; d < DEVICES; d++) {
        const queue_t *q = &world()->process[process].queue[d];
        if (q->completed >= q->submitted) continue;
        world()->process[process].locked = 0;
        return CUDA_ERROR_NOT_READY;
    }
    return CUDA_SUCCESS;
}
CUresult cuCheckpointProcessUnlock(int pid, const void *args) {
    int process = find(pid);
    (void)args;
    if (process < 0) return CUDA_ERROR_INVALID_VALUE;
    if (world()->process[process].locked != LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
    return world()->process[process].locked = 0, CUDA_SUCCESS;
}

/* A controller waits for the copy, and has no work. */
static void copy(uint64_t bytes, uint64_t per_s) {
    const uint64_t ns = world()->checkpoint_ns + (per_s ? (uint64_t)((__uint128_t)bytes * 1000000000 / per_s) : 0);
    if (!ns) return;
    spend(ns);
    kerf_virtual_leave();
}
CUresult cuCheckpointProcessCheckpoint(int pid, const void *args) {
    int process = find(pid);
    process_t *p = &world()->process[process < 0 ? 0 : process];
    uint64_t bytes = 0;
    (void)args;
    if (process < 0) return CUDA_ERROR_INVALID_VALUE;
    if (p->locked != LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
    for (int s = 0; s < SHARES; s++)
        if (world()->share[s].holder[process]) return CUDA_ERROR_NOT_SUPPORTED;
    for (int d = 0; d < DEVICES; d++) bytes += p->bytes[d];
    copy(bytes, world()->out_per_s);
    lock();
    for (int d = 0; d < DEVICES; d++) p->host[d] = p->bytes[d], p->bytes[d] = 0;
    p->locked = CHECKPOINTED;
    unlock();
    return CUDA_SUCCESS;
}

/* Reads a map of GPUs, from which the process has each of its devices to another GPU; identical without one. As the
 * driver's documentation says, it names every GPU of the process (also those without a context: NVIDIA/cuda-checkpoint,
 * issue 35), and moves memory between GPUs of the same chip. A driver before r580 has the fields as reserved ones, which
 * must be zero. A process that sees only some GPUs, by CUDA_VISIBLE_DEVICES, is not moved at all (the same issue). */
static CUresult read_map(const process_t *p, const restore_args_t *args, int to[DEVICES]) {
    const int devices = world()->devices;
    int taken = 0, named = 0;
    for (int gpu = 0; gpu < DEVICES; gpu++) to[gpu] = gpu;
    for (size_t i = 0; args && i < sizeof args->reserved; i++)
        if (args->reserved[i]) return CUDA_ERROR_INVALID_VALUE;
    if (!args || !args->pair_count) return CUDA_SUCCESS;
    if (world()->version < 13000 || !args->pairs) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < args->pair_count; i++) {
        const int from = args->pairs[i].from[15] - 1, target = args->pairs[i].to[15] - 1;
        if (from < 0 || from >= devices || target < 0 || target >= devices) return CUDA_ERROR_INVALID_VALUE;
        if (named >> from & 1 || taken >> target & 1) return CUDA_ERROR_INVALID_VALUE;
        if (world()->model[from] != world()->model[target]) return CUDA_ERROR_INVALID_VALUE;
        if (p->restricted && from != target) return CUDA_ERROR_INVALID_VALUE;
        named |= 1 << from, taken |= 1 << target;
        to[from] = target;
    }
    return named == (1 << devices) - 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCheckpointProcessRestore(int pid, const restore_args_t *args) {
    int process = find(pid), fits = 1, to[DEVICES];
    process_t *p = &world()->process[process < 0 ? 0 : process];
    uint64_t bytes = 0;
    CUresult result;
    if (process < 0) return CUDA_ERROR_INVALID_VALUE;
    if (p->locked != CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
    if ((result = read_map(p, args, to))) return result;
    lock();
    bury();
    for (int d = 0; d < DEVICES; d++) {
        const int gpu = to[p->gpu[d]];
        fits &= used(gpu) + p->host[d] <= world()->memory_bytes, bytes += p->host[d];
    }
    for (int d = 0; fits && d < DEVICES; d++) {
        p->bytes[d] = p->host[d], p->host[d] = 0;
        p->gpu[d] = to[p->gpu[d]];
    }
    for (int d = 0; d < DEVICES; d++) p->device_on[p->gpu[d]] = d;
    unlock();
    if (!fits) return args && args->pair_count ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    copy(bytes, world()->back_per_s);
    return p->locked = LOCKED, CUDA_SUCCESS;
}
CUresult cuCheckpointProcessGetState(int pid, int *state) {
    int process = find(pid);
    if (process < 0) return CUDA_ERROR_INVALID_VALUE;
    return *state = world()->process[process].locked, CUDA_SUCCESS;
}
