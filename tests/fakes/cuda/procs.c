/* cuGetProcAddress: finds a function by plain name and API version, as the driver does. */
#include "world.h"
#include <stdio.h>
#include <string.h>

int cuGetProcAddress_v2(const char *name, void **to, int version, uint64_t flags, int *status);
int cuGetProcAddress(const char *name, void **to, int version, uint64_t flags);
int kerf_fake_get(const char *name, void **to, int version, uint64_t flags, int *status);
#define X(name) extern char name[];
#include "names.h"
#undef X
static const struct { const char *name; void *function; } table[] = {
#define X(name) {#name, name},
#include "names.h"
#undef X
    {"cuGetProcAddress", (void *)cuGetProcAddress}, {"cuGetProcAddress_v2", (void *)cuGetProcAddress_v2},
};
/* The versions from which a plain name means another function; by default "_v2" from 3020. */
static const struct { const char *name; int from; const char *exact; } versions[] = {
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"}, {"cuGetProcAddress", 0, "cuGetProcAddress"},
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"}, {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
        {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
        {"cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"},
    {"cuGraphAddNode", 13040, "cuGraphAddNode_v3"}, {"cuGraphAddNode", 12030, "cuGraphAddNode_v2"}, {"cuGraphAddNode", 0, "cuGraphAddNode"},
    {"cuMulticastBindMem", 13010, "cuMulticastBindMem_v2"}, {"cuMulticastBindMem", 0, "cuMulticastBindMem"},
    {"cuMemAlloc", 14000, "cuMemAlloc_v3"}, {"cuMemAlloc", 3020, "cuMemAlloc_v2"},
        {"cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"},
    {"cuCtxSynchronize", 0, "cuCtxSynchronize"}, {"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
        {"cuEventElapsedTime", 0, "cuEventElapsedTime"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"}, {"cuDeviceGetUuid", 0, "cuDeviceGetUuid"},
};

static void *exactly(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name)) return table[i].function;
    return NULL;
}

static void *find(const char *name, int version, uint64_t flags) {
    char longer[96], chosen[80];
    void *found;
    snprintf(chosen, sizeof chosen, "%s_v2", name);
    if (version < 3020 || !exactly(chosen)) snprintf(chosen, sizeof chosen, "%s", name);
    for (size_t i = sizeof versions / sizeof *versions; i-- > 0;)
        if (!strcmp(versions[i].name, name) && version >= versions[i].from)
            snprintf(chosen, sizeof chosen, "%s", versions[i].exact);
    for (int twin = 0; twin < 2 && flags & PROC_PER_THREAD; twin++) {
        snprintf(longer, sizeof longer, "%s%s", chosen, twin ? "_ptds" : "_ptsz");
        if ((found = exactly(longer))) return found;
    }
    return exactly(chosen);
}

int cuGetProcAddress_v2(const char *name, void **to, int version, uint64_t flags, int *status) {
    *to = find(name, version, flags);
    if (status) *status = *to ? PROC_FOUND : PROC_NOT_FOUND;
    return *to ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **to, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, to, version, flags, NULL);
}
/* The same under a name that the interposer does not override. */
int kerf_fake_get(const char *name, void **to, int version, uint64_t flags, int *status) {
    return cuGetProcAddress_v2(name, to, version, flags, status);
}
