"""The functions of FlashAttention 2, by its names and with its arguments."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from pysm120.ops.attention import attention, attention_varlen
from pysm120.ops.attention_backward import attention_backward, attention_varlen_backward
from pysm120.ops.attention_kv_cache import attention_with_kv_cache
from pysm120.ops.foreign import on_host
from pysm120.ops.kv_cache import kv_cache_append
from pysm120.ops.operands import device_of, narrowed
from pysm120.ops.options import ends, flag, integer, number, precision_of
from pysm120.runtime.device import Device
from pysm120.runtime.errors import Error, InvalidArgumentError, UnsupportedError
from pysm120.runtime.untraced import untraced

_Function = TypeVar("_Function", bound=Callable[..., Any])


@untraced
def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the order of FlashAttention
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: FBT001, FBT002
    return_attn_probs: bool = False,  # noqa: FBT001, FBT002
    *,
    precision: str | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> Any:
    """Return attention, as flash_attn_func of FlashAttention 2.8 does.

    Parameters
    ----------
    q : array, float16 or bfloat16, shape (B, Sq, H, D)
        Queries, of any kind that `attention` takes.
    k, v : array, dtype of q, shape (B, Sk, Hkv, D)
        Keys and values; H is a multiple of Hkv.
    dropout_p : float
        0: there is no dropout.
    softmax_scale : float, optional
        Default: 1 / sqrt(D).
    causal : bool
        The last query sees the last key.
    window_size : (int, int)
        Row i uses the keys from i + Sk - Sq - window_size[0] to i + Sk - Sq +
        window_size[1]; -1 means no limit on that side.
    softcap : float
        Scores become softcap * tanh(score / softcap); 0 turns it off.
    alibi_slopes : array, float32, shape (H,) or (B, H), optional
        Scores become score - slope * abs(i + Sk - Sq - key).
    deterministic : bool
        Ignored: results are always deterministic.
    return_attn_probs : bool
        Return (out, lse, None): the probabilities are never in memory.
    precision : str, optional
        Precision of the products, as in `attention`. Default: the dtype of q.
    device, stream
        As in `attention`.

    Returns
    -------
    out : array, shape (B, Sq, H, D)
    lse : array, float32, shape (B, H, Sq)
        With ``return_attn_probs``; -inf for a row that sees no key, where
        FlashAttention has +inf.

    """
    del deterministic
    out = attention(
        q,
        k,
        v,
        causal=causal,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        return_lse=bool(return_attn_probs),  # type: ignore[call-overload] # the overloads need a literal
        device=device,
        stream=stream,
        **_options(q, dropout_p, softmax_scale, window_size, precision),
    )
    return (*out, None) if return_attn_probs else out


def _with_the_rest(function: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Let help() and inspect show the arguments after v, which a function of packed arrays passes on."""

    def decorate(packed: _Function) -> _Function:
        whole = inspect.signature(function)
        own = [x for x in inspect.signature(packed).parameters.values() if x.kind is x.POSITIONAL_OR_KEYWORD]
        rest = list(whole.parameters.values())[list(whole.parameters).index("v") + 1 :]
        packed.__signature__ = whole.replace(parameters=[*own, *rest])  # type: ignore[attr-defined] # inspect reads it
        return packed

    return decorate


@untraced
@_with_the_rest(flash_attn_func)
def flash_attn_kvpacked_func(q: Any, kv: Any, *rest: Any, **options: Any) -> Any:
    """Return `flash_attn_func` of keys and values in one array ``kv``, shape (B, Sk, 2, Hkv, D)."""
    _check_packed(kv, "kv", ("B", "Sk", 2, "Hkv", "D"))
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], *rest, **options)


@untraced
@_with_the_rest(flash_attn_func)
def flash_attn_qkvpacked_func(qkv: Any, *rest: Any, **options: Any) -> Any:
    """Return `flash_attn_func` of queries, keys and values in one array ``qkv``, shape (B, S, 3, H, D)."""
    _check_packed(qkv, "qkv", ("B", "S", 3, "H", "D"))
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *rest, **options)


@untraced
def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: FBT001, FBT002
    return_attn_probs: bool = False,  # noqa: FBT001, FBT002
    block_table: Any = None,
    *,
    precision: str | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> Any:
    """Return attention of packed sequences, as flash_attn_varlen_func of FlashAttention 2.8 does.

    Parameters
    ----------
    q : array, float16 or bfloat16, shape (total_q, H, D)
        Queries of all sequences.
    k, v : array, dtype of q, shape (total_k, Hkv, D)
        Keys and values of all sequences.
    cu_seqlens_q, cu_seqlens_k : array, int32, shape (B + 1,)
        The row at which each sequence begins, and the end of the last one.
    max_seqlen_q, max_seqlen_k : int
        Length of the longest sequence.
    block_table
        Must be None: paged keys and values are not supported.
    Others
        As in `flash_attn_func`.

    Returns
    -------
    out : array, shape (total_q, H, D)
    lse : array, float32, shape (H, total_q)
        With ``return_attn_probs``.

    """
    del deterministic
    if block_table is not None:
        message = "block_table is given, but paged keys and values are not supported: give contiguous k and v"
        raise UnsupportedError(message)
    out = attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        causal=causal,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        return_lse=bool(return_attn_probs),
        device=device,
        stream=stream,
        **_options(q, dropout_p, softmax_scale, window_size, precision),
    )
    return (*out, None) if return_attn_probs else out


@untraced
def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the order of FlashAttention
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,  # noqa: FBT001, FBT002
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,  # noqa: FBT001, FBT002
    *,
    out: Any = None,
    lse: Any = None,
    new_seqlens: Any = None,
    workspace: Any = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> Any:
    """Return attention with a cache, as flash_attn_with_kvcache of FlashAttention 2.8 does.

    Parameters
    ----------
    q : array, float16 or bfloat16, shape (B, Sq, H, D)
        Queries: the last tokens of each sequence.
    k_cache, v_cache : array, float16 or bfloat16, shape (Bc, S, Hkv, D), or (pages, page, Hkv, D)
        The cache; with `block_table` in pages, of any size.
    k, v : array, dtype of k_cache, shape (B, Sn, Hkv, D), optional
        Keys and values of new tokens, written to the cache behind the first
        `cache_seqlens` keys before attention.
    rotary_cos, rotary_sin
        Must be None: rotate q and k before the call.
    cache_seqlens : int, or array, int32, shape (B,), optional
        Keys of each sequence, without those of `k`. Default: all rows of the cache;
        with `k` there is none.
    cache_batch_idx : array, int32, shape (B,), optional
        The row of a dense cache for each sequence of q. Default: 0, 1, 2, ...
    cache_leftpad
        Must be None: let sequences begin at row 0, or at a page of their own.
    block_table : array, int32, shape (B, P), optional
        The pages of each sequence.
    softmax_scale, causal, window_size, softcap, alibi_slopes
        As in `flash_attn_func`; Sk is the number of keys, those of `k` included.
    rotary_interleaved
        Ignored: there is no rotation.
    num_splits : int
        As in `attention_with_kv_cache`; 0: what fills the device.
    return_softmax_lse : bool
        Return (out, lse).
    out, lse : array, optional
        The arrays for the results.
    new_seqlens : array, int32, shape (B,), optional
        Where cache_seqlens + Sn goes, with `k`.
    device, stream, workspace
        As in `attention_with_kv_cache`.

    Returns
    -------
    out : array, shape (B, Sq, H, D)
    lse : array, float32, shape (B, H, Sq)
        With ``return_softmax_lse``; -inf for a row that sees no key, where
        FlashAttention has +inf.

    Notes
    -----
    On a device no value is read by the host, so a CUDA graph can capture a call with
    `out`, `lse` if wanted, `new_seqlens` if `k` is given, a `workspace`, and
    `cache_seqlens` as an array: an int is copied to the device.

    """
    flag(rotary_interleaved, "rotary_interleaved")
    _refuse_unsupported(rotary_cos=rotary_cos, rotary_sin=rotary_sin, cache_leftpad=cache_leftpad)
    if (k is None) != (v is None):
        message = f"{'k' if v is None else 'v'} is given without {'v' if v is None else 'k'}: give both or neither"
        raise InvalidArgumentError(message)
    if k is None and new_seqlens is not None:
        message = "new_seqlens is given without k and v, but it counts the keys after their append"
        raise InvalidArgumentError(message)
    if k is not None and cache_seqlens is None:
        message = "k and v are given without cache_seqlens, the number of keys in front of them"
        raise InvalidArgumentError(message)
    splits = integer(num_splits, "num_splits")
    options = _options(q, 0.0, softmax_scale, window_size, None)
    del options["precision"]
    with _flash_names():
        place = device_of({"q": q}, device)
        table = _table_of(cache_batch_idx, block_table)
        seqlens = _seqlens_of(cache_seqlens, q, place, stream)
        if k is not None:
            if new_seqlens is None:
                make = np.empty if on_host(q) else place.empty
                new_seqlens = make(tuple(seqlens.shape), np.int32)
            kv_cache_append(
                *(k, v, k_cache, v_cache),
                kv_lengths=seqlens,
                page_table=table,
                new_lengths=new_seqlens,
                device=device,
                stream=stream,
            )
            seqlens = new_seqlens
        return attention_with_kv_cache(
            *(q, k_cache, v_cache, seqlens),
            page_table=table,
            causal=causal,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            num_splits=None if splits == 0 else splits,
            out=out,
            return_lse=flag(return_softmax_lse, "return_softmax_lse"),
            lse=lse,
            device=device,
            stream=stream,
            workspace=workspace,
            **options,
        )


# What takes the place of an argument that is not supported.
_INSTEAD = {
    "rotary_cos": "rotate q and k before the call",
    "rotary_sin": "rotate q and k before the call",
    "cache_leftpad": "let each sequence begin at row 0 of the cache, or at a page of its own in block_table",
}
# Our names of arguments in messages, and FlashAttention's.
_NAMES = {"kv_lengths": "cache_seqlens", "page_table": "block_table", "new_lengths": "new_seqlens"}


def _refuse_unsupported(**given: Any) -> None:
    """Raise for the first argument that is not None."""
    for name, x in given.items():
        if x is not None:
            message = f"{name} is given, but it is not supported: {_INSTEAD[name]}"
            raise UnsupportedError(message)


@contextlib.contextmanager
def _flash_names() -> Iterator[None]:
    """Let errors have the names of FlashAttention's arguments."""
    try:
        yield
    except (Error, TypeError) as error:
        error.args = (re.sub("|".join(_NAMES), lambda found: _NAMES[found[0]], str(error)),)
        raise


def _table_of(batch_index: Any, table: Any) -> Any:
    """Return the page table of a call: a sequence of a dense cache is one page."""
    if batch_index is None:
        if isinstance(table, tuple | list):
            message = f"block_table is a {type(table).__name__}, not an array of shape (B, P)"
            raise TypeError(message)
        return table
    if table is not None:
        message = "cache_batch_idx is given, and so is block_table: the table alone says where sequences are"
        raise InvalidArgumentError(message)
    shape = getattr(batch_index, "shape", None)
    if shape is None or len(shape) != 1:
        message = f"cache_batch_idx is a {type(batch_index).__name__} of shape {shape}, not an array of shape (B,)"
        raise TypeError(message)
    return batch_index.reshape((shape[0], 1))


def _seqlens_of(seqlens: Any, q: Any, place: Device, stream: Any) -> Any:
    """Return lengths as an array of the kind of q."""
    if seqlens is None or (hasattr(seqlens, "shape") and not isinstance(seqlens, np.generic)):
        return seqlens
    shape = getattr(q, "shape", ())
    values = np.full(shape[:1], integer(seqlens, "cache_seqlens"))
    lengths = narrowed(values, "cache_seqlens", np.dtype(np.int32))
    return lengths if on_host(q) else place.empty(lengths.shape, np.int32).copy_from(lengths, stream=stream)


def _flash_attn_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,  # noqa: FBT001 - the order of FlashAttention
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Any,
    deterministic: bool,  # noqa: FBT001
    rng_state: Any = None,
    *,
    device: Device | str | None = None,
    stream: Any = None,
) -> None:
    """Write the gradients of attention to dq, dk and dv, as _flash_attn_backward of FlashAttention 2.8 does.

    Parameters
    ----------
    dout, q, k, v, out, softmax_lse : array
        As in `attention_backward`. A row that sees no key has an LSE of -inf or
        +inf.
    dq, dk, dv : array, shape of q, k and v
        Where the gradients go. FlashAttention makes arrays for those that are
        None and drops them; here all three must be given.
    dropout_p : float
        0: there is no dropout.
    softmax_scale : float, optional
        Default: 1 / sqrt(D).
    causal, softcap, alibi_slopes
        As in `flash_attn_func`.
    window_size_left, window_size_right : int
        The window of `flash_attn_func`; -1 means no limit.
    deterministic : bool
        Give dq the same bits in every run.
    rng_state
        Ignored: there is no dropout.
    device, stream
        As in `attention_backward`.

    Returns
    -------
    None
        FlashAttention returns softmax_d, the sums of dout * out.

    """
    del rng_state
    attention_backward(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        causal=causal,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        device=device,
        stream=stream,
        **_options(q, dropout_p, softmax_scale, (window_size_left, window_size_right), None),
        **_gradients(dq=dq, dk=dk, dv=dv),
    )


def _flash_attn_varlen_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,  # noqa: FBT001
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Any,
    deterministic: bool,  # noqa: FBT001
    rng_state: Any = None,
    *,
    device: Device | str | None = None,
    stream: Any = None,
) -> None:
    """Write the gradients of packed sequences, as _flash_attn_varlen_backward of FlashAttention 2.8 does.

    Parameters
    ----------
    dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        As in `attention_varlen_backward`.
    Others
        As in `_flash_attn_backward`.

    """
    del rng_state
    attention_varlen_backward(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        causal=causal,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        device=device,
        stream=stream,
        **_options(q, dropout_p, softmax_scale, (window_size_left, window_size_right), None),
        **_gradients(dq=dq, dk=dk, dv=dv),
    )


def _gradients(**given: Any) -> Any:
    """Return the arrays of gradients after checking that all are given."""
    for name, x in given.items():
        if x is None:
            message = f"{name} is None: give the array for the gradient"
            raise InvalidArgumentError(message)
    return given


def _options(q: Any, dropout_p: Any, softmax_scale: Any, window_size: Any, precision: Any) -> Any:
    """Return the options whose name or meaning differs in `attention`."""
    if number(dropout_p, "dropout_p") != 0:
        message = f"dropout_p is {dropout_p}, but dropout is not supported: it must be 0"
        raise UnsupportedError(message)
    return {
        "scale": None if softmax_scale is None else number(softmax_scale, "softmax_scale"),
        "window": ends(window_size, "window_size", open_end=-1),
        "precision": precision_of(q, "q", precision),
    }


def _check_packed(x: Any, name: str, dimensions: tuple[str | int, ...]) -> None:
    """Raise if an array does not have these dimensions."""
    if not hasattr(x, "shape") or not hasattr(x, "__getitem__"):
        message = f"{name} is a {type(x).__name__}, not an array"
        raise TypeError(message)
    if len(x.shape) != len(dimensions) or any(
        isinstance(want, int) and n != want for n, want in zip(x.shape, dimensions, strict=True)
    ):
        message = f"{name} has shape {tuple(x.shape)}, not ({', '.join(map(str, dimensions))})"
        raise InvalidArgumentError(message)
