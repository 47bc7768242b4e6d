/* malloc and free in kernels. Each allocation is one of device memory, so accesses beyond it and after free are
 * faults. It lasts until free, or until the device is closed. */
#include "vm/execute/heap.h"

#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"

/* malloc(bytes): 0 if the heap is exhausted, or for 0 bytes. */
enum step heap_allocate(struct warp *w, const struct inst *i, uint32_t mask) {
    const struct launch *const launch = w->cta->launch;
    const uint64_t *const bytes = source(w, i->a);
    uint64_t *const d = destination(w, i->d);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        d[lane] = memory_heap_alloc(launch->device, bytes[lane], launch->checks == CHECKS_FULL);
    }
    return STEP_NEXT;
}

/* free(address): nothing for 0. */
enum step heap_free(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint64_t *const address = source(w, i->a);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        if (address[lane] != 0 && !memory_heap_free(w->worker, address[lane])) {
            return fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                            "free of 0x%llx; expected an address that malloc has returned and that is not free",
                            (unsigned long long)address[lane]);
        }
    }
    return STEP_NEXT;
}
