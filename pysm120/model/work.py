"""Launch a kernel of attention with a problem: a 16-bit kernel directly, the others through the library."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from pysm120.model.problem import BACKWARD, Problem
from pysm120.ops.attention import attention
from pysm120.ops.attention_backward import attention_backward
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin, Kernel, builtin_kernel, constants

_DRAWN = 1 << 20  # random numbers; larger arrays repeat them
_LOG2_E = 1.4426950408889634


def is_uniform(kernel: Builtin) -> bool:
    """Whether Attention can launch a kernel: it must be a 16-bit kernel for tensors of one length."""
    return kernel.operation == "attention" and kernel.precision in {"bf16", "f16"} and not kernel.features


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return normal random numbers."""
    return np.resize(rng.standard_normal(min(math.prod(shape), _DRAWN), np.float32), shape)


class Attention:
    """A 16-bit kernel for tensors of one length with a problem, ready to be launched.

    ``other``: PTX of another version of the kernel, used instead of the library's.
    """

    def __init__(self, device: Device, kernel: Builtin, problem: Problem, *, other: str | None = None) -> None:
        if other is None:
            self.kernel, self._threads = builtin_kernel(device, kernel.entry), kernel.threads
        else:
            self.kernel = device.load(other, name=kernel.entry)[kernel.entry]
            self._threads = self.kernel.info.max_threads
        self._shared = kernel.shared_bytes
        shared = constants()
        dtype = np.dtype(ml_dtypes.bfloat16 if kernel.precision == "bf16" else np.float16)
        shape, *keys = (
            (problem.batch, problem.heads, rows, problem.head_dim)
            for rows in (problem.q_rows, problem.rows, problem.rows)
        )
        rng = np.random.default_rng(1)
        arrays = [device.array(_normal(rng, one).astype(dtype)) for one in (shape, *keys)]
        self.out = device.empty(shape, dtype)
        tiles = -(-problem.q_rows // kernel.q_rows)
        step = problem.head_dim * dtype.itemsize
        boxes = (kernel.q_rows, kernel.kv_rows, kernel.kv_rows)
        values: dict[str, Any] = {
            f"{name}_map": device.tensor_map(x, (1, 1, rows, 64), swizzle="128B", l2_promotion="256B")
            for name, x, rows in zip("qkv", arrays, boxes, strict=True)
        }
        values |= {
            "o": self.out,
            "lse": np.uint64(0),
            "o_batch_stride": np.int64(problem.heads * problem.q_rows * step),
            "o_head_stride": np.int64(problem.q_rows * step),
            "o_row_stride": np.int64(step),
            "broadcast": np.uint32(0),
            "heads": np.uint32(problem.heads),
            "kv_heads": np.uint32(problem.heads),
            "q_rows": np.uint32(problem.q_rows),
            "kv_rows": np.uint32(problem.rows),
            "head_dim": np.uint32(problem.head_dim),
            "q_tiles": np.uint32(tiles),
            "o_type": np.uint32(shared[f"ATTENTION_O_{kernel.precision.upper()}"]),
            "q_and": np.uint32(0xFFFFFFFF),
            "q_xor": np.uint32(0),
            "scale_log2": np.float32(problem.head_dim**-0.5 * _LOG2_E),
            "lower": np.int32(-shared["ATTENTION_FAR"]),
            "upper": np.int32(0 if problem.causal else shared["ATTENTION_FAR"]),
            "split_o": np.uint64(0),
            "split_lse": np.uint64(0),
            "first_split": np.uint32(problem.batch * problem.heads * tiles),
            "splits": np.uint32(1),
            "whole_tiles": np.uint32(0),
        }
        self._kept = arrays
        self._arguments = self.kernel.by_name(values)
        self._grid = problem.batch * problem.heads * tiles

    def launch(self) -> None:
        """Launch it."""
        self.kernel(self._grid, self._threads, *self._arguments, shared=self._shared)


def of_library(device: Device, kernel: Builtin, problem: Problem) -> tuple[Kernel, Callable[[], object]]:
    """Return a kernel of the library, and a function that launches it; in MXFP8, after quantisation."""
    if is_uniform(kernel):
        work = Attention(device, kernel, problem)
        return work.kernel, work.launch
    if kernel.operation == BACKWARD:
        return builtin_kernel(device, kernel.entry), of_backward(device, kernel, problem)
    if kernel.operation != "attention":
        message = f"the kernel is {kernel.entry!r}, which is not a kernel of attention"
        raise InvalidArgumentError(message)
    dtype = np.dtype(np.float16 if kernel.precision in {"f16", "mxfp8", "mxfp8_f16"} else ml_dtypes.bfloat16)
    dtype = np.dtype(ml_dtypes.float8_e4m3fn) if kernel.precision == "fp8" else dtype
    rng, shape = np.random.default_rng(1), (problem.batch, problem.q_rows, problem.heads, problem.head_dim)
    keys = (problem.batch, problem.rows, problem.groups, problem.head_dim)
    q, k, v = (device.array(_normal(rng, one).astype(dtype)) for one in (shape, keys, keys))
    # kv_lengths makes the library use the kernel with features, although all lengths are full.
    lengths = device.array(np.full(problem.batch, problem.rows, np.int32)) if kernel.features else None
    call = partial(
        attention, q, k, v, causal=problem.causal, kv_lengths=lengths, precision=kernel.precision, device=device,
        config=kernel.config, num_splits=1,
    )  # fmt: skip
    return builtin_kernel(device, kernel.entry), call


def of_backward(device: Device, kernel: Builtin, problem: Problem) -> Callable[[], object]:
    """Return a function that runs the whole backward pass of a main kernel."""
    dtype, rng = np.dtype(ml_dtypes.bfloat16 if kernel.precision == "bf16" else np.float16), np.random.default_rng(1)
    shapes = [(problem.batch, problem.rows, heads, problem.head_dim) for heads in (problem.heads, problem.groups)]
    q, k, v, dout, out = (device.array(_normal(rng, shapes[n]).astype(dtype)) for n in (0, 1, 1, 0, 0))
    # P is 2^(S - LSE): an LSE above all scores keeps it small.
    lse = device.array(np.full((problem.batch, problem.heads, problem.rows), 8, np.float32))
    dq, dk, dv = (device.empty(shapes[n], dtype) for n in (0, 1, 1))
    return partial(
        attention_backward, dout, q, k, v, out, lse, causal=problem.causal, precision=kernel.precision, dq=dq, dk=dk,
        dv=dv,
    )  # fmt: skip
