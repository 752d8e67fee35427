/* cuCheckpointProcess*: new work of a locked process waits; submitted work is finished before the lock takes effect. */
#include "world.h"

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
static void copy(uint64_t bytes) {
    const uint64_t per_s = world()->copied_per_s;
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
    copy(bytes);
    lock();
    for (int d = 0; d < DEVICES; d++) p->host[d] = p->bytes[d], p->bytes[d] = 0;
    p->locked = CHECKPOINTED;
    unlock();
    return CUDA_SUCCESS;
}
CUresult cuCheckpointProcessRestore(int pid, const void *args) {
    int process = find(pid), fits = 1;
    process_t *p = &world()->process[process < 0 ? 0 : process];
    uint64_t bytes = 0;
    (void)args;
    if (process < 0) return CUDA_ERROR_INVALID_VALUE;
    if (p->locked != CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
    lock();
    bury();
    for (int d = 0; d < DEVICES; d++) fits &= used(d) + p->host[d] <= world()->memory_bytes, bytes += p->host[d];
    for (int d = 0; fits && d < DEVICES; d++) p->bytes[d] = p->host[d], p->host[d] = 0;
    unlock();
    if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;
    copy(bytes);
    return p->locked = LOCKED, CUDA_SUCCESS;
}
CUresult cuCheckpointProcessGetState(int pid, int *state) {
    int process = find(pid);
    if (process < 0) return CUDA_ERROR_INVALID_VALUE;
    return *state = world()->process[process].locked, CUDA_SUCCESS;
}
