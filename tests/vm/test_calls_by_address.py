"""Calls by address: which functions they may reach, and functions among these that cannot run."""

import numpy as np
import pytest

import pysm120

pytestmark = pytest.mark.virtual
HEAD = """.version 9.0
.target sm_120f
.address_size 64
.extern .func missing(.param .b64 a);
.func unused(.param .b64 a) { wgmma.fence.sync.aligned; ret; }
.func bad(.param .b64 a) { frob r1; wgmma.fence.sync.aligned; ret; }
.func helper() { { tcgen05.wait; } ret; }
.func deep(.param .b64 a) { call helper; ret; }
.func good(.param .b64 a)
{
    .reg .b64 d;
    .shared .b32 s[4];
    ld.param.b64 d, [a];
    st.shared.b32 [s], 7;
    st.global.b64 [d], 7;
    ret;
}
.func other() { ret; }
.func again(.param .b64 a)
{
    .reg .b64 d;
    .param .b64 x;
    ld.param.b64 d, [a];
    st.param.b64 [x], d;
    call good, (x);
    ret;
}
.global .u64 table[3] = {good, generic(deep), again};
.const .b64 parts = bad;
"""
KERNEL = """.entry {name}(.param .u64 p)
{{
    .reg .b64 d, f;
    .param .b64 x;
    ld.param.u64 d, [p];
    st.param.b64 [x], d;
    {take}
    to: {prototype};
    call f, (x), to;
    ret;
}}
"""
PROTOTYPE = ".callprototype _ (.param .b64 x)"


def kernel(take: str, prototype: str = PROTOTYPE, name: str = "k") -> str:
    return KERNEL.format(take=take, prototype=prototype, name=name)


def call(device: pysm120.Device, text: str) -> int:
    out = device.zeros(1, np.uint64)
    device.load(HEAD + text, strict=True)["k"](1, 1, out)
    device.synchronize()
    return int(out.numpy()[0])


TAKES = {
    "moved": "mov.b64 f, good;",
    "a table": "ld.global.b64 f, [table];",
    "a function that calls": "ld.global.b64 f, [table + 16];",
    "two": "mov.b64 f, bad; mov.b64 f, good;",
}


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("prototype", [PROTOTYPE, ".calltargets good", ".calltargets good, again, deep"])
def test_good(device: pysm120.Device, take: str, prototype: str) -> None:
    """Other functions that cannot run are no obstacle, whether their addresses are used or not."""
    assert call(device, kernel(TAKES[take], prototype)) == 7


CALLED = {
    "mov.b64 f, bad;": "a call of bad, which cannot run:.*'frob'.*wgmma",
    "ld.const.b64 f, [parts];": "a call of bad, which cannot run:.*'frob'.*wgmma",
    "ld.global.b64 f, [table + 8];": "a call of helper, which cannot run:.*tcgen05",
    "mov.b64 f, missing;": "a call of missing, which cannot run:.*modules are not linked",
    "mov.b64 f, other;": "a call of other, whose parameters differ",
    "mov.b64 f, 32;": "a call of 0x20, which is not the address of a function",
}


@pytest.mark.parametrize("take", CALLED)
@pytest.mark.parametrize("level", ["off", "default", "full"])
def test_fault(take: str, level: str) -> None:
    """The launch fails, with every reason, where the function is called."""
    with pysm120.Device(f"virtual?checks={level}") as device:
        with pytest.raises(pysm120.Error, match=f"(?s){CALLED[take]}"):
            call(device, kernel(take))
        guarded = take + " .reg .pred q; setp.ne.u64 q, d, d; @!q mov.b64 f, good;"
        if level != "full":
            assert call(device, kernel(guarded)) == 7


def test_address_of_a_function_that_nobody_uses(device: pysm120.Device) -> None:
    """A number that happens to be its address reaches no code."""
    with pytest.raises(pysm120.Error, match="which is not the address of a function"):
        call(device, kernel("mov.b64 f, table; sub.u64 f, f, f; add.u64 f, f, 0x7;"))


def test_direct_call_is_refused_when_it_is_loaded(device: pysm120.Device) -> None:
    """Of a function that the entry reaches by direct calls, the reasons are the entry's."""
    direct = ".entry direct() { .param .b64 x; call deep, (x); ret; }\n"
    module = device.load(HEAD + direct + kernel("mov.b64 f, good;"))
    with pytest.raises(pysm120.InvalidProgramError, match="tcgen05"):
        module["direct"]
    both = kernel("call deep, (x); mov.b64 f, good;", name="both")
    with pytest.raises(pysm120.InvalidProgramError, match="tcgen05"):
        device.load(HEAD + both)["both"]


def test_entry_before_the_functions(device: pysm120.Device) -> None:
    """A kernel may call what another one has stored, although its text comes first."""
    head, _, functions = HEAD.partition(".extern")
    first = ".global .u64 slot;\n" + kernel("ld.global.b64 f, [slot];")
    store = ".entry store() { .reg .b64 f; mov.b64 f, good; st.global.b64 [slot], f; ret; }\n"
    module, out = device.load(head + first + ".extern" + functions + store), device.zeros(1, np.uint64)
    module["store"](1, 1)
    module["k"](1, 1, out)
    assert out.numpy()[0] == 7


def test_names_that_look_like_calls(device: pysm120.Device) -> None:
    """Registers and parameters may be called `call` or have the name of a function."""
    text = ".func named(.param .b64 bad) { .reg .b64 call; mov.b64 call, good; mov.b64 call, call; ret; }\n"
    assert call(device, text + kernel("mov.b64 f, good; mov.b64 f, f;")) == 7


BAD_TARGETS = [
    (".calltargets", "expected a function before ';'"),
    (".calltargets good, d", "expected a function before 'd'"),
    (".calltargets good, other", "must have the same parameters"),
    (".calltargets good good", "before 'good'"),
]


@pytest.mark.parametrize(("prototype", "why"), BAD_TARGETS)
def test_wrong_targets(device: pysm120.Device, prototype: str, why: str) -> None:
    with pytest.raises(pysm120.InvalidProgramError, match=why):
        call(device, kernel("mov.b64 f, good;", prototype))
