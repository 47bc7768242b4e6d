"""attention_with_kv_cache: the swizzle of keys and values in shared memory.

All lanes read at once, and L2 sends each sector of a copy once.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness import DTYPES

import pysm120

pytestmark = pytest.mark.virtual

KEYS = 256
E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
# Bits of an element, and columns and dtype of a block scale.
FORMS = {"e4m3": (8, None), "mxfp8": (8, (32, E8M0)), "nvfp4": (4, (16, E4M3))}


def cache_of(device: pysm120.Device, form: str, head_dim: int) -> Any:
    """Return keys or values of one sequence and head; all are 0."""
    if form == "bfloat16":
        return device.zeros((1, KEYS, 1, head_dim), DTYPES[form])
    bits, scale = FORMS[form]
    elements = device.zeros((1, KEYS, 1, bits * head_dim // 8), E4M3 if bits == 8 else np.uint8)
    return (elements, device.zeros((1, KEYS, 1, head_dim // scale[0]), scale[1])) if scale else elements


@pytest.mark.parametrize(
    ("form", "head_dim"),
    [("bfloat16", size) for size in (64, 96, 128, 192, 256)]
    + [(form, size) for form in FORMS for size in (64, 128, 256)],
)
def test_reads_have_no_bank_conflicts_and_copies_no_sector_twice(
    device: pysm120.Device, form: str, head_dim: int
) -> None:
    q = device.array(np.ones((1, 1, 4, head_dim), DTYPES["bfloat16"]))
    k, v = (cache_of(device, form, head_dim) for _ in "kv")
    lengths = device.array(np.array([KEYS], np.int32))
    with device.profile() as profile:
        pysm120.attention_with_kv_cache(q, k, v, lengths, causal=True, num_splits=1)
    reads = [x for x in profile.statements if x.text.split()[0].startswith(("ldmatrix", "ld.shared"))]
    assert sum(x.counts.shared_wavefronts for x in reads) >= 2 * KEYS * head_dim // (256 if form == "nvfp4" else 128)
    for x in reads:
        assert x.counts.shared_wavefronts == x.counts.shared_ideal_wavefronts, x.text
    copies = [x.counts for x in profile.statements if x.text.startswith("cp.async.cg")]
    assert sum(x.global_l2_sectors for x in copies) == sum(x.global_sectors for x in copies) > KEYS
