/* The parameters of kernels with features, which ptx/parts/sequence.ptx declares. */
#ifndef SM120_ATTENTION_SPECIAL_H
#define SM120_ATTENTION_SPECIAL_H

#include "generated/parameters.h"
#include "ops/attention/attention.h"

/* Fill in the parameters, except the tensor maps of the past. */
void attention_sequence(const struct attention *call, struct sequence_parameters *s);

/* The parameters that kernels in 8 and 4 bits share, except v_broadcast. The kernels need a positive scale, because
 * they take the maximum of scaled scores. So a negative sign or a scale of 0 is applied to q. */
struct mxfp8_call_parameters attention_packed_call(const struct attention *call, int64_t q_tiles);

/* Row i sees key j if i + lower <= j - d <= i + upper. In a uniform call d is 0; otherwise the kernel computes d, the
 * diagonal. */
struct edges {
    int32_t lower, upper;
};
struct edges attention_edges(const struct attention *call);

#endif
