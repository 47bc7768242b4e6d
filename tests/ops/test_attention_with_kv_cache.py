"""attention_with_kv_cache: its row for the tests of all operations, and its limits."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cache_formats import quantise
from harness import DTYPES, lib
from kernels import Recorded
from operations import Operation, Wrong

import pysm120

BATCH, HEADS, KV_HEADS, Q_ROWS, D = 2, 4, 2, 3, 24
PAGES, PAGE_ROWS, TABLE_PAGES = (1 << 30) - 1, 7, 3
PART = 1 << 14
BF16 = DTYPES["bfloat16"]
HEAD_SIZES = (64, 96, 128, 192, 256)  # of the kernels
Array = np.ndarray[Any, Any]


# ---- the row of the operation ----------------------------------------------------


def fill(args: Any, memory: int) -> None:
    """Fill arguments for bf16, causal, pages, two splits: six arrays one behind the other.

    Every number of a page, whatever fills the table, is that of the same page.
    """
    args.scale, args.causal, args.num_splits = -0.25, lib.SM120_CAUSAL_BOTTOM_RIGHT, 2
    args.batch, args.heads, args.kv_heads, args.q_rows, args.head_dim = BATCH, HEADS, KV_HEADS, Q_ROWS, D
    args.pages, args.page_rows, args.table_pages = PAGES, PAGE_ROWS, TABLE_PAGES
    q, k = (HEADS, Q_ROWS), (KV_HEADS, PAGE_ROWS)
    for n, (struct, (heads, rows)) in enumerate(zip((args.q, args.k, args.v, args.o), (q, k, k, q), strict=True)):
        struct.address, struct.dtype = memory + n * PART, lib.SM120_BF16
        struct.batch_stride, struct.head_stride, struct.row_stride = heads * rows * D, rows * D, D
    args.k.batch_stride = args.v.batch_stride = 0
    args.page_table, args.lse = memory + 4 * PART, memory + 4 * PART + 1024


def launch(device: pysm120.Device) -> None:
    """Every head size and type, aligned and not; few rows and more; splits; copies; pages for more than 128 tokens."""
    call: Any = pysm120.attention_with_kv_cache
    for dtype in ("bfloat16", "float16"):
        x = np.ones((1, 129, 1, 64), DTYPES[dtype])
        call(x, x, x, page_table=np.zeros((1, 1), np.int32), device=device)
    for dtype, head_dim in itertools.product(("bfloat16", "float16"), HEAD_SIZES):
        x = np.ones((1, 3, 1, head_dim), DTYPES[dtype])
        call(x, x, x, num_splits=2, device=device)
        if head_dim in {64, 128, 256}:
            call(x[..., 1:], x[..., 1:], x[..., 1:], device=device)
    for head_dim, dtype in ((64, "float8_e4m3fn"), (128, "float8_e5m2"), (256, "float8_e4m3fn"), (250, "float8_e5m2")):
        for tokens in (3, 9):
            x = np.ones((1, tokens, 1, head_dim), BF16)
            call(x, x.astype(dtype), x.astype(dtype), device=device)
    for dtype, other in (("bfloat16", "float16"), ("float16", "bfloat16")):
        x = np.ones((1, 3, 1, 64), DTYPES[dtype])
        call(x, x.astype(DTYPES[other]), x, page_table=np.zeros((1, 1), np.int32), device=device)
    pairs = (np.ones((1, 3, 1, 32), np.uint8), np.ones((1, 3, 1, 4), "float8_e4m3fn"))
    call(np.ones((1, 3, 1, 64), BF16), pairs, pairs, device=device)


def recorded() -> Iterator[Recorded]:
    """Problems of one and of several splits, dense and in pages.

    One P that rounds the other way changes a whole row, so problems have many rows.
    """
    for precision, step in (("bf16", 2.0**-8), ("f16", 2.0**-11)):
        dtype = DTYPES[{"bf16": "bfloat16", "f16": "float16"}[precision]]
        for head_dim, tokens, page, splits in ((64, 8, 0, 1), (100, 9, 7, 3), (128, 8, 16, 2), (256, 9, 33, 1)):

            def compute(
                device: pysm120.Device,
                rng: np.random.Generator,
                dtype: Any = dtype,
                head_dim: int = head_dim,
                tokens: int = tokens,
                page: int = page,
                splits: int = splits,
            ) -> Array:
                """The output and LSE of two sequences."""
                q = rng.standard_normal((2, tokens, 8, head_dim)).astype(dtype)
                shape = (12, page, 2, head_dim) if page else (2, 200, 2, head_dim)
                k, v = rng.standard_normal((2, *shape)).astype(dtype)
                table = rng.permutation(12).astype(np.int32).reshape(2, 6) if page else None
                lengths = np.array([6 * (page or 30) - 5, 17], np.int32)
                out, lse = pysm120.attention_with_kv_cache(
                    q,
                    k,
                    v,
                    lengths,
                    page_table=table,
                    causal=True,
                    num_splits=splits,
                    out_dtype=np.float32,
                    return_lse=True,
                    device=device,
                )
                return np.concatenate([out.ravel()[::3], lse.ravel()])

            kernels = rf"attention_kv_cache_(any_)?{precision}_\w+|merge_states_f32"
            name = f"attention_with_kv_cache {precision} d{head_dim} {tokens} tokens, pages of {page}, {splits} splits"
            yield Recorded(name, kernels, compute, is_exact=False, step=step)
    cases = itertools.product((2, 8), (("e4m3", 64), ("mxfp8", 128), ("nvfp4", 128), ("e5m2", 256)))
    for tokens, (form, head_dim) in cases:

        def compute_narrow(
            device: pysm120.Device,
            rng: np.random.Generator,
            form: str = form,
            head_dim: int = head_dim,
            tokens: int = tokens,
        ) -> Array:
            """The output and LSE of two sequences, with caches in 8 or 4 bits."""
            q = rng.standard_normal((2, tokens, 8, head_dim)).astype(BF16)
            held = [
                quantise(rng.standard_normal((2, 200, 2, head_dim)).astype(np.float32), form, np.ones(1)) for _ in "kv"
            ]
            k, v = (side if side.blocks.size else side.elements for side in held)
            out, lse = pysm120.attention_with_kv_cache(
                q,
                k,
                v,
                np.array([187, 17], np.int32),
                causal=True,
                num_splits=2,
                out_dtype=np.float32,
                return_lse=True,
                device=device,
            )
            return np.concatenate([out.ravel()[::3], lse.ravel()])

        kernels = r"attention_kv_cache_(any_)?narrow_\w+|merge_states_f32"
        name = f"attention_with_kv_cache {form} d{head_dim} {tokens} tokens"
        yield Recorded(name, kernels, compute_narrow, is_exact=False, step=2.0**-11)


def ones(*shape: int, dtype: Any = BF16) -> Array:
    return np.ones(shape, dtype)


def numbers(*values: int) -> Array:
    return np.array(values, np.int32)


def right(**changes: Any) -> dict[str, Any]:
    """Arguments of a right call of Python with pages, but for some."""
    table = np.array([[0, 1], [4, 2]], np.int32)
    cache = ones(5, 7, 2, 64)
    call = {"q": ones(2, 3, 4, 64), "k_cache": cache, "v_cache": cache, "kv_lengths": numbers(14, 3)}
    return {**call, "page_table": table, **changes}


LISTS = (numbers(0, 2, 3), numbers(0, 1, 4), numbers(7, 3))
PY_WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "return_lse": (TypeError, "return_lse is 'yes', not True or False", right(return_lse="yes")),
    "no cache": (TypeError, "k_cache is a str, not an array with 4 dimensions", right(k_cache="k")),
    "rank of q": (ValueError, r"q has shape \(3, 4, 64\)", right(q=ones(3, 4, 64))),
    "dtype of q": (TypeError, "q has dtype float32, not float16 or bfloat16", right(q=ones(2, 3, 4, 64, dtype="f4"))),
    "dtype of k_cache": (TypeError, "k_cache has dtype float32", right(k_cache=ones(5, 7, 2, 64, dtype="f4"))),
    "head size of k_cache": (ValueError, "k_cache has shape", right(k_cache=ones(5, 7, 2, 32))),
    "pages of v_cache": (ValueError, "v_cache has shape", right(v_cache=ones(4, 7, 2, 64))),
    "heads": (
        ValueError,
        "kv_heads = 3 does not divide heads = 4",
        right(k_cache=ones(5, 7, 3, 64), v_cache=ones(5, 7, 3, 64)),
    ),
    "head size 257": (
        pysm120.UnsupportedError,
        "head_dim = 257",
        right(q=ones(2, 3, 4, 257), k_cache=ones(5, 7, 2, 257)),
    ),
    "dense without pages of its own": (ValueError, "k_cache has shape", right(page_table=None)),
    "rows of the table": (ValueError, r"page_table has shape \(3, 2\)", right(page_table=np.zeros((3, 2), np.int32))),
    "dtype of the table": (TypeError, "page_table has dtype complex64", right(page_table=np.zeros((2, 2), "c8"))),
    "page out of range": (
        ValueError,
        r"page_table\[1, 0\] is 5, but",
        right(page_table=np.array([[0, 1], [5, 2]], "i4")),
    ),
    "length": (ValueError, r"kv_lengths\[0\] is 15, but it must be from 0 to 14", right(kv_lengths=numbers(15, 3))),
    "negative length": (ValueError, r"kv_lengths\[1\] is -1, but", right(kv_lengths=numbers(3, -1))),
    "two lists": (ValueError, "page_table has 2 arrays, not the 3", right(page_table=LISTS[:2], kv_lengths=None)),
    "lists and lengths": (ValueError, "kv_lengths is given, but", right(page_table=LISTS)),
    "falling indptr": (
        ValueError,
        r"page_indptr\[2\] is 1, but",
        right(page_table=(numbers(0, 2, 1), *LISTS[1:]), kv_lengths=None),
    ),
    "end of indptr": (
        ValueError,
        r"page_indptr\[2\] is 4, but",
        right(page_table=(numbers(0, 2, 4), *LISTS[1:]), kv_lengths=None),
    ),
    "page of a list": (
        ValueError,
        r"page_indices\[1\] is -1, but",
        right(page_table=(LISTS[0], numbers(0, -1, 4), LISTS[2]), kv_lengths=None),
    ),
    "last page": (
        ValueError,
        r"last_page_len\[0\] is 8, but",
        right(page_table=(*LISTS[:2], numbers(8, 3)), kv_lengths=None),
    ),
    "cache_layout": (ValueError, "cache_layout is 'HDN', not one of 'NHD', 'HND'", right(cache_layout="HDN")),
    "rank in HND": (
        TypeError,
        r"k_cache is a ndarray of shape \(7, 2, 64\)",
        right(k_cache=ones(7, 2, 64), cache_layout="HND"),
    ),
    "causal": (TypeError, "causal is 1, not True or False", right(causal=1)),
    "window": (TypeError, "window is 3", right(window=3)),
    "scale": (ValueError, "scale is inf", right(scale=math.inf)),
    "softcap": (ValueError, "softcap = -1", right(softcap=-1.0)),
    "num_splits": (ValueError, "num_splits is 0, not a number of parts", right(num_splits=0)),
    "num_splits of a wrong type": (TypeError, "num_splits is 1.5, not an integer", right(num_splits=1.5)),
    "num_splits beyond": (ValueError, "num_splits = 1025", right(num_splits=1025)),
    "sinks": (ValueError, r"sinks has shape \(3,\)", right(sinks=ones(3, dtype="f4"))),
    "tree_mask": (ValueError, r"tree_mask has shape \(3, 2\)", right(tree_mask=ones(3, 2, dtype="?"))),
    "dtype of tree_mask": (TypeError, "tree_mask has dtype int32", right(tree_mask=ones(3, 3, dtype="i4"))),
    "out": (ValueError, r"out has shape \(2, 3, 4, 65\)", right(out=ones(2, 3, 4, 65))),
    "lse": (TypeError, "lse has dtype float64", right(lse=ones(2, 4, 3, dtype="f8"))),
}


def test_a_tree_of_drafts(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Each token of a tree has the result of the chain of its ancestors alone."""
    chains = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5]]
    mask = np.zeros((6, 6), bool)
    for token, chain in enumerate(chains):
        mask[token, chain] = True
    q = rng.standard_normal((1, 6, 4, 64)).astype(BF16)
    k, v = rng.standard_normal((2, 1, 46, 2, 64)).astype(BF16)
    got = pysm120.attention_with_kv_cache(q, k, v, tree_mask=mask, out_dtype="f4", device=device)
    for token, chain in enumerate(chains):
        keys = [*range(40), *(40 + i for i in chain)]
        alone = pysm120.attention_with_kv_cache(
            q[:, chain], k[:, keys], v[:, keys], causal=True, out_dtype="f4", device=device
        )
        assert np.allclose(got[:, token], alone[:, -1], rtol=0.02, atol=0.01)


OPERATION = Operation(
    name="attention_with_kv_cache",
    fill=fill,
    wrong=[
        Wrong("causal", lib.SM120_CAUSAL_TOP_LEFT, "INVALID_ARGUMENT", "causal = 2"),
        Wrong("causal", 4, "INVALID_ARGUMENT", "causal = 4"),
        Wrong("batch", 0, "INVALID_ARGUMENT", "batch = 0"),
        Wrong("batch", 65536, "UNSUPPORTED", "batch = 65536"),
        Wrong("heads", 3, "INVALID_ARGUMENT", "kv_heads = 2 does not divide heads = 3"),
        Wrong("heads", 65536, "UNSUPPORTED", "heads = 65536"),
        Wrong("kv_heads", 0, "INVALID_ARGUMENT", "kv_heads = 0"),
        Wrong("q_rows", 0, "INVALID_ARGUMENT", "q_rows = 0"),
        Wrong("q_rows", 1 << 20, "INVALID_ARGUMENT", "overlap"),
        Wrong("head_dim", 0, "INVALID_ARGUMENT", "head_dim = 0"),
        Wrong("head_dim", 257, "UNSUPPORTED", "head_dim = 257"),
        Wrong("v_head_dim", -1, "INVALID_ARGUMENT", "v_head_dim = -1"),
        Wrong("v_head_dim", 300, "UNSUPPORTED", "v_head_dim = 300"),
        Wrong("pages", 0, "INVALID_ARGUMENT", "pages = 0"),
        Wrong("page_rows", 0, "INVALID_ARGUMENT", "page_rows = 0"),
        Wrong("page_rows", 1 << 30, "UNSUPPORTED", "page_rows"),
        Wrong("table_pages", 0, "INVALID_ARGUMENT", "table_pages = 0"),
        Wrong("table_pages", 1 << 40, "UNSUPPORTED", "table_pages"),
        Wrong("page_table", 0, "INVALID_ARGUMENT", "without page_table they must be 0"),
        Wrong("page_table", 2, "MISALIGNED", "page_table"),
        Wrong("page_indptr", 1 << 40, "INVALID_ARGUMENT", "give both or neither"),
        Wrong("last_page", 1 << 40, "INVALID_ARGUMENT", "give both or neither"),
        Wrong("kv_lengths", 2, "MISALIGNED", "kv_lengths"),
        Wrong("q.dtype", lib.SM120_F32, "INVALID_ARGUMENT", "q.dtype"),
        Wrong("q.reserved", 1, "INVALID_ARGUMENT", "q.reserved"),
        Wrong("k.dtype", lib.SM120_F16, "UNSUPPORTED", "they are copied, and page_rows = 7"),
        Wrong("k.dtype", lib.SM120_E4M3, "UNSUPPORTED", "they are copied, and page_rows = 7"),
        Wrong("k.dtype", lib.SM120_U8, "INVALID_ARGUMENT", "k.dtype = U8 (0x00010801) needs scales in blocks"),
        Wrong("k_blocks.address", 4096, "INVALID_ARGUMENT", "k_blocks.address = 0x1000"),
        Wrong("v_scale.address", 4096, "INVALID_ARGUMENT", "v_scale.address = 0x1000"),
        Wrong("v.dtype", 0, "INVALID_ARGUMENT", "v.dtype"),
        Wrong("o.dtype", lib.SM120_E4M3, "UNSUPPORTED", "o.dtype"),
        Wrong("q.address", 0, "INVALID_ARGUMENT", "q.address = 0"),
        Wrong(
            "window_right", 3, "INVALID_ARGUMENT", "window_right = 3; without WINDOW_RIGHT (2) in window it must be 0"
        ),
        Wrong("k.address", 1, "MISALIGNED", "k.address"),
        Wrong("v.address", 0, "INVALID_ARGUMENT", "v.address = 0"),
        Wrong("o.address", 0, "INVALID_ARGUMENT", "o.address = 0"),
        Wrong("q.batch_stride", -8, "INVALID_ARGUMENT", "q.batch_stride = -8"),
        Wrong("k.row_stride", 0, "INVALID_ARGUMENT", "k.row_stride = 0"),
        Wrong("v.row_stride", 1 << 62, "UNSUPPORTED", "v.row_stride"),
        Wrong("o.row_stride", 4, "INVALID_ARGUMENT", "overlap"),
        Wrong("lse", 2, "MISALIGNED", "lse"),
        Wrong("sinks", 2, "MISALIGNED", "sinks"),
        Wrong("alibi_slopes", 2, "MISALIGNED", "alibi_slopes"),
        Wrong("tree_mask_batch_stride", 3, "INVALID_ARGUMENT", "tree_mask_batch_stride = 3"),
        Wrong("alibi_batch_stride", 3, "INVALID_ARGUMENT", "alibi_batch_stride = 3"),
        Wrong("window", 4, "INVALID_ARGUMENT", "window = 4"),
        Wrong("scale", math.inf, "INVALID_ARGUMENT", "scale = inf"),
        Wrong("softcap", 2000.0, "UNSUPPORTED", "softcap = 2000"),
        Wrong("softcap", -1.0, "INVALID_ARGUMENT", "softcap = -1"),
        Wrong("v_swizzled", 2, "INVALID_ARGUMENT", "v_swizzled = 2"),
        Wrong("v_swizzled", 1, "INVALID_ARGUMENT", "it needs v in NVFP4"),
        Wrong("num_splits", -1, "INVALID_ARGUMENT", "num_splits = -1"),
        Wrong("num_splits", 1025, "INVALID_ARGUMENT", "num_splits = 1025"),
        Wrong("num_splits", 9, "WORKSPACE_TOO_SMALL", "workspace_bytes"),
    ],
    refused={what: (kind, message, ((), options)) for what, (kind, message, options) in PY_WRONG.items()},
    launch=launch,
    recorded=tuple(recorded()),
)


# ---- its limits ------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2])
def test_in_chunks_as_attention(device: pysm120.Device, rng: np.random.Generator, tokens: int) -> None:
    """A dense cache of all rows gives what attention gives, within the rounding of P."""
    q, k, v = (rng.standard_normal((2, n, h, 64)).astype(BF16) for n, h in ((tokens, 4), (90, 2), (90, 2)))
    wanted, lse = pysm120.attention(
        q, k, v, causal=True, precision="bf16", out_dtype=np.float32, return_lse=True, device=device
    )
    out, sums = pysm120.attention_with_kv_cache(
        q, k, v, causal=True, out_dtype=np.float32, return_lse=True, device=device
    )
    np.testing.assert_allclose(out, wanted, atol=2.0**-7)
    np.testing.assert_allclose(sums, lse, atol=1e-5)
