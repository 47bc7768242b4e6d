"""attention_with_kv_cache of caches in 8 and 4 bits against float64 attention of the values that they hold.

Either side may have 16 bits as well; the other then decides nothing: both are copied in the dtype of q.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
from cache_formats import E4M3, E5M2, E8M0, NONE, Held, quantise, read, scale_places
from cache_reference import Attention, attention_cached, check_close
from harness import DTYPES
from numpy.typing import NDArray

import pysm120
from pysm120.ops.cache import Cache

Array = NDArray[Any]
FORMS = ("e4m3", "e5m2", "mxfp8", "nvfp4")
HALVES = {"bf16": np.dtype(DTYPES["bfloat16"]), "f16": np.dtype(DTYPES["float16"])}
ALL_FORMS = (*HALVES, *FORMS)
BF16 = DTYPES["bfloat16"]
NAN = 0x7F  # a NaN in both float8 formats


class Side(NamedTuple):
    """K or V: what the cache holds, the scale that the caller gives, and the values."""

    held: Held
    form: str
    factor: Array | None
    values: Array
    gap: int

    @property
    def floor(self) -> float:
        """How far f16 may round P times a scale of V: by 2^-31 of the largest, times all elements of a column.

        The kernel lets the largest product be at least 2^6, and numbers of f16 are multiples of 2^-24.
        """
        if self.form in HALVES:
            return 0.0
        largest, elements = 1.0, self.held.elements
        if self.form == "mxfp8":
            scales = self.held.blocks.view(np.uint8).astype(np.float64)
            largest = np.exp2(scales[scales < 255].max(initial=0) - 127)  # all of a short cache may be NaN
        elif self.form == "nvfp4":
            elements = read(self.held, self.form, np.ones(1), self.values.shape[-1])
        elements = np.abs(np.nan_to_num(elements.astype(np.float64)))
        return float(
            2.0**-31 * elements.sum((0, 1)).max() * largest * (1 if self.factor is None else self.factor.max())
        )

    def given(self, device: pysm120.Device, letter: str) -> dict[str, Any]:
        """Return the arguments, views of arrays with gaps of NaN."""
        arrays = []
        for x in (self.held.elements, self.held.blocks):
            if x.size:
                fill = np.uint8(NAN if x is self.held.elements else 255)
                wide = np.full((*x.shape[:-1], (x.shape[-1] + self.gap) * x.itemsize), fill, np.uint8)
                wide[..., : x.shape[-1] * x.itemsize] = np.ascontiguousarray(x).view(np.uint8)
                arrays.append(device.array(wide.view(x.dtype))[..., : x.shape[-1]])
        found: dict[str, Any] = {f"{letter}_cache": tuple(arrays) if len(arrays) > 1 else arrays[0]}
        return found | ({} if self.factor is None else {f"{letter}_scale": device.array(self.factor)})


def draw_side(rng: np.random.Generator, form: str, shape: tuple[int, ...], used: Array, *, gap: int = 0) -> Side:
    """Draw K or V [pages, rows, heads, columns]; rows that are not used are NaN."""
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-4, 4, (*shape[:3], 1)))).astype(np.float32)
    factor = None
    if form in HALVES:
        values = x.astype(HALVES[form])
        held = Held(values.copy(), NONE)
        held.elements[~used] = np.nan
        return Side(held, form, None, values.astype(np.float32), gap)
    if form != "mxfp8" and rng.random() < 0.8:
        kinds = [(1,), (shape[2],), shape[:3], (shape[0], 1, 1)]
        factor = np.exp(rng.standard_normal(kinds[rng.integers(4)]) - 2).astype(np.float32)
    whole = np.broadcast_to(np.float32(1) if factor is None else factor, shape[:3])[..., None]
    held = quantise(x, form, whole)
    values = read(held, form, whole, shape[3])
    held.elements.view(np.uint8)[~used] = NAN
    if held.blocks.size:
        held.blocks.view(np.uint8)[~used] = 255
    return Side(held, form, factor, values, gap)


def verify(device: pysm120.Device, rng: np.random.Generator, k_form: str, v_form: str, head_dim: int) -> None:
    """Compare a random problem with the reference; up to 5 tokens, so that no chunk is copied."""
    page, batch, tokens = int(rng.choice([0, 1, 7, 16, 33])), int(rng.integers(1, 4)), int(rng.integers(1, 6))
    kv_heads = int(rng.integers(1, 3))
    heads = kv_heads * int(rng.choice([1, 4, 6]))
    lengths = rng.integers(0, 150, batch).astype(np.int32)
    counts = [-(-n // page) if page else 1 for n in lengths]
    table = None
    pages, rows = (batch, max(1, *lengths)) if not page else (sum(counts) + 2, page)
    numbers = rng.permutation(pages)
    if page:
        table = rng.choice([-1, pages, 2**31 - 1], (batch, max(1, *counts))).astype(np.int32)
        for b, count in enumerate(counts):
            table[b, :count], numbers = numbers[:count], numbers[count:]
    used = np.zeros((pages, rows), bool)
    for b, count in enumerate(lengths):
        at = np.arange(count)
        used[b if table is None else table[b][at // page], at if table is None else at % page] = True
    head_dim += head_dim % 2 if "nvfp4" in {k_form, v_form} else 0
    v_head_dim = int(rng.choice([head_dim, 64, 32]))
    gap = int(rng.choice([0, 16, 3]))
    k = draw_side(rng, k_form, (pages, rows, kv_heads, head_dim), used, gap=gap)
    v = draw_side(rng, v_form, (pages, rows, kv_heads, v_head_dim), used, gap=gap)
    q = rng.standard_normal((batch, tokens, heads, head_dim)) * np.exp2(rng.integers(-3, 2, (batch, tokens, heads, 1)))
    q = q.astype(DTYPES[str(rng.choice(["bfloat16", "float16"]))])
    options: dict[str, Any] = {"causal": bool(rng.integers(2)), "window": (None, None)}
    if rng.random() < 0.4:
        options["window"] = (int(rng.integers(0, 60)), None if rng.random() < 0.5 else int(rng.integers(0, 9)))
    options |= {"softcap": 3.0} if rng.random() < 0.2 else {}
    features: dict[str, Any] = {"sinks": rng.standard_normal(heads).astype(np.float32)} if rng.random() < 0.3 else {}
    features |= {"alibi_slopes": rng.random(heads).astype(np.float32) / 4} if rng.random() < 0.3 else {}
    keys, values = (as_read(x, k_form, v_form, q.dtype) for x in (k, v))
    wanted = attention_cached(q, keys, values, lengths, page_table=table, **options, **features)
    placed: dict[str, Any] = {name: device.array(x) for name, x in features.items()}
    placed |= {} if table is None else {"page_table": device.array(table)}
    o, lse = pysm120.attention_with_kv_cache(
        device.array(q),
        kv_lengths=device.array(lengths),
        num_splits=int(rng.integers(1, 5)),
        out_dtype=np.float32,
        return_lse=True,
        **k.given(device, "k"),
        **v.given(device, "v"),
        **placed,
        **options,
    )
    check(wanted, None if is_converted(k_form, v_form, q.dtype) else v, (o.numpy(), lse.numpy()))


def is_converted(k_form: str, v_form: str, dtype: np.dtype[Any]) -> bool:
    """Whether kernels read copies of K and V in the dtype of q, whatever the number of tokens."""
    dtypes = [HALVES.get(form) for form in (k_form, v_form)]
    return dtypes not in ([None, None], [dtype, dtype])


def as_read(side: Side, k_form: str, v_form: str, dtype: np.dtype[Any]) -> Array:
    """Return the values that the kernels read."""
    return side.values.astype(dtype) if is_converted(k_form, v_form, dtype) else side.values


def check(wanted: Attention, v: Side | None, got: tuple[Array, Array]) -> None:
    """Compare a result with the reference; v: of the kernels for narrow caches, whose f16 has a floor."""
    if v is None:
        check_close(wanted, *got)
        return
    check_close(wanted._replace(most=wanted.most + v.floor, usual=wanted.usual + v.floor), *got)


@pytest.mark.parametrize("head_dim", [64, 128, 256, 96, 40, 33, 200])
@pytest.mark.parametrize("k_form", ALL_FORMS)
@pytest.mark.sampled(9, each=("k_form",))
def test_against_float64(device: pysm120.Device, rng: np.random.Generator, k_form: str, head_dim: int) -> None:
    """Every pair of formats; pages, strides, scales, features; NaN in all rows that no sequence has."""
    for v_form in ALL_FORMS:
        verify(device, rng, k_form, v_form, head_dim)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_kernels_of_hopper(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, head_dim: int) -> None:
    """On a virtual device that states Hopper's capability."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    with pysm120.Device("virtual") as device:
        for form in ALL_FORMS:
            verify(device, rng, form, form, head_dim)
            verify(device, rng, form, "f16", head_dim)


def call(device: pysm120.Device, q: Array, k: Side, v: Side, **options: Any) -> tuple[Array, Array]:
    """Call with a dense cache."""
    o, lse = pysm120.attention_with_kv_cache(
        device.array(q), **k.given(device, "k"), **v.given(device, "v"), out_dtype="f4", return_lse=True, **options
    )
    return o.numpy(), lse.numpy()


@pytest.mark.parametrize("exponent", [-60, -20, 20])
def test_scales_of_any_size(device: pysm120.Device, rng: np.random.Generator, exponent: int) -> None:
    """Values of some keys are larger than those of others by many powers of two; so are rows of q, and K."""
    shape, used = (2, 90, 1, 64), np.ones((2, 90), bool)
    for form in FORMS:
        k, v = (draw_side(rng, "mxfp8", shape, used) for _ in "kv")
        factor = np.exp2(exponent * (rng.random(shape[:3]) < 0.5)).astype(np.float32)
        if form == "mxfp8":
            bytes_of = v.held.blocks.view(np.uint8)
            bytes_of += np.log2(factor).astype(np.int64).astype(np.uint8)[..., None]
            v = v._replace(values=v.values * factor[..., None])
        else:
            held = quantise(v.values, form, np.ones(1))
            v = Side(held, form, factor, read(held, form, factor[..., None], 64), 0)
        q = (rng.standard_normal((2, 3, 4, 64)) * np.exp2([0.0, -30.0, 3.0, -90.0])[:, None]).astype(BF16)
        for splits in (1, 3):
            check(attention_cached(q, k.values, v.values), v, call(device, q, k, v, num_splits=splits))


def test_the_smallest_mxfp8_scale(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Byte 0 is 2^-127, a subnormal number; queries are as large as keys are small."""
    shape = (1, 40, 1, 64)
    k, v = (draw_side(rng, "mxfp8", shape, np.ones(shape[:2], bool)) for _ in "kv")
    k.held.blocks.view(np.uint8)[...] = 0
    k = k._replace(values=read(k.held, "mxfp8", np.ones(1), 64))
    q = (rng.standard_normal((1, 3, 4, 64)) * 2.0**119).astype(BF16)
    check(attention_cached(q, k.values, v.values), v, call(device, q, k, v))


def test_zeros_and_nan(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Caches of zeros, rows of zeros in q; a NaN reaches the rows that see it, and no other sequence."""
    shape, used = (2, 40, 1, 64), np.ones((2, 40), bool)
    q = rng.standard_normal((2, 4, 2, 64)).astype(BF16)
    q[0, 1] = 0
    for form in FORMS:
        k, v = (draw_side(rng, form, shape, used) for _ in "kv")
        zeros = quantise(np.zeros(shape, np.float32), form, np.ones(1))
        nothing = Side(zeros, form, None, np.zeros(shape, np.float32), 0)
        for a, b in ((k, v), (nothing, v), (k, nothing)):
            check(attention_cached(q, a.values, b.values, causal=True), b, call(device, q, a, b, causal=True))
        poisoned = [(v.held.elements, NAN)] if form != "nvfp4" else []  # e2m1 has no NaN
        poisoned += [(v.held.blocks, 255)] if v.held.blocks.size else []
        for array, code in poisoned:
            kept = array.copy()
            array.view(np.uint8)[1, 38, 0, 1] = code
            o, _ = call(device, q, k, v, causal=True)
            array[...] = kept
            assert np.isnan(o[1, 2:]).any((1, 2)).all()
            assert np.isfinite(o[0]).all()


@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_swizzled_scales(device: pysm120.Device, rng: np.random.Generator, head_dim: int) -> None:
    """The order of SM100 kernels gives the bits of the order of columns, with every kernel."""
    shape = (3, 20, 2, head_dim)
    k, v = (draw_side(rng, "nvfp4", shape, np.ones(shape[:2], bool)) for _ in "kv")
    swizzled = np.empty_like(v.held.blocks)
    for row in range(shape[1]):
        rows, places = scale_places(row, head_dim // 16, is_swizzled=True)
        swizzled[:, rows, :, places] = v.held.blocks[:, row].transpose(2, 0, 1)
    q = rng.standard_normal((3, 2, 4, head_dim)).astype(BF16)
    for gap in (0, 1):
        k, v = k._replace(gap=gap), v._replace(gap=gap)
        wanted = call(device, q, k, v)
        check(attention_cached(q, k.values, v.values), v, wanted)
        got = call(device, q, k, v._replace(held=v.held._replace(blocks=swizzled)), v_swizzled=True)
        assert all(np.array_equal(x, y) for x, y in zip(got, wanted, strict=True))


@pytest.mark.parametrize("v_swizzled", [False, True])
def test_after_append(device: pysm120.Device, rng: np.random.Generator, *, v_swizzled: bool) -> None:
    """What kv_cache_append quantises is what attention reads."""
    x = rng.standard_normal((2, 2, 48, 2, 128)).astype(BF16)
    eights = (device.zeros((2, 48, 2, 128), E4M3), device.zeros((2, 48, 2, 4), E8M0))
    fours = (device.zeros((2, 48, 2, 64), np.uint8), device.zeros((2, 48, 2, 8), E4M3))
    factor = device.array(np.full(1, 0.01, np.float32))
    options: dict[str, Any] = {"v_scale": factor, "v_swizzled": v_swizzled}
    pysm120.kv_cache_append(device.array(x[0]), device.array(x[1]), eights, fours, **options)
    k, v = pysm120.kv_cache_gather(eights, fours, dtype=np.float32, **options)
    q = rng.standard_normal((2, 2, 4, 128)).astype(BF16)
    o, lse = pysm120.attention_with_kv_cache(
        device.array(q), eights, fours, out_dtype=np.float32, return_lse=True, **options
    )
    values = (device.from_dlpack(array).numpy() for array in (k, v))
    check_close(attention_cached(q, *values), o.numpy(), lse.numpy())


class Foreign:
    """What a cache needs of an array of torch: names of dtypes, and permute()."""

    def __init__(self, values: Array, dtype: str) -> None:
        self.values, self.dtype, self.shape = values, f"torch.{dtype}", values.shape

    def permute(self, *axes: int) -> "Foreign":
        return Foreign(self.values.transpose(*axes), self.dtype.removeprefix("torch."))

    def transpose(self, first: int, second: int) -> "Foreign":
        return Foreign(self.values.swapaxes(first, second), self.dtype)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_of_another_library(dtype: str, layout: str) -> None:
    cache = Cache.of("k", Foreign(np.zeros((2, 3, 4, 64)), dtype), None, layout)
    assert cache.dtype == np.dtype(dtype)
    assert cache.arrays[0].shape == ((2, 3, 4, 64) if layout == "NHD" else (2, 4, 3, 64))
    with pytest.raises(TypeError, match="k_cache is 'what'"):
        Cache.of("k", Foreign(np.zeros((2, 3, 4, 64)), "what"), None, layout)


Q, CACHE, BLOCKS = np.ones((1, 1, 2, 64), BF16), np.ones((1, 5, 2, 64), E4M3), np.ones((1, 5, 2, 2), E8M0)
PAIRS = (CACHE.view(np.uint8)[..., :32], np.ones((1, 5, 2, 4), E4M3))
WRONG: dict[str, tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = {
    "float32": (TypeError, "v_cache has dtype float32", (CACHE, CACHE.astype("f4")), {}),
    "elements of blocks": (TypeError, r"k_cache has dtype bfloat16", ((CACHE.astype(BF16), BLOCKS), CACHE), {}),
    "swizzled halves": (ValueError, "it needs v_cache in NVFP4", (PAIRS, CACHE.astype(BF16)), {"v_swizzled": True}),
    "rows of halves": (ValueError, "v_cache has shape", (CACHE, CACHE.astype(BF16)[:, :4]), {}),
    "heads of halves": (ValueError, "v_cache has shape", (CACHE, CACHE.astype("f2")[:, :, :1]), {}),
    "one array of pairs": (TypeError, "k_cache has dtype uint8; NVFP4 needs", (CACHE.view(np.uint8), CACHE), {}),
    "elements of pairs": (
        ValueError,
        "k_cache has shape",
        ((CACHE.view(np.uint8), np.ones((1, 5, 2, 4), E4M3)), CACHE),
        {},
    ),
    "swizzled": (ValueError, "v_swizzled = 1; it needs v_cache in NVFP4", (CACHE, CACHE), {"v_swizzled": True}),
    "rows of a swizzled page": (
        ValueError,
        "page_rows a multiple of 4, not 5",
        (PAIRS, PAIRS),
        {"v_swizzled": True},
    ),
    "scale of blocks": (ValueError, "k_scale is given", ((CACHE, BLOCKS), CACHE), {"k_scale": 2.0}),
    "scale of halves": (ValueError, "v_scale is given", (CACHE, CACHE.astype(BF16)), {"v_scale": 2.0}),
    "shape of blocks": (ValueError, r"k_cache\[1\] has shape", ((CACHE, BLOCKS[..., :1]), CACHE), {}),
    "dtype of blocks": (TypeError, r"k_cache\[1\] has dtype", ((CACHE, BLOCKS.view(E4M3)), CACHE), {}),
    "three arrays": (ValueError, "v_cache has 3 arrays", (CACHE, (CACHE, BLOCKS, BLOCKS)), {}),
    "shape of scale": (ValueError, "k_scale has shape", (CACHE, CACHE), {"k_scale": np.ones(3, "f4")}),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_caches(device: pysm120.Device, what: str) -> None:
    kind, message, caches, options = WRONG[what]
    with pytest.raises(kind, match=message):
        pysm120.attention_with_kv_cache(Q, *caches, device=device, **options)


# ---- the arithmetic of scales ---------------------------------------------------------


def eleven_bits(x: Array) -> Array:
    """Round to the significant bits of f16, whatever the exponent."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    found: Array = np.ldexp(np.rint(mantissa * 2048) / 2048, exponent)
    return found


def away_from_ties(x: Array) -> Array:
    """Change an f32 by 32 last bits where fewer than 16 of them decide how eleven_bits rounds it."""
    bits: Array = x.view(np.uint32)
    is_near = np.abs((bits & 0x1FFF).astype(np.int32) - 0x1000) < 16
    found: Array = np.where(is_near, bits ^ 0x20, bits).view(np.float32)
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_fold_of_scales(
    device: pysm120.Device, rng: np.random.Generator, head_dim: int, form: str, dtype: str
) -> None:
    """Each token sees one key, so that P is 1: o is the element times its scale, which is rounded to 11 bits with P.

    P is off by 2^-24 of the score, which `scale` keeps below 8. No factor is so near to a tie that this decides.

    The scale of a key multiplies a sum in f32, unrounded: lse shows it. 2^-18 is above the errors of the exponential
    function and of the sums; a scale that is rounded once more is wrong by 2^-12.
    """
    shape = (1, 40, 2, head_dim)
    factor = np.ones(shape[:3], np.float32)
    if form != "mxfp8":
        factor = away_from_ties(np.exp(3 * np.minimum(rng.standard_normal(shape[:3]), 2.5)).astype(np.float32))
    x = (rng.standard_normal(shape) * factor[..., None]).astype(np.float32)
    held = quantise(x, form, factor[..., None])
    side = Side(held, form, None if form == "mxfp8" else factor, read(held, form, factor[..., None], head_dim), 0)
    q = rng.standard_normal(shape).astype(DTYPES[dtype])
    scale = 2.0**-14
    o, lse = call(device, q, side, side, window=(0, 0), num_splits=1, scale=scale)
    of_elements = read(held, form, np.ones((*shape[:3], 1), np.float32), head_dim).astype(np.float64)
    model = of_elements * eleven_bits(factor)[..., None]
    np.testing.assert_array_less(np.abs(o - model), 2.0**-18 * np.abs(model) + 1e-30)
    products = q.astype(np.float64) * of_elements * factor.astype(np.float64)[..., None]
    sums = scale * products.sum(-1).transpose(0, 2, 1)
    sizes = scale * np.abs(products).sum(-1).transpose(0, 2, 1)
    np.testing.assert_array_less(np.abs(lse - sums), 2.0**-18 * sizes + 1e-6)


@pytest.mark.virtual
@pytest.mark.parametrize("form", FORMS)
def test_full_checks(rng: np.random.Generator, form: str) -> None:
    """Append, gather, attention of a token and of a chunk: no race, and the same bits in any order of warps."""
    seed, found = int(rng.integers(1 << 30)), []
    for options in ("checks=full&seed=1", "checks=full&seed=2", "seed=0"):
        with pysm120.Device(f"virtual?{options}") as device:
            found.append(_all_of(device, np.random.default_rng(seed), form))
    assert all(np.array_equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))


def _all_of(device: pysm120.Device, rng: np.random.Generator, form: str) -> list[Array]:
    """Compute calls of all functions of a cache in pages; the bytes of the results."""
    parts = {"mxfp8": [(128, E4M3), (4, E8M0)], "nvfp4": [(64, np.uint8), (8, E4M3)]}
    dtypes: list[Any] = parts.get(form, [(128, {"e4m3": E4M3}.get(form, E5M2))])
    caches = [tuple(device.zeros((6, 16, 2, n), dtype) for n, dtype in dtypes) for _ in "kv"]
    k, v = (x[0] if len(x) == 1 else x for x in caches)
    scale = device.array(np.full(1, 0.3, np.float32))
    options: dict[str, Any] = {} if form == "mxfp8" else {"k_scale": scale, "v_scale": scale}
    new = [device.array(rng.standard_normal((70, 2, 128)).astype(BF16)) for _ in "kv"]
    pysm120.kv_cache_append(new[0], new[1], k, v, device.array(rng.permutation(96)[:70]), **options)
    lengths = device.array(np.array([40, 0, 64], np.int32))
    options["page_table"] = device.array(rng.integers(0, 6, (3, 4)).astype(np.int32))
    found = [*pysm120.kv_cache_gather(k, v, kv_lengths=lengths, **options)]
    for tokens, splits in ((1, 3), (5, 1), (130, None)):
        q = device.array(rng.standard_normal((3, tokens, 4, 128)).astype(BF16))
        found += pysm120.attention_with_kv_cache(
            q, k, v, lengths, causal=True, num_splits=splits, return_lse=True, **options
        )
    return [x.numpy().view(np.uint8) for x in found]
