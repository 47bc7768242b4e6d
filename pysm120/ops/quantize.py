"""Quantisation to OCP MX and to NVFP4, and the orders of scales."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops.call import AnyArray, Operation
from pysm120.ops.options import MOST, flag, integer, number, one_of
from pysm120.ops.plan import NEW
from pysm120.ops.table import E4M3, E8M0, F32, I32, U8, Input, Output
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import lib
from pysm120.runtime.untraced import untraced

_HEAD_STEP = 8
_NV_BLOCK = 16


class _Options(NamedTuple):
    """Members of the C struct, and the sizes that x does not tell."""

    axis: int
    rounding: int
    longest: int = 0
    sizes: tuple[tuple[str, int, str], ...] = ()


def _fill(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options."""
    if given["x"].shape[-1] % _HEAD_STEP:
        message = f"x has shape {given['x'].shape}, whose last dimension is not a multiple of {_HEAD_STEP}"
        raise InvalidArgumentError(message)
    args.axis, args.rounding, args.longest, _ = options


def _fill_packed(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options of packed sequences."""
    args.batch = 1
    _fill(args, given, options)


def _check_starts(given: dict[str, npt.NDArray[Any]], options: _Options) -> _Options:
    """Check cu_seqlens, and take the longest sequence from it."""
    starts, rows = given["cu_seqlens"].astype(np.int64), given["x"].shape[1]
    steps = np.diff(starts)
    if starts[0] < 0 or (steps < 0).any() or starts[-1] > rows:
        message = f"cu_seqlens is {starts}, but it must ascend from 0 to at most {rows}, the rows of x"
        raise InvalidArgumentError(message)
    if options.longest and options.longest < steps.max():
        message = f"max_seqlen is {options.longest}, but cu_seqlens has a sequence of {steps.max()} rows"
        raise InvalidArgumentError(message)
    return options._replace(longest=max(1, int(steps.max())))


def _along(scales: str) -> Operation:
    rows = (
        Input("x", "... rows head_dim"),
        Output("elements", "... rows head_dim", E4M3),
        Output("scales", scales, E8M0),
    )
    return Operation("sm120_quantize_mxfp8", rows, fill=_fill)


_ALONG = {-1: _along("... rows head_dim/32"), -2: _along("... rows/32 head_dim")}
_PACKED = Operation(
    "sm120_quantize_mxfp8",
    (
        Input("x", "heads rows head_dim"),
        Input("cu_seqlens", "sequences+1", I32),
        Output("elements", "heads rows head_dim", E4M3, fill=0),
        Output("scales", "heads scale_rows head_dim", E8M0, fill=0),
    ),
    fill=_fill_packed,
    on_host=_check_starts,
)
_PACKED_RANK, _BLOCK = 3, 32
_AXES = {-1: lib.SM120_ALONG_HEAD_DIM, -2: lib.SM120_ALONG_ROWS}
_ROUNDINGS = {"up": lib.SM120_SCALE_UP, "floor": lib.SM120_SCALE_FLOOR}


@untraced
def quantize_mxfp8(
    x: AnyArray,
    *,
    axis: int = -1,
    rounding: str = "up",
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> tuple[AnyArray, AnyArray]:
    """Return e4m3 elements and a power-of-two scale for every 32 of them.

    Parameters
    ----------
    x : array, float32, float16 or bfloat16, shape (..., rows, D)
        D is a multiple of 8. Results have the kind of x, as in `attention`.
    axis : {-1, -2}
        The axis of the blocks of 32; the last block may be short.
    rounding : {"up", "floor"}
        Rounding of the scale. "up": the smallest power of two with which no
        element saturates. "floor": the rule of OCP MX 1.0,
        2^(floor(log2 amax) - 8); elements saturate at 448.
    cu_seqlens : array, int32, shape (B + 1,), optional
        For axis -2 of x (H, total, D): the row at which each packed sequence begins,
        and the end of the last one, as in `attention_varlen`. Each sequence begins
        with a new block, as `attention_varlen` needs it of v.
    max_seqlen : int, optional
        Rows of the longest sequence. Default: taken from cu_seqlens; for arrays on a
        device total, which costs time.
    device : Device or str, optional
        The device for an ndarray.
    stream : stream, optional
        For an Array the call returns before the work is done.

    Returns
    -------
    elements : array, float8_e4m3fn, shape of x
    scales : array, float8_e8m0fnu
        Shape (..., rows, ceil(D / 32)) for axis -1, (..., ceil(rows / 32), D)
        for axis -2. x is close to elements * scales. With cu_seqlens (H,
        ceil(total / 32) + B - 1, D), those of sequence b from row cu_seqlens[b] // 32
        + b on.

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
    which = _axis(x, axis)
    options = _Options(_AXES[which], _ROUNDINGS[one_of(rounding, "rounding", tuple(_ROUNDINGS))])
    results = {"elements": NEW, "scales": NEW}
    if cu_seqlens is not None:
        options = options._replace(longest=0 if max_seqlen is None else _longest(max_seqlen))
        options = options._replace(sizes=_scale_rows(x, which, cu_seqlens))
        inputs = {"x": x, "cu_seqlens": cu_seqlens}
        elements, scales = _PACKED(inputs, results, options, device=device, stream=stream)
        return elements, scales
    if max_seqlen is not None:
        message = f"max_seqlen is {max_seqlen}, but cu_seqlens is None: give both or neither"
        raise InvalidArgumentError(message)
    elements, scales = _ALONG[which]({"x": x}, results, options, device=device, stream=stream)
    return elements, scales


def _longest(given: Any) -> int:
    """Return the rows of the longest sequence."""
    rows = integer(given, "max_seqlen")
    if rows < 1:
        message = f"max_seqlen is {rows}, not at least 1"
        raise InvalidArgumentError(message)
    return min(rows, MOST)


def _scale_rows(x: Any, which: int, cu_seqlens: Any) -> tuple[tuple[str, int, str], ...]:
    """Return the number of rows of scales of packed sequences."""
    shape = tuple(getattr(x, "shape", ()))
    starts = tuple(cu_seqlens.shape) if hasattr(cu_seqlens, "shape") else np.shape(cu_seqlens)
    if which != -len(("rows", "columns")) or len(shape) != _PACKED_RANK:
        message = f"x has shape {shape} and axis is {which}; with cu_seqlens x is [heads, rows, head_dim], and axis -2"
        raise InvalidArgumentError(message)
    sequences = max(1, starts[0] - 1) if starts else 1
    return (("scale_rows", -(-shape[1] // _BLOCK) + sequences - 1, "cu_seqlens"),)


class _NvOptions(NamedTuple):
    """Members of the C struct."""

    layout: int
    search: bool
    axis: int
    global_scale: float


def _fill_nvfp4(args: Any, given: Mapping[str, Any], options: _NvOptions) -> None:
    """Write the options."""
    if options.axis == lib.SM120_ALONG_HEAD_DIM and given["x"].shape[-1] % _NV_BLOCK:
        message = f"x has shape {given['x'].shape}, whose last dimension is not a multiple of {_NV_BLOCK}"
        raise InvalidArgumentError(message)
    args.layout, args.search, args.axis, args.global_scale = options


# Of scales: the code of a layout, and the multiples to which it pads rows and columns.
_LAYOUTS = {
    "linear": (lib.SM120_SCALES_LINEAR, 1, 1),
    "128x4": (lib.SM120_SCALES_128X4, 128, 4),
    "64x4": (lib.SM120_SCALES_64X4, 64, 4),
}


def _nvfp4(axis: int, layout: str) -> Operation:
    lines, length = ("rows", "head_dim") if axis == -1 else ("head_dim", "rows")
    _, tile_rows, columns = _LAYOUTS[layout]
    rows = (
        Input("x", "... rows head_dim"),
        Input("global_scale", "1", F32, member="global_scale_address", optional=True),
        Output("elements", f"... {lines} {length}/{_NV_BLOCK}*{_NV_BLOCK // 2}", U8),
        Output("scales", f"... {lines}/{tile_rows}*{tile_rows} {length}/{_NV_BLOCK * columns}*{columns}", E4M3),
    )
    return Operation("sm120_quantize_nvfp4", rows, fill=_fill_nvfp4)


_NVFP4 = {(axis, layout): _nvfp4(axis, layout) for axis in _AXES for layout in _LAYOUTS}


@untraced
def quantize_nvfp4(
    x: AnyArray,
    *,
    axis: int = -1,
    global_scale: float | Any = None,
    layout: str = "linear",
    search: bool = False,
    device: Device | str | None = None,
    stream: Any = None,
) -> tuple[AnyArray, AnyArray]:
    """Return pairs of e2m1 elements and an e4m3 scale for every 16 of them.

    Parameters
    ----------
    x : array, float32, float16 or bfloat16, shape (..., rows, D)
        For axis -1, D is a multiple of 16.
    axis : {-1, -2}
        The axis of the blocks. For -2 the results are those of x with its last two
        axes exchanged, whose last axis is filled up with zeros to a multiple of 16:
        what matrix instructions of 4 bits take for V of attention, and for weights.
    global_scale : float or array, float32, shape (1,), optional
        A factor of all values, from 2^-100 to 2^100; None is 1. An array is read by
        the kernel, on the device; its value is not checked.
    layout : {"linear", "128x4", "64x4"}
        The order of the scales. "linear": a matrix of rows and D / 16 columns.
        "128x4": the tiles that cuBLAS and CUTLASS read. "64x4": the tiles of
        SageAttention 3. See Notes, and `repack_scales`.
    search : bool
        Take of amax / 6 and amax / 4 the scale with the smaller squared error.
    device, stream
        As in `quantize_mxfp8`.

    Returns
    -------
    elements : array, uint8, shape (..., rows, D / 2), or (..., D, ceil(rows / 16) * 8)
        Two elements in a byte, the first in its low half.
    scales : array, float8_e4m3fn
        Shape (..., rows, D / 16), or (..., D, ceil(rows / 16)). In tiles, both
        dimensions are rounded up to multiples of the tile's, and the padding is 0. x
        is close to elements * scales * global_scale.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    Notes
    -----
    With g the global scale, scale = e4m3(amax / (6 g)) and element = e2m1(x * (1 /
    (scale * g))). Operations are in float32; all round to nearest even, and both
    formats saturate. Where the scale is 0, so are the elements. A block that holds a
    NaN or an infinity gets the scale NaN and elements 6. With `search`, a tie takes
    amax / 6; errors are float32 sums in the order of the elements.

    In tiles of R rows and 4 columns, scale (r, c) of a padded matrix with C columns is
    byte ``r // R * (R * C) + c // 4 * (4 * R) + r % (R // 4) * 16 + r // (R // 4) % 4
    * 4 + c % 4``.

    """
    which = _axis(x, axis)
    code, _, _ = _LAYOUTS[one_of(layout, "layout", tuple(_LAYOUTS))]
    is_array = hasattr(global_scale, "shape") and not isinstance(global_scale, np.generic)
    value = 1.0 if global_scale is None else global_scale
    factor = 0.0 if is_array else number(value, "global_scale")
    options = _NvOptions(code, flag(search, "search"), _AXES[which], factor)
    inputs = {"x": x, "global_scale": global_scale if is_array else None}
    results = {"elements": NEW, "scales": NEW}
    elements, scales = _NVFP4[which, layout](inputs, results, options, device=device, stream=stream)
    return elements, scales


def _axis(x: Any, axis: Any) -> int:
    """Return the axis of blocks, counted from the end."""
    which, rank = integer(axis, "axis"), len(getattr(x, "shape", ()))
    which = which - rank if which >= 0 else which
    if which not in _AXES:
        message = f"axis is {axis}, not -1 (the last) or -2 (the rows)"
        raise InvalidArgumentError(message)
    return which


# ---- the order of scales ---------------------------------------------------------


class _RepackOptions(NamedTuple):
    """Members of the C struct, and the sizes that the scales do not tell."""

    source: int
    target: int
    sizes: tuple[tuple[str, int, str], ...]


def _fill_repack(args: Any, given: Mapping[str, Any], options: _RepackOptions) -> None:
    """Write the options."""
    del given
    args.source, args.target, _ = options


def _repacking(source: str, target: str) -> Operation:
    def padded(layout: str) -> str:
        _, rows, columns = _LAYOUTS[layout]
        return "... rows columns" if layout == "linear" else f"... rows/{rows}*{rows} columns/{columns}*{columns}"

    dtypes = (*E4M3, *E8M0, *U8)
    rows = (Input("scales", padded(source), dtypes), Output("repacked", padded(target), dtypes, like="scales"))
    return Operation("sm120_repack_scales", rows, fill=_fill_repack)


_REPACKING = {(source, target): _repacking(source, target) for source in _LAYOUTS for target in _LAYOUTS}


@untraced
def repack_scales(
    scales: AnyArray,
    source: str,
    target: str,
    *,
    rows: int | None = None,
    columns: int | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> AnyArray:
    """Return scales of blocks in another order.

    Parameters
    ----------
    scales : array, float8_e4m3fn, float8_e8m0fnu or uint8, shape (..., R, C)
        Scales in the layout `source`, as `quantize_nvfp4` returns them. The tiles of
        cuBLAS are the same for MXFP8.
    source, target : {"linear", "128x4", "64x4"}
        The orders of `quantize_nvfp4`.
    rows, columns : int, optional
        The size of a matrix without its padding. Default: all rows and columns.
    device, stream
        As in `quantize_mxfp8`.

    Returns
    -------
    repacked : array, dtype of scales
        Shape (..., rows, columns), in tiles rounded up to multiples of the tile's.
        Padding is 0, whatever it was.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    """
    codes = [_LAYOUTS[one_of(x, name, tuple(_LAYOUTS))][0] for x, name in ((source, "source"), (target, "target"))]
    shape = tuple(getattr(scales, "shape", ()))
    sizes = []
    for name, given, extent in zip(("rows", "columns"), (rows, columns), shape[-2:], strict=False):
        size = extent if given is None else integer(given, name)
        if size < 1:
            message = f"{name} is {size}, not at least 1"
            raise InvalidArgumentError(message)
        sizes.append((name, size, "the call"))
    options = _RepackOptions(codes[0], codes[1], tuple(sizes))
    operation = _REPACKING[source, target]
    repacked: AnyArray = operation({"scales": scales}, {"repacked": NEW}, options, device=device, stream=stream)[0]
    return repacked
