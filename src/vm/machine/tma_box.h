/* Boxes of tensors: where their elements are in global and in shared memory, and how they move. */
#ifndef SM120_VM_MACHINE_TMA_BOX_H
#define SM120_VM_MACHINE_TMA_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "driver/tensor_map_rules.h"
#include "vm/machine/cta.h"

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

#endif
