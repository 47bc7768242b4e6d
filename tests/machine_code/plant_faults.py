"""Plant faults in the machine code of a kernel, and see which ones its launch shows.

    python plant_faults.py DRIVER SEED FAULTS [ENTRY ...]   # of each kind in each kernel; prints JSON, a line for each

A fault counts only at an instruction that the launch executes: EXIT in its place must show.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import ml_dtypes
import numpy as np
from machine import Machine, functions_of, image_of

import pysm120
from pysm120.machine_code import sass
from pysm120.machine_code.execute.kernel import as_ptx

LIMIT = 1 << 24  # instructions of a loop that a fault makes endless
Call = Callable[[pysm120.Device, np.random.Generator], Any]


def attention(precision: str, dtype: Any) -> Call:
    """Return a call with several heads, and with odd numbers of rows and keys."""

    def call(device: pysm120.Device, rng: np.random.Generator) -> None:
        q, k, v = (
            rng.standard_normal((2, rows, heads, 64)).astype(dtype) for rows, heads in ((147, 4), (213, 2), (213, 2))
        )
        pysm120.attention(q, k, v, precision=precision, causal=True, num_splits=1, return_lse=True, device=device)

    return call


def quantize(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Quantise rows."""
    pysm120.quantize_nvfp4(rng.standard_normal((3, 37, 208)).astype(np.float32), device=device)


CALLS: dict[str, Call] = {
    "attention_mxfp8_128x64_d64": attention("mxfp8", np.float32),
    "attention_nvfp4_128x64_d64": attention("nvfp4", np.float32),
    "attention_fp8_32x64_d64_k4": attention("fp8", ml_dtypes.float8_e4m3fn),
    "quantize_nvfp4_f32": quantize,
}


class Planter:
    """Runs a call with a faulty kernel."""

    def __init__(self, machine: Machine, entry: str, seed: int) -> None:
        self.machine, self.entry, self.seed = machine, entry, seed
        self.function = functions_of([entry])[entry]

    def shows(self, i: int, one: sass.Instruction) -> bool:
        """Whether a launch writes other bytes, or faults, with this instruction at index i."""
        faulty = faults.with_instruction(self.function, i, one)
        self.machine.texts[self.entry] = as_ptx(faulty, image_of(self.entry, "cubin"))
        with pysm120.Device("cuda") as device:
            CALLS[self.entry](device, np.random.default_rng(self.seed))
        launches, errors = self.machine.take()
        assert not errors, errors
        own = [launch for launch in launches if launch.entry == self.entry]
        assert own, f"{self.entry} is not launched, but {[launch.entry for launch in launches]}"
        return any(not launch.is_right for launch in own)

    def plant(self, kind: str, count: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        """Plant so many faults of a kind."""
        code = self.function.instructions
        for i in map(int, rng.permutation(len(code))):
            if count == 0:
                return
            faulty = faults.FAULTS[kind](self.function, i, rng)
            stop = sass.Instruction(code[i].address, code[i].predicate, "EXIT", (), 0)
            if faulty is None or code[i].is_branch or not self.shows(i, stop):
                continue
            count -= 1
            yield {
                "entry": self.entry, "kind": kind, "right": str(code[i]), "faulty": str(faulty),
                "found": self.shows(i, faulty),
            }  # fmt: skip


def main() -> None:
    """Print a line for each fault."""
    os.environ["PYSM120_INSTRUCTION_LIMIT"] = str(LIMIT)
    driver, seed, count, *entries = sys.argv[1:]
    machine = Machine(Path(driver), Path(driver).parent)
    for n, entry in enumerate(entries or CALLS):
        planter, rng = Planter(machine, entry, int(seed)), np.random.default_rng([int(seed), n])
        for kind in faults.FAULTS:
            for row in planter.plant(kind, int(count), rng):
                sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
