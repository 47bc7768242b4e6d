"""malloc and free in kernels: what they return, how long memory lasts, and which accesses are faults."""

import numpy as np
import pytest

import pysm120

pytestmark = pytest.mark.virtual
HEAP = 8 << 20
TEXT = """.version 9.0
.target sm_120f
.address_size 64
.extern .func (.param .b64 result) malloc(.param .b64 bytes);
.extern .func free(.param .b64 address);
.global .u64 kept;
.func (.param .b64 r) take(.param .b64 n)
{
    .reg .b64 a;
    .param .b64 x, y;
    ld.param.b64 a, [n];
    st.param.b64 [x], a;
    call.uni (y), malloc, (x);
    ld.param.b64 a, [y];
    st.param.b64 [r], a;
    ret;
}
.func give(.param .b64 p)
{
    .reg .b64 a;
    .param .b64 x;
    ld.param.b64 a, [p];
    st.param.b64 [x], a;
    call free, (x);
    ret;
}
// each thread: 16 more bytes than the one before, its number in the first and the last word
.entry fill(.param .u64 out)
{
    .reg .b32 t, v; .reg .b64 o, n, a, e; .param .b64 x, y;
    ld.param.u64 o, [out];
    mov.u32 t, %tid.x;
    mul.wide.u32 n, t, 16;
    add.u64 n, n, 16;
    st.param.b64 [x], n;
    call (y), take, (x);
    ld.param.b64 a, [y];
    st.b32 [a], t;
    add.u64 e, a, n;
    st.global.b32 [e + -4], t;
    bar.sync 0;
    ld.global.b32 v, [a];
    mad.wide.u32 o, t, 8, o;
    st.global.b32 [o], v;
    and.b64 e, a, 15;
    cvt.u32.u64 v, e;
    st.global.b32 [o + 4], v;
    st.param.b64 [x], a;
    call give, (x);
    ret;
}
// out[0 to 4]: addresses for n, 0 and 16 bytes, and for 16 and n bytes after the first is free
.entry sizes(.param .u64 out, .param .u64 n)
{
    .reg .b64 o, a, b; .param .b64 x, y;
    ld.param.u64 o, [out]; ld.param.u64 a, [n];
    st.param.b64 [x], a; call (y), take, (x); ld.param.b64 b, [y]; st.global.b64 [o], b;
    st.param.b64 [x], 0; call (y), take, (x); ld.param.b64 a, [y]; st.global.b64 [o + 8], a;
    st.param.b64 [x], 16; call (y), take, (x); ld.param.b64 a, [y]; st.global.b64 [o + 16], a;
    st.param.b64 [x], b; call give, (x);
    st.param.b64 [x], 16; call (y), take, (x); ld.param.b64 a, [y]; st.global.b64 [o + 24], a;
    st.param.b64 [x], a; call give, (x);
    ld.param.u64 a, [n];
    st.param.b64 [x], a; call (y), take, (x); ld.param.b64 a, [y]; st.global.b64 [o + 32], a;
    st.param.b64 [x], a; call give, (x);
    ret;
}
// each thread takes 8 bytes, and frees them if is_free is not 0
.entry hold(.param .u64 out, .param .u32 is_free)
{
    .reg .b32 t, n; .reg .b64 o, a; .reg .pred keeps; .param .b64 x, y;
    ld.param.u64 o, [out];
    mov.u32 t, %ctaid.x; mov.u32 n, %ntid.x; mul.lo.u32 t, t, n; mov.u32 n, %tid.x; add.u32 t, t, n;
    st.param.b64 [x], 8; call (y), take, (x); ld.param.b64 a, [y];
    mad.wide.u32 o, t, 8, o;
    st.global.b64 [o], a;
    ld.param.u32 t, [is_free];
    setp.eq.u32 keeps, t, 0;
    @keeps ret;
    st.param.b64 [x], a; call give, (x);
    ret;
}
.entry keep()
{
    .reg .b64 a; .param .b64 x, y;
    st.param.b64 [x], 24; call (y), take, (x); ld.param.b64 a, [y];
    st.global.b64 [a + 16], 77;
    st.global.b64 [kept], a;
    ret;
}
// read 8 bytes at `offset` of what keep() has kept, then free it
.entry use(.param .u64 out, .param .u64 offset)
{
    .reg .b64 o, a, b; .param .b64 x;
    ld.param.u64 o, [out]; ld.param.u64 a, [offset];
    ld.global.b64 b, [kept];
    add.u64 a, a, b;
    ld.global.b64 a, [a];
    st.global.b64 [o], a;
    st.param.b64 [x], b; call give, (x);
    ret;
}
.entry late(.param .u64 out)
{
    .reg .b64 o, a; .param .b64 x, y;
    ld.param.u64 o, [out];
    st.param.b64 [x], 24; call (y), take, (x); ld.param.b64 a, [y];
    st.global.b64 [a], 1;
    st.param.b64 [x], a; call give, (x);
    ld.global.b64 a, [a];
    st.global.b64 [o], a;
    ret;
}
.entry release(.param .u64 p)
{
    .reg .b64 a; .param .b64 x;
    ld.param.u64 a, [p];
    st.param.b64 [x], a; call give, (x);
    ret;
}
.entry vague()
{
    .reg .b64 a; .param .b64 x, y;
    st.param.b64 [x], a; call (y), malloc, (x);
    ret;
}
"""


def module(level: str) -> tuple[pysm120.Device, pysm120.Module]:
    device = pysm120.Device(f"virtual:0?checks={level}")
    return device, device.load(TEXT, strict=True)


@pytest.mark.parametrize("level", ["off", "default", "full", "full&seed=5"])
def test_each_thread_has_memory_of_its_own(level: str) -> None:
    device, loaded = module(level)
    out = device.zeros((96, 2), np.uint32)
    for _ in range(2):
        loaded["fill"](1, 96, out)
        assert (out.numpy() == [[t, 0] for t in range(96)]).all()


def test_heap_has_a_size() -> None:
    """It is 8 MiB, as with CUDA. Without room, and for 0 bytes, malloc returns 0."""
    device, loaded = module("default")
    out = device.zeros(5, np.uint64)
    for size, has_room in ((HEAP, [True, False, False, True, True]), (HEAP + 1, [False, False, True, True, False])):
        loaded["sizes"](1, 1, out, np.uint64(size))
        assert (out.numpy() != 0).tolist() == has_room
    loaded["sizes"](1, 1, out, np.uint64(2**64 - 1))
    assert (out.numpy() != 0).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("level", ["off", "full"])
def test_as_many_blocks_as_threads(level: str) -> None:
    """More than a host could map apart; a launch finds the room of what earlier ones have freed."""
    device, loaded = module(level)
    for is_free in (1, 1, 0):
        kept = device.zeros((300, 256), np.uint64)
        loaded["hold"](300, 256, kept, np.uint32(is_free))
        assert kept.numpy().min() > 0
        assert len(np.unique(kept.numpy())) == kept.size
    assert device.array(np.ones(1000)).numpy().sum() == 1000, "the host can still map memory"


@pytest.mark.parametrize("level", ["off", "default", "full"])
def test_memory_lasts_until_it_is_free(level: str) -> None:
    device, loaded = module(level)
    out = device.zeros(1, np.uint64)
    loaded["keep"](1, 1)
    loaded["use"](1, 1, out, np.uint64(16))
    assert out.numpy() == 77
    with pytest.raises(pysm120.FaultError, match="use after free, 16 bytes into a freed allocation of 24 bytes"):
        loaded["use"](1, 1, out, np.uint64(16))
    with pytest.raises(pysm120.FaultError, match="use after free, 0 bytes into a freed allocation of 24 bytes"):
        loaded["late"](1, 1, out)


def test_bounds() -> None:
    device, loaded = module("off")
    loaded["keep"](1, 1)
    with pytest.raises(pysm120.FaultError, match="8 bytes before an allocation of 24 bytes"):
        loaded["use"](1, 1, device.zeros(1, np.uint64), np.uint64(2**64 - 8))
    with pytest.raises(pysm120.FaultError, match="past the end of an allocation of 24 bytes"):
        loaded["use"](1, 1, device.zeros(1, np.uint64), np.uint64(24))


@pytest.mark.parametrize("level", ["off", "full"])
def test_free_of_other_memory(level: str) -> None:
    device, loaded = module(level)
    loaded["release"](1, 1, np.uint64(0))
    array, where = device.zeros(4, np.uint64), device.zeros(5, np.uint64)
    with pytest.raises(pysm120.FaultError, match="expected an address that malloc has returned"):
        loaded["release"](1, 1, array)
    array.numpy()
    loaded["sizes"](1, 1, where, np.uint64(32))
    twice = where.numpy()[0]
    with pytest.raises(pysm120.FaultError, match="and that is not free"):
        loaded["release"](1, 1, np.uint64(twice))


def test_undefined_values() -> None:
    """Memory of malloc is undefined until it is written, and the size must be defined."""
    device, loaded = module("full")
    out = device.zeros(1, np.uint64)
    loaded["keep"](1, 1)
    loaded["use"](1, 1, out, np.uint64(0))
    with pytest.raises(pysm120.FaultError, match="undefined"):
        out.numpy()
    with pytest.raises(pysm120.FaultError, match="the size of this malloc"):
        loaded["vague"](1, 1)


def test_functions_of_the_module_come_first() -> None:
    text = TEXT.replace(".extern .func free(.param .b64 address);", ".func free(.param .b64 address) { trap; }")
    device = pysm120.Device("virtual:0?checks=off")
    with pytest.raises(pysm120.FaultError, match="trap"):
        device.load(text)["release"](1, 1, np.uint64(0))


def test_calls_are_statements() -> None:
    """Traces and profiles have the call itself, as they have calls of the module's own functions."""
    device, loaded = module("default")
    loaded["keep"](1, 1)
    out = device.zeros(1, np.uint64)
    with device.trace() as steps:
        loaded["keep"](1, 1)
    texts = [step.instruction.text for step in steps]
    at = texts.index("call.uni (y), malloc, (x)")
    assert texts[at - 1 : at + 2] == ["st.param.b64 [x], a", texts[at], "ld.param.b64 a, [y]"]
    with device.profile() as profile:
        loaded["use"](1, 1, out, np.uint64(16))
    calls = [(one.opcode, one.counts.executed) for one in profile.statements if one.text == "call free, (x)"]
    assert calls == [("call", 1)]
