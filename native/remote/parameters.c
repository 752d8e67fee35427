/* The layout of kernels' parameters. The driver knows it (cuFuncGetParamInfo, CUDA 12.4); the program only points to
 * each. */
#include "client.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

CUresult cuFuncGetParamInfo(uint64_t function, uint64_t index, uint64_t offset, uint64_t bytes);

typedef struct known { uint64_t function; layout_t layout; struct known *next; } known_t;
enum { BUCKETS = 1024 };
static known_t *known[BUCKETS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static known_t *ask(uint64_t function) {
    known_t *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->function = function;
    for (layout_t *to = &made->layout; to->count < MAX_PARAMETERS; to->count++) {
        size_t offset = 0, bytes = 0;
        CUresult result = cuFuncGetParamInfo(function, (uint64_t)to->count, (uintptr_t)&offset, (uintptr_t)&bytes);
        if (result == CUDA_ERROR_INVALID_VALUE) return made; /* there are no more */
        if (result || offset + bytes > 65536) break;
        to->parameter[to->count] = (parameter_t){(uint32_t)offset, (uint32_t)bytes};
        if (offset + bytes > to->bytes) to->bytes = (uint32_t)(offset + bytes);
    }
    free(made);
    return NULL;
}

int layout_of(uint64_t function, layout_t *to) {
    known_t **bucket = &known[(function >> 4) % BUCKETS], *found;
    pthread_mutex_lock(&mutex);
    for (found = *bucket; found && found->function != function;) found = found->next;
    if (found) *to = found->layout;
    pthread_mutex_unlock(&mutex);
    if (found) return 0;
    if (!(found = ask(function))) return -1;
    *to = found->layout;
    pthread_mutex_lock(&mutex);
    found->next = *bucket, *bucket = found;
    pthread_mutex_unlock(&mutex);
    return 0;
}

/* A forked child has no functions. Another thread of its parent may have held the mutex. */
static void in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    forget_layouts();
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, in_child); }

void forget_layouts(void) {
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < BUCKETS; i++)
        while (known[i]) {
            known_t *gone = known[i];
            known[i] = gone->next;
            free(gone);
        }
    pthread_mutex_unlock(&mutex);
}
