"""From a kernel's machine code to what the simulator runs: its paths, its tiles, what is copied."""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache

from pysm120 import _paths, _pipes
from pysm120._chips import Chip
from pysm120._recorded import Recording
from pysm120._simulator import Outcome, Paths, Pipes, Ring, Simulator, Step
from pysm120.sass import Function, Instruction, Loop

TYPICAL = 16  # rounds of a CTA, where one stands for all
_BYTES = re.compile(r"0x[0-9a-f]+$")


@dataclasses.dataclass(frozen=True)
class KernelModel:
    """A kernel on a chip.

    Attributes
    ----------
    chip : Chip
        Where it runs.
    function : Function
        Its code.
    warps : int
        Of a CTA that compute.
    slots : int
        CTAs on an SM at a time.
    paths, pipes
        What the simulator takes.
    recording : Recording, optional
        How branches of the main loop went, and what accesses of shared memory took.

    """

    chip: Chip
    function: Function
    warps: int
    slots: int
    paths: Paths
    pipes: Pipes
    recording: Recording | None = None

    def run(self, rounds: list[int], slots: int, offset: int = 0, *, keep_events: bool = False) -> Outcome:
        """Simulate CTAs of so many rounds each."""
        simulator = Simulator(self.chip, self.pipes, self.paths, self.warps, keep_events=keep_events)
        return simulator.run(rounds, slots, offset)


def build(
    chip: Chip,
    function: Function,
    threads: int,
    slots: int,
    *,
    loop: Loop | None = None,
    stages: int | None = None,
    stated: Mapping[int, bool] | None = None,
    recording: Recording | None = None,
) -> KernelModel:
    """Read a kernel.

    Parameters
    ----------
    chip : Chip
        Where it runs.
    function : Function
        Its code.
    threads, slots : int
        Of a CTA; CTAs on an SM.
    loop : Loop, optional
        Another than the main loop.
    stages : int, optional
        Tiles that the ring of copies holds; default: by the mbarriers that are made, else as many as are copied before
        the main loop, and one.
    stated : mapping, optional
        What to do at branches of the main loop, by address.
    recording : Recording, optional
        How branches of the main loop went, and what accesses of shared memory took; the rules say the rest.

    """
    loop = loop or function.main_loop()

    def ways_of(rounds: int, *, loads: bool) -> list[list[Instruction]]:
        return _paths.rounds_of(function, loop, recording, rounds, loads=loads, stated=stated)

    around = _most_frequent(ways_of(TYPICAL, loads=False))
    load_around = _most_frequent(ways_of(TYPICAL, loads=True))
    before = _paths.before(function, loop, loads=False)
    load_before = _paths.before(function, loop, loads=True)
    behind = _paths.behind(function, loop)
    copies = sum(one.is_copy for one in load_around)
    has_copies = any(one.is_copy for one in function.instructions)
    if stages is None:
        first = sum(one.is_copy for one in load_before)
        stages = _stages(function, around) or (first // copies + 1 if copies else 2)
    tile_bytes = (_tile_bytes(load_around) or 32768) if has_copies else 0
    ring = Ring(stages, copies or 1, tile_bytes, by_others=has_copies and copies == 0)
    pipes = Pipes(chip, recording.wavefronts) if recording else Pipes(chip)
    sources: list[Instruction] = []
    made: dict[tuple[int, ...], list[Step]] = {}
    specials: dict[int, str] = {}

    def steps(path: list[Instruction]) -> list[Step]:
        key = tuple(one.address for one in path)
        if key not in made:
            made[key] = pipes.steps(path, specials, sources)
        return made[key]

    def tell_apart(common: list[Instruction], loads: list[Instruction]) -> None:
        if has_copies:
            specials.update(_specials(common, loads, load_before))

    @cache
    def ways(rounds: int, loads: bool) -> list[list[Step]]:  # noqa: FBT001 - the signature of Paths.ways
        common, load = ways_of(rounds, loads=False), ways_of(rounds, loads=True)
        for pair in zip(common, load, strict=True):
            tell_apart(*pair)
        return [steps(path) for path in (load if loads else common)]

    tell_apart(around, load_around)
    paths = Paths(
        steps(before), steps(around), steps(behind), steps(load_before), steps(load_around), ring, sources,
        ways if recording else None,
    )  # fmt: skip
    for one in function.instructions if recording else ():  # so that no later round needs another pipe
        pipes.number(chip.timing(_pipes.class_of(one.opcode)).pipe)
    return KernelModel(chip, function, _paths.compute_warps(threads), slots, paths, pipes, recording)


def _most_frequent(ways: list[list[Instruction]]) -> list[Instruction]:
    """Return the way that most rounds go; of as many, the first."""
    counts = Counter(tuple(one.address for one in way) for way in ways)
    return max(ways, key=lambda way: counts[tuple(one.address for one in way)])


def _specials(around: list[Instruction], load_around: list[Instruction], before: list[Instruction]) -> dict[int, str]:
    """Return what waits and arrivals are for, by address."""
    common = {one.address for one in around}
    specials: dict[int, str] = {}
    last_copy = max((i for i, one in enumerate(before) if one.is_copy), default=-1)
    for i, one in enumerate(before):
        if one.is_copy:
            specials[one.address] = "copy"
        elif _pipes.class_of(one.opcode) == "try_wait" and i > last_copy:
            specials[one.address] = "full"  # those before are for stages that are empty
    for one in load_around:
        if one.is_copy:
            specials[one.address] = "copy"
        elif _pipes.class_of(one.opcode) == "try_wait":
            specials[one.address] = "full" if one.address in common else "empty"
    arrivals = [one for one in around if _pipes.class_of(one.opcode) == "arrive"]
    if arrivals:
        specials[arrivals[-1].address] = "arrive"
    return specials


def _stages(function: Function, around: list[Instruction]) -> int:
    """Return the stages of a ring by its mbarriers, 0 without any: a stage has one for each wait and each arrival."""
    made = sum(one.base == "SYNCS" and "EXCH" in one.opcode for one in function.instructions)
    used = sum(_pipes.class_of(one.opcode) in {"try_wait", "arrive"} for one in around)
    return max(2, made // used) if used and made >= used else 0


def _tile_bytes(path: list[Instruction]) -> int:
    """Return the bytes that arrivals on a path announce, where they are constants."""
    total = 0
    for i, one in enumerate(path):
        if _pipes.class_of(one.opcode) != "arrive" or "A1T0" in one.opcode:
            continue
        register = one.operands[-1]
        for earlier in reversed(path[:i]):
            if earlier.operands and earlier.operands[0] == register:
                found = _BYTES.match(earlier.operands[-1])
                total += int(found[0], 16) if found and "MOV" in earlier.opcode else 0
                break
    return total
