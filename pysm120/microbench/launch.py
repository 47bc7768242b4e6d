"""Launches of a benchmark's kernel: its inputs, the clocks and words that it returns, and the check of the words."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.microbench.form import LANES, Form
from pysm120.microbench.kernel import BenchKernel
from pysm120.runtime.device import Device
from pysm120.runtime.module import Kernel

Run = Callable[[int], "tuple[Times, npt.NDArray[np.uint32]]"]  # by the number of trips
STAMPS = 5
POISON = 0xA5A5A5A5
VIRTUAL_SPAN = 1 << 20


@dataclasses.dataclass(frozen=True)
class Times:
    """When the warps of a launch began and ended, [cta][warp]; clocks of each multiprocessor, nanoseconds of all."""

    clock_start: npt.NDArray[np.uint64]
    clock_end: npt.NDArray[np.uint64]
    timer_start: npt.NDArray[np.uint64]
    timer_end: npt.NDArray[np.uint64]
    sm: npt.NDArray[np.uint64]

    @property
    def clocks(self) -> float:
        """Clocks from the first start to the last end in a CTA; the median of all CTAs."""
        return float(np.median(self.clock_end.max(axis=1) - self.clock_start.min(axis=1)))

    @property
    def seconds(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.timer_end.max() - self.timer_start.min()) * 1e-9

    @property
    def megahertz(self) -> float:
        """The clock rate during the launch, from both counters; 0 if the timer did not advance."""
        nanoseconds = (self.timer_end.max(axis=1) - self.timer_start.min(axis=1)).astype(np.float64)
        clocks = (self.clock_end.max(axis=1) - self.clock_start.min(axis=1)).astype(np.float64)
        return (
            float(np.median(clocks[nanoseconds > 0] / nanoseconds[nanoseconds > 0]) * 1e3)
            if (nanoseconds > 0).any()
            else 0.0
        )

    @property
    def is_spread(self) -> bool:
        """Whether every CTA had a multiprocessor to itself."""
        return len(np.unique(self.sm[:, 0])) == len(self.sm)


class Launcher:
    """Launches kernels of benchmarks on a device; holds the memory that they use."""

    def __init__(self, device: Device, seed: int) -> None:
        self.device = device
        self.rng = np.random.default_rng(seed)
        self._data: Any = None
        self._is_written = False
        self._pattern: npt.NDArray[np.uint32] | None = None

    def pattern(self, nbytes: int) -> npt.NDArray[np.uint32]:
        """Return the initial data of the kernels: all words differ."""
        words = -(-nbytes // 4)
        if self._pattern is None or len(self._pattern) < words:
            self._pattern = np.arange(words, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(0x1234567)
        return self._pattern[:words]

    def limited(self, span: int) -> int:
        """Return how many bytes a kernel accesses; few on the virtual device, which measures no time."""
        return min(span, VIRTUAL_SPAN) if self.device.is_virtual else span

    def data(self, bench: BenchKernel, ctas: int) -> Any:
        """Return the global memory of a kernel; it is refilled if a kernel has written to it."""
        options = bench.form.options
        nbytes = self.limited(int(options.get("data", lambda _: 16)(ctas)))
        if self._data is None or self._data.nbytes < nbytes or options.get("writes") or self._is_written:
            self._data = None  # free the old buffer first: it may be large
            self._data = self.device.array(options["fill"](nbytes, ctas) if "fill" in options else self.pattern(nbytes))
            if options.get("addresses"):
                places = self._data.numpy().view(np.uint64) + np.uint64(self._data.address)
                self._data.copy_from(places.view(np.uint32))
        self._is_written = bool(options.get("writes"))
        return self._data

    def read(self, nbytes: int) -> npt.NDArray[np.uint32]:
        """Return the first bytes of the data as they are now."""
        words: npt.NDArray[np.uint32] = self._data.numpy()[: nbytes // 4]
        return words

    def launch(
        self, bench: BenchKernel, kernel: Kernel, *, ctas: int, warps: int, trips: int, timed: bool
    ) -> tuple[Times, npt.NDArray[np.uint32]]:
        """Run a kernel once; return the times and the words [thread][word]."""
        return self.prepared(bench, kernel, ctas=ctas, warps=warps, timed=timed)(trips)

    def prepared(self, bench: BenchKernel, kernel: Kernel, *, ctas: int, warps: int, timed: bool) -> Run:
        """Return a function that runs a kernel with a number of trips."""
        device, form = self.device, bench.form
        threads = ctas * warps * LANES
        words = form.options.get("words", bench.words)
        times = device.array(np.zeros((ctas, warps, STAMPS), np.uint64))
        sums = device.array(np.full((threads, words + 1), POISON, np.uint32))
        values = bench.inputs(self.rng if timed else None)
        for name, _, index in bench.loads():
            if name == "input_M_0":  # the span less one
                values[index] = self.limited(int(form.options["span"])) - 1
        inputs = device.array(values)
        data = self.data(bench, ctas)
        more = form.options["arguments"](device, data, bench, ctas) if "arguments" in form.options else ()
        shared = int(form.options.get("shared", lambda *_: 0)(bench, warps))

        def run(trips: int) -> tuple[Times, npt.NDArray[np.uint32]]:
            kernel(ctas, warps * LANES, times, sums, inputs, data, np.uint32(trips), *more, shared=shared)
            stamps = times.numpy()
            return Times(*(stamps[:, :, i] for i in range(STAMPS))), np.asarray(sums.numpy())

        return run


def check(
    launcher: Launcher, bench: BenchKernel, kernel: Kernel, *, ctas: int = 2, warps: int = 2, trips: int = 3
) -> str:
    """Run a kernel for a few trips; return what is wrong with its words, or ""."""
    form = bench.form
    warps, ctas = form.options.get("check_warps", warps), form.options.get("check_ctas", ctas)
    _, words = launcher.launch(bench, kernel, ctas=ctas, warps=warps, trips=trips, timed=False)
    if "check" in form.options:
        return str(form.options["check"](launcher, bench, words, ctas, warps, trips))
    expected = form.model(form.state.initial(), trips * form.unroll)  # [word][lane]
    got = words.reshape(ctas * warps, LANES, bench.words + 1)
    first = got[:, :, :-1].transpose(0, 2, 1)
    if not _agree(first, expected, form):
        where = tuple(int(i[0]) for i in np.nonzero(first != expected))
        place = f"word {where[1]} of lane {where[2]} of warp {where[0]}"
        steps = trips * form.unroll
        return f"{place} is {first[where]:#010x} after {steps} steps, not {expected[where[1:]]:#010x}"
    sums = (first.astype(np.uint64).sum(axis=1) * bench.chains).astype(np.uint32)
    if not np.array_equal(got[:, :, -1], sums):
        return f"the {bench.chains} chains of {bench.entry} do not end alike"
    return ""


def _agree(got: npt.NDArray[np.uint32], expected: npt.NDArray[np.uint32], form: Form) -> bool:
    if form.rtol == 0:
        return bool((got == expected).all())
    a, b = (np.ascontiguousarray(x).view(form.number).astype(np.float64) for x in (got, expected))
    return bool(np.allclose(a, b, rtol=form.rtol, atol=0))
