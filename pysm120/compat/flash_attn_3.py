"""The functions of FlashAttention 3, by its names and with its arguments: float8 with scales of heads."""

from typing import Any

from pysm120.ops.attention import attention, attention_varlen
from pysm120.ops.options import ends
from pysm120.runtime.device import Device
from pysm120.runtime.errors import UnsupportedError
from pysm120.runtime.untraced import untraced


@untraced
def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - the order of FlashAttention
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,  # noqa: FBT001
    deterministic: bool = False,  # noqa: FBT001, FBT002
    sm_margin: int = 0,
    return_attn_probs: bool = False,  # noqa: FBT001, FBT002
    *,
    precision: str | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> Any:
    """Return attention, as flash_attn_func of FlashAttention 3 does.

    Parameters
    ----------
    q : array, float8_e4m3fn, float8_e5m2, float16 or bfloat16, shape (B, Sq, H, D)
        Queries, of any kind that `attention` takes.
    k, v : array, dtype of q, shape (B, Sk, Hkv, D)
        Keys and values; H is a multiple of Hkv.
    softmax_scale : float, optional
        Default: 1 / sqrt(D).
    causal : bool
        The last query sees the last key.
    qv : None
        Not supported.
    q_descale, k_descale, v_descale : array, float32, shape (B, Hkv), optional
        Of float8: an element is worth its code times the scale of its head
        of k; `attention` takes other shapes too. Default: 1.
    window_size : (int, int)
        As in FlashAttention 2; -1 means no limit on that side.
    attention_chunk : int
        0: not supported.
    softcap : float
        Scores become softcap * tanh(score / softcap); 0 turns it off.
    num_splits, pack_gqa, deterministic, sm_margin
        Ignored: they choose how FlashAttention computes, not what.
    return_attn_probs : bool
        Return (out, lse).
    precision : str, optional
        Precision of the products, as in `attention`. Default: the dtype of q.
    device, stream
        As in `attention`.

    Returns
    -------
    out : array, shape (B, Sq, H, D)
        Of dtype bfloat16 for float8, else of q's.
    lse : array, float32, shape (B, H, Sq)
        With ``return_attn_probs``; -inf for a row that sees no key.

    """
    del num_splits, pack_gqa, deterministic, sm_margin
    _check(qv=qv, attention_chunk=attention_chunk or None)
    return attention(
        q,
        k,
        v,
        causal=causal,
        softcap=softcap,
        scale=softmax_scale,
        window=ends(window_size, "window_size", open_end=-1),
        q_scale=q_descale,
        k_scale=k_descale,
        v_scale=v_descale,
        precision=precision,
        return_lse=bool(return_attn_probs),  # type: ignore[call-overload] # the overloads need a literal
        device=device,
        stream=stream,
    )


@untraced
def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,  # noqa: FBT001
    deterministic: bool = False,  # noqa: FBT001, FBT002
    sm_margin: int = 0,
    return_attn_probs: bool = False,  # noqa: FBT001, FBT002
    *,
    precision: str | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> Any:
    """Return attention of packed sequences, as flash_attn_varlen_func of FlashAttention 3 does.

    Parameters
    ----------
    q : array, float8_e4m3fn, float8_e5m2, float16 or bfloat16, shape (total_q, H, D)
        Queries of all sequences.
    k, v : array, dtype of q, shape (total_k, Hkv, D)
        Keys and values of all sequences.
    cu_seqlens_q, cu_seqlens_k : array, int32, shape (B + 1,)
        The row at which each sequence begins, and the end of the last one.
    max_seqlen_q, max_seqlen_k : int
        Length of the longest sequence.
    seqused_q, seqused_k : None
        Not supported.
    q_descale, k_descale, v_descale : array, float32, shape (B, Hkv), optional
        As in `flash_attn_func`.
    softmax_scale, causal, qv, window_size, attention_chunk, softcap, num_splits, pack_gqa
        As in `flash_attn_func`, like the other options.

    Returns
    -------
    out : array, shape (total_q, H, D)
    lse : array, float32, shape (H, total_q)
        With ``return_attn_probs``.

    """
    del num_splits, pack_gqa, deterministic, sm_margin
    _check(qv=qv, attention_chunk=attention_chunk or None, seqused_q=seqused_q, seqused_k=seqused_k)
    return attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        causal=causal,
        softcap=softcap,
        scale=softmax_scale,
        window=ends(window_size, "window_size", open_end=-1),
        q_scale=q_descale,
        k_scale=k_descale,
        v_scale=v_descale,
        precision=precision,
        return_lse=bool(return_attn_probs),
        device=device,
        stream=stream,
    )


def _check(**given: Any) -> None:
    """Refuse what is not supported."""
    for name, value in given.items():
        if value is not None:
            message = f"{name} is given, which is not supported: leave it out"
            raise UnsupportedError(message)
