/* The gather from a cache that attention of many rows needs. */
#ifndef SM120_KV_CACHE_H
#define SM120_KV_CACHE_H

#include "runtime/launch.h"

/* A launch and the values of its arguments. Do not copy it once filled, because it points into itself. */
struct kv_copy_launch {
    struct kernel *kernel;
    struct launch launch;
    struct kv_append_parameters values; /* of which most kernels read the first ones */
    struct argument_pointers pointers;
};

/* Check everything but addresses, and the launch of a gather that does not write the tokens that the cache lacks, and
 * converts BF16 to F16 and F16 to BF16. */
sm120_status kv_gather_prepare(struct device *device, const sm120_kv_cache_gather_args *args,
                               struct kv_copy_launch *prepared);

#endif
