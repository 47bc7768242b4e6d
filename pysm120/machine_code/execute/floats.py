"""Arithmetic of f32, and of two halves in a register."""

import re

from pysm120.machine_code.execute import operands as of
from pysm120.machine_code.execute.arithmetic import choose, smaller
from pysm120.machine_code.execute.writer import Writer

Match = re.Match[str]
_ROUNDING = {"": "rn", ".RP": "rp", ".RM": "rm", ".RZ": "rz"}
_SWAPS = {"H0_H0": "0x1010", "H1_H1": "0x3232"}
_APPROXIMATIONS = {"EX2": "ex2", "LG2": "lg2", "RCP": "rcp", "RSQ": "rsqrt"}


def add(w: Writer, m: Match) -> None:
    """FADD d, a, b."""
    d, a, b = w.one.operands
    x, y = of.real(w, a), of.real(w, b)
    w.emit(f"add.rn{'.ftz' if m['flush'] else ''}.f32 {of.destination(w, d)}, {x}, {y}")


def multiply(w: Writer, _: Match) -> None:
    """FMUL d, a, b."""
    d, a, b = w.one.operands
    x, y = of.real(w, a), of.real(w, b)
    w.emit(f"mul.rn.f32 {of.destination(w, d)}, {x}, {y}")


def fused(w: Writer, m: Match) -> None:
    """FFMA d, a, b, c."""
    d, a, b, c = w.one.operands
    x, y, z = of.real(w, a), of.real(w, b), of.real(w, c)
    w.emit(f"fma.{_ROUNDING[m['rounding'] or '']}.f32 {of.destination(w, d)}, {x}, {y}, {z}")


def extreme(w: Writer, m: Match) -> None:
    """FMNMX d, a, b, p: the smaller one for PT, the larger one for !PT."""
    d, a, b, p = w.one.operands
    x, y = of.real(w, a), of.real(w, b)
    w.emit(f"{smaller(w, p)}{'.NaN' if m['nan'] else ''}.f32 {of.destination(w, d)}, {x}, {y}")


def extreme_halves(w: Writer, m: Match) -> None:
    """HMNMX2.NAN.XORSIGN d, |a|, |b|, p: of the halves, the smaller magnitude for PT, the larger one for !PT."""
    d, a, b, p = w.one.operands
    if not (a.startswith("|") and b.startswith("|")):
        raise w.unknown("operands")
    x, y = (halves(w, one.replace("|", "")) for one in (a, b))
    kind = "bf16x2" if m["bf16"] else "f16x2"
    w.emit(f"{smaller(w, p)}.NaN.xorsign.abs.{kind} {of.destination(w, d)}, {x}, {y}")


def halves(w: Writer, operand: str) -> str:
    """Return both halves of a register, or one of them twice."""
    x, part = of.selected(w, operand)
    if not part:
        return x
    both = w.temporary()
    w.emit(f"prmt.b32 {both}, {x}, {x}, {_SWAPS[part]}")
    return both


def select(w: Writer, _: Match) -> None:
    """FSEL d, a, b, p."""
    d, a, b, p = w.one.operands
    x, y = of.real(w, a), of.real(w, b)
    w.emit(choose(w, "f32", of.destination(w, d), x, y, p))


def compare(w: Writer, m: Match) -> None:
    """FSETP p, PT, a, b, q: a comparison and q, or a comparison or q."""
    p, other, a, b, q = w.one.operands
    of.lost(w, other)
    x, y = of.real(w, a), of.real(w, b)
    name = f"setp.{m['comparison'].lower()}.{m['with'].lower()}{'.ftz' if m['flush'] else ''}.f32"
    w.emit(f"{name} {of.written(w, p)}, {x}, {y}, {of.predicate(w, q)}")


def approximate(w: Writer, m: Match) -> None:
    """MUFU: a function of the special function unit, which flushes subnormal numbers."""
    d, a = w.one.operands
    w.emit(f"{_APPROXIMATIONS[m['function']]}.approx.ftz.f32 {of.destination(w, d)}, {of.real(w, a)}")


def check_division(w: Writer, _: Match) -> None:
    """FCHK p, a, b: whether a / b needs the long way.

    NVIDIA does not publish the condition. The long way is right for all numbers, so p may hold too often: here it
    holds if a result or a step of Newton's iteration might leave the range of normal numbers.
    """
    p, a, b = w.one.operands
    x, y = of.real(w, a), of.real(w, b)
    i, j, far, near, big = w.temporary(), w.temporary(), w.flag(), w.flag(), w.flag()
    w.emit(f"mov.b32 {i}, {x}", f"mov.b32 {j}, {y}", f"bfe.u32 {i}, {i}, 23, 8", f"bfe.u32 {j}, {j}, 23, 8")
    w.emit(f"setp.lt.u32 {far}, {i}, 25", f"setp.eq.or.u32 {far}, {i}, 255, {far}")
    w.emit(f"setp.lt.or.u32 {far}, {j}, 1, {far}", f"setp.gt.or.u32 {far}, {j}, 252, {far}")
    w.emit(f"sub.s32 {i}, {i}, {j}", f"setp.gt.s32 {near}, {i}, 120", f"setp.lt.s32 {big}, {i}, -120")
    w.emit(f"or.pred {far}, {far}, {near}", f"or.pred {of.written(w, p)}, {far}, {big}")


def widen(w: Writer, _: Match) -> None:
    """HADD2.F32 d, -RZ, a.H0_H0: f16 to f32."""
    d, zero, a = w.one.operands
    source, part = of.selected(w, a)
    if zero != "-RZ" or part not in _SWAPS:
        raise w.unknown("operands")
    pair = w.half(), w.half()
    w.emit(f"mov.b32 {{{pair[0]}, {pair[1]}}}, {source}")
    w.emit(f"cvt.f32.f16 {of.destination(w, d)}, {pair[part == 'H1_H1']}")


def add_halves(w: Writer, _: Match) -> None:
    """HADD2 d, a, b: one half of a or b may be read twice."""
    d, a, b = w.one.operands
    w.emit(f"add.rn.f16x2 {of.destination(w, d)}, {halves(w, a)}, {halves(w, b)}")


def add_bf16(w: Writer, _: Match) -> None:
    """HADD2.BF16_V2 d, a, two numbers."""
    d, a, *numbers = w.one.operands
    if len(numbers) != 2 or not all(map(of.is_number, numbers)):  # noqa: PLR2004
        raise w.unknown("operands")
    constant = w.temporary()
    w.emit(f"mov.b32 {constant}, {of.immediate(w):#x}")
    w.emit(f"add.rn.bf16x2 {of.destination(w, d)}, {of.register(w, a)}, {constant}")


def multiply_halves(w: Writer, _: Match) -> None:
    """HMUL2 d, a, b: one half of b may be read twice."""
    d, a, b = w.one.operands
    w.emit(f"mul.rn.f16x2 {of.destination(w, d)}, {of.register(w, a)}, {halves(w, b)}")


def constant_halves(w: Writer, _: Match) -> None:
    """HFMA2 d, -RZ, RZ, two numbers: -0 * 0 + the numbers."""
    d, a, b, *numbers = w.one.operands
    if (a, b) != ("-RZ", "RZ") or len(numbers) != 2 or not all(map(of.is_number, numbers)):  # noqa: PLR2004
        raise w.unknown("operands")
    x, y, z = w.temporary(), w.temporary(), w.temporary()
    w.emit(f"mov.b32 {x}, 0x80008000", f"mov.b32 {y}, 0", f"mov.b32 {z}, {of.immediate(w):#x}")
    w.emit(f"fma.rn.f16x2 {of.destination(w, d)}, {x}, {y}, {z}")


HANDLERS = {
    r"FADD(?P<flush>\.FTZ)?": add,
    r"U?FMUL": multiply,
    r"U?FFMA(?P<rounding>\.R[PMZ])?": fused,
    r"FMNMX(?P<nan>\.NAN)?": extreme,
    r"HMNMX2(?P<bf16>\.BF16_V2)?\.NAN\.XORSIGN": extreme_halves,
    r"U?FSEL": select,
    r"U?FSETP\.(?P<comparison>EQ|NE|GT|GEU|GTU|NEU)(?P<flush>\.FTZ)?\.(?P<with>AND|OR)": compare,
    r"MUFU\.(?P<function>EX2|LG2|RCP|RSQ)": approximate,
    r"FCHK": check_division,
    r"HADD2": add_halves,
    r"HADD2\.F32": widen,
    r"HADD2\.BF16_V2": add_bf16,
    r"HMUL2": multiply_halves,
    r"HFMA2": constant_halves,
}
