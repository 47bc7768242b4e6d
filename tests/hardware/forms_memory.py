"""Forms that access memory: loads, stores, atomics, matrices in shared memory, asynchronous copies, mbarriers.

Every thread uses its own 16 bytes, so that results do not depend on the order in which threads run.
"""

from collections.abc import Iterator

from form import Form, form
from operands import product

TYPES = ["b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"]
QUAD = "b32 b32 b32 b32"
FILL = "st.shared.v4.b32 [cell], {in0, in1, in2, in3};"
READ = "ld.shared.v4.b32 {out0, out1, out2, out3}, [cell];"


def loads() -> Iterator[Form]:
    for t in TYPES:
        size = int(t[1:]) // 8
        for bits in (b for b in (16, 32, 64) if b >= 8 * size and (t[0] != "f" or b == 8 * size)):
            kind = t if t[0] == "f" else f"b{bits}"
            yield form(f"ld.global.{t} out0, [at_in0 + {size}];", "m", kind, 256)
            yield form(f"{FILL} ld.shared.{t} out0, [cell + {16 - size}];", QUAD, kind, 256)
        kind = t if t[0] == "f" else f"b{max(16, 8 * size)}"
        for count in (n for n in (2, 4) if n * size <= 16):
            outs = ", ".join(f"out{k}" for k in range(count))
            yield form(f"ld.global.v{count}.{t} {{{outs}}}, [at_in0];", "m", " ".join([kind] * count), 256)
            ins = ", ".join(f"in{k}" for k in range(count))
            text = f"st.shared.v{count}.{t} [cell], {{{ins}}}; ld.shared.v{count}.{t} {{{outs}}}, [cell];"
            yield form(text, " ".join([kind] * count), " ".join([kind] * count), 256)
            yield form(f"st.global.v{count}.{t} [at_out0], {{{ins}}};", " ".join([kind] * count), "m", 256)
        for bits in (b for b in (16, 32, 64) if b >= 8 * size and (t[0] != "f" or b == 8 * size)):
            source = t if t[0] == "f" else f"b{bits}"
            yield form(f"st.global.{t} [at_out0 + {size}], in0;", source, "m", 256)
            text = f"{FILL} st.shared.{t} [cell + {16 - size}], in4; {READ}"
            yield form(text, f"{QUAD} {source}", QUAD, 256)
    yield form("ld.global.b128 x0, [at_in0]; mov.b128 {out0, out1}, x0;", "m", "b64 b64", 256)
    yield form("mov.b128 x0, {in0, in1}; st.global.b128 [at_out0], x0;", "b64 b64", "m", 256)
    yield form("st.global.b128 [at_out0], -5;", "", "m", 256)
    yield form("mov.b128 x0, 0xfedcba9876543210; mov.b128 {out0, out1}, x0;", "", "b64 b64", 256)
    for how in ("ca", "cg", "cs", "lu", "cv", "nc", "volatile", "relaxed.gpu", "acquire.gpu", "relaxed.sys", "weak"):
        order = f".{how}.global" if how[:2] in {"vo", "re", "ac", "we"} else f".global.{how}"
        yield form(f"ld{order}.u32 out0, [at_in0 + 4];", "m", "b32", 256)
    for how in ("wb", "cg", "cs", "wt", "volatile", "relaxed.gpu", "release.gpu", "relaxed.sys", "weak"):
        order = f".{how}.global" if how[:2] in {"vo", "re", "we"} else f".global.{how}"
        yield form(f"st{order}.b32 [at_out0 + 8], in0;", "b32", "m", 256)
    text = ".local .align 16 .b8 mine[16]; mov.u32 t0, mine;"
    yield form(f"{text} st.local.v4.b32 [t0], {{in0, in1, in2, in3}}; ld.local.s8 out0, [t0 + 9];", QUAD, "b32", 256)
    text += " cvta.local.u64 w0, mine; st.v2.b32 [w0], {in0, in1}; st.v2.b32 [w0 + 8], {in2, in3};"
    yield form(f"{text} ld.local.u16 out0, [t0 + 6]; ld.u64 out1, [w0 + 8];", QUAD, "b32 b64", 256)
    text = "cvt.u64.u32 w0, cell; cvta.shared.u64 w0, w0; st.v4.b32 [w0], {in0, in1, in2, in3};"
    yield form(f"{text} ld.shared.u16 out0, [cell + 6]; ld.u64 out1, [w0 + 8];", QUAD, "b32 b64", 256)
    text = "cvt.u64.u32 w0, cell; cvta.shared.u64 w0, w0; cvta.to.shared.u64 w1, w0; cvt.u32.u64 t0, w1; sub.u32 out0, t0, cell;"
    yield form(f"{text} isspacep.shared out1, w0; isspacep.global out2, w0;", "", "b32 p p", 256)
    yield form(
        "cvta.to.global.u64 w0, at_in0; ld.global.u32 out0, [w0]; isspacep.global out1, at_in0;", "m", "b32 p", 256
    )


def atomic_operations() -> Iterator[tuple[str, str, str, str]]:
    """List (operation, type, kind of the operands, kinds of space)."""
    for t in ("u32", "s32", "u64"):
        yield "add", t, t, "gs"
    for t in ("u32", "s32", "u64", "s64"):
        yield "min", t, t, "gs"
        yield "max", t, t, "gs"
    for op, bits in product(("and", "or", "xor"), ("b32", "b64")):
        yield op, bits, bits, "gs"
    for op in ("inc", "dec"):
        yield op, "u32", "u32", "gs"
        yield op, "u32", "u32:9", "gs"
    for t in ("f32", "f64"):
        yield "add", t, t, "gs"
    for t in ("f16", "f16x2", "bf16", "bf16x2"):
        yield "add.noftz", t, t, "gs"


def atomics() -> Iterator[Form]:
    for op, t, kind, _ in atomic_operations():
        kinds = f"{kind} {kind}"
        reg = "b" + str(int(t.lstrip("bfus").split("x")[0]) * (2 if "x" in t else 1))
        wide = t if t in {"f32", "f64"} else reg
        for space, at in (("global", "at_out1"), ("shared", "cell")):
            text = (
                f"st.{space}.{reg} [{at}], in0; atom.{space}.{op}.{t} out0, [{at}], in1; ld.{space}.{reg} out1, [{at}];"
            )
            yield form(text, kinds, f"{wide} {wide}")
            text = f"st.{space}.{reg} [{at}], in0; red.{space}.{op}.{t} [{at}], in1; ld.{space}.{reg} out1, [{at}]; mov.{reg} out0, in1;"
            yield (
                form(
                    text.replace("out0", "h14" if wide == "b16" else "t14" if "32" in wide else "w7").replace(
                        "out1", "out0"
                    ),
                    kinds,
                    wide,
                )
                if (wide[0] == "b")
                else form(text.replace(f" mov.{reg} out0, in1;", "").replace("out1", "out0"), kinds, wide)
            )
    for space, at in (("global", "at_out1"), ("shared", "cell")):
        for bits in ("b32", "b64"):
            text = f"st.{space}.{bits} [{at}], in0; atom.{space}.exch.{bits} out0, [{at}], in1; ld.{space}.{bits} out1, [{at}];"
            yield form(text, f"{bits} {bits}", f"{bits} {bits}", 256)
        for bits in ("b16", "b32", "b64"):
            text = f"st.{space}.{bits} [{at}], in0; atom.{space}.cas.{bits} out0, [{at}], in1, in2; ld.{space}.{bits} out1, [{at}];"
            yield form(text, f"{bits}:1 {bits}:1 {bits}", f"{bits} {bits}", 256)
        pair = "mov.b128 x0, {in0, in1}; mov.b128 x1, {in2, in3};"
        place = at.replace("out1", "out4")
        tail = f"ld.{space}.b128 x3, [{place}]; mov.b128 {{out0, out1}}, x2; mov.b128 {{out2, out3}}, x3;"
        outs = "b64 b64 b64 b64" + (" m" if space == "global" else "")
        text = f"{pair} st.{space}.b128 [{place}], x0; atom.{space}.exch.b128 x2, [{place}], x1; {tail}"
        yield form(text, "b64 b64 b64 b64", outs, 256)
        text = f"{pair} mov.b128 x3, {{in0, in4}}; st.{space}.b128 [{place}], x0; atom.{space}.cas.b128 x2, [{place}], x3, x1; {tail}"
        yield form(text, "b64:1 b64:1 b64 b64 b64:1", outs, 256)
    for order in ("relaxed.gpu", "acquire.gpu", "release.gpu", "acq_rel.gpu", "relaxed.sys", "acq_rel.cta"):
        yield form(
            f"st.global.b32 [at_out1], in0; atom.{order}.global.add.u32 out0, [at_out1], in1; ld.global.b32 out1, [at_out1];",
            "u32 u32",
            "u32 u32",
            256,
        )
    text = "st.global.b32 [at_out1], in0; atom.add.u32 out0, [at_out1], in1; ld.global.b32 out1, [at_out1];"
    yield form(text, "u32 u32", "u32 u32", 256)


def vector_atomics() -> Iterator[Form]:
    for count in (2, 4):
        olds = ", ".join(f"out{k + 1}" for k in range(count))
        values = ", ".join(f"in{k + 4}" for k in range(count))
        fill = "st.global.v4.f32 [at_out0], {in0, in1, in2, in3};"
        ins = " ".join(["f32"] * 8)
        yield form(
            f"{fill} atom.global.add.v{count}.f32 {{{olds}}}, [at_out0], {{{values}}};", ins, "m" + " f32" * count, 768
        )
        yield form(f"{fill} red.global.add.v{count}.f32 [at_out0], {{{values}}};", ins, "m", 768)
        for t, op in product(("f16x2", "bf16x2"), ("add", "min", "max")):
            fill = "st.global.v4.b32 [at_out0], {in0, in1, in2, in3};"
            text = f"{fill} atom.global.{op}.noftz.v{count}.{t} {{{olds}}}, [at_out0], {{{values}}};"
            yield form(text, " ".join([t] * 8), "m" + " b32" * count)
            yield form(f"{fill} red.global.{op}.noftz.v{count}.{t} [at_out0], {{{values}}};", " ".join([t] * 8), "m")
    for count, t, op in product((2, 4, 8), ("f16", "bf16"), ("add", "min", "max")):
        values = ", ".join(f"in{k}" for k in range(count))
        olds = ", ".join(f"out{k + 1}" for k in range(count))
        fill = f"ld.global.v4.b32 {{t0, t1, t2, t3}}, [at_in{count}]; st.global.v4.b32 [at_out0], {{t0, t1, t2, t3}};"
        text = f"{fill} atom.global.{op}.noftz.v{count}.{t} {{{olds}}}, [at_out0], {{{values}}};"
        yield form(text, " ".join([t] * count) + " m", "m" + " b16" * count, 256)


def matrices() -> Iterator[Form]:
    rows = "mad.lo.u32 t0, lane, 5, 3; and.b32 t0, t0, 31; sub.u32 t0, t0, lane; mad.lo.s32 t0, t0, 16, cell;"
    for count, trans in product((1, 2, 4), ("", ".trans")):
        outs, ins = (", ".join(f"{name}{k + first}" for k in range(count)) for name, first in (("out", 0), ("in", 4)))
        text = f"{FILL} bar.sync 0; {rows} ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{outs}}}, [t0];"
        yield form(text, QUAD, " ".join(["b32"] * count), 256)
        text = f"{FILL} bar.sync 0; {rows} stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [t0], {{{ins}}}; bar.sync 0; {READ}"
        yield form(text, f"{QUAD} {' '.join(['b32'] * count)}", QUAD, 256)
    yield form("movmatrix.sync.aligned.m8n8.trans.b16 out0, in0;", "b32", "b32", 256)


def copies() -> Iterator[Form]:
    tail = f"cp.async.wait_all; {READ}"
    for how, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        start = f"{FILL} cp.async.{how}.shared.global"
        offset = "" if size == 16 else f" + {size}"
        yield form(f"{start} [cell{offset}], [at_in4{offset}], {size}; {tail}", f"{QUAD} m", QUAD, 256)
        yield form(f"{start} [cell{offset}], [at_in4], {size}, in5; {tail}", f"{QUAD} m u32:{size}", QUAD, 256)
        text = f"setp.ne.u32 p, in5, 0; {start} [cell{offset}], [at_in4], {size}, p; {tail}"
        yield form(text, f"{QUAD} m u32:1", QUAD, 256)
    text = f"{FILL} cp.async.ca.shared.global [cell], [at_in4], 4; cp.async.commit_group; cp.async.ca.shared.global [cell + 8], [at_in4 + 8], 8;"
    yield form(f"{text} cp.async.commit_group; cp.async.wait_group 0; {READ}", f"{QUAD} m", QUAD, 256)


def bounded_wait(parity: str) -> str:
    """Write a wait that gives up in the end, so that a wrong form cannot hang the recording."""
    return f"""mov.u32 t9, 0; wait: mbarrier.try_wait.parity.shared.b64 p, [smem + 2048], {parity};
        add.u32 t9, t9, 1; setp.gt.u32 q, t9, 1000000; or.pred p, p, q; @!p bra wait;"""


def bulk_copies() -> Iterator[Form]:
    start = f"""{FILL} setp.eq.u32 r, i, 0; @r mbarrier.init.shared.b64 [smem + 2048], 1;
        @r fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; bar.sync 0;"""
    for to, source, size in ((0, 0, 2048), (16, 32, 1024), (1024, 0, 16)):
        text = f"""{start} @r mbarrier.arrive.expect_tx.shared.b64 _, [smem + 2048], {size};
        @r cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [smem + {to}], [at_in4 + {source}], {size}, [smem + 2048];
        {bounded_wait("0")} {READ}"""
        yield form(text, f"{QUAD} m", QUAD, 256, 2056)
        text = f"""{FILL} setp.eq.u32 r, i, 0; fence.proxy.async.shared::cta; bar.sync 0;
        @r cp.async.bulk.global.shared::cta.bulk_group [at_out0 + {to}], [smem + {source}], {size};
        @r cp.async.bulk.commit_group; @r cp.async.bulk.wait_group 0;"""
        yield form(text, QUAD, "m", 256)


def bulk_reductions() -> Iterator[Form]:
    operations = [("add", t) for t in ("u32", "s32", "u64", "f32", "f64")]
    operations += [("add.noftz", t) for t in ("f16", "bf16")]
    operations += [(op, t) for op in ("min", "max") for t in ("u32", "s32", "u64", "s64", "f16", "bf16")]
    operations += [("inc", "u32"), ("dec", "u32")]
    operations += [(op, t) for op in ("and", "or", "xor") for t in ("b32", "b64")]
    for op, t in operations:
        bits = int(t.lstrip("bfus"))
        kind = f"{t}x2" if bits == 16 else t
        count = 2 if bits == 64 else 4
        move = f"v{count}." + ("b32" if bits == 16 else t if t[0] == "f" else f"b{bits}")
        values, old = (", ".join(f"in{k + x * count}" for k in range(count)) for x in (0, 1))
        text = f"""st.shared.{move} [cell], {{{values}}}; st.global.{move} [at_out0], {{{old}}};
        setp.eq.u32 r, i, 0; fence.proxy.async; bar.sync 0;
        @r cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{t} [at_out0], [smem], 2048;
        @r cp.async.bulk.commit_group; @r cp.async.bulk.wait_group 0;"""
        yield form(text, " ".join([kind] * 2 * count), "m", 384 if t[0] in "fb" else 256)


def mbarriers() -> Iterator[Form]:
    """Make sequences on a barrier of one's own: of a state, which is opaque, only what PTX lets one ask is kept."""
    init = "mbarrier.init.shared.b64 [cell], in0;"
    count = "u32:1,5"

    def pending(k: int, state: str) -> str:
        return f" mbarrier.pending_count.b64 out{k}, {state};"

    def waits(k: int, parity: int) -> str:
        return f" mbarrier.test_wait.parity.shared.b64 out{k}, [cell], {parity};"

    def complete(size: int) -> str:
        return f" mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [cell], {size};"

    text = f"{init} mbarrier.arrive.shared.b64 w0, [cell]; mbarrier.test_wait.shared.b64 out0, [cell], w0;"
    yield form(text + pending(1, "w0"), count, "p b32", 256)
    text = f"{init} add.u32 t0, in0, 1; mbarrier.init.shared.b64 [cell + 8], t0;"
    text += " mbarrier.arrive.shared.b64 w0, [cell + 8], in0; mbarrier.test_wait.shared.b64 out0, [cell + 8], w0;"
    text += " mbarrier.arrive.shared.b64 w1, [cell + 8]; mbarrier.test_wait.shared.b64 out1, [cell + 8], w0;"
    yield form(text + pending(2, "w0") + pending(3, "w1"), count, "p p b32 b32", 256)
    for parity in (0, 1):
        text = init + waits(0, parity) + " mbarrier.arrive.shared.b64 _, [cell], in0;" + waits(1, parity)
        yield form(text + " mbarrier.arrive.shared.b64 _, [cell];" + waits(2, parity), count, "p p p", 256)
        text = f"{init} mbarrier.arrive.expect_tx.shared.b64 w0, [cell], 64;" + waits(0, parity)
        text += complete(48) + waits(1, 0) + complete(16) + waits(2, 0) + pending(3, "w0")
        yield form(text, "u32:1,1" if parity else "u32:1,2", "p p p b32", 256)
    text = (
        f"{init} mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [cell], 32; mbarrier.arrive.shared.b64 _, [cell], in0;"
    )
    yield form(text + waits(0, 0) + complete(32) + waits(1, 0), count, "p p", 256)
    text = f"{init} {complete(32)} mbarrier.arrive.expect_tx.shared.b64 _, [cell], 32;"
    yield form(text + waits(0, 0) + waits(1, 1), "u32:1,2", "p p", 256)
    text = f"add.u32 t0, in0, 1; {init.replace('in0', 't0')} mbarrier.arrive_drop.shared.b64 w0, [cell];"
    text += " mbarrier.arrive.shared.b64 w1, [cell], in0;" + waits(0, 0)
    text += " mbarrier.arrive.shared.b64 _, [cell], in0;" + waits(1, 1) + pending(2, "w0") + pending(3, "w1")
    yield form(text, count, "p p b32 b32", 256)
    text = f"{init} mbarrier.arrive.noComplete.shared.b64 w0, [cell], 1; mbarrier.inval.shared.b64 [cell];"
    yield form(text + pending(0, "w0"), "u32:2,5", "b32", 256)


FORMS = (
    *loads(),
    *atomics(),
    *vector_atomics(),
    *matrices(),
    *copies(),
    *bulk_copies(),
    *bulk_reductions(),
    *mbarriers(),
)
