/* The original forms of functions that CUDA 3.2 replaced by `_v2` forms. Their sizes and device pointers have 32
 * bits, so no 64-bit program can use them, and their allocations would not be counted. They are refused. */
#include "kerf.h"

#define H(plain, version, exact)
#define T H
#define F(name) \
    EXPORT CUresult name(void) { return CUDA_ERROR_NOT_SUPPORTED; }
#include "hooks.h"
