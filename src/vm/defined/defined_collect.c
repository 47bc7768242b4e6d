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

/* Return the lanes with the same member mask as a lane. */
static uint32_t group_of(const struct event *e, uint32_t lane) {
    const uint32_t *m = source(e->warp, e->inst->c);
    uint32_t group = 0;
    if ((e->inst->c & 1u) != 0) { /* a constant */
        return e->mask;
    }
    for (uint32_t l = 0; l < WARP; ++l) {
        group |= (uint32_t)((e->mask >> l & 1u) != 0 && m[l] == m[lane]) << l;
    }
    return group;
}

/* Start with a defined result. The member mask must be defined. */
static enum step begin(struct defined *d, const struct event *e) {
    memset(d->bits, 0, sizeof d->bits);
    memset(d->tag_in, 0, sizeof d->tag_in);
    d->undefined = 0;
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
    const uint32_t alive = e->warp->live;
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest), from = source_lane(e, l), j = from == WARP ? l : from;
        if ((aimless >> l & 1u) != 0) {
            d->bits[l] = FULL;
            d->birth_in[l] = birth_of(d, e, (some_of(u, i->b) >> l & 1u) != 0 ? i->b : i->e, l);
            d->undefined |= 1u << l;
        } else if ((group_of(e, l) >> j & 1u) == 0 || (alive >> j & 1u) == 0) {
            d->bits[l] = FULL;
            d->birth_in[l] = birth_make(d, BORN_LANE, e->pc, j, 0);
        } else if ((d->bits[l] = bits_of(u, i->a, j, 4)) != 0) {
            d->birth_in[l] = birth_of(d, e, i->a, j);
            d->tag_in[l] = defined_tag(d, u, i->a, j);
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
    const struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    if (begin(d, e) == STEP_FAULT) {
        return STEP_FAULT;
    }
    const uint32_t votes = e->warp->predicates[i->r] ^ (i->negate != 0 ? FULL : 0);
    for (uint32_t rest = e->mask, group; rest != 0; rest &= ~group) {
        group = group_of(e, lowest_bit(rest));
        const uint32_t unsure = u->predicate[i->r] & group, yes = votes & group & ~unsure,
                       no = ~votes & group & ~unsure;
        const bool known = unsure == 0 || (i->kind == 0   ? no
                                           : i->kind == 1 ? yes
                                           : i->kind == 2 ? yes != 0 && no != 0
                                                          : 0) != 0;
        if (known) {
            continue;
        }
        give(d, group, unsure, birth_of_predicate(d, e, i->r, lowest_bit(unsure)));
    }
    return STEP_NEXT;
}

/* Return the undefined bits of match or redux over a group with undefined lanes. Bits of and and or are defined if
 * one lane determines them. */
static uint64_t spoilt(const struct defined_warp *u, const struct event *e, uint32_t group) {
    const struct inst *i = e->inst;
    const bool is_match = i->run == collect_match;
    const uint32_t bytes = is_match ? i->size : 4;
    uint64_t any = 0, decided = 0;
    for (uint32_t lanes = group; lanes != 0; lanes &= lanes - 1) {
        const uint32_t l = lowest_bit(lanes);
        const uint64_t bits = bits_of(u, i->a, l, bytes);
        const uint32_t value = is_match ? 0 : ((const uint32_t *)source(e->warp, i->a))[l];
        any |= bits;
        decided |= ~bits & (i->kind == 3 ? ~value : value);
    }
    if (is_match || any == 0 || i->kind == 1 || i->kind == 2) {
        return any != 0 ? FULL : 0;
    }
    return i->kind == 0 ? (any | (0 - any)) & FULL : i->kind == 5 ? any : any & ~decided;
}

/* match and redux: an undefined lane makes the results of its group undefined. */
enum step defined_together(struct defined *d, const struct event *e) {
    const struct defined_warp *u = defined_of(d, e);
    if (begin(d, e) == STEP_FAULT) {
        return STEP_FAULT;
    }
    const uint32_t some = some_of(u, e->inst->a) & e->mask;
    for (uint32_t rest = some != 0 ? e->mask : 0, group; rest != 0; rest &= ~group) {
        group = group_of(e, lowest_bit(rest));
        if ((some & group) != 0) {
            give(d, group, spoilt(u, e, group), birth_of(d, e, e->inst->a, lowest_bit(some & group)));
        }
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
    const uint32_t done = e->step == STEP_JUMP ? e->warp->active & e->mask : e->mask;
    for (uint32_t rest = has_register(i) ? done : 0; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        set_bits(u, i->d, l, 4, d->bits[l], d->birth_in[l]);
        if (d->bits[l] != 0) {
            u->tag[i->d / 128 * WARP + l] = d->tag_in[l];
        }
    }
    define_predicate(u, i->p, done);
    for (uint32_t rest = d->undefined & done; rest != 0; rest &= rest - 1) {
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
