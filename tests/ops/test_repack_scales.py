"""repack_scales against definitions of the layouts of their own, bit for bit."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness import Buffer, OpenDevice, check, lib, new_struct
from kernels import Recorded
from numpy.typing import NDArray
from operations import Operation, Wrong

import pysm120

LAYOUTS = {"linear": lib.SM120_SCALES_LINEAR, "128x4": lib.SM120_SCALES_128X4, "64x4": lib.SM120_SCALES_64X4}
TILE_ROWS = {"linear": 1, "128x4": 128, "64x4": 64}
Bytes = NDArray[np.uint8]


def fill(args: Any, memory: int) -> None:
    """Three rows of five columns."""
    args.batch, args.heads, args.rows, args.columns = 1, 1, 3, 5
    args.source, args.target = lib.SM120_SCALES_LINEAR, lib.SM120_SCALES_128X4
    args.scales, args.repacked = memory, memory + 1024


def launch(device: pysm120.Device) -> None:
    pysm120.repack_scales(np.ones((3, 5), np.uint8), "linear", "64x4", device=device)


def compute(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """Scales of 129 rows and 37 columns from 64x4 to 128x4, and from there to linear."""
    scales = rng.integers(0, 256, (2, 192, 40)).astype(np.uint8)
    tiles = pysm120.repack_scales(scales, "64x4", "128x4", rows=129, columns=37, device=device)
    linear = pysm120.repack_scales(tiles, "128x4", "linear", rows=129, columns=37, device=device)
    return np.concatenate([tiles.ravel(), linear.ravel()])


X = np.ones((3, 5), np.uint8)
TILES = np.ones((128, 8), np.uint8)
OPERATION = Operation(
    name="repack_scales",
    fill=fill,
    wrong=[
        Wrong("source", 3, "INVALID_ARGUMENT", "source = 3"),
        Wrong("target", 7, "INVALID_ARGUMENT", "target = 7"),
        Wrong("reserved", 1, "INVALID_ARGUMENT", "reserved = 1"),
        Wrong("batch", 0, "INVALID_ARGUMENT", "batch = 0"),
        Wrong("heads", -1, "INVALID_ARGUMENT", "heads = -1"),
        Wrong("rows", 0, "INVALID_ARGUMENT", "rows = 0"),
        Wrong("columns", -4, "INVALID_ARGUMENT", "columns = -4"),
        Wrong("rows", 1 << 30, "UNSUPPORTED", "too many"),
        Wrong("scales", 0, "INVALID_ARGUMENT", "scales = 0"),
        Wrong("repacked", 0, "INVALID_ARGUMENT", "repacked = 0"),
        Wrong("repacked", 2, "MISALIGNED", "repacked"),
    ],
    refused={
        "source": (ValueError, "source is '32x4'", ([X, "32x4", "linear"], {})),
        "target": (ValueError, "target is None", ([X, "linear", None], {})),
        "rows": (ValueError, "rows is 0", ([X, "linear", "64x4"], {"rows": 0})),
        "columns": (TypeError, "columns is 2.5", ([X, "linear", "64x4"], {"columns": 2.5})),
        "other rows": (ValueError, "the call has rows = 4", ([X, "linear", "64x4"], {"rows": 4})),
        "rows of tiles": (ValueError, "rows/128\\*128 is 256", ([TILES, "128x4", "linear"], {"rows": 129})),
        "no tiles": (ValueError, "rows/128\\*128 is 128", ([X, "128x4", "linear"], {})),
        "dtype": (TypeError, "scales has dtype float32", ([np.ones((3, 5), np.float32), "linear", "64x4"], {})),
        "one dimension": (ValueError, "scales has shape", ([np.ones(5, np.uint8), "linear", "64x4"], {})),
    },
    launch=launch,
    recorded=[Recorded("repack_scales", "repack_scales", compute)],
)


def in_tiles(scales: Bytes, layout: str, rng: np.random.Generator | None = None) -> Bytes:
    """Return a matrix in a layout, made by reshapes; padding is 0, or random.

    cuBLAS: a tile of 128 rows and 4 columns has 32 lines of 16 bytes; line n holds rows n, n + 32, n + 64 and n + 96.
    SageAttention 3: 64 rows, 16 lines, a step of 16.
    """
    if layout == "linear":
        return scales
    tile = TILE_ROWS[layout]
    rows, columns = scales.shape
    whole = np.zeros((-(-rows // tile) * tile, -(-columns // 4) * 4), np.uint8)
    if rng is not None:
        whole[...] = rng.integers(0, 256, whole.shape)
    whole[:rows, :columns] = scales
    # [tile, quarter, line, group, column] to [tile, group, line, quarter, column]
    parts = whole.reshape(-1, 4, tile // 4, whole.shape[1] // 4, 4)
    return np.ascontiguousarray(parts.transpose(0, 3, 2, 1, 4)).reshape(whole.shape)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(LAYOUTS, LAYOUTS)), ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (63, 5), (65, 4), (128, 3), (129, 37)], ids=str)
def test_every_pair_of_layouts(
    opened: OpenDevice, rng: np.random.Generator, source: str, target: str, shape: tuple[int, int]
) -> None:
    """Random bytes, random padding of the source, zeros in that of the result, guard bands around both."""
    matrices = rng.integers(0, 256, (2, *shape)).astype(np.uint8)
    given = np.stack([in_tiles(x, source, rng) for x in matrices])
    wanted = np.stack([in_tiles(x, target) for x in matrices])
    try:
        scales = Buffer(opened, given.shape, np.uint8, values=given)
        repacked = Buffer(opened, wanted.shape, np.uint8)
        args = new_struct("sm120_repack_scales_args")
        args.batch, args.heads, args.rows, args.columns = 1, 2, *shape
        args.source, args.target = LAYOUTS[source], LAYOUTS[target]
        args.scales, args.repacked = scales.address, repacked.address
        check(lib.sm120_repack_scales(opened.handle, args))
        assert np.array_equal(repacked.download(), wanted)
    finally:
        opened.release()


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_linear_scales_of_any_alignment(device: pysm120.Device, rng: np.random.Generator, offset: int) -> None:
    """Four columns of a linear matrix lie in no word if its address is odd."""
    matrix = rng.integers(0, 256, (70, 8)).astype(np.uint8)
    memory = device.zeros(matrix.size + offset, np.uint8)
    memory[offset:].copy_from(matrix.ravel())
    got = pysm120.repack_scales(memory[offset:].reshape(matrix.shape), "linear", "128x4").numpy()
    assert np.array_equal(got, in_tiles(matrix, "128x4"))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu])
def test_of_quantize_nvfp4(device: pysm120.Device, rng: np.random.Generator, dtype: Any) -> None:
    """Repacked scales are those that quantize_nvfp4 writes in that layout; e8m0 bytes move as they are."""
    x = rng.standard_normal((2, 3, 70, 80)).astype(np.float16)
    _, linear = pysm120.quantize_nvfp4(x, device=device)
    for layout in ("128x4", "64x4"):
        _, wanted = pysm120.quantize_nvfp4(x, layout=layout, device=device)
        got = pysm120.repack_scales(linear.view(dtype), "linear", layout, device=device)
        assert got.dtype == dtype
        assert np.array_equal(got.view(np.uint8), wanted.view(np.uint8))
        back = pysm120.repack_scales(got, layout, "linear", rows=70, columns=5, device=device)
        assert np.array_equal(back.view(np.uint8), linear.view(np.uint8))
