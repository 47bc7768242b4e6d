"""Declarations that compilers write less often: aliases, vector registers, many registers, parts of addresses."""

from collections.abc import Sequence

import numpy as np
import pytest

import pysm120

pytestmark = pytest.mark.virtual
HEAD = ".version 9.0\n.target sm_120f\n.address_size 64\n"
Words = Sequence[int]


def run(device: pysm120.Device, body: str, count: int, *, before: str = "", inputs: Words = ()) -> list[int]:
    """Run one thread that has `out` and `in`, global addresses, and return the words it wrote."""
    text = f"""{HEAD}{before}
.visible .entry k(.param .u64 param_out, .param .u64 param_in)
{{
    .reg .b64 out, in, w<4>;
    .reg .b32 r<16>;
    .reg .f32 f<4>;
    ld.param.u64 out, [param_out];
    ld.param.u64 in, [param_in];
    {body}
    ret;
}}
"""
    out = device.array(np.zeros(count, np.uint32))
    given = device.array(np.array([*inputs, 0], np.uint32))
    device.load(text)["k"](1, 1, out, given)
    return [int(x) for x in out.numpy()]


def test_managed_variables(device: pysm120.Device) -> None:
    """Before and behind the alignment, as nvcc and ptxas have it; the host finds them by name."""
    before = (
        ".visible .global .attribute(.managed) .align 4 .u32 x = 5;\n.global .align 8 .attribute(.managed) .b64 y[2];\n"
    )
    assert run(device, "ld.global.u32 r0, [x]; add.u32 r0, r0, 1; st.global.u32 [out], r0;", 1, before=before) == [6]
    for text, why in [
        (".shared .attribute(.managed) .b32 x;", "only a .global variable"),
        (".global .attribute(.unified(1, 2)) .b32 x;", "expected .managed"),
        (".global .attribute(.managed .b32 x;", "before '.b32'"),
    ]:
        with pytest.raises(pysm120.InvalidProgramError, match=why):
            run(device, "", 1, before=text)


def test_several_variables_in_one_declaration(device: pysm120.Device) -> None:
    """Lists, and ranges: x<2> declares x0 and x1. Each variable has memory of its own, in every state space."""
    before = """.global .b32 g<2>;
.func (.param .b32 r) add(.param .b32 a, .param .b32 b)
{
    .param .b32 t<2>;
    .reg .b32 x, y;
    ld.param.b32 x, [a]; ld.param.b32 y, [b];
    st.param.b32 [t0], x; st.param.b32 [t1], y;
    ld.param.b32 x, [t0]; ld.param.b32 y, [t1];
    add.u32 x, x, y; st.param.b32 [r], x;
    ret;
}
"""
    body = """
    .shared .b32 s<2>, u; .local .b32 l<2>; .param .b32 a, b, sum<2>;
    st.shared.b32 [s0], 1; st.shared.b32 [s1], 2; st.shared.b32 [u], 3;
    st.local.b32 [l0], 4; st.local.b32 [l1], 5;
    st.global.b32 [g0], 6; st.global.b32 [g1], 7;
    st.param.b32 [a], 30; st.param.b32 [b], 400;
    call (sum0), add, (a, b);
    st.param.b32 [a], 8;
    call (sum1), add, (a, b);
    ld.shared.b32 r0, [s0]; ld.shared.b32 r1, [s1]; ld.shared.b32 r2, [u];
    ld.local.b32 r3, [l0]; ld.local.b32 r4, [l1];
    ld.global.b32 r5, [g0]; ld.global.b32 r6, [g1];
    ld.param.b32 r7, [sum0]; ld.param.b32 r8, [sum1];
    st.global.v4.b32 [out], {r0, r1, r2, r3}; st.global.v4.b32 [out + 16], {r4, r5, r6, r7};
    st.global.b32 [out + 32], r8;
    """
    assert run(device, body, 9, before=before) == [1, 2, 3, 4, 5, 6, 7, 430, 408]
    with pytest.raises(pysm120.InvalidProgramError, match="expected a number of variables, at most 4096"):
        run(device, ".shared .b8 x<4097>;", 1)


def test_alignments(device: pysm120.Device) -> None:
    """Static shared memory takes any alignment, from its begin on, as with ptxas; other variables take 4096 at most."""
    before = ".shared .b8 x[20];\n.shared .align 16384 .b8 y[64];\n"
    body = "mov.u32 r0, x; mov.u32 r1, y; st.shared.u32 [r1], r0; st.global.v2.u32 [out], {r0, r1};"
    assert run(device, body, 2, before=before) == [1024, 1024 + 16384]
    far = ".shared .b8 x[20];\n.shared .align 65536 .b8 y[64];\n"
    for text, why in [
        (".global .align 8192 .b8 z[4];", "a power of two up to 4096"),
        (".extern .shared .align 8192 .b8 z[];", "a power of two up to 4096"),
        (".shared .align 24 .b8 z[4];", "a power of two up to 1073741824"),
        (far, "with 'y', static shared memory exceeds"),
    ]:
        with pytest.raises(pysm120.InvalidProgramError, match=why):
            run(device, "mov.u32 r0, x; mov.u32 r1, y;" if text == far else "", 1, before=text)


def test_variables_by_name(device: pysm120.Device) -> None:
    """The host finds the variables of a module, reads and sets them."""
    before = ".global .align 8 .f64 sums[2] = {0.5, 0.25};\n.const .align 4 .b8 bytes[4];\n.global .s16 low = -3;\n"
    module = device.load(
        f"{HEAD}{before}"
        """.visible .entry k()
{
    .reg .b32 r;
    .reg .f64 d;
    ld.const.b32 r, [bytes];
    cvt.rn.f64.u32 d, r;
    st.global.f64 [sums + 8], d;
    ret;
}
"""
    )
    variables = module.variables()
    assert {name: (str(x.dtype), x.shape) for name, x in variables.items()} == {
        "sums": ("float64", (2,)), "bytes": ("uint8", (4,)), "low": ("int16", (1,)),
    }  # fmt: skip
    assert variables["low"].numpy().tolist() == [-3]
    variables["bytes"].copy_from(np.array([1, 2, 0, 0], np.uint8))
    module["k"](1, 1)
    assert variables["sums"].numpy().tolist() == [0.5, 513.0]


ALIAS = """
.visible .func (.param .b32 d) other(.param .b32 a);
.global .u64 early = other;
.visible .func (.param .b32 d) plus(.param .b32 a)
{
    .reg .b32 r;
    ld.param.b32 r, [a];
    add.u32 r, r, 5;
    st.param.b32 [d], r;
    ret;
}
.alias other, plus;
"""
CALL = "{{ .param .b32 a; .param .b32 d; st.param.b32 [a], {a}; call (d), {f}, (a){p}; ld.param.b32 {to}, [d]; }}"


def test_alias(device: pysm120.Device) -> None:
    """An alias is called like the function, has its address, and one taken before works."""
    body = CALL.format(a=1, f="other", p="", to="r0") + CALL.format(a=2, f="plus", p="", to="r1")
    body += "mov.u64 w0, other; mov.u64 w1, plus; sub.u64 w2, w0, w1; cvt.u32.u64 r2, w2; ld.global.u64 w3, [early];"
    body += "proto: .callprototype (.param .b32 _) _ (.param .b32 _);\n"
    body += CALL.format(a=3, f="w3", p=", proto", to="r3")
    body += "st.global.v4.b32 [out], {r0, r1, r2, r3};"
    assert run(device, body, 4, before=ALIAS) == [6, 7, 0, 8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".func f(); .func g(); .alias f, g;", "'g' has no body"),
        (".func f() { ret; } .func g() { ret; } .alias f, g;", "'f' has a body, so it cannot be an alias"),
        (".func f(.param .b32 a); .func g() { ret; } .alias f, g;", "have different parameters"),
        (".func g() { ret; } .alias f, g;", "expected a function before 'f'"),
        (".func f(); .func g() { ret; } .alias f g;", "expected ','"),
    ],
)
def test_bad_alias(device: pysm120.Device, text: str, message: str) -> None:
    """What an alias must be."""
    with pytest.raises(pysm120.InvalidProgramError, match=message):
        device.load(HEAD + text)


def test_vector_registers(device: pysm120.Device) -> None:
    """Whole vectors in ld, st and mov, elements by both sets of names, and %tid as a vector."""
    body = """
    .reg .v4 .b32 v, u<2>;
    .reg .v2 .f32 g;
    ld.global.v4.b32 v, [in];
    mov.v4.b32 u1, {v.w, v.z, v.y, v.x};
    add.u32 u1.g, v.b, v.a;
    st.global.v4.b32 [out], u1;
    mov.v4.u32 v, %ntid;
    mov.v4.b32 v, {v.y, v.x, v.w, v.z};
    st.global.v4.b32 [out + 16], v;
    mov.b32 g.x, 0f3f800000;
    mov.f32 g.y, 0f40000000;
    mov.b64 w0, g;
    st.global.b64 [out + 32], w0;"""
    got = run(device, body, 10, inputs=[1, 2, 3, 4])
    assert got == [4, 7, 2, 1, 1, 1, 0, 1, 0x3F800000, 0x40000000]


def test_many_registers(device: pysm120.Device) -> None:
    """More than any function needs, names that are made of two ranges, and those of an inner block."""
    body = """
    .reg .b32 z<300000>, x<3>, x1<5>;
    mov.b32 z299999, 1;
    mov.b32 x1, 2;
    mov.b32 x12, 3;
    mov.b32 x10, 4;
    {
        .reg .b32 x<20>;
        mov.b32 x12, 9;
        mov.b32 x1, 9;
        st.global.b32 [out + 12], x12;
    }
    st.global.b32 [out], z299999;
    st.global.b32 [out + 4], x1;
    st.global.b32 [out + 8], x12;"""
    assert run(device, body, 4) == [1, 2, 3, 9]


def test_bytes_of_addresses(device: pysm120.Device) -> None:
    """An initialiser may take an address apart."""
    masks = ", ".join(f"0x{0xFF << 8 * k:x}(x+4)" for k in range(8))
    before = f".global .u32 x[2] = {{7, 11}};\n.global .align 8 .u8 parts[8] = {{{masks}}};\n"
    body = "ld.global.u64 w0, [parts]; ld.global.u32 r0, [w0]; st.global.u32 [out], r0;"
    assert run(device, body, 1, before=before) == [11]
    with pytest.raises(pysm120.InvalidProgramError, match="must select one byte"):
        device.load(HEAD + ".global .u32 x; .global .u8 part = 0xfff(x);")


def test_set_of_halves(device: pysm120.Device) -> None:
    """A comparison of packed halves gives a mask for each."""
    body = "ld.global.v2.b32 {r0, r1}, [in]; set.lt.u32.f16x2 r2, r0, r1; set.ge.s32.bf16x2 r3, r0, r1;"
    got = run(device, body + "st.global.v2.b32 [out], {r2, r3};", 2, inputs=[0x3C004000, 0x40003C00])
    assert got == [0xFFFF0000, 0x0000FFFF]


def test_cluster_of_one(device: pysm120.Device) -> None:
    """The shared memory of CTA 0 of the cluster is this CTA's; there is no other."""
    body = """
    .shared .b32 own;
    mov.b32 r0, own;
    mapa.shared::cluster.u32 r1, own, 0;
    sub.u32 r2, r1, r0;
    cvta.shared.u64 w0, own;
    mapa.u64 w1, w0, r2;
    sub.u64 w1, w1, w0;
    cvt.u32.u64 r3, w1;
    getctarank.u64 r4, w0;
    st.global.v4.b32 [out], {r2, r3, r4, r4};"""
    assert run(device, body, 4) == [0, 0, 0, 0]
    with pytest.raises(pysm120.Error, match="mapa to CTA 3 of a cluster of 1 CTAs; expected less than 1"):
        run(device, "ld.global.b32 r0, [in]; mapa.shared::cluster.u32 r1, r0, r0;", 1, inputs=[3])


FILL = """
    .shared .align 8 .b8 area[64];
    mov.b32 r0, 0xffffffff;
    st.shared.v4.b32 [area], {r0, r0, r0, r0};
    st.shared.v4.b32 [area + 16], {r0, r0, r0, r0};
    ld.global.b32 r1, [in];
    st.bulk.weak.shared::cta [area + 8], SIZE, 0;
    ld.shared.v4.b32 {r2, r3, r4, r5}, [area];
    ld.shared.v4.b32 {r6, r7, r8, r9}, [area + 16];
    st.global.v4.b32 [out], {r2, r3, r4, r5};
    st.global.v4.b32 [out + 16], {r6, r7, r8, r9};"""


def test_bulk_zeros(device: pysm120.Device) -> None:
    """st.bulk clears what it is told to, in multiples of 8 bytes inside shared memory."""
    ones = 0xFFFFFFFF
    for size in ("16", "w2"):
        body = FILL.replace("st.bulk", "cvt.u64.u32 w2, r1;\n    st.bulk").replace("SIZE", size)
        assert run(device, body, 8, inputs=[16]) == [ones, ones, 0, 0, 0, 0, ones, ones]
    wide = FILL.replace("st.bulk", "cvt.u64.u32 w2, r1;\n    st.bulk").replace("SIZE", "w2")
    with pytest.raises(pysm120.Error, match=r"st\.bulk with size 12; expected a multiple of 8"):
        run(device, wide, 8, inputs=[12])
    with pytest.raises(pysm120.Error, match=r"st\.bulk of 4096 bytes at shared address"):
        run(device, wide, 8, inputs=[4096])
    with pytest.raises(pysm120.InvalidProgramError, match="64 bytes at offset 8 of 'area', which has 64"):
        run(device, FILL.replace("SIZE", "64"), 8)


def test_asynchronous_release(device: pysm120.Device) -> None:
    """st.async and red.async to global memory have come about when the grid has ended."""
    body = "mov.b32 r0, 7; mov.b64 w0, -2; st.async.release.gpu.global.b32 [out], r0;"
    body += "red.async.release.gpu.global.add.u32 [out + 4], r0; red.async.release.sys.global.add.s64 [out + 8], w0;"
    assert run(device, body, 4) == [7, 7, 0xFFFFFFFE, 0xFFFFFFFF]


def saturated(x: int, bits: int, *, signed: bool) -> int:
    """Limit a signed value to a few bits."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(x, low), high) & ((1 << bits) - 1)


@pytest.mark.parametrize("bits", [16, 8, 4, 2])
@pytest.mark.parametrize("signed", [False, True])
def test_cvt_pack(device: pysm120.Device, rng: np.random.Generator, bits: int, *, signed: bool) -> None:
    """Two saturated integers below what was packed before."""
    kind = f"{'s' if signed else 'u'}{bits}"
    line = f"cvt.pack.sat.{kind}.s32 r3, r0, r1;" if bits == 16 else f"cvt.pack.sat.{kind}.s32.b32 r3, r0, r1, r2;"
    for _ in range(8):
        a, b = (int(x) for x in rng.integers(-(1 << bits), 2 << bits, 2))
        c = int(rng.integers(0, 1 << 32))
        body = f"mov.b32 r0, {a}; mov.b32 r1, {b}; mov.b32 r2, {c}; {line} st.global.b32 [out], r3;"
        want = saturated(a, bits, signed=signed) << bits | saturated(b, bits, signed=signed)
        want |= 0 if bits == 16 else c << 2 * bits & 0xFFFFFFFF
        assert run(device, body, 1) == [want]


def directed(x: float, mode: str) -> float:
    """Round a double, which is exact, to float32."""
    near = np.float32(x)
    if mode == "rn" or float(near) == x:
        return float(near)
    down = near if float(near) < x else np.nextafter(near, np.float32(-np.inf))
    up = np.nextafter(down, np.float32(np.inf))
    return float({"rm": down, "rp": up, "rz": down if x > 0 else up}[mode])


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_directed_pairs(device: pysm120.Device, rng: np.random.Generator, mode: str) -> None:
    """Pairs of f32, and f32 with f16, in every rounding."""
    body = f"""
    .reg .b16 h0, h1;
    ld.global.v2.b64 {{w0, w1}}, [in];
    add.{mode}.f32x2 w2, w0, w1;
    mul.{mode}.f32x2 w3, w0, w1;
    st.global.v2.b64 [out], {{w2, w3}};
    ld.global.v2.b16 {{h0, h1}}, [in + 16];
    ld.global.v2.f32 {{f0, f1}}, [in];
    sub.{mode}.f32.f16 f2, h0, f0;
    fma.{mode}.f32.bf16 f3, h1, h0, f1;
    st.global.v2.f32 [out + 16], {{f2, f3}};"""
    for _ in range(8):
        x = rng.standard_normal(4).astype(np.float32)
        half = np.float16(rng.standard_normal())
        brain = np.float32(rng.standard_normal()).view(np.uint32) >> 16 << 16
        words = [*x.view(np.uint32).tolist(), int(half.view(np.uint16)) | int(brain)]
        got = np.array(run(device, body, 6, inputs=words), np.uint32).view(np.float32)
        a, b, c, d = (float(v) for v in x)
        low = np.uint32(int(half.view(np.uint16)) << 16).view(np.float32)
        products = [a + c, b + d, a * c, b * d, float(half) - a]
        want = [directed(v, mode) for v in products]
        want.append(directed(float(np.uint32(brain).view(np.float32)) * float(low) + b, mode))
        # The last is rounded twice here, once to double: seldom, and then by less than a float32 can tell.
        assert got[:5].tolist() == want[:5]
        assert abs(float(got[5]) - want[5]) <= np.spacing(np.float32(abs(want[5])))


CLUSTERS = """
.visible .entry k(.param .u64 y) .blocksareclusters .reqntid 32, 1, 1 .reqnctapercluster {}
{{
    .reg .b32 r<12>;
    .reg .b64 d, e;
    ld.param.u64 d, [y];
    mov.v4.u32 {{r0, r1, r2, _}}, %nctaid;
    mov.v4.u32 {{r3, r4, r5, _}}, %ctaid;
    mov.v4.u32 {{r6, r7, r8, _}}, %nclusterid;
    mov.u32 r9, %cluster_ctarank;
    mad.lo.u32 r10, r5, r1, r4;
    mad.lo.u32 r10, r10, r0, r3;
    mad.wide.u32 d, r10, 16, d;
    st.global.v4.u32 [d], {{r0, r6, r9, r3}};
    ret;
}}
"""


@pytest.mark.parametrize(("cluster", "shape"), [("1, 1, 1", (1, 1, 1)), ("2", (2, 1, 1)), ("2, 1, 2", (2, 1, 2))])
def test_blocks_are_clusters(device: pysm120.Device, cluster: str, shape: tuple[int, int, int]) -> None:
    """A launch gives the number of clusters: the grid has their CTAs, in every dimension."""
    grid = (3, 2, 4)
    ctas = tuple(n * m for n, m in zip(grid, shape, strict=True))
    out = device.zeros((*ctas[::-1], 4), np.uint32)
    device.load(HEAD + CLUSTERS.format(cluster))["k"](grid, 32, out)
    z, _, x = np.meshgrid(*(np.arange(n) for n in ctas[::-1]), indexing="ij")
    rank = x % shape[0] + shape[0] * (z % shape[2])
    assert np.array_equal(out.numpy(), np.stack([0 * x + ctas[0], 0 * x + grid[0], rank, x], axis=-1))


def test_clusters_of_a_grid_that_is_too_large(device: pysm120.Device) -> None:
    kernel = device.load(HEAD + ".entry k() .blocksareclusters .reqntid 1 .reqnctapercluster 1, 2 { ret; }")["k"]
    kernel((1, 2), 1)
    with pytest.raises(pysm120.Error, match=r"grid \(1, 80000, 1\).* expected 1 to 2147483647 \(x\) and 65535"):
        kernel((1, 40_000), 1)


def test_sizes_of_shared_memory(device: pysm120.Device) -> None:
    """In units of 128 bytes; the aggregate has the 1024 bytes of the system too. There are no device graphs."""
    body = """
    .shared .b8 s[100];
    mov.u32 r0, s;
    mov.u32 r0, %total_smem_size;
    mov.u32 r1, %aggr_smem_size;
    mov.u64 w0, %current_graph_exec;
    mov.u32 r4, %dynamic_smem_size;
    st.global.v2.u32 [out], {r0, r1};
    st.global.u64 [out + 8], w0;
    st.global.u32 [out + 16], r4;
    """
    assert run(device, body, 5) == [128, 1024 + 128, 0, 0, 0]


def test_float_expressions(device: pysm120.Device) -> None:
    """In double precision, rounded once; a comparison gives an integer."""
    body = """
    mov.f32 f0, 1.0 / 3.0 + 0.25 * 2.0;
    mov.f32 f1, -(1.0 - .75e-1);
    mov.u32 r0, 1.5 <= .5e1;
    mov.f64 w0, 16777217.0 / 3.0;
    ld.global.f32 f2, [x];
    st.global.v2.f32 [out], {f0, f1};
    st.global.u32 [out + 8], r0;
    st.global.f32 [out + 12], f2;
    st.global.b64 [out + 16], w0;
    """
    words = run(device, body, 6, before=".global .f32 x = 3.0 * .1;\n")
    floats = np.array([1.0 / 3.0 + 0.25 * 2.0, -(1.0 - 0.75e-1), 3.0 * 0.1], np.float32).view(np.uint32)
    wide = np.array([16777217.0 / 3.0]).view(np.uint32)
    assert words == [*floats[:2], 1, floats[2], *wide]


@pytest.mark.parametrize("text", ["1.0 + 1", "0f3f800000 + 1.0", "1.0 % 2.0", "1.0 / 0.0", "1 ? 1.0 : 2.0", ".e1"])
def test_wrong_float_expressions(device: pysm120.Device, text: str) -> None:
    with pytest.raises(pysm120.InvalidProgramError):
        run(device, f"mov.f32 f0, {text};", 1)


@pytest.mark.parametrize("is_explicit", [False, True])
def test_explicit_cluster(device: pysm120.Device, *, is_explicit: bool) -> None:
    """Also in a function, which is part of each kernel that calls it."""
    text = (
        HEAD
        + ".func (.reg .b32 y) f() {.reg .pred q; mov.pred q, !%is_explicit_cluster; selp.b32 y, 2, 3, q; ret; }"
        + ".visible .entry k(.param .u64 p) "
        + ".reqnctapercluster 1 " * is_explicit
        + """{
    .reg .b64 d; .reg .b32 r<2>; .reg .pred q;
    ld.param.u64 d, [p];
    mov.pred q, %is_explicit_cluster;
    selp.b32 r0, 1, 0, q;
    call (r1), f;
    st.global.v2.b32 [d], {r0, r1};
    ret;
}
"""
    )
    out = device.zeros(2, np.uint32)
    device.load(text)["k"](1, 1, out)
    assert out.numpy().tolist() == ([1, 3] if is_explicit else [0, 2])


def test_names_of_dimensions(device: pysm120.Device) -> None:
    body = "mov.u32 r0, %ntid.r; mov.u32 r1, %nctaid.b; mov.u32 r2, %tid.a; st.global.v2.u32 [out], {r0, r1};"
    assert run(device, body, 2) == [1, 1]
