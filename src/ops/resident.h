/* How many CTAs of a kernel a multiprocessor holds at once. */
#ifndef SM120_RESIDENT_H
#define SM120_RESIDENT_H

#include "runtime/builtin.h"

enum { HOPPER = 9 }; /* its major compute capability */

/* Of a launch with so many bytes of shared memory; at least 1. */
int64_t resident_ctas(const struct device *device, const struct kernel_record *record, uint32_t shared_bytes);

/* The bytes of shared memory with which no multiprocessor of a GPU takes more of `ctas` CTAs than it must: at least
 * record->shared. */
uint32_t even_shared(const struct device *device, const struct kernel_record *record, int64_t ctas);

#endif
