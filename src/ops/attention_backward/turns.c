/* How many heads run at once, and how often the adds to dq of a deterministic call wait. Its bits depend on neither. */
#include "ops/attention_backward/attention_backward.h"
#include "ops/resident.h"

enum {
    L2_PART = 7,        /* of ten parts of L2: what the heads that take turns may need */
    TURN_TILES_MAX = 4, /* tiles of q of a turn */
    DELAY_PART = 8      /* the last CTA of the first ones may begin late by such a part of the time of the kernel */
};

int64_t backward_held_heads(const struct device *device, const struct backward *b) {
    const int64_t halves = attention_reach(&b->forward).has_right ? 1 : 2;
    const int64_t bytes = halves * (b->args->heads / b->args->kv_heads) * b->q_tiles * b->tile_bytes;
    const int64_t held = device->info.l2_bytes / 10 * L2_PART / bytes, most = kernel_records[b->main].group_heads;
    return held < 1 ? 1 : held < most ? held : most;
}

int64_t backward_even_group(const struct backward *b, int64_t most) {
    const int64_t heads = b->args->batch * b->args->kv_heads, groups = (heads + most - 1) / most;
    return (heads + groups - 1) / groups;
}

void backward_choose_turns(const struct device *device, struct backward *b) {
    b->turn_tiles = 1;
    if (b->args->deterministic == 0) {
        return;
    }
    b->group = backward_even_group(b, backward_held_heads(device, b));
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
