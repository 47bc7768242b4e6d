"""Time kv_cache_append and kv_cache_gather on a GPU, beside a copy of as many bytes and an empty launch.

    python benchmarks/kv_cache.py [--runs 15] [--json FILE]

Prefill: 16,384 tokens, 8 heads, head size 128, pages of 16 in any order. TB/s count what is read and written; the copy
is PyTorch's. Decoding: one token of each of 64 sequences; microseconds, beside a kernel that does nothing. Calls are
captured in CUDA graphs; buffers rotate past the L2.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chip
import numpy as np
from attention import L2_TIMES
from decode import ELEMENT_BYTES, Case, caches_of, time_graph

import pysm120

EMPTY = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry empty()
{
    ret;
}
"""
HEADS, COLUMNS, PAGE, PREFILL, SEQUENCES = 8, 128, 16, 16384, 64


def rotated(calls: list[Callable[[], object]], torch: Any, runs: int) -> float:
    """Return the median seconds of a call."""
    return statistics.median(time_graph(torch, calls, runs))


def calls_of(
    device: pysm120.Device, torch: Any, cache: str, tokens: int, *, gathers: bool
) -> list[Callable[[], object]]:
    """Return calls that append or gather `tokens` tokens at random places, each with buffers of its own."""
    nbytes = 2 * tokens * HEADS * COLUMNS * (2 + ELEMENT_BYTES[cache])
    calls: list[Callable[[], object]] = []
    for _ in range(min(max(2, -(-L2_TIMES * device.info.l2_bytes // int(nbytes))), 16)):
        pages = torch.zeros((tokens * 4 // PAGE, PAGE, HEADS, COLUMNS), device="cuda", dtype=torch.bfloat16)
        k_cache, v_cache = caches_of(
            device, Case(1, 1, cache=cache), *(device.from_dlpack(pages.clone()) for _ in "kv")
        )
        slots = device.array(np.random.default_rng(0).permutation(tokens * 4)[:tokens])
        dense = torch.randn((2, tokens, HEADS, COLUMNS), device="cuda", dtype=torch.bfloat16)
        torch.cuda.synchronize()
        k, v = (device.from_dlpack(x) for x in dense)

        def call(arrays: Any = (k, v, k_cache, v_cache, slots)) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            k, v, k_cache, v_cache, slots = arrays
            if gathers:
                pysm120.kv_cache_gather(k_cache, v_cache, slots, k=k, v=v, stream=stream)
            else:
                pysm120.kv_cache_append(k, v, k_cache, v_cache, slots, stream=stream)

        calls.append(call)
    return calls


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415

    with pysm120.Device("cuda") as device:
        title = chip.title(device, f"PyTorch {torch.__version__}, copies to a cache")
        empty = device.load(EMPTY)["empty"]
        nothing = rotated(
            [lambda: empty(1, 128, stream=torch.cuda.current_stream().cuda_stream)], torch, arguments.runs
        )
        print(f"{title}\nan empty launch: {1e6 * nothing:.2f} us\n")
        print("| cache | append, TB/s | gather, TB/s | copy, TB/s | append of 64 tokens, us |\n|---|---|---|---|---|")
        rows = []
        for cache, element in ELEMENT_BYTES.items():
            nbytes = 2 * PREFILL * HEADS * COLUMNS * (2 + element)
            halves = [torch.empty((2, int(nbytes) // 4), dtype=torch.int16, device="cuda") for _ in range(4)]
            copies: list[Callable[[], object]] = [lambda x=x: x[0].copy_(x[1]) for x in halves]  # type: ignore[misc]
            seconds = {
                name: rotated(calls_of(device, torch, cache, count, gathers=name == "gather"), torch, arguments.runs)
                for name, count in (("append", PREFILL), ("gather", PREFILL), ("decode", SEQUENCES))
            }
            copy = nbytes / rotated(copies, torch, arguments.runs) / 1e12
            rates = {name: nbytes / seconds[name] / 1e12 for name in ("append", "gather")}
            rows.append({"cache": cache, "copy": copy, "decode_us": 1e6 * seconds["decode"], **rates})
            cells = [rates["append"], rates["gather"], copy, 1e6 * seconds["decode"]]
            print(f"| {cache} | {' | '.join(f'{x:.2f}' for x in cells)} |", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"title": title, "empty": nothing, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
