"""The registers that each decoded instruction reads and writes are those of its PTX text, read here once more."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import inside
import pytest

pytestmark = pytest.mark.virtual

ROOT = Path(__file__).resolve().parents[2]
TEXTS = sorted((ROOT / "tests" / "corpus").glob("*.ptx"))
EXPANSIONS = ["attention_mxfp8_192x64_d128.sm_120f.ptx", "quantize_mxfp8_bf16_d.sm_120f.ptx"]

# Instructions without a destination, up to the first operand; the others write what their first operand names.
NO_RESULT = re.compile(
    r"(st|red|bra|brx|ret|exit|trap|brkpt|membar|fence|stmatrix|cp|prefetch|prefetchu|applypriority|discard|nanosleep|"
    r"tensormap|setmaxnreg|griddepcontrol|pmevent|bar|barrier)(\.|$)|mbarrier\.(init|inval|expect_tx|complete_tx)"
)

SAMPLE = """
.version 8.8
.target sm_120f
.address_size 64
.func (.reg .b32 back) twice(.reg .b32 value) {
    add.u32 back, value, value;
    ret;
}
.visible .entry k(.param .u64 at) {
    .reg .pred p, q, %p<3>;
    .reg .b16 h, g;
    .reg .b32 a, b, c, d, %r<8>;
    .reg .b64 x, y, z, policy;
    .reg .b128 wide;
    .reg .f32 f, e;
    .shared .align 16 .b8 s[256];
    ld.param.u64 x, [at];
    mov.u32 a, %tid.x;
    mov.u64 y, %clock64;
    cvt.u64.u32 z, %ctaid.y;
    {
        .reg .b32 a;
        mov.u32 a, 5;
        @!p add.u32 b, a, a;
    }
    mov.b64 {a, b}, x;
    mov.b64 {_, b}, x;
    mov.b64 x, {a, b};
    mov.b128 wide, {x, y};
    mov.b128 {y, x}, wide;
    mov.pred p, q;
    not.pred q, p;
    and.pred p, %p0, !%p1;
    setp.lt.s32 p|q, a, b;
    setp.eq.and.u32 p|_, a, 3, !q;
    set.eq.u32.s32 c, a, b;
    lop3.or.b32 a|p, b, c, d, 0x96, q;
    selp.b32 a, b, c, p;
    slct.s32.f32 a, b, c, f;
    testp.finite.f32 p, f;
    cvt.rni.s8.f32 a, f;
    cvt.rn.bf16x2.f32 a, f, e;
    cvt.u16.u64 h, x;
    ld.global.s8 x, [x];
    ld.shared.v4.b32 {a, b, c, d}, [s + 16];
    ld.global.v2.u8 {h, g}, [x + 2];
    ld.global.L2::cache_hint.b32 a, [x], policy;
    createpolicy.fractional.L2::evict_first.b64 policy, 0f3F800000;
    createpolicy.range.global.L2::evict_last.b64 policy, [x], a, b;
    st.global.L2::cache_hint.v2.b32 [x], {a, b}, policy;
    @q st.shared.b16 [a], x;
    atom.global.add.u32 a, [x + 4], b;
    atom.global.cas.b32 a, [x], b, c;
    red.global.add.f32 [x], f;
    add.cc.u32 a, b, c;
    addc.u32 %r1, %r2, %r3;
    shfl.sync.bfly.b32 a|p, b, c, 31, d;
    vote.sync.ballot.b32 a, !p, b;
    vote.sync.all.pred p, q, b;
    match.all.sync.b32 a|p, b, c;
    redux.sync.add.s32 a, b, c;
    activemask.b32 a;
    elect.sync a|p, b;
    movmatrix.sync.aligned.m8n8.trans.b16 a, b;
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {a, b}, [c];
    stmatrix.sync.aligned.m8n8.x2.shared.b16 [c], {a, b};
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {f, e, f, e}, {a, b, c, d}, {a, b}, {f, e, f, e};
    mma.sync.aligned.kind::mxf8f6f4.block_scale.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0
        {f, e, f, e}, {a, b, c, d}, {a, b}, {f, e, f, e}, %r4, {h, 0}, %r5, {g, 0};
    bar.sync a, b;
    bar.red.popc.u32 a, 1, p;
    bar.red.or.pred p, 1, !q;
    bar.warp.sync a;
    mbarrier.init.shared.b64 [a], b;
    mbarrier.arrive.shared.b64 x, [a], b;
    mbarrier.arrive.expect_tx.shared.b64 _, [a], b;
    mbarrier.test_wait.shared.b64 p, [a], x;
    mbarrier.try_wait.parity.shared.b64 q, [x + 8], a, b;
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [a], b;
    mbarrier.pending_count.b64 a, x;
    cp.async.ca.shared.global [a], [x], 4, b;
    cp.async.ca.shared.global [a], [x], 4, p;
    cp.async.cg.shared.global.L2::cache_hint [a], [x], 16, policy;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [a], [x], b, [c];
    cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [x], [a], b, policy;
    cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [a], [x, {b, 3}], [c];
    cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
        [a], [x, {a, b, c, d, 1}], [c];
    cp.async.bulk.tensor.1d.global.shared::cta.bulk_group.L2::cache_hint [y, {a}], [b], policy;
    cp.reduce.async.bulk.tensor.3d.global.shared::cta.max.bulk_group [x, {a, b, c}], [d];
    cp.async.bulk.prefetch.tensor.2d.L2.global.L2::cache_hint [x, {a, b}], policy;
    tensormap.replace.tile.global_address.shared::cta.b1024.b64 [a], x;
    tensormap.replace.tile.box_dim.global.b1024.b32 [x], 1, b;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [x], [a], 128;
    fence.proxy.tensormap::generic.acquire.gpu [x], 128;
    prefetch.tensormap [y];
    cp.async.mbarrier.arrive.noinc.shared.b64 [a];
    prefetch.global.L2 [x];
    isspacep.shared p, x;
    cvta.to.global.u64 y, x;
    nanosleep.u32 a;
    call (b), twice, (a);
    call (b), twice, (3);
    targets: .branchtargets one, two;
    brx.idx a, targets;
one:
    @p bra two;
two:
    @!q exit;
    ret;
}
"""


class Uses(NamedTuple):
    """What one statement names."""

    reads: frozenset[tuple[str, str]]
    writes: frozenset[tuple[str, str]]
    guard: str


TOKEN = re.compile(r'\.reg\b|[.%$_A-Za-z](?:[\w$.]|::)*|0[xfdXFD][0-9A-Fa-f]+U?|\d[\w.]*|"[^"]*"|\S')
SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]|%(cluster_n?ctarank)|"
    r"%(laneid|warpid|clock|clock64|globaltimer|lanemask_\w\w|envreg[12])"
)


def statements(text: str) -> list[list[str]]:
    """Split PTX into statements, braces and labels, each a list of tokens."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = "\n".join(re.sub(r"//.*|^\s*(#|\.loc\s|\.file\s).*", "", line) for line in text.splitlines())
    tokens = TOKEN.findall(text)
    result: list[list[str]] = [[]]
    depth = 0
    for word, after in zip(tokens, [*tokens[1:], ""], strict=True):
        now = result[-1]
        is_vector = bool(depth or (now and (now[0][0] != "." or now[-1] == "=")))
        depth += (word == "{" and is_vector) - (word == "}" and depth > 0)
        now.append(word)
        is_label = word == ":" and len(now) == 2 and after not in (".branchtargets", ".callprototype")
        if word == ";" or is_label or (word in "{}" and not is_vector):
            result.append([])
    return result[:-1]


def split_operands(tokens: list[str]) -> list[list[str]]:
    """Split at the commas outside all brackets."""
    result: list[list[str]] = [[]]
    depth = 0
    for word in tokens:
        depth += (word in "{[(") - (word in "}])")
        if word == "," and not depth:
            result.append([])
        else:
            result[-1].append(word)
    return result


def registers(tokens: list[str]) -> dict[str, str]:
    """Names and types that .reg declares."""
    declared: dict[str, str] = {}
    for name, after, count in zip(tokens[2:], [*tokens[3:], ""], [*tokens, "", ""][4:], strict=True):
        if re.match(r"[%$_A-Za-z]", name):
            numbers = range(int(count)) if after == "<" else [""]
            declared |= {f"{name}{n}": tokens[1][1:] for n in numbers}
    return declared


def named(tokens: list[str], scopes: list[dict[str, str]]) -> frozenset[tuple[str, str]]:
    """Find the registers among tokens, with their types."""
    found = set()
    for word in tokens:
        types = [scope[word] for scope in reversed(scopes) if word in scope]
        if types:
            found.add((word, types[0]))
        elif SPECIAL.fullmatch(word):
            found.add((word, "u64" if word.endswith(("clock64", "timer")) else "u32"))
    return frozenset(found)


def uses_of(tokens: list[str], scopes: list[dict[str, str]]) -> Uses:
    """Read one instruction."""
    guard = "-"
    if tokens[0] == "@":
        guard = tokens[1 + (tokens[1] == "!")]
        tokens = tokens[2 + (tokens[1] == "!") :]
    opcode, operands = tokens[0], split_operands(tokens[1:-1])
    writes = [] if operands[0][:1] == ["["] else operands[0]
    if opcode.startswith("call"):
        writes = operands[0] if operands[0][0] == "(" else []
    elif NO_RESULT.match(opcode) and not re.match(r"(bar|barrier)(\.cta)?\.red", opcode):
        writes = []
    reads = [t for operand in operands[bool(writes) :] for t in operand]
    return Uses(named(reads, scopes), named(writes, scopes), guard)


def expected(text: list[list[str]]) -> dict[int, Uses]:
    """Read every instruction, by the number of its line."""
    scopes: list[dict[str, str]] = [{}]
    uses = {}
    for line, tokens in enumerate(text, 1):
        if tokens[-1] == "{":
            inside: dict[str, str] = {}
            for k in [k for k, word in enumerate(tokens) if word == ".reg"]:
                inside |= registers(tokens[k : k + 3])
            scopes.append(inside)
        elif tokens[-1] == "}":
            scopes.pop()
        elif tokens[0] == ".reg":
            scopes[-1] |= registers(tokens)
        elif tokens[0][0] != "." and tokens[-1] != ":" and tokens[1] != ":":
            uses[line] = uses_of(tokens, scopes)
    return uses


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program that prints what was decoded."""
    return inside.compiled(Path(__file__).parent / "uses.c", tmp_path_factory.mktemp("uses"))


def decoded(program: Path, text: list[list[str]], folder: Path) -> list[list[str]]:
    """Decode one statement per line; the lines that the program prints, as words."""
    file = folder / "text.ptx"
    file.write_text("".join(" ".join(tokens) + "\n" for tokens in text))
    done = subprocess.run([program, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def by_line(printed: list[list[str]]) -> dict[int, Uses]:
    """Gather the registers of every line, whatever instruction of it has them."""
    found: dict[int, Uses] = {}
    for line, _, guard, *rest in printed:
        words = rest[5:]
        reads, writes = (
            frozenset((words[k + 1], words[k + 2]) for k in range(0, len(words), 4) if words[k] == way) for way in "rw"
        )
        old = found.get(int(line), Uses(frozenset(), frozenset(), guard))
        assert old.guard == guard
        found[int(line)] = Uses(old.reads | reads, old.writes | writes, guard)
    return found


def check(program: Path, text: str, folder: Path) -> int:
    """Compare a whole text; how many registers were named."""
    parsed = statements(text)
    found = by_line(decoded(program, parsed, folder))
    count = 0
    for line, want in expected(parsed).items():
        if line in found:  # the body of a function that no kernel calls is not read
            got = found[line]
            is_return = "ret" in parsed[line - 1]  # it hands over the results that are registers
            assert got == (want._replace(reads=got.reads) if is_return else want), " ".join(parsed[line - 1])
            count += len(want.reads) + len(want.writes)
    return count


def test_every_family(program: Path, tmp_path: Path) -> None:
    assert check(program, SAMPLE, tmp_path) > 200


def test_returned_register(program: Path, tmp_path: Path) -> None:
    parsed = statements(SAMPLE)
    line = 1 + next(k for k, tokens in enumerate(parsed) if tokens == ["ret", ";"])
    assert by_line(decoded(program, parsed, tmp_path))[line].reads == {("back", "b32")}


@pytest.mark.parametrize(
    "file", [*TEXTS, *(ROOT / "build" / "kernels" / name for name in EXPANSIONS)], ids=lambda f: f.stem
)
def test_whole_texts(program: Path, tmp_path: Path, file: Path) -> None:
    assert check(program, file.read_text(), tmp_path) > 100


def test_one_last_instruction(program: Path, tmp_path: Path) -> None:
    for line, is_last, _, *rest in decoded(program, statements(SAMPLE), tmp_path):
        tokens = statements(SAMPLE)[int(line) - 1]
        if not any(t.startswith(("call", "ret")) for t in tokens) and tokens[-1] not in "{}":
            assert is_last == "1" or len(rest) == 5, " ".join(tokens)


def test_slots(program: Path, tmp_path: Path) -> None:
    """One name, one slot, which is the operand of the instruction itself; registers do not overlap."""
    parsed = statements(SAMPLE)
    slots: dict[tuple[str, str], set[int]] = {}
    simple = 0
    for line, _, _, *rest in decoded(program, parsed, tmp_path):
        names = [tuple(rest[k + 1 : k + 4]) for k in range(5, len(rest), 4)]
        for name, kind, slot in names:
            slots.setdefault((name, kind), set()).add(int(slot))
        if parsed[int(line) - 1][0] in ("addc.u32", "add.cc.u32"):
            assert [rest[1], rest[2], rest[0]] == [slot for _, _, slot in names]
            simple += 1
    assert simple == 2
    assert {len(found) for key, found in slots.items() if key != ("a", "b32")} == {1}
    assert len(slots["a", "b32"]) == 2  # an inner scope has one of its own
    taken = [
        range(slot, slot + {"b128": 512}.get(kind, 256 if kind.endswith("64") else 128))
        for (_, kind), found in slots.items()
        if kind != "pred"
        for slot in found
    ]
    assert sum(map(len, taken)) == len(set().union(*taken))
