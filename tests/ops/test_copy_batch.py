"""copy_batch: every alignment, many and large pieces, and what it refuses."""

from typing import Any

import numpy as np
import pytest
from harness import OpenDevice, ffi, lib
from numpy.typing import NDArray

import pysm120
from pysm120.runtime.ffi import text

CHUNK = 8192
Piece = tuple[int, int, int]  # offsets in dst and src, bytes


def launch(device: pysm120.Device) -> None:
    x = device.zeros(64, np.uint8)
    pysm120.copy_batch([(x, x[32:], 32)])


def random_bytes(rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    return rng.integers(0, 256, count, np.uint8)


def side_by_side(rng: np.random.Generator, forms: list[tuple[int, int, int]]) -> tuple[list[Piece], int]:
    """Place pieces of (offset of dst % 16, offset of src % 16, bytes) in any order, with gaps of at least 16 bytes."""
    found: list[Piece] = [(0, 0, 0)] * len(forms)
    to, source = 256, 256
    order = rng.permutation(len(forms))
    for n in order:
        dst, src, nbytes = forms[n]
        found[n] = (to + dst, source + src, nbytes)
        to += -(-(nbytes + 48) // 16) * 16
        source += -(-(nbytes + 48) // 16) * 16
    return found, max(to, source) + 256


def check_copies(
    device: pysm120.Device, rng: np.random.Generator, pieces: list[Piece], size: int, **options: Any
) -> None:
    """Copy between two buffers of random bytes, and compare all bytes of both."""
    before, source = random_bytes(rng, size), random_bytes(rng, size)
    dst, src = device.array(before), device.array(source)
    pysm120.copy_batch([(dst.address + a, src.address + b, n) for a, b, n in pieces], device=device, **options)
    wanted = before.copy()
    for a, b, n in pieces:
        wanted[a : a + n] = source[b : b + n]
    wrong = np.flatnonzero(dst.numpy() != wanted)
    assert not len(wrong), f"{len(wrong)} bytes differ, first at {wrong[0]}: {at(pieces, int(wrong[0]))}"
    np.testing.assert_array_equal(src.numpy(), source)


def at(pieces: list[Piece], place: int) -> str:
    """Name the piece that should have written a byte."""
    return next((str(piece) for piece in pieces if piece[0] <= place < piece[0] + piece[2]), "between pieces")


def test_all_alignments(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Every pair of alignments with every size from 0 to 100."""
    forms = [(a, b, n) for a in range(16) for b in range(16) for n in range(101)]
    pieces, size = side_by_side(rng, forms)
    check_copies(device, rng, pieces, size)


def test_large_pieces(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Around the edges of steps and chunks, and several chunks, at all differences of alignment."""
    edges = [2048, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 16, 2 * CHUNK + 47, 3 * CHUNK + 4321]
    forms = [(int(rng.integers(16)), 0, int(rng.choice(edges)) + int(rng.integers(-20, 20))) for _ in range(16)]
    forms = [(a, (a + turn) % 16, n) for turn, (a, _, n) in enumerate(forms)]
    forms += [(int(rng.integers(16)), int(rng.integers(16)), n) for n in edges]
    pieces, size = side_by_side(rng, forms)
    check_copies(device, rng, pieces, size)


@pytest.mark.parametrize("ctas", [1, 3, None])
def test_many_pieces(device: pysm120.Device, rng: np.random.Generator, ctas: int | None) -> None:
    """Thousands of small ones, with empty ones between them and at both ends, and a large one."""
    count = 1100 if ctas else 2500
    forms = [
        (int(a), int(b), int(n))
        for a, b, n in zip(*rng.integers(0, 16, (2, count)), rng.integers(1, 40, count), strict=True)
    ]
    for n in rng.integers(0, len(forms), 8):
        forms[n : n + 40] = [(a, b, 0) for a, b, _ in forms[n : n + 40]]
    forms[0] = forms[-1] = (3, 5, 0)
    forms[77] = (1, 9, 5 * CHUNK + 33)
    pieces, size = side_by_side(rng, forms)
    check_copies(device, rng, pieces, size, ctas=ctas)


def test_only_empty_pieces(device: pysm120.Device, rng: np.random.Generator) -> None:
    check_copies(device, rng, [(0, 0, 0)] * 40, 64)
    pysm120.copy_batch([(0, 0, 0)], device=device)


def test_ends_of_allocations(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Pieces that end where their memory ends: the virtual device refuses any other access."""
    for begin in range(16):
        nbytes = 16 * int(rng.integers(1, 6)) + int(rng.integers(16))
        source = random_bytes(rng, begin + nbytes)
        src = device.array(source)
        dsts = [device.zeros(a + nbytes, np.uint8) for a in range(16)]
        pysm120.copy_batch([(x[a:], src[begin:], nbytes) for a, x in enumerate(dsts)])
        for a, x in enumerate(dsts):
            np.testing.assert_array_equal(x.numpy(), np.concatenate([np.zeros(a, np.uint8), source[begin:]]))


def test_arrays_of_any_dtype(device: pysm120.Device, rng: np.random.Generator) -> None:
    """The tensors of a layer out of one staging buffer, again and again with one list."""
    tensors = [device.zeros(shape, np.float32) for shape in ((7, 9), (5, 3, 2), (1,), (300,))]
    staging = device.empty(sum(x.nbytes for x in tensors), np.uint8)
    starts = np.cumsum([0, *(x.nbytes for x in tensors)])
    pieces = [(x, staging[int(start) :], x.nbytes) for x, start in zip(tensors, starts, strict=False)]
    copies = pysm120.CopyList(pieces)
    assert (len(copies), copies.nbytes, copies.device) == (4, staging.nbytes, device)
    del pieces
    for _ in range(2):
        values = rng.standard_normal(staging.nbytes // 4).astype(np.float32)
        staging.copy_from(values.view(np.uint8))
        pysm120.copy_batch(copies, stream=device.stream())
        device.synchronize()
        np.testing.assert_array_equal(np.concatenate([x.numpy().ravel() for x in tensors]), values)
    staging.free()
    with pytest.raises(pysm120.ClosedError, match="freed"):
        pysm120.copy_batch(copies)


REFUSED: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "empty": ([], {}, ValueError, "pieces is empty: give at least one"),
    "form": ([(1, 2)], {}, TypeError, r"pieces\[0\] is \(1, 2\), not \(dst, src, nbytes\)"),
    "kind": ([("X", np.zeros(4), 4)], {}, TypeError, r"pieces\[0\].src is a ndarray, not an array on a device"),
    "float": ([("X", 1.5, 4)], {}, TypeError, r"pieces\[0\].src is a float, not an array on a device or an address"),
    "address": ([("X", -1, 4)], {}, ValueError, r"pieces\[0\].src is -1, not an address"),
    "null": ([("X", "Y", 4), (0, "Y", 4)], {}, ValueError, r"pieces\[1\].dst = 0"),
    "bytes": ([("X", "Y", -4)], {}, ValueError, r"pieces\[0\].nbytes is -4, but it must be at least 0"),
    "bytes kind": ([("X", "Y", 4.0)], {}, TypeError, r"pieces\[0\].nbytes is 4.0, not an integer"),
    "too many bytes": ([("X", "Y", 65)], {}, ValueError, r"pieces\[0\].dst has 64 bytes, but nbytes is 65"),
    "gaps": ([("Z", "Y", 4)], {}, ValueError, r"pieces\[0\].dst has strides \(2,\), but it must be contiguous"),
    "overlap": ([("X", "X", 4)], {}, ValueError, r"pieces\[0\].dst .* and pieces\[0\].src .* overlap"),
    "past the end": ([("X", "end", 64)], {}, ValueError, r"pieces\[0\].src: 64 bytes at .* run past the end"),
    "chunks": ([(1 << 20, 1 << 58, 1 << 50)], {}, NotImplementedError, r"pieces\[0\].nbytes = 1125899906842624; a"),
    "ctas": ([("X", "Y", 4)], {"ctas": 0}, ValueError, "ctas is 0, but it must be from 1 to 1048576, or None"),
    "ctas kind": ([("X", "Y", 4)], {"ctas": 2.0}, TypeError, "ctas is 2.0, not an integer"),
}


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (None, "pieces is a NoneType, not an iterable of (dst, src, nbytes)"),
        (3, "pieces is a int, not an iterable of (dst, src, nbytes)"),
        ([np.zeros((3, 3))], "pieces[0] is a ndarray, not (dst, src, nbytes)"),
    ],
)
def test_no_list_of_pieces(pieces: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        pysm120.copy_batch(pieces)
    assert str(caught.value) == words


@pytest.mark.parametrize("case", REFUSED)
def test_python_refuses(device: pysm120.Device, case: str) -> None:
    x, y, z = (device.zeros(64, np.uint8) for _ in range(3))
    named = {"X": x, "Y": y, "Z": z[::2], "end": y.address + 1}
    given, options, kind, words = REFUSED[case]
    pieces: Any = [tuple(named.get(part, part) if isinstance(part, str) else part for part in piece) for piece in given]
    with pytest.raises(kind, match=words) as caught:
        pysm120.copy_batch(pieces, device=device, **options)
    assert "\n" not in str(caught.value)
    assert not x.numpy().any()


@pytest.mark.parametrize(
    ("pieces", "count", "ctas", "status", "words"),
    [
        (0, 1, 0, "INVALID_ARGUMENT", "pieces = 0"),
        (8, 1, 0, "MISALIGNED", "pieces"),
        (4096, 0, 0, "INVALID_ARGUMENT", "count = 0"),
        (4096, 1 << 31, 0, "UNSUPPORTED", "count = 2147483648"),
        (4096, 129, 0, "INVALID_ARGUMENT", "past the end"),
        (4096, 1, (1 << 20) + 1, "UNSUPPORTED", "ctas = 1048577"),
    ],
)
def test_c_refuses(opened: OpenDevice, pieces: int, count: int, ctas: int, status: str, words: str) -> None:
    """Numbers that Python never passes on; 4096 stands for memory of 128 pieces."""
    address = ffi.new("sm120_address *")
    assert lib.sm120_alloc(opened.handle, 4096, address) == lib.SM120_OK
    try:
        given = int(address[0]) if pieces == 4096 else pieces
        assert lib.sm120_copy_batch(opened.handle, given, count, ctas, ffi.NULL) == getattr(lib, f"SM120_{status}")
        assert words in text(lib.sm120_last_error())
        assert lib.sm120_copy_batch_prepare(opened.handle, ffi.NULL, 1) == lib.SM120_INVALID_ARGUMENT
        assert "pieces is NULL" in text(lib.sm120_last_error())
    finally:
        assert lib.sm120_free(opened.handle, address[0]) == lib.SM120_OK


def test_a_list_that_changes(device: pysm120.Device, rng: np.random.Generator) -> None:
    """The kernel reads the list when it runs; a list of wrong numbers of chunks is never read past its end."""
    source = random_bytes(rng, 256)
    src, dst, rows = device.array(source), device.zeros(256, np.uint8), device.zeros((2, 4), np.uint64)
    for first in ((0, 1), (7, 7), (1 << 40, 0)):
        rows.copy_from(
            np.array([[dst.address, src.address, 100, first[0]], [dst.address + 120, src.address, 90, first[1]]], "u8")
        )
        status = lib.sm120_copy_batch(device.handle.pointer, rows.address, 2, 0, ffi.NULL)
        assert status == lib.SM120_OK
    device.synchronize()
    np.testing.assert_array_equal(dst.numpy()[:100], source[:100])
