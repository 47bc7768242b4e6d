/* Checks before a launch, and the launch. */
#ifndef SM120_LAUNCH_H
#define SM120_LAUNCH_H

#include "runtime/kernels.h"
#include "runtime/module.h"

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

/* One argument: its value stays where it is until the launch has started. */
struct argument {
    const void *value;
    size_t bytes;
};

#define ARGUMENT(place) ((struct argument){&(place), sizeof(place)})

/* The arguments of a kernel of the library, in the order of its parameters. Not to be copied once it is in a launch. */
enum { ARGUMENTS_MAX = 48 };
struct argument_list {
    const void *values[ARGUMENTS_MAX];
    size_t bytes[ARGUMENTS_MAX];
};

/* Describe a launch of `grid` CTAs of an entry with at most ARGUMENTS_MAX arguments. */
struct launch launch_of(struct argument_list *list, const struct argument *arguments, size_t count, uint32_t grid,
                        const struct kernel_entry *entry, sm120_stream stream);

/* Check a block against the kernel's limits. */
sm120_status launch_check_threads(const struct kernel *kernel, const char *what, uint32_t x, uint32_t y, uint32_t z);

/* Check an amount of dynamic shared memory, and opt in to it where that takes a call of the driver. */
sm120_status launch_allow_shared(struct kernel *kernel, uint32_t shared_bytes);

/* Check all of a launch; nothing starts. */
sm120_status launch_check(struct kernel *kernel, const struct launch *launch);

/* Start a launch that was checked. The device's context is current. */
sm120_status launch_start(struct kernel *kernel, const struct launch *launch);

#endif
