"""Level full knows which values are defined: undefined ones are reported where they decide, and copies are not."""

import numpy as np
import pytest
from broken.planted import Planted, text
from broken.undefined import UNDEFINED

import pysm120

pytestmark = pytest.mark.virtual

SEEDS = (0, 1, 7)


def run(level: str, seed: int, body: str) -> None:
    """Run a body and copy all that it may have written to the host."""
    with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
        x = device.array(np.zeros(1024, np.uint32))
        device.load(text(body))["k"](1, 64, x)
        x.numpy()


@pytest.mark.parametrize("planted", UNDEFINED, ids=lambda planted: planted.name)
def test_caught(planted: Planted) -> None:
    for seed in SEEDS:
        with pytest.raises(pysm120.FaultError) as caught:
            run("full", seed, planted.broken)
        message = str(caught.value)
        for part in planted.parts:
            assert part in message
        assert "CTA 0,0,0" in message
        assert "expected a defined value" in message


@pytest.mark.parametrize("planted", UNDEFINED, ids=lambda planted: planted.name)
@pytest.mark.parametrize("level", ["off", "default", "full"])
def test_corrected(planted: Planted, level: str) -> None:
    for seed in SEEDS:
        run(level, seed, planted.right)
