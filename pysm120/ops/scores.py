"""The scores of an attention, which the attention kernels never write to memory."""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops import operands
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin, builtin_kernel, builtins, constants

# The stages of scores: scale * q k^T, then softcap, then mask, then softmax.
Stage = Literal["product", "softcap", "mask", "softmax"]
STAGES: tuple[Stage, ...] = ("product", "softcap", "mask", "softmax")
_KINDS = {"float16": "f16", "bfloat16": "bf16"}
_MOST = 2**31 - 1
_FAR = 2**40  # beyond every key


class Rules(NamedTuple):
    """Options of scores, as in pysm120.attention. Without diagonals, row i has the diagonal i."""

    scale: float
    softcap: float = 0.0
    window: tuple[int | None, int | None] = (None, None)
    mask: npt.NDArray[Any] | None = None
    kv_lengths: npt.NDArray[np.int32] | None = None
    diagonals: npt.NDArray[np.int32] | None = None


def scores(
    q: npt.NDArray[Any], k: npt.NDArray[Any], rules: Rules, stage: Stage, device: Device
) -> npt.NDArray[np.float32]:
    """Return the scores (B, H, Sq, Sk) of q (B, H, Sq, D) and k (B, Hkv, Sk, D), both float16 or bfloat16.

    After the softmax, the scores of a row without a key are 0.
    """
    batch, heads, q_rows, head_dim = q.shape
    kv_heads, kv_rows = k.shape[1:3]
    rows = batch * heads * q_rows
    if max(rows, batch * kv_heads, kv_rows) > _MOST:
        message = f"q and k have shapes {q.shape} and {k.shape}, but scores have at most {_MOST} rows and columns"
        raise InvalidArgumentError(message)
    mask, steps = _mask(rules.mask)
    left, right = (_FAR if side is None else min(side, _FAR) for side in rules.window)
    staged: list[Array] = []

    def put(x: npt.NDArray[Any] | None) -> Any:
        if x is None:
            return np.uint64(0)
        staged.append(device.array(x))
        return staged[-1]

    with operands.temporary(staged):
        result = device.empty((batch, heads, q_rows, kv_rows), np.float32)
        staged.append(result)
        values: dict[str, Any] = {
            "q": put(q),
            "k": put(k),
            "s": result,
            "mask": put(mask),
            "lengths": put(rules.kv_lengths),
            "diagonals": put(rules.diagonals),
            "mask_batch_stride": np.int64(steps[0]),
            "mask_head_stride": np.int64(steps[1]),
            "mask_row_stride": np.int64(steps[2]),
            "mask_column_stride": np.int64(steps[3]),
            "left": np.int64(left),
            "right": np.int64(right),
            "rows": np.uint32(rows),
            "heads": np.uint32(heads),
            "kv_heads": np.uint32(kv_heads),
            "q_rows": np.uint32(q_rows),
            "kv_rows": np.uint32(kv_rows),
            "head_dim": np.uint32(head_dim),
            "mask_is_bool": np.uint32(mask is not None and mask.dtype == np.bool_),
            "stage": np.uint32(constants()[f"SCORES_{stage.upper()}"]),
            "scale": np.float32(rules.scale),
            "softcap": np.float32(rules.softcap),
        }
        record = _record(_KINDS[q.dtype.name])
        kernel = builtin_kernel(device, record.entry)
        kernel(math.ceil(rows / record.rows), record.threads, *kernel.by_name(values))
        return result.numpy()


def _record(dtype: str) -> Builtin:
    """Return the kernel for a dtype."""
    return next(one for one in builtins() if one.operation == "attention_scores" and one.dtype == dtype)


def _mask(mask: npt.NDArray[Any] | None) -> tuple[npt.NDArray[Any] | None, tuple[int, ...]]:
    """Return a mask as the kernel reads it, and its strides in bytes along (B, H, Sq, Sk)."""
    if mask is None:
        return None, (0, 0, 0, 0)
    x = np.ascontiguousarray(mask if mask.dtype == np.bool_ else mask.astype(np.float32))
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    return x, tuple(step if n > 1 else 0 for n, step in zip(x.shape, x.strides, strict=True))
