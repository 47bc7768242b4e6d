/* Running one warp. Its lanes may be at several pcs. The lanes at one pc are a split. The lowest pc runs first, so
 * that splits meet again where control flow joins. Splits that reach the same pc are merged. */
#include "vm/execute/async.h"
#include "vm/execute/collect.h"
#include "vm/execute/mbarrier.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"
#include "vm/machine/watch.h"
#include "vm/run/run.h"

/* Return whether a split can run. If it waits for an event, check whether the event has happened. */
static bool ready(const struct warp *w, const struct split *s) {
    switch (s->wait) {
    case WAIT_NOT:
        return true;
    case WAIT_MBARRIER:
        return s->forced != 0 || mbarrier_passed(w->cta, s->address, s->phase);
    case WAIT_MEMBERS: /* the last lane to arrive ends the wait; so may the exit of one that has not arrived */
        return s->detail != w->live && collect_complete(w, s);
    case WAIT_ALIGNED:
        return (s->detail & w->live & ~s->mask) == 0;
    case WAIT_POOL:
        return warp_member(w)->pool >= s->detail;
    case WAIT_BULK:
        return async_bulk_done(w, s->mask, s->detail);
    default:
        return false;
    }
}

/* Merge splits that are at the same pc, except a split that waits at a barrier where it has arrived. */
static void merge(struct warp *w) {
    for (uint32_t a = 0; a < w->splits; ++a) {
        for (uint32_t b = a + 1; b < w->splits;) {
            struct split *x = &w->split[a], *y = &w->split[b];
            if (x->pc != y->pc || x->wait == WAIT_BARRIER || y->wait == WAIT_BARRIER) {
                ++b;
                continue;
            }
            x->mask |= y->mask;
            x->wait = WAIT_NOT;
            x->forced |= y->forced;
            x->skip &= y->skip;
            *y = w->split[--w->splits];
        }
    }
}

/* Return whether one split runs before another. Lanes inside a function run first, because they return to where the
 * others wait. */
static bool goes_first(const struct warp *w, const struct split *a, const struct split *b) {
    if (w->function->call_depth != 0) {
        const uint32_t x = w->depth[lowest_bit(a->mask)], y = w->depth[lowest_bit(b->mask)];
        if (x != y) {
            return x > y;
        }
    }
    return a->pc < b->pc;
}

/* Choose the split to run: the lowest pc of those that can run and have not used up their quantum. Lanes that have met
 * at a collective go first. Return -1 if there is none. */
static int choose(struct warp *w) {
    int best = -1, skipped = -1;
    for (uint32_t n = 0; UNLIKELY(w->met != 0) && n < w->splits; ++n) {
        if ((w->split[n].mask & w->met) != 0) {
            return (int)n;
        }
    }
    for (uint32_t n = 0; n < w->splits; ++n) {
        struct split *s = &w->split[n];
        if (!ready(w, s)) {
            continue;
        }
        int *slot = s->skip != 0 ? &skipped : &best;
        if (*slot < 0 || goes_first(w, s, &w->split[*slot])) {
            *slot = (int)n;
        }
    }
    if (best >= 0 || skipped < 0) {
        return best;
    }
    for (uint32_t n = 0; n < w->splits; ++n) {
        w->split[n].skip = 0;
    }
    return skipped;
}

/* Return where the current split may meet another: the lowest pc of the others that is above its own. */
static uint32_t meeting_point(const struct warp *w, uint32_t pc) {
    uint32_t limit = UINT32_MAX;
    for (uint32_t n = 0; n < w->splits; ++n) {
        if (n != w->current && w->split[n].pc > pc && w->split[n].pc < limit) {
            limit = w->split[n].pc;
        }
    }
    return limit;
}

/* Why run_straight() has stopped. */
enum stretch { STRETCH_LIMIT, STRETCH_JUMP, STRETCH_QUANTUM, STRETCH_POLL, STRETCH_WAIT, STRETCH_FAULT };

/* Execute the current split without leaving the straight line, until something stops it. */
static inline enum stretch run_straight(struct warp *w, uint32_t limit, uint32_t *budget, const bool watched) {
    const struct inst *const code = w->function->code;
    uint64_t *const counts = w->worker->counts;
    const uint32_t *const predicates = w->predicates, single = w->splits == 1;
    uint32_t pc = w->pc, left = *budget;
    enum stretch end;
    for (;;) {
        if (UNLIKELY(pc == limit || left == 0)) {
            end = pc == limit ? STRETCH_LIMIT : STRETCH_QUANTUM;
            break;
        }
        --left;
        const struct inst *i = &code[pc];
        const uint32_t mask = w->active & (predicates[i->guard] ^ i->flip);
        ++counts[pc];
        if (mask == 0 && !watched) {
            ++pc;
            continue;
        }
        w->pc = pc;
        const enum step step = watched ? watch_step(w, i, mask) : i->run(w, i, mask);
        if (LIKELY(step == STEP_NEXT)) {
            ++pc;
        } else if (step == STEP_JUMP || step == STEP_PART) {
            pc = w->pc;
            if (single == 0 || w->splits != 1 || w->live == 0) {
                end = STRETCH_JUMP;
                break;
            }
        } else {
            end = step == STEP_FAULT ? STRETCH_FAULT : step == STEP_YIELD ? STRETCH_POLL : STRETCH_WAIT;
            counts[pc] -= step == STEP_AGAIN;
            pc += step == STEP_YIELD;
            break;
        }
    }
    *budget = left;
    w->pc = pc;
    return end;
}

/* Run run_straight() with or without watchers. Two copies are compiled, so that launches without watchers pay
 * nothing. */
static enum stretch run_stretch(struct warp *w, uint32_t limit, uint32_t *budget) {
    return w->cta->launch->watchers != 0 ? run_straight(w, limit, budget, true) : run_straight(w, limit, budget, false);
}

/* Let splits with a higher pc run if this one polls in vain or has run for very long, because it may wait for them.
 * Otherwise they wait for it, where control flow joins. */
static void rotate(const struct warp *w, struct split *s, bool polled, uint32_t executed) {
    enum { PATIENCE = 1 << 16 };
    s->ran += executed;
    if (w->splits < 2 || (!polled && s->ran < PATIENCE)) {
        return;
    }
    s->skip = 1;
    s->ran = 0;
}

/* Run a warp until all its splits wait, a poll fails, or its quantum ends. */
enum turn warp_run(struct warp *w, uint32_t quantum, uint32_t *executed) {
    uint32_t budget = quantum;
    enum turn turn = TURN_USED;
    while (w->splits != 0) {
        if (w->splits > 1 && w->met == 0) {
            merge(w);
        }
        const int next = choose(w);
        if (next < 0) {
            turn = TURN_BLOCKED;
            break;
        }
        struct split *s = &w->split[next];
        s->wait = WAIT_NOT;
        w->current = (uint32_t)next;
        w->pc = s->pc;
        w->active = s->mask;
        const uint32_t limit = w->splits > 1 ? meeting_point(w, s->pc) : UINT32_MAX;
        const uint32_t before = budget;
        const enum stretch end = run_stretch(w, limit, &budget);
        if (end == STRETCH_FAULT) {
            turn = TURN_FAULT;
            break;
        }
        s = &w->split[w->current];
        if (w->splits != 0) {
            s->pc = w->pc;
        }
        if (w->splits != 0 && s->mask == 0) {
            *s = w->split[--w->splits];
        } else if (w->splits != 0) {
            rotate(w, s, end == STRETCH_POLL, before - budget);
        }
        if (end == STRETCH_QUANTUM || end == STRETCH_POLL) {
            turn = end == STRETCH_POLL ? TURN_POLLED : TURN_USED;
            break;
        }
    }
    *executed = quantum - budget;
    if (turn == TURN_FAULT) {
        return turn;
    }
    return w->splits != 0 ? turn : TURN_DONE;
}
