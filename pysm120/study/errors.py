"""The error of a precision on given inputs: of the kernel on a device, and of the model of its formats."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops.attention import attention
from pysm120.ops.attention_call import PRECISIONS
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.study import formats
from pysm120.study.formats import COMBINATIONS, Floats, Result

RANK = len("BSHD")


class Errors(NamedTuple):
    """Errors against float64.

    Attributes
    ----------
    o : float
        Of O: the Frobenius norm of the difference over that of O.
    worst_row : float
        The largest relative error of a row of O.
    cosine : float
        1 less the smallest cosine of a row of O and the exact row.
    lse : float
        Of LSE: the root of the mean square of the difference.
    scores : float
        Of the scores that a row sees, as of O; NaN for a kernel, which does not show its scores.

    """

    o: float
    worst_row: float
    cosine: float
    lse: float
    scores: float


class Outcome(NamedTuple):
    """A precision, the errors of its kernel and of the model of its formats; NaN scores: not computed."""

    precision: str
    kernel: Errors
    model: Errors


def as_float64(q: Any, k: Any, v: Any) -> tuple[Floats, Floats, Floats]:
    """Return q, k and v in float64 after a check of their shapes (B, S, H, D)."""
    found = []
    for name, x in (("q", q), ("k", k), ("v", v)):
        array = np.asarray(x)
        if array.ndim != RANK or 0 in array.shape:
            message = f"{name} has shape {array.shape}, not (B, S, H, D) without zeros"
            raise InvalidArgumentError(message)
        try:
            found.append(array.astype(np.float64))
        except (TypeError, ValueError) as error:
            message = f"{name} has dtype {array.dtype}, not one of real numbers"
            raise TypeError(message) from error
        if not np.isfinite(found[-1]).all():
            message = f"{name} has elements that are infinite or NaN, whose error means nothing"
            raise InvalidArgumentError(message)
    shapes = {name: x.shape for name, x in zip("qkv", found, strict=True)}
    batch, _, heads, head_dim = shapes["q"]
    if shapes["k"][0] != batch or shapes["k"][3] != head_dim or heads % shapes["k"][2]:
        message = f"k has shape {shapes['k']}, not ({batch}, Sk, a divisor of {heads}, {head_dim}) for q {shapes['q']}"
        raise InvalidArgumentError(message)
    if shapes["v"][:3] != shapes["k"][:3]:
        message = f"v has shape {shapes['v']}, not {shapes['k'][:3]} and its head size, as k has"
        raise InvalidArgumentError(message)
    return found[0], found[1], found[2]


def supported(precision: str, head_dim: int) -> bool:
    """Whether a precision has a kernel for a head size."""
    return head_dim <= PRECISIONS[precision][2]


def on_device(
    q: Floats, k: Floats, v: Floats, precision: str, *, causal: bool, scale: float | None, device: Device | str | None
) -> Result:
    """Return what the kernel computes of float64 arrays, in f32; it does not show its scores."""
    given, scales = operands_of(q, k, v, precision)
    options: dict[str, Any] = {"precision": precision, "causal": causal, "scale": scale, "device": device, **scales}
    o, lse = attention(given[0], given[1], given[2], out_dtype=np.float32, return_lse=True, **options)
    return Result(o.astype(np.float64), lse.astype(np.float64), np.empty(0))


def operands_of(
    q: npt.NDArray[Any], k: npt.NDArray[Any], v: npt.NDArray[Any], precision: str, otherwise: str = "float32"
) -> tuple[list[npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """Return q, k and v in the dtype of a precision, or `otherwise` if it takes several, and the scales of fp8."""
    if precision == "fp8":
        pairs = [formats.codes_of_heads(x) for x in (q, k, v)]
        scales = {f"{name}_scale": scale for name, (_, scale) in zip("qkv", pairs, strict=True)}
        return [codes for codes, _ in pairs], scales
    dtype = PRECISIONS[precision][1] or otherwise
    return [x.astype(np.float32).astype(dtype) for x in (q, k, v)], {}


def _relative(difference: Floats, wanted: Floats) -> float:
    """Return the norm of a difference over that of what was wanted."""
    return float(np.linalg.norm(difference)) / max(float(np.linalg.norm(wanted)), np.finfo(float).tiny)


def between(got: Result, exact: Result) -> Errors:
    """Return the errors of a result."""
    rows, wanted = (x.o.reshape(-1, x.o.shape[-1]) for x in (got, exact))
    norms, lengths = np.linalg.norm(wanted, axis=-1), np.linalg.norm(rows, axis=-1)
    there = norms > 0
    off = np.linalg.norm(rows - wanted, axis=-1)[there] / norms[there]
    cosines = (rows * wanted).sum(-1)[there] / np.maximum(norms * lengths, np.finfo(float).tiny)[there]
    seen = np.isfinite(exact.lse)
    of_scores = float("nan")
    if got.scores.size:
        visible = np.isfinite(exact.scores)
        scores = exact.scores[visible]
        of_scores = _relative(got.scores[visible] - scores, scores)
    return Errors(
        _relative(rows - wanted, wanted),
        float(off.max(initial=0)),
        float(1 - cosines.min(initial=1)),
        float(np.sqrt(np.mean((got.lse[seen] - exact.lse[seen]) ** 2))) if seen.any() else 0.0,
        of_scores,
    )


def errors_of(
    q: Any,
    k: Any,
    v: Any,
    precision: str,
    *,
    causal: bool = False,
    scale: float | None = None,
    device: Device | str | None = None,
    exact: Result | None = None,
) -> Outcome:
    """Return the errors of a precision on q, k and v.

    Parameters
    ----------
    q, k, v : array, shape (B, S, H, D)
        As in `attention`, of any real dtype. The kernel gets them in the dtype of
        its precision; that rounding counts. For fp8 they are rounded to e4m3 with
        a scale for each batch and head.
    precision : str
        One of COMBINATIONS.
    causal, scale, device
        As in `attention`.
    exact : Result, optional
        `formats.reference` of the same inputs, if the caller has it.

    Returns
    -------
    Outcome

    """
    if precision not in COMBINATIONS:
        message = f"precision is {precision!r}, not one of {', '.join(map(repr, COMBINATIONS))}"
        raise InvalidArgumentError(message)
    q, k, v = as_float64(q, k, v)
    exact = exact or formats.reference(q, k, v, causal=causal, scale=scale)
    given = [q, k, v]
    if precision != "fp8":  # the format rounds what the dtype of the precision has left
        given = [x.astype(np.float64) for x in operands_of(q, k, v, precision)[0]]
    of_model = formats.reference(given[0], given[1], given[2], COMBINATIONS[precision], causal=causal, scale=scale)
    of_kernel = on_device(q, k, v, precision, causal=causal, scale=scale, device=device)
    return Outcome(precision, between(of_kernel, exact), between(of_model, exact))
