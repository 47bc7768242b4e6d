"""Origins of values: the anchors, in PTX and in its machine code, whose results reach a register that is read."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pysm120.machine_code import anchors, registers, sass
from pysm120.machine_code.reaching import ENTRY, Reaching, Step
from pysm120.machine_code.statements import Operand, Statement, Statements, registers_of

Definition = tuple[int, int]  # the row of an anchor, and which 32 bits of its result
_Read = tuple[int, str]  # a step, and a register that it reads; "" is a constant

_REGISTER_BITS = 32


class Origins(NamedTuple):
    """Where a value may come from: anchors, constants and the like, calls, and what the check cannot follow.

    ``split`` has the rows of those anchors that became several instructions.
    """

    anchors: frozenset[Definition] = frozenset()
    is_constant: bool = False
    is_unknown: bool = False
    is_called: bool = False
    split: frozenset[int] = frozenset()

    def agrees(self, other: "Origins") -> bool:
        """Whether a value with these origins can be one with the other origins."""
        unknown = self.is_unknown or other.is_unknown or other.is_called
        if unknown or self.anchors & other.anchors:
            return True
        if self.anchors and other.anchors:
            return False
        return (self.is_constant and other.is_constant) or not (self.anchors or self.is_constant)


CONSTANT, UNKNOWN, CALLED = Origins(is_constant=True), Origins(is_unknown=True), Origins(is_called=True)


_SELECTS = re.compile(r"U?(F?SEL|I?MNMX|FMNMX|VI\w*MNMX\w*)\b")
_CHOOSES = ("selp", "min", "max", "slct")
_OPAQUE = re.compile(r"(ld|atom|shfl|mma|ldmatrix|movmatrix)\b(?!\.param)")
_LOADS_CONSTANT = re.compile(r"U?LDCU?\b|S2U?R|CS2R")
_LOADS = re.compile(r"LD|ATOM|SHFL|SYNCS|\wMMA\b")


def union(parts: Iterable[Origins]) -> Origins:
    """Return where a value may come from that is one of several."""
    every = list(parts)
    return Origins(
        frozenset().union(*(one.anchors for one in every)),
        any(one.is_constant for one in every),
        any(one.is_unknown for one in every),
        any(one.is_called for one in every),
        frozenset().union(*(one.split for one in every)),
    )


class _Followed:
    """Registers that steps read, followed back to their origins: each one once, however many others lead to it.

    ``into`` returns the origins of what a step wrote to a register, or the registers that it read for that.
    """

    def __init__(self, into: Callable[[int, str], Origins | Sequence[_Read]], of: Reaching) -> None:
        self._into, self._of = into, of
        self._found: dict[_Read, Origins] = {}

    def origins(self, read: _Read) -> Origins:
        """Return the origins of a register that a step reads."""
        if read not in self._found:
            self._follow(read)
        return self._found[read]

    def _before(self, read: _Read) -> tuple[set[Origins], list[_Read]]:
        """Return the origins of a register that its definitions name, and the registers that they read."""
        parts: set[Origins] = set()
        reads: dict[_Read, None] = {}
        for step in self._of.of(*read):
            if step == ENTRY:
                continue
            found = self._into(step, read[1])
            if isinstance(found, Origins):
                parts.add(found)
            else:
                reads.update(dict.fromkeys(found))
        following = [one for one in reads if one[1]]
        if len(following) < len(reads):
            parts.add(CONSTANT)
        return parts, following

    def _follow(self, start: _Read) -> None:
        """Find the origins of a register and of all that lead to it.

        Registers that lead to each other, in a loop, have the same origins: a strongly connected component, found by
        Tarjan's algorithm.
        """
        number: dict[_Read, int] = {}
        low: dict[_Read, int] = {}
        parts: dict[_Read, set[Origins]] = {}
        open_: list[_Read] = []
        work: list[tuple[_Read, Iterator[_Read]]] = []

        def begin(read: _Read) -> None:
            number[read] = low[read] = len(number)
            parts[read], following = self._before(read)
            open_.append(read)
            work.append((read, iter(following)))

        begin(start)
        while work:
            read, rest = work[-1]
            for other in rest:
                if (found := self._found.get(other)) is not None:
                    parts[read].add(found)
                elif other in number:
                    low[read] = min(low[read], number[other])
                else:
                    begin(other)
                    break
            else:
                work.pop()
                if low[read] == number[read]:
                    self._close(open_, read, parts)
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[read])
                    if read in self._found:
                        parts[parent].add(self._found[read])

    def _close(self, open_: list[_Read], root: _Read, parts: dict[_Read, set[Origins]]) -> None:
        """Give the registers of a component their origins."""
        at = open_.index(root) if open_[-1] != root else len(open_) - 1
        members = open_[at:]
        del open_[at:]
        every = set().union(*(parts.pop(one) for one in members))
        self._found.update(dict.fromkeys(members, every.pop() if len(every) == 1 else union(every)))


class Program:
    """The PTX, once the rows of the anchors in the machine code are known."""

    def __init__(self, ptx: str) -> None:
        self.of = Statements(ptx)
        rows = [(row, i) for i, one in enumerate(self.of.statements) for row in range(one.first_row, one.row + 1)]
        count = Counter(row for row, _ in rows)
        self.index = {row: i for row, i in rows if count[row] == 1}
        self.classes = [anchors.class_of(one) for one in self.of.statements]
        self.present: set[int] = set()
        steps = [Step(registers_of(one.results), bool(one.guard)) for one in self.of.statements]
        self.reaching = Reaching(steps, self.of.blocks)
        self._through = [self._follow(one, i) for i, one in enumerate(self.of.statements)]
        self._followed = _Followed(self._into, self.reaching)

    def offsets(self, operand: Operand) -> list[int]:
        """Return for each register of an operand which 32 bits of the operand it begins at."""
        bits, found = 0, []
        for register in operand.registers:
            found.append(bits // _REGISTER_BITS)
            bits += self.of.bits.get(register, _REGISTER_BITS) if register else _REGISTER_BITS
        return found

    def size(self, operand: Operand) -> int:
        """Return the number of 32-bit registers that an operand takes."""
        bits = sum(self.of.bits.get(one, _REGISTER_BITS) if one else _REGISTER_BITS for one in operand.registers)
        return -(-bits // _REGISTER_BITS)

    def _into(self, i: int, register: str) -> Origins | Sequence[_Read]:
        one = self.of.statements[i]
        if self.is_anchor(i):
            result = one.results[0]
            at = [n for n, name in zip(self.offsets(result), result.registers, strict=True) if name == register]
            wide = self.of.bits[register] // _REGISTER_BITS
            return Origins(frozenset((one.row, n + k) for n in at for k in range(max(1, wide))))
        return self._through[i]

    def _follow(self, one: Statement, i: int) -> Origins | Sequence[_Read]:
        """Return what the result of a statement without an instruction of its own comes from."""
        if _OPAQUE.match(one.opcode):
            return UNKNOWN
        read = registers_of(one.sources)
        constant = not read or (one.base in _CHOOSES and any(None in operand.registers for operand in one.sources))
        return [*((i, name) for name in read), *([(i, "")] if constant else [])]

    def is_anchor(self, i: int) -> bool:
        """Whether a statement has an instruction of its own, or should have one."""
        of = self.classes[i]
        row = self.of.statements[i].row
        return row in self.present or (of is not None and of.stays and row in self.index)

    def lost(self, origins: Origins) -> set[Definition]:
        """Return the anchors that should have an instruction and have none."""
        return {one for one in origins.anchors if one[0] not in self.present}

    def certain(self, i: int, register: str | None) -> set[Definition]:
        """Return anchors on whose results a source of a statement depends in any case."""
        found: set[Definition] = set()
        work = [(i, register)] if register else []
        seen = set(work)
        while work:
            at, name = work.pop()
            before = self.reaching.of(at, name)
            if len(before) != 1 or ENTRY in before:
                continue
            n = min(before)
            one = self.of.statements[n]
            if one.guard:
                continue
            if self.is_anchor(n):
                origins = self._into(n, name)
                found |= {min(origins.anchors)} if isinstance(origins, Origins) else set()
            elif self.classes[n] or (one.base == "mov" and not one.results[0].text.startswith("{")):
                rest = [(n, source) for source in registers_of(one.sources) if (n, source) not in seen]
                seen.update(rest)
                work += [] if _OPAQUE.match(one.opcode) else rest
        return found

    def origins(self, i: int, register: str | None) -> Origins:
        """Return where the value of a source of a statement comes from."""
        return CONSTANT if register is None else self._followed.origins((i, register))


class Machine:
    """The machine code, with the statement of each instruction."""

    def __init__(self, function: sass.Function, program: Program) -> None:
        self.instructions = function.instructions
        self.accesses = [registers.access(one) for one in self.instructions]
        self.program = program
        self.anchors: dict[int, int] = {}  # the statement of each instruction that is an anchor
        for i, one in enumerate(self.instructions):
            index = program.index.get(one.line)
            of = program.classes[index] if index is not None else None
            if index is not None and of is not None and of.instruction.match(one.opcode):
                self.anchors[i] = index
        program.present = {program.of.statements[n].row for n in self.anchors.values()}
        called = self._called(function)
        self._calls = {i for i, one in enumerate(self.instructions) if one.base == "CALL"}
        steps = [
            Step(called, may_keep=True) if i in self._calls else Step(use.writes, bool(one.predicate))
            for i, (one, use) in enumerate(zip(self.instructions, self.accesses, strict=True))
        ]
        self.reaching = Reaching(steps, function.blocks)
        self._through = [self._follow(i) for i in range(len(self.instructions))]
        self._followed = _Followed(self._into, self.reaching)

    def _called(self, function: sass.Function) -> tuple[str, ...]:
        """Return the registers that a call may write: those of the code to which only calls lead."""
        from_entry = Reaching([Step(()) for _ in self.instructions], function.blocks)
        apart = (use for i, use in enumerate(self.accesses) if not from_entry.is_reachable(i))
        return tuple({name for use in apart for name in use.writes})

    def _follow(self, i: int) -> Origins | Sequence[_Read]:
        """Return what the result of an instruction that is no anchor comes from."""
        one, use = self.instructions[i], self.accesses[i]
        if i in self._calls:
            return CALLED
        if _LOADS_CONSTANT.match(one.opcode):
            return CONSTANT
        if _LOADS.match(one.opcode):
            return UNKNOWN
        chosen = _SELECTS.match(one.opcode) and any(not slot.registers for slot in use.sources)
        constant = not use.reads or chosen or any("c[" in operand for operand in one.operands)
        return [*((i, name) for name in use.reads), *([(i, "")] if constant else [])]

    def _into(self, i: int, register: str) -> Origins | Sequence[_Read]:
        index = self.anchors.get(i)
        if index is None:
            return self._through[i]
        statement, use = self.program.of.statements[index], self.accesses[i]
        size = self.program.size(statement.results[0]) if statement.results else 0
        is_whole = size == len(use.writes)
        offsets = [use.writes.index(register)] if is_whole else range(size)
        own = frozenset((statement.row, n) for n in offsets)
        return Origins(own, split=frozenset() if is_whole else frozenset((statement.row,)))

    def origins(self, i: int, register: str | None) -> Origins:
        """Return where the value of a source of an instruction comes from."""
        if register is None:
            return CONSTANT
        index = self.anchors.get(i)
        found = self._followed.origins((i, register))
        # A statement of several instructions: what one of them reads from another is no other statement.
        is_own = index is not None and self.program.of.statements[index].row in found.split
        return found._replace(is_unknown=found.is_unknown or is_own)
