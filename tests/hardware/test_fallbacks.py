"""Conversions that sm_90 has no instruction for: what stands in for them gives the bits of the definition."""

import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import pysm120

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "ptx")]

import expand  # noqa: E402

TEMPLATE = """
# include("parts/head.ptx")
# include("parts/formats.ptx")
# X = names("x", 0, 8)
.visible .entry convert(.param .u64 param_words, .param .u64 param_x)
{
    .reg .b64 words, x;
    .reg .b32 word, item, t;
    .reg .f32 x_<8>;
    ld.param.u64            words, [param_words];
    ld.param.u64            x, [param_x];
    mov.u32                 item, %tid.x;
    mov.u32                 t, %ctaid.x;
    mad.lo.u32              item, t, 256, item;
    // words += 4 item, x += 32 item
    mad.wide.u32            words, item, 4, words;
    mad.wide.u32            x, item, 32, x;
#     for i, value in enumerate(X):
    ld.global.f32           ${value}, [x + ${4 * i}];
#     end
#     pack_e2m1(["word"], X)
    st.global.b32           [words], word;
    ret;
}
"""


@pytest.fixture(params=["sm_120f", "sm_90"])
def chip(
    request: pytest.FixtureRequest, device_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, pysm120.Device]]:
    """A target and a device that runs it: the virtual device states its capability, a GPU has one target."""
    if device_name == "virtual" or device_name.startswith("virtual:"):
        monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9" if request.param == "sm_90" else "12")
    with pysm120.Device(device_name) as device:
        if device.info.capability[0] != {"sm_90": 9, "sm_120f": 12}[request.param]:
            pytest.skip(f"the device does not run {request.param}")
        yield request.param, device


def test_pack_e2m1(chip: tuple[str, pysm120.Device], rng: np.random.Generator, tmp_path: Path) -> None:
    """Every sign, exponent and upper part of a significand, with lower bits next to ties; NaN becomes 6."""
    target, device = chip
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, *rng.integers(0, 1 << 16, 2)], np.uint32)
    bits = (upper[:, None] | lower).ravel()
    x = bits.view(np.float32)
    x[np.isnan(x)] = np.float32(np.nan)  # as arithmetic writes it: positive
    template = tmp_path / "convert.ptx"
    template.write_text(TEMPLATE)
    words = device.zeros(x.size // 8, np.uint32)
    device.load(expand.Expansion(template, target).text)["convert"](x.size // 8 // 256, 256, words, device.array(x))
    codes = (words.numpy()[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).ravel()
    want = np.clip(np.nan_to_num(x, nan=6.0, posinf=6.0, neginf=-6.0), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    assert np.array_equal(codes, want.view(np.uint8) & 15)
