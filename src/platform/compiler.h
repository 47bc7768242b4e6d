/* Annotations for compilers that C11 cannot express. */
#ifndef SM120_COMPILER_H
#define SM120_COMPILER_H

/* PRINTF_LIKE: a function whose parameter `text` is a printf format for the parameters from `first` on. */
#if defined(__GNUC__)
#if defined(__MINGW32__) && !defined(__clang__) /* whose "printf" is Microsoft's, without %zu */
#define PRINTF_LIKE(text, first) __attribute__((format(gnu_printf, text, first)))
#else
#define PRINTF_LIKE(text, first) __attribute__((format(printf, text, first)))
#endif
#define NORETURN    __attribute__((noreturn))
#define LIKELY(x)   __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define PRINTF_LIKE(text, first)
#define NORETURN
#define LIKELY(x)   (x)
#define UNLIKELY(x) (x)
#endif

#endif
