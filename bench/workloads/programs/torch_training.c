/* torch_training: steps of a training as PyTorch makes them. ROUNDS steps.
 *
 * Memory as in c10/cuda/CUDACachingAllocator.cpp: cuMemAlloc of 2 MiB for small tensors, 20 MiB for those below 10 MiB,
 * multiples of 2 MiB above; blocks are kept, and freed in the end after a wait. Batches come from pinned memory on a
 * stream of their own, and the default stream waits for their event. Every 10 steps the program reads the loss. */
#include "program.h"

enum { LAYERS = 20, SMALL = 8, BLOCKS = LAYERS + SMALL + 4 };
static CUdeviceptr block[BLOCKS];
static size_t size[BLOCKS], held;
static CUfunction mix;

static void take(int i, size_t bytes) {
    if (!CALL(cuMemAlloc, &block[i], bytes)) CALL(cuMemsetD8Async, block[i], 0, bytes, (CUstream)0);
    held += size[i] = bytes;
}
static void some_work(void) { launch_mix(mix, NULL, 20000, block[0], 1); }

int main(int count, char **words) {
    CUevent copied, computed;
    CUstream copies;
    uint64_t *batch = NULL, *loss = NULL, losses = 0, result[BLOCKS];
    
    mix = begin(count, words);
    phase = "init";
    CALL(cuStreamCreateWithPriority, &copies, 1u, 0);
    CALL(cuEventCreate, &copied, EVENT_DISABLE_TIMING);
    CALL(cuEventCreate, &computed, EVENT_DISABLE_TIMING);
    CALL(cuMemHostAlloc, (void **)&batch, 4 * MIB, 0u);
    CALL(cuMemHostAlloc, (void **)&loss, (size_t)4096, 0u);
    for (int i = 0; i < SMALL; i++) take(i, 2 * MIB);
    for (int i = 0; i < LAYERS; i++) take(SMALL + i, 20 * MIB);
    for (int i = SMALL + LAYERS; i < BLOCKS; i++) take(i, asked.limit / 16 / (2 * MIB) * (2 * MIB));
    CALL(cuCtxSynchronize);
    checkpoint("allocated", held);
    phase = "training";
    begin_timed();
    for (long step = 0; step < asked.rounds; step++) {
        batch[0] = (uint64_t)step + 1;
        CALL(cuMemcpyHtoDAsync, block[BLOCKS - 1], batch, 4 * MIB, copies);
        CALL(cuEventRecord, copied, copies);
        CALL(cuStreamWaitEvent, (CUstream)0, copied, 0u);
        for (int layer = 0; layer < LAYERS; layer++) { /* forward */
            launch_mix(mix, NULL, 45000, block[SMALL + LAYERS + layer % 3], (uint64_t)layer);
            launch_mix(mix, NULL, 9000, block[layer % SMALL], (uint64_t)step);
        }
        for (int layer = LAYERS; layer-- > 0;) { /* backward */
            launch_mix(mix, NULL, 50000, block[SMALL + LAYERS + layer % 3], (uint64_t)layer);
            launch_mix(mix, NULL, 40000, block[SMALL + layer], (uint64_t)step);
            launch_mix(mix, NULL, 6000, block[layer % SMALL], 1);
        }
        for (int part = 0; part < 4; part++) launch_mix(mix, NULL, 60000, block[SMALL + part], 3); /* optimizer */
        CALL(cuEventRecord, computed, (CUstream)0);
        CALL(cuStreamWaitEvent, copies, computed, 0u); /* before the batch's memory is written again */
        if (step % 10 == 9) {
            CALL(cuMemcpyDtoHAsync, loss, block[0], sizeof *loss, (CUstream)0);
            CALL(cuStreamSynchronize, (CUstream)0);
            losses = losses * MIX_BY + *loss;
        } else while (TRY(cuEventQuery, copied) == CUDA_ERROR_NOT_READY) sleep_us(50); /* the batch may be filled again */
    }
    CALL(cuCtxSynchronize);
    end_timed();
    phase = "results";
    for (int i = 0; i < BLOCKS; i++) CALL(cuMemcpyDtoH, &result[i], block[i], sizeof *result);
    result[BLOCKS - 1] = losses;
    go_beyond(some_work);
    phase = "freeing";
    for (int i = 0; i < BLOCKS; i++) CALL(cuMemFree, block[i]);
    CALL(cuMemFreeHost, batch);
    CALL(cuMemFreeHost, loss);
    CALL(cuEventDestroy, copied);
    CALL(cuEventDestroy, computed);
    CALL(cuStreamDestroy, copies);
    return finish(result, BLOCKS, "");
}
