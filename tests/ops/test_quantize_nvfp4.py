"""quantize_nvfp4 against a model of its arithmetic, bit for bit: dtypes, axes, layouts of scales, the search."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness import DTYPES, Buffer, OpenDevice, check, lib, new_struct, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from kernels import Recorded
from numpy.typing import NDArray
from operations import Operation, Wrong

import pysm120

F32, E4M3, E2M1 = np.float32, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
LAYOUTS = {"linear": lib.SM120_SCALES_LINEAR, "128x4": lib.SM120_SCALES_128X4, "64x4": lib.SM120_SCALES_64X4}
Results = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def fill(args: Any, memory: int) -> None:
    """Three rows of 64 columns, in f32."""
    args.batch, args.heads, args.rows, args.head_dim = 1, 1, 3, 64
    args.x.address, args.x.dtype = memory, lib.SM120_F32
    args.x.batch_stride = args.x.head_stride = 3 * 64
    args.x.row_stride, args.global_scale = 64, 1
    args.elements, args.scales = memory + 1024, memory + 2048


def launch(device: pysm120.Device) -> None:
    for dtype, axis in itertools.product(DTYPES.values(), (-1, -2)):
        pysm120.quantize_nvfp4(np.ones((3, 64), dtype), axis=axis, device=device)


def compute(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """Elements of 33 rows of 144 columns in bf16, and their scales in tiles."""
    x = rng.standard_normal((33, 144)).astype(ml_dtypes.bfloat16)
    elements, scales = pysm120.quantize_nvfp4(x, layout="128x4", search=True, device=device)
    return np.concatenate([elements.ravel(), scales.view(np.uint8).ravel()])


def compute_rows(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """Elements of 77 rows of 37 columns in f16 along the rows, and their scales in tiles."""
    x = rng.standard_normal((2, 77, 37)).astype(np.float16)
    elements, scales = pysm120.quantize_nvfp4(x, axis=-2, layout="64x4", device=device)
    return np.concatenate([elements.ravel(), scales.view(np.uint8).ravel()])


X = np.ones((3, 64), F32)
OPERATION = Operation(
    name="quantize_nvfp4",
    fill=fill,
    wrong=[
        Wrong("layout", 3, "INVALID_ARGUMENT", "layout = 3"),
        Wrong("axis", 2, "INVALID_ARGUMENT", "axis = 2"),
        Wrong("reserved", 1, "INVALID_ARGUMENT", "reserved = 1"),
        Wrong("global_scale_address", 4, "INVALID_ARGUMENT", "only one of them may be given"),
        Wrong("search", 2, "INVALID_ARGUMENT", "search = 2"),
        Wrong("global_scale", 0.0, "INVALID_ARGUMENT", "global_scale = 0"),
        Wrong("global_scale", -1.0, "INVALID_ARGUMENT", "global_scale = -1"),
        Wrong("global_scale", float("nan"), "INVALID_ARGUMENT", "global_scale = nan"),
        Wrong("global_scale", 2.0**101, "INVALID_ARGUMENT", "global_scale = 2.5353e+30"),
        Wrong("batch", 0, "INVALID_ARGUMENT", "batch = 0"),
        Wrong("heads", -7, "INVALID_ARGUMENT", "heads = -7"),
        Wrong("rows", 0, "INVALID_ARGUMENT", "rows = 0"),
        Wrong("rows", 1 << 40, "UNSUPPORTED", "rows"),
        Wrong("head_dim", 24, "UNSUPPORTED", "head_dim = 24"),
        Wrong("x.dtype", lib.SM120_E4M3, "UNSUPPORTED", "x.dtype"),
        Wrong("x.address", 4, "MISALIGNED", "x.address"),
        Wrong("x.row_stride", 0, "INVALID_ARGUMENT", "x.row_stride"),
        Wrong("elements", 0, "INVALID_ARGUMENT", "elements = 0"),
        Wrong("elements", 24, "MISALIGNED", "elements"),
        Wrong("scales", 0, "INVALID_ARGUMENT", "scales = 0"),
    ],
    refused={
        "columns": (ValueError, "not a multiple of 16", ([np.ones((3, 24), F32)], {})),
        "layout": (ValueError, "layout", ([X], {"layout": "32x4"})),
        "axis": (ValueError, "axis is -3", ([X], {"axis": -3})),
        "global scales": (ValueError, "it must be 1", ([X], {"global_scale": np.ones(2, F32)})),
        "search": (TypeError, "search", ([X], {"search": 1})),
        "global_scale": (TypeError, "global_scale is 'x'", ([X], {"global_scale": "x"})),
        "global scale of 0": (ValueError, "global_scale = 0", ([X], {"global_scale": 0.0})),
    },
    launch=launch,
    recorded=[
        Recorded("quantize_nvfp4", "quantize_nvfp4_bf16", compute),
        Recorded("quantize_nvfp4 along rows", "quantize_nvfp4_f16_rows", compute_rows),
    ],
)


def convert(blocks: NDArray[np.float32], largest: float, factor: np.float32) -> tuple[Any, Any, Any]:
    """Codes, scales and squared errors of blocks of 16, by the arithmetic that the documentation states."""
    amax = np.abs(blocks).max(-1)
    amax = np.where(np.isfinite(amax), amax, F32(np.nan))
    scales = np.minimum(amax / (F32(largest) * factor), F32(448)).astype(E4M3)
    unit = (scales.astype(F32) * factor)[..., None]
    unit = np.where(unit == 0, F32(np.inf), unit)
    y = blocks * (F32(1) / unit)
    elements = np.clip(y, F32(-6), F32(6)).astype(E2M1)
    codes = np.where(np.isnan(y), 7, elements.view(np.uint8) & 15).astype(np.uint8)
    difference = blocks - codes.view(E2M1).astype(F32) * unit
    error = np.zeros(amax.shape, F32)
    for i in range(16):
        error = error + difference[..., i] * difference[..., i]
    return codes, scales.view(np.uint8), error


def quantise(x: NDArray[Any], factor: float = 1, *, search: bool = False) -> Results:
    """Elements and linear scales of x [..., columns]."""
    with np.errstate(all="ignore"):
        blocks = x.astype(F32).reshape(*x.shape[:-1], -1, 16)
        codes, scales, error = convert(blocks, 6, F32(factor))
        if search:
            others = convert(blocks, 4, F32(factor))
            is_better = others[2] < error
            codes = np.where(is_better[..., None], others[0], codes)
            scales = np.where(is_better, others[1], scales)
    codes = codes.reshape(x.shape)
    return codes[..., ::2] | codes[..., 1::2] << 4, scales


def in_tiles(scales: NDArray[np.uint8], tile_rows: int) -> NDArray[np.uint8]:
    """Scales [rows, columns] in tiles: 16-byte lines, each 4 columns of 4 rows that lie a quarter of a tile apart."""
    rows, columns = scales.shape
    tiles, groups = -(-rows // tile_rows), -(-columns // 4)
    lines: list[int] = []
    for tile in range(tiles):
        for group in range(groups):
            for line in range(tile_rows // 4):
                for quarter in range(4):
                    for column in range(4 * group, 4 * group + 4):
                        row = tile * tile_rows + quarter * (tile_rows // 4) + line
                        lines.append(int(scales[row, column]) if row < rows and column < columns else 0)
    return np.array(lines, np.uint8).reshape(tiles * tile_rows, groups * 4)


def expect(got: Results, x: NDArray[Any], factor: float = 1, layout: str = "linear", *, search: bool = False) -> None:
    """Compare with the model, naming the first difference."""
    elements, scales = quantise(x, factor, search=search)
    if layout != "linear":
        tile_rows, flat = int(layout.split("x", maxsplit=1)[0]), scales.reshape(-1, *scales.shape[-2:])
        tiled = np.stack([in_tiles(head, tile_rows) for head in flat])
        scales = tiled.reshape(*scales.shape[:-2], *tiled.shape[1:])
    for name, a, b in zip(("scales", "elements"), got[::-1], (scales, elements), strict=True):
        assert a.shape == b.shape
        differ = np.argwhere(a != b)
        assert differ.size == 0, f"{len(differ)} of {name}, first {differ[0]}: {a[tuple(differ[0])]:#x}"


def run(
    opened: OpenDevice, x: Buffer, factor: float, layout: str, *, search: bool, axis: int = -1, on_device: bool = False
) -> Results:
    """Call C with outputs between guard bands; on_device: the global scale is there."""
    batch, heads, rows, head_dim = x.shape
    lines, length = (rows, head_dim) if axis == -1 else (head_dim, rows)
    tile = 1 if layout == "linear" else int(layout.split("x", maxsplit=1)[0])
    columns = -(-length // 16) if layout == "linear" else -(-length // 64) * 4
    elements = Buffer(opened, (batch, heads, lines, -(-length // 16) * 8), np.uint8)
    scales = Buffer(opened, (batch, heads, -(-lines // tile) * tile, columns), np.uint8)
    args = new_struct("sm120_quantize_nvfp4_args")
    args.batch, args.heads, args.rows, args.head_dim = x.shape
    args.layout, args.search = LAYOUTS[layout], search
    args.axis = lib.SM120_ALONG_HEAD_DIM if axis == -1 else lib.SM120_ALONG_ROWS
    if on_device:
        args.global_scale_address = Buffer(opened, (1,), F32, values=np.array([factor], F32)).address
    else:
        args.global_scale = factor
    tensor(args.x, x)
    args.elements, args.scales = elements.address, scales.address
    check(lib.sm120_quantize_nvfp4(opened.handle, args))
    return elements.download(), scales.download()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "factor", "search"),
    [
        ((1, 1, 1, 16), 1.0, False),
        ((2, 3, 63, 64), 0.37, True),
        ((1, 2, 65, 80), 3e-5, False),
        ((2, 1, 129, 144), 1.0, True),
    ],
    ids=str,
)
def test_equals_the_model(
    opened: OpenDevice,
    rng: np.random.Generator,
    shape: tuple[int, int, int, int],
    factor: float,
    dtype: str,
    layout: str,
    search: bool,
) -> None:
    """Random values over many binades, in a tensor with gaps between its rows."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))
    _, heads, rows, head_dim = shape
    strides = (heads * rows * (head_dim + 24), head_dim + 24, heads * (head_dim + 24), 1)
    buffer = Buffer(opened, shape, DTYPES[dtype], strides, x.astype(DTYPES[dtype]))
    try:
        values = buffer.elements(buffer.image).astype(F32)
        expect(run(opened, buffer, factor, layout, search=search), values, factor, layout, search=search)
    finally:
        opened.release()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "factor", "search"),
    [
        ((1, 1, 1, 1), 1.0, False),
        ((2, 1, 17, 33), 0.37, True),
        ((1, 3, 64, 63), 3e-5, False),
        ((1, 2, 81, 130), 1.0, True),
        ((1, 1, 127, 66), 1.0, False),
        ((1, 2, 145, 97), 0.5, False),
    ],
    ids=str,
)
def test_along_rows(
    opened: OpenDevice,
    rng: np.random.Generator,
    shape: tuple[int, int, int, int],
    factor: float,
    dtype: str,
    layout: str,
    search: bool,
) -> None:
    """The results are those of x with its last axes exchanged, filled up with zeros; the tensor has any alignment."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))
    _, heads, rows, head_dim = shape
    strides = (heads * rows * (head_dim + 3), head_dim + 3, heads * (head_dim + 3), 1)
    buffer = Buffer(opened, shape, DTYPES[dtype], strides, x.astype(DTYPES[dtype]))
    try:
        values = buffer.elements(buffer.image).astype(F32).swapaxes(2, 3)
        values = np.pad(values, [(0, 0)] * 3 + [(0, -rows % 16)])
        got = run(opened, buffer, factor, layout, search=search, axis=-2, on_device=True)
        expect(got, values, factor, layout, search=search)
    finally:
        opened.release()


@pytest.mark.parametrize("columns", [64, 65])
@pytest.mark.parametrize("begin", [0, 1])
def test_columns_of_any_address(device: pysm120.Device, rng: np.random.Generator, columns: int, begin: int) -> None:
    """Along rows, two columns of 16 bits come in one load only where it is aligned."""
    x = rng.standard_normal((48, 66)).astype(np.float16)
    part = device.array(x)[:, begin : begin + columns]
    got = pysm120.quantize_nvfp4(part, axis=0)
    wanted = pysm120.quantize_nvfp4(np.ascontiguousarray(x[:, begin : begin + columns].T), device=device)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a.numpy().view(np.uint8), b.view(np.uint8))


def test_special_values_along_rows(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Infinities and NaN stay in their blocks; zeros and subnormals."""
    x = rng.choice(np.array([0, -0.0, 1, -6, 1e-45, 2.0**-10, 3.4e38], F32), (40, 33))
    x[5, 3], x[20, 4], x[39, 32] = np.nan, np.inf, -np.inf
    elements, scales = pysm120.quantize_nvfp4(x, axis=0, device=device)
    expect((elements, scales.view(np.uint8)), np.pad(x.T, ((0, 0), (0, 8))))


@pytest.mark.parametrize("axis", [-1, -2])
def test_global_scale_on_the_device(device: pysm120.Device, rng: np.random.Generator, axis: int) -> None:
    """An array gives the bits of the number; the kernel reads it when it runs, not when it is queued."""
    x = device.array(rng.standard_normal((3, 32, 48)).astype(np.float16))
    scale = device.array(np.array([123], F32))
    scale.copy_from(np.array([0.37], F32))
    got = pysm120.quantize_nvfp4(x, axis=axis, global_scale=scale)
    wanted = pysm120.quantize_nvfp4(x, axis=axis, global_scale=0.37)
    for a, b in zip(got, wanted, strict=True):
        assert np.array_equal(a.numpy().view(np.uint8), b.numpy().view(np.uint8))


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("factor", [1.0, 2.0**-100, 2.0**100])
def test_special_values(device: pysm120.Device, rng: np.random.Generator, factor: float, *, search: bool) -> None:
    """Zeros, subnormals, the largest numbers, ties of elements and of scales, infinities and NaN."""
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 0.25000003, 4.9999995, 17 * 6, 19 * 6, 448 * 6, 2700, 2.0**-10 * 6]
    extreme = [0, 1e-45, 1.17e-38, 3.4028235e38, 2.0**-126, 2.0**-127, 2.0**-9, np.inf, np.nan]
    special = np.array([*ties, *extreme], F32)
    x = rng.choice(np.concatenate([special, -special]), (64, 64))
    x[:48] = np.where(np.isfinite(x[:48]), x[:48], 1)
    x[:32] = rng.choice(np.array(ties, F32), (32, 64)) * rng.choice([-1, 1], (32, 64))
    x[:16, ::16] = 6  # the scale is 1, so elements are x
    x[40:48][rng.random((8, 64)) < 0.9] = 0
    elements, scales = pysm120.quantize_nvfp4(x, global_scale=factor, search=search, device=device)
    expect((elements, scales.view(np.uint8)), x, factor, search=search)


@given(
    x=arrays(F32, (2, 32), elements=st.floats(width=32)),
    factor=st.floats(2.0**-100, 2.0**100, width=32),
    search=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_any_numbers(x: NDArray[np.float32], factor: float, *, search: bool) -> None:
    elements, scales = pysm120.quantize_nvfp4(x, global_scale=factor, search=search, device="virtual")
    expect((elements, scales.view(np.uint8)), x, factor, search=search)


def test_near_true_division(device: pysm120.Device, rng: np.random.Generator) -> None:
    """The multiplication by a reciprocal moves an element only within 1 ulp of f32 of a tie, to its neighbour."""
    x = rng.standard_normal((64, 128)).astype(F32)
    elements, scales = pysm120.quantize_nvfp4(x, device=device)
    codes = np.stack([elements & 15, elements >> 4], -1).reshape(x.shape)
    y = x.astype(float) / np.repeat(scales.astype(float), 16, -1)
    wanted = np.clip(y, -6, 6).astype(E2M1).astype(float)
    got = codes.view(E2M1).astype(float)
    differ = got != wanted
    middle = np.abs(got + wanted)[differ] / 2
    assert (np.abs(np.abs(y[differ]) - middle) <= np.spacing(middle.astype(F32))).all()


def test_search_lowers_the_error(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 16, 128)).astype(F32)
    errors = []
    for search in (False, True):
        elements, scales = pysm120.quantize_nvfp4(x, search=search, device=device)
        codes = np.stack([elements & 15, elements >> 4], -1).reshape(x.shape)
        values = codes.view(E2M1).astype(F32) * np.repeat(scales.astype(F32), 16, -1)
        errors.append(((x - values).reshape(-1, 16) ** 2).sum(-1))
    assert (errors[1] <= errors[0] * 1.0001).all()
    assert errors[1].sum() < errors[0].sum()
