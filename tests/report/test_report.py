"""report: what becomes of tasks that fail, of an interrupt and of a reboot, and the page."""

import html.parser
import json
import re
from pathlib import Path

import pytest

from pysm120 import __main__
from pysm120.cli import report as command
from pysm120.report import parent
from pysm120.report.page import bars, page, scatter, table
from pysm120.report.tasks import SYSTEM, Task, tasks
from pysm120.runtime.errors import InvalidArgumentError

HERE = Path(__file__).parent
LIMIT = 3.0  # of tasks that never end: longer than a child takes to begin
GOOD = Task("good", "checks", "planted:stores")
PLANTED = (
    (Task("host hangs", "checks", "planted:hangs", limit=LIMIT), "hung", "no end in 3 s, after 'first'"),
    (Task("kernel hangs", "checks", "planted:stores", {"rounds": 1}, LIMIT), "hung", "no end in 3 s, after 'first'"),
    (Task("dies", "checks", "planted:dies"), "crashed", "signal SIGSEGV, after 'first'"),
    (Task("exits", "checks", "planted:exits"), "crashed", "its process ended with status 3"),
    (Task("faults", "checks", "planted:stores", {"at": 1 << 29}), "fault", "after 'first'"),
    (Task("wrong", "checks", "planted:stores", {"wanted": 2.0}), "wrong", "1 of 2: stored: relative error 50.00%"),
    (Task("guard", "checks", "planted:stores", {"at": 5}), "wrong", "wrote 4 bytes outside the output, the first 4"),
    (Task("raises", "checks", "planted:raises"), "error", "KeyError: 'no "),
    (Task("missing", "checks", "planted:nothing"), "error", "has no attribute 'nothing' (child.py:"),
)


@pytest.fixture(autouse=True)
def found_by_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=":")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("task", "status", "message"), [pytest.param(*one, id=one[0].name.replace(" ", "_")) for one in PLANTED]
)
def test_a_failure_is_reported_as_what_it_is(device_name: str, task: Task, status: str, message: str) -> None:
    found = parent.run_task(task, device_name, seed=1)
    assert (found["status"], message in found["message"]) == (status, True), found


def test_the_rest_goes_on(
    device_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [PLANTED[2][0], GOOD, PLANTED[5][0], Task("timed", "speed", "planted:raises", on_gpu=True)]
    monkeypatch.setattr(command, "tasks", lambda *, quick: chosen if quick else [])
    assert __main__.main(["report", "--quick", "--out", str(tmp_path / "r"), "--device", device_name]) == 1
    document = json.loads((tmp_path / "r" / "report.json").read_text())
    is_virtual = device_name.startswith("virtual")
    statuses = {name: one["status"] for name, one in document["tasks"].items()}
    last = "skipped" if is_virtual else "error"
    assert statuses == {"system": "measured", "dies": "crashed", "good": "right", "wrong": "wrong", "timed": last}
    assert document["complete"]
    shown = capsys.readouterr().out
    assert "What failed" in shown
    assert ("measures no time" in shown) == is_virtual
    text = (tmp_path / "r" / "report.html").read_text()
    for word in ("crashed", "SIGSEGV", "relative error 50.00%"):
        assert word in text


def test_interrupt_and_resume(
    device_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [Task(f"good {n}", "checks", "planted:stores") for n in range(3)]
    monkeypatch.setattr(command, "tasks", lambda *, quick: others)  # noqa: ARG005 - the command names it
    words = ["report", "--out", str(tmp_path), "--device", device_name]
    real, begun = parent.run_task, []

    def run_task(task: Task, device: str | None, seed: int) -> dict[str, object]:
        begun.append(task.name)
        if begun == ["system", "good 0", "good 1"]:
            raise KeyboardInterrupt
        return real(task, device, seed)

    monkeypatch.setattr(parent, "run_task", run_task)
    assert __main__.main(words) == 130
    assert "--resume" in capsys.readouterr().out
    assert list(json.loads((tmp_path / "report.json").read_text())["tasks"]) == ["system", "good 0"]
    assert "not complete" in (tmp_path / "report.html").read_text()
    assert __main__.main(words) == 2  # it must not replace what is there
    assert "give --resume" in capsys.readouterr().err
    assert __main__.main([*words, "--resume"]) == 0
    assert begun == ["system", "good 0", "good 1", "good 1", "good 2"]


def test_a_task_during_which_the_machine_stopped_is_not_run_again(tmp_path: Path) -> None:
    report = parent.begin(tmp_path, quick=True, resume=False, seed=5)
    report.tasks["good"] = {"section": "checks", "status": "running", "message": "", "rows": []}
    report.save()
    again = parent.begin(tmp_path, quick=True, resume=True, seed=6)
    assert again.document["seed"] == 5
    assert again.bad == {"good": "lost"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "--out", "{folder}"], "where there is no report.json to resume"),
        (["--out", "{file}"], "which is not a folder"),
        (["--out", "{file}/new"], "file/new', where no files can be written: Not a directory"),
        (["--out", "{folder}/new", "--seed", "-1"], "--seed is -1; it must be at least 0"),
        (["--out", "{folder}", "--resume", "--seed", "1"], "leave out --seed"),
        (["--out", "{folder}/new", "--device", "cuda:77"], "77"),
        (["--out", "{damaged}", "--resume"], "is not a report"),
    ],
)
def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    places = {"folder": tmp_path / "empty", "file": tmp_path / "file", "damaged": tmp_path / "damaged"}
    places["folder"].mkdir()
    places["damaged"].mkdir()
    places["file"].write_text("")
    (places["damaged"] / "report.json").write_text('{"kind": "pysm120')
    assert __main__.main(["report", *(word.format(**places) for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_a_report_of_another_device_is_not_continued(tmp_path: Path) -> None:
    report = parent.begin(tmp_path, quick=True, resume=False, seed=5)
    row = {"name": "device", "value": "virtual:0", "virtual": True, "chip": "virtual SM120"}
    report.tasks[SYSTEM.name] = {"section": "system", "status": "measured", "message": "", "rows": [row]}
    with pytest.raises(InvalidArgumentError, match=r"'cuda', but the report in .* is about virtual:0"):
        parent.run(report, [], "cuda", lambda _: None)


class Tags(html.parser.HTMLParser):
    """Collects open tags, and attributes that would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "rect", "line", "circle"} or tag == "circle":
            self.open.append(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "data", "action"}]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone() -> None:
    measured = {"section": "speed", "status": "measured", "message": "", "seconds": 1.5}
    row = {"case": "<4 x 2048>", "status": "measured", "unit": "TFLOP/s", "least": 1.0, "greatest": 3.0, "us": 7.0}
    rows = [{**row, "name": by, "by": by, "value": value} for by, value in (("pysm120 bf16", 2.5), ("torch", 1.25))]
    loop = {"name": "chain_fma, 1 warps", "clocks": 71.0, "predicted": 80.0, "error": 0.1268}
    document = {
        "version": "0", "date": "today", "seed": 3, "quick": False, "complete": True,
        "tasks": {
            "system": {**measured, "section": "system", "rows": [{"name": "device", "value": "x", "chip": "A & B"}]},
            "attention": {**measured, "rows": rows},
            "loops": {**measured, "section": "model", "rows": [loop]},
            "odd": {**measured, "section": "checks", "status": "crashed", "rows": [], "log": "<script>"},
        },
    }  # fmt: skip
    text = page(document)
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    assert tags.loads == []
    assert "<script>" not in text
    assert "A &amp; B" in text
    assert "+12.7%" in text
    widths = [float(part.split('"')[0]) for part in text.split("<rect ")[1:] for part in [part.split('width="')[1]]]
    assert widths[0] == pytest.approx(2 * widths[1])  # bars begin at 0


def test_a_section_of_skipped_tasks_says_why() -> None:
    skipped = {"status": "skipped", "message": "no <time>", "rows": []}
    tasks_of = {f"{name} of it": {**skipped, "section": name} for name in ("speed", "microbench", "model")}
    text = page({"version": "0", "date": "today", "seed": 3, "quick": True, "tasks": tasks_of})
    for title in ("How fast are they?", "Single instructions", "What did the timing model predict?"):
        _, _, body = text.partition(f"<h2>{title}</h2>")
        assert "<p>no &lt;time&gt;</p>" in body.partition("<h2>")[0]


def test_labels_are_inside_of_pictures() -> None:
    """An average letter of 12 pixels is less than 7 wide."""
    long = "torch scaled_dot_product_attention, FLASH_ATTENTION, out of place"
    text = bars("case", [(long, "torch", 2.0), ("short", "pysm120", 1.0)], "TFLOP/s")
    ends = [float(x) for x in re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="end"', text)]
    assert len(ends) == 2
    assert min(ends) >= 7 * len(long)
    (width,) = re.findall(r'<svg width="(\d+)"', text)
    rights = [float(x) + float(w) for x, w in re.findall(r'<rect x="(\d+)" y="\d+" width="([\d.]+)"', text)]
    assert max(rights) + 5 + 7 * len("2.000") <= int(width)
    text = scatter([("a", 10.0, 12.0), ("b", 900.0, 1000.0)])
    ((top, height),) = re.findall(r'viewBox="0 (-\d+) \d+ (\d+)"', text)
    lines = [float(y) for y in re.findall(r'<text x="[\d.]+" y="(-?[\d.]+)"', text)]
    assert min(lines) - 12 >= int(top)
    assert max(lines) + 4 <= int(top) + int(height)


def test_numbers_are_short() -> None:
    row = [0.00012345, 12345.6, 3e13, 99.125]
    assert re.findall(r"<td[^>]*>([^<]*)", table("abcd", [row], left=0)) == ["0.0001234", "12,346", "3e+13", "99.12"]


def test_only_columns_of_numbers_are_on_the_right() -> None:
    text = table(("a", "b", "c"), [["x", None, "long"], ["y", 2.5, "longer"]])
    assert text.count("<th class=n>") == 1
    assert "<th class=n>b</th>" in text
    assert '<td class="n">2.5</td><td class="">longer</td>' in text


def test_names_of_tasks_differ() -> None:
    for quick in (True, False):
        names = [task.name for task in tasks(quick=quick)]
        assert len(set(names)) == len(names)
