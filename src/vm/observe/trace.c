/* Traces: calls a callback of the library's caller at the instructions that it selected. */
#include "vm/observe/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/execute/poll.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/device.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/options.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"

enum { MOST_BYTES = 64 };

/* The value of a register in all lanes. */
struct value {
    uint64_t low[WARP], high[WARP];
};

/* State of a watched launch. The launch runs on one thread, so all members exist once. */
struct trace {
    sm120_watch watch;
    uint8_t *wanted;     /* [pc]: whether its line is watched */
    uint32_t *written;   /* [warp][register, then predicate]: the lanes that have written it since the CTA began */
    struct value *reads; /* [warp][use]: values of the statement's registers before it ran */
    uint32_t slots, most_uses;
    const struct use **known; /* the registers of a function */
    uint32_t known_count, known_begin, known_end;
    uint8_t last[MOST_BYTES]; /* of the watched memory */
};

/* The state that a callback can read. */
struct sm120_step {
    const struct event *event;
    bool is_asynchronous;
};
static _Thread_local const sm120_step *current;

bool trace_is_looking(void) {
    return current != NULL;
}

/* ---- registers ----------------------------------------------------------------------------------------------- */

/* Return the index of a register among those of a warp. */
static uint32_t slot_index(const struct CUfunc_st *f, const struct use *u) {
    return u->type == T_PRED ? f->register_bytes / 128 + u->slot : u->slot / 128;
}

/* Read a register in all lanes. */
static struct value read_value(const struct warp *w, const struct use *u) {
    struct value v = {0};
    const unsigned bytes = type_bytes((enum type)u->type);
    const char *const from = w->registers + u->slot;
    for (uint32_t l = 0; l < WARP; ++l) {
        uint32_t narrow;
        if (u->type == T_PRED) {
            v.low[l] = w->predicates[u->slot] >> l & 1u;
        } else if (bytes < 8) {
            memcpy(&narrow, from + 4 * l, 4);
            v.low[l] = narrow;
        } else {
            memcpy(&v.low[l], from + 8 * l, 8);
        }
        if (bytes == 16) {
            memcpy(&v.high[l], from + 256 + 8 * l, 8);
        }
    }
    return v;
}

/* Return whether a statement begins at this pc. */
static bool is_start(const struct CUfunc_st *f, uint32_t pc) {
    return pc == 0 || f->places[pc - 1].text != f->places[pc].text;
}

/* Return whether an instruction is shown. A statement shows its instructions that have registers or are counted: the
 * last one, and those of a call that move arguments and results. */
static bool is_shown(const struct CUfunc_st *f, uint32_t pc) {
    return f->places[pc].opcode != UINT32_MAX || f->places[pc].uses != 0;
}

/* Return the next shown instruction of the statement. */
static uint32_t shown_at(const struct CUfunc_st *f, uint32_t pc) {
    while (pc + 1 < f->length && !is_shown(f, pc) && f->places[pc + 1].text == f->places[pc].text) {
        ++pc;
    }
    return pc;
}

/* Save the values of the registers before the statement runs. */
static void keep_reads(struct trace *t, const struct event *e) {
    const struct place *at = &e->warp->function->places[shown_at(e->warp->function, e->pc)];
    for (uint32_t k = 0; k < at->uses; ++k) {
        if (at->use[k].is_write == 0) {
            t->reads[e->warp->index * t->most_uses + k] = read_value(e->warp, &at->use[k]);
        }
    }
}

/* Record which lanes have written registers. */
static void note_writes(struct trace *t, const struct event *e) {
    const struct CUfunc_st *f = e->warp->function;
    const struct place *at = &f->places[e->pc];
    for (uint32_t k = 0; k < at->uses; ++k) {
        if (at->use[k].is_write != 0) {
            t->written[e->warp->index * t->slots + slot_index(f, &at->use[k])] |= e->mask;
        }
    }
}

/* ---- watching ------------------------------------------------------------------------------------------------ */

/* Call the callback. STEP_FAULT: the launch ends. */
static enum step show(const struct trace *t, const struct event *e, bool is_asynchronous) {
    const struct launch *launch = e->warp->cta->launch;
    /* Checked at every call, because callbacks may take long. */
    if (atomic_load(&launch->device->interrupts) != launch->interrupts) {
        return fault_at(e->warp, CUDA_ERROR_LAUNCH_TIMEOUT, WARP, "the launch was interrupted");
    }
    const sm120_step step = {e, is_asynchronous};
    const struct driver_options options = options_get();
    current = &step;
    const int32_t end = t->watch.see(t->watch.context, &step);
    current = NULL;
    options_set(&options); /* calls of the library from the callback leave their own options */
    return end != 0
               ? fault_at(e->warp, CUDA_ERROR_LAUNCH_TIMEOUT, WARP, "the launch was ended by the watching callback")
               : STEP_NEXT;
}

/* Return whether the caller watches this warp at this pc. */
static bool is_wanted(const struct trace *t, const struct warp *w, uint32_t pc) {
    const sm120_watch *watch = &t->watch;
    if (t->wanted[pc] == 0 || (watch->warp >= 0 && (uint32_t)watch->warp != w->number)) {
        return false;
    }
    for (int k = 0; k < 3; ++k) {
        if (watch->cta[k] >= 0 && (uint32_t)watch->cta[k] != warp_member(w)->id[k]) {
            return false;
        }
    }
    return true;
}

/* Return whether the watched bytes have changed. */
static bool has_changed(struct trace *t) {
    const void *now = (const void *)(uintptr_t)t->watch.address;
    if (memcmp(t->last, now, t->watch.bytes) == 0) {
        return false;
    }
    memcpy(t->last, now, t->watch.bytes);
    return true;
}

/* Start a CTA: only its hardware registers have been written. */
static bool trace_start(struct cta *cta) {
    const struct launch *launch = cta->launch;
    const struct CUfunc_st *f = launch->function;
    struct trace *t = launch->trace;
    memset(t->written, 0, (size_t)launch->warps * t->slots * sizeof *t->written);
    for (uint32_t w = 0; w < launch->warps; ++w) {
        for (uint32_t k = 0; k < f->special_count; ++k) {
            t->written[w * t->slots + f->specials[k].slot / 128] = FULL;
        }
    }
    return true;
}

static enum step trace_before(const struct event *e) {
    struct trace *t = e->warp->cta->launch->trace;
    const struct CUfunc_st *f = e->warp->function;
    const bool starts = is_start(f, e->pc);
    if ((!starts && !is_shown(f, e->pc - 1)) || !is_wanted(t, e->warp, e->pc) || !is_shown(f, shown_at(f, e->pc))) {
        return STEP_NEXT;
    }
    keep_reads(t, e);
    return t->watch.moment == SM120_BEFORE && starts ? show(t, e, false) : STEP_NEXT;
}

static enum step trace_after(const struct event *e) {
    struct trace *t = e->warp->cta->launch->trace;
    if (e->step == STEP_AGAIN) {
        return STEP_NEXT;
    }
    note_writes(t, e);
    const bool looks = t->watch.bytes != 0 ? has_changed(t) : t->watch.moment == SM120_AFTER;
    return looks && is_shown(e->warp->function, e->pc) && is_wanted(t, e->warp, e->pc) ? show(t, e, false) : STEP_NEXT;
}

/* Report a watched copy that has written its bytes. Return false after a fault. */
static bool trace_landed(struct warp *w, const struct async_op *op) {
    struct trace *t = w->cta->launch->trace;
    const uint32_t mask = op->kind == ASYNC_COPY ? op->mask : 1u << op->lane;
    const struct event e = {.warp = w, .inst = &w->function->code[op->pc], .pc = op->pc, .mask = mask, .active = mask};
    if (t->watch.bytes == 0 || !has_changed(t) || !is_wanted(t, w, op->pc)) {
        return true;
    }
    return show(t, &e, true) != STEP_FAULT;
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

/* Return whether a file is the requested one, by its whole name or by the end of its path. */
static bool is_file(const char *file, const char *wanted) {
    const size_t n = strlen(file), m = strlen(wanted);
    return n >= m && strcmp(file + n - m, wanted) == 0 && (n == m || file[n - m - 1] == '/');
}

/* Mark the instructions of the watched lines. */
static void mark_wanted(struct trace *t, const struct CUfunc_st *f) {
    const sm120_watch *watch = &t->watch;
    const uint32_t last = watch->last_line != 0 ? watch->last_line : UINT32_MAX;
    for (uint32_t pc = 0; pc < f->length; ++pc) {
        const struct place *at = &f->places[pc];
        t->wanted[pc] = at->line >= watch->first_line && at->line <= last &&
                        (watch->file == NULL || is_file(at->file, watch->file));
        t->most_uses = at->uses > t->most_uses ? at->uses : t->most_uses;
    }
}

CUresult trace_open(struct launch *launch, const sm120_watch *watch) {
    static const struct watcher watcher = {
        .start = trace_start, .before = trace_before, .after = trace_after, .landed = trace_landed};
    const struct CUfunc_st *f = launch->function;
    if (watch->see == NULL) {
        return CUDA_SUCCESS;
    }
    if (watch->bytes != 0 &&
        memory_check_range(launch->device, watch->address, watch->bytes, "the watched memory") != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct trace *t = launch->trace = calloc(1, sizeof *t);
    if (t != NULL) {
        t->watch = *watch;
        t->slots = f->register_bytes / 128 + f->predicates;
        t->wanted = calloc(f->length + 1u, 1);
        t->written = calloc((size_t)launch->warps * t->slots, sizeof *t->written);
        t->known = calloc(t->slots, sizeof *t->known);
        if (t->wanted != NULL) {
            mark_wanted(t, f);
        }
        t->reads = calloc((size_t)launch->warps * t->most_uses + 1, sizeof *t->reads);
    }
    if (t == NULL || t->wanted == NULL || t->written == NULL || t->known == NULL || t->reads == NULL) {
        trace_close(launch);
        return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
    }
    if (watch->bytes != 0) {
        memcpy(t->last, (const void *)(uintptr_t)watch->address, watch->bytes);
    }
    launch->watcher[launch->watchers++] = &watcher;
    return CUDA_SUCCESS;
}

void trace_close(struct launch *launch) {
    struct trace *t = launch->trace;
    if (t == NULL) {
        return;
    }
    free(t->wanted);
    free(t->written);
    free(t->known);
    free(t->reads);
    free(t);
    launch->trace = NULL;
}

/* ---- functions for callbacks --------------------------------------------------------------------------------- */

/* Fill in the source position and the text of an instruction. */
static void fill_instruction(const struct CUfunc_st *f, uint32_t pc, sm120_instruction_info *info) {
    const struct place *at = &f->places[pc];
    info->file = at->file;
    info->line = at->line;
    info->text = at->text;
    info->text_bytes = *at->text == '{' || *at->text == '}' ? 1 : (uint32_t)strcspn(at->text, ";");
    info->text_line = at->row;
    info->from_file = at->from_file != NULL ? at->from_file : "";
    info->from_line = at->from_line;
}

CUresult trace_instruction(CUfunction f, int index, sm120_instruction_info *info) {
    for (uint32_t pc = 0; pc < f->length; ++pc) {
        if (is_shown(f, pc) && index-- == 0) {
            fill_instruction(f, pc, info);
            return CUDA_SUCCESS;
        }
    }
    return fault_set(CUDA_ERROR_NOT_FOUND, "%s has no instruction with this index", f->name);
}

/* Check that the step is the current one. */
static CUresult check_step(const sm120_step *step) {
    return step != NULL && step == current
               ? CUDA_SUCCESS
               : fault_set(CUDA_ERROR_INVALID_VALUE,
                           "the step is not valid; use it only inside the callback that received it");
}

/* Return the index of an instruction among the shown ones. */
static uint32_t number_of(const struct CUfunc_st *f, uint32_t pc) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < pc; ++k) {
        n += (uint32_t)is_shown(f, k);
    }
    return n;
}

/* Return the function that an instruction is in (NULL: the kernel itself), and the range of its code. */
static const struct routine *routine_of(const struct CUfunc_st *f, uint32_t pc, uint32_t *begin, uint32_t *end) {
    const struct routine *found = NULL;
    *begin = 0;
    *end = f->length;
    for (uint32_t k = 0; k < f->routine_count; ++k) {
        const struct routine *r = f->routines[k];
        if (r != NULL && r->pc <= pc && r->pc >= *begin) {
            found = r;
            *begin = r->pc;
        }
        if (r != NULL && r->pc > pc && r->pc < *end) {
            *end = r->pc;
        }
    }
    return found;
}

CUresult trace_query(const sm120_step *step, sm120_step_info *info) {
    const CUresult wrong = check_step(step);
    if (wrong != CUDA_SUCCESS) {
        return wrong;
    }
    const struct event *e = step->event;
    const struct CUfunc_st *f = e->warp->function;
    uint32_t begin, end;
    const struct routine *routine = routine_of(f, e->pc, &begin, &end);
    const uint32_t pc = shown_at(f, e->pc);
    const char *guard = f->places[pc].guard;
    info->warp = e->warp->number;
    memcpy(info->cta, warp_member(e->warp)->id, sizeof info->cta);
    info->active = e->active;
    info->mask = e->mask;
    info->index = number_of(f, pc);
    info->entry = f->name;
    info->function = routine != NULL ? routine->name : "";
    info->guard = guard != NULL ? guard : "";
    info->is_guard_negated = guard != NULL && e->inst->flip != 0;
    info->is_asynchronous = step->is_asynchronous;
    fill_instruction(f, pc, &info->instruction);
    return CUDA_SUCCESS;
}

/* Collect the registers of the current function. */
static void gather(struct trace *t, const struct CUfunc_st *f, uint32_t pc) {
    uint32_t begin, end;
    routine_of(f, pc, &begin, &end);
    if (t->known_count != 0 && begin == t->known_begin) {
        return;
    }
    uint8_t *seen = calloc(t->slots, 1);
    t->known_count = 0;
    t->known_begin = begin;
    for (uint32_t k = begin; k < end && seen != NULL; ++k) {
        for (uint32_t n = 0; n < f->places[k].uses; ++n) {
            const struct use *u = &f->places[k].use[n];
            if (seen[slot_index(f, u)]++ == 0) {
                t->known[t->known_count++] = u;
            }
        }
    }
    free(seen);
}

CUresult trace_register(const sm120_step *step, int which, int index, sm120_register_info *info) {
    const CUresult wrong = check_step(step);
    if (wrong != CUDA_SUCCESS) {
        return wrong;
    }
    const struct event *e = step->event;
    const struct warp *w = e->warp;
    const struct CUfunc_st *f = w->function;
    struct trace *t = w->cta->launch->trace;
    const struct place *at = &f->places[shown_at(f, e->pc)];
    if (which == SM120_OF_FUNCTION) {
        gather(t, f, e->pc);
    }
    if ((uint32_t)index >= (which == SM120_OF_FUNCTION ? t->known_count : at->uses)) {
        return fault_set(CUDA_ERROR_NOT_FOUND, "no register has index %d", index);
    }
    const struct use *u = which == SM120_OF_FUNCTION ? t->known[index] : &at->use[index];
    const bool is_kept = which == SM120_OF_INSTRUCTION && u->is_write == 0;
    const struct value v =
        is_kept && !step->is_asynchronous ? t->reads[w->index * t->most_uses + (uint32_t)index] : read_value(w, u);
    info->is_write = which == SM120_OF_INSTRUCTION && u->is_write != 0;
    info->lanes = t->written[w->index * t->slots + slot_index(f, u)];
    snprintf(info->type, sizeof info->type, "%s", type_name((enum type)u->type));
    info->name = u->name;
    memcpy(info->value, v.low, sizeof v.low);
    memcpy(info->high, v.high, sizeof v.high);
    return CUDA_SUCCESS;
}

void variable_describe(const struct placed *v, sm120_variable_info *info) {
    snprintf(info->type, sizeof info->type, "%s", type_name((enum type)v->type));
    info->is_constant = v->space == SPACE_CONST;
    info->address = v->address;
    info->bytes = v->bytes;
    info->name = v->name;
}

CUresult trace_variable(const sm120_step *step, int index, sm120_variable_info *info) {
    const CUresult wrong = check_step(step);
    if (wrong != CUDA_SUCCESS) {
        return wrong;
    }
    const struct event *e = step->event;
    const struct place *at = &e->warp->function->places[shown_at(e->warp->function, e->pc)];
    if ((uint32_t)index >= at->named) {
        return fault_set(CUDA_ERROR_NOT_FOUND, "the instruction has no variable with index %d", index);
    }
    variable_describe(&at->name[index].variable, info);
    info->address += *(const uint64_t *)source(e->warp, at->name[index].slot); /* the same in all lanes */
    return CUDA_SUCCESS;
}

/* Describe the lanes of a warp at one pc. s NULL: the warp has exited. */
static void fill_lanes(const struct event *e, const struct warp *w, const struct split *s, sm120_lanes_info *info) {
    const bool runs = w == e->warp && s == &w->split[w->current];
    const uint32_t pc = runs ? e->pc : s != NULL ? s->pc : w->pc;
    info->warp = w->number;
    info->lanes = s != NULL ? s->mask : 0;
    info->is_step = runs;
    info->waits_for[0] = 0;
    if (s == NULL) {
        snprintf(info->waits_for, sizeof info->waits_for, "nothing: it has exited");
    } else if (!runs && (s->wait != WAIT_NOT || s->polled != 0)) {
        cta_wait_text(w, s, info->waits_for, sizeof info->waits_for);
    }
    fill_instruction(w->function, shown_at(w->function, pc), &info->instruction);
}

CUresult trace_lanes(const sm120_step *step, int index, sm120_lanes_info *info) {
    const CUresult wrong = check_step(step);
    if (wrong != CUDA_SUCCESS) {
        return wrong;
    }
    const struct event *e = step->event;
    const struct cta *cta = e->warp->cta;
    for (uint32_t k = 0; k < cta->warps; ++k) {
        const struct warp *w = &cta->warp[k];
        const uint32_t groups = w->rank != e->warp->rank ? 0 : w->splits != 0 ? w->splits : 1;
        if ((uint32_t)index < groups) {
            fill_lanes(e, w, w->splits != 0 ? &w->split[index] : NULL, info);
            return CUDA_SUCCESS;
        }
        index -= (int)groups;
    }
    return fault_set(CUDA_ERROR_NOT_FOUND, "the CTA has no lanes with this index");
}

CUresult trace_shared(const sm120_step *step, uint32_t address, void *to, size_t bytes) {
    const CUresult wrong = check_step(step);
    if (wrong != CUDA_SUCCESS) {
        return wrong;
    }
    const struct cta *cta = step->event->warp->cta;
    if (address < SHARED_BASE || address - SHARED_BASE > cta->shared_bytes ||
        bytes > cta->shared_bytes - (address - SHARED_BASE)) {
        return fault_set(CUDA_ERROR_INVALID_VALUE,
                         "%zu bytes of shared memory at 0x%x; the CTA has %u bytes, from address 0x%x on", bytes,
                         address, cta->shared_bytes, SHARED_BASE);
    }
    memcpy(to, cta->shared + (address - SHARED_BASE), bytes);
    return CUDA_SUCCESS;
}
