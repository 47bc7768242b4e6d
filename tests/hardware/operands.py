"""Operands of the hardware tests: the corners of each type crossed with one another, then random bits from a seed."""

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]  # unsigned integers of the operand's size

# exponent bits, mantissa bits
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52), "tf32": (8, 23)}
# Four bits of the metadata of mma.sp: two places that differ, two that ascend, and those of tf32.
PAIRS = {
    "pairs": [x for x in range(16) if x & 3 != x >> 2],
    "ordered": [x for x in range(16) if x & 3 < x >> 2],
    "halves": [0b0100, 0b1110],
}
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2", "u16x2": "u16", "s16x2": "s16"}


def integer_corners(bits: int) -> list[int]:
    """List 0, 1, the extremes of both signs, powers of two and their neighbours, and byte patterns."""
    half, most = 1 << bits - 1, (1 << bits) - 1
    corners = [0, 1, 2, 3, 7, half - 1, half, half + 1, most, most - 1, most - 6, 0x0180_7F80_FF01_80FE & most]
    middle = bits // 2
    return [*corners, (1 << middle) - 1, 1 << middle, (1 << middle - 1) - 1, 1 << middle - 1, most ^ (1 << middle) - 1]


def float_corners(name: str) -> list[int]:
    """List zeros, ones, subnormals, extremes, infinities, NaN payloads and neighbours of powers of two."""
    exponent, mantissa = FLOATS[name]
    bits = 1 + exponent + mantissa
    one, infinity = ((1 << exponent - 1) - 1) << mantissa, ((1 << exponent) - 1) << mantissa
    quiet, unit = 1 << mantissa - 1, 1 << mantissa
    positive = [0, 1, unit - 1, unit, unit + 1, one, one - 1, one + 1, one + unit // 2, one + unit, infinity - 1]
    positive += [infinity, infinity | quiet, infinity | 1, infinity | quiet | 5, infinity | (unit - 1)]
    positive += [one + (mantissa + 1) * unit + 1, one - unit, one - (mantissa + 1) * unit, quiet, 2 * unit]
    return positive + [value | 1 << bits - 1 for value in positive]


def corners(name: str) -> list[int]:
    """List the corners of a kind."""
    if name in FLOATS:
        return float_corners(name)
    if name == "shift":
        return [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 0x80000000, 0xFFFFFFFF, 0x101, 0x11F]
    if name in {"e4m3", "e5m2"}:
        return list(range(256))
    return integer_corners(int(name.lstrip("bus")))


def width(name: str) -> int:
    """Return the bits of a kind's elements."""
    if name in PACKED:
        return 2 * width(PACKED[name])
    if name in {"shift", "tf32"}:
        return 32
    return 8 if name in {"e4m3", "e5m2"} else int(name.lstrip("busf"))


def near_one(name: str, rng: np.random.Generator, count: int) -> Bits:
    """Make floats with random signs and mantissas and exponents near that of 1."""
    exponent, mantissa = FLOATS[name]
    bits = 1 + exponent + mantissa
    scale = rng.integers(-mantissa // 2, mantissa // 2 + 1, count) + (1 << exponent - 1) - 1
    fraction = rng.integers(0, 1 << mantissa, count, np.uint64)
    fraction &= rng.choice(np.array([(1 << mantissa) - 1, (1 << mantissa) - (1 << mantissa // 2)], np.uint64), count)
    sign = rng.integers(0, 2, count, np.uint64)
    out: Bits = (sign << np.uint64(bits - 1)) | (scale.astype(np.uint64) << np.uint64(mantissa)) | fraction
    return out


def random(name: str, rng: np.random.Generator, count: int) -> Bits:
    """Make random values: half of them any bits, half small integers or floats near one."""
    if name == "shift":
        return rng.integers(0, 72, count, np.uint64)
    any_bits = rng.integers(0, 1 << width(name), count, np.uint64) if width(name) < 64 else rng.bytes(8 * count)
    any_bits = np.frombuffer(any_bits, np.uint64).copy() if isinstance(any_bits, bytes) else any_bits
    integers = name not in FLOATS
    small = any_bits >> rng.integers(0, width(name), count, np.uint64) if integers else near_one(name, rng, count)
    return np.where(rng.integers(0, 2, count) == 0, any_bits, small)


def lanes(names: Sequence[str], count: int, rng: np.random.Generator) -> list[Bits]:
    """Make the operands of scalar kinds: corners crossed in the first half, then one corner, then none."""
    lists = [np.array(corners(name), np.uint64) for name in names]
    crossed = int(np.prod([len(values) for values in lists], dtype=object))
    half = count // 2
    sizes = [len(values) for values in lists]
    if crossed <= 1 << 20:
        places = np.unravel_index(rng.permutation(crossed)[:half], sizes)
    else:
        places = tuple(rng.integers(0, size, half) for size in sizes)
    out = [random(name, rng, count) for name in names]
    one = rng.integers(0, len(names), count)
    for k, values in enumerate(lists):
        out[k][: len(places[k])] = values[places[k]]
        rows = np.flatnonzero(one[half : half + count // 8] == k) + half
        out[k][rows] = rng.choice(values, len(rows))
    return out


def tiles(name: str, count: int, rng: np.random.Generator) -> Bits:
    """Make operands of a matrix product, warp by warp: mild ones, any bits, mild ones with a few corners."""
    out = np.empty(count, np.uint64)
    for k, start in enumerate(range(0, count, 32)):
        mild = near_one(name, rng, 32) if name in FLOATS else random(name, rng, 32)
        wild = rng.integers(0, 1 << min(width(name), 63), 32, np.uint64)
        if name in FLOATS and k % 4 == 1:  # any value but for the greatest exponents
            exponent, mantissa = FLOATS[name]
            wild &= np.uint64(~(1 << mantissa + exponent - 1 - (k // 4) % 2) & (1 << width(name)) - 1)
            mild = wild
        rare = rng.integers(0, 64, 32) == 0
        out[start : start + 32] = np.where(
            rare & (k % 4 == 3), rng.choice(np.array(corners(name), np.uint64), 32), mild
        )
    return out


def special(kind: str, count: int, rng: np.random.Generator) -> Bits:
    """Make the operands of a kind with a colon: "f32:0,1" is uniform between 0 and 1, "u32:31" at most 31."""
    name, rule = kind.split(":")
    if rule == "tile":
        if name in PACKED:
            low, high = (tiles(PACKED[name], count, rng) for _ in range(2))
            pair: Bits = low | high << np.uint64(width(PACKED[name]))
            return pair
        return tiles(name, count, rng)
    if rule in PAIRS:
        chosen = rng.choice(np.array(PAIRS[rule], np.uint64), (count, 8))
        words: Bits = (chosen << (4 * np.arange(8, dtype=np.uint64))).sum(1)
        return words
    if rule == "all":
        return np.arange(count, dtype=np.uint64) * np.uint64(0x9E37) & np.uint64((1 << width(name)) - 1)
    least, _, most = rule.rpartition(",")
    if name in {"f32", "f64", "f16"}:
        values = rng.uniform(float(least or 0), float(most), count)
        return values.astype(f"f{width(name) // 8}").view(f"u{width(name) // 8}").astype(np.uint64)
    return rng.integers(int(least or 0), int(most) + 1, count, np.uint64)


def operands(kinds: Sequence[str], count: int, seed: int) -> list[Bits]:
    """Return one array of unsigned integers per operand; kinds alone decide the values.

    "m" is 16 random bytes, "m:ramp" 16 bytes of a regular pattern, which compresses.
    """
    rng = np.random.default_rng([seed, zlib.crc32(" ".join(kinds).encode()), count])
    names: list[str] = []
    for kind in kinds:
        if ":" not in kind and kind != "m":
            names += [PACKED[kind]] * 2 if kind in PACKED else [kind]
    plain = iter(lanes(names, count, rng) if names else ())
    out = []
    for kind in kinds:
        if kind == "m":
            out.append(np.frombuffer(rng.bytes(16 * count), np.uint8))
            continue
        if kind == "m:ramp":
            at = np.arange(16 * count)
            out.append((7 * at + 13 * (at >> 8)).astype(np.uint8))
            continue
        name = kind.split(":")[0]
        bits = width(name)
        if ":" in kind:
            values = special(kind, count, rng)
        elif kind in PACKED:
            values = next(plain) | next(plain) << np.uint64(width(PACKED[kind]))
        else:
            values = next(plain)
        out.append(values.astype(f"u{bits // 8}"))
    return out


def product(*lists: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cross lists of words."""
    return list(itertools.product(*lists))
