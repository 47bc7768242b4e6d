"""Measure a form: first check its result, then measure its latency and its rate by warps and chains."""

import dataclasses

from pysm120.microbench.form import LANES
from pysm120.microbench.kernel import BenchKernel
from pysm120.microbench.launch import Launcher, Times, check
from pysm120.microbench.prepare import Ready
from pysm120.microbench.result import Cell, Result, Spread
from pysm120.runtime.errors import Error, FaultError
from pysm120.runtime.module import Kernel

FIRST_TRIPS = 4
SHORT_CLOCKS = 40_000  # duration of a run that searches for the best cell
SHORT_RUNS = 3
WARM_RUNS = 2
MOST_TRIPS = 1 << 24


@dataclasses.dataclass(frozen=True)
class Choice:
    """The options of the command line for measuring."""

    runs: int = 7
    seconds: float = 2e-3  # duration of a run whose figure is kept; globaltimer ticks in microseconds on some chips
    may_be_unproven: bool = False


def measure(launcher: Launcher, ready: Ready, choice: Choice) -> Result:
    """Check a form, and measure it if the device is a GPU and its machine code is proven."""
    form = ready.form
    result = Result(form.name, form.group, form.unit, "absent", ready.refusal, form.note)
    if ready.refusal:
        return result
    largest = max(ready.kernels)
    if largest in ready.proofs:
        result.sass = ready.proofs[largest].summary
        result.instructions = sum(ready.proofs[largest].opcodes.values()) / ready.kernels[largest][0].steps
    try:
        wrong = [check(launcher, *pair) for pair in ready.kernels.values()]
    except FaultError as error:
        wrong = [str(error).splitlines()[0]]
    except Error as error:  # for example, too little memory
        result.message = str(error).splitlines()[0]
        return result
    wrong = [text for text in wrong if text]
    if wrong:
        result.status, result.message = "wrong", wrong[0]
    elif launcher.device.is_virtual:
        result.status, result.message = "checked", ready.objection
    elif ready.objection:
        result.status, result.message = "objected", ready.objection
    elif ready.proofs or choice.may_be_unproven:
        result.status = "measured" if ready.proofs else "unproven"
        try:
            _time(launcher, ready, choice, result)
        except Error as error:  # the failure of a form must not lose the figures of others
            result.withdraw("wrong", str(error).splitlines()[0])
    else:
        result.status, result.message = "objected", "the machine code was not checked"
    return result


def _time(launcher: Launcher, ready: Ready, choice: Choice, result: Result) -> None:
    form = ready.form
    if "seconds" in form.options:
        _time_launches(launcher, ready, choice, result)
        return
    if form.has_latency:
        bench, kernel = ready.kernels[form.chains[0]]
        run = _Run(launcher, bench, kernel, ctas=1, warps=form.options.get("latency_warps", 1))
        if form.options.get("first_steps"):  # warm up the caches
            run(-(-form.options["first_steps"] // form.unroll))
        trips = run.trips_for(form.options.get("clocks", SHORT_CLOCKS))
        times = [run(trips) for _ in range(choice.runs)]
        result.latency = Spread.of([t.clocks / (trips * form.unroll) for t in times])
        result.megahertz = Spread.of([t.megahertz for t in times])
    if not form.has_rate:
        return
    sms = int(form.options.get("ctas", lambda count: count)(launcher.device.info.multiprocessors))
    best: tuple[float, _Run] | None = None
    for bench, kernel in ready.kernels.values():
        for warps in form.warps:
            if warps * LANES > kernel.info.max_threads:
                continue
            run = _Run(launcher, bench, kernel, ctas=sms, warps=warps)
            trips = run.trips_for(SHORT_CLOCKS)
            rate = Spread.of([run.per_clock(run(trips), trips) for _ in range(SHORT_RUNS)]).median
            result.cells.append(Cell(bench.chains, warps, rate))
            if best is None or rate > best[0]:
                best = (rate, run)
    if best is not None:
        _keep(best[1], choice, result)


def _time_launches(launcher: Launcher, ready: Ready, choice: Choice, result: Result) -> None:
    """Time the host's work, or the gap between kernels."""
    seconds = [ready.form.options["seconds"](launcher, *ready.kernels[1]) for _ in range(choice.runs)]
    if min(seconds) > 0:
        result.per_second = Spread.of([1 / s for s in seconds])
    else:
        result.withdraw("objected", "the device's timer did not advance during the run: it is too coarse")


def _keep(run: "_Run", choice: Choice, result: Result) -> None:
    """Time the best cell for longer."""
    trips = run.trips_for(SHORT_CLOCKS)
    trips = min(MOST_TRIPS, max(trips, int(trips * choice.seconds / max(run(trips).seconds, 1e-7))))
    for _ in range(WARM_RUNS):
        run(trips)
    times = [run(trips) for _ in range(choice.runs)]
    if not all(t.is_spread for t in times):
        result.withdraw("wrong", "two CTAs shared a multiprocessor")
        return
    result.chains, result.warps = run.bench.chains, run.warps
    result.per_clock = Spread.of([run.per_clock(t, trips) for t in times])
    result.per_second = Spread.of([run.work(trips) * run.ctas / max(1e-9, t.seconds) for t in times])
    result.megahertz = Spread.of([t.megahertz for t in times])


class _Run:
    """A kernel with a number of CTAs and warps."""

    def __init__(self, launcher: Launcher, bench: BenchKernel, kernel: Kernel, *, ctas: int, warps: int) -> None:
        self.bench, self.ctas, self.warps = bench, ctas, warps
        self._launch = launcher.prepared(bench, kernel, ctas=ctas, warps=warps, timed=True)

    def __call__(self, trips: int) -> Times:
        return self._launch(trips)[0]

    def work(self, trips: int) -> float:
        """Return the work of a CTA."""
        form = self.bench.form
        warps = 1 if form.options.get("per_cta") else self.warps
        return trips * self.bench.steps * form.amount * warps

    def per_clock(self, times: Times, trips: int) -> float:
        """Return the work of a multiprocessor in a clock."""
        return self.work(trips) / max(1.0, times.clocks)

    def trips_for(self, clocks: float) -> int:
        """Return how many trips take a number of clocks; runs some trips, which also warms up."""
        self(FIRST_TRIPS)
        return max(1, min(MOST_TRIPS, round(FIRST_TRIPS * clocks / max(1.0, self(FIRST_TRIPS).clocks))))
