"""Make a list of launches for tests of the timing model: matmul and attention, compiled by Triton.

    python benchmarks/triton_launches.py FOLDER        # writes FOLDER/triton.json and FOLDER/triton/*.xz; needs triton

Triton compiles the kernels of tests/corpus for sm_80, whose products are mma.sync, and ptxas assembles them for sm_90,
with the lines of the PTX. First a small problem of each runs on the virtual device and is compared with NumPy. Then
`model --measure OUT.json --launches FOLDER/triton.json` measures the clocks on a GPU.
"""

import dataclasses
import json
import lzma
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "corpus"))

import triton  # beside the kernels
import triton.language as tl
import triton_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import pysm120
from pysm120.machine_code import sass
from pysm120.machine_code.cubin import Cubin
from pysm120.observe import argument as argument_module

TYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}
ALIGNED = [["tt.divisibility", 16]]


@dataclasses.dataclass(frozen=True)
class Matmul:
    """A product of M x K and K x N, in tiles."""

    kind: str
    M: int
    N: int
    K: int
    BM: int
    BN: int
    BK: int
    warps: int
    stages: int

    name: ClassVar = "matmul"

    def constants(self) -> dict[str, Any]:
        """Return the constants that the kernel is compiled with."""
        return {"BM": self.BM, "BN": self.BN, "BK": self.BK, "ACC": tl.float32}

    def small(self) -> "Matmul":
        """Return a problem of a few CTAs."""
        return dataclasses.replace(self, M=2 * self.BM, N=self.BN, K=4 * self.BK)

    def grid(self) -> tuple[int, int]:
        """Return the CTAs."""
        return self.M // self.BM, self.N // self.BN

    def rounds(self) -> list[int]:
        """Return the rounds of the main loop of CTAs, which repeat."""
        return [self.K // self.BK]

    def signature(self) -> dict[str, str]:
        """Return the types of the parameters."""
        out = "*fp32" if self.kind == "fp32" else f"*{self.kind}"
        return {"a_ptr": f"*{self.kind}", "b_ptr": f"*{self.kind}", "c_ptr": out, "M": "i32", "N": "i32", "K": "i32"}

    def words(self) -> list[str]:
        """Return the arguments."""
        t = TYPES[self.kind]
        arrays = [f"{t}[{self.M},{self.K}]:normal", f"{t}[{self.K},{self.N}]:normal", f"{t}[{self.M},{self.N}]"]
        return [*arrays, f"s32:{self.M}", f"s32:{self.N}", f"s32:{self.K}"]

    @staticmethod
    def expected(values: list[Any]) -> tuple[int, npt.NDArray[Any]]:
        """Return the index of the output argument, and its expected values."""
        return 2, values[0].astype(float) @ values[1].astype(float)


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention of heads, in tiles."""

    kind: str
    heads: int
    S: int
    D: int
    BM: int
    BN: int
    causal: bool
    warps: int
    stages: int

    name: ClassVar = "attention"

    def constants(self) -> dict[str, Any]:
        """Return the constants that the kernel is compiled with."""
        return {"D": self.D, "BM": self.BM, "BN": self.BN, "CAUSAL": self.causal}

    def small(self) -> "Attention":
        """Return a problem of a few CTAs."""
        return dataclasses.replace(self, heads=1, S=3 * self.BM)

    def grid(self) -> tuple[int, int]:
        """Return the CTAs."""
        return self.S // self.BM, self.heads

    def rounds(self) -> list[int]:
        """Return the rounds of the main loop of CTAs, which repeat."""
        ends = [(tile + 1) * self.BM if self.causal else self.S for tile in range(self.S // self.BM)]
        return [end // self.BN for end in ends]

    def signature(self) -> dict[str, str]:
        """Return the types of the parameters."""
        x = f"*{self.kind}"
        return {"q_ptr": x, "k_ptr": x, "v_ptr": x, "o_ptr": x, "l_ptr": "*fp32", "S": "i32", "scale": "fp32"}

    def words(self) -> list[str]:
        """Return the arguments."""
        shape = f"{TYPES[self.kind]}[{self.heads},{self.S},{self.D}]"
        scale = f"f32:{self.D**-0.5 * 1.4426950408889634}"
        return [*[f"{shape}:normal"] * 3, shape, f"f32[{self.heads},{self.S}]", f"s32:{self.S}", scale]

    def expected(self, values: list[Any]) -> tuple[int, npt.NDArray[Any]]:
        """Return the index of the output argument, and its expected values."""
        q, k, v = (x.astype(float) for x in values[:3])
        scores = q @ k.swapaxes(1, 2) * self.D**-0.5
        if self.causal:
            scores[:, np.triu(np.ones((self.S, self.S), bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(2, keepdims=True))
        return 3, p / p.sum(2, keepdims=True) @ v


CASES: tuple[Matmul | Attention, ...] = (
    Matmul("fp16", 4096, 4096, 4096, 128, 128, 32, warps=4, stages=3),
    Matmul("fp16", 4096, 4096, 4096, 128, 128, 64, warps=8, stages=3),
    Matmul("bf16", 4096, 4096, 4096, 128, 256, 32, warps=8, stages=3),
    Matmul("fp16", 2048, 2048, 2048, 64, 64, 32, warps=4, stages=2),
    Matmul("fp16", 16384, 16384, 64, 128, 128, 32, warps=4, stages=2),  # writes more than it multiplies
    Attention("fp16", 32, 4096, 64, 128, 64, causal=False, warps=4, stages=3),
    Attention("fp16", 32, 4096, 64, 128, 64, causal=True, warps=4, stages=3),
    Attention("bf16", 32, 4096, 128, 128, 64, causal=False, warps=8, stages=2),
    Attention("bf16", 32, 4096, 128, 128, 64, causal=True, warps=8, stages=2),
    Attention("fp16", 128, 1024, 64, 64, 64, causal=False, warps=4, stages=2),
)


def compiled(case: Matmul | Attention) -> tuple[str, int]:
    """Return PTX, and the bytes of shared memory that it needs."""
    signature, constants = case.signature(), case.constants()
    source = ASTSource(
        getattr(triton_kernels, case.name),
        signature | dict.fromkeys(constants, "constexpr"),
        constants,
        {(i,): ALIGNED for i, kind in enumerate(signature.values()) if kind != "fp32"},
    )
    options = {"num_warps": case.warps, "num_stages": case.stages}
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
    if made.metadata.global_scratch_size:
        message = f"{case} needs scratch memory"
        raise RuntimeError(message)
    return made.asm["ptx"], made.metadata.shared


def error(case: Matmul | Attention, ptx: str, shared: int) -> float:
    """Run a small problem on the virtual device; return the error against float64."""
    small = case.small()
    values = [argument.value for argument in argument_module.parse_arguments(small.words())]
    with pysm120.Device("virtual") as device:
        held = [device.array(x) if isinstance(x, np.ndarray) else x for x in values]
        kernel = device.load(ptx)[case.name]
        kernel(small.grid(), 32 * case.warps, *held, np.uint64(0), np.uint64(0), shared=shared)
        device.synchronize()
        index, wanted = small.expected(values)
        found = held[index].numpy().astype(float)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def main() -> None:
    """Compile all cases."""
    folder = Path(sys.argv[1])
    (folder / "triton").mkdir(parents=True, exist_ok=True)
    rows = []
    for case in CASES:
        ptx, shared = compiled(case)
        image = sass.assemble(ptx, "sm_90")
        code = sass.disassemble(image)[case.name].instructions
        wrong = error(case, ptx, shared)
        if not wrong < 0.01 or not any(one.base == "HMMA" for one in code):  # noqa: PLR2004
            message = f"{case} is wrong by {wrong:.2%} or has no HMMA"
            raise RuntimeError(message)
        name = "triton/" + "_".join(str(x) for x in (case.name, *dataclasses.astuple(case))).lower()
        for suffix, data in (("cubin", image), ("ptx", ptx.encode())):
            (folder / f"{name}.{suffix}.xz").write_bytes(lzma.compress(data))
        rows.append(
            {
                "image": f"{name}.cubin.xz",
                "ptx": f"{name}.ptx.xz",
                "entry": case.name,
                "grid": list(case.grid()),
                "threads": 32 * case.warps,
                "shared_bytes": shared,
                "rounds": case.rounds(),
                "arguments": [*case.words(), "u64:0", "u64:0"],
            }
        )
        print(f"{case}: {Cubin(image).entry(case.name).registers} registers, error {wrong:.2e} on the virtual device")
    (folder / "triton.json").write_text(json.dumps({"launches": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
