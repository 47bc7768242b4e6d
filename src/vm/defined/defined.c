/* The watcher that tracks undefined values: its state, and the rule for each instruction. */
#include "vm/defined/defined.h"

#include <stdlib.h>
#include <string.h>

#include "driver/tensor_map_rules.h"
#include "platform/aligned.h"
#include "platform/thread.h"
#include "vm/execute/async.h"
#include "vm/execute/atomic.h"
#include "vm/execute/barrier.h"
#include "vm/execute/call.h"
#include "vm/execute/collect.h"
#include "vm/execute/control.h"
#include "vm/execute/heap.h"
#include "vm/execute/lanes.h"
#include "vm/execute/mbarrier.h"
#include "vm/execute/pool.h"
#include "vm/execute/print.h"
#include "vm/execute/tensor.h"
#include "vm/execute/tma.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"

/* ---- state ---------------------------------------------------------------------------------------------------- */

void defined_free(struct defined *d) {
    if (d == NULL) {
        return;
    }
    regions_free(d);
    free(d->rule);
    aligned_release(d->memory);
    free(d->birth);
    free(d->found);
    free(d->found_stored);
    free(d);
}

/* Take a piece of the memory. If *at is NULL, only add up the size. */
static void *cut(char **at, size_t *total, size_t bytes) {
    void *const piece = *at;
    bytes = (bytes + 63) / 64 * 64;
    *total += bytes;
    *at = *at != NULL ? *at + bytes : NULL;
    return piece;
}

/* Lay out the shadows of registers and memory. Return their total size in bytes. */
static size_t lay_out(struct defined *d, const struct cta *cta, char *at) {
    const struct CUfunc_st *f = cta->launch->function;
    const size_t rows = f->register_bytes / 128 + 4, local = (size_t)f->local_bytes * WARP + 64;
    size_t total = 0;
    for (uint32_t k = 0; k < cta->warps; ++k) {
        struct defined_warp *u = &d->warp[k];
        u->some = cut(&at, &total, rows * sizeof *u->some);
        u->whole = cut(&at, &total, rows * sizeof *u->whole);
        u->bits = cut(&at, &total, rows * 128);
        u->birth = cut(&at, &total, rows * WARP * sizeof *u->birth);
        u->tag = cut(&at, &total, rows * WARP * sizeof *u->tag);
        u->predicate = cut(&at, &total, f->predicates * sizeof *u->predicate);
        u->predicate_birth = cut(&at, &total, f->predicates * WARP * sizeof *u->predicate_birth);
        u->local = cut(&at, &total, local);
        u->local_origin = cut(&at, &total, local);
    }
    d->shared = cut(&at, &total, cta->shared_bytes + 64u);
    d->shared_origin = cut(&at, &total, cta->shared_bytes + 64u);
    return total;
}

/* Mark everything of a warp undefined, except the hardware registers. */
static void forget(struct defined_warp *u, const struct CUfunc_st *f) {
    const size_t rows = f->register_bytes / 128 + 4, local = (size_t)f->local_bytes * WARP;
    memset(u->some, 0xff, rows * sizeof *u->some);
    memset(u->whole, 0xff, rows * sizeof *u->whole);
    memset(u->predicate, 0xff, f->predicates * sizeof *u->predicate);
    memset(u->predicate_birth, 0, f->predicates * WARP * sizeof *u->predicate_birth);
    memset(u->local, 0, local);
    memset(u->local_origin, 0, local);
    u->predicate[0] = 0;
    for (uint32_t k = 0; k < f->special_count; ++k) {
        define(u, f->specials[k].slot, FULL);
    }
}

/* ---- instructions with rules of their own --------------------------------------------------------------------- */

/* Check the undefined guard of an instruction that branches or has effects outside registers. */
static enum step check_guard(struct defined *d, const struct event *e, uint32_t effect) {
    return effect == EFFECT_BRANCH
               ? defined_branch(d, e)
               : decided_by_predicate(d, e, "whether this instruction runs", e->inst->guard, e->active);
}

/* Mark d as defined. */
static enum step writes_d(struct defined *d, const struct event *e) {
    if (e->inst->d != UINT32_MAX) {
        define(defined_of(d, e), e->inst->d, e->mask);
    }
    return STEP_NEXT;
}

/* Mark p as defined. */
static enum step writes_p(struct defined *d, const struct event *e) {
    define_predicate(defined_of(d, e), e->inst->p, e->mask);
    return STEP_NEXT;
}

static enum step barrier_operands(struct defined *d, const struct event *e) {
    const struct inst *i = e->inst;
    if (decided_by(d, e, "the number of this barrier", i->a) == STEP_FAULT) {
        return STEP_FAULT;
    }
    if (i->count != 0 && decided_by(d, e, "the count of this barrier", i->b) == STEP_FAULT) {
        return STEP_FAULT;
    }
    return i->kind > 1 ? decided_by_predicate(d, e, "the result of this barrier", i->r, e->mask) : STEP_NEXT;
}

static enum step barrier_result(struct defined *d, const struct event *e) {
    return e->inst->kind == 2 ? writes_d(d, e) : e->inst->kind > 2 ? writes_p(d, e) : STEP_NEXT;
}

static enum step members(struct defined *d, const struct event *e) {
    return decided_by(d, e, "the member mask", e->inst->c);
}

static enum step branch_index(struct defined *d, const struct event *e) {
    return decided_by(d, e, "the target of this branch", e->inst->a);
}

/* Check the sources of an mbarrier operation besides its address: b, c or both. */
static enum step mbarrier_operands(struct defined *d, const struct event *e) {
    const struct inst *i = e->inst;
    if (defined_address(d, e) == STEP_FAULT) {
        return STEP_FAULT;
    }
    if (i->run != mbarrier_tx && i->run != mbarrier_inval &&
        decided_by(d, e, i->run == mbarrier_wait ? "the phase of this wait" : "the count of this mbarrier", i->b) ==
            STEP_FAULT) {
        return STEP_FAULT;
    }
    return i->run == mbarrier_tx || (i->run == mbarrier_arrive && (i->kind & 2) != 0)
               ? decided_by(d, e, "the transaction count", i->c)
               : STEP_NEXT;
}

static enum step bulk_operands(struct defined *d, const struct event *e) {
    const struct inst *i = e->inst;
    if (decided_by(d, e, "the shared address of this copy", i->a) == STEP_FAULT ||
        decided_by(d, e, "the global address of this copy", i->b) == STEP_FAULT ||
        decided_by(d, e, "the size of this copy", i->c) == STEP_FAULT) {
        return STEP_FAULT;
    }
    return i->kind == ASYNC_LOAD || i->kind == ASYNC_INSIDE ? decided_by(d, e, "the mbarrier of this copy", i->e)
                                                            : STEP_NEXT;
}

/* Check the addresses of st.async, red.async and clusterlaunchcontrol.try_cancel. */
static enum step word_operands(struct defined *d, const struct event *e) {
    const uint32_t *more = e->inst->more;
    if (decided_by(d, e, "the address of this store", e->inst->a) == STEP_FAULT) {
        return STEP_FAULT;
    }
    return decided_by(d, e, "the mbarrier of this store", more[4]);
}

static enum step copy_operands(struct defined *d, const struct event *e) {
    const struct inst *i = e->inst;
    if (decided_by(d, e, "the shared address of this copy", i->a) == STEP_FAULT ||
        decided_by(d, e, "the global address of this copy", i->b) == STEP_FAULT) {
        return STEP_FAULT;
    }
    return decided_by(d, e, "the size of this copy", i->e);
}

static enum step matrix_operands(struct defined *d, const struct event *e) {
    if (decided_by(d, e, "the address of this matrix", e->inst->a) == STEP_FAULT) {
        return STEP_FAULT;
    }
    return decided_by(d, e, "the stride of this matrix", e->inst->b);
}

static enum step print_operands(struct defined *d, const struct event *e) {
    if (decided_by(d, e, "the format", e->inst->a) == STEP_FAULT) {
        return STEP_FAULT;
    }
    return decided_by(d, e, "the address of the arguments", e->inst->b);
}

/* malloc and free: check the size or the address. */
static enum step heap_operand(struct defined *d, const struct event *e) {
    return decided_by(d, e, e->inst->run == heap_free ? "the address to free" : "the size of this malloc", e->inst->a);
}

/* Rule for other instructions: every register that the statement reads must be defined, and every result is defined. */
static enum step unknown_before(struct defined *d, const struct event *e) {
    const struct place *at = &e->warp->function->places[e->pc];
    for (uint32_t k = 0; k < at->uses; ++k) {
        const struct use *use = &at->use[k];
        if (use->is_write != 0) {
            continue;
        }
        if ((use->type == T_PRED ? decided_by_predicate(d, e, "this instruction", use->slot, e->mask)
                                 : decided_by(d, e, "this instruction", use->slot)) == STEP_FAULT) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

static enum step unknown_after(struct defined *d, const struct event *e) {
    const struct place *at = &e->warp->function->places[e->pc];
    for (uint32_t k = 0; k < at->uses; ++k) {
        const struct use *use = &at->use[k];
        if (use->is_write != 0 && use->type == T_PRED) {
            define_predicate(defined_of(d, e), use->slot, e->mask);
        } else if (use->is_write != 0) {
            define(defined_of(d, e), use->slot, e->mask);
        }
        if (use->is_write != 0 && use->type == T_B128) {
            define(defined_of(d, e), use->slot + 256, e->mask);
        }
    }
    return STEP_NEXT;
}

/* tensormap.replace: the map becomes defined. */
static enum step replaced_map(struct defined *d, const struct event *e) {
    (void)d;
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const uint64_t address = address_lane(e->warp, e->inst, lane);
        const bool is_shared = e->inst->space == SPACE_SHARED ||
                               (e->inst->space == SPACE_GENERIC && address_space(address) == SPACE_SHARED);
        const struct async_op filled = {
            .kind = ASYNC_LOAD, .lane = lane, .shared = (uint32_t)address, .bytes = TENSOR_MAP_BYTES};
        if (is_shared && !defined_landed(e->warp, &filled)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* st.bulk: check address and size. The bytes that it clears become defined. */
static enum step fill_operands(struct defined *d, const struct event *e) {
    if (decided_by(d, e, "the address of this store", e->inst->a) == STEP_FAULT) {
        return STEP_FAULT;
    }
    return decided_by(d, e, "the size of this store", e->inst->b);
}

static enum step filled(struct defined *d, const struct event *e) {
    const struct inst *i = e->inst;
    (void)d;
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const struct async_op zeros = {.kind = ASYNC_LOAD,
                                       .lane = lane,
                                       .shared = (uint32_t)address_lane(e->warp, i, lane),
                                       .bytes =
                                           ((const uint32_t *)source(e->warp, i->b))[i->kind != 0 ? 2 * lane : lane]};
        if (!defined_landed(e->warp, &zeros)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* tensormap.cp_fenceproxy: copy the shadow of the map from shared to global memory. */
static enum step copied_map(struct defined *d, const struct event *e) {
    const struct inst *i = e->inst;
    const uint32_t lane = lowest_bit(e->mask);
    const uint64_t from = address_register(e->warp, i->b, i->flags & 2u, lane) + i->target;
    const struct async_op copy = {.kind = ASYNC_STORE,
                                  .lane = lane,
                                  .shared = (uint32_t)from,
                                  .global = address_lane(e->warp, i, lane),
                                  .bytes = TENSOR_MAP_BYTES};
    (void)d;
    return defined_landed(e->warp, &copy) ? STEP_NEXT : STEP_FAULT;
}

/* ---- choosing a rule ------------------------------------------------------------------------------------------ */

struct entry {
    handler *run;
    struct rule rule;
};

enum { PLAIN = EFFECT_REGISTERS, OUTSIDE = EFFECT_OUTSIDE, BRANCH = EFFECT_BRANCH };

static const struct entry others[] = {
    {control_setp, {defined_logic, NULL, 0, PLAIN}},
    {control_clock, {NULL, writes_d, 0, PLAIN}},
    {control_nop, {NULL, NULL, 0, EFFECT_NONE}},
    {control_bra, {NULL, NULL, 0, BRANCH}},
    {control_exit, {NULL, NULL, 0, BRANCH}},
    {control_trap, {NULL, NULL, 0, OUTSIDE}},
    {control_brx, {branch_index, NULL, 0, BRANCH}},
    {control_bar, {barrier_operands, barrier_result, 0, OUTSIDE}},
    {control_cluster, {NULL, NULL, 0, OUTSIDE}},
    {pool_set, {NULL, NULL, 0, OUTSIDE}},
    {control_discard, {defined_address, defined_discarded, 0, OUTSIDE}},
    {async_prefetch, {unknown_before, NULL, 0, OUTSIDE}},
    {control_barwarp, {members, NULL, 0, OUTSIDE}},
    {control_fence, {NULL, NULL, 0, OUTSIDE}},
    {control_mapa, {unknown_before, unknown_after, 0, PLAIN}},
    {call_direct, {NULL, defined_called, 0, BRANCH}},
    {call_indirect, {defined_address, defined_called, 0, BRANCH}},
    {call_return, {NULL, defined_returned, 0, BRANCH}},
    {call_refused, {NULL, NULL, 0, OUTSIDE}},
    {print_format, {print_operands, writes_d, 0, OUTSIDE}},
    {print_assertion, {NULL, NULL, 0, OUTSIDE}},
    {heap_allocate, {heap_operand, writes_d, 0, OUTSIDE}},
    {heap_free, {heap_operand, NULL, 0, OUTSIDE}},
    {atomic_run, {defined_operand, defined_atomic, 0, OUTSIDE}},
    {atomic_run_wide, {defined_address, defined_atomic, 0, OUTSIDE}},
    {mbarrier_init, {mbarrier_operands, defined_initialised, 0, OUTSIDE}},
    {mbarrier_inval, {mbarrier_operands, NULL, 0, OUTSIDE}},
    {mbarrier_arrive, {mbarrier_operands, writes_d, 0, OUTSIDE}},
    {mbarrier_wait, {mbarrier_operands, writes_p, 0, OUTSIDE}},
    {mbarrier_tx, {mbarrier_operands, NULL, 0, OUTSIDE}},
    {async_bulk, {bulk_operands, NULL, 0, OUTSIDE}},
    {async_word, {word_operands, NULL, 0, OUTSIDE}},
    {async_cancel, {word_operands, NULL, 0, OUTSIDE}},
    {async_canceled, {unknown_before, unknown_after, 0, OUTSIDE}},
    {tma_copy, {unknown_before, NULL, 0, OUTSIDE}},
    {tma_prefetch, {unknown_before, NULL, 0, OUTSIDE}},
    {tma_replace, {unknown_before, replaced_map, 0, OUTSIDE}},
    {tma_copy_map, {unknown_before, copied_map, 0, OUTSIDE}},
    {tma_acquire, {unknown_before, NULL, 0, OUTSIDE}},
    {tma_release, {NULL, NULL, 0, OUTSIDE}},
    {async_bulk_commit, {NULL, NULL, 0, OUTSIDE}},
    {async_bulk_wait, {NULL, NULL, 0, OUTSIDE}},
    {async_copy, {copy_operands, NULL, 0, OUTSIDE}},
    {async_commit, {NULL, NULL, 0, OUTSIDE}},
    {async_wait, {NULL, NULL, 0, OUTSIDE}},
    {async_arrive, {defined_address, NULL, 0, OUTSIDE}},
    {collect_shfl, {defined_shfl, defined_collected, 0, OUTSIDE}},
    {collect_vote, {defined_vote, defined_collected, 0, OUTSIDE}},
    {collect_match, {defined_together, defined_collected, 0, OUTSIDE}},
    {collect_redux, {defined_together, defined_collected, 0, OUTSIDE}},
    {collect_elect, {defined_elect, defined_collected, 0, OUTSIDE}},
    {collect_activemask, {NULL, writes_d, 0, OUTSIDE}},
    {collect_movmatrix, {NULL, defined_movmatrix, 0, OUTSIDE}},
    {tensor_wmma, {matrix_operands, NULL, 0, OUTSIDE}},
    {tensor_mma, {defined_selectors, defined_mma, 0, OUTSIDE}},
    {tensor_mma_double, {NULL, defined_mma_double, 0, OUTSIDE}},
};

static const struct rule accesses[ACCESS_COUNT] = {
    [ACCESS_LOAD] = {defined_address, defined_load, 0, PLAIN},
    [ACCESS_LOAD_STRONG] = {defined_address, defined_load, 0, PLAIN},
    [ACCESS_STORE] = {defined_address, defined_store, 0, OUTSIDE},
    [ACCESS_PARAMETER] = {NULL, defined_parameter, 0, PLAIN},
    [ACCESS_LDMATRIX] = {defined_rows, defined_ldmatrix, 0, OUTSIDE},
    [ACCESS_LDMATRIX_TRANS] = {defined_rows, defined_ldmatrix_trans, 0, OUTSIDE},
    [ACCESS_LDMATRIX_B8] = {defined_rows, defined_ldmatrix_b8, 0, OUTSIDE},
    [ACCESS_LDMATRIX_PACKED] = {defined_rows, defined_ldmatrix, 0, OUTSIDE},
    [ACCESS_STMATRIX] = {defined_rows, defined_stmatrix, 0, OUTSIDE},
    [ACCESS_STMATRIX_B8] = {defined_rows, defined_stmatrix_b8, 0, OUTSIDE},
    [ACCESS_FILL] = {fill_operands, filled, 0, OUTSIDE},
};

static struct entry table[(size_t)LANE_COUNT + ACCESS_COUNT + sizeof others / sizeof *others];
static uint32_t entries;
static struct once made = ONCE_INITIALIZER;

static int compare(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)((const struct entry *)a)->run, y = (uintptr_t)((const struct entry *)b)->run;
    return x < y ? -1 : x > y;
}

/* Sort all rules by handler. */
static void make_table(void) {
    for (uint32_t k = 0; k < LANE_COUNT; ++k) {
        table[entries++] = (struct entry){lanes_table()[k], {defined_lane_part(k), NULL, (uint16_t)k, PLAIN}};
    }
    for (uint32_t k = 0; k < ACCESS_COUNT; ++k) {
        if (accesses[k].after != NULL) {
            table[entries++] = (struct entry){access_table()[k], accesses[k]};
        }
    }
    for (size_t k = 0; k < sizeof others / sizeof *others; ++k) {
        table[entries++] = others[k];
    }
    qsort(table, entries, sizeof *table, compare);
}

static struct rule rule_of(const struct inst *i) {
    const struct entry key = {.run = i->run == control_aligned ? i->next : i->run};
    const struct entry *found = bsearch(&key, table, entries, sizeof *table, compare);
    return found != NULL ? found->rule : (struct rule){unknown_before, unknown_after, 0, EFFECT_OUTSIDE};
}

/* ---- the watcher ---------------------------------------------------------------------------------------------- */

/* Allocate the shadows for the CTAs of a launch. Return false when out of memory. */
static bool prepare(struct defined *d, const struct cta *cta) {
    const struct CUfunc_st *f = cta->launch->function;
    const size_t bytes = lay_out(d, cta, NULL);
    if (bytes > d->memory_bytes) {
        aligned_release(d->memory);
        d->memory = aligned_allocate(64, bytes);
        d->memory_bytes = d->memory != NULL ? bytes : 0;
    }
    regions_free(d);
    free(d->rule);
    d->rule = malloc((f->length + 1u) * sizeof *d->rule);
    if (d->memory == NULL || d->rule == NULL || !births_start(d)) {
        return false;
    }
    lay_out(d, cta, d->memory);
    once_run(&made, make_table);
    for (uint32_t k = 0; k < f->length; ++k) {
        d->rule[k] = rule_of(&f->code[k]);
    }
    d->function = f;
    d->device = cta->launch->device;
    d->launch = cta->launch->number;
    return true;
}

/* Start a CTA with everything undefined. */
static bool start(struct cta *cta) {
    struct defined *d = cta->defined != NULL ? cta->defined : calloc(1, sizeof *d);
    const struct launch *launch = cta->launch;
    cta->defined = d;
    const bool is_known = d != NULL && d->launch == launch->number && d->device == launch->device;
    if (d == NULL || (!is_known && !prepare(d, cta)) || !births_start(d)) {
        if (d != NULL) {
            d->launch = 0;
        }
        fault_cta(cta, CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
        return false;
    }
    d->stored = false;
    regions_start(d);
    memset(d->shared, 0, cta->shared_bytes);
    memset(d->shared_origin, 0, cta->shared_bytes + 4u);
    for (uint32_t k = 0; k < cta->warps; ++k) {
        forget(&d->warp[k], launch->function);
    }
    return true;
}

static enum step before(const struct event *e) {
    struct defined *d = e->warp->cta->defined;
    const struct rule *rule = &d->rule[e->pc];
    if (UNLIKELY(d->branched[e->warp->index])) {
        defined_joined(d, e);
    }
    d->doubtful = e->inst->guard != 0 ? defined_of(d, e)->predicate[e->inst->guard] & e->active : 0;
    if (UNLIKELY(d->doubtful) && rule->effect > EFFECT_REGISTERS && check_guard(d, e, rule->effect) == STEP_FAULT) {
        return STEP_FAULT;
    }
    return rule->before != NULL && e->mask != 0 ? rule->before(d, e) : STEP_NEXT;
}

/* Handle a register instruction whose guard is undefined in some lanes: its results are undefined in those lanes,
 * whether or not it wrote them. */
static void doubt(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    const struct rule *rule = &d->rule[e->pc];
    const bool is_load = rule->after == defined_load || rule->after == defined_parameter;
    for (uint32_t rest = d->doubtful; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), birth = birth_of_predicate(d, e, i->guard, lane);
        for (uint32_t k = 0; is_load && k < i->count; ++k) {
            set_bits(u, ((const uint32_t *)i->more)[k], lane, i->size, i->size == 8 ? UINT64_MAX : FULL, birth);
        }
        if (rule->after == writes_d) {
            set_bits(u, i->d, lane, 8, UINT64_MAX, birth);
        }
        if (rule->before == defined_logic) {
            undefine_predicate(u, i->p, 1u << lane, birth);
        }
    }
    if (!is_load && rule->after != writes_d && rule->before != defined_logic) {
        defined_lane_doubt(d, e);
    }
}

static enum step after(const struct event *e) {
    struct defined *d = e->warp->cta->defined;
    const struct rule *rule = &d->rule[e->pc];
    if (e->step == STEP_AGAIN) {
        return STEP_NEXT;
    }
    if (rule->after != NULL && e->mask != 0 && rule->after(d, e) == STEP_FAULT) {
        return STEP_FAULT;
    }
    if (UNLIKELY(d->doubtful) && rule->effect == EFFECT_REGISTERS) {
        doubt(d, e);
    }
    return STEP_NEXT;
}

const struct watcher defined_watcher = {.start = start, .before = before, .after = after, .lands = defined_landed};
