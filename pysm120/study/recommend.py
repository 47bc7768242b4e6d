"""The fastest precision whose error, on a sample of the caller's tensors, is small enough."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pysm120.ops import foreign
from pysm120.ops.attention_call import PRECISIONS
from pysm120.ops.operands import device_of
from pysm120.ops.options import flag, number
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.study import formats
from pysm120.study.errors import as_float64, between, on_device, supported
from pysm120.study.formats import COMBINATIONS
from pysm120.study.times import measured

HEADS, ROWS, KEYS = 4, 128, 4096  # of a sample, at most
_WIDE = ("float32", "float16", "bfloat16")


class Tried(NamedTuple):
    """A precision that was tried.

    Attributes
    ----------
    precision : str
        Its name.
    error, worst_row : float
        The relative error of O on the sample, and of its worst row.
    clocks : float
        The time of the tensor pipe of an RTX 50 for its products, in units of bf16's.
    seconds : float or None
        The measured time of a whole call on q, k and v; None on the virtual device.
    cast : str or None
        The dtype to which q, k and v must be cast before `attention` takes them in this
        precision; None if it takes them as they are.

    """

    precision: str
    error: float
    worst_row: float
    clocks: float
    seconds: float | None = None
    cast: str | None = None


class Recommendation(NamedTuple):
    """What `recommend` found.

    Attributes
    ----------
    precision : str or None
        The fastest precision within the error; None if there is none.
    error : float
        Its relative error of O on the sample; NaN if there is none.
    tried : tuple of Tried
        Every candidate, the fastest first.
    max_error : float
        The given limit.
    cast : str or None
        The dtype to which q, k and v must be cast before `attention` takes them in this
        precision: "float16" for "f16" of bfloat16 tensors. None if it takes them as
        they are, or if there is no precision.

    """

    precision: str | None
    error: float
    tried: tuple[Tried, ...]
    max_error: float
    cast: str | None = None

    def __str__(self) -> str:
        """Return the table of what was tried."""
        is_timed = any(x.seconds is not None for x in self.tried)
        heads = f"{'precision':<12} {'error of O':>10} {'worst row':>10} {'time of products':>17}"
        lines = [heads + (f" {'measured us':>12}" if is_timed else "")]
        for x in self.tried:
            mark = " *" if x.precision == self.precision else ""
            timed = f" {1e6 * x.seconds:>12,.1f}" if x.seconds is not None else ""
            lines.append(f"{x.precision:<12} {x.error:>10.2%} {x.worst_row:>10.2%} {x.clocks:>17.3f}{timed}{mark}")
        if self.precision is None:
            least = min(self.tried, key=lambda x: x.error)
            best = f"{least.precision} has the least error, {least.error:.2g}"
            lines.append(f"None is within max_error = {self.max_error:g}: {best}.")
        if self.cast is not None:
            lines.append(f"{self.precision} needs q, k and v cast to {self.cast}.")
        return "\n".join(lines)


def recommend(
    q: Any,
    k: Any,
    v: Any,
    *,
    max_error: float,
    causal: bool = False,
    scale: float | None = None,
    candidates: Sequence[str] | None = None,
    device: Device | str | None = None,
    seed: int = 0,
) -> Recommendation:
    """Measure precisions on a sample of q, k and v, and return the fastest within an error.

    Parameters
    ----------
    q : array, shape (B, Sq, H, D)
        Queries, of any real dtype and of any kind that `attention` takes. Arrays on a
        device are copied to host memory.
    k, v : array, shape (B, Sk, Hkv, D) and (B, Sk, Hkv, Dv)
        Keys and values.
    max_error : float
        The largest relative error of O against float64 (Frobenius norm), above 0.
    causal : bool
        The last query sees the last key.
    scale : float, optional
        Default: 1 / sqrt(D).
    candidates : sequence of str, optional
        Precisions to try. Default: every one that `attention` takes for q, k and v
        of 16 or 32 bits. "fp8" rounds them to e4m3 with a scale for each head.
    device : Device or str, optional
        As in `attention`. Default for arrays on a device: theirs.
    seed : int
        Of the random choice of the sample.

    Returns
    -------
    Recommendation

    Raises
    ------
    ValueError
        An argument of the wrong value or shape.

    Notes
    -----
    `attention` takes some precisions only after a cast, which the result names: float32
    and bfloat16 arrays in "f16" and "mxfp8_f16" need float16, whose largest number is
    65504, and "fp8" needs float8_e4m3fn with scales. Of precisions that take equally
    long, those that need no cast come first.

    The sample has up to 4 heads of q, 128 rows and 4096 keys: random ones, or for a
    causal mask the last rows and the last keys before them.

    On a GPU, precisions are ordered by the measured time of a whole call on q, k and
    v, with their quantisation from bfloat16; fp8 has none. On the virtual device,
    which measures no time, they are ordered by the time that the tensor pipe of an RTX
    50 needs for their products.

    """
    limit = number(max_error, "max_error")
    if limit <= 0:
        message = f"max_error is {max_error}, not above 0"
        raise InvalidArgumentError(message)
    is_causal = flag(causal, "causal")
    given = {"q": q, "k": k, "v": v}
    place = device_of({name: x for name, x in given.items() if isinstance(x, Array) or foreign.is_foreign(x)}, device)
    q, k, v = (_in_host_memory(x, name, place) for name, x in given.items())
    dtype = str(np.asarray(q).dtype)
    q, k, v = as_float64(q, k, v)
    names = _candidates(candidates, max(q.shape[-1], v.shape[-1]))
    whole = (q, k, v)
    q, k, v = _sample(q, k, v, np.random.default_rng(seed), causal=is_causal)
    exact = formats.reference(q, k, v, causal=is_causal, scale=scale)
    tried = []
    for name in names:
        found = between(on_device(q, k, v, name, causal=is_causal, scale=scale, device=place), exact)
        time = measured(*whole, name, causal=is_causal, scale=scale, device=place)
        seconds = None if time is None else time.seconds
        cast = _cast(name, dtype)
        tried.append(Tried(name, found.o, found.worst_row, COMBINATIONS[name].clocks, seconds, cast))
    # Stable: of equal times and casts the first of COMBINATIONS or of the candidates.
    tried.sort(key=lambda x: (x.clocks if x.seconds is None else x.seconds, x.cast is not None))
    best = next((x for x in tried if x.error <= limit), None)
    precision, error, cast = (best.precision, best.error, best.cast) if best else (None, float("nan"), None)
    return Recommendation(precision, error, tuple(tried), limit, cast)


def _in_host_memory(x: Any, name: str, device: Device) -> Any:
    """Return an ndarray of an array of any kind, a copy of one on a device; what is no array as it is."""
    if foreign.is_foreign(x) and not foreign.on_host(x):
        x = foreign.face_of(device, x, name, None)
    return x.numpy() if isinstance(x, Array) else foreign.as_ndarray(x, name)


def _cast(precision: str, dtype: str) -> str | None:
    """Return the dtype that a precision needs; None if `attention` takes the given one."""
    needed = PRECISIONS[precision][1]
    if needed is None:
        return None if dtype in _WIDE else "float32"
    return None if dtype == needed or (precision == "bf16" and dtype == "float32") else needed


def _candidates(given: Sequence[str] | None, head_dim: int) -> list[str]:
    """Return the precisions to try."""
    if given is None:
        return [x for x in COMBINATIONS if x != "fp8" and supported(x, head_dim)]
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in COMBINATIONS:
            message = f"candidates has {name!r}, not one of {', '.join(map(repr, COMBINATIONS))}"
            raise InvalidArgumentError(message)
        if not supported(name, head_dim):
            message = f"candidates has {name!r}, which has head sizes up to {PRECISIONS[name][2]}, not {head_dim}"
            raise InvalidArgumentError(message)
    if not names:
        message = "candidates is empty; it needs a precision"
        raise InvalidArgumentError(message)
    return names


def _sample(
    q: formats.Floats, k: formats.Floats, v: formats.Floats, rng: np.random.Generator, *, causal: bool
) -> tuple[formats.Floats, formats.Floats, formats.Floats]:
    """Choose heads, rows and keys; the chosen heads become batches of one head."""
    batch, rows, heads, _ = q.shape
    keys, kv_heads = k.shape[1:3]
    chosen = rng.permutation(batch * heads)[:HEADS]
    if causal:
        # The last rows and keys: row and key numbers keep their distance, so the mask is that of the whole.
        of_rows, of_keys = np.arange(rows)[-ROWS:], np.arange(keys)[-KEYS:]
    else:
        of_rows = np.sort(rng.permutation(rows)[:ROWS])
        of_keys = np.sort(rng.permutation(keys)[:KEYS])
    parts = [(n // heads, n % heads, n % heads // (heads // kv_heads)) for n in chosen]
    return (
        np.stack([q[b, of_rows, h][:, None] for b, h, _ in parts]),
        np.stack([k[b, of_keys, g][:, None] for b, _, g in parts]),
        np.stack([v[b, of_keys, g][:, None] for b, _, g in parts]),
    )
