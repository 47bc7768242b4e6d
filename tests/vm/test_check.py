"""``check``: kernels that depend on the order of events are found, with who wrote what; others pass."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from broken.planted import text
from processes import wait_until_it_runs
from programs import HEAD, SAXPY

import pysm120
from pysm120 import __main__
from pysm120.cli import check as check_module
from pysm120.observe import program as program_module
from pysm120.runtime.errors import FaultError

pytestmark = pytest.mark.virtual

LAUNCH = ["--grid", "3", "--block", "64"]

# The last warp to come stores its number: legal, and it depends on the order.
LAST = text("shr.u32 b, i, 5;\nst.relaxed.gpu.global.u32 [x + 8], b;")
# A sum whose rounding depends on the order.
SUM = (
    text(
        """
    mad.lo.u32 a, n, 64, i;
    cvt.rn.f32.u32 e, a;
    mul.f32 e, e, 0f3F8147AE;
    red.global.add.f32 [x], e;
"""
    )
    .replace(".reg .b16 h;", ".reg .b16 h;\n.reg .f32 e;")
    .replace("d, e, f, i,", "d, f, i,")
)
TAKEN = text("atom.global.add.u32 a, [x], 1;\nmad.wide.u32 y, a, 4, x;\nst.global.u32 [y + 4], i;")
RACE = text("@q  st.shared.b32 [at], a;\n@p  ld.shared.b32 b, [at];")


def check(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[int, str, list[str]]:
    """Run the command: exit status, the summary, and what it said without the progress."""
    status = __main__.main(["check", str(path), *words])
    shown = capsys.readouterr()
    said = [line for line in shown.err.splitlines() if not line.startswith("[")]
    return status, shown.out.strip(), said


@pytest.fixture
def ptx(tmp_path: Path) -> Path:
    return tmp_path / "k.ptx"


def test_the_same_for_all(ptx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ptx.write_text(SAXPY)
    words = ["--kernel", "saxpy", *LAUNCH, "f32[150]:normal", "f32[150]:nan", "f32:2", "u32:150"]
    status, summary, said = check(capsys, ptx, *words, "--seeds", "5", "--seed", "7")
    assert (status, said) == (0, [])
    assert summary == "saxpy, seeds 7 to 11, level full: no fault, and 2 arrays the same for all, bit for bit"
    assert __main__.main(["check", str(ptx), *words, "--seeds", "3", "--checks", "off"]) == 0
    assert capsys.readouterr().err == ""


def test_an_order_that_decides(ptx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ptx.write_text(LAST)
    status, summary, said = check(capsys, ptx, *LAUNCH, "u32[2,3]:zeros", "--seeds", "64")
    assert status == 1
    found = re.fullmatch(r"k, seeds 0 to 63, level full: seeds 0 and (\d+) differ", summary)
    assert found
    value = re.match(
        rf"pysm120: argument 0 param_x\[0,2\] \(u32\[2,3\]\) is ([01]) for seed 0 and ([01]) for seed {found[1]}; "
        "1 of its 6 elements differ",
        said[0],
    )
    assert value
    for line, seed, warp in ((said[1], 0, value[1]), (said[2], found[1], value[2])):
        store = r"`st\.relaxed\.gpu\.global\.u32 \[x \+ 8\], b` at broken\.ptx:2"
        assert re.fullmatch(rf"  seed {seed}: written by {store} \(CTA \d,0,0, warp {warp}, lane \d+\)", line)
    assert len(said) == 3
    # the two seeds, run alone, give these values
    for seed, wanted in ((0, value[1]), (int(found[1]), value[2])):
        with pysm120.Device(f"virtual?checks=full&seed={seed}") as device:
            x = device.zeros(6, np.uint32)
            device.load(LAST)["k"](3, 64, x)
            assert x.numpy()[2] == int(wanted)


def test_sums_by_atomics(ptx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ptx.write_text(SUM)
    words = [*LAUNCH, "f32[1]:zeros", "--seeds", "32"]
    status, summary, said = check(capsys, ptx, *words)
    assert status == 1
    assert "differ" in summary
    assert "`red.global.add.f32 [x], e` at broken.ptx:4" in said[1]
    assert "An atomic operation wrote it" in said[3]
    assert "--tolerance" in said[3]
    status, summary, said = check(capsys, ptx, *words, "--tolerance", "1e-5")
    assert (status, said) == (0, [])
    assert summary.endswith("1 array the same for all within 1e-05")
    status, _, _ = check(capsys, ptx, *words, "--tolerance", "1e-12")
    assert status == 1


def test_variables_of_the_module(ptx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are compared as arrays are; addresses in them, which differ from device to device, are nobody's result."""
    variables = ".global .align 4 .u32 last[3];\n.global .align 8 .u64 place = last;\n.const .u32 five = 5;\n"
    program = text("mov.u32 b, {};\nst.relaxed.gpu.global.u32 [last + 8], b;").replace(
        ".visible .entry", variables + ".visible .entry", 1
    )
    ptx.write_text(program.replace("{}", "5"))
    status, summary, said = check(capsys, ptx, *LAUNCH, "u32[6]:zeros", "--seeds", "8")
    assert (status, said) == (0, [])
    assert summary.endswith("no fault, and 1 array and 1 variable the same for all, bit for bit")
    ptx.write_text(program.replace("{}", "warp"))
    status, summary, said = check(capsys, ptx, *LAUNCH, "u32[6]:zeros", "--seeds", "64")
    assert status == 1
    assert "differ" in summary
    assert re.match(
        r"pysm120: variable last\[2\] \(u32\[3\]\) is [01] for seed 0 and [01] for seed \d+; 1 of its 3 elements",
        said[0],
    )
    assert "written by `st.relaxed.gpu.global.u32 [last + 8], b` at broken.ptx:2" in said[1]


def test_what_depends_on_atomics(ptx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ptx.write_text(TAKEN)
    status, _, said = check(capsys, ptx, *LAUNCH, "u32[193]:zeros", "--seeds", "32", "--tolerance", "0.5")
    assert status == 1  # no tolerance for integers
    assert "`st.global.u32 [y + 4], i`" in said[1]
    assert "The kernel also uses atomics" in said[3]


def test_faults(ptx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ptx.write_text(RACE)
    status, summary, said = check(capsys, ptx, *LAUNCH, "u32[1]", "--seed", "5")
    assert status == 1
    assert summary == "k, seeds 5 to 20, level full: seed 5 faults"
    assert len(said) == 1
    assert "data race" in said[0]
    assert "broken.ptx:" in said[0]
    status, _, _ = check(capsys, ptx, *LAUNCH, "u32[1]", "--checks", "off")
    assert status == 0


def test_an_asynchronous_copy_is_named(ptx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each warp copies its number by a bulk store: the last one to land stays."""
    ptx.write_text(
        text(
            """
    mad.lo.u32 at, warp, 16, 0;
    mov.u32 b, smem;
    add.u32 at, at, b;
    setp.ne.u32 s, lane, 0;
@s  bra done;
    st.shared.u32 [at], warp;
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [x], [at], 16;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
done:
"""
        )
    )
    status, _, said = check(capsys, ptx, "--grid", "1", "--block", "64", "u32[4]:zeros", "--seeds", "64")
    assert status == 1
    copy = r"`cp\.async\.bulk\.global\.shared::cta\.bulk_group \[x\], \[at\], 16` at broken\.ptx:8"
    for line in said[1:3]:
        assert re.search(rf"written by {copy} \(CTA 0,0,0, warp [01]\), when it landed$", line)


def test_refused(ptx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ptx.write_text(SUM)
    for words, part in (
        (["--seeds", "1"], "--seeds is '1', not a number of at least 2"),
        (["--seeds", "x"], "--seeds is 'x'"),
        (["--seed", str((1 << 64) - 1)], "--seeds"),
        (["--tolerance", "1"], "--tolerance is '1', not a number from 0 to 1"),
        (["--tolerance", "nan"], "--tolerance is 'nan'"),
        (["--checks", "much"], "much"),
        (["--kernel", "other"], "has no entry 'other'"),
        (["--device", "cuda"], "only the virtual device supports it"),
        (["u32:3"], "is too many"),
    ):
        status, summary, said = check(capsys, ptx, *LAUNCH, "f32[1]:zeros", *words)
        assert (status, summary, len(said)) == (2, "", 1)
        assert part in said[0]
    status, _, said = check(capsys, ptx.parent / "none.ptx", *LAUNCH, "f32[1]:zeros")
    assert status == 2
    assert "neither a file nor a kernel" in said[0]
    ptx.write_text("nonsense")
    status, _, said = check(capsys, ptx, *LAUNCH, "f32[1]:zeros")
    assert status == 2
    assert "k.ptx:1:1: error: a module must begin with .version" in said[0]


@pytest.mark.usefixtures("control_c")
def test_ctrl_c(ptx: Path) -> None:
    ptx.write_text(HEAD + ".visible .entry k() {\n.reg .b32 a;\nagain:\nadd.u32 a, a, 1;\nbra again;\n}\n")
    with subprocess.Popen(
        [sys.executable, "-m", "pysm120", "check", str(ptx), "--grid", "1", "--block", "32"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until_it_runs(process)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.strip().endswith("pysm120: interrupted")
    assert time.monotonic() - began < 30


def test_differences(rng: np.random.Generator) -> None:
    """What differs is what a plain comparison of all bits says; the tolerance is relative to the greater number."""
    for dtype in (np.uint8, np.int16, np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        a = rng.integers(0, 256, 64 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
        b = a.copy()
        where = np.sort(rng.choice(64, 5, replace=False))
        raw = b.view(np.uint8).reshape(64, -1)
        raw[where, -1] ^= 1
        assert check_module.differing(a, b, 0).tolist() == where.tolist()
    x = np.array([1.0, -0.0, np.nan, np.inf, 100.0, 1.0, np.inf], np.float32)
    y = np.array([1.0001, 0.0, -np.nan, np.inf, 100.02, -1.0, 1.0], np.float32)
    assert check_module.differing(x, y, 0).tolist() == [0, 1, 2, 4, 5, 6]
    assert check_module.differing(x, y, 1.5e-4).tolist() == [4, 5, 6]
    assert check_module.differing(x, y, 5e-4).tolist() == [5, 6]
    assert check_module.differing(np.zeros(0), np.zeros(0), 0).size == 0


def test_runs_are_repeatable_and_bounded(ptx: Path) -> None:
    """Seeds come in order, whatever thread was first, and no more are begun than threads."""
    ptx.write_text(LAST)
    arguments = __main__.parser().parse_known_args(["check", str(ptx), *LAUNCH])[0]
    program = program_module.parse(arguments, ["u32[6]:zeros"], device="virtual")
    seen: list[Any] = []
    for _ in range(2):
        runs = check_module.Runs(program, "full")
        found = list(check_module.results(runs, range(20)))
        assert [seed for seed, _ in found] == list(range(20))
        assert not any(isinstance(result, FaultError) for _, result in found)
        seen.append(json.dumps([o.after.tolist() for _, result in found for o in result]))  # type: ignore[union-attr]
    assert seen[0] == seen[1]
