"""Liberties that ptxas takes with statements: modifiers in other orders, braces around single operands, spellings.

What ptxas 13.0 answers is recorded (tests/data/orders.txt and spellings.txt), so that most tests need no ptxas. Where
there is one, other tests compare the recordings with it."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import mutations
import orders
import ptxas
import pytest
import spellings
import statements
from statements import Statement

import pysm120

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.virtual

needs_ptxas = pytest.mark.skipif(not ptxas.exists(), reason="there is no ptxas")
# Opcodes of the sources that ptxas does not take as `statements` writes them, and such as virtual.md does not support.
REFUSED_BY_PTXAS = {
    "redux.sync.min.abs.NaN.f32",
    "mad.s32.lo",
    "mul.s32.wide",
    "mbarrier.try_wait.shared::cta.parity.b64",
    "mbarrier.parity.try_wait.shared.b64",
    "sqrt.approx.ftz.f32",
    "set.eq.f16.f16",
    "fma.rn.f16",
}
NOT_SUPPORTED = {
    "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask",
    "cp.async.bulk.tensor.3d.shared::cta.global.im2col.mbarrier::complete_tx::bytes.L2::cache_hint",
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.and.b32",
    "vabsdiff2.s32.s32.s32.add",
}


def judge(functions: list[str], folder: Path) -> list[bool]:
    """Return which of the functions the assembler takes."""
    return [not reason for reason in ptxas.reasons(functions, folder)]


def loads(device: pysm120.Device, function: str) -> bool:
    try:
        device.load(statements.HEAD + function, strict=True).unload()
    except (pysm120.InvalidProgramError, pysm120.UnsupportedError):
        return False
    return True


def corpus(device: pysm120.Device, folder: Path) -> list[Statement]:
    """Return the statements that ptxas and the device take as they are written."""
    kernels = [ROOT / "build" / "kernels" / f"{name}.sm_120f.ptx" for name in orders.KERNELS]
    sources = [source for source in orders.SOURCES if source.name != "orders.ptx"]
    found = statements.distinct([*sources, *kernels])
    good = judge([s.function(k, s.opcode) for k, s in enumerate(found)], folder)
    return [s for s, taken in zip(found, good, strict=True) if taken and loads(device, s.entry(s.opcode))]


def test_orders(device: pysm120.Device) -> None:
    """The virtual device takes the recorded orders of each statement, and no others."""
    wrong, count = [], 0
    for statement, taken in orders.read():
        if statement.opcode in NOT_SUPPORTED:
            assert not loads(device, statement.entry(statement.opcode))
            continue
        for opcode, theirs in zip(orders.orders(statement.opcode), taken, strict=True):
            count += 1
            if loads(device, statement.entry(opcode)) != theirs:
                wrong.append(f"{'refused' if theirs else 'taken'} here: {opcode} {statement.operands}")
    assert count > 10_000, "the table has lost its rows"
    assert not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong)


def test_orders_of_every_statement() -> None:
    """The table has each opcode of its sources."""
    known = {row.statement.opcode for row in orders.read()}
    lacking = [s.opcode for s in statements.distinct(orders.SOURCES) if len(orders.orders(s.opcode)) > 1]
    lacking = [opcode for opcode in lacking if opcode not in known and opcode not in REFUSED_BY_PTXAS]
    assert not lacking, "run: python tests/support/orders.py\n" + "\n".join(lacking)


@needs_ptxas
@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [10, pytest.param(1, id="all")])
def test_recorded_orders(tmp_path: Path, request: pytest.FixtureRequest, share: int) -> None:
    """They are ptxas's answers: of all rows, or of one in ten."""
    rows = list(orders.read())
    rng = random.Random(request.config.option.seed)  # noqa: S311 - not a secret
    rows = rng.sample(rows, len(rows) // share)
    asked = [(row.statement, opcode) for row in rows for opcode in orders.orders(row.statement.opcode)]
    recorded = [taken for row in rows for taken in row.taken]
    answers = orders.judge(asked, tmp_path)
    wrong = [opcode for (_, opcode), old, new in zip(asked, recorded, answers, strict=True) if old != new]
    assert not wrong, "run: python tests/support/orders.py\n" + "\n".join(wrong)


def test_spellings_of_the_table(device: pysm120.Device) -> None:
    """The virtual device answers as ptxas, except in the rows with a reason, which still tell differences."""
    rows, wrong = spellings.read(), []
    assert len(rows) > 500
    for row in rows:
        mine = "taken" if loads(device, row.module()) else "refused"
        if (mine == row.answer) == bool(row.reason):
            wrong.append(f"{mine} here, {row.answer} by ptxas ({row.reason or 'no reason'}): {row.text}")
    assert not wrong, "\n".join(wrong)


@needs_ptxas
@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [10, pytest.param(1, id="all")])
def test_recorded_spellings(request: pytest.FixtureRequest, share: int) -> None:
    """They are ptxas's answers: of all rows, or of one in ten."""
    rows = spellings.read()
    rng = random.Random(request.config.option.seed)  # noqa: S311 - not a secret
    rows = rng.sample(rows, len(rows) // share)
    wrong = [row.text for row, answer in zip(rows, spellings.ask(rows), strict=True) if row.answer != answer]
    assert not wrong, "run: python tests/support/spellings.py\n" + "\n".join(wrong)


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


@needs_ptxas
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


@needs_ptxas
def test_spellings(device: pysm120.Device, tmp_path: Path) -> None:
    rows = [f".visible .entry k{k}() {{ {REGISTERS} {line} ret; }}" for k, line in enumerate(SPELLINGS)]
    taken = [judge([row], tmp_path)[0] for row in rows]
    wrong = [
        f"{'refused' if theirs else 'taken'} here: {line}"
        for line, row, theirs in zip(SPELLINGS, rows, taken, strict=True)
        if loads(device, row) != theirs
    ]
    assert not wrong, "\n".join(wrong)
