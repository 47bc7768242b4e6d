"""What the virtual device takes and what it refuses, form by form, with ptxas as the judge.

A row is a mnemonic with alternatives in brackets, and its operands, where @ is a register
of the last type that the mnemonic names, ~ of the one before it, and a digit behind keeps
them apart. All alternatives are multiplied out.
"""

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pysm120

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools")]

import build  # noqa: E402

pytestmark = pytest.mark.virtual

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64", "b16", "b32", "b64")
TYPES = (*INTEGERS, "f32", "f64", "f16", "f16x2", "bf16", "bf16x2", "f32x2")
ANY = "[" + "|".join(TYPES) + "]"
FLAGS = "[|.sat|.rn|.rz|.rn.ftz|.ftz|.rn.ftz.sat|.rp.sat]"
ROWS = (
    (f"[add|sub|mul]{FLAGS}.{ANY}", "@0, @1, @2"),
    (f"fma[.rn|.rz|.rn.ftz|.rn.relu|.rn.ftz.sat|.rn.sat.relu|].{ANY}", "@0, @1, @2, @3"),
    (f"[min|max][|.ftz|.NaN|.relu|.abs|.xorsign.abs|.NaN.xorsign.abs].{ANY}", "@0, @1, @2"),
    (f"[abs|neg|sqrt.rn|rcp.approx.ftz|ex2.approx|ex2.approx.ftz|tanh.approx].{ANY}", "@0, @1"),
    (f"[add|sub|fma][.rn|.rm|.rn.sat|].f32.{ANY}", "%f0, @1, %f2"),
    (f"setp.[eq|lt|equ|hi][|.ftz].{ANY}", "%p0, @1, @2"),
    (f"setp.[eq|lt].and[|.ftz].{ANY}", "%p0|%p1, @1, @2, !%p2"),
    (f"set.[eq|gt][|.ftz].[u32|s32|f32|u16|f16|bf16|f16x2].{ANY}", "~0, @1, @2"),
    (f"[mov|selp].{ANY}", "@0, @1"),
    (f"selp.{ANY}", "@0, @1, @2, %p0"),
    (f"slct[|.ftz].{ANY}.[s32|f32]", "~0, ~1, ~2, @3"),
    (f"cvt[|.rn|.rzi|.rna|.sat|.ftz|.rn.ftz|.rn.sat|.rni.ftz.sat].{ANY}.{ANY}", "~0, @1"),
    ("cvt.rn[|.relu][|.satfinite].[f16x2|bf16x2|e4m3x2].f32", "~0, @1, @2"),
    ("cvt.rn[|.satfinite][|.relu].[f16x2|bf16x2|e5m2x2].f32", "~0, @1, @2"),
    ("cvt.pack.sat.[s16|u16|s32].s32", "%r0, %r1, %r2"),
    ("cvt.pack.sat.[s8|u4|s2|u16].s32.b32", "%r0, %r1, %r2, %r3"),
    (f"ld[|.global|.shared|.local][|.v2].{ANY}", "@0, [%rd9]"),
    (
        f"st[.weak|.volatile|.relaxed.gpu|.relaxed|.release.sys|.acquire.gpu|.mmio.relaxed.sys][|.local].{ANY}",
        "[%rd9], @0",
    ),
    ("ld[.acquire.cta|.release.gpu|.mmio.relaxed.sys|.volatile][|.global|.shared|.local].u32", "%r0, [%rd9]"),
    ("ld[|.global][|.nc|.ca][|.L1::evict_last|.L2::evict_last|.L2::128B].u32", "%r0, [%rd9]"),
    ("ld.global[|.nc][|.L1::no_allocate].L2::cache_hint.u32", "%r0, [%rd9], %rd1"),
    (f"atom[|.global|.shared].[add|min|and|add.noftz|max.noftz].{ANY}", "@0, [%rd9], @1"),
    (f"red[|.relaxed|.release|.acquire|.acq_rel|.sc].gpu.global.add.{ANY}", "[%rd9], @1"),
    ("[st|red.add].async[|.mmio].[release|relaxed].[gpu|sys|cta].global.u32", "[%rd9], %r1"),
    ("red.async[|.mmio].release.[gpu|sys|cluster].global.[add|min].[u32|s32|u64|s64]", "[%rd9], @1"),
    ("[bar|barrier].[sync|arrive][|.aligned]", "0, 64"),
    ("mbarrier.arrive[|.release.cta|.relaxed.cluster][.shared|.shared::cluster].b64", "%rd0, [%r0]"),
    ("mbarrier.arrive[|.expect_tx][.shared|.shared::cluster].b64", "_, [%r0], 16"),
    ("mapa[|.shared::cluster].[u32|u64]", "@0, @1, %r2"),
    ("getctarank[|.shared::cluster].[u32|u64]", "%r0, @1"),
    ("st.bulk[|.weak][|.shared::cta]", "[%rd9], 64, 0"),
    ("[discard.global.L2|applypriority.global.L2::evict_normal]", "[%rd9], [64|128]"),
    ("pmevent", "[15|16]"),
    ("mma.sync.aligned.m8n8k4.row.col[|.rn|.rz|.rni].f64.f64.f64.f64", "{%d0, %d1}, {%d2}, {%d3}, {%d0, %d1}"),
    ("mov.[v2|v4].[b32|u16|f32]", "{@0, @1}, {@2, @3}"),
)
# What ptxas 13.0 takes, and PTX does not describe.
STRANGE = {
    r"fma\.rz\.bf16": "fma of halves rounds to nearest",
    r"setp\.\w+(\.ftz)?\.b?f16x2 %p0,": "PTX has a predicate for each half",
    r"(st|red)\.async\.mmio\.release\.gpu": "PTX has .mmio for .sys alone",
    r"red\.async(\.mmio)?\.release\.\w+\.global\.min": "PTX has .add alone",
}

HEAD = """.version 9.0
.target sm_120f
.address_size 64
.visible .entry k()
{
.reg .pred %p<4>; .reg .b16 %h<16>; .reg .b32 %r<16>; .reg .f32 %f<16>;
.reg .b64 %rd<16>; .reg .f64 %d<16>;
"""
LINE = HEAD.count("\n") + 1


def register(kind: str, number: str) -> str:
    """Name a register of a type."""
    if kind in {"f32", "f64"}:
        return f"%{'f' if kind == 'f32' else 'd'}{number}"
    if kind == "f32x2" or kind.endswith("64"):
        return f"%rd{number}"
    return f"%{'h' if kind.endswith(('16', 'm3x2', 'm2x2')) else 'r'}{number}"


def alternatives(text: str) -> list[str]:
    """Multiply out [a|b]."""
    parts = [part.split("|") if k % 2 else [part] for k, part in enumerate(re.split(r"\[([^\]%]*\|[^\]%]*)\]", text))]
    return ["".join(choice) for choice in itertools.product(*parts)]


def statements(row: tuple[str, str]) -> list[str]:
    """Write every form of a row."""
    made = []
    for name, operands in itertools.product(alternatives(row[0]), alternatives(row[1])):
        types = [word for word in name.split(".") if re.fullmatch(r"[usbf]+\d+(x2)?|e\dm\dx2|f32x2", word)] or ["b32"]
        text = re.sub(r"@(\d)", lambda m, t=types[-1]: register(t, m[1]), operands)  # type: ignore[misc]
        text = re.sub(r"~(\d)", lambda m, t=types[-2:][0]: register(t, m[1]), text)  # type: ignore[misc]
        made.append(f"{name} {text};")
    return made


def judge(lines: list[str], folder: Path) -> set[str]:
    """Return what the assembler takes: again and again without the lines it complains of."""
    left, path = lines, folder / "forms.ptx"
    command: list[Any] = [*build.assembler(build.find_nvcc(), "sm_120f"), "-O0", "-o", folder / "o", path]
    while left:
        path.write_text(HEAD + "\n".join(left) + "\nret;\n}\n")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        numbers = {int(x) - LINE for x in re.findall(r"line (\d+); (?:error|fatal)", done.stderr)}
        assert numbers & set(range(len(left))), done.stderr
        left = [line for k, line in enumerate(left) if k not in numbers]
    return set(left)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].split("[", 1)[0] or row[0][:12])
def test_forms(device: pysm120.Device, tmp_path: Path, row: tuple[str, str]) -> None:
    """The device takes a form if the assembler does."""
    lines = statements(row)
    taken = judge(lines, tmp_path)
    wrong = []
    for line in lines:
        try:
            device.load(HEAD + line + "\nret;\n}\n").unload()
            mine = True
        except (pysm120.InvalidProgramError, pysm120.UnsupportedError):
            mine = False
        if mine != (line in taken) and not any(re.match(strange, line) for strange in STRANGE):
            wrong.append(f"{'taken' if mine else 'refused'} here: {line}")
    assert not wrong, "\n".join(wrong)
