"""Misused mbarriers."""

from broken.planted import planted

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
]
