"""Clusters of several CTAs as nvcc writes them, for cooperative groups and cuda::ptx, at every level."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pysm120

PTX = Path(__file__).parent / "clusters.ptx"
LEVELS = [(level, seed) for level in ("off", "default", "full") for seed in range(4)]
pytestmark = pytest.mark.virtual


@pytest.fixture(params=LEVELS, ids=lambda p: f"{p[0]}-{p[1]}")
def virtual(request: pytest.FixtureRequest) -> Iterator[pysm120.Device]:
    level, seed = request.param
    with pysm120.Device(f"virtual?checks={level}&seed={seed}") as device:
        yield device


def test_bins_in_several_ctas(virtual: pysm120.Device, rng: np.random.Generator) -> None:
    values = rng.integers(0, 1000, 2000).astype(np.uint32)
    out = virtual.zeros((3, 128), np.uint32)
    virtual.load(PTX)["histogram"](12, 64, virtual.array(values), np.uint32(values.size), out)
    cluster = np.arange(values.size) % (12 * 64) // (4 * 64)
    wanted = [np.bincount(values[cluster == k] % 128, minlength=128) for k in range(3)]
    assert np.array_equal(out.numpy(), wanted)


def test_places(virtual: pysm120.Device) -> None:
    grid = (6, 4, 3)
    out = virtual.zeros((3, 4, 6, 12), np.uint32)
    virtual.load(PTX)["places"](grid, 32, out)
    z, y, x = np.meshgrid(*(np.arange(n) for n in grid[::-1]), indexing="ij")
    rank = x % 2 + 2 * (y % 2)
    other = (rank + 1) % 4
    neighbour = (x // 2 * 2 + other % 2) + 6 * ((y // 2 * 2 + other // 2) + 4 * z)
    wanted = [x % 2, y % 2, 0 * x, 0 * x + 2, 0 * x + 2, 0 * x + 1, rank, x // 2, y // 2, 0 * x + 3, neighbour, other]
    assert np.array_equal(out.numpy(), np.stack(wanted, -1))


def test_multicast(virtual: pysm120.Device, rng: np.random.Generator) -> None:
    tiles = rng.integers(0, 1 << 20, (7, 2, 128)).astype(np.uint32)
    out = virtual.zeros((6, 128), np.uint32)
    virtual.load(PTX)["multicast"](6, 128, virtual.array(tiles), np.int32(7), out)
    wanted = np.zeros((2, 128), np.uint32)
    for tile in tiles:
        wanted = wanted * np.uint32(3) + tile[0] + tile[1] * np.array([[1], [2]], np.uint32)
    assert np.array_equal(out.numpy(), np.tile(wanted, (3, 1)))


def test_messages(virtual: pysm120.Device, rng: np.random.Generator) -> None:
    values = rng.integers(0, 1 << 30, (4, 128)).astype(np.uint32)
    out = virtual.zeros((4, 128), np.uint32)
    virtual.load(PTX)["messages"](4, 128, virtual.array(values), out)
    sent = values[[1, 0, 3, 2]].astype(np.uint64)
    t = np.arange(128)
    sums = 100 + sent.reshape(4, 32, 4).sum(1)
    pairs = np.repeat(sent[:, :32], 2, 1).reshape(4, 32, 2) + np.array([0, 1 << 40], np.uint64)
    vectors = pairs.reshape(4, 64)[:, t % 64]
    wanted = sent + sums[:, t % 4] * 3 + (sent[:, t % 32] ^ 0x5555) * 5 + (vectors >> 40) + vectors * 7
    assert np.array_equal(out.numpy(), wanted.astype(np.uint32))


def test_cancelled_launches(virtual: pysm120.Device) -> None:
    done, taken = virtual.zeros((5, 9), np.uint32), virtual.zeros(1, np.uint32)
    virtual.load(PTX)["cancel"]((9, 5), 64, done, taken)
    assert (done.numpy() == 1).all()
    assert taken.numpy()[0] > 0
