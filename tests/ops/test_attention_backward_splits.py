"""attention_backward where few heads of k and v leave multiprocessors idle: CTAs share the heads of q of one."""

from typing import Any

import numpy as np
import pytest
from backward_cases import ODD, Case, judge, kernel, name, padded, ready, run_virtual, verify, workspace_bytes
from backward_reference import Gradients, delta_of, gradients
from harness import OpenDevice

import pysm120

attention_backward: Any = pysm120.attention_backward


def splits(device: pysm120.Device, case: Case) -> int:
    """The rule of docs/reference/attention_backward.md."""
    tile, group = kernel(device, case), case.heads // case.kv_heads
    sms = 128 if case.deterministic else device.info.multiprocessors
    ctas = case.batch * case.kv_heads * -(-case.kv_rows // tile.kv_rows)
    q_tiles = -(-case.q_rows // tile.q_rows)
    has_right = case.causal is not None or case.window[1] is not None

    def time(n: int) -> int:
        longest, mean = group // n * q_tiles + 2, ctas * n * (-(-group // n * q_tiles // 2) + 2) // sms
        return max(longest, mean) if has_right else -(-ctas * n // sms) * longest

    times = {n: time(n) for n in range(1, group + 1) if group % n == 0}
    best = 1
    for n, tiles in times.items():
        best = n if 100 * tiles < 95 * times[best] else best
    saved = times[1] - times[best]
    return best if saved >= 8 and saved >= 0.1 * times[1] else 1


def parts_of(device: pysm120.Device, case: Case) -> int:
    """The bytes of the parts of dk and dv: head sizes are multiples of 64 here, so that nothing is rounded up."""
    count = splits(device, case)
    rows = case.batch * case.kv_heads * count * case.kv_rows
    return sum(padded(4 * rows * width) for width in (case.head_dim, case.width)) if count > 1 else 0


SPLIT = [
    Case(1, 8, 1, 130, 300, 64, "bottom-right"),
    Case(1, 8, 1, 130, 100, 64, deterministic=True),
    Case(2, 12, 2, 200, 150, 100, None, "float16", "float16", 33),
    Case(1, 6, 2, 600, 90, 64, "top-left", out_dtype="bfloat16"),
    Case(1, 8, 1, 130, 70, 128, window=(40, 17), deterministic=True, out_dtype="bfloat16"),
    Case(1, 5, 1, 200, 33, 20, None, "float16", "bfloat16"),
    Case(1, 4, 1, 200, 65, 256, "bottom-right"),
    Case(2, 8, 1, 150, 200, 192, "bottom-right", v_head_dim=64),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", SPLIT, ids=name)
@pytest.mark.parametrize("places", [None, ODD], ids=["aligned", "odd"])
def test_matches_both_references(
    opened: OpenDevice, device: pysm120.Device, rng: np.random.Generator, case: Case, places: Any
) -> None:
    """Groups, odd sizes, dtypes and strides of calls that are split."""
    assert splits(device, case) > 1
    verify(opened, rng, case, *(() if places is None else (places,)))


@pytest.mark.sampled(1)
@pytest.mark.virtual
@pytest.mark.parametrize("case", SPLIT[:5], ids=name)
def test_every_order_of_ctas(rng: np.random.Generator, case: Case) -> None:
    """With all checks; dk and dv have the same bits for each seed, and dq if deterministic."""
    x, o, lse = ready(rng, case)
    found = [run_virtual(f"checks=full&seed={seed}", case, x, o, lse) for seed in (1, 2)]
    judge(found[0], gradients(x), x, lse, delta_of(x, o), case.out_dtype)
    for member in Gradients._fields if case.deterministic else ("dk", "dv"):
        np.testing.assert_array_equal(getattr(found[1], member), getattr(found[0], member))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_dk_and_dv_are_sums_in_the_order_of_the_heads(
    device: pysm120.Device, rng: np.random.Generator, kv_heads: int, *, deterministic: bool, accumulate: bool
) -> None:
    """Calls of the heads of q of one CTA give its parts of dk and dv; NumPy adds them up, and every bit agrees."""
    case = Case(2, 8 * kv_heads, kv_heads, 140, 90, 64, "bottom-right", deterministic=deterministic)
    count = splits(device, case)
    each = 8 // count
    assert count > 1
    x, out, lse = ready(rng, case)
    delta = delta_of(x, out).astype(np.float32)
    options: dict[str, Any] = {"causal": True, "scale": x.scale, "layout": "BHSD", "deterministic": deterministic}

    def call(q_heads: Any, heads: Any, dk: Any, dv: Any, *, accumulate: bool) -> None:
        q, dout, own_out = (y[:, q_heads].copy() for y in (x.q, x.dout, out))
        k, v = (y[:, heads].copy() for y in (x.k, x.v))
        rows = {"lse": lse[:, q_heads].copy(), "delta": delta[:, q_heads].copy()}
        results = {"dq": np.zeros(q.shape, np.float32), "dk": dk, "dv": dv, "accumulate": accumulate}
        attention_backward(dout, q, k, v, own_out, **rows, **results, **options, device=device)

    before = [rng.standard_normal(y.shape).astype(np.float32) for y in (x.k, x.v)]
    got = [y.copy() for y in before]
    call(slice(None), slice(None), *got, accumulate=accumulate)
    for head in range(kv_heads):
        sums: list[Any] = []
        for n in range(8 * head, 8 * head + 8, each):
            part = [np.full((2, 1, *y.shape[2:]), np.nan, np.float32) for y in before]
            few = Case(2, each, 1, 140, 90, 64, "bottom-right", deterministic=deterministic)
            assert splits(device, few) == 1
            call(slice(n, n + each), slice(head, head + 1), *part, accumulate=False)
            sums = [a + b for a, b in zip(sums, part, strict=True)] if sums else part
        for mine, there, wanted in zip(got, before, sums, strict=True):
            old = there[:, head] if accumulate else 0
            np.testing.assert_array_equal(mine[:, head], wanted[:, 0] + old)


LARGE = [
    *(Case(1, 32, 1, s, s, 128, deterministic=d) for s in (1, 64, 512, 2048, 4096, 8192, 30000) for d in (False, True)),
    *(Case(b, 32, 8, s, s, 64, deterministic=d) for b in (1, 4) for s in (100, 1024, 4096) for d in (False, True)),
    *(Case(1, 32, kv, s, s, 128, "bottom-right") for kv in (1, 8) for s in (1024, 2048, 4096, 8192)),
    Case(1, 40, 8, 1000, 1000, 128),
    Case(1, 7, 1, 3000, 500, 64),
    Case(3, 12, 2, 200, 9000, 256, deterministic=True),
    Case(1, 8, 8, 4096, 64, 128),
]


@pytest.mark.parametrize("case", LARGE, ids=name)
def test_the_number_of_splits(opened: OpenDevice, device: pysm120.Device, case: Case) -> None:
    """The workspace has room for as many parts as the rule of the reference page says."""
    alone = case._replace(kv_heads=case.heads)  # a group of one head is never split
    assert workspace_bytes(opened, case) - workspace_bytes(opened, alone) == parts_of(device, case)
    assert splits(device, alone) == 1


def test_some_calls_are_split_and_some_are_not(device: pysm120.Device) -> None:
    """The rule has both outcomes among the cases above."""
    found = {splits(device, case) for case in LARGE}
    assert len(found) > 3
    assert 1 in found


def test_heads_without_a_split_of_their_number(opened: OpenDevice, rng: np.random.Generator) -> None:
    """Seven heads of q: all or none of them share a CTA."""
    verify(opened, rng, Case(1, 7, 1, 200, 70, 64, "bottom-right"))
