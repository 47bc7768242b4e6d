"""FILE:LINE on a command line, and the PTX lines that belong to it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pysm120.observe.watch import Instruction, place_of
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.names import demangled, readable


@dataclasses.dataclass(frozen=True)
class Place:
    """A line, and the file that ``#line`` markers name; None: any file."""

    file: str | None
    line: int


def parse(word: str, option: str, path: str, code: Sequence[Instruction], entry: str) -> Place:
    """Return the place LINE or FILE:LINE, after checking that the kernel has an instruction there."""
    file, colon, digits = word.rpartition(":")
    if not digits.isdecimal() or not 0 < int(digits) < 1 << 32 or (colon and not file):
        message = f"{option} is {word!r}, not LINE or FILE:LINE such as 12 or {Path(path).name}:12"
        raise InvalidArgumentError(message)
    line = int(digits)
    known = {i.file for i in code}
    inside = [i for i in code if not file or i.file == file or i.file.endswith(f"/{file}")]
    if not inside:
        names = ", ".join(sorted(known)) or "no file"
        message = f"{option} is {word!r}, but the instructions of {demangled(entry)} are in {names}"
        raise InvalidArgumentError(message)
    if all(i.line != line for i in inside):
        nearest = min(inside, key=lambda i: (abs(i.line - line), i.line))
        message = (
            f"{option} is {word!r}, but {demangled(entry)} has no instruction there; "
            f"the nearest is in line {nearest.line}: {readable(nearest.text)}"
        )
        raise InvalidArgumentError(message)
    return Place(file or None, line)


def is_at(instruction: Instruction, place: Place | None) -> bool:
    """Whether an instruction is at a place."""
    if place is None or instruction.line != place.line:
        return False
    return place.file is None or instruction.file == place.file or instruction.file.endswith(f"/{place.file}")


def shown(instruction: Instruction, path: str) -> str:
    """Return FILE:LINE of an instruction; for PTX without markers, FILE has no folder."""
    file = Path(path).name if instruction.file == path else instruction.file
    return place_of(file, instruction.line, instruction.origin)
