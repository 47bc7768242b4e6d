/* Tensor-core arithmetic of the virtual SM120, bit-exact (the model of MMA-Sim, arXiv 2511.10909). */
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

/* Shape, types and options of one mma.sync. */
struct mma_shape {
    uint16_t k;             /* 4, 8, 16, 32, 64, 128 or 256; for mma.sp this includes the elements omitted from A */
    uint8_t a_type, b_type; /* enum mma_type */
    uint8_t accumulator;    /* enum mma_accumulator, of both c and d */
    uint8_t scale;          /* enum mma_scale */
    uint8_t scale_vec;      /* scales per row: 1, 2 or 4; 0: no scales */
    uint8_t saturate;       /* .satfinite of the integer forms */
    uint8_t sparse;         /* mma.sp: A holds half of each row, and the metadata says which elements */
};

/* Registers of a warp: reg[i][lane]. Unused pointers may be NULL. d may alias c. byte_a, thread_a, byte_b and
 * thread_b are the instruction's scale selectors. All 32 lanes are active. */
struct mma_operands {
    uint32_t (*d)[32];
    const uint32_t (*a)[32];
    const uint32_t (*b)[32];
    const uint32_t (*c)[32];
    const uint32_t *scale_a, *scale_b; /* [32] */
    uint8_t byte_a, thread_a, byte_b, thread_b;
    const uint32_t *metadata; /* [32], mma.sp: all indices are valid; `sparsity` selects the lanes that hold it */
    uint8_t sparsity;
};

/* Return the number of chunks in a row of A: 4, 8 or 16. A chunk is four units, of which mma.sp stores two. A unit
 * has 16 bits (a tf32 is units 0 and 1, or 2 and 3), or 8 bits for elements of at most 8 bits. */
static inline uint32_t mma_chunks(const struct mma_shape *shape) {
    return shape->k / (shape->a_type == MMA_TF32 ? 2u : shape->a_type >= MMA_E2M1_PACKED ? 8u : 4u);
}

/* Position of a chunk's indices: the four bits from `bit` on in lane 4 * (row % 8) + `lane`. */
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

/* Compute one mma. Registers are contiguous groups: 4 for d and c (f32, s32) or 2 (f16); the shape gives the number
 * for a and b. Selectors that PTX leaves undefined are taken modulo the number of valid values. */
typedef void mma_function(const struct mma_shape *shape, const struct mma_operands *operands);

/* Return the function for a shape and the widest vectors of this CPU, or NULL if no sm_120f instruction has that
 * shape. PYSM120_VM_ISA=base or v3 limits the vector width. All widths give identical bits. */
mma_function *mma_find(const struct mma_shape *shape);

#endif
