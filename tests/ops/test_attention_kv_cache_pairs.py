"""attention_with_kv_cache of every pair of formats of K and V; K and V of one pair and type of q share a test."""

import itertools
from typing import Any

import numpy as np
import pytest
from cache_reference import attention_cached, check_close
from test_attention_kv_cache_narrow import ALL_FORMS, HALVES, Side, as_read, draw_side
from test_attention_kv_cache_random import Case, verify

import pysm120

Array = np.ndarray[Any, Any]
PLAIN = Case(
    k_form="bf16", v_form="bf16", lengths=(70, 0, 33), tokens=2, group=2, kv_heads=2, head_dim=64, v_head_dim=64,
    page=0, form="table", shared=False, layout="NHD", gap=0, dtype="bfloat16", o_dtype="float32", splits=1, causal=True,
    window=(None, None), softcap=0.0, sinks=False, slopes=0, tree=0, scale=None,
)  # fmt: skip
PAIRS = list(itertools.product(ALL_FORMS, ALL_FORMS))
CONVERTED = [("bf16", "nvfp4"), ("mxfp8", "f16"), ("f16", "bf16"), ("e4m3", "bf16"), ("f16", "f16")]  # q is bf16


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("k_form", "v_form"), PAIRS)
def test_every_pair(device: pysm120.Device, rng: np.random.Generator, k_form: str, v_form: str, dtype: str) -> None:
    """Dense, a page table and lists of pages; one token to chunks; splits, a tree, features; no key at all."""
    case = PLAIN._replace(k_form=k_form, v_form=v_form, dtype=HALVES[dtype].name)
    for change in (
        case,
        case._replace(tokens=5, page=16, splits=3, tree=3, shared=True, sinks=True, v_head_dim=128, layout="HND"),
        case._replace(tokens=3, page=7, form="lists", splits=None, slopes=2, window=(20, None), softcap=3.0, gap=16),
        case._replace(tokens=130, page=33, splits=None, group=1, o_dtype=HALVES[dtype].name),
        case._replace(lengths=(40, 1), tokens=128, head_dim=66, v_head_dim=40, gap=3, causal=False, splits=None),
        case._replace(lengths=(0, 0), tokens=1, page=16),
    ):
        verify(device, change, rng)


def problem(
    device: pysm120.Device, rng: np.random.Generator, forms: tuple[str, str], shape: tuple[int, ...]
) -> tuple[list[Side], dict[str, Any]]:
    """Draw K and V; both and their arguments."""
    sides = [draw_side(rng, form, shape, np.ones(shape[:2], bool)) for form in forms]
    return sides, sides[0].given(device, "k") | sides[1].given(device, "v")


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("forms", CONVERTED, ids=str)
def test_bits_do_not_depend_on_the_batch(
    device: pysm120.Device, rng: np.random.Generator, forms: tuple[str, str], splits: int
) -> None:
    """A sequence alone, and the same one among others; so is one whose table is in lists."""
    _, caches = problem(device, rng, forms, (12, 16, 2, 64))
    q = rng.standard_normal((3, 2, 4, 64)).astype(HALVES["bf16"])
    lengths, table = np.array([40, 61, 16], np.int32), rng.integers(0, 12, (3, 4)).astype(np.int32)
    options: dict[str, Any] = {"causal": True, "num_splits": splits, "return_lse": True, **caches}
    there = [device.array(x) for x in (q, lengths, table)]
    together = pysm120.attention_with_kv_cache(there[0], kv_lengths=there[1], page_table=there[2], **options)
    starts, last = np.array([0, 3, 7, 8], np.int32), np.array([8, 13, 16], np.int32)
    numbers = np.concatenate([table[0, :3], table[1], table[2, :1]])
    lists = tuple(map(device.array, (starts, numbers, last)))
    found = [pysm120.attention_with_kv_cache(there[0], page_table=lists, **options)]
    for b in range(3):
        part = [device.array(x[b : b + 1]) for x in (q, lengths, table)]
        found.append(pysm120.attention_with_kv_cache(part[0], kv_lengths=part[1], page_table=part[2], **options))
    for n in range(2):
        whole = together[n].numpy().view(np.uint8)
        assert np.array_equal(found[0][n].numpy().view(np.uint8), whole)
        assert np.array_equal(np.concatenate([x[n].numpy() for x in found[1:]]).view(np.uint8), whole)


def test_groups_of_sequences(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Tables wider than 256 MiB: sequences are copied one after the other, to the same place.

    The mask of each tree, its slopes and its row of lse are those of its sequence.
    """
    page, columns, pages, tokens = 1024, 16, 2200, 3
    (k, v), caches = problem(device, rng, ("mxfp8", "f16"), (4, page, 1, columns))
    table = np.full((3, pages), 99, np.int32)
    table[:, 0] = 2, 3, 0
    lengths = np.array([150, 0, 33], np.int32)
    q = rng.standard_normal((3, tokens, 2, columns)).astype(HALVES["bf16"])
    features: dict[str, Any] = {
        "tree_mask": rng.random((3, tokens, tokens)) < 0.5,
        "alibi_slopes": rng.random((3, 2)).astype("f4") / 4,
    }
    placed: dict[str, Any] = {name: device.array(x) for name, x in features.items()}
    o, lse = pysm120.attention_with_kv_cache(
        device.array(q),
        kv_lengths=device.array(lengths),
        page_table=device.array(table),
        num_splits=2,
        out_dtype="f4",
        return_lse=True,
        **caches,
        **placed,
    )
    values = [as_read(x, "mxfp8", "f16", q.dtype) for x in (k, v)]
    exact = attention_cached(q, values[0], values[1], lengths, page_table=table[:, :1], **features)
    check_close(exact, o.numpy(), lse.numpy())


@pytest.mark.parametrize("form", ["table", "lists"])
@pytest.mark.parametrize("forms", CONVERTED, ids=str)
def test_pages_that_do_not_exist(
    unchecked: pysm120.Device, rng: np.random.Generator, forms: tuple[str, str], form: str
) -> None:
    """On a GPU their keys are not seen, those behind them are; so it is on a virtual device without checks."""
    (k, v), caches = problem(unchecked, rng, forms, (12, 16, 2, 64))
    q = rng.standard_normal((3, 5, 4, 64)).astype(HALVES["bf16"])
    lengths, table = np.array([40, 61, 16], np.int32), rng.integers(0, 12, (3, 4)).astype(np.int32)
    table[0, 1], table[1, 0], table[1, 3], table[2, 0] = 12, -1, 2**31 - 1, -(2**31)
    given: dict[str, Any] = {"kv_lengths": unchecked.array(lengths), "page_table": unchecked.array(table)}
    pages: Any = table
    if form == "lists":
        pages = (
            np.array([0, 3, 7, 8], np.int32),
            table.ravel()[[0, 1, 2, 4, 5, 6, 7, 8]],
            np.array([8, 13, 16], np.int32),
        )
        given = {"page_table": tuple(map(unchecked.array, pages))}
    tree = rng.random((5, 5)) < 0.5
    o, lse = pysm120.attention_with_kv_cache(
        unchecked.array(q), tree_mask=unchecked.array(tree), out_dtype="f4", return_lse=True, **given, **caches
    )
    values = [as_read(x, forms[0], forms[1], q.dtype) for x in (k, v)]
    exact = attention_cached(
        q, values[0], values[1], None if form == "lists" else lengths, page_table=pages, tree_mask=tree
    )
    check_close(exact, o.numpy(), lse.numpy())


def test_bfloat16_beyond_float16(device: pysm120.Device) -> None:
    """A value of 65520 or more becomes infinity, a smaller one is rounded; small ones are subnormal or 0."""
    v = np.array([65280, 65536, -1e5, 1e-7, 1e-9, 2.0**-25, 3 * 2.0**-25, np.nan], np.float32).astype(HALVES["bf16"])
    k = np.zeros((1, 1, 1, 8), np.float16)
    o = pysm120.attention_with_kv_cache(
        np.zeros((1, 1, 1, 8), np.float16), k, v[None, None, None], out_dtype=np.float16, device=device
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(o[0, 0, 0], v.astype(np.float16))
    assert np.isinf(o[0, 0, 0, 1:3]).all()


@pytest.mark.parametrize("forms", CONVERTED, ids=str)
def test_ndarrays(device: pysm120.Device, rng: np.random.Generator, forms: tuple[str, str]) -> None:
    """Scales are numbers; out_dtype is free."""
    sides = [draw_side(rng, form, (2, 40, 2, 64), np.ones((2, 40), bool)) for form in forms]
    sides = [x._replace(factor=None, values=np.where(np.isfinite(x.values), x.values, 0)) if x.form in HALVES else x
             for x in sides]  # fmt: skip
    given: dict[str, Any] = {}
    for letter, x in zip("kv", sides, strict=True):
        held = [part for part in x.held if part.size]
        given[f"{letter}_cache"] = tuple(held) if len(held) > 1 else held[0]
        given |= {} if x.factor is None else {f"{letter}_scale": x.factor}
    q = rng.standard_normal((2, 2, 4, 64)).astype(HALVES["bf16"])
    lengths = np.array([40, 7], np.int32)
    o, lse = pysm120.attention_with_kv_cache(
        q, kv_lengths=lengths, out_dtype=np.float32, return_lse=True, device=device, **given
    )
    values = [as_read(x, forms[0], forms[1], q.dtype) for x in sides]
    check_close(attention_cached(q, values[0], values[1], lengths), o, lse)


@pytest.mark.parametrize("splits", [1, 3, None])
def test_workspaces(device: pysm120.Device, rng: np.random.Generator, splits: int | None) -> None:
    """A converted call has the copies of all pages of the table, their numbers, and the parts of the splits."""
    _, caches = problem(device, rng, ("f16", "e5m2"), (5, 16, 2, 64))
    q = device.array(rng.standard_normal((2, 1, 4, 64)).astype(HALVES["bf16"]))
    table = device.array(rng.integers(0, 5, (2, 3)).astype(np.int32))
    copies, numbers, parts = 2 * (2 * 3 * 16 * 2 * 64 * 2), 256, 3 * 2 * 4 * (64 + 1) * 4 if splits == 3 else 0
    small = device.empty((copies + numbers + parts - (1 if splits else 512),), np.uint8)
    with pytest.raises(ValueError, match="this call needs"):
        pysm120.attention_with_kv_cache(q, page_table=table, num_splits=splits, workspace=small, **caches)
    enough = device.empty((copies + numbers + parts + (0 if splits else 1 << 16),), np.uint8)
    o = pysm120.attention_with_kv_cache(q, page_table=table, num_splits=splits, workspace=enough, **caches)
    other = pysm120.attention_with_kv_cache(q, page_table=table, num_splits=splits, **caches)
    assert np.array_equal(o.numpy().view(np.uint8), other.numpy().view(np.uint8))
    inside = pysm120.Array(enough.owner, enough.address, q.shape, q.strides, q.dtype)
    with pytest.raises(ValueError, match="overlap"):
        pysm120.attention_with_kv_cache(q, page_table=table, num_splits=splits, workspace=enough, out=inside, **caches)


@pytest.mark.virtual
@pytest.mark.parametrize("forms", CONVERTED, ids=str)
def test_full_checks(rng: np.random.Generator, forms: tuple[str, str]) -> None:
    """No race, no undefined value; the same bits in any order of warps."""
    seed, found = int(rng.integers(1 << 30)), []
    for options in ("checks=full&seed=1", "checks=full&seed=2", "seed=0"):
        with pysm120.Device(f"virtual?{options}") as device:
            drawn = np.random.default_rng(seed)
            _, caches = problem(device, drawn, forms, (6, 16, 2, 64))
            lengths = device.array(np.array([40, 0, 61], np.int32))
            table = device.array(drawn.integers(0, 6, (3, 4)).astype(np.int32))
            for tokens, splits in ((1, 3), (5, 1), (130, None)):
                q = device.array(drawn.standard_normal((3, tokens, 4, 64)).astype(HALVES["bf16"]))
                o, lse = pysm120.attention_with_kv_cache(
                    q, kv_lengths=lengths, page_table=table, causal=True, num_splits=splits, return_lse=True, **caches
                )
                found += [o.numpy().view(np.uint8), lse.numpy()]
    for x, y, z in zip(found[:6], found[6:12], found[12:], strict=True):
        assert np.array_equal(x, y)
        assert np.array_equal(x, z)
