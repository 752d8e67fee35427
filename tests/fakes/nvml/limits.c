/* Memory limits of cgroups, kept in the file KERF_FAKE_LIMITS, which the fake libcuda reads: "UUID SOFT HARD PATH" in
 * each line. Without the variable the driver has none. With KERF_FAKE_LIMITS_DEAF it keeps none that it is told. */
#include "machine.h"
#include <fcntl.h>
#include <sys/file.h>

typedef struct { const char *name_space; unsigned long long soft, hard; } set_limits_t;
typedef struct { const char *name_space; unsigned long long soft, hard, used; } get_limits_t;
enum { MAX_LIMITS = 256, NO_PERMISSION = 4 };
typedef struct { char uuid[96], path[1024]; unsigned long long soft, hard; } limit_t;
static const unsigned long long NO_LIMIT = ~0ull;

static int gpu_of(handle_t handle, gpu_t **g) {
    machine_t *m;
    int error = find(&m, handle, g);
    if (error) return error;
    return !getenv("KERF_FAKE_LIMITS") || (*g)->mig == 1 ? NOT_SUPPORTED : OK;
}

static int read_all(limit_t *to) {
    FILE *file = fopen(getenv("KERF_FAKE_LIMITS"), "r");
    int count = 0;
    struct stat found;
    while (file && count < MAX_LIMITS
        && fscanf(file, "%95s %llu %llu %1023[^\n]", to[count].uuid, &to[count].soft, &to[count].hard,
            to[count].path) == 4)
        if (!stat(to[count].path, &found)) count++; /* removing the cgroup clears its limits */
    if (file) fclose(file);
    return count;
}

int nvmlDeviceSetMemoryLimits_v1(handle_t handle, const set_limits_t *limits) {
    static limit_t all[MAX_LIMITS + 1];
    char beside[1024];
    struct stat found;
    gpu_t *g;
    int count, error = gpu_of(handle, &g), lock;
    FILE *file;
    if (error) return error;
    if (geteuid()) return NO_PERMISSION;
    if (stat(limits->name_space, &found) || !S_ISDIR(found.st_mode)) return INVALID_ARGUMENT;
    if (getenv("KERF_FAKE_LIMITS_DEAF")) return OK;
    snprintf(beside, sizeof beside, "%s.lock", getenv("KERF_FAKE_LIMITS"));
    lock = open(beside, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    flock(lock, LOCK_EX);
    count = read_all(all);
    all[count] = (limit_t){.soft = limits->soft, .hard = limits->hard};
    text(all[count].uuid, sizeof all[count].uuid, g->uuid);
    text(all[count].path, sizeof all[count].path, limits->name_space);
    snprintf(beside, sizeof beside, "%s.new", getenv("KERF_FAKE_LIMITS"));
    file = fopen(beside, "w");
    for (int i = 0; i <= count; i++) {
        const int replaced = i < count && !strcmp(all[i].uuid, g->uuid) && !strcmp(all[i].path, limits->name_space);
        const int cleared = !all[i].soft && all[i].hard == NO_LIMIT;
        if (!replaced && !cleared)
            fprintf(file, "%s %llu %llu %s\n", all[i].uuid, all[i].soft, all[i].hard, all[i].path);
    }
    fclose(file);
    rename(beside, getenv("KERF_FAKE_LIMITS"));
    close(lock);
    return OK;
}

/* NOT_FOUND: nothing was set there. What is used is not known here. */
int nvmlDeviceGetMemoryLimits_v1(handle_t handle, get_limits_t *limits) {
    static limit_t all[MAX_LIMITS];
    gpu_t *g;
    int count, error = gpu_of(handle, &g);
    if (error) return error;
    count = read_all(all);
    for (int i = 0; i < count; i++) {
        if (strcmp(all[i].uuid, g->uuid) || strcmp(all[i].path, limits->name_space)) continue;
        limits->soft = all[i].soft, limits->hard = all[i].hard, limits->used = 0;
        return OK;
    }
    return NOT_FOUND;
}
