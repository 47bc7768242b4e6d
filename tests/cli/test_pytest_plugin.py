"""The pytest plugin, in test suites of its own: options, seeds, markers, and how faults are shown."""

from pathlib import Path

import pytest
from programs import HEAD

pytestmark = pytest.mark.virtual

ROOT = Path(__file__).resolve().parents[2]
LOADED = ("-p", "pytest_pysm120")  # where it is installed pytest has found it already

IMPORTS = "from pathlib import Path\nimport numpy as np\nimport pytest\n"

# All warps store their number; nothing orders them, so the last one stays.
LAST = (
    HEAD
    + """.visible .entry last(.param .u64 out) {
    .reg .b64 x; .reg .b32 i;
    ld.param.u64 x, [out];
    mov.u32 i, %tid.x;
    shr.u32 i, i, 5;
    st.relaxed.gpu.global.u32 [x], i;
    ret;
}
"""
)
RACE = (
    HEAD
    + """.visible .entry race() {
    .shared .align 4 .b32 s[4];
    .reg .b32 a;
    mov.u32 a, %tid.x;
    shr.u32 a, a, 5;
    st.shared.u32 [s + 4], a;
    bar.sync 0;
    ld.shared.u32 a, [s + 4];
    ret;
}
"""
)


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Make a folder whose tests use the plugin."""
    for name in ("PYSM120_SEED", "PYSM120_CHECKS", "PYSM120_DEVICE", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makefile(".ptx", last=LAST, race=RACE)
    return pytester


def run(suite: pytest.Pytester, test: str, *options: str, head: str = IMPORTS) -> pytest.RunResult:
    """Run a suite of one file; in a process of its own where it imports nothing."""
    suite.makepyfile(test_own=head + test)
    start = suite.runpytest_inprocess if head else suite.runpytest_subprocess
    return start(*LOADED, "-p", "no:cacheprovider", "-rA", "--strict-markers", *options)


def test_a_device_for_each_test(suite: pytest.Pytester) -> None:
    result = run(
        suite,
        """
held = []
def test_one(sm120):
    x = sm120.array(np.arange(4))
    assert sm120.is_virtual and x.numpy().sum() == 6
    held.append(sm120)
def test_two(sm120):
    assert held[0].closed and not sm120.closed
""",
    )
    result.assert_outcomes(passed=2)
    assert "sm120:" not in result.stdout.str()


def test_seeds_by_option_and_by_marker(suite: pytest.Pytester) -> None:
    test = """
import collections
found = collections.Counter()
def test_plain(sm120):
    pass
@pytest.mark.sm120(seeds=3)
@pytest.mark.parametrize("n", [1, 2])
def test_marked(sm120, n):
    pass
def test_without():
    pass
def test_last(sm120):
    x = sm120.zeros(1, np.uint32)
    sm120.load(Path("last.ptx"))["last"](1, 256, x)
    print("LAST", x.numpy()[0])
"""
    result = run(suite, test)
    result.assert_outcomes(passed=1 + 6 + 1 + 1)
    result = run(suite, test, "--sm120-seeds", "16", "--sm120-checks", "full")
    result.assert_outcomes(passed=16 + 32 + 1 + 16)
    result.stdout.fnmatch_lines(["sm120: --sm120-checks full --sm120-seeds 16", "*test_plain?seed15?*"])
    values = {line for line in result.stdout.lines if line.startswith("LAST")}
    assert len(values) > 1  # the seeds are another order each
    again = run(suite, test, "--sm120-seeds", "16", "--sm120-checks", "full")
    lasts = [[line for line in r.stdout.lines if line.startswith("LAST")] for r in (result, again)]
    assert lasts[0] == lasts[1]


def test_levels(suite: pytest.Pytester) -> None:
    test = """
def test_it(sm120):
    sm120.load(Path("race.ptx"))["race"](1, 64)
@pytest.mark.sm120(checks="off")
def test_off(sm120):
    sm120.load(Path("race.ptx"))["race"](1, 64)
"""
    run(suite, test).assert_outcomes(failed=1, passed=1)
    run(suite, test, "--sm120-checks", "off").assert_outcomes(passed=2)
    run(suite, test, "--sm120-checks", "default").assert_outcomes(failed=2)


def test_a_fault_in_a_few_lines(suite: pytest.Pytester) -> None:
    test = """
def launch(device):
    device.load(Path("race.ptx"))["race"](1, 64)
def test_it(sm120):
    launch(sm120)
"""
    result = run(suite, test)
    result.assert_outcomes(failed=1)
    line = 1 + next(k for k, text in enumerate(RACE.strip().splitlines()) if "st.shared" in text)
    result.stdout.fnmatch_lines(
        [
            f"E   race at race.ptx:{line}: data race: write of 4 bytes at shared address 0x404 and *",
            f"   *{line - 2}     mov.u32 a, %tid.x;",
            f">  *{line}     st.shared.u32 [[]s + 4], a;",
            f"   *{line + 1}     bar.sync 0;",
            "test_own.py:*: in launch",
            '    device.load(Path("race.ptx"))[[]"race"](1, 64)',
            f"FAILED test_own.py::test_it - race at race.ptx:{line}: data race*",
        ]
    )
    shown = result.stdout.str()
    assert "check_running" not in shown
    assert "the driver answered" not in shown
    between = shown[shown.index("E   race") : shown.index("test_own.py:")]
    assert len(between.splitlines()) < 12
    long = run(suite, test, "--tb=long").stdout.str()
    assert "check_running" in long


def test_a_fault_of_a_template_and_of_two_places(suite: pytest.Pytester) -> None:
    text = RACE.replace("    st.shared", '#line 70 "some folder/part.ptx"\n    st.shared', 1)
    suite.makefile(".ptx", part=text.replace("bar.sync 0;", "mov.u32 a, a;"))
    result = run(suite, 'def test_it(sm120):\n    sm120.load(Path("part.ptx"))["race"](1, 64)\n')
    shown = [line for line in result.stdout.lines if line.startswith(">")]
    assert "some folder/part.ptx:7" in result.stdout.str()
    assert shown
    assert all("shared.u32" in line for line in shown)


def test_a_fault_of_another_source(suite: pytest.Pytester) -> None:
    """The excerpt shows the line of the PTX, which is not that of the source."""
    head = ".version 8.8\n.target sm_120f\n.entry k(.param .u64 p) {\n.reg .b64 a; .reg .b32 x;\n"
    text = head + '.loc 1 2 1\nld.param.u64 a, [p];\nst.global.b32 [a + 400], x;\nret; }\n.file 1 "/src/kernel.cu"\n'
    suite.path.joinpath("k.ptx").write_text(text)
    result = run(suite, 'def test_it(sm120):\n    sm120.load(Path("k.ptx"))["k"](1, 1, sm120.zeros(4))\n')
    result.stdout.fnmatch_lines(["E   k at /src/kernel.cu:2 (PTX line 7): *", "> *7 st.global.b32 [[]a + 400], x;"])
    assert not any(line.startswith(">") and " 2 " in line for line in result.outlines)


def test_ptx_that_does_not_load(suite: pytest.Pytester) -> None:
    result = run(
        suite, 'def test_it(sm120):\n    sm120.load(".version 8.8\\n.target sm_120f\\nfoo;\\n", name="x.ptx")\n'
    )
    result.stdout.fnmatch_lines(
        ["E   x.ptx:3:1: error: *", "foo;", "^", "test_own.py:5: in test_it", "FAILED * - x.ptx:3:1: error: *"]
    )
    assert "_ffi.py" not in result.stdout.str()


def test_other_failures_are_as_ever(suite: pytest.Pytester) -> None:
    test = """
def test_assert(sm120):
    assert sm120.zeros(3).numpy().sum() == 1
def test_raises(sm120):
    with pytest.raises(RuntimeError, match="data race"):
        sm120.load(Path("race.ptx"))["race"](1, 64)
@pytest.mark.xfail
def test_expected(sm120):
    sm120.load(Path("race.ptx"))["race"](1, 64)
@pytest.fixture
def broken(sm120):
    sm120.load(Path("race.ptx"))["race"](1, 64)
def test_setup(broken):
    pass
"""
    result = run(suite, test)
    result.assert_outcomes(passed=1, failed=1, xfailed=1, errors=1)
    result.stdout.fnmatch_lines(["E   race at race.ptx:*", "test_own.py:*: in broken", "*assert * == 1"])


def test_gpu_marker(suite: pytest.Pytester) -> None:
    result = run(suite, "@pytest.mark.sm120_gpu\ndef test_it(sm120):\n    assert 0\n")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs a GPU, but the device is 'virtual': use --sm120-device cuda*"])


def test_what_is_wrong_is_said(suite: pytest.Pytester) -> None:
    for options, part in (
        (["--sm120-seeds", "0"], "--sm120-seeds is 0, not a number from 1 to"),
        (["--sm120-seeds", "x"], "invalid int value: 'x'"),
        (["--sm120-checks", "much"], "invalid choice: 'much'"),
    ):
        result = run(suite, "def test_it(sm120):\n    pass\n", *options)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert part in result.stderr.str()
    result = run(suite, "def test_it(sm120):\n    pass\n", "--sm120-device", "virtual:99")
    result.assert_outcomes(errors=1)
    assert 'the last virtual device is "virtual:0"' in result.stdout.str()
    for marker in ("seeds=0", "seeds='3'", "3", "seed=3"):
        result = run(suite, f"@pytest.mark.sm120({marker})\ndef test_it(sm120):\n    pass\n")
        assert result.ret != 0
        assert "the marker sm120" in result.stdout.str() + result.stderr.str()


def test_a_suite_without_the_fixture_does_not_import_pysm120(suite: pytest.Pytester) -> None:
    result = run(suite, "import sys\ndef test_it():\n    assert 'pysm120' not in sys.modules\n", head="")
    result.assert_outcomes(passed=1)
