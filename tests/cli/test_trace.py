"""``trace`` and ``--break``: what is printed about a warp, and what is refused."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from programs import HEAD, SAXPY

from pysm120 import __main__
from pysm120.observe import values as values_module
from pysm120.observe.watch import Instruction, Register

pytestmark = pytest.mark.virtual

LAUNCH = [
    "--kernel",
    "saxpy",
    "--grid",
    "2",
    "--block",
    "128",
    "f32[256]:normal",
    "f32[256]:arange",
    "f32:2",
    "u32:200",
]


@pytest.fixture
def saxpy(tmp_path: Path) -> str:
    path = tmp_path / "saxpy.ptx"
    path.write_text(SAXPY)
    return str(path)


def line_of(program: str, part: str) -> int:
    return 1 + next(k for k, line in enumerate(program.splitlines()) if part in line)


def error_of(capsys: pytest.CaptureFixture[str], status: int, *words: str) -> str:
    """Run what must fail; return its one line."""
    assert __main__.main([*words]) == status
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_a_line_for_every_instruction(saxpy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["trace", saxpy, *LAUNCH, "--cta", "1", "--warp", "2"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert "18 instructions of CTA 1,0,0, warp 2" in shown.err
    assert len(lines) == 18
    places = [re.match(r"saxpy\.ptx:(\d+) +([0-9a-f]{8}) (.*)", line) for line in lines]
    assert all(places)
    numbers = [int(m[1]) for m in places if m]
    assert numbers == sorted(numbers)
    (multiply,) = (line for line in lines if "mad.lo.u32" in line)
    assert re.search(r"i = 1; width = 0x80=128; lane = 64\.\.95 -> i = 192\.\.223$", multiply)
    (compare,) = (line for line in lines if "setp.ge.u32" in line)
    assert compare.endswith("-> outside = {0-7: 0, 8-31: 1}")
    (load,) = (line for line in lines if "v, [y]" in line)
    assert " 000000ff ld.global.f32 v, [y]" in load
    assert "v = {0: 0x43400000=192.0, 1: 0x43410000=193.0" in load
    assert re.search(r"y = 0x[0-9a-f]+\.\.0x[0-9a-f]+ step 4 ->", load)
    assert "ffffff00 @outside bra done" in shown.out


VARIABLES = (
    HEAD
    + """
.global .align 8 .b32 table[4];
.func used() {
    .local .align 4 .b8 frame[16];
    st.local.b32 [frame+8], 7;
    ret;
}
.visible .entry k(.param .u32 n)
{
    .reg .b32 a, b;
    .reg .b64 at;
    .shared .align 16 .b8 first[32];
    .shared .align 16 .b8 second[32];
    .local .align 8 .b32 own[4];
    ld.param.u32 a, [n];
    mov.u64 at, table;
    st.shared.b32 [first], a;
    st.shared.b32 [second+4], a;
    atom.global.add.u32 b, [table+8], a;
    st.local.b32 [own+12], b;
    call used;
    ret;
}
"""
)


def test_addresses_of_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(VARIABLES)
    assert __main__.main(["trace", str(path), "--grid", "1", "--block", "32", "u32:5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split(maxsplit=2)[2].split("  ")[0]: line.split(" | ")[1] for line in lines if " | " in line}
    table = int(shown["mov.u64 at, table"].split("at = ")[1], 16)
    assert shown["st.shared.b32 [first], a"] == "a = 5; [first] = 0x400"
    assert shown["st.shared.b32 [second+4], a"] == "a = 5; [second+4] = 0x424"
    assert f"a = 5; [table+8] = {hex(table + 8)} -> b = " in shown["atom.global.add.u32 b, [table+8], a"]
    assert "; [own+12] = 0x" in shown["st.local.b32 [own+12], b"]
    assert re.fullmatch(r"\[frame\+8\] = 0x[0-9a-f]+", shown["st.local.b32 [frame+8], 7"])
    assert shown["ld.param.u32 a, [n]"] == "-> a = 5"


def test_from_limit_lanes_and_output(saxpy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "trace.txt"
    first = line_of(SAXPY, "fma.rn.f32")
    words = ["--from", f"saxpy.ptx:{first}", "--lanes", "--limit", "1", "--output", str(output)]
    assert __main__.main(["trace", saxpy, *LAUNCH, *words]) == 0
    shown = capsys.readouterr()
    assert not shown.out
    assert "ended after 1 instructions" in shown.err
    lines = output.read_text().splitlines()
    assert f"saxpy.ptx:{first}" in lines[0]
    written = [line for line in lines if line.startswith("    > v ")]
    found = {int(m[1]): float(m[2]) for line in written for m in re.finditer(r"(\d+):0x[0-9a-f]{8}=(\S+)", line)}
    x = np.random.default_rng([0, 0]).standard_normal(256).astype(np.float32)
    assert found == pytest.approx({k: float(np.float32(2) * x[k] + k) for k in range(32)}, rel=1e-6)


def test_break_in_run_and_trace(saxpy: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = line_of(SAXPY, "ld.global.f32           v")
    words = ["--break", str(line), "--cta", "1", "--warp", "2"]
    assert __main__.main(["run", saxpy, *LAUNCH, *words]) == 0
    stopped = capsys.readouterr().out
    assert f"saxpy stopped before saxpy.ptx:{line}: CTA 1,0,0, warp 2, active lanes 0x000000ff" in stopped
    assert re.search(rf"> saxpy\.ptx:{line} +ld\.global\.f32 v, \[y\]", stopped)
    assert re.search(r"^ +i +b32 +0x000000ff +192\.\.199$", stopped, re.MULTILINE)
    assert re.search(r"^ +outside +pred +0x000000ff +0$", stopped, re.MULTILINE)
    assert not re.search(r"^ +v +f32", stopped, re.MULTILINE)  # not yet written
    assert re.search(r"^ +> 2 +0x000000ff +saxpy\.ptx", stopped, re.MULTILINE)
    assert re.search(r"^ +2 +0xffffff00 +saxpy\.ptx", stopped, re.MULTILINE)
    assert __main__.main(["trace", saxpy, *LAUNCH, *words]) == 0
    both = capsys.readouterr().out
    last, rest = both.split("saxpy stopped before")
    assert "ld.global.f32 u, [x]" in last.splitlines()[-1]
    assert f"> saxpy.ptx:{line}" in rest


SHARED = (
    HEAD
    + """.visible .entry k() {
.shared .align 16 .f32 s[8];
.reg .b32 i, at; .reg .f32 f;
mov.u32 i, %tid.x;
mov.u32 at, s;
mad.lo.u32 at, i, 4, at;
cvt.rn.f32.u32 f, i;
st.shared.f32 [at], f;
bar.sync 0;
#line 7 "ptx/part.ptx"
ld.shared.f32 f, [at+4];
ret;
}
"""
)


def test_window_and_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(SHARED)
    words = ["--grid", "1", "--block", "8", "--break", "part.ptx:7", "--shared-window", "0x400,20"]
    assert __main__.main(["run", str(path), *words]) == 0
    shown = capsys.readouterr().out
    assert "k stopped before ptx/part.ptx:7: CTA 0,0,0, warp 0, active lanes 0x000000ff" in shown
    assert re.search(r"0x00400  00000000 0000803f 00000040 00004040 +0 +1 +2 +3$", shown, re.MULTILINE)
    assert re.search(r"0x00410  00008040 +4$", shown, re.MULTILINE)


def test_refused(saxpy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, trace = ["run", saxpy, *LAUNCH], ["trace", saxpy, *LAUNCH]
    said = error_of(capsys, 2, *run, "--break", "3")
    assert said.startswith(
        "pysm120: --break is '3', but saxpy has no instruction there; the nearest is in line 17: ld."
    )
    assert "not LINE or FILE:LINE such as 12 or saxpy.ptx:12" in error_of(capsys, 2, *run, "--break", "x:y")
    assert "are in " in error_of(capsys, 2, *trace, "--break", "other.ptx:3")
    assert "--from is '3'" in error_of(capsys, 2, *trace, "--from", "3")
    assert "the grid is 2" in error_of(capsys, 2, *trace, "--cta", "2")
    assert "--cta is '0,0,0,0'" in error_of(capsys, 2, *trace, "--cta", "0,0,0,0")
    assert "has 4 warps" in error_of(capsys, 2, *trace, "--warp", "4")
    assert "--warp is '-1'" in error_of(capsys, 2, *trace, "--warp=-1")
    assert "--limit is 'x'" in error_of(capsys, 2, *trace, "--limit", "x")
    window = [*run, "--break", "17", "--shared-window"]
    assert "begins at 0x400" in error_of(capsys, 2, *window, "4,4")
    assert "has 0 bytes" in error_of(capsys, 2, *window, "0x400,4")
    assert "No such file" in error_of(capsys, 2, *trace, "--output", str(tmp_path / "none" / "x"))
    assert "neither a file nor a kernel" in error_of(capsys, 2, "trace", "none.ptx", *LAUNCH)
    words = ["--kernel", "other", *LAUNCH[2:]]
    assert "has no entry 'other'" in error_of(capsys, 2, "trace", saxpy, *words)


def test_never_reached(saxpy: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = str(line_of(SAXPY, "fma.rn.f32"))
    words = ["run", saxpy, *LAUNCH, "--break", line, "--cta", "1", "--warp", "3"]
    assert f"saxpy ended, and {line} was reached by no warp" in error_of(capsys, 1, *words)
    words = ["run", saxpy, *LAUNCH, "--break", line, "--hits", "9"]
    assert "was reached 7 times, not 9" in error_of(capsys, 1, *words)
    words = ["trace", saxpy, *LAUNCH, "--from", line, "--cta", "1", "--warp", "3"]
    assert "never reached" in error_of(capsys, 1, *words)


@pytest.mark.usefixtures("control_c")
def test_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "forever.ptx"
    path.write_text(HEAD + ".visible .entry k() {\n.reg .b32 a;\nagain:\nadd.u32 a, a, 1;\nbra again;\n}\n")
    words = ["trace", str(path), "--grid", "1", "--block", "32", "--limit", "0", "--checks", "off"]
    with subprocess.Popen(
        [sys.executable, "-m", "pysm120", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.strip().endswith("pysm120: interrupted")
    assert time.monotonic() - began < 30


def register(kind: str, values: list[int], *, name: str = "r", is_write: bool = False) -> Register:
    bits = np.zeros(32, np.uint64)
    bits[: len(values)] = values
    return Register(name, kind, is_write, 0xFFFFFFFF, bits, np.zeros(32, np.uint64))


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        ("u32", [5] * 4, "5"),
        ("u32", [77] * 4, "0x4d=77"),
        ("s32", [0xFFFFFFFF] * 4, "0xffffffff=-1"),
        ("u32", [3, 4, 5, 6], "3..6"),
        ("s32", [2, 0, 0xFFFFFFFE, 0xFFFFFFFC], "2..-4 step -2"),
        ("b64", [1 << 40, (1 << 40) + 16, (1 << 40) + 32, (1 << 40) + 48], "0x10000000000..0x10000000030 step 16"),
        ("b64", [1 << 40] * 4, "0x10000000000"),
        ("u32", [1, 1, 2, 2], "{0-1: 1, 2-3: 2}"),
        ("u32", [1, 9, 2, 7], "{0: 1, 1: 9, 2: 2, 3: 7}"),
        ("f32", [0x3FC00000] * 4, "0x3fc00000=1.5"),
        ("b32", [0x3FC00000] * 4, "0x3fc00000~1.5"),
        ("b32", [0x40C0000] * 4, "0x040c0000"),
        ("b32", [0x4000] * 4, "0x4000=16384"),
        ("f16", [0x3C00] * 4, "0x3c00=1.0"),
        ("bf16", [int(np.float32(-2).view(np.uint32)) >> 16] * 4, "0xc000=-2"),
        ("f64", [0x4004000000000000] * 4, "0x4004000000000000=2.5"),
        ("f16x2", [0xC0003C00] * 4, "0xc0003c00=(1,-2)"),
        ("pred", [1, 0, 0, 1], "{0: 1, 1-2: 0, 3: 1}"),
        ("u16", [0xFFFF] * 4, "0xffff=65535"),
        ("s8", [0x80] * 4, "0x80=-128"),
    ],
)
def test_values(kind: str, values: list[int], text: str) -> None:
    assert values_module.register_text(register(kind, values), kind, 0xF) == text


def test_values_of_some_lanes() -> None:
    numbers = register("u32", list(range(10, 42)))
    assert values_module.register_text(numbers, "u32", 0) == "-"
    assert values_module.register_text(numbers, "u32", 1) == "0xa=10"
    assert values_module.register_text(numbers, "u32", 0x7) == "10..12"
    assert values_module.register_text(numbers, "u32", 0x5) == "{0: 0xa=10, 2: 0xc=12}"
    many = register("u32", [k * k % 7 for k in range(32)])
    assert values_module.register_text(many, "u32", 0xFFFFFFFF).endswith(", ...}")


@pytest.mark.parametrize(
    ("text", "kind", "name", "is_write", "shown"),
    [
        ("add.f32 r, r, q", "b32", "r", True, "f32"),
        ("cvt.rn.f16.f32 h, r", "b32", "r", False, "f32"),
        ("cvt.rn.f16.f32 h, r", "b16", "h", True, "f16"),
        ("setp.lt.s32 p, r, q", "b32", "r", False, "s32"),
        ("st.shared.f32 [r+8], q", "b32", "r", False, "b32"),
        ("st.shared.f32 [r+8], q", "b32", "q", False, "f32"),
        ("add.f32 r, r, q", "u32", "r", True, "u32"),
        ("mad.wide.u32 x, r, q, x", "b64", "x", True, "b64"),
        ("@!p add.f64 x, x, y", "b64", "x", True, "f64"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {r}, {q}, {q}, {r}", "b32", "q", False, "b32"),
    ],
)
def test_untyped_registers_take_the_type_of_the_instruction(
    text: str, kind: str, name: str, is_write: bool, shown: str
) -> None:
    held = register(kind, [0], name=name, is_write=is_write)
    assert values_module.type_of(held, Instruction("<ptx>", 1, text, 1)) == shown


def test_a_reader_that_has_seen_enough(saxpy: str) -> None:
    words = ["trace", saxpy, *LAUNCH, "--lanes", "--cta", "0"]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "pysm120", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert not process.stderr.read()
