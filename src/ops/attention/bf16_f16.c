/* Attention in 16 bits: one kernel on the caller's tensors, which tensor maps describe. */
#include "ops/attention/special.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/launch.h"

/* The parameters of the kernels, in their order: those of all, then those of the kernels for more than tensors of one
 * length. */
struct arguments {
    CUtensorMap q, k, v;
    uint64_t o, lse;
    int64_t o_batch_stride, o_head_stride, o_row_stride;
    uint32_t broadcast, heads, kv_heads, q_rows, kv_rows, head_dim, q_tiles, o_type, q_and, q_xor;
    float scale_log2;
    int32_t lower, upper;
    struct special special;
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
        {&call->past_k, &call->past_k_shape, entry->kv_rows, &a->special.past_k},
        {&call->past_v, &call->past_v_shape, entry->kv_rows, &a->special.past_v},
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
        a->special.past_k = a->k;
        a->special.past_v = a->v;
    }
    return SM120_OK;
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
        attention_special(call, &a->special);
        a->lower = a->special.lower;
        a->upper = a->special.upper;
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
        SPECIAL_ARGUMENTS(&a->special),
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
