"""Time the quantisation to MXFP8 and NVFP4 on a GPU, compared with a copy of as many bytes.

    python benchmarks/quantize.py [--runs 15] [--layout k_d128 ...] [--json FILE]

The kernels that feed attention (layouts q, k and v) and those of quantize_mxfp8 (d, rows), quantize_nvfp4 (nvfp4,
its scales in tiles, its search, along rows) and repack_scales, on [batch, rows, heads, head size] tensors of normal
numbers; repack_scales moves the scales of such a tensor. Bytes are those read and written; the copy within device
memory moves as many. Kernels and copies take turns in one process, on rotating buffers larger than the L2. Other work
keeps the device busy until the host has queued a run. Figures are medians of runs of about 1.5 ms, with minimum and
maximum.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chip
import ml_dtypes
import numpy as np

import pysm120
from pysm120.runtime.ffi import check, ffi, lib
from pysm120.runtime.module import Builtin, builtins

SHAPES = [(4, 2048, 32, 128), (1, 16384, 32, 128)]
DTYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
# Of NVFP4: log2 of a quarter of the rows of a tile of scales, and whether to search.
NVFP4 = {"nvfp4": (0, 0), "nvfp4_128x4": (5, 0), "nvfp4_64x4": (4, 0), "nvfp4_search": (0, 1)}
NVFP4 |= {f"{name}_rows": options for name, options in NVFP4.items()}
REPACK = {"repack_128x4": 5, "repack_64x4": 4}  # from linear; log2 of a quarter of the rows of a tile
LAYOUTS = ["q_d128", "k_d128", "v_d128", "d", "rows", *NVFP4, *REPACK]
TILE_ROWS, COLUMNS, BLOCK, NV_BLOCK = 64, 128, 32, 16
WARM_RUNS, RUN_SECONDS, L2_TIMES = 5, 0.0015, 4
AHEAD_BYTES, AHEAD_COPIES, TRIALS = 1 << 30, 24, 6

Call = Callable[[], object]
Kernels = Mapping[str, tuple[Callable[..., object], Builtin]]  # by entry


class Figure(NamedTuple):
    """GB/s of one kernel, and of a copy of as many bytes, over their runs."""

    dtype: str
    layout: str
    shape: tuple[int, ...]
    nbytes: int
    rates: list[float]
    copies: list[float]

    @property
    def share(self) -> float:
        """Return the figure to quote."""
        return statistics.median(self.rates) / statistics.median(self.copies)


def copy_bytes(device: pysm120.Device, to: int, source: int, nbytes: int) -> None:
    """Start a copy within device memory."""
    check(lib.sm120_copy_on_device(device.handle.pointer, to, source, nbytes, ffi.NULL))


class Timer:
    """Times calls that take turns, behind work that keeps the device busy until the host has queued them all."""

    def __init__(self, device: pysm120.Device) -> None:
        self.device = device
        self.start, self.end = device.event(), device.event()
        self.memory = device.zeros(AHEAD_BYTES, np.uint8)
        self.look_ahead(AHEAD_COPIES)

    def look_ahead(self, copies: int) -> None:
        """Keep the device busy with so many copies; ``ahead``: the seconds that they take."""
        self.copies, self.ahead = copies, 0.0
        self.ahead = min(self.run([self.keep_busy], 1) for _ in range(3))

    def keep_busy(self) -> None:
        """Start copies that take the device ``ahead`` seconds."""
        half = AHEAD_BYTES // 2
        for _ in range(self.copies):
            copy_bytes(self.device, self.memory.address, self.memory.address + half, half)

    def run(self, calls: Sequence[Call], count: int) -> float:
        """Return seconds per call; a run for which the host was late is made again, behind twice as much work."""
        for _ in range(TRIALS):
            self.device.synchronize()
            queued = time.perf_counter()
            self.keep_busy()
            self.start.record()
            for n in range(count):
                calls[n % len(calls)]()
            self.end.record()
            queued = time.perf_counter() - queued
            self.end.synchronize()
            seconds = self.end.elapsed_since(self.start) / 1e3
            if queued < self.ahead or not self.ahead:
                return seconds / count
            self.look_ahead(2 * self.copies)
        message = (
            f"the host took {queued:.4f} s for {count} launches, again and again: this machine is too busy to measure"
        )
        raise RuntimeError(message)

    def __call__(self, ways: Sequence[Sequence[Call]], runs: int) -> list[list[float]]:
        """Return seconds per call of each run of each candidate; candidates take turns."""
        counts = []
        for calls in ways:
            counts.append(max(1, int(RUN_SECONDS / self.run(calls, len(calls)))))
            for _ in range(WARM_RUNS):
                self.run(calls, counts[-1])
        times: list[list[float]] = [[] for _ in ways]
        for _ in range(runs):
            for found, calls, count in zip(times, ways, counts, strict=True):
                found.append(self.run(calls, count))
        return times


def inputs(device: pysm120.Device, dtype: str) -> pysm120.Array:
    """Return normal numbers for twice the largest shape; a block of them is repeated."""
    rng = np.random.default_rng(0)
    count = 2 * max(int(np.prod(shape)) for shape in SHAPES)
    block = rng.standard_normal(1 << 22, np.float32).astype(DTYPES[dtype])
    x = device.empty(count, DTYPES[dtype])
    block = block[:count]
    x[: block.size].copy_from(block)
    filled = block.nbytes
    while filled < x.nbytes:
        part = min(filled, x.nbytes - filled)
        copy_bytes(device, x.address + filled, x.address, part)
        filled += part
    return x


def written(layout: str, shape: tuple[int, int, int, int]) -> tuple[int, int]:
    """Return the bytes of elements and scales of a shape whose rows fill whole tiles."""
    elements = int(np.prod(shape))
    if layout in NVFP4:
        return elements // 2, elements // NV_BLOCK
    if layout in REPACK:
        return elements // NV_BLOCK, 0
    scales = elements // BLOCK
    # packed k and v hold their scales
    return (elements + scales, 0) if layout[0] in "kv" else (elements, scales)


def launches(
    device: pysm120.Device,
    kernel: tuple[Callable[..., object], Builtin],
    x: pysm120.Array,
    layout: str,
    shape: tuple[int, int, int, int],
) -> list[Call]:
    """Return launches on different parts of x, into buffers of their own."""
    batch, rows, heads, head_dim = shape
    function, record = kernel
    threads = record.threads
    size = int(np.prod(shape))
    tiles = rows // TILE_ROWS
    grid = batch * heads * tiles * (head_dim // COLUMNS)
    numbers: list[np.generic] = [
        np.int64(n * x.itemsize) for n in (rows * heads * head_dim, head_dim, heads * head_dim)
    ]
    if layout in NVFP4:
        items = size // NV_BLOCK // 2  # a thread has blocks of two lines
        lines, length, grid = rows, head_dim, -(-items // threads)
        if layout.endswith("_rows"):
            lines, length, grid = head_dim, rows, size // (record.rows * record.columns)
        blocks = length // NV_BLOCK
        numbers.insert(0, np.uint64(0))  # the global scale is the number behind the others
        numbers += [np.uint32(n) for n in (items, heads, lines, length, blocks, lines, blocks, *NVFP4[layout])]
    else:
        numbers += [np.uint32(n) for n in (heads, rows, head_dim, tiles, head_dim // COLUMNS, 0)]
    numbers.append(np.float32(1))
    if layout in REPACK:
        items, blocks = size // (4 * NV_BLOCK), head_dim // NV_BLOCK
        grid, lines = -(-items // threads), batch * heads * rows
        sides = (lines, blocks, 0, 1, lines, blocks, REPACK[layout], 1)
        numbers = [np.uint32(n) for n in (items, lines, blocks, *sides)]
    sets = max(2, -(-L2_TIMES * device.info.l2_bytes // (size * x.itemsize)))

    def launch(n: int) -> Call:
        part = x[n * size % x.size :][:size]
        sizes = written(layout, shape)[: 1 if layout in REPACK else 2]
        outputs = [device.zeros(max(16, nbytes), np.uint8) for nbytes in sizes]
        return lambda: function(grid, threads, part, *outputs, *numbers)

    return [launch(n) for n in range(sets)]


def copies(device: pysm120.Device, nbytes: int) -> list[Call]:
    """Return copies between different buffers that read and write a total number of bytes."""
    half = nbytes // 2

    def copy() -> Call:
        to, source = device.zeros(half, np.uint8), device.zeros(half, np.uint8)
        return lambda: copy_bytes(device, to.address, source.address, half)

    return [copy() for _ in range(max(2, -(-L2_TIMES * device.info.l2_bytes // nbytes)))]


def entry_of(layout: str, dtype: str) -> str:
    """Return the name of a kernel."""
    if layout in REPACK:
        return "repack_scales"
    if layout in NVFP4:
        return f"quantize_nvfp4_{dtype}{'_rows' if layout.endswith('_rows') else ''}"
    return f"quantize_mxfp8_{dtype}_{layout}"


def measure(device: pysm120.Device, kernels: Kernels, layouts: Sequence[str], runs: int) -> list[Figure]:
    """Time every layout, dtype and shape."""
    timer = Timer(device)
    figures = []
    for dtype in DTYPES:
        x = inputs(device, dtype)
        for shape, layout in itertools.product(SHAPES, layouts):
            read = written(layout, shape)[0] if layout in REPACK else int(np.prod(shape)) * x.itemsize
            nbytes = read + sum(written(layout, shape))
            entry = entry_of(layout, dtype)
            calls = launches(device, kernels[entry], x, layout, shape)
            seconds, copied = timer([calls, copies(device, nbytes)], runs)
            rates, others = ([nbytes / s / 1e9 for s in found] for found in (seconds, copied))
            figures.append(Figure(dtype, layout, shape, nbytes, rates, others))
        x.free()
    return figures


def show(figures: Sequence[Figure]) -> None:
    """Print the table."""
    print("GB/s read and written, median (least-greatest)\n")
    print("| x | layout | batch, rows, heads, head size | quantised | copied | share |")
    print("|---|---|---|---|---|---|")
    for f in figures:
        own, copied = (f"{statistics.median(x):.0f} ({min(x):.0f}-{max(x):.0f})" for x in (f.rates, f.copies))
        print(f"| {f.dtype} | {f.layout} | {', '.join(map(str, f.shape))} | {own} | {copied} | {f.share:.0%} |")
    print(f"\nleast share: {min(f.share for f in figures):.1%}")


def library(device: pysm120.Device) -> Kernels:
    """Return the kernels inside the library."""
    kernels = device.builtin_kernels()
    return {builtin.entry: (kernels[builtin.entry], builtin) for builtin in builtins()}


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="only this one (may be repeated)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with pysm120.Device("cuda") as device:
        title = chip.title(device, "quantisation to MXFP8 and NVFP4")
        print(title)
        figures = measure(device, library(device), arguments.layout or LAYOUTS, arguments.runs)
        show(figures)
        if arguments.json:
            found = [{**f._asdict(), "share": f.share} for f in figures]
            arguments.json.write_text(json.dumps({"title": title, "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
