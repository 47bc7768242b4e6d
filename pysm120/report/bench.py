"""The bench of a check: a device, random inputs, guarded outputs, and comparisons."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import Error

GUARD = 256  # bytes on either side of an output; 0xff is a NaN in every float dtype
_FILL = 0xFF
_WORST_ROW = 6  # a row's error may be this multiple of the bound for all rows


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a kernel computed, what float64 says, and the bound of the relative error (Frobenius norm); 0: equal."""

    name: str
    got: npt.NDArray[Any]
    wanted: npt.NDArray[Any]
    bound: float = 0.0
    spoiled: str = ""  # what the guards say


Check = Callable[["Bench"], Iterator[Outcome]]


class Bench:
    """A device with the inputs and outputs of one check."""

    def __init__(self, device: Device, seed: int) -> None:
        self.device, self.rng = device, np.random.default_rng(seed)
        self._outputs: list[tuple[Array, Array]] = []

    def normal(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return normal random numbers with a mean that is not 0."""
        return (self.rng.standard_normal(shape) + 0.25).astype(dtype)

    def put(self, x: npt.NDArray[Any]) -> Array:
        """Copy an input to the device."""
        return self.device.array(x)

    def puts(self, *given: npt.NDArray[Any]) -> Any:
        """Copy inputs to the device."""
        return [self.put(x) for x in given]

    def out(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Return an output that is filled with 0xff, with guards around it."""
        kind = np.dtype(dtype)
        nbytes, count = math.prod(shape) * kind.itemsize, GUARD // kind.itemsize
        whole = self.device.array(np.full(-(-nbytes // GUARD) * GUARD + 2 * GUARD, _FILL, np.uint8).view(kind))
        view = whole[count : count + math.prod(shape)].reshape(shape)
        self._outputs.append((view, whole))
        return view

    def outcome(self, name: str, got: Array, wanted: npt.NDArray[Any], bound: float = 0.0) -> Outcome:
        """Copy an output back and look at its guards."""
        spoiled = ""
        for view, whole in self._outputs:
            if view is got:
                raw = whole.numpy().view(np.uint8)
                behind = GUARD + view.nbytes
                before = np.flatnonzero(raw[:GUARD] != _FILL)
                after = np.flatnonzero(raw[behind:] != _FILL)
                if before.size or after.size:
                    at = int(before[0]) - GUARD if before.size else int(after[0])
                    side = "before" if before.size else "behind"
                    spoiled = (
                        f"wrote {before.size + after.size} bytes outside the output, the first {abs(at)} {side} it"
                    )
        return Outcome(name, got.numpy(), wanted, bound, spoiled)


def judge(one: Outcome) -> dict[str, Any]:
    """Return the row of an outcome: its status, error and bound, and what is wrong."""
    row: dict[str, Any] = {"name": one.name, "status": "right", "error": 0.0, "bound": one.bound, "message": ""}
    if one.got.shape != one.wanted.shape:
        return row | {"status": "wrong", "error": None, "message": f"shape {one.got.shape}, not {one.wanted.shape}"}
    if one.bound == 0:
        differ = one.got.view(np.uint8) != one.wanted.view(np.uint8)
        row["error"] = float(np.mean(differ)) if differ.size else 0.0
        message = f"{int(differ.sum()):,} of {differ.size:,} bytes differ" if differ.any() else ""
    else:
        row["error"], message = _distance(one)
    message = one.spoiled or message
    return row | {"status": "wrong" if message else "right", "message": message}


def _distance(one: Outcome) -> tuple[float | None, str]:
    """Return the relative error, and what is wrong."""
    got, wanted = one.got.astype(np.float64), one.wanted.astype(np.float64)
    same = np.isfinite(got) == np.isfinite(wanted)
    same &= np.isfinite(wanted) | (got == wanted)
    if not same.all():
        at = tuple(int(i) for i in np.argwhere(~same)[0])
        return None, f"{int((~same).sum()):,} of {got.size:,} elements are {got[at]:g}, not {wanted[at]:g}, first {at}"
    known = np.isfinite(wanted)
    size = np.where(known, wanted, 0)
    difference = np.where(known, got, 0) - size
    error = float(np.linalg.norm(difference) / max(float(np.linalg.norm(size)), 1e-300))
    if error > one.bound:
        return error, f"relative error {error:.2%}, more than {one.bound:.2%}"
    rows = np.linalg.norm(np.atleast_2d(difference), axis=-1)
    usual = float(np.sqrt(np.mean(np.linalg.norm(np.atleast_2d(size), axis=-1) ** 2)))
    if rows.max() > _WORST_ROW * one.bound * usual:
        at = tuple(int(i) for i in np.unravel_index(int(rows.argmax()), rows.shape))
        return error, f"row {at} is wrong by {rows.max() / usual:.2%} of a usual row"
    return error, ""


def beside(row: dict[str, Any], got: npt.NDArray[Any], virtual: npt.NDArray[Any]) -> dict[str, Any]:
    """Add how far a GPU's result is from the virtual device's: the share of equal bytes, and the relative error."""
    equal = float(np.mean(got.view(np.uint8) == virtual.view(np.uint8))) if got.size else 1.0
    a, b = got.astype(np.float64), virtual.astype(np.float64)
    known = np.isfinite(a) & np.isfinite(b)
    off = float(np.linalg.norm(a[known] - b[known]) / max(float(np.linalg.norm(b[known])), 1e-300))
    return row | {"equal_bytes": equal, "from_virtual": off}


def rows_of(check: Check, name: str | None, seed: int) -> Iterator[dict[str, Any]]:
    """Run a check on a device; on a GPU also on the virtual device. Yield a row for each outcome.

    The GPU's rows come as they are computed, so that a later fault does not lose them.
    """
    with Device(name) as device:
        if device.is_virtual:
            for one in check(Bench(device, seed)):
                yield judge(one)
            return
        kept = []
        for one in check(Bench(device, seed)):
            row = judge(one)
            kept.append((row, one.got))
            yield row
    try:
        with Device("virtual") as device:
            for (row, got), one in zip(kept, check(Bench(device, seed)), strict=True):
                yield beside(row, got, one.got)
    except (Error, ValueError) as error:
        yield {"name": "beside the virtual device", "status": "note", "message": str(error).splitlines()[0]}
