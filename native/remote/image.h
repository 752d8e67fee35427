/* The forms of NVIDIA's tools: a fat binary, which says how long it is, and its wrapper, which points to one. */
#ifndef IMAGE_H
#define IMAGE_H
#include <stdint.h>
#define WRAPPER UINT32_C(0x466243b1)
#define FAT_BINARY UINT32_C(0xba55ed50)
typedef struct { uint32_t magic, version; const void *data, *more; } wrapper_t;
typedef struct { uint32_t magic; uint16_t version, header_bytes; uint64_t bytes; } fat_binary_t;
#endif
