/* The pool of registers that warps of a CTA give to one another by setmaxnreg. */
#ifndef SM120_VM_EXECUTE_POOL_H
#define SM120_VM_EXECUTE_POOL_H

#include <stdbool.h>

#include "vm/machine/cta.h"

handler pool_set;
void pool_start(struct cta *cta);
/* At the end of a CTA: all warps of a warpgroup must have executed the same setmaxnreg. Return false after a fault. */
bool pool_end(struct cta *cta);

#endif
