"""The steps of warps: the instructions on their paths, with the units that each occupies and what it waits for."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from pysm120.machine_code import pipes as pipe_table
from pysm120.machine_code.sass import Instruction
from pysm120.model import fetch as fetching
from pysm120.model import local
from pysm120.model import ports as port_table
from pysm120.model.chips import Chip
from pysm120.model.handovers import Deed, Filler, Ring
from pysm120.model.recorded import SECTOR_BYTES, Sectors

_LANES = 32
_PASS_BYTES = 128  # of shared memory in a wavefront, one clock
_WHOLE_LINES = re.compile(r"\.LTC(?:128|256)B\b")  # what an access asks L2 for
_QUEUED = ("lsu", "xu", "copy")
# By the logarithm of how many CTAs load the same tile: what they wait for DRAM, as a part of its latency beyond that of
# L2 (results/h200/step.json, the mean of cp.async and loads at 1,000 steps of computing).
_WAITS = ((0.0, 1.0), (1.0, 0.90), (3.0, 0.82), (5.0, 0.60), (6.0, 0.42), (8.0, 0.16))


class Step(NamedTuple):
    """An instruction on a path.

    ``special`` is "", "barrier" or "reach" (a barrier of ``amount`` warps, 0: all of the CTA; the warp waits for the
    others, or goes on), an action on a phase of ``ring`` (handovers.py): "wait", "arrive" or "copy", or an
    action of cp.async: "load" (``amount`` bytes), "commit" (a group) or "drain" (wait for all but ``amount`` groups).
    ``place`` is the index of the instruction among the sources, ``line`` the index of its line of code.
    ``wavefronts``: passes over the data of shared memory and L1. ``added``: bytes that it adds to L2; ``loaded``,
    ``stored``: bytes that it loads from L2, without cp.async, or stores. A request of few bytes counts as more.
    ``spilled``: bytes of local memory that DRAM reads or writes for it.
    ``written``: wavefronts of shared memory that the bytes of a cp.async take when they arrive; ``landing``: its
    latency until then.
    """

    pipe: int
    interval: float
    latency: int
    wavefronts: float
    stall: int
    waits: int
    writes: int
    reads: int
    special: str
    place: int
    amount: int = 0
    ring: int = 0
    ahead: int = 0
    ports: port_table.Demand = (0.0, 0.0)
    line: int = 0
    added: int = 0
    loaded: float = 0.0
    stored: float = 0.0
    written: float = 0.0
    landing: int = 0
    spilled: float = 0.0


@dataclasses.dataclass(frozen=True)
class Paths:
    """The steps of warps before the rounds, in each round and after them; ``load...`` are the steps of ``loaders``.

    ``between``: the steps from the last round of a Q tile to the first one of the next, of CTAs that go on to the Q
    tiles of others; else empty.
    ``starters`` are the loaders that load before the rounds. With ``turns`` one loader after the other loads, each in a
    round of its own. ``beside``: the steps of each other warp of a CTA, which executes no round. ``load_behind``: of
    loaders, if their steps after the rounds are others.

    ``ways``, if rounds differ: called with a CTA's number of rounds, True for loaders, and None or a warp, it returns
    the steps of each round. With ``has_roles`` the steps of warps differ in every round.

    ``working``: the warps of a CTA that have rows, if not all have; each further one only hands over in its rounds.
    """

    before: list[Step]
    around: list[Step]
    behind: list[Step]
    load_before: list[Step]
    load_around: list[Step]
    rings: Sequence[Ring]
    filler: Filler | None
    sources: list[Instruction]
    ways: Callable[[int, bool, int | None], Sequence[list[Step]]] | None = None
    loaders: Collection[int] = (0,)
    starters: Collection[int] = (0,)
    turns: Sequence[int] = ()
    beside: Sequence[list[Step]] = ()
    load_behind: list[Step] | None = None
    between: Sequence[Step] = ()
    has_roles: bool = False
    working: int | None = None

    def fit(self, chip: Chip) -> bool:
        """Whether the code of the rounds, or of a kernel without rounds, fits in the instruction cache."""
        code = (*self.around, *self.load_around) or (*self.before, *self.behind)
        return fetching.fits(chip, {step.line for step in code})

    def of_warp(self, warp: int, count: int, first: int = 0) -> Sequence[list[Step]]:
        """Return the steps of a warp of a CTA in each round of a Q tile, whose first one is round ``first``."""
        loads = warp in self.loaders
        ways = self.ways(count, loads, warp) if self.has_roles and self.ways else self.rounds(count, loads=loads)
        if warp in self.turns:
            turn, others = self.turns.index(warp), self.rounds(count)
            ways = [(ways if (first + n) % len(self.turns) == turn else others)[n] for n in range(count)]
        if self.working is None or warp < self.working:
            return ways
        handed = {id(way): _hand_overs(way) for way in ways}
        return [handed[id(way)] for way in ways]

    def rounds(self, count: int, *, loads: bool = False) -> Sequence[list[Step]]:
        """Return the steps of a warp in each round of a CTA with a number of rounds."""
        return self.ways(count, loads, None) if self.ways else [self.load_around if loads else self.around] * count


def _hand_overs(way: Sequence[Step]) -> list[Step]:
    """Return the steps of a round in which a warp takes part in hand-overs, and those that wait for them."""
    found, held = list[Step](), 0
    for step in way:
        if step.special or step.waits & held:
            found.append(step)
            held &= ~step.waits
        if step.special == "wait" and step.writes >= 0:
            held |= 1 << step.writes
    return found or [*way[-1:]]


class Pipes:
    """The pipes of a chip by number, and the steps of instructions.

    ``wavefronts`` returns the wavefronts of shared memory of an instruction, ``sectors`` what an access of global
    memory touches, ``written`` the wavefronts that what a cp.async has copied takes; None if that is unknown.
    ``warps``: of a CTA, which meet at its barriers, and at its end after ``rounds``. ``room``: that of a warp's local
    memory; None: L1 holds all of it. ``ran``: the warps that execute an instruction, by address, where they are others.
    ``called``: what a call executes, by its address.
    """

    def __init__(
        self,
        chip: Chip,
        wavefronts: Callable[[Instruction], float] = pipe_table.wavefronts,
        sectors: Callable[[Instruction], Sectors | None] = lambda _: None,
        written: Callable[[Instruction], float | None] = lambda _: None,
        warps: int = 1,
        rounds: float = 0.0,
        room: local.Room | None = None,
    ) -> None:
        self.chip, self.wavefronts, self.sectors, self.written = chip, wavefronts, sectors, written
        self.room = room
        self.warps, self.at_end = warps, 1 / math.sqrt(1 + rounds)
        self.ran: Mapping[int, int] = {}
        self.called: Mapping[int, Sequence[Instruction]] = {}
        self.spread, self.share = (float(chip.values.get(name, 0.0)) for name in ("line_spread", "line_share"))
        # Of kernels with products: the share of lines that come from DRAM, 0 if unknown. Their loads wait for L2 in
        # the simulation, and not for the slowest of several loads.
        self.cold_share = float(chip.values["cold_share"]) if "cold_share" in chip.values else None
        self.names: list[str] = []
        self.port_clocks = float(chip["port_xu"]), float(chip["port_returned"])
        self.load_request, self.store_request = float(chip["load_request_bytes"]), float(chip["store_request_bytes"])

    def number(self, name: str) -> int:
        """Return the number of a pipe."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def queued(self) -> list[bool]:
        """Return, for each pipe, whether a queue is in front of it."""
        return [name in _QUEUED for name in self.names]

    def delays(self) -> list[list[tuple[int, float]]]:
        """Return, for each pipe, which busy pipes an instruction on it delays, and by how many clocks."""
        found: list[list[tuple[int, float]]] = [[] for _ in self.names]
        for key, value in self.chip.values.items():
            delayed, by, cause = key.partition("_by_")
            if by and delayed in self.names and cause in self.names:
                found[self.names.index(cause)].append((self.names.index(delayed), float(value)))
        return found

    def steps(self, path: Sequence[Instruction], deeds: Mapping[int, Deed], sources: list[Instruction]) -> list[Step]:
        """Return the steps of a path; ``deeds`` has actions by address. New instructions are added to ``sources``."""
        path = [executed for one in path for executed in (one, *self.called.get(one.address, ()))]
        places = {one.address: n for n, one in enumerate(sources)}
        steps = []
        last_barrier, (together, arrived) = _last_barrier(path), self._together(path)
        of_frame = local.moved(path, self.room, self._touched) if self.room else {}
        for i, one in enumerate(path):
            # The guard is never true: the instruction is issued and does nothing.
            is_idle = one.predicate == "!PT"
            timing = self.chip.timing("branch" if is_idle else pipe_table.class_of(one.opcode))
            if one.address not in places:
                places[one.address] = len(sources)
                sources.append(one)
            following = path[(i + 1) % len(path)].address
            taken = one.is_jump and following != one.address + 16
            branch = self.chip["reconverge"] if one.base == "BSYNC" else self.chip["taken_branch"] if taken else 0
            passes = 0 if is_idle else self.wavefronts(one) or pipe_table.add_passes(one) or self.l1_passes(one)
            # The result is ready after all wavefronts, which take an interval each.
            ideal = pipe_table.wavefronts(one) or pipe_table.add_passes(one) or pipe_table.l1_passes(one)
            conflicts = max(0, passes - ideal)
            latency, loaded, stored = timing.latency, 0.0, 0.0
            if not is_idle:
                lines = together.get(i, 0.0)
                latency, loaded, stored = self.of_memory(
                    one, timing.latency, meets=i < last_barrier, lines=lines, has_arrived=i in arrived
                )
            spills = of_frame.get(i, local.Moved())
            if spills.of_l2 or spills.stored:
                latency, loaded, stored = self._of_frame(latency, spills, meets=i < last_barrier)
            special, amount = _special(one)
            written, landing = 0.0, 0
            if special == "load":
                written = amount / _PASS_BYTES if (recorded := self.written(one)) is None else recorded
                found = self.sectors(one)
                landing = round(self.at_first(one, found, "async_latency"))
                if found is not None:
                    amount = round(self.requested(found))
            deed = deeds.get(one.address) or Deed(special, 0, 0, amount)
            steps.append(
                Step(
                    self.number(timing.pipe),
                    timing.interval * max(1, passes),
                    math.ceil(latency + conflicts * max(0, timing.interval - 1)),
                    passes,
                    max(1, one.stall, int(branch)),
                    one.wait_mask,
                    -1 if one.write_barrier is None else one.write_barrier,
                    -1 if one.read_barrier is None else one.read_barrier,
                    deed.kind,
                    places[one.address],
                    deed.amount,
                    deed.ring,
                    deed.ahead,
                    (0.0, 0.0) if is_idle else port_table.demand(one, path[i - 1], *self.port_clocks),
                    one.address // fetching.LINE_BYTES,
                    added_bytes(one),
                    loaded,
                    stored,
                    written,
                    landing,
                    float(local.LINE_BYTES * (spills.of_dram + spills.written)),
                )
            )
        return steps

    def _together(self, path: Sequence[Instruction]) -> tuple[dict[int, float], set[int]]:
        """Return the lines that a warp waits for together with those of each load of a path, by its index.

        Loads are waited for together if nothing waits for one of them before the last one is issued. Besides, return
        the loads of which nothing is on its way any more: none of those that are waited for together misses L1, so
        what they load was asked for before the last wait.
        """
        found, group, barriers, arrived = dict[int, float](), list[int](), 0, set[int]()
        for i, one in enumerate(path):
            if one.wait_mask & barriers:
                group, barriers = [], 0
            if pipe_table.class_of(one.opcode) != "load_global" or one.predicate == "!PT" or one.write_barrier is None:
                continue
            group.append(i)
            barriers |= 1 << one.write_barrier
            lines = self._lines(one) + (found[group[0]] if len(group) > 1 else 0.0)
            found |= dict.fromkeys(group, lines)
            arrived = arrived.difference(group) if lines else arrived.union(group)
        return found, arrived

    def _lines(self, one: Instruction) -> float:
        """Return the lines that a load of global memory has to wait for, on average."""
        found = self.sectors(one)
        if found is None:
            return float(_LANES * pipe_table.lane_bytes(one)) / fetching.LINE_BYTES
        return found.requests

    def _touched(self, one: Instruction) -> float:
        """Return the lines of global memory that an instruction takes from L2."""
        kinds = {"load_global", "copy_async"}
        return self._lines(one) if pipe_table.class_of(one.opcode) in kinds and one.predicate != "!PT" else 0.0

    def _of_frame(self, latency: float, spills: local.Moved, *, meets: bool) -> tuple[float, float, float]:
        """Return the latency of an access of local memory, and the bytes that it loads from L2 and stores.

        ``meets``: as for ``of_memory``.
        """
        of_global, values = self.chip.timing("load_global").latency, self.chip.values
        of_l2 = float(values.get("l2_latency", of_global))
        of_dram = of_global if "l2_latency" in values else float(values.get("dram_latency", of_l2))
        if spills.of_l2:
            latency = of_dram + self.late(spills.of_dram, meets=meets) if spills.of_dram else of_l2
        return latency, local.LINE_BYTES * spills.of_l2, local.LINE_BYTES * spills.stored

    def l1_passes(self, one: Instruction) -> float:
        """Return the passes over the data of L1 that an access of global memory takes.

        A store takes one for each line that was recorded.
        """
        passes, found = pipe_table.l1_passes(one), self.sectors(one)
        if one.base in {"STG", "ST"}:
            return found.lines if found else 0
        return found.wavefronts if passes and found is not None else passes

    def requested(self, found: Sectors) -> float:
        """Return the bytes of the requests of L2 that a load or cp.async makes."""
        return max(SECTOR_BYTES * found.fetched, self.load_request * found.requests)

    def of_memory(
        self, one: Instruction, latency: float, *, meets: bool = False, lines: float = 0.0, has_arrived: bool = False
    ) -> tuple[float, float, float]:
        """Return the latency of an instruction, and the bytes that it loads from L2 and stores.

        L1 gives what it holds sooner. A statement whose accesses need L2 in part has the average latency. ``meets``:
        the warps of the CTA wait for each other at a barrier behind the access. ``lines``: of this load and of those
        that the warp waits for together with it. ``has_arrived``: nothing that it loads is on its way any more.
        """
        kind = pipe_table.class_of(one.opcode)
        if one.base in {"ATOM", "ATOMG"}:
            return self.chip.timing("atomic_global").latency, 0.0, 0.0
        if kind not in {"load_global", "store_global"}:
            return latency, 0.0, 0.0
        found, warps = self.sectors(one), self.ran.get(one.address, self.warps)
        if found is None:
            moved = float(_LANES * pipe_table.lane_bytes(one))
            if kind == "store_global":
                return latency, 0.0, moved
            own = moved / fetching.LINE_BYTES
            return self._cold(latency, own, lines, 1.0, meets=meets, warps=warps), moved, 0.0
        if kind == "store_global":
            return latency, 0.0, max(SECTOR_BYTES * found.touched, self.store_request * found.lines)
        of_l1 = self.chip.timing("load_local").latency
        own = found.requests / found.missed if found.missed else 0.0
        latency = self._cold(latency, own, lines, self._first(one, found), meets=meets, warps=warps)
        # What is on its way comes no sooner than from L2.
        waits = found.missed + (0.0 if has_arrived else found.pending)
        return of_l1 + waits * (latency - of_l1), self.requested(found), 0.0

    def _cold(self, latency: float, own: float, lines: float, first: float, *, meets: bool, warps: int) -> float:
        """Return the latency of a load that misses L1, from that of one line.

        ``own``: its lines; ``lines``: those of all loads that the warp waits for together. ``first``: the share of what
        the CTA touches first. If a share p of all lines comes from DRAM, p / first of these do, and none of the others:
        what a warp waits for is either all touched first, or not at all.
        """
        lines = max(lines, own)
        if self.cold_share is None:
            return latency + self.late(lines, meets=meets, warps=warps)
        of_l2 = float(self.chip.values["l2_latency"])
        share = min(1.0, self.cold_share / first) if first else 0.0
        cold = min(waits_of_dram(share), 1 - math.pow(1 - share, lines)) if self.cold_share else 1.0
        return of_l2 + (latency - of_l2) * cold * first + self.late(own, meets=meets, warps=warps)

    def at_first(self, one: Instruction, found: Sectors | None, name: str) -> float:
        """Return a latency of the chip for an access: of DRAM for what its CTA touches first, else of L2.

        A statement has the average latency of its accesses, or of their lines.
        """
        of_dram = float(self.chip[name])
        of_l2 = float(self.chip.values.get(f"l2_{name}", of_dram))
        cold = waits_of_dram(self.cold_share) if self.cold_share else 1.0
        return of_l2 + (of_dram - of_l2) * cold * (self._first(one, found) if found else 1.0)

    @staticmethod
    def _first(one: Instruction, found: Sectors) -> float:
        """Return the share of an access that its CTA touches first, of what L2 takes from DRAM at once.

        L2 takes pairs of sectors, and whole lines for an access that asks for them.
        """
        return found.first if _WHOLE_LINES.search(one.opcode) else found.cold

    def late(self, lines: float, *, meets: bool, warps: int | None = None) -> float:
        """Return by how much the slowest of a load's lines is later than one alone.

        It grows with each doubling of the number of lines that come from DRAM. Warps that meet wait for the slowest
        line of all of them. Other warps only meet at the end of the CTA, which keeps its place until the slowest has
        ended. They are apart then by the sum of their rounds, which spreads by the square root of the rounds.

        ``warps``: those of the CTA that execute the load. Default: all that are simulated on this path.
        """
        executing = self.warps if warps is None else warps
        own, of_all = (math.log2(max(1.0, self.share * n)) for n in (lines, lines * executing))
        return self.spread * (own + (1.0 if meets else self.at_end) * (of_all - own))


def waits_of_dram(share: float) -> float:
    """Return which part of DRAM's latency beyond that of L2 CTAs wait for, if a share of the lines comes from DRAM.

    CTAs that load the same tiles go nearly in step, and wait for what others of them have asked for.
    """
    sharing = math.log2(1 / min(1.0, max(share, 1e-9)))
    (left, of_left), (right, of_right) = next(
        pair for pair in itertools.pairwise((*_WAITS, (math.inf, _WAITS[-1][1]))) if sharing <= pair[1][0]
    )
    return of_left + (of_right - of_left) * (sharing - left) / (right - left)


def _last_barrier(path: Sequence[Instruction]) -> int:
    """Return the index behind which no warp waits for others on a path; in a round, the next round has its barriers."""
    found = [i for i, one in enumerate(path) if _special(one)[0] == "barrier"]
    return len(path) if found and local.is_round(path) else max(found, default=0)


def added_bytes(one: Instruction) -> int:
    """Return the bytes that a warp's instruction adds to L2, if all its lanes add."""
    is_add = pipe_table.class_of(one.opcode) == "add_global" or one.base in {"ATOM", "ATOMG"}
    return _LANES * pipe_table.lane_bytes(one) if is_add else 0


def _special(one: Instruction) -> tuple[str, int]:
    """Return the action of an instruction that needs no hand-overs, and its amount."""
    if one.base == "BAR":
        members = int(one.operands[1], 0) // _LANES if len(one.operands) > 1 and one.operands[1].startswith("0x") else 0
        if ".ARV" in one.opcode:  # it goes on
            return ("reach" if members else ""), members
        return "barrier", members
    if one.base == "LDGSTS":
        return "load", _LANES * pipe_table.lane_bytes(one)
    if one.base == "LDGDEPBAR":
        return "commit", 0
    if one.opcode == "DEPBAR.LE":
        return "drain", int(one.operands[1], 0)
    return "", 0
