"""Products of matrices, and loads and stores of their fragments."""

import re

from pysm120.machine_code import registers
from pysm120.machine_code.execute import operands as of
from pysm120.machine_code.execute.writer import Writer

Match = re.Match[str]
# The bits of a selector: byte and thread that hold the scales of A, then of B. ptxas writes {1, 0}, {1, 2} as 0x49.
_SELECTORS = ((0, 2), (2, 1), (3, 2), (5, 2))


def _vector(names: list[str]) -> str:
    return f"{{{', '.join(names)}}}"


def _fragments(w: Writer, d: str, a: str, b: str, c: str) -> str:
    """Return D, A, B and C as operands of mma.sync."""
    counts = registers.of_product(w.one.opcode)
    if counts is None:
        raise w.unknown("a matrix product of unknown shape")
    sources = [_vector(of.names(w, x, count)) for x, count in zip((a, b, c), counts[1:], strict=True)]
    return ", ".join([_vector(of.destinations(w, d, counts[0])), *sources])


def product_16(w: Writer, m: Match) -> None:
    """HMMA.16816.F32 d, a, b, c."""
    d, a, b, c = w.one.operands
    kind = "bf16" if m["bf16"] else "f16"
    w.emit(f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {_fragments(w, d, a, b, c)}")


def product_8(w: Writer, m: Match) -> None:
    """IMMA d, a.ROW, b.COL, c: integers of 8 bits."""
    d, a, b, c = w.one.operands
    if not a.endswith(".ROW") or not b.endswith(".COL"):
        raise w.unknown("operands")
    fragments = _fragments(w, d, a.removesuffix(".ROW"), b.removesuffix(".COL"), c)
    kinds = f"{m['a'].lower()}.{m['b'].lower()}"
    w.emit(f"mma.sync.aligned.m16n8k{m['k']}.row.col.s32.{kinds}.s32 {fragments}")


def product_scaled(w: Writer, m: Match) -> None:
    """QMMA.SF d, a, b, c, scale of a, scale of b, selector: floats in bytes, 32 of which have a scale."""
    _scaled(w, "m16n8k32", "kind::mxf8f6f4.block_scale.scale_vec::1X", f"{m['a'].lower()}.{m['b'].lower()}", "ue8m0")


def product_fp4(w: Writer, _: Match) -> None:
    """OMMA.SF d, a, b, c, scales of a, scales of b, selector: e2m1, 16 of which have a scale."""
    _scaled(w, "m16n8k64", "kind::mxf4nvf4.block_scale.scale_vec::4X", "e2m1.e2m1", "ue4m3")


def _scaled(w: Writer, shape: str, kind: str, types: str, scale: str) -> None:
    d, a, b, c, scale_a, scale_b, selector = w.one.operands
    places = []
    for first, bits in _SELECTORS:
        place = "0"
        if selector != "URZ":
            value, place = w.temporary(), w.half()
            w.emit(f"bfe.u32 {value}, {of.register(w, selector)}, {first}, {bits}", f"cvt.u16.u32 {place}, {value}")
        places.append(place)
    of_a, of_b = _vector(places[:2]), _vector(places[2:])
    scales = f"{of.register(w, scale_a)}, {of_a}, {of.register(w, scale_b)}, {of_b}"
    name = f"mma.sync.aligned.{shape}.row.col.{kind}.f32.{types}.f32.{scale}"
    w.emit(f"{name} {_fragments(w, d, a, b, c)}, {scales}")


def load(w: Writer, m: Match) -> None:
    """LDSM d, [a+n]."""
    d, a = w.one.operands
    address = of.shared(w, a)
    if m["bytes"]:
        count, name = 2 * int(m["bytes"]), f"m16n16.x{m['bytes']}.trans.shared.b8"
    else:
        count, name = int(m["count"]), f"m8n8.x{m['count']}{'.trans' if m['transposed'] else ''}.shared.b16"
    w.emit(f"ldmatrix.sync.aligned.{name} {_vector(of.destinations(w, d, count))}, {address}")


def store(w: Writer, m: Match) -> None:
    """STSM [a+n], b."""
    a, b = w.one.operands
    address = of.shared(w, a)
    count = m["bytes"] or m["count"]
    transposed = ".trans" if m["transposed"] else ""
    name = f"m16n8.x{count}.trans.shared.b8" if m["bytes"] else f"m8n8.x{count}{transposed}.shared.b16"
    w.emit(f"stmatrix.sync.aligned.{name} {address}, {_vector(of.names(w, b, int(count)))}")


def transpose(w: Writer, _: Match) -> None:
    """MOVM.16.MT88 d, a."""
    d, a = w.one.operands
    w.emit(f"movmatrix.sync.aligned.m8n8.trans.b16 {of.destination(w, d)}, {of.register(w, a)}")


HANDLERS = {
    r"HMMA\.16816\.F32(?P<bf16>\.BF16)?": product_16,
    r"IMMA\.168(?P<k>16|32)\.(?P<a>[SU]8)\.(?P<b>[SU]8)": product_8,
    r"QMMA\.SF\.16832\.F32\.(?P<a>E4M3|E5M2|E2M1)\.(?P<b>E4M3|E5M2|E2M1)\.E8": product_scaled,
    r"OMMA\.SF\.16864\.F32\.E2M1\.E2M1\.UE4M3\.4X": product_fp4,
    r"LDSM\.(16\.M(?P<transposed>T)?88\.(?P<count>[124])|8\.MT1616\.(?P<bytes>[12]))": load,
    r"STSM\.(16\.M(?P<transposed>T)?88\.(?P<count>[124])|8\.MT168\.(?P<bytes>[124]))": store,
    r"MOVM\.16\.MT88": transpose,
}
