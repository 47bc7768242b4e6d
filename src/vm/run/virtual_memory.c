/* Memory and copies of the virtual SM120. */
#include "vm/run/virtual.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "platform/thread.h"
#include "vm/defined/defined.h"
#include "vm/machine/fault.h"
#include "vm/machine/memory.h"
#include "vm/machine/options.h"
#include "vm/machine/shade.h"
#include "vm/run/streams.h"

CUresult virtual_cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    if (address == NULL) {
        return virtual_null_argument("address");
    }
    return virtual_current() != NULL
               ? memory_alloc(virtual_current(), bytes,
                              options_checks() == CHECKS_FULL ? ALLOCATION_SHADED : ALLOCATION_PLAIN, address)
               : virtual_no_context();
}

CUresult virtual_cuMemFree(CUdeviceptr address) {
    if (virtual_current() == NULL) {
        return virtual_no_context();
    }
    return address != 0 ? memory_free(virtual_current(), address, ALLOCATION_PLAIN) : CUDA_SUCCESS;
}

CUresult virtual_cuMemHostAlloc(void **host, size_t bytes, unsigned flags) {
    uint64_t address = 0;
    if (host == NULL) {
        return virtual_null_argument("host");
    }
    if (flags > 7) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "flags is %u, which is not supported", flags);
    }
    const CUresult r = virtual_current() != NULL ? memory_alloc(virtual_current(), bytes, ALLOCATION_PINNED, &address)
                                                 : virtual_no_context();
    if (r == CUDA_SUCCESS) {
        *host = (void *)(uintptr_t)address;
    }
    return r;
}

static void read_begin(void) {
    rwlock_lock_read(&virtual_current()->memory_lock);
}

static CUresult read_end(CUresult result) {
    atomic_fetch_add(&virtual_current()->host_calls, 1);
    rwlock_unlock_read(&virtual_current()->memory_lock);
    return result;
}

/* Begin a copy, in its stream's order. `host`, `name`: memory of the host in it; name NULL: none. Return false if the
 * copy ends here, with this result. */
static bool copy_begin(CUstream stream, size_t bytes, const void *host, const char *name, struct work *work,
                       CUresult *result) {
    struct device *const device = virtual_current();
    if (device == NULL || bytes == 0) {
        *result = device != NULL ? stream_check(device, stream) : virtual_no_context();
        return false;
    }
    *result = name != NULL && host == NULL ? virtual_null_argument(name) : work_begin(device, stream, work);
    if (*result != CUDA_SUCCESS) {
        return false;
    }
    read_begin();
    return true;
}

static CUresult copy_end(struct work *work, CUresult result) {
    return work_end(work, read_end(result));
}

CUresult virtual_cuMemHostGetDevicePointer(CUdeviceptr *address, void *host, unsigned flags) {
    if (address == NULL || host == NULL || flags != 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "address or host is NULL, or flags is not 0");
    }
    if (virtual_current() == NULL) {
        return virtual_no_context();
    }
    read_begin();
    const CUresult r = memory_check_range(virtual_current(), (uint64_t)(uintptr_t)host, 1, "host");
    if (r == CUDA_SUCCESS) {
        *address = (uint64_t)(uintptr_t)host;
    }
    return read_end(r);
}

CUresult virtual_cuMemFreeHost(void *host) {
    if (virtual_current() == NULL) {
        return virtual_no_context();
    }
    return host != NULL ? memory_free(virtual_current(), (uint64_t)(uintptr_t)host, ALLOCATION_PINNED) : CUDA_SUCCESS;
}

bool virtual_allocated(CUcontext context, CUdeviceptr address) {
    rwlock_lock_read(&context->device.memory_lock);
    const bool found = memory_check_range(&context->device, address, 1, "address") == CUDA_SUCCESS;
    rwlock_unlock_read(&context->device.memory_lock);
    return found;
}

/* Copies hold the lock until they are done, so that no other thread frees the memory. */
CUresult virtual_cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    struct work work;
    CUresult r;
    if (!copy_begin(stream, bytes, from, "from", &work, &r)) {
        return r;
    }
    r = memory_check_range(virtual_current(), to, bytes, "to");
    if (r == CUDA_SUCCESS) {
        memmove((void *)(uintptr_t)to, from, bytes);
    }
    if (r == CUDA_SUCCESS) {
        shade_written(virtual_current(), to, bytes);
    }
    return copy_end(&work, r);
}

CUresult virtual_cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct work work;
    CUresult r;
    if (!copy_begin(stream, bytes, to, "to", &work, &r)) {
        return r;
    }
    r = memory_check_range(virtual_current(), from, bytes, "from");
    r = r != CUDA_SUCCESS ? r : shade_read(virtual_current(), from, bytes);
    if (r == CUDA_SUCCESS) {
        memmove(to, (const void *)(uintptr_t)from, bytes);
    }
    return copy_end(&work, r);
}

CUresult virtual_cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct work work;
    CUresult r;
    if (!copy_begin(stream, bytes, NULL, NULL, &work, &r)) {
        return r;
    }
    r = memory_check_range(virtual_current(), to, bytes, "to");
    r = r != CUDA_SUCCESS ? r : memory_check_range(virtual_current(), from, bytes, "from");
    if (r == CUDA_SUCCESS) {
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    }
    if (r == CUDA_SUCCESS) {
        shade_copied(virtual_current(), to, from, bytes);
    }
    return copy_end(&work, r);
}

CUresult virtual_cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    struct work work;
    CUresult r;
    if (!copy_begin(stream, bytes, NULL, NULL, &work, &r)) {
        return r;
    }
    r = memory_check_range(virtual_current(), to, bytes, "to");
    if (r == CUDA_SUCCESS) {
        memset((void *)(uintptr_t)to, value, bytes);
    }
    if (r == CUDA_SUCCESS) {
        shade_written(virtual_current(), to, bytes);
    }
    return copy_end(&work, r);
}
