/* dataloader: a program with a CUDA context and worker processes, as torch.utils.data.DataLoader and
 * torch.multiprocessing. ROUNDS batches.
 *
 * Four workers are forked after CUDA was initialised and do not use it (DataLoader's default on Linux); they fill batches
 * in shared memory, which the program copies from pinned memory. Two workers are spawned and use CUDA: each has a context,
 * allocates, and opens memory of the program by its handle. One of each kind is killed with SIGKILL, and what it had on
 * the GPU must be free again. */
#include "program.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { FORKED = 4, SPAWNED = 2 };
static const size_t own_bytes = 64 * MIB, shared_bytes = 20 * MIB;
static CUfunction mix;
static CUdeviceptr state, shared;
static void some_work(void) { launch_mix(mix, NULL, 20000, state, 1); }

static void fill_batches(int in, int out, uint64_t *batch, int worker) {
    long round;
    while (read(in, &round, sizeof round) == sizeof round && round >= 0) {
        batch[worker * 512] = (uint64_t)round * 16 + (uint64_t)worker;
        if (write(out, &round, sizeof round) != sizeof round) break;
    }
    _exit(0);
}

/* A spawned worker, in a process of its own: this program again, with the pipes as input and output. Each line of its
 * input is a command. */
static int be_worker(void) {
    char command[16];
    ipc_t handle;
    CUdeviceptr opened = 0, own = 0;
    CUmodule module;
    CUfunction kernel;
    uint64_t value[2] = {0, 0};
    driver_library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver_library) return 3;
    *(void **)&virtual_now = dlsym(driver_library, "kerf_virtual_now");
    *(void **)&virtual_leave = dlsym(driver_library, "kerf_virtual_leave");
    thread_name = "main", phase = "worker";
    CALL(cuInit, 0u);
    use_device(0);
    kernel = load_mix(&module);
    CALL(cuMemAlloc, &own, own_bytes);
    CALL(cuMemsetD8, own, 0, own_bytes);
    if (read(0, &handle, sizeof handle) != sizeof handle) return 4;
    CALL(cuIpcOpenMemHandle, &opened, handle, 1u);
    for (int i = 0; i < 20; i++) launch_mix(kernel, NULL, 20000, own, (uint64_t)i);
    CALL(cuCtxSynchronize);
    CALL(cuMemcpyDtoH, &value[0], own, sizeof *value);
    CALL(cuMemcpyDtoH, &value[1], opened, sizeof *value);
    leave();
    if (write(1, value, sizeof value) != sizeof value || read(0, command, 1) != 1) return 4;
    CALL(cuIpcCloseMemHandle, opened);
    CALL(cuMemFree, own);
    leave();
    return unexpected ? 6 : 0;
}

typedef struct { int pid, to, from; } worker_t;
static worker_t start(const char *self, uint64_t *batch, int index) {
    int down[2], up[2];
    worker_t made;
    if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC)) exit(5);
    made = (worker_t){fork(), down[1], up[0]};
    if (made.pid < 0) exit(5);
    if (!made.pid) {
        close(down[1]), close(up[0]);
        if (!self) fill_batches(down[0], up[1], batch, index);
        dup2(down[0], 0), dup2(up[1], 1);
        setenv("KERF_WORKLOAD_WORKER", "1", 1);
        unsetenv("KERF_FAKE_CUDA_CLIENT");
        execl(self, self, (char *)NULL);
        _exit(127);
    }
    close(down[0]), close(up[1]);
    return made;
}
static int end(worker_t *worker, int with) {
    const long none = -1;
    int status;
    if (with) kill(worker->pid, with);
    else if (write(worker->to, &none, sizeof none) != sizeof none) return -1;
    close(worker->to), close(worker->from);
    return waitpid(worker->pid, &status, 0) == worker->pid ? status : -1;
}

int main(int count, char **words) {
    worker_t forked[FORKED], spawned[SPAWNED];
    uint64_t *batch, *host = NULL, result[1 + 2 * SPAWNED] = {0};
    ipc_t handle;
    int status = 0;
    char more[96];
    if (getenv("KERF_WORKLOAD_WORKER")) return be_worker();
    mix = begin(count, words);
    phase = "init";
    batch = mmap(NULL, FORKED * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CALL(cuMemHostAlloc, (void **)&host, 4 * MIB, 0u);
    CALL(cuMemAlloc, &state, 20 * MIB);
    CALL(cuMemsetD8, state, 0, 20 * MIB);
    CALL(cuMemAlloc, &shared, shared_bytes);
    CALL(cuMemsetD8, shared, 5, shared_bytes);
    CALL(cuCtxSynchronize);
    for (int i = 0; i < FORKED; i++) forked[i] = start(NULL, batch, i);
    checkpoint("forked", 20 * MIB + shared_bytes);
    phase = "loading";
    begin_timed();
    for (long round = 0; round < asked.rounds; round++) {
        const int from = (int)(round % FORKED);
        long filled;
        if (round == asked.rounds / 2) { /* a worker dies, and the loader starts another one */
            status |= end(&forked[0], SIGKILL) != SIGKILL;
            forked[0] = start(NULL, batch, 0);
        }
        if (write(forked[from].to, &round, sizeof round) != sizeof round) return 5;
        if (read(forked[from].from, &filled, sizeof filled) != sizeof filled) return 5;
        host[0] = batch[from * 512];
        CALL(cuMemcpyHtoDAsync, shared, host, 4 * MIB, (CUstream)0);
        for (int kernel = 0; kernel < 10; kernel++) launch_mix(mix, NULL, 60000, state, host[0]);
        if (round % 4 == 3) CALL(cuStreamSynchronize, (CUstream)0);
    }
    CALL(cuCtxSynchronize);
    end_timed();
    phase = "spawning";
    CALL(cuMemsetD8, shared, 5, shared_bytes);
    CALL(cuCtxSynchronize);
    CALL(cuIpcGetMemHandle, &handle, shared);
    leave();
    for (int i = 0; i < SPAWNED; i++) spawned[i] = start("/proc/self/exe", batch, i);
    for (int i = 0; i < SPAWNED; i++) {
        if (write(spawned[i].to, &handle, sizeof handle) != sizeof handle) return 5;
        if (read(spawned[i].from, &result[1 + 2 * i], 2 * sizeof *result) != 2 * sizeof *result) return 5;
    }
    processes = 1 + SPAWNED, imported = SPAWNED * shared_bytes;
    checkpoint("spawned", 20 * MIB + shared_bytes + SPAWNED * own_bytes);
    leave();
    status |= end(&spawned[0], SIGKILL) != SIGKILL;
    processes = 2, imported = shared_bytes;
    checkpoint("one killed", 20 * MIB + shared_bytes + own_bytes);
    leave();
    status |= end(&spawned[1], 0) << 8;
    processes = 1, imported = 0;
    checkpoint("ended", 20 * MIB + shared_bytes);
    phase = "results";
    CALL(cuMemcpyDtoH, &result[0], state, sizeof *result);
    for (int i = 0; i < FORKED; i++) status |= end(&forked[i], 0) << 16;
    go_beyond(some_work);
    phase = "freeing";
    CALL(cuMemFree, state);
    CALL(cuMemFree, shared);
    CALL(cuMemFreeHost, host);
    snprintf(more, sizeof more, "\"workers_status\": %d, ", status);
    return finish(result, 1 + 2 * SPAWNED, more);
}
