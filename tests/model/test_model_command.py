"""``python -m pysm120 model``: what it says, what it refuses, and that it stays as good as it was found to be."""

import importlib.util
import json
import lzma
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pysm120 import Device, __main__, attention
from pysm120.machine_code import sass
from pysm120.model import launches, loops, measure, problem, validation
from pysm120.model import work as work_module
from pysm120.runtime import ffi
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.runtime.module import builtin_image, builtins, find_builtin

pytestmark = pytest.mark.virtual

ROOT = Path(__file__).resolve().parents[2]
ENTRY = "attention_bf16_128x64_d64_r16"
MEASURED = ROOT / "results" / "h200" / "model.json"
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["model", ENTRY, "--problem", "1,512,4,64"]) == 0
    shown = capsys.readouterr().out
    assert f"{ENTRY} on GeForce RTX 5090" in shown
    assert "128 CTAs" in shown
    assert "8 of a tile" in shown
    for words in (
        "TFLOP/s",
        "tensor",
        "Why it is not faster",
        "What a warp waits for",
        "HMMA.16816.F32.BF16",
        ".ptx:",
    ):
        assert words in shown


@pytest.mark.slow
def test_code_that_an_sm_does_not_keep(capsys: pytest.CaptureFixture[str]) -> None:
    entry = next(b.entry for b in builtins() if b.precision == "mxfp8" and b.head_dim == 128 and not b.features)
    command = ["model", entry, "--problem", "1,128,1,128", "--rules"]
    assert __main__.main([*command, "--chip", "h200"]) == 0
    shown = capsys.readouterr().out
    assert "the instruction cache has 32 KiB" in shown
    assert "no instruction" in shown
    assert __main__.main(command) == 0  # as an RTX 5090 runs it
    shown = capsys.readouterr().out
    assert "the instruction cache has" not in shown
    assert "no instruction" not in shown


def test_json_and_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["model", ENTRY, "--chip", "h200", "--problem", "4,2048,32,64", "--json"]
    command += ["--timeline", f"{tmp_path}/t.png"] if HAS_MATPLOTLIB else []
    assert __main__.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kernel"], found["chip"], found["ctas"], found["rounds"]) == (ENTRY, "h200", 4 * 32 * 16, 32)
    assert found["stages"] == 3
    # 64 products of six clocks for each of 8 warps on 4 quarters
    assert found["tensor_share"] * found["clocks_per_round"] == pytest.approx(64 * 6 * 8 / 4, rel=0.01)
    seconds = found["microseconds"] / 1e6
    assert found["tflops"] == pytest.approx(4 * 4 * 32 * 2048**2 * 64 / seconds / 1e12, rel=0.01)
    assert found["clocks"] == pytest.approx(seconds * found["mhz"] * 1e6, rel=0.001)
    lines = [row for row in found["reasons"] if "file" in row]
    assert len(lines) > 10
    for row in lines:  # kernels of several operations have templates of one name
        templates = [path.read_text().splitlines() for path in (ROOT / "ptx").glob(f"*/{row['file']}")]
        assert row["source"] in [text[row["line"] - 1].strip() for text in templates if len(text) >= row["line"]]
    if HAS_MATPLOTLIB:
        header = (tmp_path / "t.png").read_bytes()[:24]
        assert header.startswith(b"\x89PNG")
        assert min(struct.unpack(">II", header[16:24])) > 200


def test_a_cubin_and_stated_branches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = lzma.decompress((MEASURED.parent / "attention.cubin.xz").read_bytes())
    (tmp_path / "k.cubin").write_bytes(image)
    words = ["model", f"{tmp_path}/k.cubin", "--chip", "h200", "--json", "--shared", "90000"]
    assert __main__.main(words) == 2
    assert "the cubin has 18 kernels, and none is named: attention_" in capsys.readouterr().err
    words += ["--kernel", "attention_bf16_128x64_d128_r16", "--ctas", "132", "--rounds", "8"]
    assert __main__.main(words) == 3  # its loops of copies alone are not stated
    interior = json.loads(capsys.readouterr().out)
    assert interior["ctas"] == 132
    assert all("loops whose rounds nobody stated" in missing for missing in interior["incomplete"])
    # The branches that the rules take lead over masks and rescaling: all of them otherwise is more work.
    entry = "attention_bf16_128x64_d128_r16"
    function = sass.disassemble(image, entry)[entry]
    path = function.main_loop()
    forward = [one for one in function.of_loop(path) if one.is_branch and one.target and one.target > one.address]
    masks = [one.address for one in forward if _skips(function, one, "FSEL") >= 32]
    assert masks
    for address in masks:
        words += ["--branch", f"{address:#x}=not"]
    assert __main__.main(words) == 3
    assert json.loads(capsys.readouterr().out)["clocks"] > interior["clocks"] * 1.02


def _skips(function: sass.Function, branch: sass.Instruction, base: str) -> int:
    end = branch.target or 0
    return sum(one.base == base for one in function.instructions if branch.address < one.address < end)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the kernel is missing: give an entry of the library, a .cubin file, a .ptx file"),
        (
            ["nothing"],
            "the kernel is 'nothing', neither a kernel of the library (see info) nor an existing .cubin file",
        ),
        ([ENTRY, "--chip", "gtx"], "the chip is 'gtx', which is neither one of h100, h200"),
        ([ENTRY, "--problem", "1,2"], "--problem is '1,2', not batch,rows,heads,head_dim"),
        ([ENTRY, "--problem", "1,64,1,64", "--ctas", "3"], "--problem determines the CTAs and rounds"),
        ([ENTRY, "--rounds", "0"], "--rounds is '0', not an integer of at least 1"),
        ([ENTRY, "--branch", "left"], "--branch is 'left', not an address and a direction"),
        ([ENTRY, "--timeline", "x.pdf"], "--timeline is 'x.pdf', not a .png file"),
        ([ENTRY, "--branch", "0x10=taken"], f"--branch is 0x10, where {ENTRY} has no conditional branch"),
        (["missing.ptx", "--block", "64"], "the kernel is 'missing.ptx', neither a kernel of the library"),
        ([ENTRY, "--profile", "missing.json"], "--profile is 'missing.json'"),
        (["--validate", "missing.json"], "--validate is 'missing.json', not a file of measurements"),
        (
            ["--validate", f"{MEASURED.parent}/code.json"],
            "code.json', which has no launch and no loop that the model predicts",
        ),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["model", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_cubin_for_another_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.cubin").write_bytes(builtin_image(0, "sm_90", "cubin"))
    assert __main__.main(["model", f"{tmp_path}/k.cubin", "--kernel", builtins()[0].entry]) == 2
    assert "the cubin is for sm_90, but GeForce RTX 5090 needs sm_120" in capsys.readouterr().err


def test_predictions_are_as_good_as_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A part of what was measured on an H200; docs/explanation/model.md has all of it."""
    document = validation.read(MEASURED)
    document["loops"] = [row for row in document["loops"] if row["warps"] == 8 and "mix" in row["name"]]
    wanted = ("4,2048,32,64", "1,2048,8,128")
    document["launches"] = [row for row in document["launches"] if row["problem"] in wanted]
    assert len(document["loops"]) == 9
    assert len(document["launches"]) == 3
    (tmp_path / "part.json").write_text(json.dumps(document))
    shutil.copy(MEASURED.parent / "attention.cubin.xz", tmp_path)
    assert __main__.main(["model", "--validate", f"{tmp_path}/part.json"]) == 0
    shown = capsys.readouterr().out
    assert "12 comparisons: median error" in shown
    errors = [
        float(line.split("│")[-2].strip(" %")) / 100
        for line in shown.splitlines()
        if "warps  " in line or "attention_" in line
    ]
    assert len(errors) == 12
    assert sorted(map(abs, errors))[len(errors) // 2] < 0.08
    assert max(map(abs, errors)) < 0.20


LATER = {
    "model_uniform.json": ("4,2048,32,64,causal", "1,512,32,64", "_d32_r16", "_64x32_d256_r16"),
    "model_later.json": ("d128_any_r16", "mxfp8_128x64_d64 ", "mxfp8_128x64_d128 4,2048,32,128,causal"),
    "triton.json": ("matmul_fp16_2048", "attention_fp16_128_1024", "matmul_fp16_16384"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("file", "wanted"), [(file, word) for file, words in LATER.items() for word in words])
def test_what_came_later_is_predicted_as_documented(file: str, wanted: str) -> None:
    """The worst launches among them: kernels that the model was not made with, of this library and of Triton."""
    document = validation.read(MEASURED.parent / file)
    names = {validation.name_of(row): row for row in document["launches"]}
    document["launches"] = [row for name, row in names.items() if wanted in name]
    document["loops"] = []
    (row,) = validation.compare(document, MEASURED.parent)
    # -0.196: MXFP8 in eight warps, which the library no longer has, so that rules decide its branches.
    # +0.036: head size 256, since loads and stores have an SM's share of L2.
    largest = 0.04 if "_d256_" in row.name else 0.02
    assert -0.21 < row.error < largest, row.name
    # The page has its clocks; every figure that was derived from them is checked by tests/build/test_docs.py.
    page = (MEASURED.parents[2] / "docs" / "explanation" / "model-validation.md").read_text()
    (shown,) = re.findall(rf"\| ([\d,]+) \| {round(row.measured):,} \|", page)
    assert row.predicted == pytest.approx(int(shown.replace(",", "")), rel=1e-3), row.name


def test_cycles_of_a_profiler() -> None:
    # As ncu 2025.3 prints them, shortened: a line of its own, the columns, their units, a row for each launch.
    lines = ["==PROF== Connected to process 9", '"ID","Kernel Name","sm__cycles_elapsed.max"', '"","","cycle"']
    entries = [entry for entry, _ in measure.CASES]
    for i, entry in enumerate(entries):
        lines += [
            f'"{3 * i + n}","{entry}","{clocks}"' for n, clocks in enumerate(("1,000", f"{i + 1},500", "9,999,999"))
        ]
    found = measure.read_cycles("\n".join(lines), entries)
    assert found == [1000 * (i + 1) + 500 for i in range(len(entries))]
    with pytest.raises(UnsupportedError, match=f"ncu reported {3 * len(entries) - 1} launches, but {3 * len(entries)}"):
        measure.read_cycles("\n".join(lines[:-1]), entries)
    with pytest.raises(UnsupportedError, match="ncu printed no table: '==ERROR== no GPU'"):
        measure.read_cycles("==ERROR== no GPU", entries)


SCALE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .f32 by)
{
    .reg .b64 p, q, at;
    .reg .b32 i, row, width;
    .reg .f32 a, b;
    ld.param.u64 p, [x];
    ld.param.u64 q, [y];
    ld.param.f32 b, [by];
    mov.u32 i, %tid.x;
    mov.u32 row, %tid.y;
    mov.u32 width, %ntid.x;
    mad.lo.u32 i, row, width, i;
    mul.wide.u32 at, i, 4;
    add.u64 p, p, at;
    add.u64 q, q, at;
    ld.global.f32 a, [p];
    mul.f32 a, a, b;
    st.global.f32 [q], a;
    ret;
}
"""


def test_a_list_of_launches(tmp_path: Path) -> None:
    """What ncu is to see: arguments are placed, and an output that was not written is noticed."""
    row: dict[str, Any] = {"image": "k.ptx.xz", "entry": "scale", "grid": [1], "threads": 64, "shared_bytes": 0}
    row |= {"rounds": [1], "arguments": ["f32[64]:normal", "f32[64]", "f32:2"]}
    (tmp_path / "k.ptx.xz").write_bytes(lzma.compress(SCALE.encode()))
    (tmp_path / "list.json").write_text(json.dumps({"launches": [row]}))
    (read,) = measure.read_list(tmp_path / "list.json")["launches"]
    assert read == row
    with Device("virtual") as device:
        cases: list[tuple[int | list[int], bool]] = [(64, True), ([32, 2], True), (63, False)]
        for threads, complete in cases:
            launch = launches.Launch(device, {**row, "threads": threads}, launches.image_of(tmp_path, row))
            launch.launch()
            if complete:
                launch.check()
            else:
                with pytest.raises(InvalidArgumentError, match=r"scale left NaN in argument 1, 'f32\[64\]'"):
                    launch.check()
    structure = {"arguments": ["struct(f16[8]:normal,s32[4]:[1,2,3,4],u32:7)", "f32[2,8]"]}
    assert launches.tensor_bytes(row) == 64 * 4 * 2
    assert launches.tensor_bytes(structure) == 8 * 2 + 4 * 4 + 16 * 4
    assert launches.rounds_of({**row, "grid": [3]}) == [1, 1, 1]
    del row["rounds"], row["grid"]
    with pytest.raises(InvalidArgumentError, match="the launch of scale has no rounds, which a prediction needs"):
        launches.rounds_of(row)
    (tmp_path / "list.json").write_text(json.dumps({"launches": [row]}))
    with pytest.raises(InvalidArgumentError, match="the launch of scale has no grid"):
        measure.read_list(tmp_path / "list.json")
    with pytest.raises(InvalidArgumentError, match="not a file with a list of launches"):
        measure.read_list(tmp_path / "none.json")


def test_every_measured_launch_can_be_made() -> None:
    """The parameters that the measurement fills in are those of the kernels; a small problem runs and is attention."""
    rng = np.random.default_rng(1)
    with Device("virtual") as device:
        kernel = find_builtin("attention_bf16_32x32_d64_k4")  # the choice for a problem of this size
        assert kernel is not None
        work = work_module.Attention(device, kernel, problem.parse("1,192,2,64,causal"))
        work.launch()
        q, k, v = (rng.standard_normal((1, 2, 192, 64), np.float32).astype(ml_dtypes.bfloat16) for _ in range(3))
        expected = attention(q, k, v, causal=True, precision="bf16", layout="BHSD", device=device)
        assert np.array_equal(work.out.numpy().view(np.uint16), expected.view(np.uint16))
    rows: list[dict[str, Any]] = [{"entry": entry} for entry, _ in measure.CASES]
    files = measure.keep_images(rows, "sm_90")
    assert {row[kind] for row in rows for kind in ("image", "ptx")} == set(files)
    for row in rows:
        assert lzma.decompress(files[row["image"]]).startswith(b"\x7fELF")
        assert f".entry {row['entry']}(".encode() in lzma.decompress(files[row["ptx"]])
    assert all(row["shared_bytes"] > 0 for row in rows)


def test_measuring_needs_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["model", "--measure", f"{tmp_path}/none/x.json"]) == 2
    assert "not a .json file in an existing folder" in capsys.readouterr().err
    if ffi.device_count("cuda") == 0:
        assert __main__.main(["model", "--measure", f"{tmp_path}/x.json"]) == 2
        assert not (tmp_path / "x.json").exists()


def test_files_without_measurements(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="which must have chip, loops and launches"):
        validation.read(tmp_path / "x.json")


def test_loops_hold_what_they_are_named_after() -> None:
    """The code between the readings of the clock, not what ptxas made of it elsewhere."""
    wanted = {
        "rate_mma": ("HMMA", 16),
        "rate_ex2": ("MUFU", 16),
        "rate_ldmatrix": ("LDSM", 8),
        "beside_mma_16fma": ("FFMA", 16),
    }
    for loop in loops.calibration():
        if loop.name in wanted and loop.warps == 4:
            function = sass.disassemble(sass.assemble(loop.ptx("sm_90"), "sm_90"))["loop"]
            base, count = wanted.pop(loop.name)
            assert sum(one.base == base for one in function.of_loop(validation.timed_loop(function))) == count
    assert not wanted


@pytest.mark.parametrize("option", ["--ctas", "--stages"])
def test_numbers_with_which_a_prediction_would_not_end(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["model", "attention_bf16_128x64_d128_r16", option, "1000000000"]) == 2
    assert f"{option} is '1000000000'; the model takes at most" in capsys.readouterr().err
