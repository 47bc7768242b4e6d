"""repack: no byte is lost, and padding is defined."""

from typing import Any

import numpy as np
import pytest
from gguf_blocks import BLOCKS, random_blocks
from harness import lib
from kernels import Recorded
from numpy.typing import NDArray
from operations import Operation, Wrong

import pysm120
from pysm120 import QuantizedMatrix


def fill(args: Any, memory: int) -> None:
    """Two rows of a block of Q8_0: the other blocks of a span become 0."""
    args.type, args.rows, args.columns = lib.SM120_GGUF_Q8_0, 2, 32
    args.weights, args.weight_bytes = memory, 68
    args.packed, args.packed_bytes = memory + 1024, 4352


def launch(device: pysm120.Device) -> None:
    """Every type."""
    for name, block in BLOCKS.items():
        QuantizedMatrix.from_gguf(bytes(block.bytes), name, (1, block.columns), device=device, layout="packed")


def compute(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """17 rows of each type."""
    found = []
    for name in BLOCKS:
        raw = random_blocks(rng, name, 17, 256)
        found.append(QuantizedMatrix.from_gguf(raw, name, (17, 256), device=device, layout="packed").data.numpy())
    return np.concatenate(found)[::16].copy()


OPERATION = Operation(
    name="repack",
    fill=fill,
    wrong=[
        Wrong("type", 9, "INVALID_ARGUMENT", "type = 9"),
        Wrong("rows", 0, "INVALID_ARGUMENT", "rows = 0"),
        Wrong("columns", 40, "INVALID_ARGUMENT", "columns = 40"),
        Wrong("weight_bytes", 64, "INVALID_ARGUMENT", "weight_bytes = 64"),
        Wrong("packed_bytes", 4336, "INVALID_ARGUMENT", "packed_bytes = 4336"),
        Wrong("weights", 0, "INVALID_ARGUMENT", "weights = 0"),
        Wrong("packed", 0, "INVALID_ARGUMENT", "packed = 0"),
        Wrong("packed", 24, "MISALIGNED", "packed"),
    ],
    refused={"w": (TypeError, "w is a NoneType, not a QuantizedMatrix", ([None], {}))},
    launch=launch,
    recorded=[Recorded("repack", "repack_.*", compute)],
)


@pytest.mark.parametrize("name", BLOCKS)
def test_no_byte_is_lost(device: pysm120.Device, rng: np.random.Generator, name: str) -> None:
    """Whole tiles: the packed bytes are the native ones in another order. nvfp4's nibbles change places, too."""
    raw = random_blocks(rng, name, 32, 512)
    packed = QuantizedMatrix.from_gguf(raw, name, (32, 512), device=device, layout="packed")
    assert packed.nbytes == raw.size
    got = packed.data.numpy()
    if name == "NVFP4":
        raw, got = (np.concatenate([x & 15, x >> 4]) for x in (raw.reshape(-1), got))
    np.testing.assert_array_equal(np.bincount(got, minlength=256), np.bincount(raw.reshape(-1), minlength=256))


@pytest.mark.parametrize("name", ["Q3_K", "Q8_0"])
def test_padding(device: pysm120.Device, rng: np.random.Generator, name: str) -> None:
    """Rows behind the last one and columns that do not fill a span: every byte is written."""
    columns = BLOCKS[name].columns
    w = QuantizedMatrix.from_gguf(random_blocks(rng, name, 5, columns), name, (5, columns), device=device)
    packed = pysm120.repack(w)
    assert packed.nbytes == 16 * 256 // columns * BLOCKS[name].bytes
    assert packed.data.numpy().size == packed.nbytes  # the virtual device refuses to copy undefined bytes
    with pytest.raises(ValueError, match="w has layout 'packed', not 'native'"):
        pysm120.repack(packed)
