"""What the timing model predicts for the GPU at hand, beside what is measured."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pysm120.machine_code import sass
from pysm120.model import chips, files, measure, predict, validation, work
from pysm120.model import learn as learning
from pysm120.model import loops as known
from pysm120.model.problem import Problem
from pysm120.model.record import NotRecordedError
from pysm120.report import speed
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InternalError
from pysm120.runtime.module import builtin_image, builtin_index, find_builtin
from pysm120.runtime.timing import time_calls

LAUNCHES = measure.CASES


def loops(name: str, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Measure and predict loops of known instructions; a quick report has those that parameters are learned from."""
    with Device(name) as device:
        chip = chips.load(measure.chip_of(device))
        target = files.target_of(chip)
        chosen = [*(learning.loops() if quick else known.calibration()), *known.validation()]
        with ThreadPoolExecutor() as pool:
            made = list(pool.map(lambda loop: sass.assemble(loop.ptx(target), target), chosen))
        for loop, image in zip(chosen, made, strict=True):
            clocks, _ = measure.loop_clocks(device, loop, image)
            predicted = validation.loop_clocks(chip, loop)
            yield _row(
                f"{loop.name}, {loop.warps} warps", chip.key, clocks, predicted, loop=loop.name, warps=loop.warps
            )


def _row(name: str, chip: str, clocks: float, predicted: float, **others: Any) -> dict[str, Any]:
    """Return a row with the error of a prediction."""
    error = predicted / clocks - 1
    return {
        "name": name, "status": "measured", "chip": chip, "clocks": round(clocks, 2), "predicted": round(predicted, 2),
        "error": round(error, 4), **others,
    }  # fmt: skip


def launches(name: str, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Time launches of 16-bit attention, and predict them. Clocks are the time at the clock rate while they run."""
    with Device(name) as device:
        chip = chips.load(measure.chip_of(device))
        cases = [(entry, problem) for entry, problem in LAUNCHES if _is_uniform(entry)]
        for entry, problem in cases[::4] if quick else cases:
            _, launch = work.of_library(device, _builtin(entry), problem)
            clock = speed.Clock()
            with clock.sampled():
                seconds = sorted(time_calls(device, [launch], 7))[3]
            mhz = clock.mhz or float(chip["mhz"])
            predicted = _predicted(chip, entry, problem)
            row = _row(
                f"{entry} {problem}", chip.key, seconds * mhz * 1e6, predicted, entry=entry, problem=str(problem)
            )
            yield row | {"mhz": mhz, "us": round(seconds * 1e6, 2), "clock_sampled": clock.mhz is not None}


def _builtin(entry: str) -> Any:
    """Return the record of a kernel."""
    found = find_builtin(entry)
    if found is None:
        message = f"the library has no kernel {entry!r}"
        raise InternalError(message)
    return found


def _is_uniform(entry: str) -> bool:
    return work.is_uniform(_builtin(entry))


def _predicted(chip: chips.Chip, entry: str, problem: Problem) -> float:
    """Predict the clocks of a launch."""
    kernel, target, index = _builtin(entry), files.target_of(chip), builtin_index(entry)
    ptx = builtin_image(index, target, "ptx").decode() if index is not None else ""

    def record(function: sass.Function, threads: int) -> Any:
        try:
            return validation.recorder(ptx, target, problem, kernel)(function, threads)
        except NotRecordedError:
            return function, None

    model = validation.builtin_model(chip, entry, record=record)
    return predict.predict(model, problem.rounds(kernel), tensor_bytes=problem.tensor_bytes(kernel)).clocks
