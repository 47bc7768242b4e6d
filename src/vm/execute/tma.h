/* Tensor maps and the copies of boxes that they describe. */
#ifndef SM120_VM_TMA_H
#define SM120_VM_TMA_H

#include "driver/tensor_map_rules.h"
#include "vm/machine/vm.h"

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

/* ---- tma_box.c: boxes ---- */

enum { TMA_COORDINATES = 5, TMA_ROW_MAX = 2048, TMA_LINE = 128 };

/* A box in flight: its map as it was read, and where the box is. */
struct tma_box {
    struct tensor_map map;
    int32_t at[TMA_COORDINATES];
    uint32_t counts[TENSOR_MAP_RANK]; /* elements along each dimension in shared memory */
    int is_gather;                    /* the rows at[1] to at[4] of a matrix, from column at[0] */
    bool is_written;                  /* by a store or a reduction */
    bool in_use;
};

/* A row of a box: elements of dimension 0. Stores and reductions write 16 bytes at a time, the last ones too. */
struct tma_row {
    uint64_t global;     /* address of its first byte inside of the tensor */
    uint32_t first, end; /* which bytes of the row, as global memory has them, are inside; equal: none */
};

/* The bytes that a box has in shared memory. */
uint32_t tma_bytes(const struct tma_box *box);
uint32_t tma_rows(const struct tma_box *box);
struct tma_row tma_row(const struct tma_box *box, uint32_t index);
/* The piece of shared memory that begins `done` bytes into the box at `base`: its address and length; 0 at the end. */
uint32_t tma_piece(const struct tma_box *box, uint32_t base, uint32_t done, uint32_t *address);
/* The k-th part of a tensor copy as a bulk copy of its own: up to 8 bytes, 0 where that part is empty, global 0 where a
 * load fills, op 1 where it rounds. False behind the last. */
bool tma_part(const struct tma_box *box, const struct async_op *op, uint32_t k, struct async_op *part);
/* Does the box meet these bytes of global memory? */
bool tma_meets(const struct tma_box *box, uint64_t address, uint64_t bytes);
/* Move a box; `shared` holds the CTA's memory from SHARED_BASE on. */
void tma_load(const struct tma_box *box, uint8_t *shared, uint32_t base);
void tma_store(const struct tma_box *box, const uint8_t *shared, uint32_t base);
void tma_reduce(const struct tma_box *box, const uint8_t *shared, uint32_t base, atomic_function *function);
/* The function of a reduction of the map's type; NULL where there is none. */
atomic_function *tma_reduction(enum atomic_op op, uint32_t type);

/* ---- tma.c: the instructions ---- */

/* What a copy needs beside its struct inst: a and offset of shared memory, kind (enum async_kind), negate (enum
 * atomic_op). */
struct tma_operands {
    uint32_t map;                          /* register of the generic address */
    uint32_t coordinates[TMA_COORDINATES]; /* registers */
    uint32_t barrier, barrier_offset;
    uint8_t rank, is_gather, is_map_narrow, is_barrier_narrow;
};

handler tma_copy, tma_prefetch, tma_replace, tma_copy_map, tma_acquire, tma_release;

#endif
