/* Attention in 16 bits: one kernel on the caller's tensors, which tensor maps describe. */
#include <inttypes.h>
#include <stdio.h>

#include "attention.h"
#include "check.h"
#include "error.h"
#include "launch.h"

enum { HOPPER = 9, VARIANT_BYTES = 16 };
enum { NO_LOWER = -0x3fffffff }; /* below every kv row */

/* The parameters of the kernel, in their order. */
struct arguments {
    CUtensorMap q, k, v;
    uint64_t o, lse;
    int64_t o_batch_stride, o_head_stride, o_row_stride;
    uint32_t broadcast, heads, kv_heads, q_rows, kv_rows, head_dim, q_tiles, o_type, q_and, q_xor;
    float scale_log2;
    int32_t lower, upper;
};

/* Choose the kernel. Warps of 32 rows read K and V from shared memory half as often, which is what limits Hopper; 16
 * rows leave registers for twice the warps, which hide more on SM120, whose tensor pipe is the limit, and wherever one
 * CTA has an SM to itself. */
static sm120_status choose(const struct device *device, const struct attention *call, uint32_t *index) {
    static const uint32_t widths[] = {32, 64, 96, 128, 256};
    const uint32_t head_dim = (uint32_t)call->q_shape.head_dim;
    char variant[VARIANT_BYTES];
    size_t i = 0;
    while (widths[i] < head_dim) {
        ++i;
    }
    const int64_t ctas = call->q_shape.batch * call->q_shape.heads * ((call->q_shape.rows + 127) / 128);
    const bool wide_warps = device->info.capability_major == HOPPER && ctas > device->info.multiprocessors;
    const int rows = wide_warps && widths[i] <= 128 ? 32 : 16;
    (void)snprintf(variant, sizeof variant, "d%" PRIu32 "_r%d", widths[i], rows);
    return builtin_find(call->q.dtype == SM120_BF16 ? "attention_bf16" : "attention_f16", variant, index);
}

/* Fill in the kernel's parameters. */
static sm120_status fill(const struct device *device, const struct attention *call, const struct kernel_entry *entry,
                         struct arguments *a) {
    const sm120_attention_args *const args = call->args;
    uint32_t q_broadcast = 0, k_broadcast = 0, v_broadcast = 0;
    *a = (struct arguments){
        .o = args->o.address,
        .lse = args->lse,
        .o_batch_stride = call->o.batch_stride,
        .o_head_stride = call->o.head_stride,
        .o_row_stride = call->o.row_stride,
        .heads = (uint32_t)args->heads,
        .kv_heads = (uint32_t)args->kv_heads,
        .q_rows = (uint32_t)args->q_rows,
        .kv_rows = (uint32_t)args->kv_rows,
        .head_dim = (uint32_t)args->head_dim,
        .q_tiles = (uint32_t)((args->q_rows + entry->q_rows - 1) / entry->q_rows),
        .o_type = attention_o_type(args),
        .q_and = args->scale == 0.0f ? 0 : UINT32_MAX,
        .q_xor = args->scale < 0.0f ? 0x80008000u : 0,
        .scale_log2 = args->scale == 0.0f ? 1.0f : (float)attention_scale_log2(args->scale),
        .lower = NO_LOWER,
        .upper = attention_diagonal(args),
    };
    sm120_status status = attention_describe(device, &call->q, &call->q_shape, entry->q_rows, &a->q, &q_broadcast);
    status = status == SM120_OK
                 ? attention_describe(device, &call->k, &call->kv_shape, entry->kv_rows, &a->k, &k_broadcast)
                 : status;
    status = status == SM120_OK
                 ? attention_describe(device, &call->v, &call->kv_shape, entry->kv_rows, &a->v, &v_broadcast)
                 : status;
    a->broadcast = q_broadcast | k_broadcast << 2 | v_broadcast << 4;
    return status;
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
    };
    enum { COUNT = sizeof list / sizeof list[0] };
    _Static_assert((int)COUNT <= (int)ARGUMENTS_MAX, "as many as a list holds");
    const struct kernel_entry *const entry = kernel_entries + index;
    struct argument_list arguments;
    struct kernel *kernel = NULL;
    uint32_t grid = 0;
    sm120_status status = attention_grid(call, entry->q_rows, &grid);
    const struct launch launch = launch_of(&arguments, list, COUNT, grid, entry, call->args->stream);
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
    sm120_status status = choose(device, call, &index);
    if (status == SM120_OK && workspace == 0 && workspace_bytes != NULL) {
        *workspace_bytes = 0;
        return builtin_load(device, index, &kernel);
    }
    status = status == SM120_OK ? attention_check_places(device, call) : status;
    status = status == SM120_OK ? fill(device, call, kernel_entries + index, &arguments) : status;
    return status == SM120_OK ? launch(device, call, index, &arguments) : status;
}
