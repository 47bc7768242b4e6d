/* Checks of a simulation: numbers that are in range, lists that are there, and paths whose steps exist. */
#include <inttypes.h>
#include <math.h>

#include "model/sm.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum {
    MOST = 1 << 20,  /* of a count, a latency or a step's amount of work */
    MOST_WARPS = 64, /* of a CTA */
    MOST_WARPS_IN_ALL = 1 << 20,
    MOST_OF_PIPES = 256,
    MOST_OF_RINGS = 256,
};

/* A number of the simulation, its name, and the least and the largest value that it may have. */
struct limit {
    const char *name;
    double value, least, most;
};

static sm120_status check_limits(const struct limit *limits, size_t count) {
    for (size_t k = 0; k < count; ++k) {
        const struct limit *const limit = &limits[k];
        if (!(limit->value >= limit->least && limit->value <= limit->most)) {
            return fail(SM120_INVALID_ARGUMENT, "simulation->%s = %g; it must be from %g to %g", limit->name,
                        limit->value, limit->least, limit->most);
        }
    }
    return SM120_OK;
}

#define LIMITS(...)                                                                                                    \
    check_limits((const struct limit[]){__VA_ARGS__}, sizeof (const struct limit[]){__VA_ARGS__} / sizeof(struct limit))
#define LIMIT(field, least, most) {#field, (double)of->field, least, most}

static sm120_status check_numbers(const sm120_simulation *of) {
    const double least_rate = 1.0 / MOST;
    const sm120_status status =
        LIMITS(LIMIT(pipes, 1, MOST_OF_PIPES), LIMIT(delay_count, 0, MOST), LIMIT(queue_depth, 1, MOST),
               LIMIT(add_rate, least_rate, INFINITY), LIMIT(add_queue, 0, INFINITY),
               LIMIT(copy_rate, least_rate, INFINITY), LIMIT(drain_rate, least_rate, INFINITY),
               LIMIT(load_rate, least_rate, INFINITY), LIMIT(store_rate, least_rate, INFINITY),
               LIMIT(port_window, 0, MOST), LIMIT(mbarrier_wake, 0, MOST), LIMIT(copy_latency, 0, MOST),
               LIMIT(barrier_interval, 0, MOST), LIMIT(barrier_latency, 0, MOST), LIMIT(cta_start, 0, MOST),
               LIMIT(cta_interval, 0, MOST), LIMIT(code_latency, 0, MOST), LIMIT(code_interval, 0, MOST),
               LIMIT(code_sets, 0, MOST), LIMIT(code_ways, of->code_sets != 0, 1024), LIMIT(code_ahead, 0, MOST));
    if (status != SM120_OK) {
        return status;
    }
    return LIMITS(LIMIT(warps, 1, MOST_WARPS), LIMIT(beside, 0, MOST_WARPS), LIMIT(step_count, 0, INT32_MAX),
                  LIMIT(path_count, 1, INT32_MAX - 1), LIMIT(round_count, 0, INT32_MAX), LIMIT(kinds, 1, MOST),
                  LIMIT(turns, 1, MOST), LIMIT(between, -1, (double)of->path_count - 1),
                  LIMIT(ring_count, 0, MOST_OF_RINGS), LIMIT(stages, 0, MOST),
                  LIMIT(emptied, -1, (double)of->ring_count - 1),
                  LIMIT(tiles, 1, MOST_WARPS_IN_ALL / ((double)of->warps + of->beside)), LIMIT(slots, 1, MOST),
                  LIMIT(offset, 0, (double)INT32_MAX), LIMIT(places, 1, MOST));
}
#undef LIMIT

/* Check that every entry of a list is from `least` to `most`. */
static sm120_status check_list(const int32_t *list, int64_t count, int64_t least, int64_t most, const char *name) {
    const sm120_status status = check_pointer(list, name);
    for (int64_t k = 0; status == SM120_OK && k < count; ++k) {
        if (list[k] < least || list[k] > most) {
            return fail(SM120_INVALID_ARGUMENT,
                        "%s[%" PRId64 "] = %" PRId32 "; it must be from %" PRId64 " to %" PRId64, name, k, list[k],
                        least, most);
        }
    }
    return status;
}

static sm120_status check_steps(const sm120_simulation *of) {
    for (int32_t k = 0; k < of->step_count; ++k) {
        const sm120_simulated_step *const step = &of->steps[k];
        const double works[] = {step->interval, step->wavefronts, step->even_port, step->odd_port,      step->loaded,
                                step->stored,   step->added,      step->written,   (double)step->amount};
        bool is_right = true;
        for (size_t n = 0; n < sizeof works / sizeof *works; ++n) {
            is_right = is_right && works[n] >= 0 && works[n] <= (double)MOST * MOST;
        }
        const bool has_ring = step->action >= SM120_STEP_WAIT;
        const bool meets = step->action == SM120_STEP_BARRIER || step->action == SM120_STEP_REACH;
        is_right = is_right && step->action >= SM120_STEP_PLAIN && step->action <= SM120_STEP_COPY && step->pipe >= 0 &&
                   step->pipe < of->pipes && step->latency >= 0 && step->latency <= MOST && step->landing >= 0 &&
                   step->landing <= MOST && step->stall >= 1 && step->stall <= MOST && step->waits >= 0 &&
                   step->waits < 1 << WARP_BARRIERS && step->writes >= -1 && step->writes < WARP_BARRIERS &&
                   step->reads >= -1 && step->reads < WARP_BARRIERS && step->line >= 0 && step->place >= 0 &&
                   step->place < of->places && step->ahead >= -MOST && step->ahead <= MOST &&
                   (!has_ring || (step->ring >= 0 && step->ring < of->ring_count)) &&
                   (!meets || (step->ring >= 0 && step->ring < CTA_BARRIERS));
        if (!is_right) {
            return fail(SM120_INVALID_ARGUMENT,
                        "simulation->steps[%" PRId32 "] has a member that is out of range, of pipe %" PRId32
                        ", action %" PRId32 ", ring %" PRId32 ", place %" PRId32 ": see sm120_simulated_step",
                        k, step->pipe, step->action, step->ring, step->place);
        }
    }
    return SM120_OK;
}

static sm120_status check_rings(const sm120_simulation *of) {
    for (int32_t k = 0; k < of->ring_count; ++k) {
        const sm120_simulated_ring *const ring = &of->rings[k];
        if (ring->bytes < 0 || ring->bytes > (int64_t)MOST * MOST || ring->arrivals < 0 || ring->arrivals > MOST ||
            ring->copies < 0 || ring->copies > MOST || ring->once < -MOST || ring->once > MOST || ring->each < 0 ||
            ring->each > 64 || ring->left < 0 || ring->left > MOST) {
            return fail(SM120_INVALID_ARGUMENT,
                        "simulation->rings[%" PRId32 "] has %" PRId32 " arrivals, %" PRId32 " copies, %" PRId32
                        " + %" PRId32 " phases; the first two must be from 0 to %d, phases of a round to 64",
                        k, ring->arrivals, ring->copies, ring->once, ring->each, MOST);
        }
    }
    for (int32_t k = 0; k < of->delay_count; ++k) {
        const sm120_simulated_delay *const delay = &of->delays[k];
        if (delay->cause < 0 || delay->cause >= of->pipes || delay->delayed < 0 || delay->delayed >= of->pipes ||
            !(delay->clocks >= 0 && delay->clocks <= MOST)) {
            return fail(SM120_INVALID_ARGUMENT,
                        "simulation->delays[%" PRId32 "] is of pipes %" PRId32 " and %" PRId32 " and %g clocks; there "
                        "are %" PRId32 " pipes",
                        k, delay->cause, delay->delayed, delay->clocks, of->pipes);
        }
    }
    return SM120_OK;
}

/* Check the lists of paths: their steps are in order, every warp has steps, and every round has a path. */
static sm120_status check_paths(const sm120_simulation *of) {
    const int64_t members = of->warps + of->beside, most = of->path_count - 1;
    int64_t longest = 0, all = 0;
    sm120_status status = check_list(of->path_begin, of->path_count + 1, 0, of->step_count, "simulation->path_begin");
    for (int32_t k = 0; status == SM120_OK && k < of->path_count; ++k) {
        if (of->path_begin[k] > of->path_begin[k + 1]) {
            status = fail(SM120_INVALID_ARGUMENT, "simulation->path_begin[%" PRId32 "] is larger than the next one", k);
        }
    }
    status = status == SM120_OK ? check_list(of->before, of->warps, 0, most, "simulation->before") : status;
    status = status == SM120_OK ? check_list(of->behind, members, 0, most, "simulation->behind") : status;
    status = status == SM120_OK
                 ? check_list(of->rounds_of_kind, of->kinds, 0, of->round_count, "simulation->rounds_of_kind")
                 : status;
    status = status == SM120_OK ? check_list(of->path_of_round, of->round_count, 0, most, "simulation->path_of_round")
                                : status;
    status = status == SM120_OK ? check_list(of->kind_of_tile, of->tiles, 0, of->kinds - 1, "simulation->kind_of_tile")
                                : status;
    if (status != SM120_OK) {
        return status;
    }
    for (int32_t k = 0; k < of->kinds; ++k) {
        longest = later(longest, of->rounds_of_kind[k]);
    }
    for (int32_t k = 0; k < of->tiles; ++k) {
        all += of->rounds_of_kind[of->kind_of_tile[k]];
    }
    if (all > MOST) {
        return fail(SM120_INVALID_ARGUMENT,
                    "the tiles of the simulation have %" PRId64 " rounds; it must be at most %d", all, MOST);
    }
    const int64_t begins = (int64_t)of->warps * of->kinds * of->turns;
    status = check_list(of->rounds_begin, begins, 0, of->round_count, "simulation->rounds_begin");
    for (int64_t k = 0; status == SM120_OK && k < begins; ++k) {
        if (of->rounds_begin[k] + of->rounds_of_kind[k / of->turns % of->kinds] > of->round_count) {
            status = fail(SM120_INVALID_ARGUMENT,
                          "simulation->rounds_begin[%" PRId64 "] = %" PRId32 " leaves fewer paths than rounds", k,
                          of->rounds_begin[k]);
        }
    }
    return status;
}

sm120_status sm_check(const sm120_simulation *of, const sm120_simulation_result *result) {
    sm120_status status = check_struct(of, sizeof *of, "simulation", "sm120_simulation");
    status = status == SM120_OK ? check_struct(result, sizeof *result, "result", "sm120_simulation_result") : status;
    status = status == SM120_OK ? check_numbers(of) : status;
    if (status != SM120_OK) {
        return status;
    }
    const struct {
        const void *pointer;
        const char *name;
        bool is_needed;
    } lists[] = {
        {of->is_queued, "simulation->is_queued", true}, {of->delays, "simulation->delays", of->delay_count != 0},
        {of->steps, "simulation->steps", true},         {of->rings, "simulation->rings", of->ring_count != 0},
        {result->ends, "result->ends", true},           {result->busy, "result->busy", true},
        {result->stalls, "result->stalls", true},
    };
    for (size_t k = 0; status == SM120_OK && k < sizeof lists / sizeof *lists; ++k) {
        status = lists[k].is_needed ? check_pointer(lists[k].pointer, lists[k].name) : SM120_OK;
    }
    status = status == SM120_OK ? check_steps(of) : status;
    status = status == SM120_OK ? check_rings(of) : status;
    return status == SM120_OK ? check_paths(of) : status;
}
