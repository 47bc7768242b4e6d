/* What steps do beside occupying units: barriers, groups of cp.async, and phases of mbarriers. */
#include <stdlib.h>
#include <string.h>

#include "model/sm.h"

enum { PASS_BYTES = 128 }; /* of shared memory in a wavefront, one clock */

/* How many phases of a ring a CTA uses. */
static int64_t phases_of(const sm120_simulated_ring *ring, const struct cta *cta) {
    return ring->once + ring->each * cta->rounds;
}

/* Return a phase, or NULL when out of memory. `number` is at least 0. */
static struct phase *phase_of(struct sm *sm, struct cta *cta, int32_t ring, int64_t number) {
    struct phases *const phases = &cta->rings[ring];
    if ((size_t)number >= phases->room) {
        const size_t room = 2 * (size_t)number + 16;
        struct phase *const of = realloc(phases->of, room * sizeof *of);
        if (of == NULL) {
            sm->is_exhausted = true;
            return NULL;
        }
        memset(of + phases->room, 0, (room - phases->room) * sizeof *of);
        *phases = (struct phases){.of = of, .room = room};
    }
    return &phases->of[number];
}

/* Return when a phase ends, or NEVER if that is not known yet. A phase without waiters has ended. */
static int64_t ended_at(struct sm *sm, struct cta *cta, int32_t ring, int64_t number) {
    const sm120_simulated_ring *const of = &sm->of->rings[ring];
    if (number < 0 || number >= phases_of(of, cta) - of->left) {
        return 0;
    }
    const struct phase *const phase = phase_of(sm, cta, ring, number);
    const bool has_ended = phase != NULL && phase->arrivals >= of->arrivals && phase->copies >= of->copies;
    return has_ended ? phase->last : NEVER;
}

/* Release the barrier of a wait at the time at which its phase ends; NEVER: not yet. */
static void release(const struct sm *sm, struct warp *warp, int32_t barrier, int64_t ended) {
    const int64_t at = ended == NEVER ? NEVER : ended + sm->of->mbarrier_wake;
    if (at > warp->barriers[barrier] || warp->barriers[barrier] == NEVER) {
        warp->barriers[barrier] = at;
        warp->why[barrier] = SM120_STALL_MBARRIER;
    }
}

/* Wake the warps whose phase has ended. */
static void look(struct sm *sm, struct cta *cta) {
    const size_t count = cta->wait_count;
    size_t kept = 0;
    for (size_t k = 0; k < count; ++k) {
        const struct wait wait = cta->waits[k];
        const int64_t ended = ended_at(sm, cta, wait.ring, wait.number);
        if (ended == NEVER) {
            cta->waits[kept++] = wait;
        } else {
            release(sm, wait.warp, wait.barrier, ended);
            if (wait.warp->ready == NEVER && !wait.warp->is_held) {
                sm_settle(sm, wait.warp);
            }
        }
    }
    cta->wait_count = kept;
}

/* Copy bytes of a phase. */
static void copy(struct sm *sm, struct cta *cta, int32_t ring, int64_t number, int64_t at, int64_t bytes) {
    sm->copy_free = later_of(sm->copy_free, (double)at) + (double)bytes / sm->of->copy_rate;
    sm->arriving += (double)bytes / PASS_BYTES;
    struct phase *const phase = phase_of(sm, cta, ring, number);
    if (phase != NULL) {
        ++phase->copies;
        phase->last = later(phase->last, sm_whole(sm->copy_free) + sm->of->copy_latency);
    }
    look(sm, cta);
}

/* How many tiles the rounds of a CTA take from warps that are not simulated, as far as its rounds are known. */
static int64_t tiles_to_fill(const struct sm *sm, const struct cta *cta) {
    int64_t most = 0;
    for (int32_t ring = 0; sm->of->emptied >= 0 && ring < sm->of->ring_count; ++ring) {
        const sm120_simulated_ring *const of = &sm->of->rings[ring];
        most = of->is_filled != 0 ? later(most, phases_of(of, cta)) : most;
    }
    return most;
}

/* Load a tile on behalf of warps that are not simulated. */
static void fill(struct sm *sm, struct cta *cta, int64_t number, int64_t at) {
    for (int32_t ring = 0; ring < sm->of->ring_count; ++ring) {
        const sm120_simulated_ring *const of = &sm->of->rings[ring];
        const int32_t copies = of->is_filled != 0 && number < phases_of(of, cta) ? of->copies : 0;
        for (int32_t k = 0; k < copies; ++k) {
            copy(sm, cta, ring, number, at, of->bytes / of->copies);
        }
    }
}

void sm_fill(struct sm *sm, struct cta *cta, int64_t at) {
    for (const int64_t tiles = tiles_to_fill(sm, cta); cta->filled < tiles;) {
        const int64_t number = cta->filled, emptied = number - sm->of->stages;
        const int64_t ended = emptied < 0 ? 0 : ended_at(sm, cta, sm->of->emptied, emptied);
        if (ended == NEVER) {
            return;
        }
        ++cta->filled; /* before the warps that wait for the tile go on */
        fill(sm, cta, number, emptied < 0 ? at : later(at, ended + sm->of->mbarrier_wake));
    }
}

/* Arrive in a phase. */
static void arrive(struct sm *sm, struct cta *cta, const sm120_simulated_step *step, int64_t number, int64_t now) {
    struct phase *const phase = phase_of(sm, cta, step->ring, number);
    if (phase == NULL) {
        return;
    }
    phase->arrivals += step->amount;
    phase->last = later(phase->last, now + step->latency);
    const int64_t last = phase->last;
    if (step->ring == sm->of->emptied && ended_at(sm, cta, step->ring, number) != NEVER) {
        sm_fill(sm, cta, last + sm->of->mbarrier_wake);
    }
    look(sm, cta);
}

/* Let a warp wait until a phase ends. */
static void hold(struct sm *sm, struct warp *warp, const sm120_simulated_step *step, int64_t number) {
    struct cta *const cta = warp->cta;
    if (step->writes < 0) {
        return;
    }
    const int64_t ended = ended_at(sm, cta, step->ring, number);
    if (ended == NEVER) {
        warp->barriers[step->writes] = NEVER;
        warp->why[step->writes] = SM120_STALL_MBARRIER;
    } else {
        release(sm, warp, step->writes, ended);
    }
    if (warp->barriers[step->writes] != NEVER) {
        return;
    }
    if (cta->wait_count == cta->wait_room) {
        const size_t room = 2 * cta->wait_room + 64;
        struct wait *const waits = realloc(cta->waits, room * sizeof *waits);
        if (waits == NULL) {
            sm->is_exhausted = true;
            return;
        }
        cta->waits = waits;
        cta->wait_room = room;
    }
    cta->waits[cta->wait_count++] =
        (struct wait){.warp = warp, .number = number, .ring = step->ring, .barrier = step->writes};
}

/* Append to the groups of a warp that nobody waited for. */
static void commit(struct sm *sm, struct warp *warp) {
    if (warp->group_first + warp->group_count == warp->group_room) {
        if (2 * warp->group_first > warp->group_room) { /* move to the front */
            memmove(warp->groups, warp->groups + warp->group_first, warp->group_count * sizeof *warp->groups);
            warp->group_first = 0;
        } else {
            const size_t room = 2 * warp->group_room + 16;
            int64_t *const groups = realloc(warp->groups, room * sizeof *groups);
            if (groups == NULL) {
                sm->is_exhausted = true;
                return;
            }
            warp->groups = groups;
            warp->group_room = room;
        }
    }
    warp->groups[warp->group_first + warp->group_count++] = warp->landing;
}

/* Perform cp.async, its commit_group and its wait_group. */
static void group(struct sm *sm, struct warp *warp, const sm120_simulated_step *step, int64_t now) {
    if (step->action == SM120_STEP_LOAD) {
        sm->copy_free = later_of(sm->copy_free, (double)now) + (double)step->amount / sm->of->load_rate;
        sm->arriving += step->written;
        warp->landing = later(warp->landing, sm_whole(sm->copy_free) + step->landing);
    } else if (step->action == SM120_STEP_COMMIT) {
        commit(sm, warp);
    } else {
        for (; (int64_t)warp->group_count > step->amount; --warp->group_count) {
            warp->landed = later(warp->landed, warp->groups[warp->group_first++]);
        }
    }
}

void sm_meet(struct sm *sm, struct meeting *meeting) {
    const int32_t count = meeting->count;
    meeting->reached = meeting->count = 0;
    for (int32_t k = 0; k < count; ++k) {
        struct warp *const warp = meeting->waiting[k];
        warp->next = later(warp->next, sm->barrier_free + sm->of->barrier_latency);
        sm_settle(sm, warp);
        warp->is_held = false;
    }
}

/* Reach a barrier of the CTA, or with roles of as many warps as it names. Return whether the warp goes on.
 *
 * Warps that reach the barrier of the same number meet; if it is unknown, 0, those as far apart as there are groups. */
static bool barrier(struct sm *sm, struct warp *warp, const sm120_simulated_step *step, int64_t now) {
    const bool waits = step->action == SM120_STEP_BARRIER;
    const int64_t count = sm->of->has_roles != 0 ? step->amount : 0;
    if (!waits && count == 0) {
        return true;
    }
    const int64_t apart = count != 0 ? sm->of->warps / count : 0;
    struct cta *const cta = warp->cta;
    const int64_t some = step->ring != 0 ? sm->of->warps + step->ring : 1 + warp->index % (apart > 1 ? apart : 1);
    struct meeting *const meeting = &cta->meetings[count != 0 ? some : 0];
    sm->barrier_free = later(sm->barrier_free, now) + sm->of->barrier_interval;
    ++meeting->reached;
    if (waits) {
        warp->ready = NEVER;
        warp->is_held = true; /* an mbarrier that it waits for later does not wake it */
        meeting->waiting[meeting->count++] = warp;
    }
    if (meeting->reached == (count != 0 ? count : cta->left)) {
        sm_meet(sm, meeting);
    }
    return !waits;
}

bool sm_act(struct sm *sm, struct warp *warp, const sm120_simulated_step *step, int64_t now) {
    const int64_t number = step->ahead + warp->round;
    switch (step->action) {
    case SM120_STEP_BARRIER:
    case SM120_STEP_REACH:
        return barrier(sm, warp, step, now);
    case SM120_STEP_LOAD:
    case SM120_STEP_COMMIT:
    case SM120_STEP_DRAIN:
        group(sm, warp, step, now);
        return true;
    default:
        break;
    }
    if (warp->section == SECTION_BEHIND) {
        return true;
    }
    if (step->action == SM120_STEP_WAIT) {
        hold(sm, warp, step, number);
    } else if (number < 0 || number >= phases_of(&sm->of->rings[step->ring], warp->cta)) {
        return true; /* of a tile beyond the last one */
    } else if (step->action == SM120_STEP_COPY) {
        copy(sm, warp->cta, step->ring, number, now, step->amount);
    } else {
        arrive(sm, warp->cta, step, number, now);
    }
    return true;
}
