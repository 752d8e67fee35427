/* A libnvidia-ml.so.1 whose GPUs stand in a text file, for tests of code that uses the real pynvml.
 *
 * Only what is declared here, by ourselves, after NVML's documented binary interface; no header of NVIDIA's is used.
 * The file is read anew at every call, so a test changes the machine by writing it. Its path is in KERF_FAKE_NVML_STATE.
 * One thing a line:
 *
 *   driver 580.95.05
 *   cuda 13000
 *   init 9                               nvmlInit answers this error
 *   hang                                 every call waits until this line is gone
 *   gpu 0 UUID NAME MEMORY_MIB PCI NUMA CC_MAJOR CC_MINOR MIG ERROR     (in NAME _ stands for a blank; ERROR 0 is none)
 *   nvlink 0 3 gpu PCI                   link 3 of GPU 0 is active and leads there
 *   nvlink 0 4 switch                    ... or into a switch
 *   ancestor 0 1 30                      NVML's level of the common ancestor
 *   p2p 0 1 0                            NVML's status, 0 is OK
 *   process 0 4711 2048                  a compute process and its MiB
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };
enum { MAX_GPUS = 32, MAX_LINKS = 36, MAX_PROCESSES = 64 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef void *handle_t;

typedef struct {
    char uuid[96], name[96], pci[32];
    int memory_mib, numa, major, minor, mig, error, present;
    char link[MAX_LINKS][32]; /* "", "switch", or a bus id */
    int processes;
    unsigned pid[MAX_PROCESSES];
    int process_mib[MAX_PROCESSES];
} gpu_t;

typedef struct {
    char driver[80];
    int cuda, init_error, count;
    gpu_t gpu[MAX_GPUS];
    int ancestor[MAX_GPUS][MAX_GPUS], p2p[MAX_GPUS][MAX_GPUS];
} machine_t;

/* Reads the machine; waits as long as the file says "hang". */
static int look(machine_t *m) {
    for (;;) {
        const char *path = getenv("KERF_FAKE_NVML_STATE");
        FILE *file = path ? fopen(path, "r") : NULL;
        char line[512];
        int hang = 0;
        if (!file) return UNKNOWN;
        memset(m, 0, sizeof *m);
        for (int a = 0; a < MAX_GPUS; a++)
            for (int b = 0; b < MAX_GPUS; b++) m->ancestor[a][b] = 50;
        while (fgets(line, sizeof line, file)) {
            int a = 0, b = 0, n = 0;
            char word[96] = "", where[32] = "";
            if (!strncmp(line, "hang", 4)) hang = 1;
            else if (sscanf(line, "driver %79s", m->driver) == 1) continue;
            else if (sscanf(line, "cuda %d", &m->cuda) == 1) continue;
            else if (sscanf(line, "init %d", &m->init_error) == 1) continue;
            else if (sscanf(line, "gpu %d", &a) == 1 && a >= 0 && a < MAX_GPUS) {
                gpu_t *g = &m->gpu[a];
                g->present = sscanf(line, "gpu %d %95s %95s %d %31s %d %d %d %d %d", &a, g->uuid, g->name, &g->memory_mib, g->pci, &g->numa,
                                    &g->major, &g->minor, &g->mig, &g->error) == 10;
                for (char *c = g->name; *c; c++)
                    if (*c == '_') *c = ' ';
                if (a + 1 > m->count) m->count = a + 1;
            } else if (sscanf(line, "nvlink %d %d %95s %31s", &a, &n, word, where) >= 3 && a < MAX_GPUS && n < MAX_LINKS) {
                strcpy(m->gpu[a].link[n], !strcmp(word, "switch") ? "switch" : where);
            } else if (sscanf(line, "ancestor %d %d %d", &a, &b, &n) == 3 && a < MAX_GPUS && b < MAX_GPUS) {
                m->ancestor[a][b] = m->ancestor[b][a] = n;
            } else if (sscanf(line, "p2p %d %d %d", &a, &b, &n) == 3 && a < MAX_GPUS && b < MAX_GPUS) {
                m->p2p[a][b] = m->p2p[b][a] = n;
            } else if (sscanf(line, "process %d %d %d", &a, &b, &n) == 3 && a < MAX_GPUS && m->gpu[a].processes < MAX_PROCESSES) {
                gpu_t *g = &m->gpu[a];
                g->pid[g->processes] = (unsigned)b;
                g->process_mib[g->processes++] = n;
            }
        }
        fclose(file);
        if (!hang) return OK;
        usleep(5000);
    }
}

/* The GPU behind a handle; its own error where the file gives it one. */
static int find(machine_t *m, handle_t handle, gpu_t **gpu) {
    int error = look(m);
    long index = (long)handle - 1;
    if (error) return error;
    if (index < 0 || index >= m->count || !m->gpu[index].present) return INVALID_ARGUMENT;
    *gpu = &m->gpu[index];
    return (*gpu)->error;
}

static void text(char *to, unsigned length, const char *from) { snprintf(to, length, "%s", from); }

int nvmlInitWithFlags(unsigned flags) {
    machine_t m;
    int error = look(&m);
    (void)flags;
    return error ? error : m.init_error;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) {
    switch (error) {
    case OK: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
    }
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    machine_t m;
    int error = look(&m);
    if (!error) text(version, length, m.driver);
    return error;
}
int nvmlSystemGetCudaDriverVersion(int *version) {
    machine_t m;
    int error = look(&m);
    if (!error) *version = m.cuda;
    return error;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    machine_t m;
    int error = look(&m);
    if (!error) *count = (unsigned)m.count;
    return error;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *handle) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, (handle_t)(long)(index + 1), &g);
    if (!error) *handle = (handle_t)(long)(index + 1);
    return error;
}
int nvmlDeviceGetUUID(handle_t handle, char *uuid, unsigned length) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (!error) text(uuid, length, g->uuid);
    return error;
}
int nvmlDeviceGetName(handle_t handle, char *name, unsigned length) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (!error) text(name, length, g->name);
    return error;
}
int nvmlDeviceGetMemoryInfo(handle_t handle, memory_t *memory) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    memory->total = (unsigned long long)g->memory_mib << 20;
    memory->used = 0;
    for (int i = 0; i < g->processes; i++) memory->used += (unsigned long long)g->process_mib[i] << 20;
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetPciInfo_v3(handle_t handle, pci_t *pci) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    memset(pci, 0, sizeof *pci);
    text(pci->bus_id, sizeof pci->bus_id, g->pci);
    return OK;
}
int nvmlDeviceGetNumaNodeId(handle_t handle, int *node) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (g->numa < 0) return NOT_SUPPORTED;
    *node = g->numa;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(handle_t handle, int *major, int *minor) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    *major = g->major;
    *minor = g->minor;
    return OK;
}
int nvmlDeviceGetMigMode(handle_t handle, unsigned *current, unsigned *pending) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (g->mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)g->mig;
    return OK;
}
/* Two calls: the first, with no room, is answered with the number that is needed. */
int nvmlDeviceGetComputeRunningProcesses_v3(handle_t handle, unsigned *count, process_t *processes) {
    machine_t m;
    gpu_t *g;
    unsigned room = *count;
    int error = find(&m, handle, &g);
    if (error) return error;
    *count = (unsigned)g->processes;
    if (g->processes == 0) return OK;
    if (room < (unsigned)g->processes || !processes) return INSUFFICIENT_SIZE;
    for (int i = 0; i < g->processes; i++)
        processes[i] = (process_t){g->pid[i], (unsigned long long)g->process_mib[i] << 20, 0xFFFFFFFFu, 0xFFFFFFFFu};
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(handle_t first, handle_t second, unsigned *level) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, first, &g);
    if (!error) *level = (unsigned)m.ancestor[(long)first - 1][(long)second - 1];
    return error;
}
int nvmlDeviceGetP2PStatus(handle_t first, handle_t second, unsigned index, unsigned *status) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, first, &g);
    (void)index;
    if (!error) *status = (unsigned)m.p2p[(long)first - 1][(long)second - 1];
    return error;
}
int nvmlDeviceGetNvLinkState(handle_t handle, unsigned link, unsigned *active) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    *active = g->link[link][0] != 0;
    return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(handle_t handle, unsigned link, unsigned *type) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (link >= MAX_LINKS || !g->link[link][0]) return INVALID_ARGUMENT;
    *type = strcmp(g->link[link], "switch") ? 0 : 2;
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle_t handle, unsigned link, pci_t *pci) {
    machine_t m;
    gpu_t *g;
    int error = find(&m, handle, &g);
    if (error) return error;
    if (link >= MAX_LINKS || !g->link[link][0]) return INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    text(pci->bus_id, sizeof pci->bus_id, g->link[link]);
    return OK;
}
