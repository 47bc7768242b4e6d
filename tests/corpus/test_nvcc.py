"""CUDA C++ through nvcc: the PTX beside each .cu file runs on the virtual device and agrees with NumPy.

The PTX is committed, so that these tests need no nvcc; where the nvcc that wrote it is installed, it is written again
and compared.
"""

import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import pysm120

HERE = Path(__file__).parent
FLAGS = ["-ptx", "-arch=sm_120f", "-std=c++17"]
SOURCES = sorted(path.name for path in HERE.glob("*.cu"))
Array = npt.NDArray[Any]
pytestmark = pytest.mark.virtual


def launch(
    device: pysm120.Device,
    entry: str,
    grid: int,
    block: int,
    *arguments: Any,
    shared: int = 0,
    cooperative: bool = False,
) -> list[npt.NDArray[Any]]:
    """Run file:kernel; arrays are copied to the device, and back into what is returned."""
    file, kernel = entry.split(":")
    loaded = device.load(HERE / f"{file}.ptx")[kernel]
    held = [device.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
    loaded(grid, block, *held, shared=shared, cooperative=cooperative)
    device.synchronize()
    return [h.numpy() for h in held if isinstance(h, pysm120.Array)]


def warps(x: Array) -> Array:
    return x.reshape(-1, 32)


def test_warp_intrinsics(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 64
    x = rng.integers(-50, 50, n).astype(np.int32)
    x[0] = 17
    y = launch(device, "warps:intrinsics", 1, n, x, np.zeros((20, n), np.int32), np.int32(n))[1]
    w, lane = warps(x), np.arange(n) % 32
    u = x.view(np.uint32)
    assert np.array_equal(warps(y[0]), np.repeat(w[:, 5:6], 32, 1))
    halves = x.reshape(-1, 16)
    assert np.array_equal(y[1].reshape(-1, 16), np.concatenate([halves[:, :3], halves[:, :-3]], 1))
    assert np.array_equal(warps(y[2]), np.concatenate([w[:, 7:], w[:, 25:]], 1))
    assert np.array_equal(y[3].reshape(-1, 16), halves[:, np.arange(16) ^ 9])
    bits = 1 << np.arange(32, dtype=np.uint64)
    assert np.array_equal(y[4].view(np.uint32), np.repeat(((w > 0) * bits).sum(1), 32))
    assert np.array_equal(y[5], 1 + 2 * np.repeat((w == x[0]).any(1), 32))
    same = (w & 3)[:, :, None] == (w & 3)[:, None, :]
    assert np.array_equal(y[6].view(np.uint32), (same * bits).sum(2).ravel())
    assert (y[7] == 0).all()  # all 32 bits and 1
    assert np.array_equal(y[8], np.repeat(w.sum(1), 32))
    assert np.array_equal(y[9], np.repeat(w.max(1) - w.min(1), 32))
    assert np.array_equal(y[10], np.repeat(np.bitwise_and.reduce(w, 1) ^ np.bitwise_or.reduce(w, 1), 32))
    binary = [f"{int(v):032b}" for v in u]
    counted = [b.count("1") + b.find("1") % 33 + (b[::-1].find("1") + 1) + int(b[::-1], 2) for b in binary]
    assert np.array_equal(y[11].view(np.uint32), np.array(counted).astype(np.uint32))
    pairs = [int(a).to_bytes(4, "little") + int(b).to_bytes(4, "little") for a, b in zip(u, lane, strict=True)]
    assert [int(v) for v in y[12].view(np.uint32)] == [
        int.from_bytes(bytes(p[s] for s in (0, 5, 6, 3)), "little") for p in pairs
    ]
    assert np.array_equal(y[13].view(np.uint32), (lane.astype(np.uint32) << 7) | (u >> 25))
    octets = x.view(np.int8).reshape(-1, 4).astype(np.int32)
    assert np.array_equal(y[14], (octets * octets).sum(1) + lane)
    third = [[k for k in range(32) if int(v) >> k & 1][2:3] or [-1] for v in u]
    assert np.array_equal(y[15], np.array(third)[:, 0])
    odd = np.where(lane & 1, 0xAAAAAAAA, np.repeat(w[:, 6], 32).astype(np.int64) & 0xFFFFFFFF)
    assert np.array_equal(y[16].view(np.uint32), odd.astype(np.uint32))
    assert np.array_equal(
        y[17].view(np.uint8).reshape(-1, 4), x.view(np.uint8).reshape(-1, 4) + np.array([4, 3, 2, 1], np.uint8)
    )
    assert np.array_equal(y[18], abs(x - lane) + 1 + 0 + ((x + lane + 1) >> 1))
    assert np.array_equal(y[19], np.repeat((w[:, 3].astype(np.int64) << 20).astype(np.int32), 32))


def test_cooperative_groups(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 96
    x = rng.integers(0, 100, n).astype(np.int32)
    y = launch(device, "warps:groups", 1, n, x, np.zeros((9, n), np.int32), np.int32(n))[1]
    w, t = warps(x), x.reshape(-1, 8)
    assert np.array_equal(y[0], np.repeat(w.sum(1), 32))
    assert np.array_equal(y[1], np.repeat(t.max(1), 8))
    assert np.array_equal(y[2], np.cumsum(t, 1).ravel())
    assert np.array_equal(y[3], (np.cumsum(w, 1) - w).ravel())
    assert np.array_equal(y[4], (t[:, np.arange(8) ^ 3] + np.arange(12)[:, None] % 4).ravel())
    assert (y[5] == x.sum()).all()
    odd = w & 1
    rank = np.cumsum(odd, 1) - odd
    assert np.array_equal(warps(y[6]), np.where(odd, odd.sum(1)[:, None] * 100 + rank, -1))
    assert np.array_equal(warps(y[7]), np.where(odd, (w * odd).sum(1)[:, None], -1))
    same = (w % 3)[:, :, None] == (w % 3)[:, None, :]
    assert np.array_equal(warps(y[8]), same.sum(2))


def test_clocks_and_nanosleep(device: pysm120.Device) -> None:
    y = launch(device, "warps:clocks", 1, 32, np.zeros((3, 32), np.int64))[0]
    assert (y[0] > 0).all()
    assert (y[1] > 0).all()
    assert (y[2] == 1).all()


def test_calls(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 64
    x = rng.integers(-8, 8, n).astype(np.float32)
    y = launch(device, "functions:calls", 1, n, x, np.zeros((4, n), np.float32), np.int32(n))[1]
    i = np.arange(n)
    assert np.array_equal(y[0], 3 * x + 1)
    assert np.array_equal(y[1], np.where(i & 1, (i + 2) * 100 + i - x, i * 100 + i + 2 + x))
    assert np.array_equal(y[2], i * 210.0)
    narrow = (-i).astype(np.int8).astype(np.int32) * i + 5
    assert np.array_equal(y[3], np.where(i > 3, narrow, 5).astype(np.float32))


def test_recursion(device: pysm120.Device) -> None:
    n = 64
    y = launch(device, "functions:recursion", 1, n, np.zeros((2, n), np.uint32), np.int32(n))[0]
    fibonacci = [0, 1]
    while len(fibonacci) < 12:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    ackermann = [[1, 2, 3, 4], [2, 3, 4, 5], [3, 5, 7, 9]]
    assert y[0].tolist() == [fibonacci[i % 12] for i in range(n)]
    assert y[1].tolist() == [ackermann[i % 3][i % 4] for i in range(n)]


def test_function_pointers(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 64
    x = rng.integers(-8, 8, n).astype(np.float32)
    which = np.arange(n) // 3 % 3
    y = launch(device, "functions:pointers", 1, n, x, np.zeros(n, np.float32), np.int32(n))[1]
    assert np.array_equal(y, np.choose(which, [x + 2, x - 2, x * 2]))
    y = launch(device, "functions:virtuals", 1, n, x, np.zeros(n, np.float32), np.int32(n))[1]
    assert np.array_equal(y, np.where(np.arange(n) & 2, x * x, 3 * x * x))


def test_switch_tables(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 64
    x = rng.integers(0, 10, n).astype(np.int32)
    y = launch(device, "functions:tables", 1, n, x, np.zeros((2, n), np.int32), np.int32(n))[1]
    for i, v in enumerate(x.tolist()):
        cases = [i * 3, i ^ 0x55, i.bit_count(), 3 - i * i, 1 << (i & 7), ~i, i // 3, i % 5]
        assert y[0, i] == (cases[v] if v < 8 else -1)
        assert y[1, i] == {2: 7, 4: i, 7: 7}.get(v, 0)


def test_initialised_variables(device: pysm120.Device) -> None:
    n = 40
    y = launch(device, "memory:variables", 1, n, np.zeros(2 * n + 1), np.int32(n))[0]
    i = np.arange(n)
    coefficients = np.array([0.5, -1.25, 3.0, 1e-3], np.float32)
    text = np.frombuffer(b"abcd\0", np.uint8)
    assert np.array_equal(y[:n], (coefficients[i & 3] * np.float32(1 << (i & 7)) - 7 + 2.5 + text[i % 5].astype(float)))
    letters = np.array([ord(name[1]) for name in ("zero", "one", "two")], float)
    assert np.array_equal(y[n : 2 * n], 4 * (2 + 3 + 4) + 0.25 * (50 + 60) + letters[i % 3] + 1.5 * -2.5)
    assert y[2 * n] == 7


def test_dynamic_shared_memory(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 128
    x = rng.integers(-8, 8, n).astype(np.float32)
    y = launch(device, "memory:shared_dynamic", 1, n, x, np.zeros(n, np.float32), np.int32(n), shared=8 * n)[1]
    assert np.array_equal(y, x[::-1] - 2 * x + np.arange(n) % 32)


def test_local_arrays(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 512
    x = rng.integers(-1000, 1000, n).astype(np.int32)
    y = launch(device, "memory:local_arrays", 1, 32, x, np.zeros((32, 64), np.int32), np.int32(n))[1]
    want = np.sort(x[(np.arange(32)[:, None] * 64 + np.arange(64)) % n], 1)
    assert np.array_equal(y, want)


def test_atomics(device: pysm120.Device) -> None:
    n, block = 128, 64
    i = np.arange(n)
    i32 = np.array([0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0], np.int32)
    u32, u64 = np.zeros(4, np.uint32), np.zeros(4, np.uint64)
    out = launch(
        device, "atomics:atomics", n // block, block, i32, u32, u64, np.zeros(1, np.int64), np.zeros(1, np.float32),
        np.zeros(1), np.zeros(2, np.float16), np.zeros(2, np.uint16), np.zeros(2, np.float16), np.zeros(2, np.uint16),
        np.zeros(n, np.int32),
    )  # fmt: skip
    a, b, c, d, f, g, h2, b2, h, s, old = out
    shared = (2 * block + block - 1 + 5 + 6 + block) * (n // block)
    xor = int(np.bitwise_xor.reduce(i))
    assert a.tolist() == [n, -int(i.sum()), 1 - n, n - 1, 0, -1, xor, 99, shared, block, n]
    assert sorted(old.tolist()) == list(range(n))
    wrapped = chained = 0
    down = 0
    for _ in range(n):
        wrapped = 0 if wrapped >= 9 else wrapped + 1
        down = 9 if down == 0 or down > 9 else down - 1
        chained = (chained * 3 + 1) & 0xFFFFFFFF
    assert b.tolist() == [wrapped, down, 0xFFFFFFF7, chained]
    assert c.tolist() == [n << 33, (n - 1) << 40, (1 << 64) - 1, 5]
    assert d[0] == 1 - n
    assert f[0] == n / 2
    assert g[0] == n / 4
    assert h2.tolist() == [n, 2 * n]
    assert (b2.astype(np.uint32) << 16).view(np.float32).tolist() == [n, n / 2]
    assert h.tolist() == [n, 0]
    assert s.tolist() == [77, 0]


def test_last_block(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.integers(-1000, 1000, 5000).astype(np.int32)
    for _ in range(2):  # the counter has wrapped
        out = launch(
            device, "ctas:last_block", 19, 128, x, np.zeros(19, np.int32), np.zeros(1, np.int32), np.int32(5000)
        )
        assert out[2][0] == x.sum()


def test_scan_that_looks_back(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 40 * 128 - 5
    x = rng.integers(-1000, 1000, n).astype(np.int32)
    state, following = np.zeros((40, 3), np.int32), np.zeros(1, np.int32)
    out = launch(device, "ctas:scan", 40, 128, x, np.zeros(n, np.int32), state, following, np.int32(n))
    assert np.array_equal(out[1], np.cumsum(x))


def test_chain_of_semaphores(device: pysm120.Device, rng: np.random.Generator) -> None:
    rows, turns, n = 5, 7, 64
    x = rng.standard_normal((turns, rows, n)).astype(np.float32)
    y = np.zeros((rows, n), np.float32)
    out = launch(device, "ctas:chain", rows * turns, n, x, y, np.zeros(rows, np.int32), np.int32(rows))
    for turn in x:
        y = y * np.float32(0.5) + turn
    assert np.array_equal(out[1], y)


def test_lock(device: pysm120.Device) -> None:
    out = launch(device, "ctas:locked", 30, 64, np.zeros(1, np.int32), np.zeros(1, np.int64))
    assert out[1][0] == (3**30 - 1) // 2
    assert out[0][0] == 0


def test_barrier_of_all_ctas(device: pysm120.Device, rng: np.random.Generator) -> None:
    n, rounds = 25 * 64 - 7, 6
    a = rng.integers(0, 1000, n).astype(np.int32)
    out = launch(
        device, "ctas:steps", 25, 64, a, np.zeros(n, np.int32), np.zeros(1, np.uint32), np.int32(n), np.int32(rounds)
    )
    for _ in range(rounds):
        a = (np.roll(a, -1) + np.roll(a, 1)) & 1023
    assert np.array_equal(out[0], a)


def test_message_between_ctas(device: pysm120.Device) -> None:
    n = 64
    out = launch(device, "atomics:ordered", 2, n, np.zeros(n, np.int32), np.zeros(1, np.int32), np.zeros(n, np.int32))
    assert np.array_equal(out[2], 3 * np.arange(n) + 1)


def test_128_bit_integers(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 32
    x, y = (rng.integers(0, 1 << 64, n, dtype=np.uint64) >> rng.integers(0, 60, n, dtype=np.uint64) for _ in range(2))
    z = launch(device, "arithmetic:big_integers", 1, n, x, y, np.zeros((20, n), np.uint64), np.int32(n))[2]
    whole, half = (1 << 128) - 1, (1 << 64) - 1

    def signed(v: int) -> int:
        return v - (1 << 64) if v >> 63 else v

    for i, (p, q) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        a, b = (p << 40 | q) & whole, ((q << 17) ^ p) & whole
        want = [a + b, a - b, a * b, a // (b | 1), a % (b | 1), a >> (i & 127), a << (i & 63), min(a, b)]
        got = [int(z[2 * k, i]) | int(z[2 * k + 1, i]) << 64 for k in range(8)]
        assert got == [w & whole for w in want]
        quotient = abs(signed(p)) // abs(signed(q | 1)) * (1 if (signed(p) < 0) == (signed(q | 1) < 0) else -1)
        assert int(z[16, i]) == quotient & half
        assert int(z[17, i]) == p % (q | 1)
        assert int(z[18, i]) == ((p * q >> 64) + (signed(p) * signed(q) >> 64)) & half
        assert int(z[19, i]) == int(f"{p:064b}"[::-1], 2) ^ (64 - p.bit_length()) ^ q.bit_count()


def test_double_mathematics(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 64
    x = rng.uniform(0.1, 12, n)
    y = launch(device, "arithmetic:double_math", 1, n, x, np.zeros((27, n)), np.int32(n))[1]
    functions: list[Callable[[float], float]] = [
        math.sin, math.cos, math.tan, math.exp, math.log, lambda v: v**2.3, math.sqrt, np.cbrt,
        lambda v: math.atan2(v, 2), math.sinh, math.tanh, math.erf, lambda v: math.gamma(v + 1),
        lambda v: math.fmod(v, 0.7), math.floor, lambda v: 1 / v, lambda v: math.hypot(v, 3), math.log1p, math.expm1,
        lambda v: math.asin(v / 1000), lambda v: v * v + v, lambda v: 2**v, math.log10, lambda v: 1 / math.sqrt(v),
        math.lgamma, np.rint, lambda v: math.sin(v * 1e6),
    ]  # fmt: skip
    for k, f in enumerate(functions):
        want = np.array([f(v) for v in x.tolist()])
        # CUDA's own bounds are 1 to 10 ulp; lgamma near its zeros and fmod are compared absolutely
        assert np.allclose(y[k], want, rtol=4e-15, atol=1e-15), (k, np.abs(y[k] / want - 1).max())


def test_float_mathematics(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 64
    x = rng.uniform(0.1, 8, n).astype(np.float32)
    y = launch(device, "arithmetic:float_math", 1, n, x, np.zeros((27, n), np.float32), np.int32(n))[1]
    big = (x * np.float32(1e5)).astype(float)
    functions: dict[int, Callable[[float], float]] = {
        14: math.exp, 15: math.log, 16: math.sin, 17: lambda v: v / 3,
        0: math.sin, 1: math.cos, 2: math.tan, 3: math.exp, 4: math.log, 5: lambda v: v ** float(np.float32(2.3)),
        6: math.sqrt, 7: np.cbrt, 8: lambda v: math.atan2(v, 2), 9: math.tanh, 10: math.erf,
        11: lambda v: math.fmod(v, float(np.float32(0.7))), 12: lambda v: 1 / v, 13: math.log1p,
        18: lambda v: 1 / math.sqrt(v), 19: lambda v: 1 / v, 20: math.sqrt, 21: lambda v: 10**v,
        22: lambda v: 0.5 * math.erfc(-v / math.sqrt(2)), 25: lambda v: math.floor(v + 0.5), 26: math.gamma,
    }  # fmt: skip
    for k, f in functions.items():
        want = np.array([f(v) for v in x.astype(float).tolist()])
        loose = k in {14, 15, 16}  # the fast forms: absolute error 2^-21, and more for exp
        assert np.allclose(y[k], want, rtol=3e-6 if loose else 1e-6, atol=1e-6 if loose else 1e-7), k
    assert np.allclose(y[24], np.sin(big), rtol=0, atol=2e-7)  # through the slow reduction, with a stack
    assert (np.abs(y[23]) < 1).all()


def test_small_floats(device: pysm120.Device, rng: np.random.Generator) -> None:
    import ml_dtypes

    n = 64
    x = rng.uniform(-4, 4, n).astype(np.float32)
    y = launch(device, "arithmetic:small_floats", 1, n, x, np.zeros((22, n), np.float32), np.int32(n))[1]

    def half(v: Array) -> Array:
        return v.astype(np.float16).astype(float)

    def brain(v: Array) -> Array:
        return v.astype(np.float32).astype(ml_dtypes.bfloat16).astype(float)

    h, b = half(x), brain(x)
    exact = {
        0: half(h + 1.5), 1: half(h * 1.5), 2: half(h * 1.5 + h), 6: np.maximum(h, 1.5), 7: h > 1.5, 8: half(h * h),
        9: half(np.full(n, 1.5 * 1.5 + 1.5)), 10: brain(b + 1.5), 11: brain(b * 1.5), 12: brain(b * 1.5 + b),
        13: np.minimum(b, 1.5), 14: x.astype(ml_dtypes.float8_e4m3fn).astype(float),
        15: x.astype(ml_dtypes.float8_e5m2).astype(float), 16: np.rint(h), 17: np.arange(n), 19: b < 1.5, 20: -h,
        21: np.floor(h),
    }  # fmt: skip
    for k, want in exact.items():
        assert np.array_equal(y[k], want), k
    for k, value in {3: h / 1.5, 4: np.sqrt(np.abs(h)), 5: np.exp(h), 18: np.sin(h)}.items():
        assert np.allclose(y[k], value, rtol=1.1e-3, atol=1e-4), k


def test_tensor_cores(device: pysm120.Device, rng: np.random.Generator) -> None:
    k = 64
    a = rng.standard_normal((16, k)).astype(np.float16)
    b = rng.standard_normal((16, k)).astype(np.float16)
    want = a.astype(float) @ b.astype(float).T
    c = launch(device, "tensor:mma_inline", 1, 32, a, b, np.zeros((16, 8), np.float32), np.int32(k))[2]
    assert np.allclose(c, want[:, :8], rtol=1e-5, atol=1e-5)


def test_barriers_and_pipelines(device: pysm120.Device, rng: np.random.Generator) -> None:
    rounds = 5
    x = rng.integers(-8, 8, (rounds, 128)).astype(np.float32)
    y = launch(device, "pipelines:barriers", 1, 128, x, np.zeros(128, np.float32), np.int32(rounds))[1]
    assert np.array_equal(y, (np.roll(x, -1, 1) - 0.5 * np.roll(x, -32, 1)).sum(0))
    y = launch(device, "pipelines:pipelined", 1, 128, x, np.zeros(128, np.float32), np.int32(rounds))[1]
    assert np.array_equal(y, (x[:, ::-1] * np.arange(1, rounds + 1)[:, None]).sum(0))
    y = launch(device, "pipelines:bulk", 1, 128, x[0].copy(), np.zeros(128, np.float32))[1]
    assert np.array_equal(y, x[0, ::-1] + 1)


@pytest.mark.parametrize("shape", [(64, 64), (150, 200), (8, 72)])
def test_tensor_copies(device: pysm120.Device, rng: np.random.Generator, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x = rng.standard_normal(shape).astype(np.float16)
    source, target = device.array(x), device.zeros((columns, -(-rows // 8) * 8), np.float16)
    maps = [device.tensor_map(a, (64, 64), swizzle="128B") for a in (source, target[:, :rows])]
    loaded = device.load(HERE / "tensor_maps.ptx")["transpose"]
    loaded((-(-columns // 64), -(-rows // 64)), 128, *maps)
    assert np.array_equal(target.numpy()[:, :rows], x.T)
    assert (target.numpy()[:, rows:] == 0).all()


def test_tensor_reduction_by_a_constant_map(device: pysm120.Device, rng: np.random.Generator) -> None:
    """The map lies in constant memory, which the host has no name for: PTX sets it."""
    x = rng.integers(-99, 99, (5, 32)).astype(np.int32)
    sums = device.array(np.arange(64, dtype=np.int32).reshape(2, 32))
    words = np.frombuffer(bytes(device.tensor_map(sums, (2, 32))), np.uint8)
    text = (HERE / "tensor_maps.ptx").read_text()
    declared = re.search(r"\.const \.align \d+ \.b8 sums\[128\];", text)
    assert declared
    text = text.replace(declared[0], f"{declared[0][:-1]} = {{{', '.join(map(str, words))}}};")
    device.load(text)["add_up"](5, 32, device.array(x))
    assert np.array_equal(sums.numpy(), np.arange(64).reshape(2, 32) + np.outer([1, -1], x.sum(0)))


def test_tensor_maps_that_a_kernel_changes(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 96)).astype(np.float32)
    source, made = device.array(x), device.zeros((4, 128), np.uint8)
    out = device.zeros((4, 64), np.float32)
    given = device.tensor_map(source[0], 64)
    device.load(HERE / "tensor_maps.ptx")["changed"](4, 64, given, made, source, np.int32(96), out)
    widths = 40 + np.arange(4)
    assert np.array_equal(out.numpy(), np.where(np.arange(64) < widths[:, None], x[:, :64], 0))


def test_printf(device: pysm120.Device, capfd: pytest.CaptureFixture[str]) -> None:
    x = np.arange(128, dtype=np.float32) / 8
    launch(device, "messages:hello", 2, 64, x)
    lines = capfd.readouterr().out.splitlines()
    want = [
        f"thread {i:3d} of 64: {i / 8:5.2f} {'later' if i else 'first'} 0x10000000000 {chr(65 + i // 32)}|{i:<6d}|%"
        for i in range(0, 128, 32)
    ]
    assert sorted(lines) == sorted([*want, "no arguments"])
    assert sorted(lines[-2:]) == want[2:]  # those of the second CTA come last


def test_assert(device: pysm120.Device) -> None:
    x = np.zeros(32, np.int32)
    launch(device, "messages:checked", 1, 32, x)
    x[7] = 100
    with pytest.raises(pysm120.Error, match=r"assertion `x\[threadIdx.x\] < 100` failed in .*checked.*messages.cu:\d+"):
        launch(device, "messages:checked", 1, 32, x)


def test_wmma(device: pysm120.Device, rng: np.random.Generator) -> None:
    k = 48
    a, b = rng.standard_normal((64, k)).astype(np.float16), rng.standard_normal((k, 64)).astype(np.float16)
    bias = rng.standard_normal(64).astype(np.float32)
    c = launch(device, "matrices:matmul", 1, 512, a, b, bias, np.zeros((64, 64), np.float32), np.int32(k))[3]
    want = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    np.testing.assert_allclose(c, want, atol=1e-4)


def test_wmma_shapes(device: pysm120.Device, rng: np.random.Generator) -> None:
    h = rng.standard_normal(640).astype(np.float16)
    g = rng.standard_normal(1024).astype(ml_dtypes.bfloat16)
    f, e = rng.standard_normal(640).astype(np.float32), rng.standard_normal(96)
    s = rng.integers(-128, 128, 768).astype(np.int8)
    outputs = (np.zeros(768, np.float32), np.zeros((16, 16), np.int32), np.zeros((8, 8)))
    y, z, w = launch(device, "matrices:shapes", 1, 32, h, g.view(np.uint16), f, e, s, *outputs)[5:]
    x = h.astype(np.float64)
    want = x[:512].reshape(16, 32).T @ x[512:].reshape(16, 8) + 1
    np.testing.assert_allclose(y[:256].reshape(32, 8), want, atol=1e-4)
    x = g.astype(np.float64)
    want = x[:128].reshape(8, 16) @ x[512:].reshape(32, 16).T + 1
    np.testing.assert_allclose(y[256:512].reshape(32, 8).T, want, atol=1e-4)
    x = f.astype(np.float64)
    want = x[:128].reshape(16, 8) @ x[512:].reshape(8, 16) + 1
    np.testing.assert_allclose(y[512:].reshape(16, 16), want, atol=0.02)
    n = s.astype(np.int32)
    assert np.array_equal(z, n[:256].reshape(16, 16) @ n[512:].reshape(16, 16).T + 1)
    np.testing.assert_allclose(w, e[:32].reshape(8, 4) @ e[64:].reshape(8, 4).T + 1, atol=1e-13)


def test_wmma_bits(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.integers(0, 1 << 32, 64, np.uint64).astype(np.uint32)
    y = launch(device, "matrices:bits", 1, 32, x, np.zeros((2, 8, 8), np.int32))[1]
    nibbles = (x[:, None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).astype(np.int32)
    nibbles = np.where(nibbles > 7, nibbles - 16, nibbles).reshape(2, 8, 32)
    assert np.array_equal(y[0], nibbles[0] @ nibbles[1].T)
    ones = (x[:, None] >> np.arange(32, dtype=np.uint32) & 1).astype(np.int32).reshape(2, 8, 128)
    assert np.array_equal(y[1], ones[0] @ ones[1].T)


def test_sparse_mma(device: pysm120.Device, rng: np.random.Generator) -> None:
    a, b = rng.integers(1, 9, (16, 32)).astype(np.float16), rng.standard_normal((32, 8)).astype(np.float16)
    zeros = rng.permuted(np.broadcast_to([True, True, False, False], (16, 8, 4)), axis=2).reshape(16, 32)
    a[zeros] = 0
    d = launch(device, "matrices:sparse", 1, 32, a, b, np.zeros((16, 8), np.float32))[2]
    np.testing.assert_allclose(d, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)


def test_groups_of_warps(device: pysm120.Device, rng: np.random.Generator) -> None:
    n = 256
    x = rng.integers(0, 100, n).astype(np.int32)
    x[70] = 7
    y = launch(device, "groups:wide_tiles", 1, n, x, np.zeros((5, n), np.int32), np.int32(n))[1]
    t = x.reshape(4, 64)
    assert np.array_equal(y[0].reshape(4, 64), np.repeat(t.sum(1), 64).reshape(4, 64))
    assert np.array_equal(y[1].reshape(4, 64), np.repeat(t[:, 37], 64).reshape(4, 64))
    assert np.array_equal(y[2].reshape(4, 64), t[:, ::-1])
    assert np.array_equal(y[3].reshape(4, 64)[:, 0], (t == 7).any(1) + 2)
    assert np.array_equal(y[4], np.arange(n) // 64 * 1000 + np.arange(n) % 64)


def test_cluster_of_one(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.integers(0, 100, (2, 128)).astype(np.int32)
    y = launch(device, "groups:cluster", 2, 128, x, np.zeros((2, 128), np.int32))[1]
    assert np.array_equal(y, x[:, ::-1] + 1000)


@pytest.mark.parametrize("level", ["off", "default", "full"])
@pytest.mark.parametrize("seed", range(4))
def test_grid_sync(rng: np.random.Generator, level: str, seed: int) -> None:
    n, ctas = 3000 + seed, (1, 2, 7, 30)[seed]
    x = rng.integers(-9, 10, n).astype(np.int32)
    sums, scaled, y = np.full(ctas, -1, np.int32), np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
        for _ in range(2):
            out = launch(device, "grids:meets", ctas, 96, x, sums, scaled, y, np.int32(n), cooperative=True)
            assert out[1].sum() == x.sum()
            assert np.array_equal(out[3], (x * x.sum())[::-1])


@pytest.mark.parametrize("seed", range(6))
def test_grid_sync_that_is_missing(rng: np.random.Generator, seed: int) -> None:
    x = rng.integers(-9, 10, 3000).astype(np.int32)
    zeros = [np.zeros(count, np.int32) for count in (7, 3000, 3000)]
    with (
        pysm120.Device(f"virtual?checks=full&seed={seed}") as device,
        pytest.raises(pysm120.FaultError, match=r"forgets_to_meet.*data race"),
    ):
        launch(device, "grids:forgets_to_meet", 7, 96, x, *zeros, np.int32(3000), cooperative=True)


@pytest.mark.parametrize("seed", range(4))
def test_grid_barrier_in_two_halves(rng: np.random.Generator, seed: int) -> None:
    x = rng.integers(0, 100, 6 * 64).astype(np.int32)
    zeros = np.zeros_like(x)
    with pysm120.Device(f"virtual?checks=full&seed={seed}") as device:
        y, z = launch(device, "grids:arrives", 6, 64, x, zeros, zeros, cooperative=True)[1:]
    assert np.array_equal(y, x + 1)
    assert np.array_equal(z, np.roll(x + 1, -64) + 2 * x + 1)


def test_grid_sync_of_an_ordinary_launch(device: pysm120.Device) -> None:
    zeros = np.zeros(64, np.int32)
    with pytest.raises(pysm120.FaultError, match=r"trap; .*the launch is not cooperative, as grid\.sync\(\) needs"):
        launch(device, "grids:meets", 2, 32, *[zeros] * 4, np.int32(64))


def test_cooperative_grid_that_does_not_fit(device: pysm120.Device) -> None:
    kernel = device.load(HERE / "grids.ptx")["arrives"]
    x = device.zeros(64, np.int32)
    for threads, shared in ((32, 0), (1024, 0), (64, 40000)):
        most = kernel.occupancy(threads, shared) * device.info.multiprocessors
        with pytest.raises(pysm120.UnsupportedError, match=rf"grid = {most + 1} x 1 x 1; .* at most {most} CTAs"):
            kernel(most + 1, threads, x, x, x, shared=shared, cooperative=True)
    held = [device.zeros(most * 64, np.int32) for _ in range(3)]
    kernel(most, 64, *held, shared=shared, cooperative=True)  # what just fits runs
    assert (held[2].numpy() == 2).all()


def has_same_nvcc() -> bool:
    """Whether the nvcc that wrote the PTX, its headers and a host compiler are installed."""
    nvcc = shutil.which("nvcc")
    if nvcc is None or shutil.which("g++") is None:
        return False
    written = re.search(r"V[\d.]+", (HERE / "warps.ptx").read_text())
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    headers = Path(nvcc).resolve().parent.parent / "include" / "cuda_runtime.h"
    dry = subprocess.run([nvcc, "-dryrun", "x.cu"], capture_output=True, text=True, check=False).stderr
    include = re.search(r'INCLUDES="-I([^"]*)"', dry)
    found = headers.is_file() or (include is not None and (Path(include[1].strip()) / "cuda_runtime.h").is_file())
    return found and written is not None and written[0] in version


if has_same_nvcc():

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("source", SOURCES)
    def test_ptx_is_what_nvcc_writes(source: str, tmp_path: Path) -> None:
        made = tmp_path / "made.ptx"
        command = ["nvcc", *FLAGS, "--diag-suppress=20054", "-o", str(made), source]
        subprocess.run(command, cwd=HERE, check=True, capture_output=True)
        # Names of a file's own variables hold a hash of its path.
        texts = (path.read_text() for path in (made, (HERE / source).with_suffix(".ptx")))
        first, second = (re.sub(r"_[0-9a-f]{8}_(?=\d+_\w+_cu_)", "_", text) for text in texts)
        assert first == second
