"""tune, and how a config is chosen."""

import argparse
import json
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pysm120
from pysm120 import __main__
from pysm120.cli import tune

SHAPE = ["--shape", "1,130,4,64", "--kv-rows", "70", "--kv-heads", "2"]


def test_every_config_is_shown(device_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["tune", "--device", device_name, *SHAPE, "--causal", "--runs", "2"]) == 0
    shown = capsys.readouterr().out
    assert "attention bf16 (1, 130, 4, 64) causal on" in shown
    for config in ("r16", "r32"):
        assert f"_d64_{config} " in shown
    assert ("measures no time" in shown) == device_name.startswith("virtual")


@pytest.mark.parametrize("precision", ["bf16", "mxfp8", "mxfp8_f16"])
def test_json(device_name: str, capsys: pytest.CaptureFixture[str], precision: str) -> None:
    options = ["--device", device_name, *SHAPE, "--runs", "3", "--precision", precision, "--json", "-"]
    assert __main__.main(["tune", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kv_rows"] == 70
    assert sum(x["chosen"] for x in found["configs"]) == 1
    for x in found["configs"]:
        assert len(x["seconds"]) == (0 if device_name.startswith("virtual") else 3)
        assert all(seconds > 0 for seconds in x["seconds"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "1,2,3"], "'1,2,3' is not BATCH,ROWS,HEADS,HEAD_SIZE"),
        (["--shape", "1,2,3,640"], "head_dim = 640; at most 256"),
        (["--kv-heads", "3"], "kv_heads = 3 does not divide heads = 32"),
        (["--runs", "0"], "--runs is 0; it must be at least 1"),
        (["--kv-heads", "0"], "--kv-heads is 0; it must be at least 1"),
        (["--kv-rows", "0"], "--kv-rows is 0; it must be at least 1"),
        (["--seed", "-1"], "--seed is -1; it must be at least 0"),
        (["--json", "no-such-folder/x.json"], "--json is 'no-such-folder/x.json', not a file in an existing folder"),
        (["--json", "/"], "--json is '/', not a file"),
        (["--shape", "8,1000000000,1,128", "--kv-heads", "1"], "--shape needs "),
    ],
)
def test_wrong_options(device_name: str, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    words = ["tune", "--device", device_name, *options]
    if "1,2,3" in options:  # what argparse refuses
        with pytest.raises(SystemExit):
            __main__.main(words)
    else:
        assert __main__.main(words) == 2
    assert message in capsys.readouterr().err


def test_argument_and_environment_choose(device: pysm120.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the kernels that ran tell which one it was; an environment that does not fit is no error."""
    x = np.ones((1, 40, 1, 64), ml_dtypes.bfloat16)

    def kernels(**options: object) -> str:
        with device.profile() as profile:
            pysm120.attention(x, x, x, precision="bf16", device=device, **options)  # type: ignore[call-overload] # any
        return " ".join(profile.kernels)

    if device.is_virtual:
        assert kernels().endswith("_d64_w4")
        assert kernels(config="r32").endswith("_d64_r32")
        monkeypatch.setenv("PYSM120_ATTENTION_CONFIG", "r32")
        assert kernels().endswith("_d64_r32")
        assert kernels(config="r16").endswith("_d64_r16")
        assert kernels(softcap=1.0).endswith("_d64_any_r16")
    with pytest.raises(pysm120.UnsupportedError, match='config = "r64"; this call supports r'):
        pysm120.attention(x, x, x, precision="bf16", device=device, config="r64")
    with pytest.raises(pysm120.UnsupportedError, match='config = "r32"; this call supports r16'):
        pysm120.attention(x, x, x, precision="bf16", device=device, config="r32", softcap=1.0)
    with pytest.raises(TypeError, match="config is 3, not the name of a config"):
        pysm120.attention(x, x, x, precision="bf16", device=device, config=3)  # type: ignore[call-overload] # wrong


# heads for each multiprocessor, rows, head size, the kernel
CHOICES = {
    "w4: few keys for groups of warps": (1.0, 20, 64, "_64x64_d64_w4"),
    "k4: a quarter of the heads, four tiles of 32 rows": (0.25, 128, 64, "_32x32_d64_k4"),
    "w4: two tiles of 32 rows, one of 64": (1.0, 64, 64, "_64x64_d64_w4"),
    "walk: w4 would take two turns": (1.0, 128, 64, "_128x64_d64_walk"),
    "walk: a tile of 128 rows and eight rounds": (0.19, 512, 64, "_128x64_d64_walk"),
    "k2": (1.0, 20, 128, "_32x32_d128_k2"),
    "walk: k2 would take four turns": (1.0, 128, 128, "_128x64_d128_walk"),
    "w4: one tile of 64 rows": (1.0, 20, 256, "_64x32_d256_w4"),
    "r16: w4 would take two turns": (1.0, 128, 256, "_128x32_d256_r16"),
}


@pytest.mark.virtual
@pytest.mark.parametrize("case", CHOICES)
def test_few_ctas_take_smaller_tiles(device: pysm120.Device, case: str) -> None:
    """Where they take fewer clocks of the multiprocessor with the most CTAs."""
    heads, rows, head_dim, wanted = CHOICES[case]
    x = np.ones((1, rows, int(heads * device.info.multiprocessors), head_dim), ml_dtypes.bfloat16)
    with device.profile() as profile:
        o = pysm120.attention(x, x, x, precision="bf16", device=device)
    (name,) = profile.kernels
    assert name.endswith(wanted)
    assert np.all(np.asarray(o, np.float32) == 1)


def test_times_are_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of a device whose clock advances by half a millisecond in each call."""
    calls: list[str] = []
    monkeypatch.setattr(tune, "attention", lambda *_, **options: calls.append(options["config"]))

    class Event:
        at = 0.0

        def record(self) -> None:
            self.at = 0.5 * len(calls)

        def synchronize(self) -> None:
            pass

        def elapsed_since(self, start: "Event") -> float:
            return self.at - start.at

    device: Any = SimpleNamespace(is_virtual=False, event=Event)
    arguments = argparse.Namespace(causal=False, precision="bf16", runs=3)
    sets: Any = [(None, None, None, None)]
    assert tune.measure(device, arguments, "r16", sets) == pytest.approx([5e-4] * 3)
