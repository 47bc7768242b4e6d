/* The status and the message that a call leaves behind, one of each per thread. */
#ifndef SM120_ERROR_H
#define SM120_ERROR_H

#include "driver/driver.h"
#include "platform/compiler.h"
#include "sm120.h"

/* Clear the calling thread's message and driver error. Every function of the public interface begins with this. */
void error_clear(void);

/* Set the calling thread's message and return `status`. */
sm120_status fail(sm120_status status, const char *format, ...) PRINTF_LIKE(2, 3);

/* Translate a driver's error. The message says what was tried, the driver's name and text of the error, and the fault
 * that the virtual SM120 reported. */
sm120_status driver_fail(const struct driver *driver, CUresult result, const char *format, ...) PRINTF_LIKE(3, 4);

/* The status of a driver's error, without a message. */
sm120_status driver_status(CUresult result);

/* Remember a driver's error for sm120_last_driver_error. */
void error_set_driver(CUresult result);

#endif
