"""Validation of the timing model: predicted and measured clocks of loops and launches."""

import dataclasses
import json
import lzma
import statistics
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from pysm120.machine_code import sass
from pysm120.machine_code.cubin import Cubin
from pysm120.model import backward, chips, kernel_model, launches, loops, memory, predict, streams
from pysm120.model import problem as problems
from pysm120.model import record as records
from pysm120.model.chips import Chip
from pysm120.model.kernel_model import KernelModel
from pysm120.model.loops import Loop
from pysm120.model.problem import Problem
from pysm120.model.recorded import Recording
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.runtime.module import Builtin, builtin_image, builtin_index, builtins, find_builtin
from pysm120.runtime.names import demangled

Record = Callable[[sass.Function, int], tuple[sass.Function, Recording | None]]
WarpsOf = Callable[[sass.Function, int, Recording | None], int]
_SHORT, _LONG = 6, 14  # rounds of two runs of a loop; their difference is timed


@dataclasses.dataclass(frozen=True)
class Row:
    """A predicted and a measured time, in clocks."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.measured - 1


def timed_loop(function: sass.Function) -> sass.Loop:
    """Return the loop between the two readings of the clock."""
    clocks = [i for i, one in enumerate(function.instructions) if "CLOCK" in str(one)]
    inside = [
        loop for loop in function.loops if clocks[0] < function.blocks[loop.header].first <= clocks[-1] and loop.blocks
    ]
    return max(inside, key=lambda loop: sum(1 for _ in function.of_loop(loop)))


def loop_model(chip: Chip, loop: Loop) -> KernelModel:
    """Return the model of a loop of known instructions."""
    function = _loop_function(loop, str(chip["target"]) + ("f" if chip["target"] == "sm_120" else ""))
    return kernel_model.build(chip, function, 32 * loop.warps, 1, loop=timed_loop(function))


@lru_cache(maxsize=256)
def _loop_function(loop: Loop, target: str) -> sass.Function:
    """Assemble and disassemble a loop once."""
    return sass.disassemble(sass.assemble(loop.ptx(target), target))["loop"]


def loop_clocks(chip: Chip, loop: Loop) -> float:
    """Predict the clocks of a round of a loop."""
    model = loop_model(chip, loop)
    short, long = (model.run([rounds], 1).clocks for rounds in (_SHORT, _LONG))
    return (long - short) / (_LONG - _SHORT)


def builtin_model(
    chip: Chip, entry: str, *, stages: int | None = None, stated: Any = None, record: Record | None = None
) -> KernelModel:
    """Return the model of a kernel of the library."""
    index = builtin_index(entry)
    if index is None:
        message = f"the kernel is {entry!r}, neither a kernel of the library (see info) nor an existing .cubin file"
        raise InvalidArgumentError(message)
    builtin = builtins()[index]
    target = "sm_120f" if chip["target"] == "sm_120" else str(chip["target"])
    image = builtin_image(index, target, "cubin")
    return image_model(chip, image, entry, builtin.shared_bytes, stages=stages, stated=stated, record=record)


def image_model(
    chip: Chip,
    image: bytes,
    name: str | None,
    shared_bytes: int,
    *,
    threads: int | None = None,
    stages: int | None = None,
    stated: Any = None,
    record: Record | None = None,
    warps_of: WarpsOf | None = None,
    busy: float = 0.0,
    share: float = 0.0,
    streamed: bool = False,
    tensor_bytes: float = 0,
    in_time: bool = False,
) -> KernelModel:
    """Return the model of a kernel of a cubin, with an amount of dynamic shared memory.

    ``threads``: of a CTA, if the cubin does not state them. ``record``: returns the kernel with the lines of its PTX,
    and the recording of its branches. ``warps_of``: returns the warps of a CTA that execute the main loop.
    ``streamed``: loads come from DRAM (``memory.is_streamed``). ``busy``: the share of the time in which DRAM is busy.
    ``share``: that of the lines of L2 which come from DRAM. ``tensor_bytes``: of the launch; if L2 does not keep them
    and a round waits for what it loads, its tiles are there when the slowest of their bytes has come from DRAM.
    ``in_time``: the warps wait for no mbarrier.
    """
    cubin = Cubin(image)
    entry = cubin.entry(name)
    if f"sm_{cubin.target}" != chip["target"]:
        message = f"the cubin is for sm_{cubin.target}, but {chip['name']} needs {chip['target']}"
        raise InvalidArgumentError(message)
    threads = threads or entry.threads
    if not threads:
        message = f"{demangled(entry.name)} does not state the threads of a CTA: give --block"
        raise UnsupportedError(message)
    shared = shared_bytes + entry.static_shared_bytes
    slots = chip.ctas_per_sm(entry.registers, threads, shared)
    if slots == 0:
        needs = f"{threads} threads, {entry.registers} registers of each and {shared:,} bytes of shared memory"
        message = f"{demangled(entry.name)} with {needs} does not fit on {chip['name']}"
        raise InvalidArgumentError(message)
    function, recording = _function(image, entry.name), None
    if record:
        function, recording = record(function, threads)
    if recording:
        of_cta = memory.l1_bytes(chip, slots, shared)
        recording.launches = [launch.within(of_cta) for launch in recording.launches]
    has_products = any(one.is_tensor for one in function.instructions)
    chip = chip.running(has_products=has_products)
    warps = warps_of(function, threads, recording) if warps_of else None
    loop = recording.loop if recording and recording.loop.blocks else None
    room = memory.of_warp(chip, slots, shared, threads)

    def build(chip: Chip) -> KernelModel:
        return kernel_model.build(
            chip, function, threads, slots, loop=loop, warps=warps, stages=stages, stated=stated, recording=recording,
            through=warps_of is not None, in_time=in_time, room=room,
        )  # fmt: skip

    if not has_products:
        return build(streams.from_dram(chip, busy, share) if streamed else chip)
    model = build(chip)
    if has_products and model.loop and not streams.fits(chip, tensor_bytes):
        late = streamed or kernel_model.loads_and_waits(model.function, model.loop)
        return build(streams.from_dram(chip, busy, share, some=True)) if late else model
    return model


@lru_cache(maxsize=64)
def _function(image: bytes, entry: str) -> sass.Function:
    """Disassemble a kernel once."""
    return sass.disassemble(image, entry)[entry]


def launch_clocks(chip: Chip, folder: Path, row: dict[str, Any]) -> float:
    """Predict the clocks of a launch, from the measured code, which is kept beside the figures."""
    image = launches.image_of(folder, row)
    if "arguments" in row:
        held = launches.tensor_bytes(row)
        model = image_model(chip, image, row["entry"], int(row["shared_bytes"]), tensor_bytes=held)
        return predict.predict(model, launches.rounds_of(row), tensor_bytes=held).clocks
    problem, kernel, record = problems.parse(row["problem"]), record_of(row), None
    ptx = lzma.decompress((folder / row["ptx"]).read_bytes()).decode() if "ptx" in row else ""
    if "counted" in row:
        function = records.with_lines(_function(image, kernel.entry), ptx, str(chip["target"]))
        counted, main = row["counted"], record_of(row["main"])
        stream = backward.stream_of(kernel, main, problem, dict(counted["executed"]), counted["rows"])
        return streams.predict(_at_clock(chip, row), image, function, stream).clocks
    if ptx:
        record = _or_by_rules(recorder(ptx, str(chip["target"]), problem, kernel))
    model = image_model(chip, image, kernel.entry, kernel.shared_bytes, record=record)
    rounds = problem.rounds(kernel, row.get("heads_together"))
    return predict.predict(model, rounds, tensor_bytes=problem.tensor_bytes(kernel)).clocks


def _at_clock(chip: Chip, row: dict[str, Any]) -> Chip:
    """Return the chip at the clock rate of a measurement: a memory's bytes a clock depend on it."""
    return chip.at(float(row.get("mhz", chip["mhz"])))


def _with_counts(document: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of delta or dq with its counted statements and its main kernel; other rows as they are."""
    if "of" not in row:
        return row
    counted = next(one for one in document["counts"] if (one["of"], one["entry"]) == (row["of"], row["entry"]))
    main = next(one for one in document["launches"] if one["entry"] == row["of"])
    return {**row, "counted": counted, "main": main}


def record_of(row: dict[str, Any]) -> Builtin:
    """Return the record of the measured kernel: that of the row, else that of the library."""
    entry, shared_bytes = str(row["entry"]), int(row["shared_bytes"])
    if "record" in row:
        return Builtin(**{"source": "", "threads": 0, **row["record"], "entry": entry, "shared_bytes": shared_bytes})
    found = find_builtin(entry)
    if found is None:
        message = f"the launch of {entry} has no record, and the library has no such kernel"
        raise InvalidArgumentError(message)
    return dataclasses.replace(found, shared_bytes=shared_bytes)


def recorder(ptx: str, target: str, problem: Problem, kernel: Builtin) -> Record:
    """Return a function that records this version of a kernel of attention with a problem on the virtual device."""

    def record(function: sass.Function, threads: int) -> tuple[sass.Function, Recording]:
        text = records.as_in_library(ptx, function.name)
        known = records.with_lines(function, text, target)
        return known, records.recording(known, text, threads, problem, kernel)

    return record


def _or_by_rules(record: Record) -> Record:
    """Use only the rules if nothing can be recorded: some kernels can be launched only by an older library."""

    def found(function: sass.Function, threads: int) -> tuple[sass.Function, Recording | None]:
        try:
            return record(function, threads)
        except records.NotRecordedError:
            return function, None

    return found


def name_of(row: dict[str, Any]) -> str:
    """Return the name of a launch."""
    if "name" in row:
        return str(row["name"])
    image = Path(row["image"]).name.removesuffix(".xz").removesuffix(".cubin")
    return image if "arguments" in row else f"{row['entry']} {row['problem']}"


def read(path: Path) -> dict[str, Any]:
    """Return recorded measurements."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"--validate is {str(path)!r}, not a file of measurements: {error}"
        raise InvalidArgumentError(message) from error
    if not isinstance(document, dict) or not {"chip", "loops", "launches"} <= set(document):
        message = f"--validate is {str(path)!r}, which must have chip, loops and launches"
        raise InvalidArgumentError(message)
    return document


def compare(document: dict[str, Any], folder: Path) -> Iterator[Row]:
    """Predict measurements: the loops for validation, then the launches."""
    chip = chips.load(str(document["chip"]))
    measured = {(row["name"], row["warps"]): row["clocks"] for row in document["loops"]}
    for loop in loops.validation():
        if (loop.name, loop.warps) in measured:
            clocks = loop_clocks(chip, loop)
            yield Row(f"{loop.name}, {loop.warps} warps", clocks, measured[loop.name, loop.warps])
    for row in document["launches"]:
        if "failure" in row:
            continue
        full = _with_counts(document, row)
        yield Row(name_of(row), launch_clocks(chip, folder, full), row["clocks"])


def errors(rows: list[Row]) -> tuple[float, float]:
    """Return the median and the largest of the errors."""
    found = [abs(row.error) for row in rows]
    return statistics.median(found), max(found)
