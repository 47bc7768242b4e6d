"""Generate text with the small GPT of train.py, its keys and values in paged caches: bf16, MXFP8 and NVFP4.

    python examples/generate.py [PROMPT ...] [--tokens 24] [--device cuda]

The model is trained for a moment first, in float32 by NumPy. Then each prompt is prefilled in chunks and continued
greedily, all sequences side by side: kv_cache_append writes the keys and values of new tokens, quantised if the cache
is, to pages in any order, and attention_with_kv_cache reads them. The reference computes all tokens again for each new
one, without a cache.

The table compares choices, not texts: after one other token two texts have nothing in common. So each cache also
continues the reference's text, and at each place its logits and its choice are compared with the reference's. With
bf16 every choice must be the reference's, unless the reference's two best logits are nearer than the rounding of bf16
tells apart. The program fails if another choice differs, or if the logits differ by more than that.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
from train import HEAD_DIM, Floats, Integers, Model, Training, batches, count, linear, normalized, text

import pysm120

BF16, E4M3, E8M0 = (np.dtype(x) for x in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu))
PAGE, CHUNK = 16, 64  # tokens of a page, tokens of a prompt that are prefilled at once
PROMPTS = ("The kernel reads ", "Attention of few queries and a cache of ", "A warp has ")
# For each cache: dtype and columns of the arrays of K, and of V. Block scales of NVFP4 need no further scale here.
CACHES = {
    "bf16": ((BF16, HEAD_DIM),),
    "mxfp8": ((E4M3, HEAD_DIM), (E8M0, HEAD_DIM // 32)),
    "nvfp4": ((np.dtype(np.uint8), HEAD_DIM // 2), (E4M3, HEAD_DIM // 16)),
}
# The reference and a bf16 cache round q, k, v, P and O to bf16 behind sums in another order. Some become neighbours,
# which differ by up to 2^-7 of their size. Logits may differ by this part of their spread.
TOLERANCE = 2.0**-7

Attend = Callable[[int, Floats, Floats, Floats], Floats]  # a block's number and q, k, v [B, T, H, D]


def logits_of(model: Model, symbols: Integers, places: Integers, attend: Attend) -> Floats:
    """Return the logits [B, T, symbols] of tokens [B, T] at their places."""
    batch, tokens = symbols.shape
    x = (model.w["symbols"][symbols] + model.w["places"][places]).reshape(batch * tokens, -1)
    for n in range(model.layers):

        def attention(q: Floats, k: Floats, v: Floats, n: int = n) -> Any:
            return attend(n, q, k, v), None  # there is no backward pass

        x, _ = model.block(n, x, batch, attention)
    x, _ = normalized(x, *model.both("norm"))
    x, _ = linear(x, *model.both("logits"))
    return x.reshape(batch, tokens, -1)


# ---- with a cache


class PagedCaches:
    """Keys and values of all blocks. Sequences get pages when they grow, in the order of a shuffled list."""

    def __init__(self, device: pysm120.Device, model: Model, form: str, sequences: int, rows: int) -> None:
        self.device, self.model = device, model
        pages = -(-rows // PAGE)
        self.free = list(np.random.default_rng(0).permutation(sequences * pages))
        self.table = np.zeros((sequences, pages), np.int32)
        self.lengths = np.zeros(sequences, np.int32)
        shape = (sequences * pages, PAGE, model.heads)
        self.blocks = [
            [[device.zeros((*shape, columns), dtype) for dtype, columns in CACHES[form]] for _ in "kv"]
            for _ in range(model.layers)
        ]

    def grow(self, sequence: int, tokens: int) -> None:
        """Make room for new tokens of a sequence."""
        before = self.lengths[sequence]
        self.lengths[sequence] += tokens
        for page in range(-(-before // PAGE), -(-self.lengths[sequence] // PAGE)):
            self.table[sequence, page] = self.free.pop()

    def logits(self, sequences: slice, symbols: Integers) -> Floats:
        """Append tokens [B, T] to sequences; return the logits behind the last one, [B, symbols]."""
        tokens = symbols.shape[1]
        for sequence in range(*sequences.indices(len(self.lengths))):
            self.grow(sequence, tokens)
        lengths = self.lengths[sequences]
        on_device: dict[str, Any] = {
            "kv_lengths": self.device.array(lengths),
            "page_table": self.device.array(self.table[sequences]),
        }

        def attend(n: int, *qkv: Floats) -> Floats:
            q, k, v = (self.device.array(x.astype(BF16)) for x in qkv)
            k_cache, v_cache = (x[0] if len(x) == 1 else tuple(x) for x in self.blocks[n])
            pysm120.kv_cache_append(k, v, k_cache, v_cache, **on_device)
            out: pysm120.Array = pysm120.attention_with_kv_cache(q, k_cache, v_cache, causal=True, **on_device)
            return out.numpy().astype(np.float32)

        places = lengths[:, None] - tokens + np.arange(tokens)
        return logits_of(self.model, symbols, places, attend)[:, -1]


class Continuation(NamedTuple):
    """What a run chose, and why."""

    tokens: Integers  # [B, steps]
    logits: Floats  # [B, steps, symbols]: tokens are their largest ones


def with_cache(
    caches: PagedCaches, prompts: Sequence[Integers], steps: int, follow: Integers | None = None
) -> Continuation:
    """Prefill the prompts and choose `steps` tokens behind each; continue with them, or with the tokens to follow."""
    last = []
    for sequence, prompt in enumerate(prompts):
        for start in range(0, len(prompt), CHUNK):
            logits = caches.logits(slice(sequence, sequence + 1), prompt[None, start : start + CHUNK])
        last.append(logits[0])
    found = [np.stack(last)]
    for step in range(steps - 1):
        chosen = found[-1].argmax(-1) if follow is None else follow[:, step]
        found.append(caches.logits(slice(None), chosen[:, None]))
    logits = np.stack(found, axis=1)
    return Continuation(logits.argmax(-1), logits)


# ---- without a cache


def recomputed(device: pysm120.Device, model: Model, prompts: Sequence[Integers], steps: int) -> Continuation:
    """Choose tokens, all earlier ones computed again for each. Shorter sequences are padded behind their end."""
    lengths = np.array([len(prompt) for prompt in prompts])
    symbols = np.zeros((len(prompts), int(lengths.max()) + steps), np.int64)
    for row, prompt in zip(symbols, prompts, strict=True):
        row[: len(prompt)] = prompt
    rows = np.arange(len(prompts))

    def attend(n: int, *qkv: Floats) -> Floats:
        del n
        q, k, v = (x.astype(BF16) for x in qkv)
        return pysm120.attention(q, k, v, precision="bf16", causal=True, device=device).astype(np.float32)

    found = []
    for step in range(steps):
        some = symbols[:, : int(lengths.max()) + step]
        logits = logits_of(model, some, np.arange(some.shape[1])[None], attend)
        found.append(logits[rows, lengths + step - 1])
        symbols[rows, lengths + step] = found[-1].argmax(-1)
    logits = np.stack(found, axis=1)
    return Continuation(logits.argmax(-1), logits)


# ---- the comparison


class Comparison(NamedTuple):
    """A cache and the reference, which continue the same text."""

    equal: float  # share of equal choices
    unclear: int  # other choices between logits that the tolerance does not tell apart
    wrong: int  # the other ones
    error: float  # of the logits: root of the mean square, relative to their spread
    worst: float  # the largest one

    @classmethod
    def of(cls, got: Continuation, reference: Continuation) -> "Comparison":
        """Compare logits and choices."""
        spread = reference.logits.std()
        off = np.abs(got.logits - reference.logits) / spread
        differs = got.tokens != reference.tokens
        best, chosen = (np.take_along_axis(reference.logits, x.tokens[..., None], -1)[..., 0] for x in (reference, got))
        # Both logits of a choice may be off by the tolerance.
        is_unclear = differs & (best - chosen <= 2 * TOLERANCE * spread)
        return cls(
            equal=float(1 - differs.mean()),
            unclear=int(is_unclear.sum()),
            wrong=int((differs & ~is_unclear).sum()),
            error=float(np.sqrt((off**2).mean())),
            worst=float(off.max()),
        )

    def fails(self) -> bool:
        """Whether a bf16 cache must not differ in this way."""
        return self.wrong > 0 or self.worst > TOLERANCE


def bytes_of(form: str, model: Model) -> int:
    """Return the bytes of a token in all blocks, K and V."""
    row = sum(dtype.itemsize * columns for dtype, columns in CACHES[form])
    return 2 * model.layers * model.heads * row


# ---- the program


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="Generate text with paged caches of keys and values by pysm120.")
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="default: three of different lengths")
    parser.add_argument("--cache", nargs="+", choices=list(CACHES), default=list(CACHES), help="default: all")
    parser.add_argument("--device", help='"cuda" or "virtual"; default: the first GPU, else virtual')
    for name, default, what in (
        ("tokens", 24, "tokens behind each prompt"),
        ("steps", 60, "batches of training"),
        ("layers", 2, "number of blocks"),
        ("heads", 1, f"heads of {HEAD_DIM} columns in a block"),
        ("context", 96, "the most tokens of a sequence"),
        ("batch", 2, "sequences of a step of training"),
    ):
        parser.add_argument(f"--{name}", type=count, default=default, help=f"{what}; default: {default}")
    parser.add_argument("--seed", type=lambda word: count(word, 0), default=0, help="default: 0")
    options = parser.parse_args(words)
    options.prompts = options.prompts or list(PROMPTS)
    return options


def trained(symbols: npt.NDArray[np.int64], alphabet: int, options: argparse.Namespace, opened: ExitStack) -> Model:
    """Train the model for a moment."""
    training = Training("float32", alphabet, options, opened)
    for batch in batches(symbols, options):
        training.step(batch)
    print(f"Loss after {options.steps} steps: {training.last():.2f} nats a character")
    return training.model


def encoded(prompts: Sequence[str], numbers: dict[str, int], most: int) -> list[Integers]:
    """Return the symbols of the prompts."""
    for prompt in prompts:
        unknown = sorted(set(prompt) - numbers.keys())
        if not prompt or unknown:
            what = f"has {unknown[0]!r}, which is not a character of the documents" if prompt else "is empty"
            raise pysm120.InvalidArgumentError(f"the prompt {prompt!r} {what}")
        if len(prompt) > most:
            raise pysm120.InvalidArgumentError(
                f"the prompt {prompt!r} has {len(prompt)} characters, but --context minus --tokens leaves {most}"
            )
    return [np.array([numbers[character] for character in prompt]) for prompt in prompts]


def run(options: argparse.Namespace, opened: ExitStack) -> int:
    """Train, generate, compare; return the exit status."""
    corpus = text()
    alphabet = sorted(set(corpus))
    numbers = {character: n for n, character in enumerate(alphabet)}
    prompts = encoded(options.prompts, numbers, options.context - options.tokens)
    device = opened.enter_context(pysm120.Device(options.device))
    model = trained(np.array([numbers[x] for x in corpus]), len(alphabet), options, opened)
    reference = recomputed(device, model, prompts, options.tokens)
    print(f"{device.info.name}: {len(prompts)} sequences, {options.tokens} tokens behind each\n")
    texts, lines, failed = {}, [], False
    for form in dict.fromkeys(options.cache):

        def caches(form: str = form) -> PagedCaches:
            return PagedCaches(device, model, form, len(prompts), options.context)

        begin = time.perf_counter()
        texts[form] = with_cache(caches(), prompts, options.tokens).tokens
        seconds = time.perf_counter() - begin
        found = Comparison.of(with_cache(caches(), prompts, options.tokens, reference.tokens), reference)
        failed |= form == "bf16" and found.fails()
        lines.append(
            f"{form:6} {bytes_of(form, model):14} {found.equal:13.1%} {found.unclear:9} {found.error:12.2%} "
            f"{found.worst:8.2%} {1e3 * seconds:9.0f}"
        )
    for n, prompt in enumerate(options.prompts):
        for name, tokens in {"recomputed": reference.tokens, **texts}.items():
            print(f"{name:10} {prompt + ''.join(alphabet[x] for x in tokens[n])!r}")
        print()
    print("cache  bytes a token  equal choices  unclear  logits: rms    worst  ms in all")
    print("\n".join(lines))
    if failed:
        print("generate.py: the bf16 cache differs from computing everything again", file=sys.stderr)
    return int(failed)


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; return the exit status."""
    try:
        with ExitStack() as opened:
            return run(arguments(words), opened)
    except pysm120.Error as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
