"""Planted mistakes with tensor copies and tensor maps, like those of test_broken.py."""

import numpy as np
import pytest
from broken.planted import Planted
from broken.tensors import TENSORS, text

import pysm120

pytestmark = pytest.mark.virtual

SEEDS = (0, 1, 2, 3, 11)


def run(device: pysm120.Device, body: str, ctas: int) -> None:
    x = device.array(np.zeros(1024, np.uint32))
    tensor_map = device.tensor_map(x[:512].reshape((16, 32)), (8, 32))
    device.load(text(body))["k"](ctas, 64, x, tensor_map)


@pytest.mark.parametrize("planted", TENSORS, ids=lambda planted: planted.name)
@pytest.mark.parametrize("level", ["default", "full"])
def test_caught(planted: Planted, level: str) -> None:
    for seed in SEEDS:
        with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
            with pytest.raises(pysm120.FaultError) as caught:
                run(device, planted.broken, 2)
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
            run(device, planted.right, 1)
