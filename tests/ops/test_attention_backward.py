"""attention_backward against gradients in float64 and against a model of its own arithmetic, between guard bands."""

import itertools
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from backward_cases import MIXED, ODD, PRECISION, Case, Places, arguments, draw, judge, name, norm, run, verify
from backward_reference import (
    Array,
    Gradients,
    Inputs,
    delta_of,
    forward,
    given,
    gradients,
    inputs,
    loss,
    seen_keys,
    wide,
)
from harness import DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct, tensor
from kernels import Recorded
from operations import ROOT, Operation, Wrong

import pysm120

BATCH, HEADS, KV_HEADS, Q_ROWS, KV_ROWS, D = 2, 4, 2, 5, 7, 24
PART = 1 << 14
BF16 = DTYPES["bfloat16"]
attention: Any = pysm120.attention  # called with lists of arrays
attention_backward: Any = pysm120.attention_backward
HEAD_SIZES = (32, 64, 96, 128, 192, 256)  # of the kernels


# ---- the row of the operation ----------------------------------------------------


def fill(args: Any, memory: int) -> None:
    """Fill arguments for bf16, causal: nine arrays one behind the other."""
    args.precision, args.scale, args.causal = lib.SM120_BF16, -0.25, lib.SM120_CAUSAL_BOTTOM_RIGHT
    args.batch, args.heads, args.kv_heads = BATCH, HEADS, KV_HEADS
    args.q_rows, args.kv_rows, args.head_dim = Q_ROWS, KV_ROWS, D
    q, k = (HEADS, Q_ROWS), (KV_HEADS, KV_ROWS)
    tensors = (args.q, args.k, args.v, args.dout, args.o, args.dq, args.dk, args.dv)
    for n, (struct, (heads, rows)) in enumerate(zip(tensors, (q, k, k, q, q, q, k, k), strict=True)):
        struct.address, struct.dtype = memory + n * PART, lib.SM120_BF16
        struct.batch_stride, struct.head_stride, struct.row_stride = heads * rows * D, rows * D, D
    args.lse = memory + 8 * PART
    args.mask.dtype = args.dmask.dtype = lib.SM120_F32
    args.mask.address, args.dmask.address = memory + 8 * PART + 1024, memory + 8 * PART + 2048
    args.mask.row_stride = args.dmask.row_stride = KV_ROWS
    args.mask.column_stride = args.dmask.column_stride = 1


def launch(device: pysm120.Device) -> None:
    """Every head size in every precision, with and without features, deterministic or not; sinks; shared heads."""
    sinks = np.zeros(1, np.float32)
    for dtype, head_dim, cap in itertools.product(PRECISION, HEAD_SIZES, (0.0, 3.0)):
        x, lse = np.ones((1, 3, 1, head_dim), DTYPES[dtype]), np.zeros((1, 1, 3), np.float32)
        attention_backward(x, x, x, x, x, lse, softcap=cap, sinks=sinks, return_dsinks=True, device=device)
        if cap == 0:
            attention_backward(x, x, x, x, x, lse, deterministic=True, device=device)
    q, k, lse = np.ones((1, 65, 16, 32), BF16), np.ones((1, 3, 1, 32), BF16), np.zeros((1, 16, 65), np.float32)
    attention_backward(q, q, k, k, q, lse, device=device)
    for dtype, head_dim in itertools.product(DTYPES, (64, 96, 128)):
        x, lse = np.ones((1, 3, 1, head_dim), DTYPES[dtype]), np.zeros((1, 1, 3), np.float32)
        for deterministic in (False, True):
            attention_backward(x, x, x, x, x, lse, precision="mxfp8", deterministic=deterministic, device=device)
    for dtype, precision in PRECISION.items():
        x, lse = np.ones((1, 3, 1, 64), DTYPES[dtype]), np.zeros((1, 1, 3), np.float32)
        attention_backward(x, x, x, x, x, lse, precision=f"mxfp8_{precision}", device=device)


def recorded() -> Iterator[Recorded]:
    """Problems with one tile of keys for each row, because then no sum depends on the order of CTAs."""
    for precision, step in (("bf16", 2.0**-7), ("f16", 2.0**-10)):
        dtype = DTYPES[{"bf16": "bfloat16", "f16": "float16"}[precision]]
        for head_dim, rows in ((32, 100), (64, 128), (100, 60), (192, 64), (256, 30)):

            def compute(
                device: pysm120.Device,
                rng: np.random.Generator,
                dtype: Any = dtype,
                head_dim: int = head_dim,
                rows: int = rows,
            ) -> Array:
                """All three gradients in f32; the head size that is no native one has copies."""
                q, dout = rng.standard_normal((2, 1, 150, 4, head_dim)).astype(dtype)
                k, v = rng.standard_normal((2, 1, rows, 2, head_dim)).astype(dtype)
                heads_first = (x.swapaxes(1, 2) for x in (q, k, v, dout))
                _, o, lse = forward(inputs(heads_first, head_dim**-0.5, seen_keys(150, rows, "bottom-right")))
                results = {n: np.zeros(x.shape, np.float32) for n, x in (("dq", q), ("dk", k), ("dv", v))}
                out = np.ascontiguousarray(o.swapaxes(1, 2), np.float32)
                attention_backward(dout, q, k, v, out, lse.astype(np.float32), causal=True, device=device, **results)
                return np.concatenate([x.ravel() for x in results.values()])[::11].copy()

            kernels = rf"attention_backward_{precision}_\d\w*|attention_backward_delta_{precision}|"
            kernels += r"attention_backward_dq|copy_rows.*" if head_dim % 8 else "attention_backward_dq"
            name = f"attention_backward {precision} d{head_dim} 150x{rows} causal"
            yield Recorded(name, kernels, compute, is_exact=False, step=step)


def right(**changes: Any) -> dict[str, Any]:
    """Arguments of a right call of Python, but for some."""
    x, kv = np.ones((2, 5, 4, 64), BF16), np.ones((2, 7, 2, 64), BF16)
    lse = np.zeros((2, 4, 5), np.float32)
    return {"dout": x, "q": x, "k": kv, "v": kv, "out": x, "lse": lse, **changes}


def ones(*shape: int, dtype: Any = BF16) -> Array:
    return np.ones(shape, dtype)


FLOAT32 = {"dout": (5, 4), "q": (5, 4), "k": (7, 2), "v": (7, 2), "out": (5, 4)}

PY_WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "rank of q": (ValueError, r"q has shape \(5, 4, 64\)", right(q=ones(5, 4, 64))),
    "dtype of q": (TypeError, "q has dtype float64", right(q=ones(2, 5, 4, 64, dtype="f8"))),
    "dtype of k": (TypeError, "k has dtype float16, but q has bfloat16", right(k=ones(2, 7, 2, 64, dtype="f2"))),
    "dtype of dout": (TypeError, "dout has dtype float16, but q", right(dout=ones(2, 5, 4, 64, dtype="f2"))),
    "dtype of out": (TypeError, "out has dtype float64", right(out=ones(2, 5, 4, 64, dtype="f8"))),
    "dtype of lse": (TypeError, "lse has dtype complex64, not float32", right(lse=ones(2, 4, 5, dtype="c8"))),
    "shape of dout": (ValueError, r"dout has shape \(2, 6, 4, 64\)", right(dout=ones(2, 6, 4, 64))),
    "shape of lse": (ValueError, r"lse has shape \(2, 5, 4\)", right(lse=ones(2, 5, 4, dtype="f4"))),
    "list": (TypeError, "v is a list", right(v=[1.0])),
    "no out": (TypeError, "out is a NoneType", right(out=None)),
    "heads": (ValueError, "kv_heads = 3 does not divide heads = 4", right(k=ones(2, 7, 3, 64), v=ones(2, 7, 3, 64))),
    "head size 257": (
        ValueError,
        "q has head size 257, above 256, the most in precision",
        right(q=ones(2, 5, 4, 257), k=ones(2, 7, 2, 257)),
    ),
    "head size of v": (
        ValueError,
        "v has head size 264, above 256, the most in precision",
        right(v=ones(2, 7, 2, 264), out=ones(2, 5, 4, 264), dout=ones(2, 5, 4, 264)),
    ),
    "precision": (ValueError, "precision is 'fp8'", right(precision="fp8")),
    "head size in MXFP8": (
        ValueError,
        "q has head size 129, above 128, the most in precision",
        right(q=ones(2, 5, 4, 129), k=ones(2, 7, 2, 129), precision="mxfp8"),
    ),
    "features of float32": (
        pysm120.UnsupportedError,
        "q.dtype = F32 .* with a mask, .* softcap",
        right(**{name: ones(2, *shape, 64, dtype="f4") for name, shape in FLOAT32.items()}, softcap=3.0),
    ),
    "precision of another dtype": (TypeError, "q, k and v have dtype bfloat16, but", right(precision="f16")),
    "layout": (ValueError, "layout is 'SBHD'", right(layout="SBHD")),
    "causal": (TypeError, "causal is 2", right(causal=2)),
    "causal_align": (ValueError, "causal_align is 'left'", right(causal=True, causal_align="left")),
    "window": (TypeError, "window is 3", right(window=3)),
    "scale": (TypeError, "scale is 'x'", right(scale="x")),
    "infinite scale": (ValueError, "scale is inf, not a number that is finite", right(scale=math.inf)),
    "accumulate": (TypeError, "accumulate is 'yes'", right(accumulate="yes")),
    "deterministic": (TypeError, "deterministic is 1", right(deterministic=1)),
    "accumulate to nothing": (ValueError, "accumulate is True, but dq is None", right(accumulate=True)),
    "accumulate in bf16": (
        ValueError,
        "dq.dtype",
        right(accumulate=True, dq=ones(2, 5, 4, 64), dk=ones(2, 7, 2, 64), dv=ones(2, 7, 2, 64)),
    ),
    "dlse and delta": (
        ValueError,
        "give one of them",
        right(dlse=ones(2, 4, 5, dtype="f4"), delta=ones(2, 4, 5, dtype="f4")),
    ),
    "shape of delta": (ValueError, r"delta has shape \(2, 4, 6\)", right(delta=ones(2, 4, 6, dtype="f4"))),
    "dtype of dlse": (TypeError, "dlse has dtype bool, not float32", right(dlse=ones(2, 4, 5, dtype="?"))),
    "shape of dk": (ValueError, r"dk has shape \(2, 7, 4, 64\)", right(dk=ones(2, 7, 4, 64))),
    "dtype of dv": (TypeError, "dv has dtype int32", right(dv=ones(2, 7, 2, 64, dtype="i4"))),
    "dq of another kind": (TypeError, "dq is a str", right(dq="x")),
}

OPERATION = Operation(
    name="attention_backward",
    fill=fill,
    wrong=[
        Wrong("precision", 0, "INVALID_ARGUMENT", "precision = 0x0"),
        Wrong("precision", 99, "INVALID_ARGUMENT", "MXFP8_BF16"),
        Wrong("precision", lib.SM120_MXFP8_F16, "INVALID_ARGUMENT", "q.dtype"),
        Wrong("precision", lib.SM120_F16, "INVALID_ARGUMENT", "q.dtype"),
        Wrong("batch", 0, "INVALID_ARGUMENT", "batch = 0"),
        Wrong("batch", (1 << 63) - 1, "UNSUPPORTED", "batch"),
        Wrong("heads", 3, "INVALID_ARGUMENT", "kv_heads = 2 does not divide heads = 3"),
        Wrong("kv_heads", 0, "INVALID_ARGUMENT", "kv_heads = 0"),
        Wrong("q_rows", 0, "INVALID_ARGUMENT", "q_rows = 0"),
        Wrong("q_rows", 1 << 30, "UNSUPPORTED", "q_rows"),
        Wrong("kv_rows", -1, "INVALID_ARGUMENT", "kv_rows = -1"),
        Wrong("kv_rows", 1 << 30, "UNSUPPORTED", "kv_rows"),
        Wrong("head_dim", 0, "INVALID_ARGUMENT", "head_dim = 0"),
        Wrong("head_dim", 20, "WORKSPACE_TOO_SMALL", "workspace_bytes"),
        Wrong("head_dim", 257, "UNSUPPORTED", "head_dim = 257"),
        Wrong("v_head_dim", -8, "INVALID_ARGUMENT", "v_head_dim = -8"),
        Wrong("v_head_dim", 12, "WORKSPACE_TOO_SMALL", "workspace_bytes"),
        Wrong("v_head_dim", 264, "UNSUPPORTED", "v_head_dim = 264"),
        Wrong("q.dtype", 0, "INVALID_ARGUMENT", "q.dtype"),
        Wrong("q.dtype", lib.SM120_F32, "INVALID_ARGUMENT", "q.dtype"),
        Wrong("k.dtype", lib.SM120_F16, "INVALID_ARGUMENT", "k.dtype"),
        Wrong("v.dtype", lib.SM120_E4M3, "UNSUPPORTED", "v.dtype"),
        Wrong("dout.dtype", lib.SM120_F32, "INVALID_ARGUMENT", "dout.dtype"),
        Wrong("dout.dtype", lib.SM120_F16, "INVALID_ARGUMENT", "dout.dtype"),
        Wrong("o.dtype", lib.SM120_E8M0, "UNSUPPORTED", "o.dtype"),
        Wrong("dq.dtype", lib.SM120_E4M3, "UNSUPPORTED", "dq.dtype"),
        Wrong("dk.dtype", 0, "INVALID_ARGUMENT", "dk.dtype"),
        Wrong("dv.dtype", lib.SM120_E8M0, "UNSUPPORTED", "dv.dtype"),
        Wrong("q.address", 0, "INVALID_ARGUMENT", "q.address = 0"),
        Wrong("k.address", 1, "MISALIGNED", "k.address"),
        Wrong("dout.address", 0, "INVALID_ARGUMENT", "dout.address = 0"),
        Wrong("o.address", 0, "INVALID_ARGUMENT", "o.address = 0"),
        Wrong("dq.address", 0, "INVALID_ARGUMENT", "dq.address = 0"),
        Wrong("dk.address", 3, "MISALIGNED", "dk.address"),
        Wrong("dv.address", 0, "INVALID_ARGUMENT", "dv.address = 0"),
        Wrong("q.batch_stride", -8, "INVALID_ARGUMENT", "q.batch_stride = -8"),
        Wrong("q.head_stride", 2, "WORKSPACE_TOO_SMALL", "workspace_bytes"),
        Wrong("k.row_stride", 0, "INVALID_ARGUMENT", "k.row_stride = 0"),
        Wrong("v.row_stride", 1 << 62, "UNSUPPORTED", "v.row_stride"),
        Wrong("dout.row_stride", 1 << 28, "INVALID_ARGUMENT", "past the end"),
        Wrong("o.row_stride", 1 << 28, "INVALID_ARGUMENT", "past the end"),
        Wrong("dq.row_stride", 4, "INVALID_ARGUMENT", "overlap"),
        Wrong("dk.head_stride", 0, "INVALID_ARGUMENT", "dk.head_stride = 0"),
        Wrong("dv.batch_stride", 64, "INVALID_ARGUMENT", "overlap"),
        Wrong("lse", 0, "INVALID_ARGUMENT", "lse = 0"),
        Wrong("lse", 2, "MISALIGNED", "lse"),
        Wrong("dlse", 2, "MISALIGNED", "dlse"),
        Wrong("delta", 6, "MISALIGNED", "delta"),
        Wrong("scale", math.inf, "INVALID_ARGUMENT", "scale = inf"),
        Wrong("scale", math.nan, "INVALID_ARGUMENT", "scale"),
        Wrong("causal", 4, "INVALID_ARGUMENT", "causal = 4"),
        Wrong("window", 4, "INVALID_ARGUMENT", "window = 4"),
        Wrong("accumulate", 1, "INVALID_ARGUMENT", "dq.dtype"),
        Wrong("accumulate", 2, "INVALID_ARGUMENT", "accumulate = 2"),
        Wrong("deterministic", 2, "INVALID_ARGUMENT", "deterministic = 2"),
        Wrong("softcap", 2000.0, "UNSUPPORTED", "softcap = 2000"),
        Wrong("softcap", -1.0, "INVALID_ARGUMENT", "softcap = -1"),
        Wrong("diagonals", 2, "MISALIGNED", "diagonals"),
        Wrong("kv_lengths", 2, "MISALIGNED", "kv_lengths"),
        Wrong("cu_seqlens_q", 4, "INVALID_ARGUMENT", "q_total = 0"),
        Wrong("cu_seqlens_k", 4, "INVALID_ARGUMENT", "kv_total = 0"),
        Wrong("q_total", 5, "INVALID_ARGUMENT", "q_total = 5; without cu_seqlens_q"),
        Wrong("kv_total", 5, "INVALID_ARGUMENT", "kv_total = 5; without cu_seqlens_k"),
        Wrong("alibi_slopes", 2, "MISALIGNED", "alibi_slopes"),
        Wrong("mask.address", 0, "INVALID_ARGUMENT", "a gradient needs a mask"),
        Wrong("mask.dtype", lib.SM120_BOOL, "INVALID_ARGUMENT", "a gradient needs a mask"),
        Wrong("mask.dtype", lib.SM120_E4M3, "INVALID_ARGUMENT", "mask.dtype"),
        Wrong("mask.reserved", 1, "INVALID_ARGUMENT", "mask.reserved = 1"),
        Wrong("mask.batch_stride", -1, "INVALID_ARGUMENT", "mask.batch_stride = -1"),
        Wrong("mask.column_stride", 1 << 62, "UNSUPPORTED", "mask.column_stride"),
        Wrong("dmask.address", 2, "MISALIGNED", "dmask.address"),
        Wrong("dmask.dtype", lib.SM120_BF16, "INVALID_ARGUMENT", "dmask.dtype"),
        Wrong("dmask.reserved", 1, "INVALID_ARGUMENT", "dmask.reserved = 1"),
        Wrong("dmask.row_stride", KV_ROWS - 1, "INVALID_ARGUMENT", "dmask.row_stride = 6"),
        Wrong("dmask.head_stride", -1, "INVALID_ARGUMENT", "dmask.head_stride = -1"),
        Wrong("dmask.batch_stride", 1 << 62, "UNSUPPORTED", "dmask.batch_stride"),
        Wrong("dmask.column_stride", 1 << 61, "UNSUPPORTED", "dmask.column_stride"),
        Wrong("sinks", 2, "MISALIGNED", "sinks"),
        Wrong("dsinks", 4, "INVALID_ARGUMENT", "without sinks"),
    ],
    refused={what: (kind, message, ((), options)) for what, (kind, message, options) in PY_WRONG.items()},
    launch=launch,
    recorded=tuple(recorded()),
)


# ---- the reference itself --------------------------------------------------------


@pytest.mark.parametrize(
    ("causal", "window"),
    [(None, (None, None)), ("bottom-right", (None, None)), ("top-left", (3, None)), (None, (2, 1))],
)
def test_the_reference_is_the_slope_of_the_loss(
    rng: np.random.Generator, causal: str | None, window: tuple[int | None, int | None]
) -> None:
    """Central differences of every element, with a gradient of LSE, heads that share keys, rows without keys."""
    shapes = [(2, 4, 7, 5), (2, 2, 6, 5), (2, 2, 6, 3), (2, 4, 7, 3)]
    arrays = [rng.standard_normal(s) for s in shapes]
    dlse = rng.standard_normal((2, 4, 7))
    x = inputs(arrays, -0.7, seen_keys(7, 6, causal, window))
    exact, step = gradients(x, dlse), 1e-5
    for field, slope in zip(("q", "k", "v"), exact, strict=True):
        found = np.zeros_like(slope)
        for at in np.ndindex(slope.shape):
            ends = []
            for sign in (1, -1):
                moved = getattr(x, field).copy()
                moved[at] += sign * step
                ends.append(loss(x._replace(**{field: moved}), dlse))
            found[at] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found, slope, atol=1e-8)


def test_the_two_forms_of_the_reference_agree(rng: np.random.Generator) -> None:
    """With lse and delta of its own forward pass."""
    arrays = [rng.standard_normal(s) for s in ((2, 4, 7, 5), (2, 2, 6, 5), (2, 2, 6, 3), (2, 4, 7, 3))]
    x = inputs(arrays, 0.9, seen_keys(7, 6, "bottom-right"))
    dlse = rng.standard_normal((2, 4, 7))
    _, o, lse = forward(x)
    for own, other in zip(gradients(x, dlse), given(x, lse, delta_of(x, o, dlse)), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-13)


# ---- shapes ----------------------------------------------------------------------

EDGES = [
    *(Case(1, 1, 1, q, k, 64) for q, k in itertools.product((1, 63, 64, 65), (1, 31, 33, 127, 128, 129))),
    *(Case(1, 1, 1, q, k, 128) for q, k in ((1, 1), (63, 65), (64, 64), (65, 63), (129, 31), (128, 127))),
    *(Case(1, 1, 1, q, k, 256) for q, k in ((1, 1), (31, 33), (32, 32), (33, 31), (97, 65), (64, 96))),
    *(Case(1, 1, 1, q, k, 192) for q, k in ((1, 1), (31, 65), (32, 64), (33, 63), (97, 129))),
]
CAUSALS = [
    Case(1, 1, 1, q, k, d, causal)
    for causal in ("bottom-right", "top-left")
    for q, k, d in (
        *((128, 128, 64), (129, 129, 128), (1, 100, 64), (100, 1, 64), (65, 200, 128), (200, 65, 64)),
        *((127, 191, 96), (256, 257, 32), (300, 129, 128), (33, 70, 256), (70, 33, 192)),
    )
]
WINDOWS = [
    Case(1, 2, 1, q, k, d, causal, window=window)
    for q, k, d, causal, window in (
        (150, 150, 64, None, (20, None)),
        (150, 150, 64, None, (None, 20)),
        (150, 150, 128, None, (20, 7)),
        (150, 150, 64, "bottom-right", (33, None)),
        (100, 170, 32, "top-left", (40, 5)),
        (170, 100, 96, None, (0, 0)),
        (200, 60, 64, "top-left", (10, None)),  # rows behind the last key see none
        (60, 300, 128, None, (5, 5)),  # keys that no row sees
        (40, 40, 256, None, (1 << 40, 1 << 40)),
    )
]
TILES = {32: (64, 128), 64: (64, 128), 96: (64, 64), 128: (64, 64), 192: (32, 64), 256: (32, 32)}  # rows, keys; SM120


def on_tiles(left: Any, right: Any) -> list[Case]:
    """Cases of every head size with a window that depends on the tile."""
    return [
        Case(1, 1, 1, n, n, d, None, window=(left(q, k), right(q, k)))
        for d, (q, k) in TILES.items()
        for n in (2 * max(q, k),)
    ]


# One row of a tile sees all of its keys but one; of a tile, one row alone sees any key.
LEFT_EDGES = on_tiles(lambda q, _: q - 2, lambda *_: None)
RIGHT_EDGES = on_tiles(lambda *_: None, lambda _, k: k - 2)
BANDS = on_tiles(lambda *_: 1, lambda *_: 1)
SIZES = [
    Case(1, 2, 1, 40, 70, d, "bottom-right", dtype)
    for d in (1, 7, 8, 31, 32, 33, 64, 65, 96, 100, 104, 128, 129, 191, 192, 193, 200, 255, 256)
    for dtype in PRECISION
]
VALUES = [
    Case(1, 2, 2, 70, 66, d, "bottom-right", v_head_dim=v)
    for d, v in ((64, 128), (128, 64), (192, 128), (32, 33), (7, 256), (256, 1), (96, 40))
]
GROUPS = [
    Case(2, 4, 2, 70, 90, 64, "bottom-right"),
    Case(1, 6, 1, 33, 65, 128),
    Case(3, 3, 3, 20, 129, 32, "top-left"),
    Case(2, 8, 2, 1, 300, 128),
    Case(1, 4, 1, 130, 70, 192, "bottom-right"),
    Case(1, 40, 40, 20, 150, 32, "top-left"),  # more than the heads whose tiles take turns
]
TYPES = [
    Case(1, 2, 1, 50, 100, 72, "bottom-right", dtype, out, o_dtype=o)
    for dtype, out, o in itertools.product(PRECISION, DTYPES, DTYPES)
]
SCALES = [
    Case(1, 1, 1, 64, 130, 64, "bottom-right", dtype, scale=scale)
    for scale in (0.0, -0.125, 1.0, 1e-30, 4.0)
    for dtype in PRECISION
]
CASES = {
    "edges": EDGES,
    "causal": CAUSALS,
    "windows": WINDOWS,
    "left edges": LEFT_EDGES,
    "right edges": RIGHT_EDGES,
    "bands": BANDS,
    "sizes": SIZES,
    "values": VALUES,
    "groups": GROUPS,
    "types": TYPES,
    "scales": SCALES,
}


@pytest.mark.sampled(3, each=("kind",))
@pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(kind, case, id=f"{kind}-{name(case)}") for kind, cases in CASES.items() for case in cases],
)
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, kind: str, case: Case) -> None:
    """Every edge of the tiles, causal forms, windows, head sizes, groups, dtypes, scales."""
    del kind
    verify(opened, rng, case)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("trial", range(8))
def test_random_problems(opened: OpenDevice, rng: np.random.Generator, trial: int) -> None:
    """Shapes nobody chose."""
    del trial
    kv_heads = int(rng.integers(1, 3))
    window = tuple(None if rng.random() < 0.6 else int(rng.integers(0, 200)) for _ in range(2))
    case = Case(
        int(rng.integers(1, 3)),
        kv_heads * int(rng.integers(1, 4)),
        kv_heads,
        int(rng.integers(1, 300)),
        int(rng.integers(1, 300)),
        int(rng.integers(1, 257)),
        [None, "bottom-right", "top-left"][rng.integers(3)],
        str(rng.choice(list(PRECISION))),
        str(rng.choice(list(DTYPES))),
        int(rng.integers(1, 257)),
        (window[0], window[1]),
        o_dtype=str(rng.choice(list(DTYPES))),
    )
    verify(opened, rng, case)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", list(PRECISION))
@pytest.mark.parametrize("places", [ODD, MIXED], ids=["odd", "mixed"])
@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(64, 64), (128, 96), (100, 33)])
def test_odd_strides(
    opened: OpenDevice, rng: np.random.Generator, dtype: str, places: Places, head_dim: int, v_head_dim: int
) -> None:
    """Rows that begin at no multiple of 16 bytes are copied; results are stored where they belong."""
    case = Case(2, 4, 2, 70, 90, head_dim, "bottom-right", dtype, dtype, v_head_dim, o_dtype=dtype)
    verify(opened, rng, case, places)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("head_dim", [33, 34, 35])
def test_aligned_rows_of_an_odd_head_size(opened: OpenDevice, rng: np.random.Generator, head_dim: int) -> None:
    """Rows begin at multiples of 16 bytes; nothing is stored behind the last column."""
    gap = 40 - head_dim
    places: Places = tuple((order, gap) for order in ("BSHD", "BHSD") * 4)
    verify(opened, rng, Case(1, 4, 2, 70, 90, head_dim, None, "bfloat16", "bfloat16"), places)


@pytest.mark.sampled(2)
@pytest.mark.virtual
@pytest.mark.parametrize("dtype", list(PRECISION))
@pytest.mark.parametrize("causal", [None, "bottom-right"])
@pytest.mark.parametrize(
    ("head_dim", "q_rows", "kv_rows"),
    [(32, 257, 130), (64, 129, 257), (96, 130, 129), (128, 130, 257), (192, 130, 129), (256, 65, 130)],
)
def test_tiles_that_need_the_shared_memory_of_hopper(
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    causal: str | None,
    head_dim: int,
    q_rows: int,
    kv_rows: int,
) -> None:
    """The kernels that an H200 takes of these head sizes, on a virtual device that states its capability."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    hopper = OpenDevice("virtual:0?checks=full")
    try:
        verify(hopper, rng, Case(1, 2, 1, q_rows, kv_rows, head_dim, causal, dtype))
    finally:
        hopper.close()


# ---- tensors anywhere ------------------------------------------------------------


def backward(x: Inputs, o: Array, lse: Array, device: pysm120.Device, **options: Any) -> Gradients:
    """Call Python on host arrays in BHSD; results in float32 unless they are given."""
    results = {
        member: np.full(y.shape, np.nan, np.float32)
        for member, y in (("dq", x.q), ("dk", x.k), ("dv", x.v))
        if member not in options
    }
    made = attention_backward(
        x.dout, x.q, x.k, x.v, o, lse, scale=x.scale, layout="BHSD", device=device, **{**results, **options}
    )
    return Gradients(*made)


def ready(rng: np.random.Generator, case: Case) -> tuple[Inputs, Array, Array]:
    """Draw a problem, with its O and LSE in float32."""
    x = draw(rng, case)
    _, o, lse = forward(x)
    return x, o.astype(np.float32), lse.astype(np.float32)


@pytest.mark.parametrize("head_dim", [64, 20])
def test_one_array_of_q_k_and_v(device: pysm120.Device, rng: np.random.Generator, head_dim: int) -> None:
    """Interleaved as many models have them, in both layouts; dq, dk and dv share an array too."""
    case = Case(2, 2, 2, 70, 70, head_dim, "bottom-right")
    x, o, lse = ready(rng, case)
    packed = np.stack([y.swapaxes(1, 2) for y in (x.q, x.k, x.v)], 2)  # B S 3 H D
    qkv = device.array(packed)
    out, dout = (device.array(np.ascontiguousarray(y.swapaxes(1, 2))) for y in (o, x.dout))
    wanted = backward(x, o, lse, device, causal=True)
    for layout in ("BSHD", "BHSD"):
        results = device.array(np.full(packed.shape, np.nan, np.float32))
        q, k, v, dq, dk, dv = (y[:, :, n] for y in (qkv, results) for n in range(3))
        arrays = [dout, q, k, v, out]
        if layout == "BHSD":
            arrays = [y.transpose(0, 2, 1, 3) for y in arrays]
            dq, dk, dv = (y.transpose(0, 2, 1, 3) for y in (dq, dk, dv))
        attention_backward(*arrays, device.array(lse), causal=True, layout=layout, scale=x.scale, dq=dq, dk=dk, dv=dv)
        got = results.numpy()
        for n, y in enumerate(wanted):
            np.testing.assert_array_equal(got[:, :, n].swapaxes(1, 2), y)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("pitch", [64, 65, 72])
def test_any_place_and_stride(device: pysm120.Device, rng: np.random.Generator, offset: int, pitch: int) -> None:
    """NaN lies between the rows of inputs, and nothing beside the results changes.

    dv has the same bits wherever the arrays lie. delta is summed in another order where O is not aligned, which may
    round a dS the other way.
    """
    x, o, lse = ready(rng, Case(1, 4, 2, 40, 33, 64))
    bases = []

    def place(y: Array, dtype: Any, between: float) -> pysm120.Array:
        base = device.array(np.full(offset + y.size // 64 * pitch, between, dtype))
        bases.append(base)
        strides = (y.shape[1] * y.shape[2] * pitch, y.shape[2] * pitch, pitch, 1)
        address = base.address + base.dtype.itemsize * offset
        there = pysm120.Array(base.owner, address, y.shape, strides, base.dtype)
        return there.copy_from(y.astype(dtype))

    arrays = [place(y, BF16, np.nan) for y in (x.dout, x.q, x.k, x.v, o)]
    results = [place(np.zeros_like(y), np.float32, 9) for y in (x.q, x.k, x.v)]
    attention_backward(
        *arrays, device.array(lse), layout="BHSD", scale=x.scale, dq=results[0], dk=results[1], dv=results[2]
    )
    wanted = backward(x, o.astype(BF16), lse, device)
    np.testing.assert_array_equal(results[2].numpy(), wanted.dv)
    for result, base, y in zip(results, bases[5:], wanted, strict=True):
        assert norm(result.numpy() - y) <= 2e-4 * norm(y)
        whole = base.numpy()
        rows = whole[offset:].reshape(-1, pitch)
        assert np.all(whole[:offset] == 9)
        assert np.all(rows[:, 64:] == 9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("which", range(4))
def test_broadcast_inputs(opened: OpenDevice, rng: np.random.Generator, which: int, gap: int) -> None:
    """A batch and a head stride of 0 stand for one batch and one head that all use, copied or not."""
    case = Case(2, 4, 2, 50, 70, 64)
    x = draw(rng, case)
    arrays = [x.q, x.k, x.v, x.dout]
    arrays[which] = arrays[which][:1, :1]
    full = [np.broadcast_to(y, (2, heads, *y.shape[2:])) for y, heads in zip(arrays, (4, 2, 2, 4), strict=True)]
    x = inputs(full, case.factor, x.seen)
    _, o, lse = forward(x)
    o, lse = o.astype(np.float32), lse.astype(np.float32)
    args = arguments(case)
    try:
        for n, (struct, y) in enumerate(zip((args.q, args.k, args.v, args.dout, args.o), (*arrays, o), strict=True)):
            pitch = y.shape[3] + gap
            strides = (y.shape[1] * y.shape[2] * pitch, y.shape[2] * pitch, pitch, 1)
            tensor(struct, Buffer(opened, y.shape, y.dtype, strides, y))
            if n == which:
                struct.batch_stride = struct.head_stride = 0
        results = [Buffer(opened, y.shape, np.float32) for y in full[:3]]
        for struct, buffer in zip((args.dq, args.dk, args.dv), results, strict=True):
            tensor(struct, buffer)
        args.lse = Buffer(opened, lse.shape, np.float32, None, lse).address
        size = ffi.new("size_t *")
        check(lib.sm120_attention_backward(opened.handle, args, 0, size))
        workspace = Buffer(opened, (int(size[0]),), np.uint8)
        check(lib.sm120_attention_backward(opened.handle, args, workspace.address, size))
        got = Gradients(*(wide(buffer.download()) for buffer in results))
    finally:
        opened.release()
    judge(got, gradients(x), x, lse, delta_of(x, o))


def test_results_lie_nowhere_that_is_read(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A result on an input, on another result, on lse, or on the workspace."""
    x, o, lse = ready(rng, Case(1, 2, 2, 40, 40, 64))
    there = {"dout": x.dout, "q": x.q, "k": x.k, "v": x.v, "out": o.astype(BF16)}
    arrays = {n: device.array(y) for n, y in there.items()}
    logs = device.array(lse)
    for result, array in itertools.product(("dq", "dk", "dv"), arrays):
        with pytest.raises(
            pysm120.InvalidArgumentError, match=rf"{result} \(.*\) and {'o' if array == 'out' else array}"
        ):
            attention_backward(*arrays.values(), logs, layout="BHSD", **{result: arrays[array]})
    one = device.empty(x.q.shape, BF16)
    for first, second in itertools.combinations(("dq", "dk", "dv"), 2):
        with pytest.raises(pysm120.InvalidArgumentError, match=rf"{second} \(.*\) and {first} \(.*\) overlap"):
            attention_backward(*arrays.values(), logs, layout="BHSD", **{first: one, second: one})
    for member in ("lse", "dlse", "delta"):
        numbers = device.zeros(lse.shape)
        on_it = pysm120.Array(one.owner, one.address, lse.shape, numbers.strides, numbers.dtype)
        options = {"lse": logs, member: on_it}
        with pytest.raises(pysm120.InvalidArgumentError, match=rf"dk.* {member} .* overlap"):
            attention_backward(*arrays.values(), **options, layout="BHSD", dk=one)
    room = device.empty(1 << 20, np.uint8)
    inside = pysm120.Array(room.owner, room.address, x.q.shape, one.strides, one.dtype)
    with pytest.raises(pysm120.InvalidArgumentError, match=r"workspace .* and dv .* overlap"):
        attention_backward(*arrays.values(), logs, layout="BHSD", dv=inside, workspace=room)


def test_device_arrays_and_the_default_results(device: pysm120.Device, rng: np.random.Generator) -> None:
    """New results have the dtype of q and stay where the inputs are; O and LSE come from attention itself."""
    q, dout = rng.standard_normal((2, 2, 50, 4, 64)).astype(BF16)
    k, v = rng.standard_normal((2, 2, 70, 2, 64)).astype(BF16)
    there = [device.array(y) for y in (q, k, v)]
    out, lse = attention(*there, causal=True, precision="bf16", return_lse=True)
    made = attention_backward(device.array(dout), *there, out, lse, causal=True)
    assert all(isinstance(y, pysm120.Array) and y.dtype == BF16 for y in made)
    x = inputs((y.swapaxes(1, 2) for y in (q, k, v, dout)), 0.125, seen_keys(50, 70, "bottom-right"))
    got = Gradients(*(wide(y.numpy()).swapaxes(1, 2) for y in made))
    delta = delta_of(x, out.numpy().swapaxes(1, 2))
    judge(got, gradients(x), x, lse.numpy(), delta, "bfloat16")
    on_host = attention_backward(dout, q, k, v, out.numpy(), lse.numpy(), causal=True, precision="bf16", device=device)
    for mine, other in zip(on_host, made, strict=True):
        np.testing.assert_array_equal(mine, other.numpy())


@pytest.mark.parametrize("member", ["lse", "dlse", "delta"])
def test_device_arrays_of_a_row_are_contiguous_float32(
    device: pysm120.Device, rng: np.random.Generator, member: str
) -> None:
    x, o, lse = ready(rng, Case(1, 2, 2, 40, 40, 64))
    arrays = [device.array(y) for y in (x.dout, x.q, x.k, x.v, o)]
    for y, kind, message in (
        (device.array(lse.astype(np.float16)), TypeError, "has dtype float16"),
        (device.array(np.repeat(lse, 2, 2))[:, :, ::2], ValueError, r"has strides .* must be contiguous"),
    ):
        options: dict[str, Any] = {"lse": device.array(lse), member: y}
        with pytest.raises(kind, match=f"{member} {message}"):
            attention_backward(*arrays, **options, layout="BHSD")


@pytest.mark.parametrize("axis", ["batch", "row", "head"])
def test_more_than_2_31_elements(device: pysm120.Device, rng: np.random.Generator, axis: str) -> None:
    """Tensors whose elements lie further apart than 32 bits count; what is between them is never touched."""
    x, o, lse = ready(rng, Case(2, 4, 2, 40, 40, 64, "bottom-right"))
    far = {"batch": 1 << 31, "row": 1 << 26, "head": (1 << 30) + (1 << 13)}[axis]
    base = device.empty(((1 << 32) + (1 << 20),), BF16)
    places: list[pysm120.Array] = []
    arrays = [x.dout, x.q, x.k, x.v, o.astype(BF16), *(np.zeros_like(y) for y in (x.q, x.k, x.v))]
    for n, y in enumerate(arrays):
        near = [64 * 40 * y.shape[1], 64 * 40, 64]  # batch, head, row
        near[("batch", "head", "row").index(axis)] = far
        if axis == "head":
            near[0], near[2] = 64 * 64, 64
        if axis == "row":
            near[0], near[1] = 64 * y.shape[1], 64
        places.append(pysm120.Array(base.owner, base.address + 2 * (n << 15), y.shape, (*near, 1), y.dtype))
        for at in np.ndindex(y.shape[:1] if axis == "batch" else y.shape[:3]):
            places[-1][at].copy_from(y[at])
    attention_backward(
        *places[:5],
        device.array(lse),
        causal=True,
        layout="BHSD",
        scale=x.scale,
        dq=places[5],
        dk=places[6],
        dv=places[7],
    )
    options = {member: np.zeros_like(y) for member, y in (("dq", x.q), ("dk", x.k), ("dv", x.v))}
    wanted = backward(x, o.astype(BF16), lse, device, causal=True, **options)
    for place, y in zip(places[5:], wanted, strict=True):
        for at in np.ndindex(y.shape[:3]):
            assert np.array_equal(place[at].numpy(), y[at]), at


# ---- lse, delta, accumulation ----------------------------------------------------


@pytest.mark.parametrize("case", [Case(2, 4, 2, 70, 90, 64, "bottom-right"), Case(1, 2, 1, 90, 40, 33)], ids=name)
def test_a_loss_of_lse(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """dlse changes the gradients as the definition says, and delta with dlse in it gives the same."""
    x, o, lse = ready(rng, case)
    dlse = (3 * rng.standard_normal(lse.shape)).astype(np.float32)
    exact, delta = gradients(x, dlse), delta_of(x, o, dlse)
    assert norm(exact.dk - gradients(x).dk) > 0.1 * norm(exact.dk)
    judge(run(opened, case, x, o, lse, dlse=dlse), exact, x, lse, delta)
    noise = np.full_like(o, np.nan)  # O is not read
    judge(run(opened, case, x, noise, lse, delta=delta), exact, x, lse, delta)


def test_delta_of_any_values(opened: OpenDevice, rng: np.random.Generator) -> None:
    """Whatever lse and delta are, the formulas hold; a row whose LSE is -inf has no gradient."""
    case = Case(1, 4, 2, 70, 90, 64, "bottom-right")
    x, o, lse = ready(rng, case)
    lse = (lse + rng.standard_normal(lse.shape)).astype(np.float32)
    delta = rng.standard_normal(lse.shape).astype(np.float32)
    lse[:, 1, 7] = -np.inf
    got = run(opened, case, x, o, lse, delta=delta)
    judge(got, given(x, lse, delta), x, lse, delta)
    assert not got.dq[:, 1, 7].any()


@pytest.mark.parametrize("causal", [None, "bottom-right"])
def test_keys_in_two_parts(device: pysm120.Device, rng: np.random.Generator, causal: str | None) -> None:
    """As in a ring: each part of the keys with O and LSE of all of them; dk and dv side by side, dq added up."""
    case = Case(2, 4, 2, 100, 150, 64, causal)
    x, o, lse = ready(rng, case)
    whole = backward(x, o, lse, device, causal=causal is not None)
    split, diagonal = 64, case.kv_rows - case.q_rows
    parts, dq = [], np.zeros(x.q.shape, np.float32)
    for keys in (slice(0, split), slice(split, case.kv_rows)):
        part = x._replace(k=x.k[:, :, keys].copy(), v=x.v[:, :, keys].copy())
        # causal, as a window: row i sees the keys up to i + diagonal - keys.start of this part
        reach = diagonal - keys.start - (part.k.shape[2] - case.q_rows)
        window = (None, None if causal is None else reach)
        if causal is not None and reach < 0:
            rows = slice(-reach, None)  # a window reaches no less than 0: rows before these see none of the keys
            part = part._replace(q=part.q[:, :, rows].copy(), dout=part.dout[:, :, rows].copy())
            window = (None, 0)
            own = (o[:, :, rows].copy(), lse[:, :, rows].copy())
            found = backward(part, *own, device, causal_align="top-left", window=window)
            dq[:, :, rows] += found.dq
        else:
            found = backward(part, o, lse, device, window=window)
            dq += found.dq
        parts.append(found)
    for member in ("dk", "dv"):
        joined = np.concatenate([getattr(part, member) for part in parts], 2)
        assert norm(joined - getattr(whole, member)) <= 1e-6 * norm(joined)
    assert norm(dq - whole.dq) <= 1e-6 * norm(dq)


@pytest.mark.parametrize("case", [Case(1, 4, 2, 150, 60, 64), Case(2, 2, 1, 70, 200, 100, "top-left")], ids=name)
def test_accumulation_adds_once(device: pysm120.Device, rng: np.random.Generator, case: Case) -> None:
    """The float32 sum of what was there and what a call without it gives; rows and keys without a part stay."""
    x, o, lse = ready(rng, case)
    options: dict[str, Any] = {"causal": case.causal is not None, "causal_align": case.causal or "top-left"}
    alone = backward(x, o, lse, device, **options)
    before = Gradients(*(rng.standard_normal(y.shape).astype(np.float32) for y in alone))
    there = before._asdict()
    for times in (1, 2):
        wanted = Gradients(*(there[member] + y for member, y in alone._asdict().items()))
        given_arrays = {member: y.copy() for member, y in there.items()}
        got = backward(x, o, lse, device, accumulate=True, **given_arrays, **options)
        for member in Gradients._fields:
            assert getattr(got, member) is given_arrays[member]
        np.testing.assert_array_equal(got.dk, wanted.dk)
        np.testing.assert_array_equal(got.dv, wanted.dv)
        np.testing.assert_allclose(got.dq, wanted.dq, atol=0 if case.kv_rows <= 64 else 1e-5)
        there = got._asdict()
        assert times == 1 or not np.array_equal(got.dv, before.dv)


def test_each_result_has_its_own_dtype(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A result of 16 bits is that in float32, rounded."""
    x, o, lse = ready(rng, Case(1, 2, 1, 70, 60, 64))
    exact = backward(x, o, lse, device)._asdict()
    for kinds in itertools.permutations(DTYPES.values()):
        results = {n: np.full(y.shape, np.nan, kind) for (n, y), kind in zip(exact.items(), kinds, strict=True)}
        backward(x, o, lse, device, **results)
        for member, got in results.items():
            np.testing.assert_array_equal(got, exact[member].astype(got.dtype))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_reach_what_meets_them(opened: OpenDevice, rng: np.random.Generator, poison: float) -> None:
    """A NaN or Inf in a row of dout spoils that row of dq, and of dk and dv what the row sees."""
    case = Case(1, 2, 2, 40, 96, 64, "bottom-right")
    x, o, lse = ready(rng, case)
    x.dout[0, 0, 7, 3] = poison
    got = run(opened, case, x, o, lse)
    rows = np.zeros((2, 40), bool)
    rows[0, 7] = True
    assert np.array_equal(~np.isfinite(got.dq[0]).all(-1), rows)
    assert np.isfinite(got.dk[0, 1]).all()
    assert np.isfinite(got.dv[0, 1]).all()
    column = np.zeros(64, bool)
    column[3] = True
    assert np.array_equal(~np.isfinite(got.dv[0, 0, : 7 + 57]), np.tile(column, (64, 1)))


def test_the_example_of_the_reference_page(device_name: str) -> None:
    """It runs, and prints what its comment says."""
    text = (ROOT / "docs" / "reference" / "attention_backward.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "PYSM120_DEVICE": device_name}
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == re.findall(r"  # (.*)$", example, re.MULTILINE)


# ---- the same bits, in any order -------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_two_launches(opened: OpenDevice, rng: np.random.Generator, head_dim: int) -> None:
    """dk and dv are the same bits; dq is within the rounding of its sum."""
    case = Case(2, 4, 2, 150, 300, head_dim, "bottom-right")
    x, o, lse = ready(rng, case)
    first, second = (run(opened, case, x, o, lse) for _ in range(2))
    np.testing.assert_array_equal(first.dk, second.dk)
    np.testing.assert_array_equal(first.dv, second.dv)
    assert norm(first.dq - second.dq) <= 1e-6 * norm(first.dq)


@pytest.mark.sampled(2)
@pytest.mark.virtual
@pytest.mark.parametrize(
    "case",
    [
        *(Case(1, 2, 1, 70, 140, d, "bottom-right", dtype) for d in HEAD_SIZES for dtype in PRECISION),
        Case(2, 2, 2, 130, 50, 33, "top-left", v_head_dim=20, out_dtype="bfloat16", o_dtype="bfloat16"),
    ],
    ids=name,
)
def test_every_order_of_ctas(rng: np.random.Generator, case: Case) -> None:
    """All checks of the virtual device, races and undefined values among them, and the same dk and dv for each seed."""
    x, o, lse = ready(rng, case)
    o = o.astype(DTYPES[case.o_dtype])
    found = []
    for seed in (1, 2, 3):
        ordered = OpenDevice(f"virtual:0?checks=full&seed={seed}")
        try:
            found.append(run(ordered, case, x, o, lse))
        finally:
            ordered.close()
    judge(found[0], gradients(x), x, lse, delta_of(x, o), case.out_dtype)
    for other in found[1:]:
        np.testing.assert_array_equal(other.dk, found[0].dk)
        np.testing.assert_array_equal(other.dv, found[0].dv)
        assert norm(other.dq - found[0].dq) <= 1e-6 * norm(found[0].dq)


# ---- the workspace ---------------------------------------------------------------


def rounded(x: int) -> int:
    """Round up to the alignment of an area."""
    return -(-x // 256) * 256


def workspace_of(case: Case, copied: tuple[int, ...] = ()) -> int:
    """The formula of docs/reference/attention_backward.md on SM120; `copied` are rows * heads * head size of copies."""
    width = next(d for d in TILES if d >= max(case.head_dim, case.width))
    tiles = case.batch * case.heads * -(-case.q_rows // TILES[width][0])
    rows = tiles * TILES[width][0]
    return sum(rounded(2 * case.batch * n) for n in copied) + rounded(8 * rows + 16 * tiles) + rounded(4 * rows * width)


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("case", "copied"),
    [
        *((Case(1, 2, 1, 65, 70, d), ()) for d in HEAD_SIZES),
        (Case(3, 5, 1, 1, 1, 8), ()),
        (Case(2, 4, 2, 33, 70, 100), (4 * 33 * 104, 2 * 70 * 104, 2 * 70 * 104, 4 * 33 * 104)),
        (Case(2, 4, 2, 33, 70, 64, v_head_dim=129), (2 * 70 * 136, 4 * 33 * 136)),
    ],
)
def test_size_of_the_workspace(opened: OpenDevice, case: Case, copied: tuple[int, ...]) -> None:
    """It is what the reference page says, and addresses do not matter for it."""
    args, size = arguments(case), ffi.new("size_t *")
    shapes = [(case.heads, case.q_rows, case.head_dim), (case.kv_heads, case.kv_rows, case.head_dim)]
    shapes += [(case.kv_heads, case.kv_rows, case.width), (case.heads, case.q_rows, case.width)]
    tensors = (args.q, args.k, args.v, args.dout, args.o, args.dq, args.dk, args.dv)
    for struct, n in zip(tensors, (0, 1, 2, 3, 3, 0, 1, 2), strict=True):
        heads, rows, head_dim = shapes[n]
        pitch = rounded(head_dim) if head_dim % 8 == 0 else head_dim
        struct.address, struct.dtype = 1 << 20, lib.SM120_BF16
        struct.batch_stride, struct.head_stride, struct.row_stride = heads * rows * pitch, rows * pitch, pitch
    args.lse = 1 << 20
    check(lib.sm120_attention_backward(opened.handle, args, 0, size))
    assert size[0] == workspace_of(case, copied)


def test_workspaces_that_do_not_do(opened: OpenDevice, device: pysm120.Device, rng: np.random.Generator) -> None:
    args, size = new_struct("sm120_attention_backward_args"), ffi.new("size_t *")

    def says(status: str, words: str, workspace: int, count: Any) -> None:
        assert lib.sm120_attention_backward(opened.handle, args, workspace, count) == getattr(lib, f"SM120_{status}")
        assert words in ffi.string(lib.sm120_last_error()).decode()

    memory = Buffer(opened, (9 * PART,), np.uint8, None, np.zeros(9 * PART, np.uint8))
    try:
        fill(args, memory.address)
        says("INVALID_ARGUMENT", "workspace_bytes", 0, ffi.NULL)
        says("INVALID_ARGUMENT", "workspace_bytes", memory.address, ffi.NULL)
        check(lib.sm120_attention_backward(opened.handle, args, 0, size))
        room = Buffer(opened, (int(size[0]) + 8,), np.uint8)
        size[0] -= 1
        says("WORKSPACE_TOO_SMALL", f"*workspace_bytes = {size[0]}; this call needs {size[0] + 1}", room.address, size)
        size[0] += 1
        says("MISALIGNED", "workspace", room.address + 8, size)
        says("INVALID_ARGUMENT", "overlap", memory.address, size)
    finally:
        opened.release()
    x, o, lse = ready(rng, Case(1, 1, 1, 40, 40, 64))
    there = [device.array(y) for y in (x.dout, x.q, x.k, x.v, o, lse)]
    with pytest.raises(pysm120.WorkspaceTooSmallError, match="this call needs"):
        attention_backward(*there, layout="BHSD", workspace=device.empty(256, np.uint8))
