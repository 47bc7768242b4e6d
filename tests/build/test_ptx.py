"""The template layer: expansion, line markers, and what it says of mistakes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "ptx"), str(ROOT / "tools")]

import expand  # noqa: E402

import build  # noqa: E402

TEMPLATES = sorted(path for path in (ROOT / "ptx").glob("*/*.ptx") if path.parent.name not in {"parts", "bench"})


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
    for line in expand.Expansion(template, target).text.splitlines():
        if marker := re.fullmatch(r'#line (\d+) "(.*)"', line):
            where = (marker[2], int(marker[1]))
            continue
        if where is not None:
            file, number = where
            source = sources.setdefault(file, (ROOT / file).read_text().splitlines())[number - 1]
            if "${" not in source:
                assert line == source.rstrip()
                checked += 1
            where = (file, number + 1)
    assert checked > 50


@pytest.mark.parametrize("template", TEMPLATES, ids=ids)
def test_notes_hold_for_both_targets(template: Path) -> None:
    """The table of kernels is made from one target: the other must say the same."""
    first, second = (expand.Expansion(template, target).notes for target in build.TARGETS)
    assert first == second
    assert len({note["entry"] for note in first}) == len(first)


@pytest.mark.parametrize("template", TEMPLATES, ids=ids)
def test_variables_of_shared_memory_have_names_of_their_own(template: Path) -> None:
    """Of entries that call theirs the same ptxas 13.0 allocates the last one's alone, where there are line markers."""
    text = expand.Expansion(template, build.TARGETS[0]).text
    names = re.findall(r"^\s*\.shared .*?(\w+)\[", text, re.MULTILINE)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("target", build.TARGETS)
@pytest.mark.parametrize("template", TEMPLATES, ids=ids)
def test_no_register_spills(template: Path, target: str) -> None:
    """Spills would be counted by no budget."""
    name = template.relative_to(ROOT / "ptx").with_suffix("").as_posix().replace("/", "_")
    build.build()
    log = (ROOT / "build" / "ptx" / f"{name}.{target}.log").read_text()
    spills = {int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)}
    assert spills
    assert max(spills) == 0


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
