"""Reaching definitions: which steps of a program may have written a register that a step reads."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pysm120.machine_code.sass import Block

ENTRY = -1  # the "step" that wrote what the program finds at its begin


class Step(NamedTuple):
    """What a step does to registers: the ones it writes, and whether it may leave them as they were."""

    writes: tuple[str, ...]
    may_keep: bool = False


class Reaching:
    """The definitions that reach each step.

    Parameters
    ----------
    steps : sequence of Step
        The program in the order of its text.
    blocks : sequence of Block
        Its basic blocks; the first one is the entry.

    """

    def __init__(self, steps: Sequence[Step], blocks: Sequence[Block]) -> None:
        self._steps = steps
        self._blocks = blocks
        self._block_of = [n for n, block in enumerate(blocks) for _ in range(block.first, block.last)]
        self._written: list[dict[str, list[int]]] = []
        for block in blocks:
            written: dict[str, list[int]] = defaultdict(list)
            for i in range(block.first, block.last):
                for register in steps[i].writes:
                    written[register].append(i)
            self._written.append(dict(written))
        self._before: list[list[int]] = [[] for _ in blocks]
        for n in self._reachable():
            for after in blocks[n].successors:
                self._before[after].append(n)
        self._entering: dict[tuple[int, str], frozenset[int]] = {}

    def _reachable(self) -> set[int]:
        seen, work = {0}, [0]
        while work:
            for after in self._blocks[work.pop()].successors:
                if after not in seen:
                    seen.add(after)
                    work.append(after)
        return seen

    def is_reachable(self, step: int) -> bool:
        """Whether some path leads from the entry to a step."""
        n = self._block_of[step]
        return n == 0 or bool(self._before[n])

    def of(self, step: int, register: str) -> frozenset[int]:
        """Return the steps that may have written a register that a step reads; ENTRY if none may have."""
        n = self._block_of[step]
        found, killed = self._last(n, register, step)
        return frozenset(found) if killed else frozenset(found) | self._at_begin(n, register)

    def _last(self, n: int, register: str, end: int) -> tuple[list[int], bool]:
        """Return the definitions in a block that reach one of its steps, and whether they hide all earlier ones."""
        found = []
        for i in reversed(self._written[n].get(register, ())):
            if i < end:
                found.append(i)
                if not self._steps[i].may_keep:
                    return found, True
        return found, False

    def _at_begin(self, n: int, register: str) -> frozenset[int]:
        """Return the definitions that reach the begin of a block."""
        known = self._entering.get((n, register))
        if known is not None:
            return known
        found, seen, work = set(), {n}, [n]
        while work:
            at = work.pop()
            if at == 0:
                found.add(ENTRY)
            for before in self._before[at]:
                if register in self._written[before]:
                    last, killed = self._last(before, register, self._blocks[before].last)
                    found.update(last)
                    if killed:
                        continue
                if before not in seen:
                    seen.add(before)
                    if (reaching := self._entering.get((before, register))) is not None:
                        found.update(reaching)
                    else:
                        work.append(before)
        self._entering[n, register] = frozenset(found)
        return self._entering[n, register]
