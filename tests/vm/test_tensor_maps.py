"""Tensor copies against a NumPy model: every data type, swizzle and rank, boxes that are partly or wholly outside."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import tma_model as model
from numpy.typing import NDArray

import pysm120

pytestmark = pytest.mark.virtual
SMEM = 16384
SEEDS = range(6)
BASE = 1024  # where shared memory begins

HEAD = f"""
.version 8.8
.target sm_120f
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .align 64 .b8 at[20], .param .u32 bytes, .param .u32 base,
    .param .u64 image)
{{{{
    .reg .pred first, p;
    .reg .b32 c<5>, i, n, size, tile, s, v;
    .reg .b64 m, x;
    .shared .align 1024 .b8 smem[{SMEM}];
    .shared .align 8 .b64 bar;
    mov.b64     m, map;
    cvta.param.u64 m, m;
    ld.param.b32 c0, [at];
    ld.param.b32 c1, [at + 4];
    ld.param.b32 c2, [at + 8];
    ld.param.b32 c3, [at + 12];
    ld.param.b32 c4, [at + 16];
    ld.param.u32 size, [bytes];
    ld.param.u32 tile, [base];
    ld.param.u64 x, [image];
    mov.u32     i, smem;
    add.u32     tile, tile, i;
    mov.u32     i, %tid.x;
    setp.eq.u32 first, i, 0;
    mad.wide.u32 x, i, 4, x;
    mov.u32     s, smem;
    mad.lo.u32  s, i, 4, s;
    mov.u32     n, 0;
fill:
    ld.global.b32 v, [x];
    st.shared.b32 [s], v;
    add.u64     x, x, 512;
    add.u32     s, s, 512;
    add.u32     n, n, 512;
    setp.lt.u32 p, n, {SMEM};
@p  bra fill;
    sub.u64     x, x, {SMEM};
    sub.u32     s, s, {SMEM};
@first mbarrier.init.shared.b64 [bar], 1;
    fence.proxy.async;
    bar.sync    0;
    {{body}}
    bar.sync    0;
    mov.u32     n, 0;
dump:
    ld.shared.b32 v, [s];
    st.global.b32 [x], v;
    add.u64     x, x, 512;
    add.u32     s, s, 512;
    add.u32     n, n, 512;
    setp.lt.u32 p, n, {SMEM};
@p  bra dump;
    ret;
}}}}
"""
WAIT = """wait:
    mbarrier.try_wait.parity.shared.b64 p, [bar], 0;
@!p bra wait;"""


def coordinates(rank: int) -> str:
    """Write the operand of a map."""
    return "[m, {" + ", ".join(f"c{k}" for k in range(rank)) + "}]"


def load_text(rank: int, mode: str = "") -> str:
    how = f"cp.async.bulk.tensor.{rank}d.shared::cta.global{mode}.mbarrier::complete_tx::bytes"
    where = "[m, {c0, c1, c2, c3, c4}]" if mode else coordinates(rank)
    return HEAD.format(
        body=f"""
@first mbarrier.arrive.expect_tx.shared.b64 _, [bar], size;
@first {how} [tile], {where}, [bar];
{WAIT}"""
    )


def store_text(rank: int, op: str = "") -> str:
    how = f"cp{'.reduce' if op else ''}.async.bulk.tensor.{rank}d.global.shared::cta{'.' + op if op else ''}.bulk_group"
    return HEAD.format(
        body=f"""
@first {how} {coordinates(rank)}, [tile];
@first cp.async.bulk.commit_group;
@first cp.async.bulk.wait_group 0;"""
    )


def launch(
    device: pysm120.Device,
    text: str,
    tensor_map: pysm120.TensorMap | bytes,
    at: tuple[int, ...],
    image: NDArray[np.uint8],
    nbytes: int = 0,
    base: int = 0,
) -> NDArray[np.uint8]:
    """Copy at the coordinates `at`, in the order of the array, and return shared memory."""
    memory = device.array(image)
    start = np.array([*at[::-1], 0, 0, 0, 0, 0][:5], np.int64).astype(np.int32).tobytes()
    device.load(text)["k"](1, 128, tensor_map, start, np.uint32(nbytes), np.uint32(base), memory)
    return np.asarray(memory.numpy(), np.uint8)


class Case:
    """A random tensor, map and box."""

    def __init__(
        self, rng: np.random.Generator, data_type: str, rank: int, swizzle: str, where: str, *, stores: bool = False
    ) -> None:
        self.data_type, self.dtype = data_type, np.dtype(model.DTYPES[data_type])
        size = self.dtype.itemsize
        widest = model.SPANS[swizzle] or min(256 * size, 512)
        inner = 16 * int(rng.integers(1, widest // 16 + 1)) if rng.integers(2) else widest
        room = SMEM // 2 // max(inner, model.SPANS[swizzle])
        outer: list[int] = []
        for _ in range(rank - 1):
            outer.append(int(rng.integers(1, min(32, max(2, room + 1)))))
            room //= outer[-1]
        steps = [int(rng.integers(1, 9)) if rng.integers(3) == 0 else 1 for _ in range(rank)]
        box = [n * s - int(rng.integers(s)) for n, s in zip(outer, steps, strict=False)]
        box = [min(b, 256) for b in box]
        fill = "nan" if "FLOAT" in data_type and rng.integers(2) else "zero"
        self.tile = model.Tile((*box, inner // size), tuple(steps), swizzle, fill)
        self.nbytes = math.prod(self.tile.counts()) * size
        span = [n * s for n, s in zip(self.tile.counts(), (*steps[:-1], 1), strict=True)]
        self.shape = tuple(max(1, int(rng.integers(b // 2, 2 * b + 2))) for b in span)
        while math.prod(self.shape) * size > 1 << 20:
            self.shape = tuple(max(1, n // 2) for n in self.shape)
        at = self.corner(rng, span, where, -(2**31) if stores else 0)
        if stores:
            at = [max(0, x) for x in at]
        at[-1] -= at[-1] % (16 // size)  # boxes begin at 16 bytes of the innermost dimension
        self.at = tuple(at)
        self.base = 128 * int(rng.integers(0, 20))

    def corner(self, rng: np.random.Generator, span: list[int], where: str, least: int) -> list[int]:
        """Choose where the box begins."""
        inside = [int(rng.integers(0, max(1, n - b + 1))) for n, b in zip(self.shape, span, strict=True)]
        if where == "inside":
            return inside
        if where == "across":
            return [int(rng.integers(1 - b, n)) for n, b in zip(self.shape, span, strict=True)]
        axis = int(rng.integers(len(span)))
        n, b = self.shape[axis], span[axis]
        beyond = [n + 15, n + 16, 2**31 - 1]
        inside[axis] = int(rng.choice(beyond if least else [-b, -b - 1, -(2**31), *beyond]))
        return inside

    def embed(self, values: NDArray[Any]) -> NDArray[Any]:
        """Put values into an array whose rows begin at multiples of 16 bytes, with other values between them."""
        width = -(-self.shape[-1] * self.dtype.itemsize // 16) * 16 // self.dtype.itemsize + 16
        whole: NDArray[Any] = np.full((*self.shape[:-1], width), 0x5A, f"u{self.dtype.itemsize}").view(self.dtype)
        whole[..., : self.shape[-1]] = values
        return whole

    def places(self) -> NDArray[np.int64]:
        return model.places(self.tile.swizzle, self.base, self.nbytes, self.tile.box[-1] * self.dtype.itemsize)

    def map_of(self, device: pysm120.Device, array: pysm120.Array) -> pysm120.TensorMap:
        tile = self.tile
        return device.tensor_map(
            array[..., : self.shape[-1]],
            tile.box,
            element_strides=tile.steps,
            swizzle=tile.swizzle,
            oob_fill=tile.fill,
            data_type=self.data_type,
        )

    def describe(self) -> str:
        return f"{self.data_type} {self.shape} {self.tile} at {self.at}, base {self.base}"


CASES = list(itertools.product(("inside", "across", "outside"), range(1, 6), model.TABLES))


@pytest.mark.parametrize(("where", "rank", "swizzle"), CASES)
def test_load(rng: np.random.Generator, where: str, rank: int, swizzle: str) -> None:
    """All bytes of shared memory: those of the box, and those around it."""
    for seed, data_type in enumerate(model.DTYPES):
        case = Case(rng, data_type, rank, swizzle, where)
        tensor = model.random_bits(rng, case.shape, case.dtype)
        image = rng.integers(0, 256, SMEM, dtype=np.uint8)
        with pysm120.Device(f"virtual?seed={seed}") as device:
            tensor_map = case.map_of(device, device.array(case.embed(tensor)))
            got = launch(device, load_text(rank), tensor_map, case.at, image, case.nbytes, case.base)
        want = image.copy()
        want[case.places()] = model.load(tensor, case.tile, case.at, case.data_type)
        assert np.array_equal(got, want), case.describe()


@pytest.mark.parametrize(("where", "rank", "swizzle"), CASES)
def test_store(rng: np.random.Generator, where: str, rank: int, swizzle: str) -> None:
    """The elements inside the tensor change, with those that share 16 bytes with them, and nothing else."""
    for seed, data_type in enumerate(model.DTYPES):
        case = Case(rng, data_type, rank, swizzle, where, stores=True)
        tensor = model.random_bits(rng, case.shape, case.dtype)
        image = rng.integers(0, 256, SMEM, dtype=np.uint8)
        with pysm120.Device(f"virtual?seed={seed}") as device:
            tensor = case.embed(tensor)
            array = device.array(tensor)
            got = launch(device, store_text(rank), case.map_of(device, array), case.at, image, base=case.base)
            after = array.numpy()
        values = image[case.places()].view(case.dtype)
        index, inside = model.scatter(case.shape, case.tile, case.at, values)
        tensor[index] = inside
        assert after.tobytes() == tensor.tobytes(), case.describe()
        assert np.array_equal(got, image)


INTEGERS = ("UINT32", "INT32", "UINT64", "INT64")
REDUCTIONS = [("add", t) for t in ("UINT32", "INT32", "UINT64", *model.FLOATS)]
REDUCTIONS += [(op, t) for op in ("min", "max") for t in (*INTEGERS, "FLOAT16", "BFLOAT16")]
REDUCTIONS += [("inc", "UINT32"), ("dec", "UINT32"), *itertools.product(("and", "or", "xor"), INTEGERS[:3])]


@pytest.mark.parametrize(("op", "data_type"), REDUCTIONS)
def test_reduce(rng: np.random.Generator, op: str, data_type: str) -> None:
    for seed, swizzle in enumerate(("none", "32B", "64B", "128B")):
        rank = int(rng.integers(1, 6))
        case = Case(rng, data_type, rank, swizzle, "across", stores=True)
        tensor = model.random_bits(rng, case.shape, case.dtype)
        image = rng.integers(0, 256, SMEM, dtype=np.uint8)
        if case.dtype.kind not in "iu" and (op != "add" or case.dtype == np.float64):  # atomics are tested elsewhere
            tensor = rng.standard_normal(case.shape).astype(case.dtype)
            image = rng.standard_normal(SMEM // case.dtype.itemsize).astype(case.dtype).view(np.uint8)
        with pysm120.Device(f"virtual?seed={seed}") as device:
            tensor = case.embed(tensor)
            array = device.array(tensor)
            launch(device, store_text(rank, op), case.map_of(device, array), case.at, image, base=case.base)
            after = array.numpy()
        values = image[case.places()].view(case.dtype)
        index, inside = model.scatter(case.shape, case.tile, case.at, values)
        tensor[index] = model.reduce(tensor[index], inside, op, data_type)
        assert after.tobytes() == tensor.tobytes(), case.describe()


NONE = [("add", "INT64"), ("and", "INT64"), ("add", "UINT8"), ("add", "UINT16"), ("min", "FLOAT32"), ("max", "UINT16")]
NONE += [("inc", "INT32"), ("dec", "UINT64"), ("and", "FLOAT32"), ("xor", "UINT16"), ("max", "TFLOAT32")]


@pytest.mark.parametrize(("op", "data_type"), NONE)
def test_no_reduction(device: pysm120.Device, op: str, data_type: str) -> None:
    array = device.zeros((16, 16), model.DTYPES[data_type])
    tensor_map = device.tensor_map(array, (2, 16), data_type=data_type)
    with pytest.raises(pysm120.FaultError, match=rf"with \.{op}, which data_type \d+ of the tensor map"):
        launch(device, store_text(2, op), tensor_map, (0, 0), np.zeros(SMEM, np.uint8))


@pytest.mark.parametrize("swizzle", model.TABLES)
def test_gather(rng: np.random.Generator, swizzle: str) -> None:
    """Four rows of a matrix, some of them outside."""
    for seed in SEEDS:
        with pysm120.Device(f"virtual?seed={seed}") as device:
            tensor = model.random_bits(rng, (37, 96), np.uint16)
            width = (model.SPANS[swizzle] or 128) // 2
            tile = model.Tile((1, width), (1, 1), swizzle)
            column = 8 * int(rng.integers(-width // 8, 12))
            rows = rng.integers(-3, 40, 4)
            image = rng.integers(0, 256, SMEM, dtype=np.uint8)
            tensor_map = device.tensor_map(device.array(tensor), tile.box, swizzle=swizzle)
            at = (*rows[::-1].tolist(), column)
            got = launch(device, load_text(2, ".tile::gather4"), tensor_map, at, image, 8 * width)
        want = image.copy()
        brought = np.concatenate([model.load(tensor, tile, (int(row), column)) for row in rows])
        want[model.places(swizzle, 0, 8 * width, 2 * width)] = brought
        assert np.array_equal(got, want)


def packed(rng: np.random.Generator, rows: int, columns: int, bits: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Make codes and their bytes."""
    codes = rng.integers(0, 1 << bits, (rows, columns)).astype(np.uint8)
    planes = (codes[..., None] >> np.arange(bits)) & 1
    return codes, np.packbits(planes.reshape(rows, -1), axis=1, bitorder="little")


@pytest.mark.parametrize(
    ("name", "bits", "swizzle"),
    [(n, b, s) for n, b in (("16U4_ALIGN16B", 4), ("16U6_ALIGN16B", 6)) for s in ("none", "128B", "128B_ATOM_32B")],
)
def test_packed_load(device: pysm120.Device, rng: np.random.Generator, name: str, bits: int, swizzle: str) -> None:
    """Each 16 elements get 16 bytes, of which the upper ones are nobody's. The mbarrier counts the packed bytes."""
    _, data = packed(rng, 20, 256, bits)
    whole = np.zeros((20, -(-data.shape[1] // 32) * 32), np.uint8)
    whole[:, : data.shape[1]] = data
    array = device.array(whole)[:, : data.shape[1]]
    tensor_map = device.tensor_map(array, (8, 128), data_type=name, swizzle=swizzle)
    for row, column in ((0, 128), (15, 0), (-3, 0), (2, 256), (2, -128)):
        image = np.zeros(SMEM, np.uint8)
        got = launch(device, load_text(2), tensor_map, (row, column), image, 128 * bits)
        chunks = got[model.places(swizzle, 0, 1024, 128)].reshape(8, 8, 16)[:, :, : 2 * bits]
        padded = np.zeros((60, 4 * 16 * bits), np.uint8)
        padded[20:40, 16 * bits : 48 * bits] = data
        first = 16 * bits + column * bits // 8
        want = padded[20 + row : 28 + row, first : first + 16 * bits].reshape(8, 8, 2 * bits)
        assert np.array_equal(chunks, want), (row, column)


@pytest.mark.parametrize("swizzle", ["none", "128B", "128B_ATOM_64B"])
def test_packed_store(device: pysm120.Device, rng: np.random.Generator, swizzle: str) -> None:
    """A store takes 6 bits of every byte."""
    array = device.zeros((10, 192), np.uint8)
    tensor_map = device.tensor_map(array, (4, 128), data_type="16U6_ALIGN16B", swizzle=swizzle)
    image = rng.integers(0, 256, SMEM, dtype=np.uint8)
    launch(device, store_text(2), tensor_map, (8, 128), image)
    codes = image[model.places(swizzle, 0, 512, 128)].reshape(4, 128) & 63
    bits = (codes[..., None] >> np.arange(6)) & 1
    want = np.zeros((10, 192), np.uint8)
    want[8:, 96:] = np.packbits(bits.reshape(4, -1), axis=1, bitorder="little")[:2]
    assert np.array_equal(array.numpy(), want)


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_packed_bytes(device: pysm120.Device, rng: np.random.Generator, swizzle: str) -> None:
    """16U4_ALIGN8B moves pairs of elements as bytes."""
    tensor = model.random_bits(rng, (9, 64), np.uint8)
    array = device.array(tensor)
    width = model.SPANS[swizzle] or 48
    tensor_map = device.tensor_map(array, (4, 2 * width), data_type="16U4_ALIGN8B", swizzle=swizzle)
    tile = model.Tile((4, width), (1, 1), swizzle)
    got = launch(device, load_text(2), tensor_map, (7, -32), np.zeros(SMEM, np.uint8), 4 * width)
    want = np.zeros(SMEM, np.uint8)
    want[model.places(swizzle, 0, 4 * width, width)] = model.load(tensor, tile, (7, -16))
    assert np.array_equal(got, want)


@pytest.mark.parametrize("data_type", model.DTYPES)
def test_boxes_begin_at_16_bytes(device: pysm120.Device, data_type: str) -> None:
    """An H200 calls anything else an illegal instruction."""
    dtype = np.dtype(model.DTYPES[data_type])
    tensor_map = device.tensor_map(device.zeros((16, 64), dtype), (2, 16), data_type=data_type)
    whole = 16 // dtype.itemsize
    for column in {-1, 1, whole - 1, whole + 1, whole // 2} - {0}:
        message = rf"coordinate {column} of dimension 0 with elements of \d+ bits; expected a multiple of {whole}"
        for text in (load_text(2), store_text(2)):
            with pytest.raises(pysm120.FaultError, match=message):
                launch(device, text, tensor_map, (0, column), np.zeros(SMEM, np.uint8), 32 * dtype.itemsize)


@pytest.mark.parametrize("op", ["", "add"])
def test_stores_begin_inside(device: pysm120.Device, op: str) -> None:
    """So do reductions; an H200 calls anything else an illegal instruction."""
    tensor_map = device.tensor_map(device.zeros((16, 16, 64), np.uint32), (2, 2, 16))
    for axis in range(3):
        at = [3, 3, 8]
        at[axis] = -8
        with pytest.raises(pysm120.FaultError, match=rf"-8 of dimension {2 - axis}; only loads may have negative"):
            launch(device, store_text(3, op), tensor_map, tuple(at), np.zeros(SMEM, np.uint8))
