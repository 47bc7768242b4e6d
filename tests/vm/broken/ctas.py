"""Races in global memory: between CTAs, between warps, between the proxies. Level full finds them."""

from broken.planted import Planted

LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"

# thread 0 of CTA 0 writes x[1] and raises x[0]; all threads of the others wait for it and read
MESSAGE = """
    setp.ne.u32 s, n, 0;
@s  bra wait;
@r  st.global.b32 [x + 4], 7;
    {before}
@r  {raise} [x], 1;
    bra over;
wait:
    {wait} a, [x];
    setp.eq.u32 s, a, 0;
@s  bra wait;
    {behind}
    ld.global.b32 b, [x + 4];
over:
"""


def message(raised: str, wait: str, before: str = "", behind: str = "") -> str:
    """Write the kernel with its flag in one way or another."""
    return MESSAGE.replace("{raise}", raised).format(wait=wait, before=before, behind=behind)


RIGHT_MESSAGE = message("st.release.gpu.global.b32", "ld.acquire.gpu.global.b32")
RIGHT_FENCES = message(
    "st.relaxed.gpu.global.b32", "ld.relaxed.gpu.global.b32", "fence.acq_rel.gpu;", "fence.acq_rel.gpu;"
)
BETWEEN_CTAS = ("data race: read of 4 bytes at global address", "(byte 4 of 4096)", "expected a release and an acquire")
UNLIKE_SCOPES = ("data race", "expected scope .gpu or .sys for both")

# the sum of all CTAs' numbers by the last of them: each leaves its own at x[2 + n] and counts at x[0]
LAST = """
@!r bra over;
    mad.wide.u32 y, n, 4, x;
    st.global.b32 [y + 8], n;
    {fence}
    atom.{order}global.inc.u32 a, [x], 1000;
    mov.u32 b, %nctaid.x;
    sub.u32 b, b, 1;
    setp.ne.u32 s, a, b;
@s  bra over;
    {fence_behind}
    mov.b32 c, 0;
add:
    mad.wide.u32 y, b, 4, x;
    ld.global.b32 d, [y + 8];
    add.u32 c, c, d;
    sub.u32 b, b, 1;
    setp.ge.s32 s, b, 0;
@s  bra add;
    st.global.b32 [x + 4], c;
over:
"""


def last(order: str, fence: str = "", fence_behind: str = "") -> str:
    """Write the kernel with its order in one way or another."""
    return LAST.format(order=order, fence=fence, fence_behind=fence_behind)


RIGHT_LAST = last("", "membar.gl;", "membar.gl;")

# thread 0 of each CTA counts at x[0]; one of them resets the counter, which needs no order if it was the last
RESET = """
@!r bra over;
    atom.global.add.u32 a, [x], 1;
    mov.u32 b, %nctaid.x;
    sub.u32 b, b, {which};
    setp.eq.u32 s, a, b;
@s  st.global.b32 [x], 0;
over:
"""

# CTA 0 fills 64 words, thread 0 of CTA 1 copies them by bulk
BULK_READ = f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
    mad.wide.u32 y, i, 4, x;
    setp.ne.u32 s, n, 0;
@s  bra wait;
    st.global.b32 [y + 256], i;
    {{fence}}
    bar.sync 0;
@r  st.release.gpu.global.b32 [x], 1;
    bra over;
wait:
@!r bra over;
    ld.acquire.gpu.global.b32 a, [x];
    setp.eq.u32 s, a, 0;
@s  bra wait;
    {{fence_behind}}
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 256;
    {LOAD} [smem], [x + 256], 256, [bar];
done:
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
@!s bra done;
over:
"""

# every lane of CTA 0 issues the same bulk store
LANES_STORE = f"""
    setp.ne.u32 s, n, 0;
@s  bra over;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    {STORE} [x], [{{source}}], 64;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
over:
"""

# one warp writes, the other reads by bulk in the same CTA
BULK_OWN = f"""
@r  mbarrier.init.shared.b64 [bar], 1;
    mad.wide.u32 y, i, 4, x;
    st.global.b32 [y + 256], i;
    {{fence}}
    bar.sync 0;
@!r bra over;
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 256;
    {LOAD} [smem], [x + 256], 256, [bar];
done:
    mbarrier.try_wait.parity.shared.b64 s, [bar], 0;
@!s bra done;
over:
"""

# CTA 0 stores by bulk and signals, CTA 1 reads
BULK_WRITE = f"""
    setp.ne.u32 s, n, 0;
@!r bra over;
@s  bra wait;
    st.shared.b32 [smem], 7;
    fence.proxy.async.shared::cta;
    {STORE} [x + 256], [smem], 256;
    cp.async.bulk.commit_group;
    {{early}}
    st.release.gpu.global.b32 [x], 1;
    {{late}}
    bra over;
wait:
    ld.acquire.gpu.global.b32 a, [x];
    setp.eq.u32 s, a, 0;
@s  bra wait;
    ld.global.b32 b, [x + 256];
over:
"""

WAIT = "cp.async.bulk.wait_group 0;"

# every CTA adds 64 words by bulk to a part that thread 0 of CTA 0 has cleared, or not cleared in this kernel
BULK_ADD = f"""
    {{clear}}
@!r bra over;
    {REDUCE} [x + 256], [smem], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    {{read}}
over:
"""

CTAS = [
    Planted(
        "two CTAs write",
        "    st.global.b32 [x + 4], n;",
        ("data race: write of 4 bytes", "the write by CTA"),
        "    st.global.b32 [x + 4], 3;",
    ),
    Planted(
        "two CTAs write bytes: neighbours are no race",
        "    cvt.u16.u32 h, n;\n    st.global.b8 [x + 5], h;",
        ("data race: write of 1 bytes", "(byte 5 of 4096)"),
        "    cvt.u64.u32 y, n;\n    add.u64 y, y, x;\n    mov.b16 h, 3;\n    st.global.b8 [y + 5], h;",
    ),
    Planted(
        "one CTA reads what another writes",
        "    mul.wide.u32 y, n, 4;\n    add.u64 y, y, x;\n@r  ld.global.b32 a, [x + 4];\n    add.u32 b, n, 1;\n"
        "@r  st.global.b32 [y + 4], b;",
        ("data race", "(byte 4 of 4096)"),
        "    mul.wide.u32 y, n, 4;\n    add.u64 y, y, x;\n@r  ld.global.b32 a, [y + 4];\n    add.u32 b, n, 1;\n"
        "    bar.sync 0;\n@r  st.global.b32 [y + 4], b;",
    ),
    Planted(
        "two warps of a CTA",
        "    mad.wide.u32 y, n, 4, x;\n@r  st.global.b32 [y], i;\n@p  ld.global.b32 b, [y];",
        ("data race", "by warp", "expected a barrier"),
        "    mad.wide.u32 y, n, 4, x;\n@r  st.global.b32 [y], i;\n    bar.sync 0;\n@p  ld.global.b32 b, [y];",
    ),
    Planted(
        "a release of the CTA",
        message("st.release.cta.global.b32", "ld.acquire.gpu.global.b32"),
        UNLIKE_SCOPES,
        RIGHT_MESSAGE,
    ),
    Planted(
        "an acquire of the CTA",
        message("st.release.gpu.global.b32", "ld.acquire.cta.global.b32"),
        UNLIKE_SCOPES,
        RIGHT_MESSAGE,
    ),
    Planted(
        "no release", message("st.relaxed.gpu.global.b32", "ld.acquire.gpu.global.b32"), BETWEEN_CTAS, RIGHT_MESSAGE
    ),
    Planted(
        "no acquire", message("st.release.gpu.global.b32", "ld.relaxed.gpu.global.b32"), BETWEEN_CTAS, RIGHT_MESSAGE
    ),
    Planted(
        "a weak poll",
        message("st.release.gpu.global.b32", "ld.global.b32"),
        ("data race", "broken.ptx:"),
        RIGHT_MESSAGE,
    ),
    Planted(
        "no fence before the flag",
        message("st.relaxed.gpu.global.b32", "ld.relaxed.gpu.global.b32", "", "fence.acq_rel.gpu;"),
        BETWEEN_CTAS,
        RIGHT_FENCES,
    ),
    Planted(
        "no fence behind the flag",
        message("st.relaxed.gpu.global.b32", "ld.relaxed.gpu.global.b32", "fence.acq_rel.gpu;"),
        BETWEEN_CTAS,
        RIGHT_FENCES,
    ),
    Planted(
        "a fence of the CTA before the flag",
        message("st.volatile.global.b32", "ld.volatile.global.b32", "membar.cta;", "membar.gl;"),
        BETWEEN_CTAS,
        message("st.volatile.global.b32", "ld.volatile.global.b32", "membar.gl;", "membar.gl;"),
    ),
    Planted(
        "a fence of the CTA behind the flag",
        message("st.volatile.global.b32", "ld.volatile.global.b32", "membar.sys;", "fence.sc.cta;"),
        BETWEEN_CTAS,
        message("st.volatile.global.b32", "ld.volatile.global.b32", "membar.sys;", "fence.sc.gpu;"),
    ),
    Planted(
        "counters of two scopes",
        "    red.relaxed.cta.global.add.u32 [x], 1;",
        UNLIKE_SCOPES,
        "    red.relaxed.gpu.global.add.u32 [x], 1;",
    ),
    Planted(
        "a counter and a plain store",
        "    red.global.add.u32 [x], 1;\n@r  st.global.b32 [x], n;",
        ("data race",),
        "    red.global.add.u32 [x], 1;\n@r  st.relaxed.gpu.global.b32 [x], n;",
    ),
    Planted("the last CTA without a fence", last("relaxed.gpu."), BETWEEN_CTAS[:1], RIGHT_LAST),
    Planted("the last CTA without a fence behind the counter", last("", "membar.gl;"), BETWEEN_CTAS[:1], RIGHT_LAST),
    Planted("the last CTA with a release only", last("release.gpu."), BETWEEN_CTAS[:1], last("acq_rel.gpu.")),
    Planted("a counter that the last CTA but one resets", RESET.format(which=2), ("data race",), RESET.format(which=1)),
    Planted(
        "a compare-and-swap after a weak guess, and a read that is none",
        "    ld.global.b32 a, [x];\n    atom.global.cas.b32 b, [x], a, n;\n    ld.global.b32 c, [x];",
        ("data race: ", "broken.ptx:3", "(byte 0 of 4096)"),
        "    ld.global.b32 a, [x];\nagain:\n    add.u32 c, a, 1;\n    mov.b32 b, a;\n"
        "    atom.global.cas.b32 a, [x], b, c;\n    setp.ne.u32 s, a, b;\n@s  bra again;",
    ),
    Planted(
        "a bulk load of what another CTA wrote, without a proxy fence",
        BULK_READ.format(fence="", fence_behind=""),
        ("bulk load of 256 bytes at global address", "broken.ptx:6", "expected fence.proxy.async.global"),
        BULK_READ.format(fence="fence.proxy.async.global;", fence_behind=""),
    ),
    Planted(
        "a bulk load of what another CTA wrote, with a fence of shared memory",
        BULK_READ.format(fence="", fence_behind="fence.proxy.async.shared::cta;"),
        ("bulk load of 256 bytes at global address", "broken.ptx:6", "expected fence.proxy.async.global"),
        BULK_READ.format(fence="", fence_behind="fence.proxy.async;"),
    ),
    Planted(
        "a bulk load of what the own CTA wrote, without a proxy fence",
        BULK_OWN.format(fence=""),
        ("bulk load of 256 bytes at global address", "the write by warp", "expected fence.proxy.async.global"),
        BULK_OWN.format(fence="fence.proxy.async.global;"),
        1,
    ),
    Planted(
        "a signal before the bulk store has written",
        BULK_WRITE.format(early="", late=WAIT),
        ("data race: read of 4 bytes", "the bulk store by CTA 0,0,0, warp 0"),
        BULK_WRITE.format(early=WAIT, late=""),
    ),
    Planted(
        "a signal when the bulk store has read",
        BULK_WRITE.format(early="cp.async.bulk.wait_group.read 0;", late=""),
        ("data race: read of 4 bytes", "the bulk store by CTA 0,0,0, warp 0", "cp.async.bulk.wait_group, without"),
        BULK_WRITE.format(early=WAIT, late=""),
    ),
    Planted(
        "strong accesses of two sizes to one flag, by two CTAs",
        "    setp.eq.u32 s, n, 0;\n@s  st.relaxed.gpu.global.b64 [x], 5;\n@!s ld.relaxed.gpu.global.b32 a, [x + 4];",
        ("data race", "expected one size for both"),
        "    setp.eq.u32 s, n, 0;\n@s  st.relaxed.gpu.global.b64 [x], 5;\n@!s ld.relaxed.gpu.global.b64 y, [x];",
    ),
    Planted(
        "atomic operations of two sizes, by two CTAs",
        "    setp.eq.u32 s, n, 0;\n@s  red.global.add.u64 [x], 1;\n@!s red.global.add.u32 [x], 1;",
        ("data race: atomic access", "expected one size for both"),
        "    red.global.add.u64 [x], 1;\n    red.global.add.noftz.f16x2 [x + 8], a;",
    ),
    Planted(
        ".nc for what the thread itself has written",
        "    mad.wide.u32 y, i, 4, x;\n    mad.wide.u32 y, n, 256, y;\n    st.global.b32 [y], i;\n"
        "    ld.global.nc.b32 a, [y];",
        ("read by ld.global.nc of", "and the write by warp", "broken.ptx:3", "expected .nc only for what no thread"),
        "    mad.wide.u32 y, i, 4, x;\n    mad.wide.u32 y, n, 256, y;\n    st.global.b32 [y], i;\n"
        "    ld.global.b32 a, [y];\n    ld.global.nc.b32 a, [y + 1024];",
    ),
    Planted(
        ".nc for what a later barrier lets others write",
        "    mad.wide.u32 y, n, 4, x;\n    ld.global.nc.b32 a, [y];\n    ld.global.b32 b, [y];\n    bar.sync 0;\n"
        "@r  st.global.b32 [y], i;\n@r  st.global.b32 [y], 7;",
        ("write of 4 bytes", "and the read by ld.global.nc by warp", "broken.ptx:2"),
        "    mad.wide.u32 y, n, 4, x;\n    ld.global.b32 a, [y];\n    bar.sync 0;\n@r  st.global.b32 [y], 7;",
    ),
    Planted(
        "a line is discarded while another CTA reads it",
        "    setp.eq.u32 s, n, 0;\n    setp.eq.and.u32 s, i, 0, s;\n@s  discard.global.L2 [x], 128;\n"
        "    ld.global.b32 a, [x + 124];",
        ("data race", "broken.ptx:3", "broken.ptx:4"),
        "    setp.eq.u32 s, n, 0;\n    setp.eq.and.u32 s, i, 0, s;\n@s  discard.global.L2 [x], 128;\n"
        "    ld.global.b32 a, [x + 128];",
    ),
    Planted(
        "all lanes issue one bulk store, from sources of their own",
        LANES_STORE.format(source="at"),
        ("data race: bulk store of 64 bytes", "and the bulk store by warp", "broken.ptx:5"),
        LANES_STORE.format(source="smem"),
    ),
    Planted(
        "bulk reductions into what is cleared at the same time",
        BULK_ADD.format(clear="mad.wide.u32 y, i, 4, x;\n@!p st.global.b32 [y + 256], 1;", read=""),
        ("bulk reduction", "broken.ptx:"),
        BULK_ADD.format(clear="", read=""),
    ),
    Planted(
        "a sum of bulk reductions is read while others add",
        BULK_ADD.format(clear="", read="ld.global.b32 a, [x + 256];"),
        ("data race", "bulk reduction", "broken.ptx:"),
        BULK_ADD.format(clear="", read="atom.global.add.u32 a, [x + 256], 0;"),
    ),
]
CTAS = [planted._replace(ctas=planted.ctas if "own CTA" in planted.name else 2, levels=("full",)) for planted in CTAS]
