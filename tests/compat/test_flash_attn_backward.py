"""The backward passes of FlashAttention 2 by its names: their arguments, and the gradients of attention_backward."""

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pysm120
from pysm120.compat import flash_attn
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

BF16 = np.dtype(ml_dtypes.bfloat16)
BEFORE = "dout q k v out softmax_lse dq dk dv"
STARTS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
BEHIND = (
    "dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes deterministic rng_state"
)
backward: Any = flash_attn._flash_attn_backward
varlen_backward: Any = flash_attn._flash_attn_varlen_backward


class Foreign:
    """An array of another library: it has DLPack alone."""

    def __init__(self, x: Any) -> None:
        self.x, self.dtype, self.shape = x, x.dtype, x.shape

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


@pytest.mark.parametrize(
    ("function", "wanted"), [(backward, f"{BEFORE} {BEHIND}"), (varlen_backward, f"{BEFORE} {STARTS} {BEHIND}")]
)
def test_signatures_are_those_of_flash_attention(function: Any, wanted: str) -> None:
    """Version 2.8.3: flash_attn/flash_attn_interface.py."""
    parameters = inspect.signature(function).parameters.values()
    assert [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD] == wanted.split()
    assert [x.name for x in parameters if x.default is None and x.kind is x.POSITIONAL_OR_KEYWORD] == ["rng_state"]


@pytest.mark.parametrize("where", ["host", "device", "foreign"])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients(device: pysm120.Device, rng: np.random.Generator, where: str, *, packed: bool) -> None:
    """Every argument reaches the operation; without keys LSE is +inf, as FlashAttention has it."""
    q, dout = rng.standard_normal((2, 90, 4, 64)).astype(BF16)
    k, v = rng.standard_normal((2, 60, 2, 64)).astype(BF16)
    slopes = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    starts: list[Any] = [np.array([0, 50, 90], np.int32), np.array([0, 20, 60], np.int32)]
    rules: dict[str, Any] = {"causal": True, "softcap": 5.0, "scale": 0.2, "window": (30, None), "alibi_slopes": slopes}
    if packed:
        out, lse = pysm120.attention_varlen(q, k, v, *starts, return_lse=True, device=device, **rules)
        wanted: Any = pysm120.attention_varlen_backward(
            dout, q, k, v, out, lse, *starts, deterministic=True, device=device, **rules
        )
    else:
        q, k, v, dout = (x[None] for x in (q, k, v, dout))
        out, lse = pysm120.attention(q, k, v, precision="bf16", return_lse=True, device=device, **rules)
        wanted = pysm120.attention_backward(dout, q, k, v, out, lse, deterministic=True, device=device, **rules)
    assert np.isneginf(lse).any()
    given = [dout, q, k, v, out, np.where(np.isneginf(lse), np.inf, lse), *(np.zeros_like(x) for x in (q, k, v))]
    given += starts if packed else []
    there: list[Any] = given if where == "host" else [device.array(x) for x in given]
    arrays = [Foreign(x) for x in there] if where == "foreign" else there
    alibi = slopes if where == "host" else device.array(slopes)
    options = [0.0, 0.2, True, 30, -1, 5.0, Foreign(alibi) if where == "foreign" else alibi, True, None]
    function, longest = (varlen_backward, [50, 40]) if packed else (backward, [])
    assert function(*arrays, *longest, *options, device=device) is None
    for got, best in zip(there[6:9], wanted, strict=True):
        np.testing.assert_array_equal(got if where == "host" else got.numpy(), best)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"dropout_p": 0.1}, UnsupportedError, "dropout_p is 0.1"),
        ({"dq": None}, InvalidArgumentError, "dq is None"),
        ({"window_size_left": -2}, InvalidArgumentError, "window_size"),
        ({"softmax_scale": "x"}, TypeError, "softmax_scale is 'x'"),
        ({"deterministic": 1}, TypeError, "deterministic is 1"),
    ],
)
def test_wrong_arguments_are_named(
    device: pysm120.Device, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    x, lse = np.ones((1, 5, 2, 64), BF16), np.zeros((1, 2, 5), np.float32)
    right: dict[str, Any] = dict.fromkeys(BEFORE.split(), x) | {"softmax_lse": lse}
    right |= dict.fromkeys(BEHIND.split(), None) | {"dropout_p": 0.0, "softmax_scale": None, "causal": False}
    right |= {"window_size_left": -1, "window_size_right": -1, "softcap": 0.0, "deterministic": False}
    with pytest.raises(kind, match=message):
        backward(**{**right, **changes}, device=device)
