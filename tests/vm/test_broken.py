"""Planted mistakes are found whatever the seed, with both places named; their corrections run."""

import numpy as np
import pytest
from broken.asynchronous import ASYNCHRONOUS
from broken.barriers import BARRIERS
from broken.clusters import CLUSTERS
from broken.ctas import CTAS
from broken.lanes import LANES
from broken.mbarriers import MBARRIERS
from broken.planted import Planted, text
from broken.races import RACES

import pysm120

pytestmark = pytest.mark.virtual

PLANTED = [*RACES, *BARRIERS, *CLUSTERS, *ASYNCHRONOUS, *MBARRIERS, *CTAS, *LANES]
SEEDS = (0, 1, 2, 3, 11)


@pytest.mark.parametrize(
    ("planted", "level"),
    [pytest.param(planted, level, id=f"{level}-{planted.name}") for planted in PLANTED for level in planted.levels],
)
def test_caught(planted: Planted, level: str) -> None:
    for seed in SEEDS:
        with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
            x = device.array(np.zeros(1024, np.uint32))
            with pytest.raises(pysm120.FaultError) as caught:
                device.load(text(planted.broken, planted.head))["k"](planted.ctas, 64, x)
            message = str(caught.value)
            for part in planted.parts:
                assert part in message
            assert "CTA" in message
            assert "broken.ptx" in message


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
@pytest.mark.parametrize("level", ["off", "default", "full"])
def test_corrected(planted: Planted, level: str) -> None:
    for seed in SEEDS:
        with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
            device.load(text(planted.right, planted.head))["k"](
                planted.ctas, 64, device.array(np.zeros(1024, np.uint32))
            )
