"""A kernel's machine code as a PTX text that computes the same, statement by statement."""

import re
from collections.abc import Callable
from functools import cache

from pysm120.machine_code.cubin import Cubin
from pysm120.machine_code.execute import (
    arithmetic,
    control,
    conversions,
    copies,
    floats,
    lanes,
    matrices,
    memory,
    predicates,
)
from pysm120.machine_code.execute.layout import Layout
from pysm120.machine_code.execute.writer import Writer
from pysm120.machine_code.sass import Function, Instruction

Handler = Callable[[Writer, "re.Match[str]"], None]
_PARTS = (arithmetic, floats, conversions, predicates, memory, matrices, lanes, copies, control)
_HANDLERS: list[tuple[re.Pattern[str], Handler]] = [
    (re.compile(pattern), handler) for part in _PARTS for pattern, handler in part.HANDLERS.items()
]
_REGISTERS, _UNIFORM, _BARRIERS = 255, 128, 16
_HEAD = """.version 8.8
.target sm_120f
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
"""


@cache
def _handler(opcode: str) -> "tuple[Handler, re.Match[str]] | None":
    found = ((handler, pattern.fullmatch(opcode)) for pattern, handler in _HANDLERS)
    return next(((handler, match) for handler, match in found if match), None)


def statement(w: Writer, one: Instruction) -> None:
    """Write the PTX of an instruction; UnknownInstructionError if it is not known."""
    found = _handler(one.opcode)
    if found is None:
        raise w.unknown("the opcode or a modifier is not known")
    handler, match = found
    try:
        handler(w, match)
    except ValueError as error:  # another number of operands than the handler unpacks
        raise w.unknown(f"operands: {error}") from error


def as_ptx(function: Function, image: bytes) -> str:
    """Return a PTX text with a kernel of the same name, parameters and shared memory.

    Parameters
    ----------
    function : Function
        The code of the kernel, as sass.disassemble returns it.
    image : bytes
        The cubin that it comes from, which states parameters, shared memory and threads.

    """
    cubin = Cubin(image)
    layout, entry = Layout(function, cubin), cubin.entry(function.name)
    w = Writer(function.name, layout)
    for row, one in enumerate(function.instructions, 1):
        if one.address in layout.targets:
            w.lines.append(f"{layout.label(one.address)}:")
        w.begin(one, row)
        statement(w, one)
    bank = cubin.constants(function.name, 2)
    numbers = ", ".join(map(str, bank))
    threads = [f"{'.reqntid' if entry.fixed else '.maxntid'} {entry.threads}"] if entry.threads else []
    static = entry.static_shared_bytes
    return "\n".join(
        [
            _HEAD,
            *([f".const .align 8 .b8 bank_2[{len(bank)}] = {{{numbers}}};"] if bank else []),
            f".visible .entry {function.name}(",
            ",\n".join(layout.declarations()) + ")",
            *threads,
            "{",
            *([f".shared .align 16 .b8 static[{static}];", ".reg .b32 begin;"] if static else []),
            f".reg .b32 R<{_REGISTERS}>, RZ, UR<{_UNIFORM}>, URZ;",
            f".reg .b32 {', '.join(f'B{i}, B{i}_end' for i in range(_BARRIERS))};",
            f".reg .pred {', '.join(f'P{i}, UP{i}' for i in range(7))}, PT, UPT, barrier_result;",
            *w.declarations(),
            *(["mov.u32 begin, static;"] if static else []),  # a variable that nothing names takes no room
            "setp.eq.u32 PT, 0, 0;",
            "setp.eq.u32 UPT, 0, 0;",
            "mov.b32 RZ, 0;",
            "mov.b32 URZ, 0;",
            *w.lines,
            "}",
            "",
        ]
    )
