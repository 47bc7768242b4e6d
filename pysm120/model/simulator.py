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

Times are whole clocks. The library simulates (sm120_simulate, src/model/): this module writes down its input and reads
its result.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pysm120.model import fetch as fetching
from pysm120.model.chips import Chip
from pysm120.model.steps import Paths, Pipes, Step
from pysm120.runtime.errors import UnsupportedError
from pysm120.runtime.ffi import cast, check, ffi, lib, new_struct, types

QUARTERS = 4
_ACTIONS = ("", "barrier", "reach", "load", "commit", "drain", "wait", "arrive", "copy")  # by SM120_STEP_...
_REASONS = ("stall count", "cp.async", "no instruction", "mbarrier", "not selected", "register ports busy")
_EVENTS = 1 << 16  # room at first


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
    lines : int
        Lines of code that were fetched; 0 if the instruction cache holds all code.

    """

    clocks: int
    ends: list[int]
    busy: dict[str, float]
    stalls: dict[tuple[int, str], int]
    issued: int
    events: list[Event]
    lines: int = 0


class StuckError(UnsupportedError):
    """The simulated warps wait for each other."""


def _numbers(kind: str) -> np.dtype[Any]:
    """Return the dtype of a struct of numbers, as the library's header declares it."""
    of_c = {"double": "f8", "int64_t": "i8", "int32_t": "i4"}
    fields = types[kind].fields
    layout = {
        "names": [name for name, _ in fields],
        "formats": [of_c[field.type.cname] for _, field in fields],
        "offsets": [field.offset for _, field in fields],
        "itemsize": ffi.sizeof(types[kind]),
    }
    return np.dtype(layout)  # type: ignore[call-overload, no-any-return]


_STEP, _RING, _DELAY, _EVENT = (_numbers(f"sm120_simulated_{kind}") for kind in ("step", "ring", "delay", "event"))


def _row(step: Step) -> tuple[float, ...]:
    """Return a step as the library has it, in the order of the members of sm120_simulated_step."""
    return (
        *(step.interval, step.wavefronts, *step.ports, step.loaded, step.stored, step.added, step.written),
        *(step.amount, _ACTIONS.index(step.special), step.pipe, step.latency, step.landing, step.stall, step.waits),
        *(step.writes, step.reads, step.ring, step.ahead, step.line, step.place),
    )


class _Lists:
    """Arrays of a struct of the library, which live as long as this object."""

    def __init__(self, struct: Any) -> None:
        self.struct, self.kept = struct, dict[str, np.ndarray[Any, Any]]()

    def put(self, name: str, kind: str, values: Any, dtype: Any) -> "np.ndarray[Any, Any]":
        """Let a member point to values, at least one of them."""
        array = self.kept[name] = np.array(values if len(values) else np.zeros(1, dtype), dtype)
        setattr(self.struct, name, cast(kind, array.ctypes.data))
        return array


class _Table:
    """The paths that warps follow, each once, by number."""

    def __init__(self) -> None:
        self.numbers, self.paths = dict[int, int](), list[Sequence[Step]]()
        self.rows = list[np.ndarray[Any, Any]]()

    def number(self, path: Sequence[Step]) -> int:
        """Return the number of a path."""
        if id(path) not in self.numbers:
            self.numbers[id(path)] = len(self.paths)
            self.paths.append(path)  # which also keeps its id
            self.rows.append(np.array([_row(step) for step in path], _STEP))
        return self.numbers[id(path)]


class Simulator:
    """An SM of a chip, which runs CTAs.

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
    queues : bool
        Loads and stores wait for the SM's share of L2. Without, only their latency counts.

    """

    def __init__(self, chip: Chip, pipes: Pipes, paths: Paths, warps: int, *, queues: bool = True) -> None:
        self.chip, self.pipes, self.paths, self.warps, self.queues = chip, pipes, paths, warps, queues
        self.table = _Table()

    def run(self, rounds: Sequence[int], slots: int, offset: int = 0, *, keep_events: bool = False) -> Outcome:
        """Run a Q tile for each of ``rounds``, ``slots`` CTAs at a time; the slots start ``offset`` clocks apart.

        A CTA has one of them, or goes on with the next one that no other has. ``keep_events``: for a timeline.
        """
        given = new_struct("sm120_simulation")
        lists = _Lists(given)
        self._of_chip(given, lists, min(len(rounds), slots))
        self._of_paths(given, lists, sorted(set(rounds)))
        kinds = {count: kind for kind, count in enumerate(sorted(set(rounds)))}
        lists.put("kind_of_tile", "int32_t *", [kinds[count] for count in rounds], np.int32)
        lists.put("rounds_of_kind", "int32_t *", list(kinds), np.int32)
        given.tiles, given.slots, given.offset, given.kinds = len(rounds), slots, offset, len(kinds)
        return self._result(given, keep_events=keep_events)

    def _of_chip(self, given: Any, lists: _Lists, slots: int) -> None:
        """Write down the chip's timings."""
        chip, names = self.chip, self.pipes.names
        given.pipes = len(names)
        lists.put("is_queued", "int32_t *", self.pipes.queued(), np.int32)
        delays = [(clocks, cause, on) for cause, all_of in enumerate(self.pipes.delays()) for on, clocks in all_of]
        lists.put("delays", "sm120_simulated_delay *", delays, _DELAY)
        given.delay_count = len(delays)
        given.is_greedy, given.queues_bind = chip["scheduler"] == "greedy", self.queues
        given.adds_bind = bool(chip["adds_bind"])
        given.copy_rate, given.drain_rate = float(chip["copy_bytes_per_clock"]), float(chip["drain_bytes_per_clock"])
        given.load_rate = float(chip.values.get("load_bytes_per_clock", chip["copy_bytes_per_clock"]))
        given.store_rate, given.port_window = float(chip["store_bytes_per_clock"]), float(chip["port_window"])
        given.add_rate, given.add_queue = float(chip["add_bytes_per_clock"]), float(chip["add_queue_bytes"])
        given.mbarrier_wake = int(chip["mbarrier_wake"])
        for name in ("queue_depth", "copy_latency", "barrier_interval", "barrier_latency", "cta_start", "cta_interval"):
            setattr(given, name, int(chip[name]))
        if not self.paths.fit(chip):  # else all code is there
            given.code_sets, given.code_ways = fetching.sets(chip), int(chip["code_ways"])
            given.code_ahead = int(chip["code_ahead"]) * -(-self.warps * slots // QUARTERS)
            given.code_latency, given.code_interval = float(chip["code_latency"]), float(chip["code_interval"])

    def _of_paths(self, given: Any, lists: _Lists, counts: Sequence[int]) -> None:
        """Write down the paths of warps in Q tiles with these numbers of rounds."""
        paths, table = self.paths, self.table
        own, load_behind = range(self.warps), paths.behind if paths.load_behind is None else paths.load_behind
        before = [table.number(paths.load_before if w in paths.starters else paths.before) for w in own]
        behind = [table.number(load_behind if w in paths.loaders else paths.behind) for w in own]
        turns = len(paths.turns) or 1
        begins, ways = list[int](), list[int]()
        for warp in own:
            for count in counts:
                for first in range(turns):
                    if first == 0 or warp in paths.turns:
                        begin = len(ways)
                        ways += map(table.number, paths.of_warp(warp, count, first))
                    begins.append(begin)
        lists.put("before", "int32_t *", before, np.int32)
        lists.put("behind", "int32_t *", [*behind, *map(table.number, paths.beside)], np.int32)
        lists.put("rounds_begin", "int32_t *", begins, np.int32)
        lists.put("path_of_round", "int32_t *", ways, np.int32)
        given.round_count, given.turns = len(ways), turns
        given.between = table.number(paths.between) if paths.between else -1
        steps = np.concatenate(table.rows)
        lists.put("path_begin", "int32_t *", np.cumsum([0, *map(len, table.rows)]), np.int32)
        lists.put("steps", "sm120_simulated_step *", steps, _STEP)
        given.step_count, given.path_count = len(steps), len(table.paths)
        given.warps, given.beside, given.has_roles = self.warps, len(paths.beside), paths.has_roles
        given.places = len(paths.sources) or 1
        filler = paths.filler
        filled = filler.filled if filler else ()
        rings = [
            (one.bytes, one.arrivals, one.copies, one.once, one.each, one.left, n in filled)
            for n, one in enumerate(paths.rings)
        ]
        lists.put("rings", "sm120_simulated_ring *", rings, _RING)
        given.ring_count = len(rings)
        given.stages, given.emptied = (filler.stages, filler.emptied) if filler else (0, -1)

    def _result(self, given: Any, *, keep_events: bool) -> Outcome:
        """Simulate, and read the result."""
        names = self.pipes.names
        result = new_struct("sm120_simulation_result")
        lists = _Lists(result)
        ends = lists.put("ends", "int64_t *", np.zeros(given.tiles), np.int64)
        busy = lists.put("busy", "double *", np.zeros(len(names) + 1), np.float64)
        stalls = lists.put("stalls", "int64_t *", np.zeros((given.places, len(_REASONS) + 2 * len(names))), np.int64)
        room = _EVENTS if keep_events else 0
        while True:
            events = np.zeros(room, _EVENT)
            if keep_events:
                result.events, result.event_room = cast("sm120_simulated_event *", events.ctypes.data), room
            try:
                check(lib.sm120_simulate(given, result))
            except UnsupportedError as error:
                raise StuckError(str(error)) from None
            if result.event_count <= room:
                break
            room = result.event_count
        events = events[: result.event_count]
        reasons = (*_REASONS, *names, *(f"{name} busy" for name in names))
        return Outcome(
            result.clocks,
            ends[: result.ended].tolist(),
            {name: clocks for name, clocks in zip((*names, "shared"), busy.tolist(), strict=True) if clocks},
            {(int(n), reasons[r]): int(stalls[n, r]) for n, r in zip(*np.nonzero(stalls), strict=True)},
            result.issued,
            [Event(begin, end, quarter, warp, names[pipe]) for begin, end, quarter, warp, pipe in events.tolist()],
            result.lines,
        )
