"""Problems for every operation, small enough for the virtual device, and what float64 makes of them."""

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from pysm120.ops.attention import attention, attention_varlen
from pysm120.ops.attention_backward import attention_backward, attention_varlen_backward
from pysm120.ops.attention_kv_cache import attention_with_kv_cache, merge_states
from pysm120.ops.copy_batch import copy_batch
from pysm120.ops.kv_cache import kv_cache_append, kv_cache_gather
from pysm120.ops.matvec import matvec, matvec_glu
from pysm120.ops.quantize import quantize_mxfp8, quantize_nvfp4, repack_scales
from pysm120.ops.scores import Rules, scores
from pysm120.ops.weights import QuantizedMatrix, dequantize, repack
from pysm120.report import reference
from pysm120.report.bench import Bench, Outcome
from pysm120.runtime.module import builtins

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu
# Bounds of relative errors: about twice what these problems give.
FORWARD = {
    "bf16": 0.004,
    "f16": 0.0006,
    "mxfp8": 0.07,
    "mxfp8_bf16": 0.055,
    "mxfp8_f16": 0.055,
    "nvfp4": 0.25,
    "nvfp4_mxfp8": 0.18,
    "fp8": 0.05,
}
BACKWARD = {"bf16": 0.008, "f16": 0.0012, "mxfp8": 0.15}
BLOCK_SCALED = {"MXFP4": [("mxfp8x2", 0.0015)], "NVFP4": [("nvfp4x3", 0.002)]}  # of products, by weights
NARROWEST, WIDEST = 64, 128  # head sizes of gradients in MXFP8 here
LSE, LSE_16 = 0.02, 1e-4
Outcomes = Iterator[Outcome]
# Lists of arguments have no types that these functions could be checked with.
gradients: Any = attention_backward
varlen_gradients: Any = attention_varlen_backward
append: Any = kv_cache_append


def dtype_of(precision: str) -> Any:
    """Return the dtype of the inputs of a precision."""
    if precision == "fp8":
        return E4M3
    return F16 if precision in {"f16", "mxfp8_f16"} else BF16


def qkv(bench: Bench, shape: tuple[int, int, int, int], keys: int, kv_heads: int, dtype: Any) -> list[Any]:
    """Return q, k and v."""
    batch, _, _, head_dim = shape
    return [
        bench.normal(s, dtype) for s in (shape, (batch, keys, kv_heads, head_dim), (batch, keys, kv_heads, head_dim))
    ]


def loads(bench: Bench) -> Outcomes:
    """Load every kernel of the library; the driver refuses code that this chip cannot run."""
    found = bench.device.builtin_kernels()
    names = np.array([one.entry in found for one in builtins()])
    yield Outcome(f"{len(names)} kernels load", names, np.ones_like(names))


def forward(bench: Bench, precision: str) -> Outcomes:
    """Run every kernel of a precision: two tiles of rows, three of keys, a tail of each; causal where it has masks."""
    for kernel in builtins():
        if kernel.operation not in {"attention", "attention_e5m2"} or kernel.precision != precision:
            continue
        dtype = E5M2 if kernel.operation == "attention_e5m2" else dtype_of(precision)
        scale: dict[str, Any] = {}
        rows, keys = kernel.q_rows + 5, 2 * kernel.kv_rows + 13
        q, k, v = qkv(bench, (1, rows, 2, kernel.head_dim), keys, 1, dtype)
        options: dict[str, Any] = {"causal": True, "softcap": 20.0} if kernel.features else {}
        out, lse = bench.out(q.shape, BF16 if precision == "fp8" else dtype), bench.out((1, 2, rows), F32)
        given = bench.puts(q, k, v)
        if precision == "fp8":
            factors = dict(zip("qkv", (np.array(x, F32) for x in ([0.5, 1.5], [0.75], [2.0])), strict=True))
            scale = {f"{n}_scale": bench.put(x) for n, x in factors.items()}
            q, k, v = (x.astype(F32) * factors[n][:, None] for n, x in zip("qkv", (q, k, v), strict=True))
        scale |= options
        attention(*given, out=out, lse=lse, precision=precision, config=kernel.config or None, **scale)
        wanted, sums = reference.attention(q, k, v, **options)
        yield bench.outcome(kernel.entry, out, wanted, FORWARD[precision])
        yield bench.outcome(f"{kernel.entry}, LSE", lse, sums, LSE if "fp" in precision else LSE_16)


def features(bench: Bench) -> Outcomes:
    """Run each feature of the forward pass, alone."""
    batch, rows, heads, keys = 2, 70, 2, 140
    q, k, v = qkv(bench, (batch, rows, heads, 64), keys, 1, F16)
    cases: dict[str, dict[str, Any]] = {
        "window": {"window": (30, 4)},
        "sinks": {"sinks": np.array([1.0, -2.0], F32)},
        "alibi_slopes": {"alibi_slopes": np.array([0.5, 0.06], F32)},
        "mask": {"mask": bench.normal((batch, heads, rows, keys), F32)},
        "kv_lengths": {"kv_lengths": np.array([77, 3], np.int32)},
    }
    for name, options in cases.items():
        out = bench.out(q.shape, F16)
        given: dict[str, Any] = {n: bench.put(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
        attention(*bench.puts(q, k, v), out=out, **given)
        yield bench.outcome(name, out, reference.attention(q, k, v, **options)[0], FORWARD["f16"])
    out = bench.out(q.shape, F16)
    past = [bench.put(x[:, :40]) for x in (k, v)]
    attention(bench.put(q), bench.put(k[:, 40:]), bench.put(v[:, 40:]), past_k=past[0], past_v=past[1], out=out)
    yield bench.outcome("past", out, reference.attention(q, k, v)[0], FORWARD["f16"])
    wide = [x.astype(F32) for x in (q, k, v)]
    got = attention(*bench.puts(*wide))
    yield bench.outcome("float32 inputs", got, reference.attention(*wide)[0], FORWARD["bf16"])
    odd = [np.ascontiguousarray(x[..., :51]) for x in (q, k, v)]
    got = attention(*bench.puts(*odd))
    yield bench.outcome("head size 51, unaligned rows", got, reference.attention(*odd)[0], FORWARD["f16"])
    ends = np.array([0, 20, 21, 70], np.int32)
    parts = [x[0, :70] for x in (q, k, v)]
    a, b, c, d, e = bench.puts(*parts, ends, ends)
    got = attention_varlen(a, b, c, d, e, 49, 49, causal=True)
    pieces = [slice(a, b) for a, b in itertools.pairwise(ends)]
    wanted = np.concatenate([reference.attention(*(x[None, s] for x in parts), causal=True)[0][0] for s in pieces])
    yield bench.outcome("packed sequences", got, wanted, FORWARD["f16"])


def quantizers(bench: Bench, precision: str) -> Outcomes:
    """Run what quantises operands first, for every dtype; in MXFP8 also at head sizes that are padded."""
    for dtype in (BF16, F16, F32):
        for head_dim in (64, 128) if precision == "nvfp4" else (64, 128, 50, 100, 200):
            q, k, v = qkv(bench, (1, 70, 2, head_dim), 75, 1, dtype)
            out = bench.out(q.shape, dtype)
            given = bench.puts(q, k, v)
            attention(*given, out=out, precision=precision)
            name = f"{precision} from {np.dtype(dtype).name}, head size {head_dim}"
            yield bench.outcome(name, out, reference.attention(q, k, v)[0], FORWARD[precision])
            if precision == "nvfp4" or not NARROWEST <= head_dim <= WIDEST:  # no gradients, or in 64 columns
                continue
            exact, sums = reference.attention(q, k, v)
            dout = bench.normal(q.shape, dtype)
            rest = bench.puts(exact.astype(dtype), sums.astype(F32))
            got = gradients(bench.put(dout), *given, *rest, precision=precision)
            for n, one, wanted in zip(("dq", "dk", "dv"), got, reference.gradients(dout, q, k, v), strict=False):
                yield bench.outcome(f"{name}, {n}", one, wanted, BACKWARD[precision])


def mx_operands(bench: Bench) -> Outcomes:
    """Operands that are MXFP8 already give the bits of the call that quantises them."""
    for head_dim in (64, 128):
        x = [np.ascontiguousarray(y.swapaxes(1, 2)) for y in qkv(bench, (1, 70, 2, head_dim), 75, 1, BF16)]
        q, k, v = bench.puts(*x)
        pairs: list[Any] = [quantize_mxfp8(y, axis=axis) for y, axis in ((q, -1), (k, -1), (v, -2))]
        out = bench.out(x[0].shape, BF16)
        attention(*pairs, out=out, precision="mxfp8", layout="BHSD")
        wanted: Any = attention(q, k, v, precision="mxfp8", layout="BHSD")
        yield bench.outcome(f"mxfp8 from MXFP8, head size {head_dim}", out, wanted.numpy())


def real_data(bench: Bench) -> Outcomes:
    """Run real queries, keys and values, whose scores are peaky."""
    data = reference.minilm()
    for precision in ("f16", "mxfp8"):
        q, k, v = (np.ascontiguousarray(data[f"{name}0"][:1, :256].swapaxes(0, 1))[None] for name in "qkv")
        got = attention(*bench.puts(q, k, v), precision=precision)
        yield bench.outcome(f"all-MiniLM-L6-v2, layer 0, {precision}", got, reference.attention(q, k, v)[0],
                            FORWARD[precision])  # fmt: skip


def score_kernels(bench: Bench) -> Outcomes:
    """Run the kernels that write scores to memory."""
    for dtype in (BF16, F16):
        q, k, _ = qkv(bench, (1, 33, 2, 64), 45, 1, dtype)
        a, b = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k))
        got = scores(a, b, Rules(1 / 8), "softmax", bench.device)
        yield Outcome(f"scores {np.dtype(dtype).name}", got, reference.scores(q, k).p, 1e-3)


def backward(bench: Bench, precision: str) -> Outcomes:
    """Run the gradients at every head size, plain, in a fixed order, and with masks; and those of many heads."""
    dtype = dtype_of(precision)
    sizes = (64, 96, 128) if precision == "mxfp8" else (32, 64, 96, 128, 192, 256)
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        "causal": {"causal": True},
        "deterministic": {},
        "softcap": {"softcap": 20.0},
    }
    problems = [(f"head size {head_dim}", cases, (1, 140, 2, head_dim), 150, 1) for head_dim in sizes]
    many = bench.device.info.multiprocessors + 8  # so many that tiles of 96 keys take fewer waves than tiles of 64
    problems += [("many heads", {"plain": {}}, (1, 33, many, 128), 96, many)] if precision != "mxfp8" else []
    for problem, of_problem, shape, keys, kv_heads in problems:
        q, k, v = qkv(bench, shape, keys, kv_heads, dtype)
        dout = bench.normal(q.shape, dtype)
        for name, options in of_problem.items():
            out, lse = (x.astype(t) for x, t in zip(reference.attention(q, k, v, **options), (dtype, F32), strict=True))
            given = bench.puts(dout, q, k, v, out, lse)
            made: dict[str, Any] = {n: bench.out(x.shape, dtype) for n, x in (("dq", q), ("dk", k), ("dv", v))}
            gradients(*given, precision=precision, deterministic=name == "deterministic", **made, **options)
            for (n, got), wanted in zip(made.items(), reference.gradients(dout, q, k, v, **options), strict=True):
                yield bench.outcome(f"{problem}, {name}, {n}", got, wanted, BACKWARD[precision])


def backward_features(bench: Bench) -> Outcomes:
    """Run gradients of packed sequences, and of sinks."""
    q, k, v = (x[0] for x in qkv(bench, (1, 70, 2, 64), 70, 1, BF16))
    dout, ends = bench.normal(q.shape, BF16), np.array([0, 20, 21, 70], np.int32)
    pieces = [slice(a, b) for a, b in itertools.pairwise(ends)]
    found = [reference.attention(*(x[None, s] for x in (q, k, v))) for s in pieces]
    out = np.concatenate([o[0] for o, _ in found]).astype(BF16)
    lse = np.concatenate([sums[0] for _, sums in found], axis=-1).astype(F32)
    given = bench.puts(dout, q, k, v, out, lse, ends, ends)
    parts = [reference.gradients(*(x[None, s] for x in (dout, q, k, v))) for s in pieces]
    wanted = [np.concatenate([x[0] for x in several]) for several in zip(*parts, strict=True)]
    for precision in ("bf16", "mxfp8"):
        made: Any = varlen_gradients(*given, max_seqlen_q=49, max_seqlen_k=49, precision=precision)
        for name, one, exact in zip(("dq", "dk", "dv"), made, wanted, strict=True):
            yield bench.outcome(f"packed sequences, {precision}, {name}", one, exact, BACKWARD[precision])
    sinks = np.array([1.0, 0.5], F32)
    q, k, v, dout = (x[None] for x in (q, k, v, dout))
    out, lse = (x.astype(t) for x, t in zip(reference.attention(q, k, v, sinks=sinks), (BF16, F32), strict=True))
    given = bench.puts(dout, q, k, v, out, lse)
    share = np.exp(sinks[None, :, None] - lse.astype(np.float64))
    delta = np.moveaxis((dout.astype(np.float64) * out.astype(np.float64)).sum(-1), 2, 1)
    for precision in ("bf16", "mxfp8"):
        got: Any = gradients(*given, sinks=bench.put(sinks), return_dsinks=True, precision=precision)
        exact = -(share * delta).sum((0, 2))
        yield bench.outcome(f"sinks, {precision}, dsinks", got[3], exact, BACKWARD[precision])


def _cache(bench: Bench, kind: str, shape: tuple[int, ...]) -> Any:
    """Return an empty cache: an array, or its elements and scales."""
    if kind == "mxfp8":
        return bench.put(np.zeros(shape, E4M3)), bench.put(np.ones((*shape[:-1], shape[-1] // 32), E8M0))
    if kind == "nvfp4":
        halved, blocks = (*shape[:-1], shape[-1] // 2), (*shape[:-1], shape[-1] // 16)
        return bench.put(np.zeros(halved, np.uint8)), bench.put(np.zeros(blocks, E4M3))
    return bench.put(np.zeros(shape, {"bf16": BF16, "f16": F16, "e4m3": E4M3}[kind]))


def caches(bench: Bench, kind: str, sizes: tuple[int, ...], bound: float) -> Outcomes:
    """Append to a cache in pages, gather it again, and compute attention with what it holds."""
    dtype, page, length, pages = F16 if kind == "f16" else BF16, 16, 75, 6
    slopes = np.array([0.5, 0.06, 0.25, 0.125], F32)
    table, lengths = (
        bench.put(bench.rng.permutation(pages).astype(np.int32)[None]),
        bench.put(np.array([length], np.int32)),
    )
    where = bench.put((16 * table.numpy()[0, np.arange(length) // page] + np.arange(length) % page).astype(np.int64))
    for head_dim in sizes:
        q, k, v = qkv(bench, (1, 9, 4, head_dim), length, 2, dtype)
        shape = (pages, page, 2, head_dim)
        k_cache, v_cache = _cache(bench, kind, shape), _cache(bench, kind, shape)
        kv_cache_append(bench.put(k[0]), bench.put(v[0]), k_cache, v_cache, where)
        held = [bench.out(k.shape, dtype) for _ in range(2)]
        kv_cache_gather(k_cache, v_cache, kv_lengths=lengths, page_table=table, k=held[0], v=held[1])
        for name, got, wanted in zip("kv", held, (k, v), strict=True):
            yield bench.outcome(f"{kind}, head size {head_dim}, gathered {name}", got, wanted, bound)
        cases: dict[str, tuple[int, dict[str, Any]]] = {
            "": (3, {}), ", 9 tokens": (9, {}), ", softcap": (3, {"softcap": 20.0}),
            ", ALiBi": (3, {"alibi_slopes": slopes}),
        }  # fmt: skip
        for name, (tokens, options) in cases.items():
            rows = q[:, :tokens].copy()
            out = bench.out(rows.shape, dtype)
            given: Any = bench.put(rows), k_cache, v_cache, lengths
            put: dict[str, Any] = {n: bench.put(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
            attention_with_kv_cache(*given, page_table=table, causal=True, out=out, **put)
            exact = reference.attention(rows, held[0].numpy(), held[1].numpy(), causal=True, **options)[0]
            yield bench.outcome(
                f"{kind}, head size {head_dim}, attention{name}", out, exact, FORWARD["f16" if dtype is F16 else "bf16"]
            )
    # More than 128 tokens, by a copy of the keys; the last token is the last key.
    q = bench.normal((1, 133, 4, head_dim), dtype)
    out = bench.out(q.shape, dtype)
    attention_with_kv_cache(bench.put(q), k_cache, v_cache, lengths, page_table=table, causal=True, out=out)
    exact = reference.attention(q, held[0].numpy(), held[1].numpy(), causal=True)[0]
    yield bench.outcome(f"{kind}, 133 tokens", out, exact, FORWARD["f16" if dtype is F16 else "bf16"])


def mixed_caches(bench: Bench) -> Outcomes:
    """Compute attention with keys of the other 16-bit type and values in e4m3: both are copied in the type of q."""
    page, length = 16, 75
    table = bench.rng.permutation(6).astype(np.int32)[None]
    for dtype, other in ((BF16, F16), (F16, BF16)):
        q = bench.normal((1, 3, 4, 64), dtype)
        held = [bench.normal((6, page, 2, 64), kind) for kind in (other, E4M3)]
        out = bench.out(q.shape, dtype)
        q_, k, v, lengths, pages = bench.puts(q, *held, np.array([length], np.int32), table)
        attention_with_kv_cache(q_, k, v, lengths, page_table=pages, causal=True, out=out)
        rows = [x[table[0]].reshape(1, -1, 2, 64)[:, :length].astype(dtype) for x in held]
        exact = reference.attention(q, *rows, causal=True)[0]
        name = f"{np.dtype(dtype).name} with {np.dtype(other).name} and e4m3"
        yield bench.outcome(name, out, exact, FORWARD["f16" if dtype is F16 else "bf16"])


def rotations(bench: Bench) -> Outcomes:
    """Append keys of every dtype: as they are, rotated; and so many in NVFP4 that a lane has two blocks."""
    angles = bench.rng.uniform(0, 6, (64, 32))
    tables = [f(angles).astype(F32) for f in (np.cos, np.sin)]
    copies = [(dtype, bound, True, 40, False) for dtype, bound in ((BF16, 0.004), (F16, 0.0006), (F32, 1e-6))]
    long = [(dtype, 0.12, rotated, 2048, True) for dtype in (BF16, F16, F32) for rotated in (False, True)]
    for dtype, bound, is_rotated, count, is_narrow in copies + long:
        positions = bench.rng.integers(0, 64, count).astype(np.int32)
        slots = bench.put(bench.rng.permutation(count + 8)[:count].astype(np.int64))
        k, v = (bench.normal((count, 2, 64), dtype) for _ in "kv")
        shape = (count // 8 + 1, 8, 2, 64)
        caches = [_cache(bench, "nvfp4", shape) if is_narrow else bench.put(np.zeros(shape, dtype)) for _ in "kv"]
        rotary = dict(zip(("rotary_cos", "rotary_sin", "positions"), bench.puts(*tables, positions), strict=True))
        append(*bench.puts(k, v), *caches, slots, **(rotary if is_rotated else {}))
        held = [bench.out(k.shape, dtype) for _ in "kv"]
        kv_cache_gather(caches[0], caches[1], slots, k=held[0], v=held[1])
        wanted = k.astype(np.float64)
        if is_rotated:
            c, s = (x[positions].astype(np.float64)[:, None] for x in tables)
            low, high = wanted[..., :32], wanted[..., 32:]
            wanted = np.concatenate([low * c - high * s, high * c + low * s], axis=-1)
        label = f"{np.dtype(dtype).name}{', nvfp4' if is_narrow else ''}{', rotated' if is_rotated else ''}"
        yield bench.outcome(f"{label}, k", held[0], wanted, bound)
        yield bench.outcome(f"{label}, v", held[1], v, bound if is_narrow else 0.0)


def merges(bench: Bench) -> Outcomes:
    """Merge two and three parts of the keys."""
    for (dtype, bound), edges in itertools.product(((F32, 2e-3), (F16, 2e-3), (BF16, 8e-3)), ((33,), (33, 60))):
        q, k, v = qkv(bench, (1, 40, 2, 64), 90, 1, F32)
        ranges = itertools.pairwise((0, *edges, 90))
        parts = [reference.attention(q, k[:, first:end], v[:, first:end]) for first, end in ranges]
        outs, lses = (np.stack(x) for x in zip(*parts, strict=True))
        got = merge_states(bench.put(outs.astype(dtype)), bench.put(lses.astype(F32)))
        merged = got[0] if isinstance(got, tuple) else got
        label = f"{np.dtype(dtype).name}, {len(parts)} parts"
        yield bench.outcome(label, merged, reference.attention(q, k, v)[0], bound)


def quantization(bench: Bench) -> Outcomes:
    """Quantise to MXFP8 along both axes; every byte must be right."""
    for dtype in (BF16, F16, F32):
        for head_dim in (64, 96, 128):
            x = bench.normal((2, 77, head_dim), dtype)
            for axis in (-1, -2):
                elements, scales = quantize_mxfp8(bench.put(x), axis=axis)
                for name, got, wanted in zip(
                    ("elements", "scales"), (elements, scales), reference.mx(x, axis), strict=True
                ):
                    label = f"{np.dtype(dtype).name}, {head_dim} columns, axis {axis}, {name}"
                    yield bench.outcome(label, got, np.ascontiguousarray(wanted))


def packed_quantization(bench: Bench) -> Outcomes:
    """Quantise packed sequences to MXFP8 along their rows; each begins with a new block."""
    starts = np.array([0, 20, 77], np.int32)
    for dtype in (BF16, F16, F32):
        x = bench.normal((2, 77, 64), dtype)
        elements, scales = quantize_mxfp8(bench.put(x), axis=-2, cu_seqlens=bench.put(starts))
        codes, factors = elements.numpy(), scales.numpy()
        for n, (begin, end) in enumerate(itertools.pairwise(starts)):
            wanted = reference.mx(x[:, begin:end], -2)
            row = begin // 32 + n  # of its first scale
            got = codes[:, begin:end], factors[:, row : row + wanted[1].shape[1]]
            for name, a, b in zip(("elements", "scales"), got, wanted, strict=True):
                yield Outcome(
                    f"{np.dtype(dtype).name}, packed sequence {n}, {name}", a.view(np.uint8), b.view(np.uint8)
                )


def nvfp4_quantization(bench: Bench) -> Outcomes:
    """Quantise to NVFP4; what elements and scales are worth is near the input."""
    codes = np.concatenate([sign * np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]) for sign in (1, -1)])
    for dtype in (BF16, F16, F32):
        x = bench.normal((2, 77, 96), dtype)
        elements, scales = (y.numpy() for y in quantize_nvfp4(bench.put(x)))
        values = codes[np.stack([elements & 15, elements >> 4], -1)].reshape(x.shape)
        got = values * np.repeat(scales.astype(np.float64), 16, -1)
        yield Outcome(np.dtype(dtype).name, got, x.astype(np.float64), 0.12, "")
        lines = np.pad(x.swapaxes(1, 2), [(0, 0), (0, 0), (0, -x.shape[1] % 16)])
        wanted = quantize_nvfp4(bench.put(np.ascontiguousarray(lines)))
        for name, of_rows, of_lines in zip(
            ("elements", "scales"), quantize_nvfp4(bench.put(x), axis=-2), wanted, strict=True
        ):
            label = f"{np.dtype(dtype).name} along rows, {name}"
            yield Outcome(label, of_rows.numpy().view(np.uint8), of_lines.numpy().view(np.uint8), 0.0, "")
    for layout in ("128x4", "64x4"):
        _, tiles = quantize_nvfp4(bench.put(x), layout=layout)
        repacked = repack_scales(bench.put(scales), "linear", layout)
        yield Outcome(
            f"repack_scales to {layout}", repacked.numpy().view(np.uint8), tiles.numpy().view(np.uint8), 0.0, ""
        )


def weights(bench: Bench, kind: str) -> Outcomes:
    """Run the kernels of one type of quantised weights."""
    rows, columns = 70, 512
    raw = [reference.gguf_blocks(bench.rng, kind, rows, columns) for _ in range(2)]
    exact = [reference.gguf_values(x, kind) for x in raw]
    native = [QuantizedMatrix.from_gguf(x, kind, (rows, columns), device=bench.device) for x in raw]
    packed = [repack(w) for w in native]
    yield bench.outcome("dequantize", dequantize(native[0]), exact[0], 1e-6)
    for layout, (one, two) in (("native", native), ("packed", packed)):
        for count in (1, 3, 8, 9):
            x = bench.normal((count, columns), F16)
            out = bench.out((count, rows), F32)
            matvec(one, bench.put(x), out=out)
            yield bench.outcome(f"matvec, {layout}, {count}", out, x.astype(np.float64) @ exact[0].T, 0.02)
        for activations, bound in [("int16", 0.0001), *BLOCK_SCALED.get(kind, [])]:
            out = bench.out((count, rows), F32)
            matvec(one, bench.put(x), activations=activations, out=out)
            yield bench.outcome(f"matvec, {layout}, {activations}", out, x.astype(np.float64) @ exact[0].T, bound)
        x = bench.normal((1, columns), F32)
        x /= 8 * np.abs(exact[0]).max()
        gate, up = (x.astype(np.float64) @ w.T for w in exact)
        got = matvec_glu(one, two, bench.put(x))
        yield bench.outcome(f"matvec_glu, {layout}", got, gate / (1 + np.exp(-gate)) * up, 0.04)


def copies(bench: Bench) -> Outcomes:
    """Copy pieces at odd alignments."""
    source = bench.rng.integers(0, 256, 70000, np.uint8)
    given, out = bench.put(source), bench.out((70000,), np.uint8)
    wanted, pieces, at = np.full(70000, 0xFF, np.uint8), [], 3
    for nbytes in (1, 15, 16, 17, 511, 4096, 33333):
        pieces.append((out[at : at + nbytes], given[at + 1 : at + 1 + nbytes], nbytes))
        wanted[at : at + nbytes] = source[at + 1 : at + 1 + nbytes]
        at += nbytes + 5
    copy_batch(pieces)
    yield bench.outcome("7 pieces, shifted by a byte", out, wanted)
