/* What compilers need to be told that C11 has no word for. */
#ifndef SM120_COMPILER_H
#define SM120_COMPILER_H

/* A function whose parameter `text` is a printf format for the parameters from `first` on. */
#if defined(__GNUC__)
#define PRINTF_LIKE(text, first) __attribute__((format(printf, text, first)))
#else
#define PRINTF_LIKE(text, first)
#endif

#endif
