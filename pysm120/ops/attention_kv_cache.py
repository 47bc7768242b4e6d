"""Attention of few queries and a cache of keys and values, and the merge of attention over parts of the keys."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops.attention_call import Rules, fill_scores
from pysm120.ops.cache import Cache
from pysm120.ops.call import AnyArray, Operation
from pysm120.ops.options import flag, one_of, splits
from pysm120.ops.plan import NEW, result
from pysm120.ops.table import E4M3, E5M2, E8M0, F32, FLOATS, I32, U8, Input, Output
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.untraced import untraced

_HALVES = FLOATS[1:]
_FLAGS = (np.dtype(np.bool_), *U8)
_TREES_RANK = 3


class _Options(NamedTuple):
    """The options of a call, as the user gave them."""

    rules: Rules
    num_splits: Any
    v_swizzled: bool
    sizes: tuple[tuple[str, int, str], ...]


def _fill(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options."""
    fill_scores(args, given, options.rules)
    args.v_swizzled = options.v_swizzled
    if "tree_mask" in given and len(given["tree_mask"].shape) == _TREES_RANK:
        args.tree_mask_batch_stride = args.q_rows**2
    args.num_splits = splits(options.num_splits)


def _fill_dense(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options of a dense cache, in which each sequence has one page."""
    args.pages = args.batch
    _fill(args, given, options)


# ---- the values of ndarrays ----------------------------------------------------------


def _refuse(name: str, values: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], rule: str) -> None:
    """Raise for the first wrong value of an array."""
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        message = f"{name}[{', '.join(map(str, at))}] is {values[at]}, but it must be {rule}"
        raise InvalidArgumentError(message)


def _check_dense(given: dict[str, npt.NDArray[Any]], options: Any) -> Any:
    """Check the lengths of a dense cache."""
    lengths, rows = given.get("kv_lengths"), given["k_cache"].shape[1]
    if lengths is not None:
        _refuse("kv_lengths", lengths, (lengths < 0) | (lengths > rows), f"from 0 to {rows}, the rows of k_cache")
    return options


def _check_table(given: dict[str, npt.NDArray[Any]], options: Any) -> Any:
    """Check lengths, and the page numbers that they need."""
    (pages, page_rows), page_table = given["k_cache"].shape[:2], given["page_table"]
    most = page_rows * page_table.shape[1]
    lengths = given.get("kv_lengths", np.full(len(page_table), most))
    _refuse("kv_lengths", lengths, (lengths < 0) | (lengths > most), f"from 0 to {most}, the rows of its pages")
    needed = np.arange(page_table.shape[1]) < -(-lengths // page_rows)[:, None]
    wrong = needed & ((page_table < 0) | (page_table >= pages))
    _refuse("page_table", page_table, wrong, f"from 0 to {pages - 1}, a page of k_cache")
    return options


def _check_lists(given: dict[str, npt.NDArray[Any]], options: Any) -> Any:
    """Check lists of pages."""
    (pages, page_rows), numbers = given["k_cache"].shape[:2], given["page_indices"]
    starts, last = given["page_indptr"], given["last_page_len"]
    falls = np.concatenate([[starts[0] < 0], np.diff(starts) < 0]) | (starts > len(numbers))
    _refuse("page_indptr", starts, falls, f"at least the one before it, and at most {len(numbers)}, the page numbers")
    _refuse("last_page_len", last, (last < 1) | (last > page_rows), f"from 1 to {page_rows}, the rows of a page")
    wrong = (numbers < 0) | (numbers >= pages)
    wrong[: starts[0]] = wrong[starts[-1] :] = False
    _refuse("page_indices", numbers, wrong, f"from 0 to {pages - 1}, a page of k_cache")
    return options


# ---- the operations -------------------------------------------------------------------


_LENGTHS = Input("kv_lengths", "batch", I32, optional=True)
# For each form of the page table: the name of the first dimension of a cache, its arrays, the checks.
_PLACES: dict[str, tuple[str, tuple[Input, ...], Any, Callable[..., Any]]] = {
    "dense": ("batch", (_LENGTHS,), _fill_dense, _check_dense),
    "table": ("pages", (Input("page_table", "batch table_pages", I32), _LENGTHS), _fill, _check_table),
    "lists": (
        "pages",
        (
            Input("page_indices", "table_pages", I32, member="page_table"),
            Input("page_indptr", "batch+1", I32),
            Input("last_page_len", "batch", I32, member="last_page"),
        ),
        _fill,
        _check_lists,
    ),
}


# How a cache holds fewer than 16 bits: dtypes of elements, how many share one, dtype and columns of scales in blocks.
_FORMS: dict[str, tuple[Any, str, Any, int]] = {
    "byte": ((*E4M3, *E5M2), "", (), 0),
    "mxfp8": (E4M3, "", E8M0, 32),
    "nvfp4": (U8, "/2", E4M3, 16),
}


def _cache_rows(letter: str, kind: str, pages: str, size: str) -> list[Input]:
    """Return the rows of K or V."""
    name, where = f"{letter}_cache", f"{pages} kv_heads page_rows"
    if kind == "half":
        return [Input(name, f"{where} {size}", _HALVES, member=letter)]
    elements, pair, blocks, block = _FORMS[kind]
    rows = [Input(name, f"{where} {size}{pair}", elements, member=letter)]
    if block:
        rows.append(Input(f"{name}[1]", f"{where} {size}/{block}", blocks, member=f"{letter}_blocks"))
    return [*rows, Input(f"{letter}_scale", f"{where} 1", F32, optional=True, broadcasts=True)]


@functools.cache
def _operation(place: str, k: str, v: str) -> Operation:
    """Return the operation for a form of the page table and for how the cache holds K and V."""
    pages, rows, fill, on_host = _PLACES[place]
    return Operation(
        "sm120_attention_with_kv_cache",
        (
            Input("q", "batch heads q_rows head_dim", _HALVES),
            *_cache_rows("k", k, pages, "head_dim"),
            *_cache_rows("v", v, pages, "v_head_dim"),
            *rows,
            Input("sinks", "heads", F32, optional=True),
            Input("alibi_slopes", "heads | batch heads", F32, optional=True),
            Input("tree_mask", "q_rows q_rows | batch q_rows q_rows", _FLAGS, optional=True),
            Output("out", "batch heads q_rows v_head_dim", member="o", like="q", converts=True),
            Output("lse", "batch heads q_rows", F32),
        ),
        order="BSHD",
        fill=fill,
        on_host=on_host,
    )


def _kind_of(cache: Cache) -> str:
    """Return how a cache holds elements: "half", "byte", "mxfp8" or "nvfp4"."""
    is_byte = cache.dtype in (*E4M3, *E5M2)
    kind = cache.kind if cache.kind != "plain" else "byte" if is_byte else "half"
    if cache.scale is not None and kind not in {"byte", "nvfp4"}:
        message = (
            f"{cache.letter}_scale is given, but only a {cache.letter}_cache in float8 without other scales, "
            "or in NVFP4, has it"
        )
        raise InvalidArgumentError(message)
    return kind


_LIST_PARTS = 3


@untraced
def attention_with_kv_cache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    kv_lengths: Any = None,
    *,
    page_table: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    v_swizzled: bool = False,
    cache_layout: str = "NHD",
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    sinks: Any = None,
    alibi_slopes: Any = None,
    tree_mask: Any = None,
    scale: float | None = None,
    num_splits: int | None = None,
    out: Any = None,
    out_dtype: npt.DTypeLike | None = None,
    return_lse: bool = False,
    lse: Any = None,
    device: Device | str | None = None,
    stream: Any = None,
    workspace: Array | None = None,
) -> Any:
    """Return softmax(scale * q k^T) v of the last tokens of sequences and a cache of keys and values.

    Parameters
    ----------
    q : array, float16 or bfloat16, shape (B, T, H, D)
        Queries: T tokens of each sequence, its last ones. D is up to 256. ndarrays
        are copied to the device and the result back; an Array, or an array that
        supports DLPack, stays on its device. Other arrays are of the same kind.
    k_cache : array, float16 or bfloat16, shape (B, S, Hkv, D), or (pages, page, Hkv, D)
        Keys: dense, or in pages of any size. H is a multiple of Hkv: head h of q
        uses head h // (H / Hkv). Any strides, if the last one is 1. Or as
        `kv_cache_append` writes it: float8_e4m3fn or float8_e5m2, with k_scale;
        MXFP8, (float8_e4m3fn, float8_e8m0fnu) with scales (..., ceil(D / 32)); NVFP4,
        (uint8, float8_e4m3fn) with elements (..., D / 2) and scales (..., ceil(D /
        16)), and k_scale.
    v_cache : array, float16 or bfloat16, shape (B, S, Hkv, Dv), or (pages, page, Hkv, Dv)
        Values, in any of these forms, whatever the form of the keys.
    kv_lengths : array, int32, shape (B,), optional
        Keys of each sequence, those of q's tokens included. Default: all rows.
        On a GPU, numbers outside the cache are clamped to it. Not with lists of pages.
    page_table : array, int32, shape (B, P), or 3 arrays, optional
        The pages of each sequence; page_table[b, n] has its keys n * page to
        (n + 1) * page - 1. Or lists as in FlashInfer: (indptr, indices,
        last_page_len) of shapes (B + 1,), (N,), (B,); the pages of sequence b are
        indices[indptr[b]:indptr[b + 1]], and the last holds last_page_len[b] keys.
        Without it the cache is dense. Sequences may share pages.
    k_scale, v_scale : array, float32, optional
        Of float8 and NVFP4 caches: an element is worth element * scale, in NVFP4
        times its scale in blocks. A shape that broadcasts to (pages, page, Hkv). A
        number if the arrays are ndarrays.
    v_swizzled : bool
        The NVFP4 scales of V are in the order that `kv_cache_append` explains.
    cache_layout : {"NHD", "HND"}
        Order of rows, heads and head size in the caches, their scales, and a
        `k_scale` with three dimensions.
    causal : bool
        Token i uses only the keys up to i + d; d = kv_lengths - T.
    window : (int or None, int or None)
        Token i uses only the keys from i + d - window[0] to i + d + window[1].
    softcap : float
        Scores become softcap * tanh(score / softcap). 0 turns it off.
    sinks : array, float32, shape (H,), optional
        An additional score in the softmax sum of every row, without a value.
    alibi_slopes : array, float32, shape (H,) or (B, H), optional
        Scores become score - slope * abs(i + d - key).
    tree_mask : array, bool or uint8, shape (T, T) or (B, T, T), optional
        Token i does not use the key of token j, key d + j, where tree_mask[i, j] is
        0: for the tokens of a tree of drafts.
    scale : float, optional
        Default: 1 / sqrt(D).
    num_splits : int, optional
        Parts of the keys that CTAs share. Default: what fills the device. With a
        fixed number the bits of a sequence do not depend on the batch.
    out, out_dtype, return_lse, lse, device, stream, workspace
        As in `attention`.

    Returns
    -------
    out : array, shape (B, T, H, Dv)
        Rows without any key are 0.
    lse : array, float32, shape (B, H, T)
        With ``return_lse``, as in `attention`.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value; numbers of pages
        and lengths in ndarrays. On a GPU, keys of pages that do not exist are not
        seen, nor, in the kernels of `attention`, those behind; no memory outside the
        cache is read.
    FaultError
        Numbers of pages or lengths out of range, on a virtual device.

    Notes
    -----
    The launches do not depend on lengths and page numbers, so a captured call may
    be replayed after these have changed.

    With many tokens, where it is estimated to be faster, the kernels of `attention`
    compute the call, unless `tree_mask` or `num_splits` is given. They read pages
    and narrow caches from a copy in the workspace.

    If one cache has 16 bits, and one of the two does not have the dtype of q, both are
    copied to the workspace in that dtype, whatever the number of tokens. In float16,
    values beyond 65504 become infinite.

    """
    one_of(cache_layout, "cache_layout", ("NHD", "HND"))
    given = (("k", k_cache, k_scale), ("v", v_cache, v_scale))
    k, v = (Cache.of(letter, x, factor, cache_layout) for letter, x, factor in given)
    inputs = {"q": q, **k.named(), **v.named(), "sinks": sinks}
    inputs |= {"alibi_slopes": alibi_slopes, "tree_mask": tree_mask}
    kinds = [_kind_of(x) for x in (k, v)]
    inputs |= {f"{x.letter}_scale": x.scale for x, kind in zip((k, v), kinds, strict=True) if kind != "half"}
    place = "dense"
    if isinstance(page_table, tuple | list):
        if len(page_table) != _LIST_PARTS:
            message = f"page_table has {len(page_table)} arrays, not the 3 of lists: indptr, indices, last_page_len"
            raise InvalidArgumentError(message)
        if kv_lengths is not None:
            message = "kv_lengths is given, but with lists of pages last_page_len has the lengths"
            raise InvalidArgumentError(message)
        place = "lists"
        inputs |= dict(zip(("page_indptr", "page_indices", "last_page_len"), page_table, strict=True))
    else:
        inputs["kv_lengths"] = kv_lengths
        if page_table is not None:
            place = "table"
            inputs["page_table"] = page_table
    options = _Options(
        Rules(flag(causal, "causal"), "bottom-right", window, softcap, scale),
        num_splits,
        v_swizzled=flag(v_swizzled, "v_swizzled"),
        sizes=(("v_head_dim", v.head_dim, "v_cache"),),
    )
    results = {"out": result(out, out_dtype), "lse": NEW if flag(return_lse, "return_lse") and lse is None else lse}
    operation = _operation(place, *kinds)
    computed, sums = operation(inputs, results, options, device=device, stream=stream, workspace=workspace)
    return (computed, sums) if return_lse else computed


# ---- merge ------------------------------------------------------------------------------

_MERGE = Operation(
    "sm120_merge_states",
    (
        Input("outs", "state_batches heads rows head_dim"),
        Input("lses", "states batch heads rows", F32),
        Input("sinks", "heads", F32, optional=True),
        Output("out", "batch heads rows head_dim", member="o", like="outs", converts=True),
        Output("lse", "batch heads rows", F32),
    ),
    order="BSHD",
)
_STATES_RANK = 5


@untraced
def merge_states(
    outs: AnyArray,
    lses: AnyArray,
    *,
    sinks: Any = None,
    out: Any = None,
    out_dtype: npt.DTypeLike | None = None,
    lse: Any = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> Any:
    """Return the attention of all keys from the attention of N parts of them.

    It joins splits of the keys, a shared prefix with the rest of a sequence
    (cascades), or the steps of a ring.

    Parameters
    ----------
    outs : array, float32, float16 or bfloat16, shape (N, B, S, H, D)
        Attention of each part, contiguous along N and B. ndarrays are copied to
        the device and the result back.
    lses : array, float32, shape (N, B, H, S), contiguous
        Log-sum-exp of each part, natural. A part with -inf has no key; its outs
        are not read.
    sinks : array, float32, shape (H,), optional
        An additional score in the softmax sum of every row, without a value.
    out : array, shape (B, S, H, D), optional
        The array for the result.
    out_dtype : dtype, optional
        float32, float16 or bfloat16. Default: that of ``out``, else that of outs.
    lse : array, float32, shape (B, H, S), optional
        The array for the log-sum-exp of all keys.
    device, stream
        As in `attention`.

    Returns
    -------
    out : array, shape (B, S, H, D)
        sum(exp(lses[n] - lse) * outs[n]); rows without any key are 0.
    lse : array, float32, shape (B, H, S)
        log(sum(exp(lses))).

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    """
    given: dict[str, Any] = {"outs": outs, "lses": lses}
    for name, x in given.items():
        if not hasattr(x, "shape"):
            message = f"{name} is a {type(x).__name__}, not an array"
            raise TypeError(message)
    shape = tuple(given["outs"].shape)
    if len(shape) != _STATES_RANK or not hasattr(outs, "reshape"):
        message = f"outs has shape {shape}, not [states, batch, rows, heads, head_dim]"
        raise InvalidArgumentError(message)
    sums = tuple(given["lses"].shape)
    if len(sums) != _STATES_RANK - 1 or sums[:2] != shape[:2]:
        message = f"lses has shape {sums}, not [states, batch, heads, rows] of outs, {shape}"
        raise InvalidArgumentError(message)
    inputs = {"outs": outs.reshape(shape[0] * shape[1], *shape[2:]), "lses": lses, "sinks": sinks}
    results = {"out": result(out, out_dtype), "lse": NEW if lse is None else lse}
    computed, total = _MERGE(inputs, results, device=device, stream=stream)
    return computed, total
