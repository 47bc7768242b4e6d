"""Profiles: the lines of global memory that L1 has, and those that CTAs touch first, add to, or touch again."""

import numpy as np
import pytest
from micro import HEAD
from test_profile import ACCESS, LANE, WARP, Ints, statement

import pysm120

pytestmark = pytest.mark.virtual


# ---- L1 -----------------------------------------------------------------------------

CACHED = (
    HEAD
    + """
.visible .entry cached(.param .u64 param_x, .param .u32 param_lines)
{
    .reg .pred p;
    .reg .b32 lane, lines, i, t;
    .reg .b64 x, at;
    mov.u32 lane, %tid.x;
    ld.param.u64 x, [param_x];
    ld.param.u32 lines, [param_lines];
    mad.wide.u32 x, lane, 4, x;
    mov.u32 i, 0;
    mov.b64 at, x;
fill:
    ld.global.b32 t, [at];
    add.u64 at, at, 128;
    add.u32 i, i, 1;
    setp.lt.u32 p, i, lines;
    @p bra fill;
    ld.global.u32 t, [x];
    ld.relaxed.gpu.global.b32 t, [x];
    st.global.b32 [x], t;
    ret;
}
"""
)


@pytest.mark.parametrize(("lines", "again"), [(1, 0), (256, 0), (320, 1)])
def test_what_l1_holds(device: pysm120.Device, lines: int, again: int) -> None:
    """A cache of 256 lines of 128 bytes for each CTA: what came first leaves first; stores and strong loads need L2.

    It has sets, which neighbouring lines fill evenly from a multiple of 32 KiB on.
    """
    x, module = device.zeros(64 * 512, np.uint32), device.load(CACHED)
    with device.profile() as p:
        module["cached"](3, WARP, np.uint64(-(-x.address // 2**15) * 2**15), np.uint32(lines))
    fill = statement(p, "ld.global.b32 t").counts
    assert (fill.global_l2_accesses, fill.global_l2_sectors) == (3 * lines, 3 * 4 * lines)  # no CTA gives another any
    first = statement(p, "ld.global.u32 t").counts
    assert (first.global_accesses, first.global_sectors) == (3, 3 * 4)
    assert (first.global_l2_accesses, first.global_l2_sectors) == (3 * again, 3 * 4 * again)
    assert (fill.global_first_lines, first.global_first_lines) == (3 * lines, 0)
    for word in ("ld.relaxed", "st.global"):
        found = statement(p, word).counts
        assert (found.global_l2_accesses, found.global_l2_sectors) == (3, 3 * 4)


@pytest.mark.parametrize(
    ("options", "ctas", "misses"),
    [
        ("resident=2&l1=67584", 2, 256),  # 64 KiB are left for two CTAs, one after the other in turns
        ("resident=1&l1=67584", 2, 256),  # the second CTA begins when the first one has ended, and finds its lines
        ("resident=2&l1=18432", 2, 256),  # 16 KiB, half of what a CTA loads, but the second one is a turn behind
        ("resident=2&l1=2560", 2, 2 * 256),  # four lines
        ("resident=1&l1=17408", 2, 2 * 256 - 1),  # the first CTA loads its first line once more at its end
        ("multiprocessors=1&resident=4&l1=135168", 4, 256),
        ("multiprocessors=3&resident=2&l1=67584", 2, 256),
        ("multiprocessors=4&resident=2&l1=67584", 1, 256),
        ("resident=2&sampled=2&l1=67584", 4, 2 * 256),  # two CTAs on each of two multiprocessors
        ("multiprocessors=3&resident=2&sampled=3&l1=67584", 4, 3 * 256),
        ("multiprocessors=4&resident=2&sampled=2&l1=67584", 2, 2 * 256),  # one CTA on each
    ],
)
def test_ctas_of_a_multiprocessor_share_its_l1(device_name: str, options: str, ctas: int, misses: int) -> None:
    """Of four CTAs that load the same 256 lines, only those of multiprocessor 0 run. The first one to load misses.

    The CTAs have no shared memory, but 1 KiB of each is reserved.
    """
    which = options if "multiprocessors" in options else f"multiprocessors=2&{options}"
    with pysm120.Device(f"{device_name}?{which}") as device:
        x, module = device.zeros(64 * 512, np.uint32), device.load(CACHED)
        arguments = np.uint64(-(-x.address // 2**15) * 2**15), np.uint32(256)
        with device.profile() as p:
            module["cached"](4, WARP, *arguments)
        module["cached"](4, WARP, *arguments)  # without a profile all CTAs run
    fill = statement(p, "ld.global.b32 t").counts
    assert (fill.executed, fill.global_sectors) == (ctas * 256, ctas * 256 * 4)
    assert (fill.global_l2_accesses, fill.global_l2_sectors) == (misses, misses * 4)
    assert fill.global_first_lines == ctas * 256  # each CTA touches them for itself


@pytest.mark.parametrize(("resident", "pending"), [(1, 0), (2, 1), (4, 3)])
def test_what_earlier_ctas_asked_for_has_come(device_name: str, resident: int, pending: int) -> None:
    """Of four CTAs that load the same lines, those that run beside the first one ask for them when it does.

    A CTA that begins when another one has ended finds them in L1.
    """
    with pysm120.Device(f"{device_name}?multiprocessors=1&resident={resident}&l1=67584") as device:
        x, module = device.zeros(64 * 512, np.uint32), device.load(CACHED)
        with device.profile() as p:
            module["cached"](4, WARP, np.uint64(-(-x.address // 2**15) * 2**15), np.uint32(16))
    fill = statement(p, "ld.global.b32 t").counts
    assert (fill.executed, fill.global_l2_accesses, fill.global_pending_accesses) == (64, 16, 16 * pending)


@pytest.mark.parametrize(("text", "lines"), [("[global + 32]", 0), ("[global + 128]", 1), ("[global + 4096]", 2)])
def test_a_cta_touches_a_line_first_once(device: pysm120.Device, text: str, lines: int) -> None:
    module = device.load(ACCESS.format(f"ld.global.b32 t0, [global];\nst.global.b32 {text}, t0;"))
    x, offsets = device.zeros(8192, np.uint8), (128 * LANE[:2]).repeat(WARP // 2).astype(np.uint32)
    with device.profile() as p:
        module["access"](1, WARP, device.array(offsets), device.array(LANE.astype(np.uint32)), x)
    assert [statement(p, word).counts.global_first_lines for word in ("ld.global.b32 t0", "st.global")] == [2, lines]


@pytest.mark.parametrize(
    ("between", "offset", "first"),
    [
        (40, 0, 0),  # the same sector
        (40, 32, 0),  # the other one of 64 bytes
        (30, 32, 1),  # it is still on its way
        (31, 32, 0),
        (40, 64, 1),  # of the other half of the line
        (40, 96, 1),
    ],
)
def test_dram_gives_two_sectors_at_once(device: pysm120.Device, between: int, offset: int, first: int) -> None:
    """Lanes load the first sector of a line each, then another one behind some statements."""
    text = "ld.global.b32 t0, [global];" + "add.u32 t2, t2, 1;" * between + f"ld.global.b32 t1, [global + {offset}];"
    module = device.load(ACCESS.format(text))
    x, offsets = device.zeros(8192, np.uint8), device.array((128 * (LANE % WARP)).astype(np.uint32))
    with device.profile() as p:
        module["access"](1, WARP, offsets, device.array(LANE.astype(np.uint32)), x)
    found = [statement(p, f"ld.global.b32 t{n}").counts.global_first_accesses for n in (0, 1)]
    assert found == [1, first]


@pytest.mark.parametrize(("between", "pending"), [(0, 1), (30, 1), (31, 0), (100, 0)])
def test_what_l1_has_may_still_be_on_its_way(device: pysm120.Device, between: int, pending: int) -> None:
    """A load of sectors for which the warp, or another one at the same place, asked fewer than 32 statements before."""
    text = "ld.global.b32 t0, [global];" + "add.u32 t2, t2, 1;" * between + "ld.global.b32 t1, [global + 4];"
    module = device.load(ACCESS.format(text))
    x, offsets = device.zeros(8192, np.uint8), device.array((8 * (LANE % WARP)).astype(np.uint32))
    with device.profile() as p:
        module["access"](1, WARP, offsets, device.array(LANE.astype(np.uint32)), x)
    first, second = (statement(p, f"ld.global.b32 t{n}").counts for n in (0, 1))
    assert (first.global_l2_accesses, first.global_pending_accesses) == (1, 0)
    assert (second.global_l2_accesses, second.global_pending_accesses) == (0, pending)


def test_warps_at_the_same_place_ask_for_the_same(device: pysm120.Device) -> None:
    module = device.load(ACCESS.format("ld.global.b32 t0, [global];"))
    x, zeros = device.zeros(8192, np.uint8), device.zeros(4 * WARP, np.uint32)
    with device.profile() as p:
        module["access"](1, 4 * WARP, zeros, device.array(np.ones(4 * WARP, np.uint32)), x)
    found = statement(p, "ld.global.b32 t0").counts
    assert (found.global_accesses, found.global_l2_accesses, found.global_pending_accesses) == (4, 1, 3)


@pytest.mark.parametrize("opcode", ["red.global.add.u32 [global], t0;", "atom.global.add.u32 t1, [global], t0;"])
@pytest.mark.parametrize(
    ("offsets", "lines", "words"), [(0 * LANE, 1, 1), (4 * LANE, 1, 32), (4 * (LANE // 4), 1, 8), (128 * LANE, 32, 32)]
)
def test_lines_and_words_that_are_added_to(
    device: pysm120.Device, opcode: str, offsets: np.ndarray, lines: int, words: int
) -> None:
    """Three CTAs add to the same lines: these count once, the words of each access for themselves."""
    module = device.load(ACCESS.format(f"mov.u32 t0, 1;\n{opcode}"))
    with device.profile() as p:
        module["access"](
            3, WARP, device.array(offsets.astype(np.uint32)), device.array(LANE.astype(np.uint32)),
            device.zeros(8192, np.uint8),
        )  # fmt: skip
    found = statement(p, opcode.partition(";")[0]).counts
    assert (found.global_added_lines, found.global_added_words) == (lines, 3 * words)
    assert (found.global_lines, found.global_first_lines) == (3 * lines, 3 * lines)
    loads = statement(p, "ld.global.b32 at").counts
    assert (loads.global_added_lines, loads.global_added_words) == (0, 0)


def test_l1_holds_sectors(device: pysm120.Device) -> None:
    module = device.load(ACCESS.format("ld.global.b32 t0, [global];\nld.global.v4.b32 {t0, t1, t2, t3}, [global];"))
    with device.profile() as p:
        module["access"](
            1, WARP, device.array((128 * LANE).astype(np.uint32)), device.array(LANE.astype(np.uint32)),
            device.zeros(8192, np.uint8),
        )  # fmt: skip
    first, second = (statement(p, word).counts for word in ("ld.global.b32 t0", "ld.global.v4"))
    assert (first.global_l2_sectors, second.global_l2_sectors) == (32, 0)  # the first 16 bytes are in the same sector


@pytest.mark.parametrize(
    ("places", "sectors"),
    [
        (16 * LANE, 16),
        (16 * LANE + 16, 32),  # halves of a sector go to two blocks of 32 bytes
        (16 * (LANE % 16) + 272 * (LANE // 16), 8 + 16),  # rows of 256 bytes with a gap of 16
        (16 * (LANE ^ 1), 16),
        (16 * (LANE ^ 7), 16),
        (64 * LANE, 32),
    ],
)
def test_sectors_of_a_copy_past_l1(device: pysm120.Device, places: Ints, sectors: int) -> None:
    """512 bytes in a row go to these places of shared memory; L1 keeps none of them, unless they are .ca."""
    text = "cp.async.{}.shared.global [at], [global], 16;"
    lines = [
        "mul.wide.u32 offset, lane, 16;",
        "ld.param.u64 global, [param_global];",
        "add.u64 global, global, offset;",
        *(f"{text.format(how)}\ncp.async.wait_all;" for how in ("cg", "cg", "ca", "ca")),
    ]
    module = device.load(ACCESS.format("\n".join(lines)))
    with device.profile() as p:
        module["access"](
            1, WARP, device.array(places.astype(np.uint32)), device.zeros(WARP, np.uint32), device.zeros(8192, np.uint8)
        )
    counts = [s.counts for s in p.statements if s.text.startswith("cp.async.c")]
    assert [x.global_l2_sectors for x in counts] == [sectors, sectors, 16, 0]
    assert [x.global_l2_accesses for x in counts] == [1, 1, 1, 0]
    assert {x.global_sectors for x in counts} == {16}


# ---- reuse of global memory ---------------------------------------------------------

SWEEP = """
    mov.b64 at, {array};
    mov.u32 i, 0;
{array}_{time}:
    ld.global.b32 t, [at]; // {array} {time}
    add.u64 at, at, 128;
    add.u32 i, i, 1;
    setp.lt.u32 p, i, lines;
    @p bra {array}_{time};
"""
# Every warp reads lines of its own twice, then as many lines that all warps read, twice.
AGAIN = (
    HEAD
    + """
.visible .entry again(.param .u64 param_own, .param .u64 param_common, .param .u32 param_lines)
{
    .reg .pred p;
    .reg .b32 lane, warp, lines, warps, i, t;
    .reg .b64 own, common, at;
    ld.param.u64 own, [param_own];
    ld.param.u64 common, [param_common];
    ld.param.u32 lines, [param_lines];
    mov.u32 t, %tid.x;
    and.b32 lane, t, 31;
    shr.u32 warp, t, 5;
    mov.u32 t, %ctaid.x;
    mov.u32 warps, %ntid.x;
    shr.u32 warps, warps, 5;
    mad.lo.u32 warp, t, warps, warp;
    mul.lo.u32 t, warp, lines;
    mad.wide.u32 own, t, 128, own;
    mad.wide.u32 own, lane, 4, own;
    mad.wide.u32 common, lane, 4, common;
"""
    + "".join(SWEEP.format(array=array, time=time) for array in ("own", "common") for time in ("first", "second"))
    + "    ret;\n}\n"
)


@pytest.mark.parametrize(
    ("ctas", "warps", "lines", "own", "common"),
    [
        (1, 1, 80, {8192: 320}, {8192: 320}),  # 320 sectors are 10 KiB; nobody else reads what is common
        (3, 1, 80, {4096: 960}, {}),  # half of what a warp reads is its own: 5 KiB
        (3, 4, 80, {16384: 3840}, {}),  # the four warps of a CTA read 20 KiB of their own meanwhile
        (2, 4, 30, {}, {}),  # 120 sectors again are near
    ],
)
def test_what_a_cta_reads_again(
    device: pysm120.Device, ctas: int, warps: int, lines: int, own: dict[int, int], common: dict[int, int]
) -> None:
    """By distance in bytes of its own; lines that other CTAs read do not count."""
    module = device.load(AGAIN)
    arrays = device.zeros(ctas * warps * lines * 32, np.uint32), device.zeros(lines * 32, np.uint32)
    with device.profile() as p:
        module["again"](ctas, warps * WARP, *arrays, np.uint32(lines))
    loads = [s for s in p.statements if s.opcode == "ld" and "global" in s.text]
    assert [s.counts.global_reuse for s in loads] == [{}, own, {}, common]
    assert p.total.global_reuse == {step: own.get(step, 0) + common.get(step, 0) for step in {*own, *common}}
