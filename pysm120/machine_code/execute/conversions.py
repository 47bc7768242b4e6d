"""Conversions between number formats."""

import re

from pysm120.machine_code.execute import operands as of
from pysm120.machine_code.execute.writer import Writer

Match = re.Match[str]


def pack(w: Writer, m: Match) -> None:
    """F2FP.F16.F32.PACK_AB d, a, b: a becomes the high half."""
    d, a, b = w.one.operands
    x, y = of.real(w, a), of.real(w, b)
    w.emit(f"cvt.rn.{m['to'].lower()}x2.f32 {of.destination(w, d)}, {x}, {y}")


def pack_bytes(w: Writer, m: Match) -> None:
    """F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C d, a, b, c: the low 16 bits of c follow a and b."""
    d, a, b, c = w.one.operands
    x, y, z, both = of.real(w, a), of.real(w, b), of.integer(w, c), w.half()
    w.emit(f"cvt.rn.satfinite.{m['to'].lower()}x2.f32 {both}, {x}, {y}")
    low, high = w.half(), w.half()
    w.emit(f"mov.b32 {{{low}, {high}}}, {z}", f"mov.b32 {of.destination(w, d)}, {{{both}, {low}}}")


def pack_nibbles(w: Writer, _: Match) -> None:
    """F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C d, a, b, c: the low 24 bits of c follow a and b."""
    d, a, b, c = w.one.operands
    x, y, z, both, t = of.real(w, a), of.real(w, b), of.integer(w, c), w.byte(), w.temporary()
    zero = w.byte()
    w.emit(f"cvt.rn.satfinite.e2m1x2.f32 {both}, {x}, {y}", f"mov.b32 {t}, {{{both}, {zero}, {zero}, {zero}}}")
    w.emit(f"and.b32 {t}, {t}, 0xff", f"prmt.b32 {of.destination(w, d)}, {t}, {z}, 0x6540")


def unpack(w: Writer, m: Match) -> None:
    """F2FP.F16.E4M3.UNPACK_B d, a.H1: two bytes become two halves."""
    d, a = w.one.operands
    source, part = of.selected(w, a)
    if part not in {"", "H1"}:
        raise w.unknown(f"part {part}")
    halves = w.half(), w.half()
    w.emit(f"mov.b32 {{{halves[0]}, {halves[1]}}}, {source}")
    w.emit(f"cvt.rn.f16x2.{m['of'].lower()}x2 {of.destination(w, d)}, {halves[part == 'H1']}")


def unpack_nibbles(w: Writer, _: Match) -> None:
    """F2FP.F16.E2M1.UNPACK_B d, a.B1: the two numbers in a byte become two halves."""
    d, a = w.one.operands
    source, part = of.selected(w, a)
    bytes_ = [w.byte() for _ in range(4)]
    w.emit(f"mov.b32 {{{', '.join(bytes_)}}}, {source}")
    w.emit(f"cvt.rn.f16x2.e2m1x2 {of.destination(w, d)}, {bytes_[_byte(w, part)]}")


def _byte(w: Writer, part: str) -> int:
    places = {"": 0, "B1": 1, "B2": 2, "B3": 3}
    if part not in places:
        raise w.unknown(f"part {part}")
    return places[part]


def narrow(w: Writer, m: Match) -> None:
    """F2F.BF16.F32 d, a: 16 bits, above which the register is 0."""
    d, a = w.one.operands
    x, half = of.real(w, a), w.half()
    w.emit(f"cvt.rn.{m['to'].lower()}.f32 {half}, {x}", f"cvt.u32.u16 {of.destination(w, d)}, {half}")


def to_integer(w: Writer, _: Match) -> None:
    """F2I.FTZ.U32.TRUNC.NTZ d, a: NaN becomes 0."""
    d, a = w.one.operands
    w.emit(f"cvt.rzi.ftz.u32.f32 {of.destination(w, d)}, {of.real(w, a)}")


def to_integer_64(w: Writer, _: Match) -> None:
    """F2I.U64.TRUNC d, a."""
    d, a = w.one.operands
    value = w.wide()
    w.emit(f"cvt.rzi.u64.f32 {value}, {of.real(w, a)}")
    of.put_pair(w, d, value)


def of_integer(w: Writer, m: Match) -> None:
    """I2F.U32.RP, I2FP.F32.S32: an integer of 32 bits to f32."""
    d, a = w.one.operands
    w.emit(f"cvt.{'rn' if m['up'] is None else 'rp'}.f32.{m['of'].lower()} {of.destination(w, d)}, {of.integer(w, a)}")


def of_integer_64(w: Writer, _: Match) -> None:
    """I2F.U64.RP d, a."""
    d, a = w.one.operands
    w.emit(f"cvt.rp.f32.u64 {of.destination(w, d)}, {of.pair(w, a)}")


def of_byte(w: Writer, m: Match) -> None:
    """I2F.S8 d, a.B1."""
    d, a = w.one.operands
    source, part = of.selected(w, a)
    kind, value = ("s32" if m["of"] == "S8" else "u32"), w.temporary()
    w.emit(f"bfe.{kind} {value}, {source}, {8 * _byte(w, part)}, 8")
    w.emit(f"cvt.rn.f32.{kind} {of.destination(w, d)}, {value}")


HANDLERS = {
    r"F2FP\.(?P<to>F16|BF16)\.F32\.PACK_AB": pack,
    r"F2FP\.SATFINITE\.(?P<to>E4M3|E5M2)\.F32\.PACK_AB_MERGE_C": pack_bytes,
    r"F2FP\.SATFINITE\.E2M1\.F32\.PACK_AB_MERGE_C": pack_nibbles,
    r"F2FP\.F16\.(?P<of>E4M3|E5M2)\.UNPACK_B": unpack,
    r"F2FP\.F16\.E2M1\.UNPACK_B": unpack_nibbles,
    r"F2F\.(?P<to>F16|BF16)\.F32": narrow,
    r"U?F2I\.FTZ\.U32\.TRUNC\.NTZ": to_integer,
    r"F2I\.U64\.TRUNC": to_integer_64,
    r"(U?I2F(?P<up>)|I2FP\.F32)\.(?P<of>[US]32)(?(up)\.RP)": of_integer,
    r"I2F\.U64\.RP": of_integer_64,
    r"I2F\.(?P<of>[US]8)": of_byte,
}
