"""What a kernel must not do: each is a fault that names the kernel, the line, the CTA, the warp and the lane."""

import numpy as np
import pytest

import pysm120

pytestmark = pytest.mark.virtual

FRAME = """.version 8.8
.target sm_120f
.address_size 64
.visible .entry k(.param .u64 param_x)
{{
    .reg .pred p, q;
    .reg .b32 a, b, i, n;
    .reg .b64 x, y, w;
    .shared .align 16 .b8 smem[256];
    .local .align 16 .b8 mine[64];
    ld.param.u64 x, [param_x];
    mov.u32 i, %tid.x;
    mov.u32 n, %ctaid.x;
    mov.b32 a, 0;
#line 100 "broken.ptx"
{body}
    ret;
}}
"""

# body, parts of the message
FAULTS = [
    ("mad.wide.u32 x, i, 4, x; st.global.b32 [x + 1000], a;", ["write of 4 bytes", "past the end", "lane 6"], 32),
    ("st.global.b32 [x + -8], a;", ["8 bytes before an allocation of 1024"], 32),
    ("ld.global.b64 y, [x + 1020];", ["misaligned", "multiple of 8"], 32),
    ("ld.global.v4.b32 {a, a, b, b}, [x + 1016];", ["multiple of 16"], 32),
    ("mov.b64 y, 0; ld.global.b32 a, [y];", ["address 0x0", "no allocation"], 32),
    ("mov.u32 b, smem; add.u32 b, b, 256; ld.shared.b32 a, [b];", ["shared address 0x500", "1024 to 1280"], 32),
    ("ld.shared.b32 a, [a];", ["shared address 0x0"], 32),
    ("ld.shared.b16 i, [smem + 1];", ["multiple of 2"], 32),
    ("mov.u64 y, mine; st.local.b32 [y + 64], a;", ["local address 0x40", "64 bytes"], 32),
    ("mov.u64 y, smem; cvta.shared.u64 y, y; ld.b32 a, [y + 256];", ["shared address 0x500"], 32),
    ("setp.eq.u32 p, i, 5; @p trap;", ["trap", "lane 5"], 32),
    ("trap;", ["warp 0", "CTA 0,0,0"], 32),
    ("mov.u32 b, smem; mbarrier.arrive.shared.b64 _, [b];", ["no mbarrier was initialised", "0x400"], 32),
    ("mbarrier.init.shared.b64 [smem], 0;", ["count 0"], 1),
    ("mbarrier.init.shared.b64 [smem + 4], 1;", ["multiple of 8"], 1),
    (
        "mbarrier.init.shared.b64 [smem], 1; mbarrier.arrive.shared.b64 _, [smem], 2;",
        ["2 arrivals", "expected at most 1 more"],
        1,
    ),
    (
        "mbarrier.init.shared.b64 [smem], 2; mbarrier.arrive.shared.b64 _, [smem]; mbarrier.init.shared.b64 [smem], 2;",
        ["live mbarrier"],
        1,
    ),
    (
        "mbarrier.init.shared.b64 [smem], 1; mbarrier.inval.shared.b64 [smem]; mbarrier.arrive.shared.b64 _, [smem];",
        ["no mbarrier"],
        1,
    ),
    (
        "mbarrier.init.shared.b64 [smem], 1; mbarrier.expect_tx.relaxed.cta.shared.b64 [smem], 1048575; mbarrier.expect_tx.relaxed.cta.shared.b64 [smem], 1;",  # noqa: E501
        ["transaction count"],
        1,
    ),
    (
        "mbarrier.init.shared.b64 [smem], 1; mov.b32 b, 24; cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [smem + 16], [x], b, [smem];",  # noqa: E501
        ["size 24", "multiple of 16"],
        1,
    ),
    (
        "mbarrier.init.shared.b64 [smem], 1; cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [smem + 8], [x], 16, [smem];",  # noqa: E501
        ["multiple of 16"],
        1,
    ),
    (
        "mbarrier.init.shared.b64 [smem], 1; cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [smem + 16], [x + 1008], 32, [smem];",  # noqa: E501
        ["crosses the end"],
        1,
    ),
    (
        "mov.b32 a, smem; mbarrier.init.shared.b64 [a], 1; cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [a + 240], [x], 32, [a];",  # noqa: E501
        ["shared address"],
        1,
    ),
    ("mov.b32 b, 24; cp.async.bulk.prefetch.L2.global [x], b;", ["bulk prefetch of 24 bytes", "multiples of 16"], 1),
    ("cp.async.bulk.prefetch.L2.global [x + 8], 32;", ["bulk prefetch of 32 bytes", "multiples of 16"], 1),
    ("discard.global.L2 [x + 64], 128;", ["discard of the line", "multiple of 128"], 1),
    ("cp.async.ca.shared.global [smem + 2], [x], 4;", ["multiple of 4"], 1),
    ("mov.b32 b, 5; cp.async.ca.shared.global [smem], [x], 4, b;", ["src-size 5"], 1),
    ("mov.b32 b, 16; bar.sync b;", ["barrier number 16", "0 to 15"], 32),
    ("mov.b32 b, 48; barrier.sync 0, b;", ["thread count of 48", "multiple of 32"], 64),
    ("setp.lt.u32 p, i, 7; @p bar.sync 0;", [".aligned instruction", "predicate is false"], 32),
    (
        "setp.lt.u32 p, i, 7; @p bra over; bar.sync 0; bra done; over: bar.sync 0; done:",
        ["deadlock", "warp 0", "lanes 0xffffff80"],
        32,
    ),
    ("shfl.sync.bfly.b32 a, i, 1, 31, 0xffff;", ["lane 16", "member mask 0x0000ffff"], 32),
    ("setp.lt.u32 p, i, 7; @p shfl.sync.bfly.b32 a, i, 1, 31, -1;", ["predicate is false"], 32),
    ("setp.lt.u32 p, i, 7; @p ldmatrix.sync.aligned.m8n8.x1.shared.b16 {a}, [smem];", ["predicate is false"], 32),
    ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {a}, [smem + 8];", ["multiple of 16"], 32),
    (
        "mov.u32 b, smem; mad.lo.u32 b, i, 16, b; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, a, a, a}, [b + 176];",
        ["row of 16 bytes", "lane 5"],
        32,
    ),
    ("spin: bra spin;", ["more than 3000000 warp instructions"], 32),
    (
        "setp.ge.u32 p, i, 32; @p bar.sync 0; @!p bar.sync 1;",
        ["deadlock", "warp 0", "warp 1", "barrier 0", "barrier 1", "32 of 64"],
        64,
    ),
    (
        "mbarrier.init.shared.b64 [smem], 1; spin: mbarrier.try_wait.parity.shared.b64 p, [smem], 0; @!p bra spin;",
        ["deadlock", "phase 0 of the mbarrier at shared address 0x400", "1 of 1 arrivals"],
        1,
    ),
    (
        "mbarrier.init.shared.b64 [smem], 1; spin: mbarrier.test_wait.parity.shared.b64 p, [smem], 0; @!p bra spin;",
        ["deadlock"],
        1,
    ),
    ("bar.sync 0, 64;", ["thread count of 64", "at most 32"], 32),
]


@pytest.mark.parametrize(("body", "parts", "threads"), FAULTS, ids=[row[0][:60] for row in FAULTS])
def test_faults(
    device: pysm120.Device, monkeypatch: pytest.MonkeyPatch, body: str, parts: list[str], threads: int
) -> None:
    monkeypatch.setenv("PYSM120_INSTRUCTION_LIMIT", "3000000")
    x = device.array(np.arange(256, dtype=np.uint32))
    kernel = device.load(FRAME.format(body=body))["k"]
    with pytest.raises(pysm120.FaultError) as caught:
        kernel(1, threads, x)
    text = str(caught.value)
    for part in parts:
        if part != "misaligned":
            assert part in text
    assert "broken.ptx:100" in text or "instructions" in text
    assert "k at" in text or "k, CTA" in text
    # the device is as good as new
    np.testing.assert_array_equal(x.numpy()[8:], np.arange(8, 256))
    device.load(FRAME.format(body="st.global.b32 [x], 7;"))["k"](1, 32, x)
    assert x.numpy()[0] == 7


def test_use_after_free(device: pysm120.Device) -> None:
    x = device.array(np.arange(256, dtype=np.uint32))
    keep = device.array(np.array([x.address], np.uint64))
    del x
    kernel = device.load(FRAME.format(body="ld.global.b64 y, [x]; ld.global.b32 a, [y + 16];"))["k"]
    with pytest.raises(pysm120.FaultError, match="use after free, 16 bytes into a freed allocation of 1024 bytes"):
        kernel(1, 32, keep)


def test_the_cta_is_named(device: pysm120.Device) -> None:
    x = device.zeros(256, np.uint32)
    body = "setp.eq.u32 p, n, 77; setp.eq.and.u32 p, i, 70, p; @p trap;"
    with pytest.raises(pysm120.FaultError, match=r"CTA 77,0,0, warp 2, lane 6"):
        device.load(FRAME.format(body=body))["k"](100, 96, x)


def test_launch_shapes(device: pysm120.Device) -> None:
    x = device.zeros(256, np.uint32)
    kernel = device.load(FRAME.format(body=""))["k"]
    for grid, block in (((0, 1, 1), 32), (1, 0), (1, 1025), ((1, 65536, 1), 32), (1, (32, 33, 1)), (1, (1, 1, 65))):
        with pytest.raises(pysm120.Error):
            kernel(grid, block, x)
    text = FRAME.format(body="").replace(")\n{", ")\n.reqntid 64\n{")
    with pytest.raises(pysm120.Error, match=r"64"):
        device.load(text)["k"](1, 32, x)
    device.load(text)["k"](1, 64, x)
    text = FRAME.format(body="").replace(")\n{", ")\n.maxntid 64, 2\n{")
    with pytest.raises(pysm120.Error, match=r"128"):
        device.load(text)["k"](1, 160, x)
    with pytest.raises(pysm120.Error, match=r"101376"):
        kernel(1, 32, x, shared=101377)


@pytest.mark.parametrize(("rounds", "runs"), [(9_000, True), (15_000, False)])
def test_limit_of_instructions(
    device: pysm120.Device, monkeypatch: pytest.MonkeyPatch, rounds: int, *, runs: bool
) -> None:
    """A small limit holds too: 3 instructions a round, 40000 allowed, looked at every 2000 or so."""
    monkeypatch.setenv("PYSM120_INSTRUCTION_LIMIT", "40000")
    x = device.array(np.zeros(256, np.uint32))
    body = f"mov.b32 a, 0; again: add.u32 a, a, 1; setp.lt.u32 p, a, {rounds}; @p bra again; st.global.b32 [x], a;"
    kernel = device.load(FRAME.format(body=body))["k"]
    if runs:
        kernel(1, 1, x)
        assert x.numpy()[0] == rounds
    else:
        with pytest.raises(pysm120.FaultError, match="more than 40000 warp instructions"):
            kernel(1, 1, x)
        assert x.numpy()[0] == 0


def test_too_many_registers_for_so_many_threads(device: pysm120.Device) -> None:
    """Every host thread that runs CTAs would need the memory."""
    registers = " ".join(f".reg .b64 {name}<99999>; mov.b64 {name}99998, 1;" for name in "abc")
    kernel = device.load(f".version 8.8 .target sm_120f .entry k() {{ {registers} ret; }}")["k"]
    kernel(1, 32)
    with pytest.raises(pysm120.Error, match=r"registers in each of 32 warps are \d+ bytes; expected at most"):
        kernel(1, 1024)
