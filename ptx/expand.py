"""Expand a PTX template: lines of Python in PTX.

A line whose first character is `#` is Python, `${expr}` is a value, `# end` closes a block. `#line` markers make ptxas,
the CUDA driver and the virtual SM120 report the template's own file and line. A template's Python has these names:

    target                          "sm_120f" or "sm_90"
    include("parts/x.ptx")          run another template in the same scope
    regs("acc", 4, 2)               "{acc_4, acc_5}"; names() is the list, vector() writes a list
    note(entry=..., threads=...)    the record of a kernel (records.py says which fields there are); one for each entry
    group("attention_sequence")     the .param lines from here on are a struct of their own inside the kernel's
    constant("ATTENTION_FAR", 7)    a number that PTX, C and Python share; the value is returned
    constants("ATTENTION", far=7)   several of them; a dict of the values is returned

    python ptx/expand.py ptx/attention/mxfp8.ptx --target sm_120f
"""

import argparse
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent
VALUE = re.compile(r"\$\{([^}]*)\}")
INT_MAX = 2**31 - 1


class TemplateError(Exception):
    """What a template says of its kernels is wrong: file, line and one sentence."""

    def __init__(self, place: "Place", message: str) -> None:
        super().__init__(f"{place.file}, line {place.line}: {message}")


class Place(NamedTuple):
    """A line of a template."""

    file: str
    line: int


class Line(NamedTuple):
    """A line of PTX and where it stands in the templates."""

    place: Place
    text: str


class Note(NamedTuple):
    """The fields that note() was given, and where."""

    place: Place
    fields: dict[str, Any]


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


def marked(lines: list[Line]) -> str:
    """Write lines of PTX, with a marker before each that does not follow the one before it in its template."""
    written: list[str] = []
    expected: Place | None = None
    begun = False
    for place, text in lines:
        # The CUDA driver recognises PTX by its .version: a marker above it makes the image invalid.
        begun = begun or text.startswith(".version")
        if begun and place != expected and not text.startswith(".version"):
            written.append(f'#line {place.line} "{place.file}"')
        written.append(text)
        expected = Place(place.file, place.line + 1)
    return "\n".join(written) + "\n"


class Expansion:
    """One template, expanded for one target, with values that it asks for: its lines, notes, groups and constants."""

    def __init__(self, template: Path, target: str, **values: object) -> None:
        self.lines: list[Line] = []
        self.notes: list[Note] = []
        self.groups: dict[int, tuple[Place, str]] = {}  # by the index of the line that follows
        self.constants: dict[str, tuple[Place, int]] = {}
        self.files: list[str] = []
        self.paths: dict[str, str] = {}  # of the files as Python knows them
        self.scope: dict[str, Any] = {
            "_emit": self.emit,
            "include": self.include,
            "note": lambda **fields: self.notes.append(Note(self.place(), fields)),
            "group": self.group,
            "constant": self.constant,
            "constants": self.several,
            "names": names,
            "vector": vector,
            "regs": regs,
            "target": target,
            **values,
        }
        self.run(template)

    @property
    def text(self) -> str:
        """The PTX text of all kernels."""
        return marked(self.lines)

    def include(self, path: str) -> None:
        """Run another template, named from the folder of the templates, in this scope."""
        self.run(ROOT / path)

    def run(self, template: Path) -> None:
        """Execute a template; what it writes is appended."""
        path = Path(os.path.relpath(template.resolve(), ROOT.parent)).as_posix()
        self.files.append(path)
        self.paths[str(template)] = path
        program = translate(template.read_text(), path, len(self.files) - 1)
        exec(compile(program, str(template), "exec"), self.scope)

    def emit(self, file: int, number: int, *parts: object) -> None:
        """Append a line of PTX."""
        self.lines.append(Line(Place(self.files[file], number), "".join(map(str, parts)).rstrip()))

    def place(self) -> Place:
        """Return the line of a template that is being executed."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename not in self.paths:
            frame = frame.f_back
        return Place(self.paths[frame.f_code.co_filename], frame.f_lineno) if frame else Place("", 0)

    def group(self, name: str) -> None:
        """Let the parameters from here to the next group or the end be a struct of this name."""
        self.groups[len(self.lines)] = (self.place(), name)

    def constant(self, name: str, value: int) -> int:
        """Share a number with C and Python."""
        place = self.place()
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or not isinstance(value, int) or abs(value) > INT_MAX:
            raise TemplateError(place, f"constant({name!r}, {value!r}) is not a NAME in capitals and an int of 32 bits")
        before = self.constants.setdefault(name, (place, value))
        if before[1] != value:
            where = f"{before[0].file}, line {before[0].line}"
            raise TemplateError(place, f"constant {name} = {value}, but {where} says {before[1]}")
        return value

    def several(self, prefix: str, **values: int) -> dict[str, int]:
        """Share numbers with C and Python: PREFIX_NAME = value."""
        return {name: self.constant(f"{prefix}_{name.upper()}", value) for name, value in values.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the PTX of a template.")
    parser.add_argument("template", type=Path)
    parser.add_argument("--target", choices=["sm_120f", "sm_90"], default="sm_120f")
    arguments = parser.parse_args()
    sys.stdout.write(Expansion(arguments.template, arguments.target).text)
