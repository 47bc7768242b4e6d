"""The template layer: expansion, line markers, and what it says of mistakes."""

import dataclasses
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import build_tree
import pytest

import pysm120
from pysm120.runtime.module import builtin_kernel, builtins, constants

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "ptx"), str(ROOT / "tools")]

import expand  # noqa: E402
import records  # noqa: E402
import tables  # noqa: E402

import build  # noqa: E402

TEMPLATES = build.templates()


@cache
def expansion(template: Path, target: str) -> expand.Expansion:
    """Expand a template once for all tests."""
    return expand.Expansion(template, target)


def ids(path: Path) -> str:
    """Name a template for the report."""
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("target", build.TARGETS)
@pytest.mark.parametrize("template", TEMPLATES, ids=ids)
def test_every_line_is_marked_with_where_it_stands(template: Path, target: str) -> None:
    """A line of PTX without values stands, letter for letter, at the file and line that the markers give it."""
    sources: dict[str, list[str]] = {}
    where: tuple[str, int] | None = None
    checked = 0
    for line in expansion(template, target).text.splitlines():
        if line.startswith("#") and (marker := re.fullmatch(r'#line (\d+) "(.*)"', line)):
            where = (marker[2], int(marker[1]))
            continue
        if where is not None:
            file, number = where
            if file not in sources:
                sources[file] = (ROOT / file).read_text().splitlines()
            source = sources[file][number - 1]
            if "${" not in source:
                assert line == source.rstrip()
                checked += 1
            where = (file, number + 1)
    assert checked > 50


@pytest.mark.parametrize("template", TEMPLATES, ids=ids)
def test_notes_hold_for_both_targets(template: Path) -> None:
    """The table of kernels is made from one target: the other must say the same."""
    first, second = (records.read(template, target) for target in build.TARGETS)
    assert [kernel[:3] for kernel in first.kernels] == [kernel[:3] for kernel in second.kernels]
    assert first.constants == second.constants


@pytest.mark.parametrize("template", TEMPLATES, ids=ids)
def test_variables_of_shared_memory_have_names_of_their_own(template: Path) -> None:
    """Of entries that call theirs the same ptxas 13.0 allocates the last one's alone, where there are line markers."""
    text = expansion(template, build.TARGETS[0]).text
    names = re.findall(r"^\s*\.shared .*?(\w+)\[", text, re.MULTILINE)
    assert len(set(names)) == len(names)


# Twelve warps fill an SM of SM120, eight at head size 256. On Hopper, where they compute in emulated products, they
# lack a few registers.
SPILLS = {
    ("attention_nvfp4_mxfp8_192x64_d128", "sm_90"): 56,
    ("attention_nvfp4_mxfp8_192x64_d128_any", "sm_90"): 44,
    ("attention_nvfp4_192x64_d128_any", "sm_90"): 8,
    ("attention_mxfp8_192x64_d128", "sm_90"): 64,
    ("attention_mxfp8_192x64_d128_any", "sm_90"): 124,
    ("attention_mxfp8_128x64_d256", "sm_90"): 128,
    ("attention_mxfp8_128x64_d256_any", "sm_90"): 96,
    **{(f"attention_mxfp8_{kind}_128x64_d256", "sm_90"): 56 for kind in ("bf16", "f16")},
    **{(f"attention_mxfp8_{kind}_128x64_d256_any", "sm_90"): 92 for kind in ("bf16", "f16")},
    ("attention_fp8_192x64_d128", "sm_90"): 60,
    ("attention_fp8_192x64_d128_any", "sm_90"): 88,
    ("attention_fp8_e5m2_192x64_d128_any", "sm_90"): 340,
}


@pytest.mark.parametrize("target", build.TARGETS)
@pytest.mark.parametrize("template", TEMPLATES, ids=ids)
def test_no_register_spills(template: Path, target: str) -> None:
    """Spills would be counted by no budget."""
    build_tree.built()
    for note in expansion(template, target).notes:
        log = (ROOT / "build" / "kernels" / f"{note.fields['entry']}.{target}.log").read_text()
        most = SPILLS.get((note.fields["entry"], target), 0)
        assert max(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", log))) <= most, note.fields["entry"]


FIELDS = ["shape", "launch", "params", "shared", "barriers", "registers", "steps", "numerics", "budget", "measured"]


BENCHMARKS = sorted(path for path in (ROOT / "ptx" / "bench").glob("*.ptx") if path.name != "frame.ptx")


@pytest.mark.parametrize("template", [*TEMPLATES, *BENCHMARKS], ids=ids)
def test_a_template_begins_with_its_fields(template: Path) -> None:
    """The header describes the kernel, in one order; `numerics` may be missing."""
    header = template.read_text().split("# include")[0]
    found = re.findall(r"^// (\w+) +\S", header, re.MULTILINE)
    assert [field for field in found if field in FIELDS] == [x for x in FIELDS if x != "numerics" or x in found]


def test_parts_hold_what_kernels_share() -> None:
    """A part has no kernel of its own, something includes it, and ptx/README.md lists it."""
    readme = (ROOT / "ptx" / "README.md").read_text()
    users = {path: path.read_text() for path in (ROOT / "ptx").glob("*/*.ptx")}
    for path in sorted((ROOT / "ptx" / "parts").glob("*.ptx")):
        text = users[path]
        assert not re.search(r"^\.visible \.entry|^# *note\(", text, re.MULTILINE), f"{path.name} has a kernel"
        assert f"`{path.name}`" in readme, f"ptx/README.md does not list {path.name}"
        assert any(f'include("parts/{path.name}")' in user for user in users.values()), f"nothing includes {path.name}"


def test_benchmarks_include_what_a_wheel_has() -> None:
    """An installed package has ptx/bench and parts/head.ptx alone."""
    for path in (ROOT / "ptx" / "bench").glob("*.ptx"):
        included = re.findall(r'include\("(.*)"\)', path.read_text())
        assert all(name == "parts/head.ptx" or name.startswith("bench/") for name in included), path.name


def test_templates_keep_to_100_columns() -> None:
    """A line beyond them holds one word, a mnemonic, or a note."""
    for path in (ROOT / "ptx").glob("*/*.ptx"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 100 or len(line.split()) == 1 or "note(" in line, f"{path.name}, line {number}"


def test_language(tmp_path: Path) -> None:
    """Loops, conditions, macros, values and registers."""
    template = tmp_path / "t.ptx"
    template.write_text(
        "# def twice(x):\n"
        "a ${x}, ${2 * x};\n"
        "# end\n"
        "# for i in range(3):\n"
        "#     if i == 1:\n"
        "one ${regs('r', 4 * i, 2)};\n"
        "#     elif i == 2:\n"
        "#         twice(i + 1)\n"
        "#     else:\n"
        "zero;\n"
        "#     end\n"
        "# end\n"
    )
    lines = expand.Expansion(template, "sm_90").text.splitlines()
    assert lines == ["zero;", "one {r_4, r_5};", "a 3, 6;"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x;\n# for i in range(2):\ny;\n", 2, "a block without `# end`"),
        ("x;\n# end\n", 2, "`# end` without a block"),
        ("x;\n# if :\n# end\n", 2, "invalid syntax"),
    ],
)
def test_mistakes_in_blocks_name_their_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    """A mistake in a line of Python is found before anything is assembled."""
    template = tmp_path / "broken.ptx"
    template.write_text(text)
    with pytest.raises(SyntaxError, match=re.escape(message)) as caught:
        expand.Expansion(template, "sm_90")
    assert caught.value.lineno == line
    assert caught.value.filename is not None
    assert caught.value.filename.endswith("broken.ptx")


def test_mistakes_in_values_show_the_line_in_the_traceback(tmp_path: Path) -> None:
    """A Python error inside `${}` has the template's line in its traceback."""
    template = tmp_path / "broken.ptx"
    template.write_text("x;\ny ${nowhere};\n")
    done = subprocess.run(
        [sys.executable, ROOT / "ptx" / "expand.py", template], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert 'broken.ptx", line 2' in done.stderr
    assert "nowhere" in done.stderr


KERNEL = """# note({note})
.visible .entry {entry}(
    .param .u64 param_x,
    .param .u32 param_rows)
{{
    ret;
}}
"""
NOTE = 'entry="f", operation="copy", parameters="copy", threads=32, shared=0, rows=4'
COPY = KERNEL.format(note=NOTE, entry="f")


def read(folder: Path, text: str) -> records.Template:
    """Read the kernels of a template."""
    (folder / "t.ptx").write_text('# include("parts/head.ptx")\n' + text)
    return records.read(folder / "t.ptx", "sm_90")


def test_kernels_of_a_template(tmp_path: Path) -> None:
    """Each has its record, its parameters, and a text without the others, with the template's lines."""
    other = KERNEL.format(note=NOTE.replace('"f"', '"g"'), entry="g").replace(
        "    .param .u32", '#     group("tail")\n    .param .u32'
    )
    with pytest.raises(expand.TemplateError, match="g has rows where f, with parameters='copy' too, has rows"):
        read(tmp_path, KERNEL.format(note=NOTE, entry="f") + other)
    other = other.replace('parameters="copy"', 'parameters="copy_tail"')
    found = read(tmp_path, "// said\n" + KERNEL.format(note=NOTE, entry="f") + '# constant("N", 7)\n' + other)
    first, second = found.kernels
    assert first.record == {
        "entry": "f", "operation": "copy", "parameters": "copy", "threads": 32, "shared": 0, "rows": 4
    }  # fmt: skip
    assert first.parameters == [
        records.Parameter("x", "u64", 8, 8, 0, ""), records.Parameter("rows", "u32", 4, 4, 8, "")
    ]  # fmt: skip
    assert [p.group for p in second.parameters] == ["", "tail"]
    assert found.constants["N"][1] == 7
    assert first.text.count(".entry") == second.text.count(".entry") == 1
    assert "said" not in first.text
    assert f'#line 4 "{first.place.file}"\n.visible .entry f(' in first.text
    assert f'#line 12 "{first.place.file}"\n.visible .entry g(' in second.text


@pytest.mark.parametrize(
    ("note", "message"),
    [
        (NOTE + ", colour=3", "line 2: note() has no field 'colour'; it has entry, operation"),
        (NOTE.replace(", shared=0", ""), "line 2: note() lacks shared: dynamic shared memory"),
        (NOTE.replace("32", "33"), "line 2: note(threads=33): threads is an int from 32 to 1024, a multiple of 32"),
        (NOTE.replace("32", "True"), "line 2: note(threads=True): threads is an int"),
        (NOTE.replace('"f"', '"F f"'), "line 2: note(entry='F f'): entry is a word"),
        (NOTE + ", features=1", "line 2: note(features=1): features is True or False"),
        (NOTE + ', dtype="f8"', "line 2: note(dtype='f8'): dtype is one of f32, f16, bf16"),
        (NOTE.replace('"f"', '"g"'), "line 2: note() of g, which is not the entry of any kernel here"),
        (NOTE + ")\n# note(" + NOTE, "line 3: note() of f, which line 2 has noted"),
    ],
)
def test_a_wrong_note_names_its_line(tmp_path: Path, note: str, message: str) -> None:
    with pytest.raises(expand.TemplateError, match=re.escape(f"t.ptx, {message}")):
        read(tmp_path, KERNEL.format(note=note, entry="f"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COPY + ".visible .entry g()\n{\n}\n", "line 9: entry g has no note()"),
        (COPY.replace("\n}", "\n    }"), "line 3: entry f is not closed by a line of `}`"),
        (COPY.replace(".u32 param_rows", ".u32 rows"), "line 5: '.param .u32 rows)' is not"),
        (COPY.replace(".u32", ".v2"), "line 5: '.param .v2 param_rows)' is not"),
        ("  " + COPY.split("\n", 1)[1], "line 2: a kernel begins with"),
        ('# constant("N", 1)\n# constant("N", 2)\n', "line 3: constant N = 2, but "),
        ('# constant("n", 1)\n', "line 2: constant('n', 1) is not a NAME in capitals"),
    ],
)  # fmt: skip
def test_a_wrong_kernel_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(expand.TemplateError, match=re.escape(f"t.ptx, {message}")):
        read(tmp_path, text)


def test_kernels_of_an_operation_have_the_same_fields(tmp_path: Path) -> None:
    other = NOTE.replace('"f"', '"g"').replace(", rows=4", "")
    with pytest.raises(expand.TemplateError, match=r"note\(\) of g lacks rows, unlike that of f: the kernels of copy"):
        read(tmp_path, KERNEL.format(note=NOTE, entry="f") + KERNEL.format(note=other, entry="g"))


def test_a_parameter_too_many_is_refused(tmp_path: Path) -> None:
    text = KERNEL.format(note=NOTE, entry="f").replace(".u64 param_x", ".align 64 .b8 param_x[4096]")
    with pytest.raises(expand.TemplateError, match="line 5: param_rows ends at byte 4100; a kernel has 4096"):
        read(tmp_path, text)


def test_a_group_is_the_same_everywhere() -> None:
    """A struct that two kernels share cannot have other members in one of them."""
    lists = {name: [records.Parameter(member, "u32", 4, 4, 0, "tail")] for name, member in (("one", "x"), ("two", "y"))}
    with pytest.raises(ValueError, match="group 'tail' has other parameters in two than in one"):
        tables.groups(lists)


@pytest.mark.parametrize("template", TEMPLATES, ids=ids)
def test_the_library_says_what_the_notes_say(template: Path) -> None:
    """Records, parameters and constants, read back through the C interface."""
    found = records.read(template, "sm_120f")
    known = {builtin.entry: builtin for builtin in builtins()}
    assert constants().items() >= {name: value for name, (_, value) in found.constants.items()}.items()
    loaded = []
    with pysm120.Device("virtual") as device:
        for kernel in found.kernels:
            builtin = known[kernel.record["entry"]]
            said = {**dataclasses.asdict(builtin), "shared": builtin.shared_bytes}
            wanted = {name: value for name, value in kernel.record.items() if name != "parameters"}
            assert said.items() >= wanted.items()
            assert builtin.source == template.relative_to(ROOT).as_posix()
            if kernel.record["parameters"] not in loaded:
                loaded.append(kernel.record["parameters"])
                parameters = builtin_kernel(device, builtin.entry).parameters
                assert [(p.name, p.type, p.offset, p.bytes) for p in parameters] == [
                    (f"param_{p.name}", p.type, p.offset, p.bytes) for p in kernel.parameters
                ]
    assert loaded


def test_ptxas_reports_the_line_of_the_template(tmp_path: Path) -> None:
    """An instruction that does not exist is reported where it was written."""
    template = tmp_path / "broken.ptx"
    template.write_text(
        '# include("parts/head.ptx")\n# for i in range(2):\n'
        ".visible .entry f_${i}()\n{\n    foo.u32 1;\n    ret;\n}\n# end\n"
    )
    ptx = tmp_path / "expanded.ptx"
    ptx.write_text(expand.Expansion(template, "sm_90").text)
    with pytest.raises(build.BuildError, match=r"broken\.ptx, line 5"):
        build.run([*build.assembler(build.find_nvcc(), "sm_90"), ptx, "-o", tmp_path / "x.cubin"])


def test_without_nvcc_the_build_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing compiler is one sentence."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/nowhere")
    with pytest.raises(build.BuildError, match=r"nvcc was not found .*pip install nvidia-cuda-nvcc==13\.0\.88"):
        build.find_nvcc()
    old = tmp_path / "nvcc"
    old.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.4, V12.4.131\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"nvcc is release 12\.4, too old for sm_120f; nvcc was not found"):
        build.find_nvcc()
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.BuildError, match="no C compiler was found: install gcc"):
        build.find_cc()
    monkeypatch.setenv("CC", "other-gcc -m64")
    with pytest.raises(build.BuildError, match="CC is 'other-gcc', which is no program in PATH: give a C compiler"):
        build.find_cc()
    monkeypatch.setenv("CC", f"{old} -m64")
    assert build.find_cc() == [str(old), "-m64"]
