"""A scheduler over attention_with_kv_cache: sequences join, grow, fork a prefix and leave; pages come from a pool."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from cache_formats import E4M3, E8M0, quantise, read
from cache_reference import attention_cached, check_close
from harness import DTYPES

import pysm120

PAGES, PAGE, HEADS, KV_HEADS, D = 24, 4, 4, 2, 64
MOST_PAGES, MOST_SEQUENCES = 8, 4
FACTOR, U8 = 0.25, np.uint8
Array = np.ndarray[Any, Any]


class Sequence(NamedTuple):
    """A sequence in the cache."""

    pages: list[int]
    length: int


class Pool:
    """Pages and how many sequences have each; the keys of free pages are NaN."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.users = np.zeros(PAGES, int)
        self.k, self.v = (np.full((PAGES, PAGE, KV_HEADS, D), np.nan, DTYPES["bfloat16"]) for _ in range(2))

    @property
    def free(self) -> int:
        return int((self.users == 0).sum())

    def take(self) -> int:
        page = int(self.rng.choice(np.flatnonzero(self.users == 0)))
        self.users[page] = 1
        return page

    def leave(self, sequence: Sequence) -> None:
        for page in sequence.pages:
            self.users[page] -= 1
            if self.users[page] == 0:
                self.k[page] = self.v[page] = np.nan

    def grow(self, sequence: Sequence, tokens: int) -> Sequence:
        """Append keys; a last page that others have too is copied first."""
        pages, length = list(sequence.pages), sequence.length
        for n in range(length, length + tokens):
            if n % PAGE == 0:
                pages.append(self.take())
            elif self.users[pages[-1]] > 1:
                old, pages[-1] = pages[-1], self.take()
                self.users[old] -= 1
                self.k[pages[-1]], self.v[pages[-1]] = self.k[old], self.v[old]
            for cache in (self.k, self.v):
                cache[pages[-1], n % PAGE] = self.rng.standard_normal((KV_HEADS, D))
        return Sequence(pages, length + tokens)

    def fork(self, sequence: Sequence) -> Sequence:
        """Begin a sequence with some keys of another; they share pages."""
        length = int(self.rng.integers(1, sequence.length + 1))
        pages = sequence.pages[: -(-length // PAGE)]
        self.users[pages] += 1
        return Sequence(list(pages), length)


def step(pool: Pool, running: list[Sequence], tokens: int) -> list[Sequence]:
    """Let sequences leave, join and fork; append `tokens` keys to each."""
    rng = pool.rng
    for sequence in [s for s in running if rng.random() < 0.08 or s.length + tokens > PAGE * MOST_PAGES]:
        pool.leave(sequence)
        running = [s for s in running if s is not sequence]
    needed = MOST_SEQUENCES * (2 + tokens // PAGE)
    while pool.free < needed and running:
        pool.leave(running.pop(int(rng.integers(len(running)))))
    if len(running) < MOST_SEQUENCES and running and rng.random() < 0.3:
        other = running[int(rng.integers(len(running)))]
        if other.length + tokens <= PAGE * MOST_PAGES:
            running.append(pool.fork(other))
    if not running or (len(running) < MOST_SEQUENCES and rng.random() < 0.3):
        running.append(Sequence([], 0))
    return [pool.grow(s, tokens) for s in running]


@pytest.mark.parametrize("form", ["table", "lists"])
def test_steps(device: pysm120.Device, rng: np.random.Generator, form: str) -> None:
    """Thousands of steps, half of them with lists of pages: every output against float64."""
    pool = Pool(rng)
    running: list[Sequence] = []
    for _ in range(1500):
        tokens = int(rng.choice([1, 1, 1, 3]))
        running = step(pool, running, tokens)
        assert pool.users.sum() == sum(len(s.pages) for s in running)
        lengths = np.array([s.length for s in running], np.int32)
        table: Any
        if form == "table":
            table = np.full((len(running), MOST_PAGES), -1, np.int32)
            for row, s in zip(table, running, strict=True):
                row[: len(s.pages)] = s.pages
        else:
            indptr = np.cumsum([0, *(len(s.pages) for s in running)]).astype(np.int32)
            indices = np.concatenate([s.pages for s in running]).astype(np.int32)
            table = (indptr, indices, ((lengths - 1) % PAGE + 1).astype(np.int32))
        q = rng.standard_normal((len(running), tokens, HEADS, D)).astype(DTYPES["bfloat16"])
        given = lengths if form == "table" else None
        options: dict[str, Any] = {"page_table": table, "causal": True}
        out, lse = pysm120.attention_with_kv_cache(
            *(q, pool.k, pool.v, given), **options, out_dtype=np.float32, return_lse=True, device=device
        )
        check_close(attention_cached(q, pool.k, pool.v, given, **options), out, lse)


# ---- narrow caches in device memory -----------------------------------------------------


class DeviceCache:
    """K and V in device memory, which kv_cache_append writes, and what they hold by NumPy."""

    def __init__(self, device: pysm120.Device, form: str) -> None:
        self.device, self.form = device, form
        front = (PAGES, PAGE, KV_HEADS)
        self.factor = None if form == "mxfp8" else device.array(np.full(1, FACTOR, np.float32))
        dtypes = {"e4m3": [(D, E4M3)], "mxfp8": [(D, E4M3), (D // 32, E8M0)], "nvfp4": [(D // 2, U8), (D // 16, E4M3)]}
        self.parts = [[device.zeros((*front, n), dtype) for n, dtype in dtypes[form]] for _ in "kv"]
        self.values = np.zeros((2, *front, D), np.float32)

    @property
    def caches(self) -> list[Any]:
        return [parts[0] if len(parts) == 1 else tuple(parts) for parts in self.parts]

    @property
    def scales(self) -> dict[str, Any]:
        return {} if self.factor is None else {"k_scale": self.factor, "v_scale": self.factor}

    def append(self, new: Array, places: list[tuple[int, int]]) -> None:
        """Write new keys and values [2, tokens, heads, columns] to pages and rows."""
        slots = self.device.array(np.array([page * PAGE + row for page, row in places], np.int64))
        k, v = (self.device.array(x.astype(DTYPES["bfloat16"])) for x in new)
        k_cache, v_cache = self.caches
        pysm120.kv_cache_append(k, v, k_cache, v_cache, slots, **self.scales)
        factor = np.full((1, 1, 1), 1.0 if self.factor is None else FACTOR, np.float32)
        for n, x in enumerate(new):
            held = read(quantise(x.astype(DTYPES["bfloat16"]), self.form, factor), self.form, factor, D)
            for (page, row), value in zip(places, held, strict=True):
                self.values[n, page, row] = value

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy pages: to, from."""
        pieces = [
            (x[to : to + 1], x[old : old + 1], x[old : old + 1].nbytes)
            for to, old in pairs
            for parts in self.parts
            for x in parts
        ]
        if pieces:
            pysm120.copy_batch(pieces)
        for to, old in pairs:
            self.values[:, to] = self.values[:, old]


class DevicePool(Pool):
    """A pool over a DeviceCache: it notes what a step writes and copies."""

    def __init__(self, rng: np.random.Generator, cache: DeviceCache) -> None:
        super().__init__(rng)
        self.cache = cache

    def leave(self, sequence: Sequence) -> None:
        self.users[sequence.pages] -= 1

    def grow(self, sequence: Sequence, tokens: int) -> Sequence:
        pages, places, length = list(sequence.pages), [], sequence.length
        for n in range(length, length + tokens):
            if n % PAGE == 0:
                pages.append(self.take())
            elif self.users[pages[-1]] > 1:
                old, pages[-1] = pages[-1], self.take()
                self.users[old] -= 1
                self.cache.copy([(pages[-1], old)])
            places.append((pages[-1], n % PAGE))
        self.cache.append(self.rng.standard_normal((2, tokens, KV_HEADS, D)), places)
        return Sequence(pages, length + tokens)


def run_narrow(device: pysm120.Device, rng: np.random.Generator, form: str, steps: int) -> None:
    """Append, copy and attend on the device; pages that are free keep the keys of those that left."""
    cache = DeviceCache(device, form)
    pool, running = DevicePool(rng, cache), list[Sequence]()
    for _ in range(steps):
        tokens = int(rng.choice([1, 1, 1, 3]))
        running = step(pool, running, tokens)
        lengths = np.array([s.length for s in running], np.int32)
        table = np.full((len(running), MOST_PAGES), -1, np.int32)
        for row, s in zip(table, running, strict=True):
            row[: len(s.pages)] = s.pages
        q = rng.standard_normal((len(running), tokens, HEADS, D)).astype(DTYPES["bfloat16"])
        there = [device.array(x) for x in (q, lengths, table)]
        (k, v), options = cache.caches, {"page_table": there[2], **cache.scales}
        out, lse = pysm120.attention_with_kv_cache(
            there[0], k, v, there[1], causal=True, out_dtype="f4", return_lse=True, **options
        )
        exact = attention_cached(q, cache.values[0], cache.values[1], lengths, page_table=table, causal=True)
        # P times a scale of V is rounded to f16.
        slack = 2.0**-31 * np.abs(cache.values[1]).sum((0, 1)).max()
        check_close(exact._replace(most=exact.most + slack, usual=exact.usual + slack), out.numpy(), lse.numpy())


@pytest.mark.parametrize("form", ["e4m3", "mxfp8", "nvfp4"])
def test_steps_of_narrow_caches(device: pysm120.Device, rng: np.random.Generator, form: str) -> None:
    run_narrow(device, rng, form, 200)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["e4m3", "mxfp8", "nvfp4"])
def test_thousands_of_steps_of_narrow_caches(device: pysm120.Device, rng: np.random.Generator, form: str) -> None:
    run_narrow(device, rng, form, 2000)
