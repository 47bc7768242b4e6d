/* Streams and events of the virtual SM120, as the driver API has them. */
#include "vm/run/virtual.h"

#include <stddef.h>

#include "vm/machine/fault.h"
#include "vm/run/streams.h"

CUresult virtual_cuStreamCreate(CUstream *stream, unsigned flags) {
    if (stream == NULL || flags > 1) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "stream is NULL, or flags is not 0 or 1");
    }
    return virtual_current() != NULL ? stream_create(virtual_current(), stream) : virtual_no_context();
}

CUresult virtual_cuStreamDestroy(CUstream stream) {
    return stream_destroy(stream);
}

CUresult virtual_cuStreamSynchronize(CUstream stream) {
    return virtual_current() != NULL ? stream_wait(virtual_current(), stream) : virtual_no_context();
}

/* An event is recorded when the work before it has ended. */
CUresult virtual_cuEventSynchronize(CUevent event) {
    return event_check(event);
}

/* The event may be one of another device. */
CUresult virtual_cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    if (flags != 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "flags is %u; expected 0", flags);
    }
    if (virtual_current() == NULL) {
        return virtual_no_context();
    }
    const CUresult r = event_check(event);
    return r != CUDA_SUCCESS ? r : stream_wait(virtual_current(), stream);
}

CUresult virtual_cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    if (event == NULL) {
        return virtual_null_argument("event");
    }
    return virtual_current() != NULL ? event_create(virtual_current(), event) : virtual_no_context();
}

CUresult virtual_cuEventDestroy(CUevent event) {
    return event_destroy(event);
}

CUresult virtual_cuEventRecord(CUevent event, CUstream stream) {
    return virtual_current() != NULL ? event_record(virtual_current(), event, stream) : virtual_no_context();
}

CUresult virtual_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return milliseconds != NULL ? event_elapsed(start, end, milliseconds) : virtual_null_argument("milliseconds");
}
