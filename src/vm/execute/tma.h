/* Tensor maps and the copies of boxes that they describe. */
#ifndef SM120_VM_TMA_H
#define SM120_VM_TMA_H

#include "driver/tensor_map_rules.h"
#include "vm/machine/tma_box.h"

/* ---- tma_map.c: the 128 bytes ---- */

/* What tensormap.replace can change, in the order of decode_tma.c. */
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

/* Write the 128 bytes of a map whose fields are right. */
void tma_map_pack(void *bytes, const struct tensor_map *map);
/* Read them; 0 with a sentence where they are no map, or one that cannot be used. */
bool tma_map_unpack(const void *bytes, struct tensor_map *map, char *why, size_t room);
/* Change a field, of a map or of 128 zeros, which become one; 0 with a sentence where they are neither. */
bool tma_map_replace(void *bytes, enum tma_field field, uint32_t ordinal, uint64_t value, char *why, size_t room);

/* ---- tma.c: the instructions ---- */

/* What a copy needs beside its struct inst: a and offset of shared memory, kind (enum async_kind), negate (enum
 * atomic_op). */
struct tma_operands {
    uint32_t map;                          /* register of the generic address */
    uint32_t coordinates[TMA_COORDINATES]; /* registers */
    uint32_t barrier, barrier_offset;
    uint8_t rank, is_gather, is_map_narrow, is_barrier_narrow;
};

/* The function of a reduction of the map's type; NULL where there is none. */
atomic_function *tma_reduction(enum atomic_op op, uint32_t type);

handler tma_copy, tma_prefetch, tma_replace, tma_copy_map, tma_acquire, tma_release;

#endif
