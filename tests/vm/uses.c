/* Print the registers of every instruction that a PTX text becomes: "line last guard d a b c e" and, for each register,
 * "r" or "w", name, type and slot. */
#include "vm/machine/device.h"
#include "vm/text/module.h"
#include "vm/text/parse.h"
#include <stdio.h>
#include <stdlib.h>

/* One instruction of a kernel. */
static void show(const struct CUfunc_st *f, uint32_t pc) {
    const struct place *at = &f->places[pc];
    const struct inst *i = &f->code[pc];
    printf("%u %d %s %u %u %u %u %u", at->line, at->opcode != UINT32_MAX, at->guard ? at->guard : "-", i->d, i->a, i->b,
           i->c, i->e);
    for (uint32_t k = 0; k < at->uses; k++) {
        printf(" %s %s %s %u", at->use[k].is_write ? "w" : "r", at->use[k].name, type_name((enum type)at->use[k].type),
               at->use[k].slot);
    }
    putchar('\n');
}

int main(int count, char **arguments) {
    static struct device device;
    static char text[1 << 24], log[4096];
    struct module module = {.device = &device};
    FILE *file = count == 2 ? fopen(arguments[1], "r") : NULL;
    if (!file || !fread(text, 1, sizeof text - 1, file) || fclose(file) != 0) {
        return 2;
    }
    memory_open(&device);
    device.limit = 1 << 30;
    if (module_parse(&module, text, log, sizeof log)) {
        fprintf(stderr, "%s\n", log);
        return 1;
    }
    for (uint32_t k = 0; k < module.entry_count; k++) {
        struct CUfunc_st *function = NULL;
        if (module_entry(&module, module.entries[k].name, &function, log, sizeof log)) {
            return 1;
        }
        for (uint32_t pc = 0; pc < function->length; pc++) {
            show(function, pc);
        }
    }
    module_free(&module);
    memory_free_all(&device);
    return 0;
}
