"""pysm120.attention and attention_varlen: arguments, results and errors. Other files test the kernels."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reference import Array, attention_dense, relative_error

import pysm120

ERROR = 4e-3  # tolerance of bf16 products and a bf16 result


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


def exact(q: Array, k: Array, v: Array, bias: Any = 0.0, **features: Any) -> tuple[Array, Array]:
    """O [rows, heads, head_dim] and LSE [heads, rows] of one sequence."""
    q, k, v = (x.astype(np.float64).swapaxes(0, 1) for x in (q, k, v))
    bias = np.broadcast_to(bias, (q.shape[0], q.shape[1], k.shape[1]))
    o, lse = attention_dense(q, k, v, q.shape[-1] ** -0.5, bias, **features)
    return o.swapaxes(0, 1), lse


def on(device: pysm120.Device, arguments: dict[str, Any]) -> dict[str, Any]:
    """Copy arrays to the device; lists become arrays of int32 or float32."""
    kinds = {"sinks": np.float32, "alibi_slopes": np.float32}
    there = {}
    for name, x in arguments.items():
        if isinstance(x, list):
            x = np.asarray(x, kinds.get(name, np.int32))  # noqa: PLW2901 - the loop's own
        there[name] = device.array(x) if isinstance(x, np.ndarray) else x
    return there


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_all_together(device: pysm120.Device, rng: np.random.Generator, layout: str, where: str) -> None:
    q, k, v = normal(rng, 2, 40, 4, 64), normal(rng, 2, 70, 2, 64), normal(rng, 2, 70, 2, 32)
    mask = rng.standard_normal((40, 70)) > -1
    slopes, sinks = 2.0 ** -rng.uniform(1, 5, (2, 4)), rng.standard_normal(4)
    options: dict[str, Any] = {
        "mask": mask,
        "alibi_slopes": slopes.astype(np.float32),
        "sinks": sinks.astype(np.float32),
        "kv_lengths": [50, 70],
        "diagonals": [12, 25],
        "window": (30, 4),
        "softcap": 2.0,
    }
    inputs = {"q": q, "k": k, "v": v}
    if layout == "BHSD":
        inputs = {name: np.ascontiguousarray(x.swapaxes(1, 2)) for name, x in inputs.items()}
    arguments = {**inputs, **options}
    if where == "device":
        arguments = on(device, arguments)
    out, lse = pysm120.attention(
        **arguments, precision="bf16", layout=layout, out_dtype="f4", return_lse=True, device=device
    )
    if where == "device":
        out, lse = out.numpy(), lse.numpy()
    if layout == "BHSD":
        out = out.swapaxes(1, 2)
    for b, (keys, d) in enumerate(((50, 12), (70, 25))):
        i, j = np.arange(40)[:, None] + d, np.arange(keys)[None]
        hidden = np.where((j >= i - 30) & (j <= i + 4) & mask[:, :keys], 0, -np.inf)
        bias = hidden - options["alibi_slopes"][b][:, None, None] * np.abs(i - j)
        o, logs = exact(q[b], k[b, :keys], v[b, :keys], bias, softcap=2.0, sinks=options["sinks"])
        assert relative_error(out[b], o) < ERROR
        np.testing.assert_allclose(lse[b], logs, atol=1e-5)


@pytest.mark.parametrize(("precision", "error"), [("bf16", ERROR), ("mxfp8_bf16", ERROR), ("mxfp8", 0.05)])
@pytest.mark.parametrize("where", ["host", "device"])
def test_a_past_is_like_keys_before(
    device: pysm120.Device, rng: np.random.Generator, where: str, precision: str, error: float
) -> None:
    """In MXFP8 the blocks of values differ, and so do their errors; rows are quantised one by one, so q and k agree."""
    q, k, v = (normal(rng, 2, 30, 2, 64) for _ in range(3))
    past_k, past_v = normal(rng, 2, 75, 2, 64), normal(rng, 2, 75, 2, 64)
    arguments: dict[str, Any] = {"q": q, "k": k, "v": v, "past_k": past_k, "past_v": past_v}
    if where == "device":
        arguments = on(device, arguments)
    out = pysm120.attention(**arguments, causal=True, precision=precision, out_dtype="f4", device=device)
    whole = pysm120.attention(
        q,
        np.concatenate([past_k, k], 1),
        np.concatenate([past_v, v], 1),
        causal=True,
        precision=precision,
        device=device,
    )
    assert relative_error(out if where == "host" else out.numpy(), whole) < error


@pytest.mark.parametrize("precision", ["mxfp8_bf16", "mxfp8"])
def test_varlen_of_mx_is_each_sequence_by_itself(
    device: pysm120.Device, rng: np.random.Generator, precision: str
) -> None:
    """A new block begins with each sequence, so neighbouring sequences change no bit."""
    starts = [3, 40, 60, 130]
    q, k, v = normal(rng, 140, 4, 64), normal(rng, 140, 2, 64), normal(rng, 140, 2, 64)
    out = pysm120.attention_varlen(
        q, k, v, starts, starts, causal=True, precision=precision, out_dtype="f4", device=device
    )
    for begin, end in itertools.pairwise(starts):
        rows = slice(begin, end)
        alone = pysm120.attention(
            *(x[None, rows] for x in (q, k, v)),
            causal=True,
            kv_lengths=[end - begin],
            precision=precision,
            out_dtype="f4",
            device=device,
        )
        assert np.array_equal(out[rows], alone[0])


@pytest.mark.parametrize("where", ["host", "device"])
def test_varlen(device: pysm120.Device, rng: np.random.Generator, where: str) -> None:
    starts_q, starts_k = [0, 10, 10, 75], [3, 40, 60, 90]
    q, k, v = normal(rng, 80, 4, 64), normal(rng, 100, 2, 64), normal(rng, 100, 2, 64)
    arguments: dict[str, Any] = {"q": q, "k": k, "v": v, "cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    if where == "device":
        arguments = on(device, arguments)
    out, lse = pysm120.attention_varlen(**arguments, causal=True, out_dtype="f4", return_lse=True, device=device)
    if where == "device":
        out, lse = out.numpy(), lse.numpy()
    for b in range(3):
        rows, keys = slice(starts_q[b], starts_q[b + 1]), slice(starts_k[b], starts_k[b + 1])
        n, m = rows.stop - rows.start, keys.stop - keys.start
        hidden = np.where(np.arange(m)[None] <= np.arange(n)[:, None] + m - n, 0, -np.inf)
        o, logs = exact(q[rows], k[keys], v[keys], hidden)
        assert relative_error(out[rows], o) < ERROR
        np.testing.assert_allclose(lse[:, rows], logs, atol=1e-5)
    assert np.all(out[75:] == 0)
    assert np.isneginf(lse[:, 75:]).all()


def test_varlen_leaves_other_rows(device: pysm120.Device, rng: np.random.Generator) -> None:
    q = normal(rng, 30, 2, 20)
    out, lse = np.full((30, 2, 20), 7, np.float32), np.full((2, 30), 5, np.float32)
    pysm120.attention_varlen(q, q, q, [5, 20], [0, 30], out=out, lse=lse, device=device)
    covered = np.arange(30) // 5 % 6
    inside = (covered >= 1) & (covered < 4)
    assert np.all(out[~inside] == 7)
    assert np.all(lse[:, ~inside] == 5)
    assert relative_error(out[inside], exact(q[inside], q, q)[0]) < ERROR


@pytest.mark.parametrize("precision", ["mxfp8", "bf16"])
@pytest.mark.parametrize("head_dim", [1, 20, 63, 100])
def test_any_head_size_is_one_padded_with_zeros(
    device: pysm120.Device, rng: np.random.Generator, precision: str, head_dim: int
) -> None:
    """Bit-identical results: padding with zeros does not change the sums of a kernel."""
    q, k, v = (normal(rng, 2, rows, heads, head_dim) for rows, heads in ((50, 4), (90, 2), (90, 2)))
    padded = [np.pad(x, [(0, 0)] * 3 + [(0, -head_dim % 8)]) for x in (q, k, v)]
    options: dict[str, Any] = {"causal": True, "scale": 0.3, "precision": precision, "device": device}
    out = pysm120.attention(q, k, v, **options)
    wanted = pysm120.attention(padded[0], padded[1], padded[2], **options)[..., :head_dim]
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize("precision", ["mxfp8", "bf16"])
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("pitch", [64, 65, 70])
def test_any_place_and_stride(
    device: pysm120.Device, rng: np.random.Generator, precision: str, offset: int, pitch: int
) -> None:
    """The same bits at every address of the arrays, and no write outside of them."""

    def place(x: Array) -> pysm120.Array:
        base = device.array(np.full(offset + x.size // 64 * pitch, 9, x.dtype))
        heads, rows = x.shape[2], x.shape[1]
        strides = (heads * rows * pitch, heads * pitch, pitch, 1)
        there = pysm120.Array(base.owner, base.address + 2 * offset, x.shape, strides, x.dtype)
        bases.append(base)
        return there.copy_from(x)

    bases: list[pysm120.Array] = []
    q, k, v = (normal(rng, 1, rows, heads, 64) for rows, heads in ((20, 4), (33, 2), (33, 2)))
    out = place(np.zeros_like(q))
    pysm120.attention(place(q), place(k), place(v), out=out, precision=precision)
    assert np.array_equal(out.numpy(), pysm120.attention(q, k, v, precision=precision, device=device))
    whole = bases[0].numpy().astype(np.float32)
    covered = np.zeros(whole.size, bool)
    covered[offset:].reshape(-1, pitch)[:, :64] = True
    assert np.all(whole[~covered] == 9)


def test_a_form_is_checked_once(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A second call of a form, on other arrays, gives the same result as the first one."""
    q, k, v = (device.array(normal(rng, 1, 20, 2, 64)) for _ in range(3))
    first = pysm120.attention(q, k, v, precision="bf16").numpy()
    again = pysm120.attention(q.copy(), k.copy(), v.copy(), precision="bf16").numpy()
    assert np.array_equal(first, again)
    with pytest.raises(TypeError, match="window is"):
        pysm120.attention(q, k, v, precision="bf16", window=[[], 3])  # type: ignore[call-overload] # this is the test


def test_a_mask_of_float64_hides_no_key_by_rounding(device: pysm120.Device, rng: np.random.Generator) -> None:
    q = normal(rng, 1, 20, 2, 64)
    mask = np.where(rng.random((20, 20)) < 0.5, np.finfo(np.float64).min, -np.inf)
    mask[3] = np.finfo(np.float64).min
    out = pysm120.attention(q, q, q, mask=mask, precision="bf16", out_dtype="f4", device=device)
    for i in range(20):
        seen = np.isfinite(mask[i])
        wanted = q[0, seen].astype(np.float64).mean(0) if seen.any() else np.zeros((2, 64))
        np.testing.assert_allclose(out[0, i], wanted, atol=1e-2)


@pytest.mark.parametrize(("uniform", "lowest"), [(True, -19), (False, -25)])
def test_small_weights_of_f16(device: pysm120.Device, *, uniform: bool, lowest: int) -> None:
    """A key with 2^-n of the highest weight loses at most what docs/reference/attention.md states."""
    n = np.arange(1, 31) - 0.4375
    q, k, v = (
        np.ones((30, 1, 1, 8), np.float16),
        np.zeros((30, 2, 1, 8), np.float16),
        np.zeros((30, 2, 1, 8), np.float16),
    )
    k[:, 1, 0, 0] = -n
    v[:, 0, 0, 0] = v[:, 1, 0, 1] = 1
    lengths = None if uniform else np.full(30, 2, np.int32)
    out = pysm120.attention(
        q, k, v, scale=float(np.log(2)), precision="f16", kv_lengths=lengths, out_dtype="f4", device=device
    )
    weight = 2.0**-n
    lost = np.abs(out[:, 0, 0, 1] * (1 + weight) - weight)
    assert np.all(lost <= np.maximum(1.01 * 2.0**lowest, 2.0**-11 * weight + 1e-6 * weight))
    assert np.all(out[n > -lowest, 0, 0, 1] == 0)


def test_numbers_of_ml_dtypes(device: pysm120.Device, rng: np.random.Generator) -> None:
    q = normal(rng, 1, 20, 2, 64)
    for x in (ml_dtypes.bfloat16(0.5), np.float16(0.5)):
        out = pysm120.attention(q, q, q, scale=x, softcap=x, precision="bf16", device=device)  # type: ignore[arg-type]
        wanted = pysm120.attention(q, q, q, scale=0.5, softcap=0.5, precision="bf16", device=device)
        assert np.array_equal(out, wanted)


class Elsewhere:
    """An array that is neither on a GPU nor in host memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 99, 0

    def __dlpack__(self, **_: Any) -> object:
        return None


def test_messages_name_the_argument(device: pysm120.Device, rng: np.random.Generator) -> None:
    q = normal(rng, 1, 20, 2, 64)
    x, elsewhere = device.array(q), Elsewhere()
    with pytest.raises(pysm120.InvalidArgumentError, match="k is on a device of DLPack type 99"):
        pysm120.attention(x, elsewhere, x, precision="bf16")
    with pytest.raises(
        pysm120.InvalidArgumentError, match=r"q has shape \(1, 20, 2, 64\), not \[q_total, heads, head_dim"
    ):
        pysm120.attention_varlen(q, q, q, [0, 20], [0, 20], device=device)
    wrong: Any = 1
    with pytest.raises(TypeError, match=r"^return_lse is 1, not True or False$"):
        pysm120.attention(q, q, q, return_lse=wrong, device=device)
    with pytest.raises(TypeError, match=r"^return_lse is 1, not True or False$"):
        pysm120.attention_varlen(q[0], q[0], q[0], [0, 20], [0, 20], return_lse=wrong, device=device)


@pytest.mark.parametrize("precision", ["mxfp8", "mxfp8_bf16", "bf16"])
@pytest.mark.parametrize("steep", [1, 60])
def test_the_result_may_replace_q(device: pysm120.Device, rng: np.random.Generator, precision: str, steep: int) -> None:
    """Also scores that rise along the keys, for which a CTA in 16 bits runs again."""
    q, k = np.abs(normal(rng, 2, 200, 4, 64)), np.abs(normal(rng, 2, 300, 2, 64))
    k = (k.astype(np.float32) * np.linspace(0.1, steep, 300)[:, None, None]).astype(k.dtype)
    wanted = pysm120.attention(q, k, k, precision=precision, causal=True, device=device)
    x, keys = device.array(q), device.array(k)
    pysm120.attention(x, keys, keys, precision=precision, causal=True, out=x)
    assert np.array_equal(x.numpy(), wanted)


@pytest.mark.parametrize("precision", ["mxfp8", "bf16"])
def test_results_lie_nowhere_else_that_is_read(
    device: pysm120.Device, rng: np.random.Generator, precision: str
) -> None:
    """Slices of one buffer: an error if they share an element, otherwise supported."""
    x = normal(rng, 2, 24, 5, 48)
    base = device.array(x)
    places = np.arange(x.size).reshape(x.shape)
    apart = device.array(x[:, :10, :2, :16])
    refused = 0
    for _ in range(60):
        row, head, column = rng.integers(0, [15, 4, 33], (2, 3)).T
        slices = [
            (slice(None), slice(row[n], row[n] + 10), slice(head[n], head[n] + 2), slice(column[n], column[n] + 16))
            for n in range(2)
        ]
        shared = np.intersect1d(places[slices[0]], places[slices[1]]).size > 0
        q, out = base[slices[0]], base[slices[1]]
        base.copy_from(x)
        if not shared:
            pysm120.attention(apart, q, q, precision=precision, out=out)
            wanted = pysm120.attention(apart, q.copy(), q.copy(), precision=precision)
            assert np.array_equal(out.numpy(), wanted.numpy())
            continue
        refused += 1
        for name, (a, b, c) in {"k": (apart, q, apart), "v": (apart, apart, q)}.items():
            with pytest.raises(pysm120.InvalidArgumentError, match=rf"out \(.*\) and {name} \(.*\) overlap"):
                pysm120.attention(a, b, c, precision=precision, out=out)
        if slices[0] != slices[1]:
            with pytest.raises(pysm120.InvalidArgumentError, match="overlap"):
                pysm120.attention(q, apart, apart, precision=precision, out=out)
        assert np.array_equal(base.numpy(), x)
    assert 5 < refused < 55
    k = device.array(normal(rng, 2, 30, 1, 64))
    for other in (
        k.reshape(1, 60, 1, 64)[:, 20:40].reshape(2, 10, 2, 32),
        k.reshape(-1)[5 : 5 + 1280].reshape(1, 20, 2, 32),
    ):
        q = device.array(normal(rng, other.shape[0], *other.shape[1:3], 64))
        keys = k.reshape(other.shape[0], -1, 1, 64)
        with pytest.raises(pysm120.InvalidArgumentError, match="overlap"):
            pysm120.attention(q, keys, k.reshape(other.shape[0], -1, 1, 64)[..., :32], precision=precision, out=other)


def test_no_result_lies_on_small_inputs(device: pysm120.Device, rng: np.random.Generator) -> None:
    q = device.array(normal(rng, 1, 20, 4, 64))
    out, lse = device.array(np.zeros(q.shape, np.float32)), device.array(np.zeros((1, 4, 20), np.float32))
    shapes = {"sinks": (4,), "alibi_slopes": (1, 4), "mask": (1, 20)}
    for (name, shape), result in itertools.product(shapes.items(), (out, lse)):
        options: dict[str, Any] = {"precision": "bf16", "out": out, "lse": lse}
        options[name] = result.reshape(-1)[: shape[-1]].reshape(shape)
        with pytest.raises(pysm120.InvalidArgumentError, match=rf"{name}.* overlap"):
            pysm120.attention(q, q, q, **options)
        options[name] = options[name].copy()
        pysm120.attention(q, q, q, **options)
    v = q.copy()
    on_v = pysm120.Array(v.owner, v.address + 64, lse.shape, lse.strides, lse.dtype)
    with pytest.raises(pysm120.InvalidArgumentError, match=r"lse .* and v .* overlap"):
        pysm120.attention(q, q, v, precision="bf16", out=out, lse=on_v)


@pytest.mark.parametrize("precision", ["mxfp8", "mxfp8_bf16", "bf16"])
@pytest.mark.parametrize("axis", ["batch", "row", "head"])
def test_more_than_2_31_elements(device: pysm120.Device, rng: np.random.Generator, precision: str, axis: str) -> None:
    """Tensors with strides beyond 32 bits; memory between their elements is never accessed."""
    q, k, v = normal(rng, 2, 40, 4, 64), normal(rng, 2, 40, 2, 64), normal(rng, 2, 40, 2, 64)
    far = {"batch": 1 << 31, "row": 1 << 26, "head": (1 << 30) + (1 << 13)}[axis]
    base = device.empty(((1 << 32) + (1 << 20),), q.dtype)
    places: list[pysm120.Array] = []
    for n, x in enumerate((q, k, v, np.zeros_like(q))):
        near = [64 * x.shape[1] * x.shape[2], 64 * x.shape[2], 64]  # batch, row, head
        near[["batch", "row", "head"].index(axis)] = far
        if axis == "head":
            near[:2] = [64 * 64, 64]
        if axis == "row":
            near[0] = 64 * x.shape[2]
        address = base.address + 2 * (n << 15)
        places.append(pysm120.Array(base.owner, address, x.shape, (*near, 1), x.dtype))
        for at in np.ndindex(x.shape[:1] if axis == "batch" else x.shape[:3]):
            places[-1][at].copy_from(x[at])
    options: dict[str, Any] = {"precision": precision, "causal": True}
    pysm120.attention(places[0], places[1], places[2], out=places[3], **options)
    wanted = pysm120.attention(q, k, v, device=device, **options)
    for at in np.ndindex(q.shape[:3]):
        assert np.array_equal(places[3][at].numpy(), wanted[at]), at


def test_a_mask_of_more_than_2_31_elements(device: pysm120.Device, rng: np.random.Generator) -> None:
    q = normal(rng, 1, 40, 2, 64)
    values = rng.standard_normal((40, 40)) > 0
    base = device.empty(((1 << 32) + (1 << 20),), np.bool_)
    mask = pysm120.Array(base.owner, base.address, (40, 40), (1 << 26, 3), base.dtype)
    for at in np.ndindex(values.shape):
        mask[at].copy_from(values[at])
    x = device.array(q)
    out = pysm120.attention(x, x, x, mask=mask, precision="bf16")
    assert np.array_equal(out.numpy(), pysm120.attention(q, q, q, mask=values, precision="bf16", device=device))


def test_a_repeated_call_still_looks_where_things_are(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A kept plan of a form does not skip the checks of addresses, freed arrays, other devices and streams."""
    x = normal(rng, 1, 40, 2, 64)
    q, out, lse = device.array(x), device.array(np.zeros_like(x)), device.empty((1, 2, 40))
    options: dict[str, Any] = {"precision": "bf16", "causal": True}
    for _ in range(3):
        pysm120.attention(q, q, q, out=out, lse=lse, **options)
    wanted = out.numpy()
    odd = device.zeros((1 + x.size,), x.dtype)
    there = pysm120.Array(odd.owner, odd.address + 2, x.shape, q.strides, x.dtype).copy_from(x)
    pysm120.attention(there, there, there, out=out, lse=lse, **options)
    assert np.array_equal(out.numpy(), wanted)
    stream = device.stream()
    out.copy_from(np.zeros_like(x))
    assert pysm120.attention(q, q, q, out=out, lse=lse, return_lse=True, stream=stream, **options) == (out, lse)
    assert np.array_equal(out.numpy(stream=stream), wanted)
    with pytest.raises(TypeError, match="stream is a float"):
        pysm120.attention(q, q, q, out=out, lse=lse, stream=1.5, **options)
    with pysm120.Device(str(device)) as other:
        y = other.array(x)
        if not device.shares_memory_with(other):
            with pytest.raises(pysm120.InvalidArgumentError, match="k is on"):
                pysm120.attention(q, y, q, out=out, lse=lse, **options)
    gone = device.array(x)
    gone.free()
    with pytest.raises(pysm120.ClosedError):
        pysm120.attention(q, gone, q, out=out, lse=lse, **options)
    q.readonly = True
    pysm120.attention(q, q, q, out=out, lse=lse, **options)
    out.readonly = True
    with pytest.raises(pysm120.InvalidArgumentError, match="out is read-only"):
        pysm120.attention(q, q, q, out=out, lse=lse, **options)


def rounding_room(q: Array, k: Array) -> Array:
    """Return the most by which q k^T [heads, rows, keys] changes if MXFP8 rounds q and k, whose groups are pairs."""
    rounded = [
        np.abs(x.astype(np.float64)) * 2.0**-4 + 2.0**-16 * np.abs(x.astype(np.float64)).max(-1, keepdims=True)
        for x in (q, k)
    ]
    mine, theirs = (np.abs(x.astype(np.float64)) for x in (q, k))
    whole = np.einsum("ihd,jhd->hij", mine + rounded[0], (theirs + rounded[1]).repeat(2, 1))
    found: Array = whole - np.einsum("ihd,jhd->hij", mine, theirs.repeat(2, 1))
    return found


@pytest.mark.parametrize(
    ("precision", "left"), [("mxfp8", None), ("mxfp8", 30), ("mxfp8_bf16", None), ("mxfp8_bf16", 30)]
)
@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(64, 64), (64, 128), (128, 40), (20, 100)])
def test_windows_and_value_sizes_of_mx(
    device: pysm120.Device, rng: np.random.Generator, precision: str, left: int | None, head_dim: int, v_head_dim: int
) -> None:
    q, k = normal(rng, 1, 150, 4, head_dim), normal(rng, 1, 200, 2, head_dim)
    v = normal(rng, 1, 200, 2, v_head_dim)
    out, lse = pysm120.attention(
        q, k, v, window=(left, 5), precision=precision, out_dtype="f4", return_lse=True, device=device
    )
    i, j = np.arange(150)[:, None] + 50, np.arange(200)[None]
    hidden = np.where((j >= i - (200 if left is None else left)) & (j <= i + 5), 0, -np.inf)
    o, logs = exact(q[0], k[0], v[0], hidden)
    assert relative_error(out[0], o) < 0.07
    # A score is off by at most `room`, because e4m3 rounds an element by up to 2^-4 of it; so much LSE may move.
    room = rounding_room(q[0], k[0]) / head_dim**0.5
    scores = (
        np.einsum("ihd,jhd->hij", q[0].astype(np.float64), k[0].astype(np.float64).repeat(2, 1)) / head_dim**0.5
        + hidden
    )
    p = np.exp(scores - logs[..., None])
    assert np.all(lse[0] <= logs + np.log((p * np.exp(room)).sum(-1)) + 1e-4)
    assert np.all(lse[0] >= logs + np.log((p * np.exp(-room)).sum(-1)) - 1e-4)
    assert np.sqrt(np.mean((lse[0] - logs) ** 2)) < 0.06


def test_options_of_another_type_are_checked(device: pysm120.Device, rng: np.random.Generator) -> None:
    """1 equals True, but the kept plan of True is not that of 1: an option of the wrong type is an error each time."""
    q = device.array(normal(rng, 1, 8, 1, 32))
    out, lse = pysm120.attention(q, q, q, causal=True, return_lse=True)
    pysm120.attention_backward(q, q, q, q, out, lse, causal=True)
    calls: list[Any] = [lambda: pysm120.attention(q, q, q, causal=1)]  # type: ignore[call-overload]
    calls.append(lambda: pysm120.attention_backward(q, q, q, q, out, lse, causal=1))  # type: ignore[arg-type]
    for call in calls:
        with pytest.raises(TypeError, match=r"^causal is 1, not True or False$"):
            call()
