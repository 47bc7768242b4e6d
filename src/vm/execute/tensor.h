/* Decoded operands of mma.sync and mma.sp. */
#ifndef SM120_VM_TENSOR_H
#define SM120_VM_TENSOR_H

#include "vm/execute/mma.h"
#include "vm/machine/cta.h"

/* Sets of allowed index pairs, a bit for each value of the four bits: different indices, ascending indices, tf32
 * pairs. */
enum { MMA_PAIRS_ANY = 0x7bde, MMA_PAIRS_ORDERED = 0x7310, MMA_PAIRS_TF32 = 0x4010 };

/* Registers of a fragment. `together`: they are contiguous in the register file. */
struct fragment {
    uint32_t slot[8], count, together;
};

struct mma_plan {
    mma_function *run;
    struct mma_shape shape;
    struct fragment d, a, b, c;
    uint32_t scale_a, scale_b;  /* sources */
    uint32_t selector[4];       /* byte_a, thread_a, byte_b, thread_b: register slots if not constant */
    uint8_t value[4], constant; /* constant: all four values are known */
    uint32_t metadata;          /* mma.sp: register slot */
    uint16_t pairs;             /* allowed values of four bits of the metadata */
    uint8_t sparsity, holders;  /* holders: the lanes of each group of four that hold the metadata */
    uint64_t flops;
};

handler tensor_mma, tensor_mma_double, tensor_wmma;

#endif
