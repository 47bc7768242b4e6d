"""Launches: their rate from the host, through this package and by graphs, and the gap between two kernels."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pysm120.microbench.form import LANES, Form, Operand
from pysm120.microbench.forms_math import constant, repeated
from pysm120.microbench.graph import graph_of
from pysm120.microbench.kernel import BenchKernel
from pysm120.microbench.launch import STAMPS, Launcher
from pysm120.runtime.module import Kernel

LAUNCHES = 300
QUEUED = 16
LONG_TRIPS = 1 << 15  # a kernel that runs while the others are queued behind it
Timed = Callable[[Launcher, BenchKernel, Kernel], float]  # seconds of one


def _arguments(launcher: Launcher, bench: BenchKernel, ctas: int, trips: int) -> tuple[Any, ...]:
    """Return the times of a launch of one warp."""
    device = launcher.device
    times = device.array(np.zeros((ctas, 1, STAMPS), np.uint64))
    sums = device.array(np.zeros((ctas * LANES, bench.words + 1), np.uint32))
    return times, sums, device.array(bench.inputs()), launcher.data(bench, ctas), np.uint32(trips)


def _one_after_another(ctas: int, *, waits: bool) -> Timed:
    def seconds(launcher: Launcher, bench: BenchKernel, kernel: Kernel) -> float:
        count = launcher.device.info.multiprocessors if ctas == 0 else ctas
        arguments = _arguments(launcher, bench, count, 1)
        kernel(count, LANES, *arguments)
        launcher.device.synchronize()
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            kernel(count, LANES, *arguments)
            if waits:
                launcher.device.synchronize()
        launcher.device.synchronize()
        return (time.perf_counter() - start) / LAUNCHES

    return seconds


def _graph(kernels: int, *, waits: bool) -> Timed:
    def seconds(launcher: Launcher, bench: BenchKernel, kernel: Kernel) -> float:
        device, stream = launcher.device, launcher.device.stream()
        arguments = _arguments(launcher, bench, 1, 1)

        def launch() -> None:
            for _ in range(kernels):
                kernel(1, LANES, *arguments, stream=stream)

        with graph_of(device, stream, launch) as again:
            again()
            device.synchronize()
            start = time.perf_counter()
            for _ in range(LAUNCHES):
                again()
                if waits:
                    device.synchronize()
            device.synchronize()
            return (time.perf_counter() - start) / LAUNCHES

    return seconds


def _between_in_graph(launcher: Launcher, bench: BenchKernel, kernel: Kernel) -> float:
    """Return the times between kernels that follow each other in a graph."""
    device, stream = launcher.device, launcher.device.stream()
    queued = [_arguments(launcher, bench, 1, 1) for _ in range(QUEUED)]

    def launch() -> None:
        for arguments in queued:
            kernel(1, LANES, *arguments, stream=stream)

    with graph_of(device, stream, launch) as again:
        again()
        device.synchronize()
        again()
    return _gap(queued)


def _gap(queued: Sequence[tuple[Any, ...]]) -> float:
    stamps = [arguments[0].numpy()[0, 0] for arguments in queued]
    return float(np.median([float(b[2]) - float(a[3]) for a, b in itertools.pairwise(stamps)])) * 1e-9


def _between(launcher: Launcher, bench: BenchKernel, kernel: Kernel) -> float:
    """Return the median time from a kernel's end to the next kernel's start, by globaltimer."""
    first = _arguments(launcher, bench, 1, LONG_TRIPS)
    queued = [_arguments(launcher, bench, 1, 1) for _ in range(QUEUED)]
    kernel(1, LANES, *first)
    for arguments in queued:
        kernel(1, LANES, *arguments)
    return _gap([first, *queued])


def _form(name: str, timed: Timed, note: str) -> Form:
    word = np.uint32(0x9E3779B1)
    return Form(
        name=name, group="launch", lines=("mad.lo.u32 X, X, A, A;",), sass="IMAD", state=Operand("b32", 1, 7),
        inputs={"A": constant(int(word))}, model=repeated(lambda x: x * word + word, np.uint32), amount=1, unit="launch",
        chains=(1,), warps=(1,), unroll=16, note=note, options={"seconds": timed},
    )  # fmt: skip


FORMS = [
    _form(
        "launch, a CTA, one after another", _one_after_another(1, waits=False), "through Python; the host's own time"
    ),
    _form(
        "launch, a CTA per multiprocessor", _one_after_another(0, waits=False), "through Python; the host's own time"
    ),
    _form("launch and synchronise", _one_after_another(1, waits=True), "through Python, there and back"),
    _form("from a kernel to the next", _between, "on the device, both in a queue; end of loop to start of loop"),
    _form("graph of a kernel, one after another", _graph(1, waits=False), "cuGraphLaunch; the host's own time"),
    _form("graph of a kernel and synchronise", _graph(1, waits=True), "there and back"),
    _form("graph of 16 kernels and synchronise", _graph(QUEUED, waits=True), "there and back, all 16"),
    _form("from a kernel to the next in a graph", _between_in_graph, "on the device; end of loop to start of loop"),
]
