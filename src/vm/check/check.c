/* Checks accesses to shared memory against all earlier accesses that they are not ordered after. */
#include "vm/check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

#define STRONG_MARK 0x80000000u

/* ---- shadow of a CTA ----------------------------------------------------------------------------------------- */

void check_free(struct shadow *s) {
    if (s == NULL) {
        return;
    }
    for (uint32_t k = 0; k < MAX_WARPS; ++k) {
        free(s->read[k]), free(s->strong[k]), lanes_free(s->lanes[k]);
    }
    free(s->cell);
    free(s->mbarrier);
    free(s->store);
    free(s->box);
    free(s->map);
    free(s->location);
    free(s);
}

/* Return a shadow for the CTAs of a launch. An old shadow is reused. */
struct shadow *check_open(struct shadow *old, const struct launch *launch) {
    struct shadow *s = old != NULL ? old : calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    bool good = s->cell != NULL || (s->cell = malloc(CELLS * sizeof *s->cell)) != NULL;
    for (uint32_t k = 0; k < launch->warps; ++k) {
        good = good && (s->read[k] != NULL || (s->read[k] = malloc(CELLS * sizeof **s->read)) != NULL);
    }
    for (uint32_t k = 0; launch->world != NULL && k < launch->warps; ++k) {
        good = good && (s->lanes[k] = lanes_open(s->lanes[k], launch->shared_bytes)) != NULL;
    }
    if (!good) {
        check_free(s);
        return NULL;
    }
    return s;
}

/* Reset the shadow at the start of a CTA: no accesses, nothing ordered. */
void check_start(struct cta *cta) {
    struct shadow *s = cta->shadow;
    memset(s->warp, 0, sizeof s->warp);
    memset(s->barrier, 0, cta_barriers(cta) * sizeof *s->barrier);
    memset(s->phases, 0, cta_barriers(cta) * sizeof *s->phases);
    memset(s->acquired, 0, sizeof s->acquired);
    memset(s->copies, 0, sizeof s->copies);
    memset(s->issued, 0, sizeof s->issued);
    memset(s->landed, 0, sizeof s->landed);
    memset(s->inits, 0, sizeof s->inits);
    memset(s->inits_arrived, 0, sizeof s->inits_arrived);
    memset(s->inits_known, 0, sizeof s->inits_known);
    memset(s->touched, 0, cta->ranks * sizeof *s->touched);
    memset(s->loose, 0, sizeof s->loose);
    memset(s->mbarrier_clock, 0, sizeof s->mbarrier_clock);
    s->world = cta->launch->world;
    for (uint32_t k = 0; s->world != NULL && k < cta->warps; ++k) {
        s->lanes[k] = lanes_open(s->lanes[k], cta->shared_bytes); /* cannot fail, the memory was allocated before */
    }
    s->has_released = s->has_acquired = s->stores = s->boxes = s->maps = s->locations = s->latest = 0;
    memset(s->cell, 0, ((cta->shared_bytes + GRANULE - 1) / GRANULE) * sizeof *s->cell);
    for (uint32_t k = 0; k < MAX_WARPS; ++k) {
        s->warp[k].seen[k] = 1;
    }
}

struct spot check_spot(const struct warp *w, uint32_t pc) {
    return spot_of(&w->function->places[pc & ~STRONG_MARK]);
}

/* Return the name of a warp of the cluster, with its CTA if that is another than that of `w`. */
struct spot check_warp(const struct warp *w, uint32_t index) {
    struct spot spot;
    const struct warp *other = &w->cta->warp[index];
    const uint32_t *id = warp_member(other)->id;
    const int n = snprintf(spot.text, sizeof spot.text, "warp %u", other->number);
    if (other->rank != w->rank) {
        snprintf(spot.text + n, sizeof spot.text - (size_t)n, " of CTA %u,%u,%u", id[0], id[1], id[2]);
    }
    return spot;
}

/* ---- reports ------------------------------------------------------------------------------------------------- */

/* An access that is being checked. */
struct access {
    struct warp *w;
    struct shadow *s;
    const struct clocks *mine;
    uint32_t clock, lane, address, bytes;
    bool is_write;
    enum access_kind kind;
    const struct inst *store;        /* the instruction of a store from registers, or NULL */
    const uint8_t (*image)[GRANULE]; /* the rows that a matrix store writes, or NULL */
    uint8_t *const *place;
    uint32_t mask;
    uint32_t copier; /* the agent of the warp's own cp.async if the order between lanes matters; else none */
};

static const char *verb(const struct access *a) {
    const bool is_store_async = (a->w->function->code[a->w->pc].flags & ADDRESS_ASYNC) != 0;
    return a->kind == BY_STRONG ? a->is_write ? "atomic access" : "strong read"
           : a->kind == BY_BULK ? a->is_write ? "bulk copy" : "bulk store"
           : a->kind == BY_COPY ? is_store_async ? "asynchronous store" : "cp.async"
           : a->is_write        ? "write"
                                : "read";
}

/* Return the mbarrier that an agent stands for, and the phase of a clock. */
static const struct mbarrier *mbarrier_of(const struct access *a, uint32_t agent, uint32_t clock, uint32_t *phase) {
    const struct cta *cta = a->w->cta;
    for (uint32_t k = agent - AGENT_MBARRIER; k < cta->mbarriers; k += MBARRIER_AGENTS) {
        *phase = clock - 1 - a->s->mbarrier[k].base;
        if (cta->mbarrier[k].valid && clock > a->s->mbarrier[k].base) {
            return &cta->mbarrier[k];
        }
    }
    return NULL;
}

/* Return the bytes of an element of a strong access; 0 if it may be of several sizes. */
static uint32_t element(const struct warp *w, uint32_t pc) {
    const struct inst *i = &w->function->code[pc & ~STRONG_MARK];
    return (i->flags & ADDRESS_HALVES) != 0 ? 0 : i->size < 8 ? i->size : 8;
}

bool check_sizes_differ(const struct warp *w, uint32_t pc, uint32_t other) {
    const uint32_t a = element(w, pc), b = element(w, other);
    return a != b && a != 0 && b != 0;
}

/* Report a strong access and another of a different size. */
static bool report_sizes(const struct access *a, uint32_t other, uint32_t pc, uint32_t address) {
    const struct spot at = check_spot(a->w, pc);
    fault_at(a->w, CUDA_ERROR_LAUNCH_FAILED, a->lane,
             "data race: %s of %u bytes at shared address 0x%x and a strong access of another size by %s at %s; "
             "expected one size, or a barrier between them",
             verb(a), a->bytes, address, check_warp(a->w, other).text, at.text);
    return false;
}

/* Report an access that is not ordered after the write recorded in a cell. */
static bool report_write(const struct access *a, const struct cell *c, uint32_t address) {
    const struct spot at = check_spot(a->w, c->pc);
    const CUresult code = CUDA_ERROR_LAUNCH_FAILED;
    uint32_t phase = 0;
    if (c->agent == AGENT_LIVE) {
        fault_at(
            a->w, code, a->lane,
            "%s of %u bytes at shared address 0x%x, which holds the live mbarrier initialised at %s; expected only "
            "mbarrier instructions until mbarrier.inval",
            verb(a), a->bytes, address, at.text);
    } else if (c->agent >= AGENT_MBARRIER) {
        const struct mbarrier *m = mbarrier_of(a, c->agent, c->clock, &phase);
        fault_at(a->w, code, a->lane,
                 "%s of %u bytes at shared address 0x%x, which the bulk copy at %s fills; expected a wait for phase %u "
                 "of the mbarrier at shared address 0x%x first",
                 verb(a), a->bytes, address, at.text, phase, m != NULL ? m->address : 0);
    } else if (c->agent >= AGENT_COPY) {
        const uint32_t from = c->agent - AGENT_COPY;
        fault_at(a->w, code, a->lane,
                 "%s of %u bytes at shared address 0x%x, which the cp.async of %s at %s fills; expected "
                 "cp.async.wait_group by that warp%s first, in the lane that issued it (%u)%s",
                 verb(a), a->bytes, address, check_warp(a->w, from).text, at.text,
                 from == a->w->index ? "" : " and a barrier", c->lane,
                 from == a->w->index ? "" : "; or a barrier before the cp.async, if that comes too early");
    } else {
        fault_at(a->w, code, a->lane,
                 "data race: %s of %u bytes at shared address 0x%x and a write by %s at %s; expected a barrier, an "
                 "mbarrier or a release and an acquire between them",
                 verb(a), a->bytes, address, check_warp(a->w, c->agent).text, at.text);
    }
    return false;
}

/* Report an access that is not ordered after another warp's read or strong write. */
static bool report_mark(const struct access *a, uint32_t other, uint32_t pc, const char *what, uint32_t address) {
    const struct spot at = check_spot(a->w, pc);
    fault_at(a->w, CUDA_ERROR_LAUNCH_FAILED, a->lane,
             "data race: %s of %u bytes at shared address 0x%x and %s by %s at %s; expected a barrier, an "
             "mbarrier or a release and an acquire between them",
             verb(a), a->bytes, address, what, check_warp(a->w, other).text, at.text);
    return false;
}

/* Report an access to what another lane of the warp has copied and waited for. */
static bool report_copy(const struct access *a, const struct cell *c, uint32_t lane, uint32_t address) {
    const struct spot at = check_spot(a->w, c->pc);
    fault_at(a->w, CUDA_ERROR_LAUNCH_FAILED, lane,
             "data race in a warp: %s of %u bytes at shared address 0x%x, which the cp.async of lane %u at %s fills; "
             "expected bar.warp.sync or another collective after the wait of that lane",
             verb(a), a->bytes, address, c->lane, at.text);
    return false;
}

/* Report an access of the asynchronous proxy to bytes that the generic proxy wrote without a later proxy fence. */
static bool report_proxy(const struct access *a, uint32_t agent, uint32_t pc, uint32_t address) {
    const struct spot at = check_spot(a->w, pc);
    fault_at(a->w, CUDA_ERROR_LAUNCH_FAILED, a->lane,
             "%s of %u bytes at shared address 0x%x, which %s wrote at %s; expected fence.proxy.async.shared::cta "
             "after the write, before the barrier that this %s follows",
             verb(a), a->bytes, address, check_warp(a->w, agent % MAX_WARPS).text, at.text, verb(a));
    return false;
}

/* ---- cells --------------------------------------------------------------------------------------------------- */

static uint32_t cell_of_byte(uint32_t offset) {
    return GRANULES + offset;
}

static void spread(struct mark *marks, uint32_t granule) {
    for (uint32_t k = 0; k < GRANULE; ++k) {
        marks[cell_of_byte(granule * GRANULE + k)] = marks[granule];
    }
}

/* Split the cell of a granule into one cell per byte. */
static void split(struct shadow *s, uint32_t granule) {
    struct cell *whole = &s->cell[granule];
    if (whole->split != 0) {
        return;
    }
    const uint32_t first = cell_of_byte(granule * GRANULE);
    for (uint32_t k = 0; k < GRANULE; ++k) {
        s->cell[first + k] = *whole;
    }
    for (uint32_t rest = whole->readers; rest != 0; rest &= rest - 1) {
        spread(s->read[lowest_bit(rest)], granule);
    }
    for (uint32_t rest = whole->strong; rest != 0; rest &= rest - 1) {
        spread(s->strong[lowest_bit(rest)], granule);
    }
    whole->split = 1;
}

/* Return whether a store or matrix store writes the bytes that are already there. */
static bool same_bytes(const struct warp *w, const uint32_t *slots, uint32_t size, const uint8_t (*image)[GRANULE],
                       uint8_t *const *place, uint32_t mask, uint32_t bytes, const uint8_t *at, uint32_t count) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        for (uint32_t k = 0; k < bytes; ++k) {
            const uintptr_t offset = (uintptr_t)place[lane] + k - (uintptr_t)at;
            if (offset >= count) {
                continue;
            }
            const uint8_t *value = slots != NULL ? source(w, slots[k / size]) : image[lane];
            if (at[offset] != value[slots != NULL ? lane * (size == 8 ? 8 : 4) + k % size : k]) {
                return false;
            }
        }
    }
    return true;
}

/* Return whether a store writes the values that are already there. Such stores are no race: compilers let several
 * warps store the same value to the same address, and a chip shows no difference. */
bool check_same_value(const struct warp *w, const struct inst *store, uint8_t *const *place, uint32_t mask,
                      uint32_t bytes, const uint8_t *at, uint32_t count) {
    return same_bytes(w, store->more, store->size, NULL, place, mask, bytes, at, count);
}

/* Return whether a store or matrix store to shared memory writes the values that are already there. */
static bool same_value(const struct access *a, uint32_t address, uint32_t bytes) {
    const uint8_t *const at = a->w->cta->shared + (address - SHARED_BASE);
    return a->store != NULL ? check_same_value(a->w, a->store, a->place, a->mask, a->bytes, at, bytes)
                            : same_bytes(a->w, NULL, 4, a->image, a->place, a->mask, a->bytes, at, bytes);
}

/* Check that an access is ordered after the strong writes of other warps. A strong access need not be, if it has their
 * size. Return false after a fault. */
static bool after_strong(const struct access *a, const struct cell *c, uint32_t n, uint32_t address) {
    for (uint32_t rest = c->strong & ~(1u << a->w->index); rest != 0; rest &= rest - 1) {
        const uint32_t r = lowest_bit(rest);
        const struct mark *mark = &a->s->strong[r][n];
        if (mark->clock <= a->mine->seen[r]) {
            continue;
        }
        if (a->kind != BY_STRONG) {
            return report_mark(a, r, mark->pc, "an atomic access or a strong write", address);
        }
        if (check_sizes_differ(a->w, a->w->pc, mark->pc)) {
            return report_sizes(a, r, mark->pc, address);
        }
    }
    return true;
}

/* Return whether a lane of this warp has copied these bytes, and has waited for that. */
static bool has_landed(const struct access *a, const struct cell *c) {
    return c->agent == AGENT_COPY + a->w->index && c->clock <= a->s->landed[a->w->index][c->lane];
}

/* Check the order between the lanes of an access and the lane of this warp whose cp.async filled the cell. Return false
 * after a fault. */
static bool after_copy(const struct access *a, const struct cell *c, uint32_t address, uint32_t bytes) {
    if (lanes_all_know(a->w, c->lane)) {
        return true;
    }
    const uint8_t *const at = a->w->cta->shared + (address - SHARED_BASE);
    for (uint32_t rest = a->place != NULL ? a->mask : 1u << a->lane; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const bool touches = a->place == NULL || (a->place[lane] < at + bytes && at < a->place[lane] + a->bytes);
        if (touches && lane != c->lane && !lanes_know(a->w, lane, c->lane)) {
            return report_copy(a, c, lane, address);
        }
    }
    return true;
}

/* Return whether a proxy fence left out the lane that wrote a cell. */
static bool is_left_out(const struct access *a, const struct cell *c, uint32_t address, uint32_t bytes) {
    const struct loose *x = c->agent < MAX_WARPS ? &a->s->loose[c->agent] : NULL;
    return x != NULL && x->lanes != 0 && c->clock >= x->from && a->mine->proxied[c->agent] <= x->to &&
           lanes_left_out(a->s->lanes[c->agent], address - SHARED_BASE, bytes, x);
}

/* Check that an access is ordered after the cell's writes and, for the asynchronous proxy, after a proxy fence.
 * Return false after a fault. */
static inline bool after_write(const struct access *a, uint32_t n, uint32_t address) {
    const struct cell *c = &a->s->cell[n];
    if (UNLIKELY(c->clock > a->mine->seen[c->agent])) {
        const bool harmless = (a->store != NULL || a->image != NULL) && c->agent < AGENT_COPY &&
                              same_value(a, address, n < GRANULES ? GRANULE : 1);
        if (!harmless && !has_landed(a, c)) {
            return report_write(a, c, address);
        }
    }
    if (UNLIKELY(a->kind == BY_BULK) && c->agent < AGENT_MBARRIER &&
        (c->clock > a->mine->proxied[c->agent] || is_left_out(a, c, address, n < GRANULES ? GRANULE : 1))) {
        return report_proxy(a, c->agent, c->pc, address);
    }
    if (UNLIKELY(c->agent == a->copier) && !after_copy(a, c, address, n < GRANULES ? GRANULE : 1)) {
        return false;
    }
    if (LIKELY(!c->strong)) {
        return true;
    }
    for (uint32_t rest = a->kind == BY_BULK ? c->strong : 0; rest != 0; rest &= rest - 1) {
        const uint32_t r = lowest_bit(rest);
        const struct mark *mark = &a->s->strong[r][n];
        if (mark->clock <= a->mine->seen[r] && mark->clock > a->mine->proxied[r]) {
            return report_proxy(a, r, mark->pc, address);
        }
    }
    return after_strong(a, c, n, address);
}

static inline bool read_cell(const struct access *a, uint32_t n, uint32_t address) {
    if (UNLIKELY(!after_write(a, n, address))) {
        return false;
    }
    if (a->kind == BY_BULK) {
        return true; /* a bulk store reads later; its read is recorded when it is waited for */
    }
    a->s->cell[n].readers |= 1u << a->w->index;
    a->s->read[a->w->index][n] = (struct mark){a->clock, a->w->pc | (a->kind == BY_STRONG ? STRONG_MARK : 0)};
    return true;
}

/* Check that a write is ordered after all accesses recorded in a cell. Return false after a fault. */
static inline bool write_allowed(const struct access *a, uint32_t n, uint32_t address) {
    if (UNLIKELY(!after_write(a, n, address))) {
        return false;
    }
    for (uint32_t rest = a->s->cell[n].readers & ~(1u << a->w->index); rest != 0; rest &= rest - 1) {
        const uint32_t r = lowest_bit(rest);
        const struct mark *mark = &a->s->read[r][n];
        if (LIKELY(mark->clock <= a->mine->seen[r])) {
            continue;
        }
        if (a->kind != BY_STRONG || (mark->pc & STRONG_MARK) == 0) {
            return report_mark(a, r, mark->pc, "a read", address);
        }
        if (check_sizes_differ(a->w, a->w->pc, mark->pc)) {
            return report_sizes(a, r, mark->pc, address);
        }
    }
    return true;
}

/* Record a write. A strong write does not replace the last weak one. */
static inline void note_write(const struct access *a, uint32_t n, const struct cell *value) {
    if (LIKELY(a->kind != BY_STRONG)) {
        a->s->cell[n] = *value;
        return;
    }
    a->s->cell[n].strong |= 1u << a->w->index;
    a->s->strong[a->w->index][n] = (struct mark){a->clock, a->w->pc};
}

/* Check or record an access that lies inside one granule. Return false after a fault. */
static bool part(const struct access *a, uint32_t offset, uint32_t bytes, const struct cell *value) {
    split(a->s, offset / GRANULE);
    for (uint32_t k = offset; k < offset + bytes; ++k) {
        const uint32_t n = cell_of_byte(k);
        if (!a->is_write && !read_cell(a, n, k + SHARED_BASE)) {
            return false;
        }
        if (a->is_write && !write_allowed(a, n, k + SHARED_BASE)) {
            return false;
        }
        if (a->is_write) {
            note_write(a, n, value);
        }
    }
    return true;
}

/* Check or record an access to a whole granule. Return false after a fault. */
static inline bool whole(const struct access *a, uint32_t granule, const struct cell *value) {
    if (UNLIKELY(a->s->cell[granule].split)) {
        if (!part(a, granule * GRANULE, GRANULE, value)) {
            return false;
        }
        if (a->is_write && a->kind != BY_STRONG) {
            a->s->cell[granule] = *value; /* merged into one cell again */
        }
        return true;
    }
    if (!a->is_write) {
        return read_cell(a, granule, granule * GRANULE + SHARED_BASE);
    }
    if (!write_allowed(a, granule, granule * GRANULE + SHARED_BASE)) {
        return false;
    }
    note_write(a, granule, value);
    return true;
}

void check_touched(struct warp *w, uint32_t address) {
    struct shadow *s = w->cta->shadow;
    const uint32_t rank = w->cta->ranks != 1 ? (address - SHARED_BASE) / w->cta->launch->span : w->rank;
    if (rank != w->rank) {
        s->touched[rank][w->index] = (struct mark){s->warp[w->index].seen[w->index], w->pc};
    }
}

/* Check and record an access to a range of offsets. Return false after a fault. */
static bool range(const struct access *a, uint32_t offset, uint32_t bytes, const struct cell *value) {
    const uint32_t end = offset + bytes;
    if (UNLIKELY(a->w->cta->ranks != 1) && a->kind <= BY_STRONG) {
        check_touched(a->w, offset + SHARED_BASE);
    }
    while (offset < end) {
        const uint32_t rest = GRANULE - offset % GRANULE, n = rest < end - offset ? rest : end - offset;
        if (LIKELY(n == GRANULE) ? !whole(a, offset / GRANULE, value) : !part(a, offset, n, value)) {
            return false;
        }
        offset += n;
    }
    return true;
}

/* Allocate the marks of a warp's strong writes. Return false after a fault. */
static bool open_strong(struct warp *w, uint32_t lane) {
    struct shadow *s = w->cta->shadow;
    if (s->strong[w->index] == NULL) {
        s->strong[w->index] = malloc(CELLS * sizeof **s->strong);
    }
    return s->strong[w->index] != NULL ? true
                                       : (fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, lane, "out of host memory"), false);
}

static struct access access_of(struct warp *w, uint32_t lane, uint32_t bytes, bool is_write, enum access_kind kind) {
    struct shadow *s = w->cta->shadow;
    const struct clocks *mine = &s->warp[w->index];
    return (struct access){.w = w,
                           .s = s,
                           .mine = mine,
                           .clock = mine->seen[w->index],
                           .lane = lane,
                           .bytes = bytes,
                           .is_write = is_write,
                           .kind = kind,
                           .copier = w->cta->watches_lanes != 0 && kind == BY_PLAIN ? AGENT_COPY + w->index : AGENTS};
}

/* Check one lane's access and record it as the warp's own. Return false after a fault. */
bool check_shared(struct warp *w, uint32_t address, uint32_t bytes, uint32_t lane, bool is_write,
                  enum access_kind kind) {
    const struct access a = access_of(w, lane, bytes, is_write, kind);
    const struct cell value = {.clock = a.clock, .pc = w->pc, .agent = (uint8_t)w->index, .kind = (uint8_t)kind};
    if (is_write && a.s->stores != 0 && !check_stores(w, address, bytes, lane, verb(&a))) {
        return false;
    }
    if (is_write && kind == BY_STRONG && !open_strong(w, lane)) {
        return false;
    }
    return range(&a, address - SHARED_BASE, bytes, &value);
}

/* Check the accesses of all lanes. Adjacent lanes with adjacent addresses are checked as one access. Return false
 * after a fault. */
static bool check_places(struct warp *w, uint8_t *const *place, uint32_t mask, uint32_t bytes, bool is_write,
                         enum access_kind kind, const struct inst *store, const uint8_t (*image)[GRANULE]) {
    struct access a = access_of(w, 0, bytes, is_write, kind);
    a.store = store;
    a.image = image;
    a.place = place;
    a.mask = mask;
    const struct cell value = {.clock = a.clock, .pc = w->pc, .agent = (uint8_t)w->index, .kind = (uint8_t)kind};
    const uintptr_t base = (uintptr_t)w->cta->shared;
    if (is_write && kind == BY_STRONG && !open_strong(w, lowest_bit(mask))) {
        return false;
    }
    for (uint32_t rest = mask; rest != 0;) {
        a.lane = lowest_bit(rest);
        const uint64_t start = (uintptr_t)place[a.lane] - base;
        uint64_t end = start + bytes;
        for (rest &= rest - 1; rest != 0; rest &= rest - 1) {
            const uint64_t next = (uintptr_t)place[lowest_bit(rest)] - base;
            if (next == end) {
                end += bytes;
            } else if (next != start || end != start + bytes) {
                break;
            }
        }
        if (start >= w->cta->shared_bytes) { /* a generic access to another state space */
            continue;
        }
        const uint32_t length = (uint32_t)(end - start);
        if (is_write && a.s->stores != 0 && !check_stores(w, (uint32_t)start + SHARED_BASE, length, a.lane, verb(&a))) {
            return false;
        }
        if (!range(&a, (uint32_t)start, length, &value)) {
            return false;
        }
    }
    return true;
}

/* Check the accesses of lanes whose data do not come from a store's registers. Return false after a fault. */
bool check_lanes(struct warp *w, uint8_t *const *place, uint32_t mask, uint32_t bytes, bool is_write,
                 enum access_kind kind) {
    return check_places(w, place, mask, bytes, is_write, kind, NULL, NULL);
}

/* Check a matrix store, then copy its rows to their places. Return false after a fault. */
bool check_matrix(struct warp *w, uint8_t *const *place, uint32_t rows, uint8_t (*image)[GRANULE]) {
    if (!check_places(w, place, rows == WARP ? FULL : (1u << rows) - 1, GRANULE, true, BY_PLAIN, NULL,
                      (const uint8_t (*)[GRANULE])image)) {
        return false;
    }
    for (uint32_t l = 0; l < rows; ++l) {
        memcpy(place[l], image[l], GRANULE);
    }
    return true;
}

/* Make the further checks of level full: order between lanes, and global memory. Return false after a fault. */
static bool check_fully(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, uint32_t bytes,
                        bool is_write) {
    if (i->q == ORDER_WEAK && i->space <= SPACE_SHARED && !lanes_access(w, i, place, mask, bytes, is_write)) {
        return false;
    }
    return i->space > SPACE_GLOBAL || world_access(w, i, place, mask, bytes, is_write);
}

/* Check a load or store of all lanes whose addresses are valid. Return false after a fault. */
bool check_access(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, bool is_write) {
    const uint32_t bytes = (uint32_t)i->size * i->count;
    const struct shadow *s = w->cta->shadow;
    const int strong = i->q != ORDER_WEAK;
    if ((i->space == SPACE_SHARED || i->space == SPACE_GENERIC) &&
        !check_places(w, place, mask, bytes, is_write, strong != 0 ? BY_STRONG : BY_PLAIN, is_write ? i : NULL, NULL)) {
        return false;
    }
    if (UNLIKELY(s->world != NULL) && !check_fully(w, i, place, mask, bytes, is_write)) {
        return false;
    }
    if (LIKELY(!strong && (!s->stores || i->space == SPACE_SHARED))) {
        return true;
    }
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        if (s->stores != 0 && !check_stores_global(w, (uintptr_t)place[lane], bytes, lane, is_write)) {
            return false;
        }
        if (strong != 0 && !check_ordered(w, i, place[lane], !is_write, is_write)) {
            return false;
        }
    }
    return true;
}

/* Check an atomic access of one lane. Return false after a fault. */
bool check_atomic(struct warp *w, const struct inst *i, uint8_t *place, uint32_t bytes, uint32_t lane) {
    const uint64_t offset = (uintptr_t)place - (uintptr_t)w->cta->shared;
    const bool is_shared = offset < w->cta->shared_bytes;
    if (is_shared && !check_shared(w, (uint32_t)offset + SHARED_BASE, bytes, lane, true, BY_STRONG)) {
        return false;
    }
    if (!check_stores_global(w, (uintptr_t)place, bytes, lane, true)) {
        return false;
    }
    if (!is_shared && w->cta->shadow->world != NULL && !world_atomic(w, i, place, bytes, lane)) {
        return false;
    }
    return check_ordered(w, i, place, true, true);
}

/* Record a write of any agent without checking it. */
void check_mark_write(struct cta *cta, uint32_t address, uint32_t bytes, uint32_t agent, uint32_t clock, uint32_t pc,
                      enum access_kind kind, uint32_t lane) {
    struct shadow *s = cta->shadow;
    const struct cell value = {
        .clock = clock, .pc = pc, .agent = (uint8_t)agent, .kind = (uint8_t)kind, .lane = (uint8_t)lane};
    const uint32_t first = address - SHARED_BASE;
    for (uint32_t k = first; k < first + bytes;) {
        if (k % GRANULE == 0 && first + bytes - k >= GRANULE) {
            s->cell[k / GRANULE] = value;
            k += GRANULE;
            continue;
        }
        split(s, k / GRANULE);
        s->cell[cell_of_byte(k++)] = value;
    }
}

/* Record that a warp's asynchronous read of whole granules has ended, without checking it. */
void check_mark_read(struct warp *w, uint32_t address, uint32_t bytes, uint32_t pc) {
    struct shadow *s = w->cta->shadow;
    const struct mark mark = {s->warp[w->index].seen[w->index], pc};
    for (uint32_t g = (address - SHARED_BASE) / GRANULE; g < (address - SHARED_BASE + bytes) / GRANULE; ++g) {
        const uint32_t count = s->cell[g].split != 0 ? GRANULE : 1, first = count > 1 ? cell_of_byte(g * GRANULE) : g;
        for (uint32_t n = first; n < first + count; ++n) {
            s->cell[n].readers |= 1u << w->index;
            s->read[w->index][n] = mark;
        }
    }
}
