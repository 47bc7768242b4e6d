"""From a kernel's machine code to the input of the simulator: its paths, its tiles, its copies."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import Any

from pysm120.machine_code import pipes as pipe_table
from pysm120.machine_code.sass import Function, Instruction, Loop
from pysm120.model import paths as warp_paths
from pysm120.model.chips import Chip
from pysm120.model.handovers import ByRules, Deed, Handovers, InTime
from pysm120.model.local import Room
from pysm120.model.mbarriers import NotUnderstoodError, Recorded
from pysm120.model.recorded import Recording
from pysm120.model.simulator import Outcome, Simulator, StuckError
from pysm120.model.steps import Paths, Pipes, Step

TYPICAL = 16  # rounds of a CTA, if all CTAs are alike
_MORE = 3  # rounds beyond the stages of a ring, after which the rules have shown that they fit


@dataclasses.dataclass(frozen=True)
class KernelModel:
    """A kernel on a chip.

    Attributes
    ----------
    chip : Chip
        The chip that runs it.
    function : Function
        Its code.
    warps : int
        Computing warps of a CTA.
    slots : int
        Resident CTAs of an SM.
    paths, pipes
        Inputs of the simulator.
    handovers : Handovers
        Hand-overs between warps and copies.
    recording : Recording, optional
        Recorded branches of the main loop, and wavefronts of shared memory.
    loop : Loop, optional
        The main loop; None if the kernel has no loop.

    """

    chip: Chip
    function: Function
    warps: int
    slots: int
    paths: Paths
    pipes: Pipes
    handovers: Handovers
    recording: Recording | None = None
    loop: Loop | None = None
    _outcomes: dict[tuple[Any, ...], Outcome] = dataclasses.field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @cached_property
    def _simulator(self) -> Simulator:
        return Simulator(self.chip, self.pipes, self.paths, self.warps, queues=self.has_products)

    @property
    def has_products(self) -> bool:
        """Whether the kernel has matrix instructions."""
        return any(one.is_tensor for one in self.function.instructions)

    def run(self, rounds: list[int], slots: int, offset: int = 0, *, keep_events: bool = False) -> Outcome:
        """Simulate CTAs, or return what an equal simulation gave; ``rounds`` has the rounds of each."""
        key = (*rounds, slots, offset, keep_events)
        if key not in self._outcomes:
            self._outcomes[key] = self._simulator.run(rounds, slots, offset, keep_events=keep_events)
        return self._outcomes[key]


def build(
    chip: Chip,
    function: Function,
    threads: int,
    slots: int,
    *,
    loop: Loop | None = None,
    warps: int | None = None,
    stages: int | None = None,
    stated: Mapping[int, bool] | None = None,
    recording: Recording | None = None,
    through: bool = False,
    in_time: bool = False,
    room: Room | None = None,
) -> KernelModel:
    """Read a kernel.

    Parameters
    ----------
    chip : Chip
        The chip that runs it.
    function : Function
        Its code.
    threads, slots : int
        Threads of a CTA; resident CTAs of an SM.
    loop : Loop, optional
        A loop to use instead of the main loop.
    warps : int, optional
        Warps of a CTA that execute the loop. Default: all but producers, by the number of threads.
    stages : int, optional
        Tiles that the ring of copies holds. Default: from the number of mbarriers, else one more than the tiles that
        are copied before the main loop.
    stated : mapping, optional
        Whether branches of the main loop are taken, by address.
    recording : Recording, optional
        Recorded branches of the main loop, and wavefronts of shared memory; the rules decide everything else.
    through : bool
        Lead the paths before and behind the main loop once through loops that they cannot go around.
    in_time : bool
        Every tile is there in time: the warps wait for no mbarrier.
    room : Room, optional
        What L1 and L2 hold of a warp's local memory. Default: all of it.

    """
    warps = warps or warp_paths.compute_warps(threads)
    if not function.loops or (recording and not recording.loop.blocks):  # none was executed
        return _without_loop(chip, function, warps, slots, recording, room)
    loop = loop or function.main_loop()

    def ways_of(rounds: int, *, loads: bool, warp: int | None = None) -> list[list[Instruction]]:
        return warp_paths.rounds_of(function, loop, recording, rounds, loads=loads, stated=stated, warp=warp)

    around = most_frequent(ways_of(TYPICAL, loads=False))
    load_around = most_frequent(ways_of(TYPICAL, loads=True))
    before, load_before, behind, load_behind = _outside(function, loop, warps, recording, through=through)
    between = warp_paths.between(function, loop, before, behind)
    found = _handovers_of(recording, stages, (before, load_before, behind), ways_of)
    handovers: Handovers
    if isinstance(found, str) or in_time:
        why = found if isinstance(found, str) else ""
        handovers = by_rules = ByRules(function, warps, around, load_before, load_around, stages, why=why)
    else:
        handovers, by_rules = found, None
    pipes = _pipes(chip, function, recording, warps, room)

    def model_of(handovers: Handovers) -> KernelModel:
        sources: list[Instruction] = []
        made: dict[tuple[tuple[int, Deed | None], ...], list[Step]] = {}

        def steps(path: list[Instruction], deeds: dict[int, Deed]) -> list[Step]:
            key = tuple((one.address, deeds.get(one.address)) for one in path)
            if key not in made:
                made[key] = pipes.steps(path, deeds, sources)
            return made[key]

        def steps_around(way: list[Instruction], others: list[Instruction]) -> list[Step]:
            return steps(way, handovers.around(way, others))

        @cache
        def ways(rounds: int, loads: bool, warp: int | None) -> list[list[Step]]:  # noqa: FBT001 - as Paths.ways
            common = ways_of(rounds, loads=False, warp=warp)
            own = ways_of(rounds, loads=loads, warp=warp)
            return list(map(steps, own, _deeds_of(handovers, own, common, warp)))

        first, last = handovers.before(), _last_deeds(handovers, behind, recording)
        paths = Paths(
            steps(before, first), steps_around(around, around), steps(behind, last), steps(load_before, first),
            steps_around(load_around, around), handovers.rings, handovers.filler, sources,
            ways if recording else None, handovers.loaders, handovers.starters, handovers.turns,
            [pipes.steps(path, {}, sources) for path in _beside(function, loop, warps, recording)],
            steps(load_behind, last), steps(between, first), has_roles=bool(recording and recording.roles),
        )  # fmt: skip
        return KernelModel(chip, function, warps, slots, paths, pipes, handovers, recording, loop)

    model = model_of(handovers)
    if by_rules and by_rules.rings and (in_time or not _goes(model)):
        model = model_of(InTime(by_rules))
    return _with_roles_that_meet(model)


def _deeds_of(
    handovers: Handovers, own: list[list[Instruction]], common: list[list[Instruction]], warp: int | None
) -> list[dict[int, Deed]]:
    """Return the actions in each round, by address; ``warp``: of this warp, if warps have roles."""
    if warp is not None and isinstance(handovers, Recorded):
        return [handovers.in_round(way, n) | handovers.meetings(way, warp) for n, way in enumerate(own)]
    return [handovers.around(*pair) for pair in zip(own, common, strict=True)]


def _last_deeds(handovers: Handovers, behind: list[Instruction], recording: Recording | None) -> dict[int, Deed]:
    """Return the actions behind the main loop, by address, if warps have roles."""
    if isinstance(handovers, Recorded) and recording and recording.roles:
        return handovers.behind(behind)
    return {}


def _outside(
    function: Function, loop: Loop, warps: int, recording: Recording | None, *, through: bool
) -> tuple[list[Instruction], ...]:
    """Return the paths to the main loop of a warp and of a loader, and those from it to the end.

    The recorded paths are those of one of the middle warps and of the first one; without, loaders go where copies are.
    """
    before, load_before = (warp_paths.before(function, loop, loads=loads, through=through) for loads in (False, True))
    if recording and recording.outside:
        first, middle = (_walked(function, loop, recording.outside, warp) for warp in (0, warps // 2 - 1))
        return middle[0] or before, first[0] or load_before, middle[1], first[1]
    behind = warp_paths.behind(function, loop, through=through)
    if not through or recording is None:
        return before, load_before, behind, behind
    first, middle = (
        warp_paths.recorded(function, loop, partial(recording.passed, warp=warp)) for warp in (0, warps // 2)
    )
    return middle[0] or before, first[0] or load_before, middle[1] or behind, first[1] or behind


def _walked(function: Function, loop: Loop, seen: Recording, warp: int) -> tuple[list[Instruction], list[Instruction]]:
    """Return the path of a warp to the main loop, and that from it to the end."""
    out = [s for b in loop.blocks for s in function.blocks[b].successors if s not in loop.blocks]
    ends = {b for b, block in enumerate(function.blocks) if not block.successors}
    before = warp_paths.walked(function, [0], {loop.header}, seen.went, warp)
    return before, warp_paths.walked(function, out, ends, seen.went, warp)


def _beside(function: Function, loop: Loop, warps: int, recording: Recording | None) -> list[list[Instruction]]:
    """Return the paths of the warps of a CTA that go around the main loop."""

    def path_of(warp: int) -> list[Instruction]:
        return warp_paths.whole(function, lambda b: b not in loop.blocks and _ran(recording, warp)(b))

    return [path_of(warp) for warp in range(warps, warps + recording.beside)] if recording else []


def _without_loop(
    chip: Chip, function: Function, warps: int, slots: int, recording: Recording | None, room: Room | None
) -> KernelModel:
    """Return the model of a kernel without a loop; some of its warps may have a longer path than others."""
    ways = [warp_paths.whole(function, _ran(recording, warp)) for warp in range(warps if recording else 1)]
    longest = [way for way in ways if way == ways[0]] if recording else ways * warps
    ran = Counter(one.address for way in ways for one in way) if recording else None
    model = straight(chip, function, ways[0], len(longest), slots, recording, room=room, ran=ran)
    others = [model.pipes.steps(way, {}, model.paths.sources) for way in ways[len(longest) :]]
    return dataclasses.replace(model, paths=dataclasses.replace(model.paths, beside=others))


def straight(
    chip: Chip,
    function: Function,
    path: list[Instruction],
    warps: int,
    slots: int,
    recording: Recording | None = None,
    *,
    repeats: bool = False,
    room: Room | None = None,
    ran: Mapping[int, int] | None = None,
) -> KernelModel:
    """Return the model of a path without hand-overs: executed once, or with ``repeats`` once in each round.

    ``ran``: the warps of a CTA that execute each instruction, by address. Default: ``warps``.
    """
    pipes, sources = _pipes(chip, function, recording, warps, room), list[Instruction]()
    pipes.ran = ran or {}
    steps = pipes.steps(path, {}, sources)
    once, around = ([], steps) if repeats else (steps, [])
    paths = Paths(once, around, [], once, around, (), None, sources, None, (), ())
    return KernelModel(chip, function, warps, slots, paths, pipes, InTime(), recording)


def _pipes(chip: Chip, function: Function, recording: Recording | None, warps: int, room: Room | None = None) -> Pipes:
    """Return the pipes of a chip, with the recorded bank conflicts of a kernel."""
    pipes = Pipes(chip, warps=warps, room=room)
    if recording:
        rounds = recording.rounds if recording.loop.blocks else 0.0
        pipes = Pipes(chip, recording.wavefronts, recording.sectors, recording.written, warps, rounds, room)
    pipes.called = function.called
    for one in function.instructions if recording else ():  # so that no later round needs another pipe
        pipes.number(chip.timing(pipe_table.class_of(one.opcode)).pipe)
    return pipes


def _ran(recording: Recording | None, warp: int) -> Callable[[int], bool]:
    """Return a function that says whether a warp of a CTA may have executed a block."""
    return (lambda b: recording.ran(b, warp)) if recording else lambda _: True


def _with_roles_that_meet(model: KernelModel) -> KernelModel:
    """Return the model, whose warps have no roles if they would wait for each other."""
    if not model.paths.has_roles or _goes(model):
        return model
    return dataclasses.replace(model, paths=dataclasses.replace(model.paths, has_roles=False))


def _goes(model: KernelModel) -> bool:
    """Whether the simulated warps come to an end: hand-overs by the rules may not fit a kernel."""
    try:
        model.run([model.handovers.stages + _MORE], 1)
    except StuckError:
        return False
    return True


def _handovers_of(
    recording: Recording | None,
    stages: int | None,
    outside: tuple[list[Instruction], list[Instruction], list[Instruction]],
    ways_of: Callable[..., list[list[Instruction]]],
) -> Handovers | str:
    """Return the recorded hand-overs if the simulated paths agree with them; else the reason to use the rules.

    ``outside``: the paths to the main loop, of which the second one is that of the producer warps, and the path behind.
    """
    if stages is not None:
        return "--stages says how many tiles are under way"
    if recording is None or recording.handovers is None:
        return recording.why_not if recording else "nothing was recorded"
    found = recording.handovers
    try:
        if recording.roles:
            _require_roles(found, outside, ways_of)
        else:
            _require(found, outside[:2], ways_of)
    except NotUnderstoodError as error:
        return str(error)
    return found


def _require(
    found: Recorded, before: tuple[list[Instruction], ...], ways_of: Callable[..., list[list[Instruction]]]
) -> None:
    """Raise if the simulated paths do not agree with recorded hand-overs."""
    common = ways_of(found.rounds, loads=False)
    for loads, first in zip((False, True), before, strict=True):
        ways = ways_of(found.rounds, loads=loads)
        deeds = [_in_order(found.around(*pair), pair[0]) for pair in zip(ways, common, strict=True)]
        found.require(loads, _in_order(found.before(), first), deeds)


def _require_roles(
    found: Recorded, outside: tuple[list[Instruction], ...], ways_of: Callable[..., list[list[Instruction]]]
) -> None:
    """Raise if the simulated path of a warp does not agree with what it was seen to do."""
    last = _in_order(found.behind(outside[2]), outside[2])
    for warp in sorted(found.computing):
        ways = ways_of(found.rounds, loads=warp in found.loaders, warp=warp)
        deeds = [_in_order(found.in_round(way, n), way) for n, way in enumerate(ways)]
        first = _in_order(found.before(), outside[warp in found.starters])
        found.require_of({warp}, first, [*deeds, last])


def loads_and_waits(function: Function, loop: Loop) -> bool:
    """Whether a round waits for what it has just loaded: no product or exponential is between loads and the wait."""
    code = list(function.of_loop(loop))
    copied = loaded = worked = False
    for one in (*code, *code):  # a round may load for the next one
        kind = pipe_table.class_of(one.opcode)
        waits = copied and one.opcode == "DEPBAR.LE" and int(one.operands[1], 0) == 0
        if waits or (loaded and kind == "store_shared"):
            if not worked:
                return True
            copied = loaded = worked = False
        copied, loaded = copied or kind == "copy_async", loaded or kind == "load_global"
        worked = (copied or loaded) and (worked or one.is_tensor or kind == "mufu")
    return False


def _in_order(deeds: Mapping[int, Deed], way: list[Instruction]) -> list[Deed]:
    """Return the actions on a path."""
    return [deeds[one.address] for one in way if one.address in deeds]


def most_frequent(ways: list[list[Instruction]]) -> list[Instruction]:
    """Return the path that most rounds take; on a tie, the first one."""
    counts = Counter(tuple(one.address for one in way) for way in ways)
    return max(ways, key=lambda way: counts[tuple(one.address for one in way)])
