/* How long the image of a module is: callers of the driver do not say. */
#include "client.h"
#include <elf.h>
#include <string.h>

/* The forms of NVIDIA's tools: a fat binary, which says how long it is, and its wrapper, which points to one. */
#define WRAPPER UINT32_C(0x466243b1)
#define FAT_BINARY UINT32_C(0xba55ed50)
typedef struct { uint32_t magic, version; const void *data, *more; } wrapper_t;
typedef struct { uint32_t magic; uint16_t version, header_bytes; uint64_t bytes; } fat_binary_t;

static size_t elf_bytes(const Elf64_Ehdr *elf) {
    size_t end = elf->e_shoff + (size_t)elf->e_shentsize * elf->e_shnum;
    const size_t programs = elf->e_phoff + (size_t)elf->e_phentsize * elf->e_phnum;
    const Elf64_Shdr *section = (const Elf64_Shdr *)((const char *)elf + elf->e_shoff);
    if (programs > end) end = programs;
    for (int i = 0; elf->e_shoff && i < elf->e_shnum; i++)
        if (section[i].sh_type != SHT_NOBITS && section[i].sh_offset + section[i].sh_size > end)
            end = section[i].sh_offset + section[i].sh_size;
    return end;
}

size_t image_bytes(const void *image) {
    uint32_t magic = 0;
    const char *text = image;
    if (!memcmp(text, ELFMAG, strnlen(text, SELFMAG)) && strnlen(text, SELFMAG) == SELFMAG) return elf_bytes(image);
    if (strnlen(text, sizeof magic) == sizeof magic) memcpy(&magic, text, sizeof magic);
    if (magic == FAT_BINARY) {
        const fat_binary_t *fat = image;
        return fat->header_bytes + (size_t)fat->bytes;
    }
    return strlen(text) + 1; /* PTX */
}
