"""Train a small character-level GPT with attention, forward and backward, by pysm120.

    python examples/train.py [--steps 1000] [--device cuda] [--csv FILE] [--plot FILE]

The text is that of the project's own documents. Attention is computed in bf16, in mxfp8_bf16, in mxfp8, and as a
reference in float32 by NumPy. Everything else is the same NumPy code for all: layers, their gradients, and AdamW in
float32. All precisions start from the same weights and see the same batches, a step at a time, so that their losses can
be compared. On the virtual SM120 use a small model: --steps 50 --layers 1 --heads 1 --context 64 --batch 4.
"""

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import pysm120

ROOT = Path(__file__).resolve().parents[1]
PRECISIONS = ("float32", "bf16", "mxfp8_bf16", "mxfp8")
HEAD_DIM = 64
RATE, WARM, DECAY, BETAS, EPSILON = 3e-3, 0.05, 0.05, (0.9, 0.99), 1e-8  # AdamW; WARM: share of the steps
LAST = 0.1  # the final loss is the mean of this share of the steps

Floats = npt.NDArray[Any]  # float32; float64 where a test checks the gradients
Integers = npt.NDArray[np.int64]
Back = Callable[[Floats], Floats]  # from the gradient of a layer's result to that of its input
Gradients = tuple[Floats, Floats, Floats]
Attention = Callable[[Floats, Floats, Floats], tuple[Floats, Callable[[Floats], Gradients]]]


# ---- layers: each returns its result, and a function for the backward pass that writes the gradients of its weights


def linear(x: Floats, w: Floats, dw: Floats) -> tuple[Floats, Back]:
    """Return x w."""

    def back(dy: Floats) -> Floats:
        dw[...] = x.T @ dy
        return dy @ w.T

    return x @ w, back


def normalized(x: Floats, gain: Floats, dgain: Floats) -> tuple[Floats, Back]:
    """Return the rows of x divided by their root mean square, times a gain for each column."""
    factor = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    n = x * factor

    def back(dy: Floats) -> Floats:
        dgain[...] = (dy * n).sum(0)
        dn = dy * gain
        dx: Floats = factor * (dn - n * (dn * n).mean(-1, keepdims=True))
        return dx

    return n * gain, back


def squared_relu(x: Floats) -> tuple[Floats, Back]:
    """Return max(x, 0)^2."""
    positive = np.maximum(x, 0)
    return positive * positive, lambda dy: 2 * positive * dy


def cross_entropy(logits: Floats, targets: Integers) -> tuple[float, Floats]:
    """Return the mean of -log softmax(logits)[target], and its gradient."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    rows = np.arange(len(targets))
    loss = -np.log(p[rows, targets]).mean()
    p[rows, targets] -= 1
    return float(loss), p / len(targets)


def attention_in_numpy(q: Floats, k: Floats, v: Floats) -> tuple[Floats, Callable[[Floats], Gradients]]:
    """Return causal attention of [B, S, H, D] in the type of q."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    hidden = np.triu(np.ones((q.shape[2], k.shape[2]), bool), 1)
    scores = np.where(hidden, -np.inf, q @ k.swapaxes(2, 3) * scale)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)

    def back(dout: Floats) -> Gradients:
        dout = dout.swapaxes(1, 2)
        dp = dout @ v.swapaxes(2, 3)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
        dq, dk, dv = (x.swapaxes(1, 2) for x in (ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout))
        return dq, dk, dv

    return (p @ v).swapaxes(1, 2), back


def attention_on(device: pysm120.Device, precision: str) -> Attention:
    """Return causal attention by pysm120. Its operands and results are bfloat16, as in mixed-precision training."""

    def attention(*qkv: Floats) -> tuple[Floats, Callable[[Floats], Gradients]]:
        options: Any = {"precision": precision, "causal": True, "device": device}
        q, k, v = (x.astype(ml_dtypes.bfloat16) for x in qkv)
        out, lse = pysm120.attention(q, k, v, return_lse=True, **options)

        def back(dout: Floats) -> Gradients:
            got = pysm120.attention_backward(dout.astype(ml_dtypes.bfloat16), q, k, v, out, lse, **options)
            dq, dk, dv = (x.astype(np.float32) for x in got)
            return dq, dk, dv

        return out.astype(np.float32), back

    return attention


# ---- the model


class Model:
    """A GPT: embeddings, blocks of attention and two layers, logits. All weights are one vector, as their gradients."""

    def __init__(
        self, symbols: int, layers: int, heads: int, context: int, seed: int, dtype: npt.DTypeLike = np.float32
    ) -> None:
        width = HEAD_DIM * heads
        self.layers, self.heads = layers, heads
        # Residual branches begin small, so that the sum of all has the size of one.
        deep = 1 / math.sqrt(2 * layers)
        table = {"symbols": (symbols, width, 0.5), "places": (context, width, 0)}
        for n in range(layers):
            table |= {
                f"norm_attention {n}": (1, width, 0),
                f"qkv {n}": (width, 3 * width, width**-0.5),
                f"out {n}": (width, width, deep * width**-0.5),
                f"norm_network {n}": (1, width, 0),
                f"up {n}": (width, 4 * width, width**-0.5),
                f"down {n}": (4 * width, width, 0.5 * deep * width**-0.5),
            }
        table |= {"norm": (1, width, 0), "logits": (width, symbols, 0.1 * width**-0.5)}
        random = np.random.default_rng(seed)
        self.weights = np.concatenate([
            random.normal(0, spread, rows * columns) if spread else np.ones(rows * columns)
            for rows, columns, spread in table.values()
        ]).astype(dtype)  # fmt: skip
        self.gradients = np.zeros_like(self.weights)
        ends = np.cumsum([rows * columns for rows, columns, _ in table.values()])
        self.w, self.dw = (
            {name: part.reshape(table[name][:2]) for name, part in zip(table, np.split(x, ends[:-1]), strict=True)}
            for x in (self.weights, self.gradients)
        )
        # Places begin as waves, so that heads find neighbouring symbols soon (Vaswani et al., 2017).
        angles = np.arange(context)[:, None] * 10000 ** (-np.arange(0, width, 2) / width)
        self.w["places"][...] = 0.5 * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    def both(self, name: str) -> tuple[Floats, Floats]:
        """Return a weight and where its gradient goes."""
        return self.w[name], self.dw[name]

    def block(self, n: int, x: Floats, batch: int, attention: Attention) -> tuple[Floats, Back]:
        """Return x after block n."""
        a, back_norm_attention = normalized(x, *self.both(f"norm_attention {n}"))
        a, back_qkv = linear(a, *self.both(f"qkv {n}"))
        parts = a.reshape(batch, -1, 3, self.heads, HEAD_DIM)
        mixed, back_attention = attention(*(parts[:, :, i] for i in range(3)))
        a, back_out = linear(mixed.reshape(x.shape), *self.both(f"out {n}"))
        x = x + a
        b, back_norm_network = normalized(x, *self.both(f"norm_network {n}"))
        b, back_up = linear(b, *self.both(f"up {n}"))
        b, back_relu = squared_relu(b)
        b, back_down = linear(b, *self.both(f"down {n}"))

        def back(dx: Floats) -> Floats:
            dx = dx + back_norm_network(back_up(back_relu(back_down(dx))))
            dparts = np.stack(back_attention(back_out(dx).reshape(mixed.shape)), axis=2)
            return dx + back_norm_attention(back_qkv(dparts.reshape(len(dx), -1)))

        return x + b, back

    def logits(self, inputs: Integers, attention: Attention) -> tuple[Floats, list[Back]]:
        """Return the logits of [batch, rows] of symbols, and the backward passes of the layers after the embedding."""
        batch, rows = inputs.shape
        x = (self.w["symbols"][inputs] + self.w["places"][:rows]).reshape(batch * rows, -1)
        backs = []
        for n in range(self.layers):
            x, back = self.block(n, x, batch, attention)
            backs.append(back)
        x, back_norm = normalized(x, *self.both("norm"))
        x, back_logits = linear(x, *self.both("logits"))
        return x, [*backs, back_norm, back_logits]

    def loss(self, inputs: Integers, targets: Integers, attention: Attention) -> float:
        """Return the mean loss of [batch, rows] of symbols; write its gradients."""
        batch, rows = inputs.shape
        x, backs = self.logits(inputs, attention)
        loss, dx = cross_entropy(x, targets.ravel())
        for back in reversed(backs):
            dx = back(dx)
        self.dw["symbols"][...] = 0
        np.add.at(self.dw["symbols"], inputs.ravel(), dx)
        self.dw["places"][:rows] = dx.reshape(batch, rows, -1).sum(0)
        return loss


class Training:
    """A model in one precision, and AdamW for it."""

    def __init__(self, precision: str, symbols: int, options: argparse.Namespace, opened: ExitStack) -> None:
        self.precision, self.steps = precision, options.steps
        self.model = Model(symbols, options.layers, options.heads, options.context, options.seed)
        self.moments = [np.zeros_like(self.model.weights) for _ in BETAS]
        self.losses: list[float] = []
        self.device: pysm120.Device | None = None
        self.attention: Attention = attention_in_numpy
        if precision != "float32":
            # A device of its own, because calls of several threads on one device would share a workspace.
            self.device = opened.enter_context(pysm120.Device(options.device))
            self.attention = attention_on(self.device, precision)

    def step(self, batch: tuple[Integers, Integers]) -> None:
        """Compute the loss of a batch and change the weights."""
        loss = self.model.loss(*batch, self.attention)
        done = len(self.losses) + 1
        g, weights = self.model.gradients, self.model.weights
        for n, beta in enumerate(BETAS):
            self.moments[n] += np.float32(1 - beta) * (g ** (n + 1) - self.moments[n])
        mean, square = (m / np.float32(1 - b**done) for m, b in zip(self.moments, BETAS, strict=True))
        # The rate rises for the first steps and then falls to a tenth, by a cosine.
        through = done / self.steps
        rate = RATE * min(1, through / WARM) * (0.55 + 0.45 * math.cos(math.pi * through))
        weights -= np.float32(rate) * (mean / (np.sqrt(square) + np.float32(EPSILON)) + np.float32(DECAY) * weights)
        self.losses.append(loss)

    def last(self) -> float:
        """Return the final loss: the mean of the last steps, whose batches differ."""
        return float(np.mean(self.losses[-max(1, round(LAST * len(self.losses))) :]))


# ---- the program


def text() -> str:
    """Return the project's documents."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def batches(symbols: Integers, options: argparse.Namespace) -> Iterator[tuple[Integers, Integers]]:
    """Yield inputs and the symbols that follow them, [batch, context], from random places."""
    random = np.random.default_rng(options.seed)
    for _ in range(options.steps):
        starts = random.integers(0, len(symbols) - options.context, (options.batch, 1))
        places = starts + np.arange(options.context)
        yield symbols[places], symbols[places + 1]


def show(trainings: Sequence[Training]) -> None:
    """Print the table of final losses."""
    steps = len(trainings[0].losses)
    reference = next((t.last() for t in trainings if t.precision == "float32"), None)
    print(f"\nFinal loss: mean of the last {max(1, round(LAST * steps))} of {steps} steps")
    print("precision    final loss  distance to float32")
    for t in trainings:
        distance = f"{t.last() / reference - 1:+.2%}" if reference else "unknown"
        print(f"{t.precision:12} {t.last():10.4f}  {distance:>19}")


def save(trainings: Sequence[Training], path: Path) -> None:
    """Write the losses of all steps into a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *(t.precision for t in trainings)])
        for n, losses in enumerate(zip(*(t.losses for t in trainings), strict=True), 1):
            writer.writerow([n, *(f"{loss:.5f}" for loss in losses)])


def draw(trainings: Sequence[Training], where: str, path: Path) -> None:
    """Draw the losses, and their distances to float32, smoothed, into a picture."""
    from matplotlib.figure import Figure  # noqa: PLC0415 # an extra: only --plot needs it

    count = len(trainings[0].losses)
    window = max(1, count // 50)
    steps = np.arange(window, count + 1)
    curves = {t.precision: np.convolve(t.losses, np.full(window, 1 / window), "valid") for t in trainings}
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, sharex=True, gridspec_kw={"height_ratios": [2, 1]})
    styles = zip(curves.items(), ("#000000", "#0072b2", "#009e73", "#d55e00"), (3.0, 2.2, 1.6, 1.0), strict=False)
    for (name, curve), colour, thickness in styles:
        above.plot(steps, curve, color=colour, linewidth=thickness, label=name)
        if "float32" in curves:
            below.plot(steps, 100 * (curve / curves["float32"] - 1), color=colour, linewidth=1.4)
    above.set_ylabel("loss (nats a character)")
    above.legend(frameon=False, title="attention in")
    below.set_ylabel("distance to float32 (%)")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(color="#dddddd", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"A character-level GPT, trained with attention by pysm120 on {where}\nmeans of {window} steps")
    figure.savefig(path, dpi=100)


def count(word: str, least: int = 1) -> int:
    """Return an integer of the command line."""
    value = int(word)
    if value < least:
        raise argparse.ArgumentTypeError(f"{word} is less than {least}")
    return value


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="Train a small GPT with attention by pysm120.")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="default: all")
    parser.add_argument("--device", help='"cuda" or "virtual"; default: the first GPU, else virtual')
    for name, default, what in (
        ("steps", 1000, "number of batches"),
        ("layers", 4, "number of blocks"),
        ("heads", 2, f"heads of {HEAD_DIM} columns in a block"),
        ("context", 256, "characters of a sequence"),
        ("batch", 8, "sequences of a step"),
        ("every", 50, "steps between two lines of losses"),
    ):
        parser.add_argument(f"--{name}", type=count, default=default, help=f"{what}; default: {default}")
    parser.add_argument("--seed", type=lambda word: count(word, 0), default=0, help="default: 0")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the loss of every step")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the losses; needs matplotlib")
    return parser.parse_args(words)


def run(options: argparse.Namespace, opened: ExitStack) -> int:
    """Train, print, and write what was asked for; return the exit status."""
    corpus = text()
    alphabet = sorted(set(corpus))
    numbers = {character: n for n, character in enumerate(alphabet)}
    symbols = np.array([numbers[character] for character in corpus])
    if options.context >= len(symbols):
        raise pysm120.InvalidArgumentError(f"--context {options.context}: the text has {len(symbols)} characters")
    trainings = [Training(name, len(alphabet), options, opened) for name in dict.fromkeys(options.precision)]
    where = next((t.device.info.name for t in trainings if t.device), "the CPU")
    weights = trainings[0].model.weights.size
    print(f"{len(symbols):,} characters, {len(alphabet)} different; {weights:,} weights; {where}")
    print("step  " + "  ".join(f"{t.precision:>10}" for t in trainings))
    status = 0
    # NumPy and the devices release Python's lock, so the precisions run side by side.
    with ThreadPoolExecutor(len(trainings)) as pool:
        try:
            for n, batch in enumerate(batches(symbols, options), 1):
                list(pool.map(lambda t, batch=batch: t.step(batch), trainings))
                if n % options.every == 0 or n in {1, options.steps}:
                    print(f"{n:<5} " + "  ".join(f"{t.losses[-1]:10.4f}" for t in trainings), flush=True)
        except KeyboardInterrupt:
            print("Stopped by Ctrl-C.", file=sys.stderr)
            status = 130
    done = min(len(t.losses) for t in trainings)  # Ctrl-C may come within a step
    for t in trainings:
        del t.losses[done:]
    if done:
        show(trainings)
        if options.csv:
            save(trainings, options.csv)
        if options.plot:
            draw(trainings, where, options.plot)
    return status


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; return the exit status."""
    try:
        with ExitStack() as opened:
            return run(arguments(words), opened)
    except (pysm120.Error, OSError, ImportError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
