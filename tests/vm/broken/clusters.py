"""Mistakes between the CTAs of a cluster: shared memory of others, barriers, multicast, cancelled launches."""

from broken.planted import planted

EVERYWHERE = ("off", "default", "full")
BOTH = "    barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;"
HEAD = ".reqnctapercluster 2"
SETUP = """
    .reg .b32 own, rank, other, far, farbar, mbar;
    .reg .b16 all;
    .reg .b128 answer;
    mov.u32 own, smem;
    mov.u32 mbar, bar;
    mov.u32 rank, %cluster_ctarank;
    xor.b32 other, rank, 1;
    mapa.shared::cluster.u32 far, at, other;
    mapa.shared::cluster.u32 farbar, mbar, other;
    setp.eq.u32 s, rank, 0;
"""

CLUSTERS = [
    planted(
        "reads a CTA that may not have started",
        f"""{SETUP}
@q  st.shared.b32 [at], i;
    bar.sync 0;
+{BOTH.replace(chr(10), chr(10) + "+")}
    ld.shared::cluster.b32 a, [far];
{BOTH}
""",
        ("CTA", "of the cluster, which may not have started"),
        ctas=2,
        levels=EVERYWHERE,
        head=HEAD,
    ),
    planted(
        "reads another CTA without .shared::cluster",
        f"""{SETUP}
@q  st.shared.b32 [at], i;
{BOTH}
-    ld.shared.b32 a, [far];
+    ld.shared::cluster.b32 a, [far];
{BOTH}
""",
        ("in the memory of CTA", "expected .shared::cluster"),
        ctas=2,
        levels=EVERYWHERE,
        head=HEAD,
    ),
    planted(
        "ends while the other CTA may read it",
        f"""{SETUP}
@q  st.shared.b32 [at], i;
{BOTH}
@s  ld.shared::cluster.b32 a, [far];
+{BOTH.replace(chr(10), chr(10) + "+")}
""",
        ("expected barrier.cluster before",),
        ctas=2,
        head=HEAD,
    ),
    planted(
        "writes another CTA's memory and passes no barrier",
        f"""{SETUP}
{BOTH}
@q  st.shared::cluster.b32 [far], i;
-    bar.sync 0;
+{BOTH.replace(chr(10), chr(10) + "+")}
    ld.shared.b32 a, [at];
{BOTH}
""",
        ("data race", "of CTA"),
        ctas=2,
        head=HEAD,
    ),
    planted(
        "a relaxed arrival without a fence",
        f"""{SETUP}
{BOTH}
@q  st.shared::cluster.b32 [far], i;
+    fence.acq_rel.cluster;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
    ld.shared.b32 a, [at];
{BOTH}
""",
        ("data race", "of CTA"),
        ctas=2,
        head=HEAD,
    ),
    planted(
        "an mbarrier of another CTA without fence.mbarrier_init",
        f"""{SETUP}
@r  mbarrier.init.shared.b64 [mbar], 1;
+    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
@r  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [farbar];
    bar.sync 0;
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared.b64 s, [mbar], 0;
@!s bra wait;
{BOTH}
""",
        ("is used, but", "initialised it"),
        ctas=2,
        head=HEAD,
    ),
    planted(
        "the fence of mbarrier.init covers no writes",
        f"""{SETUP}
@q  st.shared.b32 [at], i;
-    fence.mbarrier_init.release.cluster;
+    fence.acq_rel.cluster;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
    ld.shared::cluster.b32 a, [far];
{BOTH}
""",
        ("data race", "of CTA"),
        ctas=2,
        head=HEAD,
    ),
    planted(
        "a word is read before its mbarrier says that it has come",
        f"""{SETUP}
@r  mbarrier.init.shared.b64 [mbar], 1;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [mbar], 256;
{BOTH}
    shl.b32 a, i, 2;
    add.u32 own, own, a;
    mapa.shared::cluster.u32 far, own, other;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [far], i, [farbar];
-    ld.shared.b32 b, [own];
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared.b64 s, [mbar], 0;
@!s bra wait;
+    ld.shared.b32 b, [own];
{BOTH}
""",
        ("of 4 bytes at shared address", "broken.ptx:20"),
        ctas=2,
        head=HEAD,
    ),
    planted(
        "a block is read before its mbarrier says that it has come",
        f"""{SETUP}
@q  st.shared.b32 [at], i;
    fence.proxy.async.shared::cta;
@r  mbarrier.init.shared.b64 [mbar], 1;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [mbar], 256;
{BOTH}
    mapa.shared::cluster.u32 far, own, other;
    add.u32 far, far, 1024;
@r  cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [far], [own], 256, [farbar];
-    ld.shared.b32 b, [at+1024];
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared.b64 s, [mbar], 0;
@!s bra wait;
+@q  ld.shared.b32 b, [at+1024];
{BOTH}
""",
        ("broken.ptx:20", "broken.ptx:21"),
        ctas=2,
        head=HEAD,
    ),
    planted(
        "a block is sent without a proxy fence",
        f"""{SETUP}
@q  st.shared.b32 [at], i;
+@q  fence.proxy.async.shared::cta;
@r  mbarrier.init.shared.b64 [mbar], 1;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [mbar], 256;
{BOTH}
    mapa.shared::cluster.u32 far, own, other;
    add.u32 far, far, 1024;
@r  cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [far], [own], 256, [farbar];
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared.b64 s, [mbar], 0;
@!s bra wait;
{BOTH}
""",
        ("expected fence.proxy.async",),
        ctas=2,
        head=HEAD,
    ),
    planted(
        "multicast to a CTA that the cluster has not",
        f"""{SETUP}
-    mov.b16 all, 5;
+    mov.b16 all, 3;
@r  mbarrier.init.shared.b64 [mbar], 1;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [mbar], 256;
{BOTH}
    and.pred s, s, r;
@s  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [own], [x], 256, [mbar], all;
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared.b64 s, [mbar], 0;
@!s bra wait;
{BOTH}
""",
        ("multicast to the CTAs of mask 0x5 in a cluster of 2 CTAs",),
        ctas=2,
        levels=EVERYWHERE,
        head=HEAD,
    ),
    planted(
        "multicast over what the other CTA reads",
        f"""{SETUP}
    mov.b16 all, 3;
@q  st.shared.b32 [at], i;
    fence.proxy.async.shared::cta;
@r  mbarrier.init.shared.b64 [mbar], 1;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [mbar], 256;
{BOTH}
@!s ld.shared.b32 b, [at];
+{BOTH.replace(chr(10), chr(10) + "+")}
    and.pred s, s, r;
@s  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [own], [x], 256, [mbar], all;
wait:
    mbarrier.try_wait.parity.acquire.cluster.shared.b64 s, [mbar], 0;
@!s bra wait;
{BOTH}
""",
        ("at shared address",),
        ctas=2,
        head=HEAD,
    ),
    planted(
        "a launch is cancelled after a refusal",
        """
    .reg .b32 mbar, parity;
    .reg .b128 answer;
    .reg .b64 low, high;
    mov.u32 mbar, bar;
    mov.b32 parity, 0;
@!r bra done;
    mbarrier.init.shared.b64 [mbar], 1;
again:
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared.b64 _, [mbar], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [smem], [mbar];
wait:
    mbarrier.try_wait.parity.shared.b64 s, [mbar], parity;
@!s bra wait;
    xor.b32 parity, parity, 1;
    ld.shared.b128 answer, [smem];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 s, answer;
-    setp.lt.u32 s, b, 40;
    add.u32 b, b, 1;
@s  bra again;
done:
""",
        ("query_cancel told that an earlier one had found no cluster",),
        ctas=3,
        levels=EVERYWHERE,
    ),
]
