/* Memory, with every kind of allocation. A device pointer is the address of its description. */
#include "world.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* share -1: private to this process */
/* The first field tells a block from the address of a mapping, where the handle of its block is. */
#define BLOCK UINT64_C(0x6b657266626c6f63)
typedef struct { uint64_t kind, bytes; int device, references, share; void *pool; uint64_t word; int unlimited; } block_t;
/* From so many bytes on, an address within an allocation can be used too: there is nothing at it. Its pages are never
 * touched, so they take no memory. */
enum { APART = 2 << 20 };
static block_t *block_of(uint64_t bytes, int device, int share, void *pool) {
    block_t *block = bytes < APART ? malloc(sizeof *block)
        : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!block || block == MAP_FAILED) perror("fake driver"), abort();
    *block = (block_t){BLOCK, bytes, device, 1, share, pool, 0, 0};
    return block;
}
static void free_block(block_t *block) {
    if (block->bytes < APART) free(block);
    else munmap(block, block->bytes);
}
uint64_t *word_at(CUdeviceptr pointer) {
    block_t *block = (block_t *)(uintptr_t)pointer;
    if (pointer < 65536) return NULL;
    if (block->kind != BLOCK) block = *(block_t **)(uintptr_t)pointer;
    return !block ? NULL : block->share >= 0 ? &world()->share[block->share].word : &block->word;
}
CUdeviceptr memory_of_graph(int device) { return (CUdeviceptr)(uintptr_t)block_of(0, device, -1, NULL); }

uint64_t rounded(uint64_t bytes) {
    const uint64_t unit = bytes >= 2 << 20 ? 2 << 20 : 512;
    return (bytes + unit - 1) / unit * unit;
}

static int held(const share_t *share) {
    for (int p = 0; p < PROCESSES; p++)
        if (share->holder[p]) return 1;
    return 0;
}

static uint64_t on_gpu(const process_t *p, int gpu) { return p->used ? p->bytes[p->device_on[gpu]] : 0; }

uint64_t used(int gpu) {
    uint64_t sum = 0;
    for (int p = 0; p < PROCESSES; p++) sum += on_gpu(&world()->process[p], gpu);
    for (int s = 0; s < SHARES; s++)
        if (world()->share[s].device == gpu && held(&world()->share[s])) sum += world()->share[s].bytes;
    return sum;
}

static uint64_t of_container(int container, int gpu) {
    uint64_t sum = 0;
    for (int p = 0; p < PROCESSES; p++)
        if (world()->process[p].container == container) sum += on_gpu(&world()->process[p], gpu);
    for (int s = 0; s < SHARES; s++) {
        int holds = 0;
        for (int p = 0; world()->share[s].device == gpu && p < PROCESSES; p++)
            holds |= world()->share[s].holder[p] && world()->process[p].container == container;
        if (holds) sum += world()->share[s].bytes;
    }
    return sum;
}
void note_peak(int device) {
    const int container = world()->process[me()].container;
    const int gpu = gpu_of(device);
    const uint64_t bytes = of_container(container, gpu);
    if (bytes > world()->peak[container][gpu]) world()->peak[container][gpu] = bytes;
}
uint64_t kerf_fake_container_bytes(int gpu) {
    const int process = me();
    uint64_t bytes;
    lock();
    bury();
    bytes = of_container(world()->process[process].container, gpu);
    unlock();
    return bytes;
}
uint64_t kerf_fake_container_peak_bytes(int gpu) { return world()->peak[world()->process[me()].container][gpu]; }

uint64_t kerf_fake_used_bytes(int gpu) {
    uint64_t bytes;
    lock();
    bury();
    bytes = used(gpu);
    unlock();
    return bytes;
}

static CUresult take_some(int device, uint64_t bytes, int unlimited) {
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    int process = me();
    if (mps_failed()) return mps_failed();
    while_locked();
    lock();
    bury();
    if (world()->process[process].bytes[device] + bytes <= mps_limit(device) && used(gpu_of(device)) + bytes <= world()->memory_bytes
        && (unlimited || limit_allows(device, bytes))) {
        world()->process[process].bytes[device] += bytes;
        world()->process[process].unlimited[device] += unlimited ? bytes : 0;
        note_peak(device);
        result = CUDA_SUCCESS;
    }
    unlock();
    return result;
}
CUresult take(int device, uint64_t bytes) { return take_some(device, bytes, 0); }
void give(int device, uint64_t bytes) {
    while_locked();
    lock();
    world()->process[me()].bytes[device] -= bytes;
    unlock();
}

static CUresult allocate_some(CUdeviceptr *to, uint64_t bytes, int device, int unlimited) {
    CUresult result = ready();
    block_t *block;
    if (!result && !bytes) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) result = take_some(device, rounded(bytes), unlimited);
    if (result) return result;
    block = block_of(rounded(bytes), device, -1, NULL);
    block->unlimited = unlimited;
    return *to = (CUdeviceptr)(uintptr_t)block, CUDA_SUCCESS;
}
CUresult allocate(CUdeviceptr *to, uint64_t bytes, int device) { return allocate_some(to, bytes, device, 0); }

static CUresult drop(block_t *block) {
    if (!block) return CUDA_SUCCESS;
    if (--block->references) return CUDA_SUCCESS;
    if (block->pool) {
        pool_give(block->pool, block->bytes, 0);
        return free_block(block), CUDA_SUCCESS;
    }
    if (block->share >= 0) world()->share[block->share].holder[me()]--;
    else {
        give(block->device, block->bytes);
        if (block->unlimited) world()->process[me()].unlimited[block->device] -= block->bytes;
    }
    free_block(block);
    return CUDA_SUCCESS;
}

static CUresult here(CUdeviceptr *to, uint64_t bytes) {
    return current() ? allocate(to, bytes, current()->device) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    while_locked();
    *total = world()->memory_bytes;
    *available = *total - kerf_fake_used_bytes(current()->device);
    return ready();
}
CUresult cuMemAlloc_v2(CUdeviceptr *to, size_t bytes) { return here(to, bytes); }
CUresult cuMemAllocPitch_v2(CUdeviceptr *to, size_t *pitch, size_t width, size_t height, unsigned element) {
    (void)element;
    *pitch = (width + 1023) / 1024 * 1024;
    return here(to, *pitch * height);
}
CUresult cuMemAllocManaged(CUdeviceptr *to, size_t bytes, unsigned flags) {
    (void)flags;
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    return allocate_some(to, bytes, current()->device, !limits_managed());
}
CUresult cuMemFree_v2(CUdeviceptr pointer) { return drop((block_t *)(uintptr_t)pointer); }
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    if (base) *base = pointer;
    if (bytes) *bytes = ((block_t *)(uintptr_t)pointer)->bytes;
    return CUDA_SUCCESS;
}
CUresult cuMemAllocHost_v2(void **to, size_t bytes) { return *to = malloc(bytes), CUDA_SUCCESS; }
CUresult cuMemHostAlloc(void **to, size_t bytes, unsigned flags) {
    (void)flags;
    return cuMemAllocHost_v2(to, bytes);
}
CUresult cuMemFreeHost(void *pointer) { return free(pointer), CUDA_SUCCESS; }
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *to, void *pointer, unsigned flags) {
    (void)flags;
    return *to = (CUdeviceptr)(uintptr_t)pointer, CUDA_SUCCESS;
}
CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    (void)pointer;
    (void)bytes;
    (void)flags;
    return CUDA_SUCCESS;
}

static uint64_t element(unsigned format) {
    const int of_16_bits = (format >= 0xc3 && format <= 0xc5) || (format >= 0xc9 && format <= 0xcb); /* UNORM, SNORM */
    return format == 0x20 || format == 3 || format == 0xa ? 4
        : of_16_bits || format == 0x10 || format == 2 || format == 9 ? 2 : 1;
}
static uint64_t texels(uint64_t width, uint64_t height, uint64_t depth) {
    return (width ? width : 1) * (height ? height : 1) * (depth ? depth : 1);
}
CUresult cuArrayCreate_v2(CUarray *to, const array_desc_t *d) {
    return here((CUdeviceptr *)to, texels(d->width, d->height, 1) * d->channels * element(d->format));
}
CUresult cuArray3DCreate_v2(CUarray *to, const array3d_desc_t *d) {
    return here((CUdeviceptr *)to, texels(d->width, d->height, d->depth) * d->channels * element(d->format));
}
CUresult cuArrayDestroy(CUarray array) { return drop(array); }
CUresult cuMipmappedArrayCreate(CUmipmap *to, const array3d_desc_t *d, unsigned levels) {
    uint64_t sum = 0;
    for (unsigned l = 0; l < levels; l++) {
        const uint64_t depth = d->flags & (ARRAY_LAYERED | ARRAY_CUBEMAP) ? d->depth : d->depth >> l;
        sum += texels(d->width >> l, d->height >> l, depth) * d->channels * element(d->format);
    }
    return here((CUdeviceptr *)to, sum);
}
CUresult cuMipmappedArrayDestroy(CUmipmap array) { return drop(array); }

CUresult cuMemAddressReserve(CUdeviceptr *to, size_t bytes, size_t alignment, CUdeviceptr wish,
    unsigned long long flags) {
    (void)alignment;
    (void)wish;
    (void)flags;
    void *range = bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        : MAP_FAILED;
    if (range == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
    return *to = (CUdeviceptr)(uintptr_t)range, CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    return munmap((void *)(uintptr_t)pointer, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(size_t *unit, const alloc_prop_t *property, int option) {
    (void)property;
    (void)option;
    return *unit = 2 << 20, CUDA_SUCCESS;
}
CUresult cuMemCreate(CUphysical *handle, size_t bytes, const alloc_prop_t *property, unsigned long long flags) {
    (void)flags;
    if (bytes % (2 << 20)) return CUDA_ERROR_INVALID_VALUE;
    if (property->location.type != LOCATION_DEVICE) return *handle = (CUphysical)(uintptr_t)calloc(1, sizeof(block_t)),
        CUDA_SUCCESS;
    return allocate((CUdeviceptr *)handle, bytes, property->location.id);
}
CUresult cuMemRelease(CUphysical handle) { return drop((block_t *)(uintptr_t)handle); }
/* The address records what is mapped there. */
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUphysical handle, unsigned long long flags) {
    (void)flags;
    /* a part of it may be mapped */
    if (!bytes || bytes + offset > ((block_t *)(uintptr_t)handle)->bytes) return CUDA_ERROR_INVALID_VALUE;
    ((block_t *)(uintptr_t)handle)->references++;
    *(CUphysical *)(uintptr_t)pointer = handle;
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    block_t *block = *(block_t **)(uintptr_t)pointer;
    (void)bytes;
    *(block_t **)(uintptr_t)pointer = NULL;
    return drop(block);
}
CUresult cuMemMapArrayAsync(const map_info_t *list, unsigned count, CUstream stream) {
    (void)stream;
    for (unsigned i = 0; i < count; i++) ((block_t *)(uintptr_t)list[i].handle)->references += list[i].operation == 1
        ? 1 : -1;
    return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const void *access, size_t count) {
    (void)pointer;
    (void)bytes;
    (void)access;
    (void)count;
    return CUDA_SUCCESS;
}
CUresult cuMemRetainAllocationHandle(CUphysical *handle, void *address) {
    *handle = *(CUphysical *)address;
    ((block_t *)(uintptr_t)*handle)->references++;
    return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationPropertiesFromHandle(alloc_prop_t *property, CUphysical handle) {
    *property = (alloc_prop_t){.type = 1, .location = {LOCATION_DEVICE, ((block_t *)(uintptr_t)handle)->device}};
    return CUDA_SUCCESS;
}

/* Shared memory belongs to all its holders: it is free when the last one releases it. */
static int share(block_t *block) {
    int process = me();
    lock();
    for (int s = 0; s < SHARES && block->share < 0; s++) {
        if (held(&world()->share[s])) continue;
        world()->share[s].bytes = block->bytes;
        world()->share[s].word = block->word;
        world()->share[s].device = gpu_of(block->device);
        world()->share[s].holder[process] = 1;
        world()->process[process].bytes[block->device] -= block->bytes;
        block->share = s;
    }
    unlock();
    return block->share;
}
static block_t *join_share(int s) {
    const int process = me();
    block_t *block;
    lock();
    world()->share[s].holder[process]++;
    block = block_of(world()->share[s].bytes, world()->share[s].device, s, NULL);
    note_peak(world()->share[s].device);
    unlock();
    return block;
}
CUresult cuMemExportToShareableHandle(void *to, CUphysical handle, int type, unsigned long long flags) {
    (void)type;
    (void)flags;
    return *(int *)to = share((block_t *)(uintptr_t)handle), CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUphysical *handle, void *from, int type) {
    (void)type;
    return *handle = (CUphysical)(uintptr_t)join_share((int)(uintptr_t)from), CUDA_SUCCESS;
}
CUresult cuIpcGetMemHandle(ipc_t *to, CUdeviceptr pointer) {
    int s = share((block_t *)(uintptr_t)pointer);
    return memcpy(to, &s, sizeof s), CUDA_SUCCESS;
}
/* Memory that is opened already has the same address again, and its openings are counted, as NVIDIA documents it. */
static block_t *opened[SHARES];
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *to, ipc_t from, unsigned flags) {
    int s;
    (void)flags;
    memcpy(&s, &from, sizeof s);
    if (opened[s]) opened[s]->references++;
    else opened[s] = join_share(s);
    return *to = (CUdeviceptr)(uintptr_t)opened[s], CUDA_SUCCESS;
}
CUresult cuIpcOpenMemHandle(CUdeviceptr *to, ipc_t from, unsigned flags) {
    return cuIpcOpenMemHandle_v2(to, from, flags);
}
/* The only attribute that is asked for: the device that has the memory. */
CUresult cuPointerGetAttribute(int *to, int attribute, CUdeviceptr pointer) {
    if (attribute != POINTER_DEVICE_ORDINAL || !pointer) return CUDA_ERROR_INVALID_VALUE;
    return *to = ((block_t *)(uintptr_t)pointer)->device, CUDA_SUCCESS;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    block_t *block = (block_t *)(uintptr_t)pointer;
    for (int s = 0; s < SHARES; s++)
        if (opened[s] == block && block->references == 1) opened[s] = NULL;
    return drop(block);
}

CUresult allocate_from(CUdeviceptr *to, uint64_t bytes, int device, CUpool pool) {
    CUresult result = bytes ? pool_take(pool, rounded(bytes)) : CUDA_ERROR_INVALID_VALUE;
    block_t *block;
    if (result) return result;
    block = block_of(rounded(bytes), device, -1, pool);
    return *to = (CUdeviceptr)(uintptr_t)block, CUDA_SUCCESS;
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    block_t *block = (block_t *)(uintptr_t)pointer;
    if (pointer == 1) return CUDA_ERROR_INVALID_VALUE; /* no allocation has this address */
    if (stream_of(stream)->capture) return CUDA_SUCCESS;
    if (!block || !block->pool) return drop(block);
    pool_give(block->pool, block->bytes, 1);
    return free_block(block), CUDA_SUCCESS;
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return count_call("cuMemFreeAsync"), cuMemFreeAsync(pointer, stream);
}

/* An allocation of a pool, for another process. On a real driver only pools that were created for it allow that. */
CUresult cuMemPoolExportPointer(ipc_t *to, CUdeviceptr pointer) { return cuIpcGetMemHandle(to, pointer); }
CUresult cuMemPoolImportFromShareableHandle(CUpool *to, void *from, int type, unsigned long long flags) {
    (void)from;
    (void)type;
    (void)flags;
    return *to = calloc(1, 64), CUDA_SUCCESS;
}
CUresult cuMemPoolImportPointer(CUdeviceptr *to, CUpool pool, const ipc_t *from) {
    (void)pool;
    return cuIpcOpenMemHandle_v2(to, *from, 0);
}

/* Memory of another interface of this process, which the device has from now on. */
CUresult cuImportExternalMemory(CUexternal *to, const external_desc_t *what) {
    return here((CUdeviceptr *)to, what->size);
}
CUresult cuDestroyExternalMemory(CUexternal memory) { return drop(memory); }

/* A multicast object keeps what is bound to it. */
typedef struct { size_t offset; block_t *block; } bound_t;
enum { BOUND = 1024 };
CUresult cuMulticastCreate(CUphysical *to, const void *properties) {
    (void)properties;
    return *to = (CUphysical)(uintptr_t)calloc(BOUND, sizeof(bound_t)), CUDA_SUCCESS;
}
CUresult cuMulticastBindMem(CUphysical object, size_t offset, CUphysical memory, size_t from, size_t bytes,
    unsigned long long flags) {
    bound_t *bound = (bound_t *)(uintptr_t)object;
    (void)from;
    (void)bytes;
    (void)flags;
    for (int i = 0; i < BOUND; i++) {
        if (bound[i].block) continue;
        bound[i] = (bound_t){offset, (block_t *)(uintptr_t)memory};
        return bound[i].block->references++, CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMulticastBindMem_v2(CUphysical object, CUdevice device, size_t offset, CUphysical memory, size_t from,
    size_t bytes, unsigned long long flags) {
    (void)device;
    return cuMulticastBindMem(object, offset, memory, from, bytes, flags);
}
CUresult cuMulticastUnbind(CUphysical object, CUdevice device, size_t offset, size_t bytes) {
    bound_t *bound = (bound_t *)(uintptr_t)object;
    (void)device;
    for (int i = 0; i < BOUND; i++) {
        if (!bound[i].block || bound[i].offset < offset || bound[i].offset >= offset + bytes) continue;
        drop(bound[i].block);
        bound[i].block = NULL;
    }
    return CUDA_SUCCESS;
}
CUresult cuLogicalEndpointBindMem(uint64_t endpoint, CUdevice device, uint64_t offset, CUphysical memory,
    uint64_t from, uint64_t bytes, unsigned long long flags) {
    (void)endpoint;
    (void)device;
    (void)offset;
    (void)from;
    (void)bytes;
    (void)flags;
    return ((block_t *)(uintptr_t)memory)->references++, CUDA_SUCCESS;
}
