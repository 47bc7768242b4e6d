"""quantize_mxfp8 against the definition of OCP MX, bit for bit: every dtype, axis and rounding, edges of the tiles."""

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
