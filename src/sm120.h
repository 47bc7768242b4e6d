/* sm120.h: the whole public interface of libsm120.
 *
 * Attention kernels for NVIDIA SM120 (RTX 50, RTX PRO Blackwell, GB10), in PTX, on the CUDA driver or on a
 * virtual SM120 that runs on the CPU. Needs no CUDA header and no CUDA library at link time.
 *
 * Rules that hold everywhere
 *   - Every call returns a status; sm120_last_error() then says which argument, its value and what would be right.
 *   - A device is immutable once open and may be shared by threads. Other objects belong to their device.
 *   - Operations (sm120_attention, sm120_quantize_mxfp8, sm120_launch) neither allocate, nor synchronise, nor print,
 *     so they can be captured in a CUDA graph. Workspace is the caller's: ask for its size with workspace 0.
 *     Only the first call of an operation on a device, which loads its kernels, is none to capture; one that asks for
 *     a size does as well.
 *   - Strides are int64, in elements. Sizes in bytes say so. Unknown trailing bytes of a struct must be 0.
 */
#ifndef SM120_H
#define SM120_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SM120_API __attribute__((visibility("default")))
#else
#define SM120_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* ---- status ---------------------------------------------------------------------------------------------- */

typedef int32_t sm120_status;
enum {
    SM120_OK = 0,
    SM120_INVALID_ARGUMENT = 1,    /* a value that is never right */
    SM120_UNSUPPORTED = 2,         /* a value that is right in general but not here */
    SM120_NO_DEVICE = 3,           /* no driver, or no such device */
    SM120_OUT_OF_MEMORY = 4,       /* device or host memory is used up */
    SM120_MISALIGNED = 5,          /* a pointer or stride that a kernel cannot load from */
    SM120_WORKSPACE_TOO_SMALL = 6, /* the size that was given is below the size that was asked for */
    SM120_INVALID_PROGRAM = 7,     /* PTX or a cubin that does not load; the message holds the log */
    SM120_FAULT = 8,               /* a kernel did something wrong while it ran */
    SM120_DRIVER_ERROR = 9,        /* any other error of the CUDA driver; see sm120_last_driver_error */
    SM120_INTERNAL = 10            /* a defect of this library */
};

SM120_API int32_t sm120_version(void); /* 10000 * major + 100 * minor + patch */
SM120_API const char *sm120_version_string(void);
SM120_API const char *sm120_status_string(sm120_status status);
SM120_API const char *sm120_last_error(void);    /* of this thread; "" after a success */
SM120_API int32_t sm120_last_driver_error(void); /* CUresult of this thread's last failed driver call, or 0 */

/* ---- devices --------------------------------------------------------------------------------------------- */

typedef struct sm120_device sm120_device;
typedef struct sm120_module sm120_module;
typedef struct sm120_kernel sm120_kernel;
typedef uint64_t sm120_address; /* device memory */
typedef void *sm120_stream;     /* a CUstream; NULL is the default stream */
typedef void *sm120_event;      /* a CUevent */

typedef struct sm120_device_info {
    uint32_t size; /* sizeof(sm120_device_info), set by the caller */
    int32_t is_virtual;
    int32_t ordinal;
    int32_t driver_version; /* 1000 * major + 10 * minor, as the driver says it */
    int32_t capability_major, capability_minor;
    int32_t multiprocessors;
    int32_t warp_size;
    int32_t max_threads_per_block;
    int32_t max_threads_per_multiprocessor;
    int32_t shared_bytes_per_block; /* the most that a launch may ask for (opt-in) */
    int32_t shared_bytes_per_multiprocessor;
    int32_t registers_per_multiprocessor;
    int32_t clock_khz;
    int64_t memory_bytes;
    int64_t l2_bytes;
    char name[128];
} sm120_device_info;

/* kind: "cuda" or "virtual". A machine without a driver has 0 "cuda" devices; that is no error. */
SM120_API sm120_status sm120_device_count(const char *kind, int32_t *count);
/* name: "cuda", "cuda:1", "virtual", "virtual:0"; NULL: $PYSM120_DEVICE, else the first usable GPU, else "virtual".
 * A virtual device may be told how strict it is and in which order things happen: "virtual:0?checks=full&seed=7". The
 * levels are off, default and full; $PYSM120_CHECKS and $PYSM120_SEED hold where the name says nothing. */
SM120_API sm120_status sm120_device_open(const char *name, sm120_device **device);
/* Free every module, allocation and stream of the device. NULL is ignored. */
SM120_API sm120_status sm120_device_close(sm120_device *device);
SM120_API sm120_status sm120_device_query(sm120_device *device, sm120_device_info *info);
SM120_API sm120_status sm120_device_synchronize(sm120_device *device);
/* What the virtual device counted since it was opened or reset: counter `index` = 0, 1, ... until UNSUPPORTED is
 * returned. On a GPU that is at once. Devices that were opened under one name, "virtual:0" say, share their counters,
 * which begin at 0 when the first of them is opened. */
SM120_API sm120_status sm120_device_counter(sm120_device *device, int32_t index, const char **name, uint64_t *value);
SM120_API sm120_status sm120_device_counters_reset(sm120_device *device);

/* A PTX statement of a kernel that ran on the virtual device while it took a profile, with what all warps did there.
 * The pointers are valid until sm120_profile_end. docs/reference/profiling.md says how banks and sectors are counted.
 */
typedef struct sm120_profile_bytes {
    const char *path; /* "ld.global", "ldmatrix", as sm120_device_counter names them; NULL behind the last */
    uint64_t bytes;
} sm120_profile_bytes;
typedef struct sm120_profile_row {
    uint32_t size;  /* sizeof(sm120_profile_row), set by the caller */
    uint32_t index; /* of the statement in its kernel */
    uint32_t line;  /* in the file, where line markers say so of the template */
    uint32_t row;   /* line in the text of the module, whatever line markers say */
    const char *kernel, *file;
    const char *text;                 /* "@p ld.shared.b32 a, [b + 16]" */
    const char *opcode;               /* as sm120_device_counter names it; "" for the end of a function */
    uint64_t executed;                /* by warps */
    uint64_t lanes, predicated_off;   /* of those warps: that took part, and whose predicate was false */
    uint64_t branches;                /* executed, if it is one: bra, brx.idx, call by address */
    uint64_t divergent_branches;      /* whose lanes went different ways */
    uint64_t shared_accesses;         /* by warps, of shared memory */
    uint64_t shared_wavefronts;       /* that they took; what is above the next is bank conflicts */
    uint64_t shared_ideal_wavefronts; /* that as many bytes take without conflicts */
    uint64_t global_accesses;         /* by warps, of global memory; not bulk copies */
    uint64_t global_sectors;          /* of 32 bytes, that they touched */
    uint64_t global_ideal_sectors;    /* that hold as many different bytes */
    uint64_t global_lines;            /* of 128 bytes, likewise */
    uint64_t global_ideal_lines;
    uint64_t tensor_flops;
    sm120_profile_bytes bytes[24]; /* that were moved, by path */
} sm120_profile_row;

/* Let the virtual device count by statement from now on, in all launches on it, which then take about twice as long.
 * One profile at a time: UNSUPPORTED where another is taken, and on a GPU. */
SM120_API sm120_status sm120_profile_begin(sm120_device *device);
/* Row `index` = 0, 1, ... until UNSUPPORTED, kernel by kernel: what the launches did that have returned. */
SM120_API sm120_status sm120_profile_read(sm120_device *device, int32_t index, sm120_profile_row *row);
/* Stop, and forget the rows. Closing the device does it as well. */
SM120_API sm120_status sm120_profile_end(sm120_device *device);

/* Stop what runs on the virtual device now, from another thread: each such launch returns SM120_FAULT. A GPU cannot. */
SM120_API sm120_status sm120_device_interrupt(sm120_device *device);

/* ---- memory ---------------------------------------------------------------------------------------------- */

SM120_API sm120_status sm120_alloc(sm120_device *device, size_t bytes, sm120_address *address);
SM120_API sm120_status sm120_free(sm120_device *device, sm120_address address);
/* Host memory that kernels can reach too: *host for the CPU, *address for the device. */
SM120_API sm120_status sm120_alloc_pinned(sm120_device *device, size_t bytes, void **host, sm120_address *address);
SM120_API sm120_status sm120_free_pinned(sm120_device *device, void *host);
/* Copies are ordered on the stream; from pageable host memory they may return late, from pinned memory early. */
SM120_API sm120_status sm120_copy_to_device(sm120_device *device, sm120_address to, const void *from, size_t bytes,
                                            sm120_stream stream);
SM120_API sm120_status sm120_copy_to_host(sm120_device *device, void *to, sm120_address from, size_t bytes,
                                          sm120_stream stream);
SM120_API sm120_status sm120_copy_on_device(sm120_device *device, sm120_address to, sm120_address from, size_t bytes,
                                            sm120_stream stream);
SM120_API sm120_status sm120_fill(sm120_device *device, sm120_address address, uint8_t value, size_t bytes,
                                  sm120_stream stream);

/* ---- streams and events ---------------------------------------------------------------------------------- */

SM120_API sm120_status sm120_stream_create(sm120_device *device, sm120_stream *stream);
SM120_API sm120_status sm120_stream_destroy(sm120_device *device, sm120_stream stream);
SM120_API sm120_status sm120_stream_synchronize(sm120_device *device, sm120_stream stream);
SM120_API sm120_status sm120_stream_wait_event(sm120_device *device, sm120_stream stream, sm120_event event);
SM120_API sm120_status sm120_event_create(sm120_device *device, sm120_event *event);
SM120_API sm120_status sm120_event_destroy(sm120_device *device, sm120_event event);
SM120_API sm120_status sm120_event_record(sm120_device *device, sm120_event event, sm120_stream stream);
SM120_API sm120_status sm120_event_synchronize(sm120_device *device, sm120_event event);
SM120_API sm120_status sm120_event_elapsed(sm120_device *device, sm120_event start, sm120_event end,
                                           float *milliseconds);

/* ---- modules and launches -------------------------------------------------------------------------------- */

typedef struct sm120_kernel_info {
    uint32_t size;     /* sizeof(sm120_kernel_info), set by the caller */
    int32_t registers; /* per thread; 0 where they are not known: PTX on the virtual device, which allocates none */
    int32_t static_shared_bytes;
    int32_t local_bytes;
    int32_t max_threads;
    int32_t parameters;
    char entry[128];
} sm120_kernel_info;

typedef struct sm120_parameter_info {
    uint32_t size; /* sizeof(sm120_parameter_info), set by the caller */
    uint32_t offset;
    uint32_t bytes;
    char type[12]; /* "u64", "f32", "b8[128]" where the module came as PTX; "" where only the size is known */
    char name[64]; /* likewise */
} sm120_parameter_info;

/* image: PTX text or a cubin of `bytes` bytes; name: what messages call it. */
SM120_API sm120_status sm120_module_load(sm120_device *device, const void *image, size_t bytes, const char *name,
                                         sm120_module **module);
SM120_API sm120_status sm120_module_unload(sm120_module *module); /* and its kernels; NULL is ignored */
/* The kernel lives as long as its module. */
SM120_API sm120_status sm120_module_kernel(sm120_module *module, const char *entry, sm120_kernel **kernel);
/* Entry `index` = 0, 1, ... until UNSUPPORTED; for a cubin that is at once. */
SM120_API sm120_status sm120_module_entry(sm120_module *module, int32_t index, const char **entry);
/* A .global or .const variable of a module that came as PTX, on the virtual device. */
typedef struct sm120_variable_info {
    uint32_t size; /* sizeof(sm120_variable_info), set by the caller */
    int32_t is_constant;
    sm120_address address;
    uint64_t bytes;
    const char *name; /* lives as long as the module */
    char type[16];    /* of an element: "u32", "b8" */
} sm120_variable_info;
/* Variable `index` = 0, 1, ... until UNSUPPORTED, which on a GPU is at once. */
SM120_API sm120_status sm120_module_variable(sm120_module *module, int32_t index, sm120_variable_info *info);
SM120_API sm120_status sm120_kernel_query(sm120_kernel *kernel, sm120_kernel_info *info);
SM120_API sm120_status sm120_kernel_parameter(sm120_kernel *kernel, int32_t index, sm120_parameter_info *info);
SM120_API sm120_status sm120_kernel_occupancy(sm120_kernel *kernel, uint32_t threads, uint32_t shared_bytes,
                                              int32_t *blocks_per_multiprocessor);
/* arguments[i] points to the value of parameter i; argument_bytes[i] is its size and must equal the parameter's. */
SM120_API sm120_status sm120_launch(sm120_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                                    uint32_t shared_bytes, sm120_stream stream, const void *const *arguments,
                                    const size_t *argument_bytes, size_t argument_count);
/* The same with all CTAs on the device at once, so that they may wait for one another: cooperative groups' grid.sync().
 * UNSUPPORTED where the grid has more CTAs than the device holds: multiprocessors times occupancy. */
SM120_API sm120_status sm120_launch_cooperative(sm120_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                                                uint32_t shared_bytes, sm120_stream stream,
                                                const void *const *arguments, const size_t *argument_bytes,
                                                size_t argument_count);

/* ---- looking on: the virtual device alone ------------------------------------------------------------------ */

/* Instruction `index` = 0, 1, ... of a kernel, its functions behind it; until UNSUPPORTED, which on a GPU is at once.
 */
typedef struct sm120_instruction_info {
    uint32_t size;    /* sizeof(sm120_instruction_info), set by the caller */
    uint32_t line;    /* of `file`, as #line markers say */
    const char *file; /* "<ptx>" where no marker names one; lives as long as the module, as the next one does */
    const char *text; /* the statement with its guard: `text_bytes` bytes, without the semicolon; "{" and "}": enter and
                         leave a function */
    uint32_t text_bytes;
    uint32_t text_line; /* of its opcode in the PTX text itself, from 1 */
} sm120_instruction_info;
SM120_API sm120_status sm120_kernel_instruction(sm120_kernel *kernel, int32_t index, sm120_instruction_info *info);

/* A moment at which a watcher looks at a warp: valid until its callback returns, in its thread. */
typedef struct sm120_step sm120_step;
enum { SM120_BEFORE = 0, SM120_AFTER = 1 }; /* moment */

/* What to look at, in the launches of a device. `see` is called at each instruction that fits all of it, and ends the
 * launch, which returns FAULT, by returning anything but 0. It may copy memory of the device; it may start no
 * launch, and close nothing that is in use. A launch that is watched runs on one thread, its CTAs one after the other
 * in the seed's order. */
typedef struct sm120_watch {
    uint32_t size;                  /* sizeof(sm120_watch) */
    uint32_t moment;                /* before the instruction executes, or after: then not while it waits */
    int32_t cta[3];                 /* -1: any */
    int32_t warp;                   /* -1: any */
    const char *file;               /* of #line markers, or its end behind a slash; NULL: any */
    uint32_t first_line, last_line; /* 0 and 0: any */
    sm120_address address;          /* with bytes > 0: only what changes some of these bytes of global memory, */
    uint32_t bytes;                 /* at most 64, asynchronous copies as well; the moment is AFTER */
    uint32_t reserved;              /* 0 */
    int32_t (*see)(void *context, const sm120_step *step);
    void *context;
} sm120_watch;
/* Watch the launches that begin from now on; NULL: no longer. What the watch points to stays until they have ended. */
SM120_API sm120_status sm120_device_watch(sm120_device *device, const sm120_watch *watch);

typedef struct sm120_step_info {
    uint32_t size; /* sizeof(sm120_step_info), set by the caller */
    uint32_t warp;
    uint32_t cta[3];
    uint32_t active;      /* lanes at this instruction */
    uint32_t mask;        /* those of them whose predicate is true: they execute it */
    uint32_t index;       /* of the instruction, for sm120_kernel_instruction */
    const char *entry;    /* of the kernel */
    const char *function; /* that the warp is in; "" for the kernel itself */
    const char *guard;    /* the predicate's name, "" where there is none */
    int32_t is_guard_negated;
    int32_t is_asynchronous; /* a copy that lands; the instruction is the one that issued it */
    sm120_instruction_info instruction;
} sm120_step_info;
SM120_API sm120_status sm120_step_query(const sm120_step *step, sm120_step_info *info);

enum { SM120_OF_INSTRUCTION = 0, SM120_OF_FUNCTION = 1 }; /* which registers */

typedef struct sm120_register_info {
    uint32_t size;    /* sizeof(sm120_register_info), set by the caller */
    int32_t is_write; /* OF_INSTRUCTION: read and written registers are two entries; others hold what was read */
    uint32_t lanes;   /* that have written it since their CTA began */
    char type[12];    /* as declared: "b32", "pred" */
    const char *name; /* lives as long as the module */
    uint64_t value[32], high[32]; /* by lane; high: of .b128 */
} sm120_register_info;
/* Register `index` = 0, 1, ... of the instruction, or of the whole function, until UNSUPPORTED. */
SM120_API sm120_status sm120_step_register(const sm120_step *step, int32_t which, int32_t index,
                                           sm120_register_info *info);

/* Variable `index` = 0, 1, ... that the instruction names as an address, [table + 4], until UNSUPPORTED; `address` is
 * in the variable's own space. */
SM120_API sm120_status sm120_step_variable(const sm120_step *step, int32_t index, sm120_variable_info *info);

/* Lanes of a warp of the step's CTA that are at one place; none: a warp that has exited. */
typedef struct sm120_lanes_info {
    uint32_t size; /* sizeof(sm120_lanes_info), set by the caller */
    uint32_t warp, lanes;
    int32_t is_step;                    /* those of the step itself */
    char waits_for[160];                /* "" where they can go on */
    sm120_instruction_info instruction; /* that comes next */
} sm120_lanes_info;
/* Group `index` = 0, 1, ... of lanes, warp by warp, until UNSUPPORTED. */
SM120_API sm120_status sm120_step_lanes(const sm120_step *step, int32_t index, sm120_lanes_info *info);
/* Copy shared memory of the step's CTA; it begins at address 1024. */
SM120_API sm120_status sm120_step_shared(const sm120_step *step, uint32_t address, void *to, size_t bytes);

/* The kernels inside the library: `index` = 0, 1, ... until UNSUPPORTED. */
typedef struct sm120_builtin_info {
    uint32_t size; /* sizeof(sm120_builtin_info), set by the caller */
    uint32_t threads;
    uint32_t shared_bytes;                    /* dynamic */
    uint32_t registers_sm120, registers_sm90; /* per thread, in the cubin of that target */
    const char *entry;
    const char *source; /* template, as in the source tree: "ptx/attention/mxfp8.ptx" */
} sm120_builtin_info;
SM120_API sm120_status sm120_builtin(int32_t index, sm120_builtin_info *info);
SM120_API sm120_status sm120_builtin_kernel(sm120_device *device, int32_t index, sm120_kernel **kernel);
/* target: "sm_120f" or "sm_90"; form: "ptx" (text) or "cubin". The image lives as long as the library. */
SM120_API sm120_status sm120_builtin_image(int32_t index, const char *target, const char *form, const void **image,
                                           size_t *bytes);

/* ---- tensor maps ----------------------------------------------------------------------------------------- */

/* What cp.async.bulk.tensor moves boxes by, as the driver's cuTensorMapEncodeTiled has it: dimensions count from the
 * innermost, whose elements lie next to each other. A map is an argument of a kernel (.param .align 64 .b8 map[128]),
 * or its 128 bytes are copied to device memory at a multiple of 64. It is the device's: no other one reads it. */
typedef struct sm120_tensor_map {
    uint64_t opaque[16];
} sm120_tensor_map;

/* data_type: the bits of an element, and what reductions and filling with NaN take them for. fp8 is UINT8. The last
 * three pack 16 elements into 8, 8 and 12 bytes; ALIGN16B gives them 16 bytes of shared memory. */
enum {
    SM120_TENSOR_MAP_UINT8 = 0,
    SM120_TENSOR_MAP_UINT16 = 1,
    SM120_TENSOR_MAP_UINT32 = 2,
    SM120_TENSOR_MAP_INT32 = 3,
    SM120_TENSOR_MAP_UINT64 = 4,
    SM120_TENSOR_MAP_INT64 = 5,
    SM120_TENSOR_MAP_FLOAT16 = 6,
    SM120_TENSOR_MAP_FLOAT32 = 7,
    SM120_TENSOR_MAP_FLOAT64 = 8,
    SM120_TENSOR_MAP_BFLOAT16 = 9,
    SM120_TENSOR_MAP_FLOAT32_FTZ = 10,
    SM120_TENSOR_MAP_TFLOAT32 = 11,
    SM120_TENSOR_MAP_TFLOAT32_FTZ = 12,
    SM120_TENSOR_MAP_16U4_ALIGN8B = 13,
    SM120_TENSOR_MAP_16U4_ALIGN16B = 14,
    SM120_TENSOR_MAP_16U6_ALIGN16B = 15
};
enum { SM120_INTERLEAVE_NONE = 0, SM120_INTERLEAVE_16B = 1, SM120_INTERLEAVE_32B = 2 }; /* interleave */
enum {                                                                                  /* swizzle */
       SM120_SWIZZLE_NONE = 0,
       SM120_SWIZZLE_32B = 1,
       SM120_SWIZZLE_64B = 2,
       SM120_SWIZZLE_128B = 3,
       SM120_SWIZZLE_128B_ATOM_32B = 4, /* this and what follows: Blackwell */
       SM120_SWIZZLE_128B_ATOM_32B_FLIP_8B = 5,
       SM120_SWIZZLE_128B_ATOM_64B = 6
};
enum { SM120_L2_NONE = 0, SM120_L2_64B = 1, SM120_L2_128B = 2, SM120_L2_256B = 3 }; /* l2_promotion */
enum { SM120_FILL_ZERO = 0, SM120_FILL_NAN = 1 };                                   /* oob_fill */

typedef struct sm120_tensor_map_args {
    uint32_t size; /* sizeof(sm120_tensor_map_args) */
    uint32_t data_type;
    uint32_t rank;               /* 1 to 5; members of the arrays beyond it are ignored */
    uint32_t interleave;         /* only on a GPU */
    uint32_t swizzle;            /* box[0] elements are at most 32, 64 or 128 bytes */
    uint32_t l2_promotion;       /* a hint */
    uint32_t oob_fill;           /* what a load gives outside the tensor; NaN only for floating-point types */
    uint32_t box[5];             /* elements that a box spans, 1 to 256; box[0] elements are a multiple of 16 bytes */
    uint32_t element_strides[5]; /* 1 to 8: a box takes every so many-th element; element_strides[0] is ignored */
    uint32_t reserved;           /* 0 */
    sm120_address address;       /* a multiple of 16 */
    uint64_t dims[5];            /* elements, 1 to 2^32 */
    uint64_t strides[4];         /* of dimensions 1, 2, ... in bytes: multiples of 16 below 2^40 */
} sm120_tensor_map_args;

SM120_API sm120_status sm120_tensor_map_encode(sm120_device *device, const sm120_tensor_map_args *args,
                                               sm120_tensor_map *map);
/* Point a map to another tensor of the same form. */
SM120_API sm120_status sm120_tensor_map_replace_address(sm120_device *device, sm120_tensor_map *map,
                                                        sm120_address address);

/* ---- operations ------------------------------------------------------------------------------------------ */

/* DLPack's DLDataType as one little-endian word: code | bits << 8 | lanes << 16. */
enum {
    SM120_F32 = 0x00012002,
    SM120_F16 = 0x00011002,
    SM120_BF16 = 0x00011004,
    SM120_E4M3 = 0x0001080a, /* float8_e4m3fn */
    SM120_E8M0 = 0x0001080e  /* float8_e8m0fnu */
};

/* Four dimensions: batch, head, row, and head_dim elements that lie next to each other. Where the address and the three
 * strides in bytes are multiples of 16, and head_dim is one of 8, kernels take the tensor as it lies; of another one
 * sm120_attention makes a copy in the workspace, and sm120_quantize_mxfp8 refuses it. An input's batch and head strides
 * may be 0 (broadcast); no stride is negative. */
typedef struct sm120_tensor {
    sm120_address address;
    uint32_t dtype;
    uint32_t reserved; /* 0 */
    int64_t batch_stride, head_stride, row_stride;
} sm120_tensor;

/* precision: SM120_MXFP8; or SM120_BF16 or SM120_F16, which is then the dtype of q, k and v, and of P; or between them
 * q k^T in MXFP8 and p v in 16 bits, the dtype of q, k and v */
enum { SM120_MXFP8 = 1, SM120_MXFP8_BF16 = 2, SM120_MXFP8_F16 = 3 };
/* causal: whether row i sees no key behind its diagonal, i + d; and where d is: bottom-right, d = keys - rows, or
 * top-left, d = 0. Keys are those of the past and of k; with lengths and starts, those of the batch. */
enum {
    SM120_NOT_CAUSAL = 0, /* bottom-right */
    SM120_CAUSAL_BOTTOM_RIGHT = 1,
    SM120_CAUSAL_TOP_LEFT = 2,
    SM120_NOT_CAUSAL_TOP_LEFT = 3
};
enum { SM120_WINDOW_LEFT = 1, SM120_WINDOW_RIGHT = 2 }; /* window */
enum { SM120_BOOL = 0x00010806 };                       /* dtype of a mask */

/* Added to the scores, after softcap and ALiBi: [batch][heads][q_rows][past_rows + kv_rows] F32, F16 or BF16; or BOOL,
 * bytes that are 0 where a row does not see a key. Strides of 0 broadcast; none is negative. */
typedef struct sm120_mask {
    sm120_address address; /* a multiple of the element's size; 0: no mask */
    uint32_t dtype;
    uint32_t reserved; /* 0 */
    int64_t batch_stride, head_stride, row_stride, column_stride;
} sm120_mask;

/* o = softmax(scale * q k^T + mask) v, and lse = log(sum(exp(scale * q k^T + mask))), natural, -inf for a row without
 * a key, whose o is 0. Head h of q uses head h / (heads / kv_heads) of k and v.
 *
 * Members from v_head_dim on may be 0: then there is no such thing. */
typedef struct sm120_attention_args {
    uint32_t size; /* sizeof(sm120_attention_args) */
    uint32_t precision;
    int64_t batch, heads, kv_heads, q_rows, kv_rows, head_dim; /* head_dim: at most 128, in BF16 and F16 256 */
    sm120_tensor q, k, v;                                      /* F32, F16 or BF16, one dtype for the three */
    sm120_tensor o;    /* F32, F16 or BF16; where q is, in its form, or apart from all that is read */
    sm120_address lse; /* f32 [batch][heads][q_rows], contiguous, or [heads][q_total]; 0: not wanted */
    float scale;       /* finite; 1/sqrt(head_dim) is usual */
    uint32_t causal;
    sm120_stream stream;

    int64_t v_head_dim; /* of v and o, where it is not head_dim */
    /* Row i sees the keys from i + d - window_left to i + d + window_right: each where its bit of `window` says so. */
    int64_t window_left, window_right;
    uint32_t window;

    float softcap;            /* scores become softcap * tanh(score / softcap); at most 1024 */
    sm120_address diagonals;  /* i32 [batch]: d of each batch */
    sm120_address kv_lengths; /* i32 [batch]: the keys of a batch that are there, if below kv_rows; not with a past */
    /* Packed tensors: i32 [batch + 1], the rows at which sequences start and, behind the last one, end. Then q and o,
     * or k and v, are [total][heads][head_dim], whose batch_stride is 0, and q_rows, or kv_rows, is the longest
     * sequence: rows of q beyond it are not computed, keys beyond it not seen. */
    sm120_address cu_seqlens_q, cu_seqlens_k;
    int64_t q_total, kv_total;
    sm120_address sinks;         /* f32 [heads]: a score that has no value, in each row's sum */
    sm120_address alibi_slopes;  /* f32 [heads], or [batch][heads]: score - slope * |i + d - key| */
    int64_t alibi_batch_stride;  /* 0, or elements from batch to batch */
    sm120_tensor past_k, past_v; /* keys before those of k and v: [batch][kv_heads][past_rows][head_dim] */
    int64_t past_rows;
    sm120_mask mask;
    const char *config; /* the kernel to use, "r32": one of sm120_attention_config. NULL: $PYSM120_ATTENTION_CONFIG
                           where the call has it, else the one that suits shape and device */
} sm120_attention_args;

/* workspace 0: write the size to *workspace_bytes and return. Else *workspace_bytes is the size of the workspace,
 * which is 256-byte aligned device memory. Where the size is 0, in 16 bits, workspace_bytes NULL launches. */
SM120_API sm120_status sm120_attention(sm120_device *device, const sm120_attention_args *args, sm120_address workspace,
                                       size_t *workspace_bytes);

/* The configs that could make a call, and their kernels as sm120_builtin counts them: `index` = 0, 1, ... until
 * UNSUPPORTED. Addresses and strides are not looked at. */
SM120_API sm120_status sm120_attention_config(const sm120_attention_args *args, int32_t index, const char **config,
                                              int32_t *kernel);
/* The one that does make it. */
SM120_API sm120_status sm120_attention_chosen(sm120_device *device, const sm120_attention_args *args,
                                              const char **config, int32_t *kernel);

enum { SM120_ALONG_HEAD_DIM = 0, SM120_ALONG_ROWS = 1 }; /* axis */
enum { SM120_SCALE_UP = 0, SM120_SCALE_FLOOR = 1 };      /* rounding */

/* OCP MX: blocks of 32 along the axis, x ~ e4m3 element * 2^(e8m0 byte - 127). Up: the smallest power of two under
 * which no element saturates. Floor: the OCP rule, 2^(floor(log2 amax) - 8), elements saturate at 448. A block that
 * holds a NaN or an Inf gets the scale NaN (0xff) and elements NaN (0x7f). The last block of an axis may be short. */
typedef struct sm120_quantize_mxfp8_args {
    uint32_t size; /* sizeof(sm120_quantize_mxfp8_args) */
    uint32_t axis;
    uint32_t rounding;
    uint32_t reserved;                    /* 0 */
    int64_t batch, heads, rows, head_dim; /* head_dim: a multiple of 8 */
    sm120_tensor x;                       /* F32, F16 or BF16 */
    sm120_address elements;               /* e4m3 [batch][heads][rows][head_dim], contiguous, 16-byte aligned */
    sm120_address scales;                 /* e8m0 [batch][heads][rows][ceil(head_dim/32)] along head_dim,
                                             [batch][heads][ceil(rows/32)][head_dim] along rows */
    sm120_stream stream;
} sm120_quantize_mxfp8_args;

SM120_API sm120_status sm120_quantize_mxfp8(sm120_device *device, const sm120_quantize_mxfp8_args *args);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
