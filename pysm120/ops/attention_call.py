"""Attention: the arrays that it reads and writes, and how its options are written to the C struct."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops import foreign
from pysm120.ops.call import Operation
from pysm120.ops.options import default_precision, ends, flag, integer, number, one_of, splits
from pysm120.ops.table import E4M3, E8M0, F32, FLOATS, FP8, I32, U8, Input, Output, Row
from pysm120.ops.tiles import ROWS, MXFP8Tiles, tile_bytes, tile_columns
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import ffi, lib, new

_ALIGN = {
    (False, "bottom-right"): lib.SM120_NOT_CAUSAL,
    (True, "bottom-right"): lib.SM120_CAUSAL_BOTTOM_RIGHT,
    (True, "top-left"): lib.SM120_CAUSAL_TOP_LEFT,
    (False, "top-left"): lib.SM120_NOT_CAUSAL_TOP_LEFT,
}
# The C library's code of a precision, the dtype of q, k and v that it needs, and the largest head size.
PRECISIONS: dict[str, tuple[int, str | None, int]] = {
    "mxfp8": (lib.SM120_MXFP8, None, 256),
    "mxfp8_bf16": (lib.SM120_MXFP8_BF16, "bfloat16", 256),
    "mxfp8_f16": (lib.SM120_MXFP8_F16, "float16", 256),
    "nvfp4": (lib.SM120_NVFP4, None, 128),
    "nvfp4_mxfp8": (lib.SM120_NVFP4_MXFP8, None, 128),
    "fp8": (lib.SM120_FP8, "float8_e4m3fn", 128),
    "bf16": (lib.SM120_BF16, "bfloat16", 256),
    "f16": (lib.SM120_F16, "float16", 256),
}
_ALSO = {"bf16": "float32", "fp8": "float8_e5m2"}
# The operands that may be MXFP8 already, and in which precisions.
OPERANDS = ("q", "k", "v", "past_k", "past_v")
_MX_KEYS = ("mxfp8", "mxfp8_bf16", "mxfp8_f16")
_MX_VALUES = ("mxfp8", "nvfp4_mxfp8")
_BLOCK = 32
_FAR = 2**62  # beyond every row and key


class Rules(NamedTuple):
    """What all calls of attention and of its gradient have in common beside arrays, as the user gave it."""

    causal: Any
    causal_align: Any
    window: Any
    softcap: Any
    scale: Any
    precision: Any = None


class Options(NamedTuple):
    """The options of a call, as the user gave them."""

    rules: Rules
    config: Any = None
    max_seqlen_q: Any = None
    max_seqlen_k: Any = None
    smoothing: Any = None
    num_splits: Any = None
    tiles: tuple[tuple[str, int, int, int], ...] = ()  # operands in tiles: name, rows, head size, columns
    q_precision: str | None = None  # of q in tiles
    sizes: tuple[tuple[str, int, str], ...] = ()  # that arrays do not tell


# ---- the options in C ----------------------------------------------------------------


def _fill(args: Any, given: Mapping[str, Any], options: Options) -> Any:
    """Write the options; return the C string of a config."""
    precision = check_heads(given, options.rules.precision)
    _check_tiles(args, options, precision)
    args.precision = PRECISIONS[precision][0]
    args.num_splits = splits(options.num_splits)
    args.no_smoothing = not _is_smoothed(options.smoothing, precision)
    fill_scores(args, given, options.rules)
    if ("past_k" in given) != ("past_v" in given):
        message = f"{'past_v is None, but past_k' if 'past_k' in given else 'past_k is None, but past_v'} is given"
        raise InvalidArgumentError(message)
    args.q_scale_by_kv_head = "q_scale_by_kv" in given
    args.config = config = _config(options.config)
    return config


def fill_scores(args: Any, given: Mapping[str, Any], rules: Rules) -> None:
    """Write the scale, which keys a row sees, and what changes the scores."""
    align = one_of(rules.causal_align, "causal_align", ("bottom-right", "top-left"))
    args.causal = _ALIGN[flag(rules.causal, "causal"), align]
    args.scale = 1 / math.sqrt(args.head_dim) if rules.scale is None else number(rules.scale, "scale")
    left, right = ends(rules.window, "window")
    args.window = (left is not None) * lib.SM120_WINDOW_LEFT + (right is not None) * lib.SM120_WINDOW_RIGHT
    args.window_left, args.window_right = min(left or 0, _FAR), min(right or 0, _FAR)
    args.softcap = softcap = number(rules.softcap, "softcap")
    if softcap and not args.softcap:
        message = f"softcap is {softcap}, which is 0 in float32: give 0 to turn it off"
        raise InvalidArgumentError(message)
    if "alibi_slopes" in given and len(given["alibi_slopes"].shape) > 1:
        args.alibi_batch_stride = args.heads


def _fill_packed(args: Any, given: Mapping[str, Any], options: Options) -> Any:
    """Write the options of packed sequences."""
    fill_longest(args, options)
    for name, rows, _, _ in options.tiles:
        if options.max_seqlen_k is not None and options.max_seqlen_k != rows:
            message = f"max_seqlen_k is {options.max_seqlen_k}, but the tiles of {name} have {rows} rows: leave it out"
            raise InvalidArgumentError(message)
        args.kv_rows = rows
    if "v[1]" in given:
        blocks = -(-args.kv_total // _BLOCK) + args.batch - 1
        if (shape := given["v[1]"].shape)[0] != blocks:
            message = f"v[1] has shape {shape}, but {args.kv_total} rows of {args.batch} sequences have {blocks} blocks"
            raise InvalidArgumentError(message)
    return _fill(args, given, options)


def fill_longest(args: Any, options: Any) -> None:
    """Write the lengths of the longest packed sequences."""
    args.q_rows = _longest(options.max_seqlen_q, "max_seqlen_q", args.q_total)
    args.kv_rows = _longest(options.max_seqlen_k, "max_seqlen_k", args.kv_total)


def check_heads(given: Mapping[str, Any], precision: Any, gradients: Mapping[str, int] = MappingProxyType({})) -> str:
    """Return the precision, by default that of q's dtype; raise if it does not support these dtypes and head sizes.

    `gradients` are the largest head sizes of those precisions whose gradients have another limit.
    """
    pairs = [name for name in OPERANDS if f"{name}[1]" in given]
    tiles = [name for name in OPERANDS if name in given and given[name].dtype in U8]
    pairs += tiles
    own = next((given[name].dtype for name in OPERANDS if name in given and name not in pairs), None)
    default = "mxfp8" if pairs else default_precision(own)
    precision = default if precision is None else precision
    _, dtype, most = PRECISIONS[one_of(precision, "precision", tuple(PRECISIONS))]
    for name in pairs:
        fitting = _MX_VALUES if name.endswith("v") else _MX_KEYS
        if precision not in fitting:
            form = "is tiles" if name in tiles else "has scales"
            message = f"{name} {form}, as precisions {' and '.join(fitting)} take it, but precision is {precision!r}"
            raise InvalidArgumentError(message)
    is_narrowed = precision == "bf16" and own == np.float32
    is_fp8 = precision == "fp8" and own in FP8
    if dtype is not None and own != dtype and not is_narrowed and not is_fp8:
        needed = f"{dtype} or {_ALSO[precision]}" if precision in _ALSO else dtype
        message = f"{'v has' if pairs else 'q, k and v have'} dtype {own}, but precision {precision!r} needs {needed}"
        raise TypeError(message)
    of = "of gradients " if precision in gradients else ""
    most = gradients.get(precision, most)
    for name in ("q", "v"):
        if name not in tiles and (size := given[name].shape[-1]) > most:
            message = f"{name} has head size {size}, above {most}, the most {of}in precision {precision!r}"
            raise InvalidArgumentError(message)
    return str(precision)


def _check_tiles(args: Any, options: Options, precision: str) -> None:
    """Check that tiles have the head sizes of the call, and the columns and rows that its kernel reads."""
    if options.q_precision not in {None, precision}:
        message = (
            f"q is tiles for precision {options.q_precision!r}, but precision is {precision!r}: quantise it with "
            f"precision={precision!r}"
        )
        raise InvalidArgumentError(message)
    needed = tile_columns(args.head_dim, args.v_head_dim)
    for name, _, head_dim, columns in options.tiles:
        if name == "k" and head_dim != args.head_dim:
            message = f"k is tiles of head size {head_dim}, but q has head size {args.head_dim}"
            raise InvalidArgumentError(message)
        if columns != needed:
            message = (
                f"{name} is tiles of {columns} columns, but head sizes {args.head_dim} and {args.v_head_dim} need "
                f"{needed}: quantise it with columns={needed}"
            )
            raise InvalidArgumentError(message)


def _is_smoothed(smoothing: Any, precision: str) -> bool:
    """Return whether q and k are smoothed; raise if a precision that cannot was told to."""
    is_possible = precision.startswith("nvfp4")
    if smoothing is None:
        return is_possible
    if flag(smoothing, "smoothing") and not is_possible:
        message = f"smoothing is True, but precision {precision!r} has none; give 'nvfp4' or 'nvfp4_mxfp8'"
        raise InvalidArgumentError(message)
    return bool(smoothing)


def _config(config: Any) -> Any:
    """Return the C string of a config; the caller keeps it alive."""
    if config is None:
        return ffi.NULL
    if not isinstance(config, str) or not config.isascii() or "\0" in config:
        message = f"config is {config!r}, not the name of a config such as 'r16'"
        raise TypeError(message)
    return new("char[]", config.encode())


def _longest(given: Any, name: str, total: int) -> int:
    """Return the rows of the longest sequence, at most those of all."""
    if given is None:
        return total
    rows = integer(given, name)
    if rows < 0:
        message = f"{name} is {rows}, not a number of rows"
        raise InvalidArgumentError(message)
    return max(1, min(rows, total))


# ---- scales of FP8 -------------------------------------------------------------------


def scales(q: Any, k: Any, given: Mapping[str, Any], order: str) -> dict[str, Any]:
    """Return scales of shape (), (1,), (heads,) or (batch, heads) with the dimensions of their rows.

    A q_scale of the heads of k belongs to the row q_scale_by_kv.
    """
    axis = order.index("H") - len(order)
    found = {"q_scale_by_kv": None, **given}
    for name, x in given.items():
        if x is not None:
            found[name] = _scale(x, name, axis, is_on_host=foreign.on_host(q))
    x = found["q_scale"]
    if x is not None and min(len(getattr(y, "shape", ())) for y in (q, k)) >= -axis:
        heads, kv_heads = q.shape[axis], k.shape[axis]
        if len(x.shape) >= -axis and x.shape[axis] == kv_heads not in {1, heads}:
            found["q_scale"], found["q_scale_by_kv"] = None, x
    return found


def _scale(x: Any, name: str, axis: int, *, is_on_host: bool) -> Any:
    """Return one scale with dimensions of 1 behind that of the heads, and between it and the batch."""
    if is_on_host and isinstance(x, float | int):
        x = np.full(1, number(x, name), np.float32)
    shape = getattr(x, "shape", None)
    if shape is None or len(shape) > len(("batch", "heads")):
        what = f"a {type(x).__name__}" if shape is None else f"of shape {tuple(shape)}"
        message = f"{name} is {what}, not an array of shape (1,), (heads,) or (batch, heads)"
        raise TypeError(message) if shape is None else InvalidArgumentError(message)
    every, one = slice(None), (None,)
    behind = one * (-axis - 1)
    between = one * (len("BSHD") - len("BH") - len(behind))
    return x[(every, *between, every, *behind)[len(("batch", *between)) if len(shape) == 1 else 0 :] if shape else one]


# ---- values of ndarrays --------------------------------------------------------------


def mask_in_float32(mask: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Round a mask to float32. Values beyond float32 become finite ones, because only -inf hides a key."""
    most = np.finfo(np.float32).max
    return np.where(np.isinf(mask), mask, np.clip(mask, -most, most)).astype(np.float32)


def check_lengths(row_axis: int) -> Callable[[dict[str, npt.NDArray[Any]], Any], Any]:
    """Return a function that checks kv_lengths; the rows of k are along `row_axis`."""

    def check(given: dict[str, npt.NDArray[Any]], options: Any) -> Any:
        known = {name: size for name, size, _ in getattr(options, "sizes", ())}
        lengths, rows = given.get("kv_lengths"), known.get("kv_rows", given["k"].shape[row_axis])
        if lengths is not None and not 0 <= lengths.min() <= lengths.max() <= rows:
            message = f"kv_lengths is {lengths}, but each length must be from 0 to {rows}, the rows of k"
            raise InvalidArgumentError(message)
        return options

    return check


def check_starts(given: dict[str, npt.NDArray[Any]], options: Any) -> Any:
    """Check cu_seqlens, and take the default of max_seqlen from it."""
    longest: dict[str, int] = {}
    known = {name: size for name, size, _ in getattr(options, "sizes", ())}
    for name, x, field in (("cu_seqlens_q", "q", "max_seqlen_q"), ("cu_seqlens_k", "k", "max_seqlen_k")):
        starts, rows = given[name].astype(np.int64), len(given[x])
        if x == "k" and "kv_rows" in known:
            _check_starts_of_tiles(starts, known["kv_rows"])
            continue
        steps = np.diff(starts)
        if starts[0] < 0 or (steps < 0).any() or starts[-1] > rows:
            message = f"{name} is {starts}, but it must ascend from 0 to at most {rows}, the rows of {x}"
            raise InvalidArgumentError(message)
        longest[field] = int(steps.max())
        asked = getattr(options, field)
        if asked is not None and integer(asked, field) < longest[field]:
            message = f"{field} is {asked}, but {name} has a sequence of {longest[field]} rows"
            raise InvalidArgumentError(message)
    return options._replace(**longest)


def _check_starts_of_tiles(starts: npt.NDArray[Any], rows: int) -> None:
    """Check cu_seqlens_k where k or v is tiles."""
    steps = np.diff(starts)
    if starts[0] < 0 or (steps < 0).any() or steps.max() > rows:
        message = f"cu_seqlens_k is {starts}, but it must ascend from 0 by at most {rows}, the rows of the tiles"
        raise InvalidArgumentError(message)


# ---- the operation ---------------------------------------------------------------------

_NARROW, _RESULTS = (*FLOATS, *FP8), (*FLOATS, *E4M3)
_OF_Q, _OF_KV = "batch heads 1 1", "batch kv_heads 1 1"
_SCALES = (
    Input("q_scale", _OF_Q, F32, optional=True, broadcasts=True),
    Input("q_scale_by_kv", _OF_KV, F32, member="q_scale", optional=True, broadcasts=True),
    Input("k_scale", _OF_KV, F32, optional=True, broadcasts=True),
    Input("v_scale", _OF_KV, F32, optional=True, broadcasts=True),
    Input("o_scale", _OF_Q, F32, optional=True, broadcasts=True),
    Output("amax", _OF_Q, F32, raised=True, reads=True),
)
# The shapes of operands, and of the scales of those that are MXFP8 already.
_SHAPES = {
    "q": ("batch heads q_rows head_dim", "batch heads q_rows head_dim/32"),
    "k": ("batch kv_heads kv_rows head_dim", "batch kv_heads kv_rows head_dim/32"),
    "v": ("batch kv_heads kv_rows v_head_dim", "batch kv_heads kv_rows/32 v_head_dim"),
    "past_k": ("batch kv_heads past_rows head_dim", "batch kv_heads past_rows head_dim/32"),
    "past_v": ("batch kv_heads past_rows v_head_dim", "batch kv_heads past_rows/32 v_head_dim"),
}
_PACKED_SHAPES = {
    "q": ("heads q_total head_dim", "heads q_total head_dim/32"),
    "k": ("kv_heads kv_total head_dim", "kv_heads kv_total head_dim/32"),
    "v": ("kv_heads kv_total v_head_dim", "kv_heads v_blocks v_head_dim"),
}


def operands(dtypes: tuple[np.dtype[Any], ...]) -> tuple[Input, ...]:
    """Return the rows of q, k and v."""
    return (
        Input("q", "batch heads q_rows head_dim", dtypes),
        Input("k", "batch kv_heads kv_rows head_dim", dtypes, like="q"),
        Input("v", "batch kv_heads kv_rows v_head_dim", dtypes, like="q"),
    )


def packed_operands(dtypes: tuple[np.dtype[Any], ...]) -> tuple[Input, ...]:
    """Return the rows of q, k and v of packed sequences."""
    return (
        Input("q", "heads q_total head_dim", dtypes),
        Input("k", "kv_heads kv_total head_dim", dtypes, like="q"),
        Input("v", "kv_heads kv_total v_head_dim", dtypes, like="q"),
    )


def mask_of(keys: str) -> Input:
    """Return the row of a mask; `keys` is the dimension along which it has a number for each key."""
    return Input("mask", f"batch heads q_rows {keys}", (np.dtype(np.bool_), *FLOATS), optional=True, broadcasts=True)


SINKS = Input("sinks", "heads", F32, optional=True)
SLOPES = Input("alibi_slopes", "heads | batch heads", F32, optional=True)
LENGTHS = Input("kv_lengths", "batch", I32, optional=True)
DIAGONALS = Input("diagonals", "batch", I32, optional=True)
STARTS = (Input("cu_seqlens_q", "batch+1", I32), Input("cu_seqlens_k", "batch+1", I32))
_ROWS = (
    SINKS,
    SLOPES,
    LENGTHS,
    DIAGONALS,
    mask_of("past_rows+kv_rows"),
    *_SCALES,
)
_PACKED_ROWS = (
    *STARTS,
    SINKS,
    SLOPES,
    DIAGONALS,
    *_SCALES,
)


def _operands(
    shapes: Mapping[str, tuple[str, str]], pairs: Sequence[str], tiles: Sequence[str]
) -> tuple[list[Row], str]:
    """Return the rows of operands, and the one whose dtype others have.

    `pairs` are elements and scales, `tiles` have a row of their own form.
    """
    special = (*pairs, *tiles)
    own = next((name for name in shapes if name not in special and not name.startswith("past")), "")
    rows: list[Row] = []
    for name, (shape, scales) in shapes.items():
        optional = name.startswith("past")
        if name in tiles:
            tiled = "batch heads q_tile_rows" if name == "q" else f"batch kv_heads kv_rows/{ROWS}"
            rows.append(Input(name, f"{tiled} {name}_tile_bytes", U8, is_ordered=True))
        elif name in pairs:
            rows.append(Input(name, shape, E4M3))
            rows.append(Input(f"{name}[1]", scales, (*E8M0, *U8), member=f"{name}_blocks"))
        else:
            like = "" if name == own else own
            dtypes = FLOATS if special else _NARROW
            rows.append(Input(name, shape, dtypes, like=like, alike=FP8, optional=optional))
    return rows, own or "q"


@functools.cache
def operation_for(order: str, pairs: tuple[str, ...], tiles: tuple[str, ...] = ()) -> Operation:
    """Return the operation for an order of dimensions; `pairs` are elements and scales, `tiles` are tiles."""
    rows, own = _operands(_SHAPES, pairs, tiles)
    out = Output("out", "batch heads q_rows v_head_dim", _RESULTS, member="o", like=own, converts=True)
    lse = Output("lse", "batch heads q_rows", F32)
    on_host = check_lengths(order.index("S"))
    return Operation("sm120_attention", (*rows, *_ROWS, out, lse), order=order, fill=_fill, on_host=on_host)


@functools.cache
def packed_for(pairs: tuple[str, ...], tiles: tuple[str, ...] = ()) -> Operation:
    """Return the operation of packed sequences; `pairs` are elements and scales, `tiles` are tiles."""
    rows, own = _operands(_PACKED_SHAPES, pairs, tiles)
    out = Output("out", "heads q_total v_head_dim", _RESULTS, member="o", like=own, converts=True, fill=0)
    lse = Output("lse", "heads q_total", F32, fill=-math.inf)
    rows = [*rows, *_PACKED_ROWS, out, lse]
    return Operation("sm120_attention", rows, order="BSHD", fill=_fill_packed, on_host=check_starts)


def split_tiles(given: Mapping[str, Any], *, packed: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arrays by the names of their rows, and the options that describe those in tiles."""
    found = {name: x.data if isinstance(x, MXFP8Tiles) else x for name, x in given.items()}
    tiles = {name: x for name, x in given.items() if isinstance(x, MXFP8Tiles)}
    if not tiles:
        return found, {}
    sizes = []
    for name, x in tiles.items():
        if name != x.operand:
            message = f"{name} is tiles of {x.operand}; attention takes such tiles as {x.operand} alone"
            raise InvalidArgumentError(message)
        if name == "q" and packed:
            message = "q is tiles, which packed sequences do not support"
            raise InvalidArgumentError(message)
        if name != "q" and (given.get("past_k") is not None or given.get("past_v") is not None):
            message = f"{name} is tiles, which a past does not support"
            raise InvalidArgumentError(message)
        rows = "q_rows" if name == "q" else "kv_rows"
        sizes += [(rows, x.rows, name), (f"{name}_tile_bytes", tile_bytes(name, x.columns), name)]
        if name == "q":
            sizes += [("head_dim", x.head_dim, name), ("q_tile_rows", int(x.data.shape[2]), name)]
        if name == "v":
            sizes.append(("v_head_dim", x.head_dim, name))
    q = tiles.get("q")
    if len({x.rows for x in tiles.values() if x is not q}) > 1:
        message = f"k is tiles of {tiles['k'].rows} rows, but v is tiles of {tiles['v'].rows}"
        raise InvalidArgumentError(message)
    if packed and "k" in tiles and "v" in tiles:
        sizes.append(("kv_total", tiles["k"].rows * int(tiles["k"].data.shape[0]), "k"))
    described = tuple((name, x.rows, x.head_dim, x.columns) for name, x in tiles.items())
    return found, {"tiles": described, "sizes": tuple(sizes), "q_precision": None if q is None else q.precision}


def split_pairs(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return arrays by the names of their rows, and the operands that are tuples of elements and scales."""
    found: dict[str, Any] = {}
    pairs = tuple(name for name, x in given.items() if isinstance(x, tuple))
    for name, x in given.items():
        if name in pairs and len(x) != len(("elements", "scales")):
            message = f"{name} is a tuple of {len(x)}; it must be an array, or (elements, scales) of MXFP8"
            raise InvalidArgumentError(message)
        found |= {name: x[0], f"{name}[1]": x[1]} if name in pairs else {name: x}
    return found, pairs


LAYOUTS = {order: operation_for(order, ()) for order in ("BSHD", "BHSD")}
