/* Shared declarations of the PTX parser, by file. */
#ifndef SM120_VM_PARSE_H
#define SM120_VM_PARSE_H

#include <setjmp.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "driver/driver.h"
#include "platform/compiler.h"
#include "vm/machine/program.h"

enum token_kind {
    TOKEN_END = 256,
    TOKEN_NAME, /* add, %r1, $L__BB0_1 */
    TOKEN_DOT,  /* .u32, .shared::cta */
    TOKEN_INTEGER,
    TOKEN_REAL,
    TOKEN_STRING,
    TOKEN_SHIFT_LEFT,
    TOKEN_SHIFT_RIGHT,
    TOKEN_EQUAL,
    TOKEN_UNEQUAL,
    TOKEN_AT_MOST,
    TOKEN_AT_LEAST,
    TOKEN_AND,
    TOKEN_OR
};

struct token {
    int kind;                   /* a character or enum token_kind */
    uint32_t length, line, row; /* line in `file`; line in the module's text */
    const char *at, *file;
    uint64_t integer;
    double real;
    bool single; /* a float written as 0f........ */
};

struct lexer {
    const char *text, *next, *file;
    uint32_t line, row;
    bool line_start;
};

enum symbol_kind { SYMBOL_REGISTER, SYMBOL_RANGE, SYMBOL_VARIABLE, SYMBOL_LABEL, SYMBOL_FUNCTION };
struct symbol {
    struct symbol *chain, *in_scope; /* next with the same hash, inner scopes first; next in the same scope */
    const struct scope *scope;
    const char *name, *text; /* text: the name as a string, created on demand */
    uint32_t length, hash;
    enum symbol_kind kind;
    enum type type;
    uint32_t slot;            /* register or predicate; pc of a label */
    uint32_t vector;          /* elements of a vector register; 0: not a vector */
    struct symbol **elements; /* of a range, r<bytes>: created on first use; NULL: no element used yet */
    enum space space;         /* of a variable */
    uint64_t address, bytes;  /* global, const: address; others: offset */
    uint32_t align;
    const struct CUfunc_st *owner; /* the function for which the address of a shared variable is valid */
    bool is_dynamic;
    bool is_argument;                  /* a .param variable of a function or a call, in local memory */
    bool is_prototype;                 /* an entry that is declared but not yet defined */
    bool is_extern;                    /* a variable without a definition so far */
    const char *unsupported;           /* why code that names the variable cannot run; NULL: it can */
    struct definition *definition;     /* of a function */
    const struct signature *prototype; /* of a label */
};

enum operand_kind {
    OPERAND_REGISTER,
    OPERAND_PREDICATE,
    OPERAND_INTEGER,
    OPERAND_REAL,
    OPERAND_SYMBOL,
    OPERAND_ADDRESS,
    OPERAND_VECTOR,
    OPERAND_LABEL,
    OPERAND_SINK,
    OPERAND_PAIR
};
struct operand {
    enum operand_kind kind;
    struct token token;
    enum type type;   /* of a register */
    uint32_t slot;    /* register offset or predicate number */
    const char *name; /* of a register or predicate */
    bool negate;      /* !p */
    bool is_special;  /* a hardware register */
    uint64_t integer;
    double real;
    int single;
    struct symbol *symbol; /* NULL: no symbol */
    int64_t offset;
    struct operand *items; /* of a vector or pair; of an address: its base register, coordinates */
    uint32_t count;
};

enum { MAX_OPERANDS = 12, MAX_MODIFIERS = 24, MAX_CHOICES = 12, MAX_USES = 64, MAX_REASONS = 20 };

/* A statement that is being decoded. */
struct statement {
    struct token opcode;
    const char *start;                   /* the guard; NULL: the statement has no guard */
    const char *modifier[MAX_MODIFIERS]; /* without the dot */
    uint32_t modifier_length[MAX_MODIFIERS];
    uint32_t modifiers;
    struct operand operand[MAX_OPERANDS];
    uint32_t operands;
    uint32_t guard, flip;
    const char *guard_name;
    char name[160]; /* the opcode with its modifiers */
    struct use use[MAX_USES];
    struct named_address variable[MAX_OPERANDS];
    uint32_t uses, variables;
};

struct label_use {
    struct label_use *next;
    struct token token;
    uint32_t pc;
    uint32_t *target;
};

struct scope {
    struct scope *outer;
    uint32_t depth;
    struct symbol *symbols;
    struct label_use *uses;
};

struct constant {
    uint64_t value;
    uint32_t slot, is_wide;
    /* A shared variable whose address it is. The value is relative to dynamic shared memory if the variable is. */
    struct symbol *base;
};

/* The name of an element of a range, such as x2 of x<4>. */
struct range_name {
    const char *text;
    uint32_t length;
};

/* A parameter or result of a function. */
struct formal {
    struct token name;
    enum type type;
    uint32_t bytes, align, offset; /* offset: in the argument area */
    bool is_register;
};
struct signature {
    struct formal *results, *arguments;
    uint32_t result_count, argument_count;
};
struct definition {
    struct definition *next;
    struct symbol *symbol;
    struct signature *signature;
    struct lexer lexer; /* positioned at its body */
    struct token token;
    uint32_t number;
    bool has_body, is_extern;
    bool is_taken; /* the module uses its address */
    struct routine *routine;
    const struct CUfunc_st *owner; /* the kernel that `routine` belongs to */
};
/* Signatures of calls by address, each once. */
struct prototype {
    struct prototype *next;
    const struct signature *signature;
};
/* An entry whose body is read after all functions are known. */
struct deferred {
    struct deferred *next;
    struct lexer lexer;
    struct token token;
};

/* Why an entry cannot run. */
struct reason {
    struct reason *next;
    const char *at, *text; /* place in the module's text; message with the source line */
};
struct entry {
    const char *name;
    struct lexer lexer; /* positioned at its parameters */
    struct token token;
    struct CUfunc_st *function;       /* NULL: it cannot run, or its code was not kept */
    struct reason *reasons, **reason; /* list and its end; no reasons: it can run */
    uint32_t reason_count;
};

/* .file 1 "kernel.cu" */
struct source {
    struct source *next;
    const char *name;
    uint64_t number;
};

/* A line of a source file. In code of an inlined function `from` is the line of the kernel that called it, perhaps
 * through others. */
struct location {
    const char *file, *from_file; /* NULL: none */
    uint32_t line, from_line;
};

/* A place in an inlined function, and the line of the kernel from which that was called. */
enum { INLININGS = 256 };
struct inlining {
    uint64_t file, line, column;
    const char *from_file;
    uint32_t from_line;
};

/* The name of a source file. */
struct file {
    struct file *next;
    const char *name;
};

struct parser {
    struct lexer lexer;
    struct token token;
    struct module *module;
    struct arena *arena; /* of parser_take(): that of the module, or that of its code */
    struct entry *entry; /* that is being decoded; NULL: none */
    jmp_buf *fail;       /* where errors continue; NULL: nothing is being read */
    CUresult result;
    char message[2048]; /* of the last error */
    const char *failed_at;
    struct file *files;
    struct source *sources;  /* what .file directives name, by number */
    struct location located; /* where .loc says that the next instructions come from; no file: from the text itself */
    struct inlining inlined[INLININGS]; /* by a hash of the place */
    struct symbol **hash;
    uint32_t hash_size, symbol_count;
    struct scope *scope;
    int version, target;
    char target_suffix; /* 'a', 'f' or 0 */
    struct CUfunc_st *function;
    struct inst *code;
    struct place *places;
    uint32_t length, code_space;
    struct constant *constants;
    uint32_t constant_count, constant_space, constant_bytes;
    uint32_t register_bytes, predicates, shared_bytes, local_bytes;
    uint32_t reserved_shared;         /* address of the memory reserved for cooperative groups; 0: not used */
    uint32_t const_bytes;             /* of the module */
    bool has_extern, has_samplers;    /* of the module: .extern variables, .target texmode_independent */
    bool has_prototypes, knows_taken; /* of the module: .callprototype or .calltargets; definition.is_taken is set */
    const struct symbol *unsupported; /* what an initialiser names that is not supported; NULL: nothing */
    uint32_t special_slot[SPECIAL_COUNT]; /* slot + 1 */
    uint8_t *wide;                        /* [register / 128] */
    uint32_t wide_space;
    struct definition *definitions; /* latest first */
    uint32_t definition_count, argument_bytes;
    struct deferred *deferred, **deferred_end;
    struct routine *routine;      /* the function being read; NULL: the kernel itself */
    struct call_site *sites;      /* of the kernel itself */
    struct prototype *prototypes; /* of calls by address, in the kernel and in functions that it may call */
    struct definition *linking;
    struct statement statement;
    int depth; /* nesting depth of constant expressions */
};

/* lexer.c */
void lexer_start(struct lexer *lexer, const char *text, const char *file);
void token_next(struct parser *p);
/* Report an error at a token (file:line:col, the source line, a caret) and leave the parser. */
NORETURN void error_at(struct parser *p, const struct token *token, const char *format, ...) PRINTF_LIKE(3, 4);
bool token_is(const struct token *token, const char *text);
void expect(struct parser *p, int kind, const char *what);
bool accept(struct parser *p, int kind);
/* Return the module's copy of a file name. */
const char *file_name(struct parser *p, const char *name, size_t length);
/* Call `read`. False: it has met an error. While an entry is being decoded, the error is added to its reasons. */
bool parser_try(struct parser *p, void (*read)(struct parser *));
/* Return zeroed memory: for the code of an entry while one is being decoded; that lives as long as the module. */
void *parser_take(struct parser *p, size_t bytes);
void *module_take(struct parser *p, size_t bytes);

/* variables.c */
enum type token_type(struct parser *p);
void read_variables(struct parser *p, enum space space, bool is_extern);
void declare_registers(struct parser *p);
/* Return the bytes of an array whose [n] is read next, or of a single value. */
uint64_t read_array(struct parser *p, enum type type);
/* Read n> behind a name and <, of variables in memory. */
uint64_t read_range(struct parser *p);
struct range_name range_name(struct parser *p, const struct token *name, uint64_t element);

/* parser.c */
void read_block(struct parser *p);
void read_directive(struct parser *p);
void read_pragma(struct parser *p);

/* entry.c */
void read_performance(struct parser *p, struct CUfunc_st *f);
/* Read the parameters and the body of an entry. NULL: it is a prototype. */
struct CUfunc_st *read_entry(struct parser *p, const char *name);

/* function.c */
void read_function(struct parser *p, bool is_extern);
void read_arguments(struct parser *p); /* .param variables of a call */
void read_alias(struct parser *p);
const struct signature *read_prototype(struct parser *p);
const struct signature *read_call_targets(struct parser *p);
void read_call(struct parser *p);
/* Emit the return from a function or, outside functions, the end of the thread. */
void emit_return(struct parser *p);
/* Read the functions that the kernel calls into its code, and compute the stack that they need. */
void link_functions(struct parser *p, struct CUfunc_st *f);
/* Return the register or constant that addresses of local variables are relative to. */
uint32_t local_base(struct parser *p);
/* Skip { ... }. */
void skip_block(struct parser *p);

/* operand.c */
void operand_parse(struct parser *p, struct operand *o);
int64_t constant_integer(struct parser *p);
struct symbol *symbol_find(struct parser *p, const char *name, uint32_t length);
/* Report an error if a name is that of a variable that is not supported. */
void need_supported(struct parser *p, const struct token *name, const struct symbol *s);
struct symbol *symbol_add(struct parser *p, const struct token *token, const char *name, uint32_t length,
                          enum symbol_kind kind);
struct symbol *symbol_add_range(struct parser *p, const struct token *name, enum type type, uint64_t count);
void scope_open(struct parser *p);
void scope_close(struct parser *p);
void scope_drop(struct parser *p); /* the same after an error: labels stay unresolved */
uint32_t register_take(struct parser *p, enum type type);
uint32_t constant_slot(struct parser *p, uint64_t value, bool is_wide, struct symbol *base);
/* Assign a shared variable its address at its first use in this function. */
void symbol_place(struct parser *p, struct symbol *symbol);
struct expression {
    uint64_t integer;
    double real;
    bool is_real, single;
};
struct expression constant_expression(struct parser *p);

/* use.c */
const char *symbol_name(struct parser *p, struct symbol *s);
void use_variable(struct parser *p, struct symbol *s, uint32_t slot, uint64_t address);
void use_register(struct parser *p, const char *name, uint32_t slot, enum type type, int is_write);
void use_operand(struct parser *p, const struct operand *o, bool is_write);
void use_attach(struct parser *p);

/* modifiers.c */
bool has(const struct parser *p, const char *modifier);
/* Go past the modifier at *at if it is in the list "a b c". Return its index, else -1. */
int take_choice(struct parser *p, uint32_t *at, const char *list);
bool take(struct parser *p, uint32_t *at, const char *modifier);
enum type take_type(struct parser *p, uint32_t *at, const char *list);
void take_end(struct parser *p, uint32_t at);
/* Match the modifiers with a pattern of lanes.def. */
bool modifiers_match(struct statement *s, const char *pattern, uint32_t *flags);
void modifiers_name(struct statement *s);
void modifiers_drop_repeated(struct statement *s);

/* decode.c */
void decode(struct parser *p);
void decode_known(struct parser *p);
/* Helpers of the decoders. Each reports an error if the operand does not match. */
uint32_t need_source(struct parser *p, const struct operand *o, enum type type);
uint32_t need_source_wide(struct parser *p, const struct operand *o, enum type type);
void need_result(struct parser *p, const struct operand *o);
uint32_t need_destination(struct parser *p, const struct operand *o, enum type type);
uint32_t need_destination_wide(struct parser *p, const struct operand *o, enum type type);
uint16_t need_predicate(struct parser *p, const struct operand *o, int *negate);
uint16_t need_predicate_destination(struct parser *p, const struct operand *o);
int64_t need_integer(struct parser *p, const struct operand *o, int64_t low, int64_t high);
/* Decode an address operand into i->a and i->offset. */
void need_address(struct parser *p, const struct operand *o, enum space space, struct inst *i);
void need_count(struct parser *p, uint32_t least, uint32_t most);
struct inst *emit(struct parser *p, handler *run);
void need_feature(struct parser *p, int least_target, bool needs_suffix, const char *what);

/* Emit the move of a value to a register that may be wider, with sign or zero extension. */
void emit_extend(struct parser *p, const struct operand *d, enum type type, uint32_t from);

typedef void decoder(struct parser *p);
/* decode_memory.c, decode_sync.c, decode_tensor.c, decode_wmma.c, decode_move.c */
decoder decode_ld, decode_st, decode_prefetch, decode_atom, decode_red, decode_ldmatrix, decode_stmatrix, decode_cvta,
    decode_pmevent, decode_createpolicy, decode_mapa, decode_getctarank, decode_clusterlaunchcontrol;
void check_room(struct parser *p, const struct operand *o, uint32_t bytes);
decoder decode_bra, decode_brx, decode_exit, decode_trap, decode_bar, decode_fence, decode_shfl, decode_vote,
    decode_match, decode_redux, decode_activemask, decode_elect, decode_mbarrier, decode_cp, decode_movmatrix,
    decode_griddepcontrol, decode_setmaxnreg, decode_nanosleep, decode_isspacep;
decoder decode_mma, decode_wmma;
struct mma_plan;
void tensor_drop_upper_rows(struct parser *p, struct mma_plan *plan);
/* decode_tma.c */
decoder decode_tensormap, decode_prefetch_map;
void decode_tensor_copy(struct parser *p, uint32_t at, bool is_reduction, bool is_prefetch);
void decode_map_fence(struct parser *p, uint32_t at);
decoder decode_mov, decode_cvt, decode_setp, decode_set, decode_lop3;

#endif
