/* Properties of the machine and its GPUs. */
#include "machine.h"

typedef struct { unsigned long long total, free, used; } memory_t;

int nvmlInitWithFlags(unsigned flags) {
    machine_t *m;
    int error = look(&m);
    (void)flags;
    return error ? error : m->init_error;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) {
    switch (error) {
    case OK: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case 9: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
    }
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    machine_t *m;
    int error = look(&m);
    if (!error) text(version, length, m->driver);
    return error;
}
int nvmlSystemGetCudaDriverVersion(int *version) {
    machine_t *m;
    int error = look(&m);
    if (!error) *version = m->cuda;
    return error;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    machine_t *m;
    int error = look(&m);
    if (!error) *count = (unsigned)m->count;
    return error;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *handle) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, gpu_handle(index), &g);
    if (!error) *handle = gpu_handle(index);
    return error;
}
int nvmlDeviceGetUUID(handle_t handle, char *uuid, unsigned length) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    int error = find(&m, handle, &g);
    if (error) return error;
    text(uuid, length, find_instance(&m, handle, &g, &i) == OK ? i->uuid : g->uuid);
    return OK;
}
int nvmlDeviceGetName(handle_t handle, char *name, unsigned length) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (find_instance(&m, handle, &g, &i) == OK) snprintf(name, length, "%s MIG %s", g->name, i->profile);
    else text(name, length, g->name);
    return OK;
}
int nvmlDeviceGetMemoryInfo(handle_t handle, memory_t *memory) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    memory->total = (unsigned long long)g->memory_mib << 20;
    memory->used = 0;
    for (int i = 0; i < g->processes; i++) memory->used += (unsigned long long)g->process[i].mib << 20;
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetMinorNumber(handle_t handle, unsigned *minor) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (!error) *minor = (unsigned)g->device_minor;
    return error;
}
int nvmlDeviceGetCpuAffinity(handle_t handle, unsigned words, unsigned long *mask) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (!g->cpus) return NOT_SUPPORTED;
    memset(mask, 0, words * sizeof *mask);
    mask[0] = g->cpus;
    return OK;
}
int nvmlDeviceGetMemoryAffinity(handle_t handle, unsigned words, unsigned long *mask, unsigned scope) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    (void)scope;
    if (error) return error;
    if (g->numa < 0 || g->numa >= 64) return NOT_SUPPORTED;
    memset(mask, 0, words * sizeof *mask);
    mask[0] = 1ul << g->numa;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(handle_t handle, int *major, int *minor) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    *major = g->major;
    *minor = g->minor;
    return OK;
}
int nvmlDeviceGetC2cModeInfoV(handle_t handle, unsigned *enabled) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (!error) *enabled = (unsigned)g->c2c;
    return error;
}
