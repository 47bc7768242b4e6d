/* Results of the virtual device as checksums, to compare platforms: platform_bits. Each line has a name and a sum. */
#include <inttypes.h>
#include <sm120.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sm120_device *device;

static void check(const char *name, sm120_status status) {
    if (status != SM120_OK) {
        printf("%s: %s\n", name, sm120_last_error());
        exit(EXIT_FAILURE);
    }
}

static uint32_t draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Return device memory with `bytes` bytes of `data`, or with 0xff if data is NULL. */
static sm120_address memory(const void *data, size_t bytes) {
    sm120_address address = 0;
    check("alloc", sm120_alloc(device, bytes, &address));
    check("fill", data != NULL ? sm120_copy_to_device(device, address, data, bytes, NULL)
                               : sm120_fill(device, address, 0xff, bytes, NULL));
    return address;
}

/* Print the checksum (FNV-1a) of device memory. */
static void print(const char *name, sm120_address address, size_t bytes) {
    uint8_t *const copy = malloc(bytes);
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    if (copy == NULL) {
        exit(EXIT_FAILURE);
    }
    check(name, sm120_copy_to_host(device, copy, address, bytes, NULL));
    check(name, sm120_device_synchronize(device));
    for (size_t n = 0; n < bytes; ++n) {
        sum = (sum ^ copy[n]) * UINT64_C(0x100000001b3);
    }
    printf("%s %016" PRIx64 "\n", name, sum);
    free(copy);
}

/* ---- operations ---- */

enum { HEADS = 2, ROWS = 70, D = 64, COUNT = HEADS * ROWS * D };

/* Return a tensor of floats between -4 and 4, in the library's order [head][row][head_dim]. */
static sm120_tensor tensor(uint32_t dtype, uint32_t seed) {
    static uint32_t words[COUNT];
    static uint16_t halves[COUNT];
    for (uint32_t n = 0; n < COUNT; ++n) {
        const float x = (float)(int32_t)(draw(&seed) % 16384) / 2048 - 4; /* exact, in f32 */
        memcpy(&words[n], &x, sizeof x);
        halves[n] = (uint16_t)(words[n] >> 16);
    }
    const sm120_address address = dtype == SM120_F32 ? memory(words, sizeof words) : memory(halves, sizeof halves);
    return (sm120_tensor){address, dtype, 0, COUNT, ROWS * D, D};
}

static void attention(const char *name, uint32_t precision, uint32_t dtype) {
    sm120_attention_args args = {.size = sizeof args, .precision = precision, .batch = 1, .heads = HEADS};
    size_t bytes = 0;
    args.kv_heads = HEADS;
    args.q_rows = args.kv_rows = ROWS;
    args.head_dim = D;
    args.q = tensor(dtype, 1);
    args.k = tensor(dtype, 2);
    args.v = tensor(dtype, 3);
    args.o = tensor(dtype, 4);
    args.lse = memory(NULL, sizeof(float) * HEADS * ROWS);
    args.scale = 0.125f;
    args.causal = SM120_CAUSAL_BOTTOM_RIGHT;
    check(name, sm120_attention_workspace(device, &args, &bytes));
    check(name, sm120_attention(device, &args, bytes != 0 ? memory(NULL, bytes) : 0, bytes));
    print(name, args.o.address, (dtype == SM120_F32 ? 4 : 2) * (size_t)COUNT);
    print("lse", args.lse, sizeof(float) * HEADS * ROWS);
}

static void quantise(void) {
    sm120_quantize_mxfp8_args mxfp8 = {.size = sizeof mxfp8, .axis = SM120_ALONG_HEAD_DIM, .batch = 1, .heads = HEADS};
    mxfp8.rows = ROWS;
    mxfp8.head_dim = D;
    mxfp8.x = tensor(SM120_F32, 5);
    mxfp8.elements = memory(NULL, COUNT);
    mxfp8.scales = memory(NULL, COUNT / 32);
    check("quantize_mxfp8", sm120_quantize_mxfp8(device, &mxfp8));
    print("quantize_mxfp8", mxfp8.elements, COUNT);
    print("scales", mxfp8.scales, COUNT / 32);
    sm120_quantize_nvfp4_args nvfp4 = {.size = sizeof nvfp4, .search = 1, .axis = SM120_ALONG_HEAD_DIM, .batch = 1};
    nvfp4.heads = HEADS;
    nvfp4.rows = ROWS;
    nvfp4.head_dim = D;
    nvfp4.x = mxfp8.x;
    nvfp4.elements = memory(NULL, COUNT / 2);
    nvfp4.scales = memory(NULL, COUNT / 16);
    nvfp4.global_scale = 0.0078125f;
    check("quantize_nvfp4", sm120_quantize_nvfp4(device, &nvfp4));
    print("quantize_nvfp4", nvfp4.elements, COUNT / 2);
    print("scales", nvfp4.scales, COUNT / 16);
}

/* y = W x, with W in Q8_0: blocks of a scale in f16 and 32 int8. */
static void matvec(void) {
    enum { LINES = 48, BLOCKS = 8, BLOCK = 34, BYTES = LINES * BLOCKS * BLOCK };
    static uint8_t weights[BYTES];
    uint32_t seed = 6;
    for (size_t n = 0; n < BYTES; ++n) {
        weights[n] = (uint8_t)draw(&seed);
    }
    for (size_t n = 1; n < BYTES; n += BLOCK) {
        weights[n] = (uint8_t)(0x20 + weights[n] % 8); /* a scale from 2^-7 to 2^-5 */
    }
    size_t bytes = 0;
    sm120_matvec_args args = {.size = sizeof args, .type = SM120_GGUF_Q8_0, .rows = LINES, .columns = 32 * BLOCKS};
    args.vectors = 1;
    args.weights = memory(weights, BYTES);
    args.weight_bytes = BYTES;
    args.x = tensor(SM120_F32, 7);
    args.x.row_stride = 32 * BLOCKS;
    args.y = tensor(SM120_F32, 8);
    args.y.row_stride = LINES;
    check("matvec", sm120_matvec_workspace(device, &args, &bytes));
    check("matvec", sm120_matvec(device, &args, bytes != 0 ? memory(NULL, bytes) : 0, bytes));
    print("matvec", args.y.address, sizeof(float) * LINES);
}

/* ---- instructions ---- */

/* An instruction d = f(a, b, c): types of the registers, and how many operands it has. */
struct form {
    const char *text, *d, *abc;
    int operands;
};
static const struct form forms[] = {
    {"add.f32", "f32", "f32", 2},          {"add.rm.ftz.sat.f32", "f32", "f32", 2},
    {"mul.rz.f32", "f32", "f32", 2},       {"fma.rn.f32", "f32", "f32", 3},
    {"fma.rp.f32", "f32", "f32", 3},       {"div.rn.f32", "f32", "f32", 2},
    {"div.full.f32", "f32", "f32", 2},     {"div.rm.f32", "f32", "f32", 2},
    {"rcp.rn.f32", "f32", "f32", 1},       {"rcp.approx.f32", "f32", "f32", 1},
    {"sqrt.rn.f32", "f32", "f32", 1},      {"sqrt.rp.f32", "f32", "f32", 1},
    {"rsqrt.approx.f32", "f32", "f32", 1}, {"ex2.approx.f32", "f32", "f32", 1},
    {"lg2.approx.f32", "f32", "f32", 1},   {"sin.approx.f32", "f32", "f32", 1},
    {"cos.approx.f32", "f32", "f32", 1},   {"tanh.approx.f32", "f32", "f32", 1},
    {"min.f32", "f32", "f32", 2},          {"max.NaN.f32", "f32", "f32", 2},
    {"abs.f32", "f32", "f32", 1},          {"add.f64", "f64", "f64", 2},
    {"mul.rm.f64", "f64", "f64", 2},       {"fma.rn.f64", "f64", "f64", 3},
    {"fma.rz.f64", "f64", "f64", 3},       {"div.rn.f64", "f64", "f64", 2},
    {"sqrt.rn.f64", "f64", "f64", 1},      {"rcp.rp.f64", "f64", "f64", 1},
    {"rsqrt.approx.f64", "f64", "f64", 1}, {"min.f64", "f64", "f64", 2},
    {"cvt.rni.s32.f32", "s32", "f32", 1},  {"cvt.rzi.u32.f32", "u32", "f32", 1},
    {"cvt.rmi.s64.f64", "s64", "f64", 1},  {"cvt.rpi.u64.f64", "u64", "f64", 1},
    {"cvt.rni.f32.f32", "f32", "f32", 1},  {"cvt.rn.f32.f64", "f32", "f64", 1},
    {"cvt.rm.f32.f64", "f32", "f64", 1},   {"cvt.f64.f32", "f64", "f32", 1},
    {"cvt.rn.f32.s64", "f32", "s64", 1},   {"cvt.rz.f64.u64", "f64", "u64", 1},
    {"cvt.rn.f16.f32", "b16", "f32", 1},   {"cvt.rn.bf16.f32", "b16", "f32", 1},
    {"fma.rn.f16x2", "b32", "b32", 3},     {"fma.rn.bf16x2", "b32", "b32", 3},
    {"add.rn.f16x2", "b32", "b32", 2},     {"div.s32", "s32", "s32", 2},
    {"rem.s64", "s64", "s64", 2},          {"mul.hi.s64", "s64", "s64", 2},
    {"shr.s32", "b32", "b32", 1},          {"dp4a.s32.s32", "b32", "b32", 3},
    {"prmt.b32", "b32", "b32", 3},         {"popc.b32", "b32", "b32", 1},
    {"clz.b64", "b32", "b64", 1},          {"bfind.s32", "b32", "s32", 1},
};
enum { LANES = 512 };

static size_t width_of(const char *type) {
    return strstr(type, "64") != NULL ? 8 : strstr(type, "16") != NULL ? 2 : 4;
}

/* Write a kernel f(a, b, c, d) that applies an instruction to element %tid.x of each array. */
static void write_kernel(char *text, size_t bytes, const struct form *f) {
    const char *const operands[] = {"", ", a", ", a, b", ", a, b, c"};
    const char *const shift = strncmp(f->text, "shr", 3) == 0 ? ", 5" : "";
    const char *const type = f->abc;
    snprintf(text, bytes,
             ".version 8.8\n.target sm_120f\n.address_size 64\n"
             ".visible .entry f(.param .u64 A, .param .u64 B, .param .u64 C, .param .u64 D) {\n"
             ".reg .b32 t; .reg .b64 n, x; .reg .%s a, b, c; .reg .%s d;\n"
             "mov.u32 t, %%tid.x; mul.wide.u32 n, t, 8;\n"
             "ld.param.u64 x, [A]; add.u64 x, x, n; ld.global.%s a, [x];\n"
             "ld.param.u64 x, [B]; add.u64 x, x, n; ld.global.%s b, [x];\n"
             "ld.param.u64 x, [C]; add.u64 x, x, n; ld.global.%s c, [x];\n"
             "%s d%s%s;\n"
             "ld.param.u64 x, [D]; add.u64 x, x, n; st.global.%s [x], d;\nret; }\n",
             type, f->d, type, type, type, f->text, operands[f->operands], shift, f->d);
}

/* Fill an array of 8-byte elements: zeros, infinities, NaN, subnormals, numbers near 1, and any bits. */
static void fill(uint64_t *x, uint32_t seed, size_t width) {
    static const uint32_t singles[] = {0, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc01234u, 0xffffffffu,
                                       1, 0x807fffffu, 0x3f800000u, 0x7f7fffffu, 0x00800000u, 0xcf000000u};
    enum { SPECIAL = sizeof singles / sizeof *singles };
    for (size_t n = 0; n < LANES; ++n) {
        const uint32_t low = draw(&seed) * 0x01010101u, high = draw(&seed) * 257u, kind = draw(&seed) % 32;
        const uint32_t near_one = 0x3f000000u + high % 0x1000000u;
        const uint32_t top = kind < SPECIAL ? singles[kind] : kind < 24 ? near_one : high ^ low << 1;
        x[n] = width == 8 ? (uint64_t)top << 32 | (kind < SPECIAL ? 0 : low) : top;
    }
}

static void instructions(void) {
    static uint64_t x[LANES];
    char text[2048];
    for (size_t k = 0; k < sizeof forms / sizeof *forms; ++k) {
        const struct form *const f = &forms[k];
        sm120_module *module = NULL;
        sm120_kernel *kernel = NULL;
        sm120_address arrays[4];
        for (uint32_t n = 0; n < 3; ++n) {
            fill(x, 10 + n, width_of(f->abc));
            arrays[n] = memory(x, sizeof x);
        }
        memset(x, 0, sizeof x);
        arrays[3] = memory(x, sizeof x);
        write_kernel(text, sizeof text, f);
        check(f->text, sm120_module_load(device, text, strlen(text), f->text, &module));
        check(f->text, sm120_module_kernel(module, "f", &kernel));
        const void *const arguments[] = {&arrays[0], &arrays[1], &arrays[2], &arrays[3]};
        const size_t sizes[] = {8, 8, 8, 8};
        const uint32_t grid[3] = {1, 1, 1}, block[3] = {LANES, 1, 1};
        check(f->text, sm120_launch(kernel, grid, block, 0, NULL, arguments, sizes, 4));
        print(f->text, arrays[3], sizeof x);
    }
}

int main(void) {
    check("open", sm120_device_open("virtual", &device));
    attention("bf16", SM120_BF16, SM120_BF16);
    attention("mxfp8", SM120_MXFP8, SM120_F32);
    attention("mxfp8_bf16", SM120_MXFP8_BF16, SM120_BF16);
    quantise();
    matvec();
    instructions();
    check("close", sm120_device_close(device));
    return EXIT_SUCCESS;
}
