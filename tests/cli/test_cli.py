"""The command line: info, demo, flags, errors."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pysm120
from pysm120 import __main__
from pysm120.cli import console, demo
from pysm120.report.reference import minilm
from pysm120.runtime.module import builtin_image, builtins


@pytest.mark.parametrize("rich", [True, False])
def test_info_shows_devices_and_kernels(
    device_name: str, rich: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "RICH", rich and console.RICH)
    assert __main__.main(["info", "--device", device_name]) == 0
    shown = capsys.readouterr().out
    assert f"pysm120 {pysm120.__version__}" in shown
    assert "virtual:0" in shown
    assert ("No CUDA device:" in shown) == (pysm120.runtime.ffi.device_count("cuda") == 0)
    with pysm120.Device(device_name) as device:
        most = device.info.shared_bytes_per_block  # kernels that need more run on Hopper alone
    for builtin in builtins():
        (line,) = (line for line in shown.splitlines() if f"{builtin.entry} " in line)
        cells = line.replace("│", " ").split()
        assert cells[1] == builtin.source
        assert int(cells[2]) == builtin.threads
        assert 0 < int(cells[3]) <= 255
        assert int(cells[4].replace(",", "")) >= builtin.shared_bytes
        # CTAs/SM: limited by registers too
        fits = builtin.shared_bytes <= most
        assert int(fits) <= int(cells[5]) <= fits * 65536 // (int(cells[3]) * int(cells[2]))


def test_images_of_the_builtin_kernels() -> None:
    for index, builtin in enumerate(builtins()):
        for target in ("sm_120f", "sm_90"):
            assert builtin_image(index, target, "cubin").startswith(b"\x7fELF")
            assert f".entry {builtin.entry}(".encode() in builtin_image(index, target, "ptx")


def test_plain_tables_line_up() -> None:
    rows = console.plain(("name", "count"), [("a", "1"), ("long name", "12,345")], 1)
    assert rows == [
        "name        count",
        "---------  ------",
        "a               1",
        "long name  12,345",
    ]


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([]) == 0
    assert "demo" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        __main__.main(["demo", "--help"])
    assert stop.value.code == 0
    assert "--device" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["info", "demo"])
def test_errors_are_one_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([command, "--device", "tpu"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("pysm120: ")
    assert "tpu" in lines[0]


def test_wrong_command_is_a_usage_error() -> None:
    done = subprocess.run([sys.executable, "-m", "pysm120", "dance"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_failure_of_a_kernel() -> None:
    """Whoever reads one line has seen enough: no message, and the status of SIGPIPE, not the 1 of a fault."""
    command = [sys.executable, "-m", "pysm120", "info", "--device", "virtual"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == 141


def test_closed_standard_streams() -> None:
    command = f"{sys.executable} -m pysm120 info --device virtual >&-"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(["/bin/sh", "-c", f"{command} 2>&-"], capture_output=True, text=True, check=False)
    assert done.returncode == 0


def test_used_up_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def use_up(_: str | None) -> int:
        raise MemoryError

    monkeypatch.setattr(demo, "run", use_up)
    assert __main__.main(["demo"]) == 2
    assert capsys.readouterr().err == "pysm120: this machine has too little memory: an allocation failed\n"


def test_interrupt_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_: str | None) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    assert __main__.main(["demo"]) == 130
    assert capsys.readouterr().err.strip() == "pysm120: interrupted"


def test_demo_measures_what_its_model_says(device: pysm120.Device) -> None:
    data = {name: x if name == "heads" else x[:1, :96] for name, x in minilm().items()}
    steps: list[str] = []
    layer = demo.measure(device, 3, data, steps.append)
    assert steps == [f"layer 3, head {data['heads'][0]}"]
    assert layer.error == pytest.approx(layer.model_error, rel=0.05)
    assert layer.error > 0
    assert layer.lse_error == pytest.approx(layer.model_lse_error, rel=0.2)
    assert layer.seconds > 0


def test_demo_says_when_an_error_is_too_large(
    device_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {name: x if name == "heads" else x[:1, :40] for name, x in minilm().items()}
    monkeypatch.setattr(demo, "minilm", lambda: data)
    monkeypatch.setattr(demo, "EXPECTED", {0: 1.0, 5: 1e-6})
    assert __main__.main(["demo", "--device", device_name]) == 1
    shown = capsys.readouterr().out
    assert "The error of layer 5 is more than" in shown
    monkeypatch.setattr(demo, "EXPECTED", {0: 1.0, 5: 1.0})
    assert __main__.main(["demo", "--device", device_name]) == 0
    shown = capsys.readouterr().out
    assert "All errors are as expected" in shown
    assert ("virtual SM120 executed" in shown) == device_name.startswith("virtual")


@pytest.mark.virtual
def test_demo_shows_counters_that_exist(device: pysm120.Device) -> None:
    x = np.ones((1, 64, 1, 64), np.float32)
    pysm120.attention(x, x, x, precision="mxfp8", device=device)
    counters = device.counters()
    assert not [name for name in demo.SHOWN if not counters.get(name)]
    assert counters["instructions"] > counters["mma.sync"] > 0


def test_demo_data_are_as_described() -> None:
    data = minilm()
    assert data["heads"].tolist() == [1, 5, 9]
    for layer in demo.EXPECTED:
        for name in "qkv":
            assert data[f"{name}{layer}"].shape == (3, 512, 32)
            assert data[f"{name}{layer}"].dtype == np.float16


STARTS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
class Interrupt:  # Ctrl-C when a module is imported
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


def start(tmp_path: Path, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run Python and interrupt it when it imports a module."""
    (tmp_path / "sitecustomize.py").write_text(STARTS.format(name=name))
    path = f"{tmp_path}{os.pathsep}{Path(pysm120.__file__).parent.parent}"
    whole = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=whole)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("-m pysm120", "numpy"),
        ("-m pysm120", "cffi._pycparser"),  # whose failure cffi takes for that of an old Python
        ("-mpysm120", "pysm120.cli.run"),
    ],
)
def test_interrupt_while_the_command_is_imported(tmp_path: Path, option: str, name: str) -> None:
    done = start(tmp_path, name, *option.split(), "--version")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\npysm120: interrupted\n")


def test_interrupt_while_a_program_imports_the_package(tmp_path: Path) -> None:
    """The program gets the exception, and may import again."""
    program = """
try:
    import pysm120
except KeyboardInterrupt:
    import sys
    del sys.meta_path[0]
    import pysm120
    print("again", pysm120.__version__)
"""
    done = start(tmp_path, "pysm120.study.recommend", "-c", program, "-m", "pysm120")
    assert (done.stdout, done.stderr) == (f"again {pysm120.__version__}\n", "")
