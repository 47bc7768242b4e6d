/* Find mbarriers by address. */
#ifndef SM120_VM_MACHINE_MBARRIER_H
#define SM120_VM_MACHINE_MBARRIER_H

#include <stdint.h>

#include "vm/machine/cta.h"

/* Check the address of an mbarrier and return its slot in mbarrier_at; NULL after a fault. */
uint16_t *mbarrier_slot(struct warp *w, uint32_t address, uint32_t lane, const char *what);
/* Return the mbarrier at an address; NULL after a fault. */
struct mbarrier *mbarrier_get(struct warp *w, uint64_t address, uint32_t lane, const char *what);

#endif
