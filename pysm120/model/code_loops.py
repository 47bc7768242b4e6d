"""Loops with much code: they measure the cost of instruction fetches, by code size and by the warps' positions in it.

The name of a loop says its instructions and its size:

- ``code_step_48k``: FFMA, which all warps execute in step;
- ``code_apart_48k``: each warp begins at another eighth of the loop, without synchronisation after that;
- ``code_met_48k``: each warp begins at another eighth, and a barrier at the end of every eighth keeps them apart;
- ``code_sms_48k``, ``code_all_48k``: SMs begin at different eighths; the warps of an SM are in step, or as in ``met``;
- ``code_imad_48k``, ``code_mma_48k``: in step, with instructions that take two clocks and six;
- ``code_jump_32x1152``: 32 branches, each over the rest of 1152 bytes of code.

``_alone``: the loop runs on one SM of the chip; the others idle.
"""

from collections.abc import Callable

from pysm120.model.loops import Loop, mma

INSTRUCTION_BYTES = 16
PLACES = 8  # positions in a loop at which warps begin
_SIZES = (16, 24, 32, 40, 48, 64, 96, 128, 192)
_SPREAD = 0x9E3779B1  # neighbouring CTAs begin at positions that are far apart
_JUMPS = (4, 8, 16, 32, 64, 96, 128, 192)
_JUMP_INSTRUCTIONS = 3  # executed instructions of a jump: comparison, branch, FFMA
_NEVER = 0x10000000  # more than the number of rounds


def _fma(i: int) -> str:
    return f"    fma.rn.f32 x{i % 32}, x{i % 32}, half, one;"


def _imad(i: int) -> str:
    return f"    mad.lo.u32 r{i % 32}, r{i % 32}, r40, r41;"


def _mma(i: int) -> str:
    return mma(i % 8)


def _in_step(name: str, make: Callable[[int], str], kib: int, warps: int, ctas: int = 0) -> Loop:
    body = [make(i) for i in range((kib << 10) // INSTRUCTION_BYTES)]
    return Loop(f"code_{name}_{kib}k{'_alone' * bool(ctas)}", warps, tuple(body), ctas=ctas)


def _apart(name: str, kib: int, warps: int, ctas: int = 0) -> Loop:
    """Return a loop whose warps begin at different places: r62 is the place, 0 after the first round."""
    meet, spread, together = name in {"met", "all"}, name in {"sms", "all"}, name == "sms"
    before = [f"    mul.lo.u32 r62, warp, {0 if together else max(1, PLACES // warps)};"]
    if spread:
        before += [
            f"    mul.lo.u32 r61, cta, {_SPREAD};",
            "    shr.u32 r61, r61, 29;",
            "    add.u32 r62, r62, r61;",
        ]
    before += [f"    and.b32 r62, r62, {PLACES - 1};", "    mov.b32 r61, r62;"]
    body = [
        "    setp.eq.u32 p0, r62, 0;",
        "@p0 bra.uni place_0;",
        "    mov.b32 r60, r62;",
        "    mov.b32 r62, 0;",
    ]
    for place in range(1, PLACES):
        body += [f"    setp.eq.u32 p1, r60, {place};", f"@p1 bra.uni place_{place};"]
    count = (kib << 10) // INSTRUCTION_BYTES // PLACES
    for place in range(PLACES):
        body += [f"place_{place}:", *(_fma(place * count + i) for i in range(count))]
        body += ["    bar.sync 0;"] if meet else []
    behind = [  # the barriers of the part of the first round that was skipped
        "passed:",
        "    setp.eq.u32 p0, r61, 0;",
        "@p0 bra.uni passed_all;",
        "    bar.sync 0;",
        "    sub.u32 r61, r61, 1;",
        "    bra.uni passed;",
        "passed_all:",
    ]
    suffix = "_alone" * bool(ctas)
    return Loop(
        f"code_{name}_{kib}k{suffix}", warps, tuple(body), before=tuple(before),
        behind=tuple(behind if meet else ()), ctas=ctas,
    )  # fmt: skip


def _jump(count: int, size: int, warps: int, ctas: int = 0) -> Loop:
    """Return branches that are always taken, over instructions that are never executed.

    The skipped instructions would change the condition of the next branch, so it cannot be computed in advance.
    """
    skipped = size // INSTRUCTION_BYTES - _JUMP_INSTRUCTIONS
    body = ["    mov.b32 t, rounds;"]
    for n in range(count):
        body += [f"    setp.lt.u32 p0, t, {_NEVER + n};", f"@p0 bra.uni skipped_{n};"]
        body += [f"    fma.rn.f32 y{i % 8}, y{i % 8}, y{(i + 1) % 8}, one;" for i in range(skipped - 1)]
        body += ["    mad.lo.u32 t, t, rounds, t;", f"skipped_{n}:", "    fma.rn.f32 x0, x0, half, one;"]
    return Loop(f"code_jump_{count}x{size}{'_alone' * bool(ctas)}", warps, tuple(body), ctas=ctas)


def loops() -> list[Loop]:
    """Return all loops of this module."""
    found = [_in_step("step", _fma, kib, warps) for kib in _SIZES for warps in (1, 2, 4, 8, 16)]
    found += [_apart("apart", kib, warps) for kib in _SIZES for warps in (4, 8, 16)]
    found += [_apart("met", kib, warps) for kib in _SIZES for warps in (2, 4, 8)]
    found += [_apart("sms", kib, warps) for kib in (32, 48, 64, 96, 128) for warps in (1, 8)]
    found += [_apart("all", kib, warps) for kib in (32, 48, 64, 96, 128) for warps in (4, 8)]
    found += [_in_step("step", _fma, kib, warps, 1) for kib in (48, 64, 96, 128, 192) for warps in (1, 8)]
    found += [_apart("met", kib, 8, 1) for kib in (48, 64, 96, 128)]
    found += [_in_step("imad", _imad, kib, warps) for kib in (16, 48, 64, 128) for warps in (1, 4)]
    found += [_in_step("mma", _mma, kib, warps) for kib in (16, 48, 64, 128) for warps in (1, 4)]
    found += [_jump(count, size, 1) for size in (384, 640, 1152) for count in _JUMPS]
    found += [_jump(count, 1152, 4) for count in _JUMPS]
    return found + [_jump(count, 1152, 1, 1) for count in (32, 64, 128, 192)]
