"""cvt between f32 and the small formats on the virtual device, around every tie.

The expected codes come from tables of every value of a format and a binary search,
not from bits.
"""

import itertools
from typing import Any, NamedTuple

import mma_model
import numpy as np
import pytest
from numpy.typing import NDArray

import pysm120

pytestmark = pytest.mark.virtual

HEAD = ".version 8.8\n.target sm_120f\n.address_size 64\n"
# y[i] = cvt(x[i]) for i < n: `body` reads f32 x_0 (and x_1) or b16 code and writes b32 y.
KERNEL = """
.visible .entry convert(.param .u64 param_x, .param .u64 param_y, .param .u32 param_n)
{{
    .reg .pred  outside;
    .reg .b32   i, n, width, y;
    .reg .b64   x_at, y_at, at;
    .reg .f32   x_0, x_1;
    .reg .b16   half, zero;
    .reg .b8    low, high;
    mov.u32     i, %ctaid.x;
    mov.u32     width, %ntid.x;
    mov.u32     n, %tid.x;
    mad.lo.u32  i, i, width, n;
    ld.param.u32 n, [param_n];
    setp.ge.u32 outside, i, n;
@outside bra    done;
    mov.b16     zero, 0;
    ld.param.u64 x_at, [param_x];
    ld.param.u64 y_at, [param_y];
    mul.wide.u32 at, i, {stride};
    add.u64     x_at, x_at, at;
    mul.wide.u32 at, i, 4;
    add.u64     y_at, y_at, at;
{body}
    st.global.b32 [y_at], y;
done:
    ret;
}}
"""
ONE = "    ld.global.f32 x_0, [x_at];\n"
TWO = ONE + "    ld.global.f32 x_1, [x_at + 4];\n"
SIXTEEN = {
    "f16": "mov.b32 y, {half, zero};",
    "bf16": "mov.b32 y, {half, zero};",
}


class Case(NamedTuple):
    """One cvt to a small format."""

    name: str  # the instruction
    format: str
    rounding: str  # rn, rz, rm, rp, rna
    saturates: bool
    pair: bool  # two f32 to two codes of one byte

    @property
    def body(self) -> str:
        """The instructions from load to y."""
        if self.format == "e2m1":
            return f"{TWO}    {{\n    .reg .b8 pair;\n    {self.name} pair, x_1, x_0;\n    cvt.u32.u8  y, pair;\n    }}"
        if self.pair:
            tail = "mov.b32     y, {half, zero};"
            return f"{TWO}    {self.name} half, x_1, x_0;\n    {tail}"
        if self.format == "tf32":
            return f"{ONE}    {self.name} y, x_0;"
        return f"{ONE}    {self.name} half, x_0;\n    {SIXTEEN[self.format]}"


CASES = (
    *(
        Case(f"cvt.{r}{s}.{f}.f32", f, r, bool(s), pair=False)
        for f, r, s in itertools.product(("f16", "bf16"), ("rn", "rz"), ("", ".satfinite"))
    ),
    Case("cvt.rna.tf32.f32", "tf32", "rna", saturates=False, pair=False),
    Case("cvt.rn.tf32.f32", "tf32", "rn", saturates=False, pair=False),
    Case("cvt.rz.tf32.f32", "tf32", "rz", saturates=False, pair=False),
    *(
        Case(f"cvt.rn.satfinite.{f}x2.f32", f, "rn", saturates=True, pair=True)
        for f in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
    ),
)


def launch(device: pysm120.Device, body: str, x: NDArray[Any], stride: int, count: int) -> NDArray[np.uint32]:
    """Run `body` for every element."""
    kernel = device.load(HEAD + KERNEL.format(body=body, stride=stride))["convert"]
    y = device.array(np.full(count, 0xA5A5A5A5, np.uint32))
    kernel(-(-count // 256), 256, device.array(x), y, np.uint32(count))
    result: NDArray[np.uint32] = y.numpy()
    return result


def samples(rng: np.random.Generator, fraction: int) -> NDArray[np.float32]:
    """Every exponent and sign, around the ties of a format, and random bits."""
    kept = min(fraction, 5)
    top = np.arange(1 << (9 + kept), dtype=np.uint32) << (23 - kept)
    half = np.uint32(1 << (22 - fraction))
    near = np.array([0, 1, half - 1, half, half + 1, 2 * half - 1], np.uint32)
    near = np.concatenate([near, 2 * half + near])
    bits = (top[:, None] + near).ravel()
    bits = np.concatenate([bits, rng.integers(0, 1 << 32, 1 << 14, dtype=np.uint32)])
    tiny = rng.integers(0, 1 << 32, 1 << 10, dtype=np.uint32) & 0x80FFFFFF
    bits = np.concatenate([bits, tiny])
    return bits[: len(bits) // 2 * 2].view(np.float32)


def values(name: str, largest: int) -> NDArray[np.float64]:
    """List the finite values of a format by code, and what would follow them."""
    form = mma_model.FORMATS[name]
    code = np.arange(largest + 2, dtype=np.int64)
    field, fraction = code >> form.fraction, code & ((1 << form.fraction) - 1)
    significand = fraction + np.where(field > 0, 1 << form.fraction, 0)
    exponent = np.maximum(field, 1) - form.bias - form.fraction
    table: NDArray[np.float64] = np.ldexp(significand.astype(np.float64), exponent)
    return table


def expected(case: Case, x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Round by search among the values of the format."""
    form = mma_model.FORMATS[case.format]
    finite = (1 << (form.exponent + form.fraction)) - 1
    largest = {"ieee": finite - (1 << form.fraction), "nan": finite - 1, "": finite}
    top = largest[form.specials]
    table = values(case.format, top)
    nan, infinite = np.isnan(x), np.isinf(x)
    magnitude = np.abs(np.where(nan | infinite, 0, x).astype(np.float64))
    code = np.minimum(np.searchsorted(table, magnitude, side="right") - 1, top)
    middle = (table[code] + table[code + 1]) / 2
    up = {
        "rn": (magnitude > middle) | ((magnitude == middle) & (code % 2 == 1)),
        "rz": np.zeros_like(nan),
        "rna": magnitude >= middle,
    }
    code = np.where(infinite, top + 1, code + up[case.rounding])
    if case.saturates or form.specials != "ieee":
        code = np.minimum(code, top)
    sign = np.signbit(x).astype(np.int64) << (form.exponent + form.fraction)
    return np.where(nan, x.view(np.uint32) >> 13 if case.rounding == "rna" else finite, code | sign)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rounds_as_defined(device: pysm120.Device, rng: np.random.Generator, case: Case) -> None:
    x = samples(rng, mma_model.FORMATS[case.format].fraction)
    want = expected(case, x)
    if case.pair:
        width = 4 if case.format == "e2m1" else 8
        y = launch(device, case.body, x, 8, len(x) // 2)
        got = np.stack([y & ((1 << width) - 1), y >> width], 1).ravel()
    elif case.format == "tf32":
        y = launch(device, case.body, x, 4, len(x))
        got = y >> 13
        assert not (y[~np.isnan(x)] & 0x1FFF).any()
    else:
        got = launch(device, case.body, x, 4, len(x))
    differ = np.flatnonzero(got != want)
    assert differ.size == 0, (
        f"{differ.size} differ, first {x[differ[0]].view(np.uint32):#x}: "
        f"{got[differ[0]]:#x} instead of {want[differ[0]]:#x}"
    )


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("rounding", ["rz", "rp"])
def test_scales(device: pysm120.Device, rng: np.random.Generator, rounding: str, *, saturates: bool) -> None:
    """Powers of two: the sign does not count, nothing is below 2^-127."""
    x = samples(rng, 8)
    name = f"cvt.{rounding}{'.satfinite' if saturates else ''}.ue8m0x2.f32"
    body = f"{TWO}    {name} half, x_1, x_0;\n    mov.b32     y, {{half, zero}};"
    y = launch(device, body, x, 8, len(x) // 2)
    got = np.stack([y & 0xFF, y >> 8], 1).ravel()
    finite = np.isfinite(x)
    magnitude = np.abs(np.where(finite, x, 1).astype(np.float64))
    powers = np.exp2(np.arange(-127.0, 129.0))
    want = np.searchsorted(powers, magnitude)
    if rounding == "rz":
        want = np.searchsorted(powers, magnitude, side="right") - 1
    want = np.where(np.isinf(x), 255, np.maximum(want, 0))
    want = np.where(np.isnan(x), 255, np.minimum(want, 254 if saturates else 255))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_decodes_every_code(device: pysm120.Device, name: str) -> None:
    """Pairs of codes to f16x2, exact; NaN is 0x7fff."""
    codes = np.arange(256 if name in {"e4m3", "e5m2"} else 64 if name != "e2m1" else 16)
    load = "    ld.global.b16 half, [x_at];\n"
    if name == "e2m1":
        source = codes[:, None] << 4 | codes
        body = f"{load}    {{\n    .reg .b8 pair;\n    cvt.u8.u16  pair, half;\n"
        body += "    cvt.rn.f16x2.e2m1x2 y, pair;\n    }"
    else:
        source = codes[:, None] << 8 | codes
        body = f"{load}    cvt.rn.f16x2.{name}x2 y, half;"
    x = source.ravel().astype(np.uint16)
    y = launch(device, body, x, 2, len(x))
    container = mma_model.FORMATS[name].right
    table = []
    for code in codes.tolist():
        number = mma_model.decode(name, code << container)
        value = number.special or np.ldexp(float(number.significand), number.exponent - number.fraction)
        sign = code >> (len(codes).bit_length() - 2)
        table.append(np.copysign(value, -1.0 if sign else 1.0))
    bits = np.array(table, np.float16).view(np.uint16).astype(np.uint32)
    bits = np.where(np.isnan(table), 0x7FFF, bits)
    want = (bits[:, None] << 16 | bits).ravel()
    np.testing.assert_array_equal(y, want)
