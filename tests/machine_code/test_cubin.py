"""Reading cubins: damaged ones are refused with a sentence."""

import numpy as np
import pytest

from pysm120.machine_code.cubin import Cubin
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import check, ffi, lib


def image() -> bytes:
    """Return the cubin of the library's first kernel."""
    data, size = ffi.new("void const **"), ffi.new("size_t *")
    check(lib.sm120_builtin_image(0, b"sm_120f", b"cubin", data, size))
    return bytes(ffi.buffer(data[0], size[0]))


def damage(rng: np.random.Generator, whole: bytes) -> bytes:
    """Cut a cubin off, or change bytes: of its header, of its section headers at the end, or anywhere."""
    data = bytearray(whole)
    if rng.random() < 0.2:
        return bytes(data[: rng.integers(len(data))])
    start, end = rng.choice([(4, 64), (len(data) - 64 * 40, len(data)), (64, len(data))])
    for _ in range(rng.choice([1, 2, 8, 50])):
        data[rng.integers(start, end)] = rng.integers(256)
    return bytes(data)


def refusal(data: bytes) -> str:
    """Return why a cubin cannot be read, or ""."""
    try:
        cubin = Cubin(data)
        for entry in cubin.entries:
            cubin.code(entry.name)
    except InvalidArgumentError as error:
        return str(error)
    return ""


def test_damaged_cubins(rng: np.random.Generator) -> None:
    whole = image()
    refused = [reason for _ in range(1000) if (reason := refusal(damage(rng, whole)))]
    assert 200 < len(refused) < 900
    assert all("cubin" in reason for reason in refused)


@pytest.mark.parametrize("name", [b".symtab", b".strtab"])
def test_a_section_that_is_missing(name: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="cut off or damaged"):
        Cubin(image().replace(name, b".another"[: len(name)]))
