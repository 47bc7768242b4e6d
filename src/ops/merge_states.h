/* The launch that merges the attention of parts of the keys. */
#ifndef SM120_MERGE_STATES_H
#define SM120_MERGE_STATES_H

#include "runtime/launch.h"
#include "runtime/tensor.h"

/* States whose tensors were checked. The states of a row are `state_stride` bytes apart. */
struct states {
    struct tensor outs, o;
    struct shape shape; /* of o */
    int64_t states, state_stride;
    sm120_address lses, lse, sinks;
};

struct merge_launch {
    struct kernel *kernel;
    struct launch launch;
    struct merge_states_parameters values;
    struct argument_pointers pointers;
};

/* Check the launch without starting it. Do not copy it once filled, because it points into itself. */
sm120_status merge_prepare(struct device *device, const struct states *states, sm120_stream stream,
                           struct merge_launch *merge);

#endif
