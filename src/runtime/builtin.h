/* The kernels inside the library, loaded on a device on first use. */
#ifndef SM120_BUILTIN_H
#define SM120_BUILTIN_H

#include <stdbool.h>

#include "runtime/device.h"
#include "runtime/kernels.h"

/* The target whose kernels run on a compute capability: "sm_120f" or "sm_90"; NULL: there is no such target. */
const char *builtin_target(int capability_major);

/* Make and free a device's table of loaded kernels. */
bool builtin_open(struct device *device);
void builtin_close(struct device *device);

/* Whether a record has the operation, precision, dtype, element_bytes, layout, config, features and head_dim of
 * `wanted`, and the index of the first one. */
bool builtin_has(const struct kernel_record *wanted, uint32_t *index);

/* The same, where it is an error if there is none. */
sm120_status builtin_find(const struct kernel_record *wanted, uint32_t *index);

/* The kernel of a record, loaded on the device. Its context is current. */
sm120_status builtin_load(struct device *device, uint32_t index, struct kernel **kernel);

#endif
