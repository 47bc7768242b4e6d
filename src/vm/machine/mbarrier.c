/* Find mbarriers by address. */
#include "vm/machine/mbarrier.h"

#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/memory.h"

/* Check the address of an mbarrier and return its slot in mbarrier_at; NULL after a fault. */
uint16_t *mbarrier_slot(struct warp *w, uint32_t address, uint32_t lane, const char *what) {
    if (memory_shared(w, address, 8, 8, lane, what) == NULL) {
        return NULL;
    }
    return &w->cta->mbarrier_at[(address - SHARED_BASE) / 8];
}

/* Return the mbarrier at an address; NULL after a fault. */
struct mbarrier *mbarrier_get(struct warp *w, uint64_t address, uint32_t lane, const char *what) {
    const uint16_t *slot = mbarrier_slot(w, (uint32_t)address, lane, what);
    if (slot == NULL) {
        return NULL;
    }
    if (*slot == 0 || !w->cta->mbarrier[*slot - 1].valid) {
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane, "%s: no mbarrier was initialised at shared address 0x%x", what,
                 (uint32_t)address);
        return NULL;
    }
    return &w->cta->mbarrier[*slot - 1];
}
