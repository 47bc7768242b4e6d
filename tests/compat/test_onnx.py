"""pysm120.compat.onnx runs every Attention case that onnx brings, and the kernel of its fourth output is right.

A case's own results are met within TOLERANCE. Those of float32 were computed in float32, but the products here are of
16 bits: so besides, by FlashAttention's rule, the error against float64 is at most twice that of onnx's reference in 16
bits, plus one rounding of the largest element.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from reference import Array, relative_error

import pysm120
from pysm120.compat import onnx as backend
from pysm120.ops.scores import STAGES, Rules, Stage, scores
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

BF16 = np.dtype(ml_dtypes.bfloat16)
# Of elements around 1, whatever a case's dtype: what Q, K, V and P of 11 bits cause, and of 8.
TOLERANCE = {"float32": 1e-3, "float16": 1e-3, "bfloat16": 8e-3}
# Half the distance from 1 to its neighbour.
ROUNDING = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}


class Case(NamedTuple):
    """A case of onnx."""

    name: str
    model: ModelProto
    data: list[tuple[list[Array], list[Array]]]


def collect() -> list[Case]:
    """Return the cases of onnx whose model is one Attention."""
    from onnx.backend.test.case import node

    # As collect_testcases("Attention") does, which imports the cases of every operator and runs them: 8 seconds.
    vars(node)["_TargetOpType"] = "Attention"
    importlib.import_module("onnx.backend.test.case.node.attention")
    found = []
    for case in node._NodeTestCases:
        if case.model is not None and [node.op_type for node in case.model.graph.node] == ["Attention"]:
            data: Any = case.data_sets
            found.append(Case(case.name.removeprefix("test_attention_"), case.model, data))
    return found


CASES = collect()


def evaluate(model: ModelProto, inputs: list[Array], dtype: Any) -> list[Array]:
    """Outputs of onnx's reference, where everything that is not an integer has a dtype."""
    given = [x.astype(dtype) if x.dtype.kind not in "bi" else x for x in inputs]
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model).run(
            None, dict(zip((x.name for x in model.graph.input), given, strict=True))
        )
    return [np.asarray(x, np.float64) for x in results]


def distance(got: Array, want: Array) -> float:
    """Largest difference; infinities and NaN must be where they are wanted."""
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    with np.errstate(invalid="ignore"):
        return float(np.where(got == want, 0, np.abs(got - want)).max(initial=0))


def test_the_suite_is_whole() -> None:
    """All of what onnx has, and nothing twice."""
    assert len({case.name for case in CASES}) == len(CASES) == 93
    assert sum(len(case.model.graph.node[0].output) == 4 for case in CASES) == 18


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_of_onnx(device_name: str, case: Case) -> None:
    """Every output that the case wants."""
    assert case.data
    for inputs, wanted in case.data:
        results = backend.run_model(case.model, inputs, device_name.upper())
        kernel = BF16 if inputs[0].dtype == BF16 else np.float16
        exact = evaluate(case.model, inputs, np.float64)
        plain = evaluate(case.model, inputs, kernel)
        for got, want, true, low in zip(results, wanted, exact, plain, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            largest = max(1.0, np.abs(np.where(np.isfinite(true), true, 0)).max(initial=0))
            assert distance(got, want) <= TOLERANCE[got.dtype.name] * largest
            assert distance(got, true) <= 2 * distance(low, true) + ROUNDING[got.dtype.name] * largest


# ---- the scores -----------------------------------------------------------------


def exact_scores(q: Array, k: Array, rules: Rules, stage: Stage) -> Array:
    """Scores in float64, from the definition."""
    q, k = q.astype(np.float64), k.astype(np.float64)
    s: Array = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, q.shape[1] // k.shape[1], 1)) * np.float64(rules.scale)
    if stage == "product":
        return s
    if rules.softcap:
        s = rules.softcap * np.tanh(s / rules.softcap)
    if stage == "softcap":
        return s
    b, _, rows, keys = s.shape
    start = np.zeros(b) if rules.diagonals is None else rules.diagonals
    place = np.arange(rows)[:, None] + start[:, None, None, None]
    left, right = (np.inf if side is None else side for side in rules.window)
    j = np.arange(keys)
    seen = (j >= place - left) & (j <= place + right)
    if rules.kv_lengths is not None:
        seen = seen & (j < rules.kv_lengths[:, None, None, None])
    if rules.mask is not None and rules.mask.dtype == np.bool_:
        seen = seen & rules.mask
    elif rules.mask is not None:
        s = s + rules.mask.astype(np.float64)
    s = np.where(seen, s, -np.inf)
    if stage == "mask":
        return s
    highest = s.max(-1, keepdims=True)
    p: Array = np.exp(s - np.where(np.isneginf(highest), 0, highest))
    p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
    return p


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("trial", range(4))
def test_scores(device: pysm120.Device, rng: np.random.Generator, trial: int, kind: str, stage: Stage) -> None:
    """Each stage, rows of more and of fewer keys than a warp has lanes, every rule on and off."""
    batch, kv_heads, group, rows, keys, d = (int(rng.integers(1, most)) for most in (4, 3, 4, 9, 150, 40))
    heads = kv_heads * group
    dtype = BF16 if kind == "bfloat16" else np.dtype(np.float16)
    q = rng.standard_normal((batch, heads, rows, d)).astype(dtype)
    k = rng.standard_normal((batch, keys, kv_heads, d)).astype(dtype).transpose(0, 2, 1, 3)
    shape = tuple(n if rng.random() < 0.6 else 1 for n in (batch, heads, rows, keys))[int(rng.integers(3)) :]
    mask = [None, rng.standard_normal(shape), rng.random(shape) < 0.8, np.where(rng.random(shape) < 0.5, -np.inf, 1.0)]
    rules = Rules(
        float(rng.normal()),
        float(rng.choice([0.0, 2.5])),
        ((None, 0, 5, 60)[int(rng.integers(4))], (None, 0, 5, 60)[int(rng.integers(4))]),
        mask[trial],
        rng.integers(0, keys + 1, batch, np.int32) if rng.random() < 0.5 else None,
        rng.integers(-5, 20, batch, np.int32) if rng.random() < 0.5 else None,
    )
    got, want = scores(q, k, rules, stage, device), exact_scores(q, k, rules, stage)
    seen = np.isfinite(want)
    assert got.dtype == np.float32
    assert np.array_equal(np.isneginf(got), ~seen)
    assert np.abs(got[seen] - want[seen]).max(initial=0) <= 1e-5 * max(1, np.abs(want[seen]).max(initial=0))


def test_scores_of_what_is_hidden_may_be_anything(device: pysm120.Device) -> None:
    """A key that a mask hides may be NaN; one that is seen spreads to its row alone."""
    q = np.ones((1, 1, 2, 8), np.float16)
    k = np.ones((1, 1, 40, 8), np.float16)
    k[0, 0, 35] = np.nan
    mask = np.zeros((2, 40), np.float32)
    mask[0, 35] = -np.inf
    got = scores(q, k, Rules(1.0, mask=mask), "softmax", device)[0, 0]
    np.testing.assert_allclose(got[0], np.where(np.arange(40) == 35, 0, 1 / 39), rtol=1e-5)
    assert np.isnan(got[1]).all()


# ---- the backend ----------------------------------------------------------------

ELEMENTS = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8,
    "int64": TensorProto.INT64,
}
NAMES = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")


def model_of(
    inputs: dict[str, Array], outputs: tuple[str, ...] = ("Y",), opset: int = 25, **attributes: Any
) -> ModelProto:
    """Return a model of one Attention of such inputs."""
    last = max(i for i, name in enumerate(NAMES) if name in inputs)
    node = helper.make_node(
        "Attention", [name if name in inputs else "" for name in NAMES[: last + 1]], list(outputs), **attributes
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, ELEMENTS[x.dtype.name], x.shape) for name, x in inputs.items()],
        [
            helper.make_tensor_value_info(name, ELEMENTS[inputs["Q"].dtype.name], [None] * inputs["Q"].ndim)
            for name in outputs
            if name
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.fixture
def small(rng: np.random.Generator) -> dict[str, Array]:
    """Q, K and V of some shape."""
    shapes = {"Q": (2, 4, 5, 8), "K": (2, 2, 7, 8), "V": (2, 2, 7, 6)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def check(model: ModelProto, inputs: dict[str, Array], device_name: str, most: float = 2e-3, **options: Any) -> None:
    """Compare a run with onnx's reference in float64."""
    results = backend.prepare(model, device_name, **options).run(inputs)
    for got, want in zip(results, evaluate(model, list(inputs.values()), np.float64), strict=True):
        assert got.shape == want.shape
        assert relative_error(got, want) <= most


def test_inputs_by_order_by_name_and_as_initializers(device_name: str, small: dict[str, Array]) -> None:
    """The same result three times; outputs by index and by name."""
    model = model_of(small)
    first = backend.run_model(model, list(small.values()), device_name)
    by_name: Any = backend.prepare(model, device_name).run(dict(reversed(small.items())))
    assert np.array_equal(first[0], by_name["Y"])
    model.graph.initializer.append(numpy_helper.from_array(small["K"], "K"))
    prepared = backend.prepare(model, device_name)
    assert prepared.inputs == ("Q", "V")
    assert np.array_equal(first[0], prepared.run([small["Q"], small["V"]])[0])
    node = model.graph.node[0]
    assert np.array_equal(first[0], backend.run_node(node, tuple(small.values()), device_name, opset_version=23)[0])


def test_a_device_may_be_given_itself(device: pysm120.Device, small: dict[str, Array]) -> None:
    """Not only its name."""
    assert backend.run_model(model_of(small), list(small.values()), device)[0].shape == (2, 4, 5, 6)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("precision", "most"), [("f16", 1e-3), ("bf16", 8e-3)])
def test_precision(device_name: str, small: dict[str, Array], dtype: str, precision: str, most: float) -> None:
    """Of the products, whatever the dtype of the model; the result has that dtype."""
    inputs = {name: x.astype(dtype) for name, x in small.items()}
    model = model_of(inputs)
    assert backend.run_model(model, list(inputs.values()), device_name, precision=precision)[0].dtype == dtype
    check(model, inputs, device_name, most, precision=precision)
    if precision == "bf16":
        assert relative_error(
            *(backend.run_model(model, list(inputs.values()), device_name, precision=p)[0] for p in ("f16", "bf16"))
        )


def test_what_float16_does_not_hold_is_refused(device_name: str, small: dict[str, Array]) -> None:
    """And the message says which precision holds it."""
    small["V"][1, 1, 2, 3] = 1e6
    prepared = backend.prepare(model_of(small), device_name)
    with pytest.raises(InvalidArgumentError, match=r"V holds 1000000\.0, beyond float16: .* precision='bf16'"):
        prepared.run(small)
    check(model_of(small), small, device_name, 8e-3, precision="bf16")


@pytest.mark.parametrize("mask", ["int8", "lowest float64", "short", "short bool", "one column"])
def test_masks(device_name: str, rng: np.random.Generator, small: dict[str, Array], mask: str) -> None:
    """Of integers, of what is beyond float32, and with fewer columns than there are keys."""
    lowest = np.zeros((5, 7))
    lowest[:, 2:] = np.finfo(np.float64).min
    lowest[3] = np.finfo(np.float64).min  # nothing else: all keys alike
    masks: dict[str, Array] = {
        "int8": rng.integers(-3, 4, (5, 7)).astype(np.int8),
        "lowest float64": lowest,
        "short": rng.standard_normal((4, 5, 3)),
        "short bool": rng.random((5, 3)) < 0.6,
        "one column": rng.standard_normal((5, 1)),
    }
    given = masks[mask]
    inputs = {name: x.astype(np.float64) for name, x in small.items()} | {"attn_mask": given}
    check(model_of(inputs), inputs, device_name)


@pytest.mark.parametrize(
    "rows", [{"Q": 0}, {"past": 0}, {"kv": 0, "past": 3}, {"kv": 0, "past": 0}, {"past": 9}], ids=str
)
def test_nothing_is_a_number_of_rows_too(device_name: str, rng: np.random.Generator, rows: dict[str, int]) -> None:
    """No query, no past, no new key, no key at all."""
    kv, past = rows.get("kv", 5), rows.get("past", 2)
    shapes = {"Q": (1, 2, rows.get("Q", 3), 8), "K": (1, 1, kv, 8), "V": (1, 1, kv, 16)}
    shapes |= {"past_key": (1, 1, past, 8), "past_value": (1, 1, past, 16)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    model = model_of(inputs, ("Y", "present_key", "present_value", "qk"), is_causal=1, qk_matmul_output_mode=3)
    if kv + past and shapes["Q"][2]:
        check(model, inputs, device_name)
        return
    y, key, value, qk = backend.run_model(model, list(inputs.values()), device_name)
    assert (y.shape, key.shape, value.shape) == ((*shapes["Q"][:3], 16), (1, 1, kv + past, 8), (1, 1, kv + past, 16))
    assert qk.shape == (*shapes["Q"][:3], kv + past)
    assert not y.any()


def test_devices() -> None:
    """onnx says CPU and CUDA; the virtual device is on the CPU."""
    assert backend.supports_device("CPU")
    assert backend.supports_device("VIRTUAL")
    assert not backend.supports_device("VIRTUAL:7")
    assert not backend.supports_device("CUDA:99")
    assert not backend.supports_device("TPU")
    assert not backend.supports_device("CPU:one")
    assert not backend.supports_device("VIRTUAL:-1")


def test_models_that_are_not_supported(small: dict[str, Array]) -> None:
    """is_compatible says no, prepare says why."""
    model = model_of(small)
    assert backend.is_compatible(model)
    two, none, old, unknown = ModelProto(), ModelProto(), ModelProto(), ModelProto()
    for copy in (two, none, old, unknown):
        copy.CopyFrom(model)
    two.graph.node.append(helper.make_node("Relu", ["Y"], ["Z"]))
    assert backend.is_compatible(two)
    none.graph.node[0].op_type = "Relu"
    old.opset_import[0].version = 22
    unknown.graph.node.append(helper.make_node("Strange", ["Y"], ["Z"], domain="test"))
    unknown.opset_import.append(helper.make_opsetid("test", 1))
    for wrong, words in (
        (none, "model has no Attention node among its 1 nodes"),
        (old, "opset is 22; Attention is supported in opsets 23, 24, 25"),
        (unknown, "model has a node that onnx.reference does not run: .*Strange"),
    ):
        assert not backend.is_compatible(wrong)
        with pytest.raises(UnsupportedError, match=words):
            backend.prepare(wrong)
    with pytest.raises(onnx.checker.ValidationError, match="Unrecognized attribute"):
        backend.prepare(model_of(small, left_window_size=3, opset=24))
    with pytest.raises(TypeError, match=r"model is a str, not an onnx\.ModelProto: load"):
        backend.prepare("model.onnx")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="prepare has no argument 'threads'"):
        backend.prepare(model, threads=3)
    with pytest.raises(InvalidArgumentError, match="precision is 'fp16', not one of 'f16', 'bf16', 'mxfp8'"):
        backend.prepare(model, precision="fp16")
    with pytest.raises(InvalidArgumentError, match=r"precision is \[\], not one of"):
        backend.prepare(model, precision=[])  # type: ignore[arg-type]


def ones(*shape: int, dtype: Any = np.float32) -> Array:
    """Return an array of ones."""
    return np.ones(shape, dtype)


# What is given beside or instead of `small`, attributes, and the message.
WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"Q": ones(2, 4, 5, 8, dtype=np.int8)}, {}, "Q has dtype int8, not float64, float32, float16 or bfloat16"),
    (
        {"Q": ones(2, 5, 32)},
        {"q_num_heads": 4, "kv_num_heads": 2},
        "K has shape (2, 2, 7, 8), but Q, K and V must all have",
    ),
    ({"K": ones(2, 2, 7, 16)}, {}, "K has [batch, heads, rows, head size] = [2, 2, 7, 16], not [2, 2, 7, 8]"),
    ({"V": ones(2, 2, 6, 8)}, {}, "V has [batch, heads, rows, head size] = [2, 2, 6, 8], not [2, 2, 7, 8]"),
    ({"Q": ones(2, 3, 5, 8)}, {}, "Q has 3 heads, not a multiple of the 2 of K and V"),
    ({"attn_mask": ones(5, 8)}, {}, "attn_mask has shape (5, 8), which does not broadcast to (2, 4, 5, 7)"),
    ({"attn_mask": ones()}, {}, "attn_mask has shape (), which does not broadcast"),
    ({"Q": ones(2, 4, 5, 0), "K": ones(2, 2, 7, 0)}, {}, "Q has head size 0, but it must be at least 1"),
    ({"past_key": ones(2, 2, 3, 8)}, {}, "only past_key is given: give both halves of the past"),
    ({"past_key": ones(2, 2, 3, 8), "past_value": ones(2, 2, 4, 6)}, {}, "past_value has shape (2, 2, 4, 6), not"),
    ({"past_key": ones(2, 3, 8), "past_value": ones(2, 3, 6)}, {}, "past_key has shape (2, 3, 8), not"),
    ({"nonpad_kv_seqlen": np.array([3, 8])}, {}, "nonpad_kv_seqlen is [3 8], but K has 7 rows"),
    ({"nonpad_kv_seqlen": np.array([3])}, {}, "nonpad_kv_seqlen has dtype int64 and shape (1,), not int64 and (2,)"),
    ({}, {"left_window_size": -2}, "left_window_size is -2, not -1 or a number of keys"),
    ({}, {"qk_matmul_output_mode": 4}, "qk_matmul_output_mode is 4, not one of 0 to 3"),
    ({}, {"softmax_precision": 7}, "softmax_precision is 7, not one of 1, 10, 11, 16"),
    ({}, {"q_num_heads": 2}, "q_num_heads is 2, but Q has 4 heads"),
    ({"Q": [1.0]}, {}, "Q is a list, not an ndarray"),
]


@pytest.mark.parametrize(("given", "attributes", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_wrong_inputs_are_named(
    device_name: str, small: dict[str, Array], given: dict[str, Any], attributes: dict[str, Any], words: str
) -> None:
    """One sentence with the name that onnx has for it."""
    inputs = {**small, **given}
    shown = {name: x if isinstance(x, np.ndarray) else np.zeros(1, np.float32) for name, x in inputs.items()}
    node = model_of(shown, **attributes).graph.node[0]
    with pytest.raises((InvalidArgumentError, TypeError)) as caught:
        backend.run_node(node, list(inputs.values()), device_name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mask_of_words(device_name: str, small: dict[str, Array]) -> None:
    prepared = backend.prepare(model_of({**small, "attn_mask": ones(5, 7)}), device_name)
    with pytest.raises(TypeError, match="attn_mask has dtype <U1, not bool or a numeric dtype"):
        prepared.run([*small.values(), np.full((5, 7), "a")])


def test_wrong_calls_are_named(device_name: str, small: dict[str, Array]) -> None:
    """Too few arrays, arrays of no name, no arrays."""
    prepared = backend.prepare(model_of(small), device_name)
    for wrong, words in (
        ([small["Q"]], "inputs has 1 arrays, but the model takes 3: Q, K, V"),
        ({"Q": small["Q"], "V": small["V"]}, "inputs lacks K"),
        ({**small, "W": small["Q"]}, "inputs has 'W', but the model takes Q, K, V"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            prepared.run(wrong)
    with pytest.raises(TypeError, match="inputs is a int, not a sequence or a mapping of ndarrays"):
        prepared.run(3)
    with pytest.raises(TypeError, match="device is 3, not a str such as 'CUDA'"):
        backend.supports_device(3)  # type: ignore[arg-type]


# ---- whole models ---------------------------------------------------------------

WIDTH, HEADS, WORDS, ROWS = 64, 4, 50, 24
# The error of the last hidden states, relative to the reference in float32.
MODEL_ERROR = {"f16": 3e-4, "bf16": 2e-3, "mxfp8_f16": 2.5e-2, "mxfp8": 3e-2, "nvfp4": 0.11}


class Graph:
    """The nodes and the weights of a model of two layers with random weights."""

    def __init__(self, rng: np.random.Generator, *, causal: bool) -> None:
        self.rng, self.causal = rng, causal
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """Add a matrix that keeps the variance of rows, or a table, or a vector of ones."""
        name = f"weight_{len(self.weights)}"
        x = self.rng.standard_normal(shape) / shape[0] ** 0.5 if len(shape) > 1 else np.ones(shape)
        self.weights.append(numpy_helper.from_array(x.astype(np.float32), name))
        return name

    def integers(self, *values: int) -> str:
        """Add a vector of integers."""
        name = f"integers_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def linear(self, x: str, width: int) -> str:
        return self.add("MatMul", x, self.weight(WIDTH if width != WIDTH or "Gelu" not in x else 4 * WIDTH, width))

    def heads_first(self, x: str) -> str:
        return self.add("Transpose", self.add("Reshape", x, self.integers(0, 0, HEADS, -1)), perm=[0, 2, 1, 3])

    def attend(self, x: str) -> str:
        """Attention as GPT does it, of three dimensions and causal, or as BERT, of four and with a mask."""
        q, k, v = (self.linear(x, WIDTH) for _ in "qkv")
        if self.causal:
            return self.add("Attention", q, k, v, is_causal=1, q_num_heads=HEADS, kv_num_heads=HEADS)
        y = self.add("Attention", *(self.heads_first(y) for y in (q, k, v)), "mask", scale=0.3)
        return self.add("Reshape", self.add("Transpose", y, perm=[0, 2, 1, 3]), self.integers(0, 0, -1))

    def norm(self, x: str) -> str:
        return self.add("LayerNormalization", x, self.weight(WIDTH))

    def model(self) -> ModelProto:
        """Return the model: tokens in, the hidden states of the last layer out."""
        x = self.norm(self.add("Gather", self.weight(WORDS, WIDTH), "tokens"))
        for _ in range(2):
            x = self.add("Add", x, self.linear(self.attend(self.norm(x)), WIDTH))
            x = self.add("Add", x, self.linear(self.add("Gelu", self.linear(self.norm(x), 4 * WIDTH)), WIDTH))
        self.nodes.append(helper.make_node("Identity", [self.norm(x)], ["hidden"]))
        shapes: dict[str, tuple[int, tuple[int, ...]]] = {"tokens": (TensorProto.INT64, (2, ROWS))}
        if not self.causal:
            shapes["mask"] = (TensorProto.BOOL, (2, 1, 1, ROWS))
        graph = helper.make_graph(
            self.nodes,
            "transformer",
            [helper.make_tensor_value_info(name, *x) for name, x in shapes.items()],
            [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, (2, ROWS, WIDTH))],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def inputs_of(rng: np.random.Generator, *, causal: bool) -> dict[str, Array]:
    """Return tokens, and the mask of a padded batch."""
    given: dict[str, Array] = {"tokens": rng.integers(0, WORDS, (2, ROWS))}
    return given if causal else given | {"mask": (np.arange(ROWS) < np.array([[ROWS], [15]]))[:, None, None]}


@contextmanager
def counted() -> Iterator[list[str]]:
    """Collect the precisions of the calls of attention."""
    calls: list[str] = []

    def attention(*arrays: Any, **options: Any) -> Any:
        calls.append(options["precision"])
        return pysm120.attention(*arrays, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "attention", attention)
        yield calls


@pytest.mark.parametrize("precision", MODEL_ERROR)
@pytest.mark.parametrize("causal", [True, False], ids=["GPT", "BERT"])
def test_whole_models(device_name: str, rng: np.random.Generator, precision: str, *, causal: bool) -> None:
    """Both Attention nodes are ours, all else is the reference; the error is the mean of models with random weights."""
    errors = []
    for _ in range(4):
        model = Graph(rng, causal=causal).model()
        given = inputs_of(rng, causal=causal)
        reference: Any = ReferenceEvaluator(model)
        (best,) = reference.run(None, given)
        prepared: Any = backend.prepare(model, device_name.upper(), precision=precision)
        with counted() as calls:
            found = prepared.run(given)
        assert calls == [precision] * 2
        assert found.hidden.dtype == np.float32
        errors.append(relative_error(found["hidden"], best))
        assert np.array_equal(prepared.run(list(given.values()))[0], found[0])
        assert np.array_equal(backend.run_model(model, given, device_name, precision=precision)[0], found[0])
    assert 0.25 * MODEL_ERROR[precision] < np.mean(errors) <= MODEL_ERROR[precision]


def test_attention_in_functions_and_subgraphs(device_name: str, rng: np.random.Generator) -> None:
    """Attributes of a function go to its node, and a branch of an If takes values from outside; the past comes out."""
    x = {n: rng.standard_normal((1, 2, 6, 8)).astype(np.float32) for n in ("Q", "K", "V", "P")}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    for name, kind in (("is_causal", onnx.AttributeProto.INT), ("softcap", onnx.AttributeProto.FLOAT)):
        node.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=name, type=kind))
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("test", 1)]
    function = helper.make_function(
        "test", "Capped", ["q", "k", "v"], ["y"], [node], opsets[:1], attributes=["is_causal", "softcap"]
    )
    branch = helper.make_graph(
        [helper.make_node("Attention", ["f", "K", "V", "", "P", "P"], ["b", "", "present"])],
        "then",
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ("b", "present")],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["f"], ["c"]), helper.make_node("Identity", ["f"], ["d"])],
        "else",
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ("c", "d")],
    )
    nodes = [
        helper.make_node("Capped", ["Q", "K", "V"], ["f"], domain="test", is_causal=1, softcap=1.5),
        helper.make_node("If", ["which"], ["y", "value"], then_branch=branch, else_branch=other),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 2, 6, 8)) for name in x]
    inputs.append(helper.make_tensor_value_info("which", TensorProto.BOOL, ()))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ("y", "value")]
    model = helper.make_model(
        helper.make_graph(nodes, "functions", inputs, outputs),
        functions=[function],
        opset_imports=opsets,
        ir_version=10,
    )
    alone = ModelProto()  # Attention in a branch alone, of an opset without it
    alone.CopyFrom(model)
    del alone.functions[:]
    alone.graph.node[0].CopyFrom(helper.make_node("Identity", ["Q"], ["f"]))
    assert backend.is_compatible(alone)
    alone.opset_import[0].version = 22
    with pytest.raises(UnsupportedError, match="opset is 22"):
        backend.prepare(alone)
    assert backend.is_compatible(model)
    for which in (True, False):
        given = {**x, "which": np.array(which)}
        with counted() as calls:
            got = backend.run_model(model, given, device_name)
        assert len(calls) == (2 if which else 1)
        best: Any = ReferenceEvaluator(model).run(None, given)
        for ours, theirs in zip(got, best, strict=True):
            assert ours.shape == theirs.shape
            assert relative_error(ours, theirs) < 2e-3
