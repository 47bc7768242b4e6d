/* Asynchronous copies. Each CTA has a queue of copies, performed at a later time in any order that PTX allows: the
 * cp.async of a warp in order, bulk copies in any order. */
#include "vm/execute/async.h"

#include <stdlib.h>
#include <string.h>

#include "vm/check/check.h"
#include "vm/execute/atomic.h"
#include "vm/execute/mbarrier.h"
#include "vm/execute/tma.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/mbarrier.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"
#include "vm/machine/tma_box.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"

/* Clear the queue at the start of a CTA. */
void async_init(struct cta *cta) {
    cta->asyncs = 0;
    for (uint32_t k = 0; k < cta->box_space; ++k) {
        cta->boxes[k].in_use = false;
    }
}

/* Append an operation to the queue; NULL after a fault. */
static struct async_op *push(struct warp *w) {
    struct cta *cta = w->cta;
    if (cta->asyncs == cta->async_space) {
        const uint32_t space = cta->async_space != 0 ? 2 * cta->async_space : 64;
        struct async_op *grown = realloc(cta->async, space * sizeof *grown);
        if (grown == NULL) {
            fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, WARP, "out of memory");
            return NULL;
        }
        cta->async = grown;
        cta->async_space = space;
    }
    struct async_op *op = &cta->async[cta->asyncs++];
    *op = (struct async_op){.warp = w->index, .pc = w->pc};
    return op;
}

/* ---- bulk copies --------------------------------------------------------------------------------------------- */

/* Return the host pointer of the source of a bulk copy between CTAs; NULL after a fault. */
static const uint8_t *own_source(struct warp *w, uint32_t from, uint32_t bytes, uint32_t lane) {
    const uint8_t *const at = memory_shared(w, from, bytes, 16, lane, "bulk copy");
    if (at != NULL && from - w->shared_start >= w->cta->cta_shared) {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
                 "a bulk copy from shared address 0x%x of another CTA; expected a source in this CTA's memory", from);
        return NULL;
    }
    return at;
}

/* cp.async.bulk and cp.reduce.async.bulk: check both addresses now, copy later. */
enum step async_bulk(struct warp *w, const struct inst *i, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), bytes = ((const uint32_t *)source(w, i->c))[lane];
        const uint32_t shared = address_shared(w, i, lane);
        const bool is_inside = i->kind == ASYNC_INSIDE, fills = is_inside || i->kind == ASYNC_LOAD;
        uint64_t global = is_inside ? 0 : address_global(w, i, lane);
        uint32_t barrier = 0, from = 0, ranks = 0;
        if (bytes % 16 != 0) {
            return fault_at(w, CUDA_ERROR_MISALIGNED_ADDRESS, lane,
                            "a bulk copy with size %u; expected a multiple of 16", bytes);
        }
        if (is_inside) {
            from = (uint32_t)(address_register(w, i->b, i->size == 4, lane) + i->target);
            global = (uintptr_t)own_source(w, from, bytes, lane);
        }
        if ((is_inside && global == 0) || memory_shared(w, shared, bytes, 16, lane, "bulk copy") == NULL ||
            (!is_inside && memory_global(w, global, bytes, 16, lane, "bulk copy") == NULL)) {
            return STEP_FAULT;
        }
        if (fills) {
            const uint32_t *more = i->more;
            barrier = (uint32_t)address_register(w, i->e, (int)more[1], lane) + more[0];
            ranks = more[2] != 0 ? ((const uint32_t *)source(w, more[2]))[lane] & 0xffffu : 0;
            if (mbarrier_get(w, barrier, lane, "bulk copy") == NULL ||
                (more[2] != 0 && !async_ranks_exist(w, ranks, lane))) {
                return STEP_FAULT;
            }
        }
        const struct async_op op = {.kind = i->kind,
                                    .op = i->negate,
                                    .type = i->spare,
                                    .lane = lane,
                                    .shared = shared,
                                    .global = global,
                                    .bytes = bytes,
                                    .mbarrier = barrier,
                                    .from = from};
        if (!async_start(w, &op, NULL, ranks)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* cp.async.bulk.prefetch: a hint, but its address and size must be multiples of 16. */
enum step async_prefetch(struct warp *w, const struct inst *i, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), bytes = ((const uint32_t *)source(w, i->c))[lane];
        const uint64_t address = address_lane(w, i, lane);
        if (bytes % 16 != 0 || address % 16 != 0) {
            return fault_at(w, CUDA_ERROR_MISALIGNED_ADDRESS, lane,
                            "a bulk prefetch of %u bytes at 0x%llx; expected multiples of 16", bytes,
                            (unsigned long long)address);
        }
    }
    return STEP_NEXT;
}

/* Return the index of a free box record, or UINT32_MAX after a fault. */
static uint32_t take_box(struct warp *w) {
    struct cta *cta = w->cta;
    for (uint32_t k = 0; k < cta->box_space; ++k) {
        if (!cta->boxes[k].in_use) {
            return k;
        }
    }
    const uint32_t old = cta->box_space, space = old != 0 ? 2 * old : 16;
    struct tma_box *grown = realloc(cta->boxes, space * sizeof *grown);
    if (grown == NULL) {
        fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, WARP, "out of memory");
        return UINT32_MAX;
    }
    cta->boxes = grown;
    cta->box_space = space;
    for (uint32_t k = old; k < space; ++k) {
        grown[k].in_use = false;
    }
    return old;
}

/* Append one operation. Return false after a fault. */
static bool start(struct warp *w, const struct async_op *wanted, const struct tma_box *box) {
    const uint32_t record = box != NULL ? take_box(w) : 0;
    struct async_op *op = record == UINT32_MAX ? NULL : push(w);
    if (op == NULL) {
        return false;
    }
    *op = *wanted;
    op->warp = w->index;
    op->pc = w->pc;
    op->group = w->bulk_group[op->lane];
    op->copy = record;
    if (box != NULL) {
        w->cta->boxes[record] = *box;
    }
    return w->cta->shadow == NULL || check_bulk(w, op);
}

bool async_ranks_exist(struct warp *w, uint32_t ranks, uint32_t lane) {
    if (ranks != 0 && ranks >> w->cta->ranks == 0) {
        return true;
    }
    fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
             "multicast to the CTAs of mask 0x%x in a cluster of %u CTAs; expected some of 0x%x", ranks, w->cta->ranks,
             (1u << w->cta->ranks) - 1);
    return false;
}

bool async_start(struct warp *w, const struct async_op *wanted, const struct tma_box *box, uint32_t ranks) {
    if (ranks == 0) {
        return start(w, wanted, box);
    }
    const uint32_t span = w->cta->launch->span, own = span != 0 ? (wanted->shared - SHARED_BASE) / span : 0;
    for (uint32_t rest = ranks; rest != 0; rest &= rest - 1) {
        const uint32_t distance = (lowest_bit(rest) - own) * span; /* modulo 2^32 */
        struct async_op op = *wanted;
        op.shared += distance;
        op.mbarrier += distance;
        if (memory_shared(w, op.shared, op.is_tensor != 0 ? 0 : op.bytes, 16, op.lane, "multicast") == NULL ||
            mbarrier_get(w, op.mbarrier, op.lane, "multicast") == NULL || !start(w, &op, box)) {
            return false;
        }
    }
    return true;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* st.async and red.async (spare: the type; negate: 1 + the operation) to shared memory: i->more lists the registers of
 * the elements, then the base, offset and width of the mbarrier's address. */
enum step async_word(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *more = i->more;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), bytes = (uint32_t)i->size * i->count;
        struct async_op op = {.kind = ASYNC_WORD,
                              .op = i->negate,
                              .type = i->spare,
                              .lane = lane,
                              .shared = address_shared(w, i, lane),
                              .bytes = bytes};
        const uint64_t barrier = address_register(w, more[4], (int)more[6], lane) + more[5];
        op.mbarrier = i->space == SPACE_GENERIC && (barrier & WINDOW_MASK) != SHARED_WINDOW ? 0 : (uint32_t)barrier;
        for (uint32_t k = 0; k < i->count; ++k) {
            memcpy((uint8_t *)op.value + k * i->size, (const uint8_t *)source(w, more[k]) + lane * i->size, i->size);
        }
        if (memory_shared(w, op.shared, bytes, bytes, lane, "asynchronous store") == NULL ||
            mbarrier_get(w, op.mbarrier, lane, "asynchronous store") == NULL || !start(w, &op, NULL)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* clusterlaunchcontrol.try_cancel: take the next cluster that has not started, if there is one, and write its first
 * CTA to 16 bytes of shared memory: x in bits 0 to 31, y in 32 to 47, z in 48 to 63, and bit 64 is set, as ptxas reads
 * them for the SM120. The request may fail in any case; with checks it fails at random. kind: multicast
 * to all CTAs. */
enum step async_cancel(struct warp *w, const struct inst *i, uint32_t mask) {
    struct cta *cta = w->cta;
    struct launch *launch = cta->launch;
    const uint32_t *more = i->more;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        struct async_op op = {
            .kind = ASYNC_WORD, .lane = lane, .shared = address_shared(w, i, lane), .bytes = sizeof op.value};
        const uint64_t barrier = address_register(w, more[4], (int)more[6], lane) + more[5];
        op.mbarrier = i->space == SPACE_GENERIC && (barrier & WINDOW_MASK) != SHARED_WINDOW ? 0 : (uint32_t)barrier;
        if (memory_shared(w, op.shared, op.bytes, 16, lane, "clusterlaunchcontrol.try_cancel") == NULL ||
            mbarrier_get(w, op.mbarrier, lane, "clusterlaunchcontrol.try_cancel") == NULL) {
            return STEP_FAULT;
        }
        if (cta->is_refused) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                            "clusterlaunchcontrol.try_cancel after query_cancel told that an earlier one had found "
                            "no cluster; expected none");
        }
        const bool denied = launch->checks != CHECKS_OFF && (cta_random(cta) & 7u) == 0;
        const uint64_t turn = denied ? launch->clusters : atomic_fetch_add(&launch->next, 1);
        if (turn < launch->clusters) {
            uint32_t id[3];
            launch_place(launch, launch_cluster_at(launch, turn), 0, id);
            op.value[0] = id[0] | (uint64_t)id[1] << 32 | (uint64_t)id[2] << 48;
            op.value[1] = 1;
        }
        if (!async_start(w, &op, NULL, i->kind != 0 ? (1u << cta->ranks) - 1 : 0)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* clusterlaunchcontrol.query_cancel.is_canceled. */
enum step async_canceled(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint64_t *high = (const uint64_t *)source(w, i->a) + WARP;
    uint32_t found = 0;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        found |= (uint32_t)(high[lowest_bit(rest)] & 1u) << lowest_bit(rest);
    }
    w->cta->is_refused |= found != mask;
    if (i->p != 0) {
        w->predicates[i->p] = (w->predicates[i->p] & ~mask) | found;
    }
    return STEP_NEXT;
}

/* cp.async.bulk.commit_group */
enum step async_bulk_commit(struct warp *w, const struct inst *i, uint32_t mask) {
    (void)i;
    for (uint32_t l = 0; l < WARP; ++l) {
        w->bulk_group[l] += mask >> l & 1u;
    }
    return STEP_NEXT;
}

/* Return whether all but the last `allowed` bulk groups of these lanes have completed. */
bool async_bulk_done(const struct warp *w, uint32_t mask, uint32_t allowed) {
    const struct cta *cta = w->cta;
    for (uint32_t k = 0; k < cta->asyncs; ++k) {
        const struct async_op *op = &cta->async[k];
        if (op->kind != ASYNC_STORE && op->kind != ASYNC_REDUCE) {
            continue;
        }
        if (op->warp == w->index && (mask >> op->lane & 1u) != 0 && op->group + allowed < w->bulk_group[op->lane]) {
            return false;
        }
    }
    return true;
}

/* cp.async.bulk.wait_group{.read} */
enum step async_bulk_wait(struct warp *w, const struct inst *i, uint32_t mask) {
    if (async_bulk_done(w, mask, (uint32_t)i->offset)) {
        if (w->cta->shadow != NULL) {
            check_bulk_waited(w, mask, (uint32_t)i->offset, i->kind);
        }
        return STEP_NEXT;
    }
    warp_leave_behind(w, mask);
    struct split *s = &w->split[w->current];
    s->wait = WAIT_BULK;
    s->detail = (uint32_t)i->offset;
    return STEP_AGAIN;
}

/* ---- cp.async ------------------------------------------------------------------------------------------------ */

/* Return the index of a free record of lanes, or UINT32_MAX after a fault. */
static uint32_t take_lanes(struct warp *w) {
    struct cta *cta = w->cta;
    for (uint32_t k = 0; k < cta->async_lanes_space; ++k) {
        if (cta->async_lanes[k].size == 0) {
            cta->async_lanes[k].size = 1;
            return k;
        }
    }
    const uint32_t old = cta->async_lanes_space, space = old != 0 ? 2 * old : 16;
    struct async_lanes *grown = realloc(cta->async_lanes, space * sizeof *grown);
    if (grown == NULL) {
        fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, WARP, "out of memory");
        return UINT32_MAX;
    }
    cta->async_lanes = grown;
    cta->async_lanes_space = space;
    for (uint32_t k = old; k < space; ++k) {
        grown[k].size = 0;
    }
    grown[old].size = 1;
    return old;
}

/* cp.async */
enum step async_copy(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t record = take_lanes(w);
    if (record == UINT32_MAX) {
        return STEP_FAULT;
    }
    struct async_lanes *lanes = &w->cta->async_lanes[record];
    lanes->size = i->size;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const uint32_t bytes = i->e == UINT32_MAX ? i->size : ((const uint32_t *)source(w, i->e))[lane];
        lanes->to[lane] = address_shared(w, i, lane);
        lanes->from[lane] = address_global(w, i, lane);
        lanes->bytes[lane] = bytes;
        lanes->group[lane] = w->async_group[lane];
        if (bytes > i->size) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane, "cp.async with src-size %u; expected at most %u",
                            bytes, i->size);
        }
        if (memory_shared(w, lanes->to[lane], i->size, i->size, lane, "cp.async") == NULL ||
            (bytes != 0 && memory_global(w, lanes->from[lane], bytes, i->size, lane, "cp.async") == NULL)) {
            return STEP_FAULT;
        }
    }
    struct async_op *op = push(w);
    if (op == NULL) {
        return STEP_FAULT;
    }
    op->kind = ASYNC_COPY;
    op->mask = mask;
    op->copy = record;
    if (w->cta->shadow != NULL && !check_copy(w, op)) {
        return STEP_FAULT;
    }
    return STEP_NEXT;
}

/* cp.async.commit_group */
enum step async_commit(struct warp *w, const struct inst *i, uint32_t mask) {
    (void)i;
    if (w->cta->shadow != NULL) {
        check_copy_committed(w, mask);
    }
    for (uint32_t l = 0; l < WARP; ++l) {
        w->async_group[l] += mask >> l & 1u;
    }
    return STEP_NEXT;
}

/* cp.async.mbarrier.arrive: arrive after the earlier copies have completed. Without .noinc the pending count is
 * incremented first. */
enum step async_arrive(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t record = take_lanes(w);
    if (record == UINT32_MAX) {
        return STEP_FAULT;
    }
    struct async_lanes *lanes = &w->cta->async_lanes[record];
    lanes->size = 1;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        lanes->to[lane] = address_shared(w, i, lane);
        struct mbarrier *m = mbarrier_get(w, lanes->to[lane], lane, "cp.async.mbarrier.arrive");
        if (m == NULL) {
            return STEP_FAULT;
        }
        if (w->cta->shadow != NULL) {
            if (!check_mbarrier_used(w, m, lane)) {
                return STEP_FAULT;
            }
            check_copy_arrives(w, m, lane);
        }
        if (i->kind == 0) {
            ++m->pending;
        }
        lanes->group[lane] = UINT32_MAX; /* no cp.async group waits for an arrival */
    }
    struct async_op *op = push(w);
    if (op == NULL) {
        return STEP_FAULT;
    }
    op->kind = ASYNC_ARRIVE;
    op->mask = mask;
    op->copy = record;
    return STEP_NEXT;
}

/* ---- completion ---------------------------------------------------------------------------------------------- */

/* Perform a bulk reduction element by element. */
static void reduce(const struct async_op *op, const uint8_t *from, uint8_t *to) {
    const uint32_t size = type_bytes((enum type)op->type);
    atomic_function *function = atomic_find_bulk((enum atomic_op)op->op, (enum type)op->type);
    for (uint32_t at = 0; at < op->bytes; at += size) {
        uint64_t value = 0;
        for (uint32_t b = 0; b < size; ++b) {
            value |= (uint64_t)from[at + b] << 8 * b;
        }
        function(to + at, value, 0);
    }
}

/* Perform a cp.async of some lanes, filling the rest with zeros, or the arrivals. Return false after a fault. */
static bool land_lanes(struct warp *w, const struct async_op *op) {
    struct cta *cta = w->cta;
    struct async_lanes *lanes = &cta->async_lanes[op->copy];
    for (uint32_t rest = op->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        if (op->kind == ASYNC_ARRIVE) {
            struct mbarrier *m = mbarrier_get(w, lanes->to[lane], lane, "cp.async.mbarrier.arrive");
            if (m == NULL || !mbarrier_change(w, m, 1, 0, 0, lane)) {
                return false;
            }
            continue;
        }
        uint8_t *to = cta->shared + (lanes->to[lane] - SHARED_BASE);
        if (lanes->bytes[lane] != 0) { /* a copy of zeros alone may have any source */
            memcpy(to, (const void *)(uintptr_t)lanes->from[lane], lanes->bytes[lane]);
        }
        memset(to + lanes->bytes[lane], 0, lanes->size - lanes->bytes[lane]);
        w->worker->bytes[TRAFFIC_ASYNC] += lanes->size;
    }
    lanes->size = 0;
    return true;
}

/* Copy the bytes of a bulk copy. */
static void move(struct cta *cta, const struct async_op *op) {
    uint8_t *shared = cta->shared + (op->shared - SHARED_BASE), *global = (uint8_t *)(uintptr_t)op->global;
    if (op->kind == ASYNC_REDUCE) {
        reduce(op, shared, global);
    } else if (op->kind == ASYNC_WORD && op->op != 0) {
        atomic_find((enum atomic_op)(op->op - 1), (enum type)op->type)(shared, op->value[0], 0);
    } else if (op->kind == ASYNC_WORD) {
        memcpy(shared, op->value, op->bytes);
    } else if (op->kind == ASYNC_STORE) {
        memcpy(global, shared, op->bytes);
    } else {
        memcpy(shared, global, op->bytes);
    }
}

/* Copy the box of a tensor copy. */
static void move_box(struct cta *cta, const struct async_op *op) {
    struct tma_box *box = &cta->boxes[op->copy];
    if (op->kind == ASYNC_REDUCE) {
        tma_reduce(box, cta->shared, op->shared, tma_reduction((enum atomic_op)op->op, box->map.type));
    } else if (op->kind == ASYNC_LOAD) {
        tma_load(box, cta->shared, op->shared);
    } else {
        tma_store(box, cta->shared, op->shared);
    }
    box->in_use = false;
}

/* Perform one operation. Return false after a fault. */
static bool land(struct warp *w, const struct async_op *op) {
    if (op->kind < ASYNC_COPY) {
        (op->is_tensor != 0 ? move_box : move)(w->cta, op);
    }
    switch (op->kind) {
    case ASYNC_WORD:
    case ASYNC_INSIDE:
    case ASYNC_LOAD: {
        w->worker->bytes[op->kind == ASYNC_LOAD ? TRAFFIC_BULK_LOAD : TRAFFIC_ST_SHARED] += op->bytes;
        struct mbarrier *m = mbarrier_get(w, op->mbarrier, op->lane, "completion of a bulk copy");
        if (m != NULL && w->cta->shadow != NULL) {
            check_bulk_landed(w->cta, op, m);
        }
        return m != NULL && mbarrier_change(w, m, 0, -(int32_t)op->bytes, 0, op->lane);
    }
    case ASYNC_STORE:
        w->worker->bytes[TRAFFIC_BULK_STORE] += op->bytes;
        return true;
    case ASYNC_REDUCE:
        w->worker->bytes[TRAFFIC_BULK_REDUCE] += op->bytes;
        return true;
    default:
        return land_lanes(w, op);
    }
}

/* Perform the operation at an index of the queue and remove it. Return false after a fault. */
static bool land_at(struct cta *cta, uint32_t index) {
    const struct async_op op = cta->async[index];
    struct warp *w = &cta->warp[op.warp];
    const uint32_t pc = w->pc;
    memmove(&cta->async[index], &cta->async[index + 1], (cta->asyncs - index - 1) * sizeof op);
    --cta->asyncs;
    ++cta->progress;
    w->pc = op.pc;
    const bool good = watch_lands(w, &op) && land(w, &op) && watch_landed(w, &op);
    watch_moved(w, &op);
    w->pc = pc;
    return good;
}

/* Perform one operation: any bulk copy, or the first cp.async of some warp. Return 0 if the queue is empty, -1 after
 * a fault. */
int async_land(struct cta *cta) {
    if (cta->asyncs == 0) {
        return 0;
    }
    uint32_t index = (uint32_t)(cta_random(cta) % cta->asyncs);
    if (cta->async[index].kind >= ASYNC_COPY) {
        for (uint32_t k = 0; k < index; ++k) {
            if (cta->async[k].kind >= ASYNC_COPY && cta->async[k].warp == cta->async[index].warp) {
                index = k;
            }
        }
    }
    return land_at(cta, index) ? 1 : -1;
}

/* Return whether a wait of these lanes requires this operation to complete. */
static bool must_land(const struct warp *w, const struct async_op *op, const struct inst *i, uint32_t mask) {
    if (op->kind != ASYNC_COPY || op->warp != w->index) {
        return false;
    }
    const struct async_lanes *lanes = &w->cta->async_lanes[op->copy];
    for (uint32_t rest = op->mask & mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        if (i->kind != 0 || lanes->group[lane] + (uint32_t)i->offset < w->async_group[lane]) {
            return true;
        }
    }
    return false;
}

/* cp.async.wait_group and wait_all (kind 1): perform the copies waited for, in order. */
enum step async_wait(struct warp *w, const struct inst *i, uint32_t mask) {
    struct cta *cta = w->cta;
    uint32_t end = 0;
    for (uint32_t k = 0; k < cta->asyncs; ++k) {
        if (must_land(w, &cta->async[k], i, mask)) {
            end = k + 1;
        }
    }
    for (uint32_t k = 0; k < end;) {
        if (cta->async[k].kind >= ASYNC_COPY && cta->async[k].warp == w->index) {
            if (!land_at(cta, k)) {
                return STEP_FAULT;
            }
            --end;
        } else {
            ++k;
        }
    }
    if (cta->shadow != NULL) {
        check_copy_waited(w, i, mask);
    }
    return STEP_NEXT;
}
