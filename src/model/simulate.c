/* Simulating a multiprocessor: the clock, and the starts and ends of CTAs. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/sm.h"
#include "runtime/error.h"

/* Free the lists of a CTA and of its warps. */
static void empty(struct sm *sm, struct cta *cta) {
    const int32_t first = (int32_t)(cta - sm->ctas) * sm->members;
    for (int32_t k = 0; k < sm->members; ++k) {
        free(sm->warps[first + k].groups);
        sm->warps[first + k].groups = NULL;
    }
    for (int32_t k = 0; cta->meetings != NULL && k < meetings_of(sm->of); ++k) {
        free(cta->meetings[k].waiting);
    }
    for (int32_t k = 0; cta->rings != NULL && k < sm->of->ring_count; ++k) {
        free(cta->rings[k].of);
    }
    free(cta->meetings);
    free(cta->rings);
    free(cta->tiles);
    free(cta->waits);
    *cta = (struct cta){.left = 0};
}

static void close_sm(struct sm *sm) {
    for (int32_t k = 0; sm->ctas != NULL && sm->warps != NULL && k < sm->next_cta; ++k) {
        empty(sm, &sm->ctas[k]);
    }
    for (int32_t q = 0; q < QUARTERS; ++q) {
        for (int32_t k = 0; sm->queues[q] != NULL && k < sm->of->pipes; ++k) {
            free(sm->queues[q][k].begun);
        }
        free(sm->queues[q]);
        free(sm->free[q]);
        free(sm->resident[q]);
    }
    free(sm->code);
    free(sm->starts);
    free(sm->ended);
    free(sm->ctas);
    free(sm->warps);
}

/* Return false when out of memory. */
static bool open_sm(struct sm *sm, const sm120_simulation *of, sm120_simulation_result *result) {
    const size_t pipes = (size_t)of->pipes, members = (size_t)(of->warps + of->beside), tiles = (size_t)of->tiles;
    const size_t lines = (size_t)of->code_sets * (size_t)of->code_ways;
    *sm = (struct sm){.of = of, .result = result, .members = (int32_t)members, .started = -of->cta_interval};
    sm->ctas = calloc(tiles, sizeof *sm->ctas);
    sm->warps = calloc(tiles * members, sizeof *sm->warps);
    sm->starts = calloc(tiles, sizeof *sm->starts);
    sm->ended = calloc(tiles * members, sizeof *sm->ended);
    bool is_open = sm->ctas != NULL && sm->warps != NULL && sm->starts != NULL && sm->ended != NULL;
    if (lines != 0) {
        sm->code = calloc(lines, sizeof *sm->code);
        is_open = is_open && sm->code != NULL;
        for (size_t k = 0; sm->code != NULL && k < lines; ++k) {
            sm->code[k].number = -1;
        }
    }
    for (int32_t q = 0; q < QUARTERS; ++q) {
        sm->wake[q] = NEVER;
        sm->free[q] = calloc(pipes, sizeof *sm->free[q]);
        sm->queues[q] = calloc(pipes, sizeof *sm->queues[q]);
        sm->resident[q] = calloc(tiles * members, sizeof *sm->resident[q]);
        is_open = is_open && sm->free[q] != NULL && sm->queues[q] != NULL && sm->resident[q] != NULL;
        for (size_t k = 0; sm->queues[q] != NULL && k < pipes; ++k) {
            sm->queues[q][k].begun = calloc((size_t)of->queue_depth, sizeof *sm->queues[q][k].begun);
            is_open = is_open && sm->queues[q][k].begun != NULL;
        }
    }
    return is_open;
}

void sm_take(struct sm *sm, struct warp *warp) {
    const sm120_simulation *const of = sm->of;
    struct cta *const cta = warp->cta;
    if (++warp->tile == cta->begun) {
        ++cta->begun;
        if (of->between >= 0 && of->tiles - sm->next_tile > sm->start_count) {
            cta->tiles[cta->tile_count] = sm->next_tile++;
            cta->rounds += of->rounds_of_kind[of->kind_of_tile[cta->tiles[cta->tile_count++]]];
            sm_fill(sm, cta, warp->last);
        }
    }
    const int64_t kind = of->kind_of_tile[cta->tiles[warp->tile]];
    warp->first = warp->end;
    warp->end += of->rounds_of_kind[kind];
    const int64_t turn = warp->first % of->turns;
    warp->ways = &of->path_of_round[of->rounds_begin[(warp->index * of->kinds + kind) * of->turns + turn]];
}

/* Put a warp of a CTA at the begin of its path. */
static void place_warp(struct sm *sm, struct cta *cta, int32_t index, int64_t at) {
    const sm120_simulation *const of = sm->of;
    const int32_t number = (int32_t)(cta - sm->ctas) * sm->members + index;
    struct warp *const warp = &sm->warps[number];
    *warp = (struct warp){.cta = cta,
                          .number = number,
                          .index = index,
                          .quarter = number % QUARTERS,
                          .tile = -1,
                          .section = index < of->warps ? SECTION_BEFORE : SECTION_BEHIND,
                          .next = at,
                          .last = at,
                          .line = -1,
                          .blocked = -1};
    const int32_t path = index < of->warps ? of->before[index] : of->behind[index];
    warp->step = &of->steps[of->path_begin[path]];
    warp->path_end = &of->steps[of->path_begin[path + 1]];
    if (index < of->warps) {
        sm_take(sm, warp);
    }
    sm->resident[warp->quarter][sm->resident_count[warp->quarter]++] = warp;
    sm_settle(sm, warp);
    sm->has_idle = sm->has_idle || warp->step == warp->path_end;
}

/* Make a CTA resident. */
static void begin_cta(struct sm *sm, int64_t at) {
    const sm120_simulation *const of = sm->of;
    struct cta *const cta = &sm->ctas[sm->next_cta++];
    const size_t tiles = of->between >= 0 ? (size_t)(of->tiles - sm->next_tile) : 1;
    cta->left = sm->members;
    cta->tiles = calloc(tiles, sizeof *cta->tiles);
    cta->rings = calloc((size_t)of->ring_count + 1, sizeof *cta->rings);
    cta->meetings = calloc((size_t)meetings_of(of), sizeof *cta->meetings);
    sm->is_exhausted = sm->is_exhausted || cta->tiles == NULL || cta->rings == NULL || cta->meetings == NULL;
    for (int32_t k = 0; cta->meetings != NULL && k < meetings_of(of); ++k) {
        cta->meetings[k].waiting = calloc((size_t)sm->members, sizeof(struct warp *));
        sm->is_exhausted = sm->is_exhausted || cta->meetings[k].waiting == NULL;
    }
    if (sm->is_exhausted) {
        return;
    }
    cta->tiles[cta->tile_count++] = sm->next_tile;
    cta->rounds = of->rounds_of_kind[of->kind_of_tile[sm->next_tile++]];
    for (int32_t index = 0; index < sm->members; ++index) {
        place_warp(sm, cta, index, at);
    }
    sm_fill(sm, cta, at);
}

/* Retire a warp; return whether it was the last of its CTA. */
static bool retire(struct sm *sm, struct warp *warp, int64_t now) {
    struct warp **const resident = sm->resident[warp->quarter];
    struct cta *const cta = warp->cta;
    int32_t at = 0;
    while (resident[at] != warp) {
        ++at;
    }
    for (--sm->resident_count[warp->quarter]; at < sm->resident_count[warp->quarter]; ++at) {
        resident[at] = resident[at + 1];
    }
    if (--cta->left == 0) {
        sm->result->ends[sm->result->ended++] = now;
        empty(sm, cta);
        return true;
    }
    if (cta->meetings[0].reached == cta->left) { /* the others have waited for this warp */
        sm->barrier_free = later(sm->barrier_free, now);
        sm_meet(sm, &cta->meetings[0]);
    }
    return false;
}

/* Return the warp that a quarter issues from, or NULL and in `wake` the next time at which one may be ready. */
static struct warp *choose(struct sm *sm, int32_t quarter, int64_t now) {
    const struct warp *const last = sm->issued[quarter];
    const bool keeps = sm->of->is_greedy != 0 && last != NULL && last->last == now - 1 && last->ready <= now;
    struct warp *chosen = NULL;
    int64_t soonest = NEVER;
    for (int32_t k = 0; k < sm->resident_count[quarter]; ++k) {
        struct warp *const warp = sm->resident[quarter][k];
        double at = (double)warp->ready;
        if (warp->ready <= now) {
            at = sm_open_at(sm, warp, now);
            if (at <= (double)now) {
                if (chosen == NULL || (keeps ? warp == last : warp->last < chosen->last)) {
                    chosen = warp;
                }
                continue;
            }
        }
        if (at < (double)soonest) {
            soonest = sm_whole(at);
        }
    }
    if (chosen == NULL) {
        sm->wake[quarter] = soonest;
    }
    return chosen;
}

/* Add a start of a CTA, in order. */
static void add_start(struct sm *sm, int64_t at) {
    int32_t k = sm->start_count++;
    for (; k > 0 && sm->starts[k - 1] > at; --k) {
        sm->starts[k] = sm->starts[k - 1];
    }
    sm->starts[k] = at;
}

static int64_t first_start(struct sm *sm) {
    const int64_t at = sm->starts[0];
    --sm->start_count;
    for (int32_t k = 0; k < sm->start_count; ++k) {
        sm->starts[k] = sm->starts[k + 1];
    }
    return at;
}

/* Retire the warps that have ended, and start CTAs in place of those that have. Return how many warps these were. */
static int64_t retire_ended(struct sm *sm, int64_t now) {
    int32_t count = 0;
    for (; count < sm->ended_count; ++count) { /* one may let others go on, which end too */
        if (retire(sm, sm->ended[count], now) && sm->of->tiles - sm->next_tile > sm->start_count) {
            /* A CTA keeps its place until its stores have left. */
            const int64_t free_at = later(now, sm_whole(sm->drained));
            sm->started = later(free_at + sm->of->cta_start, sm->started + sm->of->cta_interval);
            add_start(sm, sm->started);
        }
    }
    sm->ended_count = 0;
    return count;
}

/* Let a quarter issue a step, if a warp is ready. Return how many warps have ended. */
static int64_t step_quarter(struct sm *sm, int32_t quarter, int64_t now) {
    struct warp *const warp = choose(sm, quarter, now);
    if (warp == NULL) {
        return 0;
    }
    sm->issued[quarter] = warp;
    sm->wake[quarter] = now + 1;
    sm_issue(sm, warp, now);
    return retire_ended(sm, now);
}

static sm120_status run_sm(struct sm *sm) {
    const sm120_simulation *const of = sm->of;
    int64_t live = 0, now = 0;
    for (int32_t slot = 0; slot < of->slots && slot < of->tiles; ++slot) {
        add_start(sm, slot * of->offset);
    }
    while ((live != 0 || sm->start_count != 0) && !sm->is_exhausted && !sm->has_idle) {
        now = sm->wake[0];
        for (int32_t q = 1; q < QUARTERS; ++q) {
            now = sm->wake[q] < now ? sm->wake[q] : now;
        }
        if (sm->start_count != 0 && sm->starts[0] <= now) {
            begin_cta(sm, first_start(sm));
            live += sm->members;
            continue;
        }
        if (now == NEVER) {
            return fail(SM120_UNSUPPORTED, "the simulated warps wait for each other: the paths do not fit together");
        }
        for (int32_t q = 0; q < QUARTERS; ++q) {
            live -= sm->wake[q] <= now ? step_quarter(sm, q, now) : 0;
        }
    }
    if (sm->has_idle) {
        return fail(SM120_INVALID_ARGUMENT, "a warp of the simulation has no step on its paths; give it at least one");
    }
    sm->result->clocks = now;
    return sm->is_exhausted ? fail(SM120_OUT_OF_MEMORY, "out of host memory for the simulation") : SM120_OK;
}

sm120_status sm120_simulate(const sm120_simulation *simulation, sm120_simulation_result *result) {
    error_clear();
    sm120_status status = sm_check(simulation, result);
    if (status != SM120_OK) {
        return status;
    }
    const size_t pipes = (size_t)simulation->pipes;
    result->ended = 0;
    result->clocks = result->issued = result->lines = 0;
    result->event_count = 0;
    memset(result->busy, 0, (pipes + 1) * sizeof *result->busy);
    memset(result->stalls, 0, (size_t)simulation->places * (SM120_STALL_RESULT + 2 * pipes) * sizeof *result->stalls);
    struct sm sm;
    status =
        open_sm(&sm, simulation, result)
            ? run_sm(&sm)
            : fail(SM120_OUT_OF_MEMORY, "out of host memory for a simulation of %" PRId32 " tiles", simulation->tiles);
    close_sm(&sm);
    return status;
}
