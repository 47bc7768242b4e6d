"""kv_cache_append against a NumPy model, bit for bit: every format and place of tokens; and what it refuses."""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cache_copies import KINDS, PLACES, WIDE_LANES, Problem, new_tokens
from cache_formats import E4M3, E5M2, E8M0, quantise
from harness import DTYPES, lib
from kernels import Recorded
from numpy.typing import NDArray
from operations import Operation, Wrong

import pysm120

BF16 = ml_dtypes.bfloat16
FACTORS = [1, 1e-45, 2.0**-126, 1e-9, 2.0**40, 3e38]


def fill(args: Any, memory: int) -> None:
    """Three tokens of a sequence to a page of four, in E4M3."""
    args.batch, args.kv_heads, args.rows, args.head_dim = 1, 2, 3, 32
    args.pages, args.page_rows = 1, 4
    names = ("k", "v", "k_cache", "v_cache")
    for index, tensor in enumerate(getattr(args, name) for name in names):
        tensor.address, tensor.dtype = memory + 4096 * index, lib.SM120_BF16 if index < 2 else lib.SM120_E4M3
        tensor.batch_stride, tensor.row_stride, tensor.head_stride = 256, 64, 32


def launch(device: pysm120.Device) -> None:
    for dtype in DTYPES.values():
        for tokens in (3, WIDE_LANES // 4):
            k, places = np.ones((tokens, 2, 32), dtype), np.arange(tokens)
            k_cache, v_cache = (
                (np.zeros((1, tokens, 2, 16), np.uint8), np.zeros((1, tokens, 2, 2), E4M3)) for _ in "kv"
            )
            turn = np.ones((tokens, 16), "f4")
            rotation: dict[str, Any] = {"rotary_cos": turn, "rotary_sin": turn, "positions": places.astype("i4")}
            for options in ({}, rotation):
                pysm120.kv_cache_append(k, k, k_cache, v_cache, places, **options, device=device)


def compute(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """MXFP8 and NVFP4 of 9 tokens, of all sizes."""
    k, v = (rng.standard_normal((9, 3, 80)) * np.exp2(rng.integers(-9, 9, (9, 3, 80))) for _ in "kv")
    caches = [
        (np.zeros((2, 8, 3, 80 // n), a), np.zeros((2, 8, 3, m), b))
        for n, a, m, b in ((1, E4M3, 3, E8M0), (2, np.uint8, 5, E4M3))
    ]
    slots = rng.permutation(16)[:9]
    pysm120.kv_cache_append(k.astype(BF16), v.astype(BF16), caches[0], caches[1], slots, v_scale=0.01, device=device)
    return np.concatenate([x.view(np.uint8).ravel() for pair in caches for x in pair])


K, CACHE = np.ones((3, 2, 32), BF16), np.zeros((1, 4, 2, 32), BF16)
FOUR = (K, K, CACHE, CACHE.copy())
SLOTS, LENGTHS = np.arange(3), np.array([3], "i4")

TABLE, WIDE, POSITIONS = np.ones((3, 8), "f4"), np.ones((3, 32), "f4"), np.arange(3, dtype="i4")

OPERATION = Operation(
    name="kv_cache_append",
    fill=fill,
    wrong=[
        Wrong("batch", 0, "INVALID_ARGUMENT", "batch = 0"),
        Wrong("kv_heads", 0, "INVALID_ARGUMENT", "heads = 0"),
        Wrong("rows", 0, "INVALID_ARGUMENT", "rows = 0"),
        Wrong("rows", 1 << 40, "UNSUPPORTED", "rows"),
        Wrong("head_dim", -3, "INVALID_ARGUMENT", "head_dim = -3"),
        Wrong("v_head_dim", -1, "INVALID_ARGUMENT", "v_head_dim = -1"),
        Wrong("pages", 0, "INVALID_ARGUMENT", "pages = 0"),
        Wrong("page_rows", 0, "INVALID_ARGUMENT", "page_rows = 0"),
        Wrong("page_rows", 1 << 31, "UNSUPPORTED", "page_rows"),
        Wrong("v_swizzled", 2, "INVALID_ARGUMENT", "v_swizzled = 2"),
        Wrong("v_swizzled", 1, "INVALID_ARGUMENT", "v_swizzled = 1"),
        Wrong("k.dtype", lib.SM120_E4M3, "UNSUPPORTED", "k.dtype"),
        Wrong("v.dtype", lib.SM120_F16, "INVALID_ARGUMENT", "v.dtype"),
        Wrong("k_cache.dtype", lib.SM120_F32, "INVALID_ARGUMENT", "k_cache.dtype"),
        Wrong("k_cache.dtype", lib.SM120_U8, "INVALID_ARGUMENT", "needs scales in blocks"),
        Wrong("k_blocks.address", 4096, "INVALID_ARGUMENT", "k_blocks.dtype"),
        Wrong("v_scale.address", 4096, "INVALID_ARGUMENT", "v_scale.dtype"),
        Wrong("k.address", 0, "INVALID_ARGUMENT", "k.address = 0"),
        Wrong("v_cache.address", 0, "INVALID_ARGUMENT", "v_cache.address = 0"),
        Wrong("v_cache.row_stride", 0, "INVALID_ARGUMENT", "v_cache.row_stride"),
        Wrong("v_cache.row_stride", 1, "INVALID_ARGUMENT", "overlap"),
        Wrong("k_cache.row_stride", 1 << 20, "INVALID_ARGUMENT", "past the end"),
        Wrong("page_table", 4096, "INVALID_ARGUMENT", "table_pages = 0"),
        Wrong("slots", 4, "MISALIGNED", "slots = 0x4"),
        Wrong("kv_lengths", 6, "MISALIGNED", "kv_lengths = 0x6"),
        Wrong("rotary_cos", 4096, "INVALID_ARGUMENT", "give both or neither"),
        Wrong("rotary_dim", 8, "INVALID_ARGUMENT", "rotary_dim = 8"),
        Wrong("rotary_positions", 8, "INVALID_ARGUMENT", "rotary_positions = 8"),
        Wrong("rotary_interleaved", 1, "INVALID_ARGUMENT", "rotary_interleaved = 1"),
        Wrong("positions", 4096, "INVALID_ARGUMENT", "positions = 0x1000"),
        Wrong("reserved", 1, "INVALID_ARGUMENT", "reserved = 1"),
        Wrong("new_lengths", 6, "MISALIGNED", "new_lengths = 0x6"),
    ],
    refused={
        "shape": (ValueError, "k has shape", ([K[..., :16], *FOUR[1:], SLOTS], {})),
        "place": (ValueError, "k has shape", (FOUR, {})),
        "both": (ValueError, "slots is given", ([*FOUR, SLOTS], {"kv_lengths": LENGTHS})),
        "slots": (ValueError, r"slots\[0\] is 4, but it must be below 4", ([*FOUR, SLOTS + 4], {})),
        "slots dtype": (TypeError, "slots has dtype int32", ([*FOUR, SLOTS.astype("i4")], {})),
        "lengths": (
            ValueError,
            r"kv_lengths\[0\] is 5, but it must be from 0 to 4",
            ([K[None], K[None], *FOUR[2:]], {"kv_lengths": LENGTHS + 2}),
        ),
        "new lengths": (
            ValueError,
            r"kv_lengths\[0\] is 2, but it must be from 0 to 1, the rows of its pages without those of the new",
            ([K[None], K[None], *FOUR[2:]], {"kv_lengths": LENGTHS - 1, "new_lengths": LENGTHS.copy()}),
        ),
        "new lengths of slots": (ValueError, "new_lengths is given", ([*FOUR, SLOTS], {"new_lengths": LENGTHS})),
        "table": (
            ValueError,
            r"page_table\[0, 0\] is 1, but it must be from 0 to 0",
            ([K[None], K[None], *FOUR[2:]], {"kv_lengths": LENGTHS, "page_table": np.ones((1, 1), "i4")}),
        ),
        "dtype": (TypeError, "v has dtype float16", ([K, K.astype("f2"), *FOUR[2:], SLOTS], {})),
        "cache": (TypeError, "NVFP4 needs", ([K, K, CACHE.view(np.uint8), CACHE, SLOTS], {})),
        "cache rank": (
            TypeError,
            r"is a ndarray of shape \(.*\), not an array with 4 dimensions",
            ([K, K, CACHE[0], CACHE, SLOTS], {}),
        ),
        "cache kind": (TypeError, "k_cache is a list", ([K, K, [[1]], CACHE, SLOTS], {})),
        "scale": (ValueError, "k_scale.address", ([*FOUR, SLOTS], {"k_scale": 2.0})),
        "sine": (ValueError, "give both or neither", ([*FOUR, SLOTS], {"rotary_cos": TABLE, "positions": POSITIONS})),
        "tables": (
            ValueError,
            "rotary_sin has shape",
            ([*FOUR, SLOTS], {"rotary_cos": TABLE, "rotary_sin": TABLE[:2], "positions": POSITIONS}),
        ),
        "too many pairs": (
            ValueError,
            "rotary_dim = 64; it must be even",
            ([*FOUR, SLOTS], {"rotary_cos": WIDE, "rotary_sin": WIDE, "positions": POSITIONS}),
        ),
        "no positions": (ValueError, "positions = 0", ([*FOUR, SLOTS], {"rotary_cos": TABLE, "rotary_sin": TABLE})),
        "position": (
            ValueError,
            r"positions\[2\] is 3, but it must be from 0 to 2",
            ([*FOUR, SLOTS], {"rotary_cos": TABLE, "rotary_sin": TABLE, "positions": POSITIONS + 1}),
        ),
        "pairs of nothing": (ValueError, "there is no rotary_cos", ([*FOUR, SLOTS], {"rotary_interleaved": True})),
        "layout": (ValueError, "cache_layout is 'NDH'", ([*FOUR, SLOTS], {"cache_layout": "NDH"})),
    },
    launch=launch,
    recorded=[Recorded("kv_cache_append", "kv_cache_append_bf16", compute)],
)


@pytest.fixture(params=["12", "9"])
def either(request: Any, device: pysm120.Device, monkeypatch: pytest.MonkeyPatch) -> pysm120.Device:
    """The device; if it is virtual, also one with the kernels for Hopper."""
    if not device.is_virtual or request.param == "12":
        return device
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", request.param)
    return pysm120.Device("virtual")


def drawn(right: pysm120.Device, wrong: pysm120.Device, rng: np.random.Generator, **options: Any) -> Iterator[Problem]:
    """Draw a problem without wrong numbers, and one with some, which only a device without checks skips."""
    yield Problem(right, rng, **options)
    yield Problem(wrong, rng, **options, has_wrong=True)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_model(
    either: pysm120.Device, unchecked: pysm120.Device, rng: np.random.Generator, place: str, kind: str
) -> None:
    """Every byte of caches with gaps, tokens that go nowhere, pages that there are not."""
    for _ in range(2):
        for problem in drawn(either, unchecked, rng, place=place, kinds=(kind, str(rng.choice(KINDS)))):
            check_append(problem)


@pytest.mark.parametrize("k_kind", KINDS)
def test_wide_kernels(either: pysm120.Device, unchecked: pysm120.Device, rng: np.random.Generator, k_kind: str) -> None:
    """The same for so many tokens that a thread has two parts of a head."""
    for place in PLACES:
        kinds = rng.permutation([k_kind, "nvfp4"])
        pair = str(kinds[0]), str(kinds[1])
        for problem in drawn(either, unchecked, rng, place=place, kinds=pair, is_wide=True):
            check_append(problem)


def check_append(problem: Problem) -> None:
    """Append normal numbers and compare all bytes."""
    tokens = new_tokens(problem)
    k, v = (
        (problem.rng.standard_normal((*tokens.shape, problem.heads, side.columns)) * 3).astype(problem.dtype)
        for side in (problem.k, problem.v)
    )
    pysm120.kv_cache_append(problem.put(k), problem.put(v), **problem.options(), **tokens.given)
    for side, x in ((problem.k, k), (problem.v, v)):
        side.write(x.reshape(-1, problem.heads, side.columns), tokens.places)
    problem.check()


@pytest.mark.parametrize("heads", [1, WIDE_LANES // 8 // 4])
def test_special_values(either: pysm120.Device, heads: int) -> None:
    """Ties and limits of e2m1, zeros, subnormals, infinities and NaN in every format, with factors of any size."""
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]
    row = [s * x * (1 + n * 2.0**-23) for x in ties for n in (0, 1, -1) for s in (1, -1)]
    special = [0, -0.0, 1e-45, 1e-39, 3e38, -3e38, 448, 464, 480, 57344, 61440, 2.0**-126, 2.0**-130]
    strange = [np.inf, -np.inf, np.nan]
    k = np.zeros((8, 1, 64), np.float32)
    k[0, 0, : len(row)], k[1, 0, : len(special)], k[2, 0, : len(special)] = row, special, np.array(special) * 1e-3
    k[3, 0, 5:8], k[4, 0, 40], k[5, 0, 16:32], k[6, 0, 3] = strange, np.nan, 2.0**-20, np.inf
    k[0, 0, len(row) :] = 6  # the largest of each block of the ties, so that their scale is 1
    k[0, 0, 15:48:16] = 6
    k = np.repeat(k, heads, axis=1)
    for kind, shapes in {
        "e4m3": {"": (64, E4M3)},
        "e5m2": {"": (64, E5M2)},
        "mxfp8": {"": (64, E4M3), "[1]": (2, E8M0)},
        "nvfp4": {"": (32, np.uint8), "[1]": (4, E4M3)},
    }.items():
        other = either.zeros((1, 8, heads, 64), np.float32)
        for factor in np.array([1.0] if kind == "mxfp8" else FACTORS, np.float32):
            held = [either.zeros((1, 8, heads, width), dtype) for width, dtype in shapes.values()]
            cache: Any = held[0] if len(held) == 1 else tuple(held)
            scale: dict[str, Any] = {} if kind == "mxfp8" else {"k_scale": either.array(factor[None])}
            new, slots = either.array(k), either.array(np.arange(8))
            pysm120.kv_cache_append(new, new, cache, other, slots, **scale)
            with np.errstate(all="ignore"):
                wanted = quantise(k, kind, factor[None])
            for array, want in zip(held, wanted, strict=False):
                same(array.numpy()[0], want, f"{kind} {factor}")


def same(got: NDArray[Any], want: NDArray[Any], kind: str) -> None:
    """Compare bits; a NaN is any."""
    if want.dtype == np.uint8:
        np.testing.assert_array_equal(got, want, kind)
        return
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan, kind)
    bits = np.dtype(f"u{want.dtype.itemsize}")
    np.testing.assert_array_equal(np.where(nan, 0, got.view(bits)), np.where(nan, 0, want.view(bits)), kind)


def test_layouts(device: pysm120.Device, rng: np.random.Generator) -> None:
    """HND and NHD hold the same; K and V side by side in one array; a scale for each head in both layouts."""
    k, v = (rng.standard_normal((5, 2, 64)).astype(BF16) for _ in "kv")
    slots, scale = np.array([7, 2, 0, 5, 3]), np.array([0.5, 2], "f4")
    nhd = (np.zeros((2, 4, 2, 64), E4M3), np.zeros((2, 4, 2, 64), E4M3))
    pysm120.kv_cache_append(k, v, nhd[0], nhd[1], slots, k_scale=scale, device=device)
    hnd = (np.zeros((2, 2, 4, 64), E4M3), np.zeros((2, 2, 4, 64), E4M3))
    for given in (scale, np.broadcast_to(scale[None, :, None], (2, 2, 4))):
        pysm120.kv_cache_append(k, v, hnd[0], hnd[1], slots, k_scale=given, cache_layout="HND", device=device)
        for a, b in zip(nhd, hnd, strict=True):
            np.testing.assert_array_equal(a.view(np.uint8), b.transpose(0, 2, 1, 3).view(np.uint8))
    both = device.array(np.zeros((2, 2, 4, 2, 64), BF16))
    new = device.array(k), device.array(v)
    pysm120.kv_cache_append(new[0], new[1], both[:, 0], both[:, 1], device.array(slots))
    for n, x in enumerate((k, v)):
        np.testing.assert_array_equal(both.numpy()[:, n].reshape(8, 2, 64)[slots], x)


def rotated(k: NDArray[Any], tables: NDArray[Any], positions: NDArray[Any], *, interleaved: bool) -> NDArray[Any]:
    """Rotate k [tokens, heads, columns] as the kernel does, each operation rounded to float32; wrong positions: NaN."""
    cos, sin = (
        np.where(((positions >= 0) & (positions < len(x)))[:, None], x[np.clip(positions, 0, len(x) - 1)], np.nan)
        for x in tables
    )
    pairs = tables.shape[2]
    wide = k.astype(np.float32)
    first = np.arange(0, 2 * pairs, 2) if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    a, b = wide[..., first], wide[..., second]
    cos, sin = cos[:, None].astype(np.float32), sin[:, None].astype(np.float32)
    wide[..., first], wide[..., second] = a * cos - b * sin, b * cos + a * sin
    return wide.astype(k.dtype)


@pytest.mark.parametrize("place", PLACES)
def test_rotary(either: pysm120.Device, unchecked: pysm120.Device, rng: np.random.Generator, place: str) -> None:
    """Both conventions, any number of columns, aligned tables or not; positions that there are not."""
    for turn in range(10):
        is_wide = turn >= 8
        kinds = ("nvfp4" if is_wide else str(rng.choice(KINDS)), "copy")
        problem = list(drawn(either, unchecked, rng, place=place, kinds=kinds, is_wide=is_wide))[turn // 2 % 2]
        tokens = new_tokens(problem)
        k, v = (
            (rng.standard_normal((*tokens.shape, problem.heads, side.columns)) * 3).astype(problem.dtype)
            for side in (problem.k, problem.v)
        )
        columns, interleaved = problem.k.columns, bool(turn % 2)
        dims = [x for x in (2, 6, columns // 4 * 2, columns // 32 * 32, columns) if 0 < x <= columns]
        table_rows = 20 if problem.has_wrong else max(20, problem.capacity)
        tables = rng.standard_normal((2, table_rows, int(rng.choice(dims)) // 2)).astype(np.float32)
        gap = int(rng.integers(2))
        placed = []
        for table in tables:
            whole = problem.put(np.concatenate([np.full(gap, np.nan, np.float32), table.ravel()]))
            placed.append(whole[gap:].reshape(*table.shape))
        given = dict(tokens.given)
        if place == "slots" or problem.coin():
            edges = (-2, 23) if problem.has_wrong else (0, 20)
            positions = rng.integers(*edges, tokens.shape).astype(np.int32)
            given["positions"] = problem.put(positions)
        else:
            positions = given["kv_lengths"].numpy()[:, None] - tokens.shape[1] + np.arange(tokens.shape[1])
        pysm120.kv_cache_append(
            problem.put(k),
            problem.put(v),
            **problem.options(),
            **given,
            rotary_cos=placed[0],
            rotary_sin=placed[1],
            rotary_interleaved=interleaved,
        )
        flat = k.reshape(-1, problem.heads, columns)
        known = rotated(flat, tables, positions.ravel(), interleaved=interleaved)
        problem.k.write(known, tokens.places)
        problem.v.write(v.reshape(-1, problem.heads, problem.v.columns), tokens.places)
        problem.v.cache.check("v")
        for memory in problem.k.memories():
            got, want = memory.array.numpy(), memory.expected
            if want.dtype == np.uint8:
                assert np.array_equal(got, want)
            else:
                same(got, want, problem.k.kind)


@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize("has_lengths", [False, True])
def test_new_lengths(unchecked: pysm120.Device, rng: np.random.Generator, has_table: bool, has_lengths: bool) -> None:
    """kv_lengths count the keys before the append, which writes those after it: more than one CTA, and no room."""
    device = unchecked
    batch, tokens, heads, columns = 5, 4, 3, 100
    shape = (12, 4, heads, columns) if has_table else (batch, 9, heads, columns)
    caches = [rng.standard_normal(shape).astype(BF16) for _ in "kv"]
    new = [rng.standard_normal((batch, tokens, heads, columns)).astype(BF16) for _ in "kv"]
    table = rng.permutation(12)[: 2 * batch].reshape(batch, 2).astype("i4") if has_table else np.arange(batch)[:, None]
    room = shape[1] * table.shape[1]
    before = np.array([0, 3, room - tokens, room - 1, 1], "i4") * has_lengths
    options: dict[str, Any] = {"kv_lengths": device.array(before)} if has_lengths else {}
    options |= {"page_table": device.array(table)} if has_table else {}
    held, guarded = [device.array(x) for x in caches], device.array(np.full(batch + 2, -9, "i4"))
    k, v = (device.array(x) for x in new)
    pysm120.kv_cache_append(k, v, held[0], held[1], new_lengths=guarded[1:-1], **options)
    np.testing.assert_array_equal(guarded.numpy(), [-9, *(before + tokens), -9])
    for cache, x, got in zip(caches, new, held, strict=True):
        for b, n in np.ndindex(batch, tokens):
            page, row = divmod(int(before[b]) + n, shape[1])
            if page < table.shape[1]:
                cache[table[b, page], row] = x[b, n]
        np.testing.assert_array_equal(got.numpy().view(np.uint16), cache.view(np.uint16))


def test_new_lengths_with_a_rotation(device: pysm120.Device, rng: np.random.Generator) -> None:
    """The position of a token is its key, however lengths are counted."""
    k, v = (device.array(rng.standard_normal((2, 3, 2, 64)).astype(BF16)) for _ in "kv")
    tables = [device.array(rng.standard_normal((20, 32)).astype("f4")) for _ in range(2)]
    before, held = np.array([5, 11], "i4"), []
    for lengths, new in ((before + 3, None), (before, device.zeros(2, np.int32))):
        caches = [device.zeros((2, 16, 2, 64), BF16) for _ in "kv"]
        rotation: dict[str, Any] = {"rotary_cos": tables[0], "rotary_sin": tables[1]}
        pysm120.kv_cache_append(k, v, *caches, kv_lengths=device.array(lengths), new_lengths=new, **rotation)
        held.append([x.numpy().view(np.uint16) for x in caches])
    np.testing.assert_array_equal(held[0], held[1])
    assert held[0][0].any()


def test_aliases_are_refused(device: pysm120.Device) -> None:
    k, cache, slots = (device.array(x) for x in (K, CACHE, SLOTS))
    other = device.array(CACHE)
    with pytest.raises(ValueError, match=r"k_cache .* and v_cache .* overlap"):
        pysm120.kv_cache_append(k, k, cache, cache, slots)
    with pytest.raises(ValueError, match=r"k_cache .* and k .* overlap"):
        pysm120.kv_cache_append(other[0, :3], k, other, cache, slots)
    lengths = device.array(LENGTHS)
    with pytest.raises(ValueError, match=r"new_lengths .* and kv_lengths .* overlap"):
        pysm120.kv_cache_append(k[None], k[None], other, cache, kv_lengths=lengths, new_lengths=lengths)
