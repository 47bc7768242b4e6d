"""A scheduler over attention_with_kv_cache: sequences join, grow, fork a prefix and leave; pages come from a pool."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from cache_reference import attention_cached, check_close
from harness import DTYPES

import pysm120

PAGES, PAGE, HEADS, KV_HEADS, D = 24, 4, 4, 2, 64
MOST_PAGES, MOST_SEQUENCES = 8, 4
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
    """150 steps with a table, 150 with lists: every output against float64."""
    pool = Pool(rng)
    running: list[Sequence] = []
    for _ in range(150):
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
