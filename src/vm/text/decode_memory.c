/* Decode loads, stores, atomics, matrix loads and stores, and address conversions. */
#include <string.h>

#include "vm/execute/async.h"
#include "vm/execute/atomic.h"
#include "vm/execute/collect.h"
#include "vm/execute/control.h"
#include "vm/execute/lanes.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

static const char *const scalar_types = "b32 u32 s32 f32 b64 u64 s64 f64 b16 u16 s16 b8 u8 s8 b128";

/* Skip a cache operator and hints, one of each kind. Return whether an L2 policy operand follows. */
static bool skip_cache(struct parser *p, uint32_t *at, enum space space, bool is_load) {
    const char *const hints[] = {"L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate",
                                 "L2::evict_last L2::evict_normal L2::evict_first",
                                 is_load ? "L2::64B L2::128B L2::256B" : "", "L2::cache_hint"};
    const uint32_t before = *at;
    const bool is_volatile = has(p, "volatile");
    bool policy = false;
    for (size_t k = 0; k < sizeof hints / sizeof *hints; ++k) {
        policy = take_choice(p, at, hints[k]) >= 0;
    }
    if (is_volatile && (policy || strstr(p->statement.name, ".L1::") != NULL)) {
        error_at(p, &p->statement.opcode, "unknown instruction '%s': .volatile and cache hints cannot be combined",
                 p->statement.name);
    }
    if (*at != before && space != SPACE_GENERIC && space != SPACE_GLOBAL) {
        error_at(p, &p->statement.opcode, "unknown instruction '%s': cache hints need .global or a generic address",
                 p->statement.name);
    }
    const bool has_operator = take_choice(p, at, is_load ? "ca cg cs lu cv" : "wb cg cs wt") >= 0;
    if (has_operator && (has(p, "relaxed") || has(p, "acquire") || has(p, "release") || has(p, "volatile"))) {
        error_at(p, &p->statement.opcode,
                 "unknown instruction '%s': a cache operator and a memory order cannot be "
                 "combined",
                 p->statement.name);
    }
    return policy;
}

/* Read the L2 policy, which is the last operand and has no effect. */
static void read_policy(struct parser *p, bool policy) {
    if (policy) {
        need_source(p, &p->statement.operand[p->statement.operands - 1], T_U64);
    }
}

/* Take a scope and return whether it is at most the cluster, which is always a single CTA. */
static uint16_t take_scope(struct parser *p, uint32_t *at, uint16_t before) {
    const int k = take_choice(p, at, "cta cluster gpu sys");
    return k < 0 ? before : k < 2;
}

/* Take the memory order of an access: .weak, .volatile, .relaxed.gpu and so on. Only the checks use it. */
static uint16_t take_order(struct parser *p, uint32_t *at, bool is_store, uint16_t *is_cta) {
    static const uint16_t orders[] = {ORDER_WEAK, ORDER_RELAXED, ORDER_RELAXED, ORDER_ACQUIRE};
    const bool is_unshared =
        has(p, "local") || has(p, "const") || has(p, "param") || has(p, "param::entry") || has(p, "param::func");
    const bool mmio = take(p, at, "mmio");
    const int k = take_choice(p, at, is_store ? "weak volatile relaxed release" : "weak volatile relaxed acquire");
    const uint32_t before = *at;
    if (k >= 2) {
        *is_cta = take_scope(p, at, 0);
    }
    if (k >= 2 && before == *at) {
        error_at(p, &p->statement.opcode,
                 "unknown instruction '%s': a memory order needs a scope: .cta, .cluster, .gpu or .sys",
                 p->statement.name);
    }
    if ((mmio && (k != 2 || !has(p, "sys") || has(p, "shared") || has(p, "shared::cta"))) || (k > 0 && is_unshared)) {
        error_at(p, &p->statement.opcode, "unknown instruction '%s': this memory order is not supported here",
                 p->statement.name);
    }
    return k < 0 ? ORDER_WEAK : k == 3 && is_store ? ORDER_RELEASE : orders[k];
}

/* Report cache modifiers that the access does not allow: L2 eviction hints need 32 bytes, .nc needs global memory. */
static void check_cache(struct parser *p, enum space space, uint32_t bytes) {
    const bool evicts = has(p, "L2::evict_last") || has(p, "L2::evict_normal") || has(p, "L2::evict_first");
    static const char *const operators[] = {"ca", "cg", "cs", "lu", "cv", "wb", "wt"};
    bool has_operator = false;
    for (size_t k = 0; k < sizeof operators / sizeof *operators; ++k) {
        has_operator |= has(p, operators[k]);
    }
    const bool both = has_operator && strstr(p->statement.name, ".L1::") != NULL;
    if (both || (evicts && bytes != 32) || (has(p, "nc") && space != SPACE_GLOBAL)) {
        error_at(p, &p->statement.opcode, "unknown instruction '%s': %s", p->statement.name,
                 both                    ? "a cache operator and an L1 hint cannot be combined"
                 : evicts && bytes != 32 ? "L2 eviction hints need .v8.b32 or .v4.b64"
                                         : ".nc needs .global");
    }
}

/* Take a state space. Without one, the address is generic. */
static enum space take_space(struct parser *p, uint32_t *at) {
    static const enum space spaces[] = {SPACE_GLOBAL, SPACE_SHARED, SPACE_SHARED, SPACE_SHARED, SPACE_LOCAL,
                                        SPACE_CONST,  SPACE_PARAM,  SPACE_PARAM,  SPACE_PARAM};
    const int k =
        take_choice(p, at, "global shared shared::cta shared::cluster local const param param::entry param::func");
    return k < 0 ? SPACE_GENERIC : spaces[k];
}

/* Take the number of elements and their type. */
static enum type take_vector(struct parser *p, uint32_t *at, uint8_t *count) {
    const int k = take_choice(p, at, "v2 v4 v8");
    *count = (uint8_t)(k < 0 ? 1 : 2 << k);
    const enum type type = take_type(p, at, scalar_types);
    if (type == T_B128 && *count > 1) {
        error_at(p, &p->statement.opcode, "unknown instruction '%s'", p->statement.name);
    }
    return type;
}

/* Return the elements of a vector operand, or the operand itself if the access is scalar. */
static const struct operand *elements(struct parser *p, const struct operand *o, uint32_t count) {
    if (count == 1 && o->kind != OPERAND_VECTOR) {
        return o;
    }
    if (o->kind != OPERAND_VECTOR || o->count != count) {
        error_at(p, &o->token, "'%s' expects a vector of %u elements here", p->statement.name, count);
    }
    const struct operand *last = NULL; /* ptxas compares neighbours */
    for (uint32_t k = 0; k < count; ++k) {
        const struct operand *e = &o->items[k];
        if (e->kind != OPERAND_REGISTER) {
            continue;
        }
        if (last != NULL && (type_bytes(e->type) != type_bytes(last->type) ||
                             (type_class(e->type) != 'b' && type_class(last->type) != 'b' &&
                              type_class(e->type) != type_class(last->type)))) {
            error_at(p, &e->token, "'%.*s' is .%s, but '%.*s' in the same vector is .%s", (int)e->token.length,
                     e->token.at, type_name(e->type), (int)last->token.length, last->token.at, type_name(last->type));
        }
        last = e;
    }
    return o->items;
}

static void check_vector(struct parser *p, enum space space, enum type type, uint32_t count) {
    const uint32_t bytes = count * type_bytes(type);
    if (bytes > 32 || (bytes > 16 && space != SPACE_GLOBAL && space != SPACE_GENERIC) ||
        (count == 8 && type_bytes(type) != 4)) {
        error_at(p, &p->statement.opcode, "'%s' accesses %u bytes; the limit is %s", p->statement.name, bytes,
                 space == SPACE_GLOBAL ? "32 bytes in .v4 or .v8" : "16 bytes in this state space");
    }
    if (bytes > 16) {
        need_feature(p, 100, false, "an access of 32 bytes");
    }
}

/* Check an access ld.param [name + constant]: the layout of parameters is known. */
static void check_parameter(struct parser *p, const struct operand *o, uint32_t bytes, uint32_t align) {
    const struct symbol *s = o->items->symbol;
    if (o->offset < 0 || (uint64_t)o->offset + bytes > s->bytes) {
        error_at(p, &o->token, "'%s' reads %u bytes at offset %lld of parameter '%.*s', which has %llu bytes",
                 p->statement.name, bytes, (long long)o->offset, (int)s->length, s->name, (unsigned long long)s->bytes);
    }
    if ((s->address + (uint64_t)o->offset) % align != 0) {
        error_at(p, &o->token, "offset %lld of parameter '%.*s' is not aligned to %u bytes", (long long)o->offset,
                 (int)s->length, s->name, align);
    }
}

/* Check that an access to [variable + constant] stays inside the variable. */
void check_room(struct parser *p, const struct operand *o, uint32_t bytes) {
    const struct symbol *s = o->count != 0 && o->items->kind == OPERAND_SYMBOL ? o->items->symbol : NULL;
    if (s != NULL && !s->is_dynamic && (o->offset < 0 || (uint64_t)o->offset + bytes > s->bytes)) {
        error_at(p, &o->token, "'%s' accesses %u bytes at offset %lld of '%.*s', which has %llu bytes",
                 p->statement.name, bytes, (long long)o->offset, (int)s->length, s->name, (unsigned long long)s->bytes);
    }
}

/* ld{.order}{.space}{.cache}{.vec}.type d, [a]{, policy} */
void decode_ld(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    struct inst i = {0};
    i.q = take_order(p, &at, false, &i.r);
    const enum space space = take_space(p, &at);
    const bool policy = skip_cache(p, &at, space, true);
    const bool read_only = take(p, &at, "nc");
    if (read_only && i.q != ORDER_WEAK) {
        error_at(p, &s->opcode, "unknown instruction '%s': .nc and a memory order cannot be combined", s->name);
    }
    const enum type type = take_vector(p, &at, &i.count);
    take_end(p, at);
    check_cache(p, space, i.count * type_bytes(type));
    check_vector(p, space, type, i.count);
    need_count(p, 2u + (uint32_t)policy, 2u + (uint32_t)policy);
    read_policy(p, policy);
    need_address(p, &s->operand[1], space, &i);
    i.flags |= read_only ? ADDRESS_READ_ONLY : 0;
    const struct operand *d = elements(p, &s->operand[0], i.count), *base = s->operand[1].items;
    if (i.count == 1) {
        need_result(p, d);
    }
    const bool is_parameter =
        space == SPACE_PARAM && base != NULL && base->kind == OPERAND_SYMBOL && base->symbol->space == SPACE_PARAM;
    const enum type part = type == T_B128 ? T_B64 : type;
    if (is_parameter) {
        check_parameter(p, &s->operand[1], i.count * type_bytes(type), i.count * type_bytes(type));
        i.offset += (int64_t)base->symbol->address;
    } else {
        check_room(p, &s->operand[1], i.count * type_bytes(type));
    }
    uint32_t *slots = parser_take(p, 8 * sizeof *slots), extended[8] = {0};
    for (uint32_t k = 0; k < i.count; ++k) {
        const bool is_signed = type == T_S8 || type == T_S16 || type == T_S32;
        const unsigned into = d[k].kind == OPERAND_REGISTER ? type_bytes(d[k].type) : type_bytes(type);
        slots[k] = need_destination_wide(p, &d[k], type);
        extended[k] = into > type_bytes(type) && (into == 8 || (is_signed && type_bytes(type) < 4));
        if (extended[k] != 0) {
            slots[k] = register_take(p, T_B32);
        }
    }
    if (type == T_B128) {
        i.count = 2;
        slots[1] = slots[0] + 256;
    }
    i.size = (uint8_t)type_bytes(part);
    i.more = slots;
    struct inst *to = emit(p, access_table()[is_parameter ? ACCESS_PARAMETER
                                             : i.q != 0   ? ACCESS_LOAD_STRONG
                                                          : ACCESS_LOAD]);
    i.run = to->run, i.guard = to->guard, i.flip = to->flip;
    *to = i;
    for (uint32_t k = 0; k < i.count && type != T_B128; ++k) {
        if (extended[k] != 0) {
            emit_extend(p, &d[k], type, slots[k]);
        }
    }
}

/* Decode st.async{.weak}{.shared::cluster}.mbarrier::complete_tx::bytes{.v2 .v4}.type [a], b, [mbarrier] and
 * red.async.relaxed.cluster{.shared::cluster}.mbarrier::complete_tx::bytes.op.type, from the modifier after .async on.
 */
static void decode_word(struct parser *p, uint32_t at, bool is_store) {
    struct statement *s = &p->statement;
    struct inst i = {.run = async_word, .count = 1}, barrier = {0};
    if (is_store) {
        take(p, &at, "weak");
    } else if (!take(p, &at, "relaxed") || !take(p, &at, "cluster")) {
        error_at(p, &s->opcode, "unknown instruction '%s': expected .relaxed.cluster", s->name);
    }
    const enum space space = take(p, &at, "shared::cluster") ? SPACE_SHARED : SPACE_GENERIC;
    take(p, &at, "mbarrier::complete_tx::bytes");
    const int op = is_store ? -1 : take_choice(p, &at, "add min max and or xor inc dec");
    const int vector = is_store ? take_choice(p, &at, "v2 v4") : -1;
    const enum type type = take_type(p, &at, is_store ? "b32 b64 u32 u64 s32 s64 f32 f64" : "b32 u32 s32 u64 s64");
    take_end(p, at);
    i.count = (uint8_t)(vector < 0 ? 1 : 2 << vector);
    i.size = (uint8_t)type_bytes(type);
    const bool is_logic = op >= ATOMIC_AND && op <= ATOMIC_XOR, counts = op == ATOMIC_INC || op == ATOMIC_DEC;
    const bool fits = op < 0             ? is_store && i.count * i.size <= 16
                      : op == ATOMIC_ADD ? type != T_B32
                      : is_logic         ? type == T_B32
                      : counts           ? type == T_U32
                                         : type == T_U32 || type == T_S32;
    if (!fits) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    need_feature(p, 90, false, "an asynchronous store to shared memory");
    need_count(p, 3, 3);
    need_address(p, &s->operand[0], space, &i);
    need_address(p, &s->operand[2], space, &barrier);
    i.flags |= ADDRESS_ASYNC;
    uint32_t *more = parser_take(p, 7 * sizeof *more);
    const struct operand *b = is_store ? elements(p, &s->operand[1], i.count) : &s->operand[1];
    for (uint32_t k = 0; k < i.count; ++k) {
        more[k] = need_source(p, &b[k], type);
    }
    more[4] = barrier.a, more[5] = (uint32_t)barrier.offset, more[6] = barrier.flags & ADDRESS_NARROW;
    i.more = more;
    i.negate = (uint8_t)(op + 1);
    i.spare = (uint8_t)(type == T_S64 ? T_U64 : type);
    struct inst *to = emit(p, i.run);
    i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* clusterlaunchcontrol.try_cancel.async{.shared::cta}.mbarrier::complete_tx::bytes{.multicast::cluster::all}.b128
 * [a], [mbarrier] */
static void decode_cancel(struct parser *p, uint32_t at) {
    struct statement *s = &p->statement;
    struct inst i = {.run = async_cancel}, barrier = {0};
    if (!take(p, &at, "async")) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    const enum space space = take(p, &at, "shared::cta") ? SPACE_SHARED : SPACE_GENERIC;
    const bool completes = take(p, &at, "mbarrier::complete_tx::bytes");
    i.kind = (uint8_t)take(p, &at, "multicast::cluster::all");
    take_type(p, &at, "b128");
    take_end(p, at);
    if (!completes) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    need_count(p, 2, 2);
    need_address(p, &s->operand[0], space, &i);
    need_address(p, &s->operand[1], space, &barrier);
    i.flags |= ADDRESS_ASYNC | (i.kind != 0 ? ADDRESS_CLUSTER : 0);
    uint32_t *more = parser_take(p, 7 * sizeof *more);
    more[4] = barrier.a, more[5] = (uint32_t)barrier.offset, more[6] = barrier.flags & ADDRESS_NARROW;
    i.more = more;
    struct inst *to = emit(p, i.run);
    i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, h
 * clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {x, y, z, w}, h
 * clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 d, h */
void decode_clusterlaunchcontrol(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    need_feature(p, 100, false, "clusterlaunchcontrol");
    if (take(p, &at, "try_cancel")) {
        decode_cancel(p, at);
        return;
    }
    if (!take(p, &at, "query_cancel")) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    if (take(p, &at, "is_canceled")) {
        if (!take(p, &at, "pred") || !take(p, &at, "b128")) {
            error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
        }
        take_end(p, at);
        need_count(p, 2, 2);
        const uint32_t a = need_source(p, &s->operand[1], T_B128);
        struct inst *i = emit(p, async_canceled);
        i->a = a;
        i->p = need_predicate_destination(p, &s->operand[0]);
        return;
    }
    const int one = take_choice(p, &at, "get_first_ctaid get_first_ctaid::x get_first_ctaid::y get_first_ctaid::z");
    if (one < 0 || (one == 0 && !take(p, &at, "v4")) || !take(p, &at, "b32") || !take(p, &at, "b128")) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    take_end(p, at);
    need_count(p, 2, 2);
    const struct operand *d = one == 0 ? elements(p, &s->operand[0], 4) : &s->operand[0];
    const uint32_t a = need_source(p, &s->operand[1], T_B128);
    for (uint32_t k = 0; k < (one == 0 ? 4u : 1u); ++k) { /* async_cancel has the format; the last one is undefined */
        static const uint8_t left[] = {32, 16, 0, 0}, right[] = {32, 48, 48, 0};
        const uint32_t part = one == 0 ? k : (uint32_t)one - 1;
        if (d[k].kind == OPERAND_SINK) {
            continue;
        }
        const uint32_t wide = register_take(p, T_B64);
        struct inst *high = emit(p, lanes_table()[LANE_shl_b64]);
        high->d = wide, high->a = a + 256 * (part / 3), high->b = constant_slot(p, left[part], false, NULL);
        struct inst *shifted = emit(p, lanes_table()[LANE_shr_u64]);
        shifted->d = wide, shifted->a = wide, shifted->b = constant_slot(p, right[part], false, NULL);
        const uint32_t to = need_destination(p, &d[k], T_U32);
        struct inst *low = emit(p, lanes_table()[LANE_trunc_64]);
        low->d = to, low->a = wide;
    }
}

/* Take the modifiers of st.async and red.async to global memory before the state space. They are release stores, which
 * may complete at once. */
static uint16_t take_asynchronous(struct parser *p, uint32_t *at) {
    const bool mmio = take(p, at, "mmio");
    if (!take(p, at, "release")) {
        error_at(p, &p->statement.opcode,
                 "unknown instruction '%s': expected .mbarrier::complete_tx::bytes or .release", p->statement.name);
    }
    if (take_choice(p, at, mmio ? "sys" : "gpu sys") < 0) {
        error_at(p, &p->statement.opcode, "unknown instruction '%s'", p->statement.name);
    }
    need_feature(p, 100, false, "an asynchronous store to global memory");
    return ORDER_RELEASE;
}

/* st.bulk{.weak}{.shared::cta} [a], bytes, 0 */
static void decode_fill(struct parser *p, uint32_t at) {
    struct statement *s = &p->statement;
    struct inst i = {0};
    take(p, &at, "weak");
    const enum space space = take(p, &at, "shared::cta") ? SPACE_SHARED : SPACE_GENERIC;
    take_end(p, at);
    need_feature(p, 100, false, "st.bulk");
    need_count(p, 3, 3);
    need_integer(p, &s->operand[2], 0, 0);
    need_address(p, &s->operand[0], space, &i);
    if (s->operand[1].kind == OPERAND_INTEGER) {
        check_room(p, &s->operand[0], (uint32_t)need_integer(p, &s->operand[1], 0, 1 << 24));
        if (s->operand[1].integer % 8 != 0) {
            error_at(p, &s->operand[1].token, "st.bulk writes %llu bytes; expected a multiple of 8",
                     (unsigned long long)s->operand[1].integer);
        }
    }
    const bool narrow = s->operand[1].kind == OPERAND_REGISTER && type_bytes(s->operand[1].type) == 4;
    i.b = need_source(p, &s->operand[1], narrow ? T_U32 : T_U64);
    i.kind = (uint8_t)!narrow;
    struct inst *to = emit(p, access_table()[ACCESS_FILL]);
    i.run = to->run, i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* st{.order}{.space}{.cache}{.vec}.type [a], b{, policy} */
void decode_st(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    struct inst i = {0};
    if (take(p, &at, "bulk")) {
        decode_fill(p, at);
        return;
    }
    const bool is_async = take(p, &at, "async");
    if (is_async && has(p, "mbarrier::complete_tx::bytes")) {
        decode_word(p, at, true);
        return;
    }
    i.q = is_async ? take_asynchronous(p, &at) : take_order(p, &at, true, &i.r);
    const enum space space = take_space(p, &at);
    const bool policy = skip_cache(p, &at, space, false);
    const enum type type = take_vector(p, &at, &i.count);
    take_end(p, at);
    check_cache(p, space, i.count * type_bytes(type));
    if (has(p, "async") && ((space != SPACE_GENERIC && space != SPACE_GLOBAL) || i.count > 1)) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    const struct operand *base = s->operands != 0 && s->operand[0].count != 0 ? s->operand[0].items : NULL;
    const bool is_argument = base != NULL && base->kind == OPERAND_SYMBOL && base->symbol->is_argument;
    if ((space == SPACE_PARAM && !is_argument) || space == SPACE_CONST) {
        error_at(p, &s->opcode, "'%s' writes to read-only memory; expected .global, .shared or .local", s->name);
    }
    check_vector(p, space, type, i.count);
    need_count(p, 2u + (uint32_t)policy, 2u + (uint32_t)policy);
    read_policy(p, policy);
    need_address(p, &s->operand[0], space, &i);
    check_room(p, &s->operand[0], i.count * type_bytes(type));
    const struct operand *b = elements(p, &s->operand[1], i.count);
    uint32_t *slots = parser_take(p, 8 * sizeof *slots);
    for (uint32_t k = 0; k < i.count; ++k) {
        slots[k] = need_source_wide(p, &b[k], type);
    }
    if (type == T_B128) {
        i.count = 2;
        slots[1] = slots[0] + 256;
    }
    i.size = (uint8_t)(type == T_B128 ? 8 : type_bytes(type));
    i.more = slots;
    struct inst *to = emit(p, access_table()[ACCESS_STORE]);
    i.run = to->run, i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* Decode hints without effect: prefetch, applypriority. As on the chip, the address is not checked. Decode discard. */
void decode_prefetch(struct parser *p) {
    struct statement *s = &p->statement;
    struct inst i = {0};
    if (has(p, "tensormap")) {
        decode_prefetch_map(p);
        return;
    }
    static const struct {
        const char *name, *spaces, *levels;
    } forms[] = {{"prefetch.", "global local", "L1 L2"},
                 {"prefetch.", "global", "L2::evict_last L2::evict_normal"},
                 {"prefetchu.", "", "L1"},
                 {"applypriority.", "global", "L2::evict_normal"},
                 {"discard.", "global", "L2"}};
    uint32_t at = 0, k = 0;
    int space = -1;
    for (;; ++k) {
        at = 0;
        if (k == sizeof forms / sizeof *forms) {
            error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
        }
        if (strncmp(s->name, forms[k].name, strlen(forms[k].name)) != 0) {
            continue;
        }
        space = take_choice(p, &at, forms[k].spaces);
        if (take_choice(p, &at, forms[k].levels) >= 0 && at == s->modifiers) {
            break;
        }
    }
    const bool has_size = s->name[0] != 'p'; /* discard and applypriority take a size */
    need_count(p, 1u + has_size, 1u + has_size);
    if (has_size) {
        need_integer(p, &s->operand[1], 128, 128);
    }
    need_address(p, &s->operand[0], space < 0 ? SPACE_GENERIC : space == 0 ? SPACE_GLOBAL : SPACE_LOCAL, &i);
    struct inst *to = emit(p, s->name[0] == 'd' ? control_discard : control_nop);
    i.run = to->run, i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* pmevent a: no effect, because there are no performance monitor counters. */
void decode_pmevent(struct parser *p) {
    uint32_t at = 0;
    const bool mask = take(p, &at, "mask");
    take_end(p, at);
    need_count(p, 1, 1);
    need_integer(p, &p->statement.operand[0], 0, mask ? 65535 : 15);
    emit(p, control_nop);
}

/* createpolicy.fractional.L2::first{.L2::second}.b64 d{, fraction}
 * createpolicy.range{.global}.L2::first{.L2::second}.b64 d, [a], size, size
 * createpolicy.cvt.L2.b64 d, property
 * Caches have no effect, so the policy is 0. */
void decode_createpolicy(struct parser *p) {
    enum { FRACTIONAL, RANGE, CONVERSION };
    static const uint32_t least[] = {1, 4, 2}, most[] = {2, 4, 2};
    struct statement *s = &p->statement;
    uint32_t at = 0;
    const int form = take_choice(p, &at, "fractional range cvt");
    bool good = form >= 0;
    if (form == RANGE) {
        take(p, &at, "global");
    }
    if (form == CONVERSION) {
        good = take(p, &at, "L2");
    } else if (good) {
        good = take_choice(p, &at, "L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged") >= 0;
        take_choice(p, &at, "L2::evict_first L2::evict_unchanged");
    }
    if (!good || !take(p, &at, "b64")) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    take_end(p, at);
    need_count(p, least[form], most[form]);
    if (form == RANGE) {
        struct inst address = {0};
        need_address(p, &s->operand[1], has(p, "global") ? SPACE_GLOBAL : SPACE_GENERIC, &address);
    }
    for (uint32_t k = form == RANGE ? 2 : 1; k < s->operands; ++k) {
        const struct operand *o = &s->operand[k];
        if (o->kind == OPERAND_REAL && !(o->real > 0 && o->real <= 1)) {
            error_at(p, &o->token, "the fraction of a policy is %g; expected more than 0, at most 1", o->real);
        }
        need_source(p, o, form == RANGE ? T_U32 : form == CONVERSION ? T_U64 : T_F32);
    }
    need_result(p, &s->operand[0]);
    struct inst *i = emit(p, lanes_table()[LANE_mov_64]);
    i->d = need_destination(p, &s->operand[0], T_U64);
    i->a = constant_slot(p, 0, true, NULL);
}

/* Return the generic address of the first byte of a space. */
static uint64_t window(enum space space) {
    return space == SPACE_SHARED  ? SHARED_WINDOW
           : space == SPACE_LOCAL ? LOCAL_WINDOW
           : space == SPACE_PARAM ? PARAM_WINDOW
                                  : 0;
}

/* cvta{.to}.space.u64 d, a */
void decode_cvta(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    const bool to = take(p, &at, "to");
    const enum space space = take_space(p, &at);
    const enum type type = take_type(p, &at, "u64 u32");
    take_end(p, at);
    need_count(p, 2, 2);
    if (space == SPACE_GENERIC || type != T_U64) {
        error_at(p, &s->opcode, "'%s' needs a state space and .u64", s->name);
    }
    const uint32_t a = need_source(p, &s->operand[1], T_U64), d = need_destination(p, &s->operand[0], T_U64);
    struct inst *i = emit(p, lanes_table()[to ? LANE_window_from : LANE_window_to]);
    i->d = d;
    i->a = a;
    i->b = constant_slot(p, window(space), true, NULL);
}

/* mapa{.shared::cluster}.type d, a, rank */
void decode_mapa(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    const enum space space = take(p, &at, "shared::cluster") ? SPACE_SHARED : SPACE_GENERIC;
    const enum type type = take_type(p, &at, "u32 u64 s32 s64");
    take_end(p, at);
    need_count(p, 3, 3);
    const uint32_t a = need_source(p, &s->operand[1], type), rank = need_source(p, &s->operand[2], T_U32);
    const uint32_t d = need_destination(p, &s->operand[0], type);
    struct inst *i = emit(p, control_mapa);
    i->d = d, i->a = a, i->b = rank;
    i->space = (uint8_t)space;
    i->size = (uint8_t)type_bytes(type);
}

/* getctarank{.shared::cluster}.type d, a */
void decode_getctarank(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    const enum space space = take(p, &at, "shared::cluster") ? SPACE_SHARED : SPACE_GENERIC;
    const enum type type = take_type(p, &at, "u32 u64 s32 s64");
    take_end(p, at);
    need_count(p, 2, 2);
    const uint32_t a = need_source(p, &s->operand[1], type);
    const uint32_t d = need_destination(p, &s->operand[0], T_U32);
    struct inst *i = emit(p, control_mapa);
    i->d = d, i->a = a, i->kind = 1;
    i->space = (uint8_t)space;
    i->size = (uint8_t)type_bytes(type);
}

/* isspacep.space p, a */
void decode_isspacep(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    const enum space space = take_space(p, &at);
    take_end(p, at);
    need_count(p, 2, 2);
    if (space == SPACE_GENERIC) {
        error_at(p, &s->opcode, "'%s' needs a state space: .global, .shared, .local, .const or .param", s->name);
    }
    const uint32_t a = need_source(p, &s->operand[1], T_U64), t = register_take(p, T_B64);
    need_result(p, &s->operand[0]);
    const uint16_t d = need_predicate_destination(p, &s->operand[0]);
    struct inst *i = emit(p, lanes_table()[LANE_and_b64]);
    i->d = t;
    i->a = a;
    i->b = constant_slot(p, WINDOW_MASK, true, NULL);
    i = emit(p, lanes_table()[LANE_setp_eq_u64]);
    i->p = d;
    i->a = t;
    i->b = constant_slot(p, window(space), true, NULL);
}

/* ---- atomics ------------------------------------------------------------------------------------------------- */

/* Decode atom and red, which differ in whether a result is returned. */
static void decode_atomic(struct parser *p, bool returns) {
    static const uint16_t orders[] = {ORDER_RELAXED, ORDER_RELEASE, ORDER_ACQUIRE, ORDER_ACQ_REL};
    struct statement *s = &p->statement;
    const uint32_t first = (uint32_t)returns;
    uint32_t at = 0;
    struct inst i = {.count = 1};
    const bool async = !returns && take(p, &at, "async");
    if (async && has(p, "mbarrier::complete_tx::bytes")) {
        decode_word(p, at, false);
        return;
    }
    i.q = async ? take_asynchronous(p, &at) : ORDER_RELAXED;
    const int order = take_choice(p, &at, returns ? "relaxed release acquire acq_rel" : "relaxed release");
    i.q = order >= 0 ? orders[order] : i.q;
    i.r = take_scope(p, &at, i.r);
    const enum space space = take_space(p, &at);
    const int op =
        take_choice(p, &at, returns ? "add min max and or xor inc dec exch cas" : "add min max and or xor inc dec");
    const bool noftz = take(p, &at, "noftz");
    bool policy = take(p, &at, "L2::cache_hint");
    const int vector = take_choice(p, &at, "v2 v4 v8");
    const enum type type = take_type(p, &at, "b16 b32 u32 s32 f32 b64 u64 s64 f64 b128 f16 f16x2 bf16 bf16x2");
    take_end(p, at);
    i.count = (uint8_t)(vector < 0 ? 1 : 2 << vector);
    const bool half = type == T_F16 || type == T_BF16 || type == T_F16X2 || type == T_BF16X2;
    const bool wide = type == T_B128 && op >= ATOMIC_EXCH;
    if (op < 0 || (!wide && atomic_find((enum atomic_op)op, type) == NULL) || half != noftz ||
        (half && op != ATOMIC_ADD && vector < 0) || (type == T_S64 && op == ATOMIC_ADD && !async) ||
        (async && (op != ATOMIC_ADD || half))) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    if (space != SPACE_GENERIC && space != SPACE_GLOBAL && space != SPACE_SHARED) {
        error_at(p, &s->opcode, "unknown instruction '%s': atomics need .global, .shared or a generic address",
                 s->name);
    }
    if (vector >= 0 && (space == SPACE_SHARED || i.count * type_bytes(type) > 16 || !(half || type == T_F32))) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    const uint32_t plain = first + 2 + (op == ATOMIC_CAS);
    need_count(p, plain + (uint32_t)policy, plain + (uint32_t)policy);
    read_policy(p, policy);
    need_address(p, &s->operand[first], space, &i);
    check_room(p, &s->operand[first], i.count * type_bytes(type));
    uint32_t *slots = parser_take(p, 16 * sizeof *slots);
    const struct operand *b = vector < 0 ? &s->operand[first + 1] : elements(p, &s->operand[first + 1], i.count);
    for (uint32_t k = 0; k < i.count; ++k) {
        slots[8 + k] = need_source(p, &b[k], type);
    }
    if (op == ATOMIC_CAS) {
        i.c = need_source(p, &s->operand[first + 2], type);
    }
    const struct operand *d = !returns ? NULL : vector < 0 ? &s->operand[0] : elements(p, &s->operand[0], i.count);
    for (uint32_t k = 0; k < i.count; ++k) {
        slots[k] = d != NULL ? need_destination(p, &d[k], type) : UINT32_MAX;
    }
    i.size = (uint8_t)type_bytes(type);
    i.kind = (uint8_t)op;
    i.spare = (uint8_t)type;
    i.flags |= type == T_F16X2 || type == T_BF16X2 ? ADDRESS_HALVES : 0;
    i.more = slots;
    struct inst *to = emit(p, wide ? atomic_run_wide : atomic_run);
    i.run = to->run, i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* atom{.sem}{.scope}{.space}.op{.vec}.type d, [a], b{, c} */
void decode_atom(struct parser *p) {
    decode_atomic(p, true);
}

/* red{.sem}{.scope}{.space}.op{.vec}.type [a], b */
void decode_red(struct parser *p) {
    decode_atomic(p, false);
}

/* ---- matrices ------------------------------------------------------------------------------------------------ */

/* Store the register slots of a matrix instruction in i->more. */
static void matrix_registers(struct parser *p, struct inst *i, const struct operand *v, uint32_t count,
                             bool is_source) {
    uint32_t *slots = parser_take(p, 8 * sizeof *slots);
    const struct operand *items = v->kind == OPERAND_VECTOR ? v->items : v;
    if ((v->kind == OPERAND_VECTOR ? v->count : 0) != count) {
        error_at(p, &v->token, "'%s' expects %u register%s in braces here", p->statement.name, count,
                 count == 1 ? "" : "s");
    }
    for (uint32_t k = 0; k < count; ++k) {
        slots[k] = is_source ? need_source(p, &items[k], T_B32) : need_destination(p, &items[k], T_B32);
    }
    i->more = slots;
}

static void emit_matrix(struct parser *p, struct inst *i, enum access access) {
    struct inst *to = emit(p, control_aligned);
    i->run = to->run, i->guard = to->guard, i->flip = to->flip;
    i->next = access_table()[access];
    *to = *i;
}

/* Take .sync.aligned, which is mandatory. */
static void take_aligned(struct parser *p, uint32_t *at) {
    if (!take(p, at, "sync") || !take(p, at, "aligned")) {
        error_at(p, &p->statement.opcode, "'%s' needs .sync.aligned", p->statement.name);
    }
}

/* ldmatrix.sync.aligned.shape.num{.trans}{.ss}.type r, [p] */
void decode_ldmatrix(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    struct inst i = {0};
    take_aligned(p, &at);
    const int shape = take_choice(p, &at, "m8n8 m8n16 m16n16"), num = take_choice(p, &at, "x1 x2 x4");
    const bool trans = take(p, &at, "trans");
    enum space space = take_space(p, &at);
    const int type = take_choice(p, &at, "b16 b8 b8x16");
    const int packed = type == 2 ? take_choice(p, &at, "b4x16_p64 b6x16_p32") : -1;
    take_end(p, at);
    const bool good = shape == 0   ? type == 0
                      : shape == 1 ? type == 2 && packed >= 0 && !trans
                                   : trans && num < 2 && (type == 1 || packed >= 0);
    if (shape < 0 || num < 0 || !good) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    if (shape > 0) {
        need_feature(p, 120, true, "ldmatrix of 8-bit matrices");
    }
    need_count(p, 2, 2);
    need_address(p, &s->operand[1], space, &i);
    check_room(p, &s->operand[1], 16);
    i.count = (uint8_t)(1 << num);
    i.kind = (uint8_t)(packed + 1); /* 0 bytes, 1 b4x16_p64, 2 b6x16_p32 */
    matrix_registers(p, &i, &s->operand[0], shape == 2 ? 2u * i.count : i.count, false);
    emit_matrix(p, &i,
                shape == 0   ? trans ? ACCESS_LDMATRIX_TRANS : ACCESS_LDMATRIX
                : shape == 1 ? ACCESS_LDMATRIX_PACKED
                             : ACCESS_LDMATRIX_B8);
}

/* stmatrix.sync.aligned.shape.num{.trans}{.ss}.type [p], r */
void decode_stmatrix(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    struct inst i = {0};
    take_aligned(p, &at);
    const int shape = take_choice(p, &at, "m8n8 m16n8"), num = take_choice(p, &at, "x1 x2 x4");
    const bool trans = take(p, &at, "trans");
    enum space space = take_space(p, &at);
    const int type = take_choice(p, &at, "b16 b8");
    take_end(p, at);
    if (shape < 0 || num < 0 || type != shape || (shape == 1 && !trans)) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    if (shape == 1) {
        need_feature(p, 120, true, "stmatrix of 8-bit matrices");
    }
    need_count(p, 2, 2);
    need_address(p, &s->operand[0], space, &i);
    check_room(p, &s->operand[0], 16);
    i.count = (uint8_t)(1 << num);
    i.kind = (uint8_t)trans;
    matrix_registers(p, &i, &s->operand[1], i.count, true);
    emit_matrix(p, &i, shape != 0 ? ACCESS_STMATRIX_B8 : ACCESS_STMATRIX);
}

/* movmatrix.sync.aligned.m8n8.trans.b16 d, a */
void decode_movmatrix(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    take_aligned(p, &at);
    if (!take(p, &at, "m8n8") || !take(p, &at, "trans") || !take(p, &at, "b16")) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    take_end(p, at);
    need_count(p, 2, 2);
    if (s->operand[1].kind != OPERAND_REGISTER || s->operand[1].is_special) {
        error_at(p, &s->operand[1].token, "'%s' expects a register of the kernel here", s->name);
    }
    const uint32_t a = need_source(p, &s->operand[1], T_B32), d = need_destination(p, &s->operand[0], T_B32);
    struct inst *i = emit(p, control_aligned);
    i->next = collect_movmatrix;
    i->d = d;
    i->a = a;
}
