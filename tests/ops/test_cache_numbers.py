"""Lengths, page numbers, slots and positions in a virtual device's memory: those out of range are faults."""

import re
from typing import Any

import numpy as np
import pytest
from cache_formats import E4M3
from harness import DTYPES

import pysm120

pytestmark = pytest.mark.virtual
BF16 = DTYPES["bfloat16"]
PAGES, PAGE, MOST = 5, 16, 2**31 - 1
LENGTHS, TABLE = [20, 33], [[4, 0, 99], [1, 2, 3]]  # sequence 0 has no third page
LISTS = {"page_indptr": [1, 3, 6], "page_table": [99, 4, 0, 1, 2, 3, -1], "last_page": [4, 1]}

# The argument, the index that changes, its value there, and the message; None: the call computes.
Change = tuple[str, tuple[int, ...], int, str | None]
NO_PAGE = "it must be from 0 to 4, a page of the cache"
OF_TABLES: list[Change] = [
    *(
        ("kv_lengths", (0,), n, f"kv_lengths[0] = {n}; it must be from 0 to 48, the rows of its pages")
        for n in (-1, 49)
    ),
    ("kv_lengths", (1,), MOST, f"kv_lengths[1] = {MOST}; it must be from 0 to 48"),
    ("kv_lengths", (1,), 48, None),
    ("kv_lengths", (0,), 0, None),
    ("kv_lengths", (0,), 32, None),
    ("kv_lengths", (0,), 33, f"page_table[0, 2] = 99; {NO_PAGE}"),
    *(("page_table", (1, 2), n, f"page_table[1, 2] = {n}; {NO_PAGE}") for n in (-1, 5, 99, MOST, -MOST - 1)),
    *(("page_table", (0, 0), n, f"page_table[0, 0] = {n}; {NO_PAGE}") for n in (-1, 5)),
    *(("page_table", (1, 0), n, None) for n in (0, 4)),
    *(("page_table", (0, 2), n, None) for n in (-1, 5, MOST)),
]
OF_LISTS: list[Change] = [
    ("page_indptr", (0,), -1, "page_indptr[0] = -1; it must be from 0 to 7, the page numbers"),
    ("page_indptr", (1,), 0, "page_indptr[1] = 0; it must be from 1, the one before it, to 7, the page numbers"),
    ("page_indptr", (1,), 1, None),
    ("page_indptr", (2,), 8, "page_indptr[2] = 8; it must be from 3, the one before it, to 7"),
    ("page_indptr", (2,), 7, f"page_table[6] = -1; {NO_PAGE}"),
    ("page_indptr", (0,), 0, f"page_table[0] = 99; {NO_PAGE}"),
    *(("last_page", (1,), n, f"last_page[1] = {n}; it must be from 1 to 16, the rows of a page") for n in (0, 17, -1)),
    *(("last_page", (0,), n, None) for n in (1, 16)),
    *(("page_table", (5,), n, f"page_table[5] = {n}; {NO_PAGE}") for n in (-1, 5, MOST)),
    *(("page_table", (n,), MOST, None) for n in (0, 6)),
]
OF_DENSE: list[Change] = [
    *(("kv_lengths", (1,), n, f"kv_lengths[1] = {n}; it must be from 0 to 16, the rows") for n in (-1, 17, MOST)),
    *(("kv_lengths", (1,), n, None) for n in (0, 16)),
]
OF_SLOTS: list[Change] = [
    *(("slots", (2,), n, f"slots[2] = {n}; it must be from 0 to 79, the rows of all pages") for n in (80, 2**40)),
    *(("slots", (2,), n, None) for n in (79, 0, -1, -(2**40))),
]


def name(change: Change) -> str:
    """Name a change."""
    argument, index, value, _ = change
    return f"{argument}{list(index)}={value}"


def changed(given: dict[str, Any], change: Change, dtype: Any = np.int32) -> dict[str, np.ndarray[Any, Any]]:
    """Change one number."""
    arrays = {key: np.array(x, dtype) for key, x in given.items()}
    arrays[change[0]][change[1]] = change[2]
    return arrays


def expect(change: Change, call: Any, *results: pysm120.Array) -> None:
    """Call; a wrong number is named, and nothing is written."""
    if change[3] is None:
        call()
        return
    before = [x.numpy().view(np.uint8) for x in results]
    with pytest.raises(pysm120.FaultError, match="^" + re.escape(change[3])):
        call()
    for x, old in zip(results, before, strict=True):
        np.testing.assert_array_equal(x.numpy().view(np.uint8), old)


def attend(device: pysm120.Device, change: Change, arrays: dict[str, Any], how: tuple[int, Any, int | None]) -> None:
    """Call attention of a number of tokens, with V in a dtype."""
    tokens, v_dtype, splits = how
    rng = np.random.default_rng(1)
    pages = PAGES if "page_table" in arrays else 2
    k, v = (device.array(rng.standard_normal((pages, PAGE, 1, 32)).astype(x)) for x in (BF16, v_dtype))
    q = device.array(rng.standard_normal((2, tokens, 2, 32)).astype(BF16))
    placed: dict[str, Any] = {key: device.array(x) for key, x in arrays.items()}
    if "page_indptr" in placed:
        placed = {"page_table": tuple(placed[x] for x in LISTS_ORDER)}
    out = device.array(np.full(q.shape, 7, BF16))
    expect(change, lambda: pysm120.attention_with_kv_cache(q, k, v, out=out, num_splits=splits, **placed), out)


LISTS_ORDER = ("page_indptr", "page_table", "last_page")
# Kernels for few tokens, with and without splits; K and V copied; the kernels of attention.
HOW = [(2, BF16, 1), (2, BF16, 3), (3, E4M3, 1), (130, BF16, None), (130, E4M3, None)]


@pytest.mark.parametrize("how", HOW, ids=["few", "splits", "copied", "chunk", "copied chunk"])
@pytest.mark.parametrize("change", OF_TABLES, ids=name)
def test_attention_and_tables(device: pysm120.Device, change: Change, how: Any) -> None:
    attend(device, change, changed({"kv_lengths": LENGTHS, "page_table": TABLE}, change), how)


@pytest.mark.parametrize("how", HOW, ids=["few", "splits", "copied", "chunk", "copied chunk"])
@pytest.mark.parametrize("change", OF_LISTS, ids=name)
def test_attention_and_lists(device: pysm120.Device, change: Change, how: Any) -> None:
    attend(device, change, changed(LISTS, change), how)


@pytest.mark.parametrize("how", HOW, ids=["few", "splits", "copied", "chunk", "copied chunk"])
@pytest.mark.parametrize("change", OF_DENSE, ids=name)
def test_attention_and_lengths(device: pysm120.Device, change: Change, how: Any) -> None:
    attend(device, change, changed({"kv_lengths": [3, 16]}, change), how)


def copy(
    device: pysm120.Device, change: Change, arrays: dict[str, Any], *, rows: int, appends: bool, **more: Any
) -> None:
    """Append or gather so many rows of each sequence, or as many as there are slots."""
    pages = PAGES if {"page_table", "slots"} & set(arrays) else 2
    caches = [device.array(np.full((pages, PAGE, 1, 32), 5, BF16)) for _ in "kv"]
    front = (len(arrays["slots"]),) if "slots" in arrays else (2, rows)
    k, v = (device.array(np.full((*front, 1, 32), 7, BF16)) for _ in "kv")
    placed: dict[str, Any] = {key: device.array(x) for key, x in arrays.items()}
    options: dict[str, Any] = {key: device.array(x) for key, x in more.items()}
    if appends:
        expect(change, lambda: pysm120.kv_cache_append(k, v, caches[0], caches[1], **placed, **options), *caches)
    else:
        expect(change, lambda: pysm120.kv_cache_gather(caches[0], caches[1], **placed, k=k, v=v), k, v)


@pytest.mark.parametrize("appends", [False, True], ids=["gather", "append"])
@pytest.mark.parametrize("change", OF_SLOTS, ids=name)
def test_slots(device: pysm120.Device, change: Change, *, appends: bool) -> None:
    slots = np.array([3, 40, 7, -1], np.int64)
    slots[change[1]] = change[2]
    copy(device, change, {"slots": slots}, rows=1, appends=appends)


@pytest.mark.parametrize("change", OF_TABLES, ids=name)
def test_gather_from_tables(device: pysm120.Device, change: Change) -> None:
    copy(device, change, changed({"kv_lengths": LENGTHS, "page_table": TABLE}, change), rows=48, appends=False)


@pytest.mark.parametrize("appends", [False, True], ids=["gather", "append"])
@pytest.mark.parametrize("change", OF_DENSE, ids=name)
def test_dense(device: pysm120.Device, change: Change, *, appends: bool) -> None:
    copy(device, change, changed({"kv_lengths": [3, 16]}, change), rows=4, appends=appends)


APPENDED: list[Change] = [
    *(x for x in OF_TABLES if x[0] == "kv_lengths"),
    ("page_table", (1, 2), 5, f"page_table[1, 2] = 5; {NO_PAGE}"),  # keys 29 to 32 are in pages 1 and 2
    ("page_table", (1, 1), -1, f"page_table[1, 1] = -1; {NO_PAGE}"),
    ("page_table", (1, 0), MOST, None),
    ("kv_lengths", (0,), 1, None),  # the first tokens have no place
]


@pytest.mark.parametrize("change", APPENDED, ids=name)
def test_append_to_tables(device: pysm120.Device, change: Change) -> None:
    """Only the pages of new tokens count."""
    copy(device, change, changed({"kv_lengths": LENGTHS, "page_table": TABLE}, change), rows=4, appends=True)


@pytest.mark.parametrize("length", [-1, 0, 43, 44, 45])
def test_append_behind_lengths(device: pysm120.Device, length: int) -> None:
    """Room for the new tokens is needed."""
    text = f"kv_lengths[1] = {length}; it must be from 0 to 44, the rows of its pages without those of the new tokens"
    change: Change = ("kv_lengths", (1,), length, None if 0 <= length <= 44 else text)
    arrays = changed({"kv_lengths": LENGTHS, "page_table": TABLE}, change)
    new = np.zeros(2, np.int32)
    copy(device, change, arrays, rows=4, appends=True, new_lengths=new)


ROTARY = {name: np.ones((9, 4), np.float32) for name in ("rotary_cos", "rotary_sin")}


@pytest.mark.parametrize("position", [-1, 0, 8, 9, MOST])
@pytest.mark.parametrize("slot", [7, -1])
def test_positions(device: pysm120.Device, position: int, slot: int) -> None:
    """A position counts if its token has a place."""
    text = f"positions[2] = {position}; it must be from 0 to 8, a row of rotary_cos"
    change: Change = ("slots", (2,), slot, None if 0 <= position <= 8 or slot < 0 else text)
    positions = np.array([0, 8, position], np.int32)
    copy(device, change, {"slots": np.array([3, 40, slot])}, rows=1, appends=True, **ROTARY, positions=positions)


@pytest.mark.parametrize("length", [1, 9, 10])
def test_keys_with_a_position(device: pysm120.Device, length: int) -> None:
    """Without positions, keys are rows of the tables; those of tokens before key 0 are not read."""
    text = "kv_lengths[1] = 10; key 9 has no position: it must be from 0 to 8, a row of rotary_cos"
    change: Change = ("kv_lengths", (1,), length, text if length > 9 else None)
    copy(device, change, changed({"kv_lengths": [3, 9]}, change), rows=3, appends=True, **ROTARY)
    positions = np.array([[0, 1, 2], [-1, -1, 8]], np.int32)  # of tokens without a key, if the length is 1
    given = changed({"kv_lengths": [3, 1]}, ("kv_lengths", (1,), 1, None))
    copy(device, (*change[:3], None), given, rows=3, appends=True, **ROTARY, positions=positions)


@pytest.mark.parametrize("how", ["name", "environment"])
def test_without_checks(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """As on a GPU, keys of a page that there is not are not seen."""
    if how == "environment":
        monkeypatch.setenv("PYSM120_CHECKS", "off")
    with pysm120.Device("virtual" if how == "environment" else "virtual?checks=off") as device:
        for change in (*OF_TABLES, *OF_LISTS):
            given = LISTS if change in OF_LISTS else {"kv_lengths": LENGTHS, "page_table": TABLE}
            attend(device, (*change[:3], None), changed(given, change), (1, BF16, 1))


@pytest.mark.parametrize("level", ["default", "full"])
def test_levels(level: str) -> None:
    """A device that was named with a level; the device stays usable."""
    with pysm120.Device(f"virtual?checks={level}") as device:
        for change in OF_TABLES:
            attend(device, change, changed({"kv_lengths": LENGTHS, "page_table": TABLE}, change), (1, BF16, 1))


def test_numbers_that_a_launch_wrote(device: pysm120.Device) -> None:
    """Lengths are read behind the launches in front: an append writes those that attention takes."""
    k, v = (device.array(np.ones((2, 1, 1, 32), BF16)) for _ in "kv")
    caches = [device.zeros((2, PAGE, 1, 32), BF16) for _ in "kv"]
    lengths = device.array(np.full(2, 99, np.int32))
    with pytest.raises(pysm120.FaultError, match=r"^kv_lengths\[0\] = 99; it must be from 0 to 16"):
        pysm120.attention_with_kv_cache(k, caches[0], caches[1], lengths)
    pysm120.kv_cache_append(k, v, *caches, kv_lengths=device.zeros(2, np.int32), new_lengths=lengths)
    o = pysm120.attention_with_kv_cache(k, caches[0], caches[1], lengths)
    np.testing.assert_array_equal(o.numpy().astype(np.float32), 1)
