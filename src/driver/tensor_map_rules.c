/* The rules of cuTensorMapEncodeTiled, from its manual and, where they differ, from the driver of CUDA 13.0
 * (580.159.04). */
#include "driver/tensor_map_rules.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "platform/compiler.h"

/* BOX_BYTES_MAX is a rule of the CUDA 13.0 driver that its manual does not mention. */
enum { BOX_BYTES_MAX = 227 << 10 };
enum { TYPES = 16, SWIZZLES = 7, BOX_MAX = 256, STEP_MAX = 8, ALIGNMENT = 16, WIDE_ALIGNMENT = 32, UNPACKED = 128 };
static const uint64_t DIM_MAX = UINT64_C(1) << 32;
static const uint64_t STRIDE_END = UINT64_C(1) << 40;

/* Buffer for the error text. */
struct sentence {
    char *text;
    size_t bytes;
};

/* Write the error text. Return false, so that a check can return it. */
static bool PRINTF_LIKE(2, 3) wrong(const struct sentence *why, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(why->text, why->bytes, format, list);
    va_end(list);
    return false;
}

uint32_t tensor_map_bits(uint32_t type) {
    static const uint8_t bits[TYPES] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
    return bits[type];
}

bool tensor_map_unpacks(uint32_t type) {
    return type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B || type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
}

uint32_t tensor_map_row(const struct tensor_map *map) {
    return tensor_map_unpacks(map->type) ? map->box[0] : map->box[0] * tensor_map_bits(map->type) / 8;
}

uint32_t tensor_map_span(uint32_t swizzle) {
    static const uint8_t span[SWIZZLES] = {0, 32, 64, 128, 128, 128, 128};
    return span[swizzle];
}

/* Check that a field is below a bound. */
static bool check_code(const struct sentence *why, const char *name, uint32_t value, uint32_t end) {
    return value < end || wrong(why, "%s = %" PRIu32 "; expected 0 to %" PRIu32, name, value, end - 1);
}

static bool check_codes(const struct tensor_map *map, const struct sentence *why) {
    const bool interleaved = map->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE;
    if (!check_code(why, "data_type", map->type, TYPES) ||
        !check_code(why, "interleave", map->interleave, CU_TENSOR_MAP_INTERLEAVE_32B + 1) ||
        !check_code(why, "swizzle", map->swizzle, SWIZZLES) ||
        !check_code(why, "l2_promotion", map->promotion, CU_TENSOR_MAP_L2_PROMOTION_L2_256B + 1) ||
        !check_code(why, "oob_fill", map->fill, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA + 1)) {
        return false;
    }
    if (map->rank < 1 || map->rank > TENSOR_MAP_RANK) {
        return wrong(why, "rank = %" PRIu32 "; expected 1 to %d", map->rank, TENSOR_MAP_RANK);
    }
    if (interleaved && map->rank < 3) {
        return wrong(why, "rank = %" PRIu32 "; an interleaved tensor has 3 to %d dimensions", map->rank,
                     TENSOR_MAP_RANK);
    }
    return true;
}

/* Check the address, the dimensions and the strides. */
static bool check_tensor(const struct tensor_map *map, const struct sentence *why) {
    const bool is_wide = map->interleave == CU_TENSOR_MAP_INTERLEAVE_32B || tensor_map_unpacks(map->type);
    const uint32_t alignment = is_wide ? WIDE_ALIGNMENT : ALIGNMENT;
    const uint32_t whole = tensor_map_unpacks(map->type)                       ? UNPACKED
                           : map->type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B ? 2
                                                                               : 1;
    if (map->address % alignment != 0) {
        return wrong(why, "address = 0x%" PRIx64 "; expected a multiple of %" PRIu32, map->address, alignment);
    }
    for (uint32_t i = 0; i < map->rank; ++i) {
        if (map->dims[i] < 1 || map->dims[i] > DIM_MAX) {
            return wrong(why, "dims[%" PRIu32 "] = %" PRIu64 "; expected 1 to 2^32 elements", i, map->dims[i]);
        }
    }
    if (map->dims[0] % whole != 0) {
        return wrong(why, "dims[0] = %" PRIu64 "; expected a multiple of %" PRIu32 " for this data_type", map->dims[0],
                     whole);
    }
    for (uint32_t i = 0; i + 1 < map->rank; ++i) {
        if (map->strides[i] % alignment != 0 || map->strides[i] >= STRIDE_END) {
            return wrong(why, "strides[%" PRIu32 "] = %" PRIu64 " bytes; expected a multiple of %" PRIu32 " below 2^40",
                         i, map->strides[i], alignment);
        }
    }
    return true;
}

/* Check the box and its element strides. */
static bool check_box(const struct tensor_map *map, const struct sentence *why) {
    for (uint32_t i = 0; i < map->rank; ++i) {
        if (map->box[i] < 1 || map->box[i] > BOX_MAX) {
            return wrong(why, "box[%" PRIu32 "] = %" PRIu32 "; expected 1 to %d elements", i, map->box[i], BOX_MAX);
        }
        if (map->steps[i] < 1 || map->steps[i] > STEP_MAX) {
            return wrong(why, "element_strides[%" PRIu32 "] = %" PRIu32 "; expected 1 to %d", i, map->steps[i],
                         STEP_MAX);
        }
    }
    if (tensor_map_unpacks(map->type) && map->box[0] != UNPACKED) {
        return wrong(why, "box[0] = %" PRIu32 "; expected %d for this data_type", map->box[0], UNPACKED);
    }
    if (map->box[0] * tensor_map_bits(map->type) % (8 * ALIGNMENT) != 0) {
        return wrong(why, "box[0] = %" PRIu32 " elements of %" PRIu32 " bits; expected a multiple of %d bytes",
                     map->box[0], tensor_map_bits(map->type), ALIGNMENT);
    }
    uint64_t bytes = tensor_map_row(map);
    for (uint32_t i = 1; i < map->rank; ++i) {
        bytes *= (map->box[i] + map->steps[i] - 1) / map->steps[i];
    }
    if (bytes > BOX_BYTES_MAX) {
        return wrong(why, "box has %" PRIu64 " bytes; expected at most %d", bytes, BOX_BYTES_MAX);
    }
    return true;
}

/* Check that the modes can be combined. */
static bool check_modes(const struct tensor_map *map, const struct sentence *why) {
    static const uint8_t packed[TYPES] = {[CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B] = 0x19,  /* sets of swizzles */
                                          [CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B] = 0x59}; /* NONE, 128B, 32B, 64B */
    const uint32_t span = tensor_map_span(map->swizzle);
    const bool is_plain = map->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
    const bool is_float =
        map->type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && map->type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
    if (is_plain && span != 0 && tensor_map_row(map) > span) {
        return wrong(
            why, "box[0] = %" PRIu32 " elements are %" PRIu32 " bytes; expected at most %" PRIu32 " for this swizzle",
            map->box[0], tensor_map_row(map), span);
    }
    if (!is_plain && map->type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B) {
        return wrong(why, "interleave = %" PRIu32 "; data_type 16U6_ALIGN16B expects none (0)", map->interleave);
    }
    if (packed[map->type] != 0 && (packed[map->type] >> map->swizzle & 1) == 0) {
        return wrong(why,
                     "swizzle = %" PRIu32 "; data_type = %" PRIu32 " expects NONE (0), 128B (3) or 128B_ATOM_32B (4)%s",
                     map->swizzle, map->type,
                     map->type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B ? " (stores: also 128B_ATOM_64B (6))" : "");
    }
    if (map->fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !is_float) {
        return wrong(why,
                     "oob_fill = %" PRIu32 "; NaN needs a floating-point type, but data_type = %" PRIu32 " is not one",
                     map->fill, map->type);
    }
    return true;
}

bool tensor_map_check(const struct tensor_map *map, char *text, size_t bytes) {
    const struct sentence why = {text, bytes};
    return check_codes(map, &why) && check_tensor(map, &why) && check_box(map, &why) && check_modes(map, &why);
}
