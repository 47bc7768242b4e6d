"""`.aligned` instructions need all lanes of the warp, at every level."""

import numpy as np
import pytest
from broken.planted import FRAME

import pysm120

pytestmark = pytest.mark.virtual

MATRICES = [
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {a}, [at];",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {a, b, c, d}, [at];",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {a, b}, [at];",
    "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {a}, [at];",
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [at], {a};",
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [at], {a};",
    "movmatrix.sync.aligned.m8n8.trans.b16 a, b;",
    "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {a, b}, {a, b}, {c}, {a, b};",
    "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {a, b}, {c}, {d}, {a, b};",
    "wmma.load.a.sync.aligned.row.m16n16k16.shared.s8 {a, b}, [smem], 16;",
    "wmma.store.d.sync.aligned.row.m8n8k32.shared.s32 [smem], {a, b}, 8;",
    "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {a, b}, {c}, {d}, {a, b};",
    "setmaxnreg.dec.sync.aligned.u32 24;",
]
BARRIERS = [
    "bar.sync 1, 32;",
    "bar.arrive 1, 32;",
    "bar.red.popc.u32 a, 1, 32, q;",
    "barrier.sync.aligned 1, 32;",
    "barrier.cluster.arrive.aligned;",
]
ALL = [*MATRICES, *BARRIERS]
LEVELS = ("off", "default", "full")

# lanes 0 to 6 execute the instruction, the others exit
BRANCH = """
    setp.ge.u32 p, lane, 7;
@p  bra over;
    {instruction}
over:
"""
# lane n executes it n + 1 times
LOOP = """
    mov.b32 e, 0;
again:
    {instruction}
    add.u32 e, e, 1;
    setp.le.u32 p, e, lane;
@p  bra again;
"""
GUARD = """
    setp.lt.u32 p, lane, 7;
@p  {instruction}
"""
GONE = """
    setp.ge.u32 p, lane, 7;
@p  exit;
    {instruction}
"""
# all lanes come to it, on two ways
JOINED = """
    setp.ge.u32 p, lane, 7;
@p  bra other;
    mov.b32 e, 1;
    bra join;
other:
    mov.b32 e, 2;
join:
    {instruction}
"""


def run(level: str, body: str, instruction: str, seed: int = 0, threads: int = 32) -> None:
    start = "    mov.b32 e, 0;\n    st.shared.v4.b32 [at], {e, e, e, e};\n    bar.warp.sync -1;\n"
    with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
        text = FRAME.replace("#line 1", start.replace("{", "{{").replace("}", "}}") + "#line 1")
        text = text.format(body=body.format(instruction=instruction))
        device.load(text)["k"](1, threads, device.array(np.zeros(1024, np.uint32)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("instruction", ALL)
def test_predicates_leave_lanes_out(level: str, instruction: str) -> None:
    with pytest.raises(pysm120.FaultError, match=r"lanes 0xffffff80 do not take part in an \.aligned"):
        run(level, GUARD, instruction)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("instruction", MATRICES)
def test_branches_leave_lanes_out(level: str, instruction: str) -> None:
    """Lanes that branch around the instruction, or that leave its loop."""
    for seed in (0, 1, 7):
        with pytest.raises(pysm120.FaultError, match=r"lanes 0xffffff80 do not take part in an \.aligned"):
            run(level, BRANCH, instruction, seed)
        with pytest.raises(pysm120.FaultError, match=r"lanes 0x00000001 do not take part in an \.aligned"):
            run(level, LOOP, instruction, seed)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("instruction", MATRICES)
def test_lanes_have_exited(level: str, instruction: str) -> None:
    """Matrix instructions are undefined after a lane has exited, or without it."""
    with pytest.raises(pysm120.FaultError, match=r"lanes 0xffffff80 .*they have exited or are not in the CTA"):
        run(level, GONE, instruction)
    with pytest.raises(pysm120.FaultError, match=r"lanes 0xffff0000 .*they have exited or are not in the CTA"):
        run(level, "    {instruction}", instruction, threads=16)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("instruction", BARRIERS)
def test_barriers_need_lanes_that_live(level: str, instruction: str) -> None:
    """An early return before __syncthreads() is no fault, however it is compiled."""
    run(level, GONE, instruction)
    run(level, BRANCH, instruction)
    run(level, "    {instruction}", instruction, threads=16)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("instruction", ALL)
def test_all_lanes_come(level: str, instruction: str) -> None:
    for seed in (0, 1, 7):
        run(level, JOINED, instruction, seed)


@pytest.mark.parametrize("level", LEVELS)
def test_barriers_that_are_not_aligned(level: str) -> None:
    ways = (
        "    setp.ge.u32 p, lane, 7;\n@p  bra over;\n    {instruction}\n    bra done;\nover:\n    {instruction}\ndone:"
    )
    run(level, ways, "barrier.sync 1;", 0, 64)
    run(level, ways, "barrier.cluster.arrive;\n    barrier.cluster.wait;", 0, 64)


# A warpgroup that loads gives registers to the two that compute.
GROUPS = """.version 9.0
.target sm_120f
.visible .entry k({limit}
{{
    .reg .pred loads;
    .reg .b32 i;
    mov.u32 i, %tid.x;
    setp.lt.u32 loads, i, 128;
@loads bra load;
    setmaxnreg.inc.sync.aligned.u32 {more};
    ret;
load:
    setmaxnreg.dec.sync.aligned.u32 {less};
    ret;
}}
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("limit", "less", "more", "said"),
    [
        ("\n).maxntid 384 .minnctapersm 1", 40, 232, None),
        (").maxnreg 168", 40, 232, None),
        (").maxnreg 168", 40, 240, "deadlock.*waits for 2304 registers: .* are in the pool"),
        (").maxntid 384 .minnctapersm 1", 48, 232, "deadlock.*waits for 2048 registers"),
        (").maxnreg 168", 176, 232, "setmaxnreg.dec to 176 registers in a warp that has 168; expected at most 168"),
        (").maxnreg 168", 40, 160, "setmaxnreg.inc to 160 registers in a warp that has 168; expected at least 168"),
        (")", 40, 256, None),
    ],
)
def test_pool_of_registers(level: str, limit: str, less: int, more: int, said: str | None) -> None:
    for seed in (0, 1, 7):
        with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
            kernel = device.load(GROUPS.format(limit=limit, less=less, more=more))["k"]
            if said is None:
                kernel(2, 384)
                continue
            with pytest.raises(pysm120.FaultError, match=f"(?s){said}"):
                kernel(2, 384)
