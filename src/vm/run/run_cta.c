/* Running one CTA: which warp runs next, when asynchronous copies complete, and when a deadlock is reported. */
#include <stdio.h>
#include <string.h>

#include "vm/check/check.h"
#include "vm/execute/async.h"
#include "vm/execute/poll.h"
#include "vm/execute/pool.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/device.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"
#include "vm/run/run.h"

enum { QUANTUM = 1024, EQUAL = 384, SHORT = 32, HOPELESS = 64, FRUITLESS = 20000, FUTILE = 3, SLICE = 1 << 16 };

/* Return a hardware register that is the same in all lanes of a warp. */
static uint32_t warp_register(const struct warp *w, uint32_t special) {
    const struct launch *launch = w->cta->launch;
    const struct member *m = warp_member(w);
    if (special >= SPECIAL_NTID_X && special <= SPECIAL_NTID_Z) {
        return launch->block[special - SPECIAL_NTID_X];
    }
    if (special >= SPECIAL_CTAID_X && special <= SPECIAL_CTAID_Z) {
        return m->id[special - SPECIAL_CTAID_X];
    }
    if (special >= SPECIAL_NCTAID_X && special <= SPECIAL_NCTAID_Z) {
        return launch->grid[special - SPECIAL_NCTAID_X];
    }
    if (special >= SPECIAL_CLUSTERID_X && special <= SPECIAL_CLUSTER_NCTAID_Z) {
        const uint32_t k = (special - SPECIAL_CLUSTERID_X) % 3, size = launch->cluster[k];
        const uint32_t values[] = {m->id[k] / size, launch->grid[k] / size, m->id[k] % size, size};
        return values[(special - SPECIAL_CLUSTERID_X) / 3];
    }
    enum { UNIT = 128 /* bytes in which a CTA gets shared memory */ };
    const uint32_t shared = (launch->cta_shared + UNIT - 1) / UNIT * UNIT;
    const uint32_t others[][2] = {{SPECIAL_WARPID, w->number},
                                  {SPECIAL_NWARPID, MAX_WARPS},
                                  {SPECIAL_SMID, (uint32_t)(m->linear % launch->multiprocessors)},
                                  {SPECIAL_NSMID, launch->multiprocessors},
                                  {SPECIAL_DYNAMIC_SMEM_SIZE, launch->dynamic_bytes},
                                  {SPECIAL_TOTAL_SMEM_SIZE, shared},
                                  {SPECIAL_AGGR_SMEM_SIZE, SHARED_BASE + shared},
                                  {SPECIAL_CLUSTER_CTARANK, w->rank},
                                  {SPECIAL_CLUSTER_NCTARANK, launch->ranks},
                                  {SPECIAL_GRID_WORKSPACE_HIGH, (uint32_t)(launch->workspace >> 32)},
                                  {SPECIAL_GRID_WORKSPACE_LOW, (uint32_t)launch->workspace},
                                  {SPECIAL_ONE, 1}};
    for (size_t k = 0; k < sizeof others / sizeof *others; ++k) {
        if (others[k][0] == special) {
            return others[k][1];
        }
    }
    return 0;
}

/* Return a hardware register of one lane. */
static uint32_t lane_register(const struct warp *w, uint32_t special, uint32_t lane) {
    const uint32_t *block = w->cta->launch->block, thread = WARP * w->number + lane, bit = 1u << lane;
    const uint32_t x = block[0], y = block[1];
    if (special <= SPECIAL_TID_Z) {
        return special == SPECIAL_TID_X ? thread % x : special == SPECIAL_TID_Y ? thread / x % y : thread / x / y;
    }
    if (special == SPECIAL_LANEID) {
        return lane;
    }
    if (special >= SPECIAL_LANEMASK_EQ && special <= SPECIAL_LANEMASK_GT) {
        const uint32_t masks[] = {bit, bit | (bit - 1), bit - 1, ~(bit - 1), ~(bit | (bit - 1))}; /* eq le lt ge gt */
        return masks[special - SPECIAL_LANEMASK_EQ];
    }
    return warp_register(w, special);
}

/* Fill the hardware registers that the kernel reads. */
static void set_specials(struct warp *w) {
    const struct CUfunc_st *f = w->function;
    for (uint32_t k = 0; k < f->special_count; ++k) {
        uint32_t *d = destination(w, f->specials[k].slot);
        if (f->specials[k].special == SPECIAL_GRIDID || f->specials[k].special == SPECIAL_GRAPH) {
            memset(d, 0, 256); /* there are no device graphs */
            continue;
        }
        for (uint32_t l = 0; l < WARP; ++l) {
            d[l] = lane_register(w, f->specials[k].special, l);
        }
    }
}

/* Set a CTA and its warps to their first instruction. Return false after a fault. */
bool cta_start(struct cta *cta, struct worker *worker, uint64_t linear) {
    struct launch *launch = worker->launch;
    const struct CUfunc_st *f = launch->function;
    cta->launch = launch;
    cta->linear = linear;
    cta->ranks = launch->ranks;
    cta->warps = launch->warps;
    cta->exited_warps = 0;
    cta->shared_bytes = launch->shared_bytes;
    cta->cta_shared = launch->cta_shared;
    for (uint32_t r = 0; r < cta->ranks; ++r) {
        struct member *m = &cta->member[r];
        *m = (struct member){.heard = 1u << r};
        launch_place(launch, linear, r, m->id);
        m->linear = m->id[0] + launch->grid[0] * (m->id[1] + (uint64_t)launch->grid[1] * m->id[2]);
    }
    cta->mbarriers = 0;
    cta->cluster_phase = 0;
    cta->is_refused = false;
    cta->progress = 0;
    cta->executed = 0;
    cta->left = launch->warps;
    cta->hopeless = cta->fruitless = cta->blocked = cta->progressed = 0;
    cta->in_vain = false;
    cta->state_news = UINT64_MAX;
    cta->random = launch->seed * 0x9e3779b97f4a7c15u + linear;
    memset(cta->barrier, 0, cta_barriers(cta) * sizeof *cta->barrier);
    memset(cta->mbarrier_at, 0, (cta->shared_bytes / 8 + 1) * sizeof *cta->mbarrier_at);
    cta->watches_lanes = launch->checks == CHECKS_FULL;
    cta->shadow = launch->checks == CHECKS_OFF ? NULL : cta->kept_shadow;
    if (cta->shadow != NULL) {
        check_start(cta);
    }
    async_init(cta);
    pool_start(cta);
    poll_start(cta);
    for (uint32_t k = 0; k < cta->async_lanes_space; ++k) {
        cta->async_lanes[k].size = 0;
    }
    for (uint32_t k = 0; k < cta->warps; ++k) {
        struct warp *w = &cta->warp[k];
        w->cta = cta;
        w->function = f;
        w->index = k;
        w->rank = k / launch->cta_warps;
        w->number = k % launch->cta_warps;
        w->shared_start = SHARED_BASE + w->rank * launch->span;
        w->base[0] = w->registers;
        w->base[1] = launch->constants == NULL ? f->constants : launch->constants + (size_t)w->rank * f->constant_bytes;
        const uint32_t threads = launch->threads - WARP * w->number;
        w->live = threads >= WARP ? FULL : (1u << threads) - 1;
        w->splits = 1;
        w->current = 0;
        w->split[0] = (struct split){.mask = w->live};
        w->meeting = w->met = 0;
        memset(w->bulk_group, 0, sizeof w->bulk_group);
        memset(w->async_group, 0, sizeof w->async_group);
        memset(w->cluster, 0, sizeof w->cluster);
        memset(w->depth, 0, sizeof w->depth);
        memset(w->frame, 0, sizeof w->frame);
        memset(w->predicates, 0, f->predicates * sizeof *w->predicates);
        w->predicates[0] = FULL;
        w->worker = worker;
        set_specials(w);
    }
    return watch_start(cta);
}

/* Write one line about the wait of a split. */
static int describe(const struct warp *w, const struct split *s, char *to, size_t bytes) {
    const struct place *at = &w->function->places[s->pc];
    char what[160];
    cta_wait_text(w, s, what, sizeof what);
    return snprintf(to, bytes, "\n  warp %u, lanes 0x%08x, %s: waits for %s", w->number, s->mask, spot_of(at).text,
                    what);
}

/* Write one line for each warp that says what it waits for. Return the bytes written. */
size_t cta_describe(const struct cta *cta, char *to, size_t bytes) {
    size_t n = 0;
    to[0] = 0;
    for (uint32_t k = 0; k < cta->warps; ++k) {
        const struct warp *w = &cta->warp[k];
        for (uint32_t s = 0; s < w->splits && n + 300 < bytes; ++s) {
            n += (size_t)describe(w, &w->split[s], to + n, bytes - n);
        }
    }
    return n;
}

/* Report a deadlock within a CTA. */
static void report_deadlock(struct cta *cta) {
    char text[3000];
    cta_describe(cta, text, sizeof text);
    fault_cta(cta, CUDA_ERROR_LAUNCH_TIMEOUT, "deadlock: no warp can continue%s", text);
}

/* When every warp waits, perform a pending copy, or let failed try_waits return. Return 0 if neither is possible. */
static int unblock(struct cta *cta) {
    bool forced = false;
    const int landed = async_land(cta);
    if (landed != 0) {
        return landed;
    }
    if (++cta->hopeless > HOPELESS) {
        return 0;
    }
    for (uint32_t k = 0; k < cta->warps; ++k) {
        struct warp *w = &cta->warp[k];
        for (uint32_t s = 0; s < w->splits; ++s) {
            if (w->split[s].wait == WAIT_MBARRIER) {
                w->split[s].forced = 1;
                forced = true;
            }
        }
    }
    return forced;
}

/* Return whether the launch has been stopped or has reached the limit of instructions. */
static bool over_limit(struct cta *cta, uint64_t executed) {
    struct launch *launch = cta->launch;
    struct worker *worker = cta->warp[0].worker;
    cta->executed += executed;
    worker->executed += executed;
    const uint64_t since = worker->executed - worker->checked, limit = launch->instruction_limit;
    if (since < 1u << 20 && since <= limit) {
        return false;
    }
    const uint64_t total = atomic_fetch_add(&launch->executed, since) + since;
    worker->checked = worker->executed;
    if (atomic_load(&launch->stop)) {
        return true;
    }
    if (atomic_load(&launch->device->interrupts) != launch->interrupts) {
        fault_cta(cta, CUDA_ERROR_LAUNCH_TIMEOUT, "the launch was interrupted");
        return true;
    }
    if (total <= limit) {
        return false;
    }
    char text[3000];
    cta_describe(cta, text, sizeof text);
    fault_cta(cta, CUDA_ERROR_LAUNCH_TIMEOUT, "the launch has executed more than %llu warp instructions%s",
              (unsigned long long)limit, text);
    return true;
}

/* Choose how many instructions a warp runs in its turn. At level full the number is often small, so that warps and
 * CTAs interleave everywhere. For a profile all turns are equal, so that warps stay close to each other, as on a chip:
 * what one of them has loaded is still in L1 when another one loads it. */
static uint32_t choose_quantum(struct cta *cta) {
    const uint64_t random = cta_random(cta);
    if (cta->launch->checks == CHECKS_FULL && random >> 62 == 0) {
        return 1 + (uint32_t)(random % SHORT);
    }
    return cta->launch->profile != NULL ? EQUAL : QUANTUM / 4 + (uint32_t)(random % QUANTUM);
}

/* Give every warp a turn, starting at a random warp. Return how many did real work, or -1 to stop. */
static int round_of_turns(struct cta *cta) {
    int used = 0;
    const uint32_t first = (uint32_t)(cta_random(cta) % cta->warps);
    cta->waits_outside = false;
    for (uint32_t n = 0; n < cta->warps; ++n) {
        struct warp *w = &cta->warp[(first + n) % cta->warps];
        uint32_t executed = 0;
        if (w->splits == 0) {
            continue;
        }
        const uint32_t quantum = choose_quantum(cta);
        const uint32_t before = cta->progress;
        const enum turn turn = warp_run(w, quantum, &executed);
        if (turn == TURN_FAULT || over_limit(cta, executed)) {
            return -1;
        }
        cta->left -= turn == TURN_DONE;
        used += turn == TURN_USED || turn == TURN_DONE || cta->progress != before ||
                (turn == TURN_BLOCKED && executed > 0) || (turn == TURN_POLLED && executed > 64);
        if (cta->asyncs != 0 && (cta_random(cta) & 3) == 0 && async_land(cta) < 0) {
            return -1;
        }
    }
    return used;
}

/* End a CTA: complete its pending copies. */
static enum outcome finish(struct cta *cta) {
    while (cta->asyncs != 0) {
        if (async_land(cta) < 0) {
            return CTA_STOPPED;
        }
    }
    if (!pool_end(cta)) {
        return CTA_STOPPED;
    }
    if (cta->shadow != NULL) {
        check_end(cta);
    }
    watch_end(cta);
    return CTA_ENDED;
}

/* Leave a CTA that cannot continue by itself: it waits for other CTAs, or it is deadlocked. */
static enum outcome give_up(struct cta *cta) {
    if (cta->waits_outside) {
        return CTA_WAITS;
    }
    report_deadlock(cta);
    return CTA_STOPPED;
}

/* After a round, decide whether the CTA can still make progress. CTA_TURN: continue. */
static enum outcome judge(struct cta *cta, int used) {
    if (cta->progress != cta->progressed) {
        cta->progressed = cta->progress;
        cta->hopeless = cta->fruitless = cta->blocked = 0;
    }
    if (used != 0) {
        cta->blocked = 0;
        return ++cta->fruitless > FRUITLESS && cta->hopeless != 0 ? give_up(cta) : CTA_TURN;
    }
    const int helped = unblock(cta);
    if (helped < 0) {
        return CTA_STOPPED;
    }
    return helped == 0 && ++cta->blocked > FUTILE ? give_up(cta) : CTA_TURN;
}

static enum outcome run_rounds(struct cta *cta, struct worker *worker, uint32_t turns) {
    for (; cta->left != 0; --turns) {
        if (turns == 0) {
            return CTA_TURN;
        }
        const int used = round_of_turns(cta);
        if (used < 0) {
            return CTA_STOPPED;
        }
        if (cta->left == 0) {
            break;
        }
        const enum outcome outcome = judge(cta, used);
        if (outcome != CTA_TURN) {
            return outcome;
        }
        if (UNLIKELY(cta->executed - cta->slice_start > SLICE) && poll_is_all(cta, worker)) {
            return CTA_WAITS;
        }
    }
    return finish(cta);
}

/* Give each warp of a CTA this many turns. CTA_WAITS: it only polls. */
enum outcome cta_run(struct cta *cta, struct worker *worker, uint32_t turns) {
    for (uint32_t k = 0; k < cta->warps; ++k) {
        cta->warp[k].worker = worker;
    }
    poll_enter(cta, worker);
    const enum outcome outcome = run_rounds(cta, worker, turns);
    poll_leave(cta, worker);
    return outcome;
}
