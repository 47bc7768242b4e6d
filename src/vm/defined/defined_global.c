/* Checks that device memory read by the host is defined. */
#include "vm/defined/defined.h"
#include "vm/machine/device.h"
#include "vm/machine/fault.h"
#include "vm/machine/memory.h"
#include "vm/machine/shade.h"
#include "vm/machine/types.h"

/* Return the offset of the first byte to which a kernel has stored an undefined value, or `bytes`. */
static size_t first_stored(const struct shade *s, size_t at, size_t bytes) {
    for (size_t k = 0; k < bytes; ++k) {
        if ((at + k) % 4 == 0 && s->origin[(at + k) / 4] == 0) {
            k += bytes - k > 4 ? 3 : 0;
        } else if (s->defined[at + k] != 0xff && (s->origin[(at + k) / 4] >> (at + k) % 4 & 1u) != 0) {
            return k;
        }
    }
    return bytes;
}

/* Check bytes that the host copies. Undefined values stored by kernels are a fault. Bytes that nothing has written
 * are ignored. */
CUresult shade_read(struct device *device, uint64_t address, size_t bytes) {
    const struct allocation *a = atomic_load(&device->shades) ? shade_find(device, address) : NULL;
    if (a == NULL || !atomic_load(&a->shade->stored)) {
        return CUDA_SUCCESS;
    }
    const size_t at = address - a->start, k = first_stored(a->shade, at, bytes);
    if (k == bytes) {
        return CUDA_SUCCESS;
    }
    const char *const text = stored_text(device, a->shade->origin[(at + k) / 4] >> 4);
    return fault_set(CUDA_ERROR_LAUNCH_FAILED,
                     "the host copies an undefined result, byte %zu of %zu at 0x%llx: %s; expected a defined value", k,
                     bytes, (unsigned long long)address, text);
}
