/* MIG: the mode, and the instances as devices. */
#include "machine.h"

typedef struct {
    unsigned sms, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; unsigned long long memory_mib;
} attributes_t;

int nvmlDeviceGetMigMode(handle_t handle, unsigned *current, unsigned *pending) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (g->mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)g->mig;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(handle_t handle, unsigned *count) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (!error) *count = g->mig < 0 ? 0 : MAX_MIG;
    return error;
}
int nvmlDeviceGetMigDeviceHandleByIndex(handle_t handle, unsigned index, handle_t *instance) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    for (int i = 0; i < g->migs; i++)
        if (g->instance[i].compute && !index--)
            return *instance = instance_handle((long)handle - 1, g->instance[i].gpu_instance), OK;
    return NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(handle_t handle, unsigned *id) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    int error = find_instance(&m, handle, &g, &i);
    if (!error) *id = i->gpu_instance;
    return error;
}
int nvmlDeviceGetAttributes_v2(handle_t handle, attributes_t *to) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    unsigned slices = 0, part = 0;
    int error = find_instance(&m, handle, &g, &i);
    if (error) return error;
    memset(to, 0, sizeof *to);
    /* "1c.2g.20gb": one compute slice of an instance of two. */
    if (sscanf(i->profile, "%uc.%ug", &part, &slices) != 2 && sscanf(i->profile, "%ug", &slices) == 1) part = slices;
    to->gpu_slices = slices;
    to->compute_slices = part;
    to->memory_mib = (unsigned long long)i->memory_mib;
    return OK;
}
int nvmlDeviceGetGpuInstanceById(handle_t handle, unsigned id, handle_t *instance) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    for (int i = 0; i < g->migs; i++)
        if (g->instance[i].gpu_instance == id) {
            *instance = instance_handle((long)handle - 1, id);
            return OK;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetComputeInstanceId(handle_t handle, unsigned *id) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    int error = find_instance(&m, handle, &g, &i);
    if (!error) *id = 0;
    return error;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t *handle) {
    machine_t *m;
    int error = look(&m);
    if (error) return error;
    for (int gpu = 0; gpu < m->count; gpu++) {
        if (!strcmp(m->gpu[gpu].uuid, uuid)) return *handle = gpu_handle(gpu), OK;
        for (int i = 0; i < m->gpu[gpu].migs; i++)
            if (m->gpu[gpu].instance[i].compute && !strcmp(m->gpu[gpu].instance[i].uuid, uuid))
                return *handle = instance_handle(gpu, m->gpu[gpu].instance[i].gpu_instance), OK;
    }
    return NOT_FOUND;
}
