/* K or V of a cache: the elements, their scales, and the form in which the cache holds them. */
#ifndef SM120_CACHE_SIDE_H
#define SM120_CACHE_SIDE_H

#include "runtime/tensor.h"
#include "sm120.h"

enum cache_role { CACHE_ELEMENTS, CACHE_BLOCKS, CACHE_SCALE, CACHE_ROLES };

/* What a caller gives for K or V; blocks and scale may have address 0. */
struct cache_side {
    const char *name[CACHE_ROLES];
    const sm120_tensor *given[CACHE_ROLES];
    struct shape shape[CACHE_ROLES];
    struct tensor tensor[CACHE_ROLES];
    uint32_t form; /* KV_FORMAT of the elements */
    bool casts;    /* the caller converts BF16 and F16, whichever is plain: KV_FORMAT_CAST */
};

/* The side `o`, k or v, of a call: its members `elements`, o_blocks and o_scale. */
#define CACHE_SIDE(o, elements, args)                                                                                  \
    {                                                                                                                  \
        .name = {#elements, #o "_blocks", #o "_scale"},                                                                \
        .given = {&(args)->elements, &(args)->o##_blocks, &(args)->o##_scale}                                          \
    }

/* Find the form of the elements, check the dtypes and strides of the three tensors, and find their shapes. `whole` is
 * the shape of the elements, `plain` the dtype of KV_FORMAT_COPY, which `plain_name` has. */
sm120_status cache_side_check(struct cache_side *side, const struct shape *whole, uint32_t plain,
                              const char *plain_name, enum tensor_role role);

/* Check that swizzled scales of V are possible. */
sm120_status cache_side_check_swizzle(const struct cache_side *v, uint32_t v_swizzled, const struct shape *whole);

#endif
