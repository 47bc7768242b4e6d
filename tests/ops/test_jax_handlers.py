"""The handlers of XLA's FFI: the layout of its structs, calls that are wrong, and a call with buffers on a device."""

import ctypes
import os
import re
import shlex
import subprocess
import threading
from pathlib import Path
from typing import Any

import cffi
import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np
import pytest

import pysm120
import pysm120.jax
from pysm120.runtime.ffi import cast, companion

numpy_api: Any = pysm120  # arguments come from tables
sm120: Any = pysm120.jax
ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "bindings" / "xla" / "xla_ffi.h"
X = np.linspace(-1, 1, 2 * 6 * 2 * 32).reshape(2, 6, 2, 32).astype(np.float16)

# Our structs and members beside those of jaxlib's header; of names with a bar, releases of JAX have one or the other.
STRUCTS = {
    "XlaExtension": "InternalExtension|Extension_Base",
    "XlaVersion": "Api_Version",
    "XlaMetadata": "Metadata",
    "XlaMetadataExtension": "Metadata_Extension",
    "XlaErrorCreate": "Error_Create_Args",
    "XlaStreamGet": "Stream_Get_Args",
    "XlaMemoryAllocate": "DeviceMemory_Allocate_Args",
    "XlaMemoryFree": "DeviceMemory_Free_Args",
    "XlaOrdinalGet": "DeviceOrdinal_Get_Args",
    "XlaApi": "Api",
    "XlaBuffer": "Buffer",
    "XlaBuffers": "Args Rets",
    "XlaSpan": "ByteSpan",
    "XlaArray": "Array",
    "XlaAttributes": "Attrs",
    "XlaFrame": "CallFrame",
}
MEMBERS = {
    ("XlaApi", "error_create"): "XLA_FFI_Error_Create",
    ("XlaApi", "stream_get"): "XLA_FFI_Stream_Get",
    ("XlaApi", "memory_allocate"): "XLA_FFI_DeviceMemory_Allocate",
    ("XlaApi", "memory_free"): "XLA_FFI_DeviceMemory_Free",
    ("XlaApi", "ordinal_get"): "XLA_FFI_DeviceOrdinal_Get",
    ("XlaBuffers", "buffers"): "args rets",
    ("XlaAttributes", "attributes"): "attrs",
    ("XlaFrame", "arguments"): "args",
    ("XlaFrame", "results"): "rets",
    ("XlaFrame", "attributes"): "attrs",
}
CONSTANTS = {
    "XLA_MAJOR": "API_MAJOR",
    "XLA_EXTENSION_METADATA": "Extension_Metadata",
    "XLA_BUFFER": "ArgType_BUFFER",
    "XLA_INVALID_ARGUMENT": "Error_Code_INVALID_ARGUMENT",
    "XLA_RESOURCE_EXHAUSTED": "Error_Code_RESOURCE_EXHAUSTED",
    "XLA_INTERNAL": "Error_Code_INTERNAL",
    "XLA_S64": "DataType_S64",
    "XLA_ATTRIBUTE_ARRAY": "AttrType_ARRAY",
    "XLA_ATTRIBUTE_STRING": "AttrType_STRING",
}


def declarations() -> Any:
    """Return the interface of cffi for our header."""
    interface: Any = cffi.FFI()
    text = re.sub(r"^#.*$", "", HEADER.read_text(encoding="utf-8"), flags=re.MULTILINE)
    interface.cdef(text + "XlaError *sm120_xla_on_gpu(XlaFrame *frame); void sm120_xla_set_version(int minor);")
    return interface


def test_structs_are_those_of_xla(tmp_path: Path) -> None:
    """Offsets of every member that a handler uses, and constants, as the compiler sees jaxlib's own header."""
    interface = declarations()
    text = (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text(encoding="utf-8")
    lines = [f"_Static_assert({ours} == XLA_FFI_{theirs}, {ours});" for ours, theirs in CONSTANTS.items()]
    lines += ["_Static_assert(XLA_BUFFER == XLA_FFI_RetType_BUFFER, results);"]
    lines += ["_Static_assert(XLA_FIRST_MINOR <= XLA_FFI_API_MINOR && XLA_FFI_API_MINOR <= XLA_MINOR, XLA_MINOR);"]
    for ours, names in STRUCTS.items():
        for which, either in enumerate(names.split()):
            (theirs,) = (x for x in either.split("|") if re.search(rf"\bstruct XLA_FFI_{x} {{", text))
            for member, field in interface.typeof(ours).fields:
                if field.type == interface.typeof("void *") and ours == "XlaApi":
                    continue  # not used
                name = MEMBERS.get((ours, member), member).split()
                other = f"offsetof(struct XLA_FFI_{theirs}, {name[which] if len(name) > 1 else name[0]})"
                lines.append(f"_Static_assert(offsetof({ours}, {member}) == {other}, {ours}_{member});")
    lines = [re.sub(r", (\w+)\);$", r', "\1");', line) for line in lines]
    assert len(lines) > 70
    # XLA states these sizes in a call.
    sizes = {"XlaVersion": "Api_Version", "XlaBuffer": "Buffer", "XlaFrame": "CallFrame", "XlaAttributes": "Attrs"}
    for ours, theirs in [*sizes.items(), ("XlaBuffers", "Args"), ("XlaBuffers", "Rets")]:
        lines.append(f'_Static_assert(sizeof({ours}) == XLA_FFI_{theirs}_STRUCT_SIZE, "size of {ours}");')
    includes = '#include <stdint.h>\n#include "xla/ffi/api/c_api.h"\n#include "xla_ffi.h"\n'
    (tmp_path / "layout.c").write_text(includes + "\n".join(lines) + "\n")
    command = [*shlex.split(os.environ.get("CC") or "cc"), "-std=c11", "-fsyntax-only"]
    command += ["-I", jax.ffi.include_dir(), "-I", str(HEADER.parent), str(tmp_path / "layout.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_is_that_of_xla(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At most the newest that is known; XLA itself refuses what it does not support. Another major is refused here."""
    major, minor = sm120._xla_version()
    interface = declarations()
    library = interface.dlopen(str(companion("libsm120_xla.so")))

    def answered(api: Any) -> tuple[int, int, int]:
        metadata = interface.new("XlaMetadata *", {"traits": 7})
        extension = interface.new("XlaMetadataExtension *", {"metadata": metadata})
        extension.extension_base.type = library.XLA_EXTENSION_METADATA
        start = interface.cast("XlaExtension *", extension)
        frame = interface.new("XlaFrame *", {"extension_start": start, "api": api})
        assert library.sm120_xla_on_gpu(frame) == interface.NULL
        version = metadata.api_version
        return version.major_version, version.minor_version, metadata.traits

    try:
        for theirs, answer in ((1, 1), (3, 3), (4, 4), (5, 4)):
            # A release that does not state its version in the question has that of its header.
            library.sm120_xla_set_version(theirs)
            assert answered(interface.NULL) == (major, answer, 0)
            # The header of jaxlib may be another one than that of the plugin for GPUs.
            library.sm120_xla_set_version(2)
            assert answered(interface.new("XlaApi *", {"api_version": {"minor_version": theirs}})) == (major, answer, 0)
    finally:
        library.sm120_xla_set_version(minor)
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    header.write_text("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 2\n")
    with pytest.raises(ImportError, match=r"the FFI of XLA in jaxlib has version 1\.2, but pysm120 knows 0\.x"):
        sm120._load()
    header.write_text("#define XLA_FFI_API_MAJOR MINOR\n")
    with pytest.raises(ImportError, match=r"c_api.h in jaxlib states no version of XLA's FFI, but pysm120 knows 0\.x"):
        sm120._load()


def test_a_call_is_one_custom_call(device_name: str) -> None:
    """No callback of Python."""
    x = jnp.asarray(X)

    def loss(q: Any) -> Any:
        return sm120.attention(q, x, x, causal=True, device=device_name).astype(jnp.float32).sum()

    text = jax.jit(jax.grad(loss)).lower(x).as_text()
    assert re.findall(r"custom_call @(\w+)", text) == ["pysm120_attention"] * 2


@pytest.mark.parametrize("sinks", [None, np.zeros(2, np.float32)], ids=["one call", "a loop"])
def test_vmap_is_a_larger_batch(device_name: str, sinks: Any) -> None:
    """Or a loop over calls, where an array has no batch that could be larger."""
    x = jnp.asarray(X)
    attend = jax.vmap(lambda q: sm120.attention(q, x, x, sinks=sinks, device=device_name))
    text = jax.jit(attend).lower(jnp.stack([x, x, x])).as_text()
    assert text.count("custom_call @pysm120_attention") == 1
    assert ("stablehlo.while" in text) == (sinks is not None)
    assert ("tensor<6x6x2x32xf16>" in text) == (sinks is None)


def test_threads(device: pysm120.Device) -> None:
    """Calls of several threads on one device."""
    x = jnp.asarray(X)
    attend = jax.jit(lambda q: sm120.attention(q, x, x, device=device))
    wanted = numpy_api.attention(X, X, X, device=device)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(np.asarray(attend(x)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    assert all(np.array_equal(y, wanted) for y in found)


def test_a_closed_device_is_not_used(device_name: str) -> None:
    """Not by a compiled function, nor when another device is open; a new one works."""
    x = jax.device_put(X, jax.devices("cpu")[0])  # arrays on a GPU are computed there, whatever device is
    with pysm120.Device(device_name) as first:
        attend = jax.jit(lambda q: sm120.attention(q, x, x, device=first))
        wanted = np.asarray(attend(x))
    with pysm120.Device(device_name) as second:
        assert np.array_equal(sm120.attention(x, x, x, device=second), wanted)
        # JAX raises the error of a second call of a compiled function as a ValueError.
        with pytest.raises((RuntimeError, ValueError), match="the device of this function is closed"):
            jax.block_until_ready(attend(x))
    with pytest.raises(pysm120.ClosedError):
        sm120.attention(x, x, x, device=second)


def test_devices_by_name(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler opens them; without a name it is that of the environment."""
    x = jnp.asarray(X)
    wanted = numpy_api.attention(X, X, X, device=device_name)
    assert np.array_equal(sm120.attention(x, x, x, device=device_name), wanted)
    monkeypatch.setenv("PYSM120_DEVICE", device_name)
    assert np.array_equal(sm120.attention(x, x, x), wanted)
    with pytest.raises(pysm120.NoDeviceError):
        sm120.attention(x, x, x, device="virtual:7")


def test_attributes_of_another_version_are_refused() -> None:
    """Too few words, a place outside of the struct, other types, none."""
    x = jnp.zeros(4, jnp.int32)
    forward = len(sm120.ffi.buffer(sm120.ffi.new("sm120_attention_args *"))) // 8

    def numbers(*values: int) -> Any:
        return np.array(values, np.int64)

    right: dict[str, Any] = {
        "args": np.zeros(forward, np.int64),
        "places": numbers(3, 16, 4, 16),
        "options": numbers(0, -1, 0),
        "device": "virtual" if x.device.platform == "cpu" else "",
    }
    shape = jax.ShapeDtypeStruct((4,), jnp.int32)
    for wrong in (
        {"args": np.zeros(forward - 1, np.int64)},
        {"args": np.zeros(forward, np.int32)},
        {"places": numbers(3, 16, forward, 16)},
        {"places": numbers(-1, 16, 4, 16)},
        {"places": numbers(3, 16)},
        {"options": numbers(0, 1, 0)},
        {"options": "none"},
        {"device": "virtual" * 20},
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match="this function is of another version of pysm120"):
            jax.block_until_ready(jax.ffi.ffi_call("pysm120_attention", shape)(x, **{**right, **wrong}))
    # What is right in form goes to the library, which says what is wrong.
    with pytest.raises(jax.errors.JaxRuntimeError, match="size = 0"):
        jax.block_until_ready(jax.ffi.ffi_call("pysm120_attention", shape)(x, **right))


class Api:
    """An XLA whose buffers and workspaces are arrays of a device; sizes are those of structs that differ from ours."""

    def __init__(
        self,
        device: pysm120.Device,
        *,
        most: int = 1 << 30,
        version: tuple[int, int] = (0, 4),
        sizes: dict[str, int] | None = None,
    ) -> None:
        self.interface, self.device, self.most = declarations(), device, most
        self.version, self.sizes = version, sizes or {}
        self.library = self.interface.dlopen(str(companion("libsm120_xla.so")))
        self.errors: list[str] = []
        self.memory: dict[int, tuple[int, pysm120.Array]] = {}
        self.asked: list[int] = []
        callback = self.interface.callback
        self.functions = {
            "error_create": callback("XlaError *(XlaErrorCreate *)", self.create),
            "stream_get": callback("XlaError *(XlaStreamGet *)", self.stream),
            "memory_allocate": callback("XlaError *(XlaMemoryAllocate *)", self.allocate),
            "memory_free": callback("XlaError *(XlaMemoryFree *)", self.free),
            "ordinal_get": callback("XlaError *(XlaOrdinalGet *)", self.ordinal),
        }
        self.kept: list[Any] = []

    def create(self, args: Any) -> Any:
        self.errors.append(self.interface.string(args.message).decode())
        return self.interface.cast("XlaError *", 1)

    def stream(self, args: Any) -> Any:
        args.stream = self.interface.NULL
        return self.interface.NULL

    def allocate(self, args: Any) -> Any:
        self.asked.append(args.size)
        if args.alignment not in {1, 2, 4, 8, 16}:  # XLA has never taken more
            self.errors.append(f"Unsupported alignment: {args.alignment}")
            return self.interface.cast("XlaError *", 2)
        if args.size > self.most:
            self.errors.append("XLA is out of memory")
            return self.interface.cast("XlaError *", 2)
        array = self.device.empty(16 + args.size, np.uint8)
        address = array.address + 16  # aligned to no more than was asked for
        self.memory[address] = args.size, array
        args.data = self.interface.cast("void *", address)
        return self.interface.NULL

    def free(self, args: Any) -> Any:
        size, _ = self.memory.pop(int(self.interface.cast("uintptr_t", args.data)))
        assert args.size == size
        return self.interface.NULL

    def ordinal(self, args: Any) -> Any:
        args.device_ordinal = 99
        return self.interface.NULL

    def made(self, kind: str, value: Any) -> Any:
        """Return C memory that lives as long as this."""
        self.kept.append(self.interface.new(kind, value))
        return self.kept[-1]

    def size(self, kind: str, name: str = "") -> dict[str, int]:
        """Return the member that states the size of a struct, or of the one that has a name."""
        return {"struct_size": self.sizes.get(name or kind, self.interface.sizeof(kind))}

    def buffers(self, arrays: list[pysm120.Array], name: str) -> dict[str, Any]:
        made = [
            self.made("XlaBuffer *", {**self.size("XlaBuffer"), "data": self.interface.cast("void *", x.address)})
            for x in arrays
        ]
        pointers = self.made("void *[]", [self.interface.cast("void *", x) for x in made])
        types = self.made("int[]", [self.sizes.get("type", self.library.XLA_BUFFER)] * len(arrays))
        return {**self.size("XlaBuffers", name), "size": len(arrays), "types": types, "buffers": pointers}

    def attributes(self, given: dict[str, Any]) -> dict[str, Any]:
        types, names, values = [], [], []
        for name, x in given.items():
            names.append(self.made("XlaSpan *", {"ptr": self.made("char[]", name.encode()), "len": len(name)}))
            if isinstance(x, str):
                value = self.made("XlaSpan *", {"ptr": self.made("char[]", x.encode()), "len": len(x)})
                types.append(self.library.XLA_ATTRIBUTE_STRING)
            else:
                data = self.interface.cast("void *", self.made("int64_t[]", x.tolist()))
                value = self.made("XlaArray *", {"dtype": self.library.XLA_S64, "size": x.size, "data": data})
                types.append(self.library.XLA_ATTRIBUTE_ARRAY)
            values.append(self.interface.cast("void *", value))
        return {
            **self.size("XlaAttributes"),
            "size": len(given),
            "types": self.made("int[]", types),
            "names": self.made("XlaSpan *[]", names),
            "attributes": self.made("void *[]", values),
        }

    def call(self, inputs: list[pysm120.Array], results: list[pysm120.Array], given: dict[str, Any]) -> list[str]:
        """Call the handler for a GPU; return the errors."""
        major, minor = self.version
        version = {**self.size("XlaVersion"), "major_version": major, "minor_version": minor}
        frame = {
            **self.size("XlaFrame"),
            "api": self.made("XlaApi *", {**self.size("XlaApi"), "api_version": version, **self.functions}),
            "stage": 3,
            "arguments": self.buffers(inputs, "arguments"),
            "results": self.buffers(results, "results"),
            "attributes": self.attributes(given),
        }
        error = self.library.sm120_xla_on_gpu(self.made("XlaFrame *", frame))
        assert (error != self.interface.NULL) == bool(self.errors)
        return self.errors


def recorded(monkeypatch: pytest.MonkeyPatch, *, device: str = "", **given: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the attributes and the forms of the results of a call of pysm120.jax.attention; XLA is not called."""
    calls: list[Any] = []

    def record(_: str, forms: Any) -> Any:
        def call(*_: Any, **attributes: Any) -> Any:
            calls.append((attributes, list(forms)))
            return [jnp.zeros(form.shape, form.dtype) for form in forms]

        return call

    with monkeypatch.context() as patch:
        patch.setattr(jax.ffi, "ffi_call", record)
        sm120.attention(**given, device="virtual")
    ((attributes, results),) = calls
    return {**attributes, "device": device}, results


def launched(xla: Api, given: dict[str, Any], inputs: list[Any], forms: list[Any]) -> tuple[list[str], list[Any]]:
    """Call the handler for a GPU with a device under the name that XLA's ordinal has; return errors and results."""
    device = xla.device
    set_device = ctypes.CDLL(str(companion("libsm120_xla.so"))).sm120_xla_set_device
    set_device.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
    assert set_device(b"cuda:99", int(cast("uintptr_t", device.handle.pointer)))
    try:
        results = [device.zeros(form.shape, form.dtype) for form in forms]
        errors = xla.call([device.array(x) for x in inputs], results, given)
        device.synchronize()
    finally:
        set_device(b"cuda:99", None)
    assert not xla.memory
    return errors, [x.numpy() for x in results]


@pytest.mark.parametrize("case", ["plain", "unaligned", "no memory", "virtual"])
def test_buffers_on_a_device(device: pysm120.Device, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Launched where they are, with a workspace of XLA."""
    most = 8 if case == "no memory" else 1 << 30
    x = X[..., :13] if case in {"unaligned", "no memory"} else X
    q, k, v = x, x[:, :, :1], x[:, :, 1:] + x.dtype.type(1)
    name = "virtual" if case == "virtual" else ""
    given, forms = recorded(monkeypatch, q=q, k=k, v=v, causal=True, device=name)
    xla = Api(device, most=most)
    errors, results = launched(xla, given, [q, k, v], forms)
    if case == "virtual":
        assert "device is a virtual one, but the arrays are on a GPU" in errors[0]
        return
    if case == "no memory":
        assert errors == ["XLA is out of memory"]
        assert len(xla.asked) == 1
        return
    assert not errors
    assert len(xla.asked) == (case == "unaligned")
    wanted = numpy_api.attention(q, k, v, causal=True, return_lse=True, device=device)
    for got, best in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(got, best)


@pytest.mark.parametrize(
    ("version", "sizes"),
    [((0, 1), {}), ((0, 3), {"XlaApi": 192}), ((0, 5), {"XlaApi": 208, "XlaFrame": 184, "XlaBuffer": 56})],
)
def test_versions_of_xla_with_the_same_layout(
    device: pysm120.Device, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], sizes: dict[str, int]
) -> None:
    """Also a later one, which took a handler of 0.4 and has new members at the end of structs."""
    given, forms = recorded(monkeypatch, q=X, k=X, v=X)
    errors, results = launched(Api(device, version=version, sizes=sizes), given, [X, X, X], forms)
    assert not errors
    np.testing.assert_array_equal(results[0], numpy_api.attention(X, X, X, device=device))


@pytest.mark.parametrize(
    ("version", "sizes"),
    [
        ((1, 4), {}),
        ((0, 0), {}),
        ((0, 5), {"arguments": 48}),  # the results are behind them
        ((0, 5), {"results": 48}),
        ((0, 5), {"XlaVersion": 32}),
        ((0, 5), {"type": 2}),
        ((0, 4), {"XlaFrame": 160}),
        ((0, 4), {"XlaAttributes": 40}),
        ((0, 4), {"XlaBuffer": 40}),
    ],
    ids=str,
)
def test_an_unknown_layout_is_refused(
    device: pysm120.Device, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], sizes: dict[str, int]
) -> None:
    """By version, sizes and types that XLA states; nothing is launched."""
    given, forms = recorded(monkeypatch, q=X, k=X, v=X)
    errors, results = launched(Api(device, version=version, sizes=sizes), given, [X, X, X], forms)
    stated = ".".join(map(str, version))
    wanted = f"XLA's FFI has version {stated} with a layout that pysm120 does not know; it knows 0.1 to 0.4"
    assert errors == [wanted]
    assert not any(x.any() for x in results)


def test_an_xla_without_ordinals_is_refused(device: pysm120.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    given, forms = recorded(monkeypatch, q=X, k=X, v=X)
    errors, _ = launched(Api(device, sizes={"XlaApi": 184}), given, [X, X, X], forms)
    assert errors == ["XLA's FFI does not tell the ordinal of a GPU: install a later JAX"]
