"""``python -m pysm120 model`` on files that others compiled: targets, versions of ptxas, directives of compilers."""

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from pysm120 import __main__
from pysm120.machine_code import sass, tools
from pysm120.model import record
from pysm120.model.simulator import Outcome, Simulator, StuckError
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.runtime.module import builtin_image, builtin_index

pytestmark = pytest.mark.virtual

# What nvcc and Triton write: mangled names, weak entries, functions, lines of the source.
THIRD = """.version 8.7
.target {target}
.address_size 64
.file 1 "third.cu"
.visible .func (.param .f32 of) twice(.param .f32 x)
{{
    .reg .f32 a; // a brace {{ in a comment
    ld.param.f32 a, [x];
    add.f32 a, a, a;
    st.param.f32 [of], a;
    ret;
}}
.weak .entry _Z5otherILi4EEvPf(.param .u64 out)
{{
    ret;
}}
.weak .entry _Z5thirdILi4EEvPf(.param .u64 out, .param .u32 rounds)
.maxntid 64
{{
    .reg .b64 p, at;
    .reg .b32 n, i, tid, t;
    .reg .f32 a, b;
    .reg .pred more, skips;
    .loc 1 3 5
    ld.param.u64 p, [out];
    ld.param.u32 n, [rounds];
    mov.u32 tid, %tid.x;
    mul.wide.u32 at, tid, 4;
    add.u64 p, p, at;
    mov.f32 a, 0f3F800000;
    mov.u32 i, 0;
again:
    .loc 1 4 5, function_name info, inlined_at 1 3 5
    rem.u32 t, i, 3;
    setp.ne.u32 skips, t, 0;
@skips bra join;
    bar.sync 0;
    ld.volatile.global.f32 b, [p];
    add.f32 a, a, b;
    st.volatile.global.f32 [p], a;
    bar.sync 0;
join:
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra again;
    st.global.f32 [p], a;
    ret;
}}
.section .debug_str
{{
info:
.b8 107, 0
}}
"""


# As nvcc writes an assert: ptxas numbers the addresses of texts over all entries.
ASSERT = """{{
    .param .b64 message, file, function, size;
    .param .b32 line;
    mov.u64 address, {entry}_{n};
    cvta.global.u64 address, address;
    st.param.b64 [message], address;
    st.param.b64 [file], address;
    st.param.b32 [line], 1;
    st.param.b64 [function], address;
    st.param.b64 [size], 1;
    call.uni __assertfail, (message, file, line, function, size);
}}
"""
EXTERNAL = """.version 8.0
.target sm_90
.address_size 64
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
"""


def with_asserts() -> str:
    """Return two kernels with two asserts each, and one without."""
    text = EXTERNAL
    for entry in ("first", "second"):
        text += "".join(f".global .align 1 .b8 {entry}_{n}[2] = {{65, 0}};\n" for n in "ab")
        body = "".join(ASSERT.format(entry=entry, n=n) for n in "ab")
        text += f".visible .entry {entry}() {{\n.reg .b64 address;\n{body}ret;\n}}\n"
    return text + ".visible .entry third() { ret; }\n"


def model(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """Return the prediction of ``model --json``."""
    assert __main__.main(["model", *words, "--json"]) == status, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the error of ``model``, one line."""
    assert __main__.main(["model", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("pysm120: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("written", "assembled", "chip"),
    [
        ("sm_120a", "sm_120a", "rtx5090"),
        ("sm_120", "sm_120a", "rtx5090"),
        ("sm_80", "sm_120", "rtxpro6000"),
        ("sm_90a", "sm_90a", "h200"),
    ],
)
def test_a_profile_is_used_whatever_the_target(
    written: str, assembled: str, chip: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = THIRD.format(target=written)
    plain = THIRD.format(target="sm_80").replace("sm_90a", "sm_80")
    (tmp_path / "plain.ptx").write_text(plain)
    command = ["profile", f"{tmp_path}/plain.ptx", "--kernel", "_Z5thirdILi4EEvPf", "--grid", "3", "--block", "64"]
    assert __main__.main([*command, "--json", f"{tmp_path}/p.json", "f32[64]:zeros", "u32:30"]) == 0
    capsys.readouterr()
    (tmp_path / "k.ptx").write_text(text)
    (tmp_path / "k.cubin").write_bytes(sass.assemble(text, assembled))
    common = ["--kernel", "third", "--chip", chip, "--ctas", "3", "--profile", f"{tmp_path}/p.json"]
    of_cubin = model(capsys, f"{tmp_path}/k.cubin", *common)
    assert of_cubin["branches"]["by"] == "recording"
    assert of_cubin["rounds"] == 30
    assert list(of_cubin["branches"]["recorded"].values()) == [pytest.approx(2 / 3, abs=1e-3)]
    of_text = model(capsys, f"{tmp_path}/k.ptx", *common)
    assert of_text["clocks"] == of_cubin["clocks"]
    # Other code than the cubin's: no figure without the profile that was asked for.
    (tmp_path / "k.ptx").write_text(text.replace("0f3F800000", "0f40000000"))
    error = refusal(capsys, f"{tmp_path}/k.cubin", *common)
    assert "whose lines cannot be joined to the machine code: ptxas assembles its PTX to other code" in error


def test_entries_of_a_text() -> None:
    text = THIRD.format(target="sm_90")
    assert record.entries_of(text) == ["_Z5otherILi4EEvPf", "_Z5thirdILi4EEvPf"]
    kept = record.only(text, "_Z5thirdILi4EEvPf")
    assert kept.count("\n") == text.count("\n")
    assert "other" not in kept
    assert "twice" in kept
    assert ".debug_str" in kept
    lines, before = kept.splitlines(), text.splitlines()
    assert all(now in {"", was} for now, was in zip(lines, before, strict=True))
    assert list(sass.disassemble(sass.assemble(kept, "sm_90"))) == ["_Z5thirdILi4EEvPf"]
    function = sass.disassemble(sass.assemble(kept, "sm_90"))["_Z5thirdILi4EEvPf"]
    store = next(one for one in function.instructions if one.base == "STG")
    assert before[store.line - 1].strip().startswith("st.")  # the line of the PTX, not of third.cu


def test_lines_of_code_that_depends_on_other_entries() -> None:
    text = with_asserts()
    function = sass.disassemble(sass.assemble(text, "sm_90"))["first"]
    alone = sass.disassemble(sass.assemble(record.only(text, "first"), "sm_90"))["first"]
    assert [one.word for one in alone.instructions] != [one.word for one in function.instructions]
    found = record.with_lines(function, text, "sm_90")
    assert [one.word for one in found.instructions] == [one.word for one in function.instructions]
    lines = text.splitlines()
    calls = [one for one in found.instructions if one.base == "CALL"]
    assert len(calls) == 2
    assert all("call.uni" in lines[one.line - 1] for one in calls)


def test_lines_of_code_with_fewer_registers() -> None:
    """As nvcc -maxrregcount makes it: the cubin says what ptxas was allowed."""
    names = [f"x{i}" for i in range(40)]
    loads = "".join(f"ld.volatile.global.f32 {x}, [a + {4 * i}];\n" for i, x in enumerate(names))
    stores = "".join(f"st.volatile.global.f32 [a + {4 * i}], {x};\n" for i, x in enumerate(names))
    text = (
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry first(.param .u64 p)\n{\n.reg .b64 a;\n"
        f".reg .f32 x<40>;\nld.param.u64 a, [p];\n{loads}{stores}ret;\n}}\n"
    )
    free, function = (sass.disassemble(sass.assemble(text, "sm_90", None, n))["first"] for n in (255, 24))
    assert (free.most_registers, function.most_registers) == (255, 24)
    assert [one.word for one in free.instructions] != [one.word for one in function.instructions]
    found = record.with_lines(function, text, "sm_90")
    assert [one.word for one in found.instructions] == [one.word for one in function.instructions]
    assert all(text.splitlines()[one.line - 1].startswith("st.") for one in found.instructions if one.base == "STG")


def test_targets() -> None:
    def of(target: str, wanted: str) -> list[str]:
        return sass.targets(f".version 8.8\n.target {target}, debug\n", wanted)

    assert of("sm_120a", "sm_120f") == ["sm_120a"]
    assert of("sm_120f", "sm_120f") == ["sm_120f"]
    assert of("sm_120", "sm_120f") == ["sm_120", "sm_120f", "sm_120a"]
    assert of("sm_89", "sm_120f") == ["sm_120f", "sm_120", "sm_120a"]
    assert of("sm_90a", "sm_90") == ["sm_90a"]
    for target, wanted in (("sm_120a", "sm_90"), ("sm_90a", "sm_120f"), ("sm_100f", "sm_120f"), ("sm_121", "sm_120f")):
        with pytest.raises(InvalidArgumentError, match=f"the PTX has .target {target}, but the chip runs code for sm_"):
            of(target, wanted)


def fake(folder: Path, name: str, release: str) -> Path:
    """Write a tool that says its release and does nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    path.chmod(0o700)
    return path


def test_the_ptxas_that_reads_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "site"))
    monkeypatch.setattr(tools, "_CUDA", tmp_path / "local")
    with pytest.raises(UnsupportedError, match="ptxas was not found"):
        tools.assemblers((8, 0))
    first = fake(tmp_path / "path", "ptxas", "12.8")
    wheel = fake(tmp_path / "site/nvidia/cu13/bin", "ptxas", "13.0")
    triton = fake(tmp_path / "site/triton/backends/nvidia/bin", "ptxas-blackwell", "13.4")
    cuda = fake(tmp_path / "local/cuda-12.6/bin", "ptxas", "12.6")
    (tmp_path / "local/cuda").symlink_to(cuda.parent.parent)
    assert [tools.isa_of(path) for path in (first, wheel, triton, cuda)] == [(8, 7), (9, 0), (9, 4), (8, 5)]
    assert tools.locate("ptxas") == first
    assert len(tools.locations("ptxas")) == 4  # cuda is a link to cuda-12.6
    assert tools.assemblers((8, 7)) == [first, wheel, triton]
    assert tools.assemblers((9, 0)) == [wheel, triton]
    assert tools.assemblers((9, 4)) == [triton]
    with pytest.raises(UnsupportedError, match=r"has .version 9.5, which no ptxas here reads \(.*ptxas up to 8.7.*9.4"):
        tools.assemblers((9, 5))


def test_files_that_are_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(THIRD.format(target="sm_120a"))
    assert "the PTX has .target sm_120a, but the chip runs code for sm_90" in refusal(
        capsys, str(path), "--chip", "h200"
    )
    assert "leave out --ptx" in refusal(capsys, str(path), "--ptx", str(path))
    assert "which the cubin does not have; it has void third<4>(float*)" in refusal(
        capsys, str(path), "--kernel", "fourth"
    )
    assert "a part of several names: void third<4>(float*)" in refusal(capsys, str(path), "--kernel", "_Z5")
    path.write_text(THIRD.format(target="sm_120a").replace(".version 8.7", ".version 99.0"))
    assert "has .version 99.0, which no ptxas here reads" in refusal(capsys, str(path), "--kernel", "third")
    path.write_bytes(b"\x50\xed\x55\xba" + bytes(60))
    assert "is a fatbin: take a cubin out of it" in refusal(capsys, str(path))
    path.write_text("hello")
    assert "is neither a cubin nor PTX" in refusal(capsys, str(path))


def test_warps_that_wait_for_each_other_have_every_tile_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry, real, stuck = "attention_bf16_128x64_d128_r16", Simulator.run, [StuckError("stuck")]

    def run(self: Simulator, rounds: Any, slots: int, offset: int = 0, *, keep_events: bool = False) -> Outcome:
        if len(rounds) > 1 and stuck:
            raise stuck.pop()
        return real(self, rounds, slots, offset, keep_events=keep_events)

    monkeypatch.setattr(Simulator, "run", run)
    file = tmp_path / "k.cubin"
    index = builtin_index(entry)
    assert index is not None
    file.write_bytes(builtin_image(index, "sm_120f", "cubin"))
    words = ["--rules", "--rounds", "8", "--ctas", "170", "--shared", "65536", "--json"]
    assert __main__.main(["model", str(file), *words]) == 3
    found = json.loads(capsys.readouterr().out)
    assert not stuck
    assert any("every tile is there in time; --stages N" in missing for missing in found["incomplete"])
