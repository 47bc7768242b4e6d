"""Quantisation to OCP MX."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pysm120.ops.call import AnyArray, Operation
from pysm120.ops.options import integer, one_of
from pysm120.ops.plan import NEW
from pysm120.ops.table import E4M3, E8M0, Input, Output
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import lib

_HEAD_STEP = 8


class _Options(NamedTuple):
    """Members of the C struct."""

    axis: int
    rounding: int


def _fill(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options."""
    if given["x"].shape[-1] % _HEAD_STEP:
        message = f"x has shape {given['x'].shape}, whose last dimension is not a multiple of {_HEAD_STEP}"
        raise InvalidArgumentError(message)
    args.axis, args.rounding = options


def _along(scales: str) -> Operation:
    rows = (
        Input("x", "... rows head_dim"),
        Output("elements", "... rows head_dim", E4M3),
        Output("scales", scales, E8M0),
    )
    return Operation("sm120_quantize_mxfp8", rows, fill=_fill)


_ALONG = {-1: _along("... rows head_dim/32"), -2: _along("... rows/32 head_dim")}
_AXES = {-1: lib.SM120_ALONG_HEAD_DIM, -2: lib.SM120_ALONG_ROWS}
_ROUNDINGS = {"up": lib.SM120_SCALE_UP, "floor": lib.SM120_SCALE_FLOOR}


def quantize_mxfp8(
    x: AnyArray,
    *,
    axis: int = -1,
    rounding: str = "up",
    device: Device | str | None = None,
    stream: Any = None,
) -> tuple[AnyArray, AnyArray]:
    """Return e4m3 elements and a power-of-two scale for every 32 of them.

    Parameters
    ----------
    x : array, float32, float16 or bfloat16, shape (..., rows, D)
        D is a multiple of 8. An ndarray is copied to the device and the result
        back; an Array, or an array that supports DLPack, stays on its device.
    axis : {-1, -2}
        The axis of the blocks of 32; the last block may be short.
    rounding : {"up", "floor"}
        Rounding of the scale. "up": the smallest power of two with which no
        element saturates. "floor": the rule of OCP MX 1.0,
        2^(floor(log2 amax) - 8); elements saturate at 448.
    device : Device or str, optional
        The device for an ndarray.
    stream : stream, optional
        For an Array the call returns before the work is done.

    Returns
    -------
    elements : array, float8_e4m3fn, shape of x
    scales : array, float8_e8m0fnu
        Shape (..., rows, ceil(D / 32)) for axis -1, (..., ceil(rows / 32), D)
        for axis -2. x is close to elements * scales.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    Notes
    -----
    A block that holds a NaN or an infinity gets the scale NaN and elements NaN, as
    OCP Microscaling Formats (MX) 1.0 specifies.

    """
    which, rank = integer(axis, "axis"), len(getattr(x, "shape", ()))
    which = which - rank if which >= 0 else which
    if which not in _AXES:
        message = f"axis is {axis}, not -1 (the last) or -2 (the rows)"
        raise InvalidArgumentError(message)
    options = _Options(_AXES[which], _ROUNDINGS[one_of(rounding, "rounding", tuple(_ROUNDINGS))])
    results = {"elements": NEW, "scales": NEW}
    elements, scales = _ALONG[which]({"x": x}, results, options, device=device, stream=stream)
    return elements, scales
