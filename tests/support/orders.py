"""Which orders of modifiers ptxas takes: a recorded table, and the orders that it is about.

    python tests/support/orders.py

writes tests/data/orders.txt, in some ten minutes. It needs ptxas 13.0, and build/ for the statements of three kernels.
A row of the table has a statement (opcode, operands, declarations before and in its function) and a hexadecimal
number. Bit k of it, the lowest being bit 0, is set if ptxas takes order k of the opcode's modifiers.
"""

import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

import statements  # noqa: E402
from statements import Statement  # noqa: E402

TABLE = ROOT / "tests" / "data" / "orders.txt"
HEAD = "# Orders of modifiers that ptxas 13.0 takes: tests/support/orders.py writes and explains this file.\n"
KERNELS = ("attention_mxfp8_192x64_d128", "quantize_mxfp8_bf16_d", "attention_backward_mxfp8_64x128_d128")
# forms.ptx: what neither nvcc writes nor the kernels use; orders.ptx: more forms of barriers, copies, conversions.
SOURCES = [
    *(ROOT / "tests" / "vm" / name for name in ("forms.ptx", "orders.ptx")),
    *sorted((ROOT / "tests" / "corpus").glob("*.ptx")),
]
BATCH = 2000


class Row(NamedTuple):
    """A statement, and which of ``orders(statement.opcode)`` ptxas takes."""

    statement: Statement
    taken: list[bool]


def orders(opcode: str) -> list[str]:
    """Return the orders of an opcode's modifiers, itself included, sorted: all, or of more than four words the moves of
    one, the exchanges of two, the rotations and the reversal."""
    name, *words = opcode.split(".")
    places = range(len(words))
    found = {tuple(words)}
    if len(words) <= 4:
        found |= set(itertools.permutations(words))
    else:
        for k, j in itertools.product(places, repeat=2):
            moved = [*words[:k], *words[k + 1 :]]
            found.add((*moved[:j], words[k], *moved[j:]))
            swapped = [*words]
            swapped[k], swapped[j] = swapped[j], swapped[k]
            found.add(tuple(swapped))
        found |= {(*words[k:], *words[:k]) for k in places} | {tuple(words[::-1])}
    return [".".join((name, *order)) for order in sorted(found)]


def read() -> Iterator[Row]:
    """Yield the rows of the table."""
    for line in TABLE.read_text().splitlines()[1:]:
        *parts, bits = line.split("\t")
        statement = Statement(*parts)
        yield Row(statement, [int(bits, 16) >> k & 1 == 1 for k in range(len(orders(statement.opcode)))])


def judge(rows: list[tuple[Statement, str]], folder: Path) -> list[bool]:
    """Ask ptxas which statements it takes under these opcodes."""
    import ptxas

    taken: list[bool] = []
    for k in range(0, len(rows), BATCH):
        functions = [s.function(j, opcode) for j, (s, opcode) in enumerate(rows[k : k + BATCH])]
        taken += [not reason for reason in ptxas.reasons(functions, folder)]
    return taken


def record() -> None:
    kernels = [ROOT / "build" / "kernels" / f"{name}.sm_120f.ptx" for name in KERNELS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = sorted(statements.distinct([*SOURCES, *kernels]))
        good = judge([(s, s.opcode) for s in found], folder)
        known = [s for s, taken in zip(found, good, strict=True) if taken and len(orders(s.opcode)) > 1]
        answers = iter(judge([(s, order) for s in known for order in orders(s.opcode)], folder))
    lines = []
    for s in known:
        bits = sum(next(answers) << k for k in range(len(orders(s.opcode))))
        lines.append("\t".join((*s, f"{bits:x}")) + "\n")
    TABLE.write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    record()
