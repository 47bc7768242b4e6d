"""Attention against onnx's reference evaluator, on problems that hypothesis makes up.

By FlashAttention's rule: the error against the reference in float64 is at most twice that of the same reference in the
16 bits of the kernel, plus one rounding of the largest element. `--seed` repeats a run.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from reference import Array

import pysm120
from pysm120.compat import onnx as backend

NAMES = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
KERNEL: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8}


def repeated(test: Callable[..., None], config: pytest.Config, examples: int = 200, **strategies: Any) -> None:
    """Run a test on what hypothesis draws, the same for the same --seed."""
    bounded = settings(max_examples=examples, deadline=None, database=None)
    seed(config.option.seed)(bounded(given(**strategies)(test)))()


def reference(node: NodeProto, inputs: dict[str, Array], dtype: Any) -> list[Array]:
    """Outputs of onnx's evaluator, where all numbers but lengths have a dtype."""
    feeds = {
        name: x if x.dtype == np.bool_ or name == "nonpad_kv_seqlen" else x.astype(dtype) for name, x in inputs.items()
    }
    if "attn_mask" in feeds:  # of fewer rows than Q it is misread where a node is causal
        mask = np.atleast_2d(feeds["attn_mask"])
        rows = inputs["Q"].shape[-2]  # of a tensor of three or four dimensions
        feeds["attn_mask"] = np.broadcast_to(mask, (*mask.shape[:-2], rows, mask.shape[-1]))
    outputs = [name for name in node.output if name]
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in feeds],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=10)
    with np.errstate(all="ignore"):
        return [np.asarray(x, np.float64) for x in ReferenceEvaluator(model).run(outputs, feeds)]


def judge(got: Array, exact: Array, plain: Array, rounding: float, cancelled: float = 0) -> None:
    """Compare by FlashAttention's rule; infinities are to be equal; cancelled: what rounding leaves of equal terms."""
    got = got.astype(np.float64)
    assert got.shape == exact.shape
    largest = np.abs(np.where(np.isfinite(exact), exact, 0)).max(initial=0)
    with np.errstate(invalid="ignore"):
        ours, theirs = (np.where(x == exact, 0, np.abs(x - exact)).max(initial=0) for x in (got, plain))
    assert ours <= 2 * theirs + rounding * largest + cancelled


# ---- through the ONNX backend ---------------------------------------------------


class Problem(NamedTuple):
    """A node, the shapes of its inputs, and the seed of their values."""

    dtype: str
    batch: int
    kv_heads: int
    group: int
    q_rows: int
    kv_rows: int
    head_dim: int
    v_head_dim: int
    is_3d: bool
    cache: str  # "", "past" or "lengths"
    past: int
    mask: str  # "", "bool", "float" or "int"
    mask_axes: str  # those along which it does not repeat
    mask_lacks: int  # columns
    is_causal: bool
    window: tuple[int, int]
    softcap: float
    scale: float | None
    mode: int | None  # of the fourth output
    values: int


PROBLEMS = st.builds(
    Problem,
    dtype=st.sampled_from(["float32", "float16", "bfloat16", "float64"]),
    batch=st.integers(1, 2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    q_rows=st.integers(1, 40),
    kv_rows=st.integers(1, 100),
    head_dim=st.integers(1, 72),
    v_head_dim=st.integers(1, 72),
    is_3d=st.booleans(),
    cache=st.sampled_from(["", "", "past", "lengths"]),
    past=st.integers(1, 80),
    mask=st.sampled_from(["", "bool", "float", "int"]),
    mask_axes=st.sampled_from(["bhqk", "hqk", "qk", "bqk", "bk", "hk", "k"]),
    mask_lacks=st.sampled_from([0, 0, 1, 20]),
    is_causal=st.booleans(),
    window=st.tuples(st.sampled_from([-1, -1, 0, 3, 70]), st.sampled_from([-1, -1, 0, 5, 90])),
    softcap=st.sampled_from([0.0, 0.0, 1.5, 20.0]),
    scale=st.sampled_from([None, None, 0.05, 0.4]),
    mode=st.sampled_from([None, None, 1, 2, 3]),  # 0 is before the softcap in the schema, behind it in the evaluator
    values=st.integers(0, 2**32 - 1),
)


def mask_of(p: Problem, rng: np.random.Generator) -> Array:
    """A mask that hides some keys and perhaps whole rows."""
    keys = p.kv_rows + (p.past if p.cache == "past" else 0)
    keys = max(1, keys - p.mask_lacks)
    extents = dict(zip("bhqk", (p.batch, p.group * p.kv_heads, p.q_rows, keys), strict=True))
    shape = [n if axis in p.mask_axes else 1 for axis, n in extents.items()]
    shape = shape["bhqk".index(p.mask_axes[0]) :]
    if p.mask == "bool":
        return rng.random(shape) < 0.7
    if p.mask == "int":
        return rng.integers(-2, 3, shape)
    return np.where(rng.random(shape) < 0.2, -np.inf, rng.standard_normal(shape)).astype(KERNEL.get(p.dtype, p.dtype))


def inputs_of(p: Problem) -> dict[str, Array]:
    """Arrays for a problem."""
    rng = np.random.default_rng(p.values)
    dtype = KERNEL.get(p.dtype, p.dtype)

    def tensor(heads: int, rows: int, width: int, *, is_3d: bool = p.is_3d) -> Array:
        x = rng.standard_normal((p.batch, heads, rows, width)).astype(dtype)
        return x.transpose(0, 2, 1, 3).reshape(p.batch, rows, heads * width) if is_3d else x

    inputs = {
        "Q": tensor(p.kv_heads * p.group, p.q_rows, p.head_dim),
        "K": tensor(p.kv_heads, p.kv_rows, p.head_dim),
        "V": tensor(p.kv_heads, p.kv_rows, p.v_head_dim),
    }
    if p.mask:
        inputs["attn_mask"] = mask_of(p, rng)
    if p.cache == "past":
        inputs["past_key"] = tensor(p.kv_heads, p.past, p.head_dim, is_3d=False)
        inputs["past_value"] = tensor(p.kv_heads, p.past, p.v_head_dim, is_3d=False)
    if p.cache == "lengths":
        inputs["nonpad_kv_seqlen"] = rng.integers(0, p.kv_rows + 1, p.batch)
    return inputs


def node_of(p: Problem, inputs: dict[str, Array]) -> NodeProto:
    """The node of a problem."""
    attributes: dict[str, Any] = {"is_causal": int(p.is_causal), "softcap": p.softcap}
    attributes |= {"left_window_size": p.window[0], "right_window_size": p.window[1]}
    if p.is_3d:
        attributes |= {"q_num_heads": p.kv_heads * p.group, "kv_num_heads": p.kv_heads}
    if p.scale is not None:
        attributes["scale"] = p.scale
    if p.mode is not None:
        attributes["qk_matmul_output_mode"] = p.mode
    wanted = ("Y", *(("present_key", "present_value") if p.cache == "past" else ("", "")))
    outputs = [*wanted, "qk_matmul_output"] if p.mode is not None else list(wanted)
    return helper.make_node("Attention", [name if name in inputs else "" for name in NAMES], outputs, **attributes)


def test_onnx_backend(device: pysm120.Device, pytestconfig: pytest.Config) -> None:
    """Everything that an ONNX Attention can ask for, at once."""

    def test(p: Problem) -> None:
        kernel = "bfloat16" if p.dtype == "bfloat16" else "float16"
        # The largest error of a few elements may be small by chance: at least 32 are judged, of several draws.
        draws = -(-32 // (p.batch * p.group * p.kv_heads * p.q_rows * p.v_head_dim))
        found = []
        for k in range(draws):
            inputs = inputs_of(p._replace(values=p.values + k))
            node = node_of(p, inputs)
            results = backend.run_node(node, list(inputs.values()), device)
            exact, plain = (reference(node, inputs, dtype) for dtype in (np.float64, KERNEL[kernel]))
            assert [x.shape for x in results] == [x.shape for x in exact]
            found.append([results, exact, plain])
        for n in range(len(found[0][0])):
            got, exact_n, plain_n = (np.concatenate([draw[which][n].ravel() for draw in found]) for which in range(3))
            judge(got, exact_n, plain_n, ROUNDING[kernel])

    repeated(test, pytestconfig, p=PROBLEMS)


# ---- arrays of any strides ------------------------------------------------------


class Place(NamedTuple):
    """How an array [batch, heads, rows, head size] lies in memory."""

    order: tuple[int, ...]  # of the first three dimensions
    gaps: tuple[int, int, int, int]  # elements behind each of its dimensions
    start: int


PLACES = st.builds(
    Place,
    st.permutations(range(3)).map(tuple),
    st.tuples(*[st.integers(0, 3)] * 3, st.integers(0, 9)),
    st.integers(0, 9),
)


def put(device: pysm120.Device, x: Array, place: Place) -> pysm120.Array:
    """Return a view on the device; what lies between its elements is NaN."""
    order = (*place.order, 3)
    roomy = tuple(x.shape[axis] + gap for axis, gap in zip(order, place.gaps, strict=True))
    memory = np.full(place.start + int(np.prod(roomy)), np.nan, x.dtype)
    inside = memory[place.start :].reshape(roomy)
    inside[tuple(slice(x.shape[axis]) for axis in order)] = x.transpose(order)
    there = device.array(memory)[place.start :].reshape(roomy)
    view = there[tuple(slice(x.shape[axis]) for axis in order)]
    return view.transpose([order.index(axis) for axis in range(4)])


def test_strides(device: pysm120.Device, pytestconfig: pytest.Config) -> None:
    """Tensors wherever and however they lie, in both layouts."""

    def test(
        shape: tuple[int, ...],
        places: tuple[Place, ...],
        kind: str,
        layout: str,
        rules: tuple[bool, int | None, float],
        values: int,
    ) -> None:
        batch, kv_heads, group, q_rows, kv_rows, head_dim, v_head_dim = shape
        causal, left, softcap = rules
        rng = np.random.default_rng(values)
        q, k, v = (
            rng.standard_normal((batch, *extents)).astype(KERNEL[kind])
            for extents in (
                (kv_heads * group, q_rows, head_dim),
                (kv_heads, kv_rows, head_dim),
                (kv_heads, kv_rows, v_head_dim),
            )
        )
        there = [put(device, x, place) for x, place in zip((q, k, v), places, strict=True)]
        if layout == "BSHD":
            there = [x.transpose(0, 2, 1, 3) for x in there]
        out = pysm120.attention(
            *there,
            causal=causal,
            causal_align="top-left",
            window=(left, None),
            softcap=softcap,
            precision="bf16" if kind == "bfloat16" else "f16",
            layout=layout,
        ).numpy()
        out = out.transpose(0, 2, 1, 3) if layout == "BSHD" else out
        node = helper.make_node(
            "Attention",
            ["Q", "K", "V"],
            ["Y"],
            is_causal=int(causal),
            left_window_size=-1 if left is None else left,
            softcap=softcap,
        )
        inputs = {"Q": q, "K": k, "V": v}
        exact, plain = (reference(node, inputs, dtype)[0] for dtype in (np.float64, KERNEL[kind]))
        judge(out, exact, plain, ROUNDING[kind])

    repeated(
        test,
        pytestconfig,
        shape=st.tuples(
            *(st.integers(1, most) for most in (2, 2, 3, 40, 90)), st.integers(1, 72), st.sampled_from([8, 64, 7, 40])
        ),
        places=st.tuples(PLACES, PLACES, PLACES),
        kind=st.sampled_from(list(KERNEL)),
        layout=st.sampled_from(["BSHD", "BHSD"]),
        rules=st.tuples(st.booleans(), st.sampled_from([None, 0, 10]), st.sampled_from([0.0, 3.0])),
        values=st.integers(0, 2**32 - 1),
    )
