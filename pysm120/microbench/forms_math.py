"""Arithmetic: f32, f16 pairs, integers, the special functions, conversions, predication and branches."""

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pysm120.microbench.form import LANES, Form, Model, Operand, Words

F32 = npt.NDArray[np.float32]


def bits(value: float, dtype: Any = np.float32) -> int:
    """Return the bits of a number; 16 bits are repeated in both halves."""
    raw = np.array(value, dtype)
    if raw.itemsize == np.dtype(np.uint16).itemsize:
        return int(raw.view(np.uint16)) * 0x10001
    return int(raw.view(f"u{raw.itemsize}"))


def repeated(step: Callable[[Any], Any], dtype: Any) -> Model:
    """Return a model that computes step by step on the state as numbers of a type."""

    def after(words: Words, steps: int) -> Words:
        state: Any = np.ascontiguousarray(words.T).view(dtype).T  # [number][lane], as a register holds them
        with np.errstate(over="ignore"):
            for _ in range(steps):
                state = np.asarray(step(state)).astype(dtype)
        return np.ascontiguousarray(np.ascontiguousarray(state.T).view(np.uint32).T)

    return after


def _form(
    name: str,
    lines: str | tuple[str, ...],
    sass: str | Mapping[str, Any],
    start: int,
    model: Model,
    *,
    kind: str = "b32",
    inputs: Mapping[str, Operand] | None = None,
    **more: Any,
) -> Form:
    return Form(
        name=name,
        group=more.pop("group", "math"),
        lines=(lines,) if isinstance(lines, str) else lines,
        sass=sass,
        state=Operand(kind, 1, start),
        inputs=inputs or {},
        model=model,
        unroll=more.pop("unroll", 63),  # odd, so that a state that flips in each step ends changed
        chains=more.pop("chains", (1, 2, 4)),
        **more,
    )


def constant(value: int, kind: str = "b32") -> Operand:
    """Return an input."""
    return Operand(kind, 1, value)


def _f32() -> list[Form]:
    """Return arithmetic of f32 and f64."""
    a, b = constant(bits(1.0)), constant(bits(0.25))
    pair = {"A": constant(bits(1.0) * 0x100000001, "b64"), "B": constant(bits(0.25) * 0x100000001, "b64")}
    start = bits(2.0)
    grown = repeated(lambda x: x + np.float32(0.25), np.float32)
    return [
        _form("fma.rn.f32", "fma.rn.f32 X, X, A, B;", "FFMA", start, grown, inputs={"A": a, "B": b}, amount=2 * LANES, unit="flop"),
        _form("add.rn.f32", "add.rn.f32 X, X, A;", "FADD", start, repeated(lambda x: x + np.float32(1), np.float32),
              inputs={"A": a}, unit="flop"),
        _form("mul.rn.f32", "mul.rn.f32 X, X, A;", "FMUL", bits(1.0), repeated(lambda x: x * np.float32(-1), np.float32),
              inputs={"A": constant(bits(-1.0))}, unit="flop"),
        _form("fma.rn.f32x2", "fma.rn.f32x2 X, X, A, B;", {"": {"FFMA2?": 1, "FFMA2": 1}, "120": {"FFMA": 2}},
              start * 0x100000001, grown, kind="b64", inputs=pair, amount=4 * LANES, unit="flop", oldest=100),
        _form("add.rn.f32x2", "add.rn.f32x2 X, X, A;", {"": "FADD2", "120": {"FADD": 2}}, start * 0x100000001,
              repeated(lambda x: x + np.float32(1), np.float32), kind="b64", inputs={"A": pair["A"]},
              amount=2 * LANES, unit="flop", oldest=100),
        _form("max.f32", ("neg.f32 X, X;", "max.f32 X, X, A;"), "FMNMX.*", bits(2.0),
              repeated(lambda x: np.maximum(-x, np.float32(-0.5)), np.float32), inputs={"A": constant(bits(-0.5))}),
        _form("max.f32 of three", ("neg.f32 X, X;", "max.f32 X, X, A, B;"), {"": "FMNMX3.*", "120": {"FMNMX.*": 2}}, bits(2.0),
              repeated(lambda x: np.maximum(-x, np.float32(0.25)), np.float32),
              inputs={"A": constant(bits(-0.5)), "B": b}, oldest=100),
        _form("fma.rn.f64", "fma.rn.f64 X, X, A, B;", "DFMA", bits(2.0, np.float64), repeated(lambda x: x + 0.25, np.float64),
              kind="b64", inputs={"A": constant(bits(1.0, np.float64), "b64"), "B": constant(bits(0.25, np.float64), "b64")},
              amount=2 * LANES, unit="flop", unroll=15),
    ]  # fmt: skip


def _plus(value: float, dtype: Any) -> Model:
    """Return the model that adds a number in every step."""
    return repeated(lambda x: x + np.array(value, dtype), dtype)


def _flipped(dtype: Any) -> Model:
    """Return the model of the larger of -x and -1/2."""
    return repeated(lambda x: np.maximum(-x, np.array(-0.5, dtype)), dtype)


def _pairs() -> list[Form]:
    """Return arithmetic of pairs of 16-bit numbers."""
    forms = []
    for name, dtype in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        ending = r"\.BF16(_V2)?" if name == "bf16x2" else ""
        a, b = constant(bits(1.0, dtype)), constant(bits(0.25, dtype))
        forms += [
            _form(f"fma.rn.{name}", f"fma.rn.{name} X, X, A, B;", rf"HFMA2(\.MMA)?{ending}", bits(2.0, dtype),
                  _plus(0.25, dtype), inputs={"A": a, "B": b}, amount=4 * LANES, unit="flop"),
            _form(f"add.rn.{name}", f"add.rn.{name} X, X, A;", rf"H(ADD2|FMA2)(\.MMA)?{ending}", bits(0, dtype),
                  _plus(1.0, dtype), inputs={"A": constant(bits(1.0, dtype))}, amount=2 * LANES, unit="flop"),
            _form(f"max.{name}", (f"neg.{name} X, X;", f"max.{name} X, X, A;"), rf"V?HMNMX2{ending}.*", bits(2.0, dtype),
                  _flipped(dtype), inputs={"A": constant(bits(-0.5, dtype))}, besides=int(name == "bf16x2"),
                  note="with the negation" if name == "bf16x2" else "",
                  amount=2 * LANES),
        ]  # fmt: skip
    return forms


def _special() -> list[Form]:
    """Return the special functions: their chains stay in a range where the function is not constant."""
    f32 = np.float32

    def mufu(name: str, opcode: str, start: float, step: Callable[[F32], Any], *, negated: bool = False, rtol: float = 1e-4,
             extra: Mapping[str, float] | None = None, **more: Any) -> Form:  # fmt: skip
        lines = ("neg.f32 X, X;",) if negated else ()
        kind = name.rsplit(".", maxsplit=1)[-1]
        return _form(name, (*lines, f"{name} X, X;"), {f"MUFU\\.{opcode}": 1, **(extra or {})}, bits(start),
                     repeated(step, f32), rtol=rtol, unroll=31, amount=LANES if kind == "f32" else 2 * LANES, **more)  # fmt: skip

    forms = [
        mufu("ex2.approx.ftz.f32", "EX2", 0.5, lambda x: np.exp2(-x), negated=True),
        mufu(
            "ex2.approx.f32",
            "EX2",
            0.5,
            lambda x: np.exp2(-x),
            negated=True,
            extra={"FMUL": 2},
            besides=2,
            is_conditional=True,
            note="scaled where the argument is small",
        ),
        _form(
            "lg2.approx.ftz.f32",
            ("add.rn.f32 X, X, A;", "lg2.approx.ftz.f32 X, X;"),
            {r"MUFU\.LG2": 1, "FADD": 1},
            bits(1.0),
            repeated(lambda x: np.log2(x + f32(4)), f32),
            inputs={"A": constant(bits(4.0))},
            rtol=1e-4,
            unroll=31,
            note="with an add between",
        ),
        mufu("rcp.approx.ftz.f32", "RCP", 3.0, lambda x: -1 / x, negated=True),
        mufu("rsqrt.approx.ftz.f32", "RSQ", 2.0, lambda x: 1 / np.sqrt(x)),
        mufu("sqrt.approx.ftz.f32", "SQRT", 2.0, np.sqrt),
        mufu("tanh.approx.f32", "TANH", 1.0, np.tanh, rtol=2e-2),
        mufu("sin.approx.ftz.f32", "SIN", 1.0, np.sin, rtol=2e-2, extra={"FMUL.*": 1}),
        mufu("cos.approx.ftz.f32", "COS", 1.0, np.cos, rtol=1e-3, extra={"FMUL.*": 1}),
    ]
    for kind, dtype, opcode in (("f16x2", np.float16, "F16"), ("bf16x2", ml_dtypes.bfloat16, "BF16(_V2)?")):
        ftz = ".ftz" if kind == "bf16x2" else ""
        forms += [
            _form(f"ex2.approx{ftz}.{kind}", (f"neg.{kind} X, X;", f"ex2.approx{ftz}.{kind} X, X;"),
                  {rf"MUFU\.EX2\.{opcode}": 2}, bits(0.5, dtype), _fixed(dtype, 0.641), rtol=0.02, number=dtype, unroll=31, amount=2 * LANES,
                  besides=2 if kind == "bf16x2" else 0, note="with the negation" if kind == "bf16x2" else ""),
            _form(f"tanh.approx.{kind}", f"tanh.approx.{kind} X, X;", {rf"MUFU\.TANH\.{opcode}": 2}, bits(1.0, dtype),
                  repeated(lambda x: np.tanh(x.astype(np.float32)), dtype), rtol=0.2, number=dtype, unroll=31, amount=2 * LANES),
        ]  # fmt: skip
    return forms


def _fixed(dtype: Any, value: float) -> Model:
    """Return the model of a chain that has come to a fixed point."""
    return lambda words, _: np.full_like(words, bits(value, dtype))


def _integers() -> list[Form]:
    """Return arithmetic of integers."""
    u32 = np.uint32
    a, b = constant(0x9E3779B1), constant(0x7F4A7C15)
    both = {"A": a, "B": b}
    wa, wb = u32(0x9E3779B1), u32(0x7F4A7C15)

    def byte_dot(x: Words) -> Any:
        pairs = [((x >> u32(8 * i) & u32(255)) * u32(0x9E3779B1 >> 8 * i & 255)) for i in range(4)]
        return pairs[0] + pairs[1] + pairs[2] + pairs[3] + wb

    return [
        _form("mad.lo.u32", "mad.lo.u32 X, X, A, B;", "IMAD", 7, repeated(lambda x: x * wa + wb, u32), inputs=both),
        _form("mad.wide.u32", ("{ .reg .b32 low, high;", "mov.b64 {low, high}, X;", "mad.wide.u32 X, low, high, B; }"),
              r"IMAD\.WIDE\.U32", 7, repeated(lambda x: (x >> np.uint64(32)) * (x & np.uint64(0xFFFFFFFF)) + np.uint64(0x9E3779B97F4A7C15),
              np.uint64), kind="b64", inputs={"B": constant(0x9E3779B97F4A7C15, "b64")}, besides={"90": 2}, note="on sm_90 the sum is two instructions of its own"),
        _form("add.u32 of three", ("add.u32 X, X, A;", "add.u32 X, X, B;"), r"IADD3|IADD", 7,
              repeated(lambda x: x + wa + wb, u32), inputs=both),
        _form("lop3.b32", "lop3.b32 X, X, A, B, 0x96;", r"LOP3\.LUT", 7, repeated(lambda x: x ^ wa ^ wb, u32), inputs=both),
        _form("shf.l.wrap.b32", "shf.l.wrap.b32 X, X, A, 7;", r"SHF\..*", 7,
              repeated(lambda x: (wa << u32(7)) | (x >> u32(25)), u32), inputs={"A": a}),
        _form("dp4a.u32.u32", "dp4a.u32.u32 X, X, A, B;", r"IDP\.4A\.U8\.U8", 7, repeated(byte_dot, u32), inputs=both),
        _form("popc.b32", ("xor.b32 X, X, A;", "popc.b32 X, X;"), "POPC", 7,
              repeated(lambda x: _popc(x ^ wa), u32), inputs={"A": a}, unroll=31, besides=1, note="with an xor between"),
        _form("bfind.u32", ("add.u32 X, X, A;", "bfind.u32 X, X;"), r"FLO\..*", 7,
              repeated(lambda x: np.floor(np.log2((x + wa).astype(np.float64))), u32), inputs={"A": a}, unroll=31, besides=1, note="with an add between"),
        _form("max.s32", ("sub.s32 X, A, X;", "max.s32 X, X, B;"), r"V?IMNMX.*|VIADDMNMX.*", 7,
              repeated(lambda x: np.maximum(u32(1000) - x, u32(12)), u32), inputs={"A": constant(1000), "B": constant(12)}, besides={"120": 1}, note="with a difference, on sm_120 an instruction of its own"),
        _form("setp, selp", ("{ .reg .pred p;", "setp.ne.u32 p, X, A;", "selp.b32 X, B, A, p; }"),
              {r"ISETP\..*": (1, 1), "SEL": 1}, 7, repeated(lambda x: np.where(x != u32(3), u32(5), u32(3)), u32),
              inputs={"A": constant(3), "B": constant(5)}),
    ]  # fmt: skip


def _popc(x: Words) -> Any:
    return sum((x >> np.uint32(i)) & np.uint32(1) for i in range(32))


def _conversions() -> list[Form]:
    """Return conversions: packs whose bits are the next step's input, and conversions there and back."""
    f32, u32 = np.float32, np.uint32
    one = constant(bits(1.0))

    def packed(dtype: Any) -> Model:
        word = u32(int(np.array(1, dtype).view(np.uint16)) << 16)
        return repeated(lambda x: word | x.view(f32).astype(dtype).view(np.uint16).astype(u32), u32)

    forms = [
        _form("cvt.rn.bf16x2.f32", "cvt.rn.bf16x2.f32 X, A, X;", r"F2FP\.BF16\.F32\.PACK_AB", bits(3.0), packed(ml_dtypes.bfloat16),
              inputs={"A": one}, amount=2 * LANES),
        _form("cvt.rn.f16x2.f32", "cvt.rn.f16x2.f32 X, A, X;", r"F2FP\.F16\.F32\.PACK_AB", bits(3.0), packed(np.float16),
              inputs={"A": one}, amount=2 * LANES),
        _form("cvt.rna.tf32.f32", ("add.rn.f32 X, X, A;", "cvt.rna.tf32.f32 X, X;"), {r"FSETP\..*": 1, r"LOP3\.LUT": 1},
              bits(3.0), repeated(lambda x: x + f32(1), f32), inputs={"A": one}, unroll=31, besides=2, note="with an add between; rounded by integer instructions"),
        _form("cvt.rn.f32.s32, cvt.rzi.s32.f32", ("cvt.rn.f32.s32 X, X;", "cvt.rzi.s32.f32 X, X;"),
              {r"I2F\w*(\..*)?": 1, r"F2I\w*(\..*)?": 1}, 7, lambda words, _: words, unroll=15, note="there and back", amount=2 * LANES),
    ]  # fmt: skip
    # Two packs of 8-bit numbers fill a register, which is the next step's f32.
    for kind, dtype, opcode in (("e4m3", ml_dtypes.float8_e4m3fn, "E4M3"), ("e5m2", ml_dtypes.float8_e5m2, "E5M2")):
        packs = ("{ .reg .b16 low, high;", f"cvt.rn.satfinite.{kind}x2.f32 low, A, X;",
                 f"cvt.rn.satfinite.{kind}x2.f32 high, B, X;", "mov.b32 X, {low, high}; }")  # fmt: skip

        def pack(x: Any, dtype: Any = dtype) -> Any:
            largest = 448.0 if dtype is ml_dtypes.float8_e4m3fn else 57344.0
            low = np.clip(x.view(f32), -largest, largest).astype(dtype).view(np.uint8).astype(u32)
            high = [u32(int(np.array(value, dtype).view(np.uint8)) << 8) for value in (1, 2)]
            return high[0] | low | (high[1] | low) << u32(16)

        forms.append(_form(f"cvt.rn.satfinite.{kind}x2.f32, twice", packs, {rf"F2FP\.SATFINITE\.{opcode}\.F32\.PACK_AB_MERGE_C": 2},
                           bits(3.0), repeated(pack, u32), inputs={"A": one, "B": constant(bits(2.0))}, amount=4 * LANES, oldest=89))  # fmt: skip
        back = ("{ .reg .b16 low;", f"cvt.rn.satfinite.{kind}x2.f16x2 low, X;", f"cvt.rn.f16x2.{kind}x2 X, low; }}")
        forms.append(_form(f"cvt {kind}x2.f16x2 and back", back, {rf"F2FP\.SATFINITE\.{opcode}\.F16\..*": 1, rf"F2FP\.F16\.{opcode}\.UNPACK_B": 1},
                           bits(1.5, np.float16), lambda words, _: words, amount=4 * LANES, oldest=89, unroll=31))  # fmt: skip
    for kind, register in (("e2m3x2", "b16"), ("e3m2x2", "b16"), ("e2m1x2", "b8")):
        opcode = kind.removesuffix("x2").upper()
        into = (f"cvt.rn.satfinite.{kind}.f32 low, high_f, low_f;",)
        lines = ("{", f".reg .{register} low; .reg .b16 lower, upper; .reg .b32 low_f, high_f;", "mov.b32 {lower, upper}, X;",
                 "cvt.f32.f16 low_f, lower;", "cvt.f32.f16 high_f, upper;", *into, f"cvt.rn.f16x2.{kind} X, low;", "}")  # fmt: skip
        forms.append(_form(f"cvt {kind}.f32 and f16x2.{kind}", lines,
                           {rf"F2FP\.SATFINITE\.{opcode}\.F32\..*": 1, rf"F2FP\.F16\.{opcode}\.UNPACK_B": 1},
                           bits(1.5, np.float16), lambda words, _: words, amount=4 * LANES, needs=(120,), unroll=31,
                           besides=2, note="through f32 from f16"))  # fmt: skip
    scales = ("{ .reg .b16 low;", "cvt.rp.satfinite.ue8m0x2.bf16x2 low, X;", "cvt.rn.bf16x2.ue8m0x2 X, low; }")
    forms.append(_form("cvt ue8m0x2.bf16x2 and back", scales, {r"F2FP\..*E8.*": 2}, bits(2.0, ml_dtypes.bfloat16),
                       lambda words, _: words, amount=4 * LANES, needs=(120,), unroll=31))  # fmt: skip
    return forms


BODY = 16  # instructions that a branch skips


def _control() -> list[Form]:
    """Return what predicates and branches cost, around dependent multiplications."""
    f32 = np.float32
    skipped = tuple("mul.rn.f32 X, X, A;" for _ in range(BODY))
    inputs = {"A": constant(bits(-1.0))}
    lane = np.arange(LANES)
    flips = repeated(lambda x: x * f32(-1), f32)

    def branch(name: str, taken: Any, note: str) -> Form:
        lines = ("{", "@P bra past;", *skipped, "past:", "}")
        return _form(name, lines, {"BRA(\\..*)?": (1, 2), "FMUL": BODY}, bits(1.0), lambda words, _: words,
                     inputs={**inputs, "P": Operand("pred", 1, taken)}, chains=(1,), warps=(1, 4, 8, 16), unroll=15,
                     besides=0.5, is_conditional=True, note=note, amount=LANES)  # fmt: skip

    return [
        _form("@p mul.rn.f32, p true", "@P mul.rn.f32 X, X, A;", "FMUL", bits(1.0), flips,
              inputs={**inputs, "P": Operand("pred", 1, 1)}, is_conditional=True, unit="flop"),
        _form("@p mul.rn.f32, p false", "@P mul.rn.f32 X, X, A;", "FMUL", bits(1.0), lambda words, _: words,
              inputs={**inputs, "P": Operand("pred", 1, 0)}, is_conditional=True),
        branch("bra, taken", 1, f"around {BODY} multiplications"),
        branch("bra, not taken", 0, f"before {BODY} multiplications"),
        branch("bra, half of the lanes", (lane < LANES // 2).astype(np.uint64).reshape(1, LANES), f"around {BODY} multiplications"),
    ]  # fmt: skip


FORMS = [*_f32(), *_pairs(), *_special(), *_integers(), *_conversions(), *_control()]
