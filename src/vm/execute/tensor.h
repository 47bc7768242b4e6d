/* What a decoded mma.sync or mma.sp needs. */
#ifndef SM120_VM_TENSOR_H
#define SM120_VM_TENSOR_H

#include "vm/execute/mma.h"
#include "vm/machine/cta.h"

/* Two indices out of four, the first in the lower bits: that differ, that ascend, and those of tf32. */
enum { MMA_PAIRS_ANY = 0x7bde, MMA_PAIRS_ORDERED = 0x7310, MMA_PAIRS_TF32 = 0x4010 };

/* A group of registers; `together` if they follow each other in the register file. */
struct fragment {
    uint32_t slot[8], count, together;
};

struct mma_plan {
    mma_function *run;
    struct mma_shape shape;
    struct fragment d, a, b, c;
    uint32_t scale_a, scale_b;  /* sources */
    uint32_t selector[4];       /* byte_a, thread_a, byte_b, thread_b: sources where not constant */
    uint8_t value[4], constant; /* constant: all four are known */
    uint32_t metadata;          /* of mma.sp: a source */
    uint16_t pairs;             /* which values four bits of it may have */
    uint8_t sparsity, holders;  /* holders: the lanes of four that hold it */
    uint64_t flops;
};

handler tensor_mma, tensor_mma_double, tensor_wmma;

#endif
