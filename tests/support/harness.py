"""Buffers between guard bands, and calls of the C ABI with addresses, for the kernel tests.

The bytes around every buffer and between its rows are filled with 0xa5. Inputs are checked to be unchanged. Outputs are
poisoned with 0xff (NaN in every float format here) and checked to be written exactly where they should be.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import pysm120
from pysm120.runtime.ffi import check, ffi, lib, new_struct

BAND = 512
GUARD, POISON = 0xA5, 0xFF
CODES = {"float32": lib.SM120_F32, "float16": lib.SM120_F16, "bfloat16": lib.SM120_BF16}
DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# The same with float8_e4m3fn, which only some operations take.
ALL_CODES = {**CODES, "float8_e4m3fn": lib.SM120_E4M3}
ALL_DTYPES: dict[str, Any] = {**DTYPES, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}


class Buffer:
    """Device memory for an array of any strides (in elements), guarded on both sides and in its gaps."""

    def __init__(
        self,
        device: "OpenDevice",
        shape: Sequence[int],
        dtype: Any,
        strides: Sequence[int] | None = None,
        values: NDArray[Any] | None = None,
    ) -> None:
        self.device, self.dtype, self.shape = device, np.dtype(dtype), tuple(shape)
        if strides is None:
            strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
        self.strides = tuple(strides)
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        self.image = np.full(2 * BAND + -(-extent * self.dtype.itemsize // 16) * 16, GUARD, np.uint8)
        self.is_output = values is None
        if values is None:
            self.elements(self.image).view(f"V{self.dtype.itemsize}")[...] = np.void(
                bytes([POISON] * self.dtype.itemsize)
            )
        else:
            self.elements(self.image)[...] = values
        address = ffi.new("sm120_address *")
        check(lib.sm120_alloc(device.handle, self.image.nbytes, address))
        self.base = int(address[0])
        device.buffers.append(self)
        self.upload()

    def elements(self, image: NDArray[np.uint8]) -> NDArray[Any]:
        """View the elements inside an image of the whole allocation."""
        return np.ndarray(
            self.shape,
            self.dtype,
            image[BAND:].data,
            strides=[s * self.dtype.itemsize for s in self.strides],
        )

    @property
    def address(self) -> int:
        """Device address of the first element."""
        return self.base + BAND

    def upload(self) -> None:
        """Write the image, including its bands."""
        pointer = ffi.from_buffer(self.image)
        check(lib.sm120_copy_to_device(self.device.handle, self.base, pointer, self.image.nbytes, ffi.NULL))
        check(lib.sm120_device_synchronize(self.device.handle))

    def download(self) -> NDArray[Any]:
        """Read the elements back and check everything around them."""
        image = np.empty_like(self.image)
        pointer = ffi.from_buffer(image)
        check(lib.sm120_copy_to_host(self.device.handle, pointer, self.base, image.nbytes, ffi.NULL))
        check(lib.sm120_device_synchronize(self.device.handle))
        expected = self.image.copy()
        got = self.elements(image).copy()
        if self.is_output:
            self.elements(expected)[...] = got
        wrong = np.flatnonzero(image != expected)
        assert wrong.size == 0, f"{wrong.size} bytes changed around or inside a buffer, first at {wrong[0] - BAND}"
        return got


SM120 = 12  # its major compute capability


class OpenDevice:
    """A device opened through the C ABI only."""

    def __init__(self, name: str) -> None:
        pointer = ffi.new("sm120_device **")
        check(lib.sm120_device_open(name.encode(), pointer))
        self.name, self.handle = name, pointer[0]
        info = new_struct("sm120_device_info")
        check(lib.sm120_device_query(self.handle, info))
        self.is_sm120 = info.capability_major >= SM120
        self.buffers: list[Buffer] = []

    def release(self) -> None:
        """Check every band once more and free the buffers."""
        for buffer in self.buffers:
            buffer.download()
            check(lib.sm120_free(self.handle, buffer.base))
        self.buffers.clear()

    def close(self) -> None:
        """Close the device."""
        check(lib.sm120_device_close(self.handle))


def is_on_cpu(device: pysm120.Device) -> bool:
    """Whether a CPU runs the launches: the virtual device's, or those of a CUDA driver that is made of it."""
    return "virtual" in device.info.name


def tensor(struct: Any, buffer: Buffer) -> None:
    """Fill an sm120_tensor from a [batch, head, row, head_dim] buffer."""
    struct.address = buffer.address
    struct.dtype = ALL_CODES[buffer.dtype.name]
    struct.batch_stride, struct.head_stride, struct.row_stride = buffer.strides[:3]


__all__ = [
    "ALL_CODES",
    "ALL_DTYPES",
    "CODES",
    "DTYPES",
    "Buffer",
    "OpenDevice",
    "check",
    "ffi",
    "lib",
    "new_struct",
    "tensor",
]
