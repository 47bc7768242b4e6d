/* Issuing a step: the ports, pipes and queues that it occupies, and when its results are there. */
#include <math.h>

#include "model/sm.h"

int64_t sm_whole(double clocks) {
    return clocks < (double)NEVER ? (int64_t)ceil(clocks) : NEVER;
}

double sm_open_at(const struct sm *sm, struct warp *warp, int64_t now) {
    const sm120_simulated_step *const step = warp->step;
    const int32_t quarter = warp->quarter, pipe = step->pipe;
    double at;
    if (sm->of->is_queued[pipe] != 0) {
        const struct queue *const queue = &sm->queues[quarter][pipe];
        at = queue->count == sm->of->queue_depth ? (double)queue->begun[queue->first] : 0;
    } else {
        at = sm->free[quarter][pipe];
    }
    if (at > (double)now) {
        warp->blocked = SM120_STALL_RESULT + sm->of->pipes + pipe;
    } else if (sm->of->port_window != 0) { /* reads of registers may begin so many clocks after the issue */
        const double even = step->even_port != 0 ? sm->ports[quarter][0] : 0;
        const double odd = step->odd_port != 0 ? sm->ports[quarter][1] : 0;
        at = later_of(even, odd) - sm->of->port_window;
        if (at > (double)now) {
            warp->blocked = SM120_STALL_PORTS;
        }
    }
    return at;
}

/* Move on to the next round, to the next Q tile, or to the steps behind the last round. */
static void turn(struct sm *sm, struct warp *warp) {
    int32_t path;
    warp->round += warp->section == SECTION_AROUND;
    if (warp->round < warp->end) {
        warp->section = SECTION_AROUND;
        path = warp->ways[warp->round - warp->first];
    } else if (warp->tile + 1 < warp->cta->tile_count) {
        warp->section = SECTION_BETWEEN;
        path = sm->of->between;
        sm_take(sm, warp);
    } else {
        warp->section = SECTION_BEHIND;
        path = sm->of->behind[warp->index];
    }
    warp->step = &sm->of->steps[sm->of->path_begin[path]];
    warp->path_end = &sm->of->steps[sm->of->path_begin[path + 1]];
}

void sm_settle(struct sm *sm, struct warp *warp) {
    while (warp->step == warp->path_end && warp->section != SECTION_BEHIND) {
        turn(sm, warp);
    }
    if (warp->step == warp->path_end) {
        if (!warp->has_ended) {
            warp->has_ended = true;
            sm->ended[sm->ended_count++] = warp;
        }
        return;
    }
    int64_t ready = warp->next;
    int32_t reason = SM120_STALL_COUNT;
    for (int32_t b = 0; b < WARP_BARRIERS; ++b) {
        if ((warp->step->waits >> b & 1) != 0 && warp->barriers[b] > ready) {
            ready = warp->barriers[b];
            reason = warp->why[b];
        }
    }
    if (warp->landed > ready) {
        ready = warp->landed;
        reason = SM120_STALL_GROUP;
    }
    if (sm->code != NULL) {
        const int64_t there = sm_code_there(sm, warp);
        if (there > ready) {
            ready = there;
            reason = SM120_STALL_CODE;
        }
    }
    warp->ready = ready;
    warp->reason = reason;
    if (ready < sm->wake[warp->quarter]) {
        sm->wake[warp->quarter] = ready;
    }
}

/* Record what a warp waited for. */
static void account(const struct sm *sm, const struct warp *warp, int64_t now) {
    int64_t *const stalls =
        &sm->result->stalls[(size_t)warp->step->place * (size_t)(SM120_STALL_RESULT + 2 * sm->of->pipes)];
    const int64_t earliest = warp->last + 1;
    const int64_t counted = (warp->next < now ? warp->next : now) - earliest;
    const int64_t held = (warp->ready < now ? warp->ready : now) - later(warp->next, earliest);
    const int64_t rest = now - later(warp->ready, earliest);
    stalls[SM120_STALL_COUNT] += counted > 0 ? counted : 0;
    stalls[warp->reason] += held > 0 ? held : 0;
    stalls[warp->blocked >= 0 ? warp->blocked : SM120_STALL_NOT_SELECTED] += rest > 0 ? rest : 0;
}

/* Pass over the banks of shared memory, which all quarters share. Return when that begins. */
static double pass_banks(struct sm *sm, double wavefronts, int64_t now) {
    const double passes = later_of((double)now, sm->shared_free);
    sm->arriving = later_of(0, sm->arriving - (passes - sm->shared_free));        /* done while the banks were idle */
    const double between = sm->arriving < wavefronts ? sm->arriving : wavefronts; /* copies alternate with the step */
    sm->arriving -= between;
    sm->shared_free = passes + wavefronts + between;
    sm->result->busy[sm->of->pipes] += wavefronts;
    return passes;
}

/* Queue bytes that are added to L2 or stored. The pipe goes on when the queue has room for as many bytes. */
static void add(struct sm *sm, const struct warp *warp, const sm120_simulated_step *step, int64_t now) {
    const sm120_simulation *const of = sm->of;
    if (step->stored != 0 && of->queues_bind == 0) { /* else stores queue for L2 below */
        sm->drained = later_of(sm->drained, (double)now) + step->stored / of->drain_rate;
    }
    double clocks = of->adds_bind != 0 ? step->added / of->add_rate : 0;
    clocks += of->queues_bind != 0 ? step->stored / of->store_rate : 0;
    if (clocks != 0) {
        const double rate = (step->added + step->stored) / clocks;
        double *const free = &sm->free[warp->quarter][step->pipe];
        sm->added = later_of(sm->added, (double)now) + clocks;
        *free = later_of(*free, sm->added - of->add_queue / rate);
    }
}

/* Append to a queue, from which the oldest entry falls out. */
static void append(struct queue *queue, int32_t depth, int64_t begin) {
    if (queue->count == depth) {
        queue->begun[queue->first] = begin;
        queue->first = (queue->first + 1) % depth;
    } else {
        queue->begun[(queue->first + queue->count) % depth] = begin;
        ++queue->count;
    }
}

/* Occupy the register ports, the pipe and what is behind it. Return when the pipe begins. */
static double occupy(struct sm *sm, const struct warp *warp, const sm120_simulated_step *step, int64_t now) {
    double *const ports = sm->ports[warp->quarter], *const free = sm->free[warp->quarter];
    const int32_t pipe = step->pipe;
    if (step->even_port != 0) {
        ports[0] = later_of(ports[0], (double)now) + step->even_port;
    }
    if (step->odd_port != 0) {
        ports[1] = later_of(ports[1], (double)now) + step->odd_port;
    }
    /* A pipe that was busy until less than a clock ago continues from then, so fractions of a clock add up. */
    double begin = free[pipe] > (double)(now - 1) ? free[pipe] : (double)now;
    if (sm->of->is_queued[pipe] != 0) {
        begin = later_of((double)now, begin);
        if (step->wavefronts != 0) {
            begin = later_of(begin, pass_banks(sm, step->wavefronts, now));
        }
        append(&sm->queues[warp->quarter][pipe], sm->of->queue_depth, sm_whole(begin));
    }
    free[pipe] = begin + step->interval;
    if (step->added != 0 || step->stored != 0) {
        add(sm, warp, step, now);
    }
    for (int32_t k = 0; k < sm->of->delay_count; ++k) {
        const sm120_simulated_delay *const delay = &sm->of->delays[k];
        if (delay->cause == pipe && free[delay->delayed] > (double)now) {
            free[delay->delayed] += delay->clocks;
        }
    }
    return begin;
}

/* Release the barrier of a step's reads when its pipe is free again, and write the event. */
static void leave(struct sm *sm, struct warp *warp, const sm120_simulated_step *step, double begin) {
    const double passes = later_of(step->wavefronts, 1), free = sm->free[warp->quarter][step->pipe];
    const int64_t end = sm_whole(step->wavefronts != 0 ? begin + passes : later_of(begin + 1, free));
    if (step->reads >= 0 && end + 2 >= warp->barriers[step->reads]) {
        warp->barriers[step->reads] = end + 2;
        warp->why[step->reads] = SM120_STALL_RESULT + step->pipe;
    }
    sm120_simulation_result *const result = sm->result;
    if (result->events != NULL) {
        if (result->event_count < result->event_room) {
            result->events[result->event_count] = (sm120_simulated_event){.begin = sm_whole(begin),
                                                                          .end = end,
                                                                          .quarter = warp->quarter,
                                                                          .warp = warp->number,
                                                                          .pipe = step->pipe};
        }
        ++result->event_count;
    }
}

void sm_issue(struct sm *sm, struct warp *warp, int64_t now) {
    const sm120_simulated_step *const step = warp->step;
    ++sm->result->issued;
    sm->result->busy[step->pipe] += step->interval;
    if (now > warp->last + 1) {
        account(sm, warp, now);
    }
    warp->blocked = -1;
    const double begin = occupy(sm, warp, step, now);
    int64_t loaded = 0;
    if (step->loaded != 0 && sm->of->queues_bind != 0) { /* else only their latency counts */
        sm->copy_free = later_of(sm->copy_free, (double)now) + step->loaded / sm->of->load_rate;
        loaded = sm_whole(sm->copy_free) + step->latency;
    }
    if (step->writes >= 0) {
        const double passed = later_of(begin, (double)now) + later_of(step->wavefronts, 1);
        const int64_t done = later(loaded, sm_whole(passed) - 1 + step->latency);
        if (done >= warp->barriers[step->writes]) {
            warp->barriers[step->writes] = done;
            warp->why[step->writes] = SM120_STALL_RESULT + step->pipe;
        }
    }
    if (step->reads >= 0 || sm->result->events != NULL) {
        leave(sm, warp, step, begin);
    }
    warp->last = now;
    warp->next = now + step->stall;
    ++warp->step;
    if (step->action == SM120_STEP_PLAIN || sm_act(sm, warp, step, now)) {
        sm_settle(sm, warp);
    }
}
