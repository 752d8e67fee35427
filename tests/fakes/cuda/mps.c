/* A client of MPS: joins the daemon of CUDA_MPS_PIPE_DIRECTORY at cuInit, as tests/fakes/mps/control.c serves it.
 * Without a daemon the process goes on without MPS. Its limits are the lower ones of the server and of its variables. */
#define _GNU_SOURCE
#include "world.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int server = -1; /* the connection; -1: this process is no client */
static int percent = 100, device_count = -1, of_server[DEVICES];
static uint64_t limit[DEVICES]; /* by the client's order of devices; 0: none */
static _Atomic int failed;

static uint64_t parsed(const char *value) {
    char *unit;
    const uint64_t amount = strtoull(value, &unit, 10);
    return amount << (*unit == 'G' ? 30 : *unit == 'M' ? 20 : 0);
}

static int place_of(const char *name) {
    char uuid[64];
    for (int i = 0; i < DEVICES && i < device_count; i++) {
        snprintf(uuid, sizeof uuid, "GPU-00000000-0000-0000-0000-%012x", (unsigned)of_server[i] + 1);
        if (!strncmp(name, uuid, strlen(uuid))) return i;
    }
    return *name >= '0' && *name <= '9' ? atoi(name) : -1;
}

static void lower(const char *list) {
    while (list && *list && *list != '-') {
        const char *value = strchr(list, '=');
        const int at = place_of(list);
        if (!value) return;
        if (at >= 0 && at < DEVICES && (!limit[at] || parsed(value + 1) < limit[at])) limit[at] = parsed(value + 1);
        list += strcspn(list, ",");
        list += *list == ',';
    }
}

static void see(const char *devices) {
    device_count = 0;
    if (*devices == '-')
        while (device_count < world()->devices) of_server[device_count] = device_count, device_count++;
    while (*devices && *devices != '-' && device_count < DEVICES) {
        const char *last = strrchr(devices, '-');
        of_server[device_count++] = !strncmp(devices, "GPU-", 4) && last ? (int)strtol(last + 1, NULL, 16) - 1
            : atoi(devices);
        devices += strcspn(devices, ",");
        devices += *devices == ',';
    }
}

CUresult mps_join(void) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY"), *own = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    char answer[2048], devices[512], limits[1024];
    ssize_t got;
    int made;
    if (!folder || server >= 0) return CUDA_SUCCESS;
    snprintf(to.sun_path, sizeof to.sun_path, "%s/control", folder);
    made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(made, (struct sockaddr *)&to, sizeof to)) return close(made), CUDA_SUCCESS;
    if (send(made, "CLIENT\n", 7, MSG_NOSIGNAL) < 0 || (got = recv(made, answer, sizeof answer - 1, 0)) <= 0)
        return close(made), CUDA_ERROR_MPS_CONNECTION_FAILED;
    answer[got] = 0;
    if (!strncmp(answer, "SERVER_NOT_READY", 16)) return close(made), CUDA_ERROR_MPS_SERVER_NOT_READY;
    if (!strncmp(answer, "MAX_CLIENTS", 11)) return close(made), CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
    if (sscanf(answer, "OK %d %511s %1023s", &percent, devices, limits) != 3)
        return close(made), CUDA_ERROR_MPS_CONNECTION_FAILED;
    server = made;
    see(devices);
    lower(limits);
    lower(getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
    if (own && *own && atoi(own) < percent) percent = atoi(own);
    return CUDA_SUCCESS;
}

/* What every call that uses the GPU returns from now on; 0 while the server answers. */
CUresult mps_failed(void) {
    char text[8];
    ssize_t got;
    if (server < 0 || failed) return failed;
    got = recv(server, text, sizeof text, MSG_DONTWAIT);
    if (!got || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) failed = CUDA_ERROR_MPS_RPC_FAILURE;
    else if (got > 0) failed = CUDA_ERROR_ILLEGAL_ADDRESS;
    return failed;
}

void mps_fault(void) {
    char heard[8];
    if (server >= 0 && send(server, "FAULT\n", 6, MSG_NOSIGNAL) > 0) recv(server, heard, sizeof heard, 0);
    failed = CUDA_ERROR_ILLEGAL_ADDRESS;
}

int mps_devices(int devices[DEVICES]) {
    for (int i = 0; i < device_count; i++) devices[i] = of_server[i];
    return device_count;
}

uint64_t mps_limit(int device) {
    for (int i = 0; i < device_count && i < DEVICES; i++)
        if (of_server[i] == device && limit[i]) return limit[i];
    return NEVER;
}

int mps_processors(int all) {
    const int some = (all * percent + 99) / 100;
    return server < 0 ? all : some > 1 ? some : 1;
}

static void forked(void) {
    server = device_count = -1;
    failed = 0;
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, forked); }
