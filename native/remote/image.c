/* How long the image of a module is: callers of the driver do not say. */
#include "client.h"
#include "image.h"
#include <elf.h>
#include <string.h>


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

static uint32_t magic_of(const char *text) {
    uint32_t magic = 0;
    if (strnlen(text, sizeof magic) == sizeof magic) memcpy(&magic, text, sizeof magic);
    return magic;
}

const void *image_of(const void *image, size_t *bytes) {
    if (magic_of(image) == WRAPPER) image = ((const wrapper_t *)image)->data; /* the server has other addresses */
    const char *text = image;
    if (!image) *bytes = 0;
    else if (strnlen(text, SELFMAG) == SELFMAG && !memcmp(text, ELFMAG, SELFMAG)) *bytes = elf_bytes(image);
    else if (magic_of(text) == FAT_BINARY) {
        const fat_binary_t *fat = image;
        *bytes = fat->header_bytes + (size_t)fat->bytes;
    } else *bytes = strlen(text) + 1; /* PTX */
    return image;
}
