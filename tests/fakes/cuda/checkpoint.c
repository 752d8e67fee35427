/* cuCheckpointProcess*: a locked process's new work waits; what it had submitted is finished before the lock is there. */
#include "world.h"

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
    kerf_virtual_leave(); /* a controller works for nobody: the clock must not wait for it */
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
    if (!world()->process[process].locked) return CUDA_ERROR_ILLEGAL_STATE;
    return world()->process[process].locked = 0, CUDA_SUCCESS;
}
CUresult cuCheckpointProcessGetState(int pid, int *state) {
    int process = find(pid);
    if (process < 0) return CUDA_ERROR_INVALID_VALUE;
    return *state = world()->process[process].locked, CUDA_SUCCESS;
}
