/* Branches, exits, fences and clocks. */
#include "vm/execute/control.h"

#include "platform/clock.h"
#include "vm/check/check.h"
#include "vm/execute/barrier.h"
#include "vm/execute/collect.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"

/* bra */
enum step control_bra(struct warp *w, const struct inst *i, uint32_t mask) {
    warp_leave_behind(w, mask);
    w->pc = i->target;
    return STEP_JUMP;
}

/* brx.idx: lanes diverge by their targets. */
enum step control_brx(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *index = source(w, i->a), *list = i->more;
    warp_leave_behind(w, mask);
    for (uint32_t rest = mask; rest != 0;) {
        const uint32_t lane = lowest_bit(rest), k = index[lane];
        uint32_t same = 0;
        if (k >= list[0]) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane, "branch index %u; expected less than %u", k,
                            list[0]);
        }
        for (uint32_t l = lane; l < WARP; ++l) {
            same |= (uint32_t)((rest >> l & 1u) != 0 && index[l] == k) << l;
        }
        rest &= ~same;
        if (rest != 0) {
            w->split[w->splits++] = (struct split){.pc = list[1 + k], .mask = same};
        } else {
            w->split[w->current].mask = w->active = same;
            w->pc = list[1 + k];
        }
    }
    return STEP_JUMP;
}

/* Remove exited lanes, and the split if it is empty. */
static void warp_retire(struct warp *w, uint32_t mask) {
    struct cta *cta = w->cta;
    w->live &= ~mask;
    w->split[w->current].mask &= ~mask;
    w->active &= ~mask;
    if (w->live != 0) {
        return;
    }
    w->splits = 0;
    ++cta->exited_warps;
    ++warp_member(w)->exited_warps;
    ++cta->progress;
    for (uint32_t b = 0; b < cta_barriers(cta); ++b) {
        barrier_check(cta, b);
    }
}

/* exit and ret */
enum step control_exit(struct warp *w, const struct inst *i, uint32_t mask) {
    (void)i;
    if (w->cta->shadow != NULL && !check_exit(w, mask)) {
        return STEP_FAULT;
    }
    warp_leave_behind(w, mask);
    warp_retire(w, mask);
    return STEP_JUMP;
}

/* Return whether a kernel reads the workspace of a cooperative launch, but the launch is not cooperative. */
static bool lacks_workspace(const struct launch *launch) {
    const struct CUfunc_st *const f = launch->function;
    for (uint32_t k = 0; k < f->special_count; ++k) {
        if (f->specials[k].special == SPECIAL_GRID_WORKSPACE_LOW) {
            return launch->workspace == 0;
        }
    }
    return false;
}

/* trap. grid.sync() also executes it if there is no workspace. */
enum step control_trap(struct warp *w, const struct inst *i, uint32_t mask) {
    (void)i;
    return fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lowest_bit(mask), "trap%s",
                    lacks_workspace(w->cta->launch)
                        ? "; the kernel reads %envreg2, but the launch is not cooperative, as grid.sync() needs"
                        : "");
}

/* Instructions without effect. A sleep (kind 1) may wait for another CTA, unless it follows a failed poll of an
 * mbarrier. */
enum step control_nop(struct warp *w, const struct inst *i, uint32_t mask) {
    (void)mask;
    if (i->kind == 0) {
        return STEP_NEXT;
    }
    w->cta->waits_outside |= w->split[w->current].polled == 0;
    return STEP_YIELD;
}

/* discard: a hint that the line may lose its bytes. Level full counts it as a write of an undefined value. */
enum step control_discard(struct warp *w, const struct inst *i, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const uint64_t line = address_lane(w, i, lane);
        if (line % DISCARDED != 0) {
            return fault_at(w, CUDA_ERROR_MISALIGNED_ADDRESS, lane,
                            "discard of the line at 0x%llx; expected a multiple of %d", (unsigned long long)line,
                            DISCARDED);
        }
        if (w->cta->watches_lanes != 0 && memory_find(w->worker, line, DISCARDED) != 0 &&
            !world_discard(w, line, DISCARDED, lane)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* mapa: d is the address in the shared memory of CTA b that a is in its own CTA's. getctarank (kind 1): d is the rank
 * of the CTA in whose memory a is. size: of the address. */
enum step control_mapa(struct warp *w, const struct inst *i, uint32_t mask) {
    const struct launch *launch = w->cta->launch;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), rank = i->kind == 0 ? ((const uint32_t *)source(w, i->b))[lane] : 0;
        const uint64_t a = address_register(w, i->a, i->size == 4, lane);
        const uint64_t at = (a & ~WINDOW_MASK) - SHARED_BASE;
        if (rank >= launch->ranks) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                            "mapa to CTA %u of a cluster of %u CTAs; expected less than %u", rank, launch->ranks,
                            launch->ranks);
        }
        if (i->space == SPACE_GENERIC ? address_space(a) != SPACE_SHARED : a >> 32 != 0) {
            return fault_at(w, CUDA_ERROR_INVALID_ADDRESS_SPACE, lane,
                            "%s of 0x%llx; expected an address in shared memory", i->kind == 0 ? "mapa" : "getctarank",
                            (unsigned long long)a);
        }
        const uint32_t from =
            launch->span != 0 && at / launch->span < launch->ranks ? (uint32_t)(at / launch->span) : 0;
        if (i->kind != 0) {
            ((uint32_t *)destination(w, i->d))[lane] = from;
        } else if (i->size == 4) {
            ((uint32_t *)destination(w, i->d))[lane] = (uint32_t)a + (rank - from) * launch->span;
        } else {
            ((uint64_t *)destination(w, i->d))[lane] = a + ((uint64_t)rank - from) * launch->span;
        }
    }
    return STEP_NEXT;
}

/* fence and membar. Writes are visible at once, so only the checks record fences. */
enum step control_fence(struct warp *w, const struct inst *i, uint32_t mask) {
    if (w->cta->shadow != NULL) {
        check_fence(w, i->flags, mask);
    }
    return STEP_NEXT;
}

/* .aligned: wait for all lanes of the warp, then execute the instruction. None may have exited. */
enum step control_aligned(struct warp *w, const struct inst *i, uint32_t mask) {
    if (LIKELY(mask == FULL)) {
        if (UNLIKELY(w->cta->watches_lanes)) {
            lanes_meet(w, mask);
        }
        return i->next(w, i, mask);
    }
    if (w->live != FULL) {
        return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lowest_bit(mask),
                        "lanes 0x%08x do not take part in an .aligned instruction: they have exited or are not in the "
                        "CTA; expected all 32 lanes of the warp",
                        ~w->live);
    }
    return warp_converge(w, mask, FULL);
}

/* bar.warp.sync */
enum step control_barwarp(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t others;
    return collect_members(w, i, &mask, &others);
}

/* p = a op b on predicates. kind: 0 and, 1 or, 2 xor. */
enum step control_setp(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t a = w->predicates[i->q] ^ ((i->negate & 1) != 0 ? FULL : 0);
    const uint32_t b = w->predicates[i->r] ^ ((i->negate & 2) != 0 ? FULL : 0);
    const uint32_t result = i->kind == 0 ? a & b : i->kind == 1 ? a | b : a ^ b;
    if (i->p != 0) {
        w->predicates[i->p] = (w->predicates[i->p] & ~mask) | (result & mask);
    }
    return STEP_NEXT;
}

/* Write a clock to every lane. %clock is the number of instructions that this CTA has executed, %globaltimer is in
 * nanoseconds. At level full, %globaltimer is the number of instructions of the launch, so the seed determines it. */
enum step control_clock(struct warp *w, const struct inst *i, uint32_t mask) {
    uint64_t value = w->cta->executed;
    if (i->kind >= SPECIAL_GLOBALTIMER) {
        const bool is_full = w->cta->launch->checks == CHECKS_FULL;
        value = is_full ? UINT64_C(1700000000000000000) + w->worker->executed : clock_wall();
    }
    const bool wide = i->kind == SPECIAL_CLOCK64 || i->kind == SPECIAL_GLOBALTIMER;
    const bool upper = i->kind == SPECIAL_CLOCK_HI || i->kind == SPECIAL_GLOBALTIMER_HI;
    uint64_t *d64 = destination(w, i->d);
    uint32_t *d32 = destination(w, i->d);
    for (uint32_t l = 0; l < WARP; ++l) {
        if ((mask >> l & 1u) == 0) {
            continue;
        }
        if (wide) {
            d64[l] = value;
        } else {
            d32[l] = (uint32_t)(upper ? value >> 32 : value);
        }
    }
    return STEP_NEXT;
}
