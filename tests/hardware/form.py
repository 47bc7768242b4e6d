"""A form of an instruction: its PTX, the operands it is given, and the micro-kernel around it.

A body is PTX on the registers in0, in1, ... and out0, out1, ...; one element of each per thread. It may use
    p q r             predicates
    h0.. t0.. w0..    temporaries of 16, 32 and 64 bits;  f0..  g0..  temporaries .f32 and .f64;  x0..x3  .b128
    i n lane          thread of the CTA, thread of the grid, lane of the warp
    smem cell         start of shared memory, and of this thread's 16 bytes in it
    map0 map1 ..      generic addresses of the form's tensor maps
    at_in0 at_out0    global addresses of this thread's element
Every CTA has 128 threads, and every thread runs the whole body.
"""

import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from operands import operands

THREADS = 128
SEED = 20

# An operand's kind: its bytes and the type of its register. The name says which values it takes (see operands.py).
REGISTERS = {"b8": (1, "b16"), "p": (1, "pred"), "m": (16, ""), "shift": (4, "b32"), "tf32": (4, "b32")}


def layout(kind: str) -> tuple[int, str]:
    """Return bytes and register type of a kind: "f32" or "f32:positive"."""
    name = kind.split(":", maxsplit=1)[0]
    if name in REGISTERS:
        return REGISTERS[name]
    bits = 16 if name.endswith(("m3x2", "m2x2")) else 32 if name.endswith("x2") else int(name.lstrip("bfstu"))
    return bits // 8, name if name in {"f32", "f64"} else f"b{bits}"


class Map(NamedTuple):
    """A tensor map of tiles over the bytes of an operand, "in0" or "out0"; dimensions count from the innermost."""

    operand: str
    data_type: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: str
    fill: str


class Form(NamedTuple):
    """An instruction, or a few that belong together, with its operands.

    Kind "p" is a predicate, stored as a byte; "m" is 16 bytes of global memory per thread that the body itself reads
    or writes. An approximate form names its bound (see bounds.py).
    """

    ptx: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lanes: int = 512
    shared: int = 16 * THREADS
    bound: str = ""
    maps: tuple[Map, ...] = ()

    @property
    def name(self) -> str:
        """The PTX on one line with the kinds of its operands, which is also the id of its test."""
        text = re.sub(r"\s+", " ", self.ptx).strip()
        maps = "".join(f" // {tuple(tensor_map)}" for tensor_map in self.maps)
        return f"{text} // {' '.join(self.inputs)} -> {' '.join(self.outputs)}{maps}"

    @property
    def sizes(self) -> list[int]:
        """Bytes of an element of every output."""
        return [layout(kind)[0] for kind in self.outputs]

    def operands(self) -> list[NDArray[np.generic]]:
        """Return its inputs, as unsigned integers: the same ones every time."""
        return operands(self.inputs, self.lanes, SEED)

    def offset(self, operand: str) -> int:
        """Return where an operand begins among the bytes of all inputs, or of all outputs."""
        kinds = self.inputs if operand.startswith("in") else self.outputs
        before = kinds[: int(operand.lstrip("inout"))]
        return sum(layout(kind)[0] * self.lanes for kind in before)

    def input_bytes(self) -> bytes:
        """Return its inputs, one after the other."""
        return b"".join(array.tobytes() for array in self.operands())

    def fingerprint(self) -> int:
        """Return a number that changes with the kernel, the inputs or the outputs."""
        text = f"{kernel('form', self)}{self.outputs}{self.lanes}{self.maps or ''}"
        return zlib.crc32(text.encode(), zlib.crc32(self.input_bytes()))

    def split(self, data: bytes | NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Cut the bytes that a kernel wrote into one array [lane, byte] per output."""
        flat, out, at = np.frombuffer(data, np.uint8), [], 0
        for size in self.sizes:
            out.append(flat[at : at + size * self.lanes].reshape(self.lanes, size))
            at += size * self.lanes
        return out


def form(ptx: str, inputs: str, outputs: str, lanes: int = 512, shared: int = 16 * THREADS, bound: str = "") -> Form:
    """Make a form; inputs and outputs are kinds with spaces between."""
    return Form(ptx, tuple(inputs.split()), tuple(outputs.split()), lanes, shared, bound)


def address(name: str, parameter: str, offset: int, size: int) -> str:
    """Write the code that points to this thread's element."""
    return f"""    ld.param.u64 at_{name}, [param_{parameter}];
    mad.wide.u32 at_{name}, n, {size}, at_{name};
    add.u64     at_{name}, at_{name}, {offset};"""


def kernel(name: str, form: Form) -> str:
    """Write the micro-kernel of a form: inputs are read at param_in, outputs written at param_out."""
    maps = "".join(f", .param .align 64 .b8 param_map{k}[128]" for k in range(len(form.maps)))
    lines = [f".visible .entry {name}(.param .u64 param_in, .param .u64 param_out{maps})", "{"]
    lines += ["    .reg .pred p, q, r;", "    .reg .b16 h<16>;", "    .reg .b32 t<16>, i, n, lane, cell;"]
    lines += ["    .reg .f32 f<8>;", "    .reg .f64 g<4>;", "    .reg .b64 w<8>;", "    .reg .b128 x<4>;"]
    alignment = 1024 if form.maps else 128  # of the pattern of a swizzle
    lines += [f"    .shared .align {alignment} .b8 smem[{form.shared}];"]
    lines += ["    mov.u32 i, %tid.x;", "    mov.u32 n, %ctaid.x;"]
    lines += [f"    mad.lo.u32 n, n, {THREADS}, i;", "    mov.u32 lane, %laneid;", "    mov.u32 cell, smem;"]
    lines += ["    mad.lo.u32 cell, i, 16, cell;"]
    for k in range(len(form.maps)):
        lines += [f"    .reg .b64 map{k};", f"    mov.b64 map{k}, param_map{k};", f"    cvta.param.u64 map{k}, map{k};"]
    stores, offset = [], 0
    for k, kind in enumerate(form.inputs):
        size, register = layout(kind)
        lines += [f"    .reg .b64 at_in{k};", address(f"in{k}", "in", offset, size)]
        offset += size * form.lanes
        if register:
            lines += [
                f"    .reg .{register} in{k};",
                f"    ld.global.{'u8' if size == 1 else register} in{k}, [at_in{k}];",
            ]
    offset = 0
    for k, kind in enumerate(form.outputs):
        size, register = layout(kind)
        lines += [f"    .reg .b64 at_out{k};", address(f"out{k}", "out", offset, size)]
        offset += size * form.lanes
        if register:
            lines += [f"    .reg .{register} out{k};"]
        if register == "pred":
            stores += [f"    selp.u16 h15, 1, 0, out{k};", f"    st.global.u8 [at_out{k}], h15;"]
        elif register:
            stores += [f"    st.global.{'u8' if size == 1 else register} [at_out{k}], out{k};"]
    return "\n".join([*lines, f"    {form.ptx}", *stores, "    ret;", "}", ""])


def module(target: str, forms: Iterable[Form]) -> str:
    """Write a module whose entries form_0, form_1, ... are the micro-kernels of the forms."""
    head = f".version 8.8\n.target {target}\n.address_size 64\n\n"
    return head + "\n".join(kernel(f"form_{k}", form) for k, form in enumerate(forms))
