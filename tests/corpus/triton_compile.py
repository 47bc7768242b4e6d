"""Kernels of triton_kernels.py as PTX for sm_120; needs no GPU and no PyTorch."""

import os
from typing import Any

import numpy as np

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


def compile_kernel(name: str, *arguments: Any, warps: int, stages: int, constants: dict[str, Any]) -> Any:
    """Compile a kernel for arguments of these types; what Triton knows of it."""
    kernel = getattr(triton_kernels, name)
    names = [n for n in kernel.arg_names if n not in constants]
    pointer = ["*" if isinstance(a, np.ndarray) else "" for a in arguments]
    types = [p + TYPES[a.dtype.name] for p, a in zip(pointer, arguments, strict=True)]
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", 120, 32), options=options)
