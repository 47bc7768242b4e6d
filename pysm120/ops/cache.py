"""K or V of a cache, as callers give it: an array, or elements and their scales in blocks."""

from typing import Any, NamedTuple

import numpy as np

from pysm120.ops.foreign import on_host
from pysm120.ops.options import number
from pysm120.ops.table import U8
from pysm120.runtime.arrays import dtype_of
from pysm120.runtime.errors import InvalidArgumentError

RANK = len("NSHD")


def _dtype_of(x: Any, name: str) -> "np.dtype[Any]":
    """Return the dtype of an array of any library; torch.bfloat16 has the name that ml_dtypes gives it too."""
    try:
        return dtype_of(x.dtype, name)
    except TypeError:
        return dtype_of(str(x.dtype).rpartition(".")[2], name)


def _permuted(x: Any, *axes: int) -> Any:
    """Return a view with the axes in another order; transpose() of torch swaps only two."""
    return (x.permute if hasattr(x, "permute") else x.transpose)(*axes)


class Cache(NamedTuple):
    """K or V of a cache, as NHD."""

    letter: str
    kind: str  # "plain", "mxfp8" or "nvfp4"
    arrays: tuple[Any, ...]  # elements, and scales in blocks
    scale: Any

    @classmethod
    def of(cls, letter: str, given: Any, scale: Any, layout: str) -> "Cache":
        """Check what the caller gave."""
        name = f"{letter}_cache"
        arrays = tuple(given) if isinstance(given, tuple | list) else (given,)
        for n, x in enumerate(arrays):
            what = f"{name}[{n}]" if len(arrays) > 1 else name
            if len(getattr(x, "shape", ())) != RANK or not hasattr(x, "transpose"):
                shape = f" of shape {tuple(x.shape)}" if hasattr(x, "shape") else ""
                message = f"{what} is a {type(x).__name__}{shape}, not an array with 4 dimensions"
                raise TypeError(message)
        if len(arrays) not in {1, 2}:
            message = f"{name} has {len(arrays)} arrays; it is an array, or elements and scales in blocks"
            raise InvalidArgumentError(message)
        dtype = _dtype_of(arrays[0], name)
        kind = "plain" if len(arrays) == 1 else "nvfp4" if dtype in U8 else "mxfp8"
        if kind == "plain" and dtype in U8:
            message = f"{name} has dtype uint8; NVFP4 needs (elements, scales), with a scale for each 16 columns"
            raise TypeError(message)
        if on_host(arrays[0]) and isinstance(scale, float | int):
            scale = np.full(1, number(scale, f"{letter}_scale"), np.float32)
        if layout == "HND":
            arrays = tuple(_permuted(x, 0, 2, 1, 3) for x in arrays)
            scale = _permuted(scale, 0, 2, 1) if len(getattr(scale, "shape", ())) == RANK - 1 else scale
        scale = scale[..., None] if hasattr(scale, "shape") else scale
        return cls(letter, kind, arrays, scale)

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of the elements."""
        return _dtype_of(self.arrays[0], f"{self.letter}_cache")

    @property
    def head_dim(self) -> int:
        """Columns of a row."""
        return int(self.arrays[0].shape[-1]) * (2 if self.kind == "nvfp4" else 1)

    def named(self) -> dict[str, Any]:
        """Return the arrays by the names of their rows."""
        names = (f"{self.letter}_cache", f"{self.letter}_cache[1]")
        return dict(zip(names, self.arrays, strict=False))
