/* Knowledge between CTAs (level full): maps from CTAs to clocks. A map is immutable, so that thousands of warps
 * share most of their nodes. It is a tree with 16 branches per node; the leaves hold the clocks of one CTA.
 * Unreferenced nodes are freed when there are many. */
#include <stdlib.h>
#include <string.h>

#include "vm/check/check.h"
#include "vm/check/check_global.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/types.h"

enum { BRANCHES = 16, BITS = 4 };
enum { SWEEP_AT = 1 << 26 };

/* Common part of branches and leaves. The level in the tree tells which one a node is. */
struct node {
    struct node *next; /* in the list of all nodes */
    uint32_t mark;
    uint32_t count; /* number of clocks of a leaf; further clocks are 0 */
};
struct branch {
    struct node node;
    const struct node *child[BRANCHES];
};
struct leaf {
    struct node node;
    uint32_t clock[];
};

/* ---- nodes --------------------------------------------------------------------------------------------------- */

static const uint32_t *clocks_of(const struct node *leaf) {
    return ((const struct leaf *)(const void *)leaf)->clock;
}

static const struct node *const *children_of(const struct node *branch) {
    return ((const struct branch *)(const void *)branch)->child;
}

/* Add a new node to the list, if its allocation succeeded. */
static void keep(struct world *world, struct node *n, size_t bytes) {
    if (n == NULL) {
        world->is_full = true;
        return;
    }
    n->next = world->nodes;
    world->nodes = n;
    world->node_bytes += bytes;
}

static struct branch *make_branch(struct world *world) {
    struct branch *n = calloc(1, sizeof *n);
    keep(world, n != NULL ? &n->node : NULL, sizeof *n);
    return n;
}

static struct leaf *make_leaf(struct world *world, const uint32_t *clock, uint32_t count) {
    const size_t bytes = sizeof(struct leaf) + count * sizeof *clock;
    struct leaf *n = calloc(1, bytes);
    keep(world, n != NULL ? &n->node : NULL, bytes);
    if (n != NULL) {
        n->node.count = count;
        memcpy(n->clock, clock, count * sizeof *clock);
    }
    return n;
}

/* Return the leaf that includes all clocks of the other, or NULL. */
static const struct node *covering(const struct node *a, const struct node *b) {
    const uint32_t *x = clocks_of(a), *y = clocks_of(b);
    bool a_covers = a->count >= b->count, b_covers = b->count >= a->count;
    for (uint32_t k = 0; k < a->count && k < b->count; ++k) {
        a_covers &= x[k] >= y[k];
        b_covers &= y[k] >= x[k];
    }
    return a_covers ? a : b_covers ? b : NULL;
}

static const struct node *join_leaves(struct world *world, const struct node *a, const struct node *b) {
    const struct node *covers = covering(a, b);
    if (covers != NULL) {
        return covers;
    }
    const struct node *longer = a->count >= b->count ? a : b, *other = longer == a ? b : a;
    struct leaf *n = make_leaf(world, clocks_of(longer), longer->count);
    if (n == NULL) {
        return a;
    }
    for (uint32_t k = 0; k < other->count; ++k) {
        n->clock[k] = n->clock[k] > clocks_of(other)[k] ? n->clock[k] : clocks_of(other)[k];
    }
    return &n->node;
}

/* Return the union of two maps. Equal parts are shared. */
static const struct node *join_maps(struct world *world, const struct node *a, const struct node *b, uint32_t level) {
    if (a == b || b == NULL) {
        return a;
    }
    if (a == NULL) {
        return b;
    }
    if (level == 0) {
        return join_leaves(world, a, b);
    }
    struct joined *memo =
        &world->joined[((uintptr_t)a >> 4 ^ (uintptr_t)b >> 9) * 0x9e3779b97f4a7c15u >> (64 - JOINED_BITS)];
    if (memo->a == a && memo->b == b) {
        return memo->both;
    }
    const struct node *child[BRANCHES];
    bool is_a = true, is_b = true;
    for (uint32_t k = 0; k < BRANCHES; ++k) {
        child[k] = join_maps(world, children_of(a)[k], children_of(b)[k], level - 1);
        is_a &= child[k] == children_of(a)[k];
        is_b &= child[k] == children_of(b)[k];
    }
    struct branch *n = is_a || is_b ? NULL : make_branch(world);
    if (n != NULL) {
        memcpy(n->child, child, sizeof child);
    }
    *memo = (struct joined){a, b, n != NULL ? &n->node : is_b ? b : a};
    return memo->both;
}

static uint32_t branch_of(uint32_t cta, uint32_t level) {
    return cta >> BITS * (level - 1) & (BRANCHES - 1);
}

/* Return a map with one CTA's clocks replaced. */
static const struct node *with(struct world *world, const struct node *map, uint32_t level, uint32_t cta,
                               const struct node *leaf) {
    if (level == 0) {
        return leaf;
    }
    struct branch *n = make_branch(world);
    if (n == NULL) {
        return map;
    }
    if (map != NULL) {
        memcpy(n->child, children_of(map), sizeof n->child);
    }
    const uint32_t k = branch_of(cta, level);
    n->child[k] = with(world, n->child[k], level - 1, cta, leaf);
    return &n->node;
}

static const struct node *find(const struct world *world, const struct node *map, uint32_t cta) {
    for (uint32_t level = world->levels; map != NULL && level != 0; --level) {
        map = children_of(map)[branch_of(cta, level)];
    }
    return map;
}

/* Return whether a map includes this clock of an agent of a CTA. */
bool far_knows(struct world *world, const struct node *map, uint32_t cta, uint32_t agent, uint32_t clock) {
    if (world->found_in != map || world->found_cta != cta) {
        world->found_in = map;
        world->found_cta = cta;
        world->found = find(world, map, cta);
    }
    return world->found != NULL && agent < world->found->count && clock <= clocks_of(world->found)[agent];
}

/* ---- synchronisation ----------------------------------------------------------------------------------------- */

/* to |= from */
void far_join(struct world *world, struct far *to, const struct far *from) {
    to->known = join_maps(world, to->known, from->known, world->levels);
    to->proxied = join_maps(world, to->proxied, from->proxied, world->levels);
}

/* Return everything that a warp knows, including its own CTA. */
static const struct node *everything(struct warp *w, struct world *world) {
    const struct clocks *mine = &w->cta->shadow->warp[w->index];
    uint32_t count = AGENTS;
    while (count > 1 && mine->seen[count - 1] == 0) {
        --count;
    }
    const struct leaf *leaf = make_leaf(world, mine->seen, count);
    return with(world, mine->far.known, world->levels, (uint32_t)w->cta->linear, leaf != NULL ? &leaf->node : NULL);
}

/* Learn what a map says. It may include the warp's own CTA, through another CTA. */
static void learn(struct warp *w, struct world *world, const struct far *from) {
    struct clocks *mine = &w->cta->shadow->warp[w->index];
    far_join(world, &mine->far, from);
    const struct node *own = find(world, from->known, (uint32_t)w->cta->linear);
    for (uint32_t k = 0; own != NULL && k < own->count; ++k) {
        mine->seen[k] = mine->seen[k] > clocks_of(own)[k] ? mine->seen[k] : clocks_of(own)[k];
    }
}

/* Record a fence of GPU scope, before the clock advances: what relaxed reads have found becomes known, and what is
 * known is passed on by later relaxed writes. */
void far_fence(struct warp *w) {
    struct shadow *s = w->cta->shadow;
    struct clocks *mine = &s->warp[w->index];
    learn(w, s->world, &mine->found);
    mine->found = (struct far){0};
    mine->fenced = (struct far){everything(w, s->world), mine->far.proxied};
}

/* Record a proxy fence between the generic and the asynchronous proxy in global memory. */
void far_proxy_fence(struct warp *w) {
    struct shadow *s = w->cta->shadow;
    s->warp[w->index].far.proxied = everything(w, s->world);
}

/* Return the table entry of a memory location. NULL when out of memory, or if it has no entry and `add` is false. */
static struct far *location(struct world *world, uintptr_t key, bool add) {
    if (2 * (world->locations + 1) > world->location_space) {
        const size_t space = world->location_space != 0 ? 2 * world->location_space : 256;
        struct far_location *grown = calloc(space, sizeof *grown);
        if (grown == NULL) {
            world->is_full = true;
            return NULL;
        }
        for (size_t k = 0; k < world->location_space; ++k) {
            if (world->location[k].key == 0) {
                continue;
            }
            size_t at = world->location[k].key * 0x9e3779b97f4a7c15u >> 20 & (space - 1);
            while (grown[at].key != 0) {
                at = (at + 1) & (space - 1);
            }
            grown[at] = world->location[k];
        }
        free(world->location);
        world->location = grown;
        world->location_space = space;
    }
    size_t at = key * 0x9e3779b97f4a7c15u >> 20 & (world->location_space - 1);
    while (world->location[at].key != 0 && world->location[at].key != key) {
        at = (at + 1) & (world->location_space - 1);
    }
    if (world->location[at].key == 0) {
        if (!add) {
            return NULL;
        }
        world->location[at].key = key;
        ++world->locations;
    }
    return &world->location[at].far;
}

/* Record a strong access of GPU scope to a location in global memory, before the clock advances. */
void far_ordered(struct warp *w, const void *place, uint32_t order, bool is_read, bool is_write) {
    struct shadow *s = w->cta->shadow;
    struct world *world = s->world;
    struct clocks *mine = &s->warp[w->index];
    struct far *at = location(world, (uintptr_t)place, false);
    if (is_read && at != NULL && (order == ORDER_ACQUIRE || order == ORDER_ACQ_REL)) {
        learn(w, world, at);
    } else if (is_read && at != NULL) {
        far_join(world, &mine->found, at);
    }
    if (!is_write) {
        return;
    }
    if (at != NULL && !is_read) {
        *at = (struct far){0}; /* a store ends the release sequence; an atomic operation continues it */
    }
    const bool releases = order == ORDER_RELEASE || order == ORDER_ACQ_REL;
    const struct far out = releases ? (struct far){everything(w, world), mine->far.proxied} : mine->fenced;
    if (out.known != NULL && (at != NULL || (at = location(world, (uintptr_t)place, true)) != NULL)) {
        far_join(world, at, &out);
    }
}

/* ---- garbage collection -------------------------------------------------------------------------------------- */

static void mark(const struct node *n, uint32_t level, uint32_t number) {
    struct node *node = (struct node *)(uintptr_t)n;
    if (node == NULL || node->mark == number) {
        return;
    }
    node->mark = number;
    for (uint32_t k = 0; level != 0 && k < BRANCHES; ++k) {
        mark(children_of(n)[k], level - 1, number);
    }
}

static void mark_far(const struct world *world, const struct far *far) {
    mark(far->known, world->levels, world->sweeps);
    mark(far->proxied, world->levels, world->sweeps);
}

static void mark_clocks(const struct world *world, const struct clocks *clocks) {
    mark_far(world, &clocks->far);
    mark_far(world, &clocks->fenced);
    mark_far(world, &clocks->found);
}

/* Mark all nodes that a CTA references. */
static void mark_cta(const struct world *world, const struct cta *cta) {
    const struct shadow *s = cta->shadow;
    for (uint32_t k = 0; k < MAX_WARPS; ++k) {
        mark_clocks(world, &s->warp[k]);
        if ((s->has_released >> k & 1u) != 0) {
            mark_clocks(world, &s->released[k]);
        }
        if ((s->has_acquired >> k & 1u) != 0) {
            mark_clocks(world, &s->acquired[k]);
        }
    }
    for (uint32_t k = 0; k < cta_barriers(cta); ++k) {
        mark_clocks(world, &s->barrier[k]);
    }
    for (uint32_t k = 0; k < cta->mbarriers; ++k) {
        mark_clocks(world, &s->mbarrier[k].gathering);
        mark_clocks(world, &s->mbarrier[k].done);
    }
    for (uint32_t k = 0; k < s->locations; ++k) {
        mark_clocks(world, &s->location[k].clocks);
    }
}

/* Free unreferenced nodes if there are many. */
void far_sweep(struct world *world) {
    if (world->node_bytes < world->sweep_at + SWEEP_AT) {
        return;
    }
    ++world->sweeps;
    for (uint32_t k = 0; k < world->residents; ++k) {
        mark_cta(world, world->resident[k]);
    }
    for (size_t k = 0; k < world->location_space; ++k) {
        mark_far(world, &world->location[k].far);
    }
    world->found_in = NULL;
    world->found_cta = UINT32_MAX;
    world->found = NULL;
    memset(world->joined, 0, sizeof world->joined);
    world->node_bytes = 0;
    struct node **link = &world->nodes;
    while (*link != NULL) {
        struct node *n = *link;
        if (n->mark == world->sweeps) {
            link = &n->next;
            world->node_bytes += sizeof(struct branch);
        } else {
            *link = n->next;
            free(n);
        }
    }
    world->sweep_at = world->node_bytes;
}

/* Free all nodes. */
void far_close(struct world *world) {
    for (struct node *n = world->nodes, *next; n != NULL; n = next) {
        next = n->next;
        free(n);
    }
    free(world->location);
}
