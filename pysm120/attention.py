"""Attention."""

import math
import numbers
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from pysm120 import _operands as operands
from pysm120._ffi import check, check_running, ffi, lib, new_struct
from pysm120.arrays import Array, refuse_mask
from pysm120.device import Device
from pysm120.dlpack import SupportsDLPack
from pysm120.errors import InvalidArgumentError, MisalignedError, WorkspaceTooSmallError

# (batch, head, row) among the four dimensions.
_AXES = {"BSHD": (0, 2, 1), "BHSD": (0, 1, 2)}
_WORDS = {
    "BSHD": "[batch, rows, heads, head size]",
    "BHSD": "[batch, heads, rows, head size]",
}
_RANK = 4
# What the C library calls a precision, the dtype that it wants of q, k and v, and the largest head size.
_PRECISIONS: dict[str, tuple[int, str | None, int]] = {
    "mxfp8": (lib.SM120_MXFP8, None, 128),
    "mxfp8_bf16": (lib.SM120_MXFP8_BF16, "bfloat16", 128),
    "mxfp8_f16": (lib.SM120_MXFP8_F16, "float16", 128),
    "bf16": (lib.SM120_BF16, "bfloat16", 256),
    "f16": (lib.SM120_F16, "float16", 256),
}
_WORKSPACE_ALIGNMENT = 256


class _Problem(NamedTuple):
    """Everything about a call but its arrays, checked."""

    batch: int
    heads: int
    kv_heads: int
    q_rows: int
    kv_rows: int
    head_dim: int
    axes: tuple[int, int, int]
    scale: float
    causal: int
    precision: int
    out_dtype: np.dtype[Any]
    out_shape: tuple[int, ...]

    @property
    def lse_shape(self) -> tuple[int, int, int]:
        """Shape of the log-sum-exp."""
        return self.batch, self.heads, self.q_rows


@overload
def attention(
    q: npt.NDArray[Any],
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    *,
    causal: bool = ...,
    causal_align: str = ...,
    scale: float | None = ...,
    precision: str = ...,
    layout: str = ...,
    out: npt.NDArray[Any] | None = ...,
    out_dtype: npt.DTypeLike | None = ...,
    return_lse: Literal[False] = ...,
    lse: npt.NDArray[np.float32] | None = ...,
    device: Device | str | None = ...,
    stream: Any = ...,
    workspace: Array | None = ...,
) -> npt.NDArray[Any]: ...
@overload
def attention(
    q: npt.NDArray[Any],
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    *,
    causal: bool = ...,
    causal_align: str = ...,
    scale: float | None = ...,
    precision: str = ...,
    layout: str = ...,
    out: npt.NDArray[Any] | None = ...,
    out_dtype: npt.DTypeLike | None = ...,
    return_lse: Literal[True],
    lse: npt.NDArray[np.float32] | None = ...,
    device: Device | str | None = ...,
    stream: Any = ...,
    workspace: Array | None = ...,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]: ...
@overload
def attention(
    q: Array | SupportsDLPack,
    k: Array | SupportsDLPack,
    v: Array | SupportsDLPack,
    *,
    causal: bool = ...,
    causal_align: str = ...,
    scale: float | None = ...,
    precision: str = ...,
    layout: str = ...,
    out: Array | None = ...,
    out_dtype: npt.DTypeLike | None = ...,
    return_lse: Literal[False] = ...,
    lse: Array | None = ...,
    device: Device | str | None = ...,
    stream: Any = ...,
    workspace: Array | None = ...,
) -> Array: ...
@overload
def attention(
    q: Array | SupportsDLPack,
    k: Array | SupportsDLPack,
    v: Array | SupportsDLPack,
    *,
    causal: bool = ...,
    causal_align: str = ...,
    scale: float | None = ...,
    precision: str = ...,
    layout: str = ...,
    out: Array | None = ...,
    out_dtype: npt.DTypeLike | None = ...,
    return_lse: Literal[True],
    lse: Array | None = ...,
    device: Device | str | None = ...,
    stream: Any = ...,
    workspace: Array | None = ...,
) -> tuple[Array, Array]: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    scale: float | None = None,
    precision: str = "mxfp8",
    layout: str = "BSHD",
    out: Any = None,
    out_dtype: npt.DTypeLike | None = None,
    return_lse: bool = False,
    lse: Any = None,
    device: Device | str | None = None,
    stream: Any = None,
    workspace: Array | None = None,
) -> Any:
    """Return softmax(scale * q k^T + mask) v for every batch and head.

    Parameters
    ----------
    q : array, float32, float16 or bfloat16, shape (B, Sq, H, D)
        Queries. ndarrays are copied to the device and the result back. An Array,
        or any array that speaks DLPack, stays on its device. D is a multiple of 8
        up to 128, in bf16 and f16 up to 256; Sq >= 1.
    k, v : array, dtype of q, shape (B, Sk, Hkv, D)
        Keys and values. Sk >= 1, and H is a multiple of Hkv: head h of q uses
        head h // (H / Hkv) of k and v.
    causal : bool
        Row i uses only the keys up to its own position.
    causal_align : {"bottom-right", "top-left"}
        That position is i + Sk - Sq (as in FlashAttention), or i.
    scale : float, optional
        Default: 1 / sqrt(D).
    precision : {"mxfp8", "mxfp8_bf16", "mxfp8_f16", "bf16", "f16"}
        Of the products, whose sums are float32. mxfp8: all operands e4m3 with a
        ue8m0 scale for every 32 elements along the contraction (OCP MX). bf16,
        f16: the dtype of q, k and v, which the softmax is rounded to. mxfp8_bf16,
        mxfp8_f16: q k^T as in mxfp8, and the other product as in bf16 or f16.
    layout : {"BSHD", "BHSD"}
        Order of the dimensions of q, k, v and the result.
    out : array, shape of q, optional
        Where the result goes; of the same kind as q.
    out_dtype : dtype, optional
        float32, float16 or bfloat16. Default: that of ``out``, else that of q.
    return_lse : bool
        Return (out, lse).
    lse : array, float32, shape (B, H, Sq), contiguous, optional
        Where the log-sum-exp goes.
    device : Device or str, optional
        Where ndarrays are computed. Default: $PYSM120_DEVICE, else the first
        usable GPU, else the virtual SM120.
    stream : stream, optional
        For arrays on a device the call returns before the work is done, except
        where q, k or v came by DLPack: another library may reuse their memory.
    workspace : Array, optional
        Device memory, 256-byte aligned. Default: kept for each device and stream.

    Returns
    -------
    out : array, shape of q
        Rows without any key are 0.
    lse : array, float32, shape (B, H, Sq)
        With ``return_lse``: log(sum(exp(scale * q k^T + mask))), natural; -inf
        for rows without any key.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value. Nothing was
        written.

    Notes
    -----
    MX scales are rounded up so that no element saturates. For normal random
    inputs the relative error against float64 (Frobenius norm) is about 5 % in
    mxfp8, 4 % in mxfp8_bf16 and mxfp8_f16, 0.2 % in bf16 and 0.03 % in f16,
    before the result is rounded; the interface is that of FlashAttention 2 where it has the feature.

    """
    inputs = {"q": q, "k": k, "v": v}
    on_host = operands.is_host(inputs)
    place = operands.device_of(inputs, device)
    queue = place.stream_handle(stream)
    faces = inputs if on_host else {n: place.from_dlpack(x, stream=stream) for n, x in inputs.items()}
    problem = _check(
        faces,
        causal=_check_causal(causal, causal_align),
        scale=scale,
        precision=precision,
        layout=layout,
        out_dtype=_out_dtype(out, out_dtype, faces["q"].dtype),
    )
    wants_lse = bool(return_lse) or lse is not None
    _check_workspace(workspace, place)
    if on_host:
        _check_host_outputs(problem, out, lse)
        out, lse = _on_host(problem, place, faces, out, lse, wants_lse, queue, workspace)
    else:
        q_, k_, v_ = faces.values()
        rows = [operands.rows_of(x, problem.axes, name, output=False) for name, x in faces.items()]
        out, lse = _device_outputs(problem, place, out, lse, wants_lse=wants_lse)
        _launch(problem, place, [q_, k_, v_], rows, out, lse, queue, workspace)
        if any(not isinstance(x, Array) for x in inputs.values()):
            operands.finish(place, queue)
    return (out, lse) if return_lse else out


# ---- checks ---------------------------------------------------------------------


def _check_causal(causal: Any, align: Any) -> int:
    """Return the C library's code of a mask."""
    operands.one_of(align, "causal_align", ("bottom-right", "top-left"))
    if not isinstance(causal, bool | np.bool_):
        message = f"causal is {causal!r}, not True or False"
        raise TypeError(message)
    if not causal:
        return int(lib.SM120_NOT_CAUSAL)
    if align == "top-left":
        return int(lib.SM120_CAUSAL_TOP_LEFT)
    return int(lib.SM120_CAUSAL_BOTTOM_RIGHT)


def _check_scale(scale: Any, head_dim: int) -> float:
    """Return a scale that is finite in float32."""
    if scale is None:
        return 1 / math.sqrt(head_dim)
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real | np.floating):
        message = f"scale is {scale!r}, not a real number"
        raise TypeError(message)
    try:
        with np.errstate(over="ignore"):
            finite, shown = bool(np.isfinite(np.float32(scale))), f"{scale}"
    except (OverflowError, ValueError):  # more digits than float64, or than Python prints
        finite, shown = False, "beyond float64"
    if not finite:
        message = f"scale is {shown}, not a number that is finite in float32"
        raise InvalidArgumentError(message)
    return float(scale)


def _out_dtype(out: Any, out_dtype: Any, default: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the result."""
    given = None if out_dtype is None else np.dtype(out_dtype)
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


def _check(
    faces: Mapping[str, Any],
    *,
    causal: int,
    scale: Any,
    precision: str,
    layout: str,
    out_dtype: np.dtype[Any],
) -> _Problem:
    """Return the problem that the arguments describe."""
    operands.one_of(precision, "precision", tuple(_PRECISIONS))
    code, dtype, most_head_dim = _PRECISIONS[precision]
    operands.one_of(layout, "layout", tuple(_AXES))
    words = _WORDS[layout]
    for name, x in faces.items():
        if len(x.shape) != _RANK:
            message = f"{name} has shape {tuple(x.shape)}, not {words}"
            raise InvalidArgumentError(message)
        if 0 in x.shape:
            message = f"{name} has shape {tuple(x.shape)}: {words} must be at least 1"
            raise InvalidArgumentError(message)
        operands.check_dtype(x.dtype, name)
        if x.dtype != faces["q"].dtype:
            message = f"{name} has dtype {x.dtype}, but q has {faces['q'].dtype}"
            raise TypeError(message)
    if dtype is not None and faces["q"].dtype != dtype:
        message = f"q, k and v have dtype {faces['q'].dtype}, but precision {precision!r} is of {dtype} products"
        raise TypeError(message)
    q, k, v = (tuple(x.shape) for x in faces.values())
    axes = _AXES[layout]
    batch, heads, q_rows = (q[axis] for axis in axes)
    kv_batch, kv_heads, kv_rows = (k[axis] for axis in axes)
    operands.check_head_dim(q[3], "q", most_head_dim)
    if k[3] != q[3]:
        message = f"k has head size {k[3]}, but q has {q[3]}"
        raise InvalidArgumentError(message)
    if v != k:
        message = f"v has shape {v}, but k has {k}: they must be the same"
        raise InvalidArgumentError(message)
    if kv_batch != batch:
        message = f"k and v have batch {kv_batch}, but q has {batch}"
        raise InvalidArgumentError(message)
    if heads % kv_heads:
        message = f"q has {heads} heads, not a multiple of the {kv_heads} of k and v"
        raise InvalidArgumentError(message)
    return _Problem(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_rows=q_rows,
        kv_rows=kv_rows,
        head_dim=q[3],
        axes=axes,
        scale=_check_scale(scale, q[3]),
        causal=causal,
        precision=code,
        out_dtype=out_dtype,
        out_shape=q,
    )


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


def _check_host_outputs(problem: _Problem, out: Any, lse: Any) -> None:
    """Raise where results for ndarrays cannot go to ``out`` and ``lse``."""
    wanted = {"out": problem.out_shape, "lse": problem.lse_shape}
    for (name, shape), x in zip(wanted.items(), (out, lse), strict=True):
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
    _check_lse_dtype(lse)


def _check_lse_dtype(lse: Any) -> None:
    """Raise where the log-sum-exp would not be float32."""
    if lse is not None and lse.dtype != np.float32:
        message = f"lse has dtype {lse.dtype}, not float32"
        raise TypeError(message)


def _device_outputs(
    problem: _Problem, device: Device, out: Any, lse: Any, *, wants_lse: bool
) -> tuple[Array, Array | None]:
    """Return the arrays that results go to, made where they are not given."""
    if out is not None:
        operands.require_array(out, "out", device)
        operands.require_shape(out.shape, problem.out_shape, "out")
        operands.rows_of(out, problem.axes, "out", output=True)
    if lse is not None:
        operands.require_array(lse, "lse", device)
        operands.require_shape(lse.shape, problem.lse_shape, "lse")
        _check_lse_dtype(lse)
        if not lse.is_contiguous:
            message = f"lse has strides {lse.strides}, but must be contiguous"
            raise InvalidArgumentError(message)
    if out is None:
        out = device.empty(problem.out_shape, problem.out_dtype)
    if lse is None and wants_lse:
        lse = device.empty(problem.lse_shape, np.float32)
    return out, lse


# ---- work -----------------------------------------------------------------------


def _on_host(
    problem: _Problem,
    device: Device,
    faces: Mapping[str, Any],
    out: Any,
    lse: Any,
    wants_lse: bool,  # noqa: FBT001
    queue: Any,
    workspace: Array | None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32] | None]:
    """Compute ndarrays: copy in, launch, copy out."""
    stream = int(ffi.cast("uintptr_t", queue))
    staged: list[Array] = []
    with operands.temporary(staged):
        for x in faces.values():
            staged.append(device.empty(x.shape, x.dtype))
            staged[-1].copy_from(x, stream=stream)
        result, sums = _device_outputs(problem, device, None, None, wants_lse=wants_lse)
        staged.append(result)
        if sums is not None:
            staged.append(sums)
        rows = [operands.rows_of(x, problem.axes, name, output=False) for name, x in zip(faces, staged, strict=False)]
        _launch(problem, device, staged[:3], rows, result, sums, queue, workspace)
        computed = result.numpy(stream=stream)
        logs = None if sums is None else sums.numpy(stream=stream)
    if out is not None:
        out[...] = computed
        computed = out
    if lse is not None and logs is not None:
        lse[...] = logs
        logs = lse
    return computed, logs


def _launch(
    problem: _Problem,
    device: Device,
    inputs: list[Array],
    rows: list[operands.Rows],
    out: Array,
    lse: Array | None,
    queue: Any,
    workspace: Array | None,
) -> None:
    """Start the operation on arrays of the device."""
    args = new_struct("sm120_attention_args")
    args.precision = problem.precision
    args.batch, args.heads, args.kv_heads = (
        problem.batch,
        problem.heads,
        problem.kv_heads,
    )
    args.q_rows, args.kv_rows = problem.q_rows, problem.kv_rows
    args.head_dim = problem.head_dim
    for tensor, x, where in zip((args.q, args.k, args.v), inputs, rows, strict=True):
        operands.fill_tensor(tensor, x, where)
    out_rows = operands.rows_of(out, problem.axes, "out", output=True)
    operands.fill_tensor(args.o, out, out_rows)
    args.lse = 0 if lse is None else lse.address
    args.scale = problem.scale
    args.causal = problem.causal
    args.stream = queue
    pointer = device.handle.pointer
    size = ffi.new("size_t *")
    check(lib.sm120_attention(pointer, args, 0, size))
    if size[0] == 0:
        check_running(pointer, lambda: lib.sm120_attention(pointer, args, 0, ffi.NULL), is_virtual=device.is_virtual)
    elif workspace is not None:
        if workspace.nbytes < size[0]:
            message = f"workspace has {workspace.nbytes} bytes; this call needs {size[0]}"
            raise WorkspaceTooSmallError(message)
        size[0] = workspace.nbytes
        address = workspace.address
        check_running(pointer, lambda: lib.sm120_attention(pointer, args, address, size), is_virtual=device.is_virtual)
        operands.touch(queue, workspace)
    else:
        with device.workspace(queue, int(size[0])) as held:
            size[0] = held.nbytes
            address = held.address
            check_running(
                pointer, lambda: lib.sm120_attention(pointer, args, address, size), is_virtual=device.is_virtual
            )
    operands.touch(queue, *inputs, out, lse)
