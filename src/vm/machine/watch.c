/* Calls the watchers of a launch. */
#include "vm/machine/watch.h"

#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"

/* Tell the watchers that a CTA begins. Return false after a fault. */
bool watch_start(struct cta *cta) {
    const struct launch *launch = cta->launch;
    for (uint32_t k = 0; k < launch->watchers; ++k) {
        if (launch->watcher[k]->start != NULL && !launch->watcher[k]->start(cta)) {
            return false;
        }
    }
    return true;
}

/* Tell the watchers that a CTA has ended. */
void watch_end(struct cta *cta) {
    const struct launch *launch = cta->launch;
    for (uint32_t k = 0; k < launch->watchers; ++k) {
        if (launch->watcher[k]->end != NULL) {
            launch->watcher[k]->end(cta);
        }
    }
}

/* Tell the watchers that an asynchronous copy is about to write its bytes. Return false after a fault. */
bool watch_lands(struct warp *w, const struct async_op *op) {
    const struct launch *launch = w->cta->launch;
    for (uint32_t k = 0; k < launch->watchers; ++k) {
        if (launch->watcher[k]->lands != NULL && !launch->watcher[k]->lands(w, op)) {
            return false;
        }
    }
    return true;
}

/* Tell the watchers that an asynchronous copy has written its bytes. Return false after a fault. */
bool watch_landed(struct warp *w, const struct async_op *op) {
    const struct launch *launch = w->cta->launch;
    for (uint32_t k = 0; k < launch->watchers; ++k) {
        if (launch->watcher[k]->landed != NULL && !launch->watcher[k]->landed(w, op)) {
            return false;
        }
    }
    return true;
}

/* Tell the watchers that the mbarrier or group has counted the bytes of an asynchronous copy. */
void watch_moved(struct warp *w, const struct async_op *op) {
    const struct launch *launch = w->cta->launch;
    for (uint32_t k = 0; k < launch->watchers; ++k) {
        if (launch->watcher[k]->moved != NULL) {
            launch->watcher[k]->moved(w, op);
        }
    }
}

/* Run one instruction, or skip it if no lane is active. A watcher may turn the step into a fault. */
enum step watch_step(struct warp *w, const struct inst *i, uint32_t mask) {
    const struct launch *launch = w->cta->launch;
    struct event e = {.warp = w, .inst = i, .pc = w->pc, .mask = mask, .active = w->active, .step = STEP_NEXT};
    for (uint32_t k = 0; k < launch->watchers; ++k) {
        if (launch->watcher[k]->before != NULL && launch->watcher[k]->before(&e) == STEP_FAULT) {
            return STEP_FAULT;
        }
    }
    if (mask != 0) {
        e.step = i->run(w, i, mask);
    }
    if (e.step == STEP_FAULT) {
        return STEP_FAULT;
    }
    e.mask &= e.step == STEP_PART ? w->active : FULL;
    for (uint32_t k = 0; k < launch->watchers; ++k) {
        if (launch->watcher[k]->after != NULL && launch->watcher[k]->after(&e) == STEP_FAULT) {
            return STEP_FAULT;
        }
    }
    return e.step;
}
