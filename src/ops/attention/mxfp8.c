/* Attention with Q K^T in MXFP8 or NVFP4: quantise q, k and, unless P V is in 16 bits, v into the workspace, then one
 * attention kernel. */
#include <inttypes.h>

#include "generated/constants.h"
#include "ops/attention/smoothing.h"
#include "ops/attention/special.h"
#include "ops/attention/splits.h"
#include "ops/quantize_mxfp8.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/places.h"

/* The packed form of a tensor: its quantizer, the bits of an element, and the bytes of scales of `rows` rows: one for
 * each `scale_columns` columns, or with 0 `scale_bytes` in each half. is_any: all its quantizers take sequences. */
struct form {
    const char *operation;
    int64_t bits, rows, scale_columns, scale_bytes;
    bool is_any;
};
static const struct form mxfp8_rows = {"quantize_mxfp8", 8, 1, 0, 4, false};
static const struct form mxfp8_columns = {"quantize_mxfp8", 8, 32, 1, 0, false};
static const struct form nvfp4 = {"quantize_nvfp4_packed", 4, 1, 16, 0, true};

/* The forms of a precision; v is NULL with P V in 16 bits. */
static const struct forms {
    uint32_t precision;
    const struct form *qk, *v;
} all_forms[] = {
    {SM120_MXFP8, &mxfp8_rows, &mxfp8_columns},  {SM120_MXFP8_BF16, &mxfp8_rows, NULL},
    {SM120_MXFP8_F16, &mxfp8_rows, NULL},        {SM120_NVFP4, &nvfp4, &nvfp4},
    {SM120_NVFP4_MXFP8, &nvfp4, &mxfp8_columns},
};

/* Offsets into the workspace, in bytes. With P V in 16 bits there are no v_tiles; of k and v that are tiles already,
 * without splits, and without smoothing, the areas for them are empty. */
struct areas {
    int64_t q_elements, q_scales, k_tiles, v_tiles, splits, q_means, k_means, row_scores, mean_scores, end;
};

/* The plan of a call, made before anything is launched. */
struct plan {
    const struct attention *call;
    uint32_t index;                           /* of the kernel's record */
    const struct kernel_record *record;       /* its tile sizes are those of the packed q, k and v */
    const struct form *qk, *v;                /* v NULL: P V in 16 bits, v is read in place */
    struct shape q_shape, k_shape;            /* packed: a batch for each sequence, with the rows of the longest one */
    int64_t padded_q, padded_past, padded_kv; /* rows, rounded up to whole tiles */
    bool is_question, is_smoothed;
    int64_t mean_rows, q_means; /* rows of a mean of q; means of a head */
    struct split split;
    struct areas areas;
};

/* ---- plan ---- */

/* The bytes of the elements and of the scales of form->rows rows. */
static int64_t element_bytes(const struct form *form, int64_t columns) {
    return form->rows * columns * form->bits / 8;
}
static int64_t scale_bytes(const struct form *form, int64_t columns) {
    return form->scale_columns == 0 ? form->scale_bytes * (columns / mxfp8_half(columns))
                                    : columns / form->scale_columns;
}

/* Round rows up to whole tiles. */
static int64_t in_tiles(int64_t rows, int64_t tile) {
    return (rows + tile - 1) / tile * tile;
}

/* Place an area of heads * rows * row_bytes bytes at *end, and move *end behind it. */
static bool place_area(int64_t heads, int64_t rows, int64_t row_bytes, int64_t *begin, int64_t *end) {
    int64_t bytes = 0;
    return multiply(heads, rows, &bytes) && multiply(bytes, row_bytes, &bytes) && workspace_place(bytes, begin, end);
}

/* Lay out the workspace: q's elements, q's scales, and tiles of k and of v that hold their own scales; then what
 * smoothing needs. */
static sm120_status lay_out(struct plan *plan) {
    const int64_t width = plan->record->head_dim, q_rows = plan->record->q_rows;
    const int64_t q_heads = plan->q_shape.batch * plan->q_shape.heads;
    const int64_t kv_heads = plan->k_shape.batch * plan->k_shape.heads;
    plan->padded_q = in_tiles(plan->q_shape.rows, q_rows);
    plan->padded_past = in_tiles(plan->call->args->past_rows, plan->record->kv_rows);
    plan->padded_kv = in_tiles(plan->k_shape.rows, plan->record->kv_rows);
    const int64_t keys = plan->padded_past + plan->padded_kv;
    const struct form *const qk = plan->qk, *const of_v = plan->v;
    const int64_t elements = element_bytes(qk, width), q_scales = scale_bytes(qk, width);
    const bool has_q = !attention_is_tiles(&plan->call->q), has_k = !attention_is_tiles(&plan->call->k);
    const bool has_v = of_v != NULL && !attention_is_tiles(&plan->call->v);
    const int64_t v_rows = has_v ? keys / of_v->rows : 0;
    const int64_t v_bytes = of_v != NULL ? element_bytes(of_v, width) + scale_bytes(of_v, width) : 0;
    const int64_t number = (int64_t)sizeof(float);
    plan->mean_rows = smoothing_mean_rows(plan->padded_q, q_rows);
    plan->q_means = plan->is_smoothed ? (plan->padded_q + plan->mean_rows - 1) / plan->mean_rows : 0;
    struct areas *const areas = &plan->areas;
    *areas = (struct areas){0};
    const struct {
        int64_t heads, rows, row_bytes, *begin;
    } list[] = {
        {q_heads, has_q ? plan->padded_q : 0, elements, &areas->q_elements},
        {q_heads, has_q ? plan->padded_q : 0, q_scales, &areas->q_scales},
        {kv_heads, has_k ? keys : 0, elements + q_scales, &areas->k_tiles},
        {kv_heads, v_rows, v_bytes, &areas->v_tiles},
        {1, 1, plan->split.bytes, &areas->splits},
        {q_heads, plan->q_means, number * ATTENTION_MEAN_COLUMNS, &areas->q_means},
        {kv_heads, plan->is_smoothed ? 1 : 0, number * ATTENTION_MEAN_COLUMNS, &areas->k_means},
        {q_heads, plan->is_smoothed ? plan->padded_q : 0, number, &areas->row_scores},
        {q_heads, plan->q_means, number * keys, &areas->mean_scores},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; ++i) {
        if (!place_area(list[i].heads, list[i].rows, list[i].row_bytes, list[i].begin, &areas->end)) {
            return fail(SM120_UNSUPPORTED,
                        "the workspace for q_rows = %" PRId64 " and kv_rows = %" PRId64 " exceeds 2^63 bytes",
                        plan->q_shape.rows, plan->k_shape.rows);
        }
    }
    return SM120_OK;
}

/* Choose the kernel and lay out the workspace. */
static sm120_status make_plan(const struct device *device, const struct attention *call, struct plan *plan) {
    *plan = (struct plan){.call = call};
    for (size_t i = 0; i < sizeof all_forms / sizeof *all_forms; ++i) {
        if (all_forms[i].precision == call->args->precision) {
            plan->qk = all_forms[i].qk;
            plan->v = all_forms[i].v;
        }
    }
    plan->is_smoothed = plan->qk == &nvfp4 && call->args->no_smoothing == 0;
    if (plan->qk == NULL) {
        return fail(SM120_INTERNAL, "precision = 0x%" PRIx32 " has no packed form", call->args->precision);
    }
    const sm120_attention_args *const args = call->args;
    plan->q_shape = (struct shape){args->batch, args->heads, args->q_rows, call->q_shape.head_dim};
    plan->k_shape = (struct shape){args->batch, args->kv_heads, args->kv_rows, call->k_shape.head_dim};
    const sm120_status status = attention_choose(device, call, &plan->index);
    if (status != SM120_OK) {
        return status;
    }
    plan->record = kernel_records + plan->index;
    if (plan->record->q_rows == 0 || plan->record->kv_rows == 0 ||
        (plan->v != NULL && plan->record->kv_rows % plan->v->rows != 0)) {
        return fail(SM120_INTERNAL, "%s has an invalid tile in its record", plan->record->entry);
    }
    const bool has_tiles = attention_is_tiles(&call->q) || attention_is_tiles(&call->k) || attention_is_tiles(&call->v);
    if (has_tiles &&
        (plan->record->kv_rows != MXFP8_TILE_ROWS || plan->record->head_dim != attention_tile_columns(call))) {
        return fail(SM120_INTERNAL, "%s does not read tiles as sm120_quantize_mxfp8 writes them", plan->record->entry);
    }
    const sm120_status is_split = attention_split(device, call, plan->record, &plan->split);
    return is_split == SM120_OK ? lay_out(plan) : is_split;
}

/* ---- launches ---- */

/* The launches of a call: first those of smoothing, then the quantizers of q, k, v, past_k and past_v, as far as the
 * call has them and they are no tiles, then attention. Do not copy it once filled, because it points into itself. */
struct launches {
    struct smoothing_launches smoothing; /* its count is 0 in calls without */
    struct quantizer_launch quantizers[5];
    int quantizer_count;
    struct kernel *kernel;
    struct launch launch;
    union {
        struct attention_mxfp8_any_parameters mxfp8; /* reads v as tiles */
        struct attention_nvfp4_any_parameters nvfp4;
        struct attention_mixed_any_parameters mixed; /* reads v through a tensor map */
    } values;
    struct argument_pointers pointers;
    struct split_launch adds; /* adds up the splits */
};

/* Where the kernel reads an operand: tiles that are given, or an area of the workspace. */
static sm120_address tiles_at(const struct tensor *x, sm120_address workspace, int64_t area) {
    return attention_is_tiles(x) ? x->address : workspace + (uint64_t)area;
}

/* Make the tensor maps of v and past_v, which mixed kernels load in place. */
static sm120_status describe_values(const struct device *device, const struct plan *plan,
                                    struct attention_mixed_any_parameters *a) {
    const struct attention *const call = plan->call;
    const uint32_t rows = plan->record->kv_rows;
    uint32_t past = 0;
    sm120_status status = attention_describe(device, &call->v, &call->v_shape, ATTENTION_BOX_COLUMNS, rows, &a->v_map,
                                             &a->mxfp8_call.v_broadcast);
    if (status == SM120_OK && call->args->past_rows != 0) {
        status = attention_describe(device, &call->past_v, &call->past_v_shape, ATTENTION_BOX_COLUMNS, rows,
                                    &a->sequence.past_v_map, &past);
    }
    a->mxfp8_call.v_broadcast |= past << 2;
    return status;
}

/* Fill in the parameters of the attention kernel. A kernel without features reads only those before `sequence`. */
static sm120_status fill(const struct device *device, const struct plan *plan, sm120_address workspace,
                         struct launches *l, struct arguments *arguments) {
    const sm120_address q_elements = tiles_at(&plan->call->q, workspace, plan->areas.q_elements);
    const uint64_t of_q = (uint64_t)(plan->q_shape.batch * plan->q_shape.heads * plan->padded_q);
    const bool has_q = !attention_is_tiles(&plan->call->q);
    const sm120_address q_scales =
        has_q ? workspace + (uint64_t)plan->areas.q_scales : q_elements + of_q * plan->record->head_dim;
    const sm120_address k_tiles = tiles_at(&plan->call->k, workspace, plan->areas.k_tiles);
    const sm120_address v_tiles = tiles_at(&plan->call->v, workspace, plan->areas.v_tiles);
    const struct splits_parameters splits = attention_splits_at(&plan->split, workspace + (uint64_t)plan->areas.splits);
    const struct mxfp8_call_parameters call = attention_packed_call(plan->call, plan->padded_q / plan->record->q_rows);
    struct sequence_parameters sequence = {0};
    if (!plan->call->is_uniform) {
        attention_sequence(plan->call, &sequence);
    }
    if (plan->v == NULL) {
        struct attention_mixed_any_parameters *const a = &l->values.mixed;
        *a = (struct attention_mixed_any_parameters){.q_elements = q_elements,
                                                     .q_scales = q_scales,
                                                     .k_tiles = k_tiles,
                                                     .mxfp8_call = call,
                                                     .splits = splits,
                                                     .sequence = sequence};
        *arguments = ARGUMENTS(a);
        /* A query for the size makes no map, because the address of v may still be 0. */
        return !plan->is_question ? describe_values(device, plan, a) : SM120_OK;
    }
    if (plan->qk == &nvfp4) {
        struct attention_nvfp4_any_parameters *const a = &l->values.nvfp4;
        *a = (struct attention_nvfp4_any_parameters){
            .q_elements = q_elements,
            .q_scales = q_scales,
            .k_tiles = k_tiles,
            .v_tiles = v_tiles,
            .mean_scores = plan->is_smoothed ? workspace + (uint64_t)plan->areas.mean_scores : 0,
            .row_scores = plan->is_smoothed ? workspace + (uint64_t)plan->areas.row_scores : 0,
            .row_means = (uint32_t)plan->q_means,
            .mean_rows = (uint32_t)plan->mean_rows,
            .mxfp8_call = call,
            .splits = splits,
            .sequence = sequence};
        *arguments = ARGUMENTS(a);
        return SM120_OK;
    }
    struct attention_mxfp8_any_parameters *const a = &l->values.mxfp8;
    *a = (struct attention_mxfp8_any_parameters){.q_elements = q_elements,
                                                 .q_scales = q_scales,
                                                 .k_tiles = k_tiles,
                                                 .v_tiles = v_tiles,
                                                 .mxfp8_call = call,
                                                 .splits = splits,
                                                 .sequence = sequence};
    *arguments = ARGUMENTS(a);
    return SM120_OK;
}

/* Load the attention kernel, and the one that adds up its splits, and check their launches. */
static sm120_status prepare_attention(struct device *device, const struct plan *plan, sm120_address workspace,
                                      struct launches *l) {
    struct arguments arguments;
    sm120_status status = fill(device, plan, workspace, l, &arguments);
    if (status == SM120_OK) {
        status = attention_launch_of(&l->pointers, plan->call, plan->record, &plan->split, arguments, &l->launch);
    }
    status = status == SM120_OK ? builtin_load(device, plan->index, &l->kernel) : status;
    status = status == SM120_OK ? launch_check(l->kernel, &l->launch) : status;
    const sm120_address splits = workspace + (uint64_t)plan->areas.splits;
    return status == SM120_OK
               ? attention_splits_prepare(device, plan->call, plan->record, &plan->split, splits, &l->adds)
               : status;
}

/* The factor of q: scale's sign, which kernels do not see. */
static float factor_of(float scale) {
    return scale > 0.0f ? 1.0f : scale < 0.0f ? -1.0f : 0.0f;
}

/* What the quantizer of q, or of k, subtracts. Without smoothing no divisor may be 0. */
static struct quantizer_means_parameters means_of(const struct plan *plan, sm120_address workspace, bool is_q) {
    const sm120_attention_args *const args = plan->call->args;
    struct quantizer_means_parameters means = {.row_means = 1, .mean_rows = INT32_MAX, .group_heads = 1};
    if (!plan->is_smoothed) {
        return means;
    }
    means.means = workspace + (uint64_t)(is_q ? plan->areas.q_means : plan->areas.k_means);
    if (is_q) {
        means.key_means = workspace + (uint64_t)plan->areas.k_means;
        means.row_scores = workspace + (uint64_t)plan->areas.row_scores;
        means.row_means = (uint32_t)plan->q_means;
        means.mean_rows = (uint32_t)plan->mean_rows;
        means.group_heads = (uint32_t)(args->heads / args->kv_heads);
    }
    return means;
}

/* What a call smooths. */
static struct smoothing smoothing_of(const struct plan *plan, sm120_address workspace) {
    return (struct smoothing){
        .call = plan->call,
        .batch = plan->q_shape.batch,
        .q_rows = plan->q_shape.rows,
        .kv_rows = plan->k_shape.rows,
        .mean_rows = plan->mean_rows,
        .q_means_of_head = plan->q_means,
        .past_tiles = plan->padded_past / plan->record->kv_rows,
        .all_tiles = (plan->padded_past + plan->padded_kv) / plan->record->kv_rows,
        .q_means = workspace + (uint64_t)plan->areas.q_means,
        .k_means = workspace + (uint64_t)plan->areas.k_means,
        .row_scores = workspace + (uint64_t)plan->areas.row_scores,
        .mean_scores = workspace + (uint64_t)plan->areas.mean_scores,
        .factor = factor_of(plan->call->args->scale),
    };
}

/* The scales of a tensor that is MXFP8 already. */
static struct quantizer_blocks_parameters blocks_of(const struct attention *call, int operand) {
    const struct tensor *const x = &call->blocks[operand].tensor;
    return (struct quantizer_blocks_parameters){.blocks = x->address,
                                                .blocks_batch_stride = x->batch_stride,
                                                .blocks_head_stride = x->head_stride,
                                                .blocks_row_stride = x->row_stride};
}

/* The columns of v or past_v to quantise: a copy may be wider than the scales along rows. */
static int64_t columns_of(const struct attention *call, int operand, const struct shape *shape) {
    const struct blocks *const blocks = call->blocks + operand;
    return blocks->are_given && blocks->shape.head_dim < shape->head_dim ? blocks->shape.head_dim : shape->head_dim;
}

/* The quantisation of a tensor of keys or values into the tiles of all keys, from `first_row` on. */
static struct quantizer keys_of(const struct plan *plan, const struct form *form, int operand, const struct tensor *x,
                                int64_t head_dim, sm120_address tiles, struct quantizer_means_parameters means) {
    const sm120_attention_args *const args = plan->call->args;
    const bool is_past = operand == ATTENTION_PAST_K || operand == ATTENTION_PAST_V;
    const int64_t rows = is_past ? args->past_rows : args->kv_rows, first_row = is_past ? 0 : plan->padded_past;
    struct quantizer q = {.operation = form->operation,
                          .layout = operand == ATTENTION_K || operand == ATTENTION_PAST_K ? "k" : "v",
                          .width = mxfp8_half(plan->record->head_dim),
                          .x = x,
                          .shape = {args->batch, args->kv_heads, rows, head_dim},
                          .padded_rows = in_tiles(rows, plan->record->kv_rows),
                          .padded_columns = plan->record->head_dim,
                          .elements = tiles,
                          .factor = 1.0f,
                          .has_sequences = form->is_any || !plan->call->is_uniform,
                          .means = means,
                          .blocks = blocks_of(plan->call, operand)};
    q.sequences = (struct quantizer_sequences_parameters){
        .starts = is_past ? 0 : args->cu_seqlens_k,
        .lengths = is_past ? 0 : args->kv_lengths,
        .total = (int32_t)args->kv_total,
        .all_tiles = (uint32_t)((plan->padded_past + plan->padded_kv) / plan->record->kv_rows),
        .first_tile = (uint32_t)(first_row / plan->record->kv_rows),
    };
    return q;
}

/* Choose the kernels and check their launches without starting them. */
static sm120_status prepare(struct device *device, const struct plan *plan, sm120_address workspace,
                            struct launches *launches) {
    const struct attention *const call = plan->call;
    const sm120_attention_args *const args = call->args;
    const sm120_address k_tiles = workspace + (uint64_t)plan->areas.k_tiles;
    const sm120_address v_tiles = workspace + (uint64_t)plan->areas.v_tiles;
    const int64_t k_dim = call->k_shape.head_dim, v_dim = columns_of(call, ATTENTION_V, &call->v_shape);
    const int64_t past_k_dim = call->past_k_shape.head_dim;
    const int64_t past_v_dim = columns_of(call, ATTENTION_PAST_V, &call->past_v_shape);
    const bool has_past = args->past_rows != 0, has_v = plan->v != NULL;
    const struct form *const of_v = plan->v != NULL ? plan->v : plan->qk; /* the latter is not used */
    const struct quantizer q = {.operation = plan->qk->operation,
                                .layout = "q",
                                .width = mxfp8_half(plan->record->head_dim),
                                .x = &call->q,
                                .shape = plan->q_shape,
                                .padded_rows = plan->padded_q,
                                .padded_columns = plan->record->head_dim,
                                .elements = workspace + (uint64_t)plan->areas.q_elements,
                                .scales = workspace + (uint64_t)plan->areas.q_scales,
                                .factor = factor_of(args->scale),
                                .has_sequences = plan->qk->is_any || args->cu_seqlens_q != 0,
                                .sequences = {.starts = args->cu_seqlens_q, .total = (int32_t)args->q_total},
                                .means = means_of(plan, workspace, true),
                                .blocks = blocks_of(call, ATTENTION_Q)};
    const struct quantizer_means_parameters of_k = means_of(plan, workspace, false), none = {0};
    const struct {
        bool is_there;
        struct quantizer job;
    } list[] = {
        {!attention_is_tiles(&call->q), q},
        {!attention_is_tiles(&call->k), keys_of(plan, plan->qk, ATTENTION_K, &call->k, k_dim, k_tiles, of_k)},
        {has_v && !attention_is_tiles(&call->v), keys_of(plan, of_v, ATTENTION_V, &call->v, v_dim, v_tiles, none)},
        {has_past, keys_of(plan, plan->qk, ATTENTION_PAST_K, &call->past_k, past_k_dim, k_tiles, of_k)},
        {has_past && has_v, keys_of(plan, of_v, ATTENTION_PAST_V, &call->past_v, past_v_dim, v_tiles, none)},
    };
    sm120_status status = SM120_OK;
    launches->quantizer_count = 0;
    launches->smoothing.count = 0;
    if (plan->is_smoothed) {
        const struct smoothing smoothing = smoothing_of(plan, workspace);
        status = smoothing_prepare(device, &smoothing, &launches->smoothing);
    }
    for (size_t i = 0; i < sizeof list / sizeof *list && status == SM120_OK; ++i) {
        if (list[i].is_there) {
            status = quantizer_prepare(device, &list[i].job, args->stream,
                                       &launches->quantizers[launches->quantizer_count++]);
        }
    }
    return status == SM120_OK ? prepare_attention(device, plan, workspace, launches) : status;
}

/* Start the launches in order; each one reads the results of the earlier ones. */
static sm120_status start(const struct launches *launches) {
    sm120_status status = smoothing_start(&launches->smoothing);
    for (int i = 0; i < launches->quantizer_count && status == SM120_OK; ++i) {
        status = launch_start(launches->quantizers[i].kernel, &launches->quantizers[i].launch);
    }
    status = status == SM120_OK ? launch_start(launches->kernel, &launches->launch) : status;
    return status == SM120_OK ? attention_splits_start(&launches->adds) : status;
}

/* A call that asks for the size loads the kernels too, so that the next one can be captured in a graph. */
sm120_status attention_mxfp8(struct device *device, const struct attention *call, const struct workspace *workspace) {
    struct plan plan;
    struct launches launches;
    sm120_status status = make_plan(device, call, &plan);
    plan.is_question = workspace->is_question;
    if (status == SM120_OK && !workspace->is_question) {
        status = attention_check_places(device, call, workspace, plan.areas.end);
    }
    status = status == SM120_OK ? prepare(device, &plan, workspace->address, &launches) : status;
    if (status == SM120_OK && workspace->is_question) {
        *workspace->answer = (size_t)plan.areas.end;
        return SM120_OK;
    }
    return status == SM120_OK ? start(&launches) : status;
}
