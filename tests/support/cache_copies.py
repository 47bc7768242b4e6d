"""Random problems of kv_cache_append and kv_cache_gather: caches with gaps, and what they hold before and after."""

from typing import Any, NamedTuple

import numpy as np
from cache_formats import E4M3, E5M2, E8M0, NONE, Held, quantise, read, scale_places
from harness import DTYPES
from numpy.typing import NDArray

import pysm120

Array = NDArray[Any]
KINDS = ("copy", "e4m3", "e5m2", "mxfp8", "nvfp4")
PLACES = ("slots", "table", "dense")
WIDE_LANES = 1 << 14  # of an append to NVFP4: with as many the library launches a wide kernel


class Memory:
    """An array on the device with gaps between its rows, and what it must hold."""

    def __init__(self, device: pysm120.Device, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, gap: int):
        width = shape[-1]
        whole = rng.integers(0, 256, (*shape[:-1], (width + gap) * np.dtype(dtype).itemsize), np.uint8).view(dtype)
        self.expected = whole.copy()
        self.array = device.array(whole)
        self.view, self.rows = self.array[..., :width], self.expected[..., :width]

    def check(self, what: str) -> None:
        """Compare all bytes, those of gaps and of other rows too."""
        got, want = self.array.numpy().view(np.uint8), self.expected.view(np.uint8)
        wrong = np.argwhere(got != want)
        assert not len(wrong), f"{what}: {len(wrong)} bytes differ, first at {wrong[0]}"


class Side:
    """K or V of a problem."""

    def __init__(self, problem: "Problem", letter: str, kind: str, columns: int) -> None:
        rng, device = problem.rng, problem.device
        self.letter, self.kind, self.columns = letter, kind, columns
        gap = int(rng.choice([0, 8, 3]))
        dtypes = {"copy": problem.dtype, "e4m3": E4M3, "e5m2": E5M2, "mxfp8": E4M3, "nvfp4": np.uint8}
        shape = problem.cache_shape
        self.cache = Memory(device, rng, (*shape, columns // 2 if kind == "nvfp4" else columns), dtypes[kind], gap)
        self.blocks = None
        if kind in {"mxfp8", "nvfp4"}:
            block, dtype = {"mxfp8": (32, E8M0), "nvfp4": (16, E4M3)}[kind]
            self.blocks = Memory(device, rng, (*shape, -(-columns // block)), dtype, int(rng.integers(3)))
        self.is_swizzled = (
            letter == "v" and kind == "nvfp4" and columns % 64 == 0 and problem.page_rows % 4 == 0 and problem.coin()
        )
        # a factor for all, for each head, for each page, or for each token and head
        broadcast = [(1,), (problem.heads,), (problem.pages, 1, 1), (problem.pages, problem.page_rows, problem.heads)]
        self.factor = np.exp(rng.standard_normal(broadcast[rng.integers(4)])).astype(np.float32)
        self.has_factor = kind in {"e4m3", "e5m2", "nvfp4"} and bool(rng.integers(4))
        whole = self.factor if self.has_factor else np.ones(1, np.float32)
        self.factors = np.broadcast_to(whole, (problem.pages, problem.page_rows, problem.heads))

    def given(self) -> dict[str, Any]:
        """Return the arguments of a call."""
        arrays = [self.cache.view] + ([self.blocks.view] if self.blocks else [])
        found = {f"{self.letter}_cache": tuple(arrays) if self.blocks else arrays[0]}
        return found | ({f"{self.letter}_scale": self.factor} if self.has_factor else {})

    def memories(self) -> list[Memory]:
        return [self.cache] + ([self.blocks] if self.blocks else [])

    def write(self, values: Array, places: list[tuple[int, int] | None]) -> None:
        """Expect tokens [tokens, heads, columns] at their places."""
        for x, place in zip(values, places, strict=True):
            if place is None:
                continue
            held = quantise(x, self.kind, self.factors[place][:, None])
            self.cache.rows[place] = held.elements
            if self.blocks is not None:
                rows, columns = self._scale_places(place[1])
                self.blocks.rows[place[0]][rows, :, columns] = held.blocks.T

    def _scale_places(self, row: int) -> tuple[Array, Array]:
        """Return the row and the index of each scale of a row."""
        assert self.blocks is not None
        return scale_places(row, self.blocks.rows.shape[-1], is_swizzled=self.is_swizzled)

    def values(self, places: list[tuple[int, int] | None], heads: int) -> Array:
        """Return the values at places, 0 where there is none."""
        out = np.zeros((len(places), heads, self.columns), np.float32)
        for x, place in zip(out, places, strict=True):
            if place is not None:
                blocks = NONE
                if self.blocks is not None:
                    rows, columns = self._scale_places(place[1])
                    blocks = self.blocks.rows[place[0]][rows, :, columns].T
                held = Held(self.cache.rows[place], blocks)
                x[...] = read(held, self.kind, self.factors[place][:, None], self.columns)
        return out


class Problem:
    """Tokens of some sequences, and a cache.

    is_wide: with NVFP4, one token is enough for the wide kernels. has_wrong: there are slots, page numbers, lengths and
    positions outside their ranges.
    """

    def __init__(
        self,
        device: pysm120.Device,
        rng: np.random.Generator,
        *,
        place: str,
        kinds: tuple[str, str],
        is_wide: bool = False,
        has_wrong: bool = False,
    ) -> None:
        self.device, self.rng, self.place, self.has_wrong = device, rng, place, has_wrong
        self.dtype = DTYPES[str(rng.choice(list(DTYPES)))]
        sizes = [64, 128, 48, 40, 2, 34, 192]
        k_columns, v_columns = (int(rng.choice(sizes[:4] if is_wide else sizes)) for _ in "kv")
        lanes = 2 * -(-max(k_columns, v_columns) // 32)
        self.heads = -(-WIDE_LANES // lanes) if is_wide else int(rng.integers(1, 4))
        self.batch = int(rng.integers(1, 4))
        self.page_rows = int(rng.choice([1, 3, 4, 8]))
        self.table_pages = int(rng.integers(1, 4))
        self.pages = self.batch if place == "dense" else self.batch * self.table_pages + 2
        self.capacity = self.page_rows * (1 if place == "dense" else self.table_pages)
        self.cache_shape = (self.pages, self.page_rows, self.heads)
        self.k, self.v = Side(self, "k", kinds[0], k_columns), Side(self, "v", kinds[1], v_columns)
        self.table = rng.permutation(self.pages)[: self.batch * self.table_pages].reshape(self.batch, -1)

    def coin(self) -> bool:
        return bool(self.rng.integers(2))

    def place_of(self, sequence: int, key: int) -> tuple[int, int]:
        number, row = divmod(key, self.page_rows)
        page = sequence if self.place == "dense" else int(self.table[sequence, number])
        return page, row

    def options(self) -> dict[str, Any]:
        """Return the arguments that every call has."""
        found = self.k.given() | self.v.given() | {"v_swizzled": self.v.is_swizzled}
        return {name: self.put(x) if isinstance(x, np.ndarray) else x for name, x in found.items()}

    def put(self, x: Array) -> pysm120.Array:
        return self.device.array(x)

    def check(self) -> None:
        for side in (self.k, self.v):
            for memory, what in zip(side.memories(), ("cache", "blocks"), strict=False):
                memory.check(f"{side.letter} {side.kind} {what}")


class Tokens(NamedTuple):
    """New tokens, the arguments that say where they go, and their places."""

    shape: tuple[int, ...]
    given: dict[str, Any]
    places: list[tuple[int, int] | None]


def new_tokens(problem: Problem) -> Tokens:
    """Draw where new tokens go: some nowhere, no two to one place."""
    rng = problem.rng
    if problem.place == "slots":
        count = int(rng.integers(1, 12))
        slots = rng.permutation(problem.pages * problem.page_rows).astype(np.int64)
        slots = (
            np.resize(slots, count)
            if count <= len(slots)
            else np.pad(slots, (0, count - len(slots)), constant_values=-1)
        )
        none = [-1, -(2**40), *([problem.pages * problem.page_rows] if problem.has_wrong else [])]
        slots = np.where(rng.random(count) < 0.2, rng.choice(none, count), slots)
        total = problem.pages * problem.page_rows
        places = [divmod(int(s), problem.page_rows) if 0 <= s < total else None for s in slots]
        return Tokens((count,), {"slots": problem.put(slots)}, places)
    rows = int(rng.integers(1, problem.capacity + 1))
    lengths = rng.integers(0, problem.capacity + 1, problem.batch).astype(np.int32)
    table = problem.table.astype(np.int32)
    if problem.place == "table" and problem.has_wrong and problem.coin():  # pages that the cache does not have
        table[rng.random(table.shape) < 0.3] = rng.choice([-1, problem.pages, 2**31 - 1])
    places = []
    for sequence, length in enumerate(lengths):
        for key in range(length - rows, length):
            entry = None if key < 0 else problem.place_of(sequence, key)
            if entry is not None and problem.place == "table":
                entry = entry if 0 <= table[sequence, key // problem.page_rows] < problem.pages else None
            places.append(entry)
    given = {"kv_lengths": problem.put(lengths)}
    given |= {"page_table": problem.put(table)} if problem.place == "table" else {}
    return Tokens((problem.batch, rows), given, places)
