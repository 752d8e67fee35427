/* Other forms of calls: those of CUDA 13 and of a future driver, and the original forms, which drivers still export.
 * Their 32-bit pointers have no meaning here, but the memory is allocated. */
#include "world.h"

CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxSynchronize(void);

static CUresult lost(uint64_t bytes) {
    CUdeviceptr pointer;
    return current() ? allocate(&pointer, bytes, current()->device) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuMemAlloc(unsigned *to, unsigned bytes) { return *to = 0, lost(bytes ? bytes : 1); }
CUresult cuMemAllocPitch(unsigned *to, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    (void)element;
    return *to = 0, *pitch = width, lost((uint64_t)width * height);
}
CUresult cuMemFree(unsigned pointer) { return (void)pointer, CUDA_SUCCESS; }
CUresult cuMemGetInfo(unsigned *available, unsigned *total) { return *available = *total = UINT32_MAX, CUDA_SUCCESS; }
CUresult cuArrayCreate(CUarray *to, const void *description) { return (void)description, *to = 0, lost(4096); }
CUresult cuArray3DCreate(CUarray *to, const void *description) { return (void)description, *to = 0, lost(4096); }

CUresult cuCtxSynchronize_v2(CUcontext context) {
    CUcontext popped;
    CUresult result = cuCtxPushCurrent_v2(context);
    if (!result) result = cuCtxSynchronize();
    return cuCtxPopCurrent_v2(&popped), result;
}
CUresult cuMemAlloc_v3(CUdeviceptr *to, void *how, size_t bytes) {
    (void)how;
    return current() ? allocate(to, bytes, current()->device) : CUDA_ERROR_INVALID_CONTEXT;
}
