/* Device and pinned memory that a device allocated. */
#ifndef SM120_MEMORY_H
#define SM120_MEMORY_H

#include <stdbool.h>

#include "runtime/device.h"

/* Whether, and check that, `bytes` bytes at `address` lie within the allocation that holds the first of them. On a GPU
 * memory that another library allocated is unknown here and passes. */
bool memory_holds(struct device *device, sm120_address address, uint64_t bytes);
sm120_status memory_check(struct device *device, sm120_address address, uint64_t bytes, const char *what);

/* Free all memory of a device that is being closed. */
void memory_close_all(struct device *device);

#endif
