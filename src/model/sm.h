/* The state of a simulated multiprocessor (SM): its units, its resident CTAs and their warps.
 *
 * Times are whole clocks; when a unit is free may be a fraction. */
#ifndef SM120_MODEL_SM_H
#define SM120_MODEL_SM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sm120.h"

#define NEVER ((int64_t)1 << 60)
enum { QUARTERS = 4, WARP_BARRIERS = 6, PORTS = 2, CTA_BARRIERS = 16 };

/* Sections of a warp's path. */
enum section { SECTION_BEFORE, SECTION_AROUND, SECTION_BETWEEN, SECTION_BEHIND };

struct phase {
    int64_t arrivals, copies, last; /* last: when the last of them ends */
};

/* The phases of a ring that have begun. */
struct phases {
    struct phase *of;
    size_t room;
};

/* A barrier of a CTA: how many warps have reached it, and which of them wait. */
struct meeting {
    struct warp **waiting;
    int32_t reached, count; /* count: of `waiting` */
};

/* A warp that waits for a phase. */
struct wait {
    struct warp *warp;
    int64_t number;
    int32_t ring, barrier;
};

struct cta {
    int32_t left;              /* warps that have not ended */
    int32_t *tiles;            /* its Q tiles */
    int32_t tile_count, begun; /* begun: tiles that a warp has begun */
    int64_t rounds;            /* of all its Q tiles */
    int64_t filled;            /* tiles that warps which are not simulated have loaded */
    struct meeting *meetings;  /* of all warps, then of warps that are equally far from each other, or then by number */
    struct phases *rings;
    struct wait *waits;
    size_t wait_count, wait_room;
};

/* The position of a warp on its path, and what it waits for. */
struct warp {
    struct cta *cta;
    int32_t number, index, quarter; /* of the launch; of the CTA */
    int32_t tile;                   /* of its CTA */
    int64_t first, end;             /* the first round of that, and the round behind its last one */
    const int32_t *ways;            /* path of each round of it */
    enum section section;
    int64_t round;
    const sm120_simulated_step *step, *path_end; /* the next step */
    int64_t barriers[WARP_BARRIERS];             /* when each is released */
    int32_t why[WARP_BARRIERS];                  /* what releases it */
    int64_t landing, landed; /* arrival of the last cp.async, and of the groups that were waited for */
    int64_t *groups;         /* arrival of each group that nobody waited for, from group_first on */
    size_t group_room, group_first, group_count;
    int64_t ready, next, last; /* when all is there that the step needs; by the stall count; the last issue */
    int32_t line;              /* of code; -1: none yet */
    int64_t came, there;       /* when the warp reached it, and when it arrives */
    bool has_entered, has_ended;
    bool is_held;            /* by a barrier of the CTA */
    int32_t reason, blocked; /* why it is not ready; the pipe or port that was busy, -1: none */
};

/* The start times of a queue's last entries. */
struct queue {
    int64_t *begun;
    int32_t first, count;
};

/* A line of code that is kept. */
struct code_line {
    int64_t number, at; /* -1: none; when it arrives */
    uint64_t used;      /* the order of uses */
};

struct sm {
    const sm120_simulation *of;
    sm120_simulation_result *result;
    int32_t members; /* warps of a CTA, with those beside */
    struct cta *ctas;
    struct warp *warps;
    struct warp **resident[QUARTERS];
    int32_t resident_count[QUARTERS];
    const struct warp *issued[QUARTERS]; /* the warp of the last issue */
    int64_t wake[QUARTERS];              /* when a warp may be ready */
    double *free[QUARTERS];              /* of each pipe */
    struct queue *queues[QUARTERS];
    double ports[QUARTERS][PORTS];
    int64_t barrier_free;
    double shared_free, copy_free;
    double arriving; /* wavefronts that copies still need */
    double added;    /* when the additions that were issued have left the SM */
    double drained;  /* when all stores have left it */
    struct code_line *code;
    uint64_t code_uses;
    double code_free;
    struct warp **ended; /* warps without further steps, which have to be retired */
    int32_t ended_count;
    int32_t next_tile, next_cta;
    int64_t *starts; /* of CTAs, ascending */
    int32_t start_count;
    int64_t started;             /* the last start */
    bool is_exhausted, has_idle; /* out of memory; a warp has no step */
};

/* How many meetings a CTA has: see struct cta. */
static inline int32_t meetings_of(const sm120_simulation *of) {
    return of->warps + CTA_BARRIERS;
}

/* The larger of two times. */
static inline int64_t later(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline double later_of(double a, double b) {
    return a > b ? a : b;
}

/* Check what the caller gives. */
sm120_status sm_check(const sm120_simulation *of, const sm120_simulation_result *result);

/* The next whole clock, at most NEVER. */
int64_t sm_whole(double clocks);

/* Find when the next step of a warp may be issued, by the state of the warp alone. */
void sm_settle(struct sm *sm, struct warp *warp);
/* Issue a warp's step. */
void sm_issue(struct sm *sm, struct warp *warp, int64_t now);
/* Return when the pipe and the register ports take a warp's step. */
double sm_open_at(const struct sm *sm, struct warp *warp, int64_t now);

/* Let a warp take the next Q tile of its CTA, which then knows the one behind it. */
void sm_take(struct sm *sm, struct warp *warp);

/* Perform the action of a step; return whether the warp goes on. */
bool sm_act(struct sm *sm, struct warp *warp, const sm120_simulated_step *step, int64_t now);
/* Let the warps at a barrier go on. */
void sm_meet(struct sm *sm, struct meeting *meeting);
/* Let warps that are not simulated load, in order, each tile of the known rounds whose stage is empty. */
void sm_fill(struct sm *sm, struct cta *cta, int64_t at);

/* Return when the line of a warp's next step arrives. */
int64_t sm_code_there(struct sm *sm, struct warp *warp);

#endif
