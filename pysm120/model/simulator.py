"""Simulator of an SM: four schedulers, their pipes, shared memory, the copy engine, and warps on given paths.

No values are computed: an instruction occupies units, and its result is available after a latency. Whether a warp can
issue its next instruction depends on

- the stall count of its last instruction, which also covers results of fixed latency (ptxas counted them);
- the barriers that the instruction waits for, which instructions of variable latency release;
- the pipe of the instruction, which accepts one every `interval` clocks. Shared memory, the XU and the copy engine have
  a queue in front of their pipe, and the warp waits only if the queue is full;
- the ports of its quarter's registers (ports.py), whose reads may be a few clocks late;
- contention: an instruction on one pipe delays another, busy pipe, by the chip's table;
- mbarriers, bar.sync and bar.arrive: other warps of the CTA, and the copy engine;
- additions to L2, which leave the SM at the chip's rate: accesses to memory wait while too many bytes are queued;
- groups of cp.async: DEPBAR.LE waits for all but the last few;
- the line of code of the instruction, if the code of the rounds exceeds the instruction cache (fetch.py);
- the scheduler of its quarter, which issues one instruction a clock: of the same warp as in the previous clock, if it
  can issue, else of the warp that has waited longest.

Times are whole clocks.
"""

import dataclasses
import heapq
import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from pysm120.machine_code import pipes as pipe_table
from pysm120.machine_code.sass import Instruction
from pysm120.model import fetch as fetching
from pysm120.model import ports as port_table
from pysm120.model.chips import Chip
from pysm120.model.fetch import Fetch
from pysm120.model.handovers import Deed, Filler, Ring
from pysm120.model.recorded import SECTOR_BYTES, Sectors
from pysm120.runtime.errors import UnsupportedError

QUARTERS = 4
NEVER = 1 << 60
_BARRIERS = 6
_LANES = 32
_PASS_BYTES = 128  # of shared memory in a wavefront, one clock
_OF_GROUPS = ("load", "commit", "drain")
_OF_BARRIERS = ("barrier", "reach")
_WHOLE_LINES = re.compile(r"\.LTC(?:128|256)B\b")  # what an access asks L2 for
_ALL = -1  # the barrier of all warps of a CTA; those of some warps count from 0
_QUEUED = ("lsu", "xu", "copy")
_BEFORE, _AROUND, _BETWEEN, _BEHIND = range(4)  # sections of a warp's path


class Step(NamedTuple):
    """An instruction on a path.

    ``special`` is "", "barrier" or "reach" (a barrier of ``amount`` warps, 0: all of the CTA; the warp waits for the
    others, or goes on), an action on a phase of ``ring`` (handovers.py): "wait", "arrive" or "copy", or an
    action of cp.async: "load" (``amount`` bytes), "commit" (a group) or "drain" (wait for all but ``amount`` groups).
    ``place`` is the index of the instruction among the sources, ``line`` the index of its line of code.
    ``wavefronts``: passes over the data of shared memory and L1. ``added``: bytes that it adds to L2; ``loaded``,
    ``stored``: bytes that it loads from L2, without cp.async, or stores. A request of few bytes counts as more.
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
        """Whether the code of the rounds fits in the instruction cache."""
        return fetching.fits(chip, {step.line for step in (*self.around, *self.load_around)})

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


class Event(NamedTuple):
    """An instruction's time on a pipe."""

    begin: int
    end: int
    quarter: int
    warp: int
    pipe: str


@dataclasses.dataclass
class Outcome:
    """The result of a simulation.

    Attributes
    ----------
    clocks : int
        Until the last warp ended.
    ends : list of int
        When each CTA ended.
    busy : dict
        Busy clocks of each pipe, summed over the quarters; "shared" belongs to the whole SM.
    stalls : dict
        Clocks that warps waited, by the place of the waiting instruction, and the reason.
    issued : int
        Issued instructions.
    events : list of Event
        Events, with ``keep_events``.

    """

    clocks: int
    ends: list[int]
    busy: dict[str, float]
    stalls: dict[tuple[int, str], int]
    issued: int
    events: list[Event]


class StuckError(UnsupportedError):
    """The simulated warps wait for each other."""


class _Phase:
    """A phase of a ring: its arrivals, the bytes that landed, and the time of the last one."""

    def __init__(self) -> None:
        self.arrivals = self.copies = self.last = 0


class _Cta:
    """Synchronisation state that the warps of a CTA share."""

    def __init__(self, warps: int) -> None:
        self.left = warps
        self.tiles, self.begun = list[int](), 0  # rounds of each Q tile: of those that warps have begun, and the next
        self.met: dict[int, list[_Warp | None]] = defaultdict(list)  # who reached a barrier; None: and went on
        self.phases: dict[tuple[int, int], _Phase] = defaultdict(_Phase)
        self.waiting: list[tuple[_Warp, int, int, int]] = []  # waiting warps, their phase, and their barrier

    @property
    def rounds(self) -> int:
        """Rounds of all its Q tiles."""
        return sum(self.tiles)


class _Warp:
    """The position of a warp on its path, and what it waits for."""

    def __init__(self, number: int, index: int, cta: _Cta, *, loads: bool) -> None:
        self.number, self.quarter, self.index, self.cta = number, number % QUARTERS, index, cta
        self.loads = loads
        self.tile, self.first, self.end = -1, 0, 0  # its Q tile, the first round of that and the round behind
        self.barriers = [0] * _BARRIERS
        self.why = [""] * _BARRIERS
        self.section, self.round, self.at = _BEFORE, 0, 0
        self.landing = self.landed = 0  # arrival of the last cp.async, and of the groups that were waited for
        self.groups: deque[int] = deque()  # arrival of each group that has not been waited for
        self.path: Sequence[Step] = []
        self.ways: Sequence[list[Step]] = ()
        self.ready = self.next = self.last = 0
        self.step: Step  # the next one, as settle() leaves it
        self.line, self.came, self.there = -1, 0, 0  # line of code: when the warp reached it, and when it arrives
        self.entered = False
        self.reason = self.blocked = ""


class Simulator:
    """An SM of a chip, which runs CTAs once.

    Parameters
    ----------
    chip : Chip
        The chip, for its timings.
    pipes : Pipes
        The names of the pipes, by the numbers in the steps.
    paths : Paths
        The steps of the warps.
    warps : int
        Warps of a CTA.
    keep_events : bool
        Keep the events for a timeline.
    queues : bool
        Loads and stores wait for the SM's share of L2. Without, only their latency counts.

    """

    def __init__(
        self, chip: Chip, pipes: "Pipes", paths: Paths, warps: int, *, keep_events: bool = False, queues: bool = True
    ) -> None:
        self.paths, self.warps, self.names = paths, warps, pipes.names
        self.greedy = chip["scheduler"] == "greedy"
        self.depth = int(chip["queue_depth"])
        self.wake_up = int(chip["mbarrier_wake"])
        self.cta_start, self.cta_interval = int(chip["cta_start"]), int(chip["cta_interval"])
        self.started = -self.cta_interval  # when the last CTA started
        self.drain_rate, self.drained = float(chip["drain_bytes_per_clock"]), 0.0  # when all stores have left the SM
        self.copy_latency, self.copy_rate = int(chip["copy_latency"]), float(chip["copy_bytes_per_clock"])
        self.load_rate = float(chip.values.get("load_bytes_per_clock", self.copy_rate))
        self.add_rate, self.add_queue = float(chip["add_bytes_per_clock"]), float(chip["add_queue_bytes"])
        self.adds_bind, self.queues_bind = bool(chip["adds_bind"]), queues
        self.store_rate = float(chip["store_bytes_per_clock"])
        self.bar_interval, self.bar_latency = int(chip["barrier_interval"]), int(chip["barrier_latency"])
        self.queued = [name in _QUEUED for name in self.names]
        self.free = [[0.0] * len(self.names) for _ in range(QUARTERS)]
        self.delays = pipes.delays()
        self.queues = [[deque[int](maxlen=self.depth) for _ in self.names] for _ in range(QUARTERS)]
        self.window = float(chip["port_window"])
        self.ports = [[0.0] * port_table.BANKS for _ in range(QUARTERS)]  # when each pipe is free
        self.barrier_free = 0
        self.shared_free = self.copy_free = 0.0
        self.arriving = 0.0  # wavefronts that copies still need
        self.added = 0.0  # when the additions that were issued have left the SM
        self.resident: list[list[_Warp]] = [[] for _ in range(QUARTERS)]
        self.wake = [NEVER] * QUARTERS
        self.number = 0
        self.chip = chip
        self.ahead, self.starts = list[int](), list[int]()  # rounds of the Q tiles that nobody has; starts of CTAs
        self.fetch: Fetch | None = None
        self.keep_events = keep_events
        self.outcome = Outcome(0, [], defaultdict(int), defaultdict(int), 0, [])

    def run(self, rounds: Sequence[int], slots: int, offset: int = 0) -> Outcome:
        """Run a Q tile for each of ``rounds``, ``slots`` CTAs at a time; the slots start ``offset`` clocks apart.

        A CTA has one of them, or goes on with the next one that no other has.
        """
        ahead, starts = self.ahead, self.starts = list(rounds), list[int]()
        self.fetch = self.code(min(slots, len(ahead)))
        for slot in range(min(slots, len(ahead))):
            heapq.heappush(starts, slot * offset)
        last: list[_Warp | None] = [None] * QUARTERS
        live, now = 0, 0
        while live or starts:
            now = min(self.wake)
            if starts and starts[0] <= now:
                self.begin(ahead.pop(0), heapq.heappop(starts))
                live += self.warps + len(self.paths.beside)
                continue
            if now == NEVER:
                message = "the simulated warps wait for each other: the paths do not fit together"
                raise StuckError(message)
            for quarter in range(QUARTERS):
                if self.wake[quarter] > now:
                    continue
                warp = self.choose(quarter, now, last[quarter])
                if warp is None:
                    continue
                last[quarter] = warp
                self.wake[quarter] = now + 1
                self.issue(warp, warp.step, now)
                if warp.section == _BEHIND and warp.at >= len(warp.path):
                    live -= 1
                    if self.end(warp, now) and len(ahead) > len(starts):
                        free = max(now, math.ceil(self.drained))  # a CTA keeps its place until its stores have left
                        self.started = max(free + self.cta_start, self.started + self.cta_interval)
                        heapq.heappush(starts, self.started)
        self.outcome.clocks = now
        return self.outcome

    def end(self, warp: _Warp, now: int) -> bool:
        """Retire a warp; return whether it was the last of its CTA."""
        self.resident[warp.quarter].remove(warp)
        cta = warp.cta
        cta.left -= 1
        if cta.left == 0:
            self.outcome.ends.append(now)
        elif len(cta.met[_ALL]) == cta.left:  # the others have waited for this warp
            self.barrier_free = max(self.barrier_free, now)
            self.meet(cta.met[_ALL])
        return cta.left == 0

    def begin(self, rounds: int, at: int) -> None:
        """Make a CTA resident."""
        beside = self.paths.beside
        cta = _Cta(self.warps + len(beside))
        cta.tiles.append(rounds)
        for w in range(self.warps + len(beside)):
            warp = _Warp(self.number, w, cta, loads=w in self.paths.loaders)
            self.number += 1
            if w < self.warps:
                warp.path = self.paths.load_before if w in self.paths.starters else self.paths.before
                self.take(warp)
            else:
                warp.section, warp.path = _BEHIND, beside[w - self.warps]
            warp.next = warp.last = at
            self.resident[warp.quarter].append(warp)
            self.settle(warp)
        if self.paths.filler:
            for number in range(self.paths.filler.stages):
                self.fill(cta, number, at)

    def take(self, warp: _Warp) -> None:
        """Let a warp take the next Q tile of its CTA, which then knows the one behind it."""
        cta = warp.cta
        warp.tile += 1
        if warp.tile == cta.begun:
            cta.begun += 1
            if self.paths.between and len(self.ahead) > len(self.starts):
                cta.tiles.append(self.ahead.pop(0))
        count = cta.tiles[warp.tile]
        warp.first, warp.end = warp.end, warp.end + count
        warp.ways = self.paths.of_warp(warp.index, count, warp.first)

    def choose(self, quarter: int, now: int, last: "_Warp | None") -> "_Warp | None":
        """Return the warp that a quarter issues from, or None and the next time at which one may be ready."""
        chosen: _Warp | None = None
        keep = last if self.greedy and last is not None and last.last == now - 1 and last.ready <= now else None
        soonest = NEVER
        for warp in self.resident[quarter]:
            at: float = warp.ready
            if at <= now:
                at = self.open(quarter, warp, now)
                if at <= now:
                    if chosen is None or (warp is keep if keep is not None else warp.last < chosen.last):
                        chosen = warp
                    continue
            if at < soonest:
                soonest = math.ceil(at)
        if chosen is None:
            self.wake[quarter] = soonest
        return chosen

    def open(self, quarter: int, warp: _Warp, now: int) -> float:
        """Return when the pipe and the register ports take a warp's next instruction."""
        step = warp.step
        pipe = step.pipe
        if self.queued[pipe]:
            queue = self.queues[quarter][pipe]
            at: float = queue[0] if len(queue) == self.depth else 0
        else:
            at = self.free[quarter][pipe]
        if at > now:
            warp.blocked = self.names[pipe]
        elif self.window:  # reads of registers may begin so many clocks after the issue
            even, odd = (free if count else 0.0 for free, count in zip(self.ports[quarter], step.ports, strict=True))
            at = max(even, odd) - self.window
            if at > now:
                warp.blocked = "register ports"
        return at

    def settle(self, warp: _Warp) -> None:
        """Find when the next instruction of a warp may be issued, by the state of the warp alone."""
        if warp.at >= len(warp.path):
            self.turn(warp)
            if warp.at >= len(warp.path):
                return
        step = warp.step = warp.path[warp.at]
        ready, reason = warp.next, "stall count"
        mask, b = step.waits, 0
        while mask:
            if mask & 1 and warp.barriers[b] > ready:
                ready, reason = warp.barriers[b], warp.why[b]
            mask >>= 1
            b += 1
        if warp.landed > ready:
            ready, reason = warp.landed, "cp.async"
        if self.fetch and (there := self.code_there(warp, self.fetch)) > ready:
            ready, reason = there, "no instruction"
        warp.ready, warp.reason = ready, reason
        self.wake[warp.quarter] = min(self.wake[warp.quarter], ready)

    def code(self, slots: int) -> Fetch | None:
        """Return the instruction fetch for a number of resident CTAs; None if the cache holds all code."""
        return None if self.paths.fit(self.chip) else Fetch(self.chip, -(-self.warps * slots // QUARTERS))

    @staticmethod
    def code_there(warp: _Warp, fetch: Fetch) -> int:
        """Return when the line of a warp's next instruction arrives."""
        if warp.last > warp.came and not warp.entered:
            fetch.enter(warp.line, warp.last)
            warp.entered = True
        line = warp.path[warp.at].line
        if line != warp.line:
            warp.line, warp.came, warp.there = line, warp.last, fetch.come_to(line, warp.last)
            warp.entered = False
        return warp.there

    def turn(self, warp: _Warp) -> None:
        """Move on to the next round, to the next Q tile, or to the steps after the last round."""
        if warp.section == _BEHIND:
            return
        warp.round += warp.section == _AROUND
        warp.at = 0
        if warp.round < warp.end:
            warp.section, warp.path = _AROUND, warp.ways[warp.round - warp.first]
        elif warp.tile + 1 < len(warp.cta.tiles):
            warp.section, warp.path = _BETWEEN, self.paths.between
            self.take(warp)
        else:
            warp.section = _BEHIND
            own = self.paths.load_behind if warp.loads else None
            warp.path = self.paths.behind if own is None else own

    def issue(self, warp: _Warp, step: Step, now: int) -> None:
        """Issue an instruction."""
        outcome, name = self.outcome, self.names[step.pipe]
        outcome.issued += 1
        outcome.busy[name] += step.interval
        if now > warp.last + 1:
            self.account(warp, step, now)
        warp.blocked = ""
        begin = self.occupy(warp, step, now)
        loaded = self.load(step, now) if step.loaded else 0
        if step.writes >= 0:
            done = max(loaded, math.ceil(max(begin, now) + max(step.wavefronts, 1)) - 1 + step.latency)
            if done >= warp.barriers[step.writes]:
                warp.barriers[step.writes], warp.why[step.writes] = done, name
        if step.reads >= 0 or self.keep_events:
            self.leave(warp, step, begin)
        warp.last, warp.next = now, now + step.stall
        warp.at += 1
        if not step.special or self.special(warp, step, now):
            self.settle(warp)

    def occupy(self, warp: _Warp, step: Step, now: int) -> float:
        """Occupy the register ports, the pipe and what is behind it; return when the pipe begins."""
        ports, free, pipe = self.ports[warp.quarter], self.free[warp.quarter], step.pipe
        for bank, count in enumerate(step.ports):
            if count:
                ports[bank] = max(ports[bank], now) + count
        # A pipe that was busy until less than a clock ago continues from then, so fractions of a clock add up.
        begin = free[pipe] if free[pipe] > now - 1 else now
        if self.queued[pipe]:
            begin = max(now, begin)
            if step.wavefronts:
                begin = max(begin, self.pass_banks(step.wavefronts, now))
            self.queues[warp.quarter][pipe].append(math.ceil(begin))
        free[pipe] = begin + step.interval
        if step.added or step.stored:
            self.add(warp, step, now)
        for other, delay in self.delays[pipe]:
            if free[other] > now:
                free[other] += delay
        return begin

    def pass_banks(self, wavefronts: float, now: int) -> float:
        """Pass over the banks of shared memory, which all quarters share; return when that begins."""
        passes = max(now, self.shared_free)
        self.arriving = max(0.0, self.arriving - (passes - self.shared_free))  # done while the banks were idle
        between = min(self.arriving, wavefronts)  # copies alternate with the instruction
        self.arriving -= between
        self.shared_free = passes + wavefronts + between
        self.outcome.busy["shared"] += wavefronts
        return passes

    def leave(self, warp: _Warp, step: Step, begin: float) -> None:
        """Release the barrier of a step's reads when its pipe is free again, and keep the event."""
        wavefronts, free = step.wavefronts, self.free[warp.quarter][step.pipe]
        end = math.ceil(begin + max(wavefronts, 1) if wavefronts else max(begin + 1, free))
        if step.reads >= 0 and end + 2 >= warp.barriers[step.reads]:
            warp.barriers[step.reads], warp.why[step.reads] = end + 2, self.names[step.pipe]
        if self.keep_events:
            event = Event(math.ceil(begin), end, warp.quarter, warp.number, self.names[step.pipe])
            self.outcome.events.append(event)

    def load(self, step: Step, now: int) -> int:
        """Queue bytes that are loaded; return when they arrive, 0 if only their latency counts."""
        if not self.queues_bind:
            return 0
        self.copy_free = max(self.copy_free, now) + step.loaded / self.load_rate
        return math.ceil(self.copy_free) + step.latency

    def add(self, warp: _Warp, step: Step, now: int) -> None:
        """Queue bytes that are added to L2 or stored; the pipe goes on when the queue has room for as many bytes."""
        if step.stored and not self.queues_bind:  # else stores queue for L2 below
            self.drained = max(self.drained, now) + step.stored / self.drain_rate
        clocks = step.added / self.add_rate if self.adds_bind else 0.0
        clocks += step.stored / self.store_rate if self.queues_bind else 0.0
        if clocks:
            rate = (step.added + step.stored) / clocks
            free = self.free[warp.quarter]
            self.added = max(self.added, now) + clocks
            free[step.pipe] = max(free[step.pipe], self.added - self.add_queue / rate)

    def account(self, warp: _Warp, step: Step, now: int) -> None:
        """Record what a warp waited for."""
        stalls, earliest = self.outcome.stalls, warp.last + 1
        counted = min(warp.next, now) - earliest
        if counted > 0:
            stalls[step.place, "stall count"] += counted
        held = min(warp.ready, now) - max(warp.next, earliest)
        if held > 0:
            stalls[step.place, warp.reason] += held
        rest = now - max(warp.ready, earliest)
        if rest > 0:
            stalls[step.place, f"{warp.blocked} busy" if warp.blocked else "not selected"] += rest

    # ---- synchronisation between warps and the copy engine ------------------------------

    def special(self, warp: _Warp, step: Step, now: int) -> bool:
        """Perform the action of a step; return whether the warp may continue."""
        if step.special in _OF_BARRIERS:
            return self.barrier(warp, step, now)
        if step.special in _OF_GROUPS:
            self.group(warp, step, now)
        elif warp.section != _BEHIND:
            number = step.ahead + warp.round
            if step.special == "wait":
                self.hold(warp, step, number)
            elif not 0 <= number < self.paths.rings[step.ring].phases(warp.cta.rounds):
                pass  # waits for a tile beyond the last one
            elif step.special == "copy":
                self.copy(warp.cta, step.ring, number, now, step.amount)
            else:
                self.arrive(warp.cta, step, number, now)
        return True

    def arrive(self, cta: _Cta, step: Step, number: int, now: int) -> None:
        """Arrive in a phase."""
        phase, filler = cta.phases[step.ring, number], self.paths.filler
        phase.arrivals += step.amount
        phase.last = max(phase.last, now + step.latency)
        if filler and step.ring == filler.emptied and self.met(cta, step.ring, number) is not None:
            self.fill(cta, number + filler.stages, phase.last + self.wake_up)
        self.look(cta)

    def fill(self, cta: _Cta, number: int, at: int) -> None:
        """Load a tile on behalf of producer warps that are not simulated."""
        for ring in self.paths.filler.filled if self.paths.filler else ():
            of = self.paths.rings[ring]
            for _ in range(of.copies if number < of.phases(cta.rounds) else 0):
                self.copy(cta, ring, number, at, of.bytes // of.copies)

    def group(self, warp: _Warp, step: Step, now: int) -> None:
        """Perform cp.async, its commit_group and its wait_group."""
        if step.special == "load":
            self.copy_free = max(self.copy_free, now) + step.amount / self.load_rate
            self.arriving += step.written
            warp.landing = max(warp.landing, math.ceil(self.copy_free) + step.landing)
        elif step.special == "commit":
            warp.groups.append(warp.landing)
        else:
            while len(warp.groups) > step.amount:
                warp.landed = max(warp.landed, warp.groups.popleft())

    def barrier(self, warp: _Warp, step: Step, now: int) -> bool:
        """Reach a barrier of the CTA, or with roles of as many warps as it names; return whether the warp goes on.

        The registers that number barriers of some warps are unknown: warps as far apart as there are groups meet.
        """
        waits, count = step.special == "barrier", step.amount if self.paths.has_roles else 0
        if not waits and not count:
            return True
        self.barrier_free = max(self.barrier_free, now) + self.bar_interval
        met = warp.cta.met[warp.index % max(1, self.warps // count) if count else _ALL]
        met.append(warp if waits else None)
        if waits:
            warp.ready = NEVER
        if len(met) == (count or warp.cta.left):
            self.meet(met)
        return not waits

    def meet(self, met: list[_Warp | None]) -> None:
        """Let the warps at a barrier go on."""
        others = [other for other in met if other is not None]
        met.clear()
        for other in others:
            other.next = max(other.next, self.barrier_free + self.bar_latency)
            self.settle(other)

    def copy(self, cta: _Cta, ring: int, number: int, at: int, size: int) -> None:
        """Copy bytes of a phase."""
        self.copy_free = max(self.copy_free, at) + size / self.copy_rate
        self.arriving += size / _PASS_BYTES
        phase = cta.phases[ring, number]
        phase.copies += 1
        phase.last = max(phase.last, math.ceil(self.copy_free) + self.copy_latency)
        self.look(cta)

    def hold(self, warp: _Warp, step: Step, number: int) -> None:
        """Let a warp wait on an mbarrier until the phase ends."""
        if step.writes < 0:
            return
        self.release(warp, step.writes, self.met(warp.cta, step.ring, number))
        if warp.barriers[step.writes] == NEVER:
            warp.cta.waiting.append((warp, step.ring, number, step.writes))

    def release(self, warp: _Warp, barrier: int, met: int | None) -> None:
        """Release the barrier of a wait at the time at which it was met; None: not yet."""
        if met is None:
            warp.barriers[barrier], warp.why[barrier] = NEVER, "mbarrier"
        elif met + self.wake_up > warp.barriers[barrier] or warp.barriers[barrier] == NEVER:
            warp.barriers[barrier], warp.why[barrier] = met + self.wake_up, "mbarrier"

    def met(self, cta: _Cta, ring: int, number: int) -> int | None:
        """Return when a phase ends, or None if that is not known yet. A phase without waiters has ended."""
        of = self.paths.rings[ring]
        if not 0 <= number < of.phases(cta.rounds) - of.left:
            return 0
        phase = cta.phases[ring, number]
        return phase.last if phase.arrivals >= of.arrivals and phase.copies >= of.copies else None

    def look(self, cta: _Cta) -> None:
        """Wake the warps whose wait is over."""
        waiting, cta.waiting = cta.waiting, []
        for entry in waiting:
            warp, ring, number, barrier = entry
            met = self.met(cta, ring, number)
            if met is None:
                cta.waiting.append(entry)
            else:
                self.release(warp, barrier, met)
                if warp.ready == NEVER:
                    self.settle(warp)


class Pipes:
    """The pipes of a chip by number, and the steps of instructions.

    ``wavefronts`` returns the wavefronts of shared memory of an instruction, ``sectors`` what an access of global
    memory touches, ``written`` the wavefronts that what a cp.async has copied takes; None if that is unknown.
    ``warps``: of a CTA, which meet at its barriers, and at its end after ``rounds``.
    """

    def __init__(
        self,
        chip: Chip,
        wavefronts: Callable[[Instruction], float] = pipe_table.wavefronts,
        sectors: Callable[[Instruction], Sectors | None] = lambda _: None,
        written: Callable[[Instruction], float | None] = lambda _: None,
        warps: int = 1,
        rounds: float = 0.0,
    ) -> None:
        self.chip, self.wavefronts, self.sectors, self.written = chip, wavefronts, sectors, written
        self.warps, self.at_end = warps, 1 / math.sqrt(1 + rounds)
        self.spread, self.share = (float(chip.values.get(name, 0.0)) for name in ("line_spread", "line_share"))
        self.names: list[str] = []
        self.port_clocks = float(chip["port_xu"]), float(chip["port_returned"])
        self.load_request, self.store_request = float(chip["load_request_bytes"]), float(chip["store_request_bytes"])

    def number(self, name: str) -> int:
        """Return the number of a pipe."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

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
        places = {one.address: n for n, one in enumerate(sources)}
        steps = []
        last_barrier = _last_barrier(path)
        for i, one in enumerate(path):
            # The guard is never true: the instruction is issued and does nothing.
            is_idle = one.predicate == "!PT"
            timing = self.chip.timing("branch" if is_idle else pipe_table.class_of(one.opcode))
            if one.address not in places:
                places[one.address] = len(sources)
                sources.append(one)
            following = path[(i + 1) % len(path)].address
            taken = one.is_branch and following != one.address + 16
            branch = self.chip["reconverge"] if one.base == "BSYNC" else self.chip["taken_branch"] if taken else 0
            passes = 0 if is_idle else self.wavefronts(one) or pipe_table.add_passes(one) or self.l1_passes(one)
            # The result is ready after all wavefronts, which take an interval each.
            ideal = pipe_table.wavefronts(one) or pipe_table.add_passes(one) or pipe_table.l1_passes(one)
            conflicts = max(0, passes - ideal)
            latency, loaded, stored = timing.latency, 0.0, 0.0
            if not is_idle:
                latency, loaded, stored = self.of_memory(one, timing.latency, meets=i < last_barrier)
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
                )
            )
        return steps

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

    def of_memory(self, one: Instruction, latency: float, *, meets: bool = False) -> tuple[float, float, float]:
        """Return the latency of an instruction, and the bytes that it loads from L2 and stores.

        L1 gives what it holds sooner. A statement whose accesses need L2 in part has the average latency. ``meets``:
        the warps of the CTA wait for each other at a barrier behind the access.
        """
        kind = pipe_table.class_of(one.opcode)
        if one.base in {"ATOM", "ATOMG"}:
            return self.chip.timing("atomic_global").latency, 0.0, 0.0
        if kind not in {"load_global", "store_global"}:
            return latency, 0.0, 0.0
        found = self.sectors(one)
        if found is None:
            moved = float(_LANES * pipe_table.lane_bytes(one))
            late = self.late(moved / fetching.LINE_BYTES, meets=meets)
            return (latency + late, moved, 0.0) if kind == "load_global" else (latency, 0.0, moved)
        if kind == "store_global":
            return latency, 0.0, max(SECTOR_BYTES * found.touched, self.store_request * found.lines)
        of_l1 = self.chip.timing("load_local").latency
        late = self.late(found.requests / found.missed, meets=meets) if found.missed else 0.0
        return of_l1 + found.missed * (latency + late - of_l1), self.requested(found), 0.0

    def at_first(self, one: Instruction, found: Sectors | None, name: str) -> float:
        """Return a latency of the chip for an access: of DRAM for lines that its CTA touches first, else of L2.

        An access that asks L2 for whole lines has the average latency of its lines. Of any other access the sectors
        that the CTA has not touched may come from DRAM whatever else it touched of their lines.
        """
        first = float(self.chip[name])
        of_l2 = float(self.chip.values.get(f"l2_{name}", first))
        return of_l2 + (first - of_l2) * (found.first if found and _WHOLE_LINES.search(one.opcode) else 1.0)

    def late(self, lines: float, *, meets: bool) -> float:
        """Return by how much the slowest of a load's lines is later than one alone.

        It grows with each doubling of the number of lines that come from DRAM. Warps that meet wait for the slowest
        line of all of them. Other warps only meet at the end of the CTA, which keeps its place until the slowest has
        ended. They are apart then by the sum of their rounds, which spreads by the square root of the rounds.
        """
        own, of_all = (math.log2(max(1.0, self.share * n)) for n in (lines, lines * self.warps))
        return self.spread * (own + (1.0 if meets else self.at_end) * (of_all - own))


def _last_barrier(path: Sequence[Instruction]) -> int:
    """Return the index behind which no warp waits for others on a path; in a round, the next round has its barriers."""
    found = [i for i, one in enumerate(path) if _special(one)[0] == "barrier"]
    is_round = bool(path) and path[-1].is_branch and path[-1].target == path[0].address
    return len(path) if found and is_round else max(found, default=0)


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
