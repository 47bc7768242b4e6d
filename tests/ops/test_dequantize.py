"""dequantize against the gguf package, bit for bit."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf_blocks import BLOCKS, Bytes, halves, random_blocks, values
from harness import DTYPES, lib
from kernels import Recorded
from numpy.typing import NDArray
from operations import Operation, Wrong

import pysm120
from pysm120 import QuantizedMatrix


def fill(args: Any, memory: int) -> None:
    """Two rows of Q4_K."""
    args.type, args.rows, args.columns = lib.SM120_GGUF_Q4_K, 2, 256
    args.weights, args.weight_bytes = memory, 288
    args.y.address, args.y.dtype, args.y.row_stride = memory + 1024, lib.SM120_F32, 256


def launch(device: pysm120.Device) -> None:
    """Every type."""
    for name, block in BLOCKS.items():
        QuantizedMatrix.from_gguf(bytes(block.bytes), name, (1, block.columns), device=device).dequantize()


def compute(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """17 rows of each type."""
    found = []
    for name in BLOCKS:
        w = QuantizedMatrix.from_gguf(random_blocks(rng, name, 17, 256), name, (17, 256), device=device)
        found.append(w.dequantize(np.float32).numpy())
    return np.concatenate(found)[:, ::16].copy()


OPERATION = Operation(
    name="dequantize",
    fill=fill,
    wrong=[
        Wrong("type", 2, "INVALID_ARGUMENT", "type = 2"),
        Wrong("rows", 0, "INVALID_ARGUMENT", "rows = 0"),
        Wrong("rows", 3, "INVALID_ARGUMENT", "weight_bytes = 288; a matrix of this type, layout and shape has 432"),
        Wrong("rows", 1 << 31, "UNSUPPORTED", "rows = 2147483648"),
        Wrong("columns", -256, "INVALID_ARGUMENT", "columns = -256"),
        Wrong("columns", 257, "INVALID_ARGUMENT", "columns = 257; it must be a multiple of 256"),
        Wrong("weight_bytes", 287, "INVALID_ARGUMENT", "weight_bytes = 287"),
        Wrong("weight_bytes", 1 << 40, "INVALID_ARGUMENT", "weights"),
        Wrong("weights", 0, "INVALID_ARGUMENT", "weights = 0"),
        Wrong("weights", 8, "MISALIGNED", "weights"),
        Wrong("y.address", 0, "INVALID_ARGUMENT", "y"),
        Wrong("y.address", 8, "MISALIGNED", "y"),
        Wrong("y.dtype", lib.SM120_E4M3, "UNSUPPORTED", "y.dtype"),
        Wrong("y.row_stride", 255, "INVALID_ARGUMENT", "y"),
        Wrong("y.row_stride", 258, "MISALIGNED", "y.row_stride"),
    ],
    refused={"w": (TypeError, "w is a str, not a QuantizedMatrix", (["w"], {}))},
    launch=launch,
    recorded=[Recorded("dequantize", "dequantize_.*", compute)],
)


def adversarial(rng: np.random.Generator, name: str, rows: int, columns: int) -> Bytes:
    """Return blocks of random bytes, of equal bytes, and with scales that are NaN, infinite, the largest, -0, tiny."""
    raw = rng.integers(0, 256, (rows, columns // BLOCKS[name].columns, BLOCKS[name].bytes), dtype=np.uint8)
    raw[0], raw[1], raw[2] = 0, 255, 127
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 65504, -65504, -0.0, 0, 6e-8, -6e-8], np.float16)
    for at in (BLOCKS[name].d, BLOCKS[name].dmin):
        if at >= 0:
            halves(raw, at)[3 : rows // 2] = rng.choice(special, (rows // 2 - 3, raw.shape[1]))
    return raw


def same(got: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Check that numbers have the same bits; any NaN equals any."""
    bits = {2: np.uint16, 4: np.uint32}[wanted.itemsize]
    is_nan = np.isnan(wanted.astype(np.float32))
    differ = np.argwhere(~is_nan & (got.view(bits) != wanted.view(bits)) | (is_nan != np.isnan(got.astype(np.float32))))
    assert differ.size == 0, (
        f"{len(differ)} differ, first {differ[0]}: {got[tuple(differ[0])]}, not {wanted[tuple(differ[0])]}"
    )


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("make", [random_blocks, adversarial])
def test_equals_gguf(device: pysm120.Device, rng: np.random.Generator, name: str, make: Any) -> None:
    """Rows around a tile; columns that do not fill a span, where the type allows that."""
    columns = 768 if BLOCKS[name].columns == 256 else 512 + BLOCKS[name].columns
    for rows in (1, 15, 16, 17) if make is random_blocks else (40,):
        raw = make(rng, name, rows, columns)
        got = QuantizedMatrix.from_gguf(raw, name, (rows, columns), device=device).dequantize().numpy()
        same(got, values(raw, name))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_dtypes_and_strides(device: pysm120.Device, rng: np.random.Generator, dtype: Any) -> None:
    """Results are rounded once; bytes beside the columns of a result stay."""
    raw = random_blocks(rng, "Q5_K", 9, 512)
    w = QuantizedMatrix.from_gguf(raw.tobytes(), "Q5_K", (9, 512), device=device)
    room = device.array(np.full((9, 528), np.nan, dtype))
    got = pysm120.dequantize(w, dtype, out=room[:, :512])
    with np.errstate(over="ignore"):
        same(got.numpy(), values(raw, "Q5_K").astype(dtype))
    assert np.isnan(room.numpy()[:, 512:].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"raw": bytes(143)}, ValueError, "raw has 143 bytes, but 1 x 256 of Q4_K have 144"),
        ({"raw": bytes(146)}, ValueError, "raw has 146 bytes"),
        ({"raw": np.zeros(144, np.int8)}, TypeError, "raw has dtype int8"),
        ({"raw": "blocks"}, TypeError, "raw is a str"),
        ({"type": "Q4_0"}, ValueError, "type is 'Q4_0', not one of"),
        ({"shape": (1, 128)}, ValueError, "columns = 128; it must be a multiple of 256"),
        ({"shape": (0, 256)}, ValueError, r"shape is \(0, 256\)"),
        ({"shape": 256}, TypeError, "shape is 256, not"),
        ({"layout": "tiled"}, ValueError, "layout is 'tiled', not one of"),
    ],
)
def test_wrong_blocks(device: pysm120.Device, change: dict[str, Any], kind: type[Exception], message: str) -> None:
    right: dict[str, Any] = {"raw": bytes(144), "type": "Q4_K", "shape": (1, 256)}
    with pytest.raises(kind, match=message):
        QuantizedMatrix.from_gguf(**{**right, **change}, device=device)


def test_wrong_calls(device: pysm120.Device) -> None:
    w = QuantizedMatrix.from_gguf(bytes(288), "Q4_K", (2, 256), device=device)
    for call, kind, message in [
        ({"dtype": np.int8}, TypeError, "dtype has dtype int8"),
        ({"out": np.zeros((2, 256), "f4")}, TypeError, "out is a ndarray, not an Array"),
        ({"out": device.empty((256, 2))}, ValueError, r"out has shape \(256, 2\), not \(2, 256\)"),
        ({"out": device.empty((2, 256), ml_dtypes.bfloat16)}, TypeError, "out has dtype bfloat16, not float32"),
    ]:
        with pytest.raises(kind, match=message):
            pysm120.dequantize(w, **call)  # type: ignore[arg-type]
    with pytest.raises(pysm120.UnsupportedError, match="w has layout 'packed'"):
        pysm120.repack(w).dequantize()
