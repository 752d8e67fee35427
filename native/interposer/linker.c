/* Finds the C library's own dlsym and dlvsym in its symbol table, because the interposer overrides both.
 *
 * Nothing here calls another function. A program may define any function of the C library, and look up the original
 * by dlsym when its own is first called: called from here, it would have no original yet. */
#define _GNU_SOURCE
#include "kerf.h"
#include <link.h>

static int is_same(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

static int begins_with(const char *text, const char *begin) {
    while (*begin && *text == *begin) text++, begin++;
    return !*begin;
}

static uint32_t hash_of(const char *name) {
    uint32_t h = 5381;
    for (; *name; name++) h = h * 33 + (unsigned char)*name;
    return h;
}

/* Looks up a name in one object's GNU hash table. */
static void *defined(const ElfW(Sym) *symbols, const char *strings, const uint32_t *table, const char *name,
    ElfW(Addr) base) {
    const uint32_t buckets = table[0], offset = table[1], bloom = table[2], hash = hash_of(name);
    const uint32_t *bucket = table + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    uint32_t i = bucket[hash % buckets];
    if (i < offset) return NULL;
    for (;; i++) {
        const uint32_t entry = chain[i - offset];
        if ((entry | 1) == (hash | 1) && symbols[i].st_shndx != SHN_UNDEF
            && is_same(strings + symbols[i].st_name, name))
            return (void *)(base + symbols[i].st_value);
        if (entry & 1) return NULL;
    }
}

static int is_libc(const char *path) {
    const char *file = path;
    for (; *path; path++)
        if (*path == '/') file = path + 1;
    return begins_with(file, "libc.so") || begins_with(file, "libdl.so");
}

void *libc_function(const char *name) {
    for (const struct link_map *object = _r_debug.r_map; object; object = object->l_next) {
        const ElfW(Sym) *symbols = NULL;
        const char *strings = NULL;
        const uint32_t *table = NULL;
        void *found;
        if (!is_libc(object->l_name)) continue;
        for (const ElfW(Dyn) *d = object->l_ld; d->d_tag != DT_NULL; d++) {
            if (d->d_tag == DT_SYMTAB) symbols = (const void *)d->d_un.d_ptr;
            if (d->d_tag == DT_STRTAB) strings = (const void *)d->d_un.d_ptr;
            if (d->d_tag == DT_GNU_HASH) table = (const void *)d->d_un.d_ptr;
        }
        if (symbols && strings && table && (found = defined(symbols, strings, table, name, object->l_addr)))
            return found;
    }
    return NULL;
}

static dlsym_t own_dlsym;
static dlvsym_t own_dlvsym;

dlsym_t real_dlsym(void) {
    if (!own_dlsym) own_dlsym = (dlsym_t)libc_function("dlsym");
    return own_dlsym;
}

dlvsym_t real_dlvsym(void) {
    if (!own_dlvsym) own_dlvsym = (dlvsym_t)libc_function("dlvsym");
    return own_dlvsym;
}

/* As a rule before the program has threads, one of which could change the list of objects meanwhile. */
__attribute__((constructor)) static void find(void) {
    real_dlsym();
    real_dlvsym();
}
