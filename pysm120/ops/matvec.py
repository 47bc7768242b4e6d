"""Products of quantised weights and vectors."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops import foreign, operands
from pysm120.ops.call import AnyArray, Operation
from pysm120.ops.options import one_of
from pysm120.ops.table import F32, FLOATS, I32, Dtype, Input, Output
from pysm120.ops.weights import LAYOUTS, TYPES, U8, QuantizedMatrix, check_array, device_of
from pysm120.runtime.arrays import Array, dtype_of, refuse_mask
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import lib
from pysm120.runtime.shapes import Shape
from pysm120.runtime.untraced import untraced


class _Options(NamedTuple):
    """Members of the C struct."""

    type: int
    layout: int
    vectors: int
    expert_count: int
    chosen: int
    activation: int
    activations: int


_MATVEC = Operation(
    "sm120_matvec",
    (
        Input("weights", "weight_bytes", U8),
        Input("up", "up_bytes", U8, optional=True),
        Input("x", "vectors columns", FLOATS),
        Input("bias", "rows", F32, optional=True),
        Input("experts", "results", I32, optional=True),
        Output("out", "results rows", FLOATS, like="x", converts=True, member="y"),
    ),
)
_ACTIVATIONS = {"silu": lib.SM120_SILU, "gelu": lib.SM120_GELU}
_PRECISIONS = {
    "int8": lib.SM120_ACTIVATIONS_INT8,
    "int16": lib.SM120_ACTIVATIONS_INT16,
    "mxfp8x2": lib.SM120_ACTIVATIONS_MXFP8X2,
    "nvfp4x3": lib.SM120_ACTIVATIONS_NVFP4X3,
}
_RANKS = (1, 2)
_EXPERTS = 3  # dimensions of a stack of matrices


@untraced
def matvec(
    w: QuantizedMatrix,
    x: AnyArray,
    *,
    bias: Any = None,
    experts: Any = None,
    activations: str = "int8",
    out: AnyArray | None = None,
    out_dtype: npt.DTypeLike | None = None,
    device: Device | str | None = None,
    stream: Any = None,
    workspace: Array | None = None,
) -> AnyArray:
    """Return w x + bias, of one vector or of several.

    Parameters
    ----------
    w : QuantizedMatrix, shape (rows, columns) or (E, rows, columns)
        The weights; with `experts`, those of E matrices. The packed layout is
        faster.
    x : array, float32, float16 or bfloat16, shape (columns,) or (N, columns)
        The vectors. Rows are aligned to 16 bytes. An ndarray is copied to the
        device of w and the result back.
    bias : array, float32, shape (rows,), optional
        Is added to each result.
    experts : array, int32, shape (n,) or (N, n), optional
        Which matrices multiply each vector. An index that is negative or not
        below E gives NaN.
    activations : {"int8", "int16", "mxfp8x2", "nvfp4x3"}
        How x is rounded. "int16" adds a second int8 of what the first one
        left, about 15 bits. "mxfp8x2", only for MXFP4, takes two
        float8_e4m3fn in the same way, about 8 bits, and "nvfp4x3", only for
        NVFP4, three float4_e2m1fn, about 7 bits; both multiply by
        block-scaled mma. With experts only "int8".
    out : array, optional
        Where the result goes.
    out_dtype : dtype, optional
        float32, float16 or bfloat16. Default: the dtype of out, else of x.
    device : Device or str, optional
        The device of w.
    stream : stream, optional
        For an Array the call returns before the work is done.
    workspace : Array, optional
        Memory for x in int8; by default the device keeps some for each stream.
        Several vectors need it, everything but "int8", and vectors of more
        than 20,000 columns.

    Returns
    -------
    array, shape (rows,) or (N, rows); with experts (n, rows) or (N, n, rows)

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    Notes
    -----
    x is rounded to blocks of 32 int8 with a float32 scale max |x| / 127, as
    llama.cpp does; sums of blocks are exact. The error of an element of the
    result is at most the sum over blocks of 0.51 scale sum |w|, and the
    rounding of float32 sums. It is only the latter where x is a multiple of
    its scale. "int16" divides this error by 250. "mxfp8x2" rounds each
    element of x by at most 2^-8 of its magnitude, or 2^-18 of the largest in
    its block; a weight scale of 255 is NaN there. "nvfp4x3" rounds it by at
    most 0.6 % of the largest of 16, or 2^-17 of the largest of 256 columns; a
    weight scale of 0xff is 0 there. The result has the same bits in every run.

    """
    others = {"bias": bias, "experts": experts, "up": None, "activation": 0, "activations": _precision(activations)}
    computed: AnyArray = _product(w, x, others, out, out_dtype, device_of(w, device), stream, workspace)
    return computed


@untraced
def matvec_glu(
    gate: QuantizedMatrix,
    up: QuantizedMatrix,
    x: AnyArray,
    *,
    activation: str = "silu",
    experts: Any = None,
    activations: str = "int8",
    out: AnyArray | None = None,
    out_dtype: npt.DTypeLike | None = None,
    device: Device | str | None = None,
    stream: Any = None,
    workspace: Array | None = None,
) -> AnyArray:
    """Return activation(gate x) * (up x), of one vector or of several, in one launch.

    Parameters
    ----------
    gate, up : QuantizedMatrix
        As in `matvec`; both have one type, shape, layout and device.
    x : array
        As in `matvec`.
    activation : {"silu", "gelu"}
        "silu": f / (1 + exp(-f)). "gelu": its approximation by tanh.
    experts, activations, out, out_dtype, device, stream, workspace
        As in `matvec`.

    Returns
    -------
    array
        As of `matvec`.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    """
    place = device_of(gate, device)
    device_of(up, place, "up")
    for name in ("type", "shape", "layout"):
        if getattr(gate, name) != getattr(up, name):
            message = f"up has {name} {getattr(up, name)}, but gate has {getattr(gate, name)}"
            raise InvalidArgumentError(message)
    number = _ACTIVATIONS[one_of(activation, "activation", tuple(_ACTIVATIONS))]
    others = {"bias": None, "experts": experts, "up": up.data, "activation": number}
    others["activations"] = _precision(activations)
    computed: AnyArray = _product(gate, x, others, out, out_dtype, place, stream, workspace)
    return computed


def _precision(activations: str) -> int:
    """Return the C constant of an option."""
    return int(_PRECISIONS[one_of(activations, "activations", tuple(_PRECISIONS))])


def _product(
    w: QuantizedMatrix,
    x: Any,
    others: dict[str, Any],
    out: Any,
    out_dtype: Any,
    place: Any,
    stream: Any,
    workspace: Any,
) -> Any:
    """Compute a product; a new result gets the kind of x."""
    library, wanted = foreign.library_of(x), out
    if foreign.are_on_host((x, out)):
        x, out = foreign.as_ndarray(x, "x"), foreign.as_result(out, "out")
    if isinstance(x, np.ndarray):
        made = _on_host(w, x, others, out, out_dtype, place, stream)
    else:
        operands.is_host({"x": x})
        face, there = foreign.face_of(place, x, "x", stream), foreign.result_face_of(place, out, "out", stream)
        made = _on_device(w, face, others, there, out_dtype, place, stream, workspace)
        foreign.wait_for(place, stream, x, out)
    return foreign.handed_to(library, made, "out") if wanted is None else wanted


def _beside(place: Any, x: Any, name: str, dtype: Dtype, stream: Any) -> Array | None:
    """Return an array beside x as an Array; numbers in host memory are narrowed to the dtype."""
    if x is None or isinstance(x, Array):
        return x
    if foreign.is_foreign(x) and not foreign.on_host(x):
        return foreign.face_of(place, x, name, stream)
    narrow: Array = place.array(operands.narrowed(foreign.as_ndarray(x, name), name, dtype))
    return narrow


def _on_device(
    w: QuantizedMatrix,
    x: Array,
    others: dict[str, Any],
    out: Any,
    out_dtype: Any,
    place: Any,
    stream: Any,
    workspace: Any,
) -> Any:
    """Compute a product of Arrays."""
    columns = w.shape[-1]
    if len(x.shape) not in _RANKS or x.shape[-1] != columns:
        message = f"x has shape {x.shape}, not ({columns},) or (N, {columns}), as w has {columns} columns"
        raise InvalidArgumentError(message)
    bias, experts, up, activation = others["bias"], others["experts"], others["up"], others["activation"]
    experts = _beside(place, experts, "experts", I32[0], stream)
    shape = _result_shape(w, x.shape, None if experts is None else experts.shape)
    if out is None:
        made: Any = place.empty(shape, x.dtype if out_dtype is None else dtype_of(out_dtype, "out_dtype"))
    else:
        made = out
        check_array(made, "out", shape, None if out_dtype is None else dtype_of(out_dtype, "out_dtype"))
    bias = _beside(place, bias, "bias", F32[0], stream)
    if bias is not None and bias.shape != shape[-1:]:
        message = f"bias has shape {bias.shape}, not {shape[-1:]}"
        raise InvalidArgumentError(message)
    arrays = {
        "weights": w.data,
        "up": up,
        "x": x.reshape(1, columns) if len(x.shape) == 1 else x,
        "bias": bias,
        "experts": experts if experts is None else experts.reshape(-1),
    }
    vectors = arrays["x"].shape[0]
    count, chosen = (0, 0) if experts is None else (w.shape[0], experts.shape[-1])
    result = made if len(shape) == len(("results", "rows")) else made.reshape(-1, shape[-1])
    options = _Options(TYPES[w.type], LAYOUTS[w.layout], vectors, count, chosen, activation, others["activations"])
    _MATVEC(arrays, {"out": result}, options, stream=stream, workspace=workspace)
    return made


def _result_shape(w: QuantizedMatrix, x: Shape, experts: Shape | None) -> Shape:
    """Return the shape of the result after checking that of `experts`."""
    if (len(w.shape) == _EXPERTS) != (experts is not None):
        wanted = "w has no experts" if experts is not None else f"w has {w.shape[0]}: give their indices"
        message = f"experts is {'None' if experts is None else 'given'}, but {wanted}"
        raise InvalidArgumentError(message)
    if experts is None:
        return (*x[:-1], w.shape[-2])
    if len(experts) != len(x) or experts[:-1] != x[:-1] or 0 in experts:
        message = f"experts has shape {experts}, not {'(n,)' if len(x) == 1 else f'({x[0]}, n)'}, as x has shape {x}"
        raise InvalidArgumentError(message)
    return (*experts, w.shape[-2])


def _on_host(
    w: QuantizedMatrix, x: npt.NDArray[Any], others: dict[str, Any], out: Any, out_dtype: Any, place: Any, stream: Any
) -> Any:
    """Compute ndarrays: copy in, launch, copy out."""
    if out is not None:
        operands.check_result(out, "out")
        if out_dtype is not None and dtype_of(out_dtype, "out_dtype") != out.dtype:
            message = f"out_dtype is {out_dtype}, but out has dtype {out.dtype}"
            raise InvalidArgumentError(message)
        out_dtype = out.dtype
    refuse_mask(x, "x")
    given = place.array(x)
    with operands.temporary([given]):
        computed = _on_device(w, given, others, None, out_dtype, place, stream, None)
        with operands.temporary([computed]):
            result = computed.numpy(stream=stream)
    if out is None:
        return result
    if out.shape != result.shape:
        message = f"out has shape {out.shape}, not {result.shape}"
        raise InvalidArgumentError(message)
    out[...] = result
    return out
