/* Fetching instructions: the lines of code that an SM keeps for all of its warps, and those it asks for.
 *
 * When a warp reaches a line, the lines behind it are asked for, the last of them when its first instruction is issued.
 * A line stays until its set is full of lines that were used more recently. */
#include "model/sm.h"

/* The set of a line, by the formula of set_of in pysm120/model/fetch.py. */
static struct code_line *set_of(const struct sm *sm, int64_t line) {
    const int64_t sets = sm->of->code_sets;
    return &sm->code[((line ^ line / sets) % sets) * sm->of->code_ways];
}

/* Return the place of a line that is kept, else NULL. */
static struct code_line *kept(const struct sm *sm, int64_t line) {
    struct code_line *const set = set_of(sm, line);
    for (int32_t k = 0; k < sm->of->code_ways; ++k) {
        if (set[k].number == line) {
            return &set[k];
        }
    }
    return NULL;
}

/* Fetch a line, which replaces the least recently used one of its set. Return when it arrives. */
static int64_t bring(struct sm *sm, int64_t line, int64_t now) {
    const double begin = later_of(sm->code_free, (double)now);
    struct code_line *const set = set_of(sm, line), *oldest = set;
    sm->code_free = begin + sm->of->code_interval;
    ++sm->result->lines;
    for (int32_t k = 1; k < sm->of->code_ways; ++k) {
        oldest = set[k].used < oldest->used ? &set[k] : oldest;
    }
    const double at = begin + sm->of->code_latency;
    *oldest =
        (struct code_line){.number = line, .at = at < (double)NEVER ? (int64_t)at : NEVER, .used = ++sm->code_uses};
    return oldest->at;
}

static void ask(struct sm *sm, int64_t line, int64_t now) {
    if (kept(sm, line) == NULL) {
        bring(sm, line, now);
    }
}

/* Return when the line that a warp reaches is there; ask for the lines behind it but the last. */
static int64_t come_to(struct sm *sm, int64_t line, int64_t now) {
    struct code_line *const found = kept(sm, line);
    int64_t at;
    if (found != NULL) {
        found->used = ++sm->code_uses;
        at = found->at;
    } else {
        at = bring(sm, line, now);
    }
    for (int64_t k = 1; k < sm->of->code_ahead; ++k) {
        ask(sm, line + k, now);
    }
    return at;
}

int64_t sm_code_there(struct sm *sm, struct warp *warp) {
    if (warp->last > warp->came && !warp->has_entered) {
        ask(sm, warp->line + sm->of->code_ahead, warp->last);
        warp->has_entered = true;
    }
    const int32_t line = warp->step->line;
    if (line != warp->line) {
        warp->line = line;
        warp->came = warp->last;
        warp->there = come_to(sm, line, warp->last);
        warp->has_entered = false;
    }
    return warp->there;
}
