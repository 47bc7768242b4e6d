/* Operations on mbarriers. */
#ifndef SM120_VM_EXECUTE_MBARRIER_H
#define SM120_VM_EXECUTE_MBARRIER_H

#include <stdbool.h>

#include "vm/machine/cta.h"

handler mbarrier_init, mbarrier_inval, mbarrier_arrive, mbarrier_wait, mbarrier_tx;
/* Change the pending arrivals and the transaction count. Return false after a fault. */
bool mbarrier_change(struct warp *w, struct mbarrier *m, int32_t arrivals, int32_t tx, int drop, uint32_t lane);
bool mbarrier_passed(const struct cta *cta, uint32_t address, uint32_t phase);

#endif
