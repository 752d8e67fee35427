/* MIG: profiles, and the calls that create and destroy instances. A GPU instance has one compute instance at most. */
#include "machine.h"

typedef struct { unsigned start, size; } placement_t;
typedef struct { handle_t device; unsigned id, profile; placement_t placement; } instance_info_t;
typedef struct { handle_t device, gpu_instance; unsigned id, profile; placement_t placement; } compute_info_t;
typedef struct {
    unsigned version, id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib;
    char name[96];
} profile_info_t;
typedef struct {
    unsigned version, id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
    char name[96];
} compute_profile_t;
enum { COMPUTE_PROFILES = 9 };
/* By NVML's number of the compute instance profile. */
static const unsigned SLICES[COMPUTE_PROFILES] = {1, 2, 3, 4, 7, 8, 6, 1, 7};

static profile_t *by_id(gpu_t *g, unsigned id) {
    for (int i = 0; i < MAX_PROFILES; i++)
        if (*g->profile[i].name && g->profile[i].id == id) return &g->profile[i];
    return NULL;
}
static profile_t *of_instance(gpu_t *g, const mig_t *i) {
    for (int p = 0; p < MAX_PROFILES; p++)
        if (!strcmp(g->profile[p].name, i->profile)) return &g->profile[p];
    return NULL;
}
/* The slices of its compute instance: "1c.2g.20gb" has one of two. */
static unsigned compute_slices(const mig_t *i) {
    unsigned slices = 0, part = 0;
    if (!i->compute) return 0;
    if (sscanf(i->profile, "%uc.%ug", &part, &slices) == 2) return part;
    return sscanf(i->profile, "%ug", &slices) == 1 ? slices : 0;
}
static int count_of(unsigned mask) { return mask ? (int)(mask & 1) + count_of(mask >> 1) : 0; }

/* Registers the capability of a GPU instance, or of its compute instance, or removes both. */
static void capability(gpu_t *g, unsigned gpu_instance, const char *below, int there) {
    const char *root = getenv("KERF_FAKE_NVML_CAPABILITIES");
    char path[1100], folder[1024];
    FILE *file;
    if (!root) return;
    snprintf(folder, sizeof folder, "%s/gpu%d/mig/gi%u%s", root, g->device_minor, gpu_instance, below);
    for (char *c = folder + 1; there && *c; c++)
        if (*c == '/') *c = 0, mkdir(folder, 0755), *c = '/';
    if (there) mkdir(folder, 0755);
    snprintf(path, sizeof path, "%s/access", folder);
    if (!there) {
        unlink(path);
        rmdir(folder);
    } else if ((file = fopen(path, "w"))) {
        fprintf(file, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
            (unsigned)g->device_minor * 200 + gpu_instance * 10 + 3 + (*below != 0));
        fclose(file);
    }
}

static int on_gpu(handle_t handle, gpu_t **g) {
    machine_t *m;
    int error = find(&m, handle, g);
    if (error) return error;
    return (*g)->mig == 1 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(handle_t handle, unsigned number, profile_info_t *to) {
    gpu_t *g;
    int error = on_gpu(handle, &g);
    const unsigned version = to->version;
    if (error) return error;
    if (number >= MAX_PROFILES || !*g->profile[number].name) return NOT_SUPPORTED;
    *to = (profile_info_t){.version = version, .id = g->profile[number].id, .slices = g->profile[number].slices,
        .instances = (unsigned)count_of(g->profile[number].starts),
        .memory_mib = (unsigned long long)g->profile[number].memory_mib};
    snprintf(to->name, sizeof to->name, "MIG %s", g->profile[number].name);
    return OK;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle_t handle, unsigned id, placement_t *to, unsigned *count) {
    gpu_t *g;
    const profile_t *p;
    int error = on_gpu(handle, &g);
    if (error) return error;
    if (!(p = by_id(g, id))) return NOT_SUPPORTED;
    *count = 0;
    for (unsigned start = 0; start < 8; start++) {
        if (!(p->starts >> start & 1)) continue;
        if (to) to[*count] = (placement_t){start, p->size};
        ++*count;
    }
    return OK;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(handle_t handle, unsigned id, const placement_t *at, handle_t *instance) {
    gpu_t *g;
    const profile_t *p;
    char line[256];
    unsigned taken = 0, number = 1;
    int error = on_gpu(handle, &g);
    if (error) return error;
    if (g->deny_gi) return UNKNOWN;
    if (!(p = by_id(g, id)) || at->size != p->size || !(p->starts >> at->start & 1)) return INVALID_ARGUMENT;
    for (int i = 0; i < g->migs; i++) taken |= ((1u << g->instance[i].size) - 1) << g->instance[i].start;
    if (taken & ((1u << p->size) - 1) << at->start || g->migs == MAX_MIG) return INSUFFICIENT_RESOURCES;
    for (int i = 0; i < g->migs; i++)
        if (g->instance[i].gpu_instance == number) number++, i = -1;
    snprintf(line, sizeof line, "made %ld %u %u %u\n", (long)handle - 1, number, at->start, id);
    *instance = instance_handle((long)handle - 1, number);
    capability(g, number, "", 1);
    return change(line);
}
int nvmlGpuInstanceDestroy(handle_t handle) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    char line[64];
    int error = find_instance(&m, handle, &g, &i);
    if (error) return error;
    if (i->compute) return IN_USE;
    capability(g, i->gpu_instance, "", 0);
    snprintf(line, sizeof line, "gone %ld %u\n", (long)handle / 1000 - 1, i->gpu_instance);
    return change(line);
}
int nvmlDeviceGetGpuInstances(handle_t handle, unsigned id, handle_t *to, unsigned *count) {
    gpu_t *g;
    const profile_t *p;
    int error = on_gpu(handle, &g);
    if (error) return error;
    if (!(p = by_id(g, id))) return NOT_SUPPORTED;
    *count = 0;
    for (int i = 0; i < g->migs; i++)
        if (of_instance(g, &g->instance[i]) == p)
            to[(*count)++] = instance_handle((long)handle - 1, g->instance[i].gpu_instance);
    return OK;
}
int nvmlGpuInstanceGetInfo(handle_t handle, instance_info_t *to) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    int error = find_instance(&m, handle, &g, &i);
    const profile_t *p = error ? NULL : of_instance(g, i);
    if (!error)
        *to = (instance_info_t){gpu_handle((long)handle / 1000 - 1), i->gpu_instance, p ? p->id : 0,
            {i->start, i->size}};
    return error;
}
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(handle_t handle, unsigned number, unsigned engine,
    compute_profile_t *to) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    unsigned slices = 0;
    int error = find_instance(&m, handle, &g, &i);
    const unsigned version = to->version;
    if (error) return error;
    if (sscanf(i->profile, "%ug", &slices) != 1) sscanf(i->profile, "%*uc.%ug", &slices);
    if (number >= COMPUTE_PROFILES || number >= 7 || engine || SLICES[number] > slices) return NOT_SUPPORTED;
    *to = (compute_profile_t){.version = version, .id = number, .slices = SLICES[number],
        .instances = slices / SLICES[number]};
    return OK;
}
int nvmlGpuInstanceGetComputeInstances(handle_t handle, unsigned id, handle_t *to, unsigned *count) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    int error = find_instance(&m, handle, &g, &i);
    if (error) return error;
    if (id >= COMPUTE_PROFILES) return NOT_SUPPORTED;
    *count = 0;
    if (i->compute && compute_slices(i) == SLICES[id]) to[(*count)++] = handle;
    return OK;
}
int nvmlGpuInstanceGetComputeInstanceById(handle_t handle, unsigned id, handle_t *compute) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    int error = find_instance(&m, handle, &g, &i);
    if (error) return error;
    *compute = handle;
    return i->compute && !id ? OK : NOT_FOUND;
}
int nvmlGpuInstanceCreateComputeInstance(handle_t handle, unsigned id, handle_t *compute) {
    static unsigned made;
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    char line[160];
    unsigned slices = 0;
    int error = find_instance(&m, handle, &g, &i);
    if (error) return error;
    if (g->deny_ci) return UNKNOWN;
    sscanf(i->profile, "%ug", &slices);
    if (id >= COMPUTE_PROFILES || SLICES[id] != slices) return NOT_SUPPORTED; /* a part of it: not modelled */
    if (i->compute) return INSUFFICIENT_RESOURCES;
    snprintf(line, sizeof line, "compute %ld %u MIG-%ld-%u-%d-%u\n", (long)handle / 1000 - 1, i->gpu_instance,
        (long)handle / 1000 - 1, i->gpu_instance, (int)getpid(), made++);
    *compute = handle;
    capability(g, i->gpu_instance, "/ci0", 1);
    return change(line);
}
int nvmlComputeInstanceGetInfo_v2(handle_t handle, compute_info_t *to) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    int error = find_instance(&m, handle, &g, &i);
    if (!error) *to = (compute_info_t){gpu_handle((long)handle / 1000 - 1), handle, 0, 0, {0, compute_slices(i)}};
    return error;
}
int nvmlComputeInstanceDestroy(handle_t handle) {
    machine_t *m;
    gpu_t *g;
    mig_t *i;
    char line[64];
    int error = find_instance(&m, handle, &g, &i);
    if (error) return error;
    for (int p = 0; p < g->processes; p++)
        if (g->process[p].gpu_instance == i->gpu_instance) return IN_USE;
    capability(g, i->gpu_instance, "/ci0", 0);
    snprintf(line, sizeof line, "uncomputed %ld %u\n", (long)handle / 1000 - 1, i->gpu_instance);
    return change(line);
}
