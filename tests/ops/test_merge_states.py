"""merge_states: its row for the tests of all operations, and its results against float64."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cache_reference import attention_cached, check_close
from harness import DTYPES, Buffer, OpenDevice, ffi, lib, new_struct
from kernels import Recorded
from operations import Operation, Wrong

import pysm120

STATES, BATCH, HEADS, ROWS, D = 3, 2, 2, 5, 20
PART = 1 << 15
Array = np.ndarray[Any, Any]


def fill(args: Any, memory: int) -> None:
    """Fill arguments for f32: four arrays one behind the other."""
    args.states, args.batch, args.heads, args.rows, args.head_dim = STATES, BATCH, HEADS, ROWS, D
    for n, struct in enumerate((args.outs, args.o)):
        struct.address, struct.dtype = memory + n * PART, lib.SM120_F32
        struct.batch_stride, struct.head_stride, struct.row_stride = HEADS * ROWS * D, ROWS * D, D
    args.lses, args.lse = memory + 2 * PART, memory + 3 * PART


def launch(device: pysm120.Device) -> None:
    """Every dtype, with a warp for each row and with a CTA."""
    for dtype, states in itertools.product((np.float32, *DTYPES.values()), (2, 3)):
        outs = np.ones((states, 1, 3, 1, 8), dtype)
        pysm120.merge_states(outs, np.zeros((states, 1, 1, 3), np.float32), device=device)


def recorded() -> Iterator[Recorded]:
    """A problem of each dtype."""
    for name, dtype in {"f32": np.dtype(np.float32), "f16": DTYPES["float16"], "bf16": DTYPES["bfloat16"]}.items():

        def compute(device: pysm120.Device, rng: np.random.Generator, dtype: Any = dtype) -> Array:
            """The output and LSE."""
            outs = rng.standard_normal((11, 2, 5, 3, 72)).astype(dtype)
            lses = (4 * rng.standard_normal((11, 2, 3, 5))).astype(np.float32)
            lses[rng.random(lses.shape) < 0.2] = -np.inf
            out, lse = pysm120.merge_states(outs, lses, out_dtype=np.float32, device=device)
            return np.concatenate([out.ravel(), lse.ravel()])

        yield Recorded(f"merge_states {name}", f"merge_states_{name}", compute, is_exact=False)


def ones(*shape: int, dtype: Any = np.float32) -> Array:
    return np.ones(shape, dtype)


RIGHT = (ones(2, 1, 3, 4, 8), ones(2, 1, 4, 3))
PY_WRONG: dict[str, tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = {
    "rank of outs": (ValueError, r"outs has shape \(1, 3, 4, 8\)", (ones(1, 3, 4, 8), RIGHT[1]), {}),
    "states of lses": (ValueError, r"lses has shape \(3, 1, 4, 3\)", (RIGHT[0], ones(3, 1, 4, 3)), {}),
    "rows of lses": (ValueError, r"lses has shape \(2, 1, 3, 4\)", (RIGHT[0], ones(2, 1, 3, 4)), {}),
    "dtype of outs": (TypeError, "outs has dtype float64", (ones(2, 1, 3, 4, 8, dtype="f8"), RIGHT[1]), {}),
    "dtype of lses": (TypeError, "lses has dtype complex64", (RIGHT[0], ones(2, 1, 4, 3, dtype="c8")), {}),
    "sinks": (ValueError, r"sinks has shape \(3,\)", RIGHT, {"sinks": ones(3)}),
    "out": (ValueError, r"out has shape \(1, 4, 3, 8\)", RIGHT, {"out": ones(1, 4, 3, 8)}),
}

OPERATION = Operation(
    name="merge_states",
    fill=fill,
    wrong=[
        Wrong("reserved", 1, "INVALID_ARGUMENT", "reserved = 1"),
        Wrong("states", 0, "INVALID_ARGUMENT", "states = 0"),
        Wrong("states", 1 << 40, "UNSUPPORTED", "states"),
        Wrong("batch", 65536, "UNSUPPORTED", "batch = 65536"),
        Wrong("heads", 0, "INVALID_ARGUMENT", "heads = 0"),
        Wrong("rows", 0, "INVALID_ARGUMENT", "rows = 0"),
        Wrong("head_dim", 0, "INVALID_ARGUMENT", "head_dim = 0"),
        Wrong("outs.dtype", lib.SM120_E4M3, "UNSUPPORTED", "outs.dtype"),
        Wrong("outs.address", 0, "INVALID_ARGUMENT", "outs.address = 0"),
        Wrong("outs.row_stride", 0, "INVALID_ARGUMENT", "outs.row_stride = 0"),
        Wrong("o.dtype", 0, "INVALID_ARGUMENT", "o.dtype"),
        Wrong("o.address", 2, "MISALIGNED", "o.address"),
        Wrong("o.row_stride", 4, "INVALID_ARGUMENT", "overlap"),
        Wrong("lses", 0, "INVALID_ARGUMENT", "lses = 0"),
        Wrong("lses", 2, "MISALIGNED", "lses"),
        Wrong("lse", 2, "MISALIGNED", "lse"),
        Wrong("sinks", 2, "MISALIGNED", "sinks"),
    ],
    refused={what: (kind, message, (given, options)) for what, (kind, message, given, options) in PY_WRONG.items()},
    launch=launch,
    recorded=tuple(recorded()),
)


# ---- values ----------------------------------------------------------------------


def merged(outs: Array, lses: Array, sinks: Array | None = None) -> tuple[Array, Array, Array]:
    """O and LSE of all states in float64, and sum(exp(lse_n - lse) |o_n|); states without keys are left out."""
    logs = lses.astype(np.float64)
    highest = logs.max(0) if sinks is None else np.maximum(logs.max(0), sinks[:, None])
    highest = np.where(np.isneginf(highest), 0, highest)
    weights = np.exp(logs - highest)
    total = weights.sum(0) + (0 if sinks is None else np.exp(sinks[:, None].astype(np.float64) - highest))
    has = total > 0
    lse = np.where(has, np.log(np.where(has, total, 1)) + highest, -np.inf)
    weights = (weights / np.where(has, total, 1)).swapaxes(2, 3)[..., None]
    values = np.where(weights > 0, outs.astype(np.float64), 0)
    return (weights * values).sum(0), lse, (weights * np.abs(values)).sum(0)


def check_merged(device: pysm120.Device, outs: Array, lses: Array, sinks: Array | None, out_dtype: str) -> None:
    """Merge ndarrays, into poisoned results, and compare; the inputs stay as they are."""
    batch, rows, heads, columns = outs.shape[1:]
    out = np.full((batch, rows, heads, columns), np.nan, DTYPES[out_dtype])
    lse = np.full((batch, heads, rows), np.nan, np.float32)
    before = outs.copy(), lses.copy()
    pysm120.merge_states(outs, lses, sinks=sinks, out=out, lse=lse, device=device)
    assert outs.tobytes() == before[0].tobytes()
    assert lses.tobytes() == before[1].tobytes()
    wanted, logs, spread = merged(outs, lses, sinks)
    step = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[out_dtype]
    # A weight is exp of a difference of float32 numbers: each part of it is exact to 2^-24.
    largest = np.abs(np.where(np.isneginf(lses), 0, lses)).max(initial=0)
    error = 4e-7 * (2 + largest)
    off = np.abs(out.astype(np.float64) - wanted)
    assert np.all(off <= error * spread + 1.01 * step * np.abs(wanted) + (6e-8 if step else 1e-30))
    has = np.isfinite(logs)
    assert np.array_equal(np.isneginf(lse), ~has)
    assert np.all(np.abs(lse[has] - logs[has]) <= error)
    assert np.all(out.swapaxes(1, 2)[~has] == 0)


@pytest.mark.parametrize("states", [1, 2, 7, 8, 9, 31, 32, 33, 64, 70])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.sampled(5, each=("dtype",))
def test_values(device: pysm120.Device, rng: np.random.Generator, states: int, dtype: str, has_sinks: bool) -> None:
    """Any number of states; some without keys, whose outs are NaN; rows without any key."""
    batch, rows, heads, columns = (int(rng.integers(1, n)) for n in (4, 8, 4, 300))
    outs = rng.standard_normal((states, batch, rows, heads, columns)).astype(DTYPES[dtype])
    lses = (6 * rng.standard_normal((states, batch, heads, rows))).astype(np.float32)
    lses[rng.random(lses.shape) < 0.3] = -np.inf
    lses[:, 0, 0, 0] = -np.inf
    outs.swapaxes(2, 3)[np.isneginf(lses)] = np.nan
    sinks = rng.standard_normal(heads).astype(np.float32) if has_sinks else None
    check_merged(device, outs, lses, sinks, str(rng.choice(list(DTYPES))))


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 127, 128, 129, 256, 257, 512])
@pytest.mark.parametrize("rows", [1, 3, 4, 5])
@pytest.mark.sampled(8)
def test_sizes(device: pysm120.Device, rng: np.random.Generator, columns: int, rows: int) -> None:
    outs = rng.standard_normal((3, 2, rows, 2, columns)).astype(np.float32)
    lses = rng.standard_normal((3, 2, 2, rows)).astype(np.float32)
    check_merged(device, outs, lses, None, "float32")


@pytest.mark.virtual
@pytest.mark.parametrize("states", [3, 8, 9, 40])
def test_bits_do_not_depend_on_the_number_of_rows(
    device: pysm120.Device, rng: np.random.Generator, states: int
) -> None:
    """Few rows have a CTA each, many a warp each; both add up in the same order."""
    rows = 8 * device.info.multiprocessors + 1
    outs = rng.standard_normal((states, 1, rows, 1, 20)).astype(np.float32)
    lses = rng.standard_normal((states, 1, 1, rows)).astype(np.float32)
    with device.profile() as many:
        out, lse = pysm120.merge_states(*(device.array(x) for x in (outs, lses)))
    with device.profile() as few:
        first, first_lse = pysm120.merge_states(device.array(outs[:, :, :5]), device.array(lses[..., :5].copy()))
    assert [{x.kernel for x in profile.statements} for profile in (many, few)] == [
        {"merge_states_f32_w1"},
        {"merge_states_f32_w8"},
    ]
    assert out.numpy()[:, :5].tobytes() == first.numpy().tobytes()
    assert lse.numpy()[..., :5].tobytes() == first_lse.numpy().tobytes()


@pytest.mark.parametrize("size", [0.0, 80.0, 1e4, -1e4])
def test_large_lses(device: pysm120.Device, rng: np.random.Generator, size: float) -> None:
    """Sums far outside the range of exp."""
    outs = rng.standard_normal((5, 1, 4, 2, 64)).astype(np.float32)
    lses = (size + rng.standard_normal((5, 1, 2, 4))).astype(np.float32)
    check_merged(device, outs, lses, None, "float32")


def test_nothing_at_all(device: pysm120.Device) -> None:
    """No state has a key: 0 and -inf; with sinks, the LSE is the sink."""
    outs, lses = np.full((3, 1, 2, 2, 8), np.nan, np.float32), np.full((3, 1, 2, 2), -np.inf, np.float32)
    out, lse = pysm120.merge_states(outs, lses, device=device)
    assert np.all(out == 0)
    assert np.all(np.isneginf(lse))
    sinks = np.array([0.5, -2], np.float32)
    out, lse = pysm120.merge_states(outs, lses, sinks=sinks, device=device)
    assert np.all(out == 0)
    np.testing.assert_allclose(lse[0], np.repeat(sinks[:, None], 2, 1), atol=1e-6)


def test_a_shared_prefix_and_the_rest(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A cascade: attention to a prefix that all sequences share, merged with the rest, is attention to all keys."""
    q = rng.standard_normal((3, 2, 4, 64)).astype(DTYPES["bfloat16"])
    prefix_k, prefix_v = rng.standard_normal((2, 1, 50, 2, 64)).astype(DTYPES["bfloat16"])
    k, v = rng.standard_normal((2, 3, 40, 2, 64)).astype(DTYPES["bfloat16"])
    lengths = np.array([40, 2, 17], np.int32)
    options: dict[str, Any] = {"out_dtype": np.float32, "return_lse": True, "device": device}
    # The prefix sees one sequence whose tokens are those of all.
    first, first_lse = pysm120.attention_with_kv_cache(q.reshape(1, 6, 4, 64), prefix_k, prefix_v, **options)
    rest, rest_lse = pysm120.attention_with_kv_cache(q, k, v, lengths, causal=True, **options)
    first_lse = first_lse.reshape(4, 3, 2).swapaxes(0, 1)
    outs, lses = np.stack([first.reshape(rest.shape), rest]), np.stack([first_lse, rest_lse])
    sinks = rng.standard_normal(4).astype(np.float32)
    out, lse = pysm120.merge_states(outs, lses, sinks=sinks, device=device)
    both_k, both_v = (np.concatenate([np.repeat(a, 3, 0), b], 1) for a, b in ((prefix_k, k), (prefix_v, v)))
    wanted = attention_cached(q, both_k, both_v, lengths + 50, causal=True, sinks=sinks)
    check_close(wanted, out, lse)


@pytest.mark.parametrize(("written", "read"), list(itertools.product(("o", "lse"), ("outs", "lses", "sinks", "o"))))
def test_results_apart_from_inputs(opened: OpenDevice, written: str, read: str) -> None:
    if written == read:
        return
    try:
        memory = Buffer(opened, (1 << 18,), np.uint8).address
        args = new_struct("sm120_merge_states_args")
        fill(args, memory)
        args.sinks = memory + 4 * PART
        of = getattr(args, read)
        address = of if isinstance(of, int) else of.address
        if written == "o":
            args.o.address = address
        else:
            args.lse = address
        assert lib.sm120_merge_states(opened.handle, args) == lib.SM120_INVALID_ARGUMENT
        message = ffi.string(lib.sm120_last_error()).decode()
        assert "overlap" in message
        assert written in message
        assert read in message
    finally:
        opened.release()
