"""Every pair of types that cvt knows, with every rounding, .ftz, .sat, .satfinite and .relu."""

from collections.abc import Iterator

from form import Form, form
from operands import product

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")
TO_FLOAT = ("rn", "rz", "rm", "rp")
TO_INTEGER = ("rni", "rzi", "rmi", "rpi")


def register(t: str) -> str:
    """Return the kind of the register of a type: there are none of 8 bits."""
    return t.replace("8", "16") if t in {"u8", "s8"} else t


def holds(d: str, s: str) -> bool:
    """Say whether an integer type holds every value of another: ptxas then refuses .sat."""
    wide = int(d[1:]) > int(s[1:]) and (d[0] == "s" or s[0] == "u")
    return d == s or wide


def integers() -> Iterator[Form]:
    for d, s, sat in product(INTEGERS, INTEGERS, ("", ".sat")):
        if sat and holds(d, s):
            continue
        yield form(f"cvt{sat}.{d}.{s} out0, in0;", register(s), register(d), 256)
    for d, s in product(("u8", "s8", "u16", "s16"), ("u8", "s8", "u16", "s16")):  # into a wider register
        yield form(f"cvt.{d}.{s} out0, in0;", "b32", "b32", 256)


def float_to_integer() -> Iterator[Form]:
    for d, s, rounding in product(INTEGERS, FLOATS, TO_INTEGER):
        if s == "bf16" and d[1:] == "8":
            continue
        for ftz in ("", ".ftz") if s == "f32" else ("",):
            for sat in ("",) if s == "bf16" else ("", ".sat"):
                kind = "f32:-300,300" if s == "f32" and d[1:] == "8" else s
                yield form(f"cvt.{rounding}{ftz}{sat}.{d}.{s} out0, in0;", kind, register(d), 256)


def integer_to_float() -> Iterator[Form]:
    for d, s, rounding in product(FLOATS, INTEGERS, TO_FLOAT):
        if d == "bf16" and s[1:] == "8":
            continue
        for sat in ("", ".sat") if d != "bf16" and rounding == "rn" else ("",):
            yield form(f"cvt.{rounding}{sat}.{d}.{s} out0, in0;", register(s), d, 256)


def float_to_float() -> Iterator[Form]:
    narrowing = [
        ("f64", "f32"),
        ("f64", "f16"),
        ("f32", "f16"),
        ("f64", "bf16"),
        ("f32", "bf16"),
        ("f16", "bf16"),
        ("bf16", "f16"),
    ]
    for (s, d), rounding in product(narrowing, TO_FLOAT):
        flushes = ("", ".ftz") if "f32" in {s, d} and "bf16" not in {s, d} else ("",)
        for ftz, sat in product(flushes, ("",) if "bf16" in {s, d} else ("", ".sat")):
            yield form(f"cvt.{rounding}{ftz}{sat}.{d}.{s} out0, in0;", s, d)
    for s, d in [("f16", "f32"), ("bf16", "f32"), ("f16", "f64"), ("bf16", "f64"), ("f32", "f64")]:
        flushes = ("", ".ftz") if "f32" in {s, d} and "bf16" not in {s, d} else ("",)
        for ftz, sat in product(flushes, ("",) if s == "bf16" else ("", ".sat")):
            yield form(f"cvt{ftz}{sat}.{d}.{s} out0, in0;", s, d)
    for t, rounding in product(("f16", "f32", "f64", "bf16"), TO_INTEGER):
        for ftz, sat in product(("", ".ftz") if t == "f32" else ("",), ("",) if t == "bf16" else ("", ".sat")):
            yield form(f"cvt.{rounding}{ftz}{sat}.{t}.{t} out0, in0;", t, t, 256)
    for t in ("f16", "f32", "f64"):
        yield form(f"cvt.sat.{t}.{t} out0, in0;", t, t, 256)
    yield form("cvt.ftz.f32.f32 out0, in0;", "f32", "f32", 256)
    yield form("cvt.ftz.sat.f32.f32 out0, in0;", "f32", "f32", 256)


def packed() -> Iterator[Form]:
    for d, rounding, relu, finite in product(("f16", "bf16"), ("rn", "rz"), ("", ".relu"), ("", ".satfinite")):
        yield form(f"cvt.{rounding}{relu}{finite}.{d}.f32 out0, in0;", "f32", "b16")
        yield form(f"cvt.{rounding}{relu}{finite}.{d}x2.f32 out0, in0, in1;", "f32 f32", "b32")
    for rounding, relu, finite in product(("rn", "rz", "rna"), ("", ".relu"), ("", ".satfinite")):
        if not (relu if rounding == "rna" else finite):
            yield form(f"cvt.{rounding}{relu}{finite}.tf32.f32 out0, in0;", "f32", "b32")
    for d, relu in product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        yield form(f"cvt.rn.satfinite{relu}.{d}.f32 out0, in0, in1;", "f32 f32", "b16", 1024)
        yield form(f"cvt.rn.satfinite{relu}.{d}.f16x2 out0, in0;", "f16x2", "b16", 2048)
        yield form(f"cvt.rn{relu}.f16x2.{d} out0, in0;", f"{d}:all", "b32", 2048)


FORMS = (*integers(), *float_to_integer(), *integer_to_float(), *float_to_float(), *packed())
