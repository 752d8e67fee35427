/* Physical memory by handle (cuMemCreate) and its mappings. The memory is free when the handle has been released as
 * often as it was obtained, and nothing maps it any more. An imported handle keeps its memory alive, mapped or not,
 * so its size is charged at once; the driver reveals the size only by what can be mapped. If a driver does not allow
 * that, the largest mapping so far is charged. Memory that is bound to a multicast object is kept alive by it. Memory
 * that a sparse array maps, or a logical endpoint binds, stays charged until the process ends. */
#include "kerf.h"

#define REFUSED CUDA_ERROR_SYSTEM_NOT_READY
#define FULL CUDA_ERROR_OUT_OF_MEMORY
typedef CUresult (*create_t)(CUphysical *, size_t, const alloc_prop_t *, unsigned long long);
typedef CUresult (*release_t)(CUphysical);
typedef CUresult (*map_t)(CUdeviceptr, size_t, size_t, CUphysical, unsigned long long);
typedef CUresult (*unmap_t)(CUdeviceptr, size_t);
typedef CUresult (*retain_t)(CUphysical *, void *);
typedef CUresult (*import_t)(CUphysical *, void *, int);
typedef CUresult (*property_t)(alloc_prop_t *, CUphysical);
typedef CUresult (*granularity_t)(size_t *, const alloc_prop_t *, int);
typedef CUresult (*reserve_t)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
typedef CUresult (*unreserve_t)(CUdeviceptr, size_t);
typedef CUresult (*total_t)(size_t *, CUdevice);
typedef CUresult (*bind_t)(CUphysical, size_t, CUphysical, size_t, size_t, unsigned long long);
typedef CUresult (*bind_v2_t)(CUphysical, CUdevice, size_t, CUphysical, size_t, size_t, unsigned long long);
typedef CUresult (*unbind_t)(CUphysical, CUdevice, size_t, size_t);
typedef CUresult (*map_arrays_t)(const map_info_t *, unsigned, CUstream);
enum { MAPS = 1 };

EXPORT CUresult cuMemCreate(CUphysical *handle, size_t bytes, const alloc_prop_t *property, unsigned long long flags) {
    create_t real = REAL(create_t, "cuMemCreate");
    CUresult result;
    uint64_t charge;
    int gpu;
    if (!present()) return REFUSED;
    if (property->location.type != LOCATION_DEVICE) return real(handle, bytes, property, flags); /* host memory */
    gpu = gpu_of_device(property->location.id);
    charge = charge_of(bytes);
    if (gpu < 0 || !reserve(gpu, charge)) return FULL;
    result = real(handle, bytes, property, flags);
    if (result) release(gpu, charge);
    else table_put(PHYSICAL, *handle, gpu, charge, 0, 1);
    return result;
}

static void drop_reference(uint64_t handle) {
    entry_t entry;
    if (table_add_reference(PHYSICAL, handle, -1, &entry) && entry.references <= 0) release(entry.gpu, entry.bytes);
}

EXPORT CUresult cuMemRelease(CUphysical handle) {
    release_t real = REAL(release_t, "cuMemRelease");
    END_REFERENCE(PHYSICAL, handle, real(handle));
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUphysical handle,
    unsigned long long flags) {
    entry_t entry = {0};
    uint64_t charge = 0;
    CUresult result;
    int known;
    if (!present()) return REFUSED;
    known = table_add_reference(PHYSICAL, handle, 1, &entry);
    /* imported, and larger than known so far */
    if (known && entry.context && charge_of(bytes + offset) > entry.bytes) {
        charge = charge_of(bytes + offset) - entry.bytes;
        if (!reserve(entry.gpu, charge)) return drop_reference(handle), FULL;
        table_put(PHYSICAL, handle, entry.gpu, entry.bytes + charge, 1, entry.references);
    }
    result = REAL(map_t, "cuMemMap")(pointer, bytes, offset, handle, flags);
    if (!result && known) table_put(MAPPING, pointer, entry.gpu, handle, 0, 1);
    if (result && charge) {
        release(entry.gpu, charge);
        table_put(PHYSICAL, handle, entry.gpu, entry.bytes, 1, entry.references);
    }
    if (result && known) drop_reference(handle);
    return result;
}

typedef struct { uint64_t from, until; } range_t;
static int mapped_in(const entry_t *entry, const void *range) {
    const range_t *r = range;
    return entry->kind == MAPPING && entry->key >= r->from && entry->key < r->until;
}

/* One call may remove several mappings. */
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    const range_t range = {pointer, pointer + bytes};
    CUresult result;
    entry_t entry = {0}, memory = {0};
    int mapped, known;
    if (!present()) return REFUSED;
    mapped = table_remove(MAPPING, pointer, &entry);
    known = mapped && table_add_reference(PHYSICAL, entry.bytes, -1, &memory);
    result = REAL(unmap_t, "cuMemUnmap")(pointer, bytes);
    if (result && known) table_restore_reference(&memory);
    if (result && mapped) table_put(MAPPING, pointer, entry.gpu, entry.bytes, 0, 1);
    if (result) return result;
    if (known && memory.references <= 0) release(memory.gpu, memory.bytes);
    while (bytes > 2 << 20 && table_remove_any(mapped_in, &range, &entry)) drop_reference(entry.bytes);
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUphysical *handle, void *address) {
    CUresult result;
    entry_t entry;
    if (!present()) return REFUSED;
    result = REAL(retain_t, "cuMemRetainAllocationHandle")(handle, address);
    if (!result) table_add_reference(PHYSICAL, *handle, 1, &entry);
    return result;
}

#define MAPS_ARRAYS(name)                                                                           \
    EXPORT CUresult name(const map_info_t *list, unsigned count, CUstream stream) {                 \
        CUresult result;                                                                            \
        entry_t entry;                                                                              \
        if (!present()) return REFUSED;                                                            \
        result = REAL(map_arrays_t, #name)(list, count, stream);                                    \
        for (unsigned i = 0; !result && i < count; i++)                                             \
            if (list[i].operation == MAPS) table_add_reference(PHYSICAL, list[i].handle, 1, &entry);        \
        return result;                                                                              \
    }
MAPS_ARRAYS(cuMemMapArrayAsync)
MAPS_ARRAYS(cuMemMapArrayAsync_ptsz)

static int fits(CUdeviceptr place, uint64_t bytes, CUphysical handle) {
    if (REAL(map_t, "cuMemMap")(place, bytes, 0, handle, 0)) return 0;
    REAL(unmap_t, "cuMemUnmap")(place, bytes);
    return 1;
}

/* Returns how much of a handle can be mapped, up to one granule more than the GPU's memory; 0: nothing, or unknown. */
static uint64_t size_of(CUphysical handle, const alloc_prop_t *property) {
    size_t unit = 0, total = 0;
    uint64_t least = 0, most;
    CUdeviceptr place;
    if (REAL(granularity_t, "cuMemGetAllocationGranularity")(&unit, property, 0) || !unit) return 0;
    if (REAL(total_t, "cuDeviceTotalMem_v2")(&total, property->location.id)) return 0;
    most = total / unit + 1;
    if (REAL(reserve_t, "cuMemAddressReserve")(&place, most * unit, 0, 0, 0)) return 0;
    while (least < most) { /* `least` granules fit; more than `most` do not */
        const uint64_t middle = least + (most - least + 1) / 2;
        if (fits(place, middle * unit, handle)) least = middle;
        else most = middle - 1;
    }
    REAL(unreserve_t, "cuMemAddressFree")(place, (total / unit + 1) * unit);
    return least * unit;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUphysical *handle, void *from, int type) {
    alloc_prop_t property = {0};
    CUresult result;
    uint64_t charge;
    entry_t entry;
    int gpu;
    if (!present()) return REFUSED;
    result = REAL(import_t, "cuMemImportFromShareableHandle")(handle, from, type);
    if (result || REAL(property_t, "cuMemGetAllocationPropertiesFromHandle")(&property, *handle)) return result;
    gpu = property.location.type == LOCATION_DEVICE ? gpu_of_device(property.location.id) : -1;
    if (gpu < 0 || table_add_reference(PHYSICAL, *handle, 1, &entry)) return result; /* the same handle again */
    charge = charge_of(size_of(*handle, &property));
    if (!reserve(gpu, charge)) return REAL(release_t, "cuMemRelease")(*handle), FULL;
    table_put(PHYSICAL, *handle, gpu, charge, 1, 1); /* context 1: imported */
    return result;
}

/* Which memory is bound to a multicast object, by object, GPU and offset. */
typedef struct { uint64_t object, from, until; int gpu; } bound_t;
static uint64_t bound_key(uint64_t object, int gpu, uint64_t offset) {
    return object * 0x9E3779B97F4A7C15u + ((uint64_t)gpu << 56) + offset;
}
static int bound_in(const entry_t *entry, const void *range) {
    const bound_t *r = range;
    const uint64_t offset = entry->key - bound_key(r->object, r->gpu, 0);
    return entry->kind == BOUND && entry->context == r->object && entry->gpu == r->gpu && offset >= r->from
        && offset < r->until;
}

#define BINDS(name, type, parameters, arguments)                                                    \
    EXPORT CUresult name parameters {                                                               \
        entry_t entry;                                                                              \
        CUresult result;                                                                            \
        int known;                                                                                  \
        if (!present()) return REFUSED;                                                            \
        known = table_add_reference(PHYSICAL, memory, 1, &entry);                                   \
        result = REAL(type, #name) arguments;                                                       \
        if (known && result) drop_reference(memory);                                                \
        else if (known)                                                                             \
            table_put(BOUND, bound_key(object, entry.gpu, offset), entry.gpu, memory, object, 1);   \
        return result;                                                                              \
    }
BINDS(cuMulticastBindMem, bind_t,
    (CUphysical object, size_t offset, CUphysical memory, size_t from, size_t bytes, unsigned long long flags),
    (object, offset, memory, from, bytes, flags))
BINDS(cuMulticastBindMem_v2, bind_v2_t,
    (CUphysical object, CUdevice device, size_t offset, CUphysical memory, size_t from, size_t bytes,
        unsigned long long flags),
    (object, device, offset, memory, from, bytes, flags))

EXPORT CUresult cuMulticastUnbind(CUphysical object, CUdevice device, size_t offset, size_t bytes) {
    bound_t range = {object, offset, offset + bytes, -1};
    CUresult result;
    entry_t entry;
    if (!present()) return REFUSED;
    result = REAL(unbind_t, "cuMulticastUnbind")(object, device, offset, bytes);
    range.gpu = gpu_of_device(device);
    while (!result && table_remove_any(bound_in, &range, &entry)) drop_reference(entry.bytes);
    return result;
}

EXPORT CUresult cuLogicalEndpointBindMem(CUphysical endpoint, CUdevice device, uint64_t offset, CUphysical memory,
    uint64_t from, uint64_t bytes, unsigned long long flags) {
    entry_t entry;
    CUresult result;
    int known;
    if (!present()) return REFUSED;
    known = table_add_reference(PHYSICAL, memory, 1, &entry);
    result = REAL(bind_v2_t, "cuLogicalEndpointBindMem")(endpoint, device, offset, memory, from, bytes, flags);
    if (known && result) drop_reference(memory);
    return result;
}
