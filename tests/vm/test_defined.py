"""Level full knows which values are defined: undefined ones are reported where they decide, and copies are not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from broken.planted import Planted, text
from broken.undefined import NEVER_STORED, ROWS, UNDEFINED

import pysm120
from pysm120.runtime.ffi import check, ffi, lib

pytestmark = pytest.mark.virtual

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (0, 1, 7)


def run(level: str, seed: int, body: str) -> None:
    """Run a body and copy all that it may have written to the host."""
    with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
        x = device.array(np.zeros(1024, np.uint32))
        device.load(text(body))["k"](1, 64, x)
        x.numpy()


@pytest.mark.parametrize("planted", UNDEFINED, ids=lambda planted: planted.name)
def test_caught(planted: Planted) -> None:
    for seed in SEEDS:
        with pytest.raises(pysm120.FaultError) as caught:
            run("full", seed, planted.broken)
        message = str(caught.value)
        for part in planted.parts:
            assert part in message
        assert "CTA 0,0,0" in message
        assert "expected a defined value" in message


@pytest.mark.parametrize("planted", UNDEFINED, ids=lambda planted: planted.name)
@pytest.mark.parametrize("level", ["off", "default", "full"])
def test_corrected(planted: Planted, level: str) -> None:
    for seed in SEEDS:
        run(level, seed, planted.right)


@pytest.mark.parametrize("computed", NEVER_STORED)
def test_rows_that_are_never_stored(computed: str) -> None:
    """Branches may skip computations of undefined values whose results nobody stores."""
    for seed in SEEDS:
        run("full", seed, ROWS.format(computed=computed))
    with pytest.raises(pysm120.FaultError, match="undefined result, byte 128 of"):
        run("full", 0, ROWS.format(computed=computed).replace("@q  st.global", "    st.global"))


# ---- what the host does to memory ----

STORE = text("    mad.wide.u32 y, i, 4, x;\n    st.global.b32 [y], e;")  # an undefined value to the first 64 words
READ = text("    mad.wide.u32 y, i, 4, x;\n    ld.global.b32 a, [y];\n    st.global.b32 [y + 256], a;")
DECIDE = text("    ld.global.b32 a, [x];\n    setp.eq.u32 s, a, 0;\n@s  bra over;\n    bar.warp.sync -1;\nover:")


@pytest.fixture
def full() -> Iterator[pysm120.Device]:
    with pysm120.Device("virtual?checks=full") as device:
        yield device


def launch(device: pysm120.Device, program: str, x: pysm120.Array) -> None:
    device.load(program)["k"](1, 64, x)
    device.synchronize()


def test_new_memory_is_undefined(full: pysm120.Device) -> None:
    with pytest.raises(pysm120.FaultError, match=r"global address 0x[0-9a-f]+ was never written before"):
        launch(full, DECIDE, full.empty(1024, np.uint32))
    launch(full, DECIDE, full.zeros(1024, np.uint32))
    launch(full, DECIDE, full.array(np.ones(1024, np.uint32)))


def test_memory_that_nobody_wrote_may_be_copied(full: pysm120.Device) -> None:
    x = full.empty(1024, np.uint32)
    x.numpy()
    launch(full, text("    mad.wide.u32 y, i, 4, x;\n    st.global.b32 [y], i;"), x)
    assert (x.numpy()[:64] == np.arange(64)).all()


def test_results_of_two_launches(full: pysm120.Device) -> None:
    """What one kernel left undefined, another copies, and the host gets: the first is named."""
    x = full.zeros(1024, np.uint32)
    launch(full, STORE, x)
    launch(full, READ, x)
    launch(full, text("    mad.wide.u32 y, i, 4, x;\n    st.global.b32 [y], i;"), x)  # the first words are good again
    with pytest.raises(pysm120.FaultError, match=r"byte 256 of 4096 .* k stored it at broken\.ptx:2, and register e"):
        x.numpy()
    x.copy_from(np.zeros(1024, np.uint32))
    x.numpy()


def test_padding_stays_where_it_is(full: pysm120.Device) -> None:
    """A kernel may store what is undefined as long as the host does not ask for it."""
    x, y = full.zeros(1024, np.uint32), full.zeros(1024, np.uint32)
    launch(full, STORE, x)
    assert x.copy() is not None
    assert not y.numpy().any()


@pytest.mark.parametrize("shift", [0, 1, 3, 130])
def test_copies_on_the_device(full: pysm120.Device, shift: int) -> None:
    """Definedness travels with the bytes, also when they overlap and words are cut."""
    x, y = full.zeros(1024, np.uint32), full.zeros(1024, np.uint32)
    launch(full, text("    mad.wide.u32 y, i, 4, x;\n@r  st.global.b16 [y + 6], h;"), x)
    handle = full.handle.pointer
    start, other = x.address, y.address
    check(lib.sm120_copy_on_device(handle, other + shift, start, 512, ffi.NULL))
    check(lib.sm120_copy_on_device(handle, other + shift + 5, other + shift, 512, ffi.NULL))
    into = np.zeros(1, np.uint8)
    for at in range(540):
        undefined = at - shift in (6, 7) and shift + 5 > at
        undefined |= at - shift - 5 in (6, 7)
        status = lib.sm120_copy_to_host(handle, ffi.from_buffer(into), other + at, 1, ffi.NULL)
        assert (status != lib.SM120_OK) == undefined, at


def test_filling_defines(full: pysm120.Device) -> None:
    x = full.empty(1024, np.uint32)
    launch(full, STORE, x)
    check(lib.sm120_fill(full.handle.pointer, x.address, 0, 4096, ffi.NULL))
    launch(full, DECIDE, x)
    x.numpy()


def test_pinned_memory_is_read_at_once(full: pysm120.Device) -> None:
    host, address = ffi.new("void **"), ffi.new("sm120_address *")
    check(lib.sm120_alloc_pinned(full.handle.pointer, 4096, host, address))
    kernel = full.load(STORE)["k"]
    with pytest.raises(pysm120.FaultError, match="reads in pinned memory is decided by register e"):
        kernel(1, 64, np.uint64(address[0]))
    check(lib.sm120_free_pinned(full.handle.pointer, host[0]))


def test_laxer_launches_define(full: pysm120.Device) -> None:
    """A launch that keeps nothing may have written anything, and memory of a laxer device counts as defined."""
    x = full.empty(1024, np.uint32)
    with pysm120.Device("virtual?checks=off") as lax:
        y = lax.empty(1024, np.uint32)
        kernel = full.load(DECIDE)["k"]
        kernel(1, 64, np.uint64(y.address))
        full.synchronize()
        launch(lax, STORE, y)
        launch(full, DECIDE, x)
        launch(full, STORE, x)
        x.numpy()


def test_memory_is_used_again(full: pysm120.Device) -> None:
    for _ in range(20):
        x = full.zeros(1024, np.uint32)
        launch(full, STORE, x)
        x.free()
        y = full.empty(1024, np.uint32)
        y.numpy()
        with pytest.raises(pysm120.FaultError, match="never written"):
            launch(full, DECIDE, y)
        y.free()


# ---- calls ----

HARDWARE = """.version 8.8
.target sm_120f
.address_size 64
.func (.param .b32 out) first()
{
    .reg .pred p;
    .reg .b32 a;
    mov.u32 a, %ctaid.x;
    setp.ne.u32 p, a, 0;
@p  trap;
    st.param.b32 [out], a;
    ret;
}
.func (.param .b32 out) number(.param .b32 depth)
{
    .reg .pred p;
    .reg .b32 a, b, d;
    ld.param.b32 d, [depth];
    setp.eq.u32 p, d, 0;
    mov.u32 b, 0;
@p  bra last;
    sub.u32 d, d, 1;
    { .param .b32 x, y; st.param.b32 [x], d; call (y), number, (x); ld.param.b32 b, [y]; }
last:
    { .param .b32 y; call (y), first, (); ld.param.b32 a, [y]; }
    add.u32 b, b, a;
    mov.u32 a, %tid.x;
    setp.ge.u32 p, a, 40;
@p  trap;
    add.u32 b, b, a;
    mov.u32 a, %nctaid.x;
    add.u32 b, b, a;
    st.param.b32 [out], b;
    ret;
}
.entry k(.param .u64 param_x)
{
    .reg .b32 a, i;
    .reg .b64 x;
    { .param .b32 v, r; st.param.b32 [v], 2; call (r), number, (v); ld.param.b32 a, [r]; }
    ld.param.u64 x, [param_x];
    mov.u32 i, %laneid;
    mad.wide.u32 x, i, 4, x;
    st.global.b32 [x], a;
    ret;
}
"""


def test_hardware_registers_of_functions() -> None:
    """They are defined in functions that read them first, also in those that call themselves."""
    device = pysm120.Device("virtual:0?checks=full")
    x = device.zeros(32, np.uint32)
    device.load(HARDWARE)["k"](1, 32, x)
    assert (x.numpy() == 3 * (np.arange(32) + 1)).all()


CALLS = """.version 8.8
.target sm_120f
.address_size 64
.func (.param .b32 out) leave(.param .b32 in, .param .b32 depth)
{{
    .reg .pred p;
    .reg .b32 a, b, d, unset;
    .local .align 4 .b8 mine[8];
    ld.param.b32 a, [in];
    ld.param.b32 d, [depth];
    {first}
    setp.eq.u32 p, d, 0;
@p  bra done;
    sub.u32 d, d, 1;
    {{
        .param .b32 x; .param .b32 y; .param .b32 z;
        st.param.b32 [x], a;
        st.param.b32 [y], d;
        call (z), leave, (x, y);
        ld.param.b32 b, [z];
    }}
done:
    st.param.b32 [out], {result};
    ret;
}}
.visible .entry k(.param .u64 param_x)
{{
    .reg .b32 a, i;
    .reg .b64 x;
    ld.param.u64 x, [param_x];
    mov.u32 i, %tid.x;
    {{
        .param .b32 v; .param .b32 w; .param .b32 r;
        st.param.b32 [v], i;
        st.param.b32 [w], 3;
        call (r), leave, (v, w);
        ld.param.b32 a, [r];
    }}
    mad.wide.u32 x, i, 4, x;
    st.global.b32 [x], a;
    ret;
}}
"""


@pytest.mark.parametrize(
    ("first", "result", "said"),
    [
        ("mov.b32 b, a;", "a", None),
        ("mov.b32 b, a;", "b", None),
        ("", "b", "register b was never written"),
        ("mov.b32 b, 0; @!p mov.b32 b, 1;", "b", "predicate p was never written"),
        ("setp.ne.u32 p, d, 3; @p bra skip; mov.b32 unset, a; skip:", "unset", None),
        ("setp.eq.u32 p, d, 3; @p bra skip; mov.b32 unset, a; skip:", "unset", "register unset was never written"),
        ("st.local.b32 [mine], a; ld.local.b32 b, [mine];", "b", None),
        ("st.local.b32 [mine], a; ld.local.b32 unset, [mine + 4];", "unset", "local address 0x[0-9a-f]+ was never"),
    ],
)
def test_calls(full: pysm120.Device, first: str, result: str, said: str | None) -> None:
    """A function begins with nothing written, and its caller finds again what it had, which nothing else may have."""
    x = full.zeros(64, np.uint32)
    full.load(CALLS.format(first=first, result=result))["k"](1, 64, x)
    if said:
        with pytest.raises(pysm120.FaultError, match=said):
            x.numpy()
    else:
        assert (x.numpy() == np.arange(64)).all()


# ---- kernels that are right ----


OURS = "tests/ops/test_attention.py tests/ops/test_attention_mixed.py tests/ops/test_quantize.py"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tests", ["tests/corpus", OURS])
def test_none_fires_on_what_is_right(tests: str) -> None:
    """What compilers write, and our own kernels, at level full."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests.split()]
    environment = {**os.environ, "PYSM120_CHECKS": "full"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
