"""sdpa_fp8 of cuDNN's frontend: scales, masks, stats, amax, what is refused."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pysm120
from pysm120.compat import cudnn

E4M3 = ml_dtypes.float8_e4m3fn
DESCALES = (0.03, 0.05, 0.08)
sdpa_fp8: Any = cudnn.sdpa_fp8  # calls unpack tuples and mappings


def inputs(rng: np.random.Generator) -> list[Any]:
    """Draw q, k and v in the layout of cuDNN."""
    shapes = ((2, 4, 40, 64), (2, 2, 70, 64), (2, 2, 70, 64))
    return [(rng.standard_normal(shape) * 16).astype(E4M3) for shape in shapes]


def exact(q: Any, k: Any, v: Any, *, scale: float, diagonal: int | None, lengths: Any = None) -> tuple[Any, Any]:
    """Return o and the log-sum-exp in float64, from values."""
    q, k, v = (x.astype(np.float64) * s for x, s in zip((q, k, v), DESCALES, strict=True))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = scale * q @ k.swapaxes(2, 3)
    rows, keys = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
    if diagonal is not None:
        scores = np.where(keys <= rows + diagonal, scores, -np.inf)
    if lengths is not None:
        scores = np.where(keys < np.reshape(lengths, (-1, 1, 1, 1)), scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    p = np.exp(scores - highest)
    return p @ v / p.sum(-1, keepdims=True), (highest + np.log(p.sum(-1, keepdims=True)))


def scalar(x: float) -> Any:
    """Return a tensor of cuDNN with one element."""
    return np.full((1, 1, 1, 1), x, np.float32)


@pytest.mark.parametrize(
    ("options", "diagonal"),
    [
        ({}, None),
        ({"use_causal_mask": True}, 0),
        ({"use_causal_mask_bottom_right": True}, 30),
        ({"use_padding_mask": True, "seq_len_kv": np.array([50, 9], np.int32).reshape(2, 1, 1, 1)}, None),
    ],
    ids=["plain", "top-left", "bottom-right", "padding"],
)
def test_against_float64(
    device: pysm120.Device, rng: np.random.Generator, options: dict[str, Any], diagonal: int | None
) -> None:
    """o * (1 / scale_o), stats and amax_o are those of the values; attn_scale is 1 unless given."""
    q, k, v = inputs(rng)
    scale_o = 2.0**7
    for attn_scale in (None, 0.125):
        o, stats, amax_s, amax_o = sdpa_fp8(
            q,
            k,
            v,
            *map(scalar, DESCALES),
            scalar(1 / 448),
            scalar(448),
            scalar(scale_o),
            attn_scale=attn_scale,
            generate_stats=True,
            device=device,
            **options,
        )
        wanted, lse = exact(q, k, v, scale=attn_scale or 1.0, diagonal=diagonal, lengths=options.get("seq_len_kv"))
        assert o.dtype == E4M3
        assert amax_s is None
        assert stats.shape == lse.shape == (2, 4, 40, 1)
        assert amax_o.shape == (1, 1, 1, 1)
        values = o.astype(np.float64) / scale_o
        assert np.linalg.norm(values - wanted) / np.linalg.norm(wanted) < 0.06
        # A row's sum is of weights that were rounded to three bits.
        assert np.abs(stats - lse).max() < 2.0**-4
        assert np.sqrt(np.mean((stats - lse) ** 2)) < 0.01
        assert amax_o.item() == pytest.approx(np.abs(wanted).max(), rel=0.05)
        assert amax_o.item() * scale_o < 448 or np.abs(o.astype(np.float32)).max() == 448


def test_the_bits_of_attention(device: pysm120.Device, rng: np.random.Generator) -> None:
    """On a device and without stats; a power of two as scale_o is exact; numbers are taken for host arrays."""
    host = inputs(rng)
    q, k, v = (device.array(x) for x in host)
    scales = [device.array(np.full(1, x, np.float32)) for x in DESCALES]
    descale_o = device.array(scalar(2.0**-5))
    o, stats, _, amax_o = sdpa_fp8(
        q, k, v, *scales, descale_o=descale_o, generate_stats=False, attn_scale=0.1, use_causal_mask=True
    )
    assert stats is None
    amax = np.zeros(1, np.float32)
    wanted = pysm120.attention(
        *host,
        q_scale=DESCALES[0],
        k_scale=DESCALES[1],
        v_scale=DESCALES[2],
        o_scale=2.0**-5,
        amax=amax,
        scale=0.1,
        causal=True,
        causal_align="top-left",
        layout="BHSD",
        out_dtype=E4M3,
        device=device,
    )
    assert np.array_equal(o.numpy().view(np.uint8), wanted.view(np.uint8))
    assert amax_o.numpy().item() == amax[0]
    by_number = sdpa_fp8(
        *host,
        *DESCALES,
        scale_o=32,
        generate_stats=False,
        attn_scale=0.1,
        use_causal_mask=True,
        device=device,
    )
    assert np.array_equal(by_number[0].view(np.uint8), wanted.view(np.uint8))
    in_16_bits = sdpa_fp8(*host, *DESCALES, generate_stats=False, attn_scale=0.1, out_dtype=np.float16, device=device)
    assert in_16_bits[0].dtype == np.float16


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"seq_len_q": np.ones(2, np.int32)}, pysm120.UnsupportedError, "seq_len_q is given, which is not supported"),
        ({"q": np.ones((1, 1, 2, 64), np.float16)}, pysm120.UnsupportedError, "q is float16, but sdpa_fp8 takes"),
        ({"descale_s": 1.0, "scale_s": 448.0}, pysm120.UnsupportedError, "scale_s is 448.0, but each must be the inv"),
        ({"scale_o": 0.0}, ValueError, "scale_o is 0.0, not above 0"),
        ({"scale_o": math.nan}, ValueError, "scale_o is nan"),
        ({"scale_o": 1.0, "descale_o": 1.0}, ValueError, "scale_o and descale_o are both given"),
        ({"descale_q": np.ones(4, np.float32)}, ValueError, r"descale_q has shape \(4,\), not one element"),
        ({"descale_k": "x"}, TypeError, "descale_k is 'x', not a real number"),
        ({"use_padding_mask": True}, ValueError, "use_padding_mask is True, but seq_len_kv is not given"),
        ({"seq_len_kv": np.ones(2, np.int32)}, ValueError, "use_padding_mask is False, but seq_len_kv is given"),
        ({"use_causal_mask": 1}, TypeError, "use_causal_mask is 1, not True or False"),
        ({"use_causal_mask": True, "use_causal_mask_bottom_right": True}, ValueError, "choose one of them"),
        ({"generate_stats": None}, TypeError, "generate_stats is None, not True or False"),
        ({"scale_o": 2.0, "out_dtype": np.float16}, ValueError, "o_scale"),
    ],
    ids=str,
)
def test_wrong_arguments(
    device: pysm120.Device,
    rng: np.random.Generator,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    q, k, v = inputs(rng)
    call: dict[str, Any] = dict(zip(("descale_q", "descale_k", "descale_v"), DESCALES, strict=True))
    call |= {"q": q, "k": k, "v": v, "generate_stats": True} | change
    with pytest.raises(error, match=message):
        sdpa_fp8(device=device, **call)


def test_scale_o_on_the_device_is_refused(device: pysm120.Device, rng: np.random.Generator) -> None:
    q, k, v = (device.array(x) for x in inputs(rng))
    one = device.array(np.ones(1, np.float32))
    with pytest.raises(pysm120.UnsupportedError, match="give descale_o = 1 / scale_o on the device instead"):
        sdpa_fp8(q, k, v, one, one, one, scale_o=one, generate_stats=False)
