"""A model of mma.sync, one output at a time, with Python integers.

It is the model of MMA-Sim (arXiv 2511.10909) for this chip, written from the text of the
paper and independently of the library: no vectors, floats only for NaN and infinity.

It differs in one point: a zero product does not take part in the largest exponent. MMA-Sim
counts a zero factor as 2**-126, but an H200 (driver 580.159.04) does not. We compared
32,768 sums for each form of bf16, f16 and tf32, a quarter of them with zero factors: all
are bit-identical to this model, while up to 2,529 sums of a form differ from MMA-Sim's.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Format(NamedTuple):
    """A small float: its bits, from the top: sign, exponent, fraction."""

    exponent: int
    fraction: int
    bias: int
    specials: str  # "ieee", "nan" (all ones only) or ""
    width: int  # bits of the container
    right: int = 0  # unused bits below the code


FORMATS = {
    "bf16": Format(8, 7, 127, "ieee", 16),
    "f16": Format(5, 10, 15, "ieee", 16),
    "tf32": Format(8, 10, 127, "ieee", 32, 13),
    "f32": Format(8, 23, 127, "ieee", 32),
    "e4m3": Format(4, 3, 7, "nan", 8),
    "e5m2": Format(5, 2, 15, "ieee", 8),
    "e2m3": Format(2, 3, 1, "", 8),
    "e3m2": Format(3, 2, 3, "", 8),
    "e2m1": Format(2, 1, 1, "", 8, 2),
    "packed e2m1": Format(2, 1, 1, "", 4),
}
INTEGERS = {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}
FRACTION, FP4_FRACTION = 25, 35
ZERO_EXPONENT = -126


class Number(NamedTuple):
    """significand * 2**(exponent - fraction), or a special: inf, -inf, nan."""

    significand: int
    exponent: int
    fraction: int
    special: float = 0.0

    @property
    def kind(self) -> float:
        """A Python float with the same behaviour of NaN and infinity in products and sums."""
        return self.special or float((self.significand > 0) - (self.significand < 0))


@functools.cache
def decode(name: str, bits: int) -> Number:
    """Decode the container of a number; a subnormal keeps the smallest exponent."""
    form = FORMATS[name]
    code = bits >> form.right
    magnitude = code & ((1 << (form.exponent + form.fraction)) - 1)
    sign = -1 if code >> (form.exponent + form.fraction) & 1 else 1
    field, fraction = magnitude >> form.fraction, magnitude % (1 << form.fraction)
    all_ones = (1 << form.exponent) - 1
    if form.specials == "ieee" and field == all_ones:
        return Number(0, 0, 0, math.nan if fraction else sign * math.inf)
    if form.specials == "nan" and magnitude == (all_ones + 1 << form.fraction) - 1:
        return Number(0, 0, 0, math.nan)
    if magnitude == 0:
        return Number(0, ZERO_EXPONENT, form.fraction)
    if field == 0:
        return Number(sign * fraction, 1 - form.bias, form.fraction)
    significand = sign * (fraction + (1 << form.fraction))
    return Number(significand, field - form.bias, form.fraction)


def decode_scale(name: str, code: int) -> Number:
    """Decode a block scale; the sign bit of ue4m3 does not count."""
    if name == "ue4m3":
        return decode("e4m3", code & 0x7F)
    return Number(0, 0, 0, math.nan) if code == 0xFF else Number(1, code - 127, 0)


def shift(magnitude: int, left: int) -> int:
    """Shift left, or right and truncate."""
    return magnitude << left if left >= 0 else magnitude >> -left


def product(numbers: Iterable[Number]) -> Number:
    """Multiply without normalising."""
    significand, exponent, fraction = 1, 0, 0
    for number in numbers:
        significand *= number.significand
        exponent += number.exponent
        fraction += number.fraction
    return Number(significand, exponent, fraction)


def fused_sum(terms: Sequence[Number], fraction: int) -> tuple[int, int]:
    """Align to the largest exponent, cut each term, add: total * 2**exponent."""
    largest = max(term.exponent for term in terms)
    total = 0
    for term in terms:
        left = fraction - term.fraction + term.exponent - largest
        cut = shift(abs(term.significand), left)
        total += cut if term.significand > 0 else -cut
    return total, largest - fraction


def encode(total: int, exponent: int, name: str) -> int:
    """Round total * 2**exponent: to f32 toward zero, to f16 to nearest even."""
    form = FORMATS[name]
    smallest = 1 - form.bias
    magnitude = abs(total)
    if magnitude == 0:
        return 0
    top = max(magnitude.bit_length() - 1 + exponent, smallest)
    left = exponent - (top - form.fraction)
    code = shift(magnitude, left)
    if name == "f16" and left < 0:
        rest, half = magnitude - (code << -left), 1 << (-left - 1)
        code += rest > half or (rest == half and code % 2 == 1)
    code += top - smallest << form.fraction
    code = min(code, infinity(name))
    return code | (sign_bit(name) if total < 0 and code else 0)


def infinity(name: str) -> int:
    """Return the code of positive infinity."""
    form = FORMATS[name]
    return (1 << form.exponent) - 1 << form.fraction


def sign_bit(name: str) -> int:
    """Return the code of minus zero."""
    return 1 << FORMATS[name].width - 1


def special_code(value: float, name: str) -> int:
    """Return the code of NaN or of an infinity."""
    if math.isnan(value):
        return sign_bit(name) - 1
    return infinity(name) | (sign_bit(name) if value < 0 else 0)


def dot(
    a: Sequence[Number],
    b: Sequence[Number],
    c: Number,
    scales: Sequence[Number],
    accumulator: str,
) -> int:
    """Multiply one row by one column, with at most one scale for each, and add c."""
    kind = c.kind + sum(scale.special for scale in scales)
    for x, y in zip(a, b, strict=True):
        kind += x.kind * y.kind
    if not math.isfinite(kind):
        return special_code(kind, accumulator)
    products = (product((x, y, *scales)) for x, y in zip(a, b, strict=True))
    terms = [term for term in products if term.significand]
    return encode(*fused_sum([*terms, c], FRACTION), accumulator)


def dot_fp4(
    a: Sequence[Number],
    b: Sequence[Number],
    c: Number,
    scales_a: Sequence[Number],
    scales_b: Sequence[Number],
) -> int:
    """Multiply one row by one column of e2m1 with their scales, and add c."""
    kind = c.special + sum(scale.special for scale in (*scales_a, *scales_b))
    if not math.isfinite(kind):
        return special_code(kind, "f32")
    terms = [c]
    block = len(a) // len(scales_a)
    for k in range(0, len(a), 16):
        quarters = 0
        for x, y in zip(a[k : k + 16], b[k : k + 16], strict=True):
            quarters += x.significand * y.significand << x_exponent(x) + x_exponent(y)
        run = Number(quarters, 0, 2)
        terms.append(product((run, scales_a[k // block], scales_b[k // block])))
    return encode(*fused_sum(terms, FP4_FRACTION), "f32")


def x_exponent(x: Number) -> int:
    """Return the exponent of an e2m1; that of zero does not matter."""
    return x.exponent if x.significand else 0


def multiply_floats(
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    a_type: str,
    b_type: str,
    accumulator: str,
    scale: str = "",
    scale_a: NDArray[Any] | None = None,
    scale_b: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return D for containers A [M, K], B [K, N], bits of C and scale codes."""
    rows = [[decode(a_type, x) for x in row] for row in a.tolist()]
    columns = [[decode(b_type, x) for x in column] for column in b.T.tolist()]
    row_scales, column_scales = (
        [[decode_scale(scale, x) for x in group] for group in groups]
        for groups in (
            [[]] * len(rows) if scale_a is None else scale_a.tolist(),
            [[]] * len(columns) if scale_b is None else scale_b.T.tolist(),
        )
    )
    one: Callable[[int, int, Number], int]
    if a_type == "packed e2m1":

        def one(i: int, j: int, c: Number) -> int:
            return dot_fp4(rows[i], columns[j], c, row_scales[i], column_scales[j])
    else:

        def one(i: int, j: int, c: Number) -> int:
            scales = [*row_scales[i], *column_scales[j]]
            return dot(rows[i], columns[j], c, scales, accumulator)

    result = np.empty(c.shape, c.dtype)
    for i, j in np.ndindex(*c.shape):
        result[i, j] = one(i, j, decode(accumulator, int(c[i, j])))
    return result


def multiply_integers(
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    a_type: str,
    b_type: str,
    saturate: bool,
    operation: str = "",
) -> NDArray[Any]:
    """Return D as uint32 for codes A [M, K], B [K, N] and C as uint32."""

    def value(codes: NDArray[Any], name: str) -> NDArray[np.int64]:
        x = codes.astype(np.int64)
        half = 1 << INTEGERS[name] - 1
        return np.where(x >= half, x - 2 * half, x) if name[0] == "s" else x

    x, y = value(a, a_type), value(b, b_type)
    total = c.view(np.int32).astype(np.int64)
    total = total + ((x[:, :, None] ^ y[None]).sum(1) if operation == "xor" else x @ y)
    if saturate:
        total = np.clip(total, -(2**31), 2**31 - 1)
    return (total & 0xFFFFFFFF).astype(np.uint32)
