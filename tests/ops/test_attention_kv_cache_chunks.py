"""attention_with_kv_cache of more than 128 tokens: keys are gathered and read by the kernels of attention."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cache_cases import Case, Inputs, arguments, draw, name, run, verify, wanted
from cache_formats import quantise, read
from cache_reference import attention_cached, check_close
from harness import CODES, DTYPES, Buffer, OpenDevice, check, ffi, lib

import pysm120

Array = np.ndarray[Any, Any]
BF16 = DTYPES["bfloat16"]
FEW, MANY = 128, 129  # tokens: the most that the other kernels take by themselves, and more

PAGES = [
    Case(
        (*(max(0, pages * page + more) for pages in (1, 2) for more in (-1, 0, 1)), 0),
        tokens,
        page=page,
        form=form,
        shared=True,
        layout=layout,
        splits=0,
        causal=page != 33,
    )
    for page, tokens in ((1, MANY), (7, 140), (16, 200), (33, MANY), (64, 257))
    for form, layout in (("table", "NHD"), ("lists", "HND"), ("table", "together"))
] + [Case((255, 256, 257, 1), 150, page=256, form="lists", splits=0)]
EDGES = [
    Case(lengths, MANY, page=page, form=form, splits=0)
    for lengths in ((0, 1, 31, 32, 33), (63, 64, 65, 127, 128), (129, 130, 191, 192, 300))
    for page, form in ((0, "table"), (16, "table"), (16, "lists"))
]
SHAPES = [
    *(
        Case((200, 40), 130, head_dim=d, v_head_dim=v, dtype=dtype, gap=gap, page=page, splits=0)
        for d, v, dtype, gap, page in (
            *((64, 64, "bfloat16", 0, 16), (128, 64, "float16", 0, 0), (256, 256, "bfloat16", 8, 7)),
            *((1, 20, "float16", 1, 16), (72, 250, "bfloat16", 3, 0), (66, 33, "bfloat16", 0, 5)),
        )
    ),
    *(
        Case((200, 140), 140, heads, kv_heads, page=page, splits=0)
        for heads, kv_heads, page in ((3, 3, 16), (4, 1, 16), (12, 2, 0))
    ),
    Case((60, 33), 150, page=7, layout="together", gap=1, splits=0),
    Case((200, 133), 150, rows=250, splits=0),
    Case((200, 133), 150, rows=250, gap=1, splits=0),
    Case(None, 140, rows=177, splits=0),
    Case(None, 140, rows=177, causal=False, splits=0),
]
FEATURES = [
    Case((200, 30, 0), 140, page=page, splits=0, **feature)
    for page in (0, 16)
    for feature in (
        *({"causal": False}, {"window": (20, None)}, {"causal": False, "window": (20, 3)}, {"softcap": 3.0}),
        *({"sinks": True}, {"slopes": 1}, {"slopes": 2}, {"scale": -0.3}, {"scale": 0.0}, {"o_dtype": "bfloat16"}),
        {"softcap": 20.0, "sinks": True, "slopes": 2, "scale": -0.5, "window": (30, None)},
    )
]


@pytest.mark.parametrize("case", PAGES, ids=name)
def test_pages(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Lengths at the edges of pages; sequences share pages and have some of them twice."""
    verify(opened, rng, case)


@pytest.mark.parametrize("case", EDGES, ids=name)
def test_edges_of_tiles(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Fewer keys than tokens, and none; NaN behind each sequence."""
    verify(opened, rng, case)


@pytest.mark.parametrize("case", SHAPES, ids=name)
def test_shapes(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Head sizes, groups, strides and addresses that are not aligned, all rows of a dense cache."""
    verify(opened, rng, case)


@pytest.mark.parametrize("case", FEATURES, ids=name)
def test_features(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    verify(opened, rng, case)


# ---- which kernels compute a call ---------------------------------------------------------


def workspace_of(opened: OpenDevice, rng: np.random.Generator, case: Case) -> int:
    """Ask for the workspace of a call."""
    args, size = arguments(opened, case, draw(rng, case)), ffi.new("size_t *")
    o = Buffer(opened, (len(case.lengths or (0, 0)), case.tokens, case.heads, case.head_dim), np.float32)
    args.o.address, args.o.dtype = o.address, CODES["float32"]
    args.o.batch_stride, args.o.row_stride, args.o.head_stride = o.strides[:3]
    check(lib.sm120_attention_with_kv_cache_workspace(opened.handle, args, size))
    opened.release()
    return int(size[0])


def test_which_calls_need_copies_of_keys(opened: OpenDevice, rng: np.random.Generator) -> None:
    """The workspace has the keys of the whole table, in whole columns of 8, and three arrays of numbers."""
    table = Case((200, 40), MANY, head_dim=60, page=16, splits=0)
    numbers, columns = 3 * 256, 14 * 16 * 2 * 2 * 64
    q_and_o = 2 * MANY * 4 * 64
    assert workspace_of(opened, rng, table._replace(head_dim=64)) == numbers + 2 * 2 * columns
    padded = workspace_of(opened, rng, table)
    assert padded >= numbers + 2 * 2 * columns + 2 * q_and_o
    assert workspace_of(opened, rng, table._replace(tokens=FEW, splits=1)) == 0
    assert workspace_of(opened, rng, table._replace(splits=1)) == 0
    assert workspace_of(opened, rng, table._replace(page=0, head_dim=64)) == 0
    lists = workspace_of(opened, rng, table._replace(form="lists", head_dim=64))
    entries = 2 + 13 + 3 + 3  # 13 and 3 pages, 5 other numbers
    assert lists == numbers + 2 * entries * 16 * 2 * 2 * 64


def test_trees_and_given_splits_have_other_kernels(opened: OpenDevice, rng: np.random.Generator) -> None:
    """A mask of drafts, and a number of splits, whose bits do not depend on the batch."""
    verify(opened, rng, Case((200, 130), MANY, page=16, tree=2, splits=0))
    case = Case((200, 130), MANY, page=16)
    x = draw(rng, case)
    try:
        together, _ = run(opened, case, x)
        alone, _ = run(opened, case, x._replace(q=x.q[1:], lengths=np.array([130], np.int32), table=x.table[1:]))
    finally:
        opened.release()
    assert np.array_equal(together[1], alone[0])


def test_tables_wider_than_256_mib(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Sequences are gathered one after the other, into the same place; here each has addresses of its own alignment."""
    page, columns, pages = 1024, 16, 2200
    k, v = rng.standard_normal((2, 4, page, 1, columns)).astype(BF16)
    table = np.full((3, pages), 99, np.int32)
    table[:, 0] = 2, 3, 0
    lengths = np.array([150, 0, 33], np.int32)
    wide = rng.standard_normal(3 * (MANY * 2 * columns + 1)).astype(BF16)
    q = device.array(wide)[: 3 * (MANY * 2 * columns + 1)].reshape(3, -1)[:, :-1]
    there = [device.array(x) for x in (k, v, lengths, table)]
    q = pysm120.Array(q.owner, q.address, (3, MANY, 2, columns), (q.strides[0], 2 * columns, columns, 1), q.dtype)
    o, lse = pysm120.attention_with_kv_cache(
        q, *there[:3], page_table=there[3], causal=True, out_dtype="f4", return_lse=True
    )
    exact = attention_cached(q.numpy(), k, v, lengths, page_table=table[:, :1], causal=True)
    check_close(exact, o.numpy(), lse.numpy())


# ---- narrow caches ------------------------------------------------------------------------


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("forms", [("e4m3", "mxfp8"), ("mxfp8", "nvfp4"), ("nvfp4", "e5m2"), ("e5m2", "e4m3")], ids=str)
def test_narrow_caches(
    device: pysm120.Device, rng: np.random.Generator, forms: tuple[str, str], dtype: str, *, paged: bool
) -> None:
    """They are read as arrays in the dtype of q; scales of pages, heads and rows count."""
    shape = (9, 16, 2, 64) if paged else (2, 72, 2, 64)
    table = rng.permutation(9).astype(np.int32)[:8].reshape(2, 4) if paged else None
    lengths = np.array([50, 64], np.int32)
    q = rng.standard_normal((2, MANY, 4, 64)).astype(DTYPES[dtype])
    given: dict[str, Any] = {}
    values = []
    for letter, form in zip("kv", forms, strict=True):
        x = rng.standard_normal(shape).astype(np.float32)
        factor = np.exp(rng.standard_normal(shape[:3])).astype(np.float32)
        whole = (np.ones_like(factor) if form == "mxfp8" else factor)[..., None]
        held = quantise(x, form, whole)
        values.append(read(held, form, whole, 64).astype(DTYPES[dtype]))
        arrays = [device.array(part) for part in held if part.size]
        given[f"{letter}_cache"] = arrays[0] if len(arrays) == 1 else tuple(arrays)
        given |= {} if form == "mxfp8" else {f"{letter}_scale": device.array(factor)}
    given |= {} if table is None else {"page_table": device.array(table)}
    o, lse = pysm120.attention_with_kv_cache(
        device.array(q), kv_lengths=device.array(lengths), causal=True, out_dtype="f4", return_lse=True, **given
    )
    exact = attention_cached(q, values[0], values[1], lengths, page_table=table, causal=True)
    check_close(exact, o.numpy(), lse.numpy())


# ---- numbers on the device ------------------------------------------------------------------


@pytest.mark.parametrize("form", ["table", "lists"])
@pytest.mark.parametrize("gap", [0, 1])
def test_pages_that_do_not_exist(opened_unchecked: OpenDevice, rng: np.random.Generator, form: str, gap: int) -> None:
    """Neither their keys nor later ones of the sequence are seen. Guard bands around the cache would become results."""
    case = Case((90, 61, 16, 600), MANY, page=16, form=form, gap=gap, splits=0)
    x = draw(rng, case)
    first = [int(x.table[0][b]) if form == "lists" else b * x.table.shape[1] for b in range(4)]
    numbers = (x.table[1] if form == "lists" else x.table).reshape(-1)
    right = numbers.copy()
    for b, at, number, count in ((0, 2, len(x.k), 6), (1, 0, -1, 4), (2, 0, 2**31 - 1, 1), (3, 35, -(2**31), 38)):
        numbers[first[b] + at] = number
        right[first[b] + at : first[b] + count] = -1
    table = (x.table[0], right, x.table[2]) if form == "lists" else right.reshape(x.table.shape)
    try:
        o, lse = run(opened_unchecked, case, x)
    finally:
        opened_unchecked.release()
    check_close(wanted(case, x._replace(table=table)), o, lse)


@pytest.mark.parametrize("page", [0, 16])
def test_lengths_outside_the_cache_are_clamped(
    opened_unchecked: OpenDevice, rng: np.random.Generator, page: int
) -> None:
    case = Case((48, 48, 48), MANY, page=page, splits=0)
    x = draw(rng, case)
    table = None if x.table is None else x.table[:, :3].copy()
    x = x._replace(lengths=np.array([-5, 2**31 - 1, -(2**31)], np.int32), table=table)
    clamped = x._replace(lengths=np.array([0, 48, 0], np.int32))
    try:
        o, lse = run(opened_unchecked, case, x)
    finally:
        opened_unchecked.release()
    check_close(wanted(case, clamped), o, lse)


@pytest.mark.parametrize(
    ("ends", "last"), [((2, 5, 9), 16), ((-3, 5, 7), 16), ((5, 3, 9), 4), ((0, 8, 8), 99), ((8, 20, 30), -5)]
)
def test_lists_that_are_wrong(
    opened_unchecked: OpenDevice, rng: np.random.Generator, ends: tuple[int, int, int], last: int
) -> None:
    """Lists that begin before 0, fall or end behind the page numbers; the rows of a last page are clamped."""
    k, v = (rng.standard_normal((8, 16, 2, 64)).astype(BF16) for _ in range(2))
    q = rng.standard_normal((2, MANY, 4, 64)).astype(BF16)
    numbers = rng.permutation(8).astype(np.int32)
    case = Case((0, 0), MANY, page=16, form="lists", splits=0)
    x = Inputs(q, k, v, None, (np.array(ends, "i4"), numbers, np.array([last, last], "i4")), None, None)
    try:
        o, lse = run(opened_unchecked, case, x)
    finally:
        opened_unchecked.release()
    begin = [max(e, 0) for e in ends[:2]]
    end = [b if ends[n] < 0 else max(min(ends[n + 1], 8), b) for n, b in enumerate(begin)]
    for n in range(2):  # each list by itself
        mine = (np.array([begin[n], end[n]], "i4"), numbers, np.array([min(max(last, 0), 16)], "i4"))
        exact = attention_cached(q[n : n + 1], k, v, page_table=mine, causal=True)
        check_close(exact, o[n : n + 1], lse[n : n + 1])


def test_other_numbers_in_the_same_arrays(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Lengths and page numbers are read on the device: the second call begins with what the first one left."""
    k, v = rng.standard_normal((2, 12, 16, 2, 64)).astype(BF16)
    q = rng.standard_normal((2, MANY, 4, 64)).astype(BF16)
    q_there, k_there, v_there = (device.array(x) for x in (q, k, v))
    lengths, table = device.empty((2,), np.int32), device.empty((2, 6), np.int32)
    out, lse = device.empty(q.shape, np.float32), device.empty((2, 4, MANY))
    workspace = device.empty(1 << 20, np.uint8)
    for counts in ((96, 20), (3, 80), (0, 1)):
        numbers = rng.permutation(12).astype(np.int32).reshape(2, 6)
        lengths.copy_from(np.array(counts, np.int32))
        table.copy_from(numbers)
        pysm120.attention_with_kv_cache(
            q_there, k_there, v_there, lengths, page_table=table, causal=True, out=out, lse=lse, workspace=workspace
        )
        exact = attention_cached(q, k, v, np.array(counts), page_table=numbers, causal=True)
        check_close(exact, out.numpy(), lse.numpy())


def test_prefill_and_decode_share_a_cache(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A prompt in one chunk and one token after it, beside attention of all tokens."""
    tokens, page = 150, 16
    q, k, v = (rng.standard_normal((1, tokens + 1, heads, 64)).astype(BF16) for heads in (4, 2, 2))
    cache = [device.zeros((12, page, 2, 64), ml_dtypes.bfloat16) for _ in range(2)]
    table = device.array(rng.permutation(12).astype(np.int32)[None, :10])
    parts = []
    for begin, end in ((0, tokens), (tokens, tokens + 1)):
        lengths = device.array(np.array([end], np.int32))
        new = [device.array(np.ascontiguousarray(x[:, begin:end])) for x in (q, k, v)]
        pysm120.kv_cache_append(new[1], new[2], cache[0], cache[1], kv_lengths=lengths, page_table=table)
        o = pysm120.attention_with_kv_cache(
            new[0], cache[0], cache[1], lengths, page_table=table, causal=True, out_dtype=np.float32
        )
        parts.append(o.numpy())
    whole = pysm120.attention(q, k, v, causal=True, out_dtype=np.float32, device=device)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=0.02)


# ---- wrong calls ------------------------------------------------------------------------------


def test_a_workspace_that_is_too_small(opened: OpenDevice, rng: np.random.Generator) -> None:
    case = Case((200, 40), MANY, page=16, splits=0)
    args = arguments(opened, case, draw(rng, case))
    o = Buffer(opened, (2, MANY, 4, 64), np.float32)
    args.o.address, args.o.dtype = o.address, CODES["float32"]
    args.o.batch_stride, args.o.row_stride, args.o.head_stride = o.strides[:3]
    size = ffi.new("size_t *")
    try:
        check(lib.sm120_attention_with_kv_cache_workspace(opened.handle, args, size))
        space = Buffer(opened, (int(size[0]),), np.uint8)
        status = lib.sm120_attention_with_kv_cache(opened.handle, args, space.address, size[0] - 1)
        assert status == lib.SM120_WORKSPACE_TOO_SMALL
        assert f"this call needs {size[0]}" in ffi.string(lib.sm120_last_error()).decode()
        status = lib.sm120_attention_with_kv_cache(opened.handle, args, o.address, size[0])
        assert status == lib.SM120_INVALID_ARGUMENT
        assert "overlap" in ffi.string(lib.sm120_last_error()).decode()
        assert np.isnan(o.download()).all()
    finally:
        opened.release()
