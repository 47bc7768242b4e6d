/* Asynchronous copies: cp.async, bulk and tensor copies. */
#ifndef SM120_VM_EXECUTE_ASYNC_H
#define SM120_VM_EXECUTE_ASYNC_H

#include <stdbool.h>

#include "vm/machine/cta.h"

handler async_bulk, async_prefetch, async_bulk_commit, async_bulk_wait, async_copy, async_commit, async_wait,
    async_arrive;
/* Queue a bulk or tensor copy (box) whose addresses have been checked. ranks: the CTAs to which a multicast copies it,
 * each at the same place; 0: none. Return false after a fault. */
bool async_start(struct warp *w, const struct async_op *op, const struct tma_box *box, uint32_t ranks);
/* Check the mask of a multicast. Return false after a fault. */
bool async_ranks_exist(struct warp *w, uint32_t ranks, uint32_t lane);
/* Perform one queued operation. Return 0 if the queue is empty, -1 after a fault. */
int async_land(struct cta *cta);
bool async_bulk_done(const struct warp *w, uint32_t mask, uint32_t allowed);
void async_init(struct cta *cta);

/* st.async and red.async, whose mbarrier is in shared memory */
handler async_word;
/* clusterlaunchcontrol.try_cancel and query_cancel */
handler async_cancel, async_canceled;

#endif
