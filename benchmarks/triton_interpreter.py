"""Triton's interpreter on the flash attention of tests/corpus, once per line of stdin; benchmarks/virtual.py runs it.

    TRITON_INTERPRET=1 python benchmarks/triton_interpreter.py FOLDER

The folder holds arguments.npz and constants.json; out.npy is written there. The interpreter needs tensors of PyTorch,
but only few of their methods, which are implemented here for NumPy arrays.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = "BM"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "corpus"))

import triton_kernels  # noqa: E402 # the folder has to be known first


class Tensor:
    """The part of a tensor that the interpreter uses; it is its own storage."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dtype = str(array.dtype)

    def data_ptr(self) -> int:
        """Return the address."""
        address: int = self.array.ctypes.data
        return address

    def untyped_storage(self) -> "Tensor":
        """Return the memory."""
        return self

    def cpu(self) -> "Tensor":
        """Return the tensor itself, which is on the host."""
        return self

    def new_empty(self, _size: int, device: str) -> "Tensor":
        """Return a new tensor; its memory is set later."""
        if device != "cpu":
            raise ValueError(f"device = {device!r}: there is only the host")
        return Tensor(self.array)

    def set_(self, storage: "Tensor", *_layout: Any) -> None:
        """Set the memory of the tensor."""
        self.array = storage.array

    def storage_offset(self) -> int:
        """Return the offset in the memory."""
        return 0

    def size(self) -> tuple[int, ...]:
        """Return the shape."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    def stride(self) -> tuple[int, ...]:
        """Return the strides, in elements."""
        return tuple(n // self.array.itemsize for n in self.array.strides)

    def copy_(self, other: "Tensor") -> None:
        """Check that the source is the same memory, so that nothing is to be copied."""
        if other.array is not self.array:
            raise ValueError("the interpreter made a copy")


def main() -> None:
    """Run the kernel whenever a line comes."""
    folder = Path(sys.argv[1])
    constants = json.loads((folder / "constants.json").read_text())
    with np.load(folder / "arguments.npz") as file:
        arrays = [file[name] for name in file.files]
    heads, rows, _ = arrays[0].shape
    arguments = [Tensor(a) if a.ndim else a.item() for a in arrays]
    for _ in sys.stdin:
        triton_kernels.attention[rows // constants[BLOCK], heads](*arguments, **constants)
        np.save(folder / "out.npy", arrays[3])
        print("done", flush=True)


if __name__ == "__main__":
    main()
