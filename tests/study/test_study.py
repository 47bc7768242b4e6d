"""The models of formats, the errors of precisions, recommend, and the command study."""

import argparse
import json
import re
import sys
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import attention_float64, mx, nvfp4

import pysm120
from pysm120 import __main__
from pysm120.cli import plot_study, study
from pysm120.machine_code import tools
from pysm120.runtime import timing
from pysm120.study import COMBINATIONS, errors_of, formats, times

ROOT = Path(__file__).resolve().parents[2]


def inputs(rng: np.random.Generator, rows: int = 96, heads: int = 2, kv_heads: int = 1) -> list[Any]:
    """Draw q, k and v (1, rows, heads, 64)."""
    return [rng.standard_normal((1, rows, n, 64)) for n in (heads, kv_heads, kv_heads)]


# ---- formats -----------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_blocks_are_those_of_another_model(rng: np.random.Generator, axis: int, scale: float) -> None:
    """MXFP8 and NVFP4 as the models of the kernels' tests have them, which were written apart."""
    x = rng.standard_normal((2, 70, 3, 40)) * scale * np.exp(rng.standard_normal((2, 70, 3, 1)))
    x = x.astype(np.float32).astype(np.float64)
    assert np.array_equal(formats.mxfp8(x, axis), mx(x, axis))
    ours, theirs = formats.nvfp4(x, axis), nvfp4(x, axis)
    # The kernel multiplies by the rounded inverse of a scale: an element next to a tie may get another code.
    off = np.abs(ours - theirs)
    assert (off > 1e-6 * np.abs(theirs)).mean() < 2e-3
    assert off.max() <= np.abs(x).max()


def test_scales_of_heads(rng: np.random.Generator) -> None:
    """The largest element of each batch and head is 448, and a head of zeros stays 0."""
    x = rng.standard_normal((2, 30, 3, 16))
    x[1, :, 2] = 0
    codes, scale = formats.codes_of_heads(x)
    assert np.array_equal(np.abs(codes.astype(np.float32)).max((1, 3)), [[448, 448, 448], [448, 448, 0]])
    assert scale[1, 2] == 1
    rounded = formats.fp8(x)
    there = np.abs(x) > np.abs(x).max((1, 3), keepdims=True) * 2.0**-14
    assert np.abs(rounded - x)[there].max() <= (2.0**-4 * np.abs(x) + 1e-9).max()
    assert np.all(rounded[1, :, 2] == 0)


def test_nothing_rounded_is_attention(rng: np.random.Generator) -> None:
    q, k, v = (x.astype(np.float32) for x in inputs(rng))
    for causal in (False, True):
        ours = formats.reference(
            q.astype(np.float64), k[:, :50].astype(np.float64), v[:, :50].astype(np.float64), causal=causal
        )
        o, lse = attention_float64(q, k[:, :50], v[:, :50], 0.125, "bottom-right" if causal else None)
        np.testing.assert_allclose(ours.o, o, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(ours.lse, lse, rtol=1e-9)


# ---- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", COMBINATIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_has_the_errors_of_its_format(
    device: pysm120.Device, rng: np.random.Generator, precision: str, *, causal: bool
) -> None:
    q, k, v = inputs(rng, 200)
    found = errors_of(q, k, v, precision, causal=causal, device=device)
    # Kernels round a narrow P relative to the highest score so far, the model relative to the highest of the row.
    most = 1.05 if precision in {"f16", "bf16", "mxfp8_f16", "mxfp8_bf16"} else 1.3
    assert 1 / most <= found.kernel.o / found.model.o <= most
    assert 1 / most <= found.kernel.lse / found.model.lse <= most
    assert found.kernel.o <= found.kernel.worst_row <= 1
    assert 0 < found.kernel.cosine < 0.2
    assert np.isnan(found.kernel.scores)
    assert 0 < found.model.scores < 0.2


def test_errors_are_ordered_by_format(device: pysm120.Device, rng: np.random.Generator) -> None:
    q, k, v = inputs(rng, 300)
    found = [errors_of(q, k, v, name, device=device).kernel.o for name in ("f16", "bf16", "mxfp8", "nvfp4")]
    assert found == sorted(found)
    assert found[0] < 1e-3 < found[1] < 1e-2 < found[2] < 0.1 < found[3]


# ---- recommend ---------------------------------------------------------------------------


def test_the_fastest_within_the_error(device: pysm120.Device, rng: np.random.Generator) -> None:
    q, k, v = inputs(rng, 200)
    nothing = pysm120.recommend(q, k, v, max_error=1e-6, device=device)
    errors = {x.precision: x.error for x in nothing.tried}
    most_of = {"nvfp4": 0.3, "nvfp4_mxfp8": 0.17, "mxfp8": 0.07, "bf16": 0.01, "f16": 0.001}
    names = list(most_of)
    assert all(errors[name] <= most for name, most in most_of.items())
    limits = [0.3, *((errors[a] * errors[b]) ** 0.5 for a, b in pairwise(names))]  # between the errors of neighbours
    for most, wanted in zip(limits, names, strict=True):
        found = pysm120.recommend(q, k, v, max_error=most, device=device)
        assert (found.precision == wanted) or (wanted == "bf16" and found.precision == "f16")
        assert found.error <= most
        assert [x.clocks for x in found.tried] == sorted(x.clocks for x in found.tried)
        assert f"{found.precision}" in str(found)
    assert nothing.precision is None
    assert np.isnan(nothing.error)
    assert len(nothing.tried) == len(COMBINATIONS) - 1
    assert str(nothing).splitlines()[-1].startswith("None is within max_error = 1e-06: f16 has the least error, ")
    only = pysm120.recommend(q, k, v, max_error=0.07, candidates=("fp8", "bf16"), device=device)
    assert only.precision == "fp8"
    assert [x.precision for x in only.tried] == ["fp8", "bf16"]


def test_arrays_on_a_device(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Device arrays give what ndarrays give, on their own device."""
    q, k, v = (x.astype(np.float32) for x in inputs(rng))
    options: dict[str, Any] = {"max_error": 0.5, "candidates": ["mxfp8", "bf16"]}
    there = [device.array(x) for x in (q, k, v)]
    found = pysm120.recommend(there[0], there[1], there[2], **options)
    wanted = pysm120.recommend(q, k, v, device=device, **options)
    assert [x[:4] for x in found.tried] == [x[:4] for x in wanted.tried]
    # some there, the others here
    assert pysm120.recommend(there[0], k, v, **options).precision == wanted.precision


@pytest.mark.parametrize(
    ("dtype", "wanted"), [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "bf16"), ("float64", "f16")]
)
def test_the_precision_of_the_given_dtype_comes_first(
    device: pysm120.Device, rng: np.random.Generator, dtype: str, wanted: str
) -> None:
    """Of 16-bit precisions, which take equally long, the one whose dtype is given; `cast` names what others need."""
    q, k, v = (x.astype(dtype) for x in inputs(rng))
    found = pysm120.recommend(q, k, v, max_error=0.03, candidates=["f16", "bf16"], device=device)
    if device.is_virtual:
        assert found.precision == wanted
    casts = {x.precision: x.cast for x in found.tried}
    assert casts == {
        "f16": None if dtype == "float16" else "float16",
        "bf16": None if dtype in {"bfloat16", "float32"} else "bfloat16",
    }
    assert found.cast == casts[str(found.precision)]
    assert ("cast to" in str(found)) == (found.cast is not None)
    q, k, v = (x if found.cast is None else x.astype(found.cast) for x in (q, k, v))
    pysm120.attention(q, k, v, precision=found.precision, device=device)
    only = pysm120.recommend(q, k, v, max_error=0.5, candidates=["fp8"], device=device)
    assert only.cast == "float8_e4m3fn"


def test_times_are_measured_on_a_gpu_alone(device: pysm120.Device, rng: np.random.Generator) -> None:
    """The virtual device measures nothing, and then the tensor pipe's time is the order; a GPU measures every call."""
    q, k, v = inputs(rng)
    found = pysm120.recommend(q, k, v, max_error=0.5, device=device)
    assert all((x.seconds is None) == device.is_virtual for x in found.tried)
    assert ("measured us" in str(found)) != device.is_virtual
    if not device.is_virtual:
        seconds = [x.seconds for x in found.tried if x.seconds is not None]
        assert seconds == sorted(seconds)
        assert all(1e-6 < x < 1e-2 for x in seconds)


def test_measured_times_are_the_order(
    device: pysm120.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest by measurement wins, whatever the tensor pipe's time; the whole tensors are timed, not the sample."""
    seconds = {"f16": 3e-3, "bf16": 1e-3, "mxfp8": 2e-3}
    shapes = set()

    def measured(q: Any, k: Any, v: Any, precision: str, **_: Any) -> times.Measured:
        shapes.add((q.shape, k.shape, v.shape))
        return times.Measured(seconds[precision], 0.0, 1.0)

    monkeypatch.setattr(sys.modules["pysm120.study.recommend"], "measured", measured)
    q, k, v = inputs(rng, 200)
    found = pysm120.recommend(q, k, v, max_error=0.2, candidates=list(seconds), device=device)
    assert shapes == {(q.shape, k.shape, v.shape)}
    assert [x.precision for x in found.tried] == ["bf16", "mxfp8", "f16"]
    assert [x.seconds for x in found.tried] == [1e-3, 2e-3, 3e-3]
    assert found.precision == "bf16"
    assert "1,000.0 *" in str(found)
    only = pysm120.recommend(q, k, v, max_error=1e-3, candidates=list(seconds), device=device)
    assert only.precision == "f16"


class Clocked:
    """A device that is no virtual one, whose events are a second apart for each call between them."""

    def __init__(self, device: pysm120.Device) -> None:
        self.device, self.is_virtual = device, False
        self.array = device.array

    def event(self) -> "Clocked":
        return self

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_since(self, start: "Clocked") -> float:
        assert start is self
        return 1.0


@pytest.mark.parametrize("precision", COMBINATIONS)
def test_the_timed_call_is_attention(
    device: pysm120.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Every precision's call runs on arrays of the device; the time is that between events."""
    monkeypatch.setattr(timing, "MOST_CALLS", 2)
    clock: Any = Clocked(device)
    q, k, v = inputs(rng, 40)
    found = times.measured(q, k, v, precision, causal=True, scale=None, device=clock)
    assert found == times.Measured(5e-4, 5e-4, 5e-4)  # two calls in a millisecond


@pytest.mark.parametrize("causal", [False, True])
def test_a_sample_stands_for_the_whole(device: pysm120.Device, rng: np.random.Generator, *, causal: bool) -> None:
    """Rows, heads and keys beyond the sample's size; grouped heads; the errors are those of all rows."""
    q, k, v = rng.standard_normal((2, 300, 6, 32)), *rng.standard_normal((2, 2, 5000, 3, 32))
    options: dict[str, Any] = {"max_error": 0.5, "causal": causal, "candidates": ["mxfp8"], "device": device}
    # Rows of a head share the errors of its keys: one sample varies by 6 %, so several are taken.
    errors = [pysm120.recommend(q, k, v, seed=seed, **options).tried[0].error for seed in range(8)]
    whole = [
        errors_of(
            q[b : b + 1, :, 2 * g : 2 * g + 2],
            k[b : b + 1, :, g : g + 1],
            v[b : b + 1, :, g : g + 1],
            "mxfp8",
            causal=causal,
            device=device,
        ).kernel.o
        for b, g in ((0, 0), (0, 1), (1, 0), (1, 2))
    ]
    assert np.mean(errors) == pytest.approx(np.mean(whole), rel=0.15)


def test_head_sizes_leave_precisions_out(device: pysm120.Device, rng: np.random.Generator) -> None:
    q, k, v = rng.standard_normal((3, 1, 20, 1, 160))
    found = pysm120.recommend(q, k, v, max_error=0.1, device=device)
    assert {x.precision for x in found.tried} == {"f16", "bf16", "mxfp8", "mxfp8_f16", "mxfp8_bf16"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_error": 0.0}, "max_error is 0.0, not above 0"),
        ({"max_error": float("nan")}, "max_error is nan"),
        ({"candidates": ["fp7"]}, "candidates has 'fp7', not one of 'f16'"),
        ({"candidates": []}, "candidates is empty"),
        ({"q": np.zeros((3, 4))}, r"q has shape \(3, 4\), not \(B, S, H, D\)"),
        ({"k": np.full((1, 96, 1, 64), np.inf)}, "k has elements that are infinite or NaN"),
        ({"k": np.zeros((1, 96, 1, 32))}, r"k has shape \(1, 96, 1, 32\), not \(1, Sk, a divisor of 2, 64\) for q"),
        ({"v": np.zeros((1, 95, 1, 64))}, r"v has shape \(1, 95, 1, 64\), not \(1, 96, 1\) and its head size"),
    ],
)
def test_wrong_arguments(rng: np.random.Generator, change: dict[str, Any], message: str) -> None:
    q, k, v = inputs(rng)
    given: dict[str, Any] = {"q": q, "k": k, "v": v, "max_error": 0.1} | change
    with pytest.raises(ValueError, match=message):
        pysm120.recommend(given.pop("q"), given.pop("k"), given.pop("v"), device="virtual", **given)


# ---- the command -------------------------------------------------------------------------


TABLE = "| inputs | f16 | bf16 | mxfp8_bf16 |"


def shown(document: str, header: str) -> dict[str, dict[str, str]]:
    """Return the cells of a document's table, by the first cell of the row and by precision."""
    lines = (ROOT / document).read_text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith(header))
    names, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in takewhile(lambda x: x[:1] == "|", lines[at:])
    ]
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in rows}


@pytest.mark.virtual
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["normal", "peaked", "biased", "positive", "outliers", "sinks", "minilm"])
def test_the_table_of_inputs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = shown("docs/explanation/quantisation.md", TABLE)
    assert __main__.main(["study", "--inputs", name, "--no-times", "--json", "--device", "virtual"]) == 0
    found = json.loads(capsys.readouterr().out)["inputs"]
    for row, outcomes in found.items():
        errors = {x["precision"]: x["kernel"] for x in outcomes}
        for precision, cell in table[row].items():
            for text, key in zip(cell.split(" / "), ("o", "worst_row"), strict=True):
                last = 10.0 ** -len(text.partition(".")[2])
                assert abs(100 * errors[precision][key] - float(text)) <= 0.51 * last, (row, precision, cell)


def test_the_table_of_inputs_is_whole() -> None:
    table = shown("docs/explanation/quantisation.md", TABLE)
    assert set(table) == {
        "normal",
        "peaked",
        "biased",
        "positive",
        "outliers",
        "sinks",
        "layer 0",
        "layer 3",
        "layer 5",
    }
    assert set(table["normal"]) == set(COMBINATIONS) - {"mxfp8_f16"}
    for row, cells in shown("README.md", "| inputs | bf16 |").items():
        assert cells.items() <= table[row].items()


EXACT_OPERANDS = COMBINATIONS["fp8"]._replace(scores=lambda x, _: x, values=lambda x, _: x, weights=lambda p: p)


def cost(q: Any, k: Any, v: Any, *, causal: bool = False, **rounded: Any) -> float:
    """Return the error of O, in percent, where only some operands are rounded."""
    exact, got = (
        formats.reference(q, k, v, one, causal=causal, scale=None).o
        for one in (None, EXACT_OPERANDS._replace(**rounded))
    )
    return 100 * float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def named(name: str) -> list[study.Inputs]:
    """Return the inputs of a name."""
    return study.inputs_of(argparse.Namespace(inputs=name, seed=0))


def figure(pattern: str) -> float:
    """Return a figure of docs/explanation/quantisation.md."""
    (found,) = re.findall(pattern, " ".join((ROOT / "docs/explanation/quantisation.md").read_text().split()))
    return float(found)


def p_times(factor: float) -> Any:
    """Return the rounding of weights times a factor to e4m3, as a given scale of P would do it."""
    return lambda p: formats.e4m3(np.minimum(p * factor, formats.E4M3_MAX)) / factor


def test_claims_have_their_origin() -> None:
    """The errors of v and of P in e4m3 without a scale, and of v with one at the same spread."""
    (x,) = named("normal")
    for spread, percent in ((0.003, figure(r"of 0.003 lie .*? cost ([\d.]+) %")), (0.002, figure(r"0.002 ([\d.]+) %"))):
        assert cost(x.q, x.k, spread * x.v, values=lambda v, _: formats.e4m3(v)) == pytest.approx(percent, abs=0.06)
        assert cost(x.q, x.k, spread * x.v, values=formats.fp8) < 2.75

    def with_sum_1(p: Any) -> Any:
        total = p.sum(-1, keepdims=True)
        return formats.e4m3(p / total) * total

    wanted = figure(r"each row with the sum 1, costs ([\d.]+) %")
    assert cost(x.q, x.k, x.v, weights=with_sum_1, sums_rounded=False) == pytest.approx(wanted, abs=0.06)


@pytest.mark.parametrize(
    ("factor", "row"),
    [
        (1.0, "p, e4m3, the highest of a row 1"),
        (128.0, "p, e4m3, the highest of a row 2^7"),
        (448.0, "p, e4m3, the highest of a row 448"),
        (2048.0, "p, e4m3, times 2048, saturated at 448"),
    ],
)
def test_scales_of_p(factor: float, row: str) -> None:
    """The rows of the table, but 16384 keys; attention.md says the same of 448 and of 2048."""
    cells = shown("docs/explanation/quantisation.md", "| rounded | normal |")[row]
    inputs = {x.name: x for name in ("normal", "positive", "outliers", "minilm") for x in named(name)}
    for name, x in inputs.items():
        last = 10.0 ** -len(cells[name].partition(".")[2])
        assert abs(cost(x.q, x.k, x.v, weights=p_times(factor)) - float(cells[name])) <= 0.51 * last, name


def test_sinks_are_sinks() -> None:
    """What the page says of them: their weight, what P costs by its scale, and v in blocks of 4 bits."""
    (x,) = named("sinks")
    exact = formats.reference(x.q, x.k, x.v, causal=True, scale=None)
    weight = np.exp(exact.scores[..., : study.SINKS] - exact.lse[..., None]).sum(-1)
    assert np.median(weight) == pytest.approx(figure(r"first 4 take ([\d.]+) of a row"), abs=0.006)
    costs = (
        (figure(r"P alone would cost ([\d]+) %"), {"weights": p_times(1)}),
        (figure(r"P alone would cost 24 %, not ([\d.]+),"), {"weights": p_times(128)}),
        (figure(r"That alone costs (\d+) %"), {"values": formats.nvfp4}),
    )
    for percent, rounded in costs:
        assert cost(x.q, x.k, x.v, causal=True, **rounded) == pytest.approx(percent, abs=0.51 if percent > 2 else 0.051)


def test_json_of_a_file(
    device_name: str, tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.npz"
    q, k, v = inputs(rng)
    np.savez(path, q=q, k=k, v=v)
    assert __main__.main(["study", "--inputs", str(path), "--no-times", "--json", "--device", device_name]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [x["precision"] for x in found["inputs"]["mine"]] == list(COMBINATIONS)
    assert all(0 < x["kernel"]["o"] < 0.3 and "scores" not in x["kernel"] for x in found["inputs"]["mine"])
    assert found["times"] == {}


@pytest.mark.slow
def test_times_are_those_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["study", "--inputs", "minilm", "--device", "virtual", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["times"]) == set(COMBINATIONS)
    assert found["measured"] == {}
    speeds = {name: x["tflops"] for name, x in found["times"].items()}
    assert speeds["bf16"] < speeds["mxfp8_bf16"] < speeds["mxfp8"] < speeds["nvfp4_mxfp8"] < speeds["nvfp4"]


def test_times_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The tables name every precision with its time; the picture is a PNG file."""
    path = tmp_path / "x.png"
    predicted = [(name, study.Time(f"of_{name}", 100.0 + n, 200.0 + n)) for n, name in enumerate(COMBINATIONS)]
    here = [(name, study.Time("", 5100.0 + n, 6200.0 + n)) for n, name in enumerate(COMBINATIONS)]
    monkeypatch.setattr(study, "times_of", lambda *_, **__: iter(predicted))
    monkeypatch.setattr(study, "measured_times", lambda *_, **__: iter(here))
    assert __main__.main(["study", "--inputs", "minilm", "--device", "virtual", "--plot", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("errors against float64") == 3
    for n, name in enumerate(COMBINATIONS):
        assert f" {name} " in shown
        assert shown.count(f"{5100 + n:,}") == shown.count(f"{6200 + n:,}") == 3
    assert "us here" in shown
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_nvdisasm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors are compared all the same. A picture, which needs times, is an error before anything is computed."""
    monkeypatch.setattr(tools, "locations", lambda _: [])
    path = tmp_path / "mine.npz"
    np.savez(path, **dict(zip("qkv", inputs(rng), strict=True)))
    words = ["study", "--device", "virtual", "--inputs", str(path)]
    assert __main__.main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)["inputs"]["mine"]) == len(COMBINATIONS)
    assert json.loads(shown.out)["times"] == {}
    assert shown.err.startswith("no times are predicted: nvdisasm is missing: pip install nvidia-cuda-nvdisasm\n")
    monkeypatch.setattr(study, "errors_of", lambda *_, **__: pytest.fail("computed"))
    assert __main__.main([*words, "--plot", str(tmp_path / "x.png")]) == 2
    assert "nvdisasm was not found" in capsys.readouterr().err


def test_front() -> None:
    """A point that another one beats in both is not on the front."""
    points = [(1.0, 0.1), (2.0, 0.2), (1.5, 0.3), (3.0, 0.9), (2.5, 0.95), (0.5, 0.1)]
    assert plot_study.front(points) == [(1.0, 0.1), (2.0, 0.2), (3.0, 0.9)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--inputs", "nothing"],
            "--inputs is 'nothing', not normal, peaked, biased, positive, outliers, sinks, minilm or an .npz file",
        ),
        (["--plot", "x.jpg"], "--plot is 'x.jpg', not a .png file in an existing folder"),
        (["--plot", "x.png", "--no-times"], "--plot draws times: leave out --no-times"),
    ],
)
def test_wrong_options(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["study", "--device", "virtual", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_file_without_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, q=np.zeros(3))
    assert __main__.main(["study", "--inputs", str(path), "--no-times", "--device", "virtual"]) == 2
    assert "has no arrays q, k and v" in capsys.readouterr().err
