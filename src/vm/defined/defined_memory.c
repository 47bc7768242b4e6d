/* Undefined values in memory: loads, stores, atomics, asynchronous copies, and the registers that calls save. */
#include <string.h>

#include "vm/defined/defined.h"
#include "vm/execute/call.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"
#include "vm/machine/shade.h"
#include "vm/machine/tma_box.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"

/* ---- shadow memory -------------------------------------------------------------------------------------------- */

/* The shadow of a byte of memory and of the bytes after it. */
struct at {
    uint8_t *defined;
    uint32_t *origin; /* origin of the word at `offset` */
    uint64_t offset;  /* from a multiple of 4 */
    uint64_t address;
    struct shade *shade; /* NULL: shared or local memory */
    enum born born;
};

static struct at behind(const struct at *at, uint32_t bytes) {
    struct at to = *at;
    to.defined += bytes;
    to.offset += bytes;
    to.address += bytes;
    return to;
}

static uint32_t *origin_of(const struct at *at, uint32_t byte) {
    return at->origin + (at->offset + byte) / 4;
}

/* Access shadows of global memory atomically: launches of other threads share it. */
static uint64_t read_plane(const struct at *at, uint32_t bytes) {
    void *const p = at->defined;
    switch (bytes) {
    case 1:
        return atomic_load_explicit((_Atomic uint8_t *)p, memory_order_relaxed);
    case 2:
        return atomic_load_explicit((_Atomic uint16_t *)p, memory_order_relaxed);
    case 4:
        return atomic_load_explicit((_Atomic uint32_t *)p, memory_order_relaxed);
    default:
        return atomic_load_explicit((_Atomic uint64_t *)p, memory_order_relaxed);
    }
}

static void write_plane(const struct at *at, uint32_t bytes, uint64_t defined) {
    void *const p = at->defined;
    if (bytes == 1) {
        atomic_store_explicit((_Atomic uint8_t *)p, (uint8_t)defined, memory_order_relaxed);
    } else if (bytes == 2) {
        atomic_store_explicit((_Atomic uint16_t *)p, (uint16_t)defined, memory_order_relaxed);
    } else if (bytes == 4) {
        atomic_store_explicit((_Atomic uint32_t *)p, (uint32_t)defined, memory_order_relaxed);
    } else {
        atomic_store_explicit((_Atomic uint64_t *)p, defined, memory_order_relaxed);
    }
}

static uint32_t read_origin(const struct at *at, uint32_t byte) {
    return atomic_load_explicit((_Atomic uint32_t *)(void *)origin_of(at, byte), memory_order_relaxed);
}

static void write_origin(const struct at *at, uint32_t byte, uint32_t value) {
    atomic_store_explicit((_Atomic uint32_t *)(void *)origin_of(at, byte), value, memory_order_relaxed);
}

static uint64_t ones(uint32_t bytes) {
    return bytes >= 8 ? UINT64_MAX : (1ULL << 8 * bytes) - 1;
}

/* Return whether undefined bytes were ever stored in this space. */
static int has_stored(const struct defined *d, const struct at *at) {
    return at->shade != NULL ? atomic_load_explicit(&at->shade->stored, memory_order_relaxed) : d->stored;
}

/* Return the birth of the first undefined byte. */
static uint32_t born_at(struct defined *d, uint32_t pc, const struct at *at, uint64_t bits) {
    uint32_t byte = 0;
    while ((bits >> 8 * byte & 255u) == 0) {
        ++byte;
    }
    const uint32_t origin = read_origin(at, byte);
    if ((origin >> (at->offset + byte) % 4 & 1u) == 0) {
        return birth_make(d, at->born, pc, 0, at->address + byte);
    }
    return at->shade != NULL ? birth_make(d, BORN_STORED, pc, 0, origin >> 4) : origin >> 4;
}

/* Record for each byte whether it is undefined because of birth or text `number`. */
static void set_origin(struct defined *d, const struct at *at, uint32_t bytes, uint64_t bits, uint32_t number) {
    if (bits == 0 && has_stored(d, at) == 0) {
        return;
    }
    if (bits != 0 && at->shade != NULL) {
        atomic_store_explicit(&at->shade->stored, 1, memory_order_relaxed);
    }
    d->stored |= bits != 0 && at->shade == NULL;
    for (uint32_t k = 0; k < bytes; ++k) {
        const uint32_t old = read_origin(at, k), bit = 1u << (at->offset + k) % 4;
        write_origin(at, k, (bits >> 8 * k & 255u) != 0 ? number << 4 | (old & 15u) | bit : old & ~bit);
    }
}

/* ---- finding the shadow --------------------------------------------------------------------------------------- */

/* Return the worker's cached allocation of an address that has been accessed. */
static const struct allocation *allocation_of(struct worker *worker, uint64_t address) {
    for (uint32_t k = 0; k < 8; ++k) {
        if (worker->cached[k].start <= address && address < worker->cached[k].end) {
            return &worker->cached[k];
        }
    }
    return memory_find(worker, address, 1) != 0 ? &worker->cached[0] : NULL;
}

/* Return whether the address is in pinned memory, which the host reads directly. */
static bool is_pinned(struct warp *w, uint64_t address) {
    const struct allocation *a = allocation_of(w->worker, address);
    return a != NULL && a->pinned;
}

static bool locate_global(struct worker *worker, uint64_t address, struct at *at) {
    const struct allocation *a = allocation_of(worker, address);
    if (a == NULL || a->shade == NULL || atomic_load_explicit(&a->shade->lost, memory_order_relaxed)) {
        return false;
    }
    const uint64_t offset = address - a->start;
    *at = (struct at){a->shade->defined + offset, a->shade->origin, offset, address, a->shade, BORN_GLOBAL};
    return true;
}

static struct at locate_shared(struct defined *d, uint64_t address) {
    const uint64_t offset = address - SHARED_BASE;
    return (struct at){d->shared + offset, d->shared_origin, offset, address, NULL, BORN_SHARED};
}

static struct at locate_local(struct defined *d, const struct warp *w, uint32_t lane, uint64_t address) {
    const struct defined_warp *u = &d->warp[w->index];
    const uint64_t offset = (uint64_t)lane * w->function->local_bytes + address;
    return (struct at){u->local + offset, u->local_origin, offset, address, NULL, BORN_LOCAL};
}

/* Find the shadow of an address that was accessed without a fault. Return false if the memory always counts as
 * defined. */
static bool locate(struct defined *d, struct warp *w, enum space space, uint64_t address, uint32_t lane,
                   struct at *at) {
    switch (address_resolve(space, &address)) {
    case SPACE_SHARED:
        *at = locate_shared(d, address);
        return true;
    case SPACE_LOCAL:
        *at = locate_local(d, w, lane, address);
        return true;
    case SPACE_PARAM:
        return false;
    default:
        return locate_global(w->worker, address, at);
    }
}

/* Check that the address is defined. Save it, because the instruction may overwrite its register. */
enum step defined_address(struct defined *d, const struct event *e) {
    const struct inst *i = e->inst;
    address_lanes(e->warp, i, d->address);
    return decided_by(d, e, i->run == call_indirect ? "the target of this call" : "the address of this access", i->a);
}

/* ---- loads and stores ----------------------------------------------------------------------------------------- */

/* d = [a] */
enum step defined_load(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    const uint32_t *slots = i->more;
    for (uint32_t k = 0; k < i->count; ++k) {
        define(u, slots[k], e->mask);
    }
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        struct at at;
        if (!locate(d, e->warp, (enum space)i->space, d->address[lane], lane, &at)) {
            continue;
        }
        for (uint32_t k = 0; k < i->count; ++k, at = behind(&at, i->size)) {
            const uint64_t bits = ~read_plane(&at, i->size) & ones(i->size);
            if (bits != 0) {
                set_bits(u, slots[k], lane, i->size, bits, born_at(d, e->pc, &at, bits));
            }
        }
    }
    return STEP_NEXT;
}

/* Parameters are defined. */
enum step defined_parameter(struct defined *d, const struct event *e) {
    const uint32_t *slots = e->inst->more;
    for (uint32_t k = 0; k < e->inst->count; ++k) {
        define(defined_of(d, e), slots[k], e->mask);
    }
    return STEP_NEXT;
}

/* Store the undefined bits of one element. */
static void put(struct defined *d, struct warp *w, uint32_t lane, const struct at *at, uint32_t bytes, uint64_t bits,
                uint32_t birth) {
    write_plane(at, bytes, ~bits);
    set_origin(d, at, bytes, bits, bits != 0 && at->shade != NULL ? birth_stored(d, w, lane, birth) : birth);
}

/* Check a store to memory without a shadow: pinned memory, which the host reads directly, must get defined values.
 * Return false after a fault. */
static bool put_outside(struct defined *d, const struct event *e, uint32_t lane, uint32_t slot) {
    uint64_t address = d->address[lane];
    if (address_resolve((enum space)e->inst->space, &address) != SPACE_GLOBAL || !is_pinned(e->warp, address)) {
        return true;
    }
    struct event one = *e;
    one.mask = 1u << lane;
    return decided_by(d, &one, "the value that the host reads in pinned memory", slot) != STEP_FAULT;
}

/* [a] = b */
enum step defined_store(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    const uint32_t *slots = i->more;
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        struct at at;
        const bool kept = locate(d, e->warp, (enum space)i->space, d->address[lane], lane, &at);
        for (uint32_t k = 0; k < i->count; ++k) {
            const uint64_t bits = bits_of(u, slots[k], lane, i->size) & ones(i->size);
            if (!kept && bits != 0 && !put_outside(d, e, lane, slots[k])) {
                return STEP_FAULT;
            }
            if (!kept) {
                continue;
            }
            put(d, e->warp, lane, &at, i->size, bits, bits != 0 ? birth_of(d, e, slots[k], lane) : 0);
            at = behind(&at, i->size);
        }
    }
    return STEP_NEXT;
}

void defined_forget_local(struct defined *d, const struct warp *w, uint32_t lane, uint32_t birth) {
    const struct at at = locate_local(d, w, lane, 0);
    memset(at.defined, 0, w->function->local_bytes);
    d->stored = true;
    for (uint32_t k = 0; k < w->function->local_bytes; ++k) {
        const uint32_t bit = 1u << (at.offset + k) % 4;
        write_origin(&at, k, birth << 4 | (read_origin(&at, k) & 15u) | bit);
    }
}

/* discard: the line is undefined until it is written again. */
enum step defined_discarded(struct defined *d, const struct event *e) {
    struct at at;
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), birth = birth_make(d, BORN_DISCARDED, e->pc, 0, 0);
        const uint64_t line = address_lane(e->warp, e->inst, lane);
        if (memory_find(e->warp->worker, line, DISCARDED) == 0 || !locate_global(e->warp->worker, line, &at)) {
            continue;
        }
        for (uint32_t done = 0; done < DISCARDED; done += 8, at = behind(&at, 8)) {
            put(d, e->warp, lane, &at, 8, UINT64_MAX, birth);
        }
    }
    return STEP_NEXT;
}

/* ---- atomics -------------------------------------------------------------------------------------------------- */

/* Return the birth of the first undefined bit of a compare and swap, in memory or in an operand of `count` elements
 * that are 256 bytes apart. Return 0 if all bits are defined. */
static uint32_t swap_birth(struct defined *d, const struct event *e, uint32_t lane, const struct at *at, uint32_t size,
                           uint32_t count) {
    const struct defined_warp *u = defined_of(d, e);
    const uint32_t slots[2] = {((const uint32_t *)e->inst->more)[8], e->inst->c};
    for (uint32_t k = 0; k < count; ++k) {
        const struct at part = behind(at, size * k);
        const uint64_t old = ~read_plane(&part, size) & ones(size);
        if (old != 0) {
            return born_at(d, e->pc, &part, old);
        }
        for (uint32_t n = 0; n < 2; ++n) {
            if ((bits_of(u, slots[n] + 256 * k, lane, size) & ones(size)) != 0) {
                return birth_of(d, e, slots[n] + 256 * k, lane);
            }
        }
    }
    return 0;
}

/* Return the undefined bits that an atomic leaves in memory. A zero determines and, a one determines or. */
static uint64_t combined(const struct inst *i, uint64_t old, uint64_t given, uint64_t value) {
    switch (i->kind) {
    case ATOMIC_AND:
        return given | (old & value);
    case ATOMIC_OR:
        return given | (old & ~value);
    case ATOMIC_XOR:
        return given | old;
    default:
        return (old | given) != 0 ? UINT64_MAX : 0;
    }
}

/* Check the address of an atomic and save the operand of a bit operation, whose register may be overwritten. */
enum step defined_operand(struct defined *d, const struct event *e) {
    const struct inst *i = e->inst;
    const void *v = source(e->warp, ((const uint32_t *)i->more)[8]);
    for (uint32_t l = 0; l < WARP; ++l) {
        d->bits[l] = i->size == 8 ? ((const uint64_t *)v)[l] : ((const uint32_t *)v)[l];
    }
    return defined_address(d, e);
}

/* Update the shadow of one element of an atomic. Return the old bits. `birth` is the birth that makes a swap
 * undefined on entry, and the birth of the old bits on return. */
static uint64_t atomic_element(struct defined *d, const struct event *e, uint32_t lane, const struct at *at,
                               uint32_t size, uint32_t from, uint32_t *birth) {
    const struct inst *i = e->inst;
    const uint64_t all = ones(size), old = ~read_plane(at, size) & all;
    const uint64_t given = bits_of(defined_of(d, e), from, lane, size) & all;
    const uint32_t old_birth = old != 0 ? born_at(d, e->pc, at, old) : 0;
    const uint32_t given_birth = given != 0 ? birth_of(d, e, from, lane) : 0;
    if (i->kind == ATOMIC_CAS) {
        put(d, e->warp, lane, at, size, *birth != 0 ? all : 0, *birth);
    } else if (i->kind == ATOMIC_EXCH) {
        put(d, e->warp, lane, at, size, given, given_birth);
    } else {
        put(d, e->warp, lane, at, size, combined(i, old, given, d->bits[lane]) & all,
            old != 0 ? old_birth : given_birth);
    }
    *birth = old_birth;
    return old;
}

/* atom and red. A 128-bit operation is two elements, 256 bytes apart in the register file. */
enum step defined_atomic(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    const bool wide = i->size > 8;
    const uint32_t *slots = i->more, size = wide ? 8 : i->size, count = wide ? 2 : i->count;
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        uint64_t old[8] = {0};
        uint32_t birth[8] = {0};
        struct at at;
        const bool kept = locate(d, e->warp, (enum space)i->space, d->address[lane], lane, &at);
        for (uint32_t k = 0; kept && i->kind == ATOMIC_CAS && k < count; ++k) {
            birth[k] = swap_birth(d, e, lane, &at, size, count);
        }
        for (uint32_t k = 0; kept && k < count; ++k, at = behind(&at, size)) {
            old[k] = atomic_element(d, e, lane, &at, size, wide ? slots[8] + 256 * k : slots[8 + k], &birth[k]);
        }
        for (uint32_t k = 0; k < count && slots[0] != UINT32_MAX; ++k) {
            set_bits(u, wide ? slots[0] + 256 * k : slots[k], lane, size, old[k], birth[k]);
        }
    }
    return STEP_NEXT;
}

/* mbarrier.init defines its 8 bytes. */
enum step defined_initialised(struct defined *d, const struct event *e) {
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const struct at at = locate_shared(d, d->address[lane] & ~WINDOW_MASK);
        put(d, e->warp, lane, &at, 8, 0, 0);
    }
    return STEP_NEXT;
}

/* ---- asynchronous copies -------------------------------------------------------------------------------------- */

static bool is_all_ones(const uint8_t *bytes, uint32_t count) {
    uint8_t all = 0xff;
    for (uint32_t k = 0; k < count; ++k) {
        all &= bytes[k];
    }
    return all == 0xff;
}

/* Copy the shadow of some bytes. If `from` is NULL, the bytes become defined. */
static void copy_plane(struct defined *d, struct warp *w, uint32_t lane, const struct at *to, const struct at *from,
                       uint32_t bytes) {
    if (from != NULL) {
        memcpy(to->defined, from->defined, bytes);
    } else {
        memset(to->defined, 0xff, bytes);
    }
    if (has_stored(d, to) == 0 && is_all_ones(to->defined, bytes)) {
        return;
    }
    for (uint32_t k = 0, birth = 0; k < bytes; ++k) {
        const struct at x = behind(to, k), y = from != NULL ? behind(from, k) : x;
        const uint64_t bits = ~read_plane(&x, 1) & 255u;
        if (bits == 0 || birth == 0 || x.offset % 4 == 0) { /* a word has one birth for its four bytes */
            birth = bits != 0 ? born_at(d, w->pc, &y, bits) : 0;
        }
        set_origin(d, &x, 1, bits, bits != 0 && x.shade != NULL ? birth_stored(d, w, lane, birth) : birth);
    }
}

/* Update the shadow for a bulk reduction: an element is undefined if either side is. */
static void reduce_plane(struct defined *d, struct warp *w, const struct async_op *op, const struct at *to,
                         const struct at *from) {
    const uint32_t size = type_bytes((enum type)op->type);
    for (uint32_t k = 0; k < op->bytes; k += size) {
        const struct at x = behind(to, k), y = behind(from, k);
        const uint64_t old = ~read_plane(&x, size) & ones(size), given = ~read_plane(&y, size) & ones(size);
        if ((old | given) == 0) {
            continue;
        }
        const uint32_t birth = old != 0 ? born_at(d, w->pc, &x, old) : born_at(d, w->pc, &y, given);
        put(d, w, op->lane, &x, size, ones(size), birth);
    }
}

/* Update the shadow for a load that rounds elements of 4 bytes: all bits are undefined if any bit is. */
static void round_plane(struct defined *d, struct warp *w, const struct async_op *op, const struct at *shared) {
    for (uint32_t k = 0; k < op->bytes; k += 4) {
        const struct at x = behind(shared, k);
        const uint64_t bits = ~read_plane(&x, 4) & ones(4);
        if (bits != 0) {
            put(d, w, op->lane, &x, 4, ones(4), born_at(d, w->pc, &x, bits));
        }
    }
}

/* Update the shadow for cp.async and the zeros that it appends. */
static void copy_lanes(struct defined *d, struct warp *w, const struct async_op *op) {
    const struct async_lanes *lanes = &w->cta->async_lanes[op->copy];
    for (uint32_t rest = op->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), bytes = lanes->bytes[lane];
        const struct at to = locate_shared(d, lanes->to[lane]), tail = behind(&to, bytes);
        struct at from;
        const bool kept = bytes != 0 && locate_global(w->worker, lanes->from[lane], &from);
        copy_plane(d, w, lane, &to, kept ? &from : NULL, bytes);
        copy_plane(d, w, lane, &tail, NULL, lanes->size - bytes);
    }
}

/* Update the shadow for a copy from shared to global memory. Return false after a fault. */
static bool copy_out(struct defined *d, struct warp *w, const struct async_op *op, const struct at *shared) {
    struct at global;
    if (locate_global(w->worker, op->global, &global)) {
        if (op->kind == ASYNC_REDUCE) {
            reduce_plane(d, w, op, &global, shared);
        } else {
            copy_plane(d, w, op->lane, &global, shared, op->bytes);
        }
        return true;
    }
    for (uint32_t k = 0; k < op->bytes && is_pinned(w, op->global); ++k) {
        const struct at x = behind(shared, k);
        char from[400];
        if (read_plane(&x, 1) == 255) {
            continue;
        }
        birth_text(d, w, born_at(d, w->pc, &x, ~read_plane(&x, 1) & 255u), from, sizeof from);
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, op->lane,
                 "the value that the host reads in pinned memory is decided by byte 0x%llx of shared memory, which is "
                 "undefined: %s; expected a defined value",
                 (unsigned long long)x.address, from);
        return false;
    }
    return true;
}

bool defined_landed(struct warp *w, const struct async_op *op) {
    struct defined *d = w->cta->defined;
    struct async_op part;
    for (uint32_t k = 0; op->is_tensor != 0 && tma_part(&w->cta->boxes[op->copy], op, k, &part); ++k) {
        if (part.bytes != 0 && !defined_landed(w, &part)) {
            return false;
        }
    }
    if (op->is_tensor != 0) {
        return true;
    }
    const struct at shared = locate_shared(d, op->shared);
    struct at global;
    switch (op->kind) {
    case ASYNC_LOAD:
        copy_plane(d, w, op->lane, &shared, locate_global(w->worker, op->global, &global) ? &global : NULL, op->bytes);
        if (op->op != 0) {
            round_plane(d, w, op, &shared);
        }
        return true;
    case ASYNC_WORD:
        copy_plane(d, w, op->lane, &shared, NULL, op->bytes);
        return true;
    case ASYNC_INSIDE: {
        const struct at from = locate_shared(d, op->from);
        copy_plane(d, w, op->lane, &shared, &from, op->bytes);
        return true;
    }
    case ASYNC_STORE:
    case ASYNC_REDUCE:
        return copy_out(d, w, op, &shared);
    case ASYNC_COPY:
        copy_lanes(d, w, op);
        return true;
    default:
        return true;
    }
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

/* Save or restore the shadow of a function's registers, with the layout of call.c: 8 bytes for every row of 128, one
 * for every predicate. */
static void move_registers(struct defined *d, struct warp *w, const struct routine *r, uint32_t lane, uint64_t place,
                           bool restore) {
    struct defined_warp *u = &d->warp[w->index];
    struct at at = locate_local(d, w, lane, place);
    const uint32_t bit = 1u << lane;
    for (uint32_t slot = r->first; slot < r->end; slot += 128) {
        const uint32_t bytes = r->wide[slot / 128] != 0 ? 8 : 4, row = slot / 128;
        const uint64_t bits = ~read_plane(&at, 8);
        if (restore && bits != 0 && (read_origin(&at, 0) & 1u) == 0) {
            u->some[row] |= bit, u->whole[row] |= bit;
        } else if (restore) {
            set_bits(u, slot, lane, bytes, bits & ones(bytes), read_origin(&at, 0) >> 4);
        } else {
            put(d, w, lane, &at, 8, bits_of(u, slot, lane, bytes),
                (u->whole[row] & bit) != 0 ? 0 : u->birth[row * WARP + lane]);
        }
        if (!restore && (u->whole[row] & bit) != 0) {
            write_origin(&at, 0, 0);
        }
        at = behind(&at, 8);
        if (bytes == 8) {
            slot += 128, at = behind(&at, 8);
        }
    }
    for (uint32_t k = r->first_predicate; k < r->end_predicate; ++k, at = behind(&at, 1)) {
        if (restore) {
            u->predicate[k] = (u->predicate[k] & ~bit) | (read_plane(&at, 1) != 0 ? 0 : bit);
        } else {
            write_plane(&at, 1, (u->predicate[k] & bit) != 0 ? 0 : 255);
        }
    }
}

/* Mark all registers of a function undefined when it begins, except hardware registers that no code before it reads. */
static void begin(struct defined *d, struct warp *w, const struct routine *r, uint32_t lane) {
    struct defined_warp *u = &d->warp[w->index];
    const uint32_t bit = 1u << lane, base = w->frame[lane];
    for (uint32_t row = r->first / 128; row < r->end / 128; ++row) {
        u->some[row] |= bit, u->whole[row] |= bit;
    }
    for (uint32_t k = 0; k < w->function->special_count; ++k) {
        define(u, w->function->specials[k].slot, bit);
    }
    for (uint32_t k = r->first_predicate; k < r->end_predicate; ++k) {
        u->predicate[k] |= bit;
        u->predicate_birth[k * WARP + lane] = 0;
    }
    define(u, r->frame, bit);
    const struct at at = locate_local(d, w, lane, base);
    memset(at.defined, 0, r->frame_bytes);
    memset(origin_of(&at, 0), 0, r->frame_bytes);
}

/* Update the registers of lanes that have entered functions. */
enum step defined_called(struct defined *d, const struct event *e) {
    struct warp *w = e->warp;
    const struct CUfunc_st *f = w->function;
    const struct call_site *site = e->inst->more;
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const struct call *c = &w->calls[(w->depth[lane] - 1) * WARP + lane];
        const struct routine *callee = site->callee;
        if (site->caller != NULL && site->caller->is_recursive) {
            move_registers(d, w, site->caller, lane, c->frame + site->caller->frame_bytes, false);
        }
        if (callee == NULL) {
            callee = f->routines[(d->address[lane] ^ CODE_WINDOW) / 16];
        }
        begin(d, w, callee, lane);
    }
    return STEP_NEXT;
}

/* Update the registers of lanes that have returned. */
enum step defined_returned(struct defined *d, const struct event *e) {
    struct warp *w = e->warp;
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const struct call *c = &w->calls[w->depth[lane] * WARP + lane];
        const struct routine *caller = c->site->caller;
        if (caller != NULL && caller->is_recursive) {
            move_registers(d, w, caller, lane, c->frame + caller->frame_bytes, true);
        }
    }
    return STEP_NEXT;
}
