"""Lanes that part and meet, collectives, barriers, many CTAs, threads."""

import threading
from typing import Any

import numpy as np
import pytest
from micro import HEAD, run

import pysm120

pytestmark = pytest.mark.virtual

LANES = np.arange(32, dtype=np.uint32)


def test_divergent_loops(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Collatz: every lane leaves its loop at another time."""
    body = """
    mov.u32 t1, in0; mov.u32 out0, 0;
loop:
    setp.le.u32 p, t1, 1;
@p  bra done;
    and.b32 t2, t1, 1;
    setp.eq.u32 q, t2, 0;
@q  bra even;
    mad.lo.u32 t1, t1, 3, 1;
    bra next;
even:
    shr.u32 t1, t1, 1;
next:
    add.u32 out0, out0, 1;
    bra loop;
done:
    activemask.b32 out1;
"""
    x = rng.integers(1, 5000, 1024, np.uint32)
    steps, mask = run(device, body, [x], ["u4", "u4"])

    def collatz(n: int) -> int:
        count = 0
        while n > 1:
            n, count = (3 * n + 1 if n % 2 else n // 2), count + 1
        return count

    np.testing.assert_array_equal(steps, [collatz(int(n)) for n in x])
    assert (mask == 0xFFFFFFFF).all(), "the lanes have met again"


def test_nested_branches(device: pysm120.Device) -> None:
    body = """
    and.b32 t1, i, 1; setp.ne.u32 p, t1, 0; and.b32 t1, i, 2; setp.ne.u32 q, t1, 0;
    mov.u32 out0, 0;
@!p bra even;
@!q bra odd_low;
    add.u32 out0, out0, 3; bra join;
odd_low:
    add.u32 out0, out0, 1; bra join;
even:
@q  bra even_high;
    bra join;
even_high:
    add.u32 out0, out0, 2;
join:
    activemask.b32 t2; setp.eq.u32 r, t2, -1; selp.u32 t2, 16, 0, r; add.u32 out0, out0, t2;
"""
    (got,) = run(device, body, [np.zeros(32, np.uint32)], ["u4"], threads=32)
    np.testing.assert_array_equal(got, LANES % 4 + 16)


def test_brx(device: pysm120.Device) -> None:
    body = """
    and.b32 t1, i, 3;
targets: .branchtargets zero, one, two, one;
    brx.idx t1, targets;
zero: mov.u32 out0, 100; bra done;
one: mov.u32 out0, 200; bra done;
two: mov.u32 out0, 300;
done:
"""
    (got,) = run(device, body, [np.zeros(32, np.uint32)], ["u4"], threads=32)
    np.testing.assert_array_equal(got, np.array([100, 200, 300, 200], np.uint32)[LANES % 4])


def test_forward_progress(device: pysm120.Device) -> None:
    """A lane spins until another lane of its warp arrives."""
    body = """
    { .shared .b64 barrier;
    setp.eq.u32 p, i, 0;
@p  mbarrier.init.shared.b64 [barrier], 1;
    bar.sync 0;
@!p bra other;
spin:
    mbarrier.test_wait.parity.shared.b64 q, [barrier], 0;
@!q bra spin;
    mov.u32 out0, 1;
    bra done;
other:
    setp.eq.u32 q, i, 31;
@q  mbarrier.arrive.shared.b64 _, [barrier];
    mov.u32 out0, 2;
done: }
"""
    (got,) = run(device, body, [np.zeros(32, np.uint32)], ["u4"], threads=32)
    np.testing.assert_array_equal(got, np.where(LANES == 0, 1, 2))


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("clamp", [31, 0, 0x1000 | 15, 0x1800 | 7, 0x1C00])
def test_shfl(device: pysm120.Device, rng: np.random.Generator, mode: str, clamp: int) -> None:
    a, b = rng.integers(0, 1 << 32, 128, np.uint32), rng.integers(0, 34, 128, np.uint32)
    body = f"shfl.sync.{mode}.b32 out0|p, in0, in1, {clamp}, -1; selp.u32 out1, 1, 0, p;"
    got, ok = run(device, body, [a, b], ["u4", "u4"])
    want, inside = np.zeros(128, np.uint32), np.zeros(128, np.uint32)
    for t in range(128):
        lane, by, segment = t % 32, int(b[t]) & 31, clamp >> 8 & 31
        most, least = lane & segment | clamp & 31 & ~segment, lane & segment
        j = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": least | by & ~segment}[mode]
        inside[t] = j >= most if mode == "up" else j <= most
        want[t] = a[t - lane + (j if inside[t] else lane)]
    np.testing.assert_array_equal(ok, inside)
    np.testing.assert_array_equal(got, want)


def test_votes(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = (rng.random(1024) < np.repeat([0, 1, 0.1, 0.9], 256)).astype(np.uint32)
    body = """
    setp.ne.u32 p, in0, 0;
    vote.sync.ballot.b32 out0, p, -1;
    vote.sync.all.pred q, p, -1; selp.u32 t1, 1, 0, q;
    vote.sync.any.pred q, p, -1; selp.u32 t2, 2, 0, q;
    vote.sync.uni.pred q, !p, -1; selp.u32 t3, 4, 0, q;
    or.b32 out1, t1, t2; or.b32 out1, out1, t3;
"""
    ballot, flags = run(device, body, [x], ["u4", "u4"])
    warps = x.reshape(-1, 32)
    bits = (warps.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)
    np.testing.assert_array_equal(ballot, np.repeat(bits, 32))
    every, some = warps.all(1), warps.any(1)
    np.testing.assert_array_equal(flags, np.repeat(every + 2 * some + 4 * (every | ~some), 32))


def test_match_redux_elect(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.integers(0, 4, 128, np.uint32) - np.uint32(2)
    body = """
    match.any.sync.b32 out0, in0, -1;
    redux.sync.add.s32 t1, in0, -1; redux.sync.min.s32 t2, in0, -1; redux.sync.max.u32 t3, in0, -1;
    redux.sync.xor.b32 t4, in0, -1;
    xor.b32 out1, t1, t2; xor.b32 out1, out1, t3; xor.b32 out1, out1, t4;
    match.all.sync.b32 t5|p, in0, -1; selp.u32 out2, 1, 0, p;
    elect.sync t6|q, 0xfffffff8; selp.u32 out3, 1, 0, q;
"""
    body = body.replace("elect.sync", "setp.ne.u32 q, i, i;\nsetp.ge.u32 r, i, 3;\n@r elect.sync").replace(
        "selp.u32 out3, 1, 0, q", "selp.u32 out3, 1, 0, q"
    )
    same, mixed, equal, elected = run(device, body, [x[:32]], ["u4"] * 4, threads=32)
    x = x[:32]
    np.testing.assert_array_equal(same, [int(sum(1 << k for k in range(32) if x[k] == v)) for v in x])
    total = np.uint32(int(x.sum()) & 0xFFFFFFFF)
    want = total ^ x.view("i4").min().view("u4") ^ x.max() ^ np.bitwise_xor.reduce(x)
    assert (mixed == want).all()
    assert (equal == 0).all()
    np.testing.assert_array_equal(elected[3:], LANES[3:] == 3)


@pytest.mark.parametrize("threads", [32, 40, 128, 1024])
def test_bar_red_and_partial_warps(device: pysm120.Device, threads: int) -> None:
    body = """
    setp.lt.u32 p, i, 37;
    bar.red.popc.u32 out0, 0, p;
    bar.red.and.pred q, 1, p; selp.u32 t1, 1, 0, q;
    bar.red.or.pred q, 2, p; selp.u32 t2, 2, 0, q;
    or.b32 out1, t1, t2;
"""
    count, flags = run(device, body, [np.zeros(threads, np.uint32)], ["u4", "u4"], threads=threads)
    assert (count == min(37, threads)).all()
    assert (flags == (3 if threads <= 37 else 2)).all()


def test_producer_and_consumer_warps(device: pysm120.Device) -> None:
    """bar.arrive by one half, bar.sync by the other; warps that exit do not hold the others up."""
    body = """
    { .shared .b32 cell[64];
    setp.ge.u32 p, i, 64;
    mov.u32 t1, cell; and.b32 t2, i, 63; mad.lo.u32 t1, t2, 4, t1;
    mov.u32 out0, 0;
@p  bra consumer;
    add.u32 t3, i, 1000;
    st.shared.b32 [t1], t3;
    bar.arrive 1, 128;
    bra end;
consumer:
    bar.sync 1, 128;
    ld.shared.b32 out0, [t1];
    bar.sync 2, 64;
end: }
"""
    (got,) = run(device, body, [np.zeros(128, np.uint32)], ["u4"])
    np.testing.assert_array_equal(got, np.where(np.arange(128) >= 64, np.arange(128) - 64 + 1000, 0))


ATOMIC = (
    HEAD
    + """
.visible .entry count(.param .u64 param_x, .param .u32 param_n)
{
    .reg .b64 x; .reg .b32 t, n, c; .reg .f32 one; .reg .pred p;
    ld.param.u64 x, [param_x];
    ld.param.u32 n, [param_n];
    mov.f32 one, 0f3f800000;
    mov.u32 c, 0;
again:
    red.global.add.u32 [x], 1;
    atom.global.add.f32 one, [x + 4], 0f3f800000;
    red.global.max.u32 [x + 8], n;
    atom.global.inc.u32 t, [x + 12], 6;
    add.u32 c, c, 1;
    setp.lt.u32 p, c, n;
@p  bra again;
    ret;
}
"""
)


def test_atomics_between_ctas(device: pysm120.Device) -> None:
    x = device.zeros(8, np.uint32)
    device.load(ATOMIC)["count"](64, 64, x, np.uint32(20))
    got = x.numpy()
    assert got[0] == 64 * 64 * 20
    assert got.view("f4")[1] == 64 * 64 * 20
    assert got[2] == 20
    assert got[3] == 64 * 64 * 20 % 7


def test_launches_from_several_threads(device: pysm120.Device) -> None:
    module = device.load(ATOMIC)
    arrays = [device.zeros(8, np.uint32) for _ in range(4)]
    failed: list[Any] = []

    def work(x: pysm120.Array) -> None:
        try:
            for _ in range(10):
                module["count"](7, 32, x, np.uint32(3))
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    for x in arrays:
        assert x.numpy()[0] == 7 * 32 * 3 * 10


@pytest.mark.parametrize("seed", ["0", "1", "12345"])
def test_special_registers(device: pysm120.Device, monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    monkeypatch.setenv("PYSM120_SEED", seed)
    text = (
        HEAD
        + """
.visible .entry where(.param .u64 param_x)
{
    .reg .b64 x; .reg .b32 t, u, n, id;
    ld.param.u64 x, [param_x];
    mov.u32 t, %tid.z; mov.u32 u, %ntid.y; mov.u32 n, %tid.y; mad.lo.u32 t, t, u, n;
    mov.u32 u, %ntid.x; mov.u32 n, %tid.x; mad.lo.u32 t, t, u, n;
    mov.u32 id, %ctaid.z; mov.u32 u, %nctaid.y; mov.u32 n, %ctaid.y; mad.lo.u32 id, id, u, n;
    mov.u32 u, %nctaid.x; mov.u32 n, %ctaid.x; mad.lo.u32 id, id, u, n;
    mad.lo.u32 n, id, 48, t;
    mad.wide.u32 x, n, 16, x;
    mov.u32 u, %laneid; mov.u32 t, %warpid; mov.u32 n, %lanemask_lt;
    st.global.v4.b32 [x], {id, t, u, n};
    ret;
}
"""
    )
    x = device.zeros(24 * 48 * 4, np.uint32)
    device.load(text)["where"]((2, 3, 4), (4, 6, 2), x)
    got = x.numpy().reshape(24, 48, 4)
    lane = np.arange(48) % 32
    np.testing.assert_array_equal(got[:, :, 0], np.repeat(np.arange(24)[:, None], 48, 1))
    np.testing.assert_array_equal(got[5, :, 1], np.arange(48) // 32)
    np.testing.assert_array_equal(got[5, :, 2], lane)
    np.testing.assert_array_equal(got[5, :, 3], (1 << lane) - 1)
