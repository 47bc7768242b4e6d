/* Checks accesses to global memory at level full against all earlier accesses of the launch that they are not
 * ordered after: by other warps, other CTAs and the asynchronous proxy. */
#include "vm/check/check_global.h"

#include <stdio.h>
#include <stdlib.h>

#include "vm/check/check.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

enum { PAGE = 4096, CELL = 16, CELLS_PER_PAGE = PAGE / CELL, MOST_MORE = 12, INLINE = 2 };
enum { SUSPICIONS = 64 };
static const uint32_t PENDING = UINT32_MAX; /* clock of a bulk store that may still write: no access comes after it */

struct page {
    uint64_t number; /* address / PAGE */
    uint32_t more[CELLS_PER_PAGE];
    struct trace trace[CELLS_PER_PAGE][INLINE];
};

struct more {
    struct trace trace;
    uint32_t next;
};

/* ---- a launch ------------------------------------------------------------------------------------------------ */

struct world *world_open(const struct launch *launch) {
    struct world *world = calloc(1, sizeof *world);
    if (world == NULL) {
        return NULL;
    }
    world->levels = 1;
    while (world->levels < 8 && (launch->clusters - 1) >> 4 * world->levels != 0) {
        ++world->levels;
    }
    world->mores = 1;
    world->found_cta = UINT32_MAX;
    world->random = launch->seed;
    return world;
}

void world_close(struct world *world) {
    if (world == NULL) {
        return;
    }
    for (size_t k = 0; k < world->page_space; ++k) {
        free(world->pages[k]);
    }
    free(world->pages);
    free(world->more);
    free(world->resident);
    free(world->suspicion);
    far_close(world);
    free(world);
}

bool world_enter(struct world *world, struct cta *cta) {
    if (world->residents == world->resident_space) {
        const uint32_t space = world->resident_space != 0 ? 2 * world->resident_space : 64;
        struct cta **grown = realloc(world->resident, space * sizeof(struct cta *));
        if (grown == NULL) {
            return false;
        }
        world->resident = grown;
        world->resident_space = space;
    }
    world->resident[world->residents++] = cta;
    far_sweep(world);
    return true;
}

void world_leave(struct world *world, const struct cta *cta) {
    uint32_t k = 0;
    while (k < world->residents && world->resident[k] != cta) {
        ++k;
    }
    if (k < world->residents) {
        world->resident[k] = world->resident[--world->residents];
    }
}

/* ---- pages --------------------------------------------------------------------------------------------------- */

static size_t slot_of(const struct world *world, uint64_t number) {
    size_t at = number * 0x9e3779b97f4a7c15u >> 32 & (world->page_space - 1);
    while (world->pages[at] != NULL && world->pages[at]->number != number) {
        at = (at + 1) & (world->page_space - 1);
    }
    return at;
}

/* Make room for one more page. Return false when out of memory. */
static bool grow_pages(struct world *world) {
    if (2 * (world->page_count + 1) <= world->page_space) {
        return true;
    }
    const size_t old = world->page_space, space = old != 0 ? 2 * old : 64;
    struct page **pages = world->pages, **grown = calloc(space, sizeof(struct page *));
    if (grown == NULL) {
        return false;
    }
    world->pages = grown;
    world->page_space = space;
    for (size_t k = 0; k < old; ++k) {
        if (pages[k] != NULL) {
            grown[slot_of(world, pages[k]->number)] = pages[k];
        }
    }
    free(pages);
    return true;
}

/* Return the page of an address; NULL when out of memory. */
static struct page *page_of(struct world *world, uint64_t address) {
    const uint64_t number = address / PAGE;
    if (LIKELY(world->last && world->last->number == number)) {
        return world->last;
    }
    if (!grow_pages(world)) {
        return NULL;
    }
    struct page **slot = &world->pages[slot_of(world, number)];
    if (*slot == NULL) {
        *slot = calloc(1, sizeof **slot);
        if (*slot == NULL) {
            return NULL;
        }
        (*slot)->number = number;
        ++world->page_count;
    }
    return world->last = *slot;
}

/* ---- reports ------------------------------------------------------------------------------------------------- */

/* An access that is being checked. */
struct access {
    struct warp *w;
    struct world *world;
    const struct clocks *mine;
    struct trace own; /* the trace that it leaves, without the mask */
    uint32_t lane, bytes;
    bool swaps;               /* it is atom.cas */
    const struct inst *store; /* the instruction of a store from registers, or NULL */
    uint8_t *const *place;
    uint32_t mask;
    const struct async_op *bulk; /* the bulk store, or NULL */
};

static const char *noun(const struct trace *t) {
    const int writes = t->kind & TRACE_WRITE;
    if ((t->kind & TRACE_BULK) != 0) {
        return writes == 0 ? "bulk load" : (t->kind & TRACE_STRONG) != 0 ? "bulk reduction" : "bulk store";
    }
    if ((t->kind & TRACE_COPY) != 0) {
        return "cp.async";
    }
    if ((t->kind & TRACE_STRONG) != 0) {
        return writes != 0 ? "atomic access" : "strong read";
    }
    return writes != 0 ? "write" : (t->kind & TRACE_NC) != 0 ? "read by ld.global.nc" : "read";
}

/* Describe the earlier access: its kind, its warp or CTA, its source line. */
static void describe(const struct access *a, const struct trace *t, char *to, size_t bytes) {
    const struct launch *launch = a->w->cta->launch;
    const struct spot at = check_spot(a->w, t->pc);
    char warp[32] = "", cta[64] = "";
    if (t->agent < AGENT_MBARRIER) {
        snprintf(warp, sizeof warp, "warp %u", t->agent % MAX_WARPS % launch->cta_warps);
    }
    const uint32_t rank = *warp != '\0' ? t->agent % MAX_WARPS / launch->cta_warps : a->w->rank;
    if (t->cta != a->own.cta || rank != a->w->rank) {
        uint32_t id[3];
        launch_place(launch, t->cta, rank, id);
        snprintf(cta, sizeof cta, "CTA %u,%u,%u%s", id[0], id[1], id[2], *warp != '\0' ? ", " : "");
    }
    snprintf(to, bytes, "the %s by %s%s%s at %s", noun(t), cta, warp, *cta != '\0' || *warp != '\0' ? "" : "this CTA",
             at.text);
}

/* Describe the position of an address in its allocation. */
static void locate(const struct access *a, uint64_t address, char *to, size_t bytes) {
    const struct allocation *cached = a->w->worker->cached;
    to[0] = 0;
    for (uint32_t k = 0; k < 8; ++k) {
        if (cached[k].start <= address && address < cached[k].end) {
            snprintf(to, bytes, " (byte %llu of %llu)", (unsigned long long)(address - cached[k].start),
                     (unsigned long long)(cached[k].end - cached[k].start));
            return;
        }
    }
}

static const char read_only[] = ".nc only for what no thread writes in this launch";
static const char proxy_fence[] =
    "fence.proxy.async.global after the write, before the synchronisation between the two";

static struct fault_text format(const struct access *a, const struct trace *t, uint64_t address, const char *rule) {
    char earlier[512], where[64], message[1024];
    describe(a, t, earlier, sizeof earlier);
    locate(a, address, where, sizeof where);
    snprintf(message, sizeof message, "%s%s of %u bytes at global address 0x%llx%s and %s; expected %s",
             rule == proxy_fence || rule == read_only ? "" : "data race: ", noun(&a->own), a->bytes,
             (unsigned long long)address, where, earlier, rule);
    return fault_format(a->w, a->lane, message);
}

static bool report(const struct access *a, const struct trace *t, uint64_t address, const char *rule) {
    const struct fault_text text = format(a, t, address, rule);
    fault_record(a->w->cta->launch, CUDA_ERROR_LAUNCH_FAILED, text.text);
    return false;
}

/* Return whether two strong accesses have elements of different sizes. */
static bool mixes(const struct access *a, const struct trace *t) {
    const uint32_t both = t->kind & a->own.kind, either = t->kind | a->own.kind;
    return (both & TRACE_STRONG) != 0 && (either & TRACE_BULK) == 0 && check_sizes_differ(a->w, a->own.pc, t->pc);
}

/* Return what would have ordered the two accesses. */
static const char *rule_of(const struct access *a, const struct trace *t) {
    const int both_strong = a->own.kind & t->kind & TRACE_STRONG;
    return t->clock == PENDING ? "cp.async.bulk.wait_group, without .read, by the thread that issued it, and a release "
                                 "and an acquire after it"
           : mixes(a, t)       ? "one size for both, or a release and an acquire between them"
           : t->cta == a->own.cta ? "a barrier, an mbarrier or a release and an acquire between them"
           : both_strong != 0     ? "scope .gpu or .sys for both, because .cta does not include other CTAs"
                                  : "a release and an acquire of scope .gpu or .sys between them";
}

static bool out_of_memory(const struct access *a) {
    fault_at(a->w, CUDA_ERROR_OUT_OF_MEMORY, WARP, "out of host memory");
    return false;
}

/* ---- weak reads before compare-and-swap ---------------------------------------------------------------------- */

/* Return whether the accesses are a weak read and an atomic operation. The read may only guess the operand of a
 * compare-and-swap. */
static bool may_be_guess(const struct access *a, const struct trace *t) {
    enum { ATOMIC = TRACE_WRITE | TRACE_STRONG };
    const struct trace *read = a->own.kind != 0 ? t : &a->own, *other = read == t ? &a->own : t;
    return read->kind == 0 && (other->kind & ATOMIC) == ATOMIC && (other->kind & TRACE_BULK) == 0;
}

/* Save the report until the reading warp has executed a compare-and-swap or ended. Return false if too many are
 * saved. */
static bool suspect(const struct access *a, const struct trace *t, uint64_t cell, uint32_t mask) {
    struct world *world = a->world;
    const struct trace *read = a->own.kind != 0 ? t : &a->own;
    for (uint32_t k = 0; k < world->suspicions; ++k) {
        const struct suspicion *x = &world->suspicion[k];
        if (x->cta == read->cta && x->warp == read->agent && x->cell == cell && (mask & ~x->mask) == 0) {
            return true;
        }
    }
    if (world->suspicion == NULL) {
        world->suspicion = calloc(SUSPICIONS, sizeof *world->suspicion);
    }
    if (world->suspicion == NULL || world->suspicions == SUSPICIONS) {
        return false;
    }
    world->suspicion[world->suspicions++] =
        (struct suspicion){read->cta, read->agent, cell, mask, format(a, t, cell + lowest_bit(mask), rule_of(a, t))};
    return true;
}

/* Drop the saved reports of a warp's reads here: it executes a compare-and-swap, so the reads were guesses. */
static void clear_suspicion(const struct access *a, uint64_t cell, uint32_t mask) {
    struct world *world = a->world;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < world->suspicions; ++k) {
        const struct suspicion *x = &world->suspicion[k];
        if (x->cta != a->own.cta || x->warp != a->own.agent || x->cell != cell || (x->mask & mask) == 0) {
            world->suspicion[kept++] = *x;
        }
    }
    world->suspicions = kept;
}

/* Report the first saved report of a CTA that has ended. */
void world_end(const struct cta *cta) {
    const struct world *world = cta->shadow->world;
    for (uint32_t k = 0; k < world->suspicions; ++k) {
        if (world->suspicion[k].cta == (uint32_t)cta->linear) {
            fault_record(cta->launch, CUDA_ERROR_LAUNCH_FAILED, world->suspicion[k].text.text);
            return;
        }
    }
}

/* ---- traces -------------------------------------------------------------------------------------------------- */

static bool ordered(const struct access *a, const struct trace *t) {
    if (t->cta == a->own.cta) {
        return t->clock <= a->mine->seen[t->agent];
    }
    return far_knows(a->world, a->mine->far.known, t->cta, t->agent, t->clock);
}

/* Return whether one access is a load .nc and the other writes: the bytes must stay the same in the whole launch. */
static bool breaks_promise(const struct access *a, const struct trace *t) {
    return (((t->kind & TRACE_NC) != 0 && (a->own.kind & TRACE_WRITE) != 0) ||
            ((a->own.kind & TRACE_NC) != 0 && (t->kind & TRACE_WRITE) != 0));
}

/* Return whether two accesses race if they are not ordered. */
static bool conflicts(const struct access *a, const struct trace *t) {
    if (((t->kind | a->own.kind) & TRACE_WRITE) == 0) {
        return false;
    }
    const uint32_t both = t->kind & a->own.kind;
    return !((both & TRACE_STRONG) != 0 && ((both & TRACE_GPU) != 0 || t->cta == a->own.cta)) || mixes(a, t);
}

/* Return whether a proxy fence covers the generic proxy's write, if the other access is by the asynchronous proxy. */
static bool is_proxied(const struct access *a, const struct trace *t) {
    return (a->own.kind & TRACE_BULK) == 0 || (t->kind & TRACE_BULK) != 0 || (t->kind & TRACE_WRITE) == 0 ||
           far_knows(a->world, a->mine->far.proxied, t->cta, t->agent, t->clock);
}

/* Return whether a store writes the values that are already there. */
static bool is_same_value(const struct access *a, uint64_t cell) {
    return a->store != NULL &&
           check_same_value(a->w, a->store, a->place, a->mask, a->bytes, (const uint8_t *)(uintptr_t)cell, CELL);
}

/* Return whether a bulk store copies what a pending one of this CTA copies there, from the same source. */
static bool is_repeated(const struct access *a, const struct trace *t, uint64_t address) {
    return a->bulk != NULL && t->cta == a->own.cta && (t->kind & TRACE_STRONG) == 0 &&
           check_bulk_repeats(a->w, a->bulk, t->agent, t->pc, address);
}

/* Compare an access with one earlier access to the same bytes. Return false after a fault. */
static bool meet(const struct access *a, struct trace *t, uint64_t cell, uint32_t mask) {
    const uint32_t common = t->mask & mask;
    const uint64_t address = cell + lowest_bit(common);
    if (a->swaps && t->kind == 0 && t->cta == a->own.cta && t->agent == a->own.agent) {
        t->mask &= (uint16_t)~mask; /* the earlier read was a guess */
    }
    const bool is_ordered = ordered(a, t);
    if (UNLIKELY(breaks_promise(a, t)) && !is_same_value(a, cell)) {
        return report(a, t, address, read_only);
    }
    if (!is_ordered && conflicts(a, t)) {
        const bool harmless =
            (t->kind & TRACE_WRITE) != 0 && (t->clock == PENDING ? is_repeated(a, t, address) : is_same_value(a, cell));
        if (!harmless && !(may_be_guess(a, t) && suspect(a, t, cell, common))) {
            return report(a, t, address, rule_of(a, t));
        }
    }
    if (is_ordered && UNLIKELY(!is_proxied(a, t))) {
        return report(a, t, address, proxy_fence);
    }
    /* Drop the earlier trace if this one covers it: every later access that conflicts with the earlier one then
     * conflicts with this one, and every access ordered after this one is ordered after the earlier one. That holds for
     * two atomic operations, of which the later one reads what the earlier one wrote (the observation order of PTX). */
    const bool is_weak = (a->own.kind & TRACE_STRONG) == 0;
    const bool covers =
        is_weak ? (a->own.kind & TRACE_WRITE) != 0 || (t->kind & TRACE_WRITE) == 0 : a->own.kind == t->kind;
    const bool kept = (t->kind & TRACE_NC) != 0 && (a->own.kind & TRACE_NC) == 0;
    const bool observes = (a->own.kind & TRACE_ATOMIC) != 0 && covers && !conflicts(a, t);
    if (covers && !kept && (is_ordered || observes || (is_weak && (a->own.kind & TRACE_WRITE) != 0))) {
        t->mask &= (uint16_t)~mask;
    }
    return true;
}

/* Merge this access into an earlier trace if possible. Return whether it was merged. */
static bool absorb(const struct access *a, struct trace *t, uint32_t mask) {
    if (t->cta != a->own.cta || t->agent != a->own.agent || t->kind != a->own.kind) {
        return false;
    }
    if ((t->mask != mask && t->clock != a->own.clock) || (t->clock == PENDING && t->pc != a->own.pc)) {
        return false;
    }
    t->clock = a->own.clock;
    t->pc = a->own.pc;
    t->mask |= (uint16_t)mask;
    return true;
}

/* Return the index of a free trace record; 0 when out of memory. */
static uint32_t take_more(struct world *world) {
    uint32_t k = world->free_more;
    if (k != 0) {
        world->free_more = world->more[k].next;
        return k;
    }
    if (world->mores >= world->more_space) {
        const uint32_t space = world->more_space != 0 ? 2 * world->more_space : 1024;
        struct more *grown = realloc(world->more, space * sizeof *grown);
        if (grown == NULL) {
            return 0;
        }
        world->more = grown;
        world->more_space = space;
    }
    return world->mores++;
}

/* Add a trace beyond the first two. If the list is full, replace one that the seed chooses. */
static bool add_more(struct world *world, struct page *page, uint32_t n, const struct trace *value) {
    uint32_t count = 0, last = 0;
    for (uint32_t k = page->more[n]; k != 0; k = world->more[k].next, ++count) {
        last = k;
    }
    if (count >= MOST_MORE) {
        world->random = world->random * 6364136223846793005u + 1442695040888963407u;
        uint32_t k = page->more[n];
        for (uint32_t skip = (uint32_t)(world->random >> 33) % count; skip != 0; --skip) {
            k = world->more[k].next;
        }
        world->more[k].trace = *value;
        return true;
    }
    const uint32_t k = take_more(world);
    if (k == 0) {
        return false;
    }
    world->more[k] = (struct more){*value, 0};
    if (last != 0) {
        world->more[last].next = k;
    } else {
        page->more[n] = k;
    }
    return true;
}

/* Check an access to bytes of one cell and record its trace. Return false after a fault. */
static bool touch(const struct access *a, uint64_t cell, uint32_t mask) {
    struct world *world = a->world;
    struct page *page = page_of(world, cell);
    if (page == NULL) {
        return out_of_memory(a);
    }
    const uint32_t n = (uint32_t)(cell % PAGE / CELL);
    struct trace *empty = NULL;
    bool absorbed = false;
    if (UNLIKELY(a->swaps && world->suspicions)) {
        clear_suspicion(a, cell, mask);
    }
    for (uint32_t k = 0; k < INLINE; ++k) {
        struct trace *t = &page->trace[n][k];
        if ((t->mask & mask) != 0 && !meet(a, t, cell, mask)) {
            return false;
        }
        if (t->mask != 0 && !absorbed) {
            absorbed = absorb(a, t, mask);
        }
        if (t->mask == 0) {
            empty = t;
        }
    }
    for (uint32_t *link = &page->more[n], k; (k = *link) != 0;) {
        struct trace *t = &world->more[k].trace;
        if ((t->mask & mask) != 0 && !meet(a, t, cell, mask)) {
            return false;
        }
        if (t->mask != 0 && !absorbed) {
            absorbed = absorb(a, t, mask);
        }
        if (t->mask != 0) {
            link = &world->more[k].next;
            continue;
        }
        *link = world->more[k].next;
        world->more[k].next = world->free_more;
        world->free_more = k;
    }
    if (absorbed) {
        return true;
    }
    struct trace value = a->own;
    value.mask = (uint16_t)mask;
    if (empty != NULL) {
        *empty = value;
        return true;
    }
    return add_more(world, page, n, &value) ? true : out_of_memory(a);
}

/* Return the bytes of a range that lie in the cell at `cell`. */
static uint32_t mask_in(uint64_t cell, uint64_t first, uint64_t end) {
    const uint32_t from = first > cell ? (uint32_t)(first - cell) : 0,
                   to = end - cell < CELL ? (uint32_t)(end - cell) : CELL;
    return ((1u << to) - 1) & ~((1u << from) - 1);
}

/* Check an access to a range and record its traces. Return false after a fault. */
static bool range(const struct access *a, uint64_t first, uint64_t bytes) {
    const uint64_t end = first + bytes;
    for (uint64_t cell = first / CELL * CELL; cell < end; cell += CELL) {
        if (!touch(a, cell, mask_in(cell, first, end))) {
            return false;
        }
    }
    return true;
}

/* ---- accesses ------------------------------------------------------------------------------------------------ */

static struct access access_of(struct warp *w, uint32_t bytes, uint32_t lane, uint32_t kind) {
    struct shadow *s = w->cta->shadow;
    const struct clocks *mine = &s->warp[w->index];
    return (struct access){.w = w,
                           .world = s->world,
                           .mine = mine,
                           .own = {.cta = (uint32_t)w->cta->linear,
                                   .clock = mine->seen[w->index],
                                   .pc = w->pc,
                                   .agent = (uint8_t)w->index,
                                   .kind = (uint8_t)kind},
                           .lane = lane,
                           .bytes = bytes};
}

/* Return whether the place of a generic access is in global memory. */
bool check_is_global(const struct warp *w, const uint8_t *place) {
    const struct cta *cta = w->cta;
    const uint64_t own = (uintptr_t)place - (uintptr_t)cta->memory;
    const uint64_t parameter = (uintptr_t)place - (uintptr_t)cta->launch->parameters;
    return own >= cta->used_bytes && parameter >= w->function->parameter_bytes + 16u;
}

static uint32_t kind_of(const struct inst *i, bool is_write) {
    return (is_write                              ? TRACE_WRITE
            : (i->flags & ADDRESS_READ_ONLY) != 0 ? TRACE_NC
                                                  : 0u) |
           (i->q != ORDER_WEAK ? TRACE_STRONG | (i->r != 0 ? 0u : TRACE_GPU) : 0u);
}

/* Check a load or store of all lanes. Adjacent lanes with adjacent addresses are checked as one access. */
bool world_access(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, uint32_t bytes,
                  bool is_write) {
    struct access a = access_of(w, bytes, 0, kind_of(i, is_write));
    a.store = is_write ? i : NULL;
    a.place = place;
    a.mask = mask;
    for (uint32_t rest = mask; rest != 0;) {
        a.lane = lowest_bit(rest);
        const uint64_t start = (uintptr_t)place[a.lane];
        uint64_t end = start + bytes;
        for (rest &= rest - 1; rest != 0; rest &= rest - 1) {
            const uint64_t next = (uintptr_t)place[lowest_bit(rest)];
            if (next == end) {
                end += bytes;
            } else if (next != start || end != start + bytes) {
                break;
            }
        }
        if (i->space == SPACE_GENERIC && !check_is_global(w, place[a.lane])) {
            continue;
        }
        if (!range(&a, start, end - start)) {
            return false;
        }
    }
    return !a.world->is_full || out_of_memory(&a);
}

/* Check an atomic access of one lane. */
bool world_atomic(struct warp *w, const struct inst *i, const uint8_t *place, uint32_t bytes, uint32_t lane) {
    struct access a =
        access_of(w, bytes, lane, TRACE_WRITE | TRACE_STRONG | TRACE_ATOMIC | (i->r != 0 ? 0u : TRACE_GPU));
    a.swaps = i->kind == ATOMIC_CAS;
    if (i->space == SPACE_GENERIC && !check_is_global(w, place)) {
        return true;
    }
    return range(&a, (uintptr_t)place, bytes) && (!a.world->is_full || out_of_memory(&a));
}

/* Check a bulk operation when it is issued. A load ends with the phase of its mbarrier, at the agent's clock. A
 * store or reduction is pending until its thread has waited for it. */
bool world_bulk(struct warp *w, const struct async_op *op, uint32_t agent, uint32_t clock) {
    const bool loads = op->kind == ASYNC_LOAD;
    struct access a =
        access_of(w, op->bytes, op->lane,
                  TRACE_BULK | (loads ? 0u : TRACE_WRITE) | (op->kind == ASYNC_REDUCE ? TRACE_STRONG | TRACE_GPU : 0u));
    a.own.agent = (uint8_t)(loads ? agent : w->index);
    a.own.clock = loads ? clock : PENDING;
    a.bulk = op->kind == ASYNC_STORE ? op : NULL;
    return range(&a, op->global, op->bytes);
}

/* Check the read of one lane of a cp.async. */
bool world_copy(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane, uint32_t number) {
    struct access a = access_of(w, bytes, lane, TRACE_COPY);
    a.own.agent = (uint8_t)(AGENT_COPY + w->index);
    a.own.clock = number;
    return range(&a, address, bytes);
}

/* Check a discard, which counts as a write of an unknown value. */
bool world_discard(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane) {
    const struct access a = access_of(w, bytes, lane, TRACE_WRITE);
    return range(&a, address, bytes);
}

/* Set the clock of a pending trace. */
static void end_pending(struct trace *t, const struct trace *own) {
    if (t->mask != 0 && t->clock == PENDING && t->cta == own->cta && t->agent == own->agent && t->pc == own->pc) {
        t->clock = own->clock;
    }
}

/* Record that a bulk store or reduction of this warp, issued at `pc`, has written its bytes. */
void world_written(struct warp *w, uint64_t address, uint32_t bytes, uint32_t pc) {
    struct access a = access_of(w, bytes, 0, 0);
    a.own.pc = pc;
    for (uint64_t cell = address / CELL * CELL; cell < address + bytes; cell += CELL) {
        struct page *page = page_of(a.world, cell);
        const uint32_t n = (uint32_t)(cell % PAGE / CELL);
        for (uint32_t k = 0; page != NULL && k < INLINE; ++k) {
            end_pending(&page->trace[n][k], &a.own);
        }
        for (uint32_t k = page != NULL ? page->more[n] : 0; k != 0; k = a.world->more[k].next) {
            end_pending(&a.world->more[k].trace, &a.own);
        }
    }
}
