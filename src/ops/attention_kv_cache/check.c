/* The checks of a call: options, shapes, tensors; then addresses. */
#include <inttypes.h>

#include "generated/constants.h"
#include "ops/attention_kv_cache/attention_kv_cache.h"
#include "ops/copy_rows.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/memory.h"

enum { ROWS_MAX = (1 << 30) - 1, GRID_MAX = 65535, HEAD_DIM_MAX = 256, SPLITS_MAX = 1024, MX_BLOCK = 32 };

/* Check which pages there are, and find the most keys of a sequence. */
static sm120_status check_pages(struct cached *call) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const bool is_list = args->page_indptr != 0;
    if (args->page_table == 0 && (is_list || args->table_pages != 0)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "page_table = 0, but page_indptr = 0x%" PRIx64 " and table_pages = %" PRId64
                    "; they describe the page table",
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

static bool is_byte(uint32_t dtype) {
    return dtype == SM120_E4M3 || dtype == SM120_E5M2;
}

/* Check the scales of k and v, and find the forms of their elements. */
static sm120_status check_scales(struct cached *call) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const struct {
        const char *name, *blocks_name, *scale_name;
        const sm120_tensor *given, *blocks, *scale;
        const struct shape *shape;
    } sides[] = {{"k", "k_blocks", "k_scale", &args->k, &args->k_blocks, &args->k_scale, &call->k_shape},
                 {"v", "v_blocks", "v_scale", &args->v, &args->v_blocks, &args->v_scale, &call->v_shape}};
    call->is_8_bits = is_byte(args->k.dtype) && is_byte(args->v.dtype);
    call->scale_shape = call->k_shape;
    call->scale_shape.head_dim = 1;
    sm120_status status = SM120_OK;
    for (int i = 0; i < 2 && status == SM120_OK; ++i) {
        const uint32_t dtype = sides[i].given->dtype;
        const bool has_blocks = sides[i].blocks->address != 0, has_scale = sides[i].scale->address != 0;
        if (is_byte(dtype) && !call->is_8_bits) {
            return fail(SM120_UNSUPPORTED,
                        "%s.dtype = 0x%08" PRIx32 "; if one of k and v has 8 bits, only 8 bits are supported for both",
                        sides[i].name, dtype);
        }
        if ((has_blocks && dtype != SM120_E4M3) || (has_scale && (!is_byte(dtype) || has_blocks))) {
            return fail(SM120_INVALID_ARGUMENT,
                        "%s.address = 0x%" PRIx64 "; %s.dtype = 0x%08" PRIx32
                        " has none: E4M3 has scales in blocks or one of a row, E5M2 one of a row",
                        has_blocks ? sides[i].blocks_name : sides[i].scale_name,
                        has_blocks ? sides[i].blocks->address : sides[i].scale->address, sides[i].name, dtype);
        }
        if (has_blocks && sides[i].blocks->dtype != SM120_E8M0) {
            return fail(SM120_INVALID_ARGUMENT, "%s.dtype = 0x%08" PRIx32 "; it must be E8M0 (0x%08x)",
                        sides[i].blocks_name, sides[i].blocks->dtype, SM120_E8M0);
        }
        if (has_scale && sides[i].scale->dtype != SM120_F32) {
            return fail(SM120_INVALID_ARGUMENT, "%s.dtype = 0x%08" PRIx32 "; it must be F32 (0x%08x)",
                        sides[i].scale_name, sides[i].scale->dtype, SM120_F32);
        }
        call->form[i] = has_blocks ? KV_FORMAT_MXFP8 : dtype == SM120_E5M2 ? KV_FORMAT_E5M2 : KV_FORMAT_E4M3;
        call->blocks_shape[i] = *sides[i].shape;
        call->blocks_shape[i].head_dim = (sides[i].shape->head_dim + MX_BLOCK - 1) / MX_BLOCK;
        if (has_blocks) {
            status = tensor_check_strides(sides[i].blocks_name, sides[i].blocks, call->blocks_shape + i, TENSOR_INPUT,
                                          call->blocks + i);
        }
        if (has_scale) {
            status = tensor_check_strides(sides[i].scale_name, sides[i].scale, &call->scale_shape, TENSOR_SPREAD,
                                          call->scale + i);
        }
    }
    return status;
}

/* Check dtypes and strides of the tensors. */
static sm120_status check_tensors(struct cached *call) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const struct {
        const char *name;
        const sm120_tensor *given;
        const struct shape *shape;
        struct tensor *tensor;
        enum tensor_role role;
    } list[] = {{"q", &args->q, &call->q_shape, &call->q, TENSOR_INPUT},
                {"k", &args->k, &call->k_shape, &call->k, TENSOR_INPUT},
                {"v", &args->v, &call->v_shape, &call->v, TENSOR_INPUT},
                {"o", &args->o, &call->o_shape, &call->o, TENSOR_OUTPUT}};
    for (size_t i = 0; i < sizeof list / sizeof *list; ++i) {
        const bool is_cache = list[i].given == &args->k || list[i].given == &args->v;
        const bool is_8_bits = is_cache && is_byte(list[i].given->dtype);
        const sm120_status status =
            is_8_bits ? tensor_check_strides(list[i].name, list[i].given, list[i].shape, list[i].role, list[i].tensor)
                      : tensor_check(list[i].name, list[i].given, list[i].shape, list[i].role, list[i].tensor);
        if (status != SM120_OK) {
            return status;
        }
        if (list[i].role == TENSOR_INPUT && !is_8_bits &&
            (list[i].tensor->dtype != call->q.dtype || call->q.dtype == SM120_F32)) {
            return fail(SM120_INVALID_ARGUMENT,
                        "%s.dtype = 0x%08" PRIx32 "; q, k and v must all be BF16 (0x%x) or all F16 (0x%x)",
                        list[i].name, list[i].tensor->dtype, SM120_BF16, SM120_F16);
        }
    }
    return SM120_OK;
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
    };
    if (args->causal != SM120_NOT_CAUSAL && args->causal != SM120_CAUSAL_BOTTOM_RIGHT) {
        return fail(SM120_INVALID_ARGUMENT,
                    "causal = %" PRIu32 "; it must be NOT_CAUSAL (%d) or CAUSAL_BOTTOM_RIGHT (%d)", args->causal,
                    SM120_NOT_CAUSAL, SM120_CAUSAL_BOTTOM_RIGHT);
    }
    if (args->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "reserved = %" PRIu32 "; it must be 0", args->reserved);
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
        return fail(SM120_INVALID_ARGUMENT, "kv_heads = %" PRId64 " does not divide heads = %" PRId64, args->kv_heads,
                    args->heads);
    }
    if (status == SM120_OK && args->alibi_batch_stride != 0 && args->alibi_batch_stride != args->heads) {
        return fail(SM120_INVALID_ARGUMENT, "alibi_batch_stride = %" PRId64 "; it must be 0 or heads = %" PRId64,
                    args->alibi_batch_stride, args->heads);
    }
    status = status == SM120_OK ? check_pages(call) : status;
    status = status == SM120_OK ? check_tensors(call) : status;
    status = status == SM120_OK ? check_scales(call) : status;
    if (status == SM120_OK && !multiply(args->batch * args->heads, 4 * args->q_rows, &call->lse_bytes)) {
        return fail(SM120_UNSUPPORTED, "lse of batch * heads * q_rows = %" PRId64 " * %" PRId64 " does not fit",
                    args->batch * args->heads, args->q_rows);
    }
    call->is_ready = copy_rows_is_needless(&call->k, &call->k_shape) &&
                     copy_rows_is_needless(&call->v, &call->v_shape) &&
                     (call->is_8_bits ? (args->head_dim | v_head_dim) % TENSOR_ALIGNMENT == 0
                                      : copy_rows_is_needless(&call->q, &call->q_shape));
    return status;
}

sm120_status cached_check_places(struct device *device, const struct cached *call, sm120_address workspace,
                                 size_t workspace_bytes) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const struct tensor *const tensors[] = {&call->q,         &call->k,         &call->v,        &call->o,
                                            call->blocks + 0, call->blocks + 1, call->scale + 0, call->scale + 1};
    const int64_t slopes = args->alibi_batch_stride * (args->batch - 1) + args->heads;
    const struct {
        const char *name;
        sm120_address address;
        int64_t bytes;
    } read[] = {{"q", call->q.address, call->q.bytes},
                {"k", call->k.address, call->k.bytes},
                {"v", call->v.address, call->v.bytes},
                {"k_blocks", call->blocks[0].address, call->blocks[0].bytes},
                {"v_blocks", call->blocks[1].address, call->blocks[1].bytes},
                {"k_scale", call->scale[0].address, call->scale[0].bytes},
                {"v_scale", call->scale[1].address, call->scale[1].bytes},
                {"kv_lengths", args->kv_lengths, 4 * args->batch},
                {"page_table", args->page_table, call->table_bytes},
                {"page_indptr", args->page_indptr, 4 * args->batch + 4},
                {"last_page", args->last_page, 4 * args->batch},
                {"sinks", args->sinks, 4 * args->heads},
                {"alibi_slopes", args->alibi_slopes, 4 * slopes}},
      written[] = {{"o", call->o.address, call->o.bytes},
                   {"lse", args->lse, call->lse_bytes},
                   {"workspace", call->workspace_bytes != 0 ? workspace : 0, call->workspace_bytes}};
    enum { NEEDED = 4, LISTS = 7 }; /* tensors of every call; the first of `read` that is no tensor */
    enum { READ = sizeof read / sizeof *read, WRITTEN = sizeof written / sizeof *written };
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
            status = check_address(name, address, 4);
            status = status == SM120_OK ? memory_check(device, address, (uint64_t)bytes, name) : status;
        }
    }
    if (status == SM120_OK && call->workspace_bytes != 0) {
        if (workspace_bytes < (size_t)call->workspace_bytes) {
            return fail(SM120_WORKSPACE_TOO_SMALL, "*workspace_bytes = %zu; this call needs %" PRId64, workspace_bytes,
                        call->workspace_bytes);
        }
        status = check_address("workspace", workspace, WORKSPACE_ALIGNMENT);
        status =
            status == SM120_OK ? memory_check(device, workspace, (uint64_t)call->workspace_bytes, "workspace") : status;
    }
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
    return status;
}
