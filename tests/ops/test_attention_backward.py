"""sm120_attention_backward: the row of the operation, its float64 reference, its workspace."""

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
from backward_cases import PRECISION, TILES, Case, padded, ready, workspace_bytes
from backward_reference import Array, delta_of, forward, given, gradients, inputs, loss, seen_keys
from harness import DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct
from kernels import Recorded
from operations import ROOT, Operation, Wrong

import pysm120

BATCH, HEADS, KV_HEADS, Q_ROWS, KV_ROWS, D = 2, 4, 2, 5, 7, 24
PART = 1 << 14
BF16 = DTYPES["bfloat16"]
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
    for dtype in PRECISION:  # 86 tiles of 96 keys are one wave on 170 multiprocessors
        q, k = (np.ones((1, rows, 86, 128), DTYPES[dtype]) for rows in (1, 96))
        lse = np.zeros((1, 86, 1), np.float32)
        attention_backward(q, q, k, k, q, lse, device=device)
    for dtype, head_dim in itertools.product(DTYPES, (64, 96, 128)):
        x, lse = np.ones((1, 3, 1, head_dim), DTYPES[dtype]), np.zeros((1, 1, 3), np.float32)
        for deterministic in (False, True):
            attention_backward(x, x, x, x, x, lse, precision="mxfp8", deterministic=deterministic, device=device)
        attention_backward(x, x, x, x, x, lse, precision="mxfp8", softcap=3.0, device=device)
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

            # No Hopper launches the kernels with tiles of 96 keys.
            kernels = rf"attention_backward_{precision}_(?!64x96)\d\w*|attention_backward_delta_{precision}|"
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
    "precision": (ValueError, "precision is 'fp7'", right(precision="fp7")),
    "head size in MXFP8": (
        ValueError,
        "q has head size 129, above 128, the most of gradients in precision 'mxfp8'",
        right(q=ones(2, 5, 4, 129), k=ones(2, 7, 2, 129), precision="mxfp8"),
    ),
    "head size of v in MXFP8": (
        ValueError,
        "v has head size 136, above 128, the most of gradients in precision 'mxfp8'",
        right(v=ones(2, 7, 2, 136), out=ones(2, 5, 4, 136), dout=ones(2, 5, 4, 136), precision="mxfp8"),
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


# ---- the reference page ----------------------------------------------------------


def test_the_example_of_the_reference_page(device_name: str) -> None:
    """It runs, and prints what its comment says."""
    text = (ROOT / "docs" / "reference" / "attention_backward.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "PYSM120_DEVICE": device_name}
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == re.findall(r"  # (.*)$", example, re.MULTILINE)


# ---- the workspace ---------------------------------------------------------------


def workspace_of(case: Case, copied: tuple[int, ...] = ()) -> int:
    """The formula of docs/reference/attention_backward.md on SM120; `copied` are rows * heads * head size of copies."""
    width = next(d for d in TILES if d >= max(case.head_dim, case.width))
    tiles = case.batch * case.heads * -(-case.q_rows // TILES[width][0])
    rows = tiles * TILES[width][0]
    return sum(padded(2 * case.batch * n) for n in copied) + padded(8 * rows + 16 * tiles) + padded(4 * rows * width)


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
    assert workspace_bytes(opened, case) == workspace_of(case, copied)


def test_workspaces_that_do_not_do(opened: OpenDevice, device: pysm120.Device, rng: np.random.Generator) -> None:
    args, size = new_struct("sm120_attention_backward_args"), ffi.new("size_t *")

    def says(status: str, words: str, workspace: int, count: int) -> None:
        assert lib.sm120_attention_backward(opened.handle, args, workspace, count) == getattr(lib, f"SM120_{status}")
        assert words in ffi.string(lib.sm120_last_error()).decode()

    memory = Buffer(opened, (9 * PART,), np.uint8, None, np.zeros(9 * PART, np.uint8))
    try:
        fill(args, memory.address)
        check(lib.sm120_attention_backward_workspace(opened.handle, args, size))
        room = Buffer(opened, (int(size[0]) + 8,), np.uint8)
        needed = int(size[0])
        says(
            "WORKSPACE_TOO_SMALL", f"workspace_bytes = {needed - 1}; this call needs {needed}", room.address, needed - 1
        )
        says("MISALIGNED", "workspace", room.address + 8, needed)
        says("INVALID_ARGUMENT", "overlap", memory.address, needed)
    finally:
        opened.release()
    x, o, lse = ready(rng, Case(1, 1, 1, 40, 40, 64))
    there = [device.array(y) for y in (x.dout, x.q, x.k, x.v, o, lse)]
    with pytest.raises(pysm120.WorkspaceTooSmallError, match="this call needs"):
        attention_backward(*there, layout="BHSD", workspace=device.empty(256, np.uint8))
