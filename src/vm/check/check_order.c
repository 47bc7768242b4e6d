/* Synchronisation: barriers, mbarriers, fences, and memory locations that warps synchronise with. */
#include <stdlib.h>
#include <string.h>

#include "vm/check/check.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

/* Keep the later one of each two numbers. */
static inline void join_each(uint32_t *restrict to, const uint32_t *restrict from, uint32_t count) {
    for (const uint32_t *const end = from + count; from != end; ++from, ++to) {
        *to = *to > *from ? *to : *from;
    }
}

/* to |= from: the union of two clocks. */
static void join(const struct shadow *s, struct clocks *to, const struct clocks *from) {
    if (UNLIKELY(s->world != NULL)) {
        far_join(s->world, &to->far, &from->far);
        far_join(s->world, &to->fenced, &from->fenced);
        far_join(s->world, &to->found, &from->found);
    }
    join_each(to->seen, from->seen, AGENTS);
    join_each(to->proxied, from->proxied, AGENT_MBARRIER);
}

/* Pass on what a warp has done and seen so far, and advance its clock. */
static void release(struct warp *w, struct clocks *to) {
    struct clocks *mine = &w->cta->shadow->warp[w->index];
    join(w->cta->shadow, to, mine);
    ++mine->seen[w->index];
}

/* Record a synchronisation of several lanes. It counts as ordering all lanes of the warp. */
static void synchronise(struct warp *w) {
    if (w->cta->watches_lanes != 0) {
        lanes_meet(w, FULL);
    }
}

/* ---- barriers ------------------------------------------------------------------------------------------------ */

static bool is_of_cluster(uint32_t number) {
    return number == CLUSTER_BARRIER || number == CLUSTER_BARRIER + 1;
}

/* After bar.arrive, a warp may arrive at the barrier again only if it knows that the phase has completed. Return false
 * after a fault. */
static bool may_arrive(struct warp *w, const struct barrier_phases *x, uint32_t number) {
    const uint32_t *seen = w->cta->shadow->warp[w->index].seen;
    for (uint32_t k = 0; x->left[w->index] != 0 && x->left[w->index] == x->completed && k < MAX_WARPS; ++k) {
        if (UNLIKELY(x->previous[k] > seen[k])) {
            fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lowest_bit(w->active),
                     "the warp arrives at barrier %u after its bar.arrive there, and nothing orders this after the "
                     "arrival of %s, which completed that phase; expected another barrier between them",
                     barrier_number(number), check_warp(w, k).text);
            return false;
        }
    }
    return true;
}

bool check_barrier_arrived(struct warp *w, uint32_t number, bool does_wait) {
    struct shadow *s = w->cta->shadow;
    struct barrier_phases *x = &s->phases[number];
    synchronise(w);
    if (!may_arrive(w, x, number)) {
        return false;
    }
    x->left[w->index] = does_wait ? 0 : x->completed + 1;
    x->arrival[w->index] = s->warp[w->index].seen[w->index];
    release(w, &s->barrier[number]);
    return true;
}

void check_barrier_relaxed(struct warp *w, uint32_t number) {
    struct shadow *s = w->cta->shadow;
    if ((s->has_released >> w->index & 1u) != 0) {
        join(s, &s->barrier[number], &s->released[w->index]);
    }
    s->inits_arrived[number - CLUSTER_BARRIER][w->index] = s->inits[w->index];
}

/* A phase of the barrier has completed, and all warps have left it. */
void check_barrier_empty(struct cta *cta, uint32_t number) {
    struct barrier_phases *x = &cta->shadow->phases[number];
    memset(&cta->shadow->barrier[number], 0, sizeof *cta->shadow->barrier);
    memcpy(x->previous, x->arrival, sizeof x->previous);
    memset(x->arrival, 0, sizeof x->arrival);
    if (is_of_cluster(number)) {
        memset(cta->shadow->inits_arrived[number - CLUSTER_BARRIER], 0, sizeof *cta->shadow->inits_arrived);
    }
    ++x->completed;
}

/* The barrier has completed and this warp continues. */
void check_barrier_left(struct warp *w, uint32_t number) {
    synchronise(w);
    struct shadow *s = w->cta->shadow;
    join(s, &s->warp[w->index], &s->barrier[number]);
    for (uint32_t k = 0; is_of_cluster(number) && k < w->cta->warps; ++k) {
        const uint32_t clock = s->inits_arrived[number - CLUSTER_BARRIER][k];
        uint32_t *const known = &s->inits_known[w->index][k];
        *known = clock > *known ? clock : *known;
    }
}

/* ---- fences and locations ------------------------------------------------------------------------------------ */

/* Record which lanes' writes a proxy fence of some lanes does not cover. */
static void fence_of_lanes(struct warp *w, uint32_t mask) {
    struct loose *x = &w->cta->shadow->loose[w->index];
    const uint32_t before = x->lanes, clock = w->cta->shadow->warp[w->index].seen[w->index];
    x->lanes = lanes_fence(w, mask, x);
    x->from = before != 0 ? x->from : clock;
    x->to = clock;
}

/* Record a fence of memory, of the asynchronous proxy, or both. */
void check_fence(struct warp *w, uint32_t kind, uint32_t mask) {
    struct shadow *s = w->cta->shadow;
    struct clocks *mine = &s->warp[w->index];
    if (w->cta->watches_lanes != 0 && (kind & FENCE_PROXY) != 0) {
        fence_of_lanes(w, mask);
    }
    if (s->world != NULL && (kind & FENCE_PROXY_GLOBAL) != 0) {
        far_proxy_fence(w);
    }
    if (s->world != NULL && (kind & FENCE_GPU) != 0) {
        far_fence(w);
    }
    if (s->world != NULL && kind == FENCE_PROXY_GLOBAL) {
        ++mine->seen[w->index];
    }
    if ((kind & FENCE_PROXY) != 0) {
        memcpy(mine->proxied, mine->seen, sizeof mine->proxied);
        ++mine->seen[w->index];
    }
    if ((kind & FENCE_INITS) != 0) {
        s->inits[w->index] = mine->seen[w->index]++;
    }
    if ((kind & FENCE_MEMORY) == 0) {
        return;
    }
    synchronise(w);
    if ((s->has_acquired >> w->index & 1u) != 0) {
        join(s, mine, &s->acquired[w->index]);
        memset(&s->acquired[w->index], 0, sizeof *s->acquired);
        s->has_acquired &= ~(1u << w->index);
    }
    s->released[w->index] = *mine;
    s->has_released |= 1u << w->index;
    ++mine->seen[w->index];
}

/* Return the clocks of a location. NULL if it has none and `add` is false, or after a fault. */
static struct clocks *location_of(struct warp *w, const void *place, bool add) {
    struct shadow *s = w->cta->shadow;
    for (uint32_t k = s->latest, left = s->locations; left != 0; --left) { /* lanes take locations in turn */
        if (s->location[k].key == (uintptr_t)place) {
            s->latest = k;
            return &s->location[k].clocks;
        }
        k = k + 1 < s->locations ? k + 1 : 0;
    }
    if (!add) {
        return NULL;
    }
    if (s->locations == s->location_space) {
        const uint32_t space = s->location_space != 0 ? 2 * s->location_space : 16;
        struct location *grown = realloc(s->location, space * sizeof *grown);
        if (grown == NULL) {
            fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, WARP, "out of memory");
            return NULL;
        }
        s->location = grown;
        s->location_space = space;
    }
    struct location *l = &s->location[s->locations++];
    *l = (struct location){.key = (uintptr_t)place};
    return &l->clocks;
}

/* Record a strong access to a location: an atomic, or a load or store with a memory order. Return false after a
 * fault. */
bool check_ordered(struct warp *w, const struct inst *i, const void *place, bool is_read, bool is_write) {
    struct shadow *s = w->cta->shadow;
    const uint32_t self = 1u << w->index, order = i->q;
    if (order > ORDER_RELAXED) {
        synchronise(w);
    }
    if (s->world != NULL && i->r == 0 && (uintptr_t)place - (uintptr_t)w->cta->shared >= w->cta->shared_bytes) {
        far_ordered(w, place, order, is_read, is_write);
    }
    struct clocks *mine = &s->warp[w->index], *at = location_of(w, place, false);
    if (is_read && at != NULL && (order == ORDER_ACQUIRE || order == ORDER_ACQ_REL)) {
        join(s, mine, at);
    } else if (is_read && at != NULL) {
        join(s, &s->acquired[w->index], at);
        s->has_acquired |= self;
    }
    if (!is_write) {
        return true;
    }
    if (at != NULL && !is_read) {
        memset(at, 0, sizeof *at);
    }
    const bool releases = order == ORDER_RELEASE || order == ORDER_ACQ_REL;
    if (!releases && (s->has_released & self) == 0) {
        return true;
    }
    at = at != NULL ? at : location_of(w, place, true);
    if (at == NULL) {
        return false;
    }
    if (releases) {
        release(w, at);
    } else {
        join(s, at, &s->released[w->index]);
    }
    return true;
}

/* ---- mbarriers ----------------------------------------------------------------------------------------------- */

static uint32_t index_of(const struct cta *cta, const struct mbarrier *m) {
    return (uint32_t)(m - cta->mbarrier);
}

/* Check mbarrier.init before the mbarrier changes: all earlier accesses to its bytes must be ordered before it.
 * Return false after a fault. */
bool check_mbarrier_init(struct warp *w, const struct mbarrier *m, uint32_t lane, uint32_t address) {
    struct shadow *s = w->cta->shadow;
    const uint32_t k = index_of(w->cta, m);
    if (m->valid) {
        const struct spot at = check_spot(w, s->mbarrier[k].init_pc);
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                 "mbarrier.init at shared address 0x%x, which holds the live mbarrier initialised at %s; expected "
                 "mbarrier.inval first",
                 address, at.text);
        return false;
    }
    if (!check_shared(w, address, 8, lane, true, BY_PLAIN)) {
        return false;
    }
    if (k >= s->mbarrier_space) {
        const uint32_t space = k + 1 > 2 * s->mbarrier_space ? k + 16 : 2 * s->mbarrier_space;
        struct mbarrier_shadow *grown = realloc(s->mbarrier, space * sizeof *grown);
        if (grown == NULL) {
            return fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, lane, "out of memory"), false;
        }
        s->mbarrier = grown;
        s->mbarrier_space = space;
    }
    s->mbarrier[k] = (struct mbarrier_shadow){.base = s->mbarrier_clock[k % MBARRIER_AGENTS],
                                              .init_warp = w->index,
                                              .init_clock = s->warp[w->index].seen[w->index],
                                              .init_pc = w->pc};
    check_mark_write(w->cta, address, 8, AGENT_LIVE, UINT32_MAX, w->pc, BY_PLAIN, lane);
    return true;
}

/* mbarrier.inval: the bytes are ordinary memory again, written by this warp. */
void check_mbarrier_inval(struct warp *w, const struct mbarrier *m) {
    const uint32_t clock = w->cta->shadow->warp[w->index].seen[w->index];
    check_mark_write(w->cta, m->address, 8, w->index, clock, w->pc, BY_PLAIN, 0);
}

/* Check that a use of an mbarrier is ordered after its initialisation. Return false after a fault. */
bool check_mbarrier_used(struct warp *w, const struct mbarrier *m, uint32_t lane) {
    const struct shadow *s = w->cta->shadow;
    const struct mbarrier_shadow *x = &s->mbarrier[index_of(w->cta, m)];
    if (UNLIKELY(w->cta->ranks != 1) && (w->function->code[w->pc].flags & ADDRESS_ASYNC) == 0) {
        check_touched(w, m->address);
    }
    if (LIKELY(x->init_clock <= s->warp[w->index].seen[x->init_warp]) ||
        x->init_clock <= s->inits_known[w->index][x->init_warp]) {
        return true;
    }
    const struct spot at = check_spot(w, x->init_pc);
    fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
             "the mbarrier at shared address 0x%x is used, but %s initialised it at %s; expected a barrier between "
             "them",
             m->address, check_warp(w, x->init_warp).text, at.text);
    return false;
}

/* Record that a warp arrives: it passes on what it has done. */
void check_mbarrier_arrives(struct warp *w, const struct mbarrier *m) {
    synchronise(w);
    release(w, &w->cta->shadow->mbarrier[index_of(w->cta, m)].gathering);
}

/* Check that a warp may arrive in this phase: some thread must have seen the previous phase complete. Return false
 * after a fault. */
bool check_mbarrier_arrival(struct warp *w, const struct mbarrier *m, uint32_t lane) {
    const struct mbarrier_shadow *x = &w->cta->shadow->mbarrier[index_of(w->cta, m)];
    if (LIKELY(m->phase <= x->waited)) {
        return true;
    }
    fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
             "an arrival in phase %u of the mbarrier at shared address 0x%x, but no thread has waited for phase %u; "
             "expected a successful wait for each phase before an arrival in the next",
             m->phase, m->address, m->phase - 1);
    return false;
}

/* Record that a phase has completed and the next has begun. */
void check_mbarrier_phase(struct cta *cta, const struct mbarrier *m) {
    struct shadow *s = cta->shadow;
    const uint32_t k = index_of(cta, m), agent = k % MBARRIER_AGENTS;
    struct mbarrier_shadow *x = &s->mbarrier[k];
    x->done = x->gathering;
    memset(x->copiers, 0, sizeof x->copiers);
    if (s->mbarrier_clock[agent] < x->base + m->phase) {
        s->mbarrier_clock[agent] = x->base + m->phase;
    }
}

/* Return whether a warp knows that the last phase has completed: a wait for it, or all its arrivals, are ordered
 * before. Nothing but a wait orders the copies of a phase. */
static bool knows_phase(const struct warp *w, const struct mbarrier *m) {
    const struct shadow *s = w->cta->shadow;
    const uint32_t k = index_of(w->cta, m);
    const struct mbarrier_shadow *x = &s->mbarrier[k];
    const uint32_t *seen = s->warp[w->index].seen;
    bool knows = x->copied < m->phase;
    for (uint32_t n = 0; knows && n < AGENT_MBARRIER; ++n) {
        knows = x->done.seen[n] <= seen[n];
    }
    return m->phase == 0 || knows || seen[AGENT_MBARRIER + k % MBARRIER_AGENTS] >= x->base + m->phase;
}

uint32_t check_mbarrier_refuses(struct warp *w, const struct mbarrier *m, uint32_t mask, bool is_done) {
    struct mbarrier_shadow *x = &w->cta->shadow->mbarrier[index_of(w->cta, m)];
    const uint32_t phase = m->phase - is_done + 1;
    if (x->asked_phase[w->index] != phase) {
        x->asked_phase[w->index] = phase;
        x->asked[w->index] = 0;
    }
    const uint32_t first = mask & ~x->asked[w->index];
    x->asked[w->index] |= mask;
    return first != 0 && !(is_done && knows_phase(w, m)) ? first : 0;
}

/* Record that a wait has seen the last phase complete. */
void check_mbarrier_waited(struct warp *w, const struct mbarrier *m, bool is_acquire) {
    struct shadow *s = w->cta->shadow;
    synchronise(w);
    const uint32_t k = index_of(w->cta, m), agent = AGENT_MBARRIER + k % MBARRIER_AGENTS;
    struct mbarrier_shadow *x = &s->mbarrier[k];
    uint32_t *seen = s->warp[w->index].seen;
    x->waited = x->waited > m->phase ? x->waited : m->phase;
    if (!is_acquire) {
        return;
    }
    join(s, &s->warp[w->index], &x->done);
    seen[agent] = seen[agent] > x->base + m->phase ? seen[agent] : x->base + m->phase;
}
