/* The checks of a call: options, shapes, tensors; then addresses. */
#include <inttypes.h>

#include "generated/constants.h"
#include "ops/attention_kv_cache/attention_kv_cache.h"
#include "ops/cache_numbers.h"
#include "ops/copy_rows.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/memory.h"

enum { ROWS_MAX = (1 << 30) - 1, GRID_MAX = 65535, HEAD_DIM_MAX = 256, SPLITS_MAX = 1024 };

/* Check which pages there are, and find the most keys of a sequence. */
static sm120_status check_pages(struct cached *call) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const bool is_list = args->page_indptr != 0;
    if (args->page_table == 0 && (is_list || args->table_pages != 0)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "page_indptr = 0x%" PRIx64 ", table_pages = %" PRId64 "; without page_table they must be 0",
                    args->page_indptr, args->table_pages);
    }
    if (is_list != (args->last_page != 0)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "page_indptr = 0x%" PRIx64 " and last_page = 0x%" PRIx64 "; give both or neither",
                    args->page_indptr, args->last_page);
    }
    if (is_list && args->kv_lengths != 0) {
        return fail(SM120_INVALID_ARGUMENT, "kv_lengths = 0x%" PRIx64 "; with page_indptr it must be 0",
                    args->kv_lengths);
    }
    if (args->page_table == 0 && args->pages != args->batch) {
        return fail(SM120_INVALID_ARGUMENT,
                    "pages = %" PRId64
                    "; without a page table each sequence has a page, so it must be batch = %" PRId64,
                    args->pages, args->batch);
    }
    int64_t rows = args->page_rows, entries = 0;
    if (args->page_table != 0) {
        const sm120_status status = check_size("table_pages", args->table_pages, INT32_MAX);
        if (status != SM120_OK) {
            return status;
        }
        if (!multiply(args->table_pages, is_list ? 1 : args->batch, &entries) || entries > INT64_MAX / 4 ||
            !multiply(args->page_rows, args->table_pages, &rows)) {
            return fail(SM120_UNSUPPORTED, "table_pages = %" PRId64 " does not fit in 63 bits", args->table_pages);
        }
    }
    call->table_bytes = 4 * entries;
    call->kv_rows = rows < ROWS_MAX ? rows : ROWS_MAX;
    return SM120_OK;
}

/* Whether the elements of K or V have 16 bits. */
static bool has_16_bits(const struct cache_side *side) {
    return side->form == KV_FORMAT_COPY || side->form == KV_FORMAT_CAST;
}

/* Check dtypes and strides of the tensors. */
static sm120_status check_tensors(struct cached *call) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    sm120_status status = tensor_check("q", &args->q, &call->q_shape, TENSOR_INPUT, &call->q);
    if (status == SM120_OK && call->q.dtype == SM120_F32) {
        return fail(SM120_INVALID_ARGUMENT, "q.dtype = %s; it must be %s or %s", dtype_text(call->q.dtype).text,
                    dtype_text(SM120_BF16).text, dtype_text(SM120_F16).text);
    }
    status = status == SM120_OK ? tensor_check("o", &args->o, &call->o_shape, TENSOR_OUTPUT, &call->o) : status;
    status = status == SM120_OK ? cache_side_check(&call->k, &call->k_shape, call->q.dtype, "q", TENSOR_INPUT) : status;
    status = status == SM120_OK ? cache_side_check(&call->v, &call->v_shape, call->q.dtype, "q", TENSOR_INPUT) : status;
    if (status != SM120_OK) {
        return status;
    }
    call->is_narrow = !has_16_bits(&call->k) && !has_16_bits(&call->v);
    call->is_converted = !call->is_narrow && (call->k.form != KV_FORMAT_COPY || call->v.form != KV_FORMAT_COPY);
    return cache_side_check_swizzle(&call->v, args->v_swizzled, &call->v_shape);
}

/* Whether kernels load 16 bytes of K or V at a time. */
static bool is_ready(const struct cache_side *side) {
    return copy_rows_is_needless(side->tensor + CACHE_ELEMENTS, side->shape + CACHE_ELEMENTS) &&
           (side->form == KV_FORMAT_COPY || side->shape[CACHE_ELEMENTS].head_dim % TENSOR_ALIGNMENT == 0);
}

sm120_status cached_check(const sm120_attention_with_kv_cache_args *args, struct cached *call) {
    const int64_t v_head_dim = args->v_head_dim != 0 ? args->v_head_dim : args->head_dim;
    *call = (struct cached){
        .args = args,
        .options = {.causal = args->causal,
                    .scale = args->scale,
                    .window_left = args->window_left,
                    .window_right = args->window_right,
                    .window = args->window,
                    .softcap = args->softcap},
        .q_shape = {args->batch, args->heads, args->q_rows, args->head_dim},
        .k_shape = {args->pages, args->kv_heads, args->page_rows, args->head_dim},
        .v_shape = {args->pages, args->kv_heads, args->page_rows, v_head_dim},
        .o_shape = {args->batch, args->heads, args->q_rows, v_head_dim},
        .k = CACHE_SIDE(k, k, args),
        .v = CACHE_SIDE(v, v, args),
    };
    call->k.casts = call->v.casts = true;
    if (args->causal != SM120_NOT_CAUSAL && args->causal != SM120_CAUSAL_BOTTOM_RIGHT) {
        return fail(SM120_INVALID_ARGUMENT,
                    "causal = %" PRIu32 "; it must be NOT_CAUSAL (%d) or CAUSAL_BOTTOM_RIGHT (%d)", args->causal,
                    SM120_NOT_CAUSAL, SM120_CAUSAL_BOTTOM_RIGHT);
    }
    if (args->num_splits < 0 || args->num_splits > SPLITS_MAX) {
        return fail(SM120_INVALID_ARGUMENT, "num_splits = %" PRId64 "; it must be from 1 to %d, or 0 (chosen)",
                    args->num_splits, SPLITS_MAX);
    }
    sm120_status status = attention_check_options(&call->options);
    status = status == SM120_OK ? check_size("batch", args->batch, GRID_MAX) : status;
    status = status == SM120_OK ? check_size("heads", args->heads, GRID_MAX) : status;
    status = status == SM120_OK ? check_size("kv_heads", args->kv_heads, GRID_MAX) : status;
    status = status == SM120_OK ? check_size("q_rows", args->q_rows, ROWS_MAX) : status;
    status = status == SM120_OK ? check_size("head_dim", args->head_dim, HEAD_DIM_MAX) : status;
    status = status == SM120_OK ? check_size("v_head_dim", v_head_dim, HEAD_DIM_MAX) : status;
    status = status == SM120_OK ? check_size("pages", args->pages, INT32_MAX) : status;
    status = status == SM120_OK ? check_size("page_rows", args->page_rows, ROWS_MAX) : status;
    status = status == SM120_OK ? check_shape(&call->q_shape, "q_rows", ROWS_MAX) : status;
    status = status == SM120_OK ? check_shape(&call->k_shape, "page_rows", ROWS_MAX) : status;
    if (status == SM120_OK && args->heads % args->kv_heads != 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "kv_heads = %" PRId64 " does not divide heads = %" PRId64
                    "; the heads of q must be a multiple of those of k and v",
                    args->kv_heads, args->heads);
    }
    if (status == SM120_OK && args->alibi_batch_stride != 0 && args->alibi_batch_stride != args->heads) {
        return fail(SM120_INVALID_ARGUMENT, "alibi_batch_stride = %" PRId64 "; it must be 0 or heads = %" PRId64,
                    args->alibi_batch_stride, args->heads);
    }
    const struct {
        const char *name, *owner;
        int64_t stride;
        sm120_address address;
    } strides[] = {{"alibi_batch_stride", "alibi_slopes", args->alibi_batch_stride, args->alibi_slopes},
                   {"tree_mask_batch_stride", "tree_mask", args->tree_mask_batch_stride, args->tree_mask}};
    for (int i = 0; i < 2 && status == SM120_OK; ++i) {
        status = check_needs(strides[i].name, strides[i].stride, strides[i].owner, strides[i].address != 0);
    }
    const int64_t tree_bytes = args->q_rows * args->q_rows; /* below 2^60 */
    if (status == SM120_OK && args->tree_mask_batch_stride != 0 && args->tree_mask_batch_stride != tree_bytes) {
        return fail(SM120_INVALID_ARGUMENT,
                    "tree_mask_batch_stride = %" PRId64 "; it must be 0 or q_rows * q_rows = %" PRId64,
                    args->tree_mask_batch_stride, tree_bytes);
    }
    if (status == SM120_OK && (!multiply(args->tree_mask_batch_stride, args->batch - 1, &call->tree_bytes) ||
                               !add(call->tree_bytes, tree_bytes, &call->tree_bytes))) {
        return fail(SM120_UNSUPPORTED,
                    "tree_mask of batch * q_rows * q_rows = %" PRId64 " * %" PRId64 " bytes does not fit", args->batch,
                    tree_bytes);
    }
    status = status == SM120_OK ? check_pages(call) : status;
    status = status == SM120_OK ? check_tensors(call) : status;
    if (status == SM120_OK && !multiply(args->batch * args->heads, 4 * args->q_rows, &call->lse_bytes)) {
        return fail(SM120_UNSUPPORTED, "lse of batch * heads * q_rows = %" PRId64 " * %" PRId64 " does not fit",
                    args->batch * args->heads, args->q_rows);
    }
    const bool are_ready = call->is_converted || (is_ready(&call->k) && is_ready(&call->v)); /* copies are */
    call->is_ready =
        status == SM120_OK && are_ready && (call->is_narrow || copy_rows_is_needless(&call->q, &call->q_shape));
    return status;
}

/* Check lengths and page numbers, where they can be read. */
static sm120_status check_numbers(struct device *device, const struct cached *call) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const struct cache_numbers numbers = {
        CACHE_NUMBERS(device, args),  .page_indptr = args->page_indptr,
        .last_page = args->last_page, .rows = call->kv_rows,
        .most = call->kv_rows,
    };
    return numbers_are_checked(device) ? numbers_check_keys(&numbers, call->kv_rows) : SM120_OK;
}

sm120_status cached_check_places(struct device *device, const struct cached *call, const struct workspace *workspace) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const struct tensor *const k = call->k.tensor, *const v = call->v.tensor;
    const struct tensor *const tensors[] = {&call->q,         k + CACHE_ELEMENTS, v + CACHE_ELEMENTS, &call->o,
                                            k + CACHE_BLOCKS, v + CACHE_BLOCKS,   k + CACHE_SCALE,    v + CACHE_SCALE};
    const int64_t slopes = args->alibi_batch_stride * (args->batch - 1) + args->heads;
    const struct {
        const char *name;
        sm120_address address;
        int64_t bytes;
    } read[] = {{"q", call->q.address, call->q.bytes},
                {"k", k[CACHE_ELEMENTS].address, k[CACHE_ELEMENTS].bytes},
                {"v", v[CACHE_ELEMENTS].address, v[CACHE_ELEMENTS].bytes},
                {"k_blocks", k[CACHE_BLOCKS].address, k[CACHE_BLOCKS].bytes},
                {"v_blocks", v[CACHE_BLOCKS].address, v[CACHE_BLOCKS].bytes},
                {"k_scale", k[CACHE_SCALE].address, k[CACHE_SCALE].bytes},
                {"v_scale", v[CACHE_SCALE].address, v[CACHE_SCALE].bytes},
                {"kv_lengths", args->kv_lengths, 4 * args->batch},
                {"page_table", args->page_table, call->table_bytes},
                {"page_indptr", args->page_indptr, 4 * args->batch + 4},
                {"last_page", args->last_page, 4 * args->batch},
                {"sinks", args->sinks, 4 * args->heads},
                {"alibi_slopes", args->alibi_slopes, 4 * slopes},
                {"tree_mask", args->tree_mask, call->tree_bytes}},
      written[] = {{"o", call->o.address, call->o.bytes},
                   {"lse", args->lse, call->lse_bytes},
                   {"workspace", call->workspace_bytes != 0 ? workspace->address : 0, call->workspace_bytes}};
    enum { NEEDED = 4, LISTS = 7 }; /* tensors of every call; the first of `read` that is no tensor */
    enum { READ = sizeof read / sizeof *read, TREE = READ - 1, WRITTEN = sizeof written / sizeof *written };
    sm120_status status = SM120_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i) {
        if (status == SM120_OK && (i < NEEDED || tensors[i]->address != 0)) {
            status = tensor_check_address(device, tensors[i]);
        }
    }
    for (int i = LISTS; i < READ + 1; ++i) {
        const char *const name = i < READ ? read[i].name : "lse";
        const sm120_address address = i < READ ? read[i].address : args->lse;
        const int64_t bytes = i < READ ? read[i].bytes : call->lse_bytes;
        if (status == SM120_OK && address != 0) {
            status = i != TREE ? check_address(name, address, 4) : SM120_OK;
            status = status == SM120_OK ? memory_check(device, address, (uint64_t)bytes, name) : status;
        }
    }
    status = status == SM120_OK ? workspace_check(device, workspace, call->workspace_bytes) : status;
    for (int o = 0; o < WRITTEN; ++o) {
        for (int i = 0; i < READ + o; ++i) {
            const bool is_read = i < READ;
            const char *const name = is_read ? read[i].name : written[i - READ].name;
            const sm120_address address = is_read ? read[i].address : written[i - READ].address;
            const int64_t bytes = is_read ? read[i].bytes : written[i - READ].bytes;
            if (status == SM120_OK && address != 0 && written[o].address != 0) {
                status = check_apart(written[o].name, written[o].address, written[o].bytes, name, address, bytes);
            }
        }
    }
    return status == SM120_OK ? check_numbers(device, call) : status;
}
