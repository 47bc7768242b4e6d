"""The statements of a kernel's PTX: their rows, the registers that they read and write, and their order."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pysm120.machine_code.sass import Block

_NO_RESULT = frozenset((
    "bar", "barrier", "bra", "brx", "cp", "discard", "exit", "fence", "griddepcontrol", "membar", "nanosleep",
    "prefetch", "red", "ret", "setmaxnreg", "st", "stmatrix", "trap",
))  # fmt: skip
_ENDS = ("ret", "exit", "trap")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_DECLARED = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.DOTALL)
_NAMES = re.compile(r"([%$\w]+)(?:<(\d+)>)?")
_LABEL = re.compile(r"([$%\w]+)\s*:(?!:)")
_GUARD = re.compile(r"@(!?[%$\w]+)\s*")
_WORD = re.compile(r"(?<![\w.$%])[%$A-Za-z_][\w$%]*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^#[^\n]*", re.DOTALL | re.MULTILINE)
_OPERAND = re.compile(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+")


class Operand(NamedTuple):
    """An operand: for each of its elements the register, or None for a constant; predicates are left out."""

    text: str
    registers: tuple[str | None, ...]

    @property
    def is_address(self) -> bool:
        """Whether it names memory."""
        return self.text.startswith("[")


class Statement(NamedTuple):
    """A statement; ``row`` is that of its semicolon. ptxas records this row or, rarely, an earlier one of it."""

    first_row: int
    row: int
    guard: str
    opcode: str
    results: tuple[Operand, ...]
    sources: tuple[Operand, ...]
    text: str

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.split(".", 1)[0]


class Statements:
    """The statements of one kernel, and its basic blocks.

    Parameters
    ----------
    ptx : str
        PTX text with one kernel, as the library ships it.

    """

    def __init__(self, ptx: str) -> None:
        self.statements: list[Statement] = []
        self.bits: dict[str, int] = {}  # of each register
        self._registers: list[dict[str, str]] = [{}]  # by scope
        self._labels: list[dict[str, int]] = [{}]
        self._outer = [0]
        self._scopes: list[int] = []  # of each statement
        self._lists: dict[str, list[str]] = {}  # of .branchtargets
        self._read(ptx)
        self.blocks = self._make_blocks()

    def _read(self, ptx: str) -> None:
        text = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), ptx)
        entry = _ENTRY.search(text)
        if entry is None:
            return
        at, row = entry.start(), 1 + text.count("\n", 0, entry.start())
        start = text.index("{", at)
        row, at, scope = row + text.count("\n", at, start), start + 1, 0
        for kind, words, first, last in _pieces(text, at, row):
            if kind == "{":
                self._registers.append({})
                self._labels.append({})
                self._outer.append(scope)
                scope = len(self._outer) - 1
            elif kind == "}":
                if scope == 0:
                    return
                scope = self._outer[scope]
            elif kind == ":":
                self._labels[scope][words] = len(self.statements)
            else:
                self._statement(words, (first, last), scope)

    def _statement(self, text: str, rows: tuple[int, int], scope: int) -> None:
        if declared := _DECLARED.match(text):
            for name, count in _NAMES.findall(declared[2]):
                for one in [f"{name}{i}" for i in range(int(count))] if count else [name]:
                    unique = "" if declared[1] == "pred" else f"{one}@{scope}"
                    self._registers[scope][one] = unique
                    if unique:
                        self.bits[unique] = int(re.sub(r"\D", "", declared[1]))
            return
        if text.startswith(".branchtargets"):
            name = next(label for label, n in reversed(self._labels[scope].items()) if n == len(self.statements))
            self._lists[name] = [word.strip() for word in text.split(None, 1)[1].split(",")]
            return
        if text.startswith("."):
            return
        guard = _GUARD.match(text)
        rest = text[guard.end() :] if guard else text
        opcode, _, operands = rest.partition(" ")
        parts = [self._operand(part.strip(), scope) for part in _OPERAND.findall(operands) if part.strip()]
        base = opcode.split(".", 1)[0]
        count = 0 if base in _NO_RESULT or not parts or parts[0].is_address else 1
        results, sources = tuple(parts[:count]), tuple(parts[count:])
        self.statements.append(Statement(*rows, guard[1] if guard else "", opcode, results, sources, text))
        self._scopes.append(scope)

    def _operand(self, text: str, scope: int) -> Operand:
        elements = text.strip("{}").split(",") if text.startswith("{") else [text]
        found: list[str | None] = []
        for element in elements:
            names = [self._find(word, scope) for word in _WORD.findall(element)]
            known = [name for name in names if name is not None]
            if known == [""]:
                continue
            found += [name for name in known if name] or [None]
        return Operand(text, tuple(found))

    def _find(self, name: str, scope: int) -> str | None:
        """Return the unique name of a register, "" for a predicate, None for a word that is no register."""
        while name not in self._registers[scope]:
            if scope == 0:
                return None
            scope = self._outer[scope]
        return self._registers[scope][name]

    def _target(self, name: str, scope: int) -> int:
        while scope and name not in self._labels[scope]:
            scope = self._outer[scope]
        return self._labels[scope][name]

    def _make_blocks(self) -> list[Block]:
        count = len(self.statements)
        jumps: dict[int, list[int]] = {}
        for i, one in enumerate(self.statements):
            if one.base == "bra":
                jumps[i] = [self._target(one.sources[0].text, self._scopes[i])]
            elif one.base == "brx":
                jumps[i] = [self._target(name, self._scopes[i]) for name in self._lists[one.sources[1].text]]
            elif one.base in _ENDS:
                jumps[i] = []
        starts = {0, *(i + 1 for i in jumps), *(i for after in jumps.values() for i in after)}
        order = sorted(i for i in starts if i < count)
        number = {first: n for n, first in enumerate(order)}
        blocks = []
        for n, first in enumerate(order):
            last = order[n + 1] if n + 1 < len(order) else count
            after = [number[i] for i in jumps.get(last - 1, ()) if i < count]
            if (last - 1 not in jumps or self.statements[last - 1].guard) and last < count:
                after.append(number[last])
            blocks.append(Block(first, last, tuple(dict.fromkeys(after))))
        return blocks


def _pieces(text: str, at: int, row: int) -> Iterator[tuple[str, str, int, int]]:
    """Yield braces of scopes, labels, and statements, each with its first and its last row, from an offset on."""
    while at < len(text):
        start = at
        while at < len(text) and text[at].isspace():
            at += 1
        row += text.count("\n", start, at)
        if at == len(text):
            return
        if text[at] in "{}":
            yield text[at], "", row, row
            at += 1
        elif label := _LABEL.match(text, at):
            yield ":", label[1], row, row
            at = label.end()
        else:
            end = text.index(";", at)
            last = row + text.count("\n", at, end)
            yield ";", " ".join(text[at:end].split()), row, last
            row = last
            at = end + 1


def registers_of(operands: Sequence[Operand]) -> tuple[str, ...]:
    """Return the registers of operands."""
    return tuple(register for operand in operands for register in operand.registers if register is not None)
