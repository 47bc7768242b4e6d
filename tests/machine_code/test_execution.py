"""The machine code of the library's kernels, run: it must write what their PTX writes, bit for bit.

A CUDA driver made of the virtual SM120 runs each launch twice. Its programs are started as processes, because a process
has one CUDA driver: the launches of every kernel, the tests of the operations, and launches with planted faults.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import machine
import numpy as np
import pytest
from build_tree import ROOT, alone, built
from inside import CC, FLAGS
from test_flow import IN_PLACE

import pysm120
from pysm120.machine_code import sass
from pysm120.machine_code.execute.kernel import as_ptx
from pysm120.machine_code.execute.writer import UnknownInstructionError
from pysm120.runtime.module import builtins

pytestmark = pytest.mark.virtual

HERE = Path(__file__).resolve().parent
SHARE = 5  # without --all, the machine code of each fifth kernel is run
# The tests of operations with launches of their own; those of frameworks, calls and the scheduler add none.
_WITHOUT = re.compile(r"test_(cache_scheduler|call|foreign|generate|jax|operations|oracles|stream|torch|training)")
FILES = [path.name for path in sorted((ROOT / "tests" / "ops").glob("test_*.py")) if not _WITHOUT.match(path.name)]
NO_TESTS = 5  # the status of pytest if a device that is not virtual has none
FEW_TESTS, FEW_FAULTS, MANY_FAULTS = 6, 3, 12
# Of the faults. About three quarters are found; others read an equal value, or change a step of a division that later
# steps correct.
FEWEST_FOUND = 0.5

KERNEL = """.version 8.8
.target sm_120f
.address_size 64
.visible .entry kernel(.param .u64 param_out, .param .u32 param_x)
{
    .reg .b64 out;
    .reg .b32 x, lane;
    ld.param.u64            out, [param_out];
    ld.param.u32            x, [param_x];
    mov.u32                 lane, %tid.x;
    mad.lo.u32              x, x, lane, 3;
    mad.wide.u32            out, lane, 4, out;
    st.global.u32           [out], x;
    ret;
}
"""


@pytest.fixture(scope="module")
def is_part(pytestconfig: pytest.Config) -> bool:
    """Whether only a part of the tests and kernels is run, in the default run and in the rest."""
    return bool(pytestconfig.option.part != "all")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile driver.c with the objects of the virtual device."""
    built()
    objects, library = ROOT / "build" / "objects" / "src", tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    parts = [objects / "driver" / f"{name}.o" for name in ("registry", "tensor_map_rules")]
    parts += [*(objects / "platform").glob("*.o"), *(objects / "vm").rglob("*.o")]
    command: list[str | Path] = [
        *CC,
        *FLAGS,
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-I",
        ROOT / "src",
        HERE / "driver.c",
    ]
    subprocess.run([*command, *parts, "-lm", "-ldl", "-o", library], check=True)
    return library


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, *, is_part: bool) -> Path:
    """Write the machine code of the kernels, or of each fifth one, once for all workers of the run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if hasattr(pytestconfig, "workerinput") else own) / "machine_texts"
    first, step = (pytestconfig.option.seed % SHARE, SHARE) if is_part else (0, 1)
    with alone():
        if not folder.exists():
            unfinished = tmp_path_factory.mktemp("texts")
            machine.write_texts(unfinished, sorted(builtin.entry for builtin in builtins())[first::step])
            unfinished.rename(folder)
    return folder


def run(*command: str | Path, allowed: tuple[int, ...] = (0,)) -> str:
    """Run a program of Python that ends with one of these statuses; return what it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), str(ROOT / "tests" / "support")]),
        "PYSM120_PATIENCE": "0",
    }
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in allowed, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def say(config: pytest.Config, *lines: str) -> None:
    """Print in the report of the run."""
    writer = config.get_terminal_writer()
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for line in ("", *lines):
            writer.line(line)


def table(found: list[dict[str, Any]]) -> str:
    """Return the launches of the kernels, by the beginning of their names."""
    families: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        families.setdefault(re.split(r"_(?=(?:mx|nv|any|bf|f\d|fp\d|q\d|\d))", row["entry"])[0], []).append(row)
    lines = [f"{'kernels':40} count launches   bytes changed"]
    for name, members in sorted(families.items()):
        launches, changed = (sum(one[key] for one in members) for key in ("launches", "changed"))
        lines.append(f"{name:40} {len(members):5} {launches:8} {changed:15}")
    return "\n".join(lines)


def test_every_kernel(driver: Path, texts: Path, pytestconfig: pytest.Config) -> None:
    """All that calls launch on an SM120, each at least once, with random numbers."""
    found = rows(run(HERE / "every_kernel.py", driver, texts, str(pytestconfig.option.seed)))
    known = {builtin.entry: builtin for builtin in builtins()}
    never = sorted({path.stem for path in texts.glob("*.ptx")} - {row["entry"] for row in found})
    with pysm120.Device("virtual") as device:
        room = device.info.shared_bytes_per_block
    say(pytestconfig, table(found), *(f"not launched: {entry}, {known[entry].shared_bytes} bytes" for entry in never))
    assert not [entry for entry in never if known[entry].shared_bytes <= room]
    assert not [row["entry"] for row in found if row["changed"] == 0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FILES)
def test_operations(
    driver: Path, texts: Path, tmp_path: Path, name: str, pytestconfig: pytest.Config, *, is_part: bool
) -> None:
    """The tests of an operation, with its machine code."""
    record = tmp_path / "launches"
    some = ["--machine-tests", str(FEW_TESTS)] if is_part else []
    options: list[str | Path] = [
        "--machine-driver",
        driver,
        "--machine-texts",
        texts,
        "--machine-record",
        record,
        *some,
    ]
    options += ["--device", "cuda", "--seed", str(pytestconfig.option.seed), "-p", "machine_plugin"]
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", *options, ROOT / "tests" / "ops" / name, allowed=(0, NO_TESTS))
    found = rows(record.read_text())
    say(pytestconfig, table(found))


def test_planted_faults_are_found(driver: Path, pytestconfig: pytest.Config, *, is_part: bool) -> None:
    """Another register, constant, predicate or half in an instruction that is executed."""
    count = FEW_FAULTS if is_part else MANY_FAULTS
    seed = str(pytestconfig.option.seed)
    found = rows(run(HERE / "plant_faults.py", driver, seed, str(count)))
    missed = [row for row in found if not row["found"]]
    say(pytestconfig, f"{len(found) - len(missed)} of {len(found)} faults were found, not:", *map(json.dumps, missed))
    assert len(found) >= 12 * count
    assert len(missed) <= (1 - FEWEST_FOUND) * len(found), missed


def compiled() -> tuple[sass.Function, bytes]:
    image = sass.assemble(KERNEL, "sm_120f")
    return sass.disassemble(image)["kernel"], image


def test_a_kernel_of_its_own(device: pysm120.Device) -> None:
    """What as_ptx returns is a kernel as any other."""
    kernel = device.load(as_ptx(*compiled()))["kernel"]
    out = device.zeros(32, np.uint32)
    kernel(1, 32, out, np.uint32(7))
    np.testing.assert_array_equal(out.numpy(), 7 * np.arange(32) + 3)


# Lane n writes 0.1 (n - 24) to word n, so that the loop of IN_PLACE ends, which reads word 24. Words 18 and 19 are
# scales of 1.
FILL = """
    {
    .reg .b32 at, lane;
    .reg .f32 value;
    .reg .pred is_scale;
    mov.u32                 lane, %tid.x;
    mov.u32                 at, smem;
    mad.lo.u32              at, lane, 4, at;
    sub.s32                 lane, lane, 24;
    cvt.rn.f32.s32          value, lane;
    mul.f32                 value, value, 0f3DCCCCCD;
    setp.eq.s32             is_scale, lane, -6;
@is_scale mov.b32           value, 0x38383838;
    setp.eq.s32             is_scale, lane, -5;
@is_scale mov.b32           value, 0x38383838;
    st.shared.f32           [at], value;
    bar.warp.sync           0xffffffff;
    }
"""


def test_the_fault_of_ptxas_is_seen(device: pysm120.Device) -> None:
    """ptxas 13.0 loses values that change in place in a loop; a ptxas that keeps them gives the same bits."""
    ptx = IN_PLACE.replace("[param_o];\n", f"[param_o];{FILL}", 1)
    image = sass.assemble(ptx, "sm_120f")
    function = sass.disassemble(image)["in_place"]
    results = []
    for text in (ptx, as_ptx(function, image)):
        out = device.zeros(4, np.uint32)
        device.load(text)["in_place"](1, 32, out, shared=128)
        results.append(out.numpy())
    is_lost = not any(one.opcode.startswith("MUFU.EX2") for one in function.instructions)
    assert bool((results[0] != results[1]).any()) == is_lost


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [
        ("IMAD.WIDE.S16", ("R2", "R3", "R4", "R6")),
        ("FADD.SAT", ("R2", "R3", "R4")),
        ("MUFU.TANH", ("R2", "R3")),
        ("FADD", ("R2", "R3")),
        ("FADD", ("R2", "R3", "R4.H0_H0")),
        ("FMUL", ("R2", "R3", "1.5")),  # the encoding has another number
        ("ISETP.GE.AND", ("P0", "P1", "R2", "R3", "PT")),
        ("LDC", ("R2", "c[0x0][0x100]")),
        ("S2R", ("R2", "SR_CLOCKLO")),
    ],
)
def test_unknown_instructions_are_errors(opcode: str, operands: tuple[str, ...]) -> None:
    function, image = compiled()
    one = sass.Instruction(0x40, "", opcode, operands, 0)
    changed = sass.Function("kernel", [*function.instructions[:4], one, *function.instructions[5:]])
    with pytest.raises(UnknownInstructionError, match="kernel, address 0x40, "):
        as_ptx(changed, image)
