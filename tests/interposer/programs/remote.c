/* What a program does with a GPU, with the driver's interface alone, so that it runs against a remote one. With the same
 * arguments it prints the same, wherever the GPU is.
 *
 * remote limit KIB             allocates pieces of that size until one is refused: their number and the error
 * remote mix ROUNDS THREADS    each thread launches ROUNDS kernels on a word without waiting; prints the words
 * remote order ROUNDS          two threads launch by turns on one word and one stream; what comes out depends on the order
 * remote copies MIB TIMES      copies to the device, TIMES on it, and back: the word
 * remote fault                 a launch that fails: the error of the launch, and of the next wait
 * remote deferred              a free that fails without an answer, then: allocation, launch, wait, wait; and the word
 * remote wrapped               loads a fat binary by the wrapper that nvcc makes: the error
 * remote info                  device's memory, its name, and the free memory
 * remote capture ROUNDS        a graph of kernels, launched ROUNDS times: the word
 * remote fork                  a child after the parent has used the GPU: the word of each
 * remote cancel                threads that are cancelled during the first call of all, of their own, and a launch: the word
 * remote hold-launches COUNT   as mix, in two steps: prints "ready" and waits for a line before it launches
 * remote results CODE...        the error of cuInit, printed; then the name and the description of each result
 * remote hold MIB              allocates, prints 1, and waits until its input ends; then frees and prints the error */
#include "api.h"
#include <pthread.h>
#include <sys/wait.h>

static CUcontext context;
static CUfunction mix;

static CUresult launch_mix(CUdeviceptr at, uint64_t add, CUstream stream) {
    uint64_t ns = 1000;
    void *parameters[] = {&ns, &at, &add};
    return CALL(cuLaunchKernel, , 7000)(mix, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, parameters, (void **)NULL);
}
static CUdeviceptr word_of(uint64_t value) {
    CUdeviceptr at;
    NEED(CALL(cuMemAlloc, _v2, 3020)(&at, (size_t)4096));
    NEED(CALL(cuMemcpyHtoD, _v2, 3020)(at, &value, sizeof value));
    return at;
}
static uint64_t read_word(CUdeviceptr at) {
    uint64_t value = 0;
    NEED(CALL(cuMemcpyDtoH, _v2, 3020)(&value, at, sizeof value));
    return value;
}

typedef struct { int rounds; uint64_t seed, result; pthread_t thread; } job_t;
static void *mix_words(void *of) {
    job_t *job = of;
    CUstream stream;
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    NEED(CALL(cuStreamCreate, , 2000)(&stream, 1u));
    CUdeviceptr at = word_of(job->seed);
    for (int i = 0; i < job->rounds; i++) NEED(launch_mix(at, (uint64_t)i * job->seed, stream));
    NEED(CALL(cuStreamSynchronize, , 2000)(stream));
    job->result = read_word(at);
    return NULL;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER;
static int turn;
static CUdeviceptr shared;
static void *take_turns(void *of) {
    job_t *job = of;
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    for (int i = 0; i < job->rounds; i++) {
        pthread_mutex_lock(&mutex);
        while (turn != (int)job->seed) pthread_cond_wait(&passed, &mutex);
        NEED(launch_mix(shared, (uint64_t)i * 2 + job->seed, NULL));
        turn = !turn;
        pthread_cond_signal(&passed);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

/* The request is there before the call, so any cancellation point in it would end the thread. */
enum { FIRST_OF_ALL, FIRST_OF_THREAD, LAUNCH };
static void *be_cancelled(void *of) {
    const int during = *(int *)of;
    if (during == LAUNCH) NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    pthread_cancel(pthread_self());
    if (during == FIRST_OF_ALL) NEED(CALL(cuInit, , 2000)(0));
    if (during == FIRST_OF_THREAD) NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    if (during == LAUNCH) NEED(launch_mix(shared, 1, NULL));
    pthread_testcancel();
    return NULL;
}
static void cancel_a_thread(int during) {
    pthread_t thread;
    void *returned;
    if (pthread_create(&thread, NULL, be_cancelled, &during) || pthread_join(thread, &returned)) exit(4);
    if (returned != PTHREAD_CANCELED) exit(5);
}

static void copies(size_t bytes, int times) {
    CUdeviceptr one, two, kept;
    uint64_t *buffer = calloc(1, bytes);
    if (!buffer) exit(4);
    buffer[0] = 12345;
    NEED(CALL(cuMemAlloc, _v2, 3020)(&one, bytes));
    NEED(CALL(cuMemAlloc, _v2, 3020)(&two, bytes));
    NEED(CALL(cuMemcpyHtoDAsync, _v2, 3020)(one, buffer, bytes, (CUstream)NULL));
    for (int i = 0; i < times; i++) {
        NEED(launch_mix(one, (uint64_t)i, NULL));
        NEED(CALL(cuMemcpyDtoDAsync, _v2, 3020)(two, one, bytes, (CUstream)NULL));
        NEED(CALL(cuCtxSynchronize, , 2000)());
        kept = one, one = two, two = kept;
    }
    buffer[0] = 0;
    NEED(CALL(cuMemcpyDtoHAsync, _v2, 3020)(buffer, one, bytes, (CUstream)NULL));
    printf("%lu\n", buffer[0]);
}

static uint64_t captured(int rounds) {
    CUstream stream;
    CUgraph graph;
    CUexec executable;
    CUdeviceptr at = word_of(7);
    NEED(CALL(cuStreamCreate, , 2000)(&stream, 1u));
    NEED(CALL(cuStreamBeginCapture, _v2, 10010)(stream, 1));
    for (int i = 0; i < 5; i++) NEED(launch_mix(at, (uint64_t)i, stream));
    NEED(CALL(cuStreamEndCapture, , 10000)(stream, &graph));
    NEED(CALL(cuGraphInstantiateWithFlags, , 11040)(&executable, graph, 0ull));
    for (int i = 0; i < rounds; i++) NEED(CALL(cuGraphLaunch, , 10000)(executable, stream));
    NEED(CALL(cuStreamSynchronize, , 2000)(stream));
    return read_word(at);
}

static uint64_t one_word(uint64_t seed) {
    job_t job = {.rounds = 20, .seed = seed};
    mix_words(&job);
    return job.result;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *what = argv[1];
    const int count = argc > 2 ? atoi(argv[2]) : 0;
    open_driver();
    if (!strcmp(what, "results")) {
        printf("%d\n", CALL(cuInit, , 2000)(0));
        for (int i = 2; i < argc; i++) {
            const char *name = "unset", *text = "unset";
            const int named = CALL(cuGetErrorName, , 6000)(atoi(argv[i]), &name);
            const int described = CALL(cuGetErrorString, , 6000)(atoi(argv[i]), &text);
            printf("%d %s %d %s\n", named, name ? name : "NULL", described, text ? text : "NULL");
        }
        printf("%d\n", CALL(cuGetErrorString, , 6000)(0, (const char **)NULL));
        return 0;
    }
    if (!strcmp(what, "cancel")) cancel_a_thread(FIRST_OF_ALL);
    context = use_device(0);
    mix = kernel("mix");
    if (!strcmp(what, "limit")) {
        CUdeviceptr got;
        CUresult result;
        int pieces = 0;
        while (!(result = CALL(cuMemAlloc, _v2, 3020)(&got, (size_t)count << 10))) pieces++;
        printf("%d %d\n", pieces, result);
    } else if (!strcmp(what, "cancel")) {
        shared = word_of(3);
        cancel_a_thread(FIRST_OF_THREAD);
        cancel_a_thread(LAUNCH);
        NEED(launch_mix(shared, 2, NULL));
        wait_for_all();
        printf("%lu\n", read_word(shared));
    } else if (!strcmp(what, "mix")) {
        job_t jobs[16];
        const int threads = argc > 3 ? atoi(argv[3]) : 1;
        for (int i = 0; i < threads; i++) {
            jobs[i] = (job_t){.rounds = count, .seed = (uint64_t)i + 1};
            if (pthread_create(&jobs[i].thread, NULL, mix_words, &jobs[i])) return 4;
        }
        for (int i = 0; i < threads; i++) pthread_join(jobs[i].thread, NULL), printf("%lu ", jobs[i].result);
        printf("\n");
    } else if (!strcmp(what, "order")) {
        job_t jobs[] = {{.rounds = count, .seed = 0}, {.rounds = count, .seed = 1}};
        shared = word_of(3);
        for (int i = 0; i < 2; i++)
            if (pthread_create(&jobs[i].thread, NULL, take_turns, &jobs[i])) return 4;
        for (int i = 0; i < 2; i++) pthread_join(jobs[i].thread, NULL);
        printf("%lu\n", read_word(shared));
    } else if (!strcmp(what, "copies")) copies((size_t)count << 20, atoi(argv[3]));
    else if (!strcmp(what, "capture")) printf("%lu\n", captured(count));
    else if (!strcmp(what, "fault")) {
        const CUresult launched = launch(kernel("fault"), NULL);
        printf("%d %d\n", launched, CALL(cuCtxSynchronize, , 2000)());
    } else if (!strcmp(what, "info")) {
        size_t total, free_bytes, all;
        char name[64];
        NEED(CALL(cuDeviceTotalMem, _v2, 3020)(&total, 0));
        NEED(CALL(cuMemGetInfo, _v2, 3020)(&free_bytes, &all));
        NEED(CALL(cuDeviceGetName, , 2000)(name, (int)sizeof name, 0));
        printf("%zu %zu %zu\n", total, all, strlen(name));
    } else if (!strcmp(what, "wrapped")) {
        static const struct { uint32_t magic; uint16_t version, head; uint64_t bytes; char code[8]; } fat = {
            0xba55ed50, 1, 16, 8, "code"};
        const struct { uint32_t magic, version; const void *data, *more; } wrapper = {0x466243b1, 1, &fat, NULL};
        CUmodule module;
        printf("%d\n", CALL(cuModuleLoadData, , 2000)(&module, (const void *)&wrapper));
    } else if (!strcmp(what, "deferred")) {
        CUdeviceptr at = word_of(5), got = 0;
        (void)CALL(cuMemFreeAsync, , 11020)((CUdeviceptr)1, (CUstream)NULL);
        CUresult allocation = CALL(cuMemAlloc, _v2, 3020)(&got, (size_t)4096);
        CUresult launch = launch_mix(at, 7, NULL); /* the first: the layout of the parameters is asked for */
        CUresult wait = CALL(cuCtxSynchronize, , 2000)(), again = CALL(cuCtxSynchronize, , 2000)();
        printf("%d %d %d %d %d %lu\n", allocation, got != 0, launch, wait, again, read_word(at));
    } else if (!strcmp(what, "fork")) {
        uint64_t words[2] = {one_word(1), 0};
        int pipes[2], status;
        if (pipe(pipes)) return 4;
        pid_t child = fork();
        if (!child) {
            context = use_device(0), mix = kernel("mix");
            words[1] = one_word(2);
            _exit(write(pipes[1], &words[1], 8) != 8);
        }
        if (waitpid(child, &status, 0) < 0 || status || read(pipes[0], &words[1], 8) != 8) return 5;
        printf("%lu %lu %lu\n", words[0], words[1], one_word(1));
    } else if (!strcmp(what, "hold-launches")) {
        shared = word_of(1);
        (void)!launch_mix(0, 0, NULL); /* the layout of its parameters is known from here on */
        (void)CALL(cuCtxSynchronize, , 2000)();
        printf("ready\n"), fflush(stdout);
        if (getchar() != '\n') return 5;
        for (int i = 0; i < count; i++) NEED(launch_mix(shared, (uint64_t)i, NULL));
        printf("%lu\n", read_word(shared));
    } else if (!strcmp(what, "hold")) {
        CUdeviceptr got;
        char byte;
        CUresult result = CALL(cuMemAlloc, _v2, 3020)(&got, (size_t)count << 20);
        printf("%d\n", !result), fflush(stdout);
        while (read(0, &byte, 1) > 0) {}
        printf("%d\n", CALL(cuMemFree, _v2, 3020)(got));
    } else return 2;
    return 0;
}
