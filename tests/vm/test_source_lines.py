"""Faults, profiles and traces name the source line of .loc and .file, the allocation, and the argument."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

import pysm120

HEAD = ".version 8.8\n.target sm_120f\n.address_size 64\n"
# as compilers write it: .file behind the code that refers to it
LOCATED = (
    HEAD
    + """.global .align 4 .b8 table[12];
.func store(.param .b64 p)
{
 .loc 2 7 1
 .reg .b64 a; .reg .b32 x;
 ld.param.b64 a, [p];
 .loc 2 8 5, function_name $L__info, inlined_at 1 3 2
 mov.b32 x, 1; st.global.b32 [a], x;
 ret;
}
.entry k(.param .u64 unused, .param .u64 param_x, .param .u32 where)
{
 .loc 1 20 3
 .reg .b64 a, o; .reg .b32 i; .reg .pred q;
 ld.param.u64 a, [param_x]; ld.param.u32 i, [where];
 setp.eq.u32 q, i, 99; @q bra last; setp.eq.u32 q, i, 98; @q bra variable;
 .loc 1 21 9
 mad.wide.u32 a, i, 4, a;
 .loc 1 22 9
 { .param .b64 t; st.param.b64 [t], a; call store, (t); }
 ret;
last:
 .loc 1 0 0
 mov.b64 a, 0; ld.global.u32 i, [a];
 ret;
variable:
 .loc 9 50 1
 mov.u64 a, table; ld.global.u32 i, [a + 16];
 ret;
}
    .file   1 "/src/kernel.cu"
.file 2 "/src/store.cuh", 1700000000, 512
"""
)
STRUCT = (
    HEAD
    + """.entry s(.param .align 8 .b8 args[24]) {
 .reg .b64 a; .reg .b32 x; ld.param.u64 a, [args + 16]; ld.global.u32 x, [a + -4]; ret; }
"""
)

pytestmark = pytest.mark.virtual


def fault(device: pysm120.Device, where: int) -> str:
    kernel, x = device.load(LOCATED, name="k.ptx")["k"], device.zeros(10, np.uint32)
    with pytest.raises(pysm120.FaultError) as caught:
        kernel(1, 1, np.uint64(0), x, np.uint32(where))
    return str(caught.value)


def test_faults_name_line_allocation_and_argument(device: pysm120.Device) -> None:
    message = fault(device, 13)
    assert (
        "k at /src/store.cuh:8, inlined at /src/kernel.cu:3 (PTX line 11): write of 4 bytes at global address"
        in message
    )
    words = "12 bytes past the end of an allocation of 40 bytes, to which points parameter param_x (argument 1)"
    assert words in message


# outer() at line 40 of the kernel calls inner() at line 7 of lib.cuh, twice: from lines 40 and 41 of the kernel.
INLINED = (
    HEAD
    + """.entry k(.param .u64 param_x)
{
 .reg .b64 a; .reg .b32 i;
 .loc 1 39 3
 ld.param.u64 a, [param_x]; mov.b32 i, 1;
 .loc 2 7 5, function_name $L__outer, inlined_at 1 40 9
 add.u64 a, a, 4;
 .loc 2 3 1, function_name $L__inner, inlined_at 2 7 5
 st.global.b32 [a], i;
 .loc 2 7 5, function_name $L__outer, inlined_at 1 41 9
 add.u64 a, a, 4;
 .loc 2 3 1, function_name $L__inner, inlined_at 2 7 5
 st.global.b32 [a], i;
 .loc 2 3 1, function_name $L__inner, inlined_at 1 42 9
 st.global.b32 [a + 4], i;
 .loc 1 43 1
 ret;
}
.file 1 "/src/kernel.cu"
.file 2 "/src/lib.cuh"
"""
)


def test_inlined_code_names_the_line_of_the_kernel(device: pysm120.Device) -> None:
    """Through other inlined functions too; a line of inlined code is one for each line that called it."""
    kernel, x = device.load(INLINED, name="k.ptx")["k"], device.zeros(4, np.uint32)
    with device.profile() as profile:
        kernel(1, 1, x)
    found = [(line.line, line.origin) for line in profile.lines if line.file == "/src/lib.cuh"]
    sources = ["/src/kernel.cu:40", "/src/kernel.cu:41", "/src/kernel.cu:42"]
    assert found == [(3, source) for source in sources] + [(7, source) for source in sources[:2]]
    assert {line.origin for line in profile.lines if line.file == "/src/kernel.cu"} == {""}
    assert {one["origin"] for one in profile.json()["lines"]} == {"", *sources}
    with device.trace(file="lib.cuh", lines=(3, 3)) as steps:
        kernel(1, 1, x)
    assert [step.instruction.place for step in steps] == [f"/src/lib.cuh:3, inlined at {source}" for source in sources]
    small = device.zeros(2, np.uint32)
    with pytest.raises(pysm120.FaultError, match=r"at /src/lib\.cuh:3, inlined at /src/kernel\.cu:41 \(PTX line 16\)"):
        kernel(1, 1, small)


def test_text_of_one_line(device: pysm120.Device) -> None:
    """.file and .loc end with their last number, not with the line of the text."""
    text = (
        '.file 1 "/src/a.cu" .file 2 "/src/b.cuh", 17, 5 .entry k() { .reg .b64 a; .loc 1 7 2 mov.b64 a, 0; '
        ".loc 2 9 1, function_name info + 4, inlined_at 1 7 2 st.global.b64 [a], a; ret; } "
        ".section .debug_str { info: .b8 0 }"
    )
    kernel = device.load(HEAD + text, name="k.ptx")["k"]
    with pytest.raises(pysm120.FaultError, match=r"k at /src/b\.cuh:9, inlined at /src/a\.cu:7 \(PTX line 4\): write"):
        kernel(1, 1)


def test_text_without_a_source(device: pysm120.Device) -> None:
    """Line 0, or a file that the text does not name: the line of the PTX."""
    assert "k at k.ptx:27: read of 4 bytes" in fault(device, 99)
    message = fault(device, 98)
    assert "k at k.ptx:31: read of 4 bytes" in message
    assert "4 bytes past the end of an allocation of 12 bytes, the variable table" in message


def test_an_address_in_a_structure(device: pysm120.Device) -> None:
    class Arguments(ctypes.Structure):
        _fields_ = (("count", ctypes.c_uint64), ("scale", ctypes.c_double), ("x", ctypes.c_uint64))

    x = device.zeros(10, np.uint32)
    with pytest.raises(pysm120.FaultError) as caught:
        device.load(STRUCT)["s"](1, 1, Arguments(1, 2.0, x.address))
    assert "4 bytes before an allocation of 40 bytes" in str(caught.value)
    assert "to which points parameter args + 16 (argument 0)" in str(caught.value)


def test_profiles_and_traces(device: pysm120.Device, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text("\n" * 20 + "    int i = where;\n    store(x + i);\n")
    text = LOCATED.replace("/src/kernel.cu", str(source))
    x = device.zeros(10, np.uint32)
    kernel = device.load(text, name="k.ptx")["k"]
    with device.profile() as profile:
        kernel(1, 1, np.uint64(0), x, np.uint32(3))
    lines = {(Path(line.file).name, line.line): line.source for line in profile.lines}
    assert {("kernel.cu", 20), ("kernel.cu", 21), ("kernel.cu", 22), ("store.cuh", 8)} <= lines.keys()
    assert lines["kernel.cu", 21].strip() == "int i = where;"
    with device.trace(file="kernel.cu", lines=(21, 21)) as steps:
        kernel(1, 1, np.uint64(0), x, np.uint32(3))
    assert [step.instruction.opcode for step in steps] == ["mad.wide.u32"]
    assert x.numpy().tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
