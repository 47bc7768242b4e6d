"""Public operations on arrays inside torch.compile: they interrupt the graph, and results are those of plain calls."""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

import pysm120
from pysm120.compat import cudnn, flash_attn_3

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own modules

api: Any = pysm120  # arguments come from tables
Given = dict[str, Any]


def tensor(x: npt.NDArray[Any], place: str) -> torch.Tensor:
    return torch.from_numpy(x).to(place)


@pytest.fixture
def given(device: pysm120.Device, rng: np.random.Generator) -> Given:
    """What the calls take: tensors, where pysm120 computes, weights, and Arrays."""
    place = "cpu" if device.is_virtual else f"cuda:{device.info.ordinal}"

    def halves(*shape: int) -> torch.Tensor:
        return tensor(rng.standard_normal(shape).astype(np.float16), place)

    def numbers(dtype: Any, *values: Any) -> torch.Tensor:
        return tensor(np.array(values, dtype), place)

    q, packed = halves(1, 4, 2, 32), halves(4, 2, 32)
    codes = np.ones((1, 2, 4, 32), ml_dtypes.float8_e4m3fn).view(np.uint8)
    found: Given = {
        "q": q,
        "x": packed,
        "pages": halves(4, 4, 2, 32),
        "lengths": numbers(np.int32, 9),
        "table": numbers(np.int32, [2, 0, 3]),
        "slots": numbers(np.int64, 3, 0, 7, 9),
        "ends": numbers(np.int32, 0, 1, 4),
        "e4m3": tensor(codes, place).view(torch.float8_e4m3fn),
        "one": 1.0 if device.is_virtual else numbers(np.float32, 1.0),
        "scales": tensor(rng.integers(0, 255, (4, 4), np.uint8), place),
        "vector": tensor(rng.standard_normal(64).astype(np.float32), place),
        "pair": [device.array(np.full(4, value, np.float32)) for value in (0, 1)],
        "raw": bytes(range(34)) * 8,
        "at": {"device": device},
    }
    found["w"] = pysm120.QuantizedMatrix.from_gguf(found["raw"], "Q8_0", (4, 64), device=device)
    found["out"], found["lse"] = api.attention(q, q, q, return_lse=True, device=device)
    found["outs"] = api.attention_varlen(*(packed,) * 3, *(found["ends"],) * 2, 3, 3, return_lse=True, device=device)
    return found


def appended(t: Given) -> Any:
    """Return a cache after an append."""
    cache = t["pages"].clone()
    pysm120.kv_cache_append(t["x"], t["x"], cache, cache.clone(), t["slots"], **t["at"])
    return cache


def copied(t: Given) -> Any:
    """Return two Arrays after a copy of one to the other."""
    pysm120.copy_batch([(*t["pair"], 16)])
    return t["pair"]


# What to do with what is `given`, for everything public that takes arrays.
CALLS: dict[str, Callable[[Given], Any]] = {
    "attention": lambda t: api.attention(t["q"], t["q"], t["q"], causal=True, return_lse=True, **t["at"]),
    "attention_backward": lambda t: api.attention_backward(*(t["q"],) * 4, t["out"], t["lse"], **t["at"]),
    "attention_varlen": lambda t: api.attention_varlen(*(t["x"],) * 3, *(t["ends"],) * 2, 3, 3, **t["at"]),
    "attention_varlen_backward": lambda t: api.attention_varlen_backward(
        *(t["x"],) * 4, *t["outs"], *(t["ends"],) * 2, 3, 3, **t["at"]
    ),
    "attention_with_kv_cache": lambda t: api.attention_with_kv_cache(
        t["q"], t["pages"], t["pages"], t["lengths"], page_table=t["table"], return_lse=True, **t["at"]
    ),
    "copy_batch": copied,
    "CopyList": lambda t: (api.copy_batch(api.CopyList([(*t["pair"], 16)])), t["pair"]),
    "dequantize": lambda t: api.dequantize(t["w"]),
    "Device.from_dlpack": lambda t: t["at"]["device"].from_dlpack(t["q"], copy=True),
    "flash_attn_func": lambda t: api.flash_attn_func(t["q"], t["q"], t["q"], **t["at"]),
    "flash_attn_kvpacked_func": lambda t: api.flash_attn_kvpacked_func(
        t["q"], torch.stack((t["q"], t["q"]), 2), **t["at"]
    ),
    "flash_attn_qkvpacked_func": lambda t: api.flash_attn_qkvpacked_func(torch.stack((t["q"],) * 3, 2), **t["at"]),
    "flash_attn_varlen_func": lambda t: api.flash_attn_varlen_func(*(t["x"],) * 3, *(t["ends"],) * 2, 3, 3, **t["at"]),
    "flash_attn_with_kvcache": lambda t: api.flash_attn_with_kvcache(
        t["q"], t["pages"], t["pages"], cache_seqlens=t["lengths"], block_table=t["table"], **t["at"]
    ),
    "kv_cache_append": appended,
    "kv_cache_gather": lambda t: api.kv_cache_gather(t["pages"], t["pages"], t["slots"], **t["at"]),
    "matvec": lambda t: api.matvec(t["w"], t["vector"]),
    "matvec_glu": lambda t: api.matvec_glu(t["w"], t["w"], t["vector"]),
    "merge_states": lambda t: api.merge_states(
        torch.stack((t["out"], t["q"])), torch.stack((t["lse"], t["lse"])), **t["at"]
    ),
    "QuantizedMatrix.from_gguf": lambda t: api.QuantizedMatrix.from_gguf(t["raw"], "Q8_0", (4, 64), **t["at"]).data,
    "quantize_mxfp8": lambda t: api.quantize_mxfp8(t["q"], **t["at"]),
    "quantize_mxfp8_tiles": lambda t: api.quantize_mxfp8_tiles(t["q"], "k", **t["at"]).data,
    "quantize_nvfp4": lambda t: api.quantize_nvfp4(t["q"], **t["at"]),
    "repack": lambda t: api.repack(t["w"]).data,
    "repack_scales": lambda t: api.repack_scales(t["scales"], "linear", "128x4", **t["at"]),
    "scaled_dot_product_attention": lambda t: api.scaled_dot_product_attention(t["q"], t["q"], t["q"], **t["at"]),
    "flash_attn_3.flash_attn_func": lambda t: flash_attn_3.flash_attn_func(t["q"], t["q"], t["q"], **t["at"]),
    "flash_attn_3.flash_attn_varlen_func": lambda t: flash_attn_3.flash_attn_varlen_func(
        *(t["x"],) * 3, *(t["ends"],) * 2, 3, 3, **t["at"]
    ),
    "cudnn.sdpa_fp8": lambda t: cudnn.sdpa_fp8(*(t["e4m3"],) * 3, *(t["one"],) * 3, generate_stats=True, **t["at"]),
}


def flat(made: Any) -> list[bytes]:
    """Return the bits of results."""
    if isinstance(made, tuple | list):
        return [bits for x in made for bits in flat(x)]
    if isinstance(made, torch.Tensor):
        made = made.cpu().contiguous().view(torch.uint8).numpy()
    elif isinstance(made, pysm120.Array):
        made = made.numpy()
    return [made.tobytes() if isinstance(made, np.ndarray) else repr(made).encode()]


@pytest.mark.parametrize("name", CALLS)
def test_operations_on_arrays_interrupt_a_graph(given: Given, name: str) -> None:
    """What surrounds the call is compiled; a graph that must be whole is refused."""

    def step(t: Given) -> Any:
        before = t["q"] + 1
        return CALLS[name](t), before * 2

    torch._dynamo.reset()
    best = flat(step(given))
    assert flat(torch.compile(step, backend="eager")(given)) == best
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(step, backend="eager", fullgraph=True)(given)


def test_every_public_function_of_arrays_is_called() -> None:
    """All functions of the package but `recommend`, which takes shapes, and three more callables."""

    def functions(module: Any) -> set[str]:
        return {
            name
            for name, x in vars(module).items()
            if isinstance(x, FunctionType) and not name.startswith("_") and inspect.unwrap(x).__module__ in names
        }

    names = {module.__name__ for module in (flash_attn_3, cudnn)}
    ours = {n for n in api.__all__ if isinstance(getattr(api, n), FunctionType)} - {"recommend"}
    theirs = {f"{x.__name__.rpartition('.')[2]}.{n}" for x in (flash_attn_3, cudnn) for n in functions(x)}
    assert set(CALLS) == ours | theirs | {"CopyList", "Device.from_dlpack", "QuantizedMatrix.from_gguf"}
