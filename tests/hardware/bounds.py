"""How far the PTX manual lets an approximate function be from the exact result."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from form import Form
from numpy.typing import NDArray

Real = NDArray[Any]

TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
LEAST = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 2.0**-1074}  # subnormal
MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
SMALLEST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}


class Bound(NamedTuple):
    """The function, and the error that is allowed; NaN where the manual promises nothing."""

    exact: Callable[..., Real]
    tolerance: Callable[..., Real]  # of the exact result and the operands


def ulps(count: float) -> Callable[..., Real]:
    """Allow some units in the last place of f32."""
    return lambda y, *_: count * np.maximum(np.exp2(np.floor(np.log2(np.abs(y))) - 23), LEAST["f32"])


def relative(exponent: float) -> Callable[..., Real]:
    """Allow a relative error of 2^exponent."""
    return lambda y, *_: np.abs(y) * 2.0**exponent


def absolute(exponent: float) -> Callable[..., Real]:
    """Allow an absolute error of 2^exponent."""
    return lambda y, *_: np.full_like(y, 2.0**exponent)


def of_angles(_: Real, x: Real) -> Real:
    """Allow what the manual says of sin and cos, whose error grows with the angle."""
    size = np.abs(x)
    return np.where(size <= 2 * np.pi, 2.0**-20.5, np.where(size <= 100 * np.pi, 2.0**-14.7, np.nan))


def of_logarithms(y: Real, x: Real) -> Real:
    """Allow an absolute error near one and a relative one elsewhere."""
    return np.where((x > 0.5) & (x < 2), 2.0**-22, np.abs(y) * 2.0**-22)


def quotient(a: Real, b: Real) -> Real:
    """Divide as div.approx does: beyond 2^126 the reciprocal is zero."""
    return np.where(np.abs(b) > 2.0**126, a * np.copysign(0, b), a / b)


def of_quotients(y: Real, _: Real, b: Real) -> Real:
    """Allow 2 ulps where the divisor is no subnormal; nothing is promised elsewhere."""
    return np.where(np.abs(b) >= 2.0**-126, ulps(2)(y), np.nan)


BOUNDS = {
    "sin": Bound(np.sin, of_angles),
    "cos": Bound(np.cos, of_angles),
    "ex2": Bound(np.exp2, ulps(2.5)),  # 2 from the correctly rounded result
    "lg2": Bound(np.log2, of_logarithms),
    "tanh": Bound(np.tanh, relative(-11)),
    "rcp": Bound(lambda x: 1 / x, ulps(1)),
    "rsqrt": Bound(lambda x: 1 / np.sqrt(x), relative(-22.9)),
    "sqrt": Bound(np.sqrt, relative(-23)),
    "div.approx": Bound(quotient, of_quotients),
    "div.full": Bound(np.divide, ulps(2)),
    "rcp.f64": Bound(lambda x: 1 / x, relative(-19)),  # "gross": of the 20 upper bits of the mantissa
    "rsqrt.f64": Bound(lambda x: 1 / np.sqrt(x), relative(-22.9)),
    "rsqrt.ftz.f64": Bound(lambda x: 1 / np.sqrt(x), relative(-19)),
    "ex2.f16": Bound(np.exp2, relative(-9.9)),
    "ex2.bf16": Bound(np.exp2, relative(-7)),
    "tanh.f16": Bound(np.tanh, absolute(-10.987)),
    "tanh.bf16": Bound(np.tanh, absolute(-8)),
}


def values(bits: NDArray[Any], name: str) -> NDArray[Any]:
    """Return bytes [lane, byte] or integers as floats of a type; packed halves lie one after the other."""
    return np.ascontiguousarray(bits).view(np.uint8).ravel().view(TYPES[name])


def steps(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Count the floats from a to b."""
    bits = 8 * a.itemsize

    def ordered(x: NDArray[Any]) -> NDArray[Any]:
        raw = x.view(f"u{bits // 8}").astype(object)
        return np.where(raw >> (bits - 1) == 1, (1 << bits - 1) - raw, raw)

    finite = np.isfinite(a.astype(float)) & np.isfinite(b.astype(float))
    return np.where(finite, np.abs(ordered(a) - ordered(b)), 0).astype(float)


class Comparison(NamedTuple):
    """What came of an approximate form."""

    largest: float  # difference from the recording in ulps
    error: float  # largest part of the tolerance that the device under test used
    recorded_error: float  # and that the recorded device used
    wrong: Sequence[int]  # lanes out of bounds, or not as special as in the recording


def compare(form: Form, got: NDArray[np.uint8], recorded: NDArray[np.uint8]) -> Comparison:
    """Hold both results against the bound of the form."""
    kind = form.inputs[0].split(":")[0]
    name = kind.removesuffix("x2")
    bound = BOUNDS[form.bound.replace(kind, name)]
    a, b = values(got, name), values(recorded, name)
    with np.errstate(all="ignore"):
        operands = [values(x, name).astype(np.float64) for x in form.operands()]
        tiny = SMALLEST_NORMAL[name]
        flushes = ".ftz" in form.ptx
        if flushes:
            operands = [np.where(np.abs(x) < tiny, np.copysign(0, x), x) for x in operands]
        y = np.asarray(bound.exact(*operands), np.float64)
        # A result is rounded to its type besides: by half an ulp where the bound is not given in ulps, and by a whole
        # one where it is a subnormal.
        rounding = np.maximum(np.exp2(np.floor(np.log2(np.abs(y))) - MANTISSA[name] - 1), LEAST[name])
        allowed = bound.tolerance(y, *operands)
        if name in {"f16", "bf16"} or form.bound in {"tanh", "sqrt", "rsqrt"}:
            allowed = np.maximum(allowed, rounding)
        if flushes:
            allowed = np.where(np.abs(y) < tiny, tiny, allowed)
        special = ~np.isfinite(b.astype(np.float64)) | ~np.isfinite(y)
        used = [np.abs(x.astype(np.float64) - y) / allowed for x in (a, b)]
        used = [
            np.where(special | np.isnan(allowed) | (y == x.astype(np.float64)), 0, u)
            for u, x in zip(used, (a, b), strict=True)
        ]
        same = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
        wrong = np.where(special, ~same, ~(used[0] <= 1))
        largest = float(steps(a, b).max())
    return Comparison(largest, float(used[0].max()), float(used[1].max()), np.flatnonzero(wrong).tolist())
