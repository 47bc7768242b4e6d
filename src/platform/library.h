/* Shared libraries that are opened while the program runs. */
#ifndef SM120_PLATFORM_LIBRARY_H
#define SM120_PLATFORM_LIBRARY_H

/* Open a library by name; its symbols stay private to the caller. NULL: library_error() says why. */
void *library_open(const char *name);
void library_close(void *library);

/* The address of a function or a variable; NULL: the library has none of this name. */
void *library_symbol(void *library, const char *name);

/* Why the calling thread's last call failed. NULL: the system does not say. */
const char *library_error(void);

#endif
