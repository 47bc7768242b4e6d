"""Time decoding on a GPU: attention with a cache by pysm120, and PyTorch's FlashAttention 2 and cuDNN back ends.

    python benchmarks/decode.py [--runs 15] [--splits] [--only WORDS] [--json FILE]

Everything runs in one process on tensors that PyTorch made. Calls are captured in CUDA graphs of about 3 ms, whose
replays are timed, so that no launch hides a kernel; buffers rotate past the L2. TB/s count the keys and values of all
sequences once. A probe that only reads memory says what this chip gives in this run. With --splits, other numbers of
splits than the chosen one are timed too.
"""

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chip
import ml_dtypes
import numpy as np
from attention import L2_TIMES, RUN_SECONDS, Clock

import pysm120

# 512 CTAs of 512 threads read with a stride of the grid, 8 loads of 16 bytes in flight each.
PROBE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry read(.param .u64 param_x, .param .u64 param_bytes, .param .u64 param_out)
{
    .reg .b64 x, end, out, step, bytes;
    .reg .b32 t, u, w_<32>;
    .reg .pred more;
    ld.param.u64            x, [param_x];
    ld.param.u64            bytes, [param_bytes];
    ld.param.u64            out, [param_out];
    add.u64                 end, x, bytes;
    mov.u32                 t, %ctaid.x;
    mov.u32                 u, %tid.x;
    mul.wide.u32            step, t, 65536;
    add.u64                 x, x, step;
    mul.wide.u32            step, u, 16;
    add.u64                 x, x, step;
    mov.u32                 t, %nctaid.x;
    mul.wide.u32            step, t, 65536;
    mov.u32                 u, 0;
again:
    setp.ge.u64             more, x, end;
@more bra                   done;
LOADS
    add.u64                 x, x, step;
    bra                     again;
done:
    setp.ne.u32             more, u, 0x12345678;
@more bra                   out_of_here;
    st.global.u32           [out], u;
out_of_here:
    ret;
}
"""
E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
PROBE_THREADS, PROBE_LOADS = 512, 8


ELEMENT_BYTES = {"bf16": 2.0, "e4m3": 1.0, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}


class Case(NamedTuple):
    """A problem; every sequence has as many keys."""

    batch: int
    keys: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    tokens: int = 1
    page: int = 0  # 0: dense
    cache: str = "bf16"

    @property
    def nbytes(self) -> int:
        """Return the bytes of keys, values and their scales."""
        return round(2 * ELEMENT_BYTES[self.cache] * self.batch * self.keys * self.kv_heads * self.head_dim)

    def __str__(self) -> str:
        words = f"{self.batch} x {self.keys}, {self.heads}/{self.kv_heads}, {self.head_dim}"
        words += f", {self.tokens} tokens" if self.tokens > 1 else ""
        words += f", {self.cache}" if self.cache != "bf16" else ""
        return words + (f", pages of {self.page}" if self.page else "")


CASES = [
    Case(64, 4096),
    Case(16, 16384),
    Case(4, 8192),
    Case(1, 32768),
    Case(1, 131072),
    Case(1, 8192, 32, 32),
    Case(32, 2048, head_dim=64),
    Case(8, 4096, 16, 16, 256),
    Case(64, 4096, page=16),
    Case(4, 8192, page=16),
    Case(16, 8192, tokens=8),
    Case(16, 8192, tokens=64),
    Case(4, 8192, tokens=512),
    Case(4, 8192, tokens=512, page=16),
    Case(4, 8192, tokens=512, page=16, cache="mxfp8"),
    *(
        Case(batch, keys, cache=cache, page=page)
        for cache in ("e4m3", "mxfp8", "nvfp4")
        for batch, keys, page in ((64, 4096, 0), (16, 16384, 0), (4, 8192, 0), (64, 4096, 16))
    ),
    *(Case(32, 2048, head_dim=64, cache=cache) for cache in ("e4m3", "mxfp8", "nvfp4")),
    *(Case(8, 4096, 16, 16, 256, cache=cache) for cache in ("e4m3", "mxfp8", "nvfp4")),
]


def graph_of(torch: Any, calls: list[Callable[[], object]], seconds: float) -> tuple[Any, int]:
    """Capture so many calls that a replay takes about `seconds`; return the graph and their number."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        each = begin.elapsed_time(end) / 1e3 / len(calls)
    count = min(max(len(calls), int(seconds / each)), 400)
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()  # a collection in the capture would free the arrays of an earlier case, which ends the capture
    try:
        with torch.cuda.graph(graph, stream=stream):
            for n in range(count):
                calls[n % len(calls)]()
    finally:
        gc.enable()
    return graph, count


def time_graph(torch: Any, calls: list[Callable[[], object]], runs: int) -> list[float]:
    """Return the seconds of one call, for each run."""
    graph, count = graph_of(torch, calls, RUN_SECONDS)
    for _ in range(10):
        graph.replay()
    seconds = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3 / count)
    return seconds


def reading(device: pysm120.Device, torch: Any, runs: int) -> float:
    """Return the bytes per second of a kernel that only reads."""
    nbytes = 1 << 30
    loads = []
    for n in range(PROBE_LOADS):
        words = ", ".join(f"w_{4 * n + i}" for i in range(4))
        loads.append(f"    ld.global.nc.L1::no_allocate.v4.b32 {{{words}}}, [x + {16 * PROBE_THREADS * n}];")
    loads += [f"    xor.b32 u, u, w_{k};" for k in range(4 * PROBE_LOADS)]
    kernel = device.load(PROBE.replace("LOADS", "\n".join(loads)))["read"]
    memory, out = device.from_dlpack(torch.ones(nbytes, dtype=torch.uint8, device="cuda")), device.zeros(1, np.uint32)

    def call() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        kernel(8 * device.info.multiprocessors, PROBE_THREADS, memory, np.uint64(nbytes), out, stream=stream)

    return nbytes / statistics.median(time_graph(torch, [call], runs))


def caches_of(device: pysm120.Device, case: Case, k: Any, v: Any) -> tuple[Any, Any]:
    """Return caches that hold k and v [pages, rows, heads, columns] in the formats of the case."""
    if case.cache == "bf16":
        return k, v
    shape, columns = k.shape[:3], case.head_dim
    elements = {"e4m3": (columns, E4M3), "mxfp8": (columns, E4M3), "nvfp4": (columns // 2, np.uint8)}[case.cache]
    blocks = {"e4m3": (0, E4M3), "mxfp8": (columns // 32, E8M0), "nvfp4": (columns // 16, E4M3)}[case.cache]
    made = []
    for _ in "kv":
        arrays = [device.zeros((*shape, n), dtype) for n, dtype in (elements, blocks) if n]
        made.append(tuple(arrays) if len(arrays) > 1 else arrays[0])
    rows = np.arange(shape[0] * shape[1])
    dense_k, dense_v = (x.reshape(-1, *x.shape[2:]) for x in (k, v))
    pysm120.kv_cache_append(dense_k, dense_v, made[0], made[1], device.array(rows))
    return made[0], made[1]


def ours(
    device: pysm120.Device, torch: Any, sets: list[list[Any]], case: Case, splits: int | None = None
) -> tuple[list[Callable[[], object]], Any]:
    """Return calls of pysm120 on sets of q, k and v, and the result of the first set."""
    calls: list[Callable[[], object]] = []
    lengths = device.array(np.full(case.batch, case.keys, np.int32))
    table = None
    if case.page:
        pages = case.batch * case.keys // case.page
        order = np.random.default_rng(0).permutation(pages).astype(np.int32)
        table = device.array(order.reshape(case.batch, -1))
    outs = []
    for tensors in sets:
        q, k, v = (device.from_dlpack(x) for x in tensors)
        if case.page:
            k, v = (x.reshape(-1, case.page, case.kv_heads, case.head_dim) for x in (k, v))
        k, v = caches_of(device, case, k, v)
        out = device.empty(q.shape, q.dtype)
        outs.append(out)

        def call(arrays: Any = (q, k, v, lengths), out: Any = out) -> object:
            return pysm120.attention_with_kv_cache(
                *arrays,
                page_table=table,
                causal=True,
                num_splits=splits,
                out=out,
                stream=torch.cuda.current_stream().cuda_stream,
            )

        calls.append(call)
    return calls, outs[0]


def theirs(torch: Any, backend: Any, sets: list[list[Any]], case: Case) -> list[Callable[[], object]]:
    """Return calls of one of PyTorch's back ends; without a mask, so tokens see all keys."""
    calls: list[Callable[[], object]] = []
    for tensors in sets:
        inputs = [x.transpose(1, 2) for x in tensors]

        def call(inputs: Any = inputs) -> object:
            with torch.nn.attention.sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(*inputs, enable_gqa=case.heads != case.kv_heads)

        calls.append(call)
    return calls


def error(torch: Any, tensors: list[Any], out: Any, case: Case) -> float:
    """Return the relative error of the first head's result against float64; dense caches, the last token."""
    q, k, v = (x[0, :, 0].double() for x in tensors)
    p = torch.softmax(q[-1] @ k.T / case.head_dim**0.5, -1)
    wanted = (p @ v).cpu().numpy()
    return float(np.linalg.norm(out.numpy()[0, -1, 0].astype(float) - wanted) / np.linalg.norm(wanted))


def measure(device: pysm120.Device, torch: Any, case: Case, runs: int, *, splits: bool) -> dict[str, Any]:
    """Time one case by all ways."""
    count = min(max(1, -(-L2_TIMES * device.info.l2_bytes // case.nbytes)), 8)
    shapes = [
        (case.batch, case.tokens, case.heads, case.head_dim),
        *[(case.batch, case.keys, case.kv_heads, case.head_dim)] * 2,
    ]
    sets = [[torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes] for _ in range(count)]
    torch.cuda.synchronize()
    own, out = ours(device, torch, sets, case)
    ways = {"pysm120": own}
    if not case.page and case.cache == "bf16":
        kinds = torch.nn.attention.SDPBackend
        ways["FlashAttention 2"] = theirs(torch, kinds.FLASH_ATTENTION, sets, case)
        ways["cuDNN"] = theirs(torch, kinds.CUDNN_ATTENTION, sets, case)
    if splits:
        for n in (1, 2, 4, 8, 16, 32):
            ways[f"{n} splits"] = ours(device, torch, sets, case, n)[0]
    clock = Clock()
    result: dict[str, Any] = {"case": case._asdict(), "name": str(case), "ways": {}}
    for name, calls in ways.items():
        try:
            with clock.sampled():
                rates = [case.nbytes / s / 1e12 for s in time_graph(torch, calls, runs)]
        except RuntimeError as failure:  # a back end that does not support the case
            result["ways"][name] = {"failure": str(failure).splitlines()[0]}
            continue
        result["ways"][name] = {
            "median": statistics.median(rates),
            "min": min(rates),
            "max": max(rates),
            "mhz": clock.samples,
        }
    torch.cuda.synchronize()
    result["error"] = None if case.page else error(torch, sets[0], out, case)
    return result


def show(results: list[dict[str, Any]], top: float) -> None:
    """Print the table."""
    print(f"reading alone in this run: {top / 1e12:.2f} TB/s")
    print("TB/s, median (least-greatest)\n")
    names = list(dict.fromkeys(name for r in results for name in r["ways"]))
    titles = ["batch x keys, heads, head size", *names, "us", "MHz", "error, %"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for r in results:
        cells = []
        for name in names:
            way = r["ways"].get(name, {})
            cells.append(f"{way['median']:.2f} ({way['min']:.2f}-{way['max']:.2f})" if "median" in way else "")
        own, case = r["ways"]["pysm120"], Case(**r["case"])
        if "failure" in own:
            print(f"| {r['name']} | {own['failure']} |", flush=True)
            continue
        mhz = statistics.median(own["mhz"]) if own["mhz"] else float("nan")
        off = "" if r["error"] is None else f"{100 * r['error']:.2f}"
        microseconds = case.nbytes / own["median"] / 1e6
        print(f"| {r['name']} | {' | '.join(cells)} | {microseconds:.1f} | {mhz:.0f} | {off} |", flush=True)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--splits", action="store_true")
    parser.add_argument("--only", default="", help="only the cases whose name has these words")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415

    with pysm120.Device("cuda") as device:
        title = chip.title(device, f"PyTorch {torch.__version__}, bf16 decoding")
        print(title)
        top = reading(device, torch, arguments.runs)
        results = [
            measure(device, torch, case, arguments.runs, splits=arguments.splits)
            for case in CASES
            if arguments.only in str(case)
        ]
        show(results, top)
        if arguments.json:
            arguments.json.write_text(json.dumps({"title": title, "reading": top, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
