/* Shuffles, votes and other collectives of a warp. */
#ifndef SM120_VM_EXECUTE_COLLECT_H
#define SM120_VM_EXECUTE_COLLECT_H

#include "vm/machine/cta.h"

handler collect_shfl, collect_vote, collect_match, collect_redux, collect_activemask, collect_elect, collect_movmatrix;

/* Gather the lanes of a member mask (i->c) for a collective, at this statement and at others like it. mask: the lanes
 * that are here; afterwards those that execute the instruction now. 0: they wait, or have executed it. others: lanes
 * that take part at other statements. Return the step with which the handler ends. */
enum step collect_members(struct warp *w, const struct inst *i, uint32_t *mask, uint32_t *others);
/* Return the lanes that a split at a collective waits for. */
uint32_t collect_missing(const struct warp *w, const struct split *s);
/* Return whether a split at a collective need not wait any longer. */
bool collect_complete(const struct warp *w, const struct split *s);

#endif
