"""Exchanges between the lanes of a warp: shuffles, permutations of bytes, reductions, votes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pysm120.microbench.form import LANES, Form, Operand, Words
from pysm120.microbench.forms_math import constant, repeated

LANE = np.arange(LANES)
MIX = np.uint32(0x9E3779B1)


def _form(
    name: str, lines: str | tuple[str, ...], sass: Any, step: Callable[[Words], Any], *, start: Any = None, **more: Any
) -> Form:
    """Return a form whose lanes begin with different values."""
    value = (LANE.astype(np.uint64) * 0x01234567 + 5).reshape(1, LANES) if start is None else start
    return Form(
        name=name,
        group="warp",
        lines=(lines,) if isinstance(lines, str) else lines,
        sass=sass,
        state=Operand("b32", 1, value),
        model=repeated(step, np.uint32),
        unroll=31,
        **more,
    )


def _prmt(x: Words, other: int, selector: int) -> Any:
    """Choose bytes of (other, x)."""
    whole = x.astype(np.uint64) | np.uint64(other) << np.uint64(32)
    chosen = [(whole >> np.uint64(8 * (selector >> 4 * i & 7))) & np.uint64(255) for i in range(4)]
    return sum(byte << np.uint64(8 * i) for i, byte in enumerate(chosen))


def _movmatrix(x: Words) -> Any:
    """Transpose 8x8 numbers of 16 bits: lane 4 r + c holds columns 2 c and 2 c + 1 of row r."""
    matrix = np.ascontiguousarray(x.reshape(LANES)).view(np.uint16).reshape(8, 8)
    return np.ascontiguousarray(matrix.T).view(np.uint32).reshape(1, LANES)


def _match(x: Words) -> Any:
    """Return the mask of the lanes with the same value."""
    same = x.reshape(LANES, 1) == x.reshape(1, LANES)
    return (same.astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=1).reshape(1, LANES)


def _ballot(x: Words) -> Any:
    """Return which lanes are not 0x80000001."""
    return np.full_like(x, int(((x != 0x80000001).astype(np.uint64) << LANE.astype(np.uint64)).sum()))


SELECT, OTHER = 0x0125, 0x0BADCAFE
FORMS = [
    _form("shfl.sync.idx.b32", "shfl.sync.idx.b32 X, X, A, 31, -1;", r"SHFL\.IDX", lambda x: x[:, (LANE * 5 + 3) % LANES],
          inputs={"A": Operand("b32", 1, ((LANE * 5 + 3) % LANES).astype(np.uint64).reshape(1, LANES))}),
    _form("shfl.sync.bfly.b32", "shfl.sync.bfly.b32 X, X, 5, 31, -1;", r"SHFL\.BFLY", lambda x: x[:, LANE ^ 5]),
    _form("shfl.sync.up.b32", "shfl.sync.up.b32 X, X, 1, 0, -1;", r"SHFL\.UP", lambda x: x[:, np.maximum(LANE - 1, 0)]),
    _form("shfl.sync.down.b32", "shfl.sync.down.b32 X, X, 1, 31, -1;", r"SHFL\.DOWN", lambda x: x[:, np.minimum(LANE + 1, 31)]),
    _form("prmt.b32", "prmt.b32 X, X, A, B;", "PRMT", lambda x: _prmt(x, OTHER, SELECT),
          inputs={"A": constant(OTHER), "B": constant(SELECT)}),
    _form("prmt.b32, selector known", "prmt.b32 X, X, A, 0x0125;", "PRMT", lambda x: _prmt(x, OTHER, SELECT),
          inputs={"A": constant(OTHER)}),
    _form("movmatrix.m8n8.trans.b16", "movmatrix.sync.aligned.m8n8.trans.b16 X, X;", r"MOVM\.16\.MT88", _movmatrix),
    _form("redux.sync.add.s32", "redux.sync.add.s32 X, X, -1;", r"REDUX\.SUM.*", lambda x: np.full_like(x, x.sum(dtype=np.uint32)),
          besides=1, note="with the move from a uniform register"),
    _form("redux.sync.max.u32", ("redux.sync.max.u32 X, X, -1;", "add.u32 X, X, A;"), r"C?REDUX\.MAX.*",
          lambda x: np.full_like(x, x.max()) + LANE.astype(np.uint32),
          inputs={"A": Operand("b32", 1, LANE.astype(np.uint64).reshape(1, LANES))}, besides=2, note="with an add between"),
    _form("redux.sync.xor.b32", ("redux.sync.xor.b32 X, X, -1;", "add.u32 X, X, A;"), r"REDUX\.XOR.*",
          lambda x: np.full_like(x, np.bitwise_xor.reduce(x, axis=None)) + LANE.astype(np.uint32) * MIX,
          inputs={"A": Operand("b32", 1, (LANE.astype(np.uint32) * MIX).astype(np.uint64).reshape(1, LANES))},
          besides=2, note="with an add between"),
    _form("vote.sync.ballot.b32", ("{ .reg .pred p;", "setp.ne.u32 p, X, A;", "vote.sync.ballot.b32 X, p, -1; }"),
          r"VOTE\.ANY", _ballot, inputs={"A": constant(0x80000001)}, besides=1, note="with the comparison",
          start=np.where((LANE == 0) | (LANE == LANES - 1), 5, 0x80000001).astype(np.uint64).reshape(1, LANES)),
    _form("match.any.sync.b32", ("match.any.sync.b32 X, X, -1;",), r"MATCH\.ANY", _match),
]  # fmt: skip
