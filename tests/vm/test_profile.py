"""Profiles: bank conflicts, sectors, branches and bytes by statement, against known counts and a model in NumPy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from micro import HEAD

import pysm120
from pysm120.observe.profile import Counts, Profile, Statement

pytestmark = pytest.mark.virtual

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
SHARED_BYTES = 16384
WARP = 32

# One access by each lane at the offset that it is given, where its flag is set. {0} is the access.
ACCESS = (
    HEAD
    + """
.visible .entry access(.param .u64 param_offsets, .param .u64 param_flags, .param .u64 param_global)
{{
    .reg .pred p;
    .reg .b16 h;
    .reg .b32 t<8>, lane, flag, at, base;
    .reg .b64 w<4>, pointer, global, offset;
    .shared .align 1024 .b8 block[16384];
    mov.u32 lane, %tid.x;
    ld.param.u64 pointer, [param_offsets];
    mad.wide.u32 pointer, lane, 4, pointer;
    ld.global.b32 at, [pointer];
    ld.param.u64 pointer, [param_flags];
    mad.wide.u32 pointer, lane, 4, pointer;
    ld.global.b32 flag, [pointer];
    setp.ne.u32 p, flag, 0;
    ld.param.u64 global, [param_global];
    cvt.u64.u32 offset, at;
    add.u64 global, global, offset;
    mov.u32 base, block;
    add.u32 at, at, base;
    {0}
    ret;
}}
"""
)


def statement(p: Profile, word: str) -> Statement:
    """Return the one statement whose text holds a word."""
    (found,) = (s for s in p.statements if word in s.text)
    return found


def measure(device: pysm120.Device, text: str, offsets: Ints, flags: Flags | None = None) -> Counts:
    """Run an access of one warp; what it cost."""
    memory = device.zeros(SHARED_BYTES + 64, np.uint8)
    taking = np.ones(WARP, np.uint32) if flags is None else flags.astype(np.uint32)
    module = device.load(ACCESS.format(f"{text} // it"))
    with device.profile() as p:
        module["access"](1, WARP, device.array(offsets.astype(np.uint32)), device.array(taking), memory)
    return statement(p, text.split(",", maxsplit=1)[0]).counts


# ---- the model ------------------------------------------------------------------


def wavefronts(addresses: Ints, active: Flags, size: int, kind: str) -> tuple[int, int]:
    """Return the wavefronts of an access of shared memory, and how many there would be without conflicts."""
    together = WARP if size <= 4 else 128 // size
    if kind == "load" and size > 4:
        lanes = np.arange(WARP)
        for distance in (1, 2):
            other = lanes ^ distance
            agree = (addresses == addresses[other]) | ~active | ~active[other]
            if agree.all():
                together *= 2
                break
    words = addresses[:, None] // 4 + np.arange(max(1, size // 4))
    actual = ideal = 0
    for start in range(0, WARP, together):
        chosen = words[start : start + together][active[start : start + together]].reshape(-1)
        if chosen.size:
            wanted = chosen if kind == "atomic" else np.unique(chosen)
            actual += int(np.bincount(wanted % 32).max())
            ideal += 1
    return actual, ideal


def sectors(addresses: Ints, active: Flags, size: int) -> tuple[int, int, int, int]:
    """Return sectors and lines that an access of global memory touches, each with the least possible."""
    touched = np.unique(addresses[active][:, None] + np.arange(size))
    counts = []
    for unit in (32, 128):
        counts += [len(np.unique(touched // unit)), -(-len(touched) // unit)]
    return counts[0], counts[1], counts[2], counts[3]


def passes(addresses: Ints, active: Flags, size: int, kind: str) -> int:
    """Return the passes over the data of L1: each has a word from every bank, and at most four lines."""
    if kind != "load":
        return 0
    together = WARP * 4 // max(4, size)
    if size > 4 and by_pairs(addresses, active):
        together *= 2
    count = 0
    for start in range(0, WARP, together):
        chosen = addresses[start : start + together][active[start : start + together]]
        if chosen.size:
            words = np.unique(chosen[:, None] // 4 + np.arange(max(1, size // 4)))
            count += max(int(np.bincount(words % 32).max()), -(-len(np.unique(chosen // 128)) // 4))
    return count


def by_pairs(offsets: Ints, flags: Flags) -> bool:
    """Whether all active lanes agree with their partners, lane ^ 1 or lane ^ 2, where these are active."""
    lanes = np.arange(WARP)
    return any((offsets == offsets[lanes ^ d])[flags & flags[lanes ^ d]].all() for d in (1, 2))


def random_offsets(rng: np.random.Generator, size: int) -> Ints:
    """Return offsets of 32 lanes in one of several patterns."""
    slots = SHARED_BYTES // size
    patterns: list[Callable[[], Any]] = [
        lambda: rng.integers(0, slots, WARP),
        lambda: rng.integers(0, 40, WARP),
        lambda: rng.choice(rng.integers(0, slots, 3), WARP),
        lambda: np.arange(WARP) * rng.integers(0, 40) + rng.integers(0, 40),
        lambda: np.arange(WARP) // 2 * rng.integers(0, 40),
        lambda: (np.arange(WARP) & ~2) * rng.integers(0, 40),
        lambda: rng.permutation(WARP) + rng.integers(0, 40),
        lambda: np.arange(WARP) * (128 // size) % slots,
    ]
    pattern = patterns[rng.integers(len(patterns))]()
    return np.asarray(pattern, np.int64) % slots * size


def random_flags(rng: np.random.Generator) -> Flags:
    """Return which lanes take part: all, some, or few."""
    return np.asarray(rng.random(WARP) < rng.choice([1.0, 0.7, 0.1]))


SHARED = {
    "ld.shared.u8 t0": (1, "load"),
    "ld.shared.u16 h": (2, "load"),
    "ld.shared.b32 t0": (4, "load"),
    "ld.shared.b64 w0": (8, "load"),
    "ld.shared.v2.b32 {t0, t1}": (8, "load"),
    "ld.shared.v4.b32 {t0, t1, t2, t3}": (16, "load"),
    "ld.shared.v2.b64 {w0, w1}": (16, "load"),
    "ld.volatile.shared.b32 t0": (4, "load"),
    "ld.relaxed.gpu.shared.b64 w0": (8, "load"),
    "st.shared.u8": (1, "store"),
    "st.shared.b32": (4, "store"),
    "st.shared.b64": (8, "store"),
    "st.shared.v4.b32": (16, "store"),
    "atom.shared.add.u32 t0": (4, "atomic"),
    "red.shared.add.u64": (8, "atomic"),
}
STORED = {"st.shared.u8": "t0", "st.shared.b32": "t0", "st.shared.b64": "w0", "st.shared.v4.b32": "{t0, t1, t2, t3}",
          "red.shared.add.u64": "w0"}  # fmt: skip


def shared_text(name: str) -> str:
    """Return the statement of a row of SHARED."""
    if name in STORED:
        return f"@p {name} [at], {STORED[name]};"
    return f"@p {name}, [at]{', 1' if name.startswith('atom') else ''};"


@pytest.mark.parametrize("name", SHARED)
def test_banks_as_the_model_has_them(device: pysm120.Device, rng: np.random.Generator, name: str) -> None:
    size, kind = SHARED[name]
    for _ in range(25):
        offsets, flags = random_offsets(rng, size), random_flags(rng)
        got = measure(device, shared_text(name), offsets, flags)
        actual, ideal = wavefronts(offsets, flags, size, kind)
        where = f"offsets {offsets.tolist()}, lanes {np.flatnonzero(flags).tolist()}"
        assert (got.shared_wavefronts, got.shared_ideal_wavefronts) == (actual, ideal), where
        assert got.shared_accesses == int(flags.any())
        assert got.shared_paired_accesses == int(kind == "load" and bool(flags.any()) and by_pairs(offsets, flags)), (
            where
        )
        assert got.global_accesses == 0
        assert (got.executed, got.lanes, got.predicated_off) == (1, flags.sum(), WARP - flags.sum())
        assert sum(got.bytes.values()) == flags.sum() * size


GLOBAL = {
    "ld.global.u8 t0": 1,
    "ld.global.b32 t0": 4,
    "ld.global.b64 w0": 8,
    "ld.global.v4.b32 {t0, t1, t2, t3}": 16,
    "ld.acquire.gpu.global.b32 t0": 4,
    "ld.volatile.global.v2.b64 {w0, w1}": 16,
    "ld.global.v8.b32 {t0, t1, t2, t3, t4, t5, t6, t7}": 32,
    "st.global.b32": 4,
    "st.global.v2.b64": 16,
    "atom.global.add.u32 t0": 4,
}


@pytest.mark.parametrize("name", GLOBAL)
def test_sectors_as_the_model_has_them(device: pysm120.Device, rng: np.random.Generator, name: str) -> None:
    size = GLOBAL[name]
    text = f"@p {name}, [global]{', 1' if name.startswith('atom') else ''};"
    if name.startswith("st"):
        text = f"@p {name} [global], {'t0' if size == 4 else '{w0, w1}'};"
    for _ in range(25):
        offsets, flags = random_offsets(rng, size), random_flags(rng)
        got = measure(device, text, offsets, flags)
        # the array begins at a multiple of 256
        wanted = sectors(offsets, flags, size) if flags.any() else (0, 0, 0, 0)
        found = (got.global_sectors, got.global_ideal_sectors, got.global_lines, got.global_ideal_lines)
        assert found == wanted, f"offsets {offsets.tolist()}, lanes {np.flatnonzero(flags).tolist()}"
        assert got.global_accesses == int(flags.any())
        assert got.shared_accesses == 0
        kind = {"l": "load", "s": "store", "a": "atomic"}[name[0]]
        assert got.global_wavefronts == passes(offsets, flags, size, kind), found


@pytest.mark.parametrize(
    ("text", "rows"),
    [("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {t0}, [at];", 8),
     ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {t0, t1, t2, t3}, [at];", 32),
     ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {t0, t1}, [at];", 16),
     ("stmatrix.sync.aligned.m8n8.x2.shared.b16 [at], {t0, t1};", 16)],
)  # fmt: skip
def test_matrices_as_the_model_has_them(device: pysm120.Device, rng: np.random.Generator, text: str, rows: int) -> None:
    used = np.arange(WARP) < rows
    for _ in range(25):
        offsets = random_offsets(rng, 16)
        got = measure(device, text, offsets)
        assert (got.shared_wavefronts, got.shared_ideal_wavefronts) == wavefronts(offsets, used, 16, "matrix")
        assert got.shared_ideal_wavefronts == rows // 8
        assert sum(got.bytes.values()) == rows * 16


# ---- known counts ---------------------------------------------------------------

LANE = np.arange(WARP)


@pytest.mark.parametrize(
    ("text", "offsets", "wanted"),
    [
        ("ld.shared.b32 t0, [at];", 4 * LANE, 1),
        ("ld.shared.b32 t0, [at];", 8 * LANE, 2),
        ("ld.shared.b32 t0, [at];", 12 * LANE, 1),
        ("ld.shared.b32 t0, [at];", 128 * LANE, 32),
        ("ld.shared.b32 t0, [at];", 0 * LANE, 1),
        ("ld.shared.b32 t0, [at];", 132 * LANE, 1),
        ("ld.shared.u8 t0, [at];", LANE, 1),
        ("ld.shared.b64 w0, [at];", 8 * LANE, 2),
        ("ld.shared.b64 w0, [at];", 16 * LANE, 4),
        ("ld.shared.b64 w0, [at];", 8 * (LANE // 2), 1),
        ("ld.shared.b64 w0, [at];", 0 * LANE, 1),
        ("ld.shared.v4.b32 {t0, t1, t2, t3}, [at];", 16 * LANE, 4),
        ("ld.shared.v4.b32 {t0, t1, t2, t3}, [at];", 128 * LANE, 32),
        ("ld.shared.v4.b32 {t0, t1, t2, t3}, [at];", 0 * LANE, 2),
        ("st.shared.v4.b32 [at], {t0, t1, t2, t3};", 0 * LANE, 4),
        ("atom.shared.add.u32 t0, [at], 1;", 0 * LANE, 32),
        ("atom.shared.add.u32 t0, [at], 1;", 4 * LANE, 1),
        # rows of 128 bytes: as they are, and with their 16-byte pieces exchanged by the row
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {t0, t1, t2, t3}, [at];", 128 * (LANE % 8) + 16 * (LANE // 8), 32),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {t0, t1, t2, t3}, [at];",
         128 * (LANE % 8) + 16 * ((LANE // 8) ^ (LANE % 8)), 4),
        # rows of 80 bytes: five pieces, so that eight rows are eight different ones
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {t0, t1, t2, t3}, [at];",
         80 * (LANE % 8) + 640 * (LANE // 8), 4),
    ],
)  # fmt: skip
def test_known_conflicts(device: pysm120.Device, text: str, offsets: Ints, wanted: int) -> None:
    assert measure(device, text, offsets).shared_wavefronts == wanted


@pytest.mark.parametrize(
    ("text", "offsets", "wanted"),
    [
        ("ld.global.b32 t0, [global];", 4 * LANE, (4, 4, 1, 1)),
        ("ld.global.b32 t0, [global];", 4 * LANE + 4, (5, 4, 2, 1)),
        ("ld.global.b32 t0, [global];", 32 * LANE, (32, 4, 8, 1)),
        ("ld.global.b32 t0, [global];", 128 * LANE, (32, 4, 32, 1)),
        ("ld.global.b32 t0, [global];", 0 * LANE, (1, 1, 1, 1)),
        ("ld.global.b32 t0, [global];", 4 * (31 - LANE), (4, 4, 1, 1)),
        ("ld.global.v4.b32 {t0, t1, t2, t3}, [global];", 16 * LANE, (16, 16, 4, 4)),
        ("ld.global.v4.b32 {t0, t1, t2, t3}, [global];", 32 * LANE, (32, 16, 8, 4)),
        ("ld.global.u8 t0, [global];", LANE + 31, (2, 1, 1, 1)),
    ],
)
def test_known_sectors(device: pysm120.Device, text: str, offsets: Ints, wanted: tuple[int, int, int, int]) -> None:
    c = measure(device, text, offsets)
    assert (c.global_sectors, c.global_ideal_sectors, c.global_lines, c.global_ideal_lines) == wanted


@pytest.mark.parametrize(
    ("text", "offsets", "wanted"),
    [
        # what an H100 took for a load of 16 KiB in L1, in clocks: 4.2, 5.5, 16.0, 32.0; 3, 8.0, 8.6, 32.0
        ("ld.global.v4.b32 {t0, t1, t2, t3}, [global];", 16 * LANE, 4),
        ("ld.global.v4.b32 {t0, t1, t2, t3}, [global];", 160 * (LANE // 2) + 16 * (LANE % 2), 4),
        ("ld.global.v4.b32 {t0, t1, t2, t3}, [global];", 128 * (LANE // 2) + 16 * (LANE % 2), 16),
        ("ld.global.v4.b32 {t0, t1, t2, t3}, [global];", 128 * LANE, 32),
        ("ld.global.b32 t0, [global];", 144 * (LANE // 4) + 4 * (LANE % 4), 2),
        ("ld.global.b32 t0, [global];", 128 * (LANE // 4) + 4 * (LANE % 4), 8),
        ("ld.global.b32 t0, [global];", 132 * LANE, 8),
        ("ld.global.b32 t0, [global];", 128 * LANE, 32),
        ("st.global.b32 [global], t0;", 128 * (LANE // 4) + 4 * (LANE % 4), 0),
    ],
)
def test_known_passes_over_the_data_of_l1(device: pysm120.Device, text: str, offsets: Ints, wanted: int) -> None:
    assert measure(device, text, offsets).global_wavefronts == wanted


def test_generic_addresses_count_where_they_lead(device: pysm120.Device) -> None:
    memory = device.zeros(4096, np.uint8)
    module = device.load(
        ACCESS.format(
            "cvt.u64.u32 w1, at; cvta.shared.u64 w1, w1; setp.lt.u32 p, lane, 16;\n"
            "selp.b64 w1, w1, global, p;\nld.b32 t7, [w1];"
        )
    )
    with device.profile() as p:
        module["access"](
            1, WARP, device.array((8 * LANE).astype(np.uint32)), device.array(LANE.astype(np.uint32)), memory
        )
    c = statement(p, "ld.b32 t7").counts
    # 16 lanes two words apart fill 16 banks; the other 16 read 128 bytes
    assert (c.shared_accesses, c.shared_wavefronts, c.global_accesses, c.global_sectors) == (1, 1, 1, 4)


# ---- branches -------------------------------------------------------------------

BRANCHES = (
    HEAD
    + """
.visible .entry branches(.param .u32 param_limit)
{
    .reg .pred p;
    .reg .b32 lane, limit, t<4>;
    mov.u32 lane, %tid.x;
    ld.param.u32 limit, [param_limit];
    setp.lt.u32 p, lane, limit;
@p  bra less;
    add.u32 t1, lane, 1;
    bra done;
less:
    add.u32 t2, lane, 2;
done:
    @p add.u32 t3, lane, 3;
    ret;
}
"""
)


@pytest.mark.parametrize("limit", [0, 1, 8, 31, 32])
def test_branches_and_their_lanes(device: pysm120.Device, limit: int) -> None:
    with device.profile() as p:
        device.load(BRANCHES)["branches"](3, WARP, np.uint32(limit))
    branch = statement(p, "bra less").counts
    assert (branch.executed, branch.branches, branch.divergent_branches) == (3, 3, 3 * (0 < limit < WARP))
    assert (branch.lanes, branch.predicated_off) == (3 * limit, 3 * (WARP - limit))
    assert statement(p, "add.u32 t1").counts.lanes == 3 * (WARP - limit)
    assert statement(p, "add.u32 t2").counts.lanes == 3 * limit
    last = statement(p, "add.u32 t3")
    assert last.text == "@p add.u32 t3, lane, 3"
    assert (last.mnemonic, last.opcode) == ("add.u32", "add")
    assert (last.counts.executed, last.counts.lanes, last.counts.predicated_off) == (3, 3 * limit, 3 * (WARP - limit))
    assert statement(p, "bra done").counts.divergent_branches == 0


INDEXED = (
    HEAD
    + """
.visible .entry indexed(.param .u32 param_mask)
{
    .reg .b32 lane, mask, index;
    ld.param.u32 mask, [param_mask];
    mov.u32 lane, %tid.x;
    and.b32 index, lane, mask;
    table: .branchtargets one, two;
    brx.idx index, table;
one:
    ret;
two:
    ret;
}
"""
)


@pytest.mark.parametrize(("mask", "divergent"), [(0, 0), (1, 1)])
def test_indexed_branches(device: pysm120.Device, mask: int, divergent: int) -> None:
    with device.profile() as p:
        device.load(INDEXED)["indexed"](1, WARP, np.uint32(mask))
    assert statement(p, "brx.idx").counts.divergent_branches == divergent


FUNCTIONS = (
    HEAD
    + """
.func (.reg .b32 result) twice(.reg .b32 a)
{
    add.u32 result, a, a; // one of the callers' lanes
}
.visible .entry functions(.param .u64 param_x)
{
    .reg .pred p;
    .reg .b32 lane, t;
    .reg .b64 x, f;
    ld.param.u64 x, [param_x];
    mov.u32 lane, %tid.x;
    mad.wide.u32 x, lane, 4, x;
    setp.lt.u32 p, lane, 5;
    call (t), twice, (lane);
@p  call (t), twice, (t);
    st.global.b32 [x], t;
    ret;
}
"""
)


def test_functions_count_for_all_their_callers(device: pysm120.Device) -> None:
    x = device.zeros(WARP, np.uint32)
    with device.profile() as p:
        device.load(FUNCTIONS)["functions"](1, WARP, x)
    assert x.numpy().tolist() == [*range(0, 20, 4), *range(10, 64, 2)]
    body = statement(p, "add.u32 result")
    assert body.text == "add.u32 result, a, a"
    assert (body.counts.executed, body.counts.lanes) == (2, WARP + 5)
    calls = [s for s in p.statements if s.opcode == "call"]
    assert [(s.counts.executed, s.counts.lanes) for s in calls] == [(1, WARP), (1, 5)]
    assert {s.text for s in p.statements if not s.opcode} <= {"{", "}"}
    assert list(p.kernels) == ["functions"]


# ---- copies, barriers, threads --------------------------------------------------

COPIES = (
    HEAD
    + """
.visible .entry copies(.param .u64 param_x, .param .u64 param_y)
{
    .reg .pred p;
    .reg .b32 lane, at, base, bar;
    .reg .b64 x, y, offset, token;
    .shared .align 128 .b8 block[1024];
    .shared .align 8 .b64 barrier;
    mov.u32 lane, %tid.x;
    mov.u32 base, block;
    mov.u32 bar, barrier;
    ld.param.u64 x, [param_x];
    ld.param.u64 y, [param_y];
    setp.eq.u32 p, lane, 0;
@p  mbarrier.init.shared.b64 [bar], 1;
    mul.wide.u32 offset, lane, 16;
    add.u64 offset, offset, x;
    shl.b32 at, lane, 4;
    add.u32 at, at, base;
    cp.async.cg.shared.global [at], [offset], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
    fence.proxy.async.shared::cta;
@!p bra done;
    cp.async.bulk.global.shared::cta.bulk_group [y], [base], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    mbarrier.arrive.expect_tx.shared.b64 token, [bar], 256;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [base + 512], [x], 256, [bar];
wait:
    mbarrier.try_wait.parity.shared.b64 p, [bar], 0;
@!p bra wait;
done:
    ret;
}
"""
)


def test_copies_count_where_they_are_asked_for(device: pysm120.Device) -> None:
    x = device.array(np.arange(512, dtype=np.uint8))
    y = device.zeros(512, np.uint8)
    with device.profile() as p:
        device.load(COPIES)["copies"](1, WARP, x, y)
    assert np.array_equal(x.numpy(), y.numpy())
    copy = statement(p, "cp.async.cg").counts
    assert (copy.shared_wavefronts, copy.shared_ideal_wavefronts, copy.global_sectors) == (4, 4, 16)
    assert copy.bytes == {"cp.async global->shared": 512}
    assert statement(p, "cp.async.bulk.global").counts.bytes == {"bulk shared->global": 512}
    assert statement(p, "cp.async.bulk.shared").counts.bytes == {"bulk global->shared": 256}
    assert sum(len(s.counts.bytes) for s in p.statements) == 3
    assert statement(p, "bar.sync").counts.executed == 1


BARRIERS = (
    HEAD
    + """
.visible .entry barriers(.param .u64 param_x)
{
    .reg .pred p;
    .reg .b32 i, n, t;
    .reg .b64 x;
    ld.param.u64 x, [param_x];
    mov.u32 i, %tid.x;
    mov.u32 n, 0;
again:
    bar.sync 0;
    red.global.add.u32 [x], 1;
    add.u32 n, n, 1;
    setp.lt.u32 p, n, 5;
@p  bra again;
    ret;
}
"""
)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads_add_up(threads: str, monkeypatch: pytest.MonkeyPatch, device_name: str) -> None:
    monkeypatch.setenv("PYSM120_THREADS", threads)
    with pysm120.Device(device_name) as device:
        x = device.zeros(1, np.uint32)
        kernel = device.load(BARRIERS)["barriers"]
        device.reset_counters()
        with device.profile() as p:
            kernel(100, 96, x)
            kernel(7, 96, x)
        counters = device.counters()
        assert x.numpy()[0] == 107 * 96 * 5
    # a warp that waits at a barrier has executed it once
    assert statement(p, "bar.sync").counts.executed == 107 * 3 * 5
    assert p.total.executed == counters["instructions"]
    for name, counts in p.opcodes.items():
        assert counts.executed == counters[name]
    assert p.total.bytes == {name[6:]: value for name, value in counters.items() if name.startswith("bytes ")}
    assert statement(p, "red.global").counts.global_sectors == 107 * 3 * 5


# ---- our kernels ----------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [40, 64, 128])
@pytest.mark.parametrize("precision", ["mxfp8", "mxfp8_f16", "f16"])
@pytest.mark.parametrize(
    "special",
    [{}, {"kv_lengths": [65], "softcap": 5.0, "sinks": [0.5, 1.0], "alibi_slopes": [0.1, 0.2]}],
    ids=["", "any"],
)
def test_attention_has_no_bank_conflicts(
    device: pysm120.Device,
    rng: np.random.Generator,
    precision: str,
    head_dim: int,
    causal: bool,
    special: dict[str, Any],
) -> None:
    rows = int(rng.integers(129, 300))  # two tiles of queries at least: enough accesses to speak of
    q, k, v = rng.standard_normal((3, 1, rows, 2, head_dim), np.float32).astype(np.float16)
    with device.profile() as p:
        pysm120.attention(q, k, v, causal=causal, precision=precision, device=device, **special)
    lines = [line for line in p.lines if line.counts.shared_accesses]
    assert len(lines) > 3
    assert {line.place: line.counts.bank_conflicts for line in lines if line.counts.bank_conflicts} == {}
    kernel = next(counts for name, counts in p.kernels.items() if name.startswith("attention_"))
    assert kernel.shared_wavefronts == kernel.shared_ideal_wavefronts > 1000
    # a wavefront moves 128 bytes; lanes of the scales share theirs
    assert kernel.bytes["ldmatrix"] <= 128 * kernel.shared_wavefronts
    assert kernel.tensor_flops == p.total.tensor_flops == sum(p.tensor.values()) > 0
    assert {line.file.split("/")[0] for line in p.lines} == {"ptx"}
    assert "ldmatrix" in next(line for line in lines if "ldmatrix" in line.counts.bytes).source


@pytest.mark.parametrize(("head_dim", "config"), [(32, "r16"), (32, "r32"), (96, "r32"), (256, "r16"), (256, "w4")])
def test_no_config_of_16_bits_has_bank_conflicts(
    device: pysm120.Device, rng: np.random.Generator, head_dim: int, config: str
) -> None:
    q, k, v = rng.standard_normal((3, 1, 150, 2, head_dim), np.float32).astype(np.float16)
    with device.profile() as p:
        pysm120.attention(q, k, v, causal=True, precision="f16", device=device, config=config)
    (name,) = p.kernels
    assert name.endswith(f"_d{head_dim}_{config}")
    assert p.kernels[name].shared_wavefronts == p.kernels[name].shared_ideal_wavefronts > 1000


# ---- the object -----------------------------------------------------------------


def test_one_profile_at_a_time(device: pysm120.Device, device_name: str) -> None:
    p = device.profile()
    with pytest.raises(RuntimeError, match="after the with"):
        _ = p.statements
    with p:
        with pytest.raises(pysm120.UnsupportedError, match="already"), device.profile():
            pass
        with (
            pysm120.Device(device_name) as other,
            pytest.raises(pysm120.UnsupportedError, match="already"),
            other.profile(),
        ):
            pass
    assert p.statements == ()
    assert p.total == Counts()
    assert (p.lines, p.opcodes, p.tensor, p.kernels, p.hottest(3)) == ((), {}, {}, {}, ())


def test_a_profile_outlives_modules_and_faults(device: pysm120.Device) -> None:
    with device.profile() as p:
        module = device.load(BRANCHES)
        module["branches"](1, WARP, np.uint32(3))
        module.unload()
        device.load(BRANCHES)["branches"](1, WARP, np.uint32(3))  # the same text: the same rows
        broken = ACCESS.format("ld.global.b32 t0, [offset];")
        with pytest.raises(pysm120.FaultError):
            device.load(broken)["access"](1, WARP, *[device.zeros(WARP, np.uint32)] * 3)
    assert statement(p, "bra less").counts.executed == 2
    assert list(p.kernels) == ["branches", "access"]
    assert statement(p, "setp.ne.u32").counts.executed == 1
    assert statement(p, "ld.global.b32 t0").counts.executed == 0


def test_closing_the_device_ends_the_profile(device_name: str) -> None:
    with pysm120.Device(device_name) as device, device.profile() as p:
        device.close()
    assert p.statements == ()
    with pysm120.Device(device_name) as device, device.profile() as p:
        device.load(BRANCHES)["branches"](1, WARP, np.uint32(3))
    assert statement(p, "bra less").counts.executed == 1


def test_statements_of_several_instructions_count_once(device: pysm120.Device) -> None:
    text = (
        HEAD + ".visible .entry wide(.param .u64 a) { .reg .b64 x, y; ld.param.u64 x, [a]; ld.global.s8 y, [x]; ret; }"
    )
    with device.profile() as p:
        device.load(text)["wide"](1, WARP, device.zeros(4, np.uint8))
    assert [s.counts.executed for s in p.statements if s.opcode] == [1, 1, 1]
    assert statement(p, "ld.global.s8").counts.bytes == {"ld.global": 32}
    assert p.opcodes["ld"].executed == 2
    assert dataclasses.asdict(p.total)["global_sectors"] == 1


def test_long_names_are_whole(device: pysm120.Device) -> None:
    names = ["k" * 1000 + end for end in "ab"]
    text = HEAD + "".join(f".visible .entry {name}(.param .u64 a) {{ bar.sync 0; ret; }}\n" for name in names)
    module = device.load(text)
    with device.profile() as p:
        for name in (*names, *names):
            module[name](1, WARP, np.uint64(0))
    assert {name: counts.executed for name, counts in p.kernels.items()} == dict.fromkeys(names, 4)
    assert len(p.statements) == 2 * len({s.index for s in p.statements})


# ---- CTAs -------------------------------------------------------------------------


def test_each_cta_has_its_instructions(device: pysm120.Device) -> None:
    """A CTA executes as many rounds as its number says; the first launch has three CTAs, the second one two."""
    module = device.load(UNEQUAL)
    with device.profile() as p:
        module["unequal"](3, WARP)
        module["unequal"](2, 2 * WARP)
    rest, each = 5, 3
    once, twice = ([(n, warps * (rest + each * n)) for n in range(ctas)] for ctas, warps in ((3, 1), (2, 2)))
    assert [(one.number, one.executed) for one in p.ctas] == sorted([*once, *twice])
    assert {one.kernel for one in p.ctas} == {"unequal"}
    assert sum(one.executed for one in p.ctas) == p.total.executed
    assert p.json()["ctas"] == {"unequal": [[one.number, one.executed] for one in p.ctas]}


UNEQUAL = (
    HEAD
    + """
.visible .entry unequal()
{
    .reg .pred more;
    .reg .b32 n;
    mov.u32 n, %ctaid.x;
    setp.ne.u32 more, n, 0;
@!more bra done;
again:
    sub.u32 n, n, 1;
    setp.ne.u32 more, n, 0;
@more bra again;
done:
    mov.u32 n, 0;
    ret;
}
"""
)
