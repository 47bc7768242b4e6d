"""Time the backward pass of attention on a GPU: ours beside PyTorch's FlashAttention 2 and cuDNN back ends.

    python benchmarks/backward.py [--runs 15] [--deterministic] [--json FILE]

Everything runs in one process on tensors that PyTorch made, in turns, with buffers that rotate past the L2. A call is
the whole backward pass: delta, the gradients and the conversion of dq. TFLOP/s count 10 B H Sq Sk D operations, half of
them if causal. Figures are medians of runs, each of as many calls as take about 3 ms, with the least and the greatest.
The clock is sampled while each case runs. With --deterministic, the deterministic form is timed too. Errors are those
of the gradients of one head of k and v against float64.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chip
import numpy as np
from attention import L2_TIMES, Clock, Figure, ceiling, time_calls

import pysm120

DETERMINISTIC = "deterministic"


class Case(NamedTuple):
    """A problem; q and k have as many rows."""

    batch: int
    rows: int
    heads: int
    head_dim: int
    causal: bool = False
    kv_heads: int = 0  # 0: as many as heads

    @property
    def groups(self) -> int:
        """Return the heads of k and v."""
        return self.kv_heads or self.heads

    @property
    def flops(self) -> float:
        """Return the operations of the five products."""
        pairs = self.batch * self.heads * self.rows * self.rows
        return 10 * pairs * self.head_dim / (2 if self.causal else 1)

    def __str__(self) -> str:
        words = f"{self.batch}, {self.rows}, {self.heads}, {self.head_dim}"
        words += f", {self.kv_heads} kv heads" if self.kv_heads else ""
        return words + (", causal" if self.causal else "")


CASES = [
    *(Case(*shape, causal) for shape in ((4, 2048, 32, 128), (1, 4096, 32, 128)) for causal in (False, True)),
    *(Case(*shape, causal) for shape in ((1, 16384, 32, 128), (4, 2048, 32, 64)) for causal in (False, True)),
    Case(4, 2048, 32, 128, kv_heads=8),
    Case(4, 2048, 32, 128, causal=True, kv_heads=8),
    Case(1, 2048, 32, 128, kv_heads=1),
    Case(1, 4096, 32, 128, kv_heads=1),
    Case(4, 2048, 16, 256),
    Case(4, 2048, 16, 256, causal=True),
]


def ours(
    device: pysm120.Device, sets: list[list[Any]], case: Case, *, deterministic: bool = False
) -> tuple[list[Callable[[], object]], list[Any]]:
    """Return calls of pysm120 on sets of q, k, v and dout, and the gradients of the first set."""
    calls: list[Callable[[], object]] = []
    first: list[Any] = []
    for n, tensors in enumerate(sets):
        q, k, v, dout = (device.from_dlpack(x) for x in tensors)
        out, lse = pysm120.attention(q, k, v, causal=case.causal, precision="bf16", return_lse=True)
        results = [device.empty(x.shape, x.dtype) for x in (q, k, v)]
        first = first if n else results

        def call(arrays: Any = (dout, q, k, v, out, lse), results: Any = results) -> object:
            dq, dk, dv = results
            return pysm120.attention_backward(
                *arrays, causal=case.causal, deterministic=deterministic, dq=dq, dk=dk, dv=dv
            )

        calls.append(call)
    return calls, first


def theirs(torch: Any, backend: Any, sets: list[list[Any]], case: Case) -> list[Callable[[], object]]:
    """Return backward passes of one of PyTorch's back ends."""
    calls: list[Callable[[], object]] = []
    for tensors in sets:
        inputs = [x.detach().transpose(1, 2).requires_grad_() for x in tensors[:3]]
        with torch.nn.attention.sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                *inputs, is_causal=case.causal, enable_gqa=case.groups != case.heads
            )
        dout = tensors[3].transpose(1, 2)

        def call(out: Any = out, inputs: Any = inputs, dout: Any = dout) -> object:
            return torch.autograd.grad(out, inputs, dout, retain_graph=True)

        calls.append(call)
    return calls


def errors(torch: Any, tensors: list[Any], gradients: list[Any], case: Case) -> list[float]:
    """Return the relative errors of dq, dk and dv of the first head of k and v, against float64."""
    group = case.heads // case.groups
    k, v = (x[0, :, 0].double() for x in tensors[1:3])
    dq, dk, dv = (torch.from_numpy(x.numpy()[0].astype(np.float32)).to(k.device).double() for x in gradients)
    wanted_k, wanted_v, off = torch.zeros_like(k), torch.zeros_like(v), [[0.0, 0.0]]
    for head in range(group):
        q, dout = (tensors[n][0, :, head].double() for n in (0, 3))
        scores = q @ k.T / case.head_dim**0.5
        if case.causal:
            hidden = torch.ones(scores.shape, dtype=torch.bool, device=k.device).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        p = torch.softmax(scores, -1)
        dp = dout @ v.T
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / case.head_dim**0.5
        off[0][0] += float((dq[:, head] - ds @ k).square().sum())
        off[0][1] += float((ds @ k).square().sum())
        wanted_k += ds.T @ q
        wanted_v += p.T @ dout
    for got, wanted in ((dk[:, 0], wanted_k), (dv[:, 0], wanted_v)):
        off.append([float((got - wanted).square().sum()), float(wanted.square().sum())])
    return [(a / b) ** 0.5 for a, b in off]


def measure(device: pysm120.Device, torch: Any, case: Case, runs: int, *, deterministic: bool) -> dict[str, Any]:
    """Time one case by all ways."""
    shapes = [(case.batch, case.rows, heads, case.head_dim) for heads in (case.heads, case.groups)]
    nbytes = 4 * 2 * int(np.prod(shapes[0]))
    count = min(max(2, -(-L2_TIMES * device.info.l2_bytes // nbytes)), 8)
    sets = [[torch.randn(shapes[n], device="cuda", dtype=torch.bfloat16) for n in (0, 1, 1, 0)] for _ in range(count)]
    torch.cuda.synchronize()
    kinds = torch.nn.attention.SDPBackend
    own, gradients = ours(device, sets, case)
    ways = {
        "pysm120": own,
        "FlashAttention 2": theirs(torch, kinds.FLASH_ATTENTION, sets, case),
        "cuDNN (wgmma)": theirs(torch, kinds.CUDNN_ATTENTION, sets, case),
    }
    if deterministic:
        ways[DETERMINISTIC] = ours(device, sets, case, deterministic=True)[0]
    torch.cuda.synchronize()
    clock = Clock()
    result: dict[str, Any] = {"case": case._asdict(), "name": str(case), "ways": {}}
    for name, calls in ways.items():
        with clock.sampled():
            rates = [case.flops / s / 1e12 for s in time_calls(device, calls, runs)]
        figure = Figure(name, rates)
        result["ways"][name] = {"median": figure.median, "min": min(rates), "max": max(rates), "mhz": clock.samples}
    result["errors"] = errors(torch, sets[0], gradients, case)
    return result


def show(results: list[dict[str, Any]], top: float) -> None:
    """Print the table."""
    print(f"mma.sync bf16 ceiling in this run: {top:.0f} TFLOP/s")
    print("TFLOP/s, median (least-greatest); ratio: to FlashAttention 2; errors: of dq, dk, dv\n")
    more = [DETERMINISTIC, "of pysm120"] if DETERMINISTIC in results[0]["ways"] else []
    titles = ["batch, rows, heads, head size", "pysm120", "ratio", "FA 2", "cuDNN (wgmma)", "MHz", "errors, %", *more]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for r in results:
        w = r["ways"]
        text = [f"{x['median']:.0f} ({x['min']:.0f}-{x['max']:.0f})" for x in w.values()]
        ratio = w["pysm120"]["median"] / w["FlashAttention 2"]["median"]
        mhz = statistics.median(w["pysm120"]["mhz"]) if w["pysm120"]["mhz"] else float("nan")
        off = ", ".join(f"{100 * x:.2f}" for x in r["errors"])
        line = f"| {r['name']} | {text[0]} | {ratio:.2f} | {text[1]} | {text[2]} | {mhz:.0f} | {off} |"
        if more:
            line += f" {text[3]} | {w[DETERMINISTIC]['median'] / w['pysm120']['median']:.2f} |"
        print(line, flush=True)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415

    with pysm120.Device("cuda") as device:
        title = chip.title(device, f"PyTorch {torch.__version__}, bf16 backward")
        print(title)
        top = ceiling(device, arguments.runs).median
        forms = {"deterministic": arguments.deterministic}
        results = [measure(device, torch, case, arguments.runs, **forms) for case in CASES]
        show(results, top)
        if arguments.json:
            arguments.json.write_text(json.dumps({"title": title, "ceiling": top, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
