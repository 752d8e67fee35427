/* Health of GPUs: errors, degraded links, throttled clocks, and events. */
#include "machine.h"

enum { RECOVERY_ACTION = 230, UNSIGNED_INT = 1 };
typedef struct {
    unsigned field, scope; long long timestamp, latency; unsigned type, result;
    union { unsigned u; unsigned long long wide; } value;
} field_t;
typedef struct { handle_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } told_t;
typedef struct { unsigned last; unsigned long long types[MAX_GPUS]; } set_t;

int nvmlDeviceGetTotalEccErrors(handle_t handle, unsigned type, unsigned counter, unsigned long long *count) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (g->ecc_volatile < 0 || type != 1) return NOT_SUPPORTED;
    *count = (unsigned long long)(counter == 0 ? g->ecc_volatile : g->ecc_aggregate);
    return OK;
}
int nvmlDeviceGetRemappedRows(handle_t handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
    unsigned *failed) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (g->rows_pending < 0) return NOT_SUPPORTED;
    *correctable = 0;
    *uncorrectable = *pending = (unsigned)g->rows_pending;
    *failed = (unsigned)g->rows_failed;
    return OK;
}
static int number(handle_t handle, unsigned *to, size_t field) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (!error) *to = (unsigned)*(int *)((char *)g + field);
    return error;
}
int nvmlDeviceGetCurrPcieLinkWidth(handle_t handle, unsigned *to) { return number(handle, to, offsetof(gpu_t, width)); }
int nvmlDeviceGetMaxPcieLinkWidth(handle_t handle, unsigned *to) {
    return number(handle, to, offsetof(gpu_t, max_width));
}
int nvmlDeviceGetCurrPcieLinkGeneration(handle_t handle, unsigned *to) {
    return number(handle, to, offsetof(gpu_t, generation));
}
int nvmlDeviceGetMaxPcieLinkGeneration(handle_t handle, unsigned *to) {
    return number(handle, to, offsetof(gpu_t, max_generation));
}
int nvmlDeviceGetCurrentClocksEventReasons(handle_t handle, unsigned long long *reasons) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (!error) *reasons = g->clocks;
    return error;
}
int nvmlDeviceGetFieldValues(handle_t handle, int count, field_t *fields) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    for (int i = 0; i < count; i++) {
        fields[i].result = fields[i].field == RECOVERY_ACTION && g->recovery >= 0 ? OK : NOT_SUPPORTED;
        fields[i].type = UNSIGNED_INT;
        fields[i].value.u = (unsigned)g->recovery;
    }
    return OK;
}

static unsigned newest(const machine_t *m) {
    unsigned last = 0;
    for (int i = 0; i < m->events; i++)
        if (m->event[i].number > last) last = m->event[i].number;
    return last;
}
int nvmlEventSetCreate(set_t **set) {
    machine_t *m;
    int error = look(&m);
    if (error) return error;
    *set = calloc(1, sizeof **set);
    (*set)->last = newest(m);
    return OK;
}
int nvmlEventSetFree(set_t *set) {
    free(set);
    return OK;
}
int nvmlDeviceGetSupportedEventTypes(handle_t handle, unsigned long long *types) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (!error) *types = 0x1 | 0x2 | 0x8;
    return error;
}
int nvmlDeviceRegisterEvents(handle_t handle, unsigned long long types, set_t *set) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (!error) set->types[(long)handle - 1] |= types;
    return error;
}
/* Returns a new event after the file has changed. Events on GPUs that are not registered are skipped. */
int nvmlEventSetWait_v2(set_t *set, told_t *told, unsigned timeout_ms) {
    struct stat now, before = {0};
    for (unsigned waited = 0; waited <= timeout_ms; waited += 20) {
        const char *path = getenv("KERF_FAKE_NVML_STATE");
        if (path && stat(path, &now) == 0 && (now.st_ino != before.st_ino
            || now.st_mtim.tv_nsec != before.st_mtim.tv_nsec)) {
            machine_t *m;
            int error = look(&m);
            if (error) return error;
            before = now;
            for (int i = 0; i < m->events; i++) {
                event_t *e = &m->event[i];
                if (e->number <= set->last) continue;
                set->last = e->number;
                if (e->gpu < 0 || e->gpu >= MAX_GPUS || !(set->types[e->gpu] & e->type)) continue;
                *told = (told_t){gpu_handle(e->gpu), e->type, e->data, NO_INSTANCE, NO_INSTANCE};
                return OK;
            }
        }
        usleep(20000);
    }
    return TIMEOUT;
}
