"""Conversions of the virtual SM120 against NumPy and ml_dtypes."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from micro import run, values

import pysm120

pytestmark = [pytest.mark.virtual, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

INTEGERS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]


def numpy_type(name: str) -> np.dtype[Any]:
    """NumPy's name of a PTX integer type."""
    return np.dtype(("i" if name[0] == "s" else "u") + str(int(name[1:]) // 8))


def span(name: str) -> tuple[int, int]:
    """Least and greatest value of a PTX integer type."""
    info = np.iinfo(numpy_type(name))
    return int(info.min), int(info.max)


def register(name: str) -> str:
    """NumPy type of the register that holds a PTX type of 8 bits or more."""
    return f"u{max(2, int(name[1:]) // 8)}"


def saturates(to: str, source: str) -> bool:
    """Tell whether .sat may be written: whether some value does not fit."""
    return span(source)[0] < span(to)[0] or span(source)[1] > span(to)[1]


PAIRS = [(t, s, sat) for t in INTEGERS for s in INTEGERS for sat in ("", ".sat") if not sat or saturates(t, s)]


@pytest.mark.parametrize(("to", "source", "sat"), PAIRS)
def test_integers(device: pysm120.Device, rng: np.random.Generator, to: str, source: str, sat: str) -> None:
    x = values(rng, register(source))
    (got,) = run(device, f"cvt{sat}.{to}.{source} out0, in0;", [x], [register(to)])
    exact = [int(v) for v in x.astype(numpy_type(source))]
    low, high = span(to)
    want = [min(max(v, low), high) if sat else v for v in exact]
    keep = (1 << 8 * got.itemsize) - 1
    value = np.array([v & (1 << int(to[1:])) - 1 for v in want], object)
    if to == "s8":  # the register is wider than the type: the sign is extended
        value = np.array([(v ^ 128) - 128 & keep for v in value], object)
    np.testing.assert_array_equal(got, value.astype(got.dtype))


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("to", INTEGERS[2:])
@pytest.mark.parametrize("source", ["f32", "f64", "f16"])
def test_float_to_integer(device: pysm120.Device, rng: np.random.Generator, source: str, to: str, mode: str) -> None:
    x = values(rng, f"f{int(source[1:]) // 8}")
    (got,) = run(device, f"cvt.{mode}.{to}.{source} out0, in0;", [x], [register(to)])
    rounded = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](x.astype(np.float64))
    low, high = span(to)
    sign_bit = 1 << int(to[1:]) - 1
    nan = (-sign_bit if to[0] == "s" else sign_bit) if source == "f64" or to[1:] == "64" else 0
    want = [nan if np.isnan(v) else low if v < low else high if v > high else int(v) for v in rounded]
    np.testing.assert_array_equal(got.view(numpy_type(to)), np.array(want, object).astype(numpy_type(to)))


@pytest.mark.parametrize("source", INTEGERS[2:])
@pytest.mark.parametrize("to", ["f16", "f32", "f64"])
def test_integer_to_float(device: pysm120.Device, rng: np.random.Generator, source: str, to: str) -> None:
    x = values(rng, register(source)).view(numpy_type(source))
    kind = f"f{int(to[1:]) // 8}"
    (got,) = run(device, f"cvt.rn.{to}.{source} out0, in0;", [x], [kind])
    want = x.astype(np.longdouble).astype(kind)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize(("source", "to"), [("f64", "f32"), ("f32", "f16"), ("f64", "f16"), ("s32", "f32")])
def test_directed(device: pysm120.Device, rng: np.random.Generator, source: str, to: str, mode: str) -> None:
    kind = f"f{int(to[1:]) // 8}"
    x = values(rng, source[0].replace("s", "u") + str(int(source[1:]) // 8))
    x = x.view("i4") if source == "s32" else x
    (got,) = run(device, f"cvt.{mode}.{to}.{source} out0, in0;", [x], [kind])
    exact = x.astype(np.longdouble)
    near = exact.astype(kind)
    down = np.where(near > exact, np.nextafter(near, np.array(-np.inf, kind)), near)
    up = np.where(near < exact, np.nextafter(near, np.array(np.inf, kind)), near)
    want = {"rm": down, "rp": up, "rz": np.where(exact > 0, down, up)}[mode]
    np.testing.assert_array_equal(got, want)


def test_f16_and_bf16(device: pysm120.Device, rng: np.random.Generator) -> None:
    x, every = values(rng, "f4"), np.arange(65536, dtype=np.uint16)
    (half,) = run(device, "cvt.rn.f16.f32 out0, in0;", [x], ["u2"])
    want = x.astype(np.float16)
    np.testing.assert_array_equal(half, np.where(np.isnan(x), 0x7FFF, want.view("u2")))
    (brain,) = run(device, "cvt.rn.bf16.f32 out0, in0;", [x], ["u2"])
    np.testing.assert_array_equal(brain, np.where(np.isnan(x), 0x7FFF, x.astype(ml_dtypes.bfloat16).view("u2")))
    (back,) = run(device, "cvt.f32.f16 out0, in0;", [every], ["f4"])
    np.testing.assert_array_equal(back, every.view("f2").astype("f4"))
    (back,) = run(device, "cvt.f32.bf16 out0, in0;", [every], ["f4"])
    np.testing.assert_array_equal(back, every.view(ml_dtypes.bfloat16).astype("f4"))
    (double,) = run(device, "cvt.f64.f32 out0, in0;", [x], ["f8"])
    np.testing.assert_array_equal(double, x.astype("f8"))


@pytest.mark.parametrize("name", ["u8", "s8"])
def test_bytes_of_bf16(device: pysm120.Device, name: str) -> None:
    """ptxas takes them in .b8 registers alone; NaN gives what it gives from f32."""
    every, codes = np.arange(65536, dtype=np.uint16), np.arange(256, dtype=np.uint16)
    for mode in ("rzi", "rni", "rmi", "rpi"):
        into = "{{ .reg .b8 q; {} mov.b16 out0, {{q, 0}}; }}"
        (got,) = run(device, into.format(f"cvt.{mode}.{name}.bf16 q, in0;"), [every], ["u2"])
        (want,) = run(
            device, f"cvt.f32.bf16 f0, in0; cvt.{mode}.{name}.f32 h0, f0; and.b16 out0, h0, 255;", [every], ["u2"]
        )
        np.testing.assert_array_equal(got, want)
    numbers = codes.astype(np.uint8).view(numpy_type(name)).astype("f4").astype(ml_dtypes.bfloat16)  # exact
    for mode in ("rn", "rz", "rm", "rp"):
        (got,) = run(
            device, f"{{ .reg .b8 q, r; mov.b16 {{q, r}}, in0; cvt.{mode}.bf16.{name} out0, q; }}", [codes], ["u2"]
        )
        np.testing.assert_array_equal(got, numbers.view("u2"))
    with pytest.raises(pysm120.InvalidProgramError, match="unknown instruction"):
        run(device, f"cvt.rzi.{name}.bf16 out0, in0;", [every], ["u2"])


def test_rounding_to_integral_floats(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = np.concatenate([values(rng, "f4"), rng.uniform(-5, 5, 1024).astype("f4")])
    for mode, function in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
        (got,) = run(device, f"cvt.{mode}.f32.f32 out0, in0;", [x], ["f4"])
        np.testing.assert_array_equal(got, function(x))
    (got,) = run(device, "cvt.sat.f32.f32 out0, in0;", [x], ["f4"])
    np.testing.assert_array_equal(got, np.nan_to_num(np.clip(x, 0, 1)))


# format, ml_dtypes type, greatest value, bits
SMALL = [
    ("e4m3x2", ml_dtypes.float8_e4m3fn, 448, 8),
    ("e5m2x2", ml_dtypes.float8_e5m2, 57344, 8),
    ("e2m3x2", ml_dtypes.float6_e2m3fn, 7.5, 8),
    ("e3m2x2", ml_dtypes.float6_e3m2fn, 28, 8),
    ("e2m1x2", ml_dtypes.float4_e2m1fn, 6, 4),
]


@pytest.mark.parametrize(("name", "kind", "most", "bits"), SMALL, ids=[row[0] for row in SMALL])
def test_small_formats(
    device: pysm120.Device, rng: np.random.Generator, name: str, kind: Any, most: float, bits: int
) -> None:
    pair = [np.concatenate([values(rng, "f4"), (rng.standard_normal(2048) * s).astype("f4")]) for s in (1, most / 2)]
    pair = [np.where(np.isnan(x), np.float32(0), x) for x in pair]
    store = "cvt.u32.u16 out0, h0;"
    body = f"cvt.rn.satfinite.{name}.f32 h0, in0, in1; {store}"
    if bits == 4:
        body = f"{{ .reg .b8 b; cvt.rn.satfinite.{name}.f32 b, in0, in1; mov.b32 out0, {{b, b, b, b}}; and.b32 out0, out0, 255; }}"  # noqa: E501
    (got,) = run(device, body, pair, ["u4"])
    high, low = (np.clip(x, -most, most).astype(kind).view("u1").astype("u4") for x in pair)
    np.testing.assert_array_equal(got, high << bits | low)
    codes = np.arange(1 << 2 * bits, dtype="u4") if bits == 4 else rng.integers(0, 1 << 16, 4096, np.uint32)
    if bits == 8 and name[:4] in ("e2m3", "e3m2"):
        codes &= 0x3F3F
    back = "mov.b32 {h0, h1}, in0;" + f" cvt.rn.f16x2.{name} out0, h0;"
    if bits == 4:
        back = f"{{ .reg .b8 b, c, d, e; mov.b32 {{b, c, d, e}}, in0; cvt.rn.f16x2.{name} out0, b; }}"
    (halves,) = run(device, back, [codes], ["u4"])
    for k in range(2):
        code = (codes >> bits * k & (1 << bits) - 1).astype("u1")
        np.testing.assert_array_equal(halves.view("f2")[k::2], code.view(kind).astype("f2"))


@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_ue8m0(device: pysm120.Device, rng: np.random.Generator, mode: str) -> None:
    pair = [values(rng, "f4") for _ in range(2)]
    (got,) = run(device, f"cvt.{mode}.satfinite.ue8m0x2.f32 h0, in0, in1; cvt.u32.u16 out0, h0;", pair, ["u4"])

    def code(x: Any) -> Any:
        bits = np.abs(x).view("u4").astype(np.int64)
        exponent = bits >> 23
        if mode == "rp":
            exponent += np.where(exponent > 0, bits & 0x7FFFFF, bits > 0x400000) != 0
        return np.where(np.isnan(x), 255, np.minimum(exponent, 254))

    np.testing.assert_array_equal(got, code(pair[0]) << 8 | code(pair[1]))
    codes = rng.integers(0, 1 << 16, 1024, np.uint32)
    (back,) = run(device, "mov.b32 {h0, h1}, in0; cvt.rn.bf16x2.ue8m0x2 out0, h0;", [codes], ["u4"])
    for k in range(2):
        want = (codes >> 8 * k & 255).astype("u1").view(ml_dtypes.float8_e8m0fnu).astype("f4")
        np.testing.assert_array_equal(back.view(ml_dtypes.bfloat16)[k::2].astype("f4"), want)


def test_packs_of_two(device: pysm120.Device, rng: np.random.Generator) -> None:
    a, b = values(rng, "f4"), values(rng, "f4")
    for name, kind in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        (got,) = run(device, f"cvt.rn.{name}.f32 out0, in0, in1;", [a, b], ["u4"])
        for x, half in ((a, got >> 16), (b, got & 0xFFFF)):
            np.testing.assert_array_equal(half, np.where(np.isnan(x), 0x7FFF, x.astype(kind).view("u2")))
