/* Loads, stores and matrix loads of 32 lanes. Compiled once per vector width (VM_ISA).
 * If the addresses of all lanes lie in one range, they are checked together, otherwise lane by lane. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include <string.h>

#include "vm/check/check.h"
#include "vm/execute/lanes.h"
#include "vm/execute/lanes_math.h"
#include "vm/execute/mma_isa.h"
#include "vm/execute/poll.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

#define PASTE2(a, b) a##_##b
#define PASTE(a, b)  PASTE2(a, b)

/* Lowest and highest address of the active lanes, and the OR of all addresses, to check alignment. */
struct range {
    uint64_t low, high, bits;
};

static inline struct range find_range(const uint64_t *address, uint32_t mask) {
    uint64_t low = UINT64_MAX, high = 0, bits = 0;
    for (uint32_t l = 0; l < WARP; ++l) {
        const uint64_t on = 0u - (uint64_t)(mask >> l & 1u), x = address[l] | ~on, y = address[l] & on;
        low = x < low ? x : low;
        high = y > high ? y : high;
        bits |= y;
    }
    return (struct range){low, high, bits};
}

/* Return the host pointer of range.low if one check covers the whole range. NULL: check each lane. */
static inline uint8_t *resolve(struct warp *w, enum space space, const struct range *r, uint32_t bytes, uint32_t align,
                               int is_write, enum space *found) {
    uint64_t low = r->low;
    const uint64_t length = r->high - low + bytes;
    if ((r->bits & (align - 1)) != 0) {
        return NULL;
    }
    if (space == SPACE_GENERIC) {
        if (low >> 56 != r->high >> 56) {
            return NULL;
        }
        space = address_resolve(space, &low);
    }
    *found = space;
    if (space == SPACE_SHARED) {
        const uint64_t at = low - w->shared_start;
        return low >= w->shared_start && at + length <= w->cta->cta_shared ? w->cta->shared + (low - SHARED_BASE)
                                                                           : NULL;
    }
    if (space == SPACE_GLOBAL || space == SPACE_CONST) {
        return (unsigned)memory_find(w->worker, low, length) - 1u < (is_write != 0 ? 1u : 2u)
                   ? (uint8_t *)(uintptr_t)low
                   : NULL;
    }
    return NULL;
}

/* Load one element of every active lane. */
static inline void gather(struct warp *w, uint32_t slot, uint32_t size, const uint8_t *const *from, uint32_t mask) {
    uint32_t *d = destination(w, slot);
    if (size == 8) {
        uint64_t *wide = destination(w, slot);
        for (uint32_t l = 0; l < WARP; ++l) {
            if ((mask >> l & 1u) != 0) {
                memcpy(&wide[l], from[l], 8);
            }
        }
    } else if (size == 4) {
        for (uint32_t l = 0; l < WARP; ++l) {
            if ((mask >> l & 1u) != 0) {
                memcpy(&d[l], from[l], 4);
            }
        }
    } else {
        for (uint32_t l = 0; l < WARP; ++l) {
            if ((mask >> l & 1u) != 0) {
                d[l] = size == 1 ? from[l][0] : (uint32_t)(from[l][0] | from[l][1] << 8);
            }
        }
    }
}

/* Store one element of every active lane. */
static inline void scatter(struct warp *w, uint32_t slot, uint32_t size, uint8_t *const *to, uint32_t mask) {
    const uint32_t *a = source(w, slot);
    if (size == 8) {
        const uint64_t *wide = source(w, slot);
        for (uint32_t l = 0; l < WARP; ++l) {
            if ((mask >> l & 1u) != 0) {
                memcpy(to[l], &wide[l], 8);
            }
        }
    } else if (size == 4) {
        for (uint32_t l = 0; l < WARP; ++l) {
            if ((mask >> l & 1u) != 0) {
                memcpy(to[l], &a[l], 4);
            }
        }
    } else {
        for (uint32_t l = 0; l < WARP; ++l) {
            if ((mask >> l & 1u) == 0) {
                continue;
            }
            to[l][0] = (uint8_t)a[l];
            if (size == 2) {
                to[l][1] = (uint8_t)(a[l] >> 8);
            }
        }
    }
}

/* Parts of a vector that the host copies at once, as a GPU does: aligned ones, of 16 bytes too on x86-64 with AVX and
 * on aarch64 with LSE2. */
typedef uint64_t part_16 __attribute__((vector_size(16), may_alias));
typedef uint64_t part_8 __attribute__((may_alias));
typedef uint32_t part_4 __attribute__((may_alias));
typedef uint16_t part_2 __attribute__((may_alias));

/* Copy a vector of 2 to 32 bytes, aligned to its size, in parts of up to 16 bytes. */
static inline void copy_whole(void *to, const void *from, uint32_t bytes) {
    if ((((uintptr_t)to | (uintptr_t)from) & (bytes < 16 ? bytes - 1 : 15u)) != 0) {
        memcpy(to, from, bytes); /* no such place is known, and none shall end the process */
    } else if (bytes == 2) {
        *(volatile part_2 *)to = *(const volatile part_2 *)from;
    } else if (bytes == 4) {
        *(volatile part_4 *)to = *(const volatile part_4 *)from;
    } else if (bytes == 8) {
        *(volatile part_8 *)to = *(const volatile part_8 *)from;
    } else {
        for (uint32_t k = 0; k < bytes / 16; ++k) {
            ((volatile part_16 *)to)[k] = ((const volatile part_16 *)from)[k];
        }
    }
}

/* A vector of a lane. */
struct vector {
    _Alignas(16) uint8_t byte[32];
};

/* Load vectors, each at once: another thread that stores one must not be seen halfway. */
static void gather_whole(struct warp *w, const struct inst *i, uint8_t *const *from, uint32_t mask) {
    const uint32_t *slots = i->more;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        struct vector v;
        copy_whole(v.byte, from[l], (uint32_t)i->size * i->count);
        for (uint32_t k = 0; k < i->count; ++k) {
            uint64_t value = 0;
            memcpy(&value, v.byte + (size_t)k * i->size, i->size);
            if (i->size == 8) {
                ((uint64_t *)destination(w, slots[k]))[l] = value;
            } else {
                ((uint32_t *)destination(w, slots[k]))[l] = (uint32_t)value;
            }
        }
    }
}

/* Store vectors, each at once. */
static void scatter_whole(struct warp *w, const struct inst *i, uint8_t *const *to, uint32_t mask) {
    const uint32_t *slots = i->more;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        struct vector v;
        for (uint32_t k = 0; k < i->count; ++k) {
            const uint64_t value =
                i->size == 8 ? ((const uint64_t *)source(w, slots[k]))[l] : ((const uint32_t *)source(w, slots[k]))[l];
            memcpy(v.byte + (size_t)k * i->size, &value, i->size);
        }
        copy_whole(to[l], v.byte, (uint32_t)i->size * i->count);
    }
}

/* Compute the host pointer of every lane's access, with one check for all lanes if possible. Return 0 after a fault. */
static inline int places(struct warp *w, const struct inst *i, uint32_t mask, uint32_t bytes, int is_write,
                         uint8_t **place, enum space *found) {
    uint64_t address[WARP];
    address_lanes(w, i, address);
    const struct range r = find_range(address, mask);
    uint8_t *base = resolve(w, (enum space)i->space, &r, bytes, bytes, is_write, found);
    if (base != NULL) {
        LANES place[l] = (uint8_t *)((uintptr_t)base + (address[l] - r.low)); /* unspecified in inactive lanes */
        return 1;
    }
    for (uint32_t l = 0; l < WARP; ++l) {
        place[l] = NULL;
        if ((mask >> l & 1u) == 0) {
            continue;
        }
        place[l] = memory_any(w, (enum space)i->space, address[l], bytes, bytes, l, is_write, found);
        if (place[l] == NULL) {
            return 0;
        }
    }
    return 1;
}

static inline void count_traffic(struct warp *w, enum space space, uint32_t mask, uint32_t bytes, uint32_t is_write) {
    const uint32_t kind = space == SPACE_SHARED  ? TRAFFIC_LD_SHARED
                          : space == SPACE_LOCAL ? TRAFFIC_LD_LOCAL
                                                 : TRAFFIC_LD_GLOBAL;
    w->worker->bytes[kind + is_write] += (uint64_t)bytes * (mask == FULL ? 32u : bit_count(mask));
}

/* d = [a] */
static enum step load(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more, bytes = (uint32_t)i->size * i->count;
    uint8_t *place[WARP];
    enum space found = SPACE_GLOBAL;
    if (places(w, i, mask, bytes, 0, place, &found) == 0) {
        return STEP_FAULT;
    }
    if (UNLIKELY(w->cta->shadow != NULL) && !check_access(w, i, place, mask, false)) {
        return STEP_FAULT;
    }
    const bool is_whole = i->q != ORDER_WEAK && i->count > 1;
    if (is_whole) {
        gather_whole(w, i, place, mask);
    }
    for (uint32_t k = 0; k < i->count && !is_whole; ++k) {
        gather(w, slots[k], i->size, (const uint8_t *const *)place, mask);
        if (k + 1u < i->count) {
            LANES place[l] = (uint8_t *)((uintptr_t)place[l] + i->size);
        }
    }
    count_traffic(w, found, mask, bytes, 0);
    return STEP_NEXT;
}

/* A volatile, relaxed or acquire load. If lanes repeat it without seeing a change, other warps get a turn. */
static enum step load_strong(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t bytes = (uint32_t)i->size * i->count;
    uint8_t *place[WARP];
    enum space found = SPACE_GLOBAL;
    if (places(w, i, mask, bytes, 0, place, &found) == 0) {
        return STEP_FAULT;
    }
    const int repeated = found <= SPACE_SHARED && poll_note(w, place, mask, bytes, found == SPACE_SHARED);
    const enum step step = load(w, i, mask);
    return step == STEP_NEXT && repeated != 0 ? STEP_YIELD : step;
}

/* [a] = b */
static enum step store(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more, bytes = (uint32_t)i->size * i->count;
    uint8_t *place[WARP];
    enum space found = SPACE_GLOBAL;
    if (places(w, i, mask, bytes, 1, place, &found) == 0) {
        return STEP_FAULT;
    }
    if (UNLIKELY(w->cta->shadow != NULL) && !check_access(w, i, place, mask, true)) {
        return STEP_FAULT;
    }
    const bool is_whole = i->q != ORDER_WEAK && i->count > 1;
    if (is_whole) {
        scatter_whole(w, i, place, mask);
    }
    for (uint32_t k = 0; k < i->count && !is_whole; ++k) {
        scatter(w, slots[k], i->size, place, mask);
        if (k + 1u < i->count) {
            LANES place[l] = (uint8_t *)((uintptr_t)place[l] + i->size);
        }
    }
    count_traffic(w, found, mask, bytes, 1);
    return STEP_NEXT;
}

/* ld.param: all lanes read the same value. */
static enum step parameter(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more;
    const uint8_t *from = w->cta->launch->parameters + i->offset;
    for (uint32_t k = 0; k < i->count; ++k, from += i->size) {
        uint64_t value = 0;
        for (uint32_t b = 0; b < i->size; ++b) {
            value |= (uint64_t)from[b] << 8 * b;
        }
        if (i->size == 8) {
            uint64_t *d = destination(w, slots[k]);
            LANES d[l] = (mask >> l & 1u) != 0 ? value : d[l];
        } else {
            uint32_t *d = destination(w, slots[k]);
            const uint32_t narrow = (uint32_t)value;
            LANES d[l] = (mask >> l & 1u) != 0 ? narrow : d[l];
        }
    }
    return STEP_NEXT;
}

/* Compute the host pointers of the 16-byte rows in shared memory that lanes 0 to rows - 1 point to. Return 0 after a
 * fault. */
static inline int matrix_rows(struct warp *w, const struct inst *i, uint32_t rows, int is_write, uint8_t **row) {
    uint64_t address[WARP];
    address_lanes(w, i, address);
    const uint64_t window = i->space == SPACE_GENERIC ? SHARED_WINDOW : 0;
    const uint64_t last = (uint64_t)w->cta->cta_shared - 16;
    uint64_t bad = w->cta->cta_shared < 16;
    for (uint32_t l = 0; l < rows; ++l) {
        const uint64_t at = address[l] - window - w->shared_start;
        bad |= (at & 15u) | (uint64_t)(at > last);
        row[l] = (uint8_t *)((uintptr_t)w->cta->shared + (w->shared_start - SHARED_BASE) + at);
    }
    for (uint32_t l = 0; bad != 0 && l < rows; ++l) {
        if (memory_shared(w, address[l] - window, 16, 16, l, "row") == NULL) {
            return 0;
        }
    }
    if (UNLIKELY(w->cta->shadow != NULL)) {
        return is_write != 0 || check_lanes(w, row, rows == 32 ? FULL : (1u << rows) - 1, 16, false, BY_PLAIN);
    }
    return 1;
}

/* reg j = M_j[row g][columns 2q, 2q + 1] */
static enum step ldmatrix(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more;
    uint8_t *row[WARP];
    (void)mask;
    if (matrix_rows(w, i, 8u * i->count, 0, row) == 0) {
        return STEP_FAULT;
    }
    for (uint32_t j = 0; j < i->count; ++j) {
        uint8_t *d = destination(w, slots[j]);
        for (uint32_t g = 0; g < 8; ++g) {
            memcpy(d + 16 * g, row[8 * j + g], 16);
        }
    }
    w->worker->bytes[TRAFFIC_LDMATRIX] += 128u * i->count;
    return STEP_NEXT;
}

/* reg j = M_j[rows 2q, 2q + 1][column g] */
static enum step ldmatrix_trans(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more;
    uint8_t *row[WARP];
    (void)mask;
    if (matrix_rows(w, i, 8u * i->count, 0, row) == 0) {
        return STEP_FAULT;
    }
    for (uint32_t j = 0; j < i->count; ++j) {
        uint32_t *d = destination(w, slots[j]);
        for (uint32_t q = 0; q < 4; ++q) {
            uint16_t even[8], odd[8];
            memcpy(even, row[8 * j + 2 * q], 16);
            memcpy(odd, row[8 * j + 2 * q + 1], 16);
            for (uint32_t g = 0; g < 8; ++g) {
                d[4 * g + q] = even[g] | (uint32_t)odd[g] << 16;
            }
        }
    }
    w->worker->bytes[TRAFFIC_LDMATRIX] += 128u * i->count;
    return STEP_NEXT;
}

/* Unpack a row of 4- or 6-bit elements to one byte each. Kind 0 copies bytes. */
static inline void unpack_row(uint8_t *to, const uint8_t *from, uint32_t kind) {
    if (kind == 0) {
        memcpy(to, from, 16);
        return;
    }
    const uint32_t width = kind == 1 ? 4 : 6;
    for (uint32_t k = 0; k < 16; ++k) {
        const uint32_t bit = k * width, byte = bit / 8;
        const uint32_t two = from[byte] | (uint32_t)from[byte + 1] << 8;
        to[k] = (uint8_t)(two >> bit % 8 & ((1u << width) - 1));
    }
}

/* m16n16.trans: register 2j byte b = M_j[4q + b][g], register 2j + 1 byte b = M_j[4q + b][g + 8] */
static enum step ldmatrix_b8(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more;
    uint8_t *row[WARP];
    (void)mask;
    if (matrix_rows(w, i, 16u * i->count, 0, row) == 0) {
        return STEP_FAULT;
    }
    for (uint32_t j = 0; j < i->count; ++j) {
        uint32_t *low = destination(w, slots[2 * j]), *high = destination(w, slots[2 * j + 1]);
        for (uint32_t q = 0; q < 4; ++q) {
            uint8_t r[4][16];
            uint32_t column[16];
            for (uint32_t b = 0; b < 4; ++b) {
                unpack_row(r[b], row[16 * j + 4 * q + b], i->kind);
            }
            for (uint32_t g = 0; g < 16; ++g) {
                column[g] = r[0][g] | (uint32_t)r[1][g] << 8 | (uint32_t)r[2][g] << 16 | (uint32_t)r[3][g] << 24;
            }
            for (uint32_t g = 0; g < 8; ++g) {
                low[4 * g + q] = column[g];
                high[4 * g + q] = column[g + 8];
            }
        }
    }
    w->worker->bytes[TRAFFIC_LDMATRIX] += 256u * i->count;
    return STEP_NEXT;
}

/* m8n16 with packed elements: reg j = M_j[row g][columns 4q .. 4q + 3], one per byte */
static enum step ldmatrix_packed(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more;
    uint8_t *row[WARP];
    (void)mask;
    if (matrix_rows(w, i, 8u * i->count, 0, row) == 0) {
        return STEP_FAULT;
    }
    for (uint32_t j = 0; j < i->count; ++j) {
        uint8_t *d = destination(w, slots[j]);
        for (uint32_t g = 0; g < 8; ++g) {
            unpack_row(d + 16 * g, row[8 * j + g], i->kind);
        }
    }
    w->worker->bytes[TRAFFIC_LDMATRIX] += 128u * i->count;
    return STEP_NEXT;
}

/* Redirect a matrix store into an image, which is checked before it is copied to its place. */
static inline void divert(uint8_t **row, uint8_t **place, uint32_t rows, uint8_t (*image)[16]) {
    for (uint32_t l = 0; l < rows; ++l) {
        place[l] = row[l];
        row[l] = image[l];
    }
}

/* The inverse of ldmatrix, with and without .trans. */
static enum step stmatrix(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more;
    uint8_t *row[WARP], *place[WARP], image[WARP][16];
    (void)mask;
    if (matrix_rows(w, i, 8u * i->count, 1, row) == 0) {
        return STEP_FAULT;
    }
    if (UNLIKELY(w->cta->shadow != NULL)) {
        divert(row, place, 8u * i->count, image);
    }
    for (uint32_t j = 0; j < i->count; ++j) {
        const uint32_t *a = source(w, slots[j]);
        for (uint32_t l = 0; l < WARP; ++l) {
            const uint32_t g = l >> 2, q = l & 3;
            if (i->kind == 0) {
                memcpy(row[8 * j + g] + 4 * q, &a[l], 4);
                continue;
            }
            const uint16_t half[2] = {(uint16_t)a[l], (uint16_t)(a[l] >> 16)};
            memcpy(row[8 * j + 2 * q] + 2 * g, &half[0], 2);
            memcpy(row[8 * j + 2 * q + 1] + 2 * g, &half[1], 2);
        }
    }
    w->worker->bytes[TRAFFIC_STMATRIX] += 128u * i->count;
    if (UNLIKELY(w->cta->shadow != NULL)) {
        return check_matrix(w, place, 8u * i->count, image) ? STEP_NEXT : STEP_FAULT;
    }
    return STEP_NEXT;
}

/* m16n8.trans.b8: byte e of reg j goes to row 2q + (e & 1), byte g + 8 * (e >> 1) */
static enum step stmatrix_b8(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more;
    uint8_t *row[WARP], *place[WARP], image[WARP][16];
    (void)mask;
    if (matrix_rows(w, i, 8u * i->count, 1, row) == 0) {
        return STEP_FAULT;
    }
    if (UNLIKELY(w->cta->shadow != NULL)) {
        divert(row, place, 8u * i->count, image);
    }
    for (uint32_t j = 0; j < i->count; ++j) {
        const uint32_t *a = source(w, slots[j]);
        for (uint32_t l = 0; l < WARP; ++l) {
            for (uint32_t e = 0; e < 4; ++e) {
                row[8 * j + 2 * (l & 3) + (e & 1)][(l >> 2) + 8 * (e >> 1)] = (uint8_t)(a[l] >> 8 * e);
            }
        }
    }
    w->worker->bytes[TRAFFIC_STMATRIX] += 128u * i->count;
    if (UNLIKELY(w->cta->shadow != NULL)) {
        return check_matrix(w, place, 8u * i->count, image) ? STEP_NEXT : STEP_FAULT;
    }
    return STEP_NEXT;
}

/* st.bulk: zeros shared memory, lane by lane. */
static enum step fill(struct warp *w, const struct inst *i, uint32_t mask) {
    uint64_t address[WARP];
    address_lanes(w, i, address);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const uint64_t at = address[lane] - (i->space == SPACE_GENERIC ? SHARED_WINDOW : 0);
        const uint64_t bytes =
            i->kind != 0 ? ((const uint64_t *)source(w, i->b))[lane] : ((const uint32_t *)source(w, i->b))[lane];
        if (bytes % 8 != 0 || bytes > 1 << 24) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                            "st.bulk with size %llu; expected a multiple of 8, at most 2^24",
                            (unsigned long long)bytes);
        }
        uint8_t *const to = memory_shared(w, at, (uint32_t)bytes, 8, lane, "st.bulk");
        if (to == NULL || (w->cta->shadow != NULL && bytes != 0 &&
                           !check_shared(w, (uint32_t)at, (uint32_t)bytes, lane, true, BY_PLAIN))) {
            return STEP_FAULT;
        }
        memset(to, 0, bytes);
        w->worker->bytes[TRAFFIC_ST_SHARED] += bytes;
    }
    return STEP_NEXT;
}

handler *const PASTE(access, VM_ISA)[ACCESS_COUNT] = {
    [ACCESS_LOAD] = load,
    [ACCESS_LOAD_STRONG] = load_strong,
    [ACCESS_STORE] = store,
    [ACCESS_PARAMETER] = parameter,
    [ACCESS_LDMATRIX] = ldmatrix,
    [ACCESS_LDMATRIX_TRANS] = ldmatrix_trans,
    [ACCESS_LDMATRIX_B8] = ldmatrix_b8,
    [ACCESS_LDMATRIX_PACKED] = ldmatrix_packed,
    [ACCESS_STMATRIX] = stmatrix,
    [ACCESS_STMATRIX_B8] = stmatrix_b8,
    [ACCESS_FILL] = fill,
};
