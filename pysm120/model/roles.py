"""Which warps of a CTA execute the main loop, and how often they execute the loops beside it.

Both are recorded, stated, or assumed by these rules:

- a kernel that moves registers between warps (setmaxnreg) has one producer warp group, of four warps;
- CTAs of more than four warps, and not of a multiple of four, have producer warps;
- a loop with copies or barriers that excludes the main loop belongs to other warps: to four in a CTA of at least eight,
  else to one;
- any other loop that excludes the main loop is for other arguments: it counts as not executed;
- loops beside the main loop are executed as often as the path passes them: once, or not at all.
"""

import dataclasses
from collections.abc import Mapping

from pysm120.machine_code import pipes
from pysm120.machine_code.sass import Function, Instruction, Loop
from pysm120.model import kernel_model
from pysm120.model.kernel_model import KernelModel
from pysm120.model.paths import compute_warps, rounds_of
from pysm120.model.recorded import Launch, Recording

_GROUP = 4  # warps of a warp group
_WAIT_LENGTH = 16  # most instructions of a loop that only waits
_LEAST = 0.02  # passes of a loop that are simulated
_ALIKE = 0.02  # by how much the rounds of a loop in rounds of the loop around it may differ from an integer
_ROUNDS = 2  # of a loop around the main loop, whose rounds are simulated whole
_LENGTH = 6000  # most instructions of such a round


def warps_by_rules(function: Function, threads: int) -> tuple[int, str]:
    """Return the warps that execute the main loop, and what was assumed: "" if all do."""
    total = -(-threads // 32)
    by_threads = compute_warps(threads)
    if any(one.base == "USETMAXREG" for one in function.instructions) and total > _GROUP:
        count = total - _GROUP
    elif by_threads != total:
        count = by_threads
    elif total > 1 and has_roles(function, function.main_loop() if function.loops else None):
        count = total - _GROUP if total >= 2 * _GROUP else total - 1
    else:
        return total, ""
    return count, f"{count} of the {total} warps of a CTA are assumed to execute the main loop: state --warps N"


def has_roles(function: Function, main: Loop | None) -> bool:
    """Whether a kernel has loops for other warps than those of the main loop."""
    return main is not None and any(_is_role(function, main, loop) for loop in function.loops)


def _is_role(function: Function, main: Loop, other: Loop) -> bool:
    """Whether a loop is for other warps than the main loop: it excludes the main loop, and hands data over."""
    if _in_turn(function, main, other) or only_waits(function, other):
        return False
    code = list(function.of_loop(other))
    return any(one.is_copy or one.base in {"LDGSTS", "SYNCS", "BAR"} for one in code)


def _in_turn(function: Function, main: Loop, other: Loop) -> bool:
    """Whether one warp can execute both loops."""
    return other.header in _reached(function, main.header) or main.header in _reached(function, other.header)


def _reached(function: Function, block: int) -> set[int]:
    """Return the blocks that a warp can reach from a block."""
    found, work = set[int](), [block]
    while work:
        b = work.pop()
        if b not in found:
            found.add(b)
            work += function.blocks[b].successors
    return found


def hottest(function: Function, launch: Launch) -> Loop | None:
    """Return the loop in which most products were executed, or without any, most instructions.

    Return None if there is no loop, or if it is known that no warp executed one.
    """
    seen = Recording(function, [launch], 1, Loop(0, ()))

    def weight(loop: Loop) -> tuple[float, float]:
        own = list(function.own_of_loop(loop))
        count = seen.executed(loop) or 0.0
        return count * sum(one.is_tensor for one in own), count * len(own)

    ran = [loop for loop in function.loops if seen.executed(loop) != 0]
    return max(ran, key=weight, default=None)


def recording(function: Function, launch: Launch, threads: int) -> Recording:
    """Return the recording of a kernel in a file: its main loop, and the warps that execute it, are those that did."""
    total, main = -(-threads // 32), hottest(function, launch)
    if main is None:
        return Recording(function, [launch], total, Loop(0, ()))
    main, repeats = around(function, launch, main)
    found = _of_warps(function, launch, total, main, threads)
    found.repeats = repeats
    return found


def around(function: Function, launch: Launch, main: Loop) -> tuple[Loop, dict[int, int]]:
    """Return the loop around the main loop, and the rounds of the loops inside it in each of its rounds, by header.

    The warps of an SM overlap what is inside with what is around it, so a round is simulated whole if it is not long.
    Return the main loop and nothing if there is no loop around it, or rounds differ.
    """
    larger = [loop for loop in function.loops if set(loop.blocks) > set(main.blocks)]
    if not larger:
        return main, {}
    outer = min(larger, key=lambda loop: len(loop.blocks))
    inner = [loop for loop in function.loops if set(loop.blocks) < set(outer.blocks)]
    seen = Recording(function, [launch], 1, main)
    rounds, entered = seen.executed(outer), seen.entered(outer)
    nested = any(set(one.blocks) < set(other.blocks) for one in inner for other in inner)
    if nested or not rounds or not entered or rounds < _ROUNDS * entered:
        return main, {}
    repeats, length = {}, sum(1 for _ in function.own_of_loop(outer))
    for loop in inner:
        passes = (seen.executed(loop) or 0.0) / rounds
        count = round(passes)
        if count and abs(passes - count) <= _ALIKE * count:
            repeats[loop.header] = count
            length += count * sum(1 for _ in function.of_loop(loop))
    known = main.header in repeats and length <= _LENGTH
    return (outer, repeats) if known else (main, {})


def _of_warps(function: Function, launch: Launch, total: int, main: Loop, threads: int) -> Recording:
    """Return the recording of a main loop and of the warps that execute it, of the ``total`` warps of a CTA."""
    outermost = _outermost(function, main)
    entered = Recording(function, [launch], 1, main).entered(outermost)
    if not entered:
        return Recording(function, [launch], warps_by_rules(function, threads)[0], main)
    warps = min(total, max(1, round(entered)))
    if warps < total and any(_meets_all(one) for one in function.of_loop(outermost)):
        return _of_some(function, launch, total, main, entered / total)
    found = Recording(function, [launch], warps, main)
    found.beside = 0 if has_roles(function, main) else total - warps
    return found


def _meets_all(one: Instruction) -> bool:
    """Whether an instruction is a barrier for all warps of a CTA."""
    return one.base == "BAR" and ".SYNC" in one.opcode and len(one.operands) == 1


def _of_some(function: Function, launch: Launch, warps: int, main: Loop, share: float) -> Recording:
    """Return the recording of the CTAs that execute the main loop, a share of all: all warps of each meet in it."""
    ctas = max(1, round(share * launch.ctas))
    share = ctas / launch.ctas
    copied = None if launch.copied is None else launch.copied / share
    found = Recording(function, [launch._replace(ctas=ctas, copied=copied)], warps, main)
    found.share = share
    return found


def _outermost(function: Function, loop: Loop) -> Loop:
    """Return the largest loop around a loop, or the loop itself."""
    return max(
        (other for other in function.loops if set(other.blocks) >= set(loop.blocks)), key=lambda x: len(x.blocks)
    )


def only_waits(function: Function, loop: Loop) -> bool:
    """Whether a loop waits for an mbarrier or another lane, or does nothing that takes long."""
    code = list(function.of_loop(loop))
    if len(code) > _WAIT_LENGTH:
        return False
    if any(one.opcode == "BRA.U.ANY" for one in code):  # once for each value that the lanes have, which is one
        return True
    kinds = {pipes.class_of(one.opcode) for one in code}
    return "try_wait" in kinds or kinds <= {"alu", "branch", "uniform", "to_uniform", "vote", "move", "constant"}


@dataclasses.dataclass(frozen=True)
class Other:
    """A loop beside the main loop, around it or inside it.

    Attributes
    ----------
    address : int
        Of its first instruction.
    passes : float
        Rounds that the paths of the kernel's model lack; below 0 if they have too many.
    model : KernelModel
        One round of it, without the loops inside it.

    """

    address: int
    passes: float
    model: KernelModel


def others(model: KernelModel, main: Loop, rounds: float, stated: Mapping[int, float]) -> tuple[list[Other], list[int]]:
    """Return the loops beside the main loop, and the addresses of those whose rounds nobody knows.

    Parameters
    ----------
    model : KernelModel
        The kernel.
    main : Loop
        Its main loop.
    rounds : float
        Rounds of the main loop in a CTA.
    stated : mapping from int to float
        Rounds of a loop for a warp of a CTA, by the address of the loop.

    """
    function, recording = model.function, model.recording
    paths = model.paths
    once = {paths.sources[step.place].address for step in (*paths.before, *paths.behind)}
    around = {paths.sources[step.place].address for step in paths.around}
    found, unknown = [], []
    for loop in function.loops:
        address = function.instructions[function.blocks[loop.header].first].address
        if loop == main or (address not in stated and only_waits(function, loop)):
            continue
        if address not in stated and _is_role(function, main, loop):
            continue
        inside, outside = set(loop.blocks) < set(main.blocks), set(loop.blocks) > set(main.blocks)
        times = recording.repeats.get(loop.header, 1) if recording else 1
        base = (times * rounds if address in around else 0.0) if inside else 1.0 if outside or address in once else 0.0
        warps, total = model.warps, stated.get(address)
        executed = recording.executed(loop) if recording else None
        if total is None and recording and executed is not None:
            if not inside and not outside and (entered := recording.entered(_outermost(function, loop))):
                warps = min(warps, max(1, round(entered)))
            total = executed / warps
        if total is None:
            unknown.append(address)
        elif abs(total - base) > _LEAST:
            path = _round_of(model, loop)
            part = kernel_model.straight(
                model.chip, function, path, warps, model.slots, recording, repeats=True, room=model.pipes.room
            )
            found.append(Other(address, total - base, part))
    return found, unknown


def _round_of(model: KernelModel, loop: Loop) -> list[Instruction]:
    """Return what a round of a loop executes outside the loops inside it."""
    function, recording = model.function, model.recording
    own = {one.address for one in function.own_of_loop(loop)}
    of_loop = Recording(function, recording.launches, recording.warps, loop) if recording else None
    ways = rounds_of(function, loop, of_loop, kernel_model.TYPICAL)
    return [one for one in kernel_model.most_frequent(ways) if one.address in own]
