/* The calls of the driver API that a remote GPU has: one line each. Client and server are made from it.
 *
 * CALL(name, suffix, first API version, variants, how, number of arguments, arguments)
 *
 * variants: STREAMS has the per-thread-default-stream form _ptsz beside it, COPIES the form _ptds.
 * how:
 *   ASKED     the client waits for the answer
 *   WAITED    so too, and the call waits for work or asks whether it is done: it returns errors of earlier SENT calls
 *   SENT      the client does not wait. The next call that is WAITED or FINISHED returns its error, as CUDA allows
 *   FINISHED  the server waits for the stream, its last argument, before it answers; otherwise as WAITED
 * arguments, in order:
 *   uN  a value of N bytes                     oN  a pointer to N bytes, which the call writes
 *   iN  a pointer to N bytes, which it reads   aN  a pointer to elements of N bytes; the next argument has their count
 *   s   a string, which it reads               S   a pointer to a string, which it returns
 *   bN  bytes that it reads, and               BN  bytes that it writes: argument N is their count
 *   m   the image of a module                  k   the parameters of the kernel of argument 0
 *   x   the packed form of the same            z   left out: the server passes 0
 *
 * What is not here does not exist for programs: cuGetProcAddress does not find it. That is so for whatever shares memory
 * between host and device or between processes, calls back into the program, or copies without saying in which
 * direction. The meaning of each call: NVIDIA's CUDA Driver API reference. */
CALL(cuDriverGetVersion, , 2020, NONE, ASKED, 1, "o4")
/* Without the server, by results.c. They stay in the list, which clients of earlier versions compare with theirs. */
CALL(cuGetErrorName, , 6000, NONE, ASKED, 2, "u4 S")
CALL(cuGetErrorString, , 6000, NONE, ASKED, 2, "u4 S")

CALL(cuDeviceGet, , 2000, NONE, ASKED, 2, "o4 u4")
CALL(cuDeviceGetCount, , 2000, NONE, ASKED, 1, "o4")
CALL(cuDeviceGetName, , 2000, NONE, ASKED, 3, "B1 u4 u4")
CALL(cuDeviceGetUuid, , 9020, NONE, ASKED, 2, "o16 u4")
CALL(cuDeviceGetUuid, _v2, 11040, NONE, ASKED, 2, "o16 u4")
CALL(cuDeviceTotalMem, _v2, 3020, NONE, ASKED, 2, "o8 u4")
CALL(cuDeviceGetAttribute, , 2000, NONE, ASKED, 3, "o4 u4 u4")
CALL(cuDeviceGetPCIBusId, , 4010, NONE, ASKED, 3, "B1 u4 u4")
CALL(cuDeviceGetDefaultMemPool, , 11020, NONE, ASKED, 2, "H10 u4")
CALL(cuDeviceGetMemPool, , 11020, NONE, ASKED, 2, "H10 u4")
CALL(cuDeviceSetMemPool, , 11020, NONE, ASKED, 2, "u4 h10")
CALL(cuDevicePrimaryCtxRetain, , 7000, NONE, ASKED, 2, "H1 u4")
CALL(cuDevicePrimaryCtxRelease, _v2, 11000, NONE, ASKED, 1, "u4")
CALL(cuDevicePrimaryCtxReset, _v2, 11000, NONE, ASKED, 1, "u4")
CALL(cuDevicePrimaryCtxGetState, , 7000, NONE, ASKED, 3, "u4 o4 o4")
CALL(cuDevicePrimaryCtxSetFlags, _v2, 11000, NONE, ASKED, 2, "u4 u4")

CALL(cuCtxCreate, _v2, 3020, NONE, ASKED, 3, "H1 u4 u4")
CALL(cuCtxDestroy, _v2, 4000, NONE, ASKED, 1, "d1")
CALL(cuCtxPushCurrent, _v2, 4000, NONE, ASKED, 1, "h1")
CALL(cuCtxPopCurrent, _v2, 4000, NONE, ASKED, 1, "H1")
CALL(cuCtxSetCurrent, , 4000, NONE, ASKED, 1, "h1")
CALL(cuCtxGetCurrent, , 4000, NONE, ASKED, 1, "H1")
CALL(cuCtxGetDevice, , 2000, NONE, ASKED, 1, "o4")
CALL(cuCtxGetFlags, , 7000, NONE, ASKED, 1, "o4")
CALL(cuCtxGetApiVersion, , 3020, NONE, ASKED, 2, "h1 o4")
CALL(cuCtxGetStreamPriorityRange, , 5050, NONE, ASKED, 2, "o4 o4")
CALL(cuCtxGetLimit, , 3010, NONE, ASKED, 2, "o8 u4")
CALL(cuCtxSetLimit, , 3010, NONE, ASKED, 2, "u4 u8")
CALL(cuCtxSynchronize, , 2000, NONE, WAITED, 0, "")

CALL(cuModuleLoadData, , 2000, NONE, ASKED, 2, "H4 m")
CALL(cuModuleLoadDataEx, , 2010, NONE, ASKED, 5, "H4 m z z z")
CALL(cuModuleLoadFatBinary, , 2000, NONE, ASKED, 2, "H4 m")
CALL(cuModuleUnload, , 2000, NONE, ASKED, 1, "d4")
CALL(cuModuleGetFunction, , 2000, NONE, ASKED, 3, "H5 h4 s")
CALL(cuModuleGetGlobal, _v2, 3020, NONE, ASKED, 4, "o8 o8 h4 s")
CALL(cuLibraryLoadData, , 12000, NONE, ASKED, 8, "H7 m z z z z z z")
CALL(cuLibraryUnload, , 12000, NONE, ASKED, 1, "d7")
CALL(cuLibraryGetKernel, , 12000, NONE, ASKED, 3, "H6 h7 s")
CALL(cuKernelGetFunction, , 12000, NONE, ASKED, 2, "H5 h6")
CALL(cuFuncGetAttribute, , 2020, NONE, ASKED, 3, "o4 u4 h5")
CALL(cuFuncSetAttribute, , 9000, NONE, ASKED, 3, "h5 u4 u4")
CALL(cuFuncGetParamInfo, , 12040, NONE, ASKED, 4, "h5 u8 o8 o8")
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, , 6050, NONE, ASKED, 4, "o4 h5 u4 u8")

CALL(cuMemGetInfo, _v2, 3020, NONE, ASKED, 2, "o8 o8")
CALL(cuMemAlloc, _v2, 3020, NONE, ASKED, 2, "o8 u8")
CALL(cuMemAllocPitch, _v2, 3020, NONE, ASKED, 5, "o8 o8 u8 u8 u4")
CALL(cuMemFree, _v2, 3020, NONE, ASKED, 1, "u8")
CALL(cuMemGetAddressRange, _v2, 3020, NONE, ASKED, 3, "o8 o8 u8")
CALL(cuMemAllocAsync, , 11020, STREAMS, ASKED, 3, "o8 u8 h2")
CALL(cuMemAllocFromPoolAsync, , 11020, STREAMS, ASKED, 4, "o8 u8 h10 h2")
CALL(cuMemFreeAsync, , 11020, STREAMS, SENT, 2, "u8 h2")
CALL(cuMemPoolCreate, , 11020, NONE, ASKED, 2, "H10 i88")
CALL(cuMemPoolDestroy, , 11020, NONE, ASKED, 1, "d10")
CALL(cuMemPoolTrimTo, , 11020, NONE, ASKED, 2, "h10 u8")
CALL(cuMemAddressReserve, , 10020, NONE, ASKED, 5, "o8 u8 u8 u8 u8")
CALL(cuMemAddressFree, , 10020, NONE, ASKED, 2, "u8 u8")
CALL(cuMemCreate, , 10020, NONE, ASKED, 4, "H11 u8 i32 u8")
CALL(cuMemRelease, , 10020, NONE, ASKED, 1, "d11")
CALL(cuMemMap, , 10020, NONE, ASKED, 5, "u8 u8 u8 h11 u8")
CALL(cuMemUnmap, , 10020, NONE, ASKED, 2, "u8 u8")
CALL(cuMemSetAccess, , 10020, NONE, ASKED, 4, "u8 u8 a12 u8")
CALL(cuMemGetAllocationGranularity, , 10020, NONE, ASKED, 3, "o8 i32 u4")

CALL(cuMemcpyHtoD, _v2, 3020, COPIES, WAITED, 3, "u8 b2 u8")
CALL(cuMemcpyDtoH, _v2, 3020, COPIES, WAITED, 3, "B2 u8 u8")
CALL(cuMemcpyDtoD, _v2, 3020, COPIES, WAITED, 3, "u8 u8 u8")
CALL(cuMemcpyHtoDAsync, _v2, 3020, STREAMS, SENT, 4, "u8 b2 u8 h2")
CALL(cuMemcpyDtoHAsync, _v2, 3020, STREAMS, FINISHED, 4, "B2 u8 u8 h2")
CALL(cuMemcpyDtoDAsync, _v2, 3020, STREAMS, SENT, 4, "u8 u8 u8 h2")
CALL(cuMemsetD8, _v2, 3020, COPIES, ASKED, 3, "u8 u1 u8")
CALL(cuMemsetD16, _v2, 3020, COPIES, ASKED, 3, "u8 u2 u8")
CALL(cuMemsetD32, _v2, 3020, COPIES, ASKED, 3, "u8 u4 u8")
CALL(cuMemsetD8Async, , 3020, STREAMS, SENT, 4, "u8 u1 u8 h2")
CALL(cuMemsetD16Async, , 3020, STREAMS, SENT, 4, "u8 u2 u8 h2")
CALL(cuMemsetD32Async, , 3020, STREAMS, SENT, 4, "u8 u4 u8 h2")

CALL(cuStreamCreate, , 2000, NONE, ASKED, 2, "H2 u4")
CALL(cuStreamCreateWithPriority, , 5050, NONE, ASKED, 3, "H2 u4 u4")
CALL(cuStreamDestroy, _v2, 4000, NONE, ASKED, 1, "d2")
CALL(cuStreamQuery, , 2000, STREAMS, WAITED, 1, "h2")
CALL(cuStreamSynchronize, , 2000, STREAMS, WAITED, 1, "h2")
CALL(cuStreamWaitEvent, , 3020, STREAMS, SENT, 3, "h2 h3 u4")
CALL(cuStreamGetCtx, , 9020, STREAMS, ASKED, 2, "h2 H1")
CALL(cuStreamGetFlags, , 5050, STREAMS, ASKED, 2, "h2 o4")
CALL(cuStreamGetPriority, , 5050, STREAMS, ASKED, 2, "h2 o4")
CALL(cuStreamIsCapturing, , 10000, STREAMS, ASKED, 2, "h2 o4")
CALL(cuStreamBeginCapture, _v2, 10010, STREAMS, ASKED, 2, "h2 u4")
CALL(cuStreamEndCapture, , 10000, STREAMS, ASKED, 2, "h2 H8")
CALL(cuEventCreate, , 2000, NONE, ASKED, 2, "H3 u4")
CALL(cuEventDestroy, _v2, 4000, NONE, ASKED, 1, "d3")
CALL(cuEventRecord, , 2000, STREAMS, SENT, 2, "h3 h2")
CALL(cuEventRecordWithFlags, , 11010, STREAMS, SENT, 3, "h3 h2 u4")
CALL(cuEventQuery, , 2000, NONE, WAITED, 1, "h3")
CALL(cuEventSynchronize, , 2000, NONE, WAITED, 1, "h3")
CALL(cuEventElapsedTime, , 2000, NONE, ASKED, 3, "o4 h3 h3")
CALL(cuEventElapsedTime, _v2, 12080, NONE, ASKED, 3, "o4 h3 h3")

CALL(cuGraphCreate, , 10000, NONE, ASKED, 2, "H8 u4")
CALL(cuGraphDestroy, , 10000, NONE, ASKED, 1, "d8")
CALL(cuGraphInstantiateWithFlags, , 11040, NONE, ASKED, 3, "H9 h8 u8")
CALL(cuGraphExecDestroy, , 10000, NONE, ASKED, 1, "d9")
CALL(cuGraphLaunch, , 10000, STREAMS, SENT, 2, "h9 h2")

CALL(cuLaunchKernel, , 7000, STREAMS, SENT, 11, "h5 u4 u4 u4 u4 u4 u4 u4 h2 k x")
CALL(cuLaunchCooperativeKernel, , 9000, STREAMS, SENT, 10, "h5 u4 u4 u4 u4 u4 u4 u4 h2 k")
