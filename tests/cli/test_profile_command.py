"""``python -m pysm120 profile``: what is shown and written."""

import importlib.util
import itertools
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import SAXPY

from pysm120 import __main__
from pysm120.cli import console, profile
from pysm120.observe import program
from pysm120.observe.profile import Counts, Line, Sources, Statement

pytestmark = pytest.mark.virtual

EXAMPLE = program.EXAMPLE.split()
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def words(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return line.replace("│", " ").split()


@pytest.fixture
def saxpy(tmp_path: Path) -> list[str]:
    path = tmp_path / "saxpy.ptx"
    path.write_text(SAXPY)
    arguments = ["f32[100]:normal", f"{tmp_path}/out.npy=f32[100]:1", "f32:2", "u32:100"]
    return ["profile", str(path), "--kernel", "saxpy", "--grid", "1", "--block", "128", *arguments]


@pytest.mark.parametrize("rich", [True, False])
def test_listing_of_a_file(
    saxpy: list[str], rich: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "RICH", rich and console.RICH)
    assert __main__.main(saxpy) == 0
    shown = capsys.readouterr().out
    assert "saxpy, grid 1, block 128, on virtual:0" in shown
    source = SAXPY.splitlines()
    lines = shown[shown.index("Instructions by line") :].splitlines()
    (load,) = (words(line) for line in lines if "ld.global.f32           u, [x]" in line)
    # one of 18 statements; four warps, of which the last has four lanes: 100 elements, 13 sectors
    assert load[1:8] == ["4", "5.6%", "6.5", "25.0", "3.2", "(3.2)", "ld.global.f32"]
    assert source[int(load[0]) - 1].split() == load[7:]
    (branch,) = (words(line) for line in lines if "@outside bra" in line)
    assert branch[1:6] == ["4", "5.6%", "1.0", "7.0", "1"]
    assert "bytes ld.global" in shown
    assert np.load(Path(saxpy[1]).parent / "out.npy").shape == (100,)


def test_hottest_lines_of_a_kernel_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["profile", *EXAMPLE, "--top", "3"]) == 0
    shown = capsys.readouterr().out
    assert "The 3 lines that cost the most clocks" in shown
    rows = [words(line) for line in shown.splitlines() if re.search(r"\w\.ptx:\d", line)]
    assert len(rows) == 3
    clocks = [float(row[3].replace(",", "")) for row in rows]
    assert clocks == sorted(clocks, reverse=True)
    root = Path(__main__.__file__).parent.parent / "ptx"
    file, line = rows[0][0].split(":")
    source = (root / file).read_text().splitlines()[int(line) - 1].split()
    assert source == rows[0][-len(source) :]


CONFLICTS = """\
.version 9.0
.target sm_120f
.address_size 64
.visible .entry conflicts()
{
    .reg .pred more;
    .reg .b32 lane, at, i;
    .shared .align 128 .b8 block[8192];
    mov.u32 lane, %tid.x;
    mov.u32 at, block;
    mad.lo.u32 at, lane, 128, at;
    st.shared.b32 [at], lane;
    mov.u32 i, 0;
again:
    add.u32 i, i, 1;
    setp.lt.u32 more, i, 10;
@more bra again;
    ret;
}
"""


def test_the_line_of_the_conflicts_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "conflicts.ptx"
    path.write_text(CONFLICTS)
    assert __main__.main(["profile", str(path), "--grid", "1", "--block", "32", "--top", "2"]) == 0
    rows = [words(line) for line in capsys.readouterr().out.splitlines() if re.search(r"\w\.ptx:\d", line)]
    # 32 lanes in one bank: 32 wavefronts, although the loop executes ten times as many instructions
    assert rows[0][1:] == ["1", "2.8%", "32.0", "32.0", "31", "st.shared.b32", "[at],", "lane;"]
    assert rows[1][1:4] == ["10", "27.8%", "2.5"]


@pytest.mark.parametrize(
    ("mnemonic", "clocks"),
    [("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 8.0),
     ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 4.0),
     ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", 4.0),
     ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", 2.0),
     ("mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0", 2.0),
     ("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3", 1.0)],
)  # fmt: skip
def test_clocks_of_tensor_cores(mnemonic: str, clocks: float) -> None:
    counts = Counts(executed=1, tensor_flops=4096)
    assert Statement("k", 0, "", 1, 1, f"{mnemonic} d, a, b, c", "mma", counts).clocks == clocks


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="needs matplotlib")
def test_colours_differ_in_grey() -> None:
    from pysm120.cli import plot, plot_study
    from pysm120.model import timeline

    weights = (0.299, 0.587, 0.114)
    of_kinds, of_pipes = ([colour for colour, _ in x.values()] for x in (plot.KINDS, timeline.PIPES))
    for given in (of_kinds, of_pipes, plot_study.COLOURS):
        colours = [bytes.fromhex(colour[1:]) for colour in given]
        grey = sorted(sum(w * x for w, x in zip(weights, rgb, strict=True)) for rgb in colours)
        assert min(b - a for a, b in itertools.pairwise(grey)) > 30


def test_json_adds_up(saxpy: list[str], tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    assert __main__.main([*saxpy, "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    for parts in (
        found["lines"],
        found["statements"],
        list(found["opcodes"].values()),
        list(found["kernels"].values()),
    ):
        assert sum(part["executed"] for part in parts) == found["total"]["executed"]
        assert sum(part["bytes"].get("ld.global", 0) for part in parts) == found["total"]["bytes"]["ld.global"] == 800
    assert found["total"]["bank_conflicts"] == 0
    (fma,) = (part for part in found["statements"] if part["opcode"] == "fma")
    assert fma["text"] == "fma.rn.f32 v, a, u, v"
    assert fma["lanes"] == 100


def test_picture(saxpy: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.png"
    status = __main__.main([*saxpy, "--plot", str(path)])
    if not HAS_MATPLOTLIB:
        assert status == 2
        assert "pip install 'pysm120[cli]'" in capsys.readouterr().err
        return
    assert status == 0
    raw = path.read_bytes()
    assert raw.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", raw[16:24])
    assert width > 1500
    assert height > 500


def test_picture_without_matplotlib(
    saxpy: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "pysm120.cli.plot", raising=False)
    monkeypatch.delattr("pysm120.cli.plot", raising=False)
    assert __main__.main([*saxpy, "--plot", "x.png"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_is_refused(saxpy: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for extra, message in (
        (["--json", "x.txt"], "--json is 'x.txt', not a .json file"),
        (["--plot", "nowhere/x.png"], "--plot is 'nowhere/x.png', not a .png file in an existing folder"),
        (["--top", "many"], "--top is 'many'"),
    ):
        assert __main__.main([*saxpy, *extra]) == 2
        assert message in capsys.readouterr().err


def test_sources_that_are_not_there_leave_the_statement(tmp_path: Path) -> None:
    path = tmp_path / "short.ptx"
    path.write_text("one\n  two  \n")
    sources = Sources()
    assert [sources.line(str(path), n) for n in (0, 1, 2, 3)] == [None, "one", "two", None]
    assert sources.line("nowhere.ptx", 1) is None
    assert sources.line(str(tmp_path), 1) is None
    assert sources.line("", 1) is None


def test_rows_say_nothing_where_there_is_nothing() -> None:
    line = Line("x.ptx", 3, (), Counts(executed=2, lanes=64), "add.u32 a, b, c;")
    cells = profile.row(line, line.short_place, Counts(executed=4))
    assert cells == ("x.ptx:3", "2", "50.0%", "0.0", "32.0", "", "", "", "add.u32 a, b, c;")
