"""``python -m pysm120 resources``, and the chips that it counts for."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pysm120 import Device, __main__
from pysm120.cli import resources
from pysm120.machine_code import sass, tools
from pysm120.machine_code.cubin import Cubin
from pysm120.model import chips
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import builtin_kernel, builtins

pytestmark = pytest.mark.virtual

TARGETS = ("sm_120f", "sm_90")
PARTS = 16
SM120_SHARED = 101376  # bytes of a CTA
OF_HOPPER = "128x128_d32|128x128_d64|64x128_d96|64x128_d128|64x64_d192|64x64_d256"  # tiles that need more
# How many times as long as any other unit the tensor pipe of an RTX 5090 is busy, at least, by a part of the entry. The
# backward pass reads its operands more often than the forward pass: tiles of 32 x 32 at head size 256 most of all.
# Decoding of 8 rows has half the products of 16.
MARGINS = {
    "narrow_q8": 1.2,
    "_q8_": 1.9,
    "attention_backward_mxfp8": 1.3,
    "attention_backward": 1.9,
    "f16": 2.0,
    "attention_mxfp8": 1.3,
    "attention_nvfp4_mxfp8": 1.6,
    "attention_nvfp4": 1.05,
    "attention_fp8_e5m2": 1.8,  # which branches by type
    "attention_fp8": 2.0,
    "narrow": 1.3,
}
# A product of NVFP4 takes half the clocks of one of MXFP8: at head size 64 exponentials take longer.
OF_EXPONENTIALS = "attention_nvfp4_128x64_d64"
TILE = re.compile(r"^attention.*(_\d+x\d+|kv_cache_\w+)_d\d+")  # of a kernel with matrix products
OF_MEMORY = ("matvec", "attention_mean_scores")  # kernels with products that wait for memory

# Forty sums that live across a barrier, in a kernel with 24 registers.
SPILLS = """
.version 8.8
.target sm_90
.address_size 64
.visible .entry spills(.param .u64 p) .reqntid 96 .maxnreg 24
{
    .reg .b64 a;
    .reg .f32 x<40>;
    .shared .align 16 .b8 room[4000];
    ld.param.u64 a, [p];
"""
SPILLS += "\n".join(f"    ld.volatile.global.f32 x{i}, [a + {4 * i}];" for i in range(40))
SPILLS += "\n    bar.sync 0;\n    st.shared.f32 [room], x0;\n"
SPILLS += "\n".join(f"    st.volatile.global.f32 [a + {4 * i}], x{i};" for i in range(40)) + "\n    ret;\n}\n"


def test_registers_shared_memory_and_spills_are_what_ptxas_says(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(SPILLS)
    command = [str(tools.find("ptxas")), "-arch=sm_90", "-v", f"{tmp_path}/k.ptx", "-o", f"{tmp_path}/k.cubin"]
    log = subprocess.run(command, capture_output=True, text=True, check=True)
    said = log.stdout + log.stderr
    stack, stores = map(int, re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)[0])
    assert stores > 0
    image = (tmp_path / "k.cubin").read_bytes()
    entry = Cubin(image).entry(None)
    assert entry.registers == int(re.findall(r"Used (\d+) registers", said)[0])
    assert entry.static_shared_bytes == int(re.findall(r"(\d+) bytes smem", said)[0]) == 4000
    assert (entry.threads, entry.frame_bytes) == (96, stack)
    assert resources.spill_bytes(sass.disassemble(image)["spills"]) == stores


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_of_the_library(part: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's figures are the device's; on an RTX 5090 every kernel that it can run is within its budget.

    The machine code that the command reads is checked too, because nvdisasm takes seconds for it.
    """
    records = list(builtins())[part::PARTS]
    read, disassemble = [], sass.disassemble_all

    def keep(images: Mapping[str, bytes]) -> dict[str, sass.Function]:
        read.append((images, disassemble(images)))
        return read[-1][1]

    monkeypatch.setattr(sass, "disassemble_all", keep)
    assert __main__.main(["resources", "--json", *(record.entry for record in records)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["target"], row["entry"]) for row in rows] == [
        (target, record.entry) for target in TARGETS for record in records
    ]
    with Device("virtual") as device:
        for row, record in zip(rows, records, strict=False):
            kernel = builtin_kernel(device, record.entry)
            assert (row["registers"], row["threads"]) == (kernel.info.registers, record.threads)
            assert row["shared_bytes"] == record.shared_bytes + kernel.info.static_shared_bytes
            if row["shared_bytes"] > SM120_SHARED:
                assert row["ctas_per_sm"] == 0
                assert re.fullmatch(rf"attention_backward_(bf16|f16)_({OF_HOPPER})", row["entry"])
            else:
                assert row["ctas_per_sm"] == kernel.occupancy(record.threads, record.shared_bytes)
    for row in rows:
        if not row["entry"].startswith(OF_MEMORY):
            assert (row["main_loop"] is not None) == (TILE.search(row["entry"]) is not None)
    for row in rows[: len(records)]:
        if row["shared_bytes"] <= SM120_SHARED:
            check_budget(row)
    for target, (images, functions) in zip(TARGETS, read, strict=True):
        assert list(functions) == list(images)
        for entry, function in functions.items():
            check_code(Cubin(images[entry]), function, target)


def check_code(cubin: Cubin, function: sass.Function, target: str) -> None:
    """The words of the text are those of the ELF file, and every branch leads to an instruction."""
    assert [entry.name for entry in cubin.entries] == [function.name]
    assert cubin.target == int(target[3:6].rstrip("f"))
    code = b"".join(one.word.to_bytes(16, "little") for one in function.instructions)
    assert code == cubin.code(function.name)
    addresses = {one.address for one in function.instructions}
    branches = [one for one in function.instructions if one.is_branch]
    assert {one.target for one in branches} <= addresses | {None}
    assert all(addresses.issuperset(one.choices) and (one.target is None) == bool(one.choices) for one in branches)


def check_budget(row: dict[str, Any]) -> None:
    """No spills, shared memory that a CTA may have, and the tensor pipe busy for longer than any other unit."""
    name = row["entry"]
    assert row["spill_bytes"] == 0, name
    assert row["shared_bytes"] <= SM120_SHARED, name
    assert row["ctas_per_sm"] >= 1, name
    if (loop := row["main_loop"]) and not name.startswith(OF_MEMORY):
        assert loop["largest"] == ("mufu" if name.startswith(OF_EXPONENTIALS) else "tensor"), name
        assert loop["margin"] >= next(least for part, least in MARGINS.items() if part in name), name


def test_counts_of_a_main_loop() -> None:
    """16 rows, 64 keys, head size 128: 2 * 16 * 64 * 128 / 4096 products each for Q K^T and P V."""
    (row,) = resources.collect("sm_90", chips.load("h200"), ["attention_bf16_128x64_d128_r16"])
    assert row.main_loop is not None
    counts = Counter(row.main_loop.counts)
    assert (counts["tensor"], counts["mufu"], counts["ldmatrix"]) == (128, 32, 64)
    # eight warps; four wavefronts of each ldmatrix.x4; six clocks of a quarter for each product
    assert row.main_loop.clocks["tensor"] == 128 * 6 * 8 / 4
    assert 64 * 4 * 8 <= row.main_loop.clocks["shared"] <= 64 * 4 * 8 + 8 * 8  # and a few words of the loader
    assert row.main_loop.clocks["mufu"] == 32 * 8 * 8 / 4


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["resources", "attention_mxfp8_128x64_d64", "--chip", "rtxpro6000"]) == 0
    shown = capsys.readouterr().out
    assert "RTX PRO 6000" in shown
    assert "sm_90" not in shown
    assert shown.count("attention_mxfp8_128x64_d64") == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "the entry is 'nothing', not a kernel of the library"),
        (["--chip", "rtx9000"], "the chip is 'rtx9000', which is neither one of h100, h200, rtx5080, rtx5090"),
        (["--chip", "h200", "--target", "sm_120f"], "--chip is 'h200', whose target is sm_90, but --target is sm_120f"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["resources", *words]) == 2
    assert message in capsys.readouterr().err


def test_every_value_of_a_chip_has_a_source() -> None:
    assert set(chips.names()) >= {"h100", "h200", "rtx5080", "rtx5090", "rtxpro6000"}
    for name in chips.names():
        chip = chips.load(name)
        assert chip["sms"] > 0
        assert all(chip.sources.values())
        assert {"hmma_16816_f32", "mufu", "ldmatrix", "alu", "fma"} <= set(chip.timings)
    assert chips.load("rtxpro6000").timing("hmma_16816_f32").interval == 16
    assert chips.load("rtxpro6000").timing("mufu") == chips.load("rtx5090").timing("mufu")


def test_chip_files_are_toml() -> None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # which pytest needs there
    for path in chips.FOLDER.glob("*.toml"):
        flat: dict[str, object] = {}
        for key, value in tomllib.loads(path.read_text()).items():
            if key == "instruction":
                flat |= {f"instruction.{name}": table for name, table in value.items()}
            else:
                flat[key] = value
        assert flat == chips.read(path.read_text(), str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[clock]\nmhz = 1\n", r"\[clock\] lacks the key source"),
        ("[clock]\nmhz: 1\n", "2: 'mhz: 1' is neither"),
        ("[clock]\nmhz = fast\n", "2: 'fast' is not a number"),
        ('[instruction.alu]\nsource = "x"\n', "must have a pipe, and numbers interval and latency"),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}", "is not UTF-8 text"),
    ],
)
def test_chip_files_that_are_wrong(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text, encoding="latin-1")
    with pytest.raises(InvalidArgumentError, match=message):
        chips.load(str(tmp_path / "own.toml"))


def test_chip_files_that_lack_what_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("")
    chip = chips.load(str(path))
    with pytest.raises(InvalidArgumentError, match="the file of chip own lacks mhz"):
        _ = chip["mhz"]
    with pytest.raises(InvalidArgumentError, match=r"own lacks \[instruction.mufu\]"):
        chip.timing("mufu")
    path.write_text(f'like = "{path}"\n')
    with pytest.raises(InvalidArgumentError, match="form a cycle"):
        chips.load(str(path))


def test_occupancy_by_each_limit() -> None:
    chip = chips.load("h200")
    assert chip.ctas_per_sm(32, 1024, 0) == 2  # threads
    assert chip.ctas_per_sm(16, 32, 0) == 32  # CTAs
    assert chip.ctas_per_sm(255, 128, 0) == 2  # registers: eight warps of 8192
    assert chip.ctas_per_sm(32, 128, 100 * 1024) == 2  # shared memory
    assert chip.ctas_per_sm(255, 1024, 0) == 0
