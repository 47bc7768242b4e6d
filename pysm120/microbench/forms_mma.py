"""mma.sync: every kind, block scales, selectors, sparse forms, and operands shared by chains or not."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pysm120.microbench.form import LANES, Form, Model, Operand, Words

# One, in every type, repeated over a register.
ONES = {
    "bf16": 0x3F803F80,
    "f16": 0x3C003C00,
    "tf32": 0x3F800000,
    "e4m3": 0x38383838,
    "e5m2": 0x3C3C3C3C,
    "e2m1": 0x08080808,  # in bytes, as kind::f8f6f4 has it
    "e3m2": 0x0C0C0C0C,
    "e2m3": 0x08080808,
    "e2m1x8": 0x22222222,
    "s8": 0x01010101,
    "u8": 0x01010101,
    "s4": 0x11111111,
    "b1": 0xFFFFFFFF,
    "f64": 0x3FF0000000000000,
}
# Bits that may be set in random operands: no NaN, no infinity.
MASKS = {"e4m3": 0xB7B7B7B7, "e5m2": 0xBBBBBBBB, "e2m1": 0x3C3C3C3C, "e3m2": 0x3F3F3F3F, "e2m3": 0x3F3F3F3F}
BITS = {"bf16": 16, "f16": 16, "tf32": 32, "e2m1x8": 4, "s4": 4, "b1": 1, "f64": 64}
SCALE_ONE = {"ue8m0": 0x7F7F7F7F, "ue4m3": 0x38383838}
MOVES = 9  # registers of a call that are moved there and back
METADATA = 0x44444444  # metadata: of every four elements (or two pairs of pairs) the first two


def _random(kind: str) -> Any:
    """Return a function that draws random operands of a type: a chip's power and clock depend on the operands."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Words:
        if kind in {"bf16", "f16"}:
            dtype = ml_dtypes.bfloat16 if kind == "bf16" else np.float16
            values = rng.standard_normal((*shape, 2), np.float32).astype(dtype)
            return values.view(np.uint16).view(np.uint32).reshape(shape)
        if kind == "tf32":
            return rng.standard_normal(shape, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
        if kind == "f64":
            return rng.standard_normal((shape[0] // 2, LANES)).view(np.uint32).reshape(shape)
        return rng.integers(0, 1 << 32, shape, np.uint32) & np.uint32(MASKS.get(kind, 0xFFFFFFFF))

    return draw


def _adds(per_step: int, acc: str) -> Model:
    """Return the model of accumulators that begin at 0: products of ones."""

    def after(_: Words, steps: int) -> Words:
        total = per_step * steps
        if acc == "f16":
            half = int(np.float16(total).view(np.uint16))
            return np.full((2, LANES), half << 16 | half, np.uint32)
        if acc == "f64":
            bits = int(np.float64(total).view(np.uint64))
            return np.array([[bits & 0xFFFFFFFF], [bits >> 32]] * 2, np.uint32).repeat(LANES, axis=1)
        word = total if acc == "s32" else int(np.float32(total).view(np.uint32))
        return np.full((4, LANES), word, np.uint32)

    return after


def _form(
    name: str,
    sass: str | Mapping[str, Any],
    *,
    shape: tuple[int, int, int],
    types: tuple[str, str, str],
    qualifiers: str = "",
    scales: tuple[str, str, str] | None = None,
    sparse: str = "",
    own: str = "",
    vary: bool = False,
    more: str = "",
    needs: tuple[int, ...] = (),
    oldest: int = 80,
    note: str = "",
    chains: tuple[int, ...] = (1, 2, 4, 8),
    besides: float | Mapping[str, float] = 0.0,
    is_conditional: bool = False,
) -> Form:
    """Return a form of mma: accumulator, A and B types; ``own`` names the operands that every chain has separately."""
    m, n, k = shape
    acc, a, b = types
    operands: dict[str, Operand] = {}
    for letter, kind, rows in (("A", a, m), ("B", b, n)):
        per_register = 32 // BITS.get(kind, 8) if kind != "f64" else 1
        depth = k // 2 if sparse and letter == "A" else k
        count = rows * depth // per_register // LANES
        register = "b64" if kind == "f64" else "b32"
        is_own = letter in own or (vary and letter == "B")
        operands[letter] = Operand(register, count, ONES[kind], is_own, is_vector=True, random=_random(kind))
    tail = ""
    if sparse:
        operands["E"] = Operand("b32", 1, METADATA)
        tail += ", E, 0"
    if scales:
        kind, select_a, select_b = scales
        operands["S"] = Operand("b32", 1, SCALE_ONE[kind])
        operands["T"] = Operand("b32", 1, SCALE_ONE[kind])
        if "Z" in select_a:
            operands["Z"] = Operand("b16", 1, 0)
        tail += f", S, {{{select_a}}}, T, {{{select_b}}}"
    types_text = f"{acc}.{a.removesuffix('x8')}.{b.removesuffix('x8')}.{acc}"
    lines = [f"mma{sparse}.sync.aligned.m{m}n{n}k{k}.row.col{qualifiers}.{types_text}{more} X, A, B, X{tail};"]
    if vary:
        operands["V"] = Operand("b32", 1, 0)
        lines = [f"xor.b32 B{i}, B{i}, V;" for i in range(operands["B"].count)] + lines
    state = Operand("b64" if acc == "f64" else "b32", 2 if acc in {"f16", "f64"} else 4, 0, is_vector=True)
    return Form(
        name=name,
        group="mma",
        lines=tuple(lines),
        sass=sass,
        state=state,
        inputs=operands,
        model=_adds(k // 2 if sparse else k, acc),
        amount=2 * m * n * k,
        unit="op" if acc == "s32" else "flop",
        needs=needs,
        oldest=oldest,
        chains=chains,
        warps=(1, 4, 8, 16),
        unroll=16,
        has_latency=not vary,  # emulated products start from 0, so only their sums wait for each other
        besides=besides,
        is_conditional=is_conditional,
        note=note,
    )


def _simple(name: str, sass: str | Mapping[str, Any], **more: Any) -> Form:
    """Return a form from its name: "m16n8k16 f32.bf16.bf16"."""
    shape, types = name.split()[:2]
    m, n, k = map(int, re.findall(r"\d+", shape))
    acc, a, b = types.split(".")[:3]
    return _form(name, sass, shape=(m, n, k), types=(acc, a, b), **more)


def _dense() -> list[Form]:
    """Return the forms that every supported chip has."""
    forms = [
        _simple("m16n8k16 f32.bf16.bf16", r"HMMA\.16816\.F32\.BF16"),
        _simple("m16n8k8 f32.bf16.bf16", r"HMMA\.1688\.F32\.BF16"),
        _simple("m16n8k16 f32.f16.f16", r"HMMA\.16816\.F32"),
        _simple("m16n8k8 f32.f16.f16", r"HMMA\.1688\.F32"),
        _simple("m16n8k16 f16.f16.f16", r"HMMA\.16816\.F16"),
        _simple("m16n8k8 f16.f16.f16", r"HMMA\.1688\.F16"),
        _simple("m16n8k8 f32.tf32.tf32", r"HMMA\.1688\.F32\.TF32"),
        _simple("m16n8k4 f32.tf32.tf32", r"HMMA\.1684\.F32\.TF32"),
        _simple("m16n8k32 s32.s8.s8", r"IMMA\.16832\.S8\.S8"),
        _simple("m16n8k16 s32.s8.s8", r"IMMA\.16816\.S8\.S8"),
        _simple("m16n8k32 s32.u8.s8 satfinite", r"IMMA\.16832\.U8\.S8\.SAT", qualifiers=".satfinite"),
        _simple("m16n8k64 s32.s4.s4", {"80": r"IMMA\.16864\.S4\.S4", "": r"CALL\.REL\.NOINC"}, besides=MOVES, note="emulated by a subroutine where it is a CALL"),
        _simple("m16n8k256 s32.b1.b1 and.popc", {"80": r"BMMA\.168256\.AND\.POPC", "90": r"BMMA\.168256\.AND\.POPC", "": r"CALL\.REL\.NOINC"},
                more=".and.popc", besides={"120": MOVES}, note="emulated by a subroutine where it is a CALL"),
        _simple("m8n8k4 f64.f64.f64", r"DMMA\.(8x8x4|884)"),
    ]  # fmt: skip
    for own, text in (("B", "A shared, B of each chain"), ("AB", "A and B of each chain")):
        forms.append(_simple(f"m16n8k16 f32.bf16.bf16 {text}", r"HMMA\.16816\.F32\.BF16", own=own))
    return forms


def _fp8() -> list[Form]:
    """Return fp8 without a kind: an instruction on SM120, f16 products on Hopper."""
    forms = []
    for acc in ("f32", "f16"):
        for k, a, b in ((32, "e4m3", "e4m3"), (32, "e5m2", "e5m2"), (32, "e4m3", "e5m2"), (16, "e4m3", "e4m3")):
            name = f"m16n8k{k} {acc}.{a}.{b}"
            native = rf"QMMA\.168{k}\.{acc.upper()}\.{a.upper()}\.{b.upper()}"
            forms.append(_simple(name, native, needs=(80, 120), oldest=89))
            half = r"HMMA\.16816\." if k == 32 else r"HMMA\.1688\."
            emulated = {half + acc.upper(): 2, r"F2FP\.F16\.E\dM\d\.UNPACK_B": (k // 8, 8)}
            note = "emulated: f16 products; B changes in every step, A does not"
            forms.append(_simple(name, {"90": emulated}, needs=(90,), vary=True, besides=6, note=note))
    return forms


def _f8f6f4() -> list[Form]:
    """Return kind::f8f6f4: any two types of 8, 6 and 4 bits."""
    pairs = [("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e2m1"), ("e2m1", "e2m1"), ("e3m2", "e2m3"), ("e2m3", "e4m3")]
    forms = []
    for acc, a, b in [*(("f32", *pair) for pair in pairs), ("f16", "e4m3", "e4m3"), ("f16", "e2m1", "e2m1")]:
        sass = rf"QMMA\.16832\.{acc.upper()}\.{a.upper()}\.{b.upper()}"
        forms.append(_simple(f"m16n8k32 {acc}.{a}.{b} f8f6f4", sass, qualifiers=".kind::f8f6f4", needs=(120,)))
    forms.append(
        _simple(
            "m16n8k16 f32.e4m3.e4m3 f8f6f4", r"QMMA\.16816\.F32\.E4M3\.E4M3", qualifiers=".kind::f8f6f4", needs=(120,)
        )
    )
    return forms


def _scaled() -> list[Form]:
    """Return the block-scaled kinds."""
    forms = []
    pairs = [("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2"), ("e4m3", "e2m1"), ("e2m1", "e2m1"), ("e3m2", "e2m3")]
    selected = {
        "": ("0, 0", "0, 0"),
        " selectors 3,1 2,3": ("3, 1", "2, 3"),
        " selectors in registers": ("Z, Z", "Z, Z"),
    }
    for a, b in pairs:
        for text, (select_a, select_b) in selected.items():
            if text and (a, b) != ("e4m3", "e4m3"):
                continue
            forms.append(_simple(
                f"m16n8k32 f32.{a}.{b} mxf8f6f4{text}", rf"QMMA\.SF\.16832\.F32\.{a.upper()}\.{b.upper()}\.E8",
                qualifiers=".kind::mxf8f6f4.block_scale.scale_vec::1X", more=".ue8m0",
                scales=("ue8m0", select_a, select_b), needs=(120,),
                chains=(1, 2) if "registers" in text else (1, 2, 4, 8),
                besides=6 if "registers" in text else 0, is_conditional="registers" in text))  # fmt: skip
    kinds = [("mxf4", "2X", "ue8m0", "E8", "2, 1", "2, 3"), ("mxf4nvf4", "2X", "ue8m0", "E8", "", ""),
             ("mxf4nvf4", "4X", "ue4m3", r"UE4M3\.4X", "0, 1", "0, 3")]  # fmt: skip
    for kind, vector, scale, ending, select_a, select_b in kinds:
        for text, chosen in (("", ("0, 0", "0, 0")), (f" selectors {select_a} {select_b}", (select_a, select_b))):
            if not chosen[0]:
                continue
            forms.append(_simple(
                f"m16n8k64 f32.e2m1x8.e2m1x8 {kind} {vector} {scale}{text.replace(', ', ',')}",
                rf"OMMA\.SF\.16864\.F32\.E2M1\.E2M1\.{ending}",
                qualifiers=f".kind::{kind}.block_scale.scale_vec::{vector}", more=f".{scale}",
                scales=(scale, *chosen), needs=(120,)))  # fmt: skip
    return forms


def _sparse() -> list[Form]:
    """Return 2:4 sparse forms; the work is counted as if they were dense."""
    sp, note = ".sp::ordered_metadata", "2:4 sparse, counted as dense"
    rows: list[tuple[str, Any, dict[str, Any]]] = [
        ("m16n8k32 f32.bf16.bf16 sp", r"HMMA\.SP\.16832\.F32\.BF16", {}),
        ("m16n8k32 f32.f16.f16 sp", r"HMMA\.SP\.16832\.F32", {}),
        ("m16n8k64 s32.s8.s8 sp", r"IMMA\.SP\.16864\.S8\.S8", {}),
        ("m16n8k64 f32.e4m3.e4m3 sp", r"QMMA\.SP\.16864\.F32\.E4M3\.E4M3", {"needs": (80, 120), "oldest": 89}),
        ("m16n8k64 f32.e4m3.e4m3 sp", {"90": {r"HMMA\.SP\.16832\.F32": 2}},
         {"needs": (90,), "vary": True, "besides": 68, "chains": (1,),
          "note": "2:4 sparse, counted as dense; emulated: f16 products, B changes in every step"}),
        ("m16n8k64 f32.e4m3.e4m3 sp f8f6f4", r"QMMA\.SP\.16864\.F32\.E4M3\.E4M3",
         {"qualifiers": ".kind::f8f6f4", "needs": (120,)}),
        ("m16n8k64 f32.e4m3.e4m3 sp mxf8f6f4", r"QMMA\.SF\.SP\.16864\.F32\.E4M3\.E4M3\.E8",
         {"qualifiers": ".kind::mxf8f6f4.block_scale.scale_vec::1X", "more": ".ue8m0",
          "scales": ("ue8m0", "0, 0", "0, 0"), "needs": (120,)}),
        ("m16n8k128 f32.e2m1x8.e2m1x8 sp mxf4", r"OMMA\.SF\.SP\.168128\.F32\.E2M1\.E2M1\.E8",
         {"qualifiers": ".kind::mxf4.block_scale.scale_vec::2X", "more": ".ue8m0",
          "scales": ("ue8m0", "0, 0", "0, 0"), "needs": (120,)}),
        ("m16n8k128 f32.e2m1x8.e2m1x8 sp mxf4nvf4 2X", r"OMMA\.SF\.SP\.168128\.F32\.E2M1\.E2M1\.E8",
         {"qualifiers": ".kind::mxf4nvf4.block_scale.scale_vec::2X", "more": ".ue8m0",
          "scales": ("ue8m0", "0, 0", "0, 0"), "needs": (120,)}),
        ("m16n8k128 f32.e2m1x8.e2m1x8 sp mxf4nvf4 4X", r"OMMA\.SF\.SP\.168128\.F32\.E2M1\.E2M1\.UE4M3\.4X",
         {"qualifiers": ".kind::mxf4nvf4.block_scale.scale_vec::4X", "more": ".ue4m3",
          "scales": ("ue4m3", "0, 0", "0, 0"), "needs": (120,)}),
    ]  # fmt: skip
    return [_simple(name, sass, sparse=sp, **{"note": note, **more}) for name, sass, more in rows]


def _own() -> list[Form]:
    """Return SM120's kinds with separate A and B for each chain: the cost of operands that are not shared."""
    chosen = {
        "m16n8k32 f32.e4m3.e4m3 f8f6f4",
        "m16n8k32 f32.e4m3.e4m3 mxf8f6f4",
        "m16n8k64 f32.e2m1x8.e2m1x8 mxf4nvf4 4X ue4m3",
    }
    shared = [form for form in (*_f8f6f4(), *_scaled()) if form.name in chosen]
    return [
        dataclasses.replace(
            form,
            name=f"{form.name}, A and B of each chain",
            inputs={x: dataclasses.replace(operand, is_own=x in "AB") for x, operand in form.inputs.items()},
        )
        for form in shared
    ]


FORMS = [*_dense(), *_fp8(), *_f8f6f4(), *_scaled(), *_sparse(), *_own()]
