"""Integer arithmetic, logic, shifts and moves."""

import re

from pysm120.machine_code.execute import operands as of
from pysm120.machine_code.execute.writer import Writer

Match = re.Match[str]


def add3(w: Writer, _: Match) -> None:
    """IADD3 d, carry, PT, a, b, c."""
    d, carry, other, a, b, c = w.one.operands
    of.lost(w, other)
    if carry in {"PT", "UPT"}:
        x, y, z, t = of.integer(w, a), of.integer(w, b), of.integer(w, c), w.temporary()
        w.emit(f"add.u32 {t}, {x}, {y}", f"add.u32 {of.destination(w, d)}, {t}, {z}")
        return
    if c not in {"RZ", "URZ"}:
        raise w.unknown("a carry of three operands")
    x, y = of.extended(w, a), of.extended(w, b)
    w.emit(f"add.u64 {x}, {x}, {y}")
    _with_carry(w, d, carry, x)


def _with_carry(w: Writer, d: str, carry: str, total: str) -> None:
    """Write the low half of a sum, and whether the high half is not 0."""
    high = w.temporary()
    w.emit(f"mov.b64 {{{of.destination(w, d)}, {high}}}, {total}")
    w.emit(f"setp.ne.u32 {of.written(w, carry)}, {high}, 0")


def add3_carried(w: Writer, _: Match) -> None:
    """IADD3.X d, PT, PT, a, b, c, carry, carry."""
    d, first, second, a, b, c, p, q = w.one.operands
    of.lost(w, first, second)
    total = w.temporary()
    x, y, z = of.integer(w, a), of.integer(w, b), of.integer(w, c)
    w.emit(f"add.u32 {total}, {x}, {y}", f"add.u32 {total}, {total}, {z}")
    for carry in (p, q):
        _add_carry(w, total, carry)
    w.emit(f"mov.b32 {of.destination(w, d)}, {total}")


def _add_carry(w: Writer, total: str, carry: str) -> None:
    bit = w.temporary()
    w.emit(choose(w, "b32", bit, "1", "0", carry), f"add.u32 {total}, {total}, {bit}")


def choose(w: Writer, kind: str, d: str, a: str, b: str, predicate: str) -> str:
    """Return a statement that chooses a if a predicate, perhaps with "!", holds."""
    found = of.predicate(w, predicate)
    if found.startswith("!"):
        a, b, found = b, a, found[1:]
    return f"selp.{kind} {d}, {a}, {b}, {found}"


def add_64(w: Writer, _: Match) -> None:
    """IADD.64 d, a, b."""
    d, a, b = w.one.operands
    x, y = of.pair(w, a), of.pair(w, b)
    w.emit(f"add.u64 {x}, {x}, {y}")
    of.put_pair(w, d, x)


def add3_64(w: Writer, _: Match) -> None:
    """UIADD3.64 d, PT, PT, a, b, c."""
    d, first, second, a, b, c = w.one.operands
    of.lost(w, first, second)
    x, y, z = of.pair(w, a), of.pair(w, b), of.pair(w, c)
    w.emit(f"add.u64 {x}, {x}, {y}", f"add.u64 {x}, {x}, {z}")
    of.put_pair(w, d, x)


def multiply(w: Writer, _: Match) -> None:
    """IMAD d, a, b, c: the low 32 bits, which are the same for signed and unsigned numbers."""
    d, a, b, c = w.one.operands
    x, y, z = of.integer(w, a), of.integer(w, b), of.integer(w, c)
    w.emit(f"mad.lo.u32 {of.destination(w, d)}, {x}, {y}, {z}")


def multiply_wide(w: Writer, m: Match) -> None:
    """IMAD.WIDE d, [carry,] a, b, c: 64 bits, of which IMAD.HI writes the high half; c has 64 bits."""
    d, *carry, a, b, c = w.one.operands
    kind = "u32" if m["unsigned"] else "s32"
    product, x, y, z = w.wide(), of.integer(w, a), of.integer(w, b), of.pair(w, c)
    w.emit(f"mul.wide.{kind} {product}, {x}, {y}", f"add.u64 {product}, {product}, {z}")
    if carry:
        if len(carry) > 1 or c.startswith("-"):
            raise w.unknown("a carry")
        w.emit(f"setp.lt.u64 {of.written(w, carry[0])}, {product}, {z}")
    if m["part"] == "WIDE":
        of.put_pair(w, d, product)
    else:
        w.emit(f"mov.b64 {{{w.temporary()}, {of.destination(w, d)}}}, {product}")


def absolute(w: Writer, _: Match) -> None:
    """IABS d, a."""
    d, a = w.one.operands
    w.emit(f"abs.s32 {of.destination(w, d)}, {of.integer(w, a)}")


def dot(w: Writer, m: Match) -> None:
    """IDP d, a, b, c: products of bytes, or of two halves with two bytes of b."""
    d, a, b, c = w.one.operands
    kind = "u32" if m["of_b"] == "U8" else "s32"
    name = "dp4a.s32" if m["half"] is None else f"dp2a.{m['half'].lower()}.s32"
    x, y, z = of.register(w, a), of.register(w, b), of.register(w, c)
    w.emit(f"{name}.{kind} {of.destination(w, d)}, {x}, {y}, {z}")


def shifted_add(w: Writer, _: Match) -> None:
    """LEA d, [carry,] a, b, n: (a << n) + b."""
    d, *carry, a, b, n = w.one.operands
    x, t = of.integer(w, a), w.temporary()
    w.emit(f"shl.b32 {t}, {x}, {of.number(w, n)}")
    if not carry:
        w.emit(f"add.u32 {of.destination(w, d)}, {t}, {of.integer(w, b)}")
        return
    total, y = w.wide(), of.extended(w, b)
    w.emit(f"cvt.u64.u32 {total}, {t}", f"add.u64 {total}, {total}, {y}")
    _with_carry(w, d, carry[0], total)


def shifted_add_high(w: Writer, _: Match) -> None:
    """LEA.HI d, a, b, c, n [, carry]: the high half of {c, a} << n, plus b."""
    d, a, b, c, n, *carry = w.one.operands
    x, y, both, high = of.integer(w, a), of.integer(w, b), w.wide(), w.temporary()
    w.emit(f"mov.b64 {both}, {{{x}, {of.integer(w, c)}}}", f"shl.b64 {both}, {both}, {of.number(w, n)}")
    w.emit(f"mov.b64 {{{w.temporary()}, {high}}}, {both}", f"add.u32 {high}, {high}, {y}")
    if carry:
        _add_carry(w, high, carry[0])
    w.emit(f"mov.b32 {of.destination(w, d)}, {high}")


def logic(w: Writer, _: Match) -> None:
    """LOP3.LUT [p,] d, a, b, c, table, q: p is whether d is not 0, or q."""
    *p, d, a, b, c, table, q = w.one.operands
    x, y, z, t = of.integer(w, a), of.integer(w, b), of.integer(w, c), w.temporary()
    w.emit(f"lop3.b32 {t}, {x}, {y}, {z}, {table}", f"mov.b32 {of.destination(w, d)}, {t}")
    if p:
        w.emit(f"setp.ne.or.u32 {of.written(w, p[0])}, {t}, 0, {of.predicate(w, q)}")
    elif q not in {"!PT", "!UPT"}:
        raise w.unknown(f"predicate {q} without a result")


def shift(w: Writer, m: Match) -> None:
    """SHF d, low, n, high: 64 bits are shifted, and the low or the high half is written."""
    d, low, n, high = w.one.operands
    both, t, count = w.wide(), w.temporary(), of.integer(w, n)
    w.emit(f"mov.b64 {both}, {{{of.integer(w, low)}, {of.integer(w, high)}}}")
    if m["wrap"]:
        w.emit(f"and.b32 {t}, {count}, 31")
        count = t
    name = "shl.b64" if m["side"] == "L" else f"shr.{'s64' if m['type'] == 'S32' else 'u64'}"
    w.emit(f"{name} {both}, {both}, {count}")
    halves = [w.temporary(), of.destination(w, d)] if m["high"] else [of.destination(w, d), w.temporary()]
    w.emit(f"mov.b64 {{{', '.join(halves)}}}, {both}")


def low_bits(w: Writer, _: Match) -> None:
    """SGXT.U32 d, a, n: the lowest n bits."""
    d, a, n = w.one.operands
    w.emit(f"bfe.u32 {of.destination(w, d)}, {of.integer(w, a)}, 0, {of.number(w, n)}")


def permute(w: Writer, _: Match) -> None:
    """PRMT d, a, selector, b."""
    d, a, selector, b = w.one.operands
    x, y, s = of.integer(w, a), of.integer(w, b), of.integer(w, selector)
    w.emit(f"prmt.b32 {of.destination(w, d)}, {x}, {y}, {s}")


def move(w: Writer, _: Match) -> None:
    """MOV d, a."""
    d, a = w.one.operands
    w.emit(f"mov.b32 {of.destination(w, d)}, {of.integer(w, a)}")


def move_64(w: Writer, _: Match) -> None:
    """MOV.64 d, a."""
    d, a = w.one.operands
    of.put_pair(w, d, of.pair(w, a))


def clear(w: Writer, _: Match) -> None:
    """CS2R d, SRZ: 64 bits of 0."""
    d, a = w.one.operands
    if a != "SRZ":
        raise w.unknown(f"special register {a}")
    for name in of.destinations(w, d, 2):
        w.emit(f"mov.b32 {name}, 0")


def select(w: Writer, _: Match) -> None:
    """SEL d, a, b, p."""
    d, a, b, p = w.one.operands
    x, y = of.integer(w, a), of.integer(w, b)
    w.emit(choose(w, "b32", of.destination(w, d), x, y, p))


def select_64(w: Writer, _: Match) -> None:
    """SEL.64 d, a, b, p."""
    d, a, b, p = w.one.operands
    x, y = of.pair(w, a), of.pair(w, b)
    w.emit(choose(w, "b64", x, x, y, p))
    of.put_pair(w, d, x)


def extreme(w: Writer, m: Match) -> None:
    """VIMNMX d, a, b, p: the smaller one for PT, the larger one for !PT."""
    d, a, b, p = w.one.operands
    x, y = of.integer(w, a), of.integer(w, b)
    w.emit(f"{smaller(w, p)}.{m['type'].lower()} {of.destination(w, d)}, {x}, {y}")


def extreme_64(w: Writer, _: Match) -> None:
    """IMNMX.S64 PT, PT, d, a, b, p, !PT."""
    first, second, d, a, b, p, q = w.one.operands
    of.lost(w, first, second, q.removeprefix("!"))
    x, y = of.pair(w, a), of.pair(w, b)
    w.emit(f"{smaller(w, p)}.s64 {x}, {x}, {y}")
    of.put_pair(w, d, x)


def smaller(w: Writer, predicate: str) -> str:
    """Return "min" for PT and "max" for !PT."""
    if predicate not in {"PT", "UPT", "!PT", "!UPT"}:
        raise w.unknown(f"predicate {predicate}")
    return "max" if predicate.startswith("!") else "min"


def one_operand(w: Writer, m: Match) -> None:
    """POPC, BREV, FLO: counts and places of bits."""
    name = {"POPC": "popc.b32", "BREV": "brev.b32", "FLO.U32": "bfind.u32", "FLO.U32.SH": "bfind.shiftamt.u32"}
    d, a = w.one.operands
    w.emit(f"{name[m['name']]} {of.destination(w, d)}, {of.integer(w, a)}")


HANDLERS = {
    r"U?IADD3": add3,
    r"U?IADD3\.X": add3_carried,
    r"UIADD3\.64": add3_64,
    r"IADD\.64": add_64,
    r"U?IMAD(\.U32|\.SHL\.U32)?": multiply,
    r"U?IMAD\.(?P<part>WIDE|HI)(?P<unsigned>\.U32)?": multiply_wide,
    r"IABS": absolute,
    r"IDP\.2A\.(?P<half>LO|HI)\.S16\.(?P<of_b>[SU]8)|IDP\.4A\.S8\.S8": dot,
    r"U?LEA": shifted_add,
    r"U?LEA\.HI(\.X)?": shifted_add_high,
    r"U?LOP3\.LUT": logic,
    r"U?SHF\.(?P<side>[LR])(?P<wrap>\.W)?\.(?P<type>U32|S32|U64)(?P<high>\.HI)?": shift,
    r"U?SGXT\.U32": low_bits,
    r"PRMT": permute,
    r"U?MOV": move,
    r"U?MOV\.64": move_64,
    r"CS2R": clear,
    r"U?SEL": select,
    r"U?SEL\.64": select_64,
    r"U?VIMNMX\.(?P<type>U32|S32|U16x2)": extreme,
    r"U?IMNMX\.S64": extreme_64,
    r"U?(?P<name>POPC|BREV|FLO\.U32(?:\.SH)?)": one_operand,
}
