"""The functions of FlashAttention 2, by its names and with its arguments."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from pysm120.ops.attention import attention, attention_varlen
from pysm120.ops.attention_backward import attention_backward, attention_varlen_backward
from pysm120.ops.operands import device_of, face_of
from pysm120.ops.options import ends, number, precision_of
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

_Function = TypeVar("_Function", bound=Callable[..., Any])


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


@_with_the_rest(flash_attn_func)
def flash_attn_kvpacked_func(q: Any, kv: Any, *rest: Any, **options: Any) -> Any:
    """Return `flash_attn_func` of keys and values in one array ``kv``, shape (B, Sk, 2, Hkv, D)."""
    _check_packed(kv, "kv", ("B", "Sk", 2, "Hkv", "D"))
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], *rest, **options)


@_with_the_rest(flash_attn_func)
def flash_attn_qkvpacked_func(qkv: Any, *rest: Any, **options: Any) -> Any:
    """Return `flash_attn_func` of queries, keys and values in one array ``qkv``, shape (B, S, 3, H, D)."""
    _check_packed(qkv, "qkv", ("B", "S", 3, "H", "D"))
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *rest, **options)


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
        **_gradients(q, device, stream, dq=dq, dk=dk, dv=dv),
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
        **_gradients(q, device, stream, dq=dq, dk=dk, dv=dv),
    )


def _gradients(q: Any, device: Any, stream: Any, **given: Any) -> Any:
    """Return the arrays of gradients: those of other libraries as Arrays on their memory."""
    for name, x in given.items():
        if x is None:
            message = f"{name} is None: give the array for the gradient"
            raise InvalidArgumentError(message)
        if not isinstance(x, np.ndarray | Array) and hasattr(x, "__dlpack__"):
            given[name] = face_of(device_of({"q": q}, device), x, name, stream)
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
