/* Whether the sums of dq live in a ring, as ptx/parts/dq_ring.ptx describes, so that the main kernel writes most of dq;
 * and how many heads take turns. */
#include "ops/attention_backward/attention_backward.h"
#include "ops/resident.h"

enum { DQ_TILES = 2 }; /* tiles of queries in whose time zeros and dq of one are written without a ring */

/* The heads of k and v whose tiles take turns without a ring. */
static int64_t whole_group(const struct device *device, const struct backward *b) {
    const int64_t heads = kernel_records[b->main].group_rows / b->args->kv_rows, held = backward_held_heads(device, b);
    return !attention_reach(&b->forward).has_right || heads < 1 ? 1 : heads < held ? heads : held;
}

/* By how many tiles of queries, of all CTAs that the device holds, the last group ends late. Its longest walks begin
 * first; where they are as long as half of the group's work, or longer, half of the CTAs wait for them. */
static int64_t late_tiles(const struct backward *b, int64_t group, int64_t held) {
    const int64_t walk = b->args->heads / b->args->kv_heads * b->q_tiles, tiles = group * b->kv_tiles;
    const bool takes_turns = attention_reach(&b->forward).has_right;
    return takes_turns && tiles < 2 * held ? walk * (2 * held - tiles) / 4 : 0;
}

/* Lay out the ring of a group of so many heads of k and v; false: the call cannot have it. */
static bool lay_out(struct backward *b, int64_t group, int64_t held) {
    const sm120_attention_backward_args *const args = b->args;
    const int64_t heads = args->heads / args->kv_heads, tiles = group * b->kv_tiles,
                  of_group = group * heads * b->q_tiles;
    const int64_t groups = (args->batch * args->kv_heads + group - 1) / group, full = b->first_split / tiles;
    /* In the time of a CTA, as many others begin as the device holds; in that of the longest walk of a causal call,
     * twice as many. */
    const int64_t others = attention_reach(&b->forward).has_right ? 2 * held : held;
    const int64_t reach = 1 + (others + tiles - 1) / tiles;
    b->group = group;
    b->ring.group_tiles = tiles;
    b->ring.full_groups = full;
    b->ring.reach = reach;
    b->ring.slots = 2 * reach * of_group;
    b->ring.first_head = (full - reach) * group * heads;
    return full > 2 * reach && groups - full <= reach && tiles * of_group <= UINT32_MAX;
}

void backward_choose_ring(const struct device *device, struct backward *b) {
    const struct kernel_record *const main = kernel_records + b->main;
    const int64_t held = resident_ctas(device, main, main->shared) * device->info.multiprocessors;
    const int64_t whole = whole_group(device, b), late = late_tiles(b, whole, held);
    const bool can_ring =
        b->call.is_uniform && b->args->cu_seqlens_q == 0 && b->args->deterministic == 0 && backward_has_quads(b, DQ);
    int64_t best = 0, most = 0;
    for (int64_t group = whole; group > 0 && can_ring; group /= 2) {
        const bool fits = lay_out(b, group, held);
        const int64_t saved = DQ_TILES * b->ring.first_head * b->q_tiles + late - late_tiles(b, group, held);
        if (fits && saved > most) {
            best = group;
            most = saved;
        }
    }
    b->ring.is_used = best > 0 && lay_out(b, best, held);
    if (!b->ring.is_used) {
        b->group = backward_even_group(b, whole);
        b->ring.slots = b->slots;
        b->ring.first_head = 0;
    }
}

sm120_address backward_finished(const struct backward *b, sm120_address workspace) {
    return b->ring.is_used ? workspace + (uint64_t)b->ring.finished_at : 0;
}
