"""Forms that act on a warp: shuffles, votes, matches, reductions."""

from collections.abc import Iterator

from form import Form, form
from operands import product

PART = "setp.ge.u32 q, lane, 7; "  # lanes 7 to 31 take part in some forms


def shuffles() -> Iterator[Form]:
    for mode in ("up", "down", "bfly", "idx"):
        for control in (0x00, 0x1F, 0x181F, 0x1C1F, 0x1800, 0x1E07, 0x0013, 0x080F):
            text = f"shfl.sync.{mode}.b32 out0|out1, in0, in1, {control}, 0xffffffff;"
            yield form(text, "b32 shift", "b32 p", 1024)
        yield form(f"shfl.sync.{mode}.b32 out0|out1, in0, in1, in2, -1;", "b32 u32:31 shift", "b32 p", 1024)
        text = f"and.b32 t1, lane, 24; add.u32 t1, t1, 2; shfl.sync.{mode}.b32 out0|out1, in0, t1, 0x1f, -1;"
        yield form(text, "b32", "b32 p")
        text = f"mov.b32 out0, 0; setp.ne.u32 out1, 0, 0; {PART} @q shfl.sync.{mode}.b32 out0|out1, in0, 8, 31, 0xffffff80;"
        if mode != "up":
            continue
        yield form(text.replace("in0, 8", "in0, 0"), "b32", "b32 p")


def votes() -> Iterator[Form]:
    for rule, text in (
        ("1", "setp.ne.u32 p, in0, 0;"),
        ("40", "setp.eq.u32 p, in0, 3;"),
        ("40", "setp.le.u32 p, in0, 99;"),
    ):
        for mode, negate in product(("all", "any", "uni"), ("", "!")):
            yield form(f"{text} vote.sync.{mode}.pred out0, {negate}p, -1;", f"u32:{rule}", "p")
        for negate in ("", "!"):
            yield form(f"{text} vote.sync.ballot.b32 out0, {negate}p, -1;", f"u32:{rule}", "b32")
    text = f"{PART} setp.ne.u32 p, in0, 0; mov.b32 out0, 0; @q vote.sync.ballot.b32 out0, p, 0xffffff80;"
    yield form(text, "u32:1", "b32")
    yield form(f"{PART} mov.b32 out0, 0; @q activemask.b32 out0;", "", "b32")
    yield form("elect.sync out0|out1, -1;", "", "b32 p")
    yield form(f"{PART} mov.b32 out0, 0; setp.ne.u32 out1, 0, 0; @q elect.sync out0|out1, 0xffffff80;", "", "b32 p")


def matches() -> Iterator[Form]:
    for most in (1, 5, 1000):
        yield form("match.any.sync.b32 out0, in0, -1;", f"u32:{most}", "b32")
        yield form("match.any.sync.b64 out0, in0, -1;", f"u64:{most}", "b32")
    for bits in ("32", "64"):
        text = f"shr.u{bits} out1, in0, t0; match.all.sync.b{bits} out0|out2, out1, -1;"
        yield form(f"mov.u32 t0, 1; {text}", f"u{bits}:1", f"b32 b{bits} p")
        yield form(f"mov.u32 t0, 0; {text}", f"u{bits}:1", f"b32 b{bits} p")
    yield form(f"{PART} mov.b32 out0, 0; @q match.any.sync.b32 out0, in0, 0xffffff80;", "u32:3", "b32")


def reductions() -> Iterator[Form]:
    for op in ("add", "min", "max"):
        for t in ("u32", "s32"):
            yield form(f"redux.sync.{op}.{t} out0, in0, -1;", t, t)
            text = f"{PART} mov.b32 out0, 0; @q redux.sync.{op}.{t} out0, in0, 0xffffff80;"
            yield form(text, t, t)
    for op in ("and", "or", "xor"):
        yield form(f"redux.sync.{op}.b32 out0, in0, -1;", "b32", "b32")
    for op in ("and", "or"):
        yield form(f"setp.ne.u32 p, in0, 0; barrier.cta.red.{op}.pred out0, 0, p;", "u32:1", "p")
        yield form(f"setp.le.u32 p, in0, 9; barrier.cta.red.{op}.pred out0, 0, p;", "u32:1", "p")
    yield form("setp.ne.u32 p, in0, 0; barrier.cta.red.popc.u32 out0, 0, p;", "u32:1", "u32")
    for name in ("eq", "le", "lt", "ge", "gt"):
        yield form(f"mov.u32 out0, %lanemask_{name};", "", "u32")


FORMS = (*shuffles(), *votes(), *matches(), *reductions())
