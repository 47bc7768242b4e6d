"""Floating-point forms: every rounding, .ftz and .sat of f32, f64, f16 and bf16, and the approximate functions."""

from collections.abc import Iterator

from form import Form, form
from operands import product

ROUNDINGS = ("rn", "rz", "rm", "rp")
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]


def single() -> Iterator[Form]:
    for op, rounding, ftz, sat in product(("add", "sub", "mul", "fma"), ROUNDINGS, ("", ".ftz"), ("", ".sat")):
        count = 3 if op == "fma" else 2
        sources = ", ".join(f"in{k}" for k in range(count))
        yield form(f"{op}.{rounding}{ftz}{sat}.f32 out0, {sources};", " ".join(["f32"] * count), "f32", 768)
    for op, rounding, ftz in product(("div", "rcp", "sqrt"), ROUNDINGS, ("", ".ftz")):
        sources, kinds = ("in0, in1", "f32 f32") if op == "div" else ("in0", "f32")
        yield form(f"{op}.{rounding}{ftz}.f32 out0, {sources};", kinds, "f32", 768)
    for ftz in ("", ".ftz"):
        for op in ("add", "sub", "mul"):
            yield form(f"{op}{ftz}.f32 out0, in0, in1;", "f32 f32", "f32")
        for op in ("neg", "abs"):
            yield form(f"{op}{ftz}.f32 out0, in0;", "f32", "f32", 256)
        for op, nan, sign in product(("min", "max"), ("", ".NaN"), ("", ".xorsign.abs")):
            yield form(f"{op}{ftz}{nan}{sign}.f32 out0, in0, in1;", "f32 f32", "f32", 768)
        for comparison in COMPARISONS:
            yield form(f"setp.{comparison}{ftz}.f32 out0|out1, in0, in1;", "f32 f32", "p p")
        for d in ("u32", "s32", "f32"):
            yield form(f"set.leu{ftz}.{d}.f32 out0, in0, in1;", "f32 f32", d)
        for bits in ("32", "64"):
            text = f"slct{ftz}.f{bits}.f32 out0, in0, in1, in2;"
            yield form(text, f"f{bits} f{bits} f32", f"f{bits}", 256)


def double() -> Iterator[Form]:
    for op, rounding in product(("add", "sub", "mul", "fma"), ROUNDINGS):
        count = 3 if op == "fma" else 2
        sources = ", ".join(f"in{k}" for k in range(count))
        yield form(f"{op}.{rounding}.f64 out0, {sources};", " ".join(["f64"] * count), "f64", 768)
    for op, rounding in product(("div", "rcp", "sqrt"), ROUNDINGS):
        sources, kinds = ("in0, in1", "f64 f64") if op == "div" else ("in0", "f64")
        yield form(f"{op}.{rounding}.f64 out0, {sources};", kinds, "f64")
    for op in ("neg", "abs"):
        yield form(f"{op}.f64 out0, in0;", "f64", "f64", 256)
    for op in ("min", "max"):
        yield form(f"{op}.f64 out0, in0, in1;", "f64 f64", "f64")
    for comparison in COMPARISONS:
        yield form(f"setp.{comparison}.f64 out0|out1, in0, in1;", "f64 f64", "p p")
    for d in ("u32", "s32", "f32"):
        yield form(f"set.gtu.{d}.f64 out0, in0, in1;", "f64 f64", d)


def half(t: str) -> Iterator[Form]:
    """Make the forms of f16, f16x2, bf16 or bf16x2."""
    bits = "b32" if t.endswith("x2") else "b16"
    brain = t.startswith("bf16")
    flushes = ("",) if brain else ("", ".ftz")
    for op, ftz, sat in product(("add", "sub", "mul"), flushes, ("",) if brain else ("", ".sat")):
        yield form(f"{op}{ftz}{sat}.{t} out0, in0, in1;", f"{t} {t}", bits, 768)
        yield form(f"{op}.rn{ftz}{sat}.{t} out0, in0, in1;", f"{t} {t}", bits, 256)
    for ftz, mode in product(flushes, ("", ".relu") if brain else ("", ".sat", ".relu")):
        yield form(f"fma.rn{ftz}{mode}.{t} out0, in0, in1, in2;", f"{t} {t} {t}", bits, 1024)
    for op, ftz in product(("neg", "abs"), flushes):
        yield form(f"{op}{ftz}.{t} out0, in0;", t, bits, 256)
    for op, ftz, nan, sign in product(("min", "max"), flushes, ("", ".NaN"), ("", ".xorsign.abs")):
        yield form(f"{op}{ftz}{nan}{sign}.{t} out0, in0, in1;", f"{t} {t}", bits)
    for ftz, comparison in product(flushes, COMPARISONS):
        out = "p p"
        if t in {"f16", "bf16"}:
            yield form(f"setp.{comparison}{ftz}.{t} out0, in0, in1;", f"{t} {t}", "p")
        else:
            yield form(f"setp.{comparison}{ftz}.{t} out0|out1, in0, in1;", f"{t} {t}", out)
        text = f"setp.ne.u32 p, in2, 0; setp.{comparison}.xor{ftz}.{t} " + (
            "out0, in0, in1, p;" if out != "p p" or bits == "b16" else "out0|out1, in0, in1, p;"
        )
        if comparison in {"lt", "neu"}:
            yield form(text, f"{t} {t} u32:1", "p" if bits == "b16" else "p p", 256)
    targets = {"f16": ("u16", "s16", "f16", "u32", "s32"), "bf16": ("u16", "s16", "bf16", "u32", "s32")}
    for ftz, d in product(flushes, targets.get(t, (t,))):
        size = "b16" if d.endswith("16") else "b32"
        yield form(f"set.geu{ftz}.{d}.{t} out0, in0, in1;", f"{t} {t}", size)


def tiny() -> Iterator[Form]:
    """Make results just below the least normal: are they flushed before or after they are rounded?"""
    first, second = "add.u32 t0, in0, 0x00800000;", "shl.b32 t1, in0, 1; sub.u32 t1, 0x3f800000, t1;"
    for rounding, sat in product(ROUNDINGS, ("", ".sat")):
        yield form(f"{first} {second} mul.{rounding}.ftz{sat}.f32 out0, t0, t1;", "u32:1,99", "b32", 256)
        text = f"{first} {second} mov.b32 f0, in1; fma.{rounding}.ftz{sat}.f32 out0, t0, t1, f0;"
        yield form(text, "u32:1,99 u32:0,1", "b32", 256)
    for rounding in ROUNDINGS:
        text = f"{first} add.u32 t1, in0, in1; add.u32 t1, t1, 0x3f800000; div.{rounding}.ftz.f32 out0, t0, t1;"
        yield form(text, "u32:0,99 u32:0,2", "b32", 256)
    for sat in ("", ".sat"):
        text = "cvt.u16.u32 h0, in0; cvt.u16.u32 h1, in1; add.u16 h0, h0, 0x0400; sub.u16 h1, 0x3c00, h1;"
        yield form(f"{text} mul.ftz{sat}.f16 out0, h0, h1;", "u32:0,99 u32:0,199", "b16")
        yield form(f"{text} mov.b16 h2, 0x8000; fma.rn.ftz{sat}.f16 out0, h0, h1, h2;", "u32:0,99 u32:0,199", "b16")


def tests() -> Iterator[Form]:
    for t in ("f32", "f64"):
        for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield form(f"testp.{test}.{t} out0, in0;", t, "p", 256)
        yield form(f"copysign.{t} out0, in0, in1;", f"{t} {t}", t)
        text = f"setp.ne.u32 p, in2, 0; selp.{t} out0, in0, in1, p;"
        yield form(text, f"{t} {t} u32:1", t, 256)


def approximate() -> Iterator[Form]:
    spans = {
        "sin": "-6.28318,6.28318",
        "cos": "-6.28318,6.28318",
        "ex2": "-130,130",
        "lg2": "0.25,4",
        "tanh": "-9,9",
        "rcp": "-4,4",
        "rsqrt": "0,8",
        "sqrt": "0,8",
    }
    for op, span in spans.items():
        for ftz in ("", ".ftz") if op != "tanh" else ("",):
            yield form(f"{op}.approx{ftz}.f32 out0, in0;", "f32", "f32", 1024, bound=op)
            yield form(f"{op}.approx{ftz}.f32 out0, in0;", f"f32:{span}", "f32", 2048, bound=op)
    for op in ("sin", "cos"):
        yield form(f"{op}.approx.f32 out0, in0;", "f32:-314,314", "f32", 1024, bound=op)
    for op, ftz in product(("div.approx", "div.full"), ("", ".ftz")):
        yield form(f"{op}{ftz}.f32 out0, in0, in1;", "f32 f32", "f32", 2048, bound=op)
    yield form("rcp.approx.ftz.f64 out0, in0;", "f64", "f64", 1024, bound="rcp.f64")
    for ftz in ("", ".ftz"):
        yield form(f"rsqrt.approx{ftz}.f64 out0, in0;", "f64", "f64", 1024, bound=f"rsqrt{ftz}.f64")
    for t in ("f16", "f16x2", "bf16", "bf16x2"):
        bits = "b32" if t.endswith("x2") else "b16"
        if t.startswith("f16"):
            yield form(f"ex2.approx.{t} out0, in0;", t, bits, 2048, bound=f"ex2.{t}")
        else:
            yield form(f"ex2.approx.ftz.{t} out0, in0;", t, bits, 2048, bound=f"ex2.{t}")
        yield form(f"tanh.approx.{t} out0, in0;", t, bits, 2048, bound=f"tanh.{t}")


HALVES = tuple(form for t in ("f16", "f16x2", "bf16", "bf16x2") for form in half(t))
FORMS = (*single(), *double(), *tiny(), *tests())
APPROXIMATE = tuple(approximate())
