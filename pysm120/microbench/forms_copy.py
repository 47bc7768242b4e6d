"""Copies between global and shared memory: bulk, tensor and cp.async; and bulk reductions to global memory."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.microbench.form import LANES, Form, Operand
from pysm120.microbench.kernel import BenchKernel
from pysm120.runtime.device import Device

REGION = 1 << 17  # bytes that a CTA accesses; those of all CTAs fit in the L2
MOST_SHARED = 96 << 10
PITCH = 1024
NARROW = 256  # for stores: eight boxes of 64 rows in a region, so that outstanding stores do not overlap
TILE = 16384  # of sums
SPAN = 1 << 16  # bytes of sums that a CTA goes through; those of all CTAs fit in the L2
ALL = 1 << 20  # more CTAs than a chip has multiprocessors
WORD = 160  # plus the lane: the words of a tile that are checked
SWIZZLES = {"none": 0, "32B": 1, "64B": 3, "128B": 7}
ROUNDS = 4


class Rows(NamedTuple):
    """Rows of a span, in another order than that of the accesses: row n lies where row n * ``factor`` would lie.

    The default factor is 2^32 by the golden ratio: its multiples are far apart, and no two rows have one place.
    """

    nbytes: int
    factor: int = 0x9E3779B1

    @property
    def words(self) -> str:
        """The end of a form's name."""
        apart = self.nbytes * self.factor
        return f", rows of {self.nbytes} bytes" + (f", {apart} bytes apart" if apart < 1 << 16 else "")

    def places(self, at: npt.NDArray[np.int64], span: int) -> npt.NDArray[np.int64]:
        """Return where offsets in a span lie."""
        return at // self.nbytes * self.factor * self.nbytes % span + at % self.nbytes


def _pattern(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return the words of the data at offsets in bytes (``Launcher.pattern``)."""
    return (offsets // 4 * 0x9E3779B1 + 0x1234567).astype(np.uint64).astype(np.uint32)


def _looked_at(size: int) -> npt.NDArray[np.int64]:
    """Return the offsets in a tile of the words that the lanes check."""
    first = 4 * WORD if size >= 1024 else 0
    return first + 4 * np.arange(LANES)


def _chains(size: int) -> tuple[int, ...]:
    """Return how many copies may be outstanding."""
    return tuple(n for n in (1, 2, 4, 8) if n * size <= MOST_SHARED)


def _check_loads(_: Any, bench: BenchKernel, words: npt.NDArray[np.uint32], ctas: int, __: int, trips: int) -> str:
    """Compare the last tiles with the data that they are copies of."""
    options = bench.form.options
    size, box = options["bytes"], options.get("box")
    copies = bench.chains * (trips * bench.form.unroll + 1)
    for cta in range(ctas):
        total = np.zeros(LANES, np.uint32)
        for copy in range(copies - bench.chains, copies):
            inside = _looked_at(size)
            if box:
                inside ^= (inside >> 7 & SWIZZLES[options["swizzle"]]) << 4
                row = copy * box[0] % (REGION // PITCH) + inside // box[1] + cta * (REGION // PITCH)
                total += _pattern(row * PITCH + inside % box[1])
            else:
                total += _pattern(cta * REGION + copy * size % REGION + inside)
        got = words[cta * LANES : (cta + 1) * LANES, 0]
        if not np.array_equal(got, total):
            return f"the last tiles of CTA {cta} differ from the data: their words add up to {got[0]:#x}, not {total[0]:#x}"
    return ""


def _check_stores(launcher: Any, bench: BenchKernel, _: Any, ctas: int, __: int, trips: int) -> str:
    """Compare the data with the tiles that were last written there."""
    options = bench.form.options
    size, box = options["bytes"], options.get("box")
    got = launcher.read(ctas * REGION)
    expected = launcher.pattern(ctas * REGION).copy()
    inside = 4 * np.arange(size // 4)
    places, words = inside, inside // 4  # in global memory, and which word of the tile lies there
    if box:
        places = inside // box[1] * options["pitch"] + inside % box[1]
        words = (inside ^ (inside >> 7 & SWIZZLES[options["swizzle"]]) << 4) // 4
    for cta in range(ctas):
        for copy in range(bench.chains * trips * bench.form.unroll):
            first = copy * box[0] * options["pitch"] if box else copy * size
            at = cta * REGION + first % REGION + places
            expected[at // 4] = words + copy % bench.chains * (size // 4)
    return "" if np.array_equal(got, expected) else "the data differ from the tiles that were stored there"


def first_difference(noun: str, got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> str:
    """Return where two arrays differ as text, or ""."""
    where = np.flatnonzero(got != expected)
    return f"{noun} {where[0]} is {got[where[0]]}, not {expected[where[0]]}" if where.size else ""


def _check_sums(launcher: Any, bench: BenchKernel, _: Any, ctas: int, warps: int, trips: int) -> str:
    """Compare the sums with the number of ones that were added."""
    options = bench.form.options
    size, together = launcher.limited(options["data"](ctas)), options["together"]
    steps = bench.chains * bench.form.unroll * trips
    # Every step adds to the next bytes of the CTA's span.
    step_bytes = options["bytes"] if bench.form.template == "copy" else options["width"] * warps * LANES
    words = np.arange(step_bytes // 4)
    expected = np.zeros(size // 4)
    for cta in range(ctas):
        for step in range(steps):
            expected[(cta // together * SPAN + step * step_bytes % SPAN) // 4 + words] += 1
    return first_difference("sum", launcher.read(size).view(np.float32), expected)


def _bulk(
    name: str,
    sass: Any,
    *,
    size: int,
    kind: str,
    note: str = "",
    needs: tuple[int, ...] = (),
    lacks: str = Form.lacks,
    **options: Any,
) -> Form:
    """Write a form of bulk copies."""
    return Form(
        name=name,
        group="copy",
        template="copy",
        lines=(),
        sass=sass,
        state=Operand("b32"),
        model=lambda words, _: words,
        amount=size,
        unit="byte",
        oldest=90,
        needs=needs,
        lacks=lacks,
        chains=_chains(size),
        warps=(1,),
        unroll=ROUNDS,
        has_latency=kind == "load",
        note=note,
        besides=28 if options.get("rank", 2) > 2 else 25 if "box" in options else 20,
        is_conditional=True,  # one lane
        options={
            "bytes": size, "kind": kind, "region": REGION, "together": 1, "per_cta": True, "check_warps": 1, "words": 1,
            "shared": lambda bench, _: bench.chains * size, "data": lambda ctas: ctas * REGION,
            "writes": kind != "load", **options,
        },
    )  # fmt: skip


def _map(device: Device, data: Any, bench: BenchKernel, ctas: int) -> tuple[Any, ...]:
    """Return the tensor map of all regions."""
    options = bench.form.options
    rows, row_bytes = options["box"]
    ones = (1,) * (options.get("rank", 2) - 2)  # the outer dimensions
    matrix = data[: ctas * REGION // 4].reshape(*ones, ctas * REGION // options["pitch"], options["pitch"] // 4)
    return (device.tensor_map(matrix, (*ones, rows, row_bytes // 4), swizzle=options["swizzle"]),)


def _loads() -> list[Form]:
    forms = [
        _bulk(f"cp.async.bulk to shared, {size:,} bytes", r"UBLKCP\.S\.G.*", size=size, kind="load", check=_check_loads)
        for size in (512, 2048, 8192, 16384, 32768)
    ]
    forms.append(_bulk("cp.async.bulk.multicast::cluster to shared, 8,192 bytes", r"UBLKCP\.S\.G\.MULTICAST.*", size=8192, kind="load",
                       check=_check_loads, is_multicast=True, needs=(90, 100), lacks="emulates multicast by a subroutine",
                       note="a cluster of one CTA"))  # fmt: skip
    boxes = [((64, 128), "128B"), ((64, 128), "none"), ((64, 64), "64B"), ((64, 32), "32B"), ((128, 128), "128B"), ((16, 128), "128B"),
             ((32, 256), "none")]  # fmt: skip
    for rank, box, swizzle in [*((2, *pair) for pair in boxes), (4, (64, 128), "128B")]:
        name = f"cp.async.bulk.tensor.{rank}d to shared, {box[0]} rows of {box[1]} bytes, swizzle {swizzle}"
        forms.append(_bulk(name, rf"UTMALDG\.{rank}D.*", size=box[0] * box[1], kind="load", box=box, swizzle=swizzle, pitch=PITCH,
                           rank=rank, arguments=_map, check=_check_loads))  # fmt: skip
    return forms


def _stores() -> list[Form]:
    boxes = [((64, 128), "128B"), ((64, 128), "none"), ((64, 64), "64B"), ((64, 32), "32B"), ((16, 128), "128B")]
    return [
        _bulk(
            f"cp.async.bulk to global, {size:,} bytes", r"UBLKCP\.G\.S.*", size=size, kind="store", check=_check_stores
        )
        for size in (512, 2048, 8192, 32768)
    ] + [
        _bulk(f"cp.async.bulk.tensor.2d to global, {box[0]} rows of {box[1]} bytes, swizzle {swizzle}", r"UTMASTG\.2D.*",
              size=box[0] * box[1], kind="store", box=box, swizzle=swizzle, pitch=NARROW, arguments=_map, check=_check_stores)
        for box, swizzle in boxes
    ]  # fmt: skip


def zeros(nbytes: int, _: int) -> npt.NDArray[np.uint32]:
    """Return data of zeros."""
    return np.zeros(nbytes // 4, np.uint32)


def _sums() -> list[Form]:
    """Return sums in f32: every CTA adds to lines of its own, or 2, 8, 32 or all CTAs add to the same lines."""
    forms = []
    for together in (1, 2, 8, 32, ALL):
        data: dict[str, Any] = {
            "together": together,
            "region": SPAN,
            "data": lambda ctas, together=together: -(-ctas // together) * SPAN,
            "fill": zeros,
            "check": _check_sums,
            "check_ctas": 3,  # two of them may have the same lines
            "writes": True,
        }
        who = {1: "lines of its own", ALL: "all CTAs on the same lines"}.get(
            together, f"{together} CTAs on the same lines"
        )
        forms.append(_bulk(f"cp.reduce.async.bulk.add.f32, {who}", r"UBLKRED\.G\.S\.ADD\.F32.*", size=TILE,
                           kind="reduce", note=f"a CTA goes through {SPAN >> 10} KiB", **data))  # fmt: skip
        for width, suffix, pattern in ((4, "", "F32"), (8, ".v2", "F32x2"), (16, ".v4", "F32x4")):
            registers = "X" if width == 4 else "{" + ", ".join(["X"] * (width // 4)) + "}"
            forms.append(Form(
                name=f"red.global.add{suffix}.f32, {who}", group="copy", template="global",
                lines=(f"red.global.add{suffix}.f32 [address], {registers};",), sass=rf"REDG?\.E\.ADD\.{pattern}\..*",
                state=Operand("b32", 1, 0x3F800000), inputs={"M": Operand("b32", 1, SPAN - 1)}, model=lambda words, _: words, amount=LANES * width, unit="byte",
                oldest=70 if width == 4 else 90, besides=3 + width / 4, chains=(4,), warps=(8, 16, 32), unroll=4, has_latency=False,
                note=f"a CTA goes through {SPAN >> 10} KiB", options={"width": width, "span": SPAN, "is_cta_wide": True, **data},
            ))  # fmt: skip
    return forms


def _check_async(
    launcher: Any, bench: BenchKernel, words: npt.NDArray[np.uint32], ctas: int, warps: int, trips: int
) -> str:
    """Compare what lies in shared memory with the data that were copied last."""
    options = bench.form.options
    width, span, threads = options["width"], options["span"], warps * LANES
    thread = np.arange(threads)
    for cta in range(ctas):
        step = (trips * bench.form.unroll - 2) * bench.chains  # the last that wrote the first half
        at = (thread * width + step * threads * width) % span
        at = cta * span + (options["rows"].places(at, span) if options["rows"] else at)
        got = words[cta * threads : (cta + 1) * threads, 0]
        if not np.array_equal(got, launcher.pattern(ctas * span)[at // 4]):
            return f"CTA {cta} has {got[0]:#x} in shared memory, not the data"
    return ""


def _cp_async() -> list[Form]:
    forms = []
    past_l1 = r"LDGSTS\.E\.BYPASS\.128"
    for cache, width, sass, rows in (
        ("ca", 4, r"LDGSTS\.E", None), ("ca", 8, r"LDGSTS\.E\.64", None), ("ca", 16, r"LDGSTS\.E\.128", None), ("cg", 16, past_l1, None),
        ("cg", 16, past_l1, Rows(32)), ("cg", 16, past_l1, Rows(64)), ("cg", 16, past_l1, Rows(128)),
    ):  # fmt: skip
        forms.append(Form(
            name=f"cp.async.{cache}, {width} bytes" + (rows.words if rows else ""), group="copy", template="global",
            lines=(f"cp.async.{cache}.shared.global [tile + SLOT], [address], {width};",), sass={sass: 1, "LDGDEPBAR": (1 / 8, 4)},
            state=Operand("b32"), inputs={"M": Operand("b32", 1, REGION - 1)}, model=lambda words, _: words, amount=LANES * width, unit="byte", chains=(1, 2, 4, 8),
            warps=(1, 4, 8), unroll=4, besides=9 if rows else 5, note="a group for the copies side by side, one group ahead",
            options={
                "width": width, "span": REGION, "is_cta_wide": True, "data": lambda ctas: ctas * REGION, "check": _check_async, "rows": rows,
                "shared": lambda bench, _: 2 * 16 * 256 * bench.chains,
                "after": ("cp.async.commit_group;", "cp.async.wait_group 1;"),
                "last": ("cp.async.wait_group 0;", "ld.shared.b32 x_0_0, [tile];"),
            },
        ))  # fmt: skip
    return forms


FORMS = [*_loads(), *_stores(), *_cp_async(), *_sums()]
