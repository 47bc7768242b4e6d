/* Polls: reads that a lane repeats until another warp or CTA answers. A strong read (volatile, relaxed, acquire) or
 * an atomic operation without effect is a poll if the same instruction repeatedly reads the same value at the same
 * address while its CTA writes nothing. Decisions do not depend on the numeric value of addresses, so the seed
 * determines the run. */
#include "vm/execute/poll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/execute/collect.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

enum { PATIENCE = 4, ENOUGH = 16, QUIET = 64, WAYS = 2 };

struct poll {
    const uint8_t *place;
    uint64_t value, changes;
    uint32_t pc, repeats, bytes;
};

/* Return a number that changes whenever a worker writes to global memory. */
uint64_t poll_changes(const struct worker *worker) {
    return worker->changes + worker->bytes[TRAFFIC_ST_GLOBAL] + worker->bytes[TRAFFIC_BULK_STORE] +
           worker->bytes[TRAFFIC_BULK_REDUCE];
}

/* Return a measure of all work except loads and local stores. It does not change while a CTA only polls. */
static uint64_t work_of(const struct worker *worker) {
    uint64_t work = worker->tensor_flops;
    for (uint32_t k = 0; k < TRAFFIC_COUNT; ++k) {
        if (k != TRAFFIC_LD_GLOBAL && k != TRAFFIC_LD_LOCAL && k != TRAFFIC_ST_LOCAL) {
            work += worker->bytes[k];
        }
    }
    return work;
}

/* Return the value in memory, or a hash if it is longer than 8 bytes. */
static uint64_t value_at(const uint8_t *place, uint32_t bytes) {
    uint64_t value = 0;
    for (uint32_t k = 0; k < bytes; k += 8) {
        uint64_t word = 0;
        memcpy(&word, place + k, bytes - k < 8 ? bytes - k : 8);
        value = value * 0x9e3779b97f4a7c15u + word;
    }
    return value;
}

/* Return the records of a lane's last two polls. */
static struct poll *polls_of(const struct warp *w, uint32_t lane) {
    return &w->cta->polls[(w->index * WARP + lane) * WAYS];
}

/* Record one lane's read. Return how often it has been repeated. */
static uint32_t note(struct poll *p, const uint8_t *place, uint32_t bytes, uint32_t pc, uint64_t changes) {
    const uint64_t value = value_at(place, bytes);
    const uint32_t k = p[0].pc == pc && p[0].place == place ? 0 : 1;
    if (k != 0 && !(p[1].pc == pc && p[1].place == place)) {
        p[1] = p[0];
        p[0] = (struct poll){place, value, changes, pc, 0, bytes};
        return 0;
    }
    p[k].repeats = p[k].value == value && p[k].changes == changes ? p[k].repeats + 1 : 0;
    p[k].value = value;
    p[k].changes = changes;
    return p[k].repeats;
}

/* Record a read of `bytes` bytes by some lanes. Return true if all of them have repeated it, with the same value
 * every time. */
bool poll_note(struct warp *w, uint8_t *const *place, uint32_t mask, uint32_t bytes, int is_shared) {
    struct cta *cta = w->cta;
    const uint64_t changes = poll_changes(w->worker) - cta->changes_base;
    if (cta->polls == NULL && (cta->polls = calloc(MAX_WARPS * WARP * WAYS, sizeof *cta->polls)) == NULL) {
        return false;
    }
    bool all = true;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        all &= note(polls_of(w, lane), place[lane], bytes, w->pc, changes) >= PATIENCE;
    }
    if (!all) {
        return false;
    }
    ++cta->polled;
    cta->waits_outside |= is_shared == 0;
    return true;
}

/* Clear the records at the start of a CTA. */
void poll_start(struct cta *cta) {
    if (cta->polls != NULL) {
        memset(cta->polls, 0, MAX_WARPS * WARP * WAYS * sizeof *cta->polls);
    }
    cta->changes = cta->work = cta->slice_start = cta->slice_changes = cta->slice_work = 0;
    cta->polled = cta->quiet_slices = 0;
}

/* Start attributing the worker's work to this CTA. */
void poll_enter(struct cta *cta, const struct worker *worker) {
    cta->changes_base = poll_changes(worker) - cta->changes;
    cta->work_base = work_of(worker) - cta->work;
}

/* Stop attributing the worker's work to this CTA. */
void poll_leave(struct cta *cta, const struct worker *worker) {
    cta->changes = poll_changes(worker) - cta->changes_base;
    cta->work = work_of(worker) - cta->work_base;
}

/* At the end of a slice, return whether the CTA only polled in it. A CTA that polls with weak reads gets more slices
 * before it counts. */
bool poll_is_all(struct cta *cta, const struct worker *worker) {
    poll_leave(cta, worker);
    const bool polls = cta->changes == cta->slice_changes && cta->polled >= ENOUGH;
    const bool reads = worker->bytes[TRAFFIC_LD_GLOBAL] != cta->slice_reads;
    cta->slice_reads = worker->bytes[TRAFFIC_LD_GLOBAL];
    cta->quiet_slices = reads && cta->work == cta->slice_work ? cta->quiet_slices + 1 : 0;
    cta->slice_start = cta->executed;
    cta->slice_changes = cta->changes;
    cta->slice_work = cta->work;
    cta->polled = 0;
    return polls || cta->quiet_slices > QUIET;
}

/* Record what a waiting CTA polls. Beyond the limit of `watched`, polls are left out; idle threads retry such CTAs
 * anyway. */
void poll_watch(struct cta *cta) {
    enum { MOST = sizeof cta->watched / sizeof *cta->watched };
    cta->watches = 0;
    for (uint32_t k = 0; cta->polls != NULL && k < cta->warps * WARP * WAYS && cta->watches < MOST; ++k) {
        struct poll *p = &cta->polls[k];
        const struct poll *last = cta->watches != 0 ? cta->watched[cta->watches - 1] : NULL;
        if (p->repeats >= PATIENCE && !(last != NULL && last->place == p->place && last->value == p->value)) {
            cta->watched[cta->watches++] = p;
        }
    }
}

/* Return whether a polled value has changed. Each change counts once. */
bool poll_has_answer(const struct cta *cta) {
    for (uint32_t k = 0; k < cta->watches; ++k) {
        struct poll *p = cta->watched[k];
        if (p->repeats < PATIENCE || value_at(p->place, p->bytes) == p->value) {
            continue;
        }
        p->repeats = 0;
        return true;
    }
    return false;
}

/* Describe what lanes of a warp poll, for a report. Return 0 if they poll nothing. */
int poll_describe(const struct warp *w, uint32_t mask, char *to, size_t bytes) {
    const struct poll *longest = NULL;
    for (uint32_t rest = w->cta->polls != NULL ? mask : 0; rest != 0; rest &= rest - 1) {
        for (uint32_t k = 0; k < WAYS; ++k) {
            const struct poll *p = polls_of(w, lowest_bit(rest)) + k;
            if (p->repeats >= PATIENCE && (longest == NULL || p->repeats > longest->repeats)) {
                longest = p;
            }
        }
    }
    if (longest == NULL) {
        return 0;
    }
    const struct place *at = &w->function->places[longest->pc];
    const uint64_t offset = (uintptr_t)longest->place - (uintptr_t)w->cta->shared;
    const bool is_shared = offset < w->cta->shared_bytes;
    return snprintf(to, bytes, "a value other than 0x%llx at %s address 0x%llx, polled at %s",
                    (unsigned long long)longest->value, is_shared ? "shared" : "global",
                    is_shared ? (unsigned long long)offset + SHARED_BASE
                              : (unsigned long long)(uintptr_t)longest->place,
                    spot_of(at).text);
}

/* ---- what a split waits for ---- */

/* Describe what a split waits for. */
void cta_wait_text(const struct warp *w, const struct split *s, char *to, size_t bytes) {
    const struct cta *cta = w->cta;
    const uint16_t slot =
        s->wait == WAIT_MBARRIER || s->polled != 0 ? cta->mbarrier_at[(s->address - SHARED_BASE) / 8] : 0;
    if (s->wait == WAIT_MEMBERS || s->wait == WAIT_ALIGNED) {
        const uint32_t missing = s->wait == WAIT_MEMBERS ? collect_missing(w, s) : s->detail & w->live & ~s->mask;
        snprintf(to, bytes, "lanes 0x%08x of its own warp", missing);
    } else if (s->wait == WAIT_POOL) {
        snprintf(to, bytes, "%u registers: %u are in the pool of the CTA", s->detail, warp_member(w)->pool);
    } else if (s->wait == WAIT_BULK) {
        snprintf(to, bytes, "its bulk copies");
    } else if (s->wait == WAIT_BARRIER) {
        snprintf(to, bytes, "barrier %u: %u of %u threads have arrived", barrier_number(s->address),
                 cta->barrier[s->address].arrived, s->detail);
    } else if (s->wait != WAIT_MBARRIER && poll_describe(w, s->mask, to, bytes) != 0) {
        return;
    } else if (slot != 0) {
        const struct mbarrier *m = &cta->mbarrier[slot - 1];
        const int length = snprintf(
            to, bytes, "phase %u of the mbarrier at shared address 0x%x: %u of %u arrivals and %d bytes are pending",
            s->phase, m->address, m->pending, m->expected, m->tx > 0 ? m->tx : 0);
        if (m->tx < 0 && length > 0 && (size_t)length < bytes) {
            snprintf(to + length, bytes - (size_t)length, ", and %lld more arrived than were expected",
                     -(long long)m->tx);
        }
    } else {
        snprintf(to, bytes, "nothing: it runs, perhaps in a loop that polls");
    }
}
