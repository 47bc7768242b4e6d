"""Local memory, where ptxas spills registers: what L1 and L2 no longer hold when a warp loads it again.

A word of all lanes of a warp is a line of 128 bytes. L1 writes it through to L2, which writes it to DRAM when it must
leave. The resident warps of an SM share L1, and those of the chip share L2: each has an equal part of it, from which
the line that was used longest ago leaves first. A line that was loaded for the last time (``LDL.LU``) leaves before
all others.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from pysm120.machine_code import pipes
from pysm120.machine_code.sass import Instruction

LINE_BYTES = 128
_SPILLED = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]$")  # the address of a spilled register
WORD_BYTES = 4
_LAST_USE = ".LU"


class Room(NamedTuple):
    """The lines of L1 and of L2 that a warp has for itself."""

    l1: int
    l2: int


class Moved(NamedTuple):
    """What an access of local memory moves, in lines of its warp.

    ``of_l2``: loaded from L2, because L1 has lost them; ``of_dram``: those of them that L2 has lost too. ``stored``:
    written to L2. ``written``: that L2 writes to DRAM, because they must leave for what the instruction touches.
    """

    of_l2: int = 0
    of_dram: int = 0
    stored: int = 0
    written: int = 0


class _Cache:
    """Lines in the order in which they leave."""

    def __init__(self, room: int) -> None:
        self.room, self.lines = room, OrderedDict[Hashable, bool]()  # whether a line was written

    def touch(self, line: Hashable, *, writes: bool = False, last: bool = False) -> tuple[bool, int]:
        """Touch a line. Return whether it is there, and how many written lines leave for it."""
        there = line in self.lines
        self.lines[line] = writes or self.lines.get(line, False)
        self.lines.move_to_end(line)
        left = 0
        while len(self.lines) > self.room:
            left += self.lines.popitem(last=False)[1]
        if last and line in self.lines:
            self.lines.move_to_end(line, last=False)
        return there, left


def spilled(one: Instruction) -> list[int]:
    """Return the words of the stack that a load or store of spilled registers touches; empty for any other access."""
    place = {"LDL": 1, "STL": 0}.get(one.base)
    found = None if place is None else _SPILLED.match(one.operands[place])
    first = int(found[1] or "0", 16) // WORD_BYTES if found else 0
    return list(range(first, first + pipes.wavefronts(one))) if found else []


def moved(path: Sequence[Instruction], room: Room, lines: Callable[[Instruction], float]) -> dict[int, Moved]:
    """Return what the accesses of local memory on a path move, by index.

    What the path touches first was there before: a round finds what the round before has left.

    Parameters
    ----------
    path : sequence of Instruction
        A path of a warp. If it ends with a branch to its first instruction, it is a round.
    room : Room
        The lines that the warp has for itself.
    lines : callable
        Returns the lines of global memory that an instruction takes from L2.

    """
    if not any(map(spilled, path)):
        return {}
    l1, l2 = _Cache(room.l1), _Cache(room.l2)
    known, others, count = set[int](), 0.0, 0
    found = dict[int, Moved]()
    for _ in range(2 if is_round(path) else 1):
        found = {}
        for i, one in enumerate(path):
            words, left = spilled(one), 0
            if not words:
                others += lines(one)
                for _ in range(int(others) - count):
                    count += 1
                    if one.base != "LDGSTS":  # which goes past L1
                        l1.touch(("global", count))
                    left += l2.touch(("global", count))[1]
                found |= {i: Moved(written=left)} if left else {}
                continue
            loads, last = one.base == "LDL", _LAST_USE in one.opcode
            of_l2 = of_dram = 0
            for word in words:
                there = l1.touch(word, last=last)[0] or word not in known
                if not loads or not there:
                    held, leave = l2.touch(word, writes=not loads, last=last)
                    of_l2, of_dram, left = of_l2 + loads, of_dram + (loads and not held), left + leave
                known.add(word)
            found[i] = Moved(of_l2, of_dram, 0 if loads else len(words), left)
    return found


def is_round(path: Sequence[Instruction]) -> bool:
    """Whether a path leads back to where it begins."""
    return bool(path) and path[-1].is_branch and path[-1].target == path[0].address
