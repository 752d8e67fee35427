/* idle LAUNCHES: measures the cost of the hook per launch: the minimum of ten means with the interposer and without
 * it, in picoseconds, on a capturing stream (the fake driver only adds a number then). */
#include "api.h"
#include <time.h>

typedef CUresult (*launch_t)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
    void **, void **);
static double least(launch_t call, CUfunction f, CUstream stream, long launches) {
    double best = 1e18;
    for (int round = 0; round < 10; round++) {
        struct timespec a, b;
        double mean;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        for (long i = 0; i < launches; i++) call(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        mean = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)launches;
        if (mean < best) best = mean;
    }
    return best;
}

int main(int argc, char **argv) {
    CUstream stream;
    launch_t hooked, straight = NULL;
    void *past = NULL;
    int status;
    CUfunction f;
    if (argc < 2) return 2;
    open_driver();
    use_device(0);
    f = kernel("ns_1");
    NEED(CALL(cuStreamCreate, , 2000)(&stream, 1u));
    NEED(CALL(cuStreamBeginCapture, _v2, 10010)(stream, 0));
    hooked = (launch_t)CALL(cuLaunchKernel, , 7000);
    FIGURE(any_t, "kerf_fake_get")("cuLaunchKernel", &past, 7000, (uint64_t)0, &status);
    straight = (launch_t)past;
    printf("%.0f %.0f %d\n", least(hooked, f, stream, atol(argv[1])) * 1000,
        least(straight, f, stream, atol(argv[1])) * 1000, hooked != straight);
    return 0;
}
