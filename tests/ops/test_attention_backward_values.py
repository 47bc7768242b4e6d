"""attention_backward: lse, dlse and delta, accumulation, dtypes of the results, NaN and infinity."""

import itertools
from typing import Any

import numpy as np
import pytest
from backward_cases import Case, backward, draw, judge, name, norm, ready, run
from backward_reference import Gradients, delta_of, forward, given, gradients
from harness import DTYPES, OpenDevice

import pysm120


@pytest.mark.parametrize("case", [Case(2, 4, 2, 70, 90, 64, "bottom-right"), Case(1, 2, 1, 90, 40, 33)], ids=name)
def test_a_loss_of_lse(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """dlse changes the gradients as the definition says, and delta with dlse in it gives the same."""
    x, o, lse = ready(rng, case)
    dlse = (3 * rng.standard_normal(lse.shape)).astype(np.float32)
    exact, delta = gradients(x, dlse), delta_of(x, o, dlse)
    assert norm(exact.dk - gradients(x).dk) > 0.1 * norm(exact.dk)
    judge(run(opened, case, x, o, lse, dlse=dlse), exact, x, lse, delta)
    noise = np.full_like(o, np.nan)  # O is not read
    judge(run(opened, case, x, noise, lse, delta=delta), exact, x, lse, delta)


def test_delta_of_any_values(opened: OpenDevice, rng: np.random.Generator) -> None:
    """Whatever lse and delta are, the formulas hold; a row whose LSE is -inf has no gradient."""
    case = Case(1, 4, 2, 70, 90, 64, "bottom-right")
    x, o, lse = ready(rng, case)
    lse = (lse + rng.standard_normal(lse.shape)).astype(np.float32)
    delta = rng.standard_normal(lse.shape).astype(np.float32)
    lse[:, 1, 7] = -np.inf
    got = run(opened, case, x, o, lse, delta=delta)
    judge(got, given(x, lse, delta), x, lse, delta)
    assert not got.dq[:, 1, 7].any()


def test_keys_behind_the_last_have_no_weight(opened: OpenDevice, rng: np.random.Generator) -> None:
    """exp(score - LSE) of a key of zeros, such as the last tile has behind the last key, is beyond f16 here."""
    case = Case(1, 2, 1, 70, 100, 64, dtype="float16", scale=0.25)
    x = draw(rng, case)
    x = x._replace(q=1 + np.abs(x.q), k=-1 - np.abs(x.k))
    _, o, lse = forward(x)
    o, lse = o.astype(np.float32), lse.astype(np.float32)
    assert np.exp(-lse.astype(float)).max() > np.finfo(np.float16).max
    judge(run(opened, case, x, o, lse), gradients(x), x, lse, delta_of(x, o))


@pytest.mark.parametrize("causal", [None, "bottom-right"])
def test_keys_in_two_parts(device: pysm120.Device, rng: np.random.Generator, causal: str | None) -> None:
    """As in a ring: each part of the keys with O and LSE of all of them; dk and dv side by side, dq added up."""
    case = Case(2, 4, 2, 100, 150, 64, causal)
    x, o, lse = ready(rng, case)
    whole = backward(x, o, lse, device, causal=causal is not None)
    split, diagonal = 64, case.kv_rows - case.q_rows
    parts, dq = [], np.zeros(x.q.shape, np.float32)
    for keys in (slice(0, split), slice(split, case.kv_rows)):
        part = x._replace(k=x.k[:, :, keys].copy(), v=x.v[:, :, keys].copy())
        # causal, as a window: row i sees the keys up to i + diagonal - keys.start of this part
        reach = diagonal - keys.start - (part.k.shape[2] - case.q_rows)
        window = (None, None if causal is None else reach)
        if causal is not None and reach < 0:
            rows = slice(-reach, None)  # a window reaches no less than 0: rows before these see none of the keys
            part = part._replace(q=part.q[:, :, rows].copy(), dout=part.dout[:, :, rows].copy())
            window = (None, 0)
            own = (o[:, :, rows].copy(), lse[:, :, rows].copy())
            found = backward(part, *own, device, causal_align="top-left", window=window)
            dq[:, :, rows] += found.dq
        else:
            found = backward(part, o, lse, device, window=window)
            dq += found.dq
        parts.append(found)
    for member in ("dk", "dv"):
        joined = np.concatenate([getattr(part, member) for part in parts], 2)
        assert norm(joined - getattr(whole, member)) <= 1e-6 * norm(joined)
    assert norm(dq - whole.dq) <= 1e-6 * norm(dq)


@pytest.mark.parametrize("case", [Case(1, 4, 2, 150, 60, 64), Case(2, 2, 1, 70, 200, 100, "top-left")], ids=name)
def test_accumulation_adds_once(device: pysm120.Device, rng: np.random.Generator, case: Case) -> None:
    """The float32 sum of what was there and what a call without it gives; rows and keys without a part stay."""
    x, o, lse = ready(rng, case)
    options: dict[str, Any] = {"causal": case.causal is not None, "causal_align": case.causal or "top-left"}
    alone = backward(x, o, lse, device, **options)
    before = Gradients(*(rng.standard_normal(y.shape).astype(np.float32) for y in alone))
    there = before._asdict()
    for times in (1, 2):
        wanted = Gradients(*(there[member] + y for member, y in alone._asdict().items()))
        given_arrays = {member: y.copy() for member, y in there.items()}
        got = backward(x, o, lse, device, accumulate=True, **given_arrays, **options)
        for member in Gradients._fields:
            assert getattr(got, member) is given_arrays[member]
        np.testing.assert_array_equal(got.dk, wanted.dk)
        np.testing.assert_array_equal(got.dv, wanted.dv)
        np.testing.assert_allclose(got.dq, wanted.dq, atol=0 if case.kv_rows <= 64 else 1e-5)
        there = got._asdict()
        assert times == 1 or not np.array_equal(got.dv, before.dv)


@pytest.mark.parametrize("case", [Case(1, 2, 1, 70, 60, 64), Case(1, 8, 1, 130, 60, 64)], ids=["whole", "split"])
def test_each_result_has_its_own_dtype(device: pysm120.Device, rng: np.random.Generator, case: Case) -> None:
    """A result of 16 bits is that in float32, rounded."""
    x, o, lse = ready(rng, case)
    exact = backward(x, o, lse, device)._asdict()
    for kinds in itertools.permutations(DTYPES.values()):
        results = {n: np.full(y.shape, np.nan, kind) for (n, y), kind in zip(exact.items(), kinds, strict=True)}
        backward(x, o, lse, device, **results)
        for member, got in results.items():
            np.testing.assert_array_equal(got, exact[member].astype(got.dtype))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_reach_what_meets_them(opened: OpenDevice, rng: np.random.Generator, poison: float) -> None:
    """A NaN or Inf in a row of dout spoils that row of dq, and of dk and dv what the row sees."""
    case = Case(1, 2, 2, 40, 96, 64, "bottom-right")
    x, o, lse = ready(rng, case)
    x.dout[0, 0, 7, 3] = poison
    got = run(opened, case, x, o, lse)
    rows = np.zeros((2, 40), bool)
    rows[0, 7] = True
    assert np.array_equal(~np.isfinite(got.dq[0]).all(-1), rows)
    assert np.isfinite(got.dk[0, 1]).all()
    assert np.isfinite(got.dv[0, 1]).all()
    column = np.zeros(64, bool)
    column[3] = True
    assert np.array_equal(~np.isfinite(got.dv[0, 0, : 7 + 57]), np.tile(column, (64, 1)))
