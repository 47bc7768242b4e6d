"""The recording of a device: how a form runs, and the file that its results live in.

The file is an .npz: "index" lists the forms (key and bytes), "data" their outputs one after the other, "meta" says in
JSON what they were recorded on. The inputs are not stored: they come from the seed in form.py, and the key of a form
is a checksum of its kernel and of its inputs, so that a form that was changed is not compared with old results.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from form import THREADS, Form, Map, module
from numpy.typing import NDArray

import pysm120
from pysm120.runtime import tensor_map
from pysm120.runtime.ffi import check, ffi, lib, new_struct

PATH = Path(__file__).resolve().parents[1] / "data" / "hopper.npz"


def load(device: pysm120.Device, forms: Sequence[Form]) -> pysm120.Module:
    """Load the micro-kernels of some forms: entries form_0, form_1, ..."""
    return device.load(module("sm_120f" if device.is_virtual else "sm_90", forms))


def encode(device: pysm120.Device, wanted: Map, address: int) -> bytes:
    """Return the 128 bytes of a tensor map on memory at an address."""
    raw = new_struct("sm120_tensor_map_args")
    raw.data_type, raw.rank = tensor_map.DATA_TYPES[wanted.data_type], len(wanted.dims)
    raw.swizzle, raw.oob_fill = tensor_map.SWIZZLES.index(wanted.swizzle), tensor_map.OOB_FILLS.index(wanted.fill)
    raw.address, rank = address, len(wanted.dims)
    raw.dims[0:rank], raw.strides[0 : rank - 1] = wanted.dims, wanted.strides
    raw.box[0:rank], raw.element_strides[0:rank] = wanted.box, wanted.steps
    made = ffi.new("sm120_tensor_map *")
    check(lib.sm120_tensor_map_encode(device.handle.pointer, raw, made))
    return bytes(ffi.buffer(made))


def run(device: pysm120.Device, kernel: pysm120.Kernel, form: Form) -> NDArray[np.uint8]:
    """Run a micro-kernel and return the bytes of its outputs."""
    inputs = np.frombuffer(form.input_bytes() or bytes(16), np.uint8)
    result = device.zeros(sum(form.sizes) * form.lanes, np.uint8)
    source = device.array(inputs)
    places = {"in": source.address, "out": result.address}
    maps = [encode(device, m, places[m.operand.rstrip("0123456789")] + form.offset(m.operand)) for m in form.maps]
    kernel(form.lanes // THREADS, THREADS, source, result, *maps)
    return np.asarray(result.numpy(), np.uint8)


def key(form: Form) -> str:
    """Return the key of a form in the file."""
    return f"{form.fingerprint():08x}"


def pack(form: Form, data: bytes) -> NDArray[np.uint8]:
    """Order the bytes of the outputs by their place in an element, which makes them smaller when compressed."""
    return np.concatenate([np.ascontiguousarray(part.T).ravel() for part in form.split(data)])


def unpack(form: Form, data: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """Return one array [lane, byte] per output."""
    out, at = [], 0
    for size in form.sizes:
        out.append(data[at : at + size * form.lanes].reshape(size, form.lanes).T)
        at += size * form.lanes
    return out


def write(path: Path, results: dict[str, NDArray[np.uint8]], meta: dict[str, Any]) -> None:
    """Write a recording."""
    index = np.array([(int(name, 16), data.size) for name, data in results.items()], np.uint32)
    np.savez_compressed(
        path,
        index=index,
        data=np.concatenate(list(results.values())) if results else np.zeros(0, np.uint8),
        meta=np.frombuffer(json.dumps(meta).encode(), np.uint8),
    )


def read(path: Path = PATH) -> tuple[dict[str, NDArray[np.uint8]], dict[str, Any]]:
    """Read a recording: packed outputs by key, and what they were recorded on."""
    with np.load(path) as file:
        ends = np.cumsum(file["index"][:, 1], dtype=np.int64)
        parts = np.split(file["data"], ends[:-1])
        names = [f"{value:08x}" for value in file["index"][:, 0]]
        return dict(zip(names, parts, strict=True)), json.loads(bytes(file["meta"]))
