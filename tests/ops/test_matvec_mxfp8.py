"""matvec with activations="mxfp8x2": MXFP4 weights by block-scaled mma, against a model of the rounding of x."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf_blocks import Bytes, random_blocks, values
from harness import DTYPES
from numpy.typing import NDArray

import pysm120
from pysm120 import QuantizedMatrix
from pysm120.runtime.module import builtin_kernel, constants

LAYOUTS = ("native", "packed")
OPTION: dict[str, Any] = {"activations": "mxfp8x2"}
LOSS = {12: 2.0**-19, 9: 2.0**-9}  # of the magnitudes of a sum, by capability: see expect_near()


def matrix(device: pysm120.Device, raw: Bytes, layout: str = "native") -> QuantizedMatrix:
    """Return blocks on a device."""
    return QuantizedMatrix.from_gguf(raw, "MXFP4", (len(raw), raw.shape[1] * 32), device=device, layout=layout)


def rounded(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what the kernel makes of x: the first e4m3, and that of the rest, with their scales."""
    parts, rest = [], x.astype(float).reshape(*x.shape[:-1], -1, 32)
    for _ in range(2):
        amax = abs(rest).max(-1, keepdims=True)
        fraction, exponent = np.frexp(amax)  # amax = fraction 2^exponent; 448 = 0.875 * 2^9
        scale = np.exp2(np.maximum(exponent - 9 + (fraction > 0.875), -127))
        parts.append((rest / scale).astype(ml_dtypes.float8_e4m3fn).astype(float) * scale)
        rest = rest - parts[-1]
    return parts[0].reshape(x.shape), parts[1].reshape(x.shape)


def expect_near(device: pysm120.Device, got: NDArray[Any], raw: Bytes, x: NDArray[Any]) -> None:
    """Compare with float64 products of the model.

    A tensor core cuts the terms of a product of 32 columns where the largest one has its 24th bit; Hopper's cuts them
    at the 13th. LOSS allows for 32 such losses of the largest term of a sum.
    """
    first, second = rounded(x)
    w = values(raw, "MXFP4").astype(float)
    wanted, terms = (first + second) @ w.T, (abs(first) + abs(second)) @ abs(w).T
    wrong = np.argwhere(~(abs(got.astype(float) - wanted) <= LOSS[device.info.capability[0]] * terms))
    assert wrong.size == 0, (
        f"{len(wrong)} wrong, first {wrong[0]}: {got[tuple(wrong[0])]}, not {wanted[tuple(wrong[0])]}"
    )


def test_model(rng: np.random.Generator) -> None:
    """Two e4m3 leave at most 2^-8 of an element, or 2^-18 of the largest in its block: half a subnormal step."""
    x = rng.standard_normal((64, 512)) * np.exp2(rng.integers(-30, 30, (64, 512)))
    left = abs(x - sum(rounded(x)))
    largest = np.repeat(abs(x).reshape(64, -1, 32).max(-1), 32, axis=-1)
    assert (left <= np.maximum(2.0**-8 * abs(x), 2.0**-18 * largest)).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_against_float64(device: pysm120.Device, rng: np.random.Generator, layout: str) -> None:
    """Rows around a tile, columns around the spans of eight warps, vectors around a tile."""
    sizes = [(1, 32, 1), (17, 2304, 1), (15, 2016, 7), (16, 512, 8), (33, 288, 9), (47, 224, 17)]
    for rows, columns, vectors in sizes:
        raw = random_blocks(rng, "MXFP4", rows, columns)
        x = rng.standard_normal((vectors, columns)) * np.exp2(rng.integers(-8, 8, (vectors, columns)))
        out = np.full((vectors, rows), np.nan, "f4")
        pysm120.matvec(matrix(device, raw, layout), x.astype("f4"), out=out, **OPTION)
        expect_near(device, out, raw, x.astype("f4"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("vectors", [1, 9])
def test_exact(device: pysm120.Device, rng: np.random.Generator, layout: str, vectors: int) -> None:
    """Weights of one scale and small integers: every sum is exact, on every device."""
    raw = random_blocks(rng, "MXFP4", 19, 544)
    raw[..., 0] = 127
    x = rng.integers(-8, 9, (vectors, 544)).astype("f4")
    got = pysm120.matvec(matrix(device, raw, layout), x, **OPTION)
    np.testing.assert_array_equal(got, (x.astype(float) @ values(raw, "MXFP4").astype(float).T).astype("f4"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_place(device: pysm120.Device, layout: str) -> None:
    """One column of x is not 0: each element and each scale of the weights comes out as it is."""
    rng = np.random.default_rng(7)
    raw = random_blocks(rng, "MXFP4", 16, 256)
    raw[..., 0] = rng.integers(100, 150, raw.shape[:2])
    x = np.diag(np.exp2(np.arange(256) % 17 - 8)).astype("f4")
    got = pysm120.matvec(matrix(device, raw, layout), x, **OPTION)
    np.testing.assert_array_equal(got, (values(raw, "MXFP4") @ x).T)


def test_second_e4m3(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Elements of 7 bits: the first e4m3 keeps 4, and the second one the others."""
    raw = random_blocks(rng, "MXFP4", 16, 32)
    raw[..., 0], raw[..., 1:] = 127, 0x22  # all 1
    x = np.zeros((3, 32), "f4")
    x[:, 5] = 127, -93.0 * 2.0**-90, 121.0 * 2.0**40
    got = pysm120.matvec(matrix(device, raw), x, **OPTION)
    np.testing.assert_array_equal(got, np.repeat(x[:, 5:6], 16, axis=1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_special_scales(device: pysm120.Device, layout: str) -> None:
    """The smallest and the largest scales of weights; 255 is NaN, in its row alone."""
    codes = np.array([0, 1, 2, 126, 127, 253, 254, 255], np.uint8)
    raw = np.full((8, 8, 17), 0x22, np.uint8)
    raw[..., 0], raw[:, 3, 0] = 0, codes
    x = np.zeros((2, 256), "f4")
    x[0, 96:128], x[1, 96:128] = 2.0**-20, 2.0**20
    with np.errstate(over="ignore"):
        wanted = (32 * np.outer([2.0**-20, 2.0**20], np.exp2(codes - 127.0))).astype("f4")
    got = pysm120.matvec(matrix(device, raw, layout), x, **OPTION)
    assert np.isnan(got[:, 7]).all()
    np.testing.assert_array_equal(got[:, :7], wanted[:, :7])


def test_special_vectors(device: pysm120.Device, rng: np.random.Generator) -> None:
    """NaN and infinity make their vector NaN and no other; zeros give zeros; tiny and huge blocks."""
    raw = random_blocks(rng, "MXFP4", 17, 512)
    x = rng.standard_normal((7, 512)).astype("f4")
    x[1, 3], x[2, 500], x[3], x[4] = np.nan, -np.inf, 0, x[4] * np.float32(1e-30)
    x[5, 64:96] *= np.float32(1e30)
    got = pysm120.matvec(matrix(device, raw), x, **OPTION)
    assert np.isnan(got[1:3]).all()
    assert (got[3] == 0).all()
    rest = [0, 4, 5, 6]
    expect_near(device, got[rest], raw, x[rest])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_dtypes_and_strides(device: pysm120.Device, rng: np.random.Generator, dtype: Any) -> None:
    """Rows of x and of the result with bytes between them; bias; results are rounded once."""
    raw = random_blocks(rng, "MXFP4", 21, 96)
    room = rng.standard_normal((10, 112)).astype(dtype)
    room[:, 96:] = np.nan
    x, bias = room[:, :96], rng.standard_normal(21).astype("f4")
    out = device.array(np.full((10, 32), np.nan, dtype))
    w = matrix(device, raw, "packed")
    pysm120.matvec(w, device.array(room)[:, :96], bias=bias, out=out[:, :21], **OPTION)
    whole = pysm120.matvec(w, x.astype("f4"), bias=bias, **OPTION)
    got = out.numpy()
    np.testing.assert_array_equal(got[:, :21], whole.astype(dtype))
    assert np.isnan(got[:, 21:].astype("f4")).all()
    expect_near(device, pysm120.matvec(w, x.astype("f4"), **OPTION), raw, x)


def test_one_vector_of_several(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A vector has the same bits whatever the others are, in both layouts and in every launch."""
    raw = random_blocks(rng, "MXFP4", 40, 1056)
    native, packed = (matrix(device, raw, layout) for layout in LAYOUTS)
    x = rng.standard_normal((19, 1056)).astype("f4")
    whole = pysm120.matvec(packed, x, **OPTION)
    np.testing.assert_array_equal(whole, pysm120.matvec(packed, x, **OPTION))
    np.testing.assert_array_equal(whole, pysm120.matvec(native, x, **OPTION))
    for part in (slice(0, 1), slice(3, 12), slice(11, 19)):
        np.testing.assert_array_equal(whole[part], pysm120.matvec(packed, x[part], **OPTION))
    np.testing.assert_array_equal(whole[4], pysm120.matvec(packed, x[4], **OPTION))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_glu(device: pysm120.Device, rng: np.random.Generator, layout: str) -> None:
    gate, up = (matrix(device, random_blocks(rng, "MXFP4", 48, 768), layout) for _ in range(2))
    x = (0.02 * rng.standard_normal((9, 768))).astype("f4")
    a, b = (pysm120.matvec(w, x, **OPTION).astype(float) for w in (gate, up))
    with np.errstate(over="ignore"):
        wanted = a / (1 + np.exp(-a)) * b
    got = pysm120.matvec_glu(gate, up, x, **OPTION)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_tiles_of_a_cta(device: pysm120.Device, rng: np.random.Generator, layout: str) -> None:
    """A grid of two CTAs for ten tiles of rows has the bits of a large one."""
    w = matrix(device, random_blocks(rng, "MXFP4", 150, 2560), layout)
    x = rng.standard_normal((11, 2560)).astype("f4")
    wanted = pysm120.matvec(w, x, **OPTION)
    out = device.array(np.full((11, 150), np.nan, "f4"))
    records = device.empty((10 * 2 * constants()["MATVEC_RECORD_MX_BYTES"],), np.uint8)
    quantize = builtin_kernel(device, "matvec_activations_mx")
    quantize((10, 2), 256, device.array(x), records, np.int64(4 * 2560), *map(np.uint32, (11, 2560, 0)))
    kernel = builtin_kernel(device, f"matvec_mxfp4_{layout}_mxfp8x2")
    none, strides = np.uint64(0), map(np.int64, (0, 0, 4 * 150))
    numbers = map(np.uint32, (150, 2560, 11, 10, 10, 0, 0, 0, 0, 0))
    kernel((2, 2), 256, w.data, records, out, none, none, none, *strides, *numbers, shared=90_000)
    np.testing.assert_array_equal(out.numpy(), wanted)


def test_kernels_of_hopper(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a virtual device that states Hopper's capability: products with scales in f32."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    with pysm120.Device("virtual") as device:
        for layout in LAYOUTS:
            test_against_float64(device, rng, layout)
            test_exact(device, rng, layout, 9)
            test_each_place(device, layout)
            test_special_scales(device, layout)
        test_special_vectors(device, rng)
        test_second_e4m3(device, rng)


def test_wrong_calls(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Other types and experts are refused; the workspace is as large as the question says."""
    x = np.zeros((3, 256), "f4")
    other = QuantizedMatrix.from_gguf(bytes(288), "Q4_K", (2, 256), device=device)
    with pytest.raises(pysm120.UnsupportedError, match="ACTIVATIONS_MXFP8X2 with type = 12; its type must be MXFP4"):
        pysm120.matvec(other, x, **OPTION)
    w = matrix(device, random_blocks(rng, "MXFP4", 16, 256))
    one = QuantizedMatrix(w.data, "MXFP4", (1, 16, 256), "native")
    with pytest.raises(pysm120.UnsupportedError, match="ACTIVATIONS_MXFP8X2; with experts it must be"):
        pysm120.matvec(one, x, experts=[[0]] * 3, **OPTION)
    needed = constants()["MATVEC_RECORD_MX_BYTES"]
    given = device.array(x)
    with pytest.raises(pysm120.WorkspaceTooSmallError, match=f"workspace.nbytes = {needed - 1}"):
        pysm120.matvec(w, given, workspace=device.empty(needed - 1, np.uint8), **OPTION)
    pysm120.matvec(w, given, workspace=device.empty(needed, np.uint8), **OPTION)
