/* mbarriers. The state is a struct outside of shared memory, found by the address of the mbarrier. */
#include "vm/execute/mbarrier.h"

#include <stdlib.h>
#include <string.h>

#include "vm/check/check.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/mbarrier.h"
#include "vm/machine/program.h"

enum { MOST = (1 << 20) - 1 };

/* Write the 8 bytes in shared memory: a unique encoding of the state. */
static void encode(struct cta *cta, const struct mbarrier *m) {
    const uint64_t bits = (uint64_t)(m->phase & 1u) << 63 | (uint64_t)((1u << 20) - m->pending) << 43 |
                          (uint64_t)((uint32_t)m->tx & 0x1fffffu) << 22 | (uint64_t)((1u << 20) - m->expected) << 1;
    memcpy(cta->shared + (m->address - SHARED_BASE), &bits, 8);
}

/* Start the next phase if no arrivals and no bytes are pending. */
static void settle(struct cta *cta, struct mbarrier *m) {
    if (m->pending == 0 && m->tx == 0) {
        ++m->phase;
        m->pending = m->expected;
        ++cta->progress;
        if (cta->shadow != NULL) {
            check_mbarrier_phase(cta, m);
        }
    }
    encode(cta, m);
}

/* Arrive `arrivals` times and add `tx` to the transaction count. Return false after a fault. */
bool mbarrier_change(struct warp *w, struct mbarrier *m, int32_t arrivals, int32_t tx, int drop, uint32_t lane) {
    if ((int64_t)m->tx + tx > MOST || (int64_t)m->tx + tx < -MOST) {
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                 "the transaction count of the mbarrier at shared address 0x%x is %lld; expected "
                 "at most %d",
                 m->address, (long long)m->tx + tx, MOST);
        return false;
    }
    if (arrivals < 0 || (uint32_t)arrivals > m->pending) {
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                 "%d arrivals at the mbarrier at shared address 0x%x; expected at most %u more in this phase", arrivals,
                 m->address, m->pending);
        return false;
    }
    if (arrivals != 0 && w->cta->shadow != NULL && !check_mbarrier_arrival(w, m, lane)) {
        return false;
    }
    m->tx += tx;
    m->pending -= (uint32_t)arrivals;
    m->expected -= drop != 0 ? (uint32_t)arrivals : 0;
    settle(w->cta, m);
    return true;
}

/* Return whether the phase that a split waits for has completed. */
bool mbarrier_passed(const struct cta *cta, uint32_t address, uint32_t phase) {
    const uint16_t slot = cta->mbarrier_at[(address - SHARED_BASE) / 8];
    return slot == 0 || !cta->mbarrier[slot - 1].valid || cta->mbarrier[slot - 1].phase != phase;
}

/* mbarrier.init */
enum step mbarrier_init(struct warp *w, const struct inst *i, uint32_t mask) {
    struct cta *cta = w->cta;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), count = ((const uint32_t *)source(w, i->b))[lane];
        const uint32_t address = address_shared(w, i, lane);
        uint16_t *slot = mbarrier_slot(w, address, lane, "mbarrier.init");
        if (slot == NULL) {
            return STEP_FAULT;
        }
        if (count == 0 || count > MOST) {
            return fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane, "mbarrier.init with count %u; expected 1 to %d", count,
                            MOST);
        }
        if (*slot == 0) {
            if (cta->mbarriers == cta->mbarrier_space) {
                const uint32_t space = cta->mbarrier_space != 0 ? 2 * cta->mbarrier_space : 16;
                struct mbarrier *grown = realloc(cta->mbarrier, space * sizeof *grown);
                if (grown == NULL) {
                    return fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, lane, "out of memory");
                }
                cta->mbarrier = grown;
                cta->mbarrier_space = space;
            }
            *slot = (uint16_t)++cta->mbarriers;
            cta->mbarrier[*slot - 1] = (struct mbarrier){.phase = 0};
        }
        struct mbarrier *m = &cta->mbarrier[*slot - 1];
        if (m->valid && (m->pending != m->expected || m->tx != 0)) {
            return fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                            "mbarrier.init at shared address 0x%x, where a live mbarrier has %u of %u arrivals "
                            "pending; expected mbarrier.inval first",
                            address, m->pending, m->expected);
        }
        if (cta->shadow != NULL && !check_mbarrier_init(w, m, lane, address)) {
            return STEP_FAULT;
        }
        *m = (struct mbarrier){.address = address, .expected = count, .pending = count, .valid = true};
        encode(cta, m);
    }
    return STEP_NEXT;
}

/* mbarrier.inval */
enum step mbarrier_inval(struct warp *w, const struct inst *i, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        struct mbarrier *m = mbarrier_get(w, address_shared(w, i, lane), lane, "mbarrier.inval");
        if (m == NULL) {
            return STEP_FAULT;
        }
        m->valid = false;
        if (w->cta->shadow != NULL) {
            if (!check_mbarrier_used(w, m, lane)) {
                return STEP_FAULT;
            }
            check_mbarrier_inval(w, m);
        }
    }
    return STEP_NEXT;
}

/* mbarrier.arrive and arrive_drop. kind: bit 0 drop, 1 expect_tx, 2 noComplete. */
enum step mbarrier_arrive(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *count = source(w, i->b), *tx = source(w, i->c);
    const struct mbarrier *last = NULL;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        struct mbarrier *m = mbarrier_get(w, address_shared(w, i, lane), lane, "mbarrier.arrive");
        if (m == NULL || (w->cta->shadow != NULL && !check_mbarrier_used(w, m, lane))) {
            return STEP_FAULT;
        }
        if (w->cta->shadow != NULL && i->q != ORDER_RELAXED && m != last) {
            check_mbarrier_arrives(w, m);
        }
        last = m;
        if (i->d != UINT32_MAX) {
            ((uint64_t *)destination(w, i->d))[lane] = (uint64_t)m->phase << 32 | m->pending;
        }
        if (count[lane] > MOST || count[lane] == 0 || ((i->kind & 2) != 0 && tx[lane] > MOST)) {
            return fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                            "mbarrier.arrive with count %u and %u bytes; expected 1 to %d and at most %d", count[lane],
                            (i->kind & 2) != 0 ? tx[lane] : 0, MOST, MOST);
        }
        if ((i->kind & 4) != 0 && count[lane] >= m->pending) {
            return fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                            "mbarrier.arrive.noComplete completes the phase of the mbarrier at shared address 0x%x",
                            m->address);
        }
        if (!mbarrier_change(w, m, (int32_t)count[lane], (i->kind & 2) != 0 ? (int32_t)tx[lane] : 0, i->kind & 1,
                             lane)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* mbarrier.expect_tx and complete_tx (kind 1). */
enum step mbarrier_tx(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *tx = source(w, i->c);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        struct mbarrier *m = mbarrier_get(w, address_shared(w, i, lane), lane, "mbarrier.expect_tx");
        if (m == NULL || (w->cta->shadow != NULL && !check_mbarrier_used(w, m, lane))) {
            return STEP_FAULT;
        }
        if (tx[lane] > MOST) {
            return fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane, "a transaction count of %u bytes; expected at most %d",
                            tx[lane], MOST);
        }
        if (!mbarrier_change(w, m, 0, i->kind != 0 ? -(int32_t)tx[lane] : (int32_t)tx[lane], 0, lane)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* Store whether the phase that a lane tests has completed. It must be the current or the previous one. Return false
 * after a fault. */
static bool has_completed(struct warp *w, const struct inst *i, const struct mbarrier *m, uint32_t lane, bool *done) {
    const uint32_t parity = (i->kind & 2) != 0 ? ((const uint32_t *)source(w, i->b))[lane] : 0;
    const uint32_t phase = (i->kind & 2) != 0 ? m->phase - ((m->phase ^ parity) & 1u)
                                              : (uint32_t)(((const uint64_t *)source(w, i->b))[lane] >> 32);
    if (parity > 1) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane, "a wait for parity %u of an mbarrier; expected 0 or 1",
                 parity);
        return false;
    }
    if (m->phase - phase > 1) {
        fault_at(
            w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
            "a wait with a state of phase %u of the mbarrier at shared address 0x%x, which is in phase %u; expected "
            "a state of this phase or the one before",
            phase, m->address, m->phase);
        return false;
    }
    *done = phase != m->phase;
    return true;
}

/* mbarrier.test_wait and try_wait. kind: bit 0 try, 1 parity. If a try fails in all lanes, the split waits for the
 * phase of its lowest lane. run_cta.c ends that wait (split.forced) if nothing else can run. With checks, the first
 * question of a lane for a phase fails, unless the lane knows the answer: a chip may answer so. */
enum step mbarrier_wait(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t passed = 0, refused = 0, told = 0, first = 0, phase = 0, found = 0;
    const struct mbarrier *last = NULL, *asked = NULL;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), address = address_shared(w, i, lane);
        const struct mbarrier *m = mbarrier_get(w, address, lane, "mbarrier wait");
        if (m == NULL || (w->cta->shadow != NULL && !check_mbarrier_used(w, m, lane))) {
            return STEP_FAULT;
        }
        bool done;
        if (!has_completed(w, i, m, lane, &done)) {
            return STEP_FAULT;
        }
        if (w->cta->shadow != NULL && m != asked) {
            refused = check_mbarrier_refuses(w, m, mask, done);
            asked = m;
        }
        done = done && (refused >> lane & 1u) == 0;
        told |= refused & 1u << lane;
        passed |= (uint32_t)done << lane;
        if (done && w->cta->shadow != NULL && m != last) {
            check_mbarrier_waited(w, m, i->q != ORDER_RELAXED);
            last = m;
        }
        if (!done && found == 0) {
            found = 1;
            first = address;
            phase = m->phase;
        }
    }
    struct split *s = &w->split[w->current];
    if (passed == 0 && told == 0 && (i->kind & 1) != 0 && s->forced == 0) {
        warp_leave_behind(w, mask);
        s = &w->split[w->current];
        s->wait = WAIT_MBARRIER;
        s->address = first;
        s->phase = phase;
        return STEP_AGAIN;
    }
    s->forced = 0;
    s->polled = passed == 0;
    s->address = first;
    s->phase = phase;
    if (i->p != 0) {
        w->predicates[i->p] = (w->predicates[i->p] & ~mask) | passed;
    }
    return (passed | told) != 0 ? STEP_NEXT : STEP_YIELD;
}
