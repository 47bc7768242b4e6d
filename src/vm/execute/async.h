/* Asynchronous copies: cp.async, bulk and tensor copies. */
#ifndef SM120_VM_EXECUTE_ASYNC_H
#define SM120_VM_EXECUTE_ASYNC_H

#include <stdbool.h>

#include "vm/machine/cta.h"

handler async_bulk, async_prefetch, async_bulk_commit, async_bulk_wait, async_copy, async_commit, async_wait,
    async_arrive;
/* Queue a tensor copy whose addresses have been checked. Return false after a fault. */
bool async_start(struct warp *w, const struct async_op *op, const struct tma_box *box);
/* Perform one queued operation. Return 0 if the queue is empty, -1 after a fault. */
int async_land(struct cta *cta);
bool async_bulk_done(const struct warp *w, uint32_t mask, uint32_t allowed);
void async_init(struct cta *cta);

#endif
