"""One-instruction kernels: PTX around a body, one element per thread, inputs and outputs as arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import pysm120

HEAD = """
.version 8.8
.target sm_120f
.address_size 64
"""

REGISTER = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def kernel(name: str, body: str, inputs: Sequence[int], outputs: Sequence[int]) -> str:
    """Write a kernel.

    Parameters
    ----------
    name : str
        Its entry.
    body : str
        Statements on the registers in0, in1, ... and out0, ...; p and q are predicates, t0..t7 32-bit and
        w0..w3 64-bit temporaries, f0..f3 f32, i the thread.
    inputs, outputs : sequence of int
        Bytes of an element of each.

    Returns
    -------
    str
        An entry whose parameters are the outputs, then the inputs.

    """
    names = [f"out{k}" for k in range(len(outputs))] + [f"in{k}" for k in range(len(inputs))]
    sizes = [*outputs, *inputs]
    lines = [f".visible .entry {name}("]
    lines += [",\n".join(f"    .param .u64 param_{n}" for n in names), ")", "{"]
    lines += ["    .reg .pred p, q, r;", "    .reg .b16 h<4>;", "    .reg .b32 t<8>, i, n;", "    .reg .f32 f<4>;"]
    lines += ["    .reg .b64 w<4>, at;", "    mov.u32 i, %tid.x;", "    mov.u32 n, %ctaid.x;"]
    lines += ["    mov.u32 t0, %ntid.x;", "    mad.lo.u32 n, n, t0, i;"]
    for n, size in zip(names, sizes, strict=True):
        lines += [f"    .reg .{REGISTER[size]} {n};", f"    .reg .b64 at_{n};"]
        lines += [f"    ld.param.u64 at_{n}, [param_{n}];", f"    mad.wide.u32 at_{n}, n, {size}, at_{n};"]
        if n.startswith("in"):
            lines += [f"    ld.global.b{8 * size} {n}, [at_{n}];"]
    lines += [body]
    lines += [f"    st.global.b{8 * s} [at_{n}], {n};" for n, s in zip(names, sizes, strict=True) if n[0] == "o"]
    return "\n".join([*lines, "    ret;", "}", ""])


def run(
    device: pysm120.Device,
    body: str,
    inputs: Sequence[npt.NDArray[Any]],
    outputs: Sequence[Any],
    threads: int = 128,
) -> list[npt.NDArray[Any]]:
    """Run a body on every element of the inputs; whole blocks only."""
    count = inputs[0].size
    assert count % threads == 0
    results = [device.zeros(count, np.dtype(f"u{np.dtype(t).itemsize}")) for t in outputs]
    text = HEAD + kernel("micro", body, [a.itemsize for a in inputs], [np.dtype(t).itemsize for t in outputs])
    arrays = [device.array(a.view(f"u{a.itemsize}")) for a in inputs]
    device.load(text)["micro"](count // threads, threads, *results, *arrays)
    return [r.numpy().view(t) for r, t in zip(results, outputs, strict=True)]


CORNERS: dict[str, list[int]] = {
    "u2": [0, 1, 2, 0x7FFF, 0x8000, 0xFFFF, 0x8001, 0xFF00],
    "u4": [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80000001, 0xFFFF, 0x10000],
    "u8": [0, 1, 2, 63, 64, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF, 0x100000000],
    "f4": [
        0,
        0x80000000,
        0x3F800000,
        0xBF800000,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        1,
        0x80000001,
        0x7FFFFF,
        0x800000,
        0x7F7FFFFF,
        0xFF7FFFFF,
        0x3F7FFFFF,
        0x3F800001,
        0x4B800001,
    ],
    "f8": [0, 1 << 63, 0x3FF << 52, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, 1, (1 << 63) + 1, (0x7FE << 52) + 5],
    "f2": [0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x3BFF, 0x3C01],
}


def values(rng: np.random.Generator, kind: str, count: int = 1024) -> npt.NDArray[Any]:
    """Random bits, random small numbers and the corners of a type, in random order."""
    size = int(kind[1])
    bits = rng.integers(0, 1 << (8 * size), count, np.uint64, endpoint=False) if size < 8 else rng.bytes(8 * count)
    out = np.frombuffer(bits, np.uint64).copy() if isinstance(bits, bytes) else bits
    out = out.astype(f"u{size}")
    corners = np.array(CORNERS[kind if kind[0] == "f" else f"u{size}"], np.uint64).astype(f"u{size}")
    out[: count // 4] = rng.choice(corners, count // 4)
    if kind[0] == "f":
        out[count // 4 : count // 2] = rng.standard_normal(count // 4).astype(f"f{size}").view(f"u{size}")
    else:
        out[count // 4 : count // 2] = rng.integers(0, 40, count // 4)
    return rng.permutation(out).view(kind)
