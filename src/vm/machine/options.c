/* Options of the calling thread's launches. */
#include "vm/machine/options.h"

#include "vm/machine/environment.h"
#include "vm/machine/launch.h"

static const struct driver_options by_environment = {.checks = -1};
static _Thread_local struct driver_options configured = {.checks = -1};

/* Set the options of the calling thread's next launches. NULL: use the environment. */
void options_set(const struct driver_options *options) {
    configured = options != NULL ? *options : by_environment;
}

/* Return the current options. */
struct driver_options options_get(void) {
    return configured;
}

uint32_t options_multiprocessors(void) {
    enum { USUAL = 170 }; /* of an RTX 5090 */
    return configured.multiprocessors > 0 ? (uint32_t)configured.multiprocessors : USUAL;
}

uint32_t options_resident(void) {
    return (uint32_t)configured.resident;
}

uint32_t options_sampled(void) {
    return configured.sampled > 0 ? (uint32_t)configured.sampled : 1;
}

uint32_t options_l1_bytes(void) {
    enum { USUAL = 128 << 10 }; /* of an SM120 */
    return configured.l1_bytes > 0 ? (uint32_t)configured.l1_bytes : USUAL;
}

/* Read the level of checks from the options or, if they leave it open, from the environment. */
CUresult options_read_checks(enum checks *checks) {
    static const char *const names[] = {"off", "default", "full"};
    int level;
    const CUresult r = environment_word("PYSM120_CHECKS", names, CHECKS_DEFAULT, &level);
    *checks = (enum checks)(configured.checks >= 0 ? configured.checks : level);
    return r;
}

enum checks options_checks(void) {
    enum checks checks;
    return options_read_checks(&checks) != CUDA_SUCCESS ? CHECKS_DEFAULT : checks;
}
