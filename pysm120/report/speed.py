"""How fast operations are on a GPU, beside torch's back ends if torch is there."""

import dataclasses
import importlib
import importlib.util
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from pysm120.microbench import groups
from pysm120.microbench import measure as measuring
from pysm120.microbench.launch import Launcher
from pysm120.microbench.prepare import prepare
from pysm120.ops.attention import attention
from pysm120.ops.attention_backward import attention_backward
from pysm120.ops.attention_kv_cache import attention_with_kv_cache
from pysm120.ops.copy_batch import CopyList, copy_batch
from pysm120.ops.kv_cache import kv_cache_append
from pysm120.ops.matvec import matvec
from pysm120.ops.weights import QuantizedMatrix
from pysm120.report import reference, system
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import Error
from pysm120.runtime.timing import Calls, time_calls

Rows = Iterator[dict[str, Any]]
BF16 = ml_dtypes.bfloat16
_DRAWN = 1 << 20  # random numbers; larger arrays repeat them
# batch, rows, heads, head size, causal
FORWARD = [(4, 2048, 32, 128, False), (4, 2048, 32, 128, True), (4, 2048, 32, 64, False), (1, 8192, 32, 128, False)]
PRECISIONS = ("bf16", "f16", "mxfp8_bf16", "mxfp8", "fp8", "nvfp4_mxfp8", "nvfp4")
# sequences, keys, heads, heads of k and v, head size
DECODE = [(64, 4096, 32, 8, 128), (4, 8192, 32, 8, 128), (1, 32768, 32, 8, 128), (32, 2048, 32, 8, 64)]
MATRICES = [(28672, 8192), (4096, 4096)]
COPIES = [(16, 16 << 20), (4096, 65536), (10000, 512)]  # pieces, bytes of each
TOKENS = 8192  # of an append
TYPES = ("Q4_K", "Q6_K", "Q8_0", "MXFP4", "NVFP4", "Q2_K", "Q3_K", "Q5_K")


class Clock:
    """Samples the clock of the multiprocessors while something runs, if nvidia-smi is there."""

    def __init__(self) -> None:
        self.samples: list[int] = []

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample until the block ends."""
        self.samples, done = [], threading.Event()

        def sample() -> None:
            while not done.is_set():
                found = system.smi("clocks.sm")
                if isinstance(found, str):
                    return
                self.samples += [int(words[0].split()[0]) for words in found[:1] if words[0].split()[0].isdigit()]
                done.wait(0.03)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @property
    def mhz(self) -> float | None:
        """The median of the samples; None if there are none."""
        return float(statistics.median(self.samples)) if self.samples else None


class _TorchEvent:
    """An event of torch with the methods of ours."""

    def __init__(self, torch: Any) -> None:
        self.event = torch.cuda.Event(enable_timing=True)

    def record(self) -> None:
        self.event.record()

    def synchronize(self) -> None:
        self.event.synchronize()

    def elapsed_since(self, start: "_TorchEvent") -> float:
        return float(start.event.elapsed_time(self.event))


class _TorchDevice:
    """What time_calls needs of a device."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def event(self) -> _TorchEvent:
        return _TorchEvent(self.torch)


def torch_of(device: Device) -> Any:
    """Return torch if it is there and sees the GPU of a device; else None."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return None
    torch.cuda.set_device(device.info.ordinal)
    return torch


def figure(name: str, by: str, work: float, unit: str, device: Any, calls: Calls, runs: int) -> dict[str, Any]:
    """Return the row of a speed: ``work`` per second in units of 10^12."""
    clock = Clock()
    try:
        with clock.sampled():
            seconds = time_calls(device, calls, runs)
    except Exception as error:
        if isinstance(error, Error):  # ours: the task says it
            raise
        return {"name": f"{name}, {by}", "case": name, "by": by, "status": "absent", "message": str(error)[:200]}
    rates = sorted(work / max(one, 1e-9) / 1e12 for one in seconds)
    middle = statistics.median(rates)
    return {
        "name": f"{name}, {by}", "case": name, "by": by, "status": "measured", "value": round(middle, 4), "unit": unit,
        "least": round(rates[0], 4), "greatest": round(rates[-1], 4), "us": round(work / middle / 1e6, 3),
        "mhz": clock.mhz,
    }  # fmt: skip


def _normal(device: Device, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return normal random numbers on a device."""
    count = int(np.prod(shape))
    drawn = np.random.default_rng(count).standard_normal(min(count, _DRAWN), np.float32).astype(dtype)
    return device.array(np.resize(drawn, shape))


def _runs(quick: bool) -> int:  # noqa: FBT001 - an option of all tasks
    return 5 if quick else 15


def forward(name: str, *, quick: bool) -> Rows:
    """Time attention of every precision, beside torch's FlashAttention 2, efficient and cuDNN back ends."""
    with Device(name) as device:
        torch = torch_of(device)
        for batch, rows, heads, head_dim, causal in FORWARD[:2] if quick else FORWARD:
            shape = (batch, rows, heads, head_dim)
            flops = 4.0 * batch * heads * rows * rows * head_dim / (2 if causal else 1)
            case = f"{batch} x {rows}, {heads} heads of {head_dim}{', causal' if causal else ''}"
            for precision in PRECISIONS:
                dtype = {"f16": np.float16, "fp8": ml_dtypes.float8_e4m3fn}.get(precision, BF16)
                sets = [[_normal(device, shape, dtype) for _ in range(3)] for _ in range(2)]
                out = device.empty(shape, BF16 if precision == "fp8" else dtype)
                calls = [
                    lambda s=s, o=out, p=precision: attention(*s, out=o, causal=causal, precision=p)  # noqa: B023
                    for s in sets
                ]
                yield figure(case, f"pysm120 {precision}", flops, "TFLOP/s", device, calls, _runs(quick))
            if torch:
                yield from _torch_forward(torch, case, shape, flops, _runs(quick), causal=causal)


def _torch_forward(torch: Any, case: str, shape: tuple[int, ...], flops: float, runs: int, *, causal: bool) -> Rows:
    """Time torch's back ends."""
    kinds = torch.nn.attention.SDPBackend
    for by, kind in (
        ("torch FlashAttention 2", kinds.FLASH_ATTENTION),
        ("torch efficient", kinds.EFFICIENT_ATTENTION),
        ("torch cuDNN", kinds.CUDNN_ATTENTION),
    ):
        sets = [
            [torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)] for _ in "ab"
        ]

        def call(s: Any, kind: Any = kind) -> None:
            with torch.nn.attention.sdpa_kernel(kind):
                torch.nn.functional.scaled_dot_product_attention(*s, is_causal=causal)

        calls = [lambda s=s: call(s) for s in sets]
        yield figure(case, by, flops, "TFLOP/s", _TorchDevice(torch), calls, runs)


def backward(name: str, *, quick: bool) -> Rows:
    """Time whole backward passes, beside torch's FlashAttention 2."""
    with Device(name) as device:
        torch = torch_of(device)
        for batch, rows, heads, head_dim, causal in FORWARD[:1] if quick else FORWARD[:3]:
            shape = (batch, rows, heads, head_dim)
            flops = 10.0 * batch * heads * rows * rows * head_dim / (2 if causal else 1)
            case = f"{batch} x {rows}, {heads} heads of {head_dim}{', causal' if causal else ''}"
            for precision in ("bf16", "f16", "mxfp8"):
                dtype = np.float16 if precision == "f16" else BF16
                q, k, v, dout = (_normal(device, shape, dtype) for _ in range(4))
                out, lse = attention(q, k, v, causal=causal, return_lse=True)
                grads = {n: device.empty(shape, dtype) for n in ("dq", "dk", "dv")}
                given = (dout, q, k, v, out, lse)
                calls = [
                    lambda g=given, r=grads, p=precision: attention_backward(*g, causal=causal, precision=p, **r)  # noqa: B023
                ]
                yield figure(case, f"pysm120 {precision}", flops, "TFLOP/s", device, calls, _runs(quick))
            if torch:
                yield _torch_backward(torch, case, shape, flops, _runs(quick), causal=causal)


def _torch_backward(
    torch: Any, case: str, shape: tuple[int, ...], flops: float, runs: int, *, causal: bool
) -> dict[str, Any]:
    """Time the backward pass of torch's FlashAttention 2."""
    q, k, v = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2).detach().requires_grad_() for _ in "qkv"
    )
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    except RuntimeError as error:  # torch has no such kernel for this chip
        by = "torch FlashAttention 2"
        return {"name": f"{case}, {by}", "case": case, "by": by, "status": "absent", "message": str(error)[:200]}
    dout = torch.randn_like(out)
    calls = [lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)]
    return figure(case, "torch FlashAttention 2", flops, "TFLOP/s", _TorchDevice(torch), calls, runs)


def decode(name: str, *, quick: bool) -> Rows:
    """Time attention of one token for each sequence with a cache of bf16; TB/s of keys and values."""
    with Device(name) as device:
        for batch, keys, heads, kv_heads, head_dim in DECODE[:2] if quick else DECODE:
            shape = (batch, keys, kv_heads, head_dim)
            q = _normal(device, (batch, 1, heads, head_dim), BF16)
            k, v = (_normal(device, shape, BF16) for _ in "kv")
            lengths, out = device.array(np.full(batch, keys, np.int32)), device.empty(q.shape, BF16)
            calls = [lambda a=(q, k, v, lengths), o=out: attention_with_kv_cache(*a, out=o)]
            case = f"{batch} x {keys} keys, {heads}/{kv_heads} heads of {head_dim}"
            yield figure(case, "pysm120 bf16", float(k.nbytes + v.nbytes), "TB/s", device, calls, _runs(quick))


def products(name: str, *, quick: bool) -> Rows:
    """Time products of quantised weights and one vector, and eight; TB/s of weights."""
    with Device(name) as device:
        for rows, columns in MATRICES:
            for kind in TYPES[:2] if quick else TYPES:
                raw = reference.gguf_blocks(np.random.default_rng(rows), kind, 64, columns)
                blocks = np.tile(raw, (rows // 64, 1))
                copies = max(2, min(16, -(-2 * device.info.l2_bytes // blocks.nbytes)))
                made = [
                    QuantizedMatrix.from_gguf(blocks, kind, (rows, columns), device=device, layout="packed")
                    for _ in range(copies)
                ]
                for count in (1, 8):
                    x, out = _normal(device, (count, columns), np.float16), device.empty((count, rows), np.float16)
                    calls = [lambda w=w, x=x, out=out: matvec(w, x, out=out) for w in made]
                    case = f"{kind} {rows} x {columns}, {count} vector{'s' if count > 1 else ''}"
                    yield figure(case, "pysm120", float(blocks.nbytes), "TB/s", device, calls, _runs(quick))
                for w in made:
                    w.free()


def copies(name: str, *, quick: bool) -> Rows:
    """Time an append of tokens to a cache, and copy_batch; TB/s read and written."""
    with Device(name) as device:
        tokens, heads, head_dim = TOKENS, 8, 128
        k, v = (_normal(device, (tokens, heads, head_dim), BF16) for _ in "kv")
        k_cache, v_cache = (device.zeros((tokens // 16, 16, heads, head_dim), BF16) for _ in "kv")
        slots = device.array(np.random.default_rng(0).permutation(tokens).astype(np.int64))
        calls: list[Any] = [lambda: kv_cache_append(k, v, k_cache, v_cache, slots)]
        case = f"append of {tokens} tokens, {heads} heads of {head_dim}"
        yield figure(case, "pysm120 bf16", 2.0 * (k.nbytes + v.nbytes), "TB/s", device, calls, _runs(quick))
        for count, nbytes in COPIES:
            given, out = (device.empty(count * nbytes, np.uint8) for _ in range(2))
            spans = [slice(n * nbytes, (n + 1) * nbytes) for n in range(count)]
            pieces = CopyList([(out[s], given[s], nbytes) for s in spans])
            calls = [lambda pieces=pieces: copy_batch(pieces)]
            case = f"copy of {count} x {nbytes:,} bytes"
            yield figure(case, "pysm120", 2.0 * count * nbytes, "TB/s", device, calls, _runs(quick))


def microbench(name: str, *, group: str, quick: bool) -> Rows:
    """Measure the single instructions of a group; the virtual device only checks their results."""
    with Device(name) as device:
        ready = prepare(device, groups.chosen([group]), is_short=device.is_virtual)
        launcher = Launcher(device, 1)
        choice = measuring.Choice(*((3, 1e-3) if quick else (7, 2e-3)), may_be_unproven=True)
        for one in ready:
            yield dataclasses.asdict(measuring.measure(launcher, one, choice))
