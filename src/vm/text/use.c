/* Records the registers that instructions read and write, by their names in the program. Watchers use them in
 * messages. */
#include <string.h>

#include "vm/machine/base.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

/* Return a symbol's name as a string, created on demand. */
const char *symbol_name(struct parser *p, struct symbol *s) {
    if (s->text == NULL) {
        char *text = s->scope->depth == 0 ? module_take(p, s->length + 1u) : parser_take(p, s->length + 1u);
        memcpy(text, s->name, s->length);
        s->text = text;
    }
    return s->text;
}

/* Record once that the statement reads or writes a register. */
void use_register(struct parser *p, const char *name, uint32_t slot, enum type type, int is_write) {
    struct statement *s = &p->statement;
    for (uint32_t k = 0; k < s->uses; ++k) {
        if (s->use[k].slot == slot && (s->use[k].type == T_PRED) == (type == T_PRED) &&
            s->use[k].is_write == is_write) {
            return;
        }
    }
    if (s->uses == MAX_USES) {
        error_at(p, &s->opcode, "'%s' names more than %d registers", s->name, (int)MAX_USES);
    }
    s->use[s->uses++] = (struct use){name, slot, (uint8_t)type, (uint8_t)is_write};
}

/* Record an operand if it is a register or a predicate. */
void use_operand(struct parser *p, const struct operand *o, bool is_write) {
    if (o->kind == OPERAND_REGISTER || o->kind == OPERAND_PREDICATE) {
        use_register(p, o->name, o->slot, o->type, is_write);
    }
}

/* Record a variable whose address is used, at [slot + address]. Parameters are skipped. */
void use_variable(struct parser *p, struct symbol *s, uint32_t slot, uint64_t address) {
    struct statement *t = &p->statement;
    if (s->space == SPACE_PARAM || s->is_argument || t->variables == MAX_OPERANDS) {
        return;
    }
    t->variable[t->variables++] =
        (struct named_address){{symbol_name(p, s), address, s->bytes, (uint8_t)s->type, (uint8_t)s->space}, slot};
}

/* Attach the recorded registers and variables to the last emitted instruction. */
void use_attach(struct parser *p) {
    struct statement *s = &p->statement;
    struct place *at = &p->places[p->length - 1];
    if (s->variables != 0) {
        struct named_address *name = parser_take(p, s->variables * sizeof *name);
        memcpy(name, s->variable, s->variables * sizeof *name);
        at->name = name;
        at->named = s->variables;
        s->variables = 0;
    }
    if (s->uses == 0) {
        return;
    }
    struct use *use = parser_take(p, s->uses * sizeof *use);
    memcpy(use, s->use, s->uses * sizeof *use);
    at->use = use;
    at->uses = s->uses;
    s->uses = 0;
}
