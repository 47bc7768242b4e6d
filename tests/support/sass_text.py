"""Hand-made machine code in the format of nvdisasm: a test chooses the scheduling fields of the instructions."""

import dataclasses

from pysm120.machine_code import sass


@dataclasses.dataclass(frozen=True)
class Op:
    """An instruction, with the label before it."""

    text: str
    stall: int = 1
    writes: int = 7
    reads: int = 7
    waits: int = 0
    yields: bool = False
    label: str = ""
    reuse: int = 0


def listing(name: str, ops: list[Op]) -> str:
    """Return the text of a kernel."""
    lines = [f'\t.section\t.text.{name},"ax",@progbits', f".text.{name}:"]
    for i, op in enumerate(ops):
        if op.label:
            lines.append(f"{op.label}:")
        control = op.stall | (not op.yields) << 4 | op.writes << 5 | op.reads << 8 | op.waits << 11 | op.reuse << 17
        lines += [
            f"        /*{16 * i:04x}*/                   {op.text} ;   /* 0x{0x918:016x} */",
            f"{'':100}/* 0x{control << 41:016x} */",
        ]
    return "\n".join([*lines, ""])


def of_lines(code: list[tuple[int, Op]]) -> sass.Function:
    """Return a kernel of instructions with the lines of their statements."""
    found = sass.parse(listing("k", [op for _, op in code]))["k"]
    return sass.Function(
        "k", [dataclasses.replace(one, line=line) for one, (line, _) in zip(found.instructions, code, strict=True)]
    )
