"""Attention kernels for NVIDIA SM120, on GPUs and on a virtual SM120.

>>> import numpy as np, pysm120
>>> q, k, v = np.random.default_rng(0).normal(size=(3, 1, 64, 2, 64)).astype("f4")
>>> pysm120.attention(q, k, v, causal=True).shape
(1, 64, 2, 64)
"""

from pysm120.runtime import interrupt as _interrupt  # noqa: F401, I001 - Ctrl-C, before all that takes time
from pysm120.compat.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from pysm120.compat.sdpa import scaled_dot_product_attention
from pysm120.observe.profile import Profile
from pysm120.ops.attention import attention, attention_varlen
from pysm120.ops.attention_backward import attention_backward, attention_varlen_backward
from pysm120.ops.attention_kv_cache import attention_with_kv_cache, merge_states
from pysm120.ops.copy_batch import CopyList, copy_batch
from pysm120.ops.kv_cache import kv_cache_append, kv_cache_gather
from pysm120.ops.matvec import matvec, matvec_glu
from pysm120.ops.quantize import quantize_mxfp8, quantize_nvfp4, repack_scales
from pysm120.ops.tiles import MXFP8Tiles, quantize_mxfp8_tiles
from pysm120.ops.weights import QuantizedMatrix, dequantize, repack
from pysm120.runtime.arrays import Array
from pysm120.runtime.context import DeviceInfo, Event, Stream
from pysm120.runtime.device import Device
from pysm120.runtime.errors import (
    ClosedError,
    DriverError,
    Error,
    FaultError,
    InternalError,
    InvalidArgumentError,
    InvalidProgramError,
    MisalignedError,
    NoDeviceError,
    OutOfMemoryError,
    UnsupportedError,
    VirtualDeviceWarning,
    WorkspaceTooSmallError,
)
from pysm120.runtime.module import Kernel, KernelInfo, Module, Parameter
from pysm120.runtime.tensor_map import TensorMap
from pysm120.study.recommend import Recommendation, recommend

__version__ = "0.2.0"

__all__ = [
    "Array",
    "ClosedError",
    "CopyList",
    "Device",
    "DeviceInfo",
    "DriverError",
    "Error",
    "Event",
    "FaultError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidProgramError",
    "Kernel",
    "KernelInfo",
    "MXFP8Tiles",
    "MisalignedError",
    "Module",
    "NoDeviceError",
    "OutOfMemoryError",
    "Parameter",
    "Profile",
    "QuantizedMatrix",
    "Recommendation",
    "Stream",
    "TensorMap",
    "UnsupportedError",
    "VirtualDeviceWarning",
    "WorkspaceTooSmallError",
    "__version__",
    "attention",
    "attention_backward",
    "attention_varlen",
    "attention_varlen_backward",
    "attention_with_kv_cache",
    "copy_batch",
    "dequantize",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "kv_cache_append",
    "kv_cache_gather",
    "matvec",
    "matvec_glu",
    "merge_states",
    "quantize_mxfp8",
    "quantize_mxfp8_tiles",
    "quantize_nvfp4",
    "recommend",
    "repack",
    "repack_scales",
    "scaled_dot_product_attention",
]
