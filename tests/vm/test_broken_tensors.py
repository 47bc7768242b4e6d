"""Planted mistakes with tensor copies and tensor maps, like those of test_broken.py."""

import numpy as np
import pytest
from broken.planted import Planted
from broken.tensors import RIGHT_STORE, TENSORS, text

import pysm120

pytestmark = pytest.mark.virtual

SEEDS = (0, 1, 2, 3, 11)


def run(device: pysm120.Device, body: str) -> None:
    x = device.array(np.zeros(1024, np.uint32))
    tensor_map = device.tensor_map(x[:512].reshape((16, 32)), (8, 32))
    device.load(text(body))["k"](1, 64, x, tensor_map)


@pytest.mark.parametrize("planted", TENSORS, ids=lambda planted: planted.name)
@pytest.mark.parametrize("level", ["default", "full"])
def test_caught(planted: Planted, level: str) -> None:
    for seed in SEEDS:
        with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
            with pytest.raises(pysm120.FaultError) as caught:
                run(device, planted.broken)
            message = str(caught.value)
            for part in planted.parts:
                assert part in message
            assert "CTA" in message
            assert "broken.ptx" in message


@pytest.mark.parametrize("planted", TENSORS, ids=lambda planted: planted.name)
@pytest.mark.parametrize("level", ["off", "default", "full"])
def test_corrected(planted: Planted, level: str) -> None:
    for seed in SEEDS:
        with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
            run(device, planted.right)


@pytest.mark.parametrize("rows", [8, 7])
def test_boxes_of_several_ctas(rows: int) -> None:
    """Two CTAs may store to boxes of their own; where the boxes share a row, that is a race."""
    body = RIGHT_STORE.replace("{0, 0}", "{0, e}")
    with pysm120.Device("virtual?checks=full") as device:
        x = device.array(np.zeros(1024, np.uint32))
        tensor_map = device.tensor_map(x[:512].reshape((16, 32)), (8, 32))
        kernel = device.load(text(f"    mul.lo.u32 e, n, {rows};\n{body}"))["k"]
        if rows == 8:
            kernel(2, 64, x, tensor_map)
            return
        with pytest.raises(pysm120.FaultError, match="data race: bulk store of 128 bytes at global address"):
            kernel(2, 64, x, tensor_map)


@pytest.mark.parametrize("source", ["smem", "at"])
def test_a_store_of_a_whole_warp(source: str) -> None:
    """All lanes may store the same box from the same source; from sources of their own that is a race."""
    body = RIGHT_STORE.replace("@!r bra over;", "@p  bra over;").replace("[smem];", f"[{source}];")
    body = f"    mov.u32 e, smem;\n    mad.lo.u32 at, lane, 128, e;\n{body}".replace("[at + 512]", "[e]")
    for seed in SEEDS:
        with pysm120.Device(f"virtual?checks=full&seed={seed}") as device:
            if source == "smem":
                run(device, body.replace("[at]", "[smem]").replace("{a, b, c, d}", "{a, a, a, a}"))
                continue
            with pytest.raises(pysm120.FaultError, match="data race: bulk store of 128 bytes at global address"):
                run(device, body.replace("st.shared.v4.b32 [at]", "st.shared.v4.b32 [e]").replace("d}", "a}"))
