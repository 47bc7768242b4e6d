/* Barriers: bar.sync, bar.arrive, bar.red and barrier.cluster. */
#include "vm/execute/barrier.h"

#include "vm/check/check.h"
#include "vm/machine/base.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"

/* How a barrier is used in a phase. */
static const char *const reductions[] = {"bar.sync or bar.arrive", "bar.red.popc", "bar.red.and", "bar.red.or"};

static uint8_t reduction_of(const struct inst *i) {
    return (uint8_t)(i->kind < 2 ? 0 : i->kind - 1);
}

/* Write the result of bar.red for one split. */
static void write_reduction(struct warp *w, const struct inst *i, uint32_t mask, const struct barrier *b) {
    if (i->kind == 2) {
        uint32_t *d = destination(w, i->d);
        for (uint32_t l = 0; l < WARP; ++l) {
            d[l] = (mask >> l & 1u) != 0 ? b->count : d[l];
        }
    } else if (i->kind > 2 && i->p != 0) {
        const uint32_t result = (i->kind == 3 ? b->reduced_and : b->reduced_or) != 0 ? FULL : 0;
        w->predicates[i->p] = (w->predicates[i->p] & ~mask) | (result & mask);
    }
}

/* Release all splits that wait at a barrier, and reset it. */
static void release(struct cta *cta, uint32_t number) {
    struct barrier *b = &cta->barrier[number];
    const bool is_cluster = number == CLUSTER_BARRIER || number == CLUSTER_BARRIER + 1;
    for (uint32_t k = 0; k < cta->warps; ++k) {
        struct warp *w = &cta->warp[k];
        for (uint32_t n = 0; n < w->splits; ++n) {
            struct split *s = &w->split[n];
            if (s->wait != WAIT_BARRIER || s->address != number) {
                continue;
            }
            write_reduction(w, &w->function->code[s->pc], s->mask, b);
            if (cta->shadow != NULL) {
                check_barrier_left(w, number);
            }
            if (is_cluster) {
                w->cluster[0] &= ~s->mask, w->cluster[1] &= ~s->mask;
            }
            s->wait = WAIT_NOT;
            ++s->pc;
        }
    }
    *b = (struct barrier){0};
    cta->cluster_phase += is_cluster;
    if (cta->shadow != NULL && !is_cluster) {
        check_barrier_empty(cta, number);
    }
    ++cta->progress;
}

/* Return how many threads a barrier without a count waits for: those of all running warps of the CTA or cluster. */
static uint32_t everybody(const struct cta *cta, uint32_t number) {
    if (number == CLUSTER_BARRIER || number == CLUSTER_BARRIER + 1) {
        return WARP * (cta->warps - cta->exited_warps);
    }
    const uint32_t rank = number < CLUSTER_BARRIER ? 0 : 1 + (number - MORE_BARRIERS) / BARRIERS;
    return WARP * (cta->launch->cta_warps - cta->member[rank].exited_warps);
}

/* Release barriers without a count that a warp's exit has completed. */
void barrier_check(struct cta *cta, uint32_t number) {
    struct barrier *b = &cta->barrier[number];
    if (b->arrived != 0 && b->expected == 0 && b->arrived >= everybody(cta, number)) {
        release(cta, number);
    }
}

/* Return the number of a CTA's barrier in its cluster. */
static uint32_t of_rank(uint32_t rank, uint32_t number) {
    return rank == 0 ? number : MORE_BARRIERS + (rank - 1) * BARRIERS + number;
}

/* Read number and count of a barrier, check them, and number it as the cluster does. Return false after a fault. */
static bool read_barrier(struct warp *w, const struct inst *i, uint32_t mask, uint32_t *number, uint32_t *count) {
    const uint32_t lane = lowest_bit(mask);
    *number = ((const uint32_t *)source(w, i->a))[lane];
    *count = i->count != 0 ? ((const uint32_t *)source(w, i->b))[lane] : 0;
    if (*number >= BARRIERS) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane, "barrier number %u; expected 0 to %d", *number, BARRIERS - 1);
        return false;
    }
    const uint32_t most = WARP * w->cta->launch->cta_warps;
    if (i->count != 0 && (*count == 0 || *count % WARP != 0 || *count > most)) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                 "barrier %u has a thread count of %u; expected a multiple of %d, at most %u", *number, *count, WARP,
                 most);
        return false;
    }
    const struct barrier *b = &w->cta->barrier[of_rank(w->rank, *number)];
    if (b->arrived != 0 && b->expected != *count) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                 "barrier %u has a thread count of %u here, but %u where other threads arrived (0: all threads)",
                 *number, *count, b->expected);
        return false;
    }
    if (b->arrived != 0 && b->kind != reduction_of(i)) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                 "barrier %u is met by %s here, but by %s elsewhere in the same phase; expected one of them", *number,
                 reductions[reduction_of(i)], reductions[b->kind]);
        return false;
    }
    const uint32_t again = b->arrived != 0 ? b->lanes[w->index] & mask : 0;
    if (again != 0) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lowest_bit(again),
                 "lanes 0x%08x arrive at barrier %u again before its phase has completed; expected one arrival of each "
                 "thread in a phase",
                 again, *number);
        return false;
    }
    *number = of_rank(w->rank, *number);
    return true;
}

/* Count the arrival of lanes. A warp arrives as 32 threads: its exited lanes arrive together with its first live lane.
 */
static void arrive(const struct warp *w, struct barrier *b, uint32_t mask) {
    b->arrived += bit_count(mask) + ((mask >> lowest_bit(w->live) & 1u) != 0 ? WARP - bit_count(w->live) : 0);
    b->lanes[w->index] |= mask;
}

/* Wait until a barrier is released. */
static enum step wait(struct warp *w, uint32_t mask, uint32_t number, uint32_t needed) {
    warp_leave_behind(w, mask);
    struct split *s = &w->split[w->current];
    s->pc = w->pc;
    s->wait = WAIT_BARRIER;
    s->polled = 0;
    s->address = number;
    s->detail = needed;
    return STEP_WAIT;
}

/* bar and barrier */
enum step control_bar(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t number, count;
    if (i->flags != 0 && mask != w->live) {
        return warp_converge(w, mask, w->live);
    }
    if (!read_barrier(w, i, mask, &number, &count)) {
        return STEP_FAULT;
    }
    struct barrier *b = &w->cta->barrier[number];
    if (w->cta->shadow != NULL && !check_barrier_arrived(w, number, i->kind != 1)) {
        return STEP_FAULT;
    }
    if (b->arrived == 0) {
        *b = (struct barrier){.expected = count, .reduced_and = 1, .kind = reduction_of(i)};
    }
    const uint32_t votes = (w->predicates[i->r] ^ (i->negate != 0 ? FULL : 0)) & mask;
    b->reduced_and &= votes == mask;
    b->reduced_or |= votes != 0;
    b->count += bit_count(votes);
    arrive(w, b, mask);
    const uint32_t needed = count != 0 ? count : everybody(w->cta, number);
    if (b->arrived > needed) {
        return fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lowest_bit(mask), "%u threads arrived at barrier %u; expected %u",
                        b->arrived, barrier_number(number), needed);
    }
    if (b->arrived == needed) {
        write_reduction(w, i, mask, b);
        if (w->cta->shadow != NULL && i->kind != 1) {
            check_barrier_left(w, number);
        }
        release(w->cta, number);
        return STEP_NEXT;
    }
    return i->kind == 1 ? STEP_NEXT : wait(w, mask, number, needed);
}

/* ---- barrier.cluster -------------------------------------------------------------------------------------------- */

/* The phases of the cluster's barrier use two barriers in turn, because threads may arrive in a phase while others have
 * not yet waited for the previous one. */
static enum step cluster_arrive(struct warp *w, const struct inst *i, uint32_t mask) {
    struct cta *cta = w->cta;
    const uint32_t parity = cta->cluster_phase & 1u, number = CLUSTER_BARRIER + parity;
    const uint32_t again = (w->cluster[0] | w->cluster[1]) & mask;
    struct barrier *b = &cta->barrier[number];
    if (again != 0) {
        return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lowest_bit(again),
                        "lanes 0x%08x arrive at the barrier of the cluster again; expected barrier.cluster.wait after "
                        "every barrier.cluster.arrive",
                        again);
    }
    if (cta->shadow != NULL && b->arrived == 0) {
        check_barrier_empty(cta, number);
    }
    if (cta->shadow != NULL && i->q == ORDER_RELAXED) {
        check_barrier_relaxed(w, number);
    } else if (cta->shadow != NULL && !check_barrier_arrived(w, number, true)) {
        return STEP_FAULT;
    }
    w->cluster[parity] |= mask;
    arrive(w, b, mask);
    barrier_check(cta, number);
    return STEP_NEXT;
}

/* barrier.cluster.arrive, and wait (kind 1) */
enum step control_cluster(struct warp *w, const struct inst *i, uint32_t mask) {
    struct cta *cta = w->cta;
    if (i->flags != 0 && mask != w->live) {
        return warp_converge(w, mask, w->live);
    }
    if (i->kind == 0) {
        return cluster_arrive(w, i, mask);
    }
    const uint32_t parity = cta->cluster_phase & 1u, never = mask & ~(w->cluster[0] | w->cluster[1]);
    if (never != 0) {
        return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lowest_bit(never),
                        "lanes 0x%08x wait at the barrier of the cluster, where they have not arrived; expected "
                        "barrier.cluster.arrive first",
                        never);
    }
    if ((w->cluster[parity] & mask) != 0) {
        return wait(w, mask, CLUSTER_BARRIER + parity, everybody(cta, CLUSTER_BARRIER));
    }
    if (cta->shadow != NULL) {
        check_barrier_left(w, CLUSTER_BARRIER + (parity ^ 1u));
    }
    w->cluster[parity ^ 1u] &= ~mask;
    return STEP_NEXT;
}
