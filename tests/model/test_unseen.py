"""The launches that were predicted before they were measured, and how a list is measured."""

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from pysm120.__main__ import main
from pysm120.machine_code import sass
from pysm120.model import launches, measure, validation
from pysm120.observe.argument import parse_arguments
from pysm120.runtime.device import Device

ROOT = Path(__file__).resolve().parents[2]
PAGE_PART = "## Were blind predictions right?"
LISTS = sorted((ROOT / "results").glob("unseen_*.json"))
PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 x) { ret; }
"""


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_list_is_whole(path: Path) -> None:
    document: dict[str, Any] = json.loads(path.read_text())
    rows = measure.read_list(path)["launches"]
    assert all(source["commit"] for source in document["sources"].values() if source["repository"])
    assert len(rows) >= 12  # launches that a list needs
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        assert row["predicted"] > 5000, row["name"]
        assert row.get("later", math.inf) > 5000, row["name"]
        assert row["mhz"] > 0
        assert {"code", "problem", "command"} <= set(row)
        assert launches.tensor_bytes(row) > 1 << 24, row["name"]
        parse_arguments([re.sub(r"\[\d+\](?!:[\[\d-])", "[1]", word) for word in row["arguments"]])


def test_no_launch_was_shown_before() -> None:
    """The 30 launches that shaped the model are no test of it and are marked; no launch is in two lists."""
    validation = (ROOT / "docs" / "explanation" / "model-validation.md").read_text()
    part = validation.split("## Which launches had the model never seen?")[1].split(PAGE_PART)[0]
    shown = {line.split("|")[1].strip() for line in part.splitlines() if line.startswith("|")}
    rows = [row for path in LISTS for row in json.loads(path.read_text())["launches"]]
    names = [row["name"] for row in rows]
    assert shown & set(names) == {row["name"] for row in rows if row.get("shown_before")}
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("number", range(len(LISTS)))
def test_the_page_has_what_was_measured(number: int) -> None:
    document: dict[str, Any] = json.loads(LISTS[number].read_text())
    page = (ROOT / "docs" / "explanation" / "model-validation.md").read_text()
    part = page.split(PAGE_PART)[1].split("\n## The public record")[0]
    parts = re.split(r"\n### The [\w-]+ round\n", part)
    assert len(parts) == len(LISTS)
    part = " ".join(parts[number].split())
    measured = [row for row in document["launches"] if "error" in row and not row.get("shown_before")]
    if not measured:
        assert "Nobody has measured these launches yet." in part
        return
    for row in measured:
        assert row["error"] == pytest.approx(row["predicted"] / row["clocks"] - 1, abs=1e-4)
        figures = f"| {row['name']} | {row['predicted']:,} | {row['clocks']:,} | {100 * row['error']:+.1f} % |"
        assert f"{figures} {row['later']:,} | {100 * (row['later'] / row['clocks'] - 1):+.1f} % |" in part
    errors = sorted(abs(row["error"]) for row in measured)
    median, largest, within = statistics.median(errors), errors[-1], sum(error < 0.12 for error in errors)
    said = (
        f"Of {len(errors)} launches the median error is {median:.1%} and the largest {largest:.1%}; {within} are within"
    )
    assert said.replace("%", " %") in part
    later = sorted(abs(row["later"] / row["clocks"] - 1) for row in measured)
    median, largest = statistics.median(later), later[-1]
    said = f"It has a median error of {median:.1%} and a largest of {largest:.1%} in these launches"
    assert said.replace("%", " %") in part


def test_other_code_is_named(tmp_path: Path) -> None:
    image = sass.assemble(PTX, "sm_90")
    code = launches.code_of(image, "k")
    rows = [{"name": name, "image": f"{file}.cubin", "entry": "k", "code": code} for name, file in ("af", "bg")]
    (tmp_path / "f.cubin").write_bytes(image)
    (sentence,) = launches.changed(rows, tmp_path)
    assert sentence == f"b: {tmp_path}/g.cubin is missing"
    (tmp_path / "g.cubin").write_bytes(sass.assemble(PTX.replace("ret", "bar.sync 0; ret"), "sm_90"))
    (sentence,) = launches.changed(rows, tmp_path)
    assert sentence.startswith("b: the code of its kernel is ")
    assert sentence.endswith(f", but {code} was predicted")


def test_a_list_is_measured_launch_by_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ncu that answers for three launches, and for three more whose process ends with an error."""
    table = '"ID","Kernel Name","sm__cycles_elapsed.max","gpu__time_duration.sum"\n"","","","ns"\n'

    def answer(entry: str, *clocks: str) -> str:
        return table + "".join(f'"{i}","{entry}","{each}","500"\n' for i, each in enumerate(clocks))

    fault, nan = "pysm120.runtime.errors.FaultError: an illegal instruction", "pysm120.runtime.errors.X: _Z1e left NaN"
    answers = [
        answer("_Z1a", "1,000", "1,010", "900"),
        answer("_Z1b", "400", "500", "500"),
        answer("_Z1c", "7") + f"Traceback\n{fault}\n==end\n",
        answer("_Z1d", "30", "20", "10"),
        answer("_Z1e", "30", "20", "10") + f"Traceback\n{nan}\n",
        "==ERROR== no counters",
    ]
    for n, text in enumerate(answers):
        (tmp_path / str(n)).write_text(text)
    ncu = tmp_path / "ncu"
    ncu.write_text(f'#!/bin/sh\nfor last; do :; done\ncat "{tmp_path}/$last"\n')
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(measure, "Device", lambda _: Device("virtual"))
    monkeypatch.setattr(measure, "_head", lambda _: {"chip": "h100"})
    old = {"clocks": 1, "error": 0.0, "failure": "before"}
    made = {"image": "k.cubin", "grid": [1], "threads": 1, "shared_bytes": 0, "arguments": []}
    rows = [{"name": x, "entry": f"_Z1{x}", **made, **old} for x in "abcdef"]
    for row, predicted in zip(rows, (1100, 400, 1), strict=False):
        row["predicted"] = predicted
    (tmp_path / "k.cubin").write_bytes(b"code")
    (tmp_path / "list.json").write_text(json.dumps({"compiler": "nvcc", "launches": rows}))
    (tmp_path / "out").mkdir()
    assert main(["model", "--measure", f"{tmp_path}/out/t.json", "--launches", f"{tmp_path}/list.json"]) == 0
    document = json.loads((tmp_path / "out" / "t.json").read_text())
    assert (document["compiler"], document["chip"], document["loops"]) == ("nvcc", "h100", [])
    found = document["launches"]
    assert [row.get("error") for row in found] == [0.1, -0.2, None, None, None, None]
    assert [row.get("clocks") for row in found] == [1000, 500, None, 20, None, None]
    assert [row.get("ran_at_mhz") for row in found] == [2000, 1000, None, 40, None, None]
    said = "ncu printed no table: '==ERROR== no counters'"
    assert [row.get("failure") for row in found] == [None, None, fault, None, nan, said]
    assert (tmp_path / "out" / "k.cubin").read_bytes() == b"code"
    printed = capsys.readouterr().out
    assert "2 comparisons: median error 15.0%, largest 20.0%" in printed
    assert f"c failed: {fault}" in printed
    assert not [row for row in validation.compare({**document, "launches": found[2:3]}, tmp_path) if row.name == "c"]
