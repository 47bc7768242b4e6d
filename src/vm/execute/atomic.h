/* atom and red. */
#ifndef SM120_VM_EXECUTE_ATOMIC_H
#define SM120_VM_EXECUTE_ATOMIC_H

#include "vm/machine/cta.h"

handler atomic_run, atomic_run_wide;
/* Return the function of an atomic operation, or NULL if PTX has no such operation. */
atomic_function *atomic_find(enum atomic_op op, enum type type);
/* Return the function of a reduction by cp.reduce.async.bulk, or NULL. */
atomic_function *atomic_find_bulk(enum atomic_op op, enum type type);

#endif
