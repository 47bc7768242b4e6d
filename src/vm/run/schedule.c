/* Scheduling of CTAs. A thread runs a CTA to its end, unless the CTA only polls. Then it is set aside for others, up
 * to the number that the chip holds at once, and resumes when a polled value has changed. At level full one thread
 * runs a few CTAs in turns that the seed chooses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/aligned.h"
#include "platform/clock.h"
#include "platform/thread.h"
#include "vm/check/check.h"
#include "vm/defined/defined.h"
#include "vm/execute/poll.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/device.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/poison.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/run/run.h"

enum { ACTIVE = 4, STATES = 16, GLANCE = 16 };
/* Number of warp instructions spent on polls without an answer that count as a deadlock, even without proof. */
#define IN_VAIN (1ull << 30)

struct schedule {
    struct mutex lock; /* protects the members that are not atomic */
    struct cta *waiting, **last;
    struct cta *rooms;         /* unused CTA buffers */
    atomic_uint waits;         /* number of CTAs in the list */
    atomic_uint running;       /* number of threads that run a CTA */
    atomic_uint_fast64_t news; /* counts events that may answer a poll */
    uint64_t residency;        /* CTAs that the chip holds at once */
    uint64_t vain, vain_news;  /* instructions spent on polls since the last news */
    uint64_t looked_at;        /* value of `news` at which no poll had an answer */
    uint64_t stuck_since;      /* milliseconds; 0: no sign of a deadlock */
    unsigned stuck_calls;      /* host_calls at that time */
    uint64_t random;
    /* Alternates between a CTA with an answer and a new CTA, because the former may wait for the latter again. */
    uint32_t odd;
};

/* Return how many CTAs a multiprocessor holds: one of Hopper where an SM120 has too little shared memory. */
unsigned launch_occupancy(unsigned threads, size_t shared) {
    enum { MOST_THREADS = 1536, MOST_CTAS = 24, RESERVED = 1024 };
    const size_t room = shared > SM120_SHARED ? MAX_SHARED + RESERVED : SM120_SHARED + RESERVED;
    const unsigned by_threads = MOST_THREADS / ((threads + WARP - 1) / WARP * WARP);
    const unsigned by_shared = shared > MAX_SHARED ? 0 : (unsigned)(room / (shared + RESERVED));
    const unsigned fit = by_threads < by_shared ? by_threads : by_shared;
    return fit < MOST_CTAS ? fit : MOST_CTAS;
}

uint64_t launch_resident(const struct launch *launch) {
    return (uint64_t)launch_occupancy(launch->threads, launch->cta_shared) * launch->multiprocessors;
}

/* ---- buffers of CTAs ----------------------------------------------------------------------------------------- */

void room_free(struct cta *room) {
    if (room == NULL) {
        return;
    }
    check_free(room->kept_shadow);
    defined_free(room->defined);
    if (room->memory != NULL) {
        UNPOISON(room->memory, room->memory_bytes);
    }
    aligned_release(room->memory);
    free(room->warp);
    free(room->mbarrier);
    free(room->mbarrier_at);
    free(room->async);
    free(room->async_lanes);
    free(room->boxes);
    free(room->polls);
    free(room);
}

/* Poison the gaps between the registers, predicates, local memory and calls of the warps. */
static void poison_gaps(const struct cta *room, const struct launch *launch, size_t each) {
    const struct CUfunc_st *f = launch->function;
    const char *const shared = room->memory + launch->shared_bytes;
    POISON(shared, (size_t)(room->warp[0].registers - shared));
    for (uint32_t k = 0; k < launch->warps; ++k) {
        const struct warp *const w = &room->warp[k];
        POISON(w->registers, each);
        UNPOISON(w->registers, f->register_bytes);
        UNPOISON(w->predicates, f->predicates * sizeof *w->predicates);
        UNPOISON(w->local, (size_t)f->local_bytes * WARP);
        UNPOISON(w->calls, sizeof *w->calls * f->call_depth * WARP);
    }
}

/* Allocate and lay out registers, predicates, shared and local memory. Return false when out of memory. */
static bool lay_out(struct cta *room, const struct launch *launch) {
    const struct CUfunc_st *f = launch->function;
    const size_t registers = f->register_bytes + 64, predicates = (f->predicates + 31) / 16 * 64;
    const size_t local = (size_t)f->local_bytes * WARP + 64, shared = (launch->shared_bytes + 127u) / 64 * 64;
    const size_t calls = sizeof(struct call) * f->call_depth * WARP;
    const size_t each = (registers + predicates + local + calls + 127) / 64 * 64 + 128,
                 all = each * launch->warps + shared + 64;
    if (all > room->memory_bytes) {
        aligned_release(room->memory);
        room->memory = aligned_allocate(64, (all + 63) / 64 * 64);
        room->memory_bytes = room->memory != NULL ? all : 0;
    }
    if (room->memory == NULL) {
        return false;
    }
    UNPOISON(room->memory, room->memory_bytes);
    memset(room->memory, 0xff, all); /* reads of unwritten memory give NaN */
    room->used_bytes = all;
    room->shared = (uint8_t *)room->memory;
    char *at = room->memory + shared;
    for (uint32_t k = 0; k < launch->warps; ++k, at += each) {
        room->warp[k].registers = at;
        room->warp[k].predicates = (uint32_t *)(void *)(at + registers / 64 * 64 + 64);
        room->warp[k].local = (uint8_t *)at + registers / 64 * 64 + 64 + predicates;
        room->warp[k].calls = (struct call *)(void *)(at + each - (calls + 63) / 64 * 64);
    }
    poison_gaps(room, launch, each);
    return true;
}

/* Prepare the buffers of a CTA for a launch. Return false when out of memory. */
static bool prepare(struct cta *room, const struct launch *launch) {
    if (room->prepared_for == launch && room->prepared_number == launch->number) {
        return true;
    }
    room->prepared_for = NULL;
    if (room->warp == NULL) {
        room->warp = calloc(MAX_WARPS, sizeof *room->warp);
    }
    if (room->mbarrier_at == NULL) {
        room->mbarrier_at = calloc(MOST_SHARED / 8 + 1024, sizeof *room->mbarrier_at);
    }
    if (room->warp == NULL || room->mbarrier_at == NULL || !lay_out(room, launch)) {
        return false;
    }
    if (launch->checks != CHECKS_OFF && (room->kept_shadow = check_open(room->kept_shadow, launch)) == NULL) {
        return false;
    }
    room->prepared_for = launch;
    room->prepared_number = launch->number;
    return true;
}

/* Return unused CTA buffers. NULL when out of memory, which ends the launch. */
static struct cta *take_room(struct worker *worker, struct launch *launch) {
    struct schedule *s = launch->schedule;
    struct cta *room = worker->spare;
    worker->spare = NULL;
    if (room == NULL) {
        mutex_lock(&s->lock);
        room = s->rooms;
        s->rooms = room != NULL ? room->following : NULL;
        mutex_unlock(&s->lock);
    }
    room = room != NULL ? room : calloc(1, sizeof *room);
    if (room != NULL && prepare(room, launch)) {
        return room;
    }
    room_free(room);
    launch_out_of_memory(launch);
    return NULL;
}

/* Keep CTA buffers for later, for this thread or for any. */
static void leave_room(struct worker *worker, struct launch *launch, struct cta *room) {
    struct schedule *s = launch->schedule;
    if (launch->world != NULL) {
        world_leave(launch->world, room);
    }
    if (worker->spare == NULL) {
        worker->spare = room;
        return;
    }
    mutex_lock(&s->lock);
    room->following = s->rooms;
    s->rooms = room;
    mutex_unlock(&s->lock);
}

/* ---- waiting CTAs -------------------------------------------------------------------------------------------- */

static void append(struct schedule *s, struct cta *cta) {
    cta->following = NULL;
    *s->last = cta;
    s->last = &cta->following;
    atomic_fetch_add(&s->waits, 1);
}

/* Remove and return the CTA that a link of the list points to. */
static struct cta *unlink_at(struct schedule *s, struct cta **link) {
    struct cta *cta = *link;
    *link = cta->following;
    if (s->last == &cta->following) {
        s->last = link;
    }
    atomic_fetch_sub(&s->waits, 1);
    return cta;
}

/* Remove and return one of the first `most` CTAs whose poll has an answer. CTAs without an answer move to the end of
 * the list. Return NULL if no poll has an answer. */
static struct cta *take_answered(struct schedule *s, unsigned most) {
    const unsigned waits = atomic_load(&s->waits);
    const uint64_t news = atomic_load(&s->news);
    if (s->looked_at == news && !atomic_load(&s->running)) { /* all have been checked since the last news */
        return NULL;
    }
    for (unsigned k = 0; k < waits && k < most; ++k) {
        struct cta *cta = unlink_at(s, &s->waiting);
        if (poll_has_answer(cta)) {
            return cta;
        }
        append(s, cta);
    }
    if (most >= waits) {
        s->looked_at = news;
    }
    return NULL;
}

static uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t mix_bytes(uint64_t h, const void *memory, size_t bytes) {
    const uint8_t *at = memory;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        h = mix(h, word);
    }
    while (bytes-- != 0) {
        h = mix(h, *at++);
    }
    return h;
}

/* Return a hash of everything that determines the CTA's next steps, except memory that others write. */
static uint64_t state_of(const struct cta *cta) {
    const struct CUfunc_st *f = cta->launch->function;
    uint64_t h = mix_bytes(0, cta->shared, cta->shared_bytes);
    for (uint32_t k = 0; k < cta->warps; ++k) {
        const struct warp *w = &cta->warp[k];
        h = mix_bytes(h, w->registers, f->register_bytes);
        h = mix_bytes(h, w->predicates, f->predicates * sizeof *w->predicates);
        h = mix_bytes(h, w->local, (size_t)f->local_bytes * WARP);
        for (uint32_t n = 0; n < w->splits; ++n) {
            h = mix(mix(h, w->split[n].pc), (uint64_t)w->split[n].wait << 32 | w->split[n].mask);
        }
    }
    return h;
}

/* Record the state of a CTA that ran without an answer to its polls and waits again. If it was in this state before
 * and global memory has not changed since, it is in a cycle. */
static void note_state(struct schedule *s, struct cta *cta) {
    const uint64_t news = atomic_load(&s->news), state = state_of(cta);
    if (cta->state_news != news) {
        cta->state_news = news;
        cta->state_count = 0;
        cta->is_stuck = false;
    }
    for (uint32_t k = 0; k < cta->state_count && k < STATES; ++k) {
        cta->is_stuck |= cta->states[k] == state;
    }
    cta->states[cta->state_count++ % STATES] = state;
}

/* Return the milliseconds of a steady clock. */
static uint64_t now(void) {
    return clock_steady() / 1000000;
}

/* Return whether another host thread may still answer. The host has `patience` milliseconds, counted from its last
 * call. */
static bool host_may_answer(struct launch *launch) {
    struct schedule *s = launch->schedule;
    const unsigned calls = atomic_load(&launch->device->host_calls);
    if (s->stuck_since == 0 || s->stuck_calls != calls) {
        s->stuck_since = now();
        s->stuck_calls = calls;
    }
    if (now() - s->stuck_since >= launch->patience) {
        return false;
    }
    clock_sleep(1000000);
    return true;
}

/* Return whether all CTAs are in a cycle or have polled in vain for very long, and the host does not answer. */
static bool is_deadlock(struct launch *launch) {
    struct schedule *s = launch->schedule;
    const uint64_t news = atomic_load(&s->news);
    bool all = s->waiting != NULL;
    for (const struct cta *cta = s->waiting; cta != NULL; cta = cta->following) {
        all &= cta->is_stuck && cta->state_news == news;
    }
    if (!all && s->vain <= IN_VAIN) {
        s->stuck_since = 0;
        return false;
    }
    return !host_may_answer(launch);
}

/* Report a deadlock, with the warps of as many CTAs as fit. */
static void report_deadlock(struct launch *launch) {
    struct schedule *s = launch->schedule;
    char text[3000];
    size_t n = 0;
    const uint64_t started = atomic_load(&launch->next);
    if (started < launch->clusters) {
        n = (size_t)snprintf(
            text, sizeof text,
            "deadlock: %u CTAs are resident, as many as %u multiprocessors hold, and wait for CTAs that "
            "have not started",
            atomic_load(&s->waits), launch->multiprocessors);
    } else {
        n = (size_t)snprintf(text, sizeof text, "deadlock: all %u CTAs that have not ended wait",
                             atomic_load(&s->waits));
    }
    for (const struct cta *cta = s->waiting; cta != NULL && n + 400 < sizeof text; cta = cta->following) {
        n += (size_t)snprintf(text + n, sizeof text - n, "\n CTA %u,%u,%u:", cta->member[0].id[0], cta->member[0].id[1],
                              cta->member[0].id[2]);
        n += cta_describe(cta, text + n, sizeof text - n);
    }
    fault_cta(s->waiting, CUDA_ERROR_LAUNCH_TIMEOUT, "%s", text);
}

/* Called when no CTA runs and no poll has an answer. Return the next waiting CTA, because some waits are not polls,
 * or report a deadlock. The lock is held. */
static struct cta *take_in_vain(struct launch *launch) {
    struct schedule *s = launch->schedule;
    if (s->waiting == NULL) {
        return NULL;
    }
    if (is_deadlock(launch)) {
        report_deadlock(launch);
        return NULL;
    }
    struct cta *cta = unlink_at(s, &s->waiting);
    cta->in_vain = true;
    return cta;
}

/* After a CTA's turn, put it into its list. */
static void settle(struct worker *worker, struct launch *launch, struct cta *cta, enum outcome outcome, bool news,
                   uint64_t executed) {
    struct schedule *s = launch->schedule;
    if (news || outcome == CTA_ENDED) {
        atomic_fetch_add(&s->news, 1);
    }
    if (outcome != CTA_WAITS) {
        leave_room(worker, launch, cta);
        return;
    }
    mutex_lock(&s->lock);
    if (cta->in_vain) {
        note_state(s, cta);
    }
    if (s->vain_news != atomic_load(&s->news)) {
        s->vain_news = atomic_load(&s->news);
        s->vain = 0;
    }
    s->vain += cta->in_vain ? executed : 0;
    cta->in_vain = false;
    poll_watch(cta);
    append(s, cta);
    mutex_unlock(&s->lock);
}

/* ---- several threads ----------------------------------------------------------------------------------------- */

/* Start the CTA of a turn. Return NULL if all have been started, or when out of memory. */
static struct cta *start(struct worker *worker, struct launch *launch, uint64_t turn) {
    if (turn >= launch->clusters) {
        return NULL;
    }
    struct cta *cta = take_room(worker, launch);
    if (cta == NULL) {
        return NULL;
    }
    if (!cta_start(cta, worker, launch_cluster_at(launch, turn))) {
        leave_room(worker, launch, cta);
        return NULL;
    }
    if (launch->world == NULL || world_enter(launch->world, cta)) {
        return cta;
    }
    room_free(cta);
    launch_out_of_memory(launch);
    return NULL;
}

/* Choose a waiting CTA or a new one. Return NULL if none can run now. */
static struct cta *take_among_waiting(struct worker *worker, struct launch *launch) {
    struct schedule *s = launch->schedule;
    uint64_t turn = UINT64_MAX;
    mutex_lock(&s->lock);
    const uint64_t resident = atomic_load(&s->waits) + atomic_load(&s->running);
    const bool may_start = atomic_load(&launch->next) < launch->clusters && resident < s->residency;
    struct cta *cta = may_start && s->odd++ % 2 != 0 ? NULL : take_answered(s, may_start ? GLANCE : UINT32_MAX);
    if (cta == NULL && may_start) {
        turn = atomic_fetch_add(&launch->next, 1);
    } else if (cta == NULL && !atomic_load(&s->running)) {
        cta = take_in_vain(launch);
    }
    const int has_one = cta != NULL || turn != UINT64_MAX;
    atomic_fetch_add(&s->running, has_one); /* before another thread looks */
    mutex_unlock(&s->lock);
    if (cta != NULL || has_one == 0) {
        return cta;
    }
    cta = start(worker, launch, turn);
    atomic_fetch_sub(&s->running, !cta);
    return cta;
}

/* Return whether waiting CTAs need a thread. */
bool schedule_has_work(struct launch *launch) {
    return !atomic_load(&launch->stop) &&
           (atomic_load(&launch->next) < launch->clusters || atomic_load(&launch->schedule->waits));
}

/* Return a CTA for this thread, or NULL when no work is left for it. */
static struct cta *take(struct worker *worker, struct launch *launch) {
    struct schedule *s = launch->schedule;
    while (schedule_has_work(launch)) {
        struct cta *cta;
        if (LIKELY(!atomic_load(&s->waits))) {
            atomic_fetch_add(&s->running, 1);
            cta = start(worker, launch, atomic_fetch_add(&launch->next, 1));
            atomic_fetch_sub(&s->running, !cta);
        } else {
            cta = take_among_waiting(worker, launch);
        }
        if (cta != NULL) {
            return cta;
        }
        if (schedule_has_work(launch)) {
            clock_sleep(50000); /* other threads run CTAs, which may answer */
        }
    }
    return NULL;
}

/* ---- one thread, in the order of the seed -------------------------------------------------------------------- */

static uint64_t draw(struct schedule *s) {
    uint64_t z = s->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Fill the set of active CTAs: those with an answer, then new ones, then one that retries in vain. Return their
 * number. */
static uint32_t fill(struct worker *worker, struct launch *launch, struct cta **active, uint32_t count) {
    struct schedule *s = launch->schedule;
    while (count < ACTIVE) {
        const bool may_start =
            atomic_load(&launch->next) < launch->clusters && atomic_load(&s->waits) + count < s->residency;
        struct cta *cta = may_start && s->odd++ % 2 != 0 ? NULL : take_answered(s, may_start ? GLANCE : UINT32_MAX);
        if (cta == NULL && may_start) {
            cta = start(worker, launch, atomic_fetch_add(&launch->next, 1));
        }
        if (cta == NULL && count == 0) {
            cta = take_in_vain(launch);
        }
        if (cta == NULL || atomic_load(&launch->stop)) {
            break;
        }
        active[count++] = cta;
    }
    return count;
}

/* Run all CTAs of a launch, a few at a time, in turns. */
static void run_in_turns(struct worker *worker, struct launch *launch) {
    struct schedule *s = launch->schedule;
    struct cta *active[ACTIVE];
    uint32_t count = 0;
    while (!atomic_load(&launch->stop) && (count = fill(worker, launch, active, count)) != 0) {
        const uint32_t k = (uint32_t)(draw(s) % count);
        const uint64_t changes = poll_changes(worker), executed = active[k]->executed;
        const enum outcome outcome = cta_run(active[k], worker, 1 + (uint32_t)(draw(s) % 4));
        const bool news = poll_changes(worker) != changes;
        if (outcome == CTA_TURN) {
            if (news) {
                atomic_fetch_add(&s->news, 1);
            }
            continue;
        }
        struct cta *cta = active[k];
        active[k] = active[--count];
        settle(worker, launch, cta, outcome, news, cta->executed - executed);
    }
    while (count != 0) {
        leave_room(worker, launch, active[--count]);
    }
}

/* ---- the CTAs of some multiprocessors, for a profile --------------------------------------------------------- */

/* Run the CTAs of a multiprocessor: as many at once as are resident, one turn of their warps after the other. The next
 * one begins when one has ended. */
static void run_multiprocessor(struct worker *worker, struct launch *launch, uint32_t number) {
    enum { FRUITLESS_ROUNDS = 64 };
    struct cta *active[LAUNCH_MOST_RESIDENT];
    uint32_t count = 0, fruitless = 0;
    uint64_t next = number;
    for (;;) {
        for (; count < launch->resident && next < launch->clusters; next += launch->multiprocessors) {
            if ((active[count] = start(worker, launch, next)) == NULL) {
                break;
            }
            ++count;
        }
        if (count == 0 || atomic_load(&launch->stop)) {
            break;
        }
        if (launch->ranks != 1) {
            fault_cta(active[0], CUDA_ERROR_NOT_SUPPORTED, "a profile with \"resident\" does not run clusters");
            break;
        }
        uint32_t waits = 0, left = 0;
        for (uint32_t k = 0; k < count; ++k) {
            struct cta *const cta = active[k];
            const uint64_t changes = poll_changes(worker);
            const enum outcome outcome = cta_run(cta, worker, 1);
            waits += outcome == CTA_WAITS && poll_changes(worker) == changes;
            if (outcome == CTA_TURN || outcome == CTA_WAITS) {
                active[left++] = cta;
            } else {
                leave_room(worker, launch, cta);
            }
        }
        fruitless = waits == count ? fruitless + 1 : 0;
        count = left;
        if (fruitless > FRUITLESS_ROUNDS) {
            fault_cta(active[0], CUDA_ERROR_NOT_SUPPORTED,
                      "the CTAs of a multiprocessor wait for CTAs of others, which a profile with \"resident\" does "
                      "not run beside them");
        }
    }
    while (count != 0) {
        leave_room(worker, launch, active[--count]);
    }
}

/* Run CTAs of a launch until none is left for this thread. */
void schedule_run(struct worker *worker, struct launch *launch) {
    struct schedule *s = launch->schedule;
    if (launch->resident != 0) {
        const uint64_t all = launch->multiprocessors, sampled = launch->sampled < all ? launch->sampled : all;
        for (uint64_t k = 0; k < sampled; ++k) {
            run_multiprocessor(worker, launch, (uint32_t)(k * all / sampled)); /* evenly spread over the chip */
        }
        return;
    }
    if (launch->checks == CHECKS_FULL) {
        run_in_turns(worker, launch);
        return;
    }
    for (struct cta *cta; (cta = take(worker, launch)) != NULL;) {
        const uint64_t changes = poll_changes(worker), executed = cta->executed;
        const enum outcome outcome = cta_run(cta, worker, UINT32_MAX);
        settle(worker, launch, cta, outcome, poll_changes(worker) != changes, cta->executed - executed);
        atomic_fetch_sub(&s->running, 1);
    }
}

/* ---- a launch ------------------------------------------------------------------------------------------------ */

bool schedule_open(struct launch *launch) {
    struct schedule *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return false;
    }
    mutex_init(&s->lock);
    s->last = &s->waiting;
    s->looked_at = UINT64_MAX;
    s->residency = launch_resident(launch) / launch->ranks;
    s->residency = s->residency != 0 ? s->residency : 1;
    s->random = launch->seed ^ 0xd1b54a32d192ed03u;
    launch->schedule = s;
    if (launch->checks != CHECKS_FULL || (launch->world = world_open(launch)) != NULL) {
        return true;
    }
    schedule_close(launch);
    return false;
}

void schedule_close(struct launch *launch) {
    struct schedule *s = launch->schedule;
    while (s->waiting != NULL) {
        room_free(unlink_at(s, &s->waiting));
    }
    for (struct cta *room = s->rooms, *next; room != NULL; room = next) {
        next = room->following;
        room_free(room);
    }
    world_close(launch->world);
    mutex_destroy(&s->lock);
    free(s);
    launch->schedule = NULL;
}
