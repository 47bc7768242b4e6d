"""Arithmetic of shapes and strides (in elements), for views, copies and reshapes."""

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from pysm120.runtime.errors import InvalidArgumentError

Shape = tuple[int, ...]


def contiguous_strides(shape: Shape) -> Shape:
    """Return the strides, in elements, of a C-contiguous array."""
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.append(steps[-1] * max(1, extent))
    return tuple(reversed(steps)) if shape else ()


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether elements lie next to each other in C order."""
    if 0 in shape:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def span(shape: Shape, strides: Shape) -> tuple[int, int]:
    """Return the lowest and highest offset of an element."""
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)


def runs(shape: Shape, strides: Shape) -> Iterator[tuple[int, int]]:
    """Yield (offset, elements) of every contiguous piece, in C order."""
    if 0 in shape:
        return
    count, outer = 1, len(shape)
    while outer and (shape[outer - 1] == 1 or strides[outer - 1] == count):
        count *= shape[outer - 1]
        outer -= 1
    for place in itertools.product(*map(range, shape[:outer])):
        yield sum(map(operator.mul, place, strides[:outer])), count


def index(shape: Shape, strides: Shape, keys: tuple[Any, ...]) -> tuple[int, Shape, Shape]:
    """Return offset, shape and strides of an indexed view."""
    given = [k for k in keys if k is not None and k is not Ellipsis]
    if sum(k is Ellipsis for k in keys) > 1 or len(given) > len(shape):
        message = f"{len(given)} indices for an array of {len(shape)} dimensions"
        raise IndexError(message)
    rest = len(shape) - len(given)
    if Ellipsis not in [k for k in keys if k is Ellipsis]:
        keys = (*keys, Ellipsis)
    offset, axis = 0, 0
    new_shape: list[int] = []
    new_strides: list[int] = []
    for key in keys:
        if key is None:
            new_shape.append(1)
            new_strides.append(0)
        elif key is Ellipsis:
            new_shape += shape[axis : axis + rest]
            new_strides += strides[axis : axis + rest]
            axis += rest
        elif isinstance(key, slice):
            start, stop, step = key.indices(shape[axis])
            extent = len(range(start, stop, step))
            offset += start * strides[axis] if extent else 0
            new_shape.append(extent)
            new_strides.append(step * strides[axis])
            axis += 1
        else:
            position = operator.index(key)
            if not -shape[axis] <= position < shape[axis]:
                message = f"index {position} is out of bounds for dimension {axis} of size {shape[axis]}"
                raise IndexError(message)
            offset += position % shape[axis] * strides[axis]
            axis += 1
    return offset, tuple(new_shape), tuple(new_strides)


def reshaped(shape: Shape, strides: Shape, wanted: Shape) -> Shape | None:
    """Return the strides of a reshaped view, or None if it needs a copy."""
    if 0 in shape or is_contiguous(shape, strides):
        return contiguous_strides(wanted)
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    # Merge dimensions that are contiguous with each other.
    merged: list[list[int]] = []
    for extent, stride in old:
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = [merged[-1][0] * extent, stride]
        else:
            merged.append([extent, stride])
    steps: list[int] = []
    block = merged.pop() if merged else [1, 1]
    for extent in reversed(wanted):
        if block[0] == 1 and extent != 1 and merged:
            block = merged.pop()
        if block[0] % extent:
            return None
        steps.append(block[1])
        block = [block[0] // extent, block[1] * extent]
    return tuple(reversed(steps))


def shape_of(shape: Any, size: int | None, name: str) -> Shape:
    """Return a shape as a tuple; with a size, one extent may be -1 and is computed from it."""
    parts = shape if isinstance(shape, Sequence) else (shape,)
    extents = []
    for part in parts:
        if isinstance(part, bool) or not hasattr(part, "__index__"):
            message = f"{name} is {shape!r}, not an int or a tuple of ints"
            raise TypeError(message)
        extents.append(operator.index(part))
    if size is not None and extents.count(-1) == 1:
        known = math.prod(e for e in extents if e != -1)
        extents[extents.index(-1)] = size // known if known else 0
    if any(extent < 0 for extent in extents):
        message = f"{name} is {tuple(extents)}, which has a negative number"
        raise InvalidArgumentError(message)
    if size is not None and math.prod(extents) != size:
        message = f"{name} is {tuple(extents)}, but the array has {size} elements"
        raise InvalidArgumentError(message)
    return tuple(extents)
