/* Barriers of a CTA and of its cluster. */
#ifndef SM120_VM_EXECUTE_BARRIER_H
#define SM120_VM_EXECUTE_BARRIER_H

#include "vm/machine/cta.h"

handler control_bar, control_cluster;
/* Release barriers without a count that a warp's exit has completed. */
void barrier_check(struct cta *cta, uint32_t number);

#endif
