"""Time the features of forward attention on a GPU, compared with the plain call.

    python benchmarks/features.py [--runs 15] [--head-size 128] [--json FILE]

Batch 4, 2048 rows, 32 heads, bf16; rotating buffers are larger than the L2. FLOPs count only visible scores, so that
work saved by a mask does not count as speed; `beside plain` is the rate relative to the plain kernel in this run. Cases
take turns: each figure is the median of runs spread over the whole measurement, with minimum and maximum.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chip
import ml_dtypes
import numpy as np
from attention import L2_TIMES, time_calls

import pysm120

BATCH, ROWS, HEADS = 4, 2048, 32
SQUARE, TRIANGLE = ROWS * ROWS, ROWS * (ROWS + 1) // 2
WINDOW, SEEN = 256, 0.9


def cases(device: pysm120.Device, rng: np.random.Generator) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return, by name, the scores that a head sees and the arguments of a call."""
    f32 = np.float32
    lengths = rng.integers(ROWS // 4, ROWS, BATCH, dtype=np.int32)
    banded = TRIANGLE - (ROWS - WINDOW) * (ROWS - WINDOW + 1) // 2
    sees = rng.random((1, 1, ROWS, ROWS)) < SEEN
    return {
        "plain": (SQUARE, {}),
        "plain, f16": (SQUARE, {"precision": "f16"}),
        "causal": (TRIANGLE, {"causal": True}),
        f"window ({WINDOW - 1}, 0)": (banded, {"window": (WINDOW - 1, 0)}),
        "softcap 30": (SQUARE, {"softcap": 30.0}),
        "sinks": (SQUARE, {"sinks": device.array(rng.standard_normal(HEADS, f32))}),
        "ALiBi, causal": (
            TRIANGLE,
            {"causal": True, "alibi_slopes": device.array(0.5 ** rng.uniform(1, 8, HEADS).astype(f32))},
        ),
        "bias, f32 of all heads": (SQUARE, {"mask": device.array(rng.standard_normal((1, 1, ROWS, ROWS), f32))}),
        "mask, bool of all heads": (SQUARE, {"mask": device.array(sees)}),
        "key lengths": (int(lengths.sum()) * ROWS // BATCH, {"kv_lengths": device.array(lengths)}),
    }


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with pysm120.Device("cuda") as device:
        title = chip.title(device, f"head size {arguments.head_size}")
        print(title)
        rng = np.random.default_rng()
        shape = (BATCH, ROWS, HEADS, arguments.head_size)
        count = max(2, -(-L2_TIMES * device.info.l2_bytes // (4 * 2 * int(np.prod(shape)))))

        def sets(dtype: Any) -> list[list[pysm120.Array]]:
            x = [
                [device.array(rng.standard_normal(shape, np.float32).astype(dtype)) for _ in range(3)]
                for _ in range(count)
            ]
            return [[*s, device.empty(shape, dtype)] for s in x]

        tensors = {"bf16": sets(ml_dtypes.bfloat16), "f16": sets(np.float16)}
        calls: dict[str, list[Callable[[], object]]] = {}
        asked = cases(device, rng)
        for name, (_, options) in asked.items():
            given = {"precision": "bf16", **options}
            faces = tensors[given["precision"]]
            calls[name] = [lambda f=f, g=given: pysm120.attention(*f[:3], out=f[3], **g) for f in faces]  # type: ignore[misc]
        rates: dict[str, list[float]] = {name: [] for name in asked}
        for _ in range(arguments.runs):
            for name, (pairs, _) in asked.items():
                (seconds,) = time_calls(device, calls[name], 1)
                rates[name].append(4 * BATCH * HEADS * pairs * arguments.head_size / seconds / 1e12)
        plain = statistics.median(rates["plain"])
        print("| | TFLOP/s | beside plain |\n|---|---|---|")
        for name, figures in rates.items():
            middle = statistics.median(figures)
            print(
                f"| {name} | {middle:.0f} ({min(figures):.0f} to {max(figures):.0f}) | {100 * middle / plain:.0f} % |"
            )
        if arguments.json:
            arguments.json.write_text(json.dumps({"title": title, "tflops": rates}, indent=1) + "\n")


if __name__ == "__main__":
    main()
