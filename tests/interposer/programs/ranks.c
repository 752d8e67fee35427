/* ranks INDEX COUNT ROUNDS MIB [AWAY]: one of COUNT processes, each on a GPU of its own. A round is three kernels that
 * compute on its memory, and a kernel of a collective, which spins until those of all processes of this round have come. It
 * launches up to 40 rounds ahead of its GPU, and allocates and frees memory now and then, as frameworks do. Prints a line
 * when its first round is done, another one twenty rounds later, and its result at the end. With AWAY it waits for a line
 * after its first round. */
#include "api.h"

enum { AHEAD = 40, EVERY = 7 };

int main(int argc, char **argv) {
    uint64_t ns, number = 1, count, seed = 88172645463325252u, word = 0;
    CUdeviceptr memory, more;
    CUfunction mix, rally;
    long index, processes, rounds;
    if (argc < 5) return 2;
    index = atol(argv[1]), processes = atol(argv[2]), rounds = atol(argv[3]);
    use_device((int)index);
    mix = kernel("mix"), rally = kernel("rally");
    NEED(CALL(cuMemAlloc, _v2, 3020)(&memory, (size_t)atol(argv[4]) << 20));
    NEED(CALL(cuMemcpyHtoD, _v2, 3020)(memory, &index, sizeof index));
    for (long round = 0; round < rounds; round++) {
        void *collective[] = {&(uint64_t){20000}, &number, &count};
        count = (uint64_t)(round + 1) * (uint64_t)processes;
        for (uint64_t i = 0; i < 3; i++) {
            uint64_t what = (uint64_t)round * 3 + i + (uint64_t)index;
            void *computing[] = {&ns, &memory, &what};
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            ns = 100000 + (seed + (uint64_t)index * 7919) % 400000;
            NEED(CALL(cuLaunchKernel, , 7000)(mix, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)0, computing, (void **)NULL));
        }
        NEED(CALL(cuLaunchKernel, , 7000)(rally, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)0, collective, (void **)NULL));
        if (!round || round % AHEAD == AHEAD - 1) NEED(CALL(cuCtxSynchronize, , 2000)());
        if (!round || round == AHEAD / 2) puts(round ? "ahead" : "begun"), fflush(stdout);
        if (!round && argc > 5) {
            char line[8];
            FIGURE(void (*)(void), "kerf_virtual_leave")();
            if (!fgets(line, sizeof line, stdin)) return 3;
        }
        if (round % EVERY == index % EVERY) {
            NEED(CALL(cuMemAlloc, _v2, 3020)(&more, (size_t)4 << 20));
            NEED(CALL(cuMemFree, _v2, 3020)(more));
        }
    }
    NEED(CALL(cuCtxSynchronize, , 2000)());
    NEED(CALL(cuMemcpyDtoH, _v2, 3020)(&word, memory, sizeof word));
    printf("%lu\n", word);
    return 0;
}
