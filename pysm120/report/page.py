"""The page of a report: one HTML file without external parts."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from pysm120.report.parent import BAD

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
td, th { padding: .15rem .6rem; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.bad { background: #fbd5d0; } .good { background: #dff0d8; } .grey { color: #777; }
pre { background: #f4f4f4; padding: .5rem; overflow-x: auto; } summary { cursor: pointer; }
svg text { font: 12px system-ui, sans-serif; }
"""
_GOOD = ("right", "measured", "checked")
_OURS, _OTHERS = "#1f5fa8", "#c9a227"  # they also differ in lightness
_BAR, _LEFT, _WIDTH, _LETTER = 18, 330, 480, 7  # pixels
_LONG = 1e9  # numbers from here on have an exponent
Cells = Sequence[Any]


def text(value: Any) -> str:
    """Return a value as HTML."""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < _LONG else f"{value:.4g}"  # noqa: PLR2004 - four digits
    return html.escape("-" if value is None else str(value))


def table(columns: Sequence[str], rows: Iterable[Cells], *, left: int = 1, colour: int | None = None) -> str:
    """Return a table; the first columns are text, others numbers. ``colour``: a column with a status."""
    listed = list(rows)
    numbers = [i for i in range(left, len(columns)) if any(isinstance(row[i], int | float) for row in listed)]
    head = "".join(f"<th{' class=n' if i in numbers else ''}>{html.escape(x)}</th>" for i, x in enumerate(columns))
    body = []
    for row in listed:
        cells = []
        for i, value in enumerate(row):
            kinds = ["n"] if i in numbers and not isinstance(value, str) else []
            if i == colour:
                kinds.append("bad" if value in BAD else "good" if value in _GOOD else "grey")
            cells.append(f'<td class="{" ".join(kinds)}">{text(value)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"


def bars(title: str, rows: Sequence[tuple[str, str, float]], unit: str) -> str:
    """Return horizontal bars from 0: (label, by, value); those of pysm120 are darker."""
    if not rows:
        return ""
    most = max(value for *_, value in rows) or 1.0
    left = max(_LEFT, 12 + _LETTER * max(len(label) for label, *_ in rows))
    parts = []
    for n, (label, by, value) in enumerate(rows):
        y, width = n * (_BAR + 4), _WIDTH * value / most
        colour = _OURS if by.startswith("pysm120") else _OTHERS
        parts.append(
            f'<text x="{left - 6}" y="{y + 13}" text-anchor="end">{html.escape(label)}</text>'
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
            f'<text x="{left + width + 5:.1f}" y="{y + 13}">{value:.4g}</text>'
        )
    height = len(rows) * (_BAR + 4)
    return (
        f"<h4>{html.escape(title)}, {html.escape(unit)}</h4>"
        f'<svg width="{left + _WIDTH + 70}" height="{height}" role="img">{"".join(parts)}</svg>'
    )


def scatter(points: Sequence[tuple[str, float, float]]) -> str:
    """Return predicted over measured clocks, both logarithmic, with the diagonal."""
    found = [(name, math.log10(x), math.log10(y)) for name, x, y in points if x > 0 and y > 0]
    if not found:
        return ""
    least = math.floor(min(min(x, y) for _, x, y in found))
    most = math.ceil(max(max(x, y) for _, x, y in found) + 1e-9)
    size, margin = 420, 60

    def at(value: float) -> float:
        return size * (value - least) / (most - least)

    parts = [f'<line x1="{margin}" y1="{size}" x2="{margin + size}" y2="0" stroke="#999"/>']
    for power in range(least, most + 1):
        x, label = margin + at(power), f"10<tspan dy='-5' font-size='9'>{power}</tspan>"
        parts.append(f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{size}" stroke="#eee"/>')
        y = size - at(power)
        parts.append(f'<line x1="{margin}" y1="{y:.1f}" x2="{margin + size}" y2="{y:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{size + 18}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{margin - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    parts += [
        f'<circle cx="{margin + at(x):.1f}" cy="{size - at(y):.1f}" r="3.5" fill="{_OURS}" fill-opacity=".6">'
        f"<title>{html.escape(name)}</title></circle>"
        for name, x, y in found
    ]
    parts.append(f'<text x="{margin + size / 2}" y="{size + 38}" text-anchor="middle">measured clocks</text>')
    parts.append(f'<text transform="translate(14,{size / 2}) rotate(-90)" text-anchor="middle">predicted clocks</text>')
    width, height, top = size + margin + 20, size + 60, 12  # half a line of text above the axis
    box = f'width="{width}" height="{height}" viewBox="0 {-top} {width} {height}"'
    return f'<svg {box} role="img">{"".join(parts)}</svg>'


def _checks(name: str, one: dict[str, Any]) -> str:
    """Return the details of a check."""
    columns = ["problem", "status", "error", "bound", "what is wrong"]
    keys = ["name", "status", "error", "bound", "message"]
    if any("from_virtual" in row for row in one["rows"]):
        columns += ["from the virtual device", "equal bytes"]
        keys += ["from_virtual", "equal_bytes"]
    rows = [[row.get(key) for key in keys] for row in one["rows"]]
    log = f"<pre>{html.escape(one['log'])}</pre>" if one.get("log") else ""
    opened = " open" if one["status"] in BAD else ""
    return (
        f"<details{opened}><summary>{html.escape(name)}: {one['status']}</summary>"
        f"{table(columns, rows, colour=1)}{log}</details>"
    )


def _speeds(tasks: dict[str, dict[str, Any]]) -> str:
    """Return tables and bars of all speeds."""
    parts = []
    for name, one in tasks.items():
        rows = [row for row in one["rows"] if row.get("status") == "measured"]
        parts.append(f"<h3>{html.escape(name)}</h3><p>{html.escape(one['message'])}</p>")
        for case in dict.fromkeys(row["case"] for row in rows):
            here = [row for row in rows if row["case"] == case]
            if len(here) > 1:
                parts.append(bars(case, [(row["by"], row["by"], row["value"]) for row in here], here[0]["unit"]))
        columns = ("case", "by", "value", "unit", "least", "greatest", "us", "MHz", "note")
        keys = ("case", "by", "value", "unit", "least", "greatest", "us", "mhz", "message")
        if one["rows"]:
            parts.append(table(columns, ([row.get(key) for key in keys] for row in one["rows"]), left=2))
    return "".join(parts)


def _microbench(tasks: dict[str, dict[str, Any]]) -> str:
    """Return the table of single instructions."""
    rows = [row for one in tasks.values() for row in one["rows"]]
    said = "".join(f"<p>{html.escape(x)}</p>" for x in dict.fromkeys(one["message"] for one in tasks.values()) if x)

    def median(row: dict[str, Any], key: str) -> Any:
        return (row.get(key) or {}).get("median")

    columns = ("form", "status", "latency, clocks", "per SM and clock", "unit", "per second", "MHz", "note")
    cells = [
        [row["name"], row["status"], median(row, "latency"), median(row, "per_clock"), row["unit"],
         median(row, "per_second"), median(row, "megahertz"), row["message"]]
        for row in rows
    ]  # fmt: skip
    if not rows:
        return said
    return f"{said}<details><summary>{len(rows)} forms</summary>{table(columns, cells, colour=1)}</details>"


def _model(tasks: dict[str, dict[str, Any]]) -> str:
    """Return predictions beside measurements."""
    parts = []
    for name, one in tasks.items():
        rows = [row for row in one["rows"] if "predicted" in row]
        parts.append(f"<h3>{html.escape(name)}</h3><p>{html.escape(one['message'])}</p>")
        if rows:
            errors = sorted(abs(row["error"]) for row in rows)
            middle, worst = errors[len(errors) // 2], errors[-1]
            parts.append(f"<p>{len(rows)} comparisons: median error {middle:.1%}, largest {worst:.1%}.</p>")
            parts.append(scatter([(row["name"], row["clocks"], row["predicted"]) for row in rows]))
            cells = ([row["name"], row["predicted"], row["clocks"], f"{row['error']:+.1%}"] for row in rows)
            parts.append(table(("what", "predicted clocks", "measured clocks", "error"), cells))
    return "".join(parts)


def page(document: dict[str, Any]) -> str:
    """Return the page of a report."""
    sections: dict[str, dict[str, dict[str, Any]]] = {}
    for name, one in document["tasks"].items():
        sections.setdefault(one["section"], {})[name] = one
    system = next(iter(sections.get("system", {}).values()), {"rows": [{"name": "device", "value": "unknown"}]})
    chip = system["rows"][0].get("chip", "unknown device")
    notes = [document["date"], f"seed {document['seed']}"]
    notes += ["quick"] if document["quick"] else []
    notes += [] if document.get("complete") else ["not complete: --resume continues it"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>pysm120 on {html.escape(chip)}</title><style>{_STYLE}</style>",
        f"<h1>pysm120 {html.escape(document['version'])} on {html.escape(chip)}</h1>",
        f"<p>{html.escape(', '.join(notes))}</p>",
        "<h2>Summary</h2>",
        table(
            ("task", "status", "seconds", "message"),
            ([name, one["status"], one.get("seconds"), one["message"]] for name, one in document["tasks"].items()),
            colour=1,
        ),
        "<h2>System</h2>",
        table(("what", "value"), ([row["name"], str(row["value"])] for row in system["rows"]), left=2),
    ]
    if "checks" in sections:
        parts.append("<h2>Are the kernels right?</h2><p>Relative errors against float64 NumPy (Frobenius norm); with")
        parts.append(" bound 0 every byte must be equal. On a GPU each result is also beside the virtual device's.</p>")
        parts += [_checks(name, one) for name, one in sections["checks"].items()]
    for title, name, show in (
        ("How fast are they?", "speed", _speeds),
        ("Single instructions", "microbench", _microbench),
        ("What did the timing model predict?", "model", _model),
    ):
        if name in sections:
            parts.append(f"<h2>{title}</h2>{show(sections[name])}")
    return "".join(parts) + "</html>\n"
