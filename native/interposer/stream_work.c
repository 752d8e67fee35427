/* Hooks of the other work of a stream: copies, memsets, host functions, waits for a value, operations in batches.
 *
 * None of it is charged as GPU time: copies run in engines of their own. But it takes time on its stream, so a launch
 * after it must not be in one batch with a launch before it. */
#include "timelines.h"

#define BETWEEN(name, parameters, arguments, stream) AFTER(name, parameters, arguments, timing_flush_stream(stream))
/* In both forms: with the legacy default stream, and with one of each thread. */
#define OF_STREAM(name, parameters, arguments)                    \
    BETWEEN(name, parameters, arguments, stream)                  \
    BETWEEN(name##_ptsz, parameters, arguments, OWN(stream))
#define RECORDS(name, parameters, arguments)                              \
    AFTER(name, parameters, arguments, timing_before_event(stream))       \
    AFTER(name##_ptsz, parameters, arguments, timing_before_event(OWN(stream)))
/* The same without a stream: on the default stream, which may be the thread's own. */
#define OF_DEFAULT(name, parameters, arguments) \
    BETWEEN(name, parameters, arguments, NULL)  \
    BETWEEN(name##_ptds, parameters, arguments, OWN((CUstream)NULL))

/* What waits for a program's event finds the batch before it ended. */
RECORDS(cuEventRecord, (CUevent event, CUstream stream), (event, stream))
RECORDS(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), (event, stream, flags))
OF_STREAM(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
OF_STREAM(cuMemcpyPeerAsync,
    (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream stream),
    (to, there, from, here, bytes, stream))
OF_STREAM(cuMemcpyHtoDAsync_v2,
    (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
    (to, from, bytes, stream))
OF_STREAM(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
OF_STREAM(cuMemcpyDtoDAsync_v2,
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
    (to, from, bytes, stream))
OF_STREAM(cuMemcpyHtoAAsync_v2,
    (CUarray to, size_t at, const void *from, size_t bytes, CUstream stream),
    (to, at, from, bytes, stream))
OF_STREAM(cuMemcpyAtoHAsync_v2,
    (void *to, CUarray from, size_t at, size_t bytes, CUstream stream),
    (to, from, at, bytes, stream))
OF_STREAM(cuMemcpy2DAsync_v2, (const void *copy, CUstream stream), (copy, stream))
OF_STREAM(cuMemcpy3DAsync_v2, (const void *copy, CUstream stream), (copy, stream))
OF_STREAM(cuMemcpy3DPeerAsync, (const void *copy, CUstream stream), (copy, stream))
OF_STREAM(cuMemcpyBatchAsync,
    (void *to, void *from, size_t *sizes, size_t count, void *attributes, size_t *of, size_t kinds, size_t *failed,
    CUstream stream),
    (to, from, sizes, count, attributes, of, kinds, failed, stream))
OF_STREAM(cuMemcpyBatchAsync_v2,
    (void *to, void *from, size_t *sizes, size_t count, void *attributes, size_t *of, size_t kinds, CUstream stream),
    (to, from, sizes, count, attributes, of, kinds, stream))
OF_STREAM(cuMemcpy3DBatchAsync,
    (size_t count, void *copies, size_t *failed, unsigned long long flags, CUstream stream),
    (count, copies, failed, flags, stream))
OF_STREAM(cuMemcpy3DBatchAsync_v2,
    (size_t count, void *copies, unsigned long long flags, CUstream stream),
    (count, copies, flags, stream))
OF_STREAM(cuMemcpyWithAttributesAsync,
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, CUstream stream),
    (to, from, bytes, attributes, stream))
OF_STREAM(cuMemcpy3DWithAttributesAsync, (void *copy, unsigned long long flags, CUstream stream), (copy, flags, stream))
OF_STREAM(cuMemsetD8Async,
    (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
    (to, value, count, stream))
OF_STREAM(cuMemsetD16Async,
    (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
    (to, value, count, stream))
OF_STREAM(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream), (to, value, count, stream))
OF_STREAM(cuMemsetD2D8Async,
    (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
    (to, pitch, value, width, height, stream))
OF_STREAM(cuMemsetD2D16Async,
    (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
    (to, pitch, value, width, height, stream))
OF_STREAM(cuMemsetD2D32Async,
    (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream),
    (to, pitch, value, width, height, stream))
OF_STREAM(cuMemPrefetchAsync,
    (CUdeviceptr at, size_t bytes, CUdevice device, CUstream stream),
    (at, bytes, device, stream))
OF_STREAM(cuMemPrefetchAsync_v2,
    (CUdeviceptr at, size_t bytes, location_t place, unsigned flags, CUstream stream),
    (at, bytes, place, flags, stream))
OF_STREAM(cuMemPrefetchBatchAsync,
    (void *at, size_t *sizes, size_t count, void *places, size_t *of, size_t kinds, unsigned long long flags,
    CUstream stream),
    (at, sizes, count, places, of, kinds, flags, stream))
OF_STREAM(cuMemDiscardAndPrefetchBatchAsync,
    (void *at, size_t *sizes, size_t count, void *places, size_t *of, size_t kinds, unsigned long long flags,
    CUstream stream),
    (at, sizes, count, places, of, kinds, flags, stream))
OF_STREAM(cuMemDiscardBatchAsync,
    (void *at, size_t *sizes, size_t count, unsigned long long flags, CUstream stream),
    (at, sizes, count, flags, stream))
OF_STREAM(cuMemBatchDecompressAsync,
    (void *jobs, size_t count, unsigned flags, size_t *failed, CUstream stream),
    (jobs, count, flags, failed, stream))
OF_STREAM(cuStreamAttachMemAsync,
    (CUstream stream, CUdeviceptr at, size_t bytes, unsigned flags),
    (stream, at, bytes, flags))
OF_STREAM(cuLaunchHostFunc, (CUstream stream, void *function, void *data), (stream, function, data))
OF_STREAM(cuLaunchHostFunc_v2,
    (CUstream stream, void *function, void *data, unsigned mode),
    (stream, function, data, mode))
OF_STREAM(cuStreamAddCallback,
    (CUstream stream, void *function, void *data, unsigned flags),
    (stream, function, data, flags))
OF_STREAM(cuStreamWaitValue32,
    (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags),
    (stream, at, value, flags))
OF_STREAM(cuStreamWaitValue32_v2,
    (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags),
    (stream, at, value, flags))
OF_STREAM(cuStreamWaitValue64,
    (CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags),
    (stream, at, value, flags))
OF_STREAM(cuStreamWaitValue64_v2,
    (CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags),
    (stream, at, value, flags))
OF_STREAM(cuStreamWriteValue32,
    (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags),
    (stream, at, value, flags))
OF_STREAM(cuStreamWriteValue32_v2,
    (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags),
    (stream, at, value, flags))
OF_STREAM(cuStreamWriteValue64,
    (CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags),
    (stream, at, value, flags))
OF_STREAM(cuStreamWriteValue64_v2,
    (CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags),
    (stream, at, value, flags))
OF_STREAM(cuStreamBatchMemOp,
    (CUstream stream, unsigned count, void *operations, unsigned flags),
    (stream, count, operations, flags))
OF_STREAM(cuStreamBatchMemOp_v2,
    (CUstream stream, unsigned count, void *operations, unsigned flags),
    (stream, count, operations, flags))
OF_STREAM(cuSignalExternalSemaphoresAsync,
    (const void *semaphores, const void *values, unsigned count, CUstream stream),
    (semaphores, values, count, stream))
OF_STREAM(cuWaitExternalSemaphoresAsync,
    (const void *semaphores, const void *values, unsigned count, CUstream stream),
    (semaphores, values, count, stream))
OF_DEFAULT(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
OF_DEFAULT(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
OF_DEFAULT(cuMemcpyPeer,
    (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes),
    (to, there, from, here, bytes))
OF_DEFAULT(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count), (to, value, count))
OF_DEFAULT(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count), (to, value, count))
OF_DEFAULT(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count), (to, value, count))
OF_DEFAULT(cuMemsetD2D8_v2,
    (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
    (to, pitch, value, width, height))
OF_DEFAULT(cuMemsetD2D16_v2,
    (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
    (to, pitch, value, width, height))
OF_DEFAULT(cuMemsetD2D32_v2,
    (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height),
    (to, pitch, value, width, height))
