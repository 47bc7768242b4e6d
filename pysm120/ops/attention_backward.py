"""The backward pass of attention."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pysm120.ops.attention_call import PRECISIONS, check_heads, fill_scores
from pysm120.ops.call import AnyArray, Operation
from pysm120.ops.options import flag, one_of
from pysm120.ops.plan import NEW
from pysm120.ops.table import F32, FLOATS, Input, Output
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError

_PRECISIONS = {"bfloat16": "bf16", "float16": "f16"}
_16BIT = FLOATS[1:]


class _Options(NamedTuple):
    """What a call asks for, as the user gave it."""

    causal: Any
    causal_align: Any
    window: Any
    scale: Any
    precision: Any
    accumulate: Any
    deterministic: Any


def _fill(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options."""
    usual = _PRECISIONS[str(given["q"].dtype)]
    precision = usual if options.precision is None else one_of(options.precision, "precision", ("bf16", "f16"))
    check_heads(given, precision)
    args.precision = PRECISIONS[precision][0]
    args.accumulate = flag(options.accumulate, "accumulate")
    args.deterministic = flag(options.deterministic, "deterministic")
    fill_scores(args, options)


_ROWS = (
    Input("q", "batch heads q_rows head_dim", _16BIT),
    Input("k", "batch kv_heads kv_rows head_dim", _16BIT, like="q"),
    Input("v", "batch kv_heads kv_rows v_head_dim", _16BIT, like="q"),
    Input("out", "batch heads q_rows v_head_dim", member="o"),
    Input("dout", "batch heads q_rows v_head_dim", _16BIT, like="q"),
    Input("lse", "batch heads q_rows", F32),
    Input("dlse", "batch heads q_rows", F32, optional=True),
    Input("delta", "batch heads q_rows", F32, optional=True),
    Output("dq", "batch heads q_rows head_dim", like="q", converts=True, reads=True),
    Output("dk", "batch kv_heads kv_rows head_dim", like="q", converts=True, reads=True),
    Output("dv", "batch kv_heads kv_rows v_head_dim", like="q", converts=True, reads=True),
)
_LAYOUTS = {order: Operation("sm120_attention_backward", _ROWS, order=order, fill=_fill) for order in ("BSHD", "BHSD")}


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
    device: Device | str | None = None,
    stream: Any = None,
    workspace: Array | None = None,
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return the gradients of attention with respect to q, k and v.

    Parameters
    ----------
    dout : array, dtype of q, shape (B, Sq, H, Dv)
        The gradient of ``out``.
    q, k, v : array, bfloat16 or float16, shape (B, Sq, H, D), (B, Sk, Hkv, D) and (B, Sk, Hkv, Dv)
        As they were given to `attention`. D and Dv are up to 256.
    out : array, float32, float16 or bfloat16, shape (B, Sq, H, Dv)
        What `attention` returned.
    lse : array, float32, shape (B, H, Sq), contiguous
        The log-sum-exp that `attention` returned with ``return_lse``. For a part
        of the keys, as in a ring, give ``out`` and ``lse`` of all keys.
    causal, causal_align, window, scale, layout
        As they were given to `attention`.
    precision : {"bf16", "f16"}, optional
        Of the products, whose sums are float32. Default: the dtype of q.
    dlse : array, float32, shape (B, H, Sq), contiguous, optional
        The gradient of ``lse``, where it is used too.
    delta : array, float32, shape (B, H, Sq), contiguous, optional
        Used instead of sum(dout * out) - dlse; ``out`` is then not read.
    dq, dk, dv : array, float32, float16 or bfloat16, shape of q, k and v, optional
        Where the gradients go. Default: new arrays with the dtype of q.
    accumulate : bool
        Add the gradients to ``dq``, ``dk`` and ``dv``, which must be given in
        float32.
    deterministic : bool
        Add the parts of ``dq`` in a fixed order, so that the gradients have the
        same bits in every run.
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
        Rows and keys that see nothing have gradients of 0.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value. Nothing was
        written.

    Notes
    -----
    The formulas are those of FlashAttention 2 (Dao, 2023, section 3.1). P and dS
    are rounded to the dtype of q before the products. dq is a sum of float32
    terms. Unless ``deterministic``, their order changes from run to run, and so
    do the last bits of dq; dk and dv are the same bits in every run.

    """
    operation = _LAYOUTS[one_of(layout, "layout", tuple(_LAYOUTS))]
    results = {"dq": dq, "dk": dk, "dv": dv}
    if flag(accumulate, "accumulate"):
        for name, x in results.items():
            if x is None:
                message = f"accumulate is True, but {name} is None: give the float32 array to add to"
                raise InvalidArgumentError(message)
    inputs = {"q": q, "k": k, "v": v, "out": out, "dout": dout, "lse": lse, "dlse": dlse, "delta": delta}
    options = _Options(causal, causal_align, window, scale, precision, accumulate, deterministic)
    wanted = {name: NEW if x is None else x for name, x in results.items()}
    made = operation(inputs, wanted, options, device=device, stream=stream, workspace=workspace)
    return made[0], made[1], made[2]
