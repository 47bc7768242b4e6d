"""Problems with the features of attention, which its tests and those of its backward pass share.

Every problem is a batch of sequences, each with its own rows and keys. Invalid keys, in padded tensors and between
packed sequences, are NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from harness import ALL_DTYPES, CODES, DTYPES, Buffer, OpenDevice, lib
from numpy.typing import NDArray
from reference import ROUNDINGS, Array, attention_dense, mx
from smoothing_model import smoothed

ALIGN = {
    (False, "bottom-right"): lib.SM120_NOT_CAUSAL,
    (True, "bottom-right"): lib.SM120_CAUSAL_BOTTOM_RIGHT,
    (True, "top-left"): lib.SM120_CAUSAL_TOP_LEFT,
    (False, "top-left"): lib.SM120_NOT_CAUSAL_TOP_LEFT,
}
FAR = 2**40
NAN_TAIL = 5  # rows behind the last packed sequence


class Case(NamedTuple):
    """One problem. Lengths are those of the sequences; a feature that is None or 0 is off."""

    q_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...]
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    v_head_dim: int | None = None
    q_packed: bool = False
    kv_packed: bool = False
    causal: bool = False
    align: str = "bottom-right"
    window: tuple[int | None, int | None] = (None, None)
    diagonals: tuple[int, ...] | None = None
    softcap: float = 0.0
    sinks: bool = False
    slopes: str | None = None  # "heads" or "batch"
    mask: str | None = None  # "float32", "float16", "bfloat16" or "bool"
    mask_axes: str = "bhqk"  # dimensions along which the mask is not broadcast
    past: int = 0
    gap: int = 0  # elements between rows, beyond those that keep them aligned
    dtype: str = "bfloat16"
    o_dtype: str = "float32"
    scale: float | None = None
    precision: str | None = None  # empty: that of dtype
    growth: float = 0.0  # factor by which the last keys of a sequence are larger than the first

    @property
    def needs_copies(self) -> bool:
        """Whether a tensor cannot be used in place by kernels."""
        step = 16 if self.precision == "fp8" else 8
        return any(n % step > 0 for n in (self.gap, self.head_dim, self.v_head_dim or 0))


def rows_of(lengths: tuple[int, ...], *, packed: bool) -> tuple[int, int]:
    """Batch and rows of a tensor that holds such sequences."""
    return (1, sum(lengths) + NAN_TAIL) if packed else (len(lengths), max(lengths))


def places(lengths: tuple[int, ...], *, packed: bool) -> list[tuple[int, slice]]:
    """The batch and rows of each sequence in such a tensor."""
    ends = np.cumsum(lengths)
    if packed:
        return [(0, slice(int(end) - n, int(end))) for n, end in zip(lengths, ends, strict=True)]
    return [(b, slice(0, n)) for b, n in enumerate(lengths)]


def scaled(case: Case) -> list[tuple[str, int]]:
    """The scales of a case, and their heads."""
    return [("q_scale", case.heads), ("k_scale", case.kv_heads), ("v_scale", case.kv_heads)]


def random_case(
    rng: np.random.Generator,
    dtypes: Sequence[str],
    widest: int,
    precision: str | None = None,
    *,
    has_past: bool = True,
) -> Case:
    """Draw a combination of features, with head sizes up to `widest`."""

    def chance() -> bool:
        return bool(rng.random() < 0.4)

    def maybe(value: Any, otherwise: Any = None) -> Any:
        return value if chance() else otherwise

    batch = int(rng.integers(1, 4))
    kv_heads = int(rng.integers(1, 3))
    odd = chance()
    past = int(maybe(rng.integers(1, 150), 0)) if has_past else 0
    q_packed, kv_packed = chance(), past == 0 and chance()
    q_lengths = rng.integers(1, 200, batch)
    kv_lengths = rng.integers(1, maybe(600, 200), batch)
    if past:
        kv_lengths[:] = kv_lengths[0]
    if not q_packed:
        q_lengths[:] = q_lengths[0]
    windows = (maybe(int(rng.integers(0, 100))), maybe(int(rng.integers(0, 100))))
    return Case(
        tuple(map(int, q_lengths)),
        tuple(map(int, kv_lengths)),
        kv_heads * int(rng.integers(1, 4)),
        kv_heads,
        int(rng.integers(1, widest + 1)) if odd else 8 * int(rng.integers(1, widest // 8 + 1)),
        maybe(int(rng.integers(1, widest + 1)) if odd else 8 * int(rng.integers(1, widest // 8 + 1))),
        q_packed,
        kv_packed,
        bool(rng.integers(2)),
        str(rng.choice(["bottom-right", "top-left"])),
        windows,
        maybe(tuple(map(int, rng.integers(-50, 150, batch)))),
        float(maybe(rng.uniform(0.5, 30), 0.0)),
        chance(),
        maybe(str(rng.choice(["heads", "batch"]))),
        None if q_packed or kv_packed else maybe(str(rng.choice(["bool", *CODES]))),
        "".join(axis for axis in "bhqk" if rng.integers(2)),
        past,
        int(maybe(rng.integers(0, 9), 0)) if odd else 0,
        str(rng.choice(dtypes)),
        str(rng.choice(list(CODES))),
        None,
        precision,
    )


class Problem:
    """The arrays of a case: tensors are [batch, heads, rows, head_dim]."""

    def __init__(self, rng: np.random.Generator, case: Case) -> None:
        self.case = case
        self.batch = len(case.q_lengths)
        self.v_dim = case.v_head_dim or case.head_dim
        dtype = ALL_DTYPES[case.dtype]
        normal = rng.standard_normal

        def sequences(lengths: tuple[int, ...], heads: int, width: int, *, packed: bool) -> Array:
            n, rows = rows_of(lengths, packed=packed)
            x = np.full((n, heads, rows, width), np.nan)
            for b, where in places(lengths, packed=packed):
                x[b, :, where] = normal((heads, where.stop - where.start, width)) + 0.25
            return x.astype(dtype)

        self.q = sequences(case.q_lengths, case.heads, case.head_dim, packed=case.q_packed)
        self.k = sequences(case.kv_lengths, case.kv_heads, case.head_dim, packed=case.kv_packed)
        self.v = sequences(case.kv_lengths, case.kv_heads, self.v_dim, packed=case.kv_packed)
        for b, where in places(case.kv_lengths, packed=case.kv_packed):
            rows = where.stop - where.start
            rising = np.linspace(1, 1 + case.growth, rows)[:, None]
            self.k[b, :, where] = (self.k[b, :, where].astype(np.float64) * rising).astype(dtype)
        self.past_k = normal((self.batch, case.kv_heads, case.past, case.head_dim)).astype(dtype)
        self.past_v = normal((self.batch, case.kv_heads, case.past, self.v_dim)).astype(dtype)
        # Scales of FP8 by batch and head, of either sign; other precisions have none.
        self.scales = {name: np.ones((self.batch, heads), np.float32) for name, heads in scaled(case)}
        if case.precision == "fp8":
            for x in self.scales.values():
                x[:] = rng.uniform(0.5, 2, x.shape) * rng.choice([-1, 1, 1], x.shape)
        self.sinks = normal(case.heads).astype(np.float32) + 1
        self.slopes = (2.0 ** -rng.uniform(1, 6, (self.batch, case.heads))).astype(np.float32)
        if case.slopes == "heads":
            self.slopes[:] = self.slopes[:1]
        shape = (self.batch, case.heads, max(case.q_lengths), case.past + max(case.kv_lengths))
        mask_shape = tuple(n if axis in case.mask_axes else 1 for n, axis in zip(shape, "bhqk", strict=True))
        self.mask: Array = normal(mask_shape)
        if case.mask == "bool":
            self.mask = self.mask > -0.5
        elif case.mask is not None:
            self.mask = np.where(normal(mask_shape) > 2, -np.inf, 2 * self.mask).astype(DTYPES[case.mask])
        self.scale = float(np.float32(case.head_dim**-0.5 if case.scale is None else case.scale))

    def magnitude(self, b: int) -> float:
        """Norm of the O of one sequence if all values were positive."""
        return float(np.linalg.norm(self.exact(b, np.abs)[0]))

    def exact(self, b: int, change: Callable[[Array], Array] = np.positive) -> tuple[Array, Array]:
        """O [heads, rows, head_dim] and LSE [heads, rows] of one sequence, with a function applied to its values."""
        case = self.case
        q_at, q_rows = places(case.q_lengths, packed=case.q_packed)[b]
        kv_at, kv_rows = places(case.kv_lengths, packed=case.kv_packed)[b]
        q = self.q[q_at, :, q_rows].astype(np.float64)
        k = np.concatenate([self.past_k[b], self.k[kv_at, :, kv_rows]], 1).astype(np.float64)
        v = np.concatenate([self.past_v[b], self.v[kv_at, :, kv_rows]], 1).astype(np.float64)
        group = case.heads // case.kv_heads
        q = q * self.scales["q_scale"][b][:, None, None] * np.repeat(self.scales["k_scale"][b], group)[:, None, None]
        v = v * self.scales["v_scale"][b][:, None, None]
        if case.precision:  # rows are quantised one by one, values in blocks of keys of one tensor
            of_scores = ROUNDINGS[case.precision].scores if case.precision in ROUNDINGS else mx
            if case.precision.startswith("nvfp4"):
                q, k = smoothed(q, k, case.dtype, v.shape[-1])
            else:
                q, k = of_scores(q, -1).astype(np.float64), of_scores(k, -1).astype(np.float64)
        if case.precision in ROUNDINGS:
            of_values = ROUNDINGS[case.precision].values
            v = np.concatenate([of_values(part, 1) for part in np.split(v, [case.past], 1) if part.shape[1]] or [v], 1)
            v = v.astype(np.float64)
        sinks = self.sinks if case.sinks else None
        return attention_dense(q, k, change(v), self.scale, self.added(b), case.softcap, sinks)

    def places_of_scores(self, b: int) -> tuple[Array, Array]:
        """The row of each score of one sequence, counted as its key is, and the key."""
        case = self.case
        rows, keys = case.q_lengths[b], case.past + case.kv_lengths[b]
        d = keys - rows if case.align == "bottom-right" else 0
        d = case.diagonals[b] if case.diagonals else d
        return np.arange(rows)[:, None] + d, np.arange(keys)[None, :]

    def in_window(self, b: int) -> NDArray[np.bool_]:
        """The keys that a row of one sequence sees, but for a mask: [rows, keys]."""
        left, right = (FAR if side is None else side for side in self.case.window)
        right = 0 if self.case.causal else right
        i, j = self.places_of_scores(b)
        return np.asarray((j >= i - left) & (j <= i + right))

    def added(self, b: int) -> Array:
        """What is added to the scores of one sequence, [heads or 1, rows, keys]; -inf for a hidden key."""
        case = self.case
        rows, keys = case.q_lengths[b], case.past + case.kv_lengths[b]
        i, j = self.places_of_scores(b)
        bias = np.where(self.in_window(b), 0.0, -np.inf)[None]
        if case.slopes:
            bias = bias - self.slopes[b].astype(np.float64)[:, None, None] * np.abs(i - j)
        if case.mask:
            mask = np.broadcast_to(self.mask, (self.batch, case.heads, max(case.q_lengths), self.keys_max))
            mask = mask[b, :, :rows, :keys]
            bias = np.where(mask, bias, -np.inf) if case.mask == "bool" else bias + mask.astype(np.float64)
        return bias

    @property
    def keys_max(self) -> int:
        """Keys of the longest sequence."""
        return self.case.past + max(self.case.kv_lengths)


def numbers(opened: OpenDevice, values: Any, dtype: Any) -> int:
    """Copy an array to the device; return its address."""
    x: Array = np.asarray(values, dtype)
    return Buffer(opened, x.shape, dtype, None, x).address


def fill_sequences(opened: OpenDevice, args: Any, case: Case) -> None:
    """Fill in the starts, lengths and diagonals of sequences."""
    for packed, lengths, side in ((case.q_packed, case.q_lengths, "q"), (case.kv_packed, case.kv_lengths, "kv")):
        if packed:
            setattr(args, f"cu_seqlens_{side[0]}", numbers(opened, np.cumsum((0, *lengths)), np.int32))
            setattr(args, f"{side}_total", sum(lengths) + NAN_TAIL)
    if not case.kv_packed and len(set(case.kv_lengths)) > 1:
        args.kv_lengths = numbers(opened, case.kv_lengths, np.int32)
    if case.diagonals:
        args.diagonals = numbers(opened, case.diagonals, np.int32)


def fill_mask(opened: OpenDevice, struct: Any, problem: Problem) -> None:
    """Fill an sm120_mask that repeats along its dimensions of 1."""
    kind = str(problem.case.mask)
    x: Array = problem.mask.view(np.uint8) if kind == "bool" else problem.mask
    steps = np.array([*np.cumprod(x.shape[:0:-1])[::-1], 1])
    struct.address = Buffer(opened, x.shape, x.dtype, None, x).address
    struct.dtype = lib.SM120_BOOL if kind == "bool" else CODES[kind]
    strides = [int(step) if n > 1 else 0 for step, n in zip(steps, x.shape, strict=True)]
    struct.batch_stride, struct.head_stride, struct.row_stride, struct.column_stride = strides


def fill_features(opened: OpenDevice, args: Any, problem: Problem) -> None:
    """Fill in the shape and all features but the past."""
    case = problem.case
    args.scale = problem.scale
    args.causal = ALIGN[case.causal, case.align]
    args.batch, args.heads, args.kv_heads = problem.batch, case.heads, case.kv_heads
    args.q_rows, args.kv_rows = max(case.q_lengths), max(case.kv_lengths)
    args.head_dim, args.v_head_dim = case.head_dim, case.v_head_dim or 0
    fill_sequences(opened, args, case)
    args.window = sum(bit for bit, side in zip((1, 2), case.window, strict=True) if side is not None)
    args.window_left, args.window_right = (side or 0 for side in case.window)
    args.softcap = case.softcap
    if case.sinks:
        args.sinks = numbers(opened, problem.sinks, np.float32)
    if case.slopes:
        args.alibi_slopes = numbers(opened, problem.slopes if case.slopes == "batch" else problem.slopes[0], np.float32)
        args.alibi_batch_stride = case.heads if case.slopes == "batch" else 0
    if case.precision == "fp8":
        for name, x in problem.scales.items():
            struct = getattr(args, name)
            struct.address, struct.dtype = numbers(opened, x, np.float32), lib.SM120_F32
            struct.batch_stride, struct.head_stride = x.shape[1], 1
    if case.mask:
        fill_mask(opened, args.mask, problem)
