/* Collectives, in which the lanes of a warp exchange data: shfl, vote, match, redux, elect, movmatrix. */
#include "vm/execute/collect.h"

#include "vm/check/check.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/program.h"

/* Execute a collective whose lanes have different member masks: each group of lanes runs as soon as it is complete. */
static enum step gather_groups(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *m = source(w, i->c), at = w->pc;
    uint32_t complete = 0, waiting = 0, first = 0;
    for (uint32_t rest = mask, group; rest != 0; rest &= ~group) {
        const uint32_t lane = lowest_bit(rest);
        group = 0;
        for (uint32_t l = lane; l < WARP; ++l) {
            group |= (uint32_t)((rest >> l & 1u) != 0 && m[l] == m[lane]) << l;
        }
        if ((m[lane] & w->live & ~group & ~(group & ~m[lane])) != 0) {
            first = waiting != 0 ? first : group;
            waiting |= group;
            continue;
        }
        const enum step step = i->run(w, i, group);
        if (step != STEP_NEXT) {
            return step;
        }
        complete |= group;
    }
    const uint32_t needed = waiting != 0 ? m[lowest_bit(first)] & w->live : 0;
    if (complete == 0) {
        return warp_converge(w, first, needed, WAIT_CONVERGE);
    }
    warp_leave_behind(w, mask);
    if (waiting != 0) {
        w->split[w->splits++] =
            (struct split){.pc = at, .mask = waiting, .wait = WAIT_CONVERGE, .detail = needed & ~first};
    }
    w->split[w->current].mask = w->active = complete;
    w->pc = at + 1;
    return STEP_JUMP;
}

/* Wait until all lanes of the member mask are here. STEP_JUMP: lanes with different masks have executed the
 * instruction. */
enum step collect_members(struct warp *w, const struct inst *i, uint32_t mask, uint32_t *members) {
    const uint32_t *m = source(w, i->c), lane = lowest_bit(mask);
    *members = m[lane];
    uint32_t differs = 0;
    for (uint32_t l = 0; l < WARP; ++l) {
        differs |= (mask >> l & 1u) * (m[l] ^ m[lane]);
    }
    if (UNLIKELY(differs)) {
        return gather_groups(w, i, mask);
    }
    if ((mask & ~*members) != 0) {
        return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lowest_bit(mask & ~*members),
                        "the lane is not in its member mask 0x%08x", *members);
    }
    if (LIKELY(!(*members & w->live & ~mask))) {
        if (UNLIKELY(w->cta->watches_lanes)) {
            lanes_meet(w, *members);
        }
        return STEP_NEXT;
    }
    return warp_converge(w, mask, *members & w->live, WAIT_CONVERGE);
}

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
    uint32_t members, value[WARP], inside = 0;
    const enum step step = collect_members(w, i, mask, &members);
    if (step != STEP_NEXT) {
        return step;
    }
    const uint32_t *a = source(w, i->a), *b = source(w, i->b), *c = source(w, i->e);
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
    return STEP_NEXT;
}

/* vote.sync */
enum step collect_vote(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t members, value[WARP];
    const enum step step = collect_members(w, i, mask, &members);
    if (step != STEP_NEXT) {
        return step;
    }
    const uint32_t votes = (w->predicates[i->r] ^ (i->negate != 0 ? FULL : 0)) & mask;
    if (i->kind == 3) {
        for (uint32_t l = 0; l < WARP; ++l) {
            value[l] = votes;
        }
        write_lanes(w, i->d, mask, value);
    } else {
        const bool result = i->kind == 0 ? votes == mask : i->kind == 1 ? votes != 0 : votes == 0 || votes == mask;
        write_predicate(w, i->p, mask, result ? FULL : 0);
    }
    return STEP_NEXT;
}

/* match.sync: find the lanes that hold the same value. */
enum step collect_match(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t members, value[WARP] = {0}, all = FULL;
    const enum step step = collect_members(w, i, mask, &members);
    if (step != STEP_NEXT) {
        return step;
    }
    const uint32_t *a = source(w, i->a);
    const uint64_t *wide = source(w, i->a);
    for (uint32_t l = 0; l < WARP; ++l) {
        for (uint32_t m = 0; m < WARP; ++m) {
            if ((mask >> l & mask >> m & 1u) != 0) {
                value[l] |= (uint32_t)(i->size == 8 ? wide[l] == wide[m] : a[l] == a[m]) << m;
            }
        }
    }
    if (i->kind != 0) {
        all = value[lowest_bit(mask)] == mask ? FULL : 0;
        for (uint32_t l = 0; l < WARP; ++l) {
            value[l] = all & mask;
        }
    }
    write_lanes(w, i->d, mask, value);
    write_predicate(w, i->p, mask, all);
    return STEP_NEXT;
}

/* redux.sync */
enum step collect_redux(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t members, value[WARP];
    const enum step step = collect_members(w, i, mask, &members);
    if (step != STEP_NEXT) {
        return step;
    }
    const uint32_t *a = source(w, i->a),
                   flip = i->size != 0 ? 0x80000000u : 0; /* to compare signed values as unsigned */
    uint32_t r = a[lowest_bit(mask)];
    for (uint32_t rest = mask & (mask - 1); rest != 0; rest &= rest - 1) {
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
    return STEP_NEXT;
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
    uint32_t members, value[WARP];
    const enum step step = collect_members(w, i, mask, &members);
    if (step != STEP_NEXT) {
        return step;
    }
    for (uint32_t l = 0; l < WARP; ++l) {
        value[l] = lowest_bit(mask);
    }
    write_lanes(w, i->d, mask, value);
    write_predicate(w, i->p, mask, mask & (0u - mask));
    return STEP_NEXT;
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
