"""merge_states: its row for the tests of all operations."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from harness import DTYPES, lib
from kernels import Recorded
from operations import Operation, Wrong

import pysm120

STATES, BATCH, HEADS, ROWS, D = 3, 2, 2, 5, 20
PART = 1 << 15
Array = np.ndarray[Any, Any]


def fill(args: Any, memory: int) -> None:
    """Fill arguments for f32: four arrays one behind the other."""
    args.states, args.batch, args.heads, args.rows, args.head_dim = STATES, BATCH, HEADS, ROWS, D
    for n, struct in enumerate((args.outs, args.o)):
        struct.address, struct.dtype = memory + n * PART, lib.SM120_F32
        struct.batch_stride, struct.head_stride, struct.row_stride = HEADS * ROWS * D, ROWS * D, D
    args.lses, args.lse = memory + 2 * PART, memory + 3 * PART


def launch(device: pysm120.Device) -> None:
    """Every dtype."""
    for dtype in (np.float32, *DTYPES.values()):
        pysm120.merge_states(np.ones((2, 1, 3, 1, 8), dtype), np.zeros((2, 1, 1, 3), np.float32), device=device)


def recorded() -> Iterator[Recorded]:
    """A problem of each dtype."""
    for name, dtype in {"f32": np.dtype(np.float32), "f16": DTYPES["float16"], "bf16": DTYPES["bfloat16"]}.items():

        def compute(device: pysm120.Device, rng: np.random.Generator, dtype: Any = dtype) -> Array:
            """The output and LSE."""
            outs = rng.standard_normal((11, 2, 5, 3, 72)).astype(dtype)
            lses = (4 * rng.standard_normal((11, 2, 3, 5))).astype(np.float32)
            lses[rng.random(lses.shape) < 0.2] = -np.inf
            out, lse = pysm120.merge_states(outs, lses, out_dtype=np.float32, device=device)
            return np.concatenate([out.ravel(), lse.ravel()])

        yield Recorded(f"merge_states {name}", f"merge_states_{name}", compute, is_exact=False)


def ones(*shape: int, dtype: Any = np.float32) -> Array:
    return np.ones(shape, dtype)


RIGHT = (ones(2, 1, 3, 4, 8), ones(2, 1, 4, 3))
PY_WRONG: dict[str, tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = {
    "rank of outs": (ValueError, r"outs has shape \(1, 3, 4, 8\)", (ones(1, 3, 4, 8), RIGHT[1]), {}),
    "states of lses": (ValueError, r"lses has shape \(3, 1, 4, 3\)", (RIGHT[0], ones(3, 1, 4, 3)), {}),
    "rows of lses": (ValueError, r"lses has shape \(2, 1, 3, 4\)", (RIGHT[0], ones(2, 1, 3, 4)), {}),
    "dtype of outs": (TypeError, "outs has dtype float64", (ones(2, 1, 3, 4, 8, dtype="f8"), RIGHT[1]), {}),
    "dtype of lses": (TypeError, "lses has dtype complex64", (RIGHT[0], ones(2, 1, 4, 3, dtype="c8")), {}),
    "sinks": (ValueError, r"sinks has shape \(3,\)", RIGHT, {"sinks": ones(3)}),
    "out": (ValueError, r"out has shape \(1, 4, 3, 8\)", RIGHT, {"out": ones(1, 4, 3, 8)}),
}

OPERATION = Operation(
    name="merge_states",
    fill=fill,
    wrong=[
        Wrong("reserved", 1, "INVALID_ARGUMENT", "reserved = 1"),
        Wrong("states", 0, "INVALID_ARGUMENT", "states = 0"),
        Wrong("states", 1 << 40, "UNSUPPORTED", "states"),
        Wrong("batch", 65536, "UNSUPPORTED", "batch = 65536"),
        Wrong("heads", 0, "INVALID_ARGUMENT", "heads = 0"),
        Wrong("rows", 0, "INVALID_ARGUMENT", "rows = 0"),
        Wrong("head_dim", 0, "INVALID_ARGUMENT", "head_dim = 0"),
        Wrong("outs.dtype", lib.SM120_E4M3, "UNSUPPORTED", "outs.dtype"),
        Wrong("outs.address", 0, "INVALID_ARGUMENT", "outs.address = 0"),
        Wrong("outs.row_stride", 0, "INVALID_ARGUMENT", "outs.row_stride = 0"),
        Wrong("o.dtype", 0, "INVALID_ARGUMENT", "o.dtype"),
        Wrong("o.address", 2, "MISALIGNED", "o.address"),
        Wrong("o.row_stride", 4, "INVALID_ARGUMENT", "overlap"),
        Wrong("lses", 0, "INVALID_ARGUMENT", "lses = 0"),
        Wrong("lses", 2, "MISALIGNED", "lses"),
        Wrong("lse", 2, "MISALIGNED", "lse"),
        Wrong("sinks", 2, "MISALIGNED", "sinks"),
    ],
    refused={what: (kind, message, (given, options)) for what, (kind, message, given, options) in PY_WRONG.items()},
    launch=launch,
    recorded=tuple(recorded()),
)
