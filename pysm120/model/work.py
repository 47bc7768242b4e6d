"""Launch a kernel of attention with a problem: one of 16 bits by its own parameters, the others as the library does."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from pysm120.model.problem import Problem
from pysm120.ops.attention import attention
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Kernel, builtin_image, builtins

UNIFORM = re.compile(r"attention_(bf16|f16)_\d+x\d+_d\d+_[rw]\d+$")
_PRECISION = re.compile(r"attention_(mxfp8_bf16|mxfp8_f16|mxfp8|bf16|f16)_")
_CONFIG = re.compile(r"_([rw]\d+)$")
_DRAWN = 1 << 20  # random numbers, which repeat in larger arrays
_NO_LOWER = -0x3FFFFFFF


def parameters_of(ptx: str, entry: str) -> list[str]:
    """Return the names of the parameters of an entry."""
    found = re.search(rf"\.entry {entry}\((.*?)\)", ptx, re.DOTALL)
    if found is None:
        message = f"the PTX has no entry {entry!r}"
        raise InvalidArgumentError(message)
    return re.findall(r"param_(\w+)", found[1])


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return normal random numbers."""
    return np.resize(rng.standard_normal(min(math.prod(shape), _DRAWN), np.float32), shape)


class Attention:
    """One entry of the 16-bit forward kernel with a problem, ready to be launched.

    ``other``: another version than the library's, of this PTX and with so many bytes of dynamic shared memory.
    """

    def __init__(self, device: Device, entry: str, problem: Problem, *, other: tuple[str, int] | None = None) -> None:
        if other is not None:
            ptx, self._shared = other
            self.kernel = device.load(ptx, name=entry)[entry]
        else:
            index, builtin = next((i, b) for i, b in enumerate(builtins()) if b.entry == entry)
            ptx, self._shared = builtin_image(index, "sm_90", "ptx").decode(), builtin.shared_bytes
            self.kernel = device.builtin_kernels()[entry]
        kind, q_rows, kv_rows = re.findall(r"attention_(bf16|f16)_(\d+)x(\d+)_", entry)[0]
        dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bf16" else np.float16)
        shape = problem.batch, problem.heads, problem.rows, problem.head_dim
        rng = np.random.default_rng(1)
        arrays = [device.array(_normal(rng, shape).astype(dtype)) for _ in range(3)]
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
        names = parameters_of(ptx, entry)
        self._threads = int(
            re.findall(rf"\.entry {entry}\(.*?\)\s*(?:#line[^\n]*\s*)?\.reqntid (\d+)", ptx, re.DOTALL)[0]
        )
        unknown = [name for name in names if name not in values]
        if unknown:
            message = f"{entry} has a parameter {unknown[0]} that this measurement does not know"
            raise InvalidArgumentError(message)
        self._kept = arrays
        self._arguments = [values[name] for name in names]
        self._grid = problem.batch * problem.heads * tiles

    def launch(self) -> None:
        """Launch it."""
        self.kernel(self._grid, self._threads, *self._arguments, shared=self._shared)


def of_library(device: Device, entry: str, problem: Problem) -> tuple[Kernel, Callable[[], object]]:
    """Return a kernel of the library, and what launches it; of MXFP8, quantisation before it."""
    if UNIFORM.match(entry):
        work = Attention(device, entry, problem)
        return work.kernel, work.launch
    found = _PRECISION.match(entry)
    if found is None:
        message = f"the kernel is {entry!r}, not one of attention"
        raise InvalidArgumentError(message)
    dtype = np.dtype(ml_dtypes.bfloat16 if "bf16" in found[1] else np.float16)
    rng, shape = np.random.default_rng(1), (problem.batch, problem.rows, problem.heads, problem.head_dim)
    q, k, v = (device.array(_normal(rng, shape).astype(dtype)) for _ in range(3))
    # Lengths of their own, though all are whole: with them the library takes the kernel with features.
    lengths = device.array(np.full(problem.batch, problem.rows, np.int32)) if "_any" in entry else None
    config = _CONFIG.search(entry)
    call = partial(
        attention, q, k, v, causal=problem.causal, kv_lengths=lengths, precision=found[1], device=device,
        config=config[1] if config else None,
    )  # fmt: skip
    return device.builtin_kernels()[entry], call
