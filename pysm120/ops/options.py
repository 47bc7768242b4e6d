"""Options of operations: checks and conversions of arguments that are not arrays."""

import numbers
import operator
from typing import Any

import ml_dtypes
import numpy as np

from pysm120.runtime.errors import InvalidArgumentError

_BOOLS = (bool, np.bool_)
_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
MOST = 2**63 - 1  # the largest number of the C structs
PRECISIONS_16BIT = {"float16": "f16", "bfloat16": "bf16"}
_OWN = {**PRECISIONS_16BIT, "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}


def one_of(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """Return a value after checking that it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        message = f"{name} is {value!r}, not one of {', '.join(map(repr, choices))}"
        raise InvalidArgumentError(message)
    return value


def flag(value: Any, name: str) -> bool:
    """Return True or False."""
    if not isinstance(value, _BOOLS):
        message = f"{name} is {value!r}, not True or False"
        raise TypeError(message)
    return bool(value)


def integer(value: Any, name: str) -> int:
    """Return an integer."""
    is_array = len(getattr(value, "shape", ())) > 0  # which has __index__ all the same
    if is_array or isinstance(value, _BOOLS) or not hasattr(value, "__index__"):
        message = f"{name} is {f'a {type(value).__name__}' if is_array else repr(value)}, not an integer"
        raise TypeError(message)
    return operator.index(value)


def splits(num_splits: Any) -> int:
    """Return the number of splits of the keys in C, where 0 lets the library choose."""
    if num_splits is None:
        return 0
    count = integer(num_splits, "num_splits")
    if count < 1:
        message = f"num_splits is {num_splits}, not a number of parts: at least 1, or None"
        raise InvalidArgumentError(message)
    return min(count, MOST)  # C names its limit


def number(value: Any, name: str) -> float:
    """Return a value as a float that is finite in float32."""
    if isinstance(value, np.generic) and value.dtype in _NARROW:
        value = float(value)  # the floats of ml_dtypes are not numbers.Real
    if isinstance(value, _BOOLS) or not isinstance(value, numbers.Real | np.floating):
        message = f"{name} is {value!r}, not a real number"
        raise TypeError(message)
    try:
        with np.errstate(over="ignore"):
            finite, shown = bool(np.isfinite(np.float32(value))), f"{value}"
    except (OverflowError, ValueError):  # more digits than float64, or than Python prints
        finite, shown = False, "beyond float64"
    if not finite:
        message = f"{name} is {shown}, not a number that is finite in float32"
        raise InvalidArgumentError(message)
    return float(value)


def ends(value: Any, name: str, *, open_end: int | None = None) -> tuple[int | None, int | None]:
    """Return the two ends of a window; an end that equals `open_end` becomes None."""
    if not isinstance(value, tuple | list) or len(value) != len(("left", "right")):
        message = f"{name} is {value!r}, not (left, right), each an integer{' or None' if open_end is None else ''}"
        raise TypeError(message)
    left, right = (None if end is None and open_end is None else integer(end, name) for end in value)
    for end in (left, right):
        if end is not None and end < 0 and end != open_end:
            message = f"{name} is {tuple(value)}: each end must be {open_end} or at least 0"
            raise InvalidArgumentError(message)
    return (None if left == open_end else left), (None if right == open_end else right)


def dtype_name(x: Any, name: str) -> str:
    """Return the name of an array's dtype, without the library's prefix."""
    if not hasattr(x, "dtype"):
        message = f"{name} is a {type(x).__name__}, not an array"
        raise TypeError(message)
    return str(x.dtype).rpartition(".")[2]  # some libraries write their own name before it


def default_precision(dtype: Any) -> str:
    """Return the precision of attention for a dtype of q, k and v: its own, and bf16 for float32."""
    return _OWN.get(str(dtype), "bf16")


def precision_of(x: Any, name: str, precision: str | None) -> str:
    """Return the given precision, or the default one for an array's dtype."""
    if precision is not None:
        return precision
    dtype = dtype_name(x, name)
    if dtype not in {"float32", *PRECISIONS_16BIT}:
        message = f"{name} has dtype {dtype}, not float32, float16 or bfloat16: cast it"
        raise TypeError(message)
    return default_precision(dtype)
