"""Triton's PTX for sm_120 runs on the virtual device and agrees with NumPy in float64.

Each test says its tolerance. Triton compiles without a GPU; PyTorch is not needed.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import triton.language as tl
from triton_compile import Descriptor, compile_kernel

import pysm120

pytestmark = pytest.mark.virtual
Array = npt.NDArray[Any]


SWIZZLES = ("none", "32B", "64B", "128B")


def describe(device: pysm120.Device, array: pysm120.Array, meta: dict[str, Any]) -> list[Any]:
    """Return what becomes of a descriptor: its tensor map, its shape and its strides."""
    made = device.tensor_map(array, tuple(meta["block_size"]), swizzle=SWIZZLES[meta["swizzle"]])
    return [made, *map(np.int32, array.shape), *map(np.int64, array.strides)]


def launch(
    device: pysm120.Device,
    name: str,
    grid: int | tuple[int, ...],
    *arguments: Array | np.generic | Descriptor,
    warps: int = 4,
    stages: int = 2,
    **constants: Any,
) -> list[Array]:
    """Compile a kernel, run it, return its arrays as they are then."""
    compiled = compile_kernel(name, *arguments, warps=warps, stages=stages, constants=constants)
    loaded = device.load(compiled.asm["ptx"], name=name)[compiled.metadata.name]
    held: list[pysm120.Array] = []
    values: list[Any] = []
    metas = iter(compiled.metadata.tensordesc_meta or ())
    for a in arguments:
        if isinstance(a, np.generic):
            values.append(a)
            continue
        held.append(device.array(a.array if isinstance(a, Descriptor) else a))
        values += describe(device, held[-1], next(metas)) if isinstance(a, Descriptor) else [held[-1]]
    scratch = device.empty(max(16, int(np.prod(grid)) * compiled.metadata.global_scratch_size), np.uint8)
    values += [scratch, np.uint64(0)]  # what descriptors are made in; profile scratch: none
    loaded(grid, 32 * compiled.metadata.num_warps, *values, shared=compiled.metadata.shared)
    device.synchronize()
    return [h.numpy() for h in held]


def error(got: Array, want: Array) -> float:
    """Relative Frobenius norm of the difference."""
    return float(np.linalg.norm(got.astype(float) - want) / np.linalg.norm(want))


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    if dtype == np.int8:
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rng.standard_normal(shape).astype(dtype)


MATMUL = [
    (np.float16, 1e-6), (ml_dtypes.bfloat16, 1e-6), (ml_dtypes.float8_e4m3fn, 1e-6), (ml_dtypes.float8_e5m2, 1e-6),
    (np.int8, 0.0), (np.float32, 1e-3),
]  # fmt: skip


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize(("dtype", "bound"), MATMUL, ids=lambda v: getattr(v, "__name__", ""))
def test_matmul(
    device: pysm120.Device, rng: np.random.Generator, dtype: npt.DTypeLike, bound: float, stages: int
) -> None:
    M, N, K = 80, 64, 160
    a, b = normal(rng, (M, K), dtype), normal(rng, (K, N), dtype)
    whole = dtype == np.int8
    c = np.full((M, N), -1, np.int32 if whole else np.float32)
    sizes = [np.int32(s) for s in (M, N, K)]
    accumulator = tl.int32 if whole else tl.float32
    got = launch(device, "matmul", (2, 1), a, b, c, *sizes, stages=stages, BM=64, BN=64, BK=32, ACC=accumulator)[2]
    # exact products and sums cut to the accumulator's fraction; float32 goes through tf32, 10 bits
    assert error(got, a.astype(float) @ b.astype(float)) <= bound


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def scaled_operand(
    rng: np.random.Generator, rows: int, depth: int, name: str, block: int
) -> tuple[Array, Array, Array]:
    """Codes, scales and the values they stand for."""
    if block == 16:
        scale = rng.uniform(0.25, 4, (rows, depth // block)).astype(ml_dtypes.float8_e4m3fn)
        factor = scale.astype(float)
    else:
        scale = rng.integers(120, 134, (rows, depth // block)).astype(np.uint8)
        factor = 2.0 ** (scale.astype(float) - 127)
    if name == "e2m1":
        code = rng.integers(0, 16, (rows, depth))
        value, data = E2M1[code], (code[:, ::2] | code[:, 1::2] << 4).astype(np.uint8)
    else:
        data = normal(rng, (rows, depth), ml_dtypes.float8_e4m3fn if name == "e4m3" else ml_dtypes.float8_e5m2)
        value = data.astype(float)
    return data, scale, value * np.repeat(factor, block, 1)


@pytest.mark.parametrize(
    ("left", "right", "block"),
    [("e4m3", "e4m3", 32), ("e5m2", "e4m3", 32), ("e2m1", "e2m1", 32), ("e2m1", "e2m1", 16), ("e5m2", "e2m1", 32)],
)
def test_dot_scaled(device: pysm120.Device, rng: np.random.Generator, left: str, right: str, block: int) -> None:
    M, N, K = 64, 64, 128
    a, sa, want_a = scaled_operand(rng, M, K, left, block)
    b, sb, want_b = scaled_operand(rng, N, K, right, block)
    packs: dict[str, Any] = {"PACK_A": 1 + (left == "e2m1"), "PACK_B": 1 + (right == "e2m1")}
    formats: dict[str, Any] = {"FORMAT_A": left, "FORMAT_B": right}
    c = np.zeros((M, N), np.float32)
    got = launch(device, "matmul_scaled", 1, a, sa, b, sb, c, M=M, N=N, K=K, BLOCK=block, **packs, **formats)[4]
    assert error(got, want_a @ want_b.T) <= 1e-6


def reference(q: Array, k: Array, v: Array, scale: float, *, causal: bool) -> tuple[Array, Array, Array]:
    q, k, v = (x.astype(float) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) * scale
    if causal:
        s = np.where(np.tri(s.shape[-2], dtype=bool), s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    return (e / total) @ v, e / total, (top + np.log(total))[..., 0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_attention(device: pysm120.Device, rng: np.random.Generator, dtype: npt.DTypeLike, *, causal: bool) -> None:
    H, S, D = 2, 128, 64
    q, k, v = (normal(rng, (H, S, D), dtype) for _ in range(3))
    o, lse = np.zeros((H, S, D), np.float32), np.zeros((H, S), np.float32)
    scale = D**-0.5
    arguments = (q, k, v, o, lse, np.int32(S), np.float32(scale / math.log(2)))
    got = launch(device, "attention", (S // 64, H), *arguments, D=D, BM=64, BN=32, CAUSAL=causal, stages=3)
    want, _, want_lse = reference(q, k, v, scale, causal=causal)
    assert error(got[3], want) < (1e-3 if dtype == np.float16 else 6e-3)  # P is rounded to dtype
    assert np.allclose(got[4] * math.log(2), want_lse, rtol=0, atol=1e-5)


def test_attention_backward(device: pysm120.Device, rng: np.random.Generator) -> None:
    H, S, D = 1, 96, 64
    q, k, v, do = (normal(rng, (H, S, D), np.float16) for _ in range(4))
    scale = D**-0.5
    o, p, lse = reference(q, k, v, scale, causal=False)
    f = do.astype(float)
    delta = (f * o).sum(-1)
    ds = p * (f @ v.astype(float).swapaxes(-1, -2) - delta[..., None]) * scale
    want = [ds @ k.astype(float), ds.swapaxes(-1, -2) @ q.astype(float), p.swapaxes(-1, -2) @ f]
    inputs = [q, k, v, do, (lse / math.log(2)).astype(np.float32), delta.astype(np.float32)]
    outputs = [np.zeros((H, S, D), np.float32) for _ in range(3)]
    arguments = (*inputs, *outputs, np.int32(S), np.float32(scale))
    got = launch(device, "attention_backward", (S // 32, H), *arguments, D=D, BM=32, BN=32)
    for g, w in zip(got[6:], want, strict=True):
        assert error(g, w) < 1.5e-3  # P and dS are rounded to float16


def test_softmax(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal((7, 200)).astype(np.float32)
    got = launch(device, "softmax", 7, x, np.zeros_like(x), np.int32(200), BLOCK=256)[1]
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    assert error(got, e / e.sum(1, keepdims=True)) < 1e-6


def test_layer_norm(device: pysm120.Device, rng: np.random.Generator) -> None:
    rows, columns, eps = 6, 200, 1e-5
    x, dy = (rng.standard_normal((rows, columns)).astype(np.float32) for _ in range(2))
    w, b = (rng.standard_normal(columns).astype(np.float32) for _ in range(2))
    mean, rstd = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    size = np.int32(columns)
    out = launch(device, "layer_norm", rows, x, np.zeros_like(x), w, b, mean, rstd, size, np.float32(eps), BLOCK=256)
    f = x.astype(float)
    want_mean, want_rstd = f.mean(1), 1 / np.sqrt(f.var(1) + eps)
    h = (f - want_mean[:, None]) * want_rstd[:, None]
    for got, want in zip([out[1], *out[4:]], [h * w + b, want_mean, want_rstd], strict=True):
        assert error(got, want) < 1e-6
    zeros = [np.zeros_like(x), np.zeros_like(w), np.zeros_like(w), np.zeros(1, np.int32)]
    out = launch(device, "layer_norm_backward", rows, x, dy, w, *out[4:], *zeros, size, BLOCK=256)
    g = w * dy.astype(float)
    dx = (g - (h * (h * g).mean(1, keepdims=True) + g.mean(1, keepdims=True))) * want_rstd[:, None]
    for got, want in zip(out[5:8], [dx, (dy * h).sum(0), dy.astype(float).sum(0)], strict=True):
        assert error(got, want) < 1e-6
    assert out[8][0] == 0


def test_scans(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 256)).astype(np.float32)
    got = launch(device, "scans", 2, x, *(np.zeros_like(x) for _ in range(4)), BLOCK=256)[1:]
    f = x.astype(float)
    recurrence = np.zeros_like(f)
    y = np.zeros(2)
    for k in range(256):
        y = 0.5 * y + f[:, k]
        recurrence[:, k] = y
    want = [np.cumsum(f, 1), np.cumprod(1 + f / 256, 1), recurrence, np.cumsum(f[:, ::-1], 1)[:, ::-1]]
    for g, w in zip(got, want, strict=True):
        assert error(g, w) < 2e-6


def test_sorts(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 64)).astype(np.float32)
    zeros = (np.zeros_like(x), np.zeros_like(x), np.zeros((4, 8), np.float32), np.zeros((2, 4), np.int32))
    _, up, down, top, arguments = launch(device, "sorts", 1, x, *zeros, ROWS=4, BLOCK=64, TOP=8)
    want = np.sort(x, 1)
    assert np.array_equal(up, want)
    assert np.array_equal(down, want[:, ::-1])
    assert np.array_equal(top, want[:, :-9:-1])
    assert np.array_equal(arguments, [x.argmax(1), x.argmin(1)])


def test_histogram(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 1000
    x = rng.integers(0, 64, n).astype(np.int32)
    zeros = [np.zeros(64, np.int32) for _ in range(2)]
    out = launch(device, "histogram", 4, x, *zeros, np.int32(n), BINS=64, BLOCK=256)
    want = np.bincount(x, minlength=64)
    assert np.array_equal(out[1], want)
    assert np.array_equal(out[2], want)


def test_atomics(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 512
    x = rng.integers(-(1 << 31), 1 << 31, n).astype(np.int32)
    start = np.array([-(1 << 31), (1 << 31) - 1, -1, 0, 0, 0], np.int32)
    _, out, old, half = launch(device, "atomics", 2, x, start, np.zeros_like(x), np.zeros(8, np.float16), BLOCK=256)
    operations = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
    assert out.tolist() == [x.max(), x.min(), *(int(f.reduce(x)) for f in operations), n]
    assert sorted(old.tolist()) == list(range(n))
    assert (half == n / 8).all()


def philox(seed: int, counter: int) -> int:
    """Return the first word of Philox-4x32-10, as Triton calls it."""
    c, key = [counter, 0, 0, 0], [seed, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def test_random(device: pysm120.Device) -> None:
    n, seed = 1024, 1234
    zeros = (np.zeros(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.int32))
    uniform, gauss, bits = launch(device, "random", n // 256, *zeros, np.int32(seed), BLOCK=256)
    assert bits.view(np.uint32).tolist() == [philox(seed, i) for i in range(n)]
    folded = np.where(bits < 0, -1 - bits, bits)
    assert np.allclose(uniform, folded * 4.6566127342e-10, rtol=3e-7)
    assert abs(gauss.mean()) < 0.15  # 5 sigma
    assert abs(gauss.std() - 1) < 0.12


def test_transcendental(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 128
    x = rng.uniform(0.1, 8, n).astype(np.float32)
    out = launch(device, "transcendental", 1, x, np.zeros((14, n), np.float32), np.int32(n), BLOCK=n)[1]
    f = x.astype(float)
    want = [
        np.exp(f), np.log(f), np.sin(f), np.cos(f), np.sqrt(f), 1 / np.sqrt(f), np.vectorize(math.erf)(f),
        1 / (1 + np.exp(-f)), np.exp2(f), np.log2(f), np.floor(f) + np.ceil(f), f * f + f, np.sqrt(f), f / (f + 1),
    ]  # fmt: skip
    for k, (g, w) in enumerate(zip(out, want, strict=True)):
        assert np.allclose(g, w, rtol=2e-6, atol=1e-6), k  # sin and cos: 2^-20.5 absolute, the others 2 ulp
    assert np.array_equal(out[12], np.sqrt(x))
    assert np.array_equal(out[13], x / (x + 1))


def test_wide_integers(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 128
    x = rng.integers(-(1 << 62), 1 << 62, n) >> rng.integers(0, 60, n)
    y = (rng.integers(-(1 << 62), 1 << 62, n) >> rng.integers(0, 60, n)) | 1
    out = launch(device, "wide_integers", 1, x, y, np.zeros((11, n), np.int64), np.int32(n), BLOCK=n)[2]
    quotient = [
        abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    unsigned = [(a % 2**64) * (b % 2**64) >> 64 for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    want = [
        x + y, x * y, np.array(quotient), x - np.array(quotient) * y, x >> 3, x << 5, np.minimum(x, y),
        np.array(unsigned, np.uint64).view(np.int64), np.where(x < y, x & y, x ^ y), np.abs(x), np.cumsum(x),
    ]  # fmt: skip
    for k, w in enumerate(want):
        assert np.array_equal(out[k], w), k


def test_doubles(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 128
    x, y = rng.uniform(0.1, 1e6, n), rng.uniform(-20, 20, n)
    out = launch(device, "doubles", 1, x, y, np.zeros((11, n)), np.int32(n), BLOCK=n)[2]
    ulp = np.finfo(float).eps
    product, size = x * y - x, np.abs(x * y) + np.abs(x * y - x)
    want = [  # and how far off it may be
        (x + y, 0),
        (product, 1.01 * ulp * size),  # two roundings, by half an ulp each, or one of an fma; here and there
        (x / y, 0),
        (np.sqrt(x), 0),
        *[(f, 8 * ulp * np.abs(f)) for f in (np.exp(y), np.log(x), np.sin(y))],  # 1 or 2 in CUDA, up to 4 in NumPy
        (np.full(n, math.fsum(x)), n / 2 * ulp * x.sum()),  # n - 1 additions in any order
        (np.maximum(x, y), 0),
        (x.astype(np.float32).astype(float), 0),
        (np.trunc(y), 0),
    ]
    for k, (w, bound) in enumerate(want):
        assert (np.abs(out[k] - w) <= bound).all(), k


def test_conversions(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 128
    x = (rng.standard_normal(n) * 40).astype(np.float32)
    types = [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8]
    zeros = [np.zeros(n, t) for t in types]
    out = launch(device, "conversions", 1, x, *zeros, np.zeros((3, n), np.float32), np.int32(n), BLOCK=n)
    for got, t in zip(out[1:5], types, strict=False):
        assert np.array_equal(got.astype(float), x.astype(t).astype(float)), t
    assert np.array_equal(out[5], np.trunc(x).astype(np.int64).astype(np.int8))
    for got, t in zip(out[6], [types[2], types[3], types[1]], strict=True):
        assert np.array_equal(got, x.astype(t).astype(np.float32)), t


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_descriptors_made_by_the_kernel(
    device: pysm120.Device, rng: np.random.Generator, dtype: npt.DTypeLike, stages: int
) -> None:
    M, N, K = 80, 96, 112
    a, b = normal(rng, (M, K), dtype), normal(rng, (K, N), dtype)
    c = np.full((M, N), -1, np.float32)
    sizes = [np.int32(s) for s in (M, N, K)]
    got = launch(device, "matmul_made", (2, 2), a, b, c, *sizes, stages=stages, BM=64, BN=64, BK=32)[2]
    assert error(got, a.astype(float) @ b.astype(float)) <= 1e-6


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(("dtype", "depth"), [(np.float16, 64), (ml_dtypes.bfloat16, 32), (ml_dtypes.float8_e5m2, 64)])
def test_descriptors_given_to_the_kernel(
    device: pysm120.Device, rng: np.random.Generator, dtype: npt.DTypeLike, depth: int, stages: int
) -> None:
    M, N, K = 80, 96, 160
    a, b = normal(rng, (M, K), dtype), normal(rng, (N, K), dtype)
    c = Descriptor(np.full((M, N), -1, np.float16), (64, 64))
    operands = Descriptor(a, (64, depth)), Descriptor(b, (64, depth)), c
    got = launch(device, "matmul_given", (2, 2), *operands, np.int32(K), stages=stages, BM=64, BN=64, BK=depth)[2]
    assert error(got, a.astype(float) @ b.astype(float).T) < 3e-4  # the result is rounded to float16


def test_descriptors_of_three_dimensions(device: pysm120.Device, rng: np.random.Generator) -> None:
    shape, block = (5, 20, 96), (8, 8, 32)
    x = rng.integers(-99, 99, shape).astype(np.float16)
    given = [
        Descriptor(x, block),
        Descriptor(np.zeros_like(x), block),
        Descriptor(np.zeros((1, 96), np.float32), (1, 32)),
        Descriptor(np.full((1, 96), -128, np.int32), (1, 32)),
    ]
    out = launch(device, "copy_and_sum", (3, 3), *given, B1=8, B2=32)
    counters = device.counters()
    assert counters["cp.async.bulk.tensor"] >= 18  # loads and stores of nine blocks
    assert counters["cp.reduce.async.bulk.tensor"] >= 18
    assert np.array_equal(out[1], x)
    assert np.array_equal(out[2][0], x.astype(float).sum((0, 1)))
    assert np.array_equal(out[3][0], x.max((0, 1)))


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
def test_transpose_by_descriptors(device: pysm120.Device, rng: np.random.Generator, dtype: npt.DTypeLike) -> None:
    x = rng.integers(0, 100, (80, 48)).astype(dtype)
    out = launch(
        device, "transpose_made", (3, 2), x, np.zeros((48, 80), dtype), np.int32(80), np.int32(48), BR=32, BC=32
    )
    assert device.counters()["tensormap"] > 0  # tensormap.replace and cp_fenceproxy
    assert np.array_equal(out[1], x.T)
