"""Time copy_batch on a GPU, beside calls of the driver, and what copies cost a GEMM on another stream.

    python benchmarks/copy_batch.py [--runs 9] [--json FILE]

The methods copy the same pieces: one copy_batch with a list on the device; cuMemcpyDtoDAsync, a call for each piece;
and cuMemcpyBatchAsync, where the driver has it. Microseconds are between two events around the calls; TB/s count what
is read and written; "host" is the time until the calls return. The GEMM is PyTorch's in bf16. It runs without a pause
while the copies of the first case run on a stream of high priority; its time counts only between their begin and
their end.
"""

import argparse
import ctypes
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chip
import numpy as np
from numpy.typing import NDArray

import pysm120

MB, KB = 1 << 20, 1 << 10
CASES: dict[str, tuple[list[int], int]] = {  # bytes of the pieces, and how far each source is behind an aligned address
    "7 tensors, 2 to 256 MB": ([n * MB for n in (256, 128, 64, 32, 16, 8, 2)], 0),
    "the same, 1 byte shifted": ([n * MB for n in (256, 128, 64, 32, 16, 8, 2)], 1),
    "4096 x 64 KB": ([64 * KB] * 4096, 0),
    "4096 x 4 KB": ([4 * KB] * 4096, 0),
    "10000 x 512 bytes": ([512] * 10000, 0),
    "10000 x 100 bytes": ([100] * 10000, 0),
}
GEMM, GEMMS, COPIES = 8192, 24, 16
WARM = 2  # runs that do not count
SHARES = (None, 132, 66, 32, 16)  # CTAs beside the GEMM


class Pieces(NamedTuple):
    """Addresses and sizes."""

    to: NDArray[np.uint64]
    source: NDArray[np.uint64]
    sizes: NDArray[np.uint64]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return int(self.sizes.sum())


class Attributes(ctypes.Structure):
    """CUmemcpyAttributes: the order of accesses, hints of two places, flags."""

    _fields_ = [(name, ctypes.c_int) for name in ("order", "src_type", "src_id", "dst_type", "dst_id", "flags")]


Method = Callable[[Any], None]  # copies once, on a stream of PyTorch


def methods_of(device: pysm120.Device, pieces: Pieces, shares: tuple[int | None, ...] = (None,)) -> dict[str, Method]:
    """Return the ways to copy the pieces."""
    driver = ctypes.CDLL("libcuda.so.1")
    listed = [tuple(map(int, piece)) for piece in zip(*pieces, strict=True)]
    copies = pysm120.CopyList([(a, b, n) for a, b, n in listed], device=device)
    calls = [(ctypes.c_uint64(a), ctypes.c_uint64(b), ctypes.c_size_t(n)) for a, b, n in listed]

    def ours(ctas: int | None) -> Method:
        return lambda stream: pysm120.copy_batch(copies, ctas=ctas, stream=stream.cuda_stream)

    def one_by_one(stream: Any) -> None:
        queue, copy = ctypes.c_void_p(stream.cuda_stream), driver.cuMemcpyDtoDAsync_v2
        for call in calls:
            ensure(copy(*call, queue), "cuMemcpyDtoDAsync")

    found = {f"copy_batch{f', {ctas} CTAs' if ctas else ''}": ours(ctas) for ctas in shares}
    found["cuMemcpyDtoDAsync"] = one_by_one
    batch = getattr(driver, "cuMemcpyBatchAsync", None)
    if batch is not None:
        words = ctypes.POINTER(ctypes.c_uint64)
        arrays = [x.ctypes.data_as(words) for x in pieces]
        attributes, first, failed = Attributes(order=1), ctypes.c_size_t(0), ctypes.c_size_t(0)

        def in_a_batch(stream: Any) -> None:
            count, one = ctypes.c_size_t(len(listed)), ctypes.c_size_t(1)
            options = (ctypes.byref(attributes), ctypes.byref(first), one, ctypes.byref(failed))
            ensure(batch(*arrays, count, *options, ctypes.c_void_p(stream.cuda_stream)), "cuMemcpyBatchAsync")

        found["cuMemcpyBatchAsync"] = in_a_batch
    return found


def ensure(result: int, name: str) -> None:
    """Raise for an error of the driver."""
    if result != 0:
        message = f"{name} returned {result}"
        raise RuntimeError(message)


def place(torch: Any, sizes: list[int], shift: int) -> tuple[Pieces, Any, Any]:
    """Return pieces between two buffers, each at a multiple of 256 bytes, sources shifted; and the buffers."""
    steps = np.array([-(-(n + shift) // 256) * 256 for n in sizes], np.uint64)
    starts = np.concatenate([[0], np.cumsum(steps)]).astype(np.uint64)
    source = torch.randint(0, 256, (int(starts[-1]),), dtype=torch.uint8, device="cuda")
    to = torch.zeros_like(source)
    pieces = Pieces(
        starts[:-1] + np.uint64(to.data_ptr()),
        starts[:-1] + np.uint64(source.data_ptr() + shift),
        np.array(sizes, np.uint64),
    )
    return pieces, to, source


def is_right(torch: Any, pieces: Pieces, to: Any, source: Any, shift: int) -> bool:
    """Whether every byte of the first, the last and some other pieces was copied."""
    count = len(pieces.sizes)
    for n in {0, count - 1, *range(0, count, max(1, count // 7))}:
        start, size = int(pieces.to[n]) - to.data_ptr(), int(pieces.sizes[n])
        if not torch.equal(to[start : start + size], source[start + shift : start + shift + size]):
            return False
    return True


def timed(torch: Any, method: Method, stream: Any, runs: int) -> tuple[float, float]:
    """Return the median seconds of the device and of the host."""
    on_device, on_host = [], []
    for run in range(-WARM, runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        start = time.perf_counter()
        method(stream)
        host = time.perf_counter() - start
        end.record(stream)
        end.synchronize()
        if run >= 0:  # the first runs load code and raise the clock
            on_device.append(begin.elapsed_time(end) / 1e3)
            on_host.append(host)
    return statistics.median(on_device), statistics.median(on_host)


def beside(torch: Any, method: Method | None, stream: Any) -> tuple[float, float]:
    """Return the median seconds of a GEMM and the seconds of a copy, while both run."""
    a, b = (torch.randn((GEMM, GEMM), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out, other = torch.empty_like(a), torch.cuda.Stream()
    torch.cuda.synchronize()
    start, *marks = (torch.cuda.Event(enable_timing=True) for _ in range(GEMMS + 2))
    edges = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with torch.cuda.stream(other):
        start.record()
        for mark in marks[:-1]:
            mark.record()
            torch.mm(a, b, out=out)
        marks[-1].record()
    if method is not None:
        edges[0].record(stream)
        for _ in range(COPIES):
            method(stream)
        edges[1].record(stream)
    torch.cuda.synchronize()
    times = [start.elapsed_time(mark) / 1e3 for mark in marks]
    first, last = (start.elapsed_time(edge) / 1e3 for edge in edges) if method is not None else (times[4], times[-1])
    found = [y - x for x, y in itertools.pairwise(times) if x >= first and y <= last]
    return (statistics.median(found) if found else float("nan")), (last - first) / COPIES


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415

    rows: list[dict[str, Any]] = []
    with pysm120.Device("cuda") as device:
        title = chip.title(device, f"PyTorch {torch.__version__}, copies of many pieces")
        stream = torch.cuda.Stream(priority=-1)
        print(f"{title}\n\n| pieces | method | us | TB/s | host, us |\n|---|---|---|---|---|")
        for case, (sizes, shift) in CASES.items():
            pieces, to, source = place(torch, sizes, shift)
            torch.cuda.synchronize()
            for name, method in methods_of(device, pieces).items():
                to.zero_()
                torch.cuda.synchronize()
                seconds, host = timed(torch, method, stream, arguments.runs)
                right = is_right(torch, pieces, to, source, shift)
                rate = 2 * pieces.nbytes / seconds / 1e12
                rows.append({"case": case, "method": name, "us": 1e6 * seconds, "host_us": 1e6 * host, "right": right})
                wrong = "" if right else " WRONG BYTES"
                print(f"| {case} | {name}{wrong} | {1e6 * seconds:.1f} | {rate:.2f} | {1e6 * host:.1f} |", flush=True)
        pieces, to, source = place(torch, *next(iter(CASES.values())))
        beside(torch, None, stream)
        alone, _ = beside(torch, None, stream)
        print(f"\n{GEMM}^3 GEMM alone: {1e6 * alone:.0f} us\n")
        print("| method | GEMM, share of alone | copy, TB/s |\n|---|---|---|")
        for name, method in methods_of(device, pieces, SHARES).items():
            gemm, copy = beside(torch, method, stream)
            rate = 2 * pieces.nbytes / copy / 1e12
            rows.append(
                {"case": "beside", "method": name, "gemm_us": 1e6 * gemm, "alone_us": 1e6 * alone, "rate": rate}
            )
            print(f"| {name} | {gemm / alone:.2f} | {rate:.2f} |", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"title": title, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
