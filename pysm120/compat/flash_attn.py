"""The functions of FlashAttention 2, by its names and with its arguments."""

from typing import Any

from pysm120.ops import operands
from pysm120.ops.attention import attention, attention_varlen
from pysm120.ops.attention_call import _check_number
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

_WINDOW_ENDS = 2
_attention: Any = attention  # whose overloads want to know whether there is a log-sum-exp


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
        window_size[1]; -1 is no edge.
    softcap : float
        Scores become softcap * tanh(score / softcap); 0 leaves them.
    alibi_slopes : array, float32, shape (H,) or (B, H), optional
        Scores become score - slope * abs(i + Sk - Sq - key).
    deterministic : bool
        Taken, and always so.
    return_attn_probs : bool
        Return (out, lse, None): the probabilities are never in memory.
    precision : str, optional
        Of the products, as in `attention`. Default: the dtype of q.
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
    _check_dropout(dropout_p)
    return _results(
        _attention(
            q,
            k,
            v,
            causal=causal,
            window=_window(window_size),
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            scale=_scale(softmax_scale),
            precision=operands.precision_of(q, "q", precision),
            return_lse=bool(return_attn_probs),
            device=device,
            stream=stream,
        ),
        probabilities=return_attn_probs,
    )


def flash_attn_kvpacked_func(
    q: Any,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002
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
    """Return `flash_attn_func` of keys and values in one array ``kv``, shape (B, Sk, 2, Hkv, D)."""
    _check_packed(kv, "kv", ("B", "Sk", 2, "Hkv", "D"))
    return flash_attn_func(
        q,
        kv[:, :, 0],
        kv[:, :, 1],
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        precision=precision,
        device=device,
        stream=stream,
    )


def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002
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
    """Return `flash_attn_func` of what lies in one array ``qkv``, shape (B, S, 3, H, D)."""
    _check_packed(qkv, "qkv", ("B", "S", 3, "H", "D"))
    return flash_attn_func(
        qkv[:, :, 0],
        qkv[:, :, 1],
        qkv[:, :, 2],
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        precision=precision,
        device=device,
        stream=stream,
    )


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
    """Return attention of sequences that lie one behind the other, as FlashAttention 2.8 does.

    Parameters
    ----------
    q : array, float16 or bfloat16, shape (total_q, H, D)
        Queries of all sequences.
    k, v : array, dtype of q, shape (total_k, Hkv, D)
        Keys and values of all sequences.
    cu_seqlens_q, cu_seqlens_k : array, int32, shape (B + 1,)
        The row at which each sequence begins, and behind the last one its end.
    max_seqlen_q, max_seqlen_k : int
        The longest sequence.
    block_table
        None: keys and values do not lie in pages.
    Others
        As in `flash_attn_func`.

    Returns
    -------
    out : array, shape (total_q, H, D)
    lse : array, float32, shape (H, total_q)
        With ``return_attn_probs``.

    """
    del deterministic
    _check_dropout(dropout_p)
    if block_table is not None:
        message = "block_table is given, but keys and values in pages are not supported: give them as they follow"
        raise UnsupportedError(message)
    return _results(
        attention_varlen(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q,
            max_seqlen_k,
            causal=causal,
            window=_window(window_size),
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            scale=_scale(softmax_scale),
            precision=operands.precision_of(q, "q", precision),
            return_lse=bool(return_attn_probs),
            device=device,
            stream=stream,
        ),
        probabilities=return_attn_probs,
    )


def _check_dropout(dropout_p: Any) -> None:
    if _check_number(dropout_p, "dropout_p") != 0:
        message = f"dropout_p is {dropout_p}, but there is no dropout: 0 is right"
        raise UnsupportedError(message)


def _scale(softmax_scale: Any) -> float | None:
    return None if softmax_scale is None else _check_number(softmax_scale, "softmax_scale")


def _window(window_size: Any) -> tuple[int | None, int | None]:
    """Return a window whose ends are None instead of -1."""
    if not isinstance(window_size, tuple | list) or len(window_size) != _WINDOW_ENDS:
        message = f"window_size is {window_size!r}, not (left, right), each an integer"
        raise TypeError(message)
    for side in window_size:
        if isinstance(side, bool) or not hasattr(side, "__index__"):
            message = f"window_size is {tuple(window_size)}, whose {side!r} is no integer"
            raise TypeError(message)
        if side < -1:
            message = f"window_size is {tuple(window_size)}: each end is -1 or a number of keys"
            raise InvalidArgumentError(message)
    left, right = window_size
    return None if left == -1 else left, None if right == -1 else right


def _check_packed(x: Any, name: str, dimensions: tuple[str | int, ...]) -> None:
    """Raise where an array has no such dimensions."""
    if not hasattr(x, "shape") or not hasattr(x, "__getitem__"):
        message = f"{name} is a {type(x).__name__}, not an array"
        raise TypeError(message)
    if len(x.shape) != len(dimensions) or any(
        isinstance(want, int) and n != want for n, want in zip(x.shape, dimensions, strict=True)
    ):
        message = f"{name} has shape {tuple(x.shape)}, not ({', '.join(map(str, dimensions))})"
        raise InvalidArgumentError(message)


def _results(computed: Any, *, probabilities: Any) -> Any:
    return (*computed, None) if probabilities else computed
