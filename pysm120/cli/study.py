"""``study``: what each precision of attention costs in error, and what it buys in time."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pysm120.cli import compare, console
from pysm120.cli.command import Command, add_device
from pysm120.machine_code import tools
from pysm120.model import chips, problem, splits
from pysm120.report.reference import minilm
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import builtins
from pysm120.study import COMBINATIONS, Outcome, errors_of
from pysm120.study.errors import as_float64, supported
from pysm120.study.formats import Floats, reference
from pysm120.study.times import measured

NAMED = ("normal", "peaked", "biased", "positive", "outliers", "sinks", "minilm")
ROWS, HEADS, HEAD_DIM = 1024, 1, 128  # of drawn inputs
PEAK, BIAS, MEAN = 4.0, 4.0, 1.0  # peaked: q is so many times as large; biased: the mean of q and k; positive: of v
STEP, RISE = 32, 8.0  # outliers: every so many columns of k are so much higher
# sinks: the last rows of a long causal context, whose first keys, with values next to 0, take most of the weight. Their
# norm is in a few columns, in which every row of q has a mean.
SINK_ROWS, SINK_KEYS, SINKS, SINK_COLUMNS = 128, 8192, 4, 4
SINK_KEY, SINK_QUERY, SINK_VALUE = 14.0, 2.0, 0.05
CHIP, PROBLEM = "rtx5090", "4,2048,32"  # what times are predicted for; then the head size
LAYERS = (0, 3, 5)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Arrays (B, S, H, D) and their name."""

    name: str
    q: Floats
    k: Floats
    v: Floats
    causal: bool = False  # whatever --causal says


@dataclasses.dataclass
class Time:
    """The time of a call of PROBLEM: predicted on CHIP without the quantisation of q, k and v, or measured with it."""

    kernel: str
    microseconds: float
    tflops: float


def measured_times(
    names: list[str], head_dim: int, *, causal: bool, device: Device
) -> Iterator[tuple[str, Time | None]]:
    """Measure each precision's time on PROBLEM, whose numbers are normal, on a GPU; None on the virtual device."""
    batch, rows, heads = (int(x) for x in PROBLEM.split(","))
    given: list[Any] = []
    flops = 4.0 * batch * heads * head_dim * (rows * (rows + 1) / 2 if causal else rows * rows)
    if not device.is_virtual:
        given = list(np.random.default_rng(0).standard_normal((3, batch, rows, heads, head_dim), np.float32))
    for name in names:
        time = None
        if given:
            q, k, v = given
            time = measured(q, k, v, name, causal=causal, scale=None, device=device)
        yield name, time and Time("", 1e6 * time.seconds, flops / time.seconds / 1e12)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_device(parser)
    parser.add_argument(
        "--inputs",
        metavar="NAME",
        default="minilm",
        help="normal; peaked (q is 4 times as large: a row has a few high scores); biased (q and k have a mean of 4); "
        "positive (v has a mean of 1); outliers (every 32nd column of k is 8 higher); sinks (the last 128 "
        "rows of 8192 keys, causal, whose first 4 keys take most of the weight); minilm (layers 0, 3, 5 of "
        "all-MiniLM-L6-v2); or an .npz file with q, k and v of shape (B, S, H, D) (default: minilm)",
    )
    parser.add_argument("--causal", action="store_true", help="the last row sees the last key")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of drawn inputs (default: 0)")
    parser.add_argument("--no-times", action="store_true", help="neither predict nor measure times")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE.png", help="draw error against predicted speed")


def inputs_of(arguments: argparse.Namespace) -> list[Inputs]:
    """Return the inputs that were asked for."""
    name = arguments.inputs
    if name == "minilm":
        data = minilm()
        layers = [[data[f"{x}{n}"].swapaxes(0, 1)[None].astype(np.float64) for x in "qkv"] for n in LAYERS]
        return [Inputs(f"layer {n}", q, k, v) for n, (q, k, v) in zip(LAYERS, layers, strict=True)]
    if name in NAMED:
        return [drawn(name, np.random.default_rng(arguments.seed))]
    path = Path(name)
    if path.suffix != ".npz" or not path.is_file():
        message = f"--inputs is {name!r}, not {', '.join(NAMED)} or an .npz file"
        raise InvalidArgumentError(message)
    try:
        with np.load(path) as archive:
            arrays = [archive[x] for x in "qkv"]
    except (KeyError, OSError, ValueError) as error:
        message = f"--inputs is {name!r}, which has no arrays q, k and v: {error}"
        raise InvalidArgumentError(message) from error
    try:
        q, k, v = as_float64(*arrays)
        return [Inputs(path.stem, q, k, v)]
    except (TypeError, ValueError) as error:
        message = f"--inputs is {name!r}: {error}"
        raise InvalidArgumentError(message) from error


def drawn(name: str, rng: np.random.Generator) -> Inputs:
    """Draw inputs."""
    if name == "sinks":
        return with_sinks(rng)
    q, k, v = rng.standard_normal((3, 1, ROWS, HEADS, HEAD_DIM))
    if name == "peaked":
        q *= PEAK
    if name == "biased":
        q, k = q + BIAS, k + BIAS
    if name == "positive":
        v += MEAN
    if name == "outliers":
        k[..., ::STEP] += RISE
    return Inputs(name, q, k, v)


def with_sinks(rng: np.random.Generator) -> Inputs:
    """Draw the inputs named sinks."""
    q = rng.standard_normal((1, SINK_ROWS, HEADS, HEAD_DIM))
    k, v = rng.standard_normal((2, 1, SINK_KEYS, HEADS, HEAD_DIM))
    columns = slice(0, HEAD_DIM, HEAD_DIM // SINK_COLUMNS)
    q[..., columns] += SINK_QUERY
    k[:, :SINKS, :, columns] += SINK_KEY
    v[:, :SINKS] *= SINK_VALUE
    return Inputs("sinks", q, k, v, causal=True)


def times_of(head_dim: int, *, causal: bool) -> Iterator[tuple[str, Time | None]]:
    """Predict each precision's time."""
    chip = chips.load(CHIP)
    width = min(x for x in (64, 128, 256) if x >= head_dim)
    text = f"{PROBLEM},{width}{',causal' if causal else ''}"
    options = argparse.Namespace(chip=CHIP, mhz=None, problem=text, flops=None)
    for precision in COMBINATIONS:
        if not any(x.operation == "attention" and x.precision == precision and x.head_dim == width for x in builtins()):
            yield precision, None
            continue
        kernel = splits.kernel_of_library(precision, problem.parse(text), chip)
        row = compare.row(kernel.entry, options, chip)
        yield precision, Time(row["entry"], row["microseconds"], row["tflops"])


def can_predict(*, is_needed: bool) -> bool:
    """Return whether times can be predicted, and say why not; raise if they are needed."""
    if is_needed or tools.locate("nvdisasm"):
        return bool(tools.find("nvdisasm"))
    print("no times are predicted: nvdisasm is missing: pip install nvidia-cuda-nvdisasm", file=sys.stderr)
    return False


def run(arguments: argparse.Namespace) -> int:
    """Compare every precision on every input, and print."""
    draw: Callable[[dict[str, list[Outcome]], dict[str, Time | None], Path], None] | None = None
    if arguments.plot:
        from pysm120.cli import plot_study  # noqa: PLC0415 - needs matplotlib

        draw = plot_study.draw
    inputs = inputs_of(arguments)
    predicted = not arguments.no_times and can_predict(is_needed=draw is not None)
    head_dim = max(max(x.q.shape[-1], x.v.shape[-1]) for x in inputs)
    found: dict[str, list[Outcome]] = {x.name: [] for x in inputs}
    with Device(arguments.device) as device:
        names = [x for x in COMBINATIONS if supported(x, head_dim)]
        if not names:
            message = f"--inputs have head size {head_dim}, and no precision has one above 256"
            raise InvalidArgumentError(message)
        steps = len(names) * (len(inputs) + (not arguments.no_times)) + predicted * len(COMBINATIONS)
        times: dict[str, Time | None] = {}
        here: dict[str, Time] = {}
        with console.progress(steps, "study") as step:
            for x in inputs:
                causal = arguments.causal or x.causal
                exact = reference(x.q, x.k, x.v, causal=causal)
                for name in names:
                    found[x.name].append(errors_of(x.q, x.k, x.v, name, causal=causal, device=device, exact=exact))
                    step(f"{x.name}: {name}")
            if not arguments.no_times:
                predictions = times_of(head_dim, causal=arguments.causal) if predicted else ()
                for name, time in predictions:
                    times[name] = time
                    step(f"time of {name}")
                for name, time in measured_times(names, head_dim, causal=arguments.causal, device=device):
                    here |= {name: time} if time else {}
                    step(f"time of {name} on {device}")
        shown = f"{device}, {device.info.name}"
    if arguments.json:
        print(json.dumps(as_json(found, times, here, shown), indent=2))
    else:
        show(found, times, here, shown, causal=arguments.causal)
    if draw:
        draw(found, times, Path(arguments.plot))
    return 0


def as_json(
    found: dict[str, list[Outcome]], times: dict[str, Time | None], here: dict[str, Time], device: str
) -> dict[str, Any]:
    """Return the results as a value for ``json.dumps``."""

    def numbers(errors: Any) -> dict[str, float]:
        return {name: x for name, x in errors._asdict().items() if x == x}  # noqa: PLR0124 - no NaN

    return {
        "device": device,
        "chip": CHIP,
        "problem": PROBLEM,
        "inputs": {
            name: [{"precision": x.precision, "kernel": numbers(x.kernel), "model": numbers(x.model)} for x in outcomes]
            for name, outcomes in found.items()
        },
        "times": {name: dataclasses.asdict(time) for name, time in times.items() if time},
        "measured": {name: {"microseconds": time.microseconds, "tflops": time.tflops} for name, time in here.items()},
    }


def show(
    found: dict[str, list[Outcome]], times: dict[str, Time | None], here: dict[str, Time], device: str, *, causal: bool
) -> None:
    """Print a table for each input."""
    of_times: tuple[str, ...] = ("us", "TFLOP/s") if times else ()
    of_times += ("us here", "TFLOP/s here") if here else ()
    columns = ("precision", "q, k", "p, v", "O", "format", "worst row", "1 - cosine", "scores", "LSE", *of_times)
    for name, outcomes in found.items():
        rows = []
        for x in outcomes:
            figures = [*figures_of(times, x.precision), *figures_of(here, x.precision)]
            rows.append(
                (
                    x.precision,
                    *COMBINATIONS[x.precision].words,
                    f"{x.kernel.o:.2%}",
                    f"{x.model.o:.2%}",
                    f"{x.kernel.worst_row:.1%}",
                    f"{x.kernel.cosine:.1e}",
                    f"{x.model.scores:.2%}",
                    f"{x.kernel.lse:.1e}",
                    *figures,
                )
            )
        console.table(f"{name} on {device}: errors against float64", columns, rows, left=3)
    print("O: relative error of the kernel; format: that of a NumPy model of the format; scores: by the same model.")
    print("LSE: root of the mean square. fp8: q, k and v rounded to e4m3 with a scale for each head.")
    if times:
        kind = "causal " if causal else ""
        print(
            f"us, TFLOP/s: {kind}attention of B,S,H = {PROBLEM} on an {CHIP}, predicted from machine code (no GPU has"
        )
        print("measured it), without the quantisation of q, k and v.")
    if here:
        print(
            f"us here, TFLOP/s here: the same call measured on {device}, with the quantisation of bfloat16 q, k and v;"
        )
        print("fp8 is given e4m3.")


def figures_of(times: Mapping[str, Time | None], precision: str) -> tuple[str, ...]:
    """Return a precision's time and speed as text; nothing without times."""
    time = times.get(precision)
    return (f"{time.microseconds:,.0f}", f"{time.tflops:,.0f}") if time else ("-", "-") if times else ()


def _run(arguments: argparse.Namespace) -> int:
    """Check options that belong together, and run."""
    if arguments.plot and arguments.no_times:
        message = "--plot draws times: leave out --no-times"
        raise InvalidArgumentError(message)
    if arguments.plot and (
        Path(arguments.plot).suffix != ".png" or not Path(arguments.plot).absolute().parent.is_dir()
    ):
        message = f"--plot is {arguments.plot!r}, not a .png file in an existing folder"
        raise InvalidArgumentError(message)
    return run(arguments)


COMMAND = Command("study", "show what each precision of attention costs in error and buys in time", add, _run)
