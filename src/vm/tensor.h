/* What a decoded mma.sync needs. */
#ifndef SM120_VM_TENSOR_H
#define SM120_VM_TENSOR_H

#include "vm.h"

#include "mma.h"

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
    uint64_t flops;
};

#endif
