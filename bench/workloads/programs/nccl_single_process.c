/* nccl_single_process: one process with a thread for each GPU, as torch.nn.parallel and NCCL's ncclCommInitAll. ROUNDS
 * collectives, each between kernels of its own.
 *
 * A collective's kernel spins until those of all other GPUs have come. Behind the first one, the first GPU's thread
 * launches a kernel whose code is loaded lazily (CUDA_MODULE_LOADING=LAZY), which waits for the GPU, and so for the other
 * thread's launch: a library that holds a lock during the driver's launch stops both for ever. Peer access and copies
 * between GPUs, and handles for other processes. */
#include "program.h"

typedef struct { int index; CUcontext context; CUfunction mix, meet, late; CUdeviceptr data, received; uint64_t result; } rank_t;
static rank_t rank[MAX_DEVICES];
static CUdeviceptr counter;
static _Atomic int behind_collective;
static _Atomic int ready;

static void some_work(void) { launch_mix(rank[0].mix, NULL, 20000, rank[0].data, 1); }

static void meet(const rank_t *r, CUstream stream, uint64_t count) {
    uint64_t ns = 30000, steps = (uint64_t)((double)ns * steps_per_ns);
    void *parameters[] = {&steps, &counter, &count};
    CALL(cuLaunchKernel, r->meet, 1u, 1u, 1u, 64u, 1u, 1u, 0u, stream, parameters, (void **)NULL);
}

static void *run(void *which) {
    rank_t *r = which;
    const rank_t *next = &rank[(r->index + 1) % asked.devices];
    CUstream stream;
    static const char *const names[MAX_DEVICES] = {"rank 0", "rank 1", "rank 2", "rank 3", "rank 4", "rank 5", "rank 6",
        "rank 7"};
    thread_name = names[r->index];
    counts_time = r->index == 0;
    CALL(cuCtxSetCurrent, r->context);
    for (int peer = 0; peer < asked.devices; peer++) {
        int can = 0;
        if (peer == r->index) continue;
        CALL(cuDeviceCanAccessPeer, &can, r->index, peer);
        if (can) CALL(cuCtxEnablePeerAccess, rank[peer].context, 0u);
    }
    CALL(cuStreamCreate, &stream, 1u);
    sleep_us(1);
    ready++;
    while (ready < asked.devices) sleep_us(20); /* all of them on the clock */
    if (!r->index) timed_ns = now_ns(), gpu_ns = 0;
    for (long round = 0; round < asked.rounds; round++) {
        for (int kernel = 0; kernel < 6; kernel++) launch_mix(r->mix, stream, 40000, r->data, (uint64_t)round);
        if (round == 0 && r->index) {
            while (!behind_collective) sleep_us(20);
            sleep_us(200);
        }
        if (round == 0 && !r->index) behind_collective = 1;
        meet(r, stream, (uint64_t)(round + 1) * (uint64_t)asked.devices);
        if (round == 0) launch_mix(r->late, stream, 10000, r->data, 7);
        CALL(cuMemcpyPeerAsync, next->received, next->context, r->data, r->context, sizeof r->result, stream);
        if (round % 8 == 7) CALL(cuStreamSynchronize, stream);
    }
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemcpyDtoH, &r->result, r->data, sizeof r->result);
    CALL(cuStreamDestroy, stream);
    leave();
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread[MAX_DEVICES];
    CUmodule module[MAX_DEVICES], late[MAX_DEVICES];
    uint64_t *host = NULL, result[MAX_DEVICES];
    ipc_t handle;
    begin(count, words);
    phase = "init";
    CALL(cuMemHostAlloc, (void **)&host, (size_t)4096, 3u);
    host[0] = 0;
    CALL(cuMemHostGetDevicePointer, &counter, host, 0u);
    for (int d = 0; d < asked.devices; d++) {
        rank_t *r = &rank[d];
        *r = (rank_t){.index = d, .context = use_device(d)};
        r->mix = load_mix(&module[d]);
        CALL(cuModuleGetFunction, &r->meet, module[d], "meet");
        r->late = load_mix(&late[d]);
        CALL(cuMemAlloc, &r->data, 20 * MIB);
        CALL(cuMemsetD8, r->data, 0, 20 * MIB);
        CALL(cuMemAlloc, &r->received, 2 * MIB);
        launch_mix(r->mix, NULL, 1000, 0, 0);
        CALL(cuCtxSynchronize);
    }
    CALL(cuCtxSetCurrent, rank[0].context);
    checkpoint("allocated", 22 * MIB);
    CALL(cuIpcGetMemHandle, &handle, rank[0].data);
    phase = "collectives";
    begin_timed();
    leave();
    for (int d = 0; d < asked.devices; d++) pthread_create(&thread[d], NULL, run, &rank[d]);
    for (int d = 0; d < asked.devices; d++) pthread_join(thread[d], NULL);
    end_timed();
    phase = "results";
    for (int d = 0; d < asked.devices; d++) result[d] = rank[d].result;
    go_beyond(some_work);
    phase = "freeing";
    for (int d = asked.devices; d-- > 0;) {
        CALL(cuCtxSetCurrent, rank[d].context);
        CALL(cuMemFree, rank[d].data);
        CALL(cuMemFree, rank[d].received);
        CALL(cuModuleUnload, late[d]);
        CALL(cuModuleUnload, module[d]);
        if (d) CALL(cuDevicePrimaryCtxRelease, d);
    }
    CALL(cuCtxSetCurrent, rank[0].context);
    CALL(cuDevicePrimaryCtxRelease, 0); /* begin retained it too */
    CALL(cuMemFreeHost, host);
    return finish(result, asked.devices, "");
}
