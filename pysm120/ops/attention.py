"""Attention."""

from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np
import numpy.typing as npt

from pysm120.ops.attention_call import (
    LAYOUTS,
    Options,
    Rules,
    mask_in_float32,
    operation_for,
    packed_for,
    scales,
    split_pairs,
    split_tiles,
)
from pysm120.ops.call import AnyArray
from pysm120.ops.options import flag, one_of
from pysm120.ops.plan import NEW, result
from pysm120.ops.tiles import MXFP8Tiles
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.dlpack import SupportsDLPack
from pysm120.runtime.untraced import untraced

if TYPE_CHECKING:
    from typing_extensions import Unpack

# An array, elements and scales of MXFP8, or its tiles
_Operand = SupportsDLPack | tuple[SupportsDLPack, SupportsDLPack] | MXFP8Tiles


class _Rest(TypedDict, total=False):
    """The options that the type of a result does not depend on."""

    causal: bool
    causal_align: str
    window: tuple[int | None, int | None]
    softcap: float
    sinks: Any
    alibi_slopes: Any
    mask: Any
    kv_lengths: Any
    diagonals: Any
    past_k: Any
    past_v: Any
    q_scale: Any
    k_scale: Any
    v_scale: Any
    o_scale: Any
    amax: Any
    scale: float | None
    precision: str | None
    smoothing: bool | None
    layout: str
    config: str | None
    num_splits: int | None
    out: Any
    out_dtype: npt.DTypeLike | None
    lse: Any
    device: Device | str | None
    stream: Any
    workspace: Array | None


@overload
def attention(
    q: AnyArray | tuple[AnyArray, SupportsDLPack] | MXFP8Tiles,
    k: _Operand,
    v: _Operand,
    *,
    return_lse: Literal[False] = ...,
    **rest: "Unpack[_Rest]",
) -> AnyArray: ...
@overload
def attention(
    q: AnyArray | tuple[AnyArray, SupportsDLPack] | MXFP8Tiles,
    k: _Operand,
    v: _Operand,
    *,
    return_lse: Literal[True],
    **rest: "Unpack[_Rest]",
) -> tuple[AnyArray, AnyArray]: ...
@untraced
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    window: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    sinks: Any = None,
    alibi_slopes: Any = None,
    mask: Any = None,
    kv_lengths: Any = None,
    diagonals: Any = None,
    past_k: Any = None,
    past_v: Any = None,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    o_scale: Any = None,
    amax: Any = None,
    scale: float | None = None,
    precision: str | None = None,
    smoothing: bool | None = None,
    layout: str = "BSHD",
    config: str | None = None,
    num_splits: int | None = None,
    out: Any = None,
    out_dtype: npt.DTypeLike | None = None,
    return_lse: bool = False,
    lse: Any = None,
    device: Device | str | None = None,
    stream: Any = None,
    workspace: Array | None = None,
) -> Any:
    """Return softmax(scale * q k^T + mask) v for every batch and head.

    Parameters
    ----------
    q : array, float32, float16, bfloat16, float8_e4m3fn or float8_e5m2, shape (B, Sq, H, D)
        Queries. Arrays in host memory, of NumPy or of another library, are copied
        to the device and the result back. Arrays on a device stay there. New
        results have the kind of q. D is up to 256, in nvfp4, nvfp4_mxfp8 and fp8
        up to 128; Sq >= 1. Other arrays are where q is.
    k : array, dtype of q, shape (B, Sk, Hkv, D)
        Keys. Sk >= 1, and H is a multiple of Hkv: head h of q uses head
        h // (H / Hkv) of k and v. Each of q, k and v in float8 may have either type.
    v : array, dtype of q, shape (B, Sk, Hkv, Dv)
        Values. Dv is within the same limits as D.

        Operands that are MXFP8 already are tuples (elements, scales): float8_e4m3fn,
        and float8_e8m0fnu or uint8. Scales of q and k are (B, Sk, Hkv, ceil(D / 32)),
        as `quantize_mxfp8` returns them for axis -1. Those of v are (B,
        ceil(Sk / 32), Hkv, Dv), as it returns them for axis -2 of v as BHSD. The
        precision is mxfp8, or for q and k mxfp8_bf16 or mxfp8_f16, for v
        nvfp4_mxfp8. Results are those of the arrays that were quantised. The past may
        be tuples too. q, k and v may also be `MXFP8Tiles` of `quantize_mxfp8_tiles`,
        which kernels read in place.
    causal : bool
        Row i uses only the keys up to its diagonal, i + d.
    causal_align : {"bottom-right", "top-left"}
        The diagonal d: keys - rows of the batch (as in FlashAttention), or 0.
    window : (int or None, int or None)
        Row i uses only the keys from i + d - window[0] to i + d + window[1]. None
        means no limit on that side.
    softcap : float
        Scores become softcap * tanh(score / softcap); at most 1024. 0 turns it off.
    sinks : array, float32, shape (H,), optional
        An additional score in the softmax sum of every row, without a value.
    alibi_slopes : array, float32, shape (H,) or (B, H), optional
        Scores become score - slope * abs(i + d - key).
    mask : array, bool, float32, float16 or bfloat16, optional
        Broadcasts to (B, H, Sq, P + Sk), where P is the number of past rows. It
        is added to the scores; in a bool mask, False hides a key.
    kv_lengths : array, int32, shape (B,), optional
        Number of valid keys of each batch; not supported with a past.
    diagonals : array, int32, shape (B,), optional
        d of each batch.
    past_k, past_v : array, shape (B, P, Hkv, D) and (B, P, Hkv, Dv), optional
        Keys and values before those of k and v, read in place.
    q_scale, k_scale, v_scale : array, float32, shape (1,), (heads,) or (B, heads), optional
        Of float8: an element is worth its code times the scale of its head.
        k and v have Hkv heads; q_scale may have Hkv too, one for each head of k. A
        number if q is an ndarray. Default: 1.
    o_scale : array, float32, shape (1,), (H,) or (B, H), optional
        With out_dtype float8_e4m3fn: a code of the result is worth itself times
        this scale; codes saturate at 448. Default: 1.
    amax : array, float32, shape (1,), (H,) or (B, H), optional
        With float8: raised to the largest absolute value of the result,
        before o_scale; it is not set to 0 first.
    scale : float, optional
        Default: 1 / sqrt(D).
    precision : {"bf16", "f16", "mxfp8", "mxfp8_bf16", "mxfp8_f16", "nvfp4", "nvfp4_mxfp8", "fp8"}, optional
        Precision of the products; sums are float32. Default: f16 for float16, bf16
        for bfloat16 and float32, which is rounded to bfloat16. bf16, f16: the
        dtype of q, k and v; the softmax is rounded to it. mxfp8: all operands e4m3
        with a ue8m0 scale for every 32 elements along the contraction (OCP MX).
        mxfp8_bf16, mxfp8_f16: q k^T as in mxfp8, and the other product as in bf16
        or f16. nvfp4: all operands e2m1 with an e4m3 scale for every 16 elements.
        nvfp4_mxfp8: q k^T as in nvfp4, and the other product as in mxfp8. fp8: that
        of float8_e4m3fn and float8_e5m2, which are multiplied as they are.
    smoothing : bool, optional
        With nvfp4 and nvfp4_mxfp8: subtract the mean of a head's keys from k, and
        that of each tile of rows from q, before they are rounded; the scores of the
        means are added in float32, so that softmax and lse are those of q and k. It
        takes away the error of channels whose values have one sign, as in
        SageAttention 2 and 3. Default: True in these precisions.
    layout : {"BSHD", "BHSD"}
        Order of the dimensions of q, k, v, the past and the result.
    config : str, optional
        The kernel to use, one of those that ``python -m pysm120 tune`` shows.
        Default: $PYSM120_ATTENTION_CONFIG if the call supports it, else the one
        that suits shape and device.
    num_splits : int, optional
        CTAs that share the keys of a tile of queries, at most 32; more than 1 if
        every row sees all keys, without a mask, window, lengths or other features.
        Default: as many as make the call fast, for the tiles that do not fill a wave
        of CTAs. With a fixed number the bits do not depend on the batch.
    out : array, shape (B, Sq, H, Dv), optional
        The array for the result, where q is. On a device it may be q
        itself; it must not overlap other inputs.
    out_dtype : dtype, optional
        float32, float16 or bfloat16, and for float8 float8_e4m3fn too. Default: that
        of ``out``, else that of q; bfloat16 for float8.
    return_lse : bool
        Return (out, lse).
    lse : array, float32, shape (B, H, Sq), contiguous, optional
        The array for the log-sum-exp.
    device : Device or str, optional
        The device for ndarrays. Default: $PYSM120_DEVICE, else the first usable
        GPU, else the virtual SM120.
    stream : stream, optional
        For arrays on a device the call returns before the work is done. If q, k
        or v came by DLPack it waits, because another library may reuse their
        memory.
    workspace : Array, optional
        Device memory, 256-byte aligned. Default: kept for each device and stream.

    Returns
    -------
    out : array, shape (B, Sq, H, Dv)
        Rows without any key are 0.
    lse : array, float32, shape (B, H, Sq)
        With ``return_lse``: log(sum(exp(scale * q k^T + mask))), natural; -inf
        for rows without any key or sink.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value. Nothing was
        written.

    Notes
    -----
    MX scales are rounded up so that no element saturates. For normal random
    inputs the relative error against float64 (Frobenius norm) is about 5 % in
    mxfp8, 4 % in mxfp8_bf16 and mxfp8_f16, 0.2 % in bf16 and 0.03 % in f16,
    before the result is rounded. Features that FlashAttention 2 has work as in FlashAttention 2.

    """
    order = one_of(layout, "layout", tuple(LAYOUTS))
    operands, tiles = split_tiles({"q": q, "k": k, "v": v, "past_k": past_k, "past_v": past_v}, packed=False)
    operands, pairs = split_pairs(operands)
    inputs = {
        **operands,
        "sinks": sinks,
        "alibi_slopes": alibi_slopes,
        "kv_lengths": kv_lengths,
        "diagonals": diagonals,
        "mask": mask_in_float32(mask) if isinstance(mask, np.ndarray) and mask.dtype == np.float64 else mask,
    }
    rules = Rules(causal, causal_align, window, softcap, scale, precision)
    options = Options(rules, config, smoothing=smoothing, num_splits=num_splits, **tiles)
    given = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "o_scale": o_scale, "amax": amax}
    inputs |= scales(operands["q"], operands["k"], given, layout)
    results = {
        "out": result(out, out_dtype),
        "lse": NEW if flag(return_lse, "return_lse") and lse is None else lse,
        "amax": inputs.pop("amax"),
    }
    in_tiles = tuple(name for name, *_ in options.tiles)
    operation = operation_for(order, pairs, in_tiles) if pairs or in_tiles else LAYOUTS[order]
    _, computed, sums = operation(inputs, results, options, device=device, stream=stream, workspace=workspace)
    return (computed, sums) if return_lse else computed


@untraced
def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    window: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    sinks: Any = None,
    alibi_slopes: Any = None,
    diagonals: Any = None,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    o_scale: Any = None,
    amax: Any = None,
    scale: float | None = None,
    precision: str | None = None,
    smoothing: bool | None = None,
    config: str | None = None,
    out: Any = None,
    out_dtype: npt.DTypeLike | None = None,
    return_lse: bool = False,
    lse: Any = None,
    device: Device | str | None = None,
    stream: Any = None,
    workspace: Array | None = None,
) -> Any:
    """Return attention of packed sequences, which lie one behind the other.

    Parameters
    ----------
    q : array, float32, float16, bfloat16, float8_e4m3fn or float8_e5m2, shape (total_q, H, D)
        Queries of all sequences.
    k, v : array, dtype of q, shape (total_k, Hkv, D) and (total_k, Hkv, Dv)
        Keys and values of all sequences. Tuples as in `attention`; the scales of v
        are (ceil(total_k / 32) + B - 1, Hkv, Dv): each sequence begins with a new
        block, whose scales are in row cu_seqlens_k[b] // 32 + b. `MXFP8Tiles` too.
    cu_seqlens_q, cu_seqlens_k : array, int32, shape (B + 1,)
        The row at which each sequence begins, and the end of the last one.
        Values of arrays on a device are not checked. Whatever they are, nothing
        outside q, k, v and the results is read or written.
    max_seqlen_q, max_seqlen_k : int, optional
        Length of the longest sequence; rows beyond it are not computed, keys
        beyond it are not seen. Default for ndarrays: taken from cu_seqlens.
        Default for arrays on a device: total_q and total_k, which costs time.

    Others
        As in `attention`; alibi_slopes (H,) or (B, H), diagonals (B,).

    Returns
    -------
    out : array, shape (total_q, H, Dv)
        Rows of no sequence keep what ``out`` held, and are 0 in a new array.
    lse : array, float32, shape (H, total_q)
        With ``return_lse``; -inf for rows without any key or sink.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    """
    operands, tiles = split_tiles({"q": q, "k": k, "v": v}, packed=True)
    operands, pairs = split_pairs(operands)
    inputs = {
        **operands,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "sinks": sinks,
        "alibi_slopes": alibi_slopes,
        "diagonals": diagonals,
    }
    rules = Rules(causal, causal_align, window, softcap, scale, precision)
    options = Options(rules, config, max_seqlen_q, max_seqlen_k, smoothing, **tiles)
    given = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "o_scale": o_scale, "amax": amax}
    inputs |= scales(operands["q"], operands["k"], given, "BSHD")
    results = {
        "out": result(out, out_dtype),
        "lse": NEW if flag(return_lse, "return_lse") and lse is None else lse,
        "amax": inputs.pop("amax"),
    }
    operation = packed_for(pairs, tuple(name for name, *_ in options.tiles))
    _, computed, sums = operation(inputs, results, options, device=device, stream=stream, workspace=workspace)
    return (computed, sums) if return_lse else computed
