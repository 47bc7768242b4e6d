/* Streams and events of a device. */
#ifndef SM120_STREAM_H
#define SM120_STREAM_H

#include "runtime/device.h"

/* Destroy all streams and events of a device that is being closed. */
void stream_close_all(struct device *device);

#endif
