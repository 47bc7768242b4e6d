/* Attention, quantisation, weights and tensor maps, called wrongly, then rightly: c_operations [device]. */
#include "c_abi.h"

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, Q_ROWS = 5, KV_ROWS = 7, D = 24 };

/* A field of a struct set to a wrong value, the status that this is, and a word of the message. */
struct wrong_field {
    const char *word;
    sm120_status status;
    size_t offset, bytes;
    int64_t value; /* or the bits of a float */
};

#define FIELD(type, field, value, status, word)                                                                        \
    {word, SM120_##status, offsetof(type, field), sizeof(((type *)NULL)->field), value}

/* Copy a struct of `bytes` bytes with one field set wrongly. */
static void set_field(void *to, const void *from, size_t bytes, const struct wrong_field *field) {
    memcpy(to, from, bytes);
    memcpy((char *)to + field->offset, &field->value, field->bytes); /* little-endian, as the library's images are */
}

/* Arguments of an attention in f32 whose five arrays lie one behind the other at `memory`. */
static sm120_attention_args attention_args(sm120_address memory) {
    enum { PART = 1 << 14 };
    const sm120_tensor q = {memory, SM120_F32, 0, HEADS * Q_ROWS * D, Q_ROWS * D, D};
    const sm120_tensor kv = {memory + PART, SM120_F32, 0, KV_HEADS * KV_ROWS * D, KV_ROWS * D, D};
    sm120_attention_args args = {.size = sizeof args, .precision = SM120_MXFP8, .batch = BATCH, .heads = HEADS};
    args.kv_heads = KV_HEADS;
    args.q_rows = Q_ROWS;
    args.kv_rows = KV_ROWS;
    args.head_dim = D;
    args.q = q;
    args.k = kv;
    args.v = kv;
    args.v.address += PART;
    args.o = q;
    args.o.address += 3 * PART;
    args.lse = memory + 4 * PART;
    args.scale = -0.25f;
    args.causal = SM120_CAUSAL_BOTTOM_RIGHT;
    return args;
}

static void test_attention(sm120_device *device) {
    enum { BYTES = 1 << 18 };
    sm120_address memory = 0;
    sm120_address workspace = 0;
    size_t bytes = 0;
    OK(sm120_alloc(device, BYTES, &memory));
    OK(sm120_fill(device, memory, 0, BYTES, NULL));
    const sm120_attention_args right = attention_args(memory);
    OK(sm120_attention_workspace(device, &right, &bytes));
    TRUE(bytes > 0);
    OK(sm120_alloc(device, bytes, &workspace));
    const char *config = NULL;
    int32_t kernel = -1;
    OK(sm120_attention_config(&right, 0, &config, &kernel));
    TRUE(kernel >= 0 && strcmp(config, "r16") == 0);
    BAD(UNSUPPORTED, "index = 1 is past the last of the 1 configs",
        sm120_attention_config(&right, 1, &config, &kernel));
    BAD(INVALID_ARGUMENT, "index = -1", sm120_attention_config(&right, -1, &config, &kernel));
    BAD(INVALID_ARGUMENT, "config", sm120_attention_config(&right, 0, NULL, &kernel));
    BAD(INVALID_ARGUMENT, "kernel", sm120_attention_config(&right, 0, &config, NULL));
    kernel = -1;
    OK(sm120_attention_chosen(device, &right, &config, &kernel));
    TRUE(kernel >= 0 && strcmp(config, "r16") == 0);
    BAD(INVALID_ARGUMENT, "args", sm120_attention_chosen(device, NULL, &config, &kernel));
    int64_t first = 0, splits = 0;
    OK(sm120_attention_splits(device, &right, &first, &splits));
    TRUE(first == BATCH * HEADS && splits == 1); /* a causal call is not split */
    BAD(INVALID_ARGUMENT, "first", sm120_attention_splits(device, &right, NULL, &splits));
    BAD(INVALID_ARGUMENT, "splits", sm120_attention_splits(device, &right, &first, NULL));
    BAD(INVALID_ARGUMENT, "args", sm120_attention_splits(device, NULL, &first, &splits));
    sm120_attention_args other = right;
    other.config = "r17";
    BAD(UNSUPPORTED, "config = \"r17\"; this call supports r16; sm120_attention_config lists all",
        sm120_attention(device, &other, workspace, bytes));
    char text[128];
    BAD(INVALID_ARGUMENT, "args", sm120_attention(device, NULL, workspace, bytes));
    BAD(INVALID_ARGUMENT, "workspace_bytes is NULL", sm120_attention_workspace(device, &right, NULL));
    BAD(INVALID_ARGUMENT, "args", sm120_attention_workspace(device, NULL, &bytes));
    snprintf(text, sizeof text, "workspace_bytes = %zu; this call needs %zu", bytes - 1, bytes);
    BAD(WORKSPACE_TOO_SMALL, text, sm120_attention(device, &right, workspace, bytes - 1));
    snprintf(text, sizeof text, "workspace = 0 and workspace_bytes = %zu; this call needs a workspace of %zu bytes",
             bytes, bytes);
    BAD(WORKSPACE_TOO_SMALL, text, sm120_attention(device, &right, 0, bytes));
    BAD(MISALIGNED, "workspace", sm120_attention(device, &right, workspace + 16, bytes));
    BAD(INVALID_ARGUMENT, "overlap", sm120_attention(device, &right, right.lse, bytes));
    BAD(INVALID_ARGUMENT, "past the end", sm120_attention(device, &right, workspace + 256, bytes));
    sm120_attention_args args = right;
    args.lse = args.o.address;
    BAD(INVALID_ARGUMENT, "overlap", sm120_attention(device, &args, workspace, bytes));
    OK(sm120_attention(device, &right, workspace, bytes)); /* of zeros: the mean of zeros, and log of the keys */
    float lse = 0.0f;
    OK(sm120_copy_to_host(device, &lse, right.lse, sizeof lse, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(fabsf(lse - logf(KV_ROWS - Q_ROWS + 1)) < 1e-5f);
    OK(sm120_free(device, workspace));
    OK(sm120_free(device, memory));
}

/* A map of a matrix of f16 with one field wrong. */
#define M(field, value, status, word) FIELD(sm120_tensor_map_args, field, value, status, word)
static const struct wrong_field wrong_map[] = {
    M(size, 7, INVALID_ARGUMENT, "args->size = 7"),
    M(data_type, 16, INVALID_ARGUMENT, "data_type = 16; expected 0 to 15"),
    M(rank, 0, INVALID_ARGUMENT, "rank = 0"),
    M(rank, 6, INVALID_ARGUMENT, "rank = 6; expected 1 to 5"),
    M(interleave, 3, INVALID_ARGUMENT, "interleave = 3"),
    M(interleave, 1, INVALID_ARGUMENT, "rank = 2; an interleaved tensor has 3 to 5 dimensions"),
    M(swizzle, 7, INVALID_ARGUMENT, "swizzle = 7"),
    M(swizzle, 1, INVALID_ARGUMENT, "box[0] = 32 elements are 64 bytes; expected at most 32"),
    M(l2_promotion, 4, INVALID_ARGUMENT, "l2_promotion = 4"),
    M(oob_fill, 2, INVALID_ARGUMENT, "oob_fill = 2"),
    M(reserved, 1, INVALID_ARGUMENT, "reserved = 1"),
    M(address, 0, INVALID_ARGUMENT, "address = 0"),
    M(address, 40, MISALIGNED, "address = 0x28"),
    M(dims[0], 0, INVALID_ARGUMENT, "dims[0] = 0"),
    M(dims[1], (INT64_C(1) << 32) + 1, INVALID_ARGUMENT, "dims[1] = 4294967297; expected 1 to 2^32"),
    M(strides[0], 136, INVALID_ARGUMENT, "strides[0] = 136 bytes; expected a multiple of 16"),
    M(strides[0], INT64_C(1) << 40, INVALID_ARGUMENT, "below 2^40"),
    M(box[0], 0, INVALID_ARGUMENT, "box[0] = 0"),
    M(box[1], 257, INVALID_ARGUMENT, "box[1] = 257; expected 1 to 256"),
    M(box[0], 12, INVALID_ARGUMENT, "box[0] = 12 elements of 16 bits; expected a multiple of 16 bytes"),
    M(element_strides[1], 9, INVALID_ARGUMENT, "element_strides[1] = 9; expected 1 to 8"),
    M(element_strides[0], 0, INVALID_ARGUMENT, "element_strides[0] = 0"),
};

/* The same for the types that pack, and of the modes that contradict each other. */
static void test_attention_backward(sm120_device *device) {
    enum { ROWS = 4096, HEAD_DIM = 64 };
    sm120_tensor x = {.address = 1 << 20, .dtype = SM120_BF16, .row_stride = HEAD_DIM};
    x.head_stride = ROWS * HEAD_DIM;
    x.batch_stride = HEADS * x.head_stride;
    const sm120_attention_backward_args args = {.size = sizeof args,
                                                .precision = SM120_BF16,
                                                .batch = 1,
                                                .heads = HEADS,
                                                .kv_heads = HEADS,
                                                .q_rows = ROWS,
                                                .kv_rows = 1,
                                                .head_dim = HEAD_DIM,
                                                .q = x,
                                                .k = x,
                                                .v = x,
                                                .dout = x,
                                                .o = x,
                                                .dq = x,
                                                .dk = x,
                                                .dv = x,
                                                .lse = 1 << 20,
                                                .scale = 1.0f};
    sm120_attention_backward_plan plan = {.size = sizeof plan, .kernel = -1};
    OK(sm120_attention_backward_chosen(device, &args, &plan));
    sm120_builtin_info info = {.size = sizeof info};
    OK(sm120_builtin(plan.kernel, &info));
    TRUE(strcmp(info.operation, "attention_backward") == 0);
    TRUE(plan.first_split == 0 && plan.splits > 1); /* four CTAs would leave SMs idle */
    TRUE(plan.q_tiles > 0 && plan.sums == plan.q_tiles && plan.first_head == 0 && plan.group == 1);
    sm120_attention_backward_args other = args;
    other.causal = 7;
    BAD(INVALID_ARGUMENT, "causal = 7", sm120_attention_backward_chosen(device, &other, &plan));
    BAD(INVALID_ARGUMENT, "args", sm120_attention_backward_chosen(device, NULL, &plan));
    BAD(INVALID_ARGUMENT, "plan", sm120_attention_backward_chosen(device, &args, NULL));
    plan.size = 1;
    BAD(INVALID_ARGUMENT, "plan", sm120_attention_backward_chosen(device, &args, &plan));
}

static void test_packed_map(sm120_device *device, sm120_tensor_map_args args) {
    sm120_tensor_map map;
    args.data_type = SM120_TENSOR_MAP_UINT16;
    args.oob_fill = SM120_FILL_NAN;
    BAD(INVALID_ARGUMENT, "oob_fill = 1; NaN needs a floating-point type",
        sm120_tensor_map_encode(device, &args, &map));
    args.oob_fill = SM120_FILL_ZERO;
    args.data_type = SM120_TENSOR_MAP_16U4_ALIGN8B;
    args.dims[0] = 63;
    BAD(INVALID_ARGUMENT, "dims[0] = 63; expected a multiple of 2", sm120_tensor_map_encode(device, &args, &map));
    args.data_type = SM120_TENSOR_MAP_16U6_ALIGN16B;
    BAD(INVALID_ARGUMENT, "dims[0] = 63; expected a multiple of 128", sm120_tensor_map_encode(device, &args, &map));
    args.dims[0] = 128;
    BAD(INVALID_ARGUMENT, "box[0] = 32; expected 128", sm120_tensor_map_encode(device, &args, &map));
    args.box[0] = 128;
    args.swizzle = SM120_SWIZZLE_64B;
    BAD(INVALID_ARGUMENT, "at most 64", sm120_tensor_map_encode(device, &args, &map));
    args.swizzle = SM120_SWIZZLE_128B_ATOM_32B_FLIP_8B;
    BAD(INVALID_ARGUMENT, "128B_ATOM_64B", sm120_tensor_map_encode(device, &args, &map));
    args.swizzle = SM120_SWIZZLE_NONE;
    args.strides[0] += 16;
    BAD(INVALID_ARGUMENT, "a multiple of 32", sm120_tensor_map_encode(device, &args, &map));
    args.strides[0] -= 16;
    args.rank = 3;
    args.interleave = SM120_INTERLEAVE_16B;
    BAD(INVALID_ARGUMENT, "interleave = 1; data_type 16U6_ALIGN16B expects none",
        sm120_tensor_map_encode(device, &args, &map));
    args.data_type = SM120_TENSOR_MAP_FLOAT16;
    args.interleave = SM120_INTERLEAVE_32B;
    args.strides[1] += 16;
    BAD(INVALID_ARGUMENT, "strides[1] = 12816 bytes; expected a multiple of 32",
        sm120_tensor_map_encode(device, &args, &map));
}

static void test_tensor_map(sm120_device *device) {
    sm120_device_info info = {.size = sizeof info};
    sm120_address memory = 0;
    sm120_tensor_map map = {{0}};
    sm120_tensor_map other = {{0}};
    OK(sm120_device_query(device, &info));
    OK(sm120_alloc(device, 1 << 16, &memory));
    const sm120_tensor_map_args right = {.size = sizeof right,
                                         .data_type = SM120_TENSOR_MAP_FLOAT16,
                                         .rank = 2,
                                         .swizzle = SM120_SWIZZLE_64B,
                                         .box = {32, 8, 1},
                                         .element_strides = {1, 1, 1},
                                         .address = memory,
                                         .dims = {60, 100, 1},
                                         .strides = {128, 12800}};
    for (size_t i = 0; i < sizeof wrong_map / sizeof wrong_map[0]; ++i) {
        sm120_tensor_map_args args;
        set_field(&args, &right, sizeof args, &wrong_map[i]);
        expect(__LINE__, wrong_map[i].word, sm120_tensor_map_encode(device, &args, &map), wrong_map[i].status,
               wrong_map[i].word);
    }
    test_packed_map(device, right);
    BAD(INVALID_ARGUMENT, "args is NULL", sm120_tensor_map_encode(device, NULL, &map));
    BAD(INVALID_ARGUMENT, "map is NULL", sm120_tensor_map_encode(device, &right, NULL));
    BAD(INVALID_ARGUMENT, "map is NULL", sm120_tensor_map_replace_address(device, NULL, memory));
    BAD(MISALIGNED, "address = 0x", sm120_tensor_map_replace_address(device, &map, memory + 8));
    if (info.is_virtual) {
        BAD(INVALID_ARGUMENT, "never encoded", sm120_tensor_map_replace_address(device, &map, memory));
    }
    sm120_tensor_map_args moved = right;
    moved.address += 512;
    OK(sm120_tensor_map_encode(device, &right, &map));
    OK(sm120_tensor_map_encode(device, &moved, &other));
    TRUE(memcmp(&map, &other, sizeof map) != 0);
    OK(sm120_tensor_map_replace_address(device, &map, memory + 512));
    TRUE(memcmp(&map, &other, sizeof map) == 0);
    OK(sm120_free(device, memory));
}

static void test_quantize(sm120_device *device) {
    enum { ROWS = 3, COUNT = ROWS * D };
    sm120_address memory = 0;
    float x[COUNT];
    uint8_t elements[COUNT];
    uint8_t scales[ROWS];
    OK(sm120_alloc(device, 4096, &memory));
    for (int i = 0; i < COUNT; ++i) {
        x[i] = i < D ? 1.0f : i < 2 * D ? -3.5f : 0.0f;
    }
    OK(sm120_copy_to_device(device, memory, x, sizeof x, NULL));
    sm120_quantize_mxfp8_args right = {.size = sizeof right, .batch = 1, .heads = 1, .rows = ROWS, .head_dim = D};
    right.x = (sm120_tensor){memory, SM120_F32, 0, COUNT, COUNT, D};
    right.elements = memory + 1024;
    right.scales = memory + 2048;
    BAD(INVALID_ARGUMENT, "args", sm120_quantize_mxfp8(device, NULL));
    sm120_quantize_mxfp8_args args = right;
    args.scales = args.elements + 8;
    BAD(INVALID_ARGUMENT, "overlap", sm120_quantize_mxfp8(device, &args));
    OK(sm120_quantize_mxfp8(device, &right));
    OK(sm120_copy_to_host(device, elements, right.elements, sizeof elements, NULL));
    OK(sm120_copy_to_host(device, scales, right.scales, sizeof scales, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(scales[0] == 127 - 8 && elements[0] == 0x78);     /* 1 = 256 * 2^-8 */
    TRUE(scales[1] == 127 - 7 && elements[D + 1] == 0xfe); /* -3.5 = -448 * 2^-7 */
    TRUE(elements[2 * D] == 0);
    OK(sm120_free(device, memory));
}

/* Sizes of weights, and the workspace of a product: 5 rows of 288 columns are 34 bytes for each 32. */
static void test_weights(sm120_device *device) {
    int64_t bytes = 0;
    OK(sm120_weights_bytes(SM120_GGUF_Q8_0, SM120_WEIGHTS_NATIVE, 5, 288, &bytes));
    TRUE(bytes == 5 * 9 * 34 + 2);
    OK(sm120_weights_bytes(SM120_GGUF_Q8_0, SM120_WEIGHTS_PACKED, 5, 288, &bytes));
    TRUE(bytes == 16 * 16 * 34);
    BAD(INVALID_ARGUMENT, "bytes is NULL", sm120_weights_bytes(SM120_GGUF_Q8_0, SM120_WEIGHTS_NATIVE, 5, 288, NULL));
    BAD(INVALID_ARGUMENT, "layout = 2", sm120_weights_bytes(SM120_GGUF_Q8_0, 2, 5, 288, &bytes));
    BAD(INVALID_ARGUMENT, "type = 1", sm120_weights_bytes(1, SM120_WEIGHTS_NATIVE, 5, 288, &bytes));
    BAD(INVALID_ARGUMENT, "columns = 250", sm120_weights_bytes(SM120_GGUF_Q8_0, SM120_WEIGHTS_NATIVE, 5, 250, &bytes));
    sm120_matvec_args args = {.size = sizeof args, .type = SM120_GGUF_Q8_0, .rows = 5, .columns = 288, .vectors = 9};
    args.x.dtype = args.y.dtype = SM120_F32;
    args.x.row_stride = 288;
    args.y.row_stride = 5;
    size_t workspace = 0;
    OK(sm120_matvec_workspace(device, &args, &workspace));
    TRUE(workspace == 2 * 2 * 3840);
    args.vectors = 1;
    OK(sm120_matvec_workspace(device, &args, &workspace));
    TRUE(workspace == 0);
}

int main(int argc, char **argv) {
    sm120_device *device = NULL;
    device_name = argc > 1 ? argv[1] : device_name;
    OK(sm120_device_open(device_name, &device));
    if (device == NULL) {
        return EXIT_FAILURE;
    }
    test_attention(device);
    test_attention_backward(device);
    test_quantize(device);
    test_weights(device);
    test_tensor_map(device);
    OK(sm120_device_close(device));
    return ended();
}
