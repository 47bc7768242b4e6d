"""Machine code as nvdisasm writes it: functions, instructions, and the loop between two reads of the clock."""

import collections
import dataclasses
import re

_FUNCTION = re.compile(r"^\.text\.(\w+):")
_LABEL = re.compile(r"^(\.\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_TARGET = re.compile(r"`\((\.\w+)\)")
_CLOCK = re.compile(r"\bSR_CLOCKLO\b")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction: its address, predicate, opcode with modifiers, and operands."""

    address: int
    predicate: str
    opcode: str
    operands: str

    @property
    def is_branch(self) -> bool:
        """Whether it may go elsewhere inside the function."""
        return self.opcode.split(".")[0] in {"BRA", "BRX", "JMP", "JMX", "BRXU"}


@dataclasses.dataclass
class Function:
    """The code of an entry."""

    name: str
    instructions: list[Instruction]
    labels: dict[str, int]

    def target(self, branch: Instruction) -> int | None:
        """Return the address that a branch goes to; None where it is not a label."""
        found = _TARGET.search(branch.operands)
        return self.labels.get(found[1]) if found else None


def parse(listing: str) -> dict[str, Function]:
    """Read a listing of ``nvdisasm -c``."""
    functions: dict[str, Function] = {}
    function: Function | None = None
    waiting: list[str] = []
    for line in listing.splitlines():
        if line.lstrip().startswith(".section"):
            function = None
            continue
        if found := _FUNCTION.match(line):
            function = functions.setdefault(found[1], Function(found[1], [], {}))
            continue
        if function is None:
            continue
        if found := _LABEL.match(line):
            waiting.append(found[1])
        elif found := _INSTRUCTION.match(line):
            address = int(found[1], 16)
            function.labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            function.instructions.append(_instruction(address, found[2]))
    return functions


def _instruction(address: int, text: str) -> Instruction:
    predicate = ""
    if text.startswith("@"):
        predicate, _, text = text.partition(" ")
    opcode, _, operands = text.strip().partition(" ")
    return Instruction(address, predicate, opcode, operands.strip())


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
    reads = [i.address for i in code if _CLOCK.search(i.operands)]
    if len(reads) < 2:  # noqa: PLR2004 - one at each end
        raise NoLoopError(f"the clock is read {len(reads)} times, not at both ends")
    start, end = reads[0], reads[-1]
    backward = []
    for i in code:
        target = function.target(i) if i.is_branch else None
        if target is not None and start < target <= i.address < end:
            backward.append((target, i.address))
    if not backward:
        raise NoLoopError("no loop is left between the two reads of the clock")
    first, last = max(backward, key=lambda span: span[1] - span[0])
    outside = [span for span in backward if span[0] < first or span[1] > last]
    if outside:
        raise NoLoopError(f"there are {len(outside) + 1} loops between the two reads of the clock, not one")
    return Loop(tuple(i for i in code if first <= i.address <= last))
