"""Profiles of the virtual device: counts by statement and by line."""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from pysm120.observe.watch import origin_of, place_of
from pysm120.runtime.context import Context
from pysm120.runtime.ffi import PACKAGE, check, ffi, lib, new_struct, text

if TYPE_CHECKING:
    from typing_extensions import Self


REUSE_RATIO = math.sqrt(2)
REUSE_BYTES = tuple(round(4096 * REUSE_RATIO**n) for n in range(24))


@dataclasses.dataclass(frozen=True)
class Counts:
    """Counts of what warps did, at one statement or in total.

    Attributes
    ----------
    executed : int
        Instructions of warps.
    lanes, predicated_off : int
        Lanes of these warps that took part, and lanes whose predicate was false.
    branches, divergent_branches : int
        Branches, and divergent ones: their lanes took different paths.
    shared_accesses, shared_wavefronts, shared_ideal_wavefronts : int
        Accesses of shared memory by warps, their wavefronts, and the wavefronts that they would take without bank
        conflicts.
    shared_paired_accesses : int
        Those accesses of shared memory that are loads in which every lane has the address of lane ^ 1, or every one
        that of lane ^ 2. A load of 8 or 16 bytes that holds several of them takes half of its wavefronts.
    global_accesses, global_sectors, global_ideal_sectors, global_lines, global_ideal_lines : int
        Accesses of global memory by warps, the sectors of 32 and lines of 128 bytes that they touched, and the fewest
        that could hold as many different bytes.
    global_l2_accesses, global_l2_sectors : int
        Those accesses of global memory that need L2, and the sectors that they take from it or bring to it, if each CTA
        has an L1 of 32 KiB.
    global_wavefronts : int
        Passes over the data of L1 that loads of global memory take.
    global_first_lines : int
        Those of ``global_lines`` that the CTA had not touched before.
    global_first_accesses : int
        Those of ``global_accesses`` that touch a pair of sectors, 64 bytes which L2 takes from DRAM together, that the
        CTA had not touched before, or that a warp may have asked for only just before, as below.
    global_pending_accesses : int
        Loads that L1 has all sectors of, but some of which a warp may have asked for only just before: fewer than 32 of
        its statements, counted from the begin of its CTA.
    global_added_lines, global_added_words : int
        Of red and atom: lines to which nobody in the launch had added, and the different addresses of each access.
    tensor_flops : int
        Multiplications and additions of mma.
    bytes : dict
        Bytes that were moved, by path.
    global_reuse : dict
        Sectors that a CTA touches again and no other CTA touches, by the bytes of the CTA in between: those from one of
        ``REUSE_BYTES`` to the next.

    """

    executed: int = 0
    lanes: int = 0
    predicated_off: int = 0
    branches: int = 0
    divergent_branches: int = 0
    shared_accesses: int = 0
    shared_wavefronts: int = 0
    shared_ideal_wavefronts: int = 0
    shared_paired_accesses: int = 0
    global_accesses: int = 0
    global_sectors: int = 0
    global_ideal_sectors: int = 0
    global_lines: int = 0
    global_ideal_lines: int = 0
    global_l2_accesses: int = 0
    global_l2_sectors: int = 0
    global_wavefronts: int = 0
    global_first_lines: int = 0
    global_pending_accesses: int = 0
    global_added_lines: int = 0
    global_added_words: int = 0
    global_first_accesses: int = 0
    tensor_flops: int = 0
    bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    global_reuse: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts of shared memory that bank conflicts cost."""
        return self.shared_wavefronts - self.shared_ideal_wavefronts

    @property
    def active_lanes(self) -> float:
        """Lanes that took part, on average; 0 if nothing was executed."""
        return self.lanes / self.executed if self.executed else 0.0

    @property
    def sectors_per_access(self) -> float:
        """Sectors of a global access, on average; 0 without such accesses."""
        return self.global_sectors / self.global_accesses if self.global_accesses else 0.0

    @property
    def ideal_sectors_per_access(self) -> float:
        """The fewest sectors that hold the bytes of a global access, on average; 0 without such accesses."""
        return self.global_ideal_sectors / self.global_accesses if self.global_accesses else 0.0


# What one SM of GB202 does in a clock; model/chips/rtx5090.toml has the sources of the tensor cores' rates.
INSTRUCTIONS_PER_CLOCK = 4
SECTORS_PER_CLOCK = 2
# Multiplications and additions of mma in a clock; the first pattern that a mnemonic holds counts.
TENSOR_RATES = (
    (re.compile(r"kind::mxf4"), 4096),
    (re.compile(r"block_scale|\.[us]8\.[us]8"), 2048),
    (re.compile(r"\.e\dm\d.*\.f16$"), 2048),
    (re.compile(r"\.e\dm\d|\.f16\.f16\.f16\.f16$"), 1024),
    (re.compile(r"\.tf32"), 256),
    (re.compile(r"\.f64"), 4),
    (re.compile(""), 512),  # 16-bit operands with sums in f32
)
NUMBERS = tuple(field.name for field in dataclasses.fields(Counts) if field.type is int)


def total(parts: Iterable[Counts]) -> Counts:
    """Return the sum of counts."""
    sums = dict.fromkeys(NUMBERS, 0)
    moved: dict[str, int] = {}
    reuse: dict[int, int] = {}
    for part in parts:
        for name in NUMBERS:
            sums[name] += getattr(part, name)
        for path, count in part.bytes.items():
            moved[path] = moved.get(path, 0) + count
        for distance, count in part.global_reuse.items():
            reuse[distance] = reuse.get(distance, 0) + count
    return Counts(**sums, bytes=moved, global_reuse=reuse)


@dataclasses.dataclass(frozen=True)
class Statement:
    """A PTX statement of a kernel, and its counts.

    ``file`` and ``line`` come from line markers, else from the PTX; ``row`` is always the line of the PTX.
    ``origin`` is the line of the kernel that called inlined code, "sum.cu:24", and else "".
    ``opcode`` is its name in ``Device.counters``, "" for the end of a function.
    """

    kernel: str
    index: int
    file: str
    line: int
    row: int
    text: str
    opcode: str
    counts: Counts
    origin: str = ""

    @property
    def mnemonic(self) -> str:
        """The opcode with its modifiers."""
        words = self.text.split()
        return next((word for word in words if not word.startswith("@")), "")

    @property
    def clocks(self) -> float:
        """Clocks that the busiest unit of one SM needs for it: what lines are ranked by, not a time."""
        c = self.counts
        rate = next(rate for pattern, rate in TENSOR_RATES if pattern.search(self.mnemonic))
        return max(
            c.executed / INSTRUCTIONS_PER_CLOCK,
            c.shared_wavefronts,
            c.global_sectors / SECTORS_PER_CLOCK,
            c.tensor_flops / rate,
        )


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a file, its PTX statements, and the sum of their counts.

    A line of inlined code is one for each ``origin``, the line of the kernel that called it.
    """

    file: str
    line: int
    statements: tuple[Statement, ...]
    counts: Counts
    source: str
    origin: str = ""

    @property
    def clocks(self) -> float:
        """The sum of its statements' clocks."""
        return sum(statement.clocks for statement in self.statements)

    @property
    def place(self) -> str:
        """File and line, as in messages."""
        return place_of(self.file, self.line, self.origin)

    @property
    def short_place(self) -> str:
        """File and line, with at most one folder; the line of the kernel without any."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.line}" + (
            f" in {Path(self.origin).name}" if self.origin else ""
        )


class Cta(NamedTuple):
    """A CTA or cluster: its kernel, its number in the grid, and the instructions that its warps executed."""

    kernel: str
    number: int
    executed: int


class Profile:
    """A profile of kernels on the virtual device. Made by ``Device.profile``.

    >>> import numpy as np, pysm120
    >>> with pysm120.Device("virtual") as device, device.profile() as p:
    ...     x = np.ones((1, 64, 1, 64), np.float32)
    ...     _ = pysm120.attention(x, x, x, device=device)
    >>> p.total.bank_conflicts
    0

    It counts every launch on the device between ``__enter__`` and ``__exit__``, and can be read after that. A device
    records one profile at a time. ``ctas`` has every CTA of every launch.
    """

    def __init__(self, device: Context) -> None:
        self._device = device
        self._statements: tuple[Statement, ...] | None = None
        self.ctas: tuple[Cta, ...] = ()

    def __enter__(self) -> "Self":
        check(lib.sm120_profile_begin(self._device.handle.pointer))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._device.closed:  # and the profile with it
            self._statements = ()
            return
        pointer = self._device.handle.pointer
        try:
            self._statements = tuple(_read(pointer))
            self.ctas = tuple(sorted(_read_ctas(pointer)))
        finally:
            check(lib.sm120_profile_end(pointer))

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The statements of all kernels that ran, in the order of the text."""
        if self._statements is None:
            message = "the profile is still being recorded: read it after the with statement"
            raise RuntimeError(message)
        return self._statements

    @cached_property
    def total(self) -> Counts:
        """The counts of all statements."""
        return total(statement.counts for statement in self.statements)

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The lines that were executed, by file in the order of the kernels, and by number."""
        files = {statement.file: n for n, statement in reversed(list(enumerate(self.statements)))}
        grouped = _group(self.statements, lambda s: (s.file, s.line, s.origin))
        sources = Sources()
        lines = []
        for (file, line, origin), parts in grouped.items():
            counts = total(part.counts for part in parts)
            if counts.executed:
                source = sources.line(file, line) or parts[0].text
                lines.append(Line(file, line, parts, counts, source, origin))
        return tuple(sorted(lines, key=lambda x: (files[x.file], x.line, x.origin)))

    @cached_property
    def kernels(self) -> dict[str, Counts]:
        """The counts of each kernel."""
        return {name: total(s.counts for s in parts) for name, parts in _group(self.statements, _kernel).items()}

    @cached_property
    def opcodes(self) -> dict[str, Counts]:
        """The counts of each opcode, most executed first."""
        counts = {name: total(s.counts for s in parts) for name, parts in _group(self.statements, _opcode).items()}
        ordered = sorted(counts.items(), key=lambda item: -item[1].executed)
        return {name: count for name, count in ordered if name and count.executed}

    @cached_property
    def tensor(self) -> dict[str, int]:
        """Multiplications and additions of each form of mma, most first."""
        grouped = _group((s for s in self.statements if s.counts.tensor_flops), lambda s: s.mnemonic)
        flops = {name: sum(s.counts.tensor_flops for s in parts) for name, parts in grouped.items()}
        return dict(sorted(flops.items(), key=lambda item: -item[1]))

    def hottest(self, count: int) -> tuple[Line, ...]:
        """Return the lines that cost the most clocks, most first; then those with the most instructions."""
        return tuple(sorted(self.lines, key=lambda line: (-line.clocks, -line.counts.executed))[:count])

    def json(self) -> dict[str, Any]:
        """Return the profile as a value for ``json.dumps``."""
        return {
            "device": str(self._device),
            "total": _plain(self.total),
            "kernels": {name: _plain(counts) for name, counts in self.kernels.items()},
            "opcodes": {name: _plain(counts) for name, counts in self.opcodes.items()},
            "tensor": self.tensor,
            "ctas": {
                name: [[one.number, one.executed] for one in self.ctas if one.kernel == name] for name in self.kernels
            },
            "lines": [
                {
                    "file": x.file,
                    "line": x.line,
                    "origin": x.origin,
                    "source": x.source,
                    "clocks": x.clocks,
                    **_plain(x.counts),
                }
                for x in self.lines
            ],
            "statements": [
                {
                    "kernel": s.kernel,
                    "index": s.index,
                    "file": s.file,
                    "line": s.line,
                    "origin": s.origin,
                    "row": s.row,
                    "text": s.text,
                    "opcode": s.opcode,
                    **_plain(s.counts),
                }
                for s in self.statements
            ],
        }


class Sources:
    """The text of templates and PTX files, if they are found."""

    def __init__(self) -> None:
        self._files: dict[str, list[str]] = {}

    def line(self, file: str, number: int) -> str | None:
        """Return a line without the white space around it; None if its file does not exist."""
        lines = self._files.get(file)
        if lines is None:
            lines = self._files[file] = self._read(file)
        return lines[number - 1].strip() if 0 < number <= len(lines) else None

    @staticmethod
    def _read(file: str) -> list[str]:
        # The templates of the library's kernels are named from the root of the source tree.
        found = [path for path in (PACKAGE.parent / file, Path(file)) if os.access(path, os.R_OK) and path.is_file()]
        return found[0].read_text(encoding="utf-8", errors="replace").splitlines() if found else []


def _group(statements: Iterable[Statement], key: Callable[[Statement], Hashable]) -> dict[Any, tuple[Statement, ...]]:
    """Return the statements of each key, in order."""
    groups: dict[Any, list[Statement]] = {}
    for statement in statements:
        groups.setdefault(key(statement), []).append(statement)
    return {name: tuple(parts) for name, parts in groups.items()}


def _kernel(statement: Statement) -> str:
    return statement.kernel


def _opcode(statement: Statement) -> str:
    return statement.opcode


def _plain(counts: Counts) -> dict[str, Any]:
    """Return counts, and numbers computed from them."""
    return {**dataclasses.asdict(counts), "bank_conflicts": counts.bank_conflicts}


def _read(pointer: Any) -> Iterable[Statement]:
    """Read all rows of the profile of a device."""
    row = new_struct("sm120_profile_row")
    numbers = attrgetter(*NUMBERS)
    for index in range(1 << 31):
        status = lib.sm120_profile_read(pointer, index, row)
        if status == lib.SM120_UNSUPPORTED:
            return
        check(status)
        moved = {}
        for part in row.bytes:
            if part.path == ffi.NULL:
                break
            moved[text(part.path)] = int(part.bytes)
        reuse = {least: n for least, n in zip(REUSE_BYTES, row.global_reuse, strict=True) if n}
        counts = Counts(**dict(zip(NUMBERS, numbers(row), strict=True)), bytes=moved, global_reuse=reuse)
        place = text(row.file), row.line, row.row
        yield Statement(text(row.kernel), row.index, *place, text(row.text), text(row.opcode), counts, origin_of(row))


def _read_ctas(pointer: Any) -> Iterable[Cta]:
    """Read all CTAs of the profile of a device."""
    kernel, number, executed = ffi.new("const char **"), ffi.new("uint64_t *"), ffi.new("uint64_t *")
    for index in range(1 << 31):
        status = lib.sm120_profile_cta(pointer, index, kernel, number, executed)
        if status == lib.SM120_UNSUPPORTED:
            return
        check(status)
        yield Cta(text(kernel[0]), int(number[0]), int(executed[0]))
