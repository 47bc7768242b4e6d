"""Time the virtual SM120: attention and its gradients against NumPy in float32, Triton's against its interpreter.

    python benchmarks/virtual.py [--runs 9] [--json FILE]

The two sides of a comparison are timed in turn in one run, on the same cores, because the ratio of a pair drifts less
than a machine's speed. Figures are medians, with minimum and maximum. Gradients, and the cost of checks and vectors,
are measured in processor time; OPENBLAS_NUM_THREADS=1 keeps NumPy's threads from spinning. Triton's part needs the
extra `corpus`.
"""

import argparse
import datetime as dt
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

import pysm120

BATCH, HEADS, ROWS, HEAD_DIM = 1, 8, 1024, 128
BACKWARD_ROWS, BACKWARD_DIM = 512, 64
LEVELS = ("off", "default", "full")
FloatArray = npt.NDArray[Any]
HERE = Path(__file__).resolve().parent
KERNELS = HERE.parent / "tests" / "corpus"
TRITON_HEADS, TRITON_ROWS, TRITON_DIM, BLOCK_M, BLOCK_N = 2, 512, 64, 64, 32


class Figure(NamedTuple):
    """Seconds of two things that were timed in turn, and their names."""

    what: str
    ours: list[float]
    other: str
    theirs: list[float]

    def row(self) -> dict[str, object]:
        """Return the medians, and the ratio with its spread, as text."""
        ratios = [a / b for a, b in zip(self.ours, self.theirs, strict=True)]
        return {
            "what": self.what,
            "seconds": statistics.median(self.ours),
            "against": self.other,
            "against_seconds": statistics.median(self.theirs),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }


def numpy_attention(q: FloatArray, k: FloatArray, v: FloatArray) -> FloatArray:
    """Attention in float32, [H, S, D]."""
    s = q @ k.transpose(0, 2, 1)
    s *= np.float32(HEAD_DIM**-0.5)
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(-1, keepdims=True)
    o: FloatArray = s @ v
    return o


def numpy_gradients(
    dout: FloatArray, q: FloatArray, k: FloatArray, v: FloatArray, out: FloatArray, lse: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Gradients of attention in float32, [H, S, D]; lse is [H, S]. The five products are those of the kernels."""
    scale = np.float32(BACKWARD_DIM**-0.5)
    p = q @ k.transpose(0, 2, 1)
    p *= scale
    p -= lse[..., None]
    np.exp(p, out=p)
    dv = p.transpose(0, 2, 1) @ dout
    ds = dout @ v.transpose(0, 2, 1)
    ds -= (dout * out).sum(-1, keepdims=True)
    ds *= p
    ds *= scale
    return ds @ k, ds.transpose(0, 2, 1) @ q, dv


def timed(action: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def processor_time(action: Callable[[], object]) -> float:
    """Processor time of one call, over all processors."""
    start = time.process_time()
    action()
    return time.process_time() - start


def seconds_told(action: Callable[[], float]) -> float:
    """Seconds that one call returns."""
    return action()


def compare(
    what: str,
    ours: Callable[[], Any],
    other: str,
    theirs: Callable[[], Any],
    runs: int,
    measured: Callable[[Callable[[], Any]], float] = timed,
) -> Figure:
    """Time two things in turn, after one turn that does not count."""
    ours()
    theirs()
    pairs = [(measured(ours), measured(theirs)) for _ in range(runs)]
    return Figure(what, [a for a, _ in pairs], other, [b for _, b in pairs])


class Forward:
    """The forward of our mxfp8 attention on the virtual device."""

    def __init__(self, rows: int, level: str) -> None:
        rng = np.random.default_rng(0)
        self.host = [rng.standard_normal((BATCH, HEADS, rows, HEAD_DIM), np.float32) for _ in range(3)]
        self.device = pysm120.Device(f"virtual?checks={level}")
        self.arrays = [self.device.array(x) for x in self.host]

    def __call__(self) -> None:
        """Run it."""
        pysm120.attention(*self.arrays, layout="BHSD", precision="mxfp8")
        self.device.synchronize()

    def reference(self) -> None:
        """Compute the same forward in NumPy."""
        q, k, v = self.host
        numpy_attention(q[0], k[0], v[0])


class Backward:
    """The gradients of attention in bf16 on the virtual device."""

    def __init__(self, level: str) -> None:
        rng = np.random.default_rng(0)
        shape = (BATCH, HEADS, BACKWARD_ROWS, BACKWARD_DIM)
        dout, *inputs = (rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16) for _ in range(4))
        self.device = pysm120.Device(f"virtual?checks={level}")
        out, lse = pysm120.attention(*inputs, layout="BHSD", return_lse=True, device=self.device)
        self.host = [x[0].astype(np.float32) for x in (dout, *inputs, out, lse)]
        self.arrays = [self.device.array(x) for x in (dout, *inputs, out, lse)]

    def __call__(self) -> None:
        """Run it."""
        pysm120.attention_backward(*self.arrays, layout="BHSD")
        self.device.synchronize()

    def reference(self) -> None:
        """Compute the same gradients in NumPy."""
        numpy_gradients(*self.host)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Limit the number of threads of the device."""
    before = os.environ.get("PYSM120_THREADS")
    os.environ["PYSM120_THREADS"] = str(count)
    yield
    del os.environ["PYSM120_THREADS"]
    if before is not None:
        os.environ["PYSM120_THREADS"] = before


def against_numpy(runs: int) -> Iterator[Figure]:
    """Every level at the size of the goal, and every size at level default; then gradients."""
    for level in LEVELS:
        forward = Forward(ROWS, level)
        yield compare(f"S {ROWS}, level {level}", forward, "NumPy float32", forward.reference, runs)
    for rows in (256, 512, 2048):
        forward = Forward(rows, "default")
        yield compare(f"S {rows}, level default", forward, "NumPy float32", forward.reference, runs)
    for level in ("off", "default"):
        backward = Backward(level)
        what = f"bf16 backward, S {BACKWARD_ROWS}, D {BACKWARD_DIM}, processor time at level {level}"
        yield compare(what, backward, "NumPy float32", backward.reference, runs, processor_time)


def by_threads(runs: int) -> Iterator[Figure]:
    """Scaling with cores: one thread against several."""
    forward = Forward(ROWS, "default")

    def run(count: int) -> Callable[[], None]:
        def action() -> None:
            with threads(count):
                forward()

        return action

    cores = len(os.sched_getaffinity(0))
    for count in sorted({2**k for k in range(1, cores.bit_length())} | ({cores} - {1})):
        yield compare(f"S {ROWS}, level default, 1 thread", run(1), f"{count} threads", run(count), runs)


LOOP = """
.version 8.8
.target sm_120f
.address_size 64
.visible .entry loop(.param .u64 x_param)
{
    .reg .b64 x;
    .reg .b32 i, value, round;
    .reg .pred more;
    ld.param.u64 x, [x_param];
    mov.u32 i, %tid.x;
    mad.wide.u32 x, i, 4, x;
    mov.u32 round, 0;
again:
    ld.global.u32 value, [x];
    add.u32 value, value, i;
    mad.lo.u32 value, value, 5, round;
    shr.u32 i, value, 3;
    xor.b32 value, value, i;
    st.global.u32 [x], value;
    add.u32 round, round, 1;
    setp.lt.u32 more, round, 50000;
@more bra again;
    ret;
}
"""


def scalar_loop(level: str) -> Callable[[], None]:
    """Make a launch of a loop of scalar instructions, a load and a store."""
    device = pysm120.Device(f"virtual?checks={level}")
    kernel, x = device.load(LOOP)["loop"], device.zeros(128, np.uint32)

    def launch() -> None:
        kernel(1, 128, x)
        device.synchronize()

    return launch


def by_level(runs: int) -> Iterator[Figure]:
    """Time what the checks cost, in the forward and in a loop of scalar instructions."""
    things: dict[str, Callable[[str], Callable[[], None]]] = {
        f"S {ROWS}": partial(Forward, ROWS),
        "scalar loop": scalar_loop,
    }
    for what, make in things.items():
        off = make("off")
        for level in LEVELS[1:]:
            yield compare(f"{what}, processor time at level {level}", make(level), "off", off, runs, processor_time)


class Elsewhere:
    """The forward at level off in a separate process, with a vector width; a call returns its processor time."""

    def __init__(self, vectors: str) -> None:
        self.pipe, other = multiprocessing.Pipe()
        os.environ["PYSM120_VM_ISA"] = vectors
        multiprocessing.get_context("spawn").Process(target=self.serve, args=(other,), daemon=True).start()
        del os.environ["PYSM120_VM_ISA"]

    @staticmethod
    def serve(pipe: Connection) -> None:
        """Run the forward once for every message of the pipe."""
        forward = Forward(ROWS, "off")
        with suppress(EOFError):
            while pipe.recv():
                pipe.send(processor_time(forward))

    def __call__(self) -> float:
        """Run it."""
        self.pipe.send("again")
        seconds: float = self.pipe.recv()
        return seconds


def by_vectors(runs: int) -> Iterator[Figure]:
    """Time AVX2 and SSE2 against the widest vectors of this processor."""
    if platform.machine() != "x86_64":
        return
    widest = Elsewhere("v4")
    for vectors in ("v3", "base"):
        what = f"S {ROWS}, level off, processor time with PYSM120_VM_ISA={vectors}"
        yield compare(what, Elsewhere(vectors), "the widest", widest, runs, seconds_told)


class Interpreter:
    """Triton's interpreter in a process of its own, which runs the kernel once per line that it is sent."""

    def __init__(self, folder: Path) -> None:
        words = [sys.executable, str(HERE / "triton_interpreter.py"), str(folder)]
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        self.process = subprocess.Popen(  # a program of ours
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(self) -> None:
        """Run it."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the interpreter has no pipes")
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        if self.process.stdout.readline() != "done\n":
            raise RuntimeError("the interpreter failed")


def against_interpreter(runs: int, folder: Path) -> Iterator[Figure]:
    """Triton's flash attention: its PTX on the virtual device, its source in the interpreter; results must agree."""
    sys.path.insert(0, str(KERNELS))
    from triton_compile import compile_kernel  # noqa: PLC0415 # only where Triton is installed

    rng = np.random.default_rng(0)
    shape = (TRITON_HEADS, TRITON_ROWS, TRITON_DIM)
    inputs = [rng.standard_normal(shape).astype(np.float16) for _ in range(3)]
    outputs = [np.zeros(shape, np.float32), np.zeros(shape[:2], np.float32)]
    numbers = [np.int32(TRITON_ROWS), np.float32(TRITON_DIM**-0.5 / np.log(2))]
    constants = {"D": TRITON_DIM, "BM": BLOCK_M, "BN": BLOCK_N, "CAUSAL": False}
    np.savez(folder / "arguments.npz", *inputs, *outputs, *numbers)
    (folder / "constants.json").write_text(json.dumps(constants))
    interpreter = Interpreter(folder)
    compiled = compile_kernel("attention", *inputs, *outputs, *numbers, warps=4, stages=3, constants=constants)
    for level in ("off", "default"):
        device = pysm120.Device(f"virtual?checks={level}")
        kernel = device.load(compiled.asm["ptx"])[compiled.metadata.name]
        held = [device.array(a) for a in (*inputs, *outputs)]
        grid = (TRITON_ROWS // BLOCK_M, TRITON_HEADS)

        def launch() -> None:
            scratch = [np.uint64(0)] * 2
            block = 32 * compiled.metadata.num_warps
            kernel(grid, block, *held, *numbers, *scratch, shared=compiled.metadata.shared)  # noqa: B023 # used at once
            device.synchronize()  # noqa: B023 # likewise

        what = f"Triton's flash attention, H {TRITON_HEADS}, S {TRITON_ROWS}, D {TRITON_DIM}, level {level}"
        yield compare(what, launch, "Triton's interpreter", interpreter, runs)
        if not np.allclose(held[3].numpy(), np.load(folder / "out.npy"), rtol=0, atol=2e-3):
            raise RuntimeError("the virtual device and the interpreter do not agree")


def figures(runs: int) -> Iterator[Figure]:
    """Time everything that can be timed here."""
    yield from against_numpy(runs)
    yield from by_threads(runs)
    yield from by_level(runs)
    yield from by_vectors(runs)
    if importlib.util.find_spec("triton") is None:
        print("Triton is not installed: pip install 'pysm120[corpus]'")
        return
    with tempfile.TemporaryDirectory() as folder:
        yield from against_interpreter(runs, Path(folder))


def processor() -> str:
    """Name the chip."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Speed of the virtual SM120 against NumPy and Triton's interpreter.")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%d}, {processor()}, {cores} cores")
    print(f"B {BATCH}, H {HEADS}; unless a line says more, mxfp8 forward, D {HEAD_DIM}; medians of {arguments.runs}\n")
    rows = []
    for figure in figures(arguments.runs):
        row = figure.row()
        rows.append(row)
        print(
            f"{row['what']}: {row['seconds']:.4g} s; {row['against']}: {row['against_seconds']:.4g} s; "
            f"{row['ratio']:.3g} times ({row['ratio_min']:.3g} to {row['ratio_max']:.3g})",
            flush=True,
        )
    if arguments.json:
        about = {"processor": processor(), "cores": cores, "runs": arguments.runs}
        arguments.json.write_text(json.dumps({**about, "figures": rows}, indent=1))


if __name__ == "__main__":
    main()
