"""The loop between two reads of the clock."""

import collections
import dataclasses
import re

from pysm120.sass import Function, Instruction

_CLOCK = re.compile(r"\bSR_CLOCKLO\b")


@dataclasses.dataclass(frozen=True)
class Loop:
    """What a timed loop holds."""

    instructions: tuple[Instruction, ...]

    @property
    def opcodes(self) -> collections.Counter[str]:
        """How often each opcode stands in it."""
        return collections.Counter(i.opcode for i in self.instructions)


class NoLoopError(Exception):
    """One sentence that says what is wrong between the two reads of the clock."""


def timed_loop(function: Function) -> Loop:
    """Find the loop between the first and the last read of the clock.

    It is what lies between the target of the outermost backward branch and the branch.
    """
    code = function.instructions
    reads = [i.address for i in code if any(map(_CLOCK.search, i.operands))]
    if len(reads) < 2:  # noqa: PLR2004 - one at each end
        raise NoLoopError(f"the clock is read {len(reads)} times, not at both ends")
    start, end = reads[0], reads[-1]
    backward = [
        (i.target, i.address)
        for i in code
        if i.is_branch and i.target is not None and start < i.target <= i.address < end
    ]
    if not backward:
        raise NoLoopError("no loop is left between the two reads of the clock")
    first, last = max(backward, key=lambda span: span[1] - span[0])
    outside = [span for span in backward if span[0] < first or span[1] > last]
    if outside:
        raise NoLoopError(f"there are {len(outside) + 1} loops between the two reads of the clock, not one")
    return Loop(tuple(i for i in code if first <= i.address <= last))
