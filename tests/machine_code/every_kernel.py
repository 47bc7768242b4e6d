"""Launch every kernel of the library on a device that runs machine code beside PTX.

    python every_kernel.py DRIVER TEXTS SEED   # prints JSON: a line for each kernel whose machine code was launched

The calls are those of the rows of tests/support/operations.py. They fill their inputs with numpy.ones, and with zeros
on the device. Here both draw random numbers and random bytes: ones show neither a wrong row nor a wrong column.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import Machine, Total
from numpy.typing import NDArray

import pysm120

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import operations


def draw(rng: np.random.Generator) -> None:
    """Replace numpy.ones for floats, and zeros for bytes, which are codes and scales."""
    ones, zeros, of_device = np.ones, np.zeros, pysm120.Device.zeros

    def some_ones(shape: Any, dtype: Any = None, **options: Any) -> NDArray[Any]:
        plain: NDArray[Any] = ones(shape, dtype, **options)
        is_number = plain.dtype.kind == "f" or plain.dtype.name.startswith(("bfloat", "float"))
        return np.asarray(rng.standard_normal(plain.shape)).astype(plain.dtype) if is_number else plain

    def some_zeros(shape: Any, dtype: Any = float, **options: Any) -> NDArray[Any]:
        plain: NDArray[Any] = zeros(shape, dtype, **options)
        return rng.integers(0, 256, plain.shape, np.uint8) if plain.dtype == np.uint8 else plain

    def some_bytes(self: pysm120.Device, shape: Any, dtype: Any = np.float32) -> pysm120.Array:
        made = of_device(self, shape, dtype)
        return self.array(some_zeros(made.shape, np.uint8)) if made.dtype == np.uint8 else made

    for owner, name, function in ((np, "ones", some_ones), (np, "zeros", some_zeros)):
        setattr(owner, name, function)
    setattr(pysm120.Device, "zeros", some_bytes)  # noqa: B010 - for the type checker, a method cannot change


def main() -> None:
    """Launch, and print what came of it."""
    driver, texts, seed = sys.argv[1:]
    of_device, totals = Machine(Path(driver), Path(texts)), defaultdict[str, Total](Total)
    rows = operations.operations()
    import test_copy_batch

    draw(np.random.default_rng(int(seed)))
    with pysm120.Device("cuda") as device:

        def count(launch: Callable[[pysm120.Device], object]) -> list[str]:
            """Launch; return the kernels that have changed nothing yet."""
            launch(device)
            launches, errors = of_device.take()
            assert not errors, errors
            for one in launches:
                assert one.is_right, one
                totals[one.entry].add(one)
            return [one.entry for one in launches if totals[one.entry].changed == 0]

        for row in rows.values():
            if count(row.launch):  # its smallest call has nothing but zeros
                for recorded in row.recorded:
                    count(recorded.run)
        count(test_copy_batch.launch)
    for entry, total in totals.items():
        sys.stdout.write(json.dumps({"entry": entry, **vars(total)}) + "\n")


if __name__ == "__main__":
    main()
