"""Asynchronous copies, and the mbarriers and fences with which warps wait for them."""

import re

from pysm120.machine_code.execute import operands as of
from pysm120.machine_code.execute.lanes import leader
from pysm120.machine_code.execute.writer import Writer

Match = re.Match[str]


def _once(w: Writer) -> str:
    """Return a predicate that holds in one of the executing lanes: such instructions are executed once for a warp."""
    mask, lane, own, is_first = w.executing(), "", w.temporary(), w.flag()
    lane = leader(w, mask)
    w.always(f"mov.u32 {own}, %laneid", f"setp.eq.u32 {is_first}, {own}, {lane}")
    return is_first


def bulk(w: Writer, _: Match) -> None:
    """UBLKCP.S.G [to, mbarrier], [from], units of 16 bytes."""
    a, b, n = w.one.operands
    (to, mbarrier), (low, high) = of.in_uniform(w, a), of.in_uniform(w, b)
    source, count = w.wide(), w.temporary()
    w.emit(f"mov.b64 {source}, {{{low}, {high}}}", f"shl.b32 {count}, {of.register(w, n)}, 4")
    name = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
    w.always(f"@{_once(w)} {name} [{to}], [{source}], {count}, [{mbarrier}]")


def tensor(w: Writer, _: Match) -> None:
    """UTMALDG.4D [to, mbarrier, four coordinates], [tensor map]."""
    a, b = w.one.operands
    to, mbarrier, *at = of.names(w, of.in_uniform(w, a)[0], 6)
    low, high = of.in_uniform(w, b)
    described = w.wide()
    w.emit(f"mov.b64 {described}, {{{low}, {high}}}")
    name = "cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    w.always(f"@{_once(w)} {name} [{to}], [{described}, {{{', '.join(at)}}}], [{mbarrier}]")


def prefetch(w: Writer, _: Match) -> None:
    """UTMACCTL.PF [tensor map]."""
    (a,) = w.one.operands
    low, high = of.in_uniform(w, a)
    described = w.wide()
    w.emit(f"mov.b64 {described}, {{{low}, {high}}}")
    w.always(f"@{_once(w)} prefetch.tensormap [{described}]")


def prefetch_line(w: Writer, _: Match) -> None:
    """CCTL.E.PF2 [a+n]: ask for a line in the L2."""
    (a,) = w.one.operands
    found = re.fullmatch(r"\[(R\d+)(?:\+(-?0x[0-9a-f]+))?\]", a)
    if found is None:
        raise w.unknown(f"address {a}")
    w.emit(f"prefetch.global.L2 {of.Address(of.pair(w, found[1]), int(found[2] or '0', 16))}")


def next_work(w: Writer, _: Match) -> None:
    """UGETNEXTWORKID.SELFCAST [to], [mbarrier]: ask for the CTA that this one may run next."""
    a, b = w.one.operands
    name = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"
    w.always(f"@{_once(w)} {name} [{of.in_uniform(w, a)[0]}], [{of.in_uniform(w, b)[0]}]")


def of_lanes(w: Writer, m: Match) -> None:
    """LDGSTS [to], desc[UR][from.64] [, p]: 16 bytes; zeros where p does not hold."""
    a, b, *p = w.one.operands
    to, source = of.shared(w, a), of.in_global(w, b)
    if bool(p) != bool(m["fill"]):
        raise w.unknown("operands")
    size = ""
    if p:
        count = w.temporary()
        w.emit(f"selp.b32 {count}, 16, 0, {of.predicate(w, p[0])}")
        size = f", {count}"
    w.emit(f"cp.async.cg.shared.global.L2::128B {to}, {source}, 16{size}")


def commit(w: Writer, _: Match) -> None:
    """LDGDEPBAR: the copies of the lanes so far form a group."""
    w.emit("cp.async.commit_group")


def wait(w: Writer, _: Match) -> None:
    """DEPBAR.LE SB0, n: wait until at most n groups are under way."""
    scoreboard, n = w.one.operands
    if scoreboard != "SB0":
        raise w.unknown(f"scoreboard {scoreboard}")
    w.emit(f"cp.async.wait_group {of.number(w, n)}")


def initialize(w: Writer, _: Match) -> None:
    """SYNCS.EXCH.64 URZ, [mbarrier], value: 2^20 less the count of arrivals stands in the value twice."""
    d, a, value = w.one.operands
    if d != "URZ":
        raise w.unknown(f"result {d}")
    low, high = of.names(w, value, 2)
    address, count, twice, is_other = of.shared(w, a), w.temporary(), w.temporary(), w.flag()
    w.emit(f"shr.u32 {count}, {high}, 11", f"shl.b32 {twice}, {count}, 1", f"setp.ne.u32 {is_other}, {twice}, {low}")
    w.emit(f"sub.u32 {count}, 0x100000, {count}")
    first = _once(w)
    w.always(f"@{is_other} trap")
    w.always(f"@{first} mbarrier.init.shared.b64 {address}, {count}")


def arrive(w: Writer, m: Match) -> None:
    """SYNCS.ARRIVE.TRANS64 RZ, [mbarrier], bytes: one arrival, which announces so many bytes; .A1T0: none."""
    d, a, count = w.one.operands
    if d != "RZ":
        raise w.unknown(f"result {d}")
    address = of.shared(w, a)
    if m["plain"]:
        if count != "RZ":
            raise w.unknown(f"operand {count}")
        w.emit(f"mbarrier.arrive.shared.b64 _, {address}")
    else:
        w.emit(f"mbarrier.arrive.expect_tx.shared.b64 _, {address}, {of.register(w, count)}")


def check_phase(w: Writer, m: Match) -> None:
    """SYNCS.PHASECHK.TRANS64 p, [mbarrier], parity: whether the phase has ended; the parity is in bit 31."""
    p, a, parity = w.one.operands
    address, bit = of.shared(w, a), w.temporary()
    w.emit(f"shr.u32 {bit}, {of.register(w, parity)}, 31")
    w.emit(f"mbarrier.{'try' if m['waits'] else 'test'}_wait.parity.shared.b64 {of.written(w, p)}, {address}, {bit}")


def fence(w: Writer, _: Match) -> None:
    """FENCE.VIEW.ASYNC.S: accesses to shared memory before it are seen by copies after it."""
    w.emit("fence.proxy.async.shared::cta")


def membar(w: Writer, m: Match) -> None:
    """MEMBAR.ALL.GPU."""
    w.emit(f"fence.acq_rel.{m['scope'].lower()}")


def dependents(w: Writer, m: Match) -> None:
    """PREEXIT lets the next launch begin; ACQBULK waits for the launch before."""
    w.emit(f"griddepcontrol.{'launch_dependents' if m['lets'] else 'wait'}")


HANDLERS = {
    r"UBLKCP\.S\.G": bulk,
    r"UTMALDG\.4D": tensor,
    r"UTMACCTL\.PF": prefetch,
    r"CCTL\.E\.PF2": prefetch_line,
    r"UGETNEXTWORKID\.SELFCAST": next_work,
    r"LDGSTS\.E\.BYPASS\.LTC128B\.128(?P<fill>\.ZFILL)?": of_lanes,
    r"LDGDEPBAR": commit,
    r"DEPBAR\.LE": wait,
    r"SYNCS\.EXCH\.64": initialize,
    r"SYNCS\.ARRIVE\.TRANS64(?P<plain>\.A1T0)?": arrive,
    r"SYNCS\.PHASECHK\.TRANS64(?P<waits>\.TRYWAIT)?": check_phase,
    r"FENCE\.VIEW\.ASYNC\.S": fence,
    r"MEMBAR\.ALL\.(?P<scope>CTA|GPU)": membar,
    r"(?P<lets>PREEXIT)|ACQBULK": dependents,
}
