"""Fit the parameters of a chip to the measurements in a report, and say what changed.

A parameter is fitted to the few loops that it determines, one parameter after the other: the one value with which the
model predicts them best. More clocks of a parameter never make a loop faster, so the search halves an interval.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pysm120.model import loops as known
from pysm120.model import validation
from pysm120.model.chips import Chip, Timing
from pysm120.model.loops import Loop
from pysm120.runtime.errors import InvalidArgumentError

_HALVINGS = 14  # halvings of the interval
_WIDEST = 16.0  # a parameter may change by this factor at most
_SAME = 0.003  # errors that differ by less are the same: clocks are measured no better
_FLAT = 1e-4  # a smaller error is none
_KEPT = 0.002  # a parameter whose fit is not better by this much keeps its value
_PASSES = 2  # a rate depends on a latency that is fitted later


class Fitted(NamedTuple):
    """A parameter, and the loops (name, warps) that determine it.

    ``section`` is "instruction.KIND" or a table of the chip file; ``key`` is the key in it.
    """

    section: str
    key: str
    loops: tuple[tuple[str, int], ...]


def _instruction(kind: str, key: str, *loops: tuple[str, int]) -> Fitted:
    return Fitted(f"instruction.{kind}", key, loops)


# Latencies come from chains, which one warp executes; intervals from independent instructions of many warps. The
# latency of fma and of mma.sync is not here: ptxas writes it into the machine code, where the model reads it. Nor are
# the hand-overs between warps and the copies: the loops that measure them are predicted without them.
PARAMETERS = (
    Fitted("scheduler", "taken_branch", (("branch_taken_near", 1),)),
    _instruction("hmma_16816_f32", "interval", ("rate_mma", 16), ("rate_mma", 4)),
    _instruction("mufu", "latency", ("chain_ex2", 1)),
    _instruction("mufu", "interval", ("rate_ex2", 16), ("rate_ex2", 4)),
    _instruction("alu", "interval", ("rate_alu", 16)),
    _instruction("pack", "interval", ("rate_pack", 16)),
    _instruction("ldmatrix", "latency", ("chain_ldmatrix", 1)),
    _instruction("load_shared", "latency", ("chain_lds", 1)),
    _instruction("shuffle", "latency", ("chain_shfl", 1)),
    Fitted("hand_off", "barrier_latency", (("chain_barrier", 1),)),
    _instruction("try_wait", "latency", ("try_wait", 1)),
)
STEPS = _PASSES * len(PARAMETERS)  # calls of `step`


class Change(NamedTuple):
    """A parameter, its old and its new value, and the mean error of its loops with either."""

    name: str
    old: float
    new: float
    before: float
    after: float


@dataclasses.dataclass(frozen=True)
class Learned:
    """A fitted chip; its parameters; errors of loops for validation with either chip."""

    chip: Chip
    changes: tuple[Change, ...]
    missing: tuple[str, ...]  # parameters whose loops nobody measured
    before: tuple[float, float]  # median and largest error of the loops for validation
    after: tuple[float, float]
    is_held_out: bool  # whether the report has such loops


Measured = dict[tuple[str, int], float]


def loops() -> list[Loop]:
    """Return the loops from which parameters are learned."""
    wanted = {one for parameter in PARAMETERS for one in parameter.loops}
    return [loop for loop in known.calibration() if (loop.name, loop.warps) in wanted]


def value_of(chip: Chip, parameter: Fitted) -> float:
    """Return a parameter of a chip."""
    kind = parameter.section.removeprefix("instruction.")
    found = chip[parameter.key] if kind == parameter.section else getattr(chip.timing(kind), parameter.key)
    return float(found)


def with_value(chip: Chip, parameter: Fitted, value: float) -> Chip:
    """Return a chip with another value of a parameter."""
    kind = parameter.section.removeprefix("instruction.")
    if kind == parameter.section:
        return dataclasses.replace(chip, values={**chip.values, parameter.key: value})
    old = chip.timing(kind)
    timing = Timing(
        old.pipe, *(value if key == parameter.key else getattr(old, key) for key in ("interval", "latency"))
    )
    return dataclasses.replace(chip, timings={**chip.timings, kind: timing})


def measured_of(document: dict[str, Any]) -> tuple[str, Measured]:
    """Return the chip of a report and its measured loops."""
    rows = [row for task in document["tasks"].values() for row in task["rows"] if "loop" in row and "clocks" in row]
    if not rows:
        message = "the report has no measured loops: it needs a GPU that has a chip file, and ptxas and nvdisasm"
        raise InvalidArgumentError(message)
    return str(rows[0]["chip"]), {(str(row["loop"]), int(row["warps"])): float(row["clocks"]) for row in rows}


def error_of(chip: Chip, chosen: Sequence[Loop], measured: Measured) -> float:
    """Return the mean of the absolute errors of the predictions of loops."""
    return statistics.fmean(abs(error) for error in _errors(chip, chosen, measured))


def _errors(chip: Chip, chosen: Sequence[Loop], measured: Measured) -> list[float]:
    """Return the relative errors of predictions, with their signs."""
    return [validation.loop_clocks(chip, loop) / measured[loop.name, loop.warps] - 1 for loop in chosen]


def fit(chip: Chip, parameter: Fitted, chosen: Sequence[Loop], measured: Measured) -> float:
    """Return the value of a parameter with which the model predicts loops best; an integer if that is as good."""
    old = value_of(chip, parameter)

    def bias(value: float) -> float:
        return statistics.fmean(_errors(with_value(chip, parameter, value), chosen, measured))

    def error(value: float) -> float:
        return error_of(with_value(chip, parameter, value), chosen, measured)

    if error(old) <= _SAME:
        return old
    least, most = old / _WIDEST, old * _WIDEST
    for _ in range(_HALVINGS):
        middle = math.sqrt(least * most)
        off = bias(middle)
        # Where a parameter does not matter any more, the value next to the old one is as good as any.
        is_low = off < 0 if abs(off) > _FLAT else middle < old
        least, most = (middle, most) if is_low else (least, middle)
    found = math.sqrt(least * most)
    # The simulator counts whole clocks, so that the fit lies at the edge of a step.
    whole = [float(round(found)), float(math.ceil(found)), float(math.floor(found))]
    candidates = [old, *whole, round(2 * found) / 2, float(f"{found:.4g}")]
    errors = {value: error(value) for value in candidates if value > 0}
    best = min(errors.values())
    if errors[old] <= best + _KEPT:
        return old
    return next(value for value in candidates if value > 0 and errors[value] <= best + _SAME)


def learn(document: dict[str, Any], chip: Chip, step: Callable[[str], None]) -> Learned:
    """Fit a chip to a report; ``step`` is called with the name of each parameter."""
    _, measured = measured_of(document)
    by_name = {(loop.name, loop.warps): loop for loop in known.calibration()}
    new, missing = chip, []
    for number in range(_PASSES):
        for parameter in PARAMETERS:
            chosen = [by_name[one] for one in parameter.loops if one in measured]
            if chosen:
                new = with_value(new, parameter, fit(new, parameter, chosen, measured))
            elif number == 0:
                missing.append(f"{parameter.section}.{parameter.key}")
            step(f"{parameter.section}.{parameter.key}")
    changes = []
    for parameter in PARAMETERS:
        chosen = [by_name[one] for one in parameter.loops if one in measured]
        if chosen:
            values = (value_of(one, parameter) for one in (chip, new))
            errors = (error_of(one, chosen, measured) for one in (chip, new))
            changes.append(Change(f"{parameter.section}.{parameter.key}", *values, *errors))
    kept = [loop for loop in known.validation() if (loop.name, loop.warps) in measured]
    before, after = (_summary(_errors(one, kept, measured)) for one in (chip, new))
    return Learned(new, tuple(changes), tuple(missing), before, after, bool(kept))


def _summary(errors: Sequence[float]) -> tuple[float, float]:
    """Return the median and the largest of absolute errors."""
    sizes = [abs(error) for error in errors] or [0.0]
    return statistics.median(sizes), max(sizes)


def text_of(learned: Learned, base: str, source: str) -> str:
    """Return a chip file that has the fitted parameters, and inherits all others."""
    lines = [f'like = "{base}"', f'target = "{learned.chip["target"]}"']
    changed = [change for change in learned.changes if change.new != change.old]
    sections: dict[str, dict[str, float]] = {}
    for change in changed:
        section, _, key = change.name.rpartition(".")
        sections.setdefault(section, {})[key] = change.new
    for section, values in sections.items():
        lines += ["", f"[{section}]"]
        if section.startswith("instruction."):
            timing = learned.chip.timing(section.removeprefix("instruction."))
            lines += [f'pipe = "{timing.pipe}"', f"interval = {timing.interval:g}", f"latency = {timing.latency:g}"]
        else:
            lines += [f"{key} = {value:g}" for key, value in values.items()]
        lines.append(f'source = "{source}: {", ".join(values)}; the rest as {base}"')
    return "\n".join(lines) + "\n"
