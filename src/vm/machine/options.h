/* Options of the calling thread's launches: those in the device's name, else those in the environment. */
#ifndef SM120_VM_MACHINE_OPTIONS_H
#define SM120_VM_MACHINE_OPTIONS_H

#include "driver/driver.h"
#include "vm/machine/launch.h"

/* Set the options of the calling thread. NULL: no options. */
void options_set(const struct driver_options *options);
struct driver_options options_get(void);

/* Return the number of multiprocessors. */
uint32_t options_multiprocessors(void);

/* Return how many CTAs of a multiprocessor a profiled launch runs at once. 0: it runs all CTAs, each for itself. */
uint32_t options_resident(void);
/* Return how many multiprocessors such a profiled launch runs the CTAs of, one after the other. */
uint32_t options_sampled(void);
/* Return the bytes of L1 and shared memory of a multiprocessor that a profile of these CTAs counts with. */
uint32_t options_l1_bytes(void);

/* Read the level of checks. An invalid environment variable is an error of the launch. */
CUresult options_read_checks(enum checks *checks);
/* Return the level of checks, or CHECKS_DEFAULT if the environment variable is invalid. */
enum checks options_checks(void);

#endif
