"""quantize_mxfp8 against the definition of OCP MX, bit for bit: every dtype, axis and rounding, edges of the tiles."""

import itertools
from typing import Any

import numpy as np
import pytest
from harness import DTYPES, Buffer, OpenDevice, check, lib, new_struct, tensor
from kernels import quantized
from numpy.typing import NDArray
from operations import Operation, Wrong
from reference import Array, quantize_mxfp8
from test_errors import QUANTIZE

import pysm120

RIGHT = {"batch": 1, "heads": 1, "rows": 3, "head_dim": 64}


def fill(args: Any, memory: int) -> None:
    """Three rows of zeros, in f32, along head_dim."""
    for name, value in RIGHT.items():
        setattr(args, name, value)
    args.x.address, args.x.dtype = memory, lib.SM120_F32
    args.x.batch_stride = args.x.head_stride = 3 * 64
    args.x.row_stride = 64
    args.elements, args.scales = memory + 1024, memory + 2048


def launch(device: pysm120.Device) -> None:
    """Every dtype along both axes; attention launches the quantizers of its layouts."""
    for dtype in DTYPES.values():
        for axis in (-1, -2):
            pysm120.quantize_mxfp8(np.ones((3, 64), dtype), axis=axis, device=device)
        ends = np.array([0, 1, 3], np.int32)
        pysm120.quantize_mxfp8(np.ones((1, 3, 64), dtype), axis=-2, cu_seqlens=ends, device=device)


OPERATION = Operation(
    name="quantize_mxfp8",
    fill=fill,
    wrong=[
        Wrong("axis", 2, "INVALID_ARGUMENT", "axis = 2"),
        Wrong("rounding", 2, "INVALID_ARGUMENT", "rounding = 2"),
        Wrong("batch", 0, "INVALID_ARGUMENT", "batch = 0"),
        Wrong("heads", -7, "INVALID_ARGUMENT", "heads = -7"),
        Wrong("rows", 0, "INVALID_ARGUMENT", "rows = 0"),
        Wrong("rows", 1 << 40, "UNSUPPORTED", "rows"),
        Wrong("head_dim", 12, "UNSUPPORTED", "head_dim = 12"),
        Wrong("x.dtype", lib.SM120_E4M3, "UNSUPPORTED", "x.dtype"),
        Wrong("x.address", 4, "MISALIGNED", "x.address"),
        Wrong("x.row_stride", 0, "INVALID_ARGUMENT", "x.row_stride"),
        Wrong("x.row_stride", 1 << 20, "INVALID_ARGUMENT", "past the end"),
        Wrong("elements", 0, "INVALID_ARGUMENT", "elements = 0"),
        Wrong("elements", 24, "MISALIGNED", "elements"),
        Wrong("scales", 0, "INVALID_ARGUMENT", "scales = 0"),
        Wrong("cu_seqlens", 4096, "INVALID_ARGUMENT", "axis = 0 and batch = 1; with cu_seqlens they must be ALONG_"),
        Wrong("sequences", 2, "INVALID_ARGUMENT", "sequences = 2 and longest = 0; without cu_seqlens"),
        Wrong("longest", 2, "INVALID_ARGUMENT", "sequences = 0 and longest = 2; without cu_seqlens"),
    ],
    refused={name: (kind, message, ([x], options)) for name, (kind, message, (x, options)) in QUANTIZE.items()},
    launch=launch,
    recorded=tuple(quantized()),
)

AXES = {"head_dim": (lib.SM120_ALONG_HEAD_DIM, -1), "rows": (lib.SM120_ALONG_ROWS, -2)}
ROUNDINGS = {"up": lib.SM120_SCALE_UP, "floor": lib.SM120_SCALE_FLOOR}


def quantize(opened: OpenDevice, x: Buffer, axis: str, rounding: str) -> tuple[Array, Array]:
    """Run the kernel on [batch, head, row, head_dim]."""
    batch, heads, rows, head_dim = x.shape
    blocks = (rows, -(-head_dim // 32)) if axis == "head_dim" else (-(-rows // 32), head_dim)
    elements = Buffer(opened, (batch, heads, rows, head_dim), np.uint8)
    scales = Buffer(opened, (batch, heads, *blocks), np.uint8)
    args = new_struct("sm120_quantize_mxfp8_args")
    args.axis, args.rounding = AXES[axis][0], ROUNDINGS[rounding]
    args.batch, args.heads, args.rows, args.head_dim = x.shape
    tensor(args.x, x)
    args.elements, args.scales = elements.address, scales.address
    check(lib.sm120_quantize_mxfp8(opened.handle, args))
    return elements.download(), scales.download()


def expect_equal(got: tuple[Array, Array], x: NDArray[np.float32], axis: str, rounding: str) -> None:
    """Compare with the definition, naming the first difference."""
    want = quantize_mxfp8(x, AXES[axis][1], rounding)
    for name, a, b in zip(("scales", "elements"), got[::-1], want[::-1], strict=True):
        differ = np.argwhere(a != b.view(np.uint8))
        assert differ.size == 0, (
            f"{len(differ)} {name} differ, first at {differ[0]}: "
            f"{a[tuple(differ[0])]:#x} instead of {b.view(np.uint8)[tuple(differ[0])]:#x}"
        )


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 8), (2, 3, 63, 64), (1, 2, 64, 128), (1, 1, 65, 72), (1, 2, 31, 32), (2, 1, 33, 136), (1, 1, 130, 264)],
    ids=str,
)
def test_equals_the_definition(
    opened: OpenDevice,
    rng: np.random.Generator,
    shape: tuple[int, int, int, int],
    dtype: str,
    axis: str,
    rounding: str,
) -> None:
    """Random values over many binades, in a tensor with gaps between its rows."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))
    _, heads, rows, head_dim = shape
    strides = (heads * rows * (head_dim + 24), head_dim + 24, heads * (head_dim + 24), 1)
    buffer = Buffer(opened, shape, DTYPES[dtype], strides, x.astype(DTYPES[dtype]))
    try:
        values = buffer.elements(buffer.image).astype(np.float32)
        expect_equal(quantize(opened, buffer, axis, rounding), values, axis, rounding)
    finally:
        opened.release()


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("axis", AXES)
def test_special_values(opened: OpenDevice, rng: np.random.Generator, axis: str, rounding: str) -> None:
    """Zeros, subnormals, the largest numbers, exact powers and ties, infinities and NaN."""
    ordinary = [448, 448.00003, 464, 480, 512, 1.75, 1.7500001, 0.875, 1.0, 17, 18, 19, 0.001953125, 1e-10]
    extreme = [0, -0.0, 1e-45, -1e-45, 1.17e-38, 3.4028235e38, -3.4028235e38, 2.0**-126, 2.0**-118, 2.0**-127]
    special = np.array(
        [*ordinary, *extreme, np.inf, -np.inf, np.nan],
        np.float32,
    )
    x = rng.choice(special, (1, 2, 96, 96))
    x[:, :, :, :32][rng.random((1, 2, 96, 32)) < 0.9] = 0  # one large value among zeros, zeros alone
    x[0, 0, :64, :] = np.where(np.isfinite(x[0, 0, :64, :]), x[0, 0, :64, :], 1)
    x[0, 1, :32, :32] = 1e-45
    buffer = Buffer(opened, x.shape, np.float32, None, x)
    try:
        expect_equal(quantize(opened, buffer, axis, rounding), x, axis, rounding)
    finally:
        opened.release()


# ---- packed sequences --------------------------------------------------------------------

STARTS = [[0, 130], [3, 40, 40, 60, 130], [0, 32, 64, 127, 128], [129, 129, 130], [0, 0]]


def packed(x: Array, starts: list[int], rounding: str) -> tuple[Array, Array]:
    """Quantise each sequence of x [heads, total, columns] by itself; 0 in what belongs to none."""
    heads, rows, columns = x.shape
    elements = np.zeros(x.shape, np.uint8)
    scales = np.zeros((heads, -(-rows // 32) + len(starts) - 2, columns), np.uint8)
    for b, (begin, end) in enumerate(itertools.pairwise(starts)):
        if end > begin:
            codes, factors = quantize_mxfp8(x[:, begin:end], -2, rounding)
            elements[:, begin:end] = codes.view(np.uint8)
            scales[:, begin // 32 + b :][:, : factors.shape[1]] = factors.view(np.uint8)
    return elements, scales


@pytest.mark.parametrize("where", ["host", "longest", "device"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("starts", STARTS, ids=str)
def test_packed_sequences(
    device: pysm120.Device, rng: np.random.Generator, starts: list[int], dtype: str, where: str
) -> None:
    """Each sequence begins with a new block; no two sequences share a row of scales."""
    x = (rng.standard_normal((130, 2, 136)) * np.exp2(rng.integers(-9, 9, (130, 2, 1)))).astype(DTYPES[dtype])
    given: Any = x.transpose(1, 0, 2)
    ends: Any = np.array(starts, np.int32)
    options: dict[str, Any] = {"rounding": "floor" if where == "host" else "up"}
    if where != "host":
        given, ends = device.array(x).transpose(1, 0, 2), device.array(ends)
        options |= {"max_seqlen": max(1, *np.diff(starts))} if where == "longest" else {}
    got = pysm120.quantize_mxfp8(given, axis=-2, cu_seqlens=ends, device=device, **options)
    wanted = packed(x.transpose(1, 0, 2).astype(np.float32), starts, options["rounding"])
    for a, b in zip(got, wanted, strict=True):
        assert np.array_equal((a if where == "host" else a.numpy()).view(np.uint8), b)


OUTSIDE = [[-7, 40, 60], [2**31 - 1, -(2**31), 70], [120, 2**31 - 1]]


@pytest.mark.parametrize("starts", OUTSIDE, ids=str)
def test_starts_outside_x_are_clamped(device: pysm120.Device, rng: np.random.Generator, starts: list[int]) -> None:
    """Numbers in device memory are not checked; nothing outside the arrays is read or written."""
    x = device.array(rng.standard_normal((2, 130, 64)).astype(np.float32))
    elements, scales = pysm120.quantize_mxfp8(x, axis=-2, cu_seqlens=device.array(np.array(starts, np.int32)))
    assert elements.shape == x.shape
    assert scales.shape == (2, 5 + len(starts) - 2, 64)
    device.synchronize()


PACKED_WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "axis": (ValueError, "x has shape .* and axis is -1; with cu_seqlens", {"axis": -1}),
    "rank": (ValueError, r"with cu_seqlens x is \[heads, rows, head_dim\]", {"x": np.ones((1, 2, 40, 8), "f4")}),
    "falls": (ValueError, "cu_seqlens is .*, but it must ascend from 0 to at most 40", {"cu_seqlens": [0, 30, 20]}),
    "behind": (ValueError, "cu_seqlens is .*, but it must ascend", {"cu_seqlens": [0, 41]}),
    "before": (ValueError, "cu_seqlens is .*, but it must ascend", {"cu_seqlens": [-1, 40]}),
    "longest": (ValueError, "max_seqlen is 9, but cu_seqlens has a sequence of 30 rows", {"max_seqlen": 9}),
    "no rows": (ValueError, "max_seqlen is 0, not at least 1", {"max_seqlen": 0}),
    "alone": (ValueError, "max_seqlen is 9, but cu_seqlens is None", {"cu_seqlens": None, "max_seqlen": 9}),
    "dtype": (TypeError, "cu_seqlens has dtype float64, not int32", {"cu_seqlens": np.array([0.0, 40])}),
    "scalar": (ValueError, "cu_seqlens has shape", {"cu_seqlens": np.int32(3)}),
}


@pytest.mark.parametrize("case", PACKED_WRONG)
def test_wrong_packed_sequences(device: pysm120.Device, case: str) -> None:
    kind, message, options = PACKED_WRONG[case]
    call: dict[str, Any] = {"x": np.ones((2, 40, 8), np.float32), "axis": -2, "cu_seqlens": [0, 10, 40], **options}
    with pytest.raises(kind, match=message):
        pysm120.quantize_mxfp8(call.pop("x"), device=device, **call)
