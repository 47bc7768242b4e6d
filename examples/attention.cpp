// Causal attention in BF16 through sm120.hpp: c++ -std=c++17 attention.cpp -lsm120 && ./a.out [device]
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sm120.hpp>
#include <vector>

namespace {

constexpr int HEADS = 2, ROWS = 100, D = 64, COUNT = HEADS * ROWS * D;

// The bits of a float that bf16 keeps; the values of this example lose nothing.
std::uint16_t to_bf16(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16);
}

sm120_tensor tensor(const sm120::Buffer &buffer, std::uint32_t dtype) {
    sm120_tensor t{};
    t.address = buffer.address();
    t.dtype = dtype;
    t.batch_stride = COUNT, t.head_stride = ROWS * D, t.row_stride = D;
    return t;
}

} // namespace

int main(int argc, char **argv) try {
    const sm120::Device device(argc > 1 ? argv[1] : "virtual");
    sm120::Buffer q(device, 2 * COUNT), k(device, 2 * COUNT), v(device, 2 * COUNT), o(device, 4 * COUNT);
    const sm120::Stream stream(device);

    // Scores of equal keys are equal, so that row i of o is the mean of the values 0 to i.
    std::vector<std::uint16_t> ones(COUNT, to_bf16(1.0f)), values(COUNT);
    for (int n = 0; n < COUNT; ++n) {
        values[static_cast<std::size_t>(n)] = to_bf16(static_cast<float>(n / D % ROWS));
    }
    q.write(ones.data(), q.bytes(), stream.get());
    k.write(ones.data(), k.bytes(), stream.get());
    v.write(values.data(), v.bytes(), stream.get());

    auto args = sm120::make<sm120_attention_args>();
    args.precision = SM120_BF16;
    args.causal = SM120_CAUSAL_BOTTOM_RIGHT;
    args.batch = 1, args.heads = args.kv_heads = HEADS;
    args.q_rows = args.kv_rows = ROWS, args.head_dim = D;
    args.q = tensor(q, SM120_BF16), args.k = tensor(k, SM120_BF16), args.v = tensor(v, SM120_BF16);
    args.o = tensor(o, SM120_F32);
    args.scale = 1.0f / std::sqrt(static_cast<float>(D));
    args.stream = stream.get();
    sm120::Workspace workspace(device);
    sm120::attention(device, args, workspace);

    std::vector<float> means(COUNT);
    o.read(means.data(), o.bytes(), stream.get());
    stream.synchronize();
    double worst = 0.0;
    for (int n = 0; n < COUNT; ++n) {
        worst = std::fmax(worst, std::fabs(means[static_cast<std::size_t>(n)] - n / D % ROWS / 2.0));
    }
    std::printf("%s: largest error %.3f\n", device.info().name, worst);
    return worst < 0.3 ? 0 : 1;
} catch (const sm120::Error &error) {
    std::fprintf(stderr, "%s: %s\n", sm120_status_string(error.status()), error.what());
    return 1;
}
