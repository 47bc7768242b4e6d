/* atom and red on global and shared memory. They are atomic between the worker threads. */
#include "vm/execute/atomic.h"

#include <string.h>

#include "platform/thread.h"
#include "vm/check/check.h"
#include "vm/execute/bits.h"
#include "vm/execute/lanes_math.h"
#include "vm/execute/poll.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

/* d = old value; memory = new value: a formula of the old value x, the operand v and the second operand u of cas. */
#define LOOP(name, T, formula)                                                                                         \
    static uint64_t name(void *address, uint64_t v_, uint64_t u_) {                                                    \
        _Atomic(T) *const cell = address;                                                                              \
        const T v = (T)v_, u = (T)u_;                                                                                  \
        T x = atomic_load_explicit(cell, memory_order_relaxed), next;                                                  \
        (void)u;                                                                                                       \
        do                                                                                                             \
            next = (T)(formula);                                                                                       \
        while (!atomic_compare_exchange_weak(cell, &x, next));                                                         \
        return x;                                                                                                      \
    }
#define FETCH(name, T, function)                                                                                       \
    static uint64_t name(void *address, uint64_t v, uint64_t u) {                                                      \
        (void)u;                                                                                                       \
        return function((_Atomic(T) *)address, (T)v);                                                                  \
    }

FETCH(add_32, uint32_t, atomic_fetch_add)
FETCH(add_64, uint64_t, atomic_fetch_add)
FETCH(and_32, uint32_t, atomic_fetch_and)
FETCH(and_64, uint64_t, atomic_fetch_and)
FETCH(or_32, uint32_t, atomic_fetch_or)
FETCH(or_64, uint64_t, atomic_fetch_or)
FETCH(xor_32, uint32_t, atomic_fetch_xor)
FETCH(xor_64, uint64_t, atomic_fetch_xor)
FETCH(exch_32, uint32_t, atomic_exchange)
FETCH(exch_64, uint64_t, atomic_exchange)
LOOP(cas_16, uint16_t, x == v ? u : x)
LOOP(cas_32, uint32_t, x == v ? u : x)
LOOP(cas_64, uint64_t, x == v ? u : x)
LOOP(min_u32, uint32_t, v < x ? v : x)
LOOP(max_u32, uint32_t, v > x ? v : x)
LOOP(min_s32, uint32_t, (int32_t)v < (int32_t)x ? v : x)
LOOP(max_s32, uint32_t, (int32_t)v > (int32_t)x ? v : x)
LOOP(min_u64, uint64_t, v < x ? v : x)
LOOP(max_u64, uint64_t, v > x ? v : x)
LOOP(min_s64, uint64_t, (int64_t)v < (int64_t)x ? v : x)
LOOP(max_s64, uint64_t, (int64_t)v > (int64_t)x ? v : x)
LOOP(inc_32, uint32_t, x >= v ? 0 : x + 1)
LOOP(dec_32, uint32_t, x == 0 || x > v ? v : x - 1)
/* A NaN result of f32 becomes the canonical NaN. */
static uint32_t word_add(float x, float v) {
    const float r = x + v;
    return r != r ? 0x7fffffffu : bits32(r);
}

/* In global memory a NaN in memory is kept, signalling or not; otherwise a NaN operand is the result. */
static uint64_t double_add(double x, double v) {
    return v != v ? bits64(v) : x != x ? bits64(x) : bits64(nan2(x, v, x + v));
}

LOOP(add_f32, uint32_t, bits32(ftz(value32(word_add(ftz(value32(x)), ftz(value32(v)))))))
LOOP(add_f32_subnormal, uint32_t, word_add(value32(x), value32(v)))
LOOP(add_f64, uint64_t, double_add(value64(x), value64(v)))
LOOP(add_f64_shared, uint64_t, bits64(nan2(value64(x), value64(v), value64(x) + value64(v))))

static uint32_t half_add(uint32_t x, uint32_t v) {
    return half_of(half_value(x & 0xffffu) + half_value(v & 0xffffu));
}

static uint32_t bhalf_add(uint32_t x, uint32_t v) {
    return bhalf_of(add_odd(value32(x << 16), value32(v << 16)));
}

static uint32_t half_extreme(uint32_t x, uint32_t v, int want_larger) {
    return half_of(extreme(half_value(x & 0xffffu), half_value(v & 0xffffu), want_larger, 0));
}

static uint32_t bhalf_extreme(uint32_t x, uint32_t v, int want_larger) {
    return bhalf_of(extreme(value32(x << 16), value32(v << 16), want_larger, 0));
}

LOOP(add_f16, uint16_t, half_add(x, v))
LOOP(add_bf16, uint16_t, bhalf_add(x, v))
LOOP(min_f16, uint16_t, half_extreme(x, v, 0))
LOOP(max_f16, uint16_t, half_extreme(x, v, 1))
LOOP(min_bf16, uint16_t, bhalf_extreme(x, v, 0))
LOOP(max_bf16, uint16_t, bhalf_extreme(x, v, 1))
LOOP(add_f16x2, uint32_t, pair(half_add(x, v), half_add(x >> 16, v >> 16)))
LOOP(add_bf16x2, uint32_t, pair(bhalf_add(x, v), bhalf_add(x >> 16, v >> 16)))
LOOP(min_f16x2, uint32_t, pair(half_extreme(x, v, 0), half_extreme(x >> 16, v >> 16, 0)))
LOOP(max_f16x2, uint32_t, pair(half_extreme(x, v, 1), half_extreme(x >> 16, v >> 16, 1)))
LOOP(min_bf16x2, uint32_t, pair(bhalf_extreme(x, v, 0), bhalf_extreme(x >> 16, v >> 16, 0)))
LOOP(max_bf16x2, uint32_t, pair(bhalf_extreme(x, v, 1), bhalf_extreme(x >> 16, v >> 16, 1)))

/* Return the function of an operation on a type, or NULL if PTX has no such operation. f32 addition flushes
 * subnormals and f64 addition keeps signalling NaNs, as in global memory. */
atomic_function *atomic_find(enum atomic_op op, enum type type) {
    static atomic_function *const table[ATOMIC_CAS + 1][TYPE_COUNT] = {
        [ATOMIC_ADD] = {[T_U32] = add_32,
                        [T_S32] = add_32,
                        [T_U64] = add_64,
                        [T_S64] = add_64,
                        [T_F32] = add_f32,
                        [T_F64] = add_f64,
                        [T_F16] = add_f16,
                        [T_BF16] = add_bf16,
                        [T_F16X2] = add_f16x2,
                        [T_BF16X2] = add_bf16x2},
        [ATOMIC_MIN] = {[T_U32] = min_u32,
                        [T_S32] = min_s32,
                        [T_U64] = min_u64,
                        [T_S64] = min_s64,
                        [T_F16] = min_f16,
                        [T_BF16] = min_bf16,
                        [T_F16X2] = min_f16x2,
                        [T_BF16X2] = min_bf16x2},
        [ATOMIC_MAX] = {[T_U32] = max_u32,
                        [T_S32] = max_s32,
                        [T_U64] = max_u64,
                        [T_S64] = max_s64,
                        [T_F16] = max_f16,
                        [T_BF16] = max_bf16,
                        [T_F16X2] = max_f16x2,
                        [T_BF16X2] = max_bf16x2},
        [ATOMIC_AND] = {[T_B32] = and_32, [T_B64] = and_64},
        [ATOMIC_OR] = {[T_B32] = or_32, [T_B64] = or_64},
        [ATOMIC_XOR] = {[T_B32] = xor_32, [T_B64] = xor_64},
        [ATOMIC_INC] = {[T_U32] = inc_32},
        [ATOMIC_DEC] = {[T_U32] = dec_32},
        [ATOMIC_EXCH] = {[T_B32] = exch_32, [T_B64] = exch_64},
        [ATOMIC_CAS] = {[T_B16] = cas_16, [T_B32] = cas_32, [T_B64] = cas_64}};
    return table[op][type];
}

/* Return the function of a bulk reduction. It keeps f32 subnormals. */
atomic_function *atomic_find_bulk(enum atomic_op op, enum type type) {
    return op == ATOMIC_ADD && type == T_F32 ? add_f32_subnormal : atomic_find(op, type);
}

/* Return one lane's element of an operand. */
static uint64_t read_lane(const struct warp *w, uint32_t slot, uint32_t size, uint32_t lane) {
    return size == 8 ? ((const uint64_t *)source(w, slot))[lane] : ((const uint32_t *)source(w, slot))[lane];
}

static void write_lane(struct warp *w, uint32_t slot, uint32_t size, uint32_t lane, uint64_t value) {
    if (slot == UINT32_MAX) {
        return;
    }
    if (size == 8) {
        ((uint64_t *)destination(w, slot))[lane] = value;
    } else {
        ((uint32_t *)destination(w, slot))[lane] = (uint32_t)value;
    }
}

/* Record whether the operation changed memory. If not, it may be a poll, which gives other warps a turn. */
static enum step settle(struct warp *w, uint8_t *const *place, uint32_t mask, uint32_t bytes, bool changes,
                        int is_shared, bool returns) {
    if (changes) {
        w->worker->changes += is_shared == 0;
        return STEP_NEXT;
    }
    return returns && poll_note(w, place, mask, bytes, is_shared) ? STEP_YIELD : STEP_NEXT;
}

/* atom.exch.b128 and atom.cas.b128. Register slots are as in atomic_run. One lock serialises all of them. */
enum step atomic_run_wide(struct warp *w, const struct inst *i, uint32_t mask) {
    static struct mutex lock = MUTEX_INITIALIZER;
    const uint32_t *const slots = i->more;
    const uint64_t *const v = source(w, slots[8]), *const u = source(w, i->kind == ATOMIC_CAS ? i->c : slots[8]);
    uint64_t *const d = destination(w, slots[0]);
    uint8_t *place[WARP];
    bool changes = false, is_shared = false;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        enum space found = SPACE_GLOBAL;
        uint8_t *const at = memory_any(w, (enum space)i->space, address_lane(w, i, lane), 16, 16, lane, 1, &found);
        uint64_t old[2];
        if (at == NULL) {
            return STEP_FAULT;
        }
        const uint64_t expected[2] = {v[lane], v[WARP + lane]}, next[2] = {u[lane], u[WARP + lane]};
        if (w->cta->shadow != NULL && !check_atomic(w, i, at, 16, lane)) {
            return STEP_FAULT;
        }
        mutex_lock(&lock);
        memcpy(old, at, sizeof old);
        if (i->kind != ATOMIC_CAS || memcmp(old, expected, sizeof old) == 0) {
            changes |= memcmp(old, next, sizeof next) != 0;
            memcpy(at, next, sizeof next);
        }
        mutex_unlock(&lock);
        place[lane] = at;
        is_shared = found == SPACE_SHARED;
        d[lane] = old[0];
        d[WARP + lane] = old[1];
        w->worker->bytes[found == SPACE_SHARED ? TRAFFIC_ATOM_SHARED : TRAFFIC_ATOM_GLOBAL] += 16;
    }
    return settle(w, place, mask, 16, changes, is_shared, true);
}

/* Return whether memory holds a different value. Other threads may change it concurrently. */
static bool differs(const void *at, const void *value, uint32_t bytes) {
#if defined(__GNUC__)
    if (bytes == 4) {
        return __atomic_load_n((const uint32_t *)at, __ATOMIC_RELAXED) != *(const uint32_t *)value;
    }
    if (bytes == 8) {
        return __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED) != *(const uint64_t *)value;
    }
#endif
    return memcmp(at, value, bytes) != 0;
}

/* atom and red. kind is the operation, spare the type. i->more lists the destinations and, from index 8, the
 * sources. */
enum step atomic_run(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t *slots = i->more, bytes = (uint32_t)i->size * i->count;
    atomic_function *function = atomic_find((enum atomic_op)i->kind, (enum type)i->spare);
    uint8_t *place[WARP];
    bool changes = false, is_shared = false;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        enum space found = SPACE_GLOBAL;
        uint8_t *at = memory_any(w, (enum space)i->space, address_lane(w, i, lane), bytes, bytes, lane, 1, &found);
        if (at == NULL) {
            return STEP_FAULT;
        }
        if (w->cta->shadow != NULL && !check_atomic(w, i, at, bytes, lane)) {
            return STEP_FAULT;
        }
        const uint64_t u = i->kind == ATOMIC_CAS ? read_lane(w, i->c, i->size, lane) : 0;
        atomic_function *run = function;
        if (found == SPACE_SHARED) {
            run = function == add_f32 ? add_f32_subnormal : function == add_f64 ? add_f64_shared : function;
        }
        uint64_t old[8];
        for (uint32_t k = 0; k < i->count; ++k) {
            old[k] = run(at + k * i->size, read_lane(w, slots[8 + k], i->size, lane), u);
            changes |= differs(at + k * i->size, &old[k], i->size);
        }
        place[lane] = at;
        is_shared = found == SPACE_SHARED;
        for (uint32_t k = 0; k < i->count; ++k) {
            write_lane(w, slots[k], i->size, lane, old[k]);
        }
        w->worker->bytes[found == SPACE_SHARED ? TRAFFIC_ATOM_SHARED : TRAFFIC_ATOM_GLOBAL] += bytes;
    }
    return settle(w, place, mask, bytes, changes, is_shared, slots[0] != UINT32_MAX);
}
