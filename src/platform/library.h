/* Shared libraries opened at run time. */
#ifndef SM120_PLATFORM_LIBRARY_H
#define SM120_PLATFORM_LIBRARY_H

/* The file name of the CUDA driver. */
#if defined(_WIN32)
#define LIBRARY_CUDA "nvcuda.dll"
#else
#define LIBRARY_CUDA "libcuda.so.1"
#endif

/* Open a library by name, with its symbols private to the caller. Return NULL on failure; library_error() gives the
 * reason. */
void *library_open(const char *name);
void library_close(void *library);

/* Return the address of a function or variable, or NULL if the library does not have it. */
void *library_symbol(void *library, const char *name);

/* Return why the calling thread's last call failed, or NULL if the system does not say. */
const char *library_error(void);

#endif
