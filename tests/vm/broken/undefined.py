"""Undefined values that decide: an address, a branch or a guard, a count or a size, a result."""

from broken.planted import Planted, planted

ADDRESSES = [
    Planted(
        "address in a register that was never written",
        "    ld.shared.b32 a, [e];\n",
        ("the address of this access", "register e", "register e was never written", "broken.ptx:1", "lane 0"),
        "    mov.u32 e, smem;\n    ld.shared.b32 a, [e];\n",
    ),
    planted(
        "address computed from such a register",
        """
+    mov.b32 f, i;
    mad.wide.u32 y, f, 4, x;
    st.global.b32 [y], a;
""",
        ("broken.ptx:2", "the address of this access", "register y", "register f was never written", "at broken.ptx:1"),
    ),
    planted(
        "address out of shared memory that was never written",
        """
+    mad.lo.u32 at, warp, 512, at;
+    st.shared.b32 [at], a;
    ld.shared.b32 e, [at];
    and.b32 e, e, 60;
    add.u32 e, e, at;
    ld.shared.b32 f, [e];
""",
        ("broken.ptx:4", "register e", "shared address 0x400 was never written", "read at broken.ptx:1", "warp"),
    ),
    planted(
        "address from another lane that has none",
        """
-@r  mov.b32 e, 1024;
+    mov.b32 e, 1024;
+    st.shared.b32 [at], e;
    shfl.sync.up.b32 f, e, 1, 0, -1;
+    bar.sync 0;
    ld.shared.b32 a, [f];
""",
        ("broken.ptx:3", "register f", "register e was never written", "broken.ptx:2"),
    ),
]

SCANS = [  # a block-wide scan sums parts that nobody wrote, and takes them off again
    planted(
        "another undefined number is taken off a sum",
        """
    ld.shared.b32 e, [at];
    ld.shared.b32 f, [at+4];
    add.u32 a, i, e;
    mov.b32 b, a;
    add.u32 b, b, 3;
-    sub.u32 c, b, f;
+    sub.u32 c, b, e;
    setp.gt.u32 s, c, 40;
@s  bra over;
    mad.wide.u32 y, i, 4, x;
    st.global.b32 [y], c;
over:
""",
        ("this branch", "predicate s", "was never written", "broken.ptx:1"),
    ),
    planted(
        "the number of another lane is taken off a sum",
        """
    ld.shared.b32 e, [at];
    mov.b32 a, i;
    add.u32 a, a, e;
    shfl.sync.bfly.b32 b, a, 1, 31, -1;
    shfl.sync.bfly.b32 d, b, 1, 31, -1;
-    sub.u32 c, b, e;
+    sub.u32 c, d, e;
    setp.gt.u32 s, c, 40;
@s  bra over;
    mad.wide.u32 y, i, 4, x;
    st.global.b32 [y], c;
over:
""",
        ("this branch", "predicate s", "was never written", "broken.ptx:1"),
    ),
    planted(
        "a product is no sum",
        """
    ld.shared.b32 e, [at];
    add.u32 a, i, e;
-    mul.lo.u32 a, a, 3;
    sub.u32 c, a, e;
    setp.gt.u32 s, c, 40;
@s  bra over;
    mad.wide.u32 y, i, 4, x;
    st.global.b32 [y], c;
over:
""",
        ("this branch", "predicate s", "was never written", "broken.ptx:1"),
    ),
    planted(
        "the number was read again after it had changed",
        """
    ld.shared.b32 e, [at];
    add.u32 a, i, e;
-    ld.shared.b32 e, [at+8];
    sub.u32 c, a, e;
    setp.gt.u32 s, c, 40;
@s  bra over;
    mad.wide.u32 y, i, 4, x;
    st.global.b32 [y], c;
over:
""",
        ("this branch", "predicate s", "was never written"),
    ),
]

BRANCHES = [
    Planted(
        "branch by a predicate that was never written",
        "@s  bra over;\n    st.shared.b32 [at], a;\nover:\n",
        ("broken.ptx:1", "this branch", "predicate s", "never written"),
        "    setp.ne.u32 s, warp, 1;\n@s  bra over;\n    st.shared.b32 [at], a;\nover:\n",
    ),
    planted(
        "branch by a comparison of an undefined value",
        """
+    mov.b32 e, 0;
@q  mov.b32 e, 1;
    setp.gt.u32 s, e, 0;
@!s bra over;
    bar.warp.sync -1;
over:
""",
        ("broken.ptx:3", "this branch", "predicate s", "register e was never written", "broken.ptx:2", "warp 1"),
    ),
    planted(
        "loop whose end was never set",
        """
    mov.b32 e, 0;
+    mov.b32 f, 3;
again:
    add.u32 e, e, 1;
    setp.lt.u32 s, e, f;
@s  bra again;
""",
        ("broken.ptx:5", "this branch", "register f was never written", "broken.ptx:4"),
    ),
    planted(
        "undefined index into branch targets",
        """
-    and.b32 e, e, 1;
+    and.b32 e, i, 1;
targets: .branchtargets one, two;
    brx.idx e, targets;
one:
    mov.b32 a, 5;
two:
""",
        ("broken.ptx:3", "the target of this branch", "register e", "broken.ptx:1"),
    ),
]

# Ways that only write registers: what they write is undefined where they join.
WAYS = [
    planted(
        "result of a branch that is undefined",
        """
-    setp.gt.u32 s, e, 0;
+    setp.gt.u32 s, i, 0;
@!s bra over;
    mov.b32 a, 5;
over:
    mad.wide.u32 y, i, 4, x;
    st.global.b32 [y], a;
""",
        ("undefined result, byte 0 of", "k stored it at broken.ptx:6", "register e was never written", "broken.ptx:1"),
    ),
    planted(
        "address after the other way of an undefined branch",
        """
+    setp.gt.u32 s, i, 0;
@s  bra far;
    mov.b32 f, 0;
    bra join;
far:
    mov.b32 f, 64;
join:
    add.u32 f, f, at;
    ld.shared.b32 a, [f];
""",
        ("broken.ptx:8", "the address of this access", "register f", "predicate s was never written", "broken.ptx:1"),
    ),
    planted(
        "guard that a way laid out behind the join writes",
        """
    setp.eq.u32 q, i, 0;
-    setp.gt.u32 s, e, 0;
+    setp.gt.u32 s, i, 0;
@s  bra far;
join:
@q  st.shared.b32 [at], a;
    bra over;
far:
    mov.b32 c, 0;
again:
    add.u32 c, c, 1;
    setp.ge.u32 q, c, 2;
@!q bra again;
    bra join;
over:
""",
        ("broken.ptx:5", "whether this instruction runs", "predicate q", "register e was never written"),
    ),
    planted(
        "an undefined branch within the way of another one",
        """
    setp.gt.u32 s, i, 1;
@s  bra over;
    setp.gt.u32 p, e, 0;
@p  bra over;
    mov.b32 b, 0;
over:
-    mad.wide.u32 y, b, 4, x;
+    mad.wide.u32 y, a, 4, x;
    ld.global.b32 a, [y];
""",
        ("broken.ptx:8", "the address of this access", "register e was never written", "broken.ptx:3"),
    ),
    planted(
        "the carry that one way writes",
        """
    setp.gt.u32 s, e, 0;
    add.cc.u32 d, a, a;
@s  bra over;
    add.cc.u32 d, a, -1;
over:
+    add.cc.u32 d, a, a;
    addc.u32 d, 0, 0;
    mad.wide.u32 y, d, 4, x;
    ld.global.b32 a, [y];
""",
        ("broken.ptx:8", "the address of this access", "register e was never written"),
    ),
    planted(
        "a store on one of the ways",
        """
    setp.gt.u32 s, i, 31;
-@!s mov.b32 a, e;
    setp.ne.u32 p, a, 1;
@p  bra over;
    mov.b32 b, 7;
    st.shared.b32 [at], b;
over:
""".replace("    st.shared", "@!s st.shared"),
        ("broken.ptx:4", "this branch", "predicate p", "register e was never written", "broken.ptx:2"),
    ),
    planted(
        "local memory that one way writes",
        """
    .local .align 4 .b32 own[4];
    st.local.b32 [own], a;
-    setp.gt.u32 s, e, 0;
+    setp.gt.u32 s, i, 0;
@s  bra over;
    st.local.b32 [own], b;
over:
    ld.local.b32 f, [own];
    mad.wide.u32 y, f, 4, x;
    ld.global.b32 a, [y];
""",
        ("broken.ptx:9", "the address of this access", "register e was never written", "broken.ptx:3"),
    ),
    planted(
        "a way that may not end",
        """
-    setp.gt.u32 s, e, 0;
+    setp.gt.u32 s, i, 99;
again:
    add.u32 c, c, 1;
@s  bra again;
""",
        ("broken.ptx:4", "this branch", "predicate s", "register e was never written"),
    ),
]

# Rows that are never stored: their sums are undefined, and so is all that follows from them.
ROWS = """
    .local .align 4 .b32 own[4];
    mad.lo.u32 at, warp, 512, at;
@q  st.shared.b32 [at], i;
    bar.sync 0;
    ld.shared.b32 e, [at];
    {computed}
    mad.wide.u32 y, i, 4, x;
@q  st.global.b32 [y], f;
"""
NEVER_STORED = [
    "setp.eq.f32 s, e, 0f00000000; mov.b32 f, 0; @s bra over; rcp.approx.ftz.f32 f, e; over:",
    "setp.lt.f32 s, e, 0f00800000; @s bra over; lg2.approx.f32 c, e; fma.rn.f32 e, c, e, e; over: mov.b32 f, e;",
    "setp.gt.u32 s, e, 5; @s bra one; mov.b32 f, 1; bra two; one: mov.b32 f, e; two:",
    "setp.gt.u32 s, e, 5; @!s bra two; one: mov.b32 f, e; bra over; two: mov.b32 f, 1; over:",
    "setp.gt.u32 s, e, 5; @s bra far; mov.b32 f, 2; join: bra over; far: mov.b32 f, e; bra join; over:",
    (
        "mov.b32 f, 0; setp.gt.u32 s, e, 5; @s bra over; mov.b32 c, 0; again: add.u32 c, c, 1; setp.lt.u32 s, c, 4;"
        "@s bra again; mov.b32 f, c; over:"
    ),
    (
        "mov.b32 f, 0; setp.gt.u32 s, e, 5; @s bra over; setp.gt.u32 s, e, 2; @s bra over; cvt.u64.u32 w, e;"
        "shr.u64 w, w, 1; cvt.u32.u64 f, w; over:"
    ),
    "mov.b32 f, 0; setp.gt.u32 s, e, 5; @s bra over; ld.global.b32 f, [x]; over:",
    "mov.b32 f, e; setp.gt.u32 s, e, 5; @s bra over; st.local.b32 [own], e; ld.local.b32 f, [own]; over:",
]

GUARDS = [
    Planted(
        "guard of a store that was never written",
        "@s  st.global.b32 [x], a;\n",
        ("broken.ptx:1", "whether this instruction runs", "predicate s", "never written"),
        "    setp.eq.u32 s, i, 0;\n@s  st.global.b32 [x], a;\n",
    ),
    planted(
        "guard that is the carry of nothing",
        """
+    add.cc.u32 e, a, b;
    addc.u32 e, a, b;
    setp.ne.u32 s, e, 3;
@s  red.global.add.u32 [x], a;
""",
        ("broken.ptx:3", "whether this instruction runs", "predicate s", "CC.CF was never written", "broken.ptx:1"),
    ),
    planted(
        "guard from a vote with an undefined lane",
        """
-@q  setp.eq.u32 s, a, 1;
+    setp.eq.u32 s, a, 1;
    vote.sync.all.pred s, s, -1;
@s  st.shared.b32 [at], a;
""",
        ("broken.ptx:3", "predicate s", "never written", "broken.ptx:2", "warp 1"),
    ),
]

OPERANDS = [
    Planted(
        "undefined count of threads at a barrier",
        "    bar.sync 1, e;\n",
        ("broken.ptx:1", "the count of this barrier", "register e"),
        "    mov.b32 e, 64;\n    bar.sync 1, e;\n",
    ),
    Planted(
        "undefined number of a barrier",
        "    and.b32 e, e, 15;\n    bar.sync e;\n",
        ("broken.ptx:2", "the number of this barrier", "register e", "broken.ptx:1"),
        "    mov.b32 e, 15;\n    bar.sync e;\n",
    ),
    Planted(
        "undefined member mask",
        "    or.b32 e, e, 0x0fffffff;\n    shfl.sync.idx.b32 f, a, 0, 31, e;\n",
        ("broken.ptx:2", "the member mask", "register e", "broken.ptx:1"),
        "    mov.b32 e, -1;\n    shfl.sync.idx.b32 f, a, 0, 31, e;\n",
    ),
    Planted(
        "undefined count of an mbarrier",
        "@r  mbarrier.init.shared.b64 [bar], f;\n",
        ("broken.ptx:1", "the count of this mbarrier", "register f"),
        "    mov.b32 f, 64;\n@r  mbarrier.init.shared.b64 [bar], f;\n",
    ),
    planted(
        "wait for an undefined phase",
        """
@r  mbarrier.init.shared.b64 [bar], 1;
-@r  mbarrier.test_wait.parity.shared.b64 s, [bar], e;
+@r  mbarrier.test_wait.parity.shared.b64 s, [bar], 1;
""",
        ("broken.ptx:2", "the phase of this wait", "register e"),
    ),
    planted(
        "undefined size of a bulk copy",
        """
-    st.shared.b32 [at], a;
+@q  st.shared.v4.b32 [at], {a, b, c, d};
    fence.proxy.async.shared::cta;
    bar.warp.sync -1;
@r  mov.u32 f, smem;
-@r  and.b32 e, e, 16;
+@r  mov.b32 e, 16;
@r  cp.async.bulk.global.shared::cta.bulk_group [x], [f], e;
@r  cp.async.bulk.commit_group;
@r  cp.async.bulk.wait_group 0;
""",
        ("broken.ptx:6", "the size of this copy", "register e", "broken.ptx:5"),
    ),
    planted(
        "undefined source size of cp.async",
        """
-    and.b32 e, e, 3;
+    and.b32 e, a, 3;
@q  cp.async.ca.shared.global [at], [x], 4, e;
    cp.async.wait_all;
""",
        ("broken.ptx:2", "the size of this copy", "register e"),
    ),
]

RESULTS = [
    Planted(
        "result that was never computed",
        "    mad.wide.u32 y, i, 4, x;\n    st.global.b32 [y], e;\n",
        ("undefined result", "byte 0 of", "k stored it at broken.ptx:2", "register e was never written", "lane 0"),
        "    mad.wide.u32 y, i, 4, x;\n    st.global.b32 [y], i;\n",
    ),
    planted(
        "result with one undefined byte",
        """
-    prmt.b32 e, a, f, 0x3410;
+    prmt.b32 e, a, f, 0x3210;
    mad.wide.u32 y, i, 4, x;
    st.global.b32 [y], e;
""",
        ("undefined result, byte 2 of", "k stored it at broken.ptx:3", "register f was never written", "broken.ptx:1"),
    ),
    planted(
        "result copied out of shared memory that one warp has not filled",
        """
    mad.lo.u32 at, warp, 512, at;
-@q  st.shared.b32 [at], a;
+    st.shared.b32 [at], a;
    bar.sync 0;
    ld.shared.b32 e, [at];
    mad.wide.u32 y, i, 4, x;
    st.global.b32 [y], e;
""",
        ("undefined result, byte 128 of", "broken.ptx:6", "shared address 0x600 was never written", "broken.ptx:4"),
    ),
    Planted(
        "sum with an undefined term",
        "    red.global.add.u32 [x], e;\n",
        ("undefined result, byte 0 of", "broken.ptx:1", "register e was never written"),
        "    red.global.add.u32 [x], a;\n",
    ),
    planted(
        "bulk store of a row that is half written",
        """
@r  mov.u32 f, smem;
-@r  st.shared.v2.b32 [f], {a, b};
+@r  st.shared.v4.b32 [f], {a, b, c, d};
@r  fence.proxy.async.shared::cta;
@r  cp.async.bulk.global.shared::cta.bulk_group [x], [f], 16;
@r  cp.async.bulk.commit_group;
@r  cp.async.bulk.wait_group 0;
""",
        ("undefined result, byte 8 of", "broken.ptx:4", "shared address 0x408 was never written"),
    ),
    planted(
        "product with an undefined row of A",
        """
@!r mov.b32 e, 0;
    mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {a, b}, {e, c}, {d}, {a, b};
    mad.wide.u32 y, i, 4, x;
-    st.global.b32 [y], a;
+    st.global.b32 [y], b;
""",
        ("undefined result, byte 0 of", "broken.ptx:4", "register e was never written", "broken.ptx:2"),
    ),
]

UNSPECIFIED = [
    planted(
        "quotient by zero that reaches a result",
        """
    and.b32 f, i, 1;
+    max.u32 f, f, 1;
    div.u32 e, i, f;
    mad.wide.u32 y, i, 4, x;
    st.global.b32 [y], e;
""",
        (
            "undefined result, byte 0 of",
            "stored it at broken.ptx:4",
            "quotient or remainder of a division by zero",
            "ptx:2",
        ),
    ),
    planted(
        "remainder by zero that decides an address",
        """
    mov.b64 y, 0;
    mov.b64 w, 5;
-    rem.s64 w, w, y;
+    rem.s64 w, w, 3;
    and.b64 w, w, 4;
    add.u64 y, x, w;
    ld.global.b32 a, [y];
""",
        ("broken.ptx:6", "the address of this access", "of a division by zero at broken.ptx:3"),
    ),
    planted(
        "quotient of 16 bits by zero",
        """
    mov.b16 h, 3;
-    div.s16 h, h, 0;
+    div.s16 h, h, -1;
    setp.lt.s16 s, h, 0;
@s  st.shared.b32 [at], a;
""",
        ("broken.ptx:4", "whether this instruction runs", "of a division by zero at broken.ptx:2"),
    ),
    planted(
        "a line that was discarded is read",
        """
@r  discard.global.L2 [x + 128], 128;
    bar.sync 0;
-    ld.global.b32 e, [x + 252];
+    ld.global.b32 e, [x + 256];
+    mad.wide.u32 y, lane, 4, x;
+    st.global.b32 [y + 128], a;
    setp.eq.u32 s, e, 0;
@s  st.shared.b32 [at], a;
""",
        ("broken.ptx:5", "whether this instruction runs", "k discarded it at broken.ptx:1"),
    ),
    planted(
        "the host reads a line that was discarded",
        """
@r  discard.global.L2 [x], 128;
    bar.sync 0;
    mad.wide.u32 y, i, 4, x;
-@p  st.global.b32 [y], i;
+    st.global.b32 [y], i;
""",
        ("undefined result, byte 0 of", "k discarded it at broken.ptx:1", "lane 0"),
    ),
]

UNDEFINED = [*UNSPECIFIED, *ADDRESSES, *SCANS, *BRANCHES, *WAYS, *GUARDS, *OPERANDS, *RESULTS]
