/* Tables of handlers for the widest vectors that this CPU supports and PYSM120_VM_ISA (base, v3, v4) allows. */
#include <stdlib.h>
#include <string.h>

#include "platform/thread.h"
#include "vm/execute/lanes.h"
#include "vm/machine/program.h"

static handler *const *lanes = lanes_base;
static handler *const *accesses = access_base;
static struct once chosen = ONCE_INITIALIZER;

/* Detect the CPU's vector width, once. */
static void choose(void) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(VM_BASE_ONLY)
    const char *const limit = getenv("PYSM120_VM_ISA");
    const bool base = limit != NULL && strcmp(limit, "base") == 0, v3 = limit != NULL && strcmp(limit, "v3") == 0;
    __builtin_cpu_init();
    if (!base && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2")) {
        lanes = lanes_v3;
        accesses = access_v3;
    }
    if (!base && !v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        lanes = lanes_v4;
        accesses = access_v4;
    }
#endif
}

/* Return the handlers of lanes.def. */
handler *const *lanes_table(void) {
    once_run(&chosen, choose);
    return lanes;
}

/* Return the handlers of loads and stores. */
handler *const *access_table(void) {
    once_run(&chosen, choose);
    return accesses;
}
