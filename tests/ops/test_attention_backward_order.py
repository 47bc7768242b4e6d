"""attention_backward with deterministic=True: the same bits in every run, added up in the order of the keys."""

from typing import Any

import numpy as np
import pytest
from backward_cases import PRECISION, Case, arguments, draw, judge, name, run, verify
from backward_reference import Array, Gradients, Inputs, delta_of, forward, gradients
from harness import OpenDevice, check, ffi, lib

import pysm120
from pysm120.runtime.module import Builtin, builtins

attention_backward: Any = pysm120.attention_backward


def kernel(device: pysm120.Device, dtype: str, head_dim: int) -> Builtin:
    """Return the kernel that a deterministic call of this head size takes on a device."""
    fitting = [
        x
        for x in builtins()
        if x.operation == "attention_backward"
        and x.ordered
        and not x.features
        and x.precision == PRECISION[dtype]
        and x.head_dim >= head_dim
        and x.shared_bytes <= device.info.shared_bytes_per_block
    ]
    return min(fitting, key=lambda x: (x.head_dim, -x.shared_bytes))


def ready(rng: np.random.Generator, case: Case) -> tuple[Inputs, Array, Array]:
    """Draw a problem, with its O and LSE in float32."""
    x = draw(rng, case)
    _, o, lse = forward(x)
    return x, o.astype(np.float32), lse.astype(np.float32)


def assert_same(one: Gradients, other: Gradients) -> None:
    """Compare all bits."""
    for member in Gradients._fields:
        np.testing.assert_array_equal(getattr(one, member), getattr(other, member), err_msg=member)


CASES = [
    Case(1, 2, 1, 150, 300, 64, "bottom-right", deterministic=True),
    Case(2, 2, 2, 100, 260, 64, deterministic=True, out_dtype="bfloat16"),
    Case(1, 4, 2, 200, 200, 64, "top-left", "float16", deterministic=True),
    Case(1, 3, 3, 130, 190, 128, "bottom-right", "float16", deterministic=True),
    Case(1, 4, 1, 70, 200, 128, deterministic=True),
    Case(1, 1, 1, 70, 130, 256, deterministic=True, dtype="float16"),
    Case(1, 1, 1, 100, 100, 200, "bottom-right", deterministic=True),
    Case(1, 2, 2, 300, 400, 64, window=(40, 17), deterministic=True),
    Case(1, 2, 2, 400, 200, 33, window=(None, 30), v_head_dim=20, deterministic=True),
    Case(1, 2, 2, 150, 300, 96, window=(50, None), deterministic=True),
    Case(1, 2, 1, 90, 500, 32, "top-left", window=(10, None), deterministic=True),  # keys that no row sees
    Case(1, 1, 1, 500, 150, 7, "bottom-right", deterministic=True),  # rows that see no key
    Case(1, 40, 40, 70, 150, 64, deterministic=True),  # more than the heads whose tiles take turns
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES, ids=name)
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Causal forms, windows, groups, odd sizes, dtypes; the kernels of a head size serve smaller ones."""
    verify(opened, rng, case)


@pytest.mark.sampled(3)
@pytest.mark.virtual
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_order_of_ctas(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """All bits are the same for each seed, with all checks, and for each number of CTAs that run at once."""
    x, o, lse = ready(rng, case)
    found = []
    for threads, options in ((1, "checks=full&seed=1"), (2, "checks=full&seed=2"), (1, "seed=0"), (7, "seed=3")):
        monkeypatch.setenv("PYSM120_THREADS", str(threads))
        ordered = OpenDevice(f"virtual:0?{options}")
        try:
            found.append(run(ordered, case, x, o, lse))
        finally:
            ordered.close()
    judge(found[0], gradients(x), x, lse, delta_of(x, o), case.out_dtype)
    for other in found[1:]:
        assert_same(other, found[0])


@pytest.mark.sampled(2)
@pytest.mark.virtual
@pytest.mark.parametrize("dtype", list(PRECISION))
@pytest.mark.parametrize(("head_dim", "q_rows", "kv_rows"), [(64, 260, 390), (128, 130, 400), (256, 65, 200)])
def test_tiles_that_need_the_shared_memory_of_hopper(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str, head_dim: int, q_rows: int, kv_rows: int
) -> None:
    """The kernels that an H200 takes, on a virtual device that states its capability."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    case = Case(1, 2, 1, q_rows, kv_rows, head_dim, "bottom-right", dtype, deterministic=True)
    x, o, lse = ready(rng, case)
    found = []
    for seed in (1, 2):
        hopper = OpenDevice(f"virtual:0?checks=full&seed={seed}")
        try:
            found.append(run(hopper, case, x, o, lse))
        finally:
            hopper.close()
    judge(found[0], gradients(x), x, lse, delta_of(x, o))
    assert_same(*found)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("causal", [None, "bottom-right"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_many_launches(opened: OpenDevice, rng: np.random.Generator, head_dim: int, causal: str | None) -> None:
    """All bits are the same in every one of several runs."""
    case = Case(2, 8, 4, 200, 600, head_dim, causal, deterministic=True)
    x, o, lse = ready(rng, case)
    first = run(opened, case, x, o, lse)
    for _ in range(3 if opened.name.startswith("virtual") else 50):
        assert_same(run(opened, case, x, o, lse), first)


def backward(device: pysm120.Device, x: Inputs, lse: Array, delta: Array, **options: Any) -> Array:
    """Return dq in float32."""
    results = {n: np.full(y.shape, np.nan, np.float32) for n, y in (("dq", x.q), ("dk", x.k), ("dv", x.v))}
    out = np.zeros(x.dout.shape, np.float32)
    made = attention_backward(
        x.dout, x.q, x.k, x.v, out, lse, scale=x.scale, delta=delta, layout="BHSD", device=device, **options, **results
    )
    return np.asarray(made[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", list(PRECISION))
@pytest.mark.parametrize(("head_dim", "heads", "kv_heads"), [(64, 4, 2), (128, 2, 2), (256, 2, 1)])
def test_dq_is_the_sum_in_the_order_of_the_keys(
    device: pysm120.Device,
    rng: np.random.Generator,
    dtype: str,
    head_dim: int,
    heads: int,
    kv_heads: int,
    *,
    causal: bool,
) -> None:
    """Each tile of keys alone gives its part of dq; NumPy adds these parts up in float32, and every bit agrees.

    The scale is a power of two, so that it commutes with the roundings of the sum.
    """
    tile = kernel(device, dtype, head_dim)
    keys, tiles = 5 * tile.kv_rows - 3, range(0, 5 * tile.kv_rows, tile.kv_rows)
    assert tile.kv_rows % tile.q_rows == 0
    case = Case(1, heads, kv_heads, keys, keys, head_dim, "top-left" if causal else None, dtype, scale=0.125)
    x, o, lse = ready(rng, case)
    delta = delta_of(x, o).astype(np.float32)
    options: dict[str, Any] = {"causal": causal, "causal_align": "top-left", "deterministic": True}
    parts = []
    for first in tiles:
        # Causal: rows before the tile see none of its keys.
        rows, here = slice(first if causal else 0, None), slice(first, first + tile.kv_rows)
        part = x._replace(q=x.q[:, :, rows].copy(), dout=x.dout[:, :, rows].copy())
        part = part._replace(k=x.k[:, :, here].copy(), v=x.v[:, :, here].copy())
        own = np.zeros(x.q.shape, np.float32)
        own[:, :, rows] = backward(device, part, lse[:, :, rows].copy(), delta[:, :, rows].copy(), **options)
        parts.append(own)
    forwards, backwards = np.zeros_like(parts[0]), np.zeros_like(parts[0])
    for up, down in zip(parts, reversed(parts), strict=True):
        forwards += up
        backwards += down
    assert not np.array_equal(forwards, backwards)
    np.testing.assert_array_equal(backward(device, x, lse, delta, **options), forwards)


@pytest.mark.virtual
@pytest.mark.parametrize("head_dim", [20, 64, 100, 130])
def test_the_workspace_has_the_turns(opened: OpenDevice, device: pysm120.Device, head_dim: int) -> None:
    """Its size is what the reference page says: rows, sums of dq, and 32 bytes for each tile and one more."""
    case = Case(2, 4, 2, 150, 70, head_dim, deterministic=True)
    args, size = arguments(case), ffi.new("size_t *")
    shapes = ((4, 150), (2, 70), (2, 70), (4, 150), (4, 150), (4, 150), (2, 70), (2, 70))
    tensors = (args.q, args.k, args.v, args.dout, args.o, args.dq, args.dk, args.dv)
    for struct, (heads, rows) in zip(tensors, shapes, strict=True):
        struct.address, struct.dtype = 1 << 20, lib.SM120_BF16
        struct.batch_stride, struct.head_stride, struct.row_stride = heads * rows * 256, rows * 256, 256
    args.lse = 1 << 20
    check(lib.sm120_attention_backward(opened.handle, args, 0, size))
    chosen = kernel(device, "bfloat16", head_dim)
    tiles = 2 * 4 * -(-150 // chosen.q_rows)
    areas = [(8 * chosen.q_rows + 16) * tiles, 4 * chosen.q_rows * chosen.head_dim * tiles, 32 * (1 + tiles)]
    copies = [2 * 2 * heads * rows * -(-head_dim // 8) * 8 for heads, rows in shapes[:4] if head_dim % 8]
    assert size[0] == sum(-(-n // 256) * 256 for n in areas + copies)
