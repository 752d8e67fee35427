/* The handles that this worker's client has, and the layouts of its kernels' parameters. */
#ifndef HANDLES_H
#define HANDLES_H
#include "wire.h"

typedef struct { uint32_t offset, bytes; } parameter_t;
typedef struct { int count; uint32_t bytes; parameter_t parameter[MAX_PARAMETERS]; } layout_t;

/* `parent`: a handle of kind `parent_kind`, with which this one ends; 0: there is none. -1: no memory. */
int handle_returned(int kind, uint64_t handle, int parent_kind, uint64_t parent);
int handle_known(int kind, uint64_t handle); /* also 0, the default streams, and a kernel in a function's place */
int handle_ends(int kind, uint64_t handle);  /* with all that it is the parent of; 0 where there was none */
void children_end(int kind, uint64_t handle);

/* Of a function that was returned. 0, or -1 where it is not known. */
int layout_known(uint64_t function, layout_t *to);
void layout_found(uint64_t function, const layout_t *layout);
#endif
