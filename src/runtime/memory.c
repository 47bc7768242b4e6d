/* Device and pinned memory, copies and fills. */
#include "runtime/memory.h"

#include <inttypes.h>

#include "runtime/check.h"
#include "runtime/error.h"

/* Find the allocation that holds an address, or NULL. The caller has the lock. */
static const struct record *holder(const struct registry *registry, uint64_t address) {
    const struct record *const record = registry_find(registry, address);
    return record != NULL && address - record->key < record->bytes ? record : NULL;
}

/* Whether an address may be one of memory that sm120_alloc did not allocate. Only the virtual device knows. */
static bool may_be_foreign(const struct device *device, uint64_t address) {
    return device->driver->allocated == NULL || device->driver->allocated(device->context, address);
}

bool memory_holds(struct device *device, sm120_address address, uint64_t bytes) {
    mutex_lock(&device->lock);
    const struct record *const record = holder(&device->memory, address);
    const bool is_known = record != NULL, fits = !is_known || bytes <= record->bytes - (address - record->key);
    mutex_unlock(&device->lock);
    return fits && address != 0 && bytes - 1 <= UINT64_MAX - address && (is_known || may_be_foreign(device, address));
}

sm120_status memory_check(struct device *device, sm120_address address, uint64_t bytes, const char *what) {
    sm120_status status = SM120_OK;
    mutex_lock(&device->lock);
    const struct record *const record = holder(&device->memory, address);
    if (record != NULL && bytes > record->bytes - (address - record->key)) {
        status = fail(SM120_INVALID_ARGUMENT,
                      "%s: %" PRIu64 " bytes at 0x%" PRIx64 " run past the end of the allocation of %" PRIu64
                      " bytes at 0x%" PRIx64,
                      what, bytes, address, record->bytes, record->key);
    } else if (address == 0 || bytes - 1 > UINT64_MAX - address) {
        status =
            fail(SM120_INVALID_ARGUMENT, "%s = 0x%" PRIx64 " is not an address of %" PRIu64 " bytes of device memory",
                 what, address, bytes);
    }
    mutex_unlock(&device->lock);
    if (status == SM120_OK && record == NULL && !may_be_foreign(device, address)) {
        status = fail(SM120_INVALID_ARGUMENT,
                      "%s = 0x%" PRIx64 ", which no allocation on this device holds; it must be in device memory", what,
                      address);
    }
    return status;
}

/* Reserve room in a registry of the device. */
static sm120_status reserve(struct device *device, struct registry *registry) {
    mutex_lock(&device->lock);
    const bool reserved = registry_reserve(registry);
    mutex_unlock(&device->lock);
    return reserved ? SM120_OK : fail(SM120_OUT_OF_MEMORY, "recording an allocation: out of host memory");
}

/* Add a record in reserved room; if `bytes` is 0, cancel the reservation. */
static void settle(struct device *device, struct registry *registry, struct record record) {
    mutex_lock(&device->lock);
    if (record.bytes != 0) {
        registry_add(registry, record);
    } else {
        registry_cancel(registry);
    }
    mutex_unlock(&device->lock);
}

/* Translate a failed allocation. */
static sm120_status alloc_fail(const struct device *device, CUresult result, size_t bytes, const char *kind) {
    return driver_fail(device->driver, result, "allocating bytes = %zu of %s memory on \"%s\", which has %" PRId64,
                       bytes, kind, device->info.name, device->info.memory_bytes);
}

/* Check the arguments of an allocation. */
static sm120_status check_alloc(size_t bytes, const sm120_address *address) {
    if (bytes == 0) {
        return fail(SM120_INVALID_ARGUMENT, "bytes = 0; it must be at least 1");
    }
    return check_pointer(address, "address");
}

sm120_status sm120_alloc(sm120_device *handle, size_t bytes, sm120_address *address) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_alloc(bytes, address);
    status = status == SM120_OK ? reserve(device, &device->memory) : status;
    if (status == SM120_OK) {
        CUdeviceptr memory = 0;
        const CUresult result = device->driver->cuMemAlloc(&memory, bytes);
        settle(device, &device->memory, (struct record){memory, result == CUDA_SUCCESS ? bytes : 0});
        status = result == CUDA_SUCCESS ? SM120_OK : alloc_fail(device, result, bytes, "device");
        *address = result == CUDA_SUCCESS ? memory : 0;
    }
    return device_leave(device, status);
}

/* Say why an address cannot be freed. */
static sm120_status no_allocation(struct device *device, const struct registry *registry, uint64_t address,
                                  const char *what, const char *how) {
    mutex_lock(&device->lock);
    const struct record *const record = holder(registry, address);
    const uint64_t start = record != NULL ? record->key : 0;
    mutex_unlock(&device->lock);
    if (start != 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s = 0x%" PRIx64 " is inside the allocation at 0x%" PRIx64 "; free the start of the allocation",
                    what, address, start);
    }
    return fail(SM120_INVALID_ARGUMENT,
                "%s = 0x%" PRIx64 " was not allocated by %s on this device, or it was freed already", what, address,
                how);
}

sm120_status sm120_free(sm120_device *handle, sm120_address address) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    struct record record;
    mutex_lock(&device->lock);
    const bool found = registry_remove(&device->memory, address, &record);
    mutex_unlock(&device->lock);
    if (!found) {
        status = no_allocation(device, &device->memory, address, "address", "sm120_alloc");
    } else {
        const CUresult result = device->driver->cuMemFree(address);
        settle(device, &device->memory, (struct record){address, result == CUDA_SUCCESS ? 0 : record.bytes});
        if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "freeing 0x%" PRIx64, address);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_alloc_pinned(sm120_device *handle, size_t bytes, void **host, sm120_address *address) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_alloc(bytes, address);
    status = status == SM120_OK ? check_pointer((const void *)host, "host") : status;
    status = status == SM120_OK ? reserve(device, &device->pinned) : status;
    if (status == SM120_OK) {
        const struct driver *const driver = device->driver;
        void *memory = NULL;
        CUdeviceptr seen = 0;
        CUresult result = driver->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        if (result == CUDA_SUCCESS) {
            result = driver->cuMemHostGetDevicePointer(&seen, memory, 0);
            if (result != CUDA_SUCCESS) {
                driver->cuMemFreeHost(memory);
            }
        }
        settle(device, &device->pinned,
               (struct record){(uint64_t)(uintptr_t)memory, result == CUDA_SUCCESS ? bytes : 0});
        status = result == CUDA_SUCCESS ? SM120_OK : alloc_fail(device, result, bytes, "pinned host");
        *host = result == CUDA_SUCCESS ? memory : NULL;
        *address = result == CUDA_SUCCESS ? seen : 0;
    }
    return device_leave(device, status);
}

sm120_status sm120_free_pinned(sm120_device *handle, void *host) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    const uint64_t key = (uint64_t)(uintptr_t)host;
    struct record record;
    mutex_lock(&device->lock);
    const bool found = registry_remove(&device->pinned, key, &record);
    mutex_unlock(&device->lock);
    if (!found) {
        status = no_allocation(device, &device->pinned, key, "host", "sm120_alloc_pinned");
    } else {
        const CUresult result = device->driver->cuMemFreeHost(host);
        settle(device, &device->pinned, (struct record){key, result == CUDA_SUCCESS ? 0 : record.bytes});
        if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "freeing host = %p", host);
        }
    }
    return device_leave(device, status);
}

void memory_close_all(struct device *device) {
    for (size_t i = 0; i < device->memory.count; ++i) {
        device->driver->cuMemFree(device->memory.records[i].key);
    }
    for (size_t i = 0; i < device->pinned.count; ++i) {
        device->driver->cuMemFreeHost((void *)(uintptr_t)device->pinned.records[i].key);
    }
}

/* ---- copies ---- */

sm120_status sm120_copy_to_device(sm120_device *handle, sm120_address to, const void *from, size_t bytes,
                                  sm120_stream stream) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK || bytes == 0) {
        return status == SM120_OK ? device_leave(device, status) : status;
    }
    status = check_pointer(from, "from");
    status = status == SM120_OK ? memory_check(device, to, bytes, "to") : status;
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuMemcpyHtoDAsync(to, from, bytes, (CUstream)stream);
        if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "copying %zu bytes to device memory at 0x%" PRIx64, bytes, to);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_copy_to_host(sm120_device *handle, void *to, sm120_address from, size_t bytes, sm120_stream stream) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK || bytes == 0) {
        return status == SM120_OK ? device_leave(device, status) : status;
    }
    status = check_pointer(to, "to");
    status = status == SM120_OK ? memory_check(device, from, bytes, "from") : status;
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuMemcpyDtoHAsync(to, from, bytes, (CUstream)stream);
        if (result != CUDA_SUCCESS) {
            status =
                driver_fail(device->driver, result, "copying %zu bytes from device memory at 0x%" PRIx64, bytes, from);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_copy_on_device(sm120_device *handle, sm120_address to, sm120_address from, size_t bytes,
                                  sm120_stream stream) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK || bytes == 0) {
        return status == SM120_OK ? device_leave(device, status) : status;
    }
    status = memory_check(device, to, bytes, "to");
    status = status == SM120_OK ? memory_check(device, from, bytes, "from") : status;
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuMemcpyDtoDAsync(to, from, bytes, (CUstream)stream);
        if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "copying %zu bytes from 0x%" PRIx64 " to 0x%" PRIx64, bytes,
                                 from, to);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_fill(sm120_device *handle, sm120_address address, uint8_t value, size_t bytes, sm120_stream stream) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK || bytes == 0) {
        return status == SM120_OK ? device_leave(device, status) : status;
    }
    status = memory_check(device, address, bytes, "address");
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuMemsetD8Async(address, value, bytes, (CUstream)stream);
        if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "filling %zu bytes at 0x%" PRIx64, bytes, address);
        }
    }
    return device_leave(device, status);
}
