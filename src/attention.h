/* What the precisions of sm120_attention share. */
#ifndef SM120_ATTENTION_H
#define SM120_ATTENTION_H

#include "builtin.h"
#include "tensor.h"

/* A call whose arguments were checked, but for addresses. */
struct attention {
    const sm120_attention_args *args;
    struct shape q_shape, kv_shape;
    struct tensor q, k, v, o;
    int64_t lse_bytes;
};

/* Check the addresses of q, k, v, o and lse. */
sm120_status attention_check_places(struct device *device, const struct attention *call);

/* |scale| * log2(e), of which kernels take powers of two. */
double attention_scale_log2(float scale);

/* Query row i sees key j where j <= i + diagonal. */
int32_t attention_diagonal(const sm120_attention_args *args);

/* The kernels' code of o's dtype. */
uint32_t attention_o_type(const sm120_attention_args *args);

/* The number of CTAs that cover the rows of q, `q_rows` each. */
sm120_status attention_grid(const struct attention *call, uint32_t q_rows, uint32_t *grid);

/* Describe a tensor of 16 bits to the copy engine: boxes of 64 columns and so many rows, swizzled by 128 bytes. A
 * dimension of stride 0 has one coordinate, and the bits of `broadcast` say so: bit 0 for batch, bit 1 for heads. */
sm120_status attention_describe(const struct device *device, const struct tensor *x, const struct shape *shape,
                                uint32_t rows, CUtensorMap *map, uint32_t *broadcast);

/* One function for each precision: answer the size of the workspace where it is 0, or launch. */
sm120_status attention_mxfp8(struct device *device, const struct attention *call, sm120_address workspace,
                             size_t *workspace_bytes);
sm120_status attention_bf16_f16(struct device *device, const struct attention *call, sm120_address workspace,
                                size_t *workspace_bytes);

#endif
