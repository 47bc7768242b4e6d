/* Undefined values in matrices: ldmatrix and stmatrix move them, mma spreads them along rows and columns. */
#include "vm/defined/defined.h"
#include "vm/execute/lanes.h"
#include "vm/execute/lanes_math.h"
#include "vm/execute/mma.h"
#include "vm/execute/tensor.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"

enum { ROW = 16 };

/* ---- ldmatrix and stmatrix ------------------------------------------------------------------------------------ */

/* Return how many lanes point to rows. */
static uint32_t rows_of(const struct inst *i) {
    return (i->next == access_table()[ACCESS_LDMATRIX_B8] ? 16u : 8u) * i->count;
}

/* Save the addresses of the rows, and check that they are defined. */
enum step defined_rows(struct defined *d, const struct event *e) {
    struct event rows = *e;
    const uint32_t count = rows_of(e->inst);
    rows.mask &= count >= WARP ? FULL : (1u << count) - 1;
    return defined_address(d, &rows);
}

/* Return the shadow of a 16-byte row. */
static uint8_t *row_at(struct defined *d, uint32_t lane) {
    return d->shared + ((d->address[lane] & ~WINDOW_MASK) - SHARED_BASE);
}

/* Read the undefined bits of the rows. Return false if all are defined. */
static bool read_rows(struct defined *d, uint32_t rows, uint8_t (*to)[ROW]) {
    uint8_t any = 0;
    for (uint32_t l = 0; l < rows; ++l) {
        const uint8_t *from = row_at(d, l);
        for (uint32_t k = 0; k < ROW; ++k) {
            any |= to[l][k] = (uint8_t)~from[k];
        }
    }
    return any != 0;
}

/* Return the birth of an undefined byte of a row. */
static uint32_t born_in_row(struct defined *d, const struct event *e, uint32_t lane, uint32_t byte) {
    const uint64_t address = (d->address[lane] & ~WINDOW_MASK) + byte;
    const uint32_t origin = d->shared_origin[(address - SHARED_BASE) / 4];
    return (origin >> address % 4 & 1u) != 0 ? origin >> 4 : birth_make(d, BORN_SHARED, e->pc, 0, address);
}

/* Source of a byte of a lane's register: a byte of a row, or a packed element that is widened. */
struct element {
    uint32_t row, byte;
};
typedef struct element place_function(uint32_t j, uint32_t lane, uint32_t byte);

static struct element plain(uint32_t j, uint32_t lane, uint32_t byte) {
    return (struct element){8 * j + lane / 4, 4 * (lane % 4) + byte};
}

static struct element transposed(uint32_t j, uint32_t lane, uint32_t byte) {
    return (struct element){8 * j + 2 * (lane % 4) + byte / 2, 2 * (lane / 4) + byte % 2};
}

/* ldmatrix.m16n16: two registers per matrix. */
static struct element transposed_b8(uint32_t j, uint32_t lane, uint32_t byte) {
    return (struct element){16 * (j / 2) + 4 * (lane % 4) + byte, lane / 4 + 8 * (j % 2)};
}

/* stmatrix.m16n8. */
static struct element stored_b8(uint32_t j, uint32_t lane, uint32_t byte) {
    return (struct element){8 * j + 2 * (lane % 4) + byte % 2, lane / 4 + 8 * (byte / 2)};
}

/* Return the undefined bits of an element of a row. Packed elements have 4 bits (kind 1) or 6 (kind 2). */
static uint32_t element_bits(const uint8_t *row, uint32_t n, uint32_t kind) {
    if (kind == 0) {
        return row[n];
    }
    const uint32_t width = kind == 1 ? 4 : 6, bit = n * width;
    const uint32_t two = row[bit / 8] | (bit / 8 + 1 < ROW ? (uint32_t)row[bit / 8 + 1] << 8 : 0);
    return two >> bit % 8 & ((1u << width) - 1);
}

static enum step load(struct defined *d, const struct event *e, place_function *place, uint32_t registers) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    const uint32_t *slots = i->more, kind = place == transposed || place == plain ? i->kind : i->kind;
    uint8_t rows[WARP][ROW];
    const bool some = read_rows(d, rows_of(i), rows);
    for (uint32_t j = 0; j < registers; ++j) {
        define(u, slots[j], FULL);
        for (uint32_t l = 0; some && l < WARP; ++l) {
            uint32_t bits = 0, birth = 0;
            for (uint32_t b = 0; b < 4; ++b) {
                const struct element at = place(j, l, b);
                const uint32_t part = element_bits(rows[at.row], at.byte, kind);
                const uint32_t width = kind == 1 ? 4 : kind == 2 ? 6 : 8;
                bits |= part << 8 * b;
                birth = part != 0 && birth == 0 ? born_in_row(d, e, at.row, at.byte * width / 8) : birth;
            }
            if (bits != 0) {
                set_bits(u, slots[j], l, 4, bits, birth);
            }
        }
    }
    return STEP_NEXT;
}

enum step defined_ldmatrix(struct defined *d, const struct event *e) {
    return load(d, e, plain, e->inst->count);
}

enum step defined_ldmatrix_trans(struct defined *d, const struct event *e) {
    return load(d, e, transposed, e->inst->count);
}

enum step defined_ldmatrix_b8(struct defined *d, const struct event *e) {
    return load(d, e, transposed_b8, 2u * e->inst->count);
}

static enum step store(struct defined *d, const struct event *e, place_function *place) {
    const struct defined_warp *u = defined_of(d, e);
    const uint32_t *slots = e->inst->more;
    for (uint32_t j = 0; j < e->inst->count; ++j) {
        for (uint32_t l = 0; l < WARP; ++l) {
            const uint32_t bits = (uint32_t)bits_of(u, slots[j], l, 4);
            const uint32_t birth = bits != 0 ? birth_of(d, e, slots[j], l) : 0;
            for (uint32_t b = 0; b < 4; ++b) {
                const struct element at = place(j, l, b);
                uint8_t *const to = row_at(d, at.row) + at.byte;
                uint32_t *const origin = &d->shared_origin[(to - d->shared) / 4];
                const uint32_t bit = 1u << (to - d->shared) % 4;
                *to = (uint8_t)~(bits >> 8 * b);
                *origin = (bits >> 8 * b & 255u) != 0 ? birth << 4 | (*origin & 15u) | bit : *origin & ~bit;
            }
            d->stored |= bits != 0;
        }
    }
    return STEP_NEXT;
}

enum step defined_stmatrix(struct defined *d, const struct event *e) {
    return store(d, e, e->inst->kind != 0 ? transposed : plain);
}

enum step defined_stmatrix_b8(struct defined *d, const struct event *e) {
    return store(d, e, stored_b8);
}

/* ---- mma ------------------------------------------------------------------------------------------------------ */

/* Rows of A or columns of B that hold an undefined bit, and the birth of the first in each. */
struct lines {
    uint32_t rows, columns, row_birth[16], column_birth[8];
};

static void spoil_row(struct lines *lines, uint32_t row, uint32_t birth) {
    if ((lines->rows >> row & 1u) == 0) {
        lines->row_birth[row] = birth;
    }
    lines->rows |= 1u << row;
}

static void spoil_column(struct lines *lines, uint32_t column, uint32_t birth) {
    if ((lines->columns >> column & 1u) == 0) {
        lines->column_birth[column] = birth;
    }
    lines->columns |= 1u << column;
}

/* Record the rows of A and columns of B with undefined bits. Register r of lane 4g + q belongs to row g + 8 (r & 1)
 * of A (row g in products of 8 rows), or to column g of B. */
static void gather_lines(struct defined *d, const struct event *e, const struct mma_plan *plan, bool eight,
                         struct lines *lines) {
    const struct defined_warp *u = defined_of(d, e);
    for (uint32_t r = 0; r < plan->a.count; ++r) {
        for (uint32_t rest = some_of(u, plan->a.slot[r]); rest != 0; rest &= rest - 1) {
            const uint32_t l = lowest_bit(rest);
            spoil_row(lines, l / 4 + (eight ? 0 : 8 * (r & 1)), birth_of(d, e, plan->a.slot[r], l));
        }
    }
    for (uint32_t r = 0; r < plan->b.count; ++r) {
        for (uint32_t rest = some_of(u, plan->b.slot[r]); rest != 0; rest &= rest - 1) {
            const uint32_t l = lowest_bit(rest);
            spoil_column(lines, l / 4, birth_of(d, e, plan->b.slot[r], l));
        }
    }
}

/* Record undefined block scales: the selected bytes of the selected lane, for rows g and g + 8 or for column g. */
static void gather_scales(struct defined *d, const struct event *e, const struct mma_plan *plan, struct lines *lines) {
    const struct defined_warp *u = defined_of(d, e);
    uint32_t value[4];
    for (uint32_t k = 0; k < 4; ++k) {
        value[k] = *(const uint32_t *)source(e->warp, plan->selector[k]) & 0xffffu;
    }
    const uint32_t vector = plan->shape.scale_vec, width = vector == 4 ? FULL : (1u << 8 * vector) - 1;
    for (uint32_t row = 0; row < 16; ++row) {
        const uint32_t lane = 4 * (row & 7) + 2 * (value[1] & 1) + (row >> 3);
        if ((bits_of(u, plan->scale_a, lane, 4) >> 8 * (value[0] & 3) & width) != 0) {
            spoil_row(lines, row, birth_of(d, e, plan->scale_a, lane));
        }
    }
    for (uint32_t column = 0; column < 8; ++column) {
        const uint32_t lane = 4 * column + (value[3] & 3);
        if ((bits_of(u, plan->scale_b, lane, 4) >> 8 * (value[2] & 3) & width) != 0) {
            spoil_column(lines, column, birth_of(d, e, plan->scale_b, lane));
        }
    }
}

/* Return whether all sources of a product are defined. */
static bool all_defined(const struct defined_warp *u, const struct mma_plan *plan) {
    uint32_t some = plan->shape.scale != 0 ? some_of(u, plan->scale_a) | some_of(u, plan->scale_b) : 0;
    for (uint32_t r = 0; r < plan->a.count; ++r) {
        some |= some_of(u, plan->a.slot[r]);
    }
    for (uint32_t r = 0; r < plan->b.count; ++r) {
        some |= some_of(u, plan->b.slot[r]);
    }
    for (uint32_t r = 0; r < plan->c.count; ++r) {
        some |= some_of(u, plan->c.slot[r]);
    }
    return some == 0;
}

/* Compute one element of D: it is undefined if its row, its column or its C is. */
static uint64_t product(struct defined *d, const struct event *e, const struct lines *lines, uint32_t row,
                        uint32_t column, uint64_t c, uint32_t slot, uint32_t lane, uint64_t whole, uint32_t *birth) {
    const int by_row = lines->rows >> row & 1u, by_column = lines->columns >> column & 1u;
    if (c == 0 && by_row == 0 && by_column == 0) {
        return 0;
    }
    *birth = by_row != 0      ? lines->row_birth[row]
             : by_column != 0 ? lines->column_birth[column]
                              : birth_of(d, e, slot, lane);
    return whole;
}

/* Compute all elements of D. Register r of lane 4g + q holds row g + 8 (r >> 1) and column 2q + (r & 1); with f16
 * accumulators, row g + 8r and columns 2q and 2q + 1. */
static void spread(struct defined *d, const struct event *e, const struct mma_plan *plan, const struct lines *lines,
                   uint32_t bytes) {
    struct defined_warp *u = defined_of(d, e);
    const bool halves = bytes == 4 && plan->shape.accumulator == MMA_ACC_F16;
    uint64_t bits[4][WARP];
    uint32_t birth[4][WARP] = {{0}};
    for (uint32_t r = 0; r < plan->d.count; ++r) {
        for (uint32_t l = 0; l < WARP; ++l) {
            const uint64_t c = bits_of(u, plan->c.slot[r], l, bytes);
            const uint32_t row = l / 4 + 8 * (halves ? r : r >> 1), column = 2 * (l % 4) + (halves ? 0 : r & 1);
            const uint64_t all = bytes == 8 ? UINT64_MAX : halves ? 0xffffu : FULL;
            bits[r][l] = product(d, e, lines, row, column, c & all, plan->c.slot[r], l, all, &birth[r][l]);
            if (halves) {
                bits[r][l] |= product(d, e, lines, row, column + 1, c >> 16, plan->c.slot[r], l, all, &birth[r][l])
                              << 16;
            }
        }
    }
    for (uint32_t r = 0; r < plan->d.count; ++r) {
        for (uint32_t l = 0; l < WARP; ++l) {
            set_bits(u, plan->d.slot[r], l, bytes, bits[r][l], birth[r][l]);
        }
    }
}

static enum step multiply(struct defined *d, const struct event *e, uint32_t bytes) {
    const struct mma_plan *plan = e->inst->more;
    struct lines lines = {0};
    if (all_defined(defined_of(d, e), plan)) {
        for (uint32_t r = 0; r < plan->d.count; ++r) {
            define(defined_of(d, e), plan->d.slot[r], FULL);
        }
        return STEP_NEXT;
    }
    gather_lines(d, e, plan, bytes == 8 && plan->c.count == 2, &lines);
    if (plan->shape.scale != 0) {
        gather_scales(d, e, plan, &lines);
    }
    spread(d, e, plan, &lines, bytes);
    return STEP_NEXT;
}

/* mma.sync */
enum step defined_mma(struct defined *d, const struct event *e) {
    return multiply(d, e, 4);
}

/* mma.sync of f64 */
enum step defined_mma_double(struct defined *d, const struct event *e) {
    return multiply(d, e, 8);
}

/* Check the scale selectors, and the metadata of a sparse A in the lanes that hold it. */
enum step defined_selectors(struct defined *d, const struct event *e) {
    const struct mma_plan *plan = e->inst->more;
    struct event holders = *e;
    for (uint32_t k = 0; plan->shape.scale != 0 && k < 4; ++k) {
        if (decided_by(d, e, "the selector of a scale", plan->selector[k]) == STEP_FAULT) {
            return STEP_FAULT;
        }
    }
    holders.mask = e->mask & 0x11111111u * plan->holders;
    return plan->shape.sparse != 0 ? decided_by(d, &holders, "the layout of this sparse matrix", plan->metadata)
                                   : STEP_NEXT;
}
