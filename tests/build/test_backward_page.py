"""What docs/explanation/backward.md shows is so: the sizes of the kernels, the losses of a training run."""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "explanation"
REDRAW = "python docs/explanation/draw_backward.py draws it again"


def test_the_picture_has_the_sizes_of_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import draw_backward
    from PIL import Image

    with Image.open(FOLDER / "backward.png") as picture:
        shown = json.loads(picture.info["Description"])
        size = picture.size
    sizes = draw_backward.sizes()
    assert list(sizes) == list(draw_backward.KERNELS), "a kernel of the picture is gone"
    assert shown == sizes, f"docs/explanation/backward.png shows other kernels: {REDRAW}"
    for kernel in sizes.values():  # what the rows of the picture say adds up to the kernel's shared memory
        tiles = kernel["STAGES"] + kernel["DO_STAGES"]
        held = 2 * kernel["KV_BYTES"] + tiles * kernel["TILE_BYTES"] + kernel["STAGES"] * kernel["ROWS_BYTES"]
        scores = (1 if kernel["KR"] == kernel["WARPS"] else 2) * kernel["DS_STAGES"] * kernel["DS_BYTES"]
        if kernel["V registers"]:
            assert scores == kernel["KV_BYTES"], "P and dS take the place of V"
            scores = 0
        assert 0 <= kernel["SHARED"] - held - scores < 1024, "more than barriers and padding is not in the picture"
    draw_backward.draw(tmp_path / "again.png")
    with Image.open(tmp_path / "again.png") as again:
        assert (json.loads(again.info["Description"]), again.size) == (shown, size)


def test_the_table_of_final_losses_is_that_of_the_measurement() -> None:
    with (ROOT / "results" / "h200" / "training.csv").open() as file:
        names, *rows = csv.reader(file)
    losses = np.array(rows, float)[:, 1:]
    assert len(losses) >= 500
    final = losses[-round(len(losses) / 10) :].mean(0)  # as examples/train.py counts
    shown = re.findall(
        r"^\| (\w+) \| ([\d.]+) \| ([+-][\d.]+) % \|$", (FOLDER / "backward.md").read_text(), re.MULTILINE
    )
    assert [row[0] for row in shown] == names[1:]
    for (name, loss, distance), value in zip(shown, final, strict=True):
        assert loss == f"{value:.4f}", name
        assert distance == f"{100 * (value / final[0] - 1):+.2f}", name
        assert abs(float(distance)) <= (2 if name.startswith("mxfp8") else 1), name
