"""Draw docs/explanation/backward.png: where the operands of the backward kernels live, and which product reads them.

    python docs/explanation/draw_backward.py [FILE]

Tiles, bytes and registers are those of the templates, which are expanded for SM120. The picture's metadata hold them
too, so that a test finds a picture that is older than its kernels.
"""

import inspect
import io
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "ptx")]

from expand import Expansion  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402
from PIL import Image  # noqa: E402
from PIL.PngImagePlugin import PngInfo  # noqa: E402

KERNELS = {
    "attention_backward_bf16_64x96_d128": "bf16_f16",
    "attention_backward_mxfp8_64x128_d128": "mxfp8",
}
# What the picture needs of a template's constants when it describes a kernel.
SIZES = ("D", "Q_ROWS", "KV_ROWS", "WARPS", "SHARED", "STAGES", "DS_STAGES", "KV_BYTES", "KR", "KC", "QR", "QC")
ST, DPT = "S$^T$, then P$^T$", "dP$^T$, then dS$^T$"
SPACES = {"global memory": "#f6e3c5", "shared memory": "#d6e8d4", "registers": "#d9e2f3"}
READ, WRITTEN, ELEMENTWISE, ALIVE = "#1f4e79", "#b03a2e", "#555555", "#ffffff"
LEFT, COLUMN, ROW = 4.5, 0.98, 0.5  # of the rows' names, a step, a row


class Operand(NamedTuple):
    """A row of the picture: a tensor in a memory."""

    space: str
    name: str
    note: str = ""


class Step(NamedTuple):
    """A column: its title, the rows it reads with their marks, the row it writes with its mark."""

    title: str
    reads: tuple[tuple[str, str], ...]
    writes: tuple[tuple[str, str], ...]
    is_product: bool = False


def sizes() -> dict[str, dict[str, int]]:
    """Return the constants of the kernels, by name."""
    found: dict[str, dict[str, int]] = {}

    def note(**fields: Any) -> None:
        if fields["entry"] not in KERNELS:
            return
        frame = inspect.currentframe()
        assert frame is not None  # noqa: S101 # CPython has frames
        assert frame.f_back is not None  # noqa: S101
        scope = frame.f_back.f_globals
        sums = {f"{name} registers": len(scope[name]) for name in ("S", "DP", "DK", "DV", "DQ")}
        # In MXFP8 a tile of Q comes with its rows of LSE and delta, and has as many stages as dO.
        q_bytes = scope.get("DO_BYTES", scope["Q_BYTES"])
        others = {
            "TILE_BYTES": q_bytes,
            "ROWS_BYTES": scope.get("ROWS_BYTES", scope["Q_BYTES"] - q_bytes),
            "DO_STAGES": scope.get("DO_STAGES", scope["STAGES"]),
            "DS_BYTES": scope.get("DS_BYTES", 2 * scope["Q_ROWS"] * scope["KV_ROWS"]),
            "V registers": len(scope.get("VALUES", [])),
            "S_QUERIES": scope["Q_ROWS"] // scope.get("SR", 1),
            "S_KEYS": scope["KV_ROWS"] // scope.get("SC", scope["WARPS"]),
        }
        found[fields["entry"]] = {name: scope[name] for name in SIZES} | sums | others

    for name in KERNELS.values():
        Expansion(ROOT / "ptx" / "attention_backward" / f"{name}.ptx", "sm_120f", note=note)
    return found


def size(count: int, times: int = 1) -> str:
    """Return a number of bytes as text."""
    return f"{times} x {count:,} bytes" if times > 1 else f"{count:,} bytes"


def rows(k: dict[str, int], *, is_mxfp8: bool) -> list[Operand]:
    """Return the rows of a kernel."""
    q, kv, d, kind = k["Q_ROWS"], k["KV_ROWS"], k["D"], "e4m3" if is_mxfp8 else "bf16"
    scores = (k["S_KEYS"], k["S_QUERIES"]) if is_mxfp8 else (k["S_QUERIES"], k["S_KEYS"])
    keys, queries = (kv // k["KR"], d // k["KC"]), (q // k["QR"], d // k["QC"])

    def held(name: str, tile: tuple[int, int], count: int) -> Operand:
        return Operand("registers", name, f"{tile[0]} x {tile[1]} a warp, {count} a thread")

    return [
        Operand("global memory", "K, V", f"{kind}, {kv} x {d}, once"),
        Operand("global memory", "Q, dO, LSE, delta", f"{q} x {d}, each tile"),
        Operand("global memory", "sums of dQ", f"f32, {q} x {d}, each tile"),
        Operand("global memory", "dK, dV", f"{kv} x {d}, at the end"),
        Operand("shared memory", "K", size(k["KV_BYTES"])),
        Operand("shared memory", "V", size(k["KV_BYTES"])),
        Operand("shared memory", "Q", size(k["TILE_BYTES"], k["STAGES"])),
        Operand("shared memory", "dO", size(k["TILE_BYTES"], k["DO_STAGES"])),
        Operand("shared memory", "LSE, delta", size(k["ROWS_BYTES"], k["STAGES"])),
        *([] if is_mxfp8 else [Operand("shared memory", "P", f"{size(k['DS_BYTES'])} of V")]),
        Operand("shared memory", "dS", size(k["DS_BYTES"], k["DS_STAGES"]) + ("" if is_mxfp8 else " of V")),
        *([] if is_mxfp8 else [held("keys of V", (k["S_KEYS"], d), k["V registers"])]),
        held(ST if is_mxfp8 else "S, then P", scores, k["S registers"]),
        *([held("P$^T$ in e4m3", scores, k["S registers"] // 4)] if is_mxfp8 else []),
        held(DPT if is_mxfp8 else "dP, then dS", scores, k["DP registers"]),
        *([held("dS$^T$ in e4m3", scores, k["DP registers"] // 4)] if is_mxfp8 else []),
        held("dV", keys, k["DV registers"]),
        held("dK", keys, k["DK registers"]),
        held("dQ", queries, k["DQ registers"]),
    ]


STEPS_16BIT = [
    Step(
        "load",
        (("K, V", ""), ("Q, dO, LSE, delta", "")),
        (("K", ""), ("V", ""), ("Q", ""), ("dO", ""), ("LSE, delta", "")),
    ),
    Step("keep V,\nonce", (("V", ""),), (("keys of V", ""),)),
    Step("1\nS =\nQ K$^T$", (("Q", "A"), ("K", "B")), (("S, then P", "="),), is_product=True),
    Step("P =\nexp(S\n- LSE)", (("S, then P", ""), ("LSE, delta", "")), (("P", ""),)),
    Step("2\ndP =\ndO V$^T$", (("dO", "A"), ("keys of V", "B")), (("dP, then dS", "="),), is_product=True),
    Step("3\ndV +=\nP$^T$ dO", (("P", "At"), ("dO", "Bt")), (("dV", "+"),), is_product=True),
    Step("dS = P\n(dP -\ndelta)", (("S, then P", ""), ("dP, then dS", ""), ("LSE, delta", "")), (("dS", ""),)),
    Step("4\ndK +=\ndS$^T$ Q", (("dS", "At"), ("Q", "Bt")), (("dK", "+"),), is_product=True),
    Step("5\ndQ =\ndS K", (("dS", "A"), ("K", "Bt")), (("dQ", "="),), is_product=True),
    Step("add\n(red.v4)", (("dQ", ""),), (("sums of dQ", "+"),)),
    Step("store,\nat the\nend", (("dV", ""), ("dK", "")), (("dK, dV", ""),)),
]
STEPS_MXFP8 = [
    STEPS_16BIT[0],
    Step("1\nS$^T$ =\nK Q$^T$", (("K", "A"), ("Q", "B")), ((ST, "="),), is_product=True),
    Step("P$^T$ =\nexp(S$^T$\n- LSE)", ((ST, ""), ("LSE, delta", "")), (("P$^T$ in e4m3", ""),)),
    Step("2\ndP$^T$ =\nV dO$^T$", (("V", "A"), ("dO", "B")), ((DPT, "="),), is_product=True),
    Step(
        "dS$^T$ = P$^T$\n(dP$^T$ -\ndelta)",
        ((ST, ""), (DPT, ""), ("LSE, delta", "")),
        (("dS$^T$ in e4m3", ""), ("dS", "")),
    ),
    Step("3\ndV +=\nP$^T$ dO", (("P$^T$ in e4m3", "A"), ("dO", "Bt")), (("dV", "+"),), is_product=True),
    Step("4\ndK +=\ndS$^T$ Q", (("dS$^T$ in e4m3", "A"), ("Q", "Bt")), (("dK", "+"),), is_product=True),
    *STEPS_16BIT[8:],
]


def mark(axes: Axes, x: float, y: float, text: str, colour: str, shape: str) -> None:
    """Draw a mark with a letter in it; At and Bt are transposed operands."""
    axes.plot(x, y, shape, markersize=13 if text else 7, color=colour, zorder=4)
    shown = {"At": "A$^T$", "Bt": "B$^T$"}.get(text, text)
    axes.text(x, y - 0.01, shown, color="white", ha="center", va="center_baseline", fontsize=7.5, zorder=5)


def panel(axes: Axes, title: str, operands: list[Operand], steps: list[Step]) -> None:
    """Draw a kernel."""
    places, y, before = {}, 0.0, ""
    for row in operands:
        if row.space != before:
            y -= 0.25 if before else 0
            count = sum(other.space == row.space for other in operands)
            box = (0, y - ROW * (count - 0.5)), LEFT + COLUMN * len(steps) + 0.1, ROW * count
            axes.add_patch(_rectangle(*box, SPACES[row.space]))
            axes.text(0.17, y - ROW * (count - 1) / 2, row.space, rotation=90, ha="center", va="center", fontsize=8.5)
            before = row.space
        places[row.name] = y
        axes.text(0.42, y, row.name, va="center", fontsize=8.5, weight="bold")
        axes.text(LEFT - 0.08, y, row.note, va="center", ha="right", fontsize=7.2, color="#333333")
        y -= ROW
    last = LEFT + COLUMN * len(steps)
    alive: dict[str, list[float]] = {}
    for n, step in enumerate(steps):
        x = LEFT + COLUMN * (n + 0.5)
        axes.text(x, ROW * 1.95, step.title, ha="center", va="center", fontsize=8, linespacing=1.1,
                  weight="bold" if step.is_product else "normal",
                  color=READ if step.is_product else "black")  # fmt: skip
        touched = [places[name] for name, _ in (*step.reads, *step.writes)]
        axes.plot([x, x], [min(touched), max(touched)], color=READ if step.is_product else ELEMENTWISE,
                  linewidth=2.2 if step.is_product else 1.2, zorder=3)  # fmt: skip
        for name, text in step.reads:
            mark(axes, x, places[name], text, READ if step.is_product else ELEMENTWISE, "o")
            alive.setdefault(name, [LEFT]).append(x)
        for name, text in step.writes:
            mark(axes, x, places[name], text, WRITTEN, "s")
            alive.setdefault(name, []).append(x)
    for name, xs in alive.items():
        first, final = (min(xs), max(xs)) if len(xs) > 1 else (xs[0], last)
        axes.plot([first, final], [places[name]] * 2, color=ALIVE, linewidth=9, solid_capstyle="round", zorder=2)
    axes.set_title(title, fontsize=9.5, weight="bold", loc="left", pad=3)
    axes.set_xlim(0, last + 0.1)
    axes.set_ylim(y + 0.2, ROW * 3.1)
    axes.axis("off")


def _rectangle(corner: tuple[float, float], width: float, height: float, colour: str) -> Any:
    return FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=0.1", color=colour, zorder=1)


def _key(shape: str, colour: str, points: int, text: str) -> Line2D:
    return Line2D([], [], marker=shape, color=colour, linestyle="", markersize=points, label=text)


def draw(path: Path) -> None:
    """Write the picture."""
    found = sizes()
    figure = Figure(figsize=(9, 11.8))
    panels = figure.subplots(2, height_ratios=[19.6, 19.6])
    figure.subplots_adjust(left=0.01, right=0.99, top=0.98, bottom=0.035, hspace=0.055)
    for axes, (name, k), steps in zip(panels, found.items(), (STEPS_16BIT, STEPS_MXFP8), strict=True):
        title = f"{name}: {k['WARPS']} warps, {k['SHARED']:,} bytes of shared memory"
        panel(axes, title, rows(k, is_mxfp8=steps is STEPS_MXFP8), steps)
    figure.legend(
        handles=[
            _key("o", READ, 10, "operand A or B of a product; A$^T$, B$^T$: transposed by ldmatrix"),
            _key("o", ELEMENTWISE, 6, "read"),
            _key("s", WRITTEN, 8, "written; =, +: accumulators of a product"),
        ],
        loc="lower center",
        ncols=3,
        frameon=False,
        fontsize=8,
        handletextpad=0.3,
        columnspacing=1.6,
    )
    drawn, notes = io.BytesIO(), PngInfo()
    figure.savefig(drawn, dpi=150)
    notes.add_text("Description", json.dumps(found))
    # Few colours take a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(64).save(path, pnginfo=notes, optimize=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("backward.png"))
