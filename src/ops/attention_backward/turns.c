/* In which order a deterministic call visits its tiles, and how often their adds to dq wait. No bit depends on it. */
#include "ops/attention_backward/attention_backward.h"
#include "ops/resident.h"

enum {
    L2_PART = 7,        /* of ten parts of L2: what the heads that take turns may need */
    TURN_TILES_MAX = 4, /* tiles of q of a turn */
    DELAY_PART = 8      /* the last CTA of the first ones may begin late by such a part of the time of the kernel */
};

/* The heads of k and v whose tiles take turns: as many as L2 holds the sums of dq of, and q and dout, which in 16 bits
 * have as many bytes as the sums. Else each CTA would read and write these in DRAM. With a right edge, as causal calls
 * have, the walks take half of them. */
static int64_t turn_heads(const struct device *device, const struct backward *b) {
    const int64_t heads = b->args->batch * b->args->kv_heads, halves = attention_reach(&b->forward).has_right ? 1 : 2;
    const int64_t bytes = halves * (b->args->heads / b->args->kv_heads) * b->q_tiles * b->tile_bytes;
    const int64_t held = device->info.l2_bytes / 10 * L2_PART / bytes, limit = kernel_records[b->main].group_heads;
    const int64_t most = held < 1 ? 1 : held < limit ? held : limit, groups = (heads + most - 1) / most;
    return (heads + groups - 1) / groups;
}

void backward_choose_turns(const struct device *device, struct backward *b) {
    b->turn_tiles = 1;
    if (b->args->deterministic == 0) {
        return;
    }
    b->group = turn_heads(device, b);
    const struct kernel_record *const main = kernel_records + b->main;
    const struct reach reach = attention_reach(&b->forward);
    const int64_t held = resident_ctas(device, main, main->shared) * device->info.multiprocessors;
    const int64_t of_head = (held + b->group - 1) / b->group,
                  others = (of_head < b->kv_tiles ? of_head : b->kv_tiles) - 1;
    const int64_t walk = b->args->heads / b->args->kv_heads * b->q_tiles, whole = b->kv_ctas * walk / held;
    /* The CTAs of a head follow each other at a distance of a turn. They fit its tiles, and the last one does not begin
     * too late. */
    while (b->call.is_uniform && !reach.has_left && !reach.has_right && b->splits == 1 &&
           b->turn_tiles < TURN_TILES_MAX && 2 * b->turn_tiles * held <= b->q_tiles * b->group + b->group &&
           DELAY_PART * 2 * b->turn_tiles * others <= whole) {
        b->turn_tiles *= 2;
    }
}
