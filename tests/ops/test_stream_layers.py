"""examples/stream_layers.py: its results, the order of its streams, and its command line."""

from typing import Any

import gguf
import numpy as np
import pytest
import stream_layers
from gguf.quants import dequantize

import pysm120


def in_float64(shapes: stream_layers.Shapes, layers: int, x: Any) -> Any:
    """Return what the layers make of a vector, in float64."""
    h = x.astype(np.float64)
    for layer in range(layers):
        rng = np.random.default_rng(layer)
        w = {}
        for name, shape in shapes.items():
            values = dequantize(stream_layers.blocks(shape, rng), gguf.GGMLQuantizationType.Q4_K)
            w[name] = values.reshape(shape).astype(np.float64)
        gate, up = w["gate"] @ h, w["up"] @ h
        h = h + w["down"] @ (gate / (1 + np.exp(-gate)) * up)
    return h


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_layers(device: pysm120.Device, rng: np.random.Generator, layers: int) -> None:
    """More layers than buffers; x in int8 costs less than 2 % of what the layers add."""
    shapes = stream_layers.shapes_of(256, 512)
    streamed = stream_layers.Streamed(device, shapes, layers)
    x = rng.standard_normal(256).astype(np.float32)
    found = streamed.result(x)
    wanted = in_float64(shapes, layers, x)
    assert np.linalg.norm(found - wanted) < 0.02 * np.linalg.norm(wanted - x)
    assert np.array_equal(found, stream_layers.uploaded(device, shapes, layers, x))
    assert np.array_equal(streamed.result(x), found)
    assert streamed.host_bytes == layers * streamed.device_bytes // 3


@pytest.mark.cuda
def test_events_order_the_streams(
    device: pysm120.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies take longer than products here: products that do not wait for them read other spans than theirs."""
    shapes = stream_layers.shapes_of(2048, 8192)
    streamed = stream_layers.Streamed(device, shapes, 8)
    x = rng.standard_normal(2048).astype(np.float32)
    wanted = stream_layers.uploaded(device, shapes, 8, x)
    assert np.array_equal(streamed.result(x), wanted)
    monkeypatch.setattr(pysm120.Stream, "wait", lambda *_: None)
    assert not np.array_equal(streamed.result(x), wanted)


@pytest.mark.cuda
def test_measurement(device_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stream_layers.main(["--device", device_name, "--measure"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[2:5]] == ["copies alone", "products alone", "streamed"]


def broken(streamed: stream_layers.Streamed, layer: int) -> None:
    """Start the copy of another layer."""
    fetch(streamed, max(layer - 1, 0))


fetch = stream_layers.Streamed.fetch


def test_command_line(device_name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--device", device_name, "--layers", "3", "--hidden", "256", "--intermediate", "256"]
    assert stream_layers.main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("3 layers, 0.3 MB of weights in pinned memory, 0.3 MB on the device")
    assert shown[1] == "the result has the bits of layers uploaded one by one"
    monkeypatch.setattr(stream_layers.Streamed, "fetch", broken)
    assert stream_layers.main(words) == 1
    assert "differs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layers", "0"], "--layers is 0, but it must be at least 1"),
        (["--hidden", "100"], "--hidden is 100, but it must be a multiple of 256"),
        (["--intermediate", "0"], "--intermediate is 0, but it must be a multiple of 256"),
    ],
)
def test_wrong_sizes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        stream_layers.main(words)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "tpu"], "tpu"),
        (["--device", "virtual", "--measure"], "--measure is given, but virtual:0 is no GPU"),
    ],
)
def test_errors_are_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stream_layers.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stream_layers.py: ")
    assert said in line
