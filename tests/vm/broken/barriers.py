"""Misused barriers: of the CTA and of the cluster, and the registers that setmaxnreg moves."""

from broken.planted import planted

EVERYWHERE = ("off", "default", "full")

BARRIERS = [
    planted(
        "bar.red meets bar.sync",
        """
-@q  bar.sync 1;
+@q  bar.red.popc.u32 a, 1, q;
@p  bar.red.popc.u32 a, 1, q;
""",
        ("barrier 1 is met by bar.", "elsewhere in the same phase"),
        levels=EVERYWHERE,
    ),
    planted(
        "two reductions at one barrier",
        """
@q  bar.red.or.pred s, 1, p;
-@p  bar.red.and.pred s, 1, p;
+@p  bar.red.or.pred s, 1, p;
""",
        ("barrier 1 is met by bar.red.", "elsewhere in the same phase"),
        levels=EVERYWHERE,
    ),
    planted(
        "a warp arrives twice, where it should wait",
        """
@p  bra over;
-    bar.arrive 1, 64;
    bar.sync 1, 64;
    bra done;
over:
-    bar.sync 2, 64;
+    bar.sync 1, 64;
done:
-@q  bar.sync 2, 64;
""",
        ("arrive at barrier 1 again before its phase has completed", "broken.ptx:3"),
        levels=EVERYWHERE,
    ),
    planted(
        "one barrier for full and empty",
        """
    mov.b32 e, 0;
again:
@p  bra consume;
    st.shared.b32 [at], e;
    bar.arrive 1, 64;
-    bar.sync 1, 64;
+    bar.sync 2, 64;
    bra next;
consume:
    bar.sync 1, 64;
    ld.shared.b32 b, [at];
-    bar.arrive 1, 64;
+    bar.arrive 2, 64;
next:
    add.u32 e, e, 1;
    setp.lt.u32 s, e, 4;
@s  bra again;
""",
        ("barrier 1",),
    ),
    planted(
        "two arrivals at the barrier of the cluster",
        """
    barrier.cluster.arrive.aligned;
+    barrier.cluster.wait.aligned;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
""",
        ("arrive at the barrier of the cluster again", "broken.ptx:2", "barrier.cluster.wait after every"),
        levels=EVERYWHERE,
    ),
    planted(
        "a wait at the barrier of the cluster without an arrival",
        """
    barrier.cluster.arrive;
    barrier.cluster.wait;
+@q  barrier.cluster.arrive;
+@p  barrier.cluster.arrive;
    barrier.cluster.wait;
""",
        ("wait at the barrier of the cluster, where they have not arrived", "broken.ptx:3"),
        levels=EVERYWHERE,
    ),
    planted(
        "setmaxnreg in one warp of a warpgroup",
        """
-@p  bra over;
    setmaxnreg.dec.sync.aligned.u32 40;
over:
""",
        ("warp 0 executed setmaxnreg at broken.ptx:2, but warp 1 of its warpgroup did not",),
        levels=EVERYWHERE,
    ),
    planted(
        "another setmaxnreg in the other warp",
        """
-@p  bra over;
    setmaxnreg.dec.sync.aligned.u32 40;
-    bra done;
-over:
-    setmaxnreg.dec.sync.aligned.u32 40;
-done:
""",
        ("of its warpgroup did not execute the same setmaxnreg; expected it in all warps from 0 to 3",),
        levels=EVERYWHERE,
    ),
]
