"""Random problems of attention_with_kv_cache: formats of K and V, layouts, pages, features."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from cache_cases import lists_of, pages_of, table_of
from cache_reference import attention_cached
from harness import DTYPES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_attention_kv_cache_narrow import ALL_FORMS, Side, check, draw_side, is_converted

import pysm120

Array = np.ndarray[Any, Any]
MOST_TOKENS = 128  # up to here small calls use the kernels of caches


class Case(NamedTuple):
    """One problem."""

    k_form: str
    v_form: str
    lengths: tuple[int, ...]
    tokens: int
    group: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    page: int  # rows of a page; 0: dense
    form: str  # "table" or "lists"
    shared: bool  # sequences have pages in common, and repeat some
    layout: str
    gap: int
    dtype: str
    o_dtype: str
    splits: int | None
    causal: bool
    window: tuple[int | None, int | None]
    softcap: float
    sinks: bool
    slopes: int
    tree: int
    scale: float | None


@st.composite
def problems(choose: Any) -> Case:
    """Any problem that is not nonsense."""
    forms = st.sampled_from(ALL_FORMS)
    k_form, v_form = choose(forms), choose(forms)
    sizes = st.sampled_from([2, 8, 40, 64, 66, 96, 128, 200, 256])
    end = st.none() | st.integers(0, 90)
    page = choose(st.sampled_from([0, 1, 5, 16, 33, 64]))
    edges = st.integers(0, 150) | st.sampled_from(
        [max(0, n * (page or 64) + more) for n in (1, 2) for more in (-1, 0, 1)]
    )
    return Case(
        k_form=k_form,
        v_form=v_form,
        lengths=tuple(choose(st.lists(edges, min_size=1, max_size=3))),
        tokens=choose(st.integers(1, 9) | st.sampled_from([17, 33, 70, 129])),
        group=choose(st.sampled_from([1, 2, 4, 5])),
        kv_heads=choose(st.integers(1, 2)),
        head_dim=choose(sizes),
        v_head_dim=choose(sizes),
        page=page,
        form=choose(st.sampled_from(["table", "lists"])),
        shared=choose(st.booleans()),
        layout=choose(st.sampled_from(["NHD", "HND"])),
        gap=choose(st.sampled_from([0, 0, 16, 3])),
        dtype=choose(st.sampled_from(["bfloat16", "float16"])),
        o_dtype=choose(st.sampled_from(["float32", "float32", "bfloat16", "float16"])),
        splits=choose(st.none() | st.integers(1, 5)),
        causal=choose(st.booleans()),
        window=(choose(end), choose(end)),
        softcap=choose(st.sampled_from([0.0, 0.0, 2.0, 30.0])),
        sinks=choose(st.booleans()),
        slopes=choose(st.integers(0, 2)),
        tree=choose(st.sampled_from((0, 0, 2, 3))),
        scale=choose(st.sampled_from([None, None, 0.0, -0.2, 0.7])),
    )


def given_of(device: pysm120.Device, side: Side, letter: str, layout: str) -> dict[str, Any]:
    """K or V in a layout; HND are other strides of the same arrays."""
    found = side.given(device, letter)
    if layout == "HND":
        arrays = found[f"{letter}_cache"]
        turned = tuple(x.transpose(0, 2, 1, 3) for x in (arrays if isinstance(arrays, tuple) else (arrays,)))
        found[f"{letter}_cache"] = turned if len(turned) > 1 else turned[0]
        factor = found.get(f"{letter}_scale")
        if factor is not None and len(factor.shape) == 3:
            found[f"{letter}_scale"] = factor.transpose(0, 2, 1)
    return found


def verify(device: pysm120.Device, case: Case, rng: np.random.Generator) -> None:
    """Compare a problem with the reference; rows that no sequence has are NaN."""
    lengths: Any = np.array(case.lengths, np.int32)
    batch, heads = len(lengths), case.group * case.kv_heads
    table: Any = None
    pages, rows = batch, max(1, *case.lengths)
    used = np.arange(rows) < lengths[:, None]
    if case.page:
        chosen = pages_of(rng, case.lengths, case.page, shared=case.shared)
        pages, rows = sum(-(-n // case.page) for n in case.lengths) + 3, case.page
        used = np.zeros((pages, rows), bool)
        for numbers, count in zip(chosen, case.lengths, strict=True):
            at = np.arange(count)
            used[numbers[at // rows], at % rows] = True
        as_lists = case.form == "lists"
        table = lists_of(rng, chosen, case.lengths, case.page) if as_lists else table_of(rng, chosen)
        lengths = None if as_lists else lengths
    k = draw_side(rng, case.k_form, (pages, rows, case.kv_heads, case.head_dim), used, gap=case.gap)
    v = draw_side(rng, case.v_form, (pages, rows, case.kv_heads, case.v_head_dim), used, gap=case.gap)
    q = rng.standard_normal((batch, case.tokens, heads, case.head_dim)).astype(DTYPES[case.dtype])
    features: dict[str, Any] = {}
    if case.sinks:
        features["sinks"] = rng.standard_normal(heads).astype(np.float32)
    if case.slopes:
        shape: tuple[int, ...] = (batch, heads)[2 - case.slopes :]
        features["alibi_slopes"] = (rng.random(shape) / 4).astype(np.float32)
    if case.tree:
        of_trees = (batch, case.tokens, case.tokens)[3 - case.tree :]
        features["tree_mask"] = (rng.random(of_trees) < 0.6).astype(np.uint8)
    options: dict[str, Any] = {
        "causal": case.causal,
        "window": case.window,
        "softcap": case.softcap,
        "scale": case.scale,
    }
    out_dtype = DTYPES[case.o_dtype]
    # The kernels of attention read a copy in the dtype of q, and so do all with one cache in another of 16 bits.
    converts = is_converted(case.k_form, case.v_form, q.dtype)
    is_copied = converts or (case.tokens > MOST_TOKENS and case.splits is None and not case.tree)
    keys, values = (x.values.astype(q.dtype) if is_copied else x.values for x in (k, v))
    wanted = attention_cached(q, keys, values, lengths, page_table=table, **options, **features, out_dtype=out_dtype)
    placed: dict[str, Any] = {name: device.array(x) for name, x in features.items()}
    if table is not None:
        placed["page_table"] = tuple(map(device.array, table)) if isinstance(table, tuple) else device.array(table)
    o, lse = pysm120.attention_with_kv_cache(
        device.array(q),
        kv_lengths=None if lengths is None else device.array(lengths),
        num_splits=case.splits,
        out_dtype=out_dtype,
        return_lse=True,
        cache_layout=case.layout,
        **given_of(device, k, "k", case.layout),
        **given_of(device, v, "v", case.layout),
        **placed,
        **options,
    )
    check(wanted, None if converts else v, (o.numpy(), lse.numpy()))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=problems(), seed=st.integers(0, 2**32 - 1))
def test_random_narrow_problems(device_name: str, case: Case, seed: int) -> None:
    with pysm120.Device(device_name) as device:
        verify(device, case, np.random.default_rng(seed))


@pytest.mark.slow
@pytest.mark.virtual
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=problems(), seed=st.integers(0, 2**32 - 1))
def test_many_random_narrow_problems(case: Case, seed: int) -> None:
    with pysm120.Device("virtual") as device:
        verify(device, case, np.random.default_rng(seed))
