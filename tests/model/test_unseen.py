"""benchmarks/unseen.py: the launches that were predicted before they were measured, and how they are measured."""

import importlib.util
import json
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pysm120.machine_code import sass

ROOT = Path(__file__).resolve().parents[2]
PAGE_PART = "## Were blind predictions right?"
LIST = ROOT / "results" / "unseen_h100.json"
PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 x) { ret; }
"""


@pytest.fixture(scope="module")
def unseen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unseen", ROOT / "benchmarks" / "unseen.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(LIST.read_text())
    return found


def test_the_list_is_whole(document: dict[str, Any]) -> None:
    rows = document["launches"]
    assert len(rows) >= 16
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        assert row["predicted"] > 5000, row["name"]
        assert row["today"] > 5000, row["name"]
        assert row["mhz"] > 0
        assert {"code", "entry", "grid", "block", "shared_bytes", "problem", "command"} <= set(row)
        file = document["files"][row["file"]]
        assert file["source"] in document["sources"]
        assert "nvcc" in file["compile"]
        count = len(row["buffers"])
        used = [one[1] for one in row["arguments"] if one[0] == "buf"]
        used += [n for one in row["arguments"] if one[0] == "raw" for _, n in one[2]]
        assert all(0 <= n < count for n in used), row["name"]
        assert set(used) == set(range(count)), row["name"]


def test_no_launch_was_shown_before(document: dict[str, Any]) -> None:
    """The 30 launches that shaped the model are no test of it."""
    validation = (ROOT / "docs" / "explanation" / "model-validation.md").read_text()
    part = validation.split("## Which launches had the model never seen?")[1].split(PAGE_PART)[0]
    shown = {line.split("|")[1].strip() for line in part.splitlines() if line.startswith("|")}
    assert not shown & {row["name"] for row in document["launches"]}


def test_the_page_has_what_was_measured(document: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "explanation" / "model-validation.md").read_text()
    part = " ".join(page.split(PAGE_PART)[1].split("## The public record")[0].split())
    measured = [row for row in document["launches"] if "error" in row]
    for row in measured:
        assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1, abs=1e-4)
        figures = f"| {row['name']} | {row['predicted']:,} | {row['measured']:,} | {100 * row['error']:+.1f} % |"
        assert f"{figures} {row['today']:,} | {100 * (row['today'] / row['measured'] - 1):+.1f} % |" in part
    errors = sorted(abs(row["error"]) for row in measured)
    median, largest, within = statistics.median(errors), errors[-1], sum(error < 0.12 for error in errors)
    said = (
        f"Of {len(errors)} launches the median error is {median:.1%} and the largest {largest:.1%}; {within} are within"
    )
    assert said.replace("%", " %") in part
    later = sorted(abs(row["today"] / row["measured"] - 1) for row in measured)
    median, largest = statistics.median(later), later[-1]
    said = f"The model of today has a median error of {median:.1%} and a largest of {largest:.1%} in these launches"
    assert said.replace("%", " %") in part


def test_arguments_hold_addresses(unseen: ModuleType) -> None:
    raw = "00" * 8 + "11" * 16
    row = {"arguments": [["buf", 1], ["i32", -2], ["f32", 0.5], ["raw", raw, [[8, 0], [16, 1]]]]}
    first, second, third, data = unseen.arguments(row, [0x1234, 0x5678])
    assert (int(first), int(second), float(third)) == (0x5678, -2, 0.5)
    assert (second.dtype, third.dtype) == ("int32", "float32")
    assert data == bytes(8) + (0x1234).to_bytes(8, "little") + (0x5678).to_bytes(8, "little")


def test_other_code_is_named(unseen: ModuleType, tmp_path: Path) -> None:
    image = sass.assemble(PTX, "sm_90")
    code = unseen.code_of(image, "k")
    rows = [{"name": name, "file": file, "entry": "k", "code": code} for name, file in (("a", "f"), ("b", "g"))]
    (tmp_path / "f.cubin").write_bytes(image)
    (sentence,) = unseen.changed({"launches": rows}, tmp_path)
    assert sentence == f"b: {tmp_path}/g.cubin is missing"
    (tmp_path / "g.cubin").write_bytes(sass.assemble(PTX.replace("ret", "bar.sync 0; ret"), "sm_90"))
    (sentence,) = unseen.changed({"launches": rows}, tmp_path)
    assert sentence.startswith("b: the code of its kernel is ")
    assert sentence.endswith(f", but {code} was predicted")


def test_errors_of_what_was_measured(
    unseen: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ncu that answers for two launches, and whose third ends with an error of ours."""
    table = '"ID","Kernel Name","sm__cycles_elapsed.max"\n"","",""\n'
    answers = [
        table + "".join(f'"{i}","_Z1a(int)","{clocks}"\n' for i, clocks in enumerate(("1,000", "1,010", "900"))),
        table + "".join(f'"{i}","_Z1b(int)","{clocks}"\n' for i, clocks in enumerate((400, 500, 500))),
        f'{table}"0","_Z1c(int)","7"\nTraceback\npysm120.runtime.errors.FaultError: an illegal instruction\n==end\n',
    ]
    for n, answer in enumerate(answers):
        (tmp_path / str(n)).write_text(answer)
    ncu = tmp_path / "ncu"
    ncu.write_text(f'#!/bin/sh\nfor last; do :; done\ncat "{tmp_path}/$last"\n')
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    old = {"measured": 1, "error": 0.0, "failure": "before"}
    rows = [
        {"name": f"_Z1{x}", "entry": f"_Z1{x}", "predicted": p, **old} for x, p in (("a", 1100), ("b", 400), ("c", 1))
    ]
    found = [unseen.measured(row, n, tmp_path) for n, row in enumerate(rows)]
    assert [row.get("error") for row in found] == [0.1, -0.2, None]
    assert found[2]["failure"] == "pysm120.runtime.errors.FaultError: an illegal instruction"
    unseen.show({"launches": found})
    printed = capsys.readouterr().out
    assert "2 launches: median error 15.0%, largest 20.0%" in printed
    assert "failed: pysm120.runtime.errors.FaultError" in printed


def test_a_missing_checkout_is_named(unseen: ModuleType, tmp_path: Path) -> None:
    document = {
        "sources": {"a": {"repository": "o/a", "commit": "123"}},
        "files": {"f": {}},
        "headers": {},
        "launches": [],
    }
    assert unseen.build(document, tmp_path, tmp_path / "out") == [
        f"{tmp_path}/a is missing: git clone https://github.com/o/a, checkout 123"
    ]
