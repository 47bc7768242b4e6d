"""Operands of machine instructions as operands of PTX."""

import re
import struct
from typing import NamedTuple

from pysm120.machine_code.execute.writer import Writer

_REGISTER = re.compile(r"(?P<sign>-?)(?P<bar>\|?)(?P<inverse>~?)(?P<name>U?R(?:\d+|Z))(?P<end>\|?)(?P<reuse>\.reuse)?")
_SELECTED = re.compile(r"(?P<register>-?U?R(?:\d+|Z)(?:\.reuse)?)\.(?P<part>H0_H0|H1_H1|H1|B1|B2|B3|ROW|COL)")
_PREDICATE = re.compile(r"!?U?P(?:\d|T)")
_INTEGER = re.compile(r"-?0x[0-9a-f]+")
_ADDRESS = re.compile(r"\[(?:(?P<lane>R(?:\d+|Z)))?\+?(?:(?P<uniform>UR(?:\d+|Z)))?\+?(?P<offset>-?0x[0-9a-f]+)?\]")
_GLOBAL = re.compile(r"desc\[UR\d+\]\[(?P<pair>R(?:\d+|Z))\.64(?:\+(?P<offset>-?0x[0-9a-f]+))?\]")
_LOW, _SIGN, _MAGNITUDE = 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF


class Address(NamedTuple):
    """The address of an access: a PTX register or number, and an offset in bytes."""

    base: str
    offset: int

    def __str__(self) -> str:
        return f"[{self.base}+{self.offset}]" if self.offset else f"[{self.base}]"

    def plus(self, more: int) -> "Address":
        """Return the address so many bytes behind it."""
        return Address(self.base, self.offset + more)


def is_number(operand: str) -> bool:
    """Return whether an operand is an immediate."""
    return not (_REGISTER.fullmatch(operand) or _PREDICATE.fullmatch(operand) or "[" in operand)


def number(w: Writer, operand: str) -> int:
    """Return an integer immediate."""
    if not _INTEGER.fullmatch(operand):
        raise w.unknown(f"{operand} is not an integer")
    return int(operand, 16)


def _parts(w: Writer, operand: str) -> re.Match[str]:
    found = _REGISTER.fullmatch(operand)
    if found is None or bool(found["bar"]) != bool(found["end"]):
        raise w.unknown(f"operand {operand}")
    return found


def _is_zero(name: str) -> bool:
    return name.endswith("RZ")


def register(w: Writer, operand: str) -> str:
    """Return a source of 32 bits without modifiers."""
    found = _parts(w, operand)
    if found["sign"] or found["bar"] or found["inverse"]:
        raise w.unknown(f"modifier of {operand}")
    return found["name"]


def names(w: Writer, operand: str, count: int) -> list[str]:
    """Return consecutive registers from the one that an operand names; after RZ comes RZ."""
    first = register(w, operand)
    if _is_zero(first):
        return [first] * count
    kind, n = re.fullmatch(r"(U?R)(\d+)", first).groups()  # type: ignore[union-attr]
    return [f"{kind}{int(n) + i}" for i in range(count)]


def integer(w: Writer, operand: str) -> str:
    """Return a source of 32 bits: a register, negated or inverted, or an immediate."""
    if is_number(operand):
        return f"{number(w, operand) & _LOW:#x}"
    found = _parts(w, operand)
    if found["bar"]:
        raise w.unknown(f"operand {operand}")
    plain = found["name"]
    if not found["sign"] and not found["inverse"]:
        return plain
    made = w.temporary()
    w.emit(f"{'neg.s32' if found['sign'] else 'not.b32'} {made}, {plain}")
    return made


def extended(w: Writer, operand: str) -> str:
    """Return a source of 32 bits, zero-extended to 64; -x counts as ~x + 1, which may carry."""
    made = w.wide()
    if operand.startswith("-") and not is_number(operand):
        plain = w.temporary()
        w.emit(f"not.b32 {plain}, {register(w, operand[1:])}", f"cvt.u64.u32 {made}, {plain}")
        w.emit(f"add.u64 {made}, {made}, 1")
    else:
        w.emit(f"cvt.u64.u32 {made}, {integer(w, operand)}")
    return made


def pair(w: Writer, operand: str) -> str:
    """Return a source of 64 bits: two registers, negated or not, or an immediate."""
    made = w.wide()
    if is_number(operand):
        w.emit(f"mov.u64 {made}, {number(w, operand) & 0xFFFFFFFFFFFFFFFF:#x}")
        return made
    sign = operand.startswith("-")
    low, high = names(w, operand.removeprefix("-"), 2)
    w.emit(f"mov.b64 {made}, {{{low}, {high}}}")
    if sign:
        w.emit(f"neg.s64 {made}, {made}")
    return made


def immediate(w: Writer) -> int:
    """Return the 32 bits of the immediate in the encoding of the instruction."""
    return w.one.word >> 32 & _LOW


def _bits(w: Writer, operand: str) -> int:
    """Return the bits of a float immediate: those of the encoding, which must be what nvdisasm prints."""
    bits = immediate(w)
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    shown = operand.removeprefix("+").removeprefix("-")
    if shown in {"INF", "QNAN"}:
        is_same = bits & _MAGNITUDE == 0x7F800000 if shown == "INF" else bits & _MAGNITUDE > 0x7F800000  # noqa: PLR2004
        is_same = is_same and (bits >> 31 == 1) == operand.startswith("-")
    else:
        is_same = re.fullmatch(r"-?[\d.]+(?:e[-+]?\d+)?", operand) is not None
        is_same = is_same and struct.pack("<f", float(operand)) == struct.pack("<f", value)
    if not is_same:
        raise w.unknown(f"immediate {operand}, encoded as {bits:#010x}")
    return bits


def real(w: Writer, operand: str) -> str:
    """Return a source of f32: a register, negated, its magnitude, or an immediate."""
    if is_number(operand):
        return f"0f{_bits(w, operand):08X}"
    found = _parts(w, operand)
    if found["inverse"]:
        raise w.unknown(f"operand {operand}")
    source = found["name"]
    if found["bar"]:
        made = w.temporary()
        w.emit(f"and.b32 {made}, {source}, {_MAGNITUDE:#x}")
        source = made
    if found["sign"]:
        made = w.temporary()
        w.emit(f"xor.b32 {made}, {source}, {_SIGN:#x}")
        source = made
    return source


def selected(w: Writer, operand: str) -> tuple[str, str]:
    """Return a source of 32 bits and the part of it that is read: "H1_H1", "B2" or ""."""
    found = _SELECTED.fullmatch(operand)
    return (integer(w, found["register"]), found["part"]) if found else (integer(w, operand), "")


def predicate(w: Writer, operand: str) -> str:
    """Return a source predicate, perhaps with "!"."""
    if not _PREDICATE.fullmatch(operand):
        raise w.unknown(f"predicate {operand}")
    return operand


def written(w: Writer, operand: str) -> str:
    """Return a destination predicate; what is written to PT is lost."""
    if not _PREDICATE.fullmatch(operand) or operand.startswith("!"):
        raise w.unknown(f"predicate {operand}")
    return w.flag() if operand.endswith("PT") else operand


def lost(w: Writer, *operands: str) -> None:
    """Check that destinations are PT, which loses what is written to it."""
    for operand in operands:
        if operand not in {"PT", "UPT"}:
            raise w.unknown(f"a second result in {operand}")


def destination(w: Writer, operand: str) -> str:
    """Return a destination of 32 bits; what is written to RZ is lost."""
    found = _parts(w, operand)
    if found["sign"] or found["bar"] or found["inverse"]:
        raise w.unknown(f"destination {operand}")
    return w.temporary() if _is_zero(found["name"]) else found["name"]


def destinations(w: Writer, operand: str, count: int) -> list[str]:
    """Return consecutive destinations."""
    found = names(w, operand, count)
    return [w.temporary() for _ in found] if _is_zero(found[0]) else found


def put_pair(w: Writer, operand: str, value: str) -> None:
    """Write 64 bits to two registers."""
    low, high = destinations(w, operand, 2)
    w.emit(f"mov.b64 {{{low}, {high}}}, {value}")


def shared(w: Writer, operand: str) -> Address:
    """Return an address of shared memory."""
    found = _ADDRESS.fullmatch(operand)
    if found is None or operand == "[]":
        raise w.unknown(f"address {operand}")
    offset = int(found["offset"], 16) if found["offset"] else 0
    bases = [name for name in (found["lane"], found["uniform"]) if name and not _is_zero(name)]
    if len(bases) < 2:  # noqa: PLR2004
        return Address(bases[0] if bases else "RZ", offset)
    made = w.temporary()
    w.emit(f"add.u32 {made}, {bases[0]}, {bases[1]}")
    return Address(made, offset)


def in_global(w: Writer, operand: str) -> Address:
    """Return an address of global memory; the descriptor in a uniform register has no meaning here."""
    found = _GLOBAL.fullmatch(operand)
    if found is None:
        raise w.unknown(f"address {operand}")
    return Address(pair(w, found["pair"]), int(found["offset"], 16) if found["offset"] else 0)


def in_uniform(w: Writer, operand: str) -> list[str]:
    """Return two uniform registers between brackets: an address of 64 bits, or two of 32."""
    found = re.fullmatch(r"\[(UR\d+)\]", operand)
    if found is None:
        raise w.unknown(f"address {operand}")
    return names(w, found[1], 2)
