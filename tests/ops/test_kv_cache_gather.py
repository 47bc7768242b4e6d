"""kv_cache_gather against NumPy, bit for bit, on random bytes; append and gather in the loop of a scheduler."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import test_kv_cache_append as append
from cache_copies import KINDS, PLACES, Problem
from cache_formats import E4M3, E8M0
from harness import DTYPES, lib
from kernels import Recorded
from numpy.typing import NDArray
from operations import Operation, Wrong

import pysm120

BF16 = ml_dtypes.bfloat16


def fill(args: Any, memory: int) -> None:
    """Three tokens of a sequence, from a page of four."""
    append.fill(args, memory)


def launch(device: pysm120.Device) -> None:
    for dtype in DTYPES.values():
        cache = np.ones((1, 4, 2, 32), dtype)
        pysm120.kv_cache_gather(cache, cache, device=device)


def compute(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """MXFP8 and NVFP4 of 9 tokens: bytes of all values but NaN."""
    k = tuple(rng.integers(0, 120, (2, 8, 3, n), np.uint8).view(x) for n, x in ((80, E4M3), (3, E8M0)))
    v = tuple(rng.integers(0, n, (2, 8, 3, m), np.uint8).view(x) for n, m, x in ((256, 40, np.uint8), (120, 5, E4M3)))
    x, y = pysm120.kv_cache_gather(k, v, rng.permutation(16)[:9], v_scale=0.01, device=device)
    return np.concatenate([x.view(np.uint8).ravel(), y.view(np.uint8).ravel()])


CACHE, SLOTS = np.ones((1, 4, 2, 32), BF16), np.arange(3)

OPERATION = Operation(
    name="kv_cache_gather",
    fill=fill,
    wrong=[
        Wrong("k.row_stride", 1, "INVALID_ARGUMENT", "overlap"),
        Wrong("k.address", 1, "MISALIGNED", "k.address"),
        Wrong("v_cache.dtype", lib.SM120_F32, "INVALID_ARGUMENT", "v_cache.dtype"),
        Wrong("pages", 2, "INVALID_ARGUMENT", "pages = 2"),
        Wrong("page_table", 4096, "INVALID_ARGUMENT", "table_pages = 0"),
        Wrong("new_lengths", 4096, "INVALID_ARGUMENT", "new_lengths = 0x"),
    ],
    refused={
        "rows": (ValueError, "rows is 3", ([CACHE, CACHE, SLOTS], {"rows": 3})),
        "rows kind": (TypeError, "rows is 3.5", ([CACHE, CACHE], {"rows": 3.5})),
        "no rows": (ValueError, "rows is 0", ([CACHE, CACHE], {"rows": 0})),
        "rows beside k": (ValueError, "rows is 3", ([CACHE, CACHE], {"rows": 3, "k": CACHE, "v": CACHE})),
        "k alone": (ValueError, "k is given without v", ([CACHE, CACHE], {"k": CACHE})),
        "dtype beside k": (ValueError, "dtype is f4", ([CACHE, CACHE], {"dtype": "f4", "k": CACHE, "v": CACHE})),
        "slots": (ValueError, r"slots\[2\] is 4", ([CACHE, CACHE, SLOTS + 2], {})),
        "dtype": (TypeError, "float64", ([CACHE, CACHE], {"dtype": np.float64})),
        "out": (ValueError, "k has shape", ([CACHE, CACHE, SLOTS], {"k": np.zeros((4, 2, 32), BF16), "v": CACHE[0]})),
    },
    launch=launch,
    recorded=[Recorded("kv_cache_gather", "kv_cache_gather_bf16", compute)],
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_model(
    device: pysm120.Device, unchecked: pysm120.Device, rng: np.random.Generator, place: str, kind: str
) -> None:
    """Every byte of results with gaps, from a cache of random bytes; keys behind the lengths are 0."""
    for turn in range(4):
        wrong = turn % 2
        kinds, of = (kind, str(rng.choice(KINDS))), unchecked if wrong else device
        problem = Problem(of, rng, place=place, kinds=kinds, has_wrong=wrong > 0)
        total = problem.pages * problem.page_rows
        if place == "slots":
            slots = rng.integers(-1, total + wrong, rng.integers(1, 12))
            places: list[Any] = [divmod(int(s), problem.page_rows) if 0 <= s < total else None for s in slots]
            given, shape = dict[str, Any](slots=problem.put(slots)), slots.shape
        else:
            lengths = rng.integers(-wrong, problem.capacity + 1 + wrong, problem.batch).astype(np.int32)
            rows = int(rng.integers(1, problem.capacity + 3))
            given, shape = {"kv_lengths": problem.put(lengths)}, (problem.batch, rows)
            if place == "table":
                given["page_table"] = problem.put(problem.table.astype(np.int32))
            places = [
                problem.place_of(b, key) if key < min(lengths[b], problem.capacity) else None
                for b in range(problem.batch)
                for key in range(rows)
            ]
        gap, out = int(rng.choice([0, 8, 1])), dict[str, Any]()
        for side in (problem.k, problem.v):
            whole = np.full((*shape, problem.heads, side.columns + gap), np.nan, problem.dtype)
            out[side.letter] = (whole, problem.put(whole))
        results: dict[str, Any] = {name: x[..., : x.shape[-1] - gap] for name, (_, x) in out.items()}
        pysm120.kv_cache_gather(**problem.options(), **given, **results)
        for side in (problem.k, problem.v):
            with np.errstate(all="ignore"):
                wanted = side.values(places, problem.heads).astype(problem.dtype)
            got = out[side.letter][1].numpy().astype(np.float32)
            wanted = wanted.astype(np.float32).reshape(*shape, *wanted.shape[1:])
            np.testing.assert_array_equal(got[..., : side.columns], wanted)
            assert np.isnan(got[..., side.columns :]).all()
        problem.check()


def test_defaults(device: pysm120.Device) -> None:
    """All rows of all pages; the dtype of the cache, or bfloat16; lists of ndarrays."""
    cache = np.arange(3 * 4 * 2 * 32, dtype=np.float32).reshape(3, 4, 2, 32)
    k, v = pysm120.kv_cache_gather(cache, -cache, device=device)
    np.testing.assert_array_equal(k, cache)
    np.testing.assert_array_equal(v, -cache)
    table = np.array([[2, 0]], "i4")
    k, _ = pysm120.kv_cache_gather(cache, cache, page_table=table, device=device)
    np.testing.assert_array_equal(k[0], cache[[2, 0]].reshape(8, 2, 32))
    k, _ = pysm120.kv_cache_gather(cache.astype(E4M3), cache.astype(E4M3), rows=2, device=device)
    assert (k.shape, k.dtype) == ((3, 2, 2, 32), BF16)


class Sequence(NamedTuple):
    """The pages of a sequence, and the tokens that it wrote."""

    pages: list[int]
    tokens: list[NDArray[Any]]


class Scheduler:
    """Sequences that join, grow, share the full pages of a prefix, and leave."""

    PAGES, PAGE_ROWS, MOST = 24, 4, 32

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.free = rng, list(range(self.PAGES))
        self.owners, self.living = np.zeros(self.PAGES, int), list[Sequence]()

    def change(self) -> None:
        """Let one leave, fork one, let one join."""
        rng = self.rng
        if self.living and rng.random() < 0.2:
            for page in self.living.pop(int(rng.integers(len(self.living)))).pages:
                self.owners[page] -= 1
                self.free += [page] if self.owners[page] == 0 else []
        if self.living and rng.random() < 0.3:
            old = self.living[int(rng.integers(len(self.living)))]
            shared = old.pages[: len(old.tokens) // self.PAGE_ROWS]
            self.owners[shared] += 1
            self.living.append(Sequence(list(shared), old.tokens[: len(shared) * self.PAGE_ROWS]))
        self.living += [Sequence([], [])] if len(self.living) < 4 else []

    def slot(self, sequence: Sequence) -> int:
        """Return the place of the next token of a sequence, -1 if there is none."""
        rows = len(sequence.tokens)
        if rows == self.MOST or (rows == len(sequence.pages) * self.PAGE_ROWS and not self.free):
            return -1
        if rows == len(sequence.pages) * self.PAGE_ROWS:
            sequence.pages.append(self.free.pop())
            self.owners[sequence.pages[-1]] += 1
        return sequence.pages[-1] * self.PAGE_ROWS + rows % self.PAGE_ROWS

    def grow(self, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return new tokens and their places; some have none. MXFP8 holds these powers of two as they are."""
        slots, values = [], []
        for sequence in self.living:
            for _ in range(int(self.rng.integers(1, 4))):
                values.append(np.exp2(self.rng.integers(-3, 4, shape)))
                slots.append(self.slot(sequence))
                if slots[-1] >= 0:
                    sequence.tokens.append(values[-1])
        return np.array(values), np.array(slots)

    def table(self) -> NDArray[np.int32]:
        most = self.MOST // self.PAGE_ROWS
        return np.array([x.pages + [-1] * (most - len(x.pages)) for x in self.living], np.int32)

    def lengths(self) -> NDArray[np.int32]:
        return np.array([len(x.tokens) for x in self.living], np.int32)


@pytest.mark.parametrize("kind", ["copy", "mxfp8"])
def test_a_scheduler(device: pysm120.Device, rng: np.random.Generator, kind: str) -> None:
    """What sequences hold is what they wrote."""
    front, columns, scheduler = (Scheduler.PAGES, Scheduler.PAGE_ROWS, 2), 32, Scheduler(rng)
    forms = {"copy": [(columns, BF16)], "mxfp8": [(columns, E4M3), (1, E8M0)]}[kind]
    caches: list[Any] = [tuple(device.array(np.zeros((*front, n), x)) for n, x in forms) for _ in "kv"]
    caches = [x[0] if kind == "copy" else x for x in caches]
    for _ in range(30):
        scheduler.change()
        values, slots = scheduler.grow((2, columns))
        k, v = (device.array(x.astype(BF16)) for x in (values, -values))
        pysm120.kv_cache_append(k, v, caches[0], caches[1], device.array(slots))
        given: dict[str, Any] = {"page_table": scheduler.table(), "kv_lengths": scheduler.lengths()}
        given = {name: device.array(x) for name, x in given.items()}
        for sign, x in zip((1, -1), pysm120.kv_cache_gather(caches[0], caches[1], rows=32, **given), strict=True):
            wanted = np.zeros(x.shape)
            for rows, sequence in zip(wanted, scheduler.living, strict=True):
                rows[: len(sequence.tokens)] = sign * np.array(sequence.tokens).reshape(-1, 2, columns)
            np.testing.assert_array_equal(device.from_dlpack(x).numpy().astype(float), wanted)
