// sm120.hpp: what is moved is owned once, what is left is freed, and failures are exceptions with the library's words.
#include <sm120.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

static int failures = 0;

static void check_true(bool holds, const char *text, int line) {
    if (!holds) {
        std::printf("line %d: %s\n", line, text);
        ++failures;
    }
}
#define TRUE(x) check_true(x, #x, __LINE__)

template <class Call> static void throws(sm120_status status, const char *words, int line, Call call) {
    try {
        call();
        check_true(false, words, line);
    } catch (const sm120::Error &error) {
        check_true(error.status() == status && std::strstr(error.what(), words) != nullptr, error.what(), line);
    }
}

static_assert(!std::is_copy_constructible_v<sm120::Device> && std::is_nothrow_move_constructible_v<sm120::Device>);
static_assert(!std::is_copy_constructible_v<sm120::Buffer> && std::is_nothrow_move_assignable_v<sm120::Buffer>);
static_assert(!std::is_copy_constructible_v<sm120::Stream> && std::is_nothrow_move_assignable_v<sm120::Stream>);

static void test_memory(const sm120::Device &device) {
    sm120::Buffer a(device, 64), b(device, 128);
    const sm120_address first = a.address(), second = b.address();
    unsigned char back[64] = {0};
    a = std::move(b);
    TRUE(a.address() == second && a.bytes() == 128);
    sm120::Buffer c(std::move(a));
    TRUE(c.address() == second && a.address() == 0 && a.bytes() == 0 && first != second);
    back[63] = 9;
    c.write(back, sizeof back);
    back[63] = 0;
    c.read(back, sizeof back);
    device.synchronize();
    TRUE(back[63] == 9);
    throws(SM120_INVALID_ARGUMENT, "bytes = 0", __LINE__, [&] { sm120::Buffer(device, 0); });
    throws(SM120_INVALID_ARGUMENT, "past the end", __LINE__, [&] { c.write(back, 129); });
    TRUE(sm120_free(device.get(), second) == SM120_OK); // its destructor then fails in silence
    throws(SM120_INVALID_ARGUMENT, "address", __LINE__, [&] { sm120::check(sm120_free(device.get(), second)); });
}

static void test_devices(const char *name) {
    sm120::Device one(name);
    const sm120::Device two =
        sm120::Device::of_context(std::strncmp(name, "cuda", 4) == 0 ? "cuda" : "virtual", one.context());
    TRUE(one.context() == two.context() && one.get() != two.get());
    TRUE(two.info().multiprocessors > 0);
    sm120::Device moved(std::move(one));
    TRUE(one.get() == nullptr && moved.info().size == sizeof(sm120_device_info));
    sm120::Stream stream(moved), other(std::move(stream));
    TRUE(stream.get() == nullptr && other.get() != nullptr);
    other.synchronize();
    throws(SM120_INVALID_ARGUMENT, "tpu", __LINE__, [] { sm120::Device("tpu"); });
}

static void test_workspace(const sm120::Device &device) {
    auto args = sm120::make<sm120_matvec_args>();
    args.type = SM120_GGUF_Q8_0, args.rows = 5, args.columns = 288, args.vectors = 9;
    args.x.dtype = args.y.dtype = SM120_F32;
    args.x.row_stride = 288, args.y.row_stride = 5;
    TRUE(sm120::matvec_workspace(device, args) == 2 * 2 * 3840);
    sm120::Workspace workspace(device);
    TRUE(workspace.address() == 0 && workspace.bytes() == 0);
    throws(SM120_INVALID_ARGUMENT, "weight_bytes = 0", __LINE__, [&] { sm120::matvec(device, args, workspace); });
    const sm120_address address = workspace.address();
    TRUE(address != 0 && workspace.bytes() == 2 * 2 * 3840);
    workspace.reserve(100);
    TRUE(workspace.address() == address);
}

/* A workspace works with a device that has moved since. */
static void test_workspace_of_a_moved_device(const char *name) {
    auto first = std::make_unique<sm120::Device>(name);
    sm120::Workspace workspace(*first);
    const sm120::Device second = std::move(*first);
    first.reset();
    workspace.reserve(1000);
    TRUE(workspace.address() != 0);
}

int main(int argc, char **argv) {
    const char *const name = argc > 1 ? argv[1] : "virtual";
    const sm120::Device device(name);
    test_memory(device);
    test_devices(name);
    test_workspace(device);
    test_workspace_of_a_moved_device(name);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
