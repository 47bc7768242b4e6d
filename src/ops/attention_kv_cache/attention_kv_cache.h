/* Attention of few rows and a cache: the checked call, and what its files share. */
#ifndef SM120_ATTENTION_KV_CACHE_H
#define SM120_ATTENTION_KV_CACHE_H

#include "ops/attention/attention.h"
#include "ops/cache_side.h"
#include "ops/merge_states.h"
#include "runtime/places.h"

/* A call whose arguments were checked, except addresses. */
struct cached {
    const sm120_attention_with_kv_cache_args *args;
    sm120_attention_args options; /* causal, scale, window and softcap, as sm120_attention has them */
    struct shape q_shape, k_shape, v_shape, o_shape;
    struct tensor q, o;
    struct cache_side k, v;
    bool is_narrow;  /* k and v have 8 or 4 bits */
    int64_t kv_rows; /* the most keys that a sequence can have */
    int64_t table_bytes, lse_bytes, tree_bytes;
    bool is_ready; /* kernels load 16 bytes at a time */

    uint32_t kernel; /* index of its record */
    int64_t row_tiles, splits;
    int64_t lses_at, workspace_bytes; /* the splits' o are at 0 */
};

/* Check the arguments except addresses. */
sm120_status cached_check(const sm120_attention_with_kv_cache_args *args, struct cached *call);

/* Check the addresses of everything that the call reads and writes. */
sm120_status cached_check_places(struct device *device, const struct cached *call, const struct workspace *workspace);

/* Whether a call has so many rows that sm120_attention's kernels are faster, and they can compute it. */
bool cached_is_chunk(const struct device *device, const struct cached *call);

/* Such a call: launch, or answer the question for the size of the workspace. */
sm120_status cached_chunk(struct device *device, struct cached *call, const struct workspace *workspace);

/* The parts of the keys, each for one CTA, that fill the device. */
int64_t cached_splits(const struct device *device, const struct cached *call);

#endif
