"""Time products of quantised weights and vectors on a GPU, beside a kernel that only reads.

    python benchmarks/matvec.py [--types Q4_K Q6_K] [--shapes 4096x4096 ...] [--vectors 1 8] [--layouts packed native]
                                [--activations int8] [--llama CHECKOUT] [--json FILE]

The bytes are those of the weights. The calls of a measurement use matrices in turn that together exceed the L2, and
are captured in a CUDA graph by torch, so that the host is no limit. Figures are medians of launches of the graph. The
probe reads the same matrices with 16-byte loads and adds them up: it is what reading alone takes in the same process.

With --llama, the kernels of a checkout of llama.cpp (its mul_mat_vec_q, of up to 8 vectors, and the quantisation of x
before it) are compiled by nvcc to a temporary folder and timed in the same process, on the same matrices and by the
same graphs. Their results are compared with ours: x is quantised by the same rule, so they differ in rounding only.
"""

import argparse
import importlib
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chip
import numpy as np
from llama import SUPPORTED, VECTORS, Llama, build

import pysm120
from pysm120 import QuantizedMatrix
from pysm120.runtime.module import constants

TYPES = ("Q4_K", "Q6_K", "Q2_K", "Q3_K", "Q5_K", "Q8_0", "MXFP4", "NVFP4")
SHAPES = ("28672x8192", "8192x28672", "4096x4096", "14336x4096", "1024x4096")
L2_TIMES, REPEATS, WARM, GRAPH_SECONDS = 4, 15, 3, 0.002
READERS = 132 * 8
RECORDS = {
    "int8": "MATVEC_RECORD_BYTES",
    "int16": "MATVEC_RECORD_BYTES",
    "mxfp8x2": "MATVEC_RECORD_MX_BYTES",
    "nvfp4x3": "MATVEC_RECORD_NVFP4_BYTES",
}
LLAMA_ERROR = 1e-2  # of results, relative: its scales of x are f16

READ = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry read_all(.param .u64 param_from, .param .u64 param_to, .param .u32 param_units)
.reqntid 256
{
    .reg .b64 from, to, at;
    .reg .b32 tid, unit, units, step, sum, v_<16>;
    .reg .pred more;
    ld.param.u64 from, [param_from];
    ld.param.u64 to, [param_to];
    ld.param.u32 units, [param_units];
    mov.u32 tid, %tid.x;
    mov.u32 unit, %ctaid.x;
    mad.lo.u32 unit, unit, 1024, tid;
    mov.u32 step, %nctaid.x;
    shl.b32 step, step, 10;
    mov.b32 sum, 0;
next:
    setp.ge.u32 more, unit, units;
@more bra done;
    mad.wide.u32 at, unit, 16, from;
    ld.global.nc.L1::no_allocate.v4.b32 {v_0, v_1, v_2, v_3}, [at];
    ld.global.nc.L1::no_allocate.v4.b32 {v_4, v_5, v_6, v_7}, [at + 4096];
    ld.global.nc.L1::no_allocate.v4.b32 {v_8, v_9, v_10, v_11}, [at + 8192];
    ld.global.nc.L1::no_allocate.v4.b32 {v_12, v_13, v_14, v_15}, [at + 12288];
"""
READ += "".join(f"    add.u32 sum, sum, v_{i};\n" for i in range(16))
READ += """
    add.u32 unit, unit, step;
    bra next;
done:
    setp.eq.u32 more, sum, 0x12345678;
@more st.global.b32 [to], sum;
    ret;
}
"""


Call = Callable[[Any], object]  # of a stream


class Figure(NamedTuple):
    """Seconds of a call, and the bytes of its weights."""

    what: str
    type: str
    shape: str
    layout: str
    vectors: int
    nbytes: int
    seconds: float
    worst: float

    @property
    def rate(self) -> float:
        """TB/s of weights."""
        return self.nbytes / self.seconds / 1e12


def graph_seconds(torch: Any, calls: Sequence[Call], rounds: int) -> tuple[float, float]:
    """Return the median and the longest seconds of a call: all of them, `rounds` times, in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call(stream.cuda_stream)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for call in calls:
                call(torch.cuda.current_stream().cuda_stream)
    times = []
    with torch.cuda.stream(stream):
        for i in range(WARM + REPEATS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            if i >= WARM:
                times.append(start.elapsed_time(end) / 1e3 / rounds / len(calls))
    return statistics.median(times), max(times)


class Bench:
    """Measurements of one process."""

    def __init__(self, device: pysm120.Device, activations: str, llama: Llama | None = None) -> None:
        self.llama = llama
        self.torch: Any = importlib.import_module("torch")
        self.device, self.sizes, self.activations = device, constants(), activations
        self.probe, self.sink = device.load(READ)["read_all"], device.zeros(4, np.uint32)
        self.rng = np.random.default_rng(0)

    def reads(self, matrices: Sequence[QuantizedMatrix], nbytes: int) -> list[Call]:
        """Return calls that read matrices."""
        units = np.uint32(nbytes // 16384 * 1024)

        def call(w: QuantizedMatrix) -> Call:
            return lambda stream: self.probe(READERS, 256, w.data, self.sink, units, stream=stream)

        return [call(w) for w in matrices]

    def products(self, matrices: Sequence[QuantizedMatrix], vectors: int) -> list[Call]:
        """Return calls that multiply matrices and vectors in f16."""
        rows, columns = matrices[0].shape
        x = self.device.array(self.rng.standard_normal((vectors, columns)).astype(np.float16))
        out = self.device.empty((vectors, rows), np.float16)
        form, tokens = self.activations, 4 if self.activations == "int16" else 8
        records = 2 * -(-vectors // (2 * tokens)) * -(-columns // 256)
        record = self.sizes[RECORDS[form]]
        room = self.device.empty((records * record,), np.uint8) if vectors > 1 or form != "int8" else None

        def call(w: QuantizedMatrix) -> Call:
            return lambda stream: pysm120.matvec(w, x, out=out, activations=form, stream=stream, workspace=room)

        return [call(w) for w in matrices]

    def peers(self, llama: Llama, matrices: Sequence[QuantizedMatrix], vectors: int) -> list[Call]:
        """Return calls of llama.cpp, whose results are those of ours but for rounding."""
        rows, columns = matrices[0].shape
        values = self.rng.standard_normal((vectors, columns)).astype(np.float32)
        x, y = self.device.array(values), self.device.empty((vectors, rows), np.float32)
        room = self.device.empty((llama.room(columns, vectors),), np.uint8)

        def call(w: QuantizedMatrix) -> Call:
            def multiply(stream: Any) -> None:
                places = (w.data.address, x.address, room.address, y.address)
                llama.matvec(w.type, *places, (rows, columns, vectors), stream)

            return multiply

        stream = self.torch.cuda.Stream()
        call(matrices[0])(stream.cuda_stream)
        stream.synchronize()
        wanted = pysm120.matvec(matrices[0], values)
        error = float(np.linalg.norm(y.numpy() - wanted) / np.linalg.norm(wanted))
        if not error < LLAMA_ERROR:
            message = f"llama.cpp and pysm120 differ by {error:.2e} in {matrices[0].type}, {vectors} vectors"
            raise RuntimeError(message)
        return [call(w) for w in matrices]

    def figures(self, kind: str, shape: str, layouts: Sequence[str], counts: Sequence[int]) -> Iterator[Figure]:
        """Measure one type and shape."""
        rows, columns = map(int, shape.split("x"))
        nbytes = rows * columns // self.sizes[f"GGUF_{kind}_BLOCK"] * self.sizes[f"GGUF_{kind}_BYTES"]
        copies = max(2, -(-L2_TIMES * self.device.info.l2_bytes // nbytes))
        rounds = max(1, round(GRAPH_SECONDS / (copies * nbytes / 3e12)))
        raw = self.rng.integers(0, 60, nbytes, dtype=np.uint8)  # f16 scales below 2: finite results
        native = [QuantizedMatrix.from_gguf(raw, kind, (rows, columns), device=self.device) for _ in range(copies)]
        times = graph_seconds(self.torch, self.reads(native, nbytes), rounds)
        yield Figure("read", kind, shape, "-", 0, nbytes, *times)
        if self.llama and kind in SUPPORTED:
            for vectors in (n for n in counts if n <= VECTORS):
                times = graph_seconds(self.torch, self.peers(self.llama, native, vectors), rounds)
                yield Figure("llama", kind, shape, "native", vectors, nbytes, *times)
        for layout in layouts:
            matrices = native if layout == "native" else [pysm120.repack(w) for w in native]
            for vectors in counts:
                times = graph_seconds(self.torch, self.products(matrices, vectors), rounds)
                yield Figure("matvec", kind, shape, layout, vectors, nbytes, *times)
            if layout == "packed":
                for w in matrices:
                    w.free()
        for w in native:
            w.free()


def main() -> None:
    """Print a table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=["Q4_K", "Q6_K", "Q2_K"])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--vectors", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--layouts", nargs="+", choices=("native", "packed"), default=["packed", "native"])
    parser.add_argument("--activations", choices=tuple(RECORDS), default="int8")
    parser.add_argument("--llama", type=Path, metavar="CHECKOUT", help="a checkout of llama.cpp")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    reading = 1.0
    with pysm120.Device("cuda") as device, tempfile.TemporaryDirectory() as folder:
        llama = None
        if options.llama:
            major, minor = device.info.capability
            llama = Llama(build(options.llama, f"sm_{major}{minor}", Path(folder)))
        bench = Bench(device, options.activations, llama)
        cases = itertools.product(options.shapes, options.types)
        measured = (bench.figures(kind, shape, options.layouts, options.vectors) for shape, kind in cases)
        print(chip.title(device, "matvec"))
        for figure in itertools.chain.from_iterable(measured):
            found.append(figure)
            reading = figure.rate if figure.what == "read" else reading
            name = f"{figure.what:6} {figure.type:6} {figure.shape:11} {figure.layout:6} N={figure.vectors:<2}"
            print(
                f"{name} {figure.seconds * 1e6:9.2f} us {figure.rate:6.3f} TB/s {figure.rate / reading:6.1%} of reading"
                f" (worst {figure.worst * 1e6:.2f} us)",
                flush=True,
            )
    if options.json:
        rows = [{**figure._asdict(), "rate": figure.rate} for figure in found]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
