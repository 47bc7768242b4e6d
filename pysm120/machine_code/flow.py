"""Compare the data flow of machine code with that of its PTX: finds instructions that read wrong registers.

Anchors are the statements of PTX that become one machine instruction each: loads and stores, conversions, exponentials,
matrix products, shuffles, and arithmetic of f32. Each source of an anchor has origins: the anchors whose results reach
it, directly or through other statements. The origins in the PTX and in the machine code must agree. Line information
says which instruction belongs to which statement.

In doubt the comparison finds nothing. It does not follow values through predicates, memory and calls, and a path counts
as taken if a branch leads to it. It does not compare constants, parts of registers (``R5.H1_H1``) or signs (``-R5``).
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from pysm120.machine_code import sass
from pysm120.machine_code.origins import Machine, Origins, Program, union
from pysm120.machine_code.registers import Access
from pysm120.machine_code.statements import Statement

_Choice = Sequence[Sequence[str | None]]  # for each source of the statement the registers of the instruction


class Finding(NamedTuple):
    """A source of an anchor whose machine instruction reads other values than its statement.

    ``wanted`` has the rows of the anchors whose results the statement reads, ``found`` those that the instruction does.
    """

    row: int
    statement: str
    operand: str
    instruction: str
    wanted: tuple[int, ...]
    found: tuple[int, ...]

    def __str__(self) -> str:
        rows = [", ".join(map(str, one)) or "none" for one in (self.wanted, self.found)]
        return (
            f"row {self.row}: {self.statement}: {self.operand} comes from the statements of rows {rows[0]}, "
            f"but from rows {rows[1]} in {self.instruction}"
        )


class Comparison:
    """The data flow of a kernel's machine code and of its PTX.

    Parameters
    ----------
    function : Function
        The machine code, with the rows of the PTX as its lines.
    ptx : str
        The PTX.

    """

    def __init__(self, function: sass.Function, ptx: str) -> None:
        self._program = Program(ptx)
        self._machine = Machine(function, self._program)

    @property
    def anchors(self) -> list[int]:
        """The indices of the instructions that are checked."""
        return [i for i in self._machine.anchors if self._machine.reaching.is_reachable(i)]

    @cached_property
    def findings(self) -> list[Finding]:
        """Sources that read other values than their statements say."""
        return [finding for i in self.anchors for finding in self.check(i)]

    def check(self, i: int) -> Iterator[Finding]:
        """Yield the findings of an instruction."""
        index = self._machine.anchors[i]
        statement, of = self._program.of.statements[index], self._program.classes[index]
        use = self._machine.accesses[i]
        if of is None or of.parts.match(self._machine.instructions[i].opcode):
            return
        for names, choices in _pairs(of.layout, statement, use, self._program):
            wanted = [self._program.origins(index, name) for name in names]
            certain = [
                self._program.certain(index, name) | self._program.lost(one)
                for name, one in zip(names, wanted, strict=True)
            ]
            fits = [
                [
                    one.agrees(origins) and (origins.is_unknown or least <= origins.anchors)
                    for one, least, origins in zip(wanted, certain, self._origins(i, choice), strict=True)
                ]
                for choice in choices
            ]
            if not any(all(row) for row in fits):
                n = next((n for n in range(len(names)) if not any(row[n] for row in fits)), 0)
                found = union(origins for choice in choices for origins in self._origins(i, choice)[n : n + 1])
                yield Finding(
                    statement.row,
                    statement.text,
                    (names[n] or "a constant").split("@")[0],
                    str(self._machine.instructions[i]),
                    tuple(sorted({row for row, _ in wanted[n].anchors | certain[n]})),
                    tuple(sorted({row for row, _ in found.anchors})),
                )

    def origins(self, i: int, register: str) -> Origins:
        """Return where the value of a register, "R5", comes from that an instruction reads or could read."""
        return self._machine.origins(i, register)

    def _origins(self, i: int, choice: _Choice) -> list[Origins]:
        return [union(self._machine.origins(i, name) for name in names) for names in choice]


def _pairs(
    layout: str, statement: Statement, use: Access, program: Program
) -> Iterator[tuple[Sequence[str | None], Sequence[_Choice]]]:
    """Yield sources of a statement, and the choices of registers of the instruction of which one must agree."""
    # A vector of constants selects scales of a matrix product: it is no register of the instruction.
    data = [one for one in statement.sources if not one.is_address and (any(one.registers) or one.text[0] != "{")]
    slots = [slot.registers for slot in use.sources if not slot.is_address]
    address = [name for operand in statement.sources if operand.is_address for name in operand.registers if name]
    places = [name for slot in use.sources if slot.is_address for name in slot.registers]
    at: Sequence[str | None] = places or [None]
    yield from (([name], [[at]]) for name in address)
    if layout == "swapped" and len(data) == len(slots) and all(len(slot) <= 1 for slot in slots):
        first, second, *others = [slot or (None,) for slot in slots]
        yield [name for operand in data[:2] for name in operand.registers], [[first, second], [second, first]]
        data, slots, layout = data[2:], [tuple(filter(None, other)) for other in others], "ordered"
    if layout == "first":
        data, slots = data[:1], slots[:1]
    if layout in {"ordered", "first"}:
        for operand, held in zip(data, slots, strict=False):
            size = program.size(operand)
            for offset, name in zip(program.offsets(operand), operand.registers, strict=True):
                same = held[offset : offset + 1] if len(held) == size else held
                yield [name], [[[one]] for one in same or (None,)]
    else:
        flat = [name for slot in slots for name in slot or (None,)]
        yield from (([name], [[[one]] for one in flat or (None,)]) for operand in data for name in operand.registers)
