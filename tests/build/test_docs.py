"""What documents say of the project is so: figures, links, names, paths, and the width of their lines."""

import ast
import functools
import json
import os
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import operations
import pytest

import pysm120

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
WIDTH = 100
NOT_OURS = {"build", "dist", "node_modules", "__pycache__"}
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
LOCAL = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/|\.\./shared\b")
TOPS = "ptx|src|pysm120|tests|tools|docs|benchmarks|results|examples"
DOCUMENT = re.compile(rf"\b(?:{TOPS})/[\w/-]+\.md\b")
PATH = re.compile(rf"`((?:{TOPS})/[\w./*-]*)`")


def documents() -> list[Path]:
    """Return every markdown file of the project."""
    found: list[Path] = []
    for folder, names, files in os.walk(ROOT):
        names[:] = sorted(n for n in names if not n.startswith(".") and n not in NOT_OURS and ".egg-info" not in n)
        found += [Path(folder) / name for name in sorted(files) if name.endswith(".md")]
    return found


def named(document: Path) -> str:
    """Return a document's path for messages."""
    return document.relative_to(ROOT).as_posix()


DOCUMENTS = documents()
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=named)


# ---- figures --------------------------------------------------------------------


HARDWARE, MODEL = "docs/explanation/hardware.md", "docs/explanation/model.md"
VALIDATION, LOG = "docs/explanation/model-validation.md", "docs/explanation/model-log.md"
NPZ, BENCH = "tests/data/hopper.npz", "results/h200/microbench.json"


def results(name: str) -> Any:
    """Return a file of measurements."""
    return json.loads((ROOT / "results" / "h200" / f"{name}.json").read_text())


@functools.cache
def recorded() -> dict[str, int]:
    """Count what tests/data/hopper.npz holds: in all, by family, and by how it is compared."""
    sys.path[:0] = [str(ROOT / "tests" / "hardware")]
    import kernels
    import recording
    from families import FAMILIES

    keys = frozenset(recording.read()[0])
    forms = {name: [form for form in family if recording.key(form) in keys] for name, family in FAMILIES.items()}
    calls = [kernel for kernel in operations.recorded() if kernels.key(kernel) in keys]
    quantised = sum(isinstance(kernel, kernels.Quantized) for kernel in calls)
    everything = [form for family in forms.values() for form in family]
    return {name: len(family) for name, family in forms.items()} | {
        "all": len(keys),
        "forms": len(everything),
        "exact": sum(not form.bound for form in everything),
        "approximate": sum(bool(form.bound) for form in everything),
        "kernels": len(calls),
        "quantised": quantised,
        "attention": sum(isinstance(kernel, kernels.Attention) for kernel in calls),
        "float, half": len(forms["float"]) + len(forms["half"]),
    }


def recording_date() -> str:
    """Return the day of the recording."""
    sys.path[:0] = [str(ROOT / "tests" / "hardware")]
    import recording

    return str(recording.read()[1]["date"])


def product_forms(module: str) -> int:
    """Count the forms of a table in tests/vm."""
    sys.path[:0] = [str(ROOT / "tests" / "vm")]
    return len(__import__(module).FORMS)


def bank_patterns() -> int:
    """Count the rows of benchmarks/banks.py, without importing it."""
    for statement in ast.parse((ROOT / "benchmarks" / "banks.py").read_text()).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert statement.target.id == "ROWS"
            assert isinstance(statement.value, ast.List)
            return len(statement.value.elts)
    pytest.fail("benchmarks/banks.py has no ROWS")


def onnx_cases() -> int:
    """Return the number of cases that tests/compat/test_onnx.py requires."""
    (count,) = re.findall(r"== len\(CASES\) == (\d+)$", (ROOT / "tests/compat/test_onnx.py").read_text(), re.MULTILINE)
    return int(count)


def status(name: str) -> int:
    """Count the results of the microbenchmarks that have a status."""
    return sum(result["status"] == name for result in results("microbench")["results"])


LAUNCH = re.compile(r"^\| (?!launch).* \| ([\d,]+) \| ([\d,]+) \| ([+-][\d.]+)% \|$", re.MULTILINE)


class Launch(NamedTuple):
    """A row of docs/explanation/model-validation.md: clocks, and the error in percent as it is written."""

    predicted: int
    measured: int
    written: float

    @property
    def error(self) -> float:
        """The error in percent."""
        return 100 * (self.predicted / self.measured - 1)


def launches_of(text: str) -> list[Launch]:
    """Return the launches of a text."""
    return [Launch(int(p.replace(",", "")), int(m.replace(",", "")), float(e)) for p, m, e in LAUNCH.findall(text)]


@functools.cache
def model_errors() -> dict[str, list[float]]:
    """Return the errors of the model, in percent, by kind of kernel."""
    text = (ROOT / VALIDATION).read_text()
    own, others = (launches_of(part) for part in text.split("## How about other people"))
    shaped, plain, features, mxfp8 = own[:16], own[16:32], own[32:36], own[36:]
    loops = [x for row in re.findall(r"^\| \w+ \| (\d+: .*) \|$", text, re.MULTILINE) for x in row.split(", ")]
    kinds = {"16 bits": shaped + plain, "features": features, "MXFP8": mxfp8, "Triton": others, "all": own + others}
    return {name: [one.error for one in kind] for name, kind in kinds.items()} | {
        "loops": [float(x.split()[1].rstrip("%")) for x in loops]
    }


def median_error(name: str) -> str:
    """Return the median of the errors of some launches."""
    return f"{statistics.median(map(abs, model_errors()[name])):.1f}"


def largest_error(name: str) -> str:
    """Return the largest of the errors of some launches."""
    return f"{max(map(abs, model_errors()[name])):.1f}"


def slower() -> int:
    """Count the launches that are slower than predicted."""
    return sum(error < 0 for error in model_errors()["all"])


def launches() -> int:
    """Count the launches that the model was compared with."""
    return sum(len(results(name)["launches"]) for name in ("model", "model_uniform", "model_later", "triton"))


class Figure(NamedTuple):
    """A figure of a document: what matches it, what it must be, and where the truth is."""

    document: str
    pattern: str
    truth: Callable[[], object]
    source: str


def of_model(kernels: str, name: str) -> Iterator[Figure]:
    """Yield the figures of a row of the model's accuracy."""
    row = rf"^\| {kernels} \| "
    yield Figure(MODEL, rf"{row}(\d+) \|", lambda: len(model_errors()[name]), VALIDATION)
    yield Figure(MODEL, rf"{row}\d+ \| ([\d.]+) %", lambda: median_error(name), VALIDATION)
    yield Figure(MODEL, rf"{row}\d+ \| [\d.]+ % \| ([\d.]+) %", lambda: largest_error(name), VALIDATION)


FIGURES = [
    Figure(HARDWARE, r"\(sm_90\) \|.*\| ([\d-]+) \| \d+ \| \d+ \|$", recording_date, NPZ),
    Figure(HARDWARE, r"\(sm_90\) \|.*\| (\d+) \| \d+ \|$", lambda: recorded()["all"], NPZ),
    Figure(HARDWARE, r"\(sm_90\) \|.*\| \d+ \| (\d+) \|$", lambda: recorded()["all"], NPZ),
    Figure(HARDWARE, r"Of these, ([\d,]+) forms agree bit for bit", lambda: recorded()["exact"], NPZ),
    Figure(HARDWARE, r"(\d+) forms are approximate functions", lambda: recorded()["approximate"], NPZ),
    Figure(HARDWARE, r"(\d+) are \[calls of our own", lambda: recorded()["kernels"], NPZ),
    Figure(HARDWARE, r"^\| ([\d,]+) forms of instructions shared", lambda: recorded()["forms"], NPZ),
    Figure(HARDWARE, r"\| ([\d,]+) every bit, \d+ `.approx`", lambda: recorded()["exact"], NPZ),
    Figure(HARDWARE, r"every bit, (\d+) `.approx`", lambda: recorded()["approximate"], NPZ),
    Figure(HARDWARE, r"^\| (\d+) calls of our kernels", lambda: recorded()["kernels"], NPZ),
    Figure(HARDWARE, r"^\| `quantize_mxfp8` \| (\d+) \|", lambda: recorded()["quantised"], NPZ),
    Figure(HARDWARE, r"^\| attention \| (\d+) \|", lambda: recorded()["attention"], NPZ),
    *(
        Figure(HARDWARE, rf"^\| {family} \| (\d+) \|", functools.partial(lambda name: recorded()[name], family), NPZ)
        for family in ("integer", "float, half", "approximate", "convert", "warp", "memory", "matrix", "sparse", "wmma")
    ),
    Figure(HARDWARE, r"^\| kernels \| (\d+) \|", lambda: recorded()["kernels"], NPZ),
    Figure(HARDWARE, r"^\| tma \| (\d+) \|", lambda: recorded()["tma"], NPZ),
    Figure(HARDWARE, r"all (\d+) dense m16n8 forms", lambda: product_forms("mma_forms"), "tests/vm/mma_forms.py"),
    Figure(HARDWARE, r"`mma.sp`: (\d+) forms", lambda: product_forms("sparse_forms"), "tests/vm/sparse_forms.py"),
    Figure(HARDWARE, r"`wmma.mma`: (\d+) forms", lambda: product_forms("wmma_forms"), "tests/vm/wmma_forms.py"),
    Figure(HARDWARE, r"^\| the (\d+) `Attention` cases", onnx_cases, "tests/compat/test_onnx.py"),
    Figure(HARDWARE, r"(\d+) of 33 patterns", bank_patterns, "benchmarks/banks.py"),
    Figure("docs/reference/profiling.md", r"all (\d+) patterns", bank_patterns, "benchmarks/banks.py"),
    Figure("docs/reference/microbenchmarks.md", r"(\d+) forms measured", lambda: status("measured"), BENCH),
    Figure("docs/reference/microbenchmarks.md", r"(\d+) absent because", lambda: status("absent"), BENCH),
    Figure(LOG, r"^(\d+) loops that are mostly code", lambda: len(results("code")["loops"]), "results/h200/code.json"),
    *of_model("16-bit attention", "16 bits"),
    *of_model("Triton's matmul and attention", "Triton"),
    *of_model("attention with features", "features"),
    *of_model("MXFP8, as Hopper emulates it", "MXFP8"),
    *of_model("all", "all"),
    *of_model("runs of loops", "loops"),
    *(
        figure
        for document, count, median, largest in (
            (MODEL, r"over (\d+) launches, the", r"the median error is ([\d.]+) %", r"the largest ([\d.]+) %"),
            (
                VALIDATION,
                r"\*\* (\d+) launches on",
                r"H200: median error ([\d.]+) %",
                r"error [\d.]+ %, largest ([\d.]+)",
            ),
            ("README.md", r"median of (\d+) launches", r"on an H200 is ([\d.]+) %", r", ([\d.]+) % at worst"),
        )
        for figure in (
            Figure(document, count, launches, "results/h200"),
            Figure(document, median, lambda: median_error("all"), VALIDATION),
            Figure(document, largest, lambda: largest_error("all"), VALIDATION),
        )
    ),
    Figure(MODEL, r"(\d+) of the 51 launches are slower", slower, VALIDATION),
    Figure("README.md", r"(\d+) of the 51 were slower", slower, VALIDATION),
]


def flowing(text: str) -> str:
    """Return a text whose paragraphs are lines."""
    return re.sub(r"(?<!\n)\n(?![\n|#\-*`])", " ", text)


def wrong_figure(figure: Figure, text: str) -> str | None:
    """Return what is wrong with a figure of a text, or None."""
    found = re.findall(figure.pattern, flowing(text), re.MULTILINE)
    if len(found) != 1:
        return f"{figure.document}: {len(found)} places match {figure.pattern!r}; expected one"
    truth = str(figure.truth())
    if found[0].replace(",", "") != truth:
        return f"{figure.document}: says {found[0]} where {figure.source} has {truth}"
    return None


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.document}: {figure.pattern}")
def test_figures(figure: Figure) -> None:
    wrong = wrong_figure(figure, (ROOT / figure.document).read_text())
    assert wrong is None, wrong


def test_a_wrong_figure_is_found() -> None:
    figure = Figure("a.md", r"(\d[\d,]*) forms", lambda: 2769, "b.npz")
    assert wrong_figure(figure, "There are 2,769\nforms.") is None
    assert wrong_figure(figure, "There are 2,688 forms.") == "a.md: says 2,688 where b.npz has 2769"
    assert wrong_figure(figure, "There are none.") == r"a.md: 0 places match '(\\d[\\d,]*) forms'; expected one"
    assert "2 places" in str(wrong_figure(figure, "2 forms, 3 forms"))


def rows_of(document: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the table after a header row, by their first cell."""
    lines = (ROOT / document).read_text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith(heading))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("document", ["README.md", "docs/reference/attention.md"])
def test_measured_attention(document: str) -> None:
    """The tables of whole launches are those of results/h200/attention.json."""
    measured = results("attention")
    shown = rows_of(document, "| batch, rows, heads, head size | pysm120 | FlashAttention 2 |")
    compared = 0
    for result in measured["results"]:
        *shape, causal = result["case"]
        name = ", ".join(map(str, shape)) + " causal" * causal
        row = next((cells for key, cells in shown.items() if key.split(", calls")[0] == name), None)
        if row is None:
            assert document == "README.md", f"{document} has no row {name}"
            continue
        ours, flash, cudnn = (result["ways"][way]["median"] for way in ("pysm120", "FlashAttention 2", "cuDNN (wgmma)"))
        assert row[:2] == [f"{ours:.0f}", f"{flash:.0f}"], f"{document}, {name}"
        assert f"{cudnn:.0f}" in row, f"{document}, {name}"
        assert row[2] in {"", f"{ours / flash:.2f}"}, f"{document}, {name}"
        if document == "README.md":
            assert row[4] == f"{ours / measured['ceiling']:.0%}".replace("%", " %"), name
        compared += 1
    assert compared == len(shown)


def test_measured_launches_of_the_model() -> None:
    """The clocks of docs/explanation/model-validation.md are those of results/h200."""
    shown = launches_of((ROOT / VALIDATION).read_text())
    names = ("model", "model_uniform", "model_later", "triton")
    measured = Counter(round(one["clocks"]) for name in names for one in results(name)["launches"])
    assert Counter(one.measured for one in shown) == measured
    for one in shown:
        assert f"{one.error:+.1f}" == f"{one.written:+.1f}", f"{VALIDATION}: {one.predicted} is {one.error:+.1f} %"


def test_predictions_stand_once() -> None:
    """The README rounds the whole launches that docs/explanation/model.md has."""
    exact = rows_of(MODEL, "| entry | 4, 2048, 32, 128 |")
    for column, shape in enumerate(("4, 2048, 32, 128", "1, 4096, 32, 128", "1, 16384, 32, 128")):
        row = rows_of("README.md", "| batch, rows, heads, head size | bf16 |")[shape]
        want = [
            f"{float(cells[column]):.0f}, SM {float(cells[3].removesuffix(' %')):.0f} %" for cells in exact.values()
        ]
        assert row == want, f"README.md, {shape}"


# ---- links, names, paths, lines -------------------------------------------------


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document."""
    counts: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(FENCE.sub("", document.read_text())):
        name = slug(heading)
        found.add(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return found


def broken_links(document: Path) -> list[str]:
    """Return the relative links of a document that lead nowhere."""
    broken = []
    for target in LINK.findall(FENCE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (document.parent / path).resolve() if path else document
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    return broken


@every_document
def test_links(document: Path) -> None:
    assert not broken_links(document), f"{named(document)}: these links lead nowhere"


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# What is `b`?\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "a.md"
    page.write_text(
        "# A\n[b](b.md) [b](b.md#what-is-b) [two\nlines](b.md#twice-1) [here](#a) [web](https://x.org/none)\n"
        "```\n[no](link.md)\n```\n[c](c.md) [b](b.md#what) [here](#b)\n"
    )
    assert broken_links(page) == ["c.md", "b.md#what", "#b"]


def wide_lines(text: str) -> list[int]:
    """Return the lines, from 1, that are too wide: not those of code and tables, and without the targets of links."""
    text = FENCE.sub(lambda code: "\n" * code[0].count("\n"), text)
    lines = (re.sub(r"\]\([^)\s]*\)", "]", line) for line in text.split("\n"))
    return [k for k, line in enumerate(lines, 1) if len(line) > WIDTH and not line.lstrip().startswith("|")]


@every_document
def test_lines(document: Path) -> None:
    assert not wide_lines(document.read_text()), f"{named(document)}: these lines have more than {WIDTH} columns"


def test_a_wide_line_is_found() -> None:
    wide, link = "x" * 101, f"[x](docs/{'x' * 101}.md)"
    assert wide_lines(f"```\n{wide}\n```\n| {wide} |\n{link}\n{wide}\nx\n") == [6]


@every_document
def test_no_local_paths(document: Path) -> None:
    assert not LOCAL.findall(document.read_text()), f"{named(document)} names a folder of one machine"


@every_document
def test_paths_exist(document: Path) -> None:
    if document.name == "CHANGELOG.md":  # what was is there too
        return
    text = document.read_text()
    made = set(re.findall(r"^`([\w./-]+)`:\n\n```", text, re.MULTILINE))  # the files that a guide writes
    gone = [path for path in PATH.findall(text) if path not in made and not any(ROOT.glob(path.rstrip("/")))]
    assert not gone, f"{named(document)} names files that are not there"


def test_sources_name_documents_that_exist() -> None:
    files = [
        file
        for top in TOPS.split("|")
        for kind in ("ptx", "c", "h", "py", "toml")
        for file in (ROOT / top).rglob(f"*.{kind}")
    ]
    named_documents = {(file, path) for file in files for path in DOCUMENT.findall(file.read_text())}
    assert len(named_documents) >= 5
    gone = sorted(f"{named(file)}: {path}" for file, path in named_documents if not (ROOT / path).is_file())
    assert not gone


def public_names() -> list[str]:
    """Return what users call: the names of the package, and the functions of sm120.h."""
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "src" / "sm120.h").read_text(), flags=re.DOTALL)
    return [*pysm120.__all__, *sorted(set(re.findall(r"\b(sm120_\w+)\(", header)))]


def environment() -> list[str]:
    """Return the environment variables that the library and the package read."""
    files = [*(ROOT / "src").rglob("*.[ch]"), *(ROOT / "pysm120").rglob("*.py"), ROOT / "pytest_pysm120.py"]
    return sorted({name for file in files for name in re.findall(r"\bPYSM120_[A-Z_]+\b", file.read_text())})


def commands() -> list[str]:
    """Return the commands of python -m pysm120."""
    from pysm120.__main__ import COMMANDS

    return [command.name for command in COMMANDS]


@pytest.mark.parametrize(
    ("names", "least"),
    [(public_names, 80), (environment, 10), (commands, 10)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_reference_names_everything(names: Callable[[], list[str]], least: int) -> None:
    text = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    assert len(names()) >= least
    lacking = [name for name in names() if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    assert not lacking, "no page of docs/reference names these"
