/* Reuse of global memory, as reuse.h says: a hash table of lines for each launch. */
#include "vm/observe/reuse.h"

#include <stdlib.h>

#include "platform/thread.h"
#include "vm/machine/arena.h"
#include "vm/machine/base.h"
#include "vm/machine/types.h"

enum { SECTOR = 32, LINE = 128, SECTORS = LINE / SECTOR, FIRST_ROOM = 1024 };

/* Touches of a line by an instruction at distances of one power of two. */
struct again {
    struct again *next;
    uint32_t pc, power;
    uint64_t sectors, distances; /* distances: their sum, in sectors of the warp */
};

struct line {
    uint64_t number, cta; /* cta: the one that touched it last, to which what follows belongs */
    struct again *again;
    uint32_t last[SECTORS]; /* clock after the latest touch of each sector; 0: never touched */
    uint8_t warp[SECTORS];  /* that touched each sector last */
    uint32_t moved;         /* sectors, as often as the CTA moves them */
    bool is_used, is_shared;
    bool is_added; /* by whichever CTA */
};

struct reuse {
    struct mutex lock; /* protects the members below */
    struct line *lines;
    size_t room, used; /* room: a power of two */
    struct arena arena;
    uint64_t longest; /* sum over CTAs of the clock of the fastest warp */
    bool is_exhausted;
};

struct reuse *reuse_open(void) {
    struct reuse *const reuse = calloc(1, sizeof *reuse);
    struct line *const lines = calloc(FIRST_ROOM, sizeof *lines);
    if (reuse == NULL || lines == NULL) {
        free(reuse);
        free(lines);
        return NULL;
    }
    reuse->lines = lines;
    reuse->room = FIRST_ROOM;
    mutex_init(&reuse->lock);
    return reuse;
}

void reuse_close(struct reuse *reuse) {
    if (reuse == NULL) {
        return;
    }
    mutex_destroy(&reuse->lock);
    arena_free(&reuse->arena);
    free(reuse->lines);
    free(reuse);
}

void reuse_start(struct cta *cta) {
    cta->touched = 0;
    for (uint32_t k = 0; k < cta->warps; ++k) {
        cta->warp[k].touched = 0;
    }
}

/* Return the place of a line: the one that holds it, else an unused one. */
static struct line *place(struct line *lines, size_t room, uint64_t number) {
    size_t at = (size_t)(number * 0x9e3779b97f4a7c15u >> 20) & (room - 1);
    while (lines[at].is_used && lines[at].number != number) {
        at = (at + 1) & (room - 1);
    }
    return &lines[at];
}

/* Double the room. Return false when out of memory. */
static bool grow(struct reuse *reuse) {
    struct line *const lines = calloc(2 * reuse->room, sizeof *lines);
    if (lines == NULL) {
        return false;
    }
    for (size_t k = 0; k < reuse->room; ++k) {
        if (reuse->lines[k].is_used) {
            *place(lines, 2 * reuse->room, reuse->lines[k].number) = reuse->lines[k];
        }
    }
    free(reuse->lines);
    reuse->lines = lines;
    reuse->room *= 2;
    return true;
}

/* Return a line for a touch by a CTA. NULL when out of memory. */
static struct line *find(struct reuse *reuse, uint64_t number, uint64_t cta) {
    if (4 * reuse->used >= 3 * reuse->room && !grow(reuse)) {
        return NULL;
    }
    struct line *const line = place(reuse->lines, reuse->room, number);
    if (!line->is_used) {
        ++reuse->used;
        *line = (struct line){.number = number, .cta = cta, .is_used = true};
    } else if (line->cta != cta) {
        *line =
            (struct line){.number = number, .cta = cta, .is_used = true, .is_shared = true, .is_added = line->is_added};
    }
    return line;
}

/* Return the largest power of two, as an exponent, that is not above a number; 0 for 0. */
static uint32_t power_of(uint64_t number) {
    uint32_t power = 0;
    while (number >>= 1) {
        ++power;
    }
    return power;
}

/* Note a touch of a line at a distance. Return false when out of memory. */
static bool note(struct reuse *reuse, struct line *line, uint32_t pc, uint32_t distance) {
    const uint32_t power = power_of(distance);
    struct again *again = line->again;
    while (again != NULL && (again->pc != pc || again->power != power)) {
        again = again->next;
    }
    if (again == NULL) {
        again = arena_take(&reuse->arena, sizeof *again);
        if (again == NULL) {
            return false;
        }
        again->next = line->again;
        again->pc = pc;
        again->power = power;
        line->again = again;
    }
    ++again->sectors;
    again->distances += distance;
    return true;
}

/* Advance the clock of a warp. */
static void advance(struct reuse *reuse, struct warp *w) {
    if (++w->touched > w->cta->touched) {
        w->cta->touched = w->touched;
        ++reuse->longest;
    }
}

/* Touch one sector. Return false when out of memory. */
static bool touch(struct reuse *reuse, struct warp *w, uint32_t pc, uint64_t sector) {
    struct line *const line = find(reuse, sector / SECTORS, w->cta->linear);
    if (line == NULL) {
        return false;
    }
    const uint32_t k = sector % SECTORS, last = line->last[k];
    const uint32_t distance = w->touched >= last ? w->touched + 1 - last : 0; /* 0: another warp is ahead */
    const bool is_first = last == 0, is_again = !is_first && distance >= REUSE_NEAR;
    if (is_first || is_again || line->warp[k] != w->index) {
        advance(reuse, w);
    }
    line->moved += is_first || is_again;
    line->last[k] = w->touched > last ? w->touched : last;
    line->warp[k] = (uint8_t)w->index;
    return !is_again || line->is_shared || note(reuse, line, pc, distance);
}

void reuse_touch(struct reuse *reuse, struct warp *w, uint32_t pc, uint32_t mask, const uint64_t *address) {
    uint64_t sectors[WARP], before = UINT64_MAX;
    uint32_t count = 0;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint64_t sector = address[lowest_bit(rest)] / SECTOR;
        if (sector != before) {
            sectors[count++] = before = sector;
        }
    }
    mutex_lock(&reuse->lock);
    for (uint32_t k = 0; k < count && !reuse->is_exhausted; ++k) {
        reuse->is_exhausted = !touch(reuse, w, pc, sectors[k]);
    }
    mutex_unlock(&reuse->lock);
}

uint32_t reuse_add(struct reuse *reuse, const struct warp *w, uint32_t mask, const uint64_t *address) {
    uint32_t found = 0;
    mutex_lock(&reuse->lock);
    for (uint32_t rest = mask; rest != 0 && !reuse->is_exhausted; rest &= rest - 1) {
        struct line *const line = find(reuse, address[lowest_bit(rest)] / LINE, w->cta->linear);
        reuse->is_exhausted = line == NULL;
        if (line != NULL) {
            found += !line->is_added;
            line->is_added = true;
        }
    }
    mutex_unlock(&reuse->lock);
    return found;
}

bool reuse_is_exhausted(const struct reuse *reuse) {
    return reuse->is_exhausted;
}

/* Return how many sectors that no other CTA touches a CTA moves while its fastest warp touches one. */
static double own_sectors(const struct reuse *reuse, uint32_t ranks) {
    uint64_t moved = 0;
    for (size_t k = 0; k < reuse->room; ++k) {
        moved += reuse->lines[k].is_shared ? 0 : reuse->lines[k].moved;
    }
    return reuse->longest != 0 ? (double)moved / (double)reuse->longest / ranks : 0;
}

void reuse_read(const struct reuse *reuse, uint32_t ranks,
                void (*add)(void *to, uint32_t pc, uint32_t step, uint64_t sectors), void *to) {
    const double each = own_sectors(reuse, ranks);
    for (size_t k = 0; k < reuse->room; ++k) {
        const struct line *const line = &reuse->lines[k];
        for (const struct again *a = line->is_shared ? NULL : line->again; a != NULL; a = a->next) {
            const double times =
                (double)SECTOR * each * (double)a->distances / (double)a->sectors / (double)REUSE_LEAST;
            const uint32_t step = power_of((uint64_t)(times * times));
            add(to, a->pc, step < REUSE_STEPS ? step : REUSE_STEPS - 1, a->sectors);
        }
    }
}
