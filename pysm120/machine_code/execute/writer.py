"""The PTX statements of one machine instruction after the other: guards, temporary registers, and the error."""

from collections import Counter

from pysm120.machine_code.execute.layout import Layout
from pysm120.machine_code.sass import Instruction
from pysm120.runtime.errors import UnsupportedError

_TYPES = {"t": "b32", "d": "b64", "h": "b16", "c": "b8", "q": "pred", "o": "b128"}


class UnknownInstructionError(UnsupportedError):
    """An opcode, a modifier or an operand whose meaning is not known."""


class Writer:
    """Collects statements.

    Temporary registers live within one machine instruction. Registers, uniform registers and predicates of the machine
    have the names that nvdisasm prints. A uniform register has a copy in each lane: instructions that write it give
    all active lanes the same value.
    """

    def __init__(self, entry: str, layout: Layout) -> None:
        self.entry, self.layout = entry, layout
        self.lines: list[str] = []
        self.one = Instruction(0, "", "NOP", (), 0)
        self.guard = ""
        self._used: Counter[str] = Counter()
        self._most: Counter[str] = Counter()

    def begin(self, one: Instruction, row: int) -> None:
        """Begin an instruction; faults on the virtual device name its row in ENTRY.sass."""
        self.one = one
        self.guard = f"@{one.predicate} " if one.predicate else ""
        self._used.clear()
        self.lines.append(f'#line {row} "{self.entry}.sass"')

    def unknown(self, what: str) -> UnknownInstructionError:
        """Return the error that names the instruction and its address."""
        return UnknownInstructionError(f"{self.entry}, address {self.one.address:#x}, {self.one}: {what}")

    def emit(self, *statements: str) -> None:
        """Append statements with the guard of the instruction."""
        self.lines += [f"{self.guard}{statement};" for statement in statements]

    def always(self, *statements: str) -> None:
        """Append statements without the guard."""
        self.lines += [f"{statement};" for statement in statements]

    def _fresh(self, kind: str) -> str:
        n = self._used[kind]
        self._used[kind] = n + 1
        self._most[kind] = max(self._most[kind], n + 1)
        return f"{kind}_{n}"

    def temporary(self) -> str:
        """Return a register of 32 bits."""
        return self._fresh("t")

    def wide(self) -> str:
        """Return a register of 64 bits."""
        return self._fresh("d")

    def half(self) -> str:
        """Return a register of 16 bits."""
        return self._fresh("h")

    def byte(self) -> str:
        """Return a register of 8 bits."""
        return self._fresh("c")

    def flag(self) -> str:
        """Return a predicate."""
        return self._fresh("q")

    def active(self) -> str:
        """Return a register with the mask of the active lanes, whether the guard holds in them or not."""
        mask = self.temporary()
        self.always(f"activemask.b32 {mask}")
        return mask

    def executing(self) -> str:
        """Return a register with the mask of the active lanes in which the guard holds."""
        mask = self.active()
        if not self.guard:
            return mask
        chosen = self.temporary()
        self.always(f"vote.sync.ballot.b32 {chosen}, {self.one.predicate}, {mask}")
        return chosen

    def declarations(self) -> list[str]:
        """Return the declarations of the temporary registers."""
        return [f".reg .{_TYPES[kind]} {kind}_<{count}>;" for kind, count in sorted(self._most.items())]
