/* Launches of the library's kernels take structs by name: what launch_of() makes of them, and which it refuses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/builtin.h"
#include "runtime/error.h"
#include "runtime/launch.h"

#ifndef VALUE
#define VALUE .from = 1, .to = 2
#endif
#ifndef POINTER
#define POINTER &copy
#endif

static void expect(bool is_true, const char *what) {
    if (!is_true) {
        fprintf(stderr, "%s; the last error is: %s\n", what, sm120_last_error());
        exit(EXIT_FAILURE);
    }
}

static const struct kernel_record *find(const struct kernel_record *wanted) {
    uint32_t index = 0;
    expect(builtin_find(wanted, &index) == SM120_OK, "the record is there");
    return kernel_records + index;
}

int main(void) {
    const struct kernel_record *const copy_rows =
        find(&(struct kernel_record){.operation = "copy_rows", .element_bytes = 4});
    struct kernel_record wanted = {.operation = "attention", .precision = SM120_F16, .config = "r16", .head_dim = 64};
    const struct kernel_record *const uniform = find(&wanted);
    wanted.features = true;
    const struct kernel_record *const any = find(&wanted);
    struct copy_rows_parameters copy = {VALUE};
    struct attention_16bit_parameters less = {.upper = 3};
    struct attention_16bit_any_parameters more = {.q_tiles = 5, .sequence = {.softcap = 2}};
    struct argument_pointers pointers;
    struct launch launch;

    expect(launch_of(&pointers, ARGUMENTS(POINTER), 7, copy_rows, NULL, &launch) == SM120_OK, "its own struct");
    expect(launch.argument_count == 12 && launch.grid[0] == 7 && launch.block[0] == 256, "of its record");
    expect(pointers.values[0] == &copy.from && pointers.values[1] == &copy.to && pointers.bytes[1] == 8, "in order");
    expect(pointers.values[11] == &copy.to_columns && pointers.bytes[11] == 4, "to the last");

    expect(launch_of(&pointers, ARGUMENTS(&more), 1, uniform, NULL, &launch) == SM120_OK, "a struct that begins so");
    expect(launch.argument_count == 26 && pointers.values[14] == &more.q_tiles, "the first ones");
    expect(launch_of(&pointers, ARGUMENTS(&more), 1, any, NULL, &launch) == SM120_OK, "all of it");
    expect(launch.argument_count == 49 && pointers.values[47] == &more.sequence.softcap, "in a group");

    expect(launch_of(&pointers, ARGUMENTS(&less), 1, any, NULL, &launch) == SM120_INTERNAL, "too short a struct");
    expect(strstr(sm120_last_error(), any->entry) != NULL, "the message names the kernel");
    expect(launch_of(&pointers, ARGUMENTS(&copy), 1, any, NULL, &launch) == SM120_INTERNAL, "another kernel's struct");
    wanted.layout = "z";
    uint32_t index = 0;
    expect(builtin_find(&wanted, &index) == SM120_INTERNAL, "no such record");
    return EXIT_SUCCESS;
}
