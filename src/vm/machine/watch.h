/* Looking on while warps execute: what costs nothing where nobody looks.
 *
 * A launch has a list of watchers, empty as a rule. Where it is not, warps run through watch_step(), which calls every
 * watcher before and after each instruction. The registers that it reads and writes are in place.use. */
#ifndef SM120_VM_WATCH_H
#define SM120_VM_WATCH_H

#include "vm/machine/cta.h"

/* A warp instruction that is executed. With mask 0 every lane's predicate is false, and nothing runs. */
struct event {
    struct warp *warp;
    const struct inst *inst;
    uint32_t pc, mask, active; /* active: the lanes of the split, before predication */
    enum step step;            /* what became of it; STEP_NEXT before it ran. AGAIN and WAIT: it will come again */
};

struct watcher {
    bool (*start)(struct cta *cta);             /* a CTA begins; false after a fault. Any of these may be NULL */
    enum step (*before)(const struct event *e); /* STEP_NEXT, or STEP_FAULT after fault_at() */
    enum step (*after)(const struct event *e);  /* likewise; not called after a fault */
    void (*end)(struct cta *cta);               /* a CTA has ended, without a fault */
    /* An asynchronous copy of this warp lands: before the bytes move, after them, and when they are counted, which is
     * also after a fault. The first two return false after a fault. */
    bool (*lands)(struct warp *w, const struct async_op *op);
    bool (*landed)(struct warp *w, const struct async_op *op);
    void (*moved)(struct warp *w, const struct async_op *op);
};

/* Run the instruction at w->pc under the eyes of all watchers. */
enum step watch_step(struct warp *w, const struct inst *i, uint32_t mask);
bool watch_start(struct cta *cta);
void watch_end(struct cta *cta);
bool watch_lands(struct warp *w, const struct async_op *op);
bool watch_landed(struct warp *w, const struct async_op *op);
void watch_moved(struct warp *w, const struct async_op *op);

#endif
