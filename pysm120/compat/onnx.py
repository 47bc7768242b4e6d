"""An ONNX backend for models with Attention nodes of opsets 23 to 25.

>>> import pysm120.compat.onnx
>>> (y,) = pysm120.compat.onnx.prepare(model, "CUDA").run([q, k, v])  # doctest: +SKIP

`prepare`, `run_model`, `run_node`, `is_compatible` and `supports_device` are the methods of `Backend`, as in every ONNX
backend. Attention nodes run on the device, all other nodes in onnx's reference evaluator. Needs the package onnx.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pysm120.ops.attention import attention
from pysm120.ops.attention_call import mask_in_float32
from pysm120.ops.scores import STAGES, Rules, Stage, scores
from pysm120.runtime import ffi
from pysm120.runtime.device import Device, as_device
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError, require_type

try:
    import onnx
    from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
    from onnx.backend import base
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun
except ImportError as error:
    message = "pysm120.compat.onnx needs the package onnx, which is not installed: pip install 'pysm120[onnx]'"
    raise ImportError(message) from error

Ndarray = npt.NDArray[Any]

_OPSETS = (23, 24, 25)  # opsets that changed Attention
_SOFTMAX = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
_REQUIRED = 3
_F16, _BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
# The dtype of Q, K and V for a precision of the products; None: their own, float64 as float32.
_DTYPES: dict[str, np.dtype[Any] | None] = {
    "f16": _F16,
    "bf16": _BF16,
    "mxfp8": None,
    "mxfp8_bf16": _BF16,
    "mxfp8_f16": _F16,
    "nvfp4": None,
    "nvfp4_mxfp8": None,
}
# The default dtype of the products, by the dtype of Q, K and V.
_PRECISION = {"float16": "f16", "bfloat16": "bf16", "float32": "f16", "float64": "f16"}
_MASK_RANK = 4
_RANKS = (3, 4)


class Backend(base.Backend):
    """Runs the Attention nodes of models on a GPU or on the virtual SM120.

    Notes
    -----
    All other nodes are computed by ``onnx.reference``, on the CPU.

    Products of Attention are in 16 bits, or in another ``precision``. Sums and the
    softmax are float32, whatever softmax_precision says. Inputs of float32 and float64
    are rounded to float16, or to bfloat16 with ``prepare(..., precision="bf16")``; the
    result has the dtype of Q. With a softcap and qk_matmul_output_mode 0, the QK output
    is the one before the softcap. The QK output is always a product in 16 bits.

    """

    @classmethod
    def is_compatible(cls, model: ModelProto, device: "str | Device | None" = None, **kwargs: Any) -> bool:
        """Whether `prepare` supports the model."""
        del device, kwargs
        try:
            _check_model(model)
            if not _is_one_node(model):
                _evaluator(model, None)
        except (UnsupportedError, NotImplementedError, RuntimeError, KeyError):  # of ours, and of the evaluator
            return False
        return True

    @classmethod
    def prepare(
        cls, model: ModelProto, device: "str | Device | None" = None, *, precision: str | None = None, **kwargs: Any
    ) -> "Prepared":
        """Return the model, ready to run.

        Parameters
        ----------
        model : onnx.ModelProto
            A model with Attention nodes, also in functions and subgraphs.
        device : str or Device, optional
            "CUDA", "CUDA:1", "VIRTUAL" or its alias "CPU". Default: as everywhere
            in pysm120.
        precision : {"f16", "bf16", "mxfp8", "mxfp8_bf16", "mxfp8_f16", "nvfp4", "nvfp4_mxfp8"}, optional
            Precision of the products of all Attention nodes. Default: f16; bf16 if Q
            is bfloat16.

        Raises
        ------
        UnsupportedError
            The model has no Attention node, or one of another opset, or a node that
            ``onnx.reference`` does not know.
        onnx.checker.ValidationError
            The model is invalid.

        """
        if kwargs:
            message = f"prepare has no argument {min(kwargs)!r}; it takes model, device and precision"
            raise TypeError(message)
        _check_model(model)
        onnx.checker.check_model(model)
        graph = model.graph
        constants = {x.name: numpy_helper.to_array(x) for x in graph.initializer}
        place = _Place(_device(device), _check_precision(precision))
        return Prepared(
            _of_node(graph.node[0], place) if _is_one_node(model) else _of_model(model, place),
            [x.name for x in graph.input if x.name not in constants],
            [x.name for x in graph.output],
            constants,
        )

    @classmethod
    def run_model(
        cls,
        model: ModelProto,
        inputs: Any,
        device: "str | Device | None" = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(  # type: ignore[override] # whose other arguments are dicts, says onnx
        cls,
        node: NodeProto,
        inputs: Any,
        device: "str | Device | None" = None,
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        *,
        opset_version: int = _OPSETS[-1],
        precision: str | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run a single node; ``inputs`` are its inputs, in its order."""
        del outputs_info
        if kwargs:
            message = f"run_node has no argument {min(kwargs)!r}"
            raise TypeError(message)
        _check_node(node, opset_version)
        super().run_node(node, inputs, opset_version=opset_version)  # type: ignore[arg-type] # its kwargs are of dicts
        prepared = Prepared(
            _of_node(node, _Place(_device(device), _check_precision(precision))),
            [name for name in node.input if name],
            [name for name in node.output if name],
            {},
        )
        return prepared.run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device exists."""
        kind, _, ordinal = _device_name(device).partition(":")
        is_number = ordinal.isascii() and ordinal.isdecimal()
        if kind not in {"cuda", "virtual"} or not (is_number or not ordinal):
            return False
        return int(ordinal or 0) < ffi.device_count(kind)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device


class _Place(NamedTuple):
    """Where and how a model runs."""

    device: Device
    precision: str | None


_Compute = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Prepared(base.BackendRep):
    """A model on a device; `compute` returns values by name for values by name."""

    def __init__(
        self, compute: _Compute, inputs: Sequence[str], outputs: Sequence[str], constants: Mapping[str, Ndarray]
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._compute, self._constants = compute, dict(constants)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs of the model.

        Parameters
        ----------
        inputs : sequence or mapping of ndarrays
            One for each of ``self.inputs``, in that order or by name.

        Returns
        -------
        outputs : tuple of ndarrays
            The outputs of the model, in its order; they can also be indexed by name.

        """
        if kwargs:
            message = f"run has no argument {min(kwargs)!r}"
            raise TypeError(message)
        results = self._compute({**self._constants, **self._by_name(inputs)})
        return base.namedtupledict("Outputs", self.outputs)(*(results[name] for name in self.outputs))

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            unknown = [name for name in inputs if name not in self.inputs and name not in self._constants]
            if unknown:
                message = f"inputs has {unknown[0]!r}, but the model takes {', '.join(self.inputs)}"
                raise InvalidArgumentError(message)
            missing = [name for name in self.inputs if name not in inputs]
            if missing:
                message = f"inputs lacks {', '.join(missing)}"
                raise InvalidArgumentError(message)
            return dict(inputs)
        if not isinstance(inputs, Sequence):
            message = f"inputs is a {type(inputs).__name__}, not a sequence or a mapping of ndarrays"
            raise TypeError(message)
        if len(inputs) != len(self.inputs):
            message = (
                f"inputs has {len(inputs)} arrays, but the model takes {len(self.inputs)}: {', '.join(self.inputs)}"
            )
            raise InvalidArgumentError(message)
        return dict(zip(self.inputs, inputs, strict=True))


# ---- models ---------------------------------------------------------------------


def _is_one_node(model: ModelProto) -> bool:
    """Whether a model is one Attention node, which runs without the evaluator."""
    return len(model.graph.node) == 1 and not model.functions and model.graph.node[0].op_type == "Attention"


def _check_model(model: ModelProto) -> None:
    """Raise if a model has no Attention node, or one that is not supported."""
    require_type(model, ModelProto, "model", "an onnx.ModelProto: load files with onnx.load")
    parts: list[tuple[Any, Any]] = [(model.graph.node, model), *((x.node, x) for x in model.functions)]
    found = False
    for nodes, holder in parts:
        opset = next((x.version for x in holder.opset_import if x.domain in {"", "ai.onnx"}), 0)
        for node in _all_nodes(nodes):
            if node.op_type == "Attention" and node.domain in {"", "ai.onnx"}:
                _check_node(node, opset)
                found = True
    if not found:
        message = f"model has no Attention node among its {len(model.graph.node)} nodes"
        raise UnsupportedError(message)


def _all_nodes(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for x in node.attribute:
            for graph in (x.g, *x.graphs):
                yield from _all_nodes(graph.node)


def _of_node(node: NodeProto, place: _Place) -> _Compute:
    """Return the function that computes one Attention node."""
    attributes = _Attributes.of({x.name: onnx.helper.get_attribute_value(x) for x in node.attribute})

    def compute(values: Mapping[str, Any]) -> dict[str, Any]:
        given = [values.get(name) if name else None for name in node.input]
        return {x: y for x, y in zip(node.output, _results(node, given, attributes, place), strict=True) if x}

    return compute


def _results(node: NodeProto, given: Sequence[Any], attributes: "_Attributes", place: _Place) -> list[Any]:
    """Return the outputs of a node, None where an output has no name."""
    inputs = {what: _as_ndarray(x, what) for what, x in zip(_INPUTS, given, strict=False) if x is not None}
    found = _Call(inputs, attributes, place).results()
    return [compute() if name else None for name, compute in zip(node.output, found, strict=False)]


def _of_model(model: ModelProto, place: _Place) -> _Compute:
    """Return the function that computes a model: Attention on the device, all else by onnx's reference evaluator."""
    try:
        evaluator = _evaluator(model, place)
    except (NotImplementedError, RuntimeError, KeyError) as error:
        message = f"model has a node that onnx.reference does not run: {error}"
        raise UnsupportedError(message) from error

    def compute(values: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(values)), strict=True))

    return compute


def _evaluator(model: ModelProto, place: _Place | None) -> ReferenceEvaluator:
    """Return the evaluator of a model, of its functions and of its subgraphs, with our Attention in all of them."""
    operator = _operator(place)

    class Evaluator(ReferenceEvaluator):
        def __init__(self, proto: Any, *, new_ops: Any = None, **options: Any) -> None:
            del new_ops  # those of the graph around it, or none in a function
            super().__init__(proto, new_ops=[operator], **options)

    return Evaluator(model)


def _operator(place: _Place | None) -> type[OpRun]:
    """Return the class with which the evaluator runs Attention nodes; without a place it only says that it could."""

    class Attention(OpRun):  # the name is that of the operator
        op_domain = ""

        def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
            assert place is not None  # noqa: S101 - nobody runs it
            known = _Attributes.of({name: x for name, x in attributes.items() if x is not None})
            found = _results(self.onnx_node, inputs, known, place)
            return tuple(np.zeros(0, np.float32) if x is None else x for x in found)  # what has no name is not used

    return Attention


def _check_node(node: NodeProto, opset: int) -> None:
    """Raise if a node is not a supported Attention."""
    if node.op_type != "Attention" or node.domain not in {"", "ai.onnx"}:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        message = f"the node is of operator {name}, not of Attention"
        raise UnsupportedError(message)
    since = onnx.defs.get_schema("Attention", opset, "").since_version if opset >= _OPSETS[0] else opset
    if since not in _OPSETS:
        message = f"opset is {opset}; Attention is supported in opsets {', '.join(map(str, _OPSETS))}"
        raise UnsupportedError(message)


class _Attributes(NamedTuple):
    """Attributes of a node."""

    is_causal: bool
    scale: float | None
    softcap: float
    heads: tuple[int | None, int | None]  # of q, of k and v
    window: tuple[int | None, int | None]
    stage: Stage

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "_Attributes":
        """Return the attributes of a node after checking their values."""
        sides = []
        for name in ("left_window_size", "right_window_size"):
            size = given.get(name, -1)
            if size < -1:
                message = f"{name} is {size}, not -1 or a number of keys"
                raise InvalidArgumentError(message)
            sides.append(None if size == -1 else size)
        mode = given.get("qk_matmul_output_mode", 0)
        if not 0 <= mode < len(STAGES):
            message = f"qk_matmul_output_mode is {mode}, not one of 0 to {len(STAGES) - 1}"
            raise InvalidArgumentError(message)
        kind = given.get("softmax_precision", TensorProto.FLOAT)
        if kind not in _SOFTMAX:
            message = f"softmax_precision is {kind}, not one of {', '.join(map(str, _SOFTMAX))}"
            raise InvalidArgumentError(message)
        softcap = float(given.get("softcap", 0))
        return cls(
            bool(given.get("is_causal", 0)),
            given.get("scale"),
            max(softcap, 0.0),  # the default scale of the ONNX reference
            (given.get("q_num_heads"), given.get("kv_num_heads")),
            (sides[0], sides[1]),
            STAGES[mode],
        )


def _device_name(device: Any) -> str:
    """Return the pysm120 name of an ONNX device."""
    if not isinstance(device, str):
        message = f"device is {device!r}, not a str such as 'CUDA', 'CUDA:1' or 'VIRTUAL'"
        raise TypeError(message)
    kind, colon, ordinal = device.lower().partition(":")
    return ("virtual" if kind == "cpu" else kind) + colon + ordinal


def _device(device: "str | Device | None") -> Device:
    return as_device(_device_name(device) if isinstance(device, str) else device)


def _check_precision(precision: Any) -> str | None:
    if precision is not None and (not isinstance(precision, str) or precision not in _DTYPES):
        message = f"precision is {precision!r}, not one of {', '.join(map(repr, _DTYPES))}"
        raise InvalidArgumentError(message)
    return None if precision is None else str(precision)


# ---- a call ---------------------------------------------------------------------


def _as_ndarray(x: Any, what: str) -> Ndarray:
    if not isinstance(x, np.ndarray):
        message = f"{what} is a {type(x).__name__}, not an ndarray"
        raise TypeError(message)
    return x


class _Call:
    """One evaluation of a node; tensors are [batch, heads, rows, head size]."""

    def __init__(self, given: Mapping[str, Ndarray], attributes: _Attributes, place: _Place) -> None:
        missing = [name for name in _INPUTS[:_REQUIRED] if name not in given]
        if missing:
            message = f"{missing[0]} is not given"
            raise InvalidArgumentError(message)
        self.attributes, self.place = attributes, place
        q, k, v = (given[name] for name in _INPUTS[:_REQUIRED])
        self.dtype, self.rank = q.dtype, q.ndim
        for name, x in (("Q", q), ("K", k), ("V", v)):
            if x.dtype.name not in _PRECISION:
                message = f"{name} has dtype {x.dtype}, not float64, float32, float16 or bfloat16"
                raise TypeError(message)
            if x.ndim not in _RANKS or x.ndim != q.ndim:
                message = f"{name} has shape {x.shape}, but Q, K and V must all have 4 dimensions, or all 3"
                raise InvalidArgumentError(message)
        self.q = _by_heads(q, attributes.heads[0], "Q", "q_num_heads")
        self.k = _by_heads(k, attributes.heads[1], "K", "kv_num_heads")
        self.v = _by_heads(v, attributes.heads[1], "V", "kv_num_heads")
        self._check_shapes()
        self.past = self._past(given)
        self.lengths = self._lengths(given)
        self.keys = self.k.shape[2] + (0 if self.past is None else self.past[0].shape[2])
        self.mask = self._mask(given)

    # ---- inputs ----

    def _check_shapes(self) -> None:
        """Raise if the shapes of Q, K and V do not fit each other."""
        batch, heads, _, head_dim = self.q.shape
        for what, x, wanted in (
            ("K", self.k, (batch, self.k.shape[1], self.k.shape[2], head_dim)),
            ("V", self.v, (batch, self.k.shape[1], self.k.shape[2], self.v.shape[3])),
        ):
            if x.shape != wanted:
                message = f"{what} has [batch, heads, rows, head size] = {list(x.shape)}, not {list(wanted)}"
                raise InvalidArgumentError(message)
        if head_dim == 0:
            message = "Q has head size 0, but it must be at least 1"
            raise InvalidArgumentError(message)
        if self.k.shape[1] == 0 or heads % self.k.shape[1]:
            message = f"Q has {heads} heads, not a multiple of the {self.k.shape[1]} of K and V"
            raise InvalidArgumentError(message)

    def _past(self, given: Mapping[str, Ndarray]) -> tuple[Ndarray, Ndarray] | None:
        """Return the keys and values before those of K and V."""
        if ("past_key" in given) != ("past_value" in given):
            message = (
                f"only {'past_key' if 'past_key' in given else 'past_value'} is given: give both halves of the past"
            )
            raise InvalidArgumentError(message)
        if "past_key" not in given:
            return None
        if "nonpad_kv_seqlen" in given:
            message = "nonpad_kv_seqlen and past_key are given, but only one of them is allowed"
            raise InvalidArgumentError(message)
        for what, x in (("past_key", self.k), ("past_value", self.v)):
            old = given[what]
            wanted = (*x.shape[:2], given["past_key"].shape[2] if old.ndim == _MASK_RANK else 0, x.shape[3])
            if old.shape != wanted:
                message = f"{what} has shape {old.shape}, not (batch, heads, rows, head size) as {x.shape} of K or V"
                raise InvalidArgumentError(message)
        return given["past_key"], given["past_value"]

    def _lengths(self, given: Mapping[str, Ndarray]) -> npt.NDArray[np.int32] | None:
        """Return the number of valid keys of each batch."""
        if "nonpad_kv_seqlen" not in given:
            return None
        x, rows = given["nonpad_kv_seqlen"], self.k.shape[2]
        if x.dtype != np.int64 or x.shape != self.q.shape[:1]:
            message = f"nonpad_kv_seqlen has dtype {x.dtype} and shape {x.shape}, not int64 and {self.q.shape[:1]}"
            raise InvalidArgumentError(message)
        if x.size and not 0 <= x.min() <= x.max() <= rows:
            message = f"nonpad_kv_seqlen is {x}, but K has {rows} rows"
            raise InvalidArgumentError(message)
        return x.astype(np.int32)

    def _mask(self, given: Mapping[str, Ndarray]) -> Ndarray | None:
        """Return the mask for all keys, bool or float32: keys beyond the end of its rows are hidden."""
        if "attn_mask" not in given:
            return None
        mask, wanted = given["attn_mask"], (*self.q.shape[:3], self.keys)
        if mask.dtype.kind not in "biuf" and mask.dtype.name not in _PRECISION:
            message = f"attn_mask has dtype {mask.dtype}, not bool or a numeric dtype"
            raise TypeError(message)
        if mask.dtype != np.bool_:
            with np.errstate(invalid="ignore"):
                mask = mask_in_float32(mask.astype(np.float64))
        if mask.ndim and mask.shape[-1] < self.keys:
            hidden = False if mask.dtype == np.bool_ else -np.inf
            lacking = [(0, 0)] * (mask.ndim - 1) + [(0, self.keys - mask.shape[-1])]
            mask = np.pad(mask, lacking, constant_values=hidden)
        lead = (1,) * (_MASK_RANK - mask.ndim)
        if mask.ndim not in range(1, _MASK_RANK + 1) or any(
            n not in {1, m} for n, m in zip(lead + mask.shape, wanted, strict=True)
        ):
            message = f"attn_mask has shape {given['attn_mask'].shape}, which does not broadcast to {wanted}"
            raise InvalidArgumentError(message)
        return mask

    # ---- outputs ----

    def results(self) -> tuple[Any, ...]:
        """Return a function for each output of the node that computes it."""
        return self._attend, lambda: self._present(0), lambda: self._present(1), self._scores

    @property
    def _diagonals(self) -> npt.NDArray[np.int32] | None:
        """The key on the diagonal of row 0 of each batch; 0 without a cache."""
        if self.past is not None:
            return np.full(len(self.q), self.past[0].shape[2], np.int32)
        return None if self.lengths is None else self.lengths - np.int32(self.q.shape[2])

    @property
    def _scale(self) -> float:
        scale = self.attributes.scale
        return float(self.q.shape[3]) ** -0.5 if scale is None else float(scale)

    @property
    def _precision(self) -> str:
        return self.place.precision or _PRECISION[self.dtype.name]

    def _narrow(self, x: Ndarray, what: str, precision: str) -> Ndarray:
        """Round to the dtype that a precision of the products needs."""
        dtype = _DTYPES[precision]
        if dtype is None:
            return x.astype(np.float32) if x.dtype == np.float64 else x
        with np.errstate(over="ignore"):
            y = x.astype(dtype)
        lost = np.isfinite(x) & ~np.isfinite(y)
        if lost.any():
            message = f"{what} holds {x[lost][0]}, beyond {dtype}: prepare the model with precision='bf16'"
            raise InvalidArgumentError(message)
        return y

    def _attend(self) -> Ndarray:
        """Compute Y."""
        q, k, v, precision = self.q, self.k, self.v, self._precision
        shape = (*q.shape[:3], v.shape[3])
        wide = self.dtype.name in {"float32", "float64"}
        y: Ndarray = np.zeros(shape, np.float32 if wide else self.dtype)
        if y.size and self.keys:
            past = self.past
            if past is not None and k.shape[2] == 0:
                (k, v), past = past, None
            if past is not None and past[0].shape[2] == 0:
                past = None
            attention(
                *(self._narrow(x, what, precision) for x, what in ((q, "Q"), (k, "K"), (v, "V"))),
                causal=self.attributes.is_causal,
                causal_align="top-left",
                window=self.attributes.window,
                softcap=self.attributes.softcap,
                mask=self.mask,
                kv_lengths=self.lengths,
                diagonals=self._diagonals,
                past_k=None if past is None else self._narrow(past[0], "past_key", precision),
                past_v=None if past is None else self._narrow(past[1], "past_value", precision),
                scale=self._scale,
                precision=precision,
                layout="BHSD",
                out=y,
                device=self.place.device,
            )
        y = y.astype(self.dtype, copy=False)
        if self.rank == _RANKS[0]:
            return np.ascontiguousarray(y.transpose(0, 2, 1, 3)).reshape(shape[0], shape[2], -1)
        return y

    def _present(self, which: int) -> Ndarray:
        """Return the past followed by K (0) or V (1)."""
        x = (self.k, self.v)[which]
        return np.ascontiguousarray(x if self.past is None else np.concatenate([self.past[which], x], 2))

    def _scores(self) -> Ndarray:
        """Compute the QK output."""
        shape = (*self.q.shape[:3], self.keys)
        if 0 in shape:
            return np.zeros(shape, self.dtype)
        left, right = self.attributes.window
        rules = Rules(
            self._scale,
            self.attributes.softcap,
            (left, 0 if self.attributes.is_causal else right),
            self.mask,
            self.lengths,
            self._diagonals,
        )
        precision = self._precision if _DTYPES[self._precision] is not None else _PRECISION[self.dtype.name]
        q, k = self._narrow(self.q, "Q", precision), self._narrow(self._present(0), "K", precision)
        return scores(q, k, rules, self.attributes.stage, self.place.device).astype(self.dtype)


def _by_heads(x: Ndarray, heads: int | None, what: str, attribute: str) -> Ndarray:
    """Return the view [batch, heads, rows, head size] of an input."""
    if x.ndim == _RANKS[1]:
        if heads is not None and heads != x.shape[1]:
            message = f"{attribute} is {heads}, but {what} has {x.shape[1]} heads"
            raise InvalidArgumentError(message)
        return x
    if heads is None or heads < 1 or x.shape[2] % heads:
        message = f"{attribute} is {heads}, but it must divide the last dimension of {what}, {x.shape[2]}"
        raise InvalidArgumentError(message)
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)
