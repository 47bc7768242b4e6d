"""Kernels of triton_kernels.py as PTX for sm_120; needs no GPU and no PyTorch."""

import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # what Triton did so far; unset, it warns
os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")

import triton  # reads the environment
import triton_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "int8": "i8", "uint8": "u8",
    "int32": "i32", "int64": "i64", "uint64": "u64", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip


class Descriptor(NamedTuple):
    """An array that a kernel is given as a tensor descriptor with blocks of this shape."""

    array: npt.NDArray[Any]
    block: tuple[int, ...]


def type_of(argument: Any) -> str:
    """Write an argument's type as Triton's signatures do."""
    if isinstance(argument, Descriptor):
        return f"tensordesc<{type_of(argument.array).lstrip('*')}[{', '.join(map(str, argument.block))}]>"
    return ("*" if isinstance(argument, np.ndarray) else "") + TYPES[argument.dtype.name]


def compile_kernel(name: str, *arguments: Any, warps: int, stages: int, constants: dict[str, Any]) -> Any:
    """Compile a kernel for arguments of these types; what Triton knows of it."""
    kernel = getattr(triton_kernels, name)
    names = [n for n in kernel.arg_names if n not in constants]
    signature = dict(zip(names, map(type_of, arguments), strict=True)) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", 120, 32), options=options)
