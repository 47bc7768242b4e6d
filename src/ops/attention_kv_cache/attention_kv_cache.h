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
    bool is_narrow;    /* k and v have 8 or 4 bits */
    bool is_converted; /* not both: kernels read copies of k and v in q's dtype, which at least one does not have */
    int64_t kv_rows;   /* the most keys that a sequence can have */
    int64_t table_bytes, lse_bytes, tree_bytes;
    bool is_ready; /* kernels load 16 bytes at a time */

    uint32_t kernel; /* index of its record */
    int64_t row_tiles, splits;
    int64_t lses_at, workspace_bytes; /* the splits' o are at 0 */
};

/* Check the arguments except addresses. */
sm120_status cached_check(const sm120_attention_with_kv_cache_args *args, struct cached *call);

/* Check the addresses of everything that the call reads and writes; on a virtual device also lengths and page numbers,
 * unless its checks are off. */
sm120_status cached_check_places(struct device *device, const struct cached *call, const struct workspace *workspace);

/* Choose the kernel and the splits, and find the bytes of the workspace. */
sm120_status cached_choose(const struct device *device, struct cached *call);

/* Check the launches of a call that was chosen, and unless it is a question, start them. */
sm120_status cached_launch(struct device *device, const struct cached *call, sm120_address workspace, bool is_question);

/* Whether a call has so many rows that sm120_attention's kernels are faster, and they can compute it. */
bool cached_is_chunk(const struct device *device, const struct cached *call);

/* Such a call: launch, or answer the question for the size of the workspace. */
sm120_status cached_chunk(struct device *device, struct cached *call, const struct workspace *workspace);

/* A call whose K and V are converted, and which is no chunk: the same. */
sm120_status cached_converted(struct device *device, struct cached *call, const struct workspace *workspace);

/* ---- copies of keys and values in the workspace, in q's dtype ---- */

/* The columns of a row of a copy of K or V, in whole steps of 16 bytes. */
int64_t copies_columns(const struct shape *shape);

/* The bytes of a sequence's copies; false: beyond 2^63. */
bool copies_bytes(const struct cached *call, int64_t *bytes);

/* The sequences that are copied at once: those whose copies fit into 256 MiB, at least one. With lists of pages all. */
int64_t copies_at_once(const struct cached *call);

/* Whether the gather of a sequence, or of a list, is one launch. */
bool copies_are_possible(const struct cached *call);

/* The gather of `batch` sequences from `first` on, or of a list as if it were one sequence, to k and v; `lengths` of
 * these sequences, or 0: all rows. */
sm120_kv_cache_gather_args copies_gather(const struct cached *call, int64_t first, int64_t batch, const sm120_tensor *k,
                                         const sm120_tensor *v, sm120_address lengths);

/* A tensor from its batch, or page, `first` on; an address behind `count` elements. Address 0 stays 0. */
sm120_tensor tensor_from(const sm120_tensor *x, int64_t first);
sm120_address address_behind(sm120_address address, int64_t count, int64_t bytes);

/* The parts of the keys, each for one CTA, that fill the device. */
int64_t cached_splits(const struct device *device, const struct cached *call);

#endif
