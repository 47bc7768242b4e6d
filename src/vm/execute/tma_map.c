/* The 128 bytes of a tensor map. Their layout is the virtual SM120's own: the format is opaque to programs. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "driver/tensor_map_rules.h"
#include "vm/execute/tma.h"
#include "vm/machine/types.h"

/* Fields stored minus one are 1 in a map made from zeros, as on the chip. */
struct image {
    uint64_t address;
    uint64_t strides[TENSOR_MAP_RANK - 1];
    uint32_t dims[TENSOR_MAP_RANK]; /* minus one, like box and steps */
    uint8_t box[TENSOR_MAP_RANK], steps[TENSOR_MAP_RANK];
    uint8_t type, rank, interleave, swizzle, atom, promotion, fill, spare[3];
    uint32_t given; /* set of 1 << given_bit(field, ordinal) */
    uint32_t unused[7];
    uint64_t magic, seal;
};
_Static_assert(sizeof(struct image) == TENSOR_MAP_BYTES, "a tensor map has 128 bytes");

static const uint64_t MAGIC = UINT64_C(0x70616d5f41545853);

/* Return a checksum over all other fields. */
static uint64_t seal_of(const struct image *image) {
    uint64_t words[TENSOR_MAP_BYTES / 8 - 1], hash = MAGIC;
    memcpy(words, image, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Return the bit of a field in image.given. */
static uint32_t given_bit(enum tma_field field, uint32_t ordinal) {
    static const uint8_t first[TMA_FIELDS] = {[TMA_ADDRESS] = 0, [TMA_BOX] = 1, [TMA_DIM] = 6, [TMA_STRIDE] = 11};
    return 1u << (first[field] + ordinal);
}

/* Conversion from the element types of tensormap.replace to those of cuTensorMapEncode. */
static const uint8_t type_of_element[] = {
    CU_TENSOR_MAP_DATA_TYPE_UINT8,        CU_TENSOR_MAP_DATA_TYPE_UINT16,       CU_TENSOR_MAP_DATA_TYPE_UINT32,
    CU_TENSOR_MAP_DATA_TYPE_INT32,        CU_TENSOR_MAP_DATA_TYPE_UINT64,       CU_TENSOR_MAP_DATA_TYPE_INT64,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16,      CU_TENSOR_MAP_DATA_TYPE_FLOAT32,      CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT64,      CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,     CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
    CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B,
    CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B};

void tma_map_pack(void *bytes, const struct tensor_map *map) {
    const uint32_t atoms = CU_TENSOR_MAP_SWIZZLE_128B;
    struct image image = {.address = map->address,
                          .type = (uint8_t)map->type,
                          .rank = (uint8_t)(map->rank - 1),
                          .interleave = (uint8_t)map->interleave,
                          .swizzle = (uint8_t)(map->swizzle < atoms ? map->swizzle : atoms),
                          .atom = (uint8_t)(map->swizzle < atoms ? 0 : map->swizzle - atoms),
                          .promotion = (uint8_t)map->promotion,
                          .fill = (uint8_t)map->fill,
                          .given = UINT32_MAX,
                          .magic = MAGIC};
    for (uint32_t i = 0; i < map->rank; ++i) {
        image.dims[i] = (uint32_t)(map->dims[i] - 1);
        image.box[i] = (uint8_t)(map->box[i] - 1);
        image.steps[i] = (uint8_t)(map->steps[i] - 1);
        if (i + 1 < map->rank) {
            image.strides[i] = map->strides[i];
        }
    }
    image.seal = seal_of(&image);
    memcpy(bytes, &image, sizeof image);
}

/* Check that all fields without a default were set. Modes and rank default to 0. Return false and write the reason
 * to `why`. */
static bool is_complete(const struct image *image, char *why, size_t room) {
    const struct {
        enum tma_field field;
        const char *name;
        uint32_t count;
    } wanted[] = {{TMA_ADDRESS, "global_address", 1},
                  {TMA_BOX, "box_dim", image->rank + 1u},
                  {TMA_DIM, "global_dim", image->rank + 1u},
                  {TMA_STRIDE, "global_stride", image->rank}};
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; ++k) {
        for (uint32_t i = 0; i < wanted[k].count; ++i) {
            if ((image->given & given_bit(wanted[k].field, i)) != 0) {
                continue;
            }
            const char ordinal[] = {k != 0 ? ' ' : 0, (char)('0' + i), 0};
            snprintf(why, room, "its %s%s was never set; use tensormap.replace.tile.%s", wanted[k].name, ordinal,
                     wanted[k].name);
            return false;
        }
    }
    return true;
}

bool tma_map_unpack(const void *bytes, struct tensor_map *map, char *why, size_t room) {
    struct image image;
    memcpy(&image, bytes, sizeof image);
    if (image.magic != MAGIC || image.seal != seal_of(&image)) {
        snprintf(why, room, "%s", image.magic == MAGIC ? "it was partly overwritten" : "it was never encoded");
        return false;
    }
    if (image.rank >= TENSOR_MAP_RANK) {
        snprintf(why, room, "its rank is %u; expected 1 to %d", image.rank + 1u, TENSOR_MAP_RANK);
        return false;
    }
    if (!is_complete(&image, why, room)) {
        return false;
    }
    if (image.atom != 0 && image.swizzle != CU_TENSOR_MAP_SWIZZLE_128B) {
        snprintf(why, room, "its swizzle_atomicity is %u; expected 0 with swizzle_mode %u", image.atom, image.swizzle);
        return false;
    }
    *map = (struct tensor_map){.address = image.address,
                               .rank = image.rank + 1u,
                               .type = image.type,
                               .interleave = image.interleave,
                               .swizzle = (uint32_t)image.swizzle + image.atom,
                               .promotion = image.promotion,
                               .fill = image.fill};
    for (uint32_t i = 0; i < map->rank; ++i) {
        map->dims[i] = (uint64_t)image.dims[i] + 1;
        map->box[i] = image.box[i] + 1u;
        map->steps[i] = image.steps[i] + 1u;
        if (i + 1 < map->rank) {
            map->strides[i] = image.strides[i];
        }
    }
    return tensor_map_check(map, why, room);
}

/* Set a field of a map. */
static void set(struct image *image, enum tma_field field, uint32_t ordinal, uint64_t value) {
    const uint32_t less = (uint32_t)value - 1;
    switch (field) {
    case TMA_ADDRESS:
        image->address = value;
        break;
    case TMA_RANK:
        image->rank = (uint8_t)(value < UINT8_MAX ? value : UINT8_MAX);
        break;
    case TMA_BOX:
        image->box[ordinal] = (uint8_t)less;
        break;
    case TMA_DIM:
        image->dims[ordinal] = less;
        break;
    case TMA_STRIDE:
        image->strides[ordinal] = value;
        break;
    case TMA_STEP:
        image->steps[ordinal] = (uint8_t)less;
        break;
    case TMA_TYPE:
        image->type = type_of_element[value];
        break;
    case TMA_INTERLEAVE:
        image->interleave = (uint8_t)value;
        break;
    case TMA_SWIZZLE:
        image->swizzle = (uint8_t)value;
        break;
    case TMA_ATOM:
        image->atom = (uint8_t)value;
        break;
    default:
        image->fill = (uint8_t)value;
        break;
    }
}

/* Check that a field can hold a new value. Return false and write the reason to `why`. */
static bool is_in_range(enum tma_field field, uint32_t ordinal, uint64_t value, char *why, size_t room) {
    static const struct {
        enum tma_field field;
        const char *name;
        uint64_t least, most;
    } ranges[] = {
        {TMA_RANK, "rank", 0, TENSOR_MAP_RANK - 1}, {TMA_BOX, "box_dim", 1, 256}, {TMA_STEP, "element_stride", 1, 8}};
    for (size_t k = 0; k < sizeof ranges / sizeof *ranges; ++k) {
        if (ranges[k].field == field && (value < ranges[k].least || value > ranges[k].most)) {
            snprintf(why, room, "%s %" PRIu32 " = %" PRIu64 "; expected %" PRIu64 " to %" PRIu64, ranges[k].name,
                     ordinal, value, ranges[k].least, ranges[k].most);
            return false;
        }
    }
    return true;
}

bool tma_map_replace(void *bytes, enum tma_field field, uint32_t ordinal, uint64_t value, char *why, size_t room) {
    static const uint8_t zeros[TENSOR_MAP_BYTES];
    struct image image;
    memcpy(&image, bytes, sizeof image);
    const bool is_new = memcmp(&image, zeros, sizeof image) == 0;
    if (!is_new && (image.magic != MAGIC || image.seal != seal_of(&image))) {
        snprintf(why, room, "these 128 bytes are neither a tensor map nor zeros");
        return false;
    }
    if (!is_in_range(field, ordinal, value, why, room)) {
        return false;
    }
    image.magic = MAGIC;
    if (field == TMA_ADDRESS || field == TMA_BOX || field == TMA_DIM || field == TMA_STRIDE) {
        image.given |= given_bit(field, ordinal);
    }
    set(&image, field, ordinal, value);
    image.seal = seal_of(&image);
    memcpy(bytes, &image, sizeof image);
    return true;
}
