"""Loads, stores, matrix loads, atomics and asynchronous copies of the virtual SM120."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from micro import HEAD, run, values

import pysm120

pytestmark = [pytest.mark.virtual, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

Q, G = np.arange(32) % 4, np.arange(32) // 4


def test_widths_and_extension(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.integers(0, 1 << 64, 128, np.uint64)
    body = """
    { .shared .align 16 .b8 cells[2048];
    mov.u32 t1, cells; mad.lo.u32 t1, i, 16, t1;
    st.shared.b64 [t1], in0;
    st.shared.v2.b32 [t1 + 8], {t1, i};
    ld.shared.s8 t2, [t1 + 3];
    ld.shared.u16 t3, [t1 + 2];
    ld.shared.s16 w0, [t1 + 4];
    ld.shared.v4.b16 {h0, h1, h2, h3}, [t1];
    mov.b64 out1, {t2, t3};
    mov.b64 w1, {h3, h2, h1, h0};
    xor.b64 out0, w0, w1; }
"""
    got, pair = run(device, body, [x], ["u8", "u8"])
    b = x.view("u1").reshape(-1, 8)
    h = x.view("u2").reshape(-1, 4)
    np.testing.assert_array_equal(pair.view("u4")[0::2], b[:, 3].view("i1").astype("i4").view("u4"))
    np.testing.assert_array_equal(pair.view("u4")[1::2], h[:, 1])
    np.testing.assert_array_equal(got, h[:, ::-1].copy().view("u8")[:, 0] ^ h[:, 2].view("i2").astype("i8").view("u8"))


def test_spaces_through_generic_addresses(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.integers(0, 1 << 32, 128, np.uint32)
    body = """
    { .shared .b32 cells[128]; .local .b32 own[4];
    mov.u64 w0, cells; cvta.shared.u64 w0, w0; mad.wide.u32 w0, i, 4, w0;
    st.b32 [w0], in0;
    mov.u64 w1, own; cvta.local.u64 w2, w1; st.b32 [w2 + 8], in0; ld.local.b32 t2, [w1 + 8];
    isspacep.shared p, w0; isspacep.local q, w2; isspacep.global r, at_in0;
    and.pred p, p, q; and.pred p, p, r;
    cvta.to.shared.u64 w0, w0;
    cvt.u32.u64 t3, w0;
    ld.shared.b32 t1, [t3];
    add.u32 out0, t1, t2;
    selp.u32 t4, 1, 0, p; add.u32 out0, out0, t4; }
"""
    (got,) = run(device, body, [x], ["u4"])
    np.testing.assert_array_equal(got, 2 * x + 1)


def test_constants_through_32_bits(device: pysm120.Device) -> None:
    """The lower 32 bits of the address of a .const variable are enough for ld.const."""
    text = """
.version 9.0
.target sm_120f
.const .align 4 .b32 some[4] = {11, 12, 13, 14};
.const .align 8 .b64 more[2] = {21, 22};
.visible .entry k(.param .u64 x)
{
    .reg .b32 at, a, b, nowhere;
    .reg .b64 x_, w;
    ld.param.u64 x_, [x];
    mov.u32 nowhere, 16;
    mov.u32 at, some;
    ld.const.b32 a, [at + 8];
    add.u32 at, at, 4;
    ld.const.b32 b, [at];
    mov.u32 at, more;
    ld.const.b64 w, [at + 8];
    st.global.v2.b32 [x_], {a, b};
    st.global.b64 [x_ + 8], w;
    ld.const.b32 a, [BEHIND];
    ret;
}
"""
    x = device.zeros(4, np.uint32)
    device.load(text.replace("BEHIND", "at"))["k"](1, 32, x)
    assert x.numpy().tolist() == [13, 12, 22, 0]
    with pytest.raises(pysm120.FaultError, match="which is in no allocation"):
        device.load(text.replace("BEHIND", "nowhere"))["k"](1, 32, x)


FRAMES = """
.version 9.0
.target sm_120f
.func (.param .b64 out) mine(.param .b32 in)
{
    .reg .b32 a;
    .reg .b64 at;
    .local .align 8 .b32 own[4];
    ld.param.b32 a, [in];
    st.local.b32 [own + 4], a;
    mov.u64 at, own;
    cvta.local.u64 at, at;
    st.param.b64 [out], at;
    ret;
}
.visible .entry k(.param .u64 x)
{
    .reg .b32 a;
    .reg .b64 at, x_;
    .local .align 8 .b32 kept[4];
    ld.param.u64 x_, [x];
    mov.u32 a, %tid.x;
    st.local.b32 [kept + 4], a;
    {
        .param .b32 in; .param .b64 out;
        st.param.b32 [in], a;
        call (out), mine, (in);
        ld.param.b64 at, [out];
    }
    CORRECTION
    ACCESS
    mad.wide.u32 x_, a, 4, x_;
    st.global.b32 [x_], a;
    ret;
}
"""


@pytest.mark.parametrize("level", ["off", "default", "full"])
@pytest.mark.parametrize("access", ["ld.b32 a, [at + 4];", "st.b32 [at + 4], a;"])
def test_pointers_into_frames_that_have_returned(level: str, access: str) -> None:
    text = FRAMES.replace("ACCESS", access)
    with pysm120.Device(f"virtual?checks={level}") as device:
        x = device.zeros(32, np.uint32)
        kernel = device.load(text.replace("CORRECTION", ""))["k"]
        with pytest.raises(
            pysm120.FaultError, match=r"at local address 0x.*in the frame of a function that has returned"
        ):
            kernel(1, 32, x)
        device.load(text.replace("CORRECTION", "mov.u64 at, kept; cvta.local.u64 at, at;"))["k"](1, 32, x)
        assert x.numpy().tolist() == list(range(32))


def test_constants_are_read_only(device: pysm120.Device) -> None:
    for store in ("st.b32 [a], r;", "st.global.b32 [a], r;", "red.add.u32 [a], r;"):
        body = f".reg .b64 a; .reg .b32 r; mov.u64 a, c; ld.b32 r, [a]; {store} ret;"
        kernel = device.load(HEAD + ".const .b32 c = 1;\n.visible .entry k() { " + body + " }")["k"]
        with pytest.raises(pysm120.FaultError, match="read-only"):
            kernel(1, 32)


def test_initialiser_of_sixteen_bytes(device: pysm120.Device) -> None:
    text = (
        HEAD
        + """.global .b128 wide[3] = {1, 2, 0xffffffffffffffff};
.visible .entry k(.param .u64 out) {
    .reg .b64 at, to, v; .reg .b32 i;
    ld.param.u64 to, [out]; mov.u32 i, %tid.x;
    mov.u64 at, wide; mad.wide.u32 at, i, 8, at; ld.global.b64 v, [at];
    mad.wide.u32 to, i, 8, to; st.global.b64 [to], v; ret; }
"""
    )
    out = device.zeros(6, np.uint64)
    device.load(text)["k"](1, 6, out)
    assert out.numpy().tolist() == [1, 0, 2, 0, 2**64 - 1, 0]


def test_constants_of_sixteen_bytes(device: pysm120.Device) -> None:
    """Of 128 bits PTX writes 64, and the others are 0, as ptxas has it."""
    text = (
        HEAD.replace("sm_120f", "sm_90")
        + """.visible .entry k(.param .u64 out) {
    .shared .align 16 .b8 smem[16];
    .reg .b64 to; .reg .b128 a, b, c;
    ld.param.u64 to, [out];
    st.shared.b128 [smem], 5; ld.shared.b128 a, [smem]; st.global.b128 [to], a;
    mov.b128 b, 0xffffffffffffffff; st.global.b128 [to + 16], b;
    atom.global.exch.b128 c, [to + 32], -2; st.global.b128 [to + 48], c;
    st.global.b128 [to + 64], -3;
    ret; }
"""
    )
    out = device.array(np.full(10, 7, np.uint64))
    device.load(text)["k"](1, 1, out)
    assert out.numpy().tolist() == [5, 0, 2**64 - 1, 0, 2**64 - 2, 0, 7, 7, 2**64 - 3, 0]
    with pytest.raises(pysm120.InvalidProgramError, match=r"float constant cannot be used as \.b128"):
        device.load(text.replace("[smem], 5;", "[smem], 5.0;"))


def test_module_variables(device: pysm120.Device) -> None:
    text = (
        HEAD
        + """
.const .align 4 .b32 table[4] = {1, 2 + 3 * 4, 0x10, -1};
.global .f32 scale = 0f40000000;
.global .align 8 .u64 pointer = table;
.global .f64 grid[2][2] = {{1.0, 2.5}, {0d4008000000000000, -1.0}};
.visible .entry k(.param .u64 param_x)
{
    .reg .b64 x, w; .reg .b32 a, b; .reg .f64 d; .reg .f32 f;
    ld.param.u64 x, [param_x];
    ld.const.b32 a, [table + 4];
    ld.global.u64 w, [pointer];
    ld.b32 b, [w + 12];
    st.global.v2.b32 [x], {a, b};
    ld.global.f32 f, [scale];
    st.global.f32 [x + 8], f;
    ld.global.f64 d, [grid + 8 * (1 + 1)];
    st.global.f64 [x + 16], d;
    ret;
}
"""
    )
    x = device.zeros(8, np.uint32)
    device.load(text)["k"](1, 1, x)
    got = x.numpy()
    np.testing.assert_array_equal(got[:2], [14, 0xFFFFFFFF])
    assert got.view("f4")[2] == 2
    assert got.view("f8")[2] == 3


def matrix(device: pysm120.Device, tile: npt.NDArray[Any], load: str, rows: str) -> npt.NDArray[Any]:
    """Put a tile into shared memory, load fragments with `load` from the row `rows` of each lane."""
    body = f"""
    {{ .shared .align 16 .b8 tile[1024]; .reg .b32 r<4>;
    mov.u32 t1, tile; mad.lo.u32 t2, i, 8, t1; st.shared.b64 [t2], in0;
    mov.b32 r0, 0; mov.b32 r1, 0; mov.b32 r2, 0; mov.b32 r3, 0;
    bar.sync 0;
    {rows}
    mad.lo.u32 t1, t3, 16, t1;
    {load}, [t1];
    mov.b64 out0, {{r0, r1}}; mov.b64 out1, {{r2, r3}}; }}
"""
    low, high = run(device, body, [tile.reshape(-1).view("u8")], ["u8", "u8"])
    return np.stack(
        [low[:32].view("u4")[0::2], low[:32].view("u4")[1::2], high[:32].view("u4")[0::2], high[:32].view("u4")[1::2]]
    )


ROW = "and.b32 t3, i, 31;"


def test_ldmatrix(device: pysm120.Device, rng: np.random.Generator) -> None:
    tile = np.frombuffer(rng.bytes(1024), np.uint16).reshape(64, 8)
    got = matrix(device, tile, "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}", ROW)
    for j in range(4):
        part = tile[8 * j : 8 * j + 8]
        np.testing.assert_array_equal(got[j], part[G, 2 * Q] | part[G, 2 * Q + 1].astype("u4") << 16)
    got = matrix(device, tile, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r0, r1, r2, r3}", ROW)
    for j in range(4):
        part = tile[8 * j : 8 * j + 8]
        np.testing.assert_array_equal(got[j], part[2 * Q, G] | part[2 * Q + 1, G].astype("u4") << 16)


def test_ldmatrix_of_bytes(device: pysm120.Device, rng: np.random.Generator) -> None:
    tile = np.frombuffer(rng.bytes(1024), np.uint8).reshape(64, 16)
    got = matrix(device, tile, "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {r0, r1, r2, r3}", ROW)
    for j in range(2):
        part = tile[16 * j : 16 * j + 16]
        for half in range(2):
            octets = got[2 * j + half].view("u1").reshape(32, 4)
            for b in range(4):
                np.testing.assert_array_equal(octets[:, b], part[4 * Q + b, G + 8 * half])


@pytest.mark.parametrize(("form", "bits"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
def test_ldmatrix_of_packed_elements(device: pysm120.Device, rng: np.random.Generator, form: str, bits: int) -> None:
    tile = np.frombuffer(rng.bytes(1024), np.uint8).reshape(64, 16)
    load = f"ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.{form} {{r0, r1, r2, r3}}"
    got = matrix(device, tile, load, ROW)
    stream = np.unpackbits(tile, axis=1, bitorder="little")[:, : 16 * bits].reshape(64, 16, bits)
    elements = (stream << np.arange(bits, dtype=np.uint8)).sum(2).astype(np.uint8)
    for j in range(4):
        octets = got[j].view("u1").reshape(32, 4)
        for b in range(4):
            np.testing.assert_array_equal(octets[:, b], elements[8 * j + G, 4 * Q + b])


def test_stmatrix_and_movmatrix(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.integers(0, 1 << 32, 32, np.uint32)
    body = """
    { .shared .align 16 .b8 tile[512]; .reg .b32 r<4>;
    mov.u32 t1, tile; and.b32 t2, i, 7; mad.lo.u32 t1, t2, 16, t1;
    stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [t1], {in0};
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {t3}, [t1];
    movmatrix.sync.aligned.m8n8.trans.b16 t4, t3;
    sub.u32 out0, t4, in0;
    bar.warp.sync -1;
    stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [t1], {in0};
    mov.u32 t5, tile; mad.lo.u32 t5, i, 4, t5;
    bar.warp.sync -1;
    ld.shared.b32 out1, [t5]; }
"""
    zero, octets = run(device, body, [x], ["u4", "u4"], threads=32)
    assert (zero == 0).all()
    stored = octets.view("u1").reshape(8, 16)
    fragment = x.view("u1").reshape(32, 4)
    for e in range(4):
        np.testing.assert_array_equal(stored[2 * Q + (e & 1), G + 8 * (e >> 1)], fragment[:, e])


INTEGER_ATOMICS = [
    ("add", "u32", np.add), ("min", "s32", np.minimum), ("max", "u32", np.maximum), ("and", "b32", np.bitwise_and),
    ("or", "b64", np.bitwise_or), ("xor", "b64", np.bitwise_xor), ("add", "u64", np.add), ("max", "s64", np.maximum),
    ("exch", "b32", lambda _, b: b),
]  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("op", "name", "function"), INTEGER_ATOMICS, ids=[f"{r[0]}.{r[1]}" for r in INTEGER_ATOMICS])
def test_integer_atomics(
    device: pysm120.Device, rng: np.random.Generator, space: str, op: str, name: str, function: Any
) -> None:
    size = int(name[1:]) // 8
    a, b = values(rng, f"u{size}", 128), values(rng, f"u{size}", 128)
    bits = 8 * size
    if space == "shared":
        body = f"{{ .shared .b64 cell[128]; mov.u32 t1, cell; mad.lo.u32 t1, i, 8, t1; st.shared.b{bits} [t1], in0; "
        body += f"atom.shared.{op}.{name} out0, [t1], in1; ld.shared.b{bits} out1, [t1]; }}"
    else:
        body = f"atom.global.{op}.{name} out0, [at_in0], in1; ld.global.b{bits} out1, [at_in0];"
    old, new = run(device, body, [a, b], [f"u{size}", f"u{size}"])
    kind = f"{'i' if name[0] == 's' else 'u'}{size}"
    np.testing.assert_array_equal(old, a)
    np.testing.assert_array_equal(new.view(kind), function(a.view(kind), b.view(kind)))


def test_float_atomics_and_cas(device: pysm120.Device, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(128).astype("f4") for _ in range(2))
    body = """
    red.global.add.f32 [at_in0], in1; ld.global.b32 out0, [at_in0];
    atom.global.cas.b32 t1, [at_in1], in1, 77; ld.global.b32 out1, [at_in1];
"""
    total, swapped = run(device, body, [a, b], ["f4", "u4"])
    np.testing.assert_array_equal(total, a + b)
    assert (swapped == 77).all()
    for name, kind in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        x, y = (rng.standard_normal(256).astype(kind) for _ in range(2))
        body = f"red.global.add.noftz.{name} [at_in0], in1; ld.global.b32 out0, [at_in0];"
        (got,) = run(device, body, [x.view("u4"), y.view("u4")], ["u4"])
        np.testing.assert_array_equal(got.view(kind).astype("f4"), (x + y).astype("f4"))


def test_vector_reductions(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal(512).astype(np.float32)
    text = (
        HEAD
        + """
.visible .entry k(.param .u64 param_x)
{
    .reg .b64 x; .reg .b32 i; .reg .f32 a<4>;
    ld.param.u64 x, [param_x];
    mov.u32 i, %tid.x; mad.wide.u32 x, i, 16, x;
    ld.global.v4.f32 {a0, a1, a2, a3}, [x];
    red.global.add.v4.f32 [x], {a0, a1, a2, a3};
    ret;
}
"""
    )
    array = device.array(x)
    device.load(text)["k"](1, 128, array)
    np.testing.assert_array_equal(array.numpy(), 2 * x)


BULK = (
    HEAD
    + """
.visible .entry k(.param .u64 param_x, .param .u64 param_y)
.reqntid 64
{
    .reg .pred p, leader;
    .reg .b32 i, a, b, s;
    .reg .b64 x, y;
    .shared .align 128 .b8 tile[4096];
    .shared .b64 full;
    ld.param.u64 x, [param_x];
    ld.param.u64 y, [param_y];
    mov.u32 i, %tid.x;
    setp.eq.u32 leader, i, 0;
@leader mbarrier.init.shared::cta.b64 [full], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
@!leader bra wait;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 4096;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [x], 1024, [full];
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile + 1024], [x + 1024], 3072, [full];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 p, [full], 0, 1000;
@!p bra wait;
    mov.u32 s, tile;
    mad.lo.u32 s, i, 64, s;
    ld.shared.b32 a, [s];
    add.u32 a, a, 1;
    st.shared.b32 [s], a;
    fence.proxy.async.shared::cta;
    bar.sync 0;
@!leader bra done;
    cp.async.bulk.global.shared::cta.bulk_group [y], [tile], 4096;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [y + 4096], [tile], 4096;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    cp.async.bulk.wait_group 0;
    ld.global.b32 b, [y];
    st.global.b32 [y + 8192], b;
done:
    ret;
}
"""
)


@pytest.mark.parametrize("seed", range(5))
def test_bulk_copies(
    device: pysm120.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("PYSM120_SEED", str(seed))
    data = rng.integers(0, 1 << 31, 1024, np.uint32)
    x, y = device.array(data), device.array(np.full(2052, 5, np.uint32))
    device.reset_counters()
    device.load(BULK)["k"](1, 64, x, y)
    want = data.copy()
    want[::16] += 1
    got = y.numpy()
    np.testing.assert_array_equal(got[:1024], want)
    np.testing.assert_array_equal(got[1024:2048], want + 5)
    assert got[2048] == want[0]
    counters = device.counters()
    assert counters["bytes bulk global->shared"] == 4096
    assert counters["cp.async.bulk"] >= 2


@pytest.mark.parametrize("name", ["f32.add", "f16.add.noftz", "bf16.max", "s64.min", "b32.xor", "u32.inc", "f64.add"])
def test_bulk_reductions(device: pysm120.Device, rng: np.random.Generator, name: str) -> None:
    kind, op, *noftz = name.split(".")
    types = {"f32": "f4", "f64": "f8", "f16": "f2", "bf16": ml_dtypes.bfloat16, "s64": "i8", "b32": "u4", "u32": "u4"}
    dtype = np.dtype(types[kind])
    a, b = (
        ((rng.standard_normal(512) * 100).astype(dtype) for _ in range(2))
        if kind not in ("b32", "u32")
        else (rng.integers(0, 50, 512).astype(dtype) for _ in range(2))
    )
    count = 512 * dtype.itemsize
    text = (
        BULK.replace("add.u32 a, a, 1;", "")
        .replace("3072", str(count - 1024))
        .replace("_, [full], 4096", f"_, [full], {count}")
    )
    text = text.replace("    cp.async.bulk.global.shared::cta.bulk_group [y], [tile], 4096;\n", "")
    suffix = ".".join([op, *noftz, kind])
    text = text.replace("bulk_group.add.u32 [y + 4096], [tile], 4096", f"bulk_group.{suffix} [y], [tile], {count}")
    text = text.replace("st.global.b32 [y + 8192], b;", "")
    if count < 1024:
        pytest.fail("too small")
    x, y = device.array(a.view(f"u{dtype.itemsize}")), device.array(b.view(f"u{dtype.itemsize}"))
    text = text.replace("tile[4096]", "tile[8192]")
    if count == 1024:
        text = "\n".join(line for line in text.splitlines() if "[x + 1024]" not in line)
    device.load(text)["k"](1, 64, x, y)
    got = y.numpy().view(dtype)
    with np.errstate(all="ignore"):
        want = a + b if op == "add" else np.where(b >= a, 0, b + 1)
        want = (
            {"max": np.maximum, "min": np.minimum, "xor": np.bitwise_xor}[op](a, b)
            if op in {"max", "min", "xor"}
            else want
        )
    np.testing.assert_array_equal(got.astype("f8"), want.astype("f8"))


@pytest.mark.parametrize("seed", range(3))
def test_cp_async(device: pysm120.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("PYSM120_SEED", str(seed))
    x = rng.integers(0, 1 << 32, 128, np.uint32)
    body = """
    { .shared .align 16 .b8 cells[1024]; .shared .b64 barrier;
    mov.u32 t1, cells; mad.lo.u32 t1, i, 4, t1;
    setp.eq.u32 p, i, 0;
@p  mbarrier.init.shared.b64 [barrier], 128;
    cp.async.ca.shared.global [t1], [at_in0], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [t1 + 512], [at_in0], 4, 2;
    cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.b32 out0, [t1];
    cp.async.wait_all;
    ld.shared.b32 out1, [t1 + 512];
    bar.sync 0;
    cp.async.ca.shared.global [t1 + 512], [at_in0], 4;
    cp.async.mbarrier.arrive.noinc.shared.b64 [barrier];
again: mbarrier.try_wait.parity.shared.b64 q, [barrier], 0;
@!q bra again;
    ld.shared.b32 t2, [t1 + 512]; sub.u32 t2, t2, out0; add.u32 out0, out0, t2; }
"""
    whole, half = run(device, body, [x], ["u4", "u4"])
    np.testing.assert_array_equal(whole, x)
    np.testing.assert_array_equal(half, x & 0xFFFF)


def test_mbarrier_states(device: pysm120.Device) -> None:
    body = """
    { .shared .b64 barrier;
    mbarrier.init.shared.b64 [barrier], 3;
    mbarrier.arrive.shared.b64 w0, [barrier];
    mbarrier.test_wait.shared.b64 p, [barrier], w0; selp.u32 out0, 1, 0, p;
    mbarrier.arrive.noComplete.shared.b64 w1, [barrier], 1;
    mbarrier.arrive_drop.shared.b64 w1, [barrier];
    mbarrier.test_wait.shared.b64 p, [barrier], w0; selp.u32 t1, 2, 0, p; or.b32 out0, out0, t1;
    mbarrier.test_wait.parity.shared.b64 p, [barrier], 1; selp.u32 t1, 4, 0, p; or.b32 out0, out0, t1;
    mbarrier.test_wait.parity.shared.b64 p, [barrier], 0; selp.u32 t1, 8, 0, p; or.b32 out0, out0, t1;
    mbarrier.arrive.shared.b64 w2, [barrier], 2;
    mbarrier.test_wait.parity.shared.b64 p, [barrier], 1; selp.u32 t1, 16, 0, p; or.b32 out0, out0, t1;
    mbarrier.pending_count.b64 t2, w2; shl.b32 t2, t2, 8; or.b32 out0, out0, t2;
    mbarrier.inval.shared.b64 [barrier]; }
"""
    (got,) = run(device, body, [np.zeros(1, np.uint32)], ["u4"], threads=1)
    assert got[0] == 2 + 8 + 16 + 2 * 256
