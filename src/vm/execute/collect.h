/* Shuffles, votes and other collectives of a warp. */
#ifndef SM120_VM_EXECUTE_COLLECT_H
#define SM120_VM_EXECUTE_COLLECT_H

#include "vm/machine/cta.h"

handler collect_shfl, collect_vote, collect_match, collect_redux, collect_activemask, collect_elect, collect_movmatrix;

/* Wait until all lanes of the member mask (i->c) are here. STEP_JUMP: lanes with different masks have executed i. */
enum step collect_members(struct warp *w, const struct inst *i, uint32_t mask, uint32_t *members);

#endif
