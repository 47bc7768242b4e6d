/* Checks before a launch, and the launch. */
#ifndef SM120_LAUNCH_H
#define SM120_LAUNCH_H

#include "module.h"

enum { SHARED_BYTES_DEFAULT = 48 * 1024 }; /* what a launch may have without opting in */

struct launch {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    sm120_stream stream;
    const void *const *arguments;
    const size_t *argument_bytes;
    size_t argument_count;
    bool is_cooperative; /* all CTAs are on the device at once */
};

/* Check a block against the kernel's limits. */
sm120_status launch_check_threads(const struct kernel *kernel, const char *what, uint32_t x, uint32_t y, uint32_t z);

/* Check an amount of dynamic shared memory, and opt in to it where that takes a call of the driver. */
sm120_status launch_allow_shared(struct kernel *kernel, uint32_t shared_bytes);

/* Check all of a launch; nothing starts. */
sm120_status launch_check(struct kernel *kernel, const struct launch *launch);

/* Start a launch that was checked. The device's context is current. */
sm120_status launch_start(struct kernel *kernel, const struct launch *launch);

#endif
