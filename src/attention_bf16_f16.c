/* Attention in 16 bits: one kernel on the caller's tensors, which tensor maps describe. */
#include <inttypes.h>
#include <stdio.h>

#include "attention.h"
#include "check.h"
#include "error.h"
#include "launch.h"

enum { COLUMNS = 64 }; /* of a box: 128 bytes, as wide as the swizzle */
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

enum { ARGUMENTS = 21 };

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

/* Describe a tensor to the copy engine. A dimension of stride 0 has one coordinate, and the bits of `broadcast` say so:
 * bit 0 for batch, bit 1 for heads. */
static sm120_status describe(const struct device *device, const struct tensor *x, const struct shape *shape,
                             uint32_t rows, CUtensorMap *map, uint32_t *broadcast) {
    const int64_t steps[] = {x->row_stride, x->head_stride, x->batch_stride};
    uint64_t dims[] = {(uint64_t)shape->head_dim, (uint64_t)shape->rows, (uint64_t)shape->heads,
                       (uint64_t)shape->batch};
    uint64_t strides[3];
    for (int i = 0; i < 3; ++i) {
        strides[i] = steps[i] != 0 ? (uint64_t)steps[i] : 16;
        dims[i + 1] = steps[i] != 0 || i == 0 ? dims[i + 1] : 1;
    }
    *broadcast = (x->batch_stride == 0 ? 1u : 0u) | (x->head_stride == 0 ? 2u : 0u);
    const uint32_t box[] = {COLUMNS, rows, 1, 1}, ones[] = {1, 1, 1, 1};
    const CUresult result = device->driver->cuTensorMapEncodeTiled(
        map, x->dtype == SM120_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
        (void *)(uintptr_t)x->address, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? SM120_OK
                                  : driver_fail(device->driver, result, "describing %s to the copy engine", x->name);
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
    sm120_status status = describe(device, &call->q, &call->q_shape, entry->q_rows, &a->q, &q_broadcast);
    status =
        status == SM120_OK ? describe(device, &call->k, &call->kv_shape, entry->kv_rows, &a->k, &k_broadcast) : status;
    status =
        status == SM120_OK ? describe(device, &call->v, &call->kv_shape, entry->kv_rows, &a->v, &v_broadcast) : status;
    a->broadcast = q_broadcast | k_broadcast << 2 | v_broadcast << 4;
    return status;
}

/* Check the launch, and start it. */
static sm120_status launch(struct device *device, const struct attention *call, uint32_t index,
                           const struct arguments *a) {
#define ARGUMENT(value)                                                                                                \
    {                                                                                                                  \
        &a->value, sizeof a->value                                                                                     \
    }
    const struct {
        const void *value;
        size_t bytes;
    } list[ARGUMENTS] = {
        ARGUMENT(q),
        ARGUMENT(k),
        ARGUMENT(v),
        ARGUMENT(o),
        ARGUMENT(lse),
        ARGUMENT(o_batch_stride),
        ARGUMENT(o_head_stride),
        ARGUMENT(o_row_stride),
        ARGUMENT(broadcast),
        ARGUMENT(heads),
        ARGUMENT(kv_heads),
        ARGUMENT(q_rows),
        ARGUMENT(kv_rows),
        ARGUMENT(head_dim),
        ARGUMENT(q_tiles),
        ARGUMENT(o_type),
        ARGUMENT(q_and),
        ARGUMENT(q_xor),
        ARGUMENT(scale_log2),
        ARGUMENT(lower),
        ARGUMENT(upper),
    };
#undef ARGUMENT
    const void *values[ARGUMENTS];
    size_t bytes[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; ++i) {
        values[i] = list[i].value;
        bytes[i] = list[i].bytes;
    }
    const struct kernel_entry *const entry = kernel_entries + index;
    struct launch launch = {.block = {entry->threads, 1, 1},
                            .grid = {0, 1, 1},
                            .shared_bytes = entry->shared,
                            .stream = call->args->stream,
                            .arguments = values,
                            .argument_bytes = bytes,
                            .argument_count = ARGUMENTS};
    struct kernel *kernel = NULL;
    sm120_status status = attention_grid(call, entry->q_rows, &launch.grid[0]);
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
