/* Fuzz target: PTX text is loaded, and each of its entries launched with arguments made up for it.
 *
 * The first line may say how, "// LEVEL GRID BLOCK SHARED DATA": the level of checks (0 off, 1 default, 2 full; 3: off
 * and default with one CTA, and results are compared; level full has an order of its own), CTAs, threads, bytes of
 * dynamic shared memory, and what seeds the order of events and the arguments. */
#define _POSIX_C_SOURCE 200809L
#include "target.h"
#include "vm/machine/program.h"
#include "vm/text/parse.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 4, COMPARE = 3, COMPARED = 2, MOST_PARAMETERS = 64, MOST_ENTRIES = 4 };
static const size_t sizes[BUFFERS] = {4096, 1024, 16384, 272};

struct plan {
    unsigned level, grid, block, shared, data;
};

/* Device memory, and a copy of what it holds at the start of each launch. */
struct buffers {
    CUdeviceptr address[BUFFERS];
    uint8_t start[BUFFERS][16384];
};

static struct plan read_plan(const char *text) {
    struct plan p = {1, 2, 64, 0, 0};
    if (sscanf(text, "// %4u %4u %4u %6u %9u", &p.level, &p.grid, &p.block, &p.shared, &p.data) < 1) {
        p.level = 1;
    }
    p.level %= COMPARE + 1;
    p.grid = p.level == COMPARE ? 1 : 1 + (p.grid - 1) % 4; /* between CTAs the order is free */
    p.block = 1 + (p.block - 1) % 1024;
    p.shared %= MAX_SHARED;
    return p;
}

static uint32_t draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Fill the buffers: zeros, small integers, floats or anything. */
static void fill(struct buffers *b, unsigned data) {
    uint32_t state = data;
    for (int k = 0; k < BUFFERS; k++) {
        for (size_t n = 0; n < sizes[k] / 4; n++) {
            const uint32_t random = draw(&state);
            const float real = (float)(random % 2048) / 256 - 4;
            uint32_t value = data % 4 == 1 ? (uint32_t)n % 61 : data % 4 == 3 ? random * 0x01010101u : 0;
            if (data % 4 == 2) {
                memcpy(&value, &real, 4);
            }
            memcpy(b->start[k] + 4 * n, &value, 4);
        }
    }
}

/* The buffers are allocated anew by every input, so that what it does to them is not known to the next. */
static void open_buffers(const struct driver *d, struct buffers *b, unsigned data) {
    fill(b, data);
    for (int k = 0; k < BUFFERS; k++) {
        if (d->cuMemAlloc(&b->address[k], sizes[k])) {
            fuzz_fail("no memory: %s", d->fault());
        }
    }
}

static void close_buffers(const struct driver *d, const struct buffers *b) {
    for (int k = 0; k < BUFFERS; k++) {
        if (d->cuMemFree(b->address[k])) {
            fuzz_fail("a buffer is gone: %s", d->fault());
        }
    }
}

/* Make up the arguments: addresses for what has 8 bytes, small numbers for what has 4. */
static void choose_arguments(CUfunction f, const struct buffers *b, unsigned data, uint8_t *bytes, void **arguments) {
    static const uint32_t numbers[] = {64, 1, 0x3f800000, 16, 0, 1000, 3, 0xffffffff};
    uint32_t state = data, addresses = 0;
    for (uint32_t k = 0; k < f->parameter_count; k++) {
        const struct parameter *p = &f->parameters[k];
        const uint64_t address = b->address[addresses % BUFFERS];
        const uint32_t number = numbers[data ? draw(&state) % 8 : k % 2];
        arguments[k] = bytes + p->offset;
        for (uint32_t n = 0; n < p->bytes; n++) {
            bytes[p->offset + n] = (uint8_t)(p->bytes > 8 ? draw(&state) : 0);
        }
        if (p->bytes == 8 && (addresses++, draw(&state) % 16 || !data)) {
            memcpy(arguments[k], &address, 8);
        } else {
            memcpy(arguments[k], &number, p->bytes < 4 ? p->bytes : 4);
        }
    }
}

/* Launch an entry once at a level; the results go to `after`. */
static CUresult launch(const struct driver *d, CUfunction f, const struct plan *p, int level, const struct buffers *b,
                       void **arguments, uint8_t after[BUFFERS][16384]) {
    const struct driver_options options = {.checks = level, .has_seed = 1, .seed = p->data};
    const unsigned *const r = f->required;
    for (int k = 0; k < BUFFERS; k++) {
        if (d->cuMemcpyHtoDAsync(b->address[k], b->start[k], sizes[k], NULL)) {
            fuzz_fail("a buffer cannot be written: %s", d->fault());
        }
    }
    d->configure(&options);
    d->cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)p->shared);
    const CUresult result = d->cuLaunchKernel(f, p->grid, 1, 1, r[0] ? r[0] : p->block, r[0] ? r[1] : 1,
                                              r[0] ? r[2] : 1, p->shared, NULL, arguments, NULL);
    d->configure(NULL);
    if (result && strlen(d->fault()) < 10) {
        fuzz_fail("a launch failed with %d, and the fault says '%s'", (int)result, d->fault());
    }
    for (int k = 0; k < BUFFERS; k++) {
        if (d->cuMemcpyDtoHAsync(after[k], b->address[k], sizes[k], NULL)) {
            fuzz_fail("a buffer cannot be read: %s", d->fault());
        }
    }
    return result;
}

/* Levels off and default differ in what they refuse, and in nothing else. */
static void compare(const struct driver *d, CUfunction f, const struct plan *p, const struct buffers *b,
                    void **arguments) {
    static uint8_t after[COMPARED][BUFFERS][16384];
    CUresult results[COMPARED];
    for (int level = 0; level < COMPARED; level++) {
        results[level] = launch(d, f, p, level, b, arguments, after[level]);
    }
    for (int level = 1; level < COMPARED; level++) {
        if (results[0] && !results[level]) {
            fuzz_fail("%s: level %d accepts what level 0 refuses", f->name, level);
        }
        if (results[0] || results[level]) {
            continue;
        }
        for (int k = 0; k < BUFFERS; k++) {
            if (memcmp(after[level][k], after[0][k], sizes[k]) != 0) {
                fuzz_fail("%s: levels 0 and %d differ in buffer %d", f->name, level, k);
            }
        }
    }
}

/* Does the text read a clock, so that no two runs are alike? */
static int reads_clock(const uint8_t *data, size_t size) {
    for (size_t k = 0; k + 5 <= size; k++) {
        if (!memcmp(data + k, "clock", 5) || !memcmp(data + k, "timer", 5)) {
            return 1;
        }
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct buffers buffers;
    static uint8_t after[BUFFERS][16384], bytes[1 << 15];
    static void *arguments[512];
    const struct driver *const d = target_device();
    char first[64] = "";
    memcpy(first, data, size < sizeof first ? size : sizeof first - 1);
    const struct plan plan = read_plan(first);
    CUmodule module = target_load(data, size);
    if (!module) {
        return 0;
    }
    const struct module *m = (const struct module *)(const void *)module;
    open_buffers(d, &buffers, plan.data);
    for (uint32_t k = 0; k < m->entry_count && k < MOST_ENTRIES; k++) {
        CUfunction f;
        if (d->cuModuleGetFunction(&f, module, m->entries[k].name)) {
            continue; /* it cannot run */
        }
        choose_arguments(f, &buffers, plan.data, bytes, arguments);
        if (plan.level < COMPARE) {
            launch(d, f, &plan, (int)plan.level, &buffers, arguments, after);
        } else if (!m->variable_count && !reads_clock(data, size)) { /* variables keep what a launch writes */
            compare(d, f, &plan, &buffers, arguments);
        }
    }
    close_buffers(d, &buffers);
    if (d->cuModuleUnload(module)) {
        fuzz_fail("a module cannot be unloaded: %s", d->fault());
    }
    return 0;
}
