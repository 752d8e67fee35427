/* Opens and maps the files of the container's control block. */
#include "kerf.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef KERF_DIRECTORY
#define KERF_DIRECTORY "/run/kerf"
#endif

const char *kerf_directory(void) {
#ifdef KERF_DIRECTORY_FROM_ENVIRONMENT
    const char *wish = getenv("KERF_DIRECTORY");
    if (wish) return wish;
#endif
    return KERF_DIRECTORY;
}

void *control_block_map(const char *name, size_t size, uint32_t magic, int writable, int *keep) {
    char path[512];
    uint32_t *block = MAP_FAILED;
    int file;
    snprintf(path, sizeof path, "%s/%s", kerf_directory(), name);
    file = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (file < 0) return NULL;
    if (lseek(file, 0, SEEK_END) >= (off_t)size)
        block = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    if (keep && block != MAP_FAILED) *keep = file;
    else close(file);
    if (block == MAP_FAILED) return NULL;
    if (block[0] == magic && block[1] == KERF_VERSION) return block;
    munmap(block, size);
    if (keep) close(file), *keep = -1;
    return NULL;
}

int control_block_driver_path(char *to) {
    struct kerf_orders *block = control_block_map("orders", sizeof *block, KERF_ORDERS_MAGIC, 0, NULL);
    if (!block) return 0;
    memcpy(to, block->driver_path, KERF_PATH_BYTES);
    to[KERF_PATH_BYTES - 1] = 0;
    munmap(block, sizeof *block);
    return to[0] != 0;
}
