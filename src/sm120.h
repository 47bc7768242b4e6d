/* sm120.h: the whole public interface of libsm120.
 *
 * libsm120 holds attention kernels for NVIDIA SM120 (RTX 50, RTX PRO Blackwell, GB10), written in PTX. They run
 * through the CUDA driver, or on a virtual SM120 on the CPU. Building with this header needs neither CUDA headers
 * nor CUDA libraries.
 *
 * Rules for every function
 *   - It returns a status. After a failure, sm120_last_error() names the argument, its value and what is right.
 *   - It writes its results through pointers. A result pointer must not be NULL unless its comment allows that.
 *   - A device is immutable once open, and threads may share it. Other objects belong to their device.
 *   - The work of a stream runs in the order in which all threads issue it. Streams and events belong to the device
 *     that made them; any device may wait for an event.
 *   - An operation is a function NAME that takes a struct NAME_args. Operations and sm120_launch neither
 *     allocate, nor synchronise, nor print, so a CUDA graph can capture them. Do not capture an operation's first
 *     call on a device: it loads kernels. Call it once before, or ask for its workspace size.
 *   - NAME_workspace writes the bytes of device memory that a call of NAME needs; 0: none. It depends on shapes,
 *     strides, dtypes and options, and on whether addresses are multiples of 16; addresses may still be 0. It loads the
 *     kernels, and launches none.
 *   - The caller owns the workspace: 256-byte aligned device memory of workspace_bytes bytes, or more than the call
 *     needs. Its contents do not matter before or after, and calls in one stream may share it. If a call needs none,
 *     workspace and workspace_bytes may be 0. Else 0 or too few bytes are SM120_WORKSPACE_TOO_SMALL; the message says
 *     how many are needed, and nothing is launched.
 *   - Strides are int64, in elements. Names or comments say where a size is in bytes.
 *   - A struct that the caller fills starts with its size, but for the elements of an array. Bytes behind the members
 *     known here must be 0.
 *   - A function that lists things takes index 0, 1, ... and returns SM120_UNSUPPORTED after the last one.
 */
#ifndef SM120_H
#define SM120_H

#include <stddef.h>
#include <stdint.h>

/* The version of this header, and of the library that fits it: sm120_version() / 100 == SM120_VERSION / 100. While the
 * major version is 0, a minor version may change the ABI, and the SONAME holds both numbers: libsm120.so.0.2. Patch
 * versions keep the ABI. */
#define SM120_VERSION_MAJOR 0
#define SM120_VERSION_MINOR 2
#define SM120_VERSION_PATCH 0
#define SM120_VERSION       (10000 * SM120_VERSION_MAJOR + 100 * SM120_VERSION_MINOR + SM120_VERSION_PATCH)

#if defined(_WIN32) && defined(SM120_BUILD)
#define SM120_API __declspec(dllexport)
#elif defined(__GNUC__) && !defined(_WIN32)
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
    SM120_UNSUPPORTED = 2,         /* a value that is right in general, but not for this device or call */
    SM120_NO_DEVICE = 3,           /* no driver, or no such device */
    SM120_OUT_OF_MEMORY = 4,       /* device or host memory is used up */
    SM120_MISALIGNED = 5,          /* a pointer or stride that a kernel cannot load from */
    SM120_WORKSPACE_TOO_SMALL = 6, /* no workspace, or fewer bytes than the operation needs */
    SM120_INVALID_PROGRAM = 7,     /* PTX or a cubin that does not load; the message holds the log */
    SM120_FAULT = 8,               /* a kernel did something wrong while it ran */
    SM120_DRIVER_ERROR = 9,        /* any other error of the CUDA driver; see sm120_last_driver_error */
    SM120_INTERNAL = 10            /* a defect of this library */
};

/* Return the version of the loaded library: 10000 * major + 100 * minor + patch, as SM120_VERSION. */
SM120_API int32_t sm120_version(void);
/* Return the version as text: "0.2.0". */
SM120_API const char *sm120_version_string(void);
/* Return a status in words: "invalid argument". The text lives as long as the library. */
SM120_API const char *sm120_status_string(sm120_status status);
/* Return the message of this thread's last call: "" after a success. It is valid until the thread's next call. */
SM120_API const char *sm120_last_error(void);
/* Return the CUresult of this thread's last failed driver call, or 0. */
SM120_API int32_t sm120_last_driver_error(void);

/* ---- devices --------------------------------------------------------------------------------------------- */

typedef struct sm120_device sm120_device;
typedef struct sm120_module sm120_module;
typedef struct sm120_kernel sm120_kernel;
typedef uint64_t sm120_address; /* address in device memory; 0 is none */
typedef void *sm120_stream;     /* a CUstream; NULL is the default stream */
typedef void *sm120_event;      /* a CUevent */
typedef void *sm120_context;    /* a CUcontext */

typedef struct sm120_device_info {
    uint32_t size;                              /* sizeof(sm120_device_info), set by the caller */
    int32_t is_virtual;                         /* 1: virtual SM120; 0: GPU */
    int32_t ordinal;                            /* index among the devices of its kind, from 0 */
    int32_t driver_version;                     /* CUDA version of the driver: 1000 * major + 10 * minor */
    int32_t capability_major, capability_minor; /* compute capability: 12 and 0 for an SM120 */
    int32_t multiprocessors;
    int32_t warp_size; /* threads */
    int32_t max_threads_per_block;
    int32_t max_threads_per_multiprocessor;
    int32_t shared_bytes_per_block; /* the most that a launch may request (opt-in) */
    int32_t shared_bytes_per_multiprocessor;
    int32_t registers_per_multiprocessor; /* of 32 bits */
    int32_t clock_khz;
    int64_t memory_bytes;
    int64_t l2_bytes;
    char name[128]; /* as the driver reports it */
} sm120_device_info;

/* Write the number of devices of a kind: "cuda" or "virtual". Without a driver there are 0 "cuda" devices; that is no
 * error. */
SM120_API sm120_status sm120_device_count(const char *kind, int32_t *count);
/* Open a device. name: "cuda", "cuda:1", "virtual", "virtual:0"; NULL: $PYSM120_DEVICE, else the first usable GPU, else
 * "virtual". The name of a virtual device may set the level of checks (off, default or full), the seed of the order of
 * events and the number of multiprocessors: "virtual:0?checks=full&seed=7&multiprocessors=84". Without them,
 * $PYSM120_CHECKS and $PYSM120_SEED apply, and there are 170 multiprocessors. "resident=8" makes a profiled launch run
 * only the CTAs of multiprocessor 0, or of four evenly spread ones with "sampled=4", 8 at once. They share its L1: what
 * their shared memory leaves of "l1=262144" bytes, or of 128 KiB. */
SM120_API sm120_status sm120_device_open(const char *name, sm120_device **device);
/* Open the device of a context that the caller made: an engine's allocations, streams and events then work here, and
 * those of this device work there. name: "cuda", or "virtual" with options. context NULL: the one that is current in
 * this thread. The context must outlive the device. sm120_device_open uses the primary context of its GPU, which the
 * CUDA runtime, PyTorch, JAX and CuPy use too. Every function makes the device's context current while it runs, and
 * restores the caller's. */
SM120_API sm120_status sm120_device_open_context(const char *name, sm120_context context, sm120_device **device);
/* Write the context of a device. */
SM120_API sm120_status sm120_device_context(sm120_device *device, sm120_context *context);
/* Close a device: wait for the work of its context; free its modules, allocations and streams. NULL is ignored. */
SM120_API sm120_status sm120_device_close(sm120_device *device);
/* Write the properties of a device. */
SM120_API sm120_status sm120_device_query(sm120_device *device, sm120_device_info *info);
/* Wait until all work of the device has ended. */
SM120_API sm120_status sm120_device_synchronize(sm120_device *device);
/* Write name and value of counter `index` of the virtual device, counted since it was opened or reset. A GPU has no
 * counters. Devices that were opened under one name, such as "virtual:0", share their counters. These start at 0 when
 * the first of the devices is opened. */
SM120_API sm120_status sm120_device_counter(sm120_device *device, int32_t index, const char **name, uint64_t *value);
/* Set all counters of the virtual device to 0. */
SM120_API sm120_status sm120_device_counters_reset(sm120_device *device);

/* A profile: for each PTX statement, the sum over all warps that executed it while the profile was open. The pointers
 * are valid until sm120_profile_end. docs/reference/profiling.md says how banks and sectors are counted. */
typedef struct sm120_profile_bytes {
    const char *path; /* "ld.global", "ldmatrix": names of sm120_device_counter; NULL after the last */
    uint64_t bytes;   /* moved on this path */
} sm120_profile_bytes;
typedef struct sm120_profile_row {
    uint32_t size;                    /* sizeof(sm120_profile_row), set by the caller */
    uint32_t index;                   /* of the statement in its kernel, from 0 */
    uint32_t line;                    /* in `file`: of the template if line markers name one, else of the PTX */
    uint32_t row;                     /* line in the PTX text itself, from 1 */
    const char *kernel, *file;        /* entry; file that line markers name */
    const char *text;                 /* the statement: "@p ld.shared.b32 a, [b + 16]" */
    const char *opcode;               /* a name of sm120_device_counter; "" for the end of a function */
    uint64_t executed;                /* times that a warp executed the statement */
    uint64_t lanes, predicated_off;   /* lanes of these warps: that took part; whose predicate was false */
    uint64_t branches;                /* executed bra, brx.idx and calls by address */
    uint64_t divergent_branches;      /* branches whose lanes went different ways */
    uint64_t shared_accesses;         /* accesses of shared memory by warps */
    uint64_t shared_wavefronts;       /* wavefronts of these accesses */
    uint64_t shared_ideal_wavefronts; /* the same without bank conflicts; the difference is the conflicts */
    uint64_t global_accesses;         /* accesses of global memory by warps, without bulk copies */
    uint64_t global_sectors;          /* 32-byte sectors that these accesses touched */
    uint64_t global_ideal_sectors;    /* the fewest sectors that hold as many different bytes */
    uint64_t global_lines;            /* 128-byte lines that these accesses touched */
    uint64_t global_ideal_lines;      /* the fewest lines that hold as many different bytes */
    uint64_t tensor_flops;            /* 2 M N K for each mma */
    sm120_profile_bytes bytes[24];    /* bytes that were moved, by path */
    uint64_t global_l2_accesses;      /* of global_accesses: those that need L2, if each CTA has an L1 of 32 KiB */
    uint64_t global_l2_sectors;       /* sectors that they take from or bring to L2 */
    uint64_t global_reuse[24];        /* sectors that a CTA touches again and no other CTA touches, by the bytes of the
                                       * CTA in between: [n] from 4096 * 2^(n/2), [0] also less */
    uint64_t shared_paired_accesses;  /* of shared_accesses: loads in which every lane has the address of lane ^ 1, or
                                       * every one that of lane ^ 2; as parts of wider loads they take half */
    uint64_t global_wavefronts;       /* passes over the data of L1 that loads of global memory take */
    const char *from_file;            /* of inlined code: file and line of the kernel that called it, as .loc says; */
    uint32_t from_line;               /* else "" and 0 */
    uint64_t global_first_lines;      /* of global_lines: those that the CTA had not touched before */
    uint64_t global_pending_accesses; /* of global_accesses: loads of what L1 has, but may have been asked for only */
                                      /* just before */
    uint64_t global_added_lines;      /* of global_lines: those that nobody in the launch had added to: red and atom */
    uint64_t global_added_words;      /* different addresses of each access, of red and atom */
    uint64_t global_first_accesses;   /* of global_accesses: those of a pair of sectors, 64 bytes that L2 takes from */
                                      /* DRAM together, which the CTA had not touched before, or only just before */
} sm120_profile_row;

/* Open a profile: the virtual device counts by statement in all launches from now on, which take about twice as long.
 * Returns SM120_UNSUPPORTED if another profile is open, and on a GPU. */
SM120_API sm120_status sm120_profile_begin(sm120_device *device);
/* Write row `index` of the profile, kernel by kernel. It counts the launches that have returned. */
SM120_API sm120_status sm120_profile_read(sm120_device *device, int32_t index, sm120_profile_row *row);
/* Write the kernel of CTA `index` of the profile, the number of this CTA in its grid, and the instructions that its
 * warps executed. The CTAs of all launches are in the order in which they ended. A cluster counts as one CTA. */
SM120_API sm120_status sm120_profile_cta(sm120_device *device, int32_t index, const char **kernel, uint64_t *cta,
                                         uint64_t *executed);
/* Close the profile and free its rows. Closing the device does the same. */
SM120_API sm120_status sm120_profile_end(sm120_device *device);

/* Stop the running launches of the virtual device, from another thread: each returns SM120_FAULT. Not supported on a
 * GPU. */
SM120_API sm120_status sm120_device_interrupt(sm120_device *device);

/* ---- memory ---------------------------------------------------------------------------------------------- */

/* Allocate device memory; write its address. */
SM120_API sm120_status sm120_alloc(sm120_device *device, size_t bytes, sm120_address *address);
/* Free what sm120_alloc allocated. */
SM120_API sm120_status sm120_free(sm120_device *device, sm120_address address);
/* Allocate pinned host memory that kernels can access. Write its address for the CPU (*host) and for the device
 * (*address). */
SM120_API sm120_status sm120_alloc_pinned(sm120_device *device, size_t bytes, void **host, sm120_address *address);
/* Free what sm120_alloc_pinned allocated. */
SM120_API sm120_status sm120_free_pinned(sm120_device *device, void *host);
/* Copy `bytes` bytes, in stream order. With pageable host memory a copy may return after it is done; with pinned host
 * memory it returns before, so keep the memory until the stream is synchronised. */
SM120_API sm120_status sm120_copy_to_device(sm120_device *device, sm120_address to, const void *from, size_t bytes,
                                            sm120_stream stream);
SM120_API sm120_status sm120_copy_to_host(sm120_device *device, void *to, sm120_address from, size_t bytes,
                                          sm120_stream stream);
SM120_API sm120_status sm120_copy_on_device(sm120_device *device, sm120_address to, sm120_address from, size_t bytes,
                                            sm120_stream stream);
/* A piece of a batch of copies. */
typedef struct sm120_copy_piece {
    sm120_address to, from; /* any alignment */
    uint64_t bytes;         /* 0: the piece is skipped */
    uint64_t first;         /* sm120_copy_batch_prepare writes it */
} sm120_copy_piece;

/* Check a batch of copies within the device, in host memory, and write the `first` of each piece. Copy the list to the
 * device then: it may be used many times. */
SM120_API sm120_status sm120_copy_batch_prepare(sm120_device *device, sm120_copy_piece *pieces, size_t count);
/* Copy `count` pieces in one launch, in stream order. `pieces` is a prepared list in device memory, 16-byte aligned.
 * The kernel reads it, so a captured call may be replayed with another list of `count` pieces; addresses in a list that
 * was not prepared are not checked. Pieces that write what another piece reads or writes give undefined bytes. `ctas`
 * CTAs of 256 threads copy; 0: two for each multiprocessor. Fewer leave more of the device to other kernels. */
SM120_API sm120_status sm120_copy_batch(sm120_device *device, sm120_address pieces, size_t count, uint32_t ctas,
                                        sm120_stream stream);
/* Set `bytes` bytes to a value, in stream order. */
SM120_API sm120_status sm120_fill(sm120_device *device, sm120_address address, uint8_t value, size_t bytes,
                                  sm120_stream stream);

/* ---- streams and events ---------------------------------------------------------------------------------- */

/* Create a stream; write it. */
SM120_API sm120_status sm120_stream_create(sm120_device *device, sm120_stream *stream);
/* Destroy a stream of sm120_stream_create. */
SM120_API sm120_status sm120_stream_destroy(sm120_device *device, sm120_stream stream);
/* Wait until the work of a stream has ended. */
SM120_API sm120_status sm120_stream_synchronize(sm120_device *device, sm120_stream stream);
/* Let later work of the stream wait for the event. */
SM120_API sm120_status sm120_stream_wait_event(sm120_device *device, sm120_stream stream, sm120_event event);
/* Create an event; write it. */
SM120_API sm120_status sm120_event_create(sm120_device *device, sm120_event *event);
/* Destroy an event of sm120_event_create. */
SM120_API sm120_status sm120_event_destroy(sm120_device *device, sm120_event event);
/* Record the event behind the work that the stream has now. */
SM120_API sm120_status sm120_event_record(sm120_device *device, sm120_event event, sm120_stream stream);
/* Wait until the event has happened. */
SM120_API sm120_status sm120_event_synchronize(sm120_device *device, sm120_event event);
/* Write the milliseconds between two events that have happened. */
SM120_API sm120_status sm120_event_elapsed(sm120_device *device, sm120_event start, sm120_event end,
                                           float *milliseconds);

/* ---- modules and launches -------------------------------------------------------------------------------- */

typedef struct sm120_kernel_info {
    uint32_t size;               /* sizeof(sm120_kernel_info), set by the caller */
    int32_t registers;           /* per thread; 0 if unknown: the virtual device allocates none for PTX */
    int32_t static_shared_bytes; /* per CTA */
    int32_t local_bytes;         /* per thread */
    int32_t max_threads;         /* of a CTA */
    int32_t parameters;          /* number of parameters */
    const char *entry;           /* name; lives as long as the kernel */
} sm120_kernel_info;

typedef struct sm120_parameter_info {
    uint32_t size;   /* sizeof(sm120_parameter_info), set by the caller */
    uint32_t offset; /* in the parameter space, in bytes */
    uint32_t bytes;  /* size */
    char type[12];   /* "u64", "f32", "b8[128]"; "" if the module was no PTX */
    char name[64];   /* "" if the module was no PTX */
} sm120_parameter_info;

/* Load a module and write it. image: PTX text or a cubin of `bytes` bytes. name: the module's name in messages. On the
 * virtual device an entry that cannot run is refused by sm120_module_kernel, while the others work; if none can run,
 * the module does not load. The message has every reason. */
SM120_API sm120_status sm120_module_load(sm120_device *device, const void *image, size_t bytes, const char *name,
                                         sm120_module **module);
/* Unload a module and its kernels. NULL is ignored. */
SM120_API sm120_status sm120_module_unload(sm120_module *module);
/* Write the kernel of an entry. It lives as long as its module. SM120_INVALID_PROGRAM: the entry cannot run. */
SM120_API sm120_status sm120_module_kernel(sm120_module *module, const char *entry, sm120_kernel **kernel);
/* Write the name of entry `index`. For a cubin, no entries are listed. */
SM120_API sm120_status sm120_module_entry(sm120_module *module, int32_t index, const char **entry);
/* A .global or .const variable of a PTX module on the virtual device. */
typedef struct sm120_variable_info {
    uint32_t size;         /* sizeof(sm120_variable_info), set by the caller */
    int32_t is_constant;   /* 1: .const; 0: .global */
    sm120_address address; /* in the variable's own space */
    uint64_t bytes;        /* size */
    const char *name;      /* lives as long as the module */
    char type[16];         /* of an element: "u32", "b8" */
} sm120_variable_info;
/* Write variable `index` of a module. On a GPU, no variables are listed. */
SM120_API sm120_status sm120_module_variable(sm120_module *module, int32_t index, sm120_variable_info *info);
/* Write what a kernel needs. */
SM120_API sm120_status sm120_kernel_query(sm120_kernel *kernel, sm120_kernel_info *info);
/* Write parameter `index` of a kernel. */
SM120_API sm120_status sm120_kernel_parameter(sm120_kernel *kernel, int32_t index, sm120_parameter_info *info);
/* Write how many CTAs of `threads` threads and `shared_bytes` bytes of dynamic shared memory fit on a multiprocessor.
 */
SM120_API sm120_status sm120_kernel_occupancy(sm120_kernel *kernel, uint32_t threads, uint32_t shared_bytes,
                                              int32_t *blocks_per_multiprocessor);
/* Launch a kernel in stream order. grid: CTAs, and block: threads of a CTA, along x, y and z. shared_bytes: dynamic
 * shared memory of a CTA. arguments[i] points to the value of parameter i. argument_bytes[i] is its size in bytes and
 * must equal the parameter's. */
SM120_API sm120_status sm120_launch(sm120_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                                    uint32_t shared_bytes, sm120_stream stream, const void *const *arguments,
                                    const size_t *argument_bytes, size_t argument_count);
/* Launch a kernel with all CTAs resident at once, so that they may wait for one another, as in cooperative groups'
 * grid.sync(). Returns SM120_UNSUPPORTED if the grid exceeds multiprocessors times occupancy. */
SM120_API sm120_status sm120_launch_cooperative(sm120_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                                                uint32_t shared_bytes, sm120_stream stream,
                                                const void *const *arguments, const size_t *argument_bytes,
                                                size_t argument_count);

/* ---- watching launches: only on the virtual device --------------------------------------------------------- */

/* An instruction of a kernel, or of a function that it may call. */
typedef struct sm120_instruction_info {
    uint32_t size;    /* sizeof(sm120_instruction_info), set by the caller */
    uint32_t line;    /* in `file` */
    const char *file; /* that #line markers name, else "<ptx>"; lives as long as the module */
    /* The statement with its guard, without the semicolon: `text_bytes` bytes that live as long as the module. "{" and
     * "}" enter and leave a function. */
    const char *text;
    uint32_t text_bytes;
    uint32_t text_line; /* line of its opcode in the PTX text itself, from 1 */
    /* Of inlined code: file and line of the kernel that called it, as .loc says; else "" and 0. */
    const char *from_file;
    uint32_t from_line;
} sm120_instruction_info;
/* Write instruction `index` of a kernel; the instructions of its functions follow. On a GPU, none are listed. */
SM120_API sm120_status sm120_kernel_instruction(sm120_kernel *kernel, int32_t index, sm120_instruction_info *info);

/* A step of a warp, as a callback sees it. It is valid in the callback's thread, until the callback returns. */
typedef struct sm120_step sm120_step;
enum { SM120_BEFORE = 0, SM120_AFTER = 1 }; /* moment */

/* Which steps of a device's launches to watch. `see` is called at each instruction that matches all members. If it
 * returns anything but 0, the launch ends with SM120_FAULT. It may copy memory of the device. It must not launch
 * kernels or close objects in use. A watched launch runs on one thread, its CTAs one after the other in the seed's
 * order. */
typedef struct sm120_watch {
    uint32_t size;                  /* sizeof(sm120_watch) */
    uint32_t moment;                /* SM120_BEFORE or SM120_AFTER the instruction; AFTER skips failed waits */
    int32_t cta[3];                 /* x, y, z; -1: any */
    int32_t warp;                   /* of the CTA; -1: any */
    const char *file;               /* that #line markers name, or its end after a slash; NULL: any */
    uint32_t first_line, last_line; /* 0 and 0: any */
    /* With bytes > 0: only instructions that change some of these bytes of global memory, asynchronous copies too.
     * At most 64 bytes, and the moment must be SM120_AFTER. */
    sm120_address address;
    uint32_t bytes;
    uint32_t reserved; /* 0 */
    int32_t (*see)(void *context, const sm120_step *step);
    void *context; /* passed to `see` */
} sm120_watch;
/* Watch the launches that begin from now on; NULL ends that. The strings of the watch must live until these launches
 * have ended. */
SM120_API sm120_status sm120_device_watch(sm120_device *device, const sm120_watch *watch);

typedef struct sm120_step_info {
    uint32_t size;        /* sizeof(sm120_step_info), set by the caller */
    uint32_t warp;        /* of the CTA */
    uint32_t cta[3];      /* x, y, z */
    uint32_t active;      /* mask of the lanes at this instruction */
    uint32_t mask;        /* mask of those whose predicate is true: they execute it */
    uint32_t index;       /* of the instruction, for sm120_kernel_instruction */
    const char *entry;    /* the kernel */
    const char *function; /* that the warp is in; "" for the kernel itself */
    const char *guard;    /* name of the predicate; "" if there is none */
    int32_t is_guard_negated;
    int32_t is_asynchronous; /* 1: a copy lands, and `instruction` is the one that issued it */
    sm120_instruction_info instruction;
} sm120_step_info;
/* Write what a step is. */
SM120_API sm120_status sm120_step_query(const sm120_step *step, sm120_step_info *info);

enum { SM120_OF_INSTRUCTION = 0, SM120_OF_FUNCTION = 1 }; /* which registers */

typedef struct sm120_register_info {
    uint32_t size;    /* sizeof(sm120_register_info), set by the caller */
    int32_t is_write; /* SM120_OF_INSTRUCTION: 1 for a written register, 0 for a read one; both: two entries */
    uint32_t lanes;   /* mask of the lanes that have written it since their CTA began */
    char type[12];    /* as declared: "b32", "pred" */
    const char *name; /* lives as long as the module */
    uint64_t value[32], high[32]; /* by lane; high: the upper half of .b128 */
} sm120_register_info;
/* Write register `index` of the instruction, or of the whole function. */
SM120_API sm120_status sm120_step_register(const sm120_step *step, int32_t which, int32_t index,
                                           sm120_register_info *info);

/* Write variable `index` that the instruction names in an address, as in [table + 4]. */
SM120_API sm120_status sm120_step_variable(const sm120_step *step, int32_t index, sm120_variable_info *info);

/* The lanes of a warp of the step's CTA that are at one instruction. A warp that has exited has no lanes. */
typedef struct sm120_lanes_info {
    uint32_t size;                      /* sizeof(sm120_lanes_info), set by the caller */
    uint32_t warp, lanes;               /* warp of the CTA, mask of its lanes */
    int32_t is_step;                    /* 1: the lanes of the step itself */
    char waits_for[160];                /* "" if they can continue */
    sm120_instruction_info instruction; /* the next one */
} sm120_lanes_info;
/* Write group `index` of lanes, warp by warp. */
SM120_API sm120_status sm120_step_lanes(const sm120_step *step, int32_t index, sm120_lanes_info *info);
/* Copy `bytes` bytes of the CTA's shared memory to the host. Shared memory starts at address 1024. */
SM120_API sm120_status sm120_step_shared(const sm120_step *step, uint32_t address, void *to, size_t bytes);

/* A kernel inside the library. Its strings live as long as the library. */
typedef struct sm120_builtin_info {
    uint32_t size;                            /* sizeof(sm120_builtin_info), set by the caller */
    uint32_t threads;                         /* of a CTA */
    uint32_t shared_bytes;                    /* dynamic shared memory of a CTA */
    uint32_t registers_sm120, registers_sm90; /* per thread, in the cubin of that target */
    const char *entry;                        /* name */
    const char *source;                       /* template, as in the source tree: "ptx/attention/mxfp8.ptx" */
    /* The template's record of the kernel. Members that do not apply to an operation are 0 or "". */
    const char *operation;            /* "attention", "quantize_mxfp8" */
    const char *layout;               /* layout of a quantizer's output: "d", "rows", "q", "k", "v" */
    const char *config;               /* attention: "r32"; one of sm120_attention_config */
    uint32_t precision;               /* attention: SM120_BF16, SM120_MXFP8, ... */
    uint32_t dtype;                   /* element type of the input: SM120_F32, ... */
    int32_t features;                 /* 1: supports more than tensors of one length and unmodified scores */
    uint32_t element_bytes;           /* bytes of a copied element */
    uint32_t head_dim;                /* head size that the kernel computes; 0: any */
    uint32_t q_rows, kv_rows, stages; /* rows of the Q tile, keys of a K and V tile, tiles in shared memory */
    /* CTAs run in groups of heads; in a causal call the longest tiles of a group start first. */
    uint32_t group_heads;   /* most heads of a group */
    uint32_t group_rows;    /* most keys of a group, over its heads */
    uint32_t rows, columns; /* extent of the input that a CTA covers */
    uint32_t q_warp_rows;   /* attention_backward: warps that share the rows of a tile of dQ */
    int32_t ordered;        /* attention_backward: 1: can add up dQ in a fixed order */
    uint32_t key_groups;    /* attention: groups of warps that hold the same rows and visit tiles of keys in turn */
} sm120_builtin_info;
/* Write the record of kernel `index`. */
SM120_API sm120_status sm120_builtin(int32_t index, sm120_builtin_info *info);
/* Write kernel `index`, loaded on a device. It lives as long as the device is open. */
SM120_API sm120_status sm120_builtin_kernel(sm120_device *device, int32_t index, sm120_kernel **kernel);
/* Write the image of kernel `index`, which holds no other kernel, and its size in bytes. target: "sm_120f" or "sm_90".
 * form: "ptx" (text, with a NUL behind its last byte) or "cubin". The first call for an image decodes it. The image
 * lives as long as the library. */
SM120_API sm120_status sm120_builtin_image(int32_t index, const char *target, const char *form, const void **image,
                                           size_t *bytes);

/* Write name and value of constant `index`. Kernels and their callers share these constants, such as
 * "ATTENTION_FEATURE_LEFT". */
SM120_API sm120_status sm120_builtin_constant(int32_t index, const char **name, int32_t *value);

/* ---- tensor maps ----------------------------------------------------------------------------------------- */

/* A tensor map, by which cp.async.bulk.tensor copies boxes, as of the driver's cuTensorMapEncodeTiled. Dimensions count
 * from the innermost, which is contiguous. Pass a map as an argument of a kernel (.param .align 64 .b8 map[128]), or
 * copy its 128 bytes to device memory at a multiple of 64. Only the device that encoded a map can read it. */
typedef struct sm120_tensor_map {
    uint64_t opaque[16];
} sm120_tensor_map;

/* data_type: the size of an element, and its type for reductions and for filling with NaN. fp8 is UINT8. The last three
 * pack 16 elements into 8, 8 and 12 bytes; ALIGN16B gives them 16 bytes of shared memory. */
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
       SM120_SWIZZLE_128B_ATOM_32B = 4, /* this and the following: Blackwell only */
       SM120_SWIZZLE_128B_ATOM_32B_FLIP_8B = 5,
       SM120_SWIZZLE_128B_ATOM_64B = 6
};
enum { SM120_L2_NONE = 0, SM120_L2_64B = 1, SM120_L2_128B = 2, SM120_L2_256B = 3 }; /* l2_promotion */
enum { SM120_FILL_ZERO = 0, SM120_FILL_NAN = 1 };                                   /* oob_fill */

typedef struct sm120_tensor_map_args {
    uint32_t size;               /* sizeof(sm120_tensor_map_args) */
    uint32_t data_type;          /* SM120_TENSOR_MAP_UINT8, ... */
    uint32_t rank;               /* dimensions, 1 to 5; array members beyond it are ignored */
    uint32_t interleave;         /* other than NONE only on a GPU */
    uint32_t swizzle;            /* with 32B, 64B, 128B: box[0] elements are at most 32, 64, 128 bytes */
    uint32_t l2_promotion;       /* a hint */
    uint32_t oob_fill;           /* what a load returns outside the tensor; NaN only for floating-point types */
    uint32_t box[5];             /* elements of a box, 1 to 256 each; box[0] elements are a multiple of 16 bytes */
    uint32_t element_strides[5]; /* 1 to 8: a box takes every n-th element; element_strides[0] is ignored */
    uint32_t reserved;           /* 0 */
    sm120_address address;       /* of the tensor; a multiple of 16 */
    uint64_t dims[5];            /* elements, 1 to 2^32 */
    uint64_t strides[4];         /* bytes, of dimensions 1, 2, ...: multiples of 16 below 2^40 */
} sm120_tensor_map_args;

/* Encode a tensor map; write it. */
SM120_API sm120_status sm120_tensor_map_encode(sm120_device *device, const sm120_tensor_map_args *args,
                                               sm120_tensor_map *map);
/* Point a map to another tensor of the same type, dimensions and strides. */
SM120_API sm120_status sm120_tensor_map_replace_address(sm120_device *device, sm120_tensor_map *map,
                                                        sm120_address address);

/* ---- the timing model: one multiprocessor, simulated ------------------------------------------------------- */

/* What a step does beside occupying units. Groups are those of cp.async. */
enum {
    SM120_STEP_PLAIN = 0,
    SM120_STEP_BARRIER = 1, /* reach a barrier of `amount` warps, 0: of all warps of the CTA, and wait for the others */
    SM120_STEP_REACH = 2,   /* the same, and go on */
    SM120_STEP_LOAD = 3,    /* cp.async of `amount` bytes */
    SM120_STEP_COMMIT = 4,  /* close a group */
    SM120_STEP_DRAIN = 5,   /* wait for all but the last `amount` groups */
    SM120_STEP_WAIT = 6,    /* wait for the end of a phase of an mbarrier */
    SM120_STEP_ARRIVE = 7,  /* arrive `amount` times in a phase */
    SM120_STEP_COPY = 8     /* bulk copy of `amount` bytes that completes in a phase */
};

/* A step of a warp's path: an instruction and what it occupies, in clocks unless a comment says otherwise. */
typedef struct sm120_simulated_step {
    double interval;            /* until its pipe accepts the next one */
    double wavefronts;          /* passes over the data of shared memory and L1 */
    double even_port, odd_port; /* of the ports of even and odd registers */
    double loaded, stored;      /* bytes that it loads from L2, without cp.async; bytes that it stores */
    double added;               /* bytes that it adds to L2 */
    double written;             /* wavefronts that the bytes of a cp.async take when they arrive */
    int64_t amount;             /* as the action says */
    int32_t action;             /* SM120_STEP_... */
    int32_t pipe;               /* its number */
    int32_t latency, landing;   /* of its result; of what its cp.async loads */
    int32_t stall;              /* until the warp's next instruction, at least 1 */
    int32_t waits;              /* mask of the warp's six barriers for which it waits */
    int32_t writes, reads;      /* barrier that its result, and that its last read, releases; -1: none */
    int32_t ring, ahead;        /* ring of its phase, and how many phases that is ahead of the warp's round; of a
                                   barrier of some warps, ring is its number, 0: unknown */
    int32_t line;               /* of code */
    int32_t place;              /* the row of `stalls` to which its waits are added */
} sm120_simulated_step;

/* mbarriers that take turns. A phase ends after its arrivals and copies. A CTA uses once + each * rounds phases, and
 * nobody waits for the last `left` of them. */
typedef struct sm120_simulated_ring {
    int64_t bytes; /* of a phase */
    int32_t arrivals, copies, once, each, left;
    int32_t is_filled; /* 1: when a phase of `emptied` ends, warps that are not simulated copy `stages` phases later */
} sm120_simulated_ring;

/* A use of pipe `cause` makes pipe `delayed` busy for longer, if it is busy. */
typedef struct sm120_simulated_delay {
    double clocks;
    int32_t cause, delayed;
} sm120_simulated_delay;

/* A multiprocessor, and CTAs whose warps follow given paths. Warp w of a CTA follows path before[w]; then a path for
 * each round of its Q tile; then path behind[w]. The path of round r of Q tile t is path_of_round[n + r], where n is
 * rounds_begin[(w * kinds + kind_of_tile[t]) * turns + first % turns], and `first` counts the rounds of the CTA's Q
 * tiles before t. docs/explanation/model.md says what is simulated. */
typedef struct sm120_simulation {
    uint32_t size; /* sizeof(sm120_simulation), set by the caller */
    int32_t pipes; /* their number */
    /* The chip. Rates are bytes a clock; latencies and intervals are clocks. */
    const int32_t *is_queued; /* for each pipe, 1: a queue is in front of it */
    const sm120_simulated_delay *delays;
    double add_rate, add_queue, copy_rate, drain_rate, load_rate, store_rate; /* add_queue: bytes */
    double port_window;                                                       /* 0: ports hold up nothing */
    double code_latency, code_interval;                                       /* of a line of code */
    int32_t delay_count, queue_depth;
    int32_t is_greedy;              /* 1: a quarter prefers the warp of its last clock */
    int32_t adds_bind, queues_bind; /* 1: additions to L2, and loads and stores, wait for their rate */
    int32_t mbarrier_wake, copy_latency;
    int32_t barrier_interval, barrier_latency;
    int32_t cta_start, cta_interval; /* from the end of a CTA to the next start; between starts */
    int32_t code_sets, code_ways,
        code_ahead; /* lines that are kept, and lines asked for ahead; 0 sets: all are there */
    /* The paths. */
    int32_t warps, beside;             /* warps of a CTA with rounds; further ones, which only follow behind[w] */
    const sm120_simulated_step *steps; /* of all paths */
    const int32_t *path_begin;         /* for each path its first step, and for the last one its end */
    const int32_t *before, *behind;    /* paths of each warp */
    const int32_t *rounds_begin, *path_of_round;
    int32_t step_count, path_count, round_count; /* of steps, paths and path_of_round */
    int32_t kinds, turns;
    int32_t between;   /* path from a Q tile to the next, of CTAs that go on; -1: they do not */
    int32_t has_roles; /* 1: barriers are of as many warps as they name */
    const sm120_simulated_ring *rings;
    int32_t ring_count, stages, emptied; /* emptied: a ring, or -1 */
    /* The launch: a Q tile for each CTA, or for a CTA that goes on. */
    const int32_t *kind_of_tile;
    const int32_t *rounds_of_kind;
    int32_t tiles, slots; /* slots: CTAs at a time */
    int64_t offset;       /* clocks between the starts of the slots */
    int32_t places;       /* rows of `stalls` */
} sm120_simulation;

/* An instruction's time on a pipe. */
typedef struct sm120_simulated_event {
    int64_t begin, end;
    int32_t quarter, warp, pipe;
} sm120_simulated_event;

/* Why a warp waited, before the reasons of each pipe: first those for results of pipe p, then those for pipe p itself.
 */
enum {
    SM120_STALL_COUNT = 0,
    SM120_STALL_GROUP = 1,    /* cp.async */
    SM120_STALL_CODE = 2,     /* a line of code */
    SM120_STALL_MBARRIER = 3, /* a phase */
    SM120_STALL_NOT_SELECTED = 4,
    SM120_STALL_PORTS = 5, /* ports of the registers */
    SM120_STALL_RESULT = 6 /* + p; pipe p is busy: + pipes + p */
};

typedef struct sm120_simulation_result {
    uint32_t size; /* sizeof(sm120_simulation_result), set by the caller */
    int32_t ended; /* CTAs */
    int64_t clocks, issued;
    int64_t lines;   /* of code that were fetched */
    int64_t *ends;   /* clock at which each CTA ended, in that order: room for `tiles` */
    double *busy;    /* busy clocks of each pipe in all quarters, and of shared memory: room for pipes + 1 */
    int64_t *stalls; /* for each place, clocks that warps waited, by reason: room for 6 + 2 * pipes */
    sm120_simulated_event *events;  /* NULL: none are written */
    size_t event_room, event_count; /* room for events; how many there are, even if the room is less */
} sm120_simulation_result;

/* Simulate CTAs on one multiprocessor. Returns SM120_UNSUPPORTED if warps wait for each other for ever. */
SM120_API sm120_status sm120_simulate(const sm120_simulation *simulation, sm120_simulation_result *result);

/* ---- operations ------------------------------------------------------------------------------------------ */

/* dtype: DLPack's DLDataType as one little-endian word, code | bits << 8 | lanes << 16. */
enum {
    SM120_F32 = 0x00012002,
    SM120_F16 = 0x00011002,
    SM120_BF16 = 0x00011004,
    SM120_E4M3 = 0x0001080a, /* float8_e4m3fn */
    SM120_E5M2 = 0x0001080c, /* float8_e5m2 */
    SM120_U8 = 0x00010801,   /* two e2m1 elements, the first in the low half */
    SM120_E8M0 = 0x0001080e  /* float8_e8m0fnu */
};

/* A tensor of four dimensions: batch, head, row, and head_dim contiguous elements. A kernel reads it in place if its
 * address and its three strides are multiples of 16 bytes and head_dim is a multiple of 8. Other tensors are copied to
 * the workspace by sm120_attention, and are an error for sm120_quantize_mxfp8. Batch and head strides of an input may
 * be 0 (broadcast). No stride is negative. */
typedef struct sm120_tensor {
    sm120_address address;
    uint32_t dtype;
    uint32_t reserved;                             /* 0 */
    int64_t batch_stride, head_stride, row_stride; /* elements */
} sm120_tensor;

/* precision: SM120_MXFP8: both products in MXFP8. SM120_BF16 or SM120_F16: both products in 16 bits, of the dtype of q,
 * k and v; BF16 also takes F32 and rounds it in the workspace. SM120_MXFP8_BF16 or SM120_MXFP8_F16: q k^T in MXFP8 and
 * p v in 16 bits, of the dtype of q, k and v. SM120_NVFP4: both products in NVFP4. SM120_NVFP4_MXFP8: q k^T in NVFP4
 * and p v in MXFP8. SM120_FP8: both products in FP8, of q, k and v each in E4M3 or E5M2, with a scale of the tensor or
 * of the head. */
enum {
    SM120_MXFP8 = 1,
    SM120_MXFP8_BF16 = 2,
    SM120_MXFP8_F16 = 3,
    SM120_NVFP4 = 4,
    SM120_NVFP4_MXFP8 = 5,
    SM120_FP8 = 6
};
/* causal: whether row i sees only the keys up to its diagonal, i + d, and what d is. Bottom-right: d = keys - rows.
 * Top-left: d = 0. Keys are those of the past and of k; with lengths or packed sequences, those of the batch. */
enum {
    SM120_NOT_CAUSAL = 0, /* d for windows and ALiBi: bottom-right */
    SM120_CAUSAL_BOTTOM_RIGHT = 1,
    SM120_CAUSAL_TOP_LEFT = 2,
    SM120_NOT_CAUSAL_TOP_LEFT = 3
};
enum { SM120_WINDOW_LEFT = 1, SM120_WINDOW_RIGHT = 2 }; /* window */
enum { SM120_BOOL = 0x00010806 };                       /* dtype of a mask */

/* A mask, [batch][heads][q_rows][past_rows + kv_rows]. F32, F16 or BF16: added to the scores after softcap and ALiBi.
 * BOOL: bytes that are 0 if the row does not see the key. Strides of 0 broadcast. No stride is negative. */
typedef struct sm120_mask {
    sm120_address address; /* a multiple of the element's size; 0: no mask */
    uint32_t dtype;
    uint32_t reserved;                                            /* 0 */
    int64_t batch_stride, head_stride, row_stride, column_stride; /* elements */
} sm120_mask;

/* Attention: o = softmax(scale * q k^T + mask) v, and lse = log(sum(exp(scale * q k^T + mask))), the natural logarithm.
 * A row without a key has lse -inf and o 0. Head h of q uses head h / (heads / kv_heads) of k and v.
 * docs/reference/attention.md has the formulas. Members from v_head_dim on may be 0, which turns their option off. */
typedef struct sm120_attention_args {
    uint32_t size;      /* sizeof(sm120_attention_args) */
    uint32_t precision; /* SM120_MXFP8, ..., SM120_NVFP4, ..., SM120_FP8, SM120_BF16 or SM120_F16 */
    int64_t batch, heads, kv_heads, q_rows, kv_rows, head_dim; /* head_dim: at most 256; 128 in NVFP4 and FP8 */
    /* F32, F16 or BF16, one dtype for the three; with SM120_FP8 each E4M3 or E5M2; see also q_blocks */
    sm120_tensor q, k, v;
    sm120_tensor o; /* F32, F16 or BF16, with SM120_FP8 E4M3 too; q itself, with q's strides and element size, or apart
                       from all inputs */
    sm120_address lse; /* f32 [batch][heads][q_rows], contiguous; packed: [heads][q_total]; 0: not wanted */
    float scale;       /* finite; 1/sqrt(head_dim) is usual, 0 makes all scores equal */
    uint32_t causal;   /* SM120_NOT_CAUSAL, ... */
    sm120_stream stream;

    int64_t v_head_dim; /* head size of v and o, if it is not head_dim */
    /* Row i sees the keys from i + d - window_left to i + d + window_right. Each end holds if its bit is in `window`.
     */
    int64_t window_left, window_right;
    uint32_t window; /* SM120_WINDOW_LEFT | SM120_WINDOW_RIGHT */

    float softcap;            /* scores become softcap * tanh(score / softcap); at most 1024 */
    sm120_address diagonals;  /* i32 [batch]: d of each batch */
    sm120_address kv_lengths; /* i32 [batch]: number of keys of each batch, if below kv_rows; not with a past */
    /* Packed sequences: i32 [batch + 1], the first row of each sequence, and the end of the last one. With
     * cu_seqlens_q, q and o are [q_total][heads][head_dim] with batch_stride 0, and q_rows is the longest sequence.
     * With cu_seqlens_k the same holds for k, v, kv_total and kv_rows. Rows of q beyond q_rows are not computed; keys
     * beyond kv_rows are not seen. */
    sm120_address cu_seqlens_q, cu_seqlens_k;
    int64_t q_total, kv_total;   /* rows of the packed tensors */
    sm120_address sinks;         /* f32 [heads]: one more score in each row's sum, without a value */
    sm120_address alibi_slopes;  /* f32 [heads] or [batch][heads]: scores become score - slope * |i + d - key| */
    int64_t alibi_batch_stride;  /* elements from batch to batch; 0: [heads] */
    sm120_tensor past_k, past_v; /* keys and values before k and v: [batch][kv_heads][past_rows][head_dim] */
    int64_t past_rows;
    sm120_mask mask;
    /* The kernel to use, such as "r32": one of sm120_attention_config. NULL: $PYSM120_ATTENTION_CONFIG if the call has
     * that config, else the one that suits shape and device. */
    const char *config;

    /* SM120_FP8 alone: F32 scales, [batch][heads] (row_stride is ignored); strides of 0 broadcast, address 0 means 1.
     * An element of q is worth its code times q_scale, and so of k, v and o. o in E4M3 is rounded from o / o_scale and
     * saturates at 448; other dtypes of o need no o_scale. amax is not set but raised to the largest |o|, before
     * o_scale. k_scale and v_scale are [batch][kv_heads]; with q_scale_by_kv_head q_scale is too. */
    sm120_tensor q_scale, k_scale, v_scale, o_scale, amax;
    uint32_t q_scale_by_kv_head; /* 1 or 0 */

    /* NVFP4 precisions subtract means from q and k before they round them, and add the means' scores in f32; 1: they
     * round q and k as they are. Other precisions never smooth. */
    uint32_t no_smoothing;

    /* CTAs that share the keys of a tile of queries; their results are added up in f32. 0: chosen by shape and device,
     * for those tiles that do not fill a wave of CTAs; 1: none; up to 32: of every tile, so that the bits do not depend
     * on batch and device. More than 1 needs rows that see all keys: no mask, window, lengths or other features. */
    int64_t num_splits;

    /* Operands that are MXFP8 already: tensors in E4M3 with these scales, in E8M0 or U8. An element is worth its code
     * times 2^(scale - 127). Nothing is rounded: results are those of the tensors that sm120_quantize_mxfp8 rounded.
     * MXFP8, MXFP8_BF16 and MXFP8_F16 take such q, k and past_k, with scales along head_dim:
     * [batch][heads][rows][ceil(head_dim / 32)]. MXFP8 and NVFP4_MXFP8 take such v and past_v, with scales along rows:
     * [batch][kv_heads][ceil(rows / 32)][v_head_dim]. With cu_seqlens_k, v_blocks is
     * [kv_heads][ceil(kv_total / 32) + batch - 1][v_head_dim], and the blocks of sequence b begin at its first row;
     * their scales at row cu_seqlens_k[b] / 32 + b. Other operands have F32, F16 or BF16. Strides of 0 broadcast.
     * k and v may also be tiles as sm120_quantize_mxfp8 writes them: tensors in U8, [batch][kv_heads][ceil(kv_rows /
     * 64)][bytes of a tile], dense, 16-byte aligned, without scales and without a past. Kernels read them in place. The
     * columns of a tile are the least of 64, 128 and 256 that hold head_dim and v_head_dim. q may be tiles too, with
     * scale above 0: [batch][heads][padded rows][68, 132 or 264 bytes]. With cu_seqlens_k, tiles
     * have a batch for each sequence, with the rows of the longest. Rows of v behind kv_lengths must not be NaN. */
    sm120_tensor q_blocks, k_blocks, v_blocks, past_k_blocks, past_v_blocks;
} sm120_attention_args;

/* Write the size of the workspace of a call, and compute attention. BF16, F16 and FP8 need a workspace for tensors
 * that are copied and for splits, other precisions always. */
SM120_API sm120_status sm120_attention_workspace(sm120_device *device, const sm120_attention_args *args,
                                                 size_t *workspace_bytes);
SM120_API sm120_status sm120_attention(sm120_device *device, const sm120_attention_args *args, sm120_address workspace,
                                       size_t workspace_bytes);

/* Write config `index` of those that can compute a call, and the index of its kernel for sm120_builtin. Addresses and
 * strides are ignored. */
SM120_API sm120_status sm120_attention_config(const sm120_attention_args *args, int32_t index, const char **config,
                                              int32_t *kernel);
/* Write the config that the call uses, and the index of its kernel for sm120_builtin. */
SM120_API sm120_status sm120_attention_chosen(sm120_device *device, const sm120_attention_args *args,
                                              const char **config, int32_t *kernel);
/* Write how the call splits its keys: of its tiles of queries, in the order of the launch, those from `first` on have
 * `splits` CTAs each; without splits 1, and `first` is the number of tiles. */
SM120_API sm120_status sm120_attention_splits(sm120_device *device, const sm120_attention_args *args, int64_t *first,
                                              int64_t *splits);

/* The backward pass of attention: dq, dk and dv of a call of sm120_attention, of dout, the gradient of o. q, k, v, o,
 * lse and the members that both structs have are those of that call. lse may also be that of more keys than k has; then
 * o or delta belong to all keys too, and dk and dv are the gradients of these keys (rings, chunks).
 * docs/reference/attention_backward.md has the formulas. Members from v_head_dim on may be 0. */
typedef struct sm120_attention_backward_args {
    uint32_t size;                                             /* sizeof(sm120_attention_backward_args) */
    uint32_t precision;                                        /* as in sm120_attention_args */
    int64_t batch, heads, kv_heads, q_rows, kv_rows, head_dim; /* head_dim: at most 256; 128 in MXFP8 */
    sm120_tensor q, k, v, dout;                                /* BF16 or F16, as precision says; MXFP8 takes F32 too */
    sm120_tensor o;                                            /* F32, F16 or BF16 */
    sm120_tensor dq, dk, dv; /* results: F32, F16 or BF16; apart from all inputs and from each other */
    sm120_address lse;       /* f32 [batch][heads][q_rows], contiguous */
    float scale;
    uint32_t causal;
    sm120_stream stream;

    int64_t v_head_dim; /* head size of v, o, dout and dv, if it is not head_dim */
    int64_t window_left, window_right;
    uint32_t window;
    uint32_t accumulate;    /* 1: the results are added to dq, dk and dv, which are F32 */
    sm120_address dlse;     /* f32 [batch][heads][q_rows]: the gradient of lse */
    sm120_address delta;    /* f32 [batch][heads][q_rows]: used instead of sum(dout * o) - dlse; not with dlse */
    uint32_t deterministic; /* 1: the results have the same bits in every run, whatever the number of SMs */
    float softcap;          /* as in sm120_attention_args, like the options below */

    /* As in sm120_attention_args. With cu_seqlens_q, dout and dq are packed too, and lse, dlse and delta are
     * [heads][q_total]; with cu_seqlens_k, dk and dv are. Rows of no sequence are not written. Keys behind kv_lengths
     * get gradients of 0. */
    sm120_address diagonals, kv_lengths, cu_seqlens_q, cu_seqlens_k;
    int64_t q_total, kv_total;
    sm120_address alibi_slopes;
    int64_t alibi_batch_stride;
    sm120_mask mask;
    sm120_mask dmask;     /* result for a mask that is not BOOL, F32: its gradient; a stride of 0 adds up */
    sm120_address sinks;  /* f32 [heads]; lse contains them, so only dsinks needs them */
    sm120_address dsinks; /* f32 [heads]: result, the gradient of sinks */
} sm120_attention_backward_args;

/* How a call is computed. */
typedef struct sm120_attention_backward_plan {
    uint32_t size;  /* sizeof(sm120_attention_backward_plan), set by the caller */
    int32_t kernel; /* index of the main kernel for sm120_builtin */
    /* Of the tiles of keys, in the order of the launch, those from first_split on have `splits` CTAs each; without
     * splits 1, and first_split is the number of tiles. */
    int64_t first_split, splits;
    int64_t q_tiles, sums; /* tiles of queries of all heads; those whose sums of dq the workspace holds at once */
    int64_t first_head;    /* of batch * heads: the main kernel writes dq of those before, a further one the others */
    int64_t group;         /* heads of k and v whose tiles of keys take turns in the order of the launch */
    int64_t turn_tiles;    /* deterministic: tiles of queries of a head for which a tile of keys waits once; else 1 */
} sm120_attention_backward_plan;

/* Write how a call is computed. */
SM120_API sm120_status sm120_attention_backward_chosen(sm120_device *device, const sm120_attention_backward_args *args,
                                                       sm120_attention_backward_plan *plan);

/* Write the size of the workspace, which every call needs, and compute the gradients. */
SM120_API sm120_status sm120_attention_backward_workspace(sm120_device *device,
                                                          const sm120_attention_backward_args *args,
                                                          size_t *workspace_bytes);
SM120_API sm120_status sm120_attention_backward(sm120_device *device, const sm120_attention_backward_args *args,
                                                sm120_address workspace, size_t workspace_bytes);

/* Attention of the last rows of sequences and a cache of keys and values: o = softmax(scale * q k^T) v, and lse, as in
 * sm120_attention. Calls of many rows, where it is estimated to be faster, use the kernels of sm120_attention, which
 * read pages and caches in 8 or 4 bits from a copy in the workspace, in q's dtype; calls with tree_mask or num_splits
 * never do. If k or v has 16 bits, and one of the two is not in q's dtype, every call reads both from such a copy; BF16
 * values that round beyond 65504 become infinite in F16. The cache is dense or in pages: k and v are
 * [pages][kv_heads][page_rows][head_dim]. Key n of a sequence is in row n % page_rows of its page n / page_rows.
 *   dense         page_table 0: sequence b is page b, and pages = batch
 *   table         page_table: i32 [batch][table_pages], kv_lengths: the keys of each sequence
 *   page lists    page_indptr: i32 [batch + 1]; the pages of sequence b are page_table[page_indptr[b]] to
 *                 page_table[page_indptr[b + 1] - 1], of table_pages in all; the last holds last_page[b] keys
 * The kernel reads lengths and page numbers, so a captured call may be replayed with other ones. Keys of a page that is
 * not from 0 to pages - 1 are not seen, and their memory is not read. With the kernels of sm120_attention, the keys
 * behind such a page are not seen either. Numbers of pages outside the table are not read either. The virtual device
 * returns SM120_FAULT for a length or a page number that is out of range, unless its checks are off.
 * Row i sees key j if i + d - window_left <= j <= i + d + window_right, with d = keys - q_rows. */
typedef struct sm120_attention_with_kv_cache_args {
    uint32_t size;                                    /* sizeof(sm120_attention_with_kv_cache_args) */
    uint32_t causal;                                  /* SM120_NOT_CAUSAL or SM120_CAUSAL_BOTTOM_RIGHT */
    int64_t batch, heads, kv_heads, q_rows, head_dim; /* head_dim: at most 256 */
    int64_t v_head_dim;                               /* of v and o, if it is not head_dim; at most 256 */
    int64_t pages, page_rows, table_pages;
    sm120_tensor q, k, v;     /* q BF16 or F16; k and v, independently, BF16, F16, E4M3, E5M2 or U8, see below */
    sm120_tensor o;           /* F32, F16 or BF16; apart from all inputs */
    sm120_address lse;        /* f32 [batch][heads][q_rows], contiguous; 0: not wanted */
    sm120_address kv_lengths; /* i32 [batch]; 0: all rows of the pages. Numbers outside that range are clamped to it */
    sm120_address page_table, page_indptr, last_page;
    sm120_address sinks; /* as in sm120_attention_args, like the next members */
    sm120_address alibi_slopes;
    int64_t alibi_batch_stride;
    int64_t window_left, window_right;
    uint32_t window;
    float scale, softcap;
    uint32_t v_swizzled; /* as in sm120_kv_cache_append_args */
    int64_t num_splits;  /* parts of the keys, which CTAs share; 0: chosen by shape and device. A fixed number gives the
                           same bits whatever the batch */
    sm120_stream stream;

    /* u8 [batch or 1][q_rows][q_rows], contiguous, or 0: row i does not see key d + j where tree_mask[i][j] is 0, as
     * among the tokens of a tree of drafts; d = keys - q_rows. */
    sm120_address tree_mask;
    int64_t tree_mask_batch_stride; /* q_rows * q_rows, or 0: one tree for all sequences */

    /* Of k and v in 8 or 4 bits, as in sm120_kv_cache_append_args. Address 0: none. */
    sm120_tensor k_blocks, v_blocks;
    sm120_tensor k_scale, v_scale;
} sm120_attention_with_kv_cache_args;

/* Write the size of the workspace, and compute attention. Calls with num_splits = 1 need none, unless they read copies
 * of k and v. */
SM120_API sm120_status sm120_attention_with_kv_cache_workspace(sm120_device *device,
                                                               const sm120_attention_with_kv_cache_args *args,
                                                               size_t *workspace_bytes);
SM120_API sm120_status sm120_attention_with_kv_cache(sm120_device *device,
                                                     const sm120_attention_with_kv_cache_args *args,
                                                     sm120_address workspace, size_t workspace_bytes);

/* The attention of all keys from that of parts of them, such as splits, shared prefixes or the steps of a ring:
 * lse = log(sum(exp(lses[n]))), o = sum(exp(lses[n] - lse) * outs[n]). A state of lse -inf has no key, and its outs are
 * not read. */
typedef struct sm120_merge_states_args {
    uint32_t size;     /* sizeof(sm120_merge_states_args) */
    uint32_t reserved; /* 0 */
    int64_t states, batch, heads, rows, head_dim;
    sm120_tensor outs;   /* [states * batch][heads][rows][head_dim]; F32, F16 or BF16 */
    sm120_tensor o;      /* [batch][heads][rows][head_dim]; F32, F16 or BF16; apart from outs */
    sm120_address lses;  /* f32 [states][batch][heads][rows], contiguous */
    sm120_address lse;   /* f32 [batch][heads][rows], contiguous; 0: not wanted */
    sm120_address sinks; /* f32 [heads]: one more key without a value in each row; 0: none */
    sm120_stream stream;
} sm120_merge_states_args;

SM120_API sm120_status sm120_merge_states(sm120_device *device, const sm120_merge_states_args *args);

enum { SM120_ALONG_HEAD_DIM = 0, SM120_ALONG_ROWS = 1 };                /* axis */
enum { SM120_SCALE_UP = 0, SM120_SCALE_FLOOR = 1 };                     /* rounding */
enum { SM120_MX_LINEAR = 0, SM120_MX_TILES = 1, SM120_MX_Q_TILES = 2 }; /* layout */

/* Quantisation to OCP MX: blocks of 32 along the axis, x ~ e4m3 element * 2^(e8m0 byte - 127).
 * SM120_SCALE_UP: the scale is the smallest power of two with which no element saturates.
 * SM120_SCALE_FLOOR: the OCP rule, 2^(floor(log2 amax) - 8); elements saturate at 448.
 * A block with a NaN or an infinity gets the scale NaN (0xff) and elements NaN (0x7f). The last block of an axis may be
 * short.
 * SM120_MX_TILES is the layout in which the kernels of sm120_attention read k (ALONG_HEAD_DIM) and v (ALONG_ROWS): 64
 * rows and tile_columns columns with their scales, padded with zeros. SM120_MX_Q_TILES: as they read q; rows are padded
 * to a multiple of the kernel's q_rows, 192 in SM120_MXFP8 with 128 columns, else 128. docs/reference/attention.md
 * describes a tile. */
typedef struct sm120_quantize_mxfp8_args {
    uint32_t size;                        /* sizeof(sm120_quantize_mxfp8_args) */
    uint32_t axis;                        /* SM120_ALONG_HEAD_DIM or SM120_ALONG_ROWS */
    uint32_t rounding;                    /* SM120_SCALE_UP or SM120_SCALE_FLOOR */
    uint32_t layout;                      /* SM120_MX_LINEAR, SM120_MX_TILES or SM120_MX_Q_TILES */
    int64_t batch, heads, rows, head_dim; /* head_dim: a multiple of 8 */
    sm120_tensor x;                       /* F32, F16 or BF16 */
    sm120_address elements;               /* e4m3 [batch][heads][rows][head_dim], contiguous, 16-byte aligned. Tiles:
                                             u8 [batch][heads][ceil(rows/64)][bytes of a tile]. k: 4352, 8448 or 16896
                                             bytes for 64, 128 or 256 columns; v: 4224, 8448 or 16896. q: all elements,
                                             then all scales, [batch][heads][padded rows][68, 132 or 264 bytes] in all */
    sm120_address scales; /* 0 for tiles; else e8m0 [batch][heads][rows][ceil(head_dim/32)] along head_dim,
                             [batch][heads][ceil(rows/32)][head_dim] along rows */
    sm120_stream stream;

    /* Packed sequences, along rows alone or in tiles: i32 [sequences + 1], where each begins, as in
     * sm120_attention_args; 0: none. batch is 1. Each sequence begins with a new block, as v_blocks of attention need
     * it: scales are [heads][ceil(rows/32) + sequences - 1][head_dim], those of sequence b from row cu_seqlens[b] / 32
     * + b on. Rows of no sequence, and scales of no block, are not written. Tiles have a batch for each sequence, with
     * the rows of `longest`. */
    sm120_address cu_seqlens;
    int64_t sequences;
    int64_t longest; /* rows of the longest sequence; rows behind them are not written. 0: `rows`, which costs time */

    int64_t tile_columns; /* of tiles: 64, 128 or 256, at least head_dim; 0: the least of these. 0 without tiles */
    uint32_t precision;   /* of MX_Q_TILES: SM120_MXFP8, ... of the attention that reads them; else 0 */
    uint32_t reserved;    /* 0 */
} sm120_quantize_mxfp8_args;

/* Quantise x to MXFP8. */
SM120_API sm120_status sm120_quantize_mxfp8(sm120_device *device, const sm120_quantize_mxfp8_args *args);

enum { SM120_SCALES_LINEAR = 0, SM120_SCALES_128X4 = 1, SM120_SCALES_64X4 = 2 }; /* layout of scales */

/* Quantisation to NVFP4: blocks of 16, x ~ e2m1 element * e4m3 scale * global_scale.
 * axis: SM120_ALONG_ROWS gives the results of x with rows and head_dim exchanged: their lines are the columns of x, and
 * the last block of a line is filled up with zeros. Matrix instructions of 4 bits take operands in this order only.
 * scale = e4m3(amax / (6 * global_scale)), element = e2m1(x * (1 / (scale * global_scale))). Operations are in f32; all
 * round to nearest even, and both formats saturate. Where the scale is 0, elements are zeros with the signs of x.
 * search: of this and of amax / (4 * global_scale) the scale with the smaller sum of squared errors, by f32 in the
 * order of the elements; a tie, or an error that is not finite, gives the first.
 * A block with a NaN or an infinity gets the scale NaN (0x7f) and elements 6 (0x7).
 * Scales of a head are a matrix [lines][blocks of a line]. In layouts 128X4 and 64X4 it is padded with zeros to
 * multiples of R = 128 or 64 lines and of 4 columns, and scale (r, c) of C columns lies at byte
 * r / R * (R C) + c / 4 * (4 R) + r % (R / 4) * 16 + r / (R / 4) % 4 * 4 + c % 4. */
typedef struct sm120_quantize_nvfp4_args {
    uint32_t size;                        /* sizeof(sm120_quantize_nvfp4_args) */
    uint32_t layout;                      /* SM120_SCALES_LINEAR, ... */
    uint32_t search;                      /* 0 or 1 */
    uint32_t axis;                        /* SM120_ALONG_HEAD_DIM or SM120_ALONG_ROWS */
    int64_t batch, heads, rows, head_dim; /* along head_dim: a multiple of 16 */
    sm120_tensor x;                       /* F32, F16 or BF16; along rows of any alignment */
    sm120_address elements;               /* e2m1 [batch][heads][rows][head_dim / 2], two in a byte, the first in its
                                             low half; contiguous, 16-byte aligned. Along rows
                                             [batch][heads][head_dim][ceil(rows / 16) * 8] */
    sm120_address scales;                 /* e4m3 [batch][heads][padded lines * padded columns] */
    sm120_address global_scale_address;   /* f32 [1], read in place of global_scale, which must be 0 then; or 0. Out of
                                             global_scale's range its results mean nothing */
    float global_scale;                   /* from 2^-100 to 2^100 */
    uint32_t reserved;                    /* 0 */
    sm120_stream stream;
} sm120_quantize_nvfp4_args;

/* Quantise x to NVFP4. */
SM120_API sm120_status sm120_quantize_nvfp4(sm120_device *device, const sm120_quantize_nvfp4_args *args);

/* Scales of blocks, a byte each, from one layout of sm120_quantize_nvfp4_args to another. Of padded scales only those
 * of the matrix are read, and padding is written as 0. The scales of MXFP8 have the same tiles in cuBLAS. */
typedef struct sm120_repack_scales_args {
    uint32_t size;                       /* sizeof(sm120_repack_scales_args) */
    uint32_t source, target;             /* SM120_SCALES_LINEAR, ... */
    uint32_t reserved;                   /* 0 */
    int64_t batch, heads, rows, columns; /* of the matrices, without padding */
    sm120_address scales;                /* [batch][heads][padded rows * padded columns]; in tiles, 4-byte aligned */
    sm120_address repacked;              /* the same in the layout `target`; apart from scales */
    sm120_stream stream;
} sm120_repack_scales_args;

/* Repack scales. */
SM120_API sm120_status sm120_repack_scales(sm120_device *device, const sm120_repack_scales_args *args);

/* Copies between dense keys and values and a cache in pages, in one launch. Key n of a sequence lies in row
 * n % page_rows of a page. A page number or a slot that the cache does not have is never used: append skips such a
 * token, gather gives it zeros. The virtual device returns SM120_FAULT instead, unless its checks are off. Pages times
 * page_rows are at most 2^31 - 1.
 *
 * How a cache holds elements follows from its dtypes:
 *   k_cache          k_blocks (scales in blocks)          k_scale          value of an element
 *   the dtype of k   -                                    -                element
 *   E4M3, E5M2       -                                    F32, 0 for 1     element * k_scale
 *   E4M3             E8M0, one for 32 columns (MXFP8)     -                element * 2^(k_blocks - 127)
 *   U8               E4M3, one for 16 columns (NVFP4)     F32, 0 for 1     element * k_blocks * k_scale
 * K and V are independent. append computes k_blocks; the caller gives k_scale. */
typedef struct sm120_kv_cache_append_args {
    uint32_t size;                         /* sizeof(sm120_kv_cache_append_args) */
    uint32_t v_swizzled;                   /* 1: v_blocks of NVFP4 in the order of SM100 kernels */
    int64_t batch, kv_heads, rows;         /* rows: tokens of each sequence */
    int64_t head_dim, v_head_dim;          /* NVFP4: even; v_head_dim 0: head_dim */
    int64_t pages, page_rows, table_pages; /* table_pages: page numbers of a sequence */
    sm120_tensor k, v;                     /* [batch][kv_heads][rows][head_dim], F32, F16 or BF16 */
    sm120_tensor k_cache, v_cache;         /* [pages][kv_heads][page_rows][head_dim]; U8: head_dim / 2 */
    sm120_tensor k_blocks, v_blocks;       /* [pages][kv_heads][page_rows][blocks] */
    sm120_tensor k_scale, v_scale;         /* [pages][kv_heads][page_rows]; strides of 0 broadcast */
    sm120_address slots;                   /* i64 [batch][rows]: page * page_rows + row; below 0: none */
    /* Without slots: token i of a sequence is its key kv_lengths - rows + i (append) or i, if below kv_lengths
     * (gather). Key n is in page page_table[batch][n / page_rows]; without a table, in page `batch`. */
    sm120_address page_table; /* i32 [batch][table_pages] */
    sm120_address kv_lengths; /* i32 [batch]; 0: `rows` keys (append), all keys (gather) */
    sm120_stream stream;

    /* Rotary embedding of k before it is written; not in gather. Columns (a, b) of a pair i become a cos - b sin and
     * b cos + a sin, with cos and sin of [position][i]. A position that the tables do not have gives NaN. */
    sm120_address rotary_cos, rotary_sin; /* f32 [rotary_positions][rotary_dim / 2]; 0: none */
    sm120_address positions;              /* i32 [batch][rows]; 0: a token's key. Slots need them */
    int64_t rotary_dim;                   /* columns that are rotated: even, at most head_dim */
    int64_t rotary_positions;
    uint32_t rotary_interleaved; /* 0: pair i is columns i and i + rotary_dim / 2; 1: columns 2 i and 2 i + 1 */
    uint32_t reserved;           /* 0 */
    /* i32 [batch], written by append: kv_lengths + rows. kv_lengths then do not count the new tokens: token i is key
     * kv_lengths + i, or key i without kv_lengths. 0: none, as always in a gather. */
    sm120_address new_lengths;
} sm120_kv_cache_append_args;

/* Write k and v to their places in a cache. kv_lengths count the new tokens, unless new_lengths is given. */
SM120_API sm120_status sm120_kv_cache_append(sm120_device *device, const sm120_kv_cache_append_args *args);

typedef sm120_kv_cache_append_args sm120_kv_cache_gather_args;

/* Read k and v from a cache: k and v are the results, F32, F16 or BF16. A cache in one of these is read as it is. */
SM120_API sm120_status sm120_kv_cache_gather(sm120_device *device, const sm120_kv_cache_gather_args *args);

/* ---- quantised weights ----------------------------------------------------------------------------------- */

/* type: a matrix of weights in blocks of GGUF, by GGUF's own numbers. A block holds 256 columns of a row; of Q8_0 and
 * MXFP4 32, of NVFP4 64. */
enum {
    SM120_GGUF_Q8_0 = 8,
    SM120_GGUF_Q2_K = 10,
    SM120_GGUF_Q3_K = 11,
    SM120_GGUF_Q4_K = 12,
    SM120_GGUF_Q5_K = 13,
    SM120_GGUF_Q6_K = 14,
    SM120_GGUF_MXFP4 = 39,
    SM120_GGUF_NVFP4 = 40
};
/* layout: NATIVE: blocks as in a GGUF file, row by row. PACKED: what sm120_repack writes. */
enum { SM120_WEIGHTS_NATIVE = 0, SM120_WEIGHTS_PACKED = 1 };

/* Write the bytes of a buffer for a matrix. Native: those of its blocks, rounded up to a multiple of 4. */
SM120_API sm120_status sm120_weights_bytes(uint32_t type, uint32_t layout, int64_t rows, int64_t columns,
                                           int64_t *bytes);

typedef struct sm120_dequantize_args {
    uint32_t size; /* sizeof(sm120_dequantize_args) */
    uint32_t type; /* SM120_GGUF_Q4_K, ... */
    int64_t rows, columns;
    sm120_address weights; /* native layout, 16-byte aligned */
    int64_t weight_bytes;  /* of the buffer: at least sm120_weights_bytes */
    sm120_tensor y;        /* F32, F16 or BF16 [rows][columns]; address and row_stride: multiples of 16 bytes */
    sm120_stream stream;
} sm120_dequantize_args;

/* y = the values of the weights. F32 has the bits of GGUF's own code; F16 and BF16 are rounded from these. */
SM120_API sm120_status sm120_dequantize(sm120_device *device, const sm120_dequantize_args *args);

typedef struct sm120_repack_args {
    uint32_t size; /* sizeof(sm120_repack_args) */
    uint32_t type; /* SM120_GGUF_Q4_K, ... */
    int64_t rows, columns;
    sm120_address weights; /* native layout, 16-byte aligned */
    int64_t weight_bytes;  /* of the buffer: at least sm120_weights_bytes */
    sm120_address packed;  /* result, 16-byte aligned, apart from weights */
    int64_t packed_bytes;  /* of the buffer: at least sm120_weights_bytes of the packed layout */
    sm120_stream stream;
} sm120_repack_args;

/* Write weights in the packed layout, which sm120_matvec reads faster. */
SM120_API sm120_status sm120_repack(sm120_device *device, const sm120_repack_args *args);

/* activation of f: SILU: f / (1 + exp(-f)). GELU: its approximation by tanh. */
enum { SM120_SILU = 0, SM120_GELU = 1 };

/* x in blocks of 32. INT8: quants with an f32 scale. INT16: a second int8 with its own scale holds what the rounding to
 * the first one left. MXFP8X2: two e4m3 in the same way, each with a ue8m0 scale; of MXFP4 only, by block-scaled mma.
 * NVFP4X3: blocks of 16, three e2m1 in the same way, each with a ue4m3 scale, and an f32 factor for 256 columns; of
 * NVFP4 only, by block-scaled mma. All but INT8 need a workspace. */
enum {
    SM120_ACTIVATIONS_INT8 = 0,
    SM120_ACTIVATIONS_INT16 = 1,
    SM120_ACTIVATIONS_MXFP8X2 = 2,
    SM120_ACTIVATIONS_NVFP4X3 = 3
};

typedef struct sm120_matvec_args {
    uint32_t size;                  /* sizeof(sm120_matvec_args) */
    uint32_t type;                  /* SM120_GGUF_Q4_K, ... */
    int64_t rows, columns, vectors; /* W is [rows][columns] */
    sm120_address weights;          /* 16-byte aligned */
    int64_t weight_bytes;           /* of the buffer: at least sm120_weights_bytes */
    sm120_tensor x;      /* F32, F16 or BF16 [vectors][columns]; address and row_stride: multiples of 16 bytes */
    sm120_tensor y;      /* F32, F16 or BF16 [vectors][rows] */
    sm120_address bias;  /* f32 [rows], added to each vector of y; 0: none */
    uint32_t layout;     /* SM120_WEIGHTS_NATIVE or SM120_WEIGHTS_PACKED */
    uint32_t activation; /* of up: SM120_SILU or SM120_GELU; else 0 */
    sm120_stream stream;

    /* Experts: the weights hold expert_count matrices, one behind the other, and each vector is multiplied by `chosen`
     * of them: experts is s32 [vectors][chosen], and y [vectors * chosen][rows]. An index that is negative or too large
     * makes its y NaN. In the packed layout, rows are a multiple of 16. experts 0: one matrix. */
    sm120_address experts;
    int64_t expert_count, chosen;

    /* A second matrix U in the form of the weights: y = activation(W x) * (U x), without bias. 0: none. */
    sm120_address up;
    int64_t up_bytes; /* of its buffer */

    uint32_t activations; /* SM120_ACTIVATIONS_INT8; without experts also the others */
    uint32_t reserved;    /* 0 */
} sm120_matvec_args;

/* y = W x + bias, or activation(W x) * (U x), for each vector. x is quantised to blocks of 32 int8 with an f32 scale.
 * The result has the same bits in every run, and without an activation on every device. A block of x with a NaN or an
 * infinity makes the result of its vector NaN. Most calls of one vector need no workspace. */
SM120_API sm120_status sm120_matvec_workspace(sm120_device *device, const sm120_matvec_args *args,
                                              size_t *workspace_bytes);
SM120_API sm120_status sm120_matvec(sm120_device *device, const sm120_matvec_args *args, sm120_address workspace,
                                    size_t workspace_bytes);

/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
