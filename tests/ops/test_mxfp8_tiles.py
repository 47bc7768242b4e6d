"""MXFP8 in tiles: a definition of the layout in NumPy, what writes it, and attention on it, bit for bit."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_cases import PRECISIONS, pitched
from feature_cases import Case, Problem, fill_features, places
from harness import DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct, tensor
from reference import Array, quantize_mxfp8
from test_attention_mx_operands import FEATURES, SHAPES, Pair, along_head, along_rows, run, write

import pysm120

ROWS, BLOCK, HALF = 64, 32, 128
AXES = {"k": -1, "v": -2}


# ---- the definition --------------------------------------------------------------------


def columns_of(*head_dims: int) -> int:
    return next(x for x in (64, 128, 256) if x >= max(head_dims))


def place_of_key(key: int) -> int:
    """The row of a key of v among its 32: the order of the keys in P's A fragment."""
    return 16 * (key // 16) + 4 * (key // 2 % 4) + 2 * (key // 8 % 2) + key % 2


def elements_of_half(x: Array) -> Array:
    """64 rows of 64 or 128 bytes, the 16-byte chunks of a row exchanged so that 8 rows lie in 8 groups of banks."""
    chunks = x.reshape(ROWS, -1, 16)
    rows = np.arange(ROWS)
    swizzle = rows % 8 if x.shape[1] == HALF else rows // 2 % 4
    return np.stack([chunks[r][np.arange(chunks.shape[1]) ^ swizzle[r]] for r in rows]).reshape(-1)


def tile_of_k(elements: Array, scales: Array) -> Array:
    """Of each half its elements, then 4 bytes of scales a row."""
    parts = []
    for at in range(0, elements.shape[1], HALF):
        words = np.zeros((ROWS, 4), np.uint8)
        of_half = scales[:, at // BLOCK :][:, :4]
        words[:, : of_half.shape[1]] = of_half
        parts += [elements_of_half(elements[:, at : at + HALF]), words.reshape(-1)]
    return np.concatenate(parts)


def tile_of_v(elements: Array, scales: Array) -> Array:
    """Rows in the order of the keys in P; then the scales of both 32 rows of columns as lanes load them."""
    order = np.zeros(ROWS, int)
    for row in range(ROWS):
        order[row // BLOCK * BLOCK + place_of_key(row % BLOCK)] = row
    parts = []
    for at in range(0, elements.shape[1], HALF):
        half = elements[order, at : at + HALF]
        words = np.zeros((half.shape[1] // 64, 32, 4), np.uint8)
        for word, lane, byte in np.ndindex(words.shape):
            group = 8 * word + 2 * (lane % 4) + byte // 2
            words[word, lane, byte] = scales[byte % 2, at + 8 * group + lane // 4]
        parts += [elements_of_half(half), words.reshape(-1)]
    return np.concatenate(parts)


def tiles_of(operand: str, pair: Pair, columns: int, lengths: tuple[int, ...] | None = None) -> Array:
    """Tiles of elements and scales, [batch, head, row, column]; rows behind a length are 0."""
    elements, scales = (x.view(np.uint8) for x in pair)
    batch, heads, rows, _ = elements.shape
    count = -(-rows // ROWS)
    room = np.zeros((batch, heads, count * ROWS, columns), np.uint8)
    room[:, :, :rows, : elements.shape[3]] = elements
    lines = (count * ROWS, columns // BLOCK) if operand == "k" else (count * 2, columns)
    factors = np.zeros((batch, heads, *lines), np.uint8)
    factors[:, :, : scales.shape[2], : scales.shape[3]] = scales
    for b, length in enumerate(lengths or ()):
        room[b, :, length:] = 0
        factors[b, :, length if operand == "k" else -(-length // BLOCK) :] = 0
    step = lines[0] // count
    made = [
        [
            [tile(room[b, h, ROWS * t :][:ROWS], factors[b, h, step * t :][:step]) for t in range(count)]
            for h in range(heads)
        ]
        for tile in ((tile_of_k if operand == "k" else tile_of_v),)
        for b in range(batch)
    ]
    return np.array(made)


def rows_of_q(columns: int, precision: str = "mxfp8") -> int:
    """The rows to whose multiple kernels pad q: 16 for each warp of a CTA."""
    return 192 if (columns, precision) == (HALF, "mxfp8") else 128


def fragments(x: Array) -> Array:
    """16 rows as the A fragments of mma.m16n8k32: [k step][lane][4 words of 4 elements]."""
    steps = x.shape[1] // BLOCK
    found = np.zeros((steps, 32, 4, 4), np.uint8)
    for step, lane, word in np.ndindex(steps, 32, 4):
        row, column = lane // 4 + 8 * (word % 2), BLOCK * step + 16 * (word // 2) + 4 * (lane % 4)
        found[step, lane, word] = x[row, column : column + 4]
    return found.reshape(-1)


def tiles_of_q(pair: Pair, columns: int, precision: str = "mxfp8") -> Array:
    """All elements, then all scales; of 256 columns each 64 rows of the first half, then those of the second."""
    elements, scales = (x.view(np.uint8) for x in pair)
    batch, heads, rows, _ = elements.shape
    step = rows_of_q(columns, precision)
    padded = -(-rows // step) * step
    room = np.zeros((batch * heads, padded, columns), np.uint8)
    factors = np.zeros((batch * heads, padded, 4 * max(1, columns // HALF)), np.uint8)
    room[:, :rows, : elements.shape[3]] = elements.reshape(batch * heads, rows, -1)
    factors[:, :rows, : scales.shape[3]] = scales.reshape(batch * heads, rows, -1)
    parts: list[Array] = []
    words: list[Array] = []
    for head, of_head in zip(room, factors, strict=True):
        for block in range(0, padded, 64):
            for at in range(0, columns, HALF):
                half = head[block : block + 64, at : at + HALF]
                parts += [fragments(half[group : group + 16]) for group in range(0, 64, 16)]
                words.append(of_head[block : block + 64, at // BLOCK :][:, :4].reshape(-1))
    return np.concatenate([*parts, *words]).reshape(batch, heads, padded, -1)


def sequences_of(x: Array, lengths: tuple[int, ...], *, packed: bool) -> Array:
    """A batch for each sequence, with the rows of the longest, from a packed tensor."""
    made = np.zeros((len(lengths), x.shape[1], max(1, *lengths), x.shape[3]), x.dtype)
    for b, (at, where) in enumerate(places(lengths, packed=packed)):
        made[b, :, : where.stop - where.start] = x[at, :, where]
    return made


# ---- what writes tiles -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operand", AXES)
@pytest.mark.parametrize(
    ("shape", "columns"),
    [
        ((1, 1, 1, 8), None),
        ((2, 63, 3, 64), None),
        ((1, 64, 2, 64), 128),
        ((1, 65, 2, 128), None),
        ((2, 130, 1, 72), None),
        ((1, 100, 2, 136), None),
        ((1, 33, 1, 256), None),
        ((1, 31, 1, 16), 256),
    ],
    ids=str,
)
def test_tiles_equal_the_definition(
    device: pysm120.Device,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    columns: int | None,
    operand: str,
    dtype: str,
) -> None:
    """Both orders, with gaps between rows, both roundings."""
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))).astype(DTYPES[dtype])
    room = np.zeros((*shape[:3], shape[3] + 16), x.dtype)
    room[..., : shape[3]] = x
    for layout in ("BSHD", "BHSD"):
        for rounding in ("up", "floor"):
            pair = quantize_mxfp8(x.transpose(0, 2, 1, 3).astype(np.float32), AXES[operand], rounding)
            wanted = tiles_of(operand, pair, columns or columns_of(shape[3]))
            given = room if layout == "BSHD" else room.transpose(0, 2, 1, 3)
            there = device.array(np.ascontiguousarray(given))[..., : shape[3]]
            got = pysm120.quantize_mxfp8_tiles(there, operand, layout=layout, columns=columns, rounding=rounding)
            assert (got.operand, got.rows, got.head_dim) == (operand, shape[1], shape[3])
            assert got.nbytes == wanted.nbytes
            assert np.array_equal(got.data.numpy(), wanted)


@pytest.mark.parametrize("precision", ["mxfp8", "mxfp8_bf16", "mxfp8_f16"])
@pytest.mark.parametrize(("rows", "head_dim"), [(1, 8), (128, 64), (129, 72), (193, 128), (70, 136), (130, 256)])
def test_tiles_of_q_equal_the_definition(
    device: pysm120.Device, rng: np.random.Generator, rows: int, head_dim: int, precision: str
) -> None:
    x = (rng.standard_normal((2, rows, 3, head_dim)) * np.exp2(rng.integers(-9, 9, (2, rows, 3, 1)))).astype(np.float32)
    wanted = tiles_of_q(along_head(x.transpose(0, 2, 1, 3)), columns_of(head_dim), precision)
    got = pysm120.quantize_mxfp8_tiles(device.array(x), "q", precision=precision)
    assert np.array_equal(got.data.numpy(), wanted)
    turned = np.ascontiguousarray(x.transpose(0, 2, 1, 3))
    host = pysm120.quantize_mxfp8_tiles(turned, "q", layout="BHSD", precision=precision, device=device)
    assert np.array_equal(host.data, wanted)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("operand", AXES)
@pytest.mark.parametrize("starts", [[0, 130], [3, 40, 40, 60, 130], [129, 129, 130], [0, 0]], ids=str)
def test_tiles_of_packed_sequences(
    device: pysm120.Device, rng: np.random.Generator, starts: list[int], operand: str, where: str
) -> None:
    x = rng.standard_normal((130, 2, 64)).astype(np.float32)
    longest = max(1, *np.diff(starts))
    each = np.zeros((len(starts) - 1, 2, longest, 64), np.float32)
    for b, (begin, end) in enumerate(itertools.pairwise(starts)):
        each[b, :, : end - begin] = x[begin:end].transpose(1, 0, 2)
    wanted = tiles_of(operand, quantize_mxfp8(each, AXES[operand]), 64)
    ends: Any = np.array(starts, np.int32)
    if where == "host":
        got = pysm120.quantize_mxfp8_tiles(x, operand, cu_seqlens=ends, device=device)
        assert np.array_equal(got.data, wanted)
        return
    there, begins = device.array(x), device.array(ends)
    got = pysm120.quantize_mxfp8_tiles(there, operand, cu_seqlens=begins, max_seqlen=int(longest))
    assert got.rows == longest
    assert np.array_equal(got.data.numpy(), wanted)
    most = pysm120.quantize_mxfp8_tiles(there, operand, cu_seqlens=begins)
    assert most.rows == 130
    assert np.array_equal(most.data.numpy()[:, :, : wanted.shape[2]], wanted)
    assert not (most.data.numpy()[:, :, wanted.shape[2] :] != 0).any()


WRONG = [
    ("layout", 3, "INVALID_ARGUMENT", r"layout = 3; it must be MX_LINEAR \(0\), MX_TILES \(1\) or MX_Q_TILES \(2\)"),
    ("layout", 2, "INVALID_ARGUMENT", r"precision = 0; tiles of q need MXFP8 \(1\), MXFP8_BF16 \(2\) or MXFP8_F16"),
    ("precision", 1, "INVALID_ARGUMENT", r"precision = 1; without layout = MX_Q_TILES \(2\) it must be 0"),
    ("reserved", 1, "INVALID_ARGUMENT", "reserved = 1; it must be 0"),
    ("scales", 4096, "INVALID_ARGUMENT", "scales = 0x1000; tiles hold their scales, so it must be 0"),
    (
        "tile_columns",
        96,
        "INVALID_ARGUMENT",
        "tile_columns = 96; it must be 64, 128 or 256, and at least head_dim = 72",
    ),
    (
        "tile_columns",
        64,
        "INVALID_ARGUMENT",
        "tile_columns = 64; it must be 64, 128 or 256, and at least head_dim = 72",
    ),
    ("tile_columns", 512, "INVALID_ARGUMENT", "tile_columns = 512; it must be"),
    ("tile_columns", -64, "INVALID_ARGUMENT", "tile_columns = -64; it must be"),
    ("head_dim", 264, "UNSUPPORTED", "head_dim = 264; a tile has at most 256 columns"),
    ("elements", 0, "INVALID_ARGUMENT", "elements = 0"),
    ("tile_columns", 256, "INVALID_ARGUMENT", "past the end"),
    ("rows", 65, "INVALID_ARGUMENT", "past the end"),
    ("cu_seqlens", 4096, "INVALID_ARGUMENT", "sequences = 0"),
]


def quantise_args(opened: OpenDevice) -> tuple[Any, Any]:
    """A call that writes one tile of 64 rows and 72 columns in 128."""
    args = new_struct("sm120_quantize_mxfp8_args")
    args.layout, args.batch, args.heads, args.rows, args.head_dim = lib.SM120_MX_TILES, 1, 1, 64, 72
    tensor(args.x, Buffer(opened, (1, 1, 65, 72), np.float32, None, np.ones((1, 1, 65, 72), np.float32)))
    allocated = ffi.new("sm120_address *")
    check(lib.sm120_alloc(opened.handle, 8448, allocated))
    args.elements = allocated[0]
    return args, allocated


def status_with(opened: OpenDevice, members: dict[str, int]) -> tuple[int, str]:
    """Quantise rightly, then with some members changed; return the status and the message of the second call."""
    try:
        args, allocated = quantise_args(opened)
        check(lib.sm120_quantize_mxfp8(opened.handle, args))
        for member, value in members.items():
            setattr(args, member, value)
        got = lib.sm120_quantize_mxfp8(opened.handle, args)
        message = ffi.string(lib.sm120_last_error()).decode()
        check(lib.sm120_free(opened.handle, allocated[0]))
    finally:
        opened.release()
    return got, message


@pytest.mark.parametrize(("member", "value", "status", "words"), WRONG, ids=[f"{x[0]}-{x[1]}" for x in WRONG])
def test_wrong_members_of_the_quantiser(opened: OpenDevice, member: str, value: int, status: str, words: str) -> None:
    got, message = status_with(opened, {member: value})
    assert got == getattr(lib, f"SM120_{status}"), message
    with pytest.raises(ValueError, match=words):
        raise ValueError(message)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"axis": lib.SM120_ALONG_ROWS}, r"axis = 1; tiles of q need ALONG_HEAD_DIM \(0\)"),
        ({"precision": lib.SM120_NVFP4}, "precision = 4; tiles of q need MXFP8"),
        ({}, "past the end"),
    ],
)
def test_wrong_members_for_tiles_of_q(opened: OpenDevice, members: dict[str, int], words: str) -> None:
    """The buffer holds 64 rows, and q is padded to 192."""
    of_q = {"layout": lib.SM120_MX_Q_TILES, "precision": lib.SM120_MXFP8}
    got, message = status_with(opened, of_q | members)
    assert got == lib.SM120_INVALID_ARGUMENT
    with pytest.raises(ValueError, match=words):
        raise ValueError(message)


def test_columns_without_tiles(opened: OpenDevice) -> None:
    try:
        args, allocated = quantise_args(opened)
        args.layout, args.scales, args.tile_columns = lib.SM120_MX_LINEAR, args.elements + 64 * 72, 128
        got = lib.sm120_quantize_mxfp8(opened.handle, args)
        message = ffi.string(lib.sm120_last_error()).decode()
        check(lib.sm120_free(opened.handle, allocated[0]))
    finally:
        opened.release()
    assert got == lib.SM120_INVALID_ARGUMENT
    assert message == "tile_columns = 128; without layout = MX_TILES (1) it must be 0"


# ---- attention in C ----------------------------------------------------------------------


def tiles_for(problem: Problem) -> dict[str, Array]:
    """K and v of a problem as tiles, and q where its scale is above 0."""
    case = problem.case
    columns = columns_of(case.head_dim, case.v_head_dim or 0)
    found = {}
    if problem.scale > 0:
        q = sequences_of(problem.q, case.q_lengths, packed=True) if case.q_packed else problem.q
        found["q"] = tiles_of_q(along_head(q), columns, str(case.precision))
    k, v = along_head(problem.k), along_rows(problem.v, case.kv_lengths, packed=case.kv_packed)
    if not case.kv_packed:
        tiles = {name: tiles_of(name, x, columns, case.kv_lengths) for name, x in (("k", k), ("v", v))}
        return found | tiles
    each = {name: sequences_of(getattr(problem, name), case.kv_lengths, packed=True) for name in "kv"}
    lengths = case.kv_lengths
    return found | {
        "k": tiles_of("k", along_head(each["k"]), columns, lengths),
        "v": tiles_of("v", along_rows(each["v"], lengths), columns, lengths),
    }


def run_on_tiles(opened: OpenDevice, problem: Problem, tiles: dict[str, Array]) -> tuple[Array, Array, int]:
    """Launch with some operands in tiles, between guard bands; O, LSE and the bytes of the workspace."""
    case = problem.case
    args = new_struct("sm120_attention_args")
    args.precision = PRECISIONS[str(case.precision)]
    fill_features(opened, args, problem)
    for name in "qkv":
        if name in tiles:
            write(opened, getattr(args, name), tiles[name], "BHSD", 0, lib.SM120_U8)
        else:
            write(opened, getattr(args, name), getattr(problem, name), "BSHD", 16 + case.gap)
    shape = (*problem.q.shape[:3], problem.v_dim)
    o = Buffer(opened, shape, DTYPES[case.o_dtype], pitched(shape, "BSHD", 8))
    lse = Buffer(opened, shape[1:3] if case.q_packed else shape[:3], np.float32)
    tensor(args.o, o)
    args.lse = lse.address
    size = ffi.new("size_t *")
    check(lib.sm120_attention_workspace(opened.handle, args, size))
    workspace = Buffer(opened, (int(size[0]),), np.uint8)
    check(lib.sm120_attention(opened.handle, args, workspace.address, size[0]))
    return o.download(), lse.download(), int(size[0])


@pytest.mark.parametrize("case", [x for x in SHAPES + FEATURES if not x.past], ids=str)
def test_the_bits_of_the_tensors_that_were_quantised(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Every edge of the tiles, copies of the others, groups, signs of the scale, lengths, packed sequences."""
    problem = Problem(rng, case._replace(precision="mxfp8"))
    try:
        wanted, sums = run(opened, problem, {})
        got, logs, _ = run_on_tiles(opened, problem, tiles_for(problem))
    finally:
        opened.release()
    assert np.array_equal(wanted.view(np.uint8), got.view(np.uint8))
    assert np.array_equal(sums.view(np.uint32), logs.view(np.uint32))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("precision", "dtype", "names"),
    [
        ("mxfp8", "bfloat16", "k"),
        ("mxfp8", "float32", "v"),
        ("mxfp8", "float16", "q"),
        ("mxfp8_bf16", "bfloat16", "k"),
        ("mxfp8_bf16", "bfloat16", "qk"),
        ("mxfp8_f16", "float16", "q"),
        ("mxfp8_f16", "float16", "k"),
        ("nvfp4_mxfp8", "bfloat16", "v"),
    ],
)
def test_each_operand_and_precision(
    opened: OpenDevice, rng: np.random.Generator, precision: str, dtype: str, names: str, causal: bool, head_dim: int
) -> None:
    """The workspace lacks the tiles that are given: less of it is needed than of the call that writes them."""
    case = Case((70, 70), (150, 150), heads=4, kv_heads=2, head_dim=head_dim, precision=precision)
    problem = Problem(rng, case._replace(dtype=dtype, causal=causal))
    tiles = {name: x for name, x in tiles_for(problem).items() if name in names}
    try:
        wanted, sums, all_bytes = run_on_tiles(opened, problem, {})
        got, logs, rest = run_on_tiles(opened, problem, tiles)
    finally:
        opened.release()
    assert np.array_equal(wanted.view(np.uint8), got.view(np.uint8))
    assert np.array_equal(sums.view(np.uint32), logs.view(np.uint32))
    assert all_bytes - rest == sum(x.nbytes for x in tiles.values())
    assert rest == 0 or names != "qk" or not causal  # without a mask, splits need some


def simple(opened: OpenDevice, rng: np.random.Generator) -> tuple[Any, Buffer, Buffer]:
    """A call of two batches, two heads and two tiles, whose tiles are allocations of their own."""
    problem = Problem(rng, Case((40, 40), (70, 70), kv_heads=2, precision="mxfp8", dtype="float32"))
    args = new_struct("sm120_attention_args")
    args.precision = lib.SM120_MXFP8
    fill_features(opened, args, problem)
    write(opened, args.q, problem.q, "BSHD", 0)
    for name, x in ((name, x) for name, x in tiles_for(problem).items() if name != "q"):
        write(opened, getattr(args, name), x, "BHSD", 0, lib.SM120_U8)
    o = Buffer(opened, problem.q.shape, np.float32)
    tensor(args.o, o)
    return args, o, Buffer(opened, (1 << 18,), np.uint8)


WRONG_TILES = [
    (
        "k.row_stride",
        4351,
        "INVALID_ARGUMENT",
        "k.row_stride = 4351; tiles of 64 columns are dense, so it must be 4352",
    ),
    ("v.head_stride", 4224, "INVALID_ARGUMENT", "v.head_stride = 4224; tiles of 64 columns are dense, .* be 8448"),
    ("v.batch_stride", 0, "INVALID_ARGUMENT", "v.batch_stride = 0; tiles of 64 columns are dense"),
    ("v_head_dim", 72, "INVALID_ARGUMENT", "k.batch_stride = 17408; tiles of 128 columns are dense, .* 33792"),
    ("k.address", 0, "INVALID_ARGUMENT", "k = 0"),
    ("k.reserved", 1, "INVALID_ARGUMENT", "k.reserved = 1"),
    ("k_blocks.address", 4096, "INVALID_ARGUMENT", "k_blocks is given, but tiles of k hold their scales"),
    ("past_rows", 3, "UNSUPPORTED", "k in tiles with past_rows = 3"),
    ("q.dtype", lib.SM120_U8, "INVALID_ARGUMENT", "q.batch_stride = .*; tiles of 64 columns are dense, .* 17408"),
    ("precision", lib.SM120_MXFP8_BF16, "UNSUPPORTED", "v.dtype"),
    ("precision", lib.SM120_NVFP4, "UNSUPPORTED", "k.dtype"),
    ("precision", lib.SM120_BF16, "UNSUPPORTED", "k.dtype"),
    ("precision", lib.SM120_FP8, "UNSUPPORTED", "k.dtype"),
    ("kv_rows", 300, "INVALID_ARGUMENT", "k.batch_stride = 17408; tiles of 64 columns are dense, so it must be 43520"),
]


@pytest.mark.parametrize(
    ("member", "value", "status", "words"), WRONG_TILES, ids=[f"{x[0]}-{x[1]}" for x in WRONG_TILES]
)
def test_wrong_tiles(
    opened: OpenDevice, rng: np.random.Generator, member: str, value: int, status: str, words: str
) -> None:
    try:
        args, o, workspace = simple(opened, rng)
        check(lib.sm120_attention(opened.handle, args, workspace.address, 1 << 18))
        o.download()
        struct, field = member.split(".") if "." in member else ("", member)
        setattr(getattr(args, struct) if struct else args, field, value)
        got = lib.sm120_attention(opened.handle, args, workspace.address, 1 << 18)
        message = ffi.string(lib.sm120_last_error()).decode()
    finally:
        opened.release()
    assert got == getattr(lib, f"SM120_{status}"), message
    with pytest.raises(ValueError, match=words):
        raise ValueError(message)


@pytest.mark.parametrize("scale", [0.0, -0.1])
def test_tiles_of_q_have_no_sign(opened: OpenDevice, rng: np.random.Generator, scale: float) -> None:
    try:
        args, _, workspace = simple(opened, rng)
        args.q.dtype, args.scale = lib.SM120_U8, scale
        got = lib.sm120_attention(opened.handle, args, workspace.address, 1 << 18)
        message = ffi.string(lib.sm120_last_error()).decode()
    finally:
        opened.release()
    assert got == lib.SM120_UNSUPPORTED
    assert message == f"scale = {scale:g}; with q in tiles it must be above 0"


def test_addresses_of_tiles(opened: OpenDevice, rng: np.random.Generator) -> None:
    """They are multiples of 16, lie in one allocation, and no result overwrites them."""
    try:
        args, _, workspace = simple(opened, rng)
        args.v.address += 8
        assert lib.sm120_attention(opened.handle, args, workspace.address, 1 << 18) == lib.SM120_MISALIGNED
        assert ffi.string(lib.sm120_last_error()).decode().startswith("v = ")
        allocated = ffi.new("sm120_address *")
        check(lib.sm120_alloc(opened.handle, 2 * 2 * 2 * 4224 - 1, allocated))
        args.v.address, right = allocated[0], args.v.address - 8
        assert lib.sm120_attention(opened.handle, args, workspace.address, 1 << 18) == lib.SM120_INVALID_ARGUMENT
        assert "v: 33792 bytes" in ffi.string(lib.sm120_last_error()).decode()
        check(lib.sm120_free(opened.handle, allocated[0]))
        args.v.address = right
        args.lse = args.k.address
        assert lib.sm120_attention(opened.handle, args, workspace.address, 1 << 18) == lib.SM120_INVALID_ARGUMENT
        assert "k (0x" in ffi.string(lib.sm120_last_error()).decode()
    finally:
        opened.release()


# ---- Python ------------------------------------------------------------------------------


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(64, 64), (128, 40), (72, 256)])
def test_tiles_in_python(
    device: pysm120.Device, rng: np.random.Generator, where: str, layout: str, head_dim: int, v_head_dim: int
) -> None:
    """Tiles of the kind of x; the precision is mxfp8 without being named; lengths below all rows."""
    shapes = ((2, 40, 4, head_dim), (2, 70, 2, head_dim), (2, 70, 2, v_head_dim))
    given: list[Any] = [normal(rng, *shape) for shape in shapes]
    if layout == "BHSD":
        given = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in given]
    if where == "device":
        given = [device.array(x) for x in given]
    q, k, v = given
    columns = columns_of(head_dim, v_head_dim)
    k8 = pysm120.quantize_mxfp8_tiles(k, "k", layout=layout, columns=columns, device=device)
    v8 = pysm120.quantize_mxfp8_tiles(v, "v", layout=layout, columns=columns, device=device)
    options: dict[str, Any] = {"layout": layout, "causal": True, "return_lse": True, "device": device}
    wanted, sums = pysm120.attention(q, k, v, precision="mxfp8", **options)
    q8 = pysm120.quantize_mxfp8_tiles(q, "q", layout=layout, columns=columns, device=device)
    for rows, keys, values in ((q, k8, v8), (q, k8, v), (q, k, v8), (q8, k8, v8), (q8, k, v)):
        got, logs = pysm120.attention(rows, keys, values, precision="mxfp8", **options)
        if where == "device":
            got, logs = got.numpy(), logs.numpy()
        assert np.array_equal((wanted if where == "host" else wanted.numpy()).view(np.uint16), got.view(np.uint16))
        assert np.array_equal(sums if where == "host" else sums.numpy(), logs)
    assert pysm120.attention(q, k8, v8, layout=layout, device=device).dtype == ml_dtypes.bfloat16
    lengths: Any = np.array([64, 32], np.int32)
    lengths = device.array(lengths) if where == "device" else lengths
    cut, _ = pysm120.attention(q, k8, v8, kv_lengths=lengths, **options)
    full, _ = pysm120.attention(q, k, v, precision="mxfp8", kv_lengths=lengths, **options)
    cut, full = (x.numpy() if where == "device" else x for x in (cut, full))
    assert np.array_equal(cut.view(np.uint16), full.view(np.uint16))


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("names", ["k", "v", "kv"])
def test_packed_sequences(device: pysm120.Device, rng: np.random.Generator, where: str, names: str) -> None:
    starts = np.array([3, 40, 40, 60, 130], np.int32)
    given: list[Any] = [normal(rng, 140, heads, 64) for heads in (4, 2, 2)]
    ends: Any = starts
    if where == "device":
        given, ends = [device.array(x) for x in given], device.array(starts)
    options: dict[str, Any] = {"precision": "mxfp8", "causal": True, "device": device}
    wanted = pysm120.attention_varlen(
        given[0], given[1], given[2], ends, ends, max_seqlen_q=70, max_seqlen_k=70, **options
    )
    arrays = dict(zip("qkv", given, strict=True))
    for name in names:
        arrays[name] = pysm120.quantize_mxfp8_tiles(arrays[name], name, cu_seqlens=ends, max_seqlen=70, device=device)
    got = pysm120.attention_varlen(arrays["q"], arrays["k"], arrays["v"], ends, ends, **options)
    wanted, got = (x.numpy() if where == "device" else x for x in (wanted, got))
    assert np.array_equal(wanted.view(np.uint16), got.view(np.uint16))


@pytest.mark.virtual
def test_one_launch_less_for_each_operand(rng: np.random.Generator) -> None:
    """With tiles of k and v the call launches the quantiser of q and attention, nothing else."""
    with pysm120.Device("virtual") as device:
        q, k, v = (device.array(normal(rng, 1, rows, 2, 64)) for rows in (40, 70, 70))
        k8, v8 = pysm120.quantize_mxfp8_tiles(k, "k"), pysm120.quantize_mxfp8_tiles(v, "v")
        pysm120.attention(q, k8, v8)
        with device.profile() as profile:
            pysm120.attention(q, k8, v8)
        names = {x.kernel for x in profile.statements}
        assert names == {"quantize_mxfp8_bf16_q_d64", "attention_mxfp8_128x64_d64"}
        q8 = pysm120.quantize_mxfp8_tiles(q, "q")
        with device.profile() as profile:
            pysm120.attention(q8, k8, v8)
        assert {x.kernel for x in profile.statements} == {"attention_mxfp8_128x64_d64"}


def test_tiles_that_changed(device: pysm120.Device, rng: np.random.Generator) -> None:
    q, k, v = (device.array(normal(rng, 1, rows, 2, 64)) for rows in (40, 70, 70))
    k8, v8 = pysm120.quantize_mxfp8_tiles(k, "k"), pysm120.quantize_mxfp8_tiles(v, "v")
    first = pysm120.attention(q, k8, v8)
    k8.data.copy_from(pysm120.quantize_mxfp8_tiles(device.array(normal(rng, 1, 70, 2, 64)), "k").data.numpy())
    second = pysm120.attention(q, k8, v8)
    assert not np.array_equal(first.numpy().view(np.uint16), second.numpy().view(np.uint16))


X = np.ones((1, 70, 2, 64), np.float32)


def made(operand: str = "k", columns: int | None = None, rows: int = 70, head_dim: int = 64) -> Any:
    width = columns or columns_of(head_dim)
    data = np.zeros((1, 2, -(-rows // ROWS), ROWS * width * 33 // 32), np.uint8)
    if operand == "k" and width == 64:
        data = np.zeros((1, 2, -(-rows // ROWS), 4352), np.uint8)
    return pysm120.MXFP8Tiles(data, operand, rows, head_dim, width)


def of_q(head_dim: int = 64) -> Any:
    return pysm120.MXFP8Tiles(np.zeros((1, 2, 128, 68), np.uint8), "q", 3, head_dim, 64)


REFUSED: dict[str, tuple[type[Exception], str, Any]] = {
    "k as q": (ValueError, "q is tiles of k; attention takes such tiles as k alone", lambda: {"q": made()}),
    "precision of q": (
        ValueError,
        "q is tiles for precision 'mxfp8', but precision is 'mxfp8_f16': quantise it with precision='mxfp8_f16'",
        lambda: {"q": of_q(), "k": X.astype("f2"), "v": X.astype("f2"), "precision": "mxfp8_f16"},
    ),
    "scale of q": (
        pysm120.UnsupportedError,
        "scale = -1; with q in tiles it must be above 0",
        lambda: {"q": of_q(), "scale": -1.0},
    ),
    "head size of q": (ValueError, "k has shape .*, but q has head_dim = 32", lambda: {"q": of_q(head_dim=32)}),
    "v as k": (ValueError, "k is tiles of v; attention takes such tiles as v alone", lambda: {"k": made("v")}),
    "columns": (
        ValueError,
        "k is tiles of 128 columns, but head sizes 64 and 64 need 64: quantise it with columns=64",
        lambda: {"k": made(columns=128)},
    ),
    "columns of v": (
        ValueError,
        "v is tiles of 64 columns, but head sizes 72 and 64 need 128: quantise it with columns=128",
        lambda: {"q": np.ones((1, 3, 2, 72), np.float32), "k": np.ones((1, 70, 2, 72), np.float32), "v": made("v")},
    ),
    "head size": (ValueError, "k is tiles of head size 32, but q has head size 64", lambda: {"k": made(head_dim=32)}),
    "rows": (ValueError, "v has shape .* but k has kv_rows = 60", lambda: {"k": made(rows=60)}),
    "rows of both": (
        ValueError,
        "k is tiles of 60 rows, but v is tiles of 70",
        lambda: {"k": made(rows=60), "v": made("v")},
    ),
    "past": (ValueError, "k is tiles, which a past does not support", lambda: {"k": made(), "past_k": X, "past_v": X}),
    "precision": (
        ValueError,
        "k is tiles, as precisions mxfp8 and mxfp8_bf16 and mxfp8_f16 take it, but precision is 'bf16'",
        lambda: {"k": made(), "precision": "bf16"},
    ),
    "precision of v": (
        ValueError,
        "v is tiles, as precisions mxfp8 and nvfp4_mxfp8 take it, but precision is 'mxfp8_bf16'",
        lambda: {"v": made("v"), "precision": "mxfp8_bf16"},
    ),
    "lengths": (
        ValueError,
        "kv_lengths is .*, but each length must be from 0 to 70",
        lambda: {"k": made(), "kv_lengths": np.array([71], np.int32)},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_calls(device: pysm120.Device, case: str) -> None:
    kind, message, options = REFUSED[case]
    with pytest.raises(kind, match=message):
        pysm120.attention(**{"q": np.ones((1, 3, 2, 64), np.float32), "k": X, "v": X, "device": device, **options()})


def test_wrong_packed_calls(device: pysm120.Device) -> None:
    x, ends = np.ones((70, 2, 64), np.float32), np.array([0, 70], np.int32)
    with pytest.raises(
        ValueError, match=r"cu_seqlens_k is \[ 0 70\], but it must ascend from 0 by at most 60, the rows"
    ):
        pysm120.attention_varlen(x, made(rows=60), x, ends, ends, device=device)
    with pytest.raises(ValueError, match="max_seqlen_k is 80, but the tiles of k have 70 rows"):
        pysm120.attention_varlen(x, made(), x, ends, ends, max_seqlen_k=80, device=device)
    with pytest.raises(ValueError, match="q is tiles, which packed sequences do not support"):
        pysm120.attention_varlen(of_q(), x, x, ends, ends, device=device)


REFUSED_TILES: dict[str, tuple[type[Exception], str, Any, dict[str, Any]]] = {
    "operand": (ValueError, "operand is 'o', not one of 'q', 'k', 'v'", X, {"operand": "o"}),
    "precision of k": (ValueError, "precision is 'mxfp8', but only tiles of q", X, {"precision": "mxfp8"}),
    "precision of q": (
        ValueError,
        "precision is 'nvfp4', not one of 'mxfp8', ",
        X,
        {"operand": "q", "precision": "nvfp4"},
    ),
    "packed q": (
        ValueError,
        "packed sequences of q have no tiles",
        X[0],
        {"operand": "q", "cu_seqlens": np.array([0, 70], np.int32)},
    ),
    "no array": (TypeError, "x has shape", None, {}),
    "three dimensions": (ValueError, r"x has shape \(70, 2, 64\), not of four dimensions", X[0], {}),
    "head size": (ValueError, "x has head size 264; tiles hold 1 to 256", np.ones((1, 1, 1, 264), np.float32), {}),
    "step": (ValueError, "whose last dimension is not a multiple of 8", np.ones((1, 1, 1, 12), np.float32), {}),
    "columns": (ValueError, "columns is 96; it must be 64, 128 or 256", X, {"columns": 96}),
    "columns are few": (ValueError, "at least the head size 72", np.ones((1, 1, 1, 72), np.float32), {"columns": 64}),
    "max_seqlen alone": (ValueError, "max_seqlen is 3, but cu_seqlens is None", X, {"max_seqlen": 3}),
    "packed x": (ValueError, r"not \(total_k, Hkv, D\)", X, {"cu_seqlens": np.array([0, 70], np.int32)}),
    "starts": (ValueError, "must ascend from 0 to at most 70", X[0], {"cu_seqlens": np.array([0, 71], np.int32)}),
    "longest": (
        ValueError,
        "max_seqlen is 60, but cu_seqlens has a sequence of 70 rows",
        X[0],
        {"cu_seqlens": np.array([0, 70], np.int32), "max_seqlen": 60},
    ),
    "no sequence": (ValueError, "cu_seqlens has shape", X[0], {"cu_seqlens": np.zeros(1, np.int32)}),
    "dtype": (TypeError, "x has dtype float64", X.astype(np.float64), {}),
}


@pytest.mark.parametrize("case", REFUSED_TILES)
def test_wrong_calls_of_the_quantiser(device: pysm120.Device, case: str) -> None:
    kind, message, x, options = REFUSED_TILES[case]
    with pytest.raises(kind, match=message):
        pysm120.quantize_mxfp8_tiles(x, **{"operand": "k", "device": device, **options})


@pytest.mark.parametrize(
    ("data", "rows", "message"),
    [
        (np.zeros((1, 2, 2, 4224), np.uint8), 70, r"data has shape \(1, 2, 2, 4224\), but 70 rows of k .* 2, 4352\)"),
        (np.zeros((1, 2, 2, 4352), np.uint8), 64, "but 64 rows of k in tiles of 64 columns"),
        (np.zeros((1, 2, 0, 4352), np.uint8), 0, "but 0 rows"),
    ],
)
def test_wrong_tiles_in_python(data: Array, rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pysm120.MXFP8Tiles(data, "k", rows, 64, 64)
