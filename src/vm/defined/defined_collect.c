/* Undefined values in collectives. Results are computed before the instruction runs, because it may overwrite its
 * sources. They are recorded after it has run, because it may wait, or run for only some of its lanes. */
#include <string.h>

#include "vm/defined/defined.h"
#include "vm/execute/collect.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"

/* Return the lanes that execute the instruction together with a lane, here or at other statements. */
static uint32_t group_of(const struct event *e, uint32_t lane) {
    return ((const uint32_t *)source(e->warp, e->inst->c))[lane] & e->warp->live;
}

/* Return those among `lanes` that have the member mask of the lowest. */
static uint32_t alike(const struct event *e, uint32_t lanes) {
    const uint32_t *m = source(e->warp, e->inst->c), members = m[lowest_bit(lanes)];
    uint32_t same = 0;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        same |= m[lowest_bit(rest)] == members ? rest & (0u - rest) : 0;
    }
    return same;
}

/* Return what a lane that is here gives to a collective. */
static struct brought look(struct defined *d, const struct event *e, uint32_t lane) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    struct brought given = {0};
    if (i->run == collect_vote) {
        given.value = (e->warp->predicates[i->r] ^ (i->negate != 0 ? FULL : 0)) >> lane & 1u;
        given.bits = u->predicate[i->r] >> lane & 1u;
        given.birth = given.bits != 0 ? birth_of_predicate(d, e, i->r, lane) : 0;
        return given;
    }
    const bool is_wide = i->run == collect_match && i->size == 8;
    given.value = is_wide ? 0 : ((const uint32_t *)source(e->warp, i->a))[lane];
    given.bits = bits_of(u, i->a, lane, is_wide ? 8 : 4);
    if (given.bits != 0) {
        given.birth = birth_of(d, e, i->a, lane);
        given.tag = is_wide ? 0 : defined_tag(d, u, i->a, lane);
    }
    return given;
}

/* Return what a lane gives to a collective. A lane at another statement has left it in `brought`. */
static struct brought given_by(struct defined *d, const struct event *e, uint32_t lane) {
    return (e->mask >> lane & 1u) != 0 ? look(d, e, lane) : defined_of(d, e)->brought[lane];
}

/* Start with a defined result. The member mask must be defined. Keep what the lanes give for those that are elsewhere.
 */
static enum step begin(struct defined *d, const struct event *e) {
    memset(d->bits, 0, sizeof d->bits);
    memset(d->tag_in, 0, sizeof d->tag_in);
    d->undefined = 0;
    const bool is_needed = e->warp->splits > 1 && e->inst->run != collect_elect;
    for (uint32_t rest = is_needed ? e->mask : 0; rest != 0; rest &= rest - 1) {
        defined_of(d, e)->brought[lowest_bit(rest)] = look(d, e, lowest_bit(rest));
    }
    return decided_by(d, e, "the member mask", e->inst->c);
}

/* Return the lane that lane `to` of shfl reads; WARP if the source is outside its segment, so it reads itself. */
static uint32_t source_lane(const struct event *e, uint32_t to) {
    const struct inst *i = e->inst;
    const uint32_t by = ((const uint32_t *)source(e->warp, i->b))[to] & 31u;
    const uint32_t c = ((const uint32_t *)source(e->warp, i->e))[to], clamp = c & 31u, segment = c >> 8 & 31u;
    const int32_t most = (int32_t)((to & segment) | (clamp & ~segment));
    switch (i->kind) {
    case 0:
        return (int32_t)(to - by) >= most ? (to - by) & 31u : WARP;
    case 1:
        return (int32_t)(to + by) <= most ? (to + by) & 31u : WARP;
    case 2:
        return (int32_t)(to ^ by) <= most ? to ^ by : WARP;
    default: {
        const uint32_t j = (to & segment) | (by & ~segment);
        return (int32_t)j <= most ? j & 31u : WARP;
    }
    }
}

/* shfl: the result is as undefined as the value in the source lane. It is fully undefined if the lane number is
 * undefined or the source lane is inactive. */
enum step defined_shfl(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    if (begin(d, e) == STEP_FAULT) {
        return STEP_FAULT;
    }
    const uint32_t aimless = (some_of(u, i->b) | some_of(u, i->e)) & e->mask;
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest), from = source_lane(e, l), j = from == WARP ? l : from;
        if ((aimless >> l & 1u) != 0) {
            d->bits[l] = FULL;
            d->birth_in[l] = birth_of(d, e, (some_of(u, i->b) >> l & 1u) != 0 ? i->b : i->e, l);
            d->undefined |= 1u << l;
        } else if ((group_of(e, l) >> j & 1u) == 0) {
            d->bits[l] = FULL;
            d->birth_in[l] = birth_make(d, BORN_LANE, e->pc, j, 0);
        } else {
            const struct brought given = given_by(d, e, j);
            d->bits[l] = given.bits;
            d->birth_in[l] = given.birth;
            d->tag_in[l] = given.tag;
        }
    }
    return STEP_NEXT;
}

/* Give all lanes of a group a result with these undefined bits. */
static void give(struct defined *d, uint32_t group, uint64_t bits, uint32_t birth) {
    for (uint32_t lanes = bits != 0 ? group : 0; lanes != 0; lanes &= lanes - 1) {
        d->bits[lowest_bit(lanes)] = bits;
        d->birth_in[lowest_bit(lanes)] = birth;
        d->undefined |= lanes & (0u - lanes);
    }
}

/* vote: `any` is defined if a defined predicate is true, `all` if a defined predicate is false. Each bit of a ballot
 * depends on its own lane only. */
enum step defined_vote(struct defined *d, const struct event *e) {
    const struct inst *i = e->inst;
    if (begin(d, e) == STEP_FAULT) {
        return STEP_FAULT;
    }
    const bool is_sure = e->warp->splits == 1 && (defined_of(d, e)->predicate[i->r] & e->mask) == 0;
    for (uint32_t rest = is_sure ? 0 : e->mask, here; rest != 0; rest &= ~here) {
        uint32_t unsure = 0, yes = 0, no = 0, birth = 0;
        here = alike(e, rest);
        for (uint32_t lanes = group_of(e, lowest_bit(here)); lanes != 0; lanes &= lanes - 1) {
            const uint32_t l = lowest_bit(lanes);
            const struct brought given = given_by(d, e, l);
            birth = unsure == 0 ? given.birth : birth;
            unsure |= (uint32_t)given.bits << l;
            yes |= (given.bits == 0 ? given.value : 0u) << l;
            no |= (given.bits == 0 ? given.value ^ 1u : 0u) << l;
        }
        const bool known = unsure == 0 || (i->kind == 0   ? no
                                           : i->kind == 1 ? yes
                                           : i->kind == 2 ? yes != 0 && no != 0
                                                          : 0) != 0;
        if (!known) {
            give(d, here, unsure, birth);
        }
    }
    return STEP_NEXT;
}

/* Return the undefined bits of match or redux over a group, and their birth. Bits of and and or are defined if one lane
 * determines them. */
static uint64_t spoilt(struct defined *d, const struct event *e, uint32_t group, uint32_t *birth) {
    const struct inst *i = e->inst;
    uint64_t any = 0, decided = 0;
    for (uint32_t lanes = group; lanes != 0; lanes &= lanes - 1) {
        const struct brought given = given_by(d, e, lowest_bit(lanes));
        *birth = any == 0 ? given.birth : *birth;
        any |= given.bits;
        decided |= ~given.bits & (i->kind == 3 ? ~given.value : given.value);
    }
    if (i->run == collect_match || any == 0 || i->kind == 1 || i->kind == 2) {
        return any != 0 ? FULL : 0;
    }
    return i->kind == 0 ? (any | (0 - any)) & FULL : i->kind == 5 ? any : any & ~decided;
}

/* match and redux: an undefined lane makes the results of its group undefined. */
enum step defined_together(struct defined *d, const struct event *e) {
    if (begin(d, e) == STEP_FAULT) {
        return STEP_FAULT;
    }
    const bool is_sure = e->warp->splits == 1 && (some_of(defined_of(d, e), e->inst->a) & e->mask) == 0;
    for (uint32_t rest = is_sure ? 0 : e->mask, here; rest != 0; rest &= ~here) {
        uint32_t birth = 0;
        here = alike(e, rest);
        const uint64_t bits = spoilt(d, e, group_of(e, lowest_bit(here)), &birth);
        give(d, here, bits, birth);
    }
    return STEP_NEXT;
}

/* activemask and elect always give defined results. */
enum step defined_elect(struct defined *d, const struct event *e) {
    return begin(d, e);
}

/* Return whether the instruction also writes register i->d. Among votes, only ballot does. */
static bool has_register(const struct inst *i) {
    return i->run != collect_vote || i->kind == 3;
}

/* Record the results of the lanes for which the instruction has run. */
enum step defined_collected(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    for (uint32_t rest = has_register(i) ? e->mask : 0; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        set_bits(u, i->d, l, 4, d->bits[l], d->birth_in[l]);
        if (d->bits[l] != 0) {
            u->tag[i->d / 128 * WARP + l] = d->tag_in[l];
        }
    }
    define_predicate(u, i->p, e->mask);
    for (uint32_t rest = d->undefined & e->mask; rest != 0; rest &= rest - 1) {
        undefine_predicate(u, i->p, rest & (0u - rest), d->birth_in[lowest_bit(rest)]);
    }
    return STEP_NEXT;
}

/* movmatrix: transpose a matrix of 16-bit elements. */
enum step defined_movmatrix(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const uint32_t a = e->inst->a;
    uint64_t bits[WARP] = {0};
    uint32_t birth[WARP] = {0};
    for (uint32_t l = 0; some_of(u, a) != 0 && l < WARP; ++l) {
        for (uint32_t k = 0; k < 2; ++k) {
            const uint32_t row = l / 4, from = 4 * (2 * (l % 4) + k) + row / 2;
            const uint64_t part = bits_of(u, a, from, 4) >> 16 * (row & 1) & 0xffffu;
            bits[l] |= part << 16 * k;
            birth[l] = part != 0 ? birth_of(d, e, a, from) : birth[l];
        }
    }
    for (uint32_t l = 0; l < WARP; ++l) {
        set_bits(u, e->inst->d, l, 4, bits[l], birth[l]);
    }
    return STEP_NEXT;
}
