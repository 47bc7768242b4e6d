/* Copies of tensors that kernels cannot use in place because of their strides, addresses or head sizes. */
#ifndef SM120_COPY_ROWS_H
#define SM120_COPY_ROWS_H

#include "runtime/launch.h"
#include "runtime/places.h"

/* Whether kernels can load a tensor as it lies: aligned, and of a head size that is a multiple of 8. */
bool copy_rows_is_needless(const struct tensor *x, const struct shape *shape);

/* The head size of a copy for kernels whose inputs have a dtype: a multiple of the step, so that its rows are aligned.
 */
int64_t copy_rows_step(uint32_t dtype);
int64_t copy_rows_width(int64_t head_dim, uint32_t dtype);

/* Place the contiguous copy of a tensor, in a dtype and in a shape, at `offset` of the workspace, and move the offset
 * behind it. What does not change along a dimension is copied once. */
sm120_status copy_rows_place(const struct tensor *given, const struct shape *shape, uint32_t dtype, struct tensor *copy,
                             int64_t *offset);

/* A launch and the values of its arguments. Do not copy it once filled, because it points into itself. */
struct copy_rows {
    struct kernel *kernel;
    struct launch launch;
    struct copy_rows_parameters values;
    struct argument_pointers pointers;
};

/* Check the launch that copies `shape` of a tensor, cut or zero-padded to `to_columns`, without starting it. What does
 * not change along a dimension of stride 0 is copied once. A copy of F32 may be BF16. With is_rounded, the copy of a
 * tensor in 16 bits is rounded to MXFP8, in blocks along the head. */
sm120_status copy_rows_prepare(struct device *device, const struct tensor *from, const struct tensor *to,
                               const struct shape *shape, int64_t to_columns, bool is_rounded, sm120_stream stream,
                               struct copy_rows *copy);

#endif
