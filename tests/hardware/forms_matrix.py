"""Tensor-core forms that sm_90 and sm_120 share (plain e4m3 and e5m2 products are emulated on sm_90: left out)."""

from collections.abc import Iterator

from form import Form, form
from operands import product


def words(name: str, first: int, count: int) -> str:
    """Write {in3, in4}: a vector of registers."""
    return "{" + ", ".join(f"{name}{k}" for k in range(first, first + count)) + "}"


def mma(shape: str, types: str, kinds: tuple[str, str, str], counts: tuple[int, int, int], lanes: int) -> Form:
    """Make a form: shape with modifiers, "f32.bf16.bf16.f32", kinds and registers of A, B and C."""
    na, nb, nc = counts
    text = f"mma.sync.aligned.{shape}.{types} {words('out', 0, nc)}, {words('in', 0, na)}, {words('in', na, nb)}, {words('in', na + nb, nc)};"
    inputs = " ".join([f"{kinds[0]}:tile"] * na + [f"{kinds[1]}:tile"] * nb + [f"{kinds[2]}:tile"] * nc)
    out = kinds[2] if kinds[2] in {"f32", "f64"} else "b32"
    return form(text, inputs, " ".join([out] * nc), lanes)


def floats() -> Iterator[Form]:
    for k, half in ((8, 2), (16, 4)):
        yield mma(f"m16n8k{k}.row.col", "f32.bf16.bf16.f32", ("bf16x2", "bf16x2", "f32"), (half, half // 2, 4), 1024)
        yield mma(f"m16n8k{k}.row.col", "f32.f16.f16.f32", ("f16x2", "f16x2", "f32"), (half, half // 2, 4), 1024)
        yield mma(f"m16n8k{k}.row.col", "f16.f16.f16.f16", ("f16x2", "f16x2", "f16x2"), (half, half // 2, 2), 1024)
    for k in (4, 8):
        yield mma(f"m16n8k{k}.row.col", "f32.tf32.tf32.f32", ("tf32", "tf32", "f32"), (k // 2, k // 4, 4), 1024)
    yield mma("m8n8k4.row.col", "f64.f64.f64.f64", ("f64", "f64", "f64"), (1, 1, 2), 1024)
    for k in (4, 8, 16):
        yield mma(f"m16n8k{k}.row.col", "f64.f64.f64.f64", ("f64", "f64", "f64"), (k // 2, k // 4, 4), 512)


def integers() -> Iterator[Form]:
    for sat in ("", ".satfinite"):
        for k, count, kinds in ((16, 2, "su"), (32, 4, "su")):
            for a, b in product(kinds, kinds):
                types = f"s32.{a}8.{b}8.s32"
                yield mma(f"m16n8k{k}.row.col{sat}", types, ("b32", "b32", "s32"), (count, count // 2, 4), 256)
        for k, count in ((32, 2), (64, 4)):
            for a, b in product("su", "su"):
                types = f"s32.{a}4.{b}4.s32"
                yield mma(f"m16n8k{k}.row.col{sat}", types, ("b32", "b32", "s32"), (count, count // 2, 4), 256)
        for a, b in product("su", "su"):
            yield mma(f"m8n8k16.row.col{sat}", f"s32.{a}8.{b}8.s32", ("b32", "b32", "s32"), (1, 1, 2), 256)
            yield mma(f"m8n8k32.row.col{sat}", f"s32.{a}4.{b}4.s32", ("b32", "b32", "s32"), (1, 1, 2), 256)
    for op in ("and", "xor"):
        for shape, counts in (("m16n8k128", (2, 1, 4)), ("m16n8k256", (4, 2, 4)), ("m8n8k128", (1, 1, 2))):
            yield mma(f"{shape}.row.col", f"s32.b1.b1.s32.{op}.popc", ("b32", "b32", "s32"), counts, 256)


FORMS = (*floats(), *integers())
