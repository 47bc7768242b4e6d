/* Tensor maps and tensor copies. */
#ifndef SM120_VM_TMA_H
#define SM120_VM_TMA_H

#include "driver/tensor_map_rules.h"
#include "vm/machine/tma_box.h"

/* ---- tma_map.c: the 128 bytes ---- */

/* Fields that tensormap.replace can change, in the order of decode_tma.c. */
enum tma_field {
    TMA_ADDRESS,
    TMA_RANK,
    TMA_BOX,
    TMA_DIM,
    TMA_STRIDE,
    TMA_STEP,
    TMA_TYPE,
    TMA_INTERLEAVE,
    TMA_SWIZZLE,
    TMA_ATOM,
    TMA_FILL,
    TMA_FIELDS
};

/* Write the 128 bytes of a valid map. */
void tma_map_pack(void *bytes, const struct tensor_map *map);
/* Read the 128 bytes of a map. If they are not a usable map, return false and write the reason to `why`. */
bool tma_map_unpack(const void *bytes, struct tensor_map *map, char *why, size_t room);
/* Change a field of a map. 128 zeros become a new map. Return false and write the reason to `why` for other bytes. */
bool tma_map_replace(void *bytes, enum tma_field field, uint32_t ordinal, uint64_t value, char *why, size_t room);

/* ---- tma.c: the instructions ---- */

/* Operands of a tensor copy. struct inst holds the others: a and offset (shared memory), kind (enum async_kind),
 * negate (enum atomic_op). */
struct tma_operands {
    uint32_t map;                          /* register with the generic address */
    uint32_t coordinates[TMA_COORDINATES]; /* registers */
    uint32_t barrier, barrier_offset;
    uint32_t multicast; /* register with the mask of CTAs; 0: no multicast */
    uint8_t rank, is_gather, is_map_narrow, is_barrier_narrow;
};

/* Return the function of a reduction for the map's element type, or NULL if it is not supported. */
atomic_function *tma_reduction(enum atomic_op op, uint32_t type);

handler tma_copy, tma_prefetch, tma_replace, tma_copy_map, tma_acquire, tma_release;

#endif
