/* Finds the C library's own dlsym and dlvsym in its symbol table, because the interposer overrides both. */
#define _GNU_SOURCE
#include "kerf.h"
#include <link.h>
#include <string.h>

typedef struct { const char *name; void *found; } wanted_t;

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
            && !strcmp(strings + symbols[i].st_name, name))
            return (void *)(base + symbols[i].st_value);
        if (entry & 1) return NULL;
    }
}

static int look(struct dl_phdr_info *object, size_t size, void *data) {
    wanted_t *wanted = data;
    const char *file = strrchr(object->dlpi_name, '/');
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    (void)size;
    file = file ? file + 1 : object->dlpi_name;
    if (strncmp(file, "libc.so", 7) && strncmp(file, "libdl.so", 8)) return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        for (const ElfW(Dyn) *d = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL;
            d++) {
            if (d->d_tag == DT_SYMTAB) symbols = (const void *)d->d_un.d_ptr;
            if (d->d_tag == DT_STRTAB) strings = (const void *)d->d_un.d_ptr;
            if (d->d_tag == DT_GNU_HASH) table = (const void *)d->d_un.d_ptr;
        }
    }
    if (symbols && strings && table) wanted->found = defined(symbols, strings, table, wanted->name, object->dlpi_addr);
    return wanted->found != NULL;
}

void *libc_function(const char *name) {
    wanted_t wanted = {name, NULL};
    dl_iterate_phdr(look, &wanted);
    return wanted.found;
}
