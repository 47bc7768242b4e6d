"""examples/train.py: its gradients, short runs on the device, its command line."""

import csv
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import train

import pysm120

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--layers", "1", "--heads", "1", "--context", "64", "--batch", "2"]


def test_gradients_are_central_differences(rng: np.random.Generator) -> None:
    """The gradient of every weight's array, along random directions, in float64."""
    symbols = 11
    model = train.Model(symbols, layers=2, heads=2, context=7, seed=1, dtype=np.float64)
    model.weights += 0.1 * rng.standard_normal(model.weights.size)  # gains other than 1
    text = rng.integers(0, symbols, (3, 8))
    text[0, 0] = text[0, 1]  # a symbol that occurs twice adds up its gradients

    def loss() -> float:
        return model.loss(text[:, :-1], text[:, 1:], train.attention_in_numpy)

    model.gradients[...] = np.nan  # each must be written
    loss()
    gradients = {name: part.copy() for name, part in model.dw.items()}
    step = 1e-5
    for name, weight in model.w.items():
        for _ in range(3):
            direction = rng.standard_normal(weight.shape)
            direction /= float(np.linalg.norm(direction))
            before = weight.copy()
            ends = []
            for sign in (1, -1):
                weight[...] = before + sign * step * direction
                ends.append(loss())
            weight[...] = before
            numeric = (ends[0] - ends[1]) / (2 * step)
            exact = float((gradients[name] * direction).sum())
            scale = float(np.linalg.norm(gradients[name])) / weight.size**0.5
            assert abs(numeric - exact) < 1e-5 * scale + 1e-10, name


# Error of the gradients that attention returns, through the weights of q, k and v: 16 bits, then blocks of e4m3.
BOUNDS = {"bf16": 0.01, "mxfp8_bf16": 0.06, "mxfp8": 0.09}


@pytest.mark.parametrize("precision", BOUNDS)
def test_gradients_with_attention_on_the_device(
    precision: str, device: pysm120.Device, rng: np.random.Generator
) -> None:
    text = rng.integers(0, 30, (2, 129))
    gradients = []
    for attention in (train.attention_in_numpy, train.attention_on(device, precision)):
        model = train.Model(30, layers=2, heads=2, context=128, seed=1)
        model.loss(text[:, :-1], text[:, 1:], attention)
        gradients.append(model.dw)
    wanted, got = gradients
    for n in range(2):
        for which in range(3):
            columns = slice(128 * which, 128 * (which + 1))
            a, b = (x[f"qkv {n}"][:, columns] for x in (got, wanted))
            assert np.linalg.norm(a - b) < BOUNDS[precision] * np.linalg.norm(b), f"{'qkv'[which]} of block {n}"


def test_a_short_run_learns_in_every_precision(
    device_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses, picture = tmp_path / "losses.csv", tmp_path / "losses.png"
    words = ["--device", device_name, "--steps", "30", "--every", "10", "--csv", str(losses), "--plot", str(picture)]
    assert train.main([*words, *SMALL]) == 0
    with losses.open() as file:
        names, *rows = csv.reader(file)
    assert names == ["step", *train.PRECISIONS]
    table = np.array(rows, float)
    assert table[:, 0].tolist() == list(range(1, 31))
    curves = dict(zip(names[1:], table.T[1:], strict=True))
    for name, curve in curves.items():
        assert curve[-3:].mean() < curve[0] - 0.5, name  # from log(symbols) on
        assert abs(curve / curves["float32"] - 1).max() < 0.001, name
    assert any(not np.array_equal(curves["bf16"], curves[name]) for name in ("mxfp8", "mxfp8_bf16"))
    shown = capsys.readouterr().out.splitlines()
    for name, line in zip(train.PRECISIONS, shown[-4:], strict=True):
        shown_name, shown_loss = line.split()[:2]
        assert shown_name == name
        assert abs(float(shown_loss) - curves[name][-3:].mean()) < 0.0002  # the file has rounded losses
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_seed_repeats_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for seed in ("1", "1", "2"):
        assert train.main(["--precision", "float32", "--steps", "2", "--seed", seed, *SMALL]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]
    assert "on the CPU" not in shown[0]
    assert "the CPU" in shown[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "tpu"], "tpu"),
        (["--context", "100000000"], "--context 100000000"),
        (["--csv", "/none/a"], "/none/a"),
    ],
)
def test_errors_are_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = ["--precision", "bf16"] if "--device" in words else ["--precision", "float32"]
    assert train.main([*first, "--steps", "1", *SMALL, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train.py: ")
    assert said in line


@pytest.mark.usefixtures("control_c")
def test_control_c_ends_with_the_table(device_name: str, tmp_path: Path) -> None:
    losses = tmp_path / "losses.csv"
    words = ["--device", device_name, "--precision", "float32", "bf16", "--steps", "1000000", "--every", "1"]
    command = [sys.executable, str(ROOT / "examples" / "train.py"), *words, *SMALL, "--csv", str(losses)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("2 "):
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == "Stopped by Ctrl-C.\n"
    assert "Final loss" in out
    assert len(losses.read_text().splitlines()) > 2
