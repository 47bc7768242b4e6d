"""Time mxfp8 attention on the virtual SM120 beside NumPy's own float32 attention, turn by turn in one run.

    python benchmarks/virtual.py [--runs 9]

Both use all cores they are given. The ratio is what counts: the machine's speed drifts, so each pair is timed together.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import pysm120

BATCH, HEADS, ROWS, HEAD_DIM = 1, 8, 1024, 128


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention in float32, [H, S, D]."""
    s = q @ k.transpose(0, 2, 1)
    s *= np.float32(HEAD_DIM**-0.5)
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(-1, keepdims=True)
    o: np.ndarray = s @ v
    return o


def timed(action: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    """Print medians, their spread and the ratio."""
    parser = argparse.ArgumentParser(description="Speed of the virtual SM120 against NumPy.")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((BATCH, HEADS, ROWS, HEAD_DIM), np.float32) for _ in range(3))
    device = pysm120.Device("virtual")
    arrays = [device.array(x) for x in (q, k, v)]

    def virtual() -> None:
        pysm120.attention(*arrays, layout="BHSD", precision="mxfp8")
        device.synchronize()

    def reference() -> None:
        numpy_attention(q[0], k[0], v[0])

    virtual()
    reference()
    pairs = [(timed(virtual), timed(reference)) for _ in range(arguments.runs)]
    ours, numpys = zip(*pairs, strict=True)
    ratios = [a / b for a, b in pairs]
    figures = {
        "shape": f"B {BATCH}, H {HEADS}, S {ROWS}, D {HEAD_DIM}",
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.machine(),
        "virtual_seconds": statistics.median(ours),
        "numpy_seconds": statistics.median(numpys),
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }
    for name, value in figures.items():
        print(f"{name:16} {value if not isinstance(value, float) else f'{value:.4g}'}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
