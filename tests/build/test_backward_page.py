"""docs/explanation/backward.png shows the kernels as they are."""

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "explanation"
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
        assert 0 <= kernel["SHARED"] - held - scores < 1024, "more than barriers and padding is not in the picture"
    draw_backward.draw(tmp_path / "again.png")
    with Image.open(tmp_path / "again.png") as again:
        assert (json.loads(again.info["Description"]), again.size) == (shown, size)
