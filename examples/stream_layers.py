"""Multiply layers whose quantised weights stay in host memory, because the memory of the GPU is too small for them.

    python examples/stream_layers.py [--device cuda] [--layers 6] [--hidden 256] [--intermediate 768] [--measure]

A layer is the MLP of a transformer: h + down (silu(gate h) * (up h)). Its three matrices, in Q4_K, are one span of
pinned memory. The device has two staging buffers of a span and the matrices of one layer, however many layers there
are. One stream copies the span of the next layer. Another one scatters the span of this layer to the matrices, by one
`copy_batch`, and multiplies. So the products of every layer read the same addresses, and the staging buffer is free
again before they start.

The result is compared, bit for bit, with that of layers that are uploaded one by one. `--measure` times copies,
products and both on a GPU. Try `--hidden 8192 --intermediate 28672 --layers 8`.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pysm120
from pysm120 import CopyList, Event, QuantizedMatrix, Stream

BLOCK = np.dtype([("d", "f2"), ("dmin", "f2"), ("scales", "u1", 12), ("quants", "u1", 128)])  # Q4_K: 256 weights
WEIGHTS = 256  # of a block
STAGING, REPEATS = 2, 5

Bytes = npt.NDArray[np.uint8]
Shapes = dict[str, tuple[int, int]]  # rows and columns by matrix


def shapes_of(hidden: int, intermediate: int) -> Shapes:
    """Return the matrices of a layer."""
    return {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}


def blocks(shape: tuple[int, int], rng: np.random.Generator) -> Bytes:
    """Return a matrix in Q4_K, as in a GGUF file. Its products are a quarter as large as their vectors."""
    rows, columns = shape
    made = np.frombuffer(rng.bytes(rows * columns // WEIGHTS * BLOCK.itemsize), BLOCK).copy()
    # A weight is d scale quant - dmin minimum; with these factors its mean is about 0 and its deviation 258 d.
    made["d"] = 1 / (4 * 258 * np.sqrt(columns))
    made["dmin"] = 7.5 * made["d"]
    return made.view(np.uint8)


class Span(NamedTuple):
    """A layer in pinned memory, and which of its bytes are each matrix, in the packed layout."""

    values: Bytes
    places: dict[str, slice]


def span_of(device: pysm120.Device, shapes: Shapes, layer: int) -> Span:
    """Make a layer and keep it in pinned memory."""
    rng, parts, places, end = np.random.default_rng(layer), [], {}, 0
    for name, shape in shapes.items():
        w = QuantizedMatrix.from_gguf(blocks(shape, rng), "Q4_K", shape, device=device, layout="packed")
        parts.append(w.data.numpy())
        places[name] = slice(end, end + w.nbytes)
        end += w.nbytes
        w.free()
    values = device.pinned(end, np.uint8)
    np.concatenate(parts, out=values)
    return Span(values, places)


class Streamed:
    """Layers in pinned memory, and the buffers and streams that multiply them."""

    def __init__(self, device: pysm120.Device, shapes: Shapes, layers: int) -> None:
        self.spans = [span_of(device, shapes, n) for n in range(layers)]
        size, places = self.spans[0].values.size, self.spans[0].places
        self.staging = [device.empty(size, np.uint8) for _ in range(STAGING)]
        self.matrices = {
            name: QuantizedMatrix(device.empty(place.stop - place.start, np.uint8), "Q4_K", shapes[name], "packed")
            for name, place in places.items()
        }
        self.scatters = [
            CopyList((w.data, buffer[places[name]], w.nbytes) for name, w in self.matrices.items())
            for buffer in self.staging
        ]
        self.copies, self.products = device.stream(), device.stream()
        self.arrived, self.scattered = ([device.event() for _ in range(STAGING)] for _ in range(2))
        rows, columns = shapes["gate"]
        self.states = [device.empty(columns, np.float32) for _ in range(2)]
        self.middle = device.empty(rows, np.float32)

    @property
    def host_bytes(self) -> int:
        """Bytes of all weights, in pinned memory."""
        return sum(span.values.size for span in self.spans)

    @property
    def device_bytes(self) -> int:
        """Bytes of weights that the device holds at once."""
        return sum(x.nbytes for x in self.staging) + sum(w.nbytes for w in self.matrices.values())

    def fetch(self, layer: int) -> None:
        """Start the copy of a layer to its staging buffer."""
        slot = layer % STAGING
        # Without this wait the copy might overwrite a span that is not scattered yet.
        self.copies.wait(self.scattered[slot])
        self.staging[slot].copy_from(self.spans[layer].values, stream=self.copies, blocking=False)
        self.arrived[slot].record(self.copies)

    def multiply(self, layer: int) -> None:
        """Start the products of a layer whose copy was started: of one state to the other."""
        slot, stream = layer % STAGING, self.products
        before, after = self.states[layer % 2], self.states[(layer + 1) % 2]
        # Without this wait the scatter might read a span that has not arrived.
        stream.wait(self.arrived[slot])
        pysm120.copy_batch(self.scatters[slot], stream=stream)
        self.scattered[slot].record(stream)
        gate, up, down = (self.matrices[name] for name in ("gate", "up", "down"))
        pysm120.matvec_glu(gate, up, before, out=self.middle, stream=stream)
        pysm120.matvec(down, self.middle, bias=before, out=after, stream=stream)

    def run(self, *, fetches: bool = True, multiplies: bool = True) -> None:
        """Start all layers, copies one layer ahead of products. Without copies the products use old spans."""
        count = len(self.spans)
        for n in range(count + 1):
            if fetches and n < count:
                self.fetch(n)
            if multiplies and n > 0:
                self.multiply(n - 1)

    def result(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return what the layers make of a vector."""
        self.states[0].copy_from(x, stream=self.products)
        self.run()
        return self.states[len(self.spans) % 2].numpy(stream=self.products)


def uploaded(device: pysm120.Device, shapes: Shapes, layers: int, x: npt.NDArray[np.float32]) -> Any:
    """Return the same of layers that are made again and uploaded one by one, in the layout of GGUF."""
    for layer in range(layers):
        rng = np.random.default_rng(layer)
        w = {
            name: QuantizedMatrix.from_gguf(blocks(shape, rng), "Q4_K", shape, device=device)
            for name, shape in shapes.items()
        }
        middle = pysm120.matvec_glu(w["gate"], w["up"], x)
        x = pysm120.matvec(w["down"], middle, bias=x)
        for matrix in w.values():
            matrix.free()
    return x


def milliseconds(device: pysm120.Device, work: Callable[[], None], begin: Stream, end: Stream) -> float:
    """Return the median time of work, from an event on one stream to an event on another."""
    times = []
    for _ in range(REPEATS):
        device.synchronize()
        events: list[Event] = [device.event(), device.event()]
        events[0].record(begin)
        work()
        events[1].record(end)
        device.synchronize()
        times.append(events[1].elapsed_since(events[0]))
    return statistics.median(times)


def measure(device: pysm120.Device, streamed: Streamed) -> None:
    """Print the times of copies, of products and of both."""
    copies, products = streamed.copies, streamed.products
    alone = milliseconds(device, lambda: streamed.run(multiplies=False), copies, copies)
    computed = milliseconds(device, lambda: streamed.run(fetches=False), products, products)
    both = milliseconds(device, streamed.run, copies, products)
    nbytes, count = streamed.host_bytes, len(streamed.spans)
    for name, time in (("copies alone", alone), ("products alone", computed), ("streamed", both)):
        print(f"{name:15} {time:9.2f} ms, {time / count:8.3f} ms a layer, {nbytes / time / 1e6:8.2f} GB/s of weights")
    hidden = (alone + computed - both) / min(alone, computed)
    print(f"streamed: {alone / both:.1%} of the rate of copies alone; {hidden:.0%} of the shorter part is hidden")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cuda, cuda:1 or virtual; default: the first GPU, else virtual")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=768)
    parser.add_argument("--measure", action="store_true", help="print times; needs a GPU")
    options = parser.parse_args(words)
    if options.layers < 1:
        parser.error(f"--layers is {options.layers}, but it must be at least 1")
    for name in ("hidden", "intermediate"):
        size = getattr(options, name)
        if size < WEIGHTS or size % WEIGHTS:
            parser.error(f"--{name} is {size}, but it must be a multiple of {WEIGHTS}, a block of Q4_K")
    return options


def run(options: argparse.Namespace) -> int:
    """Multiply, compare and measure; return the exit status."""
    shapes = shapes_of(options.hidden, options.intermediate)
    x = np.random.default_rng(options.layers).standard_normal(options.hidden).astype(np.float32)
    with pysm120.Device(options.device) as device:
        if options.measure and device.is_virtual:
            print(f"stream_layers.py: --measure is given, but {device} is no GPU", file=sys.stderr)
            return 2
        streamed = Streamed(device, shapes, options.layers)
        found, wanted = streamed.result(x), uploaded(device, shapes, options.layers, x)
        print(
            f"{device.info.name}: {options.layers} layers, {streamed.host_bytes / 1e6:.1f} MB of weights in pinned "
            f"memory, {streamed.device_bytes / 1e6:.1f} MB on the device"
        )
        if not np.isfinite(wanted).all() or not np.array_equal(found, wanted):
            print("stream_layers.py: the result differs from that of layers uploaded one by one", file=sys.stderr)
            return 1
        print("the result has the bits of layers uploaded one by one")
        if options.measure:
            measure(device, streamed)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; return the exit status."""
    try:
        return run(arguments(words))
    except pysm120.Error as error:
        print(f"stream_layers.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
