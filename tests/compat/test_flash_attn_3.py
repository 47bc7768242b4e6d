"""The functions of FlashAttention 3: the order of arguments, scales by heads of k, what is refused."""

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pysm120
from pysm120.compat import flash_attn_3

# The arguments of hopper/flash_attn_interface.py, in its order.
DENSE = (
    "q k v softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap num_splits "
    "pack_gqa deterministic sm_margin return_attn_probs"
)
VARLEN = (
    "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k softmax_scale causal qv q_descale "
    "k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa deterministic sm_margin "
    "return_attn_probs"
)


def inputs(rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    """Draw q, k and v, and scales (B, Hkv)."""
    shapes = ((2, 40, 4, 64), (2, 70, 2, 64), (2, 70, 2, 64))
    codes = [(rng.standard_normal(shape) * 16).astype(ml_dtypes.float8_e4m3fn) for shape in shapes]
    return codes, [rng.uniform(0.02, 0.1, (2, 2)).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize(("function", "wanted"), [("flash_attn_func", DENSE), ("flash_attn_varlen_func", VARLEN)])
def test_the_order_of_arguments(function: str, wanted: str) -> None:
    """Calls by position mean the same."""
    parameters = inspect.signature(getattr(flash_attn_3, function)).parameters.values()
    assert " ".join(x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD) == wanted


def test_scales_of_heads(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A causal window with scales (B, Hkv) is attention with a scale for each head."""
    (q, k, v), (of_q, of_k, of_v) = inputs(rng)
    is_causal = True
    got, lse = flash_attn_3.flash_attn_func(
        q, k, v, 0.1, is_causal, None, of_q, of_k, of_v, (20, -1), softcap=7.0, return_attn_probs=True, device=device
    )
    wanted, wanted_lse = pysm120.attention(
        q,
        k,
        v,
        scale=0.1,
        causal=True,
        window=(20, None),
        softcap=7.0,
        q_scale=np.repeat(of_q, 2, 1),
        k_scale=of_k,
        v_scale=of_v,
        return_lse=True,
        device=device,
    )
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(got.view(np.uint16), wanted.view(np.uint16))
    assert np.array_equal(lse, wanted_lse)
    starts = [np.array([0, n, 2 * n], np.int32) for n in (40, 70)]
    flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    varlen: Any = flash_attn_3.flash_attn_varlen_func
    packed = varlen(
        *flat, *starts, 40, 70, None, None, 0.1, is_causal, None, of_q, of_k, of_v, (20, -1), 0, 7.0, device=device
    )
    assert np.array_equal(packed.reshape(got.shape).view(np.uint16), wanted.view(np.uint16))


def test_sixteen_bits(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Without scales any dtype of attention is taken."""
    (q, k, v), _ = inputs(rng)
    q, k, v = (x.astype(np.float16) for x in (q, k, v))
    assert np.array_equal(
        flash_attn_3.flash_attn_func(q, k, v, device=device), pysm120.attention(q, k, v, device=device)
    )


@pytest.mark.parametrize("name", ["qv", "attention_chunk", "seqused_q", "seqused_k"])
def test_what_is_refused(rng: np.random.Generator, name: str) -> None:
    """Options that would change the result."""
    (q, k, v), _ = inputs(rng)
    starts = np.array([0, 40], np.int32)
    packed = (q[0], k[0], v[0], starts, starts, 40, 40)
    function: Any = flash_attn_3.flash_attn_varlen_func if name.startswith("seqused") else flash_attn_3.flash_attn_func
    with pytest.raises(pysm120.UnsupportedError, match=f"{name} is given, which is not supported"):
        function(*(packed if name.startswith("seqused") else packed[:3]), **{name: 1})
