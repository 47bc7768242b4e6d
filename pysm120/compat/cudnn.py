"""The FP8 attention of cuDNN's frontend, by its names and with its arguments: scales that multiply, and amax."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pysm120.ops import foreign, operands
from pysm120.ops.attention import attention
from pysm120.ops.options import flag, number
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.runtime.ffi import cast
from pysm120.runtime.untraced import untraced

_NEAR = 2.0**-10  # descale_s * scale_s from 1: both may have been rounded


@untraced
def sdpa_fp8(
    q: Any,
    k: Any,
    v: Any,
    descale_q: Any,
    descale_k: Any,
    descale_v: Any,
    descale_s: Any = None,
    scale_s: Any = None,
    scale_o: Any = None,
    *,
    generate_stats: bool,
    attn_scale: float | None = None,
    use_padding_mask: bool = False,
    seq_len_q: Any = None,
    seq_len_kv: Any = None,
    use_causal_mask: bool = False,
    use_causal_mask_bottom_right: bool = False,
    descale_o: Any = None,
    out_dtype: npt.DTypeLike = ml_dtypes.float8_e4m3fn,
    device: Device | str | None = None,
    stream: Any = None,
) -> tuple[Any, Any, None, Any]:
    """Return attention in FP8, as sdpa_fp8 of a graph of cuDNN's frontend computes it.

    Parameters
    ----------
    q : array, float8_e4m3fn or float8_e5m2, shape (B, H, Sq, D)
        Queries, of any kind that `attention` takes.
    k, v : array, either float8, shape (B, Hkv, Skv, D) and (B, Hkv, Skv, Dv)
        Keys and values; H is a multiple of Hkv.
    descale_q, descale_k, descale_v : float or array, float32, one element
        An element is worth its code times this factor. A number if q is in host
        memory.
    descale_s, scale_s : float or array, optional
        Not used: the kernel scales the weights of each row by itself, so that none
        saturates. Values in host memory must be each other's inverses.
    scale_o : float or array in host memory, optional
        A code of o is worth itself / scale_o; codes saturate at 448. Default: 1.
    generate_stats : bool
        Whether to return stats.
    attn_scale : float, optional
        Default: 1, as in cuDNN, not 1 / sqrt(D).
    use_padding_mask : bool
        Whether seq_len_kv is given.
    seq_len_q : None
        Not supported.
    seq_len_kv : array, int32, B elements
        Valid keys of each batch.
    use_causal_mask, use_causal_mask_bottom_right : bool
        The first row sees the first key; the last row sees the last key.
    descale_o : array, float32, one element, optional
        1 / scale_o, instead of scale_o: the kernel reads it on the device.
    out_dtype : dtype
        Of o; in 16 or 32 bits, o has no scale.
    device, stream
        As in `attention`.

    Returns
    -------
    o : array, shape (B, H, Sq, Dv)
    stats : array, float32, shape (B, H, Sq, 1), or None
        The natural logarithm of the sum of exponentials of each row.
    amax_s : None
        The kernel never holds normalised weights of a row, so it has no largest
        one. It follows no scale_s that a recipe would derive from it; with a causal
        mask, it is 1.
    amax_o : array, float32, shape (1, 1, 1, 1)
        The largest absolute value of o, before scale_o.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape or value.
    UnsupportedError
        What the kernel does not have; the message names the argument.

    """
    _check(q, seq_len_q)
    _check_weights(descale_s, scale_s)
    if flag(use_padding_mask, "use_padding_mask") != (seq_len_kv is not None):
        state = "is not" if seq_len_kv is None else "is"
        message = f"use_padding_mask is {use_padding_mask}, but seq_len_kv {state} given: they belong together"
        raise InvalidArgumentError(message)
    corners = {"top-left": use_causal_mask, "bottom-right": use_causal_mask_bottom_right}
    causal = [corner for corner, wanted in corners.items() if flag(wanted, _MASKS[corner])]
    if len(causal) > 1:
        message = "use_causal_mask and use_causal_mask_bottom_right are both True: choose one of them"
        raise InvalidArgumentError(message)
    is_on_host = foreign.on_host(q)
    given = {
        "q_scale": (descale_q, "descale_q"),
        "k_scale": (descale_k, "descale_k"),
        "v_scale": (descale_v, "descale_v"),
    }
    scales = {member: _one(x, name, is_on_host=is_on_host) for member, (x, name) in given.items()}
    scales["o_scale"] = _scale_of_o(scale_o, descale_o, is_on_host=is_on_host)
    amax, place = _zero(q, device, stream, is_on_host=is_on_host)
    found = attention(
        q,
        k,
        v,
        **scales,
        amax=amax,
        scale=1.0 if attn_scale is None else number(attn_scale, "attn_scale"),
        causal=bool(causal),
        causal_align=causal[0] if causal else "bottom-right",
        kv_lengths=None if seq_len_kv is None else _flat(seq_len_kv, "seq_len_kv"),
        layout="BHSD",
        out_dtype=out_dtype,
        return_lse=flag(generate_stats, "generate_stats"),  # type: ignore[call-overload] # the overloads need a literal
        device=place,
        stream=stream,
    )
    o, stats = found if generate_stats else (found, None)
    if not is_on_host:
        amax = foreign.handed_to(foreign.library_of(q), amax, "amax_o")
    stats = None if stats is None else stats.reshape((*stats.shape, 1))
    return o, stats, None, amax.reshape((1, 1, 1, 1))


_MASKS = {"top-left": "use_causal_mask", "bottom-right": "use_causal_mask_bottom_right"}


def _check(q: Any, seq_len_q: Any) -> None:
    """Refuse what the kernel does not have."""
    if getattr(q, "dtype", None) is None or not str(q.dtype).endswith(("float8_e4m3fn", "float8_e5m2")):
        name = getattr(q, "dtype", type(q).__name__)
        message = f"q is {name}, but sdpa_fp8 takes float8_e4m3fn and float8_e5m2; for 16 bits use pysm120.attention"
        raise UnsupportedError(message)
    if seq_len_q is not None:
        message = "seq_len_q is given, which is not supported: leave it out, or pack sequences for attention_varlen"
        raise UnsupportedError(message)


def _check_weights(descale_s: Any, scale_s: Any) -> None:
    """Raise if the scales of the weights are known and change the result."""
    known = [_value(x, name) for x, name in ((descale_s, "descale_s"), (scale_s, "scale_s"))]
    if None in known:
        return
    if not abs(math.prod(x for x in known if x is not None) - 1) < _NEAR:
        message = f"descale_s is {known[0]} and scale_s is {known[1]}, but each must be the inverse of the other"
        raise UnsupportedError(message)


def _value(x: Any, name: str) -> float | None:
    """Return a number, or the element of an array in host memory; None for others."""
    if x is None or (hasattr(x, "shape") and not isinstance(x, np.generic) and not foreign.on_host(x)):
        return None
    return number(np.asarray(_flat(x, name, 1))[0] if hasattr(x, "shape") else x, name)


def _flat(x: Any, name: str, size: int | None = None) -> Any:
    """Return an array with one dimension."""
    shape = getattr(x, "shape", None)
    if shape is None:
        message = f"{name} is a {type(x).__name__}, not an array"
        raise TypeError(message)
    count = math.prod(shape)
    if size is not None and count != size:
        message = f"{name} has shape {tuple(shape)}, not one element: cuDNN has a scale for each tensor"
        raise InvalidArgumentError(message)
    return x.reshape((count,))


def _one(x: Any, name: str, *, is_on_host: bool) -> Any:
    """Return a scale as attention takes it."""
    if is_on_host and not hasattr(x, "shape"):
        return np.full(1, number(x, name), np.float32)
    return _flat(x, name, 1)


def _scale_of_o(scale_o: Any, descale_o: Any, *, is_on_host: bool) -> Any:
    """Return the factor of a code of o."""
    if scale_o is None:
        return None if descale_o is None else _one(descale_o, "descale_o", is_on_host=is_on_host)
    if descale_o is not None:
        message = "scale_o and descale_o are both given: choose one of them"
        raise InvalidArgumentError(message)
    value = _value(scale_o, "scale_o")
    if value is None or not is_on_host:
        message = "scale_o is for q in host memory: give descale_o = 1 / scale_o on the device instead"
        raise UnsupportedError(message)
    if not value > 0:
        message = f"scale_o is {value}, not above 0"
        raise InvalidArgumentError(message)
    return np.full(1, 1 / value, np.float32)


def _zero(q: Any, device: Device | str | None, stream: Any, *, is_on_host: bool) -> tuple[Any, Device | str | None]:
    """Return an amax of 0 where q is, and the device."""
    if is_on_host:
        return np.zeros(1, np.float32), device
    place = operands.device_of({"q": q}, device)
    queue = int(cast("uintptr_t", place.stream_handle(stream)))
    return place.empty(1, np.float32).copy_from(np.zeros(1, np.float32), stream=queue), device
