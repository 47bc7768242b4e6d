"""Arithmetic of the virtual SM120 against NumPy, with random and corner operands."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from micro import HEAD, kernel, run, values

import pysm120

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tools")]

import build  # noqa: E402

pytestmark = pytest.mark.virtual

U16, U32, U64, S16, S32, S64 = "u2", "u4", "u8", "i2", "i4", "i8"
F16, F32, F64 = "f2", "f4", "f8"
M32 = 0xFFFFFFFF


def flush(x: Any) -> Any:
    """Flush subnormals to a signed zero."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x).astype(np.float32)


def flushed_product(a: Any, b: Any) -> Any:
    """Multiply with .ftz: what is below the least normal after rounding with an unbounded exponent is flushed."""
    exact = flush(a).astype(np.float64) * flush(b)
    return np.where(np.abs(exact) < 2.0**-126 * (1 - 2.0**-25), np.copysign(0, exact), exact)


def wide(function: Callable[..., int], *arrays: Any) -> Any:
    """Apply a function of Python integers to every element."""
    return np.array([function(*(int(v) for v in row)) for row in zip(*arrays, strict=True)], object)


def cut(bits: int, function: Callable[..., int]) -> Callable[..., Any]:
    """Compute with Python integers and keep the low bits."""
    return lambda *arrays: (wide(function, *arrays) & ((1 << bits) - 1)).astype(f"u{bits // 8}")


def quotient(a: int, b: int) -> int:
    """Divide, rounding toward zero; by zero, all ones."""
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    """Remainder with the sign of a; by zero, all ones."""
    return -1 if b == 0 else a - quotient(a, b) * b


def prmt(a: int, b: int, c: int) -> int:
    """Permute bytes."""
    octets = (a | b << 32).to_bytes(8, "little")
    out = [octets[c >> 4 * k & 7] for k in range(4)]
    return int.from_bytes([255 * (x >> 7) if c >> 4 * k & 8 else x for k, x in enumerate(out)], "little")


def bfe(a: int, b: int, c: int, bits: int, signed: bool) -> int:
    """Extract a bit field as the manual's pseudo code does; in 64 bits the operands are not cut to bytes."""
    position, length, top = (b & 255, c & 255, 31) if bits == 32 else (b, c, 63)
    sign = 0 if not signed or length == 0 else a >> min(position + length - 1, top) & 1
    out = 0
    for k in range(bits):
        out |= (a >> position + k & 1 if k < length and position + k <= top else sign) << k
    return out


def bfi(a: int, b: int, c: int, d: int, bits: int) -> int:
    """Insert a bit field as the manual's pseudo code does; in 64 bits the operands are not cut to bytes."""
    position, length, out = (c & 255, d & 255, b) if bits == 32 else (c, d, b)
    for k in range(min(length, bits)):
        if position + k < bits:
            out = out & ~(1 << position + k) | (a >> k & 1) << position + k
    return out


def lop3(a: int, b: int, c: int) -> int:
    """(a & b) ^ ~c, of which the table is 0x6a ^ ..., computed bit by bit."""
    table, out = 0x6A, 0
    for k in range(32):
        out |= (table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k
    return out


def dot4(a: int, b: int, c: int) -> int:
    """Sum the products of signed bytes."""
    x, y = (np.frombuffer(v.to_bytes(4, "little"), np.int8).astype(int) for v in (a, b))
    return c + int(x @ y)


def differences(width: int, signed: bool) -> Callable[[int, int], list[int]]:
    """Return the function that gives |a - b| of all parts of this width."""
    kind = f"{'i' if signed else 'u'}{width // 8}"

    def apply(a: int, b: int) -> list[int]:
        x, y = (np.frombuffer(v.to_bytes(4, "little"), kind).astype(int) for v in (a, b))
        return [int(d) for d in abs(x - y)]

    return apply


def placed(parts: Callable[[int, int], list[int]], width: int) -> Callable[[int, int, int], int]:
    """Put the parts beside one another."""
    return lambda a, b, _: sum(d << width * k for k, d in enumerate(parts(a, b)))


def summed(parts: Callable[[int, int], list[int]]) -> Callable[[int, int, int], int]:
    """Add the parts to the third operand."""
    return lambda a, b, c: c + sum(parts(a, b))


def f32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute in f32 without warnings."""

    def apply(*arrays: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arrays).astype(np.float32)

    return apply


def fma(a: Any, b: Any, c: Any) -> Any:
    """Fused multiply-add in f32: exact in long double but for rare double rounding, which the inputs avoid."""
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)


# name, body, kinds of the inputs, kind of the output, reference
ROWS: list[tuple[str, str, list[str], str, Callable[..., Any]]] = [
    ("add.u16", "add.u16 out0, in0, in1;", [U16, U16], U16, cut(16, lambda a, b: a + b)),
    ("add.u32", "add.u32 out0, in0, in1;", [U32, U32], U32, cut(32, lambda a, b: a + b)),
    ("add.u64", "add.u64 out0, in0, in1;", [U64, U64], U64, cut(64, lambda a, b: a + b)),
    (
        "add.sat",
        "add.sat.s32 out0, in0, in1;",
        [S32, S32],
        S32,
        lambda a, b: np.clip(a.astype(np.int64) + b, -(2**31), 2**31 - 1).astype(np.int32),
    ),
    ("min.s32.relu", "min.s32.relu out0, in0, in1;", [S32, S32], S32, lambda a, b: np.maximum(np.minimum(a, b), 0)),
    (
        "max.s16x2.relu",
        "max.s16x2.relu out0, in0, in1;",
        [U32, U32],
        U32,
        lambda a, b: np.maximum(np.maximum(a.view(S16), b.view(S16)), 0).astype(S16).view(U32),
    ),
    ("sub.imm", "sub.s32 out0, in0, -7;", [S32], S32, cut(32, lambda a: a + 7)),
    ("mul.lo", "mul.lo.s32 out0, in0, in1;", [S32, S32], U32, cut(32, lambda a, b: a * b)),
    ("mul.lo.u64", "mul.lo.u64 out0, in0, in1;", [U64, U64], U64, cut(64, lambda a, b: a * b)),
    ("mul.hi.u32", "mul.hi.u32 out0, in0, in1;", [U32, U32], U32, cut(32, lambda a, b: a * b >> 32)),
    ("mul.hi.s32", "mul.hi.s32 out0, in0, in1;", [S32, S32], U32, cut(32, lambda a, b: a * b >> 32)),
    ("mul.hi.u64", "mul.hi.u64 out0, in0, in1;", [U64, U64], U64, cut(64, lambda a, b: a * b >> 64)),
    ("mul.hi.s64", "mul.hi.s64 out0, in0, in1;", [S64, S64], U64, cut(64, lambda a, b: a * b >> 64)),
    ("mul.hi.s16", "mul.hi.s16 out0, in0, in1;", [S16, S16], U16, cut(16, lambda a, b: a * b >> 16)),
    ("mul.wide.s32", "mul.wide.s32 out0, in0, in1;", [S32, S32], U64, cut(64, lambda a, b: a * b)),
    ("mul.wide.u16", "mul.wide.u16 out0, in0, in1;", [U16, U16], U32, cut(32, lambda a, b: a * b)),
    ("mad.lo", "mad.lo.u32 out0, in0, in1, in2;", [U32, U32, U32], U32, cut(32, lambda a, b, c: a * b + c)),
    ("mad.hi.s32", "mad.hi.s32 out0, in0, in1, in2;", [S32, S32, S32], U32, cut(32, lambda a, b, c: (a * b >> 32) + c)),
    ("mad.wide.s32", "mad.wide.s32 out0, in0, in1, in2;", [S32, S32, S64], U64, cut(64, lambda a, b, c: a * b + c)),
    ("div.s32", "div.s32 out0, in0, in1;", [S32, S32], U32, cut(32, quotient)),
    ("div.u64", "div.u64 out0, in0, in1;", [U64, U64], U64, cut(64, quotient)),
    ("div.s16", "div.s16 out0, in0, in1;", [S16, S16], U16, cut(16, quotient)),
    ("rem.s64", "rem.s64 out0, in0, in1;", [S64, S64], U64, cut(64, remainder)),
    ("rem.u32", "rem.u32 out0, in0, in1;", [U32, U32], U32, cut(32, remainder)),
    ("abs.s32", "abs.s32 out0, in0;", [S32], U32, cut(32, abs)),
    ("neg.s64", "neg.s64 out0, in0;", [S64], U64, cut(64, lambda a: -a)),
    ("min.s32", "min.s32 out0, in0, in1;", [S32, S32], S32, np.minimum),
    ("max.u32", "max.u32 out0, in0, in1;", [U32, U32], U32, np.maximum),
    ("max.s16", "max.s16 out0, in0, in1;", [S16, S16], S16, np.maximum),
    ("sad.s32", "sad.s32 out0, in0, in1, in2;", [S32, S32, U32], U32, cut(32, lambda a, b, c: c + abs(a - b))),
    *[
        (
            f"vabsdiff{32 // width}_{t}{add}",
            f"vabsdiff{32 // width}.u32.{t}32.{t}32{add} out0, in0, in1, in2;",
            [U32, U32, U32],
            U32,
            cut(32, summed(differences(width, t == "s")) if add else placed(differences(width, t == "s"), width)),
        )
        for width in (8, 16)
        for t in "us"
        for add in ("", ".add")
    ],
    ("dp4a", "dp4a.s32.s32 out0, in0, in1, in2;", [U32, U32, U32], U32, cut(32, dot4)),
    (
        "add.cc",
        "add.cc.u32 out0, in0, in1; addc.u32 out1, in2, in2;",
        [U32, U32, U32],
        U32,
        cut(32, lambda a, b, c: 2 * c + (a + b >> 32)),
    ),
    ("sub.cc.carry", "sub.cc.u32 t0, in0, in1; addc.u32 out0, 0, 0;", [U32, U32], U32, cut(32, lambda a, b: a >= b)),
    ("sub.cc", "sub.cc.u64 w0, in0, in1; subc.u64 out0, 5, 1;", [U64, U64], U64, cut(64, lambda a, b: 4 - (a < b))),
    (
        "addc.cc",
        "add.cc.u32 t0, in0, in0; addc.cc.u32 t1, in1, in1; addc.u32 out0, 0, 0;",
        [U32, U32],
        U32,
        cut(32, lambda x, y: (x | y << 32) * 2 >> 64),
    ),
    (
        "mad.cc",
        "mad.lo.cc.u32 t0, in0, in1, in2; madc.hi.u32 out0, in0, in1, 0;",
        [U32, U32, U32],
        U32,
        cut(32, lambda a, b, c: a * b + c >> 32),
    ),
    (
        "mul24",
        "mul24.lo.s32 out0, in0, in1;",
        [S32, S32],
        U32,
        cut(32, lambda a, b: ((a & 0xFFFFFF ^ 0x800000) - 0x800000) * ((b & 0xFFFFFF ^ 0x800000) - 0x800000)),
    ),
    ("and.b64", "and.b64 out0, in0, in1;", [U64, U64], U64, np.bitwise_and),
    ("or.b16", "or.b16 out0, in0, in1;", [U16, U16], U16, np.bitwise_or),
    ("xor.b32", "xor.b32 out0, in0, 0x5555AAAA;", [U32], U32, lambda a: a ^ np.uint32(0x5555AAAA)),
    ("not.b16", "not.b16 out0, in0;", [U16], U16, np.invert),
    ("cnot.b32", "cnot.b32 out0, in0;", [U32], U32, lambda a: (a == 0).astype(np.uint32)),
    ("shl.b32", "shl.b32 out0, in0, in1;", [U32, U32], U32, cut(32, lambda a, b: a << b if b < 32 else 0)),
    ("shl.b64", "shl.b64 out0, in0, in1;", [U64, U32], U64, cut(64, lambda a, b: a << b if b < 64 else 0)),
    ("shr.u32", "shr.u32 out0, in0, in1;", [U32, U32], U32, cut(32, lambda a, b: a >> b)),
    ("shr.s32", "shr.s32 out0, in0, in1;", [S32, U32], U32, cut(32, lambda a, b: a >> min(b, 31))),
    ("shr.s16", "shr.s16 out0, in0, in1;", [S16, U32], U16, cut(16, lambda a, b: a >> min(b, 15))),
    ("shr.s64", "shr.s64 out0, in0, in1;", [S64, U32], U64, cut(64, lambda a, b: a >> min(b, 63))),
    (
        "shf.l.wrap",
        "shf.l.wrap.b32 out0, in0, in1, in2;",
        [U32, U32, U32],
        U32,
        cut(32, lambda a, b, c: (a | b << 32) << (c & 31) >> 32),
    ),
    (
        "shf.r.clamp",
        "shf.r.clamp.b32 out0, in0, in1, in2;",
        [U32, U32, U32],
        U32,
        cut(32, lambda a, b, c: (a | b << 32) >> min(c, 32)),
    ),
    ("lop3", "lop3.b32 out0, in0, in1, in2, 0x6a;", [U32, U32, U32], U32, cut(32, lop3)),
    ("bfe.u32", "bfe.u32 out0, in0, in1, in2;", [U32, U32, U32], U32, cut(32, lambda a, b, c: bfe(a, b, c, 32, False))),  # noqa: FBT003
    ("bfe.s32", "bfe.s32 out0, in0, in1, in2;", [U32, U32, U32], U32, cut(32, lambda a, b, c: bfe(a, b, c, 32, True))),  # noqa: FBT003
    ("bfe.s64", "bfe.s64 out0, in0, in1, in2;", [U64, U32, U32], U64, cut(64, lambda a, b, c: bfe(a, b, c, 64, True))),  # noqa: FBT003
    (
        "bfi.b32",
        "bfi.b32 out0, in0, in1, in2, in3;",
        [U32, U32, U32, U32],
        U32,
        cut(32, lambda a, b, c, d: bfi(a, b, c, d, 32)),
    ),
    (
        "bfi.b64",
        "bfi.b64 out0, in0, in1, in2, in3;",
        [U64, U64, U32, U32],
        U64,
        cut(64, lambda a, b, c, d: bfi(a, b, c, d, 64)),
    ),
    ("bfind.u32", "bfind.u32 out0, in0;", [U32], U32, cut(32, lambda a: a.bit_length() - 1)),
    ("bfind.s64", "bfind.s64 out0, in0;", [S64], U32, cut(32, lambda a: (a if a >= 0 else ~a).bit_length() - 1)),
    ("brev.b32", "brev.b32 out0, in0;", [U32], U32, cut(32, lambda a: int(f"{a:032b}"[::-1], 2))),
    ("brev.b64", "brev.b64 out0, in0;", [U64], U64, cut(64, lambda a: int(f"{a:064b}"[::-1], 2))),
    ("clz.b64", "clz.b64 out0, in0;", [U64], U32, cut(32, lambda a: 64 - a.bit_length())),
    ("popc.b32", "popc.b32 out0, in0;", [U32], U32, cut(32, lambda a: a.bit_count())),
    ("popc.b64", "popc.b64 out0, in0;", [U64], U32, cut(32, lambda a: a.bit_count())),
    ("prmt", "prmt.b32 out0, in0, in1, in2;", [U32, U32, U32], U32, cut(32, prmt)),
    (
        "prmt.f4e",
        "prmt.b32.f4e out0, in0, in1, in2;",
        [U32, U32, U32],
        U32,
        cut(32, lambda a, b, c: (a | b << 32) >> 8 * (c & 3)),
    ),
    (
        "szext",
        "szext.clamp.s32 out0, in0, in1;",
        [U32, U32],
        U32,
        cut(32, lambda a, b: a if b > 31 else 0 if b == 0 else ((a & (1 << b) - 1) ^ (1 << b - 1)) - (1 << b - 1)),
    ),
    (
        "bmsk",
        "bmsk.clamp.b32 out0, in0, in1;",
        [U32, U32],
        U32,
        cut(32, lambda a, b: 0 if a > 31 else ((1 << min(b, 32)) - 1) << a),
    ),
    ("selp", "setp.lt.s32 p, in0, in1; selp.b32 out0, in0, in1, p;", [S32, S32], S32, np.minimum),
    ("slct", "slct.u32.s32 out0, in0, in1, in2;", [U32, U32, S32], U32, lambda a, b, c: np.where(c >= 0, a, b)),
    (
        "set",
        "set.gt.u32.s32 out0, in0, in1;",
        [S32, S32],
        U32,
        lambda a, b: np.where(a > b, np.uint32(M32), np.uint32(0)),
    ),
    ("set.f32", "set.le.f32.f32 out0, in0, in1;", [F32, F32], F32, lambda a, b: (a <= b).astype(np.float32)),
    (
        "setp.dual",
        "setp.ltu.f32 p|q, in0, in1; selp.u32 t0, 1, 0, p; selp.u32 t1, 2, 0, q; add.u32 out0, t0, t1;",
        [F32, F32],
        U32,
        lambda a, b: np.where(~(a >= b), np.uint32(1), np.uint32(2)),
    ),
    (
        "setp.and",
        "setp.ne.u32 p, in0, 0; setp.gt.and.u32 q, in0, in1, !p; selp.u32 out0, 1, 0, q;",
        [U32, U32],
        U32,
        lambda a, b: ((a > b) & (a == 0)).astype(np.uint32),
    ),
    (
        "setp.xor",
        "setp.hi.u32 p, in0, 9; setp.eq.xor.u32 q|r, in0, in1, p; selp.u32 t0, 1, 0, q; selp.u32 out0, 2, t0, r;",
        [U32, U32],
        U32,
        lambda a, b: np.where((a != b) ^ (a > 9), np.uint32(2), ((a == b) ^ (a > 9)).astype(np.uint32)),
    ),
    (
        "setp.f64",
        "setp.num.f64 p, in0, in1; setp.geu.f64 q, in0, in1; and.pred p, p, q; selp.u32 out0, 1, 0, p;",
        [F64, F64],
        U32,
        lambda a, b: (a >= b).astype(np.uint32),
    ),
    (
        "setp.f16",
        "setp.gt.f16 p, in0, in1; selp.u32 out0, 1, 0, p;",
        [F16, F16],
        U32,
        lambda a, b: (a > b).astype(np.uint32),
    ),
    (
        "testp",
        "testp.subnormal.f32 p, in0; testp.notanumber.f32 q, in0; xor.pred p, p, q; not.pred p, p; selp.u32 out0, 1, 0, p;",  # noqa: E501
        [F32],
        U32,
        lambda a: (~(((np.abs(a) < np.finfo(np.float32).tiny) & (a != 0)) | np.isnan(a))).astype(np.uint32),
    ),
    (
        "copysign",
        "copysign.f32 out0, in0, in1;",
        [F32, F32],
        F32,
        lambda a, b: ((a.view("u4") & 0x80000000) | (b.view("u4") & 0x7FFFFFFF)).view("f4"),
    ),
    ("add.f32", "add.f32 out0, in0, in1;", [F32, F32], F32, f32(np.add)),
    ("add.ftz", "add.ftz.f32 out0, in0, in1;", [F32, F32], F32, f32(lambda a, b: flush(flush(a) + flush(b)))),
    ("sub.f32", "sub.rn.f32 out0, in0, in1;", [F32, F32], F32, f32(np.subtract)),
    ("mul.f32", "mul.f32 out0, in0, in1;", [F32, F32], F32, f32(np.multiply)),
    (
        "mul.sat",
        "mul.sat.f32 out0, in0, in1;",
        [F32, F32],
        F32,
        f32(lambda a, b: np.nan_to_num(np.clip(a * b, 0, 1)) + np.float32(0)),
    ),
    ("mul.ftz", "mul.ftz.f32 out0, in0, in1;", [F32, F32], F32, f32(flushed_product)),
    ("div.rn", "div.rn.f32 out0, in0, in1;", [F32, F32], F32, f32(np.divide)),
    ("fma.rn", "fma.rn.f32 out0, in0, in1, in2;", [F32, F32, F32], F32, f32(fma)),
    ("sqrt.rn", "sqrt.rn.f32 out0, in0;", [F32], F32, f32(np.sqrt)),
    ("rcp.rn", "rcp.rn.f32 out0, in0;", [F32], F32, f32(lambda a: np.float32(1) / a)),
    ("min.f32", "min.f32 out0, in0, in1;", [F32, F32], F32, f32(np.fmin)),
    ("max.NaN", "max.NaN.f32 out0, in0, in1;", [F32, F32], F32, f32(np.maximum)),
    ("max3", "max.f32 out0, in0, in1, in2;", [F32, F32, F32], F32, f32(lambda a, b, c: np.fmax(np.fmax(a, b), c))),
    ("neg.f32", "neg.f32 out0, in0;", [F32], F32, f32(np.negative)),
    ("add.f64", "add.f64 out0, in0, in1;", [F64, F64], F64, np.add),
    ("div.f64", "div.rn.f64 out0, in0, in1;", [F64, F64], F64, np.divide),
    ("sqrt.f64", "sqrt.rn.f64 out0, in0;", [F64], F64, np.sqrt),
    ("add.f16", "add.f16 out0, in0, in1;", [F16, F16], F16, np.add),
    ("mul.f16", "mul.f16 out0, in0, in1;", [F16, F16], F16, np.multiply),
    (
        "fma.f16",
        "fma.rn.f16 out0, in0, in1, in2;",
        [F16, F16, F16],
        F16,
        lambda a, b, c: (a.astype("f8") * b + c).astype("f2"),
    ),
    (
        "fma.f32x2",
        "mov.b64 w0, {in0, in1}; fma.rn.f32x2 w1, w0, w0, w0; mov.b64 {t0, out0}, w1;",
        [F32, F32],
        F32,
        f32(lambda _, b: fma(b, b, b)),
    ),
    (
        "mixed",
        "cvt.u16.u32 h0, in0; add.f32.f16 out0, h0, in1;",
        [U32, F32],
        F32,
        f32(lambda a, b: a.astype("u2").view("f2").astype("f4") + b),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows(device: pysm120.Device, rng: np.random.Generator, row: tuple[Any, ...]) -> None:
    _, body, inputs, output, reference = row
    operands = [values(rng, kind if kind[0] == "f" else "u" + kind[1]).view(kind) for kind in inputs]
    sizes = [output, "u4"] if "out1" in body else [output]
    got = run(device, body, operands, sizes)[len(sizes) - 1].view(output)
    want = reference(*operands)
    if output[0] == "f":
        assert np.array_equal(np.isnan(got), np.isnan(want))
        same = np.isnan(want) | (got.view(f"u{got.itemsize}") == want.astype(output).view(f"u{got.itemsize}"))
        same |= (got == want) & (got == 0) & ("min" in body or "max" in body)
    else:
        same = got.view(f"u{got.itemsize}") == want.view(f"u{got.itemsize}")
    assert same.all(), [(x[~same][:4], got[~same][:4], want[~same][:4]) for x in operands]


def test_the_rows_are_ptx(tmp_path: Path) -> None:
    """What is tested here is what ptxas takes."""
    entries = [
        kernel(f"row_{k}", body, [int(kind[1]) for kind in inputs], [int(output[1])] * (2 if "out1" in body else 1))
        for k, (_, body, inputs, output, _) in enumerate(ROWS)
    ]
    path = tmp_path / "rows.ptx"
    path.write_text(HEAD + "".join(entries))
    build.run([*build.assembler(build.find_nvcc(), "sm_120f"), path, "-o", tmp_path / "rows.cubin"])


APPROXIMATE = [
    ("ex2.approx.f32", np.exp2, (-140, 127), 2.0),
    ("ex2.approx.ftz.f32", np.exp2, (-125, 127), 2.0),
    ("lg2.approx.f32", np.log2, (1e-30, 1e30), 2.0),
    ("rcp.approx.f32", lambda x: 1 / x, (-1e20, 1e20), 1.0),
    ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), (1e-20, 1e20), 1.0),
    ("sqrt.approx.f32", np.sqrt, (0, 1e30), 1.0),
    ("sin.approx.f32", np.sin, (-20, 20), 2.0),
    ("cos.approx.f32", np.cos, (-20, 20), 2.0),
    ("tanh.approx.f32", np.tanh, (-9, 9), 2.0),
]


@pytest.mark.parametrize(("name", "reference", "span", "ulps"), APPROXIMATE, ids=[row[0] for row in APPROXIMATE])
def test_approximations(
    device: pysm120.Device, rng: np.random.Generator, name: str, reference: Any, span: Any, ulps: float
) -> None:
    x = rng.uniform(span[0], span[1], 8192).astype(np.float32)
    if span[1] > 1000:
        x = np.exp(rng.uniform(np.log(max(span[0], 1e-20)), np.log(span[1]), 8192)).astype(np.float32)
    (got,) = run(device, f"{name} out0, in0;", [x], ["f4"])
    want = reference(x.astype(np.float64))
    error = np.abs(got.astype(np.float64) - want) / np.spacing(np.maximum(np.abs(want).astype(np.float32), 2**-126))
    assert error.max() <= ulps


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("ex2.approx.f32", [np.inf, -np.inf, 0, np.nan, 200, -200], [np.inf, 0, 1, np.nan, np.inf, 0]),
        ("lg2.approx.f32", [0, -0.0, -1, np.inf, np.nan, 1], [-np.inf, -np.inf, np.nan, np.inf, np.nan, 0]),
        ("rcp.approx.f32", [0, -0.0, np.inf, -np.inf, np.nan, 2], [np.inf, -np.inf, 0, -0.0, np.nan, 0.5]),
        ("sqrt.approx.f32", [0, -0.0, -1, np.inf, np.nan, 4], [0, -0.0, np.nan, np.inf, np.nan, 2]),
        ("rsqrt.approx.f32", [0, -0.0, -1, np.inf, np.nan, 4], [np.inf, -np.inf, np.nan, 0, np.nan, 0.5]),
        ("sin.approx.f32", [0, -0.0, np.inf, -np.inf, np.nan, 0], [0, -0.0, np.nan, np.nan, np.nan, 0]),
        ("tanh.approx.f32", [0, -0.0, np.inf, -np.inf, np.nan, 1e-30], [0, -0.0, 1, -1, np.nan, 1e-30]),
    ],
)
def test_special_values(device: pysm120.Device, name: str, x: list[float], want: list[float]) -> None:
    padded = np.zeros(32, np.float32)
    padded[: len(x)] = x
    (got,) = run(device, f"{name} out0, in0;", [padded], ["f4"], threads=32)
    np.testing.assert_array_equal(got[: len(x)], np.array(want, np.float32))
    finite = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[: len(x)][finite]), np.signbit(np.array(want)[finite]))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "sqrt", "rcp", "fma"])
def test_directed_rounding(device: pysm120.Device, rng: np.random.Generator, mode: str, op: str) -> None:
    a, b, c = (np.exp2(rng.uniform(-3, 3, 1024)).astype(np.float32) for _ in range(3))
    operands = {"sqrt": "in0", "rcp": "in0", "fma": "in0, in1, in2"}.get(op, "in0, in1")
    (got,) = run(device, f"{op}.{mode}.f32 out0, {operands};", [a, b, c], ["f4"])
    x, y, z = (v.astype(np.longdouble) for v in (a, b, c))
    exact = {
        "add": x + y,
        "sub": x - y,
        "mul": x * y,
        "div": x / y,
        "sqrt": np.sqrt(x),
        "rcp": 1 / x,
        "fma": x * y + z,
    }[op]
    near = exact.astype(np.float32)
    down = np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)
    up = np.where(near < exact, np.nextafter(near, np.float32(np.inf)), near)
    want = {"rn": near, "rm": down, "rp": up, "rz": np.where(exact > 0, down, up)}[mode]
    np.testing.assert_array_equal(got, want)
    if op in ("div", "sqrt", "rcp"):
        return  # a long double does not tell on which side of an f64 the exact result lies
    (double,) = run(device, f"{op}.{mode}.f64 out0, {operands};", [v.astype("f8") for v in (a, b, c)], ["f8"])
    near = exact.astype(np.float64)
    down = np.where(near > exact, np.nextafter(near, -np.inf), near)
    up = np.where(near < exact, np.nextafter(near, np.inf), near)
    np.testing.assert_array_equal(double, {"rn": near, "rm": down, "rp": up, "rz": np.where(exact > 0, down, up)}[mode])
