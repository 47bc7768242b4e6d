"""Comparisons of integers, and logic of predicates."""

import re

from pysm120.machine_code.execute import operands as of
from pysm120.machine_code.execute.arithmetic import choose
from pysm120.machine_code.execute.writer import Writer

Match = re.Match[str]
_PREDICATES = 7


def compare(w: Writer, m: Match) -> None:
    """ISETP p, PT, a, b, q: a comparison and q, or a comparison or q."""
    p, other, a, b, q = w.one.operands
    of.lost(w, other)
    kind = (m["type"] or ".S32")[1:].lower()
    read = of.pair if "64" in kind else of.integer
    x, y = read(w, a), read(w, b)
    comparison = m["comparison"].lower()
    name = f"setp.{comparison}.{m['with'].lower()}.{kind}"
    w.emit(f"{name} {of.written(w, p)}, {x}, {y}, {of.predicate(w, q)}")


def combine(w: Writer, _: Match) -> None:
    """PLOP3.LUT p, q, a, b, c, table, table: two functions of three predicates."""
    p, q, a, b, c, *tables = w.one.operands
    words = [w.temporary() for _ in range(3)]
    for word, operand in zip(words, (a, b, c), strict=True):
        w.emit(choose(w, "b32", word, "0xffffffff", "0", operand))
    found = [w.temporary() for _ in tables]
    for word, table in zip(found, tables, strict=True):
        w.emit(f"lop3.b32 {word}, {', '.join(words)}, {of.number(w, table):#x}")
    for word, target in zip(found, (p, q), strict=True):
        w.emit(f"setp.ne.u32 {of.written(w, target)}, {word}, 0")


def to_register(w: Writer, m: Match) -> None:
    """P2R d, PR, RZ, mask: the predicates of the mask, one bit each; UP2UR: the uniform ones."""
    d, which, a, mask = w.one.operands
    kind = m["uniform"] or ""
    if (which, a) != (f"{kind}PR", f"{kind}RZ"):
        raise w.unknown("operands")
    total, bit = w.temporary(), w.temporary()
    w.emit(f"mov.b32 {total}, 0")
    for i in range(_PREDICATES):
        if of.number(w, mask) >> i & 1:
            w.emit(f"selp.b32 {bit}, {1 << i}, 0, {kind}P{i}", f"or.b32 {total}, {total}, {bit}")
    w.emit(f"mov.b32 {of.destination(w, d)}, {total}")


def of_register(w: Writer, _: Match) -> None:
    """R2P PR, a, mask: the predicates of the mask become the bits of a."""
    which, a, mask = w.one.operands
    if which != "PR":
        raise w.unknown(f"predicates {which}")
    source, bit = of.register(w, a), w.temporary()
    for i in range(_PREDICATES):
        if of.number(w, mask) >> i & 1:
            w.emit(f"and.b32 {bit}, {source}, {1 << i}", f"setp.ne.u32 P{i}, {bit}, 0")


HANDLERS = {
    r"U?ISETP\.(?P<comparison>EQ|NE|LT|LE|GT|GE)(?P<type>\.(?:U32|U64|S64))?\.(?P<with>AND|OR)": compare,
    r"U?PLOP3\.LUT": combine,
    r"P2R|(?P<uniform>U)P2UR": to_register,
    r"R2P": of_register,
}
