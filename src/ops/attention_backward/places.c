/* The memory of a call: each address is valid, and no kernel writes what another one reads. */
#include "runtime/places.h"
#include "ops/attention_backward/attention_backward.h"

sm120_status backward_check_places(struct device *device, const struct backward *b, const struct workspace *workspace) {
    const sm120_attention_backward_args *const args = b->args;
    const int64_t rows = b->call.lse_bytes, batch = 4 * args->batch;
    const int64_t slopes = 4 * (args->alibi_batch_stride * (args->batch - 1) + args->heads);
    const struct place places[] = {
        place_tensor(&b->given[Q], &b->given_shape[Q], PLACE_READ),
        place_tensor(&b->given[K], &b->given_shape[K], PLACE_READ),
        place_tensor(&b->given[V], &b->given_shape[V], PLACE_READ),
        place_tensor(&b->given[DOUT], &b->given_shape[DOUT], PLACE_READ),
        place_tensor(&b->call.o, &b->call.o_shape, PLACE_READ),
        place_array("lse", args->lse, rows, 4, PLACE_READ),
        place_array("dlse", args->dlse, rows, 4, PLACE_READ),
        place_array("delta", args->delta, rows, 4, PLACE_READ),
        place_array("diagonals", args->diagonals, batch, 4, PLACE_READ),
        place_array("kv_lengths", args->kv_lengths, batch, 4, PLACE_READ),
        place_array("cu_seqlens_q", args->cu_seqlens_q, batch + 4, 4, PLACE_READ),
        place_array("cu_seqlens_k", args->cu_seqlens_k, batch + 4, 4, PLACE_READ),
        place_array("alibi_slopes", args->alibi_slopes, slopes, 4, PLACE_READ),
        place_array("sinks", args->sinks, 4 * args->heads, 4, PLACE_READ),
        place_array("mask.address", args->mask.address, b->call.mask_bytes,
                    (uint64_t)attention_mask_bytes(args->mask.dtype), PLACE_READ),
        place_tensor(&b->results[DQ], &b->result_shape[DQ], PLACE_WRITTEN),
        place_tensor(&b->results[DK], &b->result_shape[DK], PLACE_WRITTEN),
        place_tensor(&b->results[DV], &b->result_shape[DV], PLACE_WRITTEN),
        place_array("dsinks", args->dsinks, 4 * args->heads, 4, PLACE_WRITTEN),
        place_array("dmask.address", args->dmask.address, b->dmask_bytes, 4, PLACE_WRITTEN),
        place_workspace(workspace, b->workspace_bytes),
    };
    const sm120_status status = check_address("lse", args->lse, 4);
    return status == SM120_OK ? places_check(device, places, sizeof places / sizeof *places) : status;
}
