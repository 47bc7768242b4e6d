/* Hooks that observe warps while they execute.
 *
 * A launch has a list of watchers, which is usually empty and then costs nothing. Otherwise warps run through
 * watch_step(), which calls every watcher before and after each instruction. place.use lists the registers that the
 * instruction reads and writes. */
#ifndef SM120_VM_WATCH_H
#define SM120_VM_WATCH_H

#include "vm/machine/cta.h"

/* A warp instruction. mask: the lanes that begin it; afterwards those that have executed it. If it is 0, the predicate
 * of every lane is false and nothing runs. */
struct event {
    struct warp *warp;
    const struct inst *inst;
    uint32_t pc, mask, active; /* active: lanes of the split, before predication */
    /* step: the result; STEP_NEXT before the instruction has run. After AGAIN and WAIT it is reported again. */
    enum step step;
};

struct watcher {
    bool (*start)(struct cta *cta);             /* a CTA begins; false after a fault. Every hook may be NULL */
    enum step (*before)(const struct event *e); /* STEP_NEXT, or STEP_FAULT after fault_at() */
    enum step (*after)(const struct event *e);  /* likewise; not called after a fault */
    void (*end)(struct cta *cta);               /* a CTA has ended without a fault */
    /* An asynchronous copy of this warp: before its bytes are written, after that, and when they have been counted.
     * lands() and landed() return false after a fault; moved() is called even after one. */
    bool (*lands)(struct warp *w, const struct async_op *op);
    bool (*landed)(struct warp *w, const struct async_op *op);
    void (*moved)(struct warp *w, const struct async_op *op);
};

/* Run the instruction at w->pc and call all watchers. */
enum step watch_step(struct warp *w, const struct inst *i, uint32_t mask);
bool watch_start(struct cta *cta);
void watch_end(struct cta *cta);
bool watch_lands(struct warp *w, const struct async_op *op);
bool watch_landed(struct warp *w, const struct async_op *op);
void watch_moved(struct warp *w, const struct async_op *op);

#endif
