"""Barriers: bar.sync by warps, named ones, mbarriers, fences, elect, setmaxnreg."""

from typing import Any

import numpy as np

from pysm120.microbench.form import LANES, Form, Model, Operand

UNROLL = 15


def _counts(per_step: int) -> Model:
    """Return the model of a state that counts."""
    return lambda words, steps: words + np.uint32(per_step * steps)


def _form(name: str, lines: str | tuple[str, ...], sass: Any, *, warps: int = 1, **more: Any) -> Form:
    """Return a form whose step involves the whole CTA, with a number of warps."""
    options = {"per_cta": True, "latency_warps": warps, "check_warps": warps, **more.pop("options", {})}
    return Form(
        name=name,
        group="sync",
        template="sync",
        lines=(lines,) if isinstance(lines, str) else lines,
        sass=sass,
        state=Operand("b32", 1, more.pop("start", 0)),
        model=more.pop("model", lambda words, _: words),
        amount=1,
        unroll=more.pop("unroll", UNROLL),
        chains=(1,),
        warps=(warps,),
        has_rate=False,
        options=options,
        **more,
    )


def _bars() -> list[Form]:
    """Return barriers of the whole CTA, and named ones of four warps each."""
    count = "add.u32 X, X, 1;"
    forms = [
        _form(f"bar.sync, {warps} warps", ("bar.sync 0;", count), r"BAR\.SYNC.*", warps=warps, model=_counts(1))
        for warps in (1, 2, 4, 8, 16, 32)
    ]
    forms += [
        _form(f"bar.sync id, 128, {warps // 4} at once", ("bar.sync id, 128;", count), r"BAR\.SYNC.*", warps=warps, model=_counts(1),
              note="named barriers of four warps each")
        for warps in (4, 8, 16, 32)
    ]  # fmt: skip
    forms += [
        _form(f"barrier.red.popc, {warps} warps", ("{ .reg .pred p;", "setp.ne.u32 p, X, A;", "bar.red.popc.u32 X, 0, p; }"),
              {r"BAR\.RED\.POPC.*": 1}, besides=2, warps=warps, start=1, inputs={"A": Operand("b32", 1, 0)},
              model=lambda words, _, warps=warps: np.full_like(words, 32 * warps))
        for warps in (4, 8)
    ]  # fmt: skip
    forms.append(
        _form(
            "bar.warp.sync",
            ("bar.warp.sync -1;", count),
            r"WARPSYNC.*|NOP",
            model=_counts(1),
            note="a NOP where ptxas knows that all lanes are there",
        )
    )
    return forms


def _mbarriers() -> list[Form]:
    """Return the forms of mbarriers: init, arrive, test, and the time until a waiting warp continues."""
    ask = "{ .reg .pred p; .reg .b64 state; .reg .b32 one;"
    seen = ("selp.u32 one, 1, 0, p;", "add.u32 X, X, one; }")
    arrivals, many = {"arrivals": LANES}, {"arrivals": 1 << 19}
    return [
        _form("mbarrier.init, .inval", ("@is_first mbarrier.init.shared.b64 [scratch], 1;", "@is_first mbarrier.inval.shared.b64 [scratch];"),
              {r"SYNCS\.EXCH\.64": 1, r"SYNCS\.CCTL\.IV": 1}, besides=4.2, is_conditional=True, note="both, one lane"),
        _form("mbarrier.arrive, one lane", ("{ .reg .b64 state;", "@is_first mbarrier.arrive.shared.b64 state, [mine]; }"),
              r"SYNCS\.ARRIVE\..*", options=many, is_conditional=True),
        _form("mbarrier.arrive, 32 lanes", ("{ .reg .b64 state;", "mbarrier.arrive.shared.b64 state, [mine]; }"),
              r"SYNCS\.ARRIVE\..*", options=many),
        _form("mbarrier.arrive.expect_tx, one lane", ("{ .reg .b64 state;", "@is_first mbarrier.arrive.expect_tx.shared.b64 state, [mine], 0; }"),
              r"SYNCS\.ARRIVE\.TRANS64", options=many, is_conditional=True),
        _form("mbarrier.expect_tx, .complete_tx", ("@is_first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [mine], 16;",
              "@is_first mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [mine], 16;"), {r"SYNCS\.ARRIVE\..*": 2}, is_conditional=True, note="both, one lane"),
        _form("mbarrier.try_wait.parity, completed", (ask, "mbarrier.try_wait.parity.shared.b64 p, [mine], 1;", *seen),
              r"SYNCS\.PHASECHK\..*", model=_counts(1), besides=2.1, note="a phase that is over"),
        _form("mbarrier.test_wait.parity, completed", (ask, "mbarrier.test_wait.parity.shared.b64 p, [mine], 1;", *seen),
              r"SYNCS\.PHASECHK\..*", model=_counts(1), besides=2.1, note="a phase that is over"),
        _form("mbarrier.arrive, .try_wait", (ask, "mbarrier.arrive.shared.b64 state, [mine];",
              "mbarrier.try_wait.shared.b64 p, [mine], state;", *seen),
              {r"SYNCS\.ARRIVE\..*": 1, r"SYNCS\.PHASECHK\..*": 1}, options=arrivals, model=_counts(1), besides=2, note="of one warp"),
        _form("mbarrier hand-over and back, 2 warps", _ping_pong(), {r"SYNCS\.ARRIVE\..*": 2, r"SYNCS\.PHASECHK\..*": (1, 2 * UNROLL)}, warps=2,
              model=_counts(1), besides=6, is_conditional=True, note="arrive, wake-up of the other warp, and back"),
    ]  # fmt: skip


def _ping_pong() -> tuple[str, ...]:
    """Return a hand-over between two warps; even warps begin. X counts the completed phases."""
    return ("{ .reg .pred p; .reg .b64 state; .reg .b32 parity;", "and.b32 parity, X, 1;",
            "@is_even mbarrier.arrive.shared.b64 state, [other];",
            "again:", "mbarrier.try_wait.parity.shared.b64 p, [mine], parity;", "@!p bra again;",
            "@is_odd mbarrier.arrive.shared.b64 state, [other];", "add.u32 X, X, 1; }")  # fmt: skip


def _fences() -> list[Form]:
    """Return fences after a store to shared memory has been done."""
    view, cta = r"FENCE\.VIEW\.ASYNC\.S", r"MEMBAR\.ALL\.CTA"
    gpu = {cta: 1, r"MEMBAR\.ALL\.GPU": 1}
    errors = {"ERRBAR": 1, "CGAERRBAR": 1, r"CCTL\.IVALL": 1}
    rows: list[tuple[str, Any, str]] = [
        ("fence.proxy.async", {view: 1, **gpu}, "nothing under way"),
        ("fence.proxy.async.shared::cta", {view: 1, cta: 1}, "nothing under way"),
        ("fence.proxy.async.shared::cluster", {view: 1, **gpu}, "nothing under way"),
        ("fence.proxy.async.global", {r"FENCE\.VIEW\.ASYNC\.G": 1}, "nothing under way"),
        (
            "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
            {view: 1, cta: 1},
            "nothing under way",
        ),
        (
            "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
            "NOP",
            "no instruction is left of it",
        ),
        ("fence.acq_rel.cta", cta, "nothing under way"),
        ("fence.acq_rel.gpu", {**gpu, **errors}, "nothing under way"),
        ("fence.sc.gpu", {cta: 1, r"MEMBAR\.SC\.GPU": 1, **errors}, "nothing under way"),
    ]
    return [
        _form(name, (f"{name};", "add.u32 X, X, 1;"), sass, model=_counts(1), oldest=90, note=note)
        for name, sass, note in rows
    ]  # fmt: skip


def _others() -> list[Form]:
    """Return elect, and setmaxnreg: registers are given back and taken again."""
    elect = (
        "{ .reg .pred p; .reg .b32 who, one;",
        "elect.sync who|p, -1;",
        "selp.u32 one, 1, 0, p;",
        "add.u32 X, X, one; }",
    )
    return [
        _form("elect.sync", elect, "ELECT", unroll=1, note="with the loop around it: of several the assembler makes one", model=lambda words, steps: words + np.where(np.arange(LANES) == 0, steps, 0).astype(np.uint32)),
        _form("setmaxnreg.dec, .inc", ("setmaxnreg.dec.sync.aligned.u32 40;", "setmaxnreg.inc.sync.aligned.u32 64;", "add.u32 X, X, 1;"),
              {r"USETMAXREG\.DEALLOC.*": 1, r"USETMAXREG\.TRY_ALLOC.*": 1}, warps=4, needs=(90, 100, 120), oldest=90, model=_counts(1),
              besides=2, is_conditional=True,
              options={"directives": (".maxnreg 64",)}, note="both, a warpgroup"),
    ]  # fmt: skip


FORMS = [*_bars(), *_mbarriers(), *_fences(), *_others()]
