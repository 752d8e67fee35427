/* Memory limits of cgroups, as the fake NVML keeps them: "UUID SOFT HARD PATH" in each line of KERF_FAKE_LIMITS.
 * A process is bounded by the nearest limited cgroup of version 2 above it, alone, with all other such processes. */
#include "world.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LIMITS = 256 };
typedef struct { char path[1024]; unsigned long long hard; } limit_t;

static int read_limits(int device, limit_t *to) {
    const char *name = getenv("KERF_FAKE_LIMITS");
    FILE *file = name ? fopen(name, "r") : NULL;
    char uuid[96], wanted[96];
    unsigned long long soft;
    int count = 0;
    snprintf(wanted, sizeof wanted, "GPU-00000000-0000-0000-0000-%012x", (unsigned)device + 1);
    while (file && count < MAX_LIMITS
        && fscanf(file, "%95s %llu %llu %1023[^\n]", uuid, &soft, &to[count].hard, to[count].path) == 4)
        count += !strcmp(uuid, wanted);
    if (file) fclose(file);
    return count;
}

static int ends_with(const char *path, const char *end) {
    const size_t length = strlen(path), wanted = strlen(end);
    return length >= wanted && !strcmp(path + length - wanted, end);
}

/* The index of the limit that bounds a process; -1: none. */
static int limit_of(int pid, const limit_t *limits, int count) {
    char name[64], line[1024], group[1024] = "";
    FILE *file;
    snprintf(name, sizeof name, "/proc/%d/cgroup", pid);
    if (!(file = fopen(name, "r"))) return -1;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "0::", 3)) sscanf(line + 3, "%1023[^\n]", group);
    fclose(file);
    while (strlen(group) > 1) {
        for (int i = 0; i < count; i++)
            if (ends_with(limits[i].path, group)) return i;
        *strrchr(group, '/') = 0;
    }
    return -1;
}

int limit_allows(int device, uint64_t bytes) {
    static limit_t limits[MAX_LIMITS];
    const int gpu = gpu_of(device), count = read_limits(gpu, limits), mine = count ? limit_of(getpid(), limits, count) : -1;
    uint64_t sum = bytes;
    if (mine < 0) return 1;
    for (int p = 0; p < PROCESSES; p++) {
        const process_t *one = &world()->process[p];
        if (one->used && limit_of(one->pid, limits, count) == mine)
            sum += one->bytes[one->device_on[gpu]] - one->unlimited[one->device_on[gpu]];
    }
    return sum <= limits[mine].hard;
}

int limits_managed(void) {
    const char *said = getenv("KERF_FAKE_LIMITS_MANAGED");
    return !getenv("KERF_FAKE_LIMITS") || (said && *said == '1');
}
