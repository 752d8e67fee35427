/* Hooks of calls that are neither counted nor timed, but that the driver lets wait while the memory of their process
 * is on the host: those that make, change or end what is on the GPU. A program's first call after a pause may be one of
 * them: a kernel is loaded when it is first launched, and an allocator asks whether its stream is captured. */
#include "kerf.h"

#define HELD(name, parameters, arguments)                                     \
    EXPORT CUresult name parameters {                                         \
        CUresult(*real) parameters = REAL(CUresult(*) parameters, #name);     \
        await_memory();                                                       \
        return real arguments;                                                \
    }
#define HELD_BOTH(name, parameters, arguments) \
    HELD(name, parameters, arguments)          \
    HELD(name##_ptsz, parameters, arguments)
#define HELD_COPY(name, parameters, arguments) \
    HELD(name, parameters, arguments)          \
    HELD(name##_ptds, parameters, arguments)

/* Events and streams. */
HELD(cuEventCreate, (CUevent *to, unsigned flags), (to, flags))
HELD(cuEventDestroy, (CUevent event), (event))
HELD(cuEventDestroy_v2, (CUevent event), (event))
HELD(cuEventElapsedTime, (float *ms, CUevent from, CUevent to), (ms, from, to))
HELD(cuEventElapsedTime_v2, (float *ms, CUevent from, CUevent to), (ms, from, to))
HELD(cuStreamCreate, (CUstream *to, unsigned flags), (to, flags))
HELD(cuStreamCreateWithPriority, (CUstream *to, unsigned flags, int priority), (to, flags, priority))
HELD_BOTH(cuStreamIsCapturing, (CUstream stream, int *status), (stream, status))
HELD_BOTH(cuStreamGetCaptureInfo, (CUstream stream, int *status, uint64_t *id), (stream, status, id))
HELD_BOTH(cuStreamGetCaptureInfo_v2,
    (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUnode **after, size_t *count),
    (stream, status, id, graph, after, count))
HELD_BOTH(cuStreamGetCaptureInfo_v3,
    (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUnode **after, const void **edges,
    size_t *count),
    (stream, status, id, graph, after, edges, count))

/* Code. */
HELD(cuModuleLoad, (CUmodule *to, const char *path), (to, path))
HELD(cuModuleLoadData, (CUmodule *to, const void *image), (to, image))
HELD(cuModuleLoadDataEx,
    (CUmodule *to, const void *image, unsigned count, void *options, void **values),
    (to, image, count, options, values))
HELD(cuModuleLoadFatBinary, (CUmodule *to, const void *image), (to, image))
HELD(cuModuleUnload, (CUmodule module), (module))
HELD(cuModuleGetFunction, (CUfunction *to, CUmodule module, const char *name), (to, module, name))
HELD(cuModuleGetGlobal, (void *to, void *bytes, CUmodule module, const char *name), (to, bytes, module, name))
HELD(cuModuleGetGlobal_v2,
    (CUdeviceptr *to, size_t *bytes, CUmodule module, const char *name),
    (to, bytes, module, name))
HELD(cuLibraryLoadData,
    (void **to, const void *code, void *options, void **values, unsigned count, void *more, void **their,
    unsigned rest),
    (to, code, options, values, count, more, their, rest))
HELD(cuLibraryLoadFromFile,
    (void **to, const char *path, void *options, void **values, unsigned count, void *more, void **their,
    unsigned rest),
    (to, path, options, values, count, more, their, rest))
HELD(cuLibraryUnload, (void *library), (library))
HELD(cuLibraryGetKernel, (void **to, void *library, const char *name), (to, library, name))
HELD(cuLibraryGetModule, (CUmodule *to, void *library), (to, library))
HELD(cuLibraryGetGlobal,
    (CUdeviceptr *to, size_t *bytes, void *library, const char *name),
    (to, bytes, library, name))
HELD(cuKernelGetFunction, (CUfunction *to, void *kernel), (to, kernel))
HELD(cuKernelSetAttribute, (int which, int value, void *kernel, CUdevice device), (which, value, kernel, device))
HELD(cuFuncSetAttribute, (CUfunction function, int which, int value), (function, which, value))
HELD(cuFuncLoad, (CUfunction function), (function))

/* Memory of the host that the GPU can reach, and access to memory of the GPU. */
HELD(cuMemAllocHost, (void **to, size_t bytes), (to, bytes))
HELD(cuMemAllocHost_v2, (void **to, size_t bytes), (to, bytes))
HELD(cuMemHostAlloc, (void **to, size_t bytes, unsigned flags), (to, bytes, flags))
HELD(cuMemFreeHost, (void *at), (at))
HELD(cuMemHostRegister, (void *at, size_t bytes, unsigned flags), (at, bytes, flags))
HELD(cuMemHostRegister_v2, (void *at, size_t bytes, unsigned flags), (at, bytes, flags))
HELD(cuMemHostUnregister, (void *at), (at))
HELD(cuMemSetAccess, (CUdeviceptr at, size_t bytes, const void *access, size_t count), (at, bytes, access, count))

HELD_BOTH(cuGraphUpload, (CUexec graph, CUstream stream), (graph, stream))

/* Copies that return when the memory may be used again: no batch is open for them. */
HELD_COPY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
HELD_COPY(cuMemcpyDtoA_v2, (CUarray to, size_t at, CUdeviceptr from, size_t bytes), (to, at, from, bytes))
HELD_COPY(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t at, size_t bytes), (to, from, at, bytes))
HELD_COPY(cuMemcpyHtoA_v2, (CUarray to, size_t at, const void *from, size_t bytes), (to, at, from, bytes))
HELD_COPY(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t at, size_t bytes), (to, from, at, bytes))
HELD_COPY(cuMemcpyAtoA_v2,
    (CUarray to, size_t there, CUarray from, size_t here, size_t bytes),
    (to, there, from, here, bytes))
HELD_COPY(cuMemcpy2D_v2, (const void *copy), (copy))
HELD_COPY(cuMemcpy2DUnaligned_v2, (const void *copy), (copy))
HELD_COPY(cuMemcpy3D_v2, (const void *copy), (copy))
HELD_COPY(cuMemcpy3DPeer, (const void *copy), (copy))
