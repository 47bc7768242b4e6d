"""Time forward attention of small problems on a GPU: our kernels and PyTorch's back ends, in microseconds.

    python benchmarks/small.py [--runs 15] [--configs] [--only WORDS] [--json FILE]

Such problems do not fill the chip, so their time is a chain of latencies. Calls are captured in CUDA graphs of about
3 ms, whose replays are timed: no launch hides a kernel. Tensors rotate over 16 sets. All ways run in one process, one
after the other, on tensors of PyTorch. An empty kernel, timed the same way, says what a launch costs. With --configs,
every kernel that can compute a case is timed. "1 split" is the kernel whose CTAs have all keys of their rows.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chip
import ml_dtypes
import numpy as np
from attention import Clock
from decode import time_graph

import pysm120

EMPTY = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry empty() { ret; }
"""
SETS = 16
SPLITS_BYTES = 1 << 26  # of a workspace; splits of 16-bit kernels need less


class Case(NamedTuple):
    """Self-attention of one length."""

    batch: int
    rows: int
    heads: int
    head_dim: int
    causal: bool = False

    def __str__(self) -> str:
        return f"{', '.join(map(str, self[:4]))}{' causal' if self.causal else ''}"


CASES = [
    Case(1, 512, 8, 64),
    Case(1, 128, 8, 64),
    Case(2, 197, 12, 64),
    Case(8, 197, 12, 64),
    Case(1, 256, 32, 128),
    Case(1, 1024, 16, 128),
    Case(1, 512, 16, 64),
    Case(2, 512, 16, 64),
    Case(4, 512, 16, 64),
    Case(8, 512, 16, 64),
    Case(1, 512, 8, 64, causal=True),
    Case(1, 512, 8, 128),
    Case(1, 512, 32, 128),
    Case(1, 512, 32, 128, causal=True),
    Case(1, 1024, 32, 128),
    Case(1, 1024, 32, 128, causal=True),
    Case(1, 1024, 24, 128),
    Case(1, 3000, 24, 128),
    Case(16, 512, 16, 128),
    Case(1, 1500, 20, 64),
    Case(1, 4096, 32, 128),
    Case(4, 2048, 32, 128),
    Case(2, 2048, 16, 64),
    Case(2, 2048, 16, 64, causal=True),
]


def configs(case: Case) -> list[str]:
    """Return the configs that compute a case."""
    found = {
        x.config
        for x in pysm120.runtime.module.builtins()
        if x.operation == "attention" and x.precision == "bf16" and not x.features and x.head_dim == case.head_dim
    }
    return sorted(found)


def ours(
    device: pysm120.Device, torch: Any, sets: list[list[Any]], case: Case, precision: str, **options: Any
) -> list[Callable[[], object]]:
    """Return calls of pysm120 on sets of q, k, v and out, on PyTorch's current stream."""
    calls: list[Callable[[], object]] = []
    room = device.empty(SPLITS_BYTES, np.uint8)
    for tensors in sets:
        arrays = [x if isinstance(x, pysm120.Array) else device.from_dlpack(x) for x in tensors]

        def call(arrays: Any = arrays) -> object:
            q, k, v, out = arrays
            stream = torch.cuda.current_stream().cuda_stream
            rules = {"causal": case.causal, "precision": precision, **options}
            return pysm120.attention(q, k, v, out=out, stream=stream, workspace=room, **rules)

        calls.append(call)
    return calls


def theirs(torch: Any, backend: Any, sets: list[list[Any]], case: Case) -> list[Callable[[], object]]:
    """Return calls of one of PyTorch's back ends."""
    calls: list[Callable[[], object]] = []
    for tensors in sets:
        inputs = [x.transpose(1, 2) for x in tensors[:3]]

        def call(inputs: Any = inputs) -> object:
            with torch.nn.attention.sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=case.causal)

        calls.append(call)
    return calls


def error(torch: Any, tensors: list[Any], case: Case) -> float:
    """Return the relative error of out's first head against float64."""
    q, k, v, out = (x[0, :, 0].double() for x in tensors)
    scores = q @ k.T / case.head_dim**0.5
    if case.causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    exact = torch.softmax(scores, -1) @ v
    return float((out - exact).norm() / exact.norm())


def in_e4m3(device: pysm120.Device, torch: Any, shape: tuple[int, ...]) -> tuple[list[list[Any]], list[Any]]:
    """Return sets of q, k, v in e4m3 and out in bf16; and the first set as tensors of PyTorch."""
    sets: list[list[Any]] = []
    first: list[Any] = []
    for _ in range(SETS):
        narrow = [torch.randn(shape, device="cuda").to(torch.float8_e4m3fn) for _ in range(3)]
        out = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
        if not sets:
            first = [*(x.float() for x in narrow), out]
        codes = [x.view(torch.uint8).cpu().numpy().view(ml_dtypes.float8_e4m3fn) for x in narrow]
        sets.append([*(device.array(x) for x in codes), out])
    return sets, first


def measure(device: pysm120.Device, torch: Any, case: Case, runs: int, *, every_config: bool) -> dict[str, Any]:
    """Time one case in all ways."""
    shape = case.batch, case.rows, case.heads, case.head_dim
    sets, halves = (
        [[torch.randn(shape, device="cuda", dtype=dtype) for _ in range(4)] for _ in range(SETS)]
        for dtype in (torch.bfloat16, torch.float16)
    )
    bytes_, narrow = in_e4m3(device, torch, shape)
    torch.cuda.synchronize()
    kinds = torch.nn.attention.SDPBackend
    ways = {
        "bf16": ours(device, torch, sets, case, "bf16"),
        "bf16, 1 split": ours(device, torch, sets, case, "bf16", num_splits=1),
        "f16": ours(device, torch, halves, case, "f16"),
        "fp8": ours(device, torch, bytes_, case, "fp8"),
        "FlashAttention 2": theirs(torch, kinds.FLASH_ATTENTION, sets, case),
        "efficient": theirs(torch, kinds.EFFICIENT_ATTENTION, sets, case),
        "cuDNN": theirs(torch, kinds.CUDNN_ATTENTION, sets, case),
    }
    if every_config:
        ways |= {config: ours(device, torch, sets, case, "bf16", config=config) for config in configs(case)}
    result: dict[str, Any] = {"case": case, "name": str(case), "ways": {}, "errors": {}}
    clock = Clock()
    for name, calls in ways.items():
        with clock.sampled():
            times = [1e6 * s for s in time_graph(torch, calls, runs)]
        median = statistics.median(times)
        result["ways"][name] = {"median": median, "min": min(times), "max": max(times), "mhz": clock.samples}
        if calls and name not in ("FlashAttention 2", "efficient", "cuDNN"):
            checked = {"f16": halves[0], "fp8": narrow}.get(name, sets[0])
            result["errors"][name] = error(torch, checked, case)
    return result


def empty(device: pysm120.Device, torch: Any, runs: int) -> float:
    """Return the microseconds of a kernel that does nothing."""
    kernel = device.load(EMPTY)["empty"]

    def call() -> None:
        kernel(1, 32, stream=torch.cuda.current_stream().cuda_stream)

    return 1e6 * statistics.median(time_graph(torch, [call], runs))


def show(results: list[dict[str, Any]], floor: float) -> None:
    """Print the table."""
    names = list(dict.fromkeys(name for r in results for name in r["ways"]))
    print(f"microseconds, median (least-greatest); an empty kernel {floor:.2f}\n")
    print(f"| batch, rows, heads, head size | {' | '.join(names)} |")
    print("|---" * (len(names) + 1) + "|")
    for r in results:
        cells = []
        for name in names:
            x = r["ways"].get(name)
            cells.append("" if x is None else f"{x['median']:.1f} ({x['min']:.1f}-{x['max']:.1f})")
        print(f"| {r['name']} | {' | '.join(cells)} |")
    for is_narrow, what in ((False, "16 bits"), (True, "fp8")):
        largest = max(e for r in results for name, e in r["errors"].items() if (name == "fp8") == is_narrow)
        print(f"\nlargest error against float64 in {what}: {largest:.2%}")


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--configs", action="store_true", help="time every kernel that can compute a case")
    parser.add_argument("--only", default="", help="cases whose name contains these words")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415

    with pysm120.Device("cuda") as device:
        title = chip.title(device, f"PyTorch {torch.__version__}, small problems, forward")
        print(title)
        cases = [case for case in CASES if arguments.only in str(case)]
        results = [measure(device, torch, case, arguments.runs, every_config=arguments.configs) for case in cases]
        floor = empty(device, torch, arguments.runs)
        show(results, floor)
        if arguments.json:
            text = json.dumps({"title": title, "empty": floor, "results": results}, indent=1)
            arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
