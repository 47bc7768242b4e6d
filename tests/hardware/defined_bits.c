/* Run kernels whose inputs have undefined bits: once at level full, which says which bits of the outputs are undefined,
 * and many times at level off with other values in those bits.
 *
 * Arguments: a PTX file with entries form_0, form_1, ... of parameters (in, out). For each, stdin has four words (CTAs,
 * bytes in, bytes out, variants), a tensor map (struct given_map), the defined bits of the input, and the variants of
 * the input. stdout gets a word, the result of the first variant at level full; the length of its fault and the fault;
 * the defined bits of the output; and the outputs of all variants. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/execute/tma.h"
#include "vm/machine/device.h"
#include "vm/machine/fault.h"
#include "vm/machine/options.h"
#include "vm/machine/shade.h"
#include "vm/run/run.h"
#include "vm/text/module.h"
#include "vm/text/parse.h"

static void load(struct module *module, struct device *device, const char *text) {
    char log[4096];
    module->device = device;
    memory_open(device);
    device->limit = (size_t)1 << 32;
    if (module_parse(module, text, log, sizeof log)) {
        fprintf(stderr, "%s\n", log);
        exit(1);
    }
}

static struct CUfunc_st *find(struct module *module, const char *name) {
    char log[4096];
    struct CUfunc_st *function = NULL;
    if (module_entry(module, name, &function, log, sizeof log)) {
        fprintf(stderr, "%s\n", log);
        exit(1);
    }
    return function;
}

static void must_read(void *to, size_t bytes) {
    if (bytes && fread(to, bytes, 1, stdin) != 1) {
        exit(3);
    }
}

/* The tensor map that is the third parameter of some kernels, from an address in the input (0) or the output (1). */
struct given_map {
    uint64_t is_given, operand;
    struct tensor_map map;
};

/* Launch a kernel on copies of its input; the output is zero before. */
static CUresult run(struct device *device, struct CUfunc_st *f, const uint32_t header[4], const struct given_map *given,
                    const uint8_t *in, const uint8_t *defined, uint8_t *out, uint8_t *out_defined) {
    uint64_t address[2] = {0};
    CUtensorMap map;
    struct tensor_map fields = given->map;
    void *arguments[3] = {&address[0], &address[1], &map};
    const uint32_t grid[3] = {header[0], 1, 1}, block[3] = {128, 1, 1};
    const enum allocation_kind kind = options_checks() == CHECKS_FULL ? ALLOCATION_SHADED : ALLOCATION_PLAIN;
    if (memory_alloc(device, header[1], kind, &address[0]) || memory_alloc(device, header[2], kind, &address[1])) {
        exit(4);
    }
    fields.address += address[given->operand];
    if (given->is_given) {
        tma_map_pack(&map, &fields);
    }
    memcpy((void *)(uintptr_t)address[0], in, header[1]);
    shade_written(device, address[1], header[2]);
    for (size_t k = 0; k < device->allocation_count && out_defined; k++) {
        if (device->allocations[k].start == address[0]) {
            memcpy(device->allocations[k].shade->defined, defined, header[1]);
        }
    }
    const CUresult result = launch_run(device, f, grid, block, 0, arguments, 0);
    memcpy(out, (void *)(uintptr_t)address[1], header[2]);
    for (size_t k = 0; k < device->allocation_count && out_defined; k++) {
        if (device->allocations[k].start == address[1]) {
            memcpy(out_defined, device->allocations[k].shade->defined, header[2]);
        }
    }
    memory_free(device, address[0], ALLOCATION_PLAIN);
    memory_free(device, address[1], ALLOCATION_PLAIN);
    return result;
}

/* One form: all of its runs. */
static void form(struct device devices[2], struct CUfunc_st *strict, struct CUfunc_st *lax) {
    static const struct driver_options full = {.checks = CHECKS_FULL, .has_seed = 1},
                                       off = {.checks = CHECKS_OFF, .has_seed = 1};
    uint32_t header[4];
    struct given_map given;
    must_read(header, sizeof header);
    must_read(&given, sizeof given);
    uint8_t *in = malloc(header[1]), *defined = malloc(header[1]), *out = malloc(header[2]), *bits = malloc(header[2]);
    must_read(defined, header[1]);
    for (uint32_t k = 0; k < header[3]; k++) {
        must_read(in, header[1]);
        if (k == 0) {
            options_set(&full);
            const uint32_t result = run(&devices[0], strict, header, &given, in, defined, out, bits);
            const uint32_t length = result ? (uint32_t)strlen(fault_text()) : 0;
            fwrite(&result, sizeof result, 1, stdout);
            fwrite(&length, sizeof length, 1, stdout);
            fwrite(fault_text(), 1, length, stdout);
            fwrite(bits, 1, header[2], stdout);
        }
        options_set(&off);
        if (run(&devices[1], lax, header, &given, in, NULL, out, NULL)) {
            memset(out, 0, header[2]); /* where an undefined value decides, it may do anything */
        }
        fwrite(out, 1, header[2], stdout);
    }
    free(in);
    free(defined);
    free(out);
    free(bits);
}

int main(int count, char **arguments) {
    static struct device devices[2];
    static char text[1 << 24];
    FILE *file = count == 2 ? fopen(arguments[1], "r") : NULL;
    if (!file || !fread(text, 1, sizeof text - 1, file) || fclose(file) != 0) {
        return 2;
    }
    static struct module strict, lax;
    load(&strict, &devices[0], text);
    load(&lax, &devices[1], text);
    for (uint32_t k = 0; k < strict.entry_count; k++) {
        const char *const name = strict.entries[k].name;
        form(devices, find(&strict, name), find(&lax, name));
    }
    return 0;
}
