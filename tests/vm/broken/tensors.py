"""Tensor copies and tensor maps: fences, waits, coordinates, and maps that are none.

The kernel of planted.py has a second parameter, a tensor map of the first 2048 bytes at x, a matrix of 16 x 32 words
whose boxes have 8 x 32 of them, and its generic address in m; y points to 128 bytes of its CTA behind the matrix.
"""

from broken.planted import FRAME, Planted

LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
REDUCE = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu"
RELEASE = "fence.proxy.tensormap::generic.release.gpu;"
COPY_MAP = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"

PARAMETERS = ".param .u64 param_x, .param .align 64 .b8 param_map[128]"
SETUP = """
    .reg .b64 m;
    mov.b64 m, param_map;
    cvta.param.u64 m, m;
    mad.wide.u32 y, n, 128, x;
    add.u64 y, y, 2048;
#line 1"""

# The bytes of the map go to global memory, by warp 0; or there by shared memory.
TO_GLOBAL = """
    mad.wide.u32 w, lane, 4, m;
    ld.b32 a, [w];
    mad.wide.u32 w, lane, 4, y;
@q  st.global.b32 [w], a;"""
STAGED = f"""
    mad.wide.u32 w, lane, 4, m;
    ld.b32 a, [w];
    mov.u32 at, smem;
    mad.lo.u32 at, lane, 4, at;
@q  st.shared.b32 [at], a;
    bar.sync 1;
@p  bra over;
    {COPY_MAP} [y], [smem], 128;
over:
    fence.proxy.async.shared::cta;"""


def text(body: str) -> str:
    """Return the PTX of a body."""
    frame = FRAME.replace(".param .u64 param_x", PARAMETERS).replace("\n#line 1", SETUP)
    return frame.format(body=body.strip("\n"))


def loading(copy: str, wait: str = "wait:\n    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;\n@!s bra wait;") -> str:
    """Write a load by thread 0 and a wait of all."""
    return f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 1024;
@r  {copy}
{wait}"""


def storing(copy: str, fence: str = "    fence.proxy.async.shared::cta;\n", wait: str = "0") -> str:
    """Write a store or a reduction by thread 0 of what warp 0 has written."""
    return f"""
@q  st.shared.v4.b32 [at], {{a, b, c, d}};
@q  st.shared.v4.b32 [at + 512], {{a, b, c, d}};
{fence}    bar.sync 0;
@!r bra over;
    {copy}
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group {wait};
over:"""


def fenced(before: str, fences: str, after: str = "") -> str:
    """Write a load through a map in global memory, behind changes of the map and behind fences."""
    return f"{before}\n{fences}\n{loading(f'{LOAD} [smem], [y, {{0, 0}}], [bar];')}\n{after}"


RIGHT_LOAD = loading(f"{LOAD} [smem], [m, {{0, 0}}], [bar];")
RIGHT_STORE = storing(f"{STORE} [m, {{0, 0}}], [smem];")
GOOD_FENCES = f"    {RELEASE}\n    bar.sync 1;\n    {ACQUIRE} [y], 128;"
TENSORS = [
    Planted(
        "a tensor store of what was written without a proxy fence",
        storing(f"{STORE} [m, {{0, 0}}], [smem];", fence=""),
        ("bulk store of 1024 bytes at shared address 0x400", "broken.ptx:1", "expected fence.proxy.async"),
        RIGHT_STORE,
    ),
    Planted(
        "a tensor reduction behind a fence for global memory only",
        storing(f"{REDUCE} [m, {{0, 0}}], [smem];", fence="    fence.proxy.async.global;\n"),
        ("bulk store of 1024 bytes", "which warp 0 wrote at broken.ptx:1", "expected fence.proxy.async"),
        storing(f"{REDUCE} [m, {{0, 0}}], [smem];"),
    ),
    Planted(
        "a tensor load over what was written without a proxy fence",
        "@q  st.shared.b32 [smem + 1020], 7;" + RIGHT_LOAD,
        ("bulk copy of 1024 bytes at shared address", "which warp 0 wrote at broken.ptx:1", "fence.proxy.async"),
        "@q  st.shared.b32 [smem + 1020], 7;\n    fence.proxy.async.shared::cta;" + RIGHT_LOAD,
    ),
    Planted(
        "the tile of a tensor load is read before its phase",
        loading(f"{LOAD} [smem], [m, {{0, 0}}], [bar];", wait="@q  ld.shared.b32 a, [at];"),
        ("read of 4 bytes", "the bulk copy at broken.ptx:4 fills", "expected a wait for phase 0"),
        RIGHT_LOAD + "\n    ld.shared.b32 a, [at];",
    ),
    Planted(
        "nobody waits for a tensor load",
        loading(f"{LOAD} [smem], [m, {{0, 0}}], [bar];", wait=""),
        ("no thread has waited for the bulk copy issued at broken.ptx:4",),
        RIGHT_LOAD,
    ),
    Planted(
        "the source of a tensor store is overwritten while it may be read",
        storing(f"{STORE} [m, {{0, 0}}], [smem];", wait="1").replace(
            "over:", "    st.shared.b32 [smem + 16], b;\nover:"
        ),
        ("write of 4 bytes at shared address 0x410", "broken.ptx:6 may still read", "wait_group.read"),
        RIGHT_STORE.replace("over:", "    st.shared.b32 [smem + 16], b;\nover:"),
    ),
    Planted(
        "a tensor load over the source of a tensor store",
        storing(f"{STORE} [m, {{0, 0}}], [smem];", wait="1") + RIGHT_LOAD,
        ("bulk copy of 1024 bytes at shared address 0x400", "may still read", "wait_group.read"),
        storing(f"{STORE} [m, {{0, 0}}], [smem];", wait="0") + RIGHT_LOAD,
    ),
    Planted(
        "a thread exits while its tensor store may still read",
        storing(f"{STORE} [m, {{0, 0}}], [smem];", wait="1"),
        ("exit while the bulk store of 1024 bytes", "broken.ptx:6 may still read them"),
        storing(f"{STORE} [m, {{0, 0}}], [smem];", wait=".read 0").replace("wait_group .read", "wait_group.read"),
    ),
    Planted(
        "what a tensor store has written is read before it is waited for",
        RIGHT_STORE.replace("wait_group 0;", "wait_group.read 0;\n    ld.global.b32 a, [x + 1000];"),
        ("read of 4 bytes at global address", "broken.ptx:6", "without .read"),
        # the last row of the box is the eighth; the ninth may be read
        RIGHT_STORE.replace("wait_group 0;", "wait_group.read 0;\n    ld.global.b32 a, [x + 1024];"),
    ),
    Planted(
        "what a tensor reduction has written is overwritten before it is waited for",
        storing(f"{REDUCE} [m, {{8, 4}}], [smem];").replace(
            "wait_group 0;", "wait_group.read 0;\n    st.global.b32 [x + 544], a;"
        ),
        ("write of 4 bytes at global address", "broken.ptx:6", "without .read"),
        # columns 0 to 7 of its rows are not in the box
        storing(f"{REDUCE} [m, {{8, 4}}], [smem];").replace(
            "wait_group 0;", "wait_group.read 0;\n    st.global.b32 [x + 540], a;"
        ),
    ),
    Planted(
        "a map in global memory without an acquire fence",
        fenced(TO_GLOBAL, f"    {RELEASE}\n    bar.sync 1;"),
        ("the tensor map at global address", "expected fence.proxy.tensormap::generic.acquire [map], 128 first"),
        fenced(TO_GLOBAL, GOOD_FENCES),
    ),
    Planted(
        "a map in global memory that another warp has acquired, without a barrier",
        fenced(TO_GLOBAL, f"    {RELEASE}\n    bar.sync 1;").replace(
            "    bar.sync 0;", f"    bar.sync 0;\n@p  {ACQUIRE} [y], 128;"
        ),
        ("the tensor map at global address", "in this thread or in a thread ordered before it"),
        fenced(TO_GLOBAL, f"    {RELEASE}\n    bar.sync 1;").replace(
            "    bar.sync 0;", f"@p  {ACQUIRE} [y], 128;\n    bar.sync 0;"
        ),
    ),
    Planted(
        "a map is changed in global memory and not released",
        fenced(
            TO_GLOBAL,
            f"    bar.sync 1;\n@r  tensormap.replace.tile.fill_mode.global.b1024.b32 [y], 0;\n    {ACQUIRE} [y], 128;",
        ),
        ("which warp 0 changed at broken.ptx:6", "generic.release after the change and fence", "before this copy"),
        fenced(
            TO_GLOBAL,
            f"    bar.sync 1;\n@r  tensormap.replace.tile.fill_mode.global.b1024.b32 [y], 0;\n{GOOD_FENCES}",
        ),
    ),
    Planted(
        "a map is copied to global memory and not acquired",
        fenced(STAGED, ""),
        ("the tensor map at global address", "which warp 0 changed at broken.ptx:8", "generic.acquire [map], 128"),
        fenced(STAGED, f"@q  {ACQUIRE} [y], 128;"),
    ),
    Planted(
        "a map that was never encoded",
        fenced("", GOOD_FENCES),
        ("the tensor map at global address", "cannot be used: it was never encoded"),
        fenced(TO_GLOBAL, GOOD_FENCES),
    ),
    Planted(
        "a map that was overwritten in part",
        fenced(TO_GLOBAL + "\n    bar.sync 1;\n@r  st.global.b32 [y + 8], 1;", GOOD_FENCES),
        ("the tensor map at global address", "cannot be used: it was partly overwritten"),
        fenced(TO_GLOBAL + "\n    bar.sync 1;\n@r  ld.global.b32 a, [y + 8];", GOOD_FENCES),
    ),
    Planted(
        "a map in shared memory",
        "    cvt.u64.u32 w, at;\n    mov.u64 w, smem;\n    cvta.shared.u64 w, w;"
        + RIGHT_LOAD.replace("[m, {", "[w, {").replace("[smem]", "[smem + 128]"),
        ("the tensor map is at shared address 0x400", "expected a parameter, constant or global memory"),
        RIGHT_LOAD.replace("[smem]", "[smem + 128]"),
    ),
    Planted(
        "a map made from zeros that lacks its box",
        fenced(
            """
@r  tensormap.replace.tile.global_address.global.b1024.b64 [y], x;
@r  tensormap.replace.tile.rank.global.b1024.b32 [y], 1;
@r  tensormap.replace.tile.elemtype.global.b1024.b32 [y], 2;
@r  tensormap.replace.tile.global_dim.global.b1024.b32 [y], 0, 32;
@r  tensormap.replace.tile.global_dim.global.b1024.b32 [y], 1, 16;
@r  tensormap.replace.tile.global_stride.global.b1024.b64 [y], 0, 128;
@r  tensormap.replace.tile.box_dim.global.b1024.b32 [y], 0, 32;""",
            GOOD_FENCES,
        ),
        ("cannot be used: its box_dim 1 was never set; use tensormap.replace.tile.box_dim",),
        fenced(
            """
@r  tensormap.replace.tile.global_address.global.b1024.b64 [y], x;
@r  tensormap.replace.tile.rank.global.b1024.b32 [y], 1;
@r  tensormap.replace.tile.elemtype.global.b1024.b32 [y], 2;
@r  tensormap.replace.tile.global_dim.global.b1024.b32 [y], 0, 32;
@r  tensormap.replace.tile.global_dim.global.b1024.b32 [y], 1, 16;
@r  tensormap.replace.tile.global_stride.global.b1024.b64 [y], 0, 128;
@r  tensormap.replace.tile.box_dim.global.b1024.b32 [y], 0, 32;
@r  tensormap.replace.tile.box_dim.global.b1024.b32 [y], 1, 8;""",
            GOOD_FENCES,
        ),
    ),
    Planted(
        "a map is made from bytes that are not zero",
        "@r  st.global.b32 [y + 124], 5;\n@r  tensormap.replace.tile.rank.global.b1024.b32 [y], 1;",
        ("tensormap.replace at global address", "these 128 bytes are neither a tensor map nor zeros"),
        "@r  st.global.b32 [y + 124], 0;\n@r  tensormap.replace.tile.rank.global.b1024.b32 [y], 1;",
    ),
    Planted(
        "a map gets a field that no map has",
        "@r  tensormap.replace.tile.box_dim.global.b1024.b32 [y], 1, 257;",
        ("tensormap.replace at global address", "box_dim 1 = 257; expected 1 to 256"),
        "@r  tensormap.replace.tile.box_dim.global.b1024.b32 [y], 1, 256;",
    ),
    Planted(
        "a load from a column that does not begin at 16 bytes",
        RIGHT_LOAD.replace("{0, 0}", "{-2, 0}"),
        ("coordinate -2 of dimension 0 with elements of 32 bits; expected a multiple of 4", "broken.ptx:4"),
        RIGHT_LOAD.replace("{0, 0}", "{-4, 0}"),
    ),
    Planted(
        "a store to a column that does not begin at 16 bytes",
        RIGHT_STORE.replace("{0, 0}", "{c, 0}"),
        ("coordinate 3 of dimension 0 with elements of 32 bits; expected a multiple of 4",),
        RIGHT_STORE.replace("{0, 0}", "{d, 0}"),
    ),
    Planted(
        "a store that begins before the first row",
        RIGHT_STORE.replace("{0, 0}", "{0, -1}"),
        ("a tensor store at coordinate -1 of dimension 1; only loads may have negative coordinates",),
        RIGHT_STORE.replace("{0, 0}", "{0, 15}"),
    ),
    Planted(
        "a reduction that begins before the first column",
        storing(f"{REDUCE} [m, {{-4, 0}}], [smem];"),
        ("a tensor reduction at coordinate -4 of dimension 0; only loads may have negative coordinates",),
        storing(f"{REDUCE} [m, {{4, 0}}], [smem];"),
    ),
    Planted(
        "a load to shared memory that is aligned to 64 bytes",
        RIGHT_LOAD.replace("[smem]", "[smem + 64]"),
        ("tensor load at shared address 0x440, expected a multiple of 128",),
        RIGHT_LOAD.replace("[smem]", "[smem + 128]"),
    ),
    Planted(
        "a store from shared memory that is aligned to 16 bytes",
        storing(f"{STORE} [m, {{0, 0}}], [smem + 16];"),
        ("tensor store at shared address 0x410, expected a multiple of 128",),
        storing(f"{STORE} [m, {{0, 8}}], [smem + 128];"),
    ),
    Planted(
        "a load beyond the end of shared memory",
        RIGHT_LOAD.replace("[smem]", "[smem + 1152]"),
        ("tensor load of 1024 bytes at shared address 0x880; this CTA has",),
        RIGHT_LOAD.replace("[smem]", "[smem + 1024]"),
    ),
    Planted(
        "a copy of three dimensions with a map of two",
        RIGHT_LOAD.replace(".2d.", ".3d.").replace("{0, 0}", "{0, 0, 0}"),
        ("a copy of 3 dimensions with a tensor map of 2 dimensions; expected the same number",),
        RIGHT_LOAD,
    ),
    Planted(
        "a gather with boxes of eight rows",
        RIGHT_LOAD.replace(".global.mb", ".global.tile::gather4.mb").replace("{0, 0}", "{0, 1, 2, 3, 4}"),
        ("tile::gather4 with a box of 8 rows; expected 1",),
        RIGHT_LOAD,
    ),
]
