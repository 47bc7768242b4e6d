"""Measure on a GPU what the timing model predicts: the clocks of loops, and launches of attention for a profiler."""

import re
import statistics
from typing import Any

import ml_dtypes
import numpy as np

from pysm120._attention_problem import Problem
from pysm120._loops import Loop
from pysm120.device import Device
from pysm120.errors import InvalidArgumentError
from pysm120.module import builtin_image, builtins

ROUNDS, LAUNCHES = 256, 5
_WORDS = 1 << 20  # of the buffer that a loop writes to and copies from
_NO_LOWER = -0x3FFFFFFF


def loop_clocks(device: Device, loop: Loop, image: bytes) -> tuple[float, float]:
    """Return the clocks of a round of a loop, one CTA on every SM: the median, and the spread over the launches."""
    kernel = device.load(image)["loop"]
    ctas = device.info.multiprocessors
    found = []
    for _ in range(LAUNCHES):
        out = device.zeros(_WORDS, np.uint64)
        kernel(ctas, 32 * loop.warps, out, np.uint32(ROUNDS))
        clocks = out.numpy()[: 3 * ctas * loop.warps].reshape(ctas, loop.warps, 3)
        per_cta = clocks[:, :, 1].max(axis=1) - clocks[:, :, 0].min(axis=1)
        found.append(float(np.median(per_cta)) / ROUNDS)
    return statistics.median(found), max(found) - min(found)


# ---- attention in 16 bits, entry by entry ---------------------------------------------------


def parameters_of(ptx: str, entry: str) -> list[str]:
    """Return the names of the parameters of an entry."""
    found = re.search(rf"\.entry {entry}\((.*?)\)", ptx, re.DOTALL)
    if found is None:
        message = f"the PTX has no entry {entry!r}"
        raise InvalidArgumentError(message)
    return re.findall(r"param_(\w+)", found[1])


class Attention:
    """One entry of the 16-bit forward kernel with a problem, ready to be launched."""

    def __init__(self, device: Device, entry: str, problem: Problem) -> None:
        index, builtin = next((i, b) for i, b in enumerate(builtins()) if b.entry == entry)
        kind, q_rows, kv_rows = re.findall(r"attention_(bf16|f16)_(\d+)x(\d+)_", entry)[0]
        dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bf16" else np.float16)
        shape = problem.batch, problem.heads, problem.rows, problem.head_dim
        rng = np.random.default_rng(1)
        arrays = [device.array(rng.standard_normal(shape, np.float32).astype(dtype)) for _ in range(3)]
        self.out = device.empty(shape, dtype)
        tiles = -(-problem.rows // int(q_rows))
        step = problem.head_dim * dtype.itemsize
        values: dict[str, Any] = {
            f"{name}_map": device.tensor_map(x, (1, 1, int(rows), 64), swizzle="128B", l2_promotion="256B")
            for name, x, rows in zip("qkv", arrays, (q_rows, kv_rows, kv_rows), strict=True)
        }
        values |= {
            "o": self.out,
            "lse": np.uint64(0),
            "o_batch_stride": np.int64(problem.heads * problem.rows * step),
            "o_head_stride": np.int64(problem.rows * step),
            "o_row_stride": np.int64(step),
            "broadcast": np.uint32(0),
            "heads": np.uint32(problem.heads),
            "kv_heads": np.uint32(problem.heads),
            "q_rows": np.uint32(problem.rows),
            "kv_rows": np.uint32(problem.rows),
            "head_dim": np.uint32(problem.head_dim),
            "q_tiles": np.uint32(tiles),
            "o_type": np.uint32(2 if kind == "bf16" else 1),
            "q_and": np.uint32(0xFFFFFFFF),
            "q_xor": np.uint32(0),
            "scale_log2": np.float32(problem.head_dim**-0.5 * 1.4426950408889634),
            "lower": np.int32(_NO_LOWER),
            "upper": np.int32(0 if problem.causal else 0x3FFFFFFF),
        }
        names = parameters_of(builtin_image(index, "sm_90", "ptx").decode(), entry)
        unknown = [name for name in names if name not in values]
        if unknown:
            message = f"{entry} has a parameter {unknown[0]} that this measurement does not know"
            raise InvalidArgumentError(message)
        self._kept = arrays
        self._arguments = [values[name] for name in names]
        self._kernel = device.builtin_kernels()[entry]
        self._grid = problem.batch * problem.heads * tiles
        self._builtin = builtin

    def launch(self) -> None:
        """Launch it."""
        self._kernel(self._grid, self._builtin.threads, *self._arguments, shared=self._builtin.shared_bytes)
