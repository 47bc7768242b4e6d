/* How the calling thread's launches run: as its device's name says, else as the environment says. */
#ifndef SM120_VM_MACHINE_OPTIONS_H
#define SM120_VM_MACHINE_OPTIONS_H

#include "driver/driver.h"
#include "vm/machine/launch.h"

/* Set the options of the calling thread; NULL: none. */
void options_set(const struct driver_options *options);
struct driver_options options_get(void);

/* The level of checks. An error of the environment is an error of the launch. */
CUresult options_read_checks(enum checks *checks);
/* The same, but CHECKS_DEFAULT where the environment says nonsense. */
enum checks options_checks(void);

#endif
