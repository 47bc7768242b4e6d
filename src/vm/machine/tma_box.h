/* Boxes of tensors: the addresses of their elements in global and shared memory, and copying. */
#ifndef SM120_VM_MACHINE_TMA_BOX_H
#define SM120_VM_MACHINE_TMA_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "driver/tensor_map_rules.h"
#include "vm/machine/cta.h"

enum { TMA_COORDINATES = 5, TMA_ROW_MAX = 2048, TMA_LINE = 128 };

/* A box of a copy in flight: the tensor map when the copy was issued, and the position of the box. */
struct tma_box {
    struct tensor_map map;
    int32_t at[TMA_COORDINATES];
    uint32_t counts[TENSOR_MAP_RANK]; /* elements along each dimension in shared memory */
    int is_gather;                    /* gathers the rows at[1] to at[4] of a matrix, from column at[0] on */
    bool is_written;                  /* the copy is a store or a reduction */
    bool in_use;
};

/* A row of a box: its elements along dimension 0. Stores and reductions always write multiples of 16 bytes. */
struct tma_row {
    uint64_t global;     /* address of its first byte inside the tensor */
    uint32_t first, end; /* the bytes inside the tensor, in the layout of global memory; equal: no bytes */
};

/* Return how many bytes of shared memory a box takes. */
uint32_t tma_bytes(const struct tma_box *box);
/* Return how many bytes of a box complete_tx counts: those of global memory. */
uint32_t tma_counted(const struct tma_box *box);
uint32_t tma_rows(const struct tma_box *box);
struct tma_row tma_row(const struct tma_box *box, uint32_t index);
/* Return the length of the piece of shared memory that begins `done` bytes into the box at `base`, and store its
 * address. Return 0 at the end. */
uint32_t tma_piece(const struct tma_box *box, uint32_t base, uint32_t done, uint32_t *address);
/* Describe the k-th part of a tensor copy as a bulk copy of up to 8 bytes (0 bytes if the part is empty). Global
 * address 0 means that a load fills the part, op 1 that it rounds. Return false after the last part. */
bool tma_part(const struct tma_box *box, const struct async_op *op, uint32_t k, struct async_op *part);
/* Return whether the box overlaps these bytes of global memory. */
bool tma_meets(const struct tma_box *box, uint64_t address, uint64_t bytes);
/* Copy a box. `shared` holds the CTA's memory from SHARED_BASE on. */
void tma_load(const struct tma_box *box, uint8_t *shared, uint32_t base);
void tma_store(const struct tma_box *box, const uint8_t *shared, uint32_t base);
void tma_reduce(const struct tma_box *box, const uint8_t *shared, uint32_t base, atomic_function *function);

#endif
