/* Boxes of tensors: the addresses of their elements in global and shared memory, and copying. */
#include "vm/machine/tma_box.h"

#include <string.h>

#include "driver/tensor_map_rules.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/types.h"

/* ---- geometry ------------------------------------------------------------------------------------------------ */

uint32_t tma_rows(const struct tma_box *box) {
    uint32_t rows = 1;
    for (uint32_t i = 1; i < box->map.rank; ++i) {
        rows *= box->counts[i];
    }
    return rows;
}

uint32_t tma_bytes(const struct tma_box *box) {
    return tma_rows(box) * tensor_map_row(&box->map);
}

/* Return the distance between two rows in shared memory. A row takes at least the swizzle's span; the rest of the
 * span is not written. */
static uint32_t pitch(const struct tensor_map *map) {
    const uint32_t row = tensor_map_row(map), span = tensor_map_span(map->swizzle);
    return row < span ? span : row;
}

/* Return the swizzled address of a byte. Bits of the line's number change its position within the line. */
static uint32_t place(uint32_t swizzle, uint32_t address) {
    const uint32_t line = address / TMA_LINE;
    switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_32B:
        return address ^ (line & 1) << 4;
    case CU_TENSOR_MAP_SWIZZLE_64B:
        return address ^ (line & 3) << 4;
    case CU_TENSOR_MAP_SWIZZLE_128B:
        return address ^ (line & 7) << 4;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B:
        return address ^ (line & 3) << 5;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B:
        return address ^ (line & 3) << 5 ^ (line & 1) << 3;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B:
        return address ^ (line & 1) << 6;
    default:
        return address;
    }
}

uint32_t tma_piece(const struct tma_box *box, uint32_t base, uint32_t done, uint32_t *address) {
    const uint32_t bytes = tma_bytes(box), row = tensor_map_row(&box->map), step = pitch(&box->map);
    *address = base + done;
    if (row == step || done == bytes) { /* swizzling does not change which bytes the row covers */
        return bytes - done;
    }
    /* Swizzling by 8 bytes stays within 16 bytes. */
    *address = place(box->map.swizzle, base + done / row * step + done % row) & ~15u;
    return 16;
}

/* Find the first element of a row that is inside the tensor, and the global address of element 0, which may be
 * outside. Return false if the whole row is outside. */
static bool find_row(const struct tma_box *box, uint32_t index, uint64_t *address) {
    const struct tensor_map *map = &box->map;
    *address = map->address;
    for (uint32_t i = 1; i < map->rank; ++i) {
        const uint32_t k = index % box->counts[i];
        const int64_t x = box->is_gather != 0 ? box->at[1 + k] : box->at[i] + (int64_t)k * map->steps[i];
        if (x < 0 || (uint64_t)x >= map->dims[i]) {
            return false;
        }
        *address += (uint64_t)x * map->strides[i - 1];
        index /= box->counts[i];
    }
    return true;
}

struct tma_row tma_row(const struct tma_box *box, uint32_t index) {
    const int64_t bits = tensor_map_bits(box->map.type), start = box->at[0], count = box->map.box[0];
    const int64_t end = (int64_t)box->map.dims[0];
    uint64_t address;
    if (start >= end || start + count <= 0 || !find_row(box, index, &address)) {
        return (struct tma_row){0};
    }
    const int64_t first = start < 0 ? -start : 0, last = start + count > end ? end - start : count;
    return (struct tma_row){.global = address + (uint64_t)((start + first) * bits / 8),
                            .first = (uint32_t)(first * bits / 8),
                            .end = box->is_written ? ((uint32_t)(last * bits / 8) + 15) / 16 * 16
                                                   : (uint32_t)(last * bits / 8)};
}

bool tma_meets(const struct tma_box *box, uint64_t address, uint64_t bytes) {
    for (uint32_t k = 0; k < tma_rows(box); ++k) {
        const struct tma_row row = tma_row(box, k);
        if (address < row.global + (row.end - row.first) && row.global < address + bytes) {
            return true;
        }
    }
    return false;
}

/* ---- rows in the layout of global memory --------------------------------------------------------------------- */

/* Fill a row with the value for elements outside the tensor: zeros, or bytes that are a NaN in every float type. */
static void fill_row(const struct tensor_map *map, uint8_t *row, uint32_t bytes) {
    static const uint8_t nan[2] = {0xf7, 0x7f};
    for (uint32_t k = 0; k < bytes; ++k) {
        row[k] = map->fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ? 0 : nan[k % 2];
    }
}

/* Round loaded f32 values to tf32, to nearest even. All NaNs become the same NaN. */
static void round_row(uint8_t *row, uint32_t bytes) {
    enum { CUT = 0x1fff, HALF = 0x0fff, NAN_OF_TF32 = 0x7fffe000 };
    for (uint32_t k = 0; k < bytes; k += 4) {
        uint32_t x;
        memcpy(&x, row + k, 4);
        x = (x & 0x7fffffffu) > 0x7f800000u ? NAN_OF_TF32 : (x + HALF + (x >> 13 & 1)) & ~(uint32_t)CUT;
        memcpy(row + k, &x, 4);
    }
}

static bool is_tf32(uint32_t type) {
    return type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

/* Return how many bytes of global memory 16 bytes of shared memory hold. */
static uint32_t packed_bytes(uint32_t type) {
    return tensor_map_unpacks(type) ? 2 * tensor_map_bits(type) : 16;
}

uint32_t tma_counted(const struct tma_box *box) {
    return tma_bytes(box) / 16 * packed_bytes(box->map.type);
}

bool tma_part(const struct tma_box *box, const struct async_op *op, uint32_t k, struct async_op *part) {
    static const enum type types[] = {[1] = T_U8, [2] = T_U16, [4] = T_U32, [8] = T_U64};
    const struct tensor_map *map = &box->map;
    const uint32_t bytes = tensor_map_row(map), done = k / 2 * 8, within = done % bytes, held = packed_bytes(map->type);
    if (done >= tma_bytes(box)) {
        return false;
    }
    const struct tma_row row = tma_row(box, done / bytes);
    const uint32_t start = within / 16 * held + within % 16;
    const uint32_t end = within % 16 + 8 <= held ? start + 8 : within / 16 * held + held;
    const uint32_t first = start > row.first ? start : row.first, last = end < row.end ? end : row.end;
    /* A row starts at a multiple of 16 bytes, so bytes outside the tensor come last. */
    const uint32_t inside = first < last ? last - first : 0;
    *part = *op;
    part->is_tensor = 0;
    part->op = op->kind == ASYNC_LOAD ? (uint8_t)is_tf32(map->type) : op->op;
    part->type = (uint8_t)types[tensor_map_bits(map->type) < 8 ? 1 : tensor_map_bits(map->type) / 8];
    part->shared = place(map->swizzle, op->shared + done / bytes * pitch(map) + within);
    part->global = inside != 0 ? row.global + (first - row.first) : 0;
    part->bytes = inside;
    if (k % 2 != 0) {
        part->shared += inside;
        part->global = 0;
        part->bytes = op->kind == ASYNC_LOAD && end > start + inside ? end - start - inside : 0;
    }
    return true;
}

/* Drop the upper two bits of each of 16 bytes and pack the rest into 12 bytes. */
static void pack_six(uint8_t *to, const uint8_t *from) {
    for (uint32_t k = 0; k < 4; ++k) {
        uint32_t bits = 0;
        for (uint32_t n = 0; n < 4; ++n) {
            bits |= (from[4 * k + n] & 0x3fu) << 6 * n;
        }
        for (uint32_t n = 0; n < 3; ++n) {
            to[3 * k + n] = (uint8_t)(bits >> 8 * n);
        }
    }
}

/* Copy 16 bytes of a row to shared memory. Types that are padded leave gaps, whose contents are unspecified; they
 * are filled with garbage so that no program depends on them. */
static void put_chunk(const struct tensor_map *map, uint8_t *shared, uint32_t address, const uint8_t *from) {
    enum { GARBAGE = 0xa5 };
    const uint32_t held = packed_bytes(map->type), at = place(map->swizzle, address) - SHARED_BASE;
    if (held < 16) {
        memcpy(shared + at, from, held);
        memset(shared + at + held, GARBAGE, 16 - held);
        return;
    }
    memcpy(shared + at, from, 8);
    memcpy(shared + (at ^ 8), from + 8, 8);
}

static void get_chunk(const struct tensor_map *map, const uint8_t *shared, uint32_t address, uint8_t *to) {
    const uint32_t at = place(map->swizzle, address) - SHARED_BASE;
    if (packed_bytes(map->type) < 16) {
        pack_six(to, shared + at);
        return;
    }
    memcpy(to, shared + at, 8);
    memcpy(to + 8, shared + (at ^ 8), 8);
}

/* Convert a row of shared memory to the layout of global memory. */
static void get_row(const struct tensor_map *map, const uint8_t *shared, uint32_t address, uint8_t *row) {
    const uint32_t bytes = tensor_map_row(map), held = packed_bytes(map->type);
    if (map->swizzle == CU_TENSOR_MAP_SWIZZLE_NONE && held == 16) {
        memcpy(row, shared + (address - SHARED_BASE), bytes);
        return;
    }
    for (uint32_t k = 0; k < bytes / 16; ++k) {
        get_chunk(map, shared, address + 16 * k, row + held * k);
    }
}

/* ---- moving -------------------------------------------------------------------------------------------------- */

void tma_load(const struct tma_box *box, uint8_t *shared, uint32_t base) {
    const struct tensor_map *map = &box->map;
    const uint32_t bytes = tensor_map_row(map), held = packed_bytes(map->type);
    const bool is_plain = map->swizzle == CU_TENSOR_MAP_SWIZZLE_NONE && held == 16;
    uint8_t image[TMA_ROW_MAX];
    for (uint32_t k = 0; k < tma_rows(box); ++k, base += pitch(map)) {
        const struct tma_row row = tma_row(box, k);
        uint8_t *const to = is_plain ? shared + (base - SHARED_BASE) : image;
        if (row.end - row.first < bytes / 16 * held) {
            fill_row(map, to, bytes / 16 * held);
        }
        if (row.end > row.first) {
            memcpy(to + row.first, (const void *)(uintptr_t)row.global, row.end - row.first);
        }
        if (is_tf32(map->type)) {
            round_row(to + row.first, row.end - row.first);
        }
        for (uint32_t c = 0; c < bytes / 16 && !is_plain; ++c) {
            put_chunk(map, shared, base + 16 * c, image + held * c);
        }
    }
}

void tma_store(const struct tma_box *box, const uint8_t *shared, uint32_t base) {
    uint8_t image[TMA_ROW_MAX];
    for (uint32_t k = 0; k < tma_rows(box); ++k, base += pitch(&box->map)) {
        const struct tma_row row = tma_row(box, k);
        if (row.end == row.first) {
            continue;
        }
        get_row(&box->map, shared, base, image);
        memcpy((void *)(uintptr_t)row.global, image + row.first, row.end - row.first);
    }
}

void tma_reduce(const struct tma_box *box, const uint8_t *shared, uint32_t base, atomic_function *function) {
    const uint32_t size = tensor_map_bits(box->map.type) / 8;
    uint8_t image[TMA_ROW_MAX];
    for (uint32_t k = 0; k < tma_rows(box); ++k, base += pitch(&box->map)) {
        const struct tma_row row = tma_row(box, k);
        if (row.end == row.first) {
            continue;
        }
        get_row(&box->map, shared, base, image);
        for (uint32_t at = row.first; at < row.end; at += size) {
            uint64_t value = 0;
            for (uint32_t b = 0; b < size; ++b) {
                value |= (uint64_t)image[at + b] << 8 * b;
            }
            function((uint8_t *)(uintptr_t)row.global + (at - row.first), value, 0);
        }
    }
}
