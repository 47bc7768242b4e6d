"""Conversions in one direction: f32 to packs of 8, 6 and 4 bits and of scales, and such packs to f16 or bf16."""

from typing import Any

import ml_dtypes
import numpy as np

from pysm120.microbench.form import LANES, Form, Operand
from pysm120.microbench.forms_math import bits, constant, repeated

F32, U32 = np.float32, np.uint32
DTYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}
LARGEST = {"e2m3": 7.5, "e3m2": 28.0, "e2m1": 6.0}
POSITIVE = 0x1F1F  # two numbers of six bits without their signs


def _form(name: str, lines: tuple[str, ...], sass: Any, start: int, step: Any, **more: Any) -> Form:
    return Form(
        name=name,
        group="math",
        lines=lines,
        sass=sass,
        state=Operand("b32", 1, start),
        model=repeated(step, U32),
        unroll=more.pop("unroll", 31),
        chains=(1, 2, 4),
        **more,
    )


def _encoded(values: Any, kind: str) -> Any:
    """Return the codes of f32 numbers, saturated, the nearest; scales are rounded up."""
    if kind == "ue8m0":
        return (np.ceil(np.log2(values)) + 127).astype(U32)
    return np.clip(values, -LARGEST[kind], LARGEST[kind]).astype(DTYPES[kind]).view(np.uint8).astype(U32)


def _decoded(codes: Any, kind: str, dtype: Any) -> Any:
    """Return the 16 bits of the numbers with these codes."""
    return codes.astype(np.uint8).view(DTYPES[kind]).astype(F32).astype(dtype).view(np.uint16).astype(U32)


def _packs() -> list[Form]:
    """Return conversions of f32 to packs: the packs of a step fill a register, which is the next step's f32."""
    forms = []
    # Every pack has another constant, 0x3f or 0x3e, because the assembler merges equal conversions.
    for kind, values in (("e2m3", (-7.5, -7.0)), ("e3m2", (-28.0, -24.0)), ("ue8m0", (2.0**-64, 2.0**-65))):
        name = f"cvt.{'rp' if kind == 'ue8m0' else 'rn'}.satfinite.{kind}x2.f32"
        lines: tuple[str, ...] = (
            "{ .reg .b16 low, high;",
            f"{name} low, A, X;",
            f"{name} high, B, X;",
            "mov.b32 X, {low, high}; }",
        )

        def pack(x: Any, kind: str = kind) -> Any:
            return _encoded(x.view(F32), kind) * U32(0x10001) | U32(0x3E003F00)

        opcode = "E8" if kind == "ue8m0" else kind.upper()
        forms.append(_form(f"{name}, twice", lines, {rf"F2FP\.SATFINITE\.{opcode}\.F32\.PACK_AB_MERGE_C(\.RP)?": 2}, bits(3.0), pack,
                           inputs={letter: constant(bits(value)) for letter, value in zip("AB", values, strict=True)}, amount=4 * LANES, needs=(120,)))  # fmt: skip
    name = "cvt.rn.satfinite.e2m1x2.f32"
    lines = ("{ .reg .b8 p<4>;", *(f"{name} p{i}, {'ABCD'[i]}, X;" for i in range(4)), "mov.b32 X, {p0, p1, p2, p3}; }")
    forms.append(_form(f"{name}, four times", lines, {r"F2FP\.SATFINITE\.E2M1\.F32\.PACK_AB_MERGE_C": 4}, bits(3.0),
                       lambda x: _encoded(x.view(F32), "e2m1") * U32(0x1010101) | U32(0x40302010),
                       inputs={letter: constant(bits(value)) for letter, value in zip("ABCD", (0.5, 1.0, 1.5, 2.0), strict=True)},
                       amount=8 * LANES, needs=(120,), unroll=15))  # fmt: skip
    return forms


def _unpacks() -> list[Form]:
    """Return conversions of packs to f16 or bf16: half of a result is the next pack; 6-bit packs have zeros above."""
    forms = []
    for kind in ("e4m3", "e5m2", "e2m3", "e3m2", "ue8m0"):
        is_six, into = kind in {"e2m3", "e3m2"}, "bf16" if kind == "ue8m0" else "f16"
        dtype = ml_dtypes.bfloat16 if into == "bf16" else np.float16
        half = "and.b32 pair, X, A; mov.b32 {low, pack}, pair;" if is_six else "cvt.u16.u32 pack, X;"
        lines = ("{ .reg .b32 pair; .reg .b16 low, pack;", half, f"cvt.rn.{into}x2.{kind}x2 X, pack; }}")

        def unpack(x: Any, kind: str = kind, dtype: Any = dtype, *, is_six: bool = is_six) -> Any:
            pack = x >> U32(16) & U32(POSITIVE) if is_six else x
            return _decoded(pack & U32(255), kind, dtype) | _decoded(pack >> U32(8) & U32(255), kind, dtype) << U32(16)

        opcode = "E8" if kind == "ue8m0" else kind.upper()
        forms.append(_form(f"cvt.rn.{into}x2.{kind}x2", lines, rf"F2FP\.{into.upper()}\.{opcode}\.UNPACK_B", bits(1.5, dtype), unpack,
                           inputs={"A": constant(POSITIVE << 16)} if is_six else {}, amount=2 * LANES,
                           needs=() if kind in {"e4m3", "e5m2"} else (120,), oldest=89, besides=int(is_six),
                           note="with a mask between" if is_six else ""))  # fmt: skip
    lines = ("{ .reg .b8 p<4>;", "mov.b32 {p0, p1, p2, p3}, X;", "cvt.rn.f16x2.e2m1x2 X, p3; }")

    def unpack_4(x: Any) -> Any:
        low, high = (x >> U32(24) & U32(15), x >> U32(28))
        return _decoded(low, "e2m1", np.float16) | _decoded(high, "e2m1", np.float16) << U32(16)

    forms.append(_form("cvt.rn.f16x2.e2m1x2", lines, r"F2FP\.F16\.E2M1\.UNPACK_B", bits(1.5, np.float16), unpack_4,
                       amount=2 * LANES, needs=(120,)))  # fmt: skip
    forms.append(_form("cvt.f32.bf16", ("{ .reg .b16 low, high;", "mov.b32 {low, high}, X;", "cvt.f32.bf16 X, low;", "xor.b32 X, X, A; }"),
                       r"IMAD\.U32|IMAD\.SHL\.U32|SHF\.L\.U32|SHL|PRMT", 7, lambda x: x << U32(16) ^ U32(0x12345678),
                       inputs={"A": constant(0x12345678)}, besides=1, note="with an xor between"))  # fmt: skip
    return forms


FORMS = [*_packs(), *_unpacks()]
