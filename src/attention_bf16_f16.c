/* Attention in 16 bits: one kernel on the caller's tensors, which tensor maps describe. */
#include "attention.h"
#include "check.h"
#include "error.h"
#include "launch.h"

/* Bits of the kernels' param_features: FEATURES in ptx/lib/sequence.ptx. */
enum { LEFT = 1, RIGHT = 2, TOP_LEFT = 4, SOFTCAP = 8, ALIBI = 16, MASK = 32 };

/* The parameters of the kernels, in their order: those of all, then those of the kernels for more than tensors of one
 * length. */
struct arguments {
    CUtensorMap q, k, v;
    uint64_t o, lse;
    int64_t o_batch_stride, o_head_stride, o_row_stride;
    uint32_t broadcast, heads, kv_heads, q_rows, kv_rows, head_dim, q_tiles, o_type, q_and, q_xor;
    float scale_log2;
    int32_t lower, upper;
    CUtensorMap past_k, past_v;
    uint64_t cu_seqlens_q, cu_seqlens_k, kv_lengths, diagonals, sinks, slopes, mask;
    int64_t mask_batch_stride, mask_head_stride, mask_row_stride, mask_column_stride;
    int64_t lse_batch_stride, lse_head_stride;
    uint32_t features, mask_type, slopes_batch_stride;
    int32_t q_total, kv_total, past_rows;
    float softcap, softcap_scale;
};

enum { PLAIN_ARGUMENTS = 21 };

/* Describe q, k and v, and the past, which a kernel without one is not asked for: any map will do. */
static sm120_status describe_all(const struct device *device, const struct attention *call,
                                 const struct kernel_entry *entry, struct arguments *a) {
    const bool has_past = call->args->past_rows != 0;
    const struct {
        const struct tensor *x;
        const struct shape *shape;
        uint32_t rows;
        CUtensorMap *map;
    } list[] = {
        {&call->q, &call->q_shape, entry->q_rows, &a->q},
        {&call->k, &call->k_shape, entry->kv_rows, &a->k},
        {&call->v, &call->v_shape, entry->kv_rows, &a->v},
        {&call->past_k, &call->past_k_shape, entry->kv_rows, &a->past_k},
        {&call->past_v, &call->past_v_shape, entry->kv_rows, &a->past_v},
    };
    for (uint32_t i = 0; i < (has_past ? 5 : 3); ++i) {
        uint32_t broadcast = 0;
        const sm120_status status =
            attention_describe(device, list[i].x, list[i].shape, list[i].rows, list[i].map, &broadcast);
        if (status != SM120_OK) {
            return status;
        }
        a->broadcast |= broadcast << 2 * i;
    }
    if (!has_past) {
        a->past_k = a->k;
        a->past_v = a->v;
    }
    return SM120_OK;
}

/* Fill in what only kernels for more than tensors of one length take. */
static void fill_special(const struct attention *call, struct arguments *a) {
    const sm120_attention_args *const args = call->args;
    const sm120_mask *const mask = &args->mask;
    const struct reach reach = attention_reach(args);
    const bool is_top_left = args->causal == SM120_CAUSAL_TOP_LEFT || args->causal == SM120_NOT_CAUSAL_TOP_LEFT;
    const int64_t element = mask->dtype == SM120_F32 ? 4 : mask->dtype == SM120_BOOL ? 1 : 2;
    /* relative to the diagonal, which the kernel knows */
    a->lower = -reach.left;
    a->upper = reach.right;
    a->features = (reach.has_left ? LEFT : 0) | (reach.has_right ? RIGHT : 0) | (is_top_left ? TOP_LEFT : 0) |
                  (args->softcap != 0.0f ? SOFTCAP : 0) | (args->alibi_slopes != 0 ? ALIBI : 0) |
                  (mask->address != 0 ? MASK : 0);
    a->cu_seqlens_q = args->cu_seqlens_q;
    a->cu_seqlens_k = args->cu_seqlens_k;
    a->kv_lengths = args->kv_lengths;
    a->diagonals = args->diagonals;
    a->sinks = args->sinks;
    a->slopes = args->alibi_slopes;
    a->slopes_batch_stride = (uint32_t)args->alibi_batch_stride;
    a->mask = mask->address;
    a->mask_batch_stride = mask->batch_stride * element;
    a->mask_head_stride = mask->head_stride * element;
    a->mask_row_stride = mask->row_stride * element;
    a->mask_column_stride = mask->column_stride * element;
    a->mask_type = mask->dtype == SM120_F32 ? 0 : mask->dtype == SM120_F16 ? 1 : mask->dtype == SM120_BF16 ? 2 : 3;
    a->lse_head_stride = 4 * call->q_shape.rows;
    a->lse_batch_stride = args->cu_seqlens_q != 0 ? 0 : a->lse_head_stride * args->heads;
    a->q_total = (int32_t)args->q_total;
    a->kv_total = (int32_t)args->kv_total;
    a->past_rows = (int32_t)args->past_rows;
    if (args->softcap != 0.0f) {
        const double scale_log2 = args->scale == 0.0f ? 1.0 : attention_scale_log2(args->scale);
        a->softcap = (float)((double)args->softcap * LOG2_E);
        a->softcap_scale = (float)(2 * scale_log2 / (double)args->softcap);
    }
}

/* Fill in the kernel's parameters. */
static sm120_status fill(const struct device *device, const struct attention *call, const struct kernel_entry *entry,
                         struct arguments *a) {
    const sm120_attention_args *const args = call->args;
    *a = (struct arguments){
        .o = call->o.address,
        .lse = args->lse,
        .o_batch_stride = call->o.batch_stride,
        .o_head_stride = call->o.head_stride,
        .o_row_stride = call->o.row_stride,
        .heads = (uint32_t)args->heads,
        .kv_heads = (uint32_t)args->kv_heads,
        .q_rows = (uint32_t)args->q_rows,
        .kv_rows = (uint32_t)args->kv_rows,
        .head_dim = (uint32_t)call->o_shape.head_dim,
        .q_tiles = (uint32_t)((args->q_rows + entry->q_rows - 1) / entry->q_rows),
        .o_type = attention_o_type(args),
        .q_and = args->scale == 0.0f ? 0 : UINT32_MAX,
        .q_xor = args->scale < 0.0f ? 0x80008000u : 0,
        .scale_log2 = args->scale == 0.0f ? 1.0f : (float)attention_scale_log2(args->scale),
        .lower = attention_lower(args),
        .upper = attention_upper(args),
    };
    if (!call->is_uniform) {
        fill_special(call, a);
    }
    return describe_all(device, call, entry, a);
}

/* Check the launch, and start it. */
static sm120_status launch(struct device *device, const struct attention *call, uint32_t index,
                           const struct arguments *a) {
    const struct argument list[] = {
        ARGUMENT(a->q),
        ARGUMENT(a->k),
        ARGUMENT(a->v),
        ARGUMENT(a->o),
        ARGUMENT(a->lse),
        ARGUMENT(a->o_batch_stride),
        ARGUMENT(a->o_head_stride),
        ARGUMENT(a->o_row_stride),
        ARGUMENT(a->broadcast),
        ARGUMENT(a->heads),
        ARGUMENT(a->kv_heads),
        ARGUMENT(a->q_rows),
        ARGUMENT(a->kv_rows),
        ARGUMENT(a->head_dim),
        ARGUMENT(a->q_tiles),
        ARGUMENT(a->o_type),
        ARGUMENT(a->q_and),
        ARGUMENT(a->q_xor),
        ARGUMENT(a->scale_log2),
        ARGUMENT(a->lower),
        ARGUMENT(a->upper),
        ARGUMENT(a->past_k),
        ARGUMENT(a->past_v),
        ARGUMENT(a->cu_seqlens_q),
        ARGUMENT(a->cu_seqlens_k),
        ARGUMENT(a->kv_lengths),
        ARGUMENT(a->diagonals),
        ARGUMENT(a->sinks),
        ARGUMENT(a->slopes),
        ARGUMENT(a->mask),
        ARGUMENT(a->mask_batch_stride),
        ARGUMENT(a->mask_head_stride),
        ARGUMENT(a->mask_row_stride),
        ARGUMENT(a->mask_column_stride),
        ARGUMENT(a->lse_batch_stride),
        ARGUMENT(a->lse_head_stride),
        ARGUMENT(a->features),
        ARGUMENT(a->mask_type),
        ARGUMENT(a->slopes_batch_stride),
        ARGUMENT(a->q_total),
        ARGUMENT(a->kv_total),
        ARGUMENT(a->past_rows),
        ARGUMENT(a->softcap),
        ARGUMENT(a->softcap_scale),
    };
    enum { COUNT = sizeof list / sizeof list[0] };
    _Static_assert((int)COUNT <= (int)ARGUMENTS_MAX, "as many as a list holds");
    const struct kernel_entry *const entry = kernel_entries + index;
    struct argument_list arguments;
    struct kernel *kernel = NULL;
    uint32_t grid = 0;
    sm120_status status = attention_grid(call, entry->q_rows, &grid);
    const struct launch launch =
        launch_of(&arguments, list, call->is_uniform ? PLAIN_ARGUMENTS : COUNT, grid, entry, call->args->stream);
    status = status == SM120_OK ? builtin_load(device, index, &kernel) : status;
    status = status == SM120_OK ? launch_check(kernel, &launch) : status;
    return status == SM120_OK ? launch_start(kernel, &launch) : status;
}

/* No workspace is needed: the answer to a question for its size is 0, and workspace_bytes NULL launches without one. */
sm120_status attention_bf16_f16(struct device *device, const struct attention *call, sm120_address workspace,
                                size_t *workspace_bytes) {
    struct arguments arguments;
    struct kernel *kernel;
    uint32_t index = 0;
    sm120_status status = attention_choose(device, call, &index);
    if (status == SM120_OK && workspace == 0 && workspace_bytes != NULL) {
        *workspace_bytes = 0;
        return builtin_load(device, index, &kernel);
    }
    status = status == SM120_OK ? attention_check_places(device, call) : status;
    status = status == SM120_OK ? fill(device, call, kernel_entries + index, &arguments) : status;
    return status == SM120_OK ? launch(device, call, index, &arguments) : status;
}
