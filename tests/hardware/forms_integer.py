"""Integer forms: arithmetic, carry chains, logic, shifts, bit fields, byte permutations and comparisons."""

from collections.abc import Iterator

from form import Form, form
from operands import product

SIZES = ("16", "32", "64")
TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")
WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def arithmetic() -> Iterator[Form]:
    for t in TYPES:
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            yield form(f"{op}.{t} out0, in0, in1;", f"{t} {t}", t)
        for op in ("mad.lo", "mad.hi", "sad"):
            yield form(f"{op}.{t} out0, in0, in1, in2;", f"{t} {t} {t}", t)
        for op in ("div", "rem"):
            yield form(f"{op}.{t} out0, in0, in1;", f"{t} {t}", t)
        if t[0] == "s":
            for op in ("abs", "neg"):
                yield form(f"{op}.{t} out0, in0;", t, t)
    for t, wide in WIDE.items():
        yield form(f"mul.wide.{t} out0, in0, in1;", f"{t} {t}", wide)
        yield form(f"mad.wide.{t} out0, in0, in1, in2;", f"{t} {t} {wide}", wide)
    for op in ("add", "sub"):
        yield form(f"{op}.sat.s32 out0, in0, in1;", "s32 s32", "s32")
    yield form("mad.hi.sat.s32 out0, in0, in1, in2;", "s32 s32 s32", "s32")
    for t in ("u32", "s32"):
        for half in ("lo", "hi"):
            yield form(f"mul24.{half}.{t} out0, in0, in1;", f"{t} {t}", t)
            yield form(f"mad24.{half}.{t} out0, in0, in1, in2;", f"{t} {t} {t}", t)
    yield form("mad24.hi.sat.s32 out0, in0, in1, in2;", "s32 s32 s32", "s32")
    for t in ("u16x2", "s16x2"):
        for op in ("add", "min", "max"):
            yield form(f"{op}.{t} out0, in0, in1;", f"{t} {t}", "b32")
    for op in ("min", "max"):
        yield form(f"{op}.relu.s16x2 out0, in0, in1;", "s16x2 s16x2", "b32")
        yield form(f"{op}.relu.s32 out0, in0, in1;", "s32 s32", "b32")
    for a, b in product(("u32", "s32"), ("u32", "s32")):
        yield form(f"dp4a.{a}.{b} out0, in0, in1, in2;", "b32 b32 b32", "b32")
        for half in ("lo", "hi"):
            yield form(f"dp2a.{half}.{a}.{b} out0, in0, in1, in2;", "b32 b32 b32", "b32")
    for count, t, add in product((2, 4), "us", ("", ".add")):
        yield form(f"vabsdiff{count}.u32.{t}32.{t}32{add} out0, in0, in1, in2;", "b32 b32 b32", "b32")


def carries() -> Iterator[Form]:
    for t in ("u32", "s32", "u64", "s64"):
        three, two = f"{t} {t} {t}", f"{t} {t}"
        for op in ("add", "sub"):
            chain = f"{op}.cc.{t} out0, in0, in1; {op}c.cc.{t} out1, in1, in2; {op}c.{t} out2, in2, in0;"
            yield form(chain, three, f"{t} {two}")
        yield form(f"add.cc.{t} out0, in0, in1; subc.{t} out1, in1, in0;", two, two)
        yield form(f"sub.cc.{t} out0, in0, in1; addc.{t} out1, in1, in0;", two, two)
        for a, b in product(("lo", "hi"), ("lo", "hi")):
            chain = f"mad.{a}.cc.{t} out0, in0, in1, in2; madc.{b}.cc.{t} out1, in1, in2, in0; addc.{t} out2, in0, in0;"
            yield form(chain, three, three)
        yield form(f"add.cc.{t} out0, in0, in1; madc.lo.{t} out1, in0, in1, in2;", three, two)


def logic() -> Iterator[Form]:
    for bits in SIZES:
        b = f"b{bits}"
        for op in ("and", "or", "xor"):
            yield form(f"{op}.{b} out0, in0, in1;", f"{b} {b}", b)
        yield form(f"not.{b} out0, in0;", b, b)
        yield form(f"cnot.{b} out0, in0;", b, b)
        yield form(f"shl.{b} out0, in0, in1;", f"{b} shift", b)
        for t in ("b", "u", "s"):
            yield form(f"shr.{t}{bits} out0, in0, in1;", f"{b} shift", b)
    for way, mode in product("lr", ("wrap", "clamp")):
        yield form(f"shf.{way}.{mode}.b32 out0, in0, in1, in2;", "b32 b32 shift", "b32")
    for table in (0x00, 0x01, 0x1E, 0x3C, 0x6A, 0x80, 0x96, 0xCA, 0xD8, 0xE8, 0xF8, 0xFF):
        yield form(f"lop3.b32 out0, in0, in1, in2, {table:#x};", "b32 b32 b32", "b32", 256)
    for op in ("or", "and"):
        text = f"setp.ne.u32 p, in3, 0; lop3.{op}.b32 out0|out1, in0, in1, in2, 0x3c, p;"
        yield form(text, "b32 b32 b32 u32:1", "b32 p", 256)
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield form(f"prmt.b32{mode} out0, in0, in1, in2;", "b32 b32 u32", "b32")


def fields() -> Iterator[Form]:
    for bits in ("32", "64"):
        b = f"b{bits}"
        for t in "us":
            yield form(f"bfe.{t}{bits} out0, in0, in1, in2;", f"{b} shift shift", b, 1024)
            yield form(f"bfind.{t}{bits} out0, in0;", b, "b32")
            yield form(f"bfind.shiftamt.{t}{bits} out0, in0;", b, "b32")
        yield form(f"bfi.{b} out0, in0, in1, in2, in3;", f"{b} {b} shift shift", b, 1024)
        yield form(f"brev.{b} out0, in0;", b, b)
        yield form(f"clz.{b} out0, in0;", b, "b32")
        yield form(f"popc.{b} out0, in0;", b, "b32")
    for mode in ("clamp", "wrap"):
        for t in ("u32", "s32"):
            yield form(f"szext.{mode}.{t} out0, in0, in1;", f"{t} shift", t)
        yield form(f"bmsk.{mode}.b32 out0, in0, in1;", "shift shift", "b32")
    yield form("fns.b32 out0, in0, in1, in2;", "b32 u32:31 b32", "b32")
    yield form("fns.b32 out0, in0, in1, in2;", "b32 u32:31 u32:4", "b32")


def comparisons() -> Iterator[Form]:
    for t in TYPES:
        unsigned = (" lo ls hi hs" if t[0] == "u" else "").split()
        for comparison in ("eq", "ne", "lt", "le", "gt", "ge", *unsigned):
            yield form(f"setp.{comparison}.{t} out0|out1, in0, in1;", f"{t} {t}", "p p")
        for d in ("u32", "s32", "f32"):
            yield form(f"set.lt.{d}.{t} out0, in0, in1;", f"{t} {t}", d)
        for d, op in product(("u32", "f32"), ("and", "or", "xor")):
            text = f"setp.ne.u32 p, in2, 0; set.ge.{op}.{d}.{t} out0, in0, in1, !p;"
            yield form(text, f"{t} {t} u32:1", d, 256)
    for bits, comparison in product(SIZES, ("eq", "ne")):
        yield form(f"setp.{comparison}.b{bits} out0|out1, in0, in1;", f"b{bits} b{bits}", "p p")
    for op in ("and", "or", "xor"):
        text = f"setp.ne.u32 p, in2, 0; setp.gt.{op}.s32 out0|out1, in0, in1, p;"
        yield form(text, "s32 s32 u32:1", "p p", 256)
    for bits in SIZES:
        for t in "bus":
            text = f"setp.ne.u32 p, in2, 0; selp.{t}{bits} out0, in0, in1, p;"
            yield form(text, f"b{bits} b{bits} u32:1", f"b{bits}", 256)
            yield form(f"slct.{t}{bits}.s32 out0, in0, in1, in2;", f"b{bits} b{bits} s32", f"b{bits}", 256)
            for ftz in ("", ".ftz"):
                text = f"slct{ftz}.{t}{bits}.f32 out0, in0, in1, in2;"
                yield form(text, f"b{bits} b{bits} f32", f"b{bits}", 256)
    for op in ("and", "or", "xor"):
        text = f"setp.ne.u32 p, in0, 0; setp.ne.u32 q, in1, 0; {op}.pred out0, p, q; not.pred out1, p;"
        yield form(text, "u32:1 u32:1", "p p", 256)


FORMS = (*arithmetic(), *carries(), *logic(), *fields(), *comparisons())
