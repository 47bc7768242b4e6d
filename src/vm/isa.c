/* The tables of handlers for the widest vectors of this CPU. */
#include "lanes.h"

#if defined(__x86_64__) && defined(__GNUC__)
static int level(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return 4;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") ? 3 : 1;
}

/* The arithmetic. */
handler *const *lanes_table(void) {
    const int n = level();
    return n == 4 ? lanes_v4 : n == 3 ? lanes_v3 : lanes_base;
}

/* Loads and stores. */
handler *const *access_table(void) {
    const int n = level();
    return n == 4 ? access_v4 : n == 3 ? access_v3 : access_base;
}
#else
handler *const *lanes_table(void) {
    return lanes_base;
}

handler *const *access_table(void) {
    return access_base;
}
#endif
