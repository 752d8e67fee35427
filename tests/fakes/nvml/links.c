/* Links between GPUs. */
#include "machine.h"

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct {
    unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health;
} fabric_t;

int nvmlDeviceGetPciInfo_v3(handle_t handle, pci_t *pci) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    memset(pci, 0, sizeof *pci);
    text(pci->bus_id, sizeof pci->bus_id, g->pci);
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(handle_t first, handle_t second, unsigned *level) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, first, &g);
    if (!error) *level = (unsigned)m->ancestor[(long)first - 1][(long)second - 1];
    return error;
}
int nvmlDeviceGetP2PStatus(handle_t first, handle_t second, unsigned index, unsigned *status) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, first, &g);
    (void)index;
    if (!error) *status = (unsigned)m->p2p[(long)first - 1][(long)second - 1];
    return error;
}
int nvmlDeviceGetNvLinkState(handle_t handle, unsigned link, unsigned *active) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    *active = g->link[link][0] != 0;
    return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(handle_t handle, unsigned link, unsigned *type) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (link >= MAX_LINKS || !g->link[link][0]) return INVALID_ARGUMENT;
    *type = strcmp(g->link[link], "switch") ? 0 : 2;
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle_t handle, unsigned link, pci_t *pci) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (link >= MAX_LINKS || !g->link[link][0]) return INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    text(pci->bus_id, sizeof pci->bus_id, g->link[link]);
    return OK;
}
int nvmlDeviceGetGpuFabricInfoV(handle_t handle, fabric_t *to) {
    machine_t *m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (to->version != 0x02000024) return INVALID_ARGUMENT;
    memcpy(to->cluster, g->cluster, sizeof to->cluster);
    to->status = OK;
    to->clique = g->clique;
    to->state = (unsigned char)g->fabric;
    to->health = 0;
    return OK;
}
