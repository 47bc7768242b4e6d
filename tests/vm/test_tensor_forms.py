"""Which tensor instructions load, which are refused and why, and what each field of tensormap.replace changes.

Where ptxas is installed, it has to agree on what is PTX for sm_120f.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tma_model as model
from test_tensor_maps import SMEM, launch, load_text

import pysm120

pytestmark = pytest.mark.virtual

HEAD = """.version 9.0
.target {target}
.address_size 64
.global .align 128 .b8 in_global[128];
.const .align 128 .b8 in_const[128];
.visible .entry k(.param .align 64 .b8 in_param[128])
{{
.shared .align 128 .b8 smem[1024]; .shared .b64 bar;
.reg .b32 s, x, c<8>; .reg .b64 d, m, policy; .reg .b16 h; .reg .f32 f; .reg .s32 i;
#line 1 "form.ptx"
{statement}
ret;
}}
"""
COPY = "cp.async.bulk.tensor"
TX = "mbarrier::complete_tx::bytes"
REDUCE = "cp.reduce.async.bulk.tensor"
PREFETCH = "cp.async.bulk.prefetch.tensor"
REPLACE = "tensormap.replace.tile"
FENCED = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release"
FENCE = "fence.proxy.tensormap::generic"

TAKEN = [
    f"{COPY}.2d.shared::cta.global.{TX} [s], [m, {{c0, c1}}], [x];",
    f"{COPY}.2d.shared::cta.global.tile.{TX} [s], [m, {{c0, c1}}], [x];",
    f"{COPY}.2d.shared::cta.global.{TX}.tile [s], [m, {{c0, c1}}], [x];",
    f"{COPY}.2d.tile.shared::cluster.global.{TX} [smem + 128], [m, {{1, -2}}], [bar + 8];",
    f"{COPY}.2d.shared::cta.global.{TX}.L2::cache_hint [s], [m, {{c0, c1}}], [x], policy;",
    f"{COPY}.2d.shared::cta.global.{TX} [smem], [in_global, {{c0, f}}], [bar];",
    f"{COPY}.1d.shared::cta.global.{TX} [d], [x, {{c0}}], [d];",
    f"{COPY}.5d.shared::cta.global.{TX} [s], [m, {{c0, c1, c2, c3, c4}}], [x];",
    f"{COPY}.2d.shared::cta.global.tile::gather4.{TX} [s], [m, {{c0, c1, c2, c3, c4}}], [x];",
    f"{COPY}.2d.tile::gather4.shared::cta.global.{TX} [s], [m, {{c0, c1, c2, c3, c4}}], [x];",
    f"{COPY}.2d.global.shared::cta.bulk_group [m, {{c0, c1}}], [s];",
    f"{COPY}.2d.tile.global.shared::cta.bulk_group [m, {{c0, c1}}], [s];",
    f"{COPY}.2d.global.shared::cta.bulk_group.L2::cache_hint [m, {{c0, c1}}], [s], policy;",
    *(f"{REDUCE}.2d.global.shared::cta.{op}.bulk_group [m, {{c0, c1}}], [s];"
      for op in ("add", "min", "max", "inc", "dec", "and", "or", "xor")),
    f"{REDUCE}.2d.tile.global.shared::cta.bulk_group.add [m, {{c0, c1}}], [s];",
    f"{REDUCE}.2d.global.shared::cta.add.tile.bulk_group.L2::cache_hint [m, {{c0, c1}}], [s], policy;",
    f"{PREFETCH}.2d.L2.global [m, {{c0, c1}}];",
    f"{COPY}.3d.shared::cta.global.{TX} [s], [m, {{f, c0, i}}], [x];",  # .b32 beside each
    f"{PREFETCH}.3d.L2.global [m, {{f, f, c0}}];",
    f"{PREFETCH}.2d.L2.global.tile.L2::cache_hint [m, {{c0, c1}}], policy;",
    "prefetch.tensormap [m];",
    "prefetch.param.tensormap [in_param];",
    "prefetch.const.tensormap [in_const];",
    "prefetch.tensormap [in_global];",
    f"{REPLACE}.global_address.shared::cta.b1024.b64 [smem + 128], 0;",
    f"{REPLACE}.global_address.global.b1024.b64 [d], m;",
    f"{REPLACE}.global_address.b1024.b64 [d], m;",
    f"{REPLACE}.rank.shared::cta.b1024.b32 [s], x;",
    f"{REPLACE}.box_dim.shared::cta.b1024.b32 [s], 4, x;",
    f"{REPLACE}.global_dim.shared::cta.b1024.b32 [s], 4, x;",
    f"{REPLACE}.global_stride.shared::cta.b1024.b64 [s], 3, d;",
    f"{REPLACE}.element_stride.shared::cta.b1024.b32 [s], 4, x;",
    f"{REPLACE}.elemtype.shared::cta.b1024.b32 [s], 15;",
    f"{REPLACE}.interleave_layout.shared::cta.b1024.b32 [s], 2;",
    f"{REPLACE}.swizzle_mode.shared::cta.b1024.b32 [s], 3;",
    f"{REPLACE}.swizzle_atomicity.shared::cta.b1024.b32 [s], 3;",
    f"{REPLACE}.fill_mode.shared::cta.b1024.b32 [s], 1;",
    f"{FENCED}.gpu.sync.aligned [d], [s], 128;",
    f"{FENCED}.sys.sync.aligned [in_global], [smem], 128;",
    f"{FENCE}.acquire.gpu [d + 128], 128;",
    f"{FENCE}.release.sys;",
]  # fmt: skip

UNKNOWN = "unknown instruction"
REFUSED = [
    (f"{COPY}.2d.shared::cta.global.{TX} [s], [m, {{c0, c1}}], [x], policy;", "takes 3 operands, not 4"),
    (f"{COPY}.2d.shared.global.{TX} [s], [m, {{c0, c1}}], [x];", "'.shared' is not expected here"),
    (
        f"{COPY}.2d.shared::cta.global.{TX} [smem], [in_const, {{c0, c1}}], [bar];",
        "'in_const' is not a generic address",
    ),
    (
        f"{COPY}.2d.shared::cta.global.{TX} [smem], [in_param, {{c0, c1}}], [bar];",
        "'in_param' is not a generic address",
    ),
    (f"{COPY}.2d.shared::cta.global.{TX} [s], [m, {{c0}}], [x];", "expects 2 coordinates, not 1"),
    (f"{COPY}.1d.shared::cta.global.{TX} [s], [m, c0], [x];", "expected coordinates in braces"),
    (f"{COPY}.1d.shared::cta.global.{TX} [s], [m], [x];", "expects [tensor map, {coordinates}] here"),
    (f"{COPY}.2d.shared::cta.global.{TX} [s], [m, {{c0, d}}], [x];", "'d' is .b64"),
    (f"{COPY}.2d.shared::cta.global.{TX} [s], [m, {{c0, h}}], [x];", "'h' is .b16"),
    (f"{COPY}.3d.shared::cta.global.{TX} [s], [m, {{c0, f, i}}], [x];", "neighbouring coordinates of one type"),
    (f"{COPY}.2d.shared::cta.global.{TX} [s], [m, {{f, 3}}], [x];", "neighbouring coordinates of one type"),
    (f"{COPY}.2d.global.shared::cta.bulk_group [m, {{f, f}}], [s];", "coordinates that are not all .f32"),
    (f"{COPY}.2d.2d.shared::cta.global.{TX} [s], [m, {{c0, c1}}], [x];", "'.2d' is not expected here"),
    (
        f"{COPY}.1d.shared::cta.global.tile::gather4.{TX} [s], [m, {{c0, c1, c2, c3, c4}}], [x];",
        "supports .tile::gather4",
    ),
    (
        f"{COPY}.2d.shared::cluster.global.tile::gather4.{TX} [s], [m, {{c0, c1, c2, c3, c4}}], [x];",
        ".tile::gather4 only for",
    ),
    (
        f"{COPY}.3d.shared::cta.global.im2col::w::128.{TX} [s], [m, {{c0, c1, c2}}], [x], {{h, h}};",
        "its family support",
    ),
    (f"{COPY}.2d.shared::cta.global.{TX}.cta_group::1 [s], [m, {{c0, c1}}], [x];", "its family support"),
    (f"{COPY}.2d.global.shared::cluster.bulk_group [m, {{c0, c1}}], [s];", UNKNOWN),
    (f"{COPY}.2d.global.shared::cta.tile::scatter4.bulk_group [m, {{c0, c1, c2, c3, c4}}], [s];", "its family support"),
    (f"{REDUCE}.2d.global.shared::cta.exch.bulk_group [m, {{c0, c1}}], [s];", "'.exch' is not expected here"),
    (f"{REDUCE}.2d.global.shared::cta.bulk_group [m, {{c0, c1}}], [s];", UNKNOWN),
    (f"{COPY}.2d.global.shared::cta.add.bulk_group [m, {{c0, c1}}], [s];", UNKNOWN),
    (f"{PREFETCH}.2d.L2.global.tile::gather4 [m, {{c0, c1, c2, c3, c4}}];", "supports .tile::gather4 only for"),
    ("prefetch.global.tensormap [m];", UNKNOWN),
    ("prefetch.tensormap [in_param];", "is not in the state space"),
    (f"{REPLACE}.global_address.shared.b1024.b64 [s], m;", UNKNOWN),
    (f"{REPLACE}.global_address.shared::cta.b1024.b32 [s], x;", UNKNOWN),
    (f"{REPLACE}.box_dim.shared::cta.b1024.b32 [s], 5, x;", "5 is out of range; expected 0 to 4"),
    (f"{REPLACE}.box_dim.shared::cta.b1024.b32 [s], x, x;", "expects a constant here"),
    (f"{REPLACE}.elemtype.shared::cta.b1024.b32 [s], x;", "expects a constant here"),
    (f"{REPLACE}.elemtype.shared::cta.b1024.b32 [s], 16;", "16 is out of range; expected 0 to 15"),
    (f"{REPLACE}.swizzle_mode.shared::cta.b1024.b32 [s], 4;", "4 is out of range; expected 0 to 3"),
    (f"{FENCED}.gpu.sync.aligned [d], [s], 64;", "64 is out of range; expected 128 to 128"),
    (f"{FENCED}.sync.aligned [d], [s], 128;", UNKNOWN),
    (f"{FENCE}.acquire.gpu [d], 64;", "64 is out of range"),
    (f"{FENCE}.release.gpu [d], 128;", "takes 0 operands, not 2"),
    ("ld.b32 x, [m, {c0}];", "does not take coordinates"),
]
# PTX that ptxas takes and that the virtual device does not do.
UNSUPPORTED = [
    (f"{FENCE}.acquire.cta [in_param], 128;", "is not in the state space"),
    (f"{COPY}.3d.shared::cta.global.im2col.{TX} [s], [m, {{c0, c1, c2}}], [x], {{h}};", "im2col is not supported"),
    (f"{COPY}.3d.shared::cta.global.im2col::w.{TX} [s], [m, {{c0, c1, c2}}], [x], {{h, h}};", "im2col is not"),
    (f"{COPY}.3d.global.shared::cta.im2col_no_offs.bulk_group [m, {{c0, c1, c2}}], [s];", "im2col is not supported"),
    (f"{PREFETCH}.3d.L2.global.im2col [m, {{c0, c1, c2}}], {{h}};", "im2col is not supported"),
    (f"{REPLACE}.global_stride.shared::cta.b1024.b64 [s], 4, d;", "4 is out of range; expected 0 to 3"),
]
CAST = f"{COPY}.2d.shared::cluster.global.{TX}.multicast::cluster [s], [m, {{c0, c1}}], [x], h;"  # ptxas warns


def written(statement: str, target: str = "sm_120f") -> str:
    return HEAD.format(statement=statement, target=target)


@pytest.mark.parametrize("statement", [*TAKEN, CAST])
def test_taken(device: pysm120.Device, statement: str) -> None:
    device.load(written(statement))


@pytest.mark.parametrize(
    ("statement", "reason"),
    [*REFUSED, *UNSUPPORTED, (CAST.replace("cluster.global", "cta.global"), UNKNOWN)],
)
def test_refused(device: pysm120.Device, statement: str, reason: str) -> None:
    with pytest.raises(pysm120.InvalidProgramError) as caught:
        device.load(written(statement))
    assert reason in str(caught.value)
    assert "form.ptx:1:" in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "target", "reason"),
    [
        (TAKEN[0], "sm_89", "a tensor copy needs .target sm_90"),
        (TAKEN[8], "sm_90", "a tensor copy needs .target sm_100"),
        (f"{REPLACE}.rank.shared::cta.b1024.b32 [s], x;", "sm_120", "tensormap.replace needs .target sm_90a or"),
    ],
)
def test_targets(device: pysm120.Device, statement: str, target: str, reason: str) -> None:
    with pytest.raises(pysm120.InvalidProgramError, match=reason):
        device.load(written(statement, target))


if shutil.which("ptxas"):

    @pytest.mark.parametrize(
        ("statement", "is_ptx"),
        [(s, True) for s in TAKEN] + [(s, True) for s, _ in UNSUPPORTED] + [(s, False) for s, _ in REFUSED],
    )
    def test_ptxas_agrees(tmp_path: Path, statement: str, *, is_ptx: bool) -> None:
        path = tmp_path / "form.ptx"
        path.write_text(written(statement))
        command = ["ptxas", "-arch", "sm_120f", str(path), "-o", str(tmp_path / "form.cubin")]
        done = subprocess.run(command, capture_output=True, check=False)
        assert (done.returncode == 0) == is_ptx, done.stderr.decode()


MAKE = """
.visible .entry make(.param .u64 param_to)
{{
    .reg .b32 i, s;
    .reg .b64 to;
    .reg .pred first;
    .shared .align 128 .b8 staged[128];
    ld.param.u64 to, [param_to];
    mov.u32 i, %tid.x;
    mov.u32 s, staged;
    mad.lo.u32 s, i, 4, s;
    st.shared.b32 [s], 0;
    setp.eq.u32 first, i, 0;
    bar.warp.sync 0xffffffff;
{fields}
    bar.warp.sync 0xffffffff;
    {FENCED}.gpu.sync.aligned [to], [staged], 128;
    ret;
}}
"""
ELEMTYPES = "UINT8 UINT16 UINT32 INT32 UINT64 INT64 FLOAT16 FLOAT32 FLOAT32_FTZ FLOAT64 BFLOAT16 TFLOAT32 TFLOAT32_FTZ"
MODES = {"none": (0, 0), "32B": (1, 0), "64B": (2, 0), "128B": (3, 0), "128B_ATOM_32B": (3, 1)}
MODES |= {"128B_ATOM_32B_FLIP_8B": (3, 2), "128B_ATOM_64B": (3, 3)}


def made_by_a_kernel(
    device: pysm120.Device, x: pysm120.Array, tile: model.Tile, data_type: str, shape: tuple[int, ...]
) -> bytes:
    """Make a tensor map on the device, field by field, and return its bytes."""
    rank, (mode, atom) = len(shape), MODES[tile.swizzle]
    fields: list[tuple[str, Any]] = [("global_address", x.address), ("rank", rank - 1)]
    for k in range(rank):
        fields += [(f"box_dim {k}", tile.box[-1 - k]), (f"global_dim {k}", shape[-1 - k])]
        fields += [(f"element_stride {k}", tile.steps[-1 - k])]
        fields += [(f"global_stride {k - 1}", x.strides[-1 - k] * x.itemsize)] if k else []
    fields += [("elemtype", ELEMTYPES.split().index(data_type)), ("interleave_layout", 0)]
    fields += [("swizzle_mode", mode), ("swizzle_atomicity", atom), ("fill_mode", int(tile.fill == "nan"))]
    lines = []
    for name, value in fields:
        field, _, ordinal = name.partition(" ")
        wide = "b64" if field in {"global_address", "global_stride"} else "b32"
        operands = f"{ordinal}, {value}" if ordinal else str(value)
        lines.append(f"@first {REPLACE}.{field}.shared::cta.b1024.{wide} [staged], {operands};")
    head = ".version 9.0\n.target sm_120f\n.address_size 64\n"
    to = device.zeros(128, np.uint8)
    device.load(head + MAKE.format(fields="\n".join(lines), FENCED=FENCED))["make"](1, 32, to)
    return to.numpy().tobytes()


@pytest.mark.parametrize("data_type", ELEMTYPES.split())
@pytest.mark.parametrize("swizzle", MODES)
def test_fields(rng: np.random.Generator, data_type: str, swizzle: str) -> None:
    """A map that a kernel makes does what the driver's does."""
    dtype = np.dtype(model.DTYPES[data_type])
    width = (model.SPANS[swizzle] or 64) // dtype.itemsize
    fill = "nan" if "FLOAT" in data_type else "zero"
    tile = model.Tile((3, 5, width), (1, 2, 1), swizzle, fill)
    tensor = model.random_bits(rng, (4, 7, 256 // dtype.itemsize), dtype)
    nbytes = 9 * width * dtype.itemsize
    at = (2, -1, 128 // dtype.itemsize)
    with pysm120.Device("virtual?checks=full") as device:
        x = device.array(tensor)
        image = np.zeros(SMEM, np.uint8)
        made = made_by_a_kernel(device, x, tile, data_type, tensor.shape)
        got = launch(device, load_text(3), made, at, image, nbytes)
        options = {"element_strides": tile.steps, "swizzle": swizzle, "oob_fill": fill, "data_type": data_type}
        given = device.tensor_map(x, tile.box, **options)  # type: ignore[arg-type]
        assert np.array_equal(got, launch(device, load_text(3), given, at, image, nbytes))
    want = image.copy()
    want[model.places(swizzle, 0, nbytes, width * dtype.itemsize)] = model.load(tensor, tile, at, data_type)
    assert np.array_equal(got, want)
