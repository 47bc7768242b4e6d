"""Attention of few queries and a cache of keys and values, and the merge of attention over parts of the keys."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops.attention_call import fill_scores
from pysm120.ops.call import AnyArray, Operation
from pysm120.ops.options import flag, integer, one_of
from pysm120.ops.plan import NEW, result
from pysm120.ops.table import F32, FLOATS, I32, Input, Output
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError

_HALVES = FLOATS[1:]


class _Options(NamedTuple):
    """The options of a call, as the user gave them."""

    causal: Any
    window: Any
    softcap: Any
    scale: Any
    num_splits: Any
    causal_align: str = "bottom-right"


def _fill(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options."""
    fill_scores(args, given, options)
    args.num_splits = splits = 0 if options.num_splits is None else integer(options.num_splits, "num_splits")
    if splits < 0 or (options.num_splits is not None and splits == 0):
        message = f"num_splits is {options.num_splits}, not a number of parts: at least 1, or None"
        raise InvalidArgumentError(message)


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


def _operation(pages: str, *rows: Input, fill: Any, on_host: Callable[..., Any]) -> Operation:
    return Operation(
        "sm120_attention_with_kv_cache",
        (
            Input("q", "batch heads q_rows head_dim", _HALVES),
            Input("k_cache", f"{pages} kv_heads page_rows head_dim", _HALVES, member="k", like="q"),
            Input("v_cache", f"{pages} kv_heads page_rows v_head_dim", _HALVES, member="v", like="q"),
            *rows,
            Input("sinks", "heads", F32, optional=True),
            Input("alibi_slopes", "heads | batch heads", F32, optional=True),
            Output("out", "batch heads q_rows v_head_dim", member="o", like="q", converts=True),
            Output("lse", "batch heads q_rows", F32),
        ),
        order="BSHD",
        fill=fill,
        on_host=on_host,
    )


_LENGTHS = Input("kv_lengths", "batch", I32, optional=True)
_DENSE = _operation("batch", _LENGTHS, fill=_fill_dense, on_host=_check_dense)
_TABLE = _operation("pages", Input("page_table", "batch table_pages", I32), _LENGTHS, fill=_fill, on_host=_check_table)
_LISTS = _operation(
    "pages",
    Input("page_indices", "table_pages", I32, member="page_table"),
    Input("page_indptr", "batch+1", I32),
    Input("last_page_len", "batch", I32, member="last_page"),
    fill=_fill,
    on_host=_check_lists,
)
_LIST_PARTS = 3


def attention_with_kv_cache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    kv_lengths: Any = None,
    *,
    page_table: Any = None,
    cache_layout: str = "NHD",
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    sinks: Any = None,
    alibi_slopes: Any = None,
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
    """Return softmax(scale * q k^T) v of few queries and a cache of keys and values.

    Parameters
    ----------
    q : array, float16 or bfloat16, shape (B, T, H, D)
        Queries: T tokens of each sequence, its last ones. D is up to 256. ndarrays
        are copied to the device and the result back; an Array, or an array that
        supports DLPack, stays on its device. Other arrays are of the same kind.
    k_cache : array, dtype of q, shape (B, S, Hkv, D), or (pages, page, Hkv, D)
        Keys: dense, or in pages of any size. H is a multiple of Hkv: head h of q
        uses head h // (H / Hkv). Any strides, if the last one is 1.
    v_cache : array, dtype of q, shape (B, S, Hkv, Dv), or (pages, page, Hkv, Dv)
        Values.
    kv_lengths : array, int32, shape (B,), optional
        Keys of each sequence, those of q's tokens included. Default: all rows.
        Numbers outside the cache are clamped to it. Not with lists of pages.
    page_table : array, int32, shape (B, P), or 3 arrays, optional
        The pages of each sequence; page_table[b, n] has its keys n * page to
        (n + 1) * page - 1. Or lists as in FlashInfer: (indptr, indices,
        last_page_len) of shapes (B + 1,), (N,), (B,); the pages of sequence b are
        indices[indptr[b]:indptr[b + 1]], and the last holds last_page_len[b] keys.
        Without it the cache is dense. Sequences may share pages.
    cache_layout : {"NHD", "HND"}
        Order of rows, heads and head size in the caches.
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
        An argument of the wrong shape, stride, alignment or value. Numbers of
        pages and lengths are checked in ndarrays only. On a device, keys of pages
        that do not exist are not seen, and no memory outside the cache is read.

    Notes
    -----
    The launches do not depend on lengths and page numbers, so a captured call may
    be replayed after these have changed.

    """
    one_of(cache_layout, "cache_layout", ("NHD", "HND"))
    if cache_layout == "HND":
        k_cache, v_cache = (_rows_first(x, name) for x, name in ((k_cache, "k_cache"), (v_cache, "v_cache")))
    inputs = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "sinks": sinks, "alibi_slopes": alibi_slopes}
    operation = _DENSE
    if isinstance(page_table, tuple | list):
        if len(page_table) != _LIST_PARTS:
            message = f"page_table has {len(page_table)} arrays, not the 3 of lists: indptr, indices, last_page_len"
            raise InvalidArgumentError(message)
        if kv_lengths is not None:
            message = "kv_lengths is given, but with lists of pages last_page_len has the lengths"
            raise InvalidArgumentError(message)
        operation = _LISTS
        inputs |= dict(zip(("page_indptr", "page_indices", "last_page_len"), page_table, strict=True))
    else:
        inputs["kv_lengths"] = kv_lengths
        if page_table is not None:
            operation = _TABLE
            inputs["page_table"] = page_table
    options = _Options(flag(causal, "causal"), window, softcap, scale, num_splits)
    results = {"out": result(out, out_dtype), "lse": NEW if lse is None and return_lse else lse}
    computed, sums = operation(inputs, results, options, device=device, stream=stream, workspace=workspace)
    return (computed, sums) if return_lse else computed


def _rows_first(x: Any, name: str) -> Any:
    """Return a view of a cache with rows before heads."""
    if not hasattr(x, "transpose") or len(getattr(x, "shape", ())) != len("NHSD"):
        message = f"{name} is a {type(x).__name__} of shape {getattr(x, 'shape', None)}, which has no 4 dimensions"
        raise TypeError(message)
    return x.transpose(0, 2, 1, 3)


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
    shape = tuple(getattr(outs, "shape", ()))
    if len(shape) != _STATES_RANK or not hasattr(outs, "reshape"):
        message = f"outs has shape {shape}, not [states, batch, rows, heads, head_dim]"
        raise InvalidArgumentError(message)
    sums = tuple(getattr(lses, "shape", ()))
    if len(sums) != _STATES_RANK - 1 or sums[:2] != shape[:2]:
        message = f"lses has shape {sums}, not [states, batch, heads, rows] of outs, {shape}"
        raise InvalidArgumentError(message)
    inputs = {"outs": outs.reshape(shape[0] * shape[1], *shape[2:]), "lses": lses, "sinks": sinks}
    results = {"out": result(out, out_dtype), "lse": NEW if lse is None else lse}
    computed, total = _MERGE(inputs, results, device=device, stream=stream)
    return computed, total
