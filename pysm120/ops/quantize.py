"""Quantisation to OCP MX."""

import operator
from typing import Any, NamedTuple, overload

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pysm120.ops import operands
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.dlpack import SupportsDLPack
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import check_running, ffi, lib, new_struct

BLOCK = 32
_ROW_AXES = 2
_LEADING = 2


class _Problem(NamedTuple):
    """A call but its arrays, checked."""

    axis: int
    rounding: int
    scales_shape: tuple[int, ...]


@overload
def quantize_mxfp8(
    x: npt.NDArray[Any],
    *,
    axis: int = ...,
    rounding: str = ...,
    device: Device | str | None = ...,
    stream: Any = ...,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...
@overload
def quantize_mxfp8(
    x: Array | SupportsDLPack,
    *,
    axis: int = ...,
    rounding: str = ...,
    device: Device | str | None = ...,
    stream: Any = ...,
) -> tuple[Array, Array]: ...
def quantize_mxfp8(
    x: Any,
    *,
    axis: int = -1,
    rounding: str = "up",
    device: Device | str | None = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Return e4m3 elements and a power-of-two scale for every 32 of them.

    Parameters
    ----------
    x : array, float32, float16 or bfloat16, shape (..., rows, D)
        D is a multiple of 8. An ndarray is copied to the device
        and the result back; an Array, or an array that speaks DLPack, stays on
        its device.
    axis : {-1, -2}
        Along which the blocks of 32 lie; the last block may be short.
    rounding : {"up", "floor"}
        Of the scale. "up": the smallest power of two under which no element
        saturates. "floor": the rule of OCP MX 1.0, 2^(floor(log2 amax) - 8);
        elements saturate at 448.
    device : Device or str, optional
        Where an ndarray is computed.
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
    A block that holds a NaN or an infinity has the scale NaN and elements NaN, as
    OCP Microscaling Formats (MX) 1.0 has it.

    """
    on_host = operands.is_host({"x": x})
    place = operands.device_of({"x": x}, device)
    queue = place.stream_handle(stream)
    face: Any = x if on_host else place.from_dlpack(x, stream=stream)
    problem = _check(tuple(face.shape), face.dtype, axis, rounding)
    number = int(ffi.cast("uintptr_t", queue))
    if not on_host:
        results = _launch(problem, place, _collapsed(face, number), face.shape, queue)
        if not isinstance(x, Array):
            operands.finish(place, queue)
        return results
    staged: list[Array] = []
    with operands.temporary(staged):
        staged.append(place.empty(face.shape, face.dtype))
        staged[0].copy_from(face, stream=number)
        packed = _collapsed(staged[0], number)
        staged += _launch(problem, place, packed, face.shape, queue)
        return staged[1].numpy(stream=number), staged[2].numpy(stream=number)


def _check(shape: tuple[int, ...], dtype: np.dtype[Any], axis: Any, rounding: Any) -> _Problem:
    """Return the problem that the arguments describe."""
    operands.check_dtype(dtype, "x")
    if len(shape) < _ROW_AXES:
        message = f"x has shape {shape}, not (..., rows, head size)"
        raise InvalidArgumentError(message)
    if 0 in shape:
        message = f"x has shape {shape}, but every dimension must be at least 1"
        raise InvalidArgumentError(message)
    operands.check_head_dim(shape[-1], "x")
    operands.one_of(rounding, "rounding", ("up", "floor"))
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        message = f"axis is {axis!r}, not -1 or -2"
        raise TypeError(message)
    which = operator.index(axis)
    which = which - len(shape) if which >= 0 else which
    if which not in (-1, -2):
        message = f"axis is {axis}, not -1 (the last) or -2 (the rows)"
        raise InvalidArgumentError(message)
    scales = list(shape)
    scales[which] = -(-shape[which] // BLOCK)
    return _Problem(
        lib.SM120_ALONG_HEAD_DIM if which == -1 else lib.SM120_ALONG_ROWS,
        lib.SM120_SCALE_UP if rounding == "up" else lib.SM120_SCALE_FLOOR,
        tuple(scales),
    )


def _collapsed(x: Array, stream: int) -> Array:
    """Return x with exactly two dimensions before the rows, copied if need be."""
    groups: list[list[int]] = []
    for extent, stride in zip(x.shape[:-_ROW_AXES], x.strides[:-_ROW_AXES], strict=True):
        if groups and (groups[-1][1] == extent * stride or groups[-1][0] == 1):
            groups[-1] = [groups[-1][0] * extent, stride]
        elif not groups or extent > 1:
            groups.append([extent, stride])
    if len(groups) > _LEADING:
        return _collapsed(x.copy(stream=stream), stream)
    groups = [[1, 0]] * (_LEADING - len(groups)) + groups
    shape = (*(n for n, _ in groups), *x.shape[-_ROW_AXES:])
    strides = (*(s for _, s in groups), *x.strides[-_ROW_AXES:])
    return Array(x.owner, x.address, shape, strides, x.dtype)


def _launch(problem: _Problem, device: Device, x: Array, shape: tuple[int, ...], queue: Any) -> tuple[Array, Array]:
    """Start the operation on an array [batch, heads, rows, D] of the device."""
    rows = operands.rows_of(x, (0, 1, 2), "x", output=False)
    elements = device.empty(shape, ml_dtypes.float8_e4m3fn)
    scales = device.empty(problem.scales_shape, ml_dtypes.float8_e8m0fnu)
    args = new_struct("sm120_quantize_mxfp8_args")
    args.axis, args.rounding = problem.axis, problem.rounding
    args.batch, args.heads, args.rows, args.head_dim = rows[:4]
    operands.fill_tensor(args.x, x, rows)
    args.elements, args.scales = elements.address, scales.address
    args.stream = queue
    pointer = device.handle.pointer
    check_running(pointer, lambda: lib.sm120_quantize_mxfp8(pointer, args), is_virtual=device.is_virtual)
    operands.touch(queue, x, elements, scales)
    return elements, scales
