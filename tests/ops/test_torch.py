"""pysm120.torch under autograd and torch.compile: the bits of calls on ndarrays, and the gradients of PyTorch."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch._dynamo.testing as dynamo_testing
from graph_cases import CASES, arrays, gradients

import pysm120
import pysm120.torch

numpy_api: Any = pysm120  # arguments come from tables
sm120: Any = pysm120.torch
# The inductor of torch 2.13 says this of itself, not of the graph.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def place(device: pysm120.Device) -> str:
    """Where tensors are."""
    return "cpu" if device.is_virtual else f"cuda:{device.info.ordinal}"


def tensor(x: Any, place: str) -> torch.Tensor:
    """Return an ndarray as a tensor."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16).to(place)
    return torch.from_numpy(x.copy()).to(place)


def same(got: Any, best: Any) -> None:
    """Check tensors against ndarrays, bit by bit."""
    assert isinstance(got, torch.Tensor)
    assert str(got.dtype) == f"torch.{best.dtype}"
    np.testing.assert_array_equal(got.detach().float().cpu().numpy(), best.astype(np.float32))


def compiled(backend: str, **options: Any) -> Any:
    """Return the function in one graph."""
    torch._dynamo.reset()
    return torch.compile(sm120.attention, fullgraph=True, backend=backend, **options)


@pytest.mark.parametrize("backend", ["none", "aot_eager"])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_ndarrays(
    device: pysm120.Device, device_name: str, place: str, rng: np.random.Generator, name: str, backend: str
) -> None:
    """Compiled or not, with gradients through out and lse."""
    given, rules = arrays(rng, CASES[name])
    with_lse = name != "mxfp8"
    out, lse = numpy_api.attention(**given, **rules, device=device, return_lse=True)
    dout, dlse = rng.standard_normal(out.shape).astype(out.dtype), rng.standard_normal(lse.shape).astype(np.float32)

    tensors = {n: tensor(x, place) for n, x in given.items()}
    floats = {n: x.requires_grad_() for n, x in tensors.items() if x.is_floating_point()}
    attend = sm120.attention if backend == "none" else compiled(backend)
    asked = {**rules, "out_dtype": torch.float32} if "out_dtype" in rules else rules
    got, sums = attend(**tensors, **asked, return_lse=True, deterministic=True, device=device_name)
    same(got, out)
    same(sums, lse)
    roots = [got, sums] if with_lse else [got]
    torch.autograd.backward(roots, [tensor(x, place) for x in (dout, dlse)][: len(roots)])
    ends = {"out": out, "lse": lse, "dout": dout, "dlse": dlse if with_lse else None}
    for x, best in gradients(given, rules, ends, floats, device).items():
        slope = floats[x].grad
        assert slope is not None
        if x == "mask":
            np.testing.assert_allclose(slope.cpu().numpy(), best, rtol=1e-6)
        else:
            same(slope, best)
    if "alibi_slopes" in floats:
        assert floats["alibi_slopes"].grad is None


def theirs(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """Attention of PyTorch; its tensors have the heads first."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


@pytest.mark.parametrize("backend", ["none", "aot_eager", "inductor"])
def test_gradients_are_those_of_torch(device_name: str, place: str, rng: np.random.Generator, backend: str) -> None:
    """A loss of attention of float32 and a bias beside PyTorch's own in float64."""
    given, _ = arrays(rng, {})
    given = {n: x.astype(np.float32) for n, x in given.items()}
    given["mask"] = rng.standard_normal((4, 1, 9)).astype(np.float32)
    attend = sm120.attention if backend == "none" else compiled(backend)

    ours = {n: tensor(x, place).requires_grad_() for n, x in given.items()}
    best = {n: tensor(x.astype(np.float64), "cpu").requires_grad_() for n, x in given.items()}
    out = attend(**ours, device=device_name)
    wanted = theirs(*best.values())
    assert (out.detach().cpu() - wanted).norm() < 5e-3 * wanted.norm()
    (out.float() ** 2).sum().backward()
    (wanted**2).sum().backward()
    for name, x in ours.items():
        slope, right = x.grad, best[name].grad
        assert slope is not None
        assert right is not None
        assert slope.dtype == torch.float32
        assert slope.shape == x.shape
        assert (slope.cpu() - right).norm() < 1e-2 * right.norm()


def test_gradients_are_slopes(device_name: str, place: str, rng: np.random.Generator) -> None:
    """The change of a sum along a direction, by differences, of every array with a gradient; also of lse alone."""
    given, _ = arrays(rng, {**CASES["sinks"], "mask": CASES["bias"]["mask"]})
    del given["alibi_slopes"]
    x = {n: tensor(y, place).requires_grad_() for n, y in given.items()}
    out, lse = sm120.attention(**x, return_lse=True, out_dtype=torch.float32, device=device_name)
    weights = torch.from_numpy(rng.standard_normal(lse.shape)).to(place)
    for part in ("out", "lse"):
        root = (out * out).sum() if part == "out" else (lse * weights).sum()
        slopes = torch.autograd.grad(root, list(x.values()), retain_graph=True, allow_unused=True)
        for name, slope in zip(x, slopes, strict=True):
            if name == "v" and part == "lse":
                assert slope is None or not slope.any()
                continue
            assert slope is not None
            step = torch.sign(slope) * 2.0**-5  # numbers that float16 holds, along the steepest way of corners
            ends = []
            for sign in (1, -1):
                moved = {**x, name: (x[name].detach() + sign * step).to(x[name].dtype)}
                with torch.no_grad():
                    made, sums = sm120.attention(**moved, return_lse=True, out_dtype=torch.float32, device=device_name)
                ends.append((made * made).sum() if part == "out" else (sums * weights).sum())
            moves = (slope.float().cpu() * step.float().cpu()).sum() * 2
            assert abs(float(ends[0] - ends[1]) - float(moves)) < 2e-2 * abs(float(moves)), (name, part)


def test_a_graph_for_every_length(device_name: str, place: str, rng: np.random.Generator) -> None:
    """With dynamic shapes PyTorch compiles for the first length alone, and results are those of every length."""
    torch._dynamo.reset()
    counter = dynamo_testing.CompileCounterWithBackend("aot_eager")
    attend = torch.compile(sm120.attention, fullgraph=True, backend=counter, dynamic=True)
    frames = []
    for rows in (5, 7, 12):
        q, k, v = (
            tensor(rng.standard_normal((2, rows, 2, 16)).astype(np.float16), place).requires_grad_() for _ in "qkv"
        )
        got = attend(q, k, v, causal=True, deterministic=True, device=device_name)
        best = sm120.attention(q, k, v, causal=True, deterministic=True, device=device_name)
        assert torch.equal(got, best)
        slopes, wanted = (torch.autograd.grad(x.sum(), (q, k, v)) for x in (got, best))
        assert all(map(torch.equal, slopes, wanted))
        frames.append(counter.frame_count)
    assert len(set(frames)) == 1


# The opcheck of torch 2.14 looks at .grad of its own tensors that are no leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("name", ["plain", "sinks", "bias", "heads first"])
def test_opcheck(device_name: str, place: str, rng: np.random.Generator, name: str) -> None:
    """PyTorch's own test of operators, of both of ours."""
    given, rules = arrays(rng, CASES[name])
    if name == "bias":  # deterministic
        given["mask"] = np.broadcast_to(given["mask"], (2, 4, 6, 9))
    x = {n: tensor(y, place) for n, y in given.items()}
    tensors = [x.get(n) for n in ("q", "k", "v", "sinks", "alibi_slopes", "mask", "kv_lengths", "diagonals")]
    options = [False, "bottom-right", None, None, 0.0, None, None, rules.get("layout", "BSHD"), True, device_name]
    operators: Any = torch.ops.pysm120
    out, lse = operators.attention(*tensors, *options, None)
    backward = (out, None, out, lse, *tensors, *options, "sinks" in x, "mask" in x)
    torch.library.opcheck(operators.attention_backward.default, backward)
    for n in "qkv":
        x[n].requires_grad_()
    torch.library.opcheck(operators.attention.default, (*tensors, *options, None))


def test_tensors_of_a_device_are_used_in_place(device: pysm120.Device, rng: np.random.Generator) -> None:
    """What a call on a GPU launches, here on tensors over the memory of any device, with odd strides."""
    given, _ = arrays(rng, {**CASES["sinks"], "kv_lengths": np.array([9, 4], np.int32)})
    out, lse = numpy_api.attention(**given, causal=True, return_lse=True, device=device)
    x = {n: torch.from_dlpack(device.array(y)) for n, y in given.items()}
    rules = sm120.Rules(True, "bottom-right", (None, None), 0.0, None, None)  # noqa: FBT003
    asked: list[Any] = []

    def needed(tensors: dict[str, torch.Tensor]) -> list[Any]:
        """Return the workspace that the library asks for in a call, if any: it depends on the device."""
        sizes: list[int] = []

        def workspace(nbytes: int) -> pysm120.Array:
            sizes.append(nbytes)
            return device.empty(nbytes, np.uint8)

        there = {n: device.from_dlpack(y) for n, y in tensors.items()}
        numpy_api.attention(**there, causal=True, return_lse=True, workspace=workspace)
        return [((nbytes,), torch.uint8) for nbytes in sizes]

    def empty(shape: tuple[int, ...], *, dtype: Any, device: Any) -> torch.Tensor:
        assert device == x["q"].device
        asked.append((tuple(shape), dtype))
        return torch.from_dlpack(opened.zeros(shape, np.dtype(str(dtype).removeprefix("torch."))))

    opened = device
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sm120, "shared_device", lambda _: device)
        if device.is_virtual:
            patch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=0))
        patch.setattr(torch, "empty", empty)
        made = sm120._launch(sm120.attend(rules, "BSHD", None), x)
        device.synchronize()
        for got, best in zip(made, (out, lse), strict=True):
            same(got, best)
        assert asked == [(out.shape, torch.float16), (lse.shape, torch.float32), *needed(x)]
        asked.clear()
        # Rows of 13 elements of 16 are read through a workspace.
        wide = {n: device.array(np.pad(given[n], ((0, 0),) * 3 + ((0, 3),))) for n in "qkv"}
        short = {n: torch.from_dlpack(y)[..., :13] for n, y in wide.items()}
        best = numpy_api.attention(*(given[n][..., :13] for n in "qkv"), causal=True, device=device)
        got, _ = sm120._launch(sm120.attend(rules, "BSHD", None), short)
        device.synchronize()
        same(got, best)
        copies = needed(short)
        assert len(copies) == 1
        assert asked == [(best.shape, torch.float16), (lse.shape, torch.float32), *copies]
        # Gradients.
        dout = given["q"][..., :16].copy()
        back = {**x, "out": made[0], "lse": made[1], "dout": torch.from_dlpack(device.array(dout))}
        wanted = numpy_api.attention_backward(
            dout, **given, out=out, lse=lse, causal=True, return_dsinks=True, deterministic=True,
            device=device,
        )  # fmt: skip
        traced = sm120.differentiate(rules, "BSHD", ["q", "k", "v", "sinks"], deterministic=True)
        slopes = sm120._launch(traced, back)
        device.synchronize()
        for got, best in zip(slopes, wanted, strict=True):
            same(got, best)


def test_kernels_read_dense_rows() -> None:
    """Strides of rows, heads and batches are free in four tensors and a mask; everything else is contiguous."""
    x = torch.zeros(2, 6, 4, 32)
    for name in ("q", "k", "v", "out", "dout", "mask"):
        assert sm120._with_dense_rows(x.transpose(1, 2), name).data_ptr() == x.data_ptr()
        for apart in (x.transpose(2, 3), x[..., ::2], x[0, 0, 0, 0].expand(2, 6, 4, 32)):
            assert sm120._with_dense_rows(apart, name).is_contiguous()
    for name in ("lse", "dlse", "sinks", "alibi_slopes", "kv_lengths", "diagonals"):
        assert sm120._with_dense_rows(x[0, 0].T, name).is_contiguous()
        assert sm120._with_dense_rows(x[0, 0, :, :1].expand(4, 32), name).is_contiguous()


@pytest.mark.cuda
def test_a_cuda_graph(place: str, rng: np.random.Generator) -> None:
    """A captured call on a stream of its own, replayed on other values."""
    q, k, v = (tensor(rng.standard_normal((1, 40, 2, 24)).astype(np.float16), place) for _ in "qkv")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        sm120.attention(q, k, v, causal=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sm120.attention(q, k, v, causal=True)
    q.copy_(k)
    graph.replay()
    assert torch.equal(out, sm120.attention(k, k, v, causal=True))


def test_wrong_arguments_are_named(device_name: str, place: str) -> None:
    x = torch.zeros((1, 4, 2, 32), dtype=torch.float16, device=place)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"k": x[..., :8]}, ValueError, "k has shape .*, but q has head_dim = 32"),
        ({"k": x.float()}, TypeError, "k has dtype float32, but q has float16"),
        ({"q": "x"}, TypeError, r"q is a str, not a torch\.Tensor"),
        ({"sinks": np.zeros(2, np.float32)}, TypeError, r"sinks is a ndarray, not a torch\.Tensor"),
        ({"causal": 1}, TypeError, "causal is 1, not True or False"),
        ({"layout": "SBHD"}, ValueError, "layout is 'SBHD', not one of"),
        ({"precision": "f64"}, ValueError, "precision is 'f64', not one of"),
        ({"window": 3}, TypeError, "window is 3, not"),
        ({"out_dtype": torch.int8}, TypeError, "out_dtype has dtype int8"),
        ({"out_dtype": np.float32}, TypeError, r"out_dtype is .*, not a torch\.dtype"),
        ({"return_lse": 1}, TypeError, "return_lse is 1"),
        ({"deterministic": 1}, TypeError, "deterministic is 1"),
        ({"device": 1}, TypeError, "device is a int, not the name of a device"),
        ({"q": x.to("meta")}, ValueError, "k is on .*, but q is on meta"),
        ({n: x.to("meta") for n in "qkv"}, ValueError, "q is on meta, not on the CPU or a GPU"),
        ({"kv_lengths": torch.zeros(2, dtype=torch.int32, device=place)}, ValueError, "kv_lengths has shape"),
    ]
    for given, kind, message in wrong:
        with pytest.raises(kind, match=message):
            sm120.attention(**{"q": x, "k": x, "v": x, "device": device_name, **given})
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"k has shape .*, but q has head_dim = 32"):
        compiled("aot_eager")(x, x[..., :8], x, device=device_name)


def test_operations_on_arrays_say_what_computes_gradients(device_name: str, place: str) -> None:
    x = torch.zeros((1, 4, 2, 32), dtype=torch.float16, device=place, requires_grad=True)
    with pytest.raises(ValueError, match=r"^q requires gradients: give \.detach\(\) of it, or call pysm120\.torch"):
        pysm120.attention(x, x, x, device=device_name)


def test_a_negative_bit(device_name: str, place: str, rng: np.random.Generator) -> None:
    """DLPack drops the bit: calls on arrays refuse such tensors; the operator gets what they hold."""
    x = torch.tensor(rng.standard_normal((1, 5, 2, 32)), dtype=torch.float32, device=place)
    negative = torch.complex(x, x).conj().imag
    assert negative.is_neg()
    for given in ({"k": negative}, {"out": torch.complex(x, x).conj().imag}):
        with pytest.raises(ValueError, match=r"^\w+ has the negative bit, which DLPack drops: give \.resolve_neg\(\)"):
            pysm120.attention(**{"q": x, "k": x, "v": x, "device": device_name, **given})
    assert torch.equal(
        sm120.attention(x, negative, x, device=device_name), sm120.attention(x, -x, x, device=device_name)
    )


def test_lengths_in_64_bits(device_name: str, place: str, rng: np.random.Generator) -> None:
    """A length beyond 32 bits is not cut off: the host refuses it, and a GPU takes all keys."""
    x = torch.tensor(rng.standard_normal((2, 9, 2, 32)), dtype=torch.float16, device=place)
    found = [
        sm120.attention(x, x, x, kv_lengths=torch.tensor([4, 9], dtype=dtype, device=place), device=device_name)
        for dtype in (torch.int32, torch.int64)
    ]
    assert torch.equal(*found)
    lengths = torch.tensor([4, 2**32 + 5], device=place)
    if place == "cpu":
        with pytest.raises(ValueError, match="each length must be from 0 to 9"):
            sm120.attention(x, x, x, kv_lengths=lengths, device=device_name)
    else:
        assert torch.equal(sm120.attention(x, x, x, kv_lengths=lengths, device=device_name), found[0])


def test_second_derivatives_are_refused(device_name: str, place: str) -> None:
    """They are no zeros, but an error."""
    x = torch.ones((1, 4, 2, 32), dtype=torch.float16, device=place, requires_grad=True)
    (slope,) = torch.autograd.grad(sm120.attention(x, x, x, device=device_name).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="has no second derivatives: they are not supported"):
        slope.sum().backward()


def test_torch_func(device_name: str, place: str, rng: np.random.Generator) -> None:
    """Vmap is a loop, and grad an error of PyTorch."""
    x = tensor(rng.standard_normal((3, 1, 5, 2, 16)).astype(np.float16), place)

    def attend(y: torch.Tensor) -> Any:
        return sm120.attention(y, y, y, device=device_name)

    assert torch.equal(torch.func.vmap(attend)(x), torch.stack([attend(y) for y in x]))
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda y: attend(y).sum())(x[0])


def test_torch_is_imported_only_if_asked() -> None:
    code = "import pysm120, sys; assert 'torch' not in sys.modules; import pysm120.torch; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
