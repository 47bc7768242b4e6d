"""Multiply the matrices of a GGUF file and a vector by pysm120, and compare with NumPy.

    pip install gguf
    python examples/gguf_matvec.py [FILE.gguf] [--device cuda] [--vectors 1] [--layout packed]

Without a file, a small one is written and read: matrices in Q8_0 and MXFP4, which the gguf package can quantise. Of a
file, matrices of other types, which pysm120 does not support, are skipped.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

import pysm120

SUPPORTED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "NVFP4")


class Line(NamedTuple):
    """A matrix of the file, and the error of its product."""

    name: str
    type: str
    rows: int
    columns: int
    error: float  # norm of the difference over the norm of the result


def write(path: Path, rng: np.random.Generator) -> None:
    """Write a file with two matrices and a vector."""
    writer = gguf.GGUFWriter(path, "example")
    for name, kind, shape in (("up", "Q8_0", (192, 512)), ("down", "MXFP4", (512, 192))):
        values = (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
        code = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.weight", quantize(values, code), raw_dtype=code)
    writer.add_tensor("norm.weight", np.ones(512, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def products(path: Path, device: pysm120.Device, vectors: int, layout: str) -> Iterator[Line]:
    """Multiply every supported matrix of a file and random vectors."""
    rng = np.random.default_rng(0)
    for tensor in gguf.GGUFReader(path).tensors:
        kind = tensor.tensor_type.name
        if kind not in SUPPORTED or len(tensor.shape) != len(("columns", "rows")):
            continue
        columns, rows = map(int, tensor.shape)  # GGUF lists columns first
        w = pysm120.QuantizedMatrix.from_gguf(tensor.data, kind, (rows, columns), device=device, layout=layout)
        x: Any = rng.standard_normal((vectors, columns)).astype(np.float32)
        y = pysm120.matvec(w, x)
        wanted = x @ dequantize(tensor.data, tensor.tensor_type).T
        yield Line(tensor.name, kind, rows, columns, float(np.linalg.norm(y - wanted) / np.linalg.norm(wanted)))
        w.free()


def main() -> None:
    """Print a line for each matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--device", help="cuda, cuda:1 or virtual; default: the first GPU, else virtual")
    parser.add_argument("--vectors", type=int, default=1)
    parser.add_argument("--layout", choices=("native", "packed"), default="packed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, pysm120.Device(options.device) as device:
        path = options.file or Path(folder) / "example.gguf"
        if options.file is None:
            write(path, np.random.default_rng(1))
        for line in products(path, device, options.vectors, options.layout):
            print(f"{line.name:40} {line.type:6} {line.rows:6} x {line.columns:<6} relative error {line.error:.1e}")


if __name__ == "__main__":
    main()
