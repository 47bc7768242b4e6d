"""The demo: attention of a real model by the mxfp8 kernels, compared with float64 NumPy.

The data are queries, keys and values of layers 0, 3 and 5 of the sentence model all-MiniLM-L6-v2 on the first 512
tokens of the Python licence text: heads 1, 5 and 9 of 12, head size 32, float16.
"""

import dataclasses
import math
import time
from importlib import resources
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pysm120.cli import console
from pysm120.ops.attention import attention
from pysm120.runtime.device import Device
from pysm120.runtime.ffi import version

Floats = npt.NDArray[np.float64]

# Expected relative error of MXFP8 attention against float64, by layer, for all 12 heads of the model.
EXPECTED = {0: 0.038, 3: 0.029, 5: 0.027}
# The data has only 3 of the 12 heads, so errors vary. Above this multiple of the expected error there is a defect.
TOLERANCE = 1.15
BLOCK = 32
# Counters of the virtual device to show; instructions are counted by warp.
SHOWN = (
    "instructions",
    "mma.sync",
    "ldmatrix",
    "cp.async.bulk",
    "mbarrier.try_wait",
    "ex2",
    "fma",
    "tensor flops",
    "bytes bulk global->shared",
    "bytes ldmatrix",
    "bytes ld.global",
    "bytes st.global",
)


@dataclasses.dataclass
class Layer:
    """The results of one layer."""

    number: int
    error: float
    model_error: float
    lse_error: float
    model_lse_error: float
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether the kernel's error is as expected."""
        return self.error <= TOLERANCE * EXPECTED[self.number]


def load() -> dict[str, npt.NDArray[Any]]:
    """Return the data: q0, k0, v0, q3, ... of shape (heads, tokens, head size)."""
    path = resources.files("pysm120") / "data" / "minilm_qkv.npz"
    with path.open("rb") as file, np.load(file) as archive:
        return dict(archive)


def mx(x: Floats, axis: int) -> Floats:
    """Round to e4m3 with a power-of-two scale for every 32 elements along an axis, rounded up (OCP MX)."""
    x = np.moveaxis(x, axis, -1)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % BLOCK)])
    blocks = padded.reshape(*x.shape[:-1], -1, BLOCK)
    largest = np.abs(blocks).max(-1, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1) / 448)))
    rounded = e4m3(blocks / scale) * scale
    return np.moveaxis(rounded.reshape(padded.shape)[..., : x.shape[-1]], -1, axis)


def e4m3(x: Floats) -> Floats:
    """Round to e4m3."""
    return x.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def reference(q: Floats, k: Floats, v: Floats, *, quantized: bool) -> tuple[Floats, Floats]:
    """Return attention and log-sum-exp in float64; quantized: with the operands of the products in MXFP8."""
    if quantized:
        q, k, v = mx(q, -1), mx(k, -1), mx(v, -2)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    highest = scores.max(-1, keepdims=True)
    p = np.exp(scores - highest)
    if quantized:
        p = e4m3(p * 256) / 256
    total = p.sum(-1, keepdims=True)
    return p @ v / total, (highest + np.log(total))[..., 0]


def relative_error(got: Floats, wanted: Floats) -> float:
    """Return the relative error in the Frobenius norm."""
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def measure(device: Device, number: int, data: dict[str, npt.NDArray[Any]], step: Any) -> Layer:
    """Compute one layer, head by head, and compare."""
    q, k, v = (data[f"{name}{number}"] for name in "qkv")
    out, lse, seconds = np.empty(q.shape), np.empty(q.shape[:-1]), 0.0
    for head in range(len(q)):
        operands = (x[None, head : head + 1] for x in (q, k, v))
        start = time.perf_counter()
        # f32, so that rounding of the result does not add to the error.
        options: Any = {"layout": "BHSD", "precision": "mxfp8", "out_dtype": np.float32}
        o, sums = attention(*operands, return_lse=True, device=device, **options)
        seconds += time.perf_counter() - start
        out[head], lse[head] = o[0, 0], sums[0, 0]
        step(f"layer {number}, head {data['heads'][head]}")
    wide = [x.astype(np.float64) for x in (q, k, v)]
    exact, exact_lse = reference(*wide, quantized=False)
    model, model_lse = reference(*wide, quantized=True)
    return Layer(
        number,
        error=relative_error(out, exact),
        model_error=relative_error(model, exact),
        lse_error=float(np.abs(lse - exact_lse).max()),
        model_lse_error=float(np.abs(model_lse - exact_lse).max()),
        seconds=seconds,
    )


def run(name: str | None) -> int:
    """Run the demo on a device; return the exit status."""
    data = load()
    with Device(name) as device:
        print(f"pysm120 {version()} on {device} ({device.info.name})")
        if device.is_virtual:
            print("The CPU executes the PTX that ships for sm_120f, instruction by instruction; no GPU is used.")
        heads, tokens, head_dim = data["q0"].shape
        print(
            f"Real attention inputs: layers 0, 3, 5 of all-MiniLM-L6-v2; heads {', '.join(map(str, data['heads']))} of "
            f"12, {tokens} tokens, head size {head_dim}, {data['q0'].dtype}."
        )
        device.reset_counters()
        with console.progress(heads * len(EXPECTED), "attention") as step:
            layers = [measure(device, number, data, step) for number in EXPECTED]
        report(layers, device)
    bad = [str(layer.number) for layer in layers if not layer.is_good]
    if bad:
        print(f"The error of layer {', '.join(bad)} is more than {TOLERANCE} times the expected error.")
        return 1
    total = sum(layer.seconds for layer in layers)
    print(f"All errors are as expected. Attention took {total:.2f} s.")
    return 0


def report(layers: list[Layer], device: Device) -> None:
    """Print the results."""
    console.table(
        "Relative error against float64 NumPy attention (Frobenius norm)",
        ("layer", "kernel", "NumPy model", "expected, all heads", "largest LSE error", "NumPy model", "seconds"),
        [
            (
                str(layer.number),
                f"{layer.error:.2%}",
                f"{layer.model_error:.2%}",
                f"{EXPECTED[layer.number]:.1%}",
                f"{layer.lse_error:.3f}",
                f"{layer.model_lse_error:.3f}",
                f"{layer.seconds:.2f}",
            )
            for layer in layers
        ],
    )
    print("The NumPy model rounds Q, K, V and P to MXFP8 and is float64 elsewhere: the error of the format itself.")
    counters = device.counters()
    if counters:
        rows = [(name, f"{counters[name]:,}") for name in SHOWN if name in counters]
        console.table("What the virtual SM120 executed (instructions of warps)", ("counter", "count"), rows)
