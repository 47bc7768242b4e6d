/* A decoded program: instructions, their source positions, functions, variables. */
#ifndef SM120_VM_MACHINE_PROGRAM_H
#define SM120_VM_MACHINE_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "vm/machine/arena.h"
#include "vm/machine/base.h"
#include "vm/machine/types.h"

enum step {
    STEP_NEXT,  /* go on with the next instruction */
    STEP_JUMP,  /* the handler changed the splits and the pc */
    STEP_PART,  /* likewise: the lanes that are still in warp.active have executed the instruction, others stay at it */
    STEP_AGAIN, /* wait, then execute this instruction again */
    STEP_WAIT,  /* arrived at a barrier: the warp that completes it moves this split on */
    STEP_YIELD, /* go on with the next instruction after other warps had a turn: a poll that failed */
    STEP_FAULT
};

struct warp;
struct inst;
typedef enum step handler(struct warp *w, const struct inst *i, uint32_t mask);

/* inst.flags: modifiers that arithmetic handlers test at run time. */
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

/* One instruction. Operands are byte offsets. If bit 0 is set, the offset is into the constants, else into the
 * registers. */
struct inst {
    handler *run;
    uint32_t d, a, b, c, e; /* destination and sources */
    uint32_t guard, flip;   /* executes in lanes where predicate[guard] ^ flip */
    uint32_t flags;
    uint16_t p, q, r;    /* predicate operands */
    uint8_t size, count; /* bytes of an access, elements of a vector */
    uint8_t space, kind; /* the handler defines their meaning */
    uint8_t negate, spare;
    uint32_t target;  /* of a branch */
    int64_t offset;   /* of an address, or an immediate */
    const void *more; /* further operands of the handler, in the module's arena */
    handler *next;    /* the handler to run after a check */
};

/* A register that an instruction reads or writes. */
struct use {
    const char *name; /* as the program spells it */
    uint32_t slot;    /* in bytes from warp.registers; the index of a predicate */
    uint8_t type;     /* its declared type */
    uint8_t is_write;
};

/* A variable and its address in its state space. */
struct placed {
    const char *name; /* as the program spells it */
    uint64_t address, bytes;
    uint8_t type, space;
};

/* A variable whose address an instruction uses. The access is at [slot + variable.address]. */
struct named_address {
    struct placed variable;
    uint32_t slot;
};

/* Source position and name of an instruction. If a statement became several instructions, its registers and its
 * counter are at the last one. A call has them at the instructions that copy arguments and results. */
struct place {
    const char *file;
    /* text: the statement in the module's text, up to ';' or a brace. All instructions of a statement share it. */
    const char *text;
    const char *from_file; /* the line of the kernel that called it, if .loc says that it was inlined; NULL: none */
    uint32_t from_line;
    uint32_t line, row;    /* line in the file, as line markers or .loc say; line in the module's text */
    bool is_located;       /* by .loc */
    uint32_t opcode;       /* counter */
    const struct use *use; /* its registers, except the guard (inst.guard) */
    uint32_t uses, named;
    const struct named_address *name; /* `named` variables */
    const char *guard;                /* name in the program; NULL: no guard */
};

struct parameter {
    const char *name;
    enum type type;
    uint32_t offset, bytes, align, count; /* count: elements of an array, 0 for a scalar */
};

/* A hardware register whose value is copied to an ordinary register when a warp starts. */
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
    SPECIAL_GRAPH,
    SPECIAL_LANEMASK_EQ,
    SPECIAL_LANEMASK_LE,
    SPECIAL_LANEMASK_LT,
    SPECIAL_LANEMASK_GE,
    SPECIAL_LANEMASK_GT,
    SPECIAL_DYNAMIC_SMEM_SIZE,
    SPECIAL_TOTAL_SMEM_SIZE,
    SPECIAL_AGGR_SMEM_SIZE,
    SPECIAL_GRID_WORKSPACE_HIGH,
    SPECIAL_GRID_WORKSPACE_LOW,
    SPECIAL_ZERO,
    SPECIAL_ONE,
    SPECIAL_CLUSTERID_X,
    SPECIAL_CLUSTERID_Y,
    SPECIAL_CLUSTERID_Z,
    SPECIAL_NCLUSTERID_X,
    SPECIAL_NCLUSTERID_Y,
    SPECIAL_NCLUSTERID_Z,
    SPECIAL_CLUSTER_CTAID_X,
    SPECIAL_CLUSTER_CTAID_Y,
    SPECIAL_CLUSTER_CTAID_Z,
    SPECIAL_CLUSTER_NCTAID_X,
    SPECIAL_CLUSTER_NCTAID_Y,
    SPECIAL_CLUSTER_NCTAID_Z,
    SPECIAL_CLUSTER_CTARANK,
    SPECIAL_CLUSTER_NCTARANK,
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
    const uint8_t *wide;  /* [register / 128]: whether it has 64 bits */
    uint32_t saved_bytes; /* local memory that holds all its registers */
    bool is_recursive;
};

/* A call instruction. */
struct call_site {
    struct call_site *next;
    const struct routine *caller; /* NULL: the kernel itself */
    struct routine *callee;       /* NULL: by address */
    const struct signature *signature;
    /* Return whether a call from this site may reach this function. Used for calls by address. */
    bool (*fits)(const struct call_site *site, const struct routine *callee);
};

/* Return address of a lane. */
struct call {
    uint32_t pc, frame;
    uint32_t end; /* of the frame that the call has made */
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
    uint32_t *shared_constants; /* offsets of those that are addresses of shared memory; bit 0: of 64 bits */
    uint32_t shared_constant_count;
    struct special_use *specials;
    uint32_t special_count;
    uint32_t static_shared, local_bytes, dynamic_align;
    uint32_t frame_bytes, call_depth; /* local memory of the kernel itself; depth of nested calls, 0: no calls */
    struct routine **routines;        /* by number of the function; NULL if it is not part of the kernel */
    uint32_t routine_count;
    uint32_t required[3], maximum[3];  /* .reqntid and .maxntid; 0: not given */
    uint32_t cluster[3];               /* .reqnctapercluster; 0: not given */
    uint32_t register_limit, resident; /* .maxnreg and .minnctapersm; 0: not given */
    int dynamic_limit;                 /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    bool is_entry;
    bool counts_clusters; /* .blocksareclusters: a launch gives the clusters of the grid, not its CTAs */
};

struct device;
struct entry;
struct parser;
struct module {
    struct arena arena; /* what lives as long as the module */
    struct arena code;  /* of entries, as far as it is kept: text/module.c */
    const char *name;   /* file name in messages if the text has no line markers */
    struct device *device;
    struct parser *parser; /* with the names of the module */
    struct entry *entries;
    uint32_t entry_count, entry_space;
    struct placed *variables; /* .global and .const ones */
    uint32_t variable_count, variable_space;
    struct module *next, *previous;
};

#endif
