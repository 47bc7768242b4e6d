"""Recordings of the virtual device: counts of PTX statements, joined to machine code by lines.

A block of machine code ran as often as the majority of its instructions' statements. Statements with instructions in
several blocks (ptxas duplicated the code) are not used; the flow between blocks fills gaps as far as possible. An
access of shared memory has the bank conflicts of its statement.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from pysm120.machine_code import pipes
from pysm120.machine_code.sass import Function, Instruction, Loop
from pysm120.model.block_counts import blocks, copies_of, edges, of_copies, own_rows, row_of
from pysm120.model.mbarriers import NotUnderstoodError, Recorded
from pysm120.observe.profile import REUSE_RATIO, Counts, Statement, total
from pysm120.runtime.errors import InvalidArgumentError

SECTOR_BYTES = 32
PROFILED_L1 = 32 * 1024  # of each CTA on the virtual device, if a profile does not say another
_NOT_IN_L1 = re.compile(r"\.STRONG\b")  # volatile loads
# Opcodes of PTX that may access global memory.
_ACCESS = re.compile(r"(?:ldu?|st|cp\.async|red|atom|wmma\.(?:load|store))$")
_KEPT = re.compile(r"ldu?$|wmma\.load$")  # that L1 keeps
_SINGLE = re.compile(r"ldu?$|st$|atom$|red$")  # of one instruction each
_EXTENDED = re.compile(r"\.E\b")  # 64-bit addresses
_PREDICATES = 7  # P0 to P6
_MANY = 1024  # rounds
_ALIKE = 0.02  # of the average instructions of a CTA, by which CTAs that are alike differ
_EXACT = 1e-3  # of a warp, by which counts differ from whole warps
_WAIT_LENGTH = 8  # most instructions of a wait that a branch may skip


class Banks(NamedTuple):
    """The average wavefronts of a statement's accesses: as they were, and as they would be without bank conflicts.

    A statement with several accesses (wmma.load) has their sum.

    ``is_paired``: in every access pairs of lanes load the same address, so that a wide load takes half.
    """

    wavefronts: float
    ideal: float
    is_paired: bool = False

    def of(self, passes: int) -> float:
        """Return the wavefronts of a machine instruction of the statement, from its own wavefronts without conflicts.

        An instruction with a part of the access has that part of the conflicts. An instruction that merges the accesses
        of several statements does not add up their conflicts, because their words may be adjacent. It takes at least
        the wavefronts of one statement, and exactly these if the lanes' addresses are equally spaced.
        """
        passes = -(-passes // 2) if self.is_paired else passes
        return passes * self.wavefronts / self.ideal if passes <= self.ideal else max(passes, self.wavefronts)


def lost(least: float, held: float) -> float:
    """Return the share of sectors that a cache of ``held`` bytes has lost before they are touched again.

    Their distances are evenly distributed from ``least`` to ``REUSE_RATIO`` times as many bytes.
    """
    return min(1.0, max(0.0, (REUSE_RATIO - held / least) / (REUSE_RATIO - 1)))


class Sectors(NamedTuple):
    """The average access of global memory of a statement: the sectors and lines that it touches.

    ``fetched``: sectors that an L1 of ``PROFILED_L1`` bytes for each CTA does not hold. ``missed``: share of accesses
    that have any. ``wavefronts``: passes over the data of L1. ``reuse``: sectors that a CTA touches again and no other
    CTA touches, by distance, of loads that L1 keeps. ``accesses``: those of the launch, with a lane that accesses.
    ``first``: share of the lines that the CTA had not touched before. ``pending``: share of accesses to what L1 has,
    but may still be on its way. ``cold``: share of the accesses that need L2 which touch what DRAM gives at once first.
    """

    touched: float
    lines: float = 0.0
    fetched: float = 0.0
    missed: float = 0.0
    wavefronts: float = 0.0
    reuse: Mapping[int, float] = MappingProxyType({})
    accesses: int = 0
    first: float = 1.0
    pending: float = 0.0
    cold: float = 1.0

    def times(self, share: float) -> "Sectors":
        """Return the average access if only a share of them has a lane that accesses."""
        return Sectors(
            share * self.touched, share * self.lines, share * self.fetched, share * self.missed,
            share * self.wavefronts, {least: share * n for least, n in self.reuse.items()}, self.accesses, self.first,
            share * self.pending, self.cold,
        )  # fmt: skip

    def within(self, l1_bytes: float, profiled: float = PROFILED_L1) -> "Sectors":
        """Return the access with another L1 for each CTA, as far as a CTA touches its sectors again.

        ``profiled``: the L1 that each CTA of the profile had.
        """
        more = sum(n * (lost(least, l1_bytes) - lost(least, profiled)) for least, n in self.reuse.items())
        if not more:
            return self
        fetched = min(self.touched, max(0.0, self.fetched + more))
        missed = min(1.0, max(0.0, self.missed + (fetched - self.fetched) / self.touched))
        return self._replace(fetched=fetched, missed=missed, pending=min(self.pending, 1 - missed))

    @property
    def requests(self) -> float:
        """Requests of L2, one for each line: the lines of the fetched sectors, if all lines have the same share."""
        return self.lines * min(1.0, self.fetched / self.touched) if self.touched else 0.0


class Adds(NamedTuple):
    """Additions of a launch to global memory: requests of a CTA, each for a line, and the lines of all CTAs.

    ``lanes``: that add to the same word in a request, on average. ``of_cta``: lines that a CTA adds to; ``of_all``:
    lines that so many ``ctas`` add to.
    """

    requests: float
    lanes: float
    of_cta: float
    of_all: float
    ctas: int

    def lines(self, ctas: int) -> float:
        """Return the lines that a number of CTAs add to, if they grow with CTAs as those of the recorded ones do."""
        if self.ctas == 1:
            return self.of_all * ctas
        growth = min(1.0, math.log(max(1.0, self.of_all / self.of_cta)) / math.log(self.ctas))
        return self.of_cta * math.pow(ctas, growth)


class Launch(NamedTuple):
    """The counts of one launch: how often warps executed the statement of each PTX line, its CTAs and their rounds.

    ``banks`` has the lines with bank conflicts, ``sectors`` those with accesses of global memory, ``reuse`` the sectors
    that CTAs touch again, by distance. ``copied``: the bytes that bulk copies of a CTA load and store, if known.
    ``l1_bytes``: the L1 of a CTA in the profile. ``together``: the CTAs that shared it on one SM; 0: none did.
    ``each``: the instructions of each CTA, by its number in the grid, as a share of the average; empty if unknown.
    ``adds``: the additions to global memory, if there are any and their lines are known. ``single``: the lines of
    accesses of memory that are one instruction each, if that is known.
    """

    executed: Mapping[int, int]
    ctas: int
    rounds: float  # rounds of a CTA, on average
    banks: Mapping[int, Banks] = MappingProxyType({})
    sectors: Mapping[int, Sectors] = MappingProxyType({})
    reuse: Mapping[int, int] = MappingProxyType({})
    copied: float | None = None
    l1_bytes: float = PROFILED_L1
    together: int = 0
    each: Sequence[float] = ()
    adds: Adds | None = None
    single: Collection[int] = frozenset()

    def shares(self, ctas: int) -> list[float]:
        """Return the work of each CTA of a launch as a share of the average; empty if all are alike, or unknown.

        If a launch has more CTAs than the recorded one, the recorded CTAs follow each other again and again.
        """
        if not self.each or max(self.each) - min(self.each) < _ALIKE:
            return []
        found = [self.each[n % len(self.each)] for n in range(ctas)]
        return [one * ctas / sum(found) for one in found]

    def within(self, l1_bytes: float) -> "Launch":
        """Return the counts with another L1 for each CTA."""
        sectors = {row: one.within(l1_bytes, self.l1_bytes) for row, one in self.sectors.items()}
        return self._replace(sectors=sectors, l1_bytes=l1_bytes)


def executed_of(statements: Sequence[Statement], entry: str) -> dict[int, int]:
    """Return how often the statements of a kernel were executed, by the PTX line at which they begin."""
    found: dict[int, int] = {}
    for one in statements:
        if one.kernel == entry and one.opcode:
            found.setdefault(one.row, one.counts.executed)
    if not any(found.values()):
        others = ", ".join(dict.fromkeys(one.kernel for one in statements)) or "nothing"
        message = f"the profile does not have {entry}; it has {others}"
        raise InvalidArgumentError(message)
    return found


def single_of(statements: Sequence[Statement], entry: str) -> frozenset[int]:
    """Return the lines of accesses of memory that are one instruction each: all but those of wmma and cp.async."""
    return frozenset(
        one.row
        for one in statements
        if one.kernel == entry
        and _SINGLE.match(one.opcode)
        and (one.counts.global_accesses or one.counts.shared_accesses)
    )


def banks_of(statements: Sequence[Statement], entry: str) -> dict[int, Banks]:
    """Return the wavefronts of accesses of shared memory, for the lines with bank conflicts or loads by pairs."""
    rows: dict[int, list[Counts]] = {}
    for one in statements:
        if one.kernel == entry:
            rows.setdefault(one.row, []).append(one.counts)
    found = {}
    for row, c in ((row, total(counts)) for row, counts in rows.items()):
        if c.bank_conflicts or c.shared_paired_accesses:
            n, is_paired = min(c.executed, c.shared_accesses), c.shared_paired_accesses == c.shared_accesses
            found[row] = Banks(c.shared_wavefronts / n, c.shared_ideal_wavefronts / n, is_paired)
    return found


def sectors_of(statements: Sequence[Statement], entry: str) -> dict[int, Sectors]:
    """Return the average access of global memory, for the lines of a kernel that have accesses.

    An access without any touches nothing: no warp executed it, its predicate was false, or its generic address was one
    of shared memory.
    """
    found: dict[int, Sectors] = {}
    for one in statements:
        if one.kernel != entry:
            continue
        if n := (c := one.counts).global_accesses:
            reuse = c.global_reuse if _KEPT.match(one.opcode) else {}
            counts = [c.global_sectors, c.global_lines, c.global_l2_sectors, c.global_l2_accesses, c.global_wavefronts]
            sectors, lines, fetched, missed, passes = (count / n for count in counts)
            again = {least: count / n for least, count in reuse.items()}
            first = c.global_first_lines / c.global_lines if c.global_lines else 1.0
            cold = min(1.0, c.global_first_accesses / c.global_l2_accesses) if c.global_l2_accesses else 1.0
            pending = c.global_pending_accesses / n
            found.setdefault(one.row, Sectors(sectors, lines, fetched, missed, passes, again, n, first, pending, cold))
        elif _ACCESS.match(one.opcode):
            found.setdefault(one.row, Sectors(0.0))
    return found


def adds_of(statements: Sequence[Statement], entry: str, ctas: int) -> Adds | None:
    """Return the additions to global memory of a launch of so many CTAs; None if there are none."""
    counts = [one.counts for one in statements if one.kernel == entry and one.counts.global_added_words]
    lines, of_ctas, of_all, lanes, words = (
        sum(getattr(c, name) for c in counts)
        for name in ("global_lines", "global_first_lines", "global_added_lines", "lanes", "global_added_words")
    )
    if not counts:
        return None
    # A CTA that has loaded a line does not touch it first when it adds to it.
    return Adds(lines / ctas, lanes / words, max(of_ctas, of_all) / ctas, of_all, ctas)


def reuse_of(statements: Sequence[Statement], entry: str) -> dict[int, int]:
    """Return the sectors that the CTAs of a kernel touch again and no other CTA touches, by distance."""
    return total(one.counts for one in statements if one.kernel == entry).global_reuse


def in_shared(function: Function, statements: Sequence[Statement]) -> Function:
    """Return a kernel whose generic loads and stores are those of shared memory, where all of their lanes went.

    ptxas knows the memory of such an access as little as the code tells it: `wmma.load` of a pointer becomes LD.E.
    """
    own = [one for one in statements if one.kernel == function.name and one.opcode]
    shared = {one.row for one in own if one.counts.shared_accesses and not one.counts.global_accesses}
    rows = sorted({one.row for one in own})

    def known(one: Instruction) -> Instruction:
        generic = one.base in {"LD", "ST"} and row_of(rows, one) in shared
        return dataclasses.replace(one, opcode=f"{one.base}S{_EXTENDED.sub('', one.opcode[2:])}") if generic else one

    return Function(function.name, [known(one) for one in function.instructions])


@dataclasses.dataclass(frozen=True)
class Share:
    """How often a warp reaches and takes a branch: each count is ``a + b * rounds`` of the CTA's rounds."""

    reached: tuple[float, float]
    taken: tuple[float, float]

    def of(self, rounds: int) -> float:
        """Return how often it is taken, as a share of how often it is reached."""
        reached, taken = (a + b * rounds for a, b in (self.reached, self.taken))
        return min(1.0, max(0.0, taken / reached)) if reached > 0 else 0.0

    @property
    def least(self) -> int:
        """The rounds from which on the share lies between 0 and 1; 0: it never does."""
        (c, d), (a, b) = self.reached, self.taken
        found = [-begin / each for begin, each in ((a, b), (c - a, d - b)) if begin < 0 < each]
        return math.ceil(max(found, default=0))


def _line(launches: Sequence[Launch], counts: Sequence[int], warps: int) -> tuple[float, float]:
    """Return a and b from the counts of a warp and CTA in one launch, or in two with different rounds."""
    each = [count / launch.ctas / warps for count, launch in zip(counts, launches, strict=True)]
    lengths = [launch.rounds for launch in launches]
    if len(each) == 1 or lengths[0] == lengths[-1]:
        return each[0], 0.0
    b = (each[-1] - each[0]) / (lengths[-1] - lengths[0])
    return each[0] - b * lengths[0], b


def _predicates(one: Instruction) -> set[str]:
    """Return the predicates that an instruction may write, and perhaps other operands."""
    if one.base == "R2P":  # those of its mask
        return {f"P{n}" for n in range(_PREDICATES) if int(one.operands[-1], 0) >> n & 1}
    return set() if one.is_branch else set(one.operands[:2])


def _waits(one: Instruction) -> bool:
    return pipes.class_of(one.opcode) == "try_wait"


class Recording:
    """Recorded branches of a kernel's main loop, and its bank conflicts.

    Parameters
    ----------
    function : Function
        The kernel, with the lines of its PTX.
    launches : sequence of Launch
        One launch, or two with different rounds. Two separate the work of a CTA (masked tiles) from the work of every
        round.
    warps : int
        Computing warps of a CTA.
    loop : Loop, optional
        A loop to use instead of the main loop.

    Attributes
    ----------
    handovers : Recorded, optional
        Recorded hand-overs; ``why_not`` says why they must come from the rules instead.
    share : float
        The share of the recorded CTAs that execute the loop. The others leave before it, and ``launches`` do not count
        them.
    beside : int
        Warps of a CTA that go around the loop.
    outside : Recording, optional
        The recording of a launch with CTAs as in a large one, for the paths before and behind the loop.
    repeats : dict
        The rounds of loops inside the loop in each of its rounds, by header, where all rounds have as many.

    """

    def __init__(self, function: Function, launches: Sequence[Launch], warps: int, loop: Loop | None = None) -> None:
        self.function, self.launches, self.warps = function, launches, warps
        self.handovers: Recorded | None = None
        self.why_not = "they were not recorded"
        self.share, self.beside = 1.0, 0
        self.outside: Recording | None = None
        self.repeats: dict[int, int] = {}
        self._counts = [blocks(function, launch.executed, launch.single) for launch in launches]
        self.loop = loop or (function.main_loop() if function.loops else Loop(0, ()))
        self._edges = [edges(function, counts) for counts in self._counts]
        self._rows = sorted(launches[-1].executed)
        for n, (launch, counts) in enumerate(zip(launches, self._counts, strict=True)):
            known = {b: self.count(b, n) for b in range(len(function.blocks))}
            if more := of_copies(function, launch.executed, known):
                counts.update(more)
                self._edges[n] = edges(function, counts)

    def wavefronts(self, one: Instruction) -> float:
        """Return the average wavefronts of shared memory of an instruction."""
        passes = pipes.wavefronts(one)
        banks = self.launches[-1].banks.get(row_of(self._rows, one)) if pipes.is_access(one) else None
        return banks.of(passes) if banks else passes

    def written(self, one: Instruction) -> float | None:
        """Return the average wavefronts of what a cp.async writes to shared memory; None without bank conflicts."""
        banks = self.launches[-1].banks.get(row_of(self._rows, one))
        return banks.wavefronts if banks else None

    def sectors(self, one: Instruction) -> Sectors | None:
        """Return what a warp's access of global memory touches and takes from L2; None if it is unknown.

        A guarded access touches nothing where no lane passes the guard.
        """
        found = self.launches[-1].sectors.get(row := row_of(self._rows, one)) if pipes.lane_bytes(one) else None
        if found and _NOT_IN_L1.search(one.opcode):
            found = found._replace(fetched=found.touched, missed=1.0)
        if found and one.predicate and found.accesses and (issued := self._issued.get((row, one.base))):
            return found.times(min(1.0, found.accesses / issued))
        return found

    @cached_property
    def _issued(self) -> dict[tuple[int, str], int]:
        """How often the instructions of a statement were issued, by its line and their opcode, as far as known."""
        found, unknown = Counter[tuple[int, str]](), set[tuple[int, str]]()
        for n, block in enumerate(self.function.blocks):
            count = self.count(n)
            for one in self.function.instructions[block.first : block.last]:
                key = row_of(self._rows, one), one.base
                found[key] += count or 0
                unknown |= {key} if count is None else set()
        return {key: count for key, count in found.items() if key not in unknown}

    @cached_property
    def shares(self) -> dict[int, Share]:
        """The branches that the recording decides, by address."""
        found = {}
        for n, branch in self._branches():
            fall, to = self.function.blocks[n].successors
            ways = [(e.get((n, fall)), e.get((n, to))) for e in self._edges]
            of_others = self._is_role(branch) or self._is_wait(n, branch)
            if not of_others and all(x is not None and y is not None for x, y in ways):
                taken = [y for _, y in ways if y is not None]
                reached = [x + y for x, y in ways if x is not None and y is not None]
                if any(reached):
                    found[branch.address] = Share(
                        _line(self.launches, reached, self.warps), _line(self.launches, taken, self.warps)
                    )
        return found

    @property
    def least(self) -> int:
        """The rounds of a CTA from which on all shares are as recorded, at most the recorded rounds."""
        longest = math.ceil(max(launch.rounds for launch in self.launches))
        return min(longest, max((share.least for share in self.shares.values()), default=0))

    @cached_property
    def by_rules(self) -> list[int]:
        """The addresses of branches that the rules decide, except waits and branches over copies."""
        told = self.shares
        return [
            branch.address
            for n, branch in self._branches()
            if branch.address not in told and not self._is_role(branch) and not self._is_wait(n, branch)
        ]

    def _branches(self) -> list[tuple[int, Instruction]]:
        """Return the blocks of the loop that end with a conditional branch inside it, and these branches."""
        inside = set(self.loop.blocks)
        ends = [(n, self.function.instructions[self.function.blocks[n].last - 1]) for n in self.loop.blocks]
        return [
            (n, end)
            for n, end in ends
            if end.is_branch and len(self.function.blocks[n].successors) == 2  # noqa: PLR2004 - taken or not
            and inside.issuperset(self.function.blocks[n].successors) and ".DIV" not in end.opcode
        ]  # fmt: skip

    def _skipped(self, branch: Instruction) -> list[Instruction]:
        """Return the instructions that a forward branch skips."""
        return [one for one in self.function.instructions if branch.address < one.address < (branch.target or 0)]

    def _is_role(self, branch: Instruction) -> bool:
        """Whether a branch skips only copies: then it depends on the warp, and the rules decide it."""
        skipped = self._skipped(branch)
        return any(one.is_copy for one in skipped) and not any(one.is_tensor for one in skipped)

    @cached_property
    def roles(self) -> dict[int, int]:
        """The branches that some warps always take and the others never, and how many warps take each.

        No instruction of the loop writes their predicates, and whole warps take them in both recorded launches.
        """
        written = {name for b in self.loop.blocks for one in self._code(b) for name in _predicates(one)}
        found = {}
        for _, branch in self._branches():
            share, guard = self.shares.get(branch.address), branch.predicate.lstrip("!")
            if share and guard and guard not in written:
                counts = {share.of(rounds) * self.warps for rounds in (1, _MANY)}
                warps = round(min(counts))
                if 0 < warps < self.warps and all(abs(count - warps) < _EXACT for count in counts):
                    found[branch.address] = warps
        return found

    def _code(self, block: int) -> Sequence[Instruction]:
        """Return the instructions of a block."""
        return self.function.instructions[self.function.blocks[block].first : self.function.blocks[block].last]

    def _is_wait(self, n: int, branch: Instruction) -> bool:
        """Whether a branch repeats or skips a wait: then the simulator decides it, which knows when the wait ends."""
        block, skipped = self.function.blocks[n], self._skipped(branch)
        over_one = any(map(_waits, skipped)) and len(skipped) <= _WAIT_LENGTH
        guard = branch.predicate.lstrip("!")
        setters = [
            one
            for one in self.function.instructions[block.first : block.last]
            if guard and guard in one.operands[:2] and not one.is_branch
        ]
        return n in block.successors or over_one or (bool(setters) and _waits(setters[-1]))

    @property
    def rounds(self) -> float:
        """Rounds of the loop for a warp and CTA in the last launch; 0 if unknown."""
        return (self.executed(self.loop) or 0.0) / self.warps

    def ran(self, block: int, warp: int = 0) -> bool:
        """Whether a warp of a CTA may have executed a block in the last launch; warp 0 stands for the busiest one.

        A block that n warps of a CTA execute on average is executed by the first n.
        """
        if warp == 0:
            return self._counts[-1].get(block, 1) > 0
        return self.count(block) is None or self.passed(block, warp)

    def passed(self, block: int, warp: int) -> bool:
        """Whether it is known that a warp executed a block, in the order of ``ran``."""
        return (self.count(block) or 0) >= (warp + 0.5) * self.launches[-1].ctas

    def executed(self, loop: Loop) -> float | None:
        """Return the rounds of a loop, summed over the warps of a CTA; None if unknown."""
        known = self.count(loop.header)
        count = self._unrolled(loop) if known is None else float(known)
        return None if count is None else count / self.launches[-1].ctas

    def _unrolled(self, loop: Loop) -> float | None:
        """Return how often an unrolled loop was executed: a round holds the code of some statements several times.

        Their other copies, before or behind the loop, are for the few rounds that remain.
        """
        executed, copies = self.launches[-1].executed, self._copies(loop)
        others = [other for other in self.function.loops if not set(other.blocks) & set(loop.blocks)]
        shared = {other: copies.keys() & self._copies(other).keys() for other in others}
        if alike := [other for other, rows in shared.items() if 2 * len(rows) >= len(copies)]:
            return self._shared_out(loop, [loop, *alike], set(copies).intersection(*(shared[other] for other in alike)))
        elsewhere = set[int]().union(*shared.values())
        found = Counter[float]()
        for row, count in copies.items():  # what counts rounds has one copy, the work of each of them more
            found[executed[row] / count] += 0 if row in elsewhere else count
        return found.most_common(1)[0][0] if found.total() else None

    def _shared_out(self, loop: Loop, alike: Sequence[Loop], rows: Collection[int]) -> float | None:
        """Return how often a loop was executed whose code other loops have too, with more or fewer copies in a round.

        The loop with most copies comes first and takes all rounds that it can, the next one what it leaves.
        """
        copies = {other: Counter(self._copies(other)[row] for row in rows).most_common(1) for other in alike}
        by_copies = {found[0][0]: other for other, found in copies.items() if found}
        first = by_copies[max(by_copies)] if len(by_copies) == len(alike) else None
        entered = self.entered(first) if first else None
        if not entered:
            return None
        left = Counter(self.launches[-1].executed[row] for row in rows).most_common(1)[0][0]
        passes = left / self.launches[-1].ctas / entered
        for count in sorted(by_copies, reverse=True):
            if by_copies[count] == loop:
                return passes // count * entered * self.launches[-1].ctas
            passes %= count
        return None

    def _copies(self, loop: Loop) -> dict[int, int]:
        """Return how often a round of a loop has the code of each statement, by line, without the loops inside it."""
        return copies_of(self._rows, self.function.own_of_loop(loop))

    def count(self, block: int, launch: int = -1) -> int | None:
        """Return how often a block ran in a launch, by its statements or by the flow into it or out of it."""
        count, flow = self._counts[launch].get(block), self._edges[launch]
        into = [flow.get((n, block)) for n, one in enumerate(self.function.blocks) if block in one.successors]
        out = [flow.get((block, s)) for s in self.function.blocks[block].successors]
        for counts in (into, out):
            known = [one for one in counts if one is not None]
            if count is None and counts and len(known) == len(counts):
                count = sum(known)
        return count

    def went(self, block: int, to: int) -> float | None:
        """Return how often the warps of a CTA went from a block to one behind it; None if unknown."""
        flow = self._edges[-1].get((block, to))
        return None if flow is None else flow / self.launches[-1].ctas

    def entered(self, loop: Loop) -> float | None:
        """Return how often the warps of a CTA came to a loop from outside; None if unknown."""
        inside, function = set(loop.blocks), self.function
        into = [
            self._edges[-1].get((n, loop.header))
            for n, block in enumerate(function.blocks)
            if n not in inside and loop.header in block.successors
        ]
        count = sum(one for one in into if one is not None)
        if None in into:  # as often as the closest block that every warp passes before it
            passed = [self.count(b) for b in reversed(range(loop.header)) if function.dominates(b, loop.header)]
            known = next((one for one in passed if one is not None), None)
            if known is None:
                return None
            count = known
        return count / self.launches[-1].ctas

    @property
    def marker(self) -> int:
        """The line of the statement with which a round of the loop begins."""
        rows = own_rows(self.function, self.launches[-1].executed)[self.loop.header]
        if not rows:
            message = "no line of the PTX is only in the first block of the main loop"
            raise NotUnderstoodError(message)
        return min(rows)

    def choices(self, rounds: int, warp: int | None = None) -> Callable[[Instruction], bool | None]:
        """Return a function that decides a branch each time that it is reached; None if the rules must decide it.

        In a CTA with this number of rounds the branch is taken as often as recorded, evenly spread; ``warp`` takes
        those of ``roles`` always or never: the last warps take them.
        """
        reached: Counter[int] = Counter()

        def takes(branch: Instruction) -> bool | None:
            share = self.shares.get(branch.address)
            if share is None:
                return None
            if warp is not None and branch.address in self.roles:
                return warp >= self.warps - self.roles[branch.address]
            n, p = reached[branch.address], share.of(rounds)
            reached[branch.address] += 1
            return math.floor((n + 1) * p + 0.5) > math.floor(n * p + 0.5)

        return takes
