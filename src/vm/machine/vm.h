/* The virtual SM120: its structures and the functions that its files share.
 *
 * How PTX becomes numbers
 *   lexer.c -> parser.c     text to declarations and statements, with file:line and caret errors
 *   decode*.c, lanes.def    statement to `struct inst`: a handler, operand offsets into the warp's register file and a
 *                           predicate. Immediates and symbol addresses live in constant vectors beside the registers,
 *                           so every operand is a vector of 32 lanes.
 *   lanes_isa.c             the arithmetic: one function per row of lanes.def, all 32 lanes at once, blended by mask;
 *                           compiled once per vector width and chosen at run time (isa.c)
 *   access_isa.c            ld, st, ldmatrix, stmatrix
 *   function.c, call.c      functions: how they become part of a kernel, and how they are called; printf is in print.c
 *   control.c, collect.c    branches and barriers; shuffles, votes and other warp-wide collectives
 *   atomic.c, tensor.c, mbarrier.c, async.c
 *                           atom and red; mma; mbarriers; bulk and non-bulk asynchronous copies
 *   tma.c, tma_map.c, tma_box.c
 *                           tensor maps, the copies of boxes that they describe, and where the boxes' bytes are
 *   warp.c                  runs one warp: its lanes may be at several pcs ("splits"), the lowest pc runs first
 *   cta.c                   chooses which warp runs, lets asynchronous copies land, finds deadlocks
 *   use.c                   the registers of each instruction by name, for the reports of watchers
 *   schedule.c, poll.c      choose which CTA runs: those that wait for others make room for them; recognise waiting
 *   launch.c                checks a launch and spreads its CTAs over threads
 *   memory.c                device memory (an address is a host pointer) and every check of an address
 *   defined*.c              level full: which values are defined, and what undefined ones decide
 *   profile.c               counts by statement while somebody takes a profile; reach.c, cost.c: what memory an
 *                           instruction touches, and what that costs
 *   watch.c, trace.c        calls whoever looks on while instructions execute; shows them to a caller of the library
 *   fault.c, counters.c     what went wrong, what was counted
 *   driver_virtual.c        the driver API above all that
 *
 * A register of up to 32 bits is uint32_t[32] (narrow values are kept zero-extended), one of 64 bits uint64_t[32], a
 * predicate one bit per lane of a uint32_t. A fault is a value: a handler returns STEP_FAULT and the launch unwinds.
 *
 * Environment: PYSM120_THREADS (threads that run CTAs), PYSM120_SEED (order of warps, moments of asynchronous copies),
 * PYSM120_INSTRUCTION_LIMIT (warp instructions of a launch, 2^40), PYSM120_PATIENCE (milliseconds that other threads of
 * the host have to answer a launch that only waits, 1000), PYSM120_VIRTUAL_MEMORY (bytes, 24 GiB),
 * PYSM120_VIRTUAL_DEVICES (1), PYSM120_VM_ISA (base, v3: narrower vectors), PYSM120_CHECKS (off, default, full). A bad
 * value is an error of what it steers: of opening a device, or of a launch. */
#ifndef SM120_VM_VM_H
#define SM120_VM_VM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "driver/driver.h"
#include "platform/compiler.h"
#include "platform/thread.h"

#define FULL 0xffffffffu
enum {
    WARP = 32,
    MAX_WARPS = 32,
    MAX_SHARED = 101376,
    DEFAULT_SHARED = 49152,
    BARRIERS = 16,
    CLUSTER_BARRIER = BARRIERS
};

/* Generic addresses of the spaces that have no host address. Shared memory starts at 1024, as on the chip, so that
 * address 0 is never valid. */
#define SHARED_BASE   1024u
#define SHARED_WINDOW 0x0100000000000000u
#define LOCAL_WINDOW  0x0200000000000000u
#define PARAM_WINDOW  0x0300000000000000u
#define CODE_WINDOW   0x0400000000000000u /* the address of a function: its number * 16 */
#define WINDOW_MASK   0xff00000000000000u

/* ---- types --------------------------------------------------------------------------------------------------- */

/* X(name, PTX spelling, bytes, class): class p predicate, b bits, i integer, f float, x packed */
#define TYPES(X)                                                                                                       \
    X(PRED, "pred", 0, 'p')                                                                                            \
    X(B8, "b8", 1, 'b')                                                                                                \
    X(U8, "u8", 1, 'i')                                                                                                \
    X(S8, "s8", 1, 'i')                                                                                                \
    X(B16, "b16", 2, 'b')                                                                                              \
    X(U16, "u16", 2, 'i')                                                                                              \
    X(S16, "s16", 2, 'i')                                                                                              \
    X(F16, "f16", 2, 'f')                                                                                              \
    X(BF16, "bf16", 2, 'f')                                                                                            \
    X(B32, "b32", 4, 'b')                                                                                              \
    X(U32, "u32", 4, 'i')                                                                                              \
    X(S32, "s32", 4, 'i')                                                                                              \
    X(F32, "f32", 4, 'f')                                                                                              \
    X(F16X2, "f16x2", 4, 'x')                                                                                          \
    X(BF16X2, "bf16x2", 4, 'x')                                                                                        \
    X(TF32, "tf32", 4, 'x')                                                                                            \
    X(B64, "b64", 8, 'b')                                                                                              \
    X(U64, "u64", 8, 'i')                                                                                              \
    X(S64, "s64", 8, 'i')                                                                                              \
    X(F64, "f64", 8, 'f')                                                                                              \
    X(F32X2, "f32x2", 8, 'x')                                                                                          \
    X(B128, "b128", 16, 'b')                                                                                           \
    X(E4M3X2, "e4m3x2", 2, 'x')                                                                                        \
    X(E5M2X2, "e5m2x2", 2, 'x')                                                                                        \
    X(E2M3X2, "e2m3x2", 2, 'x')                                                                                        \
    X(E3M2X2, "e3m2x2", 2, 'x')                                                                                        \
    X(E2M1X2, "e2m1x2", 1, 'x')                                                                                        \
    X(UE8M0X2, "ue8m0x2", 2, 'x')
enum type {
    T_NONE,
#define X(name, text, bytes, class) T_##name,
    TYPES(X)
#undef X
        TYPE_COUNT
};
const char *type_name(enum type type);
unsigned type_bytes(enum type type);
char type_class(enum type type);
/* The type spelled `text` ("u32", no dot), or T_NONE. */
enum type type_find(const char *text, size_t length);

enum space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM, SPACE_CONST };

/* ---- decoded programs ---------------------------------------------------------------------------------------- */

enum step {
    STEP_NEXT,  /* go on with the next instruction */
    STEP_JUMP,  /* the handler changed the splits */
    STEP_AGAIN, /* wait, then execute this instruction again */
    STEP_WAIT,  /* arrived at a barrier: whoever completes it moves this split on */
    STEP_YIELD, /* go on with the next instruction, but give others a turn: a poll that failed */
    STEP_FAULT
};

struct warp;
struct inst;
typedef enum step handler(struct warp *w, const struct inst *i, uint32_t mask);

/* Modifiers that arithmetic asks for at run time (inst.flags). */
enum {
    FLAG_FTZ = 1,
    FLAG_SAT = 2,
    FLAG_RELU = 4,
    FLAG_NAN = 8,
    FLAG_ROUND = 16, /* rounding mode << 4: 0 nearest even, 1 zero, 2 down, 3 up, 4 nearest away */
    FLAG_XORSIGN = 128,
    FLAG_ABS = 256
};
#define ROUNDING(flags) (((flags) >> 4) & 7u)

/* One instruction. Operand offsets are in bytes; bit 0 chooses constants instead of registers. */
struct inst {
    handler *run;
    uint32_t d, a, b, c, e; /* destination and sources */
    uint32_t guard, flip;   /* executes in lanes where predicate[guard] ^ flip */
    uint32_t flags;
    uint16_t p, q, r;    /* predicate operands */
    uint8_t size, count; /* bytes of an access, elements of a vector */
    uint8_t space, kind; /* what they mean is the handler's */
    uint8_t negate, spare;
    uint32_t target;  /* of a branch */
    int64_t offset;   /* of an address, or an immediate */
    const void *more; /* what else the handler needs, in the module's arena */
    handler *next;    /* the handler that a check hands over to */
};

/* A register that an instruction reads or writes. */
struct use {
    const char *name; /* as the program spells it */
    uint32_t slot;    /* in bytes from warp.registers; the index of a predicate */
    uint8_t type;     /* as it was declared */
    uint8_t is_write;
};

/* A variable and its place in its space. */
struct placed {
    const char *name; /* as the program spells it */
    uint64_t address, bytes;
    uint8_t type, space;
};

/* A variable that an instruction names as an address: it is at [slot + variable.address]. */
struct named_address {
    struct placed variable;
    uint32_t slot;
};

/* Where an instruction was written, and what it is called. A statement that became several instructions has its
 * registers and its counter at the last one, but a call has them where arguments and results are moved. */
struct place {
    const char *file;
    const char *text;   /* its statement in the text of the module, up to ';', or a brace; the same for all it became */
    uint32_t line, row; /* of the file, as line markers say; of the text itself */
    uint32_t opcode;    /* counter */
    const struct use *use; /* its registers, without the guard, which is inst.guard */
    uint32_t uses, named;
    const struct named_address *name; /* its variables: `named` of them */
    const char *guard;                /* what the program calls it; NULL: none */
};

struct parameter {
    const char *name;
    enum type type;
    uint32_t offset, bytes, align, count; /* count: elements of an array, 0 for a scalar */
};

/* A hardware register that is loaded into an ordinary one when a warp starts. */
enum special {
    SPECIAL_TID_X,
    SPECIAL_TID_Y,
    SPECIAL_TID_Z,
    SPECIAL_NTID_X,
    SPECIAL_NTID_Y,
    SPECIAL_NTID_Z,
    SPECIAL_CTAID_X,
    SPECIAL_CTAID_Y,
    SPECIAL_CTAID_Z,
    SPECIAL_NCTAID_X,
    SPECIAL_NCTAID_Y,
    SPECIAL_NCTAID_Z,
    SPECIAL_LANEID,
    SPECIAL_WARPID,
    SPECIAL_NWARPID,
    SPECIAL_SMID,
    SPECIAL_NSMID,
    SPECIAL_GRIDID,
    SPECIAL_LANEMASK_EQ,
    SPECIAL_LANEMASK_LE,
    SPECIAL_LANEMASK_LT,
    SPECIAL_LANEMASK_GE,
    SPECIAL_LANEMASK_GT,
    SPECIAL_DYNAMIC_SMEM_SIZE,
    SPECIAL_TOTAL_SMEM_SIZE,
    SPECIAL_GRID_WORKSPACE_HIGH,
    SPECIAL_GRID_WORKSPACE_LOW,
    SPECIAL_ZERO,
    SPECIAL_ONE,
    SPECIAL_CLOCK,
    SPECIAL_CLOCK_HI,
    SPECIAL_CLOCK64,
    SPECIAL_GLOBALTIMER,
    SPECIAL_GLOBALTIMER_LO,
    SPECIAL_GLOBALTIMER_HI,
    SPECIAL_COUNT
};
struct special_use {
    uint32_t special, slot;
};

/* A function (.func) as part of a kernel's code. */
struct routine {
    const char *name;
    const struct definition *definition;
    struct call_site *sites; /* its calls */
    uint32_t pc;
    uint32_t frame, frame_bytes; /* the register that holds the local address of its frame */
    uint32_t first, end;         /* its registers, in bytes */
    uint32_t first_predicate, end_predicate;
    const uint8_t *wide;  /* [register / 128]: is it of 64 bits? */
    uint32_t saved_bytes; /* of local memory, for all of its registers */
    bool is_recursive;
};

/* A call instruction. */
struct call_site {
    struct call_site *next;
    const struct routine *caller; /* NULL: the kernel itself */
    struct routine *callee;       /* NULL: by address */
    const struct signature *signature;
};

/* What a lane comes back to. */
struct call {
    uint32_t pc, frame;
    const struct call_site *site;
};

struct module;
struct CUfunc_st {
    const char *name;
    struct module *module;
    struct parameter *parameters;
    uint32_t parameter_count, parameter_bytes;
    struct inst *code;
    struct place *places;
    uint32_t length;
    uint32_t register_bytes, predicates;
    char *constants;
    uint32_t constant_bytes;
    struct special_use *specials;
    uint32_t special_count;
    uint32_t static_shared, local_bytes, dynamic_align;
    uint32_t frame_bytes, call_depth; /* local memory of the kernel itself; calls that may nest, 0: none */
    struct routine **routines;        /* by number of the function, NULL where it is no part of the kernel */
    uint32_t routine_count;
    uint32_t required[3], maximum[3]; /* .reqntid and .maxntid; 0: not given */
    int dynamic_limit;                /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    bool is_entry;
};

/* Memory that is freed at once. */
struct arena {
    struct arena_block *first;
};
void *arena_take(struct arena *arena, size_t bytes); /* zeroed, 64-byte aligned; NULL when memory is used up */
void arena_free(struct arena *arena);

struct device;
struct module {
    struct arena arena;
    const char *name; /* what messages call its text where no line marker stands */
    struct device *device;
    struct CUfunc_st **functions;
    uint32_t function_count;
    struct placed *variables; /* .global and .const ones */
    uint32_t variable_count;
    struct module *next, *previous;
};

/* ---- memory -------------------------------------------------------------------------------------------------- */

struct allocation {
    uint64_t start, end;
    void *mapping; /* with its guards */
    size_t mapped;
    bool pinned, owned;  /* owned by a module */
    int constant;        /* kernels only read it */
    uint64_t freed_at;   /* freed, but launches up to this number may still use it; 0: not freed */
    struct shade *shade; /* defined.h: which of its bytes are defined; NULL: all of them */
};

/* ---- execution ----------------------------------------------------------------------------------------------- */

/* How strict a launch is: bounds, alignment and the like are always checked. */
enum checks { CHECKS_OFF, CHECKS_DEFAULT, CHECKS_FULL };

/* inst.q of ld, st, atom, red and of mbarrier operations: what the access orders. inst.r of the first four: its scope
 * is the CTA. */
enum order { ORDER_WEAK, ORDER_RELAXED, ORDER_ACQUIRE, ORDER_RELEASE, ORDER_ACQ_REL };

/* inst.flags of a fence */
enum { FENCE_MEMORY = 1, FENCE_PROXY = 2, FENCE_PROXY_GLOBAL = 4, FENCE_GPU = 8 /* its scope */ };

enum wait {
    WAIT_NOT,
    WAIT_CONVERGE, /* for the other lanes of the warp */
    WAIT_MBARRIER,
    WAIT_BULK,   /* for bulk groups of this thread */
    WAIT_BARRIER /* at bar.sync; the only one that does not execute its instruction again */
};

/* Lanes of a warp that are at the same pc. */
struct split {
    uint32_t pc, mask;
    uint32_t address; /* of the mbarrier waited for, or the barrier's number */
    uint32_t phase, detail;
    uint32_t ran;                       /* instructions since others last had a turn */
    uint8_t wait, skip, forced, polled; /* polled: address and phase are of the last poll, which failed */
};

struct cta;
struct worker;
struct warp {
    const char *base[2]; /* registers, constants */
    char *registers;
    uint32_t *predicates; /* [0] is true, [1] the carry flags */
    uint32_t pc, active;  /* of the split that runs */
    uint32_t live;        /* lanes that have not exited */
    struct cta *cta;
    struct worker *worker;
    const struct CUfunc_st *function;
    uint8_t *local; /* [lane][local_bytes] */
    uint32_t index, current, splits;
    uint32_t bulk_group[WARP];         /* committed bulk groups */
    uint32_t async_group[WARP];        /* committed cp.async groups */
    struct call *calls;                /* [depth][lane] */
    uint32_t depth[WARP], frame[WARP]; /* calls that each lane is in; local address of its frame */
    struct split split[WARP];
};

struct mbarrier {
    uint32_t address;
    uint32_t expected, pending, phase;
    int32_t tx;
    bool valid;
};

struct barrier {
    uint32_t arrived, expected; /* threads */
    uint32_t reduced_and, reduced_or, count;
};

enum async_kind { ASYNC_LOAD, ASYNC_STORE, ASYNC_REDUCE, ASYNC_COPY, ASYNC_ARRIVE };
struct async_op {
    uint8_t kind, op, type, is_tensor;
    uint32_t warp, lane, group, mask;
    uint32_t shared, bytes, mbarrier;
    uint64_t global;
    uint32_t copy; /* ASYNC_COPY, ASYNC_ARRIVE: index of its lanes; of a tensor copy: of its box */
    uint32_t pc;
};
struct async_lanes {
    uint64_t from[WARP];
    uint32_t to[WARP], bytes[WARP], group[WARP];
    uint32_t size;
};

struct launch;
struct tma_box;
struct cta {
    struct launch *launch;
    uint32_t id[3];
    uint64_t linear;
    uint32_t warps, threads, exited_warps, live_threads;
    uint8_t *shared; /* shared[address - SHARED_BASE] */
    uint32_t shared_bytes;
    struct mbarrier *mbarrier;
    uint32_t mbarriers, mbarrier_space;
    uint16_t *mbarrier_at;                /* [shared_bytes / 8]: index + 1 */
    struct barrier barrier[BARRIERS + 1]; /* the last: of the cluster */
    struct async_op *async;
    uint32_t asyncs, async_space;
    struct async_lanes *async_lanes;
    uint32_t async_lanes_space;
    struct tma_box *boxes; /* of tensor copies in flight */
    uint32_t box_space;
    uint64_t random;
    uint32_t progress; /* counts everything that can end a wait */
    struct warp *warp;
    struct shadow *shadow;   /* check.h; NULL when nothing is checked */
    struct defined *defined; /* defined.h; kept for the launches at level full */
    int watches_lanes;       /* at level full */
    uint64_t executed;       /* warp instructions */
    uint32_t left;           /* warps that have not ended */
    uint32_t hopeless, fruitless, blocked, progressed;
    uint64_t changes, work, changes_base, work_base; /* poll.c: what it has done; what its worker had done before */
    uint64_t slice_start, slice_changes, slice_work, slice_reads; /* when the present slice began */
    uint32_t polled, quiet_slices; /* repeated reads in it; slices without a sign of work */
    bool waits_outside;            /* something in this round may wait for another CTA */
    struct poll *polls;            /* [warp][lane][2]; NULL until a lane reads strongly */
    struct poll *watched[8];       /* some of those that it waits with */
    uint32_t watches;
    uint64_t states[16], state_news; /* schedule.c: of the last times that it waited in vain */
    uint32_t state_count;
    bool in_vain, is_stuck;
    /* the room that it lives in, kept for the next CTA */
    char *memory; /* shared, then registers, predicates, local and calls of each warp */
    size_t memory_bytes, used_bytes;
    const struct launch *prepared_for;
    uint64_t prepared_number;
    struct shadow *kept_shadow;
    struct cta *following; /* in the list that it is in */
};

/* What one thread needs to run CTAs; kept between launches. */
struct worker {
    struct launch *launch;
    uint64_t *counts; /* [pc]: warp instructions executed */
    uint64_t bytes[16];
    uint64_t tensor_flops;
    uint64_t executed, checked; /* warp instructions; looked at */
    uint64_t changes;           /* atomic operations that changed what they met */
    struct allocation cached[8];
    struct profile_worker *profile; /* profile.c; NULL when nobody takes a profile */
    struct cta *spare;              /* an empty room, or NULL */
    uint32_t scratch[16][WARP];
};

enum traffic {
    TRAFFIC_LD_GLOBAL,
    TRAFFIC_ST_GLOBAL,
    TRAFFIC_LD_SHARED,
    TRAFFIC_ST_SHARED,
    TRAFFIC_LD_LOCAL,
    TRAFFIC_ST_LOCAL,
    TRAFFIC_ATOM_GLOBAL,
    TRAFFIC_ATOM_SHARED,
    TRAFFIC_LDMATRIX,
    TRAFFIC_STMATRIX,
    TRAFFIC_BULK_LOAD,
    TRAFFIC_BULK_STORE,
    TRAFFIC_BULK_REDUCE,
    TRAFFIC_ASYNC,
    TRAFFIC_COUNT
};

struct watcher;
struct trace;
struct launch {
    const struct CUfunc_st *function;
    struct device *device;
    uint32_t grid[3], block[3], threads, warps;
    uint32_t shared_bytes, dynamic_bytes; /* static + dynamic */
    uint8_t *parameters;
    uint64_t workspace; /* address of what cooperative groups count CTAs in; 0: no cooperative launch */
    uint64_t ctas, seed, stride, instruction_limit; /* stride: from one CTA to the next, in the seed's order */
    uint64_t patience;                              /* milliseconds that the host has to answer when all wait */
    atomic_uint_fast64_t next, executed;
    atomic_int stop;
    unsigned interrupts; /* of the device, when the launch began */
    struct mutex lock;   /* of what follows */
    CUresult result;
    char fault[4096];
    struct printed *printed; /* what printf wrote, latest first */
    size_t printed_bytes, unprinted_bytes;
    unsigned helpers;
    enum checks checks;
    const struct watcher *watcher[4]; /* watch.h */
    uint32_t watchers;
    struct profile *profile; /* NULL: nobody takes one */
    struct trace *trace;     /* trace.c; NULL: no caller looks on */
    struct launch *following;
    uint64_t number; /* of this launch in the process, from 1 */
    struct launch *next_running;
    struct schedule *schedule; /* schedule.c */
    struct world *world;       /* check_global.h: at level full, else NULL */
};

/* ---- functions of each file ---------------------------------------------------------------------------------- */

/* parser.c: turn PTX into a module; CUDA_SUCCESS or CUDA_ERROR_*, with the reason in log. */
CUresult module_parse(struct module *module, const char *text, char *log, size_t log_bytes);

/* isa.c */
handler *const *lanes_table(void);
handler *const *access_table(void);

/* warp.c */
enum turn { TURN_BLOCKED, TURN_USED, TURN_POLLED, TURN_DONE, TURN_FAULT };
enum turn warp_run(struct warp *w, uint32_t quantum, uint32_t *executed);
void warp_retire(struct warp *w, uint32_t mask);
void warp_leave_behind(struct warp *w, uint32_t mask);
/* Wait until every lane of `needed` is at this instruction. STEP_NEXT when they are. */
enum step warp_converge(struct warp *w, uint32_t mask, uint32_t needed, const char *why);

/* cta.c */
enum outcome { CTA_TURN, CTA_WAITS, CTA_ENDED, CTA_STOPPED };
/* Bring a CTA to its first instruction, in a room that is prepared. False after a fault. */
bool cta_start(struct cta *cta, struct worker *worker, uint64_t linear);
/* Give each warp of a CTA that many turns. CTA_WAITS: it only polls. */
enum outcome cta_run(struct cta *cta, struct worker *worker, uint32_t turns);
/* What a split waits for, in words. */
void cta_wait_text(const struct warp *w, const struct split *s, char *to, size_t bytes);
uint64_t cta_random(struct cta *cta);
/* One line for each warp: what it waits for. Returns the bytes written. */
size_t cta_describe(const struct cta *cta, char *to, size_t bytes);

/* schedule.c */
bool schedule_open(struct launch *launch); /* False: out of memory */
void schedule_run(struct worker *worker, struct launch *launch);
bool schedule_has_work(struct launch *launch);
void schedule_close(struct launch *launch);
void room_free(struct cta *room);

/* poll.c: reads that are repeated until another warp or CTA answers. */
/* Lanes have read `bytes` each. true: all of them have read this again and again, and it was always the same. */
bool poll_note(struct warp *w, uint8_t *const *place, uint32_t mask, uint32_t bytes, int is_shared);
void poll_start(struct cta *cta);
/* A worker takes a CTA up, and leaves it. */
void poll_enter(struct cta *cta, const struct worker *worker);
void poll_leave(struct cta *cta, const struct worker *worker);
/* A CTA waits: remember what for. */
void poll_watch(struct cta *cta);
/* Has something changed that it polled? */
bool poll_has_answer(const struct cta *cta);
/* What lanes of a warp poll, for a report; 0 if nothing. */
int poll_describe(const struct warp *w, uint32_t mask, char *to, size_t bytes);
/* What a worker has done to global memory: a number that changes. */
uint64_t poll_changes(const struct worker *worker);
/* At the end of a slice: did the CTA do nothing but poll in it? */
bool poll_is_all(struct cta *cta, const struct worker *worker);

/* control.c */
handler control_bra, control_exit, control_trap, control_bar, control_barwarp, control_aligned, control_brx,
    control_nop, control_fence, control_setp, control_set, control_clock, control_rank;
/* A barrier counts fewer threads when a warp exits. */
void barrier_check(struct cta *cta, uint32_t number);

/* function.c: may functions with these signatures stand for each other? */
bool signature_equal(const struct signature *a, const struct signature *b);
const struct signature *routine_signature(const struct routine *routine);

/* call.c */
handler call_direct, call_indirect, call_return;

/* print.c */
handler print_format, print_assertion;
/* Write what a launch printed to stdout, in the order of its CTAs. */
void print_flush(struct launch *launch);

/* memory.c */
void memory_open(struct device *device);
/* Before and after a fork: take and free the locks. In the child no launch runs. */
void memory_lock_all(struct device *device);
void memory_unlock_all(struct device *device, bool is_child);
/* A launch begins or ends: what is freed in between stays until it has ended. */
void memory_enter(struct device *device, struct launch *launch);
void memory_leave(struct device *device, struct launch *launch);
CUresult memory_alloc(struct device *device, size_t bytes, int pinned, uint64_t *address);
CUresult memory_free(struct device *device, uint64_t address, int pinned);
void memory_free_all(struct device *device);
CUresult memory_check_range(struct device *device, uint64_t address, size_t bytes, const char *what);
/* The host pointer of global memory, or NULL after a fault. */
void *memory_global(struct warp *w, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane, const char *what);
/* 0: not in one allocation; 1: it is; 2: it is, and may not be written. */
int memory_find(struct worker *worker, uint64_t address, uint64_t bytes);
/* The same for any space. `address` is as the instruction computed it; *traffic says which space it was. */
void *memory_any(struct warp *w, enum space space, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane,
                 int is_write, enum space *found);
void *memory_shared(struct warp *w, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane, const char *what);

/* mbarrier.c */
handler mbarrier_init, mbarrier_inval, mbarrier_arrive, mbarrier_wait, mbarrier_tx;
struct mbarrier *mbarrier_get(struct warp *w, uint64_t address, uint32_t lane, const char *what);
/* Change the counts; false after a fault. */
bool mbarrier_change(struct warp *w, struct mbarrier *m, int32_t arrivals, int32_t tx, int drop, uint32_t lane);
bool mbarrier_passed(const struct cta *cta, uint32_t address, uint32_t phase);

/* async.c */
handler async_bulk, async_bulk_commit, async_bulk_wait, async_copy, async_commit, async_wait, async_arrive;
/* Issue a tensor copy whose two sides are good. False after a fault. */
bool async_start(struct warp *w, const struct async_op *op, const struct tma_box *box);
/* Let one operation in flight land. 0: nothing is in flight; -1: fault. */
int async_land(struct cta *cta);
bool async_bulk_done(const struct warp *w, uint32_t mask, uint32_t allowed);
void async_init(struct cta *cta);

/* atomic.c */
handler atomic_run, atomic_run_wide;
enum atomic_op {
    ATOMIC_ADD,
    ATOMIC_MIN,
    ATOMIC_MAX,
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
    ATOMIC_INC,
    ATOMIC_DEC,
    ATOMIC_EXCH,
    ATOMIC_CAS
};
typedef uint64_t atomic_function(void *address, uint64_t value, uint64_t compare);
/* NULL where PTX has no such operation. */
atomic_function *atomic_find(enum atomic_op op, enum type type);
/* The same for cp.reduce.async.bulk. */
atomic_function *atomic_find_bulk(enum atomic_op op, enum type type);

/* collect.c */
handler collect_shfl, collect_vote, collect_match, collect_redux, collect_activemask, collect_elect, collect_movmatrix;

/* Wait until all lanes of the member mask (i->c) are here. STEP_JUMP: lanes with different masks have executed i. */
enum step collect_members(struct warp *w, const struct inst *i, uint32_t mask, uint32_t *members);

/* tensor.c */
handler tensor_mma, tensor_mma_double, tensor_wmma;

/* check_lanes.c: lanes have met at a collective; called at level full alone. */
void lanes_meet(struct warp *w, uint32_t mask);

/* fault.c */
/* Record the fault of a launch (the first one wins) and return STEP_FAULT. lane: 32 for none in particular. */
enum step fault_at(struct warp *w, CUresult code, uint32_t lane, const char *format, ...) PRINTF_LIKE(4, 5);
/* The same in two steps: the text of a fault, and its record. */
struct fault_text {
    char text[2048];
};
struct fault_text fault_format(const struct warp *w, uint32_t lane, const char *message);
void fault_record(struct launch *launch, CUresult code, const char *text);
void fault_cta(struct cta *cta, CUresult code, const char *format, ...) PRINTF_LIKE(3, 4);
/* The text of the calling thread. */
CUresult fault_set(CUresult code, const char *format, ...) PRINTF_LIKE(2, 3);
const char *fault_text(void);

/* counters.c */
uint32_t counter_index(const char *name, size_t length); /* of an opcode, process-wide */
const char *counter_path(uint32_t traffic);
const char *counter_name(uint32_t index);
/* Before and after a fork. */
void counters_lock(void);
void counters_unlock(void);
void counters_add(struct device *device, const struct worker *worker, const struct CUfunc_st *function);

/* launch.c */
CUresult launch_run(struct device *device, struct CUfunc_st *f, const uint32_t grid[3], const uint32_t block[3],
                    uint32_t dynamic, void **arguments, bool is_cooperative);
/* The shared memory of a CTA with that much dynamic. */
uint32_t launch_shared(const struct CUfunc_st *f, uint32_t dynamic);
unsigned launch_threads(void);
void launch_out_of_memory(struct launch *launch);
/* Before and after a fork; the child has no helpers. */
void launch_lock(void);
void launch_unlock(bool is_child);
void launch_configure(const struct driver_options *options);
/* The level that the calling thread's launches would have; CHECKS_DEFAULT where the environment says nonsense. */
enum checks launch_checks(void);
struct driver_options launch_configured(void);

enum { MAX_COUNTERS = 1024, FREED = 256, MULTIPROCESSORS = 170 };
/* CTAs that one multiprocessor holds: limited by threads, shared memory and their number, registers not counted. */
unsigned launch_occupancy(unsigned threads, size_t shared);

struct device {
    int ordinal;
    struct rwlock memory_lock;      /* of the allocations; taken for moments and while the host copies */
    struct allocation *allocations; /* sorted by start */
    size_t allocation_count, allocation_space;
    struct allocation freed[FREED];
    size_t freed_next;
    size_t used, limit;
    struct mutex running_lock; /* of the next three; taken after memory_lock */
    struct launch *running;
    uint64_t launches;
    size_t dying; /* allocations that are freed and still in use */
    struct mutex counter_lock;
    uint64_t opcode_count[MAX_COUNTERS];
    uint64_t bytes[TRAFFIC_COUNT], tensor_flops;
    atomic_uint shades;      /* allocations with a shade */
    struct stored *stored;   /* defined_report.c; guarded by running_lock */
    struct profile *profile; /* that is taken now; guarded by counter_lock */
    struct module *modules;
    struct mutex module_lock;
    atomic_uint host_calls; /* copies, fills, allocations, launches: signs that the host is alive */
    atomic_uint interrupts; /* how often somebody asked the running launches to stop */
};

static inline const void *source(const struct warp *w, uint32_t offset) {
    return w->base[offset & 1u] + (offset & ~1u);
}

static inline void *destination(struct warp *w, uint32_t offset) {
    return w->registers + offset;
}

static inline uint32_t bit_count(uint32_t x) {
    uint32_t n = 0;
    for (; x != 0; x &= x - 1) {
        ++n;
    }
    return n;
}

static inline uint32_t lowest_bit(uint32_t x) {
#if defined(__GNUC__)
    return (uint32_t)__builtin_ctz(x);
#else
    uint32_t n = 0;
    while (!(x >> n & 1)) {
        ++n;
    }
    return n;
#endif
}

#endif
