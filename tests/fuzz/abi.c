/* Fuzz target: the C interface. An input is a list of calls, such as "alloc 1 4096; free 1;": names from the table
 * below, each with the numbers that it needs (0 where there are none). The first number is mostly the slot of what is
 * used; slots begin empty, so that handles are live, dead or never were. Device 3 is there from the start and stays:
 * to load the library's kernels takes long. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"
#include "operations.h"
#include "sm120.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4, MOST_NUMBERS = 40, MOST_CALLS = 40, HOST = 1 << 16 };

static const char program[] = ".version 8.8 .target sm_120f .address_size 64\n"
                              ".visible .entry k(.param .u64 x, .param .u32 n, .param .align 16 .b8 pair[24]) {\n"
                              ".reg .b64 a; .reg .b32 b; ld.param.u64 a, [x]; ld.param.u32 b, [n];\n"
                              "st.global.b32 [a], b; ret; }\n";

static struct {
    sm120_device *device[SLOTS];
    sm120_module *module[SLOTS];
    sm120_kernel *kernel[SLOTS];
    sm120_address address[SLOTS];
    sm120_stream stream[SLOTS];
    sm120_event event[SLOTS];
    void *pinned[SLOTS];
} have;
static uint8_t host[HOST];
static sm120_device *common; /* device 3 */

/* What an input made on device 3 and has to go. */
enum made { MADE_MEMORY, MADE_PINNED, MADE_STREAM, MADE_EVENT, MADE_MODULE };
static struct {
    enum made kind;
    uintptr_t handle;
} made[MOST_CALLS];
static size_t made_count;

typedef int64_t number;
typedef sm120_status call(const number *n);

#define SLOT(kind, n) (&have.kind[(size_t)(n) % SLOTS])

/* The address in a slot, with an offset in the upper bits; small numbers and negative ones are themselves. */
static sm120_address address(number n) {
    return n > 0 && n < 1 << 24 ? *SLOT(address, n) + (uint64_t)(n / SLOTS) : (sm120_address)n;
}

static size_t bytes(number n) {
    return (size_t)n % HOST;
}

/* Remember what a call made, if it made anything that stays. */
static sm120_status keep(sm120_status status, number device, enum made kind, uintptr_t handle) {
    if (status == SM120_OK && *SLOT(device, device) == common) {
        made[made_count].kind = kind, made[made_count++].handle = handle;
    }
    return status;
}

/* Take back what is left on device 3; what is not, is refused. */
static void clean(void) {
    for (size_t k = 0; k < made_count; k++) {
        switch (made[k].kind) {
        case MADE_MEMORY:
            (void)sm120_free(common, made[k].handle);
            break;
        case MADE_PINNED:
            (void)sm120_free_pinned(common, (void *)made[k].handle);
            break;
        case MADE_STREAM:
            (void)sm120_stream_destroy(common, (sm120_stream)made[k].handle);
            break;
        case MADE_EVENT:
            (void)sm120_event_destroy(common, (sm120_event)made[k].handle);
            break;
        case MADE_MODULE:
            (void)sm120_module_unload((sm120_module *)made[k].handle);
        }
    }
    made_count = 0;
}

/* ---- calls --------------------------------------------------------------------------------------------------- */

static sm120_status open(const number *n) {
    static const char *const names[] = {
        "virtual",    "virtual:0?checks=full", "virtual:0?checks=off&seed=7", "virtual:1",
        "virtual:0?", "virtual:0?seed=x"};
    if (*SLOT(device, n[0]) != common) {
        (void)sm120_device_close(*SLOT(device, n[0]));
    }
    return sm120_device_open(names[(size_t)n[1] % 6], SLOT(device, n[0]));
}

static sm120_status close(const number *n) {
    sm120_device *const device = *SLOT(device, n[0]);
    return device == common ? sm120_device_synchronize(device) : sm120_device_close(device);
}

static sm120_status query(const number *n) {
    sm120_device_info info = {.size = (uint32_t)n[1]};
    return sm120_device_query(*SLOT(device, n[0]), (uint32_t)n[1] <= sizeof info ? &info : NULL);
}

static sm120_status synchronize(const number *n) {
    return sm120_device_synchronize(*SLOT(device, n[0]));
}

static sm120_status counter(const number *n) {
    const char *name;
    uint64_t value;
    return sm120_device_counter(*SLOT(device, n[0]), (int32_t)n[1], &name, &value);
}

static sm120_status reset(const number *n) {
    return sm120_device_counters_reset(*SLOT(device, n[0]));
}

static sm120_status alloc(const number *n) {
    const sm120_status status = sm120_alloc(*SLOT(device, n[0]), (size_t)n[1], SLOT(address, n[2]));
    return keep(status, n[0], MADE_MEMORY, *SLOT(address, n[2]));
}

static sm120_status release(const number *n) {
    return sm120_free(*SLOT(device, n[0]), address(n[1]));
}

static sm120_status alloc_pinned(const number *n) {
    void **const to = SLOT(pinned, n[2]);
    const sm120_status status = sm120_alloc_pinned(*SLOT(device, n[0]), (size_t)n[1], to, SLOT(address, n[2]));
    return keep(status, n[0], MADE_PINNED, (uintptr_t)*to);
}

static sm120_status free_pinned(const number *n) {
    return sm120_free_pinned(*SLOT(device, n[0]), *SLOT(pinned, n[1]));
}

static sm120_status to_device(const number *n) {
    return sm120_copy_to_device(*SLOT(device, n[0]), address(n[1]), host, bytes(n[2]), *SLOT(stream, n[3]));
}

static sm120_status to_host(const number *n) {
    return sm120_copy_to_host(*SLOT(device, n[0]), host, address(n[1]), bytes(n[2]), *SLOT(stream, n[3]));
}

static sm120_status on_device(const number *n) {
    return sm120_copy_on_device(*SLOT(device, n[0]), address(n[1]), address(n[2]), (size_t)n[3], *SLOT(stream, n[4]));
}

static sm120_status fill(const number *n) {
    return sm120_fill(*SLOT(device, n[0]), address(n[1]), (uint8_t)n[2], (size_t)n[3], *SLOT(stream, n[4]));
}

static sm120_status stream(const number *n) {
    const sm120_status status = sm120_stream_create(*SLOT(device, n[0]), SLOT(stream, n[1]));
    return keep(status, n[0], MADE_STREAM, (uintptr_t)*SLOT(stream, n[1]));
}

static sm120_status end_stream(const number *n) {
    return sm120_stream_destroy(*SLOT(device, n[0]), *SLOT(stream, n[1]));
}

static sm120_status event(const number *n) {
    const sm120_status status = sm120_event_create(*SLOT(device, n[0]), SLOT(event, n[1]));
    return keep(status, n[0], MADE_EVENT, (uintptr_t)*SLOT(event, n[1]));
}

static sm120_status end_event(const number *n) {
    return sm120_event_destroy(*SLOT(device, n[0]), *SLOT(event, n[1]));
}

static sm120_status record(const number *n) {
    return sm120_event_record(*SLOT(device, n[0]), *SLOT(event, n[1]), *SLOT(stream, n[2]));
}

static sm120_status elapsed(const number *n) {
    float milliseconds;
    return sm120_event_elapsed(*SLOT(device, n[0]), *SLOT(event, n[1]), *SLOT(event, n[2]), &milliseconds);
}

static sm120_status wait(const number *n) {
    return sm120_stream_wait_event(*SLOT(device, n[0]), *SLOT(stream, n[1]), *SLOT(event, n[2]));
}

static sm120_status load(const number *n) {
    const size_t size = n[2] ? (size_t)n[2] % sizeof program : sizeof program - 1;
    const char *const name = n[3] ? NULL : "k.ptx";
    const sm120_status status = sm120_module_load(*SLOT(device, n[0]), program, size, name, SLOT(module, n[1]));
    return keep(status, n[0], MADE_MODULE, (uintptr_t)*SLOT(module, n[1]));
}

static sm120_status unload(const number *n) {
    return sm120_module_unload(*SLOT(module, n[0]));
}

static sm120_status kernel(const number *n) {
    return sm120_module_kernel(*SLOT(module, n[0]), n[2] ? "other" : "k", SLOT(kernel, n[1]));
}

static sm120_status builtin(const number *n) {
    return sm120_builtin_kernel(*SLOT(device, n[0]), (int32_t)n[1], SLOT(kernel, n[2]));
}

static sm120_status describe(const number *n) {
    sm120_kernel_info info = {.size = (uint32_t)n[1]};
    sm120_parameter_info parameter = {.size = (uint32_t)n[2]};
    const sm120_status status = sm120_kernel_query(*SLOT(kernel, n[0]), (uint32_t)n[1] <= sizeof info ? &info : NULL);
    if (status != SM120_OK || (uint32_t)n[2] > sizeof parameter) {
        return status;
    }
    return sm120_kernel_parameter(*SLOT(kernel, n[0]), (int32_t)n[3], &parameter);
}

static sm120_status occupancy(const number *n) {
    int32_t blocks;
    return sm120_kernel_occupancy(*SLOT(kernel, n[0]), (uint32_t)n[1], (uint32_t)n[2], &blocks);
}

/* launch KERNEL GRID BLOCK SHARED STREAM ADDRESS NUMBER COUNT SIZE COOPERATIVE */
static sm120_status launch(const number *n) {
    const uint32_t grid[3] = {(uint32_t)n[1], 1, 1}, block[3] = {(uint32_t)n[2], 1, 1};
    const sm120_address x = address(n[5]);
    const uint32_t value = (uint32_t)n[6];
    static const uint8_t rest[1 << 12];
    const void *arguments[16] = {&x, &value};
    size_t sizes[16] = {sizeof x, sizeof value, n[8] ? bytes(n[8]) % sizeof rest : 24};
    for (int k = 2; k < 16; k++) {
        arguments[k] = rest;
    }
    return (n[9] ? sm120_launch_cooperative : sm120_launch)(*SLOT(kernel, n[0]), grid, block, (uint32_t)n[3],
                                                            *SLOT(stream, n[4]), arguments, sizes,
                                                            n[7] ? (size_t)n[7] % 17 : 3);
}

/* A tensor of 5 numbers: address, dtype, strides; 0 is the stride of rows that lie next to each other. */
static sm120_tensor tensor(const number *n, number heads, number rows, number head_dim) {
    static const uint32_t dtypes[] = {SM120_F32, SM120_F16, SM120_BF16, SM120_E4M3, 7};
    const uint64_t row = (uint64_t)head_dim, head = (uint64_t)rows * row, batch = (uint64_t)heads * head;
    return (sm120_tensor){.address = address(n[0]),
                          .dtype = dtypes[(size_t)n[1] % 5],
                          .batch_stride = n[2] ? n[2] : (int64_t)batch,
                          .head_stride = n[3] ? n[3] : (int64_t)head,
                          .row_stride = n[4] ? n[4] : (int64_t)row};
}

/* attention DEVICE WORKSPACE CAUSAL SCALE BATCH HEADS KV_HEADS Q_ROWS KV_ROWS HEAD_DIM Q(5) K(5) V(5) O(5) LSE STREAM
 */
static sm120_status attention(const number *n) {
    const sm120_attention_args args = {.size = sizeof args,
                                       .precision = SM120_MXFP8,
                                       .batch = n[4],
                                       .heads = n[5],
                                       .kv_heads = n[6],
                                       .q_rows = n[7],
                                       .kv_rows = n[8],
                                       .head_dim = n[9],
                                       .q = tensor(n + 10, n[5], n[7], n[9]),
                                       .k = tensor(n + 15, n[6], n[8], n[9]),
                                       .v = tensor(n + 20, n[6], n[8], n[9]),
                                       .o = tensor(n + 25, n[5], n[7], n[9]),
                                       .lse = address(n[30]),
                                       .scale = (float)n[3] / 8,
                                       .causal = (uint32_t)n[2],
                                       .stream = *SLOT(stream, n[31])};
    size_t space = 0;
    const sm120_status status = sm120_attention_workspace(*SLOT(device, n[0]), &args, &space);
    return status ? status : sm120_attention(*SLOT(device, n[0]), &args, address(n[1]), space);
}

/* quantize DEVICE AXIS ROUNDING BATCH HEADS ROWS HEAD_DIM X(5) ELEMENTS SCALES STREAM */
static sm120_status quantize(const number *n) {
    const sm120_quantize_mxfp8_args args = {.size = sizeof args,
                                            .axis = (uint32_t)n[1],
                                            .rounding = (uint32_t)n[2],
                                            .batch = n[3],
                                            .heads = n[4],
                                            .rows = n[5],
                                            .head_dim = n[6],
                                            .x = tensor(n + 7, n[4], n[5], n[6]),
                                            .elements = address(n[12]),
                                            .scales = address(n[13]),
                                            .stream = *SLOT(stream, n[14])};
    return sm120_quantize_mxfp8(*SLOT(device, n[0]), &args);
}

/* operation INDEX DEVICE ADDRESS WORKSPACE STREAM (MEMBER VALUE)...: the smallest call with some members changed */
static sm120_status operation(const number *n) {
    const struct operation *const o = &operations[(size_t)n[0] % OPERATION_COUNT];
    uint64_t args[OPERATION_BYTES_MAX / sizeof(uint64_t) + 1];
    o->fill(args, address(n[2]), *SLOT(stream, n[4]));
    for (int k = 5; k + 1 < MOST_NUMBERS; k += 2) {
        if (n[k]) {
            const struct operation_member *const m = &o->members[((size_t)n[k] - 1) % o->member_count];
            const uint64_t value = m->is_address ? address(n[k + 1]) : (uint64_t)n[k + 1];
            memcpy((char *)args + m->offset, &value, m->bytes);
        }
    }
    size_t space = 0;
    const sm120_status status = o->ask(*SLOT(device, n[1]), args, &space);
    return status ? status : o->call(*SLOT(device, n[1]), args, space ? address(n[3]) : 0, space);
}

static const struct {
    const char *name;
    call *run;
} calls[] = {{"open", open},           {"close", close},         {"query", query},         {"synchronize", synchronize},
             {"counter", counter},     {"reset", reset},         {"alloc", alloc},         {"free", release},
             {"pin", alloc_pinned},    {"unpin", free_pinned},   {"to_device", to_device}, {"to_host", to_host},
             {"on_device", on_device}, {"fill", fill},           {"stream", stream},       {"end_stream", end_stream},
             {"event", event},         {"end_event", end_event}, {"record", record},       {"elapsed", elapsed},
             {"wait", wait},           {"load", load},           {"unload", unload},       {"kernel", kernel},
             {"builtin", builtin},     {"describe", describe},   {"occupancy", occupancy}, {"launch", launch},
             {"attention", attention}, {"quantize", quantize},   {"operation", operation}};

/* ---- inputs -------------------------------------------------------------------------------------------------- */

/* Every status is a known one, and comes with a sentence where it is no success. */
static void check(const char *name, sm120_status status) {
    const char *const message = sm120_last_error();
    if (status < SM120_OK || status >= SM120_INTERNAL) {
        fuzz_fail("%s: status %d, '%s'", name, (int)status, message);
    }
    if ((status == SM120_OK) != !*message) {
        fuzz_fail("%s: status %d, and the message is '%s'", name, (int)status, message);
    }
}

/* Read a call and run it; what is behind it. */
static const char *run_one(const char *s) {
    number numbers[MOST_NUMBERS] = {0};
    const char *const name = s;
    const size_t length = strcspn(s, " \t\n;0123456789-");
    s += length;
    for (size_t k = 0; *s && *s != ';'; s++) {
        if (k < MOST_NUMBERS && (isdigit((unsigned char)*s) || *s == '-')) {
            char *end;
            numbers[k++] = strtoll(s, &end, 0);
            s = end > s ? end - 1 : s;
        }
    }
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
        if (strlen(calls[k].name) == length && !memcmp(calls[k].name, name, length)) {
            check(calls[k].name, calls[k].run(numbers));
        }
    }
    return *s ? s + 1 : s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *const text = malloc(size + 1);
    const char *s = text;
    if (!text) {
        return 0;
    }
    if (!common && sm120_device_open("virtual", &common)) {
        fuzz_fail("the device does not open: %s", sm120_last_error());
    }
    have.device[3] = common;
    memcpy(text, data, size);
    text[size] = 0;
    setenv("PYSM120_INSTRUCTION_LIMIT", "100000", 1); /* of one tile of attention */
    for (int k = 0; *s && k < MOST_CALLS; k++) {
        while (isspace((unsigned char)*s)) {
            s++;
        }
        s = run_one(s);
    }
    for (int k = 0; k < SLOTS; k++) {
        if (have.device[k] != common) {
            (void)sm120_device_close(have.device[k]);
        }
    }
    clean();
    memset(&have, 0, sizeof have);
    free(text);
    return 0;
}
