/* The memory of a call: each address is valid, and no CTA writes what another CTA reads. */
#include "runtime/places.h"
#include "ops/attention/attention.h"

/* Whether o replaces q in place: each row of o is written by the CTA that has read this row of q. */
static bool is_in_place(const struct attention *call) {
    const struct tensor *const q = &call->q, *const o = &call->o;
    return q->address == o->address && attention_mask_bytes(q->dtype) == attention_mask_bytes(o->dtype) &&
           call->q_shape.head_dim == call->o_shape.head_dim && q->batch_stride == o->batch_stride &&
           q->head_stride == o->head_stride && q->row_stride == o->row_stride;
}

/* The memory of q, k or v. */
static struct place place_of(const struct tensor *x, const struct shape *shape) {
    return attention_is_tiles(x) ? place_array(x->name, x->address, x->bytes, TENSOR_ALIGNMENT, PLACE_READ)
                                 : place_tensor(x, shape, PLACE_READ);
}

sm120_status attention_check_places(struct device *device, const struct attention *call,
                                    const struct workspace *workspace, int64_t needed) {
    const sm120_attention_args *const args = call->args;
    const int64_t batch = 4 * args->batch;
    const int64_t slopes = 4 * (args->alibi_batch_stride * (args->batch - 1) + args->heads);
    struct place places[32];
    size_t count = 0;
    const struct tensor *const tiles[] = {&call->q, &call->k, &call->v};
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; ++i) {
        const bool are_tiles = attention_is_tiles(tiles[i]);
        const sm120_status status =
            are_tiles ? check_address(tiles[i]->name, tiles[i]->address, TENSOR_ALIGNMENT) : SM120_OK;
        if (status != SM120_OK) {
            return status;
        }
    }
    if (attention_is_tiles(&call->q) || !is_in_place(call)) { /* else o stands for both */
        places[count++] = place_of(&call->q, &call->q_shape);
    }
    places[count++] = place_of(&call->k, &call->k_shape);
    places[count++] = place_of(&call->v, &call->v_shape);
    if (args->past_rows != 0) {
        places[count++] = place_tensor(&call->past_k, &call->past_k_shape, PLACE_READ);
        places[count++] = place_tensor(&call->past_v, &call->past_v_shape, PLACE_READ);
    }
    for (int i = 0; i < ATTENTION_OPERANDS; ++i) {
        if (call->blocks[i].are_given) {
            places[count++] = place_tensor(&call->blocks[i].tensor, &call->blocks[i].shape, PLACE_READ);
        }
    }
    places[count++] = place_array("diagonals", args->diagonals, batch, 4, PLACE_READ);
    places[count++] = place_array("kv_lengths", args->kv_lengths, batch, 4, PLACE_READ);
    places[count++] = place_array("cu_seqlens_q", args->cu_seqlens_q, batch + 4, 4, PLACE_READ);
    places[count++] = place_array("cu_seqlens_k", args->cu_seqlens_k, batch + 4, 4, PLACE_READ);
    places[count++] = place_array("sinks", args->sinks, 4 * args->heads, 4, PLACE_READ);
    places[count++] = place_array("alibi_slopes", args->alibi_slopes, slopes, 4, PLACE_READ);
    places[count++] = place_array("mask.address", args->mask.address, call->mask_bytes,
                                  (uint64_t)attention_mask_bytes(args->mask.dtype), PLACE_READ);
    for (int i = 0; i < ATTENTION_SCALES; ++i) {
        const struct tensor *const x = &call->scales[i];
        if (x->address != 0) {
            places[count++] =
                place_array(x->name, x->address, x->bytes, 4, i == ATTENTION_AMAX ? PLACE_WRITTEN : PLACE_READ);
        }
    }
    places[count] = place_tensor(&call->o, &call->o_shape, PLACE_WRITTEN);
    places[count++].rule = "; o may only be q itself, with the same strides and head size";
    places[count++] = place_array("lse", args->lse, call->lse_bytes, 4, PLACE_WRITTEN);
    places[count++] = place_workspace(workspace, needed);
    return places_check(device, places, count);
}
