"""attention_with_kv_cache: from which number of tokens on the kernels of attention compute a call, and what they do."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cache_cases import Case, verify
from cache_formats import quantise, read
from cache_reference import attention_cached, check_close
from harness import DTYPES, OpenDevice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pysm120

pytestmark = pytest.mark.virtual

Array = np.ndarray[Any, Any]
BF16 = DTYPES["bfloat16"]
ROWS, PAGE, D = 8192, 16, 64  # keys that a sequence may have, and rows of a page
SM120, HOPPER = "12", "9"
FORMS = {"dense": "bfloat16", "paged": "bfloat16", "e4m3": "e4m3", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}


@pytest.fixture(scope="module")
def single() -> Iterator[OpenDevice]:
    """A device of one multiprocessor, which every launch fills."""
    device = OpenDevice("virtual:0?multiprocessors=1")
    yield device
    device.close()


class Cache:
    """A cache of one kv head whose sequences may have ROWS keys, of which few exist; pages of the table repeat."""

    def __init__(self, rng: np.random.Generator, form: str, batch: int, *, paged: bool) -> None:
        shape = (12, PAGE, 1, D) if paged else (batch, ROWS, 1, D)
        self.table = rng.integers(0, 12, (batch, ROWS // PAGE)).astype(np.int32) if paged else None
        self.arguments: list[Any] = []
        self.exact: list[Array] = []
        for _ in range(2):
            x = rng.standard_normal(shape).astype(np.float32)
            if form == "bfloat16":
                self.arguments.append(x.astype(BF16))
                self.exact.append(x.astype(BF16))
                continue
            held = quantise(x, form, np.ones((*shape[:3], 1), np.float32))
            self.exact.append(read(held, form, np.ones((*shape[:3], 1), np.float32), D).astype(BF16))
            parts = [part for part in held if part.size]
            self.arguments.append(parts[0] if len(parts) == 1 else tuple(parts))


def kernels_of(
    device: pysm120.Device, rng: np.random.Generator, cache: Cache, heads: int, tokens: int, **options: Any
) -> set[str]:
    """Compute a call, compare it with float64, and return the kernels that it launched."""
    batch = len(cache.table) if cache.table is not None else len(cache.exact[0])
    q = rng.standard_normal((batch, tokens, heads, D)).astype(BF16)
    lengths = rng.integers(tokens, tokens + 40, batch).astype(np.int32)

    def there(x: Any) -> Any:
        return tuple(map(there, x)) if isinstance(x, tuple) else None if x is None else device.array(x)

    inputs = [there(x) for x in (q, *cache.arguments, lengths)]
    options = {"causal": True, "out_dtype": np.float32, "return_lse": True, **options}
    with device.profile() as profile:
        o, lse = pysm120.attention_with_kv_cache(*inputs, page_table=there(cache.table), **options)
    exact = attention_cached(q, cache.exact[0], cache.exact[1], lengths, page_table=cache.table, causal=True)
    check_close(exact, o.numpy(), lse.numpy())
    return {x.kernel for x in profile.statements}


# The chip, the form of the cache, the heads that share a kv head, CTAs of 128 rows for each multiprocessor, and the
# tokens at which the kernels of attention take over, as chunk.c's comment has them or by its formula.
CHOICES = [
    (SM120, "dense", 4, 1, 33),
    (SM120, "dense", 1, 1, 33),
    (SM120, "dense", 8, 1, 35),
    (HOPPER, "dense", 4, 1, 45),
    (HOPPER, "dense", 1, 1, 33),
    (SM120, "paged", 4, 1, 61),
    (SM120, "paged", 8, 1, 49),
    (SM120, "paged", 1, 1, 193),
    (HOPPER, "paged", 4, 1, 73),
    (HOPPER, "paged", 1, 1, 177),
    (SM120, "e4m3", 4, 1, 241),
    (SM120, "mxfp8", 8, 1, 121),
    (SM120, "nvfp4", 8, 1, 121),
    (HOPPER, "mxfp8", 4, 1, 61),
    (HOPPER, "nvfp4", 1, 1, 113),
    (SM120, "dense", 4, 0, 197),
    (HOPPER, "paged", 4, 0, 241),
]


@pytest.mark.sampled(4, each=("form",))
@pytest.mark.parametrize(("chip", "form", "group", "share", "tokens"), CHOICES)
def test_which_kernels_compute_a_call(
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    chip: str,
    form: str,
    group: int,
    share: int,
    tokens: int,
) -> None:
    """One token below the edge, at it and above; the chip is full, or has four times as many multiprocessors."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", chip)
    batch = 2
    count = batch * group * (1 if share else 4)
    cache = Cache(rng, FORMS[form], batch, paged=form != "dense")
    with pysm120.Device(f"virtual?multiprocessors={count}") as device:
        for more in (-1, 0, 1):
            names = kernels_of(device, rng, cache, group, tokens + more)
            is_other = {x for x in names if x.startswith(("attention_bf16", "attention_f16"))}
            assert bool(is_other) == (more >= 0), names
            assert bool({x for x in names if x.startswith("attention_kv_cache")}) == (more < 0)
            gathers = {x for x in names if x.startswith("kv_cache_gather")}
            assert bool(gathers) == (more >= 0 and form != "dense")


def test_a_plan_serves_devices_that_split_differently(rng: np.random.Generator) -> None:
    """The workspace of a form of a call depends on the device: what one needed is not taken for another."""
    cache = Cache(rng, "bfloat16", 2, paged=False)
    q = rng.standard_normal((2, 1, 4, D)).astype(BF16)
    lengths = np.array([700, 300], np.int32)
    k, v = (x[:, :1024] for x in cache.exact)
    for count in (1, 170, 1):
        with pysm120.Device(f"virtual?multiprocessors={count}") as device:
            inputs = [device.array(np.ascontiguousarray(x)) for x in (q, k, v, lengths)]
            for _ in range(2):
                o, lse = pysm120.attention_with_kv_cache(*inputs, causal=True, out_dtype=np.float32, return_lse=True)
            check_close(attention_cached(q, k, v, lengths, causal=True), o.numpy(), lse.numpy())


def test_between_64_and_77_tokens_in_pages(rng: np.random.Generator) -> None:
    """Half of a tile of 128 rows is cheaper than its half: 64 tokens take its kernels, 65 to 76 do not."""
    cache = Cache(rng, "bfloat16", 2, paged=True)
    with pysm120.Device("virtual?multiprocessors=8") as device:
        found = {}
        for tokens in (60, 61, 64, 65, 76, 77):
            names = kernels_of(device, rng, cache, 4, tokens)
            found[tokens] = any(x.startswith("kv_cache_gather") for x in names)
    assert found == {60: False, 61: True, 64: True, 65: False, 76: False, 77: True}


@pytest.mark.parametrize(("pages", "is_other"), [(512, True), (40000, False)])
def test_wide_tables_have_waves_for_each_sequence(rng: np.random.Generator, pages: int, *, is_other: bool) -> None:
    """Copies of 512 MB are made one after the other, each with CTAs of one sequence: too few for this chip."""
    k, v = (rng.standard_normal((12, PAGE, 2, D)).astype(BF16) for _ in "kv")
    q = rng.standard_normal((8, 64, 8, D)).astype(BF16)
    table = rng.integers(0, 12, (8, pages)).astype(np.int32)
    lengths = rng.integers(64, 100, 8).astype(np.int32)
    with pysm120.Device("virtual?multiprocessors=64") as device:
        there = [device.array(x) for x in (q, k, v, lengths, table)]
        with device.profile() as profile:
            results = pysm120.attention_with_kv_cache(
                *there[:4], page_table=there[4], causal=True, out_dtype=np.float32, return_lse=True
            )
        o, lse = (x.numpy() for x in results)
        names = {x.kernel for x in profile.statements}
    assert any(x.startswith("kv_cache_gather") for x in names) == is_other
    check_close(attention_cached(q, k, v, lengths, page_table=table[:, :8], causal=True), o, lse)


def test_a_misaligned_dense_cache_counts_its_copies(rng: np.random.Generator) -> None:
    """At 40 tokens an aligned cache is read in place by the kernels of attention; this one is not copied."""
    cache = Cache(rng, "bfloat16", 2, paged=False)
    q = rng.standard_normal((2, 40, 4, D)).astype(BF16)
    with pysm120.Device("virtual?multiprocessors=8") as device:
        names = kernels_of(device, rng, cache, 4, 40)
        assert any(x.startswith("attention_bf16") for x in names)
        rooms = [device.array(np.concatenate([x, x[..., :1]], 3))[..., :D] for x in cache.exact]
        lengths = device.array(np.array([50, 41], np.int32))
        with device.profile() as profile:
            o, lse = pysm120.attention_with_kv_cache(
                device.array(q), rooms[0], rooms[1], lengths, causal=True, out_dtype=np.float32, return_lse=True
            )
        exact = attention_cached(q, cache.exact[0], cache.exact[1], lengths.numpy(), causal=True)
        check_close(exact, o.numpy(), lse.numpy())
    names = {x.kernel for x in profile.statements}
    assert any(x.startswith("attention_kv_cache_any") for x in names), names


@pytest.mark.parametrize("tokens", [33, 64, 200])
def test_given_splits_and_trees_keep_their_kernel(rng: np.random.Generator, tokens: int) -> None:
    """Whatever the number of tokens: with `num_splits` the bits do not depend on the batch, nor on the chip."""
    cache = Cache(rng, "bfloat16", 2, paged=False)
    q = rng.standard_normal((2, tokens, 4, D)).astype(BF16)
    lengths = np.array([tokens + 30, tokens + 3], np.int32)
    bits = []
    for count in (1, 8, 170):
        with pysm120.Device(f"virtual?multiprocessors={count}") as device:
            assert any(
                x.startswith("attention_kv_cache") for x in kernels_of(device, rng, cache, 4, tokens, num_splits=1)
            )
            mask = np.ones((tokens, tokens), bool)
            names = kernels_of(device, rng, cache, 4, tokens, tree_mask=device.array(mask))
            assert not any(x.startswith("attention_bf16") for x in names)
            for rows in (slice(0, 2), slice(1, 2)):
                k, v = (x[rows] for x in cache.exact)
                o = pysm120.attention_with_kv_cache(q[rows], k, v, lengths[rows], num_splits=2, device=device)
                bits.append(o[-1].view(np.uint16))
    assert all(np.array_equal(bits[0], other) for other in bits)


@st.composite
def chunks(choose: Any) -> Case:
    """Any problem of 17 to 128 tokens and a 16-bit cache, of which one multiprocessor computes most in tiles of 128."""
    kv_heads, page = choose(st.integers(1, 2)), choose(st.sampled_from([0, 1, 16, 33]))
    end = st.none() | st.integers(0, 150)
    return Case(
        tuple(choose(st.lists(st.integers(0, 200), min_size=1, max_size=3))),
        choose(st.integers(17, 128)),
        kv_heads * choose(st.sampled_from([1, 4, 8])),
        kv_heads,
        choose(st.sampled_from([8, 64, 100, 128])),
        choose(st.none() | st.sampled_from([33, 64, 128])),
        page=page,
        form=choose(st.sampled_from(["table", "lists"])),
        causal=choose(st.booleans()),
        window=(choose(end), choose(end)),
        softcap=choose(st.sampled_from([0.0, 0.0, 2.0])),
        sinks=choose(st.booleans()),
        slopes=choose(st.integers(0, 2)),
        scale=choose(st.sampled_from([None, None, 0.0, -0.2])),
        splits=0,
        layout=choose(st.sampled_from(["NHD", "HND", "together"])),
        gap=choose(st.sampled_from([0, 0, 8, 1])),
        dtype=choose(st.sampled_from(["bfloat16", "float16"])),
        shared=choose(st.booleans()),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=chunks(), seed=st.integers(0, 2**32 - 1))
def test_random_chunks(single: OpenDevice, case: Case, seed: int) -> None:
    verify(single, np.random.default_rng(seed), case)
