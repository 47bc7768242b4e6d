"""Shared memory: accesses by width, bank conflicts by degree, matrices and their swizzles, atomics."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.microbench.form import LANES, Counts, Form, Model, Operand, Words

LANE = np.arange(LANES)
FILL = np.uint32(0x9E3779B1)
Offsets = npt.NDArray[np.int64]  # [lane]
ROW = 128
ROWS = 8  # of a matrix


def image(size: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of the block."""
    return (np.arange(size // 4, dtype=np.uint32) * FILL).view(np.uint8)


def lanes(values: npt.ArrayLike) -> Any:
    """Return the bits of an operand that differs from lane to lane."""
    return np.asarray(values).astype(np.int64).astype(np.uint64).reshape(-1, LANES)


class _Matrices:
    """The result of ldmatrix: ``halves[reg][half][lane]`` is the offset of 16 bits, from the row offsets by lane."""

    def __init__(self, rows: Offsets, count: int, *, is_transposed: bool) -> None:
        first, second = 2 * (LANE % 4), 2 * (LANE % 4) + 1
        self.halves = np.array([
            (rows[ROWS * j + first] + 2 * (LANE // 4), rows[ROWS * j + second] + 2 * (LANE // 4)) if is_transposed
            else (rows[ROWS * j + LANE // 4] + 2 * first, rows[ROWS * j + LANE // 4] + 2 * second)
            for j in range(count)
        ])  # fmt: skip


def _halves(offsets: Offsets, width: int) -> npt.NDArray[np.int64]:
    """Return the offsets of the halves of each word of a plain access, in the form of ``_Matrices``."""
    return np.array([(offsets + 4 * i, offsets + 4 * i + 2) for i in range(max(1, width // 4))])


def _load(
    name: str,
    access: str,
    sass: str,
    offsets: Offsets,
    halves: npt.NDArray[np.int64],
    *,
    block: int = 8192,
    amount: int,
    **more: Any,
) -> Form:
    """Return a chain of loads: the first word is the lane's own address, the others are summed."""
    count = len(halves)
    others = [f"r{i}" for i in range(1, count)]
    register = "{X0" + "".join(f", {r}" for r in others) + "}" if count > 1 or "matrix" in access else "X0"
    lines = [f"{access} {register}, [X0];", *(f"add.u32 X1, X1, {r};" for r in others)]
    if others:
        lines = [f"{{ .reg .b32 {', '.join(others)};", *lines, "}"]

    def after(_: Words, steps: int) -> Words:
        data = image(block).copy()
        for half in range(2):
            data.view(np.uint16)[halves[0, half] // 2] = (offsets >> 16 * half) & 0xFFFF
        words = data.view(np.uint16)[halves // 2].astype(np.uint32)
        total = (words[1:, 0] | words[1:, 1] << np.uint32(16)).sum(axis=0, dtype=np.uint32) * np.uint32(steps)
        return np.array([offsets, total]).astype(np.uint32)

    return Form(
        name=name,
        group="shared",
        template="shared",
        lines=tuple(lines),
        sass=sass,
        state=Operand("b32", 2, lanes([offsets, 0 * LANE])),
        inputs={"H": Operand("b32", 2, lanes([halves[0, 0], halves[0, 1]]))},
        model=after,
        besides=len(others) / 2,  # sums of three
        amount=amount,
        unit="byte",
        unroll=15,
        options={"block": block},
        **more,
    )


def _loads() -> list[Form]:
    """Return loads by width, without conflicts."""
    forms = [_load("ld.shared.u16", "ld.shared.u16", r"LDS\.U16", 4 * LANE, _halves(4 * LANE, 4), amount=2 * LANES)]
    for bits, kind in ((32, "b32"), (64, "v2.b32"), (128, "v4.b32")):
        width = bits // 8
        sass = "LDS" if bits == 32 else rf"LDS\.{bits}"
        forms.append(
            _load(
                f"ld.shared.{kind}",
                f"ld.shared.{kind}",
                sass,
                width * LANE,
                _halves(width * LANE, width),
                amount=width * LANES,
            )
        )
    for degree in (2, 4, 8, 16, 32):
        offsets = 4 * degree * LANE
        forms.append(_load(f"ld.shared.b32, {degree} lanes on a bank", "ld.shared.b32", "LDS", offsets, _halves(offsets, 4),
                           amount=4 * LANES, warps=(1, 4, 8, 16)))  # fmt: skip
    for name, offsets in (("side by side in rows of 128 bytes", ROW * (LANE % 8) + 16 * (LANE // 8)),
                          ("rows of 128 bytes, swizzled", ROW * (LANE % 8) + 16 * ((LANE // 8) ^ (LANE % 8)))):  # fmt: skip
        forms.append(
            _load(
                f"ld.shared.v4.b32, {name}",
                "ld.shared.v4.b32",
                r"LDS\.128",
                offsets,
                _halves(offsets, 16),
                amount=16 * LANES,
            )
        )
    return forms


def _matrices() -> list[Form]:
    """Return ldmatrix of 16-bit elements, and four of them in rows of 128 bytes by swizzle."""
    forms = []
    packed = 16 * LANE
    for count in (1, 2, 4):
        for transposed in (False, True):
            name = f"ldmatrix.m8n8.x{count}{'.trans' if transposed else ''}.b16"
            access = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
            sass = rf"LDSM\.16\.M{'T' if transposed else ''}88" + (rf"\.{count}" if count > 1 else "")
            halves = _Matrices(packed, count, is_transposed=transposed).halves
            forms.append(_load(name, access, sass, packed, halves, amount=ROW * count))
    for name, bits in (("no", 0), ("32-byte", 1), ("64-byte", 2), ("128-byte", 3)):
        row = LANE % ROWS
        offsets = ROW * row + 16 * ((LANE // ROWS) ^ (row >> (3 - bits)))
        halves = _Matrices(offsets, 4, is_transposed=False).halves
        forms.append(_load(f"ldmatrix.m8n8.x4.b16, rows of 128 bytes, {name} swizzle",
                           "ldmatrix.sync.aligned.m8n8.x4.shared.b16", r"LDSM\.16\.M88\.4", offsets, halves, amount=4 * ROW))  # fmt: skip
    return forms


def _unpacked(
    name: str, access: str, sass: str, registers: int, offsets: Offsets, value: npt.NDArray[np.uint32], amount: int
) -> Form:
    """Return a chain of loads whose words cannot be addresses: the next address is the word plus K."""
    others = [f"r{i}" for i in range(registers)]
    lines = [f"{{ .reg .b32 {', '.join(others)};", f"{access} {{{', '.join(others)}}}, [X0];", "add.u32 X0, r0, K;",
             *(f"add.u32 X1, X1, {r};" for r in others[1:]), "}"]  # fmt: skip
    total = value[1:].sum(axis=0, dtype=np.uint32)
    return Form(
        name=name,
        group="shared",
        template="shared",
        lines=tuple(lines),
        sass=sass,
        state=Operand("b32", 2, lanes([offsets, 0 * LANE])),
        inputs={"K": Operand("b32", 1, lanes((offsets - value[0].astype(np.int64)) & 0xFFFFFFFF))},
        model=lambda _, steps: np.array([offsets, total * np.uint32(steps)]).astype(np.uint32),
        amount=amount,
        unit="byte",
        unroll=15,
        needs=(120,),
        besides=1 + (registers - 1) / 2,
        options={"block": 8192},
        note="with an add between; bytes as they arrive",
    )


def _small(data: npt.NDArray[np.uint8], row: int, bits: int) -> npt.NDArray[np.uint8]:
    """Return the 16 elements of a row of 16 bytes."""
    if bits == 8:
        return data[row : row + 16]
    whole = int.from_bytes(data[row : row + 16 * bits // 8].tobytes(), "little")
    return np.array([whole >> bits * i & ((1 << bits) - 1) for i in range(16)], np.uint8)


def _bytes() -> list[Form]:
    """Return ldmatrix of 8, 6 and 4 bits."""
    forms = []
    data, packed = image(8192), 16 * LANE
    kinds = ((8, "b8", "8"), (6, "b8x16.b6x16_p32", "U6x16P32TO8"), (4, "b8x16.b4x16_p64", "U4x16P64TO8"))
    for bits, kind, opcode in kinds:
        rows = np.array([_small(data, int(at), bits) for at in packed])  # [row][element]
        if bits != 8:
            for count in (1, 2, 4):
                value = np.array(
                    [
                        np.ascontiguousarray(rows[ROWS * j : ROWS * (j + 1)]).view(np.uint32).reshape(LANES)
                        for j in range(count)
                    ]
                )
                forms.append(_unpacked(f"ldmatrix.m8n16.x{count}.{kind}", f"ldmatrix.sync.aligned.m8n16.x{count}.shared.{kind}",
                                       rf"LDSM\.{opcode}\.M816" + (rf"\.{count}" if count > 1 else ""), count, packed, value, count * ROW))  # fmt: skip
        for count in (1, 2):
            # byte j of register 2 m + h is element lane / 4 + 8 h of row 4 (lane % 4) + j of matrix m
            value = np.array([
                np.ascontiguousarray(np.stack([rows[16 * m + 4 * (LANE % 4) + j, LANE // 4 + 8 * h] for j in range(4)], axis=1))
                .view(np.uint32).reshape(LANES)
                for m in range(count) for h in range(2)
            ])  # fmt: skip
            forms.append(_unpacked(f"ldmatrix.m16n16.x{count}.trans.{kind}", f"ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.{kind}",
                                   rf"LDSM\.{opcode}\.MT1616" + (rf"\.{count}" if count > 1 else ""), 2 * count, packed, value,
                                   2 * count * ROW))  # fmt: skip
    return forms


STORED = 0x5A5A5A5A  # equal bytes, because .trans moves them


def _store(
    name: str,
    access: str,
    sass: str | Counts,
    offsets: Offsets,
    registers: int,
    amount: int,
    needs: tuple[int, ...] = (),
    stored: int = 0xFFFFFFFF,
) -> Form:
    """Write a chain of stores; ``stored``: the bits of a word that they write. What lies at the lane's address is read back after the loop.

    They are volatile, because the assembler keeps only the last store to an address.
    """
    lines = (f"{access} [X0], {{{', '.join(['X1'] * registers)}}};" if registers else f"{access} [X0], X1;",)
    left = image(8192).view(np.uint32)[offsets // 4] & np.uint32(0xFFFFFFFF ^ stored)
    return Form(
        name=name,
        group="shared",
        template="shared",
        lines=lines,
        sass=sass,
        state=Operand("b32", 2, lanes([offsets, 0 * LANE + STORED])),
        model=lambda _, __: np.array([offsets, STORED & stored | left]).astype(np.uint32),
        amount=amount,
        unit="byte",
        unroll=15,
        chains=(1,),
        has_latency=False,
        needs=needs,
        besides=1.5 if registers > 1 else 0,  # refill the registers of a vector
        options={"block": 8192, "reads_back": True, "check_warps": 1},
    )


def _stores() -> list[Form]:
    """Return stores by width, with conflicts, and of matrices."""
    forms = [
        _store("st.shared.b8", "st.volatile.shared.b8", r"STS\.U8", 4 * LANE, 0, LANES, stored=0xFF),
        _store("st.shared.b16", "st.volatile.shared.b16", r"STS\.U16", 4 * LANE, 0, 2 * LANES, stored=0xFFFF),
        _store("st.shared.b32", "st.volatile.shared.b32", "STS", 4 * LANE, 0, 4 * LANES),
        _store("st.shared.v2.b32", "st.volatile.shared.v2.b32", r"STS\.64", 8 * LANE, 2, 8 * LANES),
        _store("st.shared.v4.b32", "st.volatile.shared.v4.b32", r"STS\.128", 16 * LANE, 4, 16 * LANES),
    ]
    forms += [
        _store(f"st.shared.b32, {n} lanes on a bank", "st.volatile.shared.b32", "STS", 4 * n * LANE, 0, 4 * LANES)
        for n in (2, 4, 8, 16, 32)
    ]
    for count in (1, 2, 4):
        ending = rf"\.{count}" if count > 1 else ""
        kinds = [
            ("m8n8", "", "b16", r"16\.M88"),
            ("m8n8", ".trans", "b16", r"16\.MT88"),
            ("m16n8", ".trans", "b8", r"8\.MT168"),
        ]
        forms += [
            _store(f"stmatrix.{shape}.x{count}{trans}.{kind}", f"stmatrix.sync.aligned.{shape}.x{count}{trans}.shared.{kind}",
                   rf"STSM\.{opcode}{ending}", 16 * (LANE % (8 * count)), count, count * ROW, needs=(120,) if kind == "b8" else ())
            for shape, trans, kind, opcode in kinds
        ]  # fmt: skip
    return forms


def _atomics() -> list[Form]:
    """Return additions to words of lanes, and of all lanes to one word."""

    def sums(fold: Callable[[int], Any], offsets: Offsets) -> Model:
        def after(_: Words, steps: int) -> Words:
            start = image(8192).view(np.uint32)[offsets // 4]
            return np.array([offsets, start + fold(steps)]).astype(np.uint32)

        return after

    def form(name: str, offsets: Offsets, model: Model, note: str) -> Form:
        return Form(
            name=name, group="shared", template="shared", lines=("red.shared.add.u32 [X0], A;",), sass=r"ATOMS\..*",
            state=Operand("b32", 2, lanes([offsets, 0 * LANE])), inputs={"A": Operand("b32", 1, 3)}, model=model,
            amount=LANES, unroll=15, chains=(1,), has_latency=False,
            options={"block": 8192, "reads_back": True, "check_warps": 1}, note=note,
        )  # fmt: skip

    return [
        form("red.shared.add.u32", 4 * LANE, sums(lambda steps: np.uint32(3 * steps), 4 * LANE), "a word for each lane"),
        form("red.shared.add.u32, one word", 0 * LANE, sums(lambda steps: np.uint32(3 * steps * LANES), 0 * LANE), "one word for all lanes"),
    ]  # fmt: skip


FORMS = [*_loads(), *_matrices(), *_bytes(), *_stores(), *_atomics()]
