"""Expand a PTX template: lines of Python in PTX.

A line whose first character is `#` is Python, `${expr}` is a value, `# end` closes a block.
`# include("lib/x.ptx")` runs another template in the same scope. `regs("acc", 4, 2)` is `{acc_4, acc_5}`.
`note(entry=..., threads=...)` records what the build must know of a kernel. `#line` markers make ptxas, the CUDA driver
and the virtual SM120 report the template's own file and line.

    python ptx/expand.py ptx/attention/mxfp8.ptx --target sm_120f
"""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VALUE = re.compile(r"\$\{([^}]*)\}")
Note = dict[str, int | str]


def regs(prefix: str, first: int, count: int) -> str:
    """Name a vector operand: regs("a", 2, 2) is "{a_2, a_3}"."""
    return vector(names(prefix, first, count))


def names(prefix: str, first: int, count: int) -> list[str]:
    """List registers: names("a", 2, 2) is ["a_2", "a_3"]."""
    return [f"{prefix}_{first + i}" for i in range(count)]


def vector(registers: list[str]) -> str:
    """Write registers as a vector operand: vector(["a_2", "a_3"]) is "{a_2, a_3}"."""
    return "{" + ", ".join(registers) + "}"


def translate(text: str, path: str, file: int) -> str:
    """Turn a template into a Python program with the same line numbers."""
    program: list[str] = []
    opened: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#"):
            parts = VALUE.split(line)
            terms = [repr(p) if i % 2 == 0 else f"({p})" for i, p in enumerate(parts)]
            program.append("    " * len(opened) + f"_emit({file}, {number}, {', '.join(terms)})")
            continue
        statement = line[1:].strip()
        if statement == "end":
            if not opened:
                raise SyntaxError("`# end` without a block", (path, number, 1, line))
            opened.pop()
            program.append("    " * len(opened) + "    pass")
            continue
        again = re.match(r"(else|elif)\b", statement) is not None
        program.append("    " * (len(opened) - again) + statement)
        if statement.endswith(":") and not again:
            opened.append(number)
    if opened:
        raise SyntaxError("a block without `# end`", (path, opened[-1], 1, ""))
    return "\n".join(program) + "\n"


class Expansion:
    """One template, expanded for one target, with values that it asks for: `text` and `notes`."""

    def __init__(self, template: Path, target: str, **values: object) -> None:
        self.lines: list[str] = []
        self.notes: list[Note] = []
        self.files: list[str] = []
        self.expected = ("", 0)
        self.begun = False
        self.scope: dict[str, Any] = {
            "_emit": self.emit,
            "include": self.include,
            "note": lambda **fields: self.notes.append(fields),
            "names": names,
            "vector": vector,
            "regs": regs,
            "target": target,
            **values,
        }
        self.run(template)

    @property
    def text(self) -> str:
        """The PTX text."""
        return "\n".join(self.lines) + "\n"

    def include(self, path: str) -> None:
        """Run another template, named from the folder of the templates, in this scope."""
        self.run(ROOT / path)

    def run(self, template: Path) -> None:
        """Execute a template; what it writes is appended."""
        path = Path(os.path.relpath(template.resolve(), ROOT.parent)).as_posix()
        self.files.append(path)
        program = translate(template.read_text(), path, len(self.files) - 1)
        exec(compile(program, str(template), "exec"), self.scope)

    def emit(self, file: int, number: int, *parts: object) -> None:
        """Append a line of PTX, with a marker where it does not follow the one before."""
        line = "".join(map(str, parts)).rstrip()
        # The CUDA driver knows PTX by its .version: a marker above it makes the image invalid.
        self.begun = self.begun or line.startswith(".version")
        if self.begun and self.expected != (self.files[file], number) and not line.startswith(".version"):
            self.lines.append(f'#line {number} "{self.files[file]}"')
        self.lines.append(line)
        self.expected = (self.files[file], number + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the PTX of a template.")
    parser.add_argument("template", type=Path)
    parser.add_argument("--target", choices=["sm_120f", "sm_90"], default="sm_120f")
    arguments = parser.parse_args()
    sys.stdout.write(Expansion(arguments.template, arguments.target).text)
