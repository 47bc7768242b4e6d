"""attention_with_kv_cache against float64: shapes, features, pages, lengths, splits, places."""

from typing import Any

import numpy as np
import pytest
from cache_cases import Case, Inputs, arguments, draw, name, run, verify, wanted
from cache_reference import attention_cached, check_close
from harness import DTYPES, Buffer, OpenDevice, check, ffi, lib
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pysm120

HEAD_SIZES = [
    Case((70, 9), 3, head_dim=d, v_head_dim=v, dtype=dtype, gap=gap)
    for n, (d, v) in enumerate([(64, 64), (96, 96), (128, 128), (192, 192), (256, 256), (1, 20), (20, 1), (72, 250)])
    for dtype, gap in (("bfloat16", n % 2), ("float16", 8 * (n % 2)), ("bfloat16", 8), ("float16", 1))
]
ROWS = [
    Case((90, tokens // 2, tokens), tokens, heads, kv_heads, splits=1 + tokens % 3)
    for heads, kv_heads in ((3, 3), (4, 1), (12, 2), (16, 1), (32, 1))
    for tokens in (1, 2, 4, 5, 40)
]
FEATURES = [
    Case((100, 30, 7), 9, causal=causal, window=window, splits=splits)
    for causal, window in (
        *((False, (None, None)), (True, (20, None)), (False, (20, 3)), (False, (0, 0)), (False, (None, 0))),
        *((False, (None, 64)), (False, (63, None)), (True, (15, 4)), (False, (2**40, 2**40))),
    )
    for splits in (1, 3)
] + [
    Case((100, 0, 65), 5, **feature, splits=splits)
    for feature in (
        *({"softcap": 3.0}, {"sinks": True}, {"slopes": 1}, {"slopes": 2}, {"scale": -0.3}, {"scale": 0.0}),
        {"softcap": 2.0, "scale": 0.0},
        {"softcap": 20.0, "sinks": True, "slopes": 2, "scale": -0.5, "window": (30, None)},
        *({"o_dtype": "bfloat16"}, {"o_dtype": "float16"}, {"dtype": "float16", "o_dtype": "float16"}),
    )
    for splits in (1, 2)
]
PAGES = [
    Case(
        (*(max(0, pages * page + more) for pages in (1, 2) for more in (-1, 0, 1)), 0),
        2,
        page=page,
        form=form,
        shared=True,
        layout=layout,
        splits=splits,
    )
    for page, splits in ((1, 1), (7, 2), (15, 1), (16, 1), (33, 3), (64, 1))  # 15: a key less than a tile
    for form, layout in (("table", "NHD"), ("lists", "HND"), ("table", "together"))
] + [Case((255, 256, 257, 1), 1, page=256, form="lists", splits=2)]
EDGES = [
    Case(lengths, tokens, page=page, splits=splits)
    for lengths in ((0, 1, 15, 16, 17), (47, 48, 63, 64, 65), (79, 127, 128, 129, 200))
    for tokens, page, splits in ((1, 0, 1), (3, 16, 2))
]
LAYOUTS = [
    Case((60, 33), 2, head_dim=d, layout=layout, gap=gap, page=page, rows=70)
    for layout in ("NHD", "HND", "together")
    for d, gap in ((64, 1), (128, 8), (250, 3))
    for page in (0, 7)
]


TREES = [
    Case((100, 30, 7, 0, tokens), tokens, heads, tree=dimensions, causal=causal, splits=splits, **feature)
    for tokens, heads in ((7, 4), (19, 8), (64, 2))
    for dimensions, causal, splits in ((2, True, 1), (3, False, 2))
    for feature in ({}, {"window": (15, None), "slopes": 1}, {"page": 16, "softcap": 3.0, "sinks": True})
]


@pytest.mark.parametrize("case", HEAD_SIZES, ids=name)
@pytest.mark.sampled(8)
def test_head_sizes(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    verify(opened, rng, case)


@pytest.mark.parametrize("case", ROWS, ids=name)
@pytest.mark.sampled(6)
def test_groups_and_tokens(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Groups of heads that share a kv head, and more rows than a CTA has."""
    verify(opened, rng, case)


@pytest.mark.parametrize("case", FEATURES, ids=name)
@pytest.mark.sampled(12)
def test_features(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    verify(opened, rng, case)


@pytest.mark.parametrize("case", TREES, ids=name)
@pytest.mark.sampled(5)
def test_trees_of_drafts(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """A mask of the tokens' own keys, also where a sequence has fewer keys than tokens."""
    verify(opened, rng, case)


@pytest.mark.parametrize("case", PAGES, ids=name)
@pytest.mark.sampled(6)
def test_pages(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Lengths at the edges of pages; sequences share pages and have some of them twice."""
    verify(opened, rng, case)


@pytest.mark.parametrize("case", EDGES, ids=name)
def test_edges_of_tiles(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    verify(opened, rng, case)


@pytest.mark.parametrize("case", LAYOUTS, ids=name)
@pytest.mark.sampled(6)
def test_layouts(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Strides, gaps of NaN, addresses that are not aligned, K and V in one array."""
    verify(opened, rng, case)


def test_all_rows_of_a_dense_cache(opened: OpenDevice, rng: np.random.Generator) -> None:
    verify(opened, rng, Case(None, 3, rows=77, splits=2))


# ---- splits -----------------------------------------------------------------------


@pytest.mark.parametrize("splits", [*range(10), 64])
@pytest.mark.sampled(5)
def test_splits(opened: OpenDevice, rng: np.random.Generator, splits: int) -> None:
    """Splits without keys among them; 0 lets the library choose."""
    verify(opened, rng, Case((300, 64, 65, 1, 0), 2, splits=splits, page=16, sinks=splits % 2 > 0))


@pytest.mark.parametrize("splits", [1, 3])
def test_bits_do_not_depend_on_the_batch(opened: OpenDevice, rng: np.random.Generator, splits: int) -> None:
    """A sequence alone, and the same one among others, in other pages."""
    case = Case((130, 41, 200), 2, splits=splits, page=16)
    x = draw(rng, case)
    try:
        together, lse = run(opened, case, x)
        for b, count in enumerate(case.lengths or ()):
            moved = rng.permutation(len(x.k)).astype(np.int32)
            table = np.argsort(moved).astype(np.int32)[np.clip(x.table[b : b + 1], 0, len(x.k) - 1)]
            lengths = np.array([count], np.int32)
            alone = x._replace(q=x.q[b : b + 1], k=x.k[moved], v=x.v[moved], lengths=lengths, table=table)
            o, log = run(opened, case, alone)
            assert np.array_equal(o[0], together[b])
            assert np.array_equal(log[0], lse[b])
    finally:
        opened.release()


# ---- scores that rise: the rescaling of O --------------------------------------------


@pytest.mark.parametrize("step", [0.5, 5.7, 30.0, -4.0])
def test_scores_that_rise(opened: OpenDevice, rng: np.random.Generator, step: float) -> None:
    """Each tile of a warp exceeds its last one, by less and by more than the limit of P."""
    case = Case((400,), 2, 2, 1, scale=1.0, causal=False)
    x = draw(rng, case)
    q, k = (np.array(a) for a in (x.q, x.k))
    q[..., 1:], k[..., 1:] = q[..., 1:] / 8, k[..., 1:] / 8
    q[..., 0] = 1
    k[..., 0] = (step * (np.arange(400) // 64)).astype(k.dtype)[None, :, None]
    x = x._replace(q=q, k=k)
    try:
        o, lse = run(opened, case, x)
    finally:
        opened.release()
    check_close(wanted(case, x), o, lse)


# ---- numbers in device memory that are wrong ------------------------------------------


@pytest.mark.parametrize("form", ["table", "lists"])
@pytest.mark.parametrize("gap", [0, 1])
def test_pages_that_do_not_exist(opened_unchecked: OpenDevice, rng: np.random.Generator, form: str, gap: int) -> None:
    """Their keys are not seen. Guard bands around the cache would become results."""
    case = Case((90, 61, 16), 3, page=16, form=form, gap=gap, splits=2)
    x = draw(rng, case)
    numbers = x.table[1] if form == "lists" else x.table
    pages = len(x.k)
    for number, at in zip((pages, -1, 2**31 - 1, -(2**31), pages + 1), rng.permutation(8), strict=False):
        numbers.reshape(-1)[2 + at if form == "lists" else at] = number
    try:
        o, lse = run(opened_unchecked, case, x)
    finally:
        opened_unchecked.release()
    check_close(wanted(case, x), o, lse)


@pytest.mark.parametrize("page", [0, 16])
def test_lengths_outside_the_cache_are_clamped(
    opened_unchecked: OpenDevice, rng: np.random.Generator, page: int
) -> None:
    case = Case((48, 48, 48), 2, page=page)
    x = draw(rng, case)
    table = None if x.table is None else x.table[:, :3].copy()
    x = x._replace(lengths=np.array([-5, 2**31 - 1, -(2**31)], np.int32), table=table)
    clamped = x._replace(lengths=np.array([0, 48, 0], np.int32))
    try:
        o, lse = run(opened_unchecked, case, x)
    finally:
        opened_unchecked.release()
    check_close(wanted(case, clamped), o, lse)


def test_lists_that_are_wrong(opened_unchecked: OpenDevice, rng: np.random.Generator) -> None:
    """A list that falls or begins before 0 is empty; the rows of a last page are clamped."""
    case = Case((48, 40, 33, 20), 2, page=16, form="lists")
    x = draw(rng, case)
    ends, numbers, last = x.table
    x.k[np.isnan(x.k)] = x.v[np.isnan(x.v)] = 0.5
    wrong_last = np.array([99, -3, 1, 4], np.int32)
    wrong_ends = np.array([ends[0], ends[1], ends[2], ends[1], ends[1] + 2], np.int32)
    right_ends = np.array([ends[0], ends[1], ends[2], ends[2], ends[2]], np.int32)
    del last
    try:
        o, lse = run(opened_unchecked, case, x._replace(table=(wrong_ends, numbers, wrong_last)))
        before, no_lse = run(
            opened_unchecked, case, x._replace(table=(np.array([-7, *ends[1:]], "i4"), numbers, wrong_last))
        )
    finally:
        opened_unchecked.release()
    right = x._replace(table=(right_ends, numbers, np.array([16, 0, 1, 4], np.int32)))
    found = wanted(case, right)
    for b in (0, 1, 2):
        part = type(found)(*(a[b : b + 1] for a in found))
        check_close(part, o[b : b + 1], lse[b : b + 1])
    assert np.all(before[0] == 0)
    assert np.all(np.isneginf(no_lse[0]))


@pytest.mark.parametrize("ends", [(5, 9), (8, 11), (9, 12), (2**31 - 8, 2**31 - 1), (5, -(2**31)), (0, 2**31 - 1)])
def test_lists_behind_the_page_numbers(
    opened_unchecked: OpenDevice, rng: np.random.Generator, ends: tuple[int, int]
) -> None:
    """The entries of a list that are not among the page numbers are not read; the bytes there would be pages."""
    k, v = (np.zeros((8, 16, 2, 64), DTYPES["bfloat16"]) for _ in range(2))
    q = rng.standard_normal((1, 2, 4, 64)).astype(DTYPES["bfloat16"])
    numbers = np.arange(8, dtype=np.int32)
    x = Inputs(q, k, v, None, (np.array(ends, "i4"), numbers, np.array([16], "i4")), None, None)
    case = Case((0,), 2, page=16, form="lists", causal=False)
    args = arguments(opened_unchecked, case, x)
    try:
        # Page numbers that are right lie behind the list.
        longer = np.tile(numbers, 4)
        args.page_table = Buffer(opened_unchecked, longer.shape, longer.dtype, values=longer).address
        o = Buffer(opened_unchecked, (1, 2, 4, 64), np.float32)
        args.o.address, args.o.dtype = o.address, lib.SM120_F32
        args.o.batch_stride, args.o.row_stride, args.o.head_stride = o.strides[:3]
        lse = Buffer(opened_unchecked, (1, 4, 2), np.float32)
        args.lse = lse.address
        check(lib.sm120_attention_with_kv_cache(opened_unchecked.handle, args, 0, 0))
        keys = 16 * max(0, min(ends[1], len(numbers)) - ends[0])
        seen = np.log(keys) if keys else -np.inf
        np.testing.assert_allclose(lse.download(), np.full((1, 4, 2), seen), atol=1e-5)
        assert np.all(o.download() == 0)
    finally:
        opened_unchecked.release()


# ---- changes between launches ------------------------------------------------------


@pytest.mark.parametrize("splits", [1, 3])
def test_launches_follow_lengths_and_pages(device: pysm120.Device, rng: np.random.Generator, splits: int) -> None:
    """One call, launched again after lengths and page numbers have changed in device memory."""
    q, k, v = (
        rng.standard_normal(s).astype(DTYPES["bfloat16"]) for s in ((2, 2, 4, 64), (9, 16, 2, 64), (9, 16, 2, 64))
    )
    q_there, k_there, v_there = (device.array(x) for x in (q, k, v))
    lengths, table = device.array(np.zeros(2, np.int32)), device.array(np.zeros((2, 4), np.int32))
    out, lse = device.empty((2, 2, 4, 64), np.float32), device.empty((2, 4, 2))
    for _ in range(3):
        counts, pages = rng.integers(0, 65, 2).astype(np.int32), rng.integers(0, 9, (2, 4)).astype(np.int32)
        lengths.copy_from(counts)
        table.copy_from(pages)
        out.copy_from(np.full(out.shape, np.nan, np.float32))
        pysm120.attention_with_kv_cache(
            q_there, k_there, v_there, lengths, page_table=table, causal=True, num_splits=splits, out=out, lse=lse
        )
        check_close(attention_cached(q, k, v, counts, page_table=pages, causal=True), out.numpy(), lse.numpy())


# ---- from Python -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ndarray", "device"])
@pytest.mark.parametrize("layout", ["NHD", "HND", "together"])
def test_from_python(device: pysm120.Device, rng: np.random.Generator, layout: str, kind: str) -> None:
    """Views of larger arrays at odd places, in either order of rows and heads, with pages."""
    case = Case((50, 0, 31), 3, head_dim=72, page=7, shared=True)
    x = draw(rng, case)
    put: Any = device.array if kind == "device" else np.array
    q = put(np.concatenate([x.q[..., :5], x.q], -1))[..., 5:]
    if layout == "together":
        both = put(np.stack([x.k, x.v], 1))
        k, v = both[:, 0], both[:, 1]
    else:
        order = (0, 2, 1, 3) if layout == "HND" else (0, 1, 2, 3)
        k, v = (put(np.concatenate([a[..., :1], a], -1).transpose(order))[..., 1:] for a in (x.k, x.v))
    lengths = put(x.lengths)
    table = put(np.clip(x.table, 0, len(x.k) - 1))
    out, lse = pysm120.attention_with_kv_cache(
        q,
        k,
        v,
        lengths,
        page_table=table,
        cache_layout="HND" if layout == "HND" else "NHD",
        causal=True,
        num_splits=2,
        out_dtype=np.float32,
        return_lse=True,
        device=None if kind == "device" else device,
    )
    if kind == "device":
        out, lse = out.numpy(), lse.numpy()
    check_close(wanted(case, x), out, lse)


# ---- random problems -----------------------------------------------------------------


@st.composite
def problems(choose: Any) -> Case:
    """Any problem."""
    kv_heads, tokens = choose(st.integers(1, 3)), choose(st.integers(1, 20))
    end = st.none() | st.integers(0, 90)
    gap = choose(st.sampled_from([0, 0, 8, 1, 3]))
    page = choose(st.sampled_from([0, 1, 5, 16, 33, 64]))
    return Case(
        tuple(choose(st.lists(st.integers(0, 150), min_size=1, max_size=3))),
        tokens,
        kv_heads * choose(st.sampled_from([1, 2, 3, 5])),
        kv_heads,
        choose(st.sampled_from([1, 8, 40, 64, 65, 96, 100, 128, 136, 192, 256])),
        choose(st.none() | st.sampled_from([8, 33, 64, 128, 256])),
        page=page,
        form=choose(st.sampled_from(["table", "lists"])),
        causal=choose(st.booleans()),
        window=(choose(end), choose(end)),
        softcap=choose(st.sampled_from([0.0, 0.0, 2.0, 30.0])),
        sinks=choose(st.booleans()),
        slopes=choose(st.integers(0, 2)),
        tree=choose(st.sampled_from((0, 0, 2, 3))),
        scale=choose(st.sampled_from([None, None, 0.0, -0.2, 0.7])),
        splits=choose(st.integers(0, 5)),
        layout=choose(st.sampled_from(["NHD", "HND", "together"])),
        gap=gap,
        dtype=choose(st.sampled_from(["bfloat16", "float16"])),
        o_dtype=choose(st.sampled_from(list(DTYPES))),
        shared=choose(st.booleans()),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=problems(), seed=st.integers(0, 2**32 - 1))
def test_random_problems(opened: OpenDevice, case: Case, seed: int) -> None:
    verify(opened, np.random.default_rng(seed), case)


@pytest.mark.virtual
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "case",
    [Case((90, 17), 3, page=7, splits=2, softcap=4.0), Case((70,), 3, head_dim=100, gap=1, sinks=True)],
    ids=name,
)
@pytest.mark.sampled(2, each=("case",))
def test_order_of_warps(rng: np.random.Generator, case: Case, seed: int) -> None:
    """Every check of the virtual device, and warps in another order: the same bits."""
    x, found = draw(rng, case), []
    for options in (f"checks=full&seed={seed}", "seed=0"):
        ordered = OpenDevice(f"virtual:0?{options}")
        try:
            found.append(run(ordered, case, x))
            ordered.release()
        finally:
            ordered.close()
    for first, second in zip(*found, strict=True):
        assert np.array_equal(first, second)


# ---- C calls: the places of the arrays ------------------------------------------------


def placed(opened: OpenDevice, rng: np.random.Generator, form: str) -> tuple[Any, int, int]:
    """A right call with everything in it: its struct, the size of its workspace, the workspace."""
    case = Case((40, 30), 3, page=16, form=form, sinks=True, slopes=1, tree=2, splits=2)
    args = arguments(opened, case, draw(rng, case))
    o = Buffer(opened, (2, 3, 4, 64), np.float32)
    args.o.address, args.o.dtype = o.address, lib.SM120_F32
    args.o.batch_stride, args.o.row_stride, args.o.head_stride = o.strides[:3]
    args.lse = Buffer(opened, (2, 4, 3), np.float32).address
    size = ffi.new("size_t *")
    check(lib.sm120_attention_with_kv_cache_workspace(opened.handle, args, size))
    base = Buffer(opened, (int(size[0]) + 256,), np.uint8).address
    return args, int(size[0]), -(-base // 256) * 256


def refused(opened: OpenDevice, args: Any, workspace: int, size: int) -> tuple[int, str]:
    status = lib.sm120_attention_with_kv_cache(opened.handle, args, workspace, size)
    return status, ffi.string(lib.sm120_last_error()).decode()


INPUTS = ("q", "k", "v", "kv_lengths", "page_table", "page_indptr", "last_page", "sinks", "alibi_slopes", "tree_mask")


@pytest.mark.parametrize("written", ["o", "lse", "workspace"])
@pytest.mark.parametrize("read", [*INPUTS, "o", "lse"])
def test_results_apart_from_inputs(opened: OpenDevice, rng: np.random.Generator, written: str, read: str) -> None:
    if read in {"o", "lse"} and written != "workspace" and (written, read) != ("lse", "o"):
        return  # the pair stands once
    try:
        args, size, workspace = placed(opened, rng, "lists" if read in {"page_indptr", "last_page"} else "table")
        shared = Buffer(opened, (1 << 16,), np.uint8).address // 256 * 256 + 256
        for member in (read, written):
            if member == "workspace":
                workspace = shared
            elif isinstance(getattr(args, member), int):
                setattr(args, member, shared)
            else:
                getattr(args, member).address = shared
        status, message = refused(opened, args, workspace, size)
        assert status == lib.SM120_INVALID_ARGUMENT
        assert written in message
        assert read in message
        assert "overlap" in message
    finally:
        opened.release()


def test_workspaces_that_are_wrong(opened: OpenDevice, rng: np.random.Generator) -> None:
    try:
        args, needed, workspace = placed(opened, rng, "table")
        assert needed == 2 * 2 * 3 * 4 * (64 + 1) * 4
        status, message = refused(opened, args, workspace, needed - 1)
        assert status == lib.SM120_WORKSPACE_TOO_SMALL
        assert f"workspace_bytes = {needed - 1}; this call needs {needed}" in message
        status, message = refused(opened, args, workspace + 4, needed)
        assert status == lib.SM120_MISALIGNED
        assert "workspace" in message
        args.num_splits = 1  # then none is needed
        assert refused(opened, args, 0, 0)[0] == lib.SM120_OK
    finally:
        opened.release()
