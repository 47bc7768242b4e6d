"""Data races in shared memory between warps."""

from broken.planted import planted

RACES = [
    planted(
        "write, then read without a barrier",
        """
@q  st.shared.b32 [at], a;
+    bar.sync 0;
@p  ld.shared.b32 b, [at];
""",
        ("data race", "shared address 0x400", "by warp", "broken.ptx:1", "broken.ptx:2", "expected a barrier"),
    ),
    planted(
        "read, then overwritten without a barrier",
        """
-    st.shared.b32 [at + 512], a;
@q  st.shared.b32 [at], a;
    bar.sync 0;
    ld.shared.b32 b, [at];
+    bar.sync 0;
@q  st.shared.b32 [at], b;
""",
        ("data race",),
    ),
    planted(
        "two warps write",
        """
+    mad.lo.u32 at, warp, 512, at;
    st.shared.b32 [at + 64], i;
""",
        ("data race: write of 4 bytes", "a write by warp"),
    ),
    planted(
        "two warps write: the same value is harmless",
        """
    mov.b32 d, smem;
-    add.u32 a, warp, 7;
-    st.shared.v2.b32 [d + 8], {c, a};
+    st.shared.v2.b32 [d + 8], {c, b};
+    st.shared.v4.b32 [at + 16], {a, b, c, c};
""",
        ("data race: write of 8 bytes at shared address 0x40c", "a write by warp", "broken.ptx:3"),
    ),
    planted(
        "two warps write bytes of one word: neighbours are no race",
        """
    mov.u32 a, smem;
+    add.u32 a, a, warp;
    st.shared.b8 [a + 5], warp;
+    bar.sync 0;
+    ld.shared.b32 a, [smem + 4];
""",
        ("data race: write of 1 bytes at shared address 0x405",),
    ),
    planted(
        "the wrong named barrier",
        """
@p  bra second;
    st.shared.b32 [at], a;
    barrier.arrive 1, 64;
    barrier.sync 2, 64;
    bra over;
second:
    barrier.arrive 2, 64;
+    barrier.sync 1, 64;
    ld.shared.b32 b, [at];
-    barrier.sync 1, 64;
over:
""",
        ("data race", "broken.ptx:2", "broken.ptx:8"),
    ),
    planted(
        "arriving at a barrier is not waiting",
        """
-@q  bar.arrive 1, 64;
+@p  st.shared.b32 [at], a;
+@p  bar.arrive 1, 64;
+@q  bar.sync 1, 64;
@q  ld.shared.b32 b, [at];
-@p  st.shared.b32 [at], a;
-@p  bar.sync 1, 64;
""",
        ("data race", "broken.ptx:2", "broken.ptx:3"),
    ),
    planted(
        "ldmatrix before the barrier",
        """
@q  st.shared.v4.b32 [at], {a, b, c, d};
+    bar.sync 0;
@p  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b, c, d}, [at];
-    bar.sync 0;
""",
        ("data race", "16 bytes", "broken.ptx:2"),
    ),
    planted(
        "stmatrix over what is still read",
        """
@q  stmatrix.sync.aligned.m8n8.x4.shared.b16 [at], {a, b, c, d};
    bar.sync 0;
@p  ld.shared.b64 y, [at + 8];
+    bar.sync 0;
@q  stmatrix.sync.aligned.m8n8.x4.shared.b16 [at], {a, b, c, d};
""",
        ("data race", "broken.ptx:3", "broken.ptx:4"),
    ),
    planted(
        "stmatrix by two warps: the same values are harmless",
        """
-    mov.b32 a, i;
+    mov.b32 a, lane;
    stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [at], {a, b};
+    bar.sync 0;
+    stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [at], {a, b};
""",
        ("data race: write of 16 bytes", "a write by warp", "broken.ptx:2"),
    ),
    planted(
        "an atomic and a plain write",
        """
@r  st.shared.b32 [smem], 0;
+    bar.sync 0;
    atom.shared.add.u32 b, [smem], 1;
+    red.shared.add.u32 [smem], 1;
+    bar.sync 0;
+    ld.shared.b32 a, [smem];
""",
        ("data race", "atomic access", "broken.ptx:1", "broken.ptx:2"),
    ),
    planted(
        "a flag without a release",
        """
@r  st.shared.b32 [smem + 256], 0;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [smem], 5;
-@r  st.relaxed.cta.shared.b32 [smem + 256], 1;
+@r  st.release.cta.shared.b32 [smem + 256], 1;
    bra over;
second:
    ld.acquire.cta.shared.b32 b, [smem + 256];
    setp.eq.u32 s, b, 0;
@s  bra second;
    ld.shared.b32 b, [smem];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:11"),
    ),
    planted(
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
+    membar.cta;
    ld.shared.b32 b, [smem];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:12"),
    ),
    planted(
        "a flag without a release, spelled as libcu++ does",
        """
@r  st.shared.b32 [smem + 256], 0;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [smem], 5;
-@r  atom.shared.exch.relaxed.cta.b32 b, [smem + 256], 1;
+@r  atom.shared.exch.release.cta.b32 b, [smem + 256], 1;
    bra over;
second:
    atom.shared.or.acquire.cta.b32 b, [smem + 256], 0;
    setp.eq.u32 s, b, 0;
@s  bra second;
    ld.shared.b32 b, [smem];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:11"),
    ),
    planted(
        "the barrier of the cluster, which is the CTA",
        """
@q  st.shared.b32 [at], a;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
@p  ld.shared.b32 b, [at];
-    nanosleep.u32 1;
+    barrier.cluster.arrive.release;
+    barrier.cluster.wait.acquire;
@q  st.shared.b32 [at], a;
""",
        ("data race", "broken.ptx:4", "broken.ptx:6"),
    ),
    planted(
        "a write between the arrival at the barrier of the cluster and the wait",
        """
+@q  st.shared.b32 [at], a;
    barrier.cluster.arrive.aligned;
-@q  st.shared.b32 [at], a;
    barrier.cluster.wait.aligned;
@p  ld.shared.b32 b, [at];
""",
        ("data race", "broken.ptx:2", "broken.ptx:4"),
    ),
    planted(
        "a relaxed arrival at the barrier of the cluster",
        """
@q  st.shared.b32 [at], a;
-    barrier.cluster.arrive.relaxed.aligned;
+    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
@p  ld.shared.b32 b, [at];
""",
        ("data race", "broken.ptx:1", "broken.ptx:4"),
    ),
    planted(
        "strong accesses of two sizes to one flag",
        """
@q  st.relaxed.cta.shared.b32 [smem], a;
-@p  ld.relaxed.cta.shared.b8 h, [smem];
+@p  ld.relaxed.cta.shared.b32 b, [smem];
""",
        ("data race", "at shared address 0x400 and a strong access of another size by warp"),
    ),
    planted(
        "atomic operations of two sizes",
        """
@q  atom.shared.add.u32 b, [smem + 8], 1;
-@p  atom.shared.cas.b16 h, [smem + 10], h, h;
+@p  atom.shared.or.b32 c, [smem + 8], 4;
""",
        ("data race", "and a strong access of another size by warp"),
    ),
    planted(
        "a relaxed arrival releases nothing",
        """
@r  mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
@p  bra second;
    st.shared.b32 [at], a;
-    mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [bar];
+    mbarrier.arrive.shared::cta.b64 _, [bar];
    bra over;
second:
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
@!s bra second;
    ld.shared.b32 b, [at];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:10"),
    ),
    planted(
        "arriving before the write",
        """
@r  mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
@p  bra second;
+    st.shared.b32 [at], a;
    mbarrier.arrive.shared::cta.b64 state, [bar];
-    st.shared.b32 [at], a;
    bra over;
second:
    mbarrier.test_wait.parity.shared.b64 s, [bar], 0;
@!s bra second;
    ld.shared.b32 b, [at];
over:
""",
        ("data race", "broken.ptx:5", "broken.ptx:10"),
    ),
    planted(
        "through a generic address",
        """
    cvt.u64.u32 y, at;
    cvta.shared.u64 y, y;
@q  st.b32 [y], a;
+    barrier.sync 0;
@p  ld.shared.b32 b, [at];
""",
        ("data race", "broken.ptx:3", "broken.ptx:4"),
    ),
]
