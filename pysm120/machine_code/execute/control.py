"""Branches, calls, barriers, and the convergence of lanes."""

import re

from pysm120.machine_code.execute import operands as of
from pysm120.machine_code.execute.layout import STEP
from pysm120.machine_code.execute.writer import Writer

Match = re.Match[str]
_ALL = 0xFFFFFFFF


def _target(w: Writer) -> str:
    if w.one.target is None:
        raise w.unknown("a branch without a target")
    return w.layout.label(w.one.target)


def branch(w: Writer, _: Match) -> None:
    """BRA [p,] target."""
    *p, _to = w.one.operands
    if not p:
        w.emit(f"bra {_target(w)}")
        return
    taken, holds = w.flag(), w.flag()
    w.always(f"setp.eq.and.u32 {taken}, 0, 0, {of.predicate(w, p[0])}")
    if w.guard:
        w.always(f"setp.eq.and.u32 {holds}, 0, 0, {w.one.predicate}", f"and.pred {taken}, {taken}, {holds}")
    w.always(f"@{taken} bra {_target(w)}")


def branch_any(w: Writer, _: Match) -> None:
    """BRA.U.ANY target: all active lanes go there if the guard holds in any of them."""
    chosen, any_lane = w.executing(), w.flag()
    w.always(f"setp.ne.u32 {any_lane}, {chosen}, 0", f"@{any_lane} bra {_target(w)}")


def branch_diverged(w: Writer, _: Match) -> None:
    """BRA.DIV mask, target: the lanes go there unless exactly those of the mask are active."""
    mask, _to = w.one.operands
    if w.guard:
        raise w.unknown("a guard")
    is_other, wanted = w.flag(), of.register(w, mask)
    w.always(f"setp.ne.u32 {is_other}, {w.active()}, {wanted}", f"@{is_other} bra {_target(w)}")


def indirect(w: Writer, _: Match) -> None:
    """BRX a -n: to the address in a, because n leads from the next instruction to the begin of the kernel."""
    (where,) = w.one.operands
    found = re.fullmatch(r"(U?R\d+) (-0x[0-9a-f]+)", where)
    if found is None or int(found[2], 16) != -(w.one.address + STEP) or not w.one.choices:
        raise w.unknown("an indirect branch")
    dispatch(w, found[1], w.one.choices)


def dispatch(w: Writer, register: str, addresses: tuple[int, ...]) -> None:
    """Branch to the address in a register, which must be one of those given."""
    is_it = w.flag()
    for address in addresses:
        w.always(f"setp.eq.u32 {is_it}, {register}, {address:#x}")
        w.emit(f"@{is_it} bra {w.layout.label(address)}") if not w.guard else _both(w, is_it, address)
    w.emit("trap")


def _both(w: Writer, is_it: str, address: int) -> None:
    holds = w.flag()
    w.always(f"setp.eq.and.u32 {holds}, 0, 0, {w.one.predicate}", f"and.pred {holds}, {holds}, {is_it}")
    w.always(f"@{holds} bra {w.layout.label(address)}")


def call(w: Writer, _: Match) -> None:
    """CALL.REL.NOINC target: the code has put the address to return to in a register before."""
    w.emit(f"bra {_target(w)}")


def come_back(w: Writer, _: Match) -> None:
    """RET.REL.NODEC a: to the address in a."""
    (where,) = w.one.operands
    found = re.fullmatch(rf"(R\d+) `\({re.escape(w.entry)}\)", where)
    if found is None:
        raise w.unknown("operands")
    dispatch(w, found[1], w.layout.returns)


def leave(w: Writer, _: Match) -> None:
    """EXIT."""
    w.emit("exit")


def open_barrier(w: Writer, _: Match) -> None:
    """BSSY b, target: the active lanes will meet at a BSYNC, and go on at the target."""
    if w.guard:
        raise w.unknown("a guard")
    b, _to = w.one.operands
    w.always(f"activemask.b32 {b}", f"mov.u32 {b}_end, {w.one.target:#x}")


def meet(w: Writer, _: Match) -> None:
    """BSYNC b: wait for the lanes of the BSSY that have not left it."""
    if w.guard:
        raise w.unknown("a guard")
    (b,) = w.one.operands
    ends, following = w.layout.ends(b), w.one.address + STEP
    w.always(f"bar.warp.sync {b}")
    others = tuple(end for end in ends if end != following)
    is_it = w.flag()
    for end in others:
        w.always(f"setp.eq.u32 {is_it}, {b}_end, {end:#x}", f"@{is_it} bra {w.layout.label(end)}")


def leave_barrier(w: Writer, _: Match) -> None:
    """BREAK b: the executing lanes leave the barrier. Lanes that wait at it already do not hear of it."""
    (b,) = w.one.operands
    mask = w.executing()
    w.always(f"not.b32 {mask}, {mask}", f"and.b32 {b}, {b}, {mask}")


def collect(w: Writer, m: Match) -> None:
    """WARPSYNC: wait for all lanes, or for those of a mask."""
    if w.guard:
        raise w.unknown("a guard")
    mask = f"{_ALL:#x}" if m["all"] else of.register(w, w.one.operands[0])
    w.always(f"bar.warp.sync {mask}")


def barrier(w: Writer, m: Match) -> None:
    """BAR.SYNC n: wait for all warps of the CTA; n, t: for those of t threads. BAR.ARV n, t: arrive only."""
    w.emit(f"bar.{'arrive' if m['arrives'] else 'sync'} {', '.join(of.integer(w, x) for x in w.one.operands)}")


def barrier_or(w: Writer, _: Match) -> None:
    """BAR.RED.OR n, p: the same; B2R.RESULT reads whether p holds in any thread."""
    n, p = w.one.operands
    w.emit(f"bar.red.or.pred barrier_result, {of.number(w, n)}, {of.predicate(w, p)}")


def barrier_result(w: Writer, _: Match) -> None:
    """B2R.RESULT RZ, p."""
    d, p = w.one.operands
    if d != "RZ":
        raise w.unknown(f"result {d}")
    w.emit(f"setp.eq.and.u32 {of.written(w, p)}, 0, 0, barrier_result")


def nothing(_: Writer, __: Match) -> None:
    """Write nothing: timing, caches and reports of errors change no result."""


HANDLERS = {
    r"BRA(\.U)?": branch,
    r"BRA\.U\.ANY": branch_any,
    r"BRA\.DIV": branch_diverged,
    r"BRXU?": indirect,
    r"CALL\.REL\.NOINC": call,
    r"RET\.REL\.NODEC": come_back,
    r"EXIT": leave,
    r"BSSY(\.RECONVERGENT)?": open_barrier,
    r"BSYNC(\.RECONVERGENT)?": meet,
    r"BREAK": leave_barrier,
    r"WARPSYNC\.((?P<all>ALL)|COLLECTIVE)": collect,
    r"BAR\.(SYNC\.DEFER_BLOCKING|(?P<arrives>ARV))": barrier,
    r"BAR\.RED\.OR\.DEFER_BLOCKING": barrier_or,
    r"B2R\.RESULT": barrier_result,
    r"NOP|YIELD|ENDCOLLECTIVE|ERRBAR|CGAERRBAR|CCTL\.IVALL": nothing,
}
