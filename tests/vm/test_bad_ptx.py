"""PTX that must be refused when it is loaded, with the line and a caret."""

import contextlib
import time

import numpy as np
import pytest

import pysm120

pytestmark = pytest.mark.virtual

FRAME = """.version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .pred p;
    .reg .b16 h;
    .reg .b32 a, b;
    .reg .f32 f;
    .reg .b64 w;
    .reg .f64 d;
    .shared .align 16 .b8 smem[64];
{body}
    ret;
}}
"""

# statement, the text that the caret points to, a part of the message
BAD = [
    ("foo.bar a, b;", "foo.bar", "unknown instruction 'foo.bar'"),
    ("add.u33 a, a, b;", "add.u33", "unknown instruction"),
    ("add.u32 a, b;", "add.u32", "takes 3 operands, not 2"),
    ("add.u32 a, b, a, b;", "add.u32", "takes 3 operands, not 4"),
    ("add.u32 a, b, c;", "c;", "undefined register 'c'"),
    ("add.u32 a, b, w;", "w;", "'w' is .b64"),
    ("add.f32 f, f, f, f;", "add.f32", "takes 3 operands"),
    ("add.s32 a, f, b;", "f, b", "'f' is .f32"),
    ("add.f32 f, f, 1;", "1;", "float constant"),
    ("mov.u32 a, nowhere;", "nowhere", "undefined register 'nowhere'"),
    ("cvt.sat.s64.u32 w, a;", "cvt.sat", "cannot saturate"),
    ("add.u32 a, %tid.x, 1;", "%tid.x", "which only mov and cvt can read"),
    ("mov.u64 w, %laneid;", "%laneid", "'%laneid' is .u32"),
    ("add.u32 _, a, b;", "_", "needs a register for its result"),
    ("lop3.b32 a, b, b, b, a;", "a;", "expects a constant"),
    ("lop3.b32 a, b, b, b, 0f3f800000;", "0f3f", "expects a constant"),
    ("mov.f32 f, 0;", "0;", "float constant"),
    ("mov.u32 a, 0f3f800000;", "0f3f", "cannot be used as .u32"),
    ("mov.b32 a, 1.5;", "1.5", "cannot be used as .b32"),
    ("ld.shared.u16 f, [smem];", "f, [", "'f' is .f32"),
    ("ld.shared.b32 a, [smem - 4];", "- 4", "expected ']'"),
    ("mov.u16 a, h;", "a, h", "'a' is .b32"),
    ("bra nowhere;", "nowhere", "undefined label 'nowhere'"),
    ("@q add.u32 a, a, b;", "q", "undefined predicate 'q'"),
    ("@a add.u32 a, a, b;", "a add", "undefined predicate 'a'"),
    ("setp.foo.u32 p, a, b;", "setp.foo.u32", "does not support this comparison"),
    ("setp.lo.s32 p, a, b;", "setp.lo.s32", "does not support this comparison"),
    ("ld.global.b32 a, [p];", "p]", "expected a register, a variable or a constant as the address"),
    ("ld.global.b32 a, [nowhere];", "nowhere", "undefined symbol 'nowhere'"),
    ("ld.global.b32 a, w;", "w;", "address in brackets"),
    ("ld.global.v4.b32 a, [w];", "a, [w]", "a vector of 4 elements"),
    ("ld.global.v4.b64 {w, w, w}, [w];", "{w", "a vector of 4 elements"),
    ("ld.shared.v8.b32 {a,a,a,a,b,b,b,b}, [a];", "ld.shared.v8.b32", "the limit is 16 bytes in this state space"),
    ("ld.param.u64 w, [out + 4];", "[out", "reads 8 bytes at offset 4"),
    ("ld.shared.b32 a, [out];", "out", "state space"),
    ("st.param.u64 [out], w;", "st.param.u64", "read-only"),
    ("atom.global.add.u64 w, [w], w, w;", "atom.global.add.u64", "operands"),
    ("atom.global.frob.b32 a, [w], b;", "atom.global.frob.b32", "unknown instruction"),
    ("atom.global.add.f16 h, [w], h;", "atom.global.add.f16", "unknown instruction"),
    ("cvt.s32.f32 a, f;", "cvt.s32.f32", "integer rounding"),
    ("cvt.f32.s32 f, a;", "cvt.f32.s32", "needs a rounding"),
    ("cvt.rn.e4m3x2.f32 h, f, f;", "cvt.rn.e4m3x2.f32", "unknown instruction"),
    ("bar.sync 16;", "16", "out of range"),
    ("bar.sync 0, 33;", "33", "multiple of 32"),
    ("ldmatrix.sync.aligned.m16n16.x1.shared.b8 {a, b}, [a];", "ldmatrix", "unknown instruction"),
    ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b}, [a];", "{a, b}", "4 registers"),
    ("cp.async.cg.shared.global [a], [w], 8;", "8;", "copies 16 bytes"),
    ("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [a], [w], 20, [a];", "20", "multiple of 16"),
    ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [w], [a], 16;", "cp.reduce", "unknown instruction"),
    ("cp.reduce.async.bulk.global.shared::cta.bulk_group.max.f32 [w], [a], 16;", "cp.reduce", "unknown instruction"),
    ("wgmma.fence.sync.aligned;", "wgmma", "unknown instruction"),
    ("tcgen05.wait::ld.sync.aligned;", "tcgen05", "unknown instruction"),
    ("tex.2d.v4.f32.f32 {f,f,f,f}, [w, {f,f}];", "tex.2d", "unknown instruction"),
    ("elect.sync a, -1;", "a, -1", "d|p"),
    ("mov.u32 a, 1 / 0;", "/ 0", "division by zero"),
    ("mov.u32 a, (1 + 2;", ";", "expected ')'"),
    ("mov.u32 a, 0f3f80;", "0f3f80", "8 digits"),
    ("mov.u32 a b;", "b;", "expected ';'"),
    ("mov.u32 a, ;", ";", "expected an operand"),
    (".local .b32 l; st.local.b32 [l + 4], a;", "[l", "4 bytes at offset 4 of 'l', which has 4"),
    ("ld.shared.v2.b32 {a, b}, [smem + 60];", "[smem", "8 bytes at offset 60 of 'smem', which has 64"),
    ("atom.shared.add.u32 a, [smem + 64], b;", "[smem", "4 bytes at offset 64 of 'smem', which has 64"),
    ("mbarrier.init.shared.b64 [smem + 60], 1;", "[smem", "8 bytes at offset 60 of 'smem', which has 64"),
    ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {a}, [smem + 56];", "[smem", "16 bytes at offset 56 of 'smem'"),
    ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [smem + 64], {a};", "[smem", "16 bytes at offset 64 of 'smem'"),
    ("cp.async.ca.shared.global [smem + 61], [w], 4;", "[smem", "4 bytes at offset 61 of 'smem', which has 64"),
    (
        "cp.async.bulk.global.shared::cta.bulk_group [w], [smem + 16], 64;",
        "[smem",
        "64 bytes at offset 16 of 'smem', which has 64",
    ),
    (".reg .b32 a;", "a;", "declared twice"),
    (".reg .b64 r<3000000>;", "3000000>", "at most 2097152"),
    (".reg .b64 r<1000000>, s<1000000>;", ">;", "at most 2^21 registers"),
    (".reg .b32 r3, r<4>;", "r<4>", "'r3' is declared twice"),
    (".reg .b32 r<4>, r3;", "r3", "'r3' is declared twice"),
    (".reg .v4 .b64 v;", ".b64 v", "at most 128 bits"),
    (".reg .v2 .b32 v; mov.b32 v.z, 1;", ".z", "has no element"),
    (".reg .b64 r<30000>, r29999;", "r29999", "declared twice"),
    (".reg .b33 z;", ".b33", "expected a type"),
    (".shared .b8 big[50000]; mov.u32 a, big;", ";", "static shared"),
    (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {f,f,f,f}, {a,a}, {a,a}, {f,f,f,f};",
        "{a,a}, {a,a}",
        "4 registers",
    ),
    ("mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16 {a,a}, {a,a,a,a}, {a,a}, {a,a};", "mma", "instruction"),
    ("{ { add.u32 a, a, zz; } }", "zz", "undefined register 'zz'"),
    ("inner: { bra inner2; } { inner2: }", "inner2;", "undefined label"),
    ("call foo;", "foo", "undefined function 'foo'"),
    ("fence.frob;", "fence.frob", "unknown instruction"),
    ("mbarrier.frob.b64 [a];", "mbarrier", "unknown instruction"),
    ("shfl.sync.up.b32 a|f, a, 1, 0, -1;", "f, a", "predicate"),
]


def load_error(device: pysm120.Device, text: str) -> str:
    """Load PTX that must be refused and return the message."""
    with pytest.raises(pysm120.InvalidProgramError) as caught:
        device.load(text)
    return str(caught.value)


@pytest.mark.parametrize(("statement", "at", "message"), BAD, ids=[row[0] for row in BAD])
def test_statements(device: pysm120.Device, statement: str, at: str, message: str) -> None:
    text = FRAME.format(target="sm_120f", body="    " + statement)
    line = "    " + statement
    error = load_error(device, text)
    assert message in error
    rows = error.splitlines()
    where = next(k for k, row in enumerate(rows) if row == line)
    column = rows[where + 1].index("^")
    assert line[column:].startswith(at), line[column:]
    assert f":13:{column + 1}: error: " in rows[where - 1]


@pytest.mark.parametrize(
    ("target", "statement", "good"),
    [
        ("sm_120f", "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {a, b}, [a];", True),
        ("sm_120", "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {a, b}, [a];", False),
        ("sm_90", "setmaxnreg.dec.sync.aligned.u32 40;", False),
        ("sm_121a", "setmaxnreg.dec.sync.aligned.u32 40;", True),
        (
            "sm_120",
            "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32 {f,f,f,f}, {a,a,a,a}, {a,a}, {f,f,f,f};",
            False,
        ),
        (
            "sm_120a",
            "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32 {f,f,f,f}, {a,a,a,a}, {a,a}, {f,f,f,f};",
            True,
        ),
        ("sm_80", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {f,f,f,f}, {a,a,a,a}, {a,a}, {f,f,f,f};", True),
    ],
)
def test_features_of_targets(device: pysm120.Device, target: str, statement: str, good: bool) -> None:
    text = FRAME.format(target=target, body=statement)
    if good:
        device.load(text)
    else:
        assert "needs .target sm_120a or sm_120f" in load_error(device, text)


@pytest.mark.parametrize(
    "target", ["sm_4294967300", "sm_90a", "sm_100a", "sm_100f", "sm_104", "sm_110a", "sm_130", "sm_", "compute_90"]
)
def test_other_targets(device: pysm120.Device, target: str) -> None:
    with pytest.raises(pysm120.Error):
        device.load(FRAME.format(target=target, body=""))


@pytest.mark.parametrize("version", ["5.0", "8", "x"])
def test_versions(device: pysm120.Device, version: str) -> None:
    with pytest.raises(pysm120.Error):
        device.load(FRAME.format(target="sm_120f", body="").replace("8.8", version))


def test_line_markers(device: pysm120.Device) -> None:
    body = '#line 41 "kernels/first.ptx"\n    add.u32 a, a, a;\n    oops;\n'
    assert "kernels/first.ptx:42:5: error: unknown instruction 'oops'" in load_error(
        device, FRAME.format(target="sm_120f", body=body)
    )
    body = '# 7 "second.ptx"\n    oops;\n'
    assert "second.ptx:7:5: error" in load_error(device, FRAME.format(target="sm_120f", body=body))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        ".version",
        ".version 8.8",
        ".version 8.8\n.target",
        "{",
        "}",
        ".version 8.8 .target sm_120f .visible .entry",
        "/*",
    ]
    + [
        ".version 8.8 .target sm_120f .entry k() {" + s
        for s in ("", "{", "add", "add.u32", "@", "@p", ".reg", "x:", '"')
    ]
    + [".version 8.8 .target sm_120f .entry k() { mov.u32 a, " + "(" * 5000 + "1; }"]
    + [".version 8.8 .target sm_120f .entry k() { mov.u32 a, " + "{" * 5000 + "1; }"]
    + [".version 8.8 .target sm_120f .entry k() " + "{" * 5000]
    + [".version 8.8 .target sm_120f .entry k() { mov.u32 a, " + "-" * 5000 + "1; }"]
    + [".version 8.8 .target sm_120f .entry k() { mov.u32 a, " + "1 ? " * 5000 + "1; }"]
    + [".version 8.8 .target sm_120f .global .u32 g[2] = " + "{" * 5000],
)
def test_rubbish(device: pysm120.Device, text: str) -> None:
    if text.strip():
        load_error(device, text)
    else:
        with pytest.raises(pysm120.Error):
            device.load(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/* .entry k() { ret; }", "the comment has no closing '*/'"),
        (".global .pred x;", "a predicate cannot be a variable; declare it with .reg"),
        (".global .b64 x = 99999999999999999999999;", "does not fit in 64 bits"),
        (".const .b8 x[100000];", ".const variables exceed 65536 bytes"),
        (".const .b8 x[65536]; .const .b8 y;", ".const variables exceed 65536 bytes"),
        (".entry k(.param .b8 p[0]) { ret; }", "at least 1 byte"),
        (".entry k() { ret; } .entry k();", "declared twice"),
        (".entry k(.param .u32 a) { .reg .b32 a; ret; }", "'a' is declared twice"),
        (".entry k(.param .u32 a1) { .reg .b32 a<3>; ret; }", "'a1' is declared twice"),
        (".entry k(.param .u32 a) { a: ret; }", "'a' is declared twice"),
        (".func f(.param .u32 a) { .reg .b32 a; ret; } .entry k() { call f, (0); ret; }", "'a' is declared twice"),
        (".entry k() { ret; } .entry k() { ret; }", "declared twice"),
    ],
)
def test_declarations(device: pysm120.Device, text: str, message: str) -> None:
    assert message in load_error(device, ".version 8.8\n.target sm_120f\n.address_size 64\n" + text)


def test_prototypes_of_entries(device: pysm120.Device) -> None:
    text = ".version 8.8 .target sm_120f .const .b8 x[65536]; .entry k(.param .u32 a); .entry k(.param .u32 a) { ret; }"
    device.load(text)["k"](1, 1, np.uint32(5))


def test_many_registers_load_at_once(device: pysm120.Device) -> None:
    started = time.process_time()
    device.load(FRAME.format(target="sm_120f", body="    .reg .b64 r<99999>; mov.b64 r99998, w; { .reg .b32 r5; }"))
    assert time.process_time() - started < 1


def test_threads_are_capped(device: pysm120.Device) -> None:
    text = ".version 8.8 .target sm_120f .entry k() .reqntid 1024, 1024, 1024 { ret; }"
    assert device.load(text)["k"].info.max_threads == 1024


def test_nothing_is_moved(device: pysm120.Device) -> None:
    device.load(FRAME.format(target="sm_120f", body="mov.b32 {_, _}, a;").replace("    ret;\n", ""))


def test_cut_anywhere(device: pysm120.Device) -> None:
    """No prefix of a program crashes the parser."""
    body = "    ld.param.u64 w, [out]; add.u32 a, b, 0x10; st.global.v2.b32 [w+8], {a, b};\nx: @!p bra x;"
    text = FRAME.format(target="sm_120f", body=body)
    for n in range(1, len(text.rstrip()) - 1):
        with contextlib.suppress(pysm120.Error):  # a header alone is a module
            device.load(text[:n])
