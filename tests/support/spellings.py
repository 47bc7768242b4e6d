"""Spellings of statements and directives, with what ptxas answers to each.

    python tests/support/spellings.py

asks ptxas 13.0 again and writes the first column of tests/data/spellings.txt anew. Each line has four columns: whether
ptxas takes the text; whether the text is a body or a module; the text; and, if the virtual device answers otherwise,
why. To add a text, add its line with any answer, then run the command.
"""

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

TABLE = ROOT / "tests" / "data" / "spellings.txt"
HEAD = "# Spellings, and whether ptxas 13.0 takes them: tests/support/spellings.py writes and explains this file.\n"
DECLARED = (
    ".reg .pred p<8>; .reg .b16 h<8>; .reg .b32 r<16>; .reg .f32 f<16>; .reg .b64 d<16>; .reg .f64 g<8>; .reg .b8 c<4>;"
    " .reg .b128 q<4>; .shared .align 128 .b8 s[4096]; .local .align 16 .b8 l[64];"
)


class Spelling(NamedTuple):
    """A line of the table."""

    answer: str  # taken or refused
    kind: str  # body or module
    text: str
    reason: str  # of a difference

    def module(self) -> str:
        """Return the text of a module without its head."""
        if self.kind == "module":
            return self.text + "\n"
        return f".visible .entry k() {{ {DECLARED} {self.text}\n ret; }}\n"


def read() -> list[Spelling]:
    """Return the lines of the table."""
    lines = TABLE.read_text().splitlines()[1:]
    return [Spelling(*line.split("\t")) for line in lines]


def ask(rows: list[Spelling]) -> list[str]:
    """Ask ptxas, and return its answers. Each text is assembled alone, because they define the same names."""
    import ptxas

    with tempfile.TemporaryDirectory() as folder:
        return ["refused" if ptxas.reasons([row.module()], Path(folder))[0] else "taken" for row in rows]


if __name__ == "__main__":
    known = read()
    rows = [row._replace(answer=answer) for row, answer in zip(known, ask(known), strict=True)]
    TABLE.write_text(HEAD + "".join("\t".join(row) + "\n" for row in rows))
