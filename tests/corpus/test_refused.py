"""What the virtual device cannot do is refused when it is loaded, with the line and the reason; what it need not mind
is not."""

import numpy as np
import pytest

import pysm120

pytestmark = pytest.mark.virtual
HEAD = ".version 9.0\n.target sm_120f\n.address_size 64\n"
BODY = HEAD + ".entry k()\n{{\n.reg .b32 r<9>;\n.reg .b64 d<9>;\n.reg .pred q;\n{}\nret;\n}}\n"

STATEMENTS = [
    ("wgmma.fence.sync.aligned;", "use mma.sync on SM120"),
    ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r0], r1;", "use mma.sync on SM120"),
    ("vadd4.u32.u32.u32 r0, r1, r2, r3;", "the only video instructions supported are vabsdiff2 and"),
    ("tex.1d.v4.s32.s32 {r0,r1,r2,r3}, [d0, {r4}];", "textures are not supported"),
    ("suld.b.1d.b32.trap {r0}, [d0, {r1}];", "surfaces are not supported"),
    ("st.async.weak.shared::cluster.b32 [r0], r1, [r2];", r"expected .mbarrier::complete_tx::bytes or .release"),
    ("red.async.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [r0], r1, [r2];", r"expected .relaxed.cluster"),
    ("multimem.ld_reduce.relaxed.gpu.global.add.f32 r0, [d0];", "multicast memory is not supported"),
    ("alloca.u64 d0, d1, 8;", "dynamic stack allocation is not supported"),
    ("call nowhere;", "undefined function 'nowhere'"),
    ("call d0, ();", "a call by address needs a prototype"),
    (
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [r0], [r1], 16, [r2];",
        "bulk reductions into shared memory are not supported",
    ),
    ("fma.rn.oob.f16x2 r0, r1, r2, r3;", ".oob looks for a NaN of the chip's own"),
]


@pytest.mark.parametrize(("statement", "reason"), STATEMENTS, ids=[s.split()[0][:12] for s, _ in STATEMENTS])
def test_statement(device: pysm120.Device, statement: str, reason: str) -> None:
    with pytest.raises(pysm120.InvalidProgramError, match=rf"(?s)<ptx>:9:\d+: error: .*{reason}"):
        device.load(BODY.format(statement))


MODULES = [
    (".shared .texref t;", r"4:9: error: textures and surfaces are not supported"),
    (".global .samplerref t;", r"4:9: error: textures and surfaces are not supported"),
    (".entry k() { .global .texref t; ret; }", r"4:22: error: textures and surfaces are not supported"),
    (
        ".entry k()\n.reqnctapercluster 3, 3, 1\n{ ret; }",
        r"5:1: error: a cluster of 3 x 3 x 1 CTAs; expected at most 8",
    ),
    (".entry k()\n.blocksareclusters\n{ ret; }", r"5:1: error: .blocksareclusters needs .reqntid and .reqnctapercl"),
    (
        ".entry k() .reqntid 1 .blocksareclusters { ret; }",
        r"error: .blocksareclusters needs .reqntid and .reqnctapercl",
    ),
    (".func f() .blocksareclusters { ret; }", r"4:11: error: unsupported directive '.blocksareclusters'"),
    (".func f();\n.entry k()\n{ call f; ret; }", r"4:7: error: 'f' is called but has no body"),
    (".extern .func f();\n.entry k()\n{ call f; ret; }", r"6:8: error: 'f' is not defined in this module"),
    (".func f(.param .b32 a) { ret; }\n.entry k()\n{ call f; ret; }", r"the call has 0 arguments and 0 results"),
    (".func f(.param .b32 a) { ret; }\n.entry k()\n{ .param .b64 x; call f, (x); ret; }", r"'x' has 8 bytes"),
    (".func f() { ret; }\n.func f() { ret; }", r"'f' is defined twice"),
    (".func f(.param .b32 a);\n.func f() { ret; }", r"'f' was declared earlier with other parameters"),
    (".func f() { ret;", r"expected '}', but the text ends"),
    (".extern .global .b32 x = 1;", r"an .extern variable cannot have an initial value"),
    (".extern .global .b32 x; .visible .global .f32 x;", r"'x' is declared twice"),
    (".entry f() { ret; }\n.entry k() { .reg .b64 d; mov.u64 d, f; ret; }", r"'f' is a kernel; launches from a kernel"),
]


@pytest.mark.parametrize(("text", "reason"), MODULES)
def test_module(device: pysm120.Device, text: str, reason: str) -> None:
    with pytest.raises(pysm120.InvalidProgramError, match=reason):
        device.load(HEAD + text, strict=True)


def test_newer_version_and_vector_variables(device: pysm120.Device) -> None:
    text = (
        HEAD.replace("9.0", "12.3")
        + """
.const .v2 .u32 pairs[2] = {1, 2, 3, 4};
.visible .entry k(.param .u64 y)
{
    .reg .b32 r<2>;
    .reg .b64 d;
    ld.param.u64 d, [y];
    ld.const.v2.u32 {r0, r1}, [pairs + 8];
    st.global.v2.u32 [d], {r0, r1};
    ret;
}
"""
    )
    y = device.zeros(2, np.uint32)
    device.load(text)["k"](1, 1, y)
    assert y.numpy().tolist() == [3, 4]


def test_call_through_registers(device: pysm120.Device) -> None:
    text = (
        HEAD
        + """
.func (.reg .u32 sum) add(.reg .u32 a, .reg .u32 b)
{
    add.u32 sum, a, b;
    ret;
}
.visible .entry k(.param .u64 y)
{
    .reg .b32 r;
    .reg .b64 d;
    ld.param.u64 d, [y];
    mov.u32 r, %tid.x;
    call (r), add, (r, 5);
    call (r), add, (r, r);
    mad.wide.u32 d, r, 2, d;
    sub.u64 d, d, 20;
    st.global.u32 [d], r;
    ret;
}
"""
    )
    y = device.zeros(32, np.uint32)
    device.load(text)["k"](1, 32, y)
    assert y.numpy().tolist() == [2 * (i + 5) for i in range(32)]


RUN_TIME = [
    ("call d0, (), proto;", "a call of 0x7, which is not the address of a function"),
    ("mov.u64 d0, other; call d0, (), proto;", "a call of other, whose parameters differ"),
    ("call endless;", "stack overflow: the call of endless, nested"),
]


@pytest.mark.parametrize(("statement", "message"), RUN_TIME, ids=["address", "prototype", "overflow"])
def test_fault(device: pysm120.Device, statement: str, message: str) -> None:
    functions = ".func other(.param .b32 a) { ret; }\n.func endless() { .local .b64 x[8]; call endless; ret; }\n"
    body = "mov.u64 d0, 7;\nproto: .callprototype _ ();\n" + statement
    loaded = device.load(HEAD + functions + BODY.format(body).removeprefix(HEAD))["k"]

    def run() -> None:
        loaded(1, 32)
        device.synchronize()

    with pytest.raises(pysm120.Error, match=message):
        run()


@pytest.mark.parametrize("value", ["%ctaid.x", "%tid.x"])
def test_copies_of_one_value(device: pysm120.Device, value: str) -> None:
    """Warps may store the same to one place, as compilers let them; different values are a race."""
    body = f".shared .align 4 .b32 s;\nmov.u32 r0, {value};\nst.shared.b32 [s], r0;"
    loaded = device.load(BODY.format(body))["k"]

    def run() -> None:
        loaded(1, 64)
        device.synchronize()

    if value == "%ctaid.x":
        run()
        return
    with pytest.raises(pysm120.Error, match="data race"):
        run()
