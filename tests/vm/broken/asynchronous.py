"""Bulk copies, reductions and cp.async: fences between the proxies, and waits."""

from broken.planted import planted

LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"
WAIT = "mbarrier.try_wait.parity.shared.b64 s, [bar],"

ASYNCHRONOUS = [
    planted(
        "a bulk store of what was written without a proxy fence",
        f"""
@q  st.shared.b32 [smem], 1;
+    fence.proxy.async.shared::cta;
    bar.sync 0;
@!r bra over;
    {STORE} [x], [smem], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
over:
""",
        (
            "bulk store of 256 bytes at shared address 0x400",
            "broken.ptx:1",
            "broken.ptx:4",
            "expected fence.proxy.async",
        ),
    ),
    planted(
        "a bulk reduction of what was written without a proxy fence",
        f"""
@p  st.shared.v2.b32 [at], {{a, b}};
-    fence.proxy.async.global;
-    fence.acq_rel.cta;
+    fence.proxy.async;
    bar.sync 0;
@!r bra over;
    {REDUCE} [x], [smem], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
over:
""",
        ("bulk store of 512 bytes", "which warp 1 wrote at broken.ptx:1", "expected fence.proxy.async"),
    ),
    planted(
        "a fence before the write",
        f"""
-    fence.proxy.async.shared::cta;
@q  st.shared.b32 [at], a;
    bar.sync 0;
+    fence.proxy.async.shared::cta;
@!r bra over;
    {STORE} [x], [smem], 64;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
over:
""",
        ("which warp 0 wrote at broken.ptx:2", "expected fence.proxy.async"),
    ),
    planted(
        "a fence, but no barrier",
        f"""
@p  st.shared.b32 [at], a;
    fence.proxy.async.shared::cta;
+    bar.sync 0;
@!r bra over;
    {STORE} [x], [smem], 64;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
over:
""",
        ("shared address 0x400", "broken.ptx:1", "broken.ptx:4"),
    ),
    planted(
        "a bulk load over what was written without a proxy fence",
        f"""
@r  mbarrier.init.shared.b64 [bar], 1;
@q  st.shared.b32 [at], 0;
+    fence.proxy.async.shared::cta;
    bar.sync 0;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
@r  {LOAD} [smem], [x], 512, [bar];
wait:
    {WAIT} 0;
@!s bra wait;
    ld.shared.b32 a, [at];
""",
        ("bulk copy of 512 bytes", "which warp 0 wrote at broken.ptx:2", "expected fence.proxy.async"),
    ),
    planted(
        "a bulk load is read before its phase was waited for",
        f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
@r  {LOAD} [smem], [x], 512, [bar];
-    bar.sync 0;
+wait:
+    {WAIT} 0;
+@!s bra wait;
    ld.shared.b32 a, [at];
""",
        ("read of 4 bytes at shared address 0x400", "bulk copy at broken.ptx:4 fills", "wait for phase 0", "0xc00"),
    ),
    planted(
        "a bulk load is waited for by one warp and read by the other",
        f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@p  bra read;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
@r  {LOAD} [smem], [x], 512, [bar];
wait:
    {WAIT} 0;
@!s bra wait;
    bar.sync 0;
    bra over;
read:
+    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{a, b, c, d}}, [at];
-    bar.sync 0;
over:
""",
        ("shared address 0x4", "broken.ptx:5", "broken.ptx:12"),
    ),
    planted(
        "the wrong parity",
        f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
@r  {LOAD} [smem], [x], 512, [bar];
wait:
-    {WAIT} 1;
+    {WAIT} 0;
@!s bra wait;
    ld.shared.b32 a, [at];
""",
        ("broken.ptx:4", "broken.ptx:8"),
    ),
    planted(
        "the next bulk load overwrites what is still read",
        f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
@r  {LOAD} [smem], [x], 512, [bar];
wait:
    {WAIT} 0;
@!s bra wait;
+@p  ld.shared.b32 a, [at];
    bar.sync 0;
-@p  ld.shared.b32 a, [at];
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
@r  {LOAD} [smem], [x], 512, [bar];
again:
    {WAIT} 1;
@!s bra again;
""",
        ("shared address 0x400", "broken.ptx:9", "broken.ptx:11"),
    ),
    planted(
        "a store while a bulk store still reads",
        f"""
@!r bra over;
    st.shared.b32 [smem], 1;
    fence.proxy.async.shared::cta;
    {STORE} [x], [smem], 64;
    cp.async.bulk.commit_group;
+    cp.async.bulk.wait_group.read 0;
    st.shared.b32 [smem + 60], 2;
    cp.async.bulk.wait_group 0;
over:
""",
        (
            "write of 4 bytes at shared address 0x43c",
            "the bulk store of warp 0, lane 0 at broken.ptx:4",
            "wait_group.read",
        ),
    ),
    planted(
        "a bulk load while a bulk store still reads",
        f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@!r bra over;
    {STORE} [x], [smem], 64;
    cp.async.bulk.commit_group;
+    cp.async.bulk.wait_group.read 0;
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 64;
    {LOAD} [smem + 48], [x + 1024], 64, [bar];
wait:
    {WAIT} 0;
@!s bra wait;
    cp.async.bulk.wait_group 0;
over:
""",
        ("bulk copy of 64 bytes at shared address 0x430", "broken.ptx:4", "broken.ptx:7", "wait_group.read"),
    ),
    planted(
        "the wait of one thread is not the wait of all",
        f"""
@r  {STORE} [x], [smem], 512;
@r  cp.async.bulk.commit_group;
@r  cp.async.bulk.wait_group.read 0;
+    bar.sync 0;
@p  st.shared.b32 [at], a;
""",
        ("shared address 0x400", "broken.ptx:1", "broken.ptx:4"),
    ),
    planted(
        "a bulk store that was not committed",
        f"""
@!r bra over;
    {STORE} [x], [smem], 64;
+    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
over:
""",
        ("exit while the bulk store of 64 bytes", "broken.ptx:2", "cp.async.bulk.commit_group and"),
    ),
    planted(
        "exit without a wait for the bulk store",
        f"""
@!r bra over;
    {STORE} [x], [smem], 64;
    cp.async.bulk.commit_group;
    {STORE} [x + 64], [smem + 64], 64;
    cp.async.bulk.commit_group;
-    cp.async.bulk.wait_group.read 1;
+    cp.async.bulk.wait_group.read 0;
over:
""",
        ("exit while the bulk store of 64 bytes from shared address 0x440 at broken.ptx:4", "wait_group.read"),
    ),
    planted(
        "the result is read when only the source was waited for",
        f"""
@!r bra over;
    {STORE} [x], [smem], 64;
    cp.async.bulk.commit_group;
-    cp.async.bulk.wait_group.read 0;
+    cp.async.bulk.wait_group 0;
    ld.global.b32 a, [x + 32];
over:
""",
        ("read of 4 bytes at global address", "broken.ptx:2", "broken.ptx:5", "without .read"),
    ),
    planted(
        "nobody waits for a bulk load",
        f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
@r  {LOAD} [smem], [x], 512, [bar];
+wait:
+    {WAIT} 0;
+@!s bra wait;
""",
        ("the CTA ends", "broken.ptx:4", "wait for phase 0"),
    ),
    planted(
        "cp.async is read before the wait",
        """
@p  bra over;
    cp.async.ca.shared.global [at], [x], 4;
    cp.async.commit_group;
+    cp.async.wait_group 0;
    ld.shared.b32 a, [at];
-    cp.async.wait_group 0;
over:
""",
        (
            "read of 4 bytes",
            "the cp.async of warp 0 at broken.ptx:2",
            "expected cp.async.wait_group by that warp first",
        ),
    ),
    planted(
        "cp.async is read by the other warp without a barrier",
        """
@q  cp.async.cg.shared.global [at], [x], 16;
@q  cp.async.wait_all;
+    bar.sync 0;
@p  ld.shared.b32 a, [at];
""",
        ("shared address 0x400", "broken.ptx:1", "broken.ptx:3"),
    ),
    planted(
        "a wait that leaves the group open",
        """
@p  bra over;
    cp.async.cg.shared.global [at], [x], 16;
    cp.async.commit_group;
    cp.async.cg.shared.global [at + 512], [x], 16;
    cp.async.commit_group;
    cp.async.wait_group 1;
-    ld.shared.b32 a, [at + 512];
+    ld.shared.b32 a, [at];
over:
""",
        ("shared address 0x600", "broken.ptx:4", "cp.async.wait_group"),
    ),
    planted(
        "a group that was not committed",
        """
@p  bra over;
    cp.async.cg.shared.global [at], [x], 16;
+    cp.async.commit_group;
    cp.async.wait_group 0;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b, c, d}, [at];
over:
""",
        ("read of 16 bytes", "broken.ptx:2", "cp.async.wait_group"),
    ),
    planted(
        "an mbarrier that does not count the copies",
        """
@r  mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
@q  cp.async.cg.shared.global [at], [x], 16;
-@q  mbarrier.arrive.shared.b64 _, [bar];
+@q  cp.async.mbarrier.arrive.noinc.shared.b64 [bar];
wait:
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
@!s bra wait;
    ld.shared.b32 a, [at];
""",
        ("broken.ptx:3", "broken.ptx:8"),
    ),
    planted(
        "a lane commits and waits for its neighbour, which copied",
        """
    and.b32 e, lane, 1;
    setp.eq.u32 s, e, 0;
@p  bra over;
@s  cp.async.ca.shared.global [at], [x], 16;
-@!s cp.async.commit_group;
+@s  cp.async.commit_group;
-@!s cp.async.wait_group 0;
+@s  cp.async.wait_group 0;
    bar.warp.sync -1;
    ld.shared.b32 a, [at];
over:
""",
        ("read of 4 bytes", "the cp.async of warp 0 at broken.ptx:4", "in the lane that issued it (0)", "broken.ptx:8"),
    ),
    planted(
        "all lanes commit and wait, but one of them has not committed its last copy",
        """
@p  bra over;
    setp.eq.u32 s, lane, 9;
@!s cp.async.ca.shared.global [at], [x], 16;
@!s cp.async.commit_group;
@s  cp.async.ca.shared.global [at], [x], 16;
+@s  cp.async.commit_group;
    cp.async.wait_group 0;
    bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b, c, d}, [at];
over:
""",
        (
            "read of 16 bytes",
            "broken.ptx:5",
            "in the lane that issued it (9)",
            "expected cp.async.wait_group by that warp",
        ),
    ),
    planted(
        "a lane that does not wait, and the other warp behind a barrier",
        """
    setp.eq.u32 s, lane, 9;
@q  cp.async.ca.shared.global [at], [x], 16;
@p  setp.eq.u32 s, lane, 99;
@!s cp.async.wait_all;
+@s  cp.async.wait_all;
    bar.sync 0;
@p  ld.shared.v4.b32 {a, b, c, d}, [at];
""",
        (
            "read of 16 bytes",
            "the cp.async of warp 0 at broken.ptx:2",
            "by that warp and a barrier first",
            "or a barrier before the cp.async, if that comes too early",
            "warp 1",
        ),
    ),
    planted(
        "a lane reads what its neighbour has copied and waited for",
        """
@p  bra over;
    cp.async.ca.shared.global [at], [x], 16;
    cp.async.wait_all;
+    bar.warp.sync -1;
    xor.b32 e, at, 16;
    ld.shared.b32 a, [e];
over:
""",
        ("data race in a warp: read of 4 bytes", "which the cp.async of lane 1 at broken.ptx:2 fills", "lane 0"),
        levels=("full",),
    ),
    planted(
        "a lane arrives at an mbarrier for copies of its own, not of others",
        """
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@q  cp.async.cg.shared.global [at], [x], 16;
-@r  cp.async.mbarrier.arrive.noinc.shared.b64 [bar];
+@q  cp.async.mbarrier.arrive.shared.b64 [bar];
+    bar.sync 0;
+@r  mbarrier.arrive.shared.b64 _, [bar];
wait:
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
@!s bra wait;
    ld.shared.b32 a, [at];
""",
        ("broken.ptx:3", "in the lane that issued it"),
    ),
    planted(
        "a proxy fence by one lane does not cover the writes of others",
        f"""
@p  bra over;
    st.shared.b32 [at], a;
-@r  fence.proxy.async.shared::cta;
+    fence.proxy.async.shared::cta;
    bar.warp.sync -1;
@!r bra over;
    {STORE} [x], [smem], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
over:
""",
        ("bulk store of 512 bytes", "which warp 0 wrote at broken.ptx:2", "expected fence.proxy.async"),
        levels=("full",),
    ),
    planted(
        "a proxy fence by one lane, and the other warp stores",
        f"""
@q  st.shared.b32 [at], a;
+    bar.warp.sync -1;
@r  fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.eq.u32 s, i, 32;
@!s bra over;
    {STORE} [x], [smem], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
over:
""",
        ("bulk store of 512 bytes", "which warp 0 wrote at broken.ptx:1", "expected fence.proxy.async"),
        levels=("full",),
    ),
    planted(
        "a bulk store without a barrier between the lanes",
        f"""
@p  bra over;
    st.shared.b32 [at], a;
    fence.proxy.async.shared::cta;
+    bar.warp.sync -1;
@!r bra over;
    {STORE} [x], [smem], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
over:
""",
        ("data race in a warp: bulk copy of 512 bytes at shared address 0x410", "which lane 1 wrote at broken.ptx:2"),
        levels=("full",),
    ),
    planted(
        "each lane fences its own writes, one after the other",
        f"""
@p  bra over;
    st.shared.b32 [at], a;
    mov.b32 e, 0;
again:
    setp.eq.u32 s, e, lane;
-    setp.eq.and.u32 s, lane, 7, s;
@s  fence.proxy.async.shared::cta;
    add.u32 e, e, 1;
    setp.lt.u32 s, e, 32;
@s  bra again;
    bar.warp.sync -1;
@!r bra over;
    {STORE} [x], [smem], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
over:
""",
        ("bulk store of 512 bytes", "which warp 0 wrote at broken.ptx:2", "expected fence.proxy.async"),
        levels=("full",),
    ),
]
