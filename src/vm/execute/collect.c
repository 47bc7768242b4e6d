/* Collectives, in which the lanes of a warp exchange data: shfl, vote, match, redux, elect, movmatrix. */
#include "vm/execute/collect.h"

#include "vm/check/check.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/program.h"

/* ---- which lanes take part --------------------------------------------------------------------------------------
 *
 * Lanes that have parted may execute a collective at different statements, as in both ways of a branch. They meet if
 * opcode, qualifiers and member mask are the same, as soon as all members that have not exited wait. Then each
 * statement runs for its lanes, with what all lanes brought, before anything else of the warp runs. */

/* Return the lanes among `lanes` whose member mask is `members`. */
static uint32_t lanes_with(const struct warp *w, const struct inst *i, uint32_t lanes, uint32_t members) {
    const uint32_t *m = source(w, i->c);
    uint32_t same = 0;
    for (uint32_t l = 0; l < WARP; ++l) {
        same |= (uint32_t)((lanes >> l & 1u) != 0 && m[l] == members) << l;
    }
    return same;
}

static uint32_t members_of(const struct warp *w, const struct inst *i, uint32_t lane) {
    return ((const uint32_t *)source(w, i->c))[lane];
}

/* Return whether two collectives have the same opcode and qualifiers. */
static bool alike(const struct inst *a, const struct inst *b) {
    return a->run == b->run && a->kind == b->kind && a->size == b->size;
}

/* Return the lanes that wait with this member mask, at this statement or at others like it. */
static uint32_t lanes_waiting(const struct warp *w, const struct inst *i, uint32_t members) {
    uint32_t found = 0;
    for (uint32_t n = 0; n < w->splits; ++n) {
        const struct split *s = &w->split[n];
        const struct inst *there = &w->function->code[s->pc];
        if (s->wait == WAIT_MEMBERS && (s->mask & members) != 0 && alike(there, i)) {
            found |= lanes_with(w, there, s->mask, members);
        }
    }
    return found;
}

/* Return the lanes that a split at a collective waits for. If its lanes have several member masks: those of the first
 * lane. */
uint32_t collect_missing(const struct warp *w, const struct split *s) {
    const struct inst *i = &w->function->code[s->pc];
    const uint32_t members = members_of(w, i, lowest_bit(s->mask));
    return members & w->live & ~lanes_waiting(w, i, members);
}

/* Return the lanes of a waiting split that have a member mask of which all lanes wait. 0: no lanes have. */
static uint32_t complete_lanes(const struct warp *w, const struct split *s) {
    const struct inst *i = &w->function->code[s->pc];
    for (uint32_t rest = s->mask, group; rest != 0; rest &= ~group) {
        const uint32_t members = members_of(w, i, lowest_bit(rest));
        group = lanes_with(w, i, rest, members);
        if ((members & w->live & ~lanes_waiting(w, i, members)) == 0) {
            return group;
        }
    }
    return 0;
}

/* Return whether a split at a collective need not wait any longer. */
bool collect_complete(const struct warp *w, const struct split *s) {
    return complete_lanes(w, s) != 0;
}

/* Keep the source operands of lanes for those that are at other statements. */
static void bring(struct warp *w, const struct inst *i, uint32_t lanes) {
    const uint32_t votes = w->predicates[i->r] ^ (i->negate != 0 ? FULL : 0);
    const bool has_value = i->run == collect_shfl || i->run == collect_match || i->run == collect_redux;
    const void *a = has_value ? source(w, i->a) : NULL;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        w->brought[l] = !has_value     ? votes >> l & 1u
                        : i->size == 8 ? ((const uint64_t *)a)[l]
                                       : ((const uint32_t *)a)[l];
    }
}

/* Let all lanes that wait with this member mask meet: they form splits of their own, which run next. */
static void meet(struct warp *w, const struct inst *i, uint32_t members) {
    w->meeting = w->met = lanes_waiting(w, i, members);
    for (uint32_t n = 0, splits = w->splits; n < splits; ++n) {
        struct split *s = &w->split[n];
        const uint32_t here = s->wait == WAIT_MEMBERS ? s->mask & w->met : 0;
        if (here == 0) {
            continue;
        }
        bring(w, &w->function->code[s->pc], here);
        if (s->mask != here) {
            struct split *rest = &w->split[w->splits++];
            *rest = *s;
            rest->mask &= ~here;
        }
        s->mask = here;
        s->wait = WAIT_NOT;
    }
    if (UNLIKELY(w->cta->watches_lanes)) {
        lanes_meet(w, members);
    }
}

/* Execute a collective for lanes that have met. */
static enum step leave_meeting(struct warp *w, uint32_t *mask, uint32_t *others) {
    *mask = w->active = w->split[w->current].mask;
    *others = w->meeting & ~*mask;
    w->met &= ~*mask;
    ++w->pc;
    return STEP_PART;
}

/* Return whether another predicated statement is like this one. Then lanes whose predicate is false here may be on
 * their way to it, as in "@p vote.sync ...; @!p vote.sync ...". */
static bool has_alternative(const struct warp *w, const struct inst *i) {
    for (const struct inst *other = w->function->code; other < w->function->code + w->function->length; ++other) {
        if (other != i && other->guard != 0 && alike(other, i)) {
            return true;
        }
    }
    return false;
}

/* Return the member mask of a lane that is here, if the predicate of a member is false. 0: there is none. */
static uint32_t reduced_members(const struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t off = w->active & ~mask;
    for (uint32_t rest = off != 0 ? mask : 0; rest != 0; rest &= rest - 1) {
        const uint32_t members = members_of(w, i, lowest_bit(rest));
        if ((members & off) != 0) {
            return members;
        }
    }
    return 0;
}

/* Wait for lanes that are elsewhere, or meet them. */
static enum step wait_for_others(struct warp *w, const struct inst *i, uint32_t *mask, uint32_t *others) {
    const uint32_t here = *mask, reduced = reduced_members(w, i, here);
    *mask = 0;
    if (reduced != 0 && !has_alternative(w, i)) {
        return warp_left_out(w, reduced & w->active & ~here, reduced & w->live,
                             "a .sync instruction with this member mask");
    }
    warp_leave_behind(w, here);
    struct split *s = &w->split[w->current];
    s->pc = w->pc;
    s->wait = WAIT_MEMBERS;
    s->detail = w->live;
    const uint32_t complete = complete_lanes(w, s);
    if (complete == 0) {
        return STEP_AGAIN;
    }
    meet(w, i, members_of(w, i, lowest_bit(complete)));
    return leave_meeting(w, mask, others);
}

/* Gather lanes that are not exactly those of one member mask: groups of lanes whose mask is complete here execute the
 * collective, others wait. */
static enum step gather(struct warp *w, const struct inst *i, uint32_t *mask, uint32_t *others) {
    uint32_t waiting = 0;
    if ((*mask & w->met) != 0) {
        return leave_meeting(w, mask, others);
    }
    for (uint32_t rest = *mask, group; rest != 0; rest &= ~group) {
        const uint32_t members = members_of(w, i, lowest_bit(rest));
        group = lanes_with(w, i, rest, members);
        if ((group & ~members) != 0) {
            *mask = 0;
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lowest_bit(group & ~members),
                            "the lane is not in its member mask 0x%08x", members);
        }
        if ((members & w->live & ~group) != 0) {
            waiting |= group;
        } else {
            i->run(w, i, group);
        }
    }
    if (waiting == *mask) {
        return wait_for_others(w, i, mask, others);
    }
    *mask = 0;
    if (waiting == 0) {
        return STEP_NEXT;
    }
    w->split[w->splits++] = (struct split){.pc = w->pc, .mask = waiting};
    w->split[w->current].mask = w->active &= ~waiting;
    ++w->pc;
    return STEP_PART;
}

/* Gather the lanes of a member mask. */
enum step collect_members(struct warp *w, const struct inst *i, uint32_t *mask, uint32_t *others) {
    const uint32_t *m = source(w, i->c), members = m[lowest_bit(*mask)], here = *mask;
    uint32_t differs = 0;
    for (uint32_t l = 0; l < WARP; ++l) {
        differs |= (here >> l & 1u) * (m[l] ^ members);
    }
    *others = 0;
    if (UNLIKELY((differs | (here & ~members) | (members & w->live & ~here)) != 0)) {
        return gather(w, i, mask, others);
    }
    if (UNLIKELY(w->cta->watches_lanes)) {
        lanes_meet(w, members);
    }
    return STEP_NEXT;
}

/* Return the 32-bit operand a of all lanes. row: room for it. */
static const uint32_t *values_of(const struct warp *w, const struct inst *i, uint32_t others, uint32_t *row) {
    const uint32_t *a = source(w, i->a);
    if (LIKELY(others == 0)) {
        return a;
    }
    for (uint32_t l = 0; l < WARP; ++l) {
        row[l] = (others >> l & 1u) != 0 ? (uint32_t)w->brought[l] : a[l];
    }
    return row;
}

/* ---- instructions ----------------------------------------------------------------------------------------------- */

static void write_lanes(struct warp *w, uint32_t slot, uint32_t mask, const uint32_t *value) {
    uint32_t *d = destination(w, slot);
    for (uint32_t l = 0; l < WARP; ++l) {
        d[l] = (mask >> l & 1u) != 0 ? value[l] : d[l];
    }
}

static void write_predicate(struct warp *w, uint32_t number, uint32_t mask, uint32_t value) {
    if (number != 0) {
        w->predicates[number] = (w->predicates[number] & ~mask) | (value & mask);
    }
}

/* shfl.sync: lane l reads lane j, or itself if j is outside its segment. */
enum step collect_shfl(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t others, row[WARP], value[WARP], inside = 0;
    const enum step step = collect_members(w, i, &mask, &others);
    if (mask == 0) {
        return step;
    }
    const uint32_t *a = values_of(w, i, others, row), *b = source(w, i->b), *c = source(w, i->e);
    for (uint32_t l = 0; l < WARP; ++l) {
        const uint32_t by = b[l] & 31u, clamp = c[l] & 31u, segment = c[l] >> 8 & 31u;
        const uint32_t most = (l & segment) | (clamp & ~segment), least = l & segment;
        int32_t j;
        uint32_t ok;
        switch (i->kind) {
        case 0:
            j = (int32_t)l - (int32_t)by;
            ok = j >= (int32_t)most;
            break;
        case 1:
            j = (int32_t)(l + by);
            ok = j <= (int32_t)most;
            break;
        case 2:
            j = (int32_t)(l ^ by);
            ok = j <= (int32_t)most;
            break;
        default:
            j = (int32_t)(least | (by & ~segment));
            ok = j <= (int32_t)most;
            break;
        }
        value[l] = a[ok != 0 ? (uint32_t)j & 31u : l];
        inside |= ok << l;
    }
    write_lanes(w, i->d, mask, value);
    write_predicate(w, i->p, mask, inside);
    return step;
}

/* vote.sync */
enum step collect_vote(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t others, value[WARP];
    const enum step step = collect_members(w, i, &mask, &others);
    if (mask == 0) {
        return step;
    }
    const uint32_t all = mask | others;
    uint32_t votes = (w->predicates[i->r] ^ (i->negate != 0 ? FULL : 0)) & mask;
    for (uint32_t rest = others; rest != 0; rest &= rest - 1) {
        votes |= (uint32_t)w->brought[lowest_bit(rest)] << lowest_bit(rest);
    }
    if (i->kind == 3) {
        for (uint32_t l = 0; l < WARP; ++l) {
            value[l] = votes;
        }
        write_lanes(w, i->d, mask, value);
    } else {
        const bool result = i->kind == 0 ? votes == all : i->kind == 1 ? votes != 0 : votes == 0 || votes == all;
        write_predicate(w, i->p, mask, result ? FULL : 0);
    }
    return step;
}

/* match.sync: find the lanes that hold the same value. */
enum step collect_match(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t others, value[WARP] = {0}, equal = FULL;
    const enum step step = collect_members(w, i, &mask, &others);
    if (mask == 0) {
        return step;
    }
    const uint32_t all = mask | others, *narrow = source(w, i->a);
    const uint64_t *wide = source(w, i->a);
    uint64_t a[WARP];
    for (uint32_t l = 0; l < WARP; ++l) {
        a[l] = (others >> l & 1u) != 0 ? w->brought[l] : i->size == 8 ? wide[l] : narrow[l];
    }
    for (uint32_t l = 0; l < WARP; ++l) {
        for (uint32_t m = 0; m < WARP; ++m) {
            if ((mask >> l & all >> m & 1u) != 0) {
                value[l] |= (uint32_t)(a[l] == a[m]) << m;
            }
        }
    }
    if (i->kind != 0) {
        equal = value[lowest_bit(mask)] == all ? FULL : 0;
        for (uint32_t l = 0; l < WARP; ++l) {
            value[l] = equal & all;
        }
    }
    write_lanes(w, i->d, mask, value);
    write_predicate(w, i->p, mask, equal);
    return step;
}

/* redux.sync */
enum step collect_redux(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t others, row[WARP], value[WARP];
    const enum step step = collect_members(w, i, &mask, &others);
    if (mask == 0) {
        return step;
    }
    const uint32_t *a = values_of(w, i, others, row),
                   flip = i->size != 0 ? 0x80000000u : 0; /* to compare signed values as unsigned */
    uint32_t r = a[lowest_bit(mask)];
    for (uint32_t rest = (mask & (mask - 1)) | others; rest != 0; rest &= rest - 1) {
        const uint32_t x = a[lowest_bit(rest)];
        switch (i->kind) {
        case 0:
            r += x;
            break;
        case 1:
            r = (x ^ flip) < (r ^ flip) ? x : r;
            break;
        case 2:
            r = (x ^ flip) > (r ^ flip) ? x : r;
            break;
        case 3:
            r &= x;
            break;
        case 4:
            r |= x;
            break;
        default:
            r ^= x;
            break;
        }
    }
    for (uint32_t l = 0; l < WARP; ++l) {
        value[l] = r;
    }
    write_lanes(w, i->d, mask, value);
    return step;
}

/* activemask */
enum step collect_activemask(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t value[WARP];
    for (uint32_t l = 0; l < WARP; ++l) {
        value[l] = mask;
    }
    write_lanes(w, i->d, mask, value);
    return STEP_NEXT;
}

/* elect.sync: elect the lowest lane of the member mask. */
enum step collect_elect(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t others, value[WARP];
    const enum step step = collect_members(w, i, &mask, &others);
    if (mask == 0) {
        return step;
    }
    const uint32_t all = mask | others;
    for (uint32_t l = 0; l < WARP; ++l) {
        value[l] = lowest_bit(all);
    }
    write_lanes(w, i->d, mask, value);
    write_predicate(w, i->p, mask, all & (0u - all));
    return step;
}

/* movmatrix: transpose an 8x8 matrix of 16-bit elements. */
enum step collect_movmatrix(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *a = source(w, i->a);
    uint32_t value[WARP];
    for (uint32_t l = 0; l < WARP; ++l) {
        const uint32_t row = l >> 2, column = 2 * (l & 3); /* of the result; its element is a[column][row] */
        uint32_t half[2];
        for (uint32_t k = 0; k < 2; ++k) {
            half[k] = a[4 * (column + k) + row / 2] >> 16 * (row & 1) & 0xffffu;
        }
        value[l] = half[0] | half[1] << 16;
    }
    write_lanes(w, i->d, mask, value);
    return STEP_NEXT;
}
