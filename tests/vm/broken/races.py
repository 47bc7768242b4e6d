"""Data races in shared memory between warps."""

from broken.planted import Planted

RACES = [
    Planted(
        "write, then read without a barrier",
        """
@q  st.shared.b32 [at], a;
@p  ld.shared.b32 b, [at];
""",
        ("data race", "shared address 0x400", "by warp", "broken.ptx:1", "broken.ptx:2", "expected a barrier"),
        """
@q  st.shared.b32 [at], a;
    bar.sync 0;
@p  ld.shared.b32 b, [at];
""",
    ),
    Planted(
        "read, then overwritten without a barrier",
        """
    st.shared.b32 [at + 512], a;
@q  st.shared.b32 [at], a;
    bar.sync 0;
    ld.shared.b32 b, [at];
@q  st.shared.b32 [at], b;
""",
        ("data race",),
        """
@q  st.shared.b32 [at], a;
    bar.sync 0;
    ld.shared.b32 b, [at];
    bar.sync 0;
@q  st.shared.b32 [at], b;
""",
    ),
    Planted(
        "two warps write",
        """
    st.shared.b32 [at + 64], i;
""",
        ("data race: write of 4 bytes", "a write by warp"),
        """
    mad.lo.u32 at, warp, 512, at;
    st.shared.b32 [at + 64], i;
""",
    ),
    Planted(
        "two warps write: the same value is harmless",
        """
    mov.b32 d, smem;
    add.u32 a, warp, 7;
    st.shared.v2.b32 [d + 8], {c, a};
""",
        ("data race: write of 8 bytes at shared address 0x40c", "a write by warp", "broken.ptx:3"),
        """
    mov.b32 d, smem;
    st.shared.v2.b32 [d + 8], {c, b};
    st.shared.v4.b32 [at + 16], {a, b, c, c};
""",
    ),
    Planted(
        "two warps write bytes of one word: neighbours are no race",
        """
    mov.u32 a, smem;
    st.shared.b8 [a + 5], warp;
""",
        ("data race: write of 1 bytes at shared address 0x405",),
        """
    mov.u32 a, smem;
    add.u32 a, a, warp;
    st.shared.b8 [a + 5], warp;
    bar.sync 0;
    ld.shared.b32 a, [smem + 4];
""",
    ),
    Planted(
        "the wrong named barrier",
        """
@p  bra second;
    st.shared.b32 [at], a;
    barrier.arrive 1, 64;
    barrier.sync 2, 64;
    bra over;
second:
    barrier.arrive 2, 64;
    ld.shared.b32 b, [at];
    barrier.sync 1, 64;
over:
""",
        ("data race", "broken.ptx:2", "broken.ptx:8"),
        """
@p  bra second;
    st.shared.b32 [at], a;
    barrier.arrive 1, 64;
    barrier.sync 2, 64;
    bra over;
second:
    barrier.arrive 2, 64;
    barrier.sync 1, 64;
    ld.shared.b32 b, [at];
over:
""",
    ),
    Planted(
        "arriving at a barrier is not waiting",
        """
@q  bar.arrive 1, 64;
@q  ld.shared.b32 b, [at];
@p  st.shared.b32 [at], a;
@p  bar.sync 1, 64;
""",
        ("data race", "broken.ptx:2", "broken.ptx:3"),
        """
@p  st.shared.b32 [at], a;
@p  bar.arrive 1, 64;
@q  bar.sync 1, 64;
@q  ld.shared.b32 b, [at];
""",
    ),
    Planted(
        "ldmatrix before the barrier",
        """
@q  st.shared.v4.b32 [at], {a, b, c, d};
@p  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b, c, d}, [at];
    bar.sync 0;
""",
        ("data race", "16 bytes", "broken.ptx:2"),
        """
@q  st.shared.v4.b32 [at], {a, b, c, d};
    bar.sync 0;
@p  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b, c, d}, [at];
""",
    ),
    Planted(
        "stmatrix over what is still read",
        """
@q  stmatrix.sync.aligned.m8n8.x4.shared.b16 [at], {a, b, c, d};
    bar.sync 0;
@p  ld.shared.b64 y, [at + 8];
@q  stmatrix.sync.aligned.m8n8.x4.shared.b16 [at], {a, b, c, d};
""",
        ("data race", "broken.ptx:3", "broken.ptx:4"),
        """
@q  stmatrix.sync.aligned.m8n8.x4.shared.b16 [at], {a, b, c, d};
    bar.sync 0;
@p  ld.shared.b64 y, [at + 8];
    bar.sync 0;
@q  stmatrix.sync.aligned.m8n8.x4.shared.b16 [at], {a, b, c, d};
""",
    ),
    Planted(
        "stmatrix by two warps: the same values are harmless",
        """
    mov.b32 a, i;
    stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [at], {a, b};
""",
        ("data race: write of 16 bytes", "a write by warp", "broken.ptx:2"),
        """
    mov.b32 a, lane;
    stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [at], {a, b};
    bar.sync 0;
    stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [at], {a, b};
""",
    ),
    Planted(
        "an atomic and a plain write",
        """
@r  st.shared.b32 [smem], 0;
    atom.shared.add.u32 b, [smem], 1;
""",
        ("data race", "atomic access", "broken.ptx:1", "broken.ptx:2"),
        """
@r  st.shared.b32 [smem], 0;
    bar.sync 0;
    atom.shared.add.u32 b, [smem], 1;
    red.shared.add.u32 [smem], 1;
    bar.sync 0;
    ld.shared.b32 a, [smem];
""",
    ),
    Planted(
        "a flag without a release",
        """
@r  st.shared.b32 [smem + 256], 0;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [smem], 5;
@r  st.relaxed.cta.shared.b32 [smem + 256], 1;
    bra over;
second:
    ld.acquire.cta.shared.b32 b, [smem + 256];
    setp.eq.u32 s, b, 0;
@s  bra second;
    ld.shared.b32 b, [smem];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:11"),
        """
@r  st.shared.b32 [smem + 256], 0;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [smem], 5;
@r  st.release.cta.shared.b32 [smem + 256], 1;
    bra over;
second:
    ld.acquire.cta.shared.b32 b, [smem + 256];
    setp.eq.u32 s, b, 0;
@s  bra second;
    ld.shared.b32 b, [smem];
over:
""",
    ),
    Planted(
        "a flag without a fence",
        """
@r  st.shared.b32 [smem + 256], 0;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [smem], 5;
    fence.acq_rel.cta;
@r  atom.relaxed.cta.shared.exch.b32 b, [smem + 256], 1;
    bra over;
second:
    ld.volatile.shared.b32 b, [smem + 256];
    setp.eq.u32 s, b, 0;
@s  bra second;
    ld.shared.b32 b, [smem];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:12"),
        """
@r  st.shared.b32 [smem + 256], 0;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [smem], 5;
    fence.acq_rel.cta;
@r  atom.relaxed.cta.shared.exch.b32 b, [smem + 256], 1;
    bra over;
second:
    ld.volatile.shared.b32 b, [smem + 256];
    setp.eq.u32 s, b, 0;
@s  bra second;
    membar.cta;
    ld.shared.b32 b, [smem];
over:
""",
    ),
    Planted(
        "a flag without a release, spelled as libcu++ does",
        """
@r  st.shared.b32 [smem + 256], 0;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [smem], 5;
@r  atom.shared.exch.relaxed.cta.b32 b, [smem + 256], 1;
    bra over;
second:
    atom.shared.or.acquire.cta.b32 b, [smem + 256], 0;
    setp.eq.u32 s, b, 0;
@s  bra second;
    ld.shared.b32 b, [smem];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:11"),
        """
@r  st.shared.b32 [smem + 256], 0;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [smem], 5;
@r  atom.shared.exch.release.cta.b32 b, [smem + 256], 1;
    bra over;
second:
    atom.shared.or.acquire.cta.b32 b, [smem + 256], 0;
    setp.eq.u32 s, b, 0;
@s  bra second;
    ld.shared.b32 b, [smem];
over:
""",
    ),
    Planted(
        "the barrier of the cluster, which is the CTA",
        """
    barrier.cluster.arrive.aligned;
@q  st.shared.b32 [at], a;
    barrier.cluster.wait.aligned;
@p  ld.shared.b32 b, [at];
    nanosleep.u32 1;
@q  st.shared.b32 [at], a;
""",
        ("data race", "broken.ptx:4", "broken.ptx:6"),
        """
@q  st.shared.b32 [at], a;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
@p  ld.shared.b32 b, [at];
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
@q  st.shared.b32 [at], a;
""",
    ),
    Planted(
        "a relaxed arrival releases nothing",
        """
@r  mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [at], a;
    mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [bar];
    bra over;
second:
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
@!s bra second;
    ld.shared.b32 b, [at];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:10"),
        """
@r  mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [at], a;
    mbarrier.arrive.shared::cta.b64 _, [bar];
    bra over;
second:
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
@!s bra second;
    ld.shared.b32 b, [at];
over:
""",
    ),
    Planted(
        "arriving before the write",
        """
@r  mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
@p  bra second;
    mbarrier.arrive.shared::cta.b64 state, [bar];
    st.shared.b32 [at], a;
    bra over;
second:
    mbarrier.test_wait.parity.shared.b64 s, [bar], 0;
@!s bra second;
    ld.shared.b32 b, [at];
over:
""",
        ("data race", "broken.ptx:5", "broken.ptx:10"),
        """
@r  mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [at], a;
    mbarrier.arrive.shared::cta.b64 state, [bar];
    bra over;
second:
    mbarrier.test_wait.parity.shared.b64 s, [bar], 0;
@!s bra second;
    ld.shared.b32 b, [at];
over:
""",
    ),
    Planted(
        "through a generic address",
        """
    cvt.u64.u32 y, at;
    cvta.shared.u64 y, y;
@q  st.b32 [y], a;
@p  ld.shared.b32 b, [at];
""",
        ("data race", "broken.ptx:3", "broken.ptx:4"),
        """
    cvt.u64.u32 y, at;
    cvta.shared.u64 y, y;
@q  st.b32 [y], a;
    barrier.sync 0;
@p  ld.shared.b32 b, [at];
""",
    ),
]
