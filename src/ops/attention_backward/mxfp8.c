/* The backward pass in MXFP8: the operands in blocks of 32 x 32, and the launches that write and read them. */
#include "generated/constants.h"
#include "ops/attention_backward/attention_backward.h"

enum { NARROW = 64 };       /* the head size whose rows have 64 bytes; others have 128 */
enum { LEAST_SCALES = 16 }; /* bytes of a tile's scales: a multiple */

/* Bytes of a packed tile: its elements, then four bytes for each 32 rows. */
static int64_t packed_bytes(const struct kernel_record *main, int64_t rows) {
    const int64_t scales = rows / 8 < LEAST_SCALES ? LEAST_SCALES : rows / 8;
    return rows * (main->head_dim <= NARROW ? NARROW : 2 * NARROW) + scales;
}

bool backward_is_rounded(const struct backward *b, int tensor) {
    return (tensor == Q || tensor == K) && b->products != b->args->precision;
}

sm120_status backward_choose_packers(struct backward *b) {
    const struct kernel_record *const main = kernel_records + b->main;
    struct kernel_record wanted = {.operation = "attention_backward_pack_queries",
                                   .dtype = b->call.q.dtype,
                                   .head_dim = main->head_dim <= NARROW ? NARROW : 2 * NARROW};
    const sm120_status status = builtin_find(&wanted, &b->delta);
    wanted.operation = "attention_backward_pack_keys";
    return status == SM120_OK ? builtin_find(&wanted, &b->packed.keys) : status;
}

struct rows_place backward_rows_place(const struct backward *b) {
    const struct kernel_record *const main = kernel_records + b->main;
    const int64_t rows_bytes = backward_rows_bytes(main), q_bytes = packed_bytes(main, main->q_rows);
    return b->products == SM120_MXFP8 ? (struct rows_place){.at = b->rows_at + q_bytes,
                                                            .step = q_bytes + rows_bytes,
                                                            .shift = GRADIENTS_P_BITS}
                                      : (struct rows_place){.at = b->rows_at, .step = rows_bytes};
}

bool backward_place_packed(struct backward *b) {
    const struct kernel_record *const main = kernel_records + b->main;
    const int64_t q_bytes = packed_bytes(main, main->q_rows), kv_bytes = packed_bytes(main, main->kv_rows);
    int64_t *const offset = &b->workspace_bytes;
    return backward_place(offset, b->slots, q_bytes + backward_rows_bytes(main), &b->rows_at) &&
           backward_place(offset, b->slots, q_bytes, &b->packed.dout_at) &&
           backward_place(offset, b->packed.slots, kv_bytes, &b->packed.k_at) &&
           backward_place(offset, b->packed.slots, kv_bytes, &b->packed.v_at);
}

struct attention_backward_pack_queries_parameters backward_pack_queries(const struct backward *b,
                                                                        sm120_address workspace) {
    const struct tensor *const o = &b->call.o, *const q = &b->loaded[Q], *const dout = &b->loaded[DOUT];
    const sm120_address starts = b->args->cu_seqlens_q;
    const int64_t lse_head_stride = 4 * b->call.q_shape.rows;
    return (struct attention_backward_pack_queries_parameters){
        .x = q->address,
        .y = dout->address,
        .x_tiles = workspace + (uint64_t)b->rows_at,
        .y_tiles = workspace + (uint64_t)b->packed.dout_at,
        .x_batch_stride = backward_batch_stride(q, starts),
        .x_head_stride = q->head_stride,
        .x_row_stride = q->row_stride,
        .y_batch_stride = backward_batch_stride(dout, starts),
        .y_head_stride = dout->head_stride,
        .y_row_stride = dout->row_stride,
        .o = o->address,
        .lse = b->args->lse,
        .dlse = b->args->dlse,
        .delta = b->args->delta,
        .sums = workspace + (uint64_t)b->sums_at,
        .finished = backward_finished(b, workspace),
        .turns = backward_turns(b, workspace),
        .o_batch_stride = backward_batch_stride(o, starts),
        .o_head_stride = o->head_stride,
        .o_row_stride = o->row_stride,
        .sums_bytes = (uint32_t)b->tile_bytes,
        .ring_slots = (uint32_t)b->ring.slots,
        .o_type = attention_type(o->dtype),
        .is_wide = o->dtype == q->dtype && copy_rows_is_needless(o, &b->call.o_shape),
        .o_head_dim = (uint32_t)b->call.o_shape.head_dim,
        .lse_batch_stride = starts != 0 ? 0 : lse_head_stride * b->args->heads,
        .lse_head_stride = lse_head_stride,
        .slopes = b->args->alibi_slopes,
        .slopes_batch_stride = (uint32_t)b->args->alibi_batch_stride,
        .cu_seqlens = starts,
        .total = (int32_t)b->args->q_total,
        .head_slots = (uint32_t)b->head_slots,
        .batch_slots = (uint32_t)b->batch_slots,
        .heads = (uint32_t)b->args->heads,
        .rows = (uint32_t)b->args->q_rows,
        .tiles = (uint32_t)b->q_tiles,
        .x_head_dim = (uint32_t)b->loaded_shape[Q].head_dim,
        .y_head_dim = (uint32_t)b->loaded_shape[DOUT].head_dim,
        .kv_rows = (uint32_t)b->args->kv_rows,
        .gradients_mask = backward_dmask(b),
    };
}

struct attention_backward_pack_keys_parameters backward_pack_keys(const struct backward *b, sm120_address workspace) {
    const struct tensor *const k = &b->loaded[K], *const v = &b->loaded[V];
    const sm120_address starts = b->args->cu_seqlens_k;
    return (struct attention_backward_pack_keys_parameters){
        .x = k->address,
        .y = v->address,
        .x_tiles = workspace + (uint64_t)b->packed.k_at,
        .y_tiles = workspace + (uint64_t)b->packed.v_at,
        .x_batch_stride = backward_batch_stride(k, starts),
        .x_head_stride = k->head_stride,
        .x_row_stride = k->row_stride,
        .y_batch_stride = backward_batch_stride(v, starts),
        .y_head_stride = v->head_stride,
        .y_row_stride = v->row_stride,
        .kv_lengths = b->args->kv_lengths,
        .cu_seqlens = starts,
        .total = (int32_t)b->args->kv_total,
        .head_slots = (uint32_t)b->packed.head_slots,
        .batch_slots = (uint32_t)b->packed.batch_slots,
        .heads = (uint32_t)b->args->kv_heads,
        .rows = (uint32_t)b->args->kv_rows,
        .tiles = (uint32_t)b->kv_tiles,
        .x_head_dim = (uint32_t)b->loaded_shape[K].head_dim,
        .y_head_dim = (uint32_t)b->loaded_shape[V].head_dim,
    };
}
