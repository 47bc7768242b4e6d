/* What kernels take of a call that is more than tensors of one length: the parameters of ptx/parts/sequence.ptx. */
#ifndef SM120_ATTENTION_SPECIAL_H
#define SM120_ATTENTION_SPECIAL_H

#include "generated/parameters.h"
#include "ops/attention/attention.h"

/* Fill in all but the maps of the past. */
void attention_sequence(const struct attention *call, struct sequence_parameters *s);

/* Row i sees key j where i + lower <= j - d <= i + upper. In a uniform call d is 0; otherwise it is the diagonal, which
 * the kernel finds. */
struct edges {
    int32_t lower, upper;
};
struct edges attention_edges(const struct attention *call);

#endif
