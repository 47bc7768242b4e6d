"""The decoder of the library's images: what Python compresses, whole and damaged, under sanitizers."""

import lzma
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from inside import CC, FLAGS

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]

import build  # noqa: E402


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the decoder and its test."""
    path = tmp_path_factory.mktemp("lzma") / "lzma"
    sources = [ROOT / "tests" / "runtime" / "lzma.c", ROOT / "src" / "runtime" / "lzma.c"]
    checked = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([*CC, *FLAGS, *checked, "-I", ROOT / "src", *sources, "-o", path], check=True)
    return path


def run(program: Path, folder: Path, pairs: Iterable[tuple[bytes, bytes]], *words: str) -> list[int]:
    """Decode files and damaged copies; the numbers that the program prints."""
    data = b"".join(
        len(packed).to_bytes(8, "little") + len(wanted).to_bytes(8, "little") + packed + wanted
        for packed, wanted in pairs
    )
    (folder / "pairs").write_bytes(data)
    done = subprocess.run([program, folder / "pairs", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in re.findall(r"\d+", done.stdout)]


def packed(data: bytes, *, lc: int = 3, lp: int = 0, pb: int = 2, preset: int = 6) -> bytes:
    """Compress as the build does."""
    filters = [{"id": lzma.FILTER_LZMA1, "preset": preset, "lc": lc, "lp": lp, "pb": pb}]
    return lzma.compress(data, lzma.FORMAT_ALONE, filters=filters)


def samples() -> list[bytes]:
    """Draw data of several kinds: nothing, noise, runs, text, repetitions near and far."""
    draw = random.Random(1)  # noqa: S311 - no secret
    noise = draw.randbytes(3000)
    words = [draw.randbytes(draw.randint(1, 12)) for _ in range(40)]
    text = b"".join(draw.choice(words) for _ in range(2000))
    far = noise + bytes(70000) + noise[:2000]
    return [b"", b"x", b"xy", bytes(5000), noise, b"abc" * 900, text, far, bytes(draw.choices(range(4), k=4000))]


def test_data_of_all_kinds(program: Path, tmp_path: Path) -> None:
    properties = [(3, 0, 2), (0, 0, 0), (4, 0, 0), (0, 4, 4), (2, 2, 1), (1, 3, 3)]
    pairs = [(packed(data, lc=lc, lp=lp, pb=pb), data) for data in samples() for lc, lp, pb in properties]
    files, refused, accepted = run(program, tmp_path, pairs)
    assert files == len(pairs)
    assert refused > 40 * files
    assert accepted < refused / 5  # the dictionary's size in the header is not needed


def test_random_bytes_are_refused(program: Path, tmp_path: Path) -> None:
    draw = random.Random(2)  # noqa: S311 - no secret
    for head in (bytes(13), b"\x5d" + bytes(4) + b"\xff" * 8 + b"\0"):
        with pytest.raises(AssertionError, match="a whole file was not decoded"):
            run(program, tmp_path, [(head + draw.randbytes(200), draw.randbytes(200))])


def test_a_size_in_the_header_is_believed_only_where_it_is_right(program: Path, tmp_path: Path) -> None:
    data = samples()[6]
    whole = packed(data)
    sized = whole[:5] + len(data).to_bytes(8, "little") + whole[13:]
    assert run(program, tmp_path, [(sized, data)])[0] == 1
    wrong = whole[:5] + (len(data) + 1).to_bytes(8, "little") + whole[13:]
    with pytest.raises(AssertionError, match="a whole file was not decoded"):
        run(program, tmp_path, [(wrong, data)])
    with pytest.raises(AssertionError, match="a whole file was not decoded"):
        run(program, tmp_path, [(whole + b"\0", data)])
    with pytest.raises(AssertionError, match="a whole file was not decoded"):
        run(program, tmp_path, [(bytes([5 + 9 * 4]) + whole[1:], data)])  # lc 5, lp 4: too many literals


def test_every_block_of_the_library(program: Path, tmp_path: Path) -> None:
    build.build()
    files = [*(ROOT / "build" / "kernels").glob("*.lzma")]
    pairs = [(path.read_bytes(), lzma.decompress(path.read_bytes())) for path in files]
    assert sum(len(data) for data, _ in pairs) == (ROOT / "build" / "generated" / "images.bin").stat().st_size
    assert run(program, tmp_path, pairs, "whole")[0] == len(pairs) > 10
    small = [pair for pair in pairs if len(pair[1]) < 30_000]
    assert run(program, tmp_path, small)[0] == len(small) > 1
