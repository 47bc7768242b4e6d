"""A search of bounded length in every target, and what the engine does when there is something to find."""

import re
import subprocess
from pathlib import Path

import fuzz
import numpy as np
import pytest

pytestmark = pytest.mark.virtual

RUNS = {"parse": 12_000, "run": 8_000, "abi": 3_000}  # beside the inputs of the corpus
FEW_RUNS, FEW_INPUTS = 300, 60


def search(target: str, folders: list[Path], runs: int, seed: int) -> None:
    """Search for so many runs, which must find nothing."""
    done = fuzz.search(target, folders, runs=runs, seed=seed)
    assert done.returncode == 0, f"python tests/fuzz/fuzz.py run {target} --seed {seed}\n{done.stderr[-8000:]}"
    assert f"{runs} runs" in done.stderr


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_short_search(target: str, pytestconfig: pytest.Config, rng: np.random.Generator, tmp_path: Path) -> None:
    """The regressions and a few inputs of the corpus, and what comes of changing these."""
    inputs = fuzz.inputs(target)
    some = [inputs[place] for place in rng.choice(len(inputs), FEW_INPUTS, replace=False)]
    folder = fuzz.unpack(some + fuzz.regressions(target), tmp_path / "some")
    search(target, [tmp_path, folder], FEW_RUNS, pytestconfig.option.seed)


@pytest.mark.slow
@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_search(target: str, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """The whole corpus, and a search of about 20 seconds."""
    search(target, [tmp_path, fuzz.unpack_all(target, tmp_path / "corpus")], RUNS[target], pytestconfig.option.seed)


@pytest.mark.parametrize("what", ["crash", "arena", "leak", "timeout"])
def test_planted(what: str, tmp_path: Path) -> None:
    """A planted mistake is found, and the input that shows it is kept and shows it again."""
    (tmp_path / "seed").write_text(".reg .pred p; .reg .b32 a;\nadd.u32 a, a, 1;\nadd.u32 a, a, 2;\n")
    options = ["-timeout=2", f"-artifact_prefix={tmp_path}/found-", "-seed=5", "-runs=100000"]
    program = fuzz.compiled("planted")

    def planted(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**fuzz.OPTIONS, "PLANTED": what}
        return subprocess.run([program, *words], capture_output=True, text=True, check=False, env=environment)

    done = planted(*options, str(tmp_path))
    (kept,) = tmp_path.glob("found-*")
    assert kept.name.startswith(f"found-{what}-".replace("arena", "crash"))
    assert b"@" in kept.read_bytes()
    assert done.returncode != 0
    again = planted(*options, "-runs=0", str(kept))
    assert again.returncode != 0
    assert kept.name in again.stderr


def test_same_seed_same_inputs(tmp_path: Path) -> None:
    """What the engine makes of a folder depends on its seed alone."""

    def found(name: str, seed: int) -> set[str]:
        folder, start = tmp_path / name, tmp_path / "start"
        folder.mkdir()
        start.mkdir(exist_ok=True)
        (start / "seed").write_text(
            ".version 8.8\n.target sm_120f\n.entry k() { .reg .b32 a; add.u32 a, a, 1; ret; }\n"
        )
        done = fuzz.search("parse", [folder, start], runs=300, seed=seed)
        assert re.search(r"\b300 runs", done.stderr)
        return {path.name for path in folder.iterdir()}

    assert found("a", 1) == found("b", 1) != found("c", 2)
