/* The part of the CUDA driver's documented binary interface that Kerf uses. The declarations are Kerf's own; no
 * NVIDIA header is used. Handles are the driver's pointers. Prototypes are types, so that a hook and the function
 * that it calls have the same signature. */
#ifndef KERF_DRIVER_H
#define KERF_DRIVER_H
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_DEVICE = 101, CUDA_ERROR_INVALID_CONTEXT = 201, CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
        CUDA_ERROR_INVALID_HANDLE = 400,
        CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500, CUDA_ERROR_NOT_READY = 600, CUDA_ERROR_ILLEGAL_ADDRESS = 700,
        CUDA_ERROR_NOT_PERMITTED = 800, CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802, CUDA_ERROR_MPS_CONNECTION_FAILED = 805, CUDA_ERROR_MPS_RPC_FAILURE = 806,
        CUDA_ERROR_MPS_SERVER_NOT_READY = 807, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_CAPTURED_EVENT = 907
};
enum { LOCATION_DEVICE = 1, NODE_KERNEL = 0, NODE_GRAPH = 4, NODE_MEM_ALLOC = 10, NODE_MEM_FREE = 11,
    EVENT_DISABLE_TIMING = 2, EVENT_BLOCKING_SYNC = 1 };
enum { PROC_PER_THREAD = 2, PROC_FOUND = 0, PROC_NOT_FOUND = 1, PROC_VERSION_TOO_LOW = 2, GRAPH_RESERVED_CURRENT = 2,
    ALLOCATION_PINNED = 1, ARRAY_LAYERED = 1, ARRAY_CUBEMAP = 4, ARRAY_SPARSE = 64, ARRAY_DEFERRED = 128 };

enum { POOL_RELEASE_THRESHOLD = 4, POOL_RESERVED_CURRENT = 5, POOL_RESERVED_HIGH = 6, POOL_USED_CURRENT = 7,
    POOL_USED_HIGH = 8 };
enum { LIMIT_STACK = 0, LIMIT_PRINTF = 1, LIMIT_HEAP = 2, ATTRIBUTE_PROCESSORS = 16, ATTRIBUTE_THREADS = 39,
    POINTER_DEVICE_ORDINAL = 9 };

typedef int CUresult, CUdevice;
typedef uint64_t CUdeviceptr;
typedef void *CUcontext, *CUstream, *CUevent, *CUfunction, *CUmodule, *CUarray, *CUmipmap, *CUpool, *CUgraph, *CUexec,
    *CUnode, *CUgreen, *CUexternal;
typedef unsigned long long CUphysical;
typedef struct { int type, id; } location_t;
typedef struct { int type, handle_types; location_t location; void *win32; unsigned char flags[8]; } alloc_prop_t;
typedef struct {
    int type, handle_types; location_t location; void *win32; size_t max_size; unsigned char reserved[56];
} pool_prop_t;
typedef struct { size_t width, height; unsigned format, channels; } array_desc_t;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } array3d_desc_t;
enum { LAUNCH_PROGRAMMATIC_SERIALIZATION = 6 };
typedef struct { int id, pad; union { int allowed; uint64_t room[8]; } value; } launch_attribute_t;
typedef struct {
    unsigned grid[3], block[3], shared; CUstream stream; const launch_attribute_t *attrs; unsigned attr_count;
} launch_config_t;
typedef struct {
    CUfunction function; unsigned grid[3], block[3], shared; CUstream stream; void **params;
} launch_params_t;
typedef struct {
    CUfunction function; unsigned grid[3], block[3], shared; void **params, **extra; void *kernel; CUcontext context;
} kernel_node_t;
typedef struct { pool_prop_t pool; const void *access; size_t access_count, bytes; CUdeviceptr pointer; } alloc_node_t;
typedef struct {
    int type, reserved0[3]; union { alloc_node_t alloc; kernel_node_t kernel; CUdeviceptr freed; long long room[29]; };
    long long reserved2;
} graph_node_t;
typedef struct {
    int resource_type; void *resource; int part_type; uint64_t part[4]; int operation, handle_type; CUphysical handle;
    uint64_t offset; unsigned devices, flags, reserved[2];
} map_info_t;
typedef struct { char bytes[64]; } ipc_t;
typedef struct {
    int type; void *handle[2]; unsigned long long size; unsigned flags, reserved[16];
} external_desc_t;
typedef struct { unsigned timeout_ms, reserved0; uint64_t reserved1[7]; } lock_args_t;

_Static_assert(sizeof(alloc_prop_t) == 32 && sizeof(pool_prop_t) == 88
    && sizeof(launch_config_t) == 56, "the driver's interface");
_Static_assert(sizeof(launch_attribute_t) == 72, "the driver's interface");
_Static_assert(sizeof(array_desc_t) == 24 && sizeof(array3d_desc_t) == 40
    && sizeof(launch_params_t) == 56, "the driver's interface");
_Static_assert(sizeof(alloc_node_t) == 120 && sizeof(graph_node_t) == 256
    && sizeof(kernel_node_t) == 72, "the driver's interface");
_Static_assert(sizeof(external_desc_t) == 104 && offsetof(external_desc_t, size) == 24, "the driver's interface");
_Static_assert(sizeof(map_info_t) == 96 && offsetof(map_info_t, operation) == 56
    && offsetof(map_info_t, handle) == 64, "the driver's interface");
#endif
