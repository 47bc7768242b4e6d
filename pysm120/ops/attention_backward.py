"""The backward pass of attention."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pysm120.ops.attention_call import (
    DIAGONALS,
    LAYOUTS,
    LENGTHS,
    PRECISIONS,
    SINKS,
    SLOPES,
    STARTS,
    Rules,
    check_heads,
    check_lengths,
    check_starts,
    fill_longest,
    fill_scores,
    mask_in_float32,
    mask_of,
    operands,
    packed_operands,
)
from pysm120.ops.call import AnyArray, Operation
from pysm120.ops.options import flag, one_of
from pysm120.ops.plan import NEW
from pysm120.ops.table import F32, FLOATS, Input, Output
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.untraced import untraced


class _Options(NamedTuple):
    """What a call asks for, as the user gave it."""

    rules: Rules
    accumulate: Any
    deterministic: Any
    max_seqlen_q: Any = None
    max_seqlen_k: Any = None


# The largest head sizes of precisions whose forward pass has a larger one.
_MOST = {"mxfp8": 128}


def _fill(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options."""
    args.precision = PRECISIONS[check_heads(given, options.rules.precision, _MOST)][0]
    args.accumulate = flag(options.accumulate, "accumulate")
    args.deterministic = flag(options.deterministic, "deterministic")
    fill_scores(args, given, options.rules)


def _fill_packed(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options of packed sequences."""
    fill_longest(args, options)
    _fill(args, given, options)


_ROWS = (
    *operands(FLOATS),
    Input("out", "batch heads q_rows v_head_dim", member="o"),
    Input("dout", "batch heads q_rows v_head_dim", FLOATS, like="q"),
    Input("lse", "batch heads q_rows", F32),
    Input("dlse", "batch heads q_rows", F32, optional=True),
    Input("delta", "batch heads q_rows", F32, optional=True),
    SLOPES,
    LENGTHS,
    DIAGONALS,
    mask_of("kv_rows"),
    SINKS,
    Output("dq", "batch heads q_rows head_dim", like="q", converts=True, reads=True),
    Output("dk", "batch kv_heads kv_rows head_dim", like="q", converts=True, reads=True),
    Output("dv", "batch kv_heads kv_rows v_head_dim", like="q", converts=True, reads=True),
    Output("dsinks", "heads", F32),
    Output("dmask", "batch heads q_rows kv_rows", F32, shape_of="mask"),
)
_PACKED_ROWS = (
    *packed_operands(FLOATS),
    Input("out", "heads q_total v_head_dim", member="o"),
    Input("dout", "heads q_total v_head_dim", FLOATS, like="q"),
    Input("lse", "heads q_total", F32),
    *STARTS,
    Input("dlse", "heads q_total", F32, optional=True),
    Input("delta", "heads q_total", F32, optional=True),
    SLOPES,
    DIAGONALS,
    SINKS,
    Output("dq", "heads q_total head_dim", like="q", converts=True, fill=0, reads=True),
    Output("dk", "kv_heads kv_total head_dim", like="q", converts=True, fill=0, reads=True),
    Output("dv", "kv_heads kv_total v_head_dim", like="q", converts=True, fill=0, reads=True),
    Output("dsinks", "heads", F32),
)
_LAYOUTS = {
    order: Operation(
        "sm120_attention_backward", _ROWS, order=order, fill=_fill, on_host=check_lengths(order.index("S"))
    )
    for order in LAYOUTS
}
_PACKED = Operation("sm120_attention_backward", _PACKED_ROWS, order="SHD", fill=_fill_packed, on_host=check_starts)


def operation(layout: str) -> Operation:
    """Return the operation for a layout."""
    return _LAYOUTS[one_of(layout, "layout", tuple(_LAYOUTS))]


def options(rules: Rules, *, deterministic: bool) -> Any:
    """Return the options of a call that accumulates nothing."""
    return _Options(rules, accumulate=False, deterministic=deterministic)


def _results(
    given: Mapping[str, Any], *, accumulate: Any, return_dsinks: Any, sinks: Any, return_dmask: Any = False
) -> dict[str, Any]:
    """Return the results that are wanted: given arrays, and new ones."""
    wanted, accumulates = dict(given), flag(accumulate, "accumulate")
    for name, x in given.items():
        if x is None and accumulates:
            message = f"accumulate is True, but {name} is None: give the float32 array to add to"
            raise InvalidArgumentError(message)
        if x is None:
            wanted[name] = NEW
    if flag(return_dsinks, "return_dsinks") and sinks is None:
        message = "return_dsinks is True, but sinks is None: give the sinks that attention got"
        raise InvalidArgumentError(message)
    wanted["dsinks"] = NEW if return_dsinks else None
    wanted["dmask"] = NEW if return_dmask else None
    return wanted


def _check_dmask(mask: Any) -> None:
    """Raise if a mask has no gradient."""
    if mask is None:
        message = "return_dmask is True, but mask is None: give the mask that attention got"
        raise InvalidArgumentError(message)
    if str(getattr(mask, "dtype", "")).rpartition(".")[2] == "bool":
        message = "mask has dtype bool, which has no gradient: leave return_dmask out, or give float32"
        raise TypeError(message)


@untraced
def attention_backward(
    dout: AnyArray,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    out: AnyArray,
    lse: AnyArray,
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
    scale: float | None = None,
    precision: str | None = None,
    layout: str = "BSHD",
    dlse: Any = None,
    delta: Any = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    accumulate: bool = False,
    deterministic: bool = False,
    return_dsinks: bool = False,
    return_dmask: bool = False,
    device: Device | str | None = None,
    stream: Any = None,
    workspace: Array | None = None,
) -> tuple[AnyArray, ...]:
    """Return the gradients of attention with respect to q, k and v.

    Parameters
    ----------
    dout : array, dtype of q, shape (B, Sq, H, Dv)
        The gradient of ``out``.
    q, k, v : array, bfloat16, float16 or float32, shape (B, Sq, H, D), (B, Sk, Hkv, D) and (B, Sk, Hkv, Dv)
        As they were given to `attention`. D and Dv are up to 256, in ``mxfp8`` up
        to 128. ``bf16`` and ``mxfp8`` take float32.
    out : array, float32, float16 or bfloat16, shape (B, Sq, H, Dv)
        What `attention` returned.
    lse : array, float32, shape (B, H, Sq), contiguous
        The log-sum-exp that `attention` returned with ``return_lse``. For a part
        of the keys, as in a ring, give ``out`` and ``lse`` of all keys.
    causal, causal_align, window, softcap, alibi_slopes, mask, kv_lengths, diagonals, scale, layout
        As they were given to `attention`.
    sinks : array, float32, shape (H,), optional
        As they were given to `attention`. ``lse`` contains them, so only
        ``return_dsinks`` needs them.
    precision : {"bf16", "f16", "mxfp8", "mxfp8_bf16", "mxfp8_f16"}, optional
        As it was given to `attention`, with the same default. All sums are
        float32. ``mxfp8`` has all products in MXFP8. The mixed precisions round q
        and k to MXFP8, as `attention` does, and compute in 16 bits.
    dlse : array, float32, shape (B, H, Sq), contiguous, optional
        The gradient of ``lse``, where it is used too.
    delta : array, float32, shape (B, H, Sq), contiguous, optional
        Used instead of sum(dout * out) - dlse; ``out`` is then not read.
    dq, dk, dv : array, float32, float16 or bfloat16, shape of q, k and v, optional
        Where the gradients go. Default: new arrays with the dtype of q.
    accumulate : bool
        Add the gradients to ``dq``, ``dk`` and ``dv``, which must be given in
        float32. ``dsinks`` and ``dmask`` are not added to anything.
    deterministic : bool
        Add the parts of ``dq`` in a fixed order, so that the gradients have the
        same bits in every run.
    return_dsinks : bool
        Return the gradient of ``sinks`` too.
    return_dmask : bool
        Return the gradient of ``mask`` too, which must not be bool.
    device : Device or str, optional
        Where ndarrays are computed.
    stream : stream, optional
        For arrays on a device the call returns before the work is done.
    workspace : Array, optional
        Device memory, 256-byte aligned. Default: kept for each device and stream.

    Returns
    -------
    dq, dk, dv : array
        dq = scale * dS k, dk = scale * dS^T q, dv = P^T dout with
        P = exp(scale * q k^T + mask - lse) and dS = P (dout v^T - delta). The
        gradients of a head of k and v are sums over the heads of q that use it.
        Rows and keys that see nothing have gradients of 0, and so do the keys
        behind ``kv_lengths``, whose values never matter. With softcap, P has the
        changed scores, and dS in dq and dk is multiplied by the derivative of
        softcap.
    dsinks : array, float32, shape (H,)
        With ``return_dsinks``: -sum(exp(sinks - lse) * delta) over batches and rows.
    dmask : array, float32, shape of mask
        With ``return_dmask``: dS, without the factor of softcap, summed over the
        dimensions along which the mask broadcasts.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value. Nothing was
        written.
    UnsupportedError
        A combination that is not supported. A ValueError too.

    Notes
    -----
    The formulas are those of FlashAttention 2 (Dao, 2023, section 3.1). P and dS
    are rounded to the dtype of q before the products, in ``mxfp8`` to e4m3. dq is a sum of float32
    terms. Unless ``deterministic``, their order changes from run to run, and so
    do the last bits of dq, and of ``dmask`` where the mask broadcasts; dk, dv and
    ``dsinks`` are the same bits in every run.

    """
    call = operation(layout)
    if flag(return_dmask, "return_dmask"):
        _check_dmask(mask)
    inputs = {
        "q": q,
        "k": k,
        "v": v,
        "out": out,
        "dout": dout,
        "lse": lse,
        "dlse": dlse,
        "delta": delta,
        "alibi_slopes": alibi_slopes,
        "kv_lengths": kv_lengths,
        "diagonals": diagonals,
        "mask": mask_in_float32(mask) if isinstance(mask, np.ndarray) and mask.dtype == np.float64 else mask,
        "sinks": sinks,
    }
    rules = Rules(causal, causal_align, window, softcap, scale, precision)
    asked = _Options(rules, accumulate, deterministic)
    wanted = _results(
        {"dq": dq, "dk": dk, "dv": dv},
        accumulate=accumulate,
        return_dsinks=return_dsinks,
        sinks=sinks,
        return_dmask=return_dmask,
    )
    made = call(inputs, wanted, asked, device=device, stream=stream, workspace=workspace)
    return tuple(x for x in made if x is not None)


@untraced
def attention_varlen_backward(
    dout: AnyArray,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    out: AnyArray,
    lse: AnyArray,
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
    scale: float | None = None,
    precision: str | None = None,
    dlse: Any = None,
    delta: Any = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    accumulate: bool = False,
    deterministic: bool = False,
    return_dsinks: bool = False,
    device: Device | str | None = None,
    stream: Any = None,
    workspace: Array | None = None,
) -> tuple[AnyArray, ...]:
    """Return the gradients of attention of packed sequences with respect to q, k and v.

    Parameters
    ----------
    dout : array, dtype of q, shape (total_q, H, Dv)
        The gradient of ``out``.
    q, k, v : array, dtypes of attention_backward, shape (total_q, H, D), (total_k, Hkv, D) and (total_k, Hkv, Dv)
        As they were given to `attention_varlen`.
    out : array, float32, float16 or bfloat16, shape (total_q, H, Dv)
        What `attention_varlen` returned.
    lse : array, float32, shape (H, total_q), contiguous
        The log-sum-exp that `attention_varlen` returned with ``return_lse``.
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        As in `attention_varlen`. Values of arrays on a device are not checked.
        Whatever they are, nothing outside the arrays is read or written.
    dlse, delta : array, float32, shape (H, total_q), contiguous, optional
        As in `attention_backward`.
    Others
        As in `attention_backward`; alibi_slopes (H,) or (B, H), diagonals (B,).

    Returns
    -------
    dq, dk, dv : array
        As in `attention_backward`. Rows of no sequence keep what a given array
        held, and are 0 in a new one.
    dsinks : array, float32, shape (H,)
        With ``return_dsinks``.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    """
    inputs = {
        "q": q,
        "k": k,
        "v": v,
        "out": out,
        "dout": dout,
        "lse": lse,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "dlse": dlse,
        "delta": delta,
        "alibi_slopes": alibi_slopes,
        "diagonals": diagonals,
        "sinks": sinks,
    }
    rules = Rules(causal, causal_align, window, softcap, scale, precision)
    asked = _Options(rules, accumulate, deterministic, max_seqlen_q, max_seqlen_k)
    wanted = _results({"dq": dq, "dk": dk, "dv": dv}, accumulate=accumulate, return_dsinks=return_dsinks, sinks=sinks)
    made = _PACKED(inputs, wanted, asked, device=device, stream=stream, workspace=workspace)
    return tuple(x for x in made if x is not None)
