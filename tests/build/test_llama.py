"""benchmarks/llama.py: the library that it builds from a checkout of llama.cpp, here of one with functions of the same
names that write down what they are called with.
"""

import ctypes
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

from llama import Llama, build  # noqa: E402

COMMON = """
#pragma once
#include <cstddef>
#include <cstdint>
#include <cublas_v2.h>
#define QK_K 256
#define QK8_1 32
#define MATRIX_ROW_PADDING 512
enum ggml_type { GGML_TYPE_Q8_0 = 8, GGML_TYPE_MXFP4 = 39 };
struct block_q8_1 { unsigned char bytes[36]; };
struct ggml_tensor { ggml_type type; int64_t ne[4]; };
struct ggml_backend_cuda_context { int device; ~ggml_backend_cuda_context(); };
struct ggml_cuda_device_info {
    int device_count;
    struct { int cc, nsm; size_t smpb, smpbo; int warp_size; } devices[2];
};
int ggml_cuda_get_device();
const ggml_cuda_device_info &ggml_cuda_info();
[[noreturn]] void ggml_cuda_error(const char *, const char *, const char *, int, const char *);
extern "C" void ggml_abort(const char *, int, const char *, ...);
extern "C" int64_t ggml_blck_size(enum ggml_type);
void rest_of_ggml();
"""
HEADERS = {
    "quantize.cuh": """
void quantize_row_q8_1_cuda(const float *, const int32_t *, void *, ggml_type, int64_t, int64_t, int64_t, int64_t,
    int64_t, int64_t, int64_t, int64_t, cudaStream_t);
""",
    "mmvq.cuh": """
void ggml_cuda_op_mul_mat_vec_q(ggml_backend_cuda_context &, const ggml_tensor *, const ggml_tensor *, ggml_tensor *,
    const char *, const float *, const char *, float *, int64_t, int64_t, int64_t, int64_t, cudaStream_t);
""",
}
QUANTIZE = """
#include "quantize.cuh"
void quantize_row_q8_1_cuda(const float *x, const int32_t *ids, void *y, ggml_type type, int64_t columns, int64_t s1,
        int64_t s2, int64_t s3, int64_t padded, int64_t n1, int64_t n2, int64_t n3, cudaStream_t stream) {
    int64_t *const out = (int64_t *)y;
    const int64_t all[] = {(int64_t)x, ids != nullptr, type, columns, s1, s2, s3, padded, n1, n2, n3, (int64_t)stream};
    for (int i = 0; i < 12; ++i) {
        out[i] = all[i];
    }
}
"""
PRODUCT = """
#include "mmvq.cuh"
void ggml_cuda_mul_mat_vec_q() {
    rest_of_ggml();
}
void ggml_cuda_op_mul_mat_vec_q(ggml_backend_cuda_context &, const ggml_tensor *w, const ggml_tensor *x, ggml_tensor *y,
        const char *weights, const float *f32, const char *q8_1, float *out, int64_t low, int64_t high, int64_t vectors,
        int64_t padded, cudaStream_t stream) {
    int64_t *const to = (int64_t *)out;
    const int64_t all[] = {w->type, w->ne[0], x->ne[0], y->ne[0], (int64_t)weights, (int64_t)f32, (int64_t)q8_1, low,
                           high, vectors, padded, (int64_t)stream, ggml_blck_size(w->type)};
    for (int i = 0; i < 13; ++i) {
        to[i] = all[i];
    }
}
"""


def checkout(root: Path) -> Path:
    """Write a checkout with the functions that llama.cu calls."""
    cuda = root / "ggml/src/ggml-cuda"
    cuda.mkdir(parents=True)
    (root / "ggml/include").mkdir()
    (root / "ggml/include/common.cuh").write_text(COMMON)
    for name, header in HEADERS.items():
        (cuda / name).write_text(f'#pragma once\n#include "common.cuh"\n{header}')
    (cuda / "quantize.cu").write_text(QUANTIZE)
    (cuda / "mmvq.cu").write_text(PRODUCT)
    return root


def test_calls(tmp_path: Path) -> None:
    """The library needs nothing of the rest of ggml, and calls both functions as llama.cpp does."""
    folder = tmp_path / "out"
    folder.mkdir()
    llama = Llama(build(checkout(tmp_path / "llama.cpp"), "sm_90", folder))
    assert llama.room(768, 3) == 3 * 1024 // 32 * 36
    room, y = (ctypes.c_int64 * 16)(), (ctypes.c_int64 * 16)()
    at, to = ctypes.addressof(room), ctypes.addressof(y)
    llama.matvec("Q2_K", 1, 2, at, to, (40, 768, 3), 5)
    assert list(room)[:12] == [2, 0, 10, 768, 768, 768 * 3, 768 * 3, 1024, 3, 1, 1, 5]
    assert list(y)[:13] == [10, 768, 768, 40, 1, 2, at, 0, 40, 3, 1024, 5, 256]
    llama.matvec("Q8_0", 1, 2, at, to, (40, 768, 1), 5)
    assert (y[0], y[12]) == (8, 32)


def test_wrong_calls(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is no checkout of llama.cpp: it has no ggml/src/ggml-cuda/mmvq\.cu"):
        build(tmp_path, "sm_90", tmp_path)
    folder = tmp_path / "out"
    folder.mkdir()
    llama = Llama(build(checkout(tmp_path / "llama.cpp"), "sm_90", folder))
    with pytest.raises(ValueError, match="NVFP4 with 1 vectors; supported are Q2_K"):
        llama.matvec("NVFP4", 1, 2, 3, 4, (40, 768, 1), 5)
    with pytest.raises(ValueError, match="Q2_K with 9 vectors"):
        llama.matvec("Q2_K", 1, 2, 3, 4, (40, 768, 9), 5)
