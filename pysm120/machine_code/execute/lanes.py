"""Values that go from lane to lane: shuffles, votes, uniform registers, special registers."""

import re

from pysm120.machine_code.execute import operands as of
from pysm120.machine_code.execute.writer import Writer

Match = re.Match[str]
_SPECIAL = {
    "SR_TID.X": "%tid.x", "SR_CTAID.X": "%ctaid.x", "SR_CTAID.Y": "%ctaid.y", "SR_CTAID.Z": "%ctaid.z",
    "SR_LANEID": "%laneid", "SR_CgaCtaId": "%cluster_ctarank",
}  # fmt: skip


def _without_guard(w: Writer) -> None:
    if w.guard:
        raise w.unknown("a guard")


def shuffle(w: Writer, m: Match) -> None:
    """SHFL p, d, a, lane, limits: among the active lanes."""
    _without_guard(w)
    p, d, a, lane, limits = w.one.operands
    x, n, c = of.register(w, a), of.integer(w, lane), of.integer(w, limits)
    mask = w.active()
    w.emit(f"shfl.sync.{m['mode'].lower()}.b32 {of.destination(w, d)}|{of.written(w, p)}, {x}, {n}, {c}, {mask}")


def vote(w: Writer, m: Match) -> None:
    """VOTE.ANY [d,] p, q: whether q holds in any active lane; d gets a bit for each."""
    _without_guard(w)
    *d, p, q = w.one.operands
    source, mask = of.predicate(w, q), w.active()
    if d:
        of.lost(w, p)
        w.emit(f"vote.sync.ballot.b32 {of.destination(w, d[0])}, {source}, {mask}")
    else:
        w.emit(f"vote.sync.{m['mode'].lower()}.pred {of.written(w, p)}, {source}, {mask}")


def elect(w: Writer, _: Match) -> None:
    """ELECT p, d, PT: p holds in one of the executing lanes, whose number is d."""
    p, d, source = w.one.operands
    if source != "PT":
        raise w.unknown(f"predicate {source}")
    if w.guard and d != "URZ":
        raise w.unknown("a guard")
    mask = w.executing()
    w.emit(f"elect.sync {of.destination(w, d)}|{of.written(w, p)}, {mask}")


def leader(w: Writer, mask: str) -> str:
    """Return a register with the number of the lowest lane of a mask."""
    lane = w.temporary()
    w.always(f"brev.b32 {lane}, {mask}", f"bfind.shiftamt.u32 {lane}, {lane}")
    return lane


def to_uniform(w: Writer, _: Match) -> None:
    """R2UR d, a: all active lanes get the value of one in which the guard holds; without any, d stays."""
    d, a = w.one.operands
    mask = w.active()
    chosen, any_lane, value = w.executing(), w.flag(), w.temporary()
    lane = leader(w, chosen)
    w.always(f"setp.ne.u32 {any_lane}, {chosen}, 0")
    w.always(f"@{any_lane} shfl.sync.idx.b32 {value}|{w.flag()}, {of.register(w, a)}, {lane}, 31, {mask}")
    w.always(f"@{any_lane} mov.b32 {of.destination(w, d)}, {value}")


def special(w: Writer, _: Match) -> None:
    """S2R d, a special register."""
    d, a = w.one.operands
    if a not in _SPECIAL:
        raise w.unknown(f"special register {a}")
    w.emit(f"mov.u32 {of.destination(w, d)}, {_SPECIAL[a]}")


def largest(w: Writer, m: Match) -> None:
    """REDUX.MAX d, a: of all active lanes."""
    _without_guard(w)
    d, a = w.one.operands
    mask = w.active()
    w.emit(f"redux.sync.max.{'s32' if m['signed'] else 'u32'} {of.destination(w, d)}, {of.register(w, a)}, {mask}")


HANDLERS = {
    r"SHFL\.(?P<mode>BFLY|IDX)": shuffle,
    r"VOTEU?\.(?P<mode>ANY|ALL)": vote,
    r"ELECT": elect,
    r"R2UR(\.BROADCAST)?": to_uniform,
    r"S2U?R": special,
    r"REDUX\.MAX(?P<signed>\.S32)?": largest,
}
