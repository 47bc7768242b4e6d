"""Problems for the tests of attention_backward, how one is launched by the C ABI, and how its result is judged."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from attention_cases import CAUSAL, PRECISIONS, STEP, pitched
from backward_reference import (
    Array,
    Gradients,
    Inputs,
    bounds,
    chance,
    delta_of,
    forward,
    gather,
    gradients,
    inputs,
    model,
    plain,
    seen_keys,
    wide,
)
from harness import CODES, DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct, tensor

import pysm120
from pysm120.runtime.module import Builtin, builtins

attention_backward: Any = pysm120.attention_backward  # called with lists of arrays
LEAST = {"float32": 1e-37, "float16": 2.0**-25, "bfloat16": 1e-37}  # half of the least step of a dtype, or more
PRECISION = {"bfloat16": "bf16", "float16": "f16"}
HOPPER = 9  # its major compute capability
ROUND_KEYS = 8  # in whose time a round does what it has beside its keys
TILES = {32: (64, 128), 64: (64, 128), 96: (64, 64), 128: (64, 64), 192: (32, 64), 256: (32, 32)}  # rows, keys; SM120


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
    out_dtype: str = "float32"  # of dq, dk and dv
    v_head_dim: int | None = None
    window: tuple[int | None, int | None] = (None, None)
    scale: float | None = None
    o_dtype: str = "float32"
    deterministic: bool = False

    @property
    def factor(self) -> float:
        """The scale that the kernels get."""
        return float(np.float32(self.head_dim**-0.5 if self.scale is None else self.scale))

    @property
    def width(self) -> int:
        """The head size of v."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim


def name(case: Case) -> str:
    """Name a case for the report."""
    return "-".join(str(x) for x in case if x not in (None, (None, None)))


def draw(rng: np.random.Generator, case: Case) -> Inputs:
    """Draw q, k, v and dout."""
    shapes = (
        (case.heads, case.q_rows, case.head_dim),
        (case.kv_heads, case.kv_rows, case.head_dim),
        (case.kv_heads, case.kv_rows, case.width),
        (case.heads, case.q_rows, case.width),
    )
    q, k, v, dout = ((rng.standard_normal((case.batch, *s)) + 0.25).astype(DTYPES[case.dtype]) for s in shapes)
    return Inputs(q, k, v, dout, case.factor, seen_keys(case.q_rows, case.kv_rows, case.causal, case.window))


def random_case(rng: np.random.Generator, dtypes: Iterable[str], largest: int, group: int) -> Case:
    """Draw a shape nobody chose: head sizes up to `largest`, up to `group` heads of q for each of k and v."""
    kv_heads = int(rng.integers(1, 3))
    window = tuple(None if rng.random() < 0.6 else int(rng.integers(0, 200)) for _ in range(2))
    return Case(
        int(rng.integers(1, 3)),
        kv_heads * int(rng.integers(1, group + 1)),
        kv_heads,
        int(rng.integers(1, 300)),
        int(rng.integers(1, 300)),
        int(rng.integers(1, largest + 1)),
        [None, "bottom-right", "top-left"][rng.integers(3)],
        str(rng.choice(list(dtypes))),
        str(rng.choice(list(DTYPES))),
        int(rng.integers(1, largest + 1)),
        (window[0], window[1]),
        o_dtype=str(rng.choice(list(DTYPES))),
    )


def odd_cases(dtypes: Iterable[str]) -> list[Case]:
    """Head sizes for tensors whose rows begin at no multiple of 16 bytes."""
    return [
        Case(2, 4, 2, 70, 90, d, "bottom-right", dtype, dtype, v, o_dtype=dtype)
        for d, v in ((64, 64), (128, 96), (100, 33))
        for dtype in dtypes
    ]


def ready(rng: np.random.Generator, case: Case) -> tuple[Inputs, Array, Array]:
    """Draw a problem, with O in its dtype and LSE."""
    x = draw(rng, case)
    _, o, lse = forward(x)
    return x, o.astype(DTYPES[case.o_dtype]), lse.astype(np.float32)


def one_for_all(x: Inputs, which: int) -> Inputs:
    """Let all batches and heads of q, k, v or dout, by its number, be the first."""
    arrays = [x.q, x.k, x.v, x.dout]
    arrays[which] = np.broadcast_to(arrays[which][:1, :1], arrays[which].shape)
    return inputs(arrays, x.scale, x.seen)


def arguments(case: Case, precision: str | None = None) -> Any:
    """Return the struct of a case without its arrays."""
    args = new_struct("sm120_attention_backward_args")
    args.precision, args.causal = PRECISIONS[precision or PRECISION[case.dtype]], CAUSAL[case.causal]
    args.scale = case.factor
    args.batch, args.heads, args.kv_heads = case.batch, case.heads, case.kv_heads
    args.q_rows, args.kv_rows, args.head_dim = case.q_rows, case.kv_rows, case.head_dim
    args.v_head_dim = case.v_head_dim or 0
    args.deterministic = case.deterministic
    left, right = case.window
    args.window = (left is not None) * lib.SM120_WINDOW_LEFT + (right is not None) * lib.SM120_WINDOW_RIGHT
    args.window_left, args.window_right = left or 0, right or 0
    return args


# How q, k, v, dout, o, dq, dk and dv lie: an order and the elements between two rows. Inputs that are aligned to 16
# bytes are not copied. Results that are aligned to 8 bytes are stored four elements at a time, if they have 16 bits.
Places = tuple[tuple[str, int], ...]
ALIGNED: Places = (
    *(("BSHD", 8), ("BHSD", 0), ("BSHD", 16), ("BHSD", 8), ("BSHD", 8)),
    *(("BSHD", 4), ("BHSD", 12), ("BSHD", 0)),
)
ODD: Places = (
    *(("BSHD", 3), ("BHSD", 1), ("BSHD", 5), ("BHSD", 7), ("BHSD", 1)),
    *(("BHSD", 5), ("BSHD", 2), ("BHSD", 1)),
)
MIXED: Places = (*ODD[:2], *ALIGNED[2:4], *ODD[4:6], *ALIGNED[6:7], *ODD[7:])


def gaps(gap: int) -> Places:
    """Inputs with some elements between two rows, and results without."""
    return (*(("BHSD", gap),) * 5, *(("BHSD", 0),) * 3)


def run(
    opened: OpenDevice,
    case: Case,
    x: Inputs,
    o: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    delta: Array | None = None,
    places: Places = ALIGNED,
    precision: str | None = None,
    broadcast: int | None = None,
) -> Gradients:
    """Launch between guard bands, on NaN in the results and in the workspace; gradients in float64.

    `broadcast` is the number of an input of which one head alone is in memory, with strides of 0.
    """
    args = arguments(case, precision)
    given = (x.q, x.k, x.v, x.dout, o)
    for n, (struct, whole, place) in enumerate(
        zip((args.q, args.k, args.v, args.dout, args.o), given, places, strict=False)
    ):
        y = whole[:1, :1] if n == broadcast else whole
        tensor(struct, Buffer(opened, y.shape, y.dtype, pitched(y.shape, *place), y))
        if n == broadcast:
            struct.batch_stride = struct.head_stride = 0
    results = []
    for struct, y, place in zip((args.dq, args.dk, args.dv), (x.q, x.k, x.v), places[5:], strict=True):
        results.append(Buffer(opened, y.shape, DTYPES[case.out_dtype], pitched(y.shape, *place)))
        tensor(struct, results[-1])
    for member, numbers in (("lse", lse), ("dlse", dlse), ("delta", delta)):
        if numbers is not None:
            setattr(args, member, Buffer(opened, numbers.shape, np.float32, None, numbers.astype(np.float32)).address)
    size = ffi.new("size_t *")
    try:
        check(lib.sm120_attention_backward_workspace(opened.handle, args, size))
        workspace = Buffer(opened, (int(size[0]),), np.uint8)
        check(lib.sm120_attention_backward(opened.handle, args, workspace.address, size[0]))
        return Gradients(*(wide(y.download()) for y in results))
    finally:
        opened.release()


def run_virtual(
    options: str, case: Case, x: Inputs, o: Array, lse: Array, *, precision: str | None = None
) -> Gradients:
    """Launch on a virtual device with some options."""
    opened = OpenDevice(f"virtual:0?{options}")
    try:
        return run(opened, case, x, o, lse, precision=precision)
    finally:
        opened.close()


def backward(x: Inputs, o: Array, lse: Array, device: pysm120.Device, **options: Any) -> Gradients:
    """Call Python on host arrays in BHSD; results in float32 unless they are given."""
    results = {
        member: np.full(y.shape, np.nan, np.float32)
        for member, y in (("dq", x.q), ("dk", x.k), ("dv", x.v))
        if member not in options
    }
    options = {"scale": x.scale, "layout": "BHSD", "device": device, **results, **options}
    return Gradients(*attention_backward(x.dout, x.q, x.k, x.v, o, lse, **options)[:3])


class Shares(NamedTuple):
    """Of the tiles of keys, in the order of the launch, those from `first` on are shared by `splits` CTAs each."""

    first: int
    splits: int


def rule(device: pysm120.Device, case: Case, tile: Builtin) -> tuple[Shares, int]:
    """The rule of docs/reference/attention_backward.md for a kernel, and the time of the kernel, in rounds of a CTA."""
    sms = 128 if case.deterministic else device.info.multiprocessors
    ctas = case.batch * case.kv_heads * -(-case.kv_rows // tile.kv_rows)
    walk = case.heads // case.kv_heads * -(-case.q_rows // tile.q_rows)
    has_right = case.causal is not None or case.window[1] is not None
    first = 0 if has_right or case.deterministic else ctas // sms * sms

    def time(n: int) -> int:
        share, (ends, more) = -(-walk // n), (2, 0) if n == 1 else (3, 4)
        if has_right:
            return max(share + ends, ctas * n * (-(-share // 2) + ends) // sms) + more
        return first // sms * (walk + 2) + -(-(ctas - first) * n // sms) * (share + ends) + more

    best = min(range(1, 33), key=time)
    saved = time(1) - time(best)
    is_split = saved >= 8 and 100 * saved >= time(1)
    return (Shares(first, best), time(best)) if is_split else (Shares(ctas, 1), time(1))


def kernel(device: pysm120.Device, case: Case) -> Builtin:
    """Return the 16-bit kernel of a call on a device, by the rules of docs/reference/attention_backward.md."""
    fitting = [
        x
        for x in builtins()
        if x.operation == "attention_backward"
        and not x.features
        and x.precision == PRECISION[case.dtype]
        and x.head_dim >= max(case.head_dim, case.width)
        and x.shared_bytes <= device.info.shared_bytes_per_block
        and (x.ordered or not case.deterministic)
    ]
    largest = min(fitting, key=lambda x: (x.head_dim, -x.shared_bytes))
    if device.info.capability[0] == HOPPER:
        return largest
    fitting = [x for x in fitting if (x.head_dim, x.q_rows) == (largest.head_dim, largest.q_rows)]
    fitting = [x for x in fitting if x.ordered == largest.ordered]
    return min(fitting, key=lambda x: rule(device, case, x)[1] * (x.kv_rows + ROUND_KEYS))


def padded(x: int) -> int:
    """Round up to the alignment of an area of the workspace."""
    return -(-x // 256) * 256


def described(case: Case, precision: str | None = None) -> Any:
    """Return the struct of a case with tensors at no real address; rows are aligned if the head size is 8 n."""
    args = arguments(case, precision)
    q, k = (case.heads, case.q_rows, case.head_dim), (case.kv_heads, case.kv_rows, case.head_dim)
    v, o = (case.kv_heads, case.kv_rows, case.width), (case.heads, case.q_rows, case.width)
    tensors = (args.q, args.k, args.v, args.dout, args.o, args.dq, args.dk, args.dv)
    dtypes = [case.dtype] * 5 + [case.out_dtype] * 3
    for struct, (heads, rows, head_dim), dtype in zip(tensors, (q, k, v, o, o, q, k, v), dtypes, strict=True):
        pitch = padded(head_dim) if head_dim % 8 == 0 else head_dim
        struct.address, struct.dtype = 1 << 20, CODES[dtype]
        struct.batch_stride, struct.head_stride, struct.row_stride = heads * rows * pitch, rows * pitch, pitch
    args.lse = 1 << 20
    return args


def workspace_bytes(opened: OpenDevice, case: Case, precision: str | None = None) -> int:
    """Ask how large a workspace is."""
    size = ffi.new("size_t *")
    check(lib.sm120_attention_backward_workspace(opened.handle, described(case, precision), size))
    return int(size[0])


def plan(opened: OpenDevice, case: Case, precision: str | None = None) -> Any:
    """Ask the library how it computes a case."""
    found = new_struct("sm120_attention_backward_plan")
    check(lib.sm120_attention_backward_chosen(opened.handle, described(case, precision), found))
    return found


def chosen(opened: OpenDevice, case: Case, precision: str | None = None) -> Shares:
    """Ask the library which CTAs share tiles of keys."""
    found = plan(opened, case, precision)
    return Shares(found.first_split, found.splits)


def norm(x: Array) -> float:
    """The Frobenius norm."""
    return float(np.linalg.norm(x))


def judge(got: Gradients, exact: Gradients, x: Inputs, lse: Array, delta: Array, out: str = "float32") -> None:
    """Compare with the exact gradients and with the model of the kernels; `out` is the dtype of the results.

    The error is at most twice that of a plain 16-bit backward pass of the same lse and delta, but for what is chance
    in sums of few elements. Where both cancel to nothing it is at most the rounding of float32 in what is added.
    From the model no element differs by more than float32 and the rounding of the result explain.
    """
    half = x.q.dtype.name
    simple, wanted = plain(x, lse, delta, DTYPES[out]), model(x, lse, delta)
    size, room = bounds(x, lse, delta)
    for member, luck in zip(Gradients._fields, chance(x, lse, delta), strict=True):
        mine, best, usual, near, most, free = (getattr(y, member) for y in (got, exact, simple, wanted, size, room))
        assert mine.shape == best.shape
        error, allowed = norm(mine - best), 2 * norm(usual - best) + 2 * STEP[half] * luck + 2**-20 * norm(most)
        assert error <= allowed, f"{member} is off by {error / norm(best):.2g}, allowed is {allowed / norm(best):.2g}"
        # The kernel rounds what it computed, which is at most |near| + free.
        off = np.abs(mine - near) / (free + STEP[out] * (np.abs(near) + free) + LEAST[out])
        assert off.max() <= 1, f"{member} is {off.max():.2g} times its bound off the model at {off.argmax()}"
    sees, kv_heads = x.sees, x.k.shape[1]
    unseen = np.equal(gather(np.asarray(sees.any(2))[..., None].astype(int), kv_heads)[..., 0], 0)
    assert not got.dq[np.logical_not(sees.any(3))].any()
    assert not np.any(got.dk[unseen])
    assert not np.any(got.dv[unseen])


def verify(opened: OpenDevice, rng: np.random.Generator, case: Case, places: Places = ALIGNED) -> None:
    """Compare one problem with float64 and with the model."""
    x, o, lse = ready(rng, case)
    got = run(opened, case, x, o, lse, places=places)
    judge(got, gradients(x), x, lse, delta_of(x, o), case.out_dtype)
