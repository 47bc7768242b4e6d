/* Bulk and non-bulk asynchronous copies. */
#ifndef SM120_VM_EXECUTE_ASYNC_H
#define SM120_VM_EXECUTE_ASYNC_H

#include <stdbool.h>

#include "vm/machine/cta.h"

handler async_bulk, async_bulk_commit, async_bulk_wait, async_copy, async_commit, async_wait, async_arrive;
/* Issue a tensor copy whose two sides are good. False after a fault. */
bool async_start(struct warp *w, const struct async_op *op, const struct tma_box *box);
/* Let one operation in flight land. 0: nothing is in flight; -1: fault. */
int async_land(struct cta *cta);
bool async_bulk_done(const struct warp *w, uint32_t mask, uint32_t allowed);
void async_init(struct cta *cta);

#endif
