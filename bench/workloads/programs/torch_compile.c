/* torch_compile: code that arrives while the program runs, as Triton's kernels under torch.compile. ROUNDS rounds of two
 * launches, the second one of which may overlap the first (cuLaunchKernelEx); in every fourth round new code is loaded,
 * every second time as a library (cuLibraryLoadData, CUDA 12), otherwise as a module (cuModuleLoadDataEx), and launched at
 * once. Two other threads launch and wait without end. */
#include "program.h"

enum { THREADS = 2, MOST = 4096 };
static CUfunction mix;
static CUcontext context;
static CUdeviceptr word[THREADS + 1];
static uint64_t result[THREADS + 1];
static void some_work(void) { launch_mix(mix, NULL, 20000, word[0], 1); }

static void *launch_all(void *which) {
    const long index = (long)which;
    CUstream stream;
    thread_name = index ? "launches 1" : "launches 0";
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreate, &stream, 1u);
    for (long round = 0; round < asked.rounds * 4; round++) {
        for (int kernel = 0; kernel < 3; kernel++) launch_mix(mix, stream, 30000, word[index], (uint64_t)round);
        CALL(cuStreamSynchronize, stream);
    }
    CALL(cuStreamDestroy, stream);
    leave();
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread[THREADS];
    CUstream stream;
    static void *loaded[MOST];
    CUfunction function = NULL;
    mix = begin(count, words);
    if (asked.rounds > MOST) asked.rounds = MOST;
    phase = "init";
    CALL(cuCtxGetCurrent, &context);
    for (int i = 0; i <= THREADS; i++) {
        CALL(cuMemAlloc, &word[i], 20 * MIB);
        CALL(cuMemsetD8, word[i], 0, 20 * MIB);
    }
    CALL(cuStreamCreate, &stream, 1u);
    checkpoint("allocated", (THREADS + 1) * 20 * MIB);
    phase = "compiling";
    begin_timed();
    for (long i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, launch_all, (void *)i);
    for (long round = 0; round < asked.rounds; round++) {
        if (round % 8 == 4) {
            void *kernel = NULL;
            CALL(cuLibraryLoadData, &loaded[round], ptx, (int *)NULL, (void **)NULL, 0u, (int *)NULL, (void **)NULL, 0u);
            CALL(cuLibraryGetKernel, &kernel, loaded[round], "mix");
            CALL(cuKernelGetFunction, &function, kernel);
        } else if (round % 8 == 0) {
            CALL(cuModuleLoadDataEx, &loaded[round], ptx, 0u, (int *)NULL, (void **)NULL);
            CALL(cuModuleGetFunction, &function, loaded[round], "mix");
        }
        launch_mix(function, stream, 50000, word[THREADS], (uint64_t)round);
        launch_dependent(function, stream, 20000, 0, 0);
        if (round % 16 == 15) CALL(cuStreamSynchronize, stream);
    }
    CALL(cuStreamSynchronize, stream);
    leave();
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    CALL(cuCtxSynchronize);
    end_timed();
    phase = "results";
    for (int i = 0; i <= THREADS; i++) CALL(cuMemcpyDtoH, &result[i], word[i], sizeof *result);
    go_beyond(some_work);
    phase = "freeing";
    for (long round = 0; round < asked.rounds; round += 4) {
        if (round % 8) CALL(cuLibraryUnload, loaded[round]);
        else CALL(cuModuleUnload, loaded[round]);
    }
    for (int i = 0; i <= THREADS; i++) CALL(cuMemFree, word[i]);
    CALL(cuStreamDestroy, stream);
    return finish(result, THREADS + 1, "");
}
