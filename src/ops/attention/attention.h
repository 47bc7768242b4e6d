/* What the precisions of sm120_attention share. */
#ifndef SM120_ATTENTION_H
#define SM120_ATTENTION_H

#include "runtime/builtin.h"
#include "runtime/launch.h"
#include "runtime/places.h"
#include "runtime/tensor.h"

#define LOG2_E 1.4426950408889634

/* The scales of FP8, and the largest |o|, in the order of sm120_attention_args. */
enum { ATTENTION_Q_SCALE, ATTENTION_K_SCALE, ATTENTION_V_SCALE, ATTENTION_O_SCALE, ATTENTION_AMAX, ATTENTION_SCALES };

/* The tensors whose scales in blocks a call may have. */
enum { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_PAST_K, ATTENTION_PAST_V, ATTENTION_OPERANDS };

/* The scales of a tensor that is MXFP8 already. */
struct blocks {
    bool are_given; /* false: the tensor is not MXFP8 */
    struct tensor tensor;
    struct shape shape;
};

/* A call whose arguments were checked, except addresses. The shapes are those of the tensors: a packed tensor is one
 * batch with all rows. */
struct attention {
    const sm120_attention_args *args;
    struct shape q_shape, k_shape, v_shape, o_shape, past_k_shape, past_v_shape;
    struct tensor q, k, v, o, past_k, past_v;
    struct blocks blocks[ATTENTION_OPERANDS];
    struct tensor scales[ATTENTION_SCALES]; /* of FP8 */
    int64_t lse_bytes, mask_bytes;
    bool is_uniform; /* tensors of one length and unmodified scores: the kernels without features suffice */
    bool has_e5m2;   /* q, k or v is in E5M2: a kernel of its own, which has all features, so not is_uniform */
};

/* One function for each precision: it launches, or answers the question for the size of the workspace. */
typedef sm120_status attention_run(struct device *device, const struct attention *call,
                                   const struct workspace *workspace);
attention_run attention_mxfp8, attention_bf16_f16, attention_fp8;

/* What a precision supports. */
struct precision {
    uint32_t code;
    uint32_t dtype; /* of q, k and v; 0: any */
    int64_t head_dim_max;
    bool has_left; /* its kernel for tensors of one length has a left window */
    attention_run *run;
    bool has_qk_blocks, has_v_blocks; /* q and k, or v, may be MXFP8 already */
};

/* Check a call and launch it, or answer the question for the size of its workspace. */
sm120_status attention_call(struct device *device, const sm120_attention_args *args, const struct workspace *workspace);

/* Find the precision of a code. */
sm120_status attention_find_precision(uint32_t code, const struct precision **precision);

/* Check causal, scale, the window and softcap. */
sm120_status attention_check_options(const sm120_attention_args *args);

/* Check the arguments except tensors and addresses, and fill in the shapes. */
sm120_status attention_check_forms(const sm120_attention_args *args, const struct precision *precision,
                                   struct attention *call);

/* Check the arguments except addresses, and fill in the call. */
sm120_status attention_check(const sm120_attention_args *args, const struct precision *precision,
                             struct attention *call);

/* Check dtypes and strides of the tensors, and of the scales of those that are MXFP8 already. */
sm120_status attention_check_tensors(struct attention *call, const struct precision *precision);

/* Whether a checked k or v is tiles, as sm120_quantize_mxfp8 writes them; the columns of tiles that suit a call. */
bool attention_is_tiles(const struct tensor *x);
int64_t attention_tile_columns(const struct attention *call);

/* The bytes of a mask's element; 0 for a dtype that masks do not support. */
int64_t attention_mask_bytes(uint32_t dtype);

/* Check the addresses of everything that the call reads and writes, its workspace too, of which
 * `needed` bytes are used. */
sm120_status attention_check_places(struct device *device, const struct attention *call,
                                    const struct workspace *workspace, int64_t needed);

/* |scale| * log2(e): kernels compute exp(x) as 2^(x * log2(e)). */
double attention_scale_log2(float scale);
double
attention_softcap_scale(const sm120_attention_args *args); /* factor of a score in the exponent of softcap's tanh */

/* The window of a row: from `left` keys before its diagonal to `right` keys behind it. Without an edge, all keys. */
struct reach {
    bool has_left, has_right;
    int32_t left, right;
};
struct reach attention_reach(const sm120_attention_args *args);

/* In a uniform call, row i sees key j if i + lower <= j <= i + upper. */
int32_t attention_lower(const sm120_attention_args *args);
int32_t attention_upper(const sm120_attention_args *args);

/* The kernels' code of o's dtype. */
uint32_t attention_type(uint32_t dtype);

/* The Q tiles of a kernel for a call: its CTAs, if no keys are split. */
int64_t attention_ctas(const struct attention *call, const struct kernel_record *record);

/* Whether a dtype is one of FP8's, in a call of precision FP8. */
bool attention_is_fp8(const sm120_attention_args *args, uint32_t dtype);

/* Whether q, k and v are F32 and are rounded to BF16 in copies. */
bool attention_is_narrowed(const struct attention *call);

/* Whether kernels can use all tensors in place: they are aligned, and head sizes are multiples of 8. */
bool attention_is_ready(const struct attention *call);

/* The kernel for a call. The config is that of args, else $PYSM120_ATTENTION_CONFIG if the call supports it, else the
 * one that suits shape and device. */
sm120_status attention_choose(const struct device *device, const struct attention *call, uint32_t *index);

/* Config `index` of those that support a call; the name of a kernel's config. */
sm120_status attention_config(const struct attention *call, int32_t index, uint32_t *entry);
const char *attention_config_name(uint32_t index);

enum { ATTENTION_BOX_COLUMNS = 64 }; /* in 16 bits: 128 bytes, as wide as the swizzle */

/* Make the tensor map of a 16-bit tensor: boxes of ATTENTION_BOX_COLUMNS and `rows` rows, swizzle 128B; or of one in
 * E4M3: boxes of `columns` columns, swizzled over as many bytes. A dimension of stride 0 has one coordinate and sets a
 * bit of `broadcast`: bit 0 for batch, bit 1 for heads. */
sm120_status attention_describe(const struct device *device, const struct tensor *x, const struct shape *shape,
                                uint32_t columns, uint32_t rows, CUtensorMap *map, uint32_t *broadcast);

/* Run a call on copies of the tensors that kernels cannot use in place. */
sm120_status attention_on_copies(struct device *device, const struct attention *call, attention_run *run,
                                 const struct workspace *workspace);

#endif
