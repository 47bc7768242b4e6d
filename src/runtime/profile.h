/* Profiles of the virtual device. */
#ifndef SM120_PROFILE_H
#define SM120_PROFILE_H

#include "runtime/device.h"

/* End the profile that was begun on a device, if one was. */
void profile_close(struct device *device);

#endif
