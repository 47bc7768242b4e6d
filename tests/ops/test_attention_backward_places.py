"""attention_backward on tensors that lie anywhere: strides, offsets, broadcast inputs, results, large tensors."""

import itertools
from typing import Any

import numpy as np
import pytest
from backward_cases import Case, backward, draw, gaps, judge, norm, one_for_all, ready, run
from backward_reference import Array, Gradients, delta_of, forward, gradients, inputs, seen_keys, wide
from harness import DTYPES, OpenDevice

import pysm120

BF16 = DTYPES["bfloat16"]
attention: Any = pysm120.attention  # called with lists of arrays
attention_backward: Any = pysm120.attention_backward


@pytest.mark.parametrize("head_dim", [64, 20])
def test_one_array_of_q_k_and_v(device: pysm120.Device, rng: np.random.Generator, head_dim: int) -> None:
    """Interleaved as many models have them, in both layouts; dq, dk and dv share an array too."""
    case = Case(2, 2, 2, 70, 70, head_dim, "bottom-right")
    x, o, lse = ready(rng, case)
    packed = np.stack([y.swapaxes(1, 2) for y in (x.q, x.k, x.v)], 2)  # B S 3 H D
    qkv = device.array(packed)
    out, dout = (device.array(np.ascontiguousarray(y.swapaxes(1, 2))) for y in (o, x.dout))
    wanted = backward(x, o, lse, device, causal=True)
    for layout in ("BSHD", "BHSD"):
        results = device.array(np.full(packed.shape, np.nan, np.float32))
        q, k, v, dq, dk, dv = (y[:, :, n] for y in (qkv, results) for n in range(3))
        arrays = [dout, q, k, v, out]
        if layout == "BHSD":
            arrays = [y.transpose(0, 2, 1, 3) for y in arrays]
            dq, dk, dv = (y.transpose(0, 2, 1, 3) for y in (dq, dk, dv))
        attention_backward(*arrays, device.array(lse), causal=True, layout=layout, scale=x.scale, dq=dq, dk=dk, dv=dv)
        got = results.numpy()
        for n, y in enumerate(wanted):
            np.testing.assert_array_equal(got[:, :, n].swapaxes(1, 2), y)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("pitch", [64, 65, 72])
def test_any_place_and_stride(device: pysm120.Device, rng: np.random.Generator, offset: int, pitch: int) -> None:
    """NaN lies between the rows of inputs, and nothing beside the results changes.

    dv has the same bits wherever the arrays lie. delta is summed in another order where O is not aligned, which may
    round a dS the other way.
    """
    x, o, lse = ready(rng, Case(1, 4, 2, 40, 33, 64))
    bases = []

    def place(y: Array, dtype: Any, between: float) -> pysm120.Array:
        base = device.array(np.full(offset + y.size // 64 * pitch, between, dtype))
        bases.append(base)
        strides = (y.shape[1] * y.shape[2] * pitch, y.shape[2] * pitch, pitch, 1)
        address = base.address + base.dtype.itemsize * offset
        there = pysm120.Array(base.owner, address, y.shape, strides, base.dtype)
        return there.copy_from(y.astype(dtype))

    arrays = [place(y, BF16, np.nan) for y in (x.dout, x.q, x.k, x.v, o)]
    results = [place(np.zeros_like(y), np.float32, 9) for y in (x.q, x.k, x.v)]
    attention_backward(
        *arrays, device.array(lse), layout="BHSD", scale=x.scale, dq=results[0], dk=results[1], dv=results[2]
    )
    wanted = backward(x, o.astype(BF16), lse, device)
    np.testing.assert_array_equal(results[2].numpy(), wanted.dv)
    for result, base, y in zip(results, bases[5:], wanted, strict=True):
        assert norm(result.numpy() - y) <= 2e-4 * norm(y)
        whole = base.numpy()
        rows = whole[offset:].reshape(-1, pitch)
        assert np.all(whole[:offset] == 9)
        assert np.all(rows[:, 64:] == 9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("which", range(4))
def test_broadcast_inputs(opened: OpenDevice, rng: np.random.Generator, which: int, gap: int) -> None:
    """A batch and a head stride of 0 stand for one batch and one head that all use, copied or not."""
    case = Case(2, 4, 2, 50, 70, 64)
    x = one_for_all(draw(rng, case), which)
    _, o, lse = forward(x)
    got = run(opened, case, x, o.astype(np.float32), lse, places=gaps(gap), broadcast=which)
    judge(got, gradients(x), x, lse, delta_of(x, o))


def test_results_lie_nowhere_that_is_read(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A result on an input, on another result, on lse, or on the workspace."""
    x, o, lse = ready(rng, Case(1, 2, 2, 40, 40, 64))
    there = {"dout": x.dout, "q": x.q, "k": x.k, "v": x.v, "out": o.astype(BF16)}
    arrays = {n: device.array(y) for n, y in there.items()}
    logs = device.array(lse)
    for result, array in itertools.product(("dq", "dk", "dv"), arrays):
        with pytest.raises(
            pysm120.InvalidArgumentError, match=rf"{result} \(.*\) and {'o' if array == 'out' else array}"
        ):
            attention_backward(*arrays.values(), logs, layout="BHSD", **{result: arrays[array]})
    one = device.empty(x.q.shape, BF16)
    for first, second in itertools.combinations(("dq", "dk", "dv"), 2):
        with pytest.raises(pysm120.InvalidArgumentError, match=rf"{second} \(.*\) and {first} \(.*\) overlap"):
            attention_backward(*arrays.values(), logs, layout="BHSD", **{first: one, second: one})
    for member in ("lse", "dlse", "delta"):
        numbers = device.zeros(lse.shape)
        on_it = pysm120.Array(one.owner, one.address, lse.shape, numbers.strides, numbers.dtype)
        options = {"lse": logs, member: on_it}
        with pytest.raises(pysm120.InvalidArgumentError, match=rf"dk.* {member} .* overlap"):
            attention_backward(*arrays.values(), **options, layout="BHSD", dk=one)
    room = device.empty(1 << 20, np.uint8)
    inside = pysm120.Array(room.owner, room.address, x.q.shape, one.strides, one.dtype)
    with pytest.raises(pysm120.InvalidArgumentError, match=r"workspace .* and dv .* overlap"):
        attention_backward(*arrays.values(), logs, layout="BHSD", dv=inside, workspace=room)


def test_device_arrays_and_the_default_results(device: pysm120.Device, rng: np.random.Generator) -> None:
    """New results have the dtype of q and stay where the inputs are; O and LSE come from attention itself."""
    q, dout = rng.standard_normal((2, 2, 50, 4, 64)).astype(BF16)
    k, v = rng.standard_normal((2, 2, 70, 2, 64)).astype(BF16)
    there = [device.array(y) for y in (q, k, v)]
    out, lse = attention(*there, causal=True, precision="bf16", return_lse=True)
    made = attention_backward(device.array(dout), *there, out, lse, causal=True)
    assert all(isinstance(y, pysm120.Array) and y.dtype == BF16 for y in made)
    x = inputs((y.swapaxes(1, 2) for y in (q, k, v, dout)), 0.125, seen_keys(50, 70, "bottom-right"))
    got = Gradients(*(wide(y.numpy()).swapaxes(1, 2) for y in made))
    delta = delta_of(x, out.numpy().swapaxes(1, 2))
    judge(got, gradients(x), x, lse.numpy(), delta, "bfloat16")
    on_host = attention_backward(dout, q, k, v, out.numpy(), lse.numpy(), causal=True, precision="bf16", device=device)
    for mine, other in zip(on_host, made, strict=True):
        np.testing.assert_array_equal(mine, other.numpy())


@pytest.mark.parametrize("member", ["lse", "dlse", "delta"])
def test_device_arrays_of_a_row_are_contiguous_float32(
    device: pysm120.Device, rng: np.random.Generator, member: str
) -> None:
    x, o, lse = ready(rng, Case(1, 2, 2, 40, 40, 64))
    arrays = [device.array(y) for y in (x.dout, x.q, x.k, x.v, o)]
    for y, kind, message in (
        (device.array(lse.astype(np.float16)), TypeError, "has dtype float16"),
        (device.array(np.repeat(lse, 2, 2))[:, :, ::2], ValueError, r"has strides .* must be contiguous"),
    ):
        options: dict[str, Any] = {"lse": device.array(lse), member: y}
        with pytest.raises(kind, match=f"{member} {message}"):
            attention_backward(*arrays, **options, layout="BHSD")


@pytest.mark.parametrize("axis", ["batch", "row", "head"])
def test_more_than_2_31_elements(device: pysm120.Device, rng: np.random.Generator, axis: str) -> None:
    """Tensors whose elements lie further apart than 32 bits count; what is between them is never touched."""
    x, o, lse = ready(rng, Case(2, 4, 2, 40, 40, 64, "bottom-right"))
    far = {"batch": 1 << 31, "row": 1 << 26, "head": (1 << 30) + (1 << 13)}[axis]
    base = device.empty(((1 << 32) + (1 << 20),), BF16)
    places: list[pysm120.Array] = []
    arrays = [x.dout, x.q, x.k, x.v, o.astype(BF16), *(np.zeros_like(y) for y in (x.q, x.k, x.v))]
    for n, y in enumerate(arrays):
        near = [64 * 40 * y.shape[1], 64 * 40, 64]  # batch, head, row
        near[("batch", "head", "row").index(axis)] = far
        if axis == "head":
            near[0], near[2] = 64 * 64, 64
        if axis == "row":
            near[0], near[1] = 64 * y.shape[1], 64
        places.append(pysm120.Array(base.owner, base.address + 2 * (n << 15), y.shape, (*near, 1), y.dtype))
        for at in np.ndindex(y.shape[:1] if axis == "batch" else y.shape[:3]):
            places[-1][at].copy_from(y[at])
    attention_backward(
        *places[:5],
        device.array(lse),
        causal=True,
        layout="BHSD",
        scale=x.scale,
        dq=places[5],
        dk=places[6],
        dv=places[7],
    )
    options = {member: np.zeros_like(y) for member, y in (("dq", x.q), ("dk", x.k), ("dv", x.v))}
    wanted = backward(x, o.astype(BF16), lse, device, causal=True, **options)
    for place, y in zip(places[5:], wanted, strict=True):
        for at in np.ndindex(y.shape[:3]):
            assert np.array_equal(place[at].numpy(), y[at]), at
