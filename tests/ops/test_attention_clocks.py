"""The estimate of clocks on SM120 by which the library chooses kernels and splits: against the timing model."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pysm120 import Device, __main__
from pysm120.model import chips, predict, validation
from pysm120.model.problem import Problem
from pysm120.model.record import capability
from pysm120.model.splits import chosen, described
from pysm120.runtime.module import Builtin, builtin_image, builtin_index, builtins

pytestmark = pytest.mark.virtual

TABLE = Path(__file__).resolve().parents[2] / "src" / "ops" / "attention" / "clocks.c"
NUMBER = r"\{(\d+), (\d+)\}"
ROWS = re.findall(rf'\{{SM120_(\w+), (\d+), "(\w+)", {NUMBER}, {NUMBER}, (true|false)\}}', TABLE.read_text())
CHIP = chips.load("rtx5090")
SMS = int(CHIP["sms"])
# As bf16 and mxfp8_bf16 in src/ops/attention/clocks.c.
LIKE = {"f16": "bf16", "mxfp8_f16": "mxfp8_bf16"}


def uniform() -> list[Builtin]:
    """Return the kernels for tensors of one length and unmodified scores."""
    return [b for b in builtins() if b.operation == "attention" and not b.features]


def key(one: Builtin) -> tuple[str, ...]:
    """Return a kernel's first cells of the table."""
    precision = LIKE.get(one.precision, one.precision)
    return precision.upper(), str(one.head_dim), one.config


def test_every_kernel_has_a_row() -> None:
    assert sorted({key(one) for one in uniform()}) == sorted(row[:3] for row in ROWS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:3]))
def test_paces_are_those_of_the_model(row: tuple[str, ...]) -> None:
    one = next(one for one in uniform() if key(one) == row[:3])
    index = builtin_index(one.entry)
    assert index is not None
    text, problem = builtin_image(index, "sm_120f", "ptx").decode(), Problem(1, 512, 1, one.head_dim)
    model = validation.builtin_model(CHIP, one.entry, record=validation.recorder(text, "sm_120f", problem, one))
    model = predict.shared(model)

    def clocks(ctas: int, rounds: int) -> float:
        launch = [rounds] * ctas * SMS
        return predict.predict(model, launch, tensor_bytes=0).clocks if ctas else float(CHIP["launch_clocks"])

    def check_pace(wanted: tuple[str, ...], few: int, many: int) -> None:
        """Compare the clocks of short and of longer CTAs beyond a few CTAs an SM."""
        each_round, outside = (int(x) for x in wanted)
        for rounds in (4, 12):
            found = (clocks(many, rounds) - clocks(few, rounds)) / (many - few)
            assert found == pytest.approx(rounds * each_round + outside, rel=0.06), rounds

    check_pace(row[3:5], 0, 1)
    assert (row[7] == "true") == bool(model.paths.between), "CTAs go on to other Q tiles"
    if model.slots > 1 or model.paths.between:
        check_pace(row[5:7], 2, 6)
    else:
        assert row[5:7] == ("0", "0")


def predicted(capsys: pytest.CaptureFixture[str], entry: str, problem: Problem) -> float:
    """Return the clocks of a launch with the library's splits."""
    assert __main__.main(["model", entry, "--problem", str(problem), "--json"]) == 0
    return float(json.loads(capsys.readouterr().out)["clocks"])


SHAPES = [  # precision, batch, rows, heads, head size, causal
    ("bf16", 1, 512, 8, 64),
    ("bf16", 8, 197, 12, 64),
    ("bf16", 4, 512, 16, 64),
    ("bf16", 1, 1024, 16, 128),
    ("bf16", 4, 512, 16, 64, True),
    ("fp8", 2, 512, 16, 64),
    ("fp8", 1, 512, 8, 128),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_chosen_kernel_is_as_fast_as_any(shape: tuple[Any, ...], capsys: pytest.CaptureFixture[str]) -> None:
    precision, problem = shape[0], Problem(*shape[1:])
    found = {
        builtin_index(one.entry): predicted(capsys, one.entry, problem)
        for one in uniform()
        if one.precision == precision and one.head_dim == problem.head_dim
    }
    with capability("sm_120f"), Device(f"virtual?multiprocessors={SMS}") as device:
        index = chosen(device, described("sm120_attention_args", precision, problem))
    assert found[index] <= 1.05 * min(found.values()), found
