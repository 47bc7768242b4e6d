"""llama.cpp's own products of quantised weights and up to 8 vectors, compiled from a checkout.

Nothing of llama.cpp is part of this project. ``build`` compiles two files of a checkout's ggml-cuda, and llama.cu,
which holds what these need of the rest of ggml. Of the checkout it reads ggml: include, src and src/ggml-cuda.
"""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pysm120.machine_code import tools
from pysm120.ops.weights import TYPES

HERE = Path(__file__).parent
SUPPORTED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4")
VECTORS = 8  # of its mul_mat_vec_q; for more llama.cpp has other kernels
# common.cuh of ggml-cuda includes cublas_v2.h; none of the functions that are linked call it.
CUBLAS = """
#pragma once
typedef struct cublasContext *cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;
typedef enum { CUBLAS_TF32_TENSOR_OP_MATH = 3 } cublasMath_t;
#define CUBLAS_VER_MAJOR 13
extern "C" {
const char *cublasGetStatusString(cublasStatus_t);
cublasStatus_t cublasCreate(cublasHandle_t *);
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t);
cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t);
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t);
}
"""


def build(checkout: Path, target: str, folder: Path) -> Path:
    """Compile the kernels of a checkout of llama.cpp for a target, such as sm_90, to a library in a folder."""
    ggml = checkout / "ggml"
    sources = [ggml / "src/ggml-cuda" / name for name in ("mmvq.cu", "quantize.cu")]
    if (nvcc := tools.locate("nvcc")) is None:
        message = "nvcc was not found: set PATH or CUDA_HOME, or `pip install nvidia-cuda-nvcc`"
        raise FileNotFoundError(message)
    for source in sources:
        if not source.is_file():
            message = f"{checkout} is no checkout of llama.cpp: it has no {source.relative_to(checkout)}"
            raise FileNotFoundError(message)
    (folder / "cublas_v2.h").write_text(CUBLAS, encoding="utf-8")
    library = folder / "libllama_matvec.so"
    includes = [f"-I{path}" for path in (folder, ggml / "include", ggml / "src", ggml / "src/ggml-cuda")]
    # What the two functions of llama.cu do not need is left out: it refers to all of ggml.
    compiled = ["-Xcompiler", "-fPIC,-fvisibility=hidden,-ffunction-sections,-fdata-sections"]
    linked = ["-Xlinker", "--gc-sections,--no-undefined"]
    command: list[str | Path] = [nvcc, "-std=c++17", "-O3", f"-arch={target}", "-shared", *includes, *compiled, *linked]
    subprocess.run([*command, HERE / "llama.cu", *sources, "-o", library], check=True)
    return library


class Llama:
    """The library, loaded. Tensors and streams are addresses."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        number, address = ctypes.c_int64, ctypes.c_void_p
        self.room_of: Callable[[int, int], int] = loaded.llama_room
        self.matvec_of: Any = loaded.llama_matvec
        loaded.llama_room.argtypes, loaded.llama_room.restype = [number, number], number
        numbers = [number, number, number]
        loaded.llama_matvec.argtypes = [ctypes.c_int, address, address, address, address, *numbers, address]
        loaded.llama_matvec.restype = None

    def room(self, columns: int, vectors: int) -> int:
        """Return the bytes of x in llama.cpp's q8_1."""
        return self.room_of(columns, vectors)

    def matvec(
        self, kind: str, weights: int, x: int, room: int, y: int, shape: tuple[int, int, int], stream: int
    ) -> None:
        """Start y = W x on a stream: x and y in f32, shape (rows, columns, vectors)."""
        if kind not in SUPPORTED or not 1 <= shape[2] <= VECTORS:
            message = (
                f"{kind} with {shape[2]} vectors; supported are {', '.join(SUPPORTED)}, and 1 to {VECTORS} vectors"
            )
            raise ValueError(message)
        self.matvec_of(TYPES[kind], weights, x, room, y, *shape, stream)
