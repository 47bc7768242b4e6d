"""flash_attn_with_kvcache against float64, and its arguments against FlashAttention's signature."""

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cache_reference import attention_cached, check_close
from reference import Array

import pysm120
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

BF16 = np.dtype(ml_dtypes.bfloat16)
PAGE, PAGES, BATCH, KV_HEADS, HEADS, D = 5, 16, 3, 2, 4, 40
PLACES = ["dense", "batch index", "pages"]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(BF16)


class Problem:
    """A cache, where its sequences lie, and queries."""

    def __init__(self, rng: np.random.Generator, place: str, *, tokens: int = 2, rows: int = 22) -> None:
        self.place = place
        shape = {"dense": (BATCH, rows), "batch index": (BATCH + 3, rows), "pages": (PAGES, PAGE)}[place]
        self.caches = [normal(rng, *shape, KV_HEADS, D) for _ in "kv"]
        self.q = normal(rng, BATCH, tokens, HEADS, D)
        numbers = rng.permutation(PAGES)[: BATCH * 5].reshape(BATCH, 5)
        rows_of = {"dense": np.arange(BATCH), "batch index": rng.permutation(BATCH + 3)[:BATCH], "pages": numbers}
        self.table = rows_of[place].reshape(BATCH, -1).astype(np.int32)
        self.page_rows, self.capacity = shape[1], shape[1] * self.table.shape[1]

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that say where sequences lie."""
        return {
            "dense": {},
            "batch index": {"cache_batch_idx": self.table[:, 0]},
            "pages": {"block_table": self.table},
        }[self.place]

    def appended(self, lengths: Array, new: list[Array]) -> list[Array]:
        """Return the caches after an append."""
        caches = [x.copy() for x in self.caches]
        for cache, x in zip(caches, new, strict=True):
            for b, n in np.ndindex(*x.shape[:2]):
                page, row = divmod(int(lengths[b]) + n, self.page_rows)
                cache[self.table[b, page], row] = x[b, n]
        return caches

    def wanted(self, caches: list[Array], lengths: Array | None, **options: Any) -> Any:
        return attention_cached(
            self.q, caches[0], caches[1], lengths, page_table=self.table, out_dtype=self.q.dtype, **options
        )


def call(device: pysm120.Device, where: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Call with ndarrays or with Arrays; return the results, and the caches after the call."""

    def put(x: Any) -> Any:
        return device.array(x) if where == "device" and isinstance(x, np.ndarray) else x

    placed = [put(x) for x in arguments]
    found = pysm120.flash_attn_with_kvcache(*placed, **{name: put(x) for name, x in options.items()}, device=device)
    return found, [x if isinstance(x, np.ndarray) else x.numpy() for x in placed[1:3]]


def here(x: Any) -> Array:
    return x if isinstance(x, np.ndarray) else x.numpy()


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("added", [0, 1, 3])
def test_against_float64(device: pysm120.Device, rng: np.random.Generator, where: str, place: str, added: int) -> None:
    """Every byte of the caches, the new lengths, the result and its LSE, at lengths around the edges of pages."""
    problem = Problem(rng, place)
    edges = [0, PAGE - 1, PAGE, PAGE + 1, problem.capacity - added]
    lengths = rng.choice(edges, BATCH).astype(np.int32)
    new = [normal(rng, BATCH, added, KV_HEADS, D) for _ in "kv"] if added else []
    caches = problem.appended(lengths, new) if added else problem.caches
    total = np.full(BATCH, -7, np.int32)
    sums = (total if where == "host" else device.array(total)) if added else None
    options: dict[str, Any] = {"cache_seqlens": lengths, "causal": True, "return_softmax_lse": True, **problem.given}
    options |= {"new_seqlens": sums} if added else {}
    copies = [x.copy() for x in problem.caches]
    (out, lse), after = call(device, where, problem.q, *copies, *new, **options)
    assert isinstance(out, np.ndarray if where == "host" else pysm120.Array)
    for got, want in zip(after, caches, strict=True):
        np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))
    if sums is not None:
        np.testing.assert_array_equal(here(sums), lengths + added)
    check_close(problem.wanted(caches, lengths + added, causal=True), here(out), here(lse))


# What is said by position behind cache_seqlens in the order of FlashAttention, and what it means.
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((0.3,), {"scale": 0.3}),
    ((None, True, (6, -1)), {"causal": True, "window": (6, None)}),
    ((None, False, (4, 1), 2.5), {"window": (4, 1), "softcap": 2.5}),
    ((None, True, (-1, -1), 0.0, False, np.array([0.1, 0.2, 0.3, 0.5], "f4")), {"causal": True, "alibi_slopes": 1}),
    ((None, False, (-1, -1), 0.0, True, None, 3), {}),
]


@pytest.mark.parametrize(("positional", "meaning"), CALLS, ids=[str(i) for i in range(len(CALLS))])
def test_options(
    device: pysm120.Device, rng: np.random.Generator, positional: tuple[Any, ...], meaning: dict[str, Any]
) -> None:
    problem = Problem(rng, "pages")
    lengths = rng.integers(0, problem.capacity, BATCH).astype(np.int32)
    new = [normal(rng, BATCH, 1, KV_HEADS, D) for _ in "kv"]
    caches = problem.appended(lengths, new)
    arguments = (problem.q, *problem.caches, *new, None, None, lengths, None, None, problem.table, *positional)
    out, _ = call(device, "device", *arguments)
    if "alibi_slopes" in meaning:
        meaning = {**meaning, "alibi_slopes": positional[-1]}
    check_close(problem.wanted(caches, lengths + 1, **meaning), here(out))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("where", ["host", "device"])
def test_one_length_for_all(device: pysm120.Device, rng: np.random.Generator, place: str, where: str) -> None:
    problem = Problem(rng, place)
    new = [normal(rng, BATCH, 2, KV_HEADS, D) for _ in "kv"]
    caches = problem.appended(np.full(BATCH, 9), new)
    copies = [x.copy() for x in problem.caches]
    out, after = call(device, where, problem.q, *copies, *new, cache_seqlens=9, **problem.given)
    np.testing.assert_array_equal(after[0].view(np.uint16), caches[0].view(np.uint16))
    check_close(problem.wanted(caches, np.full(BATCH, 11)), here(out))
    out, _ = call(device, where, problem.q, *problem.caches, cache_seqlens=np.int64(0), **problem.given)
    assert not here(out).any()
    out, _ = call(device, where, problem.q, *problem.caches, **problem.given)
    check_close(problem.wanted(problem.caches, None), here(out))


def test_no_room_on_a_device(unchecked: pysm120.Device, rng: np.random.Generator) -> None:
    """Without checks, new tokens behind the last page go nowhere, and attention sees the rest."""
    problem = Problem(rng, "pages")
    lengths = np.full(BATCH, problem.capacity - 1, np.int32)
    new = [normal(rng, BATCH, 1, KV_HEADS, D) for _ in "kv"]
    caches = problem.appended(lengths, new)
    longer = [np.concatenate([x, normal(rng, BATCH, 1, KV_HEADS, D)], axis=1) for x in new]
    out, after = call(
        unchecked, "device", problem.q, *problem.caches, *longer, cache_seqlens=lengths, block_table=problem.table
    )
    np.testing.assert_array_equal(after[1].view(np.uint16), caches[1].view(np.uint16))
    check_close(problem.wanted(caches, lengths + 1), here(out))


def test_signature_is_that_of_flash_attention() -> None:
    parameters = inspect.signature(pysm120.flash_attn_with_kvcache).parameters.values()
    wanted = (
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table "
        "softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse"
    )
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == wanted.split()
    defaults = [p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][3:]
    assert defaults == [None] * 9 + [False, (-1, -1), 0.0, True, None, 0, False]


X, CACHE = np.ones((1, 1, 2, 8), np.float16), np.ones((2, 4, 2, 8), np.float16)
ONE = np.ones(1, np.int32)
TABLE = np.zeros((1, 2), np.int32)
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rotary_cos": X}, UnsupportedError, "rotary_cos is given, but it is not supported: rotate q and k before"),
    ({"rotary_sin": X}, UnsupportedError, "rotary_sin is given, but it is not supported: rotate"),
    ({"cache_leftpad": ONE}, UnsupportedError, "cache_leftpad is given, but it is not supported: let each sequence"),
    ({"rotary_interleaved": 1}, TypeError, "rotary_interleaved is 1, not True or False"),
    ({"k": X}, InvalidArgumentError, "k is given without v: give both or neither"),
    ({"v": X}, InvalidArgumentError, "v is given without k: give both or neither"),
    ({"k": X, "v": X, "cache_seqlens": None}, InvalidArgumentError, "k and v are given without cache_seqlens"),
    ({"new_seqlens": ONE}, InvalidArgumentError, "new_seqlens is given without k and v"),
    ({"cache_seqlens": 1.5}, TypeError, "cache_seqlens is 1.5, not an integer"),
    ({"cache_seqlens": [3]}, TypeError, "cache_seqlens is [3], not an integer"),
    ({"cache_seqlens": 9}, InvalidArgumentError, "cache_seqlens[0] is 9, but it must be from 0 to 8"),
    ({"cache_seqlens": -1}, InvalidArgumentError, "cache_seqlens[0] is -1, but it must be from 0 to 8"),
    ({"cache_seqlens": 1 << 40}, InvalidArgumentError, "cache_seqlens holds 1099511627776 to 1099511627776, beyond"),
    (
        {"cache_seqlens": 8, "k": X, "v": X},
        InvalidArgumentError,
        "cache_seqlens[0] is 8, but it must be from 0 to 7, the rows of its pages without those of the new tokens",
    ),
    ({"cache_seqlens": np.ones(2, np.int32)}, InvalidArgumentError, "cache_seqlens has shape (2,)"),
    ({"block_table": TABLE + 2}, InvalidArgumentError, "block_table[0, 0] is 2, but it must be from 0 to 1"),
    ({"block_table": (ONE, ONE, ONE)}, TypeError, "block_table is a tuple, not an array"),
    ({"cache_batch_idx": ONE}, InvalidArgumentError, "cache_batch_idx is given, and so is block_table"),
    ({"cache_batch_idx": 1, "block_table": None}, TypeError, "cache_batch_idx is a int of shape None"),
    ({"num_splits": -1}, InvalidArgumentError, "num_splits is -1"),
    ({"num_splits": 1.0}, TypeError, "num_splits is 1.0, not an integer"),
    ({"return_softmax_lse": 2}, TypeError, "return_softmax_lse is 2, not True or False"),
    ({"window_size": 3}, TypeError, "window_size is 3, not (left, right), each an integer"),
    ({"softmax_scale": np.nan}, InvalidArgumentError, "softmax_scale is nan"),
    ({"q": X.astype("f4")}, TypeError, "q has dtype float32, not float16 or bfloat16"),
    ({"q": [1.0]}, TypeError, "q is a list, not an array"),
    ({"k_cache": CACHE.astype("f4")}, TypeError, "k_cache has dtype float32"),
]


@pytest.mark.parametrize(("given", "kind", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_wrong_arguments_are_named(
    device: pysm120.Device, given: dict[str, Any], kind: type[Exception], words: str
) -> None:
    right = {"q": X, "k_cache": CACHE, "v_cache": CACHE.copy(), "cache_seqlens": ONE, "block_table": TABLE}
    with pytest.raises(kind) as caught:
        pysm120.flash_attn_with_kvcache(**{**right, **given}, device=device)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_of_another_library(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Their caches are written in place, on the host and on a GPU."""
    torch = pytest.importorskip("torch")
    where = "cpu" if device.is_virtual else "cuda"
    problem = Problem(rng, "pages")
    new = [normal(rng, BATCH, 1, KV_HEADS, D) for _ in "kv"]
    q, k_cache, v_cache, k, v = (
        torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16).to(where) for x in (problem.q, *problem.caches, *new)
    )
    lengths, table = (torch.from_numpy(x).to(where) for x in (np.full(BATCH, 7, np.int32), problem.table))

    caches = problem.appended(np.full(BATCH, 7), new)
    out = pysm120.flash_attn_with_kvcache(
        *(q, k_cache, v_cache, k, v), cache_seqlens=lengths, block_table=table, device=device
    )
    assert out.device == q.device
    np.testing.assert_array_equal(k_cache.float().cpu().numpy(), caches[0].astype(np.float32))
    check_close(problem.wanted(caches, np.full(BATCH, 8, np.int32)), out.float().cpu().numpy())
