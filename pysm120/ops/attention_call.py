"""From the arguments of an attention to a call of the C library.

A call is checked in two steps. What depends on shapes, strides, dtypes and options alone makes a plan, which is kept:
a second call of the same form only fills in addresses. The rest is where things are.
"""

import functools
import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops import operands
from pysm120.runtime.arrays import Array, dtype_of, refuse_mask
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError, MisalignedError, WorkspaceTooSmallError
from pysm120.runtime.ffi import check, check_running, ffi, lib, new_struct

Axes = tuple[int | None, int, int]  # of batch, heads and rows; packed sequences have no batch

_ALIGN = {
    (False, "bottom-right"): lib.SM120_NOT_CAUSAL,
    (True, "bottom-right"): lib.SM120_CAUSAL_BOTTOM_RIGHT,
    (True, "top-left"): lib.SM120_CAUSAL_TOP_LEFT,
    (False, "top-left"): lib.SM120_NOT_CAUSAL_TOP_LEFT,
}
# What the C library calls a precision, the dtype that it wants of q, k and v, and the largest head size.
PRECISIONS: dict[str, tuple[int, str | None, int]] = {
    "mxfp8": (lib.SM120_MXFP8, None, 128),
    "mxfp8_bf16": (lib.SM120_MXFP8_BF16, "bfloat16", 128),
    "mxfp8_f16": (lib.SM120_MXFP8_F16, "float16", 128),
    "bf16": (lib.SM120_BF16, "bfloat16", 256),
    "f16": (lib.SM120_F16, "float16", 256),
}
_SMALL = {
    "sinks": np.dtype(np.float32),
    "alibi_slopes": np.dtype(np.float32),
    "kv_lengths": np.dtype(np.int32),
    "diagonals": np.dtype(np.int32),
    "cu_seqlens_q": np.dtype(np.int32),
    "cu_seqlens_k": np.dtype(np.int32),
}
_TENSORS = ("q", "k", "v", "past_k", "past_v")
_MASK_RANK = 4
_WORKSPACE_ALIGNMENT = 256
_WINDOW_ENDS = 2


class Options(NamedTuple):
    """What a call asks for, as the user gave it."""

    causal: Any
    causal_align: Any
    window: Any
    softcap: Any
    scale: Any
    precision: Any
    axes: Axes
    config: Any = None
    max_seqlen_q: Any = None
    max_seqlen_k: Any = None


class Results(NamedTuple):
    """Where results go, as the user gave it."""

    out: Any
    out_dtype: Any
    lse: Any
    return_lse: bool

    @property
    def wants_lse(self) -> bool:
        """Whether the log-sum-exp is computed."""
        return self.return_lse or self.lse is not None


class Place(NamedTuple):
    """Where the work is done, as the user gave it."""

    device: Any
    stream: Any
    workspace: Any


class _Form(NamedTuple):
    """An array without its place; what a plan knows of it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


class _Plan:
    """A checked form of a call."""

    def __init__(
        self, args: Any, out: tuple[tuple[int, ...], np.dtype[Any]], lse_shape: tuple[int, ...], kept: Any
    ) -> None:
        self.args = args
        self.out_shape, self.out_dtype = out
        self.lse_shape = lse_shape
        self.kept = kept


# Plans of calls that need neither workspace nor any array beside q, k, v, out and lse: what is done again and again.
_direct: dict[tuple[Any, ...], _Plan] = {}
_DIRECT_MOST = 1024
_ARGS = ffi.typeof("sm120_attention_args *")


def attend(inputs: dict[str, Any], options: Options, results: Results, place: Place) -> Any:
    """Compute an attention; see pysm120.attention."""
    key = _key(inputs, options, results, place)
    if key is not None and (plan := _direct.get(key)) is not None and _again(plan, inputs, results, place.stream):
        return (results.out, results.lse) if results.return_lse else results.out
    out, lse = _attend(inputs, options, results, place, key)
    return (out, lse) if results.return_lse else out


def _key(inputs: dict[str, Any], options: Options, results: Results, place: Place) -> tuple[Any, ...] | None:
    """Return what a call must share with another one to be the same but for addresses; None where it is a rare one."""
    q, k, v, out, lse = inputs["q"], inputs["k"], inputs["v"], results.out, results.lse
    if not (type(q) is type(k) is type(v) is type(out) is Array and len(inputs) == 3):  # noqa: PLR2004
        return None
    if not ((lse is None and not results.return_lse) or type(lse) is Array):
        return None
    if place.device is not None or place.workspace is not None:
        return None
    key = (q.form, k.form, v.form, out.form, None if lse is None else lse.form, options, results.out_dtype)
    try:
        hash(key)
    except TypeError:  # an option is wrong
        return None
    return key


def _again(plan: _Plan, inputs: dict[str, Array], results: Results, stream: Any) -> bool:
    """Make a call of which everything but the addresses is known to be right; False where they are not."""
    q, k, v, out, lse = inputs["q"], inputs["k"], inputs["v"], results.out, results.lse
    device = q.device
    if not (device is k.device is v.device is out.device) or out.readonly:
        return False
    if lse is not None and (lse.device is not device or lse.readonly):
        return False
    args = ffi.new(_ARGS, plan.args[0])
    args.q.address, args.k.address, args.v.address, args.o.address = places = (
        q.address,
        k.address,
        v.address,
        out.address,
    )
    if (places[0] | places[1] | places[2] | places[3]) % operands.ALIGNMENT:
        return False
    args.lse = 0 if lse is None else lse.address
    args.stream = queue = device.stream_handle(stream)
    pointer = device.handle.pointer
    check_running(pointer, lambda: lib.sm120_attention(pointer, args, 0, ffi.NULL), is_virtual=device.is_virtual)
    operands.touch(queue, q, k, v, out, lse)
    return True


def _attend(
    inputs: dict[str, Any], options: Options, results: Results, place: Place, key: tuple[Any, ...] | None
) -> tuple[Any, Any]:
    """Check everything and compute."""
    if isinstance(inputs["q"], np.ndarray):
        inputs = {name: _as_ndarray(x, name) for name, x in inputs.items()}
    on_host = operands.is_host(inputs)
    device = operands.device_of(inputs, place.device)
    queue = device.stream_handle(place.stream)
    _check_workspace(place.workspace, device)
    out: Any
    lse: Any
    if on_host:
        out, lse = _on_host(inputs, options, results, device, queue, place.workspace)
    else:
        faces = {name: operands.face_of(device, x, name, place.stream) for name, x in inputs.items()}
        out, lse = _on_device(faces, options, results, device, queue, place.workspace, key)
        if any(not isinstance(x, Array) for x in inputs.values()):
            operands.finish(device, queue)
    return out, lse


# ---- forms ----------------------------------------------------------------------


def _form(x: Any) -> _Form:
    return _Form(x.shape, x.strides, x.dtype)


@functools.lru_cache(maxsize=256)
def _plan(
    names: tuple[str, ...], forms: tuple[_Form, ...], options: Options, out: _Form | None, out_dtype: np.dtype[Any]
) -> _Plan:
    """Check a form and fill in all of the arguments but addresses."""
    given = dict(zip(names, forms, strict=True))
    args = new_struct("sm120_attention_args")
    precision, _, _ = PRECISIONS[operands.one_of(options.precision, "precision", tuple(PRECISIONS))]
    args.precision = precision
    _fill_shapes(args, given, options)
    args.scale = _check_scale(options.scale, args.head_dim)
    args.causal = _check_causal(options.causal, options.causal_align)
    kept = args.config = _check_config(options.config)
    _fill_window(args, options.window)
    args.softcap = softcap = _check_number(options.softcap, "softcap")
    if softcap and not args.softcap:
        message = f"softcap is {softcap}, which is 0 in float32: 0 asks for none"
        raise InvalidArgumentError(message)
    for name, tensor in _tensors(args, given):
        operands.fill_form(tensor, given[name], options.axes, name, output=False)
    _fill_mask(args, given.get("mask"))
    _check_small(args, given)
    q = given["q"].shape
    out_shape = (*q[:-1], args.v_head_dim)
    if out is not None:
        operands.require_shape(out.shape, out_shape, "out")
        operands.fill_form(args.o, out, options.axes, "out", output=True)
    else:
        strides = tuple(math.prod(out_shape[i + 1 :]) for i in range(len(out_shape)))
        operands.fill_form(args.o, _Form(out_shape, strides, out_dtype), options.axes, "out", output=True)
    lse_shape = (args.heads, q[0]) if options.axes[0] is None else (args.batch, args.heads, args.q_rows)
    return _Plan(args, (out_shape, out_dtype), lse_shape, kept)


def _tensors(args: Any, given: Mapping[str, _Form]) -> list[tuple[str, Any]]:
    return [(name, getattr(args, name)) for name in _TENSORS if name in given]


def _fill_shapes(args: Any, given: Mapping[str, _Form], options: Options) -> None:
    """Check the shapes of q, k, v and the past against one another."""
    axes = options.axes
    _check_tensors(given, options)
    batch, heads, q_rows = _extents(given["q"], axes)
    kv_batch, kv_heads, kv_rows = _extents(given["k"], axes)
    if given["k"].shape[-1] != given["q"].shape[-1]:
        message = f"k has head size {given['k'].shape[-1]}, but q has {given['q'].shape[-1]}"
        raise InvalidArgumentError(message)
    if given["v"].shape[:-1] != given["k"].shape[:-1]:
        message = f"v has shape {given['v'].shape}, but k has {given['k'].shape}: they differ in the head size alone"
        raise InvalidArgumentError(message)
    if kv_batch != batch:
        message = f"k and v have batch {kv_batch}, but q has {batch}"
        raise InvalidArgumentError(message)
    if heads % kv_heads:
        message = f"q has {heads} heads, not a multiple of the {kv_heads} of k and v"
        raise InvalidArgumentError(message)
    args.batch, args.heads, args.kv_heads, args.q_rows, args.kv_rows = batch, heads, kv_heads, q_rows, kv_rows
    args.head_dim, args.v_head_dim = given["q"].shape[-1], given["v"].shape[-1]
    if "past_k" in given or "past_v" in given:
        _fill_past(args, given, axes)
    if axes[0] is None:
        _fill_packed(args, given, options)


def _check_tensors(given: Mapping[str, _Form], options: Options) -> None:
    """Check rank, dtype and head size of each tensor."""
    words = operands.words_of(options.axes)
    _, dtype, most_head_dim = PRECISIONS[options.precision]
    for name in [name for name in _TENSORS if name in given]:
        x = given[name]
        if len(x.shape) != len(words):
            message = f"{name} has shape {tuple(x.shape)}, not [{', '.join(words)}]"
            raise InvalidArgumentError(message)
        if 0 in x.shape:
            message = f"{name} has shape {tuple(x.shape)}: [{', '.join(words)}] must be at least 1"
            raise InvalidArgumentError(message)
        operands.check_dtype(x.dtype, name)
        if x.dtype != given["q"].dtype:
            message = f"{name} has dtype {x.dtype}, but q has {given['q'].dtype}"
            raise TypeError(message)
        if x.shape[-1] > most_head_dim:
            message = (
                f"{name} has head size {x.shape[-1]}, above the {most_head_dim} of precision {options.precision!r}"
            )
            raise InvalidArgumentError(message)
    if dtype is not None and given["q"].dtype != dtype:
        message = (
            f"q, k and v have dtype {given['q'].dtype}, but precision {options.precision!r} is of {dtype} products"
        )
        raise TypeError(message)


def _extents(x: _Form, axes: Axes) -> tuple[int, int, int]:
    batch = 1 if axes[0] is None else x.shape[axes[0]]
    return batch, x.shape[axes[1]], x.shape[axes[2]]


def _fill_past(args: Any, given: Mapping[str, _Form], axes: Axes) -> None:
    """Check the shape of the past."""
    if "past_k" not in given or "past_v" not in given:
        message = f"{'past_v' if 'past_k' in given else 'past_k'} is None, but the other half of the past is given"
        raise InvalidArgumentError(message)
    rows = _extents(given["past_k"], axes)[2]
    for name, head_dim in (("past_k", args.head_dim), ("past_v", args.v_head_dim)):
        wanted = list(given[name].shape)
        for axis, extent in zip(axes, (args.batch, args.kv_heads, rows), strict=True):
            if axis is not None:
                wanted[axis] = extent
        wanted[-1] = head_dim
        operands.require_shape(given[name].shape, tuple(wanted), name)
    args.past_rows = rows


def _fill_packed(args: Any, given: Mapping[str, _Form], options: Options) -> None:
    """Take batch and longest sequences from what says where sequences begin."""
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        shape = given[name].shape
        if len(shape) != 1 or shape[0] <= 1:
            message = f"{name} has shape {tuple(shape)}, not (batch + 1,)"
            raise InvalidArgumentError(message)
    args.batch = given["cu_seqlens_q"].shape[0] - 1
    operands.require_shape(given["cu_seqlens_k"].shape, given["cu_seqlens_q"].shape, "cu_seqlens_k")
    args.q_total, args.kv_total = args.q_rows, args.kv_rows
    for name, field, total in (
        ("max_seqlen_q", "q_rows", args.q_total),
        ("max_seqlen_k", "kv_rows", args.kv_total),
    ):
        given_rows = getattr(options, name)
        if given_rows is None:
            continue
        rows = _check_integer(given_rows, name)
        if rows < 0:
            message = f"{name} is {rows}, not a number of rows"
            raise InvalidArgumentError(message)
        setattr(args, field, max(1, min(rows, total)))


def _check_causal(causal: Any, align: Any) -> int:
    """Return the C library's code of a mask."""
    operands.one_of(align, "causal_align", ("bottom-right", "top-left"))
    if not isinstance(causal, bool | np.bool_):
        message = f"causal is {causal!r}, not True or False"
        raise TypeError(message)
    return int(_ALIGN[bool(causal), align])


def _check_config(config: Any) -> Any:
    """Return the C string of a config; whoever uses it keeps it."""
    if config is None:
        return ffi.NULL
    if not isinstance(config, str) or not config.isascii() or "\0" in config:
        message = f"config is {config!r}, not the name of one, such as 'r16'"
        raise TypeError(message)
    return ffi.new("char[]", config.encode())


def _check_integer(value: Any, name: str) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        message = f"{name} is {value!r}, not an integer"
        raise TypeError(message)
    return operator.index(value)


def _check_number(value: Any, name: str) -> float:
    """Return a number that is finite in float32."""
    if isinstance(value, np.generic) and value.dtype in operands.CODES:
        value = float(value)  # ml_dtypes' are no numbers.Real
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | np.floating):
        message = f"{name} is {value!r}, not a real number"
        raise TypeError(message)
    try:
        with np.errstate(over="ignore"):
            finite, shown = bool(np.isfinite(np.float32(value))), f"{value}"
    except (OverflowError, ValueError):  # more digits than float64, or than Python prints
        finite, shown = False, "beyond float64"
    if not finite:
        message = f"{name} is {shown}, not a number that is finite in float32"
        raise InvalidArgumentError(message)
    return float(value)


def _check_scale(scale: Any, head_dim: int) -> float:
    return 1 / math.sqrt(head_dim) if scale is None else _check_number(scale, "scale")


def _fill_window(args: Any, window: Any) -> None:
    """Write the two ends of a window."""
    if not isinstance(window, tuple | list) or len(window) != _WINDOW_ENDS:
        message = f"window is {window!r}, not (left, right), each an integer or None"
        raise TypeError(message)
    sides = (("window_left", lib.SM120_WINDOW_LEFT), ("window_right", lib.SM120_WINDOW_RIGHT))
    for value, (field, bit) in zip(window, sides, strict=True):
        if value is None:
            continue
        keys = _check_integer(value, "window")
        if keys < 0:
            message = f"window is {tuple(window)}: each end is None or at least 0"
            raise InvalidArgumentError(message)
        args.window |= bit
        setattr(args, field, min(keys, 2**62))


def _fill_mask(args: Any, mask: _Form | None) -> None:
    """Write the strides of a mask that broadcasts."""
    if mask is None:
        return
    wanted = (args.batch, args.heads, args.q_rows, args.past_rows + args.kv_rows)
    lacking = _MASK_RANK - len(mask.shape)
    shape, strides = (1,) * lacking + mask.shape, (0,) * lacking + mask.strides
    if lacking < 0 or any(n not in {1, m} for n, m in zip(shape, wanted, strict=True)):
        message = f"mask has shape {mask.shape}, which does not broadcast to {wanted}"
        raise InvalidArgumentError(message)
    if any(step < 0 for step in strides):
        message = f"mask has strides {mask.strides}, but none may be negative"
        raise InvalidArgumentError(message)
    if mask.dtype == np.bool_:
        args.mask.dtype = lib.SM120_BOOL
    elif mask.dtype in operands.CODES:
        args.mask.dtype = operands.CODES[mask.dtype]
    else:
        message = f"mask has dtype {mask.dtype}, not bool, float32, float16 or bfloat16"
        raise TypeError(message)
    steps = [step if n > 1 else 0 for n, step in zip(shape, strides, strict=True)]
    args.mask.batch_stride, args.mask.head_stride, args.mask.row_stride, args.mask.column_stride = steps


def _check_small(args: Any, given: Mapping[str, _Form]) -> None:
    """Check the arrays of one number for each head or batch."""
    shapes: dict[str, list[tuple[int, ...]]] = {
        "sinks": [(args.heads,)],
        "alibi_slopes": [(args.heads,), (args.batch, args.heads)],
        "kv_lengths": [(args.batch,)],
        "diagonals": [(args.batch,)],
    }
    for name, dtype in _SMALL.items():
        if name not in given:
            continue
        x = given[name]
        if x.dtype != dtype:
            message = f"{name} has dtype {x.dtype}, not {dtype}"
            raise TypeError(message)
        if name in shapes and x.shape not in shapes[name]:
            message = f"{name} has shape {x.shape}, not {' or '.join(map(str, shapes[name]))}"
            raise InvalidArgumentError(message)
        steps = tuple(math.prod(x.shape[i + 1 :]) for i in range(len(x.shape)))
        if any(n > 1 and step != want for n, step, want in zip(x.shape, x.strides, steps, strict=True)):
            message = f"{name} has strides {x.strides}, but must be contiguous"
            raise InvalidArgumentError(message)
    if "alibi_slopes" in given and len(given["alibi_slopes"].shape) > 1:
        args.alibi_batch_stride = args.heads


# ---- on a device ----------------------------------------------------------------


def _on_device(
    faces: dict[str, Array],
    options: Options,
    results: Results,
    device: Device,
    queue: Any,
    workspace: Any,
    key: tuple[Any, ...] | None = None,
) -> tuple[Array, Array | None]:
    """Start the operation on arrays of the device."""
    out, lse = results.out, results.lse
    out_dtype = _out_dtype(out, results.out_dtype, faces["q"].dtype)
    if out is not None:
        operands.require_array(out, "out", device)
    forms = tuple(_form(x) for x in faces.values())
    try:
        plan = _plan(tuple(faces), forms, options, None if out is None else _form(out), out_dtype)
    except TypeError:  # an option that cannot be hashed is one that is wrong: the same again says how
        plan = _plan.__wrapped__(tuple(faces), forms, options, None if out is None else _form(out), out_dtype)
    _check_lse(lse, plan, device)
    if out is None:
        out = device.empty(plan.out_shape, plan.out_dtype)
    if lse is None and results.wants_lse:
        lse = device.empty(plan.lse_shape, np.float32)
    if options.axes[0] is None:
        _clear(device, queue, out if results.out is None else None, lse if results.lse is None else None)
    args = ffi.new("sm120_attention_args *", plan.args[0])
    for name, x in faces.items():
        if name in _SMALL:
            setattr(args, name, x.address)
        else:
            getattr(args, name).address = x.address
    args.o.address = out.address
    args.lse = 0 if lse is None else lse.address
    args.stream = queue
    needs_workspace = _launch(args, device, queue, workspace)
    if key is not None and not needs_workspace:
        if len(_direct) >= _DIRECT_MOST:
            _direct.clear()
        _direct[key] = plan
    operands.touch(queue, *faces.values(), out, lse)
    return out, lse


def _check_lse(lse: Any, plan: _Plan, device: Device) -> None:
    """Raise where the log-sum-exp cannot go to an array of the device."""
    if lse is None:
        return
    operands.require_array(lse, "lse", device)
    operands.require_shape(lse.shape, plan.lse_shape, "lse")
    _check_lse_dtype(lse)
    if not lse.is_contiguous:
        message = f"lse has strides {lse.strides}, but must be contiguous"
        raise InvalidArgumentError(message)


def _clear(device: Device, queue: Any, out: Array | None, lse: Array | None) -> None:
    """Give the rows that no sequence has a value: 0, and -inf of the log-sum-exp."""
    if out is not None:
        check(lib.sm120_fill(device.handle.pointer, out.address, 0, out.nbytes, queue))
    if lse is not None:
        lse.copy_from(np.full(lse.shape, -np.inf, np.float32), stream=int(ffi.cast("uintptr_t", queue)))


def _launch(args: Any, device: Device, queue: Any, workspace: Array | None) -> bool:
    """Make the call, with a workspace where it needs one; whether it does."""
    pointer = device.handle.pointer
    is_virtual = device.is_virtual
    size = ffi.new("size_t *")
    check(lib.sm120_attention(pointer, args, 0, size))
    if size[0] == 0:
        check_running(pointer, lambda: lib.sm120_attention(pointer, args, 0, ffi.NULL), is_virtual=is_virtual)
        return False
    if workspace is not None:
        if workspace.nbytes < size[0]:
            message = f"workspace has {workspace.nbytes} bytes; this call needs {size[0]}"
            raise WorkspaceTooSmallError(message)
        size[0] = workspace.nbytes
        address = workspace.address
        check_running(pointer, lambda: lib.sm120_attention(pointer, args, address, size), is_virtual=is_virtual)
        operands.touch(queue, workspace)
        return True
    with device.workspace(queue, int(size[0])) as held:
        size[0] = held.nbytes
        address = held.address
        check_running(pointer, lambda: lib.sm120_attention(pointer, args, address, size), is_virtual=is_virtual)
    return True


# ---- on the host ----------------------------------------------------------------


def _as_ndarray(x: Any, name: str) -> Any:
    """Return numbers beside ndarrays in the dtype that kernels want; what is no such thing others refuse."""
    if name == "mask":
        return mask_in_float32(x) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x
    if name not in _SMALL or isinstance(x, Array) or (not isinstance(x, np.ndarray) and hasattr(x, "__dlpack__")):
        return x
    refuse_mask(x, name)
    values: npt.NDArray[Any] = np.asarray(x)
    if values.size == 0 and not isinstance(x, np.ndarray):
        values = values.astype(_SMALL[name])  # [] has a shape that is wrong, not a dtype
    kinds = "iu" if _SMALL[name].kind == "i" else "iuf"
    if values.dtype.kind not in kinds and values.dtype not in operands.CODES:
        message = f"{name} has dtype {values.dtype}, not {_SMALL[name]}"
        raise TypeError(message)
    if _SMALL[name].kind == "i" and values.size and not -(2**31) <= values.min() <= values.max() < 2**31:
        message = f"{name} holds {values.min()} to {values.max()}, beyond int32"
        raise InvalidArgumentError(message)
    with np.errstate(over="ignore"):
        narrow = values.astype(_SMALL[name])
    lost = np.isinf(narrow) & np.isfinite(values)
    if lost.any():
        message = f"{name} holds {values[lost][0]}, beyond float32"
        raise InvalidArgumentError(message)
    return narrow


def mask_in_float32(mask: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Round a mask; what float32 cannot hold stays finite: only -inf hides a key."""
    most = np.finfo(np.float32).max
    return np.where(np.isinf(mask), mask, np.clip(mask, -most, most)).astype(np.float32)


def _check_values(inputs: Mapping[str, Any], options: Options) -> Options:
    """Check what ndarrays say about lengths, and take the longest sequences from them."""
    longest: dict[str, Any] = {}
    if options.axes[0] is None:
        for name, x, field in (("cu_seqlens_q", "q", "max_seqlen_q"), ("cu_seqlens_k", "k", "max_seqlen_k")):
            starts = inputs[name].astype(np.int64)
            if starts.ndim == 1 and starts.size > 1 and inputs[x].ndim == len(operands.words_of(options.axes)):
                steps = np.diff(starts)
                if starts[0] < 0 or (steps < 0).any() or starts[-1] > len(inputs[x]):
                    message = (
                        f"{name} is {starts}, which does not ascend from 0 to at most the {len(inputs[x])} rows of {x}"
                    )
                    raise InvalidArgumentError(message)
                longest[field] = int(steps.max())
                asked = getattr(options, field)
                if asked is not None and _check_integer(asked, field) < longest[field]:
                    message = f"{field} is {asked}, but {name} has a sequence of {longest[field]} rows"
                    raise InvalidArgumentError(message)
    lengths = inputs.get("kv_lengths")
    rows = inputs["k"].shape[options.axes[2]] if inputs["k"].ndim > options.axes[2] else 0
    if lengths is not None and lengths.size and not 0 <= lengths.min() <= lengths.max() <= rows:
        message = f"kv_lengths is {lengths}, but lengths are from 0 to the {rows} rows of k"
        raise InvalidArgumentError(message)
    return options._replace(**longest)


def _on_host(
    inputs: dict[str, Any], options: Options, results: Results, device: Device, queue: Any, workspace: Any
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32] | None]:
    """Compute ndarrays: copy in, launch, copy out."""
    options = _check_values(inputs, options)
    out_dtype = _out_dtype(results.out, results.out_dtype, inputs["q"].dtype)
    forms = tuple(_Form(x.shape, _contiguous(x.shape), x.dtype) for x in inputs.values())
    # The plan of what the arrays will be on the device: all that is wrong with them is said before anything is copied.
    plan = _plan.__wrapped__(tuple(inputs), forms, options, None, out_dtype)
    _check_host_outputs(plan, results)
    stream = int(ffi.cast("uintptr_t", queue))
    staged: list[Array] = []
    with operands.temporary(staged):
        faces: dict[str, Array] = {}
        for name, x in inputs.items():
            staged.append(device.empty(x.shape, x.dtype))
            faces[name] = staged[-1].copy_from(x, stream=stream)
        keep = {"out": results.out, "lse": results.lse} if options.axes[0] is None else {}
        given: dict[str, Array] = {}
        for name, values in keep.items():
            if values is not None:  # rows of no sequence keep what they held
                staged.append(device.empty(values.shape, values.dtype))
                given[name] = staged[-1].copy_from(values, stream=stream)
        there = Results(given.get("out"), out_dtype, given.get("lse"), results.wants_lse)
        result, sums = _on_device(faces, options, there, device, queue, workspace)
        staged += [x for x in (result, sums) if x is not None and not any(x is y for y in staged)]
        computed = result.numpy(stream=stream)
        logs = None if sums is None else sums.numpy(stream=stream)
    if results.out is not None:
        results.out[...] = computed
        computed = results.out
    if results.lse is not None and logs is not None:
        results.lse[...] = logs
        logs = results.lse
    return computed, logs


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


# ---- results and workspace ------------------------------------------------------


def _out_dtype(out: Any, out_dtype: Any, default: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the result."""
    given = None if out_dtype is None else dtype_of(out_dtype, "out_dtype")
    if out is not None:
        if not hasattr(out, "dtype"):
            message = f"out is a {type(out).__name__}, not an array"
            raise TypeError(message)
        if given is not None and given != out.dtype:
            message = f"out_dtype is {given}, but out has dtype {out.dtype}"
            raise InvalidArgumentError(message)
        return operands.check_dtype(np.dtype(out.dtype), "out")
    if given is not None:
        return operands.check_dtype(given, "out_dtype")
    return default


def _check_workspace(workspace: Any, device: Device) -> None:
    """Raise where a workspace is no device memory that kernels can use."""
    if workspace is None:
        return
    operands.require_array(workspace, "workspace", device)
    if not workspace.is_contiguous:
        message = f"workspace has strides {workspace.strides}, but must be contiguous"
        raise InvalidArgumentError(message)
    if workspace.nbytes == 0:
        message = "workspace has 0 bytes; leave it out, or give what is asked for"
        raise InvalidArgumentError(message)
    if workspace.address % _WORKSPACE_ALIGNMENT:
        message = f"workspace is at address {workspace.address:#x}, not at a multiple of {_WORKSPACE_ALIGNMENT}"
        raise MisalignedError(message)


def _check_host_outputs(plan: _Plan, results: Results) -> None:
    """Raise where results for ndarrays cannot go to ``out`` and ``lse``."""
    for name, shape, x in (("out", plan.out_shape, results.out), ("lse", plan.lse_shape, results.lse)):
        if x is None:
            continue
        if not isinstance(x, np.ndarray):
            message = f"{name} is a {type(x).__name__}, not an ndarray like q, k and v"
            raise TypeError(message)
        refuse_mask(x, name)
        operands.require_shape(x.shape, shape, name)
        if not x.flags.writeable:
            message = f"{name} is a read-only ndarray"
            raise InvalidArgumentError(message)
        steps = tuple(s // x.itemsize for s in x.strides)
        for axis, (extent, step) in enumerate(zip(shape, steps, strict=True)):
            if extent > 1 and step == 0:
                message = f"{name} has stride 0 along dimension {axis}"
                raise InvalidArgumentError(message)
        span = x.itemsize
        for step, extent in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
            if step < span:
                message = f"{name} has a stride of {step} bytes that steps over {span}: its elements may not overlap"
                raise InvalidArgumentError(message)
            span += step * (extent - 1)
    _check_lse_dtype(results.lse)


def _check_lse_dtype(lse: Any) -> None:
    """Raise where the log-sum-exp would not be float32."""
    if lse is not None and lse.dtype != np.float32:
        message = f"lse has dtype {lse.dtype}, not float32"
        raise TypeError(message)
