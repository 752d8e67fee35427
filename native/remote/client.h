/* The parts of the client library. */
#ifndef CLIENT_H
#define CLIENT_H
#include "../interposer/driver.h"
#include "handles.h"
#include "wire.h"

enum { ERROR_DEVICE_UNAVAILABLE = 46 };

/* Makes one call; arguments as the program passed them, each in a word of 64 bits. */
CUresult forward(int call, uint64_t *arguments);

/* connection.c: this thread's connection, or -1; ready() says why there is none. */
CUresult ready(void);
int connection(void);
CUresult lost(void);                 /* the server is gone: from now on every call fails */
uint64_t next_ticket(int takes_it);  /* the number of calls without answer before this one */
int is_available(int call);          /* whether the driver there has it; 1 while that is unknown */

/* parameters.c: the layout of a kernel's parameters, asked of the server once. 0, or -1 where its driver does not say. */
int layout_of(uint64_t function, layout_t *to);
void forget_layouts(void); /* functions are gone, and their handles may be those of others soon */

/* results.c: the name or the description of a result of the driver; CUDA_ERROR_INVALID_VALUE and NULL where there is
 * no such result. */
enum description { NAME, TEXT };
CUresult describe(int code, enum description which, const char **to);

/* image.c: a module's image without the wrapper of nvcc, and its bytes. */
const void *image_of(const void *image, size_t *bytes);
#endif
