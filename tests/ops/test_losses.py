"""examples/losses.py: a small GPT in every precision; the table of the documents is that of its results."""

import json
from pathlib import Path

import losses
import numpy as np
import pytest

from pysm120 import __main__

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--steps", "3", "--layers", "2", "--heads", "1", "--context", "40", "--batch", "2", "--sequences", "2"]


@pytest.mark.virtual
def test_every_precision_of_a_small_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, saved, loaded: the same losses; what --qkv keeps is an input of study."""
    saved, found, qkv = tmp_path / "gpt.npz", tmp_path / "x.json", tmp_path / "qkv.npz"
    words = ["--device", "virtual", "--json", str(found)]
    assert losses.main([*SMALL, *words, "--save", str(saved)]) == 0
    first = json.loads(found.read_text())
    assert losses.main(["--weights", str(saved), "--sequences", "2", *words, "--qkv", str(qkv)]) == 0
    assert json.loads(found.read_text()) == first
    assert [row["precision"] for row in first["rows"]] == list(losses.PRECISIONS)
    for row in first["rows"]:
        assert abs(row["distance"]) < 0.01
        assert row["loss"] == pytest.approx(first["float32"] + row["distance"])
    worst = {row["precision"]: max(row["errors"]) for row in first["rows"]}
    assert worst["f16"] < worst["bf16"] < worst["mxfp8"] < worst["nvfp4"]
    with np.load(qkv) as file:
        assert {name: x.shape for name, x in file.items()} == dict.fromkeys("qkv", (1, 40, 1, 64))
    capsys.readouterr()
    assert __main__.main(["study", "--inputs", str(qkv), "--causal", "--device", "virtual", "--no-times"]) == 0
    assert "nvfp4_mxfp8" in capsys.readouterr().out


def test_a_file_that_save_did_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, q=np.zeros(3))
    assert losses.main(["--weights", str(path), "--device", "virtual"]) == 2
    assert "which --save did not write" in capsys.readouterr().err


def test_the_table_of_the_documents() -> None:
    found = json.loads((ROOT / "results" / "h200" / "losses.json").read_text())
    table = losses.table(found["float32"], [losses.Row(**row) for row in found["rows"]])
    page = (ROOT / "docs" / "explanation" / "quantisation.md").read_text()
    lines = {line.replace(" ", "") for line in page.splitlines()}
    missing = [
        line for line in table.splitlines() if not line.startswith("|---") and line.replace(" ", "") not in lines
    ]
    assert not missing
