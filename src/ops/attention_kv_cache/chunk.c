/* Attention of a chunk of rows and a cache: keys and values are gathered in the workspace, a few sequences at a time,
 * and sm120_attention's kernels read them there. A dense cache in 16 bits is read in place. */
#include "generated/constants.h"
#include "ops/attention_kv_cache/attention_kv_cache.h"
#include "ops/kv_cache.h"
#include "ops/resident.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { ROWS_MAX = (1 << 30) - 1 };

/* How a call is divided, and where the parts of its workspace begin. */
struct chunk {
    const struct cached *call;
    bool is_copied, is_listed;          /* keys and values are gathered; the pages of all sequences in one list */
    int64_t batch;                      /* sequences that are gathered at once; all of a list */
    int64_t k_columns, v_columns, rows; /* of the copies; rows: of a sequence, or of the list */
    int64_t lengths, diagonals, starts, k, v, rest, bytes; /* offsets; rest: of sm120_attention */
};

/* ---- which calls ---- */

static bool is_listed(const struct cached *call) {
    return call->args->page_indptr != 0;
}

static bool is_copied(const struct cached *call) {
    return call->is_narrow || call->is_converted || call->args->page_table != 0;
}

/* Round up to whole steps. */
static int64_t in_steps(int64_t x, int64_t step) {
    return (x + step - 1) / step * step;
}

/* Whether sm120_attention's kernels take less time than the kernel whose CTAs have 16 rows each, or 8: both are
 * estimated, as clocks of all multiprocessors. The unit is what one needs to read the K and V of 64 keys and a
 * head in 16 bits from the L2, a reading. All terms are proportional to the head sizes, so these cancel.
 *
 * The kernel of few rows reads all K and V of a head in each CTA, and splits fill the chip. A tile of 64 keys costs
 * batch * kv_heads * (tiles of its rows, over the heads of a group) readings. With 8 bits a reading costs half on
 * SM120, and as much on Hopper, where instructions decide. 4 bits count as 8, because they need that time for
 * conversions.
 *
 * A CTA of the others has 128 rows of one head of q. Their keys are not split, so the last wave of CTAs takes as long
 * as a full one. With up to 64 rows one warp of each scheduler has work, which keeps the tensor pipe busy for 0.7 of
 * the time, as in the kernel of few rows: 0.5 / 0.7 of the clocks of 128 rows. For pages, narrow and misaligned caches,
 * copies read K and V and write them in 16 bits at DRAM's rate, and each group of sequences that is copied at once has
 * waves of its own. For K and V that are converted, the kernel of few rows needs the copies too.
 *
 * RTX 5090: 5,000 GB/s of the L2 are 12.2 bytes a clock of a multiprocessor, 1,509 of DRAM 3.69. For 64 keys and each
 * column of a head a reading takes 256 bytes / 12.2 = 21 clocks, 128 rows 65.6 (timing model) = 3.1 readings, a copy of
 * 16 bits 512 / 3.69 = 139 = 6.6 readings, of 8 bits 384 / 3.69 = 104 = 5.0. H200: 45 bytes (10.4 TB/s, measured at 16
 * x 8192 keys and 64 tokens) and 17.5; 5.7 clocks a reading, up to 64 rows 16 = 2.8 readings, 29 = 5.1 and 22 = 3.9. On
 * an H100 128 rows take as long as 3.4 readings: 8192 keys of one sequence, 32 heads of q and 8 of k, 188 us with 129
 * to 512 tokens, the kernel of few rows 112 with 130 and 179 with 192. A CTA takes about 2 readings outside of its
 * tiles, two more launches take 3.
 *
 * On a full chip, with groups of 4 heads, the others take over at 33 tokens (Hopper: 45), in pages of 16 bits at 61 to
 * 64 and at 77 (73), with 8 bits at 241 to 256 and from 337 on in most cases (61). With fewer heads than
 * multiprocessors they take over later: for one sequence and 32 heads at 265 (225). Nothing of this was measured on
 * SM120. Above TILE_ROWS and below MANY_KEYS, where no call was measured, the others compute all. */
static bool is_faster_in_tiles_of_128(const struct device *device, const struct cached *call) {
    enum { TILE_ROWS = 128, HALF_ROWS = 64, KEYS = 64, MANY_KEYS = 1024 };
    static const struct {
        double whole, half, copied, narrow_copied, narrow;
    } costs[] = {{3.1, 2.2, 6.6, 5.0, 0.5}, {3.4, 2.8, 5.1, 3.9, 1.0}}; /* SM120, Hopper */
    const double outside = 2, launches = 3;
    const sm120_attention_with_kv_cache_args *const args = call->args;
    const int64_t is_hopper = device->info.capability_major == HOPPER, sms = device->info.multiprocessors;
    const int64_t pairs = args->batch * args->kv_heads;
    const bool is_wide = args->head_dim > 128 || call->v_shape.head_dim > 128;
    const int64_t rows = is_wide && (call->is_narrow || !call->is_ready) ? 8 : 16;
    const double row_tiles = (double)(in_steps(args->heads / args->kv_heads * args->q_rows, rows) / rows);
    const double key_tiles = (double)(in_steps(call->kv_rows, KEYS) / KEYS), all = (double)sms;
    const double whole = args->q_rows <= HALF_ROWS ? costs[is_hopper].half : costs[is_hopper].whole;
    const double copied = call->is_narrow ? costs[is_hopper].narrow_copied : costs[is_hopper].copied;
    const double few = key_tiles * (double)pairs * row_tiles / all * (call->is_narrow ? costs[is_hopper].narrow : 1.0);
    const int64_t at_once = is_copied(call) ? copies_at_once(call) : args->batch;
    const double groups = (double)((args->batch + at_once - 1) / at_once);
    const int64_t ctas = at_once * args->heads * (in_steps(args->q_rows, TILE_ROWS) / TILE_ROWS);
    const double waves = groups * (double)((ctas + sms - 1) / sms);
    const double many = waves * (key_tiles * whole + outside);
    const double of_keys = key_tiles * (double)pairs / all * copied;
    const double copies = is_copied(call) || !call->is_ready ? groups * launches + of_keys : 0;
    return (args->q_rows > TILE_ROWS && call->kv_rows < MANY_KEYS) ||
           many + copies < few + (call->is_converted ? copies : 0);
}

bool cached_is_chunk(const struct device *device, const struct cached *call) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    int64_t places = 0;
    const bool is_possible = args->tree_mask == 0 && args->num_splits == 0 &&
                             multiply(args->page_rows, args->page_table != 0 ? args->table_pages : 1, &places) &&
                             places <= ROWS_MAX;
    return is_possible && is_faster_in_tiles_of_128(device, call) && (!is_copied(call) || copies_are_possible(call));
}

/* ---- the workspace ---- */

/* Decide how many sequences are gathered at once, and lay out the workspace before the part of sm120_attention. */
static sm120_status lay_out(const struct cached *call, struct chunk *chunk) {
    const sm120_attention_with_kv_cache_args *const args = call->args;
    *chunk = (struct chunk){.call = call,
                            .is_copied = is_copied(call),
                            .is_listed = is_listed(call),
                            .batch = is_copied(call) ? copies_at_once(call) : args->batch,
                            .k_columns = copies_columns(&call->k_shape),
                            .v_columns = copies_columns(&call->v_shape),
                            .rows = call->kv_rows};
    if (!chunk->is_copied) {
        return SM120_OK;
    }
    const int64_t row = 2 * args->kv_heads; /* bytes of a column; kv_heads are at most 65535 */
    int64_t each = 0, k = 0, v = 0;
    bool fits = copies_bytes(call, &each);
    const int64_t copies = chunk->is_listed ? 1 : chunk->batch;
    fits = fits && multiply(row * chunk->k_columns, chunk->rows, &k) && multiply(k, copies, &k) &&
           multiply(row * chunk->v_columns, chunk->rows, &v) && multiply(v, copies, &v);
    const int64_t numbers = (int64_t)sizeof(int32_t) * args->batch;
    fits = fits && workspace_place(numbers, &chunk->lengths, &chunk->rest) &&
           workspace_place(numbers, &chunk->diagonals, &chunk->rest) &&
           workspace_place(numbers + (int64_t)sizeof(int32_t), &chunk->starts, &chunk->rest) &&
           workspace_place(k, &chunk->k, &chunk->rest) && workspace_place(v, &chunk->v, &chunk->rest);
    return fits ? SM120_OK : fail(SM120_UNSUPPORTED, "the workspace for the keys of a cache exceeds 2^63 bytes");
}

/* ---- the launches ---- */

/* A copy in the workspace: [batch][kv_heads][rows][columns]. */
static sm120_tensor copy_at(const struct chunk *chunk, sm120_address address, int64_t columns) {
    const int64_t head = chunk->rows * columns;
    return (sm120_tensor){.address = address,
                          .dtype = chunk->call->q.dtype,
                          .batch_stride = chunk->is_listed ? 0 : head * chunk->call->args->kv_heads,
                          .head_stride = head,
                          .row_stride = columns};
}

/* The gather of `batch` sequences from `first` on. */
static sm120_kv_cache_gather_args gather_of(const struct chunk *chunk, int64_t first, int64_t batch,
                                            sm120_address workspace) {
    const sm120_tensor k = copy_at(chunk, workspace + (uint64_t)chunk->k, chunk->k_columns);
    const sm120_tensor v = copy_at(chunk, workspace + (uint64_t)chunk->v, chunk->v_columns);
    const int64_t lengths = chunk->lengths + first * (int64_t)sizeof(int32_t);
    return copies_gather(chunk->call, first, batch, &k, &v, chunk->is_listed ? 0 : workspace + (uint64_t)lengths);
}

/* The attention of `batch` sequences from `first` on. */
static sm120_attention_args attention_of(const struct chunk *chunk, int64_t first, int64_t batch,
                                         sm120_address workspace) {
    const sm120_attention_with_kv_cache_args *const args = chunk->call->args;
    const int64_t number = sizeof(int32_t);
    sm120_attention_args made = {
        .size = sizeof(sm120_attention_args),
        .precision = chunk->call->q.dtype == SM120_BF16 ? SM120_BF16 : SM120_F16,
        .batch = batch,
        .heads = args->heads,
        .kv_heads = args->kv_heads,
        .q_rows = args->q_rows,
        .kv_rows = chunk->rows,
        .head_dim = args->head_dim,
        .v_head_dim = args->v_head_dim,
        .q = tensor_from(&args->q, first),
        .k = args->k,
        .v = args->v,
        .o = tensor_from(&args->o, first),
        .lse = address_behind(args->lse, first * args->heads * args->q_rows, sizeof(float)),
        .scale = args->scale,
        .causal = args->causal,
        .stream = args->stream,
        .window_left = args->window_left,
        .window_right = args->window_right,
        .window = args->window,
        .softcap = args->softcap,
        .sinks = args->sinks,
        .alibi_slopes = address_behind(args->alibi_slopes, first * args->alibi_batch_stride, sizeof(float)),
        .alibi_batch_stride = args->alibi_slopes != 0 ? args->alibi_batch_stride : 0,
        .kv_lengths = args->kv_lengths,
    };
    if (chunk->is_copied) {
        made.k = copy_at(chunk, workspace + (uint64_t)chunk->k, chunk->k_columns);
        made.v = copy_at(chunk, workspace + (uint64_t)chunk->v, chunk->v_columns);
        made.kv_lengths = workspace + (uint64_t)(chunk->lengths + first * number);
        made.diagonals = workspace + (uint64_t)(chunk->diagonals + first * number);
    }
    if (chunk->is_listed) {
        made.cu_seqlens_k = workspace + (uint64_t)chunk->starts;
        made.kv_total = chunk->rows;
    }
    return made;
}

/* The launch that finds how many keys each sequence has. */
struct spans {
    struct kernel *kernel;
    struct launch launch;
    struct kv_cache_spans_parameters values;
    struct argument_pointers pointers;
};

static sm120_status prepare_spans(struct device *device, const struct chunk *chunk, sm120_address workspace,
                                  struct spans *spans) {
    const sm120_attention_with_kv_cache_args *const args = chunk->call->args;
    const struct kernel_record wanted = {.operation = "kv_cache_spans"};
    uint32_t index = 0;
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    spans->values = (struct kv_cache_spans_parameters){
        .page_table = args->page_table,
        .page_indptr = args->page_indptr,
        .last_page = args->last_page,
        .kv_lengths = args->kv_lengths,
        .lengths = workspace + (uint64_t)chunk->lengths,
        .diagonals = workspace + (uint64_t)chunk->diagonals,
        .starts = chunk->is_listed ? workspace + (uint64_t)chunk->starts : 0,
        .pages = (uint32_t)args->pages,
        .page_rows = (uint32_t)args->page_rows,
        .table_stride = args->page_table != 0 ? (uint32_t)args->table_pages : 1,
        .kv_rows = (uint32_t)chunk->rows,
        .q_rows = (uint32_t)args->q_rows,
    };
    status = launch_of(&spans->pointers, ARGUMENTS(&spans->values), (uint32_t)args->batch, kernel_records + index,
                       args->stream, &spans->launch);
    status = status == SM120_OK ? builtin_load(device, index, &spans->kernel) : status;
    return status == SM120_OK ? launch_check(spans->kernel, &spans->launch) : status;
}

/* Find the bytes of the workspace, and load all kernels. Groups of sequences are alike, unless their addresses are
 * aligned differently, except for the last one, which may have fewer. */
static sm120_status measure(struct device *device, struct chunk *chunk) {
    const struct tensor *const q = &chunk->call->q, *const o = &chunk->call->o;
    const bool are_alike = (q->batch_stride | o->batch_stride) % TENSOR_ALIGNMENT == 0;
    const int64_t all = chunk->call->args->batch;
    chunk->bytes = chunk->rest;
    for (int64_t first = 0; first < all; first += chunk->batch) {
        const int64_t batch = all - first < chunk->batch ? all - first : chunk->batch;
        if (are_alike && first != 0 && batch == chunk->batch) {
            continue;
        }
        /* The workspace has addresses that are aligned, as an address of 0 is. */
        const sm120_attention_args args = attention_of(chunk, first, batch, 0);
        size_t needed = 0;
        const struct workspace question = workspace_question(&needed);
        const sm120_status status = attention_call(device, &args, &question);
        if (status != SM120_OK) {
            return status;
        }
        int64_t end = 0;
        if (needed > INT64_MAX || !add(chunk->rest, (int64_t)needed, &end)) {
            return fail(SM120_UNSUPPORTED, "the workspace for the keys of a cache exceeds 2^63 bytes");
        }
        chunk->bytes = end > chunk->bytes ? end : chunk->bytes;
    }
    return SM120_OK;
}

/* Launch the gather of a group of sequences, and their attention. */
static sm120_status run_group(struct device *device, const struct chunk *chunk, int64_t first, int64_t batch,
                              const struct workspace *workspace) {
    const sm120_attention_args args = attention_of(chunk, first, batch, workspace->address);
    const struct workspace rest = workspace_of(workspace->address != 0 ? workspace->address + (uint64_t)chunk->rest : 0,
                                               (size_t)(chunk->bytes - chunk->rest));
    sm120_status status = SM120_OK;
    if (chunk->is_copied) {
        const sm120_kv_cache_gather_args gather = gather_of(chunk, first, batch, workspace->address);
        struct kv_copy_launch prepared;
        status = kv_gather_prepare(device, &gather, &prepared);
        status = status == SM120_OK ? launch_start(prepared.kernel, &prepared.launch) : status;
    }
    return status == SM120_OK ? attention_call(device, &args, &rest) : status;
}

sm120_status cached_chunk(struct device *device, struct cached *call, const struct workspace *workspace) {
    struct chunk chunk;
    struct spans spans;
    const sm120_address address = workspace->is_question ? 0 : workspace->address;
    sm120_status status = lay_out(call, &chunk);
    status = status == SM120_OK ? measure(device, &chunk) : status;
    if (status != SM120_OK) {
        return status;
    }
    call->workspace_bytes = chunk.bytes;
    status = workspace->is_question ? SM120_OK : cached_check_places(device, call, workspace);
    if (status == SM120_OK && chunk.is_copied) {
        const sm120_kv_cache_gather_args gather = gather_of(&chunk, 0, chunk.batch, address);
        struct kv_copy_launch prepared;
        status = kv_gather_prepare(device, &gather, &prepared);
        status = status == SM120_OK ? prepare_spans(device, &chunk, address, &spans) : status;
    }
    if (status == SM120_OK && workspace->is_question) {
        *workspace->answer = (size_t)chunk.bytes;
        return SM120_OK;
    }
    if (status == SM120_OK && chunk.is_copied) {
        status = launch_start(spans.kernel, &spans.launch);
    }
    for (int64_t first = 0; first < call->args->batch && status == SM120_OK; first += chunk.batch) {
        const int64_t left = call->args->batch - first;
        status = run_group(device, &chunk, first, left < chunk.batch ? left : chunk.batch, workspace);
    }
    return status;
}
