/* Processes on the GPUs. */
#include "machine.h"

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned pid; unsigned long long timestamp; unsigned sm, memory, encoder, decoder; } sample_t;
typedef struct { unsigned gpu, memory; } rates_t;

/* A caller makes two calls: the first, without a buffer, returns the required number. */
static int list(const running_t *from, int number, unsigned *count, process_t *to) {
    unsigned room = *count;
    *count = (unsigned)number;
    if (number == 0) return OK;
    if (room < (unsigned)number || !to) return INSUFFICIENT_SIZE;
    for (int i = 0; i < number; i++)
        to[i] = (process_t){from[i].pid, (unsigned long long)from[i].mib << 20, from[i].gpu_instance, NO_INSTANCE};
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(handle_t handle, unsigned *count, process_t *to) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    return error ? error : list(g->process, g->processes, count, to);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(handle_t handle, unsigned *count, process_t *to) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    return error ? error : list(g->drawing, g->graphics, count, to);
}
/* NOT_FOUND means that there is no sample; in MIG mode there are none. The time is ignored: every sample is new. */
int nvmlDeviceGetProcessUtilization(handle_t handle, sample_t *to, unsigned *count, unsigned long long since) {
    machine_t *m;
    gpu_t *g;
    unsigned room = *count, found = 0;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (g->mig == 1) return NOT_SUPPORTED;
    for (int i = 0; i < g->processes; i++) {
        if (g->process[i].sm < 0) continue;
        if (to && found < room) to[found] = (sample_t){g->process[i].pid, since + 1, (unsigned)g->process[i].sm,
            (unsigned)g->process[i].memory, 0, 0};
        found++;
    }
    *count = found;
    if (!found) return NOT_FOUND;
    return to && room >= found ? OK : INSUFFICIENT_SIZE;
}
int nvmlDeviceGetUtilizationRates(handle_t handle, rates_t *to) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (g->mig == 1) return NOT_SUPPORTED;
    *to = (rates_t){(unsigned)g->busy, 0};
    return OK;
}
