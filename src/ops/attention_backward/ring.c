/* Whether the sums of dq live in a ring, as ptx/parts/dq_ring.ptx describes, so that the main kernel writes most of dq.
 */
#include "ops/attention_backward/attention_backward.h"
#include "ops/resident.h"

void backward_choose_ring(const struct device *device, struct backward *b) {
    const struct kernel_record *const main = kernel_records + b->main;
    const sm120_attention_backward_args *const args = b->args;
    const int64_t group = backward_group(b), heads = args->heads / args->kv_heads;
    const int64_t tiles = group * b->kv_tiles, of_group = group * heads * b->q_tiles;
    const int64_t groups = (args->batch * args->kv_heads + group - 1) / group, full = b->first_split / tiles;
    /* In the time of a CTA, as many others begin as the device holds. */
    const int64_t held = resident_ctas(device, main, main->shared) * device->info.multiprocessors;
    const int64_t reach = 1 + (held + tiles - 1) / tiles;
    b->ring.is_used = b->call.is_uniform && args->cu_seqlens_q == 0 && args->deterministic == 0 && full > 2 * reach &&
                      groups - full <= reach && tiles * of_group <= UINT32_MAX;
    b->ring.group_tiles = tiles;
    b->ring.full_groups = full;
    b->ring.reach = reach;
    b->ring.slots = b->ring.is_used ? 2 * reach * of_group : b->slots;
    b->ring.first_head = b->ring.is_used ? (full - reach) * group * heads : 0;
}

sm120_address backward_finished(const struct backward *b, sm120_address workspace) {
    return b->ring.is_used ? workspace + (uint64_t)b->ring.finished_at : 0;
}
