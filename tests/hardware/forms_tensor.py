"""Sparse products and wmma (sparse e4m3 and e5m2 are emulated on sm_90: left out)."""

from collections.abc import Iterator

from form import Form, form
from forms_matrix import mma, words
from operands import product


def sparse(
    shape: str, types: str, kind: str, counts: tuple[int, int], lanes: int, saturate: str = ""
) -> Iterator[Form]:
    """Make the forms of a shape: every sparsity selector of ordered metadata, and the last one of unordered."""
    na, nc = counts
    rule = "halves" if kind == "tf32" else "ordered"
    sums = {"s32": "s32", "f16": "f16x2", "f32": "f32"}[types.rsplit(".", 1)[1]]
    chunks = int(shape.removeprefix("m16n8k")) // {"tf32": 2, "s4": 8, "u4": 8}.get(types.split(".")[1], 4)
    inputs = " ".join([f"{kind}:tile"] * 2 * na + [f"{sums}:tile"] * nc)
    out = "f32" if sums == "f32" else "b32"
    operands = f"{words('out', 0, nc)}, {words('in', 0, na)}, {words('in', na, na)}, {words('in', 2 * na, nc)}, in{2 * na + nc}"
    last = 16 // chunks - 1
    for selector in range(last + 1):
        text = f"mma.sp::ordered_metadata.sync.aligned.{shape}.row.col{saturate}.{types} {operands}, {selector};"
        yield form(text, f"{inputs} b32:{rule}", " ".join([out] * nc), lanes)
    rule = "halves" if kind == "tf32" else "pairs"
    text = f"mma.sp.sync.aligned.{shape}.row.col{saturate}.{types} {operands}, {last};"
    yield form(text, f"{inputs} b32:{rule}", " ".join([out] * nc), lanes)


def all_sparse() -> Iterator[Form]:
    for k, na in ((16, 2), (32, 4)):
        yield from sparse(f"m16n8k{k}", "f32.bf16.bf16.f32", "bf16x2", (na, 4), 512)
        yield from sparse(f"m16n8k{k}", "f32.f16.f16.f32", "f16x2", (na, 4), 512)
        yield from sparse(f"m16n8k{k}", "f16.f16.f16.f16", "f16x2", (na, 2), 512)
    for k, na in ((8, 2), (16, 4)):
        yield from sparse(f"m16n8k{k}", "f32.tf32.tf32.f32", "tf32", (na, 4), 512)
    for bits, depths in ((8, (32, 64)), (4, (64, 128))):
        for depth, na in zip(depths, (2, 4), strict=True):
            for a, b in product("su", "su"):
                saturate = ".satfinite" if a == b else ""
                types = f"s32.{a}{bits}.{b}{bits}.s32"
                yield from sparse(f"m16n8k{depth}", types, "b32", (na, 4), 128, saturate)


SHAPES = {"m16n16k16": (16, 16, 16), "m8n32k16": (8, 32, 16), "m32n8k16": (32, 8, 16), "m16n16k8": (16, 16, 8)}
SHAPES |= {"m8n8k4": (8, 8, 4), "m8n8k32": (8, 8, 32), "m8n8k128": (8, 8, 128)}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "f64": 64, "f32": 32, "s32": 32}
KINDS = {"f16": "f16x2", "bf16": "bf16x2", "tf32": "tf32", "f64": "f64", "f32": "f32", "s32": "s32"}
AREA = 1024  # bytes of shared memory for each of A, B, C and D of a warp


def wmma(shape: str, inputs: str, d: str, c: str, layouts: tuple[str, str], modifier: str = "") -> Form:
    """Make a form: matrices from shared memory, each its lanes' words in order, the product, and D back through it."""
    m, n, k = SHAPES[shape]
    sizes = {"a": (m * k, inputs), "b": (k * n, inputs), "c": (m * n, c), "d": (m * n, d)}
    kinds: list[str] = []
    text = "shr.u32 t0, i, 5; mov.u32 t1, smem; mad.lo.u32 t0, t0, 4096, t1; "
    registers, out_count, out = {}, 0, ""
    for at, (part, (count, kind)) in enumerate(sizes.items()):
        width = 64 if kind == "f64" else 32
        per_lane = count * BITS[kind] // (32 * width)
        held = 8 if kind == "f16" and part in "ab" else per_lane
        register = kind if kind in {"f32", "f64"} else "b32"
        names = [f"{part}{x}_" for x in range(held)]
        registers[part] = "{" + ", ".join(names) + "}"
        text += f".reg .{register} {', '.join(names)}; mad.lo.u32 t{2 + at}, lane, {per_lane * width // 8}, t0; "
        if part == "d":
            out_count, out = per_lane, register
            continue
        for x in range(per_lane):
            move = "f64" if width == 64 else "f32" if KINDS.get(kind) == "f32" else "b32"
            text += f"st.shared.{move} [t{2 + at} + {AREA * at + x * width // 8}], in{len(kinds)}; "
            kinds.append(f"{KINDS.get(kind, 'b32')}:tile")
    text += "bar.warp.sync 0xffffffff; "
    for at, (part, kind, order) in enumerate(
        (("a", inputs, layouts[0]), ("b", inputs, layouts[1]), ("c", c, layouts[0]))
    ):
        text += f"wmma.load.{part}.sync.aligned.{order}.{shape}.shared.{kind} {registers[part]}, [t0 + {AREA * at}]; "
    types = f"{d}.{c}" if inputs == "f16" else f"{d}.{inputs}.{inputs}.{c}"
    before, rounding = (modifier, "") if inputs == "b1" else ("", modifier if inputs == "f64" else "")
    after = modifier if modifier == ".satfinite" else ""
    text += f"wmma.mma{before}.sync.aligned.{'.'.join(layouts)}.{shape}{rounding}.{types}{after} "
    text += ", ".join(registers[part] for part in "dabc") + "; "
    text += f"wmma.store.d.sync.aligned.{layouts[1]}.{shape}.shared.{d} [t0 + {3 * AREA}], {registers['d']}; bar.warp.sync 0xffffffff; "
    size = 8 if d == "f64" else 4
    for x in range(out_count):
        text += f"ld.shared.{out} out{x}, [t5 + {3 * AREA + size * x}]; "
    return form(text, " ".join(kinds), " ".join([out] * out_count), 128, 4 * 4096)


def all_wmma() -> Iterator[Form]:
    both = [(a, b) for a in ("row", "col") for b in ("row", "col")]
    for shape in ("m16n16k16", "m8n32k16", "m32n8k16"):
        for d, c in product(("f16", "f32"), ("f16", "f32")):
            for layouts in both if d == c else both[1:3]:
                yield wmma(shape, "f16", d, c, layouts)
        for layouts in both:
            yield wmma(shape, "bf16", "f32", "f32", layouts)
            yield wmma(shape, "s8", "s32", "s32", layouts)
        yield wmma(shape, "u8", "s32", "s32", ("row", "col"), ".satfinite")
    for layouts in both:
        yield wmma("m16n16k8", "tf32", "f32", "f32", layouts)
        yield wmma("m8n8k4", "f64", "f64", "f64", layouts)
    for rounding in (".rz", ".rm", ".rp"):
        yield wmma("m8n8k4", "f64", "f64", "f64", ("row", "col"), rounding)
    for inputs in ("s4", "u4"):
        yield wmma("m8n8k32", inputs, "s32", "s32", ("row", "col"))
    for operation in (".and.popc", ".xor.popc"):
        yield wmma("m8n8k128", "b1", "s32", "s32", ("row", "col"), operation)
    for rounding in (".rz", ".rm", ".rp"):
        yield mma(f"m8n8k4.row.col{rounding}", "f64.f64.f64.f64", ("f64", "f64", "f64"), (1, 1, 2), 256)


SPARSE = tuple(all_sparse())
WMMA = tuple(all_wmma())
