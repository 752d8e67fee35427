/* The first names of calls that have had others since CUDA 3.2. Their sizes and device pointers have 32 bits: nothing that was
 * built for a machine of 64 can mean them, and nobody would count what they give. */
#include "kerf.h"

#define H(plain, version, exact)
#define T H
#define F(name) \
    EXPORT CUresult name(void) { return CUDA_ERROR_NOT_SUPPORTED; }
#include "hooks.h"
