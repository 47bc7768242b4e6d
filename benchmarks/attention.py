"""Time forward attention on a GPU: our kernels, and PyTorch's FlashAttention 2, efficient and cuDNN back ends.

    python benchmarks/attention.py [--runs 15] [--json FILE] [--plot FILE.png]

All candidates run in turn in one process, on tensors of PyTorch, with rotating buffers larger than the L2. Figures are
medians of runs of about 3 ms, with minimum and maximum. A probe measures the ceiling of mma.sync on this chip in this
run; its sums prove how many products it made. The clock is sampled while each case runs.
"""

import argparse
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import chip
import ml_dtypes
import numpy as np

import pysm120

# batch, rows, heads, head size, causal
CASES = [
    (4, 2048, 32, 128, False),
    (1, 4096, 32, 128, False),
    (1, 16384, 32, 128, False),
    (4, 2048, 32, 128, True),
    (1, 4096, 32, 128, True),
    (1, 512, 32, 128, False),
    (4, 2048, 32, 64, False),
    (4, 2048, 32, 64, True),
]
WARM_SECONDS, RUN_SECONDS, L2_TIMES = 0.1, 0.003, 4

# Eight warps of a CTA multiply ones into 8 accumulators each, `rounds` times.
PROBE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry probe(.param .u64 param_out, .param .u32 param_rounds)
{
    .reg .b32 a, rounds, tid, cta;
    .reg .b64 out, offset;
    .reg .f32 acc_<32>;
    .reg .pred more;
    ld.param.u64            out, [param_out];
    ld.param.u32            rounds, [param_rounds];
    mov.b32                 a, 0x3f803f80;
INIT
again:
LOOP
    sub.u32                 rounds, rounds, 1;
    setp.ne.u32             more, rounds, 0;
@more bra                   again;
SUM
    mov.u32                 tid, %tid.x;
    mov.u32                 cta, %ctaid.x;
    mad.lo.u32              tid, cta, 256, tid;
    mul.wide.u32            offset, tid, 4;
    add.u64                 out, out, offset;
    st.global.f32           [out], acc_0;
    ret;
}
"""
MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


class Figure(NamedTuple):
    """TFLOP/s of one case by one implementation, over its runs."""

    name: str
    rates: list[float]

    @property
    def median(self) -> float:
        """Return the figure to quote."""
        return statistics.median(self.rates)


class Clock:
    """Samples the clock of the multiprocessors, in MHz."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.done = threading.Event()

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample until the block ends."""
        self.samples, self.done = [], threading.Event()
        thread = threading.Thread(target=self.sample)
        thread.start()
        try:
            yield
        finally:
            self.done.set()
            thread.join()

    def sample(self) -> None:
        """Query nvidia-smi repeatedly."""
        command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
        while not self.done.wait(0.05):
            answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
            self.samples += [int(x) for x in answer[:1] if x.isdigit()]


def time_calls(device: pysm120.Device, calls: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """Return seconds per call of each run; calls rotate through their buffers."""
    start, end = device.event(), device.event()

    def run(count: int) -> float:
        start.record()
        for n in range(count):
            calls[n % len(calls)]()
        end.record()
        end.synchronize()
        return end.elapsed_since(start) / 1e3 / count

    each = run(len(calls))
    run(max(1, int(WARM_SECONDS / each)))
    each = run(len(calls))
    return [run(max(1, int(RUN_SECONDS / each))) for _ in range(runs)]


def ceiling(device: pysm120.Device, runs: int) -> Figure:
    """Return the rate of mma.sync with operands in registers."""
    rounds, ctas = 20000, 2 * device.info.multiprocessors
    acc = [", ".join(f"acc_{4 * n + i}" for i in range(4)) for n in range(8)]
    text = (
        PROBE.replace("INIT", "\n".join(f"    mov.f32 acc_{i}, 0f00000000;" for i in range(32)))
        .replace("LOOP", "\n".join(f"    {MMA} {{{r}}}, {{a, a, a, a}}, {{a, a}}, {{{r}}};" for r in acc))
        .replace("SUM", "\n".join(f"    add.f32 acc_0, acc_0, acc_{i};" for i in range(1, 32)))
    )
    kernel = device.load(text)["probe"]
    out = device.empty((ctas, 256), np.float32)
    calls = [lambda: kernel(ctas, 256, out, np.uint32(rounds))]
    seconds = time_calls(device, calls, runs)
    if not np.all(out.numpy() == 32 * 16 * rounds):
        message = "the number of products that the probe made differs from the number that was timed"
        raise RuntimeError(message)
    flops = ctas * 8 * rounds * 8 * 2 * 16 * 8 * 16
    return Figure("mma.sync bf16", [flops / s / 1e12 for s in seconds])


def ours(device: pysm120.Device, sets: list[list[Any]], *, causal: bool) -> list[Callable[[], object]]:
    """Return calls of pysm120 on sets of q, k, v and out."""
    faces = [[device.from_dlpack(x) for x in s] for s in sets]
    return [
        lambda f=f: pysm120.attention(*f[:3], out=f[3], causal=causal, precision="bf16")  # type: ignore[misc]
        for f in faces
    ]


def theirs(torch: Any, backend: Any, sets: list[list[Any]], *, causal: bool) -> list[Callable[[], object]]:
    """Return calls of one of PyTorch's back ends."""
    attention = torch.nn.functional.scaled_dot_product_attention

    def call(s: list[Any]) -> None:
        with torch.nn.attention.sdpa_kernel(backend):
            attention(*(x.transpose(1, 2) for x in s[:3]), is_causal=causal)

    return [lambda s=s: call(s) for s in sets]  # type: ignore[misc]


def error(torch: Any, s: list[Any], *, causal: bool) -> float:
    """Return the relative error of out for the last rows of one head, against float64."""
    q, k, v, out = (x[0, :, 0].double() for x in s)
    first = max(0, q.shape[0] - 256)
    scores = q[first:] @ k.T / q.shape[1] ** 0.5
    if causal:
        rows = torch.arange(first, q.shape[0], device=q.device)[:, None]
        scores = scores.masked_fill(torch.arange(k.shape[0], device=q.device)[None] > rows, -torch.inf)
    exact = torch.softmax(scores, -1) @ v
    return float((out[first:] - exact).norm() / exact.norm())


def measure(device: pysm120.Device, torch: Any, case: tuple[int, int, int, int, bool], runs: int) -> dict[str, Any]:
    """Time one case with all implementations."""
    batch, rows, heads, head_dim, causal = case
    flops = 4 * batch * heads * rows * rows * head_dim / (2 if causal else 1)
    shape = (batch, rows, heads, head_dim)
    nbytes = 4 * 2 * int(np.prod(shape))
    count = max(2, -(-L2_TIMES * device.info.l2_bytes // nbytes))
    sets = [[torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)] for _ in range(min(count, 16))]
    torch.cuda.synchronize()
    kinds = torch.nn.attention.SDPBackend
    ways = {
        "pysm120": ours(device, sets, causal=causal),
        "FlashAttention 2": theirs(torch, kinds.FLASH_ATTENTION, sets, causal=causal),
        "efficient": theirs(torch, kinds.EFFICIENT_ATTENTION, sets, causal=causal),
        "cuDNN (wgmma)": theirs(torch, kinds.CUDNN_ATTENTION, sets, causal=causal),
    }
    clock = Clock()
    result: dict[str, Any] = {"case": case, "ways": {}}
    for name, calls in ways.items():
        with clock.sampled():
            rates = [flops / s / 1e12 for s in time_calls(device, calls, runs)]
        figure = Figure(name, rates)
        result["ways"][name] = {"median": figure.median, "min": min(rates), "max": max(rates), "mhz": clock.samples}
    result["error"] = error(torch, sets[0], causal=causal)
    return result


def host_seconds(device: pysm120.Device, runs: int) -> float:
    """Return the host's time for a call from Python that takes the GPU almost no time."""
    x = [device.zeros((1, 16, 1, 64), ml_dtypes.bfloat16) for _ in range(4)]
    seconds = []
    for _ in range(runs):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            pysm120.attention(x[0], x[1], x[2], out=x[3], precision="bf16")
        seconds.append((time.perf_counter() - start) / 100)
    return statistics.median(seconds)


def show(results: list[dict[str, Any]], top: float) -> None:
    """Print the table."""
    print(f"mma.sync bf16 ceiling in this run: {top:.0f} TFLOP/s")
    print("TFLOP/s, median (least-greatest); share: of the ceiling; ratio: to FlashAttention 2\n")
    print("| batch, rows, heads, head size | pysm120 | share | ratio | FA 2 | efficient | cuDNN (wgmma) | MHz |")
    print("|---|---|---|---|---|---|---|---|")
    for r in results:
        w = r["ways"]
        text = {n: f"{x['median']:.0f} ({x['min']:.0f}-{x['max']:.0f})" for n, x in w.items()}
        own = w["pysm120"]["median"]
        mhz = statistics.median(w["pysm120"]["mhz"]) if w["pysm120"]["mhz"] else float("nan")
        print(
            f"| {', '.join(map(str, r['case'][:4]))}{' causal' if r['case'][4] else ''} | {text['pysm120']} "
            f"| {own / top:.0%} | {own / w['FlashAttention 2']['median']:.2f} | {text['FlashAttention 2']} "
            f"| {text['efficient']} | {text['cuDNN (wgmma)']} | {mhz:.0f} |"
        )
    print(f"\nlargest error against float64: {max(r['error'] for r in results):.2%}")


def plot(results: list[dict[str, Any]], top: float, path: Path, title: str) -> None:
    """Draw the table."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(11, 4.5))
    names = list(results[0]["ways"])
    for n, name in enumerate(names):
        at = [i + 0.2 * (n - 1.5) for i in range(len(results))]
        bars = [r["ways"][name]["median"] for r in results]
        low = [r["ways"][name]["median"] - r["ways"][name]["min"] for r in results]
        high = [r["ways"][name]["max"] - r["ways"][name]["median"] for r in results]
        axes.bar(at, bars, 0.19, yerr=[low, high], label=name, error_kw={"lw": 0.8})
    axes.axhline(top, color="black", lw=0.8, ls="--", label="mma.sync ceiling")
    words = ["{}x{}x{}\nd {}{}".format(*r["case"][:4], "\ncausal" if r["case"][4] else "") for r in results]
    axes.set_xticks(range(len(results)), words, fontsize=8)
    axes.set_ylabel("TFLOP/s")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, ncols=5)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415

    with pysm120.Device("cuda") as device:
        title = chip.title(device, f"PyTorch {torch.__version__}, bf16 forward")
        print(title)
        top = ceiling(device, arguments.runs).median
        results = [measure(device, torch, case, arguments.runs) for case in CASES]
        show(results, top)
        print(f"host: {1e6 * host_seconds(device, arguments.runs):.0f} microseconds per call from Python")
        if arguments.json:
            arguments.json.write_text(json.dumps({"title": title, "ceiling": top, "results": results}, indent=1) + "\n")
        if arguments.plot:
            plot(results, top, arguments.plot, title)


if __name__ == "__main__":
    main()
