"""Attention whose CTAs share the keys of a tile of queries: against its parts, float64, every order of CTAs."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness import ALL_DTYPES
from numpy.typing import NDArray
from reference import attention_float64, relative_error

import pysm120
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError, WorkspaceTooSmallError
from pysm120.runtime.ffi import check, lib, new, new_struct

Array = NDArray[Any]
# dtype, relative error against float64
PRECISIONS = {
    "bf16": ("bfloat16", 4e-3),
    "f16": ("float16", 6e-4),
    "mxfp8": ("bfloat16", 0.06),
    "mxfp8_bf16": ("bfloat16", 0.03),
    "nvfp4": ("bfloat16", 0.2),
    "nvfp4_mxfp8": ("bfloat16", 0.1),
    "fp8": ("float8_e4m3fn", 0.04),
}
attention: Any = pysm120.attention


def drawn(rng: np.random.Generator, precision: str, sizes: tuple[int, ...]) -> list[Array]:
    """q, k and v of batch, rows, keys, heads, kv heads, head size.

    q has a standard deviation of 1/2. With 1, few keys have most of the weight in some rows, whose error is that of
    these keys' scores: of 4,090 draws in nvfp4_mxfp8 one was 10 standard deviations from the mean.
    """
    batch, rows, keys, heads, kv_heads, head_dim = sizes
    dtype = ALL_DTYPES[PRECISIONS[precision][0]]
    shapes = [(batch, rows, heads, head_dim)] + 2 * [(batch, keys, kv_heads, head_dim)]
    return [(size * rng.standard_normal(shape)).astype(dtype) for size, shape in zip((0.5, 1, 1), shapes, strict=True)]


def exact(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """O and LSE in float64."""
    wide_q, wide_k, wide_v = (x.astype(np.float64) for x in (q, k, v))
    return attention_float64(wide_q, wide_k, wide_v, q.shape[-1] ** -0.5, None)


def added_up(device: pysm120.Device, parts: list[tuple[Array, Array, Array]], **options: Any) -> tuple[Array, Array]:
    """O and LSE of all keys from one call for each part of them, in float64."""
    found = [attention(*part, num_splits=1, return_lse=True, device=device, **options) for part in parts]
    outs, lses = (np.stack([np.asarray(x[n], np.float64) for x in found]) for n in (0, 1))
    lse = np.logaddexp.reduce(lses, 0)
    weights = np.exp(lses - lse).swapaxes(2, 3)[..., None]  # [part][batch][row][head][1]
    return (weights * outs).sum(0), lse


def ends_of(keys: int, splits: int, tile: int) -> list[int]:
    """Where the splits of so many keys begin, and the end of the last one; they begin at whole tiles."""
    tiles = -(-keys // tile)
    return [min(keys, tile * (tiles * split // splits)) for split in range(splits + 1)]


SIZES = [
    (1, 77, 300, 2, 1, 64),
    (2, 200, 257, 2, 2, 128),
    (16, 1, 640, 4, 2, 40),
    (1, 130, 193, 1, 1, 96),
    (1, 33, 191, 2, 2, 256),
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("splits", [2, 3, 4])
@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_splits_are_attention_of_parts_of_the_keys(
    device: pysm120.Device, rng: np.random.Generator, precision: str, splits: int, sizes: tuple[int, ...]
) -> None:
    """Each split is attention of its tiles of keys, bit for bit but for the sum in float32."""
    if sizes[-1] > 128 and (precision == "fp8" or precision.startswith("nvfp4")):
        sizes = (*sizes[:-1], 128)
    q, k, v = drawn(rng, precision, sizes)
    options: dict[str, Any] = {"precision": precision, "out_dtype": np.float32}
    if precision.startswith("nvfp4"):
        options["smoothing"] = False  # the mean of k would be that of a part
    if precision in {"bf16", "f16", "fp8"}:
        options["config"] = "r16"  # the choice depends on the number of keys
    got, lse = attention(q, k, v, num_splits=splits, return_lse=True, device=device, **options)
    is_narrow = "config" in options and sizes[-1] > 128  # tiles of 32 keys
    ends = ends_of(sizes[2], splits, 32 if is_narrow else 64)
    parts = [(q, k[:, a:b], v[:, a:b]) for a, b in itertools.pairwise(ends) if a < b]
    wanted, sums = added_up(device, parts, **options)
    assert relative_error(got.astype(np.float64), wanted) < 2e-6
    np.testing.assert_allclose(lse, sums, rtol=1e-6, atol=2e-6)
    assert relative_error(got.astype(np.float64), exact(q, k, v)[0]) < PRECISIONS[precision][1]


@pytest.mark.parametrize(
    ("precision", "config"), [("f16", "r16"), ("f16", "r32"), ("f16", "k4"), ("f16", "w4"), ("fp8", "k4")]
)
@pytest.mark.parametrize("keys", [1, 63, 64, 65, 127, 128, 129, 447, 448, 449])
def test_every_config_at_the_edges_of_tiles(
    device: pysm120.Device, rng: np.random.Generator, keys: int, precision: str, config: str
) -> None:
    """More splits than tiles leave some without a key."""
    q, k, v = drawn(rng, precision, (1, 70, keys, 2, 1, 64))
    got, lse = attention(q, k, v, num_splits=3, config=config, return_lse=True, device=device)
    wanted, sums = exact(q, k, v)
    # In fp8 the kernel adds up P in e4m3, whose steps are 6 %.
    most, of_lse = {"f16": (1e-3, 1e-5), "fp8": (0.05, 0.02)}[precision]
    assert relative_error(got.astype(np.float64), wanted) < most
    np.testing.assert_allclose(lse, sums, rtol=of_lse, atol=of_lse)


@pytest.mark.parametrize("out_dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("splits", [5, 32])
def test_rows_strides_and_results(
    device: pysm120.Device, rng: np.random.Generator, splits: int, out_dtype: Any
) -> None:
    """Guards around results with strides stay; without an LSE none is written; heads in front of rows."""
    q, k, v = drawn(rng, "bf16", (2, 50, 400, 4, 2, 64))
    room = np.full((2, 54, 6, 72), 77, out_dtype)
    there = device.array(room)
    out = there[:, 2:52, 1:5, :64]
    attention(*(device.array(x) for x in (q, k, v)), out=out, num_splits=splits)
    found = there.numpy()
    wanted = exact(q, k, v)[0]
    assert relative_error(found[:, 2:52, 1:5, :64].astype(np.float64), wanted) < 6e-3
    found[:, 2:52, 1:5, :64] = 77
    np.testing.assert_array_equal(found.astype(np.float32), room.astype(np.float32))
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    got = attention(*turned, layout="BHSD", num_splits=splits, out_dtype=out_dtype, device=device)
    assert relative_error(got.swapaxes(1, 2).astype(np.float64), wanted) < 6e-3


def test_o_may_replace_q(device: pysm120.Device, rng: np.random.Generator) -> None:
    q, k, v = (device.array(x) for x in drawn(rng, "f16", (1, 150, 300, 2, 2, 64)))
    wanted = attention(q, k, v, num_splits=3).numpy()
    attention(q, k, v, num_splits=3, out=q)
    np.testing.assert_array_equal(q.numpy(), wanted)


def test_scores_that_begin_a_second_run(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Late keys far above the first ones: the kernel of 16 bits begins again, within its split."""
    q, k, v = drawn(rng, "f16", (1, 64, 512, 1, 1, 64))
    k[:, 320:] *= np.float16(12)
    q *= np.float16(4)
    got, lse = attention(q, k, v, num_splits=2, return_lse=True, device=device)
    wanted, sums = exact(q, k, v)
    assert relative_error(got.astype(np.float64), wanted) < 2e-3
    np.testing.assert_allclose(lse, sums, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_reaches_its_row_and_column_alone(
    device: pysm120.Device, rng: np.random.Generator, poison: float
) -> None:
    q, k, v = drawn(rng, "bf16", (1, 40, 200, 1, 1, 64))
    q[0, 7, 0, 3] = np.nan
    v[0, 150, 0, 20] = poison
    got = attention(q, k, v, num_splits=3, device=device).astype(np.float32)[0, :, 0]
    expected = np.zeros((40, 64), bool)
    expected[7], expected[:, 20] = True, True
    np.testing.assert_array_equal(~np.isfinite(got), expected)


def test_bits_do_not_depend_on_the_batch(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A fixed number of splits and a config leave nothing to the shape of the batch."""
    q, k, v = drawn(rng, "bf16", (3, 100, 333, 2, 2, 64))
    options: dict[str, Any] = {"num_splits": 3, "config": "r16", "device": device}
    together = attention(q, k, v, **options)
    for n in range(3):
        alone = attention(q[n : n + 1], k[n : n + 1], v[n : n + 1], **options)
        np.testing.assert_array_equal(together[n].view(np.uint16), alone[0].view(np.uint16))


# ---- the library's choice: the tiles behind the last full wave ---------------------------


def chosen(device: pysm120.Device, sizes: tuple[int, ...], precision: int = lib.SM120_BF16) -> tuple[int, int]:
    """The first tile that is split, and the splits."""
    args = new_struct("sm120_attention_args")
    args.precision, args.scale = precision, 1.0
    args.batch, args.q_rows, args.kv_rows, args.heads, args.kv_heads, args.head_dim = sizes
    first, splits = new("int64_t *"), new("int64_t *")
    check(lib.sm120_attention_splits(device.handle.pointer, args, first, splits))
    return first[0], splits[0]


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((1, 4096, 4096, 32, 32, 128), (1020, 32)),  # 4 of 1,024 tiles are behind six waves
        ((1, 768, 4096, 85, 85, 128), (510, 1)),  # three full waves
        ((1, 1, 32768, 32, 8, 128), (0, 5)),  # 160 CTAs
        ((1, 128, 64, 200, 200, 128), (200, 1)),  # one tile of keys
    ],
)
def test_the_last_wave_is_split(sizes: tuple[int, ...], wanted: tuple[int, int]) -> None:
    with pysm120.Device("virtual") as device:
        assert chosen(device, sizes) == wanted


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((4, 2048, 2048, 32, 32, 128), (1360, 4)),  # 1,280 tiles of 192 rows, then 128 of 128
        ((1, 4096, 4096, 32, 32, 128), (680, 8)),  # 672 tiles, then 32 of 64 rows
        ((1, 1920, 4096, 17, 17, 128), (170, 1)),  # a full wave
        ((1, 2000, 4096, 17, 17, 128), (170, 8)),  # a full wave, then 17 tiles of 80 rows
    ],
)
def test_tiles_with_fewer_rows_count_less(sizes: tuple[int, ...], wanted: tuple[int, int]) -> None:
    with pysm120.Device("virtual") as device:
        assert chosen(device, sizes, lib.SM120_MXFP8) == wanted


@pytest.mark.virtual
@pytest.mark.parametrize("precision", ["f16", "mxfp8", "nvfp4_mxfp8"])
def test_the_last_wave_is_right_in_every_order(rng: np.random.Generator, precision: str) -> None:
    """With full checks; two seeds give the same bits; tiles in front of the last wave have those of a call without."""
    q, k, v = drawn(
        rng, precision if precision == "f16" else "bf16", (1, 1280, 512 if precision == "f16" else 1024, 1, 1, 64)
    )
    options: dict[str, Any] = {"precision": precision, "return_lse": True, "out_dtype": np.float32}
    options |= {"config": "r16"} if precision == "f16" else {}
    found = []
    for seed, splits in ((1, None), (2, None), (1, 1)):
        with pysm120.Device(f"virtual?checks=full&seed={seed}&multiprocessors=4") as device:
            found.append(attention(q, k, v, num_splits=splits, device=device, **options))
    for n in range(2):
        np.testing.assert_array_equal(found[0][n], found[1][n])
    # 10 tiles of 128 rows, the last rows first: two waves of 4, then 2 tiles that are split
    np.testing.assert_array_equal(found[0][0][:, 256:], found[2][0][:, 256:])
    assert not np.array_equal(found[0][0][:, :256], found[2][0][:, :256])
    wanted, sums = exact(q, k, v)
    bound = {"f16": 1e-3, "mxfp8": 0.08, "nvfp4_mxfp8": 0.2}[precision]
    assert relative_error(found[0][0].astype(np.float64), wanted) < bound
    np.testing.assert_allclose(found[0][1], sums, atol=0.2 if precision != "f16" else 1e-4)


@pytest.mark.virtual
@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4_mxfp8"])
@pytest.mark.parametrize(("heads", "rows"), [(3, 448), (3, 320), (2, 500)])
def test_tiles_with_fewer_rows_come_last(rng: np.random.Generator, precision: str, heads: int, rows: int) -> None:
    """The last wave has the last tiles of the heads; the others have the bits of a call without splits."""
    q, k, v = drawn(rng, "bf16", (1, rows, 1024, heads, heads, 128))
    tiles = -(-rows // 192)
    order = [(head, tile) for head in range(heads) for tile in reversed(range(tiles - 1))]
    order += [(head, tiles - 1) for head in range(heads)]
    with pysm120.Device("virtual?multiprocessors=4") as device:
        sizes, kind = (1, rows, 1024, heads, heads, 128), f"SM120_{precision.upper()}"
        first, splits = chosen(device, sizes, getattr(lib, kind))
        assert splits > 1
        options: dict[str, Any] = {"precision": precision, "out_dtype": np.float32, "device": device}
        found, alone = (attention(q, k, v, num_splits=n, **options) for n in (None, 1))
    for number, (head, tile) in enumerate(order):
        at = (0, slice(192 * tile, 192 * (tile + 1)), head)
        assert np.array_equal(found[at], alone[at]) == (number < first), (head, tile)


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"num_splits": 0}, InvalidArgumentError, "num_splits is 0, not a number of parts: at least 1, or None"),
        ({"num_splits": 33}, InvalidArgumentError, r"num_splits = 33; it must be from 1 to 32, or 0 \(chosen\)"),
        ({"num_splits": 1.5}, TypeError, "num_splits is 1.5, not an integer"),
        ({"num_splits": 2, "causal": True}, UnsupportedError, "num_splits = 2 with a causal mask or a window"),
        ({"num_splits": 2, "window": (3, None)}, UnsupportedError, "num_splits = 2 with a causal mask or a window"),
        ({"num_splits": 2, "softcap": 3.0}, UnsupportedError, "num_splits = 2 with features that change scores"),
    ],
)
def test_what_cannot_be_split_is_refused(
    device: pysm120.Device, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    x = np.ones((1, 4, 1, 64), np.float16)
    with pytest.raises(kind, match=message):
        attention(x, x, x, device=device, **options)


@pytest.mark.parametrize("given", [{"out_dtype": ml_dtypes.float8_e4m3fn}, {"amax": np.zeros(1, np.float32)}])
def test_fp8_results_that_cannot_be_split(device: pysm120.Device, given: dict[str, Any]) -> None:
    x = np.ones((1, 4, 1, 64), ml_dtypes.float8_e4m3fn)
    with pytest.raises(UnsupportedError, match=r"num_splits = 2 with (out in E4M3|amax); this call supports 0"):
        attention(x, x, x, num_splits=2, device=device, **given)


def test_the_workspace_is_asked_for(device: pysm120.Device) -> None:
    """A call that splits needs memory for the results, and is refused without."""
    x = np.zeros((1, 300, 1, 64), np.float16)
    with pytest.raises(WorkspaceTooSmallError, match=r"workspace.nbytes = 256; this call needs 166400"):
        attention(*(device.array(x) for _ in range(3)), num_splits=2, workspace=device.empty(256, np.uint8))
