/* Tensor-core arithmetic of the virtual SM120, bit for bit (the model of MMA-Sim, arXiv 2511.10909). */
#ifndef SM120_VM_MMA_H
#define SM120_VM_MMA_H

#include <stdbool.h>
#include <stdint.h>

enum mma_type {
    MMA_BF16,
    MMA_F16,
    MMA_TF32,
    MMA_S8,
    MMA_U8,
    MMA_E4M3,
    MMA_E5M2,
    MMA_E2M3,
    MMA_E3M2,
    MMA_E2M1,        /* one per byte, in its container (kinds f8f6f4, mxf8f6f4) */
    MMA_E2M1_PACKED, /* two per byte (kinds mxf4, mxf4nvf4) */
    MMA_S4,
    MMA_U4, /* two per byte */
    MMA_B1_AND,
    MMA_B1_XOR /* b1 with .and.popc, .xor.popc; as a_type and b_type */
};
enum mma_scale { MMA_NO_SCALE, MMA_UE8M0, MMA_UE4M3 };
enum mma_accumulator { MMA_ACC_F32, MMA_ACC_F16, MMA_ACC_S32 };

/* What one mma.sync.m16n8k* computes. */
struct mma_shape {
    uint16_t k;             /* 4, 8, 16, 32, 64, 128 or 256; of mma.sp, with the elements that A leaves out */
    uint8_t a_type, b_type; /* enum mma_type */
    uint8_t accumulator;    /* enum mma_accumulator, of c and d alike */
    uint8_t scale;          /* enum mma_scale */
    uint8_t scale_vec;      /* 1, 2 or 4 scales per row; 0 without scale */
    uint8_t saturate;       /* .satfinite of the integer forms */
    uint8_t sparse;         /* mma.sp: A holds half of each row, and metadata says which half */
};

/* Registers as a warp holds them: reg[i][lane]. Unused pointers may be NULL. d may alias c.
 * scale selectors: byte_a, thread_a, byte_b, thread_b as in the instruction. All 32 lanes take part. */
struct mma_operands {
    uint32_t (*d)[32];
    const uint32_t (*a)[32];
    const uint32_t (*b)[32];
    const uint32_t (*c)[32];
    const uint32_t *scale_a, *scale_b; /* [32] */
    uint8_t byte_a, thread_a, byte_b, thread_b;
    const uint32_t *metadata; /* [32], of mma.sp, all indices valid; which lanes hold it: the sparsity selector */
    uint8_t sparsity;
};

/* How many runs of four units, of which mma.sp holds two, a row of A has: 4, 8 or 16. A unit is 16 bits, so a tf32 is
 * units 0 and 1 or 2 and 3; of elements of 8 bits and less it is 8 bits. */
static inline uint32_t mma_chunks(const struct mma_shape *shape) {
    return shape->k / (shape->a_type == MMA_TF32 ? 2u : shape->a_type >= MMA_E2M1_PACKED ? 8u : 4u);
}

/* Where the indices of a chunk are: four bits, from `bit` on, in lane 4 * (row % 8) + `lane`. */
struct mma_place {
    uint32_t lane, bit;
};
static inline struct mma_place mma_metadata_place(const struct mma_shape *shape, uint32_t selector, uint32_t row,
                                                  uint32_t chunk) {
    const uint32_t lower = row >> 3, chunks = mma_chunks(shape);
    if (chunks == 4) {
        return (struct mma_place){selector, 16 * lower + 4 * chunk};
    }
    if (chunks == 16) {
        return (struct mma_place){2 * (chunk >> 3) + lower, 4 * (chunk & 7)};
    }
    if (shape->a_type <= MMA_TF32) {
        return (struct mma_place){2 * selector + (chunk >> 2), 16 * lower + 4 * (chunk & 3)};
    }
    return (struct mma_place){2 * selector + lower, 4 * chunk};
}

/* Compute one mma. Registers must be contiguous groups: d/c 4 (f32, s32) or 2 (f16), a and b by shape.
 * Selectors that PTX leaves undefined are taken modulo what exists. */
typedef void mma_function(const struct mma_shape *shape, const struct mma_operands *operands);

/* The function for a shape, for the widest vectors of this CPU; NULL where no sm_120f instruction has that shape.
 * PYSM120_VM_ISA=base or v3 in the environment holds it to narrower vectors; all give the same bits. */
mma_function *mma_find(const struct mma_shape *shape);

#endif
