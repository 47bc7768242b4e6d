"""Loops of known instructions, in PTX, for the calibration and validation of the timing model.

Every kernel is ``loop(out, rounds)``. Each warp of the grid writes %clock64 before and after its rounds to out, and the
sum of all results of the loop, so that ptxas cannot remove any instruction.
"""

import dataclasses
from collections.abc import Callable, Sequence

SHARED_BYTES = 16384
_HEADER = """.version 8.8
.target {target}
.address_size 64
.visible .entry loop(.param .u64 param_out, .param .u32 param_rounds)
.reqntid {threads}
{{
    .reg .b64 out, begin, end, offset;
    .reg .b32 rounds, tid, cta, warp, base, lane, sum, t;
    .reg .pred more, ready;
    .reg .b32 a<16>, b<8>, r<64>;
    .reg .f32 c<64>, x<64>, y<64>, one, half;
    .shared .align 1024 .b8 tile[{bytes}];
    .shared .align 8 .b64 barrier, other;
    .reg .b64 source;
    .reg .pred is_first, p<4>;
    ld.param.u64 out, [param_out];
    ld.param.u32 rounds, [param_rounds];
    mov.u32 tid, %tid.x;
    mov.u32 cta, %ctaid.x;
    mov.u32 base, tile;
    add.u32 base, base, 2047;
    and.b32 base, base, -2048;
    and.b32 lane, tid, 31;
    cvt.rn.f32.u32 half, lane;
    mul.f32 half, half, 0f00000000;
    add.f32 one, half, 0f3f800000;
    add.f32 half, half, 0f3f000000;
"""
_BEGIN = """
    setp.ne.u32 more, tid, 0;
@more bra begun;
    mbarrier.init.shared::cta.b64 [barrier], {arrivals};
    mbarrier.init.shared::cta.b64 [other], {arrivals};
begun:
    setp.eq.u32 is_first, tid, 0;
    shr.u32 warp, tid, 5;
    mul.wide.u32 source, cta, 16384;
    add.u64 source, source, out;
    add.u64 source, source, 1048576;
    mov.u32 t, tid;
zero:
    shl.b32 sum, t, 2;
    add.u32 sum, sum, base;
    st.shared.b32 [sum], 0;
    add.u32 t, t, {threads};
    setp.lt.u32 more, t, {words};
@more bra zero;
    shl.b32 t, lane, 4;
    add.u32 base, base, t;
    fence.proxy.async.shared::cta;
    bar.sync 0;
{loads}
{before}
    bar.sync 0;
    mov.u64 begin, %clock64;
again:
.pragma "nounroll";
    xor.b32 base, base, 1024;
"""
_END = """
    sub.u32 rounds, rounds, 1;
    setp.ne.u32 more, rounds, 0;
@more bra again;
    mov.u64 end, %clock64;
{behind}
    mov.b32 sum, 0;
"""
_LAST = """
    mad.lo.u32 warp, cta, {threads}, tid;
    shr.u32 warp, warp, 5;
    mul.wide.u32 offset, warp, 24;
    add.u64 out, out, offset;
    setp.ne.u32 more, lane, 0;
@more bra done;
    st.global.u64 [out], begin;
    st.global.u64 [out + 8], end;
done:
    st.global.u32 [out + 16], sum;
    ret;
never:
    st.global.u32 [out + 20], sum;
    ret;
}}
"""


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop: its name, the warps of the one CTA of an SM, and its body.

    ``distinct``: all values differ, so that ptxas cannot merge registers. ``before`` and ``behind``: lines that are not
    timed. ``ctas``: CTAs of the launch; 0 means one on every SM.
    """

    name: str
    warps: int
    body: tuple[str, ...]
    arrivals: int = 0
    distinct: bool = False
    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    ctas: int = 0

    def ptx(self, target: str) -> str:
        """Return the kernel."""
        values = {
            "target": target,
            "threads": 32 * self.warps,
            "bytes": SHARED_BYTES + 2048,
            "words": SHARED_BYTES // 4,
        }
        values["arrivals"] = self.arrivals or 32 * self.warps
        begin = [f"    mov.b32 r{i}, lane;" for i in range(64)]
        if self.distinct:
            begin += [
                f"    fma.rn.f32 {name}{i}, one, {float(2 * i + k)}, half;"
                for i in range(64)
                for k, name in enumerate("cxy")
            ]
        else:
            begin += [f"    mov.f32 c{i}, half;\n    mov.f32 x{i}, one;\n    mov.f32 y{i}, one;" for i in range(64)]
        loads = [
            f"    ld.volatile.shared.b32 {name}, [base];"
            for name in (*(f"a{i}" for i in range(16)), *(f"b{i}" for i in range(8)))
        ]
        used = " ".join(self.body)
        end = []
        for prefix, count in (("c", 64), ("x", 64), ("y", 64), ("r", 64)):
            end += [
                f"    mov.b32 t, {prefix}{i};\n    xor.b32 sum, sum, t;"
                for i in range(count)
                if any(f"{prefix}{i}{mark}" in used for mark in ",};")
            ]
        parts = [
            _HEADER.format(**values),
            *begin,
            _BEGIN.format(**values, loads="\n".join(loads), before="\n".join(self.before)),
            *self.body,
            _END.format(behind="\n".join(self.behind)),
            *end,
        ]
        return "\n".join([*parts, _LAST.format(**values)])


def _names(prefix: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"{prefix}{first + i}" for i in range(count)) + "}"


def mma(acc: int, a: str = "{a0, a1, a2, a3}", b: str = "{b0, b1}") -> str:
    """Return c[4 acc..] += a b."""
    c = _names("c", 4 * acc, 4)
    return f"    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {c}, {a}, {b}, {c};"


def ldmatrix(to: int, offset: int, *, transposed: bool = False) -> str:
    """Return the load of four matrices to r[to..]."""
    kind = ".trans" if transposed else ""
    return f"    ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {_names('r', to, 4)}, [base + {offset}];"


def _ex2(i: int) -> str:
    return f"    ex2.approx.ftz.f32 x{i}, x{i};"


def _softmax(i: int) -> list[str]:
    """Return the work of an element: scale, exponential, sum."""
    return [
        f"    fma.rn.f32 x{i}, x{i}, half, one;",
        f"    ex2.approx.ftz.f32 x{i}, x{i};",
        f"    add.rn.f32 y{i % 4}, y{i % 4}, x{i};",
    ]


def _pack(to: int, i: int) -> str:
    return f"    cvt.rn.bf16x2.f32 r{to}, x{i + 1}, x{i};"


def _attention(products: int, loads: int, elements: int) -> tuple[str, ...]:
    """Return a loop like that of attention: loads feed products, with exponentials between them."""
    work = [line for i in range(elements) for line in _softmax(i)]
    lines: list[str] = []
    for n in range(products):
        if n % (products // loads) == 0:
            lines.append(ldmatrix(4 * (n // (products // loads) % 4), 512 * (n // (products // loads) % 16)))
        source = 4 * (n // (products // loads) % 4) + 2 * (n % 2)
        lines.append(mma(n % 8, b=_names("r", source, 2)))
        share = len(work) * (n + 1) // products
        done = len(work) * n // products
        lines += work[done:share]
    lines += [_pack(32 + i // 2, i) for i in range(0, elements, 2)]
    return tuple(lines)


def _mma_ldmatrix(loads: int, products: int) -> tuple[str, ...]:
    """Return loads that feed products, as in a matrix product without its copies to shared memory."""
    lines = [ldmatrix(4 * i, 512 * i, transposed=i % 2 == 1) for i in range(loads)]
    lines += [mma(i % 16, b=_names("r", 4 * (i % loads) + 2 * (i // loads % 2), 2)) for i in range(products)]
    return tuple(lines)


def _beside(work: Sequence[str], *, a_sets: int = 1, b_sets: int = 1) -> list[str]:
    """Return 16 products with numbers of different A and B, and other work spread evenly between them."""
    lines: list[str] = []
    for n in range(16):
        a, b = _names("a", 4 * (n % a_sets), 4), _names("b", 2 * (n % b_sets), 2)
        lines.append(mma(n % 8, a=a, b=b))
        lines += work[len(work) * n // 16 : len(work) * (n + 1) // 16]
    return lines


def _fma(i: int) -> str:
    return f"    fma.rn.f32 x{i}, x{i}, half, one;"


def _add(i: int) -> str:
    return f"    add.rn.f32 y{i}, y{i}, one;"


def _max(i: int) -> str:
    return f"    max.f32 y{i}, y{i}, x{(i + 1) % 48};"


def _loads(count: int, *, products: int = 16) -> list[str]:
    """Return products whose B operands are loaded."""
    lines: list[str] = []
    for n in range(products):
        if n * count // products != (n - 1) * count // products:
            lines.append(ldmatrix(4 * (n * count // products % 8), 512 * (n * count // products)))
        lines.append(mma(n % 8, b=_names("r", 4 * (n * count // products % 8) + 2 * (n % 2), 2)))
    return lines


_CHAINS: dict[str, Sequence[str]] = {
    "chain_mma": [mma(0)] * 8,
    "chain_ex2": [_ex2(0)] * 8,
    "chain_fma": ["    fma.rn.f32 x0, x0, half, one;"] * 16,
    "chain_ldmatrix": [
        "    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [base];",
        "    add.u32 base, base, r0;",
    ]
    * 4,
    "chain_lds": ["    ld.shared.b32 r0, [base];", "    add.u32 base, base, r0;"] * 8,
    "chain_shfl": ["    shfl.sync.bfly.b32 r0, r0, 1, 31, -1;"] * 8,
    "chain_barrier": ["    bar.sync 0;"] * 4,
    "chain_mbarrier": [
        "    mbarrier.arrive.shared::cta.b64 _, [barrier];",
        "    and.b32 t, rounds, 1;",
        "    xor.b32 t, t, 0;",
        "retry:",
        "    mbarrier.try_wait.parity.shared::cta.b64 ready, [barrier], t;",
        "@!ready bra retry;",
    ],
}


def _skip(n: int, work: int) -> str:
    """Return a branch that is always taken, over instructions that are never executed."""
    lines = "\n".join(f"    fma.rn.f32 y{i % 8}, y{i % 8}, y{(i + 1) % 8}, one;" for i in range(work))
    return (
        f"    setp.ge.f32 p0, x0, half;\n@p0 bra skipped_{n};\n{lines}\nskipped_{n}:\n    fma.rn.f32 x0, x0, half, one;"
    )


def _pass() -> str:
    """Return a branch that is never taken."""
    return "    setp.lt.f32 p0, x0, half;\n@p0 bra never;\n    fma.rn.f32 x0, x0, half, one;"


_COPY = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"


def _bulk(count: int, size: int) -> list[str]:
    """Return copies from global memory, and the wait for them."""
    lines = [f"@is_first mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], {count * size};"]
    for i in range(count):
        lines += [
            f"    add.u64 offset, source, {i * size};",
            f"    mov.u32 t, tile;\n    add.u32 t, t, {1024 + i * size};",
            f"@is_first {_COPY} [t], [offset], {size}, [barrier];",
        ]
    return [*lines, "    and.b32 t, rounds, 1;", *_wait("barrier", "t", 0)]


def _wait(barrier: str, parity: str, n: int) -> list[str]:
    return [
        f"retry_{n}:",
        f"    mbarrier.try_wait.parity.shared::cta.b64 ready, [{barrier}], {parity};",
        f"@!ready bra retry_{n};",
    ]


_HAND_OFFS: dict[str, tuple[int, int, Sequence[str]]] = {
    "try_wait": (1, 0, [line for i in range(4) for line in _wait("barrier", "1", i)]),
    "ping_pong": (
        2,
        32,
        [
            "    and.b32 t, rounds, 1;",
            "    setp.ne.u32 p1, warp, 0;",
            "@p1 bra pong;",
            "    mbarrier.arrive.shared::cta.b64 _, [barrier];",
            *_wait("other", "t", 0),
            "    bra both;",
            "pong:",
            *_wait("barrier", "t", 1),
            "    mbarrier.arrive.shared::cta.b64 _, [other];",
            "both:",
        ],
    ),
    **{
        f"bulk_{n}x{size}": (1, 1, _bulk(n, size))
        for n, size in ((1, 1024), (1, 4096), (1, 12288), (4, 1024), (4, 3072))
    },
}
_BRANCHES: dict[str, Sequence[str]] = {
    "branch_taken_near": [_skip(i, 4) for i in range(4)],
    "branch_taken_far": [_skip(i, 64) for i in range(4)],
    "branch_not_taken": [_pass()] * 4,
    "vote": ["    setp.lt.f32 p0, x0, half;\n    vote.sync.any.pred p0, p0, -1;\n    selp.f32 x0, half, one, p0;"] * 4,
    **{
        f"code_{n}": [f"    fma.rn.f32 x{i % 32}, x{i % 32}, half, one;" for i in range(n)]
        for n in (512, 1024, 2048, 4096)
    },
}
_RATES: dict[str, Sequence[str]] = {
    "rate_mma": [mma(i % 8) for i in range(16)],
    "rate_ex2": [_ex2(i) for i in range(16)],
    "rate_ldmatrix": [
        line for i in range(8) for line in (ldmatrix(4 * i, 512 * i), f"    xor.b32 r{40 + i}, r{40 + i}, r{4 * i};")
    ],
    "rate_fma": [f"    fma.rn.f32 x{i}, x{i}, half, one;" for i in range(16)],
    "rate_alu": [f"    max.f32 x{i}, x{i}, y{i};\n    max.f32 y{i}, y{i}, x{(i + 1) % 16};" for i in range(16)],
    "rate_pack": [f"    cvt.rn.bf16x2.f32 r{i}, x{i}, x{i + 16};\n    mov.b32 x{i}, r{i};" for i in range(16)],
}
_BESIDE: dict[str, Sequence[str]] = {
    "mma_other_a": _beside([], a_sets=4),
    **{f"mma_{n}fma": _beside([_fma(i) for i in range(n)]) for n in (8, 16, 32, 48)},
    "mma_other_a_32fma": _beside([_fma(i) for i in range(32)], a_sets=4),
    **{f"mma_{n}add": _beside([_add(i) for i in range(n)]) for n in (16, 32)},
    **{f"mma_{n}max": _beside([_max(i) for i in range(n)]) for n in (8, 16, 32)},
    **{f"mma_{n}ex2": _beside([_ex2(i) for i in range(n)]) for n in (4, 8, 16)},
    **{
        f"mma_{n}pack": _beside([_pack(i, 2 * i) + f"\n    mov.b32 x{2 * i}, r{i};" for i in range(n)]) for n in (8, 16)
    },
    **{f"mma_{n}ldmatrix": _loads(n) for n in (2, 4, 8, 16)},
    **{f"mma_{n}shfl": _beside([f"    shfl.sync.bfly.b32 r{i}, r{i}, 1, 31, -1;" for i in range(n)]) for n in (4, 8)},
    "fma_ex2": [line for i in range(16) for line in (_fma(i), _fma(i + 16), _ex2(32 + i))],
    "fma_max_ex2": [line for i in range(16) for line in (_fma(i), _max(i), _ex2(32 + i))],
    "ldmatrix": [ldmatrix(4 * i, 512 * i) for i in range(8)]
    + [f"    xor.b32 r{32 + i}, r{32 + i}, r{4 * i};" for i in range(8)],
    "lds": [f"    ld.shared.v4.b32 {_names('r', 4 * i, 4)}, [base + {512 * i}];" for i in range(8)]
    + [f"    xor.b32 r{32 + i}, r{32 + i}, r{4 * i};" for i in range(8)],
}


def _products(work: Sequence[str]) -> list[str]:
    """Return a loop of products without a common operand."""
    return _beside(work, a_sets=4, b_sets=4)


def _of_three(i: int) -> str:
    """Return an fma of three registers that no other one uses."""
    return f"    fma.rn.f32 x{i}, x{i}, y{i}, x{i + 16};"


def _of_two(i: int) -> str:
    return f"    fma.rn.f32 x{i}, x{i}, y{i}, one;"


def _load_of(registers: int, i: int) -> str:
    """Return the load of one matrix, of two or of four."""
    kind = f"ldmatrix.sync.aligned.m8n8.x{registers}.shared.b16"
    return f"    {kind} {_names('r', registers * i, registers)}, [base + {512 * i}];"


def _each(count: int, *makers: Callable[[int], str]) -> list[str]:
    """Return the lines of the makers, repeated."""
    return [make(i) for i in range(count) for make in makers]


def _max_of(i: int) -> str:
    """Return a maximum of two registers that no other one uses."""
    return f"    max.f32 x{i}, x{i}, y{i};"


def _add_of(i: int) -> str:
    return f"    add.rn.f32 x{i}, x{i}, y{i};"


# These measure the ports of the registers: products without a common operand use them most.
_PORTS: dict[str, Sequence[str]] = {
    "mma": _products([]),
    "mma_same_a": _beside(_each(16, _of_three), b_sets=4),
    "mma_same_b": _beside(_each(16, _of_three), a_sets=4),
    "mma_same": _beside(_each(16, _of_three)),
    **{f"{n}fma3": _products(_each(n, _of_three)) for n in (4, 8, 16, 32)},
    **{f"{n}fma2": _products(_each(n, _of_two)) for n in (8, 16, 32)},
    **{f"{n}fma1": _products(_each(n, _fma)) for n in (8, 16, 32)},
    **{f"{n}add2": _products(_each(n, _add_of)) for n in (8, 16, 32)},
    **{f"{n}max2": _products(_each(n, _max_of)) for n in (8, 16)},
    **{f"{n}ex2": _products(_each(n, _ex2)) for n in (4, 8)},
    **{f"{n}ldmatrix_x{k}": _products([_load_of(k, i) for i in range(n)]) for k, n in ((1, 8), (2, 8), (4, 4), (4, 6))},
    "4ldmatrix_16fma3": _products(
        [line for i in range(4) for line in (_load_of(4, i), *(_of_three(4 * i + k) for k in range(4)))]
    ),
    "4ldmatrix_8ex2": _products([line for i in range(4) for line in (_load_of(4, i), _ex2(2 * i), _ex2(2 * i + 1))]),
    "8ex2_16fma3": _products(
        [line for i in range(8) for line in (_ex2(48 + i), _of_three(2 * i), _of_three(2 * i + 1))]
    ),
    "fma3": _each(32, _of_three),
    "fma2": _each(32, _of_two),
    "fma3_max2": _each(24, _of_three, lambda i: f"    max.f32 y{i + 24}, y{i + 24}, y{i};"),
}
_SUMS = 65536  # bytes to which the warps of a CTA add in a round, at most
# Where a CTA adds: out + 1 MiB + ctaid * _SUMS + 16 tid. The launch of a CTA on every SM stays within the buffer.
_BEFORE_ADDS = (
    f"    mul.wide.u32 source, cta, {_SUMS};",
    "    add.u64 source, source, out;",
    "    mul.wide.u32 offset, tid, 16;",
    "    add.u64 source, source, offset;",
    "    add.u64 source, source, 1048576;",
)


def _adds(count: int, warps: int) -> list[str]:
    """Return additions to L2 of 16 bytes a lane; no two of a round go to the same bytes if they fit in _SUMS."""
    places = [512 * warps * i % _SUMS for i in range(count)]
    return [f"    red.relaxed.gpu.global.add.v4.f32 [source + {at}], {{x0, x1, x2, x3}};" for at in places]


def _wait_of(count: int) -> list[str]:
    """Return a chain of multiplications and additions, four clocks each."""
    return ["    fma.rn.f32 x8, x8, half, one;"] * count


def _mma_adds(adds: int, warps: int, *, spread: bool) -> list[str]:
    """Return 128 products, and additions between them, or behind them."""
    products = [mma(i % 8) for i in range(128)]
    each = _adds(adds, warps)
    if not spread:
        return products + each
    step = len(products) // adds
    return [line for i, add in enumerate(each) for line in (*products[step * i : step * (i + 1)], add)]


_ADD_WARPS = 8


def _add_loops() -> list[Loop]:
    """Return additions to L2: without other work, before a wait, beside ldmatrix and loads from L2.

    A loop whose name ends in ``_alone`` runs on one SM, so that L2 is no limit.
    """
    bodies: list[tuple[str, int, int, list[str]]] = [
        (f"adds_{n}", warps, ctas, _adds(n, warps)) for n, warps in ((16, 1), (16, 8), (8, 32)) for ctas in (0, 1)
    ]
    bodies += [
        (f"adds_{n}_wait", _ADD_WARPS, ctas, _adds(n, _ADD_WARPS) + _wait_of(512))
        for n in (1, 2, 4, 8, 12, 16)
        for ctas in (0, 1)
    ]
    used = [f"    xor.b32 r{32 + i}, r{32 + i}, r{4 * i};" for i in range(8)]
    shared = [
        line
        for i in range(0, 28, 4)
        for line in (
            *(ldmatrix(4 * k, 512 * (i + k)) for k in range(4)),
            *(f"    xor.b32 r32, r32, r{4 * k};" for k in range(4)),
        )
    ]
    bodies += [(f"adds_{n}_ldmatrix", _ADD_WARPS, 1, _adds(n, _ADD_WARPS) + shared) for n in (0, 4, 8)]
    load = "ld.relaxed.gpu.global.v4.b32"
    loads = [f"    {load} {_names('r', 4 * i, 4)}, [source + {_SUMS // 2 + 4096 * i}];" for i in range(8)]
    bodies += [(f"adds_{n}_loads", _ADD_WARPS, 0, _adds(n, _ADD_WARPS) + loads + used) for n in (0, 4, 8)]
    return [
        Loop(f"{name}_alone" if ctas else name, warps, tuple(body), before=_BEFORE_ADDS, ctas=ctas)
        for name, warps, ctas, body in bodies
    ]


_MIXES: dict[str, Sequence[str]] = {
    "mix_mma_ex2": [line for i in range(16) for line in (mma(i % 8), _ex2(i))],
    "mix_mma_2ex2": [line for i in range(16) for line in (mma(i % 8), _ex2(2 * i), _ex2(2 * i + 1))],
    "mix_mma_ldmatrix": _mma_ldmatrix(4, 16),
    "mix_mma_2ldmatrix": _mma_ldmatrix(8, 16),
    "mix_softmax": [line for i in range(32) for line in _softmax(i)] + [_pack(i // 2, i) for i in range(0, 32, 2)],
    "mix_attention": _attention(32, 8, 16),
    "mix_attention_loads": _attention(32, 16, 16),
    "mix_in_turn": [*[mma(i % 8) for i in range(32)], *[line for i in range(32) for line in _softmax(i)]],
    "mix_fma_alu": [f"    fma.rn.f32 x{i}, x{i}, half, one;\n    max.f32 y{i}, y{i}, x{i};" for i in range(32)],
}


def calibration() -> list[Loop]:
    """Return the loops from which the parameters of a chip are calibrated."""
    found = [Loop(name, 1, tuple(body)) for name, body in _CHAINS.items()]
    found += [Loop("chain_barrier", warps, tuple(_CHAINS["chain_barrier"])) for warps in (4, 8)]
    found += [Loop(name, warps, tuple(body)) for name, body in _BRANCHES.items() for warps in (1, 8)]
    found += [Loop(name, warps, tuple(body), arrivals) for name, (warps, arrivals, body) in _HAND_OFFS.items()]
    found += [Loop(name, warps, tuple(body)) for name, body in _RATES.items() for warps in (1, 4, 16)]
    found += [
        Loop(f"ports_{name}", warps, tuple(body), distinct=True)
        for name, body in _PORTS.items()
        for warps in (4, 8, 16)
    ]
    found += [Loop(f"beside_{name}", warps, tuple(body)) for name, body in _BESIDE.items() for warps in (4, 8, 16)]
    return found + _add_loops()


def validation() -> list[Loop]:
    """Return the loops for validation: no parameter is fitted to them."""
    found = [Loop("rate_mma", warps, tuple(_RATES["rate_mma"])) for warps in (2, 8, 12)]
    found += [Loop(name, warps, tuple(body)) for name, body in _MIXES.items() for warps in (4, 8, 16)]
    return found + [
        Loop(
            f"mix_mma_{n}adds_{'spread' if spread else 'behind'}",
            8,
            tuple(_mma_adds(n, 8, spread=spread)),
            before=_BEFORE_ADDS,
        )
        for n in (4, 8, 16)
        for spread in (False, True)
    ]
