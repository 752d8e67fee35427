/* The shared world: its file, its processes, and the memory of dead processes. */
#define _GNU_SOURCE
#include "world.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

static world_t *shared;
static int own = -1;
static char path[512]; /* of the shared file */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void fail(const char *what) {
    perror(what);
    abort();
}

/* "25000:24000,12000:11000": to and from the first device, then the second, in MB/s. */
static void read_host_bandwidth(world_t *w, const char *text) {
    for (int d = 0; text && *text && d < DEVICES; d++) {
        char *end;
        w->host_bytes_per_s[d][0] = strtoull(text, &end, 10) * 1000000;
        w->host_bytes_per_s[d][1] = *end == ':' ? strtoull(end + 1, &end, 10) * 1000000 : 0;
        text = *end == ',' ? end + 1 : NULL;
    }
}

static void create(world_t *w) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&w->lock, &attributes);
    w->devices = (int)setting("KERF_FAKE_CUDA_DEVICES", 1);
    w->expected = (int)setting("KERF_FAKE_CUDA_CLIENTS", 0);
    w->memory_bytes = setting("KERF_FAKE_CUDA_MIB", 16384) << 20;
    w->context_bytes = setting("KERF_FAKE_CUDA_CONTEXT_MIB", 0) << 20;
    w->pool_chunk_bytes = setting("KERF_FAKE_CUDA_POOL_KIB", 2048) << 10;
    w->out_per_s = setting("KERF_FAKE_CUDA_COPY_MIB", 0) << 20;
    w->back_per_s = setting("KERF_FAKE_CUDA_BACK_MIB", w->out_per_s >> 20) << 20;
    w->checkpoint_ns = setting("KERF_FAKE_CUDA_CHECKPOINT_US", 0) * 1000;
    read_host_bandwidth(w, getenv("KERF_FAKE_CUDA_HOST_MB_S"));
    w->version = (int)setting("KERF_FAKE_CUDA_VERSION", 13000);
    snprintf(w->model, sizeof w->model, "%s", getenv("KERF_FAKE_CUDA_MODELS") ? getenv("KERF_FAKE_CUDA_MODELS") : "");
    w->slice_ns = setting("KERF_FAKE_CUDA_SLICE_US", 2000) * 1000;
    w->launch_ns = setting("KERF_FAKE_CUDA_LAUNCH_NS", 2000);
    w->event_ns = setting("KERF_FAKE_CUDA_EVENT_NS", 0);
    w->switch_ns = setting("KERF_FAKE_CUDA_SWITCH_NS", 0);
    w->late_ns = setting("KERF_FAKE_CUDA_LATE_NS", 0);
    w->now_ns = 1000000000;
    w->baton = -1;
    for (int d = 0; d < DEVICES; d++) w->device[d].at_ns = w->now_ns, w->device[d].running = -1;
    w->ready = 1;
}

static struct flock place(int process) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0x40000000 + process, .l_len = 1};
}

static void map(void) {
    const char *named = getenv("KERF_FAKE_CUDA");
    world_t *made;
    int descriptor = named ? open(named, O_RDWR | O_CREAT | O_CLOEXEC, 0666)
        : memfd_create("kerf-fake-cuda", MFD_CLOEXEC);
    if (named) snprintf(path, sizeof path, "%s", named);
    else snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    if (descriptor < 0) fail("KERF_FAKE_CUDA");
    flock(descriptor, LOCK_EX);
    if (ftruncate(descriptor, sizeof(world_t))) fail("KERF_FAKE_CUDA");
    made = mmap(NULL, sizeof(world_t), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (made == MAP_FAILED) fail("KERF_FAKE_CUDA");
    if (!made->ready) create(made);
    __atomic_store_n(&shared, made, __ATOMIC_RELEASE);
    flock(descriptor, LOCK_UN);
    if (named) close(descriptor);
}

world_t *world(void) {
    if (__atomic_load_n(&shared, __ATOMIC_ACQUIRE)) return shared;
    pthread_mutex_lock(&opening);
    if (!shared) map();
    pthread_mutex_unlock(&opening);
    return shared;
}

void lock(void) {
    if (pthread_mutex_lock(&world()->lock) == EOWNERDEAD) pthread_mutex_consistent(&shared->lock);
}
void unlock(void) { pthread_mutex_unlock(&shared->lock); }

/* A mapping that no child inherits holds a process's lock, so the kernel releases it with the process's memory,
 * however the process ends. A program may close all descriptors, as with a real driver. */
int alive(int process) {
    struct flock asked = place(process);
    int file, found;
    if (process == own) return 1;
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) fail(path);
    found = fcntl(file, F_OFD_GETLK, &asked);
    close(file);
    return found || asked.l_type != F_UNLCK;
}

static void take_place(int file) {
    void *pin = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, file, 0);
    if (pin == MAP_FAILED || madvise(pin, 4096, MADV_DONTFORK)) fail("KERF_FAKE_CUDA");
    for (int p = 0; p < PROCESSES && own < 0; p++) {
        struct flock wanted = place(p);
        if (shared->process[p].used || fcntl(file, F_OFD_SETLK, &wanted)) continue;
        memset(&shared->process[p], 0, sizeof(process_t));
        for (int d = 0; d < DEVICES; d++) shared->process[p].gpu[d] = shared->process[p].device_on[d] = d;
        shared->process[p].used = 1;
        shared->process[p].pid = (int)getpid();
        shared->process[p].container = (int)(setting("KERF_FAKE_CUDA_CONTAINER", 0) % CONTAINERS);
        own = p;
    }
}

void bury(void) {
    for (int p = 0; p < PROCESSES; p++) {
        process_t *dead = &shared->process[p];
        if (!dead->used || alive(p)) continue;
        for (int d = 0; d < DEVICES; d++) {
            dead->bytes[d] = dead->host[d] = dead->unlimited[d] = 0;
            dead->queue[d].completed = dead->queue[d].submitted;
        }
        for (int s = 0; s < SHARES; s++) shared->share[s].holder[p] = 0;
        for (int c = 0; c < CLIENTS; c++)
            if (shared->client[c].used && shared->client[c].process == p) {
                shared->client[c].used = 0;
                if (shared->baton == c) shared->baton = -1;
            }
        dead->used = 0;
    }
}

int me(void) {
    int file;
    world();
    if (own >= 0) return own;
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) fail(path);
    lock();
    bury();
    take_place(file);
    unlock();
    close(file);
    if (own < 0) fail("too many processes");
    return own;
}

int gpu_of(int device) { return world()->process[me()].gpu[device]; }

static void forked(void) {
    own = -1;
    pthread_mutex_init(&opening, NULL);
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, forked); }
