"""CTAs that wait for one another make progress on any number of threads; those that wait for ever are a fault."""

import os
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from broken.planted import text

import pysm120

pytestmark = pytest.mark.virtual

LEVELS = ("off", "default", "full")

# each round: every thread writes its number, all CTAs meet, and every thread reads of the next CTA; word 0 counts
GRID_BARRIER = """
    mov.u32 e, %nctaid.x;
    mov.b32 f, 0;
round:
    mad.lo.u32 a, n, 64, i;
    mad.wide.u32 y, a, 4, x;
    add.u32 b, a, f;
    st.global.b32 [y + 64], b;
    add.u32 f, f, 1;
    bar.sync 0;
@!r bra first_met;
    atom.add.release.gpu.global.u32 c, [x], 1;
    mul.lo.u32 d, f, e;
first:
    ld.acquire.gpu.global.b32 c, [x];
    setp.lt.u32 s, c, d;
@s  bra first;
first_met:
    bar.sync 0;
    add.u32 b, n, 1;
    rem.u32 b, b, e;
    mad.lo.u32 b, b, 64, i;
    mad.wide.u32 y, b, 4, x;
    ld.global.b32 c, [y + 64];
    mad.lo.u32 d, e, 64, a;
    mad.wide.u32 y, d, 4, x;
    st.global.b32 [y + 64], c;
    bar.sync 0;
@!r bra second_met;
    atom.add.release.gpu.global.u32 c, [x + 8], 1;
    mul.lo.u32 d, f, e;
second:
    ld.acquire.gpu.global.b32 c, [x + 8];
    setp.lt.u32 s, c, d;
@s  bra second;
second_met:
    bar.sync 0;
    setp.lt.u32 s, f, 3;
@s  bra round;
"""

# a chain from the last CTA to the first: CTA k adds its number to what CTA k + 1 left, and signals
CHAIN = """
    mov.u32 e, %nctaid.x;
    sub.u32 e, e, 1;
    mad.wide.u32 y, n, 8, x;
    mov.b32 a, 0;
    setp.eq.u32 s, n, e;
@s  bra own;
wait:
    ld.acquire.gpu.global.b32 b, [y + 12];
    setp.eq.u32 s, b, 0;
@s  bra wait;
    ld.global.b32 a, [y + 8];
own:
    bar.sync 0;
    add.u32 a, a, n;
@!r bra over;
    st.global.b32 [y], a;
    st.release.gpu.global.b32 [y + 4], 1;
over:
"""

# a lock around a counter that is no atomic; the backoff sleeps
LOCK = """
@!r bra over;
    mov.b32 e, 20;
take:
    atom.cas.acquire.gpu.global.b32 a, [x], 0, 1;
    setp.ne.u32 s, a, 0;
@!s bra taken;
    nanosleep.u32 e;
    bra take;
taken:
    ld.global.b32 b, [x + 4];
    add.u32 b, b, 1;
    st.global.b32 [x + 4], b;
    atom.exch.release.gpu.global.b32 a, [x], 0;
over:
"""


def run(name: str, body: str, ctas: int) -> npt.NDArray[np.uint32]:
    """Run a body on a new device and return its memory."""
    with pysm120.Device(name) as device:
        x = device.array(np.zeros(1024 + 128 * ctas, np.uint32))
        device.load(text(body))["k"](ctas, 64, x)
        memory: npt.NDArray[np.uint32] = x.numpy()
        return memory


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_grid_barrier(monkeypatch: pytest.MonkeyPatch, level: str, threads: str) -> None:
    monkeypatch.setenv("PYSM120_THREADS", threads)
    for ctas, seed in ((1, 0), (2, 1), (37, 0), (64, 7)):
        got = run(f"virtual?checks={level}&seed={seed}", GRID_BARRIER, ctas)[16:]
        own = np.arange(64 * ctas) + 2
        np.testing.assert_array_equal(got[: 64 * ctas], own)
        np.testing.assert_array_equal(got[64 * ctas : 128 * ctas], np.roll(own, -64))


# a launch on each of two devices, from one place of one thread: the second needs more memory for its registers
TWO_DEVICES = """
import threading
import numpy as np
import pysm120

HEAD = ".version 9.0\\n.target sm_120f\\n.address_size 64\\n"
SMALL = HEAD + ".entry k(.param .u64 p) { ret; }"
MANY = "".join(f"add.u32 r{k + 1}, r{k}, 1;" for k in range(300))
BIG = HEAD + ".entry k(.param .u64 p) { .reg .b32 r<301>; .reg .b64 x; ld.param.u64 x, [p]; mov.u32 r0, %tid.x; "
BIG += "mad.wide.u32 x, r0, 4, x;" + MANY + "st.global.u32 [x], r300; ret; }"

def work():
    for name, text, block in (("virtual:0", SMALL, 32), ("virtual:1", BIG, 1024)):
        with pysm120.Device(name) as device:
            x = device.zeros(1024, np.uint32)
            device.load(text)["k"](1, block, x)
            found.append(x.numpy())

found = []
thread = threading.Thread(target=work)
thread.start()
thread.join()
print((found[1] == np.arange(1024) + 300).all())
"""


def test_launches_on_two_devices() -> None:
    """Memory that a thread keeps from one launch is not taken for that of another device's."""
    environment = {**os.environ, "PYSM120_VIRTUAL_DEVICES": "2", "PYSM120_THREADS": "1"}
    command = [sys.executable, "-c", TWO_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_chain(monkeypatch: pytest.MonkeyPatch, level: str, threads: str) -> None:
    monkeypatch.setenv("PYSM120_THREADS", threads)
    for ctas, seed in ((1, 0), (2, 0), (101, 0), (64, 3)):
        got = run(f"virtual?checks={level}&seed={seed}", CHAIN, ctas)
        np.testing.assert_array_equal(got[: 2 * ctas : 2], np.cumsum(np.arange(ctas)[::-1])[::-1])


@pytest.mark.parametrize("level", LEVELS)
def test_lock(level: str) -> None:
    for seed in range(4):
        assert run(f"virtual?checks={level}&seed={seed}", LOCK, 150)[1] == 150


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", ["off", "full"])
def test_as_many_as_the_chip_holds(level: str) -> None:
    run(f"virtual?checks={level}", GRID_BARRIER, 170 * 24)
    with pytest.raises(pysm120.FaultError) as caught:
        run(f"virtual?checks={level}", GRID_BARRIER, 170 * 24 + 1)
    assert "4080 CTAs are resident" in str(caught.value)
    assert "wait for CTAs that have not started" in str(caught.value)


DEADLOCKS = {
    "a CTA that does not come": (
        "@!p mov.u32 e, %nctaid.x;\n setp.eq.u32 s, n, 3;\n@s ret;\n" + GRID_BARRIER,
        ("deadlock", "7 CTAs that have not ended wait", "polled at broken.ptx:", "barrier 0: 32 of 64"),
    ),
    "a lock that is not given back": (
        LOCK.replace("atom.exch.release.gpu.global.b32 a, [x], 0", "mov.b32 a, 0"),
        ("deadlock", "a value other than 0x1 at global address", "lanes 0x00000001"),
    ),
    "a poll that sleeps": (
        "spin:\n ld.volatile.global.b32 a, [x];\n setp.eq.u32 s, a, 0;\n nanosleep.u32 20;\n@s bra spin;",
        ("deadlock", "all 8 CTAs", "a value other than 0x0", "polled at broken.ptx:2"),
    ),
    "a weak poll": (
        "spin:\n ld.global.b32 a, [x];\n setp.eq.u32 s, a, 0;\n@s bra spin;",
        ("deadlock", "all 8 CTAs", "warp 1, lanes 0xffffffff"),
    ),
    "a shared flag": (
        "@r st.shared.b32 [smem], 0;\nbar.sync 0;\nl:ld.volatile.shared.b32 a,[smem];\nsetp.eq.b32 s,a,0;\n@s bra l;",
        ("deadlock", "a value other than 0x0 at shared address 0x400"),
    ),
    "barriers after a failed poll of an mbarrier": (
        """
        @r mbarrier.init.shared.b64 [smem], 1;
        bar.sync 0;
        mbarrier.test_wait.parity.shared.b64 s, [smem], 0;
        @p bar.sync 1, 64;
        @!p bar.sync 2, 64;""",
        ("deadlock: no warp can continue", "barrier 1: 32 of 64", "barrier 2: 32 of 64"),
    ),
}


SLOW = {("a weak poll", "full")}  # a minute: each of its polls is checked for a race before the next


@pytest.mark.parametrize(
    ("name", "level"),
    [
        pytest.param(name, level, marks=[pytest.mark.slow] if (name, level) in SLOW else [])
        for name in DEADLOCKS
        for level in LEVELS
    ],
)
def test_deadlock(monkeypatch: pytest.MonkeyPatch, level: str, name: str) -> None:
    body, parts = DEADLOCKS[name]
    for seed, threads in ((0, "1"), (1, "2"), (2, "3")):
        monkeypatch.setenv("PYSM120_THREADS", threads)
        with pytest.raises(pysm120.FaultError) as caught:
            run(f"virtual?checks={level}&seed={seed}", body, 8)
        for part in parts:
            assert part in str(caught.value)


def test_a_wait_with_an_end_is_no_deadlock() -> None:
    body = """
    mov.b32 b, 0;
spin:
    add.u32 b, b, 1;
    ld.volatile.global.b32 a, [x];
    setp.eq.u32 s, a, 0;
    setp.lt.and.u32 s, b, 30000, s;
@s  bra spin;
    mad.lo.u32 a, n, 64, i;
    mad.wide.u32 y, a, 4, x;
    st.global.b32 [y + 8], b;
"""
    for level in LEVELS:
        np.testing.assert_array_equal(run(f"virtual?checks={level}", body, 3)[2 : 2 + 3 * 64], 30000)


def test_a_runaway_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSM120_INSTRUCTION_LIMIT", "300000")
    body = "@p bar.sync 0;\nmov.b32 b, 0;\nspin:\n add.u32 b, b, 1;\n bra spin;"
    with pytest.raises(pysm120.FaultError, match="more than 300000 warp instructions") as caught:
        run("virtual", body, 1)
    assert "warp 0, lanes 0xffffffff, broken.ptx:" in str(caught.value)
    assert "barrier 0: 32 of 64 threads have arrived" in str(caught.value)


def test_a_seed_fixes_the_run_of_ctas_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    order = LOCK.replace("over:", "").replace("@!r bra over;", "@!r ret;") + (
        "mad.wide.u32 y, n, 4, x;\n st.global.b32 [y + 64], b;\n mov.u32 a, %clock;\n st.global.b32 [y + 512], a;"
    )
    results: dict[int, set[bytes]] = {}
    for seed in (0, 1, 2):
        for threads in ("1", "3"):
            monkeypatch.setenv("PYSM120_THREADS", threads)
            results.setdefault(seed, set()).add(run(f"virtual?checks=full&seed={seed}", order, 50).tobytes())
    assert all(len(bits) == 1 for bits in results.values())
    assert len({next(iter(bits)) for bits in results.values()}) == 3


# CTA 0 stores vectors whose words are equal; the others load them, and count the vectors with words that are not.
WHOLE = """
    .reg .b64 wide_<2>;
    .reg .b32 v_<4>;
    mov.b32 a, 0;
    mov.b32 e, 0;
    mad.wide.u32 y, i, 64, x;
    mad.lo.u32 d, n, 64, i;
    mad.wide.u32 w, d, 4, x;
again:
    add.u32 a, a, 1;
    setp.ne.u32 s, n, 0;
@s  bra reader;
    {store}
    bra next;
reader:
    {load}
    {differ}
next:
    setp.lt.u32 s, a, 3000;
@s  bra again;
    st.global.b32 [w + 8192], e;
"""
COPIES = "mov.b32 v_0, a; mov.b32 v_1, a; mov.b32 v_2, a; mov.b32 v_3, a; mov.b64 wide_0, {a, a};"
OF_WORDS = (
    "xor.b32 f, v_0, v_1; or.b32 e, e, f; xor.b32 f, v_2, v_3; or.b32 e, e, f; xor.b32 f, v_1, v_2; or.b32 e, e, f;"
)
OF_LONGS = "mov.b64 {v_0, v_1}, wide_0; mov.b64 {v_2, v_3}, wide_1;" + OF_WORDS


@pytest.mark.parametrize("store", ["relaxed.gpu", "release.sys", "volatile"])
@pytest.mark.parametrize("kind", ["v2.u64", "v4.b32"])
def test_vectors_are_whole(monkeypatch: pytest.MonkeyPatch, store: str, kind: str) -> None:
    """A strong access of 16 bytes is one: CUB's scans keep a value and its state in it."""
    monkeypatch.setenv("PYSM120_THREADS", "3")
    pair, four = "{wide_0, wide_0}", "{v_0, v_1, v_2, v_3}"
    stored = f"{COPIES} st.{store}.global.{kind} [y + 1024], {pair if kind == 'v2.u64' else four};"
    loaded = f"ld.relaxed.gpu.global.{kind} {pair.replace('0}', '1}') if kind == 'v2.u64' else four}, [y + 1024];"
    body = WHOLE.format(store=stored, load=loaded, differ=OF_LONGS if kind == "v2.u64" else OF_WORDS)
    for seed in range(3):
        got = run(f"virtual?checks=off&seed={seed}", body, 24)
        assert not got[2048 : 2048 + 24 * 64].any()
