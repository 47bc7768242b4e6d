"""Liberties that ptxas takes with statements: modifiers in other orders, braces around single operands, spellings."""

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import mutations
import ptxas
import pytest
import statements
from statements import Statement

import pysm120

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.virtual

CORPUS = sorted((ROOT / "tests" / "corpus").glob("*.ptx"))
KERNELS = ("attention_mxfp8_192x64_d128", "quantize_mxfp8_bf16_d", "attention_backward_mxfp8_64x128_d128")
FORMS = ROOT / "tests" / "vm" / "forms.ptx"  # what neither nvcc writes nor the kernels use


def orders(opcode: str, rng: random.Random, most: int) -> Iterator[str]:
    """Yield other orders of the modifiers: all of them, or every move of one and some at random; ``most`` of these."""
    name, *words = opcode.split(".")
    found: set[tuple[str, ...]] = set()
    if len(words) <= 4:
        found = set(itertools.permutations(words))
    else:
        for k, j in itertools.product(range(len(words)), repeat=2):
            moved = [*words[:k], *words[k + 1 :]]
            found.add((*moved[:j], words[k], *moved[j:]))
        found |= {tuple(rng.sample(words, len(words))) for _ in range(12)}
    others = sorted(found - {tuple(words)})
    for order in rng.sample(others, min(most, len(others))):
        yield ".".join((name, *order))


def judge(functions: list[str], folder: Path) -> list[bool]:
    """Return which of the functions the assembler takes."""
    return [not reason for reason in ptxas.reasons(functions, folder)]


def loads(device: pysm120.Device, function: str) -> bool:
    try:
        device.load(statements.HEAD + function).unload()
    except (pysm120.InvalidProgramError, pysm120.UnsupportedError):
        return False
    return True


def corpus(device: pysm120.Device, folder: Path) -> list[Statement]:
    """Return the statements that ptxas and the device take as they are written."""
    kernels = [ROOT / "build" / "kernels" / f"{name}.sm_120f.ptx" for name in KERNELS]
    found = statements.distinct([FORMS, *CORPUS, *kernels])
    good = judge([s.function(k, s.opcode) for k, s in enumerate(found)], folder)
    return [s for s, taken in zip(found, good, strict=True) if taken and loads(device, s.entry(s.opcode))]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("most", [2, pytest.param(1000, id="all")])
def test_orders(device: pysm120.Device, tmp_path: Path, request: pytest.FixtureRequest, most: int) -> None:
    rng = random.Random(request.config.option.seed)  # noqa: S311 - not a secret
    rows = [(s, order) for s in corpus(device, tmp_path) for order in orders(s.opcode, rng, most)]
    assert len(rows) > 500, "the corpus has lost its statements"
    taken = judge([s.function(k, order) for k, (s, order) in enumerate(rows)], tmp_path)
    wrong = []
    for (statement, order), theirs in zip(rows, taken, strict=True):
        mine = loads(device, statement.entry(order))
        if mine != theirs:
            wrong.append(f"{'taken' if mine else 'refused'} here: {order} {statement.operands}")
    assert not wrong, f"{len(wrong)} of {len(rows)}\n" + "\n".join(wrong)


def braced(statement: Statement) -> Iterator[Statement]:
    """Yield the statement with braces around each operand that is one word, and without those around a single one."""
    parts = mutations.split(statement.operands)
    for k, part in enumerate(parts):
        if re.fullmatch(r"[%\w$]+", part):
            new = f"{{{part}}}"
        elif re.fullmatch(r"\{[^,{}]+\}", part):
            new = part[1:-1]
        else:
            continue
        yield statement._replace(operands=", ".join([*parts[:k], new, *parts[k + 1 :]]))


@pytest.mark.sampled(1)
def test_braces(device: pysm120.Device, tmp_path: Path) -> None:
    rows = [changed for s in corpus(device, tmp_path) for changed in braced(s)]
    assert len(rows) > 500, "the corpus has lost its statements"
    taken = judge([s.function(k, s.opcode) for k, s in enumerate(rows)], tmp_path)
    wrong = []
    for statement, theirs in zip(rows, taken, strict=True):
        mine = loads(device, statement.entry(statement.opcode))
        if mine != theirs:
            wrong.append(f"{'taken' if mine else 'refused'} here: {statement.opcode} {statement.operands}")
    assert not wrong, f"{len(wrong)} of {len(rows)}\n" + "\n".join(wrong)


SPELLINGS = """
@ %p1 add.u32 %r1, %r2, %r3;
@! %p1 add.u32 %r1, %r2, %r3;
add .u32 %r1, %r2, %r3;
ld .global .u32 %r1, [ %rd1 + 4 ];
ld.global.u32 %r1, [%rd1+-4];
ld.global.u32 %r1, [%rd1-4];
ld.global.u32 %r1, [%rd1+4*2+1-1];
ld.global.u32 %r1, [4096];
ld.local.u32 %r1, [4096];
mov.u32 %r1, 0xFFU;
mov.u32 %r1, 0b101;
mov.u32 %r1, 017;
mov.u32 %r1, (.s64) 5;
mov.u32 %r1, -1;
mov.u32 %r1, ~1;
mov.u32 %r1, 1 ? 2 : 3;
mov.u32 %r1, WARP_SZ;
mov.u32 %r1, shared_bytes+4;
mov.u64 %rd1, shared_bytes;
mov.f32 %f1, 1.5;
mov.f32 %f1, 1e3;
mov.f32 %f1, 1;
add.f32 %f1, %f2, 1.0;
add.f32 %r1, %r2, %r3;
;
add.u32 %r1, %r2, %r3;;
.reg .b32 a1, a2, %q<4>;
.reg .v4 .f32 v; mov.f32 v.x, 0f00000000; mov.f32 %f1, v.x;
.reg .v4 .u32 t; mov.v4.u32 t, %tid;
.local .align 4 .b8 loc[16]; mov.u64 %rd1, loc;
.pragma "nounroll";
.section .debug_str { }
L1: add.u32 %r1, %r2, %r3; @%p1 bra L1;
L2: bra.uni L2;
@%p1 { add.u32 %r1, %r2, %r3; }
setp.lt.u32 %p1|_, %r1, %r2;
selp.b32 %r1, 1, 0, %p1;
st.global.u32 [%rd1], 5;
st.global.f32 [%rd1], 0f3F800000;
shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;
bar.sync %r1, %r2;
cvt.u32.u32 %r1, %r2;
cp.async.cg.shared.global [%r1], [%rd1], 16;
cp.async.cg.shared.global [%r1], [%rd1], 16, %p1;
mad.lo.s32 %r1, %r2, 3, 4;
mov.b32 {%rs1, _}, %r1;
ret.uni;
elect.sync _|%p1, 0xffffffff;
mbarrier.arrive.shared.b64 _, [%r1];
atom.global.add.f32 _, [%rd1], %f1;
ldmatrix.sync.aligned.m8n8.x1.shared.b16 %r1, [%r2];
ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];
mov.u32 %r1, %cluster_ctarank;
barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;
.reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, %f1, %f2; mov.b32 %r1, {b, b, b, b};
.reg .b128 w; ld.global.b128 w, [%rd1]; mov.b128 {%rd1, %rd2}, w;
max.f32 %f1, %f2, %f3, %f4;
wgmma.fence.sync.aligned;
""".strip().splitlines()
REGISTERS = (
    ".reg .pred %p<8>; .reg .b16 %rs<8>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %rd<8>; "
    ".shared .align 128 .b8 shared_bytes[1024]; "
)


def test_spellings(device: pysm120.Device, tmp_path: Path) -> None:
    rows = [f".visible .entry k{k}() {{ {REGISTERS} {line} ret; }}" for k, line in enumerate(SPELLINGS)]
    taken = [judge([row], tmp_path)[0] for row in rows]
    wrong = [
        f"{'refused' if theirs else 'taken'} here: {line}"
        for line, row, theirs in zip(SPELLINGS, rows, taken, strict=True)
        if loads(device, row) != theirs
    ]
    assert not wrong, "\n".join(wrong)
