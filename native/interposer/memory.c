/* Hooks of allocations that return a pointer or an array. Memory is reserved before the driver is called, and
 * released after the driver has freed it. */
#include "kerf.h"

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY
#define FULL CUDA_ERROR_OUT_OF_MEMORY
typedef CUresult (*alloc_t)(CUdeviceptr *, size_t);
typedef CUresult (*managed_t)(CUdeviceptr *, size_t, unsigned);
typedef CUresult (*pitch_t)(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
typedef CUresult (*free_t)(CUdeviceptr);
typedef CUresult (*array_t)(CUarray *, const array_desc_t *);
typedef CUresult (*array3d_t)(CUarray *, const array3d_desc_t *);
typedef CUresult (*mipmap_t)(CUmipmap *, const array3d_desc_t *, unsigned);
typedef CUresult (*array_free_t)(void *);
typedef CUresult (*open_t)(CUdeviceptr *, ipc_t, unsigned);
typedef CUresult (*range_t)(CUdeviceptr *, size_t *, CUdeviceptr);
typedef CUresult (*pointer_attribute_t)(void *, int, CUdeviceptr);
typedef CUresult (*import_pointer_t)(CUdeviceptr *, CUpool, void *);
typedef CUresult (*external_t)(CUexternal *, const external_desc_t *);
typedef CUresult (*external_free_t)(CUexternal);

/* Reserves memory, calls the driver, and records the allocation. A GPU that the container does not have has no
 * memory for it. */
#define ALLOCATE(kind, handle, bytes, call)                                                         \
    do {                                                                                            \
        CUresult result_;                                                                           \
        uint64_t charge_;                                                                           \
        int gpu_;                                                                                   \
        if (!present()) return REFUSED;                                                            \
        gpu_ = current_gpu();                                                                          \
        if (gpu_ < 0) return current_context() ? FULL : (call);                                        \
        charge_ = charge_of(bytes);                                                                 \
        if (!reserve(gpu_, charge_)) return FULL;                                                   \
        result_ = (call);                                                                           \
        if (result_) release(gpu_, charge_);                                                        \
        else table_put(kind, (uint64_t)(uintptr_t)(handle), gpu_, charge_, current_context(), 1);      \
        return result_;                                                                             \
    } while (0)

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *to, size_t bytes) {
    alloc_t real = REAL(alloc_t, "cuMemAlloc_v2");
    ALLOCATE(POINTER, *to, bytes, real(to, bytes));
}
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *to, size_t bytes, unsigned flags) {
    managed_t real = REAL(managed_t, "cuMemAllocManaged");
    ALLOCATE(POINTER, *to, bytes, real(to, bytes, flags));
}

/* The driver chooses the pitch. The additional memory is charged afterwards; if it exceeds the limit, the memory is
 * freed. */
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *to, size_t *pitch, size_t width, size_t height, unsigned element) {
    pitch_t real = REAL(pitch_t, "cuMemAllocPitch_v2");
    uint64_t asked, made;
    CUresult result;
    int gpu;
    if (!present()) return REFUSED;
    gpu = current_gpu();
    if (gpu < 0) return current_context() ? FULL : real(to, pitch, width, height, element);
    asked = height && width > KERF_ACCOUNT_BYTES / height ? KERF_ACCOUNT_BYTES : charge_of((uint64_t)width * height);
    if (!reserve(gpu, asked)) return FULL;
    result = real(to, pitch, width, height, element);
    if (result) return release(gpu, asked), result;
    made = charge_of((uint64_t)*pitch * height);
    if (made > asked && !reserve(gpu, made - asked)) {
        REAL(free_t, "cuMemFree_v2")(*to);
        release(gpu, asked);
        return FULL;
    }
    if (made < asked) release(gpu, asked - made);
    table_put(POINTER, *to, gpu, made, current_context(), 1);
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    free_t real = REAL(free_t, "cuMemFree_v2");
    __atomic_store_n(&pools_pending, 1, __ATOMIC_RELAXED); /* it may belong to a pool */
    END_REFERENCE(POINTER, pointer, real(pointer));
}

/* Returns the bytes of a channel. Unknown formats count as 4 bytes; block-compressed and video formats need less. */
static uint64_t channel_bytes(unsigned format) {
    switch (format) {
    case 0x01: case 0x08: case 0xc0: case 0xc1: case 0xc2: case 0xc6: case 0xc7: case 0xc8: return 1;
    case 0x02: case 0x09: case 0x10: case 0xc3: case 0xc4: case 0xc5: case 0xc9: case 0xca: case 0xcb: return 2;
    default: return 4;
    }
}
static uint64_t at_least_1(uint64_t n) { return n ? n : 1; }
/* The depth of layered arrays and cubemaps is the number of layers, of which each level has all. */
static uint64_t texels(const array3d_desc_t *d, unsigned level) {
    const uint64_t depth = d->flags & (ARRAY_LAYERED | ARRAY_CUBEMAP) ? d->depth : d->depth >> level;
    const __uint128_t n =
        (__uint128_t)at_least_1(d->width >> level) * at_least_1(d->height >> level) * at_least_1(depth);
    return n > KERF_ACCOUNT_BYTES / 64 ? KERF_ACCOUNT_BYTES / 64 : (uint64_t)n;
}
static uint64_t array_bytes(const array3d_desc_t *d, unsigned levels) {
    uint64_t sum = 0;
    if (d->flags & (ARRAY_SPARSE | ARRAY_DEFERRED)) return 0; /* memory from cuMemCreate is mapped into it later */
    for (unsigned level = 0; level < levels && level < 32; level++)
        sum += texels(d, level) * at_least_1(d->channels) * channel_bytes(d->format);
    return sum;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *to, const array_desc_t *d) {
    array_t real = REAL(array_t, "cuArrayCreate_v2");
    const array3d_desc_t as3d = {d->width, d->height, 0, d->format, d->channels, 0};
    ALLOCATE(ARRAY, *to, array_bytes(&as3d, 1), real(to, d));
}
EXPORT CUresult cuArray3DCreate_v2(CUarray *to, const array3d_desc_t *d) {
    array3d_t real = REAL(array3d_t, "cuArray3DCreate_v2");
    ALLOCATE(ARRAY, *to, array_bytes(d, 1), real(to, d));
}
EXPORT CUresult cuMipmappedArrayCreate(CUmipmap *to, const array3d_desc_t *d, unsigned levels) {
    mipmap_t real = REAL(mipmap_t, "cuMipmappedArrayCreate");
    ALLOCATE(ARRAY, *to, array_bytes(d, levels), real(to, d, levels));
}
EXPORT CUresult cuArrayDestroy(CUarray array) {
    array_free_t real = REAL(array_free_t, "cuArrayDestroy");
    END_REFERENCE(ARRAY, array, real(array));
}
EXPORT CUresult cuMipmappedArrayDestroy(CUmipmap array) {
    array_free_t real = REAL(array_free_t, "cuMipmappedArrayDestroy");
    END_REFERENCE(ARRAY, array, real(array));
}

/* The GPU that has the memory, which need not be the current one: ranks open each other's buffers. */
static int gpu_of_pointer(CUdeviceptr pointer) {
    int device = -1;
    return REAL(pointer_attribute_t, "cuPointerGetAttribute")(&device, POINTER_DEVICE_ORDINAL, pointer) ? current_gpu()
        : gpu_of_device(device);
}

/* Memory of another process that this one keeps alive is charged here, too. Otherwise its owner could free it and
 * still use it. Where it is opened already, the driver returns the same address and counts. */
#define OPENS(name)                                                                                 \
    EXPORT CUresult name(CUdeviceptr *to, ipc_t from, unsigned flags) {                             \
        CUresult result;                                                                            \
        size_t bytes = 0;                                                                           \
        uint64_t charge;                                                                            \
        entry_t again;                                                                              \
        int gpu;                                                                                    \
        if (!present()) return REFUSED;                                                            \
        result = REAL(open_t, #name)(to, from, flags);                                              \
        gpu = result ? -1 : gpu_of_pointer(*to);                                                       \
        if (gpu < 0 || table_add_reference(IMPORT, *to, 1, &again)) return result;        \
        REAL(range_t, "cuMemGetAddressRange_v2")(NULL, &bytes, *to);                                \
        charge = charge_of(bytes);                                                                  \
        if (!reserve(gpu, charge)) return REAL(free_t, "cuIpcCloseMemHandle")(*to), FULL;           \
        table_put(IMPORT, *to, gpu, charge, current_context(), 1);                                     \
        return result;                                                                              \
    }
OPENS(cuIpcOpenMemHandle)
OPENS(cuIpcOpenMemHandle_v2)
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    free_t real = REAL(free_t, "cuIpcCloseMemHandle");
    END_REFERENCE(IMPORT, pointer, real(pointer));
}

/* An allocation of another process's pool. It is freed like any other (cuMemFree, cuMemFreeAsync). */
EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *to, CUpool pool, void *data) {
    CUresult result;
    size_t bytes = 0;
    uint64_t charge;
    int gpu;
    if (!present()) return REFUSED;
    result = REAL(import_pointer_t, "cuMemPoolImportPointer")(to, pool, data);
    gpu = result ? -1 : gpu_of_pointer(*to);
    if (gpu < 0) return result;
    REAL(range_t, "cuMemGetAddressRange_v2")(NULL, &bytes, *to);
    charge = charge_of(bytes);
    if (!reserve(gpu, charge)) return REAL(free_t, "cuMemFree_v2")(*to), FULL;
    table_put(POINTER, *to, gpu, charge, current_context(), 1);
    return result;
}

/* Memory of another interface, such as Vulkan, by the size that the program must state. Buffers and arrays in it are
 * parts of the same memory. */
EXPORT CUresult cuImportExternalMemory(CUexternal *to, const external_desc_t *what) {
    external_t real = REAL(external_t, "cuImportExternalMemory");
    ALLOCATE(EXTERNAL, *to, what->size, real(to, what));
}
EXPORT CUresult cuDestroyExternalMemory(CUexternal memory) {
    external_free_t real = REAL(external_free_t, "cuDestroyExternalMemory");
    END_REFERENCE(EXTERNAL, memory, real(memory));
}
