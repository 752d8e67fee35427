/* A set of handles by kind, and what belongs to each. */
#include "handles.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    struct entry *next;
    uint64_t handle, parent;
    int kind, parent_kind;
    layout_t *layout;
} entry_t;
enum { BUCKETS = 4096 };
static entry_t *buckets[BUCKETS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The caller holds the mutex. */
static entry_t **place_of(int kind, uint64_t handle) {
    entry_t **at = &buckets[((handle >> 4) ^ handle ^ (uint64_t)kind << 8) % BUCKETS];
    while (*at && ((*at)->handle != handle || (*at)->kind != kind)) at = &(*at)->next;
    return at;
}
static entry_t *function_at(uint64_t handle) {
    entry_t *found = *place_of(A_FUNCTION, handle);
    return found ? found : *place_of(A_KERNEL, handle); /* a launch takes either */
}
static void end_one(entry_t **at) {
    entry_t *gone = *at;
    *at = gone->next;
    free(gone->layout), free(gone);
}
static void end_children(int kind, uint64_t handle) {
    if (kind != A_CONTEXT && kind != A_MODULE && kind != A_LIBRARY && kind != A_KERNEL) return;
    for (int i = 0; i < BUCKETS; i++)
        for (entry_t **at = &buckets[i]; *at;) {
            const entry_t one = **at;
            if (one.parent != handle || one.parent_kind != kind) {
                at = &(*at)->next;
                continue;
            }
            end_one(at);
            end_children(one.kind, one.handle);
            at = &buckets[i]; /* children may have been in this list */
        }
}

int handle_returned(int kind, uint64_t handle, int parent_kind, uint64_t parent) {
    if (!handle) return 0;
    pthread_mutex_lock(&mutex);
    entry_t **at = place_of(kind, handle);
    int failed = 0;
    if (!*at) {
        if ((*at = calloc(1, sizeof **at)))
            **at = (entry_t){.handle = handle, .kind = kind, .parent = parent, .parent_kind = parent_kind};
        else failed = -1;
    }
    pthread_mutex_unlock(&mutex);
    return failed;
}

int handle_known(int kind, uint64_t handle) {
    if (!handle || (kind == A_STREAM && handle <= 2)) return 1;
    pthread_mutex_lock(&mutex);
    const int known = (kind == A_FUNCTION ? function_at(handle) : *place_of(kind, handle)) != NULL;
    pthread_mutex_unlock(&mutex);
    return known;
}

int handle_ends(int kind, uint64_t handle) {
    pthread_mutex_lock(&mutex);
    entry_t **at = place_of(kind, handle);
    const int there = *at != NULL;
    if (there) {
        end_one(at);
        end_children(kind, handle);
    }
    pthread_mutex_unlock(&mutex);
    return there;
}

void children_end(int kind, uint64_t handle) {
    pthread_mutex_lock(&mutex);
    end_children(kind, handle);
    pthread_mutex_unlock(&mutex);
}

int layout_known(uint64_t function, layout_t *to) {
    pthread_mutex_lock(&mutex);
    const entry_t *found = function_at(function);
    const int known = found && found->layout;
    if (known) {
        to->count = found->layout->count, to->bytes = found->layout->bytes;
        memcpy(to->parameter, found->layout->parameter, sizeof *to->parameter * (size_t)to->count);
    }
    pthread_mutex_unlock(&mutex);
    return known ? 0 : -1;
}

void layout_found(uint64_t function, const layout_t *layout) {
    pthread_mutex_lock(&mutex);
    entry_t *found = function_at(function);
    if (found && !found->layout && (found->layout = malloc(sizeof *layout))) *found->layout = *layout;
    pthread_mutex_unlock(&mutex);
}
