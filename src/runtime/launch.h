/* Checks before a launch, and the launch. */
#ifndef SM120_LAUNCH_H
#define SM120_LAUNCH_H

#include "generated/parameters.h"
#include "runtime/kernel.h"
#include "runtime/kernels.h"

struct launch {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    sm120_stream stream;
    const void *const *arguments;
    const size_t *argument_bytes;
    size_t argument_count;
    bool is_cooperative; /* all CTAs are resident at once */
    bool is_early;       /* may begin before the launch in front of it has ended; the kernel waits by griddepcontrol */
};

/* The arguments of a kernel of the library: a struct of generated/parameters.h, which stays where it is until the
 * launch has started. */
struct arguments {
    const void *values;
    const struct parameter_list *list;
};

/* Point to a struct of parameters; the compiler knows which list it belongs to. */
#define ARGUMENTS(values) ((struct arguments){(values), PARAMETER_LIST(values)})

/* The arrays that a launch points to. Do not copy it once a launch points to it. */
struct argument_pointers {
    const void *values[KERNEL_PARAMETERS_MAX];
    size_t bytes[KERNEL_PARAMETERS_MAX];
};

/* Describe a launch of `grid` CTAs of a kernel. The struct of arguments is the kernel's, or one that begins with the
 * kernel's parameters. */
sm120_status launch_of(struct argument_pointers *pointers, struct arguments arguments, uint32_t grid,
                       const struct kernel_record *record, sm120_stream stream, struct launch *launch);

/* Check a launch without starting it. */
sm120_status launch_check(struct kernel *kernel, const struct launch *launch);

/* Start a launch that was checked. The device's context is current. */
sm120_status launch_start(struct kernel *kernel, const struct launch *launch);

#endif
