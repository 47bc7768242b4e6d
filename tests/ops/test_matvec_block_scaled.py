"""matvec of MXFP4 and NVFP4 weights by block-scaled mma, against models of the rounding of x."""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from gguf_blocks import BLOCKS, Bytes, random_blocks, values
from harness import DTYPES
from numpy.typing import NDArray

import pysm120
from pysm120 import QuantizedMatrix
from pysm120.runtime.module import builtin_kernel, constants

Vectors = NDArray[Any]


def mxfp8_terms(x: Vectors) -> list[NDArray[np.float64]]:
    """Return what mxfp8x2 makes of x: the first e4m3, and that of the rest, times their scales."""
    terms, rest = [], x.astype(float).reshape(*x.shape[:-1], -1, 32)
    for _ in range(2):
        amax = abs(rest).max(-1, keepdims=True)
        fraction, exponent = np.frexp(amax)  # amax = fraction 2^exponent; 448 = 0.875 * 2^9
        scale = np.exp2(np.maximum(exponent - 9 + (fraction > 0.875), -127))
        terms.append((rest / scale).astype(ml_dtypes.float8_e4m3fn).astype(float) * scale)
        rest = rest - terms[-1]
    return [term.reshape(x.shape) for term in terms]


def nvfp4_terms(x: Vectors) -> list[NDArray[np.float64]]:
    """Return what nvfp4x3 makes of x: three e2m1, each of what those before left, times their scales."""
    columns = x.shape[-1]
    spans = np.zeros((*x.shape[:-1], -(-columns // 256), 256), "f4")
    spans.reshape(*x.shape[:-1], -1)[..., :columns] = x
    _, exponent = np.frexp(abs(spans).max(-1, keepdims=True))
    factor = np.exp2(np.maximum(exponent - 11, -126)).astype("f4")
    terms, rest = [], (spans / factor).reshape(*spans.shape[:-1], 16, 16)
    for _ in range(3):
        scale = (abs(rest).max(-1, keepdims=True) * np.float32(1 / 6)).astype(ml_dtypes.float8_e4m3fn).astype("f4")
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / np.where(scale == 0, np.float32(1), scale))
        element = np.clip(rest * inverse, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype("f4")
        terms.append(element * scale)
        rest = rest - terms[-1]
    whole = [term.reshape(spans.shape).astype(float) * factor for term in terms]
    return [term.reshape(*x.shape[:-1], -1)[..., :columns] for term in whole]


class Form(NamedTuple):
    """One value of `activations`, and the weights that it is for."""

    type: str
    one: int  # the code of a weight scale of 1
    terms: Callable[[Vectors], list[NDArray[np.float64]]]
    loss: dict[int, float]  # of the magnitudes of a sum, by capability: see expect_near()
    kernel: str
    record: str


FORMS = {
    "mxfp8x2": Form("MXFP4", 127, mxfp8_terms, {12: 2.0**-19, 9: 2.0**-9}, "matvec_activations_mx", "RECORD_MX"),
    "nvfp4x3": Form(
        "NVFP4", 0x38, nvfp4_terms, {12: 2.0**-19, 9: 2.0**-17}, "matvec_activations_nvfp4", "RECORD_NVFP4"
    ),
}
LAYOUTS = ("native", "packed")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Return each form."""
    name: str = request.param
    return name


def blocks(rng: np.random.Generator, form: str, rows: int, columns: int) -> Bytes:
    """Return random weights."""
    return random_blocks(rng, FORMS[form].type, rows, columns)


def scales(raw: Bytes, form: str) -> Bytes:
    """Return the codes of the scales, as a view."""
    first, count, _ = BLOCKS[FORMS[form].type].codes
    return raw[..., first : first + count]


def matrix(device: pysm120.Device, raw: Bytes, form: str, layout: str = "native") -> QuantizedMatrix:
    """Return blocks on a device."""
    name = FORMS[form].type
    shape = (len(raw), raw.shape[1] * BLOCKS[name].columns)
    return QuantizedMatrix.from_gguf(raw, name, shape, device=device, layout=layout)


def expect_near(device: pysm120.Device, got: Vectors, raw: Bytes, form: str, x: Vectors) -> None:
    """Compare with float64 products of the model.

    A tensor core cuts the terms of a product of 32 or 64 columns where the largest one has its 24th bit; Hopper's cuts
    those of 8 bits at the 13th. The loss allows for 32 such losses of the largest term of a sum.
    """
    terms = FORMS[form].terms(x)
    w = values(raw, FORMS[form].type).astype(float)
    wanted, largest = np.sum(terms, axis=0) @ w.T, np.sum(np.abs(terms), axis=0) @ abs(w).T
    bound = FORMS[form].loss[device.info.capability[0]] * largest
    wrong = np.argwhere(~(abs(got.astype(float) - wanted) <= bound))
    assert wrong.size == 0, (
        f"{len(wrong)} wrong, first {wrong[0]}: {got[tuple(wrong[0])]}, not {wanted[tuple(wrong[0])]}"
    )


def test_models(rng: np.random.Generator) -> None:
    """Bounds of what remains of x.

    Two e4m3 leave half a step of the second one, 2^-8 of the element, or, where that is subnormal, 2^-18 of the
    largest in its block. A term in NVFP4 leaves half of its widest step, 1.07 / 6 of the largest of 16. The smallest
    scale, 2^-9, leaves at most 3 * 2^-9, where the largest of 256 columns is at least 1024.
    """
    x = rng.standard_normal((64, 512)) * np.exp2(rng.integers(-30, 30, (64, 512)))
    largest = np.repeat(abs(x).reshape(64, -1, 32).max(-1), 32, axis=-1)
    assert (abs(x - np.sum(mxfp8_terms(x), axis=0)) <= np.maximum(2.0**-8 * abs(x), 2.0**-18 * largest)).all()
    x = (rng.standard_normal((64, 512)) * np.exp2(rng.integers(-12, 12, (64, 512)))).astype("f4")
    largest = np.repeat(abs(x).reshape(64, -1, 16).max(-1), 16, axis=-1)
    of_span = np.repeat(abs(x).reshape(64, -1, 256).max(-1), 256, axis=-1)
    assert (abs(x - np.sum(nvfp4_terms(x), axis=0)) <= np.maximum((1.07 / 6) ** 3 * largest, 2.0**-17 * of_span)).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_against_float64(device: pysm120.Device, rng: np.random.Generator, layout: str, form: str) -> None:
    """Rows around a tile, columns around the spans of eight warps, vectors around a tile."""
    step = BLOCKS[FORMS[form].type].columns
    sizes = [(1, step, 1), (17, 2304, 1), (15, 2048 - step, 7), (16, 512, 8), (33, 256 + step, 9), (47, 256 - step, 17)]
    for rows, columns, vectors in sizes:
        raw = blocks(rng, form, rows, columns)
        x = (rng.standard_normal((vectors, columns)) * np.exp2(rng.integers(-8, 8, (vectors, columns)))).astype("f4")
        out = np.full((vectors, rows), np.nan, "f4")
        pysm120.matvec(matrix(device, raw, form, layout), x, activations=form, out=out)
        expect_near(device, out, raw, form, x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("vectors", [1, 9])
def test_exact(device: pysm120.Device, rng: np.random.Generator, layout: str, vectors: int, form: str) -> None:
    """Weights of one scale and numbers of two terms: every sum is exact, on every device."""
    columns = 512 + BLOCKS[FORMS[form].type].columns
    raw = blocks(rng, form, 19, columns)
    scales(raw, form)[...] = FORMS[form].one
    if form == "mxfp8x2":
        x = rng.integers(-8, 9, (vectors, columns)).astype("f4")
    else:  # e2m1 whose largest is 6, and a 32nd of another
        codes = rng.integers(0, 16, (2, vectors, columns), dtype=np.uint8)
        codes[:, :, 3::16] = 7
        first, second = codes.view(ml_dtypes.float4_e2m1fn).astype("f4")
        x = first + second / 32
    got = pysm120.matvec(matrix(device, raw, form, layout), x, activations=form)
    np.testing.assert_array_equal(got, (x.astype(float) @ values(raw, FORMS[form].type).astype(float).T).astype("f4"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_place(device: pysm120.Device, layout: str, form: str) -> None:
    """One column of x is not 0: each element and each scale of the weights comes out as it is."""
    rng = np.random.default_rng(7)
    raw = blocks(rng, form, 16, 256)
    first, end = (100, 150) if form == "mxfp8x2" else (0, 256)
    scales(raw, form)[...] = rng.integers(first, end, scales(raw, form).shape)
    if form == "nvfp4x3":
        raw[..., :4][raw[..., :4] == 0xFF] = 0x7F
    largest = 1 if form == "mxfp8x2" else 6  # of an element: then the first term is exact
    x = np.diag(largest * np.exp2(np.arange(256) % 17 - 8)).astype("f4")
    got = pysm120.matvec(matrix(device, raw, form, layout), x, activations=form)
    np.testing.assert_array_equal(got, (values(raw, FORMS[form].type) @ x).T)


def test_second_e4m3(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Elements of 7 bits: the first e4m3 keeps 4, and the second one the others."""
    raw = blocks(rng, "mxfp8x2", 16, 32)
    raw[..., 0], raw[..., 1:] = 127, 0x22  # all 1
    x = np.zeros((3, 32), "f4")
    x[:, 5] = 127, -93.0 * 2.0**-90, 121.0 * 2.0**40
    got = pysm120.matvec(matrix(device, raw, "mxfp8x2"), x, activations="mxfp8x2")
    np.testing.assert_array_equal(got, np.repeat(x[:, 5:6], 16, axis=1))


def test_three_e2m1(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Numbers of three terms come out as they are, at every magnitude that has a factor."""
    raw = blocks(rng, "nvfp4x3", 16, 64)
    raw[..., :4], raw[..., 4:] = 0x38, 0x22  # all 1
    x = np.zeros((5, 64), "f4")
    x[:, 5] = (6 + 6 / 32 - 6 / 1024) * np.exp2([0.0, 40, -90, 120, -112])
    got = pysm120.matvec(matrix(device, raw, "nvfp4x3"), x, activations="nvfp4x3")
    np.testing.assert_array_equal(got, np.repeat(x[:, 5:6], 16, axis=1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_special_mxfp4_scales(device: pysm120.Device, layout: str) -> None:
    """The smallest and the largest scales of weights; 255 is NaN, in its row alone."""
    codes = np.array([0, 1, 2, 126, 127, 253, 254, 255], np.uint8)
    raw = np.full((8, 8, 17), 0x22, np.uint8)
    raw[..., 0], raw[:, 3, 0] = 0, codes
    x = np.zeros((2, 256), "f4")
    x[0, 96:128], x[1, 96:128] = 2.0**-20, 2.0**20
    with np.errstate(over="ignore"):
        wanted = (32 * np.outer([2.0**-20, 2.0**20], np.exp2(codes - 127.0))).astype("f4")
    got = pysm120.matvec(matrix(device, raw, "mxfp8x2", layout), x, activations="mxfp8x2")
    assert np.isnan(got[:, 7]).all()
    np.testing.assert_array_equal(got[:, :7], wanted[:, :7])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_nvfp4_scale(device: pysm120.Device, layout: str) -> None:
    """All codes of scales, as GGUF has them: bit 7 is ignored, and 0x7f is 0. So is 0xff, here alone."""
    raw = np.full((256, 4, 36), 0x22, np.uint8)
    raw[..., :4] = 0
    raw[:, 2, 1] = np.arange(256)
    x = np.full((2, 256), 6, "f4")
    got = pysm120.matvec(matrix(device, raw, "nvfp4x3", layout), x, activations="nvfp4x3")
    assert got[0, 0x7F] == got[0, 0xFF] == 0
    np.testing.assert_array_equal(got[:, :255], 2 * [6 * values(raw, "NVFP4").sum(1)[:255]])


def test_special_vectors(device: pysm120.Device, rng: np.random.Generator, form: str) -> None:
    """NaN and infinity make their vector NaN and no other; zeros give zeros; tiny and huge blocks."""
    raw = blocks(rng, form, 17, 512)
    x = rng.standard_normal((7, 512)).astype("f4")
    x[1, 3], x[2, 500], x[3], x[4] = np.nan, -np.inf, 0, x[4] * np.float32(1e-30)
    x[5, 64:96] *= np.float32(1e30)
    got = pysm120.matvec(matrix(device, raw, form), x, activations=form)
    assert np.isnan(got[1:3]).all()
    assert (got[3] == 0).all()
    rest = [0, 4, 5, 6]
    expect_near(device, got[rest], raw, form, x[rest])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_dtypes_and_strides(device: pysm120.Device, rng: np.random.Generator, dtype: Any, form: str) -> None:
    """Rows of x and of the result with bytes between them; bias; results are rounded once."""
    columns = 128 - BLOCKS[FORMS[form].type].columns
    raw = blocks(rng, form, 21, columns)
    room = rng.standard_normal((10, 112)).astype(dtype)
    room[:, columns:] = np.nan
    x, bias = room[:, :columns], rng.standard_normal(21).astype("f4")
    out = device.array(np.full((10, 32), np.nan, dtype))
    w = matrix(device, raw, form, "packed")
    pysm120.matvec(w, device.array(room)[:, :columns], bias=bias, out=out[:, :21], activations=form)
    whole = pysm120.matvec(w, x.astype("f4"), bias=bias, activations=form)
    got = out.numpy()
    np.testing.assert_array_equal(got[:, :21], whole.astype(dtype))
    assert np.isnan(got[:, 21:].astype("f4")).all()
    expect_near(device, pysm120.matvec(w, x.astype("f4"), activations=form), raw, form, x.astype("f4"))


def test_one_vector_of_several(device: pysm120.Device, rng: np.random.Generator, form: str) -> None:
    """A vector has the same bits whatever the others are, in both layouts and in every launch."""
    columns = 1024 + BLOCKS[FORMS[form].type].columns
    raw = blocks(rng, form, 40, columns)
    native, packed = (matrix(device, raw, form, layout) for layout in LAYOUTS)
    x = rng.standard_normal((19, columns)).astype("f4")
    whole = pysm120.matvec(packed, x, activations=form)
    np.testing.assert_array_equal(whole, pysm120.matvec(packed, x, activations=form))
    np.testing.assert_array_equal(whole, pysm120.matvec(native, x, activations=form))
    for part in (slice(0, 1), slice(3, 12), slice(11, 19)):
        np.testing.assert_array_equal(whole[part], pysm120.matvec(packed, x[part], activations=form))
    np.testing.assert_array_equal(whole[4], pysm120.matvec(packed, x[4], activations=form))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_glu(device: pysm120.Device, rng: np.random.Generator, layout: str, form: str) -> None:
    gate, up = (matrix(device, blocks(rng, form, 48, 768), form, layout) for _ in range(2))
    x = (0.02 * rng.standard_normal((9, 768))).astype("f4")
    a, b = (pysm120.matvec(w, x, activations=form).astype(float) for w in (gate, up))
    with np.errstate(over="ignore"):
        wanted = a / (1 + np.exp(-a)) * b
    got = pysm120.matvec_glu(gate, up, x, activations=form)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_tiles_of_a_cta(device: pysm120.Device, rng: np.random.Generator, layout: str, form: str) -> None:
    """A grid of two CTAs for ten tiles of rows has the bits of a large one."""
    w = matrix(device, blocks(rng, form, 150, 2560), form, layout)
    x = rng.standard_normal((11, 2560)).astype("f4")
    wanted = pysm120.matvec(w, x, activations=form)
    out = device.array(np.full((11, 150), np.nan, "f4"))
    records = device.empty((10 * 2 * constants()[f"MATVEC_{FORMS[form].record}_BYTES"],), np.uint8)
    quantize = builtin_kernel(device, FORMS[form].kernel)
    quantize((10, 2), 256, device.array(x), records, np.int64(4 * 2560), *map(np.uint32, (11, 2560, 0)))
    kernel = builtin_kernel(device, f"matvec_{FORMS[form].type.lower()}_{layout}_{form}")
    none, strides = np.uint64(0), map(np.int64, (0, 0, 4 * 150))
    numbers = map(np.uint32, (150, 2560, 11, 10, 10, 0, 0, 0, 0, 0))
    kernel((2, 2), 256, w.data, records, out, none, none, none, *strides, *numbers, shared=90_000)
    np.testing.assert_array_equal(out.numpy(), wanted)


def test_kernels_of_hopper(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """On a virtual device that states Hopper's capability: products with scales in f32, or of elements in f16."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    with pysm120.Device("virtual") as device:
        for layout in LAYOUTS:
            test_against_float64(device, rng, layout, form)
            test_exact(device, rng, layout, 9, form)
            test_each_place(device, layout, form)
        test_special_vectors(device, rng, form)
        if form == "mxfp8x2":
            for layout in LAYOUTS:
                test_special_mxfp4_scales(device, layout)
            test_second_e4m3(device, rng)
        else:
            for layout in LAYOUTS:
                test_every_nvfp4_scale(device, layout)
            test_three_e2m1(device, rng)


def test_wrong_calls(device: pysm120.Device, rng: np.random.Generator, form: str) -> None:
    """Other types and experts are refused; the workspace is as large as the question says."""
    x = np.zeros((3, 256), "f4")
    name = FORMS[form].type
    other = QuantizedMatrix.from_gguf(bytes(288), "Q4_K", (2, 256), device=device)
    with pytest.raises(
        pysm120.UnsupportedError, match=f"ACTIVATIONS_{form.upper()} with type = 12; its type must be {name}"
    ):
        pysm120.matvec(other, x, activations=form)
    w = matrix(device, blocks(rng, form, 16, 256), form)
    one = QuantizedMatrix(w.data, name, (1, 16, 256), "native")
    with pytest.raises(pysm120.UnsupportedError, match=f"ACTIVATIONS_{form.upper()}; with experts it must be"):
        pysm120.matvec(one, x, experts=[[0]] * 3, activations=form)
    needed = constants()[f"MATVEC_{FORMS[form].record}_BYTES"]
    given = device.array(x)
    with pytest.raises(pysm120.WorkspaceTooSmallError, match=f"workspace.nbytes = {needed - 1}"):
        pysm120.matvec(w, given, workspace=device.empty(needed - 1, np.uint8), activations=form)
    pysm120.matvec(w, given, workspace=device.empty(needed, np.uint8), activations=form)
