/* The choice of the kernels of a call, and its workspace. */
#include <inttypes.h>
#include <string.h>

#include "ops/attention_backward/attention_backward.h"
#include "ops/resident.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum {
    ROWS_HEAD = 16, /* bytes behind bias and delta of a tile's rows */
    ROUND_KEYS = 8  /* a round of the main kernel takes the time of its keys and of so many more */
};

/* Count the tiles of the main kernel and its CTAs; false: they are too many. */
static bool count_tiles(struct backward *b) {
    const struct kernel_record *const record = kernel_records + b->main;
    const sm120_attention_backward_args *const args = b->args;
    int64_t q_ctas = 0;
    b->q_tiles = (args->q_rows + record->q_rows - 1) / record->q_rows;
    b->kv_tiles = (args->kv_rows + record->kv_rows - 1) / record->kv_rows;
    return multiply(args->batch * args->heads, b->q_tiles, &q_ctas) && q_ctas <= INT32_MAX &&
           multiply(args->batch * args->kv_heads, b->kv_tiles, &b->kv_ctas) && b->kv_ctas <= INT32_MAX;
}

/* Whether a device can compute a call with a main kernel. */
static bool suits(const struct device *device, const struct backward *b, const struct kernel_record *record) {
    const int64_t q = b->call.q_shape.head_dim, v = b->call.v_shape.head_dim;
    return strcmp(record->operation, "attention_backward") == 0 && record->precision == b->products &&
           record->features == !b->call.is_uniform && (record->ordered || b->args->deterministic == 0) &&
           record->head_dim >= (q > v ? q : v) && record->shared <= (uint32_t)device->info.shared_bytes_per_block;
}

/* On SM120, of main kernels that differ in the keys of a tile alone, choose the one that takes the least time: more
 * keys mean fewer rounds, but leave more of the last tile and of the last wave empty. */
static void choose_keys(const struct device *device, struct backward *b) {
    const struct kernel_record *const first = kernel_records + b->main;
    int64_t least = INT64_MAX;
    for (uint32_t i = 0; i < kernel_record_count && device->info.capability_major != HOPPER; ++i) {
        const struct kernel_record *const record = kernel_records + i;
        struct backward trial = *b;
        trial.main = i;
        if (suits(device, b, record) && record->head_dim == first->head_dim && record->q_rows == first->q_rows &&
            record->ordered == first->ordered && count_tiles(&trial)) {
            const int64_t time = backward_split(device, &trial) * (record->kv_rows + ROUND_KEYS);
            b->main = time < least ? i : b->main;
            least = time < least ? time : least;
        }
    }
}

/* Choose the kernels: of those of the least head size, the one whose tiles fill the most shared memory.
 * Where one of two equal tiles can add in order, the other one is faster. */
sm120_status backward_choose(const struct device *device, struct backward *b) {
    const struct kernel_record *best = NULL;
    for (uint32_t i = 0; i < kernel_record_count; ++i) {
        const struct kernel_record *const record = kernel_records + i;
        if (suits(device, b, record) &&
            (best == NULL || record->head_dim < best->head_dim ||
             (record->head_dim == best->head_dim && record->shared > best->shared) ||
             (record->head_dim == best->head_dim && record->shared == best->shared && !record->ordered))) {
            best = record;
            b->main = i;
        }
    }
    if (best == NULL) {
        return fail(SM120_INTERNAL, "the library holds no kernel of attention_backward for head_dim = %" PRId64,
                    b->call.q_shape.head_dim);
    }
    choose_keys(device, b);
    const struct kernel_record delta = {.operation = "attention_backward_delta", .precision = b->products};
    const struct kernel_record dq = {.operation = "attention_backward_dq"};
    const struct kernel_record sinks = {.operation = "attention_backward_sinks"};
    const struct kernel_record sum = {.operation = "attention_backward_sum"};
    sm120_status status = b->products == SM120_MXFP8 ? backward_choose_packers(b) : builtin_find(&delta, &b->delta);
    status = status == SM120_OK ? builtin_find(&dq, &b->dq) : status;
    status = status == SM120_OK ? builtin_find(&sum, &b->sum) : status;
    return status == SM120_OK ? builtin_find(&sinks, &b->sinks) : status;
}

bool backward_place(int64_t *offset, int64_t count, int64_t bytes, int64_t *at) {
    return multiply(count, bytes, &bytes) && workspace_place(bytes, at, offset);
}

int64_t backward_rows_bytes(const struct kernel_record *main) {
    return 8 * (int64_t)main->q_rows + ROWS_HEAD;
}

/* Lay out the workspace: copies of tensors that the copy engine cannot load, bias and delta of each row, sums of dQ,
 * the turns in which these are added, and parts of dk and dv. */
sm120_status backward_lay_out(const struct device *device, struct backward *b) {
    const struct kernel_record *const record = kernel_records + b->main;
    const sm120_attention_backward_args *const args = b->args;
    const bool is_countable = count_tiles(b);
    for (int i = 0; i < LOADED; ++i) {
        b->loaded[i] = b->given[i];
        b->loaded_shape[i] = b->given_shape[i];
        b->is_copied[i] = attention_is_narrowed(&b->call) || backward_is_rounded(b, i) ||
                          !copy_rows_is_needless(&b->given[i], &b->given_shape[i]);
        if (b->is_copied[i]) {
            b->loaded_shape[i].head_dim = copy_rows_width(b->given_shape[i].head_dim, b->given[i].dtype);
            const sm120_status status = copy_rows_place(
                &b->given[i], &b->loaded_shape[i], attention_is_narrowed(&b->call) ? SM120_BF16 : b->given[i].dtype,
                &b->loaded[i], &b->workspace_bytes);
            if (status != SM120_OK) {
                return status;
            }
        }
    }
    b->tile_bytes = (int64_t)record->q_rows * record->head_dim * 4;
    b->head_slots = args->cu_seqlens_q != 0 ? args->q_total / record->q_rows + args->batch : b->q_tiles;
    b->batch_slots = args->cu_seqlens_q != 0 ? 0 : args->heads * b->q_tiles;
    b->slots = args->cu_seqlens_q != 0 ? args->heads * b->head_slots : args->batch * b->batch_slots;
    const bool is_packed = args->cu_seqlens_k != 0;
    b->packed.head_slots = is_packed ? args->kv_total / record->kv_rows + args->batch : b->kv_tiles;
    b->packed.batch_slots = is_packed ? 0 : args->kv_heads * b->kv_tiles;
    const int64_t kv_heads = is_packed ? args->kv_heads : args->batch * args->kv_heads;
    if (!is_countable || b->slots > INT32_MAX || !multiply(kv_heads, b->packed.head_slots, &b->packed.slots) ||
        b->packed.slots > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "batch * heads = %" PRId64 " of %" PRId64 " q tiles and %" PRId64
                    " kv tiles are too many CTAs; at most %d",
                    args->batch * args->heads, b->q_tiles, b->kv_tiles, INT32_MAX);
    }
    backward_split(device, b);
    const int64_t part_rows = (b->kv_ctas - b->first_split) * b->splits * record->kv_rows;
    const bool fits = b->products == SM120_MXFP8
                          ? backward_place_packed(b)
                          : backward_place(&b->workspace_bytes, b->slots, backward_rows_bytes(record), &b->rows_at);
    backward_choose_ring(device, b);
    backward_choose_turns(device, b);
    if (!fits || !backward_place(&b->workspace_bytes, b->ring.slots, b->tile_bytes, &b->sums_at) ||
        !backward_place(&b->workspace_bytes, b->ring.is_used ? 1 + b->slots : 0, 4, &b->ring.finished_at) ||
        !backward_place(&b->workspace_bytes, args->deterministic != 0 ? 1 + b->slots : 0,
                        (int64_t)record->threads / 32 * 4, &b->turns_at) ||
        !backward_place(&b->workspace_bytes, part_rows, b->result_shape[DK].head_dim * 4, &b->parts_at[DK]) ||
        !backward_place(&b->workspace_bytes, part_rows, b->result_shape[DV].head_dim * 4, &b->parts_at[DV])) {
        return fail(SM120_UNSUPPORTED, "q_rows = %" PRId64 "; the workspace exceeds 2^63 bytes", args->q_rows);
    }
    return SM120_OK;
}
