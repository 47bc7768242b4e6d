"""Train a small GPT, then run it with attention in every precision: the loss of the next character, and the error of O.

    python examples/losses.py --save gpt.npz [--steps 500] [--train bf16] [--device cuda]
    python examples/losses.py --weights gpt.npz [--sequences 16] [--json FILE] [--qkv qkv.npz]
    python -m pysm120 study --inputs qkv.npz --causal

The model and the text are those of train.py: the project's documents. It is trained on their first nine tenths, by
default in float32 by NumPy; the losses are those of the last tenth, with the same weights in every precision. The error
of O in a layer is that of its attention alone, on the q, k and v that the float32 model has there, against float64.
--qkv keeps those of the last layer for `study`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import train

import pysm120

# The dtype of q, k and v; fp8 takes float8_e4m3fn with a scale for each head.
PRECISIONS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "mxfp8_f16": np.float16,
    "mxfp8_bf16": ml_dtypes.bfloat16,
    "fp8": ml_dtypes.float8_e4m3fn,
    "mxfp8": np.float32,
    "nvfp4_mxfp8": np.float32,
    "nvfp4": np.float32,
}
LARGEST = 448  # of float8_e4m3fn
TRAINED = 0.9  # the share of the text that the model is trained on

Qkv = tuple[train.Floats, train.Floats, train.Floats]


class Row(NamedTuple):
    """A precision: its loss in nats a character, its distance to float32, and the error of O in each layer."""

    precision: str
    loss: float
    distance: float
    spread: float
    errors: tuple[float, ...]


def attention_in(device: pysm120.Device, precision: str) -> train.Attention:
    """Return causal attention in a precision, without a backward pass."""

    def attention(*qkv: train.Floats) -> tuple[train.Floats, Any]:
        options: dict[str, Any] = {"precision": precision, "causal": True, "out_dtype": np.float32, "device": device}
        if precision == "fp8":
            scales = [np.maximum(np.abs(x).max((1, 3)), 1e-30).astype(np.float32) / LARGEST for x in qkv]
            options |= {f"{name}_scale": scale for name, scale in zip("qkv", scales, strict=True)}
            qkv = tuple(x / scale[:, None, :, None] for x, scale in zip(qkv, scales, strict=True))
        q, k, v = (x.astype(PRECISIONS[precision]) for x in qkv)
        return pysm120.attention(q, k, v, **options), None

    return attention


def losses(model: train.Model, text: train.Integers, attention: train.Attention) -> train.Floats:
    """Return the loss of every character of [sequences, rows + 1] but the first of a sequence."""
    logits, _ = model.logits(text[:, :-1], attention)
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    targets = text[:, 1:].ravel()
    found: train.Floats = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(targets)), targets]
    return found


def layers_of(model: train.Model, text: train.Integers) -> list[Qkv]:
    """Return q, k and v of every layer of the float32 model."""
    seen: list[Qkv] = []

    def attention(*qkv: train.Floats) -> tuple[train.Floats, Any]:
        q, k, v = qkv
        seen.append((q, k, v))
        return train.attention_in_numpy(q, k, v)

    model.logits(text[:, :-1], attention)
    return seen


def of_layer(q: train.Floats, k: train.Floats, v: train.Floats) -> dict[str, float]:
    """Return what makes a layer hard: outliers of k, and how much weight the first key has in the later rows."""
    rows = np.sqrt(np.mean(k.astype(np.float64) ** 2))
    columns = np.abs(k.mean(1)).max()
    ends = slice(q.shape[1] // 2, None)
    scores = np.einsum("bqhd,bkhd->bhqk", q[:, ends], k) / np.sqrt(q.shape[-1])
    hidden = np.arange(k.shape[1]) > np.arange(q.shape[1])[ends, None]
    p = np.exp(np.where(hidden, -np.inf, scores - scores.max(-1, keepdims=True)))
    p /= p.sum(-1, keepdims=True)
    return {
        "largest_k": float(np.abs(k).max() / rows),
        "largest_mean_of_k": float(columns / rows),
        "largest_v": float(np.abs(v).max() / np.sqrt(np.mean(v.astype(np.float64) ** 2))),
        "first_key": float(p[..., 0].mean()),
        "largest_weight": float(p.max(-1).mean()),
    }


def study(model: train.Model, text: train.Integers, device: pysm120.Device) -> tuple[float, list[Row]]:
    """Return the loss in float32, and a row for every precision."""
    exact = losses(model, text, train.attention_in_numpy)
    layers = layers_of(model, text)
    wanted = [train.attention_in_numpy(*(x.astype(np.float64) for x in qkv))[0] for qkv in layers]
    rows = []
    for precision in PRECISIONS:
        attention = attention_in(device, precision)
        found = losses(model, text, attention)
        # Sequences are independent: the spread of their mean is the doubt in the distance.
        by_sequence = (found - exact).reshape(len(text), -1).mean(1)
        spread = float(by_sequence.std(ddof=1) / np.sqrt(len(text))) if len(text) > 1 else float("nan")
        errors = tuple(
            float(np.linalg.norm(attention(*qkv)[0] - o) / np.linalg.norm(o))
            for qkv, o in zip(layers, wanted, strict=True)
        )
        rows.append(Row(precision, float(found.mean()), float((found - exact).mean()), spread, errors))
        print(f"{precision}: loss {rows[-1].loss:.4f}", file=sys.stderr, flush=True)
    return float(exact.mean()), rows


def table(exact: float, rows: Sequence[Row]) -> str:
    """Return the table as Markdown."""
    layers = range(len(rows[0].errors))
    lines = [
        f"| precision | loss | distance to float32 | {' | '.join(f'O, layer {n}' for n in layers)} |",
        f"|---|---|---|{'---|' * len(layers)}",
        f"| float32 | {exact:.4f} | | {' | '.join('' for _ in layers)} |",
    ]
    for x in rows:
        errors = " | ".join(f"{error:.2%}" for error in x.errors)
        lines.append(f"| {x.precision} | {x.loss:.4f} | {x.distance:+.4f} ± {x.spread:.4f} | {errors} |")
    return "\n".join(lines)


# ---- the program


def symbols_of(text: str) -> tuple[list[str], train.Integers]:
    """Return the alphabet of a text, and its characters as numbers."""
    alphabet = sorted(set(text))
    numbers = {character: n for n, character in enumerate(alphabet)}
    return alphabet, np.array([numbers[character] for character in text])


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="The loss of a small GPT with attention in every precision.")
    parser.add_argument(
        "--weights", type=Path, metavar="FILE.npz", help="a model that --save wrote; default: train one"
    )
    parser.add_argument("--save", type=Path, metavar="FILE.npz", help="write the trained model")
    parser.add_argument("--train", choices=train.PRECISIONS, default="float32", help="attention in the training")
    parser.add_argument("--device", help='"cuda" or "virtual"; default: the first GPU, else virtual')
    for name, default, what in (
        ("steps", 500, "batches of the training"),
        ("layers", 4, "blocks"),
        ("heads", 2, f"heads of {train.HEAD_DIM} columns in a block"),
        ("context", 512, "characters of a sequence"),
        ("batch", 4, "sequences of a training step"),
        ("sequences", 16, "sequences that the losses are means of"),
    ):
        parser.add_argument(f"--{name}", type=train.count, default=default, help=f"{what}; default: {default}")
    parser.add_argument("--seed", type=lambda word: train.count(word, 0), default=0, help="default: 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--qkv", type=Path, metavar="FILE.npz", help="write the last layer's q, k and v of a sequence")
    return parser.parse_args(words)


def trained(options: argparse.Namespace, symbols: train.Integers, alphabet: list[str], opened: ExitStack) -> Any:
    """Return a model after training, and the shape of it."""
    training = train.Training(options.train, len(alphabet), options, opened)
    for n, batch in enumerate(train.batches(symbols[: int(TRAINED * len(symbols))], options), 1):
        training.step(batch)
        if n % 50 == 0 or n in {1, options.steps}:
            print(f"step {n}: loss {training.losses[-1]:.4f}", file=sys.stderr, flush=True)
    return training.model


def loaded(options: argparse.Namespace) -> tuple[train.Model, str]:
    """Return a model that was saved, and its text."""
    try:
        with np.load(options.weights) as file:
            text, weights = str(file["text"]), file["weights"]
            options.layers, options.heads, options.context = (int(n) for n in file["shape"])
            options.steps, options.train = int(file["steps"]), str(file["precision"])
    except (KeyError, ValueError) as error:
        message = f"--weights is {options.weights}, which --save did not write: {error}"
        raise pysm120.InvalidArgumentError(message) from error
    model = train.Model(len(set(text)), options.layers, options.heads, options.context, 0)
    model.weights[...] = weights
    return model, text


def run(options: argparse.Namespace, opened: ExitStack) -> int:
    """Train or load, study, print, and write what was asked for; return the exit status."""
    if options.weights:
        model, text = loaded(options)
        alphabet, symbols = symbols_of(text)
    else:
        text = train.text()
        alphabet, symbols = symbols_of(text)
        if options.context >= (1 - TRAINED) * len(symbols):
            message = f"--context is {options.context}, but a tenth of the text has {len(symbols) // 10} characters"
            raise pysm120.InvalidArgumentError(message)
        model = trained(options, symbols, alphabet, opened)
    if options.save:
        np.savez_compressed(
            options.save,
            weights=model.weights,
            text=np.array(text),
            shape=np.array([options.layers, options.heads, options.context]),
            steps=np.array(options.steps),
            precision=np.array(options.train),
        )
    rest = symbols[int(TRAINED * len(symbols)) :]
    starts = np.linspace(0, len(rest) - options.context - 1, options.sequences).astype(int)[:, None]
    held_out = rest[starts + np.arange(options.context + 1)]
    device = opened.enter_context(pysm120.Device(options.device))
    exact, rows = study(model, held_out, device)
    inputs = layers_of(model, held_out[:2])
    layers = [of_layer(*qkv) for qkv in inputs]
    if options.qkv:
        q, k, v = (x[:1] for x in inputs[-1])
        np.savez_compressed(options.qkv, q=q, k=k, v=v)
    print(f"{device}, {device.info.name}: {held_out[:, 1:].size:,} characters that the model was not trained on")
    print(table(exact, rows))
    for n, layer in enumerate(layers):
        print(f"layer {n}: " + ", ".join(f"{name} {value:.2f}" for name, value in layer.items()))
    if options.json:
        found = {
            "device": f"{device.info.name}",
            "model": {name: getattr(options, name) for name in ("layers", "heads", "context", "steps", "train")},
            "characters": int(held_out[:, 1:].size),
            "float32": exact,
            "rows": [x._asdict() for x in rows],
            "layers": layers,
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; return the exit status."""
    try:
        with ExitStack() as opened:
            return run(arguments(words), opened)
    except (pysm120.Error, OSError) as error:
        print(f"losses.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
