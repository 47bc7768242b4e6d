"""Races between lanes of a warp. Level full finds them."""

from broken.planted import Planted

EXCHANGE = """
@p  bra over;
    st.shared.b32 [at], i;
    {between}
    xor.b32 b, at, 16;
    ld.shared.b32 a, [b];
over:
"""

SWAP = """
@p  bra over;
    st.shared.b32 [at], i;
    bar.warp.sync -1;
    xor.b32 b, at, 16;
    ld.shared.b32 a, [b];
    {between}
    st.shared.b32 [at], a;
over:
"""

REDUCE = """
@p  bra over;
    st.shared.b32 [at], i;
    bar.warp.sync -1;
    mov.b32 b, 8;
step:
    setp.ge.u32 s, lane, b;
    mov.b32 c, 0;
    mad.lo.u32 e, b, 16, at;
@!s ld.shared.b32 c, [e];
    {read}
@!s ld.shared.b32 d, [at];
    add.u32 d, d, c;
@!s st.shared.b32 [at], d;
    {written}
    shr.u32 b, b, 1;
    setp.ne.u32 s, b, 0;
@s  bra step;
over:
"""
RIGHT_REDUCE = REDUCE.format(read="bar.warp.sync -1;", written="bar.warp.sync 0xffffffff;")

# lanes 0 to 15 and 16 to 31 exchange in their halves, or across them
HALVES = """
@p  bra over;
    st.shared.b32 [at], i;
    setp.lt.u32 s, lane, 16;
    selp.b32 c, 0xffff, 0xffff0000, s;
    bar.warp.sync c;
    xor.b32 b, at, {bytes};
    ld.shared.b32 a, [b];
over:
"""

DIVERGED = """
@p  bra over;
    mad.wide.u32 y, lane, 4, x;
    setp.lt.u32 s, lane, 16;
@!s bra second;
    st.global.b32 [y], i;
second:
    {between}
    ld.global.b32 a, [y + -64];
over:
"""

LANES = [
    Planted(
        "neighbours exchange through shared memory",
        EXCHANGE.format(between=""),
        (
            "data race in a warp: read of 4 bytes at shared address 0x4",
            "broken.ptx:5",
            "wrote at broken.ptx:2",
            "bar.warp.sync",
        ),
        EXCHANGE.format(between="bar.warp.sync -1;"),
    ),
    Planted(
        "activemask orders nothing, shfl does",
        EXCHANGE.format(between="activemask.b32 c;"),
        ("data race in a warp", "broken.ptx:2"),
        EXCHANGE.format(between="shfl.sync.idx.b32 c, c, 0, 31, -1;"),
    ),
    Planted(
        "the read is not over when the neighbour writes",
        SWAP.format(between=""),
        ("data race in a warp: write of 4 bytes", "read at broken.ptx:5"),
        SWAP.format(between="vote.sync.any.pred s, p, -1;"),
    ),
    Planted(
        "the write is not over when the next step reads",
        REDUCE.format(read="bar.warp.sync -1;", written=""),
        ("data race in a warp", "broken.ptx:"),
        RIGHT_REDUCE,
    ),
    Planted(
        "a barrier of half the warp each, across the halves",
        HALVES.format(bytes=256),
        ("data race in a warp: read of 4 bytes", "which lane 16 wrote at broken.ptx:2"),
        HALVES.format(bytes=240),
    ),
    Planted(
        "lanes that took different ways",
        DIVERGED.format(between="").replace("[y + -64]", "[x + 8]"),
        ("data race in a warp: read of 4 bytes at global address", "which lane 2 wrote at broken.ptx:5"),
        DIVERGED.format(between="bar.warp.sync -1;").replace("[y + -64]", "[x + 8]"),
    ),
    Planted(
        "bytes of one word",
        "@p bra over;\nmov.u32 a, smem;\nadd.u32 a, a, lane;\nst.shared.b8 [a], i;\nld.shared.b16 h, [smem+30];\nover:",
        ("data race in a warp: read of 2 bytes at shared address 0x41", "broken.ptx:4"),
        "@p bra over;\nmov.u32 a, smem;\nadd.u32 a, a, lane;\nst.shared.b8 [a], i;\nld.shared.b8 h, [a];\nover:",
    ),
    Planted(
        "one store, two values",
        "@p bra over;\nst.shared.b32 [smem], lane;\nover:",
        ("data race in a store: lanes 0 and 1 write different values at shared address 0x400",),
        "@p bra over;\nst.shared.b32 [smem], warp;\nover:",
    ),
    Planted(
        "one vector store to global memory, parts of which meet",
        "@p bra over;\nmad.wide.u32 y, lane, 8, x;\nst.global.v2.b32 [y], {i, a};\nand.b32 b, lane, 1;\n"
        "mad.wide.u32 y, b, 8, x;\nbar.warp.sync -1;\nst.global.v2.b32 [y], {a, i};\nover:",
        ("data race in a store: lanes 0 and 2 write different values at global address", "broken.ptx:7"),
        "@p bra over;\nmad.wide.u32 y, lane, 8, x;\nst.global.v2.b32 [y], {i, a};\nand.b32 b, lane, 1;\n"
        "mad.wide.u32 y, b, 8, x;\nbar.warp.sync -1;\nst.global.v2.b32 [y], {a, b};\nover:",
    ),
]
LANES = [planted._replace(levels=("full",)) for planted in LANES]
