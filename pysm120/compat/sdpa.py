"""torch's scaled_dot_product_attention, on arrays."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pysm120.ops import options as checks
from pysm120.ops.attention import attention
from pysm120.ops.options import number
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.runtime.untraced import untraced

_MATRIX = 2
_HEADS = 3  # axes of heads and rows, counted from the end
_MASK_DTYPES = ("bool", "float64", "float32", "float16", "bfloat16")


@untraced
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - the order of torch
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    precision: str | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> Any:
    """Return softmax(scale * query key^T + attn_mask) value, with the interface of torch.

    Parameters
    ----------
    query : array, float16 or bfloat16, shape (..., H, L, E) or (L, E)
        Queries, of any kind that `attention` takes.
    key, value : array, dtype of query, shape (..., H, S, E) and (..., H, S, Ev)
        Keys and values.
    attn_mask : array, bool, float32, float16 or bfloat16, optional
        Broadcasts to (..., H, L, S). Added to the scores; in a bool mask, False hides a key.
    dropout_p : float
        0: there is no dropout.
    is_causal : bool
        Top-left alignment: the first row sees only the first key. Not with attn_mask.
    scale : float, optional
        Default: 1 / sqrt(E).
    enable_gqa : bool
        Key and value may have fewer heads; H is a multiple of their number.
    precision : str, optional
        Precision of the products, as in `attention`. Default: the dtype of query.
    device, stream
        As in `attention`.

    Returns
    -------
    out : array, shape (..., H, L, Ev)
        Rows without any key are 0.

    """
    given = {"query": query, "key": key, "value": value}
    precision = checks.precision_of(query, "query", precision)
    _check_dtypes(given)
    _check_shapes(*(tuple(x.shape) for x in given.values()), enable_gqa=enable_gqa)
    if number(dropout_p, "dropout_p") != 0:
        message = f"dropout_p is {dropout_p}, but dropout is not supported: it must be 0"
        raise UnsupportedError(message)
    causal = _check_flag(is_causal)
    if causal and attn_mask is not None:
        message = "attn_mask is given and is_causal is True, but only one of them is allowed"
        raise InvalidArgumentError(message)
    shape = tuple(query.shape)
    out = attention(
        *(_four(x) for x in given.values()),
        causal=causal,
        causal_align="top-left",
        mask=None if attn_mask is None else _mask(attn_mask, (*shape[:-1], key.shape[-2])),
        scale=scale,
        precision=precision,
        layout="BHSD",
        device=device,
        stream=stream,
    )
    return out.reshape((*shape[:-1], value.shape[-1]))


def _check_dtypes(given: Mapping[str, Any]) -> None:
    """Raise if key or value has another dtype than query."""
    dtypes = {name: checks.dtype_name(x, name) for name, x in given.items()}
    for name, dtype in dtypes.items():
        if dtype != dtypes["query"]:
            message = f"{name} has dtype {dtype}, but query has {dtypes['query']}"
            raise TypeError(message)


def _check_shapes(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *, enable_gqa: Any) -> None:
    """Raise if the shapes of query, key and value do not fit each other."""
    for name, shape in (("query", query), ("key", key), ("value", value)):
        if len(shape) < _MATRIX or len(shape) != len(query):
            message = f"{name} has shape {shape}, but query, key and value must have equally many dimensions, 2 or more"
            raise InvalidArgumentError(message)
        if 0 in shape:
            message = f"{name} has shape {shape}, but every dimension must be at least 1"
            raise InvalidArgumentError(message)
    heads, kv_heads = (shape[-_HEADS] if len(shape) >= _HEADS else 1 for shape in (query, key))
    lead = query[:-_HEADS]
    wanted_heads = key[-_HEADS:-_MATRIX]
    for name, shape, wanted in (
        ("key", key, (*lead, *wanted_heads, key[-2], query[-1])),
        ("value", value, (*lead, *wanted_heads, key[-2], value[-1])),
    ):
        if shape != wanted:
            message = f"{name} has shape {shape}, not {wanted}, which follows from query and key"
            raise InvalidArgumentError(message)
    if heads != kv_heads and not enable_gqa:
        message = f"key has {kv_heads} heads, but query has {heads}, which enable_gqa=True allows"
        raise InvalidArgumentError(message)
    if heads % kv_heads:
        message = f"query has {heads} heads, not a multiple of the {kv_heads} of key and value"
        raise InvalidArgumentError(message)


def _check_flag(is_causal: Any) -> bool:
    if not isinstance(is_causal, bool | np.bool_):
        message = f"is_causal is {is_causal!r}, not True or False"
        raise TypeError(message)
    return bool(is_causal)


def _four(x: Any) -> Any:
    """Return an array of four dimensions: those before the heads are merged into one."""
    shape = tuple(x.shape)
    if len(shape) == _HEADS + 1:
        return x
    return x.reshape((math.prod(shape[:-_HEADS]), *(1,) * (_HEADS - len(shape)), *shape[-_HEADS:]))


def _mask(mask: Any, wanted: tuple[int, ...]) -> Any:
    """Return a mask of at most four dimensions."""
    if not hasattr(mask, "shape"):
        message = f"attn_mask is a {type(mask).__name__}, not an array"
        raise TypeError(message)
    dtype = checks.dtype_name(mask, "attn_mask")
    if dtype not in _MASK_DTYPES:
        message = f"attn_mask has dtype {dtype}, not bool, float32, float16 or bfloat16"
        raise TypeError(message)
    shape = tuple(mask.shape)
    whole = (1,) * (len(wanted) - len(shape)) + shape
    if len(whole) != len(wanted) or any(n not in {1, m} for n, m in zip(whole, wanted, strict=True)):
        message = f"attn_mask has shape {shape}, which does not broadcast to {wanted}"
        raise InvalidArgumentError(message)
    if len(shape) <= _HEADS + 1 and len(wanted) <= _HEADS + 1:
        return mask
    lead = whole[:-_HEADS]
    if lead != wanted[:-_HEADS] and math.prod(lead) != 1:
        if not isinstance(mask, np.ndarray):
            message = f"attn_mask has shape {shape}: on a device, dimensions before its heads must be all 1 or all full"
            raise UnsupportedError(message)
        lead = wanted[:-_HEADS]
        mask = np.broadcast_to(mask, (*lead, *whole[-_HEADS:]))
    return mask.reshape((math.prod(lead), *whole[-_HEADS:]))
