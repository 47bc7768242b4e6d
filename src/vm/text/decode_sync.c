/* Decode control flow, barriers, collectives, mbarriers and asynchronous copies. */
#include "vm/execute/async.h"
#include "vm/execute/atomic.h"
#include "vm/execute/barrier.h"
#include "vm/execute/collect.h"
#include "vm/execute/control.h"
#include "vm/execute/lanes.h"
#include "vm/execute/mbarrier.h"
#include "vm/execute/pool.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

static NORETURN void unknown(struct parser *p) {
    error_at(p, &p->statement.opcode, "unknown instruction '%s'", p->statement.name);
}

/* Return a 32-bit source operand by index. */
static uint32_t source32(struct parser *p, uint32_t index) {
    return need_source(p, &p->statement.operand[index], T_U32);
}

/* ---- branches ---- */

static void use_label(struct parser *p, const struct operand *o, uint32_t *target) {
    if (o->kind != OPERAND_LABEL) {
        error_at(p, &o->token, "'%s' expects a label here", p->statement.name);
    }
    struct label_use *use = parser_take(p, sizeof *use);
    use->token = o->token;
    use->target = target;
    use->next = p->scope->uses;
    p->scope->uses = use;
}

/* bra{.uni} label. The target is stored in a cell of its own, because the code moves while it grows. */
void decode_bra(struct parser *p) {
    uint32_t at = 0;
    take(p, &at, "uni");
    take_end(p, at);
    need_count(p, 1, 1);
    uint32_t *cell = parser_take(p, sizeof *cell);
    use_label(p, &p->statement.operand[0], cell);
    emit(p, control_bra)->more = cell;
}

/* brx.idx{.uni} index, list */
void decode_brx(struct parser *p) {
    uint32_t at = 0;
    const struct operand *list = &p->statement.operand[1];
    if (!take(p, &at, "idx")) {
        unknown(p);
    }
    take(p, &at, "uni");
    take_end(p, at);
    need_count(p, 2, 2);
    const struct symbol *s = symbol_find(p, list->token.at, list->token.length);
    if (s == NULL || s->kind != SYMBOL_LABEL || s->bytes == 0) {
        error_at(p, &list->token, "'%.*s' is not a list of branch targets; expected a label of .branchtargets",
                 (int)list->token.length, list->token.at);
    }
    const uint32_t a = source32(p, 0);
    struct inst *i = emit(p, control_brx);
    i->a = a;
    i->more = (const void *)(uintptr_t)s->bytes;
}

/* ret and exit: outside functions, both end the thread. */
void decode_exit(struct parser *p) {
    uint32_t at = 0;
    take(p, &at, "uni");
    take_end(p, at);
    need_count(p, 0, 0);
    if (p->statement.name[0] == 'r') {
        emit_return(p);
    } else {
        emit(p, control_exit);
    }
}

/* trap and brkpt */
void decode_trap(struct parser *p) {
    take_end(p, 0);
    need_count(p, 0, 0);
    emit(p, control_trap);
}

/* ---- barriers ---- */

/* Decode bar.warp.sync and barrier.cluster. Return false for any other barrier. */
static bool decode_other_barrier(struct parser *p, uint32_t at, bool is_bar) {
    if (is_bar && take(p, &at, "warp")) {
        if (!take(p, &at, "sync")) {
            unknown(p);
        }
        take_end(p, at);
        need_count(p, 1, 1);
        const uint32_t c = source32(p, 0);
        emit(p, control_barwarp)->c = c;
        return true;
    }
    if (!take(p, &at, "cluster")) {
        return false;
    }
    const int wait = take_choice(p, &at, "arrive wait");
    if (wait < 0) {
        unknown(p);
    }
    const int order = take_choice(p, &at, wait != 0 ? "acquire" : "release relaxed");
    const bool aligned = take(p, &at, "aligned");
    take_end(p, at);
    need_count(p, 0, 0);
    struct inst *i = emit(p, control_cluster);
    i->kind = (uint8_t)wait;
    i->q = order == 1 ? ORDER_RELAXED : ORDER_RELEASE;
    i->flags = (uint32_t)aligned;
    return true;
}

/* Go past the .aligned of barrier.aligned.sync: ptxas takes it before .sync, but not before .arrive and .red. */
static bool take_early_aligned(struct parser *p, uint32_t *at) {
    const struct statement *const s = &p->statement;
    const bool is_early = *at + 2 == s->modifiers && s->modifier_length[*at] == 7 && s->modifier_length[*at + 1] == 4 &&
                          memcmp(s->modifier[*at], "aligned", 7) == 0 && memcmp(s->modifier[*at + 1], "sync", 4) == 0;
    *at += is_early;
    return is_early;
}

/* bar{.cta}.op and barrier{.cta}.op{.aligned}. bar is always aligned. */
void decode_bar(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    const bool is_bar = s->name[3] == '.';
    if (is_bar && has(p, "aligned")) {
        error_at(p, &s->opcode, "unknown instruction '%s': bar is always .aligned; only barrier takes .aligned",
                 s->name);
    }
    if (decode_other_barrier(p, at, is_bar)) {
        return;
    }
    take(p, &at, "cta");
    const bool is_early = !is_bar && take_early_aligned(p, &at);
    const int op = take_choice(p, &at, "sync arrive red");
    const int reduce = op == 2 ? take_choice(p, &at, "popc and or") : -1;
    const bool aligned = is_bar || is_early || take(p, &at, "aligned");
    const bool is_typed = op != 2 || take(p, &at, reduce == 0 ? "u32" : "pred");
    take_end(p, at);
    if (op < 0 || (op == 2 && reduce < 0) || !is_typed) {
        unknown(p);
    }
    const uint32_t first = op == 2 ? 1 : 0, last = op == 2 ? s->operands - 1 : s->operands;
    need_count(p, op == 2 ? 3 : op == 1 ? 2 : 1, op == 2 ? 4 : 2);
    struct inst i = {.kind = (uint8_t)(op < 2 ? op : 2 + reduce), .flags = (uint32_t)aligned};
    if (s->operand[first].kind == OPERAND_INTEGER) {
        need_integer(p, &s->operand[first], 0, BARRIERS - 1);
    }
    i.a = source32(p, first);
    i.count = last > first + 1;
    if (i.count != 0) {
        const struct operand *count = &s->operand[first + 1];
        if (count->kind == OPERAND_INTEGER &&
            (count->integer == 0 || count->integer % WARP != 0 || count->integer > 1024)) {
            error_at(p, &count->token,
                     "the number of threads at a barrier is %llu; expected a multiple of 32 from 32 to 1024",
                     (unsigned long long)count->integer);
        }
        i.b = source32(p, first + 1);
    }
    if (op == 2) {
        int negate;
        i.r = need_predicate(p, &s->operand[last], &negate);
        i.negate = (uint8_t)negate;
        i.d = reduce != 0 ? 0 : need_destination(p, &s->operand[0], T_U32);
        i.p = reduce != 0 ? need_predicate_destination(p, &s->operand[0]) : 0;
    }
    struct inst *to = emit(p, control_bar);
    i.run = to->run, i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* Decode all forms of membar and fence. */
void decode_fence(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0, kind = FENCE_MEMORY;
    if (s->name[0] == 'm') {
        const int scope = take_choice(p, &at, "cta gl sys");
        if (scope < 0 && !take(p, &at, "proxy")) {
            unknown(p);
        }
        kind |= scope > 0 ? FENCE_GPU : 0;
        take_choice(p, &at, "alias");
    } else if (take(p, &at, "proxy")) {
        if (take(p, &at, "tensormap::generic")) {
            decode_map_fence(p, at);
            return;
        }
        if (take(p, &at, "async")) {
            const int space = take_choice(p, &at, "global shared::cta shared::cluster");
            kind = space < 0 ? FENCE_PROXY | FENCE_PROXY_GLOBAL : space != 0 ? FENCE_PROXY : FENCE_PROXY_GLOBAL;
        } else if (take(p, &at, "async::generic")) {
            kind = FENCE_PROXY;
            if (take_choice(p, &at, "acquire release") < 0 ||
                take_choice(p, &at, "sync_restrict::shared::cta sync_restrict::shared::cluster") < 0 ||
                !take(p, &at, "cluster")) {
                unknown(p);
            }
        } else {
            kind = 0;
            if (!take(p, &at, "alias")) {
                unknown(p);
            }
        }
    } else if (take(p, &at, "mbarrier_init")) {
        kind = FENCE_INITS;
        if (!take(p, &at, "release") || !take(p, &at, "cluster")) {
            unknown(p);
        }
    } else {
        int scope = -1;
        const int order = take_choice(p, &at, "release acquire sc acq_rel");
        const int space = take_choice(p, &at, "sync_restrict::shared::cta sync_restrict::shared::cluster");
        if (space >= 0 && space != order) {
            error_at(p, &s->opcode,
                     "unknown instruction '%s': only .release.sync_restrict::shared::cta and "
                     ".acquire.sync_restrict::shared::cluster are fences",
                     s->name);
        }
        if (space >= 0) {
            if (!take(p, &at, "cluster")) {
                unknown(p);
            }
        } else if ((scope = take_choice(p, &at, "cta cluster gpu sys")) < 0) {
            unknown(p);
        }
        kind |= scope > 1 ? FENCE_GPU : 0;
    }
    take_end(p, at);
    need_count(p, 0, 0);
    emit(p, control_fence)->flags = kind;
}

/* Decode instructions that only affect speed and registers: nanosleep, setmaxnreg, griddepcontrol. */
void decode_nanosleep(struct parser *p) {
    uint32_t at = 0;
    if (!take(p, &at, "u32")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 1, 1);
    source32(p, 0);
    emit(p, control_nop)->kind = 1;
}

void decode_setmaxnreg(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    const int action = take_choice(p, &at, "inc dec");
    if (action < 0 || !take(p, &at, "sync") || !take(p, &at, "aligned") || take_choice(p, &at, "u32 s32") < 0) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 1, 1);
    need_feature(p, 120, true, "setmaxnreg");
    if (need_integer(p, &s->operand[0], 24, 256) % 8 != 0) {
        error_at(p, &s->operand[0].token, "setmaxnreg expects a multiple of 8 from 24 to 256, not %llu",
                 (unsigned long long)s->operand[0].integer);
    }
    struct inst *i = emit(p, control_aligned);
    i->next = pool_set;
    i->kind = (uint8_t)action;
    i->offset = (int64_t)s->operand[0].integer;
}

void decode_griddepcontrol(struct parser *p) {
    uint32_t at = 0;
    if (take_choice(p, &at, "launch_dependents wait") < 0) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 0, 0);
    emit(p, control_nop);
}

/* ---- collectives ---- */

/* shfl.sync.mode.b32 d{|p}, a, b, c, membermask */
void decode_shfl(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    if (!take(p, &at, "sync")) {
        unknown(p);
    }
    const int mode = take_choice(p, &at, "up down bfly idx");
    if (mode < 0 || !take(p, &at, "b32")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 5, 5);
    const struct operand *d = &s->operand[0];
    need_result(p, d);
    struct inst i = {.kind = (uint8_t)mode};
    i.a = need_source(p, &s->operand[1], T_B32);
    i.b = source32(p, 2);
    i.e = source32(p, 3);
    i.c = source32(p, 4);
    i.d = need_destination(p, d->kind == OPERAND_PAIR ? &d->items[0] : d, T_B32);
    i.p = d->kind == OPERAND_PAIR ? need_predicate_destination(p, &d->items[1]) : 0;
    struct inst *to = emit(p, collect_shfl);
    i.run = to->run, i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* vote.sync.mode.{pred,b32} d, {!}a, membermask */
void decode_vote(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    if (!take(p, &at, "sync")) {
        unknown(p);
    }
    const int mode = take_choice(p, &at, "all any uni ballot");
    if (mode < 0 || !take(p, &at, mode == 3 ? "b32" : "pred")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 3, 3);
    need_result(p, &s->operand[0]);
    struct inst i = {.kind = (uint8_t)mode};
    int negate;
    i.r = need_predicate(p, &s->operand[1], &negate);
    i.negate = (uint8_t)negate;
    i.c = source32(p, 2);
    if (mode == 3) {
        i.d = need_destination(p, &s->operand[0], T_B32);
    } else {
        i.p = need_predicate_destination(p, &s->operand[0]);
    }
    struct inst *to = emit(p, collect_vote);
    i.run = to->run, i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* match.{any,all}.sync.type d{|p}, a, membermask */
void decode_match(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    const int all = take_choice(p, &at, "any all");
    if (all < 0 || !take(p, &at, "sync")) {
        unknown(p);
    }
    const enum type type = take_type(p, &at, "b32 b64");
    take_end(p, at);
    need_count(p, 3, 3);
    const struct operand *d = &s->operand[0];
    if (all == 0) {
        need_result(p, d);
    }
    if (d->kind == OPERAND_PAIR && all == 0) {
        error_at(p, &d->token, "'%s' has no predicate as a result", s->name);
    }
    struct inst i = {.kind = (uint8_t)all, .size = (uint8_t)type_bytes(type)};
    i.a = need_source(p, &s->operand[1], type);
    i.c = source32(p, 2);
    i.d = need_destination(p, d->kind == OPERAND_PAIR ? &d->items[0] : d, T_U32);
    i.p = d->kind == OPERAND_PAIR && all != 0 ? need_predicate_destination(p, &d->items[1]) : 0;
    struct inst *to = emit(p, collect_match);
    i.run = to->run, i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* redux.sync.op.type d, a, membermask */
void decode_redux(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    if (!take(p, &at, "sync")) {
        unknown(p);
    }
    const int op = take_choice(p, &at, "add min max and or xor");
    const enum type type = take_type(p, &at, op >= 3 ? "b32" : "u32 s32");
    take_end(p, at);
    if (op < 0) {
        unknown(p);
    }
    need_count(p, 3, 3);
    need_result(p, &s->operand[0]);
    const uint32_t a = source32(p, 1), c = source32(p, 2);
    const uint32_t d = need_destination(p, &s->operand[0], T_U32);
    struct inst *i = emit(p, collect_redux);
    i->kind = (uint8_t)op;
    i->size = type == T_S32;
    i->a = a;
    i->c = c;
    i->d = d;
}

/* activemask.b32 d */
void decode_activemask(struct parser *p) {
    uint32_t at = 0;
    if (!take(p, &at, "b32")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 1, 1);
    need_result(p, &p->statement.operand[0]);
    const uint32_t d = need_destination(p, &p->statement.operand[0], T_B32);
    emit(p, collect_activemask)->d = d;
}

/* elect.sync d|p, membermask */
void decode_elect(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    if (!take(p, &at, "sync")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 2, 2);
    const struct operand *d = &s->operand[0];
    if (d->kind != OPERAND_PAIR) {
        error_at(p, &d->token, "elect.sync expects a register and a predicate: d|p");
    }
    const uint32_t c = source32(p, 1), to = need_destination(p, &d->items[0], T_U32);
    const uint16_t q = need_predicate_destination(p, &d->items[1]);
    struct inst *i = emit(p, collect_elect);
    i->c = c;
    i->d = to;
    i->p = q;
}

/* ---- mbarrier ---- */

/* Take .sem and .scope of an mbarrier operation: both or neither. Return whether it is relaxed. */
static uint16_t take_scope(struct parser *p, uint32_t *at, const char *orders) {
    const int order = take_choice(p, at, orders), scope = take_choice(p, at, "cta cluster");
    if ((order < 0) != (scope < 0)) {
        error_at(p, &p->statement.opcode,
                 "unknown instruction '%s': a memory order needs a scope, and a scope an order", p->statement.name);
    }
    return order == 0 ? ORDER_RELAXED : ORDER_ACQ_REL;
}

static bool take_shared(struct parser *p, uint32_t *at) {
    return take_choice(p, at, "shared shared::cta shared::cluster") >= 0;
}

/* Decode the address of an mbarrier (8 bytes). */
static void need_barrier(struct parser *p, const struct operand *o, bool shared, struct inst *i) {
    need_address(p, o, shared ? SPACE_SHARED : SPACE_GENERIC, i);
    check_room(p, o, 8);
}

/* arrive and arrive_drop: {.expect_tx}{.noComplete} d, [a]{, count or tx} */
static void decode_arrive(struct parser *p, uint32_t at, int drop, struct inst *i) {
    struct statement *s = &p->statement;
    const int expect = take(p, &at, "expect_tx");
    const int incomplete = take(p, &at, "noComplete");
    i->q = take_scope(p, &at, "relaxed release");
    const bool shared = take_shared(p, &at);
    if (!take(p, &at, "b64")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 2 + (uint32_t)(expect | incomplete), 3);
    if (has(p, "shared::cluster") && s->operand[0].kind != OPERAND_SINK) {
        error_at(p, &s->operand[0].token, "'%s' returns no state, because the mbarrier may be remote; expected '_'",
                 s->name);
    }
    need_barrier(p, &s->operand[1], shared, i);
    i->kind = (uint8_t)(drop | expect << 1 | incomplete << 2);
    i->b = i->c = constant_slot(p, 1, false, NULL);
    if (s->operands == 3) {
        if (expect == 0 && s->operand[2].kind == OPERAND_INTEGER) {
            need_integer(p, &s->operand[2], 1, INT64_MAX);
        }
        *(expect != 0 ? &i->c : &i->b) = source32(p, 2);
    }
    i->d = s->operand[0].kind == OPERAND_SINK ? UINT32_MAX : need_destination(p, &s->operand[0], T_U64);
    i->run = mbarrier_arrive;
}

/* test_wait and try_wait{.parity}: p, [a], state or parity{, hint} */
static void decode_wait(struct parser *p, uint32_t at, int is_try, struct inst *i) {
    struct statement *s = &p->statement;
    const int parity = take(p, &at, "parity");
    i->q = take_scope(p, &at, "relaxed acquire");
    const bool shared = take_shared(p, &at);
    if (!take(p, &at, "b64")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 3, is_try != 0 ? 4 : 3);
    need_barrier(p, &s->operand[1], shared, i);
    i->kind = (uint8_t)(is_try | parity << 1);
    if (parity != 0 && s->operand[2].kind == OPERAND_INTEGER) {
        need_integer(p, &s->operand[2], 0, 1);
    }
    i->b = need_source(p, &s->operand[2], parity != 0 ? T_U32 : T_U64);
    if (s->operands == 4) {
        source32(p, 3);
    }
    i->p = need_predicate_destination(p, &s->operand[0]);
    i->run = mbarrier_wait;
}

/* expect_tx and complete_tx: {.relaxed}{.scope}{.space}.b64 [a], tx */
static void decode_tx(struct parser *p, uint32_t at, bool complete, struct inst *i) {
    struct statement *s = &p->statement;
    i->q = take_scope(p, &at, "relaxed");
    const bool shared = take_shared(p, &at);
    if (!take(p, &at, "b64")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 2, 2);
    need_barrier(p, &s->operand[0], shared, i);
    i->c = source32(p, 1);
    i->kind = (uint8_t)complete;
    i->run = mbarrier_tx;
}

/* init and inval */
static void decode_init(struct parser *p, uint32_t at, bool inval, struct inst *i) {
    struct statement *s = &p->statement;
    const bool shared = take_shared(p, &at);
    if (!take(p, &at, "b64")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, inval ? 1 : 2, inval ? 1 : 2);
    need_barrier(p, &s->operand[0], shared, i);
    if (!inval) {
        i->b = source32(p, 1);
    }
    i->run = inval ? mbarrier_inval : mbarrier_init;
}

/* mbarrier.op */
void decode_mbarrier(struct parser *p) {
    uint32_t at = 0;
    struct inst i = {0};
    switch (
        take_choice(p, &at, "init inval arrive arrive_drop test_wait try_wait expect_tx complete_tx pending_count")) {
    case 0:
        decode_init(p, at, false, &i);
        break;
    case 1:
        decode_init(p, at, true, &i);
        break;
    case 2:
        decode_arrive(p, at, 0, &i);
        break;
    case 3:
        decode_arrive(p, at, 1, &i);
        break;
    case 4:
        decode_wait(p, at, 0, &i);
        break;
    case 5:
        decode_wait(p, at, 1, &i);
        break;
    case 6:
        decode_tx(p, at, false, &i);
        break;
    case 7:
        decode_tx(p, at, true, &i);
        break;
    case 8: { /* the low word of the state holds the count */
        if (!take(p, &at, "b64")) {
            unknown(p);
        }
        take_end(p, at);
        need_count(p, 2, 2);
        const uint32_t a = need_source(p, &p->statement.operand[1], T_U64);
        i.run = lanes_table()[LANE_trunc_64];
        i.d = need_destination(p, &p->statement.operand[0], T_U32);
        i.a = a;
        break;
    }
    default:
        unknown(p);
    }
    struct inst *to = emit(p, i.run);
    i.guard = to->guard, i.flip = to->flip;
    *to = i;
}

/* ---- cp.async and cp.async.bulk ---- */

/* cp.async.{ca,cg}.shared.global{.hint} [dst], [src], size{, src-size}{, policy} */
static void decode_copy(struct parser *p, uint32_t at, struct inst *i) {
    struct statement *s = &p->statement;
    const int cg = take_choice(p, &at, "ca cg");
    if (cg < 0 || take_choice(p, &at, "shared shared::cta") < 0 || !take(p, &at, "global")) {
        unknown(p);
    }
    bool policy = take(p, &at, "L2::cache_hint");
    take_choice(p, &at, "L2::64B L2::128B L2::256B");
    policy = policy || take(p, &at, "L2::cache_hint");
    take_end(p, at);
    need_count(p, 3u + (uint32_t)policy, 4u + (uint32_t)policy);
    if (policy) {
        need_source(p, &s->operand[s->operands - 1], T_U64);
    }
    struct inst from = {0};
    need_address(p, &s->operand[0], SPACE_SHARED, i);
    need_address(p, &s->operand[1], SPACE_GLOBAL, &from);
    const int64_t size = need_integer(p, &s->operand[2], 4, 16);
    if ((size != 4 && size != 8 && size != 16) || (cg != 0 && size != 16)) {
        error_at(p, &s->operand[2].token, "cp.async.%s copies %s bytes, not %lld", cg != 0 ? "cg" : "ca",
                 cg != 0 ? "16" : "4, 8 or 16", (long long)size);
    }
    if ((from.flags & 1) != 0) {
        error_at(p, &s->operand[1].token, "'%s' expects a 64-bit global address here", s->name);
    }
    check_room(p, &s->operand[0], (uint32_t)size);
    i->size = (uint8_t)size;
    i->b = from.a;
    i->target = (uint32_t)from.offset;
    if (from.offset != (int32_t)from.offset) {
        error_at(p, &s->operand[1].token, "the offset %lld of the address does not fit in 32 bits",
                 (long long)from.offset);
    }
    i->e = UINT32_MAX;
    if (s->operands == 4u + (uint32_t)policy) {
        const struct operand *o = &s->operand[3];
        if (o->kind == OPERAND_PREDICATE) { /* ignore-src: if the predicate is true, no bytes are read */
            const uint32_t full = constant_slot(p, (uint64_t)size, false, NULL),
                           none = constant_slot(p, 0, false, NULL);
            struct inst *choose = emit(p, lanes_table()[LANE_selp_32]);
            choose->a = none;
            choose->b = full;
            choose->r = (uint16_t)o->slot;
            choose->negate = (uint8_t)o->negate;
            use_operand(p, o, false);
            choose->d = i->e = register_take(p, T_B32);
        } else {
            if (o->kind == OPERAND_INTEGER) {
                need_integer(p, o, 0, size);
            }
            i->e = source32(p, 3);
        }
    }
    i->kind = cg != 0; /* past L1 */
    i->run = async_copy;
}

/* Take operation and type of a bulk reduction in global memory. */
static void take_reduction(struct parser *p, uint32_t *at, struct inst *i) {
    const int op = take_choice(p, at, "add min max and or xor inc dec");
    const bool noftz = take(p, at, "noftz");
    const enum type type = take_type(p, at, "u32 s32 b32 u64 s64 b64 f16 bf16 f32 f64");
    const bool half = type == T_F16 || type == T_BF16;
    const bool real = half || type == T_F32 || type == T_F64;
    if (op < 0 || atomic_find((enum atomic_op)op, type) == NULL || (half && (op == ATOMIC_ADD) != noftz) ||
        (!half && (noftz || (real && op != ATOMIC_ADD))) || (op == ATOMIC_ADD && type == T_S64)) {
        unknown(p);
    }
    i->spare = (uint8_t)type;
    i->negate = (uint8_t)op;
}

/* cp.async.bulk and cp.reduce.async.bulk between shared and global memory. */
static void decode_bulk(struct parser *p, uint32_t at, bool reduce, struct inst *i) {
    static const char *const spaces = "shared::cta shared::cluster global";
    struct statement *s = &p->statement;
    struct inst other = {0}, barrier = {0};
    const int to = take_choice(p, &at, spaces), from = take_choice(p, &at, spaces);
    const bool loads = to >= 0 && to < 2 && from == 2, stores = to == 2 && from == 0;
    const bool inside = to == 1 && from == 0, fills = loads || inside;
    if ((!fills && !stores) || (reduce && fills)) {
        error_at(p, &s->opcode, "unsupported instruction '%s'%s", s->name,
                 reduce && fills ? ": bulk reductions into shared memory are not supported" : "");
    }
    if (!take(p, &at, fills ? "mbarrier::complete_tx::bytes" : "bulk_group")) {
        unknown(p);
    }
    if (has(p, "cp_mask")) {
        error_at(p, &s->opcode, "unsupported instruction '%s': byte masks are not supported", s->name);
    }
    const bool casts = loads && to == 1 && take(p, &at, "multicast::cluster");
    const bool policy = !inside && take(p, &at, "L2::cache_hint");
    i->kind = (uint8_t)(reduce ? ASYNC_REDUCE : inside ? ASYNC_INSIDE : loads ? ASYNC_LOAD : ASYNC_STORE);
    if (reduce) {
        take_reduction(p, &at, i);
    }
    take_end(p, at);
    const uint32_t count = 3u + (uint32_t)fills + (uint32_t)casts + (uint32_t)policy;
    need_count(p, count, count);
    if (policy) {
        need_source(p, &s->operand[s->operands - 1], T_U64);
    }
    need_address(p, &s->operand[fills ? 0 : 1], SPACE_SHARED, i);
    need_address(p, &s->operand[fills ? 1 : 0], inside ? SPACE_SHARED : SPACE_GLOBAL, &other);
    i->b = other.a;
    i->size = inside && (other.flags & ADDRESS_NARROW) != 0 ? 4 : 8;
    if ((!inside && (other.flags & ADDRESS_NARROW) != 0) || other.offset != (int32_t)other.offset) {
        error_at(p, &s->operand[fills ? 1 : 0].token, "'%s' expects a 64-bit global address with a 32-bit offset here",
                 s->name);
    }
    i->target = (uint32_t)other.offset;
    if (s->operand[2].kind == OPERAND_INTEGER &&
        (s->operand[2].integer % 16 != 0 || s->operand[2].integer > MAX_SHARED)) {
        error_at(p, &s->operand[2].token, "the size of a bulk copy is %llu; expected a multiple of 16 up to %d",
                 (unsigned long long)s->operand[2].integer, (int)MAX_SHARED);
    }
    for (int k = 0; k < 2 && s->operand[2].kind == OPERAND_INTEGER; ++k) {
        check_room(p, &s->operand[k], (uint32_t)s->operand[2].integer);
    }
    i->c = source32(p, 2);
    if (fills) {
        need_barrier(p, &s->operand[3], true, &barrier);
        i->e = barrier.a;
        uint32_t *more = parser_take(p, 3 * sizeof *more);
        more[0] = (uint32_t)barrier.offset;
        more[1] = barrier.flags & ADDRESS_NARROW;
        more[2] = casts ? need_source(p, &s->operand[4], T_U16) : 0;
        i->more = more;
    }
    i->flags |= ADDRESS_ASYNC;
    i->run = async_bulk;
}

/* Decode the forms of cp.async.bulk that copy nothing: commit_group, wait_group, prefetch. Return false for other
 * forms. */
static bool decode_bulk_control(struct parser *p, uint32_t at, struct inst *i) {
    struct statement *s = &p->statement;
    if (take(p, &at, "commit_group")) {
        take_end(p, at);
        need_count(p, 0, 0);
        i->run = async_bulk_commit;
    } else if (take(p, &at, "wait_group")) {
        i->kind = (uint8_t)take(p, &at, "read");
        take_end(p, at);
        need_count(p, 1, 1);
        i->offset = need_integer(p, &s->operand[0], 0, 1 << 20);
        i->run = async_bulk_wait;
    } else if (take(p, &at, "prefetch")) {
        if (!take(p, &at, "L2") || !take(p, &at, "global")) {
            error_at(p, &s->opcode, "unsupported instruction '%s'", s->name);
        }
        const bool policy = take(p, &at, "L2::cache_hint");
        take_end(p, at);
        need_count(p, 2u + (uint32_t)policy, 2u + (uint32_t)policy);
        need_address(p, &s->operand[0], SPACE_GLOBAL, i);
        if (s->operand[1].kind == OPERAND_INTEGER && s->operand[1].integer % 16 != 0) {
            error_at(p, &s->operand[1].token, "the size of a bulk prefetch is %lld; expected a multiple of 16",
                     (long long)s->operand[1].integer);
        }
        i->c = source32(p, 1);
        if (policy) {
            need_source(p, &s->operand[2], T_U64);
        }
        i->run = async_prefetch;
    } else {
        return false;
    }
    return true;
}

/* cp.async.mbarrier.arrive{.noinc}.shared.b64 [a] */
static void decode_copy_arrive(struct parser *p, uint32_t at, struct inst *i) {
    if (!take(p, &at, "arrive")) {
        unknown(p);
    }
    i->kind = (uint8_t)take(p, &at, "noinc");
    const bool shared = take_shared(p, &at);
    if (!take(p, &at, "b64")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 1, 1);
    need_barrier(p, &p->statement.operand[0], shared, i);
    i->run = async_arrive;
}

/* Decode all instructions that begin with cp. */
void decode_cp(struct parser *p) {
    const struct statement *s = &p->statement;
    struct inst i = {0};
    uint32_t at = 0;
    const bool reduce = take(p, &at, "reduce");
    if (!take(p, &at, "async")) {
        unknown(p);
    }
    if (take(p, &at, "bulk")) {
        if (has(p, "tensor")) {
            const bool is_prefetch = !reduce && take(p, &at, "prefetch");
            if (!take(p, &at, "tensor")) {
                unknown(p);
            }
            decode_tensor_copy(p, at, reduce, is_prefetch);
            return;
        }
        if (reduce || !decode_bulk_control(p, at, &i)) {
            decode_bulk(p, at, reduce, &i);
        }
    } else if (take(p, &at, "commit_group")) {
        take_end(p, at);
        need_count(p, 0, 0);
        i.run = async_commit;
    } else if (take(p, &at, "wait_all")) {
        take_end(p, at);
        need_count(p, 0, 0);
        i.run = async_wait;
        i.kind = 1;
    } else if (take(p, &at, "wait_group")) {
        take_end(p, at);
        need_count(p, 1, 1);
        i.offset = need_integer(p, &s->operand[0], 0, 1 << 20);
        i.run = async_wait;
    } else if (take(p, &at, "mbarrier")) {
        decode_copy_arrive(p, at, &i);
    } else {
        decode_copy(p, at, &i);
    }
    struct inst *to = emit(p, i.run);
    i.guard = to->guard, i.flip = to->flip;
    *to = i;
}
