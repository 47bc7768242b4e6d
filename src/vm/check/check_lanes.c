/* Level full: races between lanes of a warp. They are accesses of different instructions to the same bytes without
 * bar.warp.sync or another collective in between, and stores whose lanes write different values to the same place.
 *
 * Accesses of a warp are numbered. All lanes are ordered up to number `base`. After a collective of only some lanes,
 * `known[a][b]` is the number up to which lane a is ordered after lane b. Cells record the last accesses. Shared
 * memory has a cell for every word and every byte. Global memory has as many, shared by addresses with the same low
 * bits. Strong accesses and copies are not checked. */
#include <stdlib.h>
#include <string.h>

#include "vm/check/check.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

enum { NEAR = 1024, WORD = 4 };

struct lane_cell {
    uint64_t key; /* of global memory: the word or byte, because several share a cell */
    uint32_t write_at, write_pc, read_at, read_pc;
    uint32_t readers; /* lanes that have read since `read_at` */
    uint8_t writer, spare[3];
};

struct lanes {
    uint32_t now, base;
    bool is_partial;   /* `known` is valid */
    uint32_t bytes_at; /* number of the last access to single bytes */
    uint32_t words;    /* number of words of shared memory */
    uint32_t known[WARP][WARP];
    /* Numbers of each lane's last write to shared memory, proxy fence, and wait for copies of its own. */
    uint32_t wrote[WARP], fenced[WARP], waited[WARP];
    struct lane_cell *cell; /* cells of: words of shared memory, its bytes, words of global memory, its bytes */
};

/* An access of all lanes. */
struct access {
    struct warp *w;
    struct lanes *lanes;
    const struct inst *i;
    uint8_t *const *place;
    uint32_t lane, bytes;
    bool is_write, is_shared;
    bool has_bytes; /* it is one of whole words, and accesses to single bytes are not ordered for all lanes */
};

void lanes_free(struct lanes *lanes) {
    if (lanes != NULL) {
        free(lanes->cell);
    }
    free(lanes);
}

/* Return the state of a warp's lanes, for a CTA with this much shared memory. NULL when out of memory. */
struct lanes *lanes_open(struct lanes *old, uint32_t shared_bytes) {
    const uint32_t words = shared_bytes / WORD + 1;
    struct lanes *l = old != NULL ? old : calloc(1, sizeof *l);
    if (l != NULL && words > l->words) {
        free(l->cell);
        l->cell = calloc((size_t)(WORD + 1) * (words + NEAR), sizeof *l->cell);
        l->words = words;
    }
    if (l != NULL && l->cell != NULL) {
        l->base = l->now;
        l->is_partial = false;
        return l;
    }
    lanes_free(l);
    return NULL;
}

/* Record that lanes have met at a collective: their earlier accesses are ordered for all of them. */
void lanes_meet(struct warp *w, uint32_t mask) {
    struct lanes *l = w->cta->shadow->lanes[w->index];
    if (LIKELY(!(w->live & ~mask))) {
        l->base = l->now;
        l->is_partial = false;
        return;
    }
    uint32_t row[WARP] = {0};
    for (uint32_t k = 0; !l->is_partial && k < WARP * WARP; ++k) {
        l->known[k / WARP][k % WARP] = l->base;
    }
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        for (uint32_t k = 0; k < WARP; ++k) {
            const uint32_t at = l->known[lowest_bit(rest)][k];
            row[k] = (mask >> k & 1u) != 0 ? l->now : row[k] > at ? row[k] : at;
        }
    }
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        memcpy(l->known[lowest_bit(rest)], row, sizeof row);
    }
    l->is_partial = true;
}

static bool ordered(const struct access *a, uint32_t lane, uint32_t at) {
    const struct lanes *l = a->lanes;
    return lane == a->lane || at <= l->base || (l->is_partial && l->known[a->lane][lane] >= at);
}

/* ---- reports ------------------------------------------------------------------------------------------------- */

static bool report(const struct access *a, uint64_t address, uint32_t lane, uint32_t pc, const char *verb) {
    const struct spot at = check_spot(a->w, pc);
    fault_at(a->w, CUDA_ERROR_LAUNCH_FAILED, a->lane,
             "data race in a warp: %s of %u bytes at %s address 0x%llx, which lane %u %s at %s; expected an atomic "
             "operation, or bar.warp.sync or another collective of both lanes between them",
             a->is_write ? "write" : "read", a->bytes, a->is_shared ? "shared" : "global", (unsigned long long)address,
             lane, verb, at.text);
    return false;
}

static bool report_values(const struct access *a, uint64_t address, uint32_t lane) {
    fault_at(a->w, CUDA_ERROR_LAUNCH_FAILED, a->lane,
             "data race in a store: lanes %u and %u write different values at %s address 0x%llx; expected one lane, or "
             "the same value",
             lane, a->lane, a->is_shared ? "shared" : "global", (unsigned long long)address);
    return false;
}

/* ---- accesses ------------------------------------------------------------------------------------------------ */

/* Return the byte that a lane of the store writes to a place. */
static uint8_t value_of(const struct access *a, uint32_t lane, const uint8_t *place) {
    const uint32_t *slots = a->i->more, size = a->i->size, k = (uint32_t)(place - a->place[lane]);
    const uint8_t *values = source(a->w, slots[k / size]);
    return values[lane * (size == 8 ? 8u : 4u) + k % size];
}

/* Return whether two lanes of this store write the same bytes here. */
static bool same_values(const struct access *a, uint32_t lane, const uint8_t *place, uint32_t bytes) {
    for (uint32_t k = 0; k < bytes; ++k) {
        if (place + k - a->place[lane] < (ptrdiff_t)a->bytes && place + k >= a->place[lane] &&
            value_of(a, lane, place + k) != value_of(a, a->lane, place + k)) {
            return false;
        }
    }
    return true;
}

/* Return whether the store writes the values that are already there. */
static bool changes_nothing(const struct access *a, const uint8_t *place, uint32_t bytes) {
    for (uint32_t k = 0; k < bytes; ++k) {
        if (place[k] != value_of(a, a->lane, place + k)) {
            return false;
        }
    }
    return true;
}

/* Compare an access with the accesses recorded in a cell. Return false after a fault. */
static bool check(const struct access *a, const struct lane_cell *c, uint64_t address, const uint8_t *place,
                  uint32_t bytes) {
    const uint32_t now = a->lanes->now;
    if (c->write_at == now && a->is_write && c->writer != a->lane) {
        return same_values(a, c->writer, place, bytes) || report_values(a, address, c->writer);
    }
    if (UNLIKELY(!ordered(a, c->writer, c->write_at)) && !(a->is_write && changes_nothing(a, place, bytes))) {
        return report(a, address, c->writer, c->write_pc, "wrote");
    }
    if (!a->is_write || c->read_at <= a->lanes->base) {
        return true;
    }
    for (uint32_t rest = c->readers & ~(1u << a->lane); rest != 0; rest &= rest - 1) {
        if (!ordered(a, lowest_bit(rest), c->read_at) && !changes_nothing(a, place, bytes)) {
            return report(a, address, lowest_bit(rest), c->read_pc, "read");
        }
    }
    return true;
}

static void note(const struct access *a, struct lane_cell *c) {
    if (a->is_write) {
        c->write_at = a->lanes->now;
        c->write_pc = a->w->pc;
        c->writer = (uint8_t)a->lane;
        a->lanes->wrote[a->lane] = a->is_shared ? a->lanes->now : a->lanes->wrote[a->lane];
        return;
    }
    if (c->read_at <= a->lanes->base) {
        c->read_at = a->lanes->now;
        c->readers = 0;
    }
    c->readers |= 1u << a->lane;
    c->read_pc = a->w->pc;
}

/* Return the cell of a word or byte. If it records another address, it is cleared. */
static struct lane_cell *cell_of(const struct access *a, const uint8_t *place, bool is_byte, bool clears) {
    const struct lanes *l = a->lanes;
    const uint64_t key = is_byte ? (uintptr_t)place : (uintptr_t)place / WORD;
    if (a->is_shared) {
        const size_t offset = (size_t)(place - a->w->cta->shared);
        return &l->cell[is_byte ? l->words + offset : offset / WORD];
    }
    struct lane_cell *c = &l->cell[(size_t)(WORD + 1) * l->words + (is_byte ? NEAR + key % (WORD * NEAR) : key % NEAR)];
    if (c->key == key) {
        return c;
    }
    if (!clears) {
        return NULL;
    }
    *c = (struct lane_cell){.key = key};
    return c;
}

/* Check a part of a lane's access: a whole word, or one byte. Return false after a fault. */
static bool touch(const struct access *a, const uint8_t *place, uint32_t bytes) {
    const bool is_byte = bytes < WORD;
    const uint64_t address =
        a->is_shared ? SHARED_BASE + (uint64_t)(place - a->w->cta->shared) : (uint64_t)(uintptr_t)place;
    struct lane_cell *own = cell_of(a, place, is_byte, true);
    if (!check(a, own, address, place, bytes)) {
        return false;
    }
    const struct lane_cell *word = is_byte ? cell_of(a, place, false, false) : NULL;
    if (word != NULL && !check(a, word, address, place, bytes)) {
        return false;
    }
    for (uint32_t k = 0; a->has_bytes && k < WORD; ++k) {
        const struct lane_cell *part = cell_of(a, place + k, true, false);
        if (part != NULL && !check(a, part, address + k, place + k, 1)) {
            return false;
        }
    }
    note(a, own);
    return true;
}

/* Check a weak load or store of lanes in shared or global memory. Return false after a fault. */
bool lanes_access(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, uint32_t bytes,
                  bool is_write) {
    struct lanes *l = w->cta->shadow->lanes[w->index];
    struct access a = {.w = w, .lanes = l, .i = i, .place = place, .bytes = bytes, .is_write = is_write};
    if (UNLIKELY(++l->now >= UINT32_MAX - WARP)) { /* the number has overflowed: clear all cells and start again */
        memset(l->cell, 0, (size_t)(WORD + 1) * (l->words + NEAR) * sizeof *l->cell);
        l->now = 1;
        l->base = 0;
        l->is_partial = false;
        l->bytes_at = 0;
        memset(l->wrote, 0, sizeof l->wrote);
        memset(l->fenced, 0, sizeof l->fenced);
        memset(l->waited, 0, sizeof l->waited);
    }
    if ((mask & (mask - 1)) == 0 && mask == w->live) { /* a single live lane cannot race */
        return true;
    }
    a.has_bytes = bytes >= WORD && l->bytes_at > l->base;
    l->bytes_at = bytes < WORD ? l->now : l->bytes_at;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        a.lane = lowest_bit(rest);
        const uint8_t *const at = place[a.lane];
        a.is_shared = (uintptr_t)at - (uintptr_t)w->cta->shared < w->cta->shared_bytes;
        if (!a.is_shared && i->space == SPACE_GENERIC && !check_is_global(w, at)) {
            continue;
        }
        const uint32_t step = bytes < WORD ? 1 : WORD;
        for (uint32_t k = 0; k < bytes; k += step) {
            if (!touch(&a, at + k, step)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- the asynchronous proxy, and cp.async ----------------------------------------------------------------------- */

/* Return whether a lane is ordered after number `at` of another. */
static bool knows(const struct lanes *l, uint32_t lane, uint32_t other, uint32_t at) {
    return lane == other || at <= l->base || (l->is_partial && l->known[lane][other] >= at);
}

/* Return the cell of the last write to a byte of shared memory: of its word, or its own. */
static const struct lane_cell *last_write(const struct lanes *l, uint32_t offset) {
    const struct lane_cell *word = &l->cell[offset / WORD], *byte = &l->cell[l->words + offset];
    return word->write_at > byte->write_at ? word : byte;
}

bool lanes_bulk(struct warp *w, uint32_t address, uint32_t bytes, uint32_t lane) {
    struct lanes *l = w->cta->shadow->lanes[w->index];
    const uint32_t first = address - SHARED_BASE;
    bool knows_all = true;
    for (uint32_t k = 0; k < WARP; ++k) {
        knows_all = knows_all && knows(l, lane, k, l->wrote[k]);
    }
    for (uint32_t offset = first; !knows_all && offset < first + bytes; ++offset) {
        const struct lane_cell *c = last_write(l, offset);
        if (!knows(l, lane, c->writer, c->write_at)) {
            const struct spot at = check_spot(w, c->write_pc);
            fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                     "data race in a warp: bulk copy of %u bytes at shared address 0x%x, which lane %u wrote at %s; "
                     "expected bar.warp.sync or another collective of both lanes between them",
                     bytes, offset + SHARED_BASE, c->writer, at.text);
            return false;
        }
    }
    return true;
}

uint32_t lanes_fence(struct warp *w, uint32_t mask, struct loose *loose) {
    struct lanes *l = w->cta->shadow->lanes[w->index];
    uint32_t left_out = 0;
    for (uint32_t k = 0; k < WARP; ++k) {
        bool covered = (mask >> k & 1u) != 0 || l->wrote[k] <= l->fenced[k];
        for (uint32_t rest = mask; !covered && rest != 0; rest &= rest - 1) {
            covered = knows(l, lowest_bit(rest), k, l->wrote[k]);
        }
        left_out |= (uint32_t)!covered << k;
    }
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        l->fenced[lowest_bit(rest)] = l->now;
    }
    loose->after = l->base;
    loose->last = l->now;
    return left_out;
}

bool lanes_left_out(const struct lanes *l, uint32_t offset, uint32_t bytes, const struct loose *loose) {
    for (uint32_t k = offset; k < offset + bytes; ++k) {
        const struct lane_cell *c = last_write(l, k);
        if ((loose->lanes >> c->writer & 1u) != 0 && c->write_at > loose->after && c->write_at <= loose->last) {
            return true;
        }
    }
    return false;
}

void lanes_waited(struct warp *w, uint32_t mask) {
    struct lanes *l = w->cta->shadow->lanes[w->index];
    l->now += l->now < UINT32_MAX - WARP;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        l->waited[lowest_bit(rest)] = l->now;
    }
}

bool lanes_all_know(const struct warp *w, uint32_t waiter) {
    const struct lanes *l = w->cta->shadow->lanes[w->index];
    return l->waited[waiter] <= l->base;
}

bool lanes_know(const struct warp *w, uint32_t lane, uint32_t waiter) {
    const struct lanes *l = w->cta->shadow->lanes[w->index];
    return knows(l, lane, waiter, l->waited[waiter]);
}
