/* Streams and events of the virtual device. Work runs in the thread that issues it; the work of a stream runs in the
 * order in which all threads issue it. */
#ifndef SM120_VM_RUN_STREAMS_H
#define SM120_VM_RUN_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "driver/driver.h"
#include "vm/machine/device.h"

/* Work that a thread issued to a stream and that has not ended. */
struct work {
    struct work *next;  /* issued later to the device */
    struct work *outer; /* that this thread has begun before, and not ended: the launch whose callback it is in */
    struct device *device;
    CUstream stream;
    uint64_t number;
};

/* Check that a handle is a live stream of a device or one of its default streams. */
CUresult stream_check(struct device *device, CUstream stream);

/* Begin work on a stream of this device: wait until the earlier work of the stream has ended. */
CUresult work_begin(struct device *device, CUstream stream, struct work *work);
/* End it. Returns `result`. */
CUresult work_end(struct work *work, CUresult result);

/* Wait for the work that was issued to a stream, or to all streams of a device. */
CUresult stream_wait(struct device *device, CUstream stream);
void device_wait(struct device *device);

CUresult stream_create(struct device *device, CUstream *stream);
CUresult stream_destroy(CUstream stream);
CUresult event_create(struct device *device, CUevent *event);
CUresult event_destroy(CUevent event);
CUresult event_check(CUevent event);
CUresult event_record(struct device *device, CUevent event, CUstream stream);
CUresult event_elapsed(CUevent start, CUevent end, float *milliseconds);

/* Lock before a fork, unlock after it. In the child, streams_keep_own() ends the work of other threads. */
void streams_lock(void);
void streams_unlock(bool is_child);
void streams_keep_own(struct device *device);

#endif
