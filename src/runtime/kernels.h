/* The kernels inside the library. The table is written by the build from the notes of the templates: nothing else
 * knows a kernel's thread count, shared memory or tile. */
#ifndef SM120_KERNELS_H
#define SM120_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* One template, expanded and assembled. PTX texts end with a NUL that `bytes` does not count. */
struct kernel_file {
    const char *source;
    const unsigned char *ptx_sm120, *cubin_sm120, *ptx_sm90, *cubin_sm90;
    size_t ptx_sm120_bytes, cubin_sm120_bytes, ptx_sm90_bytes, cubin_sm90_bytes;
};

/* One entry. Fields after `shared` are 0 where the template does not note them. */
struct kernel_entry {
    const char *entry;
    uint32_t file; /* index into kernel_files */
    uint32_t threads, shared;
    uint32_t registers_sm120, registers_sm90; /* per thread, as ptxas allocated them */
    const char *operation;                    /* "attention_mxfp8", "quantize_mxfp8" */
    const char *variant;                      /* of the operation: "d128", "f16_q_d64" */
    uint32_t q_rows, kv_rows, head_dim;       /* tile */
    uint32_t rows, columns;                   /* of the input that one CTA of a quantizer covers */
};

extern const struct kernel_file kernel_files[];
extern const uint32_t kernel_file_count;
extern const struct kernel_entry kernel_entries[];
extern const uint32_t kernel_entry_count;

#endif
