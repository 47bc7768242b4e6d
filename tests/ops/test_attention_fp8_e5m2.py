"""attention in fp8 with q, k and v in e5m2, each by itself: against float64, and against the kernels in e4m3."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness import OpenDevice, check, ffi, lib, new_struct
from reference import Array, attention_float64, attention_scaled, relative_error

import pysm120
from pysm120.compat import cudnn, flash_attn_3
from pysm120.runtime.module import builtins

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
MIXES = list(itertools.product((E4M3, E5M2), repeat=3))
EACH = MIXES[1:]  # those with e5m2


def names(kinds: Any) -> str:
    """Return an id of the types of q, k and v."""
    return "-".join(np.dtype(kind).name.removeprefix("float8_")[:4] for kind in kinds)


each_mix = pytest.mark.parametrize("kinds", EACH, ids=names)


def drawn(rng: np.random.Generator, kinds: Any, rows: int, keys: int, head_dim: int, heads: int = 2) -> list[Any]:
    """Draw q, k and v (1, rows, heads, head_dim) in their types."""
    return [
        rng.standard_normal((1, n, heads, head_dim)).astype(t) for n, t in zip((rows, keys, keys), kinds, strict=True)
    ]


def of_both(rng: np.random.Generator, *shape: int) -> Array:
    """Draw numbers that both types have."""
    x = rng.standard_normal(shape).astype(E5M2).astype(np.float32)
    return np.where(np.abs(x) < 2.0**-6, 0, x)


@each_mix
@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("causal", [None, "bottom-right"])
def test_matches_both_references(
    device: pysm120.Device, rng: np.random.Generator, kinds: Any, head_dim: int, causal: str | None
) -> None:
    """Only P is rounded: the error against float64 is that of the model of the kernel."""
    q, k, v = drawn(rng, kinds, 70, 150, head_dim)
    o, lse = pysm120.attention(q, k, v, causal=causal is not None, out_dtype=np.float32, return_lse=True, device=device)
    given = [x.astype(np.float64) for x in (q, k, v)]
    exact_o, exact_lse = attention_float64(given[0], given[1], given[2], head_dim**-0.5, causal)
    model_o, _ = attention_scaled(
        given[0], given[1], given[2], head_dim**-0.5, causal, "fp8, sums by products", tile=64
    )
    assert relative_error(o, exact_o) <= 1.05 * relative_error(model_o, exact_o) + 1e-3
    assert relative_error(model_o, exact_o) <= 0.04
    assert np.abs(lse - exact_lse).max() <= 2.0**-4


@each_mix
@pytest.mark.parametrize("head_dim", [64, 128])
def test_features_have_the_bits_of_e4m3(
    device: pysm120.Device, rng: np.random.Generator, kinds: Any, head_dim: int
) -> None:
    """Numbers that both types have give the same bits, with scales, options, packed sequences and a past."""
    q, k, v = of_both(rng, 2, 70, 4, head_dim), of_both(rng, 2, 150, 2, head_dim), of_both(rng, 2, 150, 2, head_dim)
    rows = np.arange(70)
    options: list[dict[str, Any]] = [
        {"softcap": 5.0, "causal": True},
        {"alibi_slopes": np.full(4, 0.1, np.float32), "causal": True},
        {"mask": rng.standard_normal((1, 4, 70, 150)).astype(np.float32)},
        {"mask": rows[:, None] % 7 != np.arange(150) % 7, "window": (90, 20)},
        {"sinks": np.full(4, 1.5, np.float32), "kv_lengths": np.array([33, 150], np.int32)},
    ]
    scales: dict[str, Any] = {
        "q_scale": np.array([0.5, -1.5], np.float32),
        "k_scale": np.full(1, 1.25, np.float32),
        "v_scale": rng.uniform(0.5, 2, (2, 2)).astype(np.float32),
    }
    for option in options:
        got, wanted = (
            pysm120.attention(
                q.astype(of[0]), k.astype(of[1]), v.astype(of[2]), device=device, out_dtype=E4M3, **option, **scales
            )
            for of in (kinds, (E4M3,) * 3)
        )
        assert np.array_equal(got.view(np.uint8), wanted.view(np.uint8)), option
    past = [of_both(rng, 2, 40, 2, head_dim) for _ in range(2)]
    got, wanted = (
        pysm120.attention(
            q.astype(of[0]), k.astype(of[1]), v.astype(of[2]), past_k=past[0].astype(of[1]),
            past_v=past[1].astype(of[2]), causal=True, device=device, out_dtype=np.float32,
        )
        for of in (kinds, (E4M3,) * 3)
    )  # fmt: skip
    assert np.array_equal(got, wanted)
    q_starts, k_starts = (np.array(x, np.int32) for x in ((0, 20, 70), (0, 100, 150)))
    got, wanted = (
        pysm120.attention_varlen(
            q[0].astype(of[0]),
            k[0].astype(of[1]),
            v[0].astype(of[2]),
            q_starts,
            k_starts,
            device=device,
            out_dtype=np.float32,
        )
        for of in (kinds, (E4M3,) * 3)
    )
    assert np.array_equal(got, wanted)


def test_every_code(device: pysm120.Device, rng: np.random.Generator) -> None:
    """All 248 finite codes as values; one key decides each row, so that O is a code exactly."""
    codes = np.arange(256, dtype=np.uint8).view(E5M2)
    codes = np.concatenate([codes[np.isfinite(codes.astype(np.float32))], np.zeros(8, E5M2)])
    v = rng.permutation(codes).reshape(1, 4, 1, 64)
    k = np.zeros((1, 4, 1, 64), E5M2)
    k[0, range(4), 0, range(4)] = 448
    o = pysm120.attention(k, k, v, scale=1.0, out_dtype=np.float32, device=device)
    assert np.array_equal(o, v.astype(np.float32))


def test_range_that_e4m3_lacks(device: pysm120.Device, rng: np.random.Generator) -> None:
    """q as subnormal as 2^-16, k and v as large as 57344: nothing saturates or vanishes."""
    q = (rng.integers(-3, 4, (1, 40, 1, 64)) * 2.0**-16).astype(E5M2)
    k = (rng.choice([-57344, -40960, 20480, 57344], (1, 90, 1, 64))).astype(E5M2)
    v = (rng.standard_normal((1, 90, 1, 64)) * 10000).clip(-57344, 57344).astype(E5M2)
    o = pysm120.attention(q, k, v, scale=0.25, out_dtype=np.float32, device=device)
    given = [x.astype(np.float64) for x in (q, k, v)]
    exact, _ = attention_float64(given[0], given[1], given[2], 0.25, None)
    assert relative_error(o, exact) <= 0.04


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinities_and_nan(device: pysm120.Device, rng: np.random.Generator, value: float) -> None:
    """A NaN or an infinity of q makes its row NaN; one of v reaches its column, as the weights above 0 have it."""
    q, k, v = drawn(rng, (E5M2,) * 3, 40, 90, 64, 1)
    q[0, 7, 0, 3] = value
    k[..., 3] = 1  # an infinite score of either sign
    k[0, 50, 0, 3] = -1
    v[0, 50, 0, 20] = value
    o, lse = pysm120.attention(q, k, v, out_dtype=np.float32, return_lse=True, device=device)
    others = np.arange(40) != 7
    assert np.isnan(o[0, 7, 0]).all() if value != -np.inf else not np.isfinite(o[0, 7, 0]).all()
    assert np.isnan(lse[0, 0, 7]) or np.isinf(lse[0, 0, 7])
    assert np.isfinite(lse[0, 0, others]).all()
    assert np.isfinite(o[0, others, 0][:, np.arange(64) != 20]).all()
    column = o[0, others, 0, 20]
    assert np.isnan(column).all() if np.isnan(value) else (np.isnan(column) | (column == value)).all()


@pytest.mark.parametrize("shape", [(1, 3, 2, 20), (1, 40, 3, 72)])
def test_misaligned_tensors_are_copied(
    device: pysm120.Device, rng: np.random.Generator, shape: tuple[int, ...]
) -> None:
    """Tensors at odd addresses, with head sizes that are no multiple of 16."""
    size = int(np.prod(shape))
    kept = [rng.standard_normal(size + 1).astype(t) for t in (E5M2, E4M3, E5M2)]
    q, k, v = (device.array(x)[1:].reshape(shape) for x in kept)
    got = pysm120.attention(q, k, v, out_dtype=np.float32)
    wanted = pysm120.attention(*(x[1:].reshape(shape) for x in kept), out_dtype=np.float32, device=device)
    assert np.array_equal(got.numpy(), wanted)


def test_other_interfaces(device: pysm120.Device, rng: np.random.Generator) -> None:
    """FlashAttention 3's and cuDNN's names; a new result is bfloat16 unless asked otherwise."""
    q, k, v = drawn(rng, (E5M2, E4M3, E5M2), 40, 40, 64)
    descale = np.full((1, 2), 1.5, np.float32)
    wanted = pysm120.attention(q, k, v, q_scale=1.5, v_scale=1.5, device=device)
    assert wanted.dtype == ml_dtypes.bfloat16
    got = flash_attn_3.flash_attn_func(q, k, v, q_descale=descale, v_descale=descale, device=device)
    assert np.array_equal(got.view(np.uint16), wanted.view(np.uint16))
    q, k, v = (x.swapaxes(1, 2).copy() for x in (q, k, v))
    o, *_ = cudnn.sdpa_fp8(
        q, k, v, 1.5, 1.0, 1.5, generate_stats=False, attn_scale=0.125, out_dtype=ml_dtypes.bfloat16, device=device
    )
    assert np.array_equal(o.swapaxes(1, 2).view(np.uint16), wanted.view(np.uint16))


def test_what_is_refused(opened: OpenDevice, rng: np.random.Generator) -> None:
    """One sentence for each: e5m2 is for fp8 alone; a past has the type of what follows it; o is never e5m2."""
    q, k, v = drawn(rng, (E5M2,) * 3, 4, 4, 64)
    half: Any = q.astype(np.float16)
    with pytest.raises(TypeError, match="float8_e5m2, but precision 'bf16' needs bfloat16 or float32"):
        pysm120.attention(q, k, v, precision="bf16", device="virtual")
    with pytest.raises(TypeError, match="k has dtype float8_e5m2, but q has float16"):
        pysm120.attention(half, k, v, device="virtual")
    with pytest.raises(TypeError, match="out_dtype has dtype float8_e5m2"):
        pysm120.attention(q, k, v, out_dtype=E5M2, device="virtual")
    with pytest.raises(ValueError, match=r"past_k.dtype = E4M3 \(0x\w+\); it must be k.dtype = E5M2"):
        pysm120.attention(q, k, v, past_k=k.astype(E4M3), past_v=v, device="virtual")
    with pytest.raises(pysm120.UnsupportedError, match="num_splits"):
        pysm120.attention(q, k, v, num_splits=2, device="virtual")
    args = new_struct("sm120_attention_args")
    args.precision, args.scale = lib.SM120_FP8, 1.0
    args.batch, args.heads, args.kv_heads, args.q_rows, args.kv_rows, args.head_dim = 1, 1, 1, 1, 1, 64
    args.q.dtype = args.k.dtype = lib.SM120_E4M3
    args.v.dtype = lib.SM120_E5M2
    config, kernel = ffi.new("const char **"), ffi.new("int32_t *")
    check(lib.sm120_attention_config(args, 0, config, kernel))
    assert builtins()[kernel[0]].entry == "attention_fp8_e5m2_128x64_d64_any"
    assert opened.handle
