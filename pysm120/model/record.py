"""Record the warps of a kernel on the virtual device, in small launches with the shape of a problem."""

import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from pysm120.machine_code import sass, tools
from pysm120.machine_code.cubin import NO_LIMIT
from pysm120.model import mbarriers, roles
from pysm120.model import work as works
from pysm120.model.mbarriers import NotUnderstoodError, Recorded
from pysm120.model.paths import compute_warps
from pysm120.model.problem import BACKWARD, Problem, tile_of
from pysm120.model.recorded import (
    Launch,
    Recording,
    adds_of,
    banks_of,
    executed_of,
    in_shared,
    reuse_of,
    sectors_of,
    single_of,
)
from pysm120.observe import watch
from pysm120.observe.profile import Counts, Statement
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.runtime.module import Builtin, Kernel, builtin_image, builtin_index

ROWS = 2048  # most rows of a recorded problem
KEYS = 16384  # and most rows of keys, if it is not causal: a warp rescales the more rarely, the more keys it has seen
_STEP = 128  # the shorter problem has fewer rows by a multiple of this
_ROUNDS = 10  # fewest rounds in which hand-overs are recorded; a ring is used twice at least
_SMALL, _HEADS = "virtual?multiprocessors=1", 16  # a device on which few CTAs are many; heads of a launch of many CTAs
_THREADS = "PYSM120_THREADS"
_CAPABILITY, _CAPABILITIES = "PYSM120_VIRTUAL_CAPABILITY", {"sm_120f": "12", "sm_90": "9"}
_COUNTS = (  # of a file
    "executed", "lanes", "shared_accesses", "shared_wavefronts", "shared_ideal_wavefronts", "global_accesses",
    "global_sectors", "global_lines", "global_l2_accesses", "global_l2_sectors", "shared_paired_accesses",
    "global_wavefronts",
)  # fmt: skip
_FIRST = {"global_first_lines": "global_lines", "global_first_accesses": "global_l2_accesses"}  # older files: all
_LATER = ("global_pending_accesses", "global_added_lines", "global_added_words")  # older files lack them: 0
_BULK = ("bulk global->shared", "bulk shared->global")  # additions are known from the code


class NotRecordedError(Exception):
    """The reason why everything must come from the rules."""


_ENTRY = re.compile(r"^[ \t]*(?:\.(?:visible|weak|extern)\s+)*\.entry\s+([\w$.]+)", re.MULTILINE)
_BRACE = re.compile(r"[{}]|//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"", re.DOTALL)


def entries_of(ptx: str) -> list[str]:
    """Return the names of the entries of a PTX text."""
    return [found[1] for found in _ENTRY.finditer(ptx)]


def only(ptx: str, entry: str) -> str:
    """Return a PTX text with the other entries blanked out, so that line numbers stay the same."""
    parts, done = [], 0
    for found in _ENTRY.finditer(ptx):
        if found[1] != entry and found.start() >= done:
            end = _end_of_body(ptx, found.end())
            parts += [ptx[done : found.start()], "\n" * ptx.count("\n", found.start(), end)]
            done = end
    return "".join([*parts, ptx[done:]])


def _end_of_body(ptx: str, start: int) -> int:
    """Return the offset behind the brace that closes the body of an entry, or the end of the text."""
    depth = 0
    for brace in _BRACE.finditer(ptx, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0 and brace[0] == "}":
            return brace.end()
    return len(ptx)


def as_in_library(ptx: str, entry: str) -> str:
    """Return the library's PTX if it has the same statements of an entry, because the library runs its own lines."""
    wanted = _statements(ptx, entry)
    return next((text for text in _texts(entry).values() if _statements(text, entry) == wanted), ptx)


def _texts(entry: str) -> dict[str, str]:
    """Return the library's PTX of an entry by target; empty if the library lacks the kernel."""
    index = builtin_index(entry)
    return {} if index is None else {one: builtin_image(index, one, "ptx").decode() for one in _CAPABILITIES}


def _statements(ptx: str, entry: str) -> str:
    """Return an entry and the text before the first entry, without comments, markers and line breaks."""
    lines = (line.split("//")[0] for line in only(ptx, entry).splitlines() if not line.startswith("#line "))
    return " ".join(word for line in lines for word in line.split())


def with_lines(function: sass.Function, ptx: str, target: str) -> sass.Function:
    """Return a kernel with the lines of its PTX: assemble the PTX again until the code is the same.

    ``target`` is the preferred one for the chip. Every target and every installed ptxas that the PTX allows are tried,
    first without the other entries: these take time, but the constants with addresses of variables depend on them.
    """
    words = [one.word for one in function.instructions]
    return lines_of(function.name, words, ptx, target, function.most_registers)


def lines_of(name: str, words: list[int], ptx: str, target: str, most_registers: int = NO_LIMIT) -> sass.Function:
    """Return a kernel with the lines of its PTX, by its name and the words of its code: see ``with_lines``."""
    texts, limits = dict.fromkeys((only(ptx, name), ptx)), dict.fromkeys((NO_LIMIT, most_registers))
    try:
        tried = [(one, at) for one in sass.targets(ptx, target) for at in tools.assemblers(sass.version_of(ptx))]
    except (UnsupportedError, InvalidArgumentError) as error:
        raise NotRecordedError(str(error)) from error
    failed = "ptxas assembles its PTX to other code: it has another version, or other options were used"
    for n, (text, limit, (one, at)) in enumerate(itertools.product(texts, limits, tried)):
        try:
            again = _assembled(text, one, at, limit).get(name)
        except (UnsupportedError, InvalidArgumentError) as error:
            failed = str(error) if n == 0 else failed
            continue
        if again is not None and [other.word for other in again.instructions] == words:
            return again
    raise NotRecordedError(failed)


@lru_cache(maxsize=16)
def _assembled(ptx: str, target: str, at: Path, most_registers: int) -> dict[str, sass.Function]:
    """Assemble and disassemble a text once, however many problems of its kernel are predicted."""
    return sass.disassemble(sass.assemble(ptx, target, at, most_registers))


def recording(function: sass.Function, ptx: str, threads: int, problem: Problem, of_kernel: Builtin) -> Recording:
    """Record a kernel of attention with its problem, cut to one head and few rows, and with a shorter one.

    Both have all keys of the problem, or half of them, because not all that a warp does in a round grows with rounds.
    ``function`` has the lines of ``ptx``; ``of_kernel`` is the record of this version of the kernel.
    """
    kernel = _Kernel(of_kernel, ptx)
    is_square = problem.causal or of_kernel.operation == BACKWARD
    longest, most = (_cut(problem.rows, most) for most in (ROWS if is_square else KEYS, ROWS))
    shorter = longest - _STEP * max(1, longest // _STEP // 2)
    of = Problem(1, longest, 1, problem.head_dim, problem.causal, queries=most if longest > most else 0)
    problems = [dataclasses.replace(of, rows=rows) for rows in (shorter, longest) if rows > 0]
    found = Recording(function, [kernel.count(one) for one in problems], compute_warps(threads))
    if found.roles:
        # On a large device several CTAs share a tile, and each has a first round of its own.
        kernel.device = _SMALL
        found = Recording(function, [kernel.count(one) for one in problems], found.warps)
        found.outside = Recording(function, [kernel.among_many(problem.head_dim)], found.warps)
    if any(one.is_copy for one in function.instructions):
        try:
            found.handovers = kernel.handovers(found, problem.head_dim)
        except NotUnderstoodError as error:
            found.why_not = str(error)
    return found


def _cut(rows: int, most: int) -> int:
    """Return about so many rows at most, of which a last tile of keys has as many as of all rows."""
    return rows if rows <= most else most - most % _STEP + rows % _STEP


def count(of_kernel: Builtin, ptx: str, problem: Problem) -> Launch:
    """Launch a kernel of attention once with a problem, and count."""
    return _Kernel(of_kernel, ptx).count(problem)


class _Kernel:
    """A kernel of attention on the virtual device."""

    def __init__(self, record: Builtin, ptx: str) -> None:
        self.record, self.entry, self.ptx = record, record.entry, ptx
        self.device = "virtual"

    @contextmanager
    def _open(self, problem: Problem) -> Iterator[tuple[Device, Kernel, Callable[[], object]]]:
        """Open a device; yield it, the kernel on it, and a function that launches the kernel with a problem.

        One thread runs the CTAs, so that each of those that go on takes the same Q tiles in every recording.
        """
        with _environment(_THREADS, "1"), self._opened(problem) as opened:
            yield opened

    @contextmanager
    def _opened(self, problem: Problem) -> Iterator[tuple[Device, Kernel, Callable[[], object]]]:
        if works.is_uniform(self.record):
            with Device(self.device) as device:
                work = works.Attention(device, self.record, problem, other=self.ptx)
                yield device, work.kernel, work.launch
            return
        with capability(self._require_text_of_the_library()), Device(self.device) as device:
            yield device, *works.of_library(device, self.record, problem)

    def _require_text_of_the_library(self) -> str:
        """Return the target of a PTX; raise if it is not the library's."""
        for target, text in _texts(self.entry).items():
            if text == self.ptx:
                return target
        message = "its PTX is not the library's; kernels with features or of MXFP8 are launched only by the library"
        raise NotRecordedError(message)

    def among_many(self, head_dim: int) -> Launch:
        """Launch it with many more CTAs than a small device holds, and count."""
        return self.count(Problem(1, 2 * tile_of(self.record)[1], _HEADS, head_dim))

    def count(self, problem: Problem) -> Launch:
        """Launch it once, and count."""
        rounds = problem.rounds(self.record)
        with self._open(problem) as (device, _, launch), device.profile() as p:
            launch()
            device.synchronize()
        if self.entry not in p.kernels:
            message = f"attention uses {list(p.kernels)[-1]} for this problem, not {self.entry}"
            raise NotRecordedError(message)
        executed, banks = executed_of(p.statements, self.entry), banks_of(p.statements, self.entry)
        return Launch(executed, len(rounds), sum(rounds) / len(rounds), banks)

    def handovers(self, recording: Recording, head_dim: int) -> Recorded:
        """Launch it once, with whole tiles except for the last row, and record the hand-overs."""
        rows = math.lcm(*tile_of(self.record))
        of_round = tile_of(self.record)[0 if self.record.operation == BACKWARD else 1]
        rounds = max(_ROUNDS, 2 * self.record.stages + 2)
        problem = Problem(1, rows * -(-rounds * of_round // rows) - 1, 1, head_dim)
        marker = recording.marker
        with self._open(problem) as (device, kernel, launch):
            code = watch.instructions(kernel)
            with mbarriers.watching(device, self.entry, marker) as seen:
                launch()
                device.synchronize()
        kinds = {one.text_line: mbarriers.kind_of(one.text) for one in code}
        return Recorded(recording.function, kinds, seen, has_roles=bool(recording.roles))


def capability(target: str) -> AbstractContextManager[None]:
    """Make virtual devices that are opened in the with block run the library's kernels for a target."""
    return _environment(_CAPABILITY, _CAPABILITIES[target])


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment in the with block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def executed(target: str, entries: Sequence[str], of_kernel: Builtin, problem: Problem) -> dict[str, dict[int, int]]:
    """Run the backward pass of a problem; return how often statements were executed, by PTX line, for each entry."""
    with capability(target), Device("virtual") as device:
        launch = works.of_backward(device, of_kernel, problem)
        with device.profile() as p:
            launch()
            device.synchronize()
    return {entry: executed_of(p.statements, entry) for entry in entries}


def of_file(function: sass.Function, path: Path, threads: int) -> Recording:
    """Return the counts of a kernel from `profile --json`; the machine code has the lines of the profiled PTX.

    Its function has the generic accesses of shared memory as such.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fields = ("kernel", "row", "opcode", "global_reuse", "bytes", *_COUNTS)
        rows = [
            {name: one[name] for name in fields}
            | {name: one.get(name, one[all_of]) for name, all_of in _FIRST.items()}
            | {name: one.get(name, 0) for name in _LATER}
            for one in document["statements"]
        ]
        each = [(int(number), int(count)) for number, count in document.get("ctas", {}).get(function.name, ())]
        sm = document.get("sm") or {"ctas": 0, "l1_bytes": 0}
        together, l1_bytes = int(sm["ctas"]), float(sm["l1_bytes"])
    except OSError as error:
        message = f"--profile is {str(path)!r}: {error.strerror}"
        raise InvalidArgumentError(message) from error
    except (ValueError, KeyError, TypeError) as error:
        message = f"--profile is {str(path)!r}, which is not a file of `profile --json`: {error}"
        raise InvalidArgumentError(message) from error
    statements = [_statement(row) for row in rows]
    executed = executed_of(statements, function.name)
    function = in_shared(function, statements)
    # Every warp executes the first statement once.
    first = max(1, executed[min(row for row, count in executed.items() if count)])
    ctas = max(1, first // -(-threads // 32))
    banks, sectors = banks_of(statements, function.name), sectors_of(statements, function.name)
    of_kernel = [row["bytes"] for row in rows if row["kernel"] == function.name]
    copied = sum(int(counts.get(path, 0)) for counts in of_kernel for path in _BULK) / ctas
    launch = Launch(executed, ctas, 0, banks, sectors, reuse_of(statements, function.name), copied)
    adds, single = adds_of(statements, function.name, ctas), single_of(statements, function.name)
    launch = launch._replace(adds=adds, single=single)
    if len({number for number, _ in each}) == len(each) == ctas:  # one launch, without clusters
        mean = sum(count for _, count in each) / len(each)
        launch = launch._replace(each=[count / mean for _, count in sorted(each)])
    if together:
        launch = launch._replace(l1_bytes=l1_bytes / together, together=together)
    return roles.recording(function, launch, threads)


def _statement(row: dict[str, Any]) -> Statement:
    counts: dict[str, Any] = {name: int(row[name]) for name in (*_COUNTS, *_FIRST, *_LATER)}
    counts["global_reuse"] = {int(least): int(count) for least, count in row["global_reuse"].items()}
    return Statement(str(row["kernel"]), 0, "", 0, int(row["row"]), "", str(row["opcode"]), Counts(**counts))
