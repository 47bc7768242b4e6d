/* Calls and returns. Each lane has its own call stack; text/function.c describes its layout. */
#include "vm/execute/call.h"

#include <string.h>

#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/program.h"

/* Save the registers of a function to local memory, or restore them. For functions that may be recursive. */
static void move_registers(struct warp *w, const struct routine *r, uint32_t lane, uint8_t *memory, bool restore) {
    for (uint32_t row = r->first / 128; row < r->end / 128; ++row, memory += 8) {
        const int wide = r->wide[row];
        uint8_t *at = (uint8_t *)w->registers + 128 * (size_t)row + (wide != 0 ? 8 : 4) * lane;
        if (restore) {
            memcpy(at, memory, wide != 0 ? 8 : 4);
        } else {
            memcpy(memory, at, wide != 0 ? 8 : 4);
        }
        if (wide != 0) { /* a 64-bit register takes two rows */
            ++row;
            memory += 8;
        }
    }
    const uint32_t bit = 1u << lane;
    for (uint32_t k = r->first_predicate; k < r->end_predicate; ++k, ++memory) {
        if (restore) {
            w->predicates[k] = (w->predicates[k] & ~bit) | (*memory != 0 ? bit : 0);
        } else {
            *memory = (w->predicates[k] & bit) != 0;
        }
    }
}

/* Send each lane to its own target. */
static enum step part(struct warp *w, uint32_t mask, const uint32_t *target) {
    warp_leave_behind(w, mask);
    for (uint32_t rest = mask; rest != 0;) {
        const uint32_t pc = target[lowest_bit(rest)];
        uint32_t same = 0;
        for (uint32_t l = 0; l < WARP; ++l) {
            same |= (uint32_t)((rest >> l & 1u) != 0 && target[l] == pc) << l;
        }
        rest &= ~same;
        if (rest != 0) {
            w->split[w->splits++] = (struct split){.pc = pc, .mask = same};
        } else {
            w->split[w->current].mask = w->active = same;
            w->pc = pc;
        }
    }
    return STEP_JUMP;
}

/* Create one lane's frame. Return false after a fault. */
static bool enter(struct warp *w, const struct call_site *site, const struct routine *callee, uint32_t lane) {
    const struct CUfunc_st *f = w->function;
    const struct routine *caller = site->caller;
    const bool saves = caller != NULL && caller->is_recursive;
    const uint32_t top = w->frame[lane] + (caller != NULL ? caller->frame_bytes : f->frame_bytes);
    const uint64_t base = (uint64_t)top + (saves ? caller->saved_bytes : 0);
    if (w->depth[lane] >= f->call_depth || base + callee->frame_bytes > f->local_bytes) {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
                 "stack overflow: the call of %s, nested %u deep, needs %llu bytes; the stack has %u", callee->name,
                 w->depth[lane] + 1, (unsigned long long)(base + callee->frame_bytes), f->local_bytes);
        return false;
    }
    if (saves) {
        move_registers(w, caller, lane, w->local + (size_t)lane * f->local_bytes + top, false);
    }
    w->calls[w->depth[lane]++ * WARP + lane] =
        (struct call){w->pc + 1, w->frame[lane], (uint32_t)base + callee->frame_bytes, site};
    w->frame[lane] = (uint32_t)base;
    ((uint64_t *)destination(w, callee->frame))[lane] = base;
    return true;
}

/* call name */
enum step call_direct(struct warp *w, const struct inst *i, uint32_t mask) {
    const struct call_site *site = i->more;
    for (uint32_t l = 0; l < WARP; ++l) {
        if ((mask >> l & 1u) != 0 && !enter(w, site, site->callee, l)) {
            return STEP_FAULT;
        }
    }
    warp_leave_behind(w, mask);
    w->pc = site->callee->pc;
    return STEP_JUMP;
}

/* call register */
enum step call_indirect(struct warp *w, const struct inst *i, uint32_t mask) {
    const struct call_site *site = i->more;
    const struct CUfunc_st *f = w->function;
    const uint64_t *address = source(w, i->a);
    uint32_t target[WARP] = {0};
    for (uint32_t l = 0; l < WARP; ++l) {
        if ((mask >> l & 1u) == 0) {
            continue;
        }
        const uint64_t number = (address[l] ^ CODE_WINDOW) / 16;
        const struct routine *callee = number < f->routine_count && address[l] % 16 == 0 ? f->routines[number] : NULL;
        if (callee == NULL) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, l,
                            "a call of 0x%llx, which is not the address of a function", (unsigned long long)address[l]);
        }
        if (!site->fits(site, callee)) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, l,
                            "a call of %s, whose parameters differ from those of the call's prototype", callee->name);
        }
        if (!enter(w, site, callee, l)) {
            return STEP_FAULT;
        }
        target[l] = callee->pc;
    }
    return part(w, mask, target);
}

/* The code of a function that cannot run, but whose address a call may have. */
enum step call_refused(struct warp *w, const struct inst *i, uint32_t mask) {
    return fault_at(w, CUDA_ERROR_NOT_SUPPORTED, lowest_bit(mask), "%s", (const char *)i->more);
}

/* ret from a function */
enum step call_return(struct warp *w, const struct inst *i, uint32_t mask) {
    uint32_t target[WARP] = {0};
    (void)i;
    for (uint32_t l = 0; l < WARP; ++l) {
        if ((mask >> l & 1u) == 0) {
            continue;
        }
        if (w->depth[l] == 0) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, l, "ret outside a call");
        }
        const struct call *c = &w->calls[--w->depth[l] * WARP + l];
        const struct routine *caller = c->site->caller;
        w->frame[l] = c->frame;
        target[l] = c->pc;
        if (caller != NULL && caller->is_recursive) {
            move_registers(w, caller, l,
                           w->local + (size_t)l * w->function->local_bytes + c->frame + caller->frame_bytes, true);
        }
    }
    return part(w, mask, target);
}
