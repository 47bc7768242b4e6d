"""The time of a precision on a GPU."""

import statistics
from typing import Any, NamedTuple

import numpy.typing as npt

from pysm120.ops.attention import attention
from pysm120.runtime.device import Device
from pysm120.runtime.timing import time_calls
from pysm120.study.errors import operands_of

RUNS = 7


class Measured(NamedTuple):
    """Seconds of a call: the median of several runs, and the fastest and slowest of them."""

    seconds: float
    least: float
    most: float


def measured(
    q: npt.NDArray[Any],
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    precision: str,
    *,
    causal: bool,
    scale: float | None,
    device: Device,
) -> Measured | None:
    """Return the time of attention with its quantisation of q, k and v (B, S, H, D), or None on the virtual device.

    q, k and v are bfloat16 on the device unless the precision has a dtype of its own. fp8 quantises nothing.
    """
    if device.is_virtual:
        return None
    given, scales = operands_of(q, k, v, precision, "bfloat16")
    arrays = [device.array(x) for x in given]
    there: dict[str, Any] = {name: device.array(x) for name, x in scales.items()}
    first = attention(arrays[0], arrays[1], arrays[2], precision=precision, causal=causal, scale=scale, **there)

    def call() -> object:
        return attention(
            arrays[0], arrays[1], arrays[2], precision=precision, causal=causal, scale=scale, out=first, **there
        )

    try:
        runs = time_calls(device, [call], RUNS)
    finally:
        for x in (*arrays, *there.values(), first):
            x.free()
    return Measured(statistics.median(runs), min(runs), max(runs))
