/* The allocations of this process by kind and handle: a hash table with open addressing and one lock. */
#include "kerf.h"
#include <stdlib.h>
#include <string.h>

static entry_t *entries;
static size_t room, taken_places; /* places that hold an entry or held one */
pthread_mutex_t table_guard = PTHREAD_MUTEX_INITIALIZER;
enum { FREE = 0, GONE = 0xFFFFFFFFu };

static size_t place_of(uint32_t kind, uint64_t key) {
    return (size_t)((key ^ (uint64_t)kind << 56) * 0x9E3779B97F4A7C15u >> 20) & (room - 1);
}

static entry_t *look(uint32_t kind, uint64_t key) {
    if (!room) return NULL;
    for (size_t i = place_of(kind, key);; i = (i + 1) & (room - 1)) {
        if (entries[i].kind == FREE) return NULL;
        if (entries[i].kind == kind && entries[i].key == key) return &entries[i];
    }
}

static void insert(entry_t entry) {
    size_t i = place_of(entry.kind, entry.key);
    while (entries[i].kind != FREE) i = (i + 1) & (room - 1);
    entries[i] = entry;
    taken_places++;
}

static void grow(void) {
    entry_t *old = entries;
    size_t old_room = room, living = 0;
    for (size_t i = 0; i < old_room; i++) living += old[i].kind != FREE && old[i].kind != GONE;
    room = 1024;
    while (room < living * 4) room *= 2;
    entries = calloc(room, sizeof *entries);
    if (!entries) abort(); /* no host memory is left; the program could not continue either */
    taken_places = 0;
    for (size_t i = 0; i < old_room; i++)
        if (old[i].kind != FREE && old[i].kind != GONE) insert(old[i]);
    free(old);
}

void table_put(enum kind kind, uint64_t key, int gpu, uint64_t bytes, uint64_t context, int references) {
    entry_t *there;
    pthread_mutex_lock(&table_guard);
    if (taken_places * 2 >= room) grow();
    there = look(kind, key);
    if (there) *there = (entry_t){key, bytes, context, gpu, references, kind};
    else insert((entry_t){key, bytes, context, gpu, references, kind});
    pthread_mutex_unlock(&table_guard);
}

int table_add_reference(enum kind kind, uint64_t key, int by, entry_t *entry) {
    entry_t *there;
    int known;
    pthread_mutex_lock(&table_guard);
    there = look(kind, key);
    known = there != NULL;
    if (known) {
        there->references += by;
        *entry = *there;
        if (there->references <= 0) there->kind = GONE;
    }
    pthread_mutex_unlock(&table_guard);
    return known;
}

void table_restore_reference(const entry_t *ended) {
    entry_t entry;
    if (ended->references > 0) table_add_reference(ended->kind, ended->key, 1, &entry);
    else table_put(ended->kind, ended->key, ended->gpu, ended->bytes, ended->context, 1);
}

int table_find(enum kind kind, uint64_t key, entry_t *found) {
    entry_t *there;
    pthread_mutex_lock(&table_guard);
    there = look(kind, key);
    if (there) *found = *there;
    pthread_mutex_unlock(&table_guard);
    return there != NULL;
}

int table_remove(enum kind kind, uint64_t key, entry_t *taken) {
    entry_t *there;
    pthread_mutex_lock(&table_guard);
    there = look(kind, key);
    if (there) *taken = *there, there->kind = GONE;
    pthread_mutex_unlock(&table_guard);
    return there != NULL;
}

int table_remove_any(int (*wanted)(const entry_t *, const void *), const void *what, entry_t *taken) {
    int found = 0;
    pthread_mutex_lock(&table_guard);
    for (size_t i = 0; i < room && !found; i++) {
        if (entries[i].kind == FREE || entries[i].kind == GONE || !wanted(&entries[i], what)) continue;
        *taken = entries[i];
        entries[i].kind = GONE;
        found = 1;
    }
    pthread_mutex_unlock(&table_guard);
    return found;
}

/* Removes all matching entries in one pass. */
void table_remove_all(int (*wanted)(const entry_t *, const void *), const void *what, uint64_t *bytes_by_gpu) {
    pthread_mutex_lock(&table_guard);
    for (size_t i = 0; i < room; i++) {
        if (entries[i].kind == FREE || entries[i].kind == GONE || !wanted(&entries[i], what)) continue;
        bytes_by_gpu[entries[i].gpu] += entries[i].bytes;
        entries[i].kind = GONE;
    }
    pthread_mutex_unlock(&table_guard);
}

void table_move_context(uint64_t from, uint64_t to) {
    pthread_mutex_lock(&table_guard);
    for (size_t i = 0; i < room; i++)
        if (entries[i].context == from && (entries[i].kind == POINTER || entries[i].kind == ARRAY
            || entries[i].kind == EXTERNAL || entries[i].kind == IMPORT || entries[i].kind == EXECUTABLE))
            entries[i].context = to;
    pthread_mutex_unlock(&table_guard);
}

/* Called in a child: the table belongs to the parent and may be half grown, so its memory is not freed. */
void table_clear(void) {
    pthread_mutex_lock(&table_guard);
    entries = NULL;
    room = taken_places = 0;
    pthread_mutex_unlock(&table_guard);
}
