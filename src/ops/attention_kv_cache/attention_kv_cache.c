/* sm120_attention_with_kv_cache: choose the kernel and the splits, launch, merge. */
#include "ops/attention_kv_cache/attention_kv_cache.h"

#include <inttypes.h>

#include "generated/constants.h"
#include "ops/copy_rows.h"
#include "ops/divisor.h"
#include "ops/resident.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { GRID_MAX = 65535 };

/* The launches of a call. */
struct launches {
    struct kernel *kernel;
    struct launch launch;
    struct attention_kv_cache_narrow_parameters values; /* kernels for 16 bits take the first of them */
    struct argument_pointers pointers;
    struct merge_launch merge;
};

enum { SCALES_OF_64 = 2, NV_SCALES_OF_64 = 4 }; /* scales in blocks of 64 columns */

/* Whether a kernel loads the scales of a row in blocks at once: as many as it has, at a multiple of their bytes. */
static bool blocks_are_ready(const struct cache_side *side, int64_t head_dim) {
    const struct tensor *const x = side->tensor + CACHE_BLOCKS;
    const int64_t blocks = head_dim / 64 * (side->form == KV_FORMAT_NVFP4 ? NV_SCALES_OF_64 : SCALES_OF_64);
    const int64_t steps = x->batch_stride | x->head_stride | x->row_stride | (int64_t)x->address;
    return x->address == 0 || (steps % blocks == 0 && side->shape[CACHE_BLOCKS].head_dim == blocks);
}

/* Find the kernel with the least head size that holds both. A head size may have a kernel whose CTAs have 8 rows, one
 * of 16, or both. */
static sm120_status find_kernel(struct cached *call, int64_t rows) {
    const int64_t head_dim = call->args->head_dim, v_head_dim = call->v_shape.head_dim;
    const int64_t widest = head_dim > v_head_dim ? head_dim : v_head_dim;
    static const uint32_t sizes[] = {64, 96, 128, 192, 256};
    static const char *const configs[] = {"q8", "q16"};
    const size_t first = rows <= 8 ? 0 : 1;
    struct kernel_record wanted = {.operation = call->is_narrow ? "attention_kv_cache_narrow" : "attention_kv_cache",
                                   .dtype = call->is_narrow ? 0 : call->q.dtype};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes * 2; ++i) {
        wanted.head_dim = sizes[i / 2];
        wanted.config = configs[(first + i) % 2];
        wanted.features = !(call->is_ready && blocks_are_ready(&call->k, wanted.head_dim) &&
                            blocks_are_ready(&call->v, wanted.head_dim));
        if (widest <= wanted.head_dim && builtin_has(&wanted, &call->kernel)) {
            return SM120_OK;
        }
    }
    return builtin_find(&wanted, &call->kernel);
}

/* The workspace has o of each split, f32 [splits][batch][q_rows][heads][v_head_dim], then lse, f32
 * [splits][batch][heads][q_rows]. */
sm120_status cached_choose(const struct device *device, struct cached *call) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const int64_t v_head_dim = call->v_shape.head_dim, rows = args->heads / args->kv_heads * args->q_rows;
    const sm120_status status = find_kernel(call, rows);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + call->kernel;
    call->row_tiles = (rows + record->q_rows - 1) / record->q_rows;
    if (args->kv_heads * call->row_tiles > GRID_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "q_rows = %" PRId64 "; heads * q_rows / %" PRIu32
                    " must be at most %d. For so many rows use sm120_attention",
                    args->q_rows, record->q_rows, GRID_MAX);
    }
    call->splits = cached_splits(device, call);
    if (call->splits == 1) {
        return SM120_OK;
    }
    int64_t bytes = 0;
    if (!multiply(call->splits * args->batch, args->q_rows * args->heads, &bytes) ||
        !multiply(bytes, 4 * v_head_dim, &call->lses_at) || !add(call->lses_at, 4 * bytes, &call->workspace_bytes)) {
        return fail(SM120_UNSUPPORTED, "the workspace of %" PRId64 " splits exceeds 2^63 bytes", call->splits);
    }
    return SM120_OK;
}

/* The strides of a tensor of the cache. */
#define STRIDES(o, tensor)                                                                                             \
    .o##_page_stride = (tensor)->batch_stride, .o##_head_stride = (tensor)->head_stride,                               \
    .o##_row_stride = (tensor)->row_stride

/* The kernel's parameters. */
static struct attention_kv_cache_narrow_parameters values_of(const struct cached *call, sm120_address workspace) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const struct tensor *const k = call->k.tensor, *const v = call->v.tensor;
    const struct reach reach = attention_reach(&call->options);
    const double sign = args->scale < 0.0f ? -1.0 : 1.0;
    const bool is_whole = call->splits == 1;
    const int64_t row = 4 * call->v_shape.head_dim, token = row * args->heads, batch = token * args->q_rows;
    const int64_t lse_head = 4 * args->q_rows, lse_batch = lse_head * args->heads;
    struct attention_kv_cache_narrow_parameters values = {
        .q = call->q.address,
        .o = is_whole ? call->o.address : workspace,
        .lse = is_whole ? args->lse : workspace + (uint64_t)call->lses_at,
        .q_batch_stride = call->q.batch_stride,
        .q_head_stride = call->q.head_stride,
        .q_row_stride = call->q.row_stride,
        .o_split_stride = batch * args->batch,
        .o_batch_stride = is_whole ? call->o.batch_stride : batch,
        .o_head_stride = is_whole ? call->o.head_stride : row,
        .o_row_stride = is_whole ? call->o.row_stride : token,
        .lse_split_stride = lse_batch * args->batch,
        .lse_batch_stride = lse_batch,
        .lse_head_stride = lse_head,
        .sinks = is_whole ? args->sinks : 0,
        .slopes = args->alibi_slopes,
        .tree = args->tree_mask,
        .tree_batch_stride = args->tree_mask_batch_stride,
        .slopes_batch_stride = (uint32_t)args->alibi_batch_stride,
        .group = (uint32_t)(args->heads / args->kv_heads),
        .row_tiles = (uint32_t)call->row_tiles,
        .q_rows = (uint32_t)args->q_rows,
        .head_dim = (uint32_t)args->head_dim,
        .v_head_dim = (uint32_t)call->v_shape.head_dim,
        .o_type = is_whole ? attention_type(call->o.dtype) : ATTENTION_O_F32,
        .left = reach.left,
        .right = reach.right,
        .scale_log2 = (float)(sign * attention_scale_log2(args->scale)),
        .kv_cache = {.k = k->address,
                     .v = v->address,
                     .page_table = args->page_table,
                     .page_indptr = args->page_indptr,
                     .last_page = args->last_page,
                     .kv_lengths = args->kv_lengths,
                     STRIDES(k, k),
                     STRIDES(v, v),
                     .pages = (uint32_t)args->pages,
                     DIVISOR(page_rows, args->page_rows),
                     .table_stride = args->page_table != 0 ? (uint32_t)args->table_pages : 1,
                     .kv_rows = (uint32_t)call->kv_rows},
        .kv_scales = {.k_blocks = k[CACHE_BLOCKS].address,
                      .v_blocks = v[CACHE_BLOCKS].address,
                      .k_factor = k[CACHE_SCALE].address,
                      .v_factor = v[CACHE_SCALE].address,
                      STRIDES(k_blocks, k + CACHE_BLOCKS),
                      STRIDES(v_blocks, v + CACHE_BLOCKS),
                      STRIDES(k_factor, k + CACHE_SCALE),
                      STRIDES(v_factor, v + CACHE_SCALE),
                      .k_form = call->k.form,
                      .v_form = call->v.form,
                      .v_swizzled = args->v_swizzled != 0 ? KV_FLAG_SWIZZLED : 0,
                      .q_is_bf16 = call->q.dtype == SM120_BF16},
    };
    if (args->softcap != 0.0f) {
        values.softcap = (float)((double)args->softcap * LOG2_E);
        values.softcap_scale = args->scale == 0.0f ? 0.0f : (float)(sign * attention_softcap_scale(&call->options));
    }
    return values;
}

/* Check the launches. */
static sm120_status prepare(struct device *device, const struct cached *call, sm120_address workspace,
                            struct launches *prepared) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const struct kernel_record *const record = kernel_records + call->kernel;
    prepared->values = values_of(call, workspace);
    /* CTAs of several row tiles read the same keys: they begin together, so that all but one find them in the L2. */
    const bool is_early = call->row_tiles == 1;
    const int64_t at_once = device->info.multiprocessors * resident_ctas(device, record, record->shared);
    prepared->values.early_ctas = is_early ? (uint32_t)at_once : 0;
    sm120_status status =
        launch_of(&prepared->pointers, ARGUMENTS(&prepared->values), (uint32_t)(args->kv_heads * call->row_tiles),
                  record, args->stream, &prepared->launch);
    prepared->launch.grid[1] = (uint32_t)call->splits;
    prepared->launch.grid[2] = (uint32_t)args->batch;
    prepared->launch.is_early = is_early;
    prepared->launch.shared_bytes =
        even_shared(device, record, args->kv_heads * call->row_tiles * call->splits * args->batch);
    status = status == SM120_OK ? builtin_load(device, call->kernel, &prepared->kernel) : status;
    status = status == SM120_OK ? launch_check(prepared->kernel, &prepared->launch) : status;
    if (status != SM120_OK || call->splits == 1) {
        return status;
    }
    const struct states states = {
        .outs = {.name = "workspace",
                 .address = workspace,
                 .dtype = SM120_F32,
                 .batch_stride = prepared->values.o_batch_stride,
                 .head_stride = prepared->values.o_head_stride,
                 .row_stride = prepared->values.o_row_stride},
        .o = call->o,
        .shape = call->o_shape,
        .states = call->splits,
        .state_stride = prepared->values.o_split_stride,
        .lses = workspace + (uint64_t)call->lses_at,
        .lse = args->lse,
        .sinks = args->sinks,
    };
    return merge_prepare(device, &states, args->stream, &prepared->merge);
}

sm120_status cached_launch(struct device *device, const struct cached *call, sm120_address workspace,
                           bool is_question) {
    struct launches prepared;
    sm120_status status = prepare(device, call, workspace, &prepared);
    if (status != SM120_OK || is_question) {
        return status;
    }
    status = launch_start(prepared.kernel, &prepared.launch);
    return status == SM120_OK && call->splits > 1 ? launch_start(prepared.merge.kernel, &prepared.merge.launch)
                                                  : status;
}

/* Launch, or answer the question for the size of the workspace. A question loads the kernels, so that the next call can
 * be captured in a graph. */
static sm120_status cached_call(sm120_device *handle, const sm120_attention_with_kv_cache_args *args,
                                struct workspace workspace) {
    struct device *device;
    struct cached call;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_attention_with_kv_cache_args");
    status = status == SM120_OK ? cached_check(args, &call) : status;
    if (status == SM120_OK && cached_is_chunk(device, &call)) {
        status = workspace_check_question(&workspace);
        return device_leave(device, status == SM120_OK ? cached_chunk(device, &call, &workspace) : status);
    }
    if (status == SM120_OK && call.is_converted) {
        status = workspace_check_question(&workspace);
        return device_leave(device, status == SM120_OK ? cached_converted(device, &call, &workspace) : status);
    }
    status = status == SM120_OK ? cached_choose(device, &call) : status;
    status = status == SM120_OK ? workspace_check_question(&workspace) : status;
    if (status == SM120_OK && workspace.is_question) {
        *workspace.answer = (size_t)call.workspace_bytes;
        return device_leave(device, cached_launch(device, &call, 0, true));
    }
    status = status == SM120_OK ? cached_check_places(device, &call, &workspace) : status;
    return device_leave(device, status == SM120_OK ? cached_launch(device, &call, workspace.address, false) : status);
}

sm120_status sm120_attention_with_kv_cache_workspace(sm120_device *device,
                                                     const sm120_attention_with_kv_cache_args *args,
                                                     size_t *workspace_bytes) {
    return cached_call(device, args, workspace_question(workspace_bytes));
}

sm120_status sm120_attention_with_kv_cache(sm120_device *device, const sm120_attention_with_kv_cache_args *args,
                                           sm120_address workspace, size_t workspace_bytes) {
    return cached_call(device, args, workspace_of(workspace, workspace_bytes));
}
