"""Copies between dense keys and values and a cache of them."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pysm120.ops import operands
from pysm120.ops.cache import Cache
from pysm120.ops.call import AnyArray, Operation
from pysm120.ops.options import flag, integer, one_of
from pysm120.ops.plan import New
from pysm120.ops.table import E4M3, E5M2, E8M0, F32, FLOATS, I32, I64, U8, Input, Output, Row
from pysm120.runtime.arrays import dtype_of
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.untraced import untraced

_BF16 = np.dtype(ml_dtypes.bfloat16)
_ELEMENTS = {"mxfp8": E4M3, "nvfp4": U8, "plain": (*FLOATS, *E4M3, *E5M2)}
_BLOCKS = {"mxfp8": E8M0, "nvfp4": E4M3}


class _Options(NamedTuple):
    """The options of a call, and the sizes that the caches tell."""

    v_swizzled: bool
    sizes: tuple[tuple[str, int, str], ...]
    rotary_interleaved: bool = False
    new_lengths: bool = False  # whether an append writes them


def _fill(args: Any, given: Mapping[str, Any], options: _Options) -> None:
    """Write the options, and the dimensions that only one form of a call has."""
    args.v_swizzled = options.v_swizzled
    if "rotary_cos" in given:
        args.rotary_dim = 2 * given["rotary_cos"].shape[1]
        args.rotary_interleaved = options.rotary_interleaved
    if "slots" in given:
        args.batch = 1
    elif "page_table" not in given:
        args.pages = args.batch


# ---- the values of ndarrays ------------------------------------------------------------


def _refuse(name: str, values: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], rule: str) -> None:
    """Raise for the first wrong value of an array."""
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        message = f"{name}[{', '.join(map(str, at))}] is {values[at]}, but it must be {rule}"
        raise InvalidArgumentError(message)


def _check_values(given: dict[str, npt.NDArray[Any]], options: _Options) -> _Options:
    """Check slots, lengths and the page numbers that they need."""
    sizes = {name: size for name, size, _ in options.sizes}
    page_rows, pages = sizes["page_rows"], sizes.get("pages", sizes.get("batch", 0))
    slots, lengths, table = (given.get(name) for name in ("slots", "kv_lengths", "page_table"))
    new = given["k"].shape[1] if options.new_lengths else 0
    if slots is not None:
        most = pages * page_rows
        _refuse("slots", slots, slots >= most, f"below {most}, the rows of all pages, or -1 to skip the token")
    most = page_rows if table is None else page_rows * table.shape[1]
    if lengths is not None:
        rule = f"from 0 to {most - new}, the rows of its pages{' without those of the new tokens' if new else ''}"
        _refuse("kv_lengths", lengths, (lengths < 0) | (lengths > most - new), rule)
    if table is not None:
        needed = np.arange(table.shape[1]) < -(-(most if lengths is None else lengths[:, None]) // page_rows)
        _refuse("page_table", table, needed & ((table < 0) | (table >= pages)), f"from 0 to {pages - 1}, a page")
    cosines, positions = given.get("rotary_cos"), given.get("positions")
    if cosines is not None and positions is not None:
        most = len(cosines) - 1
        _refuse("positions", positions, (positions < 0) | (positions > most), f"from 0 to {most}, a row of rotary_cos")
    return options


def _check_append(given: dict[str, npt.NDArray[Any]], options: _Options) -> _Options:
    """Check the values for an append, whose tokens have places of their own."""
    options = _check_values(given, options)
    slots = given.get("slots")
    if slots is not None:
        order = np.argsort(slots, kind="stable")
        same = (np.diff(slots[order]) == 0) & (slots[order][1:] >= 0)
        if same.any():
            first, second = (int(order[np.flatnonzero(same)[0] + n]) for n in (0, 1))
            message = f"slots[{second}] is {slots[second]}, as slots[{first}] is: two tokens must not have one place"
            raise InvalidArgumentError(message)
    return options


# ---- the operations ---------------------------------------------------------------------


@functools.cache
def _operation(place: str, k: str, v: str, *, is_gather: bool) -> Operation:
    """Return the operation for a place of tokens (slots, table, dense) and for how the cache holds K and V."""
    pages = "batch" if place == "dense" else "pages"
    dense = "kv_heads rows" if place == "slots" else "batch kv_heads rows"
    where = f"{pages} kv_heads page_rows"
    rows: list[Row] = []
    for letter, kind, size in (("k", k, "head_dim"), ("v", v, "v_head_dim")):
        element, block = (2, 16) if kind == "nvfp4" else (1, 32)
        cached = {f"{letter}_cache": (f"{size}/{element}", _ELEMENTS[kind], "")}
        if kind != "plain":
            cached[f"{letter}_cache[1]"] = (f"{size}/{block}", _BLOCKS[kind], f"{letter}_blocks")
        if is_gather:
            rows.append(Output(letter, f"{dense} {size}"))
        else:
            rows.append(Input(letter, f"{dense} {size}", like="" if letter == "k" else "k"))
        for name, (width, dtypes, member) in cached.items():
            shape = f"{where} {width}"
            rows.append(
                Input(name, shape, dtypes, member) if is_gather else Output(name, shape, dtypes, member, reads=True)
            )
        rows.append(Input(f"{letter}_scale", f"{where} 1", F32, optional=True, broadcasts=True))
    rows += {
        "slots": [Input("slots", "rows", I64)],
        "table": [Input("page_table", "batch table_pages", I32), Input("kv_lengths", "batch", I32, optional=True)],
        "dense": [Input("kv_lengths", "batch", I32, optional=True)],
    }[place]
    if not is_gather:
        rows += [
            *(Input(x, "rotary_positions rotary_pairs", F32, optional=True) for x in ("rotary_cos", "rotary_sin")),
            Input("positions", "rows" if place == "slots" else "batch rows", I32, optional=True),
        ]
    if place != "slots" and not is_gather:
        rows.append(Output("new_lengths", "batch", I32))
    name = "sm120_kv_cache_gather" if is_gather else "sm120_kv_cache_append"
    return Operation(name, rows, order="BSHD", fill=_fill, on_host=_check_values if is_gather else _check_append)


class _Call(NamedTuple):
    """A call: its operation, its arrays by name, its options."""

    operation: Operation
    k: Cache
    v: Cache
    inputs: dict[str, Any]
    options: _Options

    @classmethod
    def of(
        cls,
        caches: tuple[Any, Any],
        scales: tuple[Any, Any],
        places: tuple[Any, Any, Any],
        layout: str,
        *,
        v_swizzled: bool,
        is_gather: bool,
    ) -> "_Call":
        """Check caches and the form of a call. `places`: slots, kv_lengths, page_table."""
        one_of(layout, "cache_layout", ("NHD", "HND"))
        k, v = (Cache.of(*x, layout) for x in zip("kv", caches, scales, strict=True))
        slots, kv_lengths, page_table = places
        if slots is not None and (kv_lengths is not None or page_table is not None):
            message = "slots is given, and so is kv_lengths or page_table: slots alone say where tokens are"
            raise InvalidArgumentError(message)
        place = "slots" if slots is not None else "dense" if page_table is None else "table"
        pages, page_rows = k.arrays[0].shape[:2]
        sizes = (
            ("batch" if place == "dense" else "pages", int(pages), "k_cache"),
            ("page_rows", int(page_rows), "k_cache"),
            ("head_dim", k.head_dim, "k_cache"),
            ("v_head_dim", v.head_dim, "v_cache"),
        )
        inputs = {"k_scale": k.scale, "v_scale": v.scale}
        inputs |= {"slots": slots} if place == "slots" else {"kv_lengths": kv_lengths}
        inputs |= {"page_table": page_table} if place == "table" else {}
        operation = _operation(place, k.kind, v.kind, is_gather=is_gather)
        return cls(operation, k, v, inputs, _Options(flag(v_swizzled, "v_swizzled"), sizes))


@untraced
def kv_cache_append(
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    slots: Any = None,
    *,
    kv_lengths: Any = None,
    page_table: Any = None,
    new_lengths: AnyArray | None = None,
    k_scale: Any = None,
    v_scale: Any = None,
    v_swizzled: bool = False,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = False,
    positions: Any = None,
    cache_layout: str = "NHD",
    device: Device | str | None = None,
    stream: Any = None,
) -> None:
    """Write keys and values of new tokens to a cache, as they are or quantised, in one launch.

    Parameters
    ----------
    k : array, float32, float16 or bfloat16
        Shape (T, Hkv, D) with `slots`, else (B, T, Hkv, D).
    v : array, dtype of k
        As `k`; its head size may be another one.
    k_cache, v_cache : array, or (elements, scales)
        Shape (pages, page_rows, Hkv, D), changed in place; without `slots` and
        `page_table` (B, page_rows, Hkv, D). The strides are free except the last.
        Either has one of these forms:
        dtype of k: elements as they are;
        float8_e4m3fn or float8_e5m2: k * (1 / k_scale);
        (float8_e4m3fn, float8_e8m0fnu): MXFP8, scales (..., ceil(D / 32));
        (uint8, float8_e4m3fn): NVFP4, two elements a byte, the first in the low
        half, shape (..., D / 2), scales (..., ceil(D / 16)).
    slots : array, int64, shape (T,), optional
        Where each token goes: page * page_rows + row; -1 skips the token.
    kv_lengths : array, int32, shape (B,), optional
        Keys of each sequence, the new ones included: token i becomes key
        kv_lengths - T + i. Tokens before key 0 are skipped. Default: T, so that
        token i becomes key i.
    page_table : array, int32, shape (B, table_pages), optional
        The pages of each sequence, with `kv_lengths`.
    new_lengths : array, int32, shape (B,), optional
        Where kv_lengths + T goes: the keys after the append. `kv_lengths` then do not
        count the new tokens, so that token i becomes key kv_lengths + i.
    k_scale, v_scale : array, float32, optional
        A shape that broadcasts to (pages, page_rows, Hkv), for float8 and NVFP4:
        an element is worth element * scale, in NVFP4 element * its block's scale
        * scale. A number if the arrays are ndarrays. Default: 1.
    v_swizzled : bool
        The scales of an NVFP4 v_cache have the order of SM100 kernels: of S scales
        of a row, scale s of row r is scale 4 * (s % (S / 4)) + r % 4 of row
        r - r % 4 + s // (S / 4) of the page.
    rotary_cos, rotary_sin : array, float32, shape (positions, R / 2), optional
        Tables of a rotary embedding of the first R columns of k, R even: columns
        (a, b) of pair i become a cos - b sin and b cos + a sin, rounded to the dtype
        of k before they are quantised.
    rotary_interleaved : bool
        Pair i has columns 2 i and 2 i + 1 (GPT-J) instead of i and i + R / 2
        (GPT-NeoX, Llama).
    positions : array, int32, shape (T,) with `slots`, else (B, T), optional
        The row of the tables of each token. Default: its key; `slots` need positions.
        On a GPU, a position that the tables do not have gives NaN.
    cache_layout : {"NHD", "HND"}
        Order of rows, heads and head size in caches, their scales, and a `k_scale`
        with three dimensions.
    device, stream
        As in `attention`.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.
    FaultError
        Numbers in device memory that are out of range, on a virtual device.

    Notes
    -----
    A page that the cache does not have is never written: on a GPU, where values of
    `slots`, `kv_lengths` and `page_table` are not read, the token is skipped; a virtual
    device raises `FaultError`. Two tokens must not have the same place. Elements saturate. A block with a NaN or an
    infinity gets the scale NaN.

    """
    call = _Call.of(
        (k_cache, v_cache),
        (k_scale, v_scale),
        (slots, kv_lengths, page_table),
        cache_layout,
        v_swizzled=v_swizzled,
        is_gather=False,
    )
    if rotary_interleaved and rotary_cos is None:
        message = "rotary_interleaved is True, but there is no rotary_cos"
        raise InvalidArgumentError(message)
    options = call.options._replace(
        rotary_interleaved=flag(rotary_interleaved, "rotary_interleaved"), new_lengths=new_lengths is not None
    )
    results = {**call.k.named(), **call.v.named()}
    inputs = {"k": k, "v": v, **call.inputs, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "positions": positions}
    if slots is None and kv_lengths is None:
        _check_room(k, call.k, page_table)
    if slots is None:
        results["new_lengths"] = new_lengths
    elif new_lengths is not None:
        message = "new_lengths is given, but with slots there are no lengths: give kv_lengths"
        raise InvalidArgumentError(message)
    call.operation(inputs, results, options, device=device, stream=stream)


def _table_pages(page_table: Any) -> int:
    """Return the page numbers of a sequence; without a table it has one page. Lists beside ndarrays are tables too."""
    if page_table is None:
        return 1
    if not hasattr(page_table, "shape"):
        page_table = operands.narrowed(page_table, "page_table", I32[0])
    return int(page_table.shape[-1]) if page_table.shape else 1


def _check_room(k: Any, cache: Cache, page_table: Any) -> None:
    """Check that the pages of a sequence hold all tokens, which are its first keys."""
    shape, page_rows = tuple(getattr(k, "shape", ())), int(cache.arrays[0].shape[1])
    room = page_rows * _table_pages(page_table)
    if len(shape) == len("BSHD") and shape[1] > room:
        message = f"k has {shape[1]} tokens of each sequence, but its pages have {room} rows"
        raise InvalidArgumentError(message)


@untraced
def kv_cache_gather(
    k_cache: Any,
    v_cache: Any,
    slots: Any = None,
    *,
    kv_lengths: Any = None,
    page_table: Any = None,
    rows: int | None = None,
    k_scale: Any = None,
    v_scale: Any = None,
    v_swizzled: bool = False,
    cache_layout: str = "NHD",
    k: AnyArray | None = None,
    v: AnyArray | None = None,
    dtype: npt.DTypeLike | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> tuple[AnyArray, AnyArray]:
    """Return keys and values of a cache as dense arrays, dequantised; the reverse of `kv_cache_append`.

    Parameters
    ----------
    k_cache, v_cache, k_scale, v_scale, v_swizzled, cache_layout
        As in `kv_cache_append`.
    slots : array, int64, shape (T,), optional
        The place of each token: page * page_rows + row; -1 gives zeros.
    kv_lengths : array, int32, shape (B,), optional
        Keys of each sequence; keys behind them are 0. Default: all keys.
    page_table : array, int32, shape (B, table_pages), optional
        The pages of each sequence. Without it and `slots`, page b is sequence b.
    rows : int, optional
        Keys of each sequence to return. Default: as many as its pages can hold.
    k, v : array, optional
        Where the results go.
    dtype : dtype, optional
        float32, float16 or bfloat16. Default: that of a k_cache which is not
        quantised, else bfloat16.
    device, stream
        As in `attention`.

    Returns
    -------
    k, v : array
        Shape (T, Hkv, D) with `slots`, else (B, rows, Hkv, D).

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.
    FaultError
        Numbers in device memory that are out of range, on a virtual device.

    """
    call = _Call.of(
        (k_cache, v_cache),
        (k_scale, v_scale),
        (slots, kv_lengths, page_table),
        cache_layout,
        v_swizzled=v_swizzled,
        is_gather=True,
    )
    options: _Options = call.options
    if rows is not None and (slots is not None or k is not None):
        message = f"rows is {rows}, but slots or k have the number of tokens"
        raise InvalidArgumentError(message)
    if (k is None) != (v is None):
        message = f"{'k' if v is None else 'v'} is given without {'v' if v is None else 'k'}: give both or neither"
        raise InvalidArgumentError(message)
    if dtype is not None and k is not None:
        message = f"dtype is {dtype}, but k and v are given: their dtype counts"
        raise InvalidArgumentError(message)
    results: dict[str, Any] = {"k": k, "v": v}
    if k is None:
        found = call.k.dtype
        wanted = dtype_of(dtype, "dtype") if dtype is not None else found if found in FLOATS else _BF16
        results = {"k": New(wanted), "v": New(wanted)}
    if k is not None and slots is None and len(shape := tuple(getattr(k, "shape", ()))) == len("BSHD"):
        options = _Options(options.v_swizzled, (*options.sizes, ("rows", int(shape[1]), "k")))
    if k is None and slots is None:
        rows = int(call.k.arrays[0].shape[1]) * _table_pages(page_table) if rows is None else integer(rows, "rows")
        options = _Options(options.v_swizzled, (*options.sizes, ("rows", rows, "rows")))
    inputs = {**call.k.named(), **call.v.named(), **call.inputs}
    gathered = call.operation(inputs, results, options, device=device, stream=stream)
    return gathered[0], gathered[1]
