/* The status and the message that a call leaves behind, one of each per thread. */
#ifndef SM120_ERROR_H
#define SM120_ERROR_H

#include "driver/driver.h"
#include "platform/compiler.h"
#include "sm120.h"

/* Forget the calling thread's message and driver error: what every call of the public interface begins with. */
void error_clear(void);

/* Set the calling thread's message and return `status`. */
sm120_status fail(sm120_status status, const char *format, ...) PRINTF_LIKE(2, 3);

/* Translate a driver's error: the message is what was tried, the driver's name and text of the error, and the fault
 * that the virtual SM120 met. */
sm120_status driver_fail(const struct driver *driver, CUresult result, const char *format, ...) PRINTF_LIKE(3, 4);

/* The status that a driver's error is, without a message. */
sm120_status driver_status(CUresult result);

/* Remember a driver's error for sm120_last_driver_error. */
void error_set_driver(CUresult result);

#endif
