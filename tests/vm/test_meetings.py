"""Collectives at several statements: lanes that have parted meet if opcode, qualifiers and member mask are the same."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pysm120

HEAD = ".version 8.3\n.target sm_90\n.address_size 64\n"
WORD = 0xFFFFFFFF
FULL = WORD
LEVELS = ("off", "default", "full")
SEEDS = (0, 1, 7)
Lanes = npt.NDArray[np.uint32]


def devices(name: str) -> Iterator[pysm120.Device]:
    """Open the virtual device at every level and with several seeds, or a GPU."""
    options = [""]
    if not name.startswith("cuda"):
        options = [f"?checks={level}&seed={seed}" for level, seed in itertools.product(LEVELS, SEEDS)]
    for option in options:
        with pysm120.Device(name + option) as device:
            yield device


# ---- instructions ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Form:
    """A collective: v is what a lane gives, d what it gets, b and c the operands of shfl, m the member mask."""

    name: str
    text: str
    # (values of the lanes that take part, lane, what it may read) -> d
    result: Callable[[dict[int, int], int, int], int]
    reads_one: bool = False  # a single lane, which must not have exited


def signed(x: int) -> int:
    return x - ((x & 0x80000000) << 1)


def shuffled(mode: str) -> Callable[[dict[int, int], int, int], int]:
    """Shuffle in segments of 16 lanes."""

    def result(values: dict[int, int], lane: int, by: int) -> int:
        least, most = lane & 16, lane & 16 | 15
        j = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": least | by | lane & 1}[mode]
        inside = j >= least if mode == "up" else j <= most
        return (values[j if inside else lane] + (1 << 20) * inside) & WORD

    return result


def ballot(values: dict[int, int]) -> int:
    return sum((value & 1) << lane for lane, value in values.items())


def members(values: dict[int, int]) -> int:
    return sum(1 << lane for lane in values)


def matched(values: dict[int, int], lane: int, key: int) -> int:
    return sum(1 << other for other, value in values.items() if value & key == values[lane] & key)


def all_match(values: dict[int, int], lane: int, key: int) -> int:
    equal = matched(values, lane, key) == members(values)
    return (members(values) + 1) * equal & WORD


def reduced(step: Callable[[int, int], int]) -> Callable[[dict[int, int], int, int], int]:
    def result(values: dict[int, int], _lane: int, _by: int) -> int:
        first, *rest = values.values()
        for value in rest:
            first = step(first, value) & WORD
        return first

    return result


SHUFFLE = "{first}shfl.sync.{mode}.b32 d|q, v, b, {c}, m;\nselp.b32 t, 0x100000, 0, q;\nadd.u32 d, d, t;"
VOTE = "and.b32 t, v, 1;\nsetp.ne.u32 q, t, 0;\nvote.sync.{mode}.pred q, q, m;\nselp.b32 d, 1, 0, q;"
WIDE = "and.b32 t, v, 1;\nmov.b64 w, {{t, t}};\n"
ALL = "match.all.sync.{bits} d|q, {v}, m;\nselp.b32 t, 1, 0, q;\nadd.u32 d, d, t;"
REDUCTIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: a + b,
    "min.u32": min,
    "max.s32": lambda a, b: max(a, b, key=signed),
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
}
FORMS = [
    *(
        Form(f"shfl.{mode}", SHUFFLE.format(mode=mode, c=c, first=first), shuffled(mode), reads_one=True)
        for mode, c, first in (
            ("up", 0x1000, ""),
            ("down", 0x101F, ""),
            ("bfly", 0x101F, ""),
            ("idx", 0x101F, "and.b32 t, lane, 1;\nadd.u32 b, b, t;\n"),
        )
    ),
    Form("vote.all", VOTE.format(mode="all"), lambda v, _lane, _by: ballot(v) == members(v)),
    Form("vote.any", VOTE.format(mode="any"), lambda v, _lane, _by: ballot(v) != 0),
    Form("vote.uni", VOTE.format(mode="uni"), lambda v, _lane, _by: ballot(v) in {0, members(v)}),
    Form(
        "vote.ballot",
        "and.b32 t, v, 1;\nsetp.eq.u32 q, t, 0;\nvote.sync.ballot.b32 d, !q, m;",
        lambda v, _lane, _by: ballot(v),
    ),
    Form("match.any.b32", "and.b32 t, v, 3;\nmatch.any.sync.b32 d, t, m;", lambda v, lane, _by: matched(v, lane, 3)),
    Form("match.any.b64", WIDE.format() + "match.any.sync.b64 d, w, m;", lambda v, lane, _by: matched(v, lane, 1)),
    Form(
        "match.all.b32",
        "and.b32 t, v, 1;\n" + ALL.format(bits="b32", v="t"),
        lambda v, lane, _by: all_match(v, lane, 1),
    ),
    Form("match.all.b64", WIDE.format() + ALL.format(bits="b64", v="w"), lambda v, lane, _by: all_match(v, lane, 1)),
    *(Form(f"redux.{name}", f"redux.sync.{name} d, v, m;", reduced(step)) for name, step in REDUCTIONS.items()),
    Form(
        "elect",
        "elect.sync d|q, m;\nselp.b32 t, 0x100000, 0, q;\nadd.u32 d, d, t;",
        lambda v, lane, _by: min(v) + (0x100000 if lane == min(v) else 0),
    ),
    # lanes give through shared memory, which the barrier orders
    Form(
        "bar.warp",
        "st.shared.b32 [at], v;\nbar.warp.sync m;\nxor.b32 t, b, lane;\nmad.lo.u32 t, t, 4, base;\n"
        "ld.shared.b32 d, [t];\nbar.warp.sync m;",
        lambda v, lane, by: v[lane ^ by],
        reads_one=True,
    ),
]

# ---- programs --------------------------------------------------------------------------------------------------------

# A part is ("call", k); ("if", bit, then, other), whose bit of a lane's number `way` decides; ("loop", field, body),
# whose trips are four bits of it; ("rest", field, body), which has the trips that ("loop", field) lacks to 15; ("exit",
# bit); or ("work", n), n instructions.
Part = tuple[Any, ...]


def by_of(lane: int, k: int) -> int:
    """Return operand b. The lanes that a lane reads are in its half and as even or odd as it is."""
    return (2 * (lane * 3 + k) & 14) if k % 2 else 2 * k & 14


def trips(way: int, field: int) -> int:
    return way >> 4 * field & 15


class Exited(Exception):  # noqa: N818 - no error
    """A lane has exited with this number."""


def follow(program: list[Part], way: int, number: int) -> Generator[tuple[int, int], int, int]:
    """Execute a lane: yield each call and what it gives, and return its result."""
    for kind, *rest in program:
        if kind == "call":
            found = yield rest[0], number ^ (rest[0] * 0x9E3779B9 & WORD)
            number = (number * 1664525 + found + 1013904223) & WORD
        elif kind == "if":
            number = yield from follow(rest[1] if way >> rest[0] & 1 else rest[2], way, number)
        elif kind in {"loop", "rest"}:
            for _ in range(trips(way, rest[0]) if kind == "loop" else 15 - trips(way, rest[0])):
                number = yield from follow(rest[1], way, number)
        elif kind == "exit" and way >> rest[0] & 1:
            raise Exited(number)
    return number


def expect(form: Form, program: list[Part], ways: Lanes, masks: Lanes) -> list[int]:
    """Return the results of a warp's lanes: the calls of a group go together, one after the other."""
    ends = [0] * 32
    lanes = {lane: follow(program, int(ways[lane]), lane * 0x01010101 & WORD) for lane in range(32)}
    calls: dict[int, tuple[int, int]] = {}

    def advance(lane: int, found: int | None) -> None:
        calls.pop(lane, None)
        try:
            calls[lane] = next(lanes[lane]) if found is None else lanes[lane].send(found)
        except (StopIteration, Exited) as end:
            ends[lane] = end.args[0]

    for lane in range(32):
        advance(lane, None)
    while calls:
        group = [lane for lane in calls if masks[lane] == masks[min(calls)]]
        given = {lane: calls[lane][1] for lane in group}
        found = {lane: form.result(given, lane, by_of(lane, calls[lane][0])) for lane in group}
        for lane in group:
            advance(lane, found[lane])
    return ends


def registers(text: str, k: int) -> str:
    """Let calls differ in the registers of what a lane gives and gets, which may be one."""
    names = {"v": "u", "t": "s", "w": "y", "q": "r"} if k % 2 else {}
    names |= {"d": names.get("v", "v")} if k % 3 == 0 else {}
    return re.sub(r"\b[a-z]\b", lambda name: names.get(name[0], name[0]), text)


def write(form: Form, program: list[Part]) -> str:
    """Write the kernel of a program: x is the results, of 32 lanes; then their ways; then their masks."""
    names = itertools.count()

    def parts(program: list[Part]) -> Iterator[str]:
        for kind, *rest in program:
            n = next(names)
            if kind == "call":
                k = rest[0]
                yield registers(f"xor.b32 v, number, {k * 0x9E3779B9 & WORD};", k)
                yield f"mad.lo.u32 b, lane, 3, {k};\nadd.u32 b, b, b;\nand.b32 b, b, 14;" if k % 2 else ""
                yield f"mov.b32 b, {2 * k & 14};" if not k % 2 else ""
                yield registers(form.text, k)
                yield registers("mad.lo.u32 number, number, 1664525, d;\nadd.u32 number, number, 1013904223;", k)
            elif kind in {"if", "exit"}:
                yield f"and.b32 t, way, {1 << rest[0]};\nsetp.eq.u32 p, t, 0;\n@p bra other{n};"
                yield from parts(rest[1]) if kind == "if" else ["bra end;"]
                yield f"bra join{n};\nother{n}:"
                yield from parts(rest[2]) if kind == "if" else []
                yield f"join{n}:"
            elif kind in {"loop", "rest"}:
                yield f".reg .b32 count{n};\nshr.u32 count{n}, way, {4 * rest[0]};\nand.b32 count{n}, count{n}, 15;"
                yield f"sub.u32 count{n}, 15, count{n};" if kind == "rest" else ""
                yield f"again{n}:\nsetp.eq.u32 p, count{n}, 0;\n@p bra left{n};\nsub.u32 count{n}, count{n}, 1;"
                yield from parts(rest[1])
                yield f"bra again{n};\nleft{n}:"
            else:
                yield "add.u32 work, work, lane;\n" * rest[0]

    body = "\n".join(line for line in parts(program) if line)
    return f"""{HEAD}.visible .entry k(.param .u64 param_x)
{{
.reg .pred p, q, r;
.reg .b32 s, t, u, v, d, b, m, number, way, lane, work, at, base;
.reg .b64 x, y, w;
.shared .align 4 .b8 smem[128];
ld.param.u64 x, [param_x];
mov.u32 lane, %laneid;
mad.wide.u32 x, lane, 4, x;
ld.global.b32 way, [x + 128];
ld.global.b32 m, [x + 256];
mov.b32 base, smem;
mad.lo.u32 at, lane, 4, base;
mul.lo.u32 number, lane, 0x01010101;
mov.b32 work, 0;
{body}
end:
st.global.b32 [x], number;
ret;
}}
"""


PROGRAMS: dict[str, list[Part]] = {
    "two arms": [("if", 0, [("call", 1)], [("call", 2)])],
    "three ways": [("if", 0, [("if", 1, [("call", 1)], [("call", 2)])], [("call", 3)]), ("call", 4)],
    "arms of different length": [
        ("if", 0, [("work", 40), ("call", 1), ("call", 2)], [("call", 3), ("work", 3), ("call", 4), ("work", 90)]),
        ("call", 5),
    ],
    "calls behind one another": [("if", 0, [("call", 1), ("call", 1), ("call", 1)], [("call", 1)] * 3)],
    "loops": [("loop", 1, [("call", 1)]), ("rest", 1, [("work", 2), ("call", 2)])],
    "nested": [
        ("loop", 1, [("if", 1, [("call", 1)], [("work", 5), ("call", 2)])]),
        ("if", 2, [("rest", 1, [("call", 3)])], [("rest", 1, [("if", 3, [("call", 4)], [("call", 5)])])]),
    ],
    "lanes that have exited": [("exit", 3), ("if", 0, [("call", 1)], [("call", 2)]), ("call", 3)],
}
UNEQUAL: dict[str, list[Part]] = {
    "lanes that exit": [("loop", 1, [("call", 1)]), ("if", 0, [("call", 2), ("call", 3)], [])],
    "an arm alone": [("if", 0, [("call", 1)], [("work", 9)]), ("call", 2), ("exit", 1), ("loop", 2, [("call", 3)])],
}
MASKS: dict[str, Callable[[int], int]] = {
    "all": lambda _lane: FULL,
    "halves": lambda lane: 0xFFFF << (lane & 16),
    "odd and even": lambda lane: 0x55555555 << (lane & 1),
    "both": lambda lane: 0x5555 << ((lane & 1) + (lane & 16)),
}


def random_ways(rng: np.random.Generator, program: list[Part], form: Form) -> Lanes:
    """Choose the ways of 32 lanes. Lanes that exit first are the odd ones, which no others read."""
    ways = rng.integers(0, 1 << 32, 32, np.uint32)
    if program[0] == ("exit", 3) and form.reads_one:
        ways = ways & ~np.uint32(8) | np.arange(32, dtype=np.uint32) % 2 * 8
    return ways.astype(np.uint32)


def compare(name: str, form: Form, program: list[Part], ways: Lanes, masks: Lanes) -> None:
    """Run a program and compare all lanes with the model."""
    expected = expect(form, program, ways, masks)
    text = write(form, program)
    for device in devices(name):
        x = device.array(np.concatenate([np.zeros(32, np.uint32), ways, masks]))
        device.load(text)["k"](1, 32, x)
        np.testing.assert_array_equal(x.numpy()[:32], np.array(expected, np.uint32), err_msg=f"{device}\n{text}")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_lanes_meet(device_name: str, rng: np.random.Generator, form: Form, program: str) -> None:
    for mask in MASKS.values():
        masks = np.array([mask(lane) for lane in range(32)], np.uint32)
        compare(device_name, form, PROGRAMS[program], random_ways(rng, PROGRAMS[program], form), masks)


@pytest.mark.parametrize("program", UNEQUAL)
@pytest.mark.parametrize("form", [form for form in FORMS if not form.reads_one], ids=lambda form: form.name)
def test_lanes_exit(device_name: str, rng: np.random.Generator, form: Form, program: str) -> None:
    """Lanes that have exited are not waited for, whatever they have executed before."""
    for mask in MASKS.values():
        masks = np.array([mask(lane) for lane in range(32)], np.uint32)
        compare(device_name, form, UNEQUAL[program], random_ways(rng, UNEQUAL[program], form), masks)


def random_program(rng: np.random.Generator, depth: int) -> list[Part]:
    program: list[Part] = []
    for _ in range(rng.integers(1, 4)):
        kind = str(rng.choice(["call", "call", "if", "loop", "exit"]))
        bit, inner = int(rng.integers(0, 32)), random_program(rng, depth - 1) if depth else [("call", 9)]
        if kind == "if":
            program.append(("if", bit, inner, random_program(rng, depth - 1) if depth else []))
        elif kind == "loop" and depth:
            program.append(("loop", bit // 4, inner))
        else:
            program.append(("exit", bit) if kind == "exit" and depth == 0 else ("call", bit))
    return program


@pytest.mark.parametrize("form", ["redux.add.u32", "vote.ballot", "match.any.b32"])
def test_random_programs(device_name: str, rng: np.random.Generator, form: str) -> None:
    """Any control flow, with any partition of the lanes."""
    found = next(one for one in FORMS if one.name == form)
    for groups in (1, 2, 6, 32):
        group = rng.integers(0, groups, 32)
        masks = np.array([sum(1 << k for k in range(32) if group[k] == mine) for mine in group], np.uint32)
        program = random_program(rng, 2)
        compare(device_name, found, program, random_ways(rng, program, found), masks)


# A kernel whose lanes store b. Before {text}: i is the lane, p whether it is even.
STORED = """{head}
.visible .entry k(.param .u64 param_x)
{{
.reg .pred p;
.reg .b32 a, b, i;
.reg .b64 x;
ld.param.u64 x, [param_x];
mov.u32 i, %tid.x;
mad.wide.u32 x, i, 4, x;
and.b32 a, i, 1;
setp.eq.u32 p, a, 0;
{text}
st.global.b32 [x], b;
ret;
}}
"""
SUM = HEAD + ".func (.reg .b32 r) sum(.reg .b32 v) { redux.sync.add.u32 r, v, -1; ret; }"
CALLED = "@p bra even; call (b), sum, (i); bra join; even: redux.sync.add.u32 b, i, -1; join:"
ALTERNATIVES = "@p vote.sync.ballot.b32 b, p, -1; @!p vote.sync.ballot.b32 b, !p, -1;"


@pytest.mark.parametrize(
    ("head", "text", "stored"),
    [
        pytest.param(SUM, CALLED, sum(range(32)), id="a function and its caller"),
        pytest.param(HEAD, ALTERNATIVES, FULL, id="predicated alternatives"),
    ],
)
def test_other_statements_that_meet(device_name: str, head: str, text: str, stored: int) -> None:
    for device in devices(device_name):
        x = device.zeros(32, np.uint32)
        device.load(STORED.format(head=head, text=text))["k"](1, 32, x)
        assert (x.numpy() == stored).all()


# ---- what the virtual device alone tells -----------------------------------------------------------------------------

FRAME = f"""{HEAD}.visible .entry k(.param .u64 param_x)
{{{{
.reg .pred p, q, r, s;
.reg .b32 a, b, c, d, i;
.reg .b64 x, y;
.shared .align 4 .b8 smem[256];
ld.param.u64 x, [param_x];
mov.u32 i, %laneid;
mad.wide.u32 x, i, 4, x;
and.b32 a, i, 1;
setp.eq.u32 p, a, 0;
mov.u32 b, smem;
mad.lo.u32 b, i, 4, b;
#line 1 "meet.ptx"
{{before}}
@p  bra even;
{{odd}}
    bra join;
even:
{{even}}
join:
    {{after}}
    ret;
}}}}
"""


def odd_and_even(odd: str, even: str, after: str = "", before: str = "") -> str:
    return FRAME.format(odd=odd, even=even, after=after, before=before)


APART = {
    "other mode of shfl": ("shfl.sync.up.b32 c, i, 1, 0, -1;", "shfl.sync.down.b32 c, i, 1, 31, -1;"),
    "other mode of vote": ("vote.sync.any.pred q, p, -1;", "vote.sync.all.pred q, p, -1;"),
    "other type of redux": ("redux.sync.min.u32 c, i, -1;", "redux.sync.min.s32 c, i, -1;"),
    "other type of match": ("match.any.sync.b32 c, i, -1;", "match.any.sync.b64 c, x, -1;"),
    "other mode of match": ("match.any.sync.b32 c, i, -1;", "match.all.sync.b32 c, i, -1;"),
    "other instruction": ("bar.warp.sync -1;", "elect.sync c|q, -1;"),
    "other mask": ("bar.warp.sync -1;", "bar.warp.sync 0x7fffffff;"),
    "a lane that never comes": ("bar.warp.sync -1;", "bar.sync 0;"),
}


@pytest.mark.virtual
@pytest.mark.parametrize("apart", APART)
def test_deadlocks(device_name: str, apart: str) -> None:
    """Lanes at statements that do not belong together wait for ever. The report names the lanes that are missing."""
    odd, even = APART[apart]
    missing = 0x2AAAAAAA if "0x7" in even else 0xAAAAAAAA
    for device in devices(device_name):
        with pytest.raises(pysm120.FaultError, match="deadlock") as caught:
            device.load(odd_and_even(odd, even, after="vote.sync.ballot.b32 c, p, -1;"))["k"](1, 32, device.zeros(32))
        message = str(caught.value)
        assert "lanes 0xaaaaaaaa, meet.ptx:3: waits for lanes 0x55555555 of its own warp" in message
        if apart != "a lane that never comes":
            assert f"lanes 0x55555555, meet.ptx:6: waits for lanes 0x{missing:08x} of its own warp" in message


@pytest.mark.virtual
@pytest.mark.parametrize("between", ["bar.warp.sync -1;", "shfl.sync.idx.b32 c, i, 0, 31, -1;", ""])
def test_order(device_name: str, between: str) -> None:
    """What all lanes stored before they met is there for all of them."""
    arm = "    st.shared.b32 [b], i;\n" + between
    after = "xor.b32 b, b, 4; ld.shared.b32 c, [b]; st.global.b32 [x], c;"
    for seed in SEEDS:
        with pysm120.Device(f"{device_name}?checks=full&seed={seed}") as device:
            kernel, x = device.load(odd_and_even(arm, arm, after))["k"], device.zeros(32, np.uint32)
            if not between:
                with pytest.raises(pysm120.FaultError, match=r"data race in a warp: read .*meet\.ptx:"):
                    kernel(1, 32, x)
                continue
            kernel(1, 32, x)
            np.testing.assert_array_equal(x.numpy(), np.arange(32) ^ 1)


@pytest.mark.virtual
def test_order_of_some_lanes(device_name: str) -> None:
    """Lanes that meet with a mask of their half are not ordered after the other half."""
    half = "setp.lt.u32 s, i, 16; selp.b32 d, 0xffff, 0xffff0000, s;"
    arm = "    st.shared.b32 [b], i;\nbar.warp.sync d;"
    for seed, by in itertools.product(SEEDS, (4, 64)):
        after = f"xor.b32 b, b, {by}; ld.shared.b32 c, [b]; st.global.b32 [x], c;"
        with pysm120.Device(f"{device_name}?checks=full&seed={seed}") as device:
            kernel, x = device.load(odd_and_even(arm, arm, after, half))["k"], device.zeros(32, np.uint32)
            if by == 64:
                with pytest.raises(pysm120.FaultError, match="data race in a warp: read"):
                    kernel(1, 32, x)
                continue
            kernel(1, 32, x)
            np.testing.assert_array_equal(x.numpy(), np.arange(32) ^ 1)


# d and s, which odd lanes give, are undefined. Even lanes give 0 and true in other registers, and store the result.
UNDEFINED = {
    "shfl of a defined lane": ("shfl.sync.bfly.b32 c, d, {by}, 31, -1;", 2, False),
    "shfl of an undefined lane": ("shfl.sync.bfly.b32 c, d, {by}, 31, -1;", 1, True),
    "redux": ("redux.sync.add.u32 c, d, -1;", 0, True),
    "and, which zeros decide": ("redux.sync.and.b32 c, d, -1;", 0, False),
    "or": ("redux.sync.or.b32 c, d, -1;", 0, True),
    "match": ("match.any.sync.b32 c, d, -1;", 0, True),
    "any, which a lane decides": ("vote.sync.any.pred q, s, -1; selp.b32 c, 1, 0, q;", 0, False),
    "all": ("vote.sync.all.pred q, s, -1; selp.b32 c, 1, 0, q;", 0, True),
    "ballot": ("vote.sync.ballot.b32 c, s, -1;", 0, True),
    "elect": ("elect.sync c|q, -1;", 0, False),
}


@pytest.mark.virtual
@pytest.mark.parametrize("case", UNDEFINED)
@pytest.mark.parametrize("first", ["odd", "even"])
def test_undefined_values(device_name: str, case: str, first: str) -> None:
    """An undefined value of a lane in one arm reaches the lanes of the other arm that it would reach in one arm."""
    text, by, is_undefined = UNDEFINED[case]
    text = text.format(by=by)
    own = re.sub(r"\bs\b", "r", re.sub(r"\bd\b", "a", text))
    even, odd = f"mov.b32 a, 0; setp.eq.u32 r, a, 0; {own} st.global.b32 [x], c;", text
    is_swapped = first == "even"
    program = odd_and_even(even, odd).replace("@p  bra", "@!p bra") if is_swapped else odd_and_even(odd, even)
    for seed in SEEDS:
        with pysm120.Device(f"{device_name}?checks=full&seed={seed}") as device:
            x = device.array(np.zeros(32, np.uint32))
            device.load(program)["k"](1, 32, x)
            if is_undefined:
                with pytest.raises(pysm120.FaultError, match=r"undefined.*(register d|predicate s)"):
                    x.numpy()
            else:
                x.numpy()


@pytest.mark.virtual
def test_counts_and_traces(device_name: str) -> None:
    """Profiles, counters and traces have each statement once, with its lanes and their values."""
    odd, even = "    shfl.sync.idx.b32 c, i, 5, 31, -1;", "    shfl.sync.idx.b32 c, i, 6, 31, -1;"
    program = odd_and_even(odd, even, after="bar.warp.sync -1;")
    with pysm120.Device(device_name) as device:
        kernel, x = device.load(program)["k"], device.zeros(32, np.uint32)
        device.reset_counters()
        with device.profile() as profile:
            kernel(1, 32, x)
        assert device.counters()["shfl"] == 2
        rows = {s.line: s for s in profile.statements if s.opcode == "shfl" or "shfl" in s.text}
        assert {line: (row.counts.executed, row.counts.lanes) for line, row in rows.items()} == {3: (1, 16), 6: (1, 16)}
        branch = next(s for s in profile.statements if s.text.startswith(("@p  bra", "@p bra")))
        assert (branch.counts.branches, branch.counts.divergent_branches) == (1, 1)
        with device.trace() as found:
            kernel(1, 32, x)
        for line, lanes, value in ((3, 0xAAAAAAAA, 5), (6, 0x55555555, 6)):
            steps = [step for step in found.steps if step.instruction.line == line]
            assert len(steps) == 1
            assert steps[0].mask == lanes
            (written,) = steps[0].writes
            assert all(written.values[k] == value for k in range(32) if lanes >> k & 1)
