"""``check``: run a kernel over many seeds; its results must be the same, bit for bit."""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import os
import re
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.cli import console, place
from pysm120.cli.command import Command
from pysm120.cli.run import type_text
from pysm120.observe import program as programs
from pysm120.observe.program import Launch, Output, Program
from pysm120.observe.values import addresses, value_text
from pysm120.observe.watch import MOST_BYTES, Step, instructions, lanes_of
from pysm120.runtime.device import Device
from pysm120.runtime.errors import FaultError, InvalidArgumentError
from pysm120.runtime.names import demangled, readable

ATOMICS = re.compile(r"(atom|red|cp\.reduce)\.")
WORKERS = 64
WIDEST = 32  # bytes that a lane may store
KINDS = {"u": "u", "i": "s", "f": "f"}


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    programs.add_arguments(parser, "check", device="virtual")
    parser.add_argument("--seeds", metavar="N", help="number of seeds, starting with --seed (default: 16)")
    parser.add_argument(
        "--tolerance",
        metavar="T",
        help="allow floating-point numbers to differ by T times the larger one, as sums by atomics do "
        "(default: 0: every bit must agree)",
    )
    parser.description = (
        "Run a kernel once for every seed and compare all arrays, and the variables of its module. A seed chooses the "
        "order of warps and CTAs, and when asynchronous copies land. The default level of checks is full: CTAs run on "
        "one core, in an order that the seed chooses. Exit status: 0 if all seeds agree, 1 after a difference or a "
        "fault, 2 for a wrong command."
    )


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first element that differs between two seeds."""

    seeds: tuple[int, int]
    first: Output
    second: Output
    at: int  # index among the elements in C order
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of an element."""
        return self.first.after.itemsize

    def text(self) -> str:
        """Return the difference as text."""
        output = self.first
        name = readable(output.parameter.name)
        name = f"variable {name}" if output.index is None else f"argument {output.index} {name}".rstrip()
        index = ",".join(map(str, np.unravel_index(self.at, output.after.shape))) if output.after.shape else ""
        values = [element_text(o.after, self.at) for o in (self.first, self.second)]
        return (
            f"{name}[{index}] ({type_text(output.after)}) is {values[0]} for seed "
            f"{self.seeds[0]} and {values[1]} for seed {self.seeds[1]}; {self.count:,} of its {output.after.size:,} "
            "elements differ"
        )


def element_text(values: npt.NDArray[Any], at: int) -> str:
    """Return one element as bits and number."""
    element = values.reshape(-1)[at]
    size = values.itemsize
    raw = int.from_bytes(element.tobytes(), "little")
    if values.dtype.kind in "iu" and size in {1, 2, 4, 8}:
        return value_text(raw, 0, f"{KINDS[values.dtype.kind]}{8 * size}")
    return f"0x{raw:0{2 * size}x}={element!s}"


def differing(a: npt.NDArray[Any], b: npt.NDArray[Any], tolerance: float) -> npt.NDArray[np.intp]:
    """Return which elements, in C order, differ in their bits and by more than the tolerance."""
    if not a.size:
        return np.zeros(0, np.intp)
    x, y = (v.reshape(-1).view(np.uint8).reshape(a.size, -1) for v in (a, b))
    found: npt.NDArray[np.intp] = np.nonzero((x != y).any(axis=1))[0]
    if not tolerance or a.dtype.kind in "iub" or not found.size:
        return found
    try:
        p, q = (v.reshape(-1)[found].astype(np.float64) for v in (a, b))
    except (TypeError, ValueError):  # raw bytes: the file does not name their type
        return found
    with np.errstate(invalid="ignore"):
        same = (np.isnan(p) & np.isnan(q)) | (p == q)
        same |= np.isfinite(p - q) & (np.abs(p - q) <= tolerance * np.maximum(np.abs(p), np.abs(q)))
    return np.compress(~same, found)


def compare(
    seeds: tuple[int, int], first: Sequence[Output], second: Sequence[Output], tolerance: float
) -> Difference | None:
    """Return the first difference between the arrays of two seeds."""
    for a, b in zip(first, second, strict=True):
        found = differing(a.after, b.after, tolerance)
        if a.index is None and found.size:  # unwritten variables may hold addresses
            found = found[(a.changed() | b.changed())[found]]
        if found.size:
            return Difference(seeds, a, b, int(found[0]), int(found.size))
    return None


# ---- several runs in parallel ---------------------------------------------------


class Runs:
    """Launches in several threads, which Ctrl-C stops."""

    def __init__(self, program: Program, checks: str) -> None:
        self.program = program
        self.checks = checks
        self.stopping = threading.Event()
        self.devices: set[Device] = set()
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def open(self, seed: int) -> Iterator[Launch]:
        """Open the program on a separate device."""
        with self.program.open(seed=seed, checks=self.checks) as launch:
            with self.lock:
                self.devices.add(launch.device)
            try:
                yield launch
            finally:
                with self.lock:
                    self.devices.discard(launch.device)

    def run(self, seed: int) -> list[Output] | FaultError:
        """Run one seed; its arrays, or its fault."""
        with self.open(seed) as launch:
            if self.stopping.is_set():
                message = "the launch was interrupted"
                raise FaultError(message)
            try:
                launch.run()
            except FaultError as fault:
                return fault
            return launch.outputs() + launch.variables()

    def stop(self, futures: Collection[concurrent.futures.Future[Any]]) -> None:
        """Start no more launches, and interrupt the running ones until all have ended."""
        self.stopping.set()
        for future in futures:
            future.cancel()
        while not all(future.done() for future in futures):
            with self.lock:
                devices = list(self.devices)
            for device in devices:
                with contextlib.suppress(Exception):  # the device was closed meanwhile
                    device.interrupt()
            concurrent.futures.wait(futures, timeout=0.1)


def results(runs: Runs, seeds: range) -> Iterator[tuple[int, list[Output] | FaultError]]:
    """Run every seed, several at once; yield them in order."""
    workers = min(len(os.sched_getaffinity(0)), len(seeds), WORKERS)
    waiting: collections.deque[concurrent.futures.Future[list[Output] | FaultError]] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        try:
            begun = 0
            for seed in seeds:
                while begun < len(seeds) and len(waiting) < workers:
                    waiting.append(pool.submit(runs.run, seeds[begun]))
                    begun += 1
                while not concurrent.futures.wait([waiting[0]], timeout=0.1).done:
                    pass  # lets Python handle signals
                yield seed, waiting.popleft().result()
        finally:
            runs.stop(waiting)


# ---- which instruction wrote an element -----------------------------------------


@dataclasses.dataclass(frozen=True)
class Written:
    """The last change of an element in a run: the step, the element's address, and its final value."""

    step: Step
    address: int
    value: bytes


def writer(runs: Runs, seed: int, difference: Difference) -> Written | None:
    """Run a seed again and find the last change of the element."""
    nbytes = difference.nbytes
    offset = difference.at * nbytes
    with runs.open(seed) as launch:
        array = launch.array(difference.first)
        with launch.device.changes(array, offset, min(nbytes, MOST_BYTES)) as found:
            launch.run()
        value = array.numpy()[offset : offset + nbytes].tobytes()
        return Written(found[-1].step, array.address + offset, value) if found else None


def writer_text(written: Written, path: str) -> str:
    """Return the instruction, warp and lane of a change as text."""
    step = written.step
    end = written.address + len(written.value)
    near = [
        (int(values[lane]), lane)
        for _, values in addresses(step)
        for lane in lanes_of(step.mask)
        if end - WIDEST <= int(values[lane]) < end
    ]
    lane = f", lane {max(near)[1]}" if near and not step.is_asynchronous else ""
    landed = ", when it landed" if step.is_asynchronous else ""
    cta = ",".join(map(str, step.cta))
    return (
        f"written by `{step.instruction.text}` at {place.shown(step.instruction, path)} (CTA {cta}, warp "
        f"{step.warp}{lane}){landed}"
    )


def explain(runs: Runs, difference: Difference) -> list[str]:
    """Return lines that name the instruction that wrote the element, for each of the two seeds."""
    lines = []
    opcodes = []
    for seed, output in zip(difference.seeds, (difference.first, difference.second), strict=True):
        try:
            written = writer(runs, seed, difference)
        except FaultError as fault:
            lines.append(f"  seed {seed}: {fault}")
            continue
        if written is None:
            lines.append(f"  seed {seed}: not written")
            continue
        opcodes.append(written.step.instruction.opcode)
        text = writer_text(written, runs.program.file)
        if written.value != output.after.reshape(-1)[difference.at].tobytes():
            text += "; a second run with this seed gave another value: only --checks full makes runs repeatable"
        lines.append(f"  seed {seed}: {text}")
    if any(ATOMICS.match(opcode) for opcode in opcodes):
        lines.append(
            "  An atomic operation wrote it. The seed chooses the order of atomics; on a GPU it is random. Sums of "
            "floating-point numbers depend on that order. If that is intended, --tolerance 1e-5 allows small "
            "differences."
        )
    elif uses_atomics(runs, difference.seeds[0]):
        lines.append(
            "  The kernel also uses atomics. The seed chooses their order: results that depend on it differ on a GPU, "
            "too."
        )
    return lines


def uses_atomics(runs: Runs, seed: int) -> bool:
    """Whether a kernel has atomics."""
    with runs.open(seed) as launch:
        return any(ATOMICS.match(instruction.opcode) for instruction in instructions(launch.kernel))


# ---- the command ----------------------------------------------------------------


def tolerance(word: str | None) -> float:
    """Return the value of --tolerance."""
    try:
        value = float(word or 0)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        message = f"--tolerance is {word!r}, not a number from 0 to 1 such as 1e-5"
        raise InvalidArgumentError(message)
    return value


def run(arguments: argparse.Namespace) -> int:
    """Check the kernel."""
    program = programs.parse(arguments, arguments.words, device="virtual")
    count = programs.number(arguments.seeds, "--seeds", 16)
    first = programs.number(arguments.seed, "--seed", 0)
    allowed = tolerance(arguments.tolerance)
    if not 1 < count <= 1 << 32 or first + count > 1 << 64:
        message = f"--seeds is {arguments.seeds!r}, not a number of at least 2: the results of two seeds are compared"
        raise InvalidArgumentError(message)
    runs = Runs(program, program.options.get("checks", "full"))
    with runs.open(first) as launch:  # report wrong arguments before the progress bar begins
        entry = launch.kernel.info.entry
    seeds = range(first, first + count)
    head = f"{demangled(entry)}, seeds {seeds[0]} to {seeds[-1]}, level {runs.checks}"
    reference: list[Output] | None = None
    with console.progress(count, f"seed {first}", log=False) as step:
        for seed, result in results(runs, seeds):
            if isinstance(result, FaultError):
                break
            reference = reference or result
            difference = compare((first, seed), reference, result, allowed)
            if difference is not None:
                break
            step(f"seed {seed}")
        else:
            within = f" within {allowed:g}" if allowed else ", bit for bit"
            arrays = [o for o in reference or [] if o.index is not None]
            written = [o for o in reference or [] if o.index is None and o.changed().any()]
            same = f"{len(arrays)} array{'s' * (len(arrays) != 1)}"
            same += f" and {len(written)} variable{'s' * (len(written) != 1)}" if written else ""
            print(f"{head}: no fault, and {same} the same for all{within}")
            return 0
    runs.stopping.clear()
    if isinstance(result, FaultError):
        print(f"{head}: seed {seed} faults")
        print(f"pysm120: {result}", file=sys.stderr)
    elif difference is not None:
        print(f"{head}: seeds {first} and {seed} differ")
        print(f"pysm120: {difference.text()}", file=sys.stderr)
        for line in explain(runs, difference):
            print(line, file=sys.stderr)
    return 1


COMMAND = Command(
    "check", "run a kernel over many seeds and compare its results, bit for bit", add, run, takes_words=True
)
