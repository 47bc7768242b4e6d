/* Copies of tensors that kernels cannot load from, or store to, as they lie: odd strides, addresses and head sizes. */
#ifndef SM120_COPY_ROWS_H
#define SM120_COPY_ROWS_H

#include "runtime/launch.h"
#include "runtime/tensor.h"

/* A launch with the values that its arguments point to. Not to be copied once filled. */
struct copy_rows {
    struct kernel *kernel;
    struct launch launch;
    struct copy_rows_parameters values;
    struct argument_pointers pointers;
};

/* Check the launch that copies `shape` of a tensor, cut or padded with zeros to `to_columns`; nothing starts. */
sm120_status copy_rows_prepare(struct device *device, const struct tensor *from, const struct tensor *to,
                               const struct shape *shape, int64_t to_columns, sm120_stream stream,
                               struct copy_rows *copy);

#endif
