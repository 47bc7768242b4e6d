"""examples/generate.py: choices with a cache are those of computing everything again; broken caches are found."""

import re
from collections.abc import Callable
from typing import Any

import generate
import numpy as np
import pytest
import train

import pysm120

SMALL = ["--steps", "4", "--layers", "2", "--tokens", "6", "--context", "48"]
PROMPTS = ["A warp has ", "Attention of few queries"]


def test_a_run(device_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With a bf16 cache every text is the recomputed one; the table has plausible errors of all caches."""
    assert generate.main([*PROMPTS, "--device", device_name, *SMALL]) == 0
    shown = capsys.readouterr().out
    for prompt in PROMPTS:
        texts = re.findall(rf"^(\w+) +('{prompt}.*')$", shown, re.MULTILINE)
        assert [name for name, _ in texts] == ["recomputed", *generate.CACHES]
        assert texts[0][1] == texts[1][1]
        assert all(len(text) == len(prompt) + 6 + len("''") for _, text in texts)
    rows = [line.split() for line in shown.splitlines() if line.split(" ")[0] in generate.CACHES and "%" in line]
    assert [row[:2] for row in rows] == [["bf16", "512"], ["mxfp8", "264"], ["nvfp4", "144"]]
    errors = [float(row[4].rstrip("%")) for row in rows]
    assert rows[0][2] == "100.0%"
    assert errors[0] < errors[1] < errors[2] < 4
    assert errors[1] > 0.05


@pytest.fixture(scope="module")
def model() -> train.Model:
    """A model that was not trained."""
    return train.Model(40, layers=2, heads=2, context=64, seed=3)


def tokens(rng: np.random.Generator, *lengths: int) -> list[Any]:
    return [rng.integers(0, 40, n) for n in lengths]


def test_chunks_and_edges_of_pages(
    device: pysm120.Device, rng: np.random.Generator, model: train.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of one token, of whole pages and around them, prefilled in chunks of any size."""
    prompts = tokens(rng, 1, 15, 16, 17, 40)
    reference = generate.recomputed(device, model, prompts, 3)
    for chunk in (7, 64):
        monkeypatch.setattr(generate, "CHUNK", chunk)
        caches = generate.PagedCaches(device, model, "bf16", len(prompts), 48)
        found = generate.Comparison.of(generate.with_cache(caches, prompts, 3, reference.tokens), reference)
        assert not found.fails(), found
        used = [caches.table[n, : -(-length // 16)] for n, length in enumerate(caches.lengths)]
        assert len(np.unique(np.concatenate(used))) == sum(map(len, used))


def broken_pages(caches: generate.PagedCaches) -> None:
    caches.free = [0] * len(caches.free)


def broken_places(caches: generate.PagedCaches) -> None:
    caches.lengths += 1


@pytest.mark.parametrize("breaks", [broken_pages, broken_places])
def test_a_broken_cache_is_found(
    device: pysm120.Device,
    rng: np.random.Generator,
    model: train.Model,
    breaks: Callable[[generate.PagedCaches], None],
) -> None:
    prompts = tokens(rng, 20, 9)
    reference = generate.recomputed(device, model, prompts, 3)
    caches = generate.PagedCaches(device, model, "bf16", len(prompts), 48)
    breaks(caches)
    assert generate.Comparison.of(generate.with_cache(caches, prompts, 3, reference.tokens), reference).fails()


def test_comparison() -> None:
    """A choice between logits that are nearly equal is unclear, another one wrong."""
    logits = np.array([[[0.0, 1.0, -1.0], [0.0, 1.0, 0.9999]]])
    reference = generate.Continuation(logits.argmax(-1), logits)
    for place, other, unclear, wrong in ((0, 0, 0, 1), (1, 2, 1, 0)):
        changed = logits.copy()
        changed[0, place, other] = 1.0001
        found = generate.Comparison.of(generate.Continuation(changed.argmax(-1), changed), reference)
        assert (found.unclear, found.wrong, found.equal) == (unclear, wrong, 0.5)
        assert found.fails() == bool(wrong)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "tpu"], "tpu"),
        (["A\N{SNOWMAN}"], "has '\N{SNOWMAN}', which is not a character of the documents"),
        ([""], "the prompt '' is empty"),
        (["A warp", "--context", "10", "--tokens", "8"], "has 6 characters, but --context minus --tokens leaves 2"),
    ],
)
def test_errors_are_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--steps", "1", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("generate.py: ")
    assert said in line
