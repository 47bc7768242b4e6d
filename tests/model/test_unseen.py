"""benchmarks/unseen.py: the launches that were predicted before they were measured, and how they are measured."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pysm120.machine_code import sass
from pysm120.model import measure

ROOT = Path(__file__).resolve().parents[2]
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
    part = validation.split("## Which launches had the model never seen?")[1].split("## The public record")[0]
    shown = {line.split("|")[1].strip() for line in part.splitlines() if line.startswith("|")}
    assert not shown & {row["name"] for row in document["launches"]}


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


def test_errors_of_what_was_measured(unseen: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    head = '"ID","Kernel Name","sm__cycles_elapsed.max"\n"","",""\n'
    text = head + "".join(f'"{i}","{name}(int)","{clocks}"\n' for i, (name, clocks) in enumerate(
        [("_Z1a", "1,000"), ("_Z1a", "1,010"), ("_Z1a", "900"), ("_Z1b", "400"), ("_Z1b", "500"), ("_Z1b", "500")]
    ))  # fmt: skip
    clocks = measure.read_cycles(text, ["_Z1a", "_Z1b"])
    rows = [{"name": "a", "predicted": 1100}, {"name": "b", "predicted": 400}]
    found = unseen.with_errors({"launches": rows}, clocks)
    assert [row["error"] for row in found["launches"]] == [0.1, -0.2]
    unseen.show(found)
    assert "2 launches: median error 15.0%, largest 20.0%" in capsys.readouterr().out


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
