/* Attention of few rows and a cache of which K or V is not in q's dtype while the other has 16 bits: both are copied to
 * the workspace in q's dtype, a few sequences at a time, and the kernels for 16 bits read the copies. A copy has a page
 * for each entry of the page table, so lengths and lists of pages are those of the call. */
#include <inttypes.h>

#include "generated/constants.h"
#include "ops/attention_kv_cache/attention_kv_cache.h"
#include "ops/kv_cache.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"

/* How a call is divided, and where the parts of its workspace begin. */
struct conversion {
    const struct cached *call;
    int64_t batch, entries;           /* sequences, and page numbers, that are copied at once */
    int64_t rows;                     /* of the copies of a head */
    int64_t k, v, table, rest, bytes; /* offsets; rest: of the kernels that read the copies */
};

/* Lay out the workspace before the part of the kernels that read the copies. */
static sm120_status lay_out(const struct cached *call, struct conversion *conversion) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const bool is_listed = args->page_indptr != 0;
    if (!copies_are_possible(call)) {
        return fail(SM120_UNSUPPORTED,
                    "k.dtype = %s and v.dtype = %s; with q.dtype = %s they are copied, and page_rows = %" PRId64
                    ", table_pages = %" PRId64 ", pages = %" PRId64 " are more than one launch copies",
                    dtype_text(args->k.dtype).text, dtype_text(args->v.dtype).text, dtype_text(args->q.dtype).text,
                    args->page_rows, args->table_pages, args->pages);
    }
    const int64_t batch = copies_at_once(call), copies = is_listed ? 1 : batch;
    *conversion = (struct conversion){
        .call = call, .batch = batch, .entries = copies * args->table_pages, .rows = copies * call->kv_rows};
    const int64_t row = 2 * args->kv_heads; /* bytes of a column; kv_heads are at most 65535 */
    int64_t k = 0, v = 0;
    const bool fits =
        multiply(row * copies_columns(&call->k_shape), conversion->rows, &k) &&
        multiply(row * copies_columns(&call->v_shape), conversion->rows, &v) &&
        workspace_place(k, &conversion->k, &conversion->rest) &&
        workspace_place(v, &conversion->v, &conversion->rest) &&
        workspace_place(conversion->entries * (int64_t)sizeof(int32_t), &conversion->table, &conversion->rest);
    return fits ? SM120_OK : fail(SM120_UNSUPPORTED, "the workspace for the keys of a cache exceeds 2^63 bytes");
}

/* A copy in the workspace, [kv_heads][batch][rows of a sequence][columns]; `rows`: of a sequence, or of a page. */
static sm120_tensor copy_at(const struct conversion *conversion, sm120_address address, const struct shape *shape,
                            int64_t rows) {
    const int64_t columns = copies_columns(shape);
    return (sm120_tensor){.address = address,
                          .dtype = conversion->call->q.dtype,
                          .batch_stride = rows * columns,
                          .head_stride = conversion->rows * columns,
                          .row_stride = columns};
}

/* Check the launch of the gather of `batch` sequences from `first` on. */
static sm120_status prepare_gather(struct device *device, const struct conversion *conversion, int64_t first,
                                   int64_t batch, sm120_address workspace, struct kv_copy_launch *prepared) {
    const struct cached *const call = conversion->call;
    const sm120_tensor k = copy_at(conversion, workspace + (uint64_t)conversion->k, &call->k_shape, call->kv_rows);
    const sm120_tensor v = copy_at(conversion, workspace + (uint64_t)conversion->v, &call->v_shape, call->kv_rows);
    const sm120_address lengths = address_behind(call->args->kv_lengths, first, sizeof(int32_t));
    const sm120_kv_cache_gather_args gather = copies_gather(call, first, batch, &k, &v, lengths);
    return kv_gather_prepare(device, &gather, prepared);
}

/* The launch that writes the page numbers of the copies. */
struct renumber {
    struct kernel *kernel;
    struct launch launch;
    struct kv_cache_renumber_parameters values;
    struct argument_pointers pointers;
};

static sm120_status prepare_renumber(struct device *device, const struct conversion *conversion, int64_t first,
                                     int64_t batch, sm120_address workspace, struct renumber *prepared) {
    const sm120_attention_with_kv_cache_args *const args = conversion->call->args;
    const struct kernel_record wanted = {.operation = "kv_cache_renumber"};
    const bool is_listed = args->page_indptr != 0;
    const int64_t entries = is_listed ? args->table_pages : batch * args->table_pages;
    uint32_t index = 0;
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    prepared->values = (struct kv_cache_renumber_parameters){
        .page_table = address_behind(args->page_table, first * args->table_pages, sizeof(int32_t)),
        .numbers = workspace + (uint64_t)conversion->table,
        .entries = (uint32_t)entries,
        .pages = (uint32_t)args->pages,
    };
    const uint32_t grid = (uint32_t)((entries + record->threads - 1) / record->threads);
    status =
        launch_of(&prepared->pointers, ARGUMENTS(&prepared->values), grid, record, args->stream, &prepared->launch);
    status = status == SM120_OK ? builtin_load(device, index, &prepared->kernel) : status;
    return status == SM120_OK ? launch_check(prepared->kernel, &prepared->launch) : status;
}

/* The attention of `batch` sequences from `first` on and their copies. */
static sm120_attention_with_kv_cache_args attention_of(const struct conversion *conversion, int64_t first,
                                                       int64_t batch, sm120_address workspace) {
    const struct cached *const call = conversion->call;
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const bool is_dense = args->page_table == 0, is_listed = args->page_indptr != 0;
    sm120_attention_with_kv_cache_args made = *args;
    made.batch = batch;
    made.pages = is_dense ? batch : is_listed ? args->table_pages : batch * args->table_pages;
    made.q = tensor_from(&args->q, first);
    made.k = copy_at(conversion, workspace + (uint64_t)conversion->k, &call->k_shape, args->page_rows);
    made.v = copy_at(conversion, workspace + (uint64_t)conversion->v, &call->v_shape, args->page_rows);
    made.k_blocks = made.v_blocks = made.k_scale = made.v_scale = (sm120_tensor){0};
    made.v_swizzled = 0;
    made.o = tensor_from(&args->o, first);
    made.lse = address_behind(args->lse, first * args->heads * args->q_rows, sizeof(float));
    made.kv_lengths = address_behind(args->kv_lengths, first, sizeof(int32_t));
    made.page_table = is_dense ? 0 : workspace + (uint64_t)conversion->table;
    made.alibi_slopes = address_behind(args->alibi_slopes, first * args->alibi_batch_stride, sizeof(float));
    made.tree_mask = address_behind(args->tree_mask, first * args->tree_mask_batch_stride, 1);
    return made;
}

/* Check the launches of a group of sequences, and unless it is a question, start them. *end: of its workspace. */
static sm120_status run_group(struct device *device, const struct conversion *conversion, int64_t first, int64_t batch,
                              sm120_address workspace, bool is_question, int64_t *end) {
    const sm120_attention_with_kv_cache_args args = attention_of(conversion, first, batch, workspace);
    const bool is_paged = args.page_table != 0;
    struct kv_copy_launch gather;
    struct renumber renumber;
    struct cached call;
    sm120_status status = cached_check(&args, &call);
    status = status == SM120_OK ? cached_choose(device, &call) : status;
    if (status == SM120_OK && !add(conversion->rest, call.workspace_bytes, end)) {
        return fail(SM120_UNSUPPORTED, "the workspace for the keys of a cache exceeds 2^63 bytes");
    }
    status = status == SM120_OK ? prepare_gather(device, conversion, first, batch, workspace, &gather) : status;
    if (status == SM120_OK && is_paged) {
        status = prepare_renumber(device, conversion, first, batch, workspace, &renumber);
        status = status == SM120_OK && !is_question ? launch_start(renumber.kernel, &renumber.launch) : status;
    }
    if (status == SM120_OK && !is_question) {
        status = launch_start(gather.kernel, &gather.launch);
    }
    return status == SM120_OK ? cached_launch(device, &call, workspace + (uint64_t)conversion->rest, is_question)
                              : status;
}

/* Find the bytes of the workspace, and load all kernels. Groups of sequences are alike, unless their addresses are
 * aligned differently, except for the last one, which may have fewer. */
static sm120_status measure(struct device *device, struct conversion *conversion) {
    const struct cached *const call = conversion->call;
    const bool are_alike = call->q.batch_stride % TENSOR_ALIGNMENT == 0;
    sm120_status status = SM120_OK;
    for (int64_t first = 0; first < call->args->batch && status == SM120_OK; first += conversion->batch) {
        const int64_t left = call->args->batch - first;
        int64_t end = 0;
        if (!are_alike || first == 0 || left < conversion->batch) {
            const int64_t batch = left < conversion->batch ? left : conversion->batch;
            status = run_group(device, conversion, first, batch, 0, true, &end);
            conversion->bytes = end > conversion->bytes ? end : conversion->bytes;
        }
    }
    return status;
}

sm120_status cached_converted(struct device *device, struct cached *call, const struct workspace *workspace) {
    struct conversion conversion;
    sm120_status status = lay_out(call, &conversion);
    status = status == SM120_OK ? measure(device, &conversion) : status;
    if (status != SM120_OK) {
        return status;
    }
    call->workspace_bytes = conversion.bytes;
    if (workspace->is_question) {
        *workspace->answer = (size_t)conversion.bytes;
        return SM120_OK;
    }
    status = cached_check_places(device, call, workspace);
    for (int64_t first = 0; first < call->args->batch && status == SM120_OK; first += conversion.batch) {
        const int64_t left = call->args->batch - first;
        int64_t end = 0;
        status = run_group(device, &conversion, first, left < conversion.batch ? left : conversion.batch,
                           workspace->address, false, &end);
    }
    return status;
}
