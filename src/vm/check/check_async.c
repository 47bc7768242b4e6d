/* Checks asynchronous copies: their reads and writes, from the issue to the wait that ends them. */
#include <stdlib.h>

#include "vm/check/check.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/mbarrier.h"
#include "vm/machine/program.h"
#include "vm/machine/tma_box.h"
#include "vm/machine/types.h"

/* ---- bulk copies --------------------------------------------------------------------------------------------- */

/* Return the length of the piece of shared memory that begins `done` bytes into a bulk copy, and store its address.
 * Return 0 at the end. */
static uint32_t piece(const struct cta *cta, const struct async_op *op, uint32_t done, uint32_t *address) {
    if (op->is_tensor != 0) {
        return tma_piece(&cta->boxes[op->copy], op->shared, done, address);
    }
    *address = op->shared;
    return op->bytes - done;
}

/* Save the box of a store and compute the range that it may write. Return false after a fault. */
static bool add_box(struct warp *w, const struct async_op *op, struct bulk_store *store) {
    struct shadow *s = w->cta->shadow;
    const struct tma_box *box = &w->cta->boxes[op->copy];
    if (s->boxes == s->box_space) {
        const uint32_t space = s->box_space != 0 ? 2 * s->box_space : 16;
        struct tma_box *grown = realloc(s->box, space * sizeof *grown);
        if (grown == NULL) {
            return fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, op->lane, "out of memory"), false;
        }
        s->box = grown;
        s->box_space = space;
    }
    s->box[s->boxes++] = *box;
    store->box = s->boxes;
    uint64_t first = UINT64_MAX, end = 0;
    for (uint32_t k = 0; k < tma_rows(box); ++k) {
        const struct tma_row row = tma_row(box, k);
        if (row.end == row.first) {
            continue;
        }
        first = row.global < first ? row.global : first;
        end = row.global + (row.end - row.first) > end ? row.global + (row.end - row.first) : end;
    }
    store->global = first;
    store->global_bytes = end > first ? end - first : 0;
    return true;
}

/* Record a part of a bulk store or reduction. Return false after a fault. */
static bool add_part(struct warp *w, const struct bulk_store *part) {
    struct shadow *s = w->cta->shadow;
    if (s->stores == s->store_space) {
        const uint32_t space = s->store_space != 0 ? 2 * s->store_space : 64;
        struct bulk_store *grown = realloc(s->store, space * sizeof *grown);
        if (grown == NULL) {
            return fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, part->lane, "out of memory"), false;
        }
        s->store = grown;
        s->store_space = space;
    }
    s->store[s->stores++] = *part;
    return true;
}

/* Record a bulk store or reduction, which reads shared memory from now on. Return false after a fault. */
static bool add_store(struct warp *w, const struct async_op *op) {
    struct bulk_store store = {.global = op->global,
                               .global_bytes = op->bytes,
                               .warp = w->index,
                               .lane = op->lane,
                               .group = op->group,
                               .pc = w->pc};
    if (op->is_tensor != 0 && !add_box(w, op, &store)) {
        return false;
    }
    for (uint32_t done = 0; (store.bytes = piece(w->cta, op, done, &store.shared)) != 0; done += store.bytes) {
        if (!add_part(w, &store)) {
            return false;
        }
        store.global_bytes = 0; /* the first part has the whole range */
    }
    return true;
}

/* Record that a bulk copy writes its bytes in a phase of its mbarrier. */
static void mark_filled(struct cta *cta, const struct async_op *op, const struct mbarrier *m) {
    struct shadow *s = cta->shadow;
    const uint32_t k = (uint32_t)(m - cta->mbarrier), clock = s->mbarrier[k].base + m->phase + 1;
    uint32_t address, bytes;
    for (uint32_t done = 0; (bytes = piece(cta, op, done, &address)) != 0; done += bytes) {
        check_mark_write(cta, address, bytes, AGENT_MBARRIER + k % MBARRIER_AGENTS, clock, op->pc, BY_BULK, op->lane);
    }
    s->mbarrier[k].copied = m->phase + 1;
    s->mbarrier[k].copy_pc = op->pc;
}

/* Check that no bulk store may still write the global memory that a bulk load reads. Return false after a fault. */
static bool check_source(struct warp *w, const struct async_op *op) {
    const struct tma_box *box = op->is_tensor != 0 ? &w->cta->boxes[op->copy] : NULL;
    if (box == NULL) {
        return check_stores_global(w, op->global, op->bytes, op->lane, false);
    }
    for (uint32_t k = 0; k < tma_rows(box) && w->cta->shadow->stores != 0; ++k) {
        const struct tma_row row = tma_row(box, k);
        if (row.end > row.first && !check_stores_global(w, row.global, row.end - row.first, op->lane, false)) {
            return false;
        }
    }
    return true;
}

/* Check the global memory that a bulk operation reads or writes (check_global.c). Return false after a fault. */
static bool tell_world(struct warp *w, const struct async_op *op, uint32_t agent, uint32_t clock) {
    if (w->cta->shadow->world == NULL) {
        return true;
    }
    if (op->is_tensor == 0) {
        return world_bulk(w, op, agent, clock);
    }
    const struct tma_box *box = &w->cta->boxes[op->copy];
    for (uint32_t k = 0; k < tma_rows(box); ++k) {
        const struct tma_row row = tma_row(box, k);
        struct async_op part = *op;
        part.global = row.global;
        part.bytes = row.end - row.first;
        if (part.bytes != 0 && !world_bulk(w, &part, agent, clock)) {
            return false;
        }
    }
    return true;
}

/* Record the writes of a bulk store that has been waited for. */
static void tell_written(struct warp *w, const struct bulk_store *b) {
    const struct shadow *s = w->cta->shadow;
    const struct tma_box *box = b->box != 0 ? &s->box[b->box - 1] : NULL;
    if (s->world == NULL || b->global_bytes == 0) {
        return;
    }
    if (box == NULL) {
        world_written(w, b->global, (uint32_t)b->global_bytes, b->pc);
    }
    for (uint32_t k = 0; box != NULL && k < tma_rows(box); ++k) {
        const struct tma_row row = tma_row(box, k);
        if (row.end > row.first) {
            world_written(w, row.global, row.end - row.first, b->pc);
        }
    }
}

/* Check a bulk operation when it is issued. Return false after a fault. */
bool check_bulk(struct warp *w, struct async_op *op) {
    const bool loads = op->kind != ASYNC_STORE && op->kind != ASYNC_REDUCE, is_word = op->kind == ASYNC_WORD;
    uint32_t address, bytes;
    if (op->bytes == 0) {
        return true;
    }
    if (op->kind == ASYNC_INSIDE && !check_shared(w, op->from, op->bytes, op->lane, false, BY_BULK)) {
        return false;
    }
    const bool adds = is_word && op->op != 0; /* reductions do not race with one another */
    for (uint32_t done = 0; !adds && (bytes = piece(w->cta, op, done, &address)) != 0; done += bytes) {
        if (!check_shared(w, address, bytes, op->lane, loads, is_word ? BY_COPY : BY_BULK) ||
            (w->cta->watches_lanes != 0 && !lanes_bulk(w, address, bytes, op->lane))) {
            return false;
        }
    }
    if (!loads) {
        return tell_world(w, op, 0, 0) && add_store(w, op);
    }
    if (op->kind == ASYNC_LOAD && !check_source(w, op)) {
        return false;
    }
    const struct mbarrier *m = mbarrier_get(w, op->mbarrier, op->lane, "bulk copy");
    if (m == NULL || !check_mbarrier_used(w, m, op->lane)) {
        return false;
    }
    op->group = m->phase;
    mark_filled(w->cta, op, m);
    if (op->kind != ASYNC_LOAD) {
        return true;
    }
    const uint32_t k = (uint32_t)(m - w->cta->mbarrier);
    return tell_world(w, op, AGENT_MBARRIER + k % MBARRIER_AGENTS, w->cta->shadow->mbarrier[k].base + m->phase + 1);
}

/* Return whether two boxes have the same rows. */
static bool same_box(const struct tma_box *a, const struct tma_box *b) {
    bool same = tma_rows(a) == tma_rows(b);
    for (uint32_t k = 0; same && k < tma_rows(a); ++k) {
        const struct tma_row x = tma_row(a, k), y = tma_row(b, k);
        same = x.global == y.global && x.first == y.first && x.end == y.end;
    }
    return same;
}

bool check_bulk_repeats(const struct warp *w, const struct async_op *op, uint32_t warp, uint32_t pc, uint64_t address) {
    const struct shadow *s = w->cta->shadow;
    uint32_t shared, first;
    piece(w->cta, op, 0, &shared);
    for (uint32_t k = 0; k < s->stores; ++k) {
        const struct bulk_store *b = &s->store[k];
        if (b->has_read || b->warp != warp || b->pc != pc || address - b->global >= b->global_bytes ||
            (b->box != 0) != (op->is_tensor != 0)) {
            continue;
        }
        first = b->shared - (b->box != 0 ? 0 : (uint32_t)(b->global - op->global));
        if (first == shared && (b->box == 0 || same_box(&s->box[b->box - 1], &w->cta->boxes[op->copy]))) {
            return true;
        }
    }
    return false;
}

/* Record that a bulk load has written its bytes: in the phase in which it was issued or, if that phase has completed
 * without its bytes, in the current phase. */
void check_bulk_landed(struct cta *cta, const struct async_op *op, const struct mbarrier *m) {
    if (m->phase != op->group && op->bytes != 0) {
        mark_filled(cta, op, m);
    }
}

/* Record that lanes have waited for all but the last `allowed` of their bulk groups. */
void check_bulk_waited(struct warp *w, uint32_t mask, uint32_t allowed, int is_read_only) {
    struct shadow *s = w->cta->shadow;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < s->stores; ++k) {
        struct bulk_store *b = &s->store[k];
        const bool done =
            b->warp == w->index && (mask >> b->lane & 1u) != 0 && b->group + allowed < w->bulk_group[b->lane];
        if (done && !b->has_read) {
            check_mark_read(w, b->shared, b->bytes, b->pc);
            b->has_read = true;
        }
        if (!done || is_read_only != 0) {
            s->store[kept++] = *b;
        } else {
            tell_written(w, b);
        }
    }
    s->stores = kept;
    s->boxes = kept != 0 ? s->boxes : 0;
}

/* Check that no bulk store still reads the shared memory that is written. Return false after a fault. */
bool check_stores(struct warp *w, uint32_t address, uint32_t bytes, uint32_t lane, const char *what) {
    const struct shadow *s = w->cta->shadow;
    for (uint32_t k = 0; k < s->stores; ++k) {
        const struct bulk_store *b = &s->store[k];
        if (b->has_read || address >= b->shared + b->bytes || b->shared >= address + bytes) {
            continue;
        }
        const struct spot at = check_spot(w, b->pc);
        const uint32_t first = address > b->shared ? address : b->shared;
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                 "%s of %u bytes at shared address 0x%x, which the bulk store of %s, lane %u at %s may still "
                 "read; expected %scp.async.bulk.wait_group.read by that thread first",
                 what, bytes, first, check_warp(w, b->warp).text, b->lane, at.text,
                 b->group == w->cta->warp[b->warp].bulk_group[b->lane] ? "cp.async.bulk.commit_group and " : "");
        return false;
    }
    return true;
}

/* Check that no bulk store of this CTA may still write the global memory that is accessed. Return false after a
 * fault. */
bool check_stores_global(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane, bool is_write) {
    const struct shadow *s = w->cta->shadow;
    for (uint32_t k = 0; k < s->stores; ++k) {
        const struct bulk_store *b = &s->store[k];
        if (address >= b->global + b->global_bytes || b->global >= address + bytes) {
            continue;
        }
        if (b->box != 0 && !tma_meets(&s->box[b->box - 1], address, bytes)) {
            continue;
        }
        const struct spot at = check_spot(w, b->pc);
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                 "%s of %u bytes at global address 0x%llx, which the bulk store of %s, lane %u at %s may not have "
                 "written yet; expected cp.async.bulk.wait_group, without .read, by that thread first",
                 is_write ? "write" : "read", bytes, (unsigned long long)address, check_warp(w, b->warp).text, b->lane,
                 at.text);
        return false;
    }
    return true;
}

/* ---- cp.async ------------------------------------------------------------------------------------------------ */

/* Check the writes of a cp.async when it is issued. They are visible to warps that have seen its number. Return
 * false after a fault. */
bool check_copy(struct warp *w, struct async_op *op) {
    struct shadow *s = w->cta->shadow;
    const struct async_lanes *lanes = &w->cta->async_lanes[op->copy];
    op->group = ++s->copies[w->index];
    for (uint32_t rest = op->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        if (!check_shared(w, lanes->to[lane], lanes->size, lane, true, BY_COPY) ||
            (s->stores != 0 && lanes->bytes[lane] != 0 &&
             !check_stores_global(w, lanes->from[lane], lanes->bytes[lane], lane, false)) ||
            (s->world != NULL && !world_copy(w, lanes->from[lane], lanes->bytes[lane], lane, op->group))) {
            return false;
        }
    }
    for (uint32_t rest = op->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        check_mark_write(w->cta, lanes->to[lane], lanes->size, AGENT_COPY + w->index, op->group, w->pc, BY_COPY, lane);
        s->issued[w->index][lane] = op->group;
    }
    return true;
}

/* Record that lanes commit their groups. */
void check_copy_committed(struct warp *w, uint32_t mask) {
    struct shadow *s = w->cta->shadow;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        s->committed[w->index][w->async_group[lane] % COPY_GROUPS][lane] = s->copies[w->index];
    }
}

/* Return the number up to which all copies of a warp have landed, if those of some lanes have. */
static uint32_t landed_of(const struct warp *w, uint32_t lanes) {
    const struct shadow *s = w->cta->shadow;
    const uint32_t k = w->index, seen = s->warp[k].seen[AGENT_COPY + k];
    uint32_t number = s->copies[k];
    for (uint32_t l = 0; l < WARP; ++l) {
        const uint32_t done = s->landed[k][l] > seen ? s->landed[k][l] : seen;
        number = (lanes >> l & 1u) == 0 && s->issued[k][l] > done && done < number ? done : number;
    }
    return number;
}

/* Record that lanes have waited for all but the last of their groups, or for all their copies (kind 1). */
void check_copy_waited(struct warp *w, const struct inst *i, uint32_t mask) {
    struct shadow *s = w->cta->shadow;
    const uint32_t allowed = (uint32_t)i->offset;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), groups = w->async_group[lane];
        const uint32_t number = i->kind != 0       ? s->copies[w->index]
                                : groups > allowed ? s->committed[w->index][(groups - allowed - 1) % COPY_GROUPS][lane]
                                                   : 0;
        uint32_t *landed = &s->landed[w->index][lane];
        *landed = *landed > number ? *landed : number;
    }
    uint32_t *seen = &s->warp[w->index].seen[AGENT_COPY + w->index];
    const uint32_t number = landed_of(w, 0);
    *seen = *seen > number ? *seen : number;
    if (w->cta->watches_lanes != 0) {
        lanes_waited(w, mask);
    }
}

/* cp.async.mbarrier.arrive of a lane: a wait for the phase also waits for the copies of the lane before it. */
void check_copy_arrives(struct warp *w, const struct mbarrier *m, uint32_t lane) {
    struct shadow *s = w->cta->shadow;
    struct mbarrier_shadow *x = &s->mbarrier[m - w->cta->mbarrier];
    x->copiers[w->index] |= 1u << lane;
    uint32_t *seen = &x->gathering.seen[AGENT_COPY + w->index];
    const uint32_t number = landed_of(w, x->copiers[w->index]);
    *seen = *seen > number ? *seen : number;
}

/* ---- ends of threads and CTAs -------------------------------------------------------------------------------- */

/* If the CTA's last warp exits, check that the other CTAs' accesses to its shared memory are ordered before. Return
 * false after a fault. */
static bool check_left(struct warp *w) {
    const struct cta *cta = w->cta;
    const struct shadow *s = cta->shadow;
    const uint32_t first = w->rank * cta->launch->cta_warps, end = first + cta->launch->cta_warps;
    if (warp_member(w)->exited_warps + 1 != end - first) {
        return true;
    }
    for (uint32_t k = 0; k < cta->warps; ++k) {
        const struct mark *mark = &s->touched[w->rank][k];
        uint32_t known = 0;
        for (uint32_t own = first; own < end; ++own) {
            known = s->warp[own].seen[k] > known ? s->warp[own].seen[k] : known;
        }
        if (mark->clock > known) {
            const struct spot at = check_spot(w, mark->pc);
            fault_at(w, CUDA_ERROR_LAUNCH_FAILED, WARP,
                     "the CTA ends, and nothing orders this after the access of %s to its shared memory at %s; "
                     "expected barrier.cluster before the end",
                     check_warp(w, k).text, at.text);
            return false;
        }
    }
    return true;
}

/* Check that the bulk stores of exiting lanes have read shared memory, which another CTA may reuse. Return false
 * after a fault. */
bool check_exit(struct warp *w, uint32_t mask) {
    const struct shadow *s = w->cta->shadow;
    for (uint32_t k = 0; k < s->stores; ++k) {
        const struct bulk_store *b = &s->store[k];
        if (b->has_read || b->warp != w->index || (mask >> b->lane & 1u) == 0) {
            continue;
        }
        const struct spot at = check_spot(w, b->pc);
        const bool open = b->group == w->bulk_group[b->lane];
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, b->lane,
                 "exit while the bulk store of %u bytes from shared address 0x%x at %s may still read them; expected "
                 "%scp.async.bulk.wait_group.read first",
                 b->bytes, b->shared, at.text, open ? "cp.async.bulk.commit_group and " : "");
        return false;
    }
    return w->cta->ranks == 1 || mask != w->live || check_left(w);
}

/* Check at the end of a CTA that every bulk copy into its shared memory was waited for. */
void check_end(struct cta *cta) {
    const struct shadow *s = cta->shadow;
    if (s->world != NULL) {
        world_end(cta);
    }
    for (uint32_t k = 0; k < cta->mbarriers; ++k) {
        const struct mbarrier_shadow *x = &s->mbarrier[k];
        if (x->copied <= x->waited) {
            continue;
        }
        const struct spot at = check_spot(&cta->warp[0], x->copy_pc);
        fault_cta(
            cta, CUDA_ERROR_LAUNCH_FAILED,
            "the CTA ends, but no thread has waited for the bulk copy issued at %s; expected a wait for phase %u of "
            "the mbarrier at shared address 0x%x first",
            at.text, x->copied - 1, cta->mbarrier[k].address);
        return;
    }
}
