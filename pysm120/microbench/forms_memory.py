"""Global memory by footprint: latency along a chain of addresses, bandwidth of loads and stores; and atomics."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.microbench.form import LANES, Counts, Form, Operand
from pysm120.microbench.forms_copy import Rows, first_difference
from pysm120.microbench.kernel import BenchKernel

LINE, SECTOR = 128, 32
WALK = 1 << 14  # steps of a timed run
KIB, MIB = 1 << 10, 1 << 20


def text(nbytes: int) -> str:
    """Return a size in words."""
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"


def cycle(nbytes: int) -> npt.NDArray[np.int64]:
    """Return the offsets of all lines in a fixed random order; the walk begins at 0."""
    order = np.random.default_rng(nbytes).permutation(np.arange(1, nbytes // LINE))
    return np.concatenate([[0], order]) * LINE


def _chased(span: int) -> Form:
    """Return the form of a walk through a number of bytes."""

    def fill(nbytes: int, _: int) -> npt.NDArray[np.uint32]:
        """Return offsets; ``relocate`` makes addresses of them."""
        places = cycle(nbytes)
        words = np.zeros(nbytes // 8, np.uint64)
        words[places // 8] = np.roll(places, -1)
        return words.view(np.uint32)

    def check(launcher: Any, bench: BenchKernel, words: npt.NDArray[np.uint32], *rest: int) -> str:
        places = cycle(launcher.limited(span))
        expected = int(places[rest[-1] * bench.form.unroll % len(places)])
        return "" if (words[:, 0] == expected).all() else f"the walk ends at {words[0, 0]:#x}, not at {expected:#x}"

    return Form(
        name=f"ld.global.b64 after another, {text(span)}", group="memory", template="chase",
        lines=("ld.global.b64 next, [next];",), sass=r"LDG\.E\.64", state=Operand("b32"), model=lambda words, _: words,
        amount=1, unroll=16, chains=(1,), warps=(1,), has_rate=False, note=f"lines of {LINE} bytes in a random order",
        options={"data": lambda _: span, "fill": fill, "addresses": True, "writes": True, "check": check, "words": 1,
                 "ctas": lambda _: 1, "check_warps": 1, "check_ctas": 1, "clocks": 400 * WALK, "first_steps": span // LINE if span <= 32 * MIB else 0},
    )  # fmt: skip


def _streamed(
    name: str, line: str, sass: str | Counts, span: int, *, width: int = 16, oldest: int = 80, stored: int = 0, rows: Rows | None = None,
    wide: bool = False, moves: int = 0,
) -> Form:  # fmt: skip
    """Return the form of loads or stores by all threads of the chip.

    ``stored``: the bytes that a store writes of each ``width``; 0: a load. ``wide``: each CTA goes through a span of
    its own. ``moves``: more instructions beside an access than others of its width have.
    """

    def check(
        launcher: Any, bench: BenchKernel, words: npt.NDArray[np.uint32], ctas: int, warps: int, trips: int
    ) -> str:
        size, threads = launcher.limited(span), ctas * warps * LANES
        steps, together = bench.chains * trips * bench.form.unroll, warps * LANES if wide else threads
        at = (np.arange(threads)[:, None] % together * width + np.arange(steps) * together * width) % size
        at = rows.places(at, size) if rows else at
        if wide:
            at, size = at + np.arange(threads)[:, None] // together * span, ctas * span
        if stored:
            written = np.unique(at)[:, None] // 4 + np.arange(stored // 4)
            return "" if (launcher.read(size)[written] == STORED).all() else "the stored words are not in memory"
        at = at.reshape(threads, -1, bench.chains)  # [thread][step][chain]
        folded = np.zeros((threads, bench.chains), np.uint32)
        for i in range(width // 4):
            folded ^= np.bitwise_xor.reduce(launcher.pattern(size)[at // 4 + i], axis=1)
        total = folded.sum(axis=1, dtype=np.uint32)
        return "" if np.array_equal(words[:, -1], total) else f"thread 0 read {words[0, -1]:#x}, not {total[0]:#x}"

    return Form(
        name=f"{name}, {text(span)}" + (" for each CTA" if wide else "") + (rows.words if rows else ""), group="memory", template="global", lines=(line,), sass=sass,
        state=Operand("b32", 1, STORED if stored else 0), inputs={"M": Operand("b32", 1, span - 1)}, model=lambda words, _: words, amount=LANES * (stored or width), unit="byte",
        chains=(4,), warps=(8, 16, 32), unroll=2, has_latency=False, oldest=oldest, besides={4: 4.5, 16: 6.5, 32: 8}[width] + (4 if rows else 0) + moves,
        options={"width": width, "span": span, "data": lambda ctas: ctas * span if wide else span, "check": check,
                 "writes": bool(stored), "rows": rows, "is_cta_wide": wide},
    )  # fmt: skip


STORED = 0x600DF00D
LOAD = "{ .reg .b32 r<4>; ld.global.L1::no_allocate.v4.b32 {r0, r1, r2, r3}, [address]; xor.b32 r0, r0, r1; xor.b32 r2, r2, r3; xor.b32 r0, r0, r2; xor.b32 X, X, r0; }"
LOAD_OF_L1 = LOAD.replace(".L1::no_allocate", ".ca")
LOAD_4_OF_L1 = "{ .reg .b32 r0; ld.global.ca.b32 r0, [address]; xor.b32 X, X, r0; }"
LOAD_8 = (
    "{ .reg .b32 r<8>; ld.global.L1::no_allocate.v8.b32 {r0, r1, r2, r3, r4, r5, r6, r7}, [address];"
    + "".join(f" xor.b32 r0, r0, r{i};" for i in range(1, 8)) + " xor.b32 X, X, r0; }"
)  # fmt: skip
STORE = "st.global.v4.b32 [address], {X, X, X, X};"


def _scattered(parts: int, width: int = 4) -> Form:
    """Return the form of stores of parts of sectors: a lane has a sector, and stores so many parts of it in turn."""
    kind, value = {4: ("b32", "X"), 16: ("v4.b32", "{X, X, X, X}")}[width]
    return _streamed(
        f"st.global.{kind}, {parts} of {SECTOR // width} parts of each sector",
        " ".join(f"st.global.{kind} [address + {part * width}], {value};" for part in range(parts)),
        {r"STG\.E(\.128)?": parts}, 16 * MIB, width=SECTOR, stored=parts * width, moves=6 if width > 4 else 0,
    )  # fmt: skip


def _atomic(name: str, line: str, sass: str, *, words: int, note: str) -> Form:
    """Return the form of additions of one to a number of words; consecutive threads use consecutive words."""

    def check(launcher: Any, bench: BenchKernel, _: Any, ctas: int, warps: int, trips: int) -> str:
        threads, size = ctas * warps * LANES, launcher.limited(4 * words)
        expected = np.zeros(size // 4, np.uint32)
        for step in range(bench.chains * trips * bench.form.unroll):
            np.add.at(expected, (np.arange(threads) + step * threads) % (size // 4), 1)
        return first_difference("word", launcher.read(size), expected)

    return Form(
        name=name, group="memory", template="global", lines=(line,), sass=sass, state=Operand("b32", 1, 0),
        inputs={"A": Operand("b32", 1, 1), "M": Operand("b32", 1, 4 * words - 1)}, model=lambda w, _: w, amount=LANES, chains=(1, 4), warps=(1, 8, 32), unroll=4,
        has_latency=False, note=note, besides=4.5,
        options={"width": 4, "span": 4 * words, "data": lambda _: 4 * words, "fill": lambda n, _: np.zeros(n // 4, np.uint32),
                 "check": check, "writes": True},
    )  # fmt: skip


def _atomics() -> list[Form]:
    forms = []
    for words, note in (
        (1, "one word for all"),
        (32, "32 words for all, those of a line"),
        (1 << 20, "a word for each thread"),
    ):
        forms += [
            _atomic(f"red.global.add.u32, {words:,} words", "red.global.add.u32 [address], A;", r"REDG?\.E\.ADD\..*", words=words, note=note),
            _atomic(f"atom.global.add.u32, {words:,} words",
                    "{ .reg .b32 old; atom.global.add.u32 old, [address], A; add.u32 X, X, old; }", r"ATOMG?\.E\.ADD\..*", words=words, note=note),
        ]  # fmt: skip
    return forms


FORMS = [
    *(_chased(span) for span in (16 * KIB, 128 * KIB, 1 * MIB, 8 * MIB, 24 * MIB, 64 * MIB, 512 * MIB)),
    *(_streamed("ld.global.L1::no_allocate.v4.b32", LOAD, r"LDG\.E\.NA\.128", span) for span in (4 * MIB, 16 * MIB, 1024 * MIB)),
    *(_streamed("ld.global.L1::no_allocate.v4.b32", LOAD, r"LDG\.E\.NA\.128", 16 * MIB, rows=Rows(nbytes)) for nbytes in (32, 64, 128, 512)),
    *(_streamed("ld.global.ca.v4.b32", LOAD_OF_L1, r"LDG\.E\.128(\.STRONG.*)?", 16 * KIB, rows=rows, wide=True)
      for rows in (Rows(512), Rows(32), Rows(32, 4), Rows(16, 8))),
    *(_streamed("ld.global.ca.b32", LOAD_4_OF_L1, r"LDG\.E(\.STRONG.*)?", 16 * KIB, width=4, rows=rows, wide=True)
      for rows in (Rows(128), Rows(16), Rows(4), Rows(16, 8), Rows(16, 9), Rows(4, 32), Rows(4, 33))),
    _streamed("st.global.v4.b32", STORE, r"STG\.E\.128", 16 * MIB, stored=16, rows=Rows(32)),
    *(_streamed("ld.global.L1::no_allocate.v8.b32", LOAD_8, r"LDG\.E\.(NA\.ENL2|ENL2\.NA|NA\.?ENL2)\.256", span, width=32, oldest=100) for span in (16 * MIB, 1024 * MIB)),
    *(_streamed("st.global.v4.b32", STORE, r"STG\.E\.128", span, stored=16) for span in (4 * MIB, 16 * MIB, 1024 * MIB)),
    *(_scattered(parts) for parts in (1, 2, 4, 8)),
    *(_scattered(parts, 16) for parts in (1, 2)),
    *_atomics(),
]  # fmt: skip
