/* Branches that an undefined predicate decides. Such a branch matters if one of its two ways does more than write
 * registers and local memory before they join again, or may not reach the join. Otherwise it acts like a guard on every
 * instruction of both ways: all registers that they write are undefined in those lanes from the join on. So is all
 * local memory, if they write to it. */
#include <stdlib.h>
#include <string.h>

#include "vm/defined/defined.h"
#include "vm/execute/control.h"
#include "vm/execute/lanes.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

enum { LONGEST = 4096 }; /* instructions of both ways */

/* The two ways of a branch, from the branch to their join. */
struct region {
    struct region *next;
    uint32_t pc, join; /* join: UINT32_MAX if the branch matters */
    bool stores;       /* an instruction on one of the ways may write local memory */
    bool carries;      /* an instruction on one of the ways may write the carry flag */
    uint32_t writes;
    const struct use **write;     /* the registers that the two ways write */
    uint32_t lanes[MAX_WARPS];    /* lanes of each warp that have branched and not reached the join */
    uint32_t (*birth)[MAX_WARPS]; /* [lane][warp] */
};

/* A walk over the instructions that a branch may reach. */
struct walk {
    const struct defined *d;
    uint32_t pc;   /* of the branch */
    uint32_t *own; /* [pc]: number of the walk that has reached it */
    uint32_t *stack, number;
};

void regions_free(struct defined *d) {
    while (d->regions != NULL) {
        struct region *r = d->regions;
        d->regions = r->next;
        free(r->write);
        free(r->birth);
        free(r);
    }
}

void regions_start(struct defined *d) {
    for (struct region *r = d->regions; r != NULL; r = r->next) {
        memset(r->lanes, 0, sizeof r->lanes);
    }
    memset(d->branched, 0, sizeof d->branched);
}

/* ---- finding the join ----------------------------------------------------------------------------------------- */

static bool stores_locally(const struct inst *i, const struct rule *rule) {
    return rule->after == defined_store && i->space == SPACE_LOCAL;
}

/* Store the instructions that may follow one, and return how many there are. Return 0 for one that does more than
 * write registers and local memory, and for the branch itself: its ways must not lead back to it. */
static uint32_t followers(const struct walk *walk, uint32_t pc, uint32_t *to) {
    const struct inst *i = &walk->d->function->code[pc];
    const struct rule *rule = &walk->d->rule[pc];
    if (pc == walk->pc || pc + 1 >= walk->d->function->length) {
        return 0;
    }
    if (i->run != control_bra) {
        to[0] = pc + 1;
        return rule->effect <= EFFECT_REGISTERS || stores_locally(i, rule) ? 1 : 0;
    }
    to[0] = i->target;
    to[1] = pc + 1;
    return i->guard != 0 ? 2 : 1;
}

/* Return whether both ways end at `join`, or only reach instructions that write registers before it. */
static bool ends_at(struct walk *walk, uint32_t join) {
    const struct inst *branch = &walk->d->function->code[walk->pc];
    uint32_t depth = 0, seen = 0, to[2] = {branch->target, walk->pc + 1};
    ++walk->number;
    for (uint32_t count = 2;; count = followers(walk, walk->stack[--depth], to)) {
        if (count == 0 || seen > LONGEST) {
            return false;
        }
        for (uint32_t k = 0; k < count; ++k) {
            if (to[k] != join && walk->own[to[k]] != walk->number) {
                walk->own[to[k]] = walk->number;
                walk->stack[depth++] = to[k];
                ++seen;
            }
        }
        if (depth == 0) {
            return true;
        }
    }
}

/* Return where the two ways join: the first instruction on one way that the other cannot avoid. UINT32_MAX: nowhere
 * before they do more than write registers. */
static uint32_t find_join(struct walk *walk) {
    uint32_t to[2], at = walk->pc + 1;
    for (uint32_t steps = 0; steps < LONGEST; ++steps) {
        if (ends_at(walk, at)) {
            return at;
        }
        const uint32_t count = followers(walk, at, to);
        if (count == 0) {
            break;
        }
        at = to[count - 1]; /* forward, if it may go on */
    }
    return UINT32_MAX;
}

/* Collect the registers that the two ways write. Return false when out of memory. */
static bool collect(struct region *r, const struct walk *walk) {
    const struct CUfunc_st *f = walk->d->function;
    defined_part *const carry = defined_lane_part(LANE_add_cc_32);
    for (int counts = 1; counts >= 0; --counts) {
        uint32_t n = 0;
        for (uint32_t pc = 0; pc < f->length; ++pc) {
            r->stores |= walk->own[pc] == walk->number && stores_locally(&f->code[pc], &walk->d->rule[pc]);
            r->carries |= walk->own[pc] == walk->number && walk->d->rule[pc].before == carry;
            for (uint32_t k = 0; walk->own[pc] == walk->number && k < f->places[pc].uses; ++k) {
                const struct use *use = &f->places[pc].use[k];
                if (use->is_write != 0 && counts == 0) {
                    r->write[n] = use;
                }
                n += use->is_write != 0;
            }
        }
        r->writes = n;
        if (counts != 0 && (r->write = calloc(n + 1u, sizeof *r->write)) == NULL) {
            return false;
        }
    }
    return true;
}

/* Fill in a region. Return false when out of memory. */
static bool explore(const struct defined *d, struct region *r) {
    const uint32_t length = d->function->length;
    struct walk walk = {.d = d, .pc = r->pc};
    walk.own = calloc(length, sizeof *walk.own);
    walk.stack = calloc(length, sizeof *walk.stack);
    bool good = walk.own != NULL && walk.stack != NULL;
    r->join = good ? find_join(&walk) : UINT32_MAX;
    if (r->join != UINT32_MAX) {
        r->birth = calloc(WARP, sizeof *r->birth);
        good = r->birth != NULL && collect(r, &walk);
    }
    free(walk.own);
    free(walk.stack);
    return good;
}

/* Return the region of a branch, or NULL when out of memory. */
static struct region *region_of(struct defined *d, uint32_t pc) {
    struct region *r = d->regions;
    while (r != NULL && r->pc != pc) {
        r = r->next;
    }
    if (r != NULL) {
        return r;
    }
    r = calloc(1, sizeof *r);
    if (r == NULL) {
        return NULL;
    }
    r->pc = pc;
    r->next = d->regions;
    d->regions = r;
    return explore(d, r) ? r : NULL;
}

/* ---- lanes between a branch and its join ------------------------------------------------------------------------ */

enum step defined_branch(struct defined *d, const struct event *e) {
    struct region *r = e->inst->run == control_bra ? region_of(d, e->pc) : NULL;
    if (r == NULL || r->join == UINT32_MAX) {
        return decided_by_predicate(d, e, "this branch", e->inst->guard, e->active);
    }
    const uint32_t w = e->warp->index;
    d->branched[w] += r->lanes[w] == 0;
    r->lanes[w] |= d->doubtful;
    for (uint32_t rest = d->doubtful; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        r->birth[lane][w] = birth_of_predicate(d, e, e->inst->guard, lane);
    }
    return STEP_NEXT;
}

/* Make what the two ways write undefined in one lane. */
static void spoil(struct defined *d, const struct warp *w, const struct region *r, uint32_t lane, uint32_t birth) {
    struct defined_warp *u = &d->warp[w->index];
    if (r->stores) {
        defined_forget_local(d, w, lane, birth);
    }
    for (uint32_t k = 0; k < r->writes; ++k) {
        const struct use *use = r->write[k];
        if (use->type == T_PRED) {
            undefine_predicate(u, use->slot, 1u << lane, birth);
            continue;
        }
        const uint32_t bytes = type_bytes((enum type)use->type) >= 8 ? 8 : 4;
        set_bits(u, use->slot, lane, bytes, bytes == 8 ? UINT64_MAX : FULL, birth);
        if (use->type == T_B128) {
            set_bits(u, use->slot + 256, lane, 8, UINT64_MAX, birth);
        }
    }
    if (r->carries) {
        undefine_predicate(u, 1, 1u << lane, birth);
    }
}

void defined_joined(struct defined *d, const struct event *e) {
    const uint32_t w = e->warp->index;
    for (struct region *r = d->regions; r != NULL; r = r->next) {
        const uint32_t lanes = r->join == e->pc ? r->lanes[w] & e->active : 0;
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
            spoil(d, e->warp, r, lowest_bit(rest), r->birth[lowest_bit(rest)][w]);
        }
        r->lanes[w] &= ~lanes;
        d->branched[w] -= lanes != 0 && r->lanes[w] == 0;
    }
}
