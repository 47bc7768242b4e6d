"""Problems that the tests of every precision share, and their launch through the C ABI, between guard bands."""

from typing import NamedTuple

import numpy as np
from harness import ALL_DTYPES, CODES, DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct, tensor
from reference import ROUNDINGS, Array, mx

PRECISIONS = {
    "mxfp8": lib.SM120_MXFP8,
    "mxfp8_bf16": lib.SM120_MXFP8_BF16,
    "mxfp8_f16": lib.SM120_MXFP8_F16,
    "nvfp4": lib.SM120_NVFP4,
    "nvfp4_mxfp8": lib.SM120_NVFP4_MXFP8,
    "fp8": lib.SM120_FP8,
    "bf16": lib.SM120_BF16,
    "f16": lib.SM120_F16,
}
CAUSAL = {
    None: lib.SM120_NOT_CAUSAL,
    "bottom-right": lib.SM120_CAUSAL_BOTTOM_RIGHT,
    "top-left": lib.SM120_CAUSAL_TOP_LEFT,
}
# Relative error of O (Frobenius norm) that rounding P to 16 bits causes, and the step of a dtype.
P_ERROR = {"float16": 4e-4, "bfloat16": 3e-3}
STEP = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8}


class Case(NamedTuple):
    """One problem."""

    batch: int
    heads: int
    kv_heads: int
    q_rows: int
    kv_rows: int
    head_dim: int
    causal: str | None = None
    dtype: str = "bfloat16"
    o_dtype: str = "float32"
    scale: float | None = None
    spread: float = 1.0

    @property
    def factor(self) -> float:
        """The scale that the kernel gets."""
        return float(np.float32(self.head_dim**-0.5 if self.scale is None else self.scale))


def name(case: Case) -> str:
    """Name a case for the report."""
    return "-".join(str(x) for x in case if x is not None)


EDGES = [
    *(Case(1, 1, 1, q, k, 64) for q in (1, 127, 128, 129) for k in (1, 63, 64, 65)),
    *(Case(1, 1, 1, q, k, 128) for q, k in ((16, 33), (17, 191), (130, 257), (255, 320))),
]
# The tiles of head size 256, whose operands in MXFP8 are packed in halves.
WIDE = [Case(1, 1, 1, q, k, 256, c) for q, k, c in ((1, 1, None), (127, 63, None), (129, 65, "bottom-right"))]
WIDE += [Case(2, 4, 2, 150, 201, 256, "top-left"), Case(1, 2, 2, 65, 330, 200), Case(1, 1, 1, 300, 129, 256)]
CAUSALS = [
    Case(1, 1, 1, q, k, d, causal)
    for causal in ("bottom-right", "top-left")
    for q, k, d in (
        *((128, 128, 64), (129, 129, 128), (1, 100, 64), (100, 1, 64), (65, 200, 128), (200, 65, 64)),
        *((127, 191, 96), (256, 257, 32), (300, 129, 128)),
    )
]
GROUPS = [
    Case(2, 4, 2, 70, 90, 64, "bottom-right"),
    Case(1, 6, 1, 33, 65, 128),
    Case(3, 3, 3, 20, 129, 32, "top-left"),
    Case(2, 8, 4, 1, 300, 128),
]


def random_case(rng: np.random.Generator, dtypes: list[str], most_head_dim: int) -> Case:
    """Return a random problem."""
    kv_heads = int(rng.integers(1, 3))
    return Case(
        int(rng.integers(1, 3)),
        kv_heads * int(rng.integers(1, 4)),
        kv_heads,
        int(rng.integers(1, 300)),
        int(rng.integers(1, 300)),
        8 * int(rng.integers(1, most_head_dim // 8 + 1)),
        [None, "bottom-right", "top-left"][rng.integers(3)],
        str(rng.choice(dtypes)),
        str(rng.choice(list(CODES))),
    )


def pitched(shape: tuple[int, int, int, int], order: str, gap: int) -> tuple[int, ...]:
    """Strides of [batch, head, row, head_dim] stored as BSHD or BHSD with a gap after each row."""
    _, heads, rows, head_dim = shape
    pitch = head_dim + gap
    if order == "BSHD":
        return (rows * heads * pitch, pitch, heads * pitch, 1)
    return (heads * rows * pitch, rows * pitch, pitch, 1)


def run(
    opened: OpenDevice, precision: str, case: Case, q: Array, k: Array, v: Array, scale: float, *, smooth: bool = True
) -> tuple[Array, Array]:
    """Launch on [batch, head, row, head_dim] arrays; O and LSE as [batch, head, row, ...]."""
    dtype = ALL_DTYPES[case.dtype]
    q_shape = (case.batch, case.heads, case.q_rows, case.head_dim)
    args = new_struct("sm120_attention_args")
    args.precision, args.causal, args.scale = PRECISIONS[precision], CAUSAL[case.causal], scale
    args.no_smoothing = not smooth
    args.num_splits = 1  # the references know no splits: tests/ops/test_attention_splits.py
    args.batch, args.heads, args.kv_heads = case.batch, case.heads, case.kv_heads
    args.q_rows, args.kv_rows, args.head_dim = case.q_rows, case.kv_rows, case.head_dim
    inputs = [
        Buffer(opened, x.shape, dtype, pitched(x.shape, order, gap), x)
        for x, order, gap in ((q, "BSHD", 16), (k, "BHSD", 0), (v, "BSHD", 32))
    ]
    for struct, buffer in zip((args.q, args.k, args.v), inputs, strict=True):
        tensor(struct, buffer)
    o = Buffer(opened, q_shape, DTYPES[case.o_dtype], pitched(q_shape, "BSHD", 8))
    lse = Buffer(opened, q_shape[:3], np.float32)
    tensor(args.o, o)
    args.lse = lse.address
    size = ffi.new("size_t *", 1)
    check(lib.sm120_attention_workspace(opened.handle, args, size))
    if precision in ("bf16", "f16", "fp8"):
        assert size[0] == 0
        check(lib.sm120_attention(opened.handle, args, 0, 0))
    else:
        # The workspace is poisoned too: nothing may depend on its old contents.
        workspace = Buffer(opened, (int(size[0]),), np.uint8)
        check(lib.sm120_attention(opened.handle, args, workspace.address, size[0]))
    return o.download().astype(np.float64), lse.download().astype(np.float64)


def random_inputs(rng: np.random.Generator, case: Case) -> list[Array]:
    """Draw q, k and v [batch, head, row, head_dim] in the dtype of the case."""
    rows = ((case.heads, case.q_rows), (case.kv_heads, case.kv_rows), (case.kv_heads, case.kv_rows))
    return [
        (case.spread * rng.standard_normal((case.batch, heads, n, case.head_dim)) + 0.25).astype(ALL_DTYPES[case.dtype])
        for heads, n in rows
    ]


def run_twice(
    opened: OpenDevice, precision: str, case: Case, inputs: list[Array], *, smooth: bool = True
) -> tuple[Array, Array]:
    """Launch twice, which must give the same bits; O as [batch, row, head, head_dim], and LSE."""
    q, k, v = inputs
    try:
        o, lse = run(opened, precision, case, q, k, v, case.factor, smooth=smooth)
        again, _ = run(opened, precision, case, q, k, v, case.factor, smooth=smooth)
    finally:
        opened.release()
    assert np.array_equal(o, again, equal_nan=True), "two launches gave different bits"
    return o.swapaxes(1, 2), lse


def rows_first(inputs: list[Array]) -> tuple[Array, Array, Array]:
    """Convert [batch, head, row, head_dim] arrays for the references: [batch, row, head, head_dim], float32."""
    q, k, v = (x.astype(np.float32).swapaxes(1, 2) for x in inputs)
    return q, k, v


def check_empty_rows(o: Array, lse: Array, model_lse: Array) -> Array:
    """Check that exactly the rows without a key are 0 with LSE -inf; return which rows have one, [batch, head, row]."""
    seen = np.isfinite(model_lse)
    assert np.array_equal(np.isneginf(lse), ~seen)
    assert np.all(o.swapaxes(1, 2)[~seen] == 0)
    return seen


def mx_score_error(q: Array, k: Array) -> float:
    """The largest change of a product of rows of q and k by the rounding of both to MXFP8."""
    heads = q.shape[2]
    exact, rounded = (
        np.einsum("bqhd,bkhd->bhqk", a, np.repeat(b, heads // b.shape[2], 2), dtype=np.float64)
        for a, b in ((q, k), (mx(q, -1), mx(k, -1)))
    )
    return float(np.abs(rounded - exact).max(initial=0))


def check_poison(opened: OpenDevice, rng: np.random.Generator, precision: str, dtype: str, poison: float) -> None:
    """Write NaN to a row of q, which affects only this row, and to an element of v, which affects its column."""
    case = Case(1, 1, 1, 40, 96, 64, None, dtype)
    q, k, v = (rng.standard_normal((1, 1, rows, 64)).astype(ALL_DTYPES[dtype]) for rows in (40, 96, 96))
    q[0, 0, 7, 3] = poison
    v[0, 0, 50, 20] = poison
    try:
        o, lse = run(opened, precision, case, q, k, v, 0.125)
    finally:
        opened.release()
    expected = np.zeros((40, 64), bool)
    expected[7, :] = expected[:, 20] = True
    bad = np.isnan(o[0, 0]) if precision in ROUNDINGS else ~np.isfinite(o[0, 0])
    assert np.array_equal(bad, expected)
    assert np.array_equal(np.isnan(lse[0, 0]), np.arange(40) == 7)
