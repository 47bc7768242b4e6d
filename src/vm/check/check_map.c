/* Checks tensor maps in global memory. Copies read them through the tensormap proxy, which sees writes of the
 * generic proxy only after a fence. */
#include <stdlib.h>

#include "vm/check/check.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/types.h"

/* Return the state of the map at an address, creating it if needed. NULL after a fault. */
static struct map_shadow *map_at(struct warp *w, uint64_t address) {
    struct shadow *s = w->cta->shadow;
    for (uint32_t k = 0; k < s->maps; ++k) {
        if (s->map[k].address == address) {
            return &s->map[k];
        }
    }
    if (s->maps == s->map_space) {
        const uint32_t space = s->map_space != 0 ? 2 * s->map_space : 8;
        struct map_shadow *grown = realloc(s->map, space * sizeof *grown);
        if (grown == NULL) {
            fault_at(w, CUDA_ERROR_OUT_OF_MEMORY, WARP, "out of memory");
            return NULL;
        }
        s->map = grown;
        s->map_space = space;
    }
    struct map_shadow *map = &s->map[s->maps++];
    *map = (struct map_shadow){.address = address};
    return map;
}

/* Record that a warp changes a map, which invalidates earlier acquires. Return false after a fault. */
bool check_map_changed(struct warp *w, uint64_t address, bool is_released) {
    struct clocks *mine = &w->cta->shadow->warp[w->index];
    struct map_shadow *map = map_at(w, address);
    if (map == NULL) {
        return false;
    }
    const uint32_t clock = mine->seen[w->index];
    *map = (struct map_shadow){.address = address,
                               .changed_by = w->index,
                               .changed = clock,
                               .changed_pc = w->pc,
                               .released = is_released ? clock : 0};
    return true;
}

/* Record a release of the maps that a warp has changed. */
void check_map_released(struct warp *w) {
    struct shadow *s = w->cta->shadow;
    for (uint32_t k = 0; k < s->maps; ++k) {
        if (s->map[k].changed != 0 && s->map[k].changed_by == w->index) {
            s->map[k].released = s->warp[w->index].seen[w->index];
        }
    }
}

/* Record that a warp acquires a map: it sees all released changes that it is ordered after. Return false after a
 * fault. */
bool check_map_acquired(struct warp *w, uint64_t address) {
    const struct clocks *mine = &w->cta->shadow->warp[w->index];
    struct map_shadow *map = map_at(w, address);
    if (map == NULL) {
        return false;
    }
    const bool is_ordered = map->changed == 0 || (map->released != 0 && map->released <= mine->seen[map->changed_by]);
    if (is_ordered) {
        map->acquired[w->index] = mine->seen[w->index];
    }
    return true;
}

/* Check that a copy's read of a map is ordered after an acquire fence. Return false after a fault. */
bool check_map_used(struct warp *w, uint64_t address, uint32_t lane) {
    const struct clocks *mine = &w->cta->shadow->warp[w->index];
    const struct map_shadow *map = map_at(w, address);
    const unsigned long long shown = address;
    if (map == NULL) {
        return false;
    }
    for (uint32_t k = 0; k < MAX_WARPS; ++k) {
        if (map->acquired[k] != 0 && map->acquired[k] <= mine->seen[k]) {
            return true;
        }
    }
    if (map->changed == 0) {
        fault_at(
            w, CUDA_ERROR_LAUNCH_FAILED, lane,
            "the tensor map at global address 0x%llx is read through the tensormap proxy; expected "
            "fence.proxy.tensormap::generic.acquire [map], 128 first, in this thread or in a thread ordered before it",
            shown);
        return false;
    }
    const struct spot at = check_spot(w, map->changed_pc);
    fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
             "the tensor map at global address 0x%llx, which %s changed at %s; expected "
             "%sfence.proxy.tensormap::generic.acquire [map], 128 before this copy",
             shown, check_warp(w, map->changed_by).text, at.text,
             map->released != 0 ? "" : "fence.proxy.tensormap::generic.release after the change and ");
    return false;
}
