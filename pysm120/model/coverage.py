"""Whether the simulated paths of a kernel have all the code that was recorded, and the parts that they lack.

The recording says how often each block ran. The paths before, in and behind the main loop, and the loops beside it,
leave out blocks that rules go around, that only some warps execute, or that a branch takes more rarely than once in
the simulated rounds. Such blocks become parts of their own, each simulated alone, as the loops beside the main loop.

A kernel without loops is one path, with all arms that any CTA took. An arm that a share of the CTAs took becomes a
part that is taken off as often as the others went around it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pysm120.model import kernel_model, predict, roles
from pysm120.model.kernel_model import KernelModel
from pysm120.model.roles import Other
from pysm120.model.steps import Step

_ALIKE = 0.1  # by how much the counts of blocks differ that are one part
_LEAST = 0.01  # of a CTA's instructions, in a part that is simulated
_LACKING = 0.85  # of the recorded instructions; a simulation of fewer lacks some of the kernel
_LACKING_PTX = 0.5  # of the recorded statements of PTX, of which ptxas saves a third at most in 70 kernels


class Coverage(NamedTuple):
    """The instructions that the warps of a CTA execute: recorded, and simulated.

    ``statements``: those of PTX that were recorded. ``parts``: what the simulated paths lack.
    """

    recorded: float
    simulated: float
    statements: float
    parts: Sequence[Other] = ()

    @property
    def lacks(self) -> str:
        """What the simulation lacks, a sentence; "" if it has enough."""
        if self.simulated >= max(_LACKING * self.recorded, _LACKING_PTX * self.statements):
            return ""
        whole = self.recorded if self.simulated < _LACKING * self.recorded else self.statements
        return (
            f"the simulated warps of a CTA execute {self.simulated:,.0f} instructions, but {whole:,.0f} were "
            "recorded: the paths leave out code whose place in the kernel is unknown"
        )


def of(model: KernelModel, rounds: Sequence[int], others: Sequence[Other]) -> Coverage | None:
    """Return how much of a recorded kernel is simulated; None if other warps than those of the main loop have roles.

    ``rounds``: those of each CTA; ``others``: the loops beside the main loop.
    """
    function, recording = model.function, model.recording
    if recording is None or model.paths.rings or roles.has_roles(function, model.loop):
        return None
    launch = recording.launches[-1]
    simulated, recorded = _simulated(model, rounds, others), dict[int, float]()
    waits = {b for loop in function.loops if roles.only_waits(function, loop) for b in loop.blocks}
    for n in range(len(function.blocks)):
        count = recording.count(n)
        if count is not None and n not in waits:
            recorded[n] = count / launch.ctas
    sizes = {n: block.last - block.first for n, block in enumerate(function.blocks)}
    total = sum(count * sizes[n] for n, count in recorded.items())
    lacking = {n: count - simulated[n] for n, count in recorded.items() if count > (1 + _ALIKE) * simulated[n]}
    if model.loop is None:
        lacking |= {n: count - simulated[n] for n, count in recorded.items() if simulated[n] > (1 + _ALIKE) * count}
    parts = []
    for blocks in _chains(model, lacking):
        times = lacking[blocks[0]]
        if abs(times) * sum(sizes[n] for n in blocks) >= _LEAST * total:
            parts.append(_part(model, blocks, times))
    found = sum(times * sizes[n] for n, times in simulated.items())
    found += sum(part.passes * part.model.warps * len(part.model.paths.around) for part in parts)
    return Coverage(total, found, sum(launch.executed.values()) / launch.ctas, parts)


def _simulated(model: KernelModel, rounds: Sequence[int], others: Sequence[Other]) -> dict[int, float]:
    """Return how often the simulated warps of a CTA execute each block."""
    starts = {model.function.instructions[block.first].address: n for n, block in enumerate(model.function.blocks)}
    found = dict[int, float](dict.fromkeys(starts.values(), 0.0))

    def add(model: KernelModel, way: Sequence[Step], times: float) -> None:
        for step in way:
            block = starts.get(model.paths.sources[step.place].address)
            if block is not None:
                found[block] += times

    paths, each = model.paths, predict.simulated_rounds(model, rounds)
    for way in (paths.before, paths.behind):
        add(model, way, model.warps)
    for way in paths.beside:
        add(model, way, 1)
    for count, times in each.items() if paths.around else ():
        for way in paths.rounds(count):
            add(model, way, times * model.warps)
    for other in others:
        add(other.model, other.model.paths.around, other.passes * other.model.warps)
    return found


def _chains(model: KernelModel, lacking: Mapping[int, float]) -> list[list[int]]:
    """Return the blocks that are lacking, those together that follow each other and lack as much."""
    found, left = [], dict(lacking)
    for n in sorted(lacking):
        if n not in left:
            continue
        count, chain = left.pop(n), [n]
        while True:
            after = (s for s in model.function.blocks[chain[-1]].successors if s in left)
            following = next((s for s in after if abs(left[s] - count) <= _ALIKE * abs(count)), None)
            if following is None:
                break
            del left[following]
            chain.append(following)
        found.append(chain)
    return found


def _part(model: KernelModel, blocks: Sequence[int], count: float) -> Other:
    """Return blocks as a part of its own, which ``count`` warps of a CTA execute; below 0: which so many do not."""
    function = model.function
    code = [one for n in blocks for one in function.instructions[function.blocks[n].first : function.blocks[n].last]]
    warps = min(model.warps, max(1, round(abs(count))))
    part = kernel_model.straight(
        model.chip, function, code, warps, model.slots, model.recording, repeats=True, room=model.pipes.room
    )
    return Other(code[0].address, count / warps, part)
