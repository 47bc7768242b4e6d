"""Tensor copies by random tensor maps: loads, stores and reductions of boxes that are inside, across and outside.

What an H200 refuses is left out: an innermost coordinate that is no multiple of 16 bytes, coordinates below 0 of a
store, and reductions that its data types lack.
"""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
from form import THREADS, Form, Map
from forms_memory import bounded_wait

ROOM = 16 * THREADS  # of shared memory, and of what a CTA shows of it
SIZES = {
    "UINT8": 1, "UINT16": 2, "UINT32": 4, "INT32": 4, "UINT64": 8, "INT64": 8, "FLOAT16": 2, "FLOAT32": 4,
    "FLOAT64": 8, "BFLOAT16": 2, "FLOAT32_FTZ": 4, "TFLOAT32": 4, "TFLOAT32_FTZ": 4,
}  # fmt: skip
SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
RNG = np.random.default_rng(21)


def up(x: int, to: int) -> int:
    return -(-x // to) * to


def pick(least: int, end: int) -> int:
    return int(RNG.integers(least, max(end, least + 1)))


def random_counts(rank: int, swizzle: str) -> tuple[int, list[int]]:
    """Choose the bytes of a row and how many rows there are along each dimension, so that all fit in shared memory."""
    widest = SPANS[swizzle] or 256
    inner = 16 * pick(1, widest // 16 + 1) if RNG.integers(3) == 0 else widest
    rows, counts = ROOM // max(inner, SPANS[swizzle]), []
    for _ in range(rank - 1):
        counts.append(pick(1, min(rows, 9) + 1))
        rows //= counts[-1]
    return inner, counts


def random_map(operand: str, data_type: str, rank: int, swizzle: str, room: int) -> tuple[Map, int]:
    """Make a map on `room` bytes; return the bytes of its box, too."""
    size = SIZES[data_type]
    inner, counts = random_counts(rank, swizzle)
    steps = [1, *(pick(1, 9) if RNG.integers(3) == 0 else 1 for _ in counts)]
    box = [inner // size, *(min(256, n * s - pick(0, s)) for n, s in zip(counts, steps[1:], strict=True))]
    dims = [pick(max(1, box[0] // 2), 2 * box[0] + 2), *(pick(max(1, b // 2), 2 * b + 2) for b in box[1:])]
    while True:
        strides, step = [], up(dims[0] * size, 16) + 16 * pick(0, 2)
        for n in dims[1:]:
            strides.append(step)
            step *= n
        if step <= room:
            break
        k = pick(0, rank)
        dims[k] = max(1, dims[k] - dims[k] // 3 - 1)
    fill = "nan" if "FLOAT" in data_type and RNG.integers(2) else "zero"
    made = Map(operand, data_type, tuple(dims), tuple(strides), tuple(box), tuple(steps), swizzle, fill)
    return made, inner * math.prod(counts)


def coordinates(made: Map, *, is_load: bool) -> list[int]:
    """Choose where a box begins."""
    whole = 16 // SIZES[made.data_type]
    at = [pick(1 - b if is_load else 0, n + 1) for b, n in zip(made.box, made.dims, strict=True)]
    return [at[0] // whole * whole, *at[1:]]


def place(at: list[int], other: list[int]) -> str:
    """Write the code that sets t0, t1, ... to the coordinates of CTA 0 or 1."""
    lines = ["mov.u32 t8, %ctaid.x;"]
    lines += [f"mad.lo.s32 t{k}, t8, {y - x}, {x};" for k, (x, y) in enumerate(zip(at, other, strict=True))]
    return " ".join(lines)


def operand(rank: int) -> str:
    return "[map0, {" + ", ".join(f"t{k}" for k in range(rank)) + "}]"


def loads() -> Iterator[Form]:
    barrier = f"[smem + {ROOM}]"
    for data_type, swizzle, rank in product(SIZES, SPANS, range(1, 6)):
        if (len(data_type) + len(swizzle) + rank) % 2:
            continue
        made, nbytes = random_map("in0", data_type, rank, swizzle, 32 * THREADS)
        at, other = (coordinates(made, is_load=True) for _ in range(2))
        text = f"""mov.b32 t0, 0xa5a5a5a5; st.shared.v4.b32 [cell], {{t0, t0, t0, t0}};
        setp.eq.u32 r, i, 0; @r mbarrier.init.shared.b64 {barrier}, 1; fence.proxy.async; bar.sync 0;
        {place(at, other)} @r mbarrier.arrive.expect_tx.shared.b64 _, {barrier}, {nbytes};
        @r cp.async.bulk.tensor.{rank}d.shared::cta.global.mbarrier::complete_tx::bytes [smem], {operand(rank)}, {barrier};
        {bounded_wait("0").replace("[smem + 2048]", barrier)} mbarrier.test_wait.parity.shared.b64 out1, {barrier}, 0;
        ld.shared.v4.b32 {{t0, t1, t2, t3}}, [cell]; st.global.v4.b32 [at_out0], {{t0, t1, t2, t3}};"""
        yield Form(text, ("m:ramp",), ("m", "p"), 2 * THREADS, ROOM + 8, "", (made,))


def stores() -> Iterator[Form]:
    for data_type, swizzle in product(SIZES, SPANS):
        rank = pick(1, 6)
        made, _ = random_map("out0", data_type, rank, swizzle, 32 * THREADS)
        at = coordinates(made, is_load=False)
        text = f"""ld.global.v4.b32 {{t0, t1, t2, t3}}, [at_in0]; st.shared.v4.b32 [cell], {{t0, t1, t2, t3}};
        setp.eq.u32 r, n, 0; fence.proxy.async; bar.sync 0; {place(at, at)}
        @r cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group {operand(rank)}, [smem];
        @r cp.async.bulk.commit_group; @r cp.async.bulk.wait_group 0;"""
        yield Form(text, ("m:ramp",), ("m",), 2 * THREADS, ROOM, "", (made,))


def reductions() -> Iterator[Form]:
    integers = ("UINT32", "INT32", "UINT64", "INT64")
    pairs = [("add", t) for t in (*integers[:3], "FLOAT16", "BFLOAT16", "FLOAT32", "FLOAT64", "FLOAT32_FTZ")]
    pairs += [("add", "TFLOAT32"), ("add", "TFLOAT32_FTZ"), ("inc", "UINT32"), ("dec", "UINT32")]
    pairs += [(op, t) for op in ("min", "max") for t in (*integers, "FLOAT16", "BFLOAT16")]
    pairs += [(op, t) for op in ("and", "or", "xor") for t in integers[:3]]
    for (op, data_type), swizzle in product(pairs, ("none", "128B")):
        size = SIZES[data_type]
        halves = {"FLOAT16": "f16x2", "BFLOAT16": "bf16x2"}
        kind = halves.get(data_type, f"{'f' if 'FLOAT' in data_type else 'u'}{8 * size}")
        count = 16 // max(size, 4)
        move = f"v{count}." + ("b32" if kind.endswith("x2") else kind if kind[0] == "f" else f"b{8 * size}")
        old, new = (", ".join(f"in{k + x * count}" for k in range(count)) for x in (0, 1))
        rank = pick(1, 6)
        made, _ = random_map("out0", data_type, rank, swizzle, ROOM)
        at = coordinates(made, is_load=False)
        text = f"""st.shared.{move} [cell], {{{new}}}; st.global.{move} [at_out0], {{{old}}};
        setp.eq.u32 r, i, 0; fence.proxy.async; bar.sync 0; {place(at, at)}
        @r cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}.bulk_group {operand(rank)}, [smem];
        @r cp.async.bulk.commit_group; @r cp.async.bulk.wait_group 0;"""
        yield Form(text, (kind,) * 2 * count, ("m",), THREADS, ROOM, "", (made,))


FORMS = (*loads(), *stores(), *reductions())
