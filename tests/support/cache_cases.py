"""Problems of attention with a cache, and their launch through the C ABI between guard bands.

Every row of a cache that no sequence has is NaN, and so is every page that none uses.
"""

from typing import Any, NamedTuple

import numpy as np
from cache_reference import Attention, attention_cached, check_close
from harness import CODES, DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct
from numpy.lib.stride_tricks import as_strided
from reference import Array

ANYTHING = (-1, -(2**31), 2**31 - 1, 1 << 20, 0)  # page numbers that no key needs


class Case(NamedTuple):
    """One problem."""

    lengths: tuple[int, ...] | None  # of the sequences; None: all rows of a dense cache
    tokens: int = 1
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    v_head_dim: int | None = None
    page: int = 0  # rows of a page; 0: dense
    form: str = "table"  # or "lists"
    causal: bool = True
    window: tuple[int | None, int | None] = (None, None)
    softcap: float = 0.0
    sinks: bool = False
    slopes: int = 0  # dimensions of the ALiBi slopes
    tree: int = 0  # dimensions of the mask of the tokens' own keys
    scale: float | None = None
    splits: int = 1
    layout: str = "NHD"  # or "HND"; "together": K and V in one array [pages, 2, rows, heads, head_dim]
    gap: int = 0  # elements between rows and before the first, beyond those of the layout
    rows: int = 0  # of a dense cache, if they are more than the longest sequence has
    dtype: str = "bfloat16"
    o_dtype: str = "float32"
    shared: bool = False  # sequences have pages in common


class Inputs(NamedTuple):
    """The arrays of a problem; caches as [pages, rows, kv_heads, head_dim]."""

    q: Array
    k: Array
    v: Array
    lengths: Array | None
    table: Any
    sinks: Array | None
    slopes: Array | None
    tree: Array | None = None


def name(case: Case) -> str:
    """Name what differs from the defaults."""
    changed = [f"{field}={x}" for field, x in case._asdict().items() if x != Case._field_defaults.get(field, ())]
    return "-".join(changed).replace(" ", "")


def pages_of(rng: np.random.Generator, lengths: tuple[int, ...], page: int, *, shared: bool) -> list[Array]:
    """Choose the pages of each sequence from a pool: permuted; shared, some are those of others or repeat."""
    counts = [-(-n // page) for n in lengths]
    free = rng.permutation(sum(counts) + 3).astype(np.int32)
    chosen = np.split(free, np.cumsum(counts))[:-1]
    if shared:
        used = free[: sum(counts)]
        chosen = [np.where(rng.random(len(x)) < 0.4, rng.choice(used, len(x)) if len(x) else x, x) for x in chosen]
    return [x.astype(np.int32) for x in chosen]


def table_of(rng: np.random.Generator, chosen: list[Array]) -> Array:
    """Write page numbers as a table; the entries that no key needs hold anything."""
    table = rng.choice(ANYTHING, (len(chosen), max(1, *map(len, chosen)) + 1)).astype(np.int32)
    for row, numbers in zip(table, chosen, strict=True):
        row[: len(numbers)] = numbers
    return table


def lists_of(rng: np.random.Generator, chosen: list[Array], lengths: tuple[int, ...], page: int) -> Any:
    """Write page numbers as lists, behind and before numbers that no sequence has."""
    ends = 2 + np.concatenate([[0], np.cumsum([len(x) for x in chosen])])
    indices = np.concatenate([rng.choice(ANYTHING, 2), *chosen, rng.choice(ANYTHING, 3)])
    last = [(n - 1) % page + 1 if n else 1 for n in lengths]
    return ends.astype(np.int32), indices.astype(np.int32), np.array(last, np.int32)


def hide(case: Case, k: Array, v: Array, lengths: Array | None, table: list[Array] | None) -> None:
    """Write NaN to the rows that no sequence has."""
    used = np.zeros(k.shape[:2], bool)
    for b, count in enumerate([k.shape[1]] * len(k) if lengths is None else lengths):
        at = np.arange(count)
        page = np.full(count, b) if table is None else table[b][at // case.page]
        used[page, at if table is None else at % case.page] = True
    k[~used] = v[~used] = np.nan


def draw(rng: np.random.Generator, case: Case) -> Inputs:
    """Draw the arrays of a problem."""
    dtype = DTYPES[case.dtype]
    lengths = case.lengths
    batch = 2 if lengths is None else len(lengths)
    chosen = pages_of(rng, lengths, case.page, shared=case.shared) if case.page and lengths else None
    rows = case.page or case.rows or max(lengths or (1,)) or 1
    pages = batch if chosen is None else sum(-(-n // case.page) for n in lengths or ()) + 3
    values = [
        rng.standard_normal(shape).astype(dtype)
        for shape in (
            (batch, case.tokens, case.heads, case.head_dim),
            (pages, rows, case.kv_heads, case.head_dim),
            (pages, rows, case.kv_heads, case.v_head_dim or case.head_dim),
        )
    ]
    array = None if lengths is None else np.array(lengths, np.int32)
    hide(case, values[1], values[2], array, chosen)
    table: Any = None
    if chosen is not None and lengths is not None:
        as_lists = case.form == "lists"
        table = lists_of(rng, chosen, lengths, case.page) if as_lists else table_of(rng, chosen)
        array = None if as_lists else array
    sinks = rng.standard_normal(case.heads).astype(np.float32) + 1 if case.sinks else None
    shape = (batch, case.heads)[2 - case.slopes :]
    slopes = rng.random(shape).astype(np.float32) / 4 if case.slopes else None
    of_trees = (batch, case.tokens, case.tokens)[3 - case.tree :]
    tree = (rng.random(of_trees) < 0.6).astype(np.uint8) * rng.integers(1, 256, of_trees).astype(np.uint8)
    return Inputs(values[0], values[1], values[2], array, table, sinks, slopes, tree if case.tree else None)


def wanted(case: Case, x: Inputs) -> Attention:
    """Compute the reference."""
    return attention_cached(
        x.q, x.k, x.v, x.lengths, page_table=x.table, sinks=x.sinks, alibi_slopes=x.slopes, tree_mask=x.tree,
        causal=case.causal, window=case.window, softcap=case.softcap, scale=case.scale, out_dtype=DTYPES[case.o_dtype],
    )  # fmt: skip


# ---- through the C ABI ----------------------------------------------------------------


def place(opened: OpenDevice, case: Case, layout: str, named: dict[str, Array], args: Any) -> None:
    """Place arrays [batch, row, head, column] in one buffer, side by side in each batch, and fill their tensors.

    Gaps are NaN. The first element is `gap` elements behind an aligned address.
    """
    arrays = list(named.values())
    pitch = max(x.shape[3] for x in arrays) + case.gap
    order = (0, 2, 1, 3) if layout == "HND" else (0, 1, 2, 3)
    shape = [arrays[0].shape[i] for i in order[:3]]
    one = shape[1] * shape[2] * pitch
    strides = {order[0]: len(arrays) * one + case.gap, order[1]: shape[2] * pitch, order[2]: pitch}
    flat = np.full(shape[0] * strides[0] + case.gap, np.nan, arrays[0].dtype)
    steps = [2 * strides[i] for i in range(3)] + [2]
    for n, x in enumerate(arrays):
        as_strided(flat[case.gap + n * one :], x.shape, steps)[...] = x
    buffer = Buffer(opened, flat.shape, flat.dtype, values=flat)
    for n, member in enumerate(named):
        struct = getattr(args, member)
        struct.address, struct.dtype = buffer.address + 2 * (case.gap + n * one), CODES[case.dtype]
        struct.batch_stride, struct.row_stride, struct.head_stride = (strides[i] for i in range(3))


def arguments(opened: OpenDevice, case: Case, x: Inputs) -> Any:
    """Place the inputs and fill the struct, except results."""
    args = new_struct("sm120_attention_with_kv_cache_args")
    args.batch, args.q_rows, args.heads, args.head_dim = x.q.shape
    args.pages, args.page_rows, args.kv_heads = x.k.shape[:3]
    args.v_head_dim = x.v.shape[3]
    args.causal = lib.SM120_CAUSAL_BOTTOM_RIGHT if case.causal else lib.SM120_NOT_CAUSAL
    args.scale = case.head_dim**-0.5 if case.scale is None else case.scale
    args.softcap, args.num_splits = case.softcap, case.splits
    left, right = case.window
    args.window = lib.SM120_WINDOW_LEFT * (left is not None) + lib.SM120_WINDOW_RIGHT * (right is not None)
    args.window_left, args.window_right = left or 0, right or 0
    place(opened, case, "NHD", {"q": x.q}, args)
    if case.layout == "together":
        place(opened, case, "NHD", {"k": x.k, "v": x.v}, args)
    else:
        place(opened, case, case.layout, {"k": x.k}, args)
        place(opened, case, case.layout, {"v": x.v}, args)
    members: dict[str, Array | None] = {"kv_lengths": x.lengths, "sinks": x.sinks, "alibi_slopes": x.slopes}
    members["tree_mask"] = x.tree
    if isinstance(x.table, tuple):
        members |= dict(zip(("page_indptr", "page_table", "last_page"), x.table, strict=True))
        args.table_pages = len(x.table[1])
    elif x.table is not None:
        members["page_table"] = x.table
        args.table_pages = x.table.shape[1]
    for member, values in members.items():
        if values is not None:
            setattr(args, member, Buffer(opened, values.shape, values.dtype, values=values).address)
    args.alibi_batch_stride = case.heads if case.slopes > 1 else 0
    args.tree_mask_batch_stride = case.tokens**2 if case.tree == 3 else 0
    return args


def run(opened: OpenDevice, case: Case, x: Inputs) -> tuple[Array, Array]:
    """Launch with a workspace of exactly the needed size, poisoned; O [B, T, H, Dv] and LSE."""
    args = arguments(opened, case, x)
    batch, tokens, heads, _ = x.q.shape
    columns = x.v.shape[3]
    pitch = columns + 3
    strides = (tokens * heads * pitch + 1, heads * pitch, pitch, 1)
    o = Buffer(opened, (batch, tokens, heads, columns), DTYPES[case.o_dtype], strides)
    args.o.address, args.o.dtype = o.address, CODES[case.o_dtype]
    args.o.batch_stride, args.o.row_stride, args.o.head_stride = strides[:3]
    lse = Buffer(opened, (batch, heads, tokens), np.float32)
    args.lse = lse.address
    size = ffi.new("size_t *")
    check(lib.sm120_attention_with_kv_cache_workspace(opened.handle, args, size))
    assert (size[0] > 0) == (case.splits > 1) or case.splits == 0
    space = Buffer(opened, (int(size[0]),), np.uint8).address if size[0] else 0
    check(lib.sm120_attention_with_kv_cache(opened.handle, args, space, size[0]))
    return o.download(), lse.download()


def verify(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Compare one problem with the reference."""
    x = draw(rng, case)
    try:
        o, lse = run(opened, case, x)
    finally:
        opened.release()
    check_close(wanted(case, x), o, lse)
