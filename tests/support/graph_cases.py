"""Calls of attention for the libraries that trace it: arrays and rules of every option that they share."""

from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np

import pysm120

SHAPE = {"q": (2, 6, 4, 32), "k": (2, 9, 2, 32), "v": (2, 9, 2, 16)}
# Extra arrays and rules of attention.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True, "window": (3, None), "softcap": 4.0, "scale": 0.3},
    "top-left": {"causal": True, "causal_align": "top-left", "precision": "bf16", "dtype": ml_dtypes.bfloat16},
    "lengths": {"kv_lengths": np.array([9, 4], np.int32), "diagonals": np.array([3, 1], np.int32), "causal": True},
    "sinks": {"sinks": np.array([0.5, -1, 2, 0], np.float32), "alibi_slopes": np.full(4, 0.1, np.float32)},
    "bias": {"mask": np.linspace(-1, 1, 4 * 6 * 9, dtype=np.float32).reshape(4, 6, 9)},
    "mask": {"mask": np.arange(54).reshape(6, 9) % 5 > 0},
    "heads first": {"layout": "BHSD", "out_dtype": np.float32},
    "mxfp8": {"precision": "mxfp8"},
}


def arrays(rng: np.random.Generator, case: dict[str, Any], *front: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return q, k, v and the other arrays, and the rules."""
    rest = dict(case)
    dtype, first = rest.pop("dtype", np.float16), rest.get("layout") == "BHSD"
    given: dict[str, Any] = {}
    for name, shape in SHAPE.items():
        x = rng.standard_normal((*front, *shape)).astype(dtype)
        given[name] = x.swapaxes(-2, -3).copy() if first else x
    given |= {name: rest.pop(name) for name in list(rest) if isinstance(rest[name], np.ndarray)}
    return given, rest


def gradients(
    given: dict[str, Any],
    rules: dict[str, Any],
    slopes: dict[str, Any],
    floats: Collection[str],
    device: pysm120.Device,
) -> dict[str, Any]:
    """Return the gradients of a call on ndarrays, by name, with the same bits in every run.

    ``slopes`` are dout and dlse, and the out and lse of the call; ``floats`` the arrays that have gradients.
    """
    numpy_api: Any = pysm120  # arguments come from tables
    options = {name: x for name, x in rules.items() if name != "out_dtype"}
    made = numpy_api.attention_backward(
        slopes["dout"].astype(given["q"].dtype),
        *(given[x] for x in "qkv"),
        out=slopes["out"],
        lse=slopes["lse"],
        dlse=slopes["dlse"],
        **{n: x for n, x in given.items() if n not in ("q", "k", "v", "mask")},
        **({"mask": np.broadcast_to(given["mask"], (2, 4, 6, 9))} if "mask" in given else {}),
        **options,
        return_dsinks="sinks" in floats,
        return_dmask="mask" in floats,
        deterministic=True,
        device=device,
    )
    names = [x for x in ("q", "k", "v", "sinks", "mask") if x in floats]
    return {n: best.sum(0) if n == "mask" else best for n, best in zip(names, made, strict=True)}
