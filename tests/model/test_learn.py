"""model --learn: parameters of a chip are found again from what a chip with other parameters measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from pysm120 import __main__
from pysm120.model import chips, learn, loops, validation
from pysm120.report import parent

ALTERED = {
    "scheduler.taken_branch": 17,
    "instruction.hmma_16816_f32.interval": 16,
    "instruction.mufu.interval": 12,
    "instruction.ldmatrix.latency": 24,
    "instruction.shuffle.latency": 30,
    "hand_off.barrier_latency": 14,
}
BASE = "rtx5090"
BY_NAME = {f"{one.section}.{one.key}": one for one in learn.PARAMETERS}
HELD_OUT = ("mix_mma_ex2", 4)
MEASURED = [*ALTERED, "instruction.load_shared.latency"]  # parameters whose loops the report has


@pytest.fixture(scope="module")
def altered() -> chips.Chip:
    chip = chips.load(BASE)
    for name, value in ALTERED.items():
        chip = learn.with_value(chip, BY_NAME[name], value)
    return chip


@pytest.fixture(scope="module")
def document(altered: chips.Chip) -> dict[str, Any]:
    """Return a report of a chip whose clocks are what the model predicts for other parameters."""
    wanted = {one for name in MEASURED for one in BY_NAME[name].loops}
    chosen = [
        *(one for one in learn.loops() if (one.name, one.warps) in wanted),
        *(one for one in loops.validation() if (one.name, one.warps) == HELD_OUT),
    ]
    rows = [
        {
            "name": one.name,
            "chip": BASE,
            "loop": one.name,
            "warps": one.warps,
            "clocks": validation.loop_clocks(altered, one),
        }
        for one in chosen
    ]
    return {"format": parent.FORMAT, "kind": parent.KIND, "version": "0", "tasks": {"loops": {"rows": rows}}}


def test_altered_parameters_are_found(
    document: dict[str, Any], altered: chips.Chip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, to = tmp_path / "report.json", tmp_path / "new.toml"
    report.write_text(json.dumps(document))
    assert __main__.main(["model", "--learn", str(report), "--to", str(to)]) == 0
    shown = capsys.readouterr().out
    new = chips.load(str(to))
    for name, parameter in BY_NAME.items():
        assert learn.value_of(new, parameter) == learn.value_of(altered, parameter), name
        (line,) = (line for line in shown.splitlines() if f"{name} " in line)
        assert ("same" in line) == (name in MEASURED and name not in ALTERED)
        assert ("has none of its loops" in line) == (name not in MEASURED)
    assert new.timing("mufu").latency == chips.load(BASE).timing("mufu").latency
    before, after = shown.split("median error ")[1].split("% before; ")
    assert float(before.split("%")[0]) > 10
    assert after.startswith("0.0% and 0.0%")


def test_a_parameter_without_its_loops_keeps_its_value(document: dict[str, Any]) -> None:
    rows = [row for row in document["tasks"]["loops"]["rows"] if row["loop"] == "rate_ex2"]
    steps: list[str] = []
    found = learn.learn({"tasks": {"loops": {"rows": rows}}}, chips.load(BASE), steps.append)
    assert [one.name for one in found.changes if one.new != one.old] == ["instruction.mufu.interval"]
    assert set(found.missing) == set(BY_NAME) - {"instruction.mufu.interval"}
    assert not found.is_held_out
    assert len(steps) == learn.STEPS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learn", "{empty}"], "has no measured loops"),
        (["--learn", "{folder}/none.json"], "is not a report"),
        (["--learn", "{empty}", "--to", "x.json"], "--to is 'x.json', not a .toml file"),
        (["--learn", "{empty}", "--to", str(chips.FOLDER / "rtx5090.toml")], "a chip file of the package"),
        (["--to", "x.toml"], "there is no --learn"),
    ],
)
def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"format": parent.FORMAT, "kind": parent.KIND, "tasks": {"system": {"rows": []}}}))
    assert __main__.main(["model", *(word.format(empty=empty, folder=tmp_path) for word in words)]) == 2
    assert message in capsys.readouterr().err
