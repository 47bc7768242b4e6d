/* What the precisions of sm120_attention share. */
#ifndef SM120_ATTENTION_H
#define SM120_ATTENTION_H

#include "runtime/builtin.h"
#include "runtime/tensor.h"

#define LOG2_E 1.4426950408889634

/* A call whose arguments were checked, but for addresses. Shapes are those of the tensors: where they are packed, one
 * batch of all rows. */
struct attention {
    const sm120_attention_args *args;
    struct shape q_shape, k_shape, v_shape, o_shape, past_k_shape, past_v_shape;
    struct tensor q, k, v, o, past_k, past_v;
    int64_t lse_bytes, mask_bytes;
    bool is_uniform; /* a kernel for tensors of one length and unchanged scores does */
};

/* One function for each precision: answer the size of the workspace where it is 0, or launch. */
typedef sm120_status attention_run(struct device *device, const struct attention *call, sm120_address workspace,
                                   size_t *workspace_bytes);
attention_run attention_mxfp8, attention_bf16_f16;

/* What a precision takes. */
struct precision {
    uint32_t code;
    uint32_t dtype; /* of q, k and v; 0: any */
    int64_t head_dim_max;
    bool has_left; /* its kernel for tensors of one length has a left window */
    attention_run *run;
};

/* Check the arguments but for tensors and addresses, and fill in the shapes. */
sm120_status attention_check_forms(const sm120_attention_args *args, const struct precision *precision,
                                   struct attention *call);

/* Check the arguments but for addresses, and fill in the call. */
sm120_status attention_check(const sm120_attention_args *args, const struct precision *precision,
                             struct attention *call);

/* The bytes of a mask's element; 0 for a dtype that no mask has. */
int64_t attention_mask_bytes(uint32_t dtype);

/* Check the addresses of all that the call reads and writes. */
sm120_status attention_check_places(struct device *device, const struct attention *call);

/* |scale| * log2(e), of which kernels take powers of two. */
double attention_scale_log2(float scale);
double attention_softcap_scale(const sm120_attention_args *args); /* of the exponent of softcap's tanh */

/* How far a row sees from its diagonal: from left keys before it to right keys behind it, where there is an edge. */
struct reach {
    bool has_left, has_right;
    int32_t left, right;
};
struct reach attention_reach(const sm120_attention_args *args);

/* Row i sees key j where i + lower <= j <= i + upper: of a call that is uniform. */
int32_t attention_lower(const sm120_attention_args *args);
int32_t attention_upper(const sm120_attention_args *args);

/* The kernels' code of o's dtype. */
uint32_t attention_o_type(const sm120_attention_args *args);

/* The number of CTAs that cover the rows of q, `q_rows` each. */
sm120_status attention_grid(const struct attention *call, uint32_t q_rows, uint32_t *grid);

/* Whether kernels can take all tensors as they lie: aligned, and of a head size that is a multiple of 8. */
bool attention_is_ready(const struct attention *call);

/* The kernel that makes a call: the config that args name, or the environment where the call has it, or what suits. */
sm120_status attention_choose(const struct device *device, const struct attention *call, uint32_t *index);

/* The configs of a call, and the one of an entry. */
sm120_status attention_config(const struct attention *call, int32_t index, uint32_t *entry);
const char *attention_config_name(uint32_t index);

/* Describe a tensor of 16 bits to the copy engine: boxes of 64 columns and so many rows, swizzled by 128 bytes. A
 * dimension of stride 0 has one coordinate, and the bits of `broadcast` say so: bit 0 for batch, bit 1 for heads. */
sm120_status attention_describe(const struct device *device, const struct tensor *x, const struct shape *shape,
                                uint32_t rows, CUtensorMap *map, uint32_t *broadcast);

/* Run a call on copies of the tensors that are not ready. */
sm120_status attention_on_copies(struct device *device, const struct attention *call, attention_run *run,
                                 sm120_address workspace, size_t *workspace_bytes);

#endif
