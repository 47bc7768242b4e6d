/* A small simulation that uses everything of sm120_simulate, with room for its result. */
#ifndef SIMULATION_H
#define SIMULATION_H

#include <sm120.h>
#include <string.h>

enum { SIMULATED_TILES = 3, SIMULATED_ISSUED = 3 * 2 * (2 + 2 * 6 + 2), SIMULATED_EVENTS = 200 };

struct small_simulation {
    sm120_simulation of;
    sm120_simulation_result result;
    sm120_simulated_step steps[10];
    int64_t ends[SIMULATED_TILES], stalls[8];
    double busy[2];
    sm120_simulated_event events[SIMULATED_EVENTS];
};

/* Two warps. Each loads and commits a group; in each of two rounds it copies 128 bytes, waits for the copy, waits for
 * the group, and meets the other warp; then it ends with two steps. One CTA at a time, three in all. */
static void small_simulation(struct small_simulation *all) {
    static const int32_t is_queued[] = {1}, path_begin[] = {0, 2, 8, 10}, before[] = {0, 0}, behind[] = {2, 2};
    static const int32_t rounds_begin[] = {0, 0}, path_of_round[] = {1, 1}, kind_of_tile[] = {0, 0, 0}, rounds[] = {2};
    static const sm120_simulated_ring ring = {.copies = 2, .each = 1};
    static const int32_t actions[] = {SM120_STEP_LOAD,    SM120_STEP_COMMIT, SM120_STEP_COPY,    SM120_STEP_WAIT,
                                      SM120_STEP_DRAIN,   SM120_STEP_PLAIN,  SM120_STEP_BARRIER, SM120_STEP_PLAIN,
                                      SM120_STEP_BARRIER, SM120_STEP_PLAIN};
    memset(all, 0, sizeof *all);
    for (int k = 0; k < 10; ++k) {
        const int32_t action = actions[k];
        all->steps[k] = (sm120_simulated_step){.interval = 2, .latency = 5, .stall = 1, .writes = -1, .reads = -1};
        all->steps[k].action = action;
        all->steps[k].line = k;
        all->steps[k].amount = action == SM120_STEP_LOAD || action == SM120_STEP_COPY ? 128 : 0;
        all->steps[k].writes = action == SM120_STEP_WAIT ? 0 : -1;
        all->steps[k].waits = k == 5;
    }
    all->of = (sm120_simulation){.size = sizeof all->of,
                                 .pipes = 1,
                                 .is_queued = is_queued,
                                 .add_rate = 1,
                                 .copy_rate = 64,
                                 .drain_rate = 1,
                                 .load_rate = 32,
                                 .store_rate = 1,
                                 .code_latency = 20,
                                 .code_interval = 4,
                                 .queue_depth = 2,
                                 .copy_latency = 100,
                                 .barrier_latency = 10,
                                 .code_sets = 2,
                                 .code_ways = 2,
                                 .code_ahead = 1,
                                 .warps = 2,
                                 .steps = all->steps,
                                 .path_begin = path_begin,
                                 .before = before,
                                 .behind = behind,
                                 .rounds_begin = rounds_begin,
                                 .path_of_round = path_of_round,
                                 .step_count = 10,
                                 .path_count = 3,
                                 .round_count = 2,
                                 .kinds = 1,
                                 .turns = 1,
                                 .between = -1,
                                 .rings = &ring,
                                 .ring_count = 1,
                                 .emptied = -1,
                                 .kind_of_tile = kind_of_tile,
                                 .rounds_of_kind = rounds,
                                 .tiles = SIMULATED_TILES,
                                 .slots = 1,
                                 .places = 1};
    all->result = (sm120_simulation_result){.size = sizeof all->result,
                                            .ends = all->ends,
                                            .busy = all->busy,
                                            .stalls = all->stalls,
                                            .events = all->events,
                                            .event_room = SIMULATED_EVENTS};
}

#endif
