/* torch_serving: short requests with pauses between them, as a PyTorch model behind a server. ROUNDS requests.
 *
 * Requests come in bursts of five, 4 ms apart, and 40 ms after the last one: they are due at their own times, however long
 * the others took. Each copies its input from pinned memory, launches 14 kernels and copies its output back; the program
 * learns of its end by polling an event, as torch.cuda.Event.query does. */
#include "program.h"

enum { KERNELS = 14, BURST = 5 };
static CUfunction mix;
static CUdeviceptr weights, state;
static void some_work(void) { launch_mix(mix, NULL, 20000, state, 1); }

int main(int count, char **words) {
    CUevent done;
    CUstream stream;
    uint64_t *host = NULL, *latency, due, result[2] = {0, 0};
    char more[128];
    mix = begin(count, words);
    phase = "init";
    CALL(cuMemAlloc, &weights, asked.limit / 2 / (2 * MIB) * (2 * MIB));
    CALL(cuMemAlloc, &state, 20 * MIB);
    CALL(cuMemsetD8, state, 0, 20 * MIB);
    CALL(cuMemHostAlloc, (void **)&host, 2 * MIB, 0u);
    CALL(cuStreamCreate, &stream, 1u);
    CALL(cuEventCreate, &done, EVENT_DISABLE_TIMING);
    latency = calloc((size_t)asked.rounds, sizeof *latency);
    checkpoint("allocated", asked.limit / 2 / (2 * MIB) * (2 * MIB) + 20 * MIB);
    phase = "serving";
    begin_timed();
    due = now_ns();
    for (long request = 0; request < asked.rounds; request++) {
        if (now_ns() < due) sleep_until(due);
        host[0] = (uint64_t)request + 1;
        CALL(cuMemcpyHtoDAsync, weights, host, 1 * MIB, stream);
        for (int kernel = 0; kernel < KERNELS; kernel++)
            launch_mix(mix, stream, 70000, state, (uint64_t)(request * KERNELS + kernel));
        CALL(cuMemcpyDtoHAsync, host + 1, state, sizeof *host, stream);
        CALL(cuEventRecord, done, stream);
        while (TRY(cuEventQuery, done) == CUDA_ERROR_NOT_READY) sleep_us(20);
        latency[request] = now_ns() - due;
        result[1] = result[1] * MIX_BY + host[1];
        due += request % BURST == BURST - 1 ? 40000000 : 4000000;
    }
    CALL(cuStreamSynchronize, stream);
    end_timed();
    phase = "results";
    CALL(cuMemcpyDtoH, &result[0], state, sizeof *result);
    go_beyond(some_work);
    phase = "freeing";
    CALL(cuMemFree, weights);
    CALL(cuMemFree, state);
    CALL(cuMemFreeHost, host);
    CALL(cuEventDestroy, done);
    CALL(cuStreamDestroy, stream);
    snprintf(more, sizeof more, "\"p50_ns\": %lu, \"p99_ns\": %lu, ", percentile(latency, asked.rounds, 50),
        percentile(latency, asked.rounds, 99));
    return finish(result, 2, more);
}
