"""Misused mbarriers."""

from broken.planted import planted

LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
MBARRIERS = [
    planted(
        "initialised again while it lives",
        """
@r  mbarrier.init.shared.b64 [bar], 1;
+@r  mbarrier.inval.shared.b64 [bar];
@r  mbarrier.init.shared.b64 [bar], 2;
""",
        ("mbarrier.init", "live mbarrier initialised at broken.ptx:1", "broken.ptx:2", "expected mbarrier.inval"),
    ),
    planted(
        "initialised again in the middle of a phase",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 2;
    mbarrier.arrive.shared.b64 _, [bar];
+    mbarrier.inval.shared.b64 [bar];
    mbarrier.init.shared.b64 [bar], 2;
over:
""",
        ("mbarrier.init", "live", "broken.ptx:4"),
    ),
    planted(
        "used by another warp before a barrier",
        """
@r  mbarrier.init.shared.b64 [bar], 64;
-    setp.eq.u32 p, warp, 7;
-@p  bar.sync 0;
-    nanosleep.u32 1;
-    nanosleep.u32 1;
+    bar.sync 0;
    mbarrier.arrive.shared.b64 _, [bar];
""",
        ("0xc00", "broken.ptx:6"),
    ),
    planted(
        "more arrivals than it expects",
        """
-@r  mbarrier.init.shared.b64 [bar], 1;
+@r  mbarrier.init.shared.b64 [bar], 2;
@r  mbarrier.arrive.shared.b64 _, [bar], 2;
""",
        ("2 arrivals", "expected at most 1 more", "broken.ptx:2"),
    ),
    planted(
        "arrivals run into the next phase",
        """
-@r  mbarrier.init.shared.b64 [bar], 32;
+@r  mbarrier.init.shared.b64 [bar], 64;
    bar.sync 0;
    mbarrier.arrive.shared.b64 _, [bar];
""",
        ("an arrival in phase 1", "no thread has waited for phase 0", "broken.ptx:3"),
    ),
    planted(
        "a phase that nobody waits for",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 1;
    mbarrier.arrive.shared.b64 _, [bar];
    mbarrier.test_wait.parity.shared.b64 s, [bar], 0;
-    mbarrier.arrive.shared.b64 _, [bar];
+    mbarrier.arrive.shared.b64 state, [bar];
+    mbarrier.test_wait.shared.b64 s, [bar], state;
    mbarrier.arrive.shared.b64 _, [bar];
over:
""",
        ("an arrival in phase 2", "no thread has waited for phase 1", "broken.ptx:6"),
    ),
    planted(
        "too many bytes are expected",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 2;
-    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 1048575;
+    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 1048574;
    mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 1;
over:
""",
        ("transaction count", "0xc00", "broken.ptx:4"),
    ),
    planted(
        "more bytes arrive than can be counted",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 2;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;
-    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 1;
+    mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 1048575;
over:
""",
        ("transaction count", "broken.ptx:4"),
    ),
    planted(
        "a plain store on a live mbarrier",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 1;
-    st.shared.b32 [bar + 4], 0;
+    st.shared.b32 [smem + 2040], 0;
over:
""",
        (
            "write of 4 bytes at shared address 0xc04",
            "the live mbarrier initialised at broken.ptx:2",
            "broken.ptx:3",
            "mbarrier.inval",
        ),
    ),
    planted(
        "a plain load of a live mbarrier",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 1;
+    mbarrier.inval.shared.b64 [bar];
    ld.shared.b64 y, [bar];
over:
""",
        ("read of 8 bytes at shared address 0xc00", "holds the live mbarrier", "broken.ptx:3"),
    ),
    planted(
        "used after inval",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 1;
+    mbarrier.arrive.shared.b64 _, [bar];
    mbarrier.inval.shared.b64 [bar];
-    mbarrier.arrive.shared.b64 _, [bar];
over:
""",
        ("no mbarrier was initialised", "0xc00", "broken.ptx:4"),
    ),
    planted(
        "waited for after inval",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 1;
    mbarrier.arrive.shared.b64 _, [bar];
+    mbarrier.test_wait.parity.shared.b64 s, [bar], 0;
    mbarrier.inval.shared.b64 [bar];
-    mbarrier.test_wait.parity.shared.b64 s, [bar], 0;
over:
""",
        ("no mbarrier was initialised", "broken.ptx:5"),
    ),
    planted(
        "never initialised",
        """
+@r  mbarrier.init.shared.b64 [bar], 1;
@r  mbarrier.arrive.shared.b64 _, [bar];
""",
        ("no mbarrier was initialised", "0xc00", "broken.ptx:1"),
    ),
    planted(
        "a failed try_wait that is not repeated, for a bulk copy",
        f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
@r  {LOAD} [smem], [x], 512, [bar];
wait:
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
+@!s bra wait;
    ld.shared.b32 a, [at];
    bar.sync 0;
-again:
-    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
-@!s bra again;
""",
        ("at shared address 0x4", "broken.ptx:4", "broken.ptx:7"),
    ),
    planted(
        "a failed try_wait that is not repeated, for the arrivals of the other warp",
        """
@r  mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
@p  bra wait;
    st.shared.b32 [at], i;
    mbarrier.arrive.shared.b64 _, [bar];
    bra over;
wait:
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
+@!s bra wait;
    ld.shared.b32 a, [at];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:9"),
    ),
    planted(
        "a failed test_wait that is not repeated",
        """
@r  mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
@p  bra wait;
    st.shared.b32 [at], i;
    mbarrier.arrive.shared.b64 _, [bar];
+    bar.sync 0;
    bra over;
wait:
+    bar.sync 0;
    mbarrier.test_wait.parity.shared.b64 s, [bar], 0;
    ld.shared.b32 a, [at];
over:
""",
        ("data race", "broken.ptx:4", "broken.ptx:9"),
    ),
    planted(
        "a peek that was told no, and nothing after it",
        f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
@r  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
@r  {LOAD} [smem], [x], 512, [bar];
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
+@s  bra ready;
+wait:
+    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
+@!s bra wait;
+ready:
@s  ld.shared.b32 a, [at];
""",
        ("the CTA ends", "no thread has waited"),
    ),
    planted(
        "a parity that is no parity",
        """
@r  mbarrier.init.shared.b64 [bar], 1;
-   mov.b32 e, 3;
+   mov.b32 e, 1;
@r  mbarrier.test_wait.parity.shared.b64 s, [bar], e;
""",
        ("a wait for parity 3 of an mbarrier; expected 0 or 1", "broken.ptx:3"),
        levels=("off", "default", "full"),
    ),
    planted(
        "a counter of phases where a parity is expected",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 1;
    mov.b32 e, 0;
again:
    mbarrier.arrive.shared.b64 _, [bar];
+    and.b32 f, e, 1;
wait:
-    mbarrier.try_wait.parity.shared.b64 s, [bar], e;
+    mbarrier.try_wait.parity.shared.b64 s, [bar], f;
@!s bra wait;
    add.u32 e, e, 1;
    setp.lt.u32 s, e, 4;
@s  bra again;
over:
""",
        ("a wait for parity 2 of an mbarrier; expected 0 or 1", "broken.ptx:7"),
        levels=("off", "default", "full"),
    ),
    planted(
        "a state that is two phases old",
        """
@!r bra over;
    mbarrier.init.shared.b64 [bar], 1;
    mbarrier.arrive.shared.b64 state, [bar];
    mbarrier.test_wait.shared.b64 s, [bar], state;
-    mbarrier.arrive.shared.b64 w, [bar];
+    mbarrier.arrive.shared.b64 state, [bar];
-    mbarrier.test_wait.shared.b64 s, [bar], w;
    mbarrier.test_wait.shared.b64 s, [bar], state;
over:
""",
        ("a wait with a state of phase 0", "which is in phase 2", "broken.ptx:7"),
        levels=("off", "default", "full"),
    ),
]
