/* Copies of keys and values in the workspace, in q's dtype. */
#include "generated/constants.h"
#include "ops/attention_kv_cache/attention_kv_cache.h"
#include "runtime/check.h"

enum { STEP = 8, MX_BLOCK = 32 };
static const int64_t copied_bytes = INT64_C(256) << 20; /* of the sequences that are gathered at once */

/* Round up to whole steps. */
static int64_t in_steps(int64_t x, int64_t step) {
    return (x + step - 1) / step * step;
}

/* Whether the gather of `batch` sequences has few enough items for one launch. */
static bool items_fit(const struct cached *call, int64_t batch, int64_t rows) {
    const int64_t k = call->k_shape.head_dim, v = call->v_shape.head_dim;
    int64_t items = in_steps(k > v ? k : v, MX_BLOCK) / KV_COLUMNS;
    return multiply(items, call->args->kv_heads, &items) && multiply(items, batch, &items) &&
           multiply(items, rows, &items) && items <= INT32_MAX;
}

int64_t copies_columns(const struct shape *shape) {
    return in_steps(shape->head_dim, STEP);
}

bool copies_bytes(const struct cached *call, int64_t *bytes) {
    const int64_t columns = copies_columns(&call->k_shape) + copies_columns(&call->v_shape);
    return multiply(2 * call->args->kv_heads * columns, call->kv_rows, bytes); /* kv_heads are at most 65535 */
}

int64_t copies_at_once(const struct cached *call) {
    const int64_t all = call->args->batch;
    int64_t each = 0;
    if (call->args->page_indptr != 0) {
        return all;
    }
    if (!copies_bytes(call, &each) || each > copied_bytes) {
        return 1;
    }
    int64_t batch = copied_bytes / each < all ? copied_bytes / each : all;
    while (batch > 1 && !items_fit(call, batch, call->kv_rows)) {
        batch = (batch + 1) / 2;
    }
    return batch;
}

bool copies_are_possible(const struct cached *call) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    int64_t places = 0;
    return multiply(args->page_rows, args->page_table != 0 ? args->table_pages : 1, &places) &&
           items_fit(call, 1, places) && args->pages <= INT32_MAX / args->page_rows && call->kv_rows == places;
}

sm120_tensor tensor_from(const sm120_tensor *x, int64_t first) {
    sm120_tensor moved = *x;
    moved.address += x->address != 0 ? (uint64_t)(first * x->batch_stride * tensor_element_bytes(x->dtype)) : 0;
    return moved;
}

sm120_address address_behind(sm120_address address, int64_t count, int64_t bytes) {
    return address != 0 ? address + (uint64_t)(count * bytes) : 0;
}

sm120_kv_cache_gather_args copies_gather(const struct cached *call, int64_t first, int64_t batch, const sm120_tensor *k,
                                         const sm120_tensor *v, sm120_address lengths) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const bool is_dense = args->page_table == 0, is_listed = args->page_indptr != 0;
    const int64_t page = is_dense ? first : 0, entries = is_listed ? 0 : first * args->table_pages;
    return (sm120_kv_cache_gather_args){
        .size = sizeof(sm120_kv_cache_gather_args),
        .v_swizzled = args->v_swizzled,
        .batch = is_listed ? 1 : batch,
        .kv_heads = args->kv_heads,
        .rows = call->kv_rows,
        .head_dim = args->head_dim,
        .v_head_dim = args->v_head_dim,
        .pages = is_dense ? batch : args->pages,
        .page_rows = args->page_rows,
        .table_pages = is_dense ? 0 : args->table_pages,
        .k = *k,
        .v = *v,
        .k_cache = tensor_from(&args->k, page),
        .v_cache = tensor_from(&args->v, page),
        .k_blocks = tensor_from(&args->k_blocks, page),
        .v_blocks = tensor_from(&args->v_blocks, page),
        .k_scale = tensor_from(&args->k_scale, page),
        .v_scale = tensor_from(&args->v_scale, page),
        .page_table = address_behind(args->page_table, entries, sizeof(int32_t)),
        .kv_lengths = lengths,
        .stream = args->stream,
    };
}
