"""Loads, stores and atomic operations."""

import re

from pysm120.machine_code.execute import operands as of
from pysm120.machine_code.execute.writer import Writer

Match = re.Match[str]
_WIDTHS = {None: 1, "64": 2, "128": 4}


def _form(width: str | None, registers: list[str]) -> tuple[str, str]:
    """Return the end of the opcode and the registers of a PTX access."""
    if width in {"U8", "U16"}:
        return width.lower(), registers[0]
    if len(registers) == 1:
        return "b32", registers[0]
    return f"v{len(registers)}.b32", f"{{{', '.join(registers)}}}"


def _count(width: str | None) -> int:
    return _WIDTHS.get(width, 1)


def _load(w: Writer, m: Match, d: str, address: of.Address, space: str, how: str = "") -> None:
    """Write a load; ``how`` comes before the space if it orders memory, else behind it."""
    kind, registers = _form(m["width"], of.destinations(w, d, _count(m["width"])))
    name = f"ld{how}.{space}.{kind}" if how.startswith(".relaxed") else f"ld.{space}{how}.{kind}"
    w.emit(f"{name} {registers}, {address}")


def _store(w: Writer, m: Match, address: of.Address, b: str, space: str) -> None:
    """Write a store."""
    kind, registers = _form(m["width"], of.names(w, b, _count(m["width"])))
    w.emit(f"st.{space}.{kind} {address}, {registers}")


def load_global(w: Writer, m: Match) -> None:
    """LDG d, desc[UR][a.64+n]."""
    d, a = w.one.operands
    how = {None: "", "CONSTANT": ".nc", "STRONG.GPU": ".relaxed.gpu"}[m["how"]]
    _load(w, m, d, of.in_global(w, a), "global", how)


def store_global(w: Writer, m: Match) -> None:
    """STG desc[UR][a.64+n], b."""
    a, b = w.one.operands
    _store(w, m, of.in_global(w, a), b, "global")


def load_shared(w: Writer, m: Match) -> None:
    """LDS d, [a+n]."""
    d, a = w.one.operands
    _load(w, m, d, of.shared(w, a), "shared")


def store_shared(w: Writer, m: Match) -> None:
    """STS [a+n], b."""
    a, b = w.one.operands
    _store(w, m, of.shared(w, a), b, "shared")


def add_global(w: Writer, _: Match) -> None:
    """ATOMG.E.ADD.STRONG.GPU PT, d, desc[UR][a.64], b."""
    p, d, a, b = w.one.operands
    of.lost(w, p)
    address = of.in_global(w, a)
    w.emit(f"atom.relaxed.gpu.global.add.u32 {of.destination(w, d)}, {address}, {of.register(w, b)}")


def reduce_global(w: Writer, m: Match) -> None:
    """REDG.E.ADD.STRONG.GPU desc[UR][a.64], b."""
    a, b = w.one.operands
    address = of.in_global(w, a)
    count = int(m["count"] or 1)
    kind = "f32" if m["float"] else "u32"
    sources = of.names(w, b, count)
    vector, values = (f".v{count}", f"{{{', '.join(sources)}}}") if count > 1 else ("", sources[0])
    w.emit(f"red.relaxed.gpu.global.{m['what'].lower()}{vector}.{kind} {address}, {values}")


def largest_shared(w: Writer, _: Match) -> None:
    """ATOMS.MAX d, [a+n], b."""
    d, a, b = w.one.operands
    address = of.shared(w, a)
    w.emit(f"atom.shared.max.u32 {of.destination(w, d)}, {address}, {of.register(w, b)}")


def load_constant(w: Writer, m: Match) -> None:
    """LDC d, c[bank][n]: layout.py knows the meaning of the place."""
    d, a = w.one.operands
    found = re.fullmatch(r"c\[(0x[0-9a-f]+)\]\[(.*)\]", a)
    if found is None:
        raise w.unknown(f"operand {a}")
    registers = of.destinations(w, d, _count(m["width"]))
    if found[1] == "0x2" and len(registers) == 1:
        w.emit(f"ld.const.b32 {registers[0]}, {_in_bank(w, found[2])}")
        return
    if found[1] != "0x0" or not of.is_number(found[2]):
        raise w.unknown(f"operand {a}")
    first = of.number(w, found[2])
    for i, name in enumerate(registers):
        statements = w.layout.constant(name, first + 4 * i, w.wide())
        if not statements:
            raise w.unknown(f"constant {first + 4 * i:#x}")
        w.emit(*statements)


def _in_bank(w: Writer, index: str) -> str:
    address, at = w.wide(), w.wide()
    w.emit(f"mov.u64 {address}, bank_2", f"cvt.u64.u32 {at}, {of.register(w, index)}")
    w.emit(f"add.u64 {address}, {address}, {at}")
    return f"[{address}]"


HANDLERS = {
    r"LDG\.E(\.(?P<width>U8|U16|64|128))?(\.(?P<how>CONSTANT|STRONG\.GPU))?": load_global,
    r"STG\.E(\.(?P<width>U8|U16|64|128))?": store_global,
    r"LDS(\.(?P<width>U8|U16|64|128))?": load_shared,
    r"STS(\.(?P<width>U8|U16|64|128))?": store_shared,
    r"ATOMG\.E\.ADD\.STRONG\.GPU": add_global,
    r"REDG\.E\.(?P<what>ADD|MAX)(?P<float>\.F32(x(?P<count>[24]))?\.FTZ\.RN)?\.STRONG\.GPU": reduce_global,
    r"ATOMS\.MAX": largest_shared,
    r"LDCU?(\.(?P<width>64|128))?": load_constant,
}
