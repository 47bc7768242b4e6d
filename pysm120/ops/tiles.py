"""Keys and values in MXFP8, in the tiles that the kernels of attention read."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops import foreign, operands
from pysm120.ops.call import Operation
from pysm120.ops.options import integer, one_of
from pysm120.ops.plan import NEW
from pysm120.ops.table import I32, U8, Input, Output
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import lib
from pysm120.runtime.module import builtins
from pysm120.runtime.untraced import untraced

ROWS = 64  # of a tile
_COLUMNS = (64, 128, 256)
_HALF, _BLOCK = 128, 32
_HEAD_STEP = 8
_AXES = {"q": lib.SM120_ALONG_HEAD_DIM, "k": lib.SM120_ALONG_HEAD_DIM, "v": lib.SM120_ALONG_ROWS}
_PRECISIONS = {"mxfp8": lib.SM120_MXFP8, "mxfp8_bf16": lib.SM120_MXFP8_BF16, "mxfp8_f16": lib.SM120_MXFP8_F16}
_ROUNDINGS = {"up": lib.SM120_SCALE_UP, "floor": lib.SM120_SCALE_FLOOR}
_RANK = {False: 4, True: 3}  # of x; True: packed sequences


def tile_bytes(operand: str, columns: int) -> int:
    """Return the bytes of a tile, of q those of a row: elements and scales."""
    if operand == "q":
        return columns + 4 * max(1, columns // _HALF)
    scales = ROWS // _BLOCK * columns if operand == "v" else 4 * ROWS * max(1, columns // _HALF)
    return ROWS * columns + scales


@functools.cache
def q_rows(precision: str, columns: int) -> int:
    """Return the rows to whose multiples the kernels of a precision pad q."""
    kernels = (x for x in builtins() if x.operation == "attention" and x.precision == precision)
    return next(x.q_rows for x in kernels if x.head_dim == columns)


def tile_columns(*head_dims: int) -> int:
    """Return the least columns of a tile that hold some head sizes; 0 if none do."""
    return next((x for x in _COLUMNS if x >= max(head_dims)), 0)


@dataclasses.dataclass(frozen=True)
class MXFP8Tiles:
    """Keys or values in MXFP8, in the order in which attention reads them; `quantize_mxfp8_tiles` makes them.

    Attributes
    ----------
    data : array, uint8, shape (B, Hkv, ceil(rows / 64), bytes of a tile)
        The tiles, elements and scales, contiguous. Of q (B, H, padded rows, bytes of a
        row): all elements, then all scales.
    operand : {"q", "k", "v"}
        Which operand of `attention` they are.
    rows : int
        Rows of a batch; of packed sequences, those of the longest.
    head_dim : int
        Head size.
    columns : int
        Columns of a tile: 64, 128 or 256.
    precision : str
        Of q: the precision whose kernels read these rows.

    """

    data: Any
    operand: str
    rows: int
    head_dim: int
    columns: int
    precision: str = "mxfp8"

    def __post_init__(self) -> None:
        """Check that the attributes fit each other."""
        one_of(self.operand, "operand", tuple(_AXES))
        _check_columns(integer(self.columns, "columns"), integer(self.head_dim, "head_dim"), "head_dim")
        shape = tuple(getattr(self.data, "shape", ()))
        one_of(self.precision, "precision", tuple(_PRECISIONS))
        step = q_rows(self.precision, self.columns) if self.operand == "q" else ROWS
        padded = -(-integer(self.rows, "rows") // step)
        tiles = (padded * step if self.operand == "q" else padded, tile_bytes(self.operand, self.columns))
        if self.rows < 1 or len(shape) != len("BHTb") or shape[2:] != tiles:
            message = (
                f"data has shape {shape}, but {self.rows} rows of {self.operand} in tiles of {self.columns} columns "
                f"have (batch, {'heads' if self.operand == 'q' else 'kv_heads'}, {tiles[0]}, {tiles[1]})"
            )
            raise InvalidArgumentError(message)

    @property
    def nbytes(self) -> int:
        """The bytes of the tiles."""
        return int(np.prod([int(n) for n in self.data.shape]))


class _Options(NamedTuple):
    """Members of the C struct, and the sizes that x does not tell."""

    axis: int
    rounding: int
    tile_columns: int
    layout: int
    precision: int
    sizes: tuple[tuple[str, int, str], ...]


def _fill(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options."""
    if (shape := given["x"].shape)[-1] % _HEAD_STEP:
        message = f"x has shape {shape}, whose last dimension is not a multiple of {_HEAD_STEP}"
        raise InvalidArgumentError(message)
    args.axis, args.rounding, args.tile_columns, args.layout, args.precision, _ = options


def _fill_packed(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options of packed sequences."""
    args.batch = 1
    _fill(args, given, options)


def _check_starts(given: dict[str, npt.NDArray[Any]], options: _Options) -> _Options:
    """Check cu_seqlens."""
    starts, rows = given["cu_seqlens"].astype(np.int64), len(given["x"])
    steps = np.diff(starts)
    if starts[0] < 0 or (steps < 0).any() or starts[-1] > rows:
        message = f"cu_seqlens is {starts}, but it must ascend from 0 to at most {rows}, the rows of x"
        raise InvalidArgumentError(message)
    longest = {name: size for name, size, _ in options.sizes}["longest"]
    if steps.max() > longest:
        message = f"max_seqlen is {longest}, but cu_seqlens has a sequence of {steps.max()} rows"
        raise InvalidArgumentError(message)
    return options


@functools.cache
def _operation(order: str, tiles: str) -> Operation:
    """Return the operation for an order of dimensions; `tiles` is how their number follows from rows."""
    rows = (
        Input("x", "batch heads rows head_dim"),
        Output("elements", f"batch heads {tiles} tile_bytes", U8),
    )
    return Operation("sm120_quantize_mxfp8", rows, order=order, fill=_fill)


_ORDERS = ("BSHD", "BHSD")
_PACKED = Operation(
    "sm120_quantize_mxfp8",
    (
        Input("x", "heads rows head_dim"),
        Input("cu_seqlens", "sequences+1", I32),
        Output("elements", "sequences heads longest/64 tile_bytes", U8),
    ),
    order="BSHD",
    fill=_fill_packed,
    on_host=_check_starts,
)


@untraced
def quantize_mxfp8_tiles(
    x: Any,
    operand: str,
    *,
    layout: str = "BSHD",
    columns: int | None = None,
    rounding: str = "up",
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
    precision: str | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> MXFP8Tiles:
    """Quantise keys, values or queries to MXFP8 in tiles, which `attention` reads in place.

    Parameters
    ----------
    x : array, float32, float16 or bfloat16, shape (B, Sk, Hkv, D)
        Keys or values, or queries (B, Sq, H, D). D is a multiple of 8, at most 256.
        With cu_seqlens, of k and v alone, (total_k, Hkv, D).
    operand : {"q", "k", "v"}
        Blocks of 32 lie along the head in q and k, along the keys in v.
    layout : {"BSHD", "BHSD"}
        Order of the dimensions of x.
    columns : {64, 128, 256}, optional
        Columns of a tile. Default: the least that hold D. If k and v have other head
        sizes, both need the least that hold the larger.
    rounding : {"up", "floor"}
        As in `quantize_mxfp8`.
    cu_seqlens : array, int32, shape (B + 1,), optional
        The row at which each packed sequence begins, and the end of the last one.
    max_seqlen : int, optional
        Rows of the longest sequence. Default: taken from cu_seqlens; for arrays on a
        device total_k, which costs memory and time.
    precision : {"mxfp8", "mxfp8_bf16", "mxfp8_f16"}, optional
        Of q: that of the attention which reads it. Default: mxfp8.
    device, stream
        As in `quantize_mxfp8`.

    Returns
    -------
    MXFP8Tiles
        Its data has the kind of x.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    Notes
    -----
    Elements and scales are those of `quantize_mxfp8`; padding is 0.

    """
    one_of(operand, "operand", tuple(_AXES))
    shape = tuple(getattr(x, "shape", ()))
    is_packed = cu_seqlens is not None
    if len(shape) != _RANK[is_packed] or 0 in shape:
        needed = (
            "(total_k, Hkv, D), each at least 1, with cu_seqlens" if is_packed else "of four dimensions of 1 or more"
        )
        message = f"x has shape {shape}, not {needed}"
        raise InvalidArgumentError(message) if shape or hasattr(x, "dtype") else TypeError(message)
    head_dim = shape[-1]
    width = tile_columns(head_dim) if columns is None else integer(columns, "columns")
    _check_columns(width, head_dim, "x")
    sizes: list[tuple[str, int, str]] = [("tile_bytes", tile_bytes(operand, width), "the tiles")]
    code = _ROUNDINGS[one_of(rounding, "rounding", tuple(_ROUNDINGS))]
    order = one_of(layout, "layout", _ORDERS)
    is_q = operand == "q"
    if precision is not None and not is_q:
        message = f"precision is {precision!r}, but only tiles of q depend on it"
        raise InvalidArgumentError(message)
    if is_packed and is_q:
        message = "cu_seqlens is given, but packed sequences of q have no tiles"
        raise InvalidArgumentError(message)
    wanted = one_of("mxfp8" if precision is None else precision, "precision", tuple(_PRECISIONS))
    form = lib.SM120_MX_Q_TILES if is_q else lib.SM120_MX_TILES
    reader = _PRECISIONS[wanted] if is_q else 0
    if max_seqlen is not None and not is_packed:
        message = f"max_seqlen is {max_seqlen}, but cu_seqlens is None: give both or neither"
        raise InvalidArgumentError(message)
    if not is_packed:
        options = _Options(_AXES[operand], code, width, form, reader, tuple(sizes))
        step = q_rows(wanted, width) if is_q else ROWS
        operation = _operation(order, f"rows/{step}*{step}" if is_q else f"rows/{step}")
        data = operation({"x": x}, {"elements": NEW}, options, device=device, stream=stream)[0]
        return MXFP8Tiles(data, operand, shape[order.index("S")], head_dim, width, wanted)
    longest = _longest(x, cu_seqlens, max_seqlen)
    sizes.append(("longest", longest, "max_seqlen"))
    options = _Options(_AXES[operand], code, width, form, reader, tuple(sizes))
    inputs = {"x": x, "cu_seqlens": cu_seqlens}
    data = _PACKED(inputs, {"elements": NEW}, options, device=device, stream=stream)[0]
    return MXFP8Tiles(data, operand, longest, head_dim, width)


def _longest(x: Any, cu_seqlens: Any, max_seqlen: Any) -> int:
    """Return the rows of the longest packed sequence, or of all if the host does not know them."""
    rows = int(x.shape[0])
    if max_seqlen is not None:
        if (given := integer(max_seqlen, "max_seqlen")) < 1:
            message = f"max_seqlen is {given}, not at least 1"
            raise InvalidArgumentError(message)
        return min(rows, given)
    starts: Any = cu_seqlens
    if not foreign.on_host(x):
        return rows
    if not hasattr(starts, "shape"):
        starts = operands.narrowed(starts, "cu_seqlens", I32[0])
    starts = np.asarray(starts)
    if starts.ndim != 1 or len(starts) < len(("begin", "end")) or starts.dtype.kind not in "iu":
        return rows
    return max(1, min(rows, int(np.diff(starts.astype(np.int64)).max())))


def _check_columns(columns: int, head_dim: int, name: str) -> None:
    """Check that tiles hold a head."""
    if head_dim > _COLUMNS[-1] or head_dim < 1:
        message = f"{name} has head size {head_dim}; tiles hold 1 to {_COLUMNS[-1]} columns"
        raise InvalidArgumentError(message)
    if columns not in _COLUMNS or columns < head_dim:
        message = f"columns is {columns}; it must be 64, 128 or 256, and at least the head size {head_dim}"
        raise InvalidArgumentError(message)
