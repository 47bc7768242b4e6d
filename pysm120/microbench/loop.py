"""The loop between two reads of the clock."""

import collections
import dataclasses
import re
from collections.abc import Iterable
from functools import cached_property

from pysm120.machine_code.sass import Function, Instruction

_CLOCK = re.compile(r"\bSR_CLOCKLO\b")
_NEVER = ("!PT", "!UPT")
_WAITS = re.compile(r"SYNCS\.PHASECHK|USETMAXREG\.TRY_ALLOC")


@dataclasses.dataclass(frozen=True)
class Loop:
    """The instructions of a timed loop."""

    instructions: tuple[Instruction, ...]

    @property
    def opcodes(self) -> collections.Counter[str]:
        """The count of each opcode, without instructions that never execute, such as `@!PT LDS` before LDGSTS."""
        return collections.Counter(i.opcode for i in self.instructions if i.predicate not in _NEVER)

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """Addresses that a branch within the loop skips or repeats."""
        spans = []
        for one in self.instructions[:-1]:
            if one.is_branch and one.target is not None:
                is_forward = one.target > one.address
                spans.append((one.address + 1, one.target) if is_forward else (one.target, one.address + 1))
        return spans

    def repeated(self, patterns: Iterable[str]) -> Instruction | None:
        """Return the first of the opcodes that is in an inner loop and must not be.

        It may be there if it is a wait, or if ptxas made the loop to handle lanes with different operands in turn.
        """
        for branch in self.instructions[:-1]:
            if (
                not branch.is_branch
                or branch.target is None
                or branch.target > branch.address
                or ".ANY" in branch.opcode
            ):
                continue
            for one in self.instructions:
                is_asked_for = any(re.fullmatch(pattern, one.opcode) for pattern in patterns)
                if branch.target <= one.address < branch.address and is_asked_for and not _WAITS.match(one.opcode):
                    return one
        return None

    def conditional(self, patterns: Iterable[str]) -> Instruction | None:
        """Return the first of the opcodes that a trip may skip or repeat."""
        for one in self.instructions:
            if one.predicate in _NEVER or not any(re.fullmatch(pattern, one.opcode) for pattern in patterns):
                continue
            if one.predicate or any(first <= one.address < last for first, last in self._spans):
                return one
        return None


class NoLoopError(Exception):
    """One sentence that says what is wrong between the two reads of the clock."""


def timed_loop(function: Function) -> Loop:
    """Find the loop between the first and the last read of the clock.

    It lies between the target of the outermost backward branch and the branch.
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
