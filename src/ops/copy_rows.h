/* Copies of tensors that kernels cannot use in place because of their strides, addresses or head sizes. */
#ifndef SM120_COPY_ROWS_H
#define SM120_COPY_ROWS_H

#include "runtime/launch.h"
#include "runtime/tensor.h"

/* A launch and the values of its arguments. Do not copy it once filled, because it points into itself. */
struct copy_rows {
    struct kernel *kernel;
    struct launch launch;
    struct copy_rows_parameters values;
    struct argument_pointers pointers;
};

/* Check the launch that copies `shape` of a tensor, cut or zero-padded to `to_columns`, without starting it. */
sm120_status copy_rows_prepare(struct device *device, const struct tensor *from, const struct tensor *to,
                               const struct shape *shape, int64_t to_columns, sm120_stream stream,
                               struct copy_rows *copy);

#endif
